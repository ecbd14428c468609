package queue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/embedpg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// outageKinds take a server away and give it back.
var outageKinds = map[string]struct {
	begin, end func(context.Context, *embedpg.Server) error
}{
	"stopped": {
		func(ctx context.Context, s *embedpg.Server) error { return s.Shutdown(ctx) },
		func(ctx context.Context, s *embedpg.Server) error { return s.Restart(ctx) },
	},
	"frozen": {
		func(_ context.Context, s *embedpg.Server) error { return s.Pause() },
		func(_ context.Context, s *embedpg.Server) error { return s.Resume() },
	},
}

// outageRun is what writers saw of an outage.
type outageRun struct {
	answered [][]string      // message ids by writer, in order
	known    []time.Duration // of pushes that began when the outage was known, sorted
	first    []time.Duration // of those that met it, sorted
	buffered int64
}

// runOutage lets writers push one message after the other, each to a partition of its own, while
// PostgreSQL is away for so long, and a while before and after. Every push must be queued or buffered.
func runOutage(t testing.TB, kind string, writers int, statement, away time.Duration) outageRun {
	t.Helper()
	outage := outageKinds[kind]
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	e := broker(t, server.URL(), queue.Config{StatementTimeout: statement, Spool: openSpool(t, t.TempDir())})
	run := outageRun{answered: make([][]string, writers)}
	var mu sync.Mutex
	var phase atomic.Int32 // 0 before, 1 met, 2 known, 3 over
	var buffered, pushes atomic.Int64
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for w := range writers {
		wait.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				began, started := phase.Load(), time.Now()
				r, err := e.Push(context.WithoutCancel(t.Context()), []queue.PushItem{item("q", fmt.Sprint(w), fmt.Sprint(n))})
				took := time.Since(started)
				if err != nil || r[0].Status != queue.Queued && r[0].Status != queue.Buffered {
					t.Errorf("writer %d: %v, %v", w, r, err)
					return
				}
				pushes.Add(1)
				run.answered[w] = append(run.answered[w], r[0].MessageID.String())
				if r[0].Status != queue.Buffered {
					continue
				}
				buffered.Add(1)
				mu.Lock()
				if began == 2 && phase.Load() == 2 {
					run.known = append(run.known, took)
				} else {
					run.first = append(run.first, took)
				}
				mu.Unlock()
			}
		})
	}
	grow := func(what string, by int64) {
		t.Helper()
		before := pushes.Load()
		waitFor(t, what, func() bool { return pushes.Load() >= before+by })
	}
	grow("pushes before the outage", int64(5*writers))
	phase.Store(1)
	if err := outage.begin(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	over := time.After(away)
	waitFor(t, "the outage to be known", func() bool { return !e.Buffer().DatabaseUp })
	grow("pushes in the outage", int64(2*writers)) // those that had begun before it was known
	phase.Store(2)
	<-over
	grow("pushes in the known outage", int64(2*writers))
	phase.Store(3)
	if err := outage.end(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	grow("pushes after the outage", int64(5*writers))
	close(stop)
	wait.Wait()
	waitFor(t, "the spool to be drained", func() bool { return e.Buffer().Pending == 0 })
	got := map[string][]string{}
	for {
		popped := pop(t, e, queue.PopRequest{Queue: "q", Batch: 10_000, Partitions: -1, AutoAck: true})
		if len(popped.Partitions) == 0 {
			break
		}
		for _, p := range popped.Partitions {
			for _, m := range p.Messages {
				got[p.Name] = append(got[p.Name], m.ID.String())
			}
		}
	}
	for w := range writers {
		if !slices.Equal(got[fmt.Sprint(w)], run.answered[w]) {
			t.Errorf("partition %d holds %d messages, %d were answered, or in another order", w, len(got[fmt.Sprint(w)]), len(run.answered[w]))
		}
	}
	slices.Sort(run.known)
	slices.Sort(run.first)
	run.buffered = buffered.Load()
	return run
}

// percentile of sorted durations; zero without any.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[(len(sorted)-1)*p/100]
}

// TestOutageUnderLoad stops and freezes PostgreSQL under fifty writers. Each of their messages is popped
// exactly once afterwards, in the order of its writer and under the id that was answered.
func TestOutageUnderLoad(t *testing.T) {
	t.Parallel()
	for kind := range outageKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			run := runOutage(t, kind, 50, time.Second, time.Second)
			if run.buffered == 0 || len(run.known) == 0 {
				t.Errorf("%d messages were buffered, %d in the known outage", run.buffered, len(run.known))
			}
		})
	}
}

// BenchmarkOutage measures how long fifty writers wait for "buffered" while PostgreSQL is away for 10
// seconds: those that meet the outage, and those that push when it is known.
func BenchmarkOutage(b *testing.B) {
	for kind := range outageKinds {
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				run := runOutage(b, kind, 50, 10*time.Second, 10*time.Second)
				b.ReportMetric(float64(percentile(run.known, 50).Microseconds())/1000, "known-p50-ms")
				b.ReportMetric(float64(percentile(run.known, 99).Microseconds())/1000, "known-p99-ms")
				b.ReportMetric(float64(percentile(run.first, 99).Microseconds())/1000, "met-p99-ms")
				b.ReportMetric(float64(len(run.known)), "known-pushes")
			}
		})
	}
}
