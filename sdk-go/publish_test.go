package posthorn_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func text(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}
}

// once is a client that repeats nothing.
func once(t *testing.T, url string) *posthorn.Client {
	t.Helper()
	c, err := posthorn.New(url, posthorn.Options{Token: "secret", Retry: posthorn.RetryPolicy{MaxAttempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestPublishJSON sends the value in place of the body, and only a value that is one.
func TestPublishJSON(t *testing.T) {
	t.Parallel()
	s := newScript(t, text(200, `{"messageId":"msg_1","url":"u"}`), text(200, `{"messageId":"msg_2","url":"u"}`))
	c := once(t, s.URL)
	got, err := c.PublishJSON(t.Context(), posthorn.Publication{Destination: "news", Body: []byte("not this"), Labels: []string{"l"}}, map[string]any{"a": "<1>"})
	if e := s.seen[0]; err != nil || got[0].MessageID != "msg_1" || e.Body != `{"a":"<1>"}` || e.Header.Get("Content-Type") != "application/json" || e.Header.Get("Upstash-Label") != "l" {
		t.Errorf("%+v, %v: %+v", got, err, e)
	}
	if _, err := c.PublishJSON(t.Context(), posthorn.Publication{Destination: "news", ContentType: "application/cloudevents+json"}, nil); err != nil {
		t.Fatal(err)
	}
	if e := s.seen[1]; e.Body != "null" || e.Header.Get("Content-Type") != "application/cloudevents+json" {
		t.Errorf("%+v", e)
	}
	var unsupported *json.UnsupportedTypeError
	if _, err := c.PublishJSON(t.Context(), posthorn.Publication{Destination: "news"}, func() {}); !errors.As(err, &unsupported) || len(s.seen) != 2 {
		t.Errorf("%v after %d requests", err, len(s.seen))
	}
}

// TestPublish sends each field in its header, and the body as it is.
func TestPublish(t *testing.T) {
	t.Parallel()
	s := newScript(t, text(200, `{"messageId":"msg_1","url":"u"}`), text(202, `[{"messageId":"msg_2","url":"u","deduplicated":true},{"messageId":"msg_3","url":"v"}]`),
		text(200, `{"messageId":"msg_4","url":"u"}`), text(404, `{"error":"topic x not found"}`))
	c := once(t, s.URL)
	retries := 0
	got, err := c.Publish(t.Context(), posthorn.Publication{
		Destination: "https://example.com/a//b?x=1&y=%20", Body: []byte("\xff"), ContentType: "text/plain", Method: "PUT",
		Header: http.Header{"x-mine": {"a", "b"}}, Delay: 1500 * time.Millisecond, Retries: &retries, RetryDelay: "1000", Timeout: time.Minute,
		Callback: "https://cb/", FailureCallback: "https://fcb/", DeduplicationID: "id", ContentBased: true, Labels: []string{"l", "m"}, Redact: "body",
		More: http.Header{"Upstash-Callback-Method": {"PUT"}},
	})
	if err != nil || !reflect.DeepEqual(got, []posthorn.Published{{MessageID: "msg_1", URL: "u"}}) {
		t.Fatalf("%+v, %v", got, err)
	}
	e := s.seen[0]
	if e.Method != "POST" || e.Target != "/v2/publish/https:%2F%2Fexample.com%2Fa%2F%2Fb%3Fx=1&y=%2520" || e.Body != "\xff" {
		t.Errorf("%+v", e)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/plain", "Upstash-Method": "PUT", "Upstash-Delay": "2s", "Upstash-Retries": "0", "Upstash-Retry-Delay": "1000",
		"Upstash-Timeout": "60s", "Upstash-Callback": "https://cb/", "Upstash-Failure-Callback": "https://fcb/", "Upstash-Deduplication-Id": "id",
		"Upstash-Content-Based-Deduplication": "true", "Upstash-Label": "l,m", "Upstash-Redact-Fields": "body", "Upstash-Callback-Method": "PUT",
		"Authorization": "Bearer secret", "Upstash-Not-Before": "",
	} {
		if e.Header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, e.Header.Get(name), want)
		}
	}
	if !reflect.DeepEqual(e.Header["Upstash-Forward-X-Mine"], []string{"a", "b"}) {
		t.Errorf("%v", e.Header)
	}
	got, err = c.Publish(t.Context(), posthorn.Publication{Destination: "news", NotBefore: time.Unix(99, 1)})
	if err != nil || len(got) != 2 || !got[0].Duplicate || got[1].Duplicate {
		t.Errorf("%+v, %v", got, err)
	}
	if e := s.seen[1]; e.Target != "/v2/publish/news" || e.Header.Get("Upstash-Not-Before") != "100" || e.Header["Content-Type"] != nil || e.Body != "" {
		t.Errorf("%+v", e)
	}
	if _, err := c.Publish(t.Context(), posthorn.Publication{Destination: "queue:a b/c/d"}); err != nil || s.seen[2].Target != "/v2/publish/queue:a%20b/c%2Fd" {
		t.Errorf("%v, %+v", err, s.seen[2])
	}
	if _, err := c.Publish(t.Context(), posthorn.Publication{Destination: "x"}); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := c.Publish(t.Context(), posthorn.Publication{Destination: "x", Delay: -1}); err == nil {
		t.Error("a negative delay")
	}
}

// TestPublishIsRepeated only where that cannot deliver twice.
func TestPublishIsRepeated(t *testing.T) {
	t.Parallel()
	s := newScript(t, text(503, `{"error":"x"}`), text(200, `{"messageId":"m","url":"u"}`), text(503, `{"error":"x"}`))
	c, err := posthorn.New(s.URL, posthorn.Options{Retry: posthorn.RetryPolicy{BaseDelay: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Publish(t.Context(), posthorn.Publication{Destination: "https://x/", DeduplicationID: "id"}); err != nil {
		t.Error(err)
	}
	if _, err := c.Publish(t.Context(), posthorn.Publication{Destination: "https://x/"}); !errors.Is(err, posthorn.ErrUnavailable) {
		t.Error(err)
	}
}

// TestPublishBatch keeps results in their places.
func TestPublishBatch(t *testing.T) {
	t.Parallel()
	s := newScript(t, text(200, `[{"messageId":"m","url":"u"},{"error":"topic x not found"},[{"messageId":"n","url":"v"}]]`), text(200, `[]`))
	c := once(t, s.URL)
	list := []posthorn.Publication{{Destination: "https://x/?a=<b>", Body: []byte("1"), Method: "PUT"}, {Destination: "x"}, {Destination: "y"}}
	got, err := c.PublishBatch(t.Context(), list)
	if err != nil || len(got) != 3 || got[0].Messages[0].MessageID != "m" || got[1].Err == nil || got[1].Err.Error() != "topic x not found" || got[2].Messages[0].MessageID != "n" {
		t.Fatalf("%+v, %v", got, err)
	}
	if want := `[{"destination":"https://x/?a=<b>","headers":{"Upstash-Method":["PUT"]},"body":"1"},{"destination":"x"},{"destination":"y"}]`; s.seen[0].Body != want {
		t.Errorf("%s", s.seen[0].Body)
	}
	if _, err := c.PublishBatch(t.Context(), list); err == nil {
		t.Error("too few results")
	}
	if _, err := c.PublishBatch(t.Context(), []posthorn.Publication{{Destination: "x", Body: []byte("\xff")}}); err == nil {
		t.Error("a body that is not UTF-8")
	}
}

// TestPublishedMessages reads and cancels.
func TestPublishedMessages(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		text(200, `{"messageId":"m","url":"u","method":"PUT","header":{"A":["1"]},"bodyBase64":"/w==","maxRetries":3,"notBefore":2000,"createdAt":1000,"callerIP":"192.0.2.1","labels":["l"],"scheduleId":"scd_1"}`),
		text(200, `{"cancelled":1}`), text(200, `{"cancelled":7}`), text(200, `{"cancelled":9}`))
	c := once(t, s.URL)
	m, err := c.GetPublished(t.Context(), "m/x")
	if err != nil || string(m.Body) != "\xff" || m.CreatedAt != time.UnixMilli(1000).UTC() || m.Header.Get("A") != "1" || m.Retries != 3 || m.ScheduleID != "scd_1" || s.seen[0].Target != "/v2/messages/m%2Fx" {
		t.Errorf("%+v, %v", m, err)
	}
	if err := c.CancelPublished(t.Context(), "m"); err != nil {
		t.Error(err)
	}
	n, err := c.CancelPublishedMany(t.Context(), posthorn.CancelOptions{
		PublishedFilter: posthorn.PublishedFilter{Labels: []string{"a", "b"}, Schedules: []string{"scd_1"}, From: time.UnixMilli(5)}, Limit: 7,
	})
	if err != nil || n != 7 || s.seen[2].Target != "/v2/messages?count=7&fromDate=5&label=a&label=b&scheduleId=scd_1" || s.seen[2].Method != "DELETE" {
		t.Errorf("%d, %v, %+v", n, err, s.seen[2])
	}
	if _, err := c.CancelPublishedMany(t.Context(), posthorn.CancelOptions{}); err == nil || !strings.Contains(err.Error(), "All") {
		t.Errorf("%v", err)
	}
	if n, err := c.CancelPublishedMany(t.Context(), posthorn.CancelOptions{All: true}); err != nil || n != 9 {
		t.Errorf("%d, %v", n, err)
	}
}

// TestEvents reads the log page by page.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		text(200, `{"cursor":"c","events":[{"time":1,"messageId":"m","state":"RETRY","url":"u","nextDeliveryTime":5,"error":"e","responseStatus":500,"responseHeader":{"A":["b"]},"responseBody":"aGk="}]}`),
		text(200, `{"events":[],"logs":[]}`))
	c := once(t, s.URL)
	page, err := c.ListEvents(t.Context(), posthorn.EventOptions{States: []posthorn.DeliveryState{posthorn.DeliveryRetry}, Limit: 1, OldestFirst: true})
	if err != nil || page.Cursor != "c" || len(page.Events) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	if e := page.Events[0]; e.State != posthorn.DeliveryRetry || string(e.ResponseBody) != "hi" || e.NextDelivery != time.UnixMilli(5).UTC() || e.ResponseHeader.Get("A") != "b" {
		t.Errorf("%+v", e)
	}
	if s.seen[0].Target != "/v2/events?count=1&order=earliestFirst&state=RETRY" {
		t.Errorf("%s", s.seen[0].Target)
	}
	if page, err := c.ListLogs(t.Context(), posthorn.EventOptions{Cursor: "c"}); err != nil || page.Cursor != "" || s.seen[1].Target != "/v2/logs?cursor=c" {
		t.Errorf("%+v, %v", page, err)
	}
}
