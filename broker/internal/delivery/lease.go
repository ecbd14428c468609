package delivery

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Leases are held by a broker for as long as it shows that it is alive.
const (
	leaseTime  = 20 * time.Second // a broker that was silent for so long has lost its leases
	leaseRenew = 4 * time.Second
	// leaseDoubt is when a broker that could not renew starts nothing more: well before others take its tasks.
	leaseDoubt = 14 * time.Second
	reapLimit  = 1000
)

// lease names what one broker holds. A broker has a current one; older ones live on until what they hold is done.
type lease struct {
	id   int64
	jobs int // in this broker's memory; guarded by leases.mu
}

// leases are those of one broker.
type leases struct {
	mu      sync.Mutex
	current *lease
	old     []*lease
	renewed time.Time     // local time before the last renewal that succeeded
	want    chan struct{} // asks for a current lease
}

// take returns the current lease and counts n jobs to it; nil when there is none.
func (l *leases) take(n int) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		l.current.jobs += n
	}
	return l.current
}

func (l *leases) give(held *lease, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held.jobs -= n
}

// retire makes the next renewal mint a new lease. What the current one holds without being in memory becomes free when what
// is in memory is done: that is the way out of statements of which nobody knows whether they took effect.
func (l *leases) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.current != nil {
		l.old = append(l.old, l.current)
		l.current = nil
	}
	signal(l.want)
}

// lingering reports whether a lease was retired and is not over yet.
func (l *leases) lingering() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.old) > 0
}

// fresh reports whether what this broker holds is still its own, as far as it knows.
func (l *leases) fresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.renewed) < leaseDoubt
}

const sqlRenewLeases = `
update delivery_broker set alive_until = clock_timestamp() + $2::interval, workers = case when lease = $3 then $4::integer else 0 end
where lease = any($1) and alive_until > clock_timestamp()
returning lease`

const sqlNewLease = `
insert into delivery_broker (lease, alive_until, workers) values ($1, clock_timestamp() + $2::interval, $3)`

const sqlDropLeases = `
delete from delivery_broker where lease = any($1)`

// renewLease shows that this broker is alive, drops leases that hold nothing more, and sees to it that there is a current one.
func (e *Engine) renewLease(ctx context.Context) error {
	l := &e.leases
	started := time.Now()
	l.mu.Lock()
	var keep, drop []int64
	for _, old := range l.old {
		if old.jobs > 0 {
			keep = append(keep, old.id)
		} else {
			drop = append(drop, old.id)
		}
	}
	var current int64
	if l.current != nil {
		current = l.current.id
		keep = append(keep, current)
	}
	needed := l.current == nil
	l.mu.Unlock()

	ctx, cancel := e.deadline(ctx)
	defer cancel()
	var alive []int64
	if len(keep) > 0 {
		rows, err := e.pool.Query(ctx, sqlRenewLeases, keep, leaseTime, current, e.cfg.Workers)
		if err != nil {
			return e.unavailable("renew the lease", err)
		}
		if alive, err = collect[int64](rows); err != nil {
			return e.unavailable("renew the lease", err)
		}
	}
	lost := func(id int64) bool { return slices.Contains(keep, id) && !slices.Contains(alive, id) }
	if len(drop) > 0 {
		if _, err := e.pool.Exec(ctx, sqlDropLeases, drop); err != nil {
			return e.unavailable("drop leases", err)
		}
	}
	var minted *lease
	l.mu.Lock()
	if l.current != nil && lost(l.current.id) {
		l.old = append(l.old, l.current)
		l.current, needed = nil, true
	}
	l.mu.Unlock()
	if needed {
		minted = &lease{id: rand.Int64()} //nolint:gosec // it has to be unlikely to repeat, not hard to guess
		if _, err := e.pool.Exec(ctx, sqlNewLease, minted.id, leaseTime, e.cfg.Workers); err != nil {
			return e.unavailable("take a lease", err)
		}
	}
	l.mu.Lock()
	if minted != nil {
		l.current = minted
	}
	var gone []*lease
	l.old = slices.DeleteFunc(l.old, func(old *lease) bool {
		if lost(old.id) {
			gone = append(gone, old)
			return true
		}
		return slices.Contains(drop, old.id)
	})
	l.renewed = started
	l.mu.Unlock()
	for _, g := range gone {
		e.log.Warn("lost a lease: deliveries that were waiting go to other brokers", "lease", g.id)
		e.dispatch.forget(g)
	}
	return nil
}

