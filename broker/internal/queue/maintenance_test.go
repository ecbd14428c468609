package queue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/fault"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

func maintain(t *testing.T, e *queue.Engine, on bool) {
	t.Helper()
	if err := e.SetMaintenance(t.Context(), on); err != nil {
		t.Fatal(err)
	}
}

// TestMaintenance diverts pushes at all brokers, over a restart too, while acks go on, and drains what
// was diverted when it ends: in order, under the ids that were answered.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	dirs := [2]string{t.TempDir(), t.TempDir()}
	first := broker(t, url, queue.Config{Spool: openSpool(t, dirs[0])})
	buffer := openSpool(t, dirs[1])
	second := broker(t, url, queue.Config{Spool: buffer})
	push(t, second, item("q", "p", "before"))
	leased := pop(t, second, queue.PopRequest{Queue: "q"})

	maintain(t, first, true)
	waitFor(t, "the other broker to follow", func() bool { return second.Modes().Maintenance })
	var want []string
	for _, id := range []string{"1", "2", "2"} {
		r := push(t, second, item("q", "p", id), item("q", "p", id))
		expect(t, "in maintenance", []queue.Status{r[0].Status, r[1].Status}, []queue.Status{queue.Buffered, queue.Buffered})
		expect(t, "the id of the follower", r[1].MessageID, r[0].MessageID)
		want = append(want, r[0].MessageID.String())
	}
	acked, err := second.Ack(t.Context(), "", []queue.AckItem{{TransactionID: "before", PartitionID: leased.Partitions[0].ID, LeaseID: leased.LeaseID}})
	if err != nil || acked[0].Err != nil {
		t.Errorf("an ack in maintenance: %v, %v", err, acked)
	}
	expect(t, "what the spool holds", second.Buffer().Pending, 3)
	if _, err := second.Transact(t.Context(), queue.Bundle{Push: []queue.PushItem{item("q", "p", "4")}}); !errors.Is(err, queue.ErrSpooled) {
		t.Errorf("a transaction behind the spool: %v", err)
	}

	second.Stop()
	if err := buffer.Close(); err != nil {
		t.Fatal(err)
	}
	again := broker(t, url, queue.Config{Spool: openSpool(t, dirs[1])})
	expect(t, "after a restart", again.Modes(), first.Modes())
	expect(t, "and a push", push(t, again, item("q", "p", "3"))[0].Status, queue.Buffered)
	expect(t, "still waiting", again.Buffer().Pending, 4)

	maintain(t, again, false)
	r := push(t, again, item("q", "p", "4"))[0]
	expect(t, "a push behind what is drained", r.Status, queue.Queued)
	waitFor(t, "the first broker to follow", func() bool { return !first.Modes().Maintenance })
	expect(t, "popped", ids(pop(t, again, queue.PopRequest{Queue: "q"})), []string{"1", "2", "3", "4"})
	got := pop(t, again, queue.PopRequest{Queue: "q", Group: "ids"}).Partitions[0].Messages
	expect(t, "under the ids answered", []string{got[1].ID.String(), got[2].ID.String()}, want[:2])
	expect(t, "and the spool", again.Buffer().Pending, 0)
}

// TestMaintenanceWithoutASpool refuses to enter maintenance where there is no spool, and is honest about
// pushes there when another broker has entered it.
func TestMaintenanceWithoutASpool(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	bare := broker(t, url, queue.Config{})
	if err := bare.SetMaintenance(t.Context(), true); !errors.Is(err, queue.ErrNoSpool) {
		t.Errorf("switched on: %v", err)
	}
	expect(t, "a push", push(t, bare, item("q", "p", "1"))[0].Status, queue.Queued)
	other := broker(t, url, queue.Config{Spool: openSpool(t, t.TempDir())})
	maintain(t, other, true)
	waitFor(t, "the other broker to follow", func() bool { return bare.Modes().Maintenance })
	r, err := bare.Push(t.Context(), []queue.PushItem{item("q", "p", "2"), item("q", "r", "3")})
	if !errors.Is(err, queue.ErrNotSpooled) || len(r) != 2 || r[0].Status != queue.Failed || r[1].Status != queue.Failed {
		t.Errorf("a push in maintenance: %v, %v", r, err)
	}
	maintain(t, bare, false)
	expect(t, "afterwards", push(t, bare, item("q", "p", "2"))[0].Status, queue.Queued)
}

