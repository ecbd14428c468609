package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// tally is what a scan of the log finds, or what the counts say.
type tally struct{ Messages, Segments, Bytes int64 }

// scan counts a queue the slow way.
func scan(t testing.TB, db *pgx.Conn, name string) tally {
	t.Helper()
	var s tally
	err := db.QueryRow(t.Context(), `
		select coalesce(sum(g.count), 0), count(g.frames), coalesce(sum(octet_length(g.frames)), 0)
		from segment g join partition p on p.id = g.partition_id join queue q on q.id = p.queue_id
		where q.name = $1 and g.frames is not null`, name).Scan(&s.Messages, &s.Segments, &s.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func counted(t testing.TB, e *queue.Engine, name string) tally {
	t.Helper()
	list, err := e.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range list {
		if q.Name == name {
			return tally{q.Messages.Total, q.Segments, q.RetainedBytes}
		}
	}
	t.Fatalf("queue %q is not listed", name)
	return tally{}
}

// seldom keeps the engine from counting by itself.
var seldom = queue.Config{StatsInterval: time.Hour}

func TestCountsAgreeWithTheLog(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db := pgtest.Admin(t, url)
	brokers := []*queue.Engine{broker(t, url, seldom), broker(t, url, queue.Config{StatsInterval: 5 * time.Millisecond})}
	names := []string{"a", "b", "c"}
	var wait sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		wait.Go(func() {
			for round := range 20 {
				var items []queue.PushItem
				for range 1 + random.IntN(40) {
					it := item(names[random.IntN(len(names))], strconv.Itoa(random.IntN(5)), strconv.Itoa(random.IntN(2000)))
					it.Payload = fmt.Appendf(nil, `"%0*d"`, 1+random.IntN(3000), round)
					items = append(items, it)
				}
				e := brokers[random.IntN(len(brokers))]
				if _, err := e.Push(context.WithoutCancel(t.Context()), items); err != nil {
					t.Error(err)
				}
				if round%5 == 0 {
					if _, err := e.Queues(context.WithoutCancel(t.Context())); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
	for _, name := range names {
		want := scan(t, db, name)
		if want.Messages == 0 {
			t.Fatal("nothing was pushed")
		}
		for _, e := range brokers {
			expect(t, "counts of "+name, counted(t, e, name), want)
		}
	}
}

func TestAPushIsCountedAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, seldom), broker(t, url, seldom)
	for n := range 5 {
		push(t, e, item("q", "p", strconv.Itoa(n)))
		expect(t, "messages here", counted(t, e, "q").Messages, int64(n+1))
		expect(t, "messages there", counted(t, other, "q").Messages, int64(n+1))
	}
}

// TestFlushesWithoutSizesAreCounted: a broker of an earlier version does not say how large its appends are.
func TestFlushesWithoutSizesAreCounted(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db := pgtest.Admin(t, url)
	e := broker(t, url, seldom)
	for n := range 3 {
		push(t, e, item("q", strconv.Itoa(n), "x"), item("q", strconv.Itoa(n), "y"))
	}
	if _, err := db.Exec(t.Context(), `update flush set sizes = null`); err != nil {
		t.Fatal(err)
	}
	expect(t, "counts", counted(t, e, "q"), scan(t, db, "q"))
	expect(t, "messages", counted(t, e, "q").Messages, int64(6))
}

// TestWhatIsNotCountedIsNotTrimmed: flush rows go after minutes, but not before they are counted.
func TestWhatIsNotCountedIsNotTrimmed(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db := pgtest.Admin(t, url)
	e := broker(t, url, seldom)
	push(t, e, item("q", "p", "1"), item("q", "p", "2"))
	rows := func() (n int) {
		if err := db.QueryRow(t.Context(), `select count(*) from flush`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	advance(t, e, time.Hour)
	tidy(t, e)
	expect(t, "flush rows before the count", rows(), 1)
	expect(t, "messages", counted(t, e, "q").Messages, int64(2))
	tidy(t, e)
	expect(t, "flush rows after the count", rows(), 0)
	expect(t, "messages", counted(t, e, "q").Messages, int64(2))
}

func tidy(t testing.TB, e *queue.Engine) {
	t.Helper()
	if err := e.Tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestRemovalBeforeCounting: what is removed may be subtracted before it was added.
func TestRemovalBeforeCounting(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("counted first %t", first), func(t *testing.T) {
			t.Parallel()
			url := pgtest.URL(t)
			db := pgtest.Admin(t, url)
			e := broker(t, url, seldom)
			push(t, e, item("q", "p", "1"), item("q", "p", "2"))
			push(t, e, item("q", "p", "3"))
			push(t, e, item("q", "r", "1"))
			if first {
				counted(t, e, "q")
			}
			expect(t, "removed", e.RemoveFirstSegment(t, "q", "p"), int64(2))
			expect(t, "counts", counted(t, e, "q"), scan(t, db, "q"))
			expect(t, "messages", counted(t, e, "q").Messages, int64(2))
			detail, err := e.Queue(t.Context(), "q")
			if err != nil {
				t.Fatal(err)
			}
			p := detail.PartitionStats[0]
			expect(t, "partition", p.Counts, queue.Counts{Total: 1, Pending: 1})
			if p.Oldest.IsZero() || p.Newest.Before(p.Oldest) {
				t.Errorf("oldest %v, newest %v", p.Oldest, p.Newest)
			}
		})
	}
}

// TestUpgradeCountsWhatIsThere runs the migration on a log that was written without it.
func TestUpgradeCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db := pgtest.Admin(t, url)
	e := broker(t, url, seldom)
	for n := range 10 {
		push(t, e, item("q", strconv.Itoa(n%3), strconv.Itoa(n)))
	}
	counted(t, e, "q")
	e.RemoveFirstSegment(t, "q", "0")
	want := scan(t, db, "q")
	e.Stop()
	files, err := filepath.Glob("../pg/migrations/*_counters.sql")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	sql, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		`drop table partition_count, count_progress, queue_traffic, broker_report`, `alter table flush drop column sizes`, string(sql),
	} {
		if _, err := db.PgConn().Exec(t.Context(), statement).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	again := broker(t, url, seldom)
	expect(t, "counts after the upgrade", counted(t, again, "q"), want)
	push(t, again, item("q", "0", "new"))
	expect(t, "counts after a push", counted(t, again, "q"), scan(t, db, "q"))
	expect(t, "messages after a push", counted(t, again, "q").Messages, want.Messages+1)
}

func TestCountsOfADeletedQueueGo(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	db := pgtest.Admin(t, url)
	e := broker(t, url, seldom)
	push(t, e, item("q", "a", "1"), item("q", "b", "1"))
	counted(t, e, "q")
	push(t, e, item("q", "c", "1")) // not counted yet
	if _, err := e.DeleteQueue(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	push(t, e, item("q", "d", "1"))
	expect(t, "messages of the new queue", counted(t, e, "q").Messages, int64(1))
	tidy(t, e)
	var left int
	if err := db.QueryRow(t.Context(), `select count(*) from partition_count`).Scan(&left); err != nil {
		t.Fatal(err)
	}
	expect(t, "counts left", left, 1)
}

// TestPendingOfAGroupThatBeganLater: without a cursor, a group begins behind what is older than it.
func TestPendingOfAGroupThatBeganLater(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, seldom)
	before, after := 37, 90
	segment := func(n int) {
		push(t, e, item("q", "p", "a"+strconv.Itoa(n)), item("q", "p", "b"+strconv.Itoa(n)))
	}
	for n := range before {
		segment(n)
	}
	push(t, e, item("q", "old", "1"))
	if got := pop(t, e, queue.PopRequest{Queue: "q", Group: "late", FromNew: true}); len(got.Partitions) != 0 {
		t.Fatalf("a new group got %v", got)
	}
	check := func(want int64) {
		t.Helper()
		detail, err := e.Queue(t.Context(), "q")
		if err != nil {
			t.Fatal(err)
		}
		expect(t, "partition old", detail.PartitionStats[0].Counts, queue.Counts{Total: 1, Completed: 1})
		expect(t, "pending of p", detail.PartitionStats[1].Counts.Pending, want)
		expect(t, "pending of q", detail.Messages.Pending, want)
	}
	check(0)
	for n := range after {
		segment(before + n)
		if n%30 == 0 {
			check(int64(2 * (n + 1)))
		}
	}
	check(int64(2 * after))
	push(t, e, item("q", "young", "1"))
	lags, err := e.Lags(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "lag", lags.Total.Open, int64(2*after+1))
	expect(t, "partitions behind", lags.Total.Behind, int64(2))
	expect(t, "spread", [2]float64{lags.Total.Offset.Median, lags.Total.Offset.Max}, [2]float64{1, float64(2 * after)})
}

func TestLagIsTheAgeOfWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), seldom)
	lag := func() queue.Lag {
		t.Helper()
		lags, err := e.Lags(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return lags.Queues[0].Lag
	}
	push(t, e, item("q", "p", "1"))
	advance(t, e, time.Hour)
	push(t, e, item("q", "p", "2"))
	advance(t, e, time.Minute)
	got := lag()
	if got.Time.Max < 3660 || got.Time.Max > 3700 || got.Open != 2 {
		t.Errorf("before the pop: %+v", got)
	}
	r := pop(t, e, queue.PopRequest{Queue: "q", Batch: 1})
	if got := lag(); got.Open != 2 || got.Time.Max < 3660 {
		t.Errorf("under a lease: %+v", got)
	}
	ackAll(t, e, r, queue.Completed)
	if got := lag(); got.Time.Max < 60 || got.Time.Max > 100 || got.Open != 1 {
		t.Errorf("after the first: %+v", got)
	}
	ackAll(t, e, pop(t, e, queue.PopRequest{Queue: "q"}), queue.Completed)
	if got := lag(); got.Time.Max != 0 || got.Behind != 0 || got.Partitions != 1 {
		t.Errorf("after all: %+v", got)
	}
}

// TestLagOfManyQueuesIsBounded: the metrics name the queues furthest behind, and say how many they leave out.
func TestLagOfManyQueuesIsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit int
		want  string
	}{{2, "posthorn_queue_lag_seconds big,middle posthorn_queue_pending_messages big=3,middle=2 posthorn_queues_not_shown 1"}, {-1, ""}} {
		registry := prometheus.NewRegistry()
		e := broker(t, pgtest.URL(t), queue.Config{StatsInterval: time.Hour, LagQueues: c.limit, Metrics: registry})
		for name, n := range map[string]int{"small": 1, "big": 3, "middle": 2} {
			for i := range n {
				push(t, e, item(name, "p", strconv.Itoa(i)))
			}
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			if !strings.HasPrefix(f.GetName(), "posthorn_queue_") && f.GetName() != "posthorn_queues_not_shown" {
				continue
			}
			var values []string
			for _, m := range f.GetMetric() {
				value := strconv.FormatFloat(m.GetGauge().GetValue(), 'f', -1, 64)
				switch {
				case len(m.GetLabel()) == 0:
					values = append(values, value)
				case strings.HasSuffix(f.GetName(), "_seconds"):
					values = append(values, m.GetLabel()[0].GetValue())
				default:
					values = append(values, m.GetLabel()[0].GetValue()+"="+value)
				}
			}
			got = append(got, f.GetName()+" "+strings.Join(values, ","))
		}
		expect(t, "metrics by queue", strings.Join(got, " "), c.want)
	}
}

