package suite

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
)

// session opens a session with a target that answers every request with 201 and the body.
func session(t *testing.T, body string, through Starter) *Session {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	s, err := Open(t.Context(), Settings{Target: server.URL, Through: through})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// specOf is an unregistered spec.
func specOf(body Body, options ...Option) *Spec {
	requirement, _ := description().Requirement("push.items.empty")
	s := &Spec{Requirement: requirement, body: body, timeout: DefaultSpecTimeout}
	for _, option := range options {
		option(s)
	}
	return s
}

var emptyPush = Args{Body: []byte(`{"items":[]}`)}

func TestExecute(t *testing.T) {
	t.Parallel()
	cleaned := 0
	for name, c := range map[string]struct {
		body   Body
		status Status
		reason string
	}{
		"passes":             {func(ctx context.Context, t *Target) { t.Call(ctx, "push", emptyPush) }, Pass, ""},
		"fails by assertion": {func(context.Context, *Target) { gomega.Expect(1).To(gomega.Equal(2)) }, Fail, "to equal"},
		"skips":              {func(_ context.Context, t *Target) { t.Skipf("not %s", "today") }, Untested, "not today"},
		"panics":             {func(context.Context, *Target) { panic("bug") }, Errored, "bug"},
		"sends what the description forbids": {func(ctx context.Context, t *Target) {
			t.Call(ctx, "push", Args{Body: []byte(`{"items":7}`)})
		}, Fail, "the request of push violates"},
		"calls an unknown operation": {func(ctx context.Context, t *Target) { t.Call(ctx, "fly", Args{}) }, Fail, "no operation"},
		"lacks a capability":         {func(ctx context.Context, t *Target) { t.Advance(ctx, time.Hour) }, Fail, "does not work"},
		"cleans up though it fails": {func(_ context.Context, t *Target) {
			t.Cleanup(func(context.Context) { cleaned++ })
			t.Cleanup(func(context.Context) { panic("ignored") })
			Failf(0, "so be it")
		}, Fail, "so be it"},
	} {
		result := session(t, `[]`, nil).Execute(t.Context(), specOf(c.body))
		if result.Status != c.status || !strings.Contains(result.Reason, c.reason) {
			t.Errorf("%s: %s: %s", name, result.Status, result.Reason)
		}
		if result.Status == Fail && !strings.Contains(result.Reason, "violates") && !strings.HasPrefix(result.Location, "suite/session_test.go:") {
			t.Errorf("%s: blames %s", name, result.Location)
		}
	}
	if cleaned != 1 {
		t.Errorf("cleaned up %d times", cleaned)
	}
}

func TestResponsesAreChecked(t *testing.T) {
	t.Parallel()
	result := session(t, `[{"index":0}]`, nil).Execute(t.Context(), specOf(func(ctx context.Context, t *Target) {
		t.Call(ctx, "push", emptyPush)
		t.Raw(ctx, Request{Operation: "push", Body: strings.NewReader(`bad`)})
	}))
	if result.Status != Fail || len(result.Violations) != 2 || len(result.Exchanges) != 2 {
		t.Errorf("%s: %v, %d exchanges", result.Status, result.Violations, len(result.Exchanges))
	}
	for _, violation := range result.Violations {
		if violation.Direction != "response" {
			t.Errorf("bad input on purpose counts as a violation: %s", violation)
		}
	}
}

func TestSpecTimesOut(t *testing.T) {
	t.Parallel()
	result := session(t, `[]`, nil).Execute(t.Context(), specOf(func(ctx context.Context, _ *Target) {
		<-ctx.Done()
		Failf(0, "interrupted")
	}, Timeout(10*time.Millisecond)))
	if result.Status != Fail || !strings.Contains(result.Reason, "longer than 10ms") {
		t.Errorf("%s: %s", result.Status, result.Reason)
	}
}

func TestUnknownRequirementPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("a spec of an unknown requirement was registered")
		}
	}()
	Requirement("no.such.requirement", func(context.Context, *Target) {})
}

// peerFunc is a Peer of one function.
type peerFunc func(ctx context.Context, operationID string, args Args) (Outcome, error)

func (f peerFunc) Call(ctx context.Context, operationID string, args Args) (Outcome, error) {
	return f(ctx, operationID, args)
}

