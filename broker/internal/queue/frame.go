package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/s2"
)

// A segment's frames column holds frames one after the other, encoded as a whole as its format column says.
// A frame:
//
//	+--------+-------+----------+----------------+----------------+------------+----------------+---------------+---------+
//	| length | flags | id       | transaction id | producer sub   | trace id   | accepted       | trace context | payload |
//	| varint | 1     | 16 bytes | varint + bytes | varint + bytes | 16 bytes   | 8 bytes, µs    | 25 bytes      | rest    |
//	+--------+-------+----------+----------------+----------------+------------+----------------+---------------+---------+
//	                              unless ownTxID   if hasSub        if hasTrace  if hasAccepted   if hasContext
const (
	formatPlain = 1
	formatS2    = 2

	flagOwnTxID  = 1 << 0 // the transaction id is the message id's text
	flagHasSub   = 1 << 1
	flagHasTrace = 1 << 2
	// flagHasAccepted marks what came from the spool: the segment's time is that of the replay.
	flagHasAccepted = 1 << 3
	flagSealed      = 1 << 4 // the payload is an envelope of package seal
	flagHasContext  = 1 << 5
)

const (
	// compressFrom is the size from which compression is tried: below it a row stays in its page anyway.
	compressFrom = 1 << 10
	// A segment is cut at these sizes, so that a pop of a few messages reads little.
	segmentMaxCount = 1024
	segmentMaxBytes = 1 << 20
)

var errCorrupt = errors.New("corrupt segment")

// draft is a message that is about to become a frame.
type draft struct {
	id       uuid.UUID
	txID     string // "" means the id's text
	sub      string
	trace    uuid.UUID
	accepted time.Time // zero unless it comes from the spool
	context  TraceContext
	sealed   bool // the payload is encrypted
	payload  []byte
}

// draft is the message of a frame, to be written again.
func (f *frame) draft() draft {
	return draft{f.id, string(f.txID), string(f.sub), f.trace, f.at, f.context, f.sealed, f.payload}
}

// appendFrame appends the frame of one message to dst.
func appendFrame(dst []byte, d *draft) []byte {
	var flags byte
	size := 1 + len(d.id) + len(d.payload)
	if d.txID == "" {
		flags |= flagOwnTxID
	} else {
		size += uvarintLen(len(d.txID)) + len(d.txID)
	}
	if d.sub != "" {
		flags |= flagHasSub
		size += uvarintLen(len(d.sub)) + len(d.sub)
	}
	if d.trace != uuid.Nil {
		flags |= flagHasTrace
		size += len(d.trace)
	}
	if !d.accepted.IsZero() {
		flags |= flagHasAccepted
		size += 8
	}
	if !d.context.IsZero() {
		flags |= flagHasContext
		size += traceContextSize
	}
	if d.sealed {
		flags |= flagSealed
	}
	dst = binary.AppendUvarint(dst, uint64(size))
	dst = append(dst, flags)
	dst = append(dst, d.id[:]...)
	if d.txID != "" {
		dst = binary.AppendUvarint(dst, uint64(len(d.txID)))
		dst = append(dst, d.txID...)
	}
	if d.sub != "" {
		dst = binary.AppendUvarint(dst, uint64(len(d.sub)))
		dst = append(dst, d.sub...)
	}
	if d.trace != uuid.Nil {
		dst = append(dst, d.trace[:]...)
	}
	if !d.accepted.IsZero() {
		dst = binary.BigEndian.AppendUint64(dst, uint64(d.accepted.UnixMicro()))
	}
	if !d.context.IsZero() {
		dst = d.context.append(dst)
	}
	return append(dst, d.payload...)
}

func uvarintLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// frame is one decoded message; its byte slices point into the segment.
type frame struct {
	id      uuid.UUID
	txID    []byte // nil means the id's text
	sub     []byte
	trace   uuid.UUID
	at      time.Time // when it was accepted, if it comes from the spool
	context TraceContext
	sealed  bool // the payload is encrypted: Engine.open opens it
	payload []byte
}

// accepted is when the message was accepted: when it was stored, unless it came from the spool.
func (f *frame) accepted(stored time.Time) time.Time {
	if f.at.IsZero() {
		return stored
	}
	return f.at
}

func (f *frame) transactionID() string {
	if f.txID == nil {
		return f.id.String()
	}
	return string(f.txID)
}

