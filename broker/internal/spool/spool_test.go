package spool

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

// quick keeps the many openings of one test from waiting for the disk. What is tested there is what the
// files hold, not when they hold it.
func quick(operation, _ string, do func() error) error {
	if operation == "sync" || operation == "syncdir" {
		return nil
	}
	return do()
}

// open opens a spool and closes it with the test. Without a directory it gets one of its own.
func open(t testing.TB, cfg Config) *Spool {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "spool")
	}
	if cfg.Logger == nil {
		cfg.Logger = discard
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopen(t testing.TB, s *Spool) *Spool {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, s.cfg)
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// record returns the i-th record of a test: of one of three lanes, a second after the one before.
func record(i int) Record {
	return Record{Lane: fmt.Sprint("lane", i%3), At: noon.Add(time.Duration(i) * time.Second), Data: fmt.Appendf(nil, "record %d", i)}
}

func records(n int) []Record {
	var all []Record
	for i := range n {
		all = append(all, record(i))
	}
	return all
}

func put(t testing.TB, s *Spool, records ...Record) {
	t.Helper()
	if err := s.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
}

// entries reads everything that is undrained, a few at a time.
func entries(t testing.TB, s *Spool) []Entry {
	t.Helper()
	var all []Entry
	var after Position
	for {
		batch, err := s.Read(t.Context(), after, 7, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 {
			return all
		}
		all = append(all, batch...)
		after = batch[len(batch)-1].Position()
	}
}

func contentsOf(entries []Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, string(e.Data))
	}
	return all
}

func wantData(t testing.TB, s *Spool, want ...string) {
	t.Helper()
	if got := contentsOf(entries(t, s)); !slices.Equal(got, want) {
		t.Fatalf("the spool holds %q, want %q", got, want)
	}
}

// wantConsistent checks the counts against what can be read.
func wantConsistent(t testing.TB, s *Spool) {
	t.Helper()
	all := entries(t, s)
	lanes := map[string]int{}
	for _, e := range all {
		lanes[e.Lane]++
	}
	if st := s.Stats(); st.Pending != len(all) {
		t.Errorf("Stats.Pending is %d with %d records", st.Pending, len(all))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !maps.Equal(s.lanes, lanes) {
		t.Errorf("the lanes are %v, want %v", s.lanes, lanes)
	}
}

func segmentFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	want := []Record{
		{Lane: "a", At: noon, Data: []byte("one")},
		{Lane: "", At: time.Time{}, Data: nil},
		{Lane: strings.Repeat("l", MaxLaneBytes), At: noon.Add(-100 * 365 * 24 * time.Hour), Data: bytes.Repeat([]byte{0}, 3*windowBytes)},
		{Lane: "a", At: noon.In(time.FixedZone("", 3600)), Data: []byte("\x00\xff")},
	}
	put(t, s, want[:2]...)
	put(t, s)
	put(t, s, want[2:]...)
	for range 2 {
		got := entries(t, s)
		if len(got) != len(want) {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i, e := range got {
			if e.Lane != want[i].Lane || !e.At.Equal(want[i].At) || e.At.Location() != time.UTC || !bytes.Equal(e.Data, want[i].Data) {
				t.Errorf("record %d is not what it was: lane of %d bytes, %v, %d bytes", i, len(e.Lane), e.At, len(e.Data))
			}
		}
		if s.Pending("a") != 2 || s.Pending("") != 1 || s.Pending("b") != 0 {
			t.Errorf("pending: %d, %d, %d", s.Pending("a"), s.Pending(""), s.Pending("b"))
		}
		wantConsistent(t, s)
		s = reopen(t, s)
	}
}

func TestTheCallersMemoryIsFreeAfterAppend(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	data := []byte("mine")
	put(t, s, Record{Data: data})
	copy(data, "gone")
	wantData(t, s, "mine")
	got := entries(t, s)
	copy(got[0].Data, "gone")
	wantData(t, s, "mine")
}

func TestLimitsOfRecords(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	for _, r := range []Record{{Lane: strings.Repeat("l", MaxLaneBytes+1)}, {Data: make([]byte, MaxRecordBytes+1)}} {
		if err := s.Append(t.Context(), record(0), r); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%v", err)
		}
	}
	wantData(t, s)
}

