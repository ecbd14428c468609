package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthorn/posthorn/broker/internal/failpoint"
	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/spool"
)

// Where tests kill the process.
var (
	spoolAppended  = failpoint.New("queue.spool.appended") // durable, the push is not answered yet
	drainRead      = failpoint.New("queue.drain.read")
	drainCommitted = failpoint.New("queue.drain.committed") // in the log, still in the spool
)

// outage keeps pushes going while PostgreSQL is away, or in maintenance: they go to the spool, and from
// there to the log when that is over. While a lane has records in the spool, later pushes to it must not
// overtake them: in the outage they go to the spool as well, afterwards they wait until the lane is drained,
// unless the drain cannot move it.
type outage struct {
	spool *spool.Spool  // nil: what cannot be committed fails
	drain chan struct{} // wakes the drain
	probe chan struct{} // wakes the poll
	batch chan struct{} // holds one element while the drain moves a batch

	mu          sync.Mutex
	down        bool
	maintenance bool
	behind      map[string][]*pushGroup // wait for their lane to be drained
	stuck       map[string]struct{}     // lanes that the drain could not move when it last tried

	refusals map[spool.Position]int // the drain's: how often PostgreSQL refused an entry
}

func newOutage(s *spool.Spool) *outage {
	return &outage{
		spool: s, drain: make(chan struct{}, 1), probe: make(chan struct{}, 1), batch: make(chan struct{}, 1),
		behind: map[string][]*pushGroup{}, stuck: map[string]struct{}{}, refusals: map[spool.Position]int{},
	}
}

// lane names a partition in the spool. Names hold no control characters.
func (g *pushGroup) lane() string { return g.queue + "\x00" + g.partition }

// setOutage notes whether PostgreSQL answers.
func (e *Engine) setOutage(down bool) {
	changed := false
	e.divert(func(o *outage) {
		changed = o.down != down
		o.down = down
	})
	switch {
	case changed && down:
		e.log.Error("PostgreSQL does not answer")
	case changed:
		e.log.Info("PostgreSQL answers")
	}
}

// divert changes whether pushes go to the spool, and whether that is drained. Nobody waits for a drain that
// has been stopped.
func (e *Engine) divert(change func(o *outage)) {
	o := e.outage
	o.mu.Lock()
	before := o.diverts()
	change(o)
	now := o.diverts()
	var waiting []*pushGroup
	if now && !before {
		for lane, groups := range o.behind {
			waiting = append(waiting, groups...)
			delete(o.behind, lane)
		}
	}
	for _, g := range waiting {
		g.maintained = o.maintenance
	}
	o.mu.Unlock()
	e.spoolGroups(waiting)
	if before && !now {
		o.wake()
	}
}

// diverts reports whether pushes go to the spool, and stay there. The caller holds mu.
func (o *outage) diverts() bool { return o.down || o.maintenance }

// draining reports whether what is in the spool may be moved to the log.
func (o *outage) draining() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.diverts()
}

// suspect draws the conclusion from a failure. A refused connection says that PostgreSQL is away. A
// connection that was lost may have been the only one, and a statement that took too long may have met
// somebody's lock: the poll finds out.
func (e *Engine) suspect(cause error) {
	if _, refused := errors.AsType[*pgconn.ConnectError](cause); refused {
		e.setOutage(true)
		return
	}
	select {
	case e.outage.probe <- struct{}{}:
	default:
	}
}

func (o *outage) isDown() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.down
}

func (o *outage) wake() {
	select {
	case o.drain <- struct{}{}:
	default:
	}
}

// admit sorts groups into those that may go to the log and those that must go to the spool. Those
// whose lane is being drained are kept back.
func (o *outage) admit(groups []*pushGroup) (live, spooled []*pushGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.maintenance && (o.spool == nil || !o.down && o.spool.Stats().Pending == 0) {
		return groups, nil
	}
	for _, g := range groups {
		switch lane := g.lane(); {
		case g.replayed:
			live = append(live, g)
		case o.diverts():
			g.maintained = o.maintenance
			spooled = append(spooled, g)
		case o.spool.Pending(lane) == 0:
			live = append(live, g)
		case o.isStuck(lane):
			spooled = append(spooled, g)
		default:
			o.behind[lane] = append(o.behind[lane], g)
		}
	}
	return live, spooled
}

// release returns the groups whose lane is drained.
func (o *outage) release(lanes map[string]struct{}) (released []*pushGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for lane := range lanes {
		if o.spool.Pending(lane) == 0 {
			released = append(released, o.behind[lane]...)
			delete(o.behind, lane)
		}
	}
	return released
}

