package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// A flush is bounded at these sizes; one group may be larger, since it is committed as a whole.
const (
	flushMaxItems = 20_000
	flushMaxBytes = 4 << 20
)

// flight is one statement in the air: what it appends to each of its shards.
type flight struct {
	shards []*shardFlight
	items  int
	bytes  int
}

// shardFlight appends to one shard, if its head is still where the broker knows it.
type shardFlight struct {
	shard  *shard
	head   int64
	token  int64 // names this attempt in the log
	lanes  []*laneFlight
	groups []*pushGroup
}

// laneFlight appends to one partition.
type laneFlight struct {
	part     *partition
	base     int64
	accepted []acceptedEntry
	segments []*segment
	columns  []column // of each segment
}

type acceptedEntry struct {
	group *pushGroup
	entry *pushEntry
}

// writeLoop flushes what waits, again and again: while a shard's flush is in the air its groups
// collect, so that a loaded broker commits in large batches and an idle one at once.
func (e *Engine) writeLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.work:
		}
		for e.flushOnce(ctx) {
		}
	}
}

// flushOnce flushes what waits at every shard that is not busy. It reports whether there was anything to do.
func (e *Engine) flushOnce(ctx context.Context) bool {
	if e.cfg.HoldWindow > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(e.cfg.HoldWindow):
		}
	}
	f := &flight{}
	var apart []func() // flushes that cannot share the statement
	found := false
	for _, s := range e.shards {
		if f.items >= flushMaxItems || f.bytes >= flushMaxBytes {
			break
		}
		how, claimed := s.claim()
		if !claimed {
			continue
		}
		found = true
		switch how {
		case flushContended:
			apart = append(apart, func() { e.flushLocked(ctx, s) })
		case flushAlone:
			own := &flight{}
			e.board(own, s)
			apart = append(apart, func() { e.fly(ctx, own) })
		case flushTogether:
			e.board(f, s)
		}
	}
	e.fly(ctx, f)
	for _, flush := range apart {
		flush()
	}
	return found
}

// flushKind is how a shard's groups are flushed.
type flushKind uint8

const (
	flushTogether  flushKind = iota // with other shards in one statement
	flushAlone                      // one group that was refused in company
	flushContended                  // under the lock of the head
)

// claim makes the caller the one that flushes, when groups wait and nobody does.
func (s *shard) claim() (how flushKind, claimed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy || len(s.pending) == 0 || s.transactions > 0 && !s.flushesTurn {
		return 0, false
	}
	s.busy, s.flushesTurn = true, false
	switch {
	case s.pending[0].alone:
		return flushAlone, true
	case s.contended > 0:
		s.contended--
		return flushContended, true
	}
	return flushTogether, true
}

// releaseShard ends what claim began.
func (e *Engine) releaseShard(s *shard) {
	if s.release() {
		e.wakeWriters()
	}
}

// board decides what waits at a claimed shard and takes what has something to append onto the flight.
// A shard that has nothing to append is released.
func (e *Engine) board(f *flight, s *shard) {
	sf := e.decide(f, s)
	if len(sf.lanes) == 0 {
		e.releaseShard(s)
		return
	}
	f.shards = append(f.shards, sf)
}

// decide takes groups that wait at a shard and decides for each message whether it is new.
// Groups whose partition is cold, or whose possible duplicates the log must confirm, are put aside
// and come back, and groups without a new message are answered once their shard's head proves them right.
func (e *Engine) decide(f *flight, s *shard) *shardFlight {
	sf := &shardFlight{shard: s, token: rand.Int64()} //nolint:gosec // a name, not a secret
	now, local := e.clock.Now(), time.Now()
	var known, unsure, homeless, late []*pushGroup

	s.mu.Lock()
	sf.head = s.folded
	taken, cold := 0, false
	for _, g := range s.pending {
		if taken > 0 && (f.items >= flushMaxItems || f.bytes >= flushMaxBytes || g.alone) {
			break
		}
		taken++
		p := g.part
		switch {
		case local.After(g.deadline):
			late = append(late, g)
		case p.gone():
			homeless = append(homeless, g)
		case !e.warmEnough(p, g, now):
			p.waiting = append(p.waiting, g)
			if !p.loading {
				s.evict(p)
				p.loading = true
				s.cold = append(s.cold, p)
				cold = true
			}
		default:
			s.touch(p)
			switch fresh, sure := e.decideGroup(p, g, now); {
			case !sure:
				unsure = append(unsure, g)
			case fresh == 0 && !followsFlight(g):
				known = append(known, g)
			default:
				e.accept(sf, p, g)
				f.items += fresh
				f.bytes += len(g.frames)
			}
		}
		if g.alone && len(sf.groups) > 0 {
			break
		}
	}
	s.pending = s.pending[taken:]
	if len(s.pending) == 0 {
		s.pending = nil
	}
	s.mu.Unlock()

	for _, lf := range sf.lanes {
		lf.cut()
	}
	if cold {
		e.loader.Add(s)
	}
	e.confirm.Add(unsure...)
	e.resubmit(homeless)
	e.giveUp(late, errLate)
	e.prover.Add(known...)
	return sf
}

