package spool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// gate holds the operations of one name up: each reports at entered and waits at leave.
type gate struct {
	operation      string
	entered, leave chan struct{}
	count          atomic.Int64
}

func newGate(operation string) *gate {
	return &gate{operation: operation, entered: make(chan struct{}, 1000), leave: make(chan struct{})}
}

func (g *gate) hook(operation, _ string, do func() error) error {
	if operation == g.operation {
		g.count.Add(1)
		g.entered <- struct{}{}
		<-g.leave
	}
	return do()
}

// until waits for a condition, 10 seconds at most.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *Spool) queuedCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queue)
}

// TestConcurrentAppendsShareTheFsync holds the first fsync up until 50 more calls wait: one more
// fsync serves them all. None of them returns before it, and none can be read.
func TestConcurrentAppendsShareTheFsync(t *testing.T) {
	t.Parallel()
	g := newGate("sync")
	s := open(t, Config{hook: g.hook})
	var calls sync.WaitGroup
	var returned atomic.Int64
	start := func(i int) {
		calls.Go(func() {
			if err := s.Append(t.Context(), record(i)); err != nil {
				t.Error(err)
			}
			returned.Add(1)
		})
	}
	start(0)
	<-g.entered
	for i := range 50 {
		start(1 + i)
	}
	until(t, "the calls", func() bool { return s.queuedCalls() == 50 })
	wantData(t, s)
	if got := s.Pending("lane0") + s.Pending("lane1") + s.Pending("lane2"); got != 51 {
		t.Errorf("%d records are pending while 51 are being appended", got)
	}
	g.leave <- struct{}{}
	<-g.entered
	if returned.Load() > 1 || len(entries(t, s)) != 1 {
		t.Error("a call was served before its fsync")
	}
	g.leave <- struct{}{}
	calls.Wait()
	if got := g.count.Load(); got != 2 {
		t.Errorf("%d fsyncs, want 2", got)
	}
	if got := entries(t, s); len(got) != 51 {
		t.Errorf("%d records", len(got))
	}
	close(g.leave)
}

func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	g := newGate("write")
	s := open(t, Config{hook: g.hook})
	var calls sync.WaitGroup
	for i := range 5 {
		calls.Go(func() {
			if err := s.Append(t.Context(), Record{Data: make([]byte, maxGroupBytes/2)}); err != nil {
				t.Error(err)
			}
		})
		if i == 0 {
			<-g.entered
		}
	}
	until(t, "the calls", func() bool { return s.queuedCalls() == 4 })
	close(g.leave)
	calls.Wait()
	if got := g.count.Load(); got != 5 {
		t.Errorf("%d writes, want 5: two calls are larger than a group", got)
	}
}

func TestAQueuedCallIsTakenBackWithItsContext(t *testing.T) {
	t.Parallel()
	g := newGate("write")
	s := open(t, Config{hook: g.hook})
	var calls sync.WaitGroup
	writing, cancelWriting := context.WithCancel(t.Context())
	queued, cancelQueued := context.WithCancel(t.Context())
	calls.Go(func() {
		if err := s.Append(writing, record(0)); !errors.Is(err, ErrUncertain) || !errors.Is(err, context.Canceled) {
			t.Errorf("a call that was being written: %v", err)
		}
	})
	<-g.entered
	calls.Go(func() {
		if err := s.Append(queued, record(1)); errors.Is(err, ErrUncertain) || !errors.Is(err, context.Canceled) {
			t.Errorf("a queued call: %v", err)
		}
	})
	until(t, "the call", func() bool { return s.queuedCalls() == 1 })
	cancelQueued()
	cancelWriting()
	calls.Wait()
	if s.Pending("lane0") != 1 || s.Pending("lane1") != 0 {
		t.Errorf("pending %d and %d", s.Pending("lane0"), s.Pending("lane1"))
	}
	close(g.leave)
	put(t, s, record(2))
	wantData(t, s, "record 0", "record 2")
	wantConsistent(t, s)
}

func TestCloseWritesWhatIsQueued(t *testing.T) {
	t.Parallel()
	g := newGate("write")
	s := open(t, Config{hook: g.hook})
	var calls sync.WaitGroup
	for i := range 10 {
		calls.Go(func() {
			if err := s.Append(t.Context(), record(i)); err != nil {
				t.Error(err)
			}
		})
	}
	<-g.entered
	until(t, "the calls", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.lanes) == 3 && s.queued == 10*(headerSize+5+8)
	})
	calls.Go(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	until(t, "the end", s.isClosed)
	close(g.leave)
	calls.Wait()
	if got := len(entries(t, open(t, Config{Dir: s.cfg.Dir}))); got != 10 {
		t.Errorf("%d records", got)
	}
}

func TestMaxBytes(t *testing.T) {
	t.Parallel()
	s := open(t, Config{MaxBytes: 300, MaxSegmentBytes: 100})
	stored := 0
	for {
		err := s.Append(t.Context(), record(stored))
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil || stored > 10 {
			t.Fatal(stored, err)
		}
		stored++
	}
	if stored != 5 { // of 53 bytes each
		t.Errorf("%d records were stored", stored)
	}
	wantConsistent(t, s)
	if err := s.Append(t.Context(), Record{Data: make([]byte, 10_000)}); !errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
	if err := s.Done(entries(t, s)...); err != nil {
		t.Fatal(err)
	}
	put(t, s, record(0))
	wantData(t, s, "record 0")
	// The failed area counts too.
	if err := s.Quarantine(entries(t, s)[0], string(make([]byte, 200))); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), record(0)); !errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
}

