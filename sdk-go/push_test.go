package posthorn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

type pushBody struct {
	Items []struct {
		Queue         string
		Partition     *string
		TransactionID string `json:"transactionId"`
		Payload       json.RawMessage
	}
}

// results answers a push with one status per item, echoing what was sent.
func results(tb testing.TB, httpStatus int, statuses ...posthorn.PushStatus) http.HandlerFunc {
	tb.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		list := make([]map[string]any, len(statuses))
		for i, status := range statuses {
			list[i] = map[string]any{
				"index": i, "message_id": fmt.Sprintf("0198f2c1-4d3a-7c10-9f2b-%012d", i),
				"transaction_id": fmt.Sprint("t", i), "queueName": "q", "status": status,
			}
		}
		body, err := json.Marshal(list)
		if err != nil {
			tb.Error(err)
		}
		answer(httpStatus, string(body))(w, r)
	}
}

func TestPushSendsWhatTheContractNames(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(201, `[{"index":0,"message_id":"m0","transaction_id":"order-8891-created","queueName":"orders.created","status":"queued","later":{"x":1}},
		{"index":1,"message_id":"00000000-0000-0000-0000-000000000000","transaction_id":"t1","queueName":"q","status":"duplicate"},
		{"index":2,"message_id":"m2","transaction_id":"t2","queueName":"q","status":"buffered"}]`))
	client := newClient(t, server.URL+"/broker/", posthorn.Options{Token: "secret", UserAgent: "shop/1.0"})

	got, err := client.Push(testContext(t), []posthorn.Item{
		{Queue: "orders.created", Partition: "customer-42", TransactionID: "order-8891-created", Payload: map[string]any{"a": "<&>"}},
		{Queue: "<q>&", TransactionID: "t1"},
		{Queue: "q", TransactionID: "t2", Payload: 7},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []posthorn.PushResult{
		{MessageID: "m0", TransactionID: "order-8891-created", Queue: "orders.created", Status: posthorn.StatusQueued, Attempt: 1},
		{MessageID: posthorn.ZeroID, TransactionID: "t1", Queue: "q", Status: posthorn.StatusDuplicate, Attempt: 1},
		{MessageID: "m2", TransactionID: "t2", Queue: "q", Status: posthorn.StatusBuffered, Attempt: 1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("results %+v\nwant    %+v", got, want)
	}

	seen := server.requests(1)[0]
	if seen.Method != "POST" || seen.Target != "/broker/api/v1/push" {
		t.Errorf("sent %s %s", seen.Method, seen.Target)
	}
	for name, want := range map[string]string{"Authorization": "Bearer secret", "User-Agent": "shop/1.0", "Content-Type": "application/json"} {
		if got := seen.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	const body = `{"items":[{"queue":"orders.created","partition":"customer-42","transactionId":"order-8891-created","payload":{"a":"<&>"}},` +
		`{"queue":"<q>&","transactionId":"t1","payload":null},{"queue":"q","transactionId":"t2","payload":7}]}`
	if seen.Body != body {
		t.Errorf("body %s\nwant %s", seen.Body, body)
	}
}

func TestPushKeepsRawPayloadBytes(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		`1e400`, `1234567890123456789012345678901234567890`, `"\u0000\ud800\u00e9 <&>\/"`, "{ \"b\" :1,\t\"a\":[ ],\"b\":2 }", `null`, `""`,
	} {
		t.Run(raw, func(t *testing.T) {
			t.Parallel()
			server := newScript(t, results(t, 201, posthorn.StatusQueued))
			client := newClient(t, server.URL, posthorn.Options{})
			_, err := client.Push(testContext(t), []posthorn.Item{{Queue: "q", TransactionID: "t", Payload: json.RawMessage(raw)}})
			if err != nil {
				t.Fatal(err)
			}
			want := `{"items":[{"queue":"q","transactionId":"t","payload":` + raw + `}]}`
			if got := server.requests(1)[0].Body; got != want {
				t.Errorf("body %s\nwant %s", got, want)
			}
		})
	}
}

func TestPushRefusesWhatItCannotEncode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		item posthorn.Item
		want string
	}{
		"raw that closes the item": {posthorn.Item{Queue: "q", Payload: json.RawMessage(`1},{"queue":"other","payload":2`)}, "items[1].payload: raw message is not valid JSON"},
		"empty raw":                {posthorn.Item{Queue: "q", Payload: json.RawMessage{}}, "items[1].payload: raw message is not valid JSON"},
		"raw bytes":                {posthorn.Item{Queue: "q", Payload: json.RawMessage("\"\xff\"")}, "items[1].payload: raw message is not valid UTF-8"},
		"channel":                  {posthorn.Item{Queue: "q", Payload: make(chan int)}, "items[1].payload: json: unsupported type"},
		"queue":                    {posthorn.Item{Queue: "\xff"}, `items[1].queue "\xff" is not valid UTF-8`},
		"partition":                {posthorn.Item{Partition: "\xff"}, `items[1].partition "\xff" is not valid UTF-8`},
		"transaction id":           {posthorn.Item{TransactionID: "\xff"}, `items[1].transactionId "\xff" is not valid UTF-8`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newScript(t)
			client := newClient(t, server.URL, posthorn.Options{})
			got, err := client.Push(testContext(t), []posthorn.Item{{Queue: "q"}, test.item})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %s", err, test.want)
			}
			if got != nil {
				t.Errorf("results %v for a push that was not sent", got)
			}
			server.requests(0)
		})
	}
}

