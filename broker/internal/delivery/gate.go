package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A gate is what lets tasks of a delivery queue or of a flow control key pass. Its tasks wait in its lane, so that they
// are in nobody's way. Whatever may let one pass (a publish, the end of an attempt, a cancellation, a changed bound, the
// end of a period) inserts a row for the lane into delivery_wake, in its own transaction. Brokers take those rows when
// they are due, lock the gate's row and only then count what is inside: the bound holds for all brokers together, and
// what is inside is counted by the rows of the tasks themselves, so that a crash leaves nothing to repair.
//
// A task holds its place in a queue from its first attempt until it and its callbacks have ended (slot), and its place
// with a key for one attempt (flowing).

const (
	wakeLimit  = 1000 // rows of delivery_wake that one look takes
	gateLimit  = 200  // lanes of one transaction
	admitLimit = 500  // tasks that pass a gate in one transaction
)

func laneOf(kind, name string) int64 {
	sum := sha256.Sum256([]byte(kind + "\x00" + name))
	return int64(binary.LittleEndian.Uint64(sum[:8]))
}

func queueLane(name string) int64 { return laneOf("queue", name) }
func flowLane(key string) int64   { return laneOf("flow", key) }

// place in a delivery queue that a callback shares with the message that it is about.
type place struct {
	queue int64
	slot  uuid.UUID
}

// gates are the lanes of a message: where its tasks wait first, its queue, its place there and its key; nil for none.
type gates struct {
	wait, queue *int64
	slot        *uuid.UUID
	flow        *int64
}

func gatesOf(m *Stored) gates {
	var g gates
	if m.FlowKey != "" {
		lane := flowLane(m.FlowKey)
		g.flow, g.wait = &lane, &lane
	}
	switch {
	case m.shares != nil:
		g.queue, g.slot = &m.shares.queue, &m.shares.slot
	case m.Queue != "":
		lane := queueLane(m.Queue)
		g.queue, g.wait = &lane, &lane
	}
	return g
}

// gated reports whether a message has to pass a gate.
func (m *Message) gated() bool { return m.Queue != "" || m.FlowKey != "" }

func (u *unit) gated() bool {
	return slices.ContainsFunc(u.messages, func(m *Stored) bool { return m.gated() })
}

const sqlWake = `
insert into delivery_wake (lane, at) select * from unnest($1::bigint[], $2::timestamptz[])`

// wakes are rows for delivery_wake.
type wakes map[wake]struct{}

type wake struct {
	lane int64
	at   time.Time
}

func (w wakes) add(lane *int64, at time.Time) {
	if lane != nil {
		w[wake{*lane, at}] = struct{}{}
	}
}

func (w wakes) args() []any {
	lanes, times := make([]int64, 0, len(w)), make([]time.Time, 0, len(w))
	for one := range w {
		lanes, times = append(lanes, one.lane), append(times, one.at)
	}
	return []any{lanes, times}
}

// sqlPutFlows makes keys known and gives them the values of the latest message, except for those that are pinned. A row
// that would not change is not locked: all publishes of a key would wait for each other.
const sqlPutFlows = `
insert into flow_control as f (key, lane, parallelism, rate, period, paused, pinned_parallelism, pinned_rate, period_start,
    period_count, used_at)
select k.key, k.lane, k.parallelism, k.rate, k.period, false, false, false, $6, 0, $6
from unnest($1::text[], $2::bigint[], $3::integer[], $4::integer[], $5::interval[]) as k(key, lane, parallelism, rate, period)
where not exists (
    select from flow_control o
    where o.key = k.key and o.used_at > $6::timestamptz - interval '30 s'
      and (o.pinned_parallelism or o.parallelism is not distinct from k.parallelism)
      and (o.pinned_rate or (o.rate, o.period) is not distinct from (k.rate, k.period)))
order by k.key
on conflict (key) do update set
    parallelism = case when f.pinned_parallelism then f.parallelism else excluded.parallelism end,
    rate = case when f.pinned_rate then f.rate else excluded.rate end,
    period = case when f.pinned_rate then f.period else excluded.period end,
    used_at = excluded.used_at`

const sqlPutQueues = `
insert into delivery_queue (name, lane, parallelism, paused, created_at, updated_at)
select q.name, q.lane, 1, false, $3, $3 from unnest($1::text[], $2::bigint[]) as q(name, lane)
where not exists (select from delivery_queue o where o.name = q.name)
order by q.name
on conflict (name) do nothing`

