package server

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// leaseFor is the pop parameter for a lease of d.
func leaseFor(d time.Duration) string { return fmt.Sprintf("leaseSeconds=%d", seconds(d)) }

var _ = suite.Requirement("pop.lease.one-id", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for i := range 3 {
		pushNumbersTo(ctx, t, queue, fmt.Sprintf("p%d", i), 2)
	}
	first := pop(ctx, t, queue, "partitions=2")
	Expect(first.LeaseID).NotTo(BeEmpty())
	Expect(partitionsOf(first.Messages)).To(HaveLen(2))
	acks := make([]acknowledgment, 0, 4)
	for _, m := range first.Messages {
		a := of(m, "completed")
		a.LeaseID = first.LeaseID
		acks = append(acks, a)
	}
	second := pop(ctx, t, queue, "partitions=2")
	Expect(second.LeaseID).NotTo(Equal(first.LeaseID), "another call has another lease id")
	Expect(ackBatch(ctx, t, acks...)).To(HaveEach(HaveField("Success", true)), "acks of both partitions under the lease of the call")
})

var _ = suite.Requirement("pop.lease.exclusive", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 4)
	Expect(pop(ctx, t, queue, "batch=2").data()).To(Equal([]string{"0", "1"}))
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "a second pop")
	Expect(popPartition(ctx, t, queue, "Default", "autoAck=true").Messages).To(BeEmpty(), "a pop of the partition")
	pushOne(ctx, t, item{queue: queue, payload: "4"})
	Expect(pop(ctx, t, queue, "partitions=0").Messages).To(BeEmpty(), "a pop after another push")
})

var _ = suite.Requirement("pop.lease.skips", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	pushNumbersTo(ctx, t, queue, "b", 2)
	pushNumbersTo(ctx, t, queue, "c", 2)
	seen := map[string]bool{}
	for range 3 {
		answer := pop(ctx, t, queue, "batch=1")
		Expect(answer.Messages).To(HaveLen(1), "with %d partitions leased", len(seen))
		seen[answer.Messages[0].Partition] = true
	}
	Expect(seen).To(HaveLen(3), "partitions taken from")
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty())
})

var _ = suite.Requirement("pop.lease.expiry", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	pushNumbers(ctx, t, queue, 3)
	Expect(pop(ctx, t, queue, leaseFor(lease)).data()).To(Equal([]string{"0", "1", "2"}))
	t.Elapse(ctx, lease+time.Second)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", "1", "2"}))
})

var _ = suite.Requirement("pop.lease.expiry", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	pushNumbers(ctx, t, queue, 4)
	messages := pop(ctx, t, queue, leaseFor(lease)).Messages
	Expect(messages).To(HaveLen(4))
	Expect(ack(ctx, t, of(messages[1], "completed")).Success).To(BeTrue())
	t.Elapse(ctx, lease+time.Second)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"2", "3"}))
})

var _ = suite.Requirement("pop.lease.expiry-free", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, queue, 1)
	for range 3 {
		Expect(pop(ctx, t, queue, "leaseSeconds=1").Messages).To(HaveLen(1))
		t.Elapse(ctx, 1500*time.Millisecond)
	}
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(1))
	result := ack(ctx, t, of(messages[0], "failed"))
	Expect(result.DLQ).To(BeFalse(), "the first failed ack exhausts a budget of one")
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(1), "after the first failed ack")
})

var _ = suite.Requirement("pop.lease.seconds", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	configure(ctx, t, queue, map[string]any{"leaseTime": 100000})
	pushNumbers(ctx, t, queue, 1)
	Expect(pop(ctx, t, queue, leaseFor(lease)).Messages).To(HaveLen(1))
	t.Elapse(ctx, lease*2/3)
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "within the lease")
	t.Elapse(ctx, lease*2/3)
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(1), "after the lease")
})

// leasesFor asserts that a lease of the queue lasts for want, on both sides of its end.
func leasesFor(ctx context.Context, t *suite.Target, queue string, want time.Duration) {
	group := "consumerGroup=" + t.Unique("g")
	Expect(pop(ctx, t, queue, group).Messages).NotTo(BeEmpty())
	t.Advance(ctx, want-20*time.Second)
	Expect(pop(ctx, t, queue, group).Messages).To(BeEmpty(), "20 s before the end of a lease of %s", want)
	t.Advance(ctx, 21*time.Second)
	Expect(pop(ctx, t, queue, group).Messages).NotTo(BeEmpty(), "after a lease of %s", want)
}

