package spool

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

var (
	// ErrLocked is returned by Open when another broker uses the directory.
	ErrLocked = errors.New("spool: in use by another broker")
	// ErrClosed is returned by everything after Close.
	ErrClosed = errors.New("spool: closed")
	// ErrFull is wrapped by errors of Append when Config.MaxBytes or the disk allows no more. Nothing of
	// the call was kept; it may succeed once the spool was drained.
	ErrFull = errors.New("spool: full")
	// ErrTooLarge is wrapped by errors of Append for a record or lane above MaxRecordBytes or MaxLaneBytes.
	ErrTooLarge = errors.New("spool: record too large")
	// ErrUncertain is wrapped by errors of Append when the records may or may not be read later: the
	// context ended while they were being written, or writing failed and what was written could not be
	// taken back either.
	ErrUncertain = errors.New("spool: outcome unknown")
	// ErrNotFound is returned by RemoveFailed for an unknown id.
	ErrNotFound = errors.New("spool: no such failed record")
)

// defaultSegmentBytes is 64 MiB: large enough that making and deleting files costs nothing beside
// filling them, small enough that a record that stays does not keep much of what is drained around it.
const defaultSegmentBytes = 64 << 20

// Config configures a Spool.
type Config struct {
	// Dir is the directory of the spool. It is made, with its parents, when it does not exist, for this
	// user alone (0700; files 0600). Required.
	Dir string
	// MaxSegmentBytes is the size in bytes from which on a new file is begun. A single Append is never
	// spread over files, so that a file may be larger by one call. Default (0) 64 MiB.
	MaxSegmentBytes int64
	// MaxBytes is the most bytes that the segments and the failed area may take together; what would go
	// beyond is refused with ErrFull. Drained records count until their file is deleted, marks (less
	// than 1 % as a rule) do not count. Default (0) no limit but the disk's.
	MaxBytes int64
	// Fault, in tests of what is above, says why a write of records is to fail; nil from it means that it
	// is not, as does the absence of the function.
	Fault func() error
	// Logger gets what an operator should know: damage, failed writes. Default slog.Default.
	Logger *slog.Logger

	// hook, in tests, is called in place of each operation that changes the disk, and calls it.
	hook func(operation, path string, do func() error) error
}

func (c Config) withDefaults() (Config, error) {
	if c.MaxSegmentBytes == 0 {
		c.MaxSegmentBytes = defaultSegmentBytes
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("spool: Dir is not set"))
	}
	if c.MaxSegmentBytes < 0 {
		errs = append(errs, fmt.Errorf("spool: MaxSegmentBytes is negative: %d", c.MaxSegmentBytes))
	}
	if c.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("spool: MaxBytes is negative: %d", c.MaxBytes))
	}
	return c, errors.Join(errs...)
}

// Record is what is spooled.
type Record struct {
	// Lane is the key of the order that the record belongs to; see Pending. At most MaxLaneBytes.
	Lane string
	// At is when the record was accepted. It is kept in microseconds, in UTC.
	At time.Time
	// Data is the record. At most MaxRecordBytes.
	Data []byte
}

// Stats is the state of a spool.
type Stats struct {
	Pending int // undrained records
	Files   int // segments
	Bytes   int64
	// Oldest is the least accept time among the undrained records, zero without any. It may be that of a
	// record that was drained already, at most 63 records before one that was not.
	Oldest time.Time
	// Failed counts what is in the failed area: quarantined records and ranges of damaged bytes.
	Failed      int
	FailedBytes int64
	// Err is why the last write of records failed, nil once one succeeded again.
	Err error
}

