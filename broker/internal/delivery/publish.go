package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Publish is what one request asks for: messages that are accepted together or not at all.
type Publish struct {
	DedupID  string // "" means that nothing is a duplicate
	Messages []Message
}

// Accepted is what became of a Publish.
type Accepted struct {
	IDs       []uuid.UUID // of the messages, in order; of the original's messages when it is a duplicate
	Duplicate bool
	Schedule  string // the original when that was a schedule
	CreatedAt time.Time
}

const (
	acceptLimit = 512 // publishes of one transaction
	// immediateLimit is the most tasks of one publish that are handed over in memory.
	immediateLimit = 16
)

// unit is one publish on its way.
type unit struct {
	messages []*Stored
	targets  int
	key      []byte // nil: not deduplicated
	ids      []uuid.UUID
	hosts    [][]int64 // of each message's targets
	lease    *lease    // of what is handed over in memory; nil: nothing is
	lanes    [][]int64 // of each message's targets, 0 for none

	result Accepted
	err    error
	done   chan struct{}
}

// Publish accepts messages: when it returns without an error they are committed. Messages of a duplicate are not.
//
// The error is ErrUnavailable when nobody knows whether they are committed; to publish again is safe with a DedupID.
func (e *Engine) Publish(ctx context.Context, p Publish) (Accepted, error) {
	return e.Begin(p).Wait(ctx)
}

// Pending is a publish whose end has not been awaited.
type Pending struct {
	unit *unit
	err  error // it did not begin
}

// Begin begins to publish. Messages that one caller begins one after the other for the same delivery queue have that order
// there; to wait for each of them first would cost a commit for each.
func (e *Engine) Begin(p Publish) *Pending {
	if !e.enter() {
		return &Pending{err: ErrStopped}
	}
	u, err := newUnit(p)
	if err != nil {
		e.inflight.Done()
		return &Pending{err: err}
	}
	e.accepts.Add(u)
	return &Pending{unit: u}
}

// Wait returns when the publish has ended, as Publish does.
func (p *Pending) Wait(ctx context.Context) (Accepted, error) {
	if p.err != nil {
		return Accepted{}, p.err
	}
	select {
	case <-p.unit.done:
		return p.unit.result, p.unit.err
	case <-ctx.Done():
		return Accepted{}, ctx.Err()
	}
}

func newUnit(p Publish) (*unit, error) {
	u := &unit{done: make(chan struct{})}
	if p.DedupID != "" {
		sum := sha256.Sum256([]byte(p.DedupID))
		u.key = sum[:]
	}
	if len(p.Messages) == 0 {
		return nil, errNoTarget
	}
	for _, m := range p.Messages {
		switch {
		case len(m.Targets) == 0:
			return nil, errNoTarget
		case len(m.Targets) > MaxTargets:
			return nil, errTooManyTargets
		case p.DedupID != "" && strings.HasPrefix(m.Targets[0].URL, queueScheme): // publish contract, section 1
			m.TransactionID = p.DedupID
		}
		u.add(&Stored{Message: m, ID: newID()})
	}
	return u, nil
}

func (u *unit) add(m *Stored) {
	if m.Method == "" {
		m.Method = http.MethodPost
	}
	u.messages = append(u.messages, m)
	u.ids = append(u.ids, m.ID)
	hosts := make([]int64, len(m.Targets))
	for i, t := range m.Targets {
		hosts[i] = hostOf(t.URL)
	}
	u.hosts = append(u.hosts, hosts)
	u.targets += len(m.Targets)
}

// immediate reports whether all of a unit is due when it is accepted.
func (u *unit) immediate() bool {
	for _, m := range u.messages {
		if m.Delay > 0 || !m.NotBefore.IsZero() || m.gated() {
			return false
		}
	}
	return u.targets <= immediateLimit
}

// sqlAccept writes messages with their tasks and log entries, and the ids of those that are deduplicated. What lost against
// an id that counts still is left out. A message that is there already is left alone with all that belongs to it: that makes
// the statement repeatable. Keys are locked in order.
const sqlAccept = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
won as (
    insert into delivery_dedup as o (key, ids, schedule, created_at)
    select k.key, k.ids, false, t.now from unnest($1::bytea[], $2::bytea[]) as k(key, ids) cross join t order by k.key
    on conflict (key) do update set ids = excluded.ids, schedule = excluded.schedule, created_at = excluded.created_at
    where o.created_at <= excluded.created_at - $3::interval
    returning key),
