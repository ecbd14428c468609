package delivery

import (
	"sync"
	"sync/atomic"
	"time"
)

// Pauses before an attempt whose outcome PostgreSQL refused is made again. They grow, because nobody knows what is wrong: a
// destination must not be called over and over for it.
const (
	postponeFirst = time.Second
	postponeMost  = 15 * time.Minute
	refusedMost   = 10_000 // tasks that are remembered
)

// refused counts for each task how often its outcome was refused in a row, as far as this broker knows.
type refused struct {
	known  atomic.Bool // there is some
	mu     sync.Mutex
	counts map[taskKey]int
}

// again counts one more refusal and returns the pause that follows.
func (r *refused) again(k taskKey) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil || len(r.counts) >= refusedMost {
		r.counts = make(map[taskKey]int)
	}
	n := r.counts[k]
	r.counts[k] = n + 1
	r.known.Store(true)
	if n >= 20 { // before it overflows
		return postponeMost
	}
	return min(postponeFirst<<n, postponeMost)
}

// forget takes it that the outcomes were stored.
func (r *refused) forget(outcomes []*outcome) {
	if !r.known.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range outcomes {
		delete(r.counts, taskKey{o.job.message, o.job.target})
	}
	r.known.Store(len(r.counts) > 0)
}

// sqlPostpone gives a task back for the same attempt, later.
const sqlPostpone = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
back as (
    update delivery_task d set lease = null, lane = d.flow_lane, flowing = false, due_at = t.now + $5::interval
    from t
    where d.message_id = $1 and d.target = $2 and d.retried = $3 and d.lease = $4
    returning d.flow_lane, d.due_at)
insert into delivery_wake (lane, at)
select b.flow_lane, w.at from back b cross join t cross join lateral (values (t.now), (b.due_at)) w(at)
where b.flow_lane is not null`

// postpone makes an attempt again whose outcome cannot be stored, although it holds nothing that PostgreSQL could mind.
func (e *Engine) postpone(o *outcome, refusal error) {
	pause := e.refused.again(taskKey{o.job.message, o.job.target})
	e.metrics.refused.Inc()
	e.log.Error("cannot store what became of a delivery: it will be repeated",
		"message", MessageID(o.job.message), "after", pause.String(), "error", refusal)
	ctx, cancel := e.deadline(e.ctx)
	defer cancel()
	_, err := e.pool.Exec(ctx, sqlPostpone, o.job.message, o.job.target, o.job.retried, o.job.lease.id, pause)
	if err != nil {
		e.log.Warn("cannot postpone a delivery: its lease has to end", "message", MessageID(o.job.message), "error", err)
		e.leases.retire()
		return
	}
	signal(e.due)
}
