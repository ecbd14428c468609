package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The outbox is a table that programs write messages to in their own transactions, through the function
// posthorn.push. One broker of the cluster, the mover, takes what is committed to the log, and removes it
// in the same transaction: nothing is lost or there twice, wherever a broker ends.
//
// Rows are moved in the order of their ids, and only those whose transaction is older than every one that
// is still running. Ids follow the order of the calls: of two pushes of which one could know of the other,
// in one session or under one lock, the later one has the larger id. And no row that the mover has passed
// over can turn up later with a smaller id from a transaction that its successors could know of.

// How often the mover looks for rows: soon after it found some, then ever more rarely.
const (
	outboxBusy = 20 * time.Millisecond
	outboxIdle = time.Second
	// outboxAbsent is how often the mover looks whether there is an outbox by now.
	outboxAbsent = 30 * time.Second
)

const (
	// moverLease is how long a mover that has ended is waited for.
	moverLease = 5 * time.Second
	// outboxRows and outboxBytes bound what is moved in one transaction; one row may be larger.
	outboxRows  = 1000
	outboxBytes = 4 << 20
	// stuckFor is how long a partition is left alone whose rows cannot be moved.
	stuckFor = 5 * time.Second
)

// Election goes by the true time, as the death of processes does, and not by the test clock.
const (
	sqlElectMover = `
update outbox_mover set holder = $1, until = clock_timestamp() + $2::interval
where to_regclass('posthorn.outbox') is not null and (holder = $1 or until < clock_timestamp())
returning true`
	sqlOutboxExists = `select to_regclass('posthorn.outbox') is not null`
	sqlLeaveMover   = `update outbox_mover set until = '-infinity' where holder = $1`
	// The lock is held until the commit: an election waits for the move that is under way.
	sqlHoldMover = `select true from outbox_mover where holder = $1 for update`
)

const sqlReadOutbox = `
select id, queue, partition, transaction_id, payload from (
    select o.*, sum(octet_length(o.payload)) over (order by o.id) - octet_length(o.payload) as before
    from (
        select * from posthorn.outbox o
        where o.xid < pg_snapshot_xmin(pg_current_snapshot())
          and not exists (select from unnest($1::text[], $2::text[]) as s (queue, partition)
                          where s.queue = o.queue and s.partition = o.partition)
        order by o.id limit $3
    ) o
) r
where before < $4
order by id`

const sqlTakeOutbox = `delete from posthorn.outbox where id = any ($1)`

var (
	errDeposed = errors.New("another broker moves the outbox")
	errMoved   = errors.New("rows of the outbox were moved by somebody else")
)

// outboxRow is a message that waits in the outbox.
type outboxRow struct {
	id   int64
	item PushItem
}

// mover is this broker's part in moving the outbox.
type mover struct {
	engine *Engine
	id     uuid.UUID
	stuck  map[laneKey]time.Time // partitions whose rows cannot be moved, until when they are left alone
}

// outboxLoop moves the outbox while no other broker does.
func (e *Engine) outboxLoop(ctx context.Context) {
	m := &mover{engine: e, id: uuid.New(), stuck: map[laneKey]time.Time{}}
	defer m.leave(context.WithoutCancel(ctx))
	pause := outboxBusy
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		moved, err := m.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			// All brokers but one are deposed at any time.
			if !passing(err) && !errors.Is(err, errDeposed) && !errors.Is(err, errMoved) {
				e.log.Error("the outbox waits", "err", err)
			}
			pause = outboxIdle
		case moved:
			pause = outboxBusy
		default:
			pause = min(2*pause, outboxIdle)
		}
		if m.absent(ctx, err) {
			pause = outboxAbsent
		}
	}
}

// leave lets another broker take over at once.
func (m *mover) leave(ctx context.Context) {
	e := m.engine
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = e.pool.Exec(ctx, sqlLeaveMover, m.id) // otherwise they wait for the lease
}

