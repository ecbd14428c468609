package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/broker/internal/spool"
)

const day = 24 * time.Hour

// configured makes a queue whose options are the defaults but for a change.
func configured(t testing.TB, e *queue.Engine, name string, change func(o *queue.Options)) {
	t.Helper()
	options := queue.DefaultOptions()
	change(&options)
	if _, err := e.Configure(t.Context(), name, "", "", options); err != nil {
		t.Fatal(err)
	}
}

// keeps makes messages be kept for d.
func keeps(d time.Duration) func(o *queue.Options) {
	return func(o *queue.Options) { o.RetentionEnabled, o.Retention = true, d }
}

func counts(t testing.TB, e *queue.Engine, name string) queue.Counts {
	t.Helper()
	detail, err := e.Queue(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return detail.Messages
}

// follow waits until the other brokers have heard of an advance of the test clock.
func follow(t testing.TB, e *queue.Engine, others ...*queue.Engine) {
	t.Helper()
	for _, other := range others {
		waitFor(t, "the clocks to agree", func() bool { return other.ClockOffset() == e.ClockOffset() })
	}
}

// number asks the database for one.
func number(t testing.TB, db *pgx.Conn, sql string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// partitionID is the id of a queue's partition p, Nil when there is none.
func partitionID(t testing.TB, e *queue.Engine, name string) uuid.UUID {
	t.Helper()
	detail, err := e.Queue(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range detail.PartitionStats {
		if p.Name == "p" {
			return p.ID
		}
	}
	return uuid.Nil
}

// TestRetention removes what is old, consumed or not, and only where it is switched on.
func TestRetention(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	configured(t, e, "old", keeps(2*time.Hour))
	configured(t, e, "off", func(o *queue.Options) { o.Retention = 2 * time.Hour })
	for _, q := range []string{"old", "off"} {
		push(t, e, item(q, "p", "1"), item(q, "p", "2"))
		ackAll(t, e, pop(t, e, queue.PopRequest{Queue: q, Batch: 1}), queue.Completed)
	}
	advance(t, e, time.Hour)
	push(t, e, item("old", "p", "3"))
	advance(t, e, time.Hour-time.Minute)
	expect(t, "before its time", counts(t, e, "old"), queue.Counts{Total: 3, Pending: 2, Completed: 1})
	advance(t, e, 2*time.Minute)
	expect(t, "what is left", counts(t, e, "old"), queue.Counts{Total: 1, Pending: 1})
	expect(t, "kept elsewhere", counts(t, e, "off"), queue.Counts{Total: 2, Pending: 1, Completed: 1})
	expect(t, "the next message", ids(pop(t, e, queue.PopRequest{Queue: "old"})), []string{"3"})
	expect(t, "another group, from the beginning", ids(pop(t, e, queue.PopRequest{Queue: "old", Group: "g"})), []string{"3"})

	advance(t, e, 3*time.Hour)
	expect(t, "in the end", counts(t, e, "old"), queue.Counts{})
	expect(t, "nothing is left", len(ids(pop(t, e, queue.PopRequest{Queue: "old", Group: "h"}))), 0)
	push(t, e, item("old", "p", "4"))
	expect(t, "the partition goes on", ids(pop(t, e, queue.PopRequest{Queue: "old"})), []string{"4"})
	expect(t, "at the next offset", number(t, pgtest.Admin(t, url), `
select max(base) from segment join partition p on p.id = partition_id join queue q on q.id = queue_id where q.name = 'old'`), 3)
}

// TestRemovedMessagesStayDuplicates answers what cannot be read any more with the zero id, until its hash goes.
func TestRemovedMessagesStayDuplicates(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	configured(t, e, "q", func(o *queue.Options) {
		o.RetentionEnabled, o.Retention, o.DedupWindow = true, time.Minute, 2*time.Hour
	})
	original := push(t, e, item("q", "p", "x"))[0]
	expect(t, "an original", push(t, other, item("q", "p", "x"))[0].MessageID, original.MessageID)
	for range 3 {
		push(t, e, item("q", "p", ""))
	}
	advance(t, e, time.Hour)
	expect(t, "left", counts(t, e, "q").Total, int64(0))
	for name, b := range map[string]*queue.Engine{"the broker": e, "another": other, "a cold one": broker(t, url, queue.Config{})} {
		again := push(t, b, item("q", "p", "x"))[0]
		expect(t, name+"'s status", again.Status, queue.Duplicate)
		if name != "another" || again.MessageID != original.MessageID { // which may still have it in memory
			expect(t, name+"'s original", again.MessageID, uuid.Nil)
		}
	}
	advance(t, e, time.Hour+time.Minute)
	expect(t, "rows", number(t, pgtest.Admin(t, url), `select count(*) from segment`), 1)
	again := push(t, e, item("q", "p", "x"))[0]
	expect(t, "after the window", again.Status, queue.Queued)
	follow(t, e, other)
	expect(t, "delivered", ids(pop(t, other, queue.PopRequest{Queue: "q"})), []string{"x"})
}

// TestCompletedRetention keeps what a group has not passed, and everything of a queue without groups.
func TestCompletedRetention(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	for _, q := range []string{"q", "unread"} {
		configured(t, e, q, func(o *queue.Options) { o.RetentionEnabled, o.CompletedRetention = true, time.Hour })
		for n := range 4 {
			push(t, e, item(q, "p", fmt.Sprint(n)))
		}
	}
	consume := func(group string, n int) {
		ackAll(t, e, pop(t, e, queue.PopRequest{Queue: "q", Group: group, Batch: n}), queue.Completed)
	}
	consume("fast", 3)
	consume("slow", 1)
	advance(t, e, 59*time.Minute)
	expect(t, "before its time", counts(t, e, "q").Total, int64(4))
	advance(t, e, 2*time.Minute)
	expect(t, "behind the slow group", counts(t, e, "q").Total, int64(3))
	expect(t, "without a group", counts(t, e, "unread").Total, int64(4))
	consume("slow", 2)
	advance(t, e, time.Second)
	expect(t, "behind both", counts(t, e, "q").Total, int64(1))
	expect(t, "a group that starts now", ids(pop(t, e, queue.PopRequest{Queue: "q", Group: "late"})), []string{"3"})
	consume("fast", 1)
	consume("slow", 1)
	advance(t, e, time.Second)
	expect(t, "under the late group's lease", counts(t, e, "q").Total, int64(1))
}

// TestMaxWaitTime removes what is unconsumed and under a lease, also where retention is off.
func TestMaxWaitTime(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), queue.Config{})
	configured(t, e, "q", func(o *queue.Options) { o.MaxWaitTime, o.LeaseTime = time.Hour, 3*time.Hour })
	push(t, e, item("q", "p", "1"), item("q", "p", "2"))
	leased := pop(t, e, queue.PopRequest{Queue: "q", Batch: 2})
	push(t, e, item("q", "p", "3"))
	advance(t, e, time.Hour+10*time.Second)
	push(t, e, item("q", "p", "4"))
	expect(t, "left", counts(t, e, "q").Total, int64(1))
	expect(t, "under the lease", len(ids(pop(t, e, queue.PopRequest{Queue: "q"}))), 0)
	dead := ack(t, e, "", queue.AckItem{TransactionID: "1", PartitionID: leased.Partitions[0].ID, LeaseID: leased.LeaseID, Status: queue.DeadLetter})
	expect(t, "a dead letter without its payload", dead[0].Err, queue.ErrDLQRejected)
	for _, r := range ackAll(t, e, leased, queue.Completed) {
		expect(t, "an ack of what is gone", r.Err, nil)
	}
	expect(t, "what came later", ids(pop(t, e, queue.PopRequest{Queue: "q"})), []string{"4"})
}

// TestOffsetsGoOnEverywhere removes everything under brokers that know the partition, and under one that does not.
func TestOffsetsGoOnEverywhere(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	warm, evicting := broker(t, url, queue.Config{}), broker(t, url, queue.Config{DedupCacheBytes: 1})
	configured(t, warm, "q", keeps(time.Hour))
	brokers := []*queue.Engine{warm, evicting}
	var last time.Time
	for round := range 5 {
		brokers = append(brokers, broker(t, url, queue.Config{}))
		for i, b := range brokers {
			push(t, b, item("q", "p", fmt.Sprintf("%d-%d", round, i)))
		}
		r := pop(t, brokers[round], queue.PopRequest{Queue: "q", AutoAck: true})
		expect(t, "popped", len(ids(r)), len(brokers))
		for _, m := range r.Partitions[0].Messages {
			if m.CreatedAt.Before(last) {
				t.Fatalf("%v after %v", m.CreatedAt, last)
			}
			last = m.CreatedAt
		}
		advance(t, brokers[len(brokers)-1-round], 10*time.Hour)
		follow(t, brokers[len(brokers)-1-round], brokers...)
		expect(t, "left", counts(t, warm, "q").Total, int64(0))
	}
	db := pgtest.Admin(t, url)
	expect(t, "messages ever", number(t, db, `select max(base + count) from segment`), 3+4+5+6+7)
	expect(t, "rows that say where the partition goes on", number(t, db, `select count(*) from segment`), 1)
}

// TestCachesDoNotDeliverWhatIsGone lets one broker remove what another has in memory and on its ready list.
func TestCachesDoNotDeliverWhatIsGone(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	configured(t, e, "q", keeps(time.Hour))
	for n := range 20 {
		push(t, other, item("q", "p", fmt.Sprint(n)))
	}
	expect(t, "in memory", ids(pop(t, other, queue.PopRequest{Queue: "q", Group: "first", Batch: 1})), []string{"0"})
	advance(t, e, 2*time.Hour)
	follow(t, e, other)
	push(t, e, item("q", "p", "new"))
	expect(t, "at the other broker, for a group whose lease has ended", ids(pop(t, other, queue.PopRequest{Queue: "q", Group: "first", Batch: 1})), []string{"new"})
	expect(t, "for a new group", ids(pop(t, other, queue.PopRequest{Queue: "q", Batch: 1})), []string{"new"})
}

// TestHolesCostFewStatements pops one message behind thousands that are gone.
func TestHolesCostFewStatements(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{SegmentCacheBytes: 1})
	configured(t, e, "q", keeps(time.Hour))
	expect(t, "a group is known there", len(ids(pop(t, other, queue.PopRequest{Queue: "q"}))), 0)
	var items []queue.PushItem
	for n := range 5000 {
		items = append(items, item("q", "p", fmt.Sprint(n)))
	}
	push(t, e, items...)
	waitFor(t, "the other broker to see them", func() bool {
		return len(ids(pop(t, other, queue.PopRequest{Queue: "q", Group: "watch", Batch: 1, AutoAck: true}))) == 1
	})
	advance(t, e, 2*time.Hour)
	push(t, e, item("q", "p", "new"))
	before := other.ColdReads()
	expect(t, "behind the hole", ids(pop(t, other, queue.PopRequest{Queue: "q", Batch: 1})), []string{"new"})
	if n := other.ColdReads() - before; n > 5 {
		t.Errorf("a hole took %d reads", n)
	}
}

