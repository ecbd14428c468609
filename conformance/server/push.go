package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

var _ = suite.Requirement("push.response.status", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for range 2 { // the second time as a duplicate
		answer := post(ctx, t, "push", string(pushBody(item{queue: queue, transactionID: "t", payload: "1"})))
		Expect(answer.Status).To(Equal(201))
		Expect(answer.Header.Get("Content-Type")).To(HavePrefix("application/json"))
	}
	Expect(post(ctx, t, "push", `{"items":[]}`).Status).To(Equal(201))
}, suite.WireOnly)

var _ = suite.Requirement("push.response.array", func(ctx context.Context, t *suite.Target) {
	queues := []string{t.Queue(), t.Queue(), t.Queue()}
	var items []item
	for i := range 30 {
		items = append(items, item{
			queue: queues[i%3], partition: fmt.Sprintf("p%d", i%2), transactionID: fmt.Sprintf("t%d", i), payload: "1",
		})
	}
	outcome := t.Call(ctx, "push", suite.Args{Body: pushBody(items...)})
	var results []pushed
	Expect(json.Unmarshal(outcome.Body, &results)).To(Succeed(), "a top-level array")
	Expect(results).To(HaveLen(len(items)))
	for i, result := range results {
		Expect(result.TransactionID).To(Equal(items[i].transactionID), "result %d", i)
	}
})

var _ = suite.Requirement("push.response.after-commit", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for i := range 5 {
		results := push(ctx, t, item{queue: queue, payload: fmt.Sprint(i)}, item{queue: queue, partition: "p", payload: fmt.Sprint(i)})
		Expect(results).To(HaveEach(HaveField("Status", "queued")))
		Expect(drain(ctx, t, queue)).To(HaveLen(2), "messages at once after push %d", i)
	}
})

var _ = suite.Requirement("push.result.index", func(ctx context.Context, t *suite.Target) {
	a, b := t.Queue(), t.Queue()
	var items []item
	for i := range 6 {
		queue := a
		if i%2 == 1 {
			queue = b
		}
		items = append(items, item{queue: queue, transactionID: fmt.Sprintf("t%d", i/4), payload: "1"})
	}
	var indexes []int
	for _, result := range push(ctx, t, items...) {
		indexes = append(indexes, result.Index)
	}
	Expect(indexes).To(Equal([]int{0, 1, 2, 3, 4, 5}))
})

var _ = suite.Requirement("push.result.keys", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for range 2 { // the second time as a duplicate
		answer := post(ctx, t, "push", string(pushBody(item{queue: queue, partition: "p", transactionID: "t", payload: "1"})))
		var results []map[string]json.RawMessage
		if json.Unmarshal(answer.Body, &results) != nil || len(results) != 1 {
			t.Skipf("the push was not answered with an array of one result: %s", answer.Body)
		}
		var keys []string
		for key := range results[0] {
			keys = append(keys, key)
		}
		Expect(keys).To(ConsistOf("index", "message_id", "transaction_id", "queueName", "status"))
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.result.message-id", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	ids := map[string]bool{}
	results := pushNumbers(ctx, t, queue, 10)
	for _, result := range results {
		id, err := uuid.Parse(result.MessageID)
		Expect(err).NotTo(HaveOccurred())
		Expect(id.Version()).To(Equal(uuid.Version(7)))
		Expect(id.Variant()).To(Equal(uuid.RFC4122))
		ids[result.MessageID] = true
	}
	Expect(ids).To(HaveLen(10), "distinct ids")
	byTransaction := map[string]string{}
	for _, m := range drain(ctx, t, queue) {
		byTransaction[m.TransactionID] = m.ID
	}
	for _, result := range results {
		Expect(byTransaction).To(HaveKeyWithValue(result.TransactionID, result.MessageID))
	}
})

