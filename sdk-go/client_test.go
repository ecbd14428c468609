package posthorn_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestNewReportsAllProblems(t *testing.T) {
	t.Parallel()
	for _, base := range []string{
		"", "127.0.0.1:6632", "ftp://host", "http://", "http://user:secret@host", "http://host?x=1", "http://host#top", "http://[::1", "http:// /",
	} {
		_, err := posthorn.New(base, posthorn.Options{Token: "a\nb", UserAgent: "a\rb", MaxResponseBytes: -1, Retry: posthorn.RetryPolicy{MaxAttempts: -1}})
		if err == nil {
			t.Errorf("%q is accepted", base)
			continue
		}
		for _, want := range []string{"base URL", "Token", "UserAgent", "MaxResponseBytes", "Retry"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v does not mention %s", base, err, want)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v repeats the password", base, err)
		}
	}
}

// bubble serves a client in a synctest bubble and counts the requests.
func bubble(t *testing.T, opts posthorn.Options, steps ...http.HandlerFunc) (*posthorn.Client, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	opts.HTTPClient = &http.Client{Transport: inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := int(n.Add(1)) - 1
		if i >= len(steps) {
			i = len(steps) - 1
		}
		steps[i](w, r)
	})}}
	client, err := posthorn.New("http://broker", opts)
	if err != nil {
		t.Fatal(err)
	}
	return client, &n
}

func TestRetryPace(t *testing.T) {
	t.Parallel()
	ok := answer(200, `{"queues":[]}`)
	for name, test := range map[string]struct {
		policy   posthorn.RetryPolicy
		steps    []http.HandlerFunc
		attempts int32
		from, to time.Duration
		fails    bool
	}{
		"defaults":             {posthorn.RetryPolicy{}, []http.HandlerFunc{cut}, 4, 350 * time.Millisecond, 700 * time.Millisecond, true},
		"no repetition":        {posthorn.RetryPolicy{MaxAttempts: 1}, []http.HandlerFunc{cut}, 1, 0, 0, true},
		"capped":               {posthorn.RetryPolicy{MaxAttempts: 60, BaseDelay: time.Second, MaxDelay: 2 * time.Second}, []http.HandlerFunc{answer(500, "")}, 60, 57 * time.Second, 117 * time.Second, true},
		"retry after":          {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(503, "", "Retry-After", "7"), ok}, 2, 7 * time.Second, 7700 * time.Millisecond, false},
		"retry after a date":   {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(429, "", "Retry-After", "Sat, 01 Jan 2000 00:00:10 GMT"), ok}, 2, 10 * time.Second, 11 * time.Second, false},
		"retry after the past": {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(429, "", "Retry-After", "-3"), ok}, 2, 50 * time.Millisecond, 100 * time.Millisecond, false},
		"retry after nonsense": {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(429, "", "Retry-After", "soon"), ok}, 2, 50 * time.Millisecond, 100 * time.Millisecond, false},
		"retry after too long": {posthorn.RetryPolicy{MaxRetryAfter: 6 * time.Second}, []http.HandlerFunc{answer(503, "", "Retry-After", "7")}, 1, 0, 0, true},
		"gateway":              {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(502, ""), answer(504, ""), ok}, 3, 150 * time.Millisecond, 300 * time.Millisecond, false},
		"refusal":              {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(409, "")}, 1, 0, 0, true},
		"redirect":             {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(304, "")}, 1, 0, 0, true},
		"status 501":           {posthorn.RetryPolicy{}, []http.HandlerFunc{answer(501, "")}, 1, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // starts at midnight UTC 2000-01-01
				client, n := bubble(t, posthorn.Options{Retry: test.policy}, test.steps...)
				start := time.Now()
				_, err := client.ListQueues(t.Context())
				if (err != nil) != test.fails {
					t.Errorf("error %v", err)
				}
				if n.Load() != test.attempts {
					t.Errorf("%d attempts, want %d", n.Load(), test.attempts)
				}
				if took := time.Since(start); took < test.from || took > test.to {
					t.Errorf("took %v, want %v to %v", took, test.from, test.to)
				}
			})
		})
	}
}

