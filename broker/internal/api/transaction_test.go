package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// transacted is what tests read of the answer to a transaction.
type transacted struct {
	TransactionID string `json:"transactionId"`
	Success       bool
	Error         string
	Results       []struct {
		Index         int
		Type          string
		Success       bool
		TransactionID string `json:"transactionId"`
		MessageID     string `json:"messageId"`
		QueueName     string `json:"queueName"`
		Duplicate     bool
		DLQ           bool `json:"dlq"`
	}
}

// TestTransaction commits pushes of both forms and an ack, and is refused when it is sent again.
func TestTransaction(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("in", "p", "job", `{"n":1}`)
	var job popped
	b.ask(200, "GET", "/api/v1/pop/queue/in", "", &job)
	trace := uuid.NewString()
	body := fmt.Sprintf(`{"operations":[
		{"type":"push","queue":"out","transactionId":"a","payload":{"x":1},"traceId":%q,"items":null},
		{"type":"ack","transactionId":"job","partitionId":%q,"leaseId":%q,"status":null,"consumerGroup":null},
		{"type":"push","items":[{"queue":"out","transactionId":"b","data":[ 1 ]},{"queue":"out","transactionId":"a","payload":2},{"queue":"other\u0026","partition":"p","payload":null,"data":3,"traceId":null}]}],
		"requiredLeases":[%q,null]}`, trace, job.PartitionID, job.LeaseID, job.LeaseID)
	var done transacted
	r := b.ask(200, "POST", "/api/v1/transaction", body, &done)
	if !done.Success || len(done.Results) != 5 {
		t.Fatalf("%s", r.body)
	}
	for i, want := range []string{"push a out false", "ack job  false", "push b out false", "push a out true", "push - other& false"} {
		got := done.Results[i]
		txID := got.TransactionID
		if txID == got.MessageID {
			txID = "-"
		}
		if text := fmt.Sprint(got.Type, " ", txID, " ", got.QueueName, " ", got.Duplicate); text != want || got.Index != i || !got.Success {
			t.Errorf("result %d is %q, want %q, in %s", i, text, want, r.body)
		}
	}
	if done.Results[3].MessageID != done.Results[0].MessageID {
		t.Errorf("a follower has an id of its own: %s", r.body)
	}
	out := b.ask(200, "GET", "/api/v1/pop/queue/out?batch=10", "", nil)
	for _, want := range []string{`"traceId":"` + trace + `","data":{"x":1},`, `"traceId":null,"data":[ 1 ],`} {
		if !strings.Contains(string(out.body), want) {
			t.Errorf("no %s in %s", want, out.body)
		}
	}
	if r := b.ask(200, "GET", "/api/v1/pop/queue/other%26", "", nil); !strings.Contains(string(r.body), `"data":null`) {
		t.Errorf("payload null gave way to data: %s", r.body)
	}
	b.ask(204, "GET", "/api/v1/pop/queue/in", "", nil)

	var again transacted
	r = b.ask(200, "POST", "/api/v1/transaction", body, &again)
	if again.Success || !strings.HasPrefix(again.Error, `QDUP transactionId "a" `) || len(again.Results) != 0 || again.TransactionID == done.TransactionID {
		t.Errorf("again: %s", r.body)
	}
	var unknown transacted
	r = b.ask(200, "POST", "/api/v1/transaction", fmt.Sprintf(`{"operations":[{"type":"push","queue":"out","payload":1},{"type":"ack","transactionId":"nobody","partitionId":%q}]}`, job.PartitionID), &unknown)
	if want := `QTXN ack of transactionId "nobody": unresolvable transactionId`; unknown.Error != want || len(unknown.Results) != 0 {
		t.Errorf("%s, want %s", r.body, want)
	}
	b.ask(200, "POST", "/api/v1/transaction", `{"operations":[{"type":"ack","transactionId":"nobody","partitionId":"no-uuid"}]}`, &unknown)
	if want := `QTXN ack of transactionId "nobody": consumer not found`; unknown.Error != want {
		t.Errorf("%s, want %s", unknown.Error, want)
	}
}

// TestTransactionPayloads pops the bytes that were pushed.
func TestTransactionPayloads(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	payloads := []string{
		"null", "true", "-0.0", "1e400", strings.Repeat("1234567890", 4), `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`,
		`"<&>\u2028\/"`, `"é\u00e9"`, "\"\u2028\"", "{}", "[ ]", `{"a":1,"a":2,"":{ }}`, "{ \"b\" :\t[ 1 ,\n2 ] }", `{"\ud800":1,"\ud800":2}`,
	}
	var items []string
	for i, p := range payloads {
		key := []string{"payload", "data"}[i%2]
		items = append(items, fmt.Sprintf(`{"queue":"bytes","transactionId":"t%d",%q: %s }`, i, key, p))
	}
	b.ask(200, "POST", "/api/v1/transaction", `{"operations":[{"type":"push","items":[`+strings.Join(items, ",")+`]}]}`, nil)
	rest := string(b.ask(200, "GET", "/api/v1/pop/queue/bytes?batch=100", "", nil).body)
	for i, p := range payloads {
		_, after, found := strings.Cut(rest, fmt.Sprintf(`"transactionId":"t%d",`, i))
		if want := `"traceId":null,"data":` + p + `,"producerSub":null`; !found || !strings.HasPrefix(after, want) {
			t.Fatalf("%s came back as %.200s", p, after)
		}
		rest = after
	}
}

