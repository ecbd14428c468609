package server

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// heldHook is a destination whose deliveries are under way until the spec lets them end. While one is, a target may not answer
// when its clock is advanced.
type heldHook struct {
	*suite.Hook
	passes chan struct{}
}

// held returns a destination whose answers wait for let. When the spec ends, all are given.
func held(t *suite.Target, status int) *heldHook {
	passes, ended := make(chan struct{}, 100), make(chan struct{})
	hook := t.HookFunc(func(int, suite.Delivery) suite.HookReply {
		select {
		case <-passes:
		case <-ended:
		}
		return suite.HookReply{Status: status}
	})
	t.Cleanup(func(context.Context) { close(ended) })
	return &heldHook{hook, passes}
}

// let answers n deliveries, which may be still to come.
func (h *heldHook) let(n int) {
	for range n {
		h.passes <- struct{}{}
	}
}

// bodies are those of deliveries in the order in which they came.
func bodies(deliveries []suite.Delivery) []string {
	texts := []string{}
	for _, delivery := range deliveries {
		texts = append(texts, string(delivery.Body))
	}
	return texts
}

// pairs makes headers of names and values that take turns.
func pairs(headers []string) http.Header {
	header := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		header.Add(headers[i], headers[i+1])
	}
	return header
}

// enqueue publishes a message into a delivery queue and returns its id; headers are in pairs.
func enqueue(ctx context.Context, t *suite.Target, queue, destination, body string, headers ...string) string {
	outcome := t.Call(ctx, "enqueue", suite.Args{
		Path: map[string]string{"queueName": queue, "destination": destination}, Header: pairs(headers), Body: []byte(body),
	})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the enqueue was answered %d %s", outcome.Status, outcome.Body)
	}
	var answer struct{ MessageID string }
	decode(outcome.Body, &answer)
	return answer.MessageID
}

// aDeliveryQueue is a delivery queue as it is read.
type aDeliveryQueue struct {
	Name        string
	CreatedAt   int64
	UpdatedAt   int64
	Parallelism int
	Lag         int
	Paused      *bool
}

// tryDeliveryQueue performs an operation on one delivery queue.
func tryDeliveryQueue(ctx context.Context, t *suite.Target, operation, queue string) suite.Outcome {
	return t.Call(ctx, operation, suite.Args{Path: map[string]string{"queueName": queue}})
}

// onDeliveryQueue is tryDeliveryQueue that must succeed.
func onDeliveryQueue(ctx context.Context, t *suite.Target, operation, queue string) {
	if outcome := tryDeliveryQueue(ctx, t, operation, queue); outcome.Status != http.StatusOK {
		suite.Failf(1, "%s was answered %d %s", operation, outcome.Status, outcome.Body)
	}
}

func readDeliveryQueue(ctx context.Context, t *suite.Target, queue string) aDeliveryQueue {
	outcome := tryDeliveryQueue(ctx, t, "getDeliveryQueue", queue)
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the delivery queue was answered %d %s", outcome.Status, outcome.Body)
	}
	var q aDeliveryQueue
	decode(outcome.Body, &q)
	return q
}

// putDeliveryQueue creates or changes a delivery queue by a body's members after queueName.
func putDeliveryQueue(ctx context.Context, t *suite.Target, queue, members string) {
	body := `{"queueName":` + quote(queue) + members + `}`
	outcome := t.Call(ctx, "upsertDeliveryQueue", suite.Args{Body: []byte(body)})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "%s was answered %d %s", body, outcome.Status, outcome.Body)
	}
}

// retriedAfterMinute are the headers of a message that is tried twice, the second time after a minute.
var retriedAfterMinute = []string{"Upstash-Retries", "1", "Upstash-Retry-Delay", "60000"}

// passOneMinute lets the target's clock pass the pause of retriedAfterMinute.
func passOneMinute(ctx context.Context, t *suite.Target) { t.Advance(ctx, 70*time.Second) }

