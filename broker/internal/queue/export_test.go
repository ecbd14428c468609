package queue

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
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

// RemoveFirstSegment empties the first segment of a partition that has frames, as retention does, and
// returns how many messages that were.
func (e *Engine) RemoveFirstSegment(t testing.TB, queueName, partitionName string) (messages int64) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) error {
		var r removedRun
		var base int64
		err := tx.QueryRow(t.Context(), `
			select g.partition_id, g.base, g.count, octet_length(g.frames) from segment g
			join partition p on p.id = g.partition_id join queue q on q.id = p.queue_id
			where q.name = $1 and p.name = $2 and g.frames is not null
			order by g.base limit 1`, queueName, partitionName).Scan(&r.partitionID, &base, &r.messages, &r.bytes)
		if err != nil {
			return err
		}
		r.segments, r.start, messages = 1, base+r.messages, r.messages
		if _, err := tx.Exec(t.Context(), `update segment set frames = null where partition_id = $1 and base = $2`, r.partitionID, base); err != nil {
			return err
		}
		return subtractCounts(t.Context(), tx, []removedRun{r})
	})
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// ColdReads is how many partitions pops had to read from the database.
func (e *Engine) ColdReads() int { return int(counted(e.metrics.coldReads)) }

// Lead takes the lead of retention if nobody has it.
func (e *Engine) Lead(ctx context.Context) error { return e.takeLead(ctx, false) }

// RemoveMessages is the first part of a pass of retention, by a broker that believes it leads.
func (e *Engine) RemoveMessages(ctx context.Context) error {
	return (&walk{engine: e}).removeMessages(ctx)
}

// PartitionsRemoved is how many partitions this broker's retention removed.
func (e *Engine) PartitionsRemoved() int { return int(counted(e.metrics.partitionsRemoved)) }
