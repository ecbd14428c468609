package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// How often the broker repairs and tidies up.
const (
	sweepBlocked = 500 * time.Millisecond // look whether leases were given back at other brokers
	sweepTidy    = 30 * time.Second
)

// How long what is only needed for a while is kept.
const (
	flushKept     = "10 minutes" // a broker that was away for longer reads its partitions anew
	leaseKept     = "1 hour"     // after a shared lease expired
	tombstoneKept = "1 hour"     // after a queue or a group was deleted: every broker has heard of it by then
	deletionKept  = "30 days"    // after a queue was deleted: no spool holds anything older
)

// orphanGrace is how long after the deletion of a group a claim for it may still have been in the air.
const orphanGrace = time.Minute

// sweepStep is how many rows one statement of the sweep removes at most.
const sweepStep = 1000

// sweepPartitions is how many partitions of a deleted queue one step removes.
const sweepPartitions = "100"

// sweepLoop repairs what hints between brokers missed, and removes rows that nobody needs.
func (e *Engine) sweepLoop(ctx context.Context) {
	blocked := time.NewTicker(sweepBlocked)
	defer blocked.Stop()
	tidy := time.NewTicker(sweepTidy)
	defer tidy.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-blocked.C:
			err = e.sweepBlocked(ctx)
		case <-tidy.C:
			err = e.tidy(ctx)
		case <-e.tidyNow:
			err = e.tidy(ctx)
		}
		if err != nil && ctx.Err() == nil && !pg.Unavailable(err) {
			e.log.Error("sweep failed", "err", err)
		}
	}
}

// sweepBlocked reads the cursors that pops wait for and that seem to be under a lease.
func (e *Engine) sweepBlocked(ctx context.Context) error {
	if found := e.pops.awaited(); len(found) > 0 {
		_, err := e.readCursors(ctx, found)
		return err
	}
	return nil
}

// awaited returns blocked cursors of groups that pops wait for.
func (p *popper) awaited() []*cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting == 0 {
		return nil
	}
	p.engine.catalog.mu.RLock()
	defer p.engine.catalog.mu.RUnlock()
	var found []*cursor
	for _, q := range p.engine.catalog.queueID {
		for _, g := range q.groups {
			if g.waiters.Len() > 0 || g.singles > 0 {
				found = g.appendBlocked(found)
			}
		}
	}
	return found
}

const sqlTrimFlushes = `
delete from flush f using (
    select f.shard, f.seq from flush f join count_progress c on c.shard = f.shard and f.seq <= c.seq
    where f.created_at < clock_timestamp() + $1::interval - interval '` + flushKept + `' limit $2
) old where f.shard = old.shard and f.seq = old.seq`

const sqlTrimLeases = `
delete from lease where id in (
    select id from lease where expires_at < clock_timestamp() + $1::interval - interval '` + leaseKept + `' limit $2
)`

const sqlTrimDeletions = `
delete from queue_deletion where name in (
    select name from queue_deletion where deleted_at < clock_timestamp() + $1::interval - interval '` + deletionKept + `' limit $2
)`

const sqlSweepSegments = `
delete from segment s using (
    select partition_id, base from segment
    where partition_id in (select id from partition where queue_id = $1 order by id limit ` + sweepPartitions + `)
    limit $2
) old where s.partition_id = old.partition_id and s.base = old.base`

// The rows of a deleted queue go in steps, children first. The tombstone goes last, and only when
// it is old: until then a broker that had not heard of the deletion may still have left something.
const sqlSweepQueue = `
with doomed as (
    select id from partition where queue_id = $1 order by id limit ` + sweepPartitions + ` for update skip locked
), cursors as (
    delete from cursor where partition_id in (select id from doomed)
), letters as (
    delete from dead_letter where partition_id in (select id from doomed)
), counts as (
    delete from partition_count where partition_id in (select id from doomed)
), gone as (
    delete from partition where id in (select id from doomed) returning id
)
select exists (select from gone)`

const sqlSweepGroups = `delete from consumer_group where queue_id = $1`

// Counts that were added while the partitions were swept.
const sqlSweepCounts = `delete from partition_count where queue_id = $1`

const sqlSweepTraffic = `delete from queue_traffic where queue_id = $1`

