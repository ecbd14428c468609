package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

// Topic is a group of endpoints, as it is when somebody asks. A message to it goes to those that it had when the message
// was published.
type Topic struct {
	ID        uuid.UUID
	Name      string
	Header    http.Header // what its messages are delivered with unless they say otherwise
	CreatedAt time.Time
	UpdatedAt time.Time
	Endpoints []Endpoint // in the order in which they were added
}

// Endpoint is a member of a topic.
type Endpoint struct {
	ID    uuid.UUID
	Topic uuid.UUID
	Name  string // "" means none; unique in its topic
	URL   string // unique in its topic
}

// Targets are where a message to the topic goes.
func (t *Topic) Targets() []Target {
	targets := make([]Target, len(t.Endpoints))
	for i, p := range t.Endpoints {
		targets[i] = Target{URL: p.URL, Name: p.Name, EndpointID: EndpointID(p.ID)}
	}
	return targets
}

// withDefaults adds the topic's header to that of a message, whose own values count.
func (t *Topic) withDefaults(h http.Header) http.Header {
	if len(t.Header) == 0 {
		return h
	}
	out := maps.Clone(t.Header)
	maps.Copy(out, h)
	return out
}

// Aim sends a message to the topic.
func (t *Topic) Aim(m *Message) {
	m.Topic, m.TopicID, m.Targets, m.Header = t.Name, TopicID(t.ID), t.Targets(), t.withDefaults(m.Header)
}

// Errors of topics.
var (
	ErrTopicExists  = errors.New("there is a topic of that name")
	ErrEndpointUsed = errors.New("the topic has an endpoint of that url or name")
)

const sqlTopics = `
select t.id, t.name, t.header, t.created_at, t.updated_at, p.id, p.name, p.url
from topic t left join topic_endpoint p on p.topic_id = t.id
where $1::text is null or t.name = $1 or t.id = $2
order by t.name, p.created_at, p.id`

// Topics lists all topics by name.
func (e *Engine) Topics(ctx context.Context) ([]Topic, error) {
	list, err := readTopics(ctx, e.pool, nil, uuid.Nil)
	if err != nil {
		return nil, e.unavailable("list topics", err)
	}
	return list, nil
}

// Topic finds a topic by its name or id; ErrNotFound when there is none.
func (e *Engine) Topic(ctx context.Context, nameOrID string) (Topic, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	t, err := topic(ctx, e.pool, nameOrID)
	return t, e.topicError("read a topic", err)
}

func topic(ctx context.Context, q querier, nameOrID string) (Topic, error) {
	if !request.IsName(nameOrID) { // no topic can have it, and PostgreSQL need not take it
		return Topic{}, fmt.Errorf("topic %q: %w", nameOrID, ErrNotFound)
	}
	id, _ := parseID(nameOrID, topicPrefix) // else the zero id, which no topic has
	list, err := readTopics(ctx, q, &nameOrID, id)
	switch {
	case err != nil:
		return Topic{}, err
	case len(list) == 0:
		return Topic{}, fmt.Errorf("topic %s: %w", nameOrID, ErrNotFound)
	}
	for _, t := range list { // a name that looks like another's id
		if t.Name == nameOrID {
			return t, nil
		}
	}
	return list[0], nil
}

func readTopics(ctx context.Context, q querier, nameOrID *string, id uuid.UUID) ([]Topic, error) {
	rows, err := q.Query(ctx, sqlTopics, nameOrID, id)
	if err != nil {
		return nil, err
	}
	var list []Topic
	var t Topic
	var header []byte
	var endpoint *uuid.UUID
	var name, address *string
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.Name, &header, &t.CreatedAt, &t.UpdatedAt, &endpoint, &name, &address}, func() error {
		if n := len(list); n == 0 || list[n-1].ID != t.ID {
			list = append(list, Topic{ID: t.ID, Name: t.Name, Header: decodeHeader(header), CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt})
		}
		if endpoint != nil {
			last := &list[len(list)-1]
			last.Endpoints = append(last.Endpoints, Endpoint{ID: *endpoint, Topic: t.ID, Name: text(name), URL: *address})
		}
		return nil
	})
	return list, err
}

