package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// listed returns the messages of a filter, all of them unless it has a limit.
func listed(t testing.TB, e *queue.Engine, f queue.MessageFilter) []queue.StoredMessage {
	t.Helper()
	if f.Limit == 0 {
		f.Limit = 1000
	}
	page, err := e.Messages(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return page.Messages
}

// names spells messages as partition/transaction id.
func names(messages []queue.StoredMessage) []string {
	list := []string{}
	for _, m := range messages {
		list = append(list, m.Partition+"/"+m.TransactionID)
	}
	return list
}

func message(t testing.TB, e *queue.Engine, partition uuid.UUID, txID string) queue.MessageDetail {
	t.Helper()
	m, err := e.Message(t.Context(), partition, txID)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMessagesAreListedNewestFirst merges partitions, and pages through them.
func TestMessagesAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	var want []string
	for i := range 30 {
		partition := fmt.Sprint("p", i%4)
		push(t, e, item("q.a", partition, fmt.Sprint(2*i)), item("q.a", partition, fmt.Sprint(2*i+1)))
		want = append([]string{fmt.Sprint(partition, "/", 2*i+1), fmt.Sprint(partition, "/", 2*i)}, want...)
		advance(t, e, time.Second)
	}
	push(t, e, item("other", "p0", "x"))
	all := listed(t, e, queue.MessageFilter{Queue: "q.a"})
	expect(t, "order", names(all), want)
	m := all[0]
	expect(t, "names", fmt.Sprint(m.Queue, m.Namespace, m.Task, m.Status), "q.aqapending")
	expect(t, "payload", string(m.Payload), `{"tx":"59"}`)
	popped := pop(t, e, queue.PopRequest{Queue: "q.a", Partition: m.Partition, Group: "g"})
	last := popped.Partitions[0].Messages[len(popped.Partitions[0].Messages)-1]
	expect(t, "identity", fmt.Sprint(m.ID, m.PartitionID, m.CreatedAt), fmt.Sprint(last.ID, popped.Partitions[0].ID, last.CreatedAt))

	for _, limit := range []int{1, 7, 59, 60, 61} {
		var paged []string
		for {
			page := listed(t, e, queue.MessageFilter{Queue: "q.a", Limit: limit, Offset: len(paged)})
			if len(page) == 0 {
				break
			}
			paged = append(paged, names(page)...)
		}
		expect(t, fmt.Sprint("pages of ", limit), paged, want)
	}
	expect(t, "one partition", len(listed(t, e, queue.MessageFilter{Partition: "p0"})), 17)
	expect(t, "a namespace", len(listed(t, e, queue.MessageFilter{Namespace: "q", Partition: "p0"})), 16)
	expect(t, "another task", len(listed(t, e, queue.MessageFilter{Namespace: "q", Task: "b"})), 0)
	expect(t, "an unknown queue", len(listed(t, e, queue.MessageFilter{Queue: "nobody"})), 0)
}

// TestMessagesByTime bounds the list by times of creation, also where the log has holes and long before its end.
func TestMessagesByTime(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	var at []time.Time
	for i := range 40 {
		push(t, e, item("q", "p", fmt.Sprint(i)))
		at = append(at, listed(t, e, queue.MessageFilter{Limit: 1})[0].CreatedAt)
		advance(t, e, time.Minute)
	}
	gone := map[int]bool{13: true, 14: true, 20: true}
	for i := range gone {
		if _, err := pgtest.Admin(t, url).Exec(t.Context(), `delete from segment where base = $1`, i); err != nil {
			t.Fatal(err)
		}
	}
	for from := 0; from < 40; from += 3 {
		for to := from; to < 40; to++ {
			want := []string{}
			for i := to; i >= from; i-- {
				if !gone[i] {
					want = append(want, fmt.Sprint("p/", i))
				}
			}
			expect(t, fmt.Sprintf("from %d to %d", from, to), names(listed(t, e, queue.MessageFilter{From: at[from], To: at[to]})), want)
		}
	}
	expect(t, "before the first", len(listed(t, e, queue.MessageFilter{To: at[0].Add(-time.Microsecond)})), 0)
	expect(t, "after the last", len(listed(t, e, queue.MessageFilter{From: at[39].Add(time.Microsecond)})), 0)

	// What retention emptied is not there.
	if _, err := pgtest.Admin(t, url).Exec(t.Context(), `update segment set frames = null where base < 30`); err != nil {
		t.Fatal(err)
	}
	fresh := broker(t, url, queue.Config{})
	expect(t, "after retention", len(listed(t, fresh, queue.MessageFilter{})), 10)
}

// TestMessageStatuses follows messages through what consumers do.
func TestMessageStatuses(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	for i := range 6 {
		push(t, e, item("q", "p", fmt.Sprint(i)))
	}
	spell := func() string {
		var b strings.Builder
		for _, m := range listed(t, e, queue.MessageFilter{Queue: "q"}) {
			b.WriteString(m.TransactionID + string(m.Status[0:2]))
			if (m.Status == queue.StatusProcessing) == m.LeaseUntil.IsZero() {
				b.WriteString("!")
			}
			b.WriteString(" ")
		}
		return strings.TrimSpace(b.String())
	}
	expect(t, "nobody consumes", spell(), "5pe 4pe 3pe 2pe 1pe 0pe")
	batch := pop(t, e, queue.PopRequest{Queue: "q", Group: "a", Batch: 4})
	expect(t, "leased", spell(), "5pe 4pe 3pr 2pr 1pr 0pr")
	ack(t, e, "a", queue.AckItem{TransactionID: "0", PartitionID: batch.Partitions[0].ID, LeaseID: batch.LeaseID})
	expect(t, "one completed", spell(), "5pe 4pe 3pr 2pr 1pr 0co")
	pop(t, e, queue.PopRequest{Queue: "q", Group: "b", Batch: 1, AutoAck: true})
	expect(t, "by both groups", spell(), "5pe 4pe 3pr 2pr 1pr 0co")
	pop(t, e, queue.PopRequest{Queue: "q", Group: "c", FromNew: true})
	expect(t, "a third that wants none of it", spell(), "5pe 4pe 3pr 2pr 1pr 0co")
	ack(t, e, "a", queue.AckItem{TransactionID: "1", PartitionID: batch.Partitions[0].ID, LeaseID: batch.LeaseID, Status: queue.DeadLetter})
	expect(t, "one filed, the lease released", spell(), "5pe 4pe 3pe 2pe 1de 0co")
	pop(t, e, queue.PopRequest{Queue: "q", Group: "b", Batch: 10, AutoAck: true})
	pop(t, e, queue.PopRequest{Queue: "q", Group: "a", Batch: 2, Lease: time.Minute})
	expect(t, "a lease of the slowest", spell(), "5pe 4pe 3pr 2pr 1de 0co")
	advance(t, e, 2*time.Minute)
	expect(t, "expired", spell(), "5pe 4pe 3pe 2pe 1de 0co")

	page, err := e.Messages(t.Context(), queue.MessageFilter{Queue: "q", Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "mode", fmt.Sprint(page.QueueMode, page.Groups), "false 3")
	pop(t, e, queue.PopRequest{Queue: "q"})
	if page, err = e.Messages(t.Context(), queue.MessageFilter{Queue: "q", Limit: 1}); err != nil {
		t.Fatal(err)
	}
	expect(t, "mode", fmt.Sprint(page.QueueMode, page.Groups), "true 3")
}

// TestStatusFiltersAgree compares each filtered list, paged, with the whole list, in many random states.
func TestStatusFiltersAgree(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	random := rand.New(rand.NewPCG(7, 7))
	next := 0
	for round := range 25 {
		for range 4 {
			var items []queue.PushItem
			for range 1 + random.IntN(5) {
				items = append(items, item("q", fmt.Sprint("p", random.IntN(3)), fmt.Sprint(next)))
				next++
			}
			push(t, e, items...)
			advance(t, e, time.Millisecond)
		}
		for _, group := range []string{"a", "b", ""} {
			r := queue.PopRequest{Queue: "q", Group: group, Batch: 1 + random.IntN(12), Partitions: random.IntN(3), Lease: time.Hour}
			popped := pop(t, e, r)
			for _, p := range popped.Partitions {
				m := p.Messages[random.IntN(len(p.Messages))]
				status := []queue.AckStatus{queue.Completed, queue.DeadLetter, queue.Nack, queue.Completed}[random.IntN(4)]
				if random.IntN(4) > 0 {
					ack(t, e, popped.Group, queue.AckItem{TransactionID: m.TransactionID, PartitionID: p.ID, Status: status, LeaseID: popped.LeaseID})
				}
			}
		}
		all := listed(t, e, queue.MessageFilter{Queue: "q"})
		expect(t, "all", len(all), next)
		seen := 0
		for _, status := range []queue.MessageStatus{queue.StatusPending, queue.StatusProcessing, queue.StatusCompleted, queue.StatusDeadLetter} {
			var want []queue.StoredMessage
			for _, m := range all {
				if m.Status == status {
					want = append(want, m)
				}
			}
			seen += len(want)
			var got []queue.StoredMessage
			for {
				page := listed(t, e, queue.MessageFilter{Queue: "q", Status: status, Limit: 7, Offset: len(got)})
				if len(page) == 0 {
					break
				}
				got = append(got, page...)
			}
			expect(t, fmt.Sprint("round ", round, ": ", status), names(got), names(want))
			for i := range got {
				expect(t, "message", fmt.Sprint(got[i]), fmt.Sprint(want[i]))
			}
		}
		expect(t, "statuses", seen, len(all))
	}
}

// TestMessageIsFound inspects messages: in the window, behind it while somebody has to pass them, and dead letters.
func TestMessageIsFound(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{0, 3} { // 3: nearly all hashes collide
		e := broker(t, pgtest.URL(t), queue.Config{HashBits: bits})
		if _, err := e.Configure(t.Context(), "q", "", "", queue.Options{LeaseTime: time.Minute, RetryLimit: 1, DeadLetterQueue: true}); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			push(t, e, item("q", "p", fmt.Sprint(i%15))) // the last five again: there is no deduplication
		}
		id := listed(t, e, queue.MessageFilter{Limit: 1})[0].PartitionID
		first := message(t, e, id, "7")
		expect(t, "payload", string(first.Payload), `{"tx":"7"}`)
		expect(t, "the newest of two", message(t, e, id, "3").ID, listed(t, e, queue.MessageFilter{Limit: 2})[1].ID)
		for _, unknown := range []string{"15", "", "seven"} {
			if _, err := e.Message(t.Context(), id, unknown); !errors.Is(err, queue.ErrMessageNotFound) {
				t.Errorf("%q: %v", unknown, err)
			}
		}
		if _, err := e.Message(t.Context(), uuid.New(), "7"); !errors.Is(err, queue.ErrMessageNotFound) {
			t.Errorf("in no partition: %v", err)
		}
		batch := pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Batch: 1})
		ackAll(t, e, batch, queue.Nack)
		expect(t, "charged", message(t, e, id, "0").Retries, 0) // the newest with that id comes later
		batch = pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Batch: 6})
		ack(t, e, "g", queue.AckItem{TransactionID: "5", PartitionID: id, LeaseID: batch.LeaseID, Status: queue.Nack, Error: "broken"})
		m := message(t, e, id, "5")
		expect(t, "filed", fmt.Sprint(m.Status, m.Dead, m.Error, m.Retries), "dead_lettertruebroken1")
		expect(t, "group", fmt.Sprint(m.Groups), "[{g true 0001-01-01 00:00:00 +0000 UTC}]")
		batch = pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Batch: 2})
		ackAll(t, e, batch, queue.Nack)
		batch = pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Batch: 2})
		m = message(t, e, id, "7")
		expect(t, "leased", fmt.Sprint(m.Status, m.Groups[0].Consumed, m.Groups[0].LeaseUntil.IsZero(), m.LeaseUntil.IsZero(), m.Options.RetryLimit), "processingfalse false false 1")
		expect(t, "at the cursor", message(t, e, id, "6").Retries, 1)
		ackAll(t, e, batch, queue.Completed)

		advance(t, e, time.Hour)
		expect(t, "not passed yet", message(t, e, id, "9").Status, queue.StatusPending)
		expect(t, "a dead letter", message(t, e, id, "5").Status, queue.StatusDeadLetter)
		if _, err := e.Message(t.Context(), id, "7"); !errors.Is(err, queue.ErrMessageNotFound) {
			t.Errorf("after the window: %v", err)
		}
	}
}

