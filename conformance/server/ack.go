package server

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

const leaseError = "invalid or expired lease"

// popNumbers pushes n numbers to a fresh queue and pops them under one lease.
func popNumbers(ctx context.Context, t *suite.Target, n int, params ...string) (queue string, messages []message) {
	queue = t.Queue()
	pushNumbers(ctx, t, queue, n)
	messages = pop(ctx, t, queue, params...).Messages
	Expect(messages).To(HaveLen(n))
	return queue, messages
}

var _ = suite.Requirement("ack.request.required", func(ctx context.Context, t *suite.Target) {
	const partition = `"partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84"`
	for _, body := range []string{
		`{}`, `{` + partition + `}`, `{"transactionId":"t"}`, `{"transactionId":7,` + partition + `}`, `{"transactionId":null,` + partition + `}`,
		`{"transactionId":"t","partitionId":7}`, `{"transactionId":"t","partitionId":null}`, `[]`, `null`,
	} {
		rejected(post(ctx, t, "ack", body))
	}
}, suite.WireOnly)

var _ = suite.Requirement("ackBatch.request.required", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 1)
	good, err := json.Marshal(of(messages[0], "completed"))
	Expect(err).NotTo(HaveOccurred())
	for _, body := range []string{
		`{}`, `{"acknowledgments":null}`, `{"acknowledgments":{}}`, `{"acknowledgments":[` + string(good) + `,{"transactionId":"t"}]}`,
		`{"acknowledgments":[` + string(good) + `,{"partitionId":"x"}]}`, `{"acknowledgments":[` + string(good) + `,7]}`,
	} {
		rejected(post(ctx, t, "ackBatch", body))
	}
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "while the lease is kept")
	result := ack(ctx, t, of(messages[0], "completed"))
	Expect(result.Success).To(BeTrue(), "of the first acknowledgment of the message: %s", result.reason())
	Expect(result.Noop).To(BeFalse(), "the refused batches acknowledged the message")
}, suite.WireOnly)

var _ = suite.Requirement("ack.response.array", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 4)
	body, err := json.Marshal(of(messages[0], "completed"))
	Expect(err).NotTo(HaveOccurred())
	answer := post(ctx, t, "ack", string(body))
	Expect(answer.Status).To(Equal(200))
	var results []acked
	Expect(json.Unmarshal(answer.Body, &results)).To(Succeed(), "a top-level array: %s", answer.Body)
	Expect(results).To(HaveLen(1))
	order := []int{3, 1, 2}
	items := make([]acknowledgment, 0, len(order))
	for _, i := range order {
		items = append(items, of(messages[i], "completed"))
	}
	for i, result := range ackBatch(ctx, t, items...) {
		Expect(result.Index).To(Equal(i))
		Expect(result.TransactionID).To(Equal(items[i].TransactionID))
	}
}, suite.WireOnly)

var _ = suite.Requirement("ack.response.array", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	good := of(messages[0], "completed")
	unknown := good
	unknown.TransactionID = "nobody"
	for _, a := range []acknowledgment{unknown, good} {
		body, err := json.Marshal(map[string]any{"acknowledgments": []acknowledgment{a}})
		Expect(err).NotTo(HaveOccurred())
		var results []map[string]any
		decode(post(ctx, t, "ackBatch", string(body)).Body, &results)
		Expect(results).To(HaveLen(1))
		for _, key := range []string{"index", "transactionId", "success", "error", "leaseReleased", "dlq", "noop"} {
			Expect(results[0]).To(HaveKey(key))
		}
		Expect(results[0]["error"] == nil).To(Equal(results[0]["success"]), "error is null on success and a text otherwise")
	}
}, suite.WireOnly)

var _ = suite.Requirement("ackBatch.empty", func(ctx context.Context, t *suite.Target) {
	answer := post(ctx, t, "ackBatch", `{"acknowledgments":[]}`)
	Expect(answer.Status).To(Equal(200))
	Expect(answer.Body).To(MatchJSON(`[]`))
}, suite.WireOnly)

var _ = suite.Requirement("ack.status.completed-words", func(ctx context.Context, t *suite.Target) {
	for _, status := range []string{"", `"status":null,`, `"status":"completed",`, `"status":"success",`, `"status":"acked",`, `"status":"ok",`} {
		queue, messages := popNumbers(ctx, t, 1)
		m := messages[0]
		answer := post(ctx, t, "ack", fmt.Sprintf(`{%s"transactionId":%q,"partitionId":%q,"leaseId":%q}`, status, m.TransactionID, m.PartitionID, m.LeaseID))
		result := decodeAck(suite.Outcome{Status: answer.Status, Body: answer.Body}, 1)[0]
		Expect(result.Success).To(BeTrue(), "ack with %s", status)
		Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "after an ack with %s", status)
	}
}, suite.WireOnly)

