package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestSchedulesV1(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	r := b.publish("/v1/publish/"+h.URL+"/x?a=1", "tick", "Upstash-Cron", "0 0 1 * *", "Upstash-Deduplication-Id", "once", "Content-Type", "text/plain", "Upstash-Callback", h.URL+"/cb")
	var made scheduledV1
	if err := json.Unmarshal(r.body, &made); err != nil || r.status != 201 || !strings.HasPrefix(made.ScheduleID, "scd_") {
		t.Fatalf("%d %s", r.status, r.body)
	}
	again := b.publish("/v1/publish/"+h.URL, "", "Upstash-Cron", "* * * * *", "Upstash-Deduplication-Id", "once")
	if again.status != 202 || again.header.Get("Upstash-Deduplication-Id") != "once" || !strings.Contains(string(again.body), made.ScheduleID) || !strings.Contains(string(again.body), `"deduplicated":true`) {
		t.Errorf("%d %s", again.status, again.body)
	}
	var s scheduleV1
	b.ask(200, "GET", "/v1/schedules/"+made.ScheduleID, "", &s)
	if s.Cron != "0 0 1 * *" || s.Content.Body == nil || *s.Content.Body != "tick" || s.Destination.URL != h.URL+"/x?a=1" || s.Settings.Retries != 3 || s.Settings.Callback != h.URL+"/cb" {
		t.Errorf("%+v", s)
	}
	b.ask(200, "POST", "/testing/clock", `{"advance":"744h"}`, nil)
	got := h.requests()
	if len(got) != 2 || got[0].uri != "/x?a=1" || got[0].body != "tick" || got[0].header.Get("Upstash-Schedule-Id") != made.ScheduleID || got[1].uri != "/cb" {
		t.Errorf("delivered %+v", got)
	}
	var list []scheduleV1
	b.ask(200, "GET", "/v1/schedules", "", &list)
	if len(list) != 1 || list[0].ScheduleID != made.ScheduleID {
		t.Errorf("%+v", list)
	}
	b.ask(202, "DELETE", "/v1/schedules/"+made.ScheduleID, "", nil)
	b.ask(404, "DELETE", "/v1/schedules/"+made.ScheduleID, "", nil)
	b.ask(404, "GET", "/v1/schedules/"+made.ScheduleID, "", nil)
	b.ask(201, "POST", "/v1/topics", `{"name":"news"}`, nil)
	b.ask(201, "POST", "/v1/endpoints", `{"topicName":"news","url":"`+h.URL+`/t"}`, nil)
	r = b.publish("/v1/publish/news", "x", "Upstash-Cron", "0 0 1 1 *")
	if err := json.Unmarshal(r.body, &made); err != nil || r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.ask(200, "GET", "/v1/schedules/"+made.ScheduleID, "", &s)
	if s.Destination.Type != "topic" || s.Destination.Topic == nil || s.Destination.Topic.Name != "news" {
		t.Errorf("%+v", s)
	}
	b.ask(200, "DELETE", "/v1/topics/news", "", nil)
	b.ask(200, "GET", "/v1/schedules/"+made.ScheduleID, "", nil)
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	r := b.publish("/v2/Schedules/"+h.URL+"/a//b?x=1&upstash-delay=5s", "", "Upstash-Cron", " CRON_TZ=Europe/Vienna 0 0 1 * * ", "Upstash-Schedule-Id", "nightly", "Upstash-Method", "PUT",
		"Upstash-Forward-X-A", "1", "Upstash-Label", "l")
	if r.status != 200 || string(r.body) != `{"scheduleId":"nightly"}` {
		t.Fatalf("%d %s", r.status, r.body)
	}
	var s scheduleV2
	b.ask(200, "GET", "/v2/schedules/nightly", "", &s)
	if s.Cron != "CRON_TZ=Europe/Vienna 0 0 1 * *" || s.Destination != h.URL+"/a//b?x=1" || s.Method != "PUT" || s.Header["X-A"][0] != "1" || s.Body != nil || s.Delay != 5 ||
		s.IsPaused || s.NextScheduleTime == 0 || s.LastScheduleTime != 0 || s.Label != "l" || s.CallerIP != "127.0.0.1" {
		t.Errorf("%+v", s)
	}
	b.ask(200, "POST", "/testing/clock", `{"advance":"744h"}`, nil)
	b.ask(200, "POST", "/testing/clock", `{"advance":"5s"}`, nil)
	if got := h.requests(); len(got) != 1 || got[0].method != "PUT" || got[0].uri != "/a//b?x=1" {
		t.Errorf("delivered %+v", got)
	}
	b.ask(200, "GET", "/v2/schedules/nightly", "", &s)
	states := ""
	for _, state := range s.LastScheduleStates {
		states += state
	}
	if states != "SUCCESS" || s.LastScheduleTime == 0 {
		t.Errorf("%+v", s)
	}
	for _, method := range []string{"PATCH", "POST"} {
		b.ask(200, method, "/v2/schedules/nightly/pause", "", nil)
		b.ask(200, "GET", "/v2/schedules/nightly/", "", &s)
		if !s.IsPaused {
			t.Errorf("%s: not paused", method)
		}
		b.ask(200, method, "/v2/schedules/nightly/resume", "", nil)
		b.ask(200, "GET", "/v2/schedules/nightly", "", &s)
		if s.IsPaused {
			t.Errorf("%s: still paused", method)
		}
		b.ask(404, method, "/v2/schedules/unknown/pause", "", nil)
	}
	for _, bad := range [][]string{
		{},
		{"Upstash-Cron", "* * * *"},
		{"Upstash-Cron", "TZ= * * * *"},
		{"Upstash-Cron", "@every 1ns"},
		{"Upstash-Cron", "0 0 31 2 *"},
		{"Upstash-Cron", strings.Repeat("0,", 30_000) + "0 * * * *"},
		{"Upstash-Cron", "* * * * *", "Upstash-Schedule-Id", "a b"},
		{"Upstash-Cron", "* * * * *", "Upstash-Delay", "-1s"},
		{"Upstash-Cron", "CRON_TZ=Moon/Base * * * * *"},
	} {
		if r := b.publish("/v2/schedules/"+h.URL, "x", bad...); r.status != 400 || r.errorText(t) == "" {
			t.Errorf("%.40q: %d %s", bad, r.status, r.body)
		}
	}
	for path, status := range map[string]int{"/v2/schedules/unknown-topic": 404, "/v2/schedules/ftp://x": 400, "/v2/schedules/http://10.0.0.1/": 400, "/v2/schedules/": 400} {
		if r := b.publish(path, "x", "Upstash-Cron", "* * * * *"); r.status != status {
			t.Errorf("%s: %d %s, want %d", path, r.status, r.body, status)
		}
	}
	if r := b.publish("/v2/publish/"+h.URL, "x", "Upstash-Cron", "* * * * *"); r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}
	var list []scheduleV2
	b.ask(200, "GET", "/v2/schedules", "", &list)
	if len(list) != 1 {
		t.Errorf("%+v", list)
	}
	b.ask(200, "DELETE", "/v2/schedules/nightly", "", nil)
	b.ask(404, "DELETE", "/v2/schedules/nightly", "", nil)
	b.ask(404, "GET", "/v2/schedules/nightly", "", nil)
}