// TestMaintenanceUnderLoad switches maintenance on and off while producers push one message after the
// other: nothing is lost, nothing comes twice, and each partition keeps the order of its producer.
func TestMaintenanceUnderLoad(t *testing.T) {
	t.Parallel()
	const producers, each = 20, 150
	e := broker(t, pgtest.URL(t), queue.Config{Spool: openSpool(t, t.TempDir())})
	answered := make([][]string, producers)
	var statuses [2]atomic.Int64
	var wait sync.WaitGroup
	for p := range producers {
		wait.Go(func() {
			for n := range each {
				r := push(t, e, item("q", fmt.Sprint(p), fmt.Sprint(n)))[0]
				switch r.Status {
				case queue.Queued:
					statuses[0].Add(1)
				case queue.Buffered:
					statuses[1].Add(1)
				default:
					t.Errorf("%s", r.Status)
				}
				answered[p] = append(answered[p], r.MessageID.String())
			}
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	toggles := 0
	for pushing := true; pushing; toggles++ {
		maintain(t, e, toggles%2 == 0)
		before := statuses[0].Load() + statuses[1].Load()
		few := int64(20 + rand.IntN(100))
		for pushing && statuses[0].Load()+statuses[1].Load() < before+few {
			select {
			case <-done:
				pushing = false
			case <-time.After(time.Millisecond):
			}
		}
	}
	maintain(t, e, false)
	waitFor(t, "the spool to be drained", func() bool { return e.Buffer().Pending == 0 })
	if toggles < 4 || statuses[0].Load() == 0 || statuses[1].Load() == 0 {
		t.Errorf("%d switches, %d queued, %d buffered: not what this is about", toggles, statuses[0].Load(), statuses[1].Load())
	}
	got := map[string][]string{}
	for _, p := range pop(t, e, queue.PopRequest{Queue: "q", Batch: 10_000, Partitions: 1000}).Partitions {
		for _, m := range p.Messages {
			got[p.Name] = append(got[p.Name], m.ID.String())
		}
	}
	for p := range producers {
		if !slices.Equal(got[fmt.Sprint(p)], answered[p]) {
			t.Errorf("partition %d holds %d messages, or in another order than the %d answered", p, len(got[fmt.Sprint(p)]), len(answered[p]))
		}
	}
}

// TestPopMaintenance answers parked pops at all brokers and finds nothing for later ones, until it ends.
func TestPopMaintenance(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	first, second := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	answered := make(chan int, 3)
	for _, r := range []queue.PopRequest{
		{Queue: "q", Wait: time.Minute}, {Queue: "q", Partition: "none", Wait: time.Minute}, {Namespace: "none", Wait: time.Minute},
	} {
		go func() { answered <- len(ids(pop(t, second, r))) }()
	}
	waitFor(t, "the pops to be parked", func() bool { return second.SharedState().ParkedPops == 3 })
	if err := first.SetPopMaintenance(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		expect(t, "a parked pop", <-answered, 0)
	}
	push(t, second, item("q", "p", "1"))
	for _, e := range []*queue.Engine{first, second} {
		for _, r := range []queue.PopRequest{{Queue: "q"}, {Queue: "q", AutoAck: true}, {Queue: "q", Wait: 10 * time.Millisecond}, {Queue: "q", Partition: "p"}} {
			expect(t, "a pop in maintenance", len(ids(pop(t, e, r))), 0)
		}
	}
	if err := second.SetPopMaintenance(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	expect(t, "afterwards", ids(pop(t, second, queue.PopRequest{Queue: "q"})), []string{"1"})
}

// TestFaults lets one of three partitions fail, with and without the spool, and PostgreSQL as a whole.
func TestFaults(t *testing.T) {
	t.Parallel()
	faults := fault.NewSet()
	buffer := openSpool(t, t.TempDir())
	e := broker(t, pgtest.URL(t), queue.Config{Spool: buffer, Faults: faults})
	replace := func(f fault.Faults) {
		t.Helper()
		if err := e.ReplaceFaults(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	three := func(id string) (got []queue.Status) {
		for _, r := range push(t, e, item("q", "1", id), item("q", "2", id), item("q", "3", id)) {
			got = append(got, r.Status)
		}
		return got
	}
	second := []fault.Group{{Queue: "q", Partition: "2"}}
	replace(fault.Faults{Postgres: fault.Error, Spool: fault.Error, Groups: second})
	expect(t, "one fails", three("a"), []queue.Status{queue.Queued, queue.Failed, queue.Queued})
	replace(fault.Faults{Postgres: fault.Error, Groups: second})
	expect(t, "one is buffered", three("b"), []queue.Status{queue.Queued, queue.Buffered, queue.Queued})
	expect(t, "and stays", e.Buffer().Pending, 1)
	replace(fault.Faults{})
	expect(t, "and is drained", e.Buffer().Pending, 0)
	expect(t, "all are fine", three("c"), []queue.Status{queue.Queued, queue.Queued, queue.Queued})
	expect(t, "the partition", ids(pop(t, e, queue.PopRequest{Queue: "q", Partition: "2"})), []string{"b", "c"})
}

// TestDeletedQueueStaysDeleted deletes a queue with messages in the spool of a broker: they go with it,
// what is accepted later does not, and other queues are not touched.
func TestDeletedQueueStaysDeleted(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	buffer := openSpool(t, t.TempDir())
	e := broker(t, url, queue.Config{Spool: buffer})
	other := broker(t, url, queue.Config{})
	push(t, e, item("gone", "p", "0"), item("again", "p", "0"), item("kept", "p", "0"))
	maintain(t, e, true)
	for _, id := range []string{"1", "2"} {
		push(t, e, item("gone", "p", id), item("again", "p", id), item("kept", "p", id), item("gone", "other", id))
	}
	for _, name := range []string{"gone", "again"} {
		if existed, err := other.DeleteQueue(t.Context(), name); err != nil || !existed {
			t.Fatal(existed, err)
		}
	}
	expect(t, "a push after the deletion", push(t, e, item("again", "p", "3"))[0].Status, queue.Buffered)
	maintain(t, e, false)
	waitFor(t, "the spool to be drained", drained(buffer))
	if _, err := e.Queue(t.Context(), "gone"); !errors.Is(err, queue.ErrQueueNotFound) {
		t.Errorf("the deleted queue: %v", err)
	}
	expect(t, "the queue made again", ids(pop(t, e, queue.PopRequest{Queue: "again"})), []string{"3"})
	expect(t, "the other queue", ids(pop(t, e, queue.PopRequest{Queue: "kept"})), []string{"0", "1", "2"})
	expect(t, "put aside", e.Buffer().Failed, 0)
}

// TestDeletionRacesTheDrain deletes queues while their messages are drained. Whatever comes first, a queue
// that was deleted does not come back.
func TestDeletionRacesTheDrain(t *testing.T) {
	t.Parallel()
	const queues = 40
	buffer := openSpool(t, t.TempDir())
	e := broker(t, pgtest.URL(t), queue.Config{Spool: buffer})
	maintain(t, e, true)
	var items []queue.PushItem
	for q := range queues {
		for n := range 50 {
			items = append(items, item(fmt.Sprint("q", q), fmt.Sprint(n%3), fmt.Sprint(n)))
		}
	}
	existing := items[:0:0]
	for q := range queues {
		existing = append(existing, item(fmt.Sprint("q", q), "first", "first"))
	}
	maintain(t, e, false)
	push(t, e, existing...)
	maintain(t, e, true)
	push(t, e, items...)
	maintain(t, e, false)
	var wait sync.WaitGroup
	for q := range queues {
		wait.Go(func() {
			if _, err := e.DeleteQueue(t.Context(), fmt.Sprint("q", q)); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	waitFor(t, "the spool to be drained", drained(buffer))
	left, err := e.Queues(t.Context())
	if err != nil || len(left) != 0 {
		t.Errorf("%d queues are left, %v", len(left), err)
	}
}

// TestNotify serves a parked pop without waiting for the poll, and answers for queues that nobody knows.
func TestNotify(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	answered := make(chan []string, 1)
	go func() { answered <- ids(pop(t, e, queue.PopRequest{Queue: "q", Wait: time.Minute})) }()
	waitFor(t, "the pop to be parked", func() bool { return e.SharedState().ParkedPops == 1 })
	push(t, other, item("q", "p", "1"))
	for _, name := range []string{"q", "nobody"} {
		if err := e.Notify(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	expect(t, "the parked pop", <-answered, []string{"1"})
	if s := e.SharedState(); s.Queues != 1 || s.Partitions != 1 || len(s.ShardHeads) == 0 {
		t.Errorf("%+v", s)
	}
}

// TestStuckPartitionHoldsNobodyUp lets one partition fail for as long as it takes: pushes to it are buffered
// without waiting for the drain, in order, and pass through it again afterwards.
func TestStuckPartitionHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	const statement = 10 * time.Second
	e := broker(t, pgtest.URL(t), queue.Config{Spool: openSpool(t, t.TempDir()), Faults: fault.NewSet(), StatementTimeout: statement})
	stuck := fault.Faults{Postgres: fault.Error, Groups: []fault.Group{{Queue: "q", Partition: "p"}}}
	if err := e.ReplaceFaults(t.Context(), stuck); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	var want []string
	for n := range 20 {
		expect(t, "meanwhile", push(t, e, item("q", "p", fmt.Sprint(n)))[0].Status, queue.Buffered)
		want = append(want, fmt.Sprint(n))
	}
	if took := time.Since(started); took > statement {
		t.Errorf("the pushes took %v: they waited for a drain that does not come", took)
	}
	if err := e.ReplaceFaults(t.Context(), fault.Faults{}); err != nil {
		t.Fatal(err)
	}
	expect(t, "afterwards", push(t, e, item("q", "p", "20"))[0].Status, queue.Queued)
	expect(t, "the partition", ids(pop(t, e, queue.PopRequest{Queue: "q"})), append(want, "20"))
}
