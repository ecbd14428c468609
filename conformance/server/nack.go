package server

import (
	"context"
	"fmt"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

const superseded = "not committed: an earlier message of this partition was not completed"

var _ = suite.Requirement("ack.nack.redelivers", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 5)
	messages := pop(ctx, t, queue, "batch=4").Messages
	Expect(messages).To(HaveLen(4))
	ack(ctx, t, of(messages[1], "failed"))
	Expect(pop(ctx, t, queue, "batch=3").data()).To(Equal([]string{"1", "2", "3"}))
})

var _ = suite.Requirement("ack.nack.releases", func(ctx context.Context, t *suite.Target) {
	for _, status := range []string{"failed", "retry", "dlq"} {
		_, messages := popNumbers(ctx, t, 1)
		result := ack(ctx, t, of(messages[0], status))
		Expect(result.Success).To(BeTrue(), status)
		Expect(result.Error).To(BeNil(), status)
	}
})

var _ = suite.Requirement("ack.nack.releases", func(ctx context.Context, t *suite.Target) {
	for _, status := range []string{"failed", "retry", "dlq"} {
		queue, messages := popNumbers(ctx, t, 3)
		Expect(ack(ctx, t, of(messages[0], status)).LeaseReleased).To(BeTrue(), status)
		Expect(pop(ctx, t, queue).Messages).NotTo(BeEmpty(), "after %s", status)
		Expect(ack(ctx, t, of(messages[2], "completed")).reason()).To(Equal(leaseError), "under the lease that %s released", status)
	}
})

// fail pops one message and fails it.
func fail(ctx context.Context, t *suite.Target, queue string, params ...string) acked {
	messages := pop(ctx, t, queue, params...).Messages
	if len(messages) == 0 {
		suite.Failf(1, "there is nothing to fail in the queue %s", queue)
	}
	return ack(ctx, t, of(messages[0], "failed"))
}

var _ = suite.Requirement("ack.nack.budget", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for i := range 3 {
		result := fail(ctx, t, queue)
		Expect(result.Success).To(BeTrue(), "failed ack %d", i+1)
		Expect(result.DLQ).To(BeFalse(), "failed ack %d", i+1)
	}
	Expect(fail(ctx, t, queue).DLQ).To(BeTrue(), "failed ack 4")
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty())
})

var _ = suite.Requirement("ack.nack.budget-once-per-call", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 2})
	pushNumbers(ctx, t, queue, 4)
	for i := range 2 {
		messages := pop(ctx, t, queue).Messages
		Expect(messages).To(HaveLen(4), "delivery %d", i+1)
		var items []acknowledgment
		for _, m := range messages {
			items = append(items, of(m, "failed"))
		}
		Expect(ackBatch(ctx, t, items...)).To(HaveEach(And(HaveField("Success", true), HaveField("DLQ", false))), "call %d", i+1)
	}
	Expect(fail(ctx, t, queue).DLQ).To(BeTrue(), "the third call")
})

var _ = suite.Requirement("ack.nack.budget-scope", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 2})
	pushNumbersTo(ctx, t, queue, "a", 4)
	pushNumbersTo(ctx, t, queue, "b", 1)
	failAt := func(partition, group string, i int) acked {
		messages := popPartition(ctx, t, queue, partition, "consumerGroup="+group).Messages
		Expect(len(messages)).To(BeNumerically(">", i), "messages of %s for %s", partition, group)
		return ack(ctx, t, of(messages[i], "failed"))
	}
	Expect(failAt("a", "h", 0).DLQ).To(BeFalse(), "the first failed ack of another group")
	Expect(failAt("a", "g", 0).DLQ).To(BeFalse(), "the first failed ack")
	Expect(failAt("a", "g", 1).DLQ).To(BeFalse(), "the second one, of another message")
	Expect(failAt("b", "g", 0).DLQ).To(BeFalse(), "the first one in another partition")
	Expect(failAt("a", "h", 0).DLQ).To(BeFalse(), "the second one of another group")
	Expect(failAt("a", "g", 1).DLQ).To(BeTrue(), "the third one, of a third message")
})

var _ = suite.Requirement("ack.nack.budget-reset", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, queue, 2)
	Expect(fail(ctx, t, queue, "batch=1").DLQ).To(BeFalse())
	messages := pop(ctx, t, queue, "batch=1").Messages
	Expect(messages).To(HaveLen(1))
	Expect(ack(ctx, t, of(messages[0], "completed")).LeaseReleased).To(BeTrue())
	Expect(fail(ctx, t, queue, "batch=1").DLQ).To(BeFalse(), "the first failed ack after a full one")
	Expect(fail(ctx, t, queue, "batch=1").DLQ).To(BeTrue(), "the second one")
})

var _ = suite.Requirement("ack.nack.budget", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 0})
	pushNumbers(ctx, t, queue, 2)
	Expect(fail(ctx, t, queue).DLQ).To(BeTrue())
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("ack.retry.uncharged", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, queue, 3)
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(3))
	result := ack(ctx, t, of(messages[1], "retry"))
	Expect(result.LeaseReleased).To(BeTrue())
	for i := range 4 {
		messages = pop(ctx, t, queue).Messages
		Expect(dataOf(messages)).To(Equal([]string{"1", "2"}), "after %d retries", i+1)
		result = ack(ctx, t, of(messages[0], "retry"))
		Expect(result.DLQ).To(BeFalse(), "retry %d", i+2)
	}
	Expect(fail(ctx, t, queue).DLQ).To(BeFalse(), "the first failed ack after retries")
})

