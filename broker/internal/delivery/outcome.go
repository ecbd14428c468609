package delivery

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/delivery/retry"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// State is what a log entry says happened.
type State int16

// The states, as the log stores them. Their order is that of a message's life.
const (
	Created         State = 1 + iota // accepted
	Active                           // an attempt began
	Retrying                         // another attempt follows
	Failing                          // an attempt brought no success
	Delivered                        // an attempt brought success: the end
	Failed                           // no attempt is left, or none can help: the end
	CancelRequested                  // somebody asked for the end
	Cancelled                        // that was the end
)

const outcomeLimit = 256

// sqlFence locks the tasks whose attempts are this broker's to judge: the lease is still held, and the attempt is the one that
// was leased. What an attempt to commit before this one has done is not done again.
//
// Here and below, that ids are among those asked for is said of the table by itself, and the lease is hidden from its index: a
// plan for a table without rows would otherwise read all of it, or all that is leased, and stay when there are many.
const sqlFence = `
select d.message_id, d.target, d.cancelled, d.queue_lane, d.slot, d.flow_lane, clock_timestamp() + s.clock_offset
from unnest($1::uuid[], $2::smallint[], $3::integer[], $4::bigint[]) as o(message_id, target, retried, lease)
join delivery_task d on d.message_id = o.message_id and d.target = o.target and d.retried = o.retried
    and coalesce(d.lease, 0) = o.lease
cross join setting s
where d.message_id = any($1)
order by d.message_id, d.target
for update of d`

const sqlEnd = `
delete from delivery_task d using unnest($1::uuid[], $2::smallint[]) as o(message_id, target)
where d.message_id = o.message_id and d.target = o.target and d.message_id = any($1)`

const sqlRetry = `
update delivery_task d set lease = null, lane = d.flow_lane, flowing = false, retried = d.retried + 1, due_at = o.due_at
from unnest($1::uuid[], $2::smallint[], $3::timestamptz[]) as o(message_id, target, due_at)
where d.message_id = o.message_id and d.target = o.target and d.message_id = any($1)`

const sqlEntries = `
insert into delivery_log (message_id, target, time, state, retried, next_at, error, response_status, response_header, response_body)
select * from unnest($1::uuid[], $2::smallint[], $3::timestamptz[], $4::smallint[], $5::integer[], $6::timestamptz[], $7::text[],
    $8::integer[], $9::bytea[], $10::bytea[])`

const sqlDeadLetters = `
insert into delivery_dead_letter (id, message_id, target, retried, failed_at, error, response_status, response_header, response_body)
select * from unnest($1::uuid[], $2::uuid[], $3::smallint[], $4::integer[], $5::timestamptz[], $6::text[], $7::integer[], $8::bytea[],
    $9::bytea[])`

// taskKey names a task.
type taskKey struct {
	message uuid.UUID
	target  int
}

// verdict is what follows from an outcome: the writes of its transaction, as columns.
type verdict struct {
	ended     taskColumns
	retried   taskColumns
	due       []time.Time
	entries   entryColumns
	dead      deadColumns
	callbacks []*unit
	woken     wakes          // lanes of which something ended
	opens     bool           // a gate may let something pass
	counts    map[string]int // of attempts by outcome, for the metrics
	retrySoon bool
}

type taskColumns struct {
	ids     [][16]byte
	targets []int16
}

func (c *taskColumns) add(k taskKey) {
	c.ids = append(c.ids, k.message)
	c.targets = append(c.targets, int16(k.target))
}

type entryColumns struct {
	taskColumns
	times    []time.Time
	states   []int16
	retried  []int32
	next     []*time.Time
	errors   []*string
	statuses []*int32
	headers  [][]byte
	bodies   [][]byte
}

// add notes an entry; o is the outcome whose answer belongs to it, nil for none.
func (c *entryColumns) add(k taskKey, at time.Time, state State, retried int, next *time.Time, o *outcome) {
	c.taskColumns.add(k)
	c.times = append(c.times, at)
	c.states = append(c.states, int16(state))
	c.retried = append(c.retried, int32(retried))
	c.next = append(c.next, next)
	var failure *string
	var status *int32
	var header, body []byte
	if o != nil {
		failure = optional(o.err)
		if o.status != 0 {
			n := int32(o.status)
			status, header, body = &n, encodeHeader(o.header), o.body[:min(len(o.body), responseLimit)]
		}
	}
	c.errors = append(c.errors, failure)
	c.statuses = append(c.statuses, status)
	c.headers = append(c.headers, header)
	c.bodies = append(c.bodies, body)
}

func (c *entryColumns) args() []any {
	return []any{
		c.ids, c.targets, c.times, c.states, c.retried, flat(c.next), flat(c.errors), flat(c.statuses), flat(c.headers), flat(c.bodies),
	}
}