// followsFlight reports whether a group's outcome depends on the flush in the air.
func followsFlight(g *pushGroup) bool {
	for i := range g.entries {
		if g.entries[i].winner != nil {
			return true
		}
	}
	return false
}

// warmEnough reports whether a lane's memory reaches back over the queue's window.
func (e *Engine) warmEnough(p *partition, g *pushGroup, now time.Time) bool {
	if p.dedup == nil || p.loading {
		return false
	}
	window := p.queue.config.Load().options.DedupWindow
	if (window > 0 || g.replayed) && p.dedup.since.After(g.horizon(window, now)) {
		return false
	}
	if !g.replayed {
		p.dedup.expire(now.Add(-window - expiryMargin))
	}
	return true
}

// horizon is how far back the lane's memory must be complete to decide the group.
func (g *pushGroup) horizon(window time.Duration, now time.Time) time.Time {
	if !g.replayed {
		return now.Add(-window)
	}
	first := now
	for i := range g.entries {
		if at := g.entries[i].at; at.Before(first) {
			first = at
		}
	}
	return first.Add(-max(window, expiryMargin))
}

// expiryMargin is how much longer than the window ids are remembered: more than the estimate of the
// database's time may ever be set back.
const expiryMargin = 10 * time.Second

// decideGroup settles each entry of a group as new or as a duplicate. It is not sure when the log
// must be asked first. The caller holds the shard's mu.
func (e *Engine) decideGroup(p *partition, g *pushGroup, now time.Time) (fresh int, sure bool) {
	window := p.queue.config.Load().options.DedupWindow
	horizon := g.horizon(window, now)
	sure = true
	for i := range g.entries {
		en := &g.entries[i]
		en.status, en.origin, en.winner, en.stored = Queued, uuid.Nil, nil, false
		if window <= 0 && !g.replayed {
			fresh++
			continue
		}
		for _, h := range p.dedup.lookup(en.hash, horizon) {
			if duplicate, known := e.settleHit(p, g, en, h, now); !known {
				sure = false
			} else if duplicate {
				break
			}
		}
		if en.fresh() {
			fresh++
		}
	}
	if g.replayed && window > 0 {
		fresh -= g.settleRepeats(window)
	}
	return fresh, sure
}

// settleRepeats finds the entries of a replayed group that repeat an earlier one of the group: they were
// accepted by different requests. It returns how many there are.
func (g *pushGroup) settleRepeats(window time.Duration) (repeats int) {
	first := map[string]*pushEntry{}
	for i := range g.entries {
		en := &g.entries[i]
		if !en.fresh() {
			continue
		}
		if earlier := first[en.transactionID()]; earlier != nil && en.at.Sub(earlier.at) < window {
			en.status, en.winner = Duplicate, earlier
			repeats++
			continue
		}
		first[en.transactionID()] = en
	}
	return repeats
}

// settleHit decides whether an entry duplicates what a lookup hit, if that is known.
func (e *Engine) settleHit(p *partition, g *pushGroup, en *pushEntry, h hit, now time.Time) (duplicate, known bool) {
	switch {
	case h.chunk == nil && h.offset < p.next:
		return e.settleOrigin(p, g, en, h.offset, now)
	case h.chunk == nil: // in this very flush
		winner := p.flight.accepted[h.offset-p.next].entry
		if winner.transactionID() != en.transactionID() || !p.sameWindow(winner.accepted(now), en.accepted(now)) {
			return false, true
		}
		en.status, en.winner = Duplicate, winner
		return true, true
	}
	offsets, known := g.facts.offsets[h.chunk.key(en.hash)]
	if !known {
		return false, false
	}
	for _, offset := range offsets {
		if duplicate, known := e.settleOrigin(p, g, en, offset, now); duplicate || !known {
			return duplicate, known
		}
	}
	return false, true
}

