package posthorn_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// Both benchmarks leave the network out: they measure what the client adds to it.

func BenchmarkPush(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			items := make([]posthorn.Item, n)
			results := make([]string, n)
			for i := range items {
				items[i] = posthorn.Item{Queue: "orders.created", Partition: "customer-42", Payload: json.RawMessage(`{"orderId":8891,"total":4200}`)}
				results[i] = fmt.Sprintf(`{"index":%d,"message_id":%q,"transaction_id":%q,"queueName":"orders.created","status":"queued"}`, i, posthorn.ZeroID, posthorn.ZeroID)
			}
			client := newClient(b, "http://broker", posthorn.Options{HTTPClient: &http.Client{Transport: canned("[" + strings.Join(results, ",") + "]")}})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Push(b.Context(), items); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPop(b *testing.B) {
	message := `{"id":"` + posthorn.ZeroID + `","transactionId":"` + posthorn.ZeroID + `","traceId":null,"data":{"orderId":8891,"total":4200},"producerSub":null,` +
		`"createdAt":"2026-01-02T03:04:05.678901Z","partitionId":"` + posthorn.ZeroID + `","partition":"customer-42","leaseId":"` + posthorn.ZeroID + `",` +
		`"consumerGroup":"billing","queue":"orders.created","deliveryAttempt":1}`
	body := `{"success":true,"messages":[` + strings.Repeat(message+",", 99) + message + `]}`
	client := newClient(b, "http://broker", posthorn.Options{HTTPClient: &http.Client{Transport: canned(body)}})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Pop(b.Context(), posthorn.PopOptions{Queue: "orders.created"}); err != nil {
			b.Fatal(err)
		}
	}
}

// canned is a transport that gives every request one answer.
type canned string

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(string(c))), ContentLength: int64(len(c))}, nil
}
