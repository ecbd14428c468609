package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/auth"
)

// refused reads the counters of refusals.
func (b *broker) refused(t *testing.T) map[string]string {
	t.Helper()
	counts := map[string]string{}
	req := b.request(http.MethodGet, "/metrics/prometheus", nil)
	req.Header.Set("Authorization", "Bearer refusals-admin-token")
	for line := range strings.Lines(string(b.send(req).body)) {
		if rest, ok := strings.CutPrefix(line, `posthorn_publish_refusals_total{reason="`); ok {
			reason, value, _ := strings.Cut(strings.TrimSpace(rest), `"} `)
			counts[reason] = value
		}
	}
	return counts
}

// TestRefusalsAreCounted counts what is not accepted by its reason, each item of a batch by itself, and nothing else.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	a, err := auth.New(auth.Config{Tokens: "admin:refusals-admin-token,read-only:refusals-reading-token"})
	if err != nil {
		t.Fatal(err)
	}
	b, h := start(t, func(c *Config) { c.Auth, c.MaxRetries, c.MaxBody = a, 5, 10_000 }), newHook(t, 200)
	if got := b.refused(t); len(got) != len(refusals) || got["invalid"] != "0" {
		t.Fatalf("%v", got)
	}
	const token = "Bearer refusals-admin-token"
	for _, c := range []struct {
		path, body string
		headers    []string
		status     int
	}{
		{"/v1/publish/" + h.URL, "x", nil, 201},
		{"/v1/publish/" + h.URL, "x", []string{"Upstash-Delay", "soon"}, 400},
		{"/v2/publish/ftp://x", "x", nil, 400},
		{"/v2/schedules/" + h.URL, "x", nil, 400},
		{"/v2/enqueue/q/http://10.0.0.1/", "x", nil, 400},
		{"/v2/publish/" + h.URL, "x", []string{"Upstash-Callback", "http://10.0.0.1/"}, 400},
		{"/v1/publish/nobody", "x", nil, 404},
		{"/v1/publish/" + h.URL, "x", []string{"Upstash-Retries", "6"}, 412},
		{"/v1/publish/" + h.URL, strings.Repeat("x", 20_000), nil, 413},
		{"/v1/publish/" + h.URL, "x", []string{"Authorization", "Bearer wrong"}, 401},
		{"/v1/publish/" + h.URL, "x", []string{"Authorization", "Bearer refusals-reading-token"}, 403},
		{"/v2/batch", `[{"destination":"` + h.URL + `"},{"destination":"nobody"},{"destination":"http://10.0.0.1/"},{"destination":"ftp://x"},{"destination":"` + h.URL + `","headers":{"Upstash-Retries":"6"}}]`, nil, 200},
		{"/v2/batch", `{}`, nil, 400},
	} {
		if len(c.headers) == 0 || c.headers[0] != "Authorization" {
			c.headers = append(c.headers, "Authorization", token)
		}
		if r := b.publish(c.path, c.body, c.headers...); r.status != c.status {
			t.Errorf("%s %v: %d %s", c.path, c.headers, r.status, r.body)
		}
	}
	b.cut.Store(true)
	if r := b.publish("/v1/publish/"+h.URL, "x", "Authorization", token); r.status != 503 {
		t.Errorf("%d %s", r.status, r.body)
	}
	b.cut.Store(false)
	want := map[string]string{"invalid": "5", "blocked": "3", "not-found": "2", "quota": "2", "size": "1", "unauthorized": "2", "unavailable": "1", "other": "0"}
	got := b.refused(t)
	for reason, n := range want {
		if got[reason] != n {
			t.Errorf("%s: %s, want %s", reason, got[reason], n)
		}
	}
}
