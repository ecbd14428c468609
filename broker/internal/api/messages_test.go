package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// listedMessage is what tests read of a stored message.
type listedMessage struct {
	ID, TransactionID, PartitionID, QueuePath, Queue, Partition, Status, CreatedAt string
	LeaseExpiresAt, ErrorMessage                                                   *string
	RetryCount                                                                     int
	Data, Payload                                                                  json.RawMessage
}

// inspect returns the only message of a list.
func (b *broker) inspect(query string) listedMessage {
	b.t.Helper()
	var list struct {
		Messages []listedMessage
		Total    int
	}
	b.ask(200, "GET", "/api/v1/messages?"+query, "", &list)
	if len(list.Messages) != 1 || list.Total != 1 {
		b.t.Fatalf("%s: %+v", query, list)
	}
	return list.Messages[0]
}

// bury pops the messages of a queue and files the first as a dead letter.
func (b *broker) bury(queue, reason string) popped {
	b.t.Helper()
	var batch popped
	b.ask(200, "GET", "/api/v1/pop/queue/"+url.PathEscape(queue), "", &batch)
	m := batch.Messages[0]
	body := fmt.Sprintf(`{"transactionId":%s,"partitionId":%q,"status":"dlq","error":%s}`, quote(m.TransactionID), m.PartitionID, quote(reason))
	r := b.ask(200, "POST", "/api/v1/ack", body, nil)
	if !strings.Contains(string(r.body), `"dlq":true`) {
		b.t.Fatalf("ack: %s", r.body)
	}
	return batch
}

// TestMessagesOverTheWire lists, inspects and deletes what has odd bytes in its names and payload.
func TestMessagesOverTheWire(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	const payload, txID = `{"a":1, "a":1e400,"<&>":"\ud800\u0000"}`, `order/1 "x"%2F..`
	b.push("q/1", "p?", txID, payload)
	m := b.inspect("queue=q%2F1")
	if m.TransactionID != txID || m.Queue != "q/1" || m.Partition != "p?" || m.QueuePath != "q/1/p?" || m.Status != "pending" {
		t.Errorf("listed %+v", m)
	}
	if string(m.Data) != payload || string(m.Payload) != payload {
		t.Errorf("payload %s, %s", m.Data, m.Payload)
	}
	at := "/api/v1/messages/" + m.PartitionID + "/" + url.PathEscape(txID)
	var d listedMessage
	b.ask(200, "GET", at, "", &d)
	if string(d.Payload) != payload || d.ErrorMessage != nil || d.ID != m.ID {
		t.Errorf("inspected %+v", d)
	}
	if r := b.do("DELETE", at, ""); r.status != 404 || string(r.body) !=
		fmt.Sprintf(`{"success":false,"partitionId":%q,"transactionId":%s,"error":"Message not found"}`, m.PartitionID, quote(txID)) {
		t.Errorf("delete of what is no dead letter: %d %s", r.status, r.body)
	}
	b.bury("q/1", "tired")
	b.ask(200, "GET", at, "", &d)
	if d.Status != "dead_letter" || d.ErrorMessage == nil || *d.ErrorMessage != "tired" {
		t.Errorf("inspected as a dead letter %+v", d)
	}
	r := b.ask(200, "GET", "/api/v1/dlq?queue=q%2F1", "", nil)
	if !strings.Contains(string(r.body), `"data":`+payload+`,`) {
		t.Errorf("dead letter: %s", r.body)
	}
	r = b.ask(200, "POST", at+"/retry", "", nil)
	var again struct {
		Success, DlqRowRemoved bool
		Queue, Partition       string
		ReplayedAs             map[string]any
	}
	if err := json.Unmarshal(r.body, &again); err != nil || !again.Success || !again.DlqRowRemoved || again.Queue != "q/1" || again.Partition != "p?" ||
		len(again.ReplayedAs) != 5 || again.ReplayedAs["status"] != "queued" || again.ReplayedAs["queueName"] != "q/1" {
		t.Errorf("replayed: %s", r.body)
	}
	if r := b.do("POST", at+"/retry", ""); r.status != 404 || !strings.HasPrefix(string(r.body), `{"success":false,`) {
		t.Errorf("replayed twice: %d %s", r.status, r.body)
	}
	if buried := b.bury("q/1", "").Messages[0]; string(buried.Data) != payload || buried.TransactionID != again.ReplayedAs["transaction_id"] {
		t.Errorf("delivered again: %+v", buried)
	}
	at = "/api/v1/messages/" + m.PartitionID + "/" + again.ReplayedAs["transaction_id"].(string)
	b.ask(200, "DELETE", at, "", nil)
	if r := b.do("DELETE", at, ""); r.status != 404 {
		t.Errorf("deleted twice: %d %s", r.status, r.body)
	}
}

