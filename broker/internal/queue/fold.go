package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// foldedRun is what another broker appended to a partition.
type foldedRun struct {
	appended
	seq     int64
	created time.Time
	hashes  []byte // nil when the lane was cold
	missing bool   // hashes that were asked for are not there: retention came first
}

// foldedRow is a flush row of another broker, or a deletion.
type foldedRow struct {
	seq     int64
	token   int64
	entries []byte
	created time.Time
}

// foldTo makes sure that everything up to the head is in memory.
func (e *Engine) foldTo(ctx context.Context, s *shard, head int64) error {
	s.mu.Lock()
	for s.folded < head && s.busy {
		s.settled.Wait()
	}
	if s.folded >= head {
		s.mu.Unlock()
		return nil
	}
	s.busy = true
	s.mu.Unlock()
	defer e.releaseShard(s)
	_, err := e.fold(ctx, e.pool, s, nil)
	return err
}

// fold takes into memory what was appended to a shard since the last fold. With a flight of our
// own whose outcome is unknown it settles or rolls back that flight, and reports whether it had landed.
// The caller holds busy.
func (e *Engine) fold(ctx context.Context, db *pgxpool.Pool, s *shard, own *shardFlight) (landed bool, err error) {
	err = e.retrying(ctx, "catch up with other brokers", func(ctx context.Context) error {
		var err error
		landed, err = e.foldOnce(ctx, db, s, own)
		return err
	})
	return landed, err
}

const sqlFlushes = `
select s.head, coalesce(f.seq, 0), coalesce(f.token, 0), coalesce(f.entries, ''), coalesce(f.created_at, to_timestamp(0))
from shard s left join flush f on f.shard = s.id and f.seq > $2 and f.seq <= s.head
where s.id = $1
order by f.seq`

func (e *Engine) foldOnce(ctx context.Context, db querier, s *shard, own *shardFlight) (landed bool, err error) {
	rows, head, err := readFlushes(ctx, db, s)
	if err != nil {
		return false, err
	}
	if head > s.folded && (len(rows) == 0 || rows[0].seq != s.folded+1) {
		if own != nil {
			own.rollback()
		}
		e.log.Warn("the flush log was trimmed before this broker read it", "shard", s.id, "from", s.folded, "to", head)
		e.resetShard(s, head)
		return false, nil
	}
	var runs []foldedRun
	var deleted, cleanedUp []int64
	foreign := rows
	if own != nil && len(rows) > 0 && rows[0].token == own.token {
		foreign = rows[1:]
		landed = true
	}
	for _, row := range foreign {
		did, err := decodeEntries(row.entries)
		if err != nil {
			return false, err
		}
		if did.deletedQueue != 0 {
			deleted = append(deleted, did.deletedQueue)
		}
		cleanedUp = append(cleanedUp, did.cleanedUp...)
		for _, a := range did.appends {
			runs = append(runs, foldedRun{appended: a, seq: row.seq, created: row.created})
		}
	}
	if err := e.readFolded(ctx, db, runs); err != nil {
		return false, err
	}
	// From here on nothing fails: the memory changes as a whole.
	switch {
	case landed:
		e.settle(own, rows[0].created)
	case own != nil:
		own.rollback()
	}
	s.mu.Lock()
	for i := range runs {
		e.applyRun(s, &runs[i])
	}
	s.folded = max(s.folded, head)
	s.mu.Unlock()
	for _, id := range deleted {
		e.queueDeleted(id)
	}
	for _, id := range cleanedUp {
		e.partitionRemoved(id)
	}
	e.pops.folded(runs)
	return landed, nil
}

func readFlushes(ctx context.Context, db querier, s *shard) (flushes []foldedRow, head int64, err error) {
	rows, err := db.Query(ctx, sqlFlushes, s.id, s.folded)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var r foldedRow
		if err := rows.Scan(&head, &r.seq, &r.token, &r.entries, &r.created); err != nil {
			return nil, 0, err
		}
		if r.seq > 0 {
			flushes = append(flushes, r)
		}
	}
	return flushes, head, rows.Err()
}

const sqlFoldedSegments = `
select w.i, g.created_at, g.hashes
from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[]) as w (i, partition_id, base, count)
join segment g on g.partition_id = w.partition_id and g.base >= w.base and g.base < w.base + w.count
order by w.i, g.base`

