package queue

import (
	"slices"
	"sort"
	"time"

	"github.com/FastFilter/xorfilter"
)

// dedup remembers the transaction ids of one partition, by hash, for as long as the window asks.
//
// It is exact in one direction: a hash that it does not know is not in the log since the time
// `since`. A hit must be confirmed by the stored transaction id, because 64 bits can collide, and
// a hit of a chunk that was thinned out must be confirmed by the stored hashes.
//
// Hashes are added with the offsets that a flush wants to give them, and count once they are
// settled; until then they can be rolled back.
//
// It is guarded by the partition's shard.
type dedup struct {
	chunks []*chunk // in offset order; only the last one grows
	since  time.Time
	bytes  int64

	index   map[uint64]int64   // hash -> its last offset, over the exact chunks; nil while there are few
	earlier map[uint64][]int64 // offsets before the last, of hashes that occur again
	exact   int                // hashes in exact chunks
}

const (
	// chunkMax is how many messages a chunk holds: the unit of expiry and of thinning out. Dropping
	// one costs milliseconds; more and smaller ones cost a look at each filter per message.
	chunkMax = 1 << 17
	// scanMax is up to how many hashes are searched without an index.
	scanMax = 12
)

// chunk is a run of a partition's messages.
type chunk struct {
	hashes []uint64
	marks  []mark
	base   int64 // first offset
	end    int64 // past the last settled offset
	filter *xorfilter.BinaryFuse[uint16]
	state  chunkState
}

type chunkState uint8

const (
	chunkExact    chunkState = iota // hashes are here
	chunkFiltered                   // only a filter: a hit must be looked up in the log
	chunkCold                       // nothing: everything must be looked up in the log
)

// mark says where a run of messages that were appended together starts.
type mark struct {
	position int // in hashes
	base     int64
	created  time.Time
}

// created is when the chunk's last message was. Only chunks with a settled message have one.
func (c *chunk) created() time.Time { return c.marks[len(c.marks)-1].created }

// size estimates the chunk's memory in bytes, what the index holds of it included.
func (c *chunk) size() int64 {
	const fixed, perMark, perIndexed = 160, 40, 24
	n := fixed + perMark*int64(cap(c.marks)) + 8*int64(cap(c.hashes))
	if len(c.hashes) > scanMax {
		n += perIndexed * int64(len(c.hashes))
	}
	if c.filter != nil {
		n += 2 * int64(len(c.filter.Fingerprints))
	}
	return n
}

// add remembers a hash that a flush wants to append at the offset.
func (d *dedup) add(hash uint64, offset int64) {
	c := d.tail(offset)
	c.hashes = append(c.hashes, hash)
	d.exact++
	switch {
	case d.index != nil:
		d.insert(hash, offset)
	case d.exact > scanMax:
		d.index = make(map[uint64]int64, 4*scanMax)
		d.each(func(hash uint64, offset int64) { d.insert(hash, offset) })
	}
}

// tail returns the chunk that grows.
func (d *dedup) tail(offset int64) *chunk {
	if n := len(d.chunks); n > 0 {
		if c := d.chunks[n-1]; c.state == chunkExact && len(c.hashes) < chunkMax {
			return c
		}
	}
	c := &chunk{base: offset, end: offset}
	d.chunks = append(d.chunks, c)
	return c
}

func (d *dedup) insert(hash uint64, offset int64) {
	if last, ok := d.index[hash]; ok {
		if d.earlier == nil {
			d.earlier = map[uint64][]int64{}
		}
		d.earlier[hash] = append(d.earlier[hash], last)
	}
	d.index[hash] = offset
}

// remove forgets one occurrence of a hash.
func (d *dedup) remove(hash uint64, offset int64) {
	d.exact--
	if d.index == nil {
		return
	}
	earlier := d.earlier[hash]
	if d.index[hash] == offset {
		if len(earlier) == 0 {
			delete(d.index, hash)
			return
		}
		d.index[hash] = earlier[len(earlier)-1]
		earlier = earlier[:len(earlier)-1]
	} else if i := slices.Index(earlier, offset); i >= 0 {
		earlier = slices.Delete(earlier, i, i+1)
	}
	if len(earlier) == 0 {
		delete(d.earlier, hash)
	} else {
		d.earlier[hash] = earlier
	}
}

// offset returns where the i-th hash of a chunk is, or will be, in the log.
func (c *chunk) offset(i int) int64 {
	if m := sort.Search(len(c.marks), func(m int) bool { return c.marks[m].position > i }) - 1; m >= 0 {
		run := c.marks[m]
		if offset := run.base + int64(i-run.position); offset < c.end || m < len(c.marks)-1 {
			return offset
		}
	}
	return c.end + int64(i-c.settled())
}

// settled is how many of the chunk's hashes are in the log.
func (c *chunk) settled() int {
	if len(c.marks) == 0 {
		return 0
	}
	last := c.marks[len(c.marks)-1]
	return last.position + int(c.end-last.base)
}

// each calls yield for every hash of the exact chunks.
func (d *dedup) each(yield func(hash uint64, offset int64)) {
	for _, c := range d.chunks {
		for i, hash := range c.hashes {
			yield(hash, c.offset(i))
		}
	}
}