var _ = suite.Requirement("ack.status.other-is-failed", func(ctx context.Context, t *suite.Target) {
	for _, status := range []string{"", "COMPLETED", "Completed", "completed ", "done", "DLQ", "RETRY", "failed", "OK", "nack"} {
		queue := t.Queue()
		configure(ctx, t, queue, map[string]any{"retryLimit": 1, "deadLetterQueue": true})
		pushNumbers(ctx, t, queue, 1)
		for attempt := range 2 {
			messages := pop(ctx, t, queue).Messages
			Expect(messages).To(HaveLen(1), "delivery %d with status %q", attempt+1, status)
			m := messages[0]
			answer := post(ctx, t, "ack", fmt.Sprintf(`{"status":%q,"transactionId":%q,"partitionId":%q,"leaseId":%q}`,
				status, m.TransactionID, m.PartitionID, m.LeaseID))
			result := decodeAck(suite.Outcome{Status: answer.Status, Body: answer.Body}, 1)[0]
			Expect(result.DLQ).To(Equal(attempt == 1), "dlq of failed ack %d with status %q and retryLimit 1", attempt+1, status)
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("ack.null.absent", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 2)
	m := messages[0]
	answer := post(ctx, t, "ack", fmt.Sprintf(
		`{"transactionId":%q,"partitionId":%q,"status":null,"consumerGroup":null,"leaseId":null,"error":null}`, m.TransactionID, m.PartitionID))
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	Expect(decodeAck(suite.Outcome{Status: 200, Body: answer.Body}, 1)[0].Success).To(BeTrue())
	m = messages[1]
	answer = post(ctx, t, "ackBatch", fmt.Sprintf(
		`{"consumerGroup":null,"acknowledgments":[{"transactionId":%q,"partitionId":%q,"status":null,"leaseId":null,"error":null}]}`,
		m.TransactionID, m.PartitionID))
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	Expect(decodeAck(suite.Outcome{Status: 200, Body: answer.Body}, 1)[0].Success).To(BeTrue())
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("ack.prefix.commits", func(ctx context.Context, t *suite.Target) {
	lease := t.Window()
	queue, messages := popNumbers(ctx, t, 5, leaseFor(lease))
	Expect(ack(ctx, t, of(messages[2], "completed")).Success).To(BeTrue())
	for i := range 3 {
		Expect(ack(ctx, t, of(messages[i], "completed")).Noop).To(BeTrue(), "message %d is committed already", i)
	}
	t.Elapse(ctx, lease+time.Second)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"3", "4"}))
})

var _ = suite.Requirement("ack.prefix.commits", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	pushNumbersTo(ctx, t, queue, "b", 2)
	a, b := popPartition(ctx, t, queue, "a"), popPartition(ctx, t, queue, "b")
	other := popPartition(ctx, t, queue, "a", "consumerGroup=other")
	for _, answer := range []popped{a, b, other} {
		Expect(answer.Messages).To(HaveLen(2))
	}
	Expect(ack(ctx, t, of(a.Messages[1], "completed")).Success).To(BeTrue())
	Expect(ack(ctx, t, of(b.Messages[0], "retry")).Success).To(BeTrue(), "the other partition is as it was")
	Expect(popPartition(ctx, t, queue, "b").data()).To(Equal([]string{"0", "1"}))
	Expect(ack(ctx, t, of(other.Messages[0], "retry")).Success).To(BeTrue(), "the other group is as it was")
	Expect(popPartition(ctx, t, queue, "a", "consumerGroup=other").data()).To(Equal([]string{"0", "1"}))
})

var _ = suite.Requirement("ack.lease.full-releases", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	messages := pop(ctx, t, queue, "batch=2").Messages
	Expect(messages).To(HaveLen(2))
	result := ack(ctx, t, of(messages[1], "completed"))
	Expect(result.Success).To(BeTrue())
	Expect(result.LeaseReleased).To(BeTrue())
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"2"}))
})

var _ = suite.Requirement("ack.lease.partial-keeps", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 3)
	result := ack(ctx, t, of(messages[0], "completed"))
	Expect(result.Success).To(BeTrue())
	Expect(result.LeaseReleased).To(BeFalse())
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "while the lease is kept")
	result = ack(ctx, t, of(messages[2], "completed"))
	Expect(result.Success).To(BeTrue(), "of the rest under the same lease: %s", result.reason())
	Expect(result.LeaseReleased).To(BeTrue())
})

