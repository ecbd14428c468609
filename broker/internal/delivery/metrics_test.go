package delivery

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gathered reads a registry: counters and gauges by name{label,…}, of a histogram how often it observed something.
func gathered(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "posthorn_")
			for _, label := range m.GetLabel() {
				name += "{" + label.GetValue() + "}"
			}
			switch {
			case m.GetCounter() != nil:
				values[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				values[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				values[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return values
}

func expectMetrics(t testing.TB, registry *prometheus.Registry, want map[string]float64) {
	t.Helper()
	got := gathered(t, registry)
	for name, value := range want {
		if actual, shown := got[name]; !shown || actual != value {
			t.Errorf("%s is %v, want %v, shown: %v", name, actual, value, shown)
		}
	}
}

// TestMetrics counts what happens to messages: each kind of outcome once, and from 0 on.
func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	e := engine(t, database(t), func(c *Config) { c.Metrics = registry })
	expectMetrics(t, registry, map[string]float64{
		"publishes_total{accepted}": 0, "publishes_total{duplicate}": 0, "publishes_total{failed}": 0,
		"delivery_attempts_total{delivered}": 0, "delivery_attempts_total{retry}": 0, "delivery_attempts_total{failed}": 0,
		"delivery_attempts_total{cancelled}": 0, "delivery_attempts_total{lost}": 0, "delivery_dead_letters_total": 0,
		"delivery_callbacks_total": 0, "delivery_egress_blocked_total": 0, "schedule_ticks_total{published}": 0,
		"schedule_ticks_total{failed}": 0,
	})

	good, bad, told := newSink(t, nil), newSink(t, failing(500)), newSink(t, nil)
	publishAs(t, e, "once", to(good.URL))
	publishAs(t, e, "once", to(good.URL))
	m := to(bad.URL)
	m.Retries, m.RetryDelay, m.FailureCallback = 2, "0", &Callback{URL: told.URL}
	publish(t, e, m)
	settle(t, e)
	publish(t, e, to("http://10.0.0.1/")) // which the policy of these tests forbids
	settle(t, e)
	expectMetrics(t, registry, map[string]float64{
		"publishes_total{accepted}": 3, "publishes_total{duplicate}": 1, "publishes_total{failed}": 0,
		"delivery_attempts_total{delivered}": 2, // of the first message and of the callback
		"delivery_attempts_total{retry}":     2,
		"delivery_attempts_total{failed}":    2,
		"delivery_dead_letters_total":        2,
		"delivery_callbacks_total":           1,
		"delivery_egress_blocked_total":      1,
		"delivery_attempt_seconds":           6,
		"delivery_first_attempt_seconds":     4,
		"delivery_attempts_in_flight":        0,
		"delivery_tasks_held":                0,
	})

	put(t, e, Schedule{ID: "s", Cron: "* * * * *", Destination: toURL(good.URL), Message: Message{Method: http.MethodPost}})
	advance(t, e, time.Minute)
	expectMetrics(t, registry, map[string]float64{"schedule_ticks_total{published}": 1, "schedule_ticks_total{failed}": 0})
}

// TestBacklogMetrics tells what waits for its time from what is due and what is leased.
func TestBacklogMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	e := engine(t, database(t), func(c *Config) { c.Metrics = registry })
	hold := make(chan struct{})
	defer close(hold)
	s := newSink(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	})
	later := to(s.URL)
	later.Delay = time.Hour
	for range 3 {
		publish(t, e, later)
	}
	publish(t, e, to(s.URL))
	eventually(t, "an attempt runs", func() bool { return len(s.requests()) == 1 })
	expectMetrics(t, registry, map[string]float64{
		"delivery_tasks{waiting}": 3, "delivery_tasks{due}": 0, "delivery_tasks{leased}": 1, "delivery_oldest_due_seconds": 0,
		"delivery_attempts_in_flight": 1,
	})
	// What nobody takes is due for as long as it is so.
	if _, err := e.pool.Exec(t.Context(), `
		insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size, lease)
		select gen_random_uuid(), 0, 0, false, clock_timestamp() - interval '1 hour', 1, 1, -1`); err != nil {
		t.Fatal(err)
	}
	if _, err := e.pool.Exec(t.Context(), `update delivery_task set due_at = clock_timestamp() - interval '1 hour', lane = 7 where due_at > clock_timestamp()`); err != nil {
		t.Fatal(err)
	}
	b, err := newBacklogCollector(e).read()
	if err != nil {
		t.Fatal(err)
	}
	if b.due != 3 || b.waiting != 0 || b.leased < 1 {
		t.Errorf("%+v, want 3 due in a lane", b)
	}
}

// TestGateMetrics tells what waits for a delivery queue, for a flow control key and for a host.
func TestGateMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	e := engine(t, database(t), func(c *Config) { c.Metrics, c.Timeout = registry, time.Hour })
	expectMetrics(t, registry, map[string]float64{"delivery_tasks_gated{queue}": 0, "delivery_tasks_gated{flow}": 0, "delivery_tasks_gated{host}": 0})
	dead := silentHost(t)
	for range 3 { // of which one has the place
		m := to(dead)
		m.Queue = "q"
		publish(t, e, m)
	}
	later := to(dead)
	later.Queue, later.Delay = "q", time.Hour
	publish(t, e, later)
	for range 4 {
		m := to(dead + "/flow")
		m.FlowKey, m.Flow = "k", FlowLimits{Parallelism: 1}
		publish(t, e, m)
	}
	both := to(dead) // which waits for the queue first
	both.Queue, both.FlowKey, both.Flow = "q", "k", FlowLimits{Parallelism: 1}
	publish(t, e, both)
	hosts := make([]Message, 2*claimLimit) // more than one host may have in memory
	for i := range hosts {
		hosts[i] = to(dead + "/host")
		hosts[i].Delay = time.Minute
	}
	if _, err := e.Publish(t.Context(), Publish{Messages: hosts}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.pool.Exec(t.Context(), `update setting set clock_offset = clock_offset + interval '2 minutes'`); err != nil {
		t.Fatal(err)
	}
	signal(e.due)
	var b backlog
	eventually(t, "each gate holds back its own", func() bool {
		var err error
		if b, err = newBacklogCollector(e).read(); err != nil {
			t.Fatal(err)
		}
		return b.queue == 3 && b.flow == 3 && b.host > 0 && b.waiting == 1
	})
	if b.due < b.queue+b.flow+b.host {
		t.Errorf("%+v: fewer are due than wait for a place", b)
	}
}
