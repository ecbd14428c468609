package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dchest/siphash"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// ackGroup is what one call says about one partition under one lease. It is carried out as a whole.
type ackGroup struct {
	cursor  *cursor
	leaseID string
	items   []*ackEntry
	err     error // nothing was carried out
	done    func()

	found map[string]int64      // offsets that the log answered, -1 for none; of all items in a transaction
	held  map[int64]heldMessage // in a transaction: messages that are to be filed as dead letters
	seen  cursorRow             // what is known of the cursor
	batch leasedBatch
	plan  ackPlan
	lost  bool  // an attempt to carry out the plan had no answer
	seeks int64 // of the cursor, when the plan was carried out
}

// ackEntry is one item of a group.
type ackEntry struct {
	item   *AckItem
	hash   uint64
	offset int64 // -1: not found
	result *AckResult
}

// ackPlan is what a group does to its cursor.
type ackPlan struct {
	committed int64
	retries   int
	release   bool
	mustLive  bool // the lease must still be live when it happens
	changes   bool
	past      bool   // the message goes by without being completed
	dead      *frame // filed as a dead letter
	deadAt    time.Time
	deadItem  *ackEntry
}

// Ack carries out what a consumer says of messages, and answers each item. Items of one partition
// and lease are one unit; units are independent. The error is ErrUnavailable when nothing could be
// carried out; a unit that failed alone has the error in its items.
func (e *Engine) Ack(ctx context.Context, groupName string, items []AckItem) ([]AckResult, error) {
	if !e.inflight.enter() {
		return nil, ErrStopped
	}
	defer e.inflight.leave()
	if groupName == "" {
		groupName = ModeGroup
	}
	results := make([]AckResult, len(items))
	units := e.ackUnits(items, results)
	var wait sync.WaitGroup
	var failed error
	failures := 0
	var live []*ackGroup
	for _, u := range units {
		c, err := e.ackCursor(ctx, groupName, u.items[0].item.PartitionID)
		switch {
		case err != nil:
			u.err = err
		case c == nil:
			u.answer(ErrNoConsumer)
		default:
			u.cursor = c
			u.done = wait.Done
			live = append(live, u)
		}
	}
	wait.Add(len(live))
	e.acks.Add(live...)
	wait.Wait()
	for _, u := range units {
		if u.err != nil {
			failed = u.err
			failures++
			u.answer(u.err)
		}
	}
	if failures < len(units) {
		failed = nil
	}
	e.metrics.acked(units, len(items), failed)
	if failed != nil {
		return nil, failed
	}
	return results, nil
}

// ackUnits groups items by partition and lease, in order of first appearance.
func (e *Engine) ackUnits(items []AckItem, results []AckResult) []*ackGroup {
	type key struct {
		partition uuid.UUID
		lease     string
	}
	byKey := map[key]*ackGroup{}
	var units []*ackGroup
	entries := make([]ackEntry, len(items))
	for i := range items {
		it := &items[i]
		k := key{it.PartitionID, it.LeaseID}
		u := byKey[k]
		if u == nil {
			u = &ackGroup{leaseID: it.LeaseID}
			byKey[k] = u
			units = append(units, u)
		}
		entries[i] = ackEntry{item: it, hash: e.hash(it.TransactionID), result: &results[i]}
		u.items = append(u.items, &entries[i])
	}
	return units
}

// hash is the keyed hash of a transaction id.
func (e *Engine) hash(txID string) uint64 {
	return siphash.Hash(e.hashKey[0], e.hashKey[1], []byte(txID)) & e.hashMask
}

// ackCursor finds the cursor an ack is about, nil when there is none.
func (e *Engine) ackCursor(ctx context.Context, groupName string, partitionID uuid.UUID) (*cursor, error) {
	part, err := e.partitionByUUID(ctx, partitionID)
	if part == nil || err != nil {
		return nil, err
	}
	g, err := e.group(ctx, part.queue, groupName, seeding{})
	if g == nil || err != nil {
		return nil, err
	}
	if c := e.pops.cursor(g, part); c != nil {
		return c, nil
	}
	if err := e.loadCursors(ctx, g, []int64{part.id}); err != nil {
		return nil, err
	}
	return e.pops.cursor(g, part), nil
}

