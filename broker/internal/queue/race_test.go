package queue_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// stored pops everything of a queue and returns the message ids of each partition and transaction id.
func stored(t *testing.T, e *queue.Engine, name string) map[string][]uuid.UUID {
	t.Helper()
	found := map[string][]uuid.UUID{}
	for {
		r := pop(t, e, queue.PopRequest{Queue: name, Batch: 1000, Partitions: 0, AutoAck: true, Group: "audit"})
		if len(r.Partitions) == 0 {
			return found
		}
		for _, p := range r.Partitions {
			for _, m := range p.Messages {
				key := p.Name + "/" + m.TransactionID
				found[key] = append(found[key], m.ID)
			}
		}
	}
}

// TestBrokersRaceWhileBackendsDie lets writers at two brokers push the same ids while the database
// kills their connections. Nothing is stored twice, nothing answered as queued is lost, and every
// duplicate names the message that is stored.
func TestBrokersRaceWhileBackendsDie(t *testing.T) {
	t.Parallel()
	const distinct, writers, rounds = 500, 8, 60
	url := pgtest.URL(t)
	brokers := []*queue.Engine{
		broker(t, url, queue.Config{}),
		broker(t, url, queue.Config{Shards: 2, DedupCacheBytes: 1}), // evicts every lane after every flush
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	answered := map[string]map[uuid.UUID]queue.Status{}
	var failed atomic.Int64
	stop := make(chan struct{})
	var killer, wait sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(60 * time.Millisecond):
				pgtest.KillBackends(t, url)
			}
		}
	})
	for w := range writers {
		r := rand.New(rand.NewPCG(seed, uint64(w)))
		wait.Go(func() {
			for range rounds {
				var items []queue.PushItem
				for range 1 + r.IntN(20) {
					n := r.IntN(distinct)
					items = append(items, item("race", fmt.Sprint("p", n%7), fmt.Sprint(n)))
				}
				results, err := brokers[r.IntN(2)].Push(t.Context(), items)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for i, res := range results {
					if res.Status == queue.Failed {
						failed.Add(1)
						continue
					}
					key := items[i].Partition + "/" + items[i].TransactionID
					if answered[key] == nil {
						answered[key] = map[uuid.UUID]queue.Status{}
					}
					answered[key][res.MessageID] = res.Status
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	close(stop)
	killer.Wait()
	audit := broker(t, url, queue.Config{})
	found := stored(t, audit, "race")
	for key, messages := range found {
		if len(messages) != 1 {
			t.Errorf("%s is stored %d times", key, len(messages))
		}
	}
	for key, ids := range answered {
		if len(found[key]) == 0 {
			t.Errorf("%s was answered %v and is not stored", key, ids)
			continue
		}
		for id, status := range ids {
			if id != found[key][0] {
				t.Errorf("%s was answered %s with id %v, stored is %v", key, status, id, found[key][0])
			}
		}
	}
	t.Logf("%d ids stored, %d items failed", len(found), failed.Load())
}

// TestConsumersShareALoad lets consumers at two brokers pop, ack, nack and abandon one queue while
// connections die. Every message is completed exactly as often as its group allows, in order.
func TestConsumersShareALoad(t *testing.T) {
	t.Parallel()
	const partitions, perPartition, consumers = 4, 40, 6
	url := pgtest.URL(t)
	brokers := []*queue.Engine{broker(t, url, queue.Config{}), broker(t, url, queue.Config{SegmentCacheBytes: 1})}
	options := queue.DefaultOptions()
	options.RetryLimit = 1000
	options.LeaseTime = time.Second
	if _, err := brokers[0].Configure(t.Context(), "load", "", "", options); err != nil {
		t.Fatal(err)
	}
	for n := range perPartition {
		var items []queue.PushItem
		for p := range partitions {
			items = append(items, item("load", fmt.Sprint("p", p), fmt.Sprintf("%d-%03d", p, n)))
		}
		push(t, brokers[n%2], items...)
	}
	var mu sync.Mutex
	completed := map[string]bool{}
	last := map[string]string{}
	holder := map[string]string{} // partition -> lease whose batch is being worked on
	var wait sync.WaitGroup
	deadline := time.Now().Add(60 * time.Second)
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(completed) == partitions*perPartition
	}
	for c := range consumers {
		r := rand.New(rand.NewPCG(uint64(c), 7))
		wait.Go(func() {
			for round := 0; !done() && time.Now().Before(deadline); round++ {
				if c == 0 && round%10 == 5 {
					pgtest.KillBackends(t, url)
				}
				e := brokers[r.IntN(2)]
				res, err := e.Pop(t.Context(), queue.PopRequest{Queue: "load", Batch: 1 + r.IntN(8), Partitions: 1 + r.IntN(2), Wait: 100 * time.Millisecond})
				if err != nil || len(res.Partitions) == 0 {
					continue
				}
				var items []queue.AckItem
				upTo := map[string]int{}
				for _, p := range res.Partitions {
					mu.Lock()
					holder[p.Name] = res.LeaseID
					mu.Unlock()
					n := 1 + r.IntN(len(p.Messages))
					upTo[p.ID.String()] = n
					status := queue.Completed
					if r.IntN(4) == 0 {
						status = queue.Nack
					}
					items = append(items, queue.AckItem{TransactionID: p.Messages[n-1].TransactionID, PartitionID: p.ID, LeaseID: res.LeaseID, Status: status})
				}
				if r.IntN(20) == 0 {
					continue // a consumer that dies: its lease expires
				}
				results, err := brokers[r.IntN(2)].Ack(t.Context(), "", items)
				if err != nil {
					continue
				}
				mu.Lock()
				for i, p := range res.Partitions {
					if results[i].Err != nil {
						continue
					}
					n := upTo[p.ID.String()]
					if items[i].Status == queue.Nack {
						n--
					}
					for _, m := range p.Messages[:n] {
						if completed[m.TransactionID] && !results[i].Noop && holder[p.Name] == res.LeaseID {
							t.Errorf("%s was completed twice", m.TransactionID)
						}
						completed[m.TransactionID] = true
						if m.TransactionID < last[p.Name] && holder[p.Name] == res.LeaseID {
							t.Errorf("%s after %s", m.TransactionID, last[p.Name])
						}
						last[p.Name] = m.TransactionID
					}
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	if len(completed) != partitions*perPartition {
		t.Fatalf("%d of %d messages completed", len(completed), partitions*perPartition)
	}
}

// TestManyParkedPopsAndOneMessage wakes one pop of thousands, for a handful of statements.
func TestManyParkedPopsAndOneMessage(t *testing.T) {
	t.Parallel()
	const parked = 5000
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	push(t, e, item("q", "p", "0"))
	expect(t, "backlog", len(ids(pop(t, e, queue.PopRequest{Queue: "q", AutoAck: true}))), 1)
	var delivered, empty atomic.Int64
	var wait sync.WaitGroup
	for range parked {
		wait.Go(func() {
			r, err := e.Pop(t.Context(), queue.PopRequest{Queue: "q", Batch: 10, Wait: time.Minute, AutoAck: true})
			switch {
			case err != nil:
				t.Error(err)
			case len(r.Partitions) == 1:
				delivered.Add(1)
			default:
				empty.Add(1)
			}
		})
	}
	waitFor(t, "all pops to be parked", func() bool { return e.Parked() == parked })
	before := e.ClaimStatements()
	push(t, e, item("q", "p", "1"))
	waitFor(t, "the message to be delivered", func() bool { return delivered.Load() == 1 })
	if n := e.ClaimStatements() - before; n > 5 {
		t.Errorf("one message took %d rounds of statements", n)
	}
	e.Drain()
	wait.Wait()
	expect(t, "delivered", delivered.Load(), 1)
	expect(t, "answered empty", empty.Load(), parked-1)
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestPopsFindFewAmongManyPartitions pops from a queue of which nearly all partitions are empty.
func TestPopsFindFewAmongManyPartitions(t *testing.T) {
	t.Parallel()
	const partitions = 10_000
	e := broker(t, pgtest.URL(t), queue.Config{})
	for from := 0; from < partitions; from += 5000 {
		items := make([]queue.PushItem, 5000)
		for i := range items {
			items[i] = item("wide", fmt.Sprint(from+i), "0")
		}
		push(t, e, items...)
	}
	for n := 0; n < partitions; {
		r := pop(t, e, queue.PopRequest{Queue: "wide", Batch: 10_000, Partitions: 0, AutoAck: true})
		n += len(ids(r))
	}
	var items []queue.PushItem
	for i := range 10 {
		items = append(items, item("wide", fmt.Sprint(i*999), "1"))
	}
	push(t, e, items...)
	before := e.ClaimStatements()
	r := pop(t, e, queue.PopRequest{Queue: "wide", Partitions: 0, AutoAck: true})
	expect(t, "partitions with something", len(r.Partitions), 10)
	expect(t, "rounds of statements", e.ClaimStatements()-before, 1)
}
