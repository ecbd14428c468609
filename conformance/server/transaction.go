package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// transacted is the answer to a transaction.
type transacted struct {
	TransactionID string            `json:"transactionId"`
	Success       bool              `json:"success"`
	Error         string            `json:"error"`
	Results       []transactedEntry `json:"results"`
}

// transactedEntry is one result of a transaction.
type transactedEntry struct {
	Index         int     `json:"index"`
	Type          string  `json:"type"`
	Success       bool    `json:"success"`
	TransactionID string  `json:"transactionId"`
	MessageID     string  `json:"messageId"`
	QueueName     string  `json:"queueName"`
	Duplicate     bool    `json:"duplicate"`
	Error         *string `json:"error"`
	DLQ           bool    `json:"dlq"`
}

// transact sends operations, each the text of a JSON object. requiredLeases may be nil.
func transact(ctx context.Context, t *suite.Target, requiredLeases []string, operations ...string) transacted {
	outcome := t.Call(ctx, "transaction", suite.Args{Body: transactionBody(requiredLeases, operations...)})
	if outcome.Status != 200 {
		suite.Failf(1, "the transaction was answered %d %s", outcome.Status, outcome.Body)
	}
	var answer transacted
	if err := json.Unmarshal(outcome.Body, &answer); err != nil {
		suite.Failf(1, "the transaction was not answered with an object: %v", err)
	}
	return answer
}

func transactionBody(requiredLeases []string, operations ...string) json.RawMessage {
	leases := ""
	if requiredLeases != nil {
		text, err := json.Marshal(requiredLeases)
		Expect(err).NotTo(HaveOccurred())
		leases = `,"requiredLeases":` + string(text)
	}
	return json.RawMessage(`{"operations":[` + strings.Join(operations, ",") + `]` + leases + `}`)
}

// committed is transact of a transaction that must be committed, with one result per item and ack.
func committed(ctx context.Context, t *suite.Target, results int, operations ...string) []transactedEntry {
	answer := transact(ctx, t, nil, operations...)
	if !answer.Success {
		suite.Failf(1, "the transaction was rolled back: %s", answer.Error)
	}
	if len(answer.Results) != results {
		suite.Failf(1, "the transaction of %d operations was answered with %d results", results, len(answer.Results))
	}
	return answer.Results
}

// rolledBack asserts that a transaction was rolled back for a reason that starts so.
func rolledBack(answer transacted, reason string) {
	Expect(answer.Success).To(BeFalse(), "success")
	Expect(answer.Error).To(HavePrefix(reason))
	Expect(answer.Results).To(BeEmpty(), "results")
}

// pushes is a push of items.
func pushes(items ...item) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.json()
	}
	return `{"type":"push","items":[` + strings.Join(texts, ",") + `]}`
}

// flat is a push that is an item itself.
func flat(i item) string { return `{"type":"push",` + i.json()[1:] }

// acks is an ack of a popped message.
func acks(a acknowledgment) string {
	text, err := json.Marshal(a)
	Expect(err).NotTo(HaveOccurred())
	return `{"type":"ack",` + string(text)[1:]
}

// unlocked completes a message and names no lease.
func unlocked(m message) acknowledgment {
	a := of(m, "completed")
	a.LeaseID = ""
	return a
}

// badTransactions asserts that each operation, after a good push, is refused and that nothing of it was done.
func badTransactions(ctx context.Context, t *suite.Target, operations ...string) {
	queue := t.Queue()
	good := flat(item{queue: queue, payload: "1"})
	for _, operation := range operations {
		rejected(post(ctx, t, "transaction", string(transactionBody(nil, good, operation))))
	}
	Expect(drain(ctx, t, queue)).To(BeEmpty(), "messages of refused transactions")
}

