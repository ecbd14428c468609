package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/delivery/cron"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Schedule publishes a message whenever its cron expression ticks.
type Schedule struct {
	ID          string
	Cron        string
	Destination request.Destination // a topic's members are looked up at each tick
	Message     Message             // without targets and topic; Delay counts from each tick

	Paused    bool
	CreatedAt time.Time
	NextAt    time.Time // zero while it is paused
	LastAt    time.Time // of the last tick that it was published for; zero before the first
	Error     string    // why the last tick published nothing; "" when it did
}

const schedulePrefix = "scd_"

// NewScheduleID mints the id of a schedule that was given none.
func NewScheduleID() string {
	id := newID()
	return schedulePrefix + fmt.Sprintf("%x", id[:])
}

const (
	tickLimit = 100         // schedules of one transaction
	pollTicks = time.Second // how often the broker looks for schedules that other brokers made
)

const scheduleColumns = `
s.id, s.cron, s.destination, s.method, s.header, s.settings, coalesce(s.label, ''), s.body, coalesce(s.queue, ''),
coalesce(s.flow_key, ''), s.delay, s.caller_ip, s.paused, s.created_at, s.next_at, s.last_at, coalesce(s.error, '')`

func scanSchedule(row pgx.CollectableRow) (*Schedule, error) {
	var s Schedule
	var destination string
	var header, settings []byte
	var next, last *time.Time
	m := &s.Message
	err := row.Scan(&s.ID, &s.Cron, &destination, &m.Method, &header, &settings, &m.Label, &m.Body, &m.Queue, &m.FlowKey, &m.Delay,
		&m.CallerIP, &s.Paused, &s.CreatedAt, &next, &last, &s.Error)
	if err != nil {
		return nil, err
	}
	m.ScheduleID, m.Header = s.ID, decodeHeader(header)
	if err := json.Unmarshal(settings, &m.Settings); err != nil {
		return nil, fmt.Errorf("read the settings of schedule %s: %w", s.ID, err)
	}
	if s.Destination, err = request.ParseText(destination); err != nil {
		return nil, fmt.Errorf("read the destination of schedule %s: %w", s.ID, err)
	}
	if next != nil {
		s.NextAt = *next
	}
	if last != nil {
		s.LastAt = *last
	}
	return &s, nil
}

const sqlWinSchedule = `
insert into delivery_dedup as o (key, ids, schedule, created_at) select $1, convert_to($2, 'UTF8'), true, ` + sqlNow + `
on conflict (key) do update set ids = excluded.ids, schedule = true, created_at = excluded.created_at
where o.created_at <= excluded.created_at - $3::interval
returning key`

const sqlPutSchedule = `
insert into schedule (id, cron, destination, next_at, last_at, paused, created_at, method, header, settings, label, body, queue,
    flow_key, delay, caller_ip, error)
values ($1, $2, $3, $4, null, false, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, null)
on conflict (id) do update set
    cron = excluded.cron, destination = excluded.destination, next_at = excluded.next_at, paused = false,
    method = excluded.method, header = excluded.header, settings = excluded.settings, label = excluded.label,
    body = excluded.body, queue = excluded.queue, flow = null, flow_key = excluded.flow_key, delay = excluded.delay,
    caller_ip = excluded.caller_ip, error = null
returning xmax = 0`