func TestPushOfNothing(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(201, `[]`))
	got, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), nil)
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if body := server.requests(1)[0].Body; body != `{"items":[]}` {
		t.Errorf("body %s", body)
	}
}

var uuidV7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestPushMintsIDsBeforeItSends(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		cut,
		answer(500, `{"error":"boom"}`),
		answer(503, `{"error":"no database"}`),
		results(t, 201, posthorn.StatusDuplicate, posthorn.StatusQueued))
	items := []posthorn.Item{{Queue: "q", Payload: 1}, {Queue: "q", Payload: 2}}
	got, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), items)
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Attempt != 4 || got[0].Status != posthorn.StatusDuplicate {
		t.Errorf("result %+v, want a duplicate of attempt 4", got[0])
	}
	if items[0].TransactionID != "" {
		t.Error("the caller's items were changed")
	}
	seen := server.requests(4)
	first := decode[pushBody](t, seen[0].Body)
	if a, b := first.Items[0].TransactionID, first.Items[1].TransactionID; !uuidV7.MatchString(a) || !uuidV7.MatchString(b) || a == b {
		t.Errorf("minted %q and %q, want two UUIDv7", a, b)
	}
	for i, request := range seen {
		if request.Body != seen[0].Body {
			t.Errorf("attempt %d sent %s, the first one %s", i+1, request.Body, seen[0].Body)
		}
	}
}

func TestNewTransactionIDCarriesTheTime(t *testing.T) {
	t.Parallel()
	before := time.Now().UnixMilli()
	id := posthorn.NewTransactionID()
	after := time.Now().UnixMilli()
	var millis int64
	if _, err := fmt.Sscanf(strings.ReplaceAll(id, "-", "")[:12], "%x", &millis); err != nil {
		t.Fatal(err)
	}
	if millis < before || millis > after {
		t.Errorf("%s says %d, minted between %d and %d", id, millis, before, after)
	}
}

func TestPushRepeatsOnlyFailedItems(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		results(t, 201, posthorn.StatusQueued, posthorn.StatusFailed, posthorn.StatusBuffered, posthorn.StatusFailed),
		results(t, 201, posthorn.StatusFailed, posthorn.StatusQueued),
		results(t, 201, posthorn.StatusQueued))
	got, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), []posthorn.Item{
		{Queue: "q", Payload: 0}, {Queue: "q", Payload: 1}, {Queue: "q", Payload: 2}, {Queue: "q", Payload: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		status  posthorn.PushStatus
		attempt int
	}{{posthorn.StatusQueued, 1}, {posthorn.StatusQueued, 3}, {posthorn.StatusBuffered, 1}, {posthorn.StatusQueued, 2}} {
		if got[i].Status != want.status || got[i].Attempt != want.attempt {
			t.Errorf("result %d is %+v, want %+v", i, got[i], want)
		}
	}
	seen := server.requests(3)
	first, second, third := decode[pushBody](t, seen[0].Body), decode[pushBody](t, seen[1].Body), decode[pushBody](t, seen[2].Body)
	if !reflect.DeepEqual(second.Items, append(first.Items[1:2:2], first.Items[3])) {
		t.Errorf("second attempt sent %s", seen[1].Body)
	}
	if !reflect.DeepEqual(third.Items, first.Items[1:2]) {
		t.Errorf("third attempt sent %s", seen[2].Body)
	}
}

