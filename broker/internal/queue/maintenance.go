package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/posthorn/posthorn/broker/internal/fault"
	"github.com/posthorn/posthorn/broker/internal/spool"
)

var (
	// ErrNoSpool is answered to a broker that is to enter maintenance without a spool.
	ErrNoSpool = errors.New("maintenance needs a spool")
	// ErrNotSpooled comes with the results of a push that maintenance sent to the spool, some of which
	// the spool did not take: they are Failed.
	ErrNotSpooled = errors.New("the spool did not take all of a push")
	errNoFaults   = errors.New("faults are for tests only")
)

// Modes are what an operator has switched for all brokers of the database.
type Modes struct {
	// Maintenance sends every push to the spool and stops the spool from being drained. Pops, acks and
	// transactions go on.
	Maintenance bool
	// PopMaintenance lets pops find nothing.
	PopMaintenance bool

	version int64 // of the switch that made them
}

// modes is what the broker knows of them.
type modes struct {
	mu  sync.Mutex // held until a change is in effect
	now Modes
}

// Modes returns the modes that this broker is in. It follows a switch at another broker within a second.
func (e *Engine) Modes() Modes {
	e.modes.mu.Lock()
	defer e.modes.mu.Unlock()
	return e.modes.now
}

// setModes puts modes into effect, unless it knows later ones: a poll may have read them before a switch.
func (e *Engine) setModes(m Modes) {
	e.modes.mu.Lock()
	defer e.modes.mu.Unlock()
	before := e.modes.now
	if m.version <= before.version {
		return
	}
	e.modes.now = m
	if m.Maintenance != before.Maintenance {
		e.log.Warn("maintenance mode", "on", m.Maintenance)
		e.divert(func(o *outage) { o.maintenance = m.Maintenance })
	}
	if m.PopMaintenance != before.PopMaintenance {
		e.log.Warn("pop maintenance mode", "on", m.PopMaintenance)
		e.pops.setPaused(m.PopMaintenance)
	}
}

const sqlSwitchMaintenance = `
update setting set maintenance = $1, mode_version = mode_version + 1
returning maintenance, pop_maintenance, mode_version`

const sqlSwitchPopMaintenance = `
update setting set pop_maintenance = $1, mode_version = mode_version + 1
returning maintenance, pop_maintenance, mode_version`

// SetMaintenance switches maintenance mode for all brokers: for this one before it returns, for the
// others within a second. Once it is on, this broker's drain stands still. It answers ErrNoSpool when
// this broker has no spool to send pushes to.
func (e *Engine) SetMaintenance(ctx context.Context, on bool) error {
	if on && e.outage.spool == nil {
		return ErrNoSpool
	}
	if err := e.switchMode(ctx, "switch maintenance", sqlSwitchMaintenance, on); err != nil || !on {
		return err
	}
	select { // the batch that the drain has begun
	case e.outage.batch <- struct{}{}:
		<-e.outage.batch
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetPopMaintenance switches pop maintenance for all brokers: for this one before it returns, parked
// pops included, for the others within a second.
func (e *Engine) SetPopMaintenance(ctx context.Context, on bool) error {
	return e.switchMode(ctx, "switch pop maintenance", sqlSwitchPopMaintenance, on)
}

func (e *Engine) switchMode(ctx context.Context, doing, sql string, on bool) error {
	var m Modes
	err := e.retrying(ctx, doing, func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sql, on).Scan(&m.Maintenance, &m.PopMaintenance, &m.version)
	})
	if err != nil {
		return err
	}
	e.setModes(m)
	return nil
}

// Buffer is the state of a broker's spool.
type Buffer struct {
	Configured  bool // false: the broker has no spool, and everything else is zero but DatabaseUp
	Pending     int  // messages that wait
	Bytes       int64
	Oldest      time.Time     // when the oldest was accepted; zero without any
	Age         time.Duration // how long it has waited
	Failed      int           // what was put aside: messages, and ranges of damaged bytes
	FailedBytes int64
	Err         error // why the last write failed, nil once one succeeded again
	DatabaseUp  bool  // PostgreSQL answered when it was last asked
}

// Buffer returns the state of the spool. It asks neither the disk nor the database.
func (e *Engine) Buffer() Buffer {
	b := Buffer{DatabaseUp: !e.outage.isDown()}
	if e.outage.spool == nil {
		return b
	}
	st := e.outage.spool.Stats()
	b.Configured, b.Pending, b.Bytes, b.Failed, b.FailedBytes, b.Err = true, st.Pending, st.Bytes, st.Failed, st.FailedBytes, st.Err
	if st.Pending > 0 {
		b.Oldest, b.Age = st.Oldest, max(0, e.Now().Sub(st.Oldest))
	}
	return b
}

