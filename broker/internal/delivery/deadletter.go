package delivery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// DeadLetter is a delivery that failed for good. It is kept until it is deleted or retried, or past its time.
type DeadLetter struct {
	ID       uuid.UUID // in the order in which they failed
	Message  *Stored
	Target   int
	Retried  int // attempts before the last one
	FailedAt time.Time
	Error    string
	Status   int                 // what the destination answered last, with the next two; 0 when there was no answer
	Header   map[string][]string // empty when there was no answer
	Body     []byte              // at most 64 KiB
}

// URL is where the delivery was to go.
func (d *DeadLetter) URL() string { return d.Message.url(d.Target) }

// DeadFilter says which dead letters are meant: those that fit every field that is not empty, by any of its values. The bounds
// of time are on when they failed; states mean nothing here.
type DeadFilter struct {
	Filter

	IDs      []uuid.UUID
	Statuses []int // that the destination answered last; 0 means no answer
}

// DeadPage is which part of the dead letters is wanted.
type DeadPage struct {
	Limit       int        // most dead letters
	OldestFirst bool       // the order; false means the newest first
	After       *uuid.UUID // the last one of the page before; nil means the beginning
}

// deadURL is where a dead letter was to go: a message of version 1 may have several targets, of which the column is the first.
const deadURL = `coalesce(m.targets -> d.target::integer ->> 'url', m.url)`

func (f DeadFilter) where() (conditions []string, args []any) {
	f.States = nil
	conditions, args = f.Filter.where(nil, "d.failed_at")
	for i := range conditions {
		conditions[i] = strings.ReplaceAll(conditions[i], "m.url", deadURL)
	}
	if len(f.Messages) > 0 { // by the index that fits
		conditions = append(conditions, "d.message_id = any($1)")
	}
	if len(f.IDs) > 0 {
		args = append(args, f.IDs)
		conditions = append(conditions, fmt.Sprintf("d.id = any($%d)", len(args)))
	}
	if len(f.Statuses) > 0 {
		args = append(args, f.Statuses)
		conditions = append(conditions, fmt.Sprintf("d.response_status = any($%d)", len(args)))
	}
	return append(conditions, "true"), args
}

// page makes the rest of a query for a page of dead letters.
func (f DeadFilter) page(p DeadPage) (rest string, args []any) {
	conditions, args := f.where()
	direction, compare := "desc", "<"
	if p.OldestFirst {
		direction, compare = "asc", ">"
	}
	if p.After != nil {
		args = append(args, *p.After)
		conditions = append(conditions, fmt.Sprintf("d.id %s $%d", compare, len(args)))
	}
	args = append(args, p.Limit)
	return fmt.Sprintf(`
from delivery_dead_letter d join delivery_message m on m.id = d.message_id
where %s
order by d.id %s limit $%d`, strings.Join(conditions, " and "), direction, len(args)), args
}

// deadColumnsOf are the columns that scanDeadLetter reads.
func deadColumnsOf() string {
	columns := strings.ReplaceAll(strings.ReplaceAll(messageColumns, "\n", ""), ", ", ", m.")
	return "m." + columns + ", d.id, d.target, d.retried, d.failed_at, d.error, d.response_status, d.response_header, d.response_body"
}

func scanDeadLetter(row pgx.CollectableRow) (*DeadLetter, error) {
	d := &DeadLetter{}
	var header []byte
	var err error
	d.Message, err = scanMessage(row, &d.ID, &d.Target, &d.Retried, &d.FailedAt, &d.Error, &d.Status, &header, &d.Body)
	if err == nil && d.Target >= len(d.Message.Targets) {
		err = fmt.Errorf("dead letter %s has no target %d", DeadLetterID(d.ID), d.Target)
	}
	d.Header = decodeHeader(header)
	return d, err
}