func (e *Engine) settleOrigin(p *partition, g *pushGroup, en *pushEntry, offset int64, now time.Time) (duplicate, known bool) {
	o, known := g.facts.origins[offset]
	if !known {
		s := e.segments.get(p.id, offset)
		if s == nil {
			return false, false
		}
		f, err := s.frame(offset)
		if err != nil {
			return false, false
		}
		o = origin{id: f.id, txID: f.transactionID(), at: f.accepted(s.created)}
	}
	if o.gone || (!o.erased && o.txID != en.transactionID()) {
		return false, true
	}
	switch {
	case o.id == en.id, g.replayed && o.erased && e.storedByPush(o.at, en.at): // an earlier attempt of ours did commit
		en.stored = true
	case !p.sameWindow(o.at, en.accepted(now)):
		return false, true
	default:
		en.status, en.origin = Duplicate, o.id
	}
	return true, true
}

// accepted is when the entry was accepted: now, unless it comes from the spool.
func (en *pushEntry) accepted(now time.Time) time.Time {
	if en.at.IsZero() {
		return now
	}
	return en.at
}

// sameWindow reports whether messages of one transaction id that were accepted at these times are
// duplicates. What comes from the spool may have been accepted before what is in the log.
func (p *partition) sameWindow(a, b time.Time) bool {
	return a.Sub(b).Abs() < p.queue.config.Load().options.DedupWindow
}

// accept puts a decided group on the flight. The caller holds the shard's mu.
func (e *Engine) accept(sf *shardFlight, p *partition, g *pushGroup) {
	sf.groups = append(sf.groups, g)
	for i := range g.entries {
		en := &g.entries[i]
		if !en.fresh() {
			continue
		}
		if p.flight == nil {
			p.flight = &laneFlight{part: p, base: p.next}
			sf.lanes = append(sf.lanes, p.flight)
		}
		p.dedup.add(en.hash, p.flight.base+int64(len(p.flight.accepted)))
		p.flight.accepted = append(p.flight.accepted, acceptedEntry{g, en})
	}
}

// cut packs what a lane appends into segments.
func (lf *laneFlight) cut() {
	base := lf.base
	for rest := lf.accepted; len(rest) > 0; {
		n, size := 0, 0
		for n < len(rest) && n < segmentMaxCount {
			size += rest[n].entry.end - rest[n].entry.start
			if n > 0 && size > segmentMaxBytes {
				break
			}
			n++
		}
		lf.addSegment(base, rest[:n])
		base, rest = base+int64(n), rest[n:]
	}
}

// column is a segment's frames as they are stored.
type column struct {
	format int16
	frames []byte
}

func (lf *laneFlight) addSegment(base int64, entries []acceptedEntry) {
	s := &segment{
		partitionID: lf.part.id, base: base,
		starts: make([]uint32, 0, len(entries)),
		hashes: make([]byte, 0, 8*len(entries)),
	}
	size, adjacent := 0, true
	for i, a := range entries {
		s.starts = append(s.starts, uint32(size))
		s.hashes = appendHash(s.hashes, a.entry.hash)
		size += a.entry.end - a.entry.start
		adjacent = adjacent && (i == 0 || a.group == entries[i-1].group && a.entry.start == entries[i-1].entry.end)
	}
	if first := entries[0]; adjacent { // the frames of one request stand together already
		s.frames = first.group.frames[first.entry.start : first.entry.start+size : first.entry.start+size]
	} else {
		s.frames = make([]byte, 0, size)
		for _, a := range entries {
			s.frames = append(s.frames, a.group.frames[a.entry.start:a.entry.end]...)
		}
	}
	format, frames := pack(s.frames)
	lf.segments = append(lf.segments, s)
	lf.columns = append(lf.columns, column{format, frames})
}

