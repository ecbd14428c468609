package queue

import (
	"container/heap"
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/singleflight"
)

// group is a consumer group of one queue, with what the broker knows of its cursors. What it knows
// may be behind the truth, which stands in the cursor rows: a claim or an ack that finds a row
// different from what is known changes nothing and is told the truth.
//
// The id of a group changes when it is deleted, so that nothing of a deleted group counts for its successor.
//
// Everything but the first block is guarded by popper.mu.
type group struct {
	id    int64
	queue *queueState
	name  string

	from    time.Time // only messages created then or later; zero means all
	version int64     // of the subscription

	cursors map[int64]*cursor // by partition
	ready   list.List         // of *cursor: there is something to deliver
	waiters list.List         // of *waiter: pops that take from any partition
	lost    list.List         // of *waiter: pops of partitions that do not exist yet
	singles int               // pops of one partition that wait
	blocked int               // cursors with something to deliver under a lease
	loaded  bool
	strange map[int64]struct{} // partitions that grew and whose cursors are still to be read
	removed bool
}

// cursor is where a group stands in a partition.
type cursor struct {
	group *group
	part  *partition

	committed int64 // next offset to deliver
	delivered int64 // end of what was ever delivered
	attempt   int   // deliveries of [committed, delivered)
	retries   int
	leaseID   uuid.UUID // uuid.Nil means none
	leaseEnd  int64
	leaseTill time.Time
	seeks     int64 // how often it was moved by hand: what is read from before a seek counts no more
	stored    bool  // it has a row; otherwise it is where the group's subscription puts it
	hole      int64 // nothing is left in the log before it

	state    cursorState
	element  *list.Element // in group.ready
	timer    *timer
	waiters  list.List // of *waiter: pops that take from this partition alone
	notUntil time.Time // visibility rules hide what comes next until then
	batch    leasedBatch
}

type cursorState uint8

const (
	cursorIdle    cursorState = iota // nothing to deliver
	cursorReady                      // in group.ready
	cursorBusy                       // a pop is taking from it
	cursorBlocked                    // there is something, under a live lease
	cursorDelayed                    // there is something, not visible yet
)

// leasedBatch remembers the hashes of what this broker leased last, so that acks find their offsets.
type leasedBatch struct {
	from   int64
	hashes []uint64 // of the messages from `from` on; 0 where the log has a hole
	hint   int      // where the last one was found: acks come in order
}

// start is the first offset that may be there.
func (c *cursor) start() int64 { return max(c.committed, c.hole, c.part.start.Load()) }

// available is how many messages are behind the cursor.
func (c *cursor) available() int64 { return max(0, c.part.tail.Load()-c.start()) }

// timer is a moment of database time at which a cursor changes state by itself, or a held pop is served.
type timer struct {
	at     time.Time
	cursor *cursor
	waiter *waiter
	index  int
}

type timers []*timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].index, t[j].index = i, j
}

func (t *timers) Push(x any) {
	item := x.(*timer)
	item.index = len(*t)
	*t = append(*t, item)
}

func (t *timers) Pop() any {
	old := *t
	item := old[len(old)-1]
	old[len(old)-1] = nil
	*t = old[:len(old)-1]
	item.index = -1
	return item
}

// setTimer makes the cursor's state be looked at again at that time. The caller holds popper.mu.
func (p *popper) setTimer(c *cursor, at time.Time) {
	if c.timer == nil {
		c.timer = &timer{cursor: c, index: -1}
	}
	p.schedule(c.timer, at)
}

func (p *popper) schedule(t *timer, at time.Time) {
	t.at = at
	if t.index < 0 {
		heap.Push(&p.timers, t)
	} else {
		heap.Fix(&p.timers, t.index)
	}
	if p.timers[0] == t {
		p.wakeTimers()
	}
}

func (p *popper) unschedule(t *timer) {
	if t != nil && t.index >= 0 {
		heap.Remove(&p.timers, t.index)
	}
}