func (f *frame) hasTransactionID(txID string) bool {
	if f.txID == nil {
		return f.id.String() == txID
	}
	return string(f.txID) == txID
}

// decodeFrame decodes the frame at the start of b and returns its size.
func decodeFrame(b []byte) (frame, int, error) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) || length < 17 {
		return frame{}, 0, fmt.Errorf("%w: frame length", errCorrupt)
	}
	body, size := b[n:n+int(length)], n+int(length)
	flags := body[0]
	f := frame{id: uuid.UUID(body[1:17]), sealed: flags&flagSealed != 0}
	body = body[17:]
	var ok bool
	if flags&flagOwnTxID == 0 {
		if f.txID, body, ok = takeBytes(body); !ok {
			return frame{}, 0, fmt.Errorf("%w: transaction id", errCorrupt)
		}
	}
	if flags&flagHasSub != 0 {
		if f.sub, body, ok = takeBytes(body); !ok {
			return frame{}, 0, fmt.Errorf("%w: producer sub", errCorrupt)
		}
	}
	if flags&flagHasTrace != 0 {
		if len(body) < 16 {
			return frame{}, 0, fmt.Errorf("%w: trace id", errCorrupt)
		}
		f.trace, body = uuid.UUID(body[:16]), body[16:]
	}
	if flags&flagHasAccepted != 0 {
		if len(body) < 8 {
			return frame{}, 0, fmt.Errorf("%w: accept time", errCorrupt)
		}
		f.at, body = time.UnixMicro(int64(binary.BigEndian.Uint64(body))), body[8:]
	}
	if flags&flagHasContext != 0 {
		if len(body) < traceContextSize {
			return frame{}, 0, fmt.Errorf("%w: trace context", errCorrupt)
		}
		f.context, body = decodeTraceContext(body), body[traceContextSize:]
	}
	f.payload = body
	return f, size, nil
}

func takeBytes(b []byte) (taken, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(length)
	return b[n:end:end], b[end:], true
}

// segment is a run of messages of one partition as it is stored, decoded as far as finding each frame.
// It is immutable.
type segment struct {
	partitionID int64
	base        int64
	created     time.Time
	hashes      []byte // of the transaction ids, 8 bytes each
	frames      []byte
	starts      []uint32 // where each frame starts in frames
}

// segmentRow is a segment as it is stored.
type segmentRow struct {
	partitionID int64
	base        int64
	count       int
	created     time.Time
	bytes       int // of the frames, not compressed
	format      int16
	hashes      []byte
	frames      []byte // nil once retention emptied it
}

// segmentColumns are what fields scans.
const segmentColumns = `g.partition_id, g.base, g.count, g.created_at, g.bytes, g.format, g.hashes, g.frames`

func (r *segmentRow) fields() []any {
	return []any{&r.partitionID, &r.base, &r.count, &r.created, &r.bytes, &r.format, &r.hashes, &r.frames}
}

func (s *segment) end() int64 { return s.base + int64(len(s.starts)) }

// size is how many bytes the frames of [from, to) take.
func (s *segment) size(from, to int64) int64 {
	end := len(s.frames)
	if to < s.end() {
		end = int(s.starts[to-s.base])
	}
	return int64(end) - int64(s.starts[from-s.base])
}

func (s *segment) frame(offset int64) (frame, error) {
	f, _, err := decodeFrame(s.frames[s.starts[offset-s.base]:])
	return f, err
}

// sealed reports whether the message at an offset is encrypted.
func (s *segment) sealed(offset int64) bool {
	b := s.frames[s.starts[offset-s.base]:]
	_, n := binary.Uvarint(b)
	return b[n]&flagSealed != 0
}

// scratch holds buffers that compression is tried in.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// pack returns the frames column and its format. A plain column is the frames themselves.
func pack(frames []byte) (format int16, column []byte) {
	if len(frames) < compressFrom {
		return formatPlain, frames
	}
	buffer := scratch.Get().(*[]byte)
	defer scratch.Put(buffer)
	*buffer = slices.Grow((*buffer)[:0], s2.MaxEncodedLen(len(frames)))
	body := s2.Encode((*buffer)[:cap(*buffer)], frames)
	if len(body) > len(frames)-len(frames)/8 { // the space saved is not worth the decoding
		return formatPlain, frames
	}
	return formatS2, slices.Clone(body)
}

