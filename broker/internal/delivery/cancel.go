package delivery

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const sqlLockTasks = `
select d.message_id, d.target, d.retried, d.cancelled, d.lease is not null, d.queue_lane, d.flow_lane, clock_timestamp() + s.clock_offset
from delivery_task d cross join setting s
where d.message_id = any($1)
order by d.message_id, d.target
for update of d`

const sqlMarkCancelled = `
update delivery_task d set cancelled = true
from unnest($1::uuid[], $2::smallint[]) as o(message_id, target)
where d.message_id = o.message_id and d.target = o.target`

// Cancel ends messages that are not delivered yet and returns how many those were. A task that waits is ended at once; one
// whose attempt has begun ends with the attempt, which may still deliver it.
func (e *Engine) Cancel(ctx context.Context, ids []uuid.UUID) (int, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	affected := make(map[uuid.UUID]bool)
	err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlLockTasks, ids)
		if err != nil {
			return err
		}
		var ended, marked taskColumns
		var entries entryColumns
		var k taskKey
		var retried int
		var cancelled, leased bool
		var queue, flow *int64
		woken := wakes{}
		var now time.Time
		_, err = pgx.ForEachRow(rows, []any{&k.message, &k.target, &retried, &cancelled, &leased, &queue, &flow, &now}, func() error {
			affected[k.message] = true
			if !cancelled {
				entries.add(k, now, CancelRequested, retried, nil, nil)
			}
			if leased {
				marked.add(k)
				return nil
			}
			woken.add(queue, now)
			woken.add(flow, now)
			ended.add(k)
			entries.add(k, now, Cancelled, retried, nil, nil)
			return nil
		})
		if err != nil || len(affected) == 0 {
			return err
		}
		batch := &pgx.Batch{}
		batch.Queue(sqlMarkCancelled, marked.ids, marked.targets)
		batch.Queue(sqlEnd, ended.ids, ended.targets)
		batch.Queue(sqlEntries, entries.args()...)
		batch.Queue(sqlWake, woken.args()...)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return 0, e.unavailable("cancel messages", err)
	}
	e.dispatch.cancel(affected)
	signal(e.due)
	return len(affected), nil
}
