package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/auth"
	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// TestRoutesMatchTheDescription fails the start for every kind of disagreement.
func TestRoutesMatchTheDescription(t *testing.T) {
	t.Parallel()
	if _, err := match(routes, spec(t)); err != nil {
		t.Fatal(err)
	}
	for want, table := range map[string][]route{
		"operation status has no route":                                          without("status"),
		"route extra has no operation":                                           append(without(""), route{id: "extra"}),
		"route push is PUT /api/v1/push, but its operation is POST /api/v1/push": append([]route{{id: "push", method: "PUT", path: "/api/v1/push"}}, without("push")...),
	} {
		if _, err := match(table, spec(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func without(id string) []route {
	var table []route
	for _, rt := range routes {
		if rt.id != id {
			table = append(table, rt)
		}
	}
	return table
}

// TestUnmatchedRequests is section 0 of the queue contract.
func TestUnmatchedRequests(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *Config) { c.Testing = false })
	for _, tc := range []struct {
		method, path string
		page         bool
	}{
		{"GET", "/api/v1/nothing", false},
		{"HEAD", "/api/v1/nothing", false},
		{"GET", "/api/", false},
		{"GET", "/api/v1/push", false},
		{"POST", "/api/v1/pop", false},
		{"HEAD", "/api/v1/pop", false}, // a HEAD would take messages that nobody sees
		{"HEAD", "/api/v1/pop/queue/q?autoAck=true", false},
		{"PUT", "/api/v1/push", false},
		{"GET", "/api/v1/pop/queue/", false},
		{"POST", "/api/v1/push/", false},
		{"DELETE", "/api/v1/queues/q/clear", false},
		{"GET", "/api/v1/resources/partitions", false},
		{"POST", "/", false},
		{"OPTIONS", "/anywhere", false},
		{"GET", "/testing/clock", false},
		{"POST", "/testing/clock", false},
		{"GET", "/", true},
		{"GET", "/queues/orders", true},
		{"HEAD", "/queues/orders", true},
		{"GET", "/assets/../api", true},
	} {
		r := b.do(tc.method, tc.path, "")
		switch {
		case tc.page:
			if r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), "text/html") || r.header.Get("Content-Security-Policy") == "" {
				t.Errorf("%s %s: %d %v", tc.method, tc.path, r.status, r.header)
			}
		case r.status != 404 || r.header.Get("Content-Type") != "application/json":
			t.Errorf("%s %s: %d %v", tc.method, tc.path, r.status, r.header)
		case tc.method != "HEAD" && string(r.body) != `{"error":"Not Found","code":"no_such_route"}`:
			t.Errorf("%s %s: %s", tc.method, tc.path, r.body)
		}
	}
}

func TestHeadIsGetWithoutBody(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, path := range []string{"/", "/health", "/status", "/openapi.json", "/api/v1/resources/queues"} {
		get, head := b.do("GET", path, ""), b.do("HEAD", path, "")
		if get.status != 200 || head.status != 200 || len(get.body) == 0 || len(head.body) != 0 {
			t.Errorf("%s: %d, %d", path, get.status, head.status)
		}
		if got, want := head.header.Get("Content-Length"), fmt.Sprint(len(get.body)); got != want {
			t.Errorf("%s: Content-Length %s, want %s", path, got, want)
		}
	}
}

func TestSystemRoutes(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	var health map[string]any
	b.ask(200, "GET", "/health", "", &health)
	for key, want := range map[string]string{"status": "healthy", "database": "connected", "engine": "posthorn", "version": "1.2.3"} {
		if health[key] != want {
			t.Errorf("health: %s is %v", key, health[key])
		}
	}
	for _, key := range []string{"fsync", "synchronous_commit", "synchronous_standby_names"} {
		if _, ok := health[key]; !ok {
			t.Errorf("health: no %s in %v", key, health)
		}
	}
	if r := b.ask(200, "GET", "/status", "", nil); string(r.body) != `{"status":"ok","engine":"posthorn"}` {
		t.Errorf("status: %s", r.body)
	}
	if r := b.ask(200, "GET", "/", "", nil); !strings.Contains(string(r.body), "1.2.3") || !strings.Contains(string(r.body), "/openapi.json") {
		t.Errorf("page: %s", r.body)
	}
	b.push("metrics", "", "", "1")
	r := b.ask(200, "GET", "/metrics/prometheus", "", nil)
	for _, want := range []string{
		`posthorn_http_request_duration_seconds_count{operation="push",status="201"} 1`,
		"posthorn_http_request_bytes_in_flight 0",
		"posthorn_http_requests_in_flight 1",
	} {
		if !strings.Contains(string(r.body), want) {
			t.Errorf("metrics: no %s in\n%s", want, r.body)
		}
	}
	r = b.ask(200, "GET", "/openapi.json", "", nil)
	if !bytes.Equal(r.body, spec(t).JSON()) || r.header.Get("ETag") != `"`+spec(t).SHA256()+`"` {
		t.Errorf("openapi: %d bytes, ETag %s", len(r.body), r.header.Get("ETag"))
	}
}

