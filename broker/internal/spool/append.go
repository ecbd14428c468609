package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// maxGroupBytes bounds what one fsync is for: at the 100 MB/s of a slow disk, a small record that
// arrives with large ones waits less than 100 ms for them. A larger single call is a group by itself.
const maxGroupBytes = 8 << 20

// call is one call of Append.
type call struct {
	parts  []part
	frames []byte // of the parts, not yet placed; the data was copied, so that the caller's memory is free
	taken  bool   // out of the queue: being written. Guarded by Spool.mu
	done   chan error
}

// part is what is needed of a record beside its frame.
type part struct {
	lane string
	at   int64 // µs since 1970
	size int64 // of the frame
}

// Append stores the records, all or none, in their order, and returns when they are on disk. Calls that
// run concurrently share the fsync.
//
// A context that ends while the call is queued takes it back and returns the context's error; one that
// ends while it is being written returns at once with ErrUncertain: the records may be read later. Every
// other error means that they will not be, unless it says ErrUncertain too.
func (s *Spool) Append(ctx context.Context, records ...Record) error {
	if len(records) == 0 {
		return nil
	}
	c, err := newCall(records)
	if err != nil {
		return err
	}
	if err := s.enqueue(c); err != nil {
		return err
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		if s.withdraw(c) {
			return ctx.Err()
		}
		return fmt.Errorf("%w: being written when the context ended: %w", ErrUncertain, ctx.Err())
	}
}

func newCall(records []Record) (*call, error) {
	size := 0
	for i, r := range records {
		if len(r.Lane) > MaxLaneBytes {
			return nil, fmt.Errorf("%w: record %d: a lane of %d bytes", ErrTooLarge, i, len(r.Lane))
		}
		if len(r.Data) > MaxRecordBytes {
			return nil, fmt.Errorf("%w: record %d: %d bytes", ErrTooLarge, i, len(r.Data))
		}
		size += headerSize + len(r.Lane) + len(r.Data)
	}
	c := &call{parts: make([]part, len(records)), frames: make([]byte, 0, size), done: make(chan error, 1)}
	for i, r := range records {
		c.parts[i] = part{lane: r.Lane, at: r.At.UnixMicro(), size: int64(headerSize + len(r.Lane) + len(r.Data))}
		c.frames = appendFrame(c.frames, kindRecord, r)
	}
	return c, nil
}

func (s *Spool) enqueue(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.cfg.MaxBytes > 0 {
		if used := s.bytes() + s.failed.bytes + s.queued; used+int64(len(c.frames)) > s.cfg.MaxBytes {
			return fmt.Errorf("%w: %d of %d bytes are used", ErrFull, used, s.cfg.MaxBytes)
		}
	}
	s.queue = append(s.queue, c)
	s.queued += int64(len(c.frames))
	for _, p := range c.parts {
		s.lanes[p.lane]++
	}
	s.arrived.Signal()
	return nil
}

// withdraw takes a call out of the queue; false means that it is not in there any more.
func (s *Spool) withdraw(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.taken {
		return false
	}
	s.queue = slices.DeleteFunc(s.queue, func(other *call) bool { return other == c })
	s.forget(c)
	return true
}

// forget undoes enqueue. Callers hold mu.
func (s *Spool) forget(c *call) {
	s.queued -= int64(len(c.frames))
	for _, p := range c.parts {
		release(s.lanes, p.lane)
	}
}

// run writes what is queued until the spool is closed and the queue is empty.
func (s *Spool) run() {
	defer close(s.stopped)
	for {
		group := s.takeGroup()
		if group == nil {
			return
		}
		s.commit(group)
	}
}

// takeGroup waits for calls and takes the first ones that make a group; nil once the spool is closed.
func (s *Spool) takeGroup() []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.queue) == 0 && !s.closed {
		s.arrived.Wait()
	}
	n, size := 0, 0
	for ; n < len(s.queue); n++ {
		size += len(s.queue[n].frames)
		if n > 0 && int64(size) > min(maxGroupBytes, s.cfg.MaxSegmentBytes) {
			break
		}
		s.queue[n].taken = true
	}
	if n == 0 {
		return nil
	}
	group := s.queue[:n:n]
	s.queue = s.queue[n:]
	if len(s.queue) == 0 {
		s.queue = nil
	}
	return group
}

// commit writes a group and tells its callers.
func (s *Spool) commit(group []*call) {
	s.write.Lock()
	seg, err := s.writeGroup(group)
	s.mu.Lock()
	before := s.writeErr
	s.writeErr = err
	if err == nil && !slices.Contains(s.segments, seg) {
		s.segments = append(s.segments, seg)
	}
	for _, c := range group {
		if err != nil {
			s.forget(c)
			continue
		}
		seg.publish(c)
		s.queued -= int64(len(c.frames))
	}
	s.mu.Unlock()
	s.write.Unlock()
	for _, c := range group {
		c.done <- err
	}
	// A full disk refuses every call; it is said once.
	switch {
	case err != nil && before == nil:
		s.log.Error("the spool cannot write", "error", err)
	case err == nil && before != nil:
		s.log.Info("the spool can write again")
	}
}