// readFolded reads the hashes of the runs whose lanes are warm or being loaded.
func (e *Engine) readFolded(ctx context.Context, db querier, runs []foldedRun) error {
	var index []int32
	var partitions, bases, counts []int64
	for i := range runs {
		r := &runs[i]
		p := e.catalog.partitionByID(r.partitionID)
		if p == nil || !p.remembers() {
			continue
		}
		index = append(index, int32(i))
		partitions = append(partitions, r.partitionID)
		bases = append(bases, r.base)
		counts = append(counts, r.count)
	}
	if len(index) == 0 {
		return nil
	}
	rows, err := db.Query(ctx, sqlFoldedSegments, index, partitions, bases, counts)
	if err != nil {
		return err
	}
	var i int
	var created time.Time
	var hashes []byte
	_, err = pgx.ForEachRow(rows, []any{&i, &created, &hashes}, func() error {
		runs[i].hashes = append(runs[i].hashes, hashes...)
		runs[i].created = created
		return nil
	})
	for _, i := range index {
		if r := &runs[i]; int64(len(r.hashes)) != 8*r.count {
			r.hashes, r.missing = nil, true
		}
	}
	return err
}

// remembers reports whether what others append to the lane must be read.
func (p *partition) remembers() bool {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	return p.dedup != nil || p.loading
}

// applyRun takes one foreign append into memory. The caller holds the shard's mu.
func (e *Engine) applyRun(s *shard, r *foldedRun) {
	p := e.catalog.partitionByID(r.partitionID)
	if p == nil {
		return
	}
	p.grow(r.base+r.count, r.created)
	switch {
	case p.loading && r.missing:
		p.stale = true
	case p.loading:
		if r.hashes != nil { // otherwise the load began later, and sees this append
			p.missed = append(p.missed, *r)
		}
	case p.dedup != nil:
		if r.hashes == nil && r.seq > p.at {
			s.evict(p) // warmed up after the hashes were read, or retention has removed them
			return
		}
		p.fold(s, r)
	}
}

// fold adds a foreign append to a warm lane. The caller holds the shard's mu.
func (p *partition) fold(s *shard, r *foldedRun) {
	if r.seq <= p.at {
		return
	}
	p.dedup.fold(r.hashes, r.base, r.created)
	p.next = r.base + r.count
	p.lastAt = r.created
	s.remeasure(p)
}

// resetShard forgets all lanes of a shard: what other brokers appended in between is not known.
func (e *Engine) resetShard(s *shard, head int64) {
	s.mu.Lock()
	for s.warm.Len() > 0 {
		s.evict(s.warm.Front().Value.(*partition))
	}
	e.catalog.mu.RLock()
	for _, p := range e.catalog.byID {
		if p.shard == s && p.loading {
			p.stale = true
		}
	}
	e.catalog.mu.RUnlock()
	s.folded = head
	s.mu.Unlock()
	e.pops.forgetTails()
}

var errNoHead = errors.New("shard row is missing")

const sqlLoadLanes = `
select w.i, s.head, q.id is not null, p.id is not null, coalesce(t.tail, 0), coalesce(t.last_at, to_timestamp(0)),
       f.base, coalesce(g.base, 0), coalesce(g.created_at, to_timestamp(0)), coalesce(g.hashes, '')
from unnest($2::integer[], $3::bigint[], $4::timestamptz[], $5::bigint[]) as w (i, id, since, queue_id)
join shard s on s.id = $1
left join partition p on p.id = w.id
left join queue q on q.id = w.queue_id
left join lateral (
    select base + count as tail, created_at as last_at from segment
    where partition_id = w.id order by base desc limit 1
) t on true
cross join lateral (
    select coalesce((
        select x.base + x.count from segment x
        where x.partition_id = w.id and x.created_at <= w.since order by x.base desc limit 1
    ), 0) as base
) f
left join segment g on g.partition_id = w.id and g.base >= f.base
order by w.i, g.base`

// loaded is what a load read of one lane.
type loaded struct {
	queueExists bool
	exists      bool
	head        int64
	tail        int64
	lastAt      time.Time
	dedup       *dedup
}

