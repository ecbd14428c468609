package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/failpoint"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Where tests kill the process.
var (
	transactAlso      = failpoint.New("queue.transact.also")
	transactLocked    = failpoint.New("queue.transact.locked")
	transactAppended  = failpoint.New("queue.transact.appended")
	transactCursors   = failpoint.New("queue.transact.cursors")
	transactAcked     = failpoint.New("queue.transact.acked")
	transactMarked    = failpoint.New("queue.transact.marked")    // everything but the commit
	transactCommitted = failpoint.New("queue.transact.committed") // in the log, not answered yet
)

// Bundle is what one database transaction does: all of it or nothing. The zero value does nothing.
type Bundle struct {
	// Push is appended in order. Items of one transaction id in one partition are one message: the later
	// ones are answered as duplicates of the first.
	Push []PushItem
	// Duplicates says what becomes of an item whose transaction id is inside its queue's window already.
	Duplicates DuplicatePolicy
	// Acks are carried out as Ack does. One that fails rolls everything back.
	Acks []BundleAck
	// Leases are those that the caller relies on. An ack that names no lease, of a partition that nobody
	// has leased, counts as made under the lease here, when there is exactly one.
	Leases []string
	// Also is done first, in the same transaction; nil means nothing. It must not end the transaction,
	// and an error of it is what Transact returns. It may run more than once, each time after what it did
	// before was rolled back. Rows that it locks are locked before heads and cursors are.
	Also func(ctx context.Context, tx pgx.Tx) error
}

// DuplicatePolicy is what a bundle does with an item that is a duplicate.
type DuplicatePolicy uint8

// The policies. The first is the default.
const (
	RefuseDuplicates DuplicatePolicy = iota // roll everything back with a *DuplicateError
	DropDuplicates                          // answer it as Duplicate and commit the rest
)

// BundleAck acknowledges one message for a consumer group.
type BundleAck struct {
	AckItem
	Group string // "" means ModeGroup
	// Release ends the lease also when messages of its batch are left; they are delivered again at once.
	Release bool
}

// Outcome answers a bundle that was committed, item by item.
type Outcome struct {
	Pushed []PushResult // Queued or Duplicate
	Acked  []AckResult  // without an error
}

// DuplicateError says that a bundle was rolled back because an item's transaction id is inside the window.
type DuplicateError struct {
	Index         int // in Bundle.Push
	TransactionID string
	MessageID     uuid.UUID // the original's; uuid.Nil when it is unknown
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("transaction id %q is inside the deduplication window", e.TransactionID)
}

// RejectedError says that a bundle was rolled back because of an ack. Unwrap gives one of the item errors of Ack.
type RejectedError struct {
	Index         int // in Bundle.Acks
	TransactionID string
	Err           error
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("ack of transaction id %q: %v", e.TransactionID, e.Err)
}

func (e *RejectedError) Unwrap() error { return e.Err }

// ErrOutcomeUnknown wraps ErrUnavailable: the connection was lost at the commit, and PostgreSQL could
// not be asked afterwards. The bundle was done as a whole or not at all.
var ErrOutcomeUnknown = fmt.Errorf("the commit got no answer, it may have happened: %w", ErrUnavailable)

// ErrSpooled wraps ErrUnavailable: earlier pushes to one of the partitions are still in this broker's spool,
// which a bundle must not overtake.
var ErrSpooled = fmt.Errorf("earlier pushes are still in the spool: %w", ErrUnavailable)

// transaction is a bundle on its way.
type transaction struct {
	engine    *Engine
	bundle    *Bundle
	token     uuid.UUID
	groups    []*pushGroup
	followers []follower
	shards    []*shard // that groups append to, in ascending order
	units     []*ackGroup
	acked     []AckResult

	flight *flight // what is appended, once that is decided
	rounds [][]*ackGroup
	moved  map[int]time.Time
}

// What an attempt may want before the next one.
var (
	errCold   = errors.New("the ids of a partition are not in memory")
	errUnsure = errors.New("the log must confirm a duplicate")
	errStale  = errors.New("a cursor was not as known")
	errGone   = errors.New("a queue was deleted")
	errUndone = errors.New("the commit did not happen")
)

// transactTries bounds the attempts of one bundle, whatever each of them lacked.
const transactTries = 16

