package posthorn_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// A message that is delivered in an hour, at most twice more when that fails, and once however often this runs.
func ExampleClient_Publish() {
	server := broker(map[string][]string{"POST /v2/publish/https://example.com/hook": {`{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","url":"https://example.com/hook"}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	retries := 2
	messages, err := client.Publish(context.Background(), posthorn.Publication{
		Destination: "https://example.com/hook", Body: []byte(`{"orderId":8891}`), ContentType: "application/json",
		Delay: time.Hour, Retries: &retries, DeduplicationID: "order-8891-reminder",
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(messages[0].MessageID, messages[0].Duplicate)
	// Output: msg_0198f2c14d3a7c109f2b6a1e5d0c7b80 false
}

// Everybody in a topic is told.
func ExampleClient_PublishJSON() {
	server := broker(map[string][]string{"POST /v2/publish/news": {`[{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","url":"https://example.com/hook"}]`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := client.PublishJSON(context.Background(), posthorn.Publication{Destination: "news"}, map[string]int{"orderId": 8891})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range messages {
		fmt.Println(m.URL)
	}
	// Output: https://example.com/hook
}

func ExampleClient_PublishBatch() {
	server := broker(map[string][]string{"POST /v2/batch": {`[{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","url":"https://example.com/hook"},{"error":"topic news not found"}]`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	results, err := client.PublishBatch(context.Background(), []posthorn.Publication{
		{Destination: "https://example.com/hook", Body: []byte("one")}, {Destination: "news", Body: []byte("two")},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		fmt.Println(len(r.Messages), r.Err)
	}
	// Output:
	// 1 <nil>
	// 0 topic news not found
}

func ExampleClient_CancelPublished() {
	server := broker(map[string][]string{"DELETE /v2/messages/msg_0198f2c14d3a7c109f2b6a1e5d0c7b80": {`{"cancelled":1}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = client.CancelPublished(context.Background(), "msg_0198f2c14d3a7c109f2b6a1e5d0c7b80")
	if errors.Is(err, posthorn.ErrNotFound) {
		fmt.Println("too late")
	}
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_ListEvents() {
	server := broker(map[string][]string{"GET /v2/events": {`{"events":[{"time":1767225600000,"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","state":"FAILED","url":"https://example.com/hook","error":"the destination answered 500"}]}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	page, err := client.ListEvents(context.Background(), posthorn.EventOptions{States: []posthorn.DeliveryState{posthorn.DeliveryFailed}})
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range page.Events {
		fmt.Println(e.URL, e.Error)
	}
	// Output: https://example.com/hook the destination answered 500
}
