package posthorn_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"reflect"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestDeliveryQueues(t *testing.T) {
	t.Parallel()
	const queue = `{"name":"orders","createdAt":1767225600000,"updatedAt":1767225601000,"parallelism":2,"lag":3,"paused":true}`
	s := newScript(t, text(200, queue), text(200, "["+queue+"]"), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(200, `{}`),
		text(404, `{"error":"queue x not found"}`), text(200, `{"messageId":"msg_1","url":"https://a/"}`))
	c := once(t, s.URL)
	got, err := c.GetDeliveryQueue(t.Context(), "orders")
	if err != nil || got.Name != "orders" || got.Parallelism != 2 || got.Lag != 3 || !got.Paused || got.UpdatedAt.Sub(got.CreatedAt) != time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := c.ListDeliveryQueues(t.Context())
	if err != nil || len(list) != 1 || list[0] != got {
		t.Errorf("%+v, %v", list, err)
	}
	no := false
	if err := errors.Join(
		c.UpsertDeliveryQueue(t.Context(), "orders", posthorn.DeliveryQueueOptions{}),
		c.UpsertDeliveryQueue(t.Context(), "orders", posthorn.DeliveryQueueOptions{Parallelism: 5, Paused: &no}),
		c.PauseDeliveryQueue(t.Context(), "a/b"), c.ResumeDeliveryQueue(t.Context(), "orders"), c.DeleteDeliveryQueue(t.Context(), "orders"),
	); err != nil {
		t.Error(err)
	}
	if err := c.PauseDeliveryQueue(t.Context(), "x"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("an unknown queue: %v", err)
	}
	if _, err := c.Enqueue(t.Context(), "orders", posthorn.Publication{Destination: "https://a/", Queue: "other"}); err != nil {
		t.Error(err)
	}
	want := []string{
		`GET /v2/queues/orders `, `GET /v2/queues `, `POST /v2/queues {"queueName":"orders"}`, `POST /v2/queues {"queueName":"orders","parallelism":5,"paused":false}`,
		`POST /v2/queues/a%2Fb/pause `, `POST /v2/queues/orders/resume `, `DELETE /v2/queues/orders `, `POST /v2/queues/x/pause `, `POST /v2/enqueue/orders/https:%2F%2Fa%2F `,
	}
	for i, e := range s.seen {
		if line := e.Method + " " + e.Target + " " + e.Body; line != want[i] {
			t.Errorf("request %d: %s, want %s", i, line, want[i])
		}
	}
	if name := s.seen[len(s.seen)-1].Header.Get("Upstash-Queue-Name"); name != "" {
		t.Errorf("the queue is in the path and in a header: %s", name)
	}
}