// TestRetentionInSmallSteps removes many segments of several partitions in steps smaller than any of them.
func TestRetentionInSmallSteps(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{RetentionBatch: 3})
	configured(t, e, "q", keeps(time.Hour))
	for n := range 10 {
		push(t, e, item("q", "a", fmt.Sprint(n)), item("q", "b", fmt.Sprint(n)), item("q", "c", fmt.Sprint(n)))
	}
	advance(t, e, time.Hour+10*time.Second)
	expect(t, "messages", counts(t, e, "q").Total, int64(0))
	push(t, e, item("q", "a", "0"))
	expect(t, "emptied rows, whose hashes are needed", number(t, pgtest.Admin(t, url), `select count(*) from segment where frames is null`), 30)
	advance(t, e, time.Hour)
	expect(t, "rows, one of each partition", number(t, pgtest.Admin(t, url), `select count(*) from segment`), 3)
}

// TestPartitionsAreCleanedUp removes a partition that is empty and idle, and only that.
func TestPartitionsAreCleanedUp(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	for _, q := range []string{"q", "dead"} {
		configured(t, e, q, keeps(day))
		push(t, e, item(q, "p", "1"))
	}
	configured(t, e, "kept", keeps(40*day))
	push(t, e, item("kept", "p", "1"))
	configured(t, e, "wide", func(o *queue.Options) { o.RetentionEnabled, o.Retention, o.DedupWindow = true, day, 60*day })
	push(t, e, item("wide", "p", "1"))
	expect(t, "popped elsewhere", len(ids(pop(t, other, queue.PopRequest{Queue: "q", AutoAck: true}))), 1)
	ackAll(t, e, pop(t, e, queue.PopRequest{Queue: "dead"}), queue.DeadLetter)
	before := partitionID(t, e, "q")
	db := pgtest.Admin(t, url)
	if _, err := db.Exec(t.Context(), `
with query as (
    insert into stream_query (uuid, name, source_queue, sink_queue, config_hash, created_at, updated_at)
    values (gen_random_uuid(), 's', 'q', '', '', clock_timestamp(), clock_timestamp()) returning id
)
insert into stream_state select query.id, uuid, 'key', '1', clock_timestamp() from query, partition`); err != nil {
		t.Fatal(err)
	}
	advance(t, e, 29*day)
	expect(t, "before 30 days", partitionID(t, e, "q"), before)
	advance(t, e, 2*day)
	expect(t, "after 30 days", partitionID(t, e, "q"), uuid.Nil)
	for _, q := range []string{"dead", "kept", "wide"} {
		if partitionID(t, e, q) == uuid.Nil {
			t.Errorf("the partition of %q is gone", q)
		}
	}
	expect(t, "inside the window", push(t, other, item("wide", "p", "1"))[0].Status, queue.Duplicate)

	expect(t, "what streams keep", number(t, db, `select count(*) from stream_state`), 3)
	expect(t, "rows of the partition", number(t, db, `
select (select count(*) from partition) + (select count(*) from segment where partition_id not in (select id from partition))
     + (select count(*) from cursor where partition_id not in (select id from partition))`), 3)
	gone := ack(t, e, "", queue.AckItem{TransactionID: "1", PartitionID: before})
	expect(t, "an ack there", gone[0].Err, queue.ErrNoConsumer)
	expect(t, "a push at the other broker", push(t, other, item("q", "p", "1"))[0].Status, queue.Queued)
	after := partitionID(t, e, "q")
	if after == before || after == uuid.Nil {
		t.Fatalf("the partition was %v, is %v", before, after)
	}
	expect(t, "offsets", number(t, db, `select base from segment join partition p on p.id = partition_id where uuid = $1`, after), 0)
	for name, b := range map[string]*queue.Engine{"a": e, "b": other} {
		expect(t, "delivered", ids(pop(t, b, queue.PopRequest{Queue: "q", Group: name})), []string{"1"})
	}
}