// The compare-and-append. A shard's head moves only from the value the broker knows, and only a
// shard that moved gets its flush row and its segments. A shard that somebody else has locked is passed
// over, so that it does not hold up the others; it comes back alone, and waits. In READ COMMITTED a
// row that changed in between is looked at again. Times are taken after the lock. After its deadline
// the statement does nothing: its caller has given up by then.
const sqlFlush = `
with want as materialized (
    select * from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bytea[], $16::bytea[])
        as w (id, head, token, entries, sizes)
), locked as materialized (
    select s.id from shard s join want w on w.id = s.id and w.head = s.head
    order by s.id for update of s skip locked
), moved as (
    update shard s set head = s.head + 1
    from locked l join want w on w.id = l.id
    where s.id = l.id and s.head = w.head and clock_timestamp() + $5::interval < $15::timestamptz
    returning s.id, s.head, w.token, w.entries, w.sizes, clock_timestamp() + $5::interval as at
), logged as (
    insert into flush (shard, seq, token, entries, sizes, created_at)
    select id, head, token, entries, sizes, at from moved
), appended as (
    insert into segment (partition_id, base, count, created_at, bytes, format, hashes, frames)
    select a.partition_id, a.base, a.count, greatest(m.at, a.last_at), a.bytes, a.format, a.hashes, a.frames
    from unnest($6::integer[], $7::bigint[], $8::bigint[], $9::integer[], $10::timestamptz[],
                $11::integer[], $12::smallint[], $13::bytea[], $14::bytea[])
         as a (shard, partition_id, base, count, last_at, bytes, format, hashes, frames)
    join moved m on m.id = a.shard
)
select id, at from moved`

// The rest of a flight that is too large for one statement, in the same transaction.
const sqlFlushRest = `
insert into segment (partition_id, base, count, created_at, bytes, format, hashes, frames)
select a.partition_id, a.base, a.count, greatest(m.at, a.last_at), a.bytes, a.format, a.hashes, a.frames
from unnest($3::integer[], $4::bigint[], $5::bigint[], $6::integer[], $7::timestamptz[],
            $8::integer[], $9::smallint[], $10::bytea[], $11::bytea[])
     as a (shard, partition_id, base, count, last_at, bytes, format, hashes, frames)
join unnest($1::integer[], $2::timestamptz[]) as m (id, at) on m.id = a.shard`

// headArgs are the first parameters of sqlFlush: what is claimed of each shard.
func (f *flight) headArgs(offset time.Duration) []any {
	var ids []int32
	var heads, tokens []int64
	var entries [][]byte
	for _, sf := range f.shards {
		ids = append(ids, int32(sf.shard.id))
		heads = append(heads, sf.head)
		tokens = append(tokens, sf.token)
		runs := make([]appended, len(sf.lanes))
		for i, lf := range sf.lanes {
			runs[i] = appended{lf.part.queue.id, lf.part.id, lf.base, int64(len(lf.accepted))}
		}
		entries = append(entries, encodeAppends(nil, runs))
	}
	return []any{ids, heads, tokens, entries, offset}
}

// sizes are the sizes of what is appended to each shard.
func (f *flight) sizes() [][]byte {
	sizes := make([][]byte, len(f.shards))
	for i, sf := range f.shards {
		sizes[i] = encodeSizes(sf.lanes)
	}
	return sizes
}

// segmentArgs are the rows of the segment table that a flight appends, column by column.
type segmentArgs struct {
	shards, counts, sizes []int32
	partitions, bases     []int64
	lastAt                []time.Time
	formats               []int16
	hashes, frames        [][]byte
}

func (a *segmentArgs) list() []any {
	return []any{a.shards, a.partitions, a.bases, a.counts, a.lastAt, a.sizes, a.formats, a.hashes, a.frames}
}

// segmentArgs cuts what a flight appends into statements of a bounded size.
func (f *flight) segmentArgs() []*segmentArgs {
	args := &segmentArgs{}
	statements := []*segmentArgs{args}
	bytes := 0
	for _, sf := range f.shards {
		for _, lf := range sf.lanes {
			for i, s := range lf.segments {
				c := lf.columns[i]
				if bytes += len(c.frames); bytes > 2*flushMaxBytes {
					args, bytes = &segmentArgs{}, len(c.frames)
					statements = append(statements, args)
				}
				args.shards = append(args.shards, int32(sf.shard.id))
				args.partitions = append(args.partitions, lf.part.id)
				args.bases = append(args.bases, s.base)
				args.counts = append(args.counts, int32(len(s.starts)))
				args.lastAt = append(args.lastAt, lf.part.lastAt)
				args.sizes = append(args.sizes, int32(len(s.frames)))
				args.formats = append(args.formats, c.format)
				args.hashes = append(args.hashes, s.hashes)
				args.frames = append(args.frames, c.frames)
			}
		}
	}
	return statements
}

// send runs the compare-and-append and returns when each shard that moved did.
func (e *Engine) send(ctx context.Context, db querier, f *flight) (moved map[int]time.Time, err error) {
	statements := f.segmentArgs()
	if pool, ok := db.(*pgxpool.Pool); ok && len(statements) > 1 {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			moved, err = e.sendAll(ctx, tx, f, statements)
			return err
		})
		return moved, err
	}
	return e.sendAll(ctx, db, f, statements)
}

