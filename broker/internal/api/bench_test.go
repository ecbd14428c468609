package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// sizes are the messages of one benchmarked call.
var sizes = []int{1, 10, 100, 1000}

// serial makes transaction ids that no run has pushed before.
var serial atomic.Int64

// pushBody is a push of n messages to one partition, as a producer sends it.
func pushBody(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":"orders.created","partition":"customer-42","transactionId":"order-%d","payload":{"orderId":8891,"total":4200}}`, serial.Add(1))
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// exchangeOnce sends a request through the whole edge, without a network.
func (b *broker) exchangeOnce(method, path string, body []byte) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(b.t.Context(), method, path, bytes.NewReader(body))
	w := httptest.NewRecorder()
	b.edge.ServeHTTP(w, req)
	return w
}

// BenchmarkPushHandler is a push from its head to its answer, the engine and PostgreSQL included.
func BenchmarkPushHandler(b *testing.B) {
	for _, n := range sizes {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			br := start(b, nil)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				body := pushBody(n)
				b.StartTimer()
				if w := br.exchangeOnce("POST", "/api/v1/push", body); w.Code != http.StatusCreated {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

// BenchmarkPopHandler is an autoAck pop of what was pushed before, the engine and PostgreSQL included.
func BenchmarkPopHandler(b *testing.B) {
	for _, n := range sizes {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			br := start(b, nil)
			path := "/api/v1/pop/queue/orders.created?autoAck=true&batch=" + strconv.Itoa(n)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				if w := br.exchangeOnce("POST", "/api/v1/push", pushBody(n)); w.Code != http.StatusCreated {
					b.Fatal(w.Code, w.Body)
				}
				b.StartTimer()
				if w := br.exchangeOnce("GET", path, nil); w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

// BenchmarkAckHandler acknowledges n messages of one lease, the engine and PostgreSQL included.
func BenchmarkAckHandler(b *testing.B) {
	for _, n := range sizes {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			br := start(b, nil)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				br.exchangeOnce("POST", "/api/v1/push", pushBody(n))
				body := ackBody(b, br.exchangeOnce("GET", "/api/v1/pop/queue/orders.created?batch="+strconv.Itoa(n), nil))
				b.StartTimer()
				if w := br.exchangeOnce("POST", "/api/v1/ack/batch", body); w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"success":false`) {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

// ackBody completes every message of a pop.
func ackBody(b *testing.B, w *httptest.ResponseRecorder) []byte {
	b.Helper()
	var got popped
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		b.Fatal(err)
	}
	var acks []string
	for _, m := range got.Messages {
		acks = append(acks, fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"completed","leaseId":%q}`, m.TransactionID, m.PartitionID, m.LeaseID))
	}
	return []byte(`{"acknowledgments":[` + strings.Join(acks, ",") + `]}`)
}

// edgeCalls are calls of n messages through the edge alone, by operation: reading, checking and logging a
// request, making, checking and writing its answer, with an engine in between that has its results ready.
func edgeCalls(t testing.TB, br *broker, n int) map[string]func() {
	t.Helper()
	// The same each time: the JSON decoder keeps strings by a hash, and two that share its place are allocated each time.
	id, lease := uuid.MustParse("0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84"), "9b2e4f60-1c3d-4a5b-8e7f-0a1b2c3d4e5f"
	pushed := make([]queue.PushResult, n)
	acked := make([]queue.AckResult, n)
	messages := make([]queue.Message, n)
	acks := make([]string, n)
	for i := range n {
		txID := "order-" + strconv.Itoa(i)
		pushed[i] = queue.PushResult{MessageID: id, TransactionID: txID, Status: queue.Queued}
		messages[i] = queue.Message{ID: id, TransactionID: txID, CreatedAt: time.Now(), DeliveryAttempt: 1, Payload: []byte(`{"orderId":8891,"total":4200}`)}
		acks[i] = fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"status":"completed","leaseId":%q}`, txID, id, lease)
	}
	partition := queue.PoppedPartition{Queue: "orders.created", Name: "customer-42", ID: id, Messages: messages}
	pop := queue.PopResult{LeaseID: lease, Group: "billing", Partitions: []queue.PoppedPartition{partition}}
	calls := make(map[string]func())
	for _, op := range []struct {
		id, path string
		body     []byte
		handle   func(*edge, *call) (answer, error)
	}{
		{"push", "/api/v1/push", pushBody(n), func(e *edge, c *call) (answer, error) {
			items, err := e.pushItems(c)
			return jsonAnswer(http.StatusCreated, appendPushResults(items, pushed)), err
		}},
		{"popQueue", "/api/v1/pop/queue/orders.created?batch=100&consumerGroup=billing&wait=true", nil, func(e *edge, c *call) (answer, error) {
			req, err := e.popQueueRequest(c)
			return jsonAnswer(http.StatusOK, appendPop(req.Queue, pop)), err
		}},
		{"ackBatch", "/api/v1/ack/batch", []byte(`{"acknowledgments":[` + strings.Join(acks, ",") + `]}`), func(_ *edge, c *call) (answer, error) {
			batch, err := readAckBatch(c)
			return jsonAnswer(http.StatusOK, appendAckResults(batch.acks, acked)), err
		}},
	} {
		table := slices.Clone(routes)
		at := slices.IndexFunc(table, func(rt route) bool { return rt.id == op.id })
		table[at].handle = op.handle
		ops, err := match(table, spec(t))
		if err != nil {
			t.Fatal(err)
		}
		e := br.edgeCopy()
		e.routed = e.router(table, ops)
		reader := bytes.NewReader(op.body)
		req := httptest.NewRequestWithContext(t.Context(), table[at].method, op.path, reader)
		w := &discard{header: http.Header{}}
		calls[op.id] = func() {
			reader.Reset(op.body)
			clear(w.header)
			e.ServeHTTP(w, req)
			if w.status > http.StatusCreated {
				t.Fatalf("%s: %d", op.id, w.status)
			}
		}
	}
	return calls
}

// BenchmarkEdge is what the edge itself costs.
func BenchmarkEdge(b *testing.B) {
	br := start(b, nil)
	for _, n := range sizes {
		calls := edgeCalls(b, br, n)
		for _, id := range slices.Sorted(maps.Keys(calls)) {
			b.Run(fmt.Sprintf("%s/%d", id, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					calls[id]()
				}
			})
		}
	}
}

// TestAllocations bounds what a call costs the garbage collector: some dozens for the request, nothing for
// each pushed or popped message, and for an ack what it keeps of its strings.
func TestAllocations(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates too")
	}
	br := start(t, nil)
	few, many := edgeCalls(t, br, 10), edgeCalls(t, br, 1010)
	for id, perMessage := range map[string]float64{"push": 0.02, "popQueue": 0.02, "ackBatch": 2.1} {
		base := allocations(few[id])
		each := (allocations(many[id]) - base) / 1000
		t.Logf("%s: %v for 10 messages, %v for each more", id, base, each)
		if base > 80 || each > perMessage {
			t.Errorf("%s: %v allocations for 10 messages, %v for each more", id, base, each)
		}
	}
}

// allocations of a call. What the broker does meanwhile in the background is counted too, and only ever adds to it.
func allocations(call func()) float64 {
	least := testing.AllocsPerRun(20, call)
	for range 4 {
		least = min(least, testing.AllocsPerRun(20, call))
	}
	return least
}

// discard takes an answer and forgets its body. It has deadlines, as a connection has.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

func (d *discard) SetReadDeadline(time.Time) error  { return nil }
func (d *discard) SetWriteDeadline(time.Time) error { return nil }