// TestTransactionsRefused says what is wrong, in the envelope, and does nothing.
func TestTransactionsRefused(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	const good = `{"type":"push","queue":"refused","payload":1}`
	for body, want := range map[string]string{
		``:                      "body is missing",
		`{`:                     "not valid JSON: unexpected end in place of a key at byte 1",
		`[]`:                    "body must be an object",
		`{}`:                    "operations is missing",
		`{"operations":null}`:   "operations must be an array",
		`{"operations":{}}`:     "operations must be an array",
		`{"operations":[null]}`: "operations[0] must be an object",
		`{"operations":[{}]}`:   "operations[0].type is missing",
		`{"operations":[` + good + `,{"type":"pop"}]}`:                                        "operations[1].type must be one of push, ack",
		`{"operations":[` + good + `,{"type":"push","payload":1}]}`:                           "operations[1].queue is missing",
		`{"operations":[` + good + `,{"type":"push","queue":null,"payload":1}]}`:              "operations[1].queue is missing",
		`{"operations":[` + good + `,{"type":"push","queue":"","payload":1}]}`:                "operations[1].queue must not be empty",
		`{"operations":[` + good + `,{"type":"push","queue":"q"}]}`:                           "operations[1].payload is missing",
		`{"operations":[` + good + `,{"type":"push","items":{}}]}`:                            "operations[1].items must be an array or null",
		`{"operations":[` + good + `,{"type":"push","items":[{"queue":"q"}]}]}`:               "operations[1].items[0].payload is missing",
		`{"operations":[` + good + `,{"type":"push","items":[{"payload":1}]}]}`:               "operations[1].items[0].queue is missing",
		`{"operations":[` + good + `,{"type":"push","queue":"q","payload":1,"traceId":"x"}]}`: "operations[1].traceId must be a UUID",
		`{"operations":[` + good + `,{"type":"push","queue":"q\u0001","payload":1}]}`:         "operations[1].queue must not contain control characters",
		`{"operations":[` + good + `,{"type":"push","queue":"\ud800","payload":1}]}`:          "operations[1].queue must not contain a lone surrogate",
		`{"operations":[` + good + `,{"type":"ack","partitionId":"x"}]}`:                      "operations[1].transactionId is missing",
		`{"operations":[` + good + `,{"type":"ack","transactionId":"x"}]}`:                    "operations[1].partitionId is missing",
		`{"operations":[` + good + `],"requiredLeases":"x"}`:                                  "requiredLeases must be an array or null",
		`{"operations":[` + strings.Repeat(good+",", 2) + manyItems(maxTransaction-1) + `]}`:  "operations must have at most 100000 items and acks",
	} {
		var refused transacted
		r := b.ask(400, "POST", "/api/v1/transaction", body, &refused)
		if refused.Success || refused.Error != "bad body: "+want || refused.Results == nil || len(refused.Results) != 0 {
			t.Errorf("%.120s: %s, want %s", body, r.body, want)
		}
		if _, err := uuid.Parse(refused.TransactionID); err != nil {
			t.Errorf("%.120s: %s", body, r.body)
		}
	}
	b.ask(204, "GET", "/api/v1/pop/queue/refused", "", nil)
	var empty transacted
	if b.ask(200, "POST", "/api/v1/transaction", `{"operations":[]}`, &empty); !empty.Success || empty.Results == nil {
		t.Errorf("%+v", empty)
	}
}

// manyItems is a push operation of n items.
func manyItems(n int) string {
	return `{"type":"push","items":[` + strings.TrimSuffix(strings.Repeat(`{"queue":"refused","payload":1},`, n), ",") + `]}`
}

// TestTransactionUnavailable answers 503 without PostgreSQL, and keeps nothing for later.
func TestTransactionUnavailable(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "1", "1")
	b.cut.Store(true)
	r := b.do("POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","partition":"p","transactionId":"2","payload":2}]}`)
	if r.status != 503 || r.header.Get("Retry-After") == "" || r.errorText(t) != unavailableText {
		t.Errorf("%d %v %s", r.status, r.header, r.body)
	}
	b.cut.Store(false)
	eventually(t, "the database to be back", func() bool { return b.do("GET", "/health", "").status == 200 })
	var got popped
	if err := json.Unmarshal(b.ask(200, "GET", "/api/v1/pop/queue/q?batch=10", "", nil).body, &got); err != nil || len(got.Messages) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
