package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// DeadLetterFilter chooses dead letters. The zero value of each field means any.
type DeadLetterFilter struct {
	Queue, Partition, Group string
	From, To                time.Time // of their failure, both inclusive
}

// DeadLetterEntry is one dead letter: a message that one consumer group has filed. Its payload and names are kept with
// it, so that it outlives the message in the log.
type DeadLetterEntry struct {
	Message
	PartitionID      uuid.UUID
	Queue, Partition string
	Group            string
	Error            string // of the ack that filed it; "" when it gave none
	Retries          int    // failed acks charged before
	FailedAt         time.Time
	Sealed           bool // stored encrypted; one that cannot be decrypted is shown as it is stored

	id, partitionID, offset int64
	stored                  []byte // the payload as it is stored
}

// DeadLetterPage is one page of dead letters.
type DeadLetterPage struct {
	Entries []DeadLetterEntry
	Total   int // how many match, counted up to CountMax
}

// CountMax is how far matching rows are counted.
const CountMax = 100_000

// sqlWriter collects the conditions that a filter asks for. Only those that are given become part of a statement, so
// that each is planned with the index that serves it.
type sqlWriter struct {
	text strings.Builder
	args []any
}

// arg adds an argument and returns its place.
func (w *sqlWriter) arg(v any) string {
	w.args = append(w.args, v)
	return fmt.Sprintf("$%d", len(w.args))
}

func (w *sqlWriter) write(parts ...string) {
	for _, p := range parts {
		w.text.WriteString(p)
	}
}

// queues writes the beginning of a statement over the queues q that a filter covers.
func (f *DeadLetterFilter) queues(w *sqlWriter) {
	if f.Queue != "" {
		w.write(" and q.name = ", w.arg(f.Queue))
	}
}

// letters writes the conditions on the dead letters d of a queue q.
func (f *DeadLetterFilter) letters(w *sqlWriter, at string) {
	if f.Partition != "" {
		w.write(" and d.partition_id = (select p.id from partition p where p.queue_id = q.id and p.name = ", w.arg(f.Partition), ")")
	}
	if f.Group != "" {
		w.write(" and d.group_name = ", w.arg(f.Group))
	}
	if !f.From.IsZero() {
		w.write(" and d.", at, " >= ", w.arg(f.From))
	}
	if !f.To.IsZero() {
		w.write(" and d.", at, " <= ", w.arg(f.To))
	}
}

// DeadLetters lists dead letters, newest failure first.
func (e *Engine) DeadLetters(ctx context.Context, f DeadLetterFilter, limit, offset int) (DeadLetterPage, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	page := DeadLetterPage{Entries: []DeadLetterEntry{}}
	total, err := e.countDeadLetters(ctx, f)
	if err != nil || total == 0 {
		return page, err
	}
	var w sqlWriter
	w.write(`
select d.id, octet_length(d.payload)
from queue q
cross join lateral (
    select d.id, d.failed_at, d.payload from dead_letter d
    where d.queue_id = q.id`)
	f.letters(&w, "failed_at")
	w.write(`
    order by d.failed_at desc, d.id desc limit `, w.arg(limit+offset), `
) d
where true`)
	f.queues(&w)
	w.write(`
order by d.failed_at desc, d.id desc limit `, w.arg(limit), ` offset `, w.arg(offset))
	ids, err := e.pageOfLetters(ctx, &w)
	if err != nil {
		return page, err
	}
	page.Entries, err = e.readLetters(ctx, ids)
	page.Total = max(total, len(page.Entries))
	return page, err
}

func (e *Engine) countDeadLetters(ctx context.Context, f DeadLetterFilter) (n int, err error) {
	var w sqlWriter
	w.write(`
select count(*) from (
    select from queue q join dead_letter d on d.queue_id = q.id where true`)
	f.queues(&w)
	f.letters(&w, "failed_at")
	w.write(` limit `, w.arg(CountMax), `) x`)
	err = e.retrying(ctx, "count dead letters", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, w.text.String(), w.args...).Scan(&n)
	})
	return n, err
}

// pageOfLetters runs a statement that returns ids of dead letters and the sizes of their payloads, and returns the ids
// as far as a page takes them.
func (e *Engine) pageOfLetters(ctx context.Context, w *sqlWriter) (ids []int64, err error) {
	err = e.retrying(ctx, "list dead letters", func(ctx context.Context) error {
		ids = nil
		rows, _ := e.pool.Query(ctx, w.text.String(), w.args...) // its error comes with the rows
		var id, size, bytes int64
		_, err := pgx.ForEachRow(rows, []any{&id, &size}, func() error {
			if bytes += size; bytes <= pageMaxBytes || len(ids) == 0 {
				ids = append(ids, id)
			}
			return nil
		})
		return err
	})
	return ids, err
}

