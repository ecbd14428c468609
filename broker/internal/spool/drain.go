package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Position is the place of a record in the spool's order. The zero Position is before the first. Positions
// can be compared with == and be keys of maps; they mean nothing to another opening of the spool.
type Position struct {
	segment uint64
	number  uint32
	end     int64 // of the record's frame
}

// Entry is a record in the spool.
type Entry struct {
	Record
	position Position
	lane     string // Record belongs to the caller
}

// Position returns where the record is, for Read to go on behind it.
func (e Entry) Position() Position { return e.position }

// Read returns the undrained records that follow behind after, oldest first: as many as there are, but
// at most maxRecords, and no more than maxBytes of data unless the first one alone is larger. It
// returns none when there is none. What it returns stays in the spool until Done or Quarantine.
//
// A drain that goes around records which cannot be drained now reads on behind them and starts again
// from the zero Position later.
func (s *Spool) Read(ctx context.Context, after Position, maxRecords, maxBytes int) ([]Entry, error) {
	r := reader{spool: s, after: after}
	defer r.closeFile()
	var entries []Entry
	for size := 0; len(entries) < maxRecords; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, body, err := r.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("spool: read: %w", err)
		}
		if size += h.dataSize; size > maxBytes && len(entries) > 0 {
			break
		}
		record := h.record(body)
		entries = append(entries, Entry{Record: record, position: r.after, lane: record.Lane})
	}
	return entries, nil
}

// reader reads undrained records. It holds no lock while it reads: what it reads from does not change,
// and a file that is deleted meanwhile stays readable.
type reader struct {
	spool    *Spool
	after    Position
	segment  *segment // of scan
	scan     scanner
	repaired *segment
}

// next returns the next undrained record and moves after to it; io.EOF when there is none.
func (r *reader) next() (header, []byte, error) {
	for {
		seg, from, number, size, err := r.spool.seek(r.after)
		if err != nil {
			return header{}, nil, err
		}
		if err := r.open(seg, size); err != nil {
			return header{}, nil, err
		}
		found, h, body, end, err := r.scan.next(from)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return header{}, nil, fmt.Errorf("%s, byte %d: %w", seg.name+segmentSuffix, from, err)
		}
		switch {
		case err == nil && found == foundFrame && h.number <= number:
			r.after = Position{segment: seg.number, number: h.number, end: end}
			if h.number == number {
				return h, body, nil
			}
		case err == nil && found == foundDamage && r.spool.knowsDamage(seg, from):
			r.skip(seg, number, end)
		case r.repaired == seg:
			return header{}, nil, fmt.Errorf("%s, byte %d: reads differently each time", seg.name+segmentSuffix, from)
		default:
			r.repaired = seg
			if err := r.spool.repair(seg); err != nil {
				return header{}, nil, err
			}
			r.closeFile()
		}
	}
}

// skip moves after behind damage that ends at end, before the record with that number. There is one
// before that: the first record of a segment starts it, and was given up if there is damage.
func (r *reader) skip(seg *segment, number uint32, end int64) {
	r.after = Position{segment: seg.number, number: number - 1, end: end}
}

// open makes scan one of the segment up to size.
func (r *reader) open(seg *segment, size int64) error {
	if r.segment == seg {
		r.scan.size = size
		return nil
	}
	r.closeFile()
	file, err := os.Open(filepath.Join(r.spool.cfg.Dir, seg.name+segmentSuffix))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Either it was drained meanwhile, and nothing looks for it any more, or someone took it away.
		r.scan = scanner{file: emptyFile{}, size: size, salt: seg.salt}
	case err != nil:
		return err
	default:
		r.scan = scanner{file: file, size: size, salt: seg.salt, window: r.scan.window[:0]}
	}
	r.segment = seg
	return nil
}

func (r *reader) closeFile() {
	if file, ok := r.scan.file.(*os.File); ok {
		closeRead(file)
	}
	r.segment, r.scan.file = nil, nil
}

// emptyFile is the file that is not there.
type emptyFile struct{}

func (emptyFile) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }

// seek returns the number of the first undrained record behind after, its segment, the size of that, and
// an offset at or before it from which frames lead to it. It returns io.EOF when there is none.
func (s *Spool) seek(after Position) (seg *segment, from int64, number uint32, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, 0, 0, ErrClosed
	}
	for _, seg := range s.segments {
		if seg.number < after.segment || seg.pending == 0 {
			continue
		}
		first, from := uint32(0), int64(0)
		if seg.number == after.segment && after.end > 0 {
			first, from = after.number+1, after.end
		}
		if number := nextRecord(seg.blocks, first, seg.records, undrained); number < seg.records {
			return seg, max(from, seg.blocks[number/64].offset), number, seg.size, nil
		}
	}
	return nil, 0, 0, 0, io.EOF
}

// knowsDamage reports whether the damage at an offset has been dealt with.
func (s *Spool) knowsDamage(seg *segment, start int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(seg.damage, func(d span) bool { return d.start == start })
}

// repair reads a segment again that was intact when it was written or opened, and gives up the records
// that cannot be found in it any more.
func (s *Spool) repair(seg *segment) error {
	s.drain.Lock()
	defer s.drain.Unlock()
	if err := s.reindex(seg); err != nil {
		return err
	}
	return s.tidy()
}

