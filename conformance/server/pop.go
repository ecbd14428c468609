package server

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

var _ = suite.Requirement("pop.empty.no-content", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	Expect(pop(ctx, t, queue).Status).To(Equal(204), "a queue that does not exist")
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(drain(ctx, t, queue)).To(HaveLen(1))
	Expect(pop(ctx, t, queue).Status).To(Equal(204), "a queue that is drained")
	Expect(popPartition(ctx, t, queue, "Default").Status).To(Equal(204), "a partition that is drained")
	Expect(discover(ctx, t, "namespace="+t.Unique("ns")).Status).To(Equal(204), "a namespace without queues")
})

var _ = suite.Requirement("popQueue.creates.queue", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty())
	want := defaultOptions()
	want["leaseTime"] = 60.0
	Expect(inspect(ctx, t, queue).Options).To(Equal(want))
})

var _ = suite.Requirement("popQueue.name.escaped", func(ctx context.Context, t *suite.Target) {
	for _, odd := range []string{"a/b", "a b", "..", "a?b#c", "50%", "a+b", "é;=&,:@", `"\`} {
		queue := t.Queue() + "/" + odd
		pushOne(ctx, t, item{queue: queue, partition: odd, payload: "1"})
		Expect(pop(ctx, t, queue, "consumerGroup=a").data()).To(Equal([]string{"1"}), "queue %q", queue)
		Expect(popPartition(ctx, t, queue, odd, "consumerGroup=b").data()).To(Equal([]string{"1"}), "partition %q", odd)
	}
	// A segment that is dots only.
	pushOne(ctx, t, item{queue: "..", partition: t.Queue(), payload: "1"})
	answer := t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/%2e%2e?autoAck=true&consumerGroup=" + t.Unique("g")})
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
}, suite.WireOnly)

var _ = suite.Requirement("popQueue.name.invalid", func(ctx context.Context, t *suite.Target) {
	for _, name := range []string{strings.Repeat("q", 513), strings.Repeat("é", 257), "a\x00", "a\nb", "\x7f", "\u0085", "\xff", "a\xc3"} {
		answer := t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + url.PathEscape(name)})
		Expect(answer.Status).To(Equal(400), "queue %.20q", name)
		answer = t.Raw(ctx, suite.Request{
			Operation: "popPartition", Target: "/api/v1/pop/queue/" + t.Queue() + "/partition/" + url.PathEscape(name),
		})
		Expect(answer.Status).To(Equal(400), "partition %.20q", name)
	}
	answer := t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + strings.Repeat("q", 512)})
	Expect(answer.Status/100).To(Equal(2), "512 bytes")
}, suite.WireOnly)

var _ = suite.Requirement("popPartition.only", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	push(ctx, t, item{queue: queue, partition: "a", payload: `"a"`}, item{queue: queue, partition: "b", payload: `"b"`},
		item{queue: queue, partition: "b", payload: `"B"`})
	answer := popPartition(ctx, t, queue, "b", "partitions=10")
	Expect(answer.data()).To(Equal([]string{`"b"`, `"B"`}))
	Expect(answer.PartitionsClaimed).To(Equal(1))
	Expect(answer.Messages).To(HaveEach(HaveField("Partition", "b")))
})

var _ = suite.Requirement("popPartition.unknown", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	path := map[string]string{"queue": queue, "partition": "nowhere"}
	Expect(t.Call(ctx, "popPartition", suite.Args{Path: path}).Status).To(Equal(204), "no such queue")
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(t.Call(ctx, "popPartition", suite.Args{Path: path}).Status).To(Equal(204), "no such partition")
})

// scoped pushes one message with the queue's name as payload to a queue of the namespace and task.
func scoped(ctx context.Context, t *suite.Target, namespace, task string) string {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"namespace": namespace, "task": task})
	pushOne(ctx, t, item{queue: queue, payload: quote(queue)})
	return queue
}

var _ = suite.Requirement("pop.discovery.scope-required", func(ctx context.Context, t *suite.Target) {
	for _, query := range []string{"", "?batch=1", "?namespace=&task="} {
		answer := t.Raw(ctx, suite.Request{Operation: "pop", Target: "/api/v1/pop" + query})
		Expect(answer.Status).To(Equal(400), "pop%s", query)
		Expect(answer.Body).To(MatchJSON(`{"success":false,"error":"namespace or task is required","messages":[]}`))
	}
}, suite.WireOnly)

var _ = suite.Requirement("pop.discovery.exact", func(ctx context.Context, t *suite.Target) {
	// A number less its last digit would be the number of another spec.
	namespace, task := t.Unique("ns")+"-whole", t.Unique("task")+"-whole"
	both := scoped(ctx, t, namespace, task)
	sameNamespace := scoped(ctx, t, namespace, task+"x")
	sameTask := scoped(ctx, t, namespace+"x", task)
	found := func(group string, params ...string) []string {
		var queues []string
		params = append(params, "partitions=0", "consumerGroup="+group)
		for _, m := range discover(ctx, t, params...).Messages {
			queues = append(queues, m.Queue)
		}
		return queues
	}
	Expect(found("a", "namespace="+namespace)).To(ConsistOf(both, sameNamespace))
	Expect(found("b", "task="+task)).To(ConsistOf(both, sameTask))
	Expect(found("c", "namespace="+namespace, "task="+task)).To(ConsistOf(both))
	Expect(found("d", "namespace="+namespace[:len(namespace)-1])).To(BeEmpty(), "a prefix")
	Expect(found("e", "namespace="+strings.ToUpper(namespace))).To(BeEmpty(), "another case")
	Expect(found("f", "task="+task[:len(task)-1])).To(BeEmpty(), "a prefix")
})

var _ = suite.Requirement("pop.discovery.queue-empty", func(ctx context.Context, t *suite.Target) {
	namespace := t.Unique("ns")
	scoped(ctx, t, namespace, "a")
	scoped(ctx, t, namespace, "b")
	answer := discover(ctx, t, "namespace="+namespace, "partitions=0")
	Expect(answer.Queue).To(BeEmpty())
	Expect(answer.Messages).To(HaveLen(2))
	for _, m := range answer.Messages {
		Expect(string(m.Data)).To(Equal(quote(m.Queue)))
	}
})

// badQueries asserts that each query of a pop is answered 400.
func badQueries(ctx context.Context, t *suite.Target, queries ...string) {
	for _, query := range queries {
		answer := t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + t.Queue() + "?" + query})
		Expect(answer.Status).To(Equal(400), "pop with %.60s", query)
	}
}

var _ = suite.Requirement("pop.query.typed", func(ctx context.Context, t *suite.Target) {
	badQueries(ctx, t, "batch=abc", "batch=1.5", "batch=0x10", "batch=1e3", "batch=99999999999999999999", "partitions=x", "partitions=1.0",
		"leaseSeconds=1m", "timeout=1.5", "timeout=abc", "autoAck=maybe", "wait=2", "autoAck=TRUE!")
}, suite.WireOnly)

var _ = suite.Requirement("pop.query.booleans", func(ctx context.Context, t *suite.Target) {
	for text, yes := range map[string]bool{"true": true, "1": true, "yes": true, "false": false, "0": false, "no": false} {
		queue := t.Queue()
		pushOne(ctx, t, item{queue: queue, payload: "1"})
		answer := t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + queue + "?autoAck=" + text})
		Expect(answer.Status).To(Equal(200), "autoAck=%s", text)
		messages := decodePop(suite.Outcome{Status: 200, Body: answer.Body}).Messages
		Expect(messages).To(HaveLen(1))
		Expect(messages[0].LeaseID == "").To(Equal(yes), "autoAck=%s: whether there is no lease", text)
	}
}, suite.WireOnly)

var _ = suite.Requirement("pop.batch.budget", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 3)
	pushNumbersTo(ctx, t, queue, "c", 3)
	Expect(pop(ctx, t, queue, "batch=2", "consumerGroup=x").Messages).To(HaveLen(2))
	answer := pop(ctx, t, queue, "batch=4", "partitions=0", "consumerGroup=y")
	Expect(answer.Messages).To(HaveLen(4))
	Expect(pop(ctx, t, queue, "batch=1", "partitions=0", "consumerGroup=z").Messages).To(HaveLen(1))
})

var _ = suite.Requirement("pop.batch.default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 205)
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(200))
})

var _ = suite.Requirement("pop.partitions.cap", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	pushNumbersTo(ctx, t, queue, "b", 2)
	answer := pop(ctx, t, queue)
	Expect(answer.data()).To(Equal([]string{"0", "1"}))
	Expect(answer.Messages).To(HaveEach(HaveField("Partition", answer.Messages[0].Partition)))
})

// partitionsOf lists the partitions of messages, each once, in order of appearance.
func partitionsOf(messages []message) []string {
	var names []string
	for _, m := range messages {
		if !slices.Contains(names, m.Partition) {
			names = append(names, m.Partition)
		}
	}
	return names
}

var _ = suite.Requirement("pop.partitions.cap", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for i := range 4 {
		pushNumbersTo(ctx, t, queue, fmt.Sprintf("p%d", i), 2)
	}
	answer := pop(ctx, t, queue, "partitions=3")
	Expect(partitionsOf(answer.Messages)).To(HaveLen(3))
	Expect(answer.PartitionsClaimed).To(Equal(3))
	rest := pop(ctx, t, queue, "partitions=3")
	Expect(partitionsOf(rest.Messages)).To(HaveLen(1))
	Expect(rest.PartitionsClaimed).To(Equal(1))
})

var _ = suite.Requirement("pop.partitions.uncapped", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for i := range 6 {
		pushNumbersTo(ctx, t, queue, fmt.Sprintf("p%d", i), 2)
	}
	for _, none := range []string{"0", "-1"} {
		answer := pop(ctx, t, queue, "partitions="+none, "consumerGroup=g"+none)
		Expect(partitionsOf(answer.Messages)).To(HaveLen(6), "partitions=%s", none)
	}
	limited := pop(ctx, t, queue, "partitions=0", "batch=3", "consumerGroup=limited")
	Expect(limited.Messages).To(HaveLen(3))
})

var _ = suite.Requirement("pop.partitions.grouped", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var items []item
	for i := range 12 {
		items = append(items, item{queue: queue, partition: fmt.Sprintf("p%d", i%3), payload: fmt.Sprint(i)})
	}
	push(ctx, t, items...)
	messages := pop(ctx, t, queue, "partitions=0").Messages
	Expect(messages).To(HaveLen(12))
	for i := range 3 {
		group := messages[i*4 : i*4+4]
		Expect(group).To(HaveEach(HaveField("Partition", group[0].Partition)))
		var p int
		_, err := fmt.Sscanf(group[0].Partition, "p%d", &p)
		Expect(err).NotTo(HaveOccurred())
		Expect(dataOf(group)).To(Equal([]string{fmt.Sprint(p), fmt.Sprint(p + 3), fmt.Sprint(p + 6), fmt.Sprint(p + 9)}))
	}
})

var _ = suite.Requirement("pop.partitions.grouped", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for i := range 3 {
		pushNumbersTo(ctx, t, queue, fmt.Sprintf("p%d", i), 1)
	}
	answer := pop(ctx, t, queue, "partitions=0")
	Expect(answer.Messages).NotTo(BeEmpty())
	Expect(answer.Partition).To(Equal(answer.Messages[0].Partition))
	Expect(answer.PartitionID).To(Equal(answer.Messages[0].PartitionID))
}, suite.WireOnly)

var _ = suite.Requirement("pop.auto-ack.commits", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 5)
	Expect(pop(ctx, t, queue, "autoAck=true", "batch=2").data()).To(Equal([]string{"0", "1"}))
	Expect(pop(ctx, t, queue, "autoAck=true", "batch=2").data()).To(Equal([]string{"2", "3"}))
	Expect(pop(ctx, t, queue, "batch=2").data()).To(Equal([]string{"4"}))
})

var _ = suite.Requirement("pop.auto-ack.commits", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	answer := pop(ctx, t, queue, "autoAck=true")
	Expect(answer.LeaseID).To(BeEmpty())
	Expect(answer.Messages).To(HaveEach(HaveField("LeaseID", "")))
})

var _ = suite.Requirement("pop.messages.order", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var want []string
	for i := range 6 {
		push(ctx, t, item{queue: queue, payload: fmt.Sprint(2 * i)}, item{queue: queue, payload: fmt.Sprint(2*i + 1)})
		want = append(want, fmt.Sprint(2*i), fmt.Sprint(2*i+1))
	}
	var got []string
	for range 4 {
		got = append(got, pop(ctx, t, queue, "batch=3", "autoAck=true").data()...)
	}
	Expect(got).To(Equal(want))
})

var _ = suite.Requirement("pop.message.identity", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	result := pushOne(ctx, t, item{queue: queue, partition: "p", transactionID: "t", payload: "1"})
	m := pop(ctx, t, queue).Messages
	Expect(m).To(HaveLen(1))
	Expect(m[0].ID).To(Equal(result.MessageID))
	Expect(m[0].TransactionID).To(Equal("t"))
	Expect(m[0].Queue).To(Equal(queue))
	Expect(m[0].Partition).To(Equal("p"))
})

var _ = suite.Requirement("pop.message.call-fields", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 4)
	pushNumbersTo(ctx, t, queue, "b", 2)
	ids := map[string]string{}
	for range 2 {
		answer := pop(ctx, t, queue, "batch=5", "partitions=0", "consumerGroup="+t.Unique("g"))
		Expect(answer.Messages).To(HaveLen(5))
		Expect(answer.LeaseID).NotTo(BeEmpty())
		for _, m := range answer.Messages {
			Expect(m.LeaseID).To(Equal(answer.LeaseID))
			Expect(m.ConsumerGroup).To(Equal(answer.ConsumerGroup))
			if ids[m.Partition] == "" {
				ids[m.Partition] = m.PartitionID
			}
			Expect(m.PartitionID).To(Equal(ids[m.Partition]))
		}
	}
	Expect(ids["a"]).NotTo(Equal(ids["b"]))
})

var _ = suite.Requirement("pop.message.created-at", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	pushOne(ctx, t, item{queue: queue, payload: "3"})
	if t.Has(suite.CapabilityClock) {
		t.Advance(ctx, time.Hour)
	}
	pushOne(ctx, t, item{queue: queue, payload: "4"})
	messages := drain(ctx, t, queue)
	Expect(messages).To(HaveLen(5))
	var last time.Time
	for i, m := range messages {
		Expect(m.CreatedAt).To(MatchRegexp(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`))
		created, err := time.Parse(time.RFC3339Nano, m.CreatedAt)
		Expect(err).NotTo(HaveOccurred())
		Expect(created.Before(last)).To(BeFalse(), "createdAt of message %d goes back", i)
		last = created
	}
	if t.Has(suite.CapabilityClock) {
		now := clock(ctx, t).Now
		Expect(now.Sub(last)).To(BeNumerically("~", 0, 30*time.Second), "age of a message just pushed")
	}
})