// loadShards is the work of the loader: it warms up the lanes that groups wait for. The lanes and
// the shard's head are read in one snapshot, which says up to which append the memory is complete.
func (e *Engine) loadShards(shards []*shard) {
	for _, s := range shards {
		s.mu.Lock()
		lanes := s.cold
		s.cold = nil
		for _, p := range lanes {
			p.stale, p.missed = false, nil
		}
		s.mu.Unlock()
		if len(lanes) > 0 {
			e.loadLanes(s, lanes)
		}
	}
}

func (e *Engine) loadLanes(s *shard, lanes []*partition) {
	var results []loaded
	err := e.retrying(e.ctx, "load the transaction ids of partitions", func(ctx context.Context) error {
		var err error
		results, err = e.readLanes(ctx, s, lanes)
		return err
	})
	var failed, homeless []*pushGroup
	var goneQueues, goneParts []int64
	again := false
	s.mu.Lock()
	for i, p := range lanes {
		switch {
		case err != nil:
			p.loading = false
			failed = append(failed, p.waiting...)
		case !results[i].queueExists:
			p.loading = false
			homeless = append(homeless, p.waiting...)
			goneQueues = append(goneQueues, p.queue.id)
		case !results[i].exists:
			p.loading = false
			homeless = append(homeless, p.waiting...)
			goneParts = append(goneParts, p.id)
		case p.stale:
			s.cold = append(s.cold, p)
			again = true
			continue
		default:
			e.warmUp(s, p, &results[i])
			s.pending = append(p.waiting, s.pending...)
		}
		p.waiting, p.missed = nil, nil
	}
	s.settled.Broadcast() // transactions wait for lanes
	s.mu.Unlock()
	for _, id := range goneQueues {
		e.queueDeleted(id)
	}
	for _, id := range goneParts {
		e.partitionRemoved(id)
	}
	e.giveUp(failed, err)
	e.resubmit(homeless)
	if again {
		e.loader.Add(s)
	}
	e.wakeWriters()
}

// warmUp installs what a load read. The caller holds the shard's mu.
func (e *Engine) warmUp(s *shard, p *partition, l *loaded) {
	p.loading = false
	p.dedup, p.at, p.next, p.lastAt = l.dedup, l.head, l.tail, l.lastAt
	s.bytes += p.dedup.measure()
	s.touch(p)
	for i := range p.missed {
		p.fold(s, &p.missed[i])
	}
	p.grow(p.next, p.lastAt)
}

// lookBack is from when on a lane's ids are loaded: as far back as the groups that wait for it need.
func (e *Engine) lookBack(s *shard, p *partition, now time.Time) time.Time {
	window := p.queue.config.Load().options.DedupWindow
	since := now.Add(-window)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range p.waiting {
		if horizon := g.horizon(window, now); horizon.Before(since) {
			since = horizon
		}
	}
	return since.Add(-expiryMargin)
}

func (e *Engine) readLanes(ctx context.Context, s *shard, lanes []*partition) ([]loaded, error) {
	now := e.clock.Now()
	results := make([]loaded, len(lanes))
	index := make([]int32, len(lanes))
	ids, queues := make([]int64, len(lanes)), make([]int64, len(lanes))
	since := make([]time.Time, len(lanes))
	for i, p := range lanes {
		index[i], ids[i], queues[i] = int32(i), p.id, p.queue.id
		since[i] = e.lookBack(s, p, now)
	}
	rows, err := e.pool.Query(ctx, sqlLoadLanes, s.id, index, ids, since, queues)
	if err != nil {
		return nil, err
	}
	var i int
	var row loaded
	var from, base int64
	var created time.Time
	var hashes []byte
	_, err = pgx.ForEachRow(rows, []any{&i, &row.head, &row.queueExists, &row.exists, &row.tail, &row.lastAt, &from, &base, &created, &hashes}, func() error {
		l := &results[i]
		if l.dedup == nil {
			*l = row
			l.dedup = &dedup{}
			if from > 0 { // otherwise the whole log is loaded: complete since ever
				l.dedup.since = since[i]
			}
		}
		if len(hashes) > 0 {
			l.dedup.fold(hashes, base, created)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range results {
		if results[i].dedup == nil {
			return nil, fmt.Errorf("%w: %d", errNoHead, s.id)
		}
	}
	return results, nil
}
