package api

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"
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
