package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// hook is a destination that keeps what it gets.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	got    []delivered
	status int // it answers
}

type delivered struct {
	method, uri, body string
	header            http.Header
}

func newHook(t testing.TB, status int) *hook {
	t.Helper()
	h := &hook{status: status}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.mu.Lock()
		h.got = append(h.got, delivered{r.Method, r.RequestURI, string(body), r.Header.Clone()})
		h.mu.Unlock()
		w.WriteHeader(h.status)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) requests() []delivered {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]delivered(nil), h.got...)
}

// publish sends a publish with headers in pairs.
func (b *broker) publish(path, body string, headers ...string) reply {
	b.t.Helper()
	req := b.request(http.MethodPost, "/", strings.NewReader(body))
	at, query, _ := strings.Cut(path, "?")
	req.URL.Opaque = "//" + req.URL.Host + at // as it is
	req.URL.RawQuery = query
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return b.send(req)
}

func (b *broker) settle() {
	b.t.Helper()
	if err := b.delivery.Settle(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// TestPublishV1 delivers what was published, as it was published.
func TestPublishV1(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	r := b.publish("/v1/publish/"+h.URL+"/a//b/../c%2fd?x=1&Upstash-Retries=5&y=%20&upstash-label=l", `{"a": 1}`,
		"Content-Type", "application/json", "Upstash-Method", "PATCH", "Upstash-Forward-X-Mine", "v", "X-Other", "no")
	if r.status != 201 || !strings.HasPrefix(string(r.body), `{"messageId":"msg_`) {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	got := h.requests()
	if len(got) != 1 {
		t.Fatalf("%d deliveries", len(got))
	}
	d := got[0]
	if d.method != "PATCH" || d.uri != "/a//b/../c%2fd?x=1&y=%20" || d.body != `{"a": 1}` || d.header.Get("X-Mine") != "v" || d.header.Get("X-Other") != "" ||
		d.header.Get("Content-Type") != "application/json" || d.header.Get("Upstash-Signature") == "" || d.header.Get("Webhook-Id") == "" {
		t.Errorf("%+v", d)
	}
	var m messageV1
	id := strings.Split(string(r.body), `"`)[3]
	b.ask(200, "GET", "/v1/messages/"+id, "", &m)
	if m.URL != h.URL+"/a//b/../c%2fd?x=1&y=%20" || m.Settings.Retries != 5 || m.Method != "PATCH" || *m.Body != `{"a": 1}` || m.DestinationType != "url" {
		t.Errorf("%+v", m)
	}
}

// TestPublishPaths reads a destination in all of its spellings, and routes whose fixed parts come in any case.
func TestPublishPaths(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	host := strings.TrimPrefix(h.URL, "http://")
	for path, want := range map[string]string{
		"/v1/publish/" + h.URL:                                     "/",
		"/V1/Publish/http:/" + host + "/x":                         "/x",
		"/v1/publish/" + url.QueryEscape(h.URL+"/x?y=1"):           "/x?y=1",
		"/v1/publish/" + h.URL + "/?qstash_token=secret&a=b":       "/?a=b",
		"/v1/publish/" + h.URL + "/x?upstash-delay=0s&&a;b":        "/x?&a;b",
		"/v1/publish/" + strings.Replace(h.URL, "http", "HTTP", 1): "/",
	} {
		before := len(h.requests())
		if r := b.publish(path, "x"); r.status != 201 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
			continue
		}
		b.settle()
		if got := h.requests(); len(got) != before+1 || got[before].uri != want {
			t.Errorf("%s: %+v", path, got[before:])
		}
	}
	for path, want := range map[string]string{
		"/v1/publish/":                          "a non-empty destination must be provided",
		"/v1/publish":                           "a non-empty destination must be provided",
		"/v1/publish/ftp://x/":                  "invalid destination url: endpoint has invalid scheme, add http:// or https://",
		"/v1/publish/http://10.0.0.1/":          "invalid destination url: endpoint resolves to a private address: 10.0.0.1",
		"/v1/publish/http://u:p@example.com":    "invalid destination url: endpoint must not contain user info",
		"/v1/publish/queue:":                    "invalid destination: the queue must not be empty",
		"/v1/publish/http://127.0.0.1:0/":       "invalid destination url: endpoint has an invalid port",
		"/v1/publish/queue:q":                   "a message to a queue must be JSON",
		"/v1/publish/http://localhost/%zz?a=%z": "",
	} {
		r := b.publish(path, "no JSON")
		if r.status != 400 || want != "" && r.errorText(t) != want {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	if r := b.publish("/v1/publish/nobody-knows", "x"); r.status != 404 || r.errorText(t) != "topic nobody-knows not found" {
		t.Errorf("%d %s", r.status, r.body)
	}
	for _, c := range []struct{ method, path, allow string }{
		{"GET", "/v1/publish/http://x", "POST"}, {"PUT", "/v1/messages/x/", "GET, HEAD, DELETE"},
	} {
		if r := b.do(c.method, c.path, ""); r.status != 405 || r.header.Get("Allow") != c.allow || r.errorText(t) == "" {
			t.Errorf("%s %s: %d %s %v", c.method, c.path, r.status, r.body, r.header)
		}
	}
	for _, path := range []string{"/v1/", "/v2/nothing", "/v1/messages/a/b/c"} {
		if r := b.do("GET", path, ""); r.status != 404 || r.errorText(t) != "Not Found" {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// TestPublishRefusals names the header and the rule, and accepts nothing.
func TestPublishRefusals(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	for _, c := range [][2]string{
		{"Upstash-Delay", "-1s"},
		{"Upstash-Delay", "10"},
		{"Upstash-Delay", "1e9d"},
		{"Upstash-Delay", "99999999999999999999s"},
		{"Upstash-Not-Before", "soon"},
		{"Upstash-Not-Before", "-1"},
		{"Upstash-Retries", "-1"},
		{"Upstash-Retries", "1.5"},
		{"Upstash-Method", "BREW"},
		{"Upstash-Retry-Delay", "pow("},
		{"Upstash-Timeout", "x"},
		{"Upstash-Callback", "example.com"},
		{"Upstash-Callback", "http://192.168.1.1/"},
		{"Upstash-Failure-Callback", "ftp://x"},
		{"Upstash-Deduplication-Id", "a:b"},
		{"Upstash-Deduplication-Id", "a b"},
		{"Upstash-Content-Based-Deduplication", "maybe"},
		{"Upstash-Forward-Host", "x"},
		{"Upstash-Forward-Upstash-Signature", "x"},
		{"Upstash-Cron", "* * * *"},
		{"Upstash-Flow-Control-Key", "k"},
		{"Upstash-Flow-Control-Value", "rate=1"},
		{"Upstash-Queue-Name", "a b"},
		{"Upstash-Redact-Fields", "all"},
		{"Upstash-Callback-Retries", "x"},
	} {
		headers := []string{c[0], c[1]}
		if c[0] == "Upstash-Callback-Retries" {
			headers = append(headers, "Upstash-Callback", h.URL)
		}
		if r := b.publish("/v1/publish/"+h.URL, "x", headers...); r.status != 400 || r.errorText(t) == "" {
			t.Errorf("%v: %d %s", c, r.status, r.body)
		}
	}
	var list messagesV1
	b.ask(200, "GET", "/v1/messages", "", &list)
	if len(list.Messages) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestPublishDedup answers a duplicate with the original's id.
func TestPublishDedup(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	first := b.publish("/v1/publish/"+h.URL, "x", "Upstash-Deduplication-Id", "unique123")
	again := b.publish("/v1/publish/"+h.URL+"/y", "z", "Upstash-Deduplication-Id", "unique123")
	if first.status != 201 || again.status != 202 || first.header.Get("Upstash-Deduplication-Id") != "unique123" || again.header.Get("Upstash-Deduplication-Id") != "unique123" {
		t.Fatalf("%d %v, %d %v", first.status, first.header, again.status, again.header)
	}
	if want := strings.TrimSuffix(string(first.body), "}") + `,"deduplicated":true}`; string(again.body) != want {
		t.Errorf("%s, want %s", again.body, want)
	}
	byContent := func(want int, path, body string, headers ...string) {
		t.Helper()
		r := b.publish(path, body, append([]string{"Upstash-Content-Based-Deduplication", "true"}, headers...)...)
		if r.status != want || r.header.Get("Upstash-Deduplication-Id") == "" {
			t.Errorf("%s %s %v: %d %s", path, body, headers, r.status, r.body)
		}
	}
	byContent(201, "/v1/publish/"+h.URL, "x")
	byContent(202, "/v1/publish/"+h.URL, "x")
	byContent(201, "/v1/publish/"+h.URL, "xx")
	byContent(201, "/v1/publish/"+h.URL+"/other", "x")
	byContent(201, "/v1/publish/"+h.URL, "x", "Upstash-Forward-A", "1")
	byContent(201, "/v1/publish/"+h.URL, "x", "Upstash-Retries", "1")
	byContent(202, "/v1/publish/"+h.URL, "x", "X-Not-Ours", "1")
	b.settle()
	if got := len(h.requests()); got != 6 {
		t.Errorf("%d deliveries", got)
	}
}

// TestMessageLife reads a message, its tasks and its log while it fails, and cancels it.
func TestMessageLife(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	r := b.publish("/v1/publish/"+h.URL, "secret", "Upstash-Retries", "2", "Upstash-Redact-Fields", "body,header[X-Key]", "Upstash-Forward-X-Key", "k", "Upstash-Forward-X-Open", "o")
	id := strings.Split(string(r.body), `"`)[3]
	b.settle()
	var m messageV1
	b.ask(200, "GET", "/v1/messages/"+id, "", &m)
	if !strings.HasPrefix(*m.Body, "REDACTED:") || !strings.HasPrefix(m.Header["X-Key"][0], "REDACTED:") || m.Header["X-Open"][0] != "o" {
		t.Errorf("%+v", m)
	}
	if h.requests()[0].body != "secret" || h.requests()[0].header.Get("X-Key") != "k" {
		t.Error("redaction changed the delivery")
	}
	var tasks tasksV1
	b.ask(200, "GET", "/v1/messages/"+id+"/tasks", "", &tasks)
	if len(tasks.Tasks) != 1 {
		t.Fatalf("%+v", tasks)
	}
	task := tasks.Tasks[0]
	if task.State != "RETRY" || task.Retried != 1 || task.MaxRetry != 2 || task.NextProcessAt-task.LastErrorAt < 7388 || task.NextProcessAt-task.LastErrorAt > 7390 ||
		task.Error != "the destination answered 500" || task.CompletedAt != 0 {
		t.Errorf("%+v", task)
	}
	var same taskV1
	b.ask(200, "GET", "/v1/tasks/"+task.TaskID, "", &same)
	if same != task {
		t.Errorf("%+v, %+v", same, task)
	}
	b.ask(202, "DELETE", "/v1/messages/"+id, "", nil)
	b.ask(404, "DELETE", "/v1/messages/"+id, "", nil)
	b.ask(200, "POST", "/testing/clock", `{"advance":"1h"}`, nil)
	if got := len(h.requests()); got != 1 {
		t.Errorf("%d deliveries of a cancelled message", got)
	}
	var log eventsV1
	b.ask(200, "GET", "/v1/messages/"+id+"/logs", "", &log)
	var states []string
	for _, e := range log.Events {
		states = append([]string{e.State}, states...)
	}
	if got := strings.Join(states, " "); got != "CREATED ACTIVE ERROR RETRY CANCEL_REQUESTED CANCELED" {
		t.Errorf("log: %s", got)
	}
	for _, path := range []string{"/v1/messages/msg_nothing", "/v1/messages/msg_" + strings.Repeat("0", 32), "/v1/tasks/tsk_x", "/v1/tasks/" + task.TaskID + "_1", "/v1/messages/x/tasks"} {
		if r := b.do("GET", path, ""); r.status != 404 || !strings.HasSuffix(r.errorText(t), " not found") {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// TestPublishPages leads through lists page by page, each entry once.
func TestPublishPages(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	const total = 230
	for i := range total {
		if r := b.publish("/v1/publish/"+h.URL+"/"+strconv.Itoa(i), ""); r.status != 201 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	b.settle()
	seen := map[string]bool{}
	last := ""
	for cursor := "x"; cursor != ""; {
		var page messagesV1
		query := "?cursor=" + cursor
		if cursor == "x" {
			query = ""
		}
		b.ask(200, "GET", "/v1/messages"+query, "", &page)
		for _, m := range page.Messages {
			if seen[m.MessageID] || last != "" && m.MessageID >= last {
				t.Fatalf("%s after %s", m.MessageID, last)
			}
			seen[m.MessageID], last = true, m.MessageID
		}
		cursor = page.Cursor
	}
	if len(seen) != total {
		t.Errorf("%d messages", len(seen))
	}
	events := map[string]bool{}
	before := int64(1) << 62
	for cursor := "x"; cursor != ""; {
		var page eventsV1
		query := "?cursor=" + cursor
		if cursor == "x" {
			query = ""
		}
		b.ask(200, "GET", "/v1/events"+query, "", &page)
		for _, e := range page.Events {
			if events[e.ID] || e.Time > before {
				t.Fatalf("%+v", e)
			}
			events[e.ID], before = true, e.Time
		}
		cursor = page.Cursor
	}
	if len(events) != 3*total {
		t.Errorf("%d events", len(events))
	}
	for _, cursor := range []string{"x", "1", "1-", "%00", "9999999999999999999-1"} {
		if r := b.do("GET", "/v1/logs?cursor="+cursor, ""); r.status != 400 {
			t.Errorf("%s: %d %s", cursor, r.status, r.body)
		}
	}
}

// TestPublishWithoutDatabase answers 503, and what was answered is the truth.
func TestPublishWithoutDatabase(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	b.cut.Store(true)
	if r := b.publish("/v1/publish/"+h.URL, "x"); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := b.do("GET", "/v1/messages/msg_"+strings.Repeat("0", 32), ""); r.status != 503 {
		t.Errorf("%d %s", r.status, r.body)
	}
	b.cut.Store(false)
	eventually(t, "a publish is accepted again", func() bool { return b.publish("/v1/publish/"+h.URL, "y").status == 201 })
	eventually(t, "it is delivered", func() bool {
		for _, d := range h.requests() {
			if d.body == "y" {
				return true
			}
		}
		return false
	})
}

// TestPublishDelays follows the clock.
func TestPublishDelays(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	at := b.engine.Now().Add(3 * time.Hour).Unix()
	for _, headers := range [][]string{
		{"Upstash-Delay", "1d10h30m"},
		{"Upstash-Not-Before", fmt.Sprint(at), "Upstash-Delay", "5s"},
		{"Upstash-Not-Before", "1691245856"},
	} {
		if r := b.publish("/v1/publish/"+h.URL, "x", headers...); r.status != 201 {
			t.Fatalf("%v: %d %s", headers, r.status, r.body)
		}
	}
	b.settle()
	for _, step := range []struct {
		by   string
		want int
	}{{"2h50m", 1}, {"11m", 2}, {"31h20m", 2}, {"20m", 3}} {
		b.ask(200, "POST", "/testing/clock", `{"advance":"`+step.by+`"}`, nil)
		if got := len(h.requests()); got != step.want {
			t.Fatalf("%d deliveries after %s more, want %d", got, step.by, step.want)
		}
	}
}

// TestPublishPayloads: a message to an ordered queue may be what a push may have as its payload.
func TestPublishPayloads(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for _, payload := range []string{
		`null`, `1e400`, ` {"a": 1} `, `{"a":1,"a":2}`, `"\ud800"`, `"\u0000"`, "\"\xff\"", `{"a":NaN}`, `1 2`, `{`, ``,
	} {
		pushed := b.send(b.request("POST", "/api/v1/push", strings.NewReader(`{"items":[{"queue":"q","payload":`+payload+`}]}`))).status
		want := map[int]int{201: 200, 400: 400}[pushed]
		if r := b.publish("/v2/publish/queue:q", payload); r.status != want {
			t.Errorf("%q: %d %s, and a push %d", payload, r.status, r.body, pushed)
		}
	}
}
