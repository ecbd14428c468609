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

// endOrphan stops a server that runs on pgdata. The caller holds the owner
// lock, so such a server has outlived its owner. A postmaster.pid whose number
// now belongs to a stranger is removed, because PostgreSQL would refuse to
// start; it checks for shared memory in use by other means, so this is safe.
func endOrphan(ctx context.Context, pgdata string) error {
	path := filepath.Join(pgdata, "postmaster.pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 {
		return nil // torn by a crash; PostgreSQL says so if it minds
	}
	arguments := commandLine(pid)
	if arguments == nil {
		return nil // dead; PostgreSQL replaces the file
	}
	if !isPostmaster(arguments, pgdata) {
		return os.Remove(path)
	}

	gone := make(chan struct{})
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go func() {
		for isPostmaster(commandLine(pid), pgdata) {
			pause(watching, 20*time.Millisecond)
			if watching.Err() != nil {
				return
			}
		}
		close(gone)
	}()
	send := func(sig syscall.Signal) error { return syscall.Kill(pid, sig) }
	if err := shutdown(ctx, send, gone); err != nil {
		return fmt.Errorf("stop the server (pid %d) that an earlier process left running on %s: %w", pid, pgdata, err)
	}
	return nil
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