var _ = suite.Requirement("enqueue.created", func(ctx context.Context, t *suite.Target) {
	queue, hook := t.Unique("deliveries"), t.Hook(200)
	Expect(tryDeliveryQueue(ctx, t, "getDeliveryQueue", queue).Status).To(Equal(404), "before the first message")
	enqueue(ctx, t, queue, hook.URL, "x")
	q := readDeliveryQueue(ctx, t, queue)
	Expect(q.Name).To(Equal(queue))
	Expect(q.Parallelism).To(Equal(1))
	Expect(q.Paused).To(HaveValue(BeFalse()))
	Expect(bodies(hook.Await(ctx, 1))).To(Equal([]string{"x"}))
})

var _ = suite.Requirement("enqueue.fifo", func(ctx context.Context, t *suite.Target) {
	queue, failing, hook := t.Unique("deliveries"), t.Hook(500), t.Hook(200)
	enqueue(ctx, t, queue, failing.URL, "0", "Upstash-Retries", "2", "Upstash-Retry-Delay", "60000")
	for i := 1; i <= 4; i++ {
		enqueue(ctx, t, queue, hook.URL, fmt.Sprint(i))
	}
	settled(ctx, t, failing)
	for attempts := 1; attempts <= 2; attempts++ {
		Expect(failing.Deliveries()).To(HaveLen(attempts))
		Expect(hook.Deliveries()).To(BeEmpty(), "after %d of 3 attempts of the message before", attempts)
		passOneMinute(ctx, t)
	}
	Expect(failing.Deliveries()).To(HaveLen(3))
	Expect(bodies(hook.Deliveries())).To(Equal([]string{"1", "2", "3", "4"}), "after the message before has failed")
})

var _ = suite.Requirement("enqueue.fifo", func(ctx context.Context, t *suite.Target) {
	queue, slow, hook := t.Unique("deliveries"), held(t, 200), t.Hook(200)
	enqueue(ctx, t, queue, slow.URL, "1")
	enqueue(ctx, t, queue, hook.URL, "2")
	slow.Await(ctx, 1)
	other := t.Hook(200)
	enqueue(ctx, t, t.Unique("deliveries"), other.URL, "x")
	other.Await(ctx, 1)
	Expect(hook.Deliveries()).To(BeEmpty(), "while the message before is being delivered")
	slow.let(1)
	hook.Await(ctx, 1)
})

var _ = suite.Requirement("enqueue.callbacks", func(ctx context.Context, t *suite.Target) {
	queue, first, told, second := t.Unique("deliveries"), t.Hook(200), t.Hook(500), t.Hook(200)
	enqueue(ctx, t, queue, first.URL, "1", "Upstash-Callback", told.URL, "Upstash-Retries", "1")
	enqueue(ctx, t, queue, second.URL, "2")
	settled(ctx, t, told)
	Expect(first.Deliveries()).To(HaveLen(1))
	t.Advance(ctx, pauseBefore(1)/3)
	Expect(told.Deliveries()).To(HaveLen(1))
	Expect(second.Deliveries()).To(BeEmpty(), "while the callback of the message before waits for its retry")
	t.Advance(ctx, pauseBefore(1))
	Expect(told.Deliveries()).To(HaveLen(2))
	Expect(second.Deliveries()).To(HaveLen(1), "after the callback has failed")
})

var _ = suite.Requirement("enqueue.delayed", func(ctx context.Context, t *suite.Target) {
	queue, hook := t.Unique("deliveries"), t.Hook(200)
	enqueue(ctx, t, queue, hook.URL, "1", "Upstash-Delay", "2h")
	enqueue(ctx, t, queue, hook.URL, "2", "Upstash-Delay", "1h")
	enqueue(ctx, t, queue, hook.URL, "3")
	settled(ctx, t, hook)
	t.Advance(ctx, 59*time.Minute)
	Expect(bodies(hook.Deliveries())).To(Equal([]string{"3"}), "before the delays are over")
	t.Advance(ctx, 2*time.Minute)
	Expect(bodies(hook.Deliveries())).To(Equal([]string{"3", "2"}), "when the shorter delay is over")
	t.Advance(ctx, time.Hour)
	Expect(bodies(hook.Deliveries())).To(Equal([]string{"3", "2", "1"}), "when both delays are over")
})