func TestRequestIDAndHeaders(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, path := range []string{"/status", "/api/v1/nothing"} {
		req := b.request("GET", path, nil)
		req.Header.Set("X-Request-Id", "mine-1")
		r := b.send(req)
		if r.header.Get("X-Request-Id") != "mine-1" || r.header.Get("X-Content-Type-Options") != "nosniff" || r.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, r.header)
		}
	}
	req := b.request("GET", "/status", nil)
	req.Header.Set("X-Request-Id", "not sane")
	first, second := b.send(req).header.Get("X-Request-Id"), b.do("GET", "/status", "").header.Get("X-Request-Id")
	if first == "" || first == "not sane" || second == "" || first == second {
		t.Errorf("minted %q, %q", first, second)
	}
}

// TestAccessLog has the template of the path and never the names in it.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.do("GET", "/api/v1/resources/queues/canary-queue", "")
	eventually(t, "access log", func() bool { return strings.Contains(b.log.String(), `"operation":"getQueue"`) })
	log := b.log.String()
	if !strings.Contains(log, `"route":"/api/v1/resources/queues/{queue}","status":404`) || strings.Contains(log, "canary-queue") {
		t.Error(log)
	}
}

// TestBadInput is answered 400 naming the field, in valid JSON.
func TestBadInput(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	push := func(item string) string { return `{"items":[` + item + `]}` }
	long := strings.Repeat("x", 513)
	for _, tc := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/push", "", "body"},
		{"POST", "/api/v1/push", "not json", "bad body: "},
		{"POST", "/api/v1/push", "[]", "bad body: body must be an object"},
		{"POST", "/api/v1/push", "null", "bad body: "},
		{"POST", "/api/v1/push", "{}", "bad body: items is missing"},
		{"POST", "/api/v1/push", `{"Items":[]}`, "bad body: items is missing"},
		{"POST", "/api/v1/push", `{"items":null}`, "bad body: items must be an array"},
		{"POST", "/api/v1/push", `{"items":{}}`, "bad body: items must be an array"},
		{"POST", "/api/v1/push", `{"items":[]}x`, "bad body: "},
		{"POST", "/api/v1/push", `{"items":[],}`, "bad body: "},
		{"POST", "/api/v1/push", push(`1`), "bad body: items[0] must be an object"},
		{"POST", "/api/v1/push", push(`{"payload":1}`), "bad body: items[0].queue is missing"},
		{"POST", "/api/v1/push", push(`{"queue":"q"}`), "bad body: items[0].payload is missing"},
		{"POST", "/api/v1/push", push(`{"queue":"q","data":1}`), "bad body: items[0].payload is missing"},
		{"POST", "/api/v1/push", push(`{"queue":"q","payload":1},{"queue":"q","payload":1},{"queue":7,"payload":1}`), "bad body: items[2].queue must be a string"},
		{"POST", "/api/v1/push", push(`{"queue":"","payload":1}`), "bad body: items[0].queue "},
		{"POST", "/api/v1/push", push(`{"queue":"` + long + `","payload":1}`), "bad body: items[0].queue "},
		{"POST", "/api/v1/push", push(`{"queue":"a\u0000b","payload":1}`), "bad body: items[0].queue "},
		{"POST", "/api/v1/push", push(`{"queue":"a\ud800b","payload":1}`), "bad body: items[0].queue "},
		{"POST", "/api/v1/push", push(`{"queue":"q","partition":"a\nb","payload":1}`), "bad body: items[0].partition "},
		{"POST", "/api/v1/push", push(`{"queue":"q","partition":5,"payload":1}`), "bad body: items[0].partition must be a string"},
		{"POST", "/api/v1/push", push(`{"queue":"q","transactionId":"` + long + long + `","payload":1}`), "bad body: items[0].transactionId "},
		{"POST", "/api/v1/push", push("{\"queue\":\"q\",\"payload\":\"\xff\"}"), "bad body: "},
		{"POST", "/api/v1/push", push("{\"queue\":\"\xc3\x28\",\"payload\":1}"), "bad body: "},
		{"POST", "/api/v1/push", push(`{"queue":"q","payload":01}`), "bad body: "},
		{"POST", "/api/v1/push", push(`{"queue":"q","payload":NaN}`), "bad body: "},
		{"POST", "/api/v1/push", `{"items":[` + strings.Repeat(`{"queue":"q","payload":1},`, 100_000) + `{"queue":"q","payload":1}]}`, "bad body: items "},
		{"POST", "/api/v1/ack", `{"transactionId":"t"}`, "bad body: partitionId is missing"},
		{"POST", "/api/v1/ack", `{"transactionId":7,"partitionId":"p"}`, "bad body: transactionId must be a string"},
		{"POST", "/api/v1/ack/batch", `{}`, "bad body: acknowledgments is missing"},
		{"POST", "/api/v1/ack/batch", `{"acknowledgments":[{"transactionId":"t","partitionId":"p"},{"transactionId":"t"}]}`, "bad body: acknowledgments[1].partitionId is missing"},
		{"POST", "/api/v1/configure", `{}`, "bad body: queue is missing"},
		{"POST", "/api/v1/configure", `{"queue":""}`, "bad body: queue "},
		{"POST", "/api/v1/configure", `{"queue":"q","leaseTime":-1}`, "bad body: leaseTime must be at least "},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"leaseTime":-1}}`, "bad body: options.leaseTime must be at least "},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"retryLimit":1.5}}`, "bad body: options.retryLimit must be an integer"},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"retryLimit":"3"}}`, "bad body: options.retryLimit must be an integer"},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"dedupWindowSeconds":99999999999}}`, "bad body: options.dedupWindowSeconds must be at most "},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"encryptionEnabled":1}}`, "bad body: options.encryptionEnabled must be "},
		{"POST", "/api/v1/configure", `{"queue":"q","namespace":"a\u0000b"}`, "bad body: namespace "},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"task":"` + long + `"}}`, "bad body: options.task must be at most 512 bytes"},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{"namespace":"a\u0085b"}}`, "bad body: options.namespace must not contain control characters"},
		{"POST", "/api/v1/configure", `{"queue":"q","options":{},"leaseTime":-1}`, "bad body: leaseTime must be at least 0"},
		{"POST", "/api/v1/configure", `{"queue":"q","maxSize":2147483648}`, "bad body: maxSize must be at most 2147483647"},
		{"POST", "/testing/clock", `{"advance":"-5s"}`, "bad body: advance "},
		{"POST", "/testing/clock", `{"advance":"0s"}`, "bad body: advance must be greater than 0"},
		{"POST", "/testing/clock", `{"advance":"999999h"}`, "bad body: advance must be at most "},
		{"GET", "/api/v1/pop/queue/q?batch=abc", "", "bad query: batch must be an integer"},
		{"GET", "/api/v1/pop/queue/q?batch=0", "", "bad query: batch must be at least 1"},
		{"GET", "/api/v1/pop/queue/q?batch=1.5", "", "bad query: batch must be an integer"},
		{"GET", "/api/v1/pop/queue/q?wait=perhaps", "", "bad query: wait must be "},
		{"GET", "/api/v1/pop/queue/q?timeout=-1", "", "bad query: timeout must be at least 0"},
		{"GET", "/api/v1/pop/queue/q?subscriptionMode=old", "", "bad query: subscriptionMode must be one of "},
		{"GET", "/api/v1/pop/queue/q?consumerGroup=%00", "", "bad query: consumerGroup "},
		{"GET", "/api/v1/pop/queue/q?consumerGroup=%ff", "", "bad query: consumerGroup "},
		{"GET", "/api/v1/pop/queue/q?consumerGroup=" + long, "", "bad query: consumerGroup "},
		{"GET", "/api/v1/pop/queue/q?%zz", "", "bad query: "},
		{"GET", "/api/v1/pop/queue/%00", "", "bad path: queue "},
		{"GET", "/api/v1/pop/queue/%ff", "", "bad path: queue "},
		{"GET", "/api/v1/pop/queue/" + long, "", "bad path: queue "},
		{"GET", "/api/v1/pop/queue/q/partition/%0a", "", "bad path: partition "},
		{"DELETE", "/api/v1/resources/queues/%7f", "", "bad path: queue "},
		{"GET", "/api/v1/pop?namespace=&task=", "", "namespace or task is required"},
	} {
		r := b.do(tc.method, tc.path, tc.body)
		shown := tc.body[:min(len(tc.body), 100)]
		if text := r.errorText(t); r.status != 400 || !strings.Contains(text, tc.want) {
			t.Errorf("%s %.80s %s: %d %q, want %q", tc.method, tc.path, shown, r.status, text, tc.want)
		}
	}
	if r := b.do("GET", "/api/v1/pop", ""); r.status != 400 || string(r.body) != `{"success":false,"error":"namespace or task is required","messages":[]}` {
		t.Errorf("discovery: %d %s", r.status, r.body)
	}
	eventually(t, "all body bytes given back", func() bool { return b.edge.bodies.used.Load() == 0 })
	if log := b.log.String(); strings.Contains(log, "violates the API description") {
		t.Error(log)
	}
}

// TestContentTypeIsIgnored parses bytes as JSON whatever they are called.
func TestContentTypeIsIgnored(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "no type at all"} {
		req := b.request("POST", "/api/v1/push", strings.NewReader(`{"items":[]}`))
		if kind != "" {
			req.Header.Set("Content-Type", kind)
		}
		if r := b.send(req); r.status != 201 || string(r.body) != "[]" {
			t.Errorf("%q: %d %s", kind, r.status, r.body)
		}
	}
}

// TestNesting refuses what is too deep before it costs anything.
func TestNesting(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, unit := range []string{"[", `{"a":`} {
		body := `{"items":[{"queue":"q","payload":` + strings.Repeat(unit, 1_000_000)
		began := time.Now()
		r := b.do("POST", "/api/v1/push", body)
		if took := time.Since(began); r.status != 400 || took > 2*time.Second {
			t.Errorf("%d after %v: %.100s", r.status, took, r.body)
		}
		r.errorText(t)
	}
	deep := strings.Repeat("[", 9_990) + strings.Repeat("]", 9_990)
	if r := b.do("POST", "/api/v1/push", `{"items":[{"queue":"deep","payload":`+deep+`}]}`); r.status != 201 {
		t.Errorf("%d %.100s", r.status, r.body)
	}
	for _, path := range []string{"/api/v1/ack", "/api/v1/ack/batch", "/api/v1/configure"} {
		if r := b.do("POST", path, strings.Repeat("[", 1_000_000)); r.status != 400 {
			t.Errorf("%s: %d", path, r.status)
		}
	}
	if r := b.do("POST", "/api/v1/lease/x/extend", strings.Repeat("[", 1_000_000)); r.status != 200 {
		t.Errorf("extend: %d", r.status)
	}
}

// padded is a push of nothing, n bytes long, made as it is read.
func padded(n int64) io.Reader {
	const head, tail = `{"items":[`, `]}`
	return io.MultiReader(strings.NewReader(head), io.LimitReader(spaces{}, n-int64(len(head)+len(tail))), strings.NewReader(tail))
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestBodyLimit accepts 64 MiB and refuses one byte more, sized and chunked.
func TestBodyLimit(t *testing.T) {
	b := start(t, nil)
	const limit = 64 << 20
	for _, tc := range []struct {
		size    int64
		chunked bool
		status  int
	}{{limit, false, 201}, {limit, true, 201}, {limit + 1, false, 413}, {limit + 1, true, 413}} {
		req := b.request("POST", "/api/v1/push", io.NopCloser(padded(tc.size)))
		if !tc.chunked {
			req.ContentLength = tc.size
		}
		r := b.send(req)
		if r.status != tc.status {
			t.Errorf("%+v: %d %s", tc, r.status, r.body)
		}
		if r.status == 413 && r.errorText(t) != "body exceeds 67108864 bytes" {
			t.Errorf("%+v: %s", tc, r.body)
		}
	}
	eventually(t, "all body bytes given back", func() bool { return b.edge.bodies.used.Load() == 0 })
}

// TestDeclaredLengthIsRefusedUnread answers before a byte of the body was sent, with and without
// Expect: 100-continue.
func TestDeclaredLengthIsRefusedUnread(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, expect := range []string{"", "Expect: 100-continue\r\n"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = fmt.Fprintf(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n%sContent-Length: 67108865\r\n\r\n", expect)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 413 || !res.Close {
			t.Errorf("%d, close %v", res.StatusCode, res.Close)
		}
		_ = res.Body.Close()
		_ = conn.Close()
	}
}

// TestWriteBeforeRead sends whole bodies that are refused before it reads the answers, as simple clients
// do. They are larger than what a connection buffers.
func TestWriteBeforeRead(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("moves 64 MiB several times")
	}
	const size = 64<<20 + 1
	b := start(t, nil)
	busy := start(t, nil)
	busy.edge.bodies.used.Store(DefaultMaxBodyInFlight)
	for name, tc := range map[string]struct {
		broker *broker
		head   string
		status int
	}{
		"too large":          {b, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 67108865", 413},
		"too large, chunked": {b, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked", 413},
		"busy":               {busy, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864", 429},
		"other origin":       {b, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nOrigin: http://y\r\nContent-Length: 67108864", 403},
		"no route":           {b, "POST /api/v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864", 404},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(tc.broker.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		before, sent, after := "", int64(size-1), ""
		switch name {
		case "too large":
			sent = size
		case "too large, chunked":
			before, sent, after = "4000001\r\n", size, "\r\n0\r\n\r\n"
		}
		out := bufio.NewWriter(conn)
		_, _ = out.WriteString(tc.head + "\r\n\r\n" + before)
		if _, err := io.Copy(out, padded(sent)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_, _ = out.WriteString(after)
		if err := out.Flush(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			_ = conn.Close()
			continue
		}
		if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != tc.status || !res.Close {
			t.Errorf("%s: %d %s, close %v, %v", name, res.StatusCode, text, res.Close, err)
		}
		_ = res.Body.Close()
		_ = conn.Close()
	}
	eventually(t, "all body bytes given back", func() bool { return b.edge.bodies.used.Load() == 0 })
}

// TestLingerEnds cuts off who sends on and on after a refusal, or stays and sends nothing.
func TestLingerEnds(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *Config) { c.MaxBody = 1 << 20 })
	b.edge.stall = 200 * time.Millisecond
	for name, sends := range map[string]io.Reader{"endless": spaces{}, "silent": strings.NewReader("")} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
		done := make(chan error, 1)
		go func() {
			_, err := io.Copy(conn, sends)
			done <- err
		}()
		if name == "endless" {
			if err := <-done; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: sent until %v, want the connection closed", name, err)
			}
		} else if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%s: %v, want the answer and the end of the connection", name, err)
		}
		_ = conn.Close()
	}
}

// TestBadChunks is answered, and what it held is given back, also when the client has left.
func TestBadChunks(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for name, request := range map[string]string{
		"no chunk":  "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
		"cut chunk": "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"it",
		"cut body":  "Content-Length: 100\r\n\r\n{\"items\":[]}",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = fmt.Fprintf(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\n%s", request)
		if name != "no chunk" {
			_ = conn.(*net.TCPConn).CloseWrite() // whoever stops in the middle may get no answer
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			_ = res.Body.Close()
		}
		if name == "no chunk" && err != nil || err == nil && res.StatusCode != 400 {
			t.Errorf("%s: %v, %+v", name, err, res)
		}
		_ = conn.Close()
	}
	eventually(t, "all body bytes given back", func() bool { return b.edge.bodies.used.Load() == 0 })
}

// TestSlowBody is given up, and the time that a body may take ends with it: a long poll on the same
// connection is left alone.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.edge.stall = 100 * time.Millisecond
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	answers := bufio.NewReader(conn)
	for _, tc := range []struct {
		request string
		status  int
	}{
		{"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n{\"items\":[]}", 201},
		{"GET /api/v1/pop/queue/slow?wait=true&timeout=400 HTTP/1.1\r\nHost: x\r\n\r\n", 204},
		{"POST /api/v1/push HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 12\r\n\r\n{\"items\":", 400},
	} {
		_, _ = io.WriteString(conn, tc.request)
		res, err := http.ReadResponse(answers, nil)
		if err == nil && res.StatusCode == http.StatusContinue {
			res, err = http.ReadResponse(answers, nil)
		}
		if err != nil {
			t.Fatalf("%s: %v", tc.request, err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != tc.status {
			t.Fatalf("%s: %d %s", tc.request, res.StatusCode, body)
		}
		if tc.status == 400 && !strings.Contains(string(body), "bad body: did not arrive in time") {
			t.Errorf("%s", body)
		}
	}
	if _, err := answers.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("the connection stays open: %v", err)
	}
	eventually(t, "all body bytes given back", func() bool { return b.edge.bodies.used.Load() == 0 })
}

// TestUnreadBody does not wait for ever for a body that nobody wants, nor lets one hide that its client
// left.
func TestUnreadBody(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.edge.stall = 100 * time.Millisecond
	for _, head := range []string{
		"POST /api/v1/nothing HTTP/1.1",
		"GET /api/v1/pop/queue/q?wait=true&timeout=60000 HTTP/1.1",
		"GET / HTTP/1.1",
		"POST /api/v1/lease/%00/extend HTTP/1.1",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(conn, head+"\r\nHost: x\r\nContent-Length: 5\r\n\r\n")
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%s: %v", head, err)
		}
		_ = conn.Close()
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /api/v1/pop/queue/q?wait=true&timeout=60000 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	eventually(t, "the pop is in flight", func() bool { return inFlight(t, b) == 1 })
	_ = conn.Close()
	eventually(t, "the pop is given up", func() bool { return inFlight(t, b) == 0 })
}

// TestUnexpectedBody ignores what is sent to an operation that takes no body, whatever it is, as long as
// it ends.
func TestUnexpectedBody(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *Config) { c.MaxBody, c.MaxBodyInFlight = 1<<20, 1 })
	for _, path := range []string{"/health", "/status", "/openapi.json", "/", "/elsewhere", "/metrics/prometheus", "/api/v1/resources/queues", "/testing/clock"} {
		for _, body := range []io.Reader{strings.NewReader("{}"), strings.NewReader("\xff["), io.LimitReader(spaces{}, 1<<20), io.NopCloser(strings.NewReader("chunked"))} {
			if r := b.send(b.request("GET", path+"?%zz=;", body)); r.status != 200 {
				t.Errorf("%s: %d %s", path, r.status, r.body)
			}
		}
	}
	if r := b.send(b.request("GET", "/api/v1/pop/queue/q", strings.NewReader("{"))); r.status != 204 {
		t.Errorf("pop: %d %s", r.status, r.body)
	}
	for name, body := range map[string]io.Reader{"sized": bytes.NewReader(make([]byte, 1<<20+1)), "chunked": io.LimitReader(spaces{}, 1<<20+1)} {
		if res, err := b.client.Do(b.request("GET", "/health", body)); err == nil {
			_ = res.Body.Close()
			t.Errorf("%s: answered %d", name, res.StatusCode)
		}
	}
}

// TestCrossSite refuses what a browser sends for another site where it would change something, and
// nobody else.
func TestCrossSite(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "t", "1")
	id := uuid.NewString()
	changing := []struct{ method, path, body string }{
		{"POST", "/api/v1/push", `{"items":[{"queue":"planted","payload":1}]}`},
		{"GET", "/api/v1/pop/queue/q?autoAck=true", ""},
		{"GET", "/api/v1/pop/queue/q/partition/p?autoAck=true", ""},
		{"GET", "/api/v1/pop?namespace=q&autoAck=true", ""},
		{"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"` + id + `"}`},
		{"POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`},
		{"POST", "/api/v1/lease/" + id + "/extend", ""},
		{"POST", "/api/v1/configure", `{"queue":"planted"}`},
		{"DELETE", "/api/v1/resources/queues/q", ""},
		{"POST", "/testing/clock", `{"advance":"1h"}`},
	}
	ask := func(method, path, body string, header ...string) reply {
		req := b.request(method, path, strings.NewReader(body))
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return b.send(req)
	}
	for _, tc := range changing {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"},
			{"Sec-Fetch-Site", "same-site", "Origin", "http://127.0.0.1:3000"},
			{"Origin", "http://evil.example"},
			{"Origin", "null"},
		} {
			r := ask(tc.method, tc.path, tc.body, header...)
			if r.status != 403 || string(r.body) != `{"error":"cross-origin request refused"}` {
				t.Errorf("%s %s %v: %d %s", tc.method, tc.path, header, r.status, r.body)
			}
		}
	}
	if r := b.do("GET", "/api/v1/resources/queues/planted", ""); r.status != 404 {
		t.Errorf("a foreign page made a queue: %s", r.body)
	}
	if r := ask("GET", "/api/v1/resources/queues", "", "Sec-Fetch-Site", "cross-site"); r.status != 200 {
		t.Errorf("a read: %d %s", r.status, r.body)
	}
	for _, header := range [][]string{
		nil,
		{"Sec-Fetch-Site", "same-origin"},
		{"Sec-Fetch-Site", "none"},
		{"Origin", b.url},
		{"Sec-Fetch-Mode", "cors"}, // as fetch of Node.js sends it
	} {
		for _, tc := range changing[:6] {
			if r := ask(tc.method, tc.path, tc.body, header...); r.status > 204 {
				t.Errorf("%s %s %v: %d %s", tc.method, tc.path, header, r.status, r.body)
			}
		}
	}
	if log := b.log.String(); strings.Contains(log, "violates the API description") {
		t.Error(log)
	}
}

// TestLocalOnly refuses who calls this machine by a name of another, where anything is to be had.
func TestLocalOnly(t *testing.T) {
	t.Parallel()
	for _, localOnly := range []bool{true, false} {
		b := start(t, func(c *Config) { c.LocalOnly = localOnly })
		for host, local := range map[string]bool{
			"": true, "localhost": true, "LocalHost:6632": true, "a.localhost:1": true, "127.0.0.1": true, "10.1.2.3:80": true, "[::1]:6632": true, "[::1]": true,
			"laptop:6632": true, "host.docker.internal:6632": true, "broker.test": true, "localhost.": true,
			"evil.example": false, "evil.example:6632": false, "localhost.evil.example": false, "127.0.0.1.evil.example:6632": false, "evil.notlocalhost": false, "evil.example.": false, "1.2.3.4.5": false,
		} {
			for _, path := range []string{"/api/v1/resources/queues", "/api/v1/pop/queue/q"} {
				req := b.request("GET", path, nil)
				req.Host = host
				r := b.send(req)
				if refused := r.status == 403; refused != (localOnly && !local) || refused && r.errorText(t) != "the Host must be a local name or an IP address" {
					t.Errorf("%v %s %q: %d %s", localOnly, path, host, r.status, r.body)
				}
			}
			req := b.request("GET", "/health", nil)
			req.Host = host
			if r := b.send(req); r.status != 200 {
				t.Errorf("health %q: %d %s", host, r.status, r.body)
			}
		}
	}
}

// TestMalformedRequests never reach the edge: net/http answers them, in plain text, as the API
// description says.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for request, want := range map[string]int{
		"GET /api/v1/pop/queue/%zz HTTP/1.1\r\nHost: x\r\n\r\n":                            400,
		"GET /api/v1/pop/queue/%2 HTTP/1.1\r\nHost: x\r\n\r\n":                             400,
		"GET /status HTTP/1.1\r\n\r\n":                                                     400,
		"GET /status HTTP/9.9\r\nHost: x\r\n\r\n":                                          505,
		"GET /status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 2<<20) + "\r\n\r\n": 431,
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		go func() { _, _ = io.WriteString(conn, request) }()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%.60q: %v", request, err)
		}
		if res.StatusCode != want || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") || !res.Close {
			t.Errorf("%.60q: %d %v", request, res.StatusCode, res.Header)
		}
		_ = res.Body.Close()
		_ = conn.Close()
	}
}

