package queue

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MessageStatus is what consumers have done with a stored message, spelled as on the wire.
type MessageStatus string

// The statuses of a stored message. The first that holds counts, in the order dead letter, processing, completed, pending.
const (
	StatusPending    MessageStatus = "pending"     // some group has still to pass it, or there is none
	StatusProcessing MessageStatus = "processing"  // under a live lease of some group
	StatusCompleted  MessageStatus = "completed"   // every group has passed it
	StatusDeadLetter MessageStatus = "dead_letter" // some group has filed it
)

// MessageFilter chooses stored messages. The zero value of each field means any.
type MessageFilter struct {
	Queue, Partition, Namespace, Task string
	Status                            MessageStatus
	From, To                          time.Time // of their creation, both inclusive

	Limit  int // most messages of the page; at least 1
	Offset int
}

// StoredMessage is a message as it lies in the log, or among the dead letters.
type StoredMessage struct {
	Message
	PartitionID                       uuid.UUID
	Queue, Partition, Namespace, Task string
	Status                            MessageStatus
	LeaseUntil                        time.Time // end of the last live lease on it; zero means none
	Sealed                            bool      // stored encrypted; one that cannot be decrypted is shown as it is stored
}

// MessagePage is one page of stored messages.
type MessagePage struct {
	Messages  []StoredMessage
	QueueMode bool // one of the queues that the filter covers has ModeGroup
	Groups    int  // other groups of them, by name
}

// ErrTooBroad says that a filter covers more partitions than one call looks at.
var ErrTooBroad = errors.New("the filters cover too many partitions")

const (
	// scopeMax is how many partitions one listing looks at: a probe of the segments' index for each.
	scopeMax = 100_000
	// pageMaxBytes bounds the payloads of a page, unless a single one is larger. The wire shows each twice.
	pageMaxBytes = 32 << 20
	// A merge reads the segments of so many runs at a time, and so many of each.
	refillRuns     = 64
	refillSegments = 256
)

// Messages lists stored messages, newest first: by creation, then by partition, then from the end of the partition.
//
// It looks at the newest segment of every partition that the filter covers and merges from there, so that its work
// grows with partitions and with the page, not with messages. A status is an interval of offsets between cursors; only
// what is already a dead letter is left out one by one.
func (e *Engine) Messages(ctx context.Context, f MessageFilter) (MessagePage, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	page := MessagePage{Messages: []StoredMessage{}}
	err := e.retrying(ctx, "count consumer groups", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlScopeGroups, f.Queue, f.Namespace, f.Task, ModeGroup).Scan(&page.QueueMode, &page.Groups)
	})
	if err != nil {
		return page, err
	}
	if f.Status == StatusDeadLetter {
		page.Messages, err = e.deadMessages(ctx, f)
		return page, err
	}
	l := &lister{engine: e, filter: f, skip: f.Offset}
	if err := l.open(ctx); err != nil {
		return page, err
	}
	spots, err := l.page(ctx)
	if err != nil {
		return page, err
	}
	page.Messages, err = e.readSpots(ctx, spots)
	return page, err
}

const sqlScopeGroups = `
select coalesce(bool_or(g.name = $4), false), count(distinct g.name) filter (where g.name <> $4)
from queue q join consumer_group g on g.queue_id = q.id
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)`

const sqlScope = `
select p.id
from queue q join partition p on p.queue_id = q.id
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3) and ($4 = '' or p.name = $4)
limit $5`

// covered returns the partitions that a filter covers.
func (e *Engine) covered(ctx context.Context, f *MessageFilter) (ids []int64, err error) {
	err = e.retrying(ctx, "find partitions", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlScope, f.Queue, f.Namespace, f.Task, f.Partition, scopeMax+1) // its error comes with the rows
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err == nil && len(ids) > scopeMax {
		err = ErrTooBroad
	}
	return ids, err
}

