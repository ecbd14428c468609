package server

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// maintenance is the answer of getMaintenance.
type maintenance struct {
	MaintenanceMode    bool `json:"maintenanceMode"`
	PopMaintenanceMode bool `json:"popMaintenanceMode"`
	BufferedMessages   int  `json:"bufferedMessages"`
	BufferHealthy      bool `json:"bufferHealthy"`
	BufferStats        struct {
		PendingCount int `json:"pendingCount"`
	} `json:"bufferStats"`
}

func readMaintenance(ctx context.Context, t *suite.Target) maintenance {
	outcome := t.Call(ctx, "getMaintenance", suite.Args{})
	if outcome.Status != 200 {
		suite.Failf(1, "getMaintenance was answered %d %s", outcome.Status, outcome.Body)
	}
	var m maintenance
	decode(outcome.Body, &m)
	return m
}

// toggle switches a mode and has it switched off when the spec ends.
func toggle(ctx context.Context, t *suite.Target, operation string, on bool) suite.Outcome {
	body := func(on bool) suite.Args { return suite.Args{Body: json.RawMessage(fmt.Sprintf(`{"enabled":%t}`, on))} }
	if on {
		t.Cleanup(func(ctx context.Context) { _, _ = t.Try(ctx, operation, body(false)) })
	}
	outcome := t.Call(ctx, operation, body(on))
	if outcome.Status != 200 {
		suite.Failf(2, "the declared capability maintenance does not work: %s was answered %d %s", operation, outcome.Status, outcome.Body)
	}
	return outcome
}

func maintain(ctx context.Context, t *suite.Target, on bool) suite.Outcome {
	return toggle(ctx, t, "setMaintenance", on)
}

func pausePops(ctx context.Context, t *suite.Target, on bool) {
	toggle(ctx, t, "setPopMaintenance", on)
}

// drained waits until the queue has yielded n messages, and a moment for more.
func drained(ctx context.Context, t *suite.Target, queue string, n int) []string {
	var got []string
	await(ctx, t, fmt.Sprintf("%d messages", n), func() bool {
		got = append(got, dataOf(drain(ctx, t, queue))...)
		return len(got) >= n
	})
	settle(ctx)
	return append(got, dataOf(drain(ctx, t, queue))...)
}

var _ = suite.Requirement("push.maintenance.buffered", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	maintain(ctx, t, true)
	results := push(ctx, t, three(queue, "a")...)
	Expect(statuses(results)).To(Equal([]string{"buffered", "buffered", "buffered"}))
	maintain(ctx, t, false)
	ids := map[string]bool{}
	await(ctx, t, "the messages", func() bool {
		for _, m := range drain(ctx, t, queue) {
			ids[m.ID] = true
		}
		return len(ids) >= 3
	})
	for _, r := range results {
		Expect(ids).To(HaveKey(r.MessageID))
	}
})

var _ = suite.Requirement("push.maintenance.spool-error", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	maintain(ctx, t, true)
	inject(ctx, t, faults{Spool: "error", Groups: []string{queue + "/p2"}})
	answer := post(ctx, t, "push", string(pushBody(three(queue, "a")...)))
	Expect(answer.Status).To(Equal(500))
	var results []pushed
	decode(answer.Body, &results)
	Expect(statuses(results)).To(Equal([]string{"buffered", "failed", "buffered"}))
	heal(ctx, t)
	Expect(statuses(push(ctx, t, three(queue, "b")...))).To(Equal([]string{"buffered", "buffered", "buffered"}), "afterwards")
}, suite.WireOnly)

var _ = suite.Requirement("getMaintenance.modes", func(ctx context.Context, t *suite.Target) {
	modes := func() [2]bool {
		m := readMaintenance(ctx, t)
		return [2]bool{m.MaintenanceMode, m.PopMaintenanceMode}
	}
	maintain(ctx, t, true)
	Expect(modes()).To(Equal([2]bool{true, false}))
	pausePops(ctx, t, true)
	Expect(modes()).To(Equal([2]bool{true, true}))
	maintain(ctx, t, false)
	Expect(modes()).To(Equal([2]bool{false, true}))
	pausePops(ctx, t, false)
	Expect(modes()).To(Equal([2]bool{false, false}))
})

var _ = suite.Requirement("getMaintenance.counts", func(ctx context.Context, t *suite.Target) {
	maintain(ctx, t, true)
	before := readMaintenance(ctx, t).BufferedMessages
	push(ctx, t, three(t.Queue(), "a")...)
	m := readMaintenance(ctx, t)
	Expect(m.BufferedMessages).To(Equal(before + 3))
	Expect(m.BufferStats.PendingCount).To(Equal(before + 3))
	Expect(m.BufferHealthy).To(BeTrue())
	maintain(ctx, t, false)
	await(ctx, t, "the spool to be drained", func() bool { return readMaintenance(ctx, t).BufferedMessages == 0 })
})