// TestBodiesInFlight refuses bodies beyond the sum, and accepts again when others are done.
func TestBodiesInFlight(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *Config) { c.MaxBody, c.MaxBodyInFlight = 1000, 1500 })
	body, write := io.Pipe()
	req := b.request("POST", "/api/v1/push", body)
	req.ContentLength = 1000
	first := make(chan reply)
	go func() { first <- b.send(req) }()
	eventually(t, "the first body holds its bytes", func() bool { return b.edge.bodies.used.Load() == 1000 })
	second := func(chunked bool) reply {
		req := b.request("POST", "/api/v1/push", io.NopCloser(padded(800)))
		if !chunked {
			req.ContentLength = 800
		}
		return b.send(req)
	}
	for _, chunked := range []bool{false, true} {
		r := second(chunked)
		if r.status != 429 || r.header.Get("Retry-After") != "1" {
			t.Errorf("chunked %v: %d %v", chunked, r.status, r.header)
		}
		r.errorText(t)
	}
	if _, err := io.Copy(write, padded(1000)); err != nil {
		t.Fatal(err)
	}
	if r := <-first; r.status != 201 {
		t.Errorf("%d %s", r.status, r.body)
	}
	eventually(t, "the bytes are given back", func() bool { return second(false).status == 201 })
}

