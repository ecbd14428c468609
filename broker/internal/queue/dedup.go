package queue

import (
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
// It is guarded by the partition's shard.
type dedup struct {
	chunks []*chunk // in offset order; only the last one grows
	since  time.Time
	bytes  int64
}

// chunkMax is how many messages a chunk holds: the unit of expiry and of thinning out.
const chunkMax = 1 << 15

// smallChunk is the size up to which a chunk is searched without a map.
const smallChunk = 12

// chunk is a run of a partition's messages. Its first `settled` hashes are in the log; those
// after it belong to a flush that is in the air.
type chunk struct {
	hashes  []uint64
	index   map[uint64]int32   // hash -> its last position; nil while small
	earlier map[uint64][]int32 // positions before the last, of hashes that occur again
	settled int32
	marks   []mark

	base, end int64 // offsets covered
	filter    *xorfilter.BinaryFuse[uint16]
	state     chunkState
}

type chunkState uint8

const (
	chunkExact    chunkState = iota // hashes are here
	chunkFiltered                   // only a filter: a hit must be looked up in the log
	chunkCold                       // nothing: everything must be looked up in the log
)

// mark says where a run of positions that were appended together starts.
type mark struct {
	position int32
	base     int64
	created  time.Time
}

func (c *chunk) created() time.Time { return c.marks[len(c.marks)-1].created }

// locate returns the offset and the time of a settled position.
func (c *chunk) locate(position int32) (offset int64, created time.Time) {
	m := c.marks[sort.Search(len(c.marks), func(i int) bool { return c.marks[i].position > position })-1]
	return m.base + int64(position-m.position), m.created
}

// positions calls yield for each position of the hash, last first, until yield returns false.
func (c *chunk) positions(hash uint64, yield func(int32) bool) {
	if c.index == nil {
		for i := len(c.hashes) - 1; i >= 0; i-- {
			if c.hashes[i] == hash && !yield(int32(i)) {
				return
			}
		}
		return
	}
	last, ok := c.index[hash]
	if !ok || !yield(last) {
		return
	}
	earlier := c.earlier[hash]
	for i := len(earlier) - 1; i >= 0; i-- {
		if !yield(earlier[i]) {
			return
		}
	}
}

func (c *chunk) add(hash uint64) {
	position := int32(len(c.hashes))
	c.hashes = append(c.hashes, hash)
	if c.index == nil {
		if len(c.hashes) <= smallChunk {
			return
		}
		c.index = make(map[uint64]int32, 4*smallChunk)
		for i, h := range c.hashes[:position] {
			c.insert(h, int32(i))
		}
	}
	c.insert(hash, position)
}

func (c *chunk) insert(hash uint64, position int32) {
	if last, ok := c.index[hash]; ok {
		if c.earlier == nil {
			c.earlier = map[uint64][]int32{}
		}
		c.earlier[hash] = append(c.earlier[hash], last)
	}
	c.index[hash] = position
}

// rollback forgets what is not settled.
func (c *chunk) rollback() {
	for i := int32(len(c.hashes)) - 1; i >= c.settled; i-- {
		hash := c.hashes[i]
		if c.index == nil {
			continue
		}
		if earlier := c.earlier[hash]; len(earlier) > 0 {
			c.index[hash] = earlier[len(earlier)-1]
			if len(earlier) == 1 {
				delete(c.earlier, hash)
			} else {
				c.earlier[hash] = earlier[:len(earlier)-1]
			}
		} else {
			delete(c.index, hash)
		}
	}
	c.hashes = c.hashes[:c.settled]
}

// size estimates the chunk's memory in bytes.
func (c *chunk) size() int64 {
	const fixed, perMark, perIndexed = 160, 40, 20
	n := fixed + 8*int64(cap(c.hashes)) + perMark*int64(cap(c.marks))
	if c.index != nil {
		n += perIndexed * int64(len(c.index))
	}
	if c.filter != nil {
		n += 2 * int64(len(c.filter.Fingerprints))
	}
	return n
}

// thin gives up exactness for memory: exact to filter, filter to nothing. It reports whether it freed anything.
func (c *chunk) thin() bool {
	switch c.state {
	case chunkExact:
		if c.settled < int32(len(c.hashes)) {
			return false
		}
		filter, err := xorfilter.NewBinaryFuse[uint16](distinct(c.hashes))
		if err != nil {
			c.state = chunkCold
		} else {
			c.state, c.filter = chunkFiltered, filter
		}
	case chunkFiltered:
		c.state, c.filter = chunkCold, nil
	case chunkCold:
		return false
	}
	c.hashes, c.index, c.earlier = nil, nil, nil
	c.marks = []mark{{base: c.base, created: c.created()}} // only the age of the last message still matters
	return true
}

func distinct(hashes []uint64) []uint64 {
	seen := make(map[uint64]struct{}, len(hashes))
	keys := make([]uint64, 0, len(hashes))
	for _, h := range hashes {
		if _, ok := seen[h]; !ok {
			seen[h] = struct{}{}
			keys = append(keys, h)
		}
	}
	return keys
}

// tail returns the chunk that grows, for messages from base on.
func (d *dedup) tail(base int64) *chunk {
	if n := len(d.chunks); n > 0 {
		if c := d.chunks[n-1]; c.state == chunkExact && len(c.hashes) < chunkMax {
			return c
		}
	}
	c := &chunk{base: base, end: base}
	d.chunks = append(d.chunks, c)
	return c
}

// add remembers a hash that a flush wants to append at the offset. It counts once settle is called.
func (d *dedup) add(hash uint64, offset int64) { d.tail(offset).add(hash) }

// settle marks the count hashes added last as appended at base.
func (d *dedup) settle(base, count int64, created time.Time) {
	for count > 0 {
		c := d.firstUnsettled()
		n := min(count, int64(len(c.hashes))-int64(c.settled))
		c.marks = append(c.marks, mark{c.settled, base, created})
		c.settled += int32(n)
		c.end = base + n
		base, count = base+n, count-n
	}
}

func (d *dedup) firstUnsettled() *chunk {
	i := len(d.chunks) - 1
	for i > 0 && d.chunks[i-1].settled < int32(len(d.chunks[i-1].hashes)) {
		i--
	}
	return d.chunks[i]
}

// rollback forgets everything that was added and not settled.
func (d *dedup) rollback() {
	for i := len(d.chunks) - 1; i >= 0 && d.chunks[i].state == chunkExact; i-- {
		c := d.chunks[i]
		if c.settled == int32(len(c.hashes)) {
			break
		}
		c.rollback()
		if c.settled == 0 {
			d.chunks = d.chunks[:i]
		}
	}
}

// fold remembers hashes that are in the log already.
func (d *dedup) fold(hashes []byte, base int64, created time.Time) {
	count := int64(len(hashes) / 8)
	for i := range int(count) {
		d.add(hashAt(hashes, i), base+int64(i))
	}
	d.settle(base, count, created)
}

// hit is one possible earlier occurrence of a hash.
type hit struct {
	offset int64  // -1: in the chunk, at an offset that only the log knows
	chunk  *chunk // set when offset is -1
	inAir  int    // with offset -1 and no chunk: how many messages of the flush in the air come before it
}

// lookup reports the possible occurrences of the hash created after `after`, last first.
func (d *dedup) lookup(hash uint64, after time.Time) (hits []hit) {
	for i := len(d.chunks) - 1; i >= 0; i-- {
		c := d.chunks[i]
		if len(c.hashes) == int(c.settled) && !c.created().After(after) {
			break // everything in it and before it is older
		}
		switch c.state {
		case chunkCold:
			hits = append(hits, hit{offset: -1, chunk: c})
		case chunkFiltered:
			if c.filter.Contains(hash) {
				hits = append(hits, hit{offset: -1, chunk: c})
			}
		case chunkExact:
			c.positions(hash, func(p int32) bool {
				if p >= c.settled {
					hits = append(hits, hit{offset: -1, inAir: d.inAirBefore(i) + int(p-c.settled)})
					return true
				}
				offset, created := c.locate(p)
				if !created.After(after) {
					return false
				}
				hits = append(hits, hit{offset: offset})
				return true
			})
		}
	}
	return hits
}

// inAirBefore counts the unsettled hashes of the chunks before the i-th.
func (d *dedup) inAirBefore(i int) int {
	n := 0
	for _, c := range d.chunks[:i] {
		n += len(c.hashes) - int(c.settled)
	}
	return n
}

// expire forgets the chunks whose last message is older than `before`.
func (d *dedup) expire(before time.Time) {
	n := 0
	for n < len(d.chunks) && int(d.chunks[n].settled) == len(d.chunks[n].hashes) && !d.chunks[n].created().After(before) {
		d.since = d.chunks[n].created()
		n++
	}
	d.chunks = d.chunks[n:]
}

// measure recomputes and returns the memory held, in bytes.
func (d *dedup) measure() int64 {
	d.bytes = 96
	for _, c := range d.chunks {
		d.bytes += c.size()
	}
	return d.bytes
}
