package app

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// receiver is an OTLP/HTTP collector.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	spans    []*otlp.Span
	services map[string]string // resource attributes of the last export
}

func receive(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{services: map[string]string{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var export collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, &export) != nil {
			t.Errorf("%s %s: %v", req.Method, req.URL.Path, err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, resource := range export.GetResourceSpans() {
			for _, a := range resource.GetResource().GetAttributes() {
				r.services[a.GetKey()] = a.GetValue().GetStringValue()
			}
			for _, scope := range resource.GetScopeSpans() {
				r.spans = append(r.spans, scope.GetSpans()...)
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// named returns the only span of a name.
func (r *receiver) named(t *testing.T, name string) *otlp.Span {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var found *otlp.Span
	for _, s := range r.spans {
		if s.GetName() == name {
			if found != nil {
				t.Fatalf("there are several spans %s", name)
			}
			found = s
		}
	}
	if found == nil {
		t.Fatalf("there is no span %s among %d", name, len(r.spans))
	}
	return found
}

// call sends a request with a traceparent, "" for none, and returns the traceparents of the messages in the answer.
func call(t *testing.T, method, url, body, traceparent string) (parents []string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if traceparent != "" {
		req.Header.Set("traceparent", traceparent)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %d %s %v", method, url, res.StatusCode, answer, err)
	}
	var popped struct {
		Messages []struct {
			TraceParent string `json:"traceparent"`
		} `json:"messages"`
	}
	if method == http.MethodGet && len(answer) > 0 {
		if err := json.Unmarshal(answer, &popped); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range popped.Messages {
		parents = append(parents, m.TraceParent)
	}
	return parents
}

const (
	sampled   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	unsampled = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00"
)

func TestTracesLeadFromPushToPop(t *testing.T) {
	t.Parallel()
	r := receive(t)
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t), "OTEL_EXPORTER_OTLP_ENDPOINT=" + r.URL, "POSTHORN_OTEL_PERCENT=0"}, "serve", "--listen", "127.0.0.1:0")
	push := c.url + "/api/v1/push"
	call(t, http.MethodPost, push, `{"items":[{"queue":"q","payload":1}]}`, sampled)
	call(t, http.MethodPost, push, `{"items":[{"queue":"q","payload":2}]}`, unsampled)
	call(t, http.MethodPost, push, `{"items":[{"queue":"q","payload":3}]}`, "")
	call(t, http.MethodGet, c.url+"/health", "", sampled)
	parents := call(t, http.MethodGet, c.url+"/api/v1/pop/queue/q?consumerGroup=g", "", sampled)
	if len(parents) != 3 || parents[1] != unsampled || parents[2] != "" {
		t.Fatalf("popped with %q", parents)
	}
	c.signal()
	if status := c.status(); status != 0 {
		t.Fatalf("exit %d:\n%s", status, c.stderr)
	}
	pushed, popped := r.named(t, "push"), r.named(t, "popQueue")
	if got := hex.EncodeToString(pushed.GetTraceId()) + "-" + hex.EncodeToString(pushed.GetParentSpanId()); got != sampled[3:52] {
		t.Errorf("the push's span continues %s", got)
	}
	if want := "00-" + hex.EncodeToString(pushed.GetTraceId()) + "-" + hex.EncodeToString(pushed.GetSpanId()) + "-01"; parents[0] != want {
		t.Errorf("the message was popped with %s, want %s", parents[0], want)
	}
	if links := popped.GetLinks(); len(links) != 2 || string(links[0].GetSpanId()) != string(pushed.GetSpanId()) {
		t.Errorf("the pop's span has the links %v", links)
	}
	if r.services["service.name"] != "posthorn" || r.services["service.version"] != "1.2.3" || r.services["service.instance.id"] == "" {
		t.Errorf("resource %v", r.services)
	}
	if len(r.spans) != 2 {
		t.Errorf("%d spans were exported", len(r.spans))
	}
}

// TestTracesWithoutACollector: a collector that is away delays nothing, and a stop stays clean.
func TestTracesWithoutACollector(t *testing.T) {
	t.Parallel()
	r := receive(t)
	r.Close()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t), "POSTHORN_OTEL_ENDPOINT=" + r.URL}, "serve", "--listen", "127.0.0.1:0")
	call(t, http.MethodPost, c.url+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, "")
	if parents := call(t, http.MethodGet, c.url+"/api/v1/pop/queue/q", "", ""); len(parents) != 1 || parents[0] == "" {
		t.Errorf("popped with %q", parents)
	}
	c.signal()
	if status := c.status(); status != 0 {
		t.Errorf("exit %d:\n%s", status, c.stderr)
	}
}

func TestTracesAreOffByDefault(t *testing.T) {
	t.Parallel()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t)}, "serve", "--listen", "127.0.0.1:0")
	call(t, http.MethodPost, c.url+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, sampled)
	call(t, http.MethodPost, c.url+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, "nonsense")
	call(t, http.MethodPost, c.url+"/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":1}]}`, unsampled)
	if parents := call(t, http.MethodGet, c.url+"/api/v1/pop/queue/q", "", ""); len(parents) != 3 || parents[2] != unsampled || parents[0] != sampled || parents[1] != "" {
		t.Errorf("popped with %q", parents)
	}
}