// Transact commits a bundle in one database transaction. Nothing of it is ever put into the spool. An
// error means that nothing was done, except ErrOutcomeUnknown: *DuplicateError, *RejectedError, what
// Also returned, ErrUnavailable when PostgreSQL was not reached in time, ErrSpooled, ErrStopped. It is
// finished also when ctx ends: a commit is not taken back.
func (e *Engine) Transact(ctx context.Context, b Bundle) (Outcome, error) {
	if !e.inflight.enter() {
		return Outcome{}, ErrStopped
	}
	defer e.inflight.leave()
	outcome, err := e.transact(context.WithoutCancel(ctx), &b)
	e.metrics.transacted(&outcome, err)
	return outcome, err
}

func (e *Engine) transact(ctx context.Context, b *Bundle) (Outcome, error) {
	ids, err := mintIDs(len(b.Push))
	if err != nil {
		return Outcome{}, err
	}
	t := &transaction{engine: e, bundle: b, acked: make([]AckResult, len(b.Acks))}
	t.groups, t.followers = e.split(b.Push, ids)
	began := e.clock.Now()
	for _, g := range t.groups {
		g.began, g.done = began, func() {}
	}
	bounded, cancel := e.deadline(ctx)
	defer cancel()
	lost := 0
	for range transactTries {
		if err = t.attempt(bounded); err == nil {
			return t.outcome(), nil
		}
		if errors.Is(err, errUndone) || pg.Unavailable(err) {
			if lost++; lost > 1 {
				break
			}
			e.dropConnections(err)
		} else if !t.repeatable(err) {
			break
		}
		if bounded.Err() != nil {
			break
		}
	}
	return Outcome{}, t.failure(err)
}

// repeatable reports whether a failed attempt says that another may succeed.
func (t *transaction) repeatable(err error) bool {
	for _, passing := range []error{errCold, errUnsure, errStale, errGone} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return pg.Retryable(err)
}

// failure words the error of the last attempt for the caller.
func (t *transaction) failure(err error) error {
	switch {
	case errors.Is(err, ErrOutcomeUnknown), errors.Is(err, ErrUnavailable):
		return err
	case t.repeatable(err), errors.Is(err, errUndone), errors.Is(err, errLate), errors.Is(err, context.DeadlineExceeded), pg.UnknownOutcome(err):
		// Before its commit a lost connection rolls a transaction back.
		return fmt.Errorf("transaction: %w: %w", ErrUnavailable, err)
	}
	return t.engine.unavailable("transaction", err)
}

func (t *transaction) outcome() Outcome {
	out := Outcome{Pushed: make([]PushResult, len(t.bundle.Push)), Acked: t.acked}
	for _, g := range t.groups {
		for i := range g.entries {
			en := &g.entries[i]
			r := PushResult{MessageID: en.id, TransactionID: en.transactionID(), Status: en.status}
			if en.status == Duplicate {
				r.MessageID = en.origin
			}
			out.Pushed[en.index] = r
		}
	}
	for _, f := range t.followers {
		out.Pushed[f.index] = out.Pushed[f.winner]
		out.Pushed[f.index].Status = Duplicate
	}
	return out
}

// attempt does everything once, and what the next attempt needs if this one finds that it lacks something.
func (t *transaction) attempt(ctx context.Context) error {
	e := t.engine
	if err := t.locate(); err != nil {
		return err
	}
	if err := t.findAcks(ctx); err != nil {
		return err
	}
	claimed := 0
	release := func() {
		for _, s := range t.shards[:claimed] {
			e.releaseShard(s)
		}
		claimed = 0
	}
	defer release()
	for _, s := range t.shards {
		if !s.acquire(ctx) {
			e.wakeWriters() // they may have left the turn to it
			return fmt.Errorf("wait for other appends: %w", context.DeadlineExceeded)
		}
		claimed++
	}
	err := t.run(ctx)
	release()
	switch {
	case errors.Is(err, errCold):
		t.awaitLanes(ctx)
	case errors.Is(err, errUnsure):
		if failure := t.confirm(ctx); failure != nil {
			return failure
		}
	case errors.Is(err, errStale):
		if failure := t.rereadCursors(ctx); failure != nil {
			return failure
		}
	}
	return err
}