// Failed yields what the spool has put aside; nothing without a spool. See spool.Spool.Failed.
func (e *Engine) Failed() func(yield func(spool.Failed, error) bool) {
	if e.outage.spool == nil {
		return func(func(spool.Failed, error) bool) {}
	}
	return e.outage.spool.Failed()
}

// SharedState is what a broker knows of the state that all brokers of the database share.
type SharedState struct {
	Modes          Modes
	CatalogVersion int64 // every change of a queue up to this one is known
	Queues         int
	Partitions     int           // that this broker has met
	ShardHeads     []int64       // by shard: the appends that are known
	ClockOffset    time.Duration // of the test clock
	ParkedPops     int           // at this broker
}

// SharedState returns what this broker knows, without asking the database.
func (e *Engine) SharedState() SharedState {
	s := SharedState{Modes: e.Modes(), ClockOffset: e.clockOffset(), ParkedPops: e.pops.parked()}
	e.catalog.mu.RLock()
	s.CatalogVersion, s.Queues, s.Partitions = e.catalog.version, len(e.catalog.queueID), len(e.catalog.byID)
	e.catalog.mu.RUnlock()
	for _, shard := range e.shards {
		shard.mu.Lock()
		s.ShardHeads = append(s.ShardHeads, shard.folded)
		shard.mu.Unlock()
	}
	return s
}

// Notify looks at once for what other brokers did to a queue, so that pops parked here are served
// without waiting for the poll: appends, and leases that were given back.
func (e *Engine) Notify(ctx context.Context, queue string) error {
	if err := e.catchUp(ctx); err != nil {
		return err
	}
	q := e.catalog.queue(queue)
	if q == nil {
		return nil
	}
	if found := e.pops.blockedOf(q); len(found) > 0 {
		_, err := e.readCursors(ctx, found)
		return err
	}
	return nil
}

// blockedOf returns cursors of a queue that seem to be under a lease.
func (p *popper) blockedOf(q *queueState) []*cursor {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []*cursor
	for _, g := range q.groups {
		found = g.appendBlocked(found)
	}
	return found
}

// pausedHold is how long a pop that waits is held while pops are paused. Answering it at once would make
// every idle consumer ask again at once.
const pausedHold = time.Second

// setPaused makes pops find nothing, those that are parked included, or lets them find something again.
func (p *popper) setPaused(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case on && p.resumed == nil:
		p.resumed = make(chan struct{})
		p.answerParked()
	case !on && p.resumed != nil:
		close(p.resumed)
		p.resumed = nil
	}
}

// pass reports whether pops are not paused. While they are, one that waits is held for a moment.
func (p *popper) pass(ctx context.Context, wait time.Duration) bool {
	p.mu.Lock()
	resumed, draining := p.resumed, p.draining
	p.mu.Unlock()
	if resumed == nil {
		return true
	}
	if wait <= 0 || draining {
		return false
	}
	t := time.NewTimer(min(wait, pausedHold))
	defer t.Stop()
	select {
	case <-resumed:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// ReplaceFaults puts the faults of a test in force. Where PostgreSQL may be reached afterwards, it returns
// once the broker has noticed, and once the spool is drained if nothing stands in the way of that.
func (e *Engine) ReplaceFaults(ctx context.Context, f fault.Faults) error {
	if e.cfg.Faults == nil {
		return errNoFaults
	}
	e.cfg.Faults.Replace(f)
	if f.Postgres != fault.None && len(f.Groups) == 0 {
		return nil
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	if err := e.catchUp(ctx); err != nil {
		return fmt.Errorf("after the faults: %w", err)
	}
	e.setOutage(false)
	if f.Postgres != fault.None || f.Spool != fault.None {
		return nil
	}
	ticker := time.NewTicker(settlePoll)
	defer ticker.Stop()
	for e.outage.spool != nil && !e.Modes().Maintenance && e.outage.spool.Stats().Pending > 0 {
		e.outage.wake()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("drain the spool after the faults: %w: %w", ErrUnavailable, ctx.Err())
		}
	}
	return nil
}

// settlePoll is how often a test that ends its faults looks whether the spool is drained.
const settlePoll = 5 * time.Millisecond

// Faults returns the faults in force; the zero value without tests.
func (e *Engine) Faults() fault.Faults {
	if e.cfg.Faults == nil {
		return fault.Faults{}
	}
	return e.cfg.Faults.Faults()
}
