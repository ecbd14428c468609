package queue

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/spool"
)

// pushGroup is what one request appends to one partition: it is committed as a whole or not at all.
type pushGroup struct {
	queue     string
	partition string
	part      *partition
	entries   []pushEntry
	frames    []byte // the frames of all entries, one after the other
	items     int    // in the request, followers included
	bytes     int    // of their frames, at most

	facts    facts     // what the log answered about possible duplicates
	began    time.Time // when its push came, by the database's clock: no attempt is older
	deadline time.Time // when it is too late to begin a flush with it, by this machine's clock
	tries    int       // commits with an unknown or failed outcome
	alone    bool      // a bundle with it was refused: it flies alone
	err      error     // why it failed
	done     func()

	sealed     bool // its payloads are encrypted
	maintained bool // maintenance sent it to the spool

	replayed  bool          // it comes from the spool, not from a caller
	entriesOf []spool.Entry // what it was made of
	home      int64         // the queue that they belong to; 0: one that is yet to be made
}

// pushEntry is one message of a group, and what became of it.
type pushEntry struct {
	id     uuid.UUID
	txID   string    // "" means the id's text
	at     time.Time // when it was accepted, if it comes from the spool; zero means now
	hash   uint64
	start  int // of its frame in the group's frames
	end    int
	index  int // in the request
	status Status
	origin uuid.UUID  // of a duplicate
	winner *pushEntry // of a duplicate of an entry in the same flush
	stored bool       // an earlier attempt stored it
}

// fresh reports whether the entry is to be appended.
func (en *pushEntry) fresh() bool { return en.status == Queued && !en.stored }

func (en *pushEntry) transactionID() string {
	if en.txID == "" {
		return en.id.String()
	}
	return en.txID
}

// facts is what the log answered about possible duplicates of a group. Stored messages never
// change, so facts stay true.
type facts struct {
	origins map[int64]origin
	offsets map[chunkHash][]int64
}

// origin is a stored message that may be the original of a duplicate.
type origin struct {
	id     uuid.UUID
	txID   string
	at     time.Time // when it was accepted
	gone   bool      // the message is not there any more
	erased bool      // retention removed the message and kept its hash, which then decides alone
}

// chunkHash names a hash in a run of offsets.
type chunkHash struct {
	base, end int64
	hash      uint64
}

func (c *chunk) key(hash uint64) chunkHash { return chunkHash{c.base, c.end, hash} }