// settle marks the first count unsettled hashes as appended at base.
func (d *dedup) settle(base, count int64, created time.Time) {
	for _, c := range d.chunks[d.firstUnsettled():] {
		at := c.settled()
		n := min(count, int64(len(c.hashes)-at))
		if n == 0 {
			return
		}
		c.marks = append(c.marks, mark{at, base, created})
		c.end = base + n
		base, count = base+n, count-n
	}
}

func (d *dedup) firstUnsettled() int {
	i := len(d.chunks)
	for i > 0 && d.chunks[i-1].state == chunkExact && d.chunks[i-1].settled() < len(d.chunks[i-1].hashes) {
		i--
	}
	return i
}

// rollback forgets everything that was added and not settled.
func (d *dedup) rollback() {
	first := d.firstUnsettled()
	for i := len(d.chunks) - 1; i >= first; i-- {
		c := d.chunks[i]
		settled := c.settled()
		for j := len(c.hashes) - 1; j >= settled; j-- {
			d.remove(c.hashes[j], c.offset(j))
		}
		c.hashes = c.hashes[:settled]
		if settled == 0 {
			d.chunks = d.chunks[:i]
		}
	}
}

// fold remembers hashes that are in the log already.
func (d *dedup) fold(hashes []byte, base int64, created time.Time) {
	count := len(hashes) / 8
	if n := len(d.chunks); n > 0 && d.chunks[n-1].state == chunkExact && d.chunks[n-1].end != base {
		// A hole in the log: what follows it gets a chunk of its own, since offsets count on from the end.
		d.chunks = append(d.chunks, &chunk{base: base, end: base})
	}
	for i := range count {
		d.add(hashAt(hashes, i), base+int64(i))
	}
	d.settle(base, int64(count), created)
}

// hit is one possible earlier occurrence of a hash.
type hit struct {
	offset int64
	chunk  *chunk // set when only the log knows whether, and at which offset
}

// lookup reports the possible occurrences of the hash created after `after`, last first. Those of a
// flush in the air are among them.
func (d *dedup) lookup(hash uint64, after time.Time) []hit {
	var hits []hit
	if d.index == nil {
		for i := len(d.chunks) - 1; i >= 0 && d.exact > 0; i-- {
			c := d.chunks[i]
			for j, known := range slices.Backward(c.hashes) {
				if known == hash {
					hits = d.appendHit(hits, c.offset(j), after)
				}
			}
		}
	} else if last, ok := d.index[hash]; ok {
		hits = d.appendHit(hits, last, after)
		for _, offset := range slices.Backward(d.earlier[hash]) {
			hits = d.appendHit(hits, offset, after)
		}
	}
	if len(d.chunks) > 0 && d.chunks[0].state == chunkExact {
		return hits // chunks are thinned out from the first on
	}
	for _, c := range d.chunks {
		if c.state == chunkExact {
			break
		}
		if c.created().After(after) && (c.state == chunkCold || c.filter.Contains(hash)) {
			hits = append(hits, hit{chunk: c})
		}
	}
	return hits
}

func (d *dedup) appendHit(hits []hit, offset int64, after time.Time) []hit {
	i := sort.Search(len(d.chunks), func(i int) bool { return d.chunks[i].base > offset }) - 1
	c := d.chunks[i]
	if offset < c.end {
		m := sort.Search(len(c.marks), func(m int) bool { return c.marks[m].base > offset }) - 1
		if !c.marks[m].created.After(after) {
			return hits
		}
	}
	return append(hits, hit{offset: offset})
}

// expire forgets the chunks whose last message is older than `before`.
func (d *dedup) expire(before time.Time) {
	n := 0
	for n < len(d.chunks) {
		c := d.chunks[n]
		if len(c.marks) == 0 || c.settled() < len(c.hashes) || c.created().After(before) {
			break
		}
		d.since = c.created()
		d.drop(c)
		n++
	}
	if n > 0 {
		d.chunks = slices.Delete(d.chunks, 0, n)
	}
}

// drop takes a settled chunk's hashes out of the index.
func (d *dedup) drop(c *chunk) {
	for i, hash := range c.hashes {
		d.remove(hash, c.offset(i))
	}
	c.hashes = nil
}

// thin gives up the exactness of a chunk for memory: exact to filter, filter to nothing. Chunks are
// thinned out from the first on, so that those which are not exact come first. It reports whether it freed anything.
func (d *dedup) thin(c *chunk) bool {
	switch c.state {
	case chunkExact:
		if len(c.marks) == 0 || c.settled() < len(c.hashes) {
			return false
		}
		keys := slices.Clone(c.hashes)
		slices.Sort(keys)
		filter, err := xorfilter.NewBinaryFuse[uint16](slices.Compact(keys))
		d.drop(c)
		if err != nil {
			c.state = chunkCold
		} else {
			c.state, c.filter = chunkFiltered, filter
		}
		c.marks = []mark{{created: c.created()}} // only the age of the last message still matters
	case chunkFiltered:
		c.state, c.filter = chunkCold, nil
	case chunkCold:
		return false
	}
	return true
}

// measure recomputes and returns the memory held, in bytes.
func (d *dedup) measure() int64 {
	d.bytes = 128
	for _, c := range d.chunks {
		d.bytes += c.size()
	}
	return d.bytes
}
