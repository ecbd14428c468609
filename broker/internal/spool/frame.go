package spool

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/bits"
	"time"
)

// A frame, integers little-endian:
//
//	 0       4               12              20      24      28    30   31  32      36      40
//	+-------+---------------+---------------+-------+-------+-----+----+---+-------+-------+------+------+
//	| magic | stamp         | accepted at   | no.   | data  |lane |kind| 0 | body  | header| lane | data |
//	| PHS1  | salt + offset | µs since 1970 |       | size  |size |    |   | CRC   | CRC   |      |      |
//	+-------+---------------+---------------+-------+-------+-----+----+---+-------+-------+------+------+
//
// Both checksums are CRC-32C. The header's covers everything before it, the body's covers lane and data.
// The header has one of its own so that a size can be trusted before the body is: a frame that ends
// behind the end of the file was torn by a crash, one whose body does not match was damaged, and the
// next frame is where the header says.
//
// The magic is not zero and inside the checksum: without it, a tail of zeros (which a crash leaves
// where the size of a file reached the disk before its data) parses as empty frames.
//
// The stamp makes a frame valid at one place of one file only. Behind damage the next frame is searched
// byte by byte, and a payload may contain anything, frames of this format included; whoever sends it
// does not know the salt.
//
// The number counts the records of the file from 0. It keeps the marks right and counts the losses
// when frames before it are damaged.
const (
	headerSize = 40
	magic      = 0x31534850 // "PHS1": the digit is the version of the format

	offsetStamp     = 4
	offsetAt        = 12
	offsetNumber    = 20
	offsetDataSize  = 24
	offsetLaneSize  = 28
	offsetKind      = 30
	offsetReserved  = 31
	offsetBodyCRC   = 32
	offsetHeaderCRC = 36
)

// The kinds of frames. Each kind of file holds one.
const (
	kindRecord = 1 // in segments
	kindMarks  = 2 // alone in a .marks file; data: the drained records as runs, see appendRuns
	kindFailed = 3 // alone in a .record file; data: uvarint size of the reason, the reason, the record's data
)

const (
	// MaxLaneBytes is the largest size of a lane key: what the frame's field holds.
	MaxLaneBytes = 1<<16 - 1
	// MaxRecordBytes is the largest size of a record's data, 256 MiB: four times the largest request body
	// of a broker with default limits. A reader holds one record in memory at least.
	MaxRecordBytes = 256 << 20
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errBadFrame = errors.New("no valid frame")
)

// header is a frame's decoded header.
type header struct {
	at       int64 // µs since 1970
	number   uint32
	dataSize int
	laneSize int
	bodyCRC  uint32
}

// frameSize is the size of the whole frame in bytes.
func (h header) frameSize() int64 { return headerSize + int64(h.laneSize) + int64(h.dataSize) }

// appendFrame appends a frame that still needs its place, see place.
func appendFrame(dst []byte, kind byte, r Record) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	dst = append(dst, r.Lane...)
	dst = append(dst, r.Data...)
	h, body := dst[start:start+headerSize], dst[start+headerSize:]
	binary.LittleEndian.PutUint32(h, magic)
	binary.LittleEndian.PutUint64(h[offsetAt:], uint64(r.At.UnixMicro()))
	binary.LittleEndian.PutUint32(h[offsetDataSize:], uint32(len(r.Data)))
	binary.LittleEndian.PutUint16(h[offsetLaneSize:], uint16(len(r.Lane)))
	h[offsetKind] = kind
	binary.LittleEndian.PutUint32(h[offsetBodyCRC:], crc32.Checksum(body, castagnoli))
	return dst
}

// place binds the frame at the start of b to its place in a file and completes it.
func place(b []byte, stamp uint64, number uint32) {
	binary.LittleEndian.PutUint64(b[offsetStamp:], stamp)
	binary.LittleEndian.PutUint32(b[offsetNumber:], number)
	binary.LittleEndian.PutUint32(b[offsetHeaderCRC:], crc32.Checksum(b[:offsetHeaderCRC], castagnoli))
}

