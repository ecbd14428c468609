package delivery

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

func bodies(all []received) string {
	words := make([]string, len(all))
	for i, r := range all {
		words[i] = r.body
	}
	return strings.Join(words, " ")
}

// queued is a message in a delivery queue.
func queued(url, queue, body string) Message {
	m := to(url)
	m.Queue, m.Body = queue, []byte(body)
	return m
}

// flowing is a message with a flow control key.
func flowing(url, key string, limits FlowLimits) Message {
	m := to(url)
	m.FlowKey, m.Flow = key, limits
	return m
}

// flow is the key k.
func flow(t testing.TB, e *Engine) FlowControl {
	t.Helper()
	f, err := e.FlowControl(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// lag is that of the queue q.
func lag(t testing.TB, e *Engine) int {
	t.Helper()
	q, err := e.DeliveryQueue(t.Context(), "q")
	if err != nil {
		t.Fatal(err)
	}
	return q.Lag
}

// busy counts what a sink answers at the same time.
type busy struct{ now, most atomic.Int64 }

func (b *busy) enter() {
	n := b.now.Add(1)
	for {
		most := b.most.Load()
		if n <= most || b.most.CompareAndSwap(most, n) {
			return
		}
	}
}

// TestQueueIsFIFO waits for the retries of a message before the next one starts.
func TestQueueIsFIFO(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n <= 2 || n == 5 {
			w.WriteHeader(500)
		}
	})
	for i := range 4 {
		m := queued(s.URL, "q", fmt.Sprint(i))
		m.Retries, m.RetryDelay = 2, "60000"
		if i == 2 {
			m.Retries = 0
		}
		publish(t, e, m)
	}
	settle(t, e)
	if got := bodies(s.requests()); got != "0" || lag(t, e) != 4 {
		t.Fatalf("before the first retry: %q, lag %d", got, lag(t, e))
	}
	advance(t, e, time.Minute)
	if got := bodies(s.requests()); got != "0 0" {
		t.Fatalf("after the first retry: %q", got)
	}
	advance(t, e, time.Minute) // 0 is delivered, 1 is, 2 fails for good, 3 is delivered
	if got := bodies(s.requests()); got != "0 0 0 1 2 3" {
		t.Errorf("in the end: %q", got)
	}
	if n := lag(t, e); n != 0 {
		t.Errorf("lag %d", n)
	}
}

// TestQueueWaitsForCallbacks starts the next message only when the callbacks of the one before have ended, their retries too.
func TestQueueWaitsForCallbacks(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	told := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n <= 2 {
			w.WriteHeader(500)
		}
	})
	s := newSink(t, nil)
	first := queued(s.URL, "q", "first")
	first.Retries, first.RetryDelay, first.Callback = 1, "60000", &Callback{URL: told.URL}
	publish(t, e, first)
	publish(t, e, queued(s.URL, "q", "second"))
	settle(t, e)
	if got := bodies(s.requests()); got != "first" || lag(t, e) != 1 {
		t.Fatalf("while the callback waits for its retry: %q, lag %d", got, lag(t, e))
	}
	advance(t, e, time.Minute) // the callback fails for good
	if got := bodies(s.requests()); got != "first second" {
		t.Errorf("after the callback: %q", got)
	}
	if n := len(told.requests()); n != 2 {
		t.Errorf("%d callbacks", n)
	}
}

// TestQueueParallelism holds the bound over two brokers, and delivers all.
func TestQueueParallelism(t *testing.T) {
	t.Parallel()
	url := database(t)
	engines := []*Engine{engine(t, url, nil), engine(t, url, nil)}
	var b busy
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		b.enter()
		defer b.now.Add(-1)
		time.Sleep(3 * time.Millisecond)
		if n%10 == 0 {
			w.WriteHeader(500)
		}
	})
	three := 3
	if err := engines[0].PutDeliveryQueue(t.Context(), "q", QueueChange{Parallelism: &three}); err != nil {
		t.Fatal(err)
	}
	const total = 120
	var wg sync.WaitGroup
	for i := range total {
		wg.Go(func() {
			m := queued(s.URL, "q", "")
			m.Retries, m.RetryDelay = 5, "0"
			publish(t, engines[i%2], m)
		})
	}
	wg.Wait()
	eventually(t, "all are delivered", func() bool { return count(t, engines[0], `select count(*) from delivery_task`) == 0 })
	if most := b.most.Load(); most > 3 {
		t.Errorf("%d attempts at once", most)
	}
	if n := count(t, engines[0], `select count(*) from delivery_log where state = $1`, Delivered); n != total {
		t.Errorf("%d delivered", n)
	}
}

