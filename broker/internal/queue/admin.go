package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// sqlPartitionStats is one row per partition, from the counts and the cursors. What is not committed is
// counted against the slowest group; what is under a live lease of some group is being processed. A group
// that has no cursor in a partition begins at its first message or, if it does not want what came before it
// did, where sqlSeeds found. $1 is the test clock's offset, $2 to $4 are the seeds.
const sqlPartitionStats = `
select r.*, greatest(0, r.tail - greatest(r.behind, r.start)) as open, greatest(r.behind, r.start) as low,
       coalesce(d.dead, 0) as dead
from (
    select p.id, p.uuid, p.name, p.queue_id, p.created_at, coalesce(n.segments, 0) as segments,
           coalesce(n.messages, 0) as messages, coalesce(n.bytes, 0) as bytes,
           coalesce(n.start, 0) as start, coalesce(n.tail, 0) as tail, n.last_at,
           coalesce(least(k.behind, m.behind), 0) as behind, coalesce(k.leased, 0) as leased
    from partition p
    left join partition_count n on n.partition_id = p.id
    left join (select queue_id, count(*) as groups from consumer_group group by queue_id) a on a.queue_id = p.queue_id
    left join (
        select c.partition_id, count(*) as groups, min(c.committed) as behind,
               max(case when c.lease_until > t.now then c.lease_end - c.committed end) as leased
        from (select clock_timestamp() + $1::interval as now offset 0) t
        cross join {cursors}
        join consumer_group g on g.id = c.group_id
        group by c.partition_id
    ) k on k.partition_id = p.id
    left join lateral (
        select min(case
            when g.from_at is null or p.created_at >= g.from_at or n.tail is null then 0
            when n.last_at < g.from_at then n.tail
            else coalesce(f.seed, 0)
        end) as behind
        from consumer_group g
        left join unnest($2::bigint[], $3::bigint[], $4::bigint[]) as f (partition_id, group_id, seed)
               on f.partition_id = p.id and f.group_id = g.id
        where coalesce(k.groups, 0) < a.groups and g.queue_id = p.queue_id
          and not exists (select from cursor c where c.partition_id = p.id and c.group_id = g.id)
    ) m on true
    where {p}
) r
left join (select partition_id, count(*) as dead from dead_letter where {dead} group by partition_id) d on d.partition_id = r.id`

// sqlSeeds finds where the groups begin that do not want what came before they did, in the partitions where
// they have no cursor and where there is something on both sides. The log has no index by time, but its times
// only grow: the place is searched for in halves.
const sqlSeeds = `
select p.id, g.id, f.seed
from consumer_group g
join partition p on p.queue_id = g.queue_id and p.created_at < g.from_at
join partition_count n on n.partition_id = p.id and n.last_at >= g.from_at
cross join lateral (
    with recursive probe (low, high) as (
        select n.start, n.tail
        union all
        select case when s.created_at < g.from_at then s.base + s.count else b.low end,
               case when s.created_at < g.from_at then b.high else s.base end
        from probe b
        cross join lateral (
            select base, count, created_at from segment
            where partition_id = p.id and base >= b.low and base <= (b.low + b.high) / 2
            order by base desc limit 1
        ) s
        where b.low < b.high
    )
    select max(low) as seed from probe
) f
where g.from_at is not null and not exists (select from cursor c where c.partition_id = p.id and c.group_id = g.id)
  and ($1::bigint is null or g.queue_id = $1)`

const sqlQueueStats = `
with part as ({partitions}), total as (
    select queue_id, count(*) as partitions, sum(segments)::bigint as segments, sum(messages)::bigint as messages,
           sum(bytes)::bigint as bytes, sum(greatest(0, open - leased))::bigint as pending,
           sum(least(open, leased))::bigint as processing, sum(greatest(0, messages - open))::bigint as completed,
           sum(dead)::bigint as dead
    from part group by queue_id
)
select q.id, q.uuid, q.name, q.namespace, q.task, q.options, q.version, q.created_at,
       coalesce(t.partitions, 0), coalesce(t.bytes, 0), coalesce(t.segments, 0), coalesce(t.messages, 0),
       coalesce(t.pending, 0), coalesce(t.processing, 0), coalesce(t.completed, 0), coalesce(t.dead, 0)
from queue q left join total t on t.queue_id = q.id
where {q}
order by q.name`

