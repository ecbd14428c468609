package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

const failedName = "failed"

// Failed is something in the failed area.
type Failed struct {
	// ID names it, for RemoveFailed. It is the name of its file.
	ID string
	// Damaged says that it is a range of bytes of a damaged file and not a record. Record then has no
	// lane and no time, and its data are those bytes.
	Damaged bool
	// Reason is what Quarantine was told; empty for damage.
	Reason string
	Record Record
}

// Quarantine takes a record out of the spool that can never be drained and keeps it in the failed area,
// with the reason. The record is on disk there before it is gone here; after an error it may be in both.
func (s *Spool) Quarantine(e Entry, reason string) error {
	s.drain.Lock()
	defer s.drain.Unlock()
	s.mu.Lock()
	seg, closed := s.find(e), s.closed
	s.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if seg == nil {
		return nil
	}
	frame := appendFrame(nil, kindFailed, Record{Lane: e.lane, At: e.At, Data: appendFailed(nil, reason, e.Data)})
	place(frame, seg.salt, 0)
	// The name is the record's, so that doing it again after a crash replaces the file.
	name := fmt.Sprintf("%s-%08x%s", seg.name, e.position.number, recordSuffix)
	if err := s.keepFailed(name, frame); err != nil {
		return fmt.Errorf("spool: quarantine a record: %w", err)
	}
	if err := s.clear([]Entry{e}); err != nil {
		return err
	}
	if err := s.tidy(); err != nil {
		return fmt.Errorf("spool: mark a quarantined record: %w", err)
	}
	return nil
}

// keepFailed durably puts a file into the failed area, in place of one with the name. Callers hold drain.
func (s *Spool) keepFailed(name string, b []byte) error {
	path := filepath.Join(s.cfg.Dir, failedName, name)
	before := failedStats{}
	if info, err := os.Stat(path); err == nil {
		before = failedStats{1, info.Size()}
	}
	if err := s.replace(path, b); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed.count += 1 - before.count
	s.failed.bytes += int64(len(b)) - before.bytes
	return nil
}

// saveDamage copies what is damaged of a segment into the failed area. Callers hold drain.
func (s *Spool) saveDamage(seg *segment) error {
	for i, d := range seg.damage {
		if d.saved {
			continue
		}
		b, err := s.readSpan(seg, d)
		if err == nil {
			err = s.keepFailed(fmt.Sprintf("%s-%016x-%016x%s", seg.name, d.start, d.end, damagedSuffix), b)
		}
		if err != nil {
			return fmt.Errorf("keep the damaged bytes of %s: %w", seg.name+segmentSuffix, err)
		}
		s.mu.Lock()
		seg.damage[i].saved = true
		s.mu.Unlock()
	}
	return nil
}

// readSpan reads a damaged range, which is as large as the file at most.
func (s *Spool) readSpan(seg *segment, d span) ([]byte, error) {
	file, err := os.Open(filepath.Join(s.cfg.Dir, seg.name+segmentSuffix))
	if err != nil {
		return nil, err
	}
	defer closeRead(file)
	return io.ReadAll(io.NewSectionReader(file, d.start, d.end-d.start))
}

// recoverFailed counts what the failed area holds and removes what was never completed.
func (s *Spool) recoverFailed() error {
	entries, err := os.ReadDir(filepath.Join(s.cfg.Dir, failedName))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), tempSuffix) {
			if err := os.Remove(filepath.Join(s.cfg.Dir, failedName, entry.Name())); err != nil {
				return err
			}
			continue
		}
		if _, ok := failedSalt(entry.Name()); !ok {
			s.log.Warn("the spool's failed area holds a file that is not the spool's", "file", entry.Name())
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		s.failed.count++
		s.failed.bytes += info.Size()
	}
	return nil
}

// failedSalt returns the salt in the name of a file of the failed area, false for other names.
func failedSalt(name string) (uint64, bool) {
	suffix := filepath.Ext(name)
	if len(name) < len(segmentName(0, 0)) || (suffix != recordSuffix && suffix != damagedSuffix) {
		return 0, false
	}
	_, salt, ok := parseName(name[:len(segmentName(0, 0))])
	return salt, ok
}

// Failed yields what is in the failed area, by ID, one at a time in memory. With an error it yields
// what cannot be read, of which the ID is set, and goes on. What comes or goes meanwhile may be missing.
func (s *Spool) Failed() iter.Seq2[Failed, error] {
	return func(yield func(Failed, error) bool) {
		dir := filepath.Join(s.cfg.Dir, failedName)
		entries, err := os.ReadDir(dir)
		if err != nil {
			yield(Failed{}, fmt.Errorf("spool: %w", err))
			return
		}
		for _, entry := range entries {
			salt, ok := failedSalt(entry.Name())
			if !ok {
				continue
			}
			f, err := readFailed(filepath.Join(dir, entry.Name()), salt)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				err = fmt.Errorf("spool: failed record %s: %w", entry.Name(), err)
			}
			if !yield(f, err) {
				return
			}
		}
	}
}

func readFailed(path string, salt uint64) (Failed, error) {
	f := Failed{ID: filepath.Base(path), Damaged: filepath.Ext(path) == damagedSuffix}
	b, err := os.ReadFile(path) //nolint:gosec // in the directory of the configuration
	if err != nil {
		return f, err
	}
	if f.Damaged {
		f.Record.Data = b
		return f, nil
	}
	r, err := decodeFile(b, kindFailed, salt)
	if err != nil {
		return f, err
	}
	f.Reason, r.Data, err = splitFailed(r.Data)
	f.Record = r
	return f, err
}

// RemoveFailed deletes something from the failed area, durably. To try a record again, Append it first.
// Damaged bytes come back with the next Open while the file that they are in has undrained records.
func (s *Spool) RemoveFailed(id string) error {
	if _, ok := failedSalt(id); !ok || id != filepath.Base(id) {
		return ErrNotFound
	}
	s.drain.Lock()
	defer s.drain.Unlock()
	if s.isClosed() {
		return ErrClosed
	}
	path := filepath.Join(s.cfg.Dir, failedName, id)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err == nil {
		err = s.remove(path)
	}
	if err != nil {
		return fmt.Errorf("spool: remove a failed record: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed.count--
	s.failed.bytes -= info.Size()
	return nil
}