func TestPausedQueue(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	yes := true
	if err := e.PutDeliveryQueue(t.Context(), "q", QueueChange{Paused: &yes}); err != nil {
		t.Fatal(err)
	}
	publish(t, e, queued(s.URL, "q", "a"))
	late := queued(s.URL, "q", "late")
	late.Delay = time.Hour
	publish(t, e, late)
	publish(t, e, queued(s.URL, "q", "b"))
	publish(t, e, queued(s.URL, "other", "other"))
	settle(t, e)
	if got := bodies(s.requests()); got != "other" || lag(t, e) != 3 {
		t.Fatalf("paused: %q, lag %d", got, lag(t, e))
	}
	if err := e.PauseDeliveryQueue(t.Context(), "q", false); err != nil {
		t.Fatal(err)
	}
	settle(t, e)
	if got := bodies(s.requests()); got != "other a b" {
		t.Fatalf("resumed: %q", got)
	}
	advance(t, e, time.Hour)
	if got := bodies(s.requests()); got != "other a b late" {
		t.Errorf("after the delay: %q", got)
	}
	if err := e.PauseDeliveryQueue(t.Context(), "none", true); !errors.Is(err, ErrNotFound) {
		t.Errorf("a queue that does not exist: %v", err)
	}
}

// TestDeleteQueue cancels what waits and lets finish what has started.
func TestDeleteQueue(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(500)
		}
	})
	m := queued(s.URL, "q", "a")
	m.Retries, m.RetryDelay = 1, "60000"
	publish(t, e, m)
	settle(t, e)
	b := publish(t, e, queued(s.URL, "q", "b"))
	for range 2 {
		if err := e.DeleteDeliveryQueue(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.DeliveryQueue(t.Context(), "q"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted: %v", err)
	}
	if got := states(t, e, b); got != "CREATED CANCEL_REQUESTED CANCELED" {
		t.Errorf("log: %s", got)
	}
	advance(t, e, time.Minute)
	publish(t, e, queued(s.URL, "q", "c"))
	settle(t, e)
	if got := bodies(s.requests()); got != "a a c" {
		t.Errorf("delivered %q", got)
	}
}

// TestGoneGates lets go what waits for a gate whose row is not there.
func TestGoneGates(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	m := queued(s.URL, "q", "a")
	m.Delay, m.FlowKey, m.Flow = time.Hour, "k", FlowLimits{Rate: 1}
	publish(t, e, m)
	if _, err := e.pool.Exec(t.Context(), `with q as (delete from delivery_queue) delete from flow_control`); err != nil {
		t.Fatal(err)
	}
	advance(t, e, time.Hour)
	if got := bodies(s.requests()); got != "a" {
		t.Errorf("delivered %q", got)
	}
	if n := count(t, e, `select count(*) from delivery_wake`); n != 0 {
		t.Errorf("%d lanes are still to be looked at", n)
	}
}

// TestCancelFreesTheQueue goes on with the message after one that was cancelled while it waited for its retry.
func TestCancelFreesTheQueue(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(500)
		}
	})
	m := queued(s.URL, "q", "a")
	m.Retries = 3
	id := publish(t, e, m)
	publish(t, e, queued(s.URL, "q", "b"))
	settle(t, e)
	if _, err := e.Cancel(t.Context(), []uuid.UUID{id}); err != nil {
		t.Fatal(err)
	}
	settle(t, e)
	if got := bodies(s.requests()); got != "a b" {
		t.Errorf("delivered %q", got)
	}
}

