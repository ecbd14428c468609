package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Retention removes what queues no longer keep. One broker at a time does it, in short transactions:
//
//   - It empties the frames of the segments at the front of a partition that are past the queue's
//     retention, and moves the partition's log_start behind them. Claims are fenced by log_start, so that
//     no broker delivers what is gone, whatever it has in memory.
//   - It keeps the hashes of emptied segments as long as deduplication, acks and replays of spools may ask
//     for them, then it deletes the rows. A partition's last segment stays, empty: it says at which offset
//     and after which time the partition goes on.
//   - It removes partitions that have been empty and idle for long, by their shard's head, see cleanup.go.
//
// What is due is decided by each statement anew, with the queue's options and the time of the database at
// that moment: nothing that a broker remembers deletes anything.
type retention struct {
	id       uuid.UUID     // of this process, as the holder of the lead
	working  chan struct{} // holds one: whoever has taken it works
	cleanNow time.Time     // by this machine's clock: when partitions are to be looked at again
}

func newRetention() *retention {
	r := &retention{id: uuid.New(), working: make(chan struct{}, 1)}
	r.working <- struct{}{}
	return r
}

const (
	// leadFor is how long a broker that says nothing keeps the lead: longer than any step may take.
	leadFor = 30 * time.Second
	// cleanEvery is how often partitions are looked at for being idle, which is a matter of days.
	cleanEvery = time.Hour
	// walkStep is how many partitions one statement looks at.
	walkStep = 1000
	// walkShare is the share of the time that looking for something to do may take: with very many
	// partitions the passes get rarer.
	walkShare = 20
	// pauseMost bounds the pause after a step, which is as long as the step was, so that pushes get their turn.
	pauseMost = time.Second
	// hashesFloor and hashesMargin: hashes are kept for so long at least (queue contract, section 13), and
	// so much longer than anybody may ask for them, since brokers estimate the database's time.
	hashesFloor  = "900 seconds"
	hashesMargin = "30 seconds"
)

// errNotLeading says that another broker removes what is due.
var errNotLeading = errors.New("another broker leads")

// retentionLoop removes what is due, again and again, while this broker leads.
func (e *Engine) retentionLoop(ctx context.Context) {
	wait := e.cfg.RetentionInterval
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		looked, err := e.retain(ctx, false)
		if err != nil && ctx.Err() == nil && !errors.Is(err, errNotLeading) && !pg.Unavailable(err) {
			e.log.Error("retention failed", "err", err)
		}
		wait = max(e.cfg.RetentionInterval, (walkShare-1)*looked)
	}
}

// settleRetention removes everything that is due, whoever leads. Only the test clock asks for that.
func (e *Engine) settleRetention(ctx context.Context) error {
	if _, err := e.retain(ctx, true); err != nil {
		return e.unavailable("remove what is due", err)
	}
	return e.forgetRemoved(ctx)
}