// isStuck reports whether nobody should wait for the lane. The caller holds mu.
func (o *outage) isStuck(lane string) bool {
	_, stuck := o.stuck[lane]
	return stuck
}

// noteStuck notes which of the lanes that a batch was about did not move, and returns the groups that
// wait for those.
func (o *outage) noteStuck(lanes, stuck map[string]struct{}) (waiting []*pushGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for lane := range lanes {
		if _, is := stuck[lane]; !is {
			delete(o.stuck, lane)
			continue
		}
		o.stuck[lane] = struct{}{}
		waiting = append(waiting, o.behind[lane]...)
		delete(o.behind, lane)
	}
	return waiting
}

// takeLate takes the groups out that have waited too long for their lane.
func (o *outage) takeLate(now time.Time) (late []*pushGroup) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for lane, groups := range o.behind {
		kept := groups[:0]
		for _, g := range groups {
			if now.After(g.deadline) {
				late = append(late, g)
			} else {
				kept = append(kept, g)
			}
		}
		if o.behind[lane] = kept; len(kept) == 0 {
			delete(o.behind, lane)
		}
	}
	return late
}

// spoolGroups writes groups to the spool and answers them.
func (e *Engine) spoolGroups(groups []*pushGroup) {
	if groups = e.meetSpoolFaults(groups); len(groups) == 0 {
		return
	}
	if e.outage.spool == nil {
		e.fail(groups, ErrNoSpool)
		return
	}
	var records []spool.Record
	if groups = e.protectAll(groups); len(groups) == 0 {
		return
	}
	for _, g := range groups {
		for i := range g.entries {
			en := &g.entries[i]
			records = append(records, spool.Record{Lane: g.lane(), At: g.began, Data: g.frames[en.start:en.end]})
		}
	}
	if err := e.outage.spool.Append(e.endless, records...); err != nil {
		e.fail(groups, fmt.Errorf("neither PostgreSQL nor the spool takes it: %w", err))
		return
	}
	spoolAppended.Hit()
	for _, g := range groups {
		for i := range g.entries {
			g.entries[i].status, g.entries[i].winner = Buffered, nil
		}
		g.done()
	}
	e.outage.wake()
}

// protectAll encrypts what must not lie on the disk as it is, and fails the groups that cannot be encrypted.
func (e *Engine) protectAll(groups []*pushGroup) (protected []*pushGroup) {
	for _, g := range groups {
		if err := e.protectSpooled(g); err != nil {
			e.fail([]*pushGroup{g}, err)
			continue
		}
		protected = append(protected, g)
	}
	return protected
}

// meetSpoolFaults fails the groups that a test lets the spool refuse, and returns the others.
func (e *Engine) meetSpoolFaults(groups []*pushGroup) []*pushGroup {
	if e.cfg.Faults == nil {
		return groups
	}
	var kept []*pushGroup
	for _, g := range groups {
		if err := e.cfg.Faults.Spool(g.queue, g.partition); err != nil {
			e.fail([]*pushGroup{g}, err)
		} else {
			kept = append(kept, g)
		}
	}
	return kept
}

// meetFaults takes out the groups whose append a test lets fail, as if PostgreSQL had not taken them.
func (e *Engine) meetFaults(groups []*pushGroup) []*pushGroup {
	if e.cfg.Faults == nil {
		return groups
	}
	var kept []*pushGroup
	for _, g := range groups {
		if err := e.cfg.Faults.Append(g.queue, g.partition); err != nil {
			e.giveUp([]*pushGroup{g}, fmt.Errorf("%w: %w", ErrUnavailable, err))
		} else {
			kept = append(kept, g)
		}
	}
	return kept
}

// passing reports whether a failure is PostgreSQL's being away, and not the statement's fault.
func passing(err error) bool {
	return pg.Unavailable(err) || pg.UnknownOutcome(err) || pg.Retryable(err) ||
		errors.Is(err, ErrUnavailable) || errors.Is(err, errLate) || errors.Is(err, context.DeadlineExceeded)
}

// giveUp answers groups that could not be committed: from the spool, if there is one and the cause passes.
func (e *Engine) giveUp(groups []*pushGroup, cause error) {
	if len(groups) == 0 {
		return
	}
	e.metrics.failures.Inc()
	e.suspect(cause)
	var spooled, failed []*pushGroup
	for _, g := range groups {
		if e.outage.spool != nil && passing(cause) && !g.replayed {
			spooled = append(spooled, g)
		} else {
			failed = append(failed, g)
		}
	}
	e.fail(failed, cause)
	if len(spooled) == 0 {
		return
	}
	e.log.Warn("PostgreSQL does not take pushes; they go to the spool", "groups", len(spooled), "cause", cause)
	e.inflight.hold()
	go func() { // the disk must not hold up a writer
		defer e.inflight.leave()
		e.spoolGroups(spooled)
	}()
}