// topicError wraps what a statement about topics failed with, and keeps what callers tell apart.
func (e *Engine) topicError(doing string, err error) error {
	if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrTopicExists) || errors.Is(err, ErrEndpointUsed) {
		return err
	}
	if _, ok := errors.AsType[*QuotaError](err); ok {
		return err
	}
	return e.unavailable(doing, err)
}

// changeTopic runs statements in one transaction with the deadline of one.
func (e *Engine) changeTopic(ctx context.Context, doing string, change func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	return e.topicError(doing, pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error { return change(ctx, tx) }))
}

// The clock of the database with what the test clock adds.
const sqlNow = `(select clock_timestamp() + clock_offset from setting)`

const sqlCreateTopic = `
insert into topic (id, name, header, created_at, updated_at) select $1, $2, '', now, now from (select ` + sqlNow + ` as now) t
on conflict (name) do nothing`

// CreateTopic creates a topic without endpoints; ErrTopicExists when there is one of that name.
func (e *Engine) CreateTopic(ctx context.Context, name string) (t Topic, err error) {
	err = e.changeTopic(ctx, "create a topic", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlCreateTopic, newID(), name)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrTopicExists
		}
		if err := checkCount(ctx, tx, "topic", maxTopics, e.cfg.MaxTopics); err != nil {
			return err
		}
		t, err = topic(ctx, tx, name)
		return err
	})
	return t, err
}

const sqlRenameTopic = `update topic set name = $2, updated_at = ` + sqlNow + ` where id = $1`

// RenameTopic gives a topic another name.
func (e *Engine) RenameTopic(ctx context.Context, nameOrID, name string) (t Topic, err error) {
	err = e.changeTopic(ctx, "rename a topic", func(ctx context.Context, tx pgx.Tx) error {
		if t, err = topic(ctx, tx, nameOrID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlRenameTopic, t.ID, name); err != nil {
			return taken(err, ErrTopicExists)
		}
		t, err = topic(ctx, tx, name)
		return err
	})
	return t, err
}

// taken turns a violated unique index into an error of ours.
func taken(err, as error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "23505" {
		return as
	}
	return err
}

const sqlDeleteTopic = `delete from topic where id = $1`

// DeleteTopic deletes a topic with its endpoints; ErrNotFound when there is none. Messages that were published stay.
func (e *Engine) DeleteTopic(ctx context.Context, nameOrID string) error {
	return e.changeTopic(ctx, "delete a topic", func(ctx context.Context, tx pgx.Tx) error {
		t, err := topic(ctx, tx, nameOrID)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlDeleteTopic, t.ID)
		return err
	})
}

const sqlTopicHeader = `update topic set header = $2, updated_at = ` + sqlNow + ` where name = $1`

// SetTopicHeader replaces what messages to a topic are delivered with by default; ErrNotFound when there is none.
func (e *Engine) SetTopicHeader(ctx context.Context, name string, header http.Header) error {
	return e.changeTopic(ctx, "change a topic", func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlTopicHeader, name, encodeHeader(header))
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("topic %s: %w", name, ErrNotFound)
		}
		return err
	})
}

// The topic is locked while its endpoints change, so that their number is known.
const sqlLockTopic = `select id from topic where name = $1 for update`

const sqlTouchTopic = `update topic set updated_at = ` + sqlNow + ` where id = $1`

// An endpoint is known by its url, and by its name if it has one: naming another one takes the name away from where it was.
const sqlFreeName = `update topic_endpoint set name = null where topic_id = $1 and name = $2 and url <> $3`

const sqlSetEndpoint = `update topic_endpoint set name = coalesce($3, name) where topic_id = $1 and url = $2`

const sqlSetNamed = `update topic_endpoint set url = $3 where topic_id = $1 and name = $2`

const sqlAddEndpoint = `
insert into topic_endpoint (id, topic_id, name, url, created_at) select $1, $2, $3, $4, ` + sqlNow

