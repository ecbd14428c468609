package queue

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

func TestFramesRoundTrip(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83")
	for _, want := range []frame{
		{id: id, payload: []byte(`null`)},
		{id: id, txID: []byte("order-1"), payload: []byte("1e400")},
		{id: id, at: time.UnixMicro(1_800_000_000_000_001), payload: []byte("{}")},
		{id: id, trace: uuid.Max, payload: []byte("[]")},
		{id: id, trace: uuid.Max, txID: []byte("t"), sub: []byte("s"), at: time.UnixMicro(1), payload: []byte("0")},
		{id: id, context: TraceContext{[16]byte{1, 2}, [8]byte{3}, 1}, payload: []byte("7")},
		{id: id, trace: uuid.Max, at: time.UnixMicro(1), context: TraceContext{[16]byte{1}, [8]byte{2}, 255}, sealed: true, payload: []byte("e")},
		{id: id, sealed: true, payload: []byte("envelope")},
		{id: id, sub: []byte("producer"), payload: []byte("\"\xed\xa0\x80\"")},
		{id: id, txID: bytes.Repeat([]byte("x"), 1024), sub: bytes.Repeat([]byte("s"), 300), payload: bytes.Repeat([]byte(" "), 1<<20)},
	} {
		d := want.draft()
		encoded := appendFrame([]byte("before"), &d)[len("before"):]
		got, size, err := decodeFrame(append(encoded, "after"...))
		if err != nil || size != len(encoded) {
			t.Fatalf("decoded %d of %d bytes: %v", size, len(encoded), err)
		}
		if got.id != want.id || !bytes.Equal(got.txID, want.txID) || !bytes.Equal(got.sub, want.sub) || !bytes.Equal(got.payload, want.payload) || !got.at.Equal(want.at) || got.trace != want.trace || got.sealed != want.sealed || got.context != want.context {
			t.Errorf("got %+v, want %+v", got, want)
		}
		item := PushItem{TransactionID: string(want.txID), ProducerSub: string(want.sub), TraceID: want.trace, Context: want.context, Payload: want.payload}
		if bound := frameSize(&item); len(encoded) > bound {
			t.Errorf("a frame of %d bytes was bounded to %d", len(encoded), bound)
		}
	}
}

func TestSegmentsRoundTrip(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string][]byte{
		"small":          []byte(`{}`),
		"compressible":   bytes.Repeat([]byte("posthorn "), 1000),
		"incompressible": noise(4096),
	} {
		var frames, hashes []byte
		for i := range 3 {
			frames = appendFrame(frames, &draft{id: uuid.New(), payload: payload[i:]})
			hashes = appendHash(hashes, uint64(i))
		}
		format, column := pack(frames)
		if name == "compressible" && len(column) > len(frames)/4 {
			t.Errorf("%s: %d bytes of %d are left", name, len(column), len(frames))
		}
		row := segmentRow{partitionID: 1, base: 7, count: 3, created: time.Unix(1, 0), bytes: len(frames), format: format, hashes: hashes, frames: column}
		s, err := unpack(&row)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f, err := s.frame(8); err != nil || !bytes.Equal(f.payload, payload[1:]) {
			t.Errorf("%s: frame 8: %v", name, err)
		}
		if s.end() != 10 || s.size(7, 10) != int64(len(frames)) || s.size(8, 9) != int64(s.starts[2]-s.starts[1]) {
			t.Errorf("%s: end %d, size %d", name, s.end(), s.size(7, 10))
		}
		for what, damage := range map[string]func(*segmentRow){
			"a frame too few":    func(r *segmentRow) { r.count = 4; r.hashes = append(slices.Clone(r.hashes), make([]byte, 8)...) },
			"a missing hash":     func(r *segmentRow) { r.hashes = r.hashes[:16] },
			"an unknown format":  func(r *segmentRow) { r.format = 9 },
			"a truncated column": func(r *segmentRow) { r.frames = r.frames[:len(r.frames)-1] },
		} {
			damaged := row
			damage(&damaged)
			if _, err := unpack(&damaged); !errors.Is(err, errCorrupt) {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint64(i+1) * 0x9e3779b97f4a7c15 >> 40)
	}
	return b
}