// Spool is an open spool. All methods may be called concurrently.
//
// Of the locks, drain is taken before write and write before mu. mu is never held during I/O.
type Spool struct {
	cfg  Config
	log  *slog.Logger
	lock *os.File
	id   uuid.UUID // guarded by drain; Nil until it is asked for

	// drain is held while sealed segments, marks or the failed area change on disk.
	drain sync.Mutex

	// write is held while records are written.
	write   sync.Mutex
	active  *segment // the one that is appended to; nil before the first record and after a seal
	file    *os.File // of active
	torn    *segment // its file may hold bytes behind size that must go before anything else is written
	buffer  []byte
	highest uint64 // the highest segment number ever used here

	mu       sync.Mutex
	arrived  *sync.Cond // queue or closed changed
	queue    []*call
	queued   int64 // bytes of the calls in queue and of those being written
	segments []*segment
	lanes    map[string]int // records per lane: undrained, queued and being written
	failed   failedStats
	writeErr error
	closed   bool

	stopped chan struct{} // closed when run has returned
	close   func() error
}

type failedStats struct {
	count int
	bytes int64
}

// Open opens the spool in cfg.Dir and recovers it: torn tails are cut off, damaged bytes are copied to
// the failed area, and every intact record that was not marked as drained is pending again. It reads
// all files. It returns ErrLocked, wrapped, when another broker has the directory.
func Open(cfg Config) (*Spool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Spool{cfg: cfg, log: cfg.Logger.With("spool", cfg.Dir), lanes: map[string]int{}, stopped: make(chan struct{})}
	s.arrived = sync.NewCond(&s.mu)
	s.close = sync.OnceValue(s.shutdown)
	for _, dir := range []string{cfg.Dir, filepath.Join(cfg.Dir, failedName)} {
		if err := s.makeDir(dir); err != nil {
			return nil, fmt.Errorf("spool: %w", err)
		}
	}
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: recover %s: %w", cfg.Dir, err), unlock(s.lock), s.lock.Close())
	}
	go s.run()
	return s, nil
}

const lockName = "lock"

// takeLock keeps other brokers out of the directory and leaves a word for them.
func (s *Spool) takeLock() error {
	file, err := os.OpenFile(filepath.Join(s.cfg.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	held, err := lock(file)
	if err != nil {
		closeRead(file)
		return fmt.Errorf("spool: lock %s: %w", s.cfg.Dir, err)
	}
	if !held {
		defer closeRead(file)
		owner := make([]byte, 32)
		n, _ := file.Read(owner)
		return fmt.Errorf("%w: directory %s, process %s", ErrLocked, s.cfg.Dir, strings.TrimSpace(string(owner[:n])))
	}
	// The process id only helps whoever reads the error, so that failing to write it is no failure.
	if err := file.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(file, os.Getpid())
	}
	s.lock = file
	return nil
}

const idName = "id"

// ID names the spool. The name stays with the directory, whichever broker opens it; it is chosen when it is
// first asked for.
func (s *Spool) ID() (uuid.UUID, error) {
	s.drain.Lock()
	defer s.drain.Unlock()
	if s.id != uuid.Nil {
		return s.id, nil
	}
	path := filepath.Join(s.cfg.Dir, idName)
	text, err := os.ReadFile(path) //nolint:gosec // in the directory of the configuration
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return uuid.Nil, fmt.Errorf("spool: %w", err)
	}
	if err == nil {
		if s.id, err = uuid.ParseBytes(bytes.TrimSpace(text)); err == nil && s.id != uuid.Nil {
			return s.id, nil
		}
		s.log.Warn("the spool's name cannot be read; it gets another one", "file", path, "error", err)
	}
	id := uuid.New()
	if err := s.replace(path, []byte(id.String()+"\n")); err != nil {
		s.id = uuid.Nil
		return uuid.Nil, fmt.Errorf("spool: %w", err)
	}
	s.id = id
	return id, nil
}