// TestRate lets pass exactly the rate in each period of the database's time, retries included.
func TestRate(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(500)
		}
	})
	for range 25 {
		m := flowing(s.URL, "k", FlowLimits{Rate: 10, Period: time.Minute})
		m.Retries, m.RetryDelay = 1, "0"
		publish(t, e, m)
	}
	settle(t, e)
	f := flow(t, e)
	if n := len(s.requests()); n != 10 || f.RateCount != 10 || f.Waiting != 16 || f.Rate != 10 || f.Period != time.Minute || f.Parallelism != 0 {
		t.Fatalf("%d in the first period, %+v", n, f)
	}
	for i, want := range []int{20, 26, 26} {
		start := flow(t, e).PeriodStart
		now, err := readNow(t.Context(), e.pool)
		if err != nil {
			t.Fatal(err)
		}
		if left := start.Add(time.Minute).Sub(now); left > 10*time.Second {
			before := len(s.requests())
			advance(t, e, left-10*time.Second)
			if n := len(s.requests()); n != before {
				t.Fatalf("%d before the end of period %d", n, i+1)
			}
		}
		advanceTo(t, e, start.Add(time.Minute))
		if n := len(s.requests()); n != want {
			t.Fatalf("%d after period %d, want %d", n, i+1, want)
		}
	}
	advance(t, e, time.Minute)
	if f := flow(t, e); f.RateCount != 0 || f.Waiting != 0 {
		t.Errorf("in the end %+v", f)
	}
}

// TestResetRate lets the next ones pass at once.
func TestResetRate(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	for range 3 {
		publish(t, e, flowing(s.URL, "k", FlowLimits{Rate: 1, Period: time.Hour}))
	}
	settle(t, e)
	for want := 1; want <= 3; want++ {
		if n := len(s.requests()); n != want {
			t.Fatalf("%d, want %d", n, want)
		}
		if err := e.ResetFlowRate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		settle(t, e)
	}
}

// TestFlowParallelism holds the bound over two brokers, and does not keep others waiting.
func TestFlowParallelism(t *testing.T) {
	t.Parallel()
	url := database(t)
	engines := []*Engine{engine(t, url, nil), engine(t, url, nil)}
	var b busy
	open := make(chan struct{})
	s := newSink(t, func(int, http.ResponseWriter, *http.Request) {
		b.enter()
		defer b.now.Add(-1)
		<-open
		time.Sleep(time.Millisecond)
	})
	free := newSink(t, nil)
	const total = 60
	var wg sync.WaitGroup
	for i := range total {
		wg.Go(func() { publish(t, engines[i%2], flowing(s.URL, "k", FlowLimits{Parallelism: 4})) })
	}
	wg.Wait()
	eventually(t, "the key is full", func() bool { return b.now.Load() == 4 })
	publish(t, engines[0], to(free.URL))
	publish(t, engines[1], flowing(free.URL, "other", FlowLimits{Parallelism: 1}))
	eventually(t, "others pass", func() bool { return len(free.requests()) == 2 })
	if f := flow(t, engines[0]); f.Running != 4 || f.Waiting != total-4 || f.Parallelism != 4 {
		t.Errorf("%+v", f)
	}
	p, err := engines[0].GlobalParallelism(t.Context())
	if err != nil || p.Max != 512 || p.Count < 4 {
		t.Errorf("global %+v, %v", p, err)
	}
	close(open)
	eventually(t, "all are delivered", func() bool { return count(t, engines[0], `select count(*) from delivery_task`) == 0 })
	if most := b.most.Load(); most != 4 || len(s.requests()) != total {
		t.Errorf("%d attempts at once, %d deliveries", most, len(s.requests()))
	}
}