// answer gives every item the same error.
func (u *ackGroup) answer(err error) {
	for _, en := range u.items {
		*en.result = AckResult{Err: err}
	}
}

// ackBatch is the work of the acks' batcher. Units of one cursor are carried out one after the other.
func (e *Engine) ackBatch(units []*ackGroup) {
	for len(units) > 0 {
		taken := map[*cursor]struct{}{}
		var now, later []*ackGroup
		for _, u := range units {
			if _, ok := taken[u.cursor]; ok {
				later = append(later, u)
				continue
			}
			taken[u.cursor] = struct{}{}
			now = append(now, u)
		}
		e.ackRound(e.ctx, now)
		for _, u := range now {
			u.done()
		}
		units = later
	}
}

// ackTries bounds how often a unit is planned anew because its cursor was not as known.
const ackTries = 8

func (e *Engine) ackRound(ctx context.Context, units []*ackGroup) {
	for _, u := range units {
		u.look(e.pops)
	}
	verified := false // whether what is known of the cursors was just read
	for range ackTries {
		var doubtful, ready []*ackGroup
		for _, u := range units {
			sure, err := e.planUnit(ctx, u, verified)
			switch {
			case err != nil:
				u.err = err
			case !sure:
				doubtful = append(doubtful, u)
			case u.plan.changes:
				ready = append(ready, u)
			}
		}
		missed, err := e.sendAcks(ctx, ready)
		if err != nil {
			for _, u := range ready {
				u.err = err
			}
		}
		if units = append(missed, doubtful...); len(units) == 0 {
			return
		}
		if err := e.reread(ctx, units); err != nil {
			for _, u := range units {
				u.err = err
			}
			return
		}
		verified = true
		units = keepExisting(units)
	}
	for _, u := range units {
		u.err = fmt.Errorf("ack: %w", errRace)
	}
}

// look copies what is known of the unit's cursor.
func (u *ackGroup) look(p *popper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := u.cursor
	u.seen = cursorRow{
		committed: c.committed, delivered: c.delivered, attempt: c.attempt, retries: c.retries,
		leaseEnd: c.leaseEnd, leaseTill: c.leaseTill,
	}
	if c.leaseID != uuid.Nil {
		id := c.leaseID
		u.seen.leaseID = &id
	}
	u.batch = c.batch
}

// reread replaces what is known of the units' cursors by the truth. A unit without a row loses its cursor.
func (e *Engine) reread(ctx context.Context, units []*ackGroup) error {
	e.metrics.ackConflicts.Add(float64(len(units)))
	cursors := make([]*cursor, len(units))
	for i, u := range units {
		cursors[i] = u.cursor
	}
	rows, err := e.readCursors(ctx, cursors)
	if err != nil {
		return err
	}
	for _, u := range units {
		row, ok := rows[u.cursor.key()]
		if !ok {
			u.answer(ErrNoConsumer)
			u.cursor = nil
			continue
		}
		u.seen = row
		if u.lost && u.plan.shows(&row) {
			u.cursor = nil // the attempt whose answer was lost had happened
		}
	}
	return nil
}

// shows reports whether a cursor row is what the plan makes of it.
func (p *ackPlan) shows(row *cursorRow) bool {
	return p.changes && row.committed == p.committed && row.retries == p.retries && (row.leaseID == nil) == p.release
}

// keepExisting drops the units that are done with.
func keepExisting(units []*ackGroup) []*ackGroup {
	kept := units[:0]
	for _, u := range units {
		if u.cursor != nil {
			kept = append(kept, u)
		}
	}
	return kept
}