// unpack decodes a stored segment.
func unpack(r *segmentRow) (*segment, error) {
	wrap := func(what string) error {
		return fmt.Errorf("%w: partition %d offset %d: %s", errCorrupt, r.partitionID, r.base, what)
	}
	frames := r.frames
	switch r.format {
	case formatPlain:
	case formatS2:
		n, err := s2.DecodedLen(frames)
		if err != nil || n != r.bytes { // asked first: a damaged length would ask for gigabytes
			return nil, wrap("decoded length")
		}
		if frames, err = s2.Decode(nil, frames); err != nil {
			return nil, wrap(err.Error())
		}
	default:
		return nil, wrap("unknown format")
	}
	if len(frames) != r.bytes {
		return nil, wrap(fmt.Sprintf("%d bytes of frames, want %d", len(frames), r.bytes))
	}
	if len(r.hashes) != 8*r.count {
		return nil, wrap(fmt.Sprintf("%d bytes of hashes for %d messages", len(r.hashes), r.count))
	}
	s := &segment{
		partitionID: r.partitionID, base: r.base, created: r.created,
		hashes: r.hashes, frames: frames, starts: make([]uint32, 0, r.count),
	}
	for at := 0; at < len(frames); {
		length, n := binary.Uvarint(frames[at:])
		if n <= 0 || length > uint64(len(frames)-at-n) {
			return nil, wrap("frame length")
		}
		s.starts = append(s.starts, uint32(at))
		at += n + int(length)
	}
	if len(s.starts) != r.count {
		return nil, wrap(fmt.Sprintf("%d frames, want %d", len(s.starts), r.count))
	}
	return s, nil
}

func appendHash(dst []byte, hash uint64) []byte { return binary.BigEndian.AppendUint64(dst, hash) }

func hashAt(hashes []byte, i int) uint64 { return binary.BigEndian.Uint64(hashes[8*i:]) }

// appended is one run of messages that a flush appended to a partition.
type appended struct {
	queueID, partitionID int64
	base                 int64
	count                int64
}

// A flush row's entries column is a kind byte followed by varints.
const (
	entriesAppend      = 1 // queue, partition, base, count, repeated
	entriesDeleteQueue = 2 // queue
	entriesCleanUp     = 3 // partition, repeated
)

func encodeAppends(dst []byte, runs []appended) []byte {
	dst = append(dst, entriesAppend)
	for _, a := range runs {
		for _, v := range [...]int64{a.queueID, a.partitionID, a.base, a.count} {
			dst = binary.AppendUvarint(dst, uint64(v))
		}
	}
	return dst
}

func encodeDeleteQueue(queueID int64) []byte {
	return binary.AppendUvarint([]byte{entriesDeleteQueue}, uint64(queueID))
}

func encodeCleanUp(partitionIDs []int64) []byte {
	dst := []byte{entriesCleanUp}
	for _, id := range partitionIDs {
		dst = binary.AppendUvarint(dst, uint64(id))
	}
	return dst
}

// flushEntries is what one move of a head did: one of these.
type flushEntries struct {
	appends      []appended
	deletedQueue int64
	cleanedUp    []int64 // partitions
}

func decodeEntries(b []byte) (flushEntries, error) {
	if len(b) == 0 {
		return flushEntries{}, fmt.Errorf("%w: empty flush entries", errCorrupt)
	}
	kind := b[0]
	var values []int64
	for b = b[1:]; len(b) > 0; {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return flushEntries{}, fmt.Errorf("%w: flush entries", errCorrupt)
		}
		values, b = append(values, int64(v)), b[n:]
	}
	switch {
	case kind == entriesAppend && len(values)%4 == 0:
		var runs []appended
		for ; len(values) > 0; values = values[4:] {
			runs = append(runs, appended{values[0], values[1], values[2], values[3]})
		}
		return flushEntries{appends: runs}, nil
	case kind == entriesDeleteQueue && len(values) == 1:
		return flushEntries{deletedQueue: values[0]}, nil
	case kind == entriesCleanUp:
		return flushEntries{cleanedUp: values}, nil
	}
	return flushEntries{}, fmt.Errorf("%w: flush entries of kind %d", errCorrupt, kind)
}
