package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// uris are what a hook received, by the paths.
func uris(h *hook) string {
	var list []string
	for _, r := range h.requests() {
		list = append(list, r.uri)
	}
	return strings.Join(list, " ")
}

func TestDeliveryQueues(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	for i := range 3 {
		r := b.publish(fmt.Sprintf("/v2/enqueue/orders/%s/%d", h.URL, i), "", "Upstash-Retries", "1", "Upstash-Retry-Delay", "60000")
		if r.status != 200 || !strings.Contains(string(r.body), `"messageId":"msg_`) {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	b.settle()
	var q deliveryQueue
	b.ask(200, "GET", "/v2/queues/orders", "", &q)
	if q.Name != "orders" || q.Parallelism != 1 || q.Lag != 3 || q.Paused || q.CreatedAt == 0 || uris(h) != "/0" {
		t.Errorf("%+v, delivered %s", q, uris(h))
	}
	b.ask(200, "POST", "/v2/queues/orders/pause", "", nil)
	b.ask(200, "POST", "/v2/queues/orders/pause", "", nil)
	b.ask(200, "POST", "/testing/clock", `{"advance":"60s"}`, nil)
	b.ask(200, "GET", "/v2/queues/orders", "", &q)
	if !q.Paused || q.Lag != 2 || uris(h) != "/0 /0" {
		t.Errorf("%+v, delivered %s", q, uris(h))
	}
	b.ask(200, "POST", "/v2/queues", `{"queueName":"orders","parallelism":2}`, nil)
	b.ask(200, "POST", "/v2/queues/orders/resume", "", nil)
	b.settle()
	if got := uris(h); got != "/0 /0 /1 /2" && got != "/0 /0 /2 /1" {
		t.Errorf("delivered %s", got)
	}
	b.ask(200, "POST", "/v2/queues", `{"queueName":"other","paused":true}`, nil)
	var list []deliveryQueue
	b.ask(200, "GET", "/v2/queues", "", &list)
	if len(list) != 2 || list[0].Name != "orders" || list[0].Parallelism != 2 || list[1].Parallelism != 1 || !list[1].Paused {
		t.Errorf("%+v", list)
	}
	for range 2 {
		b.ask(200, "DELETE", "/v2/queues/orders", "", nil)
	}
	b.ask(404, "GET", "/v2/queues/orders", "", nil)
	b.ask(404, "POST", "/v2/queues/orders/pause", "", nil)
	b.ask(404, "POST", "/v2/queues/orders/resume", "", nil)
	for _, bad := range []string{``, `{}`, `{"queueName":""}`, `{"queueName":"a b"}`, `{"queueName":"q","parallelism":0}`, `{"queueName":"q","parallelism":1.5}`, `{"queueName":"q","paused":"no"}`} {
		b.ask(400, "POST", "/v2/queues", bad, nil)
	}
	for _, path := range []string{"/v2/enqueue/a%20b/" + h.URL, "/v2/enqueue/q/", "/v2/enqueue/q/ftp://x"} {
		if r := b.publish(path, ""); r.status != 400 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	b.ask(404, "GET", "/v2/queues/q", "", nil)
}

// TestBatchIntoQueues keeps the order of the items of each queue, without a commit for each.
func TestBatchIntoQueues(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	var items []string
	var a, z []string
	for i := range 100 {
		items = append(items, fmt.Sprintf(`{"destination":"%s/a%d","queue":"a"}`, h.URL, i), fmt.Sprintf(`{"destination":"%s/z%d","headers":{"upstash-queue-name":"z"}}`, h.URL, i))
		a, z = append(a, fmt.Sprintf("/a%d", i)), append(z, fmt.Sprintf("/z%d", i))
	}
	items = append(items, `{"destination":"`+h.URL+`/none","queue":""}`, `{"destination":"`+h.URL+`","queue":"a b"}`)
	items[4] = `{"destination":"gopher://x/","queue":"a"}` // instead of a2
	a = slices.Delete(a, 2, 3)
	var results []json.RawMessage
	b.ask(200, "POST", "/v2/batch", "["+strings.Join(items, ",")+"]", &results)
	var commits int
	if err := b.admin(t).QueryRow(t.Context(), `select count(distinct created_at) from delivery_message`).Scan(&commits); err != nil || commits > 40 {
		t.Errorf("%d commits, %v", commits, err)
	}
	b.settle()
	var gotA, gotZ []string
	for _, r := range h.requests() {
		switch r.uri[1] {
		case 'a':
			gotA = append(gotA, r.uri)
		case 'z':
			gotZ = append(gotZ, r.uri)
		}
	}
	if strings.Join(gotA, " ") != strings.Join(a, " ") || strings.Join(gotZ, " ") != strings.Join(z, " ") || len(h.requests()) != 200 {
		t.Errorf("%d deliveries, %v, %v", len(h.requests()), gotA, gotZ)
	}
	for i, r := range results {
		if refused := i == 4 || i == 201; strings.Contains(string(r), `"error"`) != refused {
			t.Errorf("item %d: %s", i, r)
		}
	}
	if len(results) != 202 {
		t.Errorf("%d results", len(results))
	}
}

func TestFlowControl(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	var made publishResult
	for i := range 5 {
		r := b.publish(fmt.Sprintf("/v2/publish/%s/%d", h.URL, i), "", "Upstash-Flow-Control-Key", "tenant/1 ü", "Upstash-Flow-Control-Value", "rate=2, period=1m")
		if err := json.Unmarshal(r.body, &made); err != nil || r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	const path = "/v2/flowControl/tenant%2F1%20%C3%BC"
	var f flowControl
	b.ask(200, "GET", path, "", &f)
	b.settle()
	b.ask(200, "GET", path, "", &f)
	if f.FlowControlKey != "tenant/1 ü" || f.WaitListSize != 3 || f.RateMax != 2 || f.RateCount != 2 || f.RatePeriod != 60 || f.RatePeriodStart == 0 || f.ParallelismMax != 0 || f.ParallelismCount != 0 ||
		f.IsPaused || f.IsPinnedRate || f.IsPinnedParallelism {
		t.Errorf("%+v", f)
	}
	if n := len(h.requests()); n != 2 {
		t.Errorf("%d deliveries in the first period", n)
	}
	var m map[string]any
	b.ask(200, "GET", "/v2/messages/"+made.MessageID, "", &m)
	if _, unset := m["parallelism"]; unset || m["flowControlKey"] != "tenant/1 ü" || m["rate"] != 2.0 || m["period"] != 60.0 {
		t.Errorf("%v", m)
	}
	var events struct{ Events []map[string]any }
	b.ask(200, "GET", "/v2/events?messageId="+made.MessageID, "", &events)
	if len(events.Events) != 1 || events.Events[0]["rate"] != 2.0 || events.Events[0]["period"] != 60.0 {
		t.Errorf("%v", events)
	}
	b.ask(200, "POST", path+"/resetRate", "", nil)
	b.settle()
	if n := len(h.requests()); n != 4 {
		t.Errorf("%d deliveries after a new period began", n)
	}
	b.ask(200, "POST", path+"/pause", "", nil)
	b.ask(200, "POST", "/testing/clock", `{"advance":"60s"}`, nil)
	b.ask(200, "GET", path, "", &f)
	if n := len(h.requests()); n != 4 || !f.IsPaused || f.RateCount != 0 {
		t.Errorf("%d deliveries while it was paused, %+v", n, f)
	}
	b.ask(200, "POST", path+"/resume", "", nil)
	b.settle()
	if n := len(h.requests()); n != 5 {
		t.Errorf("%d deliveries in the end", n)
	}
	b.ask(200, "POST", path+"/pin?parallelism=3&rate=7&period=1m30s", "", nil)
	b.publish("/v2/publish/"+h.URL, "", "Upstash-Flow-Control-Key", "tenant/1 ü", "Upstash-Flow-Control-Value", "parallelism=1")
	b.ask(200, "GET", path, "", &f)
	if f.ParallelismMax != 3 || f.RateMax != 7 || f.RatePeriod != 90 || !f.IsPinnedParallelism || !f.IsPinnedRate {
		t.Errorf("pinned %+v", f)
	}
	b.ask(200, "POST", path+"/unpin?parallelism=True", "", nil)
	b.publish("/v2/publish/"+h.URL, "", "Upstash-Flow-Control-Key", "tenant/1 ü", "Upstash-Flow-Control-Value", "parallelism=1")
	b.ask(200, "GET", path, "", &f)
	if f.ParallelismMax != 1 || f.RateMax != 7 || f.IsPinnedParallelism || !f.IsPinnedRate {
		t.Errorf("one of two let go %+v", f)
	}
	b.ask(200, "POST", path+"/unpin", "", nil)
	b.ask(200, "GET", path, "", &f)
	if f.IsPinnedRate {
		t.Errorf("let go %+v", f)
	}
	for _, bad := range []string{"", "?rate=0", "?rate=x", "?parallelism=-1", "?period=0", "?period=8d", "?period=x"} {
		b.ask(400, "POST", path+"/pin"+bad, "", nil)
	}
	b.ask(400, "POST", path+"/unpin?rate=perhaps", "", nil)
	for _, what := range []string{"/pause", "/resume", "/pin?rate=1", "/unpin", "/resetRate"} {
		b.ask(404, "POST", "/v2/flowControl/none"+what, "", nil)
	}
	b.ask(404, "GET", "/v2/flowControl/none", "", nil)
	var list []flowControl
	b.ask(200, "GET", "/v2/flowcontrol?search=TENANT", "", &list)
	if len(list) != 1 || list[0].FlowControlKey != "tenant/1 ü" {
		t.Errorf("%+v", list)
	}
	b.ask(200, "GET", "/v2/flowControl?search=none", "", &list)
	if len(list) != 0 {
		t.Errorf("%+v", list)
	}
	var all globalParallelism
	b.ask(200, "GET", "/v2/globalParallelism", "", &all)
	if all.ParallelismMax < 1 {
		t.Errorf("%+v", all)
	}
}

// TestFlowOfSchedules shows and keeps the queue and the key of a schedule.
func TestFlowOfSchedules(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	r := b.publish("/v2/schedules/"+h.URL, "", "Upstash-Cron", "* * * * *", "Upstash-Schedule-Id", "s", "Upstash-Queue-Name", "q", "Upstash-Flow-Control-Key", "k",
		"Upstash-Flow-Control-Value", "parallelism=2")
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	var s map[string]any
	b.ask(200, "GET", "/v2/schedules/s", "", &s)
	if _, unset := s["rate"]; unset || s["queueName"] != "q" || s["flowControlKey"] != "k" || s["parallelism"] != 2.0 || s["period"] != 1.0 {
		t.Errorf("%v", s)
	}
	b.ask(200, "POST", "/testing/clock", `{"advance":"60s"}`, nil)
	var q deliveryQueue
	b.ask(200, "GET", "/v2/queues/q", "", &q)
	var f flowControl
	b.ask(200, "GET", "/v2/flowControl/k", "", &f)
	if len(h.requests()) != 1 || q.Lag != 0 || f.ParallelismMax != 2 {
		t.Errorf("%d deliveries, %+v, %+v", len(h.requests()), q, f)
	}
	var events eventsV2
	b.ask(200, "GET", "/v2/events?queueName=q&flowControlKey=k", "", &events)
	if len(events.Events) != 3 || time.UnixMilli(events.Events[0].Time).IsZero() {
		t.Errorf("%+v", events)
	}
}

// TestFlowOfRetriedDeadLetters keeps the queue and the key of a dead letter, unless the retry names others.
func TestFlowOfRetriedDeadLetters(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	r := b.publish("/v2/enqueue/q/"+h.URL, "", "Upstash-Retries", "0", "Upstash-Flow-Control-Key", "k", "Upstash-Flow-Control-Value", "rate=5")
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	var failed struct{ Messages []map[string]any }
	b.ask(200, "GET", "/v2/dlq", "", &failed)
	if len(failed.Messages) != 1 || failed.Messages[0]["queueName"] != "q" || failed.Messages[0]["flowControlKey"] != "k" || failed.Messages[0]["rate"] != 5.0 {
		t.Fatalf("%+v", failed)
	}
	b.ask(200, "POST", "/v2/queues/q/pause", "", nil)
	dead := failed.Messages[0]["dlqId"].(string)
	r = b.publish("/v2/dlq/retry/"+dead, "", "Upstash-Flow-Control-Key", "other", "Upstash-Flow-Control-Value", "parallelism=2")
	var made publishResult
	if err := json.Unmarshal(r.body, &made); err != nil || r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	var m map[string]any
	b.ask(200, "GET", "/v2/messages/"+made.MessageID, "", &m)
	if _, unset := m["rate"]; unset || m["queueName"] != "q" || m["flowControlKey"] != "other" || m["parallelism"] != 2.0 || len(h.requests()) != 1 {
		t.Errorf("%v, %d deliveries", m, len(h.requests()))
	}
	b.ask(200, "POST", "/v2/queues/q/resume", "", nil)
	b.settle()
	if n := len(h.requests()); n != 2 {
		t.Errorf("%d deliveries", n)
	}
}