written as (
    insert into delivery_message (id, created_at, not_before, method, url, targets, topic, queue, schedule_id, flow_key, label,
        caller_ip, header, settings, body)
    select m.id, t.now, greatest(coalesce(m.not_before, t.now + m.delay), t.now), m.method, m.url, m.targets, m.topic, m.queue,
        m.schedule_id, m.flow_key, m.label, m.caller_ip, m.header, m.settings, m.body
    from unnest($4::bytea[], $5::uuid[], $6::timestamptz[], $7::interval[], $8::text[], $9::text[], $10::jsonb[], $11::text[],
            $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::bytea[], $19::bytea[])
        as m(key, id, not_before, delay, method, url, targets, topic, queue, schedule_id, flow_key, label, caller_ip, header,
            settings, body)
    cross join t
    where m.key is null or m.key in (select key from won)
    on conflict (id) do nothing
    returning id, not_before, created_at),
tasks as (
    insert into delivery_task (message_id, target, retried, cancelled, due_at, host, size, lane, lease, queue_lane, slot, flow_lane)
    select w.id, k.target, 0, false, w.not_before, k.host, k.size, k.lane, k.lease, k.queue_lane, k.slot, k.flow_lane
    from unnest($20::uuid[], $21::smallint[], $22::bigint[], $23::integer[], $24::bigint[], $25::bigint[], $26::bigint[], $27::uuid[],
            $28::bigint[])
        as k(id, target, host, size, lane, lease, queue_lane, slot, flow_lane)
    join written w on w.id = k.id),
entries as (
    insert into delivery_log (message_id, target, time, state, retried, next_at)
    select w.id, k.target, w.created_at, 1, 0, w.not_before
    from unnest($20::uuid[], $21::smallint[]) as k(id, target) join written w on w.id = k.id
    order by k.id, k.target)