// locate finds the partitions and shards of what is pushed. Partitions with records in the spool are
// refused: the transaction would overtake what was accepted before it.
func (t *transaction) locate() error {
	if len(t.groups) == 0 {
		return nil
	}
	e := t.engine
	if e.outage.precedes(t.groups) {
		return fmt.Errorf("transaction: %w", ErrSpooled)
	}
	for i, w := range e.locate(t.groups) {
		if errors.Is(w.err, ErrQueueNotFound) {
			return errGone
		}
		if w.err != nil {
			return w.err
		}
		if g := t.groups[i]; g.part != w.found {
			g.part, g.facts = w.found, facts{}
		}
	}
	t.shards = t.shards[:0]
	for _, g := range t.groups {
		t.shards = append(t.shards, g.part.shard)
	}
	slices.SortFunc(t.shards, func(a, b *shard) int { return cmp.Compare(a.id, b.id) })
	t.shards = slices.Compact(t.shards)
	return nil
}

// precedes reports whether records of the groups' lanes are in the spool, or on their way there.
func (o *outage) precedes(groups []*pushGroup) bool {
	if o.spool == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return true
	}
	for _, g := range groups {
		if lane := g.lane(); len(o.behind[lane]) > 0 || o.spool.Pending(lane) > 0 {
			return true
		}
	}
	return false
}

// findAcks finds the cursors that acks are about and where their messages are.
func (t *transaction) findAcks(ctx context.Context) error {
	e := t.engine
	t.units = t.ackUnits()
	for _, u := range t.units {
		c, err := e.ackCursor(ctx, t.groupOf(u), u.items[0].item.PartitionID)
		if err != nil {
			return err
		}
		if c == nil {
			return t.rejected(u.items[0], ErrNoConsumer)
		}
		u.cursor, u.found, u.held = c, map[string]int64{}, map[int64]heldMessage{}
		u.look(e.pops)
		if err := e.resolve(ctx, u); err != nil {
			return err
		}
		for _, en := range u.items { // what may be filed is read before anything is locked
			if en.offset < 0 || en.item.Status != Nack && en.item.Status != DeadLetter {
				continue
			}
			if _, _, err := e.storedFor(ctx, u, en.offset); err != nil {
				return err
			}
		}
	}
	return nil
}

// ackUnits groups the acks by partition, group and lease, in order of first appearance.
func (t *transaction) ackUnits() []*ackGroup {
	type key struct {
		partition    uuid.UUID
		group, lease string
	}
	byKey := map[key]*ackGroup{}
	var units []*ackGroup
	for i := range t.bundle.Acks {
		a := &t.bundle.Acks[i]
		k := key{a.PartitionID, groupName(a), a.LeaseID}
		u := byKey[k]
		if u == nil {
			u = &ackGroup{leaseID: a.LeaseID}
			byKey[k] = u
			units = append(units, u)
		}
		u.items = append(u.items, &ackEntry{item: &a.AckItem, hash: t.engine.hash(a.TransactionID), result: &t.acked[i]})
	}
	return units
}

func groupName(a *BundleAck) string {
	if a.Group == "" {
		return ModeGroup
	}
	return a.Group
}

// indexOf is where an item of a unit stands in the bundle.
func (t *transaction) indexOf(en *ackEntry) int {
	for i := range t.acked {
		if en.result == &t.acked[i] {
			return i
		}
	}
	return -1
}

func (t *transaction) groupOf(u *ackGroup) string {
	return groupName(&t.bundle.Acks[t.indexOf(u.items[0])])
}

func (t *transaction) rejected(en *ackEntry, err error) error {
	return &RejectedError{Index: t.indexOf(en), TransactionID: en.item.TransactionID, Err: err}
}

// run is the database transaction. The caller holds the shards.
func (t *transaction) run(ctx context.Context) error {
	e := t.engine
	if err := t.decide(false); err != nil { // by what is known: it often saves a transaction in vain
		return err
	}
	tx, err := e.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit there is nothing to roll back
	started := time.Now()
	err = t.statements(ctx, tx)
	if err == nil {
		transactMarked.Hit()
		err = t.commit(ctx, tx)
		transactCommitted.Hit()
	}
	if t.flight != nil {
		e.metrics.flushed(t.flight, time.Since(started), err)
	}
	if err != nil {
		t.forget()
		return err
	}
	t.settle()
	return nil
}

