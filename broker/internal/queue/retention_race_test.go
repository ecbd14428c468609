package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// journal is what writers and readers of a queue saw.
type journal struct {
	mu     sync.Mutex
	pushed map[string][]pushedOnce // by partition and transaction id
	popped map[uuid.UUID]int
	maybe  map[uuid.UUID]struct{}
}

type pushedOnce struct {
	id            uuid.UUID
	before, after time.Time // by the database's clock
}

func newJournal() *journal {
	return &journal{pushed: map[string][]pushedOnce{}, popped: map[uuid.UUID]int{}, maybe: map[uuid.UUID]struct{}{}}
}

func (j *journal) push(ctx context.Context, t *testing.T, brokers []*queue.Engine, e *queue.Engine, items ...queue.PushItem) {
	t.Helper()
	before := e.Now()
	results, err := e.Push(ctx, items)
	if err != nil {
		t.Error(err)
		return
	}
	after := brokers[0].Now() // one of them has not heard of the last advance, perhaps
	if other := brokers[1].Now(); other.After(after) {
		after = other
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, r := range results {
		if r.Status == queue.Queued {
			key := items[i].Partition + "/" + items[i].TransactionID
			j.pushed[key] = append(j.pushed[key], pushedOnce{r.MessageID, before, after})
		}
	}
}

// check holds the journal to what is promised: nothing is stored twice inside the window, nothing is delivered
// twice, and nothing is lost that was kept for long enough.
func (j *journal) check(t *testing.T, name string, window, kept time.Duration, end time.Time) (lost int) {
	t.Helper()
	for key, pushes := range j.pushed {
		for i, a := range pushes {
			for _, b := range pushes[i+1:] {
				if b.after.Sub(a.before) < window && a.after.Sub(b.before) < window {
					t.Errorf("%s: %s was queued twice inside the window: %v and %v", name, key, a, b)
				}
			}
			_, maybe := j.maybe[a.id]
			switch n := j.popped[a.id]; {
			case maybe:
			case n > 1:
				t.Errorf("%s: %s was delivered %d times", name, key, n)
			case n == 0 && (kept == 0 || end.Sub(a.before) < kept):
				t.Errorf("%s: %s was queued at %v and is lost at %v", name, key, a.after, end)
			case n == 0:
				lost++
			}
		}
	}
	return lost
}

// TestRetentionRacesEverything lets retention and cleanup run at both of two brokers while both push
// duplicates, pop and ack, the clock jumps and connections die.
func TestRetentionRacesEverything(t *testing.T) {
	t.Parallel()
	const (
		partitions = 40
		window     = 10 * time.Minute
		kept       = 30 * time.Minute
		leased     = 5 * time.Minute
	)
	url := pgtest.URL(t)
	cfg := queue.Config{RetentionInterval: 20 * time.Millisecond, RetentionBatch: 7, PartitionIdle: time.Minute}
	second := cfg
	second.Shards, second.DedupCacheBytes, second.SegmentCacheBytes = 2, 1, 1
	brokers := []*queue.Engine{broker(t, url, cfg), broker(t, url, second)}
	configured(t, brokers[0], "short", func(o *queue.Options) {
		o.RetentionEnabled, o.Retention, o.DedupWindow, o.LeaseTime = true, kept, window, time.Minute
	})
	configured(t, brokers[0], "long", func(o *queue.Options) {
		o.RetentionEnabled, o.CompletedRetention, o.DedupWindow = true, time.Minute, window
	})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	short, long := newJournal(), newJournal()
	ctx := t.Context()
	running := make(chan struct{})
	var wait, clock sync.WaitGroup
	background := func(n uint64, work func(r *rand.Rand)) {
		r := rand.New(rand.NewPCG(seed, n))
		wait.Go(func() {
			for {
				select {
				case <-running:
					return
				default:
					work(r)
				}
			}
		})
	}
	for w := range uint64(3) {
		background(w, func(r *rand.Rand) {
			e := brokers[r.IntN(2)]
			var a, b []queue.PushItem
			for range 1 + r.IntN(3) {
				n := r.IntN(200)
				id := fmt.Sprint(n, "-", e.Now().Unix()/300) // hardly ever comes back after its window, so that an ack is of one message
				a = append(a, item("short", fmt.Sprint("p", n%partitions), id))
				b = append(b, item("long", fmt.Sprint("p", n%partitions), id))
			}
			short.push(ctx, t, brokers, e, a...)
			long.push(ctx, t, brokers, e, b...)
			pause(ctx, time.Duration(r.IntN(10))*time.Millisecond)
		})
	}
	background(10, func(r *rand.Rand) { // consumers that leave no doubt about what was delivered
		for name, j := range map[string]*journal{"short": short, "long": long} {
			if popped, err := brokers[r.IntN(2)].Pop(ctx, queue.PopRequest{Queue: name, Batch: 1 + r.IntN(20), Partitions: 3, Group: "journal", Lease: leased}); err == nil {
				j.settle(ctx, brokers[r.IntN(2)], popped)
			}
		}
		pause(ctx, 5*time.Millisecond)
	})
	background(11, func(r *rand.Rand) { // and one that loses its leases
		if popped, err := brokers[r.IntN(2)].Pop(ctx, queue.PopRequest{Queue: "short", Batch: 1 + r.IntN(5), Partitions: 2, Group: "forgetful"}); err == nil && r.IntN(2) == 0 {
			for _, p := range popped.Partitions {
				_, _ = brokers[r.IntN(2)].Ack(ctx, "forgetful", []queue.AckItem{{TransactionID: p.Messages[0].TransactionID, PartitionID: p.ID, LeaseID: popped.LeaseID, Status: queue.AckStatus(r.IntN(4))}})
			}
		}
		pause(ctx, 5*time.Millisecond)
	})
	clock.Go(func() {
		r := rand.New(rand.NewPCG(seed, 12))
		for round := range 30 {
			jump := time.Duration(1+r.IntN(60)) * time.Second
			if round%3 == 0 && round < 25 {
				jump = 40 * time.Minute
			}
			if _, err := brokers[r.IntN(2)].AdvanceClock(ctx, jump); err != nil {
				t.Logf("advance: %v", err)
			}
			if round%5 == 4 {
				pgtest.KillBackends(t, url)
			}
			pause(ctx, 50*time.Millisecond)
		}
	})
	clock.Wait()
	close(running)
	wait.Wait()
	advance(t, brokers[0], leased+time.Minute) // over the leases of pops whose answers were lost
	for name, j := range map[string]*journal{"short": short, "long": long} {
		for i := 0; ; i++ {
			follow(t, brokers[0], brokers[1])
			popped, err := brokers[i%2].Pop(ctx, queue.PopRequest{Queue: name, Batch: 1000, Group: "journal"})
			if err != nil {
				t.Fatal(err)
			}
			if len(popped.Partitions) == 0 {
				break
			}
			j.settle(ctx, brokers[0], popped)
		}
	}
	end := brokers[0].Now()
	expired := short.check(t, "short", window, kept, end)
	long.check(t, "long", window, 0, end)
	t.Logf("%d and %d ids pushed, %d past their retention, %d partitions removed", len(short.pushed), len(long.pushed), expired,
		brokers[0].PartitionsRemoved()+brokers[1].PartitionsRemoved())

	db := pgtest.Admin(t, url)
	expect(t, "segments that overlap, or live ones behind the start", number(t, db, `
select count(*) from (
    select s.base, s.count, s.frames, p.log_start, lead(s.base) over (partition by s.partition_id order by s.base) as next
    from segment s join partition p on p.id = s.partition_id
) s where next < base + count or frames is null and base >= log_start or frames is not null and base < log_start`), 0)
	expect(t, "rows without a partition", number(t, db, `
select count(*) from segment where partition_id not in (select id from partition)`), 0)
	if brokers[0].PartitionsRemoved()+brokers[1].PartitionsRemoved() == 0 {
		t.Error("no partition was removed: the race was not run")
	}
}

// settle acks everything that was popped and notes what is certain then.
func (j *journal) settle(ctx context.Context, e *queue.Engine, popped queue.PopResult) {
	lost := false
	for _, p := range popped.Partitions {
		last := p.Messages[len(p.Messages)-1]
		for tries := 0; ; tries++ {
			results, err := e.Ack(ctx, popped.Group, []queue.AckItem{{TransactionID: last.TransactionID, PartitionID: p.ID, LeaseID: popped.LeaseID}})
			if err == nil {
				err = results[0].Err
			}
			if err == nil && !results[0].LeaseReleased { // an id that came back after its window: the first was acked
				j.note(p.Messages, false, true)
				break
			}
			if err == nil || errors.Is(err, queue.ErrLease) || tries == 10 {
				j.note(p.Messages, err == nil, lost)
				break
			}
			lost = true // the ack may have happened
		}
	}
}

// note counts messages whose delivery is certain. Those whose delivery is not known are none that were lost.
func (j *journal) note(messages []queue.Message, certain, possible bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range messages {
		switch {
		case certain:
			j.popped[m.ID]++
		case possible:
			j.maybe[m.ID] = struct{}{}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
