package queue

import (
	"context"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
)

// Partitions that have been empty and idle for long are removed, with their cursors, what streams keep for
// them and their last segment's row. It is done like an append: under the lock of the shard's head, which it moves. A push that
// comes first keeps the partition, since it is not empty any more; one that comes after finds the head moved,
// learns from the flush row that the partition is gone, and creates it anew: a new id, offsets from 0.

// A partition may go when retention has removed all its messages and all hashes but those of the last
// segment, nothing was appended and no cursor moved for $2, nobody asks for its hashes any more, and
// neither a dead letter nor a live lease names it.
const sqlIdle = `
select p.id, p.shard, p.queue_id
from partition p
join (` + sqlRule + `) r on r.queue_id = p.queue_id
left join lateral (
    select base, base + count as past, created_at from segment where partition_id = p.id order by base desc limit 1
) last on true
where p.log_start >= coalesce(last.past, 0)
  and coalesce(last.created_at, p.created_at) < least(r.at - $2::interval, r.forget_before)
  and not exists (select from segment s where s.partition_id = p.id and s.base < last.base)
  and not exists (select from dead_letter d where d.partition_id = p.id)
  and not exists (
      select from cursor c
      where c.partition_id = p.id and (c.updated_at >= r.at - $2::interval or c.lease_until > r.at)
  )`

const sqlFindIdle = `
with part as materialized (
    select id from partition where id > $3 order by id limit $4
), idle as (
    select * from (` + sqlIdle + `) i where id in (select id from part)
)
select (select max(id) from part), array_agg(id order by shard, id), array_agg(shard order by shard, id) from idle`

// cleanStep is how many partitions one step removes at most: it holds up the pushes to its shard.
const cleanStep = 100

// cleanUp removes partitions that have been empty and idle for long.
func (w *walk) cleanUp(ctx context.Context) error {
	e := w.engine
	if err := e.forgetSpools(ctx); err != nil {
		return err
	}
	cleaned := 0
	for after := int64(0); ; {
		var last *int64
		var ids, shards []int64
		began := time.Now()
		err := e.retrying(ctx, "look for idle partitions", func(ctx context.Context) error {
			return e.pool.QueryRow(ctx, sqlFindIdle, e.clockOffset(), e.cfg.PartitionIdle, after, walkStep).Scan(&last, &ids, &shards)
		})
		if err != nil {
			return err
		}
		w.pace(ctx, time.Since(began))
		if last == nil {
			break
		}
		after = *last
		for len(ids) > 0 {
			n := 1
			for n < len(ids) && n < cleanStep && shards[n] == shards[0] {
				n++
			}
			began := time.Now()
			if err := e.removePartitions(ctx, shards[0], ids[:n]); err != nil {
				return err
			}
			cleaned += n
			ids, shards = ids[n:], shards[n:]
			w.pace(ctx, time.Since(began))
		}
	}
	if cleaned == 0 {
		return nil
	}
	return e.catchUp(ctx) // this broker learns of it like the others
}

const sqlRemovePartitions = `
with doomed as materialized (
    select * from (` + sqlIdle + `) i where id = any ($3)
), segments as (
    delete from segment where partition_id in (select id from doomed)
), cursors as (
    delete from cursor where partition_id in (select id from doomed)
), counts as (
    delete from partition_count where partition_id in (select id from doomed)
), states as (
    delete from stream_state s using stream_query q, doomed d join partition p on p.id = d.id
    where s.query_id = q.id and s.partition_uuid = p.uuid
), gone as (
    delete from partition where id in (select id from doomed) returning id
)
select array_agg(id order by id) from gone`

const sqlAnnounceCleanup = `
with moved as (
    update shard set head = head + 1 where id = $1 returning head
)
insert into flush (shard, seq, token, entries, created_at)
select $1, head, 0, $2, clock_timestamp() + $3::interval from moved`

const sqlLockCount = `select from count_progress where shard = $1 for update`

// removePartitions removes those of some partitions of a shard that are still idle once its head is locked.
func (e *Engine) removePartitions(ctx context.Context, shard int64, ids []int64) error {
	var gone []int64
	err := e.step(ctx, "remove idle partitions", func(ctx context.Context, tx pgx.Tx) error {
		gone = nil
		var head int64
		if err := tx.QueryRow(ctx, sqlLockHead, shard).Scan(&head); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlLockCount, shard); err != nil { // else the count of an append may come after it
			return err
		}
		// In a statement of its own, which sees what was appended before the lock.
		if _, err := tx.Exec(ctx, sqlLockPartitions, ids); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, sqlRemovePartitions, e.clockOffset(), e.cfg.PartitionIdle, ids).Scan(&gone); err != nil {
			return err
		}
		if len(gone) == 0 {
			return nil
		}
		_, err := tx.Exec(ctx, sqlAnnounceCleanup, shard, encodeCleanUp(gone), e.clockOffset())
		return err
	})
	if err == nil && len(gone) > 0 {
		e.metrics.partitionsRemoved.Add(float64(len(gone)))
		e.log.Info("removed idle partitions", "shard", shard, "partitions", len(gone))
	}
	return err
}

// partitionRemoved forgets a partition that this or another broker cleaned up.
func (e *Engine) partitionRemoved(id int64) {
	p := e.catalog.forgetPartition(id)
	if p == nil {
		return
	}
	p.removed.Store(true)
	growTo(&p.start, math.MaxInt64) // nothing of it is there
	e.segments.drop(map[int64]int64{id: math.MaxInt64})
	e.pops.partitionRemoved(p)
}

// partitionRemoved ends the cursors of a partition. Pops that wait for it wait for its name from now on.
func (p *popper) partitionRemoved(part *partition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range part.queue.groups {
		delete(g.strange, part.id)
		c := g.cursors[part.id]
		if c == nil {
			continue
		}
		delete(g.cursors, part.id)
		delete(p.singles, c)
		if c.state != cursorBusy { // else the claim in the air finds nothing
			p.leave(c)
		}
		var waiters []*waiter
		for el := c.waiters.Front(); el != nil; el = el.Next() {
			waiters = append(waiters, el.Value.(*waiter))
		}
		for _, w := range waiters {
			p.quit(w)
			p.join(w)
		}
	}
	p.kick()
}

// successor returns the cursor of the partition that has taken a removed one's name, nil when there is none
// yet. The caller holds popper.mu.
func (g *group) successor(removed *partition) *cursor {
	for _, c := range g.cursors {
		if c.part.name == removed.name && !c.part.removed.Load() {
			return c
		}
	}
	return nil
}
