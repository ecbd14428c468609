package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// StreamQuery is a stream processor's registration: it reads a queue, keeps state per partition of it, and
// may push what it makes of the messages to another queue.
type StreamQuery struct {
	Name       string
	Source     string // the queue that it reads
	Sink       string // where items go that name no queue; "" means nowhere
	ConfigHash string // names the processor's configuration; state made under another one does not fit it
}

// StreamRegistration answers a registration.
type StreamRegistration struct {
	ID    uuid.UUID
	Fresh bool // the query did not exist before
	Reset bool // its state was dropped, and its id is a new one
}

// Errors of streams.
var (
	// ErrStreamChanged says that a query of the name is registered with another configuration.
	ErrStreamChanged = errors.New("the query is registered with another config_hash")
	// ErrUnknownStream says that no query has the id: it was never registered, or reset since.
	ErrUnknownStream = errors.New("unknown query")
	// ErrUnknownPartition says that no partition has the id.
	ErrUnknownPartition = errors.New("unknown partition")
	// ErrNoSink says that an item names no queue and its query has no sink.
	ErrNoSink = errors.New("an item names no queue and the query has no sink_queue")
)

// The row is locked before it is judged, so that two registrations come one after the other.
const (
	sqlAddStream = `
insert into stream_query (uuid, name, source_queue, sink_queue, config_hash, created_at, updated_at)
values ($1, $2, $3, $4, $5, clock_timestamp() + $6::interval, clock_timestamp() + $6::interval)
on conflict (name) do nothing
returning id`
	sqlLockStream = `select id, uuid, config_hash from stream_query where name = $1 for update`
	sqlMoveStream = `
update stream_query set uuid = $2, source_queue = $3, sink_queue = $4, config_hash = $5, updated_at = clock_timestamp() + $6::interval
where id = $1`
	sqlDropState = `delete from stream_state where query_id = $1`
)

// RegisterStream registers a query, or finds it registered already. Under another configuration it is
// ErrStreamChanged, unless reset is asked for: that drops the query's state and gives it a new id, so that
// a processor of before the reset cannot write any more.
func (e *Engine) RegisterStream(ctx context.Context, q StreamQuery, reset bool) (StreamRegistration, error) {
	var out StreamRegistration
	minted := uuid.New() // over both attempts: the first may have committed
	err := e.retrying(ctx, "register a stream", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			out = StreamRegistration{ID: minted, Fresh: true}
			var id int64
			err := tx.QueryRow(ctx, sqlAddStream, minted, q.Name, q.Source, q.Sink, q.ConfigHash, e.clockOffset()).Scan(&id)
			if !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			var known uuid.UUID
			var hash string
			if err := tx.QueryRow(ctx, sqlLockStream, q.Name).Scan(&id, &known, &hash); err != nil {
				return err
			}
			switch {
			case known == minted: // the lost answer of this very call
				return nil
			case reset:
				out = StreamRegistration{ID: minted, Reset: true}
				if _, err := tx.Exec(ctx, sqlDropState, id); err != nil {
					return err
				}
			case hash != q.ConfigHash:
				return ErrStreamChanged
			default:
				out = StreamRegistration{ID: known}
			}
			_, err = tx.Exec(ctx, sqlMoveStream, id, out.ID, q.Source, q.Sink, q.ConfigHash, e.clockOffset())
			return err
		})
	})
	return out, err
}

// StateRequest asks for state of one query and partition: the named keys, or those with a prefix. Without
// either it asks for all.
type StateRequest struct {
	Query     uuid.UUID
	Partition uuid.UUID
	Keys      []string // nil means any
	Prefix    string
}

// StateRow is one value of a query's state.
type StateRow struct {
	Key       string
	Value     []byte // the JSON bytes that were stored
	UpdatedAt time.Time
}

const sqlStreamState = `
select s.key, s.value, s.updated_at
from stream_query q
join stream_state s on s.query_id = q.id and s.partition_uuid = $2
where q.uuid = $1 and ($3::bytea[] is null or s.key = any ($3)) and substring(s.key for octet_length($4::bytea)) = $4
order by s.key`

const sqlStreamExists = `select exists (select from stream_query where uuid = $1)`

// StreamState reads state, by key in ascending order of its bytes. The error is ErrUnknownStream, or of the database.
func (e *Engine) StreamState(ctx context.Context, r StateRequest) ([]StateRow, error) {
	var rows []StateRow
	exists := false
	err := e.retrying(ctx, "read stream state", func(ctx context.Context) error {
		rows = []StateRow{}
		if err := e.pool.QueryRow(ctx, sqlStreamExists, r.Query).Scan(&exists); err != nil || !exists {
			return err
		}
		var keys [][]byte
		for _, key := range r.Keys {
			keys = append(keys, []byte(key))
		}
		if r.Keys != nil && keys == nil {
			return nil
		}
		answer, _ := e.pool.Query(ctx, sqlStreamState, r.Query, r.Partition, keys, []byte(r.Prefix)) // its error comes with the rows
		var key, value []byte
		var updated time.Time
		_, err := pgx.ForEachRow(answer, []any{&key, &value, &updated}, func() error {
			rows = append(rows, StateRow{string(key), slices.Clone(value), updated})
			return nil
		})
		return err
	})
	if err == nil && !exists {
		return nil, ErrUnknownStream
	}
	return rows, err
}

