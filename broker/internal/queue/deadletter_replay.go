package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Replayed is one dead letter that was pushed again.
type Replayed struct {
	Queue, Partition string
	Result           PushResult
}

const (
	// replayMaxBytes bounds the payloads that one bulk replay pushes, unless a single one is larger.
	replayMaxBytes = 16 << 20
	// replayTries bounds how often a bulk replay chooses anew because others were first.
	replayTries = 5
)

// errTaken says that a dead letter that was to be replayed is not there any more.
var errTaken = fmt.Errorf("%w: somebody else was first", ErrMessageNotFound)

// The queue is held until the end, so that a replay into a queue that is being deleted either comes before the
// deletion or finds nothing.
const sqlTakeLetters = `
with held as materialized (
    select d.id from dead_letter d join queue q on q.id = d.queue_id
    where d.id = any ($1)
    order by d.id for update of d for key share of q
)
delete from dead_letter d using held h where d.id = h.id`

// takeLetters removes exactly these dead letters, in the transaction that pushes their messages.
func takeLetters(ids []int64) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlTakeLetters, ids)
		if err == nil && tag.RowsAffected() != int64(len(ids)) {
			err = errTaken
		}
		return err
	}
}

// replayItem is a dead letter as a new message: with a transaction id of its own, so that it is no duplicate. The error
// is an *UnreadableError: what is shown of one that cannot be decrypted is not what was pushed.
func (e *Engine) replayItem(d *DeadLetterEntry) (PushItem, error) {
	payload, err := e.opened(d.Queue, d.Partition, d.ID, d.Sealed, d.stored)
	return PushItem{
		Queue: d.Queue, Partition: d.Partition, TraceID: d.TraceID, Payload: payload, ProducerSub: d.ProducerSub,
	}, err
}

// RetryDeadLetter pushes the message of a dead letter to its partition again, under a fresh transaction id, and removes
// its dead letters, those of other groups included, in the same transaction. Of several messages with the transaction
// id it takes the one that failed last. ErrMessageNotFound when there is none, an *UnreadableError when it cannot be
// decrypted.
func (e *Engine) RetryDeadLetter(ctx context.Context, partitionID uuid.UUID, txID string) (Replayed, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	part, err := e.partitionByUUID(ctx, partitionID)
	if err != nil {
		return Replayed{}, err
	}
	if part == nil {
		return Replayed{}, ErrMessageNotFound
	}
	for range replayTries {
		var done Replayed
		if done, err = e.replayOne(ctx, part, txID); !errors.Is(err, errTaken) {
			return done, err
		}
	}
	return Replayed{}, err
}

func (e *Engine) replayOne(ctx context.Context, part *partition, txID string) (Replayed, error) {
	refs, err := e.lettersOf(ctx, part.id, txID)
	if err != nil {
		return Replayed{}, err
	}
	var ids []int64
	for _, r := range refs {
		if r.messageID == refs[0].messageID {
			ids = append(ids, r.id)
		}
	}
	if len(ids) == 0 {
		return Replayed{}, ErrMessageNotFound
	}
	entries, err := e.readLetters(ctx, ids[:1])
	if err != nil {
		return Replayed{}, err
	}
	if len(entries) == 0 { // it went in between, or its queue is gone
		return Replayed{}, errTaken
	}
	item, err := e.replayItem(&entries[0])
	if err != nil {
		return Replayed{}, err
	}
	slices.Sort(ids)
	out, err := e.Transact(ctx, Bundle{Push: []PushItem{item}, Also: takeLetters(ids)})
	if err != nil {
		return Replayed{}, err
	}
	return Replayed{Queue: entries[0].Queue, Partition: entries[0].Partition, Result: out.Pushed[0]}, nil
}

// BulkReplay is what ReplayDeadLetters did.
type BulkReplay struct {
	Replayed  int // messages pushed again
	Remaining int // dead letters that still match, counted up to CountMax
}

// ReplayDeadLetters replays dead letters of a queue as RetryDeadLetter does, oldest failure first, at most limit
// messages, all in one transaction; those of a partition in the order that they had. A message that several groups have
// filed is pushed once, and loses all of its dead letters that match. ErrQueueNotFound when there is no such queue, an
// *UnreadableError when one cannot be decrypted: then nothing is replayed. The filter must name the queue.
func (e *Engine) ReplayDeadLetters(ctx context.Context, f DeadLetterFilter, limit int) (BulkReplay, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	for range replayTries {
		done, err := e.replayOldest(ctx, f, limit)
		if errors.Is(err, errTaken) {
			continue
		}
		if err != nil {
			return BulkReplay{}, err
		}
		remaining, err := e.countDeadLetters(ctx, f)
		if err != nil { // what is done is done
			e.log.Warn("the dead letters that are left could not be counted", "err", err)
			remaining = 0
		}
		return BulkReplay{Replayed: done, Remaining: remaining}, nil
	}
	return BulkReplay{}, fmt.Errorf("replay dead letters: %w: %w", ErrUnavailable, errRace)
}

func (e *Engine) replayOldest(ctx context.Context, f DeadLetterFilter, limit int) (int, error) {
	chosen, err := e.oldestLetters(ctx, f, limit)
	if err != nil || len(chosen) == 0 {
		return 0, err
	}
	entries, err := e.withSiblings(ctx, f, chosen)
	if err != nil {
		return 0, err
	}
	var ids, read []int64
	var items []PushItem
	var bytes int64
	last := offsetKey{-1, -1}
	for _, r := range entries {
		if key := (offsetKey{r.partitionID, r.offset}); key != last {
			if bytes += r.size; bytes > replayMaxBytes && len(read) > 0 {
				break
			}
			last = key
			read = append(read, r.id)
		}
		ids = append(ids, r.id)
	}
	letters, err := e.readLetters(ctx, read)
	if err != nil {
		return 0, err
	}
	if len(letters) != len(read) {
		return 0, errTaken
	}
	for i := range letters {
		item, err := e.replayItem(&letters[i])
		if err != nil {
			return 0, err
		}
		items = append(items, item)
	}
	slices.Sort(ids)
	_, err = e.Transact(ctx, Bundle{Push: items, Also: takeLetters(ids)})
	return len(items), err
}

// sibling is a dead letter of a message that is to be replayed.
type sibling struct {
	id, partitionID, offset int64
	size                    int64
}

// withSiblings returns the chosen dead letters with those of the same messages that match as well, by partition and
// offset.
func (e *Engine) withSiblings(ctx context.Context, f DeadLetterFilter, chosen []int64) (list []sibling, err error) {
	var w sqlWriter
	w.write(`
select distinct d.id, d.partition_id, d.log_offset, octet_length(d.payload)
from dead_letter c
join queue q on q.id = c.queue_id
join dead_letter d on d.partition_id = c.partition_id and d.log_offset = c.log_offset
where c.id = any (`, w.arg(chosen), `)`)
	f.letters(&w, "failed_at")
	err = e.retrying(ctx, "choose dead letters", func(ctx context.Context) error {
		list = nil
		rows, _ := e.pool.Query(ctx, w.text.String(), w.args...) // its error comes with the rows
		var s sibling
		_, err := pgx.ForEachRow(rows, []any{&s.id, &s.partitionID, &s.offset, &s.size}, func() error {
			list = append(list, s)
			return nil
		})
		return err
	})
	slices.SortFunc(list, func(a, b sibling) int {
		return cmp.Or(cmp.Compare(a.partitionID, b.partitionID), cmp.Compare(a.offset, b.offset), cmp.Compare(a.id, b.id))
	})
	return list, err
}
