package queue

import (
	"container/heap"
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// popper matches pops that wait with cursors that have something to deliver.
//
// Pops wait in memory; no database work is done for them until there is a cursor to claim. Pops
// that can be served at the same moment are claimed by one statement.
type popper struct {
	engine *Engine

	mu        sync.Mutex
	active    list.List // of *group: ready and waited for, to be looked at
	activated map[*group]*list.Element
	singles   map[*cursor]struct{} // cursors that are ready and that a pop of one partition waits for
	discovery map[*waiter]struct{} // parked pops by namespace or task
	impatient map[*waiter]struct{} // pops that do not wait: served in the next round or not at all
	waiting   int                  // parked pops
	turn      int
	timers    timers
	draining  bool
	resumed   chan struct{} // closed when pops are no longer paused; nil when they are not
	executing int
	idle      sync.WaitGroup
	quiet     *sync.Cond // executing fell to 0

	firstParked chan struct{} // the first pop was parked
	timersMoved chan struct{}
}

// popExecutors is how many claims are in the air at the same time.
const popExecutors = 2

// roundMax is how many pops one claim serves at most.
const roundMax = 256

// waiter is one pop.
type waiter struct {
	ctx      context.Context
	request  *PopRequest
	since    time.Time // of the database's clock: when it came
	groups   []*group
	single   *cursor // pops of one partition
	places   []place
	result   chan popOutcome
	deadline time.Time // when waiting ends, by this machine's clock; zero means it does not wait
	held     *timer    // an under-full batch is held for more until then
	state    waiterState
	leaving  bool // its wait ended while a claim for it was in the air
}

type waiterState uint8

const (
	waiterParked waiterState = iota
	waiterServed             // a claim for it is in the air
	waiterDone
)

type place struct {
	list    *list.List
	element *list.Element
}

type popOutcome struct {
	result PopResult
	err    error
	retry  bool // nothing was claimed: it may be parked again

	orphaned bool // nothing was claimed, and a group was deleted: it begins anew
}

func newPopper(e *Engine) *popper {
	p := &popper{
		engine:      e,
		activated:   map[*group]*list.Element{},
		singles:     map[*cursor]struct{}{},
		discovery:   map[*waiter]struct{}{},
		impatient:   map[*waiter]struct{}{},
		firstParked: make(chan struct{}, 1),
		timersMoved: make(chan struct{}, 1),
	}
	p.quiet = sync.NewCond(&p.mu)
	return p
}

// Pop takes messages. It is empty when there are none, in time if the request waits.
func (e *Engine) Pop(ctx context.Context, r PopRequest) (PopResult, error) {
	if e.inflight.isClosed() {
		return PopResult{}, ErrStopped
	}
	if r.Group == "" {
		r.Group = ModeGroup
	}
	if !e.pops.pass(ctx, r.Wait) {
		return PopResult{Group: r.Group}, ctx.Err()
	}
	r.Batch = max(1, r.Batch)
	w := &waiter{ctx: ctx, request: &r, since: e.clock.Now(), result: make(chan popOutcome, 1)}
	if r.Wait > 0 {
		w.deadline = time.Now().Add(r.Wait)
	}
	result, err := e.pop(ctx, w)
	result.Group = r.Group
	e.metrics.popped(&result, err)
	return result, err
}

// pop takes messages. When a group of the pop is deleted meanwhile, it begins anew.
func (e *Engine) pop(ctx context.Context, w *waiter) (PopResult, error) {
	for range maxRaces {
		if err := e.scope(ctx, w); err != nil {
			return PopResult{}, err
		}
		out, err := e.popScoped(ctx, w)
		if err == nil && out.retry && w.deadline.IsZero() {
			// What seemed to be there was not: others had taken it, or retention. What they appended just now counts.
			out, err = e.popScoped(ctx, w)
		}
		if err != nil || !out.orphaned {
			return out.result, err
		}
		w.reset()
	}
	return PopResult{}, fmt.Errorf("pop: %w", errRace)
}

// popScoped takes messages from the groups that were found for the pop.
func (e *Engine) popScoped(ctx context.Context, w *waiter) (popOutcome, error) {
	if served := e.pops.tryNow(w); !served {
		if w.deadline.IsZero() {
			// What others did just now counts: their appends, and leases they gave back.
			if err := e.lookAgain(ctx, w); err != nil {
				return popOutcome{}, err
			}
			if served := e.pops.tryNow(w); !served {
				return popOutcome{}, nil
			}
		} else if parked := e.pops.park(w); !parked {
			return popOutcome{}, nil
		}
		if w.request.Queue == "" { // a queue may have come between the look and the wait
			e.pops.widenAll(w, e.catalog.matching(w.request.Namespace, w.request.Task))
		}
	}
	var timeout <-chan time.Time
	if !w.deadline.IsZero() {
		t := time.NewTimer(time.Until(w.deadline))
		defer t.Stop()
		timeout = t.C
	}
	select {
	case out := <-w.result:
		return out, out.err
	case <-timeout:
	case <-ctx.Done():
	}
	if e.pops.abandon(w) {
		return popOutcome{}, ctx.Err()
	}
	// A claim for it is in the air: what it claims must not be lost.
	out := <-w.result
	if err := ctx.Err(); err != nil {
		e.giveBack(&out.result)
		return popOutcome{}, err
	}
	out.orphaned = false // its time is up
	return out, out.err
}

// reset makes a pop look for its groups again.
func (w *waiter) reset() {
	w.groups, w.single, w.held, w.leaving = nil, nil, nil, false
}

// homeless reports whether the queue or the group that a pop waits for was deleted. The caller holds popper.mu.
func (w *waiter) homeless() bool {
	return w.orphaned() || w.request.Queue != "" && w.groups[0].removed
}

// orphaned reports whether a group that the pop takes from was deleted, and its queue was not. The caller
// holds popper.mu.
func (w *waiter) orphaned() bool {
	return slices.ContainsFunc(w.groups, func(g *group) bool { return g.removed && !g.queue.removed.Load() })
}

// scope finds the groups a pop takes from, creating a queue or a group that does not exist.
func (e *Engine) scope(ctx context.Context, w *waiter) error {
	r := w.request
	seed := seeding{create: true, fromNew: r.FromNew, from: r.From}
	if r.Queue == "" {
		return e.discover(ctx, w)
	}
	for range maxRaces {
		q, err := e.ensureQueue(ctx, r.Queue)
		if err != nil {
			return err
		}
		g, err := e.group(ctx, q, r.Group, seed)
		if errors.Is(err, ErrQueueNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		w.groups = []*group{g}
		return e.scopePartition(ctx, w, g)
	}
	return errRace
}

// discover finds the groups of a pop by namespace or task. A queue that was created after the group
// began elsewhere in the scope, or after the pop began to wait, is delivered from its beginning.
func (e *Engine) discover(ctx context.Context, w *waiter) error {
	r := w.request
	seed := seeding{create: true, fromNew: r.FromNew, from: r.From}
	queues := e.catalog.matching(r.Namespace, r.Task)
	if r.FromNew && r.From.IsZero() {
		seed.from = e.pops.began(w, queues)
	}
	var groups []*group
	for _, q := range queues {
		g, err := e.group(ctx, q, r.Group, seed)
		if errors.Is(err, ErrQueueNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		groups = append(groups, g)
	}
	w.groups = groups
	return nil
}

// began is when a group that only wants new messages began: at the first of the queues that know it,
// or else when the pop did.
func (p *popper) began(w *waiter, queues []*queueState) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	began := w.since
	for _, q := range queues {
		if g := q.groups[w.request.Group]; g != nil && !g.from.IsZero() && g.from.Before(began) {
			began = g.from
		}
	}
	return began
}

// scopePartition narrows a pop to one partition, if it names one that exists.
func (e *Engine) scopePartition(ctx context.Context, w *waiter, g *group) error {
	if w.request.Partition == "" {
		return nil
	}
	part, err := e.partitionByName(ctx, g.queue, w.request.Partition)
	if err != nil || part == nil {
		return err
	}
	if w.single = e.pops.cursor(g, part); w.single == nil {
		if err := e.loadCursors(ctx, g, []int64{part.id}); err != nil {
			return err
		}
		w.single = e.pops.cursor(g, part)
	}
	return nil
}

// lookAgain learns what other brokers did: appends first, then the cursors that seem leased.
func (e *Engine) lookAgain(ctx context.Context, w *waiter) error {
	if err := e.catchUp(ctx); err != nil {
		return err
	}
	if w.request.Queue == "" || (w.request.Partition != "" && w.single == nil) || e.pops.isOrphaned(w) {
		w.reset()
		if err := e.scope(ctx, w); err != nil { // queues or the partition may be new
			return err
		}
	}
	if blocked := e.pops.blockedCursors(w); len(blocked) > 0 {
		_, err := e.readCursors(ctx, blocked)
		return err
	}
	return nil
}

// group returns a loaded group.
func (p *popper) group(q *queueState, name string) *group {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := q.groups[name]; g != nil && g.loaded {
		return g
	}
	return nil
}

func (p *popper) isOrphaned(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return w.orphaned()
}

func (p *popper) publish(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.queue.groups[g.name] = g
}

func (p *popper) unpublish(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.queue.groups[g.name] == g {
		delete(g.queue.groups, g.name)
	}
}

func (p *popper) cursor(g *group, part *partition) *cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	return g.cursors[part.id]
}

// activate marks a group as worth a look. The caller holds mu.
func (p *popper) activate(g *group) {
	if _, ok := p.activated[g]; !ok {
		p.activated[g] = p.active.PushBack(g)
	}
}

// tryNow has the pop served if there is something for it now.
func (p *popper) tryNow(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed() || !p.anythingFor(w) {
		return false
	}
	p.join(w)
	p.kick()
	return true
}

func (p *popper) anythingFor(w *waiter) bool {
	if w.request.Partition != "" {
		return w.single != nil && w.single.state == cursorReady
	}
	for _, g := range w.groups {
		if g.ready.Len() > 0 {
			return true
		}
	}
	return false
}

// park makes a pop wait.
func (p *popper) park(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed() {
		return false
	}
	if w.homeless() {
		w.state = waiterDone
		w.result <- popOutcome{orphaned: w.orphaned()}
		return true
	}
	p.join(w)
	p.kick()
	return true
}

// join puts a pop into the lists it is served from. The caller holds mu.
func (p *popper) join(w *waiter) {
	w.state = waiterParked
	if w.single != nil && w.single.part.removed.Load() {
		w.single = w.single.group.successor(w.single.part)
	}
	add := func(l *list.List) { w.places = append(w.places, place{l, l.PushBack(w)}) }
	switch {
	case w.request.Partition == "":
		for _, g := range w.groups {
			add(&g.waiters)
			if g.ready.Len() > 0 {
				p.activate(g)
			}
		}
	case w.single != nil:
		add(&w.single.waiters)
		w.single.group.singles++
		if w.single.state == cursorReady {
			p.singles[w.single] = struct{}{}
		}
	default: // the partition does not exist yet
		add(&w.groups[0].lost)
	}
	if w.request.Queue == "" {
		p.discovery[w] = struct{}{}
	}
	if w.deadline.IsZero() {
		p.impatient[w] = struct{}{}
	}
	p.waiting++
	if p.waiting == 1 {
		select {
		case p.firstParked <- struct{}{}:
		default:
		}
	}
}

// quit takes a pop out of the lists it waits in. The caller holds mu.
func (p *popper) quit(w *waiter) {
	for _, at := range w.places {
		at.list.Remove(at.element)
	}
	w.places = w.places[:0]
	delete(p.discovery, w)
	delete(p.impatient, w)
	if w.single != nil {
		w.single.group.singles--
	}
	if w.held != nil {
		p.unschedule(w.held)
	}
	p.waiting--
}

// abandon ends a pop's wait. It is false when a claim for it is in the air already.
func (p *popper) abandon(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.state != waiterParked {
		w.leaving = true
		return false
	}
	p.quit(w)
	w.state = waiterDone
	return true
}

// parked is how many pops wait.
func (p *popper) parked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting
}

