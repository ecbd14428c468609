package queue

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// An extension never shortens a lease, and never revives one that has expired. The cursors of a deleted queue
// outlive it until they are swept, and hold nothing any more.
const sqlExtend = `
with renewed as (
    update cursor c set lease_until = greatest(c.lease_until, clock_timestamp() + $3::interval + $4::interval)
    where c.partition_id = any (coalesce((select partition_ids from lease where id = $1), array[$2::bigint]))
      and c.lease_id = $1 and c.lease_until > clock_timestamp() + $3::interval
      and exists (select from partition p join queue q on q.id = p.queue_id where p.id = c.partition_id)
    returning c.partition_id, c.group_id, c.seeks, c.lease_until
), kept as (
    update lease set expires_at = greatest(expires_at, (select max(lease_until) from renewed)) where id = $1
)
select partition_id, group_id, seeks, lease_until from renewed`

// ExtendLease makes every live lease row of the id last until d from now, at least.
// An id that is unknown or whose leases have expired renews nothing; that is no error.
func (e *Engine) ExtendLease(ctx context.Context, leaseID string, d time.Duration) (Lease, error) {
	id, err := uuid.Parse(leaseID)
	if err != nil {
		return Lease{}, nil // an id that is none names no lease
	}
	type renewal struct {
		key   cursorKey
		seeks int64
		till  time.Time
	}
	var renewals []renewal
	err = e.retrying(ctx, "extend a lease", func(ctx context.Context) error {
		renewals = nil
		rows, err := e.pool.Query(ctx, sqlExtend, id, leasePartition(id), e.clockOffset(), d)
		if err != nil {
			return err
		}
		var r renewal
		_, err = pgx.ForEachRow(rows, []any{&r.key.partitionID, &r.key.groupID, &r.seeks, &r.till}, func() error {
			renewals = append(renewals, r)
			return nil
		})
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	now := e.clock.Now()
	p := e.pops
	p.mu.Lock()
	defer p.mu.Unlock()
	lease := Lease{Renewed: len(renewals)}
	for _, r := range renewals {
		if lease.ExpiresAt.IsZero() || r.till.Before(lease.ExpiresAt) {
			lease.ExpiresAt = r.till
		}
		part := e.catalog.partitionByID(r.key.partitionID)
		if part == nil {
			continue
		}
		for _, g := range part.queue.groups {
			if c := g.cursors[part.id]; c != nil && g.id == r.key.groupID && c.seeks <= r.seeks {
				c.leaseID, c.leaseTill = id, r.till
				p.place(c, now)
			}
		}
	}
	return lease, nil
}
