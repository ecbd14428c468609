package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// keptQueues keeps under which transaction id each payload came.
type keptQueues struct {
	mu  sync.Mutex
	ids map[string]string
}

func (k *keptQueues) Deliver(_ context.Context, _, _, transactionID string, payload json.RawMessage) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ids[string(payload)] = transactionID
	return nil
}

// TestQueueTransactionID: a message goes into an ordered queue under its deduplication id, and without one under its own id.
func TestQueueTransactionID(t *testing.T) {
	t.Parallel()
	kept := &keptQueues{ids: map[string]string{}}
	e := engine(t, database(t), func(c *Config) { c.Queues = kept })
	now, later := Message{Targets: []Target{QueueTarget("q", "p")}, Body: []byte("1")}, Message{Targets: []Target{QueueTarget("q", "p")}, Body: []byte("2"), Delay: time.Hour}
	plain := Message{Targets: []Target{QueueTarget("q", "p")}, Body: []byte("3")}
	publishAs(t, e, "order-1", now)
	publishAs(t, e, "order-2", later)
	id := publish(t, e, plain)
	advance(t, e, time.Hour)
	kept.mu.Lock()
	defer kept.mu.Unlock()
	for payload, want := range map[string]string{"1": "order-1", "2": "order-2", "3": MessageID(id)} {
		if kept.ids[payload] != want {
			t.Errorf("%s came under %q, not %q", payload, kept.ids[payload], want)
		}
	}
}

// TestErrorsWithoutOwnAddresses: why there was no answer is said without addresses of this machine and of its resolver.
func TestErrorsWithoutOwnAddresses(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	var own atomic.Value
	s := newSink(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		own.Store(r.RemoteAddr)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.(*net.TCPConn).SetLinger(0) // so that it is reset
		_ = conn.Close()
	})
	reset := publish(t, e, to(s.URL))
	unknown := publish(t, e, to("http://nobody.invalid/"))
	settle(t, e)
	text := deadError(t, e, reset)
	if !strings.Contains(text, "reset") || strings.Contains(text, own.Load().(string)) {
		t.Errorf("of a reset connection from %v: %q", own.Load(), text)
	}
	if text = deadError(t, e, unknown); !strings.HasPrefix(text, "lookup nobody.invalid: ") {
		t.Errorf("of an unknown host: %q", text)
	}
}

// awayQueues take nothing while they are away. From the first try on that is, if cut says so, because the database is.
type awayQueues struct {
	keptQueues
	away, cut atomic.Bool
	tries     atomic.Int32
	pool      atomic.Pointer[pgxpool.Pool]
}

func (a *awayQueues) Deliver(ctx context.Context, queue, partition, transactionID string, payload json.RawMessage) error {
	if a.tries.Add(1) == 1 {
		a.cut.Store(true)
		a.pool.Load().Reset()
	}
	if a.away.Load() || a.cut.Load() {
		return ErrUnavailable
	}
	return a.keptQueues.Deliver(ctx, queue, partition, transactionID, payload)
}

// TestQueueWhileDatabaseIsAway: a database that is away costs a message to a queue no attempt; a queue that takes nothing although
// the database is there does.
func TestQueueWhileDatabaseIsAway(t *testing.T) {
	t.Parallel()
	queues := &awayQueues{keptQueues: keptQueues{ids: map[string]string{}}}
	pool, err := pg.Open(t.Context(), pg.Config{URL: database(t), PoolSize: 10, WrapDial: func(next pg.Dialer) pg.Dialer {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if queues.cut.Load() {
				return nil, errors.New("cut off")
			}
			return next(ctx, network, address)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	queues.pool.Store(pool)
	e, err := Open(t.Context(), pool, Config{Client: egress.New(egress.Config{}), Queues: queues, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), StopGrace: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	id := publish(t, e, Message{Targets: []Target{QueueTarget("q", "")}, Body: []byte("1")})
	eventually(t, "several tries", func() bool { return queues.tries.Load() > 2 })
	queues.cut.Store(false)
	settle(t, e)
	if got := states(t, e, id); got != "CREATED ACTIVE DELIVERED" || queues.ids["1"] != MessageID(id) {
		t.Errorf("%s, %v", got, queues.ids)
	}
	queues.away.Store(true)
	id = publish(t, e, Message{Targets: []Target{QueueTarget("q", "")}, Body: []byte("2")})
	settle(t, e)
	if got := states(t, e, id); got != "CREATED ACTIVE ERROR FAILED" {
		t.Errorf("of a queue that takes nothing: %s", got)
	}
}