// PutSchedule creates a schedule, or replaces all of the one with its id. With a deduplication id that counts as a
// duplicate it changes nothing and returns the id of the original, or the original's messages. The error is a QuotaError when
// there are as many as there may be.
func (e *Engine) PutSchedule(ctx context.Context, s Schedule, dedupID string) (original Accepted, err error) {
	expression, err := cron.Parse(s.Cron)
	if err != nil {
		return Accepted{}, &request.Error{Text: "invalid cron: " + err.Error()}
	}
	settings, err := json.Marshal(s.Message.Settings)
	if err != nil {
		return Accepted{}, err
	}
	m := &s.Message
	method := m.Method
	if method == "" {
		method = http.MethodPost
	}
	body := m.Body
	if body == nil {
		body = []byte{}
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		original = Accepted{}
		if dedupID != "" {
			key := sha256.Sum256([]byte(dedupID))
			tag, err := tx.Exec(ctx, sqlWinSchedule, key[:], s.ID, e.cfg.DedupWindow)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				original, err = readOriginal(ctx, tx, key[:])
				return err
			}
		}
		now, err := readNow(ctx, tx)
		if err != nil {
			return err
		}
		var created bool
		err = tx.QueryRow(ctx, sqlPutSchedule, s.ID, expression.String(), s.Destination.String(), expression.Next(now), now, method,
			encodeHeader(m.Header), settings, optional(m.Label), body, optional(m.Queue), optional(m.FlowKey), m.Delay, m.CallerIP).Scan(&created)
		if err == nil && created {
			err = checkCount(ctx, tx, "schedule", maxSchedules, e.cfg.MaxSchedules)
		}
		return err
	})
	if _, full := errors.AsType[*QuotaError](err); full {
		return Accepted{}, err
	}
	if err != nil {
		return Accepted{}, e.unavailable("create a schedule", err)
	}
	signal(e.ticks)
	return original, nil
}

func readOriginal(ctx context.Context, q querier, key []byte) (Accepted, error) {
	original := Accepted{Duplicate: true}
	var packed []byte
	var schedule bool
	err := q.QueryRow(ctx, `select ids, schedule, created_at from delivery_dedup where key = $1`, key).
		Scan(&packed, &schedule, &original.CreatedAt)
	if err != nil {
		return Accepted{}, err
	}
	if schedule {
		original.Schedule = string(packed)
		return original, nil
	}
	original.IDs, err = unpackIDs(packed)
	return original, err
}

// readNow is the database's time with what the test clock adds.
func readNow(ctx context.Context, q querier) (now time.Time, err error) {
	err = q.QueryRow(ctx, `select `+sqlNow).Scan(&now)
	return now, err
}

const sqlSchedules = `select` + scheduleColumns + ` from schedule s where $1::text is null or s.id = $1 order by s.created_at, s.id`

// Schedules lists all schedules, the oldest first.
func (e *Engine) Schedules(ctx context.Context) ([]*Schedule, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	list, err := readSchedules(ctx, e.pool, nil)
	if err != nil {
		return nil, e.unavailable("list schedules", err)
	}
	return list, nil
}

// Schedule finds a schedule; ErrNotFound when there is none.
func (e *Engine) Schedule(ctx context.Context, id string) (*Schedule, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	list, err := readSchedules(ctx, e.pool, &id)
	switch {
	case err != nil:
		return nil, e.unavailable("read a schedule", err)
	case len(list) == 0:
		return nil, noSchedule(id)
	}
	return list[0], nil
}

func noSchedule(id string) error { return fmt.Errorf("schedule %s: %w", id, ErrNotFound) }

func readSchedules(ctx context.Context, q querier, id *string) ([]*Schedule, error) {
	rows, err := q.Query(ctx, sqlSchedules, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanSchedule)
}

const sqlScheduled = `
select m.id, coalesce((select l.state from delivery_log l where l.message_id = m.id order by l.id desc limit 1), 0)
from (
    select id, created_at from delivery_message where schedule_id = $1 order by id desc limit $2
) m
where m.created_at >= $3
order by m.id`

// Scheduled is what became of the messages of a schedule's last tick: the state of each by its id.
func (e *Engine) Scheduled(ctx context.Context, s *Schedule) (map[uuid.UUID]State, error) {
	states := map[uuid.UUID]State{}
	if s.LastAt.IsZero() {
		return states, nil
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlScheduled, s.ID, MaxTargets, s.LastAt)
	if err != nil {
		return nil, e.unavailable("read a schedule", err)
	}
	var id uuid.UUID
	var state State
	_, err = pgx.ForEachRow(rows, []any{&id, &state}, func() error {
		states[id] = state
		return nil
	})
	if err != nil {
		return nil, e.unavailable("read a schedule", err)
	}
	return states, nil
}

