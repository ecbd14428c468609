package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// ConsumerPosition is where a consumer group stands to one message.
type ConsumerPosition struct {
	Group      string
	Consumed   bool      // its cursor has passed the message
	LeaseUntil time.Time // of its live lease on the message; zero means none
}

// MessageDetail is one stored message with all that is known of it.
type MessageDetail struct {
	StoredMessage
	Dead    bool   // it is a dead letter
	Error   string // of the newest dead letter
	Retries int    // failed acks charged
	Groups  []ConsumerPosition
	Options Options // of its queue
}

// ErrMessageNotFound says that no message, or no dead letter where one is needed, has the transaction id.
var ErrMessageNotFound = errors.New("message not found")

// pendingSearch is how many messages behind the slowest group are searched for a transaction id.
const pendingSearch = 1_000_000

// The hash is looked for by the server; a match that is not at an element's start is dropped later.
const sqlFindHash = `
select g.base, g.hashes
from segment g
where g.partition_id = $1 and g.base < $3 and g.base >= coalesce((
    select x.base from segment x where x.partition_id = $1 and x.base <= $2 order by x.base desc limit 1
), 0) and g.frames is not null and position($4::bytea in g.hashes) > 0
order by g.base desc limit 16`

// Message returns the newest message of a partition with a transaction id, or ErrMessageNotFound. It is looked for in
// the time that ids resolve after their push, then among the first messages that some group has not passed, then among
// the dead letters.
func (e *Engine) Message(ctx context.Context, partitionID uuid.UUID, txID string) (MessageDetail, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	part, err := e.partitionByUUID(ctx, partitionID)
	if err != nil {
		return MessageDetail{}, err
	}
	if part == nil {
		return MessageDetail{}, ErrMessageNotFound
	}
	found, err := e.positions(ctx, []int64{part.id})
	if err != nil {
		return MessageDetail{}, err
	}
	positions := found[part.id]
	m, err := e.findMessage(ctx, part, txID, positions.slowest())
	if err != nil {
		return MessageDetail{}, err
	}
	letters, err := e.lettersOf(ctx, part.id, txID)
	if err != nil {
		return MessageDetail{}, err
	}
	if m == nil && len(letters) > 0 {
		entries, err := e.readLetters(ctx, []int64{letters[0].id})
		if err != nil {
			return MessageDetail{}, err
		}
		if len(entries) > 0 {
			m = &foundMessage{entries[0].Message, entries[0].Sealed, entries[0].offset}
		}
	}
	if m == nil {
		return MessageDetail{}, ErrMessageNotFound
	}
	return e.detail(ctx, part, m, positions, letters)
}

// foundMessage is a message and where it is.
type foundMessage struct {
	Message
	sealed bool
	offset int64
}

// findMessage looks for a transaction id in the log, nil when it is not found.
func (e *Engine) findMessage(ctx context.Context, part *partition, txID string, slowest int64) (*foundMessage, error) {
	options := part.queue.config.Load().options
	since := e.clock.Now().Add(-max(options.DedupWindow, options.CompletedRetention, resolvable))
	recent, err := e.recently(ctx, part, txID, since)
	if err != nil {
		return nil, err
	}
	pending := interval{slowest, slowest + pendingSearch}
	for _, iv := range append(recent, pending) {
		if m, err := e.findBetween(ctx, part, txID, iv); m != nil || err != nil {
			return m, err
		}
	}
	return nil, nil //nolint:nilnil // absence is an ordinary answer here
}

// recently returns where a transaction id that came after since may be, the latest first: what memory knows, if it
// reaches back so far, else everything since then.
func (e *Engine) recently(ctx context.Context, part *partition, txID string, since time.Time) (list []interval, err error) {
	if err := e.catchUp(ctx); err != nil {
		return nil, err
	}
	if list, known := part.remembered(e.hash(txID), since); known {
		return list, nil
	}
	var from int64
	err = e.retrying(ctx, "find the beginning of a time", func(ctx context.Context) error {
		var i int
		return e.pool.QueryRow(ctx, sqlEndBefore, []int32{0}, []int64{part.id}, since).Scan(&i, &from)
	})
	return []interval{{from, endless}}, err
}

// remembered returns where a hash may be that came after since, the latest first. It is not known when the partition's
// ids are not in memory, or not for so long.
func (p *partition) remembered(hash uint64, since time.Time) (list []interval, known bool) {
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if p.dedup == nil || p.dedup.since.After(since) {
		return nil, false
	}
	for _, h := range p.dedup.lookup(hash, since) {
		switch {
		case h.chunk != nil:
			list = append(list, interval{h.chunk.base, h.chunk.end})
		case h.offset < p.next: // else it is in the air
			list = append(list, interval{h.offset, h.offset + 1})
		}
	}
	slices.SortFunc(list, func(a, b interval) int { return cmp.Compare(b.hi, a.hi) })
	return list, true
}

func (e *Engine) findBetween(ctx context.Context, part *partition, txID string, iv interval) (*foundMessage, error) {
	hash := e.hash(txID)
	var spots map[uint64][]int64
	err := e.retrying(ctx, "find a message", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlFindHash, part.id, iv.lo, iv.hi, appendHash(nil, hash)) // its error comes with the rows
		var err error
		spots, err = findHashes(rows, map[uint64]struct{}{hash: {}})
		return err
	})
	if err != nil {
		return nil, err
	}
	offsets := spots[hash]
	slices.Sort(offsets)
	for _, offset := range slices.Backward(offsets) {
		s, err := e.segmentAt(ctx, part, offset)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue // retention removed it and kept its hash
		}
		f, err := s.frame(offset)
		if err != nil {
			return nil, err
		}
		if !f.hasTransactionID(txID) {
			continue
		}
		m, sealed, err := e.message(s, offset, part.queue.name, part.name)
		return &foundMessage{m, sealed, offset}, err
	}
	return nil, nil //nolint:nilnil // absence is an ordinary answer here
}

// detail says all that is known of a message.
func (e *Engine) detail(
	ctx context.Context, part *partition, m *foundMessage, positions groupPositions, letters []letterRef,
) (MessageDetail, error) {
	lanes, err := e.lanes(ctx, []int64{part.id})
	if err != nil {
		return MessageDetail{}, err
	}
	lane := lanes[part.id]
	if lane == nil { // its queue was deleted in between
		return MessageDetail{}, ErrMessageNotFound
	}
	options, err := decodeOptions(lane.options)
	if err != nil {
		return MessageDetail{}, fmt.Errorf("options of queue %q: %w", lane.queue, err)
	}
	d := MessageDetail{
		StoredMessage: StoredMessage{
			Message: m.Message, Sealed: m.sealed, PartitionID: lane.id, Queue: lane.queue, Partition: lane.name, Namespace: lane.namespace, Task: lane.task,
		},
		Groups: []ConsumerPosition{}, Options: options,
	}
	for i := range letters { // newest first
		if letters[i].offset == m.offset {
			d.Dead, d.Error, d.Retries = true, letters[i].err, letters[i].retries
			break
		}
	}
	d.Status, d.LeaseUntil = positions.status(m.offset, d.Dead)
	for i := range positions {
		g := &positions[i]
		c := ConsumerPosition{Group: g.name, Consumed: m.offset < g.committed}
		if g.leases(m.offset) {
			c.LeaseUntil = g.leaseUntil
		}
		d.Groups = append(d.Groups, c)
		if !d.Dead && g.committed == m.offset {
			d.Retries = max(d.Retries, g.retries)
		}
	}
	return d, nil
}