// TestAnswersAreChecked never sends what the description does not allow.
func TestAnswersAreChecked(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for name, ans := range map[string]answer{
		"undocumented status": {status: 418, body: []byte(`{"error":"teapot"}`)},
		"wrong body":          jsonAnswer(200, []byte(`{"status":"ok"}`)),
		"wrong type":          {status: 200, contentType: "text/plain", body: []byte(`{"status":"ok","engine":"x"}`)},
		"body at 204":         {status: 204, body: []byte("x")},
		"missing header":      jsonAnswer(503, []byte(`{"error":"x"}`)),
	} {
		table := without("status")
		table = append(table, route{"status", "GET", "/status", func(*edge, *call) (answer, error) { return ans, nil }, 0})
		ops, err := match(table, spec(t))
		if err != nil {
			t.Fatal(err)
		}
		r := b.through(table, ops, "/status")
		if r.status != 500 || r.header.Get("Content-Type") != "application/json" || r.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: %d %v", name, r.status, r.header)
		}
		r.errorText(t)
		if want := fmt.Sprintf(`"request_id":"%s"`, r.header.Get("X-Request-Id")); !strings.Contains(b.log.String(), want) {
			t.Errorf("%s: not logged", name)
		}
	}
}

// through sends one request through a route table of the test's own.
func (b *broker) through(table []route, ops map[string]*openapi.Operation, path string) reply {
	e := *b.edgeCopy()
	e.routed = e.router(table, ops)
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(b.t.Context(), "GET", path, nil))
	return reply{w.Code, w.Header(), w.Body.Bytes()}
}

