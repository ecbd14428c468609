package posthorn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// broker stands in for a broker in these examples: it gives each route its answers in turn, then the
// last one again, and 204 to a pop that has none left.
func broker(answers map[string][]string) *httptest.Server {
	var mu sync.Mutex
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		route := r.Method + " " + r.URL.Path
		left := answers[route]
		switch {
		case len(left) == 0:
			w.WriteHeader(http.StatusNoContent)
			return
		case len(left) > 1 || r.Method == http.MethodGet:
			answers[route] = left[1:]
		}
		_, _ = w.Write([]byte(left[0]))
	}))
}

const popped = `{"success":true,"queue":"orders.created","leaseId":"0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60","consumerGroup":"billing","partitionsClaimed":1,
	"messages":[{"id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transactionId":"order-8891-created","data":{"orderId":8891},"queue":"orders.created",
	"partition":"customer-42","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84","createdAt":"2026-01-02T03:04:05.678901Z","deliveryAttempt":1}]}`

func Example() {
	server := broker(map[string][]string{
		"POST /api/v1/push":                    {`[{"index":0,"message_id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transaction_id":"order-8891-created","queueName":"orders.created","status":"queued"}]`},
		"GET /api/v1/pop/queue/orders.created": {popped},
		"POST /api/v1/ack":                     {`[{"index":0,"transactionId":"order-8891-created","success":true,"error":null,"leaseReleased":true}]`},
	})
	defer server.Close()

	ctx := context.Background()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	_, err = client.Push(ctx, []posthorn.Item{{
		Queue: "orders.created", Partition: "customer-42", TransactionID: "order-8891-created",
		Payload: map[string]int{"orderId": 8891},
	}})
	if err != nil {
		log.Fatal(err)
	}

	batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: "orders.created", ConsumerGroup: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range batch.Messages {
		fmt.Printf("%s of %s: %s\n", m.TransactionID, m.Partition, m.Payload)
		if _, err := client.Ack(ctx, "billing", m.Ack(posthorn.AckCompleted, nil)); err != nil {
			log.Fatal(err)
		}
	}
	// Output: order-8891-created of customer-42: {"orderId":8891}
}