// DeadLetters reads a page of the dead letters.
func (e *Engine) DeadLetters(ctx context.Context, f DeadFilter, p DeadPage) ([]*DeadLetter, error) {
	rest, args := f.page(p)
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, "select "+deadColumnsOf()+rest, args...)
	if err != nil {
		return nil, e.unavailable("list dead letters", err)
	}
	list, err := pgx.CollectRows(rows, scanDeadLetter)
	if err != nil {
		return nil, e.unavailable("list dead letters", err)
	}
	return list, nil
}

// DeadLetter reads one; ErrNotFound when there is none of that id.
func (e *Engine) DeadLetter(ctx context.Context, id uuid.UUID) (*DeadLetter, error) {
	list, err := e.DeadLetters(ctx, DeadFilter{IDs: []uuid.UUID{id}}, DeadPage{Limit: 1})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("dead letter %s: %w", DeadLetterID(id), ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// DeadLetterIDs are the ids of a page of the dead letters.
func (e *Engine) DeadLetterIDs(ctx context.Context, f DeadFilter, p DeadPage) ([]uuid.UUID, error) {
	rest, args := f.page(p)
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, "select d.id"+rest, args...)
	if err != nil {
		return nil, e.unavailable("find dead letters", err)
	}
	ids, err := collect[uuid.UUID](rows)
	if err != nil {
		return nil, e.unavailable("find dead letters", err)
	}
	return ids, nil
}

// sqlDeleteDead locks in the order of ids, as a retry does.
const sqlDeleteDead = `
with doomed as (
    select id from delivery_dead_letter where id = any($1) order by id for update)
delete from delivery_dead_letter d using doomed where d.id = doomed.id
returning d.message_id`

// DeleteDeadLetters deletes dead letters and returns how many there were. Each of them is deleted or not as a whole; what was
// deleted before an error stays deleted.
func (e *Engine) DeleteDeadLetters(ctx context.Context, ids []uuid.UUID) (int, error) {
	n := 0
	for part := range slices.Chunk(ids, deadLimit) {
		some, err := e.deleteDead(ctx, part)
		n += some
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// deadLimit is how many dead letters one transaction deletes.
const deadLimit = 500

func (e *Engine) deleteDead(ctx context.Context, ids []uuid.UUID) (n int, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlDeleteDead, ids)
		if err != nil {
			return err
		}
		messages, err := collect[uuid.UUID](rows)
		if err != nil || len(messages) == 0 {
			return err
		}
		n = len(messages)
		return trimMessages(ctx, tx, messages)
	})
	if err != nil {
		return 0, e.unavailable("delete dead letters", err)
	}
	return n, nil
}

// sqlLockMessages makes transactions that each took away something that refers to a message look one after the other whether
// that was the last: otherwise each would see what the other one takes away, and the message would stay for ever.
const sqlLockMessages = `
select id from delivery_message where id = any($1) order by id for update`

// trimMessages deletes messages that nothing refers to any more.
func trimMessages(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) error {
	if _, err := tx.Exec(ctx, sqlLockMessages, ids); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, sqlTrimMessages, ids) // a later statement, which sees what was taken away before it
	return err
}

// Resent is a dead letter that was published again.
type Resent struct {
	DeadLetter uuid.UUID
	Message    uuid.UUID // the new one
	URL        string
}

// resendLimit is how many dead letters one transaction publishes again. Their bodies are in memory.
const resendLimit = 10