// reindex replaces a segment's index by what can be read of it. Callers hold drain.
func (s *Spool) reindex(seg *segment) error {
	s.write.Lock() // the active segment must not grow meanwhile
	defer s.write.Unlock()
	c, err := s.reread(seg)
	if err != nil {
		return err
	}
	s.mu.Lock()
	lost := seg.pending - c.pending
	for lane, n := range seg.lanes {
		if s.lanes[lane] -= n - c.lanes[lane]; s.lanes[lane] <= 0 {
			delete(s.lanes, lane)
		}
	}
	seg.lanes, seg.pending = c.lanes, c.pending
	for i := range seg.blocks {
		if i < len(c.blocks) && c.blocks[i].pending != 0 {
			seg.blocks[i] = c.blocks[i]
		} else {
			seg.blocks[i].pending = 0
		}
	}
	// Offsets of damage found before may differ, as more of it may be damaged now.
	saved := seg.damage
	seg.damage = c.damage
	for i := range seg.damage {
		seg.damage[i].saved = slices.Contains(saved, span{seg.damage[i].start, seg.damage[i].end, true})
	}
	seg.unmarked = true
	s.mu.Unlock()
	if lost > 0 {
		s.reportDamage(seg, c)
		s.log.Error("undrained records of the spool were lost to damage", "file", seg.name+segmentSuffix, "records", lost)
	}
	return nil
}

// reread reads the acknowledged part of a segment and indexes what is undrained. A file that is gone has nothing in it.
func (s *Spool) reread(seg *segment) (contents, error) {
	file, err := os.Open(filepath.Join(s.cfg.Dir, seg.name+segmentSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return contents{}, nil
	}
	if err != nil {
		return contents{}, err
	}
	defer closeRead(file)
	info, err := file.Stat()
	if err != nil {
		return contents{}, err
	}
	return readSegment(file, seg.salt, min(info.Size(), seg.size), seg.isPending)
}

// Done marks records as drained: they are not read again. A file whose records are all drained is
// deleted. Records that are drained already are passed over.
//
// After an error the records are drained as far as this process is concerned, but a restart may read
// them again; the next call, with these records or others or none, tries again to make that durable.
func (s *Spool) Done(entries ...Entry) error {
	s.drain.Lock()
	defer s.drain.Unlock()
	if err := s.clear(entries); err != nil {
		return err
	}
	doneCleared.Hit()
	if err := s.tidy(); err != nil {
		return fmt.Errorf("spool: mark records as drained: %w", err)
	}
	return nil
}

// clear takes the records out of the indexes.
func (s *Spool) clear(entries []Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	for _, e := range entries {
		if seg := s.find(e); seg != nil {
			seg.clear(e.position.number, e.lane)
			seg.unmarked = true
			release(s.lanes, e.lane)
		}
	}
	return nil
}

// find returns the segment of a record, nil if the record is drained. Callers hold mu.
func (s *Spool) find(e Entry) *segment {
	i, ok := slices.BinarySearchFunc(s.segments, e.position.segment, func(seg *segment, number uint64) int {
		switch {
		case seg.number < number:
			return -1
		case seg.number > number:
			return 1
		}
		return 0
	})
	if !ok || !s.segments[i].isPending(e.position.number) {
		return nil
	}
	return s.segments[i]
}

// tidy brings the disk in line with the indexes: damaged bytes are copied to the failed area, segments
// without undrained records are deleted, the marks of the others are written. It does all it can and
// returns what it could not. Callers hold drain, and not write.
func (s *Spool) tidy() error {
	s.mu.Lock()
	segments := slices.Clone(s.segments)
	s.mu.Unlock()
	var errs []error
	for _, seg := range segments {
		err := s.saveDamage(seg)
		if err == nil {
			err = s.tidySegment(seg)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s *Spool) tidySegment(seg *segment) error {
	s.mu.Lock()
	drained, unmarked := seg.pending == 0, seg.unmarked
	s.mu.Unlock()
	switch {
	case drained && s.sealDrained(seg):
		return s.deleteSegment(seg)
	case unmarked:
		return s.writeMarks(seg)
	}
	return nil
}

// sealDrained makes sure that nothing is written to a drained segment any more. It reports false if the
// segment got another record since it was seen drained; it may have been filled and sealed by now, too.
func (s *Spool) sealDrained(seg *segment) bool {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	drained := seg.pending == 0
	s.mu.Unlock()
	if drained && s.active == seg {
		s.seal()
	}
	return drained
}

// deleteSegment deletes a drained and sealed segment. The marks go last: without them, a segment that
// a crash brings back would be drained again.
func (s *Spool) deleteSegment(seg *segment) error {
	path := filepath.Join(s.cfg.Dir, seg.name)
	if err := s.remove(path + segmentSuffix); err != nil {
		return err
	}
	segmentRemoved.Hit()
	s.mu.Lock()
	s.segments = slices.DeleteFunc(s.segments, func(other *segment) bool { return other == seg })
	s.mu.Unlock()
	// Marks that stay are deleted by the next Open; few segments have any.
	if err := os.Remove(path + marksSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeMarks makes the drained records of a segment durable.
func (s *Spool) writeMarks(seg *segment) error {
	s.mu.Lock()
	runs := appendRuns(nil, seg.blocks, seg.records)
	seg.unmarked = false
	s.mu.Unlock()
	frame := appendFrame(nil, kindMarks, Record{Data: runs})
	place(frame, seg.salt, 0)
	err := s.replace(filepath.Join(s.cfg.Dir, seg.name+marksSuffix), frame)
	marksWritten.Hit()
	if err != nil {
		s.mu.Lock()
		seg.unmarked = true
		s.mu.Unlock()
	}
	return err
}