// serving is a Starter of a peer that offers push and health.
func serving(peer func(target string) Peer) Starter {
	return InProcess(func(ctx context.Context, target, _ string, in io.Reader, out io.Writer) error {
		return ServeCalls(ctx, Hello{Name: "test", Operations: []string{"push", "health"}}, peer(target), in, out)
	})
}

func TestProgramPeer(t *testing.T) {
	t.Parallel()
	payload := "{\"items\":[ {\"queue\":\"q\",\n\"payload\":\"\\ud800 <&>\u2028\"} ]}"
	var got string
	s := session(t, `[]`, serving(func(string) Peer {
		return peerFunc(func(ctx context.Context, operationID string, args Args) (Outcome, error) {
			if operationID == "health" {
				return Outcome{}, errors.New("refused here")
			}
			if args.Path["wait"] != "" {
				<-ctx.Done()
				return Outcome{}, ctx.Err()
			}
			got = string(args.Body)
			return Outcome{Status: 201, Body: args.Body}, nil
		})
	}))
	if s.Peer() != "test" {
		t.Errorf("the peer is named %q", s.Peer())
	}
	result := s.Execute(t.Context(), specOf(func(ctx context.Context, target *Target) {
		waiting, cancel := context.WithCancel(ctx)
		parked := make(chan error)
		go func() {
			_, err := target.Try(waiting, "push", Args{Path: map[string]string{"wait": "x"}})
			parked <- err
		}()
		outcome := target.Call(ctx, "push", Args{Body: []byte(payload)})
		if got != payload || string(outcome.Body) != payload || outcome.Status != 201 {
			Failf(0, "the bytes of bodies do not survive: %q, %q", got, outcome.Body)
		}
		cancel()
		if err := <-parked; !errors.Is(err, context.Canceled) {
			Failf(0, "a cancelled call: %v", err)
		}
		if _, err := target.Try(ctx, "health", Args{}); err == nil || err.Error() != "refused here" {
			Failf(0, "an error without an answer: %v", err)
		}
	}))
	if result.Status != Pass || result.Peer != "test" {
		t.Errorf("%s through %s: %s", result.Status, result.Peer, result.Reason)
	}
	result = s.Execute(t.Context(), specOf(func(ctx context.Context, target *Target) { target.Call(ctx, "ack", Args{}) }))
	if result.Status != Unsupported {
		t.Errorf("an operation that the peer does not offer: %s: %s", result.Status, result.Reason)
	}
	result = s.Execute(t.Context(), specOf(func(ctx context.Context, target *Target) { target.Call(ctx, "ack", Args{Body: []byte(`{`)}) }, WireOnly))
	if result.Peer != "wire" || result.Status != Fail {
		t.Errorf("a wire-only spec ran through %s: %s", result.Peer, result.Status)
	}
}

