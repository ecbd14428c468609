package posthorn_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// FuzzPushBody checks that whatever a caller puts into an item stays inside it.
func FuzzPushBody(f *testing.F) {
	f.Add("orders.created", "customer-42", "order-8891-created", `{"orderId":8891}`)
	f.Add("q", "", "<&>\u2028", "1e400")
	f.Add("\"}],", "\\", "\x00", " {\"a\" : [ ] } ")
	f.Add("\xff", "p", "t", `"\ud800"`)
	f.Add("q", "p", "t", `1},{"queue":"other","payload":2`)
	var body string
	client := newClient(f, "http://broker", posthorn.Options{HTTPClient: &http.Client{Transport: inProcess{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body = string(raw)
		answer(201, `[{"index":0,"status":"queued"}]`)(w, r)
	})}}})
	f.Fuzz(func(t *testing.T, queue, partition, id, payload string) {
		body = ""
		_, err := client.Push(t.Context(), []posthorn.Item{{Queue: queue, Partition: partition, TransactionID: id, Payload: json.RawMessage(payload)}})
		fits := utf8.ValidString(queue+"|"+partition+"|"+id+"|"+payload) && json.Valid([]byte(payload))
		if fits != (err == nil) || fits != (body != "") {
			t.Fatalf("error %v, sent %q", err, body)
		}
		if !fits {
			return
		}
		var sent struct {
			Items []map[string]json.RawMessage
		}
		if err := json.Unmarshal([]byte(body), &sent); err != nil || len(sent.Items) != 1 {
			t.Fatalf("%v: sent %s", err, body)
		}
		for name, want := range map[string]string{"queue": queue, "partition": partition, "transactionId": id} {
			var got string
			if raw, ok := sent.Items[0][name]; ok {
				if err := json.Unmarshal(raw, &got); err != nil {
					t.Fatal(err)
				}
			}
			if got != want && (name != "transactionId" || id != "") {
				t.Errorf("%s %q was sent as %q", name, want, got)
			}
		}
		if !strings.HasSuffix(body, `"payload":`+payload+`}]}`) {
			t.Errorf("payload %q was sent in %s", payload, body)
		}
	})
}

// FuzzAnswers checks that no answer makes the client panic or report success without results.
func FuzzAnswers(f *testing.F) {
	f.Add(200, `[{"index":0,"transactionId":"t","success":true}]`, "1")
	f.Add(201, `[{"index":0,"status":"queued"}]`, "")
	f.Add(204, ``, "")
	f.Add(500, `[{"index":0,"status":"failed"}]`, "Sat, 01 Jan 2000 00:00:10 GMT")
	f.Add(503, `{"error":"no database"}`, "-1")
	f.Add(200, `{"success":true,"messages":[{"data":1e400,"createdAt":"x"}],"options":{"leaseTime":-1},"partitions":[{}],"queues":[{}]}`, "99999999999999999999")
	f.Fuzz(func(t *testing.T, status int, body, retryAfter string) {
		if status < 200 || status > 599 {
			return // net/http answers with nothing else
		}
		client := newClient(t, "http://broker", posthorn.Options{
			HTTPClient: &http.Client{Transport: inProcess{answer(status, body, "Retry-After", retryAfter)}},
			Retry:      posthorn.RetryPolicy{MaxAttempts: 1},
		})
		ctx := t.Context()
		if results, err := client.Push(ctx, []posthorn.Item{{Queue: "q"}}); err == nil && (len(results) != 1 || !results[0].Status.Accepted()) {
			t.Errorf("Push: %+v without an error", results)
		}
		if result, err := client.Ack(ctx, "", posthorn.AckItem{TransactionID: "t"}); err == nil && result.Err != nil {
			t.Errorf("Ack: %+v without an error", result)
		}
		if batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: "q"}); err == nil && status/100 != 2 {
			t.Errorf("Pop: %+v from status %d", batch, status)
		}
		_, _ = client.Extend(ctx, "L", 0)
		_, _ = client.Configure(ctx, "q", posthorn.QueueOptions{})
		_, _ = client.GetQueue(ctx, "q")
		_, _ = client.ListQueues(ctx)
		_, _ = client.DeleteQueue(ctx, "q")
		_, _ = client.Health(ctx)
	})
}