// putGates makes the gates of messages that were just written, and wakes them.
func putGates(ctx context.Context, tx querier, messages []*Stored) error {
	keys, queues, woken := map[string]FlowLimits{}, map[string]struct{}{}, wakes{}
	var now time.Time
	for _, m := range messages {
		now = m.CreatedAt
		if m.FlowKey != "" {
			keys[m.FlowKey] = m.Flow
		}
		if m.Queue != "" {
			queues[m.Queue] = struct{}{}
		}
		woken.add(gatesOf(m).wait, m.FirstAt)
	}
	batch := &pgx.Batch{}
	if len(keys) > 0 {
		names := slices.Sorted(maps.Keys(keys))
		lanes, periods := make([]int64, len(names)), make([]time.Duration, len(names))
		parallelism, rates := make([]*int, len(names)), make([]*int, len(names))
		for i, key := range names {
			limits := keys[key]
			lanes[i], periods[i] = flowLane(key), limits.period()
			parallelism[i], rates[i] = bound(limits.Parallelism), bound(limits.Rate)
		}
		batch.Queue(sqlPutFlows, names, lanes, parallelism, rates, periods, now)
	}
	if len(queues) > 0 {
		names := slices.Sorted(maps.Keys(queues))
		lanes := make([]int64, len(names))
		for i, name := range names {
			lanes[i] = queueLane(name)
		}
		batch.Queue(sqlPutQueues, names, lanes, now)
	}
	batch.Queue(sqlWake, woken.args()...)
	return sendBatch(ctx, tx, batch)
}

// sendBatch runs statements in order.
func sendBatch(ctx context.Context, q querier, batch *pgx.Batch) error {
	return q.SendBatch(ctx, batch).Close()
}

// bound is null for 0, which stands for no bound.
func bound(n int) *int {
	if n == 0 {
		return nil
	}
	return &n
}

const sqlWoken = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting)
select distinct w.lane from (
    select lane from delivery_wake where at <= (select now from t) order by at limit $1) w`

// The gates that another broker has locked are its to open: their rows in delivery_wake stay, and are looked at again.
const (
	sqlLockQueues = `select lane from delivery_queue where lane = any($1) for update skip locked`
	sqlLockFlows  = `select lane from flow_control where lane = any($1) for update skip locked`
	sqlGoneGates  = `
select l.lane from unnest($1::bigint[]) as l(lane)
where not exists (select from delivery_queue q where q.lane = l.lane) and not exists (select from flow_control f where f.lane = l.lane)`
)

// sqlWakeUp takes the rows of lanes whose gates are locked. Statements after it see all that those rows announced.
const sqlWakeUp = `
delete from delivery_wake where ctid = any (array(
    select ctid from delivery_wake where lane = any($1) for update skip locked))`

// sqlAdmitQueues lets the first tasks that wait into their queues, as many as there are places for.
const sqlAdmitQueues = `
with picked as (
    select k.message_id, k.target from delivery_queue q
    cross join lateral (
        select count(distinct slot) as n from delivery_task where queue_lane = q.lane and slot is not null) used
    cross join lateral (
        select message_id, target from delivery_task
        where lane = q.lane and lease is null and due_at <= $2
        order by due_at, message_id, target
        limit least(greatest(q.parallelism - used.n, 0), $3::bigint) for update skip locked) k
    where q.lane = any($1) and not q.paused)
update delivery_task d set slot = d.message_id, lane = d.flow_lane from picked p
where d.message_id = p.message_id and d.target = p.target and d.message_id = any (array(select message_id from picked))
returning d.flow_lane`

// sqlAdmitFlows lets tasks pass for one attempt. A period begins with the first attempt after the end of the one before.
const sqlAdmitFlows = `
with f as materialized (
    select lane, parallelism, rate,
        case when period_start + period <= $2 then $2 else period_start end as start,
        case when period_start + period <= $2 then 0 else period_count end as used
    from flow_control where lane = any($1) and not paused),
picked as (
    select f.lane, k.message_id, k.target from f
    cross join lateral (
        select count(*) as n from delivery_task where flow_lane = f.lane and flowing and f.parallelism is not null) busy
    cross join lateral (
        select message_id, target from delivery_task
        where lane = f.lane and lease is null and due_at <= $2
        order by due_at, message_id, target
        limit greatest(least(f.parallelism - busy.n, f.rate - f.used, $3::bigint), 0) for update skip locked) k),
moved as (
    update delivery_task d set flowing = true, lane = null from picked p
    where d.message_id = p.message_id and d.target = p.target and d.message_id = any (array(select message_id from picked))
    returning p.lane),
counted as (
    update flow_control c set period_start = f.start, period_count = f.used + m.n
    from f join (select lane, count(*) as n from moved group by lane) m on m.lane = f.lane
    where c.lane = f.lane)
select count(*) from moved`

// sqlAdmitGone lets pass what waits for a gate that was removed.
const sqlAdmitGone = `
with picked as (
    select message_id, target from delivery_task where lane = any($1) and lease is null and due_at <= $2
    order by due_at limit $3 for update skip locked)
