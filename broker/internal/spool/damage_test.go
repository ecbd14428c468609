package spool

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func flip(t testing.TB, path string, off int64, mask byte) {
	t.Helper()
	overwrite(t, path, func(b []byte) []byte { b[off] ^= mask; return b })
}

// overwrite changes a file in place: who has it open sees it.
func overwrite(t testing.TB, path string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sample is a closed spool of a few small records of all shapes in one file.
type sample struct {
	name    string // of the file
	bytes   []byte
	records []Record
	ends    []int // of their frames
}

func newSample(t testing.TB) sample {
	t.Helper()
	s := open(t, Config{})
	sm := sample{records: []Record{
		{Lane: "a", At: noon, Data: []byte("one")},
		{},
		{Lane: "b", At: noon, Data: make([]byte, 50)},
		{Lane: "a", At: noon, Data: []byte{1}},
		{Lane: "c", At: noon, Data: []byte("PHS1PHS1PHS1PHS1PHS1PHS1PHS1PHS1PHS1PHS1PHS1PHS1")},
		{Lane: "a", At: noon, Data: []byte("last")},
	}}
	put(t, s, sm.records[:2]...)
	put(t, s, sm.records[2:5]...)
	put(t, s, sm.records[5:]...)
	files := segmentFiles(t, s.cfg.Dir)
	b, err := os.ReadFile(files[0])
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	sm.name, sm.bytes = filepath.Base(files[0]), b
	end := 0
	for _, r := range sm.records {
		end += headerSize + len(r.Lane) + len(r.Data)
		sm.ends = append(sm.ends, end)
	}
	if end != len(b) {
		t.Fatalf("the file has %d bytes, want %d", len(b), end)
	}
	return sm
}

// open opens a spool whose only file has these bytes.
func (sm sample) open(t testing.TB, dir string, b []byte) *Spool {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, sm.name), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return open(t, Config{Dir: dir, hook: quick})
}

// data returns the data of the records for which keep holds.
func (sm sample) data(keep func(i int) bool) []string {
	var all []string
	for i, r := range sm.records {
		if keep(i) {
			all = append(all, string(r.Data))
		}
	}
	return all
}

// TestCutAtEveryByte cuts the file at every byte: the records before the cut are there and nothing
// else, the file ends behind the last of them, and the spool goes on.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	dir := t.TempDir()
	for cut := range len(sm.bytes) + 1 {
		s := sm.open(t, filepath.Join(dir, fmt.Sprint(cut)), sm.bytes[:cut])
		want := sm.data(func(i int) bool { return sm.ends[i] <= cut })
		wantData(t, s, want...)
		wantConsistent(t, s)
		end := 0
		for _, e := range sm.ends {
			if e <= cut {
				end = e
			}
		}
		if st := s.Stats(); st.Failed != 0 || st.Bytes != int64(end) {
			t.Fatalf("cut at %d: %+v", cut, st)
		}
		if info, err := os.Stat(filepath.Join(s.cfg.Dir, sm.name)); end > 0 && (err != nil || info.Size() != int64(end)) {
			t.Fatalf("cut at %d: the file is %v, %v", cut, info, err)
		}
		put(t, s, Record{Data: []byte("new")})
		wantData(t, reopen(t, s), append(want, "new")...)
	}
}

// TestFlipEveryByte damages every byte in two ways: the record around it is lost, its bytes are kept,
// every other record is there, and the spool goes on.
func TestFlipEveryByte(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	dir := t.TempDir()
	for off := range sm.bytes {
		for _, mask := range []byte{1 << (off % 8), 0xff} {
			b := slices.Clone(sm.bytes)
			b[off] ^= mask
			hit := 0
			for sm.ends[hit] <= off {
				hit++
			}
			start, end := 0, sm.ends[hit]
			if hit > 0 {
				start = sm.ends[hit-1]
			}
			s := sm.open(t, filepath.Join(dir, fmt.Sprint(off, mask)), b)
			want := sm.data(func(i int) bool { return i != hit })
			for range 2 {
				wantData(t, s, want...)
				wantConsistent(t, s)
				if st := s.Stats(); st.Failed != 1 || st.FailedBytes != int64(end-start) {
					t.Fatalf("byte %d: %+v", off, st)
				}
				for f, err := range s.Failed() {
					if err != nil || !f.Damaged || !bytes.Equal(f.Record.Data, b[start:end]) {
						t.Fatalf("byte %d: kept %+v, %v", off, f, err)
					}
				}
				s = reopen(t, s)
			}
			put(t, s, Record{Data: []byte("new")})
			wantData(t, s, append(want, "new")...)
			if err := s.Done(entries(t, s)...); err != nil {
				t.Fatal(err)
			}
			if st := s.Stats(); st.Files != 0 || st.Failed != 1 {
				t.Fatalf("byte %d, drained: %+v", off, st)
			}
			s.Close()
		}
	}
}