func (b *broker) edgeCopy() *edge {
	return &edge{cfg: b.edge.cfg, log: b.edge.log, bodies: budget{limit: b.edge.bodies.limit}, stall: b.edge.stall, metrics: b.edge.metrics, page: b.edge.page}
}

func TestPanicIsA500(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	table := append(without("status"), route{"status", "GET", "/status", func(*edge, *call) (answer, error) { panic("canary-panic") }, 0})
	ops, err := match(table, spec(t))
	if err != nil {
		t.Fatal(err)
	}
	r := b.through(table, ops, "/status")
	if r.status != 500 || r.errorText(t) != "internal error" {
		t.Errorf("%d %s", r.status, r.body)
	}
	if log := b.log.String(); !strings.Contains(log, "canary-panic") || !strings.Contains(log, "edge_test.go") {
		t.Errorf("no stack in the log: %s", log)
	}
}

// TestUnknownErrorsAreHidden logs what an error says and shows none of it.
func TestUnknownErrorsAreHidden(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	table := append(without("status"), route{"status", "GET", "/status", func(*edge, *call) (answer, error) { return answer{}, errors.New("canary-secret") }, 0})
	ops, err := match(table, spec(t))
	if err != nil {
		t.Fatal(err)
	}
	r := b.through(table, ops, "/status")
	if r.status != 500 || string(r.body) != `{"error":"internal error"}` {
		t.Errorf("%d %s", r.status, r.body)
	}
	if log := b.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, "canary-secret") {
		t.Errorf("%s", log)
	}
}