// recover reads what the directory holds.
func (s *Spool) recover() error {
	found, err := list(s.cfg.Dir)
	if err != nil {
		return err
	}
	for _, name := range found.others {
		s.log.Warn("the spool's directory holds a file that is not the spool's", "file", name)
	}
	if err := s.recoverFailed(); err != nil {
		return err
	}
	for _, name := range found.temps { // a crash kept them from being completed
		if err := os.Remove(filepath.Join(s.cfg.Dir, name)); err != nil {
			return err
		}
	}
	known := map[string]bool{}
	for _, seg := range found.segments {
		if err := s.recoverSegment(seg); err != nil {
			return err
		}
		known[seg.name] = true
		s.segments = append(s.segments, seg)
		s.highest = seg.number
		for lane, n := range seg.lanes {
			s.lanes[lane] += n
		}
	}
	for _, name := range found.marks {
		if known[name] {
			continue
		}
		// A crash between the deletions of a segment and of its marks.
		if err := s.remove(filepath.Join(s.cfg.Dir, name+marksSuffix)); err != nil {
			return err
		}
	}
	if err := s.tidy(); err != nil {
		s.log.Warn("the spool could not be tidied up, it will be with the next drained record", "error", err)
	}
	if st := s.Stats(); st.Pending > 0 {
		s.log.Info("the spool holds records", "records", st.Pending, "bytes", st.Bytes, "files", st.Files, "oldest", st.Oldest)
	}
	return nil
}

// recoverSegment reads a segment, cuts off its tail and logs what is wrong with it.
func (s *Spool) recoverSegment(seg *segment) error {
	path := filepath.Join(s.cfg.Dir, seg.name+segmentSuffix)
	log := s.log.With("file", path)
	runs, err := readMarks(filepath.Join(s.cfg.Dir, seg.name+marksSuffix), seg.salt)
	if err != nil {
		log.Warn("the marks of a spool file cannot be read, so its drained records are drained again", "error", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // in the directory of the configuration
	if err != nil {
		return err
	}
	defer closeRead(file) // what is cut off is synced
	info, err := file.Stat()
	if err != nil {
		return err
	}
	c, err := readSegment(file, seg.salt, info.Size(), unmarked(runs))
	if err != nil {
		return err
	}
	if c.end < info.Size() {
		why := "a record was being written when the broker or the machine died"
		if c.tail == foundNothing {
			why = "zeros"
		}
		log.Info("cut off the torn tail of a spool file", "why", why, "at", c.end, "bytes", info.Size()-c.end)
		if err := s.cut(file, c.end); err != nil {
			return err
		}
	}
	seg.index, seg.size, seg.damage = c.index, c.end, c.damage
	if len(c.damage) > 0 {
		s.reportDamage(seg, c)
	}
	return nil
}

func (s *Spool) reportDamage(seg *segment, c contents) {
	for _, d := range c.damage {
		s.log.Error("a spool file is damaged, its bytes there are kept in the failed area",
			"file", seg.name+segmentSuffix, "from", d.start, "to", d.end)
	}
	// Behind the last intact record there is no number that would tell. Some may have been drained before.
	s.log.Error("records were lost to damage of a spool file", "file", seg.name+segmentSuffix, "at_least", max(1, c.lost))
}

// Pending returns how many records of a lane are not drained, those of Append calls that have not
// returned included. While it is not 0, a later record of the lane must queue behind them here.
func (s *Spool) Pending(lane string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes[lane]
}

// Stats returns the state of the spool. It does no I/O.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Files: len(s.segments), Bytes: s.bytes(), Err: s.writeErr,
		Failed: s.failed.count, FailedBytes: s.failed.bytes,
	}
	for _, seg := range s.segments {
		st.Pending += seg.pending
		if at, ok := seg.oldest(); ok {
			if t := time.UnixMicro(at).UTC(); st.Oldest.IsZero() || t.Before(st.Oldest) {
				st.Oldest = t
			}
		}
	}
	return st
}

func (s *Spool) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// bytes returns the size of all segments. Callers hold mu.
func (s *Spool) bytes() int64 {
	sum := int64(0)
	for _, seg := range s.segments {
		sum += seg.size
	}
	return sum
}

