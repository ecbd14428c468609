package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var loadSpec = sync.OnceValues(openapi.Load)

func spec(t testing.TB) *openapi.Spec {
	t.Helper()
	s, err := loadSpec()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// broker is the edge over a real engine on a database of its own, behind a real HTTP server.
type broker struct {
	t        testing.TB
	url      string
	client   *http.Client
	edge     *edge
	engine   *queue.Engine
	delivery *delivery.Engine
	log      *logBuffer
	database string      // its URL
	cut      atomic.Bool // refuses connections to the database and breaks those that exist
}

// start starts a broker; change, if not nil, changes its configuration.
func start(t testing.TB, change func(*Config)) *broker {
	t.Helper()
	return startOver(t, nil, change)
}

// startOver is start that changes the configuration of deliveries too.
func startOver(t testing.TB, changeDelivery func(*delivery.Config), change func(*Config)) *broker {
	t.Helper()
	b := &broker{t: t, log: &logBuffer{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	b.database = pgtest.URL(t)
	poolConfig, err := pgxpool.ParseConfig(b.database)
	if err != nil {
		t.Fatal(err)
	}
	poolConfig.ConnConfig.DialFunc = b.dial
	pool, err := pgxpool.NewWithConfig(t.Context(), poolConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	registry := prometheus.NewRegistry()
	logger := slog.New(slog.NewJSONHandler(b.log, nil))
	b.engine, err = queue.Open(t.Context(), pool, queue.Config{Testing: true, Logger: logger, Metrics: registry, DedupCacheBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.engine.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.engine.Stop)
	deliveryConfig := delivery.Config{
		Client: egress.New(egress.Config{Policy: egress.Policy{Loopback: true}}), Logger: logger, StopGrace: time.Second,
	}
	if changeDelivery != nil {
		changeDelivery(&deliveryConfig)
	}
	b.delivery, err = delivery.Open(t.Context(), pool, deliveryConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.delivery.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.delivery.Stop)
	cfg := Config{Engine: b.engine, Delivery: b.delivery, PublishRetries: 3, Spec: spec(t), Registry: registry, Logger: logger, Version: "1.2.3", Testing: true}
	if change != nil {
		change(&cfg)
	}
	handler, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.edge = handler.(*edge)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(b.client.CloseIdleConnections)
	b.url = server.URL
	return b
}

// dial connects to the database unless the broker is cut off from it.
func (b *broker) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if b.cut.Load() {
		return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("cut off")}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &cuttable{Conn: conn, b: b}, nil
}

// cuttable is a connection that breaks when the broker is cut off.
type cuttable struct {
	net.Conn
	b *broker
}

func (c *cuttable) Write(p []byte) (int, error) {
	if c.b.cut.Load() {
		_ = c.Close()
	}
	return c.Conn.Write(p)
}

// logBuffer is a log that tests read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// reply is a whole answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (b *broker) do(method, path, body string) reply {
	b.t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	return b.send(b.request(method, path, r))
}

func (b *broker) request(method, path string, body io.Reader) *http.Request {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.url+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	return req
}

func (b *broker) send(req *http.Request) reply {
	b.t.Helper()
	res, err := b.client.Do(req)
	if err != nil {
		b.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return reply{res.StatusCode, res.Header, body}
}

// ask sends and decodes a JSON answer of the wanted status.
func (b *broker) ask(status int, method, path, body string, into any) reply {
	b.t.Helper()
	r := b.do(method, path, body)
	if r.status != status {
		b.t.Fatalf("%s %s: %d %s", method, path, r.status, r.body)
	}
	if into != nil {
		if err := json.Unmarshal(r.body, into); err != nil {
			b.t.Fatalf("%s %s: %v in %s", method, path, err, r.body)
		}
	}
	return r
}

// push pushes one message and wants it queued.
func (b *broker) push(queue, partition, transactionID, payload string) {
	b.t.Helper()
	item := fmt.Sprintf(`{"items":[{"queue":%s,"partition":%s,"transactionId":%s,"payload":%s}]}`,
		quote(queue), quote(partition), quote(transactionID), payload)
	var results []struct{ Status string }
	b.ask(201, "POST", "/api/v1/push", item, &results)
	if len(results) != 1 || results[0].Status != "queued" {
		b.t.Fatalf("push: %+v", results)
	}
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// popped is what tests read of a pop.
type popped struct {
	Success           bool
	Queue             string
	Partition         string
	PartitionID       string `json:"partitionId"`
	LeaseID           string `json:"leaseId"`
	ConsumerGroup     string `json:"consumerGroup"`
	PartitionsClaimed int    `json:"partitionsClaimed"`
	Messages          []struct {
		ID              string
		TransactionID   string `json:"transactionId"`
		PartitionID     string `json:"partitionId"`
		Partition       string
		Queue           string
		LeaseID         string `json:"leaseId"`
		DeliveryAttempt int    `json:"deliveryAttempt"`
		CreatedAt       string `json:"createdAt"`
		Data            json.RawMessage
	}
}

// errorText is the error of an answer, which has to be one.
func (r reply) errorText(t testing.TB) string {
	t.Helper()
	var e struct{ Error string }
	if err := json.Unmarshal(r.body, &e); err != nil || e.Error == "" {
		t.Errorf("%d %q is no error: %v", r.status, r.body, err)
	}
	return e.Error
}

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// admin is a connection to the broker's database.
func (b *broker) admin(t testing.TB) *pgx.Conn {
	t.Helper()
	return pgtest.Admin(t, b.database)
}