// StateOp writes or deletes one value. Of several on one key the last counts.
type StateOp struct {
	Key   string
	Value []byte // JSON bytes; nil deletes
}

// StreamCycle is one step of a stream processor: what it made of the messages it read, committed with
// their acknowledgement.
type StreamCycle struct {
	Query     uuid.UUID
	Partition uuid.UUID // of the source queue
	State     []StateOp
	Push      []PushItem  // without a queue they go to the query's sink
	Acks      []BundleAck // none, or one of the partition
}

// StreamOutcome answers a cycle that was committed.
type StreamOutcome struct {
	Outcome
	Items  []PushItem // what was pushed, each with its queue
	Source string     // the queue of the partition
}

// A shared lock: cycles of one query go on side by side, and a reset, which changes the key, waits for them.
const sqlUseStream = `select id from stream_query where uuid = $1 for key share`

const sqlPutState = `
insert into stream_state (query_id, partition_uuid, key, value, updated_at)
select $1, $2, w.key, w.value, clock_timestamp() + $5::interval
from unnest($3::bytea[], $4::bytea[]) as w (key, value)
order by w.key
on conflict (query_id, partition_uuid, key) do update set value = excluded.value, updated_at = excluded.updated_at`

const sqlDeleteState = `
delete from stream_state where query_id = $1 and partition_uuid = $2 and key in (
    select key from stream_state where query_id = $1 and partition_uuid = $2 and key = any ($3) order by key for update
)`

const sqlSink = `select sink_queue from stream_query where uuid = $1`

// CycleStream commits a cycle in one transaction: state, pushes and acknowledgement. A pushed duplicate is
// left out, the rest is committed. Errors are those of Transact but for *DuplicateError, and
// ErrUnknownStream, ErrUnknownPartition, ErrNoSink.
func (e *Engine) CycleStream(ctx context.Context, c StreamCycle) (StreamOutcome, error) {
	part, err := e.partitionByUUID(ctx, c.Partition)
	if err != nil {
		return StreamOutcome{}, err
	}
	if part == nil {
		return StreamOutcome{}, ErrUnknownPartition
	}
	push, err := e.sunk(ctx, &c)
	if err != nil {
		return StreamOutcome{}, err
	}
	put, deleted := c.lastOps()
	out, err := e.Transact(ctx, Bundle{
		Push: push, Duplicates: DropDuplicates, Acks: c.Acks,
		Also: func(ctx context.Context, tx pgx.Tx) error {
			var id int64
			err := tx.QueryRow(ctx, sqlUseStream, c.Query).Scan(&id)
			if errors.Is(err, pgx.ErrNoRows) {
				return ErrUnknownStream
			}
			if err != nil {
				return err
			}
			if len(deleted) > 0 {
				if _, err := tx.Exec(ctx, sqlDeleteState, id, c.Partition, deleted); err != nil {
					return err
				}
			}
			if len(put) == 0 {
				return nil
			}
			keys, values := make([][]byte, len(put)), make([][]byte, len(put))
			for i, op := range put {
				keys[i], values[i] = []byte(op.Key), op.Value
			}
			_, err = tx.Exec(ctx, sqlPutState, id, c.Partition, keys, values, e.clockOffset())
			return err
		},
	})
	return StreamOutcome{Outcome: out, Items: push, Source: part.queue.name}, err
}

// sunk gives items without a queue the query's sink.
func (e *Engine) sunk(ctx context.Context, c *StreamCycle) ([]PushItem, error) {
	if !slices.ContainsFunc(c.Push, func(it PushItem) bool { return it.Queue == "" }) {
		return c.Push, nil
	}
	var sink string
	err := e.retrying(ctx, "find a stream's sink", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlSink, c.Query).Scan(&sink)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrUnknownStream
	case err != nil:
		return nil, err
	case sink == "":
		return nil, ErrNoSink
	}
	push := slices.Clone(c.Push)
	for i := range push {
		if push[i].Queue == "" {
			push[i].Queue = sink
		}
	}
	return push, nil
}

// lastOps are the operations that count, apart and in the order in which rows are locked.
func (c *StreamCycle) lastOps() (put []StateOp, deleted [][]byte) {
	last := map[string]StateOp{}
	for _, op := range c.State {
		last[op.Key] = op
	}
	for key, op := range last {
		if op.Value == nil {
			deleted = append(deleted, []byte(key))
		} else {
			put = append(put, op)
		}
	}
	slices.SortFunc(put, func(a, b StateOp) int { return strings.Compare(a.Key, b.Key) })
	return put, deleted
}