// retain makes one pass over everything. With now it takes the lead from whoever has it, makes no pauses,
// and looks at idle partitions too. It returns how long it took to look for what is due.
func (e *Engine) retain(ctx context.Context, now bool) (looked time.Duration, err error) {
	r := e.retention
	select {
	case <-r.working:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { r.working <- struct{}{} }()
	if err := e.reportSpool(ctx); err != nil {
		return 0, err
	}
	if err := e.takeLead(ctx, now); err != nil {
		return 0, err
	}
	w := &walk{engine: e, paced: !now}
	if err := w.removeMessages(ctx); err != nil {
		return w.looked, err
	}
	if e.cfg.KeepPartitions || !now && time.Now().Before(r.cleanNow) {
		return w.looked, nil
	}
	r.cleanNow = time.Now().Add(cleanEvery)
	return w.looked, w.cleanUp(ctx)
}

// The lease of the lead is a matter of machines and runs by the database's clock alone. While the leader's
// step is in the air its row is locked, and nobody else gets the lead.
const sqlTakeLead = `
update retention_leader set holder = $1, until = clock_timestamp() + $2::interval
where id and id in (
    select id from retention_leader where holder = $1 or until <= clock_timestamp() for update skip locked
)`

const sqlStealLead = `update retention_leader set holder = $1, until = clock_timestamp() + $2::interval where id`

func (e *Engine) takeLead(ctx context.Context, steal bool) error {
	return e.retrying(ctx, "take the lead of retention", func(ctx context.Context) error {
		sql, args := sqlTakeLead, []any{e.retention.id, leadFor}
		if steal {
			sql = sqlStealLead
		}
		tag, err := e.pool.Exec(ctx, sql, args...)
		if err == nil && tag.RowsAffected() == 0 {
			err = errNotLeading
		}
		return err
	})
}

const sqlResign = `update retention_leader set until = '-infinity' where holder = $1`

// resign lets another broker lead at once. A failure only makes it wait for the lease to end.
func (e *Engine) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, aliveWithin)
	defer cancel()
	if _, err := e.pool.Exec(ctx, sqlResign, e.retention.id); err != nil {
		e.log.Debug("the lead of retention was not given up", "err", err)
	}
}

// The fence of each step: a leader that was frozen past its lease finds that it does not lead any more, and
// one that still does keeps everybody else out until its step has committed.
const sqlFence = `
update retention_leader set until = clock_timestamp() + $2::interval where holder = $1 and until > clock_timestamp()`

// step runs one transaction of the leader.
func (e *Engine) step(ctx context.Context, doing string, work func(ctx context.Context, tx pgx.Tx) error) error {
	return e.retrying(ctx, doing, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sqlFence, e.retention.id, leadFor)
			if err != nil {
				return err
			}
			if tag.RowsAffected() == 0 {
				return errNotLeading
			}
			return work(ctx, tx)
		})
	})
}

// walk is one pass over all partitions.
type walk struct {
	engine *Engine
	paced  bool
	looked time.Duration
}

// pace makes a pause that is as long as what it follows took.
func (w *walk) pace(ctx context.Context, took time.Duration) {
	if !w.paced {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(min(took, pauseMost)):
	}
}

// What a queue's options say now. $1 is the test clock's offset. Everything created before erase_before is
// past its time, what all groups have passed already before completed_before; hashes created before
// forget_before are not asked for any more. A time is null when the options set none.
const sqlRule = `
select queue_id, at,
       greatest(case when enabled and retained > 0 then at - retained * interval '1 second' end,
                case when waits > 0 then at - waits * interval '1 second' end) as erase_before,
       case when enabled and completed > 0 then at - completed * interval '1 second' end as completed_before,
       least(at, (select min(oldest_at) from broker_spool))
           - greatest(greatest(dedup, completed) * interval '1 second', interval '` + hashesFloor + `')
           - interval '` + hashesMargin + `' as forget_before
from (
    select id as queue_id, clock_timestamp() + $1::interval as at,
           coalesce((options ->> 'retentionEnabled')::boolean, false) as enabled,
           coalesce((options ->> 'retentionSeconds')::bigint, 0) as retained,
           coalesce((options ->> 'completedRetentionSeconds')::bigint, 0) as completed,
           coalesce((options ->> 'maxWaitTimeSeconds')::bigint, 0) as waits,
           coalesce((options ->> 'dedupWindowSeconds')::bigint, 0) as dedup
    from queue
) o`

// The offset that every group of the queue of partition p has passed; null without any group. A group
// that has no cursor yet begins after the messages that it does not want.
var sqlPassed = `
select min(coalesce(c.committed, case when cg.from_at is not null then ` + sqlFirstSince("cg.from_at") + ` end, 0))
from consumer_group cg left join cursor c on c.group_id = cg.id and c.partition_id = p.id
where cg.queue_id = p.queue_id`

