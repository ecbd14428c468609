package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

var errDead = errors.New("the disk is gone")

// disk is a model of what is durable: the contents of a file as of its last fsync, and the names of a
// directory as of its last fsync. From operation number dies on nothing happens any more, as if the
// machine had stopped; an interrupted write leaves half.
type disk struct {
	mu    sync.Mutex
	count int
	dies  int // 0: never

	contents map[uint64][]byte            // by inode
	names    map[string]map[string]uint64 // by directory, to inodes; directories have inode 0
}

func newDisk(dies int) *disk {
	return &disk{dies: dies, contents: map[uint64][]byte{}, names: map[string]map[string]uint64{}}
}

func (d *disk) hook(operation, path string, do func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	if d.dies > 0 && d.count >= d.dies {
		if d.count == d.dies && operation == "write" {
			before, _ := os.Stat(path)
			if do() == nil {
				after, _ := os.Stat(path)
				_ = os.Truncate(path, (before.Size()+after.Size())/2)
			}
		}
		return errDead
	}
	err := do()
	if operation == "create" {
		delete(d.contents, inode(path)) // a number that is used again, if by a file that is half made
	}
	if err != nil && (operation == "write" || operation == "sync") {
		// What is said to have failed may be there all the same.
		d.contents[inode(path)], _ = os.ReadFile(path)
	}
	if err != nil {
		return err
	}
	switch operation {
	case "sync":
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		d.contents[inode(path)] = b
	case "syncdir":
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		names := map[string]uint64{}
		for _, e := range entries {
			if e.IsDir() {
				names[e.Name()] = 0
			} else {
				names[e.Name()] = inode(filepath.Join(path, e.Name()))
			}
		}
		d.names[path] = names
	}
	return nil
}

