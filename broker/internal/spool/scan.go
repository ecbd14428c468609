package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"
)

// windowBytes is how much of a file is read at once: enough that the calls do not count, little enough
// that several readers do not count either.
const windowBytes = 256 << 10

// finding is what a scanner found at an offset.
type finding int

const (
	foundFrame   finding = iota
	foundEnd             // the end of the file
	foundDamage          // bytes that are no frame; frames may follow them
	foundTorn            // the beginning of a frame that the file ends in
	foundNothing         // zeros up to the end of the file
)

// scanner reads the frames of one segment. It never reads behind size, holds one window of the file or
// one frame in memory, and finds the same at the same offset for the same bytes.
type scanner struct {
	file io.ReaderAt
	size int64
	salt uint64

	window []byte // bytes of the file from at on
	at     int64
}

// peek returns n bytes at off, valid until the next call. The caller checked that size allows it.
func (s *scanner) peek(off, n int64) ([]byte, error) {
	if off < s.at || off+n > s.at+int64(len(s.window)) {
		want := int(min(max(n, windowBytes), s.size-off))
		s.window = slices.Grow(s.window[:0], want)[:want]
		s.at = off
		got, err := s.file.ReadAt(s.window, off)
		s.window = s.window[:got]
		if int64(got) < n {
			if errors.Is(err, io.EOF) { // shorter than its size
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
	}
	return s.window[off-s.at : off-s.at+n], nil
}

// next tells what is at off and where it ends. The body is a frame's lane and data, valid until the
// next call. An error is one of reading the file.
func (s *scanner) next(off int64) (found finding, h header, body []byte, end int64, err error) {
	rest := s.size - off
	if rest <= 0 {
		return foundEnd, header{}, nil, off, nil
	}
	if rest < headerSize {
		found, err = s.tail(off, foundTorn)
		return found, header{}, nil, s.size, err
	}
	b, err := s.peek(off, headerSize)
	if err != nil {
		return 0, header{}, nil, 0, err
	}
	h, ok := decodeHeader(b, kindRecord, s.salt, off)
	if !ok {
		found, end, err = s.resync(off)
		return found, header{}, nil, end, err
	}
	end = off + h.frameSize()
	if end > s.size {
		return foundTorn, header{}, nil, s.size, nil
	}
	if b, err = s.peek(off, h.frameSize()); err != nil {
		return 0, header{}, nil, 0, err
	}
	body = b[headerSize:]
	if crc32.Checksum(body, castagnoli) != h.bodyCRC {
		return foundDamage, h, nil, end, nil
	}
	return foundFrame, h, body, end, nil
}

// resync searches the next header behind the damage at off.
func (s *scanner) resync(off int64) (finding, int64, error) {
	var pattern [4]byte
	binary.LittleEndian.PutUint32(pattern[:], magic)
	for at := off + 1; s.size-at >= headerSize; {
		b, err := s.peek(at, min(s.size-at, windowBytes))
		if err != nil {
			return 0, 0, err
		}
		for i := 0; len(b)-i >= headerSize; i++ {
			skip := bytes.Index(b[i:], pattern[:])
			if skip < 0 || len(b)-i-skip < headerSize {
				break
			}
			i += skip
			if _, ok := decodeHeader(b[i:i+headerSize], kindRecord, s.salt, at+int64(i)); ok {
				return foundDamage, at + int64(i), nil
			}
		}
		at += int64(len(b) - headerSize + 1)
	}
	found, err := s.tail(off, foundDamage)
	return found, s.size, err
}

// tail tells zeros up to the end of the file from what else it would be.
func (s *scanner) tail(off int64, otherwise finding) (finding, error) {
	for off < s.size {
		b, err := s.peek(off, min(s.size-off, windowBytes))
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
			return otherwise, nil
		}
		off += int64(len(b))
	}
	return foundNothing, nil
}
