package queue

import (
	"context"
	"time"
)

// proveGroups is the work of the prover: it answers groups that append nothing, because every message
// of theirs is a duplicate. An append proves by its shard's head that nothing came in between; these
// look at the heads instead, all that wait with one statement. Had another broker deleted their queue or
// cleaned up their partition, its originals would be gone, and they start over.
func (e *Engine) proveGroups(groups []*pushGroup) {
	if err := e.checkAppends(e.ctx); err != nil {
		e.giveUp(groups, err)
		return
	}
	var homeless []*pushGroup
	for _, g := range groups {
		if g.part.gone() {
			homeless = append(homeless, g)
			continue
		}
		g.done()
	}
	e.resubmit(homeless)
}

// lateLoop looks after the groups that wait, by a clock that no database can hold.
func (e *Engine) lateLoop(ctx context.Context) {
	ticker := time.NewTicker(lateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			e.expireLate()
		}
	}
}

// lateInterval is how late a late group may be found.
const lateInterval = 250 * time.Millisecond

// expireLate answers groups that wait for a flush longer than they may, while others are in the air.
func (e *Engine) expireLate() {
	now := time.Now()
	var late []*pushGroup
	for _, s := range e.shards {
		late = append(late, s.takeLate(now)...)
	}
	e.giveUp(late, errLate)
	e.spoolGroups(e.outage.takeLate(now))
}

// takeLate takes the groups out that have waited too long.
func (s *shard) takeLate(now time.Time) (late []*pushGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kept []*pushGroup
	for _, g := range s.pending {
		if now.After(g.deadline) {
			late = append(late, g)
		} else {
			kept = append(kept, g)
		}
	}
	if len(late) > 0 {
		s.pending = kept
		s.settled.Broadcast()
	}
	return late
}
