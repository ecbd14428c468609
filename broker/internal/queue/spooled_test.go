package queue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/broker/internal/spool"
)

func openSpool(t testing.TB, dir string) *spool.Spool {
	t.Helper()
	s, err := spool.Open(spool.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func drained(s *spool.Spool) func() bool { return func() bool { return s.Stats().Pending == 0 } }

// TestPushesSurviveAnOutage pushes while PostgreSQL is away: every item is buffered, later ones for no
// more than the spool's fsync, and each is popped exactly once afterwards, in order, with the id answered.
func TestPushesSurviveAnOutage(t *testing.T) {
	t.Parallel()
	const producers, rounds = 6, 30
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	buffer := openSpool(t, t.TempDir())
	e := broker(t, server.URL(), queue.Config{StatementTimeout: time.Second, Spool: buffer})
	push(t, e, item("q", "0", "before"))

	answered := make([][]string, producers)
	outage, back := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	for p := range producers {
		wait.Go(func() {
			for n := range rounds {
				switch n {
				case rounds / 3:
					<-outage
				case 2 * rounds / 3:
					<-back
				}
				r := push(t, e, item("q", fmt.Sprint(p), fmt.Sprint(n)), item("new", fmt.Sprint(p), fmt.Sprint(n)))
				for _, r := range r {
					if r.Status != queue.Queued && r.Status != queue.Buffered {
						t.Errorf("round %d: %s", n, r.Status)
					}
					if n == rounds/2 && r.Status != queue.Buffered {
						t.Errorf("in the outage: %s", r.Status)
					}
				}
				answered[p] = append(answered[p], r[0].MessageID.String())
			}
		})
	}
	if err := server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(outage)
	waitFor(t, "pushes to be buffered", func() bool { return buffer.Stats().Pending >= producers*rounds/3 })
	started := time.Now()
	expect(t, "a push in the outage", push(t, e, item("late", "p", "1"), item("late", "p", "1"))[1].Status, queue.Buffered)
	if took := time.Since(started); took > time.Second {
		t.Errorf("a push in a known outage took %v", took)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(back)
	wait.Wait()
	waitFor(t, "the spool to be drained", drained(buffer))
	got := map[string][]string{}
	for _, p := range pop(t, e, queue.PopRequest{Queue: "q", Batch: 1000}).Partitions {
		for _, m := range p.Messages {
			if m.TransactionID != "before" {
				got[p.Name] = append(got[p.Name], m.ID.String())
			}
		}
	}
	for p := range producers {
		if !slices.Equal(got[fmt.Sprint(p)], answered[p]) {
			t.Errorf("partition %d holds %v, answered were %v", p, got[fmt.Sprint(p)], answered[p])
		}
	}
	expect(t, "a queue born in the outage", len(ids(pop(t, e, queue.PopRequest{Queue: "new", Batch: 1000}))), producers*rounds)
	expect(t, "one of two", len(ids(pop(t, e, queue.PopRequest{Queue: "late"}))), 1)
}

// TestReplayIsIdempotent replays the same records again and again, as after crashes between the commit
// and the mark in the spool: with deduplication off, and long after the window.
func TestReplayIsIdempotent(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	dir := t.TempDir()
	first := openSpool(t, filepath.Join(dir, "0"))
	e := broker(t, server.URL(), queue.Config{StatementTimeout: time.Second, Spool: first})
	options := queue.DefaultOptions()
	options.DedupWindow = 0
	must(e.Configure(t.Context(), "off", "", "", options))
	push(t, e, item("off", "p", "original"), item("on", "p", "original"))
	if err := server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want []uuid.UUID
	for _, q := range []string{"off", "on"} {
		for _, id := range []string{"original", "x", "y", "x"} {
			r := push(t, e, item(q, "p", id))[0]
			expect(t, "meanwhile", r.Status, queue.Buffered)
			want = append(want, r.MessageID)
		}
	}
	copies := []string{filepath.Join(dir, "1"), filepath.Join(dir, "2")}
	for _, c := range copies {
		if err := os.CopyFS(c, os.DirFS(filepath.Join(dir, "0"))); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the first replay", drained(first))
	advance(t, e, 3*time.Hour)
	for _, c := range copies {
		again := openSpool(t, c)
		if again.Stats().Pending == 0 {
			t.Fatal("the copy is empty")
		}
		broker(t, server.URL(), queue.Config{Spool: again})
		waitFor(t, "another replay", drained(again))
	}
	var got []uuid.UUID
	for _, q := range []string{"off", "on"} {
		for _, m := range pop(t, e, queue.PopRequest{Queue: q}).Partitions[0].Messages[1:] {
			got = append(got, m.ID)
		}
	}
	// With deduplication on, the original was there before and x twice in the spool.
	want = append(want[:4:4], want[5], want[6])
	expect(t, "what the log holds", got, want)
}

// TestSpooledGarbageIsPutAside drains what can be drained around a record that makes no sense.
func TestSpooledGarbageIsPutAside(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	dir := t.TempDir()
	buffer := openSpool(t, dir)
	for _, r := range []spool.Record{
		{Lane: "q\x00p", At: time.Now(), Data: []byte("no frame")},
		{Lane: "no lane", At: time.Now(), Data: queue.Frame(uuid.New(), "1", "{}")},
		{Lane: "q\x00p", At: time.Now(), Data: queue.Frame(uuid.New(), "2", "{}")},
	} {
		if err := buffer.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	e := broker(t, url, queue.Config{Spool: buffer})
	waitFor(t, "the spool to be drained", drained(buffer))
	expect(t, "put aside", buffer.Stats().Failed, 2)
	expect(t, "drained", ids(pop(t, e, queue.PopRequest{Queue: "q"})), []string{"2"})
}

// TestStopWhileDraining stops the broker in the middle of a drain. Nothing is lost and nothing hangs:
// another broker drains the rest.
func TestStopWhileDraining(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	dir := t.TempDir()
	buffer := openSpool(t, dir)
	const records = 20_000
	for n := 0; n < records; n += 1000 {
		var batch []spool.Record
		for i := range 1000 {
			batch = append(batch, spool.Record{Lane: fmt.Sprintf("q\x00%d", i%5), At: time.Now(), Data: queue.Frame(uuid.New(), fmt.Sprint(n+i), "{}")})
		}
		if err := buffer.Append(t.Context(), batch...); err != nil {
			t.Fatal(err)
		}
	}
	e := broker(t, url, queue.Config{Spool: buffer})
	waitFor(t, "the drain to be under way", func() bool { return buffer.Stats().Pending < records })
	e.Stop()
	if err := buffer.Close(); err != nil {
		t.Fatal(err)
	}
	rest := openSpool(t, dir)
	next := broker(t, url, queue.Config{Spool: rest})
	waitFor(t, "the rest to be drained", drained(rest))
	n := 0
	for {
		got := ids(pop(t, next, queue.PopRequest{Queue: "q", Batch: 10_000, AutoAck: true}))
		if n += len(got); len(got) == 0 {
			break
		}
	}
	expect(t, "messages", n, records)
}

// TestReplayJudgesByAcceptance replays repeated ids that were accepted inside and outside of the window,
// more of them than one batch of the drain holds.
func TestReplayJudgesByAcceptance(t *testing.T) {
	t.Parallel()
	const records = 2100
	url := pgtest.URL(t)
	setup := broker(t, url, queue.Config{})
	for name, window := range map[string]time.Duration{"off": 0, "short": 2 * time.Second} {
		options := queue.DefaultOptions()
		options.DedupWindow = window
		must(setup.Configure(t.Context(), name, "", "", options))
	}
	buffer := openSpool(t, t.TempDir())
	start := setup.Now().Add(-time.Hour)
	add := func(lane, id string, after time.Duration) {
		record := spool.Record{Lane: lane, At: start.Add(after), Data: queue.Frame(uuid.New(), id, fmt.Sprint(after.Milliseconds()))}
		if err := buffer.Append(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	payloads := func(e *queue.Engine, name string) (list []string) {
		for _, m := range pop(t, e, queue.PopRequest{Queue: name, Batch: 10_000}).Partitions[0].Messages {
			list = append(list, string(m.Payload))
		}
		return list
	}
	add("short\x00p", "t", 0)
	add("short\x00p", "t", 1900*time.Millisecond)
	for range records {
		add("off\x00p", "x", 0)
	}
	add("short\x00p", "t", 5*time.Second)
	add("short\x00p", "t", 6*time.Second)
	add("short\x00p", "t", 7*time.Second)
	push(t, setup, item("short", "p", "t")) // accepted an hour after all of these
	e := broker(t, url, queue.Config{Spool: buffer})
	waitFor(t, "the spool to be drained", drained(buffer))
	expect(t, "short window", payloads(e, "short"), []string{`{"tx":"t"}`, "0", "5000", "7000"})
	expect(t, "no deduplication", len(payloads(e, "off")), records)
}

// TestDrainGoesAroundWhatIsStuck locks a shard from outside: its records wait, the others do not, and
// nothing is put aside while a table is missing.
func TestDrainGoesAroundWhatIsStuck(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	setup := broker(t, url, queue.Config{})
	lanes := make([]queue.PushItem, 40)
	for i := range lanes {
		lanes[i] = item("q", fmt.Sprint(i), "before")
	}
	push(t, setup, lanes...)
	db := pgtest.Admin(t, url)
	buffer := openSpool(t, t.TempDir())
	for n := range 5000 {
		lane := "q\x00" + fmt.Sprint(n%len(lanes))
		if err := buffer.Append(t.Context(), spool.Record{Lane: lane, At: time.Now(), Data: queue.Frame(uuid.New(), fmt.Sprint(n), "1")}); err != nil {
			t.Fatal(err)
		}
	}
	var locked int
	if err := db.QueryRow(t.Context(), `select count(*) from partition where shard = 3`).Scan(&locked); err != nil {
		t.Fatal(err)
	}
	tx := must(db.Begin(t.Context()))
	if _, err := tx.Exec(t.Context(), `select from shard where id = 3 for update`); err != nil {
		t.Fatal(err)
	}
	broker(t, url, queue.Config{Spool: buffer, StatementTimeout: 500 * time.Millisecond})
	stuck := 5000 / len(lanes) * locked
	waitFor(t, "all but the locked shard to be drained", func() bool { return buffer.Stats().Pending == stuck })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the rest to be drained", drained(buffer))

	if _, err := db.Exec(t.Context(), `alter table segment rename to segment_gone`); err != nil {
		t.Fatal(err)
	}
	if err := buffer.Append(t.Context(), spool.Record{Lane: "new\x00p", At: time.Now(), Data: queue.Frame(uuid.New(), "1", "1")}); err != nil {
		t.Fatal(err)
	}
	late := broker(t, url, queue.Config{Spool: buffer})
	waitFor(t, "the drain to meet the missing table", func() bool { return late.FailedFlushes() > 0 })
	expect(t, "put aside", buffer.Stats().Failed, 0)
	if _, err := db.Exec(t.Context(), `alter table segment_gone rename to segment`); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the drain after the table is back", drained(buffer))
	expect(t, "the record", len(ids(pop(t, late, queue.PopRequest{Queue: "new"}))), 1)
}
