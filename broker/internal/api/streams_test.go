package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

type registered struct {
	Success bool
	QueryID string `json:"query_id"`
	Fresh   bool
	Reset   bool
}

type cycled struct {
	Success     bool
	Error       string
	QueueName   string `json:"queueName"`
	Applied     int    `json:"state_ops_applied"`
	PushResults []struct {
		Status    string
		QueueName string `json:"queueName"`
	} `json:"push_results"`
	Ack *struct {
		Count         int
		LeaseReleased bool `json:"lease_released"`
		DLQ           bool
	} `json:"ack_result"`
}

// TestStreamRegistration registers, finds, refuses and resets a query.
func TestStreamRegistration(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	register := func(status int, hash string, reset bool) (r registered) {
		t.Helper()
		b.ask(status, "POST", "/streams/v1/queries", fmt.Sprintf(`{"name":"s","source_queue":"in","sink_queue":null,"config_hash":%q,"reset":%t}`, hash, reset), &r)
		return r
	}
	first := register(200, "1", false)
	if !first.Success || !first.Fresh || first.Reset {
		t.Errorf("%+v", first)
	}
	if again := register(200, "1", false); again.QueryID != first.QueryID || again.Fresh || again.Reset {
		t.Errorf("again: %+v", again)
	}
	if r := b.do("POST", "/streams/v1/queries", `{"name":"s","source_queue":"in","config_hash":"2"}`); r.status != 409 || r.errorText(t) != "the query is registered with another config_hash" {
		t.Errorf("changed: %d %s", r.status, r.body)
	}
	b.push("in", "p", "m1", "1")
	var job popped
	b.ask(200, "GET", "/api/v1/pop/queue/in", "", &job)
	put := fmt.Sprintf(`{"query_id":%%q,"partition_id":%q,"state_ops":[{"type":"upsert","key":"k","value":1}]}`, job.PartitionID)
	var done cycled
	b.ask(200, "POST", "/streams/v1/cycle", fmt.Sprintf(put, first.QueryID), &done)
	if !done.Success || done.Applied != 1 || done.Ack != nil || done.PushResults == nil {
		t.Errorf("%+v", done)
	}
	reset := register(200, "2", true)
	if reset.Fresh || !reset.Reset || reset.QueryID == first.QueryID {
		t.Errorf("reset: %+v", reset)
	}
	b.ask(200, "POST", "/streams/v1/cycle", fmt.Sprintf(put, first.QueryID), &done)
	if done.Success || done.Error != "unknown query" {
		t.Errorf("with the id of before the reset: %+v", done)
	}
	for id, want := range map[string]string{first.QueryID: `{"success":false,"error":"unknown query","rows":[]}`, reset.QueryID: `{"success":true,"rows":[]}`} {
		r := b.ask(200, "POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q}`, id, job.PartitionID), nil)
		if string(r.body) != want {
			t.Errorf("state: %s, want %s", r.body, want)
		}
	}
}

// TestStreamCycles commits cycles whole or not at all, and reads back the bytes of the state.
func TestStreamCycles(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	var q registered
	b.ask(200, "POST", "/streams/v1/queries", `{"name":"s","source_queue":"in","sink_queue":"sink","config_hash":"1"}`, &q)
	for i := range 3 {
		b.push("in", "p", fmt.Sprint("m", i), "1")
	}
	var job popped
	b.ask(200, "GET", "/api/v1/pop/queue/in?consumerGroup=g", "", &job)
	cycle := func(rest string) (done cycled) {
		t.Helper()
		b.ask(200, "POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q,"consumer_group":"g",%s}`, q.QueryID, job.PartitionID, rest), &done)
		return done
	}
	state := func(conditions string) string {
		t.Helper()
		r := b.ask(200, "POST", "/streams/v1/state/get", fmt.Sprintf(`{"query_id":%q,"partition_id":%q%s}`, q.QueryID, job.PartitionID, conditions), nil)
		var rows struct {
			Rows []struct {
				Key   string
				Value json.RawMessage
			}
		}
		if err := json.Unmarshal(r.body, &rows); err != nil {
			t.Fatalf("%v in %s", err, r.body)
		}
		var texts []string
		for _, row := range rows.Rows {
			texts = append(texts, row.Key+"="+string(row.Value))
		}
		return strings.Join(texts, " ")
	}
	const odd = `{ "a":1e400,"a":"\ud800\u0000","windowEnd":7}`
	done := cycle(`"state_ops":[{"type":"upsert","key":"w:2","value":` + odd + `},{"type":"upsert","key":"w:1","value":0},{"type":"upsert","key":"x\u0000","value":null},{"type":"upsert","key":"w:1","value":{"windowEnd":9}}],
		"push_items":[{"transactionId":"a","payload":1},{"queue":"other","data":2},{"transactionId":"a","payload":3}],
		"ack":{"transactionId":"m0","leaseId":"` + job.LeaseID + `","count":1},"release_lease":false`)
	if !done.Success || done.QueueName != "in" || done.Applied != 4 || done.Ack == nil || done.Ack.LeaseReleased || done.Ack.Count != 1 || len(done.PushResults) != 3 {
		t.Fatalf("%+v", done)
	}
	for i, want := range []string{"queued sink", "queued other", "duplicate sink"} {
		if got := done.PushResults[i].Status + " " + done.PushResults[i].QueueName; got != want {
			t.Errorf("push %d: %s, want %s", i, got, want)
		}
	}
	for conditions, want := range map[string]string{
		"":                                   `w:1={"windowEnd":9} w:2=` + odd + " x\x00=null",
		`,"keys":null,"key_prefix":null`:     `w:1={"windowEnd":9} w:2=` + odd + " x\x00=null",
		`,"key_prefix":"w:"`:                 `w:1={"windowEnd":9} w:2=` + odd,
		`,"key_prefix":"_:"`:                 ``,
		`,"keys":["x\u0000","w:2","nobody"]`: `w:2=` + odd + " x\x00=null",
		`,"keys":["x\u0000","w:2"],"key_prefix":"w"`: `w:2=` + odd,
		`,"keys":[]`:             ``,
		`,"ripe_at_or_before":8`: `w:2=` + odd,
		`,"ripe_at_or_before":9`: `w:1={"windowEnd":9} w:2=` + odd,
	} {
		if got := state(conditions); got != want {
			t.Errorf("state%s: %q, want %q", conditions, got, want)
		}
	}
	// A cycle whose ack is refused leaves nothing.
	before := state("")
	for _, ack := range []string{`{"transactionId":"nobody"}`, `{"transactionId":"m1","leaseId":"` + uuid.NewString() + `"}`} {
		if done := cycle(`"state_ops":[{"type":"delete","key":"w:1"}],"push_items":[{"queue":"never","payload":1}],"ack":` + ack); done.Success || done.Error == "" {
			t.Errorf("%s: %+v", ack, done)
		}
	}
	if after := state(""); after != before {
		t.Errorf("state after a rollback: %s", after)
	}
	b.ask(204, "GET", "/api/v1/pop/queue/never", "", nil)
	// By default the lease goes with the ack, and what is left is delivered again.
	done = cycle(`"state_ops":[{"type":"delete","key":"w:1"},{"type":"delete","key":"x\u0000"}],"ack":{"transactionId":"m1","leaseId":"` + job.LeaseID + `"}`)
	if !done.Success || !done.Ack.LeaseReleased || done.Applied != 2 {
		t.Errorf("%+v", done)
	}
	if got := state(""); got != "w:2="+odd {
		t.Errorf("state: %s", got)
	}
	var rest popped
	b.ask(200, "GET", "/api/v1/pop/queue/in?consumerGroup=g", "", &rest)
	if len(rest.Messages) != 1 || rest.Messages[0].TransactionID != "m2" || rest.Messages[0].DeliveryAttempt != 2 {
		t.Errorf("%+v", rest)
	}
	for body, want := range map[string]string{
		`{"query_id":"x","partition_id":"` + job.PartitionID + `"}`: "bad body: query_id must be a UUID",
		`{"partition_id":"` + job.PartitionID + `"}`:                "bad body: query_id is missing",
		`{"query_id":"` + q.QueryID + `"}`:                          "bad body: partition_id is missing",
		`{"query_id":"` + q.QueryID + `","partition_id":"` + job.PartitionID + `","state_ops":[{"type":"upsert","key":"k"}]}`:        "bad body: state_ops[0].value is missing",
		`{"query_id":"` + q.QueryID + `","partition_id":"` + job.PartitionID + `","state_ops":[{"type":"put","key":"k","value":1}]}`: "bad body: state_ops[0].type must be one of upsert, delete",
		`{"query_id":"` + q.QueryID + `","partition_id":"` + job.PartitionID + `","push_items":[{"queue":"q"}]}`:                     "bad body: push_items[0].payload is missing",
	} {
		if r := b.do("POST", "/streams/v1/cycle", body); r.status != 400 || r.errorText(t) != want {
			t.Errorf("%s: %d %s, want %s", body, r.status, r.body, want)
		}
	}
	var unknown cycled
	b.ask(200, "POST", "/streams/v1/cycle", fmt.Sprintf(`{"query_id":%q,"partition_id":%q}`, q.QueryID, uuid.NewString()), &unknown)
	if unknown.Success || unknown.Error != "unknown partition" {
		t.Errorf("%+v", unknown)
	}
	b.ask(200, "POST", "/streams/v1/queries", `{"name":"sinkless","source_queue":"in","config_hash":"1"}`, &q)
	if done := cycle(`"push_items":[{"payload":1}]`); done.Success || done.Error != "an item names no queue and the query has no sink_queue" {
		t.Errorf("%+v", done)
	}
}