// TestDeadLettersOutliveTheLog lists and inspects them when the messages are gone.
func TestDeadLettersOutliveTheLog(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"))
	for _, group := range []string{"a", "b"} {
		batch := pop(t, e, queue.PopRequest{Queue: "q", Group: group, Batch: 1})
		ackAll(t, e, batch, queue.DeadLetter)
		advance(t, e, time.Second)
	}
	if _, err := pgtest.Admin(t, url).Exec(t.Context(), `update segment set frames = null`); err != nil {
		t.Fatal(err)
	}
	fresh := broker(t, url, queue.Config{})
	letters, err := fresh.DeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "q"}, 10, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "letters", fmt.Sprint(letters.Total, letters.Entries[0].Group, letters.Entries[1].Group, string(letters.Entries[0].Payload)), `2ba{"tx":"1"}`)
	expect(t, "of the log", len(listed(t, fresh, queue.MessageFilter{})), 0)
	dead := listed(t, fresh, queue.MessageFilter{Status: queue.StatusDeadLetter})
	expect(t, "as messages", names(dead), []string{"p/1"})
	m := message(t, fresh, dead[0].PartitionID, "1")
	expect(t, "inspected", fmt.Sprint(m.Status, m.Error, string(m.Payload), len(m.Groups)), `dead_lettertold so{"tx":"1"}2`)
	if _, err := fresh.Message(t.Context(), dead[0].PartitionID, "2"); !errors.Is(err, queue.ErrMessageNotFound) {
		t.Errorf("a message that retention removed: %v", err)
	}
}

