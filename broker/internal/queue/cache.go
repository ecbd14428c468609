package queue

import (
	"maps"
	"slices"
	"sort"
	"sync"
)

// segmentCache keeps recently appended and recently read segments, so that a live consumer and a
// retried push cost no read. First in, first out: the log is read in the order it is written.
type segmentCache struct {
	limit int64 // bytes of frames

	mu    sync.Mutex
	bytes int64
	queue []*segment // in order of arrival, from head on
	head  int
	parts map[int64][]*segment // by partition, in offset order
}

func newSegmentCache(limit int64) *segmentCache {
	return &segmentCache{limit: limit, parts: map[int64][]*segment{}}
}

// segmentOverhead is what a cached segment costs beside its frames: the struct, its map entry, its places in slices.
const segmentOverhead = 256

func (s *segment) cost() int64 {
	return int64(cap(s.frames)) + 4*int64(cap(s.starts)) + int64(cap(s.hashes)) + segmentOverhead
}

func (c *segmentCache) add(segments ...*segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range segments {
		list := c.parts[s.partitionID]
		at := sort.Search(len(list), func(i int) bool { return list[i].base >= s.base })
		if at < len(list) && list[at].base == s.base {
			continue
		}
		c.parts[s.partitionID] = slices.Insert(list, at, s)
		c.queue = append(c.queue, s)
		c.bytes += s.cost()
	}
	for c.bytes > c.limit && c.head < len(c.queue) {
		c.evict()
	}
	if c.head > 1024 && c.head > len(c.queue)/2 {
		c.queue = append([]*segment(nil), c.queue[c.head:]...)
		c.head = 0
	}
}

func (c *segmentCache) evict() {
	s := c.queue[c.head]
	c.queue[c.head] = nil
	c.head++
	c.bytes -= s.cost()
	list := c.parts[s.partitionID]
	at := sort.Search(len(list), func(i int) bool { return list[i].base >= s.base })
	if len(list) == 1 {
		delete(c.parts, s.partitionID)
		return
	}
	c.parts[s.partitionID] = slices.Delete(list, at, at+1)
}

// drop forgets the segments that end where their partitions now start, or before.
func (c *segmentCache) drop(starts map[int64]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := map[*segment]struct{}{}
	for partitionID, start := range starts {
		list := c.parts[partitionID]
		n := sort.Search(len(list), func(i int) bool { return list[i].end() > start })
		for _, s := range list[:n] {
			gone[s] = struct{}{}
			c.bytes -= s.cost()
		}
		switch {
		case n == 0:
		case n == len(list):
			delete(c.parts, partitionID)
		default:
			c.parts[partitionID] = slices.Clone(list[n:]) // lets the memory of those before go
		}
	}
	if len(gone) == 0 {
		return
	}
	kept := c.queue[:0]
	for _, s := range c.queue[c.head:] {
		if _, ok := gone[s]; !ok {
			kept = append(kept, s)
		}
	}
	clear(c.queue[len(kept):])
	c.queue, c.head = kept, 0
}

// partitions lists the partitions that something is cached of.
func (c *segmentCache) partitions() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.parts))
}

// size is the memory held, in bytes.
func (c *segmentCache) size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// get returns the segment that holds the offset, or nil.
func (c *segmentCache) get(partitionID, offset int64) *segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(partitionID, offset)
}

func (c *segmentCache) find(partitionID, offset int64) *segment {
	list := c.parts[partitionID]
	at := sort.Search(len(list), func(i int) bool { return list[i].base > offset }) - 1
	if at < 0 || list[at].end() <= offset {
		return nil
	}
	return list[at]
}

// run returns the segments that cover [from, to) from from on, without a hole, as far as they are cached.
func (c *segmentCache) run(partitionID, from, to int64) []*segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	var run []*segment
	for from < to {
		s := c.find(partitionID, from)
		if s == nil {
			break
		}
		run = append(run, s)
		from = s.end()
	}
	return run
}