var _ = suite.Requirement("ack.lease.wrong", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 2)
	_, others := popNumbers(ctx, t, 1)
	for _, lease := range []string{"0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60", "no lease", others[0].LeaseID} {
		for _, status := range []string{"completed", "failed", "retry", "dlq"} {
			a := of(messages[1], status)
			a.LeaseID = lease
			result := ack(ctx, t, a)
			Expect(result.Success).To(BeFalse(), "%s under lease %s", status, lease)
			Expect(result.reason()).To(Equal(leaseError))
			Expect(result.LeaseReleased).To(BeFalse())
		}
	}
	Expect(ack(ctx, t, of(messages[0], "completed")).Noop).To(BeFalse(), "the cursor moved")
	ack(ctx, t, of(messages[1], "retry"))
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("ack.lease.wrong", func(ctx context.Context, t *suite.Target) {
	lease := t.Window()
	queue, messages := popNumbers(ctx, t, 2, leaseFor(lease))
	t.Elapse(ctx, lease+time.Second)
	result := ack(ctx, t, of(messages[1], "completed"))
	Expect(result.Success).To(BeFalse())
	Expect(result.reason()).To(Equal(leaseError))
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", "1"}), "after the refused ack")
	Expect(ack(ctx, t, of(messages[0], "failed")).reason()).To(Equal(leaseError), "while another holds the lease")
})

var _ = suite.Requirement("ack.lease.omitted", func(ctx context.Context, t *suite.Target) {
	lease := t.Window()
	queue, messages := popNumbers(ctx, t, 3, leaseFor(lease))
	first, second := of(messages[0], "completed"), of(messages[1], "completed")
	first.LeaseID, second.LeaseID = "", ""
	Expect(ack(ctx, t, first).Success).To(BeTrue())
	t.Elapse(ctx, lease+time.Second)
	Expect(ack(ctx, t, second).Success).To(BeTrue(), "after the lease")
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"2"}))
})

var _ = suite.Requirement("ack.noop.completed", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 3)
	ack(ctx, t, of(messages[1], "completed"))
	for _, i := range []int{0, 1} {
		result := ack(ctx, t, of(messages[i], "completed"))
		Expect(result.Success).To(BeTrue(), "message %d", i)
		Expect(result.Noop).To(BeTrue(), "message %d", i)
		Expect(result.Error).To(BeNil())
	}
	result := ack(ctx, t, of(messages[2], "completed"))
	Expect(result.Success).To(BeTrue())
	Expect(result.Noop).To(BeFalse(), "a completion that moves the cursor")
})

var _ = suite.Requirement("ack.noop.negative", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 3)
	ack(ctx, t, of(messages[1], "completed"))
	for _, status := range []string{"failed", "retry", "dlq"} {
		for _, i := range []int{0, 1} {
			result := ack(ctx, t, of(messages[i], status))
			Expect(result.Success).To(BeFalse(), "%s of message %d", status, i)
			Expect(result.reason()).To(HavePrefix("already committed"), "%s of message %d", status, i)
		}
	}
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "the lease is kept")
})

// unknownOf is an acknowledgment of a message that does not exist in the partition of m.
func unknownOf(m message, status string) acknowledgment {
	a := of(m, status)
	a.TransactionID = "nobody"
	return a
}

var _ = suite.Requirement("ack.unresolvable", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 1)
	pushOne(ctx, t, item{queue: queue, partition: "other", transactionID: "elsewhere", payload: "1"})
	for _, id := range []string{"nobody", "elsewhere"} {
		for _, status := range []string{"completed", "failed", "retry", "dlq"} {
			a := of(messages[0], status)
			a.TransactionID = id
			result := ack(ctx, t, a)
			Expect(result.Success).To(BeFalse(), "%s of %s", status, id)
			Expect(result.reason()).To(HavePrefix("unresolvable"), "%s of %s", status, id)
		}
	}
})

var _ = suite.Requirement("ack.unresolvable", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 2)
	for _, status := range []string{"completed", "failed", "retry"} {
		Expect(ack(ctx, t, unknownOf(messages[0], status)).LeaseReleased).To(BeFalse(), status)
	}
	Expect(popPartition(ctx, t, queue, "Default").Messages).To(BeEmpty(), "while the lease is kept")
	Expect(ack(ctx, t, of(messages[1], "completed")).reason()).NotTo(Equal(leaseError))
})