// TestFlowValues are those of the latest message, except for those that are pinned.
func TestFlowValues(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	late := func(limits FlowLimits) {
		m := flowing(s.URL, "k", limits)
		m.Delay = time.Hour
		publish(t, e, m)
	}
	want := func(parallelism, rate int, period time.Duration) {
		t.Helper()
		if f := flow(t, e); f.Parallelism != parallelism || f.Rate != rate || f.Period != period {
			t.Errorf("%d, %d in %v; want %d, %d in %v", f.Parallelism, f.Rate, f.Period, parallelism, rate, period)
		}
	}
	if err := e.PauseFlow(t.Context(), "k", true); !errors.Is(err, ErrNotFound) {
		t.Errorf("a key that nobody has named: %v", err)
	}
	late(FlowLimits{Parallelism: 5})
	want(5, 0, time.Second)
	late(FlowLimits{Rate: 7, Period: time.Minute})
	want(0, 7, time.Minute)
	seven, day := 7, 24*time.Hour
	if err := e.PinFlow(t.Context(), "k", FlowPin{Parallelism: &seven}); err != nil {
		t.Fatal(err)
	}
	late(FlowLimits{Parallelism: 1, Rate: 9})
	want(7, 9, time.Second)
	if err := e.PinFlow(t.Context(), "k", FlowPin{Period: &day}); err != nil {
		t.Fatal(err)
	}
	late(FlowLimits{Parallelism: 1, Rate: 1})
	want(7, 9, day)
	if f := flow(t, e); !f.PinnedParallelism || !f.PinnedRate {
		t.Errorf("%+v", f)
	}
	if err := e.UnpinFlow(t.Context(), "k", true, false); err != nil {
		t.Fatal(err)
	}
	late(FlowLimits{Parallelism: 1, Rate: 1})
	want(1, 9, day)
	if list, err := e.FlowControls(t.Context(), "K"); err != nil || len(list) != 1 || list[0].Key != "k" {
		t.Errorf("search: %v, %v", list, err)
	}
	if list, err := e.FlowControls(t.Context(), "%"); err != nil || len(list) != 0 {
		t.Errorf("search: %v, %v", list, err)
	}
}

// TestPausedFlow accepts messages and begins no attempt, and a raised bound lets pass what waits.
func TestPausedFlow(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	publish(t, e, flowing(s.URL, "k", FlowLimits{Parallelism: 1}))
	settle(t, e)
	if err := e.PauseFlow(t.Context(), "k", true); err != nil {
		t.Fatal(err)
	}
	publish(t, e, flowing(s.URL, "k", FlowLimits{Rate: 2, Period: time.Hour}))
	publish(t, e, flowing(s.URL, "k", FlowLimits{Rate: 2, Period: time.Hour}))
	settle(t, e)
	if n := len(s.requests()); n != 1 {
		t.Fatalf("%d while it was paused", n)
	}
	if err := e.PauseFlow(t.Context(), "k", false); err != nil {
		t.Fatal(err)
	}
	settle(t, e)
	if n := len(s.requests()); n != 2 {
		t.Fatalf("%d after it was resumed", n)
	}
	publish(t, e, flowing(s.URL, "k", FlowLimits{Rate: 4, Period: time.Hour}))
	settle(t, e)
	if n := len(s.requests()); n != 4 {
		t.Errorf("%d after the rate was raised", n)
	}
}

// TestQueueWithFlow passes both gates, the key for each attempt, the queue once.
func TestQueueWithFlow(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(500)
		}
	})
	for i := range 3 {
		m := queued(s.URL, "q", fmt.Sprint(i))
		m.FlowKey, m.Flow = "k", FlowLimits{Rate: 1, Period: time.Minute}
		m.Retries, m.RetryDelay = 1, "1000"
		publish(t, e, m)
	}
	settle(t, e)
	for _, want := range []string{"0", "0 0", "0 0 1", "0 0 1 2"} {
		if got := bodies(s.requests()); got != want {
			t.Fatalf("%q, want %q", got, want)
		}
		advance(t, e, time.Minute)
	}
}

// TestGatesOfSchedules makes the messages of a schedule pass its queue and key.
func TestGatesOfSchedules(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	put(t, e, Schedule{ID: "s", Cron: "* * * * *", Destination: toURL(s.URL), Message: Message{
		Queue: "q", FlowKey: "k", CallerIP: "x", Settings: Settings{Flow: FlowLimits{Rate: 1, Period: 24 * time.Hour}},
	}})
	for range 3 {
		advance(t, e, time.Minute)
	}
	if n, f := len(s.requests()), flow(t, e); n != 1 || f.Waiting != 1 || f.Rate != 1 || lag(t, e) != 2 {
		t.Errorf("%d deliveries, %+v, lag %d", n, f, lag(t, e))
	}
}

