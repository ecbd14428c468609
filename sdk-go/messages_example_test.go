package posthorn_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

const storedOrder = `{"id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transactionId":"order-8891","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84",
	"queue":"orders.created","partition":"customer-42","status":"dead_letter","createdAt":"2026-01-15T10:31:00.123456Z","data":{"orderId":8891}`

// exampleClient returns a client of a stand-in for a broker, and what ends both.
func exampleClient(answers map[string][]string) (*posthorn.Client, func()) {
	server := broker(answers)
	client, err := posthorn.New(server.URL, posthorn.Options{Retry: posthorn.RetryPolicy{MaxAttempts: 1}})
	if err != nil {
		log.Fatal(err)
	}
	return client, server.Close
}

func ExampleClient_ListMessages() {
	client, end := exampleClient(map[string][]string{"GET /api/v1/messages": {`{"messages":[` + storedOrder + `}],"mode":{"busGroupsCount":1}}`, `{"messages":[]}`}})
	defer end()

	filter := posthorn.MessageFilter{Queue: "orders.created", Status: posthorn.MessageDeadLetter}
	for {
		page, err := client.ListMessages(context.Background(), filter)
		if err != nil {
			log.Fatal(err)
		}
		if len(page.Messages) == 0 {
			break
		}
		for _, m := range page.Messages {
			fmt.Printf("%s of %s: %s\n", m.TransactionID, m.Partition, m.Payload)
		}
		filter.Offset += len(page.Messages)
	}
	// Output: order-8891 of customer-42: {"orderId":8891}
}

func ExampleClient_GetMessage() {
	client, end := exampleClient(map[string][]string{"GET /api/v1/messages/0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84/order-8891": {
		storedOrder + `,"errorMessage":"card declined","retryCount":3,"consumerGroups":[{"name":"billing","consumed":true}]}`,
	}})
	defer end()

	m, err := client.GetMessage(context.Background(), "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", "order-8891")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Status, "after", m.Retries, "retries:", m.Error)
	// Output: dead_letter after 3 retries: card declined
}

func ExampleClient_ListDeadLetters() {
	client, end := exampleClient(map[string][]string{"GET /api/v1/dlq": {
		`{"messages":[` + storedOrder + `,"consumerGroup":"billing","errorMessage":"card declined"}],"total":1}`,
	}})
	defer end()

	page, err := client.ListDeadLetters(context.Background(), posthorn.DeadLetterFilter{Queue: "orders.created"}, 0, 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range page.Entries {
		fmt.Println(d.ConsumerGroup, "could not take", d.TransactionID+":", d.Error)
	}
	// Output: billing could not take order-8891: card declined
}

func ExampleClient_DeleteDeadLetter() {
	client, end := exampleClient(map[string][]string{"DELETE /api/v1/messages/0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84/order-8891": {`{"success":true}`}})
	defer end()

	err := client.DeleteDeadLetter(context.Background(), "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", "order-8891")
	if errors.Is(err, posthorn.ErrNotFound) {
		fmt.Println("it is no dead letter")
	}
	fmt.Println(err)
	// Output: <nil>
}

func ExampleClient_PurgeDeadLetters() {
	client, end := exampleClient(map[string][]string{"DELETE /api/v1/dlq": {`{"deleted":1000,"remaining":3}`, `{"deleted":3,"remaining":0}`}})
	defer end()

	for remaining := 1; remaining > 0; {
		purged, err := client.PurgeDeadLetters(context.Background(), posthorn.DeadLetterFilter{Queue: "orders.created"}, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("deleted", purged.Deleted)
		remaining = purged.Remaining
	}
	// Output:
	// deleted 1000
	// deleted 3
}

func ExampleClient_RetryDeadLetter() {
	client, end := exampleClient(map[string][]string{"POST /api/v1/messages/0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84/order-8891/retry": {
		`{"success":true,"queue":"orders.created","partition":"customer-42","replayedAs":{"transaction_id":"0198f2c1-9d3a-7c10-9f2b-6a1e5d0c7b99"}}`,
	}})
	defer end()

	replay, err := client.RetryDeadLetter(context.Background(), "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", "order-8891")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("order-8891 is", replay.TransactionID, "now")
	// Output: order-8891 is 0198f2c1-9d3a-7c10-9f2b-6a1e5d0c7b99 now
}

func ExampleClient_ReplayDeadLetters() {
	client, end := exampleClient(map[string][]string{"POST /api/v1/dlq/replay": {`{"replayed":100,"remaining":20}`, `{"replayed":20,"remaining":0}`}})
	defer end()

	filter := posthorn.DeadLetterFilter{Queue: "orders.created", ConsumerGroup: "billing"}
	for remaining := 1; remaining > 0; {
		done, err := client.ReplayDeadLetters(context.Background(), filter, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("replayed", done.Replayed)
		remaining = done.Remaining
	}
	// Output:
	// replayed 100
	// replayed 20
}