func TestPushReportsFailedItems(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		results(t, 201, posthorn.StatusQueued, posthorn.StatusFailed, "novel"),
		results(t, 201, posthorn.StatusFailed, "novel"))
	policy := fast
	policy.MaxAttempts = 2
	got, err := newClient(t, server.URL, posthorn.Options{Retry: policy}).Push(testContext(t), []posthorn.Item{
		{Queue: "q", Payload: "a"}, {Queue: "q", Payload: "b"}, {Queue: "q", Payload: "c"},
	})
	var push *posthorn.PushError
	if !errors.As(err, &push) {
		t.Fatalf("error %v, want a *PushError", err)
	}
	if push.Err != nil || !reflect.DeepEqual(push.Indices, []int{1, 2}) {
		t.Errorf("error %+v, want items 1 and 2 and no cause", push)
	}
	if len(got) != 3 || got[0].Status != posthorn.StatusQueued || got[1].Status != posthorn.StatusFailed || got[2].Status.Accepted() {
		t.Errorf("results %+v", got)
	}
	sent := decode[pushBody](t, server.requests(2)[0].Body)
	if push.Items[0].Payload != "b" || push.Items[0].TransactionID != sent.Items[1].TransactionID {
		t.Errorf("item %+v was sent as %+v", push.Items[0], sent.Items[1])
	}
}

func TestPushUnderMaintenance(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		results(t, 500, posthorn.StatusBuffered, posthorn.StatusFailed),
		results(t, 201, posthorn.StatusBuffered))
	got, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), []posthorn.Item{{Queue: "q"}, {Queue: "q"}})
	if err != nil {
		t.Fatal(err)
	}
	if got[0].Attempt != 1 || got[1].Attempt != 2 || got[1].Status != posthorn.StatusBuffered {
		t.Errorf("results %+v", got)
	}
	if second := decode[pushBody](t, server.requests(2)[1].Body); len(second.Items) != 1 {
		t.Errorf("the buffered item was sent again: %+v", second)
	}
}

func TestPushDoesNotRepeatRefusals(t *testing.T) {
	t.Parallel()
	for status, sentinel := range map[int]error{400: nil, 401: posthorn.ErrUnauthorized, 403: posthorn.ErrForbidden, 404: posthorn.ErrNotFound, 413: posthorn.ErrRequestTooLarge, 501: nil} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			server := newScript(t, answer(status, `{"error":"bad body: items[0].payload is missing","code":"c"}`, "X-Request-Id", "r-1"))
			got, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), []posthorn.Item{{Queue: "q"}})
			api := apiError(t, err)
			if api.Status != status || api.Message != "bad body: items[0].payload is missing" || api.Code != "c" || api.RequestID != "r-1" {
				t.Errorf("error %+v", api)
			}
			if sentinel != nil && !errors.Is(err, sentinel) {
				t.Errorf("%v is not %v", err, sentinel)
			}
			var push *posthorn.PushError
			if got != nil || !errors.As(err, &push) || !reflect.DeepEqual(push.Indices, []int{0}) {
				t.Errorf("results %v, error %v", got, err)
			}
			server.requests(1)
		})
	}
}

func TestPushWithLostAnswerAfterPartialOne(t *testing.T) {
	t.Parallel()
	server := newScript(t, results(t, 201, posthorn.StatusQueued, posthorn.StatusFailed), cut)
	policy := fast
	policy.MaxAttempts = 2
	got, err := newClient(t, server.URL, posthorn.Options{Retry: policy}).Push(testContext(t), []posthorn.Item{{Queue: "q"}, {Queue: "q"}})
	var push *posthorn.PushError
	if !errors.As(err, &push) || push.Err == nil || !reflect.DeepEqual(push.Indices, []int{1}) {
		t.Fatalf("error %v", err)
	}
	if got[0].Status != posthorn.StatusQueued || got[1].Status != posthorn.StatusUnknown {
		t.Errorf("results %+v", got)
	}
}

func TestPushRefusesAnswersItCannotMatch(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"too few":    `[{"index":0,"status":"queued"}]`,
		"reordered":  `[{"index":1,"status":"queued"},{"index":0,"status":"failed"}]`,
		"not a list": `{"ok":true}`,
		"not JSON":   `<html>`,
		"empty":      ``,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newScript(t, answer(201, body))
			got, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), []posthorn.Item{{Queue: "q"}, {Queue: "q"}})
			var push *posthorn.PushError
			if got != nil || !errors.As(err, &push) || len(push.Items) != 2 || push.Err == nil {
				t.Errorf("results %v, error %v", got, err)
			}
			server.requests(1)
		})
	}
}

func TestPushHonoursItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(testContext(t))
	server := newScript(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	_, err := newClient(t, server.URL, posthorn.Options{}).Push(ctx, []posthorn.Item{{Queue: "q"}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	server.requests(1)
}

func TestPushErrorText(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(413, `{"error":"body exceeds 67108864 bytes"}`))
	_, err := newClient(t, server.URL, posthorn.Options{}).Push(testContext(t), []posthorn.Item{{Queue: "q"}, {Queue: "q"}})
	if want := "posthorn: push: 2 items not known to be stored: 413 body exceeds 67108864 bytes"; err == nil || err.Error() != want {
		t.Errorf("error %v\nwant  %s", err, want)
	}
}
