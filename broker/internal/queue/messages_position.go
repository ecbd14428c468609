package queue

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// groupPosition is where a consumer group stands in a partition.
type groupPosition struct {
	name       string
	committed  int64
	retries    int
	leaseEnd   int64
	leaseUntil time.Time // zero means no live lease
}

func (g *groupPosition) leases(offset int64) bool {
	return !g.leaseUntil.IsZero() && offset >= g.committed && offset < g.leaseEnd
}

// groupPositions are those of all groups of the queue, by name.
type groupPositions []groupPosition

// A group without a cursor stands at the beginning, or past what it does not want.
const sqlPositions = `
select p.id, g.name, coalesce(c.committed, case when g.from_at is not null then ` + endBefore + ` end, 0), coalesce(c.retries, 0),
       coalesce(c.lease_end, 0),
       case when c.lease_id is not null and c.lease_until > clock_timestamp() + $2::interval then c.lease_until end
from partition p
join consumer_group g on g.queue_id = p.queue_id
left join cursor c on c.partition_id = p.id and c.group_id = g.id
cross join lateral (select p.id as partition_id, g.from_at as before) w
where p.id = any ($1)
order by p.id, g.name`

// positions reads where the consumer groups of partitions stand.
func (e *Engine) positions(ctx context.Context, ids []int64) (map[int64]groupPositions, error) {
	var found map[int64]groupPositions
	err := e.retrying(ctx, "read cursors", func(ctx context.Context) error {
		found = map[int64]groupPositions{}
		rows, _ := e.pool.Query(ctx, sqlPositions, distinct(ids), e.clockOffset()) // its error comes with the rows
		var id int64
		var g groupPosition
		var until *time.Time
		_, err := pgx.ForEachRow(rows, []any{&id, &g.name, &g.committed, &g.retries, &g.leaseEnd, &until}, func() error {
			g.leaseUntil = time.Time{}
			if until != nil {
				g.leaseUntil = *until
			}
			found[id] = append(found[id], g)
			return nil
		})
		return err
	})
	return found, err
}

// slowest is the first offset that not every group has passed.
func (p groupPositions) slowest() int64 {
	if len(p) == 0 {
		return 0
	}
	low := p[0].committed
	for _, g := range p[1:] {
		low = min(low, g.committed)
	}
	return low
}

// status says what consumers have done with a message.
func (p groupPositions) status(offset int64, dead bool) (status MessageStatus, leaseUntil time.Time) {
	for i := range p {
		if p[i].leases(offset) && p[i].leaseUntil.After(leaseUntil) {
			leaseUntil = p[i].leaseUntil
		}
	}
	switch {
	case dead:
		return StatusDeadLetter, leaseUntil
	case !leaseUntil.IsZero():
		return StatusProcessing, leaseUntil
	case offset < p.slowest():
		return StatusCompleted, leaseUntil
	}
	return StatusPending, leaseUntil
}

// interval is [lo, hi).
type interval struct{ lo, hi int64 }

// intervals returns the offsets of a status, dead letters apart.
func (p groupPositions) intervals(status MessageStatus) []interval {
	leased := p.leased()
	switch status {
	case StatusProcessing:
		return leased
	case StatusCompleted:
		if low := p.slowest(); low > 0 {
			return []interval{{0, low}}
		}
		return nil
	case StatusPending, StatusDeadLetter:
	}
	var rest []interval
	from := p.slowest()
	for _, l := range leased { // none begins before the slowest group
		if l.lo > from {
			rest = append(rest, interval{from, l.lo})
		}
		from = max(from, l.hi)
	}
	return append(rest, interval{from, endless})
}

// leased returns what is under a live lease, joined and in order.
func (p groupPositions) leased() []interval {
	var list []interval
	for _, g := range p {
		if !g.leaseUntil.IsZero() && g.leaseEnd > g.committed {
			list = append(list, interval{g.committed, g.leaseEnd})
		}
	}
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(a.lo, b.lo) })
	joined := list[:0]
	for _, iv := range list {
		if n := len(joined); n > 0 && iv.lo <= joined[n-1].hi {
			joined[n-1].hi = max(joined[n-1].hi, iv.hi)
			continue
		}
		joined = append(joined, iv)
	}
	return joined
}
