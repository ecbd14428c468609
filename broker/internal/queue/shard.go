package queue

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"
)

// shard is a head that appends compete for, with the broker's memory of the partitions that belong to it.
type shard struct {
	id int

	mu      sync.Mutex
	settled sync.Cond // a flush or a fold ended

	// busy is held by the one goroutine that flushes or folds; only it moves folded.
	busy    bool
	folded  int64 // every append up to this head is in the memory of the loaded lanes
	pending []*pushGroup
	cold    []*partition // lanes that groups wait for
	// transactions is how many wait for busy. Flushes and transactions take turns, so that neither starves.
	transactions int
	flushesTurn  bool
	// contended counts down the flushes that lock the head first, since other brokers append here too.
	contended int

	warm   list.List // of *partition with a loaded lane, least recently used first
	bytes  int64     // memory of the loaded lanes
	budget int64
}

// lane is the append side of a partition.
type lane struct {
	dedup   *dedup // nil while cold
	at      int64  // the head that dedup was loaded at
	next    int64  // offset of the next message
	lastAt  time.Time
	flight  *laneFlight // what the flush in the air appends
	element *list.Element

	loading bool
	stale   bool        // what was folded while loading is incomplete
	missed  []foldedRun // folded while loading
	waiting []*pushGroup
}

// contendedFlushes is how many flushes lock the head first after one lost the race for it.
const contendedFlushes = 16

func newShard(id int, budget int64) *shard {
	s := &shard{id: id, budget: budget}
	s.settled.L = &s.mu
	return s
}

func (s *shard) enqueue(g *pushGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, g)
}

// release ends a flush or a fold, and reports whether groups wait for the next.
func (s *shard) release() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	s.settled.Broadcast()
	return len(s.pending) > 0
}

// acquire makes a transaction the one that appends, once nobody else does. It is false when ctx ended before.
func (s *shard) acquire(ctx context.Context) bool {
	stop := context.AfterFunc(ctx, s.stir)
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.transactions++
	defer func() { s.transactions-- }()
	for s.busy || s.flushesTurn && len(s.pending) > 0 {
		if ctx.Err() != nil {
			return false
		}
		s.settled.Wait()
	}
	s.busy, s.flushesTurn = true, true
	return true
}

// stir makes everybody who waits for the shard look again.
func (s *shard) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled.Broadcast()
}

// requeue puts groups in front of those that wait.
func (s *shard) requeue(groups []*pushGroup) {
	if len(groups) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(slices.Clip(groups), s.pending...)
}

// touch marks a lane as used. The caller holds mu.
func (s *shard) touch(p *partition) {
	if p.element == nil {
		p.element = s.warm.PushBack(p)
		return
	}
	s.warm.MoveToBack(p.element)
}

// evict makes a lane cold. The caller holds mu.
func (s *shard) evict(p *partition) {
	if p.dedup == nil {
		return
	}
	s.bytes -= p.dedup.bytes
	p.dedup = nil
	s.warm.Remove(p.element)
	p.element = nil
}

// remeasure accounts for a lane's growth. The caller holds mu.
func (s *shard) remeasure(p *partition) {
	s.bytes -= p.dedup.bytes
	s.bytes += p.dedup.measure()
}

// reclaim brings the memory of the lanes back under the budget: full chunks of the least recently
// used lanes are thinned out first, then lanes are evicted, and at last what is left is thinned further.
// The caller holds mu and busy, with no flush in the air.
func (s *shard) reclaim() {
	if s.bytes <= s.budget {
		return
	}
	target := s.budget - s.budget/8
	for element := s.warm.Front(); element != nil && s.bytes > target; element = element.Next() {
		s.thin(element.Value.(*partition), chunkExact, target)
	}
	for s.bytes > target && s.warm.Len() > 1 {
		s.evict(s.warm.Front().Value.(*partition))
	}
	if front := s.warm.Front(); front != nil && s.bytes > target {
		s.thin(front.Value.(*partition), chunkFiltered, target)
	}
}

// thin gives up the exactness of a lane's chunks that are in the given state or a better one, oldest first.
func (s *shard) thin(p *partition, from chunkState, target int64) {
	d := p.dedup
	for _, c := range d.chunks[:max(0, len(d.chunks)-1)] {
		if s.bytes <= target {
			return
		}
		if c.state > from {
			continue
		}
		before := c.size()
		if d.thin(c) {
			freed := before - c.size()
			d.bytes -= freed
			s.bytes -= freed
		}
	}
}