func ExampleNew() {
	client, err := posthorn.New("https://broker.example.com/posthorn", posthorn.Options{
		Token:   os.Getenv("POSTHORN_TOKEN"),
		Timeout: 10 * time.Second,
		Retry:   posthorn.RetryPolicy{MaxAttempts: 6, MaxDelay: 2 * time.Second},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	_, err = posthorn.New("broker.example.com", posthorn.Options{})
	fmt.Println(err)
	// Output: posthorn: new client: base URL "broker.example.com" does not start with http:// or https://
}

// Each item has its own outcome, and a transaction id that was already stored is no error.
func ExampleClient_Push() {
	server := broker(map[string][]string{"POST /api/v1/push": {`[
		{"index":0,"message_id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transaction_id":"order-8891-created","queueName":"orders.created","status":"duplicate"},
		{"index":1,"message_id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b85","transaction_id":"order-8892-created","queueName":"orders.created","status":"buffered"}]`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	type order struct {
		ID int `json:"orderId"`
	}
	results, err := client.Push(context.Background(), []posthorn.Item{
		{Queue: "orders.created", Partition: "customer-42", TransactionID: "order-8891-created", Payload: order{8891}},
		{Queue: "orders.created", Partition: "customer-43", TransactionID: "order-8892-created", Payload: json.RawMessage(`{"orderId":8892}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, result := range results {
		fmt.Println(result.TransactionID, result.Status)
	}
	// Output:
	// order-8891-created duplicate
	// order-8892-created buffered
}

// What a push could not store is in its error, ready to be pushed again.
func ExampleClient_Push_failed() {
	server := broker(map[string][]string{"POST /api/v1/push": {
		`[{"index":0,"transaction_id":"a","queueName":"q","status":"queued"},{"index":1,"transaction_id":"b","queueName":"q","status":"failed"}]`,
		`[{"index":0,"transaction_id":"b","queueName":"q","status":"queued"}]`,
	}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{Retry: posthorn.RetryPolicy{MaxAttempts: 1}})
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	_, err = client.Push(ctx, []posthorn.Item{{Queue: "q", TransactionID: "a"}, {Queue: "q", TransactionID: "b"}})
	if failed, ok := errors.AsType[*posthorn.PushError](err); ok {
		fmt.Println(err)
		results, err := client.Push(ctx, failed.Items)
		fmt.Println(results[0].TransactionID, results[0].Status, err)
	}
	// Output:
	// posthorn: push: failed for 1 items, first: items[1]
	// b queued <nil>
}

// A long poll waits for the first message. Nothing in time is an empty batch, not an error.
func ExampleClient_Pop() {
	server := broker(map[string][]string{"GET /api/v1/pop/queue/orders.created/partition/customer-42": {popped}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		batch, err := client.Pop(context.Background(), posthorn.PopOptions{
			Queue: "orders.created", Partition: "customer-42", ConsumerGroup: "billing",
			Batch: 10, Wait: true, Timeout: 20 * time.Second, Lease: 2 * time.Minute,
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(len(batch.Messages), "messages")
	}
	// Output:
	// 1 messages
	// 0 messages
}

// Discovery pops from every queue of a namespace or of a task.
func ExampleClient_Pop_discovery() {
	server := broker(map[string][]string{"GET /api/v1/pop": {popped}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	batch, err := client.Pop(context.Background(), posthorn.PopOptions{
		Namespace: "orders", ConsumerGroup: "audit", Partitions: 4, SubscriptionMode: posthorn.SubscribeNew,
	})
	if err != nil {
		log.Fatal(err)
	}
	var order struct{ OrderID int }
	if err := batch.Messages[0].Decode(&order); err != nil {
		log.Fatal(err)
	}
	fmt.Println(batch.Messages[0].Queue, order.OrderID)
	// Output: orders.created 8891
}

func ExampleClient_Ack() {
	server := broker(map[string][]string{"POST /api/v1/ack": {`[{"index":0,"transactionId":"order-8891-created","success":true,"error":null,"dlq":true,"leaseReleased":true}]`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	m := posthorn.Message{ // of a pop
		TransactionID: "order-8891-created", PartitionID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84",
		LeaseID: "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60", ConsumerGroup: "billing",
	}
	result, err := client.Ack(context.Background(), m.ConsumerGroup, m.Ack(posthorn.AckFailed, errors.New("card declined")))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("dead-lettered:", result.DeadLettered)
	// Output: dead-lettered: true
}

func ExampleClient_AckBatch() {
	server := broker(map[string][]string{"POST /api/v1/ack/batch": {`[{"index":0,"transactionId":"a","success":true,"error":null},
		{"index":1,"transactionId":"b","success":false,"error":"invalid or expired lease"}]`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.AckBatch(context.Background(), "billing", []posthorn.AckItem{
		{TransactionID: "a", PartitionID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", LeaseID: "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"},
		{TransactionID: "b", PartitionID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b85", LeaseID: "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"},
	})
	if refused, ok := errors.AsType[*posthorn.AckError](err); ok {
		for _, item := range refused.Items {
			fmt.Println(item.TransactionID, "lease lost:", errors.Is(item, posthorn.ErrLeaseExpired))
		}
	}
	// Output: b lease lost: true
}

// What was made of a message is pushed in the transaction that acknowledges it.
func ExampleClient_Transaction() {
	server := broker(map[string][]string{
		"GET /api/v1/pop/queue/orders.created": {`{"leaseId":"lease-1","messages":[{"id":"m1","transactionId":"order-8891-created","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84","data":{"orderId":8891}}]}`},
		"POST /api/v1/transaction": {`{"transactionId":"0198f2c1-6a01-7b11-8c22-2b3c4d5e6f70","success":true,"results":[
			{"index":0,"type":"push","success":true,"transactionId":"invoice-8891","messageId":"0198f2c1-6a01-7b11-8c22-2b3c4d5e6f71","queueName":"invoices"},
			{"index":1,"type":"ack","success":true,"transactionId":"order-8891-created","error":null,"dlq":false}]}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: "orders.created", Batch: 1})
	if err != nil {
		log.Fatal(err)
	}
	order := batch.Messages[0]
	done, err := client.Transaction(ctx, posthorn.Transaction{
		Push: []posthorn.TransactionItem{{Item: posthorn.Item{Queue: "invoices", TransactionID: "invoice-8891", Payload: order.Payload}}},
		Ack:  []posthorn.TransactionAck{{AckItem: order.Ack(posthorn.AckCompleted, nil)}},
	})
	switch {
	case errors.Is(err, posthorn.ErrDuplicate):
		fmt.Println("invoiced before")
	case err != nil:
		log.Fatal(err)
	default:
		fmt.Println(done.Pushed[0].TransactionID, done.Pushed[0].Queue)
	}
	// Output: invoice-8891 invoices
}

// A processor counts messages per window. State, result and acknowledgement are committed together.
func ExampleClient_CycleStream() {
	server := broker(map[string][]string{
		"POST /streams/v1/queries":             {`{"success":true,"query_id":"0198f2c1-7b01-4c11-8d22-3c4d5e6f7081","name":"rates","config_hash":"v1","fresh":true,"reset":false}`},
		"GET /api/v1/pop/queue/orders.created": {`{"leaseId":"lease-1","messages":[{"id":"m1","transactionId":"order-8891-created","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84","data":{"orderId":8891}}]}`},
		"POST /streams/v1/state/get":           {`{"success":true,"rows":[{"key":"count","value":2,"updated_at":"2026-01-15T10:30:00.000000Z"}]}`},
		"POST /streams/v1/cycle":               {`{"success":true,"queueName":"orders.created","state_ops_applied":1,"push_results":[],"ack_result":{"success":true,"count":1,"lease_released":true,"dlq":false}}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	query, err := client.RegisterStream(ctx, posthorn.StreamQuery{Name: "rates", SourceQueue: "orders.created", ConfigHash: "v1"})
	if err != nil {
		log.Fatal(err)
	}
	batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: "orders.created"})
	if err != nil {
		log.Fatal(err)
	}
	last := batch.Messages[len(batch.Messages)-1]
	state, err := client.GetStreamState(ctx, posthorn.StreamStateOptions{QueryID: query.ID, PartitionID: last.PartitionID, Keys: []string{"count"}})
	if err != nil {
		log.Fatal(err)
	}
	count := 0
	for _, value := range state {
		if err := json.Unmarshal(value.Value, &count); err != nil {
			log.Fatal(err)
		}
	}
	count += len(batch.Messages)
	ack := last.Ack(posthorn.AckCompleted, nil)
	done, err := client.CycleStream(ctx, posthorn.StreamCycle{
		QueryID: query.ID, PartitionID: last.PartitionID, Ack: &ack, Count: len(batch.Messages),
		State: []posthorn.StreamStateOp{{Key: "count", Value: count}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(count, "messages,", done.Applied, "value written")
	// Output: 3 messages, 1 value written
}

func ExampleClient_Extend() {
	server := broker(map[string][]string{"POST /api/v1/lease/0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60/extend": {
		`{"success":true,"renewed":1,"newExpiresAt":"2026-01-02T03:06:05.678901Z"}`,
		`{"success":false,"renewed":0,"newExpiresAt":null}`,
	}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		lease, err := client.Extend(context.Background(), "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60", 2*time.Minute)
		if errors.Is(err, posthorn.ErrLeaseExpired) {
			fmt.Println("too late")
			return
		}
		fmt.Println("held until", lease.ExpiresAt.Format(time.TimeOnly))
	}
	// Output:
	// held until 03:06:05
	// too late
}

// An option that is not given goes back to its default.
func ExampleClient_Configure() {
	server := broker(map[string][]string{"POST /api/v1/configure": {`{"configured":true,"queueId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b80","queue":"orders.created",
		"namespace":"orders","task":"created","options":{"leaseTime":120,"retryLimit":3,"dedupWindowSeconds":86400}}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	queue, err := client.Configure(context.Background(), "orders.created", posthorn.QueueOptions{
		Namespace: "orders", Task: "created",
		LeaseTime:   new(2 * time.Minute),
		DedupWindow: new(24 * time.Hour),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("leases for", *queue.Options.LeaseTime, "and retries", *queue.Options.RetryLimit, "times")
	// Output: leases for 2m0s and retries 3 times
}

func ExampleClient_ListQueues() {
	server := broker(map[string][]string{"GET /api/v1/resources/queues": {`{"queues":[{"name":"orders.created","partitions":2,"messages":{"total":10,"pending":7,"processing":1}}]}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	queues, err := client.ListQueues(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, q := range queues {
		fmt.Println(q.Name, "has", q.Messages.Pending, "messages to deliver")
	}
	// Output: orders.created has 7 messages to deliver
}

func ExampleClient_GetQueue() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error":"Queue not found"}`))
	}))
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.GetQueue(context.Background(), "orders.craeted")
	if errors.Is(err, posthorn.ErrNotFound) {
		fmt.Println(err)
	}
	// Output: posthorn: getQueue: 404 Queue not found
}

func ExampleClient_DeleteQueue() {
	server := broker(map[string][]string{"DELETE /api/v1/resources/queues/orders.created": {`{"deleted":true,"queue":"orders.created","existed":true}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	existed, err := client.DeleteQueue(context.Background(), "orders.created")
	fmt.Println(existed, err)
	// Output: true <nil>
}

func ExampleClient_Health() {
	server := broker(map[string][]string{"GET /health": {`{"status":"healthy","database":"connected","engine":"segments","version":"1.0.0"}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	health, err := client.Health(context.Background())
	fmt.Println(health.Status, health.Database, err)
	// Output: healthy connected <nil>
}

// A consumer that stops on SIGTERM: running handlers finish and what they did is acknowledged.
func ExampleClient_Consume() {
	server := broker(map[string][]string{
		"GET /api/v1/pop/queue/orders.created": {popped},
		"POST /api/v1/ack/batch":               {`[{"index":0,"transactionId":"order-8891-created","success":true,"error":null}]`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err = client.Consume(ctx, posthorn.ConsumeOptions{
		Queue: "orders.created", ConsumerGroup: "billing", Concurrency: 4,
	}, func(_ context.Context, m posthorn.Message) error {
		fmt.Printf("billing %s\n", m.Payload)
		stop() // here instead of a signal
		return nil
	})
	fmt.Println("stopped:", err)
	// Output:
	// billing {"orderId":8891}
	// stopped: <nil>
}

// A handler's error is retried as often as the queue allows, unless it says otherwise.
func ExampleDeadLetter() {
	charge := func(posthorn.Message) error { return errors.New("the card does not exist") }
	reachable := func() bool { return true }

	handler := func(_ context.Context, m posthorn.Message) error {
		if !reachable() {
			return posthorn.Retry(errors.New("the bank is closed")) // not the message's fault
		}
		if err := charge(m); err != nil {
			return posthorn.DeadLetter(fmt.Errorf("charge %s: %w", m.TransactionID, err)) // will never work
		}
		return nil
	}
	fmt.Println(handler(context.Background(), posthorn.Message{TransactionID: "order-8891-created"}))
	// Output: charge order-8891-created: the card does not exist
}

func ExampleAPIError() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"bad body: items[0].queue must not be empty"}`))
	}))
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	_, err = client.Push(context.Background(), []posthorn.Item{{Payload: 1}})
	if refusal, ok := errors.AsType[*posthorn.APIError](err); ok {
		fmt.Println(refusal.Status, refusal.Message)
	}
	// Output: 400 bad body: items[0].queue must not be empty
}

// A server that takes deliveries, and turns away what the broker has not signed.
func ExampleReceiver() {
	receiver, err := posthorn.NewReceiver(posthorn.ReceiverOptions{
		CurrentSigningKey: "sig_current", // from the broker's keys
		NextSigningKey:    "sig_next",
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := receiver.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		delivery, _ := posthorn.DeliveryFrom(r.Context())
		fmt.Println("received", delivery.MessageID)
		w.WriteHeader(http.StatusOK)
	}))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader("forged")))
	fmt.Println(w.Code)
	// Output: 401
}
