package posthorn_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// exchange is one request as the server saw it.
type exchange struct {
	Method string
	Target string // path and query as they were sent
	Header http.Header
	Body   string
}

// script is a server that answers request n with step n and remembers what it was sent. A request
// beyond the last step is answered 418, which no client repeats, and fails the test.
type script struct {
	*httptest.Server
	t     testing.TB
	steps []http.HandlerFunc

	mu   sync.Mutex
	seen []exchange
}

func newScript(tb testing.TB, steps ...http.HandlerFunc) *script {
	tb.Helper()
	s := &script{t: tb, steps: steps}
	s.Server = httptest.NewServer(s)
	tb.Cleanup(s.Close)
	return s
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Errorf("reading the request: %v", err)
	}
	s.mu.Lock()
	n := len(s.seen)
	s.seen = append(s.seen, exchange{r.Method, r.RequestURI, r.Header.Clone(), string(body)})
	s.mu.Unlock()
	if n >= len(s.steps) {
		s.t.Errorf("unexpected request %d: %s %s %s", n+1, r.Method, r.RequestURI, body)
		w.WriteHeader(http.StatusTeapot)
		return
	}
	s.steps[n](w, r)
}

// requests returns what was seen and fails unless it is n requests.
func (s *script) requests(n int) []exchange {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) != n {
		s.t.Fatalf("the server saw %d requests, want %d: %+v", len(s.seen), n, s.seen)
	}
	return s.seen
}

// answer is a step that answers with a status, a body and header pairs.
func answer(status int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		if body != "" {
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// cut is a step that closes the connection without an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// fast is a policy that lets tests repeat without waiting for it.
var fast = posthorn.RetryPolicy{BaseDelay: time.Millisecond, MaxDelay: 4 * time.Millisecond}

func newClient(tb testing.TB, url string, opts posthorn.Options) *posthorn.Client {
	tb.Helper()
	if opts.Retry == (posthorn.RetryPolicy{}) {
		opts.Retry = fast
	}
	client, err := posthorn.New(url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	return client
}

// testContext bounds a test that would hang if the client did.
func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 15*time.Second)
	tb.Cleanup(cancel)
	return ctx
}

func decode[T any](tb testing.TB, body string) T {
	tb.Helper()
	var v T
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		tb.Fatalf("%v in %s", err, body)
	}
	return v
}

func apiError(tb testing.TB, err error) *posthorn.APIError {
	tb.Helper()
	var api *posthorn.APIError
	if !errors.As(err, &api) {
		tb.Fatalf("error %v (%T) is no *APIError", err, err)
	}
	return api
}