const letterColumns = `d.id, d.partition_id, d.log_offset, d.message_id, d.transaction_id, d.trace_id, coalesce(d.producer_sub, ''),
       d.payload, d.created_at, p.uuid, q.name, p.name, d.group_name, d.error, d.retries, d.failed_at, d.sealed`

// letterRow is a row of dead_letter with its names.
type letterRow struct {
	DeadLetterEntry
	trace *uuid.UUID
}

func (r *letterRow) fields() []any {
	return []any{
		&r.id, &r.partitionID, &r.offset, &r.ID, &r.TransactionID, &r.trace, &r.ProducerSub, &r.stored, &r.CreatedAt,
		&r.PartitionID, &r.Queue, &r.Partition, &r.Group, &r.Error, &r.Retries, &r.FailedAt, &r.Sealed,
	}
}

// entry takes the row out of its buffers.
func (r *letterRow) entry(e *Engine) (d DeadLetterEntry, err error) {
	d = r.DeadLetterEntry
	d.DeliveryAttempt = 1
	if r.trace != nil {
		d.TraceID = *r.trace
	}
	d.Payload, err = e.shown(d.Queue, d.Partition, d.ID, d.Sealed, d.stored)
	r.stored, r.trace = nil, nil
	return d, err
}

const sqlReadLetters = `
select ` + letterColumns + `
from unnest($1::bigint[]) with ordinality as w (id, i)
join dead_letter d on d.id = w.id
join partition p on p.id = d.partition_id
join queue q on q.id = d.queue_id
order by w.i`

// readLetters reads dead letters in the order of the ids. One that went in between is left out.
func (e *Engine) readLetters(ctx context.Context, ids []int64) (list []DeadLetterEntry, err error) {
	err = e.retrying(ctx, "read dead letters", func(ctx context.Context) error {
		list = []DeadLetterEntry{}
		rows, _ := e.pool.Query(ctx, sqlReadLetters, ids) // its error comes with the rows
		var r letterRow
		_, err := pgx.ForEachRow(rows, r.fields(), func() error {
			d, err := r.entry(e)
			list = append(list, d)
			return err
		})
		return err
	})
	return list, err
}

// lettersMax is how many dead letters of one transaction id are looked at: one for each group.
const lettersMax = 1000

const sqlLettersOf = `
select d.id, d.log_offset, d.message_id, d.error, d.retries
from dead_letter d
where d.partition_id = $1 and d.transaction_id = $2
order by d.failed_at desc, d.id desc limit $3`

// letterRef is a dead letter without what its message holds.
type letterRef struct {
	id, offset int64
	messageID  uuid.UUID
	err        string
	retries    int
}

// lettersOf returns the dead letters of a transaction id in a partition, newest failure first.
func (e *Engine) lettersOf(ctx context.Context, partitionID int64, txID string) (list []letterRef, err error) {
	err = e.retrying(ctx, "find a dead letter", func(ctx context.Context) error {
		list = nil
		rows, _ := e.pool.Query(ctx, sqlLettersOf, partitionID, txID, lettersMax) // its error comes with the rows
		var r letterRef
		_, err := pgx.ForEachRow(rows, []any{&r.id, &r.offset, &r.messageID, &r.err, &r.retries}, func() error {
			list = append(list, r)
			return nil
		})
		return err
	})
	return list, err
}

// deadMessages lists messages that are dead letters, newest first, each once however many groups have filed it.
func (e *Engine) deadMessages(ctx context.Context, f MessageFilter) ([]StoredMessage, error) {
	letters := DeadLetterFilter{Queue: f.Queue, Partition: f.Partition, From: f.From, To: f.To}
	var w sqlWriter
	w.write(`
select d.id, octet_length(d.payload)
from queue q
cross join lateral (
    select distinct on (d.created_at, d.partition_id, d.log_offset) d.id, d.created_at, d.partition_id, d.log_offset, d.payload
    from dead_letter d
    where d.queue_id = q.id`)
	letters.letters(&w, "created_at")
	w.write(`
    order by d.created_at desc, d.partition_id desc, d.log_offset desc limit `, w.arg(f.Limit+f.Offset), `
) d
where true`)
	letters.queues(&w)
	for _, c := range []struct{ column, value string }{{"q.namespace", f.Namespace}, {"q.task", f.Task}} {
		if c.value != "" {
			w.write(" and ", c.column, " = ", w.arg(c.value))
		}
	}
	w.write(`
order by d.created_at desc, d.partition_id desc, d.log_offset desc limit `, w.arg(f.Limit), ` offset `, w.arg(f.Offset))
	ids, err := e.pageOfLetters(ctx, &w)
	if err != nil {
		return nil, err
	}
	return e.storedLetters(ctx, ids)
}