// planUnit decides what a unit does. It is not sure when the answer depends on a cursor that may
// be different from what is known.
func (e *Engine) planUnit(ctx context.Context, u *ackGroup, verified bool) (sure bool, err error) {
	u.plan = ackPlan{}
	now := e.clock.Now()
	if u.leaseID != "" {
		id, err := uuid.Parse(u.leaseID)
		live := err == nil && u.seen.leaseID != nil && *u.seen.leaseID == id && u.seen.leaseTill.After(now)
		if !live {
			u.answer(ErrLease)
			return verified, nil
		}
	}
	if err := e.resolve(ctx, u); err != nil {
		return false, err
	}
	last, nack := u.sort()
	switch {
	case nack == nil && last == nil:
		// Nothing but no-ops, refusals and unknown ids. What seems committed is; an id that seems
		// unknown may only be so because the lease is not the one known here.
		return verified || u.allBehind(), nil
	case nack == nil:
		u.planCommit(last)
	default:
		if err := e.planNack(ctx, u, nack); err != nil {
			return false, err
		}
	}
	u.plan.mustLive = u.leaseID != ""
	return true, nil
}

// sort answers the items that need no change of the cursor, and finds the last completed and the lowest other one.
func (u *ackGroup) sort() (last, nack *ackEntry) {
	for _, en := range u.items {
		*en.result = AckResult{}
		switch {
		case en.offset < 0, u.leaseID != "" && en.offset >= u.seen.leaseEnd:
			en.result.Err = ErrUnresolvable
		case en.offset < u.seen.committed:
			if en.item.Status == Completed {
				en.result.Noop = true
			} else {
				en.result.Err = ErrAlreadyCommitted
			}
		case en.item.Status == Completed:
			if last == nil || en.offset >= last.offset {
				last = en
			}
		case nack == nil || en.offset < nack.offset || en.offset == nack.offset && en.item.Status > nack.item.Status:
			nack = en // at one offset a dead letter beats a failure, which beats a retry
		}
	}
	return last, nack
}

func (u *ackGroup) allBehind() bool {
	for _, en := range u.items {
		if en.offset < 0 || en.offset >= u.seen.committed {
			return false
		}
	}
	return true
}

func (u *ackGroup) planCommit(last *ackEntry) {
	u.plan = ackPlan{changes: true, committed: last.offset + 1, retries: u.seen.retries}
	switch {
	case u.seen.leaseID != nil && u.plan.committed >= u.seen.leaseEnd:
		u.plan.release, u.plan.retries = true, 0
		last.result.LeaseReleased = true
	case u.seen.leaseID == nil && u.plan.committed >= u.seen.delivered:
		u.plan.retries = 0
	}
}

func (e *Engine) planNack(ctx context.Context, u *ackGroup, nack *ackEntry) error {
	options := u.cursor.group.queue.config.Load().options
	u.plan = ackPlan{changes: true, committed: nack.offset, retries: u.seen.retries, release: true}
	file := nack.item.Status == DeadLetter
	past := file
	if nack.item.Status == Nack {
		if u.plan.retries++; u.plan.retries > options.RetryLimit {
			past = true
			file = options.DeadLetterQueue || options.DLQAfterMaxRetries
		}
	}
	if u.plan.past = past; past {
		u.plan.committed, u.plan.retries = nack.offset+1, 0
	}
	for _, en := range u.items {
		if en.offset > nack.offset && en.result.Err == nil && (en.item.Status == Completed || en.item.Status == DeadLetter) {
			en.result.Err = ErrSuperseded
		}
	}
	nack.result.LeaseReleased = u.seen.leaseID != nil
	if !file {
		return nil
	}
	dead, at, err := e.storedFor(ctx, u, nack.offset)
	switch {
	case err != nil:
		return err
	case dead == nil:
		u.answer(ErrDLQRejected)
		u.plan = ackPlan{}
	default:
		nack.result.DeadLettered = true
		u.plan.dead, u.plan.deadAt, u.plan.deadItem = dead, at, nack
	}
	return nil
}

