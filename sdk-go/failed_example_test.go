package posthorn_test

import (
	"context"
	"fmt"
	"log"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// What failed for good is sent again when its destination is well.
func ExampleClient_RetryFailed() {
	server := broker(map[string][]string{
		"GET /v2/dlq": {`{"messages":[{"dlqId":"dlq_0198f2c14d3a7c109f2b6a1e5d0c7b82","messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","url":"https://example.com/hook","responseStatus":500}]}`},
		"POST /v2/dlq/retry/dlq_0198f2c14d3a7c109f2b6a1e5d0c7b82": {`{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b83","url":"https://example.com/hook"}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	page, err := client.ListFailed(context.Background(), posthorn.FailedOptions{FailedFilter: posthorn.FailedFilter{Statuses: []int{500}}})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range page.Messages {
		again, err := client.RetryFailed(context.Background(), m.DLQID, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(m.MessageID, "failed;", again.MessageID, "takes its place")
	}
	// Output: msg_0198f2c14d3a7c109f2b6a1e5d0c7b80 failed; msg_0198f2c14d3a7c109f2b6a1e5d0c7b83 takes its place
}