var _ = suite.Requirement("transaction.request.operations", func(ctx context.Context, t *suite.Target) {
	for _, body := range []string{`{}`, `{"operations":null}`, `{"operations":{}}`, `{"operations":"x"}`, `{"operations":[7]}`, `{"operations":[{}]}`, `[]`, `null`, `{`} {
		rejected(post(ctx, t, "transaction", body))
	}
	badTransactions(ctx, t, `{"type":"pop"}`, `{"type":"PUSH","queue":"q","payload":1}`, `{"type":null}`, `[]`, `{"queue":"q","payload":1}`)
}, suite.WireOnly)

var _ = suite.Requirement("transaction.request.push", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	badTransactions(ctx, t,
		`{"type":"push","payload":1}`, `{"type":"push","queue":"","payload":1}`, `{"type":"push","queue":"`+queue+`"}`,
		`{"type":"push","queue":"`+queue+`","payload":1,"traceId":"trace"}`, `{"type":"push","items":[{"payload":1}]}`,
		`{"type":"push","items":[{"queue":"`+queue+`"}]}`, `{"type":"push","items":[7]}`, `{"type":"push","items":"x"}`,
		`{"type":"push","items":[{"queue":"`+queue+`","payload":1},{"queue":"`+queue+`","data":1,"traceId":"trace"}]}`)
}, suite.WireOnly)

var _ = suite.Requirement("transaction.request.ack", func(ctx context.Context, t *suite.Target) {
	badTransactions(ctx, t,
		`{"type":"ack"}`, `{"type":"ack","transactionId":"t"}`, `{"type":"ack","transactionId":null,"partitionId":"p"}`,
		`{"type":"ack","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84"}`, `{"type":"ack","transactionId":"t","partitionId":7}`)
}, suite.WireOnly)

