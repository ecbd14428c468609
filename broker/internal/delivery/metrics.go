package delivery

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the engine's counters. They are kept also when nobody registers them.
type metrics struct {
	publishes      *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	attemptSeconds prometheus.Histogram
	firstSeconds   prometheus.Histogram
	deadLetters    prometheus.Counter
	callbacks      prometheus.Counter
	blocked        prometheus.Counter
	ticks          *prometheus.CounterVec
	stripped       prometheus.Counter
	refused        prometheus.Counter
}

// What attempts are counted as.
const (
	attemptDelivered = "delivered"
	attemptRetry     = "retry"
	attemptFailed    = "failed"
	attemptCancelled = "cancelled"
	attemptLost      = "lost"
)

const metricsNamespace = "posthorn"

func newMetrics(registry prometheus.Registerer, e *Engine) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: metricsNamespace, Name: name, Help: help})
	}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metricsNamespace, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: metricsNamespace, Name: name, Help: help, Buckets: buckets})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: metricsNamespace, Name: name, Help: help}, value)
	}
	times := prometheus.ExponentialBuckets(0.001, 2, 16) // to 33 s
	m := &metrics{
		publishes:      vector("publishes_total", "Publishes by outcome: accepted when their messages were committed.", "outcome"),
		attempts:       vector("delivery_attempts_total", "Attempts to deliver a message by outcome, as it was committed: retry when another attempt follows, lost when another broker had taken the message over.", "outcome"),
		attemptSeconds: histogram("delivery_attempt_seconds", "Time of an attempt, from the start to the destination's answer or the lack of one.", times),
		firstSeconds:   histogram("delivery_first_attempt_seconds", "Time from when a message was due, at once if it had no delay, to the start of its first attempt.", times),
		deadLetters:    counter("delivery_dead_letters_total", "Deliveries that failed for good and were filed as dead letters."),
		callbacks:      counter("delivery_callbacks_total", "Callbacks and failure callbacks that were accepted for delivery."),
		blocked:        counter("delivery_egress_blocked_total", "Attempts that the egress policy forbade."),
		ticks:          vector("schedule_ticks_total", "Ticks of schedules that this broker published by outcome: failed when a tick published nothing.", "outcome"),
		stripped:       counter("delivery_outcomes_stripped_total", "Outcomes of attempts of which PostgreSQL refused a part, and that were stored without it."),
		refused:        counter("delivery_outcomes_refused_total", "Outcomes of attempts that PostgreSQL refused to store: the attempts are made again after a pause that grows."),
	}
	// What is counted from 0 on can be seen to increase the first time that it happens.
	for counts, outcomes := range map[*prometheus.CounterVec][]string{
		m.publishes: {"accepted", "duplicate", "failed"},
		m.attempts:  {attemptDelivered, attemptRetry, attemptFailed, attemptCancelled, attemptLost},
		m.ticks:     {"published", "failed"},
	} {
		for _, outcome := range outcomes {
			counts.WithLabelValues(outcome)
		}
	}
	if registry != nil {
		registry.MustRegister(
			m.publishes, m.attempts, m.attemptSeconds, m.firstSeconds, m.deadLetters, m.callbacks, m.blocked, m.ticks, m.stripped, m.refused,
			gauge("delivery_attempts_in_flight", "Attempts that are being made, or whose outcome is being committed.", func() float64 { return float64(e.dispatch.counts().running) }),
			gauge("delivery_tasks_held", "Deliveries that wait in this broker's memory for their turn.", func() float64 { return float64(e.dispatch.counts().waiting) }),
			newBacklogCollector(e),
		)
	}
	return m
}

// published counts a publish that was answered.
func (m *metrics) published(u *unit) {
	switch {
	case u.err != nil:
		m.publishes.WithLabelValues("failed").Inc()
	case u.result.Duplicate:
		m.publishes.WithLabelValues("duplicate").Inc()
	default:
		m.publishes.WithLabelValues("accepted").Inc()
	}
}

// began observes how late a first attempt starts.
func (m *metrics) began(o *outcome) {
	if o.job.retried == 0 {
		m.firstSeconds.Observe(max(0, o.start.Sub(o.message.FirstAt).Seconds()))
	}
}

// settled counts what was committed.
func (m *metrics) settled(v *verdict) {
	for outcome, n := range v.counts {
		m.attempts.WithLabelValues(outcome).Add(float64(n))
	}
	m.deadLetters.Add(float64(len(v.dead.keys)))
	m.callbacks.Add(float64(len(v.callbacks)))
}

