package queue

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthorn/posthorn/broker/internal/spool"
)

// metrics are the engine's counters. They are kept also when nobody registers them.
type metrics struct {
	pushes             *prometheus.CounterVec
	pushItems          *prometheus.CounterVec
	pushBatch          prometheus.Histogram
	flushes            *prometheus.CounterVec
	flushSeconds       prometheus.Histogram
	flushItems         prometheus.Histogram
	failures           prometheus.Counter
	unknownCommits     prometheus.Counter
	unknownLanded      prometheus.Counter
	appendConflicts    prometheus.Counter
	connectionsDropped prometheus.Counter

	counted struct { // what reports say, without a look into the collectors
		pushes, pops, acks, pushed, popped, acked, failed, dead, dropped atomic.Int64
	}

	pops           *prometheus.CounterVec
	popMessages    prometheus.Counter
	popBatch       prometheus.Histogram
	claims         prometheus.Counter
	claimSeconds   prometheus.Histogram
	coldReads      prometheus.Counter
	claimConflicts prometheus.Counter

	transactions *prometheus.CounterVec
	outboxMoved  prometheus.Counter

	ackRequests  *prometheus.CounterVec
	acks         *prometheus.CounterVec
	ackBatch     prometheus.Histogram
	ackSeconds   prometheus.Histogram
	deadLetters  prometheus.Counter
	ackConflicts prometheus.Counter

	removedMessages   prometheus.Counter
	removedSegments   prometheus.Counter
	partitionsRemoved prometheus.Counter
}

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
	function := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: metricsNamespace, Name: name, Help: help}, value)
	}
	sizes := prometheus.ExponentialBuckets(1, 4, 8)
	times := prometheus.ExponentialBuckets(0.0005, 2, 14)
	m := &metrics{
		pushes:             vector("pushes_total", "Push requests by outcome: ok when every item was queued, a duplicate or buffered.", "outcome"),
		pushBatch:          histogram("push_batch_items", "Items per push request.", sizes),
		pushItems:          vector("push_items_total", "Pushed items by status.", "status"),
		flushes:            vector("flushes_total", "Statements that append to the log, by outcome.", "outcome"),
		flushSeconds:       histogram("flush_seconds", "Time of a statement that appends to the log, its commit included.", times),
		flushItems:         histogram("flush_items", "Messages appended by one statement.", sizes),
		failures:           counter("push_failures_total", "Times that groups of pushed items could not be committed, whatever became of them then."),
		unknownCommits:     counter("unknown_commits_total", "Appends whose outcome was lost with the connection."),
		unknownLanded:      counter("unknown_commits_landed_total", "Appends whose outcome was lost and that had been committed."),
		appendConflicts:    counter("append_conflicts_total", "Appends that another broker came before; they were decided again."),
		connectionsDropped: counter("connections_dropped_total", "Times the connections to PostgreSQL were given up."),
		pops:               vector("pops_total", "Pops by outcome.", "outcome"),
		popMessages:        counter("pop_messages_total", "Messages delivered by pops."),
		popBatch:           histogram("pop_batch_messages", "Messages per pop that got any.", sizes),
		claims:             counter("claims_total", "Statements that claim messages for waiting pops."),
		claimSeconds:       histogram("claim_seconds", "Time of a statement that claims messages for waiting pops, its commit included.", times),
		coldReads:          counter("pop_cold_reads_total", "Partitions whose messages were read from PostgreSQL for a pop."),
		claimConflicts:     counter("claim_conflicts_total", "Claims that found a cursor different from what was known."),
		outboxMoved:        counter("outbox_moved_total", "Messages that this broker moved from the outbox to the log."),
		transactions:       vector("transactions_total", "Transactions by outcome.", "outcome"),
		ackRequests:        vector("ack_requests_total", "Ack requests by outcome: ok when they could be looked at, whatever became of their items.", "outcome"),
		ackBatch:           histogram("ack_batch_items", "Items per ack request.", sizes),
		ackSeconds:         histogram("ack_seconds", "Time of a statement that moves cursors for acks, its commit included.", times),
		acks:               vector("acks_total", "Acknowledged items by outcome.", "outcome"),
		deadLetters:        counter("dead_letters_total", "Messages filed as dead letters."),
		removedMessages:    counter("retention_messages_total", "Messages that this broker removed because their queue no longer keeps them."),
		removedSegments:    counter("retention_segments_total", "Segments whose messages this broker removed because their queue no longer keeps them."),
		partitionsRemoved:  counter("retention_partitions_total", "Partitions that this broker removed because they were empty and idle."),
		ackConflicts:       counter("ack_conflicts_total", "Acks that found a cursor different from what was known."),
	}
	// What is counted from 0 on can be seen to increase the first time that it happens.
	for counts, outcomes := range map[*prometheus.CounterVec][]string{
		m.pushes:       {"ok", "failed"},
		m.pushItems:    {string(Queued), string(Duplicate), string(Buffered), string(Failed)},
		m.flushes:      {"ok", "error"},
		m.pops:         {"messages", "empty", "error"},
		m.transactions: {"committed", "duplicate", "rejected", "unknown", "failed"},
		m.ackRequests:  {"ok", "error"},
		m.acks:         {"done", "noop", "refused", "dead_letter"},
	} {
		for _, outcome := range outcomes {
			counts.WithLabelValues(outcome)
		}
	}
	if registry != nil {
		registry.MustRegister(
			m.pushes, m.pushBatch, m.pushItems, m.flushes, m.flushSeconds, m.flushItems, m.failures, m.unknownCommits, m.unknownLanded,
			m.appendConflicts, m.connectionsDropped, m.pops, m.popMessages, m.popBatch, m.claims, m.claimSeconds, m.coldReads,
			m.claimConflicts, m.transactions, m.outboxMoved, m.ackRequests, m.ackBatch, m.ackSeconds, m.acks, m.deadLetters, m.ackConflicts,
			m.removedMessages, m.removedSegments, m.partitionsRemoved,
			gauge("pops_parked", "Pops that wait for a message.", func() float64 { return float64(e.pops.parked()) }),
			gauge("dedup_bytes", "Memory of the deduplication, estimated.", func() float64 { return float64(e.dedupBytes()) }),
			gauge("segment_cache_bytes", "Memory of cached segments.", func() float64 { return float64(e.segments.size()) }),
			gauge("pool_connections", "Connections to PostgreSQL.", func() float64 { return float64(e.pool.Stat().TotalConns()) }),
			gauge("pool_size", "Most connections to PostgreSQL.", func() float64 { return float64(e.pool.Stat().MaxConns()) }),
			function("pool_waits_total", "Times that a connection had to be waited for.", func() float64 { return float64(e.pool.Stat().EmptyAcquireCount()) }),
			function("pool_wait_seconds_total", "Time spent waiting for connections.", func() float64 { return e.pool.Stat().EmptyAcquireWaitTime().Seconds() }),
			gauge("pool_connections_busy", "Connections to PostgreSQL in use.", func() float64 { return float64(e.pool.Stat().AcquiredConns()) }),
		)
		if e.cfg.LagQueues > 0 {
			registry.MustRegister(newLagCollector(e))
		}
		if s := e.cfg.Spool; s != nil {
			registry.MustRegister(
				gauge("spool_records", "Messages in the spool that wait for PostgreSQL.", func() float64 { return float64(s.Stats().Pending) }),
				gauge("spool_bytes", "Size of the spool's files.", func() float64 { return float64(s.Stats().Bytes) }),
				gauge("spool_failed", "Messages and damaged ranges that the spool has put aside.", func() float64 { return float64(s.Stats().Failed) }),
				gauge("spool_oldest_seconds", "Age of the oldest message in the spool.", func() float64 { return spoolAge(s.Stats(), e.Now()) }),
			)
		}
	}
	return m
}

