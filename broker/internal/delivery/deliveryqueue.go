package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Queue is a delivery queue. It delivers its messages in the order in which they fall due. A message takes a place with its first attempt
// and gives it back when it and its callbacks have ended.
type Queue struct {
	Name        string
	Parallelism int // places
	Paused      bool
	Lag         int // messages that have not ended
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// QueueChange is what to change of a delivery queue; nil leaves a value as it is, or as new queues have it.
type QueueChange struct {
	Parallelism *int  // new queues have 1
	Paused      *bool // new queues are not
}

const sqlPutQueue = `
insert into delivery_queue as q (name, lane, parallelism, paused, created_at, updated_at)
select $1, $2, coalesce($3, 1), coalesce($4, false), now, now from (select ` + sqlNow + ` as now) t
on conflict (name) do update set
    parallelism = coalesce($3, q.parallelism), paused = coalesce($4, q.paused), updated_at = excluded.updated_at`

const sqlPauseQueue = `update delivery_queue set paused = $2, updated_at = ` + sqlNow + ` where name = $1`

const sqlWakeNow = `insert into delivery_wake (lane, at) values ($1, ` + sqlNow + `)`

// PutDeliveryQueue creates a delivery queue, or changes the one of that name.
func (e *Engine) PutDeliveryQueue(ctx context.Context, name string, change QueueChange) error {
	_, err := e.changeGate(ctx, "change a delivery queue", queueLane(name), sqlPutQueue, name, queueLane(name), change.Parallelism, change.Paused)
	return err
}

// PauseDeliveryQueue pauses a delivery queue, or lets it go on; ErrNotFound when there is none. While it is paused it accepts
// messages and starts none; those that have started go on, with their retries.
func (e *Engine) PauseDeliveryQueue(ctx context.Context, name string, paused bool) error {
	n, err := e.changeGate(ctx, "pause a delivery queue", queueLane(name), sqlPauseQueue, name, paused)
	if err == nil && n == 0 {
		return noDeliveryQueue(name)
	}
	return err
}

func noDeliveryQueue(name string) error {
	return fmt.Errorf("delivery queue %s: %w", name, ErrNotFound)
}

// changeGate changes a gate and wakes its lane; n is how many rows changed.
func (e *Engine) changeGate(ctx context.Context, doing string, lane int64, sql string, args ...any) (n int64, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		if err != nil {
			return err
		}
		if n = tag.RowsAffected(); n == 0 {
			return nil
		}
		_, err = tx.Exec(ctx, sqlWakeNow, lane)
		return err
	})
	if err != nil {
		return 0, e.unavailable(doing, err)
	}
	signal(e.due)
	return n, nil
}

// A callback shares the place of its message: it is none of its own.
const sqlQueues = `
select q.name, q.parallelism, q.paused, q.created_at, q.updated_at, waiting.n + started.n
from delivery_queue q
cross join lateral (select count(*) as n from delivery_task where lane = q.lane and lease is null) waiting
cross join lateral (
    select count(*) as n from delivery_task where queue_lane = q.lane and slot is not null and slot = message_id) started
where $1::text is null or q.name = $1
order by q.name`

// DeliveryQueues lists all delivery queues by their names.
func (e *Engine) DeliveryQueues(ctx context.Context) ([]Queue, error) {
	return e.readQueues(ctx, nil)
}

// DeliveryQueue finds a delivery queue; ErrNotFound when there is none.
func (e *Engine) DeliveryQueue(ctx context.Context, name string) (Queue, error) {
	list, err := e.readQueues(ctx, &name)
	switch {
	case err != nil:
		return Queue{}, err
	case len(list) == 0:
		return Queue{}, noDeliveryQueue(name)
	}
	return list[0], nil
}

func (e *Engine) readQueues(ctx context.Context, name *string) ([]Queue, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlQueues, name)
	if err != nil {
		return nil, e.unavailable("read delivery queues", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (q Queue, err error) {
		err = row.Scan(&q.Name, &q.Parallelism, &q.Paused, &q.CreatedAt, &q.UpdatedAt, &q.Lag)
		return q, err
	})
	if err != nil {
		return nil, e.unavailable("read delivery queues", err)
	}
	return list, nil
}

const sqlQueued = `
select distinct message_id from (
    select message_id from delivery_task where lane = $1 and lease is null order by due_at limit $2) k`

// DeleteDeliveryQueue deletes a delivery queue and cancels the messages that wait in it; those that have started go on. It
// does nothing when there is none.
func (e *Engine) DeleteDeliveryQueue(ctx context.Context, name string) error {
	// Nothing more is to start, and what is left over if this is interrupted is a queue that can be deleted again.
	n, err := e.changeGate(ctx, "delete a delivery queue", queueLane(name), sqlPauseQueue, name, true)
	if err != nil || n == 0 {
		return err
	}
	for {
		ids, err := e.queued(ctx, name)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		if _, err := e.Cancel(ctx, ids); err != nil {
			return err
		}
	}
	_, err = e.changeGate(ctx, "delete a delivery queue", queueLane(name), `delete from delivery_queue where name = $1`, name)
	return err
}

func (e *Engine) queued(ctx context.Context, name string) ([]uuid.UUID, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlQueued, queueLane(name), cancelLimit)
	if err != nil {
		return nil, e.unavailable("read a delivery queue", err)
	}
	ids, err := collect[uuid.UUID](rows)
	if err != nil {
		return nil, e.unavailable("read a delivery queue", err)
	}
	return ids, nil
}