// run is an interval of offsets of one partition that is read from its end. Runs are merged.
type run struct {
	partitionID int64
	lo, hi      int64  // what is still wanted: [lo, hi)
	pieces      []span // the end of it, newest first, as far as it was read
	more        bool   // there may be more below the pieces
}

// span is the wanted part of a segment.
type span struct {
	partitionID int64
	base        int64 // of the segment
	first, past int64
	created     time.Time
	bytes       int64 // of the whole segment
}

func (s *span) before(o *span) bool {
	switch {
	case !s.created.Equal(o.created):
		return s.created.After(o.created)
	case s.partitionID != o.partitionID:
		return s.partitionID > o.partitionID
	}
	return s.past > o.past
}

// runs is a heap of runs that have a piece: the newest first.
type runs []*run

func (r runs) Len() int           { return len(r) }
func (r runs) Less(i, j int) bool { return r[i].pieces[0].before(&r[j].pieces[0]) }
func (r runs) Swap(i, j int)      { r[i], r[j] = r[j], r[i] }
func (r *runs) Push(x any)        { *r = append(*r, x.(*run)) }
func (r *runs) Pop() any {
	old := *r
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return last
}

// lister merges the runs of one listing.
type lister struct {
	engine *Engine
	filter MessageFilter
	heap   runs
	skip   int
}

// open finds the runs and the newest piece of each.
func (l *lister) open(ctx context.Context) error {
	e := l.engine
	ids, err := e.covered(ctx, &l.filter)
	if err != nil || len(ids) == 0 {
		return err
	}
	all, err := l.wanted(ctx, ids)
	if err != nil {
		return err
	}
	if err := l.refill(ctx, all, 1); err != nil {
		return err
	}
	if err := l.cutToTime(ctx, all); err != nil {
		return err
	}
	for _, r := range all {
		if len(r.pieces) > 0 {
			r.hi = r.pieces[0].past // what is appended from now on is not looked at
			l.heap = append(l.heap, r)
		}
	}
	heap.Init(&l.heap)
	return nil
}

// endless is past every offset.
const endless = int64(1) << 62

// wanted returns the intervals of offsets whose messages have the status.
func (l *lister) wanted(ctx context.Context, ids []int64) ([]*run, error) {
	all := make([]*run, 0, len(ids))
	if l.filter.Status == "" {
		for _, id := range ids {
			all = append(all, &run{partitionID: id, hi: endless})
		}
		return all, nil
	}
	positions, err := l.engine.positions(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		for _, iv := range positions[id].intervals(l.filter.Status) {
			all = append(all, &run{partitionID: id, lo: iv.lo, hi: iv.hi})
		}
	}
	return all, nil
}

const sqlRunSegments = `
select w.i, g.base, g.count, g.created_at, g.bytes, g.frames is null
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as w (i, partition_id, hi)
cross join lateral (
    select * from segment where partition_id = w.partition_id and base < w.hi order by base desc limit $4
) g
order by w.i, g.base desc`

// refill reads the next pieces of runs, at most so many segments of each. What retention emptied lies before what it
// did not: a run ends there.
func (l *lister) refill(ctx context.Context, list []*run, segments int) error {
	e := l.engine
	index, partitions, his := make([]int32, len(list)), make([]int64, len(list)), make([]int64, len(list))
	for i, r := range list {
		index[i], partitions[i], his[i] = int32(i), r.partitionID, r.hi
	}
	return e.retrying(ctx, "list segments", func(ctx context.Context) error {
		for _, r := range list {
			r.pieces, r.more = nil, false
		}
		rows, _ := e.pool.Query(ctx, sqlRunSegments, index, partitions, his, segments) // its error comes with the rows
		var i int
		var base, count, bytes int64
		var created time.Time
		var erased bool
		seen := 0
		last := -1
		_, err := pgx.ForEachRow(rows, []any{&i, &base, &count, &created, &bytes, &erased}, func() error {
			if i != last {
				last, seen = i, 0
			}
			seen++
			r := list[i]
			if erased || base+count <= r.lo || created.Before(l.filter.From) {
				r.more = false
				seen = -segments // what follows is older still
				return nil
			}
			if seen <= 0 {
				return nil
			}
			r.pieces = append(r.pieces, span{
				partitionID: r.partitionID, base: base, first: max(base, r.lo), past: min(base+count, r.hi), created: created, bytes: bytes,
			})
			r.more = seen == segments && base > r.lo
			return nil
		})
		return err
	})
}

