package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// A lease id is a UUIDv8. When the lease covers one partition, its first 48 bits are the
// partition's row id, so that an extension finds the cursor without an index on a column that
// every pop changes. They are zero when it covers several: those stand in the lease table.
func newLeaseID(partitionID int64) (uuid.UUID, error) {
	var id uuid.UUID
	if _, err := rand.Read(id[:]); err != nil {
		return id, fmt.Errorf("mint a lease id: %w", err)
	}
	var row [8]byte
	binary.BigEndian.PutUint64(row[:], uint64(partitionID))
	copy(id[:6], row[2:])
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // RFC 9562 variant
	return id, nil
}

// leasePartition is the partition a lease id names, 0 when the lease covers several.
func leasePartition(id uuid.UUID) int64 {
	var row [8]byte
	copy(row[2:], id[:6])
	return int64(binary.BigEndian.Uint64(row[:]))
}

// claim serves a round of pops: it reads what they would get, claims it, and answers them.
func (e *Engine) claim(round []*serving) {
	err := e.claimRound(e.ctx, round)
	e.pops.mu.Lock()
	for _, s := range round {
		for _, t := range s.takes {
			t.cursor.state = cursorIdle // until finish places it
			if t.claimed {
				t.cursor.claimed(s, t, t.seeks)
			}
		}
	}
	e.pops.mu.Unlock()
	if err == nil {
		err = e.learnMissed(e.ctx, round)
	}
	for _, s := range round {
		e.traffic.claimed(s)
		s.outcome = e.outcome(s, err)
	}
	e.pops.finish(round)
}

func (e *Engine) claimRound(ctx context.Context, round []*serving) error {
	if err := e.readTakes(ctx, round); err != nil {
		return err
	}
	now := e.clock.Now()
	for _, s := range round {
		if err := s.cut(now); err != nil {
			return err
		}
	}
	if err := e.learnStarts(ctx, holes(round)); err != nil { // how far the hole reaches
		return err
	}
	if err := e.unsealRound(round); err != nil {
		return err
	}
	return e.sendClaims(ctx, round)
}

// holes lists the partitions of the takes that found nothing where they began.
func holes(round []*serving) (partitions []int64) {
	for _, s := range round {
		for _, t := range s.takes {
			if t.hole && t.past > t.from {
				partitions = append(partitions, t.cursor.part.id)
			}
		}
	}
	return partitions
}

// claimed takes a successful claim into memory, unless a seek came after it. The caller holds popper.mu.
func (c *cursor) claimed(s *serving, t *take, seeks int64) {
	if seeks < c.seeks {
		return
	}
	c.seeks, c.stored = seeks, true
	c.attempt, c.delivered = t.attempt, max(c.delivered, t.to)
	if s.waiter.request.AutoAck {
		c.committed, c.retries = t.to, 0
		c.leaseID, c.leaseTill = uuid.Nil, time.Time{}
		return
	}
	c.leaseID, c.leaseEnd, c.leaseTill = s.lease, t.to, t.leaseTill
	c.batch = leasedBatch{from: t.from, hashes: t.hashes()}
}

// hashes returns the hashes of what a take covers, by offset.
func (t *take) hashes() []uint64 {
	hashes := make([]uint64, t.to-t.from)
	for _, s := range t.segments {
		for offset := max(s.base, t.from); offset < min(s.end(), t.to); offset++ {
			hashes[offset-t.from] = hashAt(s.hashes, int(offset-s.base))
		}
	}
	return hashes
}

// What is read for one pop and for one round is bounded by the running sum of the frames' sizes; the
// first segment of each is always read.
const sqlReadSegments = `
select i, partition_id, base, count, created_at, bytes, format, hashes, frames
from (
    select w.i, g.*, sum(g.bytes) over (partition by w.pop order by w.i, g.base) - g.bytes as before_in_pop,
           sum(g.bytes) over (order by w.i, g.base) - g.bytes as before_in_round
    from unnest($1::integer[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[]) as w (i, pop, partition_id, first, past)
    cross join lateral (
        select * from segment
        where partition_id = w.partition_id and base < w.past and frames is not null
          and base >= coalesce((
              select x.base from segment x
              where x.partition_id = w.partition_id and x.base <= w.first order by x.base desc limit 1
          ), 0)
        order by base limit $6
    ) g
) r
where before_in_pop < $7 and before_in_round < $8
order by i, base`

const (
	// readMax is how many segments one take reads at most: enough for any batch of small segments.
	readMax = 1000
	// popMaxBytes bounds the messages of one answer, unless a single one is larger: as much as a push may bring.
	popMaxBytes = 64 << 20
	// roundMaxBytes bounds what is read at once for the pops that are served together.
	roundMaxBytes = 256 << 20
)

