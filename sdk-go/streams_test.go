package posthorn_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestRegisterStream(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `{"success":true,"query_id":"Q","name":"s","config_hash":"1","fresh":true,"reset":false}`),
		answer(409, `{"error":"the query is registered with another config_hash"}`))
	client := newClient(t, server.URL, posthorn.Options{})
	got, err := client.RegisterStream(testContext(t), posthorn.StreamQuery{Name: "s", SourceQueue: "in", SinkQueue: "out", ConfigHash: "1"})
	if err != nil || got != (posthorn.StreamRegistration{ID: "Q", Fresh: true}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := client.RegisterStream(testContext(t), posthorn.StreamQuery{Name: "s", SourceQueue: "in", ConfigHash: "2", Reset: true}); !errors.Is(err, posthorn.ErrStreamChanged) {
		t.Errorf("%v", err)
	}
	seen := server.requests(2)
	for i, want := range []string{
		`{"name":"s","source_queue":"in","sink_queue":"out","config_hash":"1"}`, `{"name":"s","source_queue":"in","config_hash":"2","reset":true}`,
	} {
		if seen[i].Target != "/streams/v1/queries" || seen[i].Body != want {
			t.Errorf("%s %s, want %s", seen[i].Target, seen[i].Body, want)
		}
	}
	if _, err := client.RegisterStream(testContext(t), posthorn.StreamQuery{Name: "\xff"}); err == nil {
		t.Error("broken text was sent")
	}
}

func TestGetStreamState(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `{"success":true,"rows":[{"key":"a\u0000","value":{ "x":1e400},"updated_at":"2026-01-15T10:30:00.000001Z"}]}`),
		answer(200, `{"success":false,"error":"unknown query","rows":[]}`))
	client := newClient(t, server.URL, posthorn.Options{})
	got, err := client.GetStreamState(testContext(t), posthorn.StreamStateOptions{
		QueryID: "Q", PartitionID: "P", Keys: []string{}, KeyPrefix: "a", RipeAtOrBefore: time.UnixMilli(7),
	})
	if err != nil || len(got) != 1 || got[0].Key != "a\x00" || string(got[0].Value) != `{ "x":1e400}` || got[0].UpdatedAt.Nanosecond() != 1000 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = client.GetStreamState(testContext(t), posthorn.StreamStateOptions{QueryID: "Q", PartitionID: "P"})
	var refused *posthorn.StreamError
	if !errors.As(err, &refused) || refused.Message != "unknown query" || refused.Op != "getStreamState" {
		t.Errorf("%v", err)
	}
	seen := server.requests(2)
	for i, want := range []string{
		`{"query_id":"Q","partition_id":"P","keys":[],"key_prefix":"a","ripe_at_or_before":7}`, `{"query_id":"Q","partition_id":"P","keys":null}`,
	} {
		if seen[i].Target != "/streams/v1/state/get" || seen[i].Body != want {
			t.Errorf("%s %s, want %s", seen[i].Target, seen[i].Body, want)
		}
	}
	if _, err := client.GetStreamState(testContext(t), posthorn.StreamStateOptions{Keys: []string{"\xff"}}); err == nil {
		t.Error("broken text was sent")
	}
}

func TestCycleStream(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `{"success":true,"query_id":"Q","partition_id":"P","queueName":"in","state_ops_applied":2,
			"push_results":[{"index":0,"message_id":"m","transaction_id":"t","queueName":"out","status":"duplicate"}],"ack_result":{"success":true,"count":3,"lease_released":true,"dlq":false}}`),
		answer(200, `{"success":false,"error":"ack of transactionId \"j\": invalid or expired lease"}`),
		answer(200, `{"success":true,"push_results":[],"ack_result":null}`),
		answer(200, `{"success":true,"push_results":[]}`),
		answer(503, `{"error":"database unavailable"}`))
	client := newClient(t, server.URL, posthorn.Options{})
	full := posthorn.StreamCycle{
		QueryID: "Q", PartitionID: "P", ConsumerGroup: "g",
		State: []posthorn.StreamStateOp{{Key: "a", Value: json.RawMessage(`{ "x":1}`)}, {Key: "b", Delete: true}},
		Push:  []posthorn.TransactionItem{{Item: posthorn.Item{TransactionID: "t", Payload: 1}}},
		Ack:   &posthorn.AckItem{TransactionID: "j", LeaseID: "L"}, Count: 3, KeepLease: true,
	}
	got, err := client.CycleStream(testContext(t), full)
	want := posthorn.StreamCycleResult{
		Queue: "in", Applied: 2, Count: 3, LeaseReleased: true,
		Pushed: []posthorn.PushResult{{MessageID: "m", TransactionID: "t", Queue: "out", Status: posthorn.StatusDuplicate}},
	}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := client.CycleStream(testContext(t), full); !errors.Is(err, posthorn.ErrLeaseExpired) || errors.Is(err, posthorn.ErrUnresolvable) {
		t.Errorf("%v", err)
	}
	if got, err := client.CycleStream(testContext(t), posthorn.StreamCycle{QueryID: "Q", PartitionID: "P"}); err != nil || got.Count != 0 || len(got.Pushed) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := client.CycleStream(testContext(t), full); err == nil {
		t.Errorf("too few results: %+v", got)
	}
	nack := posthorn.StreamCycle{QueryID: "Q", PartitionID: "P", Ack: &posthorn.AckItem{TransactionID: "j", Status: posthorn.AckFailed}}
	if _, err := client.CycleStream(testContext(t), nack); !errors.Is(err, posthorn.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	seen := server.requests(5) // what would be charged twice was not repeated
	for i, want := range map[int]string{
		0: `{"query_id":"Q","partition_id":"P","consumer_group":"g","state_ops":[{"type":"upsert","key":"a","value":{ "x":1}},{"type":"delete","key":"b"}],` +
			`"push_items":[{"queue":null,"transactionId":"t","payload":1}],"ack":{"transactionId":"j","leaseId":"L","count":3},"release_lease":false}`,
		2: `{"query_id":"Q","partition_id":"P","state_ops":[],"push_items":[]}`,
		4: `{"query_id":"Q","partition_id":"P","state_ops":[],"push_items":[],"ack":{"transactionId":"j","status":"failed"}}`,
	} {
		if seen[i].Target != "/streams/v1/cycle" || seen[i].Body != want {
			t.Errorf("%s %s\nwant %s", seen[i].Target, seen[i].Body, want)
		}
	}
	for name, bad := range map[string]posthorn.StreamCycle{
		"key":   {State: []posthorn.StreamStateOp{{Key: "\xff"}}},
		"value": {State: []posthorn.StreamStateOp{{Key: "k", Value: json.RawMessage(`1,2`)}}},
		"item":  {Push: []posthorn.TransactionItem{{Item: posthorn.Item{Partition: "\xff"}}}},
		"ack":   {Ack: &posthorn.AckItem{TransactionID: "\xff"}},
		"group": {ConsumerGroup: "\xff"},
	} {
		if _, err := client.CycleStream(testContext(t), bad); err == nil {
			t.Errorf("%s was sent", name)
		}
	}
}