// TestFlipWhileOpen damages every byte under an open spool, which notices when it reads.
func TestFlipWhileOpen(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	dir := t.TempDir()
	for off := range sm.bytes {
		hit := 0
		for sm.ends[hit] <= off {
			hit++
		}
		s := sm.open(t, filepath.Join(dir, fmt.Sprint(off)), sm.bytes)
		flip(t, filepath.Join(s.cfg.Dir, sm.name), int64(off), 0x10)
		want := sm.data(func(i int) bool { return i != hit })
		for range 2 {
			wantData(t, s, want...)
			wantConsistent(t, s)
			if st := s.Stats(); st.Failed != 1 {
				t.Fatalf("byte %d: %+v", off, st)
			}
			s = reopen(t, s)
		}
		s.Close()
	}
}

// TestShrunkWhileOpen takes the end of the file, or all of it, away from under an open spool.
func TestShrunkWhileOpen(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	dir := t.TempDir()
	for cut := range len(sm.bytes) {
		s := sm.open(t, filepath.Join(dir, fmt.Sprint(cut)), sm.bytes)
		if err := os.Truncate(filepath.Join(s.cfg.Dir, sm.name), int64(cut)); err != nil {
			t.Fatal(err)
		}
		wantData(t, s, sm.data(func(i int) bool { return sm.ends[i] <= cut })...)
		wantConsistent(t, s)
		s.Close()
	}
	s := sm.open(t, filepath.Join(dir, "gone"), sm.bytes)
	if err := os.Remove(filepath.Join(s.cfg.Dir, sm.name)); err != nil {
		t.Fatal(err)
	}
	wantData(t, s)
	wantConsistent(t, s)
	put(t, s, Record{Data: []byte("new")})
	wantData(t, s, "new")
}

// TestDamageUnderTheActiveFile damages the file that is being written to.
func TestDamageUnderTheActiveFile(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, records(200)...)
	path := segmentFiles(t, s.cfg.Dir)[0]
	if err := s.Done(entries(t, s)[:10]...); err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, func(b []byte) []byte { clear(b[3000:5000]); return b })
	var log bytes.Buffer
	s.log = slog.New(slog.NewTextHandler(&log, nil))
	want := map[string]bool{}
	for _, d := range contentsOf(entries(t, s)) {
		want[d] = true
	}
	if len(want) < 145 || len(want) > 155 || s.Stats().Failed == 0 {
		t.Fatalf("%d records left, %+v", len(want), s.Stats())
	}
	if lost := fmt.Sprintf("at_least=%d\n", 190-len(want)); !strings.Contains(log.String(), lost) {
		t.Errorf("%s is not in the log:\n%s", lost, log.String())
	}
	put(t, s, Record{Data: []byte("new")})
	want["new"] = true
	for range 2 {
		for _, d := range contentsOf(entries(t, s)) {
			if !want[d] {
				t.Errorf("%q", d)
			}
		}
		if s.Stats().Pending != len(want) {
			t.Errorf("%d pending, want %d", s.Stats().Pending, len(want))
		}
		wantConsistent(t, s)
		s = reopen(t, s)
	}
}

// TestZeroTail appends zeros, as a crash leaves them when the size of a file is on disk before its data.
func TestZeroTail(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	dir := t.TempDir()
	for _, zeros := range []int{1, headerSize - 1, headerSize, headerSize + 1, 4096, windowBytes, 2*windowBytes + 1} {
		for _, keep := range []int{0, 1, len(sm.ends)} {
			b := slices.Clone(sm.bytes[:append([]int{0}, sm.ends...)[keep]])
			s := sm.open(t, filepath.Join(dir, fmt.Sprint(zeros, keep)), append(b, make([]byte, zeros)...))
			wantData(t, s, sm.data(func(i int) bool { return i < keep })...)
			if st := s.Stats(); st.Failed != 0 || st.Bytes != int64(len(b)) {
				t.Errorf("%d zeros: %+v", zeros, st)
			}
		}
	}
}