var _ = suite.Requirement("pop.lease.queue-default", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	configure(ctx, t, queue, map[string]any{"leaseTime": seconds(lease)})
	pushNumbers(ctx, t, queue, 1)
	groups := map[string]string{"leaseSeconds=0": "zero", "leaseSeconds=-5": "negative"}
	for _, quiet := range []bool{false, true, false} {
		for param, group := range groups {
			Expect(len(pop(ctx, t, queue, param, "consumerGroup="+group).Messages) == 0).To(Equal(quiet), "whether a lease with %s holds", param)
		}
		t.Elapse(ctx, lease*2/3)
	}
}, suite.WireOnly)

var _ = suite.Requirement("pop.lease.queue-default", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	configure(ctx, t, queue, map[string]any{"leaseTime": seconds(lease)})
	pushNumbers(ctx, t, queue, 1)
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(1))
	t.Elapse(ctx, lease*2/3)
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "within leaseTime")
	t.Elapse(ctx, lease*2/3)
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(1), "after leaseTime")
})

var _ = suite.Requirement("pop.lease.queue-zero", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"leaseTime": 0})
	Expect(inspect(ctx, t, queue).Options["leaseTime"]).To(Equal(0.0))
	pushNumbers(ctx, t, queue, 1)
	leasesFor(ctx, t, queue, 60*time.Second)
})

var _ = suite.Requirement("pop.lease.implicit-60", func(ctx context.Context, t *suite.Target) {
	byPush, byPop := t.Queue(), t.Queue()
	pushNumbers(ctx, t, byPush, 1)
	leasesFor(ctx, t, byPush, 60*time.Second)
	pop(ctx, t, byPop)
	pushNumbers(ctx, t, byPop, 1)
	leasesFor(ctx, t, byPop, 60*time.Second)
})

var _ = suite.Requirement("pop.lease.configured-300", func(ctx context.Context, t *suite.Target) {
	created, updated := t.Queue(), t.Queue()
	configure(ctx, t, created, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, created, 1)
	leasesFor(ctx, t, created, 300*time.Second)
	pushNumbers(ctx, t, updated, 1)
	configure(ctx, t, updated, map[string]any{"retryLimit": 1})
	leasesFor(ctx, t, updated, 300*time.Second)
})

// renewal is the answer to a lease extension.
type renewal struct {
	LeaseID        string  `json:"leaseId"`
	Success        bool    `json:"success"`
	Renewed        int     `json:"renewed"`
	NewExpiresAt   *string `json:"newExpiresAt"`
	ExpiresAt      *string `json:"expiresAt"`
	LeaseExpiresAt *string `json:"lease_expires_at"`
}

// extend extends a lease; a d of 0 sends no seconds.
func extend(ctx context.Context, t *suite.Target, leaseID string, d time.Duration) renewal {
	body := "{}"
	if d > 0 {
		body = fmt.Sprintf(`{"seconds":%d}`, seconds(d))
	}
	return decodeRenewal(t.Call(ctx, "extendLease", suite.Args{Path: map[string]string{"leaseId": leaseID}, Body: []byte(body)}))
}

func decodeRenewal(outcome suite.Outcome) renewal {
	var r renewal
	if outcome.Status != 200 {
		suite.Failf(2, "the extension was answered %d %s", outcome.Status, outcome.Body)
	}
	decode(outcome.Body, &r)
	return r
}

var _ = suite.Requirement("extendLease.renews", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	pushNumbers(ctx, t, queue, 2)
	answer := pop(ctx, t, queue, leaseFor(lease))
	Expect(answer.Messages).To(HaveLen(2))
	renewed := extend(ctx, t, answer.LeaseID, 3*lease)
	Expect(renewed.Success).To(BeTrue())
	Expect(renewed.Renewed).To(Equal(1))
	t.Elapse(ctx, lease+time.Second)
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "after the old expiry")
	Expect(ack(ctx, t, of(answer.Messages[0], "completed")).Success).To(BeTrue(), "an ack under the extended lease")
	t.Elapse(ctx, 3*lease)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"1"}), "after the new expiry")
})

// expiresIn says how long a lease lasts after an extension, by the target's clock.
func expiresIn(ctx context.Context, t *suite.Target, r renewal) time.Duration {
	Expect(r.NewExpiresAt).NotTo(BeNil(), "newExpiresAt")
	expires, err := time.Parse(time.RFC3339Nano, *r.NewExpiresAt)
	Expect(err).NotTo(HaveOccurred())
	return expires.Sub(now(ctx, t))
}

