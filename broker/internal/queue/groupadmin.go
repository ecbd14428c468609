package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Errors about consumer groups.
var (
	ErrGroupNotFound = errors.New("consumer group not found")
	ErrNothingToSeek = errors.New("no partition to seek")
)

// SeekRequest says which cursors of a group are moved, and where to.
type SeekRequest struct {
	Group     string
	Queue     string
	Partition string     // "" means all partitions of the queue
	To        *time.Time // the first message created then or later; nil means the end
}

// Rows are locked in the order consumer_group, cursor (by partition), group_log, like everywhere.
const sqlLockGroups = `
select g.id, g.queue_id from consumer_group g join queue q on q.id = g.queue_id
where g.name = $1 and ($2 = '' or q.name = $2)
order by g.id for `

// Every cursor gets a row: what brokers believe about one that has none would be missed otherwise. An
// updated_at of zero says that nothing was consumed yet.
var sqlSeek = `
insert into cursor as c (partition_id, group_id, committed, delivered, attempt, retries, seeks, updated_at)
select t.id, $1, t.target, t.target, 0, 0, 1, to_timestamp(0)
from (
    select p.id, case when $4::timestamptz is null
        then coalesce((select base + count from segment where partition_id = p.id order by base desc limit 1), 0)
        else ` + sqlFirstSince("$4::timestamptz") + ` end as target
    from partition p where p.queue_id = $2 and ($3 = '' or p.name = $3)
) t
order by t.id
on conflict (partition_id, group_id) do update set
    committed = excluded.committed, delivered = excluded.committed, attempt = 0, retries = 0,
    lease_id = null, lease_end = null, lease_until = null, seeks = c.seeks + 1`

const sqlGroupChange = `
with next as (
    update group_log set version = version + 1 returning version
)
insert into group_change (version, group_id, queue_id, partition_id, removed, changed_at)
select next.version, w.group_id, w.queue_id, (select id from partition where queue_id = w.queue_id and name = $3),
       $4, clock_timestamp() + $5::interval
from next cross join unnest($1::bigint[], $2::bigint[]) as w (group_id, queue_id)`

// groupRefs are rows of consumer_group: the ids, and those of their queues.
type groupRefs struct{ ids, queues []int64 }

func lockGroups(ctx context.Context, tx pgx.Tx, mode, group, queue string) (groupRefs, error) {
	var refs groupRefs
	rows, _ := tx.Query(ctx, sqlLockGroups+mode, group, queue) // its error comes with the rows
	var id, queueID int64
	_, err := pgx.ForEachRow(rows, []any{&id, &queueID}, func() error {
		refs.ids, refs.queues = append(refs.ids, id), append(refs.queues, queueID)
		return nil
	})
	return refs, err
}

// announce tells all brokers that groups have changed.
func (e *Engine) announce(ctx context.Context, tx pgx.Tx, refs groupRefs, partition string, removed bool) error {
	_, err := tx.Exec(ctx, sqlGroupChange, refs.ids, refs.queues, partition, removed, e.clockOffset())
	return err
}

// Seek moves cursors of a group, back or forward, and returns how many. Live leases end by it, and the
// retry budget begins anew. Every broker hears of it within a second. The error is ErrNothingToSeek when
// the queue has no such group or no such partition.
func (e *Engine) Seek(ctx context.Context, r SeekRequest) (int, error) {
	var moved int64
	err := e.retrying(ctx, "seek", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			refs, err := lockGroups(ctx, tx, "share of g", r.Group, r.Queue)
			if err != nil {
				return err
			}
			if len(refs.ids) == 0 {
				return ErrNothingToSeek
			}
			tag, err := tx.Exec(ctx, sqlSeek, refs.ids[0], refs.queues[0], r.Partition, r.To)
			if err != nil {
				return err
			}
			if moved = tag.RowsAffected(); moved == 0 {
				return ErrNothingToSeek
			}
			return e.announce(ctx, tx, refs, r.Partition, false)
		})
	})
	if err != nil {
		return 0, err
	}
	e.hearOfGroups(ctx)
	return int(moved), nil
}

// hearOfGroups takes a change of this broker into memory before it is answered. If that fails the next
// poll does it.
func (e *Engine) hearOfGroups(ctx context.Context) {
	if err := e.retrying(ctx, "read the changes of consumer groups", e.refreshGroups); err != nil {
		e.log.Warn("a change of a consumer group takes effect with the next poll", "err", err)
	}
}

const sqlSubscribe = `
update consumer_group g set mode = 'new', from_at = $2, version = version + 1 where id = any ($1)`

// Subscribe changes where a group begins in partitions in which it has no cursor yet, in every queue that
// knows it: with the first message created at that time or later. It returns in how many queues.
func (e *Engine) Subscribe(ctx context.Context, group string, from time.Time) (int, error) {
	var changed int
	err := e.retrying(ctx, "subscribe", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			refs, err := lockGroups(ctx, tx, "update of g", group, "")
			if changed = len(refs.ids); err != nil || changed == 0 {
				return err
			}
			if _, err := tx.Exec(ctx, sqlSubscribe, refs.ids, from); err != nil {
				return err
			}
			return e.announce(ctx, tx, refs, "", false)
		})
	})
	if err != nil || changed == 0 {
		return 0, err
	}
	e.hearOfGroups(ctx)
	return changed, nil
}