func FuzzDecodeFrame(f *testing.F) {
	f.Add(appendFrame(nil, &draft{txID: "tx", sub: "sub", trace: uuid.Max, accepted: time.UnixMicro(1), sealed: true, payload: []byte("{}")}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte{17, flagHasTrace})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, size, err := decodeFrame(b)
		if err != nil {
			return
		}
		if size > len(b) || len(got.payload) > size {
			t.Fatalf("%d bytes out of %d", size, len(b))
		}
	})
}

func FuzzUnpack(f *testing.F) {
	_, column := pack(appendFrame(nil, &draft{txID: "tx", payload: []byte("{}")}))
	f.Add(int16(formatPlain), 1, len(column), column)
	f.Add(int16(formatS2), 3, 100, []byte{0xff, 0xff, 0xff, 0x7f, 0})
	f.Fuzz(func(t *testing.T, format int16, count, size int, frames []byte) {
		if count < 0 || count > 1000 || size > 1<<20 {
			return
		}
		s, err := unpack(&segmentRow{count: count, bytes: size, format: format, hashes: make([]byte, 8*count), frames: frames})
		if err != nil {
			return
		}
		for offset := range s.end() {
			if _, err := s.frame(offset); err != nil && !errors.Is(err, errCorrupt) {
				t.Fatal(err)
			}
		}
	})
}

func FuzzDecodeEntries(f *testing.F) {
	f.Add(encodeAppends(nil, []appended{{1, 2, 3, 4}, {5, 6, 7, 1 << 40}}))
	f.Add(encodeDeleteQueue(9))
	f.Add(encodeCleanUp([]int64{7, 1 << 40}))
	f.Add([]byte{entriesAppend, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		did, err := decodeEntries(b)
		if err != nil {
			return
		}
		again, err := decodeEntries(reencode(did))
		if err != nil || !slices.Equal(again.appends, did.appends) || again.deletedQueue != did.deletedQueue || !slices.Equal(again.cleanedUp, did.cleanedUp) {
			t.Fatalf("%v became %v, %v", did, again, err)
		}
	})
}

func reencode(did flushEntries) []byte {
	switch {
	case did.deletedQueue != 0:
		return encodeDeleteQueue(did.deletedQueue)
	case len(did.cleanedUp) > 0:
		return encodeCleanUp(did.cleanedUp)
	}
	return encodeAppends(nil, did.appends)
}

func TestLeaseIDsCarryTheirPartition(t *testing.T) {
	t.Parallel()
	for _, partition := range []int64{0, 1, 629, 1<<48 - 1} {
		id, err := newLeaseID(partition)
		if err != nil {
			t.Fatal(err)
		}
		if got := leasePartition(id); got != partition {
			t.Errorf("%v carries %d, want %d", id, got, partition)
		}
		if id.Version() != 8 || id.Variant() != uuid.RFC4122 {
			t.Errorf("%v: version %d, variant %v", id, id.Version(), id.Variant())
		}
	}
}

func TestBudgetOfAnAnswer(t *testing.T) {
	t.Parallel()
	var frames []byte
	s := &segment{base: 10}
	for range 5 {
		s.starts = append(s.starts, uint32(len(frames)))
		frames = appendFrame(frames, &draft{payload: make([]byte, 82)}) // 100 bytes each
	}
	s.frames = frames
	for _, c := range []struct {
		what     string
		budget   budget
		from, to int64
		past     int64
	}{
		{"everything fits", budget{messages: 9, bytes: 1000}, 10, 15, 15},
		{"messages run out", budget{messages: 2, bytes: 1000}, 11, 15, 13},
		{"bytes run out", budget{messages: 9, bytes: 250}, 10, 15, 12},
		{"one message is always given", budget{messages: 9, bytes: 1}, 10, 15, 11},
		{"but only one", budget{messages: 9, bytes: 1, taken: true}, 10, 15, 10},
	} {
		if past := c.budget.spend(s, c.from, c.to); past != c.past {
			t.Errorf("%s: past %d, want %d", c.what, past, c.past)
		}
	}
}
