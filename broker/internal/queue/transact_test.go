package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

func transact(t testing.TB, e *queue.Engine, b queue.Bundle) queue.Outcome {
	t.Helper()
	out, err := e.Transact(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// bundleAcks are acks of everything that was popped.
func bundleAcks(r queue.PopResult, status queue.AckStatus) []queue.BundleAck {
	var acks []queue.BundleAck
	for _, p := range r.Partitions {
		for _, m := range p.Messages {
			acks = append(acks, queue.BundleAck{
				AckItem: queue.AckItem{TransactionID: m.TransactionID, PartitionID: p.ID, Status: status, LeaseID: r.LeaseID, Error: "told so"},
				Group:   r.Group,
			})
		}
	}
	return acks
}

// TestTransactionDoesEverything moves messages from one queue to several partitions of others.
func TestTransactionDoesEverything(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	push(t, e, item("in", "p", "1"), item("in", "p", "2"), item("in", "r", "3"))
	leased := pop(t, other, queue.PopRequest{Queue: "in", Group: "g"})
	expect(t, "leased", len(ids(leased)), 3)

	trace := uuid.New()
	traced := item("out.b", "2", "y")
	traced.TraceID = trace
	out := transact(t, e, queue.Bundle{
		Push: []queue.PushItem{item("out.a", "1", "x"), traced, item("out.a", "1", "x"), item("out.a", "", ""), item("out.a", "1", "z")},
		Acks: bundleAcks(leased, queue.Completed),
	})
	expect(t, "pushed", statuses(out.Pushed), []queue.Status{"queued", "queued", "duplicate", "queued", "queued"})
	expect(t, "the follower's id", out.Pushed[2].MessageID, out.Pushed[0].MessageID)
	for i, r := range out.Acked {
		if r.Err != nil || r.Noop {
			t.Errorf("ack %d: %+v", i, r)
		}
	}
	for _, at := range []*queue.Engine{e, other} {
		expect(t, "what is left to the group", len(ids(pop(t, at, queue.PopRequest{Queue: "in", Group: "g"}))), 0)
	}
	expect(t, "out.a", ids(pop(t, other, queue.PopRequest{Queue: "out.a", Partition: "1"})), []string{"x", "z"})
	got := pop(t, other, queue.PopRequest{Queue: "out.b"})
	expect(t, "the trace", got.Partitions[0].Messages[0].TraceID, trace)
	expect(t, "a push afterwards", statuses(push(t, other, item("out.b", "2", "y"), item("out.b", "2", "new"))), []queue.Status{"duplicate", "queued"})
}

// TestTransactionRollsBack has a bundle fail for each reason that there is. Nothing of it is left, in the
// database or in any broker's memory.
func TestTransactionRollsBack(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	original := push(t, other, item("out", "1", "taken"))[0]
	push(t, e, item("in", "p", "1"), item("in", "p", "2"))
	leased := pop(t, e, queue.PopRequest{Queue: "in"})
	acks := bundleAcks(leased, queue.Completed)
	sentinel := errors.New("not now")
	with := func(change func(*queue.BundleAck)) []queue.BundleAck {
		changed := slices.Clone(acks)
		change(&changed[1])
		return changed
	}
	fresh := []queue.PushItem{item("out", "2", "fresh"), item("new", "1", "fresh")}
	expired := uuid.NewString()

	for name, c := range map[string]struct {
		bundle queue.Bundle
		want   error
	}{
		"a duplicate": {queue.Bundle{Push: append(slices.Clone(fresh), item("out", "1", "taken")), Acks: acks}, &queue.DuplicateError{Index: 2, TransactionID: "taken", MessageID: original.MessageID}},
		"an unknown id": {
			queue.Bundle{Push: fresh, Acks: with(func(a *queue.BundleAck) { a.TransactionID = "nobody" })},
			&queue.RejectedError{Index: 1, TransactionID: "nobody", Err: queue.ErrUnresolvable},
		},
		"an unknown partition": {
			queue.Bundle{Push: fresh, Acks: with(func(a *queue.BundleAck) { a.PartitionID = uuid.New() })},
			&queue.RejectedError{Index: 1, TransactionID: "2", Err: queue.ErrNoConsumer},
		},
		"an unknown group": {
			queue.Bundle{Push: fresh, Acks: with(func(a *queue.BundleAck) { a.Group = "strangers" })},
			&queue.RejectedError{Index: 1, TransactionID: "2", Err: queue.ErrNoConsumer},
		},
		"a stale lease": {
			queue.Bundle{Push: fresh, Acks: with(func(a *queue.BundleAck) { a.LeaseID = expired })},
			&queue.RejectedError{Index: 1, TransactionID: "2", Err: queue.ErrLease},
		},
		"a completion behind a failure": {
			queue.Bundle{Push: fresh, Acks: append([]queue.BundleAck{acks[1]}, bundleAcks(leased, queue.Nack)[0])},
			&queue.RejectedError{Index: 0, TransactionID: "2", Err: queue.ErrSuperseded},
		},
		"a step that fails": {
			queue.Bundle{Push: fresh, Acks: acks, Also: func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `delete from setting`); err != nil {
					return err
				}
				return sentinel
			}}, sentinel,
		},
	} {
		for _, at := range []*queue.Engine{e, other} {
			_, err := at.Transact(t.Context(), c.bundle)
			switch want := c.want.(type) { //nolint:errorlint // the wanted error's type chooses the comparison
			case *queue.DuplicateError:
				var got *queue.DuplicateError
				if !errors.As(err, &got) || *got != *want {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
			case *queue.RejectedError:
				var got *queue.RejectedError
				if !errors.As(err, &got) || got.Index != want.Index || got.TransactionID != want.TransactionID || !errors.Is(got, want.Err) {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
			default:
				if !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
			}
		}
	}
	for _, at := range []*queue.Engine{e, other} {
		expect(t, "new is empty", len(ids(pop(t, at, queue.PopRequest{Queue: "new"}))), 0)
	}
	// The lease still holds, and the ids are free.
	out := transact(t, other, queue.Bundle{Push: fresh, Acks: acks})
	expect(t, "at last", statuses(out.Pushed), []queue.Status{"queued", "queued"})
	expect(t, "out", ids(pop(t, e, queue.PopRequest{Queue: "out", Partition: "2"})), []string{"fresh"})
	expect(t, "in", len(ids(pop(t, e, queue.PopRequest{Queue: "in"}))), 0)
}

// TestTransactionDropsDuplicates commits the rest of a bundle when it is told to.
func TestTransactionDropsDuplicates(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	original := push(t, other, item("q", "1", "old"))[0]
	ran := 0
	out := transact(t, e, queue.Bundle{
		Push: []queue.PushItem{item("q", "1", "old"), item("q", "1", "new"), item("q", "2", "old")}, Duplicates: queue.DropDuplicates,
		Also: func(context.Context, pgx.Tx) error { ran++; return nil },
	})
	expect(t, "statuses", statuses(out.Pushed), []queue.Status{"duplicate", "queued", "queued"})
	expect(t, "the original", out.Pushed[0].MessageID, original.MessageID)
	if ran == 0 {
		t.Error("the step did not run")
	}
	out = transact(t, e, queue.Bundle{Push: []queue.PushItem{item("q", "1", "old")}, Duplicates: queue.DropDuplicates})
	expect(t, "nothing but duplicates", statuses(out.Pushed), []queue.Status{"duplicate"})
	expect(t, "an empty bundle", len(transact(t, e, queue.Bundle{}).Pushed), 0)
	expect(t, "stored", ids(pop(t, other, queue.PopRequest{Queue: "q", Partition: "1"})), []string{"old", "new"})
}

// TestTransactionLeases goes through the leases that an ack of a transaction may be made under.
func TestTransactionLeases(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"), item("q", "p", "3"))
	leased := pop(t, e, queue.PopRequest{Queue: "q", Batch: 1, Lease: 10 * time.Second})
	bare := bundleAcks(leased, queue.Completed)
	bare[0].LeaseID = ""
	// The holder's lease counts before those that the caller names.
	transact(t, e, queue.Bundle{Acks: bare, Leases: []string{"other"}})

	leased = pop(t, e, queue.PopRequest{Queue: "q", Batch: 1, Lease: 10 * time.Second})
	expect(t, "the next", ids(leased), []string{"2"})
	bare = bundleAcks(leased, queue.Completed)
	bare[0].LeaseID = ""
	advance(t, e, 11*time.Second)
	var rejected *queue.RejectedError
	if _, err := e.Transact(t.Context(), queue.Bundle{Acks: bare, Leases: []string{leased.LeaseID, "", leased.LeaseID}}); !errors.As(err, &rejected) || !errors.Is(err, queue.ErrLease) {
		t.Errorf("under an expired lease: %v", err)
	}
	// Two different ones name none: the ack is made without a lease.
	transact(t, e, queue.Bundle{Acks: bare, Leases: []string{leased.LeaseID, "other"}})
	expect(t, "the last", ids(pop(t, e, queue.PopRequest{Queue: "q"})), []string{"3"})
}

// TestTransactionNacks charges the retry budget and files dead letters.
func TestTransactionNacks(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"))
	for range 3 {
		leased := pop(t, e, queue.PopRequest{Queue: "q"})
		expect(t, "delivered", ids(leased), []string{"1", "2"})
		out := transact(t, e, queue.Bundle{Acks: bundleAcks(leased, queue.Nack)[:1]})
		expect(t, "a nack", out.Acked[0], queue.AckResult{LeaseReleased: true})
	}
	leased := pop(t, e, queue.PopRequest{Queue: "q"})
	acks := bundleAcks(leased, queue.Nack)
	acks[1].Status = queue.DeadLetter
	acks[1].LeaseID = "" // another unit of the same cursor: it goes on from the first
	out := transact(t, e, queue.Bundle{Acks: acks, Push: []queue.PushItem{item("failed", "", "1")}})
	expect(t, "the fourth", out.Acked, []queue.AckResult{{LeaseReleased: true, DeadLettered: true}, {DeadLettered: true}})
	expect(t, "what is left", len(ids(pop(t, e, queue.PopRequest{Queue: "q"}))), 0)
	detail, err := e.Queue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "dead letters", detail.Messages.DeadLetter, int64(2))
}

// TestTransactionWakesParkedPops lets a pop of another broker wait for what a transaction pushes.
func TestTransactionWakesParkedPops(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	var wait sync.WaitGroup
	for _, at := range []*queue.Engine{e, other} {
		wait.Go(func() {
			r, err := at.Pop(t.Context(), queue.PopRequest{Queue: "q", Batch: 1, Wait: 30 * time.Second, Group: fmt.Sprintf("%p", at)})
			if err != nil || len(ids(r)) != 1 {
				t.Errorf("%v, %v", ids(r), err)
			}
		})
	}
	waitFor(t, "both to wait", func() bool { return e.Parked() == 1 && other.Parked() == 1 })
	transact(t, e, queue.Bundle{Push: []queue.PushItem{item("q", "p", "1")}})
	wait.Wait()
}

// TestTransactionsRaceWhileBackendsDie runs transactions and pushes of the same ids at two brokers while
// the database kills their connections. A transaction is there as a whole or not at all, once, and as it
// was answered.
func TestTransactionsRaceWhileBackendsDie(t *testing.T) {
	t.Parallel()
	const distinct, writers, rounds = 150, 6, 50
	url := pgtest.URL(t)
	brokers := []*queue.Engine{
		broker(t, url, queue.Config{}),
		broker(t, url, queue.Config{DedupCacheBytes: 1}), // evicts every lane after every flush
	}
	var committed, duplicates, unknown, unavailable atomic.Int64
	var mu sync.Mutex
	sure := map[string]bool{}
	stop := make(chan struct{})
	var killer, wait sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(40 * time.Millisecond):
				pgtest.KillBackends(t, url)
			}
		}
	})
	for w := range writers {
		e := brokers[w%2]
		wait.Go(func() {
			for r := range rounds {
				id := fmt.Sprint(rand.IntN(distinct))
				if r%5 == 4 {
					push(t, e, item("noise", "p", id), item("a", "p"+id[:1], "pushed-"+id))
					continue
				}
				_, err := e.Transact(t.Context(), queue.Bundle{Push: []queue.PushItem{
					item("a", "p"+id[:1], id), item("b", "p"+id[:1], id), item("c", "all", id),
				}})
				var duplicate *queue.DuplicateError
				switch {
				case err == nil:
					committed.Add(1)
				case errors.As(err, &duplicate):
					duplicates.Add(1)
				case errors.Is(err, queue.ErrOutcomeUnknown):
					unknown.Add(1)
					continue
				case errors.Is(err, queue.ErrUnavailable):
					unavailable.Add(1)
					continue
				default:
					t.Errorf("transaction of %s: %v", id, err)
					continue
				}
				mu.Lock()
				sure[id] = true
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	close(stop)
	killer.Wait()
	t.Logf("%d committed, %d duplicates, %d unknown, %d unavailable; %d commits lost their answer, %d of them had happened",
		committed.Load(), duplicates.Load(), unknown.Load(), unavailable.Load(),
		brokers[0].UnknownCommits()+brokers[1].UnknownCommits(), brokers[0].UnknownLanded()+brokers[1].UnknownLanded())

	reader := broker(t, url, queue.Config{})
	found := map[string]map[string]int{}
	for _, q := range []string{"a", "b", "c"} {
		found[q] = map[string]int{}
		for key, stored := range stored(t, reader, q) {
			_, id, _ := strings.Cut(key, "/")
			found[q][id] += len(stored)
		}
	}
	for id := range distinct {
		id := fmt.Sprint(id)
		a, b, c := found["a"][id], found["b"][id], found["c"][id]
		if a != b || b != c || a > 1 {
			t.Errorf("%s is %d, %d and %d times there", id, a, b, c)
		}
		if sure[id] && a == 0 {
			t.Errorf("%s was committed and is not there", id)
		}
	}
	if committed.Load() == 0 || duplicates.Load() == 0 {
		t.Error("the run proves nothing")
	}
}

// TestTransactionsLoseTheirCommit loses the connection at the commit, once before and once after it
// happened. Either way the bundle is committed once, and answered as that.
func TestTransactionsLoseTheirCommit(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	proxy := pgtest.NewProxy(t, url)
	e := broker(t, proxy.URL(), queue.Config{})
	push(t, e, item("in", "p", "1"), item("in", "p", "2"), item("in", "p", "3"), item("in", "p", "4"))
	move := func(id string, also func(context.Context, pgx.Tx) error) queue.Outcome {
		leased := pop(t, e, queue.PopRequest{Queue: "in", Batch: 1})
		expect(t, "leased", ids(leased), []string{id})
		return transact(t, e, queue.Bundle{Push: []queue.PushItem{item("out", "p", id)}, Acks: bundleAcks(leased, queue.Completed), Also: also})
	}
	ran := 0
	count := func(context.Context, pgx.Tx) error { ran++; return nil }

	proxy.LoseAnswer()
	first := move("1", count)
	expect(t, "commits without an answer that had happened", e.UnknownLanded(), 1)
	expect(t, "runs of the step", ran, 1)
	proxy.LoseCommit()
	second := move("2", count)
	expect(t, "commits without an answer", e.UnknownCommits(), 2)
	expect(t, "commits without an answer that had happened", e.UnknownLanded(), 1)
	expect(t, "runs of the step", ran, 3)
	out := pop(t, broker(t, url, queue.Config{}), queue.PopRequest{Queue: "out"})
	expect(t, "out", ids(out), []string{"1", "2"})
	for i, r := range []queue.Outcome{first, second} {
		expect(t, "the id answered", r.Pushed[0].MessageID, out.Partitions[0].Messages[i].ID)
	}
	// Without pushes as well.
	proxy.LoseAnswer()
	transact(t, e, queue.Bundle{Acks: bundleAcks(pop(t, e, queue.PopRequest{Queue: "in", Batch: 1}), queue.Completed)})
	expect(t, "what is left", ids(pop(t, e, queue.PopRequest{Queue: "in"})), []string{"4"})
}

// TestTransactionDoesNotOvertakeTheSpool refuses a transaction while what was accepted before it is on
// disk only, and commits it afterwards behind it.
func TestTransactionDoesNotOvertakeTheSpool(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	buffer := openSpool(t, t.TempDir())
	e := broker(t, server.URL(), queue.Config{StatementTimeout: time.Second, Spool: buffer})
	push(t, e, item("q", "p", "1"))
	if err := server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a push to be buffered", func() bool { return push(t, e, item("q", "p", "2"))[0].Status == queue.Buffered })
	bundle := queue.Bundle{Push: []queue.PushItem{item("q", "p", "3")}}
	if _, err := e.Transact(t.Context(), bundle); !errors.Is(err, queue.ErrSpooled) || !errors.Is(err, queue.ErrUnavailable) || errors.Is(err, queue.ErrOutcomeUnknown) {
		t.Errorf("in the outage: %v", err)
	}
	expect(t, "pending", buffer.Stats().Pending, 1)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the transaction to be taken", func() bool {
		_, err := e.Transact(t.Context(), bundle)
		return err == nil
	})
	expect(t, "in order", ids(pop(t, e, queue.PopRequest{Queue: "q"})), []string{"1", "2", "3"})
}

// TestTransactionsAndPushesShareAShard runs both against one shard: neither starves.
func TestTransactionsAndPushesShareAShard(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{Shards: 1})
	push(t, e, item("q", "p", "warm"))
	stop := make(chan struct{})
	var pushes, transactions atomic.Int64
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("%d-%d", w, n)
				if w%2 == 0 {
					push(t, e, item("q", "p", id))
					pushes.Add(1)
				} else {
					transact(t, e, queue.Bundle{Push: []queue.PushItem{item("q", "p", id)}})
					transactions.Add(1)
				}
			}
		})
	}
	waitFor(t, "both to get on", func() bool { return pushes.Load() > 40 && transactions.Load() > 40 })
	close(stop)
	wait.Wait()
	expect(t, "stored", len(stored(t, e, "q")), 1+int(pushes.Load()+transactions.Load()))
}
