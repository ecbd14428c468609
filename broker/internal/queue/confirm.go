package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// confirmGroups is the work of the confirmer: it asks the log about the possible duplicates of
// groups, and puts the groups back to be decided with what it answered.
func (e *Engine) confirmGroups(groups []*pushGroup) {
	err := e.retrying(e.ctx, "confirm duplicates", func(ctx context.Context) error {
		asks := e.askOf(groups)
		if err := e.readChunks(ctx, asks); err != nil {
			return err
		}
		return e.readOrigins(ctx, asks)
	})
	if err != nil {
		e.giveUp(groups, err)
		return
	}
	touched := map[*shard][]*pushGroup{}
	for _, g := range groups {
		touched[g.part.shard] = append(touched[g.part.shard], g)
	}
	for s, groups := range touched {
		s.requeue(groups)
	}
	e.wakeWriters()
}

// ask is what one group wants to know of the log.
type ask struct {
	group   *pushGroup
	offsets map[int64]struct{}             // stored messages to compare with
	chunks  map[*chunk]map[uint64]struct{} // hashes to look for in a thinned-out chunk
	after   time.Time
}

// askOf collects what the groups' lookups hit and is not known yet.
func (e *Engine) askOf(groups []*pushGroup) []*ask {
	now := e.clock.Now()
	asks := make([]*ask, 0, len(groups))
	for _, g := range groups {
		p := g.part
		a := &ask{
			group:   g,
			offsets: map[int64]struct{}{},
			chunks:  map[*chunk]map[uint64]struct{}{},
			after:   g.horizon(p.queue.config.Load().options.DedupWindow, now).Add(-expiryMargin),
		}
		asks = append(asks, a)
		p.shard.mu.Lock()
		if p.dedup != nil {
			for i := range g.entries {
				for _, h := range p.dedup.lookup(g.entries[i].hash, a.after) {
					if h.chunk != nil || h.offset < p.next { // what is in the air, the log cannot answer yet
						a.want(h, g.entries[i].hash)
					}
				}
			}
		}
		p.shard.mu.Unlock()
	}
	return asks
}

func (a *ask) want(h hit, hash uint64) {
	if h.chunk == nil {
		if _, known := a.group.facts.origins[h.offset]; !known {
			a.offsets[h.offset] = struct{}{}
		}
		return
	}
	if _, known := a.group.facts.offsets[h.chunk.key(hash)]; known {
		return
	}
	if a.chunks[h.chunk] == nil {
		a.chunks[h.chunk] = map[uint64]struct{}{}
	}
	a.chunks[h.chunk][hash] = struct{}{}
}

const sqlChunkHashes = `
select base, hashes from segment
where partition_id = $1 and base >= $2 and base < $3 and created_at > $4
order by base`

// readChunks looks for hashes in the log, where memory has only a filter of them or nothing.
func (e *Engine) readChunks(ctx context.Context, asks []*ask) error {
	for _, a := range asks {
		if len(a.chunks) > 0 && a.group.facts.offsets == nil {
			a.group.facts.offsets = map[chunkHash][]int64{}
		}
		for c, wanted := range a.chunks {
			rows, _ := e.pool.Query(ctx, sqlChunkHashes, a.group.part.id, c.base, c.end, a.after) // its error comes with the rows
			found, err := findHashes(rows, wanted)
			if err != nil {
				return err
			}
			for hash := range wanted {
				a.group.facts.offsets[c.key(hash)] = found[hash]
				for _, offset := range found[hash] {
					a.offsets[offset] = struct{}{}
				}
			}
		}
	}
	return nil
}

// findHashes returns the offsets of wanted hashes in rows of base and hashes.
func findHashes(rows pgx.Rows, wanted map[uint64]struct{}) (map[uint64][]int64, error) {
	found := map[uint64][]int64{}
	var base int64
	var hashes []byte
	_, err := pgx.ForEachRow(rows, []any{&base, &hashes}, func() error {
		for i := range len(hashes) / 8 {
			hash := hashAt(hashes, i)
			if _, ok := wanted[hash]; ok {
				found[hash] = append(found[hash], base+int64(i))
			}
		}
		return nil
	})
	return found, err
}

const sqlOrigins = `
select w.i, ` + segmentColumns + `
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as w (i, partition_id, log_offset)
join lateral (
    select * from segment
    where partition_id = w.partition_id and base <= w.log_offset order by base desc limit 1
) g on g.base + g.count > w.log_offset
order by w.i`

// readOrigins reads the stored messages that may be originals.
func (e *Engine) readOrigins(ctx context.Context, asks []*ask) error {
	type place struct {
		ask    *ask
		offset int64
	}
	var places []place
	var index []int32
	var partitions, offsets []int64
	for _, a := range asks {
		for offset := range a.offsets {
			index = append(index, int32(len(places)))
			places = append(places, place{a, offset})
			partitions = append(partitions, a.group.part.id)
			offsets = append(offsets, offset)
		}
	}
	if len(places) == 0 {
		return nil
	}
	found := make([]origin, len(places))
	for i := range found {
		found[i].gone = true // until a row says otherwise
	}
	rows, err := e.pool.Query(ctx, sqlOrigins, index, partitions, offsets)
	if err != nil {
		return err
	}
	var i int
	var row segmentRow
	_, err = pgx.ForEachRow(rows, append([]any{&i}, row.fields()...), func() error {
		at := places[i]
		if row.frames == nil {
			found[i] = origin{erased: true, at: row.created}
			return nil
		}
		s, err := unpack(&row)
		if err != nil {
			return err
		}
		e.segments.add(s)
		f, err := s.frame(at.offset)
		if err != nil {
			return err
		}
		found[i] = origin{id: f.id, txID: f.transactionID(), at: f.accepted(row.created)}
		return nil
	})
	if err != nil {
		return err
	}
	for i, at := range places {
		facts := &at.ask.group.facts
		if facts.origins == nil {
			facts.origins = map[int64]origin{}
		}
		facts.origins[at.offset] = found[i]
	}
	return nil
}