type deadColumns struct {
	keys     [][16]byte
	tasks    taskColumns
	retried  []int32
	times    []time.Time
	errors   []string
	statuses []int32
	headers  [][]byte
	bodies   [][]byte
}

func (c *deadColumns) add(id uuid.UUID, k taskKey, at time.Time, o *outcome) {
	c.keys = append(c.keys, id)
	c.tasks.add(k)
	c.retried = append(c.retried, int32(o.job.retried))
	c.times = append(c.times, at)
	c.errors = append(c.errors, o.err)
	c.statuses = append(c.statuses, int32(o.status))
	c.headers = append(c.headers, encodeHeader(o.header))
	c.bodies = append(c.bodies, append([]byte{}, o.body[:min(len(o.body), responseLimit)]...))
}

func (c *deadColumns) args() []any {
	return []any{
		c.keys, c.tasks.ids, c.tasks.targets, c.retried, c.times, c.errors, c.statuses, flat(c.headers), flat(c.bodies),
	}
}

// settleOutcomes commits outcomes together, however long the database is away. Outcomes whose lease was lost meanwhile
// change nothing.
func (e *Engine) settleOutcomes(outcomes []*outcome) {
	defer func() {
		for _, o := range outcomes {
			close(o.done)
		}
	}()
	var plain, others []*outcome
	for _, o := range outcomes {
		if o.delivered && o.message.Callback == nil {
			plain = append(plain, o)
		} else {
			others = append(others, o)
		}
	}
	e.settleTogether(plain, e.commitDelivered)
	e.settleTogether(others, e.commitOutcomes)
}

// commit writes what became of attempts and what follows, in one transaction.
type commit func([]*outcome) (*verdict, error)

func (e *Engine) settleTogether(outcomes []*outcome, commit commit) {
	if len(outcomes) > 1 && e.commitPatiently(outcomes, commit) == nil {
		return
	}
	for _, o := range outcomes {
		e.settleAlone(o, commit)
	}
}

// settleAlone commits one outcome. What PostgreSQL refuses to store of it is left out step by step: first what the destination
// answered, then the callbacks, and with them the attempts that are left. So no outcome is repeated for ever.
func (e *Engine) settleAlone(o *outcome, commit commit) {
	err := e.commitPatiently([]*outcome{o}, commit)
	for _, strip := range []func(*outcome){(*outcome).stripAnswer, (*outcome).stripCallbacks} {
		if !pg.BadData(err) {
			break
		}
		e.log.Error("cannot store all of what became of a delivery", "message", MessageID(o.job.message), "error", err)
		strip(o)
		if err = e.commitPatiently([]*outcome{o}, commit); err == nil {
			e.metrics.stripped.Inc()
		}
	}
	if err == nil || errors.Is(err, context.Canceled) {
		return
	}
	e.postpone(o, err)
}

// stripAnswer leaves out what the destination answered.
func (o *outcome) stripAnswer() {
	o.header, o.body = nil, nil
	if !o.delivered {
		o.err += "; the answer could not be stored"
	}
}

// stripCallbacks leaves out the callbacks and ends the message. The message may be shared, so it is copied.
func (o *outcome) stripCallbacks() {
	m := *o.message
	m.Callback, m.FailureCallback = nil, nil
	o.message, o.final, o.after = &m, true, nil
	if !o.delivered {
		o.err += "; nor could a callback, so that no other attempt is made"
	}
}

// commitPatiently repeats while the database is away. The error is one that repeating does not help, or the engine's end.
func (e *Engine) commitPatiently(outcomes []*outcome, commit commit) error {
	for {
		v, err := commit(outcomes)
		if err == nil {
			e.refused.forget(outcomes)
			e.follow(v)
			return nil
		}
		if e.ctx.Err() != nil {
			return context.Canceled
		}
		if !pg.Unavailable(err) && !pg.UnknownOutcome(err) && !pg.Retryable(err) {
			return err
		}
		if !pg.Retryable(err) {
			e.pool.Reset()
			e.dispatch.pauseUnless(e.leases.fresh())
			e.log.Warn("cannot store what became of deliveries; trying again", "deliveries", len(outcomes), "error", err)
			if !e.pause(250 * time.Millisecond) {
				return context.Canceled
			}
		}
	}
}

// sqlDelivered ends tasks whose attempts were this broker's to judge, as sqlFence has it, and that nobody is told of.
const sqlDelivered = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
o as materialized (
    select * from unnest($1::uuid[], $2::smallint[], $3::integer[], $4::bigint[], $5::timestamptz[], $6::integer[], $7::bytea[], $8::bytea[])
        as o(message_id, target, retried, lease, start, status, header, body)),