// readTakes finds the segments of each take, in the cache or in the database.
func (e *Engine) readTakes(ctx context.Context, round []*serving) error {
	var cold []*take
	for pop, s := range round {
		for _, t := range s.takes {
			t.pop = pop
			t.segments = e.segments.run(t.cursor.part.id, t.from, t.to)
			if t.covered() < t.to {
				cold = append(cold, t)
			}
		}
	}
	if len(cold) == 0 {
		return nil
	}
	return e.retrying(ctx, "read messages", func(ctx context.Context) error { return e.readCold(ctx, cold) })
}

// covered is the end of what the take's segments cover without a hole.
func (t *take) covered() int64 {
	if n := len(t.segments); n > 0 {
		return t.segments[n-1].end()
	}
	return t.from
}

func (e *Engine) readCold(ctx context.Context, cold []*take) error {
	index, pops := make([]int32, len(cold)), make([]int32, len(cold))
	partitions, first, past := make([]int64, len(cold)), make([]int64, len(cold)), make([]int64, len(cold))
	cached := make([]int, len(cold))
	for i, t := range cold {
		index[i], pops[i], partitions[i], first[i], past[i] = int32(i), int32(t.pop), t.cursor.part.id, t.covered(), t.to
		cached[i] = len(t.segments)
	}
	read := make([][]*segment, len(cold))
	bytes := map[int]int64{} // by pop
	var total int64
	rows, _ := e.pool.Query(ctx, sqlReadSegments, index, pops, partitions, first, past, readMax, popMaxBytes, roundMaxBytes) // its error comes with the rows
	var i int
	var row segmentRow
	_, err := pgx.ForEachRow(rows, append([]any{&i}, row.fields()...), func() error {
		s, err := unpack(&row)
		if err != nil {
			return err
		}
		total += int64(len(s.frames))
		bytes[cold[i].pop] += int64(len(s.frames))
		if s.end() > first[i] {
			read[i] = append(read[i], s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, t := range cold {
		t.segments = append(t.segments[:cached[i]], read[i]...)
		t.cutShort = len(read[i]) >= readMax-1 || total >= roundMaxBytes || bytes[t.pop] >= popMaxBytes
		e.segments.add(read[i]...)
	}
	e.metrics.coldReads.Add(float64(len(cold)))
	return nil
}

// cut narrows each take to the messages that are there and visible, and the whole to what one answer may hold.
func (s *serving) cut(now time.Time) (err error) {
	room := budget{messages: int64(s.waiter.request.Batch), bytes: popMaxBytes}
	for _, t := range s.takes {
		t.cut(&room, now)
	}
	lease := int64(0)
	if len(s.takes) == 1 {
		lease = s.takes[0].cursor.part.id
	}
	s.lease, err = newLeaseID(lease)
	return err
}

// budget is what a pop may still get.
type budget struct {
	messages int64
	bytes    int64
	taken    bool // one message is always given, however large
}

// spend takes messages of a segment from an offset on, and returns past which.
func (b *budget) spend(s *segment, from, to int64) int64 {
	to = min(to, from+b.messages)
	n := sort.Search(int(to-from), func(i int) bool { return s.size(from, from+int64(i)+1) > b.bytes })
	if n == 0 && !b.taken && to > from {
		n = 1
	}
	if past := from + int64(n); past < to {
		to, b.bytes = past, 0
	} else {
		b.bytes -= s.size(from, to)
	}
	b.messages -= to - from
	b.taken = b.taken || to > from
	return to
}

func (t *take) cut(room *budget, now time.Time) {
	delay := t.cursor.group.queue.config.Load().options.DelayedProcessing
	from, wanted := t.from, t.to
	t.past, t.to = wanted, t.from
	for _, seg := range t.segments {
		if room.messages <= 0 || room.bytes <= 0 {
			return
		}
		if visible := seg.created.Add(delay); visible.After(now) {
			t.hiddenUntil = visible
			return
		}
		first, limit := max(seg.base, from), min(seg.end(), wanted)
		if first >= limit {
			continue
		}
		past := room.spend(seg, first, limit)
		if past == first {
			return
		}
		if t.count == 0 {
			t.from = first
		}
		t.count += int(past - first)
		t.to = past
		if past < limit {
			return
		}
	}
	t.hole = t.count == 0 && !t.cutShort
}

// A claim takes a cursor that is where the broker knows it and not under a live lease, and no message that
// retention has removed, whatever the broker has in memory. Each row
// is locked before its condition and the lease's time are evaluated; rows are taken in order, so
// that two brokers never wait for each other in a circle. For an automatic ack lease_end carries
// the known offset, since committed is already the new one. A group that was deleted, or whose subscription
// is not as known, claims nothing.
const sqlClaim = `
insert into cursor as c (partition_id, group_id, committed, delivered, attempt, retries, lease_id, lease_end, lease_until, updated_at)
select w.partition_id, w.group_id,
       case when w.auto then w.past else w.known end, w.past, 1, 0,
       case when not w.auto then w.lease_id end,
       case when w.auto then w.known else w.past end,
       case when not w.auto then clock_timestamp() + $8::interval + w.lease end,
       clock_timestamp() + $8::interval
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::uuid[], $6::interval[], $7::boolean[], $10::bigint[], $11::bigint[])
     as w (partition_id, group_id, known, past, lease_id, lease, auto, version, first)
join consumer_group g on g.id = w.group_id and g.version = w.version
where clock_timestamp() + $8::interval < $9::timestamptz
  and w.first >= (select log_start from partition where id = w.partition_id)
order by w.partition_id, w.group_id
on conflict (partition_id, group_id) do update set
    committed   = excluded.committed,
    delivered   = greatest(c.delivered, excluded.delivered),
    attempt     = case when c.committed < c.delivered then c.attempt + 1 else 1 end,
    retries     = case when excluded.lease_id is null then 0 else c.retries end,
    lease_id    = excluded.lease_id,
    lease_end   = excluded.lease_end,
    lease_until = clock_timestamp() + $8::interval + (excluded.lease_until - excluded.updated_at),
    updated_at  = clock_timestamp() + $8::interval
where c.committed = case when excluded.lease_id is null then excluded.lease_end else excluded.committed end
  and (c.lease_until is null or c.lease_until <= clock_timestamp() + $8::interval)
returning c.partition_id, c.group_id, c.seeks, c.attempt, coalesce(c.lease_until, to_timestamp(0)), c.updated_at`

const sqlInsertLease = `
insert into lease (id, partition_ids, expires_at) values ($1, $2, clock_timestamp() + $3::interval + $4::interval)
on conflict (id) do nothing`

// sendClaims claims what the round's takes found.
func (e *Engine) sendClaims(ctx context.Context, round []*serving) error {
	var partitions, groups, known, past, versions, first []int64
	var leases []string
	var times []time.Duration
	var autos []bool
	byKey := map[cursorKey]*take{}
	shared := map[*serving][]int64{}
	for _, s := range round {
		r := s.waiter.request
		for _, t := range s.takes {
			if t.count == 0 {
				continue
			}
			c := t.cursor
			partitions = append(partitions, c.part.id)
			groups = append(groups, c.group.id)
			versions = append(versions, t.version)
			known = append(known, t.committed)
			past = append(past, t.to)
			first = append(first, t.from)
			leases = append(leases, s.lease.String())
			times = append(times, leaseTime(r, c.group.queue))
			autos = append(autos, r.AutoAck)
			byKey[c.key()] = t
			if len(s.takes) > 1 && !r.AutoAck {
				shared[s] = append(shared[s], c.part.id)
			}
		}
	}
	if len(partitions) == 0 {
		return nil
	}
	offset := e.clockOffset()
	e.metrics.claims.Inc()
	started := time.Now()
	defer func() { e.metrics.claimSeconds.Observe(time.Since(started).Seconds()) }()
	return e.retrying(ctx, "claim messages", func(ctx context.Context) error {
		batch := &pgx.Batch{} // one implicit transaction
		for s, ids := range shared {
			batch.Queue(sqlInsertLease, s.lease, ids, offset, leaseTime(s.waiter.request, s.takes[0].cursor.group.queue))
		}
		batch.Queue(sqlClaim, partitions, groups, known, past, leases, times, autos, offset, e.latest(ctx), versions, first).Query(func(rows pgx.Rows) error {
			var key cursorKey
			var seeks int64
			var attempt int
			var till, now time.Time
			_, err := pgx.ForEachRow(rows, []any{&key.partitionID, &key.groupID, &seeks, &attempt, &till, &now}, func() error {
				t := byKey[key]
				t.claimed, t.seeks, t.attempt, t.leaseTill = true, seeks, attempt, till
				e.clock.Observe(now)
				return nil
			})
			return err
		})
		err := e.pool.SendBatch(ctx, batch).Close()
		for _, s := range round {
			s.lost = s.lost || pg.UnknownOutcome(err)
		}
		return err
	})
}

// leaseTime is the lease a pop gets.
func leaseTime(r *PopRequest, q *queueState) time.Duration {
	if r.Lease > 0 {
		return r.Lease
	}
	return cmp.Or(q.config.Load().options.LeaseTime, ImplicitLeaseTime)
}

// learnMissed asks for the truth about the cursors that were not as known. A claim whose answer
// was lost shows itself by its lease.
func (e *Engine) learnMissed(ctx context.Context, round []*serving) error {
	var missed []*cursor
	for _, s := range round {
		for _, t := range s.takes {
			if !t.claimed && t.count > 0 {
				missed = append(missed, t.cursor)
			}
		}
	}
	if len(missed) == 0 {
		return nil
	}
	e.metrics.claimConflicts.Add(float64(len(missed)))
	partitions := make([]int64, len(missed))
	for i, c := range missed {
		partitions[i] = c.part.id
	}
	if err := e.learnStarts(ctx, partitions); err != nil {
		return err
	}
	rows, err := e.readCursors(ctx, missed)
	if err != nil {
		return err
	}
	for _, s := range round {
		for _, t := range s.takes {
			row, ok := rows[t.cursor.key()]
			if !ok || t.claimed || t.count == 0 || row.leaseID == nil || *row.leaseID != s.lease {
				continue
			}
			t.claimed, t.attempt, t.leaseTill = true, row.attempt, row.leaseTill
			e.pops.mu.Lock()
			t.cursor.claimed(s, t, row.seeks)
			e.pops.mu.Unlock()
		}
	}
	return nil
}

// outcome builds a pop's answer.
func (e *Engine) outcome(s *serving, err error) popOutcome {
	if err != nil {
		return popOutcome{err: err}
	}
	out := popOutcome{retry: true}
	for _, t := range s.takes {
		if !t.claimed {
			// An automatic ack leaves no trace of who made it: what an attempt without an answer
			// took, if it did, is gone, and must not look like nothing was there.
			if s.lost && s.waiter.request.AutoAck && t.count > 0 {
				err = fmt.Errorf("claim messages: %w: the answer was lost", ErrUnavailable)
			}
			continue
		}
		out.retry = false
		popped, err := t.popped()
		if err != nil {
			return popOutcome{err: err}
		}
		out.result.Partitions = append(out.result.Partitions, popped)
	}
	if out.retry && err != nil {
		return popOutcome{err: err}
	}
	if !out.retry && !s.waiter.request.AutoAck {
		out.result.LeaseID = s.lease.String()
	}
	return out
}

// popped decodes what a take claimed.
func (t *take) popped() (PoppedPartition, error) {
	part := t.cursor.part
	p := PoppedPartition{Queue: part.queue.name, Name: part.name, ID: part.uuid, Messages: make([]Message, 0, t.count)}
	for _, s := range t.segments {
		for offset := max(s.base, t.from); offset < min(s.end(), t.to); offset++ {
			f, err := s.frame(offset)
			if err != nil {
				return p, err
			}
			m := Message{
				ID: f.id, TransactionID: f.transactionID(), TraceID: f.trace, ProducerSub: string(f.sub), Context: f.context,
				CreatedAt: s.created, DeliveryAttempt: 1, Payload: f.payload,
			}
			if f.sealed {
				m.Payload = t.opened[offset]
			}
			if offset < t.delivered {
				m.DeliveryAttempt = t.attempt
			}
			p.Messages = append(p.Messages, m)
		}
	}
	return p, nil
}

const sqlGiveBack = `
update cursor set lease_id = null, lease_until = null, attempt = attempt - 1
where lease_id = $1 and partition_id = any ($2)`

// giveBack releases what was leased for a caller that has gone.
func (e *Engine) giveBack(r *PopResult) {
	lease, err := uuid.Parse(r.LeaseID)
	if err != nil {
		return // nothing was leased
	}
	var ids []int64
	var cursors []*cursor
	for _, popped := range r.Partitions {
		e.catalog.mu.RLock()
		part := e.catalog.byUUID[popped.ID]
		e.catalog.mu.RUnlock()
		if part == nil {
			continue
		}
		ids = append(ids, part.id)
		if g := e.pops.group(part.queue, r.Group); g != nil {
			if c := e.pops.cursor(g, part); c != nil {
				cursors = append(cursors, c)
			}
		}
	}
	err = e.retrying(e.ctx, "give a lease back", func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, sqlGiveBack, lease, ids)
		return err
	})
	if err == nil {
		_, err = e.readCursors(e.ctx, cursors)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		e.log.Warn("a lease of a pop whose caller has gone stays until it expires", "err", err)
	}
}