// now is the target's time: what it stamps on a message that is pushed now.
func now(ctx context.Context, t *suite.Target) time.Time {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	messages := pop(ctx, t, queue, "autoAck=true").Messages
	Expect(messages).To(HaveLen(1))
	created, err := time.Parse(time.RFC3339Nano, messages[0].CreatedAt)
	Expect(err).NotTo(HaveOccurred())
	return created
}

var _ = suite.Requirement("extendLease.default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for _, body := range []string{"", "{}", "null", "no json", `{"seconds":"x"}`, `{"seconds":null}`, `{"seconds":1.5}`, `[]`, "\xff"} {
		group := t.Unique("g")
		answer := pop(ctx, t, queue, "leaseSeconds=20", "consumerGroup="+group)
		raw := post(ctx, t, "extendLease", body, answer.LeaseID)
		Expect(raw.Status).To(Equal(200), "extension with body %q", body)
		r := decodeRenewal(suite.Outcome{Status: raw.Status, Body: raw.Body})
		Expect(r.Renewed).To(Equal(1), "extension with body %q", body)
		Expect(expiresIn(ctx, t, r)).To(BeNumerically("~", 60*time.Second, 10*time.Second), "extension with body %q", body)
	}
}, suite.WireOnly)

var _ = suite.Requirement("extendLease.clamp", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for _, few := range []string{"0", "-1", "-100000"} {
		answer := pop(ctx, t, queue, "leaseSeconds=10", "consumerGroup="+t.Unique("g"))
		raw := post(ctx, t, "extendLease", `{"seconds":`+few+`}`, answer.LeaseID)
		r := decodeRenewal(suite.Outcome{Status: raw.Status, Body: raw.Body})
		Expect(r.Renewed).To(Equal(1), "seconds %s", few)
		Expect(expiresIn(ctx, t, r)).To(BeNumerically("<", 11*time.Second), "seconds %s", few)
	}
}, suite.WireOnly)

var _ = suite.Requirement("extendLease.never-shortens", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), 2*t.Window()
	pushNumbers(ctx, t, queue, 1)
	answer := pop(ctx, t, queue, leaseFor(lease))
	Expect(extend(ctx, t, answer.LeaseID, lease/4).Renewed).To(Equal(1))
	t.Elapse(ctx, lease/2)
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "within the first lease")
	t.Elapse(ctx, lease*2/3)
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(1), "after the first lease")
})

var _ = suite.Requirement("extendLease.all-partitions", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	for i := range 3 {
		pushNumbersTo(ctx, t, queue, fmt.Sprintf("p%d", i), 1)
	}
	answer := pop(ctx, t, queue, "partitions=0", leaseFor(lease))
	Expect(answer.Messages).To(HaveLen(3))
	Expect(extend(ctx, t, answer.LeaseID, 3*lease).Renewed).To(Equal(3))
	t.Elapse(ctx, lease+time.Second)
	Expect(pop(ctx, t, queue, "partitions=0").Messages).To(BeEmpty(), "after the old expiry")
})

var _ = suite.Requirement("extendLease.unknown", func(ctx context.Context, t *suite.Target) {
	queue, lease := t.Queue(), t.Window()
	pushNumbers(ctx, t, queue, 1)
	expired := pop(ctx, t, queue, leaseFor(lease)).LeaseID
	t.Elapse(ctx, lease+time.Second)
	for name, leaseID := range map[string]string{
		"unknown": "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60", "no UUID": "no-lease", "expired": expired,
	} {
		r := extend(ctx, t, leaseID, time.Minute)
		Expect(r.Success).To(BeFalse(), name)
		Expect(r.Renewed).To(BeZero(), name)
		Expect(r.NewExpiresAt).To(BeNil(), name)
		Expect(r.ExpiresAt).To(BeNil(), name)
		Expect(r.LeaseExpiresAt).To(BeNil(), name)
	}
})

var _ = suite.Requirement("extendLease.names", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	answer := pop(ctx, t, queue)
	raw := post(ctx, t, "extendLease", `{"seconds":500}`, answer.LeaseID)
	r := decodeRenewal(suite.Outcome{Status: raw.Status, Body: raw.Body})
	Expect(r.LeaseID).To(Equal(answer.LeaseID))
	Expect(r.NewExpiresAt).NotTo(BeNil())
	Expect(r.ExpiresAt).To(HaveValue(Equal(*r.NewExpiresAt)))
	Expect(r.LeaseExpiresAt).To(HaveValue(Equal(*r.NewExpiresAt)))
}, suite.WireOnly)
