package queue

import (
	"context"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Parked is how many pops wait.
func (e *Engine) Parked() int { return e.pops.parked() }

// ClaimStatements is how often pops went to the database to claim something.
func (e *Engine) ClaimStatements() int { return int(counted(e.metrics.claims)) }

// counted reads a counter.
func counted(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

// DedupBytes is the memory that deduplication holds, estimated.
func (e *Engine) DedupBytes() int64 { return e.dedupBytes() }

// Frame is a stored message.
func Frame(id uuid.UUID, txID, payload string) []byte {
	return appendFrame(nil, &draft{id: id, txID: txID, payload: []byte(payload)})
}

// FailedFlushes is how many appends or loads of partitions have failed.
func (e *Engine) FailedFlushes() int { return int(counted(e.metrics.failures)) }

// UnknownCommits is how many commits lost their answer, UnknownLanded how many of them had happened.
func (e *Engine) UnknownCommits() int { return int(counted(e.metrics.unknownCommits)) }

// UnknownLanded is how many commits that lost their answer had happened.
func (e *Engine) UnknownLanded() int { return int(counted(e.metrics.unknownLanded)) }

// Tidy removes what nobody needs any more, now.
func (e *Engine) Tidy(ctx context.Context) error { return e.tidy(ctx) }