// storedLetters shows dead letters as the messages they are.
func (e *Engine) storedLetters(ctx context.Context, ids []int64) ([]StoredMessage, error) {
	entries, err := e.readLetters(ctx, ids)
	if err != nil {
		return nil, err
	}
	list := make([]StoredMessage, 0, len(entries))
	partitions := make([]int64, len(entries))
	for i := range entries {
		partitions[i] = entries[i].partitionID
	}
	lanes, err := e.lanes(ctx, partitions)
	if err != nil {
		return nil, err
	}
	positions, err := e.positions(ctx, partitions)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		d := &entries[i]
		lane := lanes[d.partitionID]
		if lane == nil {
			continue
		}
		m := StoredMessage{
			Message: d.Message, Sealed: d.Sealed, PartitionID: lane.id, Queue: lane.queue, Partition: lane.name, Namespace: lane.namespace, Task: lane.task,
		}
		m.Status, m.LeaseUntil = positions[d.partitionID].status(d.offset, true)
		list = append(list, m)
	}
	return list, nil
}

const sqlDeleteLetters = `
delete from dead_letter where id in (
    select id from dead_letter where id = any ($1) order by id for update
)`

// deleteLetters removes dead letters and returns how many there were. When the answer of an attempt was lost, it may
// have been that attempt which removed them: they count.
func (e *Engine) deleteLetters(ctx context.Context, ids []int64) (deleted int, err error) {
	lost := false
	err = e.retrying(ctx, "delete dead letters", func(ctx context.Context) error {
		tag, err := e.pool.Exec(ctx, sqlDeleteLetters, ids)
		deleted = int(tag.RowsAffected())
		lost = lost || pg.UnknownOutcome(err)
		return err
	})
	if err == nil && lost {
		deleted = len(ids)
	}
	return deleted, err
}

// DeleteDeadLetter removes the dead letters of a transaction id in a partition, or answers ErrMessageNotFound.
func (e *Engine) DeleteDeadLetter(ctx context.Context, partitionID uuid.UUID, txID string) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	part, err := e.partitionByUUID(ctx, partitionID)
	if err != nil {
		return err
	}
	if part == nil {
		return ErrMessageNotFound
	}
	refs, err := e.lettersOf(ctx, part.id, txID)
	if err != nil {
		return err
	}
	ids := make([]int64, len(refs))
	for i, r := range refs {
		ids[i] = r.id
	}
	if len(ids) == 0 {
		return ErrMessageNotFound
	}
	deleted, err := e.deleteLetters(ctx, ids)
	if err == nil && deleted == 0 { // somebody else was first
		err = ErrMessageNotFound
	}
	return err
}

// PurgeDeadLetters deletes dead letters of a queue, oldest failure first, at most limit. It returns how many it deleted
// and how many more match, or ErrQueueNotFound. The filter must name the queue.
func (e *Engine) PurgeDeadLetters(ctx context.Context, f DeadLetterFilter, limit int) (deleted, remaining int, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	ids, err := e.oldestLetters(ctx, f, limit)
	if err != nil {
		return 0, 0, err
	}
	if len(ids) > 0 {
		if deleted, err = e.deleteLetters(ctx, ids); err != nil {
			return 0, 0, err
		}
	}
	remaining, err = e.countDeadLetters(ctx, f)
	return deleted, remaining, err
}

// oldestLetters returns the ids of dead letters of one queue, oldest failure first, or ErrQueueNotFound.
func (e *Engine) oldestLetters(ctx context.Context, f DeadLetterFilter, limit int) (ids []int64, err error) {
	var id int64
	err = e.retrying(ctx, "find a queue", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlQueueID, f.Queue).Scan(&id)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrQueueNotFound
	}
	if err != nil {
		return nil, err
	}
	var w sqlWriter
	w.write(`
select d.id
from (select `, w.arg(id), `::bigint as id) q join dead_letter d on d.queue_id = q.id
where true`)
	f.letters(&w, "failed_at")
	w.write(`
order by d.failed_at, d.id limit `, w.arg(limit))
	err = e.retrying(ctx, "choose dead letters", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, w.text.String(), w.args...) // its error comes with the rows
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	return ids, err
}
