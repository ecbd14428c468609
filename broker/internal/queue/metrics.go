package queue

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthorn/posthorn/broker/internal/spool"
)

// metrics are the engine's counters. They are kept also when nobody registers them.
type metrics struct {
	pushItems          *prometheus.CounterVec
	flushes            *prometheus.CounterVec
	flushSeconds       prometheus.Histogram
	flushItems         prometheus.Histogram
	failures           prometheus.Counter
	unknownCommits     prometheus.Counter
	unknownLanded      prometheus.Counter
	appendConflicts    prometheus.Counter
	connectionsDropped prometheus.Counter

	pops           *prometheus.CounterVec
	popMessages    prometheus.Counter
	popBatch       prometheus.Histogram
	claims         prometheus.Counter
	coldReads      prometheus.Counter
	claimConflicts prometheus.Counter

	transactions *prometheus.CounterVec

	acks         *prometheus.CounterVec
	deadLetters  prometheus.Counter
	ackConflicts prometheus.Counter
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
	sizes := prometheus.ExponentialBuckets(1, 4, 8)
	m := &metrics{
		pushItems:          vector("push_items_total", "Pushed items by status.", "status"),
		flushes:            vector("flushes_total", "Statements that append to the log, by outcome.", "outcome"),
		flushSeconds:       histogram("flush_seconds", "Time of a statement that appends to the log, its commit included.", prometheus.ExponentialBuckets(0.0005, 2, 14)),
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
		coldReads:          counter("pop_cold_reads_total", "Partitions whose messages were read from PostgreSQL for a pop."),
		claimConflicts:     counter("claim_conflicts_total", "Claims that found a cursor different from what was known."),
		transactions:       vector("transactions_total", "Transactions by outcome.", "outcome"),
		acks:               vector("acks_total", "Acknowledged items by outcome.", "outcome"),
		deadLetters:        counter("dead_letters_total", "Messages filed as dead letters."),
		ackConflicts:       counter("ack_conflicts_total", "Acks that found a cursor different from what was known."),
	}
	if registry != nil {
		registry.MustRegister(
			m.pushItems, m.flushes, m.flushSeconds, m.flushItems, m.failures, m.unknownCommits, m.unknownLanded,
			m.appendConflicts, m.connectionsDropped, m.pops, m.popMessages, m.popBatch, m.claims, m.coldReads,
			m.claimConflicts, m.transactions, m.acks, m.deadLetters, m.ackConflicts,
			gauge("pops_parked", "Pops that wait for a message.", func() float64 { return float64(e.pops.parked()) }),
			gauge("dedup_bytes", "Memory of the deduplication, estimated.", func() float64 { return float64(e.dedupBytes()) }),
			gauge("segment_cache_bytes", "Memory of cached segments.", func() float64 { return float64(e.segments.size()) }),
			gauge("pool_connections", "Connections to PostgreSQL.", func() float64 { return float64(e.pool.Stat().TotalConns()) }),
			gauge("pool_connections_busy", "Connections to PostgreSQL in use.", func() float64 { return float64(e.pool.Stat().AcquiredConns()) }),
		)
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

func (m *metrics) pushed(status Status) { m.pushItems.WithLabelValues(string(status)).Inc() }

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
		for _, r := range out.Pushed {
			m.pushed(r.Status)
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

func (m *metrics) acked(u *ackGroup) {
	for _, en := range u.items {
		switch r := en.result; {
		case r.DeadLettered:
			m.deadLetters.Inc()
			m.acks.WithLabelValues("dead_letter").Inc()
		case r.Err != nil:
			m.acks.WithLabelValues("refused").Inc()
		case r.Noop:
			m.acks.WithLabelValues("noop").Inc()
		default:
			m.acks.WithLabelValues("done").Inc()
		}
	}
}