var _ = suite.Requirement("push.result.transaction-id", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	results := push(ctx, t, item{queue: queue, transactionID: "mine", payload: "1"}, item{queue: queue, payload: "2"})
	Expect(results[0].TransactionID).To(Equal("mine"))
	Expect(results[1].TransactionID).To(Equal(results[1].MessageID))
	Expect(pushOne(ctx, t, item{queue: queue, transactionID: "mine", payload: "1"}).TransactionID).To(Equal("mine"), "of a duplicate")
}, suite.WireOnly)

var _ = suite.Requirement("push.result.queue-name", func(ctx context.Context, t *suite.Target) {
	a, b := t.Queue(), t.Queue()
	results := push(ctx, t, item{queue: a, payload: "1"}, item{queue: b, payload: "1"}, item{queue: a, payload: "1"})
	Expect(results[0].QueueName).To(Equal(a))
	Expect(results[1].QueueName).To(Equal(b))
	Expect(results[2].QueueName).To(Equal(a))
})

var _ = suite.Requirement("push.result.status", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	results := push(ctx, t, item{queue: queue, transactionID: "t", payload: "1"}, item{queue: queue, payload: "1"})
	Expect(results).To(HaveEach(HaveField("Status", "queued")))
})

var _ = suite.Requirement("push.creates.queue", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	Expect(pushOne(ctx, t, item{queue: queue, partition: "first", payload: "1"}).Status).To(Equal("queued"))
	answer := popPartition(ctx, t, queue, "first")
	Expect(answer.data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("push.creates.partition", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "a", payload: `"a"`})
	pushOne(ctx, t, item{queue: queue, partition: "b", payload: `"b"`})
	a, b := popPartition(ctx, t, queue, "a"), popPartition(ctx, t, queue, "b")
	Expect(a.data()).To(Equal([]string{`"a"`}))
	Expect(b.data()).To(Equal([]string{`"b"`}))
	Expect(a.Messages[0].PartitionID).NotTo(Equal(b.Messages[0].PartitionID))
})

var _ = suite.Requirement("push.creates.namespace-task", func(ctx context.Context, t *suite.Target) {
	for name, want := range map[string][2]string{
		"%s.created": {"%s", "created"}, "%s.a.b.c": {"%s", "a"}, "%s": {"", ""}, "%s.": {"%s", ""},
	} {
		base := t.Queue()
		queue := strings.ReplaceAll(name, "%s", base)
		pushOne(ctx, t, item{queue: queue, payload: "1"})
		detail := inspect(ctx, t, queue)
		Expect(detail.Namespace).To(Equal(strings.ReplaceAll(want[0], "%s", base)), "namespace of %s", queue)
		Expect(detail.Task).To(Equal(want[1]), "task of %s", queue)
	}
})

var _ = suite.Requirement("push.creates.discoverable", func(ctx context.Context, t *suite.Target) {
	namespace, task := t.Unique("ns"), t.Unique("task")
	queue := namespace + "." + task
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(discover(ctx, t, "namespace="+namespace, "consumerGroup=a").data()).To(Equal([]string{"1"}))
	Expect(discover(ctx, t, "task="+task, "consumerGroup=b").data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("push.creates.options", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	want := defaultOptions()
	want["leaseTime"] = 60.0
	Expect(inspect(ctx, t, queue).Options).To(Equal(want))
})

var _ = suite.Requirement("push.order.array", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var items []item
	for i := range 100 {
		items = append(items, item{queue: queue, partition: fmt.Sprintf("p%d", i%3), payload: fmt.Sprint(i)})
	}
	push(ctx, t, items...)
	for p := range 3 {
		var want []string
		for i := p; i < 100; i += 3 {
			want = append(want, fmt.Sprint(i))
		}
		Expect(popPartition(ctx, t, queue, fmt.Sprintf("p%d", p)).data()).To(Equal(want))
	}
})

var _ = suite.Requirement("push.order.sequential", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var want []string
	for i := range 20 {
		pushOne(ctx, t, item{queue: queue, payload: fmt.Sprint(i)})
		want = append(want, fmt.Sprint(i))
	}
	Expect(pop(ctx, t, queue).data()).To(Equal(want))
})