const sqlTombstones = `
select t.queue_id from queue_tombstone t
where exists (select from partition p where p.queue_id = t.queue_id)
   or exists (select from consumer_group g where g.queue_id = t.queue_id)
   or t.deleted_at < clock_timestamp() + $1::interval - interval '` + tombstoneKept + `'
order by t.deleted_at limit 100`

const sqlDropTombstone = `
delete from queue_tombstone
where queue_id = $1 and deleted_at < clock_timestamp() + $2::interval - interval '` + tombstoneKept + `'`

// The cursors of a deleted group that a claim in the air has left behind.
const sqlSweepRemoved = `
delete from cursor where (partition_id, group_id) in (
    select c.partition_id, c.group_id from group_change d
    join partition p on p.queue_id = d.queue_id
    join cursor c on c.partition_id = p.id and c.group_id = d.group_id
    where d.removed and d.changed_at < $1
    order by c.partition_id, c.group_id limit $2
    for update of c
)`

const sqlSweptRemoved = `update group_change set removed = false where removed and changed_at < $1`

const sqlTrimGroupChanges = `
delete from group_change where (version, group_id) in (
    select version, group_id from group_change
    where changed_at < clock_timestamp() + $1::interval - interval '` + tombstoneKept + `' and not removed limit $2
)`

// tidy removes what nobody needs any more, in small steps.
func (e *Engine) tidy(ctx context.Context) error {
	for _, sql := range []string{sqlTrimFlushes, sqlTrimLeases, sqlTrimGroupChanges, sqlTrimReports, sqlTrimDeletions} {
		if err := e.inSteps(ctx, sql, e.clockOffset()); err != nil {
			return err
		}
	}
	if err := e.inSteps(ctx, sqlTrimTraffic, e.clockOffset(), e.cfg.TrafficKept); err != nil {
		return err
	}
	if err := e.inSteps(ctx, sqlTrimMarks, markKept); err != nil {
		return err
	}
	if err := e.trimTraces(ctx); err != nil {
		return err
	}
	if err := e.sweepRemoved(ctx); err != nil {
		return err
	}
	if err := e.forgetRemoved(ctx); err != nil {
		return err
	}
	return e.sweepDeleted(ctx)
}

// sweepRemoved removes cursors of deleted groups.
func (e *Engine) sweepRemoved(ctx context.Context) error {
	before := e.clock.Now().Add(-orphanGrace)
	if err := e.inSteps(ctx, sqlSweepRemoved, before); err != nil {
		return err
	}
	bounded, cancel := e.deadline(ctx)
	defer cancel()
	_, err := e.pool.Exec(bounded, sqlSweptRemoved, before)
	return err
}

// inSteps repeats a statement that removes at most sweepStep rows until it finds fewer.
// Its first parameter is first, its second the number of rows; the others follow.
func (e *Engine) inSteps(ctx context.Context, sql string, first any, others ...any) error {
	args := append([]any{first, sweepStep}, others...)
	for {
		bounded, cancel := e.deadline(ctx)
		tag, err := e.pool.Exec(bounded, sql, args...)
		cancel()
		if err != nil || tag.RowsAffected() < sweepStep {
			return err
		}
	}
}

// sweepDeleted removes the rows of deleted queues.
func (e *Engine) sweepDeleted(ctx context.Context) error {
	var ids []int64
	err := e.retrying(ctx, "find deleted queues", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlTombstones, e.clockOffset()) // its error comes with the rows
		var err error
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := e.inSteps(ctx, sqlSweepTraces, id); err != nil {
			return err
		}
		for left := true; left; {
			if err := e.inSteps(ctx, sqlSweepSegments, id); err != nil {
				return err
			}
			err := e.retrying(ctx, "sweep a deleted queue", func(ctx context.Context) error {
				return e.pool.QueryRow(ctx, sqlSweepQueue, id).Scan(&left)
			})
			if err != nil {
				return err
			}
		}
		err := e.retrying(ctx, "forget a deleted queue", func(ctx context.Context) error {
			for _, sql := range []string{sqlSweepGroups, sqlSweepCounts, sqlSweepTraffic} {
				if _, err := e.pool.Exec(ctx, sql, id); err != nil {
					return err
				}
			}
			_, err := e.pool.Exec(ctx, sqlDropTombstone, id, e.clockOffset())
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
