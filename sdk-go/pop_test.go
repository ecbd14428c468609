package posthorn_test

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestPopRoutes(t *testing.T) {
	t.Parallel()
	for want, opts := range map[string]posthorn.PopOptions{
		"/api/v1/pop/queue/orders.created":                     {Queue: "orders.created"},
		"/api/v1/pop/queue/a%2Fb%20%25%3F%23&+%C3%A9":          {Queue: "a/b %?#&+é"},
		"/api/v1/pop/queue/%2E%2E/partition/%2E":               {Queue: "..", Partition: "."},
		"/api/v1/pop/queue/q/partition/x%2F%2Fy?batch=7":       {Queue: "q", Partition: "x//y", Batch: 7},
		"/api/v1/pop?namespace=a%26b&task=c+d":                 {Namespace: "a&b", Task: "c d"},
		"/api/v1/pop?task=t":                                   {Task: "t"},
		"/api/v1/pop":                                          {},
		"/api/v1/pop/queue/q?autoAck=true&partitions=-1":       {Queue: "q", AutoAck: true, Partitions: -1},
		"/api/v1/pop/queue/q?leaseSeconds=2":                   {Queue: "q", Lease: 1001 * time.Millisecond},
		"/api/v1/pop/queue/q?timeout=30000&wait=true":          {Queue: "q", Wait: true},
		"/api/v1/pop/queue/q?timeout=1&wait=true":              {Queue: "q", Wait: true, Timeout: time.Microsecond},
		"/api/v1/pop/queue/q?consumerGroup=g%2F1":              {Queue: "q", ConsumerGroup: "g/1", Timeout: time.Second}, // no Wait, no timeout
		"/api/v1/pop/queue/q?subscriptionMode=new":             {Queue: "q", SubscriptionMode: posthorn.SubscribeNew},
		"/api/v1/pop/queue/q?subscriptionFrom=2026-01-02":      {Queue: "q", SubscriptionFrom: "2026-01-02"},
		"/api/v1/pop/queue/q?partitions=3&timeout=5&wait=true": {Queue: "q", Partitions: 3, Wait: true, Timeout: 5 * time.Millisecond},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			server := newScript(t, answer(204, ""))
			got, err := newClient(t, server.URL, posthorn.Options{}).Pop(testContext(t), opts)
			if err != nil || got.Messages != nil {
				t.Errorf("got %+v, %v", got, err)
			}
			if seen := server.requests(1)[0]; seen.Method != "GET" || seen.Target != want || seen.Body != "" || seen.Header.Get("Content-Type") != "" {
				t.Errorf("sent %+v, want %s", seen, want)
			}
		})
	}
}

func TestPopChecksItsOptions(t *testing.T) {
	t.Parallel()
	server := newScript(t)
	client := newClient(t, server.URL, posthorn.Options{})
	for name, opts := range map[string]posthorn.PopOptions{
		"partition alone": {Partition: "p"},
		"two routes":      {Queue: "q", Namespace: "n"},
		"batch":           {Queue: "q", Batch: -1},
		"timeout":         {Queue: "q", Wait: true, Timeout: -1},
		"lease":           {Queue: "q", Lease: -1},
		"queue":           {Queue: "\xff"},
		"group":           {Queue: "q", ConsumerGroup: "\xff"},
	} {
		if _, err := client.Pop(testContext(t), opts); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	server.requests(0)
}

func TestPopReadsABatch(t *testing.T) {
	t.Parallel()
	const payload = "{ \"n\":1e400,\"n\":\"\\ud800<&>\\/\" ,\t\"x\":[1234567890123456789012345678901234567890]}"
	server := newScript(t, answer(200, `{"success":true,"queue":"q","partition":"p","partitionId":"pid","leaseId":"L","consumerGroup":"g","partitionsClaimed":2,"novel":[],
		"messages":[{"id":"m1","transactionId":"a\u0026b","traceId":null,"data":`+payload+`,"producerSub":null,"createdAt":"2026-01-02T03:04:05.678901Z",
		"partitionId":"pid","partition":"p","leaseId":"L","consumerGroup":"g","queue":"q","deliveryAttempt":3,"novel":{"data":0}},
		{"id":"m2","transactionId":"t2","traceId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","data":null,"producerSub":"alice","createdAt":"yesterday","partitionId":"pid2","partition":"p2"}]}`))
	got, err := newClient(t, server.URL, posthorn.Options{}).Pop(testContext(t), posthorn.PopOptions{Queue: "q"})
	if err != nil {
		t.Fatal(err)
	}
	want := posthorn.Batch{LeaseID: "L", ConsumerGroup: "g", PartitionsClaimed: 2, Messages: []posthorn.Message{
		{
			ID: "m1", TransactionID: "a&b", Queue: "q", Partition: "p", PartitionID: "pid", Payload: json.RawMessage(payload),
			CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC), ConsumerGroup: "g", LeaseID: "L", DeliveryAttempt: 3,
		},
		{
			ID: "m2", TransactionID: "t2", Queue: "q", Partition: "p2", PartitionID: "pid2", Payload: json.RawMessage("null"),
			TraceID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83", ProducerSub: "alice", ConsumerGroup: "g", LeaseID: "L",
		},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestMessageDecode(t *testing.T) {
	t.Parallel()
	m := posthorn.Message{ID: "m1", Payload: json.RawMessage(`{"orderId":8891}`)}
	var order struct{ OrderID int }
	if err := m.Decode(&order); err != nil || order.OrderID != 8891 {
		t.Errorf("got %+v, %v", order, err)
	}
	if err := m.Decode(new(int)); err == nil || !strings.Contains(err.Error(), "m1") {
		t.Errorf("error %v", err)
	}
}

func TestPopOutwaitsTheLongPoll(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]posthorn.PopOptions{
		"default poll": {Queue: "q", Wait: true},
		"long poll":    {Queue: "q", Wait: true, Timeout: 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, n := bubble(t, posthorn.Options{}, hold)
				if got, err := client.Pop(t.Context(), opts); err != nil || len(got.Messages) != 0 {
					t.Errorf("got %v, %v", got, err)
				}
				if n.Load() != 1 {
					t.Errorf("%d attempts", n.Load())
				}

				// A broker that never answers is given up 30 s after it should have.
				client, _ = bubble(t, posthorn.Options{Retry: posthorn.RetryPolicy{MaxAttempts: 1}}, silence)
				start := time.Now()
				_, err := client.Pop(context.WithoutCancel(t.Context()), opts)
				poll := opts.Timeout
				if poll == 0 {
					poll = 30 * time.Second
				}
				if took := time.Since(start); err == nil || took != poll+30*time.Second {
					t.Errorf("error %v after %v", err, took)
				}
			})
		})
	}
}