// TestAFileThatFillsUpBehindADrainStays appends to a file that a drain has just seen drained, until the next
// file is begun: the drain must not delete it now.
func TestAFileThatFillsUpBehindADrainStays(t *testing.T) {
	t.Parallel()
	s := open(t, Config{MaxSegmentBytes: 130})
	put(t, s, record(0))
	seg := s.segments[0]
	if err := s.clear(entries(t, s)); err != nil {
		t.Fatal(err)
	}
	put(t, s, record(1))
	put(t, s, record(2))
	if s.active == seg {
		t.Fatal("the file is not full yet")
	}
	if s.sealDrained(seg) {
		t.Error("a file with an undrained record counts as drained")
	}
	wantData(t, s, "record 1", "record 2")
}

// TestManyCallersAndADrain appends from many goroutines, each with a lane of its own, and drains all the
// while, with records that are put off and records that are quarantined.
func TestManyCallersAndADrain(t *testing.T) {
	t.Parallel()
	const callers, each = 16, 150
	s := open(t, Config{MaxSegmentBytes: 2000, hook: quick})
	var appends sync.WaitGroup
	for c := range callers {
		appends.Go(func() {
			for i := 0; i < each; {
				var batch []Record
				for range 1 + i%3 {
					batch = append(batch, Record{Lane: fmt.Sprint(c), Data: fmt.Append(nil, i)})
					i++
				}
				if err := s.Append(t.Context(), batch...); err != nil {
					t.Error(err)
					return
				}
				s.Stats()
			}
		})
	}
	appended := make(chan struct{})
	go func() { appends.Wait(); close(appended) }()

	got := map[string][]string{}
	failed := 0
	var after Position
	for last := false; ; {
		batch, err := s.Read(t.Context(), after, 20, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) == 0 {
			if last && s.Stats().Pending == 0 {
				break
			}
			select {
			case <-appended:
				last = true
			default:
			}
			after = Position{}
			continue
		}
		after = batch[len(batch)-1].Position()
		var done []Entry
		stuck := map[string]bool{}
		for i, e := range batch {
			if stuck[e.Lane] = stuck[e.Lane] || i%7 == 6; stuck[e.Lane] {
				after = Position{} // what comes behind in this lane must wait: start again
				continue
			}
			got[e.Lane] = append(got[e.Lane], string(e.Data))
			if i == 3 {
				failed++
				err = s.Quarantine(e, "no")
			} else {
				done = append(done, e)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Done(done...); err != nil {
			t.Fatal(err)
		}
	}
	for c := range callers {
		var want []string
		for i := range len(got[fmt.Sprint(c)]) {
			want = append(want, fmt.Sprint(i))
		}
		if lane := got[fmt.Sprint(c)]; len(lane) < each || !slices.Equal(lane, want) {
			t.Errorf("lane %d: %v", c, lane)
		}
	}
	wantConsistent(t, s)
	if st := s.Stats(); st.Failed != failed || st.Files != 0 || st.Bytes != 0 {
		t.Errorf("%d were quarantined: %+v", failed, st)
	}
}

// BenchmarkAppend measures records per second of callers that each append one record of 200 bytes and
// wait. With one caller each record has an fsync of its own.
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 8, 64, 512} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			var syncs atomic.Int64
			s := open(b, Config{hook: func(operation, _ string, do func() error) error {
				if operation == "sync" {
					syncs.Add(1)
				}
				return do()
			}})
			var left atomic.Int64
			left.Store(int64(b.N))
			r := Record{Lane: "queue/partition", At: noon, Data: make([]byte, 200)}
			b.SetBytes(200)
			b.ReportAllocs()
			b.ResetTimer()
			var wait sync.WaitGroup
			for range callers {
				wait.Go(func() {
					for left.Add(-1) >= 0 {
						if err := s.Append(b.Context(), r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wait.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(b.N)/float64(syncs.Load()), "records/fsync")
		})
	}
}

// BenchmarkDrain measures reading and marking of 200-byte records in batches of 500.
func BenchmarkDrain(b *testing.B) {
	s := open(b, Config{})
	fill(b, s, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for {
		batch, err := s.Read(b.Context(), Position{}, 500, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		if len(batch) == 0 {
			break
		}
		if err := s.Done(batch...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkOpen measures the recovery of 200-byte records of 1 000 lanes.
func BenchmarkOpen(b *testing.B) {
	s := open(b, Config{})
	fill(b, s, 500_000)
	size := s.Stats().Bytes
	s.Close()
	b.SetBytes(size)
	for b.Loop() {
		s, err := Open(s.cfg)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		s.Close()
		b.StartTimer()
	}
}

func fill(b *testing.B, s *Spool, n int) {
	b.Helper()
	for i := 0; i < n; {
		var batch []Record
		for ; len(batch) < 10_000 && i < n; i++ {
			batch = append(batch, Record{Lane: fmt.Sprint("queue/", i%1000), At: noon, Data: make([]byte, 200)})
		}
		if err := s.Append(b.Context(), batch...); err != nil {
			b.Fatal(err)
		}
	}
}