// bury files n messages of a partition as dead letters, a second apart.
func bury(t testing.TB, e *queue.Engine, name, partition, group string, n int) {
	t.Helper()
	for range n {
		batch := pop(t, e, queue.PopRequest{Queue: name, Partition: partition, Group: group, Batch: 1})
		ackAll(t, e, batch, queue.DeadLetter)
		advance(t, e, time.Second)
	}
}

func letters(t testing.TB, e *queue.Engine, f queue.DeadLetterFilter) []string {
	t.Helper()
	page, err := e.DeadLetters(t.Context(), f, 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, d := range page.Entries {
		list = append(list, fmt.Sprint(d.Queue, d.Partition, d.TransactionID, d.Group))
	}
	expect(t, "total", page.Total, len(list))
	return list
}

// TestDeadLetterFilters lists and purges by each filter.
func TestDeadLetterFilters(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	for _, q := range []string{"q", "r"} {
		for _, p := range []string{"a", "b"} {
			push(t, e, item(q, p, "1"), item(q, p, "2"))
			bury(t, e, q, p, "g", 2)
			bury(t, e, q, p, "h", 1)
		}
	}
	expect(t, "all", letters(t, e, queue.DeadLetterFilter{}),
		[]string{"rb1h", "rb2g", "rb1g", "ra1h", "ra2g", "ra1g", "qb1h", "qb2g", "qb1g", "qa1h", "qa2g", "qa1g"})
	expect(t, "queue", letters(t, e, queue.DeadLetterFilter{Queue: "q"}), []string{"qb1h", "qb2g", "qb1g", "qa1h", "qa2g", "qa1g"})
	expect(t, "partition", letters(t, e, queue.DeadLetterFilter{Partition: "a"}), []string{"ra1h", "ra2g", "ra1g", "qa1h", "qa2g", "qa1g"})
	expect(t, "group", letters(t, e, queue.DeadLetterFilter{Queue: "q", Group: "h"}), []string{"qb1h", "qa1h"})
	page, err := e.DeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "q"}, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "page", fmt.Sprint(page.Entries[0].TransactionID, page.Entries[1].TransactionID, len(page.Entries), page.Total), "212 6")
	from, to := page.Entries[1].FailedAt, page.Entries[0].FailedAt
	expect(t, "time", letters(t, e, queue.DeadLetterFilter{From: from, To: to}), []string{"qb2g", "qb1g"})

	purge := func(f queue.DeadLetterFilter, limit int) string {
		t.Helper()
		deleted, remaining, err := e.PurgeDeadLetters(t.Context(), f, limit)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(deleted, remaining)
	}
	expect(t, "one of a group", purge(queue.DeadLetterFilter{Queue: "q", Group: "g"}, 1), "1 3")
	expect(t, "the oldest went", letters(t, e, queue.DeadLetterFilter{Queue: "q", Group: "g"}), []string{"qb2g", "qb1g", "qa2g"})
	expect(t, "by time", purge(queue.DeadLetterFilter{Queue: "q", From: from, To: to}, 10), "2 0")
	expect(t, "the rest", purge(queue.DeadLetterFilter{Queue: "q"}, 10), "3 0")
	expect(t, "none", purge(queue.DeadLetterFilter{Queue: "q"}, 10), "0 0")
	expect(t, "the other queue", len(letters(t, e, queue.DeadLetterFilter{})), 6)
	if _, _, err := e.PurgeDeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "s"}, 10); !errors.Is(err, queue.ErrQueueNotFound) {
		t.Errorf("an unknown queue: %v", err)
	}

	at := page.Entries[0].PartitionID
	if err := e.DeleteDeadLetter(t.Context(), at, "1"); !errors.Is(err, queue.ErrMessageNotFound) {
		t.Errorf("a message that is no dead letter any more: %v", err)
	}
	r, err := e.DeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "r", Partition: "a"}, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteDeadLetter(t.Context(), r.Entries[0].PartitionID, "1"); err != nil {
		t.Fatal(err)
	}
	expect(t, "of both groups", letters(t, e, queue.DeadLetterFilter{Queue: "r", Partition: "a"}), []string{"ra2g"})
	if _, err := e.DeleteQueue(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	expect(t, "with the queue", letters(t, e, queue.DeadLetterFilter{}), []string{})
}

