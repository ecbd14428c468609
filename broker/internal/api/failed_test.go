package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// fail publishes messages to paths of a hook that refuses them and returns their dead letters, the oldest first.
func (b *broker) fail(h *hook, paths ...string) []failedMessage {
	b.t.Helper()
	for _, path := range paths {
		r := b.publish("/v2/publish/"+h.URL+path, "body of "+path, "Upstash-Retries", "0", "Upstash-Label", strings.Trim(path, "/"),
			"Upstash-Forward-X-Path", path, "Upstash-Deduplication-Id", path)
		if r.status != 200 {
			b.t.Fatalf("%d %s", r.status, r.body)
		}
		b.settle()
	}
	var list failedMessages
	b.ask(200, "GET", "/v2/dlq?order=earliestFirst", "", &list)
	if len(list.Messages) != len(paths) {
		b.t.Fatalf("%d dead letters of %d", len(list.Messages), len(paths))
	}
	return list.Messages
}

func (h *hook) answer(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

func TestFailed(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	dead := b.fail(h, "/one", "/two", "/three")
	one := dead[0]
	if !strings.HasPrefix(one.DLQID, "dlq_") || one.URL != h.URL+"/one" || one.ResponseStatus != 500 || one.ResponseBody == nil || *one.ResponseBody != "" ||
		one.Body == nil || *one.Body != "body of /one" || one.Label != "one" || one.Header["X-Path"][0] != "/one" || len(one.ResponseHeader["Date"]) != 1 {
		t.Errorf("%+v", one)
	}
	var got failedMessage
	b.ask(200, "GET", "/v2/DLQ/"+one.DLQID+"/", "", &got)
	if got.DLQID != one.DLQID || got.MessageID != one.MessageID {
		t.Errorf("%+v", got)
	}
	for query, want := range map[string]string{
		"":                                "three two one",
		"?earliestFirst=True":             "one two three",
		"?count=2":                        "three two",
		"?label=one,three":                "three one",
		"?label=one&label=two":            "two one",
		"?label=one&responseStatus=404":   "",
		"?responseStatus=500,404&count=1": "three",
		"?messageId=" + one.MessageID:     "one",
		"?dlqIds=" + one.DLQID + "&dlqIds=" + dead[1].DLQID + ",dlq_x": "two one",
		"?url=" + url.QueryEscape(h.URL+"/two"):                        "two",
		"?path=/two&api=x":                                             "two",
		"?fromDate=253402300799999":                                    "",
	} {
		var list failedMessages
		b.ask(200, "GET", "/v2/dlq"+query, "", &list)
		var labels []string
		for _, m := range list.Messages {
			labels = append(labels, m.Label)
		}
		if strings.Join(labels, " ") != want {
			t.Errorf("%s: %v, want %s", query, labels, want)
		}
	}
	var first, second failedMessages
	b.ask(200, "GET", "/v2/dlq?count=2", "", &first)
	b.ask(200, "GET", "/v2/dlq?count=2&cursor="+first.Cursor, "", &second)
	if len(first.Messages) != 2 || len(second.Messages) != 1 || second.Cursor != "" || second.Messages[0].DLQID != one.DLQID {
		t.Errorf("%+v %+v", first, second)
	}
	for _, bad := range []string{"?unknown=1", "?count=0", "?count=101", "?dlqIds=", "?dlqIds=,", "?cursor=x", "?responseStatus=x", "?responseStatus=", "?earliestFirst=perhaps", "?order=x"} {
		b.ask(400, "GET", "/v2/dlq"+bad, "", nil)
	}
	for _, bad := range []string{"?unknown=1", "?dlqids=" + one.DLQID, "?count=0", "?dlqIds=", "?cursor=x"} {
		b.ask(400, "DELETE", "/v2/dlq"+bad, "", nil)
		b.ask(400, "POST", "/v2/dlq/retry"+bad, "", nil)
	}
	for _, bad := range []string{`{"dlqId":"x"}`, `{"dlqIds":[]}`, `{"dlqIds":"x"}`, `[]`, `{"count":0}`} {
		b.ask(400, "DELETE", "/v2/dlq", bad, nil)
	}
	for _, id := range []string{"dlq_x", "retry", "dlq_0198f2c14d3a7c109f2b6a1e5d0c7b82"} {
		b.ask(404, "GET", "/v2/dlq/"+id, "", nil)
		b.ask(404, "DELETE", "/v2/dlq/"+id, "", nil)
		b.ask(404, "POST", "/v2/dlq/retry/"+id, "", nil)
	}
	var n deletedFailed
	b.ask(200, "DELETE", "/v2/dlq?label=nobody", "", &n)
	if n.Deleted != 0 {
		t.Errorf("%+v", n)
	}
	b.ask(200, "DELETE", "/v2/dlq/"+one.DLQID, "", &n)
	b.ask(404, "DELETE", "/v2/dlq/"+one.DLQID, "", nil)
	b.ask(200, "DELETE", "/v2/dlq?api=1", `{"dlqIds":["`+dead[1].DLQID+`","`+one.DLQID+`"]}`, &n)
	if n.Deleted != 1 || n.Cursor != "" {
		t.Errorf("%+v", n)
	}
	b.ask(200, "DELETE", "/v2/dlq", "", &n)
	if n.Deleted != 1 {
		t.Errorf("%+v", n)
	}
	b.ask(200, "GET", "/v2/dlq", "", &first)
	if len(first.Messages) != 0 {
		t.Errorf("%+v", first)
	}
}

func TestDeleteFailedInSteps(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	b.fail(h, "/1", "/2", "/3")
	var n deletedFailed
	b.ask(200, "DELETE", "/v2/dlq?count=2", "", &n)
	if n.Deleted != 2 || n.Cursor == "" {
		t.Errorf("%+v", n)
	}
	b.ask(200, "DELETE", "/v2/dlq?count=2&cursor="+n.Cursor, "", &n)
	var list failedMessages
	b.ask(200, "GET", "/v2/dlq", "", &list)
	if len(list.Messages) != 0 {
		t.Errorf("%+v", list)
	}
}

func TestRetryFailed(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	dead := b.fail(h, "/1", "/2", "/3", "/4")
	h.answer(200)
	before := len(h.requests())
	r := b.publish("/v2/dlq/retry/"+dead[0].DLQID+"?upstash-method=PATCH", "thrown away", "Upstash-Forward-X-More", "m", "Upstash-Retries", "9", "Content-Type", "text/plain")
	var out publishResult
	if err := json.Unmarshal(r.body, &out); err != nil || r.status != 201 || out.MessageID == dead[0].MessageID || out.URL != h.URL+"/1" || out.Deduplicated {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	got := h.requests()[before:]
	if len(got) != 1 || got[0].method != "PATCH" || got[0].uri != "/1" || got[0].body != "body of /1" || got[0].header.Get("X-Path") != "/1" || got[0].header.Get("X-More") != "m" ||
		got[0].header.Get("Content-Type") != "" || got[0].header.Get("Upstash-Message-Id") != out.MessageID {
		t.Errorf("%+v", got)
	}
	var m messageV2
	b.ask(200, "GET", "/v2/messages/"+out.MessageID, "", &m)
	if m.MaxRetries != 9 || m.Label != "1" {
		t.Errorf("%+v", m)
	}
	b.ask(404, "GET", "/v2/dlq/"+dead[0].DLQID, "", nil)
	b.ask(404, "POST", "/v2/dlq/retry/"+dead[0].DLQID, "", nil)

	var bulk retriedFailed
	b.ask(201, "POST", "/v2/dlq/retry?dlqIds="+dead[2].DLQID+"&dlqIds="+dead[0].DLQID+"&dlqIds="+dead[1].DLQID+"&dlqIds="+dead[1].DLQID, "", &bulk)
	if len(bulk.Responses) != 2 || bulk.Responses[0].URL != h.URL+"/3" || bulk.Responses[1].URL != h.URL+"/2" || bulk.Cursor != "" {
		t.Errorf("%+v", bulk)
	}
	r = b.publish("/v2/dlq/retry/"+dead[3].DLQID, "", "Upstash-Retries", "-1")
	if r.status != 400 {
		t.Errorf("%d %s", r.status, r.body)
	}
	r = b.publish("/v2/dlq/retry?label=4&upstash-delay=5s", "")
	if err := json.Unmarshal(r.body, &bulk); err != nil || r.status != 201 || len(bulk.Responses) != 1 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	if got := h.requests()[before:]; len(got) != 3 {
		t.Errorf("%+v", got)
	}
	b.ask(200, "POST", "/testing/clock", `{"advance":"5s"}`, nil)
	if got := h.requests()[before:]; len(got) != 4 || got[3].uri != "/4" {
		t.Errorf("%+v", got)
	}
	b.ask(201, "POST", "/v2/dlq/retry", "", &bulk)
	if len(bulk.Responses) != 0 {
		t.Errorf("%+v", bulk)
	}
}

// TestRetryFailedInSteps goes on where the cursor says.
func TestRetryFailedInSteps(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	b.fail(h, "/1", "/2", "/3")
	h.answer(200)
	var one, two retriedFailed
	b.ask(201, "POST", "/v2/dlq/retry?count=2", "", &one)
	b.ask(201, "POST", "/v2/dlq/retry?count=2&cursor="+one.Cursor, "", &two)
	if len(one.Responses) != 2 || one.Responses[0].URL != h.URL+"/1" || len(two.Responses) != 1 || two.Responses[0].URL != h.URL+"/3" || two.Cursor != "" {
		t.Errorf("%+v %+v", one, two)
	}
}

// TestFailedHidden shows nobody what was hidden, also after a retry that would hide less.
func TestFailedHidden(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	if r := b.publish("/v2/publish/"+h.URL, "secret", "Upstash-Retries", "0", "Upstash-Forward-X-Key", "secret", "Upstash-Redact-Fields", "body,header[X-Key]",
		"Upstash-Callback", h.URL+"/cb", "Upstash-Callback-Forward-X-Key", "secret", "Upstash-Callback-Method", "PUT", "Upstash-Callback-Retries", "0"); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	b.settle()
	var list failedMessages
	b.ask(200, "GET", "/v2/dlq", "", &list)
	i := slices.IndexFunc(list.Messages, func(m failedMessage) bool { return m.Method == http.MethodPost }) // the callback fails too
	if i < 0 || !strings.HasPrefix(*list.Messages[i].Body, "REDACTED:") || !strings.HasPrefix(list.Messages[i].Header["X-Key"][0], "REDACTED:") ||
		!strings.HasPrefix(list.Messages[i].CallbackHeader["Forward-X-Key"][0], "REDACTED:") || list.Messages[i].CallbackHeader["Method"][0] != "PUT" {
		t.Fatalf("%+v", list)
	}
	if len(list.Messages) != 2 {
		t.Fatalf("%+v", list)
	}
	for _, m := range list.Messages {
		if !strings.HasPrefix(*m.Body, "REDACTED:") || !strings.HasPrefix(m.Header["X-Key"][0], "REDACTED:") {
			t.Errorf("shown: %+v", m)
		}
	}
	for _, path := range []string{"/v2/logs", "/v2/messages/" + list.Messages[i].MessageID} {
		if r := b.do(http.MethodGet, path, ""); r.status != 200 || strings.Contains(string(r.body), `"Forward-X-Key":["secret"]`) {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
	h.answer(200)
	r := b.publish("/v2/dlq/retry/"+list.Messages[i].DLQID, "", "Upstash-Redact-Fields", "header[X-Other]", "Upstash-Forward-X-Other", "hidden")
	var out publishResult
	if err := json.Unmarshal(r.body, &out); err != nil || r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	var m messageV2
	b.ask(200, "GET", "/v2/messages/"+out.MessageID, "", &m)
	for _, shown := range []string{*m.Body, m.Header["X-Key"][0], m.Header["X-Other"][0]} {
		if !strings.HasPrefix(shown, "REDACTED:") {
			t.Errorf("shown: %s", shown)
		}
	}
	b.settle()
	if got := h.requests(); len(got) != 4 || got[1].header.Get("X-Key") != "secret" || got[2].body != "secret" || got[2].header.Get("X-Key") != "secret" {
		t.Errorf("%+v", got)
	}
}

// TestFailedWithoutAnswer has the status 0.
func TestFailedWithoutAnswer(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	h.Close()
	dead := b.fail(h, "/x")
	if d := dead[0]; d.ResponseStatus != 0 || d.ResponseBody != nil || d.ResponseHeader != nil {
		t.Errorf("%+v", d)
	}
	var list failedMessages
	b.ask(200, "GET", "/v2/dlq?responseStatus=0", "", &list)
	if len(list.Messages) != 1 {
		t.Errorf("%+v", list)
	}
}

func TestSigningKeys(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	var before, after, again signingKeys
	b.ask(200, "GET", "/v2/keys", "", &before)
	b.ask(200, "GET", "/v1/keys", "", &again)
	if again != before || before.Current == before.Next || !strings.HasPrefix(before.Current, "sig_") || !strings.HasPrefix(before.Next, "sig_") {
		t.Fatal("the keys are not two")
	}
	for _, path := range []string{"/v2/keys/rotate", "/v2/rotate", "/v1/keys/rotate"} {
		b.ask(200, http.MethodPost, path, "", &after)
		b.ask(200, http.MethodGet, "/v2/keys", "", &again)
		if after.Current != before.Next || after.Next == before.Next || again != after {
			t.Errorf("%s does not rotate", path)
		}
		before = after
	}
}