// drain answers all parked pops and parks no more.
func (p *popper) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	if p.resumed != nil {
		close(p.resumed) // those held while pops are paused
		p.resumed = make(chan struct{})
	}
	p.answerParked()
}

// closed reports whether pops find nothing and are not parked. The caller holds mu.
func (p *popper) closed() bool { return p.draining || p.resumed != nil }

// answerParked tells all parked pops that nothing was found. The caller holds mu.
func (p *popper) answerParked() {
	var all []*waiter
	collect := func(l *list.List) {
		for el := l.Front(); el != nil; el = el.Next() {
			all = append(all, el.Value.(*waiter))
		}
	}
	e := p.engine
	e.catalog.mu.RLock()
	for _, q := range e.catalog.queueID {
		for _, g := range q.groups {
			collect(&g.waiters)
			collect(&g.lost)
			for _, c := range g.cursors {
				collect(&c.waiters)
			}
		}
	}
	e.catalog.mu.RUnlock()
	for w := range p.discovery {
		all = append(all, w)
	}
	for _, w := range all {
		if w.state == waiterParked {
			p.answer(w, popOutcome{})
		}
	}
}

// wait returns when no claim is in the air.
func (p *popper) wait() { p.idle.Wait() }

// blockedCursors returns some of the cursors that have something for the pop under a lease.
func (p *popper) blockedCursors(w *waiter) []*cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.request.Partition != "" {
		if w.single != nil && w.single.state == cursorBlocked {
			return []*cursor{w.single}
		}
		return nil
	}
	var found []*cursor
	for _, g := range w.groups {
		found = g.appendBlocked(found)
	}
	return found
}