var _ = suite.Requirement("enqueue.cancelled", func(ctx context.Context, t *suite.Target) {
	queue, failing, hook := t.Unique("deliveries"), t.Hook(500), t.Hook(200)
	first := enqueue(ctx, t, queue, failing.URL, "1", "Upstash-Retries", "1", "Upstash-Retry-Delay", "36000000")
	enqueue(ctx, t, queue, hook.URL, "2")
	settled(ctx, t, failing)
	Expect(hook.Deliveries()).To(BeEmpty())
	outcome := t.Call(ctx, "cancelPublished", suite.Args{Path: map[string]string{"messageId": first}})
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	hook.Await(ctx, 1)
	Expect(failing.Deliveries()).To(HaveLen(1))
})

// waitsByHeader asserts that what publish sends with a header is held up by a message of its delivery queue.
func waitsByHeader(ctx context.Context, t *suite.Target, publish func(destination, name, queue string)) {
	queue, slow, hook := t.Unique("deliveries"), t.Hook(500), t.Hook(200)
	enqueue(ctx, t, queue, slow.URL, "1", retriedAfterMinute...)
	settled(ctx, t, slow)
	publish(hook.URL, "Upstash-Queue-Name", queue)
	t.Advance(ctx, time.Millisecond)
	Expect(hook.Deliveries()).To(BeEmpty())
	Expect(readDeliveryQueue(ctx, t, queue).Lag).To(Equal(2))
	passOneMinute(ctx, t)
	Expect(hook.Deliveries()).To(HaveLen(1))
}

var _ = suite.Requirement("enqueue.header", func(ctx context.Context, t *suite.Target) {
	waitsByHeader(ctx, t, func(destination, name, queue string) {
		outcome := t.Call(ctx, "publish", suite.Args{
			Path: map[string]string{"destination": destination}, Header: pairs([]string{name, queue}), Body: []byte("x"),
		})
		Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	})
})

var _ = suite.Requirement("enqueue.header", func(ctx context.Context, t *suite.Target) {
	waitsByHeader(ctx, t, func(destination, name, queue string) { publishAccepted(ctx, t, destination, "x", name, queue) })
}, suite.WireOnly)

var _ = suite.Requirement("listDeliveryQueues.listed", func(ctx context.Context, t *suite.Target) {
	want := map[string]int{}
	for parallelism := range 3 {
		queue := t.Unique("deliveries")
		putDeliveryQueue(ctx, t, queue, fmt.Sprintf(`,"parallelism":%d`, parallelism+1))
		want[queue] = parallelism + 1
	}
	enqueued := t.Unique("deliveries")
	enqueue(ctx, t, enqueued, t.Hook(200).URL, "x")
	want[enqueued] = 1
	outcome := t.Call(ctx, "listDeliveryQueues", suite.Args{})
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	var list []aDeliveryQueue
	decode(outcome.Body, &list)
	got := map[string]int{}
	for _, q := range list {
		Expect(got).NotTo(HaveKey(q.Name), "listed twice")
		got[q.Name] = q.Parallelism
	}
	for queue, parallelism := range want {
		Expect(got).To(HaveKeyWithValue(queue, parallelism))
	}
})