func (e *Engine) sendAll(ctx context.Context, db querier, f *flight, statements []*segmentArgs) (map[int]time.Time, error) {
	args := append(f.headArgs(e.clockOffset()), statements[0].list()...)
	rows, _ := db.Query(ctx, sqlFlush, append(args, e.latest(ctx), f.sizes())...) // its error comes with the rows
	moved := make(map[int]time.Time, len(f.shards))
	var id int
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&id, &at}, func() error {
		moved[id] = at
		return nil
	})
	if err != nil || len(statements) == 1 {
		return moved, err
	}
	var ids []int32
	var times []time.Time
	for id, at := range moved {
		ids, times = append(ids, int32(id)), append(times, at)
	}
	for _, rest := range statements[1:] {
		if _, err := db.Exec(ctx, sqlFlushRest, append([]any{ids, times}, rest.list()...)...); err != nil {
			return nil, err
		}
	}
	return moved, nil
}

// fly sends a flight and settles each of its shards.
func (e *Engine) fly(ctx context.Context, f *flight) {
	if len(f.shards) == 0 {
		return
	}
	started := time.Now()
	bounded, cancel := e.deadline(ctx)
	moved, err := e.send(bounded, e.pool, f)
	cancel()
	e.metrics.flushed(f, time.Since(started), err)
	if err != nil {
		e.settleAllUnknown(ctx, f, err)
		return
	}
	for _, sf := range f.shards {
		if at, ok := moved[sf.shard.id]; ok {
			e.clock.Observe(at)
			e.settle(sf, at)
		} else {
			e.settleLost(ctx, sf)
		}
		e.releaseShard(sf.shard)
	}
}

// settleAllUnknown finds out what became of each shard of a flight whose statement failed, of all at
// the same time: a database that does not answer is waited for once.
func (e *Engine) settleAllUnknown(ctx context.Context, f *flight, cause error) {
	var mu sync.Mutex
	var failed []*pushGroup
	var wait sync.WaitGroup
	for _, sf := range f.shards {
		wait.Go(func() {
			groups := e.settleUnknown(ctx, sf, cause)
			e.releaseShard(sf.shard)
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, groups...)
		})
	}
	wait.Wait()
	e.giveUp(failed, cause)
}

// settle takes an append that is committed into memory and answers its groups.
func (e *Engine) settle(sf *shardFlight, at time.Time) {
	s := sf.shard
	var segments []*segment
	s.mu.Lock()
	for _, lf := range sf.lanes {
		p := lf.part
		count := int64(len(lf.accepted))
		created := at
		if created.Before(p.lastAt) {
			created = p.lastAt
		}
		p.dedup.settle(lf.base, count, created)
		s.remeasure(p)
		p.next, p.lastAt, p.flight = lf.base+count, created, nil
		p.grow(p.next, created)
		for _, seg := range lf.segments {
			seg.created = created
			segments = append(segments, seg)
		}
	}
	s.folded = sf.head + 1
	s.reclaim()
	s.mu.Unlock()

	e.traffic.appended(sf.lanes)
	e.segments.add(segments...)
	e.pops.appended(sf.lanes) // before the answers: what is queued is visible at once
	for _, g := range sf.groups {
		for i := range g.entries {
			if en := &g.entries[i]; en.winner != nil {
				en.origin, en.winner = en.winner.id, nil
			}
		}
	}
	for _, g := range sf.groups {
		g.done()
	}
}

// rollback forgets an append that did not happen.
func (sf *shardFlight) rollback() {
	sf.shard.mu.Lock()
	defer sf.shard.mu.Unlock()
	for _, lf := range sf.lanes {
		lf.part.flight = nil
		if lf.part.dedup != nil {
			lf.part.dedup.rollback()
		}
	}
}

// settleLost catches up with whoever moved the head and puts the groups back, to be decided again.
func (e *Engine) settleLost(ctx context.Context, sf *shardFlight) {
	e.metrics.appendConflicts.Inc()
	s := sf.shard
	sf.rollback()
	s.mu.Lock()
	s.contended = contendedFlushes
	s.mu.Unlock()
	if _, err := e.fold(ctx, e.pool, s, nil); err != nil {
		e.giveUp(sf.groups, err)
		return
	}
	s.requeue(sf.groups)
}

