package queue

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The counts of what each partition retains are kept by adding up the flush rows, which say what each
// append did (table partition_count). How far that has come stands in count_progress and moves in the same
// transaction, so that each flush counts once, whichever broker adds it up and whatever crashes. A flush
// row is only trimmed when it has been counted.

// countStep is how many flush rows are added up in one transaction at most.
const countStep = 4000

// countDelta is what is to be added to the counts of a partition.
type countDelta struct {
	messages, segments, bytes int64
	start, tail               int64
	lastAt                    time.Time
}

// encodeSizes says for each run of a flush how many segments and bytes of frames it appended.
func encodeSizes(lanes []*laneFlight) []byte {
	var b []byte
	for _, lf := range lanes {
		var bytes int
		for _, c := range lf.columns {
			bytes += len(c.frames)
		}
		b = binary.AppendUvarint(b, uint64(len(lf.segments)))
		b = binary.AppendUvarint(b, uint64(bytes))
	}
	return b
}

// runSize is the size of one run.
type runSize struct{ segments, bytes int64 }

// decodeSizes decodes the sizes of n runs.
func decodeSizes(b []byte, n int) ([]runSize, error) {
	sizes := make([]runSize, n)
	for i := range sizes {
		for _, v := range [...]*int64{&sizes[i].segments, &sizes[i].bytes} {
			value, size := binary.Uvarint(b)
			if size <= 0 {
				return nil, fmt.Errorf("%w: flush sizes", errCorrupt)
			}
			*v, b = int64(value), b[size:]
		}
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: flush sizes", errCorrupt)
	}
	return sizes, nil
}

// countRequest is a caller that wants every append that was committed before the call to be counted.
type countRequest struct {
	done chan error
}

// count adds up what was appended and is not counted yet. It waits no longer than ctx, though the round may go on: it may
// have to wait for the one before it.
func (e *Engine) count(ctx context.Context) error {
	r := &countRequest{done: make(chan error, 1)}
	e.counts.Add(r)
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("count messages: %w: %w", ErrUnavailable, ctx.Err())
	}
}

// countFor is the work of the counter: one round serves everybody who waits.
func (e *Engine) countFor(requests []*countRequest) {
	err := e.countAll(e.ctx)
	for _, r := range requests {
		r.done <- err
	}
}

func (e *Engine) countAll(ctx context.Context) error {
	for {
		var rows int
		err := e.retrying(ctx, "count messages", func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) (err error) {
				rows, err = countOnce(ctx, tx)
				return err
			})
		})
		if err != nil || rows < countStep {
			return err
		}
	}
}

// The lock makes one broker at a time add up; the next statement sees what it did.
const sqlLockCounts = `select shard from count_progress order by shard for update`

const sqlUncounted = `
select f.shard, f.seq, f.entries, f.sizes, f.created_at
from count_progress c join flush f on f.shard = c.shard and f.seq > c.seq
order by f.shard, f.seq limit $1`

// A partition that is gone meanwhile is not counted. Counts only ever add up: what retention has subtracted
// may come before what it removed is added.
const sqlAddCounts = `
insert into partition_count as c (partition_id, queue_id, messages, segments, bytes, start, tail, last_at)
select p.id, p.queue_id, w.messages, w.segments, w.bytes, w.start, w.tail, w.last_at
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::timestamptz[])
     as w (partition_id, messages, segments, bytes, start, tail, last_at)
join partition p on p.id = w.partition_id
order by p.id
on conflict (partition_id) do update set
    messages = c.messages + excluded.messages,
    segments = c.segments + excluded.segments,
    bytes    = c.bytes + excluded.bytes,
    tail     = greatest(c.tail, excluded.tail),
    last_at  = greatest(c.last_at, excluded.last_at)`

const sqlMoveCounts = `
update count_progress c set seq = w.seq
from unnest($1::integer[], $2::bigint[]) as w (shard, seq) where c.shard = w.shard`

// uncounted is a run of a flush with its size, if the flush row says it.
type uncounted struct {
	appended
	runSize
	sized   bool
	created time.Time
}

// countOnce adds up some of the flush rows and returns how many.
func countOnce(ctx context.Context, tx pgx.Tx) (int, error) {
	if _, err := tx.Exec(ctx, sqlLockCounts); err != nil {
		return 0, err
	}
	runs, progress, read, err := readUncounted(ctx, tx)
	if err != nil || read == 0 {
		return 0, err
	}
	if err := sizeRuns(ctx, tx, runs); err != nil {
		return 0, err
	}
	deltas := map[int64]*countDelta{}
	for i := range runs {
		r := &runs[i]
		d := deltas[r.partitionID]
		if d == nil {
			d = &countDelta{start: r.base}
			deltas[r.partitionID] = d
		}
		d.messages += r.count
		d.segments += r.segments
		d.bytes += r.bytes
		d.start = min(d.start, r.base)
		d.tail = max(d.tail, r.base+r.count)
		if r.created.After(d.lastAt) {
			d.lastAt = r.created
		}
	}
	if err := addCounts(ctx, tx, deltas); err != nil {
		return 0, err
	}
	shards, seqs := make([]int32, 0, len(progress)), make([]int64, 0, len(progress))
	for shard, seq := range progress {
		shards, seqs = append(shards, shard), append(seqs, seq)
	}
	_, err = tx.Exec(ctx, sqlMoveCounts, shards, seqs)
	return read, err
}