var _ = suite.Requirement("transaction.request.envelope", func(ctx context.Context, t *suite.Target) {
	for _, body := range []string{`{}`, `{"operations":[{"type":"pop"}]}`, `no JSON`} {
		answer := post(ctx, t, "transaction", body)
		rejected(answer)
		var envelope map[string]any
		decode(answer.Body, &envelope)
		Expect(envelope).To(HaveKeyWithValue("success", false))
		Expect(envelope).To(HaveKeyWithValue("results", BeEmpty()))
		Expect(envelope["error"]).To(HavePrefix("bad body: "))
		Expect(envelope["transactionId"]).To(MatchRegexp(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`))
	}
}, suite.WireOnly)

var _ = suite.Requirement("transaction.request.empty", func(ctx context.Context, t *suite.Target) {
	committed(ctx, t, 0)
	committed(ctx, t, 0, `{"type":"push","items":[]}`)
})

var _ = suite.Requirement("transaction.response.minted", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	first := transact(ctx, t, nil, flat(item{queue: queue, payload: "1"}))
	second := transact(ctx, t, nil, flat(item{queue: queue, payload: "2"}))
	Expect(first.Success && second.Success).To(BeTrue())
	Expect(first.TransactionID).To(MatchRegexp(`^[0-9a-f-]{36}$`))
	Expect(second.TransactionID).NotTo(Equal(first.TransactionID))
})

var _ = suite.Requirement("transaction.response.flattened", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	queue := t.Queue()
	results := committed(ctx, t, 4,
		pushes(item{queue: queue, transactionID: "a"}, item{queue: queue, transactionID: "b"}),
		acks(of(messages[0], "completed")),
		flat(item{queue: queue, transactionID: "c"}))
	for i, want := range []string{"push a", "push b", "ack " + messages[0].TransactionID, "push c"} {
		Expect(results[i].Index).To(Equal(i), "index of the result at %d", i)
		Expect(results[i].Type + " " + results[i].TransactionID).To(Equal(want))
	}
})

var _ = suite.Requirement("transaction.response.push", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := post(ctx, t, "transaction", string(transactionBody(nil, flat(item{queue: queue, transactionID: "a"}), pushes(item{queue: queue}))))
	Expect(answer.Status).To(Equal(200))
	var body struct{ Results []map[string]any }
	decode(answer.Body, &body)
	Expect(body.Results).To(HaveLen(2))
	stored := drain(ctx, t, queue)
	Expect(stored).To(HaveLen(2))
	for i, result := range body.Results {
		Expect(result).To(SatisfyAll(
			HaveKeyWithValue("type", "push"), HaveKeyWithValue("success", true), HaveKeyWithValue("queueName", queue),
			HaveKeyWithValue("messageId", stored[i].ID), HaveKeyWithValue("transactionId", stored[i].TransactionID), Not(HaveKey("duplicate")),
		))
	}
	Expect(stored[0].TransactionID).To(Equal("a"))
	Expect(stored[1].TransactionID).To(Equal(stored[1].ID))
}, suite.WireOnly)

var _ = suite.Requirement("transaction.response.ack", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	answer := post(ctx, t, "transaction", string(transactionBody(nil, acks(of(messages[0], "completed")))))
	Expect(answer.Status).To(Equal(200))
	var body struct{ Results []map[string]any }
	decode(answer.Body, &body)
	Expect(body.Results).To(HaveLen(1))
	Expect(body.Results[0]).To(SatisfyAll(
		HaveKeyWithValue("type", "ack"), HaveKeyWithValue("success", true), HaveKeyWithValue("transactionId", messages[0].TransactionID),
		HaveKeyWithValue("error", BeNil()), HaveKeyWithValue("dlq", false),
	))
}, suite.WireOnly)

var _ = suite.Requirement("transaction.push.forms", func(ctx context.Context, t *suite.Target) {
	first, second := t.Queue(), t.Queue()
	committed(ctx, t, 5,
		flat(item{queue: first, partition: "p", payload: "1"}),
		pushes(item{queue: first, partition: "p", payload: "2"}, item{queue: second, payload: "3"}, item{queue: first, partition: "q", payload: "4"}),
		flat(item{queue: first, partition: "p", payload: "5"}))
	Expect(popPartition(ctx, t, first, "p").data()).To(Equal([]string{"1", "2", "5"}))
	Expect(popPartition(ctx, t, first, "q").data()).To(Equal([]string{"4"}))
	Expect(popPartition(ctx, t, second, "Default").data()).To(Equal([]string{"3"}))
})

var _ = suite.Requirement("transaction.push.data-alias", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	body := fmt.Sprintf(`{"operations":[{"type":"push","queue":%[1]s,"data":1},{"type":"push","items":[{"queue":%[1]s,"data":null},{"queue":%[1]s,"payload":2,"data":3}]}]}`, quote(queue))
	answer := post(ctx, t, "transaction", body)
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1", "null", "2"}))
}, suite.WireOnly)

var _ = suite.Requirement("transaction.push.verbatim", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	payloads := []string{
		`1e400`, strings.Repeat("1234567890", 4), `"\u0000"`, `"\ud800"`, `{"b":1,"a":2,"b":3}`, "[ 1 ,\t2 ]", `"<&>\/\u2028"`, `-0.0`, `null`, `""`,
	}
	items := make([]item, len(payloads))
	for i, payload := range payloads {
		items[i] = item{queue: queue, payload: payload}
	}
	committed(ctx, t, 2*len(payloads), pushes(items...), pushes(items...))
	Expect(dataOf(drain(ctx, t, queue))).To(Equal(append(payloads, payloads...)))
})

var _ = suite.Requirement("transaction.push.trace-id", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	const trace = "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83"
	traced := func(i item) string { return strings.TrimSuffix(i.json(), "}") + `,"traceId":"` + trace + `"}` }
	committed(ctx, t, 3,
		`{"type":"push",`+traced(item{queue: queue})[1:], `{"type":"push","items":[`+traced(item{queue: queue})+`]}`, flat(item{queue: queue}))
	stored := drain(ctx, t, queue)
	Expect(stored).To(HaveLen(3))
	for _, m := range stored[:2] {
		Expect(m.TraceID).To(HaveValue(Equal(trace)))
	}
	Expect(stored[2].TraceID).To(BeNil())
})

var _ = suite.Requirement("transaction.push.wakes", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	wait := later(func() popped { return pop(ctx, t, queue, waiting(2*t.Patience())...) })
	awaitQueue(ctx, t, queue)
	committed(ctx, t, 1, flat(item{queue: queue, payload: "1"}))
	start := time.Now()
	Expect(wait().data()).To(Equal([]string{"1"}))
	Expect(time.Since(start)).To(BeNumerically("<", t.Patience()/2), "time from the transaction to the answer of the parked pop")
})

// undone asserts that a transaction of these operations and a push of its own is rolled back for the reason, and that
// nothing of it was done: neither its push nor its ack of the popped message.
func undone(ctx context.Context, t *suite.Target, reason string, operations ...string) {
	in, messages := popNumbers(ctx, t, 1)
	out := t.Queue()
	all := append([]string{flat(item{queue: out, transactionID: "x"}), acks(of(messages[0], "completed"))}, operations...)
	rolledBack(transact(ctx, t, nil, all...), reason)
	Expect(drain(ctx, t, out)).To(BeEmpty(), "messages of the transaction that was rolled back")
	result := ack(ctx, t, of(messages[0], "completed"))
	Expect(result.Success && !result.Noop).To(BeTrue(), "the lease still holds the message: %s", result.reason())
	Expect(drain(ctx, t, in)).To(BeEmpty())
}

var _ = suite.Requirement("transaction.dedup.window", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "p", transactionID: "old"})
	undone(ctx, t, "QDUP", pushes(item{queue: queue, partition: "p", transactionID: "new"}, item{queue: queue, partition: "p", transactionID: "old"}))
	Expect(drain(ctx, t, queue)).To(HaveLen(1))
})

var _ = suite.Requirement("transaction.dedup.window", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	queue := t.Queue()
	operations := []string{flat(item{queue: queue, transactionID: "a"}), acks(of(messages[0], "completed"))}
	committed(ctx, t, 2, operations...)
	rolledBack(transact(ctx, t, nil, operations...), "QDUP")
	Expect(drain(ctx, t, queue)).To(HaveLen(1))
})

var _ = suite.Requirement("transaction.dedup.in-bundle", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	results := committed(ctx, t, 4,
		pushes(item{queue: queue, transactionID: "a", payload: "1"}, item{queue: queue, transactionID: "a", payload: "2"}),
		flat(item{queue: queue, partition: "p", transactionID: "a", payload: "3"}), flat(item{queue: queue, transactionID: "a", payload: "4"}))
	stored := drain(ctx, t, queue)
	Expect(dataOf(stored)).To(ConsistOf("1", "3"))
	for i, duplicate := range []bool{false, true, false, true} {
		Expect(results[i].Success).To(BeTrue(), "success of item %d", i)
		Expect(results[i].Duplicate).To(Equal(duplicate), "duplicate of item %d", i)
		Expect(results[i].TransactionID).To(Equal("a"))
		if duplicate {
			Expect(results[i].MessageID).To(Equal(results[0].MessageID))
		}
	}
	Expect(results[2].MessageID).NotTo(Equal(results[0].MessageID))
})

var _ = suite.Requirement("transaction.dedup.remembered", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	first := committed(ctx, t, 1, flat(item{queue: queue, transactionID: "a"}))[0]
	again := pushOne(ctx, t, item{queue: queue, transactionID: "a"})
	Expect(again.Status).To(Equal("duplicate"))
	Expect(again.MessageID).To(Equal(first.MessageID))
	rolledBack(transact(ctx, t, nil, flat(item{queue: queue, transactionID: "b"}), flat(item{queue: queue, transactionID: "a"})), "QDUP")
	Expect(pushOne(ctx, t, item{queue: queue, transactionID: "b"}).Status).To(Equal("queued"))
})

var _ = suite.Requirement("transaction.ack.commits", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 3)
	committed(ctx, t, 1, acks(of(messages[1], "completed")))
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "while the lease is kept")
	committed(ctx, t, 1, acks(of(messages[2], "completed")))
	pushOne(ctx, t, item{queue: queue, payload: "3"})
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"3"}), "with the lease released, the next message only")
})

var _ = suite.Requirement("transaction.ack.commits", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	messages := pop(ctx, t, queue, "consumerGroup=g").Messages
	Expect(messages).To(HaveLen(2))
	committed(ctx, t, 1, acks(of(messages[1], "completed")))
	pushOne(ctx, t, item{queue: queue, payload: "2"})
	Expect(dataOf(drain(ctx, t, queue, "consumerGroup=g"))).To(Equal([]string{"2"}))
	Expect(drain(ctx, t, queue)).To(HaveLen(3), "messages of the group that acknowledged nothing")
})

var _ = suite.Requirement("transaction.ack.partitions", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var all []string
	for _, partition := range []string{"a", "b"} {
		pushNumbersTo(ctx, t, queue, partition, 2)
		for _, group := range []string{"g", "h"} {
			messages := popPartition(ctx, t, queue, partition, "consumerGroup="+group).Messages
			Expect(messages).To(HaveLen(2))
			all = append(all, acks(of(messages[1], "completed")))
		}
	}
	committed(ctx, t, 4, all...)
	for _, partition := range []string{"a", "b"} {
		pushOne(ctx, t, item{queue: queue, partition: partition, payload: `"` + partition + `"`})
	}
	for _, group := range []string{"g", "h"} {
		Expect(dataOf(drain(ctx, t, queue, "consumerGroup="+group))).To(ConsistOf(`"a"`, `"b"`))
	}
})

var _ = suite.Requirement("transaction.ack.negative", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 2)
	for _, status := range []string{"failed", "retry"} {
		Expect(committed(ctx, t, 1, acks(of(messages[0], status)))[0].DLQ).To(BeFalse())
		messages = pop(ctx, t, queue).Messages
		Expect(dataOf(messages)).To(Equal([]string{"0", "1"}), "redelivered after %s", status)
	}
	Expect(committed(ctx, t, 1, acks(of(messages[0], "dlq")))[0].DLQ).To(BeTrue())
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("transaction.ack.unresolvable", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	unknown := of(messages[0], "completed")
	unknown.TransactionID = "nobody"
	undone(ctx, t, "QTXN", acks(unknown))
})

var _ = suite.Requirement("transaction.ack.rejected", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	stale, stranger := of(messages[0], "completed"), unlocked(messages[0])
	stale.LeaseID = "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"
	stranger.ConsumerGroup = "strangers"
	for _, bad := range []acknowledgment{stale, stranger} {
		undone(ctx, t, "QTXN", acks(bad))
	}
})

var _ = suite.Requirement("transaction.ack.holder", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 1)
	answer := transact(ctx, t, []string{"0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"}, acks(unlocked(messages[0])))
	Expect(answer.Success).To(BeTrue(), answer.Error)
	Expect(drain(ctx, t, queue)).To(BeEmpty())
})

var _ = suite.Requirement("transaction.ack.required-lease", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 2)
	Expect(ack(ctx, t, of(messages[0], "retry")).Success).To(BeTrue()) // which releases the lease
	const other = "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"
	over := messages[0].LeaseID
	bare := acks(unlocked(messages[0]))
	for _, leases := range [][]string{{over}, {other, other}} {
		rolledBack(transact(ctx, t, leases, bare), "QTXN")
	}
	for i, leases := range [][]string{{over, other}, nil} {
		answer := transact(ctx, t, leases, acks(unlocked(messages[i])))
		Expect(answer.Success).To(BeTrue(), answer.Error)
	}
	Expect(drain(ctx, t, queue)).To(BeEmpty())
})