// TestListingsWithoutDatabase are errors, never empty answers.
func TestListingsWithoutDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	e := broker(t, server.URL(), queue.Config{StatementTimeout: time.Second})
	push(t, e, item("q", "p", "1"))
	id := listed(t, e, queue.MessageFilter{})[0].PartitionID
	if err := server.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the database to be gone", func() bool { // backends outlive a killed postmaster for a moment
		_, err := e.Ping(t.Context())
		return err != nil
	})
	for what, call := range map[string]func(context.Context) error{
		"list": func(ctx context.Context) error { _, err := e.Messages(ctx, queue.MessageFilter{Limit: 1}); return err },
		"dead": func(ctx context.Context) error {
			_, err := e.Messages(ctx, queue.MessageFilter{Limit: 1, Status: queue.StatusDeadLetter})
			return err
		},
		"inspect": func(ctx context.Context) error { _, err := e.Message(ctx, id, "1"); return err },
		"letters": func(ctx context.Context) error {
			_, err := e.DeadLetters(ctx, queue.DeadLetterFilter{}, 1, 0)
			return err
		},
		"delete one": func(ctx context.Context) error { return e.DeleteDeadLetter(ctx, id, "1") },
		"purge": func(ctx context.Context) error {
			_, _, err := e.PurgeDeadLetters(ctx, queue.DeadLetterFilter{Queue: "q"}, 1)
			return err
		},
	} {
		if err := call(t.Context()); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDeadLetterIsReplayedOnce replays one from many callers of two brokers at once.
func TestDeadLetterIsReplayedOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	brokers := []*queue.Engine{broker(t, url, queue.Config{}), broker(t, url, queue.Config{})}
	e := brokers[0]
	original := item("q", "p", "1")
	original.ProducerSub, original.TraceID = "me", uuid.New()
	push(t, e, original)
	for _, group := range []string{"a", "b"} {
		bury(t, e, "q", "p", group, 1)
	}
	id := listed(t, e, queue.MessageFilter{})[0].PartitionID
	type outcome struct {
		replayed queue.Replayed
		err      error
	}
	outcomes := make(chan outcome)
	for i := range 12 {
		go func() {
			replayed, err := brokers[i%2].RetryDeadLetter(t.Context(), id, "1")
			outcomes <- outcome{replayed, err}
		}()
	}
	var won []queue.Replayed
	for range 12 {
		o := <-outcomes
		switch {
		case o.err == nil:
			won = append(won, o.replayed)
		case !errors.Is(o.err, queue.ErrMessageNotFound):
			t.Errorf("a late replay: %v", o.err)
		}
	}
	expect(t, "replays", len(won), 1)
	expect(t, "names", won[0].Queue+won[0].Partition, "qp")
	expect(t, "dead letters", letters(t, e, queue.DeadLetterFilter{}), []string{})
	got := pop(t, e, queue.PopRequest{Queue: "q", Group: "a", Wait: 10 * time.Second}).Partitions[0].Messages
	expect(t, "delivered again", len(got), 1)
	expect(t, "as", fmt.Sprint(got[0].ID, got[0].TransactionID, got[0].ProducerSub, got[0].TraceID, string(got[0].Payload)),
		fmt.Sprint(won[0].Result.MessageID, won[0].Result.TransactionID, "me", original.TraceID, `{"tx":"1"}`))
	expect(t, "fresh", won[0].Result.TransactionID, won[0].Result.MessageID.String())
	if _, err := e.RetryDeadLetter(t.Context(), uuid.New(), "1"); !errors.Is(err, queue.ErrMessageNotFound) {
		t.Errorf("in no partition: %v", err)
	}
}

