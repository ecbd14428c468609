package delivery

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

// Egress says in a few words where deliveries may go.
func (e *Engine) Egress() string { return e.cfg.Client.Policy() }

// CheckURL refuses a destination that the egress policy forbids as it is spelled. What a name resolves to is checked when it is
// dialled. The error is a *request.Error.
func (e *Engine) CheckURL(destination string) error {
	u, err := url.Parse(destination)
	if err == nil {
		err = e.cfg.Client.CheckURL(u)
	}
	if err != nil {
		return &request.Error{Text: "invalid destination url: " + err.Error(), Cause: err}
	}
	return nil
}

// Message reads a message; ErrNotFound when there is none, or none any more.
func (e *Engine) Message(ctx context.Context, id uuid.UUID) (*Stored, error) {
	found, err := e.readMessages(ctx, []uuid.UUID{id})
	if err != nil {
		return nil, err
	}
	if found[id] == nil {
		return nil, fmt.Errorf("message %s: %w", MessageID(id), ErrNotFound)
	}
	return found[id], nil
}

const sqlMessages = `select` + messageColumns + `
from delivery_message where ($1::uuid is null or id < $1) order by id desc limit $2`

// Messages lists messages, the newest first: those before one, or from the newest on when before is nil.
func (e *Engine) Messages(ctx context.Context, before *uuid.UUID, limit int) ([]*Stored, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlMessages, before, limit)
	if err != nil {
		return nil, e.unavailable("list messages", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*Stored, error) { return scanMessage(row) })
	if err != nil {
		return nil, e.unavailable("list messages", err)
	}
	return list, nil
}

// Task is the delivery of a message to one of its targets.
type Task struct {
	Message     *Stored
	Target      int
	State       State
	Retried     int       // attempts that are over
	NextAt      time.Time // of the next attempt; zero when there is none
	CompletedAt time.Time // zero while it goes on
	LastErrorAt time.Time // zero when no attempt failed
	Error       string    // of the last attempt that failed
}

const sqlTasks = `
select target, retried, due_at, lease is not null from delivery_task where message_id = $1`

const sqlTaskLog = `
select target, time, state, error from delivery_log where message_id = $1 order by id`