// Which of the next partitions have something to remove: the first segment that is still there decides
// about frames, the first of all about hashes. Partitions of queues that keep everything are not looked at,
// unless something was removed from them before.
var sqlWalk = `
with rule as materialized (` + sqlRule + `), part as materialized (
    select id, queue_id, log_start from partition
    where id > $2 and (log_start > 0 or queue_id in (
        select queue_id from rule where erase_before is not null or completed_before is not null
    ))
    order by id limit $3
), looked as (
    select p.id,
           coalesce(live.created_at < r.erase_before, false)
           or coalesce(live.created_at < r.completed_before and live.past <= (` + sqlPassed + `), false) as erase,
           coalesce(first.base < p.log_start and first.created_at < r.forget_before
                    and exists (select from segment n where n.partition_id = p.id and n.base > first.base), false) as forget
    from part p
    join rule r on r.queue_id = p.queue_id
    left join lateral (
        select created_at, base + count as past from segment
        where partition_id = p.id and base >= p.log_start
          and (r.erase_before is not null or r.completed_before is not null)
        order by base limit 1
    ) live on true
    left join lateral (
        select base, created_at from segment where partition_id = p.id and p.log_start > 0 order by base limit 1
    ) first on true
)
select (select max(id) from part), array_agg(id order by id) filter (where erase), array_agg(id order by id) filter (where forget)
from looked`

// storedByPush reports whether a message that was stored at a time and is gone by now is the one that a push,
// accepted at another, had stored before it went to the spool: its id cannot be asked any more.
func (e *Engine) storedByPush(stored, accepted time.Time) bool {
	after := stored.Sub(accepted)
	return after > -expiryMargin && after < 2*e.cfg.StatementTimeout+expiryMargin
}

// removeMessages removes the frames and then the hashes that are past their time.
func (w *walk) removeMessages(ctx context.Context) error {
	e := w.engine
	for after := int64(0); ; {
		var last *int64
		var erase, forget []int64
		began := time.Now()
		err := e.retrying(ctx, "look for what is past its time", func(ctx context.Context) error {
			return e.pool.QueryRow(ctx, sqlWalk, e.clockOffset(), after, walkStep).Scan(&last, &erase, &forget)
		})
		w.looked += time.Since(began)
		if err != nil || last == nil {
			return err
		}
		after = *last
		if err := w.erase(ctx, erase); err != nil {
			return err
		}
		if err := w.forget(ctx, forget); err != nil {
			return err
		}
	}
}

// The frames of a step's segments go, and their partitions start behind them. Segments whose hashes nobody
// asks for any more go as a whole, but the last of a partition. $3 is how many of each partition. The
// partitions are locked already.
var sqlErase = `
with part as materialized (
    select p.id, p.queue_id, p.log_start, r.erase_before, r.completed_before, r.forget_before,
           case when r.completed_before is not null then (` + sqlPassed + `) end as passed
    from partition p join (` + sqlRule + `) r on r.queue_id = p.queue_id
    where p.id = any ($2)
), doomed as materialized (
    select p.id, g.base, g.count, octet_length(g.frames) as size,
           g.created_at < p.forget_before
           and exists (select from segment n where n.partition_id = p.id and n.base > g.base) as whole
    from part p cross join lateral (
        select f.* from (
            select * from segment where partition_id = p.id and base >= p.log_start order by base limit $3
        ) f
        where f.created_at < p.erase_before or f.created_at < p.completed_before and f.base + f.count <= p.passed
    ) g
), emptied as (
    update segment s set frames = null from doomed d
    where s.partition_id = d.id and s.base = d.base and not d.whole
), deleted as (
    delete from segment s using doomed d where s.partition_id = d.id and s.base = d.base and d.whole
), moved as (
    update partition p set log_start = d.past
    from (select id, max(base + count) as past from doomed group by id) d where p.id = d.id
)
select id, max(base + count), count(*), sum(count)::bigint, coalesce(sum(size), 0)::bigint
from doomed group by id order by id`

const sqlLockPartitions = `select from partition where id = any ($1) order by id for update`