// UpsertEndpoints adds endpoints to a topic, which it creates if need be. An endpoint whose url is there already takes the
// name that is given; one whose name is there already takes the url. At most limit endpoints may be in the topic then.
func (e *Engine) UpsertEndpoints(ctx context.Context, name string, endpoints []Endpoint, limit int) error {
	return e.changeTopic(ctx, "add endpoints", func(ctx context.Context, tx pgx.Tx) error {
		created, err := tx.Exec(ctx, sqlCreateTopic, newID(), name)
		if err != nil {
			return err
		}
		if created.RowsAffected() > 0 {
			if err := checkCount(ctx, tx, "topic", maxTopics, e.cfg.MaxTopics); err != nil {
				return err
			}
		}
		var id uuid.UUID
		if err := tx.QueryRow(ctx, sqlLockTopic, name).Scan(&id); err != nil {
			if errors.Is(err, pgx.ErrNoRows) { // deleted in between
				return fmt.Errorf("topic %s: %w", name, ErrNotFound)
			}
			return err
		}
		for _, p := range endpoints {
			if err := upsertEndpoint(ctx, tx, id, p); err != nil {
				return err
			}
		}
		if err := checkEndpoints(ctx, tx, id, limit); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlTouchTopic, id)
		return err
	})
}

func upsertEndpoint(ctx context.Context, tx pgx.Tx, topicID uuid.UUID, p Endpoint) error {
	tag, err := tx.Exec(ctx, sqlSetEndpoint, topicID, p.URL, optional(p.Name))
	if err != nil {
		return err
	}
	if tag.RowsAffected() > 0 {
		_, err = tx.Exec(ctx, sqlFreeName, topicID, p.Name, p.URL)
		return err
	}
	if p.Name != "" {
		if tag, err = tx.Exec(ctx, sqlSetNamed, topicID, p.Name, p.URL); err != nil || tag.RowsAffected() > 0 {
			return err
		}
	}
	_, err = tx.Exec(ctx, sqlAddEndpoint, newID(), topicID, optional(p.Name), p.URL)
	return err
}

const sqlCountEndpoints = `select count(*) from topic_endpoint where topic_id = $1`

func checkEndpoints(ctx context.Context, tx pgx.Tx, topicID uuid.UUID, limit int) error {
	var n int
	if err := tx.QueryRow(ctx, sqlCountEndpoints, topicID).Scan(&n); err != nil {
		return err
	}
	if n > limit {
		return &QuotaError{maxEndpoints, limit}
	}
	return nil
}

const sqlRemoveEndpoints = `
delete from topic_endpoint p using unnest($2::text[], $3::text[]) as w (name, url)
where p.topic_id = $1 and (p.name = nullif(w.name, '') or w.name = '' and p.url = w.url)`

const sqlDropEmpty = `
delete from topic t where id = $1 and not exists (select 1 from topic_endpoint where topic_id = t.id)`

