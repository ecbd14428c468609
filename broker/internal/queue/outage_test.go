package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/embedpg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// TestOutages takes PostgreSQL away in several ways. Nothing hangs, pushes answer Failed and the
// rest ErrUnavailable, and the broker recovers by itself with nothing lost and nothing twice.
func TestOutages(t *testing.T) {
	t.Parallel()
	outages := map[string]struct {
		begin, end func(context.Context, *embedpg.Server) error
	}{
		"stopped": {
			func(ctx context.Context, s *embedpg.Server) error { return s.Shutdown(ctx) },
			func(ctx context.Context, s *embedpg.Server) error { return s.Restart(ctx) },
		},
		"killed": {
			func(ctx context.Context, s *embedpg.Server) error { return s.Crash(ctx) },
			func(ctx context.Context, s *embedpg.Server) error { return s.Restart(ctx) },
		},
		"frozen": {
			func(_ context.Context, s *embedpg.Server) error { return s.Pause() },
			func(_ context.Context, s *embedpg.Server) error { return s.Resume() },
		},
	}
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const statement = 500 * time.Millisecond
			server := pgtest.StartServer(t, nil)
			pgtest.Migrate(t, server.URL())
			e := broker(t, server.URL(), queue.Config{StatementTimeout: statement})
			push(t, e, item("q", "p", "before"))
			leased := pop(t, e, queue.PopRequest{Queue: "q"})
			push(t, e, item("q", "p", "behind"))

			if err := outage.begin(t.Context(), server); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "the database to be gone", func() bool { // backends outlive a killed postmaster for a moment
				ctx, cancel := context.WithTimeout(t.Context(), statement)
				defer cancel()
				_, err := e.Ping(ctx)
				return err != nil
			})
			started := time.Now()
			expect(t, "a push meanwhile", push(t, e, item("q", "p", "meanwhile"))[0].Status, queue.Failed)
			expect(t, "a push to a new queue", push(t, e, item("other", "p", "meanwhile"))[0].Status, queue.Failed)
			if _, err := e.Pop(t.Context(), queue.PopRequest{Queue: "q", Batch: 1}); !errors.Is(err, queue.ErrUnavailable) {
				t.Errorf("a pop meanwhile: %v", err)
			}
			if _, err := e.Ack(t.Context(), "", []queue.AckItem{{TransactionID: "before", PartitionID: leased.Partitions[0].ID, LeaseID: leased.LeaseID}}); !errors.Is(err, queue.ErrUnavailable) {
				t.Errorf("an ack meanwhile: %v", err)
			}
			if took := time.Since(started); took > 40*statement {
				t.Errorf("the calls took %v", took)
			}
			if err := outage.end(t.Context(), server); err != nil {
				t.Fatal(err)
			}
			waitFor(t, "pushes to succeed again", func() bool {
				return push(t, e, item("q", "p", "after"))[0].Status != queue.Failed
			})
			var acked []queue.AckResult
			waitFor(t, "the ack to succeed", func() (ok bool) {
				var err error
				acked, err = e.Ack(t.Context(), "", []queue.AckItem{{TransactionID: "before", PartitionID: leased.Partitions[0].ID}})
				return err == nil
			})
			if acked[0].Err != nil {
				t.Errorf("the ack: %v", acked[0].Err)
			}
			got := ids(pop(t, e, queue.PopRequest{Queue: "q", AutoAck: true}))
			// A push that failed while the database was frozen may have been stored after all.
			if len(got) == 3 && got[1] == "meanwhile" {
				got = append(got[:1], got[2])
			}
			expect(t, "the log", got, []string{"behind", "after"})
		})
	}
}

// TestForeignLockFailsInTime holds a shard's row from outside: pushes answer in time, and work again afterwards.
func TestForeignLockFailsInTime(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{StatementTimeout: 300 * time.Millisecond, Shards: 1})
	push(t, e, item("q", "p", "1"))
	outsider := pgtest.Admin(t, url)
	tx, err := outsider.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from shard for update`); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	expect(t, "under a foreign lock", push(t, e, item("q", "p", "2"))[0].Status, queue.Failed)
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, "afterwards", push(t, e, item("q", "p", "3"))[0].Status, queue.Queued)
	expect(t, "the log", ids(pop(t, e, queue.PopRequest{Queue: "q"})), []string{"1", "3"})
}

// TestFrozenDatabaseHoldsNobodyUp lets many callers meet a database that has stopped answering. Each is
// answered within a few times the deadline of a statement, and what reaches the database when it goes
// on has no effect any more.
func TestFrozenDatabaseHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	const statement = 500 * time.Millisecond
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	e := broker(t, server.URL(), queue.Config{StatementTimeout: statement})
	lanes := make([]queue.PushItem, 64)
	for i := range lanes {
		lanes[i] = item("q", fmt.Sprint(i), "before")
	}
	push(t, e, lanes...)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	timed := func(what string, call func()) {
		wait.Go(func() {
			started := time.Now()
			call()
			if took := time.Since(started); took > 6*statement {
				t.Errorf("%s took %v", what, took)
			}
		})
	}
	for i := range lanes {
		lanes[i].TransactionID = "meanwhile"
	}
	for n := range 3 {
		timed("a push to all shards", func() { push(t, e, lanes...) })
		timed("a push to a new queue", func() { push(t, e, item(fmt.Sprint("new", n), "p", "1")) })
		timed("a pop of a new group", func() {
			if _, err := e.Pop(t.Context(), queue.PopRequest{Queue: "q", Group: fmt.Sprint("new", n), AutoAck: true}); !errors.Is(err, queue.ErrUnavailable) {
				t.Errorf("a pop of a new group: %v", err)
			}
		})
	}
	timed("a pop that acks by itself", func() {
		if _, err := e.Pop(t.Context(), queue.PopRequest{Queue: "q", AutoAck: true}); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("a pop that acks by itself: %v", err)
		}
	})
	wait.Wait()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	var popped queue.PopResult
	waitFor(t, "the database to answer", func() (ok bool) {
		var err error
		popped, err = e.Pop(t.Context(), queue.PopRequest{Queue: "q", Batch: 1000, AutoAck: true})
		return err == nil
	})
	for _, id := range ids(popped) {
		if id != "before" {
			t.Errorf("%q was answered as failed and is stored", id)
		}
	}
	expect(t, "what was there before the freeze", len(ids(popped)), len(lanes))
}