// settleUnknown finds out what became of a flush whose statement failed. A commit may have
// happened without its answer arriving: then the log holds the flush's token. It returns the groups
// that have failed for good.
func (e *Engine) settleUnknown(ctx context.Context, sf *shardFlight, cause error) (failed []*pushGroup) {
	unknown := pg.UnknownOutcome(cause)
	if unknown {
		e.metrics.unknownCommits.Inc()
	}
	e.dropConnections(cause)
	if !unknown && !pg.Unavailable(cause) && !pg.Retryable(cause) {
		return e.settleRefused(sf)
	}
	if e.outage.spool != nil && errors.Is(cause, context.DeadlineExceeded) {
		// Asking would take as long again. The replay finds what has been stored all the same.
		sf.rollback()
		return sf.groups
	}
	landed, err := e.fold(ctx, e.pool, sf.shard, sf)
	switch {
	case err != nil:
		sf.rollback()
		return sf.groups
	case landed:
		e.metrics.unknownLanded.Inc()
		e.log.Warn("a commit whose answer was lost had happened", "shard", sf.shard.id, "groups", len(sf.groups), "cause", cause)
		return nil
	}
	return sf.retry(cause)
}

// retry puts the groups back once more with the ids they have; a second failure is final.
func (sf *shardFlight) retry(cause error) (failed []*pushGroup) {
	var again []*pushGroup
	for _, g := range sf.groups {
		if g.tries++; g.tries > 1 && !pg.Retryable(cause) || g.tries > maxRaces {
			failed = append(failed, g)
			continue
		}
		again = append(again, g)
	}
	sf.shard.requeue(again)
	return failed
}

// settleRefused isolates the group that PostgreSQL refuses: the groups of a bundle fly alone.
func (e *Engine) settleRefused(sf *shardFlight) (failed []*pushGroup) {
	sf.rollback()
	if len(sf.groups) == 1 && sf.groups[0].alone {
		return sf.groups
	}
	for _, g := range sf.groups {
		g.alone = true
	}
	sf.shard.requeue(sf.groups)
	return nil
}

// flushLocked flushes one claimed shard that other brokers append to as well: it locks the head,
// catches up, decides and appends in one transaction, so that the race cannot be lost.
func (e *Engine) flushLocked(ctx context.Context, s *shard) {
	defer e.releaseShard(s)
	started := time.Now()
	bounded, cancel := e.deadline(ctx)
	defer cancel()
	f := &flight{}
	var sf *shardFlight
	at, err := e.lockAndAppend(bounded, f, s, &sf)
	if sf == nil || len(sf.lanes) == 0 {
		if err != nil {
			e.dropConnections(err)
			e.failFirst(s, err)
		}
		return
	}
	e.metrics.flushed(f, time.Since(started), err)
	switch {
	case err != nil:
		e.giveUp(e.settleUnknown(ctx, sf, err), err)
	case at.IsZero(): // the statement came too late to have an effect
		sf.rollback()
		e.giveUp(sf.retry(context.DeadlineExceeded), context.DeadlineExceeded)
	default:
		e.clock.Observe(at)
		e.settle(sf, at)
	}
}

const sqlLockHead = `select head from shard where id = $1 for update`

func (e *Engine) lockAndAppend(ctx context.Context, f *flight, s *shard, boarded **shardFlight) (time.Time, error) {
	tx, err := e.pool.Begin(ctx)
	if err != nil {
		return time.Time{}, err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit there is nothing to roll back
	var head int64
	if err := tx.QueryRow(ctx, sqlLockHead, s.id).Scan(&head); err != nil {
		return time.Time{}, err
	}
	if head > s.folded { // only the holder of busy moves folded
		if _, err := e.foldOnce(ctx, tx, s, nil); err != nil {
			return time.Time{}, err
		}
	}
	sf := e.decide(f, s)
	if len(sf.lanes) == 0 {
		return time.Time{}, nil
	}
	*boarded = sf
	f.shards = []*shardFlight{sf}
	moved, err := e.send(ctx, tx, f)
	if err != nil {
		return time.Time{}, err
	}
	return moved[s.id], tx.Commit(ctx)
}

// failFirst charges a failed attempt to the groups that wait; those that had their second are answered.
func (e *Engine) failFirst(s *shard, err error) {
	s.mu.Lock()
	var kept, failed []*pushGroup
	for _, g := range s.pending {
		if g.tries++; g.tries > 1 {
			failed = append(failed, g)
		} else {
			kept = append(kept, g)
		}
	}
	s.pending = kept
	s.mu.Unlock()
	e.giveUp(failed, err)
}