// ticked counts the ticks of a transaction: how many schedules published something and how many did not.
func (m *metrics) ticked(failures []*string) {
	for _, failure := range failures {
		if failure == nil {
			m.ticks.WithLabelValues("published").Inc()
		} else {
			m.ticks.WithLabelValues("failed").Inc()
		}
	}
}

// dispatcherCounts is what a dispatcher holds.
type dispatcherCounts struct{ waiting, running int }

func (d *dispatcher) counts() dispatcherCounts {
	d.mu.Lock()
	defer d.mu.Unlock()
	return dispatcherCounts{d.waiting, d.running}
}

// backlogCollector shows what waits in the database. It asks at most once per backlogAge, counts a bounded number of
// tasks, and shows nothing while PostgreSQL is away.
type backlogCollector struct {
	engine *Engine
	tasks  *prometheus.Desc
	gated  *prometheus.Desc
	oldest *prometheus.Desc

	mu   sync.Mutex
	at   time.Time
	last backlog
	err  error
}

type backlog struct {
	waiting, due, leased int64
	queue, flow, host    int64         // of those that are due: what they wait for
	oldest               time.Duration // how long the one that is due longest has been so
}

const (
	backlogAge      = 5 * time.Second
	backlogPatience = 2 * time.Second // how long a scrape waits for the database
	backlogLimit    = 100_000         // tasks that are counted of each state
)

func newBacklogCollector(e *Engine) *backlogCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metricsNamespace+"_"+name, help, labels, nil)
	}
	return &backlogCollector{
		engine: e,
		tasks:  desc("delivery_tasks", "Deliveries that are not over, by state: waiting for their time, due, or leased by a broker; 100000 means so many or more.", "state"),
		gated:  desc("delivery_tasks_gated", "Deliveries that are due and wait for a place, by what they wait for: a delivery queue, a flow control key or a host; 100000 means so many or more of them all.", "gate"),
		oldest: desc("delivery_oldest_due_seconds", "How long the delivery that has been due longest has waited for a broker to take it, those that wait for a host, a queue or a flow control key left out."),
	}
}

// Describe implements prometheus.Collector.
func (c *backlogCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.tasks
	out <- c.gated
	out <- c.oldest
}

// Collect implements prometheus.Collector.
func (c *backlogCollector) Collect(out chan<- prometheus.Metric) {
	b, err := c.read()
	if err != nil {
		return
	}
	for state, n := range map[string]int64{"waiting": b.waiting, "due": b.due, "leased": b.leased} {
		out <- prometheus.MustNewConstMetric(c.tasks, prometheus.GaugeValue, float64(n), state)
	}
	for gate, n := range map[string]int64{"queue": b.queue, "flow": b.flow, "host": b.host} {
		out <- prometheus.MustNewConstMetric(c.gated, prometheus.GaugeValue, float64(n), gate)
	}
	out <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, b.oldest.Seconds())
}

// sqlBacklog counts by the partial indexes of what is not leased by time, what is in lanes, and what is leased. What waits
// in a lane is due, but for what a delivery queue or a key keeps in order until then.
const sqlBacklog = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
lanes as materialized (
    select count(*) filter (where due_at > now) as waiting, count(*) filter (where due_at <= now) as due,
        count(*) filter (where due_at <= now and lane = queue_lane) as queue,
        count(*) filter (where due_at <= now and lane = flow_lane) as flow,
        count(*) filter (where due_at <= now and lane = host) as host
    from (select due_at, lane, queue_lane, flow_lane, host from delivery_task where lease is null and lane is not null limit $1) l
    cross join t)
select
    least($1, lanes.waiting + (select count(*) from (select from delivery_task
        where lease is null and lane is null and due_at > (select now from t) limit $1) w)),
    least($1, lanes.due + (select count(*) from (select from delivery_task
        where lease is null and lane is null and due_at <= (select now from t) limit $1) d)),
    (select count(*) from (select from delivery_task where lease is not null limit $1) l),
    lanes.queue, lanes.flow, lanes.host,
    greatest((select now from t) - (select min(due_at) from delivery_task where lease is null and lane is null), interval '0')
from lanes`

func (c *backlogCollector) read() (backlog, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < backlogAge {
		return c.last, c.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), backlogPatience)
	defer cancel()
	var b backlog
	var oldest *time.Duration
	c.err = c.engine.pool.QueryRow(ctx, sqlBacklog, int64(backlogLimit)).Scan(&b.waiting, &b.due, &b.leased, &b.queue, &b.flow, &b.host, &oldest)
	if oldest != nil {
		b.oldest = *oldest
	}
	c.last, c.at = b, time.Now()
	return c.last, c.err
}