// spoolAge is how long the oldest record has waited, in seconds.
func spoolAge(s spool.Stats, now time.Time) float64 {
	if s.Pending == 0 {
		return 0
	}
	return max(0, now.Sub(s.Oldest).Seconds())
}

func (e *Engine) dedupBytes() int64 {
	var total int64
	for _, s := range e.shards {
		s.mu.Lock()
		total += s.bytes
		s.mu.Unlock()
	}
	return total
}

// pushed counts one push request that was answered.
func (m *metrics) pushed(results []PushResult) {
	outcome := "ok"
	if n := m.pushedItems(results); n[Failed] > 0 {
		outcome = "failed"
		m.counted.failed.Add(1)
	}
	m.pushes.WithLabelValues(outcome).Inc()
	m.pushBatch.Observe(float64(len(results)))
	m.counted.pushes.Add(1)
}

func (m *metrics) pushedItems(results []PushResult) map[Status]int {
	n := map[Status]int{}
	for i := range results {
		n[results[i].Status]++
	}
	for status, count := range n {
		m.pushItems.WithLabelValues(string(status)).Add(float64(count))
	}
	m.counted.pushed.Add(int64(n[Queued]))
	return n
}

func (m *metrics) flushed(f *flight, took time.Duration, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.flushes.WithLabelValues(outcome).Inc()
	m.flushSeconds.Observe(took.Seconds())
	m.flushItems.Observe(float64(f.items))
}