// GroupDeletion is what a deletion of a consumer group found.
type GroupDeletion struct {
	Existed bool
	Cursors int // partitions in which the group had a cursor
}

const sqlDeleteCursors = `
with doomed as materialized (
    select c.partition_id, c.group_id from partition p
    join cursor c on c.partition_id = p.id and c.group_id = any ($1)
    where p.queue_id = any ($2)
    order by c.partition_id, c.group_id for update of c
)
delete from cursor c using doomed d where c.partition_id = d.partition_id and c.group_id = d.group_id`

// A group whose subscription is kept gets a new id: what is still on its way for the old one must not count.
const sqlRenewGroups = `update consumer_group set id = default where id = any ($1)`

const sqlDeleteGroups = `delete from consumer_group where id = any ($1)`

// DeleteGroup deletes the cursors of a group, in one queue or in all with "". With the subscription it is
// unknown afterwards; otherwise it begins anew by the subscription that it has. Leases end by it.
func (e *Engine) DeleteGroup(ctx context.Context, group, queue string, subscription bool) (GroupDeletion, error) {
	var d GroupDeletion
	var first groupRefs // of the first attempt, whose answer may have been lost
	err := e.retrying(ctx, "delete a consumer group", func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			refs, err := lockGroups(ctx, tx, "update of g", group, queue)
			if err != nil {
				return err
			}
			if d.Existed && !slices.ContainsFunc(refs.ids, func(id int64) bool { return slices.Contains(first.ids, id) }) {
				return nil // the first attempt happened
			}
			if d.Existed, first = len(refs.ids) > 0, refs; !d.Existed {
				return nil
			}
			tag, err := tx.Exec(ctx, sqlDeleteCursors, refs.ids, refs.queues)
			if err != nil {
				return err
			}
			d.Cursors = int(tag.RowsAffected())
			end := sqlRenewGroups
			if subscription {
				end = sqlDeleteGroups
			}
			if _, err := tx.Exec(ctx, end, refs.ids); err != nil {
				return err
			}
			return e.announce(ctx, tx, refs, "", true)
		})
	})
	if err != nil {
		return GroupDeletion{}, err
	}
	if d.Existed {
		e.hearOfGroups(ctx)
	}
	return d, nil
}

const sqlGroupChanges = `
select l.version, coalesce(c.version, 0), coalesce(c.group_id, 0), coalesce(c.queue_id, 0), c.partition_id
from group_log l left join group_change c on c.version > $1
order by c.version`

// groupChange is what is to be read anew of a group.
type groupChange struct {
	queueID    int64
	partitions []int64 // nil means all
}

// refreshGroups reads anew what changed in groups that are in memory since the last time.
func (e *Engine) refreshGroups(ctx context.Context) error {
	seen := e.catalog.seenGroups()
	changes, version, err := e.groupChanges(ctx, seen)
	if err != nil {
		return err
	}
	for id, c := range changes {
		g := e.pops.groupByID(e.catalog.queueByID(c.queueID), id)
		if g == nil {
			continue
		}
		if err := e.loadCursors(ctx, g, c.partitions); err != nil && !errors.Is(err, errGroupGone) {
			return fmt.Errorf("read a changed consumer group: %w", err)
		}
	}
	if len(changes) == 0 && version > seen {
		e.log.Warn("the log of consumer groups was trimmed before this broker read it", "from", seen, "to", version)
		e.pops.forgetTails() // which reads all groups anew
	}
	e.catalog.mu.Lock()
	e.catalog.groups = max(e.catalog.groups, version)
	e.catalog.mu.Unlock()
	return nil
}

// groupChanges reads the changes after a version, by group, and the version they lead to. There are none
// when some are missing.
func (e *Engine) groupChanges(ctx context.Context, seen int64) (changes map[int64]groupChange, version int64, err error) {
	changes = map[int64]groupChange{}
	rows, err := e.pool.Query(ctx, sqlGroupChanges, seen)
	if err != nil {
		return nil, 0, err
	}
	var at, groupID, queueID int64
	var partition *int64
	first := int64(0)
	_, err = pgx.ForEachRow(rows, []any{&version, &at, &groupID, &queueID, &partition}, func() error {
		if first == 0 {
			first = at
		}
		c, known := changes[groupID]
		switch {
		case at == 0:
		case partition == nil:
			changes[groupID] = groupChange{queueID: queueID}
		case !known || c.partitions != nil:
			changes[groupID] = groupChange{queueID, append(c.partitions, *partition)}
		}
		return nil
	})
	if first != seen+1 {
		clear(changes)
	}
	return changes, version, err
}

// groupByID returns a group in memory, loaded or not; nil when there is none.
func (p *popper) groupByID(q *queueState, id int64) *group {
	if q == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range q.groups {
		if g.id == id {
			return g
		}
	}
	return nil
}