// TestAPopWaitsForTheNameOfAPartition parks a pop at a partition that is cleaned up and made anew.
func TestAPopWaitsForTheNameOfAPartition(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	configured(t, e, "q", keeps(day))
	push(t, e, item("q", "p", "1"))
	wait := queue.PopRequest{Queue: "q", Partition: "p", Wait: time.Minute, AutoAck: true, Batch: 10}
	for _, b := range []*queue.Engine{e, other} {
		expect(t, "the backlog", len(ids(pop(t, b, queue.PopRequest{Queue: "q", Partition: "p", AutoAck: true, Group: fmt.Sprintf("%p", b)}))), 1)
	}
	advance(t, e, 29*day)
	answers := make(chan []string, 2)
	for _, b := range []*queue.Engine{e, other} {
		r := wait
		r.Group = fmt.Sprintf("%p", b)
		go func() {
			popped, err := b.Pop(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			answers <- ids(popped)
		}()
		waitFor(t, "the pop to be parked", func() bool { return b.Parked() == 1 })
	}
	advance(t, e, 3*day)
	expect(t, "the partition", partitionID(t, e, "q"), uuid.Nil)
	push(t, e, item("q", "p", "2"))
	expect(t, "one pop", <-answers, []string{"2"})
	expect(t, "the other", <-answers, []string{"2"})
}

// TestOneBrokerLeads lets a broker whose lease is over find out before it removes anything.
func TestOneBrokerLeads(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	setup := broker(t, url, queue.Config{})
	configured(t, setup, "q", keeps(time.Hour))
	push(t, setup, item("q", "p", "1"))
	db := pgtest.Admin(t, url)
	if _, err := db.Exec(t.Context(), `update setting set clock_offset = '2 hours'`); err != nil {
		t.Fatal(err)
	}
	late := broker(t, url, queue.Config{RetentionInterval: time.Hour})
	if err := late.Lead(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `update retention_leader set until = clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	if err := late.RemoveMessages(t.Context()); err == nil || !strings.Contains(err.Error(), "leads") {
		t.Fatalf("without a lease: %v", err)
	}
	expect(t, "kept", counts(t, setup, "q").Total, int64(1))
	active := broker(t, url, queue.Config{RetentionInterval: 10 * time.Millisecond})
	waitFor(t, "the broker that runs to lead", func() bool { return counts(t, active, "q").Total == 0 })
	if err := late.Lead(t.Context()); err == nil {
		t.Error("two brokers lead")
	}
	active.Stop()
	if err := late.Lead(t.Context()); err != nil {
		t.Errorf("after the leader has stopped: %v", err)
	}
}

// TestSpoolsKeepHashes keeps the hashes that a replay may need, of this broker and of one that has vanished.
func TestSpoolsKeepHashes(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db := pgtest.Admin(t, url)
	buffer := openSpool(t, t.TempDir())
	e := broker(t, url, queue.Config{Spool: buffer})
	configured(t, e, "q", keeps(time.Hour))
	configured(t, e, "off", func(o *queue.Options) { o.RetentionEnabled, o.Retention, o.DedupWindow = true, time.Hour, 0 })
	stored := uuid.New()
	at := e.Now()
	push(t, e, item("off", "p", "2"))
	push(t, e, item("q", "p", "1"), item("q", "p", "2"))
	push(t, e, item("q", "p", "3"))

	// A record that cannot be drained: its shard is locked from outside.
	tx := must(pgtest.Admin(t, url).Begin(t.Context()))
	if _, err := tx.Exec(t.Context(), `select from shard for update`); err != nil {
		t.Fatal(err)
	}
	for _, lane := range []string{"q\x00p", "off\x00p"} {
		if err := buffer.Append(t.Context(), spool.Record{Lane: lane, At: at, Data: queue.Frame(stored, "2", "1")}); err != nil {
			t.Fatal(err)
		}
	}
	advance(t, e, 3*day)
	expect(t, "messages", counts(t, e, "q").Total+counts(t, e, "off").Total, int64(0))
	expect(t, "rows that the records may need", number(t, db, `select count(*) from segment`), 2+1)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the records to be drained", drained(buffer))
	for _, q := range []string{"q", "off"} {
		expect(t, "messages that were stored before", len(ids(pop(t, e, queue.PopRequest{Queue: q}))), 0)
	}
	advance(t, e, time.Minute)
	expect(t, "rows afterwards", number(t, db, `select count(*) from segment`), 1+1)

	push(t, e, item("q", "p", "4"))
	push(t, e, item("q", "p", "5"))
	vanished := `insert into broker_spool values ($1, 7, clock_timestamp() + (select clock_offset from setting), clock_timestamp())`
	if _, err := db.Exec(t.Context(), vanished, uuid.New()); err != nil {
		t.Fatal(err)
	}
	advance(t, e, 20*day)
	expect(t, "rows that a vanished broker may need", number(t, db, `select count(*) from segment`), 2+1)
	if _, err := db.Exec(t.Context(), `update broker_spool set seen_at = seen_at - interval '31 days' where records = 7`); err != nil {
		t.Fatal(err)
	}
	advance(t, e, time.Second)
	advance(t, e, time.Second)
	expect(t, "rows when it has not been seen for a month", number(t, db, `select count(*) from segment`), 1+1)
	e.Stop()
	expect(t, "spools after a clean stop", number(t, db, `select count(*) from broker_spool`), 0)
}

// TestAFoldMissesHashes lets retention come between an append and the broker that is to learn of it.
func TestAFoldMissesHashes(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, queue.Config{}), broker(t, url, queue.Config{})
	db := pgtest.Admin(t, url)
	push(t, other, item("q", "p", "before"))
	var items []queue.PushItem
	for n := range 3000 {
		items = append(items, item("q", "p", fmt.Sprint(n)))
	}
	push(t, e, items...) // segments of 1024
	if _, err := db.Exec(t.Context(), `delete from segment where base = 1`); err != nil {
		t.Fatal(err)
	}
	results := push(t, other, item("q", "p", "2999"), item("q", "p", "new"), item("q", "p", "5"))
	expect(t, "statuses", statuses(results), []queue.Status{queue.Duplicate, queue.Queued, queue.Queued})
	expect(t, "the next offset", number(t, db, `select max(base) from segment`), 3001)
}