// RetryDeadLetters publishes dead letters again, each as a new message to the one target that failed, and removes them: one
// is published and removed together, or neither. Those that are not there are left out of the result. override, if not nil,
// changes the new messages before they are accepted, also more than once.
//
// With an error come those that were published before it.
func (e *Engine) RetryDeadLetters(ctx context.Context, ids []uuid.UUID, override func(*Message)) ([]Resent, error) {
	if !e.enter() {
		return nil, ErrStopped
	}
	defer e.inflight.Done()
	var all []Resent
	for part := range slices.Chunk(ids, resendLimit) {
		some, err := e.resend(ctx, part, override)
		if err != nil {
			return all, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// resend repeats a commit whose outcome is unknown, under the same new ids, by which it recognises what is done already.
func (e *Engine) resend(ctx context.Context, ids []uuid.UUID, override func(*Message)) ([]Resent, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	planned := make(map[uuid.UUID]uuid.UUID, len(ids))
	for _, id := range ids {
		planned[id] = newID()
	}
	for attempt := 1; ; attempt++ {
		u, done, err := e.tryResend(ctx, planned, override)
		if u != nil {
			u.err = err
			e.handOver(u)
		}
		if err == nil {
			return done, nil
		}
		again := pg.Unavailable(err) || pg.UnknownOutcome(err) || pg.Retryable(err)
		if attempt == 2 || !again || ctx.Err() != nil {
			return nil, e.unavailable("retry dead letters", err)
		}
		if !pg.Retryable(err) {
			e.pool.Reset()
		}
	}
}

var sqlLockDead = "select " + deadColumnsOf() + `
from delivery_dead_letter d join delivery_message m on m.id = d.message_id
where d.id = any($1) order by d.id for update of d`

const sqlResentBefore = `
select id, url from delivery_message where id = any($1)`

func (e *Engine) tryResend(ctx context.Context, planned map[uuid.UUID]uuid.UUID, override func(*Message)) (u *unit, done []Resent, err error) {
	dead := make([]uuid.UUID, 0, len(planned))
	origin := make(map[uuid.UUID]uuid.UUID, len(planned))
	for id, message := range planned {
		dead = append(dead, id)
		origin[message] = id
	}
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlLockDead, dead)
		if err != nil {
			return err
		}
		letters, err := pgx.CollectRows(rows, scanDeadLetter)
		if err != nil {
			return err
		}
		if done, err = resentBefore(ctx, tx, origin); err != nil || len(letters) == 0 {
			return err
		}
		u = &unit{done: make(chan struct{})}
		old := make([]uuid.UUID, 0, len(letters))
		gone := make([]uuid.UUID, 0, len(letters))
		for _, d := range letters {
			m := d.again()
			if override != nil {
				override(&m)
			}
			u.add(&Stored{Message: m, ID: planned[d.ID]})
			old, gone = append(old, d.Message.ID), append(gone, d.ID)
			done = append(done, Resent{DeadLetter: d.ID, Message: planned[d.ID], URL: m.Targets[0].URL})
		}
		e.place(u)
		args, err := acceptArgs([]*unit{u}, e.cfg.DedupWindow)
		if err != nil {
			return err
		}
		if err := e.tryAccept(ctx, tx, []*unit{u}, args); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlDeleteDead, gone); err != nil {
			return err
		}
		return trimMessages(ctx, tx, old)
	})
	return u, done, err
}

// resentBefore are the messages that an attempt to commit before this one wrote, of which no answer came.
func resentBefore(ctx context.Context, tx pgx.Tx, origin map[uuid.UUID]uuid.UUID) ([]Resent, error) {
	ids := make([]uuid.UUID, 0, len(origin))
	for id := range origin {
		ids = append(ids, id)
	}
	rows, err := tx.Query(ctx, sqlResentBefore, ids)
	if err != nil {
		return nil, err
	}
	var done []Resent
	var r Resent
	_, err = pgx.ForEachRow(rows, []any{&r.Message, &r.URL}, func() error {
		r.DeadLetter = origin[r.Message]
		done = append(done, r)
		return nil
	})
	return done, err
}

// again is the message of a dead letter for a new start: at once, and to the target that failed only.
func (d *DeadLetter) again() Message {
	m := d.Message.Message
	m.Targets = []Target{m.Targets[d.Target]}
	m.Delay, m.NotBefore = 0, time.Time{}
	m.Header = m.Header.Clone()
	return m
}