// forget takes back what memory holds of an attempt that did not happen.
func (t *transaction) forget() {
	if t.flight != nil {
		for _, sf := range t.flight.shards {
			sf.rollback()
		}
	}
	t.flight, t.rounds, t.moved = nil, nil, nil
}

// settle takes what is committed into memory, which wakes the pops that wait for it.
func (t *transaction) settle() {
	e := t.engine
	if t.flight != nil {
		for _, sf := range t.flight.shards {
			at := t.moved[sf.shard.id]
			e.clock.Observe(at)
			e.settle(sf, at)
		}
	}
	for _, units := range t.rounds {
		e.pops.acked(units)
	}
}

// statements runs everything but the commit, in the one order in which rows are locked: what Also
// locks, heads, cursors.
func (t *transaction) statements(ctx context.Context, tx pgx.Tx) error {
	if t.bundle.Also != nil {
		if err := t.bundle.Also(ctx, tx); err != nil {
			return err
		}
		transactAlso.Hit()
	}
	if err := t.append(ctx, tx); err != nil {
		return err
	}
	if err := t.ack(ctx, tx); err != nil {
		return err
	}
	t.token = uuid.New()
	_, err := tx.Exec(ctx, sqlMark, t.token)
	return err
}

const sqlLockHeads = `select id, head from shard where id = any ($1::integer[]) order by id for update`

// append locks the heads, catches up with other brokers, decides what is new and appends it.
func (t *transaction) append(ctx context.Context, tx pgx.Tx) error {
	if len(t.groups) == 0 {
		return nil
	}
	e := t.engine
	ids := make([]int32, len(t.shards))
	heads := make(map[int]int64, len(t.shards))
	for i, s := range t.shards {
		ids[i] = int32(s.id)
	}
	rows, _ := tx.Query(ctx, sqlLockHeads, ids) // its error comes with the rows
	var id int
	var head int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &head}, func() error {
		heads[id] = head
		return nil
	}); err != nil {
		return err
	}
	transactLocked.Hit()
	for _, s := range t.shards {
		if heads[s.id] > s.folded { // only the holder of busy moves folded
			if _, err := e.foldOnce(ctx, tx, s, nil); err != nil {
				return err
			}
		}
	}
	if err := t.decide(true); err != nil {
		return err
	}
	if len(t.flight.shards) == 0 {
		return nil
	}
	var err error
	if t.moved, err = e.send(ctx, tx, t.flight); err != nil {
		return err
	}
	if len(t.moved) < len(t.flight.shards) {
		return errLate // the heads are locked and as known: only the deadline is left
	}
	transactAppended.Hit()
	return nil
}

// decide settles for each message whether it is new. Once the heads are locked its word is final: then
// duplicates are refused, and what is new is put on a flight.
func (t *transaction) decide(locked bool) error {
	e := t.engine
	now := e.clock.Now()
	var lacking error
	for _, g := range t.groups {
		s, p := g.part.shard, g.part
		s.mu.Lock()
		switch {
		case p.gone():
			lacking = errGone
		case !e.warmEnough(p, g, now):
			if !p.loading {
				s.evict(p)
				p.loading = true
				s.cold = append(s.cold, p)
				e.loader.Add(s)
			}
			lacking = errCold
		default:
			s.touch(p)
			if _, sure := e.decideGroup(p, g, now); !sure && lacking == nil {
				lacking = errUnsure
			}
		}
		s.mu.Unlock()
	}
	if lacking != nil || !locked {
		return lacking
	}
	if t.bundle.Duplicates == RefuseDuplicates {
		if err := t.duplicate(); err != nil {
			return err
		}
	}
	t.board()
	return nil
}

// duplicate is the error of the first item that is a duplicate, nil for none.
func (t *transaction) duplicate() error {
	var first *pushEntry
	for _, g := range t.groups {
		for i := range g.entries {
			if en := &g.entries[i]; en.status == Duplicate && (first == nil || en.index < first.index) {
				first = en
			}
		}
	}
	if first == nil {
		return nil
	}
	return &DuplicateError{Index: first.index, TransactionID: first.transactionID(), MessageID: first.origin}
}

