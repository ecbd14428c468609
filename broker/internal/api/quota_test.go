package api

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/delivery"
)

func TestQuota(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	var q quotaV1
	b.ask(200, "GET", "/v1/quota", "", &q)
	if q != (quotaV1{-1, 100, DefaultMaxBody, -1, -1, -1, 72 * 3600, 30, -1}) {
		t.Errorf("%+v", q)
	}
	b = start(t, func(c *Config) { c.MaxRetries, c.MaxDelay, c.PublishRetries = 2, time.Hour, 3 })
	b.ask(200, "GET", "/v1/quota", "", &q)
	if q.MaxRetries != 2 || q.MaxDelay != 3600 {
		t.Errorf("%+v", q)
	}
	later := fmt.Sprint(time.Now().Add(2 * time.Hour).Unix())
	for _, path := range []string{"/v1/publish/", "/v2/publish/", "/v2/enqueue/orders/", "/v2/schedules/"} {
		for _, c := range []struct{ header, value, name string }{
			{"Upstash-Delay", "3601s", "maxDelay exceeded, current limit: 3600"},
			{"Upstash-Not-Before", later, "maxDelay exceeded, current limit: 3600"},
			{"Upstash-Retries", "3", "maxRetries exceeded, current limit: 2"},
			{"Upstash-Callback-Retries", "3", "maxRetries exceeded, current limit: 2"},
			{"Upstash-Failure-Callback-Delay", "2h", "maxDelay exceeded, current limit: 3600"},
		} {
			headers := []string{c.header, c.value, "Upstash-Callback", h.URL, "Upstash-Failure-Callback", h.URL}
			if path == "/v2/schedules/" {
				headers = append(headers, "Upstash-Cron", "* * * * *")
			}
			if r := b.publish(path+h.URL, "x", headers...); r.status != 412 || r.errorText(t) != "quota "+c.name {
				t.Errorf("%s %s: %d %s", path, c.header, r.status, r.body)
			}
		}
	}
	r := b.publish("/v2/batch", `[{"destination":"`+h.URL+`","headers":{"Upstash-Retries":"3"}},{"destination":"`+h.URL+`","headers":{"Upstash-Retries":"2","Upstash-Delay":"1h"}}]`)
	var items []struct{ Error, MessageID string }
	if err := json.Unmarshal(r.body, &items); err != nil || r.status != 200 || items[0].Error != "quota maxRetries exceeded, current limit: 2" || items[1].Error != "" {
		t.Errorf("%d %s", r.status, r.body)
	}
	var out publishResult
	r = b.publish("/v2/publish/"+h.URL, "x") // the default is more than the bound
	if err := json.Unmarshal(r.body, &out); err != nil || r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	var m messageV2
	b.ask(200, "GET", "/v2/messages/"+out.MessageID, "", &m)
	if m.MaxRetries != 2 {
		t.Errorf("%+v", m)
	}
}

// TestQuotaOfTopicsAndSchedules refuses what is one too many, by every way in which one is made; what is there can be
// changed, and what is deleted makes room.
func TestQuotaOfTopicsAndSchedules(t *testing.T) {
	t.Parallel()
	b, h := startOver(t, func(c *delivery.Config) { c.MaxTopics, c.MaxSchedules = 2, 2 }, nil), newHook(t, 200)
	var q quotaV1
	b.ask(200, "GET", "/v1/quota", "", &q)
	if q.MaxTopics != 2 || q.MaxSchedules != 2 {
		t.Errorf("%+v", q)
	}
	refused := func(r reply, quota string) {
		t.Helper()
		if want := "quota " + quota + " exceeded, current limit: 2"; r.status != 412 || r.errorText(t) != want {
			t.Errorf("%d %s, want 412 %s", r.status, r.body, want)
		}
	}
	endpoint := `{"endpoints":[{"url":"` + h.URL + `"}]}`
	b.ask(201, "POST", "/v1/topics", `{"name":"one"}`, nil)
	b.ask(200, "POST", "/v2/topics/two/endpoints", endpoint, nil)
	refused(b.do("POST", "/v1/topics", `{"name":"three"}`), "maxTopics")
	refused(b.do("POST", "/v2/topics/three/endpoints", endpoint), "maxTopics")
	b.ask(404, "GET", "/v2/topics/three", "", nil)
	b.ask(200, "POST", "/v2/topics/one/endpoints", endpoint, nil)
	b.ask(409, "POST", "/v1/topics", `{"name":"one"}`, nil)
	b.ask(200, "DELETE", "/v2/topics/two", "", nil)
	b.ask(200, "POST", "/v2/topics/three/endpoints", endpoint, nil)

	put := func(path, id string) reply {
		t.Helper()
		return b.publish(path+h.URL, "x", "Upstash-Cron", "0 0 1 1 *", "Upstash-Schedule-Id", id, "Upstash-Deduplication-Id", path[1:3]+id)
	}
	if r := put("/v2/schedules/", "a"); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := put("/v1/publish/", "b"); r.status != 201 {
		t.Errorf("%d %s", r.status, r.body)
	}
	refused(put("/v2/schedules/", "c"), "maxSchedules")
	refused(put("/v1/publish/", "d"), "maxSchedules")
	refused(put("/v1/publish/", "d"), "maxSchedules") // its deduplication id is free
	if r := b.publish("/v2/schedules/"+h.URL, "y", "Upstash-Cron", "0 0 1 1 *", "Upstash-Schedule-Id", "a"); r.status != 200 {
		t.Errorf("a replacement: %d %s", r.status, r.body)
	}
	b.ask(200, "DELETE", "/v2/schedules/a", "", nil)

	// Of many at once only one gets the place.
	var wg sync.WaitGroup
	var got [20]reply
	for i := range got {
		wg.Go(func() { got[i] = put("/v2/schedules/", fmt.Sprint("e", i)) })
	}
	wg.Wait()
	made := 0
	for _, r := range got {
		if r.status == 200 {
			made++
		} else {
			refused(r, "maxSchedules")
		}
	}
	if made != 1 {
		t.Errorf("%d schedules were made, there was room for 1", made)
	}
}