// endBefore is the end of the log of partition w.partition_id as it was at w.before: the offset past the last message
// created earlier. Times never go back within a partition, so it halves: a few probes of the index, however long the log.
const endBefore = `(
    with recursive halves (lo, hi) as (
        select 0::bigint, coalesce((
            select base + count from segment where partition_id = w.partition_id order by base desc limit 1
        ), 0)
        union all
        select case when s.base is null then m.mid + 1
                    when s.created_at < w.before then greatest(s.base + s.count, m.mid + 1)
                    else h.lo end,
               case when s.created_at >= w.before then s.base else h.hi end
        from halves h
        cross join lateral (select (h.lo + h.hi) / 2 as mid) m
        left join lateral (
            select base, count, created_at from segment
            where partition_id = w.partition_id and base <= m.mid and base >= h.lo order by base desc limit 1
        ) s on true
        where h.lo < h.hi
    )
    select max(lo) from halves
)`

const sqlEndBefore = `
select w.i, ` + endBefore + `
from unnest($1::integer[], $2::bigint[]) as l (i, partition_id)
cross join lateral (select l.i, l.partition_id, $3::timestamptz as before) w`

// cutToTime makes runs that reach past the end of the wanted time end there.
func (l *lister) cutToTime(ctx context.Context, all []*run) error {
	if l.filter.To.IsZero() {
		return nil
	}
	before := l.filter.To.Truncate(time.Microsecond).Add(time.Microsecond)
	var late []*run
	var index []int32
	var partitions []int64
	for _, r := range all {
		if len(r.pieces) > 0 && !r.pieces[0].created.Before(before) {
			index, partitions = append(index, int32(len(late))), append(partitions, r.partitionID)
			late = append(late, r)
		}
	}
	if len(late) == 0 {
		return nil
	}
	err := l.engine.retrying(ctx, "find the end of a time", func(ctx context.Context) error {
		rows, _ := l.engine.pool.Query(ctx, sqlEndBefore, index, partitions, before) // its error comes with the rows
		var i int
		var end int64
		_, err := pgx.ForEachRow(rows, []any{&i, &end}, func() error {
			late[i].hi = min(late[i].hi, end)
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	return l.refill(ctx, late, 1)
}

// next takes spans of n messages together off the merge, newest first; fewer when there are no more.
func (l *lister) next(ctx context.Context, n int) ([]span, error) {
	var taken []span
	for n > 0 && len(l.heap) > 0 {
		r := l.heap[0]
		s := r.pieces[0]
		taken = append(taken, s)
		n -= int(s.past - s.first)
		r.pieces, r.hi = r.pieces[1:], s.first
		if len(r.pieces) == 0 && r.more {
			if err := l.refillTop(ctx, n); err != nil {
				return nil, err
			}
		}
		if len(r.pieces) == 0 {
			heap.Pop(&l.heap)
		} else {
			heap.Fix(&l.heap, 0)
		}
	}
	return taken, nil
}

// refillTop reads on for the run at the top, and for others that have little left: they are likely to be next.
func (l *lister) refillTop(ctx context.Context, n int) error {
	list := []*run{l.heap[0]}
	for _, r := range l.heap[1:] { // the front of a heap holds its smallest, roughly
		if len(list) == refillRuns {
			break
		}
		if r.more && len(r.pieces) == 1 {
			list = append(list, r)
		}
	}
	return l.refill(ctx, list, min(max(n, 2), refillSegments))
}

// page returns where the messages of the page are.
func (l *lister) page(ctx context.Context) ([]spot, error) {
	var spots []spot
	var bytes int64
	for len(spots) < l.filter.Limit {
		spans, err := l.next(ctx, l.skip+l.filter.Limit-len(spots))
		if err != nil || len(spans) == 0 {
			return spots, err
		}
		dead, err := l.deadIn(ctx, spans)
		if err != nil {
			return nil, err
		}
		for i := range spans {
			s := &spans[i]
			if l.skip == 0 || l.skip < int(s.past-s.first) {
				if bytes += s.bytes; bytes > pageMaxBytes && len(spots) > 0 {
					return spots, nil
				}
			}
			for offset := s.past - 1; offset >= s.first && len(spots) < l.filter.Limit; offset-- {
				if _, ok := dead[offsetKey{s.partitionID, offset}]; ok {
					continue
				}
				if l.skip > 0 {
					l.skip--
					continue
				}
				spots = append(spots, spot{partitionID: s.partitionID, base: s.base, offset: offset})
			}
		}
	}
	return spots, nil
}

// deadIn returns which messages of the spans are dead letters, if that makes them not wanted.
func (l *lister) deadIn(ctx context.Context, spans []span) (map[offsetKey]struct{}, error) {
	if l.filter.Status == "" {
		return nil, nil //nolint:nilnil // none is an ordinary answer
	}
	partitions, lows, highs := make([]int64, len(spans)), make([]int64, len(spans)), make([]int64, len(spans))
	for i, s := range spans {
		partitions[i], lows[i], highs[i] = s.partitionID, s.first, s.past
	}
	return l.engine.deadOffsets(ctx, partitions, lows, highs)
}

type offsetKey struct{ partitionID, offset int64 }

const sqlDeadOffsets = `
select d.partition_id, d.log_offset
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as w (partition_id, lo, hi)
join dead_letter d on d.partition_id = w.partition_id and d.log_offset >= w.lo and d.log_offset < w.hi`

// deadOffsets returns which offsets of intervals [lo, hi) have a dead letter.
func (e *Engine) deadOffsets(ctx context.Context, partitions, lows, highs []int64) (map[offsetKey]struct{}, error) {
	var dead map[offsetKey]struct{}
	err := e.retrying(ctx, "find dead letters", func(ctx context.Context) error {
		dead = map[offsetKey]struct{}{}
		rows, _ := e.pool.Query(ctx, sqlDeadOffsets, partitions, lows, highs) // its error comes with the rows
		var key offsetKey
		_, err := pgx.ForEachRow(rows, []any{&key.partitionID, &key.offset}, func() error {
			dead[key] = struct{}{}
			return nil
		})
		return err
	})
	return dead, err
}

// spot is where a message is stored.
type spot struct {
	partitionID int64
	base        int64 // of its segment
	offset      int64
}

// readSpots reads messages and what consumers have done with them. One that went in between is left out.
func (e *Engine) readSpots(ctx context.Context, spots []spot) ([]StoredMessage, error) {
	found := make([]StoredMessage, 0, len(spots))
	if len(spots) == 0 {
		return found, nil
	}
	ids, offsets := make([]int64, len(spots)), make([]int64, len(spots))
	past := make([]int64, len(spots))
	for i, at := range spots {
		ids[i], offsets[i], past[i] = at.partitionID, at.offset, at.offset+1
	}
	segments, err := e.segmentsOf(ctx, spots)
	if err != nil {
		return nil, err
	}
	lanes, err := e.lanes(ctx, ids)
	if err != nil {
		return nil, err
	}
	positions, err := e.positions(ctx, ids)
	if err != nil {
		return nil, err
	}
	dead, err := e.deadOffsets(ctx, ids, offsets, past)
	if err != nil {
		return nil, err
	}
	bytes := 0
	for _, at := range spots {
		s, lane := segments[offsetKey{at.partitionID, at.base}], lanes[at.partitionID]
		if s == nil || lane == nil || at.offset >= s.end() {
			continue
		}
		m, sealed, err := e.message(s, at.offset, lane.queue, lane.name)
		if err != nil {
			return nil, err
		}
		if bytes += len(m.Payload); bytes > pageMaxBytes && len(found) > 0 {
			break
		}
		sm := StoredMessage{
			Message: m, Sealed: sealed, PartitionID: lane.id, Queue: lane.queue, Partition: lane.name, Namespace: lane.namespace, Task: lane.task,
		}
		_, isDead := dead[offsetKey{at.partitionID, at.offset}]
		sm.Status, sm.LeaseUntil = positions[at.partitionID].status(at.offset, isDead)
		found = append(found, sm)
	}
	return found, nil
}

// message decodes one message of a segment, to be looked at. sealed says whether it is stored encrypted.
func (e *Engine) message(s *segment, offset int64, queue, partition string) (m Message, sealed bool, err error) {
	f, err := s.frame(offset)
	if err != nil {
		return m, false, err
	}
	payload, err := e.shown(queue, partition, f.id, f.sealed, f.payload)
	return Message{
		ID: f.id, TransactionID: f.transactionID(), TraceID: f.trace, ProducerSub: string(f.sub),
		CreatedAt: s.created, DeliveryAttempt: 1, Payload: payload,
	}, f.sealed, err
}

const sqlSegmentsAt = `
select ` + segmentColumns + `
from unnest($1::bigint[], $2::bigint[]) as w (partition_id, base)
join segment g on g.partition_id = w.partition_id and g.base = w.base
where g.frames is not null`

// segmentsOf reads the segments that spots are in, by partition and base. They do not go into the cache, which is for
// what consumers are about to read.
func (e *Engine) segmentsOf(ctx context.Context, spots []spot) (map[offsetKey]*segment, error) {
	found := map[offsetKey]*segment{}
	var partitions, bases []int64
	for _, at := range spots {
		key := offsetKey{at.partitionID, at.base}
		if _, asked := found[key]; asked {
			continue
		}
		found[key] = e.segments.get(at.partitionID, at.base)
		if found[key] == nil {
			partitions, bases = append(partitions, at.partitionID), append(bases, at.base)
		}
	}
	if len(partitions) == 0 {
		return found, nil
	}
	err := e.retrying(ctx, "read messages", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlSegmentsAt, partitions, bases) // its error comes with the rows
		var row segmentRow
		_, err := pgx.ForEachRow(rows, row.fields(), func() error {
			s, err := unpack(&row)
			if err != nil {
				return err
			}
			found[offsetKey{row.partitionID, row.base}] = s
			row.hashes, row.frames = nil, nil
			return nil
		})
		return err
	})
	return found, err
}

// laneNames are the names that a partition goes by.
type laneNames struct {
	id                           uuid.UUID
	name, queue, namespace, task string
	options                      []byte
}

const sqlLanes = `
select p.id, p.uuid, p.name, q.name, q.namespace, q.task, q.options
from partition p join queue q on q.id = p.queue_id
where p.id = any ($1)`

func (e *Engine) lanes(ctx context.Context, ids []int64) (map[int64]*laneNames, error) {
	var found map[int64]*laneNames
	err := e.retrying(ctx, "read partitions", func(ctx context.Context) error {
		found = map[int64]*laneNames{}
		rows, _ := e.pool.Query(ctx, sqlLanes, distinct(ids)) // its error comes with the rows
		var id int64
		var n laneNames
		_, err := pgx.ForEachRow(rows, []any{&id, &n.id, &n.name, &n.queue, &n.namespace, &n.task, &n.options}, func() error {
			names := n
			found[id], n.options = &names, nil
			return nil
		})
		return err
	})
	return found, err
}

func distinct(ids []int64) []int64 {
	seen := make(map[int64]struct{}, len(ids))
	var list []int64
	for _, id := range ids {
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			list = append(list, id)
		}
	}
	return list
}