var _ = suite.Requirement("upsertDeliveryQueue.parallelism", func(ctx context.Context, t *suite.Target) {
	queue, hook := t.Unique("deliveries"), t.Hook(500)
	putDeliveryQueue(ctx, t, queue, `,"parallelism":2`)
	for i := range 4 {
		enqueue(ctx, t, queue, hook.URL, fmt.Sprint(i), retriedAfterMinute...)
	}
	hook.Await(ctx, 2)
	t.Advance(ctx, time.Millisecond)
	Expect(bodies(hook.Deliveries())).To(ConsistOf("0", "1"), "while two wait for their retries")
	passOneMinute(ctx, t)
	Expect(bodies(hook.Deliveries())).To(ConsistOf("0", "1", "0", "1", "2", "3"), "after the first two have failed")
	passOneMinute(ctx, t)
	Expect(hook.Deliveries()).To(HaveLen(8))
})

var _ = suite.Requirement("upsertDeliveryQueue.changed", func(ctx context.Context, t *suite.Target) {
	queue := t.Unique("deliveries")
	shows := func(parallelism int, paused bool) {
		q := readDeliveryQueue(ctx, t, queue)
		Expect(q.Parallelism).To(Equal(parallelism))
		Expect(q.Paused).To(HaveValue(Equal(paused)))
	}
	putDeliveryQueue(ctx, t, queue, "")
	shows(1, false)
	putDeliveryQueue(ctx, t, queue, `,"parallelism":3`)
	shows(3, false)
	putDeliveryQueue(ctx, t, queue, `,"paused":true`)
	shows(3, true)
	putDeliveryQueue(ctx, t, queue, `,"parallelism":1,"paused":false`)
	shows(1, false)

	hook := held(t, 200)
	enqueue(ctx, t, queue, hook.URL, "1")
	enqueue(ctx, t, queue, hook.URL, "2")
	hook.Await(ctx, 1)
	putDeliveryQueue(ctx, t, queue, `,"parallelism":2`)
	hook.Await(ctx, 2)
})

