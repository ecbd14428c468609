package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// pollDue is how often the broker looks for due messages that it knows nothing of: other brokers accept some too.
	pollDue = time.Second
	// pollBehind is the pause when messages are due of which none could be taken.
	pollBehind = 50 * time.Millisecond
	claimLimit = 500
	parkLimit  = 2000
	loadLimit  = 64
)

const sqlClaim = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
due as (
    select message_id, target from delivery_task
    where lease is null and lane is null and due_at <= (select now from t) and host <> all($3::bigint[])
    order by due_at limit $2 for update skip locked)
update delivery_task d set lease = $1 from due
where d.message_id = due.message_id and d.target = due.target and d.message_id = any (array(select message_id from due))
returning d.message_id, d.target, d.retried, d.cancelled, d.host, d.size, (select now from t)`

// sqlClaimLanes takes tasks of several lanes, of each as many as there is room for.
const sqlClaimLanes = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
due as (
    select k.message_id, k.target from unnest($2::bigint[], $3::integer[]) as l(lane, room)
    cross join lateral (
        select message_id, target from delivery_task
        where lane = l.lane and lease is null and due_at <= (select now from t)
        order by due_at limit l.room for update skip locked) k)
update delivery_task d set lease = $1 from due
where d.message_id = due.message_id and d.target = due.target and d.message_id = any (array(select message_id from due))
returning d.message_id, d.target, d.retried, d.cancelled, d.host, d.size, (select now from t)`

const sqlNextDue = `
select clock_timestamp() + clock_offset,
       least((select due_at from delivery_task where lease is null and lane is null order by due_at limit 1),
             (select at from delivery_wake order by at limit 1))
from setting`

// sqlPark moves due tasks of hosts that have their share out of the way of others.
const sqlPark = `
with due as (
    select message_id, target from delivery_task
    where lease is null and lane is null and host = any($1)
      and due_at <= (select clock_timestamp() + clock_offset from setting)
    order by due_at limit $2 for update skip locked)
update delivery_task d set lane = d.host from due
where d.message_id = due.message_id and d.target = due.target and d.message_id = any (array(select message_id from due))
returning d.host`

// sqlFindParked skips from one lane to the next. The lane of a host is the host.
const sqlFindParked = `
with recursive l as (
    (select host as lane from delivery_task where lease is null and lane = host order by host limit 1)
    union all
    select (select t.host from delivery_task t where t.lease is null and t.lane = t.host and t.host > l.lane order by t.host limit 1)
    from l where l.lane is not null)
select l.lane from l where l.lane is not null`

// nextDue is the database's time, and when the first task that waits for its time is due or a gate is to be looked at; zero
// when neither is known.
func (e *Engine) nextDue(ctx context.Context) (now, next time.Time, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var due *time.Time
	if err := e.pool.QueryRow(ctx, sqlNextDue).Scan(&now, &due); err != nil {
		return now, next, e.unavailable("look for due messages", err)
	}
	e.clock.Observe(now)
	if due != nil {
		next = *due
	}
	return now, next, nil
}

// findParked learns of which hosts tasks wait in their lanes, also those that other brokers put there.
func (e *Engine) findParked(ctx context.Context) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlFindParked)
	if err != nil {
		return e.unavailable("look for parked messages", err)
	}
	lanes, err := collect[int64](rows)
	if err != nil {
		return e.unavailable("look for parked messages", err)
	}
	if len(lanes) > 0 {
		e.dispatch.setParked(lanes, true)
		signal(e.due)
	}
	return nil
}

// claimLoop takes due tasks while there is room for them.
func (e *Engine) claimLoop() {
	for {
		wait, err := e.claimDue(e.ctx)
		if err != nil {
			if e.ctx.Err() != nil {
				return
			}
			e.log.Warn("cannot take due messages", "error", err)
			wait = pollDue
		}
		if wait == 0 && e.ctx.Err() == nil {
			continue
		}
		select {
		case <-e.ctx.Done():
			return
		case <-e.due:
		case <-e.dispatch.room:
		case <-time.After(wait):
		}
	}
}

