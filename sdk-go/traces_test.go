package posthorn_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestTraces(t *testing.T) {
	t.Parallel()
	const trace = `{"id":"i","event_type":"step","data":[1e400],"consumer_group":null,"worker_id":"w","created_at":"2026-01-15T10:31:00.123456Z",` +
		`"trace_names":["n"],"transaction_id":"t","partition_id":"u","queue_name":"q","partition_name":"p"}`
	s := newScript(t,
		answer(201, `{"success":true,"traceId":"i"}`),
		answer(404, `{"error":"Partition not found"}`),
		answer(200, `{"traces":[`+trace+`]}`),
		answer(200, `{"traces":[`+trace+`],"total":3,"pagination":{"limit":1,"offset":2}}`),
		answer(200, `{"trace_names":[{"trace_name":"n","trace_count":2,"message_count":1,"last_seen":"2026-01-15T10:31:00.123456Z"}],"total":5}`))
	c := newClient(t, s.URL, posthorn.Options{})
	id, err := c.Trace(testContext(t), posthorn.TraceEvent{PartitionID: "u", TransactionID: "t<", EventType: "step", Names: []string{"n"}, Data: json.RawMessage(`[ 1e400 ]`)})
	if err != nil || id != "i" {
		t.Error(id, err)
	}
	if _, err := c.Trace(testContext(t), posthorn.TraceEvent{PartitionID: "u", TransactionID: "t", Data: map[string]int{"a": 1}}); !errors.Is(err, posthorn.ErrNotFound) {
		t.Error(err)
	}
	traces, err := c.MessageTraces(testContext(t), "u", "t/1")
	if got := fmt.Sprintf("%+v", traces); err != nil || got != "[{ID:i EventType:step Data:[91 49 101 52 48 48 93] ConsumerGroup: WorkerID:w "+
		"CreatedAt:2026-01-15 10:31:00.123456 +0000 UTC Names:[n] TransactionID:t PartitionID:u Queue:q Partition:p}]" {
		t.Error(got, err)
	}
	page, err := c.TracesByName(testContext(t), "a/b", 1, 2)
	if err != nil || page.Total != 3 || len(page.Traces) != 1 {
		t.Error(page, err)
	}
	names, total, err := c.TraceNames(testContext(t), 7, 0)
	if err != nil || total != 5 || len(names) != 1 || names[0].Name != "n" || names[0].Traces != 2 || names[0].Messages != 1 || names[0].LastSeen.IsZero() {
		t.Error(names, total, err)
	}
	sent := s.requests(5)
	for i, want := range []string{
		`POST /api/v1/traces {"transactionId":"t<","partitionId":"u","consumerGroup":"","eventType":"step","traceNames":["n"],"data":[ 1e400 ]}`,
		`POST /api/v1/traces {"transactionId":"t","partitionId":"u","consumerGroup":"","eventType":"","traceNames":[],"data":{"a":1}}`,
		"GET /api/v1/traces/u/t%2F1 ", "GET /api/v1/traces/by-name/a%2Fb?limit=1&offset=2 ", "GET /api/v1/traces/names?limit=7 ",
	} {
		if got := sent[i].Method + " " + sent[i].Target + " " + sent[i].Body; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