// TestDuplicatesOfSchedules: a publish with the deduplication id of a schedule is a duplicate of that schedule, in every way to
// publish.
func TestDuplicatesOfSchedules(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	b.ask(200, "POST", "/v2/topics/news/endpoints", fmt.Sprintf(`{"endpoints":[{"url":%q},{"url":%q}]}`, h.URL+"/a", h.URL+"/b"), nil)
	var original publishedV1
	r := b.publish("/v1/publish/"+h.URL, "x", "Upstash-Cron", "0 0 1 1 *", "Upstash-Deduplication-Id", "once")
	if err := json.Unmarshal(r.body, &original); err != nil || r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	result := fmt.Sprintf(`{"scheduleId":%q,"url":%q,"deduplicated":true}`, original.ScheduleID, h.URL)
	ofTopic := fmt.Sprintf(`[{"scheduleId":%q,"url":%q,"deduplicated":true}]`, original.ScheduleID, h.URL+"/a")
	for path, want := range map[string]string{
		"/v1/publish/" + h.URL:   fmt.Sprintf(`{"scheduleId":%q,"deduplicated":true}`, original.ScheduleID),
		"/v1/publish/news":       fmt.Sprintf(`{"scheduleId":%q,"deduplicated":true}`, original.ScheduleID),
		"/v2/publish/" + h.URL:   result,
		"/v2/enqueue/q/" + h.URL: result,
		"/v2/publish/news":       ofTopic,
	} {
		if r := b.publish(path, "x", "Upstash-Deduplication-Id", "once"); r.status != 202 || string(r.body) != want {
			t.Errorf("%s: %d %s, not %s", path, r.status, r.body, want)
		}
	}
	batch := fmt.Sprintf(`[{"destination":%q,"headers":{"Upstash-Deduplication-Id":"once"}},{"destination":"news","headers":{"Upstash-Deduplication-Id":"once"}}]`, h.URL)
	if r := b.send(b.request("POST", "/v2/batch", strings.NewReader(batch))); r.status != 200 || string(r.body) != "["+result+","+ofTopic+"]" {
		t.Errorf("batch: %d %s", r.status, r.body)
	}
	b.settle()
	if n := len(h.requests()); n != 0 {
		t.Errorf("%d deliveries", n)
	}
}