// heldMessage is a message kept in memory from one plan to the next.
type heldMessage struct {
	frame *frame
	at    time.Time
}

// storedFor reads a message for a unit, once.
func (e *Engine) storedFor(ctx context.Context, u *ackGroup, offset int64) (*frame, time.Time, error) {
	if h, ok := u.held[offset]; ok {
		return h.frame, h.at, nil
	}
	f, at, err := e.stored(ctx, u.cursor.part, offset)
	if err == nil && u.held != nil {
		u.held[offset] = heldMessage{f, at}
	}
	return f, at, err
}

// stored reads one message, nil when it is not there any more.
func (e *Engine) stored(ctx context.Context, part *partition, offset int64) (*frame, time.Time, error) {
	s, err := e.segmentAt(ctx, part, offset)
	if s == nil || err != nil {
		return nil, time.Time{}, err
	}
	f, err := s.frame(offset)
	return &f, s.created, err
}

// segmentAt returns the segment that holds an offset, nil when it is not there any more.
func (e *Engine) segmentAt(ctx context.Context, part *partition, offset int64) (*segment, error) {
	if s := e.segments.get(part.id, offset); s != nil {
		return s, nil
	}
	t := &take{cursor: &cursor{part: part}, from: offset, to: offset + 1}
	err := e.retrying(ctx, "read a message", func(ctx context.Context) error { return e.readCold(ctx, []*take{t}) })
	if err != nil || len(t.segments) == 0 || t.segments[0].base > offset {
		return nil, err
	}
	return t.segments[0], nil
}

// resolve finds the offset of each item: among what this broker leased last, else in the log.
func (e *Engine) resolve(ctx context.Context, u *ackGroup) error {
	var missing []*ackEntry
	part := u.cursor.part
	for _, en := range u.items {
		en.offset = -1
		if offset, ok := u.found[en.item.TransactionID]; ok {
			en.offset = offset
			continue
		}
		if offset := u.batch.find(en.hash); offset >= 0 {
			if s := e.segments.get(part.id, offset); s != nil {
				f, err := s.frame(offset)
				if err != nil {
					return err
				}
				if f.hasTransactionID(en.item.TransactionID) {
					en.offset = offset
					if u.found != nil {
						u.found[en.item.TransactionID] = offset
					}
					continue
				}
			}
		}
		missing = append(missing, en)
	}
	if len(missing) == 0 {
		return nil
	}
	return e.resolveInLog(ctx, u, missing)
}

// find returns the offset of a hash in the batch, -1 for none.
func (b *leasedBatch) find(hash uint64) int64 {
	n := len(b.hashes)
	for i := range n {
		at := (b.hint + i) % n
		if b.hashes[at] == hash {
			b.hint = at + 1
			return b.from + int64(at)
		}
	}
	return -1
}

// resolvable is how long an id resolves after its push, at least.
const resolvable = 900 * time.Second

const sqlResolve = `
select base, hashes from segment where partition_id = $1 and base >= coalesce((
    select x.base + x.count from segment x
    where x.partition_id = $1 and x.created_at <= $2 and x.base + x.count <= $3
    order by x.base desc limit 1
), 0)
order by base`

// resolveInLog looks items up in the log: everything from the cursor on, and before it as far back as ids resolve.
func (e *Engine) resolveInLog(ctx context.Context, u *ackGroup, missing []*ackEntry) error {
	part := u.cursor.part
	options := part.queue.config.Load().options
	since := e.clock.Now().Add(-max(options.DedupWindow, options.CompletedRetention, resolvable))
	wanted := map[uint64]struct{}{}
	for _, en := range missing {
		wanted[en.hash] = struct{}{}
	}
	var places map[uint64][]int64
	err := e.retrying(ctx, "resolve transaction ids", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlResolve, part.id, since, u.seen.committed) // its error comes with the rows
		var err error
		places, err = findHashes(rows, wanted)
		return err
	})
	if err != nil {
		return err
	}
	if u.found == nil {
		u.found = map[string]int64{}
	}
	for _, en := range missing {
		offset, err := e.bestOffset(ctx, u, en, places[en.hash])
		if err != nil {
			return err
		}
		en.offset = offset
		u.found[en.item.TransactionID] = offset
	}
	return nil
}

