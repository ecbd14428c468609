package delivery

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// lossy is a connection to the database that loses the answer to a COMMIT, once, when it is told to.
type lossy struct {
	net.Conn
	lose *atomic.Bool
	lost atomic.Bool
}

func (c *lossy) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("commit\x00")) && c.lose.CompareAndSwap(true, false) {
		c.lost.Store(true)
	}
	return c.Conn.Write(p)
}

// Read waits for the answer, so that the transaction is committed, and does not tell.
func (c *lossy) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost.Load() {
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

// lossyEngine starts an engine on connections that lose what lose tells them to.
func lossyEngine(t *testing.T) (e *Engine, lose *atomic.Bool) {
	t.Helper()
	lose = &atomic.Bool{}
	pool, err := pg.Open(t.Context(), pg.Config{URL: database(t), PoolSize: 10, WrapDial: func(next pg.Dialer) pg.Dialer {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := next(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &lossy{Conn: conn, lose: lose}, nil
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	client := egress.New(egress.Config{Policy: egress.Policy{Loopback: true}})
	t.Cleanup(client.Close)
	e, err = Open(t.Context(), pool, Config{Client: client, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), StopGrace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e, lose
}

// TestLostCommitOfACallback: nobody knows whether an outcome is committed, and it is. Its callback is delivered all the same,
// though the broker that made it holds it without having it in memory, and a clock that is moved waits for that.
func TestLostCommitOfACallback(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"delivered": 200, "failed": 500} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, lose := lossyEngine(t)
			told := newSink(t, nil)
			s := newSink(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
				lose.Store(true)
				w.WriteHeader(status)
			})
			m := to(s.URL)
			m.Callback = &Callback{URL: told.URL}
			id := publish(t, e, m)
			eventually(t, "the answer to a commit is lost", func() bool { return len(s.requests()) == 1 && !lose.Load() })
			settle(t, e)
			if got := told.requests(); len(got) != 1 || !strings.Contains(got[0].body, MessageID(id)) {
				t.Errorf("%d callbacks: %+v", len(got), got)
			}
			if n := count(t, e, `select count(*) from delivery_task`); n != 0 {
				t.Errorf("%d tasks are left", n)
			}
			if got := len(s.requests()); got != 1 {
				t.Errorf("%d attempts", got)
			}
		})
	}
}

// TestSettleWaitsForLostLeases: what a statement of which nobody knows has leased is due again soon, and the clock waits.
func TestSettleWaitsForLostLeases(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	m := to(s.URL)
	m.Delay = time.Hour
	for n := range 20 {
		publish(t, e, m)
		held := e.leases.take(0)
		if held == nil { // it is being replaced
			eventually(t, "there is a lease", func() bool { held = e.leases.take(0); return held != nil })
		}
		if _, err := e.pool.Exec(t.Context(), `update delivery_task set lease = $1`, held.id); err != nil {
			t.Fatal(err)
		}
		e.leases.retire()
		advance(t, e, time.Hour)
		if got := len(s.requests()); got != n+1 {
			t.Fatalf("%d deliveries after the clock was moved, want %d", got, n+1)
		}
	}
}

// TestSettleWaitsForOthers: what another broker has taken is due work as well.
func TestSettleWaitsForOthers(t *testing.T) {
	t.Parallel()
	url := database(t)
	a := engine(t, url, nil)
	hold := make(chan struct{})
	s := newSink(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	})
	id := publish(t, a, to(s.URL))
	eventually(t, "an attempt runs", func() bool { return len(s.requests()) == 1 })
	b := engine(t, url, nil)
	settled := make(chan error, 1)
	go func() { settled <- b.Settle(context.WithoutCancel(t.Context())) }()
	select {
	case err := <-settled:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(200 * time.Millisecond): // as long as it likes to
	}
	close(hold)
	if err := <-settled; err != nil {
		t.Error(err)
	}
	if got := states(t, b, id); got != "CREATED ACTIVE DELIVERED" {
		t.Errorf("log: %s", got)
	}
}

// TestOrphan: a task whose message somebody has deleted is removed, and the next one of its queue has its place.
func TestOrphan(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	m := to(s.URL)
	m.Queue, m.Delay = "q", time.Hour
	orphan := publish(t, e, m)
	next := publish(t, e, m)
	if _, err := e.pool.Exec(t.Context(), `delete from delivery_message where id = $1`, orphan); err != nil {
		t.Fatal(err)
	}
	advance(t, e, time.Hour)
	if got := s.requests(); len(got) != 1 || got[0].header.Get("Upstash-Message-Id") != MessageID(next) {
		t.Errorf("%+v", got)
	}
	if n := count(t, e, `select count(*) from delivery_task`); n != 0 {
		t.Errorf("%d tasks are left", n)
	}
}
