package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// TraceEvent is what a program notes about a message. Whether there is such a message is not asked: it may be gone by
// the time that something is worth noting.
type TraceEvent struct {
	PartitionID   uuid.UUID
	TransactionID string
	Group         string // "" means none
	EventType     string
	Data          []byte   // JSON, kept as it is
	Names         []string // that it can be found by; no name twice
}

// Trace is a stored TraceEvent.
type Trace struct {
	TraceEvent
	ID               uuid.UUID
	Queue, Partition string
	LeaseID          uuid.UUID // of the group on the partition, when it was noted; uuid.Nil means none
	CreatedAt        time.Time
}

// TracePage is one page of the traces of a name.
type TracePage struct {
	Traces []Trace
	Total  int // how many have the name, counted up to CountMax
}

// TraceName is one name that traces have.
type TraceName struct {
	Name             string
	Traces, Messages int
	LastSeen         time.Time
}

// ErrPartitionNotFound says that there is no partition with an id.
var ErrPartitionNotFound = errors.New("partition not found")

const (
	// messageTraces is how many traces of one message are shown, the newest.
	messageTraces = 1000
	// namesWindow is how many of the newest named traces the list of names is made of.
	namesWindow = "100000"
)

// The trace of an attempt whose answer was lost is found by its id.
const sqlTrace = `
with home as (
    select p.id, p.queue_id from partition p join queue q on q.id = p.queue_id where p.uuid = $2
), made as (
    insert into trace (id, queue_id, partition_id, transaction_id, group_name, event_type, data, names, lease_id, created_at)
    select $1, h.queue_id, h.id, $3, nullif($4, ''), $5, $6, $7, (
               select c.lease_id from consumer_group g
               join cursor c on c.partition_id = h.id and c.group_id = g.id
               where g.queue_id = h.queue_id and g.name = $4 and c.lease_until > clock_timestamp() + $8::interval
           ), clock_timestamp() + $8::interval
    from home h
    on conflict (id) do update set id = excluded.id
    returning id, partition_id, transaction_id, created_at
), named as (
    insert into trace_name (name, created_at, trace_id, partition_id, transaction_id)
    select n.name, m.created_at, m.id, m.partition_id, m.transaction_id from made m cross join unnest($7::text[]) as n (name)
    on conflict do nothing
)
select id from made`

// Trace stores what a program notes about a message, and returns the id of that. ErrPartitionNotFound when there is no
// such partition.
func (e *Engine) Trace(ctx context.Context, t TraceEvent) (uuid.UUID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return id, fmt.Errorf("mint a trace id: %w", err)
	}
	names := t.Names
	if names == nil {
		names = []string{}
	}
	err = e.retrying(ctx, "store a trace", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlTrace, id, t.PartitionID, t.TransactionID, t.Group, t.EventType, t.Data, names, e.clockOffset()).Scan(&id)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return id, ErrPartitionNotFound
	}
	return id, err
}

const traceColumns = `t.id, p.uuid, q.name, p.name, t.transaction_id, coalesce(t.group_name, ''), t.event_type, t.data, t.names, t.lease_id, t.created_at`

// traceRow is a row of trace with its names.
type traceRow struct {
	Trace
	lease *uuid.UUID
}

func (r *traceRow) fields() []any {
	return []any{
		&r.ID, &r.PartitionID, &r.Queue, &r.Partition, &r.TransactionID, &r.Group, &r.EventType, &r.Data, &r.Names, &r.lease, &r.CreatedAt,
	}
}

// The newest traces of a message, as far as their data fits a page, oldest first.
const sqlMessageTraces = `
select ` + traceColumns + `
from (
    select t.*, sum(octet_length(t.data)) over (order by t.created_at desc, t.id desc) - octet_length(t.data) as before
    from (
        select t.* from trace t
        where t.partition_id = (select id from partition where uuid = $1) and t.transaction_id = $2
        order by t.created_at desc, t.id desc limit $3
    ) t
) t
join partition p on p.id = t.partition_id
join queue q on q.id = t.queue_id
where t.before < $4
order by t.created_at, t.id`

// MessageTraces returns the traces of a transaction id in a partition, oldest first: the newest thousand of them.
func (e *Engine) MessageTraces(ctx context.Context, partitionID uuid.UUID, txID string) ([]Trace, error) {
	return e.traces(ctx, sqlMessageTraces, partitionID, txID, messageTraces, pageMaxBytes)
}