// absent reports whether there is no outbox to move.
func (m *mover) absent(ctx context.Context, failure error) bool {
	if !errors.Is(failure, errDeposed) {
		return false
	}
	exists := true
	if err := m.engine.pool.QueryRow(ctx, sqlOutboxExists).Scan(&exists); err != nil {
		return false
	}
	return !exists
}

// step moves what waits, at most one batch. It reports whether there was any.
func (m *mover) step(ctx context.Context) (moved bool, err error) {
	e := m.engine
	bounded, cancel := e.deadline(ctx)
	defer cancel()
	var elected bool
	err = e.pool.QueryRow(bounded, sqlElectMover, m.id, moverLease).Scan(&elected)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, errDeposed
	}
	if err != nil {
		return false, e.unavailable("elect the mover of the outbox", err)
	}
	rows, err := m.read(bounded)
	if err != nil || len(rows) == 0 {
		return false, err
	}
	err = m.move(ctx, rows)
	if err == nil || errors.Is(err, errDeposed) || errors.Is(err, errMoved) {
		return err == nil, err
	}
	// What stands in the way of one partition must not hold the others up.
	for lane, rows := range byLane(rows) {
		failure := m.move(ctx, rows)
		if errors.Is(failure, errDeposed) || errors.Is(failure, errMoved) || e.outage.isDown() {
			return moved, failure
		}
		if failure == nil {
			moved = true
			continue
		}
		m.stuck[lane] = time.Now().Add(stuckFor)
		e.log.Warn("a partition's messages wait in the outbox", "queue", lane.queue, "partition", lane.partition, "err", failure)
	}
	return moved, nil
}

// byLane sorts rows by partition, in their order.
func byLane(rows []outboxRow) map[laneKey][]outboxRow {
	lanes := map[laneKey][]outboxRow{}
	for _, row := range rows {
		key := keyOf(&row.item)
		lanes[key] = append(lanes[key], row)
	}
	return lanes
}

// read returns the rows that may be moved, oldest first.
func (m *mover) read(ctx context.Context) ([]outboxRow, error) {
	var queues, partitions []string
	now := time.Now()
	for lane, until := range m.stuck {
		if now.After(until) {
			delete(m.stuck, lane)
			continue
		}
		queues, partitions = append(queues, lane.queue), append(partitions, lane.partition)
	}
	answer, _ := m.engine.pool.Query(ctx, sqlReadOutbox, queues, partitions, outboxRows, outboxBytes) // its error comes with the rows
	var list []outboxRow
	var row outboxRow
	var payload []byte
	it := &row.item
	_, err := pgx.ForEachRow(answer, []any{&row.id, &it.Queue, &it.Partition, &it.TransactionID, &payload}, func() error {
		it.Payload = slices.Clone(payload)
		list = append(list, row)
		return nil
	})
	if err != nil {
		return nil, m.engine.unavailable("read the outbox", err)
	}
	return list, nil
}

// move appends rows to the log and removes them from the outbox, in one transaction.
func (m *mover) move(ctx context.Context, rows []outboxRow) error {
	ids := make([]int64, len(rows))
	items := make([]PushItem, len(rows))
	for i, row := range rows {
		ids[i], items[i] = row.id, row.item
	}
	_, err := m.engine.Transact(ctx, Bundle{
		Push: items, Duplicates: DropDuplicates,
		Also: func(ctx context.Context, tx pgx.Tx) error {
			var held bool
			err := tx.QueryRow(ctx, sqlHoldMover, m.id).Scan(&held)
			if errors.Is(err, pgx.ErrNoRows) {
				return errDeposed
			}
			if err != nil {
				return err
			}
			tag, err := tx.Exec(ctx, sqlTakeOutbox, ids)
			if err == nil && tag.RowsAffected() != int64(len(ids)) {
				return errMoved // by this broker, in a transaction whose answer was lost
			}
			return err
		},
	})
	if err == nil {
		m.engine.metrics.outboxMoved.Add(float64(len(rows)))
	}
	return err
}