// A partition's oldest message is the first that is retained.
const sqlPartitionDetail = `
select r.uuid, r.name, r.created_at, messages, greatest(0, open - leased), least(open, leased),
       greatest(0, messages - open), dead, o.oldest, case when messages > 0 then r.last_at end
from ({partitions}) r
left join lateral (
    select created_at as oldest from segment
    where r.messages > 0 and partition_id = r.id and base >= r.start and frames is not null
    order by base limit 1
) o on true
order by r.name`

// statsOf makes the statement for all queues, or for the one in $5.
func statsOf(sql string, all bool) string {
	p, q, dead := "p.queue_id = $5", "q.id = $5", "queue_id = $5"
	cursors := "partition x join cursor c on c.partition_id = x.id and x.queue_id = $5"
	if all {
		p, q, dead, cursors = "true", "true", "true", "cursor c"
	}
	sql = strings.ReplaceAll(sql, "{partitions}", sqlPartitionStats)
	return strings.NewReplacer("{p}", p, "{q}", q, "{dead}", dead, "{cursors}", cursors).Replace(sql)
}

var (
	sqlAllQueues     = statsOf(sqlQueueStats, true)
	sqlOneQueue      = statsOf(sqlQueueStats, false)
	sqlOnePartitions = statsOf(sqlPartitionDetail, false)
)

// The planner takes these statements for expensive, and compiling them takes longer than they do.
const sqlNoCompiling = `set local jit = off`

// reading reads counts in one snapshot, once everything that was committed before the call is counted. Both together
// have the time of one statement.
func (e *Engine) reading(ctx context.Context, doing string, read func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	if err := e.count(ctx); err != nil {
		return err
	}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return e.retrying(ctx, doing, func(ctx context.Context) error {
		return pgx.BeginTxFunc(ctx, e.pool, snapshot, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlNoCompiling); err != nil {
				return err
			}
			return read(ctx, tx)
		})
	})
}

// statsArgs are the parameters of a statement of statsOf: for one queue, or for all with nil.
func (e *Engine) statsArgs(ctx context.Context, tx pgx.Tx, queueID *int64) ([]any, error) {
	var partitions, groups, seeds []int64
	var partition, group, seed int64
	rows, _ := tx.Query(ctx, sqlSeeds, queueID) // its error comes with the rows
	_, err := pgx.ForEachRow(rows, []any{&partition, &group, &seed}, func() error {
		partitions, groups, seeds = append(partitions, partition), append(groups, group), append(seeds, seed)
		return nil
	})
	args := []any{e.clockOffset(), partitions, groups, seeds}
	if queueID != nil {
		args = append(args, *queueID)
	}
	return args, err
}

// manyPartitions is from how many partitions on a list of all queues is shared by those who ask within a
// StatsInterval: the cost grows with the partitions, their consumer groups and the dead letters.
const manyPartitions = 10_000

// queueList is the last list of all queues.
type queueList struct {
	mu         sync.Mutex
	list       []Stats
	made       catalogState // that it was made by
	at         time.Time
	refreshing bool
}

// Queues lists all queues by name. Everything pushed before the call is counted while there are no more than
// manyPartitions. Beyond, the counts may be a StatsInterval old, or up to ten when nobody asked for a while: then
// they are brought up to date behind the answer. A queue that was made or changed is always there. The list is the
// caller's own.
func (e *Engine) Queues(ctx context.Context) ([]Stats, error) {
	now := e.catalog.state()
	if list, ok := e.recentQueues(now); ok {
		return list, nil
	}
	list, err := e.readQueues(ctx)
	if err == nil {
		e.queueList.keep(list, now)
	}
	return list, err
}