// place puts a cursor into the state that what is known of it asks for. The caller holds popper.mu.
func (p *popper) place(c *cursor, now time.Time) {
	if c.state == cursorBusy {
		return
	}
	state, at := c.next(now)
	if state == cursorReady && c.state == cursorReady {
		p.offer(c) // there may be more of it: a pop may be held for that
		return
	}
	p.leave(c)
	c.state = state
	switch state {
	case cursorReady:
		c.element = c.group.ready.PushBack(c)
		p.offer(c)
	case cursorBlocked:
		c.group.blocked++
		p.setTimer(c, at)
	case cursorDelayed:
		p.setTimer(c, at)
	case cursorIdle, cursorBusy:
	}
}

// offer has the pops that a ready cursor may serve looked at. The caller holds popper.mu.
func (p *popper) offer(c *cursor) {
	if c.waiters.Len() > 0 {
		p.singles[c] = struct{}{}
	}
	if c.group.waiters.Len() > 0 {
		p.activate(c.group)
	}
}

// leave takes a cursor out of the sets its state put it into.
func (p *popper) leave(c *cursor) {
	switch c.state {
	case cursorReady:
		c.group.ready.Remove(c.element)
		c.element = nil
	case cursorBlocked:
		c.group.blocked--
		p.unschedule(c.timer)
	case cursorDelayed:
		p.unschedule(c.timer)
	case cursorIdle, cursorBusy:
	}
	c.state = cursorIdle
}

// bufferRelease is how many waiting messages end a quiet-period debounce early.
const bufferRelease = 100

// next says what state the cursor should be in, and when that changes by itself.
func (c *cursor) next(now time.Time) (cursorState, time.Time) {
	available := c.available()
	if available == 0 || c.group.removed {
		return cursorIdle, time.Time{}
	}
	if c.leaseID != uuid.Nil && c.leaseTill.After(now) {
		return cursorBlocked, c.leaseTill
	}
	if c.notUntil.After(now) {
		return cursorDelayed, c.notUntil
	}
	if buffer := c.group.queue.config.Load().options.WindowBuffer; buffer > 0 && available < bufferRelease {
		if quiet := time.UnixMicro(c.part.last.Load()).Add(buffer); quiet.After(now) {
			return cursorDelayed, quiet
		}
	}
	return cursorReady, time.Time{}
}

const sqlRegisterGroup = `
with created as (
    insert into consumer_group (queue_id, name, mode, from_at, created_at)
    select q.id, $2, $3, coalesce($4::timestamptz, case when $3 = 'new' then clock_timestamp() + $5::interval end),
           clock_timestamp() + $5::interval
    from queue q where q.id = $1 and $6
    on conflict (queue_id, name) do nothing
    returning id
)
select id from created
union all
select id from consumer_group where queue_id = $1 and name = $2`

// seeding is where a group that does not exist yet begins.
type seeding struct {
	create  bool
	fromNew bool
	from    time.Time
}

// group returns the group with its cursors loaded. Without seed.create it is nil when the group does not exist.
func (e *Engine) group(ctx context.Context, q *queueState, name string, seed seeding) (*group, error) {
	if g := e.pops.group(q, name); g != nil {
		return g, nil
	}
	// All share one flight: two groups of one name in memory would each miss what the other is told. One
	// that creates the group may have joined one that does not.
	key := fmt.Sprintf("group %d %s", q.id, name)
	for range maxRaces {
		g, err := shared(ctx, &e.loads, key, func() (*group, error) {
			if g := e.pops.group(q, name); g != nil {
				return g, nil
			}
			return e.registerGroup(q, name, seed)
		})
		if err != nil || g != nil || !seed.create {
			return g, err
		}
	}
	return nil, fmt.Errorf("register a consumer group: %w", errRace)
}