gone as (
    delete from delivery_task d using o
    where d.message_id = o.message_id and d.target = o.target and d.retried = o.retried
        and coalesce(d.lease, 0) = o.lease and d.message_id = any($1)
    returning o.*, d.queue_lane, d.flow_lane),
entries as (
    insert into delivery_log (message_id, target, time, state, retried, response_status, response_header, response_body)
    select o.message_id, o.target, e.* from gone o cross join t
    cross join lateral (values
        (least(o.start, t.now), $9::smallint, o.retried, null::integer, null::bytea, null::bytea),
        (t.now, $10::smallint, o.retried, o.status, o.header, o.body)) e),
woken as (
    insert into delivery_wake (lane, at)
    select distinct l.lane, t.now from gone cross join t cross join lateral (values (queue_lane), (flow_lane)) l(lane)
    where l.lane is not null)
select queue_lane is not null or flow_lane is not null, t.now from gone cross join t`

// commitDelivered is commitOutcomes for outcomes that are most of all: the messages were delivered, and nobody is told.
func (e *Engine) commitDelivered(outcomes []*outcome) (*verdict, error) {
	ctx, cancel := e.deadline(context.WithoutCancel(e.ctx))
	defer cancel()
	slices.SortFunc(outcomes, func(a, b *outcome) int { // the order in which others lock tasks
		return cmp.Or(bytes.Compare(a.job.message[:], b.job.message[:]), cmp.Compare(a.job.target, b.job.target))
	})
	var tasks taskColumns
	n := len(outcomes)
	retried, leases, starts := make([]int32, n), make([]int64, n), make([]time.Time, n)
	statuses, headers, bodies := make([]int32, n), make([][]byte, n), make([][]byte, n)
	for i, o := range outcomes {
		tasks.add(taskKey{o.job.message, o.job.target})
		retried[i], leases[i], starts[i], statuses[i] = int32(o.job.retried), o.job.lease.id, o.start, int32(o.status)
		headers[i], bodies[i] = encodeHeader(o.header), o.body[:min(len(o.body), responseLimit)]
	}
	v := &verdict{counts: map[string]int{attemptLost: n}}
	var gated bool
	var now time.Time
	err := steadily(ctx, e.pool, sqlSteady, []any{&gated, &now}, func() error {
		v.counts[attemptLost]--
		v.counts[attemptDelivered]++
		v.opens = v.opens || gated
		return nil
	}, sqlDelivered, tasks.ids, tasks.targets, retried, leases, starts, statuses, flat(headers), flat(bodies), Active, Delivered)
	if err != nil {
		return nil, err
	}
	if !now.IsZero() {
		e.clock.Observe(now)
	}
	return v, nil
}

// commitOutcomes writes in one transaction what became of attempts and what follows: the next attempt or the end, log
// entries, callbacks, dead letters.
func (e *Engine) commitOutcomes(outcomes []*outcome) (*verdict, error) {
	ctx, cancel := e.deadline(context.WithoutCancel(e.ctx))
	defer cancel()
	v := &verdict{woken: wakes{}, counts: map[string]int{}}
	err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		fenced, now, err := fence(ctx, tx, outcomes)
		if err != nil {
			return err
		}
		e.clock.Observe(now)
		for _, o := range outcomes {
			k := taskKey{o.job.message, o.job.target}
			if f, mine := fenced[k]; mine {
				e.judge(v, o, f, now)
			} else {
				v.counts[attemptLost]++
			}
		}
		return e.write(ctx, tx, v)
	})
	if err != nil {
		for _, u := range v.callbacks {
			e.withdraw(u, err)
		}
		return nil, err
	}
	return v, nil
}

// fenced is a task that an outcome may change.
type fenced struct {
	cancelled   bool   // somebody asked for its end
	queue, flow *int64 // its gates
	slot        *uuid.UUID
}

// fence returns the tasks that outcomes may change, and the database's time.
func fence(ctx context.Context, tx pgx.Tx, outcomes []*outcome) (map[taskKey]fenced, time.Time, error) {
	var tasks taskColumns
	retried := make([]int32, len(outcomes))
	leases := make([]int64, len(outcomes))
	for i, o := range outcomes {
		tasks.add(taskKey{o.job.message, o.job.target})
		retried[i] = int32(o.job.retried)
		leases[i] = o.job.lease.id
	}
	var now time.Time
	tasksOf := make(map[taskKey]fenced, len(outcomes))
	var k taskKey
	var f fenced
	err := steadily(ctx, tx, sqlSteady, []any{&k.message, &k.target, &f.cancelled, &f.queue, &f.slot, &f.flow, &now}, func() error {
		tasksOf[k] = f
		return nil
	}, sqlFence, tasks.ids, tasks.targets, retried, leases)
	return tasksOf, now, err
}

// judge decides what follows from one outcome.
func (e *Engine) judge(v *verdict, o *outcome, f fenced, now time.Time) {
	k := taskKey{o.job.message, o.job.target}
	n := o.job.retried
	v.woken.add(f.flow, now)
	v.woken.add(f.queue, now)
	if !o.start.IsZero() {
		start := o.start
		if start.After(now) {
			start = now
		}
		v.entries.add(k, start, Active, n, nil, nil)
	}
	switch {
	case o.delivered:
		v.counts[attemptDelivered]++
		v.ended.add(k)
		v.entries.add(k, now, Delivered, n, nil, o)
		e.callBack(v, o, f, o.message.Callback, nil)
	case f.cancelled || o.start.IsZero():
		v.counts[attemptCancelled]++
		if !o.start.IsZero() {
			v.entries.add(k, now, Failing, n, nil, o)
		}
		v.ended.add(k)
		v.entries.add(k, now, Cancelled, n, nil, nil)
	case o.final || n >= o.message.Retries:
		v.counts[attemptFailed]++
		v.entries.add(k, now, Failing, n, nil, o)
		v.ended.add(k)
		v.entries.add(k, now, Failed, n, nil, o)
		dead := newID()
		v.dead.add(dead, k, now, o)
		e.callBack(v, o, f, o.message.Callback, nil)
		e.callBack(v, o, f, o.message.FailureCallback, &dead)
	default:
		v.counts[attemptRetry]++
		pause := e.pauseBefore(o)
		next := now.Add(pause)
		v.retrySoon = v.retrySoon || pause < pollDue
		v.retried.add(k)
		v.due = append(v.due, next)
		v.entries.add(k, now, Failing, n, nil, o)
		v.entries.add(k, now, Retrying, n, &next, o)
		v.woken.add(f.flow, next)
		e.callBack(v, o, f, o.message.Callback, nil)
	}
}

// pauseBefore is the pause before the next attempt: what the destination asked for, else the message's expression, else the
// backoff (publish contract, section 10).
func (e *Engine) pauseBefore(o *outcome) time.Duration {
	if o.after != nil {
		return *o.after
	}
	if o.message.RetryDelay != "" {
		expression, err := retry.Parse(o.message.RetryDelay)
		if err == nil {
			return expression.Delay(o.job.retried)
		}
		e.log.Error("a stored retry delay cannot be read", "message", MessageID(o.message.ID), "error", err)
	}
	return retry.Backoff(o.job.retried+1, e.cfg.BackoffFactor)
}

// write sends the statements of a verdict. Callbacks are accepted like any publish, in this transaction.
func (e *Engine) write(ctx context.Context, tx pgx.Tx, v *verdict) error {
	batch := &pgx.Batch{}
	if len(v.ended.ids) > 0 {
		batch.Queue(sqlEnd, v.ended.ids, v.ended.targets)
	}
	if len(v.retried.ids) > 0 {
		batch.Queue(sqlRetry, v.retried.ids, v.retried.targets, v.due)
	}
	if len(v.entries.ids) > 0 {
		batch.Queue(sqlEntries, v.entries.args()...)
	}
	if len(v.dead.keys) > 0 {
		batch.Queue(sqlDeadLetters, v.dead.args()...)
	}
	if len(v.woken) > 0 {
		batch.Queue(sqlWake, v.woken.args()...)
	}
	if batch.Len() > 0 {
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
	}
	if len(v.callbacks) == 0 {
		return nil
	}
	args, err := acceptArgs(v.callbacks, e.cfg.DedupWindow)
	if err != nil {
		return err
	}
	return e.tryAccept(ctx, tx, v.callbacks, args)
}

// follow does what committed outcomes make possible.
func (e *Engine) follow(v *verdict) {
	e.metrics.settled(v)
	for _, u := range v.callbacks {
		e.handOver(u)
	}
	if v.retrySoon || v.opens || len(v.woken) > 0 {
		signal(e.due)
	}
}

// withdraw gives up the room of a callback whose transaction failed. The next attempt to commit makes it anew, unless this
// one was committed all the same: then the callback is held by a lease of which nothing is in memory.
func (e *Engine) withdraw(u *unit, failure error) {
	if u.lease == nil {
		return
	}
	e.dispatch.unreserve(u)
	e.leases.give(u.lease, u.targets)
	u.lease = nil
	if pg.Unavailable(failure) || pg.UnknownOutcome(failure) {
		e.leases.retire()
	}
}

// stateNames are the states as the wire has them.
var stateNames = map[State]string{
	Created: "CREATED", Active: "ACTIVE", Retrying: "RETRY", Failing: "ERROR", Delivered: "DELIVERED", Failed: "FAILED",
	CancelRequested: "CANCEL_REQUESTED", Cancelled: "CANCELED",
}

// String is the state as the wire has it.
func (s State) String() string { return stateNames[s] }
