package endtoend

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// receiver is a destination that keeps what it gets.
type receiver struct {
	url string

	mu     sync.Mutex
	status int // it answers
	got    []received
}

type received struct {
	method, path, body string
	header             http.Header
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{status: http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.got = append(r.got, received{req.Method, req.URL.Path, string(body), req.Header.Clone()})
		status := r.status
		r.mu.Unlock()
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "seen")
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *receiver) answer(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// take returns what came since the last call, in no order.
func (r *receiver) take() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

func (r *receiver) waitFor(t *testing.T, what string, n int) []received {
	t.Helper()
	waitFor(t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.got) >= n
	})
	got := r.take()
	if len(got) != n {
		t.Fatalf("%s: %d requests, want %d: %+v", what, len(got), n, got)
	}
	return got
}

// publisher publishes as the page of the publish endpoint shows it.
type publisher struct {
	broker *broker
	token  string
}

type published struct {
	status int
	header http.Header
	body   string
	id     string // of the message or the schedule
}

func (p publisher) send(t *testing.T, method, path, body string, headers ...string) published {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.broker.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token)
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.broker.logTail())
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return published{status: res.StatusCode, header: res.Header, body: string(text)}
}

// publish wants an answer of one member, which names what was made.
func (p publisher) publish(t *testing.T, destination, body string, headers ...string) published {
	t.Helper()
	out := p.send(t, http.MethodPost, "/v1/publish/"+destination, body, headers...)
	answer := regexp.MustCompile(`^\{"(messageId":"msg_|scheduleId":"scd_)[0-9a-f]+"\}$`)
	if out.status != http.StatusCreated || !answer.MatchString(out.body) {
		t.Fatalf("publish to %s with %q: %d %s", destination, headers, out.status, out.body)
	}
	out.id = strings.Split(out.body, `"`)[3]
	return out
}

// advance moves the broker's clock; what is due by then has been tried when it returns.
func (p publisher) advance(t *testing.T, d time.Duration) {
	t.Helper()
	if out := p.send(t, http.MethodPost, "/testing/clock", `{"advance":"`+d.String()+`"}`); out.status != http.StatusOK {
		t.Fatalf("advance by %v: %d %s", d, out.status, out.body)
	}
}