// TestTrafficOfTheMinuteThatHasJustBegun: the end of the time that is asked for is not cut to the second, so that the minute which
// it lies in counts from its beginning.
func TestTrafficOfTheMinuteThatHasJustBegun(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), seldom)
	start := e.Now().Truncate(time.Minute).Add(time.Minute)
	advance(t, e, start.Sub(e.Now()))
	push(t, e, item("q", "p", "1"))
	for to, want := range map[time.Duration][]int64{-time.Minute: {0}, 0: {0, 0}, time.Microsecond: {0, 0, 1}, 999 * time.Millisecond: {0, 0, 1}, time.Second: {0, 0, 1}} {
		points, err := e.Traffic(t.Context(), queue.TrafficFilter{Queue: "q", From: start.Add(-2 * time.Minute), To: start.Add(to), Step: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		pushed := []int64{}
		for _, p := range points {
			pushed = append(pushed, p.Pushed)
		}
		expect(t, fmt.Sprintf("pushed by minute until %s after the minute began", to), pushed, want)
	}
}

// TestTrafficOfTheMinuteThatEnds: what goes through in the last half second of a minute counts in that minute, not in the one
// that has not begun.
func TestTrafficOfTheMinuteThatEnds(t *testing.T) {
	t.Parallel()
	e := broker(t, pgtest.URL(t), seldom)
	start := e.Now().Truncate(time.Minute)
	advance(t, e, start.Add(2*time.Minute-450*time.Millisecond).Sub(e.Now()))
	push(t, e, item("q", "p", "1"))
	points, err := e.Traffic(t.Context(), queue.TrafficFilter{Queue: "q", From: start, To: e.Now(), Step: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var pushed int64
	for _, p := range points {
		pushed += p.Pushed
	}
	expect(t, "pushed until now", pushed, 1)
}

// TestTrafficIsWrittenAndKept: what went through stands in the minute in which it did, from all brokers, and old minutes go.
func TestTrafficIsWrittenAndKept(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, seldom), broker(t, url, seldom)
	if _, err := e.Configure(t.Context(), "q", "", "", queue.Options{LeaseTime: time.Minute, RetryLimit: 0, DeadLetterQueue: true}); err != nil {
		t.Fatal(err)
	}
	push(t, e, item("q", "p", "1"), item("q", "p", "2"), item("q", "p", "3"))
	advance(t, e, time.Minute)
	push(t, other, item("q", "p", "4"))
	pop(t, e, queue.PopRequest{Queue: "q", Batch: 1, AutoAck: true})
	r := pop(t, e, queue.PopRequest{Queue: "q", Batch: 2})
	m := r.Partitions[0]
	ack(t, e, r.Group, queue.AckItem{TransactionID: "3", PartitionID: m.ID, Status: queue.Nack, LeaseID: r.LeaseID})
	total := func(e *queue.Engine, from time.Duration, step time.Duration) (sum queue.Traffic, points []int64) {
		t.Helper()
		now := e.Now()
		list, err := e.Traffic(t.Context(), queue.TrafficFilter{Queue: "q", From: now.Add(-from), To: now.Add(time.Second), Step: step})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			sum.Pushed += p.Pushed
			sum.Popped += p.Popped
			sum.Acked += p.Acked
			sum.Failed += p.Failed
			sum.DeadLettered += p.DeadLettered
			if p.Pushed > 0 {
				points = append(points, p.Pushed)
			}
		}
		return sum, points
	}
	want := queue.Traffic{Pushed: 4, Popped: 3, Acked: 2, Failed: 1, DeadLettered: 1}
	for deadline := time.Now().Add(20 * time.Second); ; { // the other broker writes once a second
		sum, points := total(e, time.Hour, time.Minute)
		if sum == want {
			expect(t, "pushed by minute", points, []int64{3, 1})
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("traffic is %+v, want %+v", sum, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
	advance(t, e, 30*time.Hour)
	tidy(t, e)
	if sum, _ := total(e, 40*time.Hour, time.Minute); sum != (queue.Traffic{}) {
		t.Errorf("by the minute there is still %+v", sum)
	}
	if sum, _ := total(e, 40*time.Hour, time.Hour); sum != want {
		t.Errorf("by the hour there is %+v", sum)
	}
	advance(t, e, 40*24*time.Hour)
	tidy(t, e)
	if sum, _ := total(e, 60*24*time.Hour, time.Hour); sum != (queue.Traffic{}) {
		t.Errorf("after its time there is still %+v", sum)
	}
}

// TestReportsOfBrokers: every broker that is alive is listed, one that has stopped is not.
func TestReportsOfBrokers(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e, other := broker(t, url, seldom), broker(t, url, queue.Config{StatsInterval: 20 * time.Millisecond})
	alive := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; {
			reports, err := e.Reports(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(reports) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d brokers are alive, want %d", len(reports), want)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	alive(2)
	other.Stop()
	alive(1)
}

// TestDatabaseStatsOfOwnTables: the tables of the broker are counted, also for a role whose search path begins elsewhere.
func TestDatabaseStatsOfOwnTables(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	execute(t, pgtest.Admin(t, url), `do $$ begin execute format('create schema if not exists %I', current_user); end $$`)
	stats, err := broker(t, url, seldom).DatabaseStats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, table := range stats.Tables {
		names = append(names, table.Name)
	}
	for _, want := range []string{"segment", "cursor", "dead_letter", "outbox"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
}

// TestCountsEndInTime: a caller that comes while a round of the counter is stuck does not wait for that one and its own.
func TestCountsEndInTime(t *testing.T) {
	t.Parallel()
	const statement = 4 * time.Second
	url := pgtest.URL(t)
	admin := pgtest.Admin(t, url)
	e := broker(t, url, queue.Config{StatsInterval: time.Hour, StatementTimeout: statement})
	tx := begin(t, pgtest.Admin(t, url))
	execute(t, tx, `select from count_progress for update`)
	first := make(chan error, 1)
	go func() {
		_, err := e.Queues(t.Context())
		first <- err
	}()
	waitFor(t, "the first round to be stuck", func() bool {
		return count(t, admin, `select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%count_progress%'`) > 0
	})
	started := time.Now()
	if _, err := e.Queues(t.Context()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the second caller: %v", err)
	}
	if took := time.Since(started); took > statement+statement/2 {
		t.Errorf("the second caller waited %v", took)
	}
	if err := <-first; !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the first caller: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Queues(t.Context()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