// TestDeadLettersAreReplayedInBulk by several callers at once: each message once, in the order of its partition.
func TestDeadLettersAreReplayedInBulk(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	brokers := []*queue.Engine{broker(t, url, queue.Config{}), broker(t, url, queue.Config{})}
	e := brokers[0]
	const each = 6
	for _, p := range []string{"a", "b"} {
		for i := range each {
			push(t, e, item("q", p, fmt.Sprint(i)))
		}
		bury(t, e, "q", p, "g", each)
		bury(t, e, "q", p, "h", 2)
	}
	push(t, e, item("r", "a", "1"))
	bury(t, e, "r", "a", "g", 1)
	replay := func(at *queue.Engine, f queue.DeadLetterFilter, limit int) string {
		t.Helper()
		done, err := at.ReplayDeadLetters(t.Context(), f, limit)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(done.Replayed, done.Remaining)
	}
	expect(t, "the first of both groups", replay(e, queue.DeadLetterFilter{Queue: "q"}, 1), "1 14")
	expect(t, "one of a group", replay(e, queue.DeadLetterFilter{Queue: "q", Group: "h", Partition: "b"}, 1), "1 1")
	expect(t, "none", replay(e, queue.DeadLetterFilter{Queue: "q", Partition: "c"}, 1), "0 0")
	if _, err := e.ReplayDeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "nobody"}, 1); !errors.Is(err, queue.ErrQueueNotFound) {
		t.Errorf("an unknown queue: %v", err)
	}
	done := make(chan int)
	for i := range 4 {
		go func() {
			n := 0
			for {
				r, err := brokers[i%2].ReplayDeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "q"}, 3)
				if err != nil {
					t.Error(err)
					break
				}
				if n += r.Replayed; r.Remaining == 0 {
					break
				}
			}
			done <- n
		}()
	}
	total := 0
	for range 4 {
		total += <-done
	}
	// Eleven are left of g, one of h in a whose message g filed too, and one of h in b likewise.
	expect(t, "replayed", total, 2*each-1)
	expect(t, "left", letters(t, e, queue.DeadLetterFilter{}), []string{"ra1g"})
	for p, extra := range map[string]int{"a": 0, "b": 1} {
		seen := map[string]int{}
		for n := 0; n < each+extra; { // what the other broker replayed comes a little later
			got := payloads(pop(t, e, queue.PopRequest{Queue: "q", Partition: p, Group: "g", Wait: 10 * time.Second, AutoAck: true}))
			if len(got) == 0 {
				break
			}
			for _, payload := range got {
				seen[payload]++
			}
			n += len(got)
		}
		expect(t, "payloads of "+p, len(seen), each)
		expect(t, "one of b was replayed for h alone before", seen[`{"tx":"0"}`], 1+extra)
	}
}