// statuses lists the statuses of results.
func statuses(results []pushed) []string {
	var all []string
	for _, result := range results {
		all = append(all, result.Status)
	}
	return all
}

var _ = suite.Requirement("push.dedup.database", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: "1"})
	Expect(pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: "1"}).Status).To(Equal("duplicate"))
	Expect(pushOne(ctx, t, item{queue: queue, transactionID: "u", payload: "1"}).Status).To(Equal("queued"))
})

var _ = suite.Requirement("push.dedup.original-id", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	original := pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: "1"})
	for range 2 {
		Expect(pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: "2"}).MessageID).To(Equal(original.MessageID))
	}
})

var _ = suite.Requirement("push.dedup.nothing-written", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: `"first"`})
	pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: `"second"`})
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{`"first"`}))
})

var _ = suite.Requirement("push.dedup.database", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue() // nobody configures it
	results := append(push(ctx, t, item{queue: queue, transactionID: "t", payload: "1"}),
		push(ctx, t, item{queue: queue, transactionID: "t", payload: "1"})...)
	Expect(statuses(results)).To(Equal([]string{"queued", "duplicate"}))
})

var _ = suite.Requirement("push.dedup.in-request", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	same := func(payload string) item { return item{queue: queue, transactionID: "t", payload: payload} }
	results := push(ctx, t, same("1"), item{queue: queue, transactionID: "u", payload: "2"}, same("3"), same("4"))
	Expect(statuses(results)).To(Equal([]string{"queued", "queued", "duplicate", "duplicate"}))
	Expect(results[2].MessageID).To(Equal(results[0].MessageID))
	Expect(results[3].MessageID).To(Equal(results[0].MessageID))
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1", "2"}))
})

var _ = suite.Requirement("push.dedup.in-request-original", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	same := item{queue: queue, transactionID: "t", payload: "1"}
	original := pushOne(ctx, t, same)
	for _, result := range push(ctx, t, same, same, same) {
		Expect(result.Status).To(Equal("duplicate"))
		Expect(result.MessageID).To(Equal(original.MessageID))
	}
})

var _ = suite.Requirement("push.dedup.scope", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "a", transactionID: "t", payload: "1"})
	results := push(ctx, t, item{queue: queue, partition: "b", transactionID: "t", payload: "1"}, item{queue: queue, partition: "c", transactionID: "t", payload: "1"})
	Expect(statuses(results)).To(Equal([]string{"queued", "queued"}))
})

var _ = suite.Requirement("push.dedup.scope", func(ctx context.Context, t *suite.Target) {
	a, b := t.Queue(), t.Queue()
	pushOne(ctx, t, item{queue: a, transactionID: "t", payload: "1"})
	Expect(pushOne(ctx, t, item{queue: b, transactionID: "t", payload: "1"}).Status).To(Equal("queued"))
})

var _ = suite.Requirement("push.dedup.exact", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, id := range []string{"order-1", "ORDER-1", "order-1 ", " order-1", "order\u00a01", "e\u0301", "\u00e9", "order-1\ufeff", "0", "00"} {
		Expect(pushOne(ctx, t, item{queue: queue, transactionID: id, payload: "1"}).Status).To(Equal("queued"), "transactionId %q", id)
	}
})

var _ = suite.Requirement("push.names.escapes", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, transactionID: "a&b/é😀", payload: "1"})
	answer := post(ctx, t, "push", `{"items":[{"queue":"`+queue+`","transactionId":"\u0061\u0026b\/\u00e9\ud83d\ude00","payload":1}]}`)
	Expect(answer.Body).To(ContainSubstring(`duplicate`))
}, suite.WireOnly)