// TestUnavailable answers 503 with Retry-After while PostgreSQL cannot be reached.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "t", "1")
	b.cut.Store(true)
	defer b.cut.Store(false)
	for _, tc := range []struct{ method, path, body string }{
		{"GET", "/api/v1/pop/queue/q?consumerGroup=fresh", ""},
		{"POST", "/api/v1/configure", `{"queue":"q"}`},
		{"GET", "/api/v1/resources/queues", ""},
		{"DELETE", "/api/v1/resources/queues/q", ""},
		{"GET", "/api/v1/consumer-groups", ""},
		{"GET", "/api/v1/consumer-groups/lagging", ""},
		{"GET", "/api/v1/consumer-groups/g", ""},
		{"DELETE", "/api/v1/consumer-groups/g", ""},
		{"POST", "/api/v1/consumer-groups/g/subscription", `{"subscriptionTimestamp":"2026-01-01"}`},
		{"POST", "/api/v1/consumer-groups/g/queues/q/seek", `{"toEnd":true}`},
		{"POST", "/api/v1/lease/01890000-0000-7000-8000-000000000000/extend", ""},
	} {
		r := b.do(tc.method, tc.path, tc.body)
		if r.status != 503 || r.header.Get("Retry-After") != "1" || r.errorText(t) != "database unavailable" {
			t.Errorf("%s %s: %d %v %s", tc.method, tc.path, r.status, r.header, r.body)
		}
	}
	r := b.do("GET", "/health", "")
	eventually(t, "the health check is logged", func() bool { return strings.Contains(b.log.String(), `"operation":"health"`) })
	for line := range strings.Lines(b.log.String()) {
		if strings.Contains(line, `"msg":"audit"`) {
			continue
		}
		if strings.Contains(line, `"request_id"`) && (!strings.Contains(line, `"level":"WARN","msg":"request"`) || !strings.Contains(line, `"error":"`)) {
			t.Errorf("not the one line of a failed request: %s", line)
		}
	}
	var health map[string]any
	if err := json.Unmarshal(r.body, &health); err != nil || r.status != 503 || health["status"] != "unhealthy" || health["database"] != "disconnected" {
		t.Errorf("health: %d %s", r.status, r.body)
	}
	if r := b.do("GET", "/status", ""); r.status != 200 {
		t.Errorf("status: %d", r.status)
	}
}