var _ = suite.Requirement("upsertDeliveryQueue.rule", func(ctx context.Context, t *suite.Target) {
	queue, hook := t.Unique("deliveries"), t.Hook(200)
	for _, members := range []string{`"parallelism":0`, `"parallelism":-1`, `"parallelism":1.5`, `"parallelism":"2"`, `"paused":"no"`} {
		rejected(post(ctx, t, "upsertDeliveryQueue", `{"queueName":`+quote(queue)+`,`+members+`}`))
	}
	Expect(tryDeliveryQueue(ctx, t, "getDeliveryQueue", queue).Status).To(Equal(404))
	rejected(post(ctx, t, "upsertDeliveryQueue", `{"queueName":"","parallelism":1}`))
	rejected(post(ctx, t, "upsertDeliveryQueue", `{"parallelism":1}`))
	for _, character := range []string{" ", "/", "é", ":", ","} {
		name := queue + character
		rejected(post(ctx, t, "upsertDeliveryQueue", `{"queueName":`+quote(name)+`}`))
		rejected(t.Raw(ctx, suite.Request{
			Operation: "enqueue", Target: "/v2/enqueue/" + url.PathEscape(name) + "/" + hook.URL, Body: strings.NewReader("x"),
		}))
	}
	putDeliveryQueue(ctx, t, queue+"-A_0.b", `,"parallelism":2147483647`)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(hook.Deliveries()).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("getDeliveryQueue.read", func(ctx context.Context, t *suite.Target) {
	queue := t.Unique("deliveries")
	missing := tryDeliveryQueue(ctx, t, "getDeliveryQueue", queue)
	Expect(missing.Status).To(Equal(404), "%s", missing.Body)
	Expect(string(missing.Body)).To(ContainSubstring("queue %s not found", queue))

	putDeliveryQueue(ctx, t, queue, `,"parallelism":2`)
	lag := func() int { return readDeliveryQueue(ctx, t, queue).Lag }
	Expect(lag()).To(Equal(0))
	hook := held(t, 200)
	for i := range 3 {
		enqueue(ctx, t, queue, hook.URL, fmt.Sprint(i))
	}
	hook.Await(ctx, 2)
	q := readDeliveryQueue(ctx, t, queue)
	Expect(q.Lag).To(Equal(3), "with two under way and one that waits")
	Expect(q.Parallelism).To(Equal(2))
	Expect(q.Paused).To(HaveValue(BeFalse()))
	Expect(q.UpdatedAt).To(BeNumerically(">=", q.CreatedAt))
	hook.let(1)
	hook.Await(ctx, 3)
	Eventually(lag).WithTimeout(t.Patience()).Should(Equal(2), "after the first")
	hook.let(2)
	Eventually(lag).WithTimeout(t.Patience()).Should(Equal(0), "after all")
	onDeliveryQueue(ctx, t, "pauseDeliveryQueue", queue)
	Expect(readDeliveryQueue(ctx, t, queue).Paused).To(HaveValue(BeTrue()))
})

var _ = suite.Requirement("deleteDeliveryQueue.deleted", func(ctx context.Context, t *suite.Target) {
	queue, hook := t.Unique("deliveries"), t.Hook(200)
	putDeliveryQueue(ctx, t, queue, `,"paused":true`)
	enqueue(ctx, t, queue, hook.URL, "1")
	enqueue(ctx, t, queue, hook.URL, "2")
	onDeliveryQueue(ctx, t, "deleteDeliveryQueue", queue)
	Expect(tryDeliveryQueue(ctx, t, "getDeliveryQueue", queue).Status).To(Equal(404))
	onDeliveryQueue(ctx, t, "deleteDeliveryQueue", queue)
	enqueue(ctx, t, queue, hook.URL, "3")
	hook.Await(ctx, 1)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(bodies(hook.Deliveries())).To(Equal([]string{"3"}), "by a new queue of the name")
})

var _ = suite.Requirement("pauseDeliveryQueue.done", func(ctx context.Context, t *suite.Target) {
	queue, slow, hook := t.Unique("deliveries"), held(t, 500), t.Hook(200)
	enqueue(ctx, t, queue, slow.URL, "1", "Upstash-Retries", "1", "Upstash-Retry-Delay", "1")
	slow.Await(ctx, 1)
	onDeliveryQueue(ctx, t, "pauseDeliveryQueue", queue)
	enqueue(ctx, t, queue, hook.URL, "2")
	slow.let(2)
	Eventually(func() int {
		t.Elapse(ctx, 10*time.Millisecond)
		return len(slow.Deliveries())
	}).WithTimeout(t.Patience()).Should(Equal(2), "attempts of the one under way")
	Eventually(func() int { return readDeliveryQueue(ctx, t, queue).Lag }).WithTimeout(t.Patience()).
		Should(Equal(1), "when the one under way has failed")
	onDeliveryQueue(ctx, t, "pauseDeliveryQueue", queue)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(hook.Deliveries()).To(BeEmpty())
	Expect(readDeliveryQueue(ctx, t, queue).Lag).To(Equal(1))
	Expect(tryDeliveryQueue(ctx, t, "pauseDeliveryQueue", t.Unique("deliveries")).Status).To(Equal(404), "one that is not there")
})

var _ = suite.Requirement("resumeDeliveryQueue.done", func(ctx context.Context, t *suite.Target) {
	queue, hook := t.Unique("deliveries"), t.Hook(200)
	putDeliveryQueue(ctx, t, queue, `,"paused":true`)
	for i := range 3 {
		enqueue(ctx, t, queue, hook.URL, fmt.Sprint(i))
	}
	onDeliveryQueue(ctx, t, "resumeDeliveryQueue", queue)
	hook.Await(ctx, 3)
	onDeliveryQueue(ctx, t, "resumeDeliveryQueue", queue)
	enqueue(ctx, t, queue, hook.URL, "3")
	Expect(bodies(hook.Await(ctx, 4))).To(Equal([]string{"0", "1", "2", "3"}))
	Expect(tryDeliveryQueue(ctx, t, "resumeDeliveryQueue", t.Unique("deliveries")).Status).To(Equal(404), "one that is not there")
})