// blockedMax is how many seemingly leased cursors one look checks.
const blockedMax = 1000

func (g *group) appendBlocked(found []*cursor) []*cursor {
	if g.blocked == 0 {
		return found
	}
	for _, c := range g.cursors {
		if len(found) >= blockedMax {
			break
		}
		if c.state == cursorBlocked {
			found = append(found, c)
		}
	}
	return found
}

// appended tells groups what this broker appended.
func (p *popper) appended(lanes []*laneFlight) {
	now := p.engine.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lf := range lanes {
		p.grown(lf.part, now)
	}
	p.kick()
}

// folded tells groups what other brokers appended.
func (p *popper) folded(runs []foldedRun) {
	now := p.engine.clock.Now()
	unknown := map[*group][]int64{}
	p.mu.Lock()
	for i := range runs {
		r := &runs[i]
		if part := p.engine.catalog.partitionByID(r.partitionID); part != nil {
			p.grown(part, now)
			continue
		}
		q := p.engine.catalog.queueByID(r.queueID)
		if q == nil {
			continue // nobody here has asked for that queue yet; a pop reads it whole
		}
		for _, g := range q.groups {
			unknown[g] = append(unknown[g], r.partitionID)
		}
	}
	p.kick()
	p.mu.Unlock()
	for g, partitions := range unknown {
		p.adopt(g, partitions)
	}
}

