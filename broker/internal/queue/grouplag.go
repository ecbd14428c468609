package queue

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// GroupQueue is a consumer group of one queue, with how far it is behind.
type GroupQueue struct {
	Group string
	Queue string

	Members    int // pops that hold a live lease
	Cursors    int // partitions in which it has a cursor
	Lagging    int // partitions with messages that it has not completed
	Lag        int64
	MaxTimeLag time.Duration // age of the oldest message that it has not completed; 0 without any

	Mode       string    // all or new
	From       time.Time // zero unless the subscription is new
	CreatedAt  time.Time
	LastActive time.Time // when it last popped or acknowledged something; zero means never
}

// GroupPartition is where a consumer group stands in one partition.
type GroupPartition struct {
	Group       string
	Queue       string
	Partition   string
	PartitionID uuid.UUID

	LeaseID      string    // of the live lease; "" means none
	LastConsumed time.Time // zero means never
	Consumed     int64     // messages behind the cursor, skipped ones included
	Lag          int64     // messages that are not completed
	Oldest       time.Time // when the oldest of them was created; zero without any
	TimeLag      time.Duration
}

// sqlStanding is one row per group and partition; a group of a queue without partitions has one, too. The
// log is not scanned: its end, and what comes next for the group, are found through the segments' key.
//
// The parameters: the clock's offset; a group's name, or null.
var sqlStanding = `
select g.id, g.name as group_name, q.name as queue_name, g.mode, g.from_at, g.created_at,
       p.id as partition_id, p.uuid, p.name as partition_name, k.partition_id is not null as stored, l.live,
       case when l.live then k.lease_id end as lease_id, nullif(k.updated_at, to_timestamp(0)) as consumed_at, c.committed,
       case when n.base is null then 0 else t.tail - greatest(c.committed, n.base) end as lag,
       n.created_at as oldest, greatest(interval '0', clock_timestamp() + $1::interval - n.created_at) as time_lag
from consumer_group g
join queue q on q.id = g.queue_id
left join partition p on p.queue_id = g.queue_id
left join cursor k on k.partition_id = p.id and k.group_id = g.id
left join lateral (
    select base + count as tail from segment where partition_id = p.id order by base desc limit 1
) t on true
cross join lateral (
    select coalesce(k.committed, case when g.from_at is not null then ` + sqlFirstSince("g.from_at") + ` end, 0) as committed
) c
cross join lateral (
    select k.lease_id is not null and k.lease_until > clock_timestamp() + $1::interval as live
) l
left join lateral (
    select s.base, s.created_at from segment s
    where s.partition_id = p.id and s.frames is not null and s.base + s.count > c.committed
      and s.base >= coalesce((
          select x.base from segment x where x.partition_id = p.id and x.base <= c.committed order by x.base desc limit 1
      ), 0)
    order by s.base limit 1
) n on t.tail > c.committed
where $2::text is null or g.name = $2`

var sqlGroups = `
select group_name, queue_name, count(distinct lease_id), count(*) filter (where stored), count(*) filter (where lag > 0),
       coalesce(sum(lag), 0)::bigint, coalesce(max(time_lag), interval '0'), mode, from_at, created_at, max(consumed_at)
from (` + sqlStanding + `) s
group by id, group_name, queue_name, mode, from_at, created_at
order by group_name, queue_name`

// Groups lists the consumer groups of all queues, by group and queue.
func (e *Engine) Groups(ctx context.Context) ([]GroupQueue, error) {
	var list []GroupQueue
	err := e.retrying(ctx, "list consumer groups", func(ctx context.Context) error {
		list = []GroupQueue{}
		rows, _ := e.pool.Query(ctx, sqlGroups, e.clockOffset(), nil) // its error comes with the rows
		var g GroupQueue
		var from, active *time.Time
		_, err := pgx.ForEachRow(rows, []any{
			&g.Group, &g.Queue, &g.Members, &g.Cursors, &g.Lagging, &g.Lag, &g.MaxTimeLag, &g.Mode, &from, &g.CreatedAt, &active,
		}, func() error {
			g.From, g.LastActive = orZero(from), orZero(active)
			list = append(list, g)
			return nil
		})
		return err
	})
	return list, err
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

const standingColumns = `
select group_name, queue_name, partition_name, uuid, lease_id, consumed_at, committed, lag, oldest, coalesce(time_lag, interval '0')
from (`

var sqlGroup = standingColumns + sqlStanding + `) s where partition_id is not null order by queue_name, partition_name`

const sqlGroupQueues = `
select q.name from consumer_group g join queue q on q.id = g.queue_id where g.name = $1 order by q.name`

// Group describes a consumer group: where it stands in each partition, by the queues that know it. The
// error is ErrGroupNotFound when none does.
func (e *Engine) Group(ctx context.Context, name string) (map[string][]GroupPartition, error) {
	queues := map[string][]GroupPartition{}
	err := e.retrying(ctx, "find a consumer group", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlGroupQueues, name) // its error comes with the rows
		var queue string
		_, err := pgx.ForEachRow(rows, []any{&queue}, func() error {
			queues[queue] = []GroupPartition{}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(queues) == 0 {
		return nil, ErrGroupNotFound
	}
	partitions, err := e.standing(ctx, "describe a consumer group", sqlGroup, &name)
	for _, p := range partitions {
		queues[p.Queue] = append(queues[p.Queue], p)
	}
	return queues, err
}

var sqlLagging = standingColumns + sqlStanding + `) s where lag > 0 and time_lag >= $3::interval
order by time_lag desc, group_name, queue_name, partition_name`

// LaggingPartitions lists where the oldest message that a group has not completed is at least so old, the
// oldest first.
func (e *Engine) LaggingPartitions(ctx context.Context, atLeast time.Duration) ([]GroupPartition, error) {
	return e.standing(ctx, "find lagging partitions", sqlLagging, nil, atLeast)
}

// standing runs a query over sqlStanding.
func (e *Engine) standing(ctx context.Context, doing, sql string, group *string, more ...any) ([]GroupPartition, error) {
	var list []GroupPartition
	args := append([]any{e.clockOffset(), group}, more...)
	err := e.retrying(ctx, doing, func(ctx context.Context) error {
		list = []GroupPartition{}
		rows, _ := e.pool.Query(ctx, sql, args...) // its error comes with the rows
		var p GroupPartition
		var lease *uuid.UUID
		var consumed, oldest *time.Time
		_, err := pgx.ForEachRow(rows, []any{
			&p.Group, &p.Queue, &p.Partition, &p.PartitionID, &lease, &consumed, &p.Consumed, &p.Lag, &oldest, &p.TimeLag,
		}, func() error {
			p.LeaseID, p.LastConsumed, p.Oldest = "", orZero(consumed), orZero(oldest)
			if lease != nil {
				p.LeaseID = lease.String()
			}
			list = append(list, p)
			return nil
		})
		return err
	})
	return list, err
}
