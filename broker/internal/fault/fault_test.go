package fault_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/fault"
)

// echo serves one listener that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().String()
}

func dial(t *testing.T, s *fault.Set, address string) net.Conn {
	t.Helper()
	c, err := s.Dial((&net.Dialer{}).DialContext)(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func exchange(c net.Conn) error {
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

// TestConnectionsBreak lets PostgreSQL fail as a whole: a connection in use breaks under its reader, an idle
// one breaks, new ones are refused, and all is well afterwards.
func TestConnectionsBreak(t *testing.T) {
	t.Parallel()
	s, address := fault.NewSet(), echo(t)
	reading, idle := dial(t, s, address), dial(t, s, address)
	for _, c := range []net.Conn{reading, idle} {
		if err := exchange(c); err != nil {
			t.Fatal(err)
		}
	}
	broke := make(chan error)
	go func() { _, err := reading.Read(make([]byte, 1)); broke <- err }()
	s.Replace(fault.Faults{Postgres: fault.Error})
	if err := <-broke; err == nil {
		t.Error("the reader was not told")
	}
	if err := exchange(idle); err == nil {
		t.Error("the idle connection works")
	}
	if _, err := s.Dial((&net.Dialer{}).DialContext)(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	s.Replace(fault.Faults{})
	if err := exchange(dial(t, s, address)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestConnectionsHang freezes connections: nobody is answered before the fault ends, but deadlines, closing
// and contexts still count.
func TestConnectionsHang(t *testing.T) {
	t.Parallel()
	s, address := fault.NewSet(), echo(t)
	patient, hasty, shut := dial(t, s, address), dial(t, s, address), dial(t, s, address)
	s.Replace(fault.Faults{Postgres: fault.Hang})
	answered := make(chan error, 1)
	go func() { answered <- exchange(patient) }()
	if err := hasty.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := exchange(hasty); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
	closing := make(chan error, 1)
	go func() { closing <- exchange(shut) }()
	_ = shut.Close()
	if err := <-closing; err == nil {
		t.Error("a closed connection works")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Dial((&net.Dialer{}).DialContext)(ctx, "tcp", address); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a new connection: %v", err)
	}
	select {
	case err := <-answered:
		t.Errorf("an answer came through: %v", err)
	default:
	}
	s.Replace(fault.Faults{})
	if err := <-answered; err != nil {
		t.Errorf("after the fault: %v", err)
	}
	if err := hasty.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := exchange(hasty); err != nil {
		t.Errorf("without the deadline: %v", err)
	}
}

// TestGroupsFailAlone narrows the faults to one partition, for a number of appends.
func TestGroupsFailAlone(t *testing.T) {
	t.Parallel()
	s, address := fault.NewSet(), echo(t)
	q := []fault.Group{{Queue: "q", Partition: "1"}}
	s.Replace(fault.Faults{Postgres: fault.Error, Groups: q, Times: 2})
	if err := exchange(dial(t, s, address)); err != nil {
		t.Errorf("a connection: %v", err)
	}
	if err := errors.Join(s.Append("q", "2"), s.Append("r", "1"), s.Spool("q", "1"), s.SpoolWrite()); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
	for n := range 3 {
		if err := s.Append("q", "1"); errors.Is(err, fault.ErrInjected) != (n < 2) {
			t.Errorf("append %d: %v", n, err)
		}
	}
	// An append that fails in both places counts once.
	s.Replace(fault.Faults{Postgres: fault.Error, Spool: fault.Error, Groups: q, Times: 1})
	if s.Append("q", "1") == nil || s.Spool("q", "1") == nil || s.Append("q", "1") != nil {
		t.Error("the append did not fail once in both places")
	}
	s.Replace(fault.Faults{Spool: fault.Error})
	if s.SpoolWrite() == nil || s.Spool("q", "1") != nil || s.Append("q", "1") != nil {
		t.Error("the spool does not fail as a whole")
	}
	var none *fault.Set
	if err := errors.Join(none.Append("q", "1"), none.Spool("q", "1"), none.SpoolWrite()); err != nil {
		t.Errorf("without a set: %v", err)
	}
}
