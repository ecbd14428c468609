//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockOwner takes the lock that makes us the only live user of dir. The kernel
// drops it when we die, however we die.
func lockOwner(dir string, as *account) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "owner.lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			text := make([]byte, 32)
			n, _ := file.ReadAt(text, 0)
			pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:n])))
			return nil, &InUseError{Dir: dir, PID: pid}
		}
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	// Padded, so that one write replaces any earlier number whole.
	if _, err := file.WriteAt([]byte(fmt.Sprintf("%-20d\n", os.Getpid())), 0); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	if err := as.own(file.Name()); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	return file, nil
}

// endOrphan stops a server that runs on pgdata. The caller holds the owner
// lock, so such a server has outlived its owner. A postmaster.pid whose number
// now belongs to a stranger is removed, because PostgreSQL would refuse to
// start; it checks for shared memory in use by other means, so this is safe.
func endOrphan(ctx context.Context, pgdata string) (ended bool, err error) {
	path := filepath.Join(pgdata, "postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 {
		return false, nil // torn by a crash; PostgreSQL says so if it minds
	}
	arguments := commandLine(pid)
	if arguments == nil {
		return false, nil // dead; PostgreSQL replaces the file
	}
	if !isPostmaster(arguments, pgdata) {
		return false, os.Remove(path)
	}

	gone := make(chan struct{})
	watching, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for isPostmaster(commandLine(pid), pgdata) {
			select {
			case <-ticker.C:
			case <-watching.Done():
				return
			}
		}
		close(gone)
	}()
	send := func(sig syscall.Signal) error { return syscall.Kill(pid, sig) }
	if err := shutdown(ctx, send, gone); err != nil {
		return false, fmt.Errorf("stop the server (pid %d) that an earlier process left running on %s: %w", pid, pgdata, err)
	}
	return true, nil
}

// isPostmaster recognises the postmaster of pgdata by its arguments; backends
// overwrite theirs.
func isPostmaster(arguments []string, pgdata string) bool {
	if len(arguments) == 0 || !strings.HasPrefix(filepath.Base(arguments[0]), "postgres") {
		return false
	}
	// A path with spaces comes apart on systems that only give one line.
	return strings.Contains(strings.Join(arguments, " ")+" ", "-D "+pgdata+" ")
}