// adopt reads partitions of a group that this broker did not know of.
func (p *popper) adopt(g *group, partitions []int64) {
	e := p.engine
	p.idle.Go(func() {
		for wait := 100 * time.Millisecond; ; wait *= 2 {
			err := e.loadCursors(e.ctx, g, partitions)
			if err == nil || errors.Is(err, errGroupGone) {
				return
			}
			select {
			case <-e.ctx.Done():
				return
			case <-time.After(min(wait, 5*time.Second)):
			}
		}
	})
}

// grown tells the groups of a partition that its log has grown. The caller holds mu.
func (p *popper) grown(part *partition, now time.Time) {
	for _, g := range part.queue.groups {
		c := g.cursors[part.id]
		if c == nil {
			if part.created.Before(g.from) || !g.loaded { // its first cursor depends on what is in the log
				if _, known := g.strange[part.id]; !known {
					g.strange[part.id] = struct{}{}
					if g.loaded {
						p.adopt(g, []int64{part.id})
					}
				}
				continue
			}
			c = &cursor{group: g, part: part}
			g.cursors[part.id] = c
		}
		p.place(c, now)
		p.findLost(g, part, c)
	}
}

// findLost moves the pops that wait for a partition which did not exist. The caller holds mu.
func (p *popper) findLost(g *group, part *partition, c *cursor) {
	for el := g.lost.Front(); el != nil; {
		next := el.Next()
		if w := el.Value.(*waiter); w.request.Partition == part.name {
			p.quit(w)
			w.single = c
			p.join(w)
		}
		el = next
	}
}