func (e *Engine) recentQueues(now catalogState) ([]Stats, bool) {
	q := &e.queueList
	q.mu.Lock()
	defer q.mu.Unlock()
	age := time.Since(q.at)
	if q.list == nil || q.made != now || age > 10*e.cfg.StatsInterval {
		return nil, false
	}
	if age > e.cfg.StatsInterval && !q.refreshing {
		q.refreshing = true
		e.goLoop(func(ctx context.Context) {
			list, err := e.readQueues(ctx)
			if err == nil {
				q.keep(list, now)
			}
			q.mu.Lock()
			defer q.mu.Unlock()
			q.refreshing = false
		})
	}
	return slices.Clone(q.list), true // callers filter theirs in place
}

// keep keeps a list for others, if it is long enough to make.
func (q *queueList) keep(list []Stats, made catalogState) {
	var partitions int64
	for i := range list {
		partitions += list[i].Partitions
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.list, q.made, q.at = nil, made, time.Now(); partitions > manyPartitions {
		q.list = slices.Clone(list)
	}
}

// forget makes the next list a new one.
func (q *queueList) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = nil
}

func (e *Engine) readQueues(ctx context.Context) ([]Stats, error) {
	var list []Stats
	err := e.reading(ctx, "list queues", func(ctx context.Context, tx pgx.Tx) error {
		args, err := e.statsArgs(ctx, tx, nil)
		if err != nil {
			return err
		}
		list, err = readQueueStats(ctx, tx, sqlAllQueues, args...)
		return err
	})
	return list, err
}

func readQueueStats(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]Stats, error) {
	list := []Stats{}
	rows, _ := tx.Query(ctx, sql, args...) // its error comes with the rows
	var r queueRow
	var s Stats
	m := &s.Messages
	fields := append(r.fields(), &s.Partitions, &s.RetainedBytes, &s.Segments,
		&m.Total, &m.Pending, &m.Processing, &m.Completed, &m.DeadLetter)
	_, err := pgx.ForEachRow(rows, fields, func() error {
		options, err := decodeOptions(r.options)
		if err != nil {
			return err
		}
		s.Queue = Queue{ID: r.uuid, Name: r.name, Namespace: r.namespace, Task: r.task, CreatedAt: r.created, Options: options}
		list = append(list, s)
		return nil
	})
	return list, err
}

const sqlQueueID = `select id from queue where name = $1`

// QueueStats is Queues for one queue, or answers ErrQueueNotFound.
func (e *Engine) QueueStats(ctx context.Context, name string) (Stats, error) {
	var stats Stats
	err := e.reading(ctx, "count a queue", func(ctx context.Context, tx pgx.Tx) (err error) {
		stats, _, err = e.readOneQueue(ctx, tx, name)
		return err
	})
	if errors.Is(err, ErrQueueNotFound) {
		return Stats{}, ErrQueueNotFound
	}
	return stats, err
}

// readOneQueue also returns the parameters of further statements about the queue.
func (e *Engine) readOneQueue(ctx context.Context, tx pgx.Tx, name string) (Stats, []any, error) {
	var id int64
	err := tx.QueryRow(ctx, sqlQueueID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Stats{}, nil, ErrQueueNotFound
	}
	if err != nil {
		return Stats{}, nil, err
	}
	args, err := e.statsArgs(ctx, tx, &id)
	if err != nil {
		return Stats{}, nil, err
	}
	list, err := readQueueStats(ctx, tx, sqlOneQueue, args...)
	if err == nil && len(list) == 0 { // cannot be, in one snapshot
		err = ErrQueueNotFound
	}
	if err != nil {
		return Stats{}, nil, err
	}
	return list[0], args, nil
}

