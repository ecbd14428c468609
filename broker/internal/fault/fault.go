package fault

import (
	"errors"
	"fmt"
	"sync"
)

// Kind is how something fails.
type Kind string

const (
	// None is the absence of a fault.
	None Kind = ""
	// Error fails at once.
	Error Kind = "error"
	// Hang does not answer until the fault ends or the caller gives up.
	Hang Kind = "hang"
)

// ErrInjected is wrapped by every failure that a Set causes above the network.
var ErrInjected = errors.New("a fault that a test asked for")

// Group names a partition of a queue.
type Group struct{ Queue, Partition string }

// Faults are what is to fail. The zero value is nothing.
type Faults struct {
	Postgres Kind
	Spool    Kind // None or Error
	// Groups narrows both to the appends of these partitions; everything else goes on. Empty means that
	// PostgreSQL and the spool fail as a whole. Postgres must not be Hang then.
	Groups []Group
	// Times is how many appends of Groups meet the fault before it ends, 0 = until it is replaced. It
	// needs Groups.
	Times int
}

// Set holds the faults that are in force.
type Set struct {
	mu     sync.Mutex
	faults Faults
	left   int            // of Times
	ended  chan struct{}  // closed when faults is replaced
	conns  map[*conn]bool // open ones
	groups map[Group]bool // of faults
}

// NewSet returns a Set without faults.
func NewSet() *Set {
	return &Set{ended: make(chan struct{}), conns: map[*conn]bool{}}
}

// Replace puts other faults in force. Connections break before it returns, if they are to.
func (s *Set) Replace(f Faults) {
	s.mu.Lock()
	s.faults, s.left, s.groups = f, f.Times, map[Group]bool{}
	for _, g := range f.Groups {
		s.groups[g] = true
	}
	close(s.ended)
	s.ended = make(chan struct{})
	var broken []*conn
	if s.network() == Error {
		for c := range s.conns {
			broken = append(broken, c)
		}
	}
	s.mu.Unlock()
	for _, c := range broken {
		_ = c.Close() // whoever uses it sees a closed connection
	}
}

// Faults returns what is in force; Times is how many appends are still to fail.
func (s *Set) Faults() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.faults
	f.Times = s.left
	return f
}

// network is how all of PostgreSQL fails. Callers hold mu.
func (s *Set) network() Kind {
	if len(s.faults.Groups) > 0 {
		return None
	}
	return s.faults.Postgres
}

// Append is asked before an append of a partition begins. The error is why it fails.
func (s *Set) Append(queue, partition string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.Postgres == None || !s.groups[Group{queue, partition}] {
		return nil
	}
	if s.faults.Spool == None { // else it is the spool's turn to fail
		s.count()
	}
	return fmt.Errorf("%w: PostgreSQL takes nothing for %s/%s", ErrInjected, queue, partition)
}

// Spool is asked before an append of a partition goes to the spool. The error is why it fails.
func (s *Set) Spool(queue, partition string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.Spool == None || !s.groups[Group{queue, partition}] {
		return nil
	}
	s.count()
	return fmt.Errorf("%w: the spool takes nothing for %s/%s", ErrInjected, queue, partition)
}

// SpoolWrite is asked before the spool writes to its disk. The error is why it fails.
func (s *Set) SpoolWrite() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults.Spool == None || len(s.groups) > 0 {
		return nil
	}
	return fmt.Errorf("%w: the disk of the spool fails", ErrInjected)
}

// count takes one from what is left of Times; the faults end with the last one. Callers hold mu.
func (s *Set) count() {
	if s.left == 0 {
		return
	}
	if s.left--; s.left == 0 {
		s.faults, s.groups = Faults{}, nil
	}
}