// Push appends messages and answers each, in order. Database trouble is a Failed item, not an error;
// the error is ErrStopped, or ctx's when the caller did not wait for the outcome, or, beside the results,
// ErrNotSpooled.
func (e *Engine) Push(ctx context.Context, items []PushItem) ([]PushResult, error) {
	if len(items) == 0 {
		return []PushResult{}, nil
	}
	ids, err := mintIDs(len(items))
	if err != nil {
		return nil, err
	}
	if !e.inflight.enter() {
		return nil, ErrStopped
	}
	groups, followers := e.split(items, ids)
	settled := make(chan struct{})
	var open atomic.Int64
	open.Store(int64(len(groups)))
	began, deadline := e.clock.Now(), time.Now().Add(e.cfg.StatementTimeout)
	for _, g := range groups {
		g.began, g.deadline = began, deadline
		g.done = func() {
			if open.Add(-1) == 0 {
				e.inflight.leave() // not before, though the caller may have left
				close(settled)
			}
		}
	}
	e.submit(groups)
	select {
	case <-settled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	results := make([]PushResult, len(items))
	for _, g := range groups {
		for i := range g.entries {
			en := &g.entries[i]
			r := PushResult{MessageID: en.id, TransactionID: en.transactionID(), Status: en.status}
			if en.status == Duplicate {
				r.MessageID = en.origin
			}
			results[en.index] = r
		}
	}
	for _, f := range followers {
		r := results[f.winner]
		if r.Status == Queued {
			r.Status = Duplicate
		}
		results[f.index] = r
	}
	e.metrics.pushed(results)
	for _, g := range groups {
		if g.maintained && g.err != nil {
			return results, ErrNotSpooled
		}
	}
	return results, nil
}

// mintIDs returns n UUIDv7 in ascending order.
func mintIDs(n int) ([]uuid.UUID, error) {
	noise := make([]byte, 16*n)
	if _, err := rand.Read(noise); err != nil {
		return nil, fmt.Errorf("mint message ids: %w", err)
	}
	source := bytes.NewReader(noise)
	ids := make([]uuid.UUID, n)
	for i := range ids {
		id, err := uuid.NewV7FromReader(source)
		if err != nil {
			return nil, fmt.Errorf("mint message ids: %w", err)
		}
		ids[i] = id
	}
	return ids, nil
}

// follower is an item whose transaction id came earlier in the same request: it shares the winner's fate.
type follower struct{ index, winner int }

// errLate says that a group waited for its flush for longer than a statement may take.
var errLate = errors.New("the append could not begin in time")

type laneKey struct{ queue, partition string }

// split sorts a request by partition and sets later items of one transaction id apart.
func (e *Engine) split(items []PushItem, ids []uuid.UUID) ([]*pushGroup, []follower) {
	var groups []*pushGroup
	var followers []follower
	byKey := map[laneKey]*pushGroup{}
	for i := range items { // sizes first, so that a large request is copied once
		it := &items[i]
		key := keyOf(it)
		g := byKey[key]
		if g == nil {
			g = &pushGroup{queue: key.queue, partition: key.partition}
			byKey[key] = g
			groups = append(groups, g)
		}
		g.items++
		g.bytes += frameSize(it)
	}
	for _, g := range groups {
		g.entries = make([]pushEntry, 0, g.items)
		g.frames = make([]byte, 0, g.bytes)
	}
	type seenKey struct {
		group *pushGroup
		hash  uint64
	}
	var seen map[seenKey][]*pushEntry
	if len(items) > 1 {
		seen = make(map[seenKey][]*pushEntry, len(items))
	}
next:
	for i := range items {
		it := &items[i]
		g := byKey[keyOf(it)]
		en := pushEntry{id: ids[i], txID: it.TransactionID, index: i}
		en.hash = e.hash(en.transactionID())
		if seen != nil && it.TransactionID != "" && e.dedupEnabled(g.queue) {
			k := seenKey{g, en.hash}
			for _, earlier := range seen[k] {
				if earlier.txID == en.txID {
					followers = append(followers, follower{index: i, winner: earlier.index})
					continue next
				}
			}
			g.entries = append(g.entries, en)
			seen[k] = append(seen[k], &g.entries[len(g.entries)-1]) // the capacity was reserved: it does not move
		} else {
			g.entries = append(g.entries, en)
		}
		kept := &g.entries[len(g.entries)-1]
		kept.start = len(g.frames)
		g.frames = appendFrame(g.frames, &draft{id: en.id, txID: en.txID, sub: it.ProducerSub, trace: it.TraceID, context: it.Context, payload: it.Payload})
		kept.end = len(g.frames)
	}
	return groups, followers
}

// frameSize bounds the size of an item's frame.
func frameSize(it *PushItem) int {
	const lengths, fixed = 3 * binary.MaxVarintLen32, 17 + 16 + traceContextSize
	return lengths + fixed + len(it.TransactionID) + len(it.ProducerSub) + len(it.Payload)
}

func keyOf(it *PushItem) laneKey {
	if it.Partition == "" {
		return laneKey{it.Queue, DefaultPartition}
	}
	return laneKey{it.Queue, it.Partition}
}

// dedupEnabled reports whether a queue deduplicates; a queue that does not exist yet will.
func (e *Engine) dedupEnabled(name string) bool {
	q := e.catalog.queue(name)
	return q == nil || q.config.Load().options.DedupWindow > 0
}

// submit finds each group's partition and queues the group for its shard.
func (e *Engine) submit(groups []*pushGroup) {
	groups, spooled := e.outage.admit(groups)
	e.spoolGroups(spooled)
	groups = e.meetFaults(groups)
	wants := e.locate(groups)
	touched := map[*shard]struct{}{}
	var failed, homeless []*pushGroup
	var cause error
	for i, g := range groups {
		switch err := wants[i].err; {
		case errors.Is(err, ErrQueueNotFound): // deleted just now: the push creates it anew
			homeless = append(homeless, g)
			continue
		case err != nil:
			failed, cause = append(failed, g), err
			continue
		}
		g.part = wants[i].found
		s := g.part.shard
		s.enqueue(g) // from here on the group is the shard's
		touched[s] = struct{}{}
	}
	e.giveUp(failed, cause)
	e.resubmit(homeless)
	if len(touched) > 0 {
		e.wakeWriters()
	}
}

// locate finds each group's partition, and creates queues and partitions that do not exist. What is to be
// encrypted is.
func (e *Engine) locate(groups []*pushGroup) []*partitionWant {
	names := make([]string, 0, len(groups))
	for _, g := range groups {
		if g.home == 0 {
			names = append(names, g.queue)
		}
	}
	queues := e.ensureQueues(names)
	wants := make([]*partitionWant, len(groups))
	for i, g := range groups {
		if g.home != 0 { // no other of that name will do, least of all a new one
			wants[i] = &partitionWant{name: g.partition, queue: e.catalog.queueByID(g.home)}
			if wants[i].queue == nil {
				wants[i].err = ErrQueueNotFound
			}
			continue
		}
		q := queues[g.queue]
		<-q.done // bounded by the statement's deadline
		wants[i] = &partitionWant{name: g.partition, queue: q.found, err: q.err}
		if q.err == nil {
			wants[i].err = e.protect(g, q.found)
		}
	}
	var known []*partitionWant
	for _, w := range wants {
		if w.err == nil {
			known = append(known, w)
		}
	}
	e.ensurePartitions(known)
	return wants
}

// resubmit looks a group's partition up again: it was deleted in between.
func (e *Engine) resubmit(groups []*pushGroup) {
	if len(groups) == 0 {
		return
	}
	e.inflight.hold()
	go func() { // it may wait for the database; the writer that calls must not
		defer e.inflight.leave()
		var live, lost []*pushGroup
		for _, g := range groups {
			if g.tries++; g.tries > maxRaces || g.replayed {
				lost = append(lost, g) // the drain looks whether the deletion takes it, too
				continue
			}
			g.part, g.facts = nil, facts{}
			live = append(live, g)
		}
		e.fail(lost, errRace)
		e.submit(live)
	}()
}

// fail answers Failed for whole groups. When the cause is a lost connection and the log could not be
// asked afterwards, the outcome of the last attempt is not known: it may yet turn out to be stored.
func (e *Engine) fail(groups []*pushGroup, err error) {
	if len(groups) == 0 {
		return
	}
	items := 0
	for _, g := range groups {
		g.err = err
		items += len(g.entries)
		for i := range g.entries {
			g.entries[i].status = Failed
		}
		g.done()
	}
	e.log.Error("push failed", "groups", len(groups), "items", items, "queue", groups[0].queue, "partition", groups[0].partition,
		"outcome_unknown", pg.UnknownOutcome(err), "err", err)
}

func (e *Engine) wakeWriters() {
	select {
	case e.work <- struct{}{}:
	default:
	}
}