// TestMessageRequests are refused with the parameter and the rule.
func TestMessageRequests(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "1", "1")
	b.bury("q", "")
	id := b.inspect("queue=q").PartitionID
	for request, want := range map[string]string{
		"GET /api/v1/messages?status=done":                               "bad query: status must be one of pending, processing, completed, dead_letter or empty",
		"GET /api/v1/messages?limit=0":                                   "bad query: limit must be at least 1",
		"GET /api/v1/messages?limit=many":                                "bad query: limit must be an integer",
		"GET /api/v1/messages?offset=-1":                                 "bad query: offset must be at least 0",
		"GET /api/v1/messages?offset=10001":                              "bad query: offset must be at most 10000",
		"GET /api/v1/messages?from=yesterday":                            "bad query: from must be an ISO 8601 time",
		"GET /api/v1/messages?to=2026-13-01":                             "bad query: to must be an ISO 8601 time",
		"GET /api/v1/messages?queue=%00":                                 "bad query: queue must not contain control characters",
		"GET /api/v1/messages/p/1":                                       "bad path: partitionId must be a UUID",
		"DELETE /api/v1/messages/p/1":                                    "bad path: partitionId must be a UUID",
		"GET /api/v1/messages/" + id + "/%07":                            "bad path: transactionId must not contain control characters",
		"GET /api/v1/dlq?from=x":                                         "bad query: from must be an ISO 8601 time",
		"GET /api/v1/dlq?limit=1.5":                                      "bad query: limit must be an integer",
		"DELETE /api/v1/dlq":                                             "bad query: queue is missing",
		"DELETE /api/v1/dlq?queue=":                                      "bad query: queue must not be empty",
		"DELETE /api/v1/dlq?queue=q&consumergroup":                       `bad query: "consumergroup" is not a parameter here`,
		"DELETE /api/v1/dlq?queue=q&to=never":                            "bad query: to must be an ISO 8601 time",
		"POST /api/v1/messages/p/1/retry":                                "bad path: partitionId must be a UUID",
		"POST /api/v1/dlq/replay":                                        "bad query: queue is missing",
		"DELETE /api/v1/dlq?queue=q&partition=&partition=p":              `bad query: "partition" is given more than once`,
		"POST /api/v1/dlq/replay?queue=q&consumerGroup=&consumerGroup=g": `bad query: "consumerGroup" is given more than once`,
		"POST /api/v1/dlq/replay?queue=q&group=g":                        `bad query: "group" is not a parameter here`,
	} {
		method, path, _ := strings.Cut(request, " ")
		r := b.do(method, path, "")
		if r.status != 400 || r.errorText(t) != want {
			t.Errorf("%s: %d %s", request, r.status, r.body)
		}
	}
	for request, want := range map[string]string{
		"GET /api/v1/messages/" + id + "/2":                                  "Message not found",
		"GET /api/v1/messages/00000000-0000-7000-8000-000000000000/1":        "Message not found",
		"DELETE /api/v1/messages/00000000-0000-7000-8000-000000000000/1":     "Message not found",
		"POST /api/v1/messages/00000000-0000-7000-8000-000000000000/1/retry": "Message not found",
		"POST /api/v1/dlq/replay?queue=nobody":                               "Queue not found",
		"DELETE /api/v1/dlq?queue=nobody":                                    "Queue not found",
	} {
		method, path, _ := strings.Cut(request, " ")
		r := b.do(method, path, "")
		if r.status != 404 || r.errorText(t) != want {
			t.Errorf("%s: %d %s", request, r.status, r.body)
		}
	}
	var page struct{ Total int }
	if b.ask(200, "GET", "/api/v1/dlq", "", &page); page.Total != 1 {
		t.Errorf("dead letters after all that was refused: %d", page.Total)
	}
	b.cut.Store(true)
	for _, request := range []string{
		"GET /api/v1/messages", "GET /api/v1/messages/" + id + "/1", "DELETE /api/v1/messages/" + id + "/1", "GET /api/v1/dlq", "DELETE /api/v1/dlq?queue=q",
		"POST /api/v1/messages/" + id + "/1/retry", "POST /api/v1/dlq/replay?queue=q",
	} {
		method, path, _ := strings.Cut(request, " ")
		if r := b.do(method, path, ""); r.status != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("%s without a database: %d %s", request, r.status, r.body)
		}
	}
}