func TestTimeoutBoundsEachAttempt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout time.Duration
		want    time.Duration
	}{
		"default": {0, 30 * time.Second},
		"own":     {2 * time.Second, 2 * time.Second},
		"none":    {-1, 100 * time.Second}, // of the context
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, _ := bubble(t, posthorn.Options{Timeout: test.timeout, Retry: posthorn.RetryPolicy{MaxAttempts: 1}}, silence)
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
				defer cancel()
				start := time.Now()
				_, err := client.ListQueues(ctx)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v", err)
				}
				if took := time.Since(start); took != test.want {
					t.Errorf("took %v, want %v", took, test.want)
				}
			})
		})
	}
}

func TestContextEndsTheWaitBetweenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, n := bubble(t, posthorn.Options{}, answer(503, `{"error":"no database"}`, "Retry-After", "20"))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		start := time.Now()
		_, err := client.ListQueues(ctx)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, posthorn.ErrUnavailable) || apiError(t, err).RetryAfter != 20*time.Second {
			t.Errorf("error %v, want both the context's and the last answer's", err)
		}
		if took := time.Since(start); took != 5*time.Second || n.Load() != 1 {
			t.Errorf("took %v and %d attempts", took, n.Load())
		}

		// A wait that cannot end in time is not begun.
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start = time.Now()
		if _, err := client.ListQueues(ctx); !errors.Is(err, posthorn.ErrUnavailable) || time.Since(start) != 0 {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
	})
}

func TestErrorTexts(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		step http.HandlerFunc
		want string
	}{
		"contract":    {answer(404, `{"error":"Queue not found"}`, "X-Request-Id", "r-7"), "posthorn: getQueue: 404 Queue not found (request id r-7)"},
		"plain text":  {answer(401, "go away\nplease"), "posthorn: getQueue: 401 go away"},
		"empty":       {answer(403, ""), "posthorn: getQueue: 403 Forbidden"},
		"long":        {answer(400, strings.Repeat("é", 4000)), "posthorn: getQueue: 400 " + strings.Repeat("é", 100) + "..."},
		"other JSON":  {answer(400, `{"error":{"code":7}}`), `posthorn: getQueue: 400 {"error":{"code":7}}`},
		"odd status":  {answer(499, ""), "posthorn: getQueue: 499 unknown status"},
		"bad answer":  {answer(200, `{"id":7}`), "posthorn: getQueue: answer of status 200: json: cannot unmarshal number"},
		"cut in text": {partial(400, `{"error":"bad`), `posthorn: getQueue: 400 {"error":"bad`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newClient(t, newScript(t, test.step).URL, posthorn.Options{}).GetQueue(testContext(t), "q")
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("error %v\nwant  %s", err, test.want)
			}
		})
	}
}

// partial is a step that promises a longer body than it sends.
func partial(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func TestABrokenBodyIsRepeated(t *testing.T) {
	t.Parallel()
	server := newScript(t, partial(200, `{"queues":`), answer(200, `{"queues":[]}`))
	if _, err := newClient(t, server.URL, posthorn.Options{}).ListQueues(testContext(t)); err != nil {
		t.Error(err)
	}
	server.requests(2)
}

func TestASlowBodyRunsIntoTheTimeout(t *testing.T) {
	t.Parallel()
	server := newScript(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"queues":`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, answer(200, `{"queues":[]}`))
	if _, err := newClient(t, server.URL, posthorn.Options{Timeout: 50 * time.Millisecond}).ListQueues(testContext(t)); err != nil {
		t.Error(err)
	}
	server.requests(2)
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	endless := func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat(" ", 1000)); err != nil {
				return
			}
		}
	}
	fits := `{"queues":[]` + strings.Repeat(" ", 87) + `}` // 100 bytes
	for name, test := range map[string]struct {
		step http.HandlerFunc
		ok   bool
	}{
		"endless":  {endless, false},
		"at limit": {answer(200, fits), true},
		"above":    {answer(200, fits+" "), false},
		"declared": {partial(200, `{}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newScript(t, test.step)
			_, err := newClient(t, server.URL, posthorn.Options{MaxResponseBytes: 100}).ListQueues(testContext(t))
			if test.ok != (err == nil) || !test.ok && !errors.Is(err, posthorn.ErrResponseTooLarge) {
				t.Errorf("error %v", err)
			}
			server.requests(1)
		})
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(307, "", "Location", "/elsewhere"))
	_, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), []posthorn.Item{{Queue: "q"}})
	if apiError(t, err).Status != 307 {
		t.Errorf("error %v", err)
	}
	server.requests(1)
}