// forgetTails makes every loaded group read its cursors again: appends went by unseen.
func (p *popper) forgetTails() {
	p.mu.Lock()
	var groups []*group
	p.engine.catalog.mu.RLock()
	for _, q := range p.engine.catalog.queueID {
		for _, g := range q.groups {
			groups = append(groups, g)
		}
	}
	p.engine.catalog.mu.RUnlock()
	p.mu.Unlock()
	for _, g := range groups {
		p.adopt(g, nil)
	}
}

// queueChanged looks whether parked pops by namespace or task now see the queue, and whether its
// new settings make something visible.
func (p *popper) queueChanged(q *queueState) {
	now := p.engine.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range q.groups {
		for _, c := range g.cursors {
			if c.state == cursorDelayed {
				c.notUntil = time.Time{}
				p.place(c, now)
			}
		}
	}
	for w := range p.discovery {
		if q.matches(w.request.Namespace, w.request.Task) {
			p.widen(w, q)
		}
	}
	p.kick()
}

func (p *popper) widenAll(w *waiter, queues []*queueState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range queues {
		p.widen(w, q)
	}
}

// widen adds a queue to a parked pop by namespace or task. The caller holds mu.
func (p *popper) widen(w *waiter, q *queueState) {
	if w.state != waiterParked || slices.ContainsFunc(w.groups, func(g *group) bool { return g.queue == q }) {
		return
	}
	e := p.engine
	p.idle.Go(func() {
		r := w.request
		seed := seeding{create: true, fromNew: r.FromNew, from: r.From}
		if r.FromNew && r.From.IsZero() {
			seed.from = p.began(w, nil)
		}
		g, err := e.group(e.ctx, q, r.Group, seed)
		if err != nil {
			e.log.Warn("a parked pop does not see a new queue", "queue", q.name, "err", err)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.state != waiterParked {
			return
		}
		if slices.Contains(w.groups, g) {
			return
		}
		p.quit(w)
		w.groups = append(w.groups, g)
		if w.orphaned() {
			w.state = waiterDone
			w.result <- popOutcome{orphaned: true}
			return
		}
		p.join(w)
		p.kick()
	})
}

// queueRemoved ends the groups of a deleted queue. Pops parked there are told that nothing was found.
func (p *popper) queueRemoved(q *queueState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, g := range q.groups {
		p.retire(g, func(w *waiter) {
			if w.request.Queue != "" { // others may wait for other queues too
				p.answer(w, popOutcome{})
			}
		})
		delete(q.groups, name)
	}
}

// groupRemoved forgets a deleted group. Pops parked there begin anew.
func (p *popper) groupRemoved(g *group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.queue.groups[g.name] == g {
		delete(g.queue.groups, g.name)
	}
	p.retire(g, func(w *waiter) { p.answer(w, popOutcome{orphaned: true}) })
}

// retire takes a group's cursors out of all sets and hands its parked pops to dismiss. The caller holds mu.
func (p *popper) retire(g *group, dismiss func(*waiter)) {
	g.removed = true
	each := func(l *list.List) {
		for el := l.Front(); el != nil; {
			next := el.Next()
			dismiss(el.Value.(*waiter))
			el = next
		}
	}
	for _, c := range g.cursors {
		p.leave(c)
		each(&c.waiters)
	}
	each(&g.waiters)
	each(&g.lost)
}

// timerLoop moves cursors when their time has come.
func (e *Engine) timerLoop(ctx context.Context) {
	p := e.pops
	for {
		wait := time.Hour
		p.mu.Lock()
		if len(p.timers) > 0 {
			wait = p.timers[0].at.Sub(e.clock.Now())
		}
		p.mu.Unlock()
		t := time.NewTimer(max(wait, 0))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-p.timersMoved:
			t.Stop()
		case <-t.C:
		}
		p.fire(e.clock.Now())
	}
}

