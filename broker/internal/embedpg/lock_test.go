package embedpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestLockOutlivesItsOwner holds the lock for a moment in the name of a process that is dead, as a child does that the
// owner had just forked.
func TestLockOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := exec.CommandContext(t.Context(), "true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	held, err := tryLock(filepath.Join(dir, "owner.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(held, "%-20d\n", dead.Process.Pid); err != nil {
		t.Fatal(err)
	}
	release := time.AfterFunc(50*time.Millisecond, func() { _ = held.Close() })
	defer release.Stop()
	lock, err := lockOwner(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	inUse, ok := errors.AsType[*InUseError](func() error { _, err := lockOwner(dir, nil); return err }())
	if !ok || inUse.PID != os.Getpid() {
		t.Errorf("while the owner lives: %v", inUse)
	}
}