// A drain moves at most so much at a time.
const (
	drainRecords = 2000 // unless Config.DrainRecords says otherwise
	drainBytes   = 4 << 20
	// drainTries is how often PostgreSQL refuses an entry for its data before it is put aside.
	drainTries = 5
)

// drainLoop moves what is in the spool to the log while PostgreSQL answers. When ctx ends, it finishes
// the batch that it has begun: writers must still be there.
func (e *Engine) drainLoop(ctx context.Context) {
	o := e.outage
	if o.spool == nil {
		return
	}
	ticker := time.NewTicker(e.cfg.DrainInterval)
	defer ticker.Stop()
	o.wake() // for what an earlier run of the broker left
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.drain:
		case <-ticker.C:
		}
		if err := e.drainPass(func() bool { return ctx.Err() != nil }); err != nil {
			e.log.Warn("the spool waits", "err", err)
		}
	}
}

// drainPass moves what there is, oldest first. It goes around what does not move: a partition with a
// record that fails keeps its order and waits for the next pass, and so does everything else that is
// appended under the same lock.
func (e *Engine) drainPass(stopped func() bool) error {
	o := e.outage
	var after spool.Position
	var failure error
	stuck := stuckLanes{lanes: map[string]struct{}{}, shards: map[*shard]struct{}{}}
	for more := true; more && !stopped(); {
		o.batch <- struct{}{}
		var err error
		more, err = e.drainBatch(&after, &stuck)
		<-o.batch
		if err != nil {
			failure = err
		}
	}
	return failure
}

// drainBatch moves what follows behind after. It reports whether there may be more.
func (e *Engine) drainBatch(after *spool.Position, stuck *stuckLanes) (more bool, failure error) {
	o := e.outage
	if !o.draining() {
		return false, nil
	}
	entries, err := o.spool.Read(e.ctx, *after, e.cfg.DrainRecords, drainBytes)
	if err != nil || len(entries) == 0 {
		return false, err
	}
	*after = entries[len(entries)-1].Position()
	moving := entries[:0:0]
	lanes := map[string]struct{}{}
	for _, entry := range entries {
		lanes[entry.Lane] = struct{}{}
		if stuck.has(e, entry.Lane) {
			stuck.lanes[entry.Lane] = struct{}{}
		} else {
			moving = append(moving, entry)
		}
	}
	homes, err := e.homes(moving)
	if err != nil {
		return false, err
	}
	if moving, err = e.dropDeleted(moving, homes); err != nil {
		return false, err
	}
	failure = e.replay(moving, homes, stuck)
	e.spoolGroups(o.noteStuck(lanes, stuck.lanes))
	e.submit(o.release(lanes))
	return true, failure
}

const sqlHomes = `
select n.name, q.id, d.deleted_at
from unnest($1::text[]) as n (name)
left join queue q on q.name = n.name
left join queue_deletion d on d.name = n.name`

// home is where the spooled messages of a queue's name belong.
type home struct {
	id      int64     // of the queue; 0: there is none yet
	deleted time.Time // when one of the name was deleted; zero: never
}