// fire handles the timers that are due.
func (p *popper) fire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.timers) > 0 && !p.timers[0].at.After(now) {
		t := heap.Pop(&p.timers).(*timer)
		if c := t.cursor; c != nil {
			p.place(c, now)
		} else if w := t.waiter; w.state == waiterParked {
			if w.single != nil {
				p.singles[w.single] = struct{}{}
				continue
			}
			for _, g := range w.groups {
				p.activate(g)
			}
		}
	}
	p.kick()
}

func (p *popper) wakeTimers() {
	select {
	case p.timersMoved <- struct{}{}:
	default:
	}
}

// settleDue handles what is due and returns when no claim is in the air.
func (p *popper) settleDue(ctx context.Context) error {
	p.fire(p.engine.clock.Now())
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.quiet.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.executing > 0 && ctx.Err() == nil {
		p.quiet.Wait()
	}
	return ctx.Err()
}

// kick starts an executor if there may be something to claim. The caller holds mu.
func (p *popper) kick() {
	if p.active.Len() == 0 && len(p.singles) == 0 || p.executing >= popExecutors {
		return
	}
	p.executing++
	p.idle.Add(1)
	go p.execute()
}

func (p *popper) execute() {
	defer p.idle.Done()
	for {
		p.mu.Lock()
		round := p.collect()
		if len(round) == 0 {
			p.executing--
			if p.executing == 0 {
				p.quiet.Broadcast()
			}
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.engine.claim(round)
	}
}

// serving is a pop with the cursors that were taken for it.
type serving struct {
	waiter  *waiter
	lease   uuid.UUID
	takes   []*take
	lost    bool // a claim for it had no answer
	outcome popOutcome
}

// take is one cursor of a serving.
type take struct {
	cursor    *cursor
	committed int64 // as known when it was taken, like the version of its group
	version   int64
	from, to  int64 // the offsets wanted, then those found
	count     int   // messages in [from, to)
	delivered int64
	segments  []*segment
	opened    map[int64][]byte // payloads that were encrypted, by offset
	pop       int              // which of the round it belongs to
	cutShort  bool             // more segments are there than were read

	hiddenUntil time.Time // visibility rules hide what comes next until then
	hole        bool      // nothing is left in the log before past
	past        int64

	claimed   bool
	seeks     int64
	attempt   int
	leaseTill time.Time
}

// hide remembers why a take found nothing, so that its cursor is not tried again at once.
func (t *take) hide() {
	c := t.cursor
	if t.count == 0 {
		c.notUntil = t.hiddenUntil
	}
	if t.hole {
		c.hole = max(c.hole, t.past)
	}
}

// collect pairs ready cursors with pops. The caller holds mu.
func (p *popper) collect() []*serving {
	var round []*serving
	for c := range p.singles {
		if len(round) >= roundMax {
			return round
		}
		for el := c.waiters.Front(); el != nil && c.state == cursorReady; el = el.Next() {
			if s := p.serve(el.Value.(*waiter)); s != nil {
				round = append(round, s)
			}
		}
		delete(p.singles, c)
	}
	for front := p.active.Front(); front != nil; front = p.active.Front() {
		g := front.Value.(*group)
		for el := g.waiters.Front(); el != nil && g.ready.Len() > 0; {
			if len(round) >= roundMax {
				return round
			}
			next := el.Next()
			if s := p.serve(el.Value.(*waiter)); s != nil {
				round = append(round, s)
			}
			el = next
		}
		p.active.Remove(front)
		delete(p.activated, g)
	}
	for w := range p.impatient {
		if !p.anythingFor(w) { // others were served first
			p.answer(w, popOutcome{retry: true})
		}
	}
	return round
}

// answer ends a parked pop. The caller holds mu.
func (p *popper) answer(w *waiter, out popOutcome) {
	p.quit(w)
	w.state = waiterDone
	w.result <- out
}

// serve takes ready cursors for a pop, nil when there are none or their batch is held for more.
// The caller holds mu.
func (p *popper) serve(w *waiter) *serving {
	if w.ctx.Err() != nil {
		return nil // its caller is about to abandon it
	}
	picks, available := p.pick(w)
	if len(picks) == 0 || p.hold(w, picks[0], available) {
		return nil
	}
	p.quit(w)
	w.state = waiterServed
	s := &serving{waiter: w}
	rest := int64(w.request.Batch)
	for _, c := range picks {
		p.leave(c)
		c.state = cursorBusy
		from := c.start()
		n := min(rest, c.available())
		rest -= n
		s.takes = append(s.takes, &take{
			cursor: c, committed: c.committed, version: c.group.version, delivered: c.delivered, from: from, to: from + n,
		})
	}
	return s
}

// pick chooses the cursors a pop takes from: the first ready ones, until its batch or its partitions are used up.
func (p *popper) pick(w *waiter) (picks []*cursor, available int64) {
	if w.request.Partition != "" {
		if w.single == nil || w.single.state != cursorReady {
			return nil, 0
		}
		return []*cursor{w.single}, w.single.available()
	}
	p.turn++ // so that no queue of a discovery is always the last
	for i := range w.groups {
		g := w.groups[(p.turn+i)%len(w.groups)]
		for el := g.ready.Front(); el != nil; el = el.Next() {
			c := el.Value.(*cursor)
			picks = append(picks, c)
			available += c.available()
			if len(picks) == w.request.Partitions || available >= int64(w.request.Batch) {
				return picks, available
			}
		}
	}
	return picks, available
}

// hold reports whether an under-full batch is to be held for more, as its queue asks.
func (p *popper) hold(w *waiter, c *cursor, available int64) bool {
	wait := c.group.queue.config.Load().options.MinPopWait
	if wait <= 0 || w.deadline.IsZero() || w.request.Batch <= 1 || available >= int64(w.request.Batch) {
		return false
	}
	now := p.engine.clock.Now()
	if w.held == nil {
		// At the end of its own wait a pop takes what there is.
		wait = min(wait, max(0, time.Until(w.deadline)-holdMargin))
		w.held = &timer{waiter: w, index: -1, at: now.Add(wait)}
	}
	if !w.held.at.After(now) {
		return false
	}
	p.schedule(w.held, w.held.at)
	return true
}

// holdMargin is how long before the end of its wait a held pop is served.
const holdMargin = 20 * time.Millisecond

// finish takes the outcome of a claim into memory and answers its pops.
func (p *popper) finish(round []*serving) {
	now := p.engine.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range round {
		for _, t := range s.takes {
			if !t.claimed {
				t.hide()
			}
			p.place(t.cursor, now)
		}
	}
	for _, s := range round {
		w := s.waiter
		switch {
		case s.outcome.retry && w.homeless():
			s.outcome.orphaned = w.orphaned()
		case !s.outcome.retry || w.leaving || p.closed():
		case p.anythingFor(w) || !w.deadline.IsZero():
			p.join(w)
			continue
		}
		w.state = waiterDone
		w.result <- s.outcome
	}
}