var _ = suite.Requirement("pop.message.delivery-attempt", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	pushNumbers(ctx, t, queue, 1)
	attempt := func(group string) int {
		messages := pop(ctx, t, queue, "consumerGroup="+group, fmt.Sprintf("leaseSeconds=%d", seconds(lease))).Messages
		Expect(messages).To(HaveLen(1))
		return messages[0].DeliveryAttempt
	}
	Expect(attempt("a")).To(Equal(1))
	t.Elapse(ctx, lease+time.Second)
	second := pop(ctx, t, queue, "consumerGroup=a").Messages
	Expect(second).To(HaveLen(1))
	Expect(second[0].DeliveryAttempt).To(Equal(2), "after expiry")
	ack(ctx, t, of(second[0], "retry"))
	Expect(attempt("a")).To(Equal(3), "after a retry")
	Expect(attempt("b")).To(Equal(1), "of another group")
})

var _ = suite.Requirement("pop.delay.min-age", func(ctx context.Context, t *suite.Target) {
	queue, delay := t.Queue(), t.Window()
	configure(ctx, t, queue, map[string]any{"delayedProcessing": seconds(delay)})
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(pop(ctx, t, queue, "autoAck=true").Messages).To(BeEmpty(), "at once")
	t.Elapse(ctx, delay*2/3)
	pushOne(ctx, t, item{queue: queue, payload: "2"})
	Expect(pop(ctx, t, queue, "autoAck=true").Messages).To(BeEmpty(), "before the delay has passed")
	t.Elapse(ctx, delay*2/3)
	Expect(pop(ctx, t, queue, "autoAck=true").data()).To(Equal([]string{"1"}), "the older one only")
	t.Elapse(ctx, delay*2/3)
	Expect(pop(ctx, t, queue, "autoAck=true").data()).To(Equal([]string{"2"}))
})