// decodeHeader decodes the header b, which is headerSize bytes, of a frame of that kind at offset off of
// a file with that salt. It reports false for anything else.
func decodeHeader(b []byte, kind byte, salt uint64, off int64) (header, bool) {
	if binary.LittleEndian.Uint32(b) != magic ||
		binary.LittleEndian.Uint64(b[offsetStamp:]) != salt+uint64(off) ||
		binary.LittleEndian.Uint32(b[offsetHeaderCRC:]) != crc32.Checksum(b[:offsetHeaderCRC], castagnoli) ||
		b[offsetKind] != kind || b[offsetReserved] != 0 {
		return header{}, false
	}
	h := header{
		at:       int64(binary.LittleEndian.Uint64(b[offsetAt:])),
		number:   binary.LittleEndian.Uint32(b[offsetNumber:]),
		dataSize: int(binary.LittleEndian.Uint32(b[offsetDataSize:])),
		laneSize: int(binary.LittleEndian.Uint16(b[offsetLaneSize:])),
		bodyCRC:  binary.LittleEndian.Uint32(b[offsetBodyCRC:]),
	}
	// Every record before this one took a header at least. The bound of the size is the writer's; a
	// quarantined record is larger by its reason.
	return h, int64(h.number)*headerSize <= off && (h.dataSize <= MaxRecordBytes || kind != kindRecord)
}

// record decodes the body of a frame into a record with memory of its own.
func (h header) record(body []byte) Record {
	return Record{
		Lane: string(body[:h.laneSize]),
		At:   time.UnixMicro(h.at).UTC(),
		Data: append([]byte(nil), body[h.laneSize:]...),
	}
}

// decodeFile decodes a file that is one frame of that kind.
func decodeFile(b []byte, kind byte, salt uint64) (Record, error) {
	if len(b) < headerSize {
		return Record{}, errBadFrame
	}
	h, ok := decodeHeader(b[:headerSize], kind, salt, 0)
	if !ok || h.frameSize() != int64(len(b)) || crc32.Checksum(b[headerSize:], castagnoli) != h.bodyCRC {
		return Record{}, errBadFrame
	}
	return h.record(b[headerSize:]), nil
}

// appendFailed appends the data of a quarantined record with the reason.
func appendFailed(dst []byte, reason string, data []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(reason)))
	dst = append(dst, reason...)
	return append(dst, data...)
}

// splitFailed undoes appendFailed.
func splitFailed(b []byte) (reason string, data []byte, err error) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return "", nil, errBadFrame
	}
	return string(b[n : n+int(size)]), b[n+int(size):], nil
}

// run is a run of record numbers [first, end).
type run struct{ first, end uint32 }

// appendRuns appends the runs of drained records among the first n: for each, as uvarints, the
// distance from the end of the run before it and its length. Drained in order, that is one run.
func appendRuns(dst []byte, blocks []block, n uint32) []byte {
	at := uint32(0)
	for {
		first := nextRecord(blocks, at, n, drained)
		if first >= n {
			return dst
		}
		end := nextRecord(blocks, first, n, undrained)
		dst = binary.AppendUvarint(dst, uint64(first-at))
		dst = binary.AppendUvarint(dst, uint64(end-first))
		at = end
	}
}

// parseRuns undoes appendRuns; the runs ascend and do not touch.
func parseRuns(b []byte) ([]run, error) {
	var runs []run
	for at := uint64(0); len(b) > 0; {
		gap, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errBadFrame
		}
		length, m := binary.Uvarint(b[n:])
		if m <= 0 || length == 0 || (gap == 0 && at > 0) || gap > 1<<32 || length > 1<<32 || at+gap+length > 1<<32-1 {
			return nil, errBadFrame
		}
		runs = append(runs, run{uint32(at + gap), uint32(at + gap + length)})
		at += gap + length
		b = b[n+m:]
	}
	return runs, nil
}

// block is the index of 64 records of a segment, those with the numbers 64·i to 64·i+63 for the i-th
// block. Offset and oldest are those of the first and of the earliest record that was ever in it.
type block struct {
	pending uint64 // bit k: record 64·i+k is undrained
	offset  int64  // of the first frame; meaningless when nothing is pending
	oldest  int64  // least accept time, µs since 1970
}

// undrained and drained select what nextRecord looks for.
func undrained(pending uint64) uint64 { return pending }
func drained(pending uint64) uint64   { return ^pending }

// nextRecord returns the least number from first on, below n, whose bit is set in what choose makes
// of the block's pending bits; n if there is none.
func nextRecord(blocks []block, first, n uint32, choose func(uint64) uint64) uint32 {
	mask := ^uint64(0) << (first % 64)
	for i := first / 64; i < uint32(len(blocks)) && i*64 < n; i++ {
		if set := choose(blocks[i].pending) & mask; set != 0 {
			return min(n, i*64+uint32(bits.TrailingZeros64(set)))
		}
		mask = ^uint64(0)
	}
	return n
}