// bestOffset chooses among the places of a hash: one that the lease covers, else the last.
func (e *Engine) bestOffset(ctx context.Context, u *ackGroup, en *ackEntry, offsets []int64) (int64, error) {
	best := int64(-1)
	for _, offset := range offsets {
		s, err := e.segmentAt(ctx, u.cursor.part, offset)
		if err != nil {
			return -1, err
		}
		if s != nil {
			f, err := s.frame(offset)
			if err != nil {
				return -1, err
			}
			if !f.hasTransactionID(en.item.TransactionID) {
				continue
			}
		} // else retention removed the message and kept its hash, which then decides alone
		best = offset
		if offset >= u.seen.committed && offset < u.seen.leaseEnd {
			return best, nil
		}
	}
	return best, nil
}

// One conditional update per cursor: it must be as known, and its lease live where one was named.
// Rows are locked in order, so that two brokers never wait for each other in a circle. A dead
// letter is filed only together with its cursor's move.
const sqlAck = `
with want as materialized (
    select * from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[], $5::integer[], $6::text[],
                         $7::boolean[], $8::bigint[], $9::integer[], $10::boolean[])
    as w (i, partition_id, group_id, known, known_retries, known_lease, must_live, committed, retries, release)
), locked as materialized (
    select c.partition_id, c.group_id from cursor c
    join want w on w.partition_id = c.partition_id and w.group_id = c.group_id
    order by c.partition_id, c.group_id for update of c
), moved as (
    update cursor c set
        committed   = w.committed,
        retries     = w.retries,
        lease_id    = case when w.release then null else c.lease_id end,
        lease_until = case when w.release then null else c.lease_until end,
        updated_at  = clock_timestamp() + $11::interval
    from want w join locked l on l.partition_id = w.partition_id and l.group_id = w.group_id
    where c.partition_id = w.partition_id and c.group_id = w.group_id
      and c.committed = w.known and c.retries = w.known_retries
      and c.lease_id is not distinct from nullif(w.known_lease, '')::uuid
      and (not w.must_live or c.lease_until > clock_timestamp() + $11::interval)
      and clock_timestamp() + $11::interval < $26::timestamptz
    returning w.i, c.seeks
), buried as (
    insert into dead_letter (queue_id, partition_id, group_name, log_offset, message_id, transaction_id,
                             trace_id, producer_sub, error, retries, payload, sealed, created_at, failed_at)
    select d.queue_id, d.partition_id, d.group_name, d.log_offset, d.message_id::uuid, d.transaction_id,
           nullif(d.trace_id, '')::uuid, nullif(d.producer_sub, ''), d.error, d.retries, d.payload, d.sealed, d.created_at,
           clock_timestamp() + $11::interval
    from unnest($12::integer[], $13::bigint[], $14::bigint[], $15::text[], $16::bigint[], $17::text[], $18::text[],
                $19::text[], $20::text[], $21::text[], $22::integer[], $23::bytea[], $24::boolean[], $25::timestamptz[])
         as d (i, queue_id, partition_id, group_name, log_offset, message_id, transaction_id,
               trace_id, producer_sub, error, retries, payload, sealed, created_at)
    join moved m on m.i = d.i
)
select i, seeks from moved`