// Queue describes one queue with its partitions, or answers ErrQueueNotFound.
func (e *Engine) Queue(ctx context.Context, name string) (Detail, error) {
	var detail Detail
	err := e.reading(ctx, "describe a queue", func(ctx context.Context, tx pgx.Tx) error {
		stats, args, err := e.readOneQueue(ctx, tx, name)
		if err != nil {
			return err
		}
		detail = Detail{Stats: stats}
		detail.PartitionStats, err = readPartitionStats(ctx, tx, args...)
		return err
	})
	if errors.Is(err, ErrQueueNotFound) {
		return Detail{}, ErrQueueNotFound
	}
	return detail, err
}

func readPartitionStats(ctx context.Context, tx pgx.Tx, args ...any) ([]PartitionStats, error) {
	list := []PartitionStats{}
	rows, _ := tx.Query(ctx, sqlOnePartitions, args...) // its error comes with the rows
	var s PartitionStats
	var oldest, newest *time.Time
	c := &s.Counts
	_, err := pgx.ForEachRow(rows, []any{
		&s.ID, &s.Name, &s.CreatedAt, &c.Total, &c.Pending, &c.Processing, &c.Completed, &c.DeadLetter, &oldest, &newest,
	}, func() error {
		row := s
		if oldest != nil && newest != nil {
			row.Oldest, row.Newest = *oldest, *newest
		}
		list = append(list, row)
		return nil
	})
	return list, err
}

// Rows are locked in the order setting, queue, shards, like everywhere.
const sqlBumpCatalog = `update setting set catalog_version = catalog_version + 1 returning catalog_version`

const sqlDeleteQueue = `
with deleted as (
    delete from queue where name = $1 returning id, clock_timestamp() + $3::interval as at
), remembered as (
    insert into queue_deletion (name, deleted_at) select $1, at from deleted
    on conflict (name) do update set deleted_at = greatest(queue_deletion.deleted_at, excluded.deleted_at)
)
insert into queue_tombstone (queue_id, version, deleted_at)
select id, $2, at from deleted
returning queue_id, deleted_at`

const sqlAnnounceDeletion = `
with locked as materialized (
    select id from shard order by id for update
), moved as (
    update shard s set head = s.head + 1 from locked l where s.id = l.id returning s.id, s.head
)
insert into flush (shard, seq, token, entries, created_at)
select id, head, 0, $1, clock_timestamp() + $2::interval from moved`

const sqlTombstone = `select deleted_at from queue_tombstone where queue_id = $1`

// deletedBefore reports whether an attempt whose answer was lost deleted the queue, and when.
func (e *Engine) deletedBefore(ctx context.Context, id int64) (at time.Time, err error) {
	if id == 0 {
		return time.Time{}, nil
	}
	err = e.retrying(ctx, "look for a deletion", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlTombstone, id).Scan(&at)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, nil
	}
	return at, err
}

// DeleteQueue deletes a queue with everything in it. It moves the head of every shard, so that no
// broker that still believes in the queue can append to it. The rows are swept away afterwards.
func (e *Engine) DeleteQueue(ctx context.Context, name string) (existed bool, err error) {
	var id int64 // kept over a second attempt: the first may have committed
	var at time.Time
	err = e.retrying(ctx, "delete a queue", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			var version int64
			if err := tx.QueryRow(ctx, sqlBumpCatalog).Scan(&version); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, sqlDeleteQueue, name, version, e.clockOffset()).Scan(&id, &at); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sqlAnnounceDeletion, encodeDeleteQueue(id), e.clockOffset())
			return err
		})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		at, err = e.deletedBefore(ctx, id)
		if at.IsZero() || err != nil {
			return false, err
		}
	}
	if err != nil {
		return false, err
	}
	e.clock.Observe(at) // what is accepted from now on is accepted later
	e.queueDeleted(id)
	select {
	case e.tidyNow <- struct{}{}:
	default:
	}
	return true, nil
}