// RemoveEndpoints takes endpoints out of a topic, each by its name or else its url. The topic goes with its last one.
func (e *Engine) RemoveEndpoints(ctx context.Context, name string, endpoints []Endpoint) error {
	return e.changeTopic(ctx, "remove endpoints", func(ctx context.Context, tx pgx.Tx) error {
		var id uuid.UUID
		err := tx.QueryRow(ctx, sqlLockTopic, name).Scan(&id)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return fmt.Errorf("topic %s: %w", name, ErrNotFound)
		case err != nil:
			return err
		}
		names, urls := make([]string, len(endpoints)), make([]string, len(endpoints))
		for i, p := range endpoints {
			names[i], urls[i] = p.Name, p.URL
		}
		for _, statement := range []struct {
			sql  string
			args []any
		}{{sqlRemoveEndpoints, []any{id, names, urls}}, {sqlTouchTopic, []any{id}}, {sqlDropEmpty, []any{id}}} {
			if _, err := tx.Exec(ctx, statement.sql, statement.args...); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddEndpoint adds an endpoint to a topic, by the topic's name or id.
func (e *Engine) AddEndpoint(ctx context.Context, nameOrID, url string, limit int) (p Endpoint, err error) {
	err = e.changeTopic(ctx, "add an endpoint", func(ctx context.Context, tx pgx.Tx) error {
		t, err := topic(ctx, tx, nameOrID)
		if err != nil {
			return err
		}
		p = Endpoint{ID: newID(), Topic: t.ID, URL: url}
		if err := lockForURL(ctx, tx, p); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlAddEndpoint, p.ID, p.Topic, nil, p.URL); err != nil {
			return err
		}
		if err := checkEndpoints(ctx, tx, t.ID, limit); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlTouchTopic, t.ID)
		return err
	})
	return p, err
}

const sqlEndpoints = `
select id, topic_id, coalesce(name, ''), url from topic_endpoint
where $1::uuid is null or id = $1 order by created_at, id`

// Endpoints lists the endpoints of all topics, the oldest first.
func (e *Engine) Endpoints(ctx context.Context) ([]Endpoint, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	list, err := readEndpoints(ctx, e.pool, nil)
	return list, e.topicError("list endpoints", err)
}

// Endpoint finds an endpoint by its id; ErrNotFound when there is none.
func (e *Engine) Endpoint(ctx context.Context, id string) (Endpoint, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	p, err := endpoint(ctx, e.pool, id)
	return p, e.topicError("read an endpoint", err)
}

func endpoint(ctx context.Context, q querier, spelled string) (Endpoint, error) {
	missing := fmt.Errorf("endpoint %s: %w", spelled, ErrNotFound)
	id, ok := parseID(spelled, endpointPrefix)
	if !ok {
		return Endpoint{}, missing
	}
	list, err := readEndpoints(ctx, q, &id)
	if err == nil && len(list) == 0 {
		err = missing
	}
	if err != nil {
		return Endpoint{}, err
	}
	return list[0], nil
}

func readEndpoints(ctx context.Context, q querier, id *uuid.UUID) ([]Endpoint, error) {
	rows, err := q.Query(ctx, sqlEndpoints, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Endpoint, err error) {
		return p, row.Scan(&p.ID, &p.Topic, &p.Name, &p.URL)
	})
}

const sqlURLUsed = `
select exists (select 1 from topic_endpoint where topic_id = t.id and url = $2 and id <> $3) from topic t where id = $1`

// lockForURL locks an endpoint's topic and refuses a url that another endpoint of it has.
func lockForURL(ctx context.Context, tx pgx.Tx, p Endpoint) error {
	if _, err := tx.Exec(ctx, `select from topic where id = $1 for update`, p.Topic); err != nil {
		return err
	}
	var used bool
	err := tx.QueryRow(ctx, sqlURLUsed, p.Topic, p.URL, p.ID).Scan(&used)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // deleted in between
		return fmt.Errorf("topic %s: %w", TopicID(p.Topic), ErrNotFound)
	case used:
		return ErrEndpointUsed
	}
	return err
}

const sqlMoveEndpoint = `update topic_endpoint set url = $2 where id = $1`

// MoveEndpoint gives an endpoint another url.
func (e *Engine) MoveEndpoint(ctx context.Context, id, url string) (p Endpoint, err error) {
	err = e.changeTopic(ctx, "change an endpoint", func(ctx context.Context, tx pgx.Tx) error {
		if p, err = endpoint(ctx, tx, id); err != nil {
			return err
		}
		p.URL = url
		if err := lockForURL(ctx, tx, p); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlMoveEndpoint, p.ID, url); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlTouchTopic, p.Topic)
		return err
	})
	return p, err
}

const sqlDeleteEndpoint = `delete from topic_endpoint where id = $1`

// DeleteEndpoint deletes an endpoint. Its topic stays, also without endpoints.
func (e *Engine) DeleteEndpoint(ctx context.Context, id string) error {
	return e.changeTopic(ctx, "delete an endpoint", func(ctx context.Context, tx pgx.Tx) error {
		p, err := endpoint(ctx, tx, id)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlDeleteEndpoint, p.ID); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlTouchTopic, p.Topic)
		return err
	})
}