var _ = suite.Requirement("ack.unresolvable.window", func(ctx context.Context, t *suite.Target) {
	for name, window := range map[string]struct {
		options map[string]any
		length  time.Duration
	}{
		"the floor of 900 s":        {map[string]any{"dedupWindowSeconds": 10}, 900 * time.Second},
		"dedupWindowSeconds":        {map[string]any{"dedupWindowSeconds": 2000}, 2000 * time.Second},
		"completedRetentionSeconds": {map[string]any{"dedupWindowSeconds": 0, "completedRetentionSeconds": 1500}, 1500 * time.Second},
	} {
		queue := t.Queue()
		configure(ctx, t, queue, window.options)
		pushNumbers(ctx, t, queue, 2)
		messages := pop(ctx, t, queue, "leaseSeconds=100000").Messages
		Expect(messages).To(HaveLen(2))
		t.Advance(ctx, window.length-30*time.Second)
		Expect(ack(ctx, t, of(messages[0], "completed")).Success).To(BeTrue(), "30 s before the end of %s", name)
	}
})

var _ = suite.Requirement("ack.consumer.unknown", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	a := of(messages[0], "completed")
	a.ConsumerGroup, a.LeaseID = "stranger", ""
	result := ack(ctx, t, a)
	Expect(result.Success).To(BeFalse())
	Expect(result.reason()).To(Equal("consumer not found"))
})

var _ = suite.Requirement("ack.partition-id.unknown", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	for _, id := range []string{"", "Default", "0198f2c1", "zzzzzzzz-zzzz-zzzz-zzzz-zzzzzzzzzzzz", "'; --"} {
		bad := acknowledgment{TransactionID: "t", PartitionID: id}
		body, err := json.Marshal(bad)
		Expect(err).NotTo(HaveOccurred())
		answer := post(ctx, t, "ack", string(body))
		Expect(answer.Status).To(Equal(200), "partitionId %q", id)
		Expect(decodeAck(suite.Outcome{Status: 200, Body: answer.Body}, 1)[0].Success).To(BeFalse(), "partitionId %q", id)
		results := ackBatch(ctx, t, bad)
		Expect(results[0].Success).To(BeFalse(), "partitionId %q in a batch", id)
		Expect(results[0].reason()).NotTo(BeEmpty())
	}
	results := ackBatch(ctx, t, acknowledgment{TransactionID: "t", PartitionID: "no uuid"}, of(messages[0], "completed"))
	Expect(results[1].Success).To(BeTrue(), "another item of the batch")
}, suite.WireOnly)

var _ = suite.Requirement("ack.partition-id.unknown", func(ctx context.Context, t *suite.Target) {
	unknown := acknowledgment{TransactionID: "t", PartitionID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84"}
	outcome := t.Call(ctx, "ack", suite.Args{Body: mustJSON(unknown)})
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	result := decodeAck(outcome, 1)[0]
	Expect(result.Success).To(BeFalse())
	Expect(result.reason()).NotTo(BeEmpty())
})

func mustJSON(value any) json.RawMessage {
	text, err := json.Marshal(value)
	Expect(err).NotTo(HaveOccurred())
	return text
}

var _ = suite.Requirement("ack.group.default", func(ctx context.Context, t *suite.Target) {
	for _, group := range []string{"", `"consumerGroup":null,`, `"consumerGroup":"` + modeGroup + `",`} {
		queue, messages := popNumbers(ctx, t, 1)
		m := messages[0]
		answer := post(ctx, t, "ack", fmt.Sprintf(`{%s"transactionId":%q,"partitionId":%q,"leaseId":%q}`, group, m.TransactionID, m.PartitionID, m.LeaseID))
		Expect(decodeAck(suite.Outcome{Status: answer.Status, Body: answer.Body}, 1)[0].Success).To(BeTrue(), "ack with %s", group)
		Expect(pop(ctx, t, queue, "consumerGroup="+modeGroup).Messages).To(BeEmpty())
	}
}, suite.WireOnly)

var _ = suite.Requirement("pop.group.independent", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	a := pop(ctx, t, queue, "consumerGroup=a").Messages
	b := pop(ctx, t, queue, "consumerGroup=b").Messages
	Expect(a).To(HaveLen(2))
	Expect(b).To(HaveLen(2))
	Expect(ack(ctx, t, of(a[1], "completed")).Success).To(BeTrue())
	result := ack(ctx, t, of(b[0], "completed"))
	Expect(result.Success).To(BeTrue())
	Expect(result.Noop).To(BeFalse(), "the other group's cursor moved")
	ack(ctx, t, of(b[1], "retry"))
	Expect(pop(ctx, t, queue, "consumerGroup=b").data()).To(Equal([]string{"1"}))
	Expect(pop(ctx, t, queue, "consumerGroup=a").Messages).To(BeEmpty())
})

