package queue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// seek moves a group and expects so many cursors to be moved.
func seek(t testing.TB, e *queue.Engine, r queue.SeekRequest, want int) {
	t.Helper()
	moved, err := e.Seek(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "moved cursors", moved, want)
}

// pushed pushes messages to a partition of the queue q, one per call, named 0 to n-1, and returns when each was created.
func pushed(t testing.TB, e *queue.Engine, partition string, n int) []time.Time {
	t.Helper()
	for i := range n {
		push(t, e, item("q", partition, fmt.Sprint(i)))
	}
	var times []time.Time
	for _, p := range pop(t, e, queue.PopRequest{Queue: "q", Partition: partition, Group: "clerk", Batch: n, AutoAck: true}).Partitions {
		for _, m := range p.Messages {
			times = append(times, m.CreatedAt)
		}
	}
	expect(t, "messages with a time", len(times), n)
	return times
}

func TestSeekGoesBackAndForth(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	times := pushed(t, e, "a", 5)
	push(t, e, item("q", "b", "b0"))
	all := queue.PopRequest{Queue: "q", Group: "g", Partitions: 0, AutoAck: true}
	onA := queue.PopRequest{Queue: "q", Partition: "a", Group: "g", AutoAck: true}
	expect(t, "at first", len(ids(pop(t, e, all))), 6)

	seek(t, e, queue.SeekRequest{Group: "g", Queue: "q", To: &times[2]}, 2)
	expect(t, "from a time on", ids(pop(t, e, onA)), []string{"2", "3", "4"})
	expect(t, "a later message of another partition", ids(pop(t, e, all)), []string{"b0"})
	seek(t, e, queue.SeekRequest{Group: "g", Queue: "q", Partition: "a", To: new(times[2].Add(time.Microsecond))}, 1)
	expect(t, "after a time", ids(pop(t, e, all)), []string{"3", "4"})
	seek(t, e, queue.SeekRequest{Group: "g", Queue: "q", To: new(time.Time{})}, 2)
	expect(t, "from the year 1", len(ids(pop(t, e, all))), 6)
	seek(t, e, queue.SeekRequest{Group: "g", Queue: "q", To: new(times[0].AddDate(50, 0, 0))}, 2)
	expect(t, "from the future", len(ids(pop(t, e, all))), 0)

	seek(t, e, queue.SeekRequest{Group: "g", Queue: "q", To: &times[0]}, 2)
	seek(t, e, queue.SeekRequest{Group: "g", Queue: "q"}, 2)
	push(t, e, item("q", "a", "new"))
	expect(t, "after the end", ids(pop(t, e, all)), []string{"new"})
	expect(t, "the other group", len(ids(pop(t, e, queue.PopRequest{Queue: "q", Group: "clerk", AutoAck: true, Partitions: 0}))), 2)

	for _, r := range []queue.SeekRequest{{Group: "g", Queue: "other"}, {Group: "other", Queue: "q"}, {Group: "g", Queue: "q", Partition: "c"}} {
		if _, err := e.Seek(t.Context(), r); !errors.Is(err, queue.ErrNothingToSeek) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestSeekInPartitionsWithoutCursor moves a group where it has never popped.
func TestSeekInPartitionsWithoutCursor(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	times := pushed(t, a, "a", 4)
	none := queue.PopRequest{Queue: "q", Group: "g", FromNew: true}
	expect(t, "a new group", len(ids(pop(t, a, none))), 0)
	expect(t, "at the other broker", len(ids(pop(t, b, none))), 0)
	seek(t, a, queue.SeekRequest{Group: "g", Queue: "q", To: &times[1]}, 1)
	expect(t, "after the seek", ids(pop(t, b, none)), []string{"1", "2", "3"})
}

func TestSeekEndsLeasesAndResetsRetries(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	times := pushed(t, a, "p", 3)
	request := queue.PopRequest{Queue: "q", Group: "g"}
	for range 3 { // the whole budget
		expect(t, "nack", ackAll(t, a, pop(t, a, request), queue.Nack)[0].Err, nil)
	}
	held := pop(t, a, request)
	expect(t, "leased", len(ids(held)), 3)
	seek(t, b, queue.SeekRequest{Group: "g", Queue: "q", To: &times[1]}, 1)
	for _, r := range ackAll(t, a, held, queue.Completed) {
		expect(t, "ack with the old lease", r.Err, queue.ErrLease)
	}
	lease, err := a.ExtendLease(t.Context(), held.LeaseID, time.Minute)
	expect(t, "extension of the old lease", fmt.Sprint(lease.Renewed, err), "0 <nil>")
	for i := range 3 {
		again := pop(t, a, request)
		expect(t, "after the seek", ids(again), []string{"1", "2"})
		expect(t, "attempt", again.Partitions[0].Messages[0].DeliveryAttempt, i+1)
		r := ackAll(t, a, again, queue.Nack)[0]
		expect(t, "nack within the new budget", fmt.Sprint(r.Err, r.DeadLettered), "<nil> false")
	}
	expect(t, "exhausted", ackAll(t, b, pop(t, b, request), queue.Nack)[0].DeadLettered, true)
}

// TestSeekWakesOtherBrokers lets pops wait at two brokers while a third moves their group.
func TestSeekWakesOtherBrokers(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	mover := broker(t, url, queue.Config{})
	times := pushed(t, mover, "p", 2)
	for name, request := range map[string]queue.PopRequest{
		"any partition": {Queue: "q"}, "one partition": {Queue: "q", Partition: "p"},
	} {
		for _, broker := range []*queue.Engine{mover, broker(t, url, queue.Config{}), broker(t, url, queue.Config{})} {
			request.Group = "g"
			request.AutoAck = true
			for len(ids(pop(t, broker, request))) > 0 { // until nothing is left
			}
			request.Wait = time.Minute
			popped := make(chan []string, 1)
			go func() {
				r, err := broker.Pop(t.Context(), request)
				if err != nil {
					t.Error(err)
				}
				popped <- ids(r)
			}()
			waitFor(t, "the pop to be parked", func() bool { return broker.Parked() == 1 })
			seek(t, mover, queue.SeekRequest{Group: "g", Queue: "q", To: &times[1]}, 1)
			select {
			case got := <-popped:
				expect(t, name, got, []string{"1"})
			case <-time.After(30 * time.Second):
				t.Fatal("the parked pop was not woken")
			}
			request.Wait = 0
		}
	}
}

// TestSeeksRaceAcks moves a group while consumers at two brokers work. The unit of work is ten messages, so
// whatever wins, a cursor stands at a multiple of ten.
func TestSeeksRaceAcks(t *testing.T) {
	t.Parallel()
	const unit, units, rounds = 10, 12, 60
	url := pgtest.URL(t)
	brokers := []*queue.Engine{broker(t, url, queue.Config{}), broker(t, url, queue.Config{})}
	for u := range units {
		var items []queue.PushItem
		for i := range unit {
			for _, p := range []string{"a", "b"} {
				items = append(items, item("race", p, fmt.Sprintf("%03d", u*unit+i)))
			}
		}
		push(t, brokers[0], items...)
	}
	var starts []time.Time
	for _, m := range pop(t, brokers[0], queue.PopRequest{Queue: "race", Partition: "a", Group: "clerk", Batch: 1000}).Partitions[0].Messages {
		starts = append(starts, m.CreatedAt)
	}
	admin := pgtest.Admin(t, url)
	var working atomic.Bool
	working.Store(true)
	var refused, carried atomic.Int64
	var consumers sync.WaitGroup
	for c := range 4 {
		e := brokers[c%2]
		r := rand.New(rand.NewPCG(uint64(c), 1))
		consumers.Go(func() {
			for working.Load() {
				got, err := e.Pop(t.Context(), queue.PopRequest{Queue: "race", Group: "g", Batch: unit, Partitions: 1, Wait: 20 * time.Millisecond})
				if err != nil {
					t.Error(err)
					return
				}
				for _, p := range got.Partitions {
					if first := p.Messages[0].TransactionID; first[2] != '0' || len(p.Messages) != unit {
						t.Errorf("popped %d messages from %s on", len(p.Messages), first)
					}
					lease := got.LeaseID
					if r.IntN(4) == 0 {
						lease = "" // not fenced
					}
					last := p.Messages[unit-1]
					results, err := brokers[r.IntN(2)].Ack(t.Context(), "g", []queue.AckItem{{TransactionID: last.TransactionID, PartitionID: p.ID, LeaseID: lease}})
					switch {
					case err != nil:
						t.Error(err)
					case errors.Is(results[0].Err, queue.ErrLease):
						refused.Add(1)
					case results[0].Err != nil:
						t.Error(results[0].Err)
					default:
						carried.Add(1)
					}
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range rounds {
		request := queue.SeekRequest{Group: "g", Queue: "race", To: &starts[r.IntN(units)*unit]}
		if r.IntN(5) == 0 {
			request.To = nil
		}
		if r.IntN(2) == 0 {
			request.Partition = "a"
		}
		if _, err := brokers[r.IntN(2)].Seek(t.Context(), request); err != nil && !errors.Is(err, queue.ErrNothingToSeek) {
			t.Fatal(err)
		}
		var astray int
		if err := admin.QueryRow(t.Context(), `select count(*) from cursor where committed % 10 <> 0`).Scan(&astray); err != nil || astray > 0 {
			t.Fatalf("%d cursors stand in between (%v)", astray, err)
		}
	}
	working.Store(false)
	consumers.Wait()
	t.Logf("%d acks carried out, %d refused", carried.Load(), refused.Load())

	// What each broker believes is the truth: pops that wait at one get everything after a seek at the other.
	for i := range brokers {
		seek(t, brokers[i], queue.SeekRequest{Group: "g", Queue: "race", To: new(time.Time{})}, 2)
		seen := map[string]int{}
		for n := 0; n < 2*units*unit; {
			got := pop(t, brokers[1-i], queue.PopRequest{Queue: "race", Group: "g", Batch: 1000, Wait: 30 * time.Second, AutoAck: true})
			if len(got.Partitions) == 0 {
				t.Fatalf("nothing after %d messages", n)
			}
			n += len(ids(got))
			for _, p := range got.Partitions {
				for _, m := range p.Messages {
					seen[p.Name+m.TransactionID]++
				}
			}
		}
		expect(t, "different messages", len(seen), 2*units*unit)
	}
}

func TestDeletedGroupStartsOver(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	for i := range 3 {
		push(t, a, item("q", "p", fmt.Sprint(i)))
	}
	push(t, a, item("other", "p", "x"))
	request := queue.PopRequest{Queue: "q", Group: "g"}
	for _, e := range []*queue.Engine{a, b} { // both brokers have it in memory
		expect(t, "popped", len(ids(pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Batch: 1, AutoAck: true}))), 1)
	}
	pop(t, a, queue.PopRequest{Queue: "other", Group: "g", AutoAck: true})
	held := pop(t, b, request)
	expect(t, "leased", ids(held), []string{"2"})

	d, err := a.DeleteGroup(t.Context(), "g", "q", true)
	expect(t, "deletion", fmt.Sprint(d, err), "{true 1} <nil>")
	expect(t, "an ack with an old lease", errors.Is(ackAll(t, b, held, queue.Completed)[0].Err, queue.ErrNoConsumer), true)
	expect(t, "from the beginning", ids(pop(t, b, request)), []string{"0", "1", "2"})
	expect(t, "an ack of the predecessor's lease", ackAll(t, b, held, queue.Completed)[0].Err, queue.ErrLease)
	expect(t, "under the lease of the other broker", len(ids(pop(t, a, request))), 0)
	expect(t, "the other queue", len(ids(pop(t, b, queue.PopRequest{Queue: "other", Group: "g"}))), 0)

	d, err = b.DeleteGroup(t.Context(), "g", "", true)
	expect(t, "deletion in all queues", fmt.Sprint(d, err), "{true 2} <nil>")
	expect(t, "the other queue, anew", len(ids(pop(t, a, queue.PopRequest{Queue: "other", Group: "g"}))), 1)
	d, err = b.DeleteGroup(t.Context(), "g", "q", true)
	expect(t, "deletion of none", fmt.Sprint(d, err), "{false 0} <nil>")
}

// TestDeletedGroupKeepsItsSubscription deletes the cursors only.
func TestDeletedGroupKeepsItsSubscription(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	push(t, a, item("q", "p", "old"))
	request := queue.PopRequest{Queue: "q", Group: "g", FromNew: true, AutoAck: true}
	expect(t, "new", len(ids(pop(t, a, request))), 0)
	push(t, a, item("q", "p", "1"))
	expect(t, "after the subscription", ids(pop(t, b, request)), []string{"1"})
	d, err := a.DeleteGroup(t.Context(), "g", "", false)
	expect(t, "deletion", fmt.Sprint(d, err), "{true 1} <nil>")
	request.FromNew = false
	expect(t, "by its old subscription", ids(pop(t, b, request)), []string{"1"})
}

// TestDeletionRacesConsumers deletes a group over and over while two brokers pop and ack, and parked pops
// wait for it. No cursor of a deleted group stays, and the last successor gets everything.
func TestDeletionRacesConsumers(t *testing.T) {
	t.Parallel()
	const messages = 50
	url := pgtest.URL(t)
	brokers := []*queue.Engine{broker(t, url, queue.Config{}), broker(t, url, queue.Config{})}
	var items []queue.PushItem
	for i := range messages {
		items = append(items, item("q", fmt.Sprint("p", i%5), fmt.Sprint(i)))
	}
	push(t, brokers[0], items...)
	var working atomic.Bool
	working.Store(true)
	var consumers sync.WaitGroup
	for c := range 6 {
		e := brokers[c%2]
		consumers.Go(func() {
			for working.Load() {
				request := queue.PopRequest{Queue: "q", Group: "g", Batch: 3, Wait: 50 * time.Millisecond, AutoAck: c == 0}
				if c == 5 {
					request.Partition = "p1"
				}
				got, err := e.Pop(t.Context(), request)
				if err != nil {
					t.Error(err)
					return
				}
				for _, p := range got.Partitions {
					_, err := brokers[(c+1)%2].Ack(t.Context(), "g", []queue.AckItem{{TransactionID: p.Messages[0].TransactionID, PartitionID: p.ID, LeaseID: got.LeaseID}})
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for i := range 60 {
		if _, err := brokers[i%2].DeleteGroup(t.Context(), "g", "q", i%3 != 0); err != nil {
			t.Fatal(err)
		}
	}
	working.Store(false)
	consumers.Wait()
	if _, err := brokers[0].DeleteGroup(t.Context(), "g", "q", true); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range messages {
		got := pop(t, brokers[1], queue.PopRequest{Queue: "q", Group: "g", Partitions: 0, AutoAck: true})
		for _, id := range ids(got) {
			if seen[id] {
				t.Errorf("%s was popped twice", id)
			}
			seen[id] = true
		}
	}
	expect(t, "messages of the last successor", len(seen), messages)

	advance(t, brokers[0], 2*time.Minute)
	if err := brokers[0].Tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	var orphans int
	err := pgtest.Admin(t, url).QueryRow(t.Context(),
		`select count(*) from cursor where group_id not in (select id from consumer_group)`).Scan(&orphans)
	expect(t, "cursors of deleted groups", fmt.Sprint(orphans, err), "0 <nil>")
}

// TestParkedPopOfADeletedGroup begins anew when its group is deleted at another broker.
func TestParkedPopOfADeletedGroup(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	push(t, a, item("ns.q", "p", "0"))
	for name, request := range map[string]queue.PopRequest{
		"queue":     {Queue: "ns.q", Group: "queue"},
		"partition": {Queue: "ns.q", Group: "partition", Partition: "p"},
		"discovery": {Namespace: "ns", Group: "discovery"},
	} {
		request.AutoAck = true
		expect(t, name, ids(pop(t, b, request)), []string{"0"})
		popped := make(chan []string, 1)
		request.Wait = time.Minute
		go func() {
			r, err := b.Pop(t.Context(), request)
			if err != nil {
				t.Error(err)
			}
			popped <- ids(r)
		}()
		waitFor(t, "the pop to be parked", func() bool { return b.Parked() == 1 })
		if _, err := a.DeleteGroup(t.Context(), request.Group, "", true); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-popped:
			expect(t, name+" anew", got, []string{"0"})
		case <-time.After(30 * time.Second):
			t.Fatal("the parked pop waits for a deleted group")
		}
	}
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	times := pushed(t, a, "touched", 3)
	later := pushed(t, a, "untouched", 3)
	onTouched := queue.PopRequest{Queue: "q", Partition: "touched", Group: "g", Batch: 1, AutoAck: true}
	onUntouched := queue.PopRequest{Queue: "q", Partition: "untouched", Group: "g", AutoAck: true}
	expect(t, "popped", ids(pop(t, a, onTouched)), []string{"0"})
	expect(t, "known to the other broker", ids(pop(t, b, onTouched)), []string{"1"})
	for _, from := range []time.Time{times[0], later[1]} { // forward, from all
		n, err := a.Subscribe(t.Context(), "g", from)
		expect(t, "subscriptions", fmt.Sprint(n, err), "1 <nil>")
	}
	expect(t, "a cursor that exists", ids(pop(t, b, onTouched)), []string{"2"})
	expect(t, "one that does not", ids(pop(t, b, onUntouched)), []string{"1", "2"})

	none := queue.PopRequest{Queue: "q", Group: "fresh", FromNew: true, Partitions: 0}
	expect(t, "new", len(ids(pop(t, b, none)))+len(ids(pop(t, a, none))), 0)
	if _, err := a.Subscribe(t.Context(), "fresh", times[2]); err != nil {
		t.Fatal(err)
	}
	expect(t, "back in time", len(ids(pop(t, b, none))), 4)
	n, err := a.Subscribe(t.Context(), "unknown", times[0])
	expect(t, "an unknown group", fmt.Sprint(n, err), "0 <nil>")
}

func TestGroupsAndTheirLag(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	pushed(t, e, "a", 4)
	push(t, e, item("q", "b", "0"), item("q", "b", "1"))
	advance(t, e, 400*time.Second)
	push(t, e, item("q", "b", "2"))
	expect(t, "popped", ids(pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Partition: "b", Batch: 2, AutoAck: true})), []string{"0", "1"})
	held := pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Partition: "a", Batch: 2})
	pop(t, e, queue.PopRequest{Queue: "q", Group: "late", FromNew: true})
	pop(t, e, queue.PopRequest{Queue: "empty", Group: "g"})

	groups, err := e.Groups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, g := range groups {
		lines = append(lines, fmt.Sprintf("%s/%s members %d cursors %d lagging %d lag %d over %v %s since %v active %v",
			g.Group, g.Queue, g.Members, g.Cursors, g.Lagging, g.Lag, g.MaxTimeLag > 390*time.Second, g.Mode, !g.From.IsZero(), !g.LastActive.IsZero()))
	}
	expect(t, "groups", lines, []string{
		"clerk/q members 0 cursors 1 lagging 1 lag 3 over true all since false active true",
		"g/empty members 0 cursors 0 lagging 0 lag 0 over false all since false active false",
		"g/q members 1 cursors 2 lagging 2 lag 5 over true all since false active true",
		"late/q members 0 cursors 0 lagging 0 lag 0 over false new since true active false",
	})

	queues, err := e.Group(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	lines = nil
	for _, p := range queues["q"] {
		lines = append(lines, fmt.Sprintf("%s consumed %d lag %d over %v leased %v", p.Partition, p.Consumed, p.Lag, p.TimeLag > 390*time.Second, p.LeaseID == held.LeaseID))
	}
	expect(t, "partitions", lines, []string{"a consumed 0 lag 4 over true leased true", "b consumed 2 lag 1 over false leased false"})
	expect(t, "a queue without partitions", fmt.Sprint(queues["empty"] != nil, len(queues["empty"]), len(queues)), "true 0 2")
	if _, err := e.Group(t.Context(), "unknown"); !errors.Is(err, queue.ErrGroupNotFound) {
		t.Errorf("an unknown group: %v", err)
	}

	lagging, err := e.LaggingPartitions(t.Context(), 390*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	lines = nil
	for _, p := range lagging {
		lines = append(lines, fmt.Sprintf("%s/%s lag %d", p.Group, p.Partition, p.Lag))
	}
	expect(t, "lagging, the oldest first", lines, []string{"g/a lag 4", "clerk/b lag 3"})
}

// TestSeekFindsTimes compares the search in the log with a walk through it, holes included.
func TestSeekFindsTimes(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	push(t, e, item("q", "p", "first"))
	pop(t, e, queue.PopRequest{Queue: "q", Group: "g"})
	admin := pgtest.Admin(t, url)
	r := rand.New(rand.NewPCG(1, 2))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for round := range 30 {
		if _, err := admin.Exec(t.Context(), `delete from segment`); err != nil {
			t.Fatal(err)
		}
		type run struct {
			base, past int64
			at         time.Time
		}
		var runs []run
		base, at := int64(r.IntN(50)), start
		for range r.IntN(40) {
			count := 1 + r.IntN(20)
			at = at.Add(time.Duration(r.IntN(3)) * time.Second) // several may be of one time
			if r.IntN(4) > 0 {                                  // else it is a hole
				_, err := admin.Exec(t.Context(), `
insert into segment (partition_id, base, count, created_at, bytes, format, hashes, frames)
select id, $1, $2, $3, 0, 0, '', '' from partition`, base, count, at)
				if err != nil {
					t.Fatal(err)
				}
				runs = append(runs, run{base, base + int64(count), at})
			}
			base += int64(count)
		}
		for range 10 {
			to := start.Add(time.Duration(r.IntN(40)-1) * time.Second)
			seek(t, e, queue.SeekRequest{Group: "g", Queue: "q", To: &to}, 1)
			var got int64
			if err := admin.QueryRow(t.Context(), `select committed from cursor`).Scan(&got); err != nil {
				t.Fatal(err)
			}
			low, high := int64(0), int64(0) // where the cursor may stand: in a hole before the message, too
			for _, s := range runs {
				high = s.past
			}
			for i := len(runs) - 1; i >= 0 && !runs[i].at.Before(to); i-- {
				high = runs[i].base
			}
			for _, s := range runs {
				if s.at.Before(to) {
					low = s.past
				}
			}
			if got < low || got > high {
				t.Fatalf("round %d: seek to %v goes to %d, want %d to %d in %v", round, to, got, low, high, runs)
			}
		}
	}
}

// TestGroupIsLoadedOnce lets an ack and a pop that waits be the first at a broker to name a group. The pop
// must wait for the very group that hears of pushes.
func TestGroupIsLoadedOnce(t *testing.T) {
	t.Parallel()
	const groups = 150
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	push(t, a, item("q", "p", "0"))
	var known queue.PopResult
	for i := range groups {
		known = pop(t, a, queue.PopRequest{Queue: "q", Group: fmt.Sprint(i), AutoAck: true})
	}
	pop(t, b, queue.PopRequest{Queue: "q", Group: "other"})
	var served atomic.Int64
	var wait sync.WaitGroup
	for i := range groups {
		wait.Go(func() {
			ack(t, b, fmt.Sprint(i), queue.AckItem{TransactionID: "0", PartitionID: known.Partitions[0].ID})
		})
		wait.Go(func() {
			r, err := b.Pop(t.Context(), queue.PopRequest{Queue: "q", Group: fmt.Sprint(i), Wait: 20 * time.Second, AutoAck: true})
			if err != nil || len(r.Partitions) == 0 {
				t.Errorf("group %d: %v, %v", i, ids(r), err)
			}
			served.Add(1)
		})
	}
	waitFor(t, "the pops to be parked", func() bool { return b.Parked() == groups })
	push(t, b, item("q", "p", "1"))
	wait.Wait()
}