// board puts what is new on a flight.
func (t *transaction) board() {
	e := t.engine
	t.flight = &flight{}
	for _, s := range t.shards {
		sf := &shardFlight{shard: s, head: s.folded, token: rand.Int64()} //nolint:gosec // a name, not a secret
		s.mu.Lock()
		for _, g := range t.groups {
			if g.part.shard == s {
				e.accept(sf, g.part, g)
			}
		}
		s.mu.Unlock()
		for _, lf := range sf.lanes {
			lf.cut()
			t.flight.items += len(lf.accepted)
		}
		if len(sf.lanes) > 0 {
			t.flight.shards = append(t.flight.shards, sf)
		}
	}
}

const sqlLockCursors = `
select c.partition_id, c.group_id, c.committed, c.delivered, c.attempt, c.retries,
       c.lease_id, coalesce(c.lease_end, 0), coalesce(c.lease_until, to_timestamp(0))
from cursor c
join (select distinct * from unnest($1::bigint[], $2::bigint[]) as w (partition_id, group_id)) w
  on w.partition_id = c.partition_id and w.group_id = c.group_id
order by c.partition_id, c.group_id for update of c`

// ack locks the cursors, so that what they say is the truth, and carries the acks out.
func (t *transaction) ack(ctx context.Context, tx pgx.Tx) error {
	if len(t.units) == 0 {
		return nil
	}
	rows, err := t.lockCursors(ctx, tx)
	if err != nil {
		return err
	}
	transactCursors.Hit()
	for units := t.units; len(units) > 0; {
		taken := map[*cursor]struct{}{}
		var now, later []*ackGroup
		for _, u := range units {
			if _, ok := taken[u.cursor]; ok {
				later = append(later, u) // it goes on from what the first made of the cursor
				continue
			}
			taken[u.cursor] = struct{}{}
			now = append(now, u)
		}
		if err := t.ackRound(ctx, tx, now, rows); err != nil {
			return err
		}
		units = later
	}
	transactAcked.Hit()
	return nil
}