// TestFramesInsidePayloads stores a payload that is itself a spool file, and one that is the file that
// it is stored in, and damages what is around it: the inner frames must not come out.
func TestFramesInsidePayloads(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	s := open(t, Config{})
	put(t, s, Record{Lane: "outer", Data: []byte("before")})
	own, err := os.ReadFile(segmentFiles(t, s.cfg.Dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, Record{Lane: "outer", Data: slices.Concat(own, sm.bytes, own)}, Record{Data: []byte("after")})
	path := segmentFiles(t, s.cfg.Dir)[0]
	s.Close()
	flip(t, path, int64(len(own))+3, 1)
	wantData(t, open(t, s.cfg), "before", "after")
}

// TestTheNextFrameIsFoundAcrossWindows damages the start of a file whose second frame begins near the end
// of the window that is searched.
func TestTheNextFrameIsFoundAcrossWindows(t *testing.T) {
	t.Parallel()
	for second := windowBytes - 2*headerSize; second < windowBytes+headerSize; second++ {
		file := appendFrame(nil, kindRecord, Record{Data: make([]byte, second-headerSize)})
		file = appendFrame(file, kindRecord, Record{Data: []byte("here")})
		place(file[second:], 9+uint64(second), 1)
		scan := scanner{file: bytes.NewReader(file), size: int64(len(file)), salt: 9}
		found, _, _, end, err := scan.next(0) // the first frame has no place: its header is invalid
		if found != foundDamage || end != int64(second) || err != nil {
			t.Fatalf("a frame at %d: %v, %d, %v", second, found, end, err)
		}
		if found, _, body, _, err := scan.next(end); found != foundFrame || string(body) != "here" || err != nil {
			t.Fatalf("a frame at %d: %v, %q, %v", second, found, body, err)
		}
	}
}

// TestAFrameOfAnotherKindIsDamage puts marks, which are bound to the same salt, in the place of records.
func TestAFrameOfAnotherKindIsDamage(t *testing.T) {
	t.Parallel()
	sm := newSample(t)
	_, salt, _ := parseName(strings.TrimSuffix(sm.name, segmentSuffix))
	marks := appendFrame(nil, kindMarks, Record{Data: []byte{0, 1}})
	place(marks, salt, 0)
	s := sm.open(t, t.TempDir(), marks)
	wantData(t, s)
	if st := s.Stats(); st.Failed != 1 {
		t.Errorf("%+v", st)
	}
}

// TestRandomDamage overwrites random ranges of a larger file and checks that exactly the records that
// were not touched are there.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s := open(t, Config{MaxSegmentBytes: 1 << 30})
	var all []Record
	for i := range 400 {
		rec := record(i)
		rec.Data = append(fmt.Appendf(nil, "%d:", i), bytes.Repeat([]byte("PHS1"), r.IntN(500))...)
		if i%100 == 50 {
			rec.Data = append(rec.Data, make([]byte, windowBytes)...)
		}
		all = append(all, rec)
	}
	put(t, s, all...)
	path := segmentFiles(t, s.cfg.Dir)[0]
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	for round := range 20 {
		b := slices.Clone(intact)
		touched := map[int]bool{}
		for range 1 + r.IntN(5) {
			from := r.IntN(len(b))
			to := min(len(b), from+1+r.IntN(1<<r.IntN(17)))
			kind := r.IntN(3)
			for i := from; i < to; i++ {
				switch kind {
				case 0:
					b[i] = 0
				case 1:
					b[i] = byte(r.Uint32())
				case 2:
					b[i] = "PHS1"[i%4]
				}
			}
		}
		off := 0
		var want []string
		for i, rec := range all {
			end := off + headerSize + len(rec.Lane) + len(rec.Data)
			if !bytes.Equal(b[off:end], intact[off:end]) {
				touched[i] = true
			} else {
				want = append(want, string(rec.Data))
			}
			off = end
		}
		dir := filepath.Join(t.TempDir(), fmt.Sprint(round))
		damaged := sample{name: filepath.Base(path)}.open(t, dir, b)
		if got := contentsOf(entries(t, damaged)); !slices.Equal(got, want) {
			t.Fatalf("round %d: %d records, want %d", round, len(got), len(want))
		}
		wantConsistent(t, damaged)
		damaged.Close()
	}
}