// TestGatesOutliveBrokers stops one broker in the middle, and takes another one's lease: each message is delivered and the
// bounds hold.
func TestGatesOutliveBrokers(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := engine(t, url, nil), engine(t, url, nil)
	var now busy
	s := newSink(t, func(int, http.ResponseWriter, *http.Request) {
		now.enter()
		defer now.now.Add(-1)
		time.Sleep(5 * time.Millisecond)
	})
	const total = 100
	for i := range total {
		m := queued(s.URL, "q", fmt.Sprint(i))
		m.FlowKey, m.Flow = "k", FlowLimits{Parallelism: 2}
		publish(t, []*Engine{a, b}[i%2], m)
	}
	eventually(t, "some are delivered", func() bool { return len(s.requests()) >= 10 })
	a.Stop()
	eventually(t, "more are delivered", func() bool { return len(s.requests()) >= 40 })
	if _, err := b.pool.Exec(t.Context(), `update delivery_broker set alive_until = clock_timestamp() - interval '1 s'`); err != nil {
		t.Fatal(err)
	}
	c := engine(t, url, nil)
	if err := b.renewLease(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are delivered", func() bool { return count(t, c, `select count(*) from delivery_task`) == 0 })
	if n := count(t, c, `select count(*) from delivery_log where state = $1`, Delivered); n != total {
		t.Errorf("%d delivered", n)
	}
	var ends string
	if err := c.pool.QueryRow(t.Context(), `
select string_agg(convert_from(m.body, 'UTF8'), ' ' order by l.id) from delivery_log l join delivery_message m on m.id = l.message_id
where l.state = $1`, Delivered).Scan(&ends); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range total {
		want = append(want, fmt.Sprint(i))
	}
	if ends != strings.Join(want, " ") {
		t.Errorf("the order is %s", ends)
	}
}

// TestManyKeys looks at the keys that something happened to, however many wait.
func TestManyKeys(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	const keys = 10000
	if _, err := e.pool.Exec(t.Context(), `
insert into flow_control (key, lane, rate, period, paused, pinned_parallelism, pinned_rate, period_start, period_count, used_at)
select 'k' || i, i, 1, '1 hour', false, false, false, now, 1, now from generate_series(1, $1) as i, (select clock_timestamp() as now) t`, keys); err != nil {
		t.Fatal(err)
	}
	if _, err := e.pool.Exec(t.Context(), `
with w as (insert into delivery_wake (lane, at) select i, clock_timestamp() + interval '1 hour' from generate_series(1, $1) as i)
insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size, lane, flow_lane)
select gen_random_uuid(), 0, 0, false, clock_timestamp(), 7, 100, i, i from generate_series(1, $1) as i`, keys); err != nil {
		t.Fatal(err)
	}
	if _, err := e.pool.Exec(t.Context(), `analyze delivery_task, delivery_wake, flow_control`); err != nil {
		t.Fatal(err)
	}
	settle(t, e)
	publish(t, e, flowing(s.URL, "mine", FlowLimits{Rate: 1}))
	eventually(t, "a new key passes", func() bool { return len(s.requests()) == 1 })
	start := time.Now()
	const rounds = 20
	for range rounds {
		if n, err := e.openGates(t.Context()); err != nil || n != 0 {
			t.Fatal(n, err)
		}
	}
	looked := time.Since(start) / rounds
	start = time.Now()
	if err := e.findParked(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("to look at the gates took %v, to look for hosts %v", looked, time.Since(start))
	var plan string
	if err := e.pool.QueryRow(t.Context(), `explain (format json) `+sqlWoken, wakeLimit).Scan(&plan); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(plan, "delivery_wake_at") {
		t.Errorf("plan: %s", plan)
	}
}

// TestUnusedKeysGo removes keys that nobody names any more, and keeps those that matter.
func TestUnusedKeysGo(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	for _, key := range []string{"idle", "paused", "waiting"} {
		m := flowing(s.URL, key, FlowLimits{Rate: 1})
		if key == "waiting" {
			m.Delay = 1000 * time.Hour
		}
		publish(t, e, m)
	}
	settle(t, e) // what is delivered after the clock has moved would count as use
	if err := e.PauseFlow(t.Context(), "paused", true); err != nil {
		t.Fatal(err)
	}
	advance(t, e, 100*time.Hour)
	list, err := e.FlowControls(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(list))
	for i, f := range list {
		names[i] = f.Key
	}
	if got := strings.Join(names, " "); got != "paused waiting" {
		t.Errorf("left are %q", got)
	}
}