func (t *transaction) lockCursors(ctx context.Context, tx pgx.Tx) (map[cursorKey]cursorRow, error) {
	partitions, groups := make([]int64, len(t.units)), make([]int64, len(t.units))
	for i, u := range t.units {
		partitions[i], groups[i] = u.cursor.part.id, u.cursor.group.id
	}
	found := make(map[cursorKey]cursorRow, len(t.units))
	rows, _ := tx.Query(ctx, sqlLockCursors, partitions, groups) // its error comes with the rows
	var key cursorKey
	var row cursorRow
	_, err := pgx.ForEachRow(rows, append([]any{&key.partitionID, &key.groupID}, row.fields()...), func() error {
		found[key] = row
		row.leaseID = nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, u := range t.units {
		row, ok := found[u.cursor.key()]
		if !ok {
			return nil, t.rejected(u.items[0], ErrNoConsumer)
		}
		if row.committed != u.seen.committed || row.leaseEnd != u.seen.leaseEnd {
			return nil, errStale // messages were looked up by another state
		}
	}
	return found, nil
}

// ackRound carries out units of different cursors, and notes in rows what they made of them.
func (t *transaction) ackRound(ctx context.Context, tx pgx.Tx, units []*ackGroup, rows map[cursorKey]cursorRow) error {
	e := t.engine
	var changing []*ackGroup
	for _, u := range units {
		u.seen = rows[u.cursor.key()]
		if lease := t.impliedLease(u); lease != "" {
			u.leaseID = lease
		}
		if _, err := e.planUnit(ctx, u, true); err != nil {
			return err
		}
		for _, en := range u.items {
			if en.result.Err != nil {
				return t.rejected(en, en.result.Err)
			}
		}
		if u.plan.changes {
			t.release(u)
			changing = append(changing, u)
		}
	}
	if len(changing) == 0 {
		return nil
	}
	moved := make([]bool, len(changing))
	answer, _ := tx.Query(ctx, sqlAck, append(ackArgs(changing, e.clockOffset()), e.latest(ctx))...) // its error comes with the rows
	if err := readMoved(answer, changing, moved); err != nil {
		return err
	}
	for i, u := range changing {
		if !moved[i] && u.plan.mustLive {
			return t.rejected(u.items[0], ErrLease) // it has just expired
		}
		if !moved[i] {
			return errLate // the cursor is locked and as known: only the deadline is left
		}
		row := u.seen
		row.committed, row.retries = u.plan.committed, u.plan.retries
		if u.plan.release {
			row.leaseID, row.leaseTill = nil, time.Time{}
		}
		rows[u.cursor.key()] = row
	}
	t.rounds = append(t.rounds, changing)
	return nil
}

// release ends the lease of a unit that keeps it, where that is asked for.
func (t *transaction) release(u *ackGroup) {
	if u.plan.release || u.seen.leaseID == nil {
		return
	}
	for _, en := range u.items {
		if t.bundle.Acks[t.indexOf(en)].Release {
			u.plan.release, en.result.LeaseReleased = true, true
			return
		}
	}
}

// impliedLease is the lease that an ack without one is made under, "" for none: with a live lease on the
// cursor the ack is its holder's, and needs no other proof.
func (t *transaction) impliedLease(u *ackGroup) string {
	if u.leaseID != "" || u.seen.leaseID != nil && u.seen.leaseTill.After(t.engine.clock.Now()) {
		return ""
	}
	lease := ""
	for _, l := range t.bundle.Leases {
		if l == "" || l == lease {
			continue
		}
		if lease != "" {
			return ""
		}
		lease = l
	}
	return lease
}

const sqlMark = `insert into transaction_mark (token, fenced, created_at) values ($1, false, clock_timestamp())`

// The question writes the mark if it is not there. A transaction that has written it and not ended yet
// is waited for.
const sqlAskMark = `
insert into transaction_mark as m (token, fenced, created_at) values ($1, true, clock_timestamp())
on conflict (token) do update set fenced = m.fenced
returning fenced`

// commit commits. When the answer is lost it finds out what happened.
func (t *transaction) commit(ctx context.Context, tx pgx.Tx) error {
	e := t.engine
	cause := tx.Commit(ctx)
	if cause == nil || !pg.UnknownOutcome(cause) {
		return cause
	}
	e.metrics.unknownCommits.Inc()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(e.cfg.StatementTimeout, markKept/4))
	defer cancel()
	for pause := askPause; ; pause = min(2*pause, time.Second) {
		e.dropConnections(cause)
		var undone bool
		err := e.pool.QueryRow(ctx, sqlAskMark, t.token).Scan(&undone)
		switch {
		case err == nil && undone:
			return fmt.Errorf("%w: %w", errUndone, cause)
		case err == nil:
			e.metrics.unknownLanded.Inc()
			e.log.Warn("a commit whose answer was lost had happened", "cause", cause)
			return nil
		}
		select {
		case <-ctx.Done():
			e.log.Error("a commit got no answer, and PostgreSQL cannot be asked", "cause", cause, "err", err)
			return fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause)
		case <-time.After(pause):
		}
	}
}

const (
	// askPause is how soon PostgreSQL is asked again after it did not answer. It doubles each time.
	askPause = 25 * time.Millisecond
	// markKept is how long marks are kept: much longer than anybody asks for one.
	markKept = 10 * time.Minute
)

// Marks age by the true time, which their askers' deadlines follow, and not by the test clock.
const sqlTrimMarks = `
delete from transaction_mark where token in (
    select token from transaction_mark where created_at < clock_timestamp() - $1::interval limit $2
)`

// awaitLanes returns when the lanes that were cold have been loaded, or could not be.
func (t *transaction) awaitLanes(ctx context.Context) {
	for _, g := range t.groups {
		s := g.part.shard
		stop := context.AfterFunc(ctx, s.stir)
		s.mu.Lock()
		for g.part.loading && ctx.Err() == nil {
			s.settled.Wait()
		}
		s.mu.Unlock()
		stop()
	}
}

// confirm asks the log about the possible duplicates of the groups.
func (t *transaction) confirm(ctx context.Context) error {
	e := t.engine
	return e.retrying(ctx, "confirm duplicates", func(ctx context.Context) error {
		asks := e.askOf(t.groups)
		if err := e.readChunks(ctx, asks); err != nil {
			return err
		}
		return e.readOrigins(ctx, asks)
	})
}

func (t *transaction) rereadCursors(ctx context.Context) error {
	t.engine.metrics.ackConflicts.Add(float64(len(t.units)))
	cursors := make([]*cursor, len(t.units))
	for i, u := range t.units {
		cursors[i] = u.cursor
	}
	_, err := t.engine.readCursors(ctx, cursors)
	return err
}