// TestClientLeaves cancels its parked pop, so that what comes next goes to somebody who lives.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	req := b.request("GET", "/api/v1/pop/queue/parked?wait=true&timeout=60000", nil).WithContext(ctx)
	left := make(chan error)
	go func() {
		res, err := b.client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		left <- err
	}()
	eventually(t, "the pop is in flight", func() bool { return inFlight(t, b) == 1 })
	leave()
	if err := <-left; err == nil {
		t.Fatal("the pop was answered")
	}
	eventually(t, "the pop is given up", func() bool { return inFlight(t, b) == 0 })
	b.push("parked", "p", "t", `"for the living"`)
	var got popped
	b.ask(200, "GET", "/api/v1/pop/queue/parked?wait=true&timeout=5000", "", &got)
	if len(got.Messages) != 1 || got.Messages[0].DeliveryAttempt != 1 {
		t.Errorf("%+v", got)
	}
}

// inFlight is how many requests are being answered.
func inFlight(t testing.TB, b *broker) float64 {
	t.Helper()
	const name = "posthorn_http_requests_in_flight"
	families, err := b.edge.cfg.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestDrain answers parked pops with a bare 204.
func TestDrain(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	answers := make(chan reply)
	for range 3 {
		go func() { answers <- b.do("GET", "/api/v1/pop/queue/parked?wait=true&timeout=60000", "") }()
	}
	eventually(t, "the pops are in flight", func() bool { return inFlight(t, b) == 3 })
	b.engine.Drain()
	for range 3 {
		r := <-answers
		if _, has := r.header["Content-Length"]; r.status != 204 || has || len(r.body) > 0 || r.header.Get("Content-Type") != "" {
			t.Errorf("%d %v", r.status, r.header)
		}
	}
}

// TestNotModified answers 304 to who has the document, and the document otherwise.
func TestNotModified(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	req := b.request("GET", "/openapi.json", nil)
	req.Header.Set("If-None-Match", `"`+spec(t).SHA256()+`"`)
	if r := b.send(req); r.status != 304 || len(r.body) > 0 || r.header.Get("ETag") == "" {
		t.Errorf("%d, %d bytes, %v", r.status, len(r.body), r.header)
	}
	for header, want := range map[string]bool{"": false, `"a"`: true, `W/"a"`: true, `"b", "a"`: true, "*": true, `"b"`: false, "a": false} {
		if matchesTag(header, `"a"`) != want {
			t.Errorf("%q", header)
		}
	}
}

// TestErrorCatalogue answers every error as the catalogue of the description has it.
func TestErrorCatalogue(t *testing.T) {
	t.Parallel()
	causes := map[string]error{
		"nonconforming-answer": errNonconform,
		"bad-body":             badBody("<field>", "<rule>"),
		"bad-query":            badQuery("<parameter>", "<rule>"),
		"bad-path":             badPath("<parameter>", "<rule>"),
		"discovery-scope":      errNoDiscovery,
		"no-such-route":        errNoRoute,
		"queue-not-found":      fmt.Errorf("read: %w", queue.ErrQueueNotFound),
		"stream-changed":       fmt.Errorf("register: %w", queue.ErrStreamChanged),
		"group-not-found":      fmt.Errorf("read: %w", queue.ErrGroupNotFound),
		"nothing-to-seek":      queue.ErrNothingToSeek,
		"cross-site":           errCrossOrigin,

		"partition-not-found":      queue.ErrPartitionNotFound,
		"stored-message-not-found": fmt.Errorf("look: %w", queue.ErrMessageNotFound),
		"filters-too-broad":        queue.ErrTooBroad,
		"message-unreadable":       fmt.Errorf("replay: %w", &queue.UnreadableError{Err: errors.New("no key")}),

		"foreign-host":             errForeignHost,
		"body-too-large":           errTooLarge,
		"too-many-requests":        errBusy,
		"internal":                 errors.New("anything else"),
		"unavailable":              fmt.Errorf("pop: %w", queue.ErrUnavailable),
		"stopping":                 queue.ErrStopped,
		"switch-required":          errNoSwitch,
		"no-spool":                 queue.ErrNoSpool,
		"unauthorized":             &auth.Refusal{Reason: "no token"},
		"publish-unauthorized":     errPublishToken,
		"forbidden":                errForbidden,
		"bad-header":               &openapi.CheckError{In: "header", Field: "<header>", Rule: "<rule>"},
		"topic-not-found":          missing(delivery.ErrNotFound, "topic", "<name>"),
		"message-not-found":        missing(fmt.Errorf("read: %w", delivery.ErrNotFound), "message", "<id>"),
		"task-not-found":           &missingError{"task", "<id>"},
		"method-not-allowed":       errMethod,
		"endpoint-not-found":       missing(delivery.ErrNotFound, "endpoint", "<id>"),
		"schedule-not-found":       missing(delivery.ErrNotFound, "schedule", "<id>"),
		"dead-letter-not-found":    missing(delivery.ErrNotFound, "dead letter", "<id>"),
		"topic-exists":             fmt.Errorf("create: %w", delivery.ErrTopicExists),
		"endpoint-exists":          fmt.Errorf("add: %w", delivery.ErrEndpointUsed),
		"quota":                    &delivery.QuotaError{Name: "maxEndpointsPerTopic", Limit: 100},
		"spooled":                  fmt.Errorf("transaction: %w", queue.ErrSpooled),
		"delivery-queue-not-found": missing(delivery.ErrNotFound, "queue", "<name>"),
		"flow-control-not-found":   missing(delivery.ErrNotFound, flowKind, "<key>"),
	}
	e := &edge{cfg: Config{MaxBody: DefaultMaxBody}, log: slog.New(slog.DiscardHandler)}
	for _, entry := range spec(t).Errors() {
		cause, known := causes[entry.ID]
		if !known {
			t.Errorf("%s is answered by nothing", entry.ID)
		}
		ans := e.answerError(&exchange{}, cause)
		var body struct{ Error, Code string }
		if err := json.Unmarshal(ans.body, &body); err != nil {
			t.Fatal(err)
		}
		if ans.status != entry.Status || body.Error != entry.Error || body.Code != entry.Code {
			t.Errorf("%s: answered %d %+v, described %+v", entry.ID, ans.status, body, entry)
		}
	}
}
