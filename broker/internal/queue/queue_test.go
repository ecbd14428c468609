package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// broker starts an engine on a database.
func broker(t testing.TB, url string, cfg queue.Config) *queue.Engine {
	t.Helper()
	ctx := t.Context()
	pool, err := pg.Open(ctx, pg.Config{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	cfg.Testing = true
	e, err := queue.Open(ctx, pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

func push(t testing.TB, e *queue.Engine, items ...queue.PushItem) []queue.PushResult {
	t.Helper()
	results, err := e.Push(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func item(q, partition, txID string) queue.PushItem {
	return queue.PushItem{Queue: q, Partition: partition, TransactionID: txID, Payload: []byte(`{"tx":"` + txID + `"}`)}
}

// statuses are the results' statuses, in order.
func statuses(results []queue.PushResult) []queue.Status {
	var s []queue.Status
	for _, r := range results {
		s = append(s, r.Status)
	}
	return s
}

func pop(t testing.TB, e *queue.Engine, r queue.PopRequest) queue.PopResult {
	t.Helper()
	if r.Batch == 0 {
		r.Batch = 200
	}
	result, err := e.Pop(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// ids are the transaction ids of a pop, in order.
func ids(r queue.PopResult) []string {
	var list []string
	for _, p := range r.Partitions {
		for _, m := range p.Messages {
			list = append(list, m.TransactionID)
		}
	}
	return list
}

func expect[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// ackAll acknowledges everything that was popped with one status.
func ackAll(t testing.TB, e *queue.Engine, r queue.PopResult, status queue.AckStatus) []queue.AckResult {
	t.Helper()
	var items []queue.AckItem
	for _, p := range r.Partitions {
		for _, m := range p.Messages {
			items = append(items, queue.AckItem{TransactionID: m.TransactionID, PartitionID: p.ID, Status: status, LeaseID: r.LeaseID, Error: "told so"})
		}
	}
	return ack(t, e, r.Group, items...)
}

func ack(t testing.TB, e *queue.Engine, group string, items ...queue.AckItem) []queue.AckResult {
	t.Helper()
	results, err := e.Ack(t.Context(), group, items)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func advance(t testing.TB, e *queue.Engine, d time.Duration) {
	t.Helper()
	if _, err := e.AdvanceClock(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

func TestPushPopAck(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	results := push(t, e, item("orders", "a", "1"), item("orders", "a", "2"), item("orders", "a", "1"), item("orders", "b", "1"))
	expect(t, "statuses", statuses(results), []queue.Status{queue.Queued, queue.Queued, queue.Duplicate, queue.Queued})
	expect(t, "the duplicate's id", results[2].MessageID, results[0].MessageID)

	first := pop(t, e, queue.PopRequest{Queue: "orders", Partitions: 1})
	expect(t, "first pop", ids(first), []string{"1", "2"})
	expect(t, "payload", string(first.Partitions[0].Messages[1].Payload), `{"tx":"2"}`)
	expect(t, "message id", first.Partitions[0].Messages[0].ID, results[0].MessageID)
	second := pop(t, e, queue.PopRequest{Queue: "orders", Partitions: 0})
	expect(t, "second pop", ids(second), []string{"1"})
	expect(t, "third pop", len(ids(pop(t, e, queue.PopRequest{Queue: "orders"}))), 0)

	for _, r := range ackAll(t, e, first, queue.Completed) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	again := ackAll(t, e, first, queue.Completed)
	expect(t, "a late ack under the old lease", again[0].Err, queue.ErrLease)
	expect(t, "after the ack", len(ids(pop(t, e, queue.PopRequest{Queue: "orders"}))), 0)
}

func TestDuplicatesInsideTheWindowOnly(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	original := push(t, e, item("q", "", "x"))[0]
	again := push(t, e, item("q", "", "x"))[0]
	expect(t, "again", again.Status, queue.Duplicate)
	expect(t, "original", again.MessageID, original.MessageID)
	expect(t, "elsewhere", push(t, e, item("q", "other", "x"))[0].Status, queue.Queued)

	advance(t, e, time.Hour-time.Minute)
	expect(t, "just before the window ends", push(t, e, item("q", "", "x"))[0].Status, queue.Duplicate)
	advance(t, e, 2*time.Minute)
	expect(t, "after the window", push(t, e, item("q", "", "x"))[0].Status, queue.Queued)

	options := queue.DefaultOptions()
	options.DedupWindow = 0
	if _, err := e.Configure(t.Context(), "q", "", "", options); err != nil {
		t.Fatal(err)
	}
	expect(t, "window 0", statuses(push(t, e, item("q", "", "x"), item("q", "", "x"))), []queue.Status{queue.Queued, queue.Queued})
	options.DedupWindow = 10 * time.Hour
	if _, err := e.Configure(t.Context(), "q", "", "", options); err != nil {
		t.Fatal(err)
	}
	expect(t, "a window raised later", push(t, e, item("q", "", "x"))[0].Status, queue.Duplicate)
}

func TestColdBrokerKnowsTheLog(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a := broker(t, url, queue.Config{})
	original := push(t, a, item("q", "p", "x"), item("q", "p", "y"))
	b := broker(t, url, queue.Config{})
	results := push(t, b, item("q", "p", "y"), item("q", "p", "z"))
	expect(t, "statuses at a fresh broker", statuses(results), []queue.Status{queue.Duplicate, queue.Queued})
	expect(t, "original", results[0].MessageID, original[1].MessageID)
	results = push(t, a, item("q", "p", "z"), item("q", "p", "w"))
	expect(t, "statuses at the first broker", statuses(results), []queue.Status{queue.Duplicate, queue.Queued})
	expect(t, "order", ids(pop(t, b, queue.PopRequest{Queue: "q"})), []string{"x", "y", "z", "w"})
}

func TestHashCollisionsAreNoDuplicates(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{HashBits: 2})
	for round := range 3 {
		var items []queue.PushItem
		for i := range 40 {
			items = append(items, item("q", "p", fmt.Sprint(i)))
		}
		want := queue.Queued
		if round > 0 {
			want = queue.Duplicate
		}
		for i, r := range push(t, e, items...) {
			if r.Status != want {
				t.Fatalf("round %d item %d: %s, want %s", round, i, r.Status, want)
			}
		}
		if round == 1 {
			e = broker(t, url, queue.Config{HashBits: 2, SegmentCacheBytes: 1})
		}
	}
	r := pop(t, e, queue.PopRequest{Queue: "q"})
	expect(t, "messages", len(ids(r)), 40)
	slices.Reverse(r.Partitions[0].Messages)
	for i, a := range ackAll(t, e, r, queue.Completed) {
		if a.Err != nil {
			t.Fatalf("ack %d: %v", i, a.Err)
		}
	}
}

// TestExtendLeaseOfDeletedQueue renews no lease of a queue that is gone, while its rows wait to be swept.
func TestExtendLeaseOfDeletedQueue(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	other := broker(t, url, queue.Config{})
	push(t, e, item("gone", "p", "1"), item("gone", "r", "2"))
	held := pop(t, e, queue.PopRequest{Queue: "gone", Partitions: 2})
	expect(t, "partitions", len(held.Partitions), 2)
	single := pop(t, e, queue.PopRequest{Queue: "gone", Group: "g"})
	sweep := begin(t, pgtest.Admin(t, url)) // holds it up
	execute(t, sweep, `select from segment for update`)
	defer func() { _ = sweep.Rollback(context.WithoutCancel(t.Context())) }()
	if existed, err := e.DeleteQueue(t.Context(), "gone"); err != nil || !existed {
		t.Fatalf("delete: %t, %v", existed, err)
	}
	for _, id := range []string{held.LeaseID, single.LeaseID} {
		for _, e := range []*queue.Engine{e, other} {
			if lease, err := e.ExtendLease(t.Context(), id, time.Minute); err != nil || lease != (queue.Lease{}) {
				t.Errorf("extend: %+v, %v", lease, err)
			}
		}
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"), item("q", "p", "3"))
	first := pop(t, e, queue.PopRequest{Queue: "q", Batch: 2})
	expect(t, "first", ids(first), []string{"1", "2"})
	expect(t, "under the lease", len(ids(pop(t, e, queue.PopRequest{Queue: "q"}))), 0)

	lease, err := e.ExtendLease(t.Context(), first.LeaseID, 5*time.Minute)
	if err != nil || lease.Renewed != 1 {
		t.Fatalf("extend: %+v, %v", lease, err)
	}
	advance(t, e, 2*time.Minute)
	expect(t, "under the extended lease", len(ids(pop(t, e, queue.PopRequest{Queue: "q"}))), 0)
	advance(t, e, 4*time.Minute)
	second := pop(t, e, queue.PopRequest{Queue: "q"})
	expect(t, "after expiry", ids(second), []string{"1", "2", "3"})
	var attempts []int
	for _, m := range second.Partitions[0].Messages {
		attempts = append(attempts, m.DeliveryAttempt)
	}
	expect(t, "attempts", attempts, []int{2, 2, 1})

	expect(t, "ack under the expired lease", ackAll(t, e, first, queue.Completed)[0].Err, queue.ErrLease)
	if lease, err = e.ExtendLease(t.Context(), first.LeaseID, time.Minute); err != nil || lease.Renewed != 0 {
		t.Fatalf("extend an expired lease: %+v, %v", lease, err)
	}
	partial := ack(t, e, "", queue.AckItem{TransactionID: "1", PartitionID: second.Partitions[0].ID, LeaseID: second.LeaseID})
	expect(t, "partial ack", partial[0], queue.AckResult{})
	expect(t, "a partial ack keeps the lease", len(ids(pop(t, e, queue.PopRequest{Queue: "q"}))), 0)
	rest := ack(t, e, "", queue.AckItem{TransactionID: "3", PartitionID: second.Partitions[0].ID, LeaseID: second.LeaseID})
	expect(t, "full ack", rest[0], queue.AckResult{LeaseReleased: true})
}

func TestNackBudgetAndDeadLetters(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"))
	for try := 1; try <= 4; try++ {
		r := pop(t, e, queue.PopRequest{Queue: "q", Batch: 1})
		expect(t, "redelivered", ids(r), []string{"1"})
		expect(t, "attempt", r.Partitions[0].Messages[0].DeliveryAttempt, try)
		result := ackAll(t, e, r, queue.Nack)[0]
		expect(t, fmt.Sprint("nack ", try), result, queue.AckResult{LeaseReleased: true, DeadLettered: try == 4})
	}
	r := pop(t, e, queue.PopRequest{Queue: "q"})
	expect(t, "after the dead letter", ids(r), []string{"2"})
	expect(t, "retry", ackAll(t, e, r, queue.Retry)[0], queue.AckResult{LeaseReleased: true})
	r = pop(t, e, queue.PopRequest{Queue: "q"})
	expect(t, "dlq", ackAll(t, e, r, queue.DeadLetter)[0], queue.AckResult{LeaseReleased: true, DeadLettered: true})
	detail, err := e.Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "counts", detail.Messages, queue.Counts{Total: 2, Completed: 2, DeadLetter: 2})
}

func TestOneCallSaysSeveralThings(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"), item("q", "p", "3"), item("q", "p", "4"))
	r := pop(t, e, queue.PopRequest{Queue: "q"})
	p := r.Partitions[0].ID
	say := func(txID string, s queue.AckStatus) queue.AckItem {
		return queue.AckItem{TransactionID: txID, PartitionID: p, LeaseID: r.LeaseID, Status: s}
	}
	results := ack(t, e, "", say("1", queue.Completed), say("4", queue.Completed), say("3", queue.Retry), say("2", queue.Nack),
		say("nobody", queue.Completed), queue.AckItem{TransactionID: "1", PartitionID: uuid.New()})
	expect(t, "results", results, []queue.AckResult{
		{}, {Err: queue.ErrSuperseded}, {}, {LeaseReleased: true}, {Err: queue.ErrUnresolvable}, {Err: queue.ErrNoConsumer},
	})
	expect(t, "redelivered", ids(pop(t, e, queue.PopRequest{Queue: "q"})), []string{"2", "3", "4"})
	results = ack(t, e, "", queue.AckItem{TransactionID: "1", PartitionID: p}, queue.AckItem{TransactionID: "1", PartitionID: p, Status: queue.Nack})
	expect(t, "below the cursor", results, []queue.AckResult{{Noop: true}, {Err: queue.ErrAlreadyCommitted}})
	expect(t, "no lease named", ack(t, e, "", queue.AckItem{TransactionID: "4", PartitionID: p})[0], queue.AckResult{LeaseReleased: true})
}

func TestGroupsAndSubscriptions(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	push(t, e, item("q", "p", "1"))
	expect(t, "all", ids(pop(t, e, queue.PopRequest{Queue: "q", Group: "all", AutoAck: true})), []string{"1"})
	expect(t, "new", len(ids(pop(t, e, queue.PopRequest{Queue: "q", Group: "new", FromNew: true, AutoAck: true}))), 0)
	expect(t, "queue mode skips nothing", ids(pop(t, e, queue.PopRequest{Queue: "q", FromNew: true, AutoAck: true})), []string{"1"})
	push(t, e, item("q", "p", "2"), item("q", "later", "3"))
	for _, group := range []string{"all", "new", ""} {
		got := ids(pop(t, e, queue.PopRequest{Queue: "q", Group: group, Partitions: 0, AutoAck: true}))
		slices.Sort(got)
		expect(t, "group "+group, got, []string{"2", "3"})
	}
}

func TestLongPollWakesAtOnceAndAcrossBrokers(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	for name, r := range map[string]queue.PopRequest{
		"queue":     {Queue: "queue.task"},
		"partition": {Queue: "partition.task", Partition: "p", Group: "g"},
		"discovery": {Namespace: "discovery", Group: "d"},
	} {
		for _, at := range []*queue.Engine{a, b} {
			r.Batch, r.Wait, r.AutoAck = 10, 20*time.Second, true
			got := make(chan []string, 1)
			go func() {
				result, err := at.Pop(context.WithoutCancel(t.Context()), r)
				if err != nil {
					t.Error(err)
				}
				got <- ids(result)
			}()
			id := uuid.NewString()
			push(t, a, item(name+".task", "p", id))
			started := time.Now()
			expect(t, name, <-got, []string{id})
			if waited := time.Since(started); waited > 10*time.Second {
				t.Fatalf("%s: woken after %v", name, waited)
			}
		}
	}
}

func TestVisibility(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	options := queue.DefaultOptions()
	options.DelayedProcessing = time.Minute
	configure := func(name string) {
		if _, err := e.Configure(t.Context(), name, "", "", options); err != nil {
			t.Fatal(err)
		}
	}
	configure("delayed")
	push(t, e, item("delayed", "p", "1"))
	expect(t, "too young", len(ids(pop(t, e, queue.PopRequest{Queue: "delayed"}))), 0)
	advance(t, e, 40*time.Second)
	push(t, e, item("delayed", "p", "2"))
	advance(t, e, 30*time.Second)
	expect(t, "the first is old enough", ids(pop(t, e, queue.PopRequest{Queue: "delayed"})), []string{"1"})

	options = queue.DefaultOptions()
	options.WindowBuffer = time.Minute
	configure("buffered")
	push(t, e, item("buffered", "p", "1"))
	advance(t, e, 40*time.Second)
	push(t, e, item("buffered", "p", "2"))
	advance(t, e, 40*time.Second)
	expect(t, "not quiet yet", len(ids(pop(t, e, queue.PopRequest{Queue: "buffered"}))), 0)
	advance(t, e, 30*time.Second)
	expect(t, "quiet", ids(pop(t, e, queue.PopRequest{Queue: "buffered", AutoAck: true})), []string{"1", "2"})
	for i := range 100 {
		push(t, e, item("buffered", "p", fmt.Sprint("many", i)))
	}
	expect(t, "a hundred are released early", len(ids(pop(t, e, queue.PopRequest{Queue: "buffered"}))), 100)

	options = queue.DefaultOptions()
	options.MinPopWait = 60 * time.Second
	configure("held")
	push(t, e, item("held", "p", "1"))
	got := make(chan []string, 1)
	go func() {
		r, err := e.Pop(context.WithoutCancel(t.Context()), queue.PopRequest{Queue: "held", Batch: 2, Wait: 30 * time.Second})
		if err != nil {
			t.Error(err)
		}
		got <- ids(r)
	}()
	for e.Parked() == 0 {
		time.Sleep(time.Millisecond)
	}
	push(t, e, item("held", "p", "2"))
	expect(t, "a full batch", <-got, []string{"1", "2"})
}

func TestDeleteQueue(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	push(t, a, item("q", "p", "1"))
	push(t, b, item("q", "p", "2"))
	expect(t, "existed", must(a.DeleteQueue(t.Context(), "q")), true)
	expect(t, "again", must(a.DeleteQueue(t.Context(), "q")), false)
	// b still has the queue in memory; what it pushes must not vanish with the deleted one.
	expect(t, "pushed at b", push(t, b, item("q", "p", "1"))[0].Status, queue.Queued)
	expect(t, "popped at a", ids(pop(t, a, queue.PopRequest{Queue: "q"})), []string{"1"})
	if _, err := a.Queue(t.Context(), "none"); err == nil {
		t.Fatal("an unknown queue was found")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestDedupUnderMemoryPressure pushes far more ids into one partition than its memory may hold.
func TestDedupUnderMemoryPressure(t *testing.T) {
	t.Parallel()
	const messages, request = 150_000, 5_000
	e := broker(t, pgtest.URL(t), queue.Config{Shards: 1, DedupCacheBytes: 2 << 20, SegmentCacheBytes: 1})
	for from := 0; from < messages; from += request {
		items := make([]queue.PushItem, request)
		for i := range items {
			items[i] = queue.PushItem{Queue: "q", TransactionID: fmt.Sprint(from + i), Payload: []byte("0")}
		}
		for _, r := range push(t, e, items...) {
			if r.Status != queue.Queued {
				t.Fatalf("a new id was answered %s", r.Status)
			}
		}
	}
	if held := e.DedupBytes(); held > 3<<20 {
		t.Errorf("%d bytes are held, the budget is %d", held, 2<<20)
	}
	var again []queue.PushItem
	for n := 0; n < messages; n += 1499 {
		again = append(again, queue.PushItem{Queue: "q", TransactionID: fmt.Sprint(n), Payload: []byte("0")})
	}
	for i, r := range push(t, e, again...) {
		if r.Status != queue.Duplicate || r.MessageID == uuid.Nil {
			t.Fatalf("id %s again: %+v", again[i].TransactionID, r)
		}
	}
}

func TestDeletedQueueIsSweptAway(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	var items []queue.PushItem
	for i := range 250 {
		items = append(items, item("gone", fmt.Sprint(i), "x"), item("kept", fmt.Sprint(i), "x"))
	}
	push(t, e, items...)
	ackAll(t, e, pop(t, e, queue.PopRequest{Queue: "gone", Partitions: 0}), queue.DeadLetter)
	must(e.DeleteQueue(t.Context(), "gone"))
	db := pgtest.Admin(t, url)
	count := func(sql string) (n int) {
		if err := db.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	waitFor(t, "the rows to be swept away", func() bool {
		return count(`select count(*) from segment`) == 250 && count(`select count(*) from partition`) == 250 &&
			count(`select (select count(*) from cursor) + (select count(*) from dead_letter) + (select count(*) from consumer_group)`) == 0
	})
	expect(t, "tombstones", count(`select count(*) from queue_tombstone`), 1)
	expect(t, "the other queue", len(ids(pop(t, e, queue.PopRequest{Queue: "kept", Partitions: 0, Batch: 1000}))), 250)
}

// TestAnswersAreBounded pops more than one answer may hold.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	for name, cache := range map[string]int64{"cached": 0, "cold": 1} {
		e := broker(t, pgtest.URL(t), queue.Config{SegmentCacheBytes: cache})
		large := make([]byte, 15<<20)
		for i := range large {
			large[i] = byte('0' + i*i%10)
		}
		for i := range 6 {
			push(t, e, queue.PushItem{Queue: "q", Partition: fmt.Sprint(i % 2), TransactionID: fmt.Sprint(i), Payload: large})
		}
		first := pop(t, e, queue.PopRequest{Queue: "q", AutoAck: true})
		expect(t, name+": first answer", len(ids(first)), 4)
		second := pop(t, e, queue.PopRequest{Queue: "q", AutoAck: true})
		expect(t, name+": second answer", len(ids(second)), 2)
	}
}

// TestOnePushOfManyStatements pushes a group that is larger than one statement may be.
func TestOnePushOfManyStatements(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{SegmentCacheBytes: 1})
	noise := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	items := make([]queue.PushItem, 40)
	var want []string
	for i := range items {
		items[i] = queue.PushItem{Queue: "q", TransactionID: fmt.Sprint(i), Payload: noise[i:]}
		want = append(want, fmt.Sprint(i))
	}
	for range 2 {
		push(t, e, items...)
	}
	popped := pop(t, e, queue.PopRequest{Queue: "q"})
	expect(t, "messages", ids(popped), want)
	for i, m := range popped.Partitions[0].Messages {
		if !bytes.Equal(m.Payload, noise[i:]) {
			t.Fatalf("payload %d changed", i)
		}
	}
}

func TestDiscoveryAcrossBrokers(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	both := []queue.PushItem{item("ns.t", "p0", "1"), item("ns.t", "p1", "1")}
	push(t, a, both...)
	request := queue.PopRequest{Namespace: "ns", AutoAck: true}
	expect(t, "first", len(ids(pop(t, b, request))), 2)
	expect(t, "none left", len(ids(pop(t, b, request))), 0)
	for i := range both {
		both[i].TransactionID = "2"
	}
	push(t, a, both...)
	expect(t, "second", len(ids(pop(t, b, request))), 2)
}

// TestNewSubscribersMissNoLaterQueue waits for new messages of a namespace while queues come into being.
func TestNewSubscribersMissNoLaterQueue(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	for i, at := range []*queue.Engine{b, a, b, a, b} {
		group := fmt.Sprint("g", i)
		request := queue.PopRequest{Namespace: "later", Group: group, FromNew: true, AutoAck: true, Batch: 10, Wait: 20 * time.Second}
		got := make(chan []string, 1)
		go func() {
			r, err := a.Pop(context.WithoutCancel(t.Context()), request)
			if err != nil {
				t.Error(err)
			}
			got <- ids(r)
		}()
		waitFor(t, "the pop to be parked", func() bool { return a.Parked() == 1 })
		id := fmt.Sprint("first of ", i)
		push(t, at, item(fmt.Sprint("later.", i), "p", id))
		expect(t, "the first message of a queue created later", <-got, []string{id})
	}
	// A group that does not wait sees what was pushed since it was first here.
	expect(t, "polling", len(ids(pop(t, a, queue.PopRequest{Namespace: "later", Group: "poll", FromNew: true, AutoAck: true}))), 0)
	push(t, b, item("later.poll", "p", "x"))
	expect(t, "polling again", ids(pop(t, a, queue.PopRequest{Namespace: "later", Group: "poll", FromNew: true, AutoAck: true})), []string{"x"})
}

// TestDuplicatesOfADeletedQueue repeats a push whose original another broker has just deleted.
func TestDuplicatesOfADeletedQueue(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	a, b := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	for range 10 {
		expect(t, "first", push(t, b, item("q", "p", "t"))[0].Status, queue.Queued)
		expect(t, "again", push(t, b, item("q", "p", "t"))[0].Status, queue.Duplicate)
		must(a.DeleteQueue(t.Context(), "q"))
		expect(t, "after the deletion", push(t, b, item("q", "p", "t"))[0].Status, queue.Queued)
		must(b.DeleteQueue(t.Context(), "q"))
	}
}

func TestOnePushToManyNewQueues(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	items := make([]queue.PushItem, 5000)
	for i := range items {
		items[i] = item(fmt.Sprint("many.", i), "p", "1")
	}
	for i, r := range push(t, e, items...) {
		if r.Status != queue.Queued {
			t.Fatalf("item %d: %s", i, r.Status)
		}
	}
}

// TestQueuedIsVisibleAtOnce pops right after each answer, from partitions of all shards, many at a time.
func TestQueuedIsVisibleAtOnce(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	var wait sync.WaitGroup
	for caller := range 16 {
		name := fmt.Sprint("q", caller)
		pop(t, e, queue.PopRequest{Queue: name, AutoAck: true})
		wait.Go(func() {
			for round := range 100 {
				var items []queue.PushItem
				for i := range 1 + round%20 {
					items = append(items, item(name, fmt.Sprint((round+i)%50), fmt.Sprint(round)))
				}
				push(t, e, items...)
				if got := ids(pop(t, e, queue.PopRequest{Queue: name, AutoAck: true})); len(got) != len(items) {
					t.Errorf("round %d: %d of %d messages that were answered as queued are there", round, len(got), len(items))
					return
				}
			}
		})
	}
	wait.Wait()
}