// homes looks where entries belong. What changes afterwards is noticed when they are appended: to that
// queue or to none.
func (e *Engine) homes(entries []spool.Entry) (map[string]home, error) {
	homes := map[string]home{}
	for _, entry := range entries {
		if name, _, ok := strings.Cut(entry.Lane, "\x00"); ok {
			homes[name] = home{}
		}
	}
	err := e.retrying(e.ctx, "look where spooled messages belong", func(ctx context.Context) error {
		rows, _ := e.pool.Query(ctx, sqlHomes, slices.Collect(maps.Keys(homes))) // its error comes with the rows
		var name string
		var id *int64
		var deleted *time.Time
		_, err := pgx.ForEachRow(rows, []any{&name, &id, &deleted}, func() error {
			var h home
			if id != nil {
				h.id = *id
			}
			if deleted != nil {
				h.deleted = *deleted
			}
			homes[name] = h
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, h := range homes {
		if h.id != 0 && e.catalog.queueByID(h.id) == nil { // another broker made it just now
			return homes, e.refresh()
		}
	}
	return homes, nil
}

// dropDeleted takes the entries out of the spool whose queue was deleted after they were accepted, and
// returns the others: a deletion takes with it what was in the queue, wherever it was.
func (e *Engine) dropDeleted(entries []spool.Entry, homes map[string]home) ([]spool.Entry, error) {
	kept, dropped := entries[:0:0], entries[:0:0]
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry.Lane, "\x00")
		if entry.At.Before(homes[name].deleted) {
			dropped = append(dropped, entry)
		} else {
			kept = append(kept, entry)
		}
	}
	if len(dropped) == 0 {
		return kept, nil
	}
	e.log.Warn("spooled messages go with their deleted queues", "messages", len(dropped))
	return kept, e.outage.spool.Done(dropped...)
}

// stuckLanes are what a pass goes around.
type stuckLanes struct {
	lanes  map[string]struct{}
	shards map[*shard]struct{}
}

func (s *stuckLanes) add(g *pushGroup) {
	s.lanes[g.lane()] = struct{}{}
	if g.part != nil {
		s.shards[g.part.shard] = struct{}{}
	}
}

func (s *stuckLanes) has(e *Engine, lane string) bool {
	if _, ok := s.lanes[lane]; ok {
		return true
	}
	name, partition, _ := strings.Cut(lane, "\x00")
	q := e.catalog.queue(name)
	if q == nil || len(s.shards) == 0 {
		return false
	}
	p := e.catalog.partition(q, partition)
	if p == nil {
		return false
	}
	_, ok := s.shards[p.shard]
	return ok
}

// replay pushes entries with the ids they have and takes those out of the spool that the log has then.
// What fails stays, and what it belongs to is stuck. Only what is wrong in itself is put aside: an entry
// that cannot be read, and one that PostgreSQL has refused again and again for its data.
func (e *Engine) replay(entries []spool.Entry, homes map[string]home, stuck *stuckLanes) error {
	groups, aside := e.replayGroups(entries, homes)
	drainRead.Hit()
	e.pushReplayed(groups)
	drainCommitted.Hit()
	var done []spool.Entry
	var failure error
	for _, g := range groups {
		switch {
		case g.err == nil:
			done = append(done, g.entriesOf...)
		case pg.BadData(g.err) && len(g.entriesOf) > 1: // find the one that is refused
			for _, entry := range g.entriesOf {
				if err := e.replay([]spool.Entry{entry}, homes, stuck); err != nil {
					failure = err
					stuck.add(g)
					break
				}
			}
		case pg.BadData(g.err) && e.outage.refused(g.entriesOf[0]) >= drainTries:
			aside = append(aside, refusal{g.entriesOf[0], g.err})
		default:
			failure = g.err
			stuck.add(g)
		}
	}
	for _, r := range aside {
		e.log.Error("a spooled message is put aside", "lane", strings.ReplaceAll(r.entry.Lane, "\x00", "/"), "err", r.err)
		if err := e.outage.spool.Quarantine(r.entry, r.err.Error()); err != nil {
			return err
		}
		delete(e.outage.refusals, r.entry.Position())
	}
	return errors.Join(e.outage.spool.Done(done...), failure)
}

// refused counts how often an entry was refused. Only the drain calls it.
func (o *outage) refused(entry spool.Entry) int {
	o.refusals[entry.Position()]++
	return o.refusals[entry.Position()]
}

// refusal is an entry that can never be replayed.
type refusal struct {
	entry spool.Entry
	err   error
}

// replayGroups makes push groups of entries, one for each lane.
func (e *Engine) replayGroups(entries []spool.Entry, homes map[string]home) (groups []*pushGroup, malformed []refusal) {
	byLane := map[string]*pushGroup{}
	for _, entry := range entries {
		f, size, err := decodeFrame(entry.Data)
		queue, partition, ok := strings.Cut(entry.Lane, "\x00")
		if err == nil && (size != len(entry.Data) || !ok) {
			err = fmt.Errorf("%w: not one message of one partition", errCorrupt)
		}
		if err != nil {
			malformed = append(malformed, refusal{entry, err})
			continue
		}
		g := byLane[entry.Lane]
		if g == nil {
			g = &pushGroup{queue: queue, partition: partition, replayed: true, home: homes[queue].id}
			byLane[entry.Lane] = g
			groups = append(groups, g)
		}
		start := len(g.frames)
		d := f.draft()
		d.accepted = entry.At
		g.frames = appendFrame(g.frames, &d)
		g.entries = append(g.entries, pushEntry{
			id: f.id, txID: string(f.txID), hash: e.hash(f.transactionID()), at: entry.At, start: start, end: len(g.frames),
		})
		g.entriesOf = append(g.entriesOf, entry)
	}
	return groups, malformed
}

// pushReplayed sends groups to the log and waits for their outcomes.
func (e *Engine) pushReplayed(groups []*pushGroup) {
	var wait sync.WaitGroup
	wait.Add(len(groups))
	deadline := time.Now().Add(e.cfg.StatementTimeout)
	for _, g := range groups {
		g.deadline, g.done = deadline, wait.Done
	}
	e.submit(groups)
	wait.Wait()
}
