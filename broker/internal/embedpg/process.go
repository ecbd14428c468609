//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a running postmaster.
type process struct {
	os   *os.Process
	done chan struct{} // closed when the process has been reaped
	err  error         // how it ended; valid after done is closed
}

// spawn starts a program in a process group of its own, so that a terminal's
// Ctrl-C reaches the broker alone, which then stops the server in order. Its
// output goes to out. On Linux the child is sent orphaned when we die.
func spawn(cmd *exec.Cmd, as *account, out *os.File, orphaned syscall.Signal) (*process, error) {
	cmd.Env = serverEnvironment()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes(as.credential(), orphaned)

	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the parent-death signal to the thread that forked,
		// so this thread must live as long as the child does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.os = cmd.Process
		started <- nil
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// exited reports whether the process has ended.
func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// signal sends sig to the process; os.ErrProcessDone after it has been reaped,
// when its number may belong to somebody else.
func (p *process) signal(sig syscall.Signal) error { return p.os.Signal(sig) }

// escalation is how a postmaster is asked to go, ever less politely: fast
// shutdown, immediate shutdown, the kernel. A fast shutdown writes a checkpoint,
// which may take a while on a slow disk.
var escalation = []struct {
	signal syscall.Signal
	wait   time.Duration
}{
	{syscall.SIGINT, 30 * time.Second},
	{syscall.SIGQUIT, 10 * time.Second},
	{syscall.SIGKILL, 10 * time.Second},
}

// shutdown ends the process that send reaches, and waits until gone. When ctx
// ends the remaining steps get a second each: a stop that was cut short still
// leaves no server behind.
func shutdown(ctx context.Context, send func(syscall.Signal) error, gone <-chan struct{}) error {
	_ = send(syscall.SIGCONT) // a frozen server could not obey
	for _, step := range escalation {
		if err := send(step.signal); err != nil {
			break // already gone
		}
		select {
		case <-gone:
			return nil
		case <-time.After(step.wait):
		case <-ctx.Done():
			select {
			case <-gone:
				return nil
			case <-time.After(time.Second):
			}
		}
	}
	select {
	case <-gone:
		return nil
	case <-time.After(time.Second):
		return errors.New("PostgreSQL did not end after SIGKILL")
	}
}