update delivery_task d set
    lane = case when d.lane = d.queue_lane then d.flow_lane end,
    slot = case when d.lane = d.queue_lane then d.message_id else d.slot end
from picked p
where d.message_id = p.message_id and d.target = p.target and d.message_id = any (array(select message_id from picked))
returning d.flow_lane, d.lane is not null`

// sqlWakeAgain notes when there will be more to do at gates: at once for what one transaction left over, when the next
// task is due, when the period ends. A gate whose places are taken is woken by the end of what has one.
const sqlWakeAgain = `
insert into delivery_wake (lane, at)
select q.lane, next.due_at from delivery_queue q
cross join lateral (
    select due_at from delivery_task where lane = q.lane and lease is null order by due_at limit 1) next
where q.lane = any($1) and not q.paused and q.parallelism > (
    select count(distinct slot) from delivery_task where queue_lane = q.lane and slot is not null)
union all
select f.lane, case when f.period_count >= f.rate then greatest(next.due_at, f.period_start + f.period) else next.due_at end
from flow_control f
cross join lateral (
    select due_at from delivery_task where lane = f.lane and lease is null order by due_at limit 1) next
where f.lane = any($1) and not f.paused and (f.parallelism is null or f.parallelism > (
    select count(*) from delivery_task where flow_lane = f.lane and flowing))
union all
select l.lane, next.due_at from unnest($2::bigint[]) as l(lane)
cross join lateral (
    select due_at from delivery_task where lane = l.lane and lease is null order by due_at limit 1) next`

// openGates lets pass what may pass at gates that were woken, and returns how many tasks moved on.
func (e *Engine) openGates(ctx context.Context) (moved int, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlWoken, wakeLimit)
	if err != nil {
		return 0, e.unavailable("look for gates", err)
	}
	lanes, err := collect[int64](rows)
	if err != nil {
		return 0, e.unavailable("look for gates", err)
	}
	for some := range slices.Chunk(lanes, gateLimit) {
		n, err := e.openSome(ctx, some)
		if err != nil {
			return moved, e.unavailable("open gates", err)
		}
		moved += n
	}
	return moved, nil
}

func (e *Engine) openSome(ctx context.Context, lanes []int64) (moved int, err error) {
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		moved = 0
		var mine, gone []int64
		for _, sql := range []string{sqlLockQueues, sqlLockFlows} {
			locked, err := queryLanes(ctx, tx, sql, lanes)
			if err != nil {
				return err
			}
			mine = append(mine, locked...)
		}
		gone, err := queryLanes(ctx, tx, sqlGoneGates, lanes)
		if err != nil || len(mine)+len(gone) == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, sqlWakeUp, slices.Concat(mine, gone)); err != nil {
			return err
		}
		now, err := readNow(ctx, tx)
		if err != nil {
			return err
		}
		woken := wakes{}
		if moved, err = admitQueues(ctx, tx, mine, now, woken); err != nil {
			return err
		}
		var flowed int
		if err := tx.QueryRow(ctx, sqlAdmitFlows, mine, now, admitLimit).Scan(&flowed); err != nil {
			return err
		}
		freed, err := admitGone(ctx, tx, gone, now, woken)
		if err != nil {
			return err
		}
		moved += flowed + freed
		if len(woken) > 0 {
			if _, err := tx.Exec(ctx, sqlWake, woken.args()...); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, sqlWakeAgain, mine, gone)
		return err
	})
	return moved, err
}

func queryLanes(ctx context.Context, tx pgx.Tx, sql string, lanes []int64) ([]int64, error) {
	rows, err := tx.Query(ctx, sql, lanes)
	if err != nil {
		return nil, err
	}
	return collect[int64](rows)
}

func admitQueues(ctx context.Context, tx pgx.Tx, lanes []int64, now time.Time, woken wakes) (n int, err error) {
	rows, err := tx.Query(ctx, sqlAdmitQueues, lanes, now, admitLimit)
	if err != nil {
		return 0, err
	}
	flows, err := collect[*int64](rows)
	for _, lane := range flows {
		woken.add(lane, now)
	}
	return len(flows), err
}

func admitGone(ctx context.Context, tx pgx.Tx, lanes []int64, now time.Time, woken wakes) (n int, err error) {
	if len(lanes) == 0 {
		return 0, nil
	}
	rows, err := tx.Query(ctx, sqlAdmitGone, lanes, now, admitLimit)
	if err != nil {
		return 0, err
	}
	var lane *int64
	var waits bool
	_, err = pgx.ForEachRow(rows, []any{&lane, &waits}, func() error {
		if n++; waits {
			woken.add(lane, now)
		}
		return nil
	})
	return n, err
}
