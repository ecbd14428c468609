package posthorn_test

import (
	"context"
	"fmt"
	"log"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func ExampleClient_ListConsumerGroups() {
	server := broker(map[string][]string{
		"GET /api/v1/consumer-groups": {`[{"name":"billing","topics":["orders.created"],"queueName":"orders.created","totalLag":41,"maxTimeLag":7,"state":"Stable"}]`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	groups, err := client.ListConsumerGroups(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range groups {
		fmt.Printf("%s of %s: %d behind, %v at most, %s\n", g.Name, g.Queue, g.Lag, g.MaxTimeLag, g.State)
	}
	// Output: billing of orders.created: 41 behind, 7s at most, Stable
}

// Everything since yesterday once more, in every partition.
func ExampleClient_Seek() {
	server := broker(map[string][]string{
		"POST /api/v1/consumer-groups/billing/queues/orders.created/seek": {`{"success":true,"consumerGroup":"billing","queueName":"orders.created","partitionsUpdated":12}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	n, err := client.Seek(context.Background(), posthorn.SeekOptions{
		ConsumerGroup: "billing", Queue: "orders.created", To: time.Now().AddDate(0, 0, -1),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "partitions")
	// Output: 12 partitions
}

func ExampleClient_DeleteConsumerGroup() {
	server := broker(map[string][]string{
		"DELETE /api/v1/consumer-groups/trial": {`{"success":true,"consumerGroup":"trial","deletedPartitions":3,"metadataDeleted":true}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	deletion, err := client.DeleteConsumerGroup(context.Background(), "trial", posthorn.DeleteGroupOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(deletion.Existed, deletion.Partitions)
	// Output: true 3
}