var _ = suite.Requirement("ack.dlq.exhausted", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, queue, 3)
	Expect(fail(ctx, t, queue).DLQ).To(BeFalse())
	last := fail(ctx, t, queue)
	Expect(last.Success).To(BeTrue())
	Expect(last.DLQ).To(BeTrue())
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"1", "2"}))
})

// exhausts fails the first of two messages of a queue with the options, which have a retryLimit of 0.
func exhausts(ctx context.Context, t *suite.Target, options map[string]any) (result acked, rest []string) {
	queue := t.Queue()
	options["retryLimit"] = 0
	configure(ctx, t, queue, options)
	pushNumbers(ctx, t, queue, 2)
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(2))
	result = ack(ctx, t, of(messages[0], "failed"))
	return result, pop(ctx, t, queue).data()
}

var _ = suite.Requirement("ack.dlq.off-drops", func(ctx context.Context, t *suite.Target) {
	result, rest := exhausts(ctx, t, map[string]any{"deadLetterQueue": false, "dlqAfterMaxRetries": false})
	Expect(result.Success).To(BeTrue())
	Expect(result.DLQ).To(BeFalse())
	Expect(rest).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("ack.dlq.off-drops", func(ctx context.Context, t *suite.Target) {
	for _, on := range []string{"deadLetterQueue", "dlqAfterMaxRetries"} {
		options := map[string]any{"deadLetterQueue": false, "dlqAfterMaxRetries": false}
		options[on] = true
		result, rest := exhausts(ctx, t, options)
		Expect(result.DLQ).To(BeTrue(), "with %s alone", on)
		Expect(rest).To(Equal([]string{"1"}), "with %s alone", on)
	}
})

var _ = suite.Requirement("ack.dlq.explicit", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 3)
	result := ack(ctx, t, of(messages[1], "dlq"))
	Expect(result.Success).To(BeTrue())
	Expect(result.DLQ).To(BeTrue())
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"2"}), "after the dead letter and what was before it")
})

var _ = suite.Requirement("ackBatch.clamp.lowest", func(ctx context.Context, t *suite.Target) {
	for _, status := range []string{"failed", "retry", "dlq"} {
		queue, messages := popNumbers(ctx, t, 5)
		ackBatch(ctx, t, of(messages[0], "completed"), of(messages[1], "completed"), of(messages[2], status),
			of(messages[3], "completed"), of(messages[4], "failed"))
		want := []string{"2", "3", "4"}
		if status == "dlq" {
			want = want[1:]
		}
		Expect(pop(ctx, t, queue).data()).To(Equal(want), "after a %s", status)
	}
})

var _ = suite.Requirement("ackBatch.clamp.superseded", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 6)
	results := ackBatch(ctx, t, of(messages[0], "completed"), of(messages[1], "failed"), of(messages[2], "completed"),
		of(messages[3], "dlq"), of(messages[4], "failed"), of(messages[5], "retry"))
	for i, want := range []bool{true, true, false, false, true, true} {
		Expect(results[i].Success).To(Equal(want), "success of item %d", i)
		if want {
			Expect(results[i].Error).To(BeNil(), "error of item %d", i)
			continue
		}
		Expect(results[i].reason()).To(Equal(superseded), "error of item %d", i)
		Expect(results[i].DLQ).To(BeFalse(), "dlq of item %d", i)
	}
})

var _ = suite.Requirement("ackBatch.clamp.same-offset", func(ctx context.Context, t *suite.Target) {
	// What is exhausted at once and dropped tells failed from retry; what has budget left tells dlq from failed.
	drops := map[string]any{"retryLimit": 0, "deadLetterQueue": false, "dlqAfterMaxRetries": false}
	keeps := map[string]any{"retryLimit": 5}
	for _, c := range []struct {
		statuses []string
		options  map[string]any
		dlq      bool
	}{
		{[]string{"retry", "failed"}, drops, false},
		{[]string{"failed", "retry"}, drops, false},
		{[]string{"retry", "dlq", "failed"}, keeps, true},
		{[]string{"failed", "dlq"}, keeps, true},
	} {
		queue := t.Queue()
		configure(ctx, t, queue, c.options)
		pushNumbers(ctx, t, queue, 2)
		messages := pop(ctx, t, queue).Messages
		Expect(messages).To(HaveLen(2))
		var items []acknowledgment
		for _, status := range c.statuses {
			items = append(items, of(messages[0], status))
		}
		dlq := false
		for _, result := range ackBatch(ctx, t, items...) {
			dlq = dlq || result.DLQ
		}
		name := fmt.Sprintf("%v", c.statuses)
		Expect(dlq).To(Equal(c.dlq), "dlq of "+name)
		Expect(pop(ctx, t, queue).data()).To(Equal([]string{"1"}), "after "+name)
	}
})
