package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
)

const (
	segmentSuffix = ".spool"
	marksSuffix   = ".marks"
	recordSuffix  = ".record"
	damagedSuffix = ".damaged"
	tempSuffix    = ".tmp"
)

// segment is one file of records and what is known of it. Its fields but number, salt and name are
// guarded by Spool.mu; damage by Spool.drain.
type segment struct {
	number uint64 // orders the segments; from 1
	salt   uint64
	name   string // without suffix

	size int64 // bytes of acknowledged frames; nothing behind is read
	index
	unmarked bool // pending bits were cleared that the marks file does not know of

	damage []span // bytes before size that are no frames
}

// index is what is known of a segment's records.
type index struct {
	records uint32 // the next record's number
	blocks  []block
	pending int            // undrained records
	lanes   map[string]int // undrained records per lane; no zeros
}

// span is a range of bytes [start, end) of a segment.
type span struct {
	start, end int64
	saved      bool // it has been copied into the failed area
}

// add enters a record, the number of which is not less than x.records. Numbers left out are lost
// records: nothing is pending there.
func (x *index) add(number uint32, off, at int64, lane string) {
	for uint32(len(x.blocks)) <= number/64 {
		x.blocks = append(x.blocks, block{})
	}
	b := &x.blocks[number/64]
	if b.pending == 0 {
		b.offset, b.oldest = off, at
	}
	b.pending |= 1 << (number % 64)
	b.oldest = min(b.oldest, at)
	x.records = number + 1
	x.pending++
	if x.lanes == nil {
		x.lanes = map[string]int{}
	}
	x.lanes[lane]++
}

// isPending reports whether the record is there and undrained.
func (x *index) isPending(number uint32) bool {
	return number < x.records && x.blocks[number/64].pending&(1<<(number%64)) != 0
}

// clear enters that a pending record is drained.
func (x *index) clear(number uint32, lane string) {
	x.blocks[number/64].pending &^= 1 << (number % 64)
	x.pending--
	release(x.lanes, lane)
}

// oldest returns the least accept time of the blocks with pending records, in µs since 1970.
func (x *index) oldest() (int64, bool) {
	found, least := false, int64(0)
	for i := range x.blocks {
		if b := &x.blocks[i]; b.pending != 0 && (!found || b.oldest < least) {
			found, least = true, b.oldest
		}
	}
	return least, found
}

// release takes one from a lane's count.
func release(lanes map[string]int, lane string) {
	if lanes[lane]--; lanes[lane] <= 0 {
		delete(lanes, lane)
	}
}

// contents is what a reading of a whole segment found.
type contents struct {
	index
	end    int64 // of the last frame or damage
	damage []span
	tail   finding // behind end: foundEnd, foundTorn or foundNothing
	lost   uint32  // record numbers that are missing before the last record
}

// readSegment reads a segment from its start to size and indexes the records that keep holds for.
func readSegment(file *os.File, salt uint64, size int64, keep func(number uint32) bool) (contents, error) {
	scan := scanner{file: file, size: size, salt: salt}
	var c contents
	for {
		found, h, body, end, err := scan.next(c.end)
		if err != nil {
			return contents{}, fmt.Errorf("spool: %s, byte %d: %w", file.Name(), c.end, err)
		}
		switch found {
		case foundFrame:
			c.enter(h, body, keep)
		case foundDamage:
			c.damage = append(c.damage, span{start: c.end, end: end})
		case foundEnd, foundTorn, foundNothing:
			c.tail = found
			return c, nil
		}
		c.end = end
	}
}

func (c *contents) enter(h header, body []byte, keep func(uint32) bool) {
	if h.number < c.records { // a number of the past: written by nobody, but never index it twice
		return
	}
	c.lost += h.number - c.records
	if !keep(h.number) {
		for uint32(len(c.blocks)) <= h.number/64 {
			c.blocks = append(c.blocks, block{})
		}
		c.records = h.number + 1
		return
	}
	c.add(h.number, c.end, h.at, string(body[:h.laneSize]))
}

// readMarks returns which records of a segment are drained. Without a marks file none is.
func readMarks(path string, salt uint64) ([]run, error) {
	b, err := os.ReadFile(path) //nolint:gosec // in the directory of the configuration
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := decodeFile(b, kindMarks, salt)
	if err != nil {
		return nil, err
	}
	return parseRuns(r.Data)
}

// unmarked returns a function that reports whether a record is in none of the runs.
func unmarked(runs []run) func(uint32) bool {
	return func(number uint32) bool {
		i := sort.Search(len(runs), func(i int) bool { return runs[i].end > number })
		return i == len(runs) || number < runs[i].first
	}
}

// segmentName names a segment; parseName undoes it.
func segmentName(number, salt uint64) string { return fmt.Sprintf("%016x-%016x", number, salt) }

func parseName(name string) (number, salt uint64, ok bool) {
	n, err := fmt.Sscanf(name, "%016x-%016x", &number, &salt)
	return number, salt, err == nil && n == 2 && number > 0 && name == segmentName(number, salt)
}

// listing is what a spool's directory holds.
type listing struct {
	segments []*segment // oldest first
	marks    []string   // names, of segments that are there or not
	temps    []string   // file names of what was never completed
	others   []string   // file names
}

func list(dir string) (listing, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return listing{}, err
	}
	var l listing
	for _, entry := range entries {
		suffix := filepath.Ext(entry.Name())
		name := entry.Name()[:len(entry.Name())-len(suffix)]
		number, salt, ok := parseName(name)
		switch {
		case entry.Name() == lockName || entry.Name() == failedName || entry.Name() == idName:
		case suffix == tempSuffix:
			l.temps = append(l.temps, entry.Name())
		case ok && suffix == segmentSuffix:
			l.segments = append(l.segments, &segment{number: number, salt: salt, name: name})
		case ok && suffix == marksSuffix:
			l.marks = append(l.marks, name)
		default:
			l.others = append(l.others, entry.Name())
		}
	}
	slices.SortFunc(l.segments, func(a, b *segment) int {
		if a.number < b.number {
			return -1
		}
		return 1
	})
	for i := 1; i < len(l.segments); i++ {
		if l.segments[i].number == l.segments[i-1].number {
			return listing{}, fmt.Errorf("%s and %s have the same number", l.segments[i-1].name, l.segments[i].name)
		}
	}
	return l, nil
}