func inode(path string) uint64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// restore writes what was durable of dir, an absolute path, below root and returns its place.
func (d *disk) restore(t *testing.T, dir, root string) string {
	t.Helper()
	place := filepath.Join(root, dir)
	if _, durable := d.names[filepath.Dir(dir)][filepath.Base(dir)]; !durable {
		return place // the directory itself is gone
	}
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, ino := range d.names[dir] {
		if ino == 0 {
			d.restore(t, filepath.Join(dir, name), root)
		} else if err := os.WriteFile(filepath.Join(place, name), d.contents[ino], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return place
}

// promises is what the calls on a spool have returned so far.
type promises struct {
	stored      map[string]bool // Append returned nil
	refused     map[string]bool // Append returned an error that is not ErrUncertain, and the process lives on
	drained     map[string]bool // Done returned nil
	quarantined map[string]bool
	touched     map[string]bool // Done or Quarantine was called
}

func newPromises() promises {
	return promises{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// check opens the spool in dir and holds it to the promises.
func (p promises) check(t *testing.T, what, dir string) {
	t.Helper()
	s := open(t, Config{Dir: dir, hook: quick})
	defer s.Close()
	pending := map[string]bool{}
	for _, e := range entries(t, s) {
		if !strings.HasPrefix(string(e.Data), "record ") || pending[string(e.Data)] {
			t.Errorf("%s: read %q", what, e.Data)
		}
		pending[string(e.Data)] = true
	}
	failed := map[string]bool{}
	for f, err := range s.Failed() {
		if err != nil || f.Damaged {
			t.Errorf("%s: failed: %+v, %v", what, f, err)
		}
		failed[string(f.Record.Data)] = true
	}
	for r := range p.stored {
		if !pending[r] && !failed[r] && !p.touched[r] {
			t.Errorf("%s: %s was stored and is gone", what, r)
		}
	}
	for r := range p.refused {
		if pending[r] {
			t.Errorf("%s: %s was refused and is there", what, r)
		}
	}
	for r := range p.drained {
		if pending[r] {
			t.Errorf("%s: %s was drained and is there", what, r)
		}
	}
	for r := range p.quarantined {
		if pending[r] || !failed[r] {
			t.Errorf("%s: %s was quarantined and is not, or not only, in the failed area", what, r)
		}
	}
	wantConsistent(t, s)
	put(t, s, Record{Data: []byte("new")})
	if got := contentsOf(entries(t, s)); got[len(got)-1] != "new" {
		t.Errorf("%s: cannot go on", what)
	}
}

// work does a little of everything on a spool and keeps the promises. It calls after behind every step.
func work(t *testing.T, s *Spool, p promises, after func()) {
	t.Helper()
	next := 0
	add := func(n int) {
		batch := records(next + n)[next:]
		next += n
		err := s.Append(t.Context(), batch...)
		for _, r := range batch {
			if err == nil {
				p.stored[string(r.Data)] = true
			} else if !errors.Is(err, ErrUncertain) {
				p.refused[string(r.Data)] = true
			}
		}
		after()
	}
	drain := func(from, n int) {
		all := entries(t, s)
		batch := all[min(from, len(all)):min(from+n, len(all))]
		for _, e := range batch {
			p.touched[string(e.Data)] = true
		}
		if s.Done(batch...) == nil {
			for _, e := range batch {
				p.drained[string(e.Data)] = true
			}
		}
		after()
	}
	add(3)
	add(1)
	drain(1, 2)
	add(2) // a second file
	drain(0, 1)
	if all := entries(t, s); len(all) > 1 {
		r := string(all[1].Data)
		p.touched[r] = true
		if s.Quarantine(all[1], "no") == nil {
			p.quarantined[r] = true
		}
		after()
	}
	add(4)
	drain(0, 100)
	add(1)
	drain(0, 1)
	add(2)
}

// TestCrashAtEveryOperation stops the disk at every operation that changes it, and checks what is left
// of it: once with everything that was written, as after the death of the process, and once with only
// what was fsynced, as after the death of the machine.
func TestCrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	total := 0
	for n := 0; n == 0 || n <= total; n++ {
		d := newDisk(n)
		dir := filepath.Join(t.TempDir(), "spool")
		p := newPromises()
		s, err := Open(Config{Dir: dir, MaxSegmentBytes: 250, hook: d.hook, Logger: discard})
		if err == nil {
			work(t, s, p, func() {})
			if n == 0 {
				total = d.count
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			_ = s.Close()
		}
		// Whoever was refused by a disk that died later than its call is judged; after a crash, the last
		// refusals were never answered.
		if n > 0 {
			clear(p.refused)
		}
		if os.MkdirAll(dir, 0o700) != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("operation %d of %d", n, total)
		p.check(t, what+", machine", d.restore(t, dir, t.TempDir()))
		p.check(t, what+", process", dir)
	}
	if total < 50 {
		t.Errorf("only %d operations", total)
	}
}

var discard = slog.New(slog.DiscardHandler)

// TestFailuresAtEveryOperation lets every operation fail once, before or after it had its effect, with
// the disk working again afterwards. What was refused must not be there, now or after a restart.
func TestFailuresAtEveryOperation(t *testing.T) {
	t.Parallel()
	for _, effect := range []bool{false, true} {
		for n := 1; ; n++ {
			d := newDisk(0)
			failed := ""
			hook := func(operation, path string, do func() error) error {
				return d.hook(operation, path, func() error {
					if d.count != n {
						return do()
					}
					failed = operation
					if effect {
						_ = do()
					}
					return fmt.Errorf("injected: %w", syscall.ENOSPC)
				})
			}
			dir := filepath.Join(t.TempDir(), "spool")
			p := newPromises()
			s, err := Open(Config{Dir: dir, MaxSegmentBytes: 250, hook: hook, Logger: discard})
			if err != nil {
				continue // refused to open: nothing was promised
			}
			checked := false
			work(t, s, p, func() {
				if failed != "" && !checked {
					checked = true
					what := fmt.Sprintf("operation %d, %s, effect %v, machine at once", n, failed, effect)
					p.check(t, what, d.restore(t, dir, t.TempDir()))
				}
			})
			what := fmt.Sprintf("operation %d, %s, effect %v", n, failed, effect)
			wantConsistent(t, s)
			if failed == "write" && len(p.refused) == 0 && s.Stats().Pending == len(p.stored) {
				t.Errorf("%s: was not noticed", what)
			}
			p.check(t, what+", machine", d.restore(t, dir, t.TempDir()))
			if err := s.Close(); err != nil && failed != "" && d.count < n {
				t.Errorf("%s: %v", what, err)
			}
			p.check(t, what+", process", dir)
			if failed == "" {
				break
			}
		}
	}
}

// TestNothingIsWrittenWhileATornTailStays lets a write fail and the cut after it too: the outcome is
// unknown, further records are refused, and the spool works again when the tail could be cut.
func TestNothingIsWrittenWhileATornTailStays(t *testing.T) {
	t.Parallel()
	broken := map[string]bool{}
	var mu sync.Mutex
	set := func(operations ...string) {
		mu.Lock()
		defer mu.Unlock()
		clear(broken)
		for _, o := range operations {
			broken[o] = true
		}
	}
	s := open(t, Config{hook: func(operation, path string, do func() error) error {
		mu.Lock()
		defer mu.Unlock()
		if broken[operation] && strings.HasSuffix(path, segmentSuffix) {
			if operation == "sync" {
				_ = do()
			}
			return syscall.EIO
		}
		return do()
	}})
	put(t, s, record(0))
	set("sync", "truncate")
	if err := s.Append(t.Context(), record(1)); !errors.Is(err, ErrUncertain) || !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	set("truncate")
	if err := s.Append(t.Context(), record(2)); err == nil || errors.Is(err, ErrUncertain) {
		t.Errorf("%v", err)
	}
	wantData(t, s, "record 0")
	wantConsistent(t, s)
	if s.Stats().Err == nil {
		t.Error("the statistics do not say that writing fails")
	}
	set()
	put(t, s, record(3))
	if s.Stats().Err != nil {
		t.Error("the statistics still say that writing fails")
	}
	wantData(t, s, "record 0", "record 3")
	wantData(t, reopen(t, s), "record 0", "record 3")
}

// TestAFileIsNotWrittenToAfterAFailedFsync checks that a descriptor is given up once its fsync failed.
func TestAFileIsNotWrittenToAfterAFailedFsync(t *testing.T) {
	t.Parallel()
	fail := false
	var writes []string
	s := open(t, Config{hook: func(operation, path string, do func() error) error {
		if operation == "write" {
			writes = append(writes, path)
		}
		if operation == "sync" && fail {
			fail = false
			return syscall.EIO
		}
		return do()
	}})
	put(t, s, record(0))
	fail = true
	if err := s.Append(t.Context(), record(1)); !errors.Is(err, syscall.EIO) || errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
	put(t, s, record(2))
	if len(writes) != 3 || writes[0] != writes[1] || writes[1] == writes[2] {
		t.Errorf("written were %q", writes)
	}
	wantData(t, s, "record 0", "record 2")
	wantData(t, reopen(t, s), "record 0", "record 2")
}

// TestMarksThatCouldNotBeWrittenAreWrittenLater lets the marks fail, and looks whether the next call of
// Done, for other records or for none, and the end make up for it.
func TestMarksThatCouldNotBeWrittenAreWrittenLater(t *testing.T) {
	t.Parallel()
	for what, later := range map[string]func(s *Spool) error{
		"done":  func(s *Spool) error { return s.Done() },
		"close": (*Spool).Close,
	} {
		fail := false
		s := open(t, Config{hook: func(operation, _ string, do func() error) error {
			if operation == "rename" && fail {
				return syscall.EIO
			}
			return do()
		}})
		put(t, s, records(3)...)
		fail = true
		if err := s.Done(entries(t, s)[1]); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", what, err)
		}
		wantData(t, s, "record 0", "record 2")
		fail = false
		if err := later(s); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		// A copy shows what a crash would leave.
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(s.cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		wantData(t, open(t, Config{Dir: copied}), "record 0", "record 2")
	}
}

// childDir names the environment variable that makes this test program a child which works on the spool
// in that directory until it is killed.
const childDir = "POSTHORN_SPOOL_TEST_CHILD"

// child appends from several goroutines, drains at the same time, and says what has been acknowledged.
func child(dir string) {
	s, err := Open(Config{Dir: dir, MaxSegmentBytes: 20_000, Logger: discard})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx := context.Background()
	start := os.Getpid()
	for c := range 8 {
		go func() {
			for i := 0; ; i++ {
				var batch []Record
				for k := range 1 + rand.IntN(3) {
					batch = append(batch, Record{Lane: fmt.Sprint(c), Data: fmt.Appendf(nil, "record %d.%d.%d.%d", start, c, i, k)})
				}
				if err := s.Append(ctx, batch...); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				line := ""
				for _, r := range batch {
					line += "stored " + string(r.Data) + "\n"
				}
				_, _ = os.Stdout.WriteString(line)
			}
		}()
	}
	for {
		batch, err := s.Read(ctx, Position{}, 1+rand.IntN(20), 1<<20)
		if err == nil && len(batch) > 0 {
			line := ""
			for _, e := range batch {
				line += "touched " + string(e.Data) + "\n"
			}
			_, _ = os.Stdout.WriteString(line)
			err = s.Done(batch...)
			_, _ = os.Stdout.WriteString(strings.ReplaceAll(line, "touched", "drained"))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// TestKilledProcess kills a process that appends and drains, again and again on the same directory.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "spool")
	p := newPromises()
	for range 6 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		stored := 0
		for kill := 100 + rand.IntN(500); lines.Scan(); {
			what, data, _ := strings.Cut(lines.Text(), " ")
			switch what {
			case "stored":
				p.stored[data] = true
				if stored++; stored == kill {
					if err := cmd.Process.Kill(); err != nil {
						t.Fatal(err)
					}
				}
			case "touched":
				p.touched[data] = true
			case "drained":
				p.drained[data] = true
			}
		}
		_ = cmd.Wait() // it was killed
		if stored < 100 {
			t.Fatalf("the child stored %d records", stored)
		}
		// The copy is for the check, which appends a record of its own.
		copied := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		p.check(t, "killed", copied)
	}
	if len(p.drained) == 0 || len(p.touched) == len(p.stored) {
		t.Errorf("of %d records %d were drained: too few, or all", len(p.stored), len(p.drained))
	}
}
