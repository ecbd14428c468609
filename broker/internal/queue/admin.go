package queue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// sqlPartitionStats counts one row per partition. What is not committed is counted against the
// slowest group; what is under a live lease of some group is being processed.
const sqlPartitionStats = `
select p.id, p.uuid, p.name, p.queue_id, p.created_at, s.segments, s.messages, s.bytes, s.oldest, s.newest,
       greatest(0, coalesce(s.tail, 0) - greatest(coalesce(g.low, 0), coalesce(s.start, 0))) as open,
       coalesce(g.leased, 0) as leased,
       (select count(*) from dead_letter d where d.partition_id = p.id) as dead
from partition p
cross join lateral (
    select count(*) as segments, coalesce(sum(count), 0)::bigint as messages,
           coalesce(sum(octet_length(frames)), 0)::bigint as bytes,
           min(base) as start, max(base + count) as tail, min(created_at) as oldest, max(created_at) as newest
    from segment where partition_id = p.id and frames is not null
) s
cross join lateral (
    select min(coalesce(c.committed, f.seed, 0)) as low,
           max(case when c.lease_until > clock_timestamp() + $1::interval then c.lease_end - c.committed end) as leased
    from consumer_group cg
    left join cursor c on c.group_id = cg.id and c.partition_id = p.id
    left join lateral (
        select base + count as seed from segment
        where cg.from_at is not null and c.partition_id is null and partition_id = p.id and created_at < cg.from_at
        order by base desc limit 1
    ) f on true
    where cg.queue_id = p.queue_id
) g
where $2::bigint is null or p.queue_id = $2`

const sqlQueueStats = `
with part as (` + sqlPartitionStats + `), total as (
    select queue_id, count(*) as partitions, sum(segments)::bigint as segments, sum(messages)::bigint as messages,
           sum(bytes)::bigint as bytes, sum(greatest(0, open - leased))::bigint as pending,
           sum(least(open, leased))::bigint as processing, sum(messages - least(open, messages))::bigint as completed,
           sum(dead)::bigint as dead
    from part group by queue_id
)
select q.id, q.uuid, q.name, q.namespace, q.task, q.options, q.version, q.created_at,
       coalesce(t.partitions, 0), coalesce(t.bytes, 0), coalesce(t.segments, 0), coalesce(t.messages, 0),
       coalesce(t.pending, 0), coalesce(t.processing, 0), coalesce(t.completed, 0), coalesce(t.dead, 0)
from queue q left join total t on t.queue_id = q.id
where $2::bigint is null or q.id = $2
order by q.name`

// Queues lists all queues by name.
func (e *Engine) Queues(ctx context.Context) ([]Stats, error) {
	return e.queueStats(ctx, nil)
}

func (e *Engine) queueStats(ctx context.Context, id *int64) ([]Stats, error) {
	var list []Stats
	err := e.retrying(ctx, "list queues", func(ctx context.Context) error {
		list = []Stats{}
		rows, err := e.pool.Query(ctx, sqlQueueStats, e.clockOffset(), id)
		if err != nil {
			return err
		}
		var r queueRow
		var s Stats
		m := &s.Messages
		fields := append(r.fields(), &s.Partitions, &s.RetainedBytes, &s.Segments,
			&m.Total, &m.Pending, &m.Processing, &m.Completed, &m.DeadLetter)
		_, err = pgx.ForEachRow(rows, fields, func() error {
			options, err := decodeOptions(r.options)
			if err != nil {
				return err
			}
			s.Queue = Queue{ID: r.uuid, Name: r.name, Namespace: r.namespace, Task: r.task, CreatedAt: r.created, Options: options}
			list = append(list, s)
			return nil
		})
		return err
	})
	return list, err
}

const sqlQueueID = `select id from queue where name = $1`

const sqlPartitionDetail = `
select uuid, name, created_at, messages, greatest(0, open - leased), least(open, leased),
       messages - least(open, messages), dead, oldest, newest
from (` + sqlPartitionStats + `) part
order by name`

// Queue describes one queue with its partitions, or answers ErrQueueNotFound.
func (e *Engine) Queue(ctx context.Context, name string) (Detail, error) {
	var id int64
	err := e.retrying(ctx, "find a queue", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlQueueID, name).Scan(&id)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return Detail{}, ErrQueueNotFound
	}
	if err != nil {
		return Detail{}, err
	}
	stats, err := e.queueStats(ctx, &id)
	if err != nil {
		return Detail{}, err
	}
	if len(stats) == 0 {
		return Detail{}, ErrQueueNotFound
	}
	detail := Detail{Stats: stats[0], PartitionStats: []PartitionStats{}}
	err = e.retrying(ctx, "describe a queue", func(ctx context.Context) error {
		detail.PartitionStats = detail.PartitionStats[:0]
		rows, err := e.pool.Query(ctx, sqlPartitionDetail, e.clockOffset(), &id)
		if err != nil {
			return err
		}
		var s PartitionStats
		var oldest, newest *time.Time
		c := &s.Counts
		_, err = pgx.ForEachRow(rows, []any{
			&s.ID, &s.Name, &s.CreatedAt, &c.Total, &c.Pending, &c.Processing, &c.Completed, &c.DeadLetter, &oldest, &newest,
		}, func() error {
			row := s
			if oldest != nil {
				row.Oldest, row.Newest = *oldest, *newest
			}
			detail.PartitionStats = append(detail.PartitionStats, row)
			return nil
		})
		return err
	})
	return detail, err
}

// Rows are locked in the order setting, queue, shards, like everywhere.
const sqlBumpCatalog = `update setting set catalog_version = catalog_version + 1 returning catalog_version`

const sqlDeleteQueue = `
with deleted as (
    delete from queue where name = $1 returning id
)
insert into queue_tombstone (queue_id, version, deleted_at)
select id, $2, clock_timestamp() + $3::interval from deleted
returning queue_id`

const sqlAnnounceDeletion = `
with locked as materialized (
    select id from shard order by id for update
), moved as (
    update shard s set head = s.head + 1 from locked l where s.id = l.id returning s.id, s.head
)
insert into flush (shard, seq, token, entries, created_at)
select id, head, 0, $1, clock_timestamp() + $2::interval from moved`

const sqlTombstone = `select exists (select from queue_tombstone where queue_id = $1)`

// deletedBefore reports whether an attempt whose answer was lost deleted the queue.
func (e *Engine) deletedBefore(ctx context.Context, id int64) (deleted bool, err error) {
	if id == 0 {
		return false, nil
	}
	err = e.retrying(ctx, "look for a deletion", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlTombstone, id).Scan(&deleted)
	})
	return deleted, err
}

// DeleteQueue deletes a queue with everything in it. It moves the head of every shard, so that no
// broker that still believes in the queue can append to it. The rows are swept away afterwards.
func (e *Engine) DeleteQueue(ctx context.Context, name string) (existed bool, err error) {
	var id int64 // kept over a second attempt: the first may have committed
	err = e.retrying(ctx, "delete a queue", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			var version int64
			if err := tx.QueryRow(ctx, sqlBumpCatalog).Scan(&version); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, sqlDeleteQueue, name, version, e.clockOffset()).Scan(&id); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sqlAnnounceDeletion, encodeDeleteQueue(id), e.clockOffset())
			return err
		})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		existed, err = e.deletedBefore(ctx, id)
		if !existed || err != nil {
			return false, err
		}
	}
	if err != nil {
		return false, err
	}
	e.queueDeleted(id)
	select {
	case e.tidyNow <- struct{}{}:
	default:
	}
	return true, nil
}