var _ = suite.Requirement("ackBatch.group.top-level", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	m := pop(ctx, t, queue, "consumerGroup=g").Messages
	Expect(m).To(HaveLen(1))
	answer := post(ctx, t, "ackBatch", fmt.Sprintf(
		`{"consumerGroup":"g","acknowledgments":[{"consumerGroup":"other","transactionId":%q,"partitionId":%q,"leaseId":%q}]}`,
		m[0].TransactionID, m[0].PartitionID, m[0].LeaseID))
	result := decodeAck(suite.Outcome{Status: answer.Status, Body: answer.Body}, 1)[0]
	Expect(result.Success).To(BeTrue(), result.reason())
	Expect(pop(ctx, t, queue, "consumerGroup=g").Messages).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("ackBatch.groups.independent", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, p := range []string{"a", "b", "c"} {
		pushNumbersTo(ctx, t, queue, p, 1)
	}
	messages := pop(ctx, t, queue, "partitions=0").Messages
	Expect(messages).To(HaveLen(3))
	refused := of(messages[1], "completed")
	refused.LeaseID = "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"
	results := ackBatch(ctx, t, of(messages[0], "completed"), refused, of(messages[2], "completed"))
	Expect(results[0].Success).To(BeTrue())
	Expect(results[1].Success).To(BeFalse())
	Expect(results[1].reason()).To(Equal(leaseError))
	Expect(results[2].Success).To(BeTrue())
	again := func(i int) acked {
		a := of(messages[i], "completed")
		a.LeaseID = "" // the lease of what is committed is released
		return ack(ctx, t, a)
	}
	Expect(again(0).Noop).To(BeTrue(), "what was reported as committed is")
	Expect(again(1).Noop).To(BeFalse(), "what was refused is not committed")
})

var _ = suite.Requirement("ackBatch.released.attributed", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 3)
	results := ackBatch(ctx, t, of(messages[0], "completed"), of(messages[1], "completed"), of(messages[2], "completed"))
	Expect(released(results)).To(Equal([]bool{false, false, true}), "a full ack")

	_, messages = popNumbers(ctx, t, 3)
	results = ackBatch(ctx, t, of(messages[0], "completed"), of(messages[1], "dlq"), of(messages[2], "failed"))
	Expect(released(results)).To(Equal([]bool{false, true, false}), "a negative ack")
	Expect([]bool{results[0].DLQ, results[1].DLQ, results[2].DLQ}).To(Equal([]bool{false, true, false}), "dlq")
})

func released(results []acked) []bool {
	var flags []bool
	for _, result := range results {
		flags = append(flags, result.LeaseReleased)
	}
	return flags
}

var _ = suite.Requirement("ackBatch.order.any", func(ctx context.Context, t *suite.Target) {
	outcome := func(order ...int) (string, []string) {
		queue, messages := popNumbers(ctx, t, 4)
		statuses := []string{"completed", "completed", "retry", "completed"}
		items := make([]acknowledgment, 0, len(order))
		for _, i := range order {
			items = append(items, of(messages[i], statuses[i]))
		}
		texts := make([]string, len(order))
		for i, result := range ackBatch(ctx, t, items...) {
			Expect(result.TransactionID).To(Equal(items[i].TransactionID), "results keep the order of the request")
			texts[order[i]] = fmt.Sprintf("%t %q %t", result.Success, result.reason(), result.LeaseReleased)
		}
		return fmt.Sprint(texts), pop(ctx, t, queue).data()
	}
	want, _ := outcome(0, 1, 2, 3)
	for _, order := range [][]int{{3, 2, 1, 0}, {2, 0, 3, 1}, {1, 3, 0, 2}} {
		texts, rest := outcome(order...)
		Expect(texts).To(Equal(want), "results in order %v", order)
		Expect(rest).To(Equal([]string{"2", "3"}), "redelivered after order %v", order)
	}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		_, messages := popNumbers(ctx, t, 4)
		items := make([]acknowledgment, 0, len(order))
		for _, i := range order {
			items = append(items, of(messages[i], "completed"))
		}
		ackBatch(ctx, t, items...)
		Expect(ack(ctx, t, of(messages[2], "completed")).Noop).To(BeTrue(), "the last message after completions in order %v", order)
	}
})