var _ = suite.Requirement("pop.window-buffer.quiet", func(ctx context.Context, t *suite.Target) {
	queue, window := t.Queue(), t.Window()
	configure(ctx, t, queue, map[string]any{"windowBuffer": seconds(window)})
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(pop(ctx, t, queue, "autoAck=true").Messages).To(BeEmpty(), "at once")
	t.Elapse(ctx, window*2/3)
	pushOne(ctx, t, item{queue: queue, payload: "2"})
	t.Elapse(ctx, window*2/3)
	Expect(pop(ctx, t, queue, "autoAck=true").Messages).To(BeEmpty(), "the partition was not quiet for the window")
	t.Elapse(ctx, window*2/3)
	Expect(pop(ctx, t, queue, "autoAck=true").data()).To(Equal([]string{"1", "2"}))
})

var _ = suite.Requirement("pop.window-buffer.full", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"windowBuffer": 3600})
	pushNumbers(ctx, t, queue, 100)
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(100))
})

var _ = suite.Requirement("pop.min-wait.holds", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	hold := t.Patience()
	configure(ctx, t, queue, map[string]any{"minPopWaitTime": hold.Milliseconds()})
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	wait := later(func() popped {
		return pop(ctx, t, queue, "wait=true", "batch=3", fmt.Sprintf("timeout=%d", 4*hold.Milliseconds()))
	})
	settle(ctx)
	pushOne(ctx, t, item{queue: queue, payload: "2"})
	pushOne(ctx, t, item{queue: queue, payload: "3"}) // which fills the batch, so that the spec need not outlast the hold
	Expect(wait().data()).To(Equal([]string{"1", "2", "3"}))
})

