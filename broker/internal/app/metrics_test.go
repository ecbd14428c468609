package app

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// TestExposedMetricsAreDocumented scrapes a broker that has been used a little.
func TestExposedMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t), "FILE_BUFFER_DIR=" + t.TempDir()}, "serve", "--listen", "127.0.0.1:0")
	call(t, http.MethodPost, c.url+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, "")
	call(t, http.MethodGet, c.url+"/api/v1/pop/queue/q?autoAck=true", "", "")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+"/metrics/prometheus", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	exposed, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../../docs/operations/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(exposed)) {
		rest, ok := strings.CutPrefix(line, "# HELP posthorn_")
		if !ok {
			continue
		}
		name, help, _ := strings.Cut(strings.TrimSpace(rest), " ")
		found[name] = true
		if !strings.Contains(string(document), "| `posthorn_"+name+"` |") || !strings.Contains(string(document), "| "+help+" |") {
			t.Errorf("posthorn_%s (%s) is not documented", name, help)
		}
	}
	for _, name := range []string{
		"pushes_total", "push_batch_items", "flush_seconds", "pop_messages_total", "claim_seconds", "pool_size", "spool_records",
		"spool_oldest_seconds", "queue_pending_messages", "queue_lag_seconds", "queues_not_shown", "pops_parked", "ack_seconds",
		"publishes_total", "delivery_attempts_total", "delivery_tasks", "delivery_oldest_due_seconds", "schedule_ticks_total",
	} {
		if !found[name] {
			t.Errorf("posthorn_%s is not exposed", name)
		}
	}
}