// TestBytesAndHeaders publishes what is no text: over the wire the destination, the headers and the body arrive as they were
// given, and a program gets the same.
func TestBytesAndHeaders(t *testing.T) {
	t.Parallel()
	type arrived struct{ target, retries, contentType, body string }
	seen := make(chan arrived, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost { // the session looks at the target, too
			w.WriteHeader(http.StatusNotFound)
			return
		}
		seen <- arrived{r.RequestURI, r.Header.Get("Upstash-Retries"), r.Header.Get("Content-Type"), string(body)}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"messageId":"msg_1","url":"u"}`)
	}))
	t.Cleanup(server.Close)
	args := Args{
		Path: map[string]string{"destination": "https://example.com/a//b%20?x=1"}, Header: http.Header{"Upstash-Retries": {"1"}}, Body: []byte("\xff\x00"),
	}
	var got Args
	starter := InProcess(func(ctx context.Context, _, _ string, in io.Reader, out io.Writer) error {
		return ServeCalls(ctx, Hello{Name: "test", Operations: []string{"publish"}}, peerFunc(func(_ context.Context, _ string, args Args) (Outcome, error) {
			got = args
			return Outcome{Status: 200}, nil
		}), in, out)
	})
	for _, through := range []Starter{nil, starter} {
		s, err := Open(t.Context(), Settings{Target: server.URL, Through: through})
		if err != nil {
			t.Fatal(err)
		}
		result := s.Execute(t.Context(), specOf(func(ctx context.Context, target *Target) { target.Call(ctx, "publish", args) }))
		if err := s.Close(); err != nil || result.Status != Pass {
			t.Errorf("%s: %s: %v", result.Status, result.Reason, err)
		}
	}
	if a := <-seen; a != (arrived{"/v2/publish/https://example.com/a//b%20?x=1", "1", "", "\xff\x00"}) {
		t.Errorf("over the wire %+v arrived", a)
	}
	if !reflect.DeepEqual(got, args) {
		t.Errorf("the program got %+v, want %+v", got, args)
	}
}

func TestProxyChecksWhatALibrarySends(t *testing.T) {
	t.Parallel()
	s := session(t, `[{"index":0}]`, serving(func(target string) Peer {
		return peerFunc(func(ctx context.Context, _ string, args Args) (Outcome, error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, target+"/api/v1/push", strings.NewReader(string(args.Body)))
			if err != nil {
				return Outcome{}, err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return Outcome{}, err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return Outcome{Status: response.StatusCode, Body: body}, err
		})
	}))
	result := s.Execute(t.Context(), specOf(func(ctx context.Context, target *Target) {
		outcome := target.Call(ctx, "push", Args{Body: []byte(`{"items":[{}]}`)})
		if string(outcome.Body) != `[{"index":0}]` {
			Failf(0, "the proxy changed the answer: %s", outcome.Body)
		}
	}))
	var directions []string
	for _, violation := range result.Violations {
		directions = append(directions, violation.Operation+" "+violation.Direction)
	}
	if strings.Join(directions, ", ") != "push request, push response" || len(result.Exchanges) != 1 {
		t.Errorf("%s: %v, %d exchanges", result.Status, directions, len(result.Exchanges))
	}
}

// TestProxyKeepsTheTarget sends what a router might change, and finds it at a target with a path of its own as it was sent.
func TestProxyKeepsTheTarget(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.RequestURI }))
	t.Cleanup(server.Close)
	proxy, err := startProxy(t.Context(), server.URL+"/under%2Fneath/", http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.close() })
	for _, target := range []string{"/v2/publish/https:%2F%2Fa%2F%2Fb%3Fx=1", "/v2/publish/https://a//b/../c?x=%20&y", "//", "/a%2fb/%41?"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, proxy.url+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := <-seen; got != "/under%2Fneath"+target {
			t.Errorf("%s arrived as %s", target, got)
		}
	}
}

func TestBadPrograms(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	for name, first := range map[string]string{
		"says nothing": "", "is no JSON": "hello\n", "speaks another version": `{"protocol":2,"name":"x"}` + "\n", "has no name": `{"protocol":1}` + "\n",
	} {
		_, err := Open(t.Context(), Settings{Target: server.URL, Through: InProcess(
			func(_ context.Context, _, _ string, _ io.Reader, out io.Writer) error {
				_, err := io.WriteString(out, first)
				return err
			})})
		if err == nil {
			t.Errorf("a program that %s was accepted", name)
		}
	}
}

func TestMatchTakesTheRestOfAPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string][2]string{
		"/v2/publish/https://a/b//c":    {"publish", "https://a/b//c"},
		"/v2/publish/https:%2F%2Fa%2Fb": {"publish", "https:%2F%2Fa%2Fb"},
		"/v2/enqueue/q/queue:x/y":       {"enqueue", "queue:x/y"},
		"/v2/schedules/https://a/pause": {"createSchedule", ""},
		"/v2/schedules/nightly/pause":   {"pauseScheduleByPost", ""},
		"/v2/dlq/retry/dlq_1":           {"retryFailed", ""},
		"/v2/queues/q/pause":            {"pauseDeliveryQueue", ""},
		"/v2/publish":                   {"", ""},
	} {
		got, params := match(http.MethodPost, path)
		id := ""
		if got != nil {
			id = got.ID
		}
		if id != want[0] || params["destination"] != want[1] {
			t.Errorf("%s is %q of %q, want %q", path, id, params["destination"], want)
		}
	}
}

func TestMatchPrefersStaticSegments(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api/v1/pop": "pop", "/api/v1/pop/queue/a%2Fb": "popQueue", "/api/v1/pop/queue/a/partition/b": "popPartition", "/api/v1/nothing": "",
	} {
		got, params := match(http.MethodGet, path)
		id := ""
		if got != nil {
			id = got.ID
		}
		if id != want {
			t.Errorf("%s is %q, want %q", path, id, want)
		}
		if want == "popQueue" && params["queue"] != "a/b" {
			t.Errorf("path parameters of %s: %v", path, params)
		}
	}
}
