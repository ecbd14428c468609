//go:build linux || darwin

package embedpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// claim makes the data directory and becomes its only live user.
func (s *Server) claim() error {
	dir := s.cfg.DataDir
	if err := makeDataDir(dir); err != nil {
		return err
	}
	// The server is recognised later by the path in its arguments.
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	s.cfg.DataDir, s.pgdata = dir, filepath.Join(dir, "postgres")
	if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
		return fmt.Errorf("%s is a PostgreSQL data directory itself: give Posthorn a directory of its own, or the URL of that server", dir)
	}
	if s.account, err = chooseAccount(s.pgdata, dir); err != nil {
		return err
	}
	if s.lock, err = lockOwner(dir, s.account); err != nil {
		return err
	}
	if err := openToTraverse(dir, s.account); err != nil {
		return err
	}
	if err := s.account.checkReach(dir); err != nil {
		return err
	}
	if s.log, err = openLog(dir, s.account); err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	return nil
}

// makeDataDir creates dir for us alone, and its parents.
func makeDataDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the data directory: %w", err)
	}
	return nil
}

// lockOutlives is how long the lock may outlive its owner: a child that was forked when the owner died holds it until
// it has become another program.
const lockOutlives = 2 * time.Second

// lockOwner takes the lock that makes us the only live user of dir.
func lockOwner(dir string, as *account) (*os.File, error) {
	path := filepath.Join(dir, "owner.lock")
	file, err := tryLock(path)
	for began := time.Now(); errors.Is(err, syscall.EWOULDBLOCK); file, err = tryLock(path) {
		text, _ := os.ReadFile(path) // without it the owner is not named
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		dead := pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
		if !dead || time.Since(began) > lockOutlives {
			return nil, &InUseError{Dir: dir, PID: pid}
		}
		<-time.After(10 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	// Padded, so that one write replaces any earlier number whole.
	_, err = file.WriteAt(fmt.Appendf(nil, "%-20d\n", os.Getpid()), 0)
	if err == nil {
		err = as.own(path)
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	return file, nil
}

// tryLock opens the file at path, made when missing, and locks it;
// syscall.EWOULDBLOCK while another process holds the lock. The kernel drops it
// when we die, however we die.
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// openToTraverse lets the account pass through dir, but not list it, when dir
// holds nothing but Posthorn's own data: a directory of somebody else's keeps its
// mode.
func openToTraverse(dir string, as *account) error {
	if as == nil {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil || as.traverses(info) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	ours := func(name string) bool {
		return name == "owner.lock" || name == "run" || strings.HasPrefix(name, "postgres")
	}
	for _, entry := range entries {
		if !ours(entry.Name()) {
			return nil
		}
	}
	return os.Chmod(dir, info.Mode().Perm()|0o011)
}

// initialisedMajor reads which version made pgdata; 0 when it does not exist.
func initialisedMajor(pgdata string) (int, error) {
	if _, err := os.Stat(pgdata); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	text, err := os.ReadFile(filepath.Join(pgdata, "PG_VERSION"))
	if err != nil {
		return 0, fmt.Errorf("%s exists but is not a PostgreSQL data directory: %w", pgdata, err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION: %w", pgdata, err)
	}
	return major, nil
}

// initialise makes pgdata. It works beside the final place, so that pgdata
// either exists whole and synced or not at all, whenever we are killed.
func (s *Server) initialise(ctx context.Context) error {
	if err := removeMatches(ctx, filepath.Join(s.cfg.DataDir, "postgres.init-*")); err != nil {
		return fmt.Errorf("remove an interrupted initialisation: %w", err)
	}
	dir, err := os.MkdirTemp(s.cfg.DataDir, "postgres.init-")
	if err != nil {
		return err
	}
	if err := s.account.own(dir); err != nil {
		return err
	}

	args := []string{
		"--pgdata", dir, "--username", superuser,
		"--encoding", "UTF8", "--locale", "C", "--data-checksums",
		"--auth-local", "trust", "--auth-host", "reject",
	}
	if s.cfg.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	from := s.log.size()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin.dir, "initdb"), args...)
	cmd.Dir = dir
	p, err := spawn(cmd, s.account, s.log.file, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("initialise the data directory: %w", err)
	}
	<-p.done
	if err := cmp.Or(ctx.Err(), p.err); err != nil {
		_ = removeTree(context.WithoutCancel(ctx), dir) // else the next start does
		return fmt.Errorf("initialise the data directory: initdb: %w%s", err, quote(s.log.since(from, 10)))
	}
	if err := os.Rename(dir, s.pgdata); err != nil {
		return fmt.Errorf("initialise the data directory: %w", err)
	}
	return syncDir(s.cfg.DataDir)
}

// removeMatches removes the directories that pattern matches.
func removeMatches(ctx context.Context, pattern string) error {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := removeTree(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes dir. A child of an initdb that was killed may still be
// writing there, until it finds its input closed.
func removeTree(ctx context.Context, dir string) error {
	begin := time.Now()
	for {
		err := os.RemoveAll(dir)
		if err == nil || time.Since(begin) > 5*time.Second || ctx.Err() != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// Destroy removes the data directory dir with all it holds, after stopping a
// server that a dead process left running on it. It refuses with *InUseError
// while a live process owns it, and does nothing when dir does not exist.
func Destroy(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	lock, err := lockOwner(dir, nil)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := endOrphan(ctx, filepath.Join(dir, "postgres")); err != nil {
		return err
	}
	return removeTree(ctx, dir)
}
