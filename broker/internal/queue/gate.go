package queue

import "sync"

// gate counts what is being worked on and can be closed: then nothing enters any more, and whoever
// closed it waits until everything has left.
type gate struct {
	mu     sync.Mutex
	empty  sync.Cond
	inside int
	closed bool
}

// enter reports whether the gate is open, and counts the caller in if it is.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.inside++
	return true
}

// hold counts in what is done on behalf of somebody inside, also when the gate is closed.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside++
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.empty.L != nil {
		g.empty.Broadcast()
	}
}

// isClosed reports whether nothing may enter any more.
func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// close lets nobody in any more and waits for those inside.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.empty.L = &g.mu
	for g.inside > 0 {
		g.empty.Wait()
	}
}