// erase removes the frames that are past their time from the fronts of partitions.
func (w *walk) erase(ctx context.Context, partitions []int64) error {
	e := w.engine
	return w.inSteps(ctx, partitions, func(ctx context.Context, partitions []int64, each int) (map[int64]int, error) {
		var gone []removedRun
		err := e.step(ctx, "remove messages", func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, sqlLockPartitions, partitions); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, sqlErase, e.clockOffset(), partitions, each) // its error comes with the rows
			var err error
			gone, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r removedRun, err error) {
				err = row.Scan(&r.partitionID, &r.start, &r.segments, &r.messages, &r.bytes)
				return r, err
			})
			if err != nil || len(gone) == 0 {
				return err
			}
			return subtractCounts(ctx, tx, gone)
		})
		if err != nil {
			return nil, err
		}
		starts, segments := make(map[int64]int64, len(gone)), make(map[int64]int, len(gone))
		for _, r := range gone {
			starts[r.partitionID], segments[r.partitionID] = r.start, int(r.segments)
			e.metrics.removedMessages.Add(float64(r.messages))
			e.metrics.removedSegments.Add(float64(r.segments))
		}
		e.startsMoved(starts)
		return segments, nil
	})
}

// inSteps has segments of partitions removed until none of the partitions has more. A step is told of how many
// partitions, and how many of each, it may remove; it returns how many it did.
func (w *walk) inSteps(ctx context.Context, partitions []int64, step func(ctx context.Context, partitions []int64, each int) (map[int64]int, error)) error {
	most := w.engine.cfg.RetentionBatch
	for len(partitions) > 0 {
		now := partitions[:min(len(partitions), most)]
		each := most / len(now)
		began := time.Now()
		removed, err := step(ctx, now, each)
		if err != nil {
			return err
		}
		var more []int64
		for _, id := range now {
			if removed[id] == each {
				more = append(more, id)
			}
		}
		partitions = append(more, partitions[len(now):]...)
		if len(partitions) > 0 {
			w.pace(ctx, time.Since(began))
		}
	}
	return nil
}

const sqlForget = `
with doomed as materialized (
    select p.id, g.base
    from partition p
    join (` + sqlRule + `) r on r.queue_id = p.queue_id
    cross join lateral (
        select f.base from (
            select base, created_at from segment where partition_id = p.id and base < p.log_start order by base limit $3
        ) f
        where f.created_at < r.forget_before
          and exists (select from segment n where n.partition_id = p.id and n.base > f.base)
    ) g
    where p.id = any ($2)
), deleted as (
    delete from segment s using doomed d where s.partition_id = d.id and s.base = d.base
)
select id, count(*) from doomed group by id order by id`

// forget deletes emptied segments whose hashes nobody asks for any more.
func (w *walk) forget(ctx context.Context, partitions []int64) error {
	e := w.engine
	return w.inSteps(ctx, partitions, func(ctx context.Context, partitions []int64, each int) (map[int64]int, error) {
		var deleted map[int64]int
		err := e.step(ctx, "forget transaction ids", func(ctx context.Context, tx pgx.Tx) error {
			deleted = map[int64]int{}
			rows, _ := tx.Query(ctx, sqlForget, e.clockOffset(), partitions, each) // its error comes with the rows
			var id int64
			var n int
			_, err := pgx.ForEachRow(rows, []any{&id, &n}, func() error {
				deleted[id] = n
				return nil
			})
			return err
		})
		return deleted, err
	})
}

// startsMoved takes into memory where partitions start: what is cached from before is dropped, and cursors
// go on behind it.
func (e *Engine) startsMoved(starts map[int64]int64) {
	if len(starts) == 0 {
		return
	}
	e.segments.drop(starts)
	now := e.clock.Now()
	p := e.pops
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, start := range starts {
		part := e.catalog.partitionByID(id)
		if part == nil || part.start.Load() >= start {
			continue
		}
		growTo(&part.start, start)
		for _, g := range part.queue.groups {
			if c := g.cursors[id]; c != nil {
				p.place(c, now)
			}
		}
	}
	p.kick()
}