func TestARefusedConnectionIsAlwaysRepeated(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	var dials atomic.Int32
	client := newClient(t, gone.URL, posthorn.Options{HTTPClient: &http.Client{Transport: counting{&dials, &http.Transport{}}}})
	if _, err := client.DeleteQueue(testContext(t), "q"); err == nil {
		t.Error("no error")
	}
	if dials.Load() != 4 {
		t.Errorf("%d attempts of a call that cannot have done anything, want 4", dials.Load())
	}
}

type counting struct {
	n    *atomic.Int32
	next http.RoundTripper
}

func (c counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(r)
}

// TestWhatIsRepeated holds every operation against a lost answer and a 503 on a connection that was
// kept alive, where net/http would repeat a GET on its own.
func TestWhatIsRepeated(t *testing.T) {
	t.Parallel()
	ack := func(status posthorn.AckStatus, lease string) func(context.Context, *posthorn.Client) error {
		return func(ctx context.Context, c *posthorn.Client) error {
			_, err := c.AckBatch(ctx, "", []posthorn.AckItem{{TransactionID: "t", LeaseID: "L"}, {TransactionID: "u", Status: status, LeaseID: lease}})
			return err
		}
	}
	pop := func(opts posthorn.PopOptions) func(context.Context, *posthorn.Client) error {
		return func(ctx context.Context, c *posthorn.Client) error {
			_, err := c.Pop(ctx, opts)
			return err
		}
	}
	for name, test := range map[string]struct {
		call     func(context.Context, *posthorn.Client) error
		attempts int
	}{
		"pop":                {pop(posthorn.PopOptions{Queue: "q"}), 4},
		"pop and commit":     {pop(posthorn.PopOptions{Queue: "q", AutoAck: true}), 1},
		"ack":                {ack(posthorn.AckCompleted, ""), 4},
		"ack by default":     {ack("", ""), 4},
		"nack under lease":   {ack(posthorn.AckFailed, "L"), 4},
		"nack without lease": {ack(posthorn.AckFailed, ""), 1},
		"retry, no lease":    {ack(posthorn.AckRetry, ""), 1},
		"dlq, no lease":      {ack(posthorn.AckDeadLetter, ""), 1},
		"extend":             {func(ctx context.Context, c *posthorn.Client) error { _, err := c.Extend(ctx, "L", 0); return err }, 4},
		"configure": {func(ctx context.Context, c *posthorn.Client) error {
			_, err := c.Configure(ctx, "q", posthorn.QueueOptions{})
			return err
		}, 4},
		"get":    {func(ctx context.Context, c *posthorn.Client) error { _, err := c.GetQueue(ctx, "q"); return err }, 4},
		"list":   {func(ctx context.Context, c *posthorn.Client) error { _, err := c.ListQueues(ctx); return err }, 4},
		"delete": {func(ctx context.Context, c *posthorn.Client) error { _, err := c.DeleteQueue(ctx, "q"); return err }, 1},
		"push": {func(ctx context.Context, c *posthorn.Client) error {
			_, err := c.Push(ctx, []posthorn.Item{{Queue: "q"}})
			return err
		}, 4},
	} {
		for fault, step := range map[string]http.HandlerFunc{"cut": cut, "503": answer(503, `{"error":"no database"}`)} {
			t.Run(name+" "+fault, func(t *testing.T) {
				t.Parallel()
				var calls atomic.Int32
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/health" {
						answer(200, `{"status":"healthy"}`)(w, r)
						return
					}
					calls.Add(1)
					_, _ = io.Copy(io.Discard, r.Body)
					step(w, r)
				}))
				defer server.Close()
				client := newClient(t, server.URL, posthorn.Options{})
				ctx := testContext(t)
				if _, err := client.Health(ctx); err != nil {
					t.Fatal(err)
				}
				if err := test.call(ctx, client); err == nil {
					t.Error("no error")
				}
				// net/http may add one of its own to a GET that is safe to repeat.
				if n := int(calls.Load()); n < test.attempts || n > test.attempts && test.attempts == 1 {
					t.Errorf("%d attempts, want %d", n, test.attempts)
				}
			})
		}
		t.Run(name+" 429", func(t *testing.T) {
			t.Parallel()
			refused := answer(429, `{"error":"slow down"}`)
			server := newScript(t, refused, refused, refused, refused)
			if err := test.call(testContext(t), newClient(t, server.URL, posthorn.Options{})); err == nil {
				t.Error("no error")
			}
			server.requests(4)
		})
	}
}