// Tasks are the deliveries of a message, in the order of its targets; ErrNotFound when there is no such message.
func (e *Engine) Tasks(ctx context.Context, id uuid.UUID) ([]Task, error) {
	m, err := e.Message(ctx, id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	tasks := make([]Task, len(m.Targets))
	for i := range tasks {
		tasks[i] = Task{Message: m, Target: i, State: Created}
	}
	rows, err := e.pool.Query(ctx, sqlTaskLog, id)
	if err != nil {
		return nil, e.unavailable("read the log of a message", err)
	}
	var target int
	var at time.Time
	var state State
	var failure *string
	_, err = pgx.ForEachRow(rows, []any{&target, &at, &state, &failure}, func() error {
		if target >= len(tasks) {
			return nil
		}
		t := &tasks[target]
		t.State = state
		switch state {
		case Active:
			t.Retried++
		case Failing:
			t.LastErrorAt, t.Error = at, text(failure)
		case Delivered, Failed, Cancelled:
			t.CompletedAt = at
		case Created, Retrying, CancelRequested:
		}
		return nil
	})
	if err != nil {
		return nil, e.unavailable("read the log of a message", err)
	}
	for i := range tasks { // an attempt is no retry of itself
		tasks[i].Retried = max(0, tasks[i].Retried-1)
	}
	rows, err = e.pool.Query(ctx, sqlTasks, id)
	if err != nil {
		return nil, e.unavailable("read the tasks of a message", err)
	}
	var retried int
	var leased bool
	_, err = pgx.ForEachRow(rows, []any{&target, &retried, &at, &leased}, func() error {
		if target >= len(tasks) {
			return nil
		}
		t := &tasks[target]
		t.Retried, t.NextAt, t.CompletedAt = retried, at, time.Time{}
		if leased && t.State != CancelRequested {
			t.State, t.NextAt = Active, time.Time{}
		}
		return nil
	})
	if err != nil {
		return nil, e.unavailable("read the tasks of a message", err)
	}
	return tasks, nil
}

// Entry is one line of the log.
type Entry struct {
	Message  *Stored // with its body only when Filter.Bodies asks for it
	Target   int
	Time     time.Time
	State    State
	Retried  int
	NextAt   time.Time // of the next attempt; zero when there is none
	Error    string
	Status   int // what the destination answered, with the next two; 0 when there was no answer
	Header   map[string][]string
	Body     []byte
	Position Position
}

// Position is a place in the log.
type Position struct {
	Time time.Time
	ID   int64
}

// Filter says which messages or log entries are meant: those that fit every field that is not empty, by any of its values.
type Filter struct {
	Messages  []uuid.UUID
	URLs      []string // of the first target
	Hosts     []string // of the first target, without a port unless it was given
	Paths     []string // of the first target
	Topics    []string
	Queues    []string
	Schedules []string
	FlowKeys  []string
	Labels    []string
	CallerIPs []string
	From, To  time.Time // when a message was created, or an entry was made; both included; zero means no bound

	States []State // of log entries
	Bodies bool    // log entries come with the bodies of their messages
}

// where makes the conditions of a filter on delivery_message m; args are those before it.
func (f Filter) where(args []any, moment string) (conditions []string, all []any) {
	add := func(condition string, value any) {
		args = append(args, value)
		conditions = append(conditions, strings.ReplaceAll(condition, "$", fmt.Sprintf("$%d", len(args))))
	}
	if len(f.Messages) > 0 {
		add("m.id = any($)", f.Messages)
	}
	for _, c := range []struct {
		values    []string
		condition string
	}{
		{f.URLs, "m.url = any($)"},
		{f.Hosts, `(lower(substring(m.url from '^[a-zA-Z]+://([^/?#]*)')) = any($) or lower(substring(m.url from '^[a-zA-Z]+://([^/?#:]*)')) = any($))`},
		{f.Paths, `substring(m.url from '^[a-zA-Z]+://[^/?#]*([^?#]*)') = any($)`},
		{f.Topics, "m.topic = any($)"},
		{f.Queues, "m.queue = any($)"},
		{f.Schedules, "m.schedule_id = any($)"},
		{f.FlowKeys, "m.flow_key = any($)"},
		{f.Labels, "m.label is not null and string_to_array(m.label, ',') && $"},
		{f.CallerIPs, "m.caller_ip = any($)"},
	} {
		if len(c.values) > 0 {
			add(c.condition, c.values)
		}
	}
	if !f.From.IsZero() {
		add(moment+" >= $", f.From)
	}
	if !f.To.IsZero() {
		add(moment+" <= $", f.To)
	}
	if len(f.States) > 0 {
		add("l.state = any($)", f.States)
	}
	return conditions, args
}

// Page is which part of a list is wanted.
type Page struct {
	Limit       int       // most entries
	OldestFirst bool      // the order; false means the newest first
	After       *Position // the last entry of the page before; nil means the beginning
}

// Log reads a page of the log.
func (e *Engine) Log(ctx context.Context, f Filter, p Page) ([]Entry, error) {
	conditions, args := f.where(nil, "l.time")
	direction, compare := "desc", "<"
	if p.OldestFirst {
		direction, compare = "asc", ">"
	}
	if p.After != nil {
		args = append(args, p.After.Time, p.After.ID)
		conditions = append(conditions, fmt.Sprintf("(l.time, l.id) %s ($%d, $%d)", compare, len(args)-1, len(args)))
	}
	if len(f.Messages) > 0 { // by the index that fits
		conditions = append(conditions, "l.message_id = any($1)")
	}
	conditions = append(conditions, "true")
	args = append(args, p.Limit)
	body := "''::bytea"
	if f.Bodies {
		body = "m.body"
	}
	columns := strings.ReplaceAll(messageColumns, "\n", "")
	columns = "m." + strings.ReplaceAll(strings.TrimSuffix(columns, ", body"), ", ", ", m.")
	sql := fmt.Sprintf(`
select %s, %s, l.id, l.target, l.time, l.state, l.retried, l.next_at, l.error, l.response_status, l.response_header, l.response_body
from delivery_log l join delivery_message m on m.id = l.message_id
where %s
order by l.time %s, l.id %s limit $%d`, columns, body, strings.Join(conditions, " and "), direction, direction, len(args))

	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, e.unavailable("read the log", err)
	}
	list, err := pgx.CollectRows(rows, scanEntry)
	if err != nil {
		return nil, e.unavailable("read the log", err)
	}
	return list, nil
}

func scanEntry(row pgx.CollectableRow) (Entry, error) {
	var n Entry
	var next *time.Time
	var failure *string
	var status *int
	var header []byte
	var err error
	n.Message, err = scanMessage(row, &n.Position.ID, &n.Target, &n.Time, &n.State, &n.Retried, &next, &failure, &status, &header, &n.Body)
	if err != nil {
		return n, err
	}
	n.Position.Time = n.Time
	n.Error = text(failure)
	if next != nil {
		n.NextAt = *next
	}
	if status != nil {
		n.Status, n.Header = *status, decodeHeader(header)
	}
	return n, nil
}

// URL is where the entry's delivery goes.
func (n *Entry) URL() string { return n.Message.url(n.Target) }

// URL is where the task's delivery goes.
func (t *Task) URL() string { return t.Message.url(t.Target) }

func (m *Stored) url(target int) string {
	if target < len(m.Targets) {
		return m.Targets[target].URL
	}
	return ""
}

// CancelMatching cancels the messages of a filter that are not delivered yet, at most limit of them, the oldest first.
func (e *Engine) CancelMatching(ctx context.Context, f Filter, limit int) (int, error) {
	f.States = nil
	conditions, args := f.where(nil, "m.created_at")
	conditions = append(conditions, "exists (select from delivery_task k where k.message_id = m.id and not k.cancelled)")
	args = append(args, limit)
	sql := fmt.Sprintf(`select m.id from delivery_message m where %s order by m.id limit $%d`, strings.Join(conditions, " and "), len(args))
	within, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(within, sql, args...)
	if err != nil {
		return 0, e.unavailable("find messages to cancel", err)
	}
	ids, err := collect[uuid.UUID](rows)
	if err != nil {
		return 0, e.unavailable("find messages to cancel", err)
	}
	n := 0
	for part := range slices.Chunk(ids, cancelLimit) {
		some, err := e.Cancel(ctx, part)
		n += some
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// cancelLimit is how many messages one transaction cancels.
const cancelLimit = 500