func TestReadHonoursItsLimits(t *testing.T) {
	t.Parallel()
	s := open(t, Config{MaxSegmentBytes: 200})
	for i := range 20 {
		put(t, s, Record{Data: bytes.Repeat([]byte{byte('a' + i)}, 10)})
	}
	for _, tc := range []struct{ records, bytes, want int }{
		{5, 1000, 5}, {100, 1000, 20}, {100, 35, 3}, {100, 30, 3}, {100, 1, 1}, {0, 1000, 0},
	} {
		got, err := s.Read(t.Context(), Position{}, tc.records, tc.bytes)
		if err != nil || len(got) != tc.want {
			t.Errorf("%d records of %d bytes: got %d, %v", tc.records, tc.bytes, len(got), err)
		}
	}
}

func TestDrainedRecordsStayDrained(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, records(200)...)
	all := entries(t, s)
	var left []string
	var done []Entry
	for i, e := range all {
		if i < 70 || i%3 == 0 {
			done = append(done, e)
		} else {
			left = append(left, string(e.Data))
		}
	}
	for range 2 { // the second time changes nothing
		if err := s.Done(done...); err != nil {
			t.Fatal(err)
		}
		wantData(t, s, left...)
		wantConsistent(t, s)
	}
	s = reopen(t, s)
	wantData(t, s, left...)
	wantConsistent(t, s)
	if got := s.Pending("lane0"); got != 0 {
		t.Errorf("%d records of a drained lane are pending", got)
	}
	// Entries of the spool before are of no use, but do no harm either.
	if err := s.Done(entries(t, s)...); err != nil {
		t.Fatal(err)
	}
	if err := s.Done(all...); err != nil {
		t.Fatal(err)
	}
	wantData(t, s)
	wantConsistent(t, s)
}

func TestDrainedFilesAreDeleted(t *testing.T) {
	t.Parallel()
	s := open(t, Config{MaxSegmentBytes: 200})
	for i := range 30 {
		put(t, s, record(i))
	}
	files := len(segmentFiles(t, s.cfg.Dir))
	if st := s.Stats(); st.Files != files || files < 5 {
		t.Fatalf("%d files, the statistics say %d", files, st.Files)
	}
	all := entries(t, s)
	// From the back, so that no file is the oldest when it goes.
	for len(all) > 0 {
		n := min(4, len(all))
		if err := s.Done(all[len(all)-n:]...); err != nil {
			t.Fatal(err)
		}
		all = all[:len(all)-n]
		wantData(t, s, contentsOf(all)...)
		if got := len(segmentFiles(t, s.cfg.Dir)); got != s.Stats().Files {
			t.Fatalf("%d files, the statistics say %d", got, s.Stats().Files)
		}
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Dir, "*-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if st := s.Stats(); st != (Stats{}) {
		t.Errorf("an empty spool says %+v", st)
	}
	put(t, s, record(1))
	s = reopen(t, s)
	wantData(t, s, "record 1")
}