// TestReplayIsOfAQueueThatExists races replays with the deletion of the queue.
func TestReplayIsOfAQueueThatExists(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	for round := range 10 {
		name := fmt.Sprint("q", round)
		push(t, e, item(name, "p", "1"))
		bury(t, e, name, "p", "g", 1)
		id := listed(t, e, queue.MessageFilter{Queue: name})[0].PartitionID
		deleted := make(chan error, 1)
		go func() {
			_, err := other.DeleteQueue(t.Context(), name)
			deleted <- err
		}()
		_, err := e.RetryDeadLetter(t.Context(), id, "1")
		if err != nil && !errors.Is(err, queue.ErrMessageNotFound) {
			t.Errorf("replay: %v", err)
		}
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the deletion to be known", func() bool {
			_, err := e.RetryDeadLetter(t.Context(), id, "1")
			return errors.Is(err, queue.ErrMessageNotFound)
		})
		expect(t, "messages after the deletion", len(listed(t, e, queue.MessageFilter{Queue: name})), 0)
	}
}

// TestEncryptedMessagesAreShown decrypted, as they are stored without the key, and replayed only with it.
func TestEncryptedMessagesAreShown(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, keyless := broker(t, url, queue.Config{Keys: keys(t, "k1")}), broker(t, url, queue.Config{})
	encrypted(t, e, "q")
	push(t, e, secret("q", "p", "1"), secret("q", "p", "2"))
	want := string(secret("q", "p", "1").Payload)
	batch := pop(t, e, queue.PopRequest{Queue: "q", Group: "g", Batch: 1})
	ackAll(t, e, batch, queue.DeadLetter)
	id := batch.Partitions[0].ID
	for _, f := range []queue.MessageFilter{{Queue: "q", Offset: 1}, {Queue: "q", Status: queue.StatusDeadLetter}} {
		m := listed(t, e, f)[0]
		expect(t, "listed", fmt.Sprint(string(m.Payload), m.Sealed), want+"true")
		m = listed(t, keyless, f)[0]
		if strings.Contains(string(m.Payload), canary) || !strings.HasPrefix(string(m.Payload), `{"encrypted":`) {
			t.Errorf("listed without the key: %s", m.Payload)
		}
	}
	m := message(t, e, id, "1")
	expect(t, "inspected", fmt.Sprint(string(m.Payload), m.Sealed), want+"true")
	page, err := e.DeadLetters(t.Context(), queue.DeadLetterFilter{}, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "dead letter", string(page.Entries[0].Payload), want)

	var unreadable *queue.UnreadableError
	if _, err := keyless.RetryDeadLetter(t.Context(), id, "1"); !errors.As(err, &unreadable) {
		t.Errorf("a replay without the key: %v", err)
	}
	if _, err := keyless.ReplayDeadLetters(t.Context(), queue.DeadLetterFilter{Queue: "q"}, 1); !errors.As(err, &unreadable) {
		t.Errorf("a bulk replay without the key: %v", err)
	}
	expect(t, "still there", letters(t, e, queue.DeadLetterFilter{}), []string{"qp1g"})
	if _, err := e.RetryDeadLetter(t.Context(), id, "1"); err != nil {
		t.Fatal(err)
	}
	again := pop(t, e, queue.PopRequest{Queue: "q", Group: "g"})
	expect(t, "replayed", payloads(again), []string{string(secret("q", "p", "2").Payload), want})
	plain, all := plaintext(t, connect(t, url), "segment", "frames")
	expect(t, "segments in plaintext", fmt.Sprint(plain, " of ", all), "0 of 2")
}
