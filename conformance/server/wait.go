package server

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// waiting are the parameters of a pop that waits for up to d.
func waiting(d time.Duration, more ...string) []string {
	return append([]string{"wait=true", fmt.Sprintf("timeout=%d", d.Milliseconds())}, more...)
}

var _ = suite.Requirement("pop.wait.wakes", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	wait := later(func() popped { return pop(ctx, t, queue, waiting(2*t.Patience())...) })
	awaitQueue(ctx, t, queue)
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	start := time.Now()
	Expect(wait().data()).To(Equal([]string{"1"}))
	Expect(time.Since(start)).To(BeNumerically("<", t.Patience()/2), "time from the push to the answer of the parked pop")
})

var _ = suite.Requirement("pop.wait.one-message", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	timeout := t.Patience() / 2
	const parked = 4
	var waits []func() popped
	start := time.Now()
	for range parked {
		waits = append(waits, later(func() popped { return pop(ctx, t, queue, waiting(timeout)...) }))
	}
	awaitQueue(ctx, t, queue)
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	served := 0
	for _, wait := range waits {
		if answer := wait(); len(answer.Messages) > 0 {
			served++
		} else {
			Expect(answer.Status).To(Equal(204))
		}
	}
	Expect(served).To(Equal(1), "pops that got the message")
	Expect(time.Since(start)).To(BeNumerically(">=", timeout), "duration until the last pop was answered")
})

var _ = suite.Requirement("pop.wait.redelivery", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	held := pop(ctx, t, queue)
	Expect(held.Messages).To(HaveLen(1))
	timeout := 2 * t.Patience()
	start := time.Now()
	wait := later(func() popped { return pop(ctx, t, queue, waiting(timeout, "leaseSeconds=1")...) })
	settle(ctx)
	ack(ctx, t, of(held.Messages[0], "retry"))
	Expect(wait().data()).To(Equal([]string{"1"}), "after a negative ack")
	// That lease of one second is left to expire.
	Expect(pop(ctx, t, queue, waiting(timeout)...).data()).To(Equal([]string{"1"}), "after an expiry")
	Expect(time.Since(start)).To(BeNumerically("<", timeout), "duration of both pops")
})

var _ = suite.Requirement("pop.wait.off", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	timeout := 2 * t.Patience()
	for _, params := range [][]string{{}, {"wait=false"}} {
		start := time.Now()
		params = append(params, fmt.Sprintf("timeout=%d", timeout.Milliseconds()))
		Expect(pop(ctx, t, queue, params...).Messages).To(BeEmpty())
		Expect(time.Since(start)).To(BeNumerically("<", timeout-t.Patience()/4), "duration of a pop that does not wait")
	}
})

var _ = suite.Requirement("pop.wait.timeout", func(ctx context.Context, t *suite.Target) {
	timesOut(ctx, t, 300*time.Millisecond)
})

var _ = suite.Requirement("pop.wait.timeout", func(ctx context.Context, t *suite.Target) {
	timesOut(ctx, t, 0)
}, suite.WireOnly)

// timesOut asserts that a pop of an empty queue waits for the timeout and no longer.
func timesOut(ctx context.Context, t *suite.Target, timeout time.Duration) {
	start := time.Now()
	Expect(pop(ctx, t, t.Queue(), waiting(timeout)...).Status).To(Equal(204))
	Expect(time.Since(start)).To(And(BeNumerically(">=", timeout), BeNumerically("<", timeout+t.Patience())),
		"duration of a pop that waits for %s", timeout)
}

var _ = suite.Requirement("pop.discovery.wakes", func(ctx context.Context, t *suite.Target) {
	namespace := t.Unique("ns")
	for i, queue := range []string{namespace + ".a", namespace + ".b"} { // each created by its push
		wait := later(func() popped { return discover(ctx, t, waiting(2*t.Patience(), "namespace="+namespace)...) })
		settle(ctx)
		pushOne(ctx, t, item{queue: queue, payload: fmt.Sprint(i)})
		start := time.Now()
		answer := wait()
		Expect(time.Since(start)).To(BeNumerically("<", t.Patience()/2), "time from the push to the answer of the parked pop")
		Expect(answer.data()).To(Equal([]string{fmt.Sprint(i)}))
		Expect(answer.Messages[0].Queue).To(Equal(queue))
	}
})