var _ = suite.Requirement("getMaintenance.unhealthy", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	maintain(ctx, t, true)
	inject(ctx, t, faults{Spool: "error"})
	Expect(post(ctx, t, "push", string(pushBody(item{queue: queue, payload: "1"}))).Status).To(Equal(500))
	Expect(readMaintenance(ctx, t).BufferHealthy).To(BeFalse())
	heal(ctx, t)
	Expect(pushOne(ctx, t, item{queue: queue, payload: "1"}).Status).To(Equal("buffered"))
	Expect(readMaintenance(ctx, t).BufferHealthy).To(BeTrue(), "afterwards")
}, suite.WireOnly)

var _ = suite.Requirement("setMaintenance.answer", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, on := range []bool{true, false} {
		var got struct {
			MaintenanceMode  *bool  `json:"maintenanceMode"`
			BufferedMessages *int   `json:"bufferedMessages"`
			BufferHealthy    *bool  `json:"bufferHealthy"`
			Message          string `json:"message"`
		}
		decode(maintain(ctx, t, on).Body, &got)
		Expect(got.MaintenanceMode).To(HaveValue(Equal(on)))
		Expect(got.BufferedMessages).NotTo(BeNil())
		Expect(got.BufferHealthy).To(HaveValue(BeTrue()))
		Expect(got.Message).NotTo(BeEmpty())
		want := map[bool]string{true: "buffered", false: "queued"}[on]
		Expect(pushOne(ctx, t, item{queue: queue, payload: "1"}).Status).To(Equal(want), "a push after the answer")
	}
})

// requiresSwitch asserts that a mode is not switched without a boolean.
func requiresSwitch(ctx context.Context, t *suite.Target, operation string, on func() bool) {
	for _, body := range []string{`{}`, `{"enabled":null}`, `{"enabled":"true"}`, `{"enabled":1}`, `{"Enabled":true}`} {
		answer := post(ctx, t, operation, body)
		Expect(answer.Status).To(Equal(400), "%s", body)
		Expect(answer.Body).To(MatchJSON(`{"error":"enabled (boolean) is required"}`), "%s", body)
	}
	rejectedAs(post(ctx, t, operation, `{"enabled":`), "bad body: ")
	Expect(on()).To(BeFalse())
}

var _ = suite.Requirement("setMaintenance.required", func(ctx context.Context, t *suite.Target) {
	maintain(ctx, t, true)
	maintain(ctx, t, false)
	requiresSwitch(ctx, t, "setMaintenance", func() bool { return readMaintenance(ctx, t).MaintenanceMode })
}, suite.WireOnly)

var _ = suite.Requirement("setPopMaintenance.required", func(ctx context.Context, t *suite.Target) {
	pausePops(ctx, t, true)
	pausePops(ctx, t, false)
	requiresSwitch(ctx, t, "setPopMaintenance", func() bool { return readMaintenance(ctx, t).PopMaintenanceMode })
}, suite.WireOnly)

var _ = suite.Requirement("setMaintenance.paused", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	maintain(ctx, t, true)
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	settle(ctx)
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"0"}))
	Expect(pop(ctx, t, queue, waiting(200*time.Millisecond)...).Messages).To(BeEmpty())
	maintain(ctx, t, false)
	Expect(drained(ctx, t, queue, 1)).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("setMaintenance.acks", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	maintain(ctx, t, true)
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(2))
	Expect(ack(ctx, t, of(messages[0], "completed")).Success).To(BeTrue())
	Expect(ack(ctx, t, of(messages[1], "retry")).Success).To(BeTrue())
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("setMaintenance.order", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var want []string
	send := func() {
		for range 5 {
			text := fmt.Sprint(len(want))
			Expect(pushOne(ctx, t, item{queue: queue, payload: text}).Status).To(BeElementOf("queued", "buffered"))
			want = append(want, text)
		}
	}
	send()
	for range 2 {
		maintain(ctx, t, true)
		send()
		maintain(ctx, t, false)
		send()
	}
	Expect(drained(ctx, t, queue, len(want))).To(Equal(want))
})

var _ = suite.Requirement("setMaintenance.deleted", func(ctx context.Context, t *suite.Target) {
	queue, other := t.Queue(), t.Queue()
	pushNumbers(ctx, t, queue, 1)
	maintain(ctx, t, true)
	push(ctx, t, item{queue: queue, payload: "1"}, item{queue: other, payload: "1"})
	Expect(remove(ctx, t, queue).Deleted).To(BeTrue())
	maintain(ctx, t, false)
	Expect(drained(ctx, t, other, 1)).To(Equal([]string{"1"}), "another queue")
	Expect(list(ctx, t, queue)).To(BeEmpty())
})