// DeleteSchedule deletes a schedule; ErrNotFound when there is none. Messages that it published stay.
func (e *Engine) DeleteSchedule(ctx context.Context, id string) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	tag, err := e.pool.Exec(ctx, `delete from schedule where id = $1`, id)
	switch {
	case err != nil:
		return e.unavailable("delete a schedule", err)
	case tag.RowsAffected() == 0:
		return noSchedule(id)
	}
	return nil
}

const sqlPauseSchedule = `update schedule set paused = $2, next_at = case when paused = $2 then next_at else $3 end where id = $1`

// PauseSchedule pauses a schedule, or lets it go on with the next tick from now; ErrNotFound when there is none. Ticks in
// between are not made up for.
func (e *Engine) PauseSchedule(ctx context.Context, id string, paused bool) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		var source string
		err := tx.QueryRow(ctx, `select cron from schedule where id = $1 for update`, id).Scan(&source)
		if errors.Is(err, pgx.ErrNoRows) {
			return noSchedule(id)
		}
		if err != nil {
			return err
		}
		expression, err := cron.Parse(source)
		if err != nil {
			return err
		}
		var next *time.Time
		if !paused {
			now, err := readNow(ctx, tx)
			if err != nil {
				return err
			}
			at := expression.Next(now)
			next = &at
		}
		_, err = tx.Exec(ctx, sqlPauseSchedule, id, paused, next)
		return err
	})
	if err != nil {
		if errors.Is(err, ErrNotFound) {
			return err
		}
		return e.unavailable("pause a schedule", err)
	}
	signal(e.ticks)
	return nil
}

// A schedule is locked while it ticks, and another broker passes over it: its message and its next tick are committed
// together, so that each tick is published once, however many brokers there are and whatever becomes of them.
const sqlDueSchedules = `
select` + scheduleColumns + `, ` + sqlNow + `
from schedule s
where not s.paused and s.next_at <= ` + sqlNow + `
order by s.next_at limit $1 for update skip locked`

const sqlTicked = `
update schedule s set
    next_at = w.next_at, error = w.error,
    last_at = case when w.error is null then s.next_at else s.last_at end
from unnest($1::text[], $2::timestamptz[], $3::text[]) as w (id, next_at, error)
where s.id = w.id`

const sqlNextTick = `
select ` + sqlNow + `, (select min(next_at) from schedule where not paused and next_at is not null)`

// tickLoop publishes for schedules when they tick.
func (e *Engine) tickLoop() {
	for {
		wait, err := e.tickDue(e.ctx)
		if e.ctx.Err() != nil {
			return
		}
		if err != nil {
			e.log.Warn("cannot publish for schedules", "error", err)
			wait = pollTicks
		}
		select {
		case <-e.ctx.Done():
			return
		case <-e.ticks:
		case <-time.After(wait):
		}
	}
}

