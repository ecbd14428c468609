package delivery

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	sweepInterval = time.Minute
	sweepLimit    = 1000
	sweepPause    = 10 * time.Millisecond // between two steps, for others to get a turn
)

// sqlTrim removes the oldest log entries that are past their time, and then the messages that nothing refers to any more.
// A message with a task, a dead letter or a younger entry stays.
//
// Here and below what is old is found first, as an array: joined to it, a large table would be read as a whole.
const sqlTrim = `
with gone as (
    delete from delivery_log where ctid = any (array(
        select ctid from delivery_log
        where time < (select clock_timestamp() + clock_offset from setting) - $1::interval
        order by time, id limit $2 for update skip locked))
    returning message_id)
select distinct message_id from gone`

const sqlTrimMessages = `
delete from delivery_message m
where m.id = any($1)
  and not exists (select from delivery_log l where l.message_id = m.id)
  and not exists (select from delivery_task k where k.message_id = m.id)
  and not exists (select from delivery_dead_letter d where d.message_id = m.id)`

const sqlTrimDedup = `
delete from delivery_dedup where key = any (array(
    select key from delivery_dedup
    where created_at <= (select clock_timestamp() + clock_offset from setting) - $1::interval
    order by created_at limit $2 for update skip locked))`

// sqlTrimDead removes the dead letters that failed first. One that is being retried or deleted stays for that.
const sqlTrimDead = `
delete from delivery_dead_letter where id = any (array(
    select id from delivery_dead_letter
    where failed_at <= (select clock_timestamp() + clock_offset from setting) - $1::interval
    order by failed_at limit $2 for update skip locked))
returning message_id`

// sweepLoop removes what is past its time, in small steps.
func (e *Engine) sweepLoop() {
	for e.pause(sweepInterval) {
		if err := e.sweep(e.ctx); err != nil && e.ctx.Err() == nil {
			e.log.Warn("cannot remove what is past its time", "error", err)
		}
	}
}

func (e *Engine) sweep(ctx context.Context) error {
	for more := true; more; {
		var err error
		if more, err = e.trimLog(ctx); err != nil {
			return err
		}
		if more && !e.pause(sweepPause) {
			return nil
		}
	}
	for _, trim := range []func(context.Context) (int64, error){e.trimDead, e.trimDedup, e.trimFlows} {
		for {
			n, err := trim(ctx)
			if err != nil {
				return err
			}
			if n < sweepLimit {
				break
			}
			if !e.pause(sweepPause) {
				return nil
			}
		}
	}
	return nil
}

func (e *Engine) trimLog(ctx context.Context) (more bool, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlTrim, e.cfg.LogRetention, sweepLimit)
		if err != nil {
			return err
		}
		ids, err := collect[uuid.UUID](rows)
		if err != nil || len(ids) == 0 {
			return err
		}
		more = true
		return trimMessages(ctx, tx, ids)
	})
	if err != nil {
		return false, e.unavailable("trim the delivery log", err)
	}
	return more, nil
}

func (e *Engine) trimDead(ctx context.Context) (n int64, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	err = pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlTrimDead, e.cfg.DeadRetention, sweepLimit)
		if err != nil {
			return err
		}
		messages, err := collect[uuid.UUID](rows)
		if n = int64(len(messages)); err != nil || n == 0 {
			return err
		}
		return trimMessages(ctx, tx, messages)
	})
	if err != nil {
		return 0, e.unavailable("remove old dead letters", err)
	}
	return n, nil
}

func (e *Engine) trimDedup(ctx context.Context) (int64, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	tag, err := e.pool.Exec(ctx, sqlTrimDedup, e.cfg.DedupWindow, sweepLimit)
	if err != nil {
		return 0, e.unavailable("remove old deduplication ids", err)
	}
	return tag.RowsAffected(), nil
}