func TestFlowControl(t *testing.T) {
	t.Parallel()
	const key = `{"flowControlKey":"k","waitListSize":1,"parallelismMax":2,"parallelismCount":3,"rateMax":4,"rateCount":5,"ratePeriod":60,"ratePeriodStart":1767225600,"isPaused":true,"isPinnedParallelism":false,"isPinnedRate":true}`
	s := newScript(t, text(200, key), text(200, "["+key+"]"), text(200, "[]"), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(200, `{}`),
		text(200, `{"parallelismMax":256,"parallelismCount":7}`), text(404, `{"error":"flow control key x not found"}`), text(200, `[{"messageId":"msg_1","url":"https://a/"}]`))
	c := once(t, s.URL)
	got, err := c.GetFlowControl(t.Context(), "k")
	want := posthorn.FlowControl{
		Key: "k", Waiting: 1, Parallelism: 2, Running: 3, Rate: 4, RateCount: 5, Period: time.Minute,
		PeriodStart: time.Unix(1767225600, 0).UTC(), Paused: true, PinnedRate: true,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if list, err := c.ListFlowControl(t.Context(), ""); err != nil || !reflect.DeepEqual(list, []posthorn.FlowControl{want}) {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := c.ListFlowControl(t.Context(), "a b"); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := errors.Join(
		c.PauseFlowControl(t.Context(), "a/b"), c.ResumeFlowControl(t.Context(), "k"),
		c.PinFlowControl(t.Context(), "k", posthorn.FlowPin{Parallelism: 1, Rate: 2, Period: time.Minute}),
		c.UnpinFlowControl(t.Context(), "k", posthorn.FlowUnpin{}), c.UnpinFlowControl(t.Context(), "k", posthorn.FlowUnpin{Rate: true}), c.ResetFlowRate(t.Context(), "k"),
	); err != nil {
		t.Error(err)
	}
	if p, err := c.GetGlobalParallelism(t.Context()); err != nil || p != (posthorn.Parallelism{Max: 256, Count: 7}) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := c.GetFlowControl(t.Context(), "x"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("an unknown key: %v", err)
	}
	flow := &posthorn.Flow{Key: "k", Parallelism: 5, Rate: 10, Period: time.Minute}
	if _, err := c.PublishBatch(t.Context(), []posthorn.Publication{{Destination: "https://a/", Queue: "orders", Flow: flow}}); err != nil {
		t.Error(err)
	}
	lines := []string{
		"GET /v2/flowControl/k", "GET /v2/flowControl", "GET /v2/flowControl?search=a+b", "POST /v2/flowControl/a%2Fb/pause", "POST /v2/flowControl/k/resume",
		"POST /v2/flowControl/k/pin?parallelism=1&period=60&rate=2", "POST /v2/flowControl/k/unpin", "POST /v2/flowControl/k/unpin?rate=true",
		"POST /v2/flowControl/k/resetRate", "GET /v2/globalParallelism", "GET /v2/flowControl/x", "POST /v2/batch",
	}
	for i, e := range s.seen {
		if line := e.Method + " " + e.Target; line != lines[i] {
			t.Errorf("request %d: %s, want %s", i, line, lines[i])
		}
	}
	const item = `[{"destination":"https://a/","headers":{"Upstash-Flow-Control-Key":["k"],"Upstash-Flow-Control-Value":["parallelism=5, rate=10, period=60s"],"Upstash-Queue-Name":["orders"]}}]`
	if body := s.seen[len(s.seen)-1].Body; body != item {
		t.Errorf("batch %s, want %s", body, item)
	}
}

// TestFlowIsShown reads the queue and the values of messages and schedules.
func TestFlowIsShown(t *testing.T) {
	t.Parallel()
	const shown = `"queueName":"q","flowControlKey":"k","rate":2,"period":60`
	s := newScript(t, text(200, `{"messageId":"msg_1",`+shown+`}`), text(200, `{"scheduleId":"s",`+shown+`}`), text(200, `{"cancelled":1}`))
	c := once(t, s.URL)
	want := &posthorn.Flow{Key: "k", Rate: 2, Period: time.Minute}
	if m, err := c.GetPublished(t.Context(), "msg_1"); err != nil || m.Queue != "q" || !reflect.DeepEqual(m.Flow, want) {
		t.Errorf("%+v, %v", m, err)
	}
	if sched, err := c.GetSchedule(t.Context(), "s"); err != nil || sched.Queue != "q" || !reflect.DeepEqual(sched.Flow, want) {
		t.Errorf("%+v, %v", sched, err)
	}
	if _, err := c.CancelPublishedMany(t.Context(), posthorn.CancelOptions{PublishedFilter: posthorn.PublishedFilter{Queues: []string{"q"}, FlowKeys: []string{"k"}}}); err != nil {
		t.Error(err)
	}
	if target := s.seen[2].Target; target != "/v2/messages?flowControlKey=k&queueName=q" {
		t.Errorf("cancel %s", target)
	}
}

// Messages that are delivered one after the other, and no more than a hundred in a minute with all others of the tenant.
func ExampleClient_Enqueue() {
	server := broker(map[string][]string{
		"POST /v2/queues": {`{}`},
		"POST /v2/enqueue/orders/https://example.com/hook": {`{"messageId":"msg_0198f2c14d3a7c109f2b6a1e5d0c7b80","url":"https://example.com/hook"}`},
		"GET /v2/queues/orders":                            {`{"name":"orders","createdAt":1767225600000,"updatedAt":1767225600000,"parallelism":1,"lag":1,"paused":false}`},
	})
	defer server.Close()
	client, err := posthorn.New(server.URL, posthorn.Options{})
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	if err := client.UpsertDeliveryQueue(ctx, "orders", posthorn.DeliveryQueueOptions{Parallelism: 1}); err != nil {
		log.Fatal(err)
	}
	_, err = client.Enqueue(ctx, "orders", posthorn.Publication{
		Destination: "https://example.com/hook", Body: []byte(`{"orderId":8891}`),
		Flow: &posthorn.Flow{Key: "tenant-1", Rate: 100, Period: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}
	queue, err := client.GetDeliveryQueue(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(queue.Lag, queue.Parallelism)
	// Output: 1 1
}