select id, created_at, not_before from written`

// acceptArgs are the arguments of sqlAccept.
func acceptArgs(units []*unit, window time.Duration) ([]any, error) {
	var (
		keys, packed                           [][]byte
		keyOf, targets, header, settings, body [][]byte
		ids, taskIDs                           [][16]byte
		notBefore                              []*time.Time
		delay                                  []time.Duration
		method, url, callerIP                  []string
		topic, queue, schedule, flow, label    []*string
		taskTarget                             []int16
		taskHost                               []int64
		taskSize                               []int32
		taskLane, taskLease                    []*int64
		taskQueue, taskFlow                    []*int64
		taskSlot                               []*[16]byte
	)
	for _, u := range units {
		if u.key != nil {
			keys = append(keys, u.key)
			packed = append(packed, packIDs(u.ids))
		}
		for i, m := range u.messages {
			encodedTargets, err := encodeTargets(m.Targets)
			if err != nil {
				return nil, err
			}
			encodedSettings, err := json.Marshal(m.Settings)
			if err != nil {
				return nil, err
			}
			keyOf = append(keyOf, u.key)
			ids = append(ids, m.ID)
			var at *time.Time
			if !m.NotBefore.IsZero() {
				at = &m.NotBefore
			}
			notBefore = append(notBefore, at)
			delay = append(delay, m.Delay)
			method = append(method, m.Method)
			url = append(url, m.Targets[0].URL)
			targets = append(targets, encodedTargets)
			topic = append(topic, optional(m.Topic))
			queue = append(queue, optional(m.Queue))
			schedule = append(schedule, optional(m.ScheduleID))
			flow = append(flow, optional(m.FlowKey))
			label = append(label, optional(m.Label))
			callerIP = append(callerIP, m.CallerIP)
			header = append(header, encodeHeader(m.Header))
			settings = append(settings, encodedSettings)
			content := m.Body
			if content == nil {
				content = []byte{}
			}
			body = append(body, content)
			g := gatesOf(m)
			for target := range m.Targets {
				taskIDs = append(taskIDs, m.ID)
				taskTarget = append(taskTarget, int16(target))
				taskHost = append(taskHost, u.hosts[i][target])
				taskSize = append(taskSize, int32(min(m.size(), 1<<30)))
				lane, held := g.wait, (*int64)(nil)
				if u.lanes != nil && u.lanes[i][target] != 0 {
					lane = &u.lanes[i][target]
				}
				if u.lease != nil {
					held = &u.lease.id
				}
				taskLane, taskLease = append(taskLane, lane), append(taskLease, held)
				taskQueue, taskSlot, taskFlow = append(taskQueue, g.queue), append(taskSlot, (*[16]byte)(g.slot)), append(taskFlow, g.flow)
			}
		}
	}
	return []any{
		flat(keys), flat(packed), window, flat(keyOf), ids, flat(notBefore), flat(delay), method, url, flat(targets), flat(topic),
		flat(queue), flat(schedule), flat(flow), flat(label), callerIP, flat(header), flat(settings), flat(body), taskIDs, taskTarget,
		taskHost, taskSize, flat(taskLane), flat(taskLease), flat(taskQueue), flat(taskSlot), flat(taskFlow),
	}, nil
}

// flat spares the reflection with which arrays of most types are encoded. For ids, which would be encoded by way of text, they
// are kept as arrays of 16 bytes.
func flat[T any](s []T) pgtype.FlatArray[T] { return s }

// acceptUnits commits publishes together. The bundle is an optimisation: when it fails for what one of them holds, each is
// committed by itself.
func (e *Engine) acceptUnits(units []*unit) {
	first := make(map[string]*unit, len(units))
	followers := make(map[*unit][]*unit)
	fresh := units[:0:0]
	for _, u := range units {
		if original := first[string(u.key)]; u.key != nil && original != nil {
			followers[original] = append(followers[original], u)
			continue
		}
		if u.key != nil {
			first[string(u.key)] = u
		}
		fresh = append(fresh, u)
	}
	for _, u := range fresh {
		e.place(u)
	}
	err := e.accept(fresh)
	if err != nil && len(fresh) > 1 && !pg.Unavailable(err) && !pg.UnknownOutcome(err) {
		for _, u := range fresh {
			u.err = e.accept([]*unit{u})
		}
	} else if err != nil {
		for _, u := range fresh {
			u.err = err
		}
	}
	for _, u := range fresh {
		if u.err != nil {
			u.err = e.unavailable("publish", u.err)
		}
		e.handOver(u)
		for _, follower := range followers[u] {
			follower.result, follower.err = u.result, u.err
			follower.result.Duplicate = true
			e.finish(follower)
		}
		e.finish(u)
	}
}

func (e *Engine) finish(u *unit) {
	e.metrics.published(u)
	close(u.done)
	e.inflight.Done()
}

// place decides where the tasks of a publish begin: in this broker's memory, in the lane of a host that has its share, or in
// the index by their time.
func (e *Engine) place(u *unit) {
	if !u.immediate() {
		return
	}
	if e.dispatch.reserve(u) {
		if u.lease = e.leases.take(u.targets); u.lease == nil {
			e.dispatch.unreserve(u)
		}
		return
	}
	e.dispatch.chooseLanes(u)
}

// dueBefore reports whether some of an accepted publish is due before a moment.
func (u *unit) dueBefore(at time.Time) bool {
	return slices.ContainsFunc(u.messages, func(m *Stored) bool { return m.FirstAt.Before(at) })
}

// handOver gives the dispatcher what was accepted for it, and gives up what was kept for the rest.
func (e *Engine) handOver(u *unit) {
	accepted := u.err == nil && !u.result.Duplicate
	if u.lease == nil {
		// What is due later is found by the look that comes before.
		if accepted && u.dueBefore(e.clock.Now().Add(pollDue)) && e.dispatch.mayTake(u) {
			signal(e.due)
		}
		return
	}
	if !accepted {
		e.dispatch.unreserve(u)
		e.leases.give(u.lease, u.targets)
		if u.err != nil {
			// The messages may have been committed all the same, held by a lease of which nothing is in memory.
			e.leases.retire()
		}
		return
	}
	var jobs []*job
	for i, m := range u.messages {
		for target := range m.Targets {
			j := &job{
				message: m.ID, target: target, host: u.hosts[i][target], size: m.size(), lease: u.lease, from: u.result.CreatedAt,
			}
			if e.handed.TryAcquire(int64(j.size)) {
				j.content, j.handed = m, int64(j.size)
			}
			jobs = append(jobs, j)
		}
	}
	e.dispatch.add(jobs, true)
}

const sqlOriginals = `
select key, ids, schedule, created_at from delivery_dedup where key = any($1)`

// accept commits units, and finds the originals of those that are duplicates. Each unit's result is set when it returns nil.
func (e *Engine) accept(units []*unit) error {
	ctx, cancel := e.deadline(e.ctx)
	defer cancel()
	args, err := acceptArgs(units, e.cfg.DedupWindow)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := e.acceptTogether(ctx, units, args)
		if err == nil {
			return nil
		}
		again := pg.Unavailable(err) || pg.UnknownOutcome(err) || pg.Retryable(err)
		if attempt == 2 || !again || ctx.Err() != nil {
			return err
		}
		e.pool.Reset()
	}
}

// acceptTogether writes units, in a transaction if that takes more than one statement.
func (e *Engine) acceptTogether(ctx context.Context, units []*unit, args []any) error {
	if !slices.ContainsFunc(units, (*unit).gated) {
		return e.tryAccept(ctx, e.pool, units, args)
	}
	return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error { return e.tryAccept(ctx, tx, units, args) })
}

// querier is a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

func (e *Engine) tryAccept(ctx context.Context, q querier, units []*unit, args []any) error {
	type times struct{ created, notBefore time.Time }
	written := make(map[uuid.UUID]times)
	var id uuid.UUID
	var at times
	err := steadily(ctx, q, sqlSteadyHash, []any{&id, &at.created, &at.notBefore}, func() error {
		written[id] = at
		return nil
	}, sqlAccept, args...)
	if err != nil {
		return err
	}
	var open []*unit
	var keys [][]byte
	var gated []*Stored
	for _, u := range units {
		at, ok := written[u.ids[0]]
		switch {
		case ok:
			e.clock.Observe(at.created)
			u.accepted(at.created)
			for _, m := range u.messages {
				m.CreatedAt, m.FirstAt = written[m.ID].created, written[m.ID].notBefore
				if m.gated() {
					gated = append(gated, m)
				}
			}
		case u.key == nil:
			open = append(open, u)
		default:
			open = append(open, u)
			keys = append(keys, u.key)
		}
	}
	if len(gated) > 0 {
		if err := putGates(ctx, q, gated); err != nil {
			return err
		}
	}
	if len(open) == 0 {
		return nil
	}
	return e.explain(ctx, q, open, keys)
}

func (u *unit) accepted(at time.Time) {
	u.result = Accepted{IDs: u.ids, CreatedAt: at}
}

const sqlTimes = `
select id, created_at, not_before from delivery_message where id = any($1)`

// explain finds out why units were not written: they are duplicates, or an attempt before this one wrote them. It looks
// with a snapshot of its own, which shows what the insert lost against.
func (e *Engine) explain(ctx context.Context, q querier, units []*unit, keys [][]byte) error {
	originals := make(map[string]Accepted)
	own := make(map[string][]byte)
	rows, err := q.Query(ctx, sqlOriginals, keys)
	if err != nil {
		return err
	}
	var key, packed []byte
	var schedule bool
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&key, &packed, &schedule, &at}, func() error {
		original := Accepted{Duplicate: true, CreatedAt: at}
		if schedule {
			original.Schedule = string(packed)
		} else {
			var err error
			if original.IDs, err = unpackIDs(packed); err != nil {
				return err
			}
		}
		originals[string(key)] = original
		own[string(key)] = append([]byte(nil), packed...)
		return nil
	})
	if err != nil {
		return err
	}
	for _, u := range units {
		original, found := originals[string(u.key)]
		if u.key != nil && found && string(own[string(u.key)]) != string(packIDs(u.ids)) {
			u.result = original
			continue
		}
		if err := e.recognise(ctx, q, u); err != nil {
			return err
		}
	}
	return nil
}

// recognise takes a unit as accepted that an attempt before wrote, of which no answer came.
func (e *Engine) recognise(ctx context.Context, q querier, u *unit) error {
	rows, err := q.Query(ctx, sqlTimes, u.ids)
	if err != nil {
		return err
	}
	found := 0
	var id uuid.UUID
	var created, notBefore time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &created, &notBefore}, func() error {
		for _, m := range u.messages {
			if m.ID == id {
				m.CreatedAt, m.FirstAt = created, notBefore
				found++
			}
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case found < len(u.ids):
		return fmt.Errorf("publish: %d of %d messages are there: %w", found, len(u.ids), ErrUnavailable)
	}
	u.accepted(created)
	return nil
}

func collect[T any](rows pgx.Rows) ([]T, error) { return pgx.CollectRows(rows, pgx.RowTo[T]) }
