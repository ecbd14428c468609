package delivery

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
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
	var own string
	s := newSink(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		own = r.RemoteAddr
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
	if !strings.Contains(text, "reset") || strings.Contains(text, own) {
		t.Errorf("of a reset connection from %s: %q", own, text)
	}
	if text = deadError(t, e, unknown); !strings.HasPrefix(text, "lookup nobody.invalid: ") {
		t.Errorf("of an unknown host: %q", text)
	}
}