var _ = suite.Requirement("pop.min-wait.holds", func(ctx context.Context, t *suite.Target) {
	queue, hold := t.Queue(), 300*time.Millisecond
	configure(ctx, t, queue, map[string]any{"minPopWaitTime": hold.Milliseconds()})
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	start := time.Now()
	timeout := 2 * t.Patience()
	answer := pop(ctx, t, queue, "wait=true", "batch=3", fmt.Sprintf("timeout=%d", timeout.Milliseconds()))
	Expect(answer.data()).To(Equal([]string{"1"}))
	Expect(time.Since(start)).To(And(BeNumerically(">=", hold*9/10), BeNumerically("<", t.Patience())), "how long a batch is held")
})

var _ = suite.Requirement("pop.min-wait.holds", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	hold := 2 * t.Patience()
	configure(ctx, t, queue, map[string]any{"minPopWaitTime": hold.Milliseconds()})
	pushNumbers(ctx, t, queue, 4)
	timeout := fmt.Sprintf("timeout=%d", 2*hold.Milliseconds())
	for name, params := range map[string][]string{
		"without wait": {"batch=10", timeout}, "with batch 1": {"wait=true", "batch=1", timeout},
		"with a full batch": {"wait=true", "batch=4", timeout},
	} {
		start := time.Now()
		Expect(pop(ctx, t, queue, append(params, "consumerGroup="+t.Unique("g"))...).Messages).NotTo(BeEmpty(), name)
		Expect(time.Since(start)).To(BeNumerically("<", hold), "duration of a pop "+name)
	}
})
