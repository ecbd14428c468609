package posthorn_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"testing"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestTransactionSendsWhatTheContractNames(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `{"transactionId":"x","success":true,"later":1,"results":[
		{"index":0,"type":"push","success":true,"transactionId":"a","messageId":"m0","queueName":"q"},
		{"index":1,"type":"push","success":true,"transactionId":"a","messageId":"m0","queueName":"q","duplicate":true},
		{"index":2,"type":"ack","success":true,"transactionId":"j","error":null,"dlq":true}]}`))
	client := newClient(t, server.URL, posthorn.Options{})
	got, err := client.Transaction(testContext(t), posthorn.Transaction{
		Push: []posthorn.TransactionItem{
			{Item: posthorn.Item{Queue: "q", TransactionID: "a", Payload: json.RawMessage(`{"a": 1e400}`)}, TraceID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83"},
			{Item: posthorn.Item{Queue: "q", Partition: "p", TransactionID: "a"}},
		},
		Ack: []posthorn.TransactionAck{
			{AckItem: posthorn.AckItem{TransactionID: "j", PartitionID: "P", Status: posthorn.AckDeadLetter, LeaseID: "L", Error: "broken"}, ConsumerGroup: "g"},
		},
		RequiredLeases: []string{"L"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != "x" || got.Attempt != 1 || len(got.Pushed) != 2 || len(got.Acked) != 1 ||
		got.Pushed[1] != (posthorn.TransactionPushed{MessageID: "m0", TransactionID: "a", Queue: "q", Duplicate: true}) ||
		got.Acked[0] != (posthorn.TransactionAcked{TransactionID: "j", DeadLettered: true}) {
		t.Errorf("%+v", got)
	}
	seen := server.requests(1)[0]
	want := `{"operations":[{"type":"push","items":[{"queue":"q","transactionId":"a","payload":{"a": 1e400},"traceId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83"}]},` +
		`{"type":"push","items":[{"queue":"q","partition":"p","transactionId":"a","payload":null}]},` +
		`{"type":"ack","transactionId":"j","partitionId":"P","status":"dlq","leaseId":"L","error":"broken","consumerGroup":"g"}],"requiredLeases":["L"]}`
	if seen.Method != "POST" || seen.Target != "/api/v1/transaction" || seen.Body != want {
		t.Errorf("sent %s %s\n%s\nwant\n%s", seen.Method, seen.Target, seen.Body, want)
	}
}

func TestTransactionRolledBack(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]bool{
		"QDUP transactionId a": {true, false}, "QTXN ack of b": {false, true}, "other": {false, false},
	} {
		server := newScript(t, answer(200, `{"transactionId":"x","success":false,"error":"`+text+`","results":[]}`))
		_, err := newClient(t, server.URL, posthorn.Options{}).Transaction(testContext(t), posthorn.Transaction{
			Push: []posthorn.TransactionItem{{Item: posthorn.Item{Queue: "q"}}},
		})
		var rolled *posthorn.TransactionError
		if !errors.As(err, &rolled) || rolled.ID != "x" || rolled.Message != text || rolled.Attempt != 1 {
			t.Errorf("%s: %v", text, err)
		}
		if got := [2]bool{errors.Is(err, posthorn.ErrDuplicate), errors.Is(err, posthorn.ErrRejected)}; got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}

// TestTransactionRepeats sends a transaction again with the ids that it minted, and says which attempt
// found itself. Without pushes, what would be charged twice is not repeated.
func TestTransactionRepeats(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(503, `{"error":"database unavailable"}`), answer(200, `{"transactionId":"x","success":false,"error":"QDUP","results":[]}`))
	client := newClient(t, server.URL, posthorn.Options{})
	nack := posthorn.TransactionAck{AckItem: posthorn.AckItem{TransactionID: "j", PartitionID: "P", Status: posthorn.AckFailed}}
	_, err := client.Transaction(testContext(t), posthorn.Transaction{
		Push: []posthorn.TransactionItem{{Item: posthorn.Item{Queue: "q"}}}, Ack: []posthorn.TransactionAck{nack},
	})
	var rolled *posthorn.TransactionError
	if !errors.As(err, &rolled) || rolled.Attempt != 2 {
		t.Errorf("%v", err)
	}
	seen := server.requests(2)
	if minted := regexp.MustCompile(`"transactionId":"[0-9a-f-]{36}"`).FindString(seen[0].Body); minted == "" || seen[1].Body != seen[0].Body {
		t.Errorf("%s\n%s", seen[0].Body, seen[1].Body)
	}
	once := newScript(t, answer(503, `{"error":"database unavailable"}`))
	_, err = newClient(t, once.URL, posthorn.Options{}).Transaction(testContext(t), posthorn.Transaction{Ack: []posthorn.TransactionAck{nack}})
	if !errors.Is(err, posthorn.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	once.requests(1)
}

func TestTransactionRefusesWhatItCannotSendOrRead(t *testing.T) {
	t.Parallel()
	item := posthorn.TransactionItem{Item: posthorn.Item{Queue: "q"}}
	for name, body := range map[string]string{
		"too few":    `{"transactionId":"x","success":true,"results":[]}`,
		"wrong type": `{"transactionId":"x","success":true,"results":[{"index":0,"type":"ack"}]}`,
		"misplaced":  `{"transactionId":"x","success":true,"results":[{"index":1,"type":"push"}]}`,
		"no JSON":    `<html>`,
	} {
		server := newScript(t, answer(200, body))
		if got, err := newClient(t, server.URL, posthorn.Options{}).Transaction(testContext(t), posthorn.Transaction{Push: []posthorn.TransactionItem{item}}); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	client := newClient(t, newScript(t).URL, posthorn.Options{})
	for name, bad := range map[string]posthorn.Transaction{
		"payload": {Push: []posthorn.TransactionItem{{Item: posthorn.Item{Queue: "q", Payload: json.RawMessage(`1,2`)}}}},
		"queue":   {Push: []posthorn.TransactionItem{{Item: posthorn.Item{Queue: "\xff"}}}},
		"trace":   {Push: []posthorn.TransactionItem{{Item: posthorn.Item{Queue: "q"}, TraceID: "\xff"}}},
		"ack":     {Ack: []posthorn.TransactionAck{{AckItem: posthorn.AckItem{TransactionID: "\xff"}}}},
		"group":   {Ack: []posthorn.TransactionAck{{ConsumerGroup: "\xff"}}},
	} {
		if _, err := client.Transaction(testContext(t), bad); err == nil {
			t.Errorf("%s was sent", name)
		}
	}
}
