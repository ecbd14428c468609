package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// gathered reads the counters of a registry, those with labels as name{value,…}.
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
			var labels []string
			for _, label := range m.GetLabel() {
				labels = append(labels, label.GetValue())
			}
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			if m.GetCounter() != nil {
				values[name] = m.GetCounter().GetValue()
			}
		}
	}
	return values
}

// TestCountersBeginAtZero: a rule over an increase sees the first failure only of a counter that was there before it.
func TestCountersBeginAtZero(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	broker(t, pgtest.URL(t), queue.Config{Metrics: registry})
	got := gathered(t, registry)
	for _, name := range []string{
		"push_items_total{failed}", "push_items_total{buffered}", "push_items_total{duplicate}", "push_items_total{queued}",
		"pushes_total{failed}", "pops_total{error}", "ack_requests_total{error}", "acks_total{refused}", "flushes_total{error}",
		"transactions_total{unknown}", "dead_letters_total",
	} {
		if value, shown := got[name]; !shown || value != 0 {
			t.Errorf("%s is %v, shown: %v", name, value, shown)
		}
	}
}

// TestDeadLettersAreCounted: whatever files a dead letter, an ack, a transaction or a pop in strict mode that cannot
// decrypt, it is counted once.
func TestDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	writer := broker(t, url, queue.Config{Keys: keys(t, "k1")})
	encrypted(t, writer, "cards")
	push(t, writer, secret("cards", "a", "1"))

	registry := prometheus.NewRegistry()
	e := broker(t, url, queue.Config{Keys: keys(t, "k2"), StrictEncryption: true, Metrics: registry})
	push(t, e, item("q", "p", "1"), item("q", "p", "2"), item("q", "p", "3"))
	for i, transacted := range []bool{false, true} {
		r := pop(t, e, queue.PopRequest{Queue: "q", Batch: 1})
		p := r.Partitions[0]
		dead := queue.AckItem{TransactionID: p.Messages[0].TransactionID, PartitionID: p.ID, LeaseID: r.LeaseID, Status: queue.DeadLetter}
		if transacted {
			if _, err := e.Transact(t.Context(), queue.Bundle{Acks: []queue.BundleAck{{AckItem: dead}}}); err != nil {
				t.Fatal(err)
			}
		} else {
			ack(t, e, "", dead)
		}
		got := gathered(t, registry)
		expect(t, "dead letters", got["dead_letters_total"], float64(i+1))
		expect(t, "acks", got["acks_total{dead_letter}"], float64(i+1))
	}
	r := pop(t, e, queue.PopRequest{Queue: "q"})
	p := r.Partitions[0]
	done := queue.AckItem{TransactionID: p.Messages[0].TransactionID, PartitionID: p.ID, LeaseID: r.LeaseID}
	if _, err := e.Transact(t.Context(), queue.Bundle{Acks: []queue.BundleAck{{AckItem: done}}}); err != nil {
		t.Fatal(err)
	}
	expect(t, "completed", gathered(t, registry)["acks_total{done}"], 1.0)

	expect(t, "readable messages", len(ids(pop(t, e, queue.PopRequest{Queue: "cards"}))), 0)
	expect(t, "dead letters", gathered(t, registry)["dead_letters_total"], 3.0)
	now := e.Now()
	points, err := e.Traffic(t.Context(), queue.TrafficFilter{Queue: "cards", From: now.Add(-time.Hour), To: now.Add(time.Minute), Step: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var filed int64
	for _, point := range points {
		filed += point.DeadLettered
	}
	expect(t, "dead letters in the traffic", filed, 1)
}