// claimDue takes what is due and says how long nothing more will be. A full dispatcher is waited for by its signal.
func (e *Engine) claimDue(ctx context.Context) (time.Duration, error) {
	e.claiming.Lock()
	defer e.claiming.Unlock()
	n, except := e.dispatch.claimable()
	if n == 0 {
		return pollDue, nil
	}
	passed, err := e.openGates(ctx)
	if err != nil {
		return 0, err
	}
	taken, err := e.claim(ctx, n, sqlClaim, n, except)
	if err != nil {
		return 0, err
	}
	fromLanes, err := e.claimLanes(ctx)
	if err != nil {
		return 0, err
	}
	parked, err := e.park(ctx, except)
	switch {
	case err != nil:
		return 0, err
	case taken == n, passed > 0, fromLanes > 0, parked == parkLimit:
		return 0, nil
	}
	now, next, err := e.nextDue(ctx)
	switch {
	case err != nil:
		return 0, err
	case next.IsZero():
		return pollDue, nil
	}
	return min(max(next.Sub(now), pollBehind), pollDue), nil
}

func (e *Engine) claimLanes(ctx context.Context) (int, error) {
	lanes, room := e.dispatch.lanesWithRoom()
	if len(lanes) == 0 {
		return 0, nil
	}
	total := 0
	for _, n := range room {
		total += int(n)
	}
	taken, err := e.claim(ctx, total, sqlClaimLanes, lanes, room)
	if err == nil && taken == 0 {
		// Nothing waits any more, or what does is being taken by another broker, or findParked will find it again.
		e.dispatch.setParked(lanes, false)
	}
	return taken, err
}

// claim takes at most n tasks with a statement whose first argument is the lease.
func (e *Engine) claim(ctx context.Context, n int, sql string, args ...any) (int, error) {
	held := e.leases.take(n)
	if held == nil {
		return 0, nil
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var jobs []*job
	var now time.Time
	var j job
	err := steadily(ctx, e.pool, sqlSteady, []any{&j.message, &j.target, &j.retried, &j.cancelled, &j.host, &j.size, &now}, func() error {
		taken := j
		taken.lease, taken.from = held, now
		jobs = append(jobs, &taken)
		return nil
	}, sql, append([]any{held.id}, args...)...)
	if err != nil {
		e.leases.give(held, n)
		e.leases.retire() // it may have taken some
		return 0, e.unavailable("take due messages", err)
	}
	e.leases.give(held, n-len(jobs))
	if len(jobs) > 0 {
		e.clock.Observe(now)
		e.dispatch.add(jobs, false)
	}
	return len(jobs), nil
}

func (e *Engine) park(ctx context.Context, hosts []int64) (int64, error) {
	if len(hosts) == 0 {
		return 0, nil
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlPark, hosts, parkLimit)
	if err != nil {
		return 0, e.unavailable("park messages", err)
	}
	parked, err := collect[int64](rows)
	if err != nil {
		return 0, e.unavailable("park messages", err)
	}
	e.dispatch.setParked(parked, true)
	return int64(len(parked)), nil
}

// Settle returns when everything that is due by now has been tried and its outcomes are committed, callbacks included, and
// when what is past its time is removed. What another broker has taken by now is waited for too. It is for tests that move
// the clock.
func (e *Engine) Settle(ctx context.Context) error {
	began, _, err := e.nextDue(ctx)
	if err != nil {
		return err
	}
	for {
		if _, err := e.tickDue(ctx); err != nil {
			return err
		}
		signal(e.due)
		if err := e.dispatch.waitQuiet(ctx); err != nil {
			return err
		}
		quiet, err := e.nothingDue(ctx, began)
		if err != nil {
			return err
		}
		if quiet {
			return e.sweep(ctx)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.ctx.Done():
			return ErrStopped
		case <-time.After(time.Millisecond):
		}
	}
}

// sqlDueLeft asks for the first of each kind, which the index has: whether there is one that is due would be looked for from
// one end of the table to the other, because no statistics say how many are. What waits in the lane of a host was due before
// it got there. Of what is leased only what was due at a time counts: there may always be more. A schedule that is due is
// ticking at another broker.
const sqlDueLeft = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting)
select coalesce((select due_at from delivery_task where lease is null and lane is null order by due_at limit 1) <= now, false)
  or coalesce((select due_at from delivery_task where lease is null and lane = host order by host limit 1) <= now, false)
  or coalesce((select at from delivery_wake order by at limit 1) <= now, false)
  or coalesce((select min(next_at) from schedule where not paused and next_at is not null) <= now, false)
  or coalesce((select min(due_at) from (
        select due_at from delivery_task where lease is not null order by lease limit 10000) l) <= $1, false)
