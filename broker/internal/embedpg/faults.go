//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"os"
	"syscall"
)

// The methods of this file break a server on purpose, for tests of what depends
// on it.

var errStopped = errors.New("embedpg: the server was stopped")

// PID is the process id of the postmaster; 0 while there is none.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.os.Pid
}

// Signal sends sig to the postmaster. A server ended this way is started again
// at once; use Crash or Shutdown for one that stays down.
func (s *Server) Signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return os.ErrProcessDone
	}
	return s.proc.signal(sig)
}

// Pause freezes the postmaster and all its backends: connections stay open and
// nothing answers.
func (s *Server) Pause() error { return s.signalAll(syscall.SIGSTOP) }

// Resume lets a paused server continue.
func (s *Server) Resume() error { return s.signalAll(syscall.SIGCONT) }

// signalAll reaches the postmaster first: once frozen it makes no new children.
func (s *Server) signalAll(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return os.ErrProcessDone
	}
	if err := s.proc.signal(sig); err != nil {
		return err
	}
	for _, pid := range children(s.proc.os.Pid) {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// Crash ends the postmaster by SIGKILL and leaves the server down until
// Restart or Stop. Its backends notice within moments.
func (s *Server) Crash(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.proc
	if p == nil {
		return os.ErrProcessDone
	}
	s.proc = nil
	backends := children(p.os.Pid)
	if err := p.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for _, pid := range backends {
		_ = syscall.Kill(pid, syscall.SIGCONT) // a frozen backend would keep the shared memory
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Shutdown ends the server in order and leaves it down until Restart or Stop.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt(ctx)
}

// Restart starts the server, after an orderly shutdown when it is up. The URL
// stays the same.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return errStopped
	}
	if err := s.halt(ctx); err != nil {
		return err
	}
	return s.launch(ctx)
}