// sendAcks carries out plans and returns the units whose cursor was not as known.
func (e *Engine) sendAcks(ctx context.Context, units []*ackGroup) (missed []*ackGroup, err error) {
	if len(units) == 0 {
		return nil, nil
	}
	args := slices.Clip(ackArgs(units, e.clockOffset()))
	moved := make([]bool, len(units))
	started := time.Now()
	defer func() { e.metrics.ackSeconds.Observe(time.Since(started).Seconds()) }()
	err = e.retrying(ctx, "ack", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlAck, append(args, e.latest(ctx))...) // its error comes with the rows
		err := readMoved(rows, units, moved)
		if err != nil && pg.UnknownOutcome(err) {
			clear(moved)
			for _, u := range units {
				u.lost = true
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	done := make([]*ackGroup, 0, len(units))
	for i, u := range units {
		if moved[i] {
			done = append(done, u)
		} else {
			missed = append(missed, u)
		}
	}
	e.pops.acked(done)
	return missed, nil
}

// readMoved notes which units the answer of sqlAck says were carried out.
func readMoved(rows pgx.Rows, units []*ackGroup, moved []bool) error {
	var i int
	var seeks int64
	_, err := pgx.ForEachRow(rows, []any{&i, &seeks}, func() error {
		moved[i], units[i].seeks = true, seeks
		return nil
	})
	return err
}

// acked takes plans that were carried out into memory.
func (p *popper) acked(units []*ackGroup) {
	now := p.engine.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range units {
		p.engine.traffic.acked(u)
		if u.plan.dead != nil {
			p.engine.metrics.filed()
		}
		c := u.cursor
		if u.seeks < c.seeks {
			continue // a seek came after it
		}
		c.seeks, c.stored = u.seeks, true
		c.committed, c.retries = u.plan.committed, u.plan.retries
		if u.plan.release {
			c.leaseID, c.leaseTill = uuid.Nil, time.Time{}
		}
		c.batch.hint = u.batch.hint
		p.place(c, now)
	}
	p.kick()
}

func ackArgs(units []*ackGroup, offset time.Duration) []any {
	n := len(units)
	index, knownRetries, retries := make([]int32, n), make([]int32, n), make([]int32, n)
	partitions, groups, known, committed := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	leases := make([]string, n)
	mustLive, release := make([]bool, n), make([]bool, n)
	var dIndex, dRetries []int32
	var dQueues, dPartitions, dOffsets []int64
	var dGroups, dMessages, dTxIDs, dTraces, dSubs, dErrors []string
	var dPayloads [][]byte
	var dSealed []bool
	var dCreated []time.Time
	for i, u := range units {
		c := u.cursor
		index[i], partitions[i], groups[i] = int32(i), c.part.id, c.group.id
		known[i], knownRetries[i] = u.seen.committed, int32(u.seen.retries)
		if u.seen.leaseID != nil {
			leases[i] = u.seen.leaseID.String()
		}
		mustLive[i], committed[i], retries[i], release[i] = u.plan.mustLive, u.plan.committed, int32(u.plan.retries), u.plan.release
		dead := u.plan.dead
		if dead == nil {
			continue
		}
		dIndex, dRetries = append(dIndex, int32(i)), append(dRetries, int32(u.seen.retries))
		dQueues, dPartitions = append(dQueues, c.part.queue.id), append(dPartitions, c.part.id)
		dOffsets, dGroups = append(dOffsets, u.plan.deadItem.offset), append(dGroups, c.group.name)
		dMessages, dTxIDs = append(dMessages, dead.id.String()), append(dTxIDs, dead.transactionID())
		trace := ""
		if dead.trace != uuid.Nil {
			trace = dead.trace.String()
		}
		dTraces, dSubs = append(dTraces, trace), append(dSubs, string(dead.sub))
		dErrors, dPayloads = append(dErrors, u.plan.deadItem.item.Error), append(dPayloads, dead.payload)
		dSealed = append(dSealed, dead.sealed)
		dCreated = append(dCreated, u.plan.deadAt)
	}
	return []any{
		index, partitions, groups, known, knownRetries, leases, mustLive, committed, retries, release, offset,
		dIndex, dQueues, dPartitions, dGroups, dOffsets, dMessages, dTxIDs, dTraces, dSubs, dErrors, dRetries, dPayloads, dSealed, dCreated,
	}
}