// publish enters the records of a call that is on disk, numbered as placeGroup did.
func (seg *segment) publish(c *call) {
	for _, p := range c.parts {
		seg.add(seg.records, seg.size, p.at, p.lane)
		seg.size += p.size
	}
}

// writeGroup writes the frames of the calls at the end of the active segment, or of a new one, and
// fsyncs. After an error nothing of the group is left. Callers hold write.
func (s *Spool) writeGroup(group []*call) (*segment, error) {
	if s.cfg.Fault != nil {
		if err := s.cfg.Fault(); err != nil {
			return nil, writeError("write records", err)
		}
	}
	if s.torn != nil {
		if err := s.cutTorn(); err != nil {
			return nil, fmt.Errorf("spool: after a failed write: %w", err)
		}
	}
	size := int64(0)
	for _, c := range group {
		size += int64(len(c.frames))
	}
	if s.active != nil && s.active.size+size > s.cfg.MaxSegmentBytes {
		s.seal()
	}
	if s.active == nil {
		if err := s.newSegment(); err != nil {
			return nil, writeError("begin a file", err)
		}
	}
	seg := s.active
	s.buffer = seg.placeGroup(s.buffer[:0], group)
	appendBegun.Hit()
	err := s.op("write", s.file.Name(), func() error {
		_, err := s.file.WriteAt(s.buffer, seg.size)
		return err
	})
	appendWritten.Hit()
	if err == nil {
		err = s.sync(s.file)
	}
	appendSynced.Hit()
	if cap(s.buffer) > maxGroupBytes {
		s.buffer = nil
	}
	if err == nil {
		return seg, nil
	}
	err = writeError("write records", err)
	s.seal()
	s.torn = seg
	if cutErr := s.cutTorn(); cutErr != nil {
		return nil, fmt.Errorf("%w: %w, and then: %w", ErrUncertain, err, cutErr)
	}
	return nil, err
}

func writeError(doing string, err error) error {
	if noSpace(err) {
		return fmt.Errorf("%w: %s: %w", ErrFull, doing, err)
	}
	return fmt.Errorf("spool: %s: %w", doing, err)
}

// placeGroup places the frames of the calls behind the segment's and appends them to dst.
func (seg *segment) placeGroup(dst []byte, group []*call) []byte {
	off, number := seg.size, seg.records
	for _, c := range group {
		rest := c.frames
		for _, p := range c.parts {
			place(rest, seg.salt+uint64(off), number)
			rest, off, number = rest[p.size:], off+p.size, number+1
		}
		dst = append(dst, c.frames...)
	}
	return dst
}

// newSegment makes the next segment the active one. Callers hold write.
func (s *Spool) newSegment() error {
	seg := &segment{number: s.highest + 1, salt: newSalt()}
	seg.name = segmentName(seg.number, seg.salt)
	s.highest++ // a number is used once, whatever becomes of it
	path := filepath.Join(s.cfg.Dir, seg.name+segmentSuffix)
	file, err := s.create(path, os.O_EXCL)
	if err != nil {
		return err
	}
	segmentCreated.Hit()
	if err := s.syncDir(s.cfg.Dir); err != nil {
		_ = os.Remove(path) // an empty file does no harm: Open deletes it
		return errors.Join(err, file.Close())
	}
	s.active, s.file = seg, file
	return nil
}

// seal ends the active segment. Its descriptor is closed whatever happened to it: what is acknowledged
// was fsynced, and an error of closing says nothing about that. Callers hold write.
func (s *Spool) seal() {
	_ = s.file.Close()
	s.active, s.file = nil, nil
}

// cutTorn takes what a failed write left off the end of its segment, through a descriptor that has not
// seen the failure, and deletes the file if nothing else is in it. Until that works nothing is written:
// a crash would bring back records that were refused. Callers hold write.
func (s *Spool) cutTorn() error {
	path := filepath.Join(s.cfg.Dir, s.torn.name+segmentSuffix)
	file, err := os.OpenFile(path, os.O_WRONLY, 0) //nolint:gosec // in the directory of the configuration
	if errors.Is(err, os.ErrNotExist) {
		// It was drained meanwhile, and must not come back.
		if err := s.syncDir(s.cfg.Dir); err != nil {
			return err
		}
		s.torn = nil
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(s.cut(file, s.torn.size), file.Close()); err != nil {
		return err
	}
	if s.torn.size == 0 {
		_ = s.remove(path) // an empty file does no harm: Open deletes it
	}
	s.torn = nil
	return nil
}
