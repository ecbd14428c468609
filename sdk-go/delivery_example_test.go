package posthorn_test

import (
	"context"
	"fmt"
	"log"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// Every night at three in Vienna. Under the same id this replaces the schedule, however often it runs.
func ExampleClient_CreateSchedule() {
	server := broker(map[string][]string{
		"POST /v2/schedules/https://example.com/hook": {`{"scheduleId":"nightly"}`},
		"GET /v2/schedules/nightly":                   {`{"scheduleId":"nightly","cron":"CRON_TZ=Europe/Vienna 0 3 * * *","nextScheduleTime":1768442400000}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	id, err := client.CreateSchedule(context.Background(), posthorn.Schedule{
		ID: "nightly", Cron: "CRON_TZ=Europe/Vienna 0 3 * * *",
		Publication: posthorn.Publication{Destination: "https://example.com/hook", Body: []byte(`{"job":"backup"}`), ContentType: "application/json"},
	})
	if err != nil {
		log.Fatal(err)
	}
	schedule, err := client.GetSchedule(context.Background(), id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(schedule.ID, "next at", schedule.NextAt.Format(time.RFC3339))
	// Output: nightly next at 2026-01-15T02:00:00Z
}

// Two endpoints get what is published to "news".
func ExampleClient_UpsertEndpoints() {
	server := broker(map[string][]string{
		"POST /v2/topics/news/endpoints": {`{}`},
		"POST /v2/publish/news": {`[{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","url":"https://example.com/hook"},
			{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b81","url":"https://example.org/hook"}]`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = client.UpsertEndpoints(context.Background(), "news", []posthorn.Endpoint{{Name: "first", URL: "https://example.com/hook"}, {URL: "https://example.org/hook"}})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := client.Publish(context.Background(), posthorn.Publication{Destination: "news", Body: []byte("hello")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(messages))
	// Output: 2
}

// At most fifty deliveries a minute for a tenant, whatever its messages ask for.
func ExampleClient_PinFlowControl() {
	server := broker(map[string][]string{
		"POST /v2/flowControl/tenant-1/pin": {`{}`},
		"GET /v2/flowControl/tenant-1":      {`{"flowControlKey":"tenant-1","waitListSize":3,"rateMax":50,"rateCount":50,"ratePeriod":60,"isPinnedRate":true}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.PinFlowControl(context.Background(), "tenant-1", posthorn.FlowPin{Rate: 50, Period: time.Minute}); err != nil {
		log.Fatal(err)
	}
	key, err := client.GetFlowControl(context.Background(), "tenant-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(key.Rate, "in", key.Period, "with", key.Waiting, "waiting")
	// Output: 50 in 1m0s with 3 waiting
}

// Receivers get the new pair after a rotation; those that have the old one go on until the next rotation.
func ExampleClient_RotateSigningKeys() {
	server := broker(map[string][]string{"POST /v2/keys/rotate": {`{"current":"sig_b","next":"sig_c"}`}})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}
	keys, err := client.RotateSigningKeys(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	_, err = posthorn.NewReceiver(posthorn.ReceiverOptions{CurrentSigningKey: keys.Current, NextSigningKey: keys.Next})
	fmt.Println(err)
	// Output: <nil>
}