const sqlStarts = `
select w.id, p.log_start from unnest($1::bigint[]) as w (id) left join partition p on p.id = w.id`

// learnStarts reads where partitions start. Those that are not there any more are forgotten.
func (e *Engine) learnStarts(ctx context.Context, partitions []int64) error {
	if len(partitions) == 0 {
		return nil
	}
	var starts map[int64]int64
	var gone []int64
	err := e.retrying(ctx, "read where partitions start", func(ctx context.Context) error {
		starts, gone = map[int64]int64{}, nil
		rows, _ := e.pool.Query(ctx, sqlStarts, partitions) // its error comes with the rows
		var id int64
		var start *int64
		_, err := pgx.ForEachRow(rows, []any{&id, &start}, func() error {
			if start == nil {
				gone = append(gone, id)
			} else {
				starts[id] = *start
			}
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	for _, id := range gone {
		e.partitionRemoved(id)
	}
	e.startsMoved(starts)
	return nil
}

// forgetRemoved drops from the cache what any broker's retention has removed.
func (e *Engine) forgetRemoved(ctx context.Context) error {
	return e.learnStarts(ctx, e.segments.partitions())
}

const sqlReportSpool = `
insert into broker_spool as b (id, records, oldest_at, seen_at)
values ($1, $2, coalesce($3, clock_timestamp() + $4::interval - $5::interval), clock_timestamp())
on conflict (id) do update set records = excluded.records, oldest_at = excluded.oldest_at, seen_at = excluded.seen_at`

const sqlUnreportSpool = `delete from broker_spool where id = $1`

// A broker that was not seen for this long has left its spool for good.
const sqlForgetSpools = `
delete from broker_spool where seen_at < clock_timestamp() - interval '` + spoolForgotten + `' returning id, records`

const spoolForgotten = "30 days"

// reportSpool says how old the oldest record of this broker's spool is. With none, what goes there before
// the next report was accepted no longer ago than a push may take.
func (e *Engine) reportSpool(ctx context.Context) error {
	if e.cfg.Spool == nil {
		return nil
	}
	id, err := e.cfg.Spool.ID()
	if err != nil {
		return err
	}
	stats := e.cfg.Spool.Stats()
	var oldest *time.Time
	if stats.Pending > 0 {
		oldest = &stats.Oldest
	}
	return e.retrying(ctx, "report the spool", func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, sqlReportSpool, id, stats.Pending, oldest, e.clockOffset(), 2*e.cfg.StatementTimeout)
		return err
	})
}

// leaveSpool is the last word of a broker that stops: an empty spool needs nothing to be kept.
func (e *Engine) leaveSpool(ctx context.Context) {
	if e.cfg.Spool == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, aliveWithin)
	defer cancel()
	id, err := e.cfg.Spool.ID()
	switch {
	case err != nil:
	case e.cfg.Spool.Stats().Pending > 0:
		err = e.reportSpool(ctx)
	default:
		_, err = e.pool.Exec(ctx, sqlUnreportSpool, id)
	}
	if err != nil {
		e.log.Debug("the state of the spool was not reported", "err", err)
	}
}

// forgetSpools gives up on the spools of brokers that have not been seen for very long.
func (e *Engine) forgetSpools(ctx context.Context) error {
	return e.step(ctx, "forget spools", func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sqlForgetSpools) // its error comes with the rows
		var id uuid.UUID
		var records int64
		_, err := pgx.ForEachRow(rows, []any{&id, &records}, func() error {
			e.log.Warn("a broker has not been seen for "+spoolForgotten+": what is in its spool may be stored twice when it comes back",
				"spool", id, "records", records)
			return nil
		})
		if err != nil {
			return fmt.Errorf("forget spools: %w", err)
		}
		return nil
	})
}
