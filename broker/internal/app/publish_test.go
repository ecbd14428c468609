package app

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// TestPublishIntoQueue publishes into partitions of ordered queues: each message is popped once, under its deduplication id.
func TestPublishIntoQueue(t *testing.T) {
	t.Parallel()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t), "FILE_BUFFER_DIR=" + t.TempDir()}, "serve", "--listen", "127.0.0.1:0")
	for path, want := range map[string]int{
		"/v1/publish/queue:orders%2Fnew/customer%2F42?upstash-deduplication-id=one": 201,
		"/v1/publish/queue:orders%2fnew/customer%2f42?upstash-deduplication-id=two": 201,
		"/v2/publish/queue:orders%2Fnew":                                            200,
	} {
		if status, text := c.do("POST", path, `{"path":"`+strings.ToUpper(path)+`"}`); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	got := map[string]string{}
	c.waitFor("all messages", func() bool {
		status, text := c.do("GET", "/api/v1/pop/queue/orders%2Fnew?autoAck=true&batch=10", "")
		if status == 204 {
			return len(got) == 3
		}
		var out struct {
			Messages []struct{ Partition, TransactionID string } `json:"messages"`
		}
		if err := json.Unmarshal([]byte(text), &out); err != nil || status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		for _, m := range out.Messages {
			if got[m.TransactionID] != "" {
				t.Errorf("%s came twice", m.TransactionID)
			}
			got[m.TransactionID] = m.Partition
		}
		return len(got) == 3
	})
	for id, partition := range got {
		if want := map[string]string{"one": "customer/42", "two": "customer/42"}[id]; partition != want && (want != "" || partition != "Default" || !strings.HasPrefix(id, "msg_")) {
			t.Errorf("%s is in partition %q", id, partition)
		}
	}
}