func (m *metrics) transacted(out *Outcome, err error) {
	var duplicate *DuplicateError
	var rejected *RejectedError
	switch {
	case err == nil:
		m.transactions.WithLabelValues("committed").Inc()
		m.pushedItems(out.Pushed)
		for i := range out.Acked {
			m.ackedItem(&out.Acked[i])
		}
	case errors.As(err, &duplicate):
		m.transactions.WithLabelValues("duplicate").Inc()
	case errors.As(err, &rejected):
		m.transactions.WithLabelValues("rejected").Inc()
	case errors.Is(err, ErrOutcomeUnknown):
		m.transactions.WithLabelValues("unknown").Inc()
	default:
		m.transactions.WithLabelValues("failed").Inc()
	}
}

func (m *metrics) popped(r *PopResult, err error) {
	n := 0
	for _, p := range r.Partitions {
		n += len(p.Messages)
	}
	m.counted.pops.Add(1)
	m.counted.popped.Add(int64(n))
	switch {
	case err != nil:
		m.pops.WithLabelValues("error").Inc()
	case n == 0:
		m.pops.WithLabelValues("empty").Inc()
	default:
		m.pops.WithLabelValues("messages").Inc()
		m.popMessages.Add(float64(n))
		m.popBatch.Observe(float64(n))
	}
}

// acked counts one ack request that was answered.
func (m *metrics) acked(units []*ackGroup, items int, err error) {
	m.counted.acks.Add(1)
	m.ackBatch.Observe(float64(items))
	if err != nil {
		m.ackRequests.WithLabelValues("error").Inc()
		return
	}
	m.ackRequests.WithLabelValues("ok").Inc()
	for _, u := range units {
		for _, en := range u.items {
			m.ackedItem(en.result)
		}
	}
}

func (m *metrics) ackedItem(r *AckResult) {
	outcome := "done"
	switch {
	case r.DeadLettered:
		outcome = "dead_letter"
	case r.Err != nil:
		outcome = "refused"
	case r.Noop:
		outcome = "noop"
	}
	m.acks.WithLabelValues(outcome).Inc()
	if outcome != "refused" {
		m.counted.acked.Add(1)
	}
}

// filed counts a dead letter, whatever filed it.
func (m *metrics) filed() {
	m.deadLetters.Inc()
	m.counted.dead.Add(1)
}

// requests is what the broker has done since its start.
func (m *metrics) requests() Requests {
	c := &m.counted
	return Requests{
		Pushes: c.pushes.Load(), Pops: c.pops.Load(), Acks: c.acks.Load(),
		PushedMessages: c.pushed.Load(), PoppedMessages: c.popped.Load(), AckedItems: c.acked.Load(),
		FailedPushes: c.failed.Load(), DeadLetters: c.dead.Load(), DatabaseErrors: c.dropped.Load(),
	}
}

// lagCollector shows the lag of the queues that are furthest behind. It asks the database at most once per
// StatsInterval, and shows nothing while PostgreSQL is away.
type lagCollector struct {
	engine  *Engine
	pending *prometheus.Desc
	seconds *prometheus.Desc
	hidden  *prometheus.Desc
}

// lagPatience bounds how long a scrape waits for the database.
const lagPatience = time.Second

func newLagCollector(e *Engine) *lagCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, "", name), help, labels, nil)
	}
	return &lagCollector{
		engine:  e,
		pending: desc("queue_pending_messages", "Messages that the slowest group of each partition has not committed, by queue; of the queues with most of them.", "queue"),
		seconds: desc("queue_lag_seconds", "Age of the oldest message that is not committed, by queue; of the same queues.", "queue"),
		hidden:  desc("queues_not_shown", "Queues that the metrics by queue leave out."),
	}
}

func (c *lagCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.pending, c.seconds, c.hidden} {
		descs <- d
	}
}

func (c *lagCollector) Collect(values chan<- prometheus.Metric) {
	e := c.engine
	if e.ctx == nil { // not started
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, lagPatience)
	defer cancel()
	lags, err := e.Lags(ctx, e.cfg.StatsInterval)
	if err != nil {
		e.log.Debug("the lag of queues cannot be shown", "err", err)
		return
	}
	queues := slices.Clone(lags.Queues)
	slices.SortStableFunc(queues, func(a, b NamedLag) int { return int(b.Open - a.Open) })
	shown := queues[:min(len(queues), e.cfg.LagQueues)]
	for _, q := range shown {
		values <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(q.Open), q.Name)
		values <- prometheus.MustNewConstMetric(c.seconds, prometheus.GaugeValue, q.Time.Max, q.Name)
	}
	values <- prometheus.MustNewConstMetric(c.hidden, prometheus.GaugeValue, float64(len(queues)-len(shown)))
}
