package fault

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// Dial returns a function that connects as next does, and whose connections meet the faults of PostgreSQL.
func (s *Set) Dial(next func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if err := s.wait(ctx.Done(), nil); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		raw, err := next(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, set: s, closed: make(chan struct{})}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		return c, nil
	}
}

// wait returns nil when connections carry data, as soon as they do, and an error when they break or when
// one of the channels is closed.
func (s *Set) wait(gone, late <-chan struct{}) error {
	for {
		s.mu.Lock()
		kind, ended := s.network(), s.ended
		s.mu.Unlock()
		switch kind {
		case None:
			return nil
		case Error:
			return syscall.ECONNRESET
		case Hang:
		}
		select {
		case <-ended:
		case <-gone:
			return net.ErrClosed
		case <-late:
			return os.ErrDeadlineExceeded
		}
	}
}

// conn is a connection that meets faults.
type conn struct {
	net.Conn
	set    *Set
	once   sync.Once
	closed chan struct{}
	read   deadline
	write  deadline
}

func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.set.mu.Lock()
		delete(c.set.conns, c)
		c.set.mu.Unlock()
	})
	return c.Conn.Close()
}

// Read gives nothing away while the connection hangs, also not what arrived before that was noticed.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if waited := c.set.wait(c.closed, c.read.passed()); waited != nil {
		return 0, c.broken("read", waited)
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.set.wait(c.closed, c.write.passed()); err != nil {
		return 0, c.broken("write", err)
	}
	return c.Conn.Write(b)
}

func (c *conn) broken(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Err: err}
}

func (c *conn) SetDeadline(t time.Time) error {
	c.read.set(t)
	c.write.set(t)
	return c.Conn.SetDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return c.Conn.SetReadDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.write.set(t)
	return c.Conn.SetWriteDeadline(t)
}

// deadline closes a channel when a time has come. The zero value never does.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	late  chan struct{}
}

// passed returns the channel that the present deadline, or one that is set later, closes.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.late == nil {
		d.late = make(chan struct{})
	}
	return d.late
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fired := d.timer != nil && !d.timer.Stop()
	if d.late == nil || fired {
		d.late = make(chan struct{}) // whoever waits on the old one has been told
	}
	d.timer = nil
	if t.IsZero() {
		return
	}
	late := d.late
	d.timer = time.AfterFunc(time.Until(t), func() { close(late) })
}