// TestDamagedMarksDrainAgain damages every byte of the marks: the records come back, none is lost.
func TestDamagedMarksDrainAgain(t *testing.T) {
	t.Parallel()
	s := open(t, Config{hook: quick})
	put(t, s, records(5)...)
	if err := s.Done(entries(t, s)[1:3]...); err != nil {
		t.Fatal(err)
	}
	s.Close()
	path := strings.TrimSuffix(segmentFiles(t, s.cfg.Dir)[0], segmentSuffix) + marksSuffix
	intact, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for off := range intact {
		flip(t, path, int64(off), 1)
		s := open(t, s.cfg)
		wantData(t, s, "record 0", "record 1", "record 2", "record 3", "record 4")
		s.Close()
		if err := os.WriteFile(path, intact, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	wantData(t, open(t, s.cfg), "record 0", "record 3", "record 4")
}

// TestAPayloadOfMagicIsSearchedInLinearTime damages the header of a large record that is all magic.
func TestAPayloadOfMagicIsSearchedInLinearTime(t *testing.T) {
	t.Parallel()
	file := bytes.Repeat([]byte("PHS1"), 2<<20)
	reads := counter{bytes.NewReader(file), 0}
	scan := scanner{file: &reads, size: int64(len(file)), salt: 1}
	found, _, _, end, err := scan.next(0)
	if found != foundDamage || end != int64(len(file)) || err != nil {
		t.Fatal(found, end, err)
	}
	if reads.bytes > 2*len(file) {
		t.Errorf("%d bytes were read of a file of %d", reads.bytes, len(file))
	}
}

type counter struct {
	file  *bytes.Reader
	bytes int
}

func (c *counter) ReadAt(b []byte, off int64) (int, error) {
	n, err := c.file.ReadAt(b, off)
	c.bytes += n
	return n, err
}

func FuzzScanner(f *testing.F) {
	sm := newSample(f)
	_, salt, _ := parseName(strings.TrimSuffix(sm.name, segmentSuffix))
	f.Add(sm.bytes, salt)
	f.Add(sm.bytes[:len(sm.bytes)-3], salt)
	f.Add(append(slices.Clone(sm.bytes[:100]), make([]byte, 100)...), salt)
	f.Fuzz(func(t *testing.T, b []byte, salt uint64) {
		scan := scanner{file: bytes.NewReader(b), size: int64(len(b)), salt: salt}
		for off := int64(0); ; {
			found, h, body, end, err := scan.next(off)
			if err != nil {
				t.Fatal(err)
			}
			if found == foundEnd {
				if off != int64(len(b)) {
					t.Fatalf("ends at %d of %d", off, len(b))
				}
				return
			}
			if end <= off || end > int64(len(b)) {
				t.Fatalf("%d to %d of %d", off, end, len(b))
			}
			if found == foundFrame {
				frame := appendFrame(nil, kindRecord, h.record(body))
				place(frame, salt+uint64(off), h.number)
				if !bytes.Equal(frame, b[off:end]) {
					t.Fatalf("a frame at %d that was not written like this", off)
				}
			}
			off = end
		}
	})
}

// FuzzDamage overwrites a part of a good file: what comes out was put in.
func FuzzDamage(f *testing.F) {
	sm := newSample(f)
	_, salt, _ := parseName(strings.TrimSuffix(sm.name, segmentSuffix))
	f.Add(10, []byte("xyz"))
	f.Add(0, sm.bytes[40:120])
	f.Fuzz(func(t *testing.T, at int, with []byte) {
		b := slices.Clone(sm.bytes)
		if at < 0 || at > len(b) {
			return
		}
		copy(b[at:], with)
		scan := scanner{file: bytes.NewReader(b), size: int64(len(b)), salt: salt}
		seen := 0
		for off := int64(0); off < scan.size; {
			found, h, body, end, err := scan.next(off)
			if err != nil {
				t.Fatal(err)
			}
			if found == foundFrame {
				want := sm.records[h.number]
				if int(end) != sm.ends[h.number] || string(body) != want.Lane+string(want.Data) {
					t.Fatalf("record %d changed", h.number)
				}
				seen++
			}
			off = end
		}
		for i, end := range sm.ends {
			start := end - headerSize - len(sm.records[i].Lane) - len(sm.records[i].Data)
			if bytes.Equal(b[start:end], sm.bytes[start:end]) {
				seen--
			}
		}
		if seen != 0 {
			t.Fatalf("%d records too many or too few", seen)
		}
	})
}

func FuzzRuns(f *testing.F) {
	f.Add([]byte{0, 5, 2, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		runs, err := parseRuns(b)
		if err != nil || len(runs) == 0 || runs[len(runs)-1].end > 1<<16 {
			return
		}
		n := runs[len(runs)-1].end
		keep := unmarked(runs)
		blocks := make([]block, n/64+1)
		for i := range n {
			if keep(i) {
				blocks[i/64].pending |= 1 << (i % 64)
			}
		}
		again, err := parseRuns(appendRuns(nil, blocks, n))
		if err != nil || !slices.Equal(again, runs) {
			t.Fatalf("%v became %v, %v", runs, again, err)
		}
	})
}

func FuzzFiles(f *testing.F) {
	frame := appendFrame(nil, kindFailed, Record{Lane: "l", At: noon, Data: appendFailed(nil, "reason", []byte("data"))})
	place(frame, 7, 0)
	f.Add(frame, uint64(7))
	f.Fuzz(func(t *testing.T, b []byte, salt uint64) {
		r, err := decodeFile(b, kindFailed, salt)
		if err != nil {
			return
		}
		reason, data, err := splitFailed(r.Data)
		if err == nil && len(appendFailed(nil, reason, data)) > len(r.Data) {
			t.Fatal("longer than it was")
		}
	})
}