func TestReadGoesOnBehindRecordsThatStay(t *testing.T) {
	t.Parallel()
	s := open(t, Config{MaxSegmentBytes: 500})
	for i := range 300 {
		put(t, s, record(i))
	}
	var after Position
	var drained, stuck int
	for {
		batch, err := s.Read(t.Context(), after, 9, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 {
			break
		}
		after = batch[len(batch)-1].Position()
		batch = slices.DeleteFunc(batch, func(e Entry) bool { return e.Lane == "lane1" })
		if err := s.Done(batch...); err != nil {
			t.Fatal(err)
		}
		drained += len(batch)
	}
	for _, e := range entries(t, s) {
		if e.Lane != "lane1" {
			t.Errorf("%s was passed over", e.Data)
		}
		stuck++
	}
	if drained != 200 || stuck != 100 || s.Pending("lane1") != 100 || s.Pending("lane0") != 0 {
		t.Errorf("drained %d, stuck %d, pending %d and %d", drained, stuck, s.Pending("lane1"), s.Pending("lane0"))
	}
}

func TestStatistics(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, records(200)...)
	info, err := os.Stat(segmentFiles(t, s.cfg.Dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Pending != 200 || st.Bytes != info.Size() || !st.Oldest.Equal(noon) || st.Files != 1 || st.Err != nil {
		t.Errorf("%+v", st)
	}
	if err := s.Done(entries(t, s)[:130]...); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if st := s.Stats(); st.Pending != 70 || st.Oldest.After(record(130).At) || st.Oldest.Before(record(130-63).At) {
			t.Errorf("%+v", st)
		}
		s = reopen(t, s)
	}
}

func TestQuarantine(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, records(4)...)
	e := entries(t, s)[1]
	for range 2 { // the second time changes nothing
		if err := s.Quarantine(e, "the database said no"); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		wantData(t, s, "record 0", "record 2", "record 3")
		wantConsistent(t, s)
		var got []Failed
		for f, err := range s.Failed() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, f)
		}
		if len(got) != 1 || got[0].Reason != "the database said no" || got[0].Damaged ||
			got[0].Record.Lane != e.Lane || !got[0].Record.At.Equal(e.At) || string(got[0].Record.Data) != "record 1" {
			t.Fatalf("the failed area holds %+v", got)
		}
		info, err := os.Stat(filepath.Join(s.cfg.Dir, failedName, got[0].ID))
		if err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.Failed != 1 || st.FailedBytes != info.Size() {
			t.Errorf("%+v", st)
		}
		s = reopen(t, s)
	}
	for f, err := range s.Failed() {
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, f.Record)
		if err := s.RemoveFailed(f.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.RemoveFailed(f.ID); !errors.Is(err, ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
	}
	for _, id := range []string{"", "..", "../lock", "lock"} {
		if err := s.RemoveFailed(id); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
	wantData(t, s, "record 0", "record 2", "record 3", "record 1")
	if st := s.Stats(); st.Failed != 0 || st.FailedBytes != 0 {
		t.Errorf("%+v", st)
	}
}

func TestASpoiledFailedRecordIsReportedAndTheOthersListed(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, records(3)...)
	for _, e := range entries(t, s) {
		if err := s.Quarantine(e, "no"); err != nil {
			t.Fatal(err)
		}
	}
	files, _ := filepath.Glob(filepath.Join(s.cfg.Dir, failedName, "*"))
	flip(t, files[1], 50, 1)
	var good, bad int
	for f, err := range s.Failed() {
		if err == nil {
			good++
		} else if bad++; f.ID != filepath.Base(files[1]) {
			t.Errorf("the error is of %q", f.ID)
		}
	}
	if good != 2 || bad != 1 {
		t.Errorf("%d good, %d bad", good, bad)
	}
}

func TestAnotherBrokerIsKeptOut(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	_, err := Open(s.cfg)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), s.cfg.Dir) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("%v", err)
	}
	put(t, s, record(0))
	s = reopen(t, s)
	wantData(t, s, "record 0")
}

func TestFilesAreForThisUserAlone(t *testing.T) {
	t.Parallel()
	s := open(t, Config{Dir: filepath.Join(t.TempDir(), "a", "b"), MaxSegmentBytes: 1})
	put(t, s, record(0), record(1))
	put(t, s, record(2), record(3))
	all := entries(t, s)
	if err := errors.Join(s.Done(all[0]), s.Quarantine(all[2], "no")); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err := filepath.Walk(filepath.Dir(s.cfg.Dir), func(path string, info os.FileInfo, err error) error {
		want := os.FileMode(0o600)
		if info.IsDir() {
			want = 0o700
		}
		if seen++; info.Mode().Perm() != want {
			t.Errorf("%s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil || seen != 9 {
		t.Errorf("%d files and directories, %v", seen, err)
	}
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {Dir: t.TempDir(), MaxBytes: -1}, {Dir: t.TempDir(), MaxSegmentBytes: -1}} {
		if s, err := Open(cfg); err == nil {
			s.Close()
			t.Errorf("%+v was accepted", cfg)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(Config{Dir: file}); err == nil {
		s.Close()
		t.Error("a file was accepted as directory")
	}
}

func TestStrangeFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, record(0))
	var log bytes.Buffer
	s.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for _, name := range []string{"README", "1-2.spool", "000000000000000g-0000000000000000.spool", "failed/README"} {
		if err := os.WriteFile(filepath.Join(s.cfg.Dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		s = reopen(t, s)
		if b, err := os.ReadFile(filepath.Join(s.cfg.Dir, name)); err != nil || string(b) != "mine" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		if !strings.Contains(log.String(), filepath.Base(name)) {
			t.Errorf("%s is not mentioned", name)
		}
		wantData(t, s, "record 0")
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	put(t, s, records(2)...)
	e := entries(t, s)[0]
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	_, readErr := s.Read(t.Context(), Position{}, 1, 1)
	for _, err := range []error{s.Append(t.Context(), record(1)), readErr, s.Done(e), s.Quarantine(e, ""), s.RemoveFailed(segmentName(1, 1) + recordSuffix)} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	}
	wantData(t, open(t, s.cfg), "record 0", "record 1")
}