// sqlReap skips from one lease to the next in the index. A lease is written before anything is held by it, so that one
// snapshot never shows what is held without the holder.
const sqlReap = `
with recursive held as (
    (select lease from delivery_task where lease is not null order by lease limit 1)
    union all
    select (select t.lease from delivery_task t where t.lease is not null and t.lease > held.lease order by t.lease limit 1)
    from held where held.lease is not null)
select held.lease from held
where held.lease is not null
  and not exists (select from delivery_broker b where b.lease = held.lease and b.alive_until > clock_timestamp())`

const sqlBury = `
delete from delivery_broker where alive_until <= clock_timestamp()`

const sqlRelease = `
with free as (
    select message_id, target from delivery_task where lease = $1
    order by message_id, target limit $2 for update skip locked)
update delivery_task t set lease = null from free where t.message_id = free.message_id and t.target = free.target`

// reap frees what brokers hold that are no longer alive.
func (e *Engine) reap(ctx context.Context) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	// A broker that renews at this moment finds its row gone, and knows that it lost what it held.
	if _, err := e.pool.Exec(ctx, sqlBury); err != nil {
		return e.unavailable("bury brokers", err)
	}
	rows, err := e.pool.Query(ctx, sqlReap)
	if err != nil {
		return e.unavailable("look for dead brokers", err)
	}
	dead, err := collect[int64](rows)
	if err != nil {
		return e.unavailable("look for dead brokers", err)
	}
	for _, id := range dead {
		freed, err := e.release(ctx, id)
		if err != nil {
			return err
		}
		e.log.Info("took over deliveries of a broker that is gone", "lease", id, "deliveries", freed)
	}
	if len(dead) > 0 {
		signal(e.due)
	}
	return nil
}

func (e *Engine) release(ctx context.Context, id int64) (freed int64, err error) {
	for {
		tag, err := e.pool.Exec(ctx, sqlRelease, id, reapLimit)
		if err != nil {
			return freed, e.unavailable("free deliveries", err)
		}
		freed += tag.RowsAffected()
		if tag.RowsAffected() < reapLimit {
			return freed, nil
		}
	}
}

// leaseLoop keeps this broker's leases and takes those of brokers that are gone. While that fails nothing new starts.
func (e *Engine) leaseLoop() {
	for {
		wait := leaseRenew
		err := e.renewLease(e.ctx)
		if err == nil {
			err = e.reap(e.ctx)
		}
		if err == nil {
			err = e.findParked(e.ctx)
		}
		if err != nil && e.ctx.Err() == nil {
			e.log.Warn("the delivery engine cannot reach the database", "error", err)
			wait = time.Second
		}
		e.dispatch.pauseUnless(e.leases.fresh())
		select {
		case <-e.ctx.Done():
			return
		case <-e.leases.want:
		case <-time.After(wait):
		}
	}
}

// giveBack frees all that a stopped engine still holds, so that others need not wait for its leases to end.
func (e *Engine) giveBack() {
	if e.ctx == nil {
		return
	}
	ctx, cancel := e.deadline(context.WithoutCancel(e.ctx))
	defer cancel()
	l := &e.leases
	l.mu.Lock()
	all := l.old
	if l.current != nil {
		all = append(all, l.current)
	}
	l.current, l.old = nil, nil
	l.mu.Unlock()
	ids := make([]int64, len(all))
	for i, held := range all {
		ids[i] = held.id
		if _, err := e.release(ctx, held.id); err != nil {
			e.log.Warn("cannot give deliveries back: other brokers take them in a moment", "error", err)
			return
		}
	}
	if _, err := e.pool.Exec(ctx, sqlDropLeases, ids); err != nil {
		e.log.Warn("cannot give the lease back", "error", err)
	}
}