// TestPublishPage makes the requests that the page of the publish endpoint shows, with its examples of each header, and
// wants what the page says of them.
func TestPublishPage(t *testing.T) {
	needBroker(t)
	const token = "publish-page-0123456789abcdef"
	t.Setenv("DATABASE_URL", createDatabase(t, "publish_page"))
	t.Setenv("POSTHORN_TOKENS", "admin:"+token)
	t.Setenv("POSTHORN_EGRESS_ALLOW", "127.0.0.1/32")
	p := publisher{startOn(t, "--testing"), token}
	to := newReceiver(t)
	const message = `{"message":"Hello, World!"}`

	t.Run("the request of the page", func(t *testing.T) {
		whole := []string{
			"Content-Type: application/json",
			"Upstash-Deduplication-Id: unique123",
			"Upstash-Content-Based-Deduplication: true",
			"Upstash-Not-Before: 1691245856", // long ago, and it overrides the delay
			"Upstash-Method: POST",
			"Upstash-Delay: 10s",
			"Upstash-Retries: 3",
			"Upstash-Forward-Custom-Header: custom-value",
		}
		first := p.publish(t, to.url, message, whole...)
		got := to.waitFor(t, "the delivery", 1)[0]
		if got.method != http.MethodPost || got.body != message || got.header.Get("Content-Type") != "application/json" || got.header.Get("Custom-Header") != "custom-value" ||
			got.header.Get("Upstash-Forward-Custom-Header") != "" || got.header.Get("Upstash-Message-Id") != first.id || got.header.Get("Authorization") != "" {
			t.Errorf("%+v", got)
		}
		again := p.send(t, http.MethodPost, "/v1/publish/"+to.url, message, whole...)
		if want := `{"messageId":"` + first.id + `","deduplicated":true}`; again.status != http.StatusAccepted || again.body != want {
			t.Errorf("again: %d %s, want 202 %s", again.status, again.body, want)
		}
		for _, out := range []published{first, again} {
			if got := out.header.Get("Upstash-Deduplication-Id"); got != "unique123" {
				t.Errorf("the answer names the deduplication id %q", got)
			}
		}
		p.advance(t, 89*24*time.Hour)
		if again := p.send(t, http.MethodPost, "/v1/publish/"+to.url, message, whole...); again.status != http.StatusAccepted {
			t.Errorf("after 89 days: %d %s", again.status, again.body)
		}
		if got := to.take(); len(got) != 0 {
			t.Errorf("a duplicate was delivered: %+v", got)
		}
		p.advance(t, 24*time.Hour+time.Minute)
		p.publish(t, to.url, message, whole...)
		to.waitFor(t, "the delivery after 90 days", 1)
	})

	t.Run("deduplication", func(t *testing.T) {
		for _, id := range []string{"a:b", "a b", "a\tb"} {
			if out := p.send(t, http.MethodPost, "/v1/publish/"+to.url, "x", "Upstash-Deduplication-Id: "+id); out.status != http.StatusBadRequest {
				t.Errorf("%q: %d %s", id, out.status, out.body)
			}
		}
		byContent := "Upstash-Content-Based-Deduplication: true"
		p.publish(t, to.url, "one", byContent)
		for _, other := range []struct {
			destination, body string
			headers           []string
		}{{to.url, "two", nil}, {to.url + "/other", "one", nil}, {to.url, "one", []string{"Upstash-Forward-A: b"}}} {
			p.publish(t, other.destination, other.body, append(other.headers, byContent)...)
		}
		if out := p.send(t, http.MethodPost, "/v1/publish/"+to.url, "one", byContent); out.status != http.StatusAccepted {
			t.Errorf("the same content: %d %s", out.status, out.body)
		}
		to.waitFor(t, "each content once", 4)
	})

	t.Run("topics", func(t *testing.T) {
		second := newReceiver(t)
		var topic struct{ TopicID string }
		made := p.send(t, http.MethodPost, "/v1/topics", `{"name":"my-topic"}`)
		if err := json.Unmarshal([]byte(made.body), &topic); err != nil || !strings.HasPrefix(topic.TopicID, "tpc_") {
			t.Fatalf("%d %s", made.status, made.body)
		}
		for _, url := range []string{to.url, second.url} {
			if out := p.send(t, http.MethodPost, "/v1/endpoints", `{"topicName":"my-topic","url":"`+url+`"}`); out.status != http.StatusCreated {
				t.Fatalf("%d %s", out.status, out.body)
			}
		}
		for _, name := range []string{"my-topic", topic.TopicID} {
			out := p.publish(t, name, message, "Content-Type: application/json")
			for _, r := range []*receiver{to, second} {
				if got := r.waitFor(t, "a delivery to each endpoint", 1)[0]; got.body != message || got.header.Get("Upstash-Message-Id") != out.id {
					t.Errorf("%+v", got)
				}
			}
		}
		for destination, status := range map[string]int{"www.example.com": http.StatusNotFound, "ftp://www.example.com": http.StatusBadRequest} {
			if out := p.send(t, http.MethodPost, "/v1/publish/"+destination, "x"); out.status != status || !strings.HasPrefix(out.body, `{"error":"`) {
				t.Errorf("%s: %d %s", destination, out.status, out.body)
			}
		}
	})

	t.Run("content types and methods", func(t *testing.T) {
		for _, content := range []string{"application/json", "application/xml", "application/octet-stream", "text/plain"} {
			p.publish(t, to.url, "\x00\xff<>", "Content-Type: "+content)
			if got := to.waitFor(t, content, 1)[0]; got.header.Get("Content-Type") != content || got.body != "\x00\xff<>" {
				t.Errorf("%+v", got)
			}
		}
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			p.publish(t, to.url, "x", "Upstash-Method: "+method)
			if got := to.waitFor(t, method, 1)[0]; got.method != method {
				t.Errorf("%+v", got)
			}
		}
	})

	t.Run("delays", func(t *testing.T) {
		const margin = 10 * time.Second // of time that passes by itself
		for text, d := range map[string]time.Duration{"50s": 50 * time.Second, "3m": 3 * time.Minute, "10h": 10 * time.Hour, "1d": 24 * time.Hour} {
			p.publish(t, to.url, text, "Upstash-Delay: "+text)
			p.advance(t, d-margin)
			if got := to.take(); len(got) != 0 {
				t.Errorf("a delay of %s was over before: %+v", text, got)
			}
			p.advance(t, margin)
			to.waitFor(t, "the delivery after "+text, 1)
		}
	})

	t.Run("retries", func(t *testing.T) {
		to.answer(http.StatusInternalServerError)
		defer to.answer(http.StatusOK)
		const retries = 3
		p.publish(t, to.url, "x", "Upstash-Retries: 3")
		to.waitFor(t, "the first attempt", 1)
		for n, pause := range []time.Duration{7389 * time.Millisecond, 54598 * time.Millisecond, 403429 * time.Millisecond} {
			p.advance(t, time.Millisecond) // what became of the attempt is stored then, and the pause begins
			p.advance(t, pause)
			if got := to.waitFor(t, "a retry", 1)[0]; got.header.Get("Upstash-Retried") != string(rune('1'+n)) {
				t.Errorf("retry %d: %+v", n+1, got)
			}
		}
		p.advance(t, 48*time.Hour)
		if got := to.take(); len(got) != 0 {
			t.Errorf("more than 1 + %d attempts: %+v", retries, got)
		}
	})

	t.Run("callback", func(t *testing.T) {
		told := newReceiver(t)
		out := p.publish(t, to.url, message, "Upstash-Callback: "+told.url, "Upstash-Retries: 2")
		to.waitFor(t, "the delivery", 1)
		got := told.waitFor(t, "the callback", 1)[0]
		var callback struct {
			Status, MaxRetries    int
			Body, SourceMessageID string
		}
		if err := json.Unmarshal([]byte(got.body), &callback); err != nil {
			t.Fatalf("%v in %s", err, got.body)
		}
		body, err := base64.StdEncoding.DecodeString(callback.Body)
		if err != nil || string(body) != "seen" || callback.Status != http.StatusOK || callback.MaxRetries != 2 || callback.SourceMessageID != out.id {
			t.Errorf("%s", got.body)
		}
		if out := p.send(t, http.MethodPost, "/v1/publish/"+to.url, "x", "Upstash-Callback: www.example.com"); out.status != http.StatusBadRequest {
			t.Errorf("a callback without a scheme: %d %s", out.status, out.body)
		}
	})

	t.Run("schedule", func(t *testing.T) {
		cron := []string{"Upstash-Cron: */5 * * * *", "Upstash-Deduplication-Id: scheduled", "Upstash-Forward-My-Header: my-value"}
		out := p.publish(t, to.url, "tick", cron...)
		if !strings.HasPrefix(out.id, "scd_") {
			t.Fatalf("%s", out.body)
		}
		// Before the schedule is created its id counts; its messages are not deduplicated.
		if again := p.send(t, http.MethodPost, "/v1/publish/"+to.url, "tick", cron...); again.status != http.StatusAccepted || !strings.Contains(again.body, out.id) {
			t.Errorf("again: %d %s", again.status, again.body)
		}
		to.take()
		for range 3 {
			p.advance(t, 5*time.Minute)
			for _, got := range to.waitFor(t, "a tick", 1) {
				if got.body != "tick" || got.header.Get("My-Header") != "my-value" || got.header.Get("Upstash-Schedule-Id") != out.id {
					t.Errorf("%+v", got)
				}
			}
		}
		if out := p.send(t, http.MethodDelete, "/v1/schedules/"+out.id, ""); out.status != http.StatusAccepted {
			t.Errorf("%d %s", out.status, out.body)
		}
	})

	t.Run("token", func(t *testing.T) {
		out := publisher{p.broker, "another-token-0123456789"}.send(t, http.MethodPost, "/v1/publish/"+to.url, "x")
		if out.status != http.StatusUnauthorized || out.body != `{"error":"unable to authenticate: invalid token"}` {
			t.Errorf("%d %s", out.status, out.body)
		}
	})
}