func readUncounted(ctx context.Context, tx pgx.Tx) (runs []uncounted, progress map[int32]int64, read int, err error) {
	progress = map[int32]int64{}
	var shard int32
	var seq int64
	var entries, sizes []byte
	var created time.Time
	rows, _ := tx.Query(ctx, sqlUncounted, countStep) // its error comes with the rows
	_, err = pgx.ForEachRow(rows, []any{&shard, &seq, &entries, &sizes, &created}, func() error {
		read++
		progress[shard] = seq
		did, err := decodeEntries(entries)
		if err != nil {
			return err
		}
		appends := did.appends
		var known []runSize
		if sizes != nil {
			if known, err = decodeSizes(sizes, len(appends)); err != nil {
				return err
			}
		}
		for i, a := range appends {
			run := uncounted{appended: a, created: created}
			if known != nil {
				run.runSize, run.sized = known[i], true
			}
			runs = append(runs, run)
		}
		return nil
	})
	return runs, progress, read, err
}

const sqlRunSizes = `
select w.i, count(*), coalesce(sum(octet_length(g.frames)), 0)
from unnest($1::integer[], $2::bigint[], $3::bigint[], $4::bigint[]) as w (i, partition_id, base, count)
join segment g on g.partition_id = w.partition_id and g.base >= w.base and g.base < w.base + w.count
group by w.i`

// sizeRuns asks the log for the sizes that flush rows do not say.
func sizeRuns(ctx context.Context, tx pgx.Tx, runs []uncounted) error {
	var index []int32
	var partitions, bases, counts []int64
	for i := range runs {
		if r := &runs[i]; !r.sized {
			index, partitions = append(index, int32(i)), append(partitions, r.partitionID)
			bases, counts = append(bases, r.base), append(counts, r.count)
		}
	}
	if len(index) == 0 {
		return nil
	}
	var i int
	var size runSize
	rows, _ := tx.Query(ctx, sqlRunSizes, index, partitions, bases, counts) // its error comes with the rows
	_, err := pgx.ForEachRow(rows, []any{&i, &size.segments, &size.bytes}, func() error {
		runs[i].runSize = size
		return nil
	})
	return err
}

func addCounts(ctx context.Context, db querier, deltas map[int64]*countDelta) error {
	n := len(deltas)
	ids := slices.Sorted(maps.Keys(deltas))
	messages, segments, bytes := make([]int64, n), make([]int64, n), make([]int64, n)
	starts, tails := make([]int64, n), make([]int64, n)
	times := make([]time.Time, n)
	for i, id := range ids {
		d := deltas[id]
		messages[i], segments[i], bytes[i] = d.messages, d.segments, d.bytes
		starts[i], tails[i], times[i] = d.start, d.tail, d.lastAt
	}
	_, err := db.Exec(ctx, sqlAddCounts, ids, messages, segments, bytes, starts, tails, times)
	return err
}

// removedRun is what was removed from the front of a partition: the frames of whole segments.
type removedRun struct {
	partitionID int64
	messages    int64
	segments    int64
	bytes       int64 // octet_length of their frames columns
	start       int64 // first offset that is still retained, or the end of what was removed
}

const sqlSubtractCounts = `
insert into partition_count as c (partition_id, queue_id, messages, segments, bytes, start, tail, last_at)
select p.id, p.queue_id, -w.messages, -w.segments, -w.bytes, w.start, w.start, to_timestamp(0)
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
     as w (partition_id, messages, segments, bytes, start)
join partition p on p.id = w.partition_id
order by p.id
on conflict (partition_id) do update set
    messages = c.messages + excluded.messages,
    segments = c.segments + excluded.segments,
    bytes    = c.bytes + excluded.bytes,
    start    = greatest(c.start, excluded.start)`

// subtractCounts takes removed messages off the counts. Whoever empties the frames of segments, or deletes
// segments that still have frames, calls it in the same transaction, once per removed segment: deleting a
// segment whose frames were emptied before changes no count. Partitions may come in any order and more
// than once; their rows are locked by ascending id. It does not matter whether the append of what was
// removed has been counted yet.
func subtractCounts(ctx context.Context, tx querier, removed []removedRun) error {
	sums := map[int64]removedRun{}
	for _, r := range removed {
		sum := sums[r.partitionID]
		sum.messages += r.messages
		sum.segments += r.segments
		sum.bytes += r.bytes
		sum.start = max(sum.start, r.start)
		sums[r.partitionID] = sum
	}
	n := len(sums)
	ids := slices.Sorted(maps.Keys(sums))
	messages, segments, bytes, starts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i, id := range ids {
		s := sums[id]
		messages[i], segments[i], bytes[i], starts[i] = s.messages, s.segments, s.bytes, s.start
	}
	_, err := tx.Exec(ctx, sqlSubtractCounts, ids, messages, segments, bytes, starts)
	return err
}
