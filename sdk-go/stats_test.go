package posthorn_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestTraceParentTravels(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Header.Get("Traceparent"))
		_, _ = w.Write([]byte(`{"success":true,"leaseId":"","messages":[{"id":"m","transactionId":"t","data":1,"traceparent":"` + parent + `"},{"id":"n","transactionId":"u","data":2}]}`))
	}))
	t.Cleanup(server.Close)
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		t.Fatal(err)
	}
	traced := posthorn.WithTraceParent(t.Context(), parent)
	for _, ctx := range []context.Context{t.Context(), traced, posthorn.WithTraceParent(traced, ""), posthorn.WithTraceParent(traced, "a\r\nb")} {
		batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: "q"})
		if err != nil || batch.Messages[0].TraceParent != parent || batch.Messages[1].TraceParent != "" {
			t.Errorf("popped %+v, %v", batch, err)
		}
	}
	if len(sent) != 4 || sent[0] != "" || sent[1] != parent || sent[2] != "" || sent[3] != "" {
		t.Errorf("sent %q", sent)
	}
}

// Which queues consumers leave behind.
func ExampleClient_GetQueueLag() {
	server := broker(map[string][]string{
		"GET /api/v1/analytics/queue-lag": {`{"queues":[{"queue":"orders.created","namespace":"orders","task":"created","partitions":5,"partitionsBehind":2,"open":4,
			"lag":{"time":{"avg":12,"median":0,"min":0,"max":60},"offset":{"avg":0.8,"median":0,"min":0,"max":3}}}]}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	queues, err := client.GetQueueLag(context.Background(), posthorn.StatsFilter{Namespace: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	for _, q := range queues {
		fmt.Printf("%s: %d messages behind, the oldest for %v s\n", q.Queue, q.Open, q.Lag.Time.Max)
	}
	// Output: orders.created: 4 messages behind, the oldest for 60 s
}

// How many messages were pushed in each of the last hours.
func ExampleClient_GetAnalytics() {
	server := broker(map[string][]string{
		"GET /api/v1/status/analytics": {`{"dataPoints":[{"timestamp":"2026-01-02T03:00:00.000000Z","messages":90,"processed":75,"delivered":80,"failed":1,"deadLettered":0}],
			"interval":"hour","from":"2026-01-02T03:00:00.000000Z","to":"2026-01-02T04:00:00.000000Z"}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	points, err := client.GetAnalytics(context.Background(), "hour", posthorn.StatsFilter{Queue: "orders.created"})
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range points {
		fmt.Println(p.Timestamp.Format("15:04"), p.Messages)
	}
	// Output: 03:00 90
}