var _ = suite.Requirement("push.dedup.database", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	one := func(id string) item { return item{queue: queue, transactionID: id, payload: quote(id)} }
	push(ctx, t, one("b"), one("d"))
	results := push(ctx, t, one("a"), one("b"), one("c"), one("d"), one("e"))
	Expect(statuses(results)).To(Equal([]string{"queued", "duplicate", "queued", "duplicate", "queued"}))
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{`"b"`, `"d"`, `"a"`, `"c"`, `"e"`}))
})

var _ = suite.Requirement("push.dedup.concurrent", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	const producers, rounds = 8, 5
	for round := range rounds {
		same := item{queue: queue, transactionID: fmt.Sprintf("t%d", round), payload: "1"}
		var waits []func() pushed
		for range producers {
			waits = append(waits, later(func() pushed { return pushOne(ctx, t, same) }))
		}
		var winner string
		var all []pushed
		for _, wait := range waits {
			result := wait()
			all = append(all, result)
			if result.Status == "queued" {
				Expect(winner).To(BeEmpty(), "a second push of %s is queued", same.transactionID)
				winner = result.MessageID
			}
		}
		Expect(winner).NotTo(BeEmpty(), "no push of %s is queued", same.transactionID)
		Expect(all).To(HaveEach(HaveField("MessageID", winner)))
	}
	Expect(drain(ctx, t, queue)).To(HaveLen(rounds))
})

var _ = suite.Requirement("push.dedup.after-consumption", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	original := pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: "1"})
	Expect(drain(ctx, t, queue)).To(HaveLen(1))
	again := pushOne(ctx, t, item{queue: queue, transactionID: "t", payload: "1"})
	Expect(again.Status).To(Equal("duplicate"))
	Expect(again.MessageID).To(Equal(original.MessageID))
	Expect(drain(ctx, t, queue)).To(BeEmpty())
})

var _ = suite.Requirement("push.dedup.window", func(ctx context.Context, t *suite.Target) {
	queue, window := t.Queue(), t.Window()
	configure(ctx, t, queue, map[string]any{"dedupWindowSeconds": seconds(window)})
	one := item{queue: queue, transactionID: "t", payload: "1"}
	original := pushOne(ctx, t, one)
	t.Elapse(ctx, window*3/4)
	Expect(pushOne(ctx, t, one).Status).To(Equal("duplicate"), "within the window")
	t.Elapse(ctx, window/2)
	again := pushOne(ctx, t, one)
	Expect(again.Status).To(Equal("queued"), "after the window")
	Expect(again.MessageID).NotTo(Equal(original.MessageID))
	Expect(drain(ctx, t, queue)).To(HaveLen(2))
})

var _ = suite.Requirement("push.dedup.window-default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	one := item{queue: queue, transactionID: "t", payload: "1"}
	pushOne(ctx, t, one)
	t.Advance(ctx, 3540*time.Second)
	Expect(pushOne(ctx, t, one).Status).To(Equal("duplicate"), "after 3540 s")
	t.Advance(ctx, 61*time.Second)
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"), "after 3601 s")
})

var _ = suite.Requirement("push.dedup.window-anchored", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"dedupWindowSeconds": 200})
	one := item{queue: queue, transactionID: "t", payload: "1"}
	pushOne(ctx, t, one)
	t.Advance(ctx, 120*time.Second)
	Expect(pushOne(ctx, t, one).Status).To(Equal("duplicate"), "after 120 s")
	t.Advance(ctx, 100*time.Second)
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"), "after 220 s")
})

var _ = suite.Requirement("push.dedup.window-zero", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"dedupWindowSeconds": 0})
	one := item{queue: queue, transactionID: "t", payload: "1"}
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"))
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"))
	Expect(drain(ctx, t, queue)).To(HaveLen(2))
})

var _ = suite.Requirement("configure.full-replace", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"dedupWindowSeconds": 0})
	configure(ctx, t, queue, map[string]any{"retryLimit": 5})
	one := item{queue: queue, transactionID: "t", payload: "1"}
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"))
	Expect(pushOne(ctx, t, one).Status).To(Equal("duplicate"))
})