// Close writes what is queued, marks what is drained, and lets the directory go. Only the first call
// does something; all return what it returned.
func (s *Spool) Close() error { return s.close() }

func (s *Spool) shutdown() error {
	s.mu.Lock()
	s.closed = true
	s.arrived.Broadcast()
	s.mu.Unlock()
	<-s.stopped

	s.drain.Lock()
	defer s.drain.Unlock()
	err := s.tidy()
	s.write.Lock()
	defer s.write.Unlock()
	if s.torn != nil {
		err = errors.Join(err, s.cutTorn())
	}
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
	}
	return errors.Join(err, unlock(s.lock), s.lock.Close())
}

// op does one operation that changes the disk.
func (s *Spool) op(operation, path string, do func() error) error {
	if s.cfg.hook != nil {
		return s.cfg.hook(operation, path, do)
	}
	return do()
}

func (s *Spool) sync(file *os.File) error {
	return s.op("sync", file.Name(), file.Sync)
}

// syncDir makes the names in a directory durable.
func (s *Spool) syncDir(dir string) error {
	return s.op("syncdir", dir, func() error {
		file, err := os.Open(dir) //nolint:gosec // the directory of the configuration
		if err != nil {
			return err
		}
		return errors.Join(file.Sync(), file.Close())
	})
}

// makeDir makes a directory with its parents, all of them durable.
func (s *Spool) makeDir(dir string) error {
	err := s.op("mkdir", dir, func() error { return os.Mkdir(dir, 0o700) })
	if errors.Is(err, fs.ErrNotExist) {
		if err := s.makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = s.op("mkdir", dir, func() error { return os.Mkdir(dir, 0o700) })
	}
	if errors.Is(err, fs.ErrExist) {
		// Perhaps it was made by a process that died before it could sync. If it was made for us in a place
		// that we may not read, it is whoever made it who had to.
		if err = s.syncDir(filepath.Dir(dir)); errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	return s.syncDir(filepath.Dir(dir))
}

// cut makes size the durable size of a file.
func (s *Spool) cut(file *os.File, size int64) error {
	if err := s.op("truncate", file.Name(), func() error { return file.Truncate(size) }); err != nil {
		return err
	}
	return s.sync(file)
}

// remove deletes a file durably; that it is gone already is fine.
func (s *Spool) remove(path string) error {
	err := s.op("remove", path, func() error { return os.Remove(path) })
	fileRemoved.Hit()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return s.syncDir(filepath.Dir(path))
}

// replace durably makes b the contents of a file: after a crash it has its old contents or these.
func (s *Spool) replace(path string, b []byte) error {
	temp := path + tempSuffix
	if err := s.writeFile(temp, b); err != nil {
		_ = os.Remove(temp) // gives its space back; Open does it otherwise
		return err
	}
	tempWritten.Hit()
	if err := s.op("rename", path, func() error { return os.Rename(temp, path) }); err != nil {
		_ = os.Remove(temp)
		return err
	}
	return s.syncDir(filepath.Dir(path))
}

func (s *Spool) writeFile(path string, b []byte) error {
	file, err := s.create(path, os.O_TRUNC)
	if err != nil {
		return err
	}
	err = s.op("write", path, func() error { _, err := file.Write(b); return err })
	if err == nil {
		err = s.sync(file)
	}
	return errors.Join(err, file.Close())
}

// create makes a file for this user alone, and opens it for writing.
func (s *Spool) create(path string, flag int) (file *os.File, err error) {
	err = s.op("create", path, func() error {
		file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600) //nolint:gosec // in the directory of the configuration
		return err
	})
	if err != nil && file != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, err
}

// closeRead closes a file that nothing was written to: there is nothing left to lose.
func closeRead(file *os.File) { _ = file.Close() }

// newSalt returns the random number that the frames of a new segment are bound to.
func newSalt() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: the program ends instead
	return binary.LittleEndian.Uint64(b[:])
}

// noSpace reports whether err says that the disk, or the user's share of it, is full.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