// shared runs work once for all callers that want the same at the same time. It goes on when a caller leaves.
func shared[T any](ctx context.Context, flights *singleflight.Group, key string, work func() (T, error)) (T, error) {
	done := flights.DoChan(key, func() (any, error) { return work() })
	select {
	case r := <-done:
		return r.Val.(T), r.Err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// registerGroup creates the group if it is to be created, and reads its cursors.
func (e *Engine) registerGroup(q *queueState, name string, seed seeding) (*group, error) {
	mode := "all"
	var from *time.Time
	if name != ModeGroup { // queue mode never skips what is there
		if seed.fromNew {
			mode = "new"
		}
		if !seed.from.IsZero() {
			mode, from = "new", &seed.from
		}
	}
	for range maxRaces {
		g := &group{queue: q, name: name, cursors: map[int64]*cursor{}, strange: map[int64]struct{}{}}
		err := e.retrying(e.ctx, "register a consumer group", func(ctx context.Context) error {
			return e.pool.QueryRow(ctx, sqlRegisterGroup, q.id, name, mode, from, e.clockOffset(), seed.create).Scan(&g.id)
		})
		switch {
		case errors.Is(err, pgx.ErrNoRows) && !seed.create:
			return nil, nil //nolint:nilnil // absence is an ordinary answer here
		case errors.Is(err, pgx.ErrNoRows):
			if err := e.refresh(); err != nil {
				return nil, err
			}
			if q.removed.Load() {
				return nil, ErrQueueNotFound
			}
			continue
		case err != nil:
			return nil, err
		}
		err = e.loadGroup(e.ctx, g)
		if errors.Is(err, errGroupGone) {
			continue // it was deleted in between
		}
		return g, err
	}
	return nil, fmt.Errorf("register a consumer group: %w", errRace)
}

// sqlFirstSince is the offset of the first message of partition p that was created at or after a time, its
// end if there is none. The times of a partition never go back, so the log is searched by halves.
func sqlFirstSince(at string) string {
	return `(
    with recursive search (low, high) as (
        select 0::bigint, coalesce((select base + count from segment where partition_id = p.id order by base desc limit 1), 0)
        union all
        select case when s.created_at >= ` + at + ` then k.low else greatest(coalesce(s.past, 0), (k.low + k.high) / 2 + 1) end,
               case when s.created_at >= ` + at + ` then s.base else k.high end
        from search k
        left join lateral (
            select base, base + count as past, created_at from segment
            where partition_id = p.id and base <= (k.low + k.high) / 2 order by base desc limit 1
        ) s on true
        where k.low < k.high
    )
    select low from search where low >= high
)`
}

// A cursor that does not exist yet begins after the messages that its group does not want.
var sqlLoadCursors = `
select g.version, g.from_at, coalesce(p.id, 0), coalesce(p.uuid, '00000000-0000-0000-0000-000000000000'), g.queue_id,
       coalesce(p.name, ''), coalesce(p.shard, 0), coalesce(p.created_at, to_timestamp(0)),
       coalesce(t.tail, 0), coalesce(t.last_at, to_timestamp(0)), coalesce(p.log_start, 0),
       c.partition_id is not null, coalesce(c.seeks, 0),
       coalesce(c.committed, case when g.from_at is not null then ` + sqlFirstSince("g.from_at") + ` end, 0),
       coalesce(c.delivered, 0), coalesce(c.attempt, 0), coalesce(c.retries, 0),
       c.lease_id, coalesce(c.lease_end, 0), coalesce(c.lease_until, to_timestamp(0))
from consumer_group g
left join partition p on p.queue_id = g.queue_id and ($2::bigint[] is null or p.id = any ($2))
left join lateral (
    select base + count as tail, created_at as last_at from segment
    where partition_id = p.id order by base desc limit 1
) t on true
left join cursor c on c.partition_id = p.id and c.group_id = g.id
where g.id = $1`

// errGroupGone says that a consumer group was deleted.
var errGroupGone = errors.New("the consumer group was deleted")

// loadGroup publishes a group and reads its cursors. It is published first, so that appends while
// it is being read are not missed: what is known of a partition's tail only grows.
func (e *Engine) loadGroup(ctx context.Context, g *group) error {
	e.pops.publish(g)
	if err := e.loadCursors(ctx, g, nil); err != nil {
		e.pops.unpublish(g)
		return err
	}
	return nil
}

// subscription is what a group's row says of where its cursors begin.
type subscription struct {
	version int64
	from    time.Time
}

// loadedCursor is a cursor as it was read, with its partition.
type loadedCursor struct {
	part *partition
	row  cursorRow
}

// loadCursors reads the cursors of some partitions of a queue for a group, or of all with nil. A group
// that was deleted is forgotten, and errGroupGone.
func (e *Engine) loadCursors(ctx context.Context, g *group, partitions []int64) error {
	loaded, sub, err := e.readGroup(ctx, g, partitions)
	if err != nil {
		return err
	}
	if sub == nil {
		e.pops.groupRemoved(g)
		return errGroupGone
	}
	if e.pops.loaded(g, partitions, loaded, sub) {
		return nil
	}
	return e.loadCursors(ctx, g, nil) // its subscription has changed, which concerns all cursors
}

// readGroup reads cursors of a group with its subscription, nil when the group is no more.
func (e *Engine) readGroup(ctx context.Context, g *group, partitions []int64) (loaded []loadedCursor, sub *subscription, err error) {
	err = e.retrying(ctx, "read the cursors of a consumer group", func(ctx context.Context) error {
		loaded, sub = nil, nil
		rows, err := e.pool.Query(ctx, sqlLoadCursors, g.id, partitions)
		if err != nil {
			return err
		}
		var version, tail, start int64
		var from *time.Time
		var pr partitionRow
		var last time.Time
		var cr cursorRow
		fields := append([]any{&version, &from}, pr.fields()...)
		fields = append(fields, &tail, &last, &start, &cr.stored, &cr.seeks)
		_, err = pgx.ForEachRow(rows, append(fields, cr.fields()...), func() error {
			if sub == nil {
				sub = &subscription{version: version}
				if from != nil {
					sub.from = *from
				}
			}
			if pr.id == 0 {
				return nil // no partition
			}
			p := e.learnPartition(&pr)
			if p == nil {
				return nil
			}
			p.grow(tail, last)
			growTo(&p.start, start)
			loaded = append(loaded, loadedCursor{p, cr})
			cr.leaseID = nil
			return nil
		})
		return err
	})
	return loaded, sub, err
}

// loaded takes what was read of a group into memory. It is false when the subscription is not the known
// one, unless it is newer and all cursors were read.
func (p *popper) loaded(g *group, partitions []int64, loaded []loadedCursor, sub *subscription) bool {
	now := p.engine.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := sub.version > g.version
	if sub.version < g.version || changed && g.loaded && partitions != nil {
		return false
	}
	if changed || !g.loaded {
		g.version, g.from = sub.version, sub.from
	}
	for i := range loaded {
		row := &loaded[i].row
		c := g.cursors[loaded[i].part.id]
		if c == nil {
			c = &cursor{group: g, part: loaded[i].part}
			g.cursors[c.part.id] = c
			c.learn(row)
		} else if row.seeks > c.seeks || changed && !c.stored {
			c.learn(row)
		}
		p.place(c, now)
		p.findLost(g, c.part, c)
		delete(g.strange, c.part.id)
	}
	if partitions == nil {
		g.loaded = true
		if len(g.strange) > 0 { // created while the group was read
			p.adopt(g, slices.Collect(maps.Keys(g.strange)))
		}
	}
	p.kick()
	return true
}

// cursorRow is what a cursor row says.
type cursorRow struct {
	stored    bool // there is a row
	seeks     int64
	committed int64
	delivered int64
	attempt   int
	retries   int
	leaseID   *uuid.UUID
	leaseEnd  int64
	leaseTill time.Time
}

func (r *cursorRow) fields() []any {
	return []any{&r.committed, &r.delivered, &r.attempt, &r.retries, &r.leaseID, &r.leaseEnd, &r.leaseTill}
}

// learn replaces what is known of a cursor, unless that is from after a later seek. The caller holds popper.mu.
func (c *cursor) learn(r *cursorRow) {
	if r.seeks < c.seeks {
		return
	}
	if r.seeks > c.seeks {
		c.seeks, c.hole, c.notUntil = r.seeks, 0, time.Time{}
	}
	c.stored = r.stored
	c.committed, c.delivered, c.attempt, c.retries = r.committed, r.delivered, r.attempt, r.retries
	c.leaseID, c.leaseEnd, c.leaseTill = uuid.Nil, r.leaseEnd, r.leaseTill
	if r.leaseID != nil {
		c.leaseID = *r.leaseID
	}
}

const sqlReadCursors = `
select w.partition_id, w.group_id, coalesce(g.version, -1), c.partition_id is not null, coalesce(c.seeks, 0),
       coalesce(c.committed, 0), coalesce(c.delivered, 0), coalesce(c.attempt, 0), coalesce(c.retries, 0),
       c.lease_id, coalesce(c.lease_end, 0), coalesce(c.lease_until, to_timestamp(0)),
       clock_timestamp() + $3::interval
from unnest($1::bigint[], $2::bigint[]) as w (partition_id, group_id)
left join consumer_group g on g.id = w.group_id
left join cursor c on c.partition_id = w.partition_id and c.group_id = w.group_id and g.id is not null`

type cursorKey struct{ partitionID, groupID int64 }

func (c *cursor) key() cursorKey { return cursorKey{c.part.id, c.group.id} }

// readCursors asks for the truth about cursors and makes it known. It returns the rows that exist. Groups
// that were deleted or whose subscription has changed are read anew.
func (e *Engine) readCursors(ctx context.Context, cursors []*cursor) (map[cursorKey]cursorRow, error) {
	partitions := make([]int64, len(cursors))
	groups := make([]int64, len(cursors))
	for i, c := range cursors {
		partitions[i], groups[i] = c.part.id, c.group.id
	}
	var found map[cursorKey]cursorRow
	var versions map[int64]int64 // by group; -1 for one that is no more
	err := e.retrying(ctx, "read cursors", func(ctx context.Context) error {
		found = make(map[cursorKey]cursorRow, len(cursors))
		versions = map[int64]int64{}
		rows, err := e.pool.Query(ctx, sqlReadCursors, partitions, groups, e.clockOffset())
		if err != nil {
			return err
		}
		var key cursorKey
		var version int64
		var row cursorRow
		var now time.Time
		fields := append([]any{&key.partitionID, &key.groupID, &version, &row.stored, &row.seeks}, row.fields()...)
		_, err = pgx.ForEachRow(rows, append(fields, &now), func() error {
			versions[key.groupID] = version
			if row.stored {
				found[key] = row
			}
			row.leaseID = nil
			e.clock.Observe(now)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, g := range e.pops.learned(cursors, found, versions) {
		if err := e.loadCursors(ctx, g, nil); err != nil && !errors.Is(err, errGroupGone) {
			return nil, err
		}
	}
	return found, nil
}

// learned takes what was read of cursors into memory, and returns the groups that changed.
func (p *popper) learned(cursors []*cursor, found map[cursorKey]cursorRow, versions map[int64]int64) (changed []*group) {
	now := p.engine.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range cursors {
		if row, ok := found[c.key()]; ok {
			c.learn(&row)
			p.place(c, now)
		}
		if v := versions[c.group.id]; (v < 0 || v > c.group.version) && !c.group.removed && !slices.Contains(changed, c.group) {
			changed = append(changed, c.group)
		}
	}
	p.kick()
	return changed
}