from t`

// nothingDue reports whether nothing is in hand and nothing is due. What is in hand is asked first: an attempt that ended
// after a look at the database would have left work that the look did not see.
func (e *Engine) nothingDue(ctx context.Context, by time.Time) (bool, error) {
	e.claiming.Lock()
	defer e.claiming.Unlock()
	if !e.dispatch.idle() {
		return false, nil
	}
	// Nor may leases hold what is in nobody's memory: it is due again when they are over.
	if e.leases.lingering() {
		signal(e.leases.want)
		return false, nil
	}
	if err := e.reap(ctx); err != nil {
		return false, err
	}
	left, err := e.dueLeft(ctx, by)
	return err == nil && !left && e.dispatch.idle(), err
}

func (e *Engine) dueLeft(ctx context.Context, by time.Time) (left bool, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	if err := e.pool.QueryRow(ctx, sqlDueLeft, by).Scan(&left); err != nil {
		return false, e.unavailable("look for due messages", err)
	}
	return left, nil
}

// load is a message whose content an attempt needs.
type load struct {
	id      uuid.UUID
	message *Stored // nil when there is no such message
	err     error
	done    chan struct{}
}

const messageColumns = `
id, created_at, not_before, method, url, targets, topic, queue, schedule_id, flow_key, label, caller_ip, header, settings, body`

const sqlLoad = `select` + messageColumns + ` from delivery_message where id = any($1)`

// scanMessage reads a row of messageColumns, and what follows them into more.
func scanMessage(row pgx.Row, more ...any) (*Stored, error) {
	m := &Stored{}
	var first string
	var targets, header, settings []byte
	var topic, queue, schedule, flow, label *string
	err := row.Scan(append([]any{
		&m.ID, &m.CreatedAt, &m.FirstAt, &m.Method, &first, &targets, &topic, &queue, &schedule, &flow, &label, &m.CallerIP,
		&header, &settings, &m.Body,
	}, more...)...)
	if err != nil {
		return nil, err
	}
	if m.Targets, err = decodeTargets(first, targets); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(settings, &m.Settings); err != nil {
		return nil, fmt.Errorf("read the settings of a message: %w", err)
	}
	m.Topic, m.Queue, m.ScheduleID, m.FlowKey, m.Label = text(topic), text(queue), text(schedule), text(flow), text(label)
	m.Header = decodeHeader(header)
	return m, nil
}

func (e *Engine) loadMessages(loads []*load) {
	ids := make([]uuid.UUID, len(loads))
	for i, l := range loads {
		ids[i] = l.id
	}
	found, err := e.readMessages(e.ctx, ids)
	for _, l := range loads {
		l.message, l.err = found[l.id], err
		close(l.done)
	}
}

func (e *Engine) readMessages(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*Stored, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlLoad, ids)
	if err != nil {
		return nil, e.unavailable("read messages", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Stored, error) { return scanMessage(row) })
	if err != nil {
		return nil, e.unavailable("read messages", err)
	}
	found := make(map[uuid.UUID]*Stored, len(list))
	for _, m := range list {
		found[m.ID] = m
	}
	return found, nil
}