var _ = suite.Requirement("getPopMaintenance.mode", func(ctx context.Context, t *suite.Target) {
	for _, on := range []bool{true, false} {
		pausePops(ctx, t, on)
		outcome := t.Call(ctx, "getPopMaintenance", suite.Args{})
		Expect(outcome.Status).To(Equal(200))
		var got struct {
			PopMaintenanceMode *bool `json:"popMaintenanceMode"`
		}
		decode(outcome.Body, &got)
		Expect(got.PopMaintenanceMode).To(HaveValue(Equal(on)))
	}
})

var _ = suite.Requirement("pop.maintenance.empty", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pausePops(ctx, t, true)
	Expect(pop(ctx, t, queue).Status).To(Equal(204))
	Expect(pop(ctx, t, queue, "autoAck=true", "consumerGroup=other").Status).To(Equal(204))
	Expect(popPartition(ctx, t, queue, "Default").Status).To(Equal(204))
})

var _ = suite.Requirement("setPopMaintenance.parked", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	wait := later(func() popped { return pop(ctx, t, queue, waiting(4*t.Patience())...) })
	awaitQueue(ctx, t, queue)
	start := time.Now()
	pausePops(ctx, t, true)
	Expect(wait().Status).To(Equal(204))
	Expect(time.Since(start)).To(BeNumerically("<", t.Patience()), "time from the switch to the answer of the parked pop")
})

var _ = suite.Requirement("setPopMaintenance.ends", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pausePops(ctx, t, true)
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	pausePops(ctx, t, false)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", "1"}))
})

var _ = suite.Requirement("getSharedState.modes", func(ctx context.Context, t *suite.Target) {
	modes := func() (got struct {
		MaintenanceMode    bool `json:"maintenanceMode"`
		PopMaintenanceMode bool `json:"popMaintenanceMode"`
	},
	) {
		outcome := t.Call(ctx, "getSharedState", suite.Args{})
		Expect(outcome.Status).To(Equal(200))
		decode(outcome.Body, &got)
		return got
	}
	Expect(modes().MaintenanceMode).To(BeFalse())
	maintain(ctx, t, true)
	Expect(modes().MaintenanceMode).To(BeTrue())
	Expect(modes().PopMaintenanceMode).To(BeFalse())
	pausePops(ctx, t, true)
	Expect(modes().PopMaintenanceMode).To(BeTrue())
})

var _ = suite.Requirement("getBuffers.pending", func(ctx context.Context, t *suite.Target) {
	pending := func() int {
		outcome := t.Call(ctx, "getBuffers", suite.Args{})
		Expect(outcome.Status).To(Equal(200))
		var got struct {
			Pending int `json:"pending"`
		}
		decode(outcome.Body, &got)
		return got.Pending
	}
	maintain(ctx, t, true)
	before := pending()
	push(ctx, t, three(t.Queue(), "a")...)
	Expect(pending()).To(Equal(before + 3))
	maintain(ctx, t, false)
	await(ctx, t, "the spool to be drained", func() bool { return pending() == 0 })
})

var _ = suite.Requirement("health.spool", func(ctx context.Context, t *suite.Target) {
	maintain(ctx, t, true)
	pushOne(ctx, t, item{queue: t.Queue(), payload: "1"})
	answer := t.Raw(ctx, suite.Request{Operation: "health"})
	Expect(answer.Status).To(Equal(200))
	var got struct {
		MaintenanceMode bool `json:"maintenanceMode"`
		Spool           *struct {
			Messages      int      `json:"messages"`
			OldestSeconds *float64 `json:"oldestSeconds"`
		} `json:"spool"`
	}
	decode(answer.Body, &got)
	Expect(got.MaintenanceMode).To(BeTrue())
	Expect(got.Spool).NotTo(BeNil())
	Expect(got.Spool.Messages).To(BeNumerically(">=", 1))
	Expect(got.Spool.OldestSeconds).To(HaveValue(BeNumerically(">=", 0)))
}, suite.WireOnly)

var _ = suite.Requirement("notify.ok", func(ctx context.Context, t *suite.Target) {
	queue, nobody := t.Queue(), t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for _, body := range []string{
		`{"queue":` + quote(queue) + `}`, `{"queue":` + quote(queue) + `,"partition":"p"}`, `{"queue":` + quote(nobody) + `,"partition":null}`,
	} {
		answer := post(ctx, t, "notify", body)
		Expect(answer.Status).To(Equal(200), "%s", body)
		Expect(answer.Body).To(MatchJSON(`{"status":"ok"}`), "%s", body)
	}
	Expect(list(ctx, t, nobody)).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("notify.queue.required", func(ctx context.Context, t *suite.Target) {
	for _, body := range []string{`{}`, `{"queue":""}`, `{"queue":1}`, `{"queue":null}`, `{"partition":"p"}`} {
		rejected(post(ctx, t, "notify", body))
	}
}, suite.WireOnly)