const sqlTracesByName = `
select ` + traceColumns + `
from (
    select t.*, sum(octet_length(t.data)) over (order by t.created_at desc, t.id desc) - octet_length(t.data) as before
    from (
        select created_at, trace_id from trace_name where name = $1
        order by created_at desc, trace_id desc limit $2 offset $3
    ) n
    join trace t on t.id = n.trace_id
) t
join partition p on p.id = t.partition_id
join queue q on q.id = t.queue_id
where t.before < $4
order by t.created_at desc, t.id desc`

const sqlCountTraces = `select count(*) from (select from trace_name where name = $1 limit $2) n`

// TracesByName returns the traces that have a name, newest first.
func (e *Engine) TracesByName(ctx context.Context, name string, limit, offset int) (TracePage, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var page TracePage
	err := e.retrying(ctx, "count traces", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlCountTraces, name, CountMax).Scan(&page.Total)
	})
	if err != nil {
		return page, err
	}
	page.Traces, err = e.traces(ctx, sqlTracesByName, name, limit, offset, pageMaxBytes)
	page.Total = max(page.Total, len(page.Traces))
	return page, err
}

func (e *Engine) traces(ctx context.Context, sql string, args ...any) (list []Trace, err error) {
	err = e.retrying(ctx, "read traces", func(ctx context.Context) error {
		list = []Trace{}
		rows, _ := e.pool.Query(ctx, sql, args...) // its error comes with the rows
		var r traceRow
		_, err := pgx.ForEachRow(rows, r.fields(), func() error {
			t := r.Trace
			t.LeaseID = uuid.Nil
			if r.lease != nil {
				t.LeaseID = *r.lease
			}
			list = append(list, t)
			r.Data, r.Names, r.lease = nil, nil, nil
			return nil
		})
		return err
	})
	return list, err
}

const sqlTraceNames = `
select n.name, count(*), count(distinct (n.partition_id, n.transaction_id)), max(n.created_at), count(*) over ()
from (select * from trace_name order by created_at desc limit ` + namesWindow + `) n
group by n.name
order by max(n.created_at) desc, n.name limit $1 offset $2`

// TraceNames returns the names that traces have, the last seen first, and how many there are. Both are made of the
// newest hundred thousand named traces.
func (e *Engine) TraceNames(ctx context.Context, limit, offset int) (names []TraceName, total int, err error) {
	err = e.retrying(ctx, "list the names of traces", func(ctx context.Context) error {
		names, total = []TraceName{}, 0
		rows, _ := e.pool.Query(ctx, sqlTraceNames, limit, offset) // its error comes with the rows
		var n TraceName
		_, err := pgx.ForEachRow(rows, []any{&n.Name, &n.Traces, &n.Messages, &n.LastSeen, &total}, func() error {
			names = append(names, n)
			return nil
		})
		return err
	})
	return names, total, err
}

// What is chosen of trace goes with its names.
const sqlDropTraces = `, gone as (
    delete from trace t using old o where t.id = o.id
), names as (
    delete from trace_name n using (select o.id, o.created_at, unnest(o.names) as name from old o) w
    where n.name = w.name and n.created_at = w.created_at and n.trace_id = w.id
)
select from old`

const sqlTrimTraces = `
with old as materialized (
    select id, created_at, names from trace
    where created_at < clock_timestamp() + $1::interval - $3::interval order by created_at limit $2 for update skip locked
)` + sqlDropTraces

// Where a queue deletes its messages sooner, it deletes their traces as soon.
const sqlTrimQueueTraces = `
with old as materialized (
    select t.id, t.created_at, t.names from (
        select q.id, least(
            case when (q.options->>'retentionEnabled')::boolean then nullif((q.options->>'retentionSeconds')::bigint, 0) end,
            nullif((q.options->>'maxWaitTimeSeconds')::bigint, 0)
        ) as seconds
        from queue q
    ) q
    cross join lateral (
        select id, created_at, names from trace
        where queue_id = q.id and created_at < clock_timestamp() + $1::interval - make_interval(secs => q.seconds)
        order by created_at limit $2 for update skip locked
    ) t
    where q.seconds is not null limit $2
)` + sqlDropTraces

const sqlSweepTraces = `
with old as materialized (
    select id, created_at, names from trace where queue_id = $1 limit $2 for update skip locked
)` + sqlDropTraces

// trimTraces removes traces that are older than they are kept.
func (e *Engine) trimTraces(ctx context.Context) error {
	if e.cfg.TraceRetention > 0 {
		if err := e.inSteps(ctx, sqlTrimTraces, e.clockOffset(), e.cfg.TraceRetention); err != nil {
			return err
		}
	}
	return e.inSteps(ctx, sqlTrimQueueTraces, e.clockOffset())
}