// tickDue publishes for every schedule that is due, and says how long none will be, at most pollTicks.
func (e *Engine) tickDue(ctx context.Context) (time.Duration, error) {
	e.ticking.Lock()
	defer e.ticking.Unlock()
	for {
		n, err := e.tick(ctx)
		if err != nil {
			return 0, e.unavailable("publish for schedules", err)
		}
		if n < tickLimit {
			break
		}
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var now time.Time
	var next *time.Time
	if err := e.pool.QueryRow(ctx, sqlNextTick).Scan(&now, &next); err != nil {
		return 0, e.unavailable("look for schedules", err)
	}
	if next == nil {
		return pollTicks, nil
	}
	return min(max(next.Sub(now), pollBehind), pollTicks), nil
}

// tick publishes for some of the schedules that are due and returns for how many. When PostgreSQL refuses to store what one of
// them holds, each ticks by itself, so that the others do not suffer.
func (e *Engine) tick(ctx context.Context) (int, error) {
	n, err := e.tickTogether(ctx, tickLimit)
	if !pg.BadData(err) {
		return n, err
	}
	for n = 0; n < tickLimit; n++ {
		if ticked, err := e.tickTogether(ctx, 1); err != nil || ticked == 0 {
			return n, err
		}
	}
	return n, nil
}

// tickTogether publishes for as many schedules as limit says at most, in one transaction. Ticks that were missed while no
// broker ran are made up for by one. One schedule alone that PostgreSQL does not store the message of publishes nothing and says so.
func (e *Engine) tickTogether(ctx context.Context, limit int) (n int, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var units []*unit
	var failures []*string
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		units = nil
		due, now, err := readDue(ctx, tx, limit)
		if n = len(due); err != nil || n == 0 {
			return err
		}
		ids, nexts := make([]string, n), make([]*time.Time, n)
		failures = make([]*string, n)
		for i, s := range due {
			ids[i] = s.ID
			u, failure, err := e.unitOf(ctx, tx, s)
			if err != nil {
				return err
			}
			if u != nil {
				units = append(units, u)
			}
			expression, err := cron.Parse(s.Cron)
			if err != nil {
				failure = err.Error()
			} else {
				next := expression.Next(now)
				nexts[i] = &next
			}
			failures[i] = optional(failure)
		}
		switch err := e.publishTicks(ctx, tx, units); {
		case limit == 1 && pg.BadData(err):
			units, failures[0] = nil, optional(storable("the message cannot be stored: "+err.Error()))
		case err != nil:
			return err
		}
		for i, failure := range failures {
			if failure != nil {
				e.log.Warn("a schedule published nothing", "schedule", ids[i], "error", *failure)
			}
		}
		_, err = tx.Exec(ctx, sqlTicked, ids, nexts, failures)
		return err
	})
	if err == nil {
		e.metrics.ticked(failures)
	}
	if err == nil && len(units) > 0 {
		signal(e.due)
	}
	return n, err
}

// publishTicks accepts messages of schedules. When it fails the transaction can go on without them.
func (e *Engine) publishTicks(ctx context.Context, tx pgx.Tx, units []*unit) error {
	if len(units) == 0 {
		return nil
	}
	args, err := acceptArgs(units, e.cfg.DedupWindow)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error { return e.tryAccept(ctx, savepoint, units, args) })
}

func readDue(ctx context.Context, tx pgx.Tx, limit int) (due []*Schedule, now time.Time, err error) {
	rows, err := tx.Query(ctx, sqlDueSchedules, limit)
	if err != nil {
		return nil, now, err
	}
	due, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Schedule, error) {
		return scanSchedule(withTime{row, &now})
	})
	return due, now, err
}

// withTime is a row with the time in one more column.
type withTime struct {
	pgx.CollectableRow
	at *time.Time
}

func (r withTime) Scan(dest ...any) error { return r.CollectableRow.Scan(append(dest, r.at)...) }

// unitOf is what a tick publishes: a message for each endpoint of a topic. failure says why it is nothing.
func (e *Engine) unitOf(ctx context.Context, tx pgx.Tx, s *Schedule) (u *unit, failure string, err error) {
	m := s.Message
	var targets []Target
	switch s.Destination.Kind {
	case request.URL:
		targets = []Target{{URL: s.Destination.URL}}
	case request.Queue:
		targets = []Target{QueueTarget(s.Destination.Name, s.Destination.Partition)}
	case request.Topic:
		t, err := topic(ctx, tx, s.Destination.Name)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil, "topic " + s.Destination.Name + " not found", nil
		case err != nil:
			return nil, "", err
		case len(t.Endpoints) == 0:
			return nil, "topic " + s.Destination.Name + " has no endpoints", nil
		}
		t.Aim(&m)
		targets = m.Targets
	}
	p := Publish{}
	for _, target := range targets {
		each := m
		each.Targets = []Target{target}
		p.Messages = append(p.Messages, each)
	}
	u, refused := newUnit(p)
	if refused != nil {
		return nil, refused.Error(), nil //nolint:nilerr // what is wrong with the schedule is its failure, not the tick's
	}
	return u, "", nil
}
