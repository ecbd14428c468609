package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/delivery"
)

// TestPublishV2 answers as version 2 does, and delivers.
func TestPublishV2(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	var out publishResult
	r := b.publish("/v2/publish/"+h.URL+"/x", "a\xff", "Upstash-Label", "one, two", "Upstash-Header-Forward", "true", "X-Mine", "v",
		"Upstash-Callback", h.URL+"/cb", "Upstash-Callback-Method", "PUT", "Upstash-Callback-Forward-X-Extra", "e", "Upstash-Callback-Unknown", "u", "Upstash-Deduplication-Id", "d")
	if err := json.Unmarshal(r.body, &out); err != nil || r.status != 200 || out.URL != h.URL+"/x" || out.Deduplicated {
		t.Fatalf("%d %s", r.status, r.body)
	}
	var again publishResult
	r = b.publish("/v2/publish/"+h.URL+"/x", "", "Upstash-Deduplication-Id", "d")
	if err := json.Unmarshal(r.body, &again); err != nil || r.status != 202 || again.MessageID != out.MessageID || !again.Deduplicated {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	got := h.requests()
	if len(got) != 2 || got[0].header.Get("X-Mine") != "v" || got[1].method != "PUT" || got[1].uri != "/cb" || got[1].header.Get("X-Extra") != "e" {
		t.Fatalf("%+v", got)
	}
	var m messageV2
	b.ask(200, "GET", "/v2/messages/"+out.MessageID+"/", "", &m)
	if m.Body != nil || m.BodyBase64 == nil || *m.BodyBase64 != base64.StdEncoding.EncodeToString([]byte("a\xff")) || m.Label != "one,two" || len(m.Labels) != 2 ||
		m.Callback != h.URL+"/cb" || m.CallbackHeader["Unknown"][0] != "u" || m.CallerIP != "127.0.0.1" || m.MaxRetries != 3 {
		t.Errorf("%+v", m)
	}
	var page logsV2
	b.ask(200, "GET", "/v2/logs?messageId="+out.MessageID+"&order=earliestFirst", "", &page)
	var states []string
	for _, e := range page.Logs {
		states = append(states, e.State)
	}
	if strings.Join(states, " ") != "CREATED ACTIVE DELIVERED" || page.Logs[2].ResponseStatus != 200 || page.Cursor != "" || page.Events[2].ResponseStatus != 200 {
		t.Errorf("%+v", page)
	}
	b.ask(404, "DELETE", "/v2/messages/"+out.MessageID, "", nil)
}

// TestRepeatedLists takes a header that is a list as a whole when it comes in several lines, as HTTP has it: above all, everything
// that was to be hidden is hidden.
func TestRepeatedLists(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	headers := []string{
		"Upstash-Label", "one", "Upstash-Label", " two, three", "Upstash-Redact-Fields", "body", "Upstash-Redact-Fields", "header[X-Key]", "Upstash-Forward-X-Key", "secret",
		"Upstash-Flow-Control-Key", "k", "Upstash-Flow-Control-Value", "parallelism=2", "Upstash-Flow-Control-Value", "rate=7", "Upstash-Delay", "1h",
	}
	batch := `[{"destination":"` + h.URL + `","body":"secret","headers":{"Upstash-Label":["one","two,three"],"Upstash-Redact-Fields":["body","header[X-Key]"],
		"Upstash-Forward-X-Key":"secret","Upstash-Flow-Control-Key":"k","Upstash-Flow-Control-Value":["parallelism=2","rate=7"],"Upstash-Delay":"1h"}}]`
	for name, r := range map[string]reply{"publish": b.publish("/v2/publish/"+h.URL, "secret", headers...), "batch": b.do("POST", "/v2/batch", batch)} {
		var out publishResult
		if err := json.Unmarshal(bytes.Trim(r.body, "[]"), &out); err != nil || r.status != 200 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
		shown := b.do("GET", "/v2/messages/"+out.MessageID, "")
		var m messageV2
		if err := json.Unmarshal(shown.body, &m); err != nil || strings.Join(m.Labels, " ") != "one two three" || m.Parallelism != 2 || m.Rate != 7 ||
			bytes.Contains(shown.body, []byte("secret")) {
			t.Errorf("%s: %s", name, shown.body)
		}
	}
	if r := b.publish("/v2/publish/"+h.URL, "", "Upstash-Redact-Fields", "body", "Upstash-Redact-Fields", "all"); r.status != 400 {
		t.Errorf("a second line that is not valid: %d %s", r.status, r.body)
	}
}

// TestPublishTopic makes one message per endpoint in version 2, and one with a task per endpoint in version 1.
func TestPublishTopic(t *testing.T) {
	t.Parallel()
	b, one, two := start(t, nil), newHook(t, 200), newHook(t, 200)
	conn := b.admin(t)
	topic := uuid.New()
	if _, err := conn.Exec(t.Context(), `insert into topic (id, name, header, created_at, updated_at) values ($1, 'news', '', clock_timestamp(), clock_timestamp())`, topic); err != nil {
		t.Fatal(err)
	}
	for i, u := range []string{one.URL, two.URL} {
		if _, err := conn.Exec(t.Context(), `insert into topic_endpoint (id, topic_id, name, url, created_at) values ($1, $2, $3, $4, clock_timestamp())`, uuid.New(), topic, fmt.Sprint("e", i), u); err != nil {
			t.Fatal(err)
		}
	}
	var list, again []publishResult
	r := b.publish("/v2/publish/news", "x", "Upstash-Deduplication-Id", "d")
	if err := json.Unmarshal(r.body, &list); err != nil || r.status != 200 || len(list) != 2 || list[0].URL != one.URL || list[1].URL != two.URL {
		t.Fatalf("%d %s", r.status, r.body)
	}
	r = b.publish("/v2/publish/news", "x", "Upstash-Deduplication-Id", "d")
	if err := json.Unmarshal(r.body, &again); err != nil || r.status != 202 || len(again) != 2 || again[1].MessageID != list[1].MessageID || !again[1].Deduplicated {
		t.Fatalf("%d %s", r.status, r.body)
	}
	r = b.publish("/v1/publish/news", "y")
	if r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	if len(one.requests()) != 2 || len(two.requests()) != 2 || two.requests()[0].header.Get("Upstash-Topic-Name") != "news" {
		t.Errorf("%+v %+v", one.requests(), two.requests())
	}
	id := strings.Split(string(r.body), `"`)[3]
	var tasks tasksV1
	b.ask(200, "GET", "/v1/messages/"+id+"/tasks", "", &tasks)
	if len(tasks.Tasks) != 2 || tasks.Tasks[1].URL != two.URL || tasks.Tasks[1].State != "DELIVERED" || tasks.Tasks[1].TaskID != strings.Replace(id, "msg_", "tsk_", 1)+"_1" {
		t.Errorf("%+v", tasks)
	}
	var m messageV1
	b.ask(200, "GET", "/v1/messages/"+id, "", &m)
	if m.DestinationType != "topic" || m.TopicName != "news" || m.TopicID != delivery.TopicID(topic) {
		t.Errorf("%+v", m)
	}
}

// TestPublishBatch answers each item in its place.
func TestPublishBatch(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	body := fmt.Sprintf(`[
		{"destination":%[1]q,"body":"one","headers":{"upstash-method":"PUT","upstash-forward-x-a":["1","2"]}},
		{"destination":"nobody"}, {"destination":"ftp://x/"}, {"destination":%[1]q,"headers":{"Upstash-Delay":"x"}},
		{"destination":%[1]q,"headers":null,"body":null,"queue":""}, {"destination":%[1]q,"queue":"q/r"}, {"destination":%[1]q,"headers":{"a":1}}]`, h.URL+"/b")
	var out []map[string]any
	b.ask(200, "POST", "/v2/batch", body, &out)
	if len(out) != 7 || out[0]["messageId"] == nil || out[1]["error"] != "topic nobody not found" || out[2]["error"] == nil || out[3]["error"] == nil ||
		out[4]["messageId"] == nil || out[5]["error"] == nil || out[6]["error"] != "headers.a must be a string or an array of strings" {
		t.Fatalf("%v", out)
	}
	b.settle()
	got := h.requests()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for _, d := range got {
		if d.body == "one" && (d.method != "PUT" || len(d.header["X-A"]) != 2) {
			t.Errorf("%+v", d)
		}
	}
	for _, bad := range []string{`{}`, `[{}]`, `[{"destination":1}]`, `[{"destination":"x","body":1}]`, ``} {
		b.ask(400, "POST", "/v2/batch", bad, nil)
	}
}

// TestCancelMany cancels what the selectors name, and nothing else.
func TestCancelMany(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	ids := map[string]string{}
	for name, headers := range map[string][]string{"a": {"Upstash-Label", "red,hot"}, "b": {"Upstash-Label", "red"}, "c": {"Upstash-Label", "blue"}, "d": nil, "done": nil} {
		delay := "1h"
		if name == "done" {
			delay = "0s"
		}
		var out publishResult
		r := b.publish("/v2/publish/"+h.URL+"/"+name+"?q=1", "x", append(headers, "Upstash-Delay", delay)...)
		if err := json.Unmarshal(r.body, &out); err != nil || r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		ids[name] = out.MessageID
	}
	b.settle()
	cancel := func(want int, query, body string) {
		t.Helper()
		var out cancelled
		b.ask(200, "DELETE", "/v2/messages"+query, body, &out)
		if out.Cancelled != want {
			t.Errorf("%s %s: %d", query, body, out.Cancelled)
		}
	}
	for _, bad := range []string{"?labels=red", "?label=", "?count=0", "?count=501", "?fromDate=x"} {
		b.ask(400, "DELETE", "/v2/messages"+bad, "", nil)
	}
	b.ask(400, "DELETE", "/v2/messages", `{"labels":"red"}`, nil)
	host := strings.TrimPrefix(h.URL, "http://")
	cancel(0, "?label=green", "")
	cancel(0, "?label=red&path=/c", "")
	cancel(0, "?messageIds="+ids["done"], "")
	cancel(0, "?messageIds=msg_nobody", "")
	cancel(0, "?toDate=1000", "")
	cancel(1, "?label=hot,green&path=/a&host="+host+"&api=1", "")
	cancel(0, "?label=hot", "")
	cancel(1, "?url="+url.QueryEscape(h.URL+"/b?q=1"), "")
	cancel(1, "", `{"messageIds":["`+ids["c"]+`"],"count":5}`)
	cancel(1, "", "")
	b.ask(200, "POST", "/testing/clock", `{"advance":"2h"}`, nil)
	if got := h.requests(); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestEventFilters narrows and pages the log.
func TestEventFilters(t *testing.T) {
	t.Parallel()
	b, ok, bad := start(t, nil), newHook(t, 200), newHook(t, 400)
	good, failed := b.publish("/v2/publish/"+ok.URL+"/a", "", "Upstash-Label", "l"), b.publish("/v2/publish/"+bad.URL+"/b", "", "Upstash-Retries", "0")
	if good.status != 200 || failed.status != 200 {
		t.Fatalf("%s %s", good.body, failed.body)
	}
	b.settle()
	count := func(want int, query string) {
		t.Helper()
		var page eventsV2
		r := b.ask(200, "GET", "/v2/events"+query, "", &page)
		if len(page.Events) != want || strings.Contains(string(r.body), `"cursor":""`) {
			t.Errorf("%s: %s", query, r.body)
		}
	}
	count(7, "")
	count(3, "?label=l")
	count(4, "?path=/b")
	count(2, "?state=ERROR,FAILED")
	count(3, "?state=IN_PROGRESS")
	count(0, "?state=CANCELLED")
	count(1, "?state=DELIVERED&url="+url.QueryEscape(ok.URL+"/a"))
	count(0, "?state=DELIVERED&path=/b")
	count(7, "?callerIp=127.0.0.1&fromDate=0")
	count(0, "?toDate=1")
	seen, cursor := 0, ""
	for {
		var page eventsV2
		query := "?count=3&order=earliestFirst"
		if cursor != "" {
			query += "&cursor=" + cursor
		}
		b.ask(200, "GET", "/v2/events"+query, "", &page)
		seen += len(page.Events)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if seen != 7 {
		t.Errorf("%d entries page by page", seen)
	}
	for _, query := range []string{"?state=NO", "?order=up", "?count=1001", "?nobody=1", "?cursor=x"} {
		if r := b.do(http.MethodGet, "/v2/events"+query, ""); r.status != 400 {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
}

// TestBatchDuplicates: of items with one deduplication id the first is published and the others are its duplicates.
func TestBatchDuplicates(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	var items []string
	for i := range 120 {
		items = append(items, fmt.Sprintf(`{"destination":%q,"headers":{"Upstash-Deduplication-Id":"id-%d"}}`, fmt.Sprintf("%s/%d", h.URL, i/40), i%40))
	}
	var out []publishResult
	b.ask(200, "POST", "/v2/batch", "["+strings.Join(items, ",")+"]", &out)
	for i, r := range out {
		if r.Deduplicated != (i >= 40) || r.MessageID != out[i%40].MessageID {
			t.Errorf("item %d: %+v", i, r)
		}
	}
	b.settle()
	if got := h.requests(); len(got) != 40 || slices.ContainsFunc(got, func(d delivered) bool { return d.uri != "/0" }) {
		t.Errorf("%d deliveries", len(got))
	}
}
