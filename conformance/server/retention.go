package server

import (
	"context"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

const day = 24 * time.Hour

// left is what a group that has read nothing yet finds in a queue, in order.
func left(ctx context.Context, t *suite.Target, queue string) []string {
	return dataOf(drain(ctx, t, queue, "consumerGroup=witness"))
}

// pushOneByOne pushes the payloads 0 to n-1 in calls of their own, so that an implementation which stores the messages of
// a call together may remove each of them alone.
func pushOneByOne(ctx context.Context, t *suite.Target, queue string, n int) {
	for i := range n {
		text := string(rune('0' + i))
		pushOne(ctx, t, item{queue: queue, transactionID: "t" + text, payload: text})
	}
}

// commit pops n messages for a group and commits them.
func commit(ctx context.Context, t *suite.Target, queue, group string, n int) {
	params := []string{"autoAck=true", "batch=" + string(rune('0'+n)), "consumerGroup=" + group}
	Expect(pop(ctx, t, queue, params...).Messages).To(HaveLen(n), "for %s", group)
}

// partitionOf is the id of a queue's only partition, "" when it has none.
func partitionOf(ctx context.Context, t *suite.Target, queue string) string {
	partitions := inspect(ctx, t, queue).Partitions
	if len(partitions) == 0 {
		return ""
	}
	return partitions[0].ID
}

var _ = suite.Requirement("configure.retention.segments", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 7200})
	pushOneByOne(ctx, t, queue, 2)
	commit(ctx, t, queue, "reader", 1)
	t.Advance(ctx, time.Hour)
	pushOne(ctx, t, item{queue: queue, payload: "2"})
	t.Advance(ctx, 59*time.Minute)
	pushOne(ctx, t, item{queue: queue, payload: "3"})
	Expect(dataOf(drain(ctx, t, queue, "consumerGroup=early"))).To(Equal([]string{"0", "1", "2", "3"}), "before their time")
	t.Advance(ctx, 2*time.Minute)
	Expect(left(ctx, t, queue)).To(Equal([]string{"2", "3"}), "what is younger")
})

var _ = suite.Requirement("configure.retention.segments", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 60})
	pushOneByOne(ctx, t, queue, 2)
	t.Advance(ctx, 2*time.Minute)
	Expect(left(ctx, t, queue)).To(BeEmpty(), "what nobody has read")
})

var _ = suite.Requirement("configure.retention.disabled", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionSeconds": 60, "completedRetentionSeconds": 60})
	pushOneByOne(ctx, t, queue, 2)
	commit(ctx, t, queue, "reader", 2)
	t.Advance(ctx, day)
	Expect(left(ctx, t, queue)).To(Equal([]string{"0", "1"}))
})

var _ = suite.Requirement("configure.retention.completed", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "completedRetentionSeconds": 3600})
	pushOneByOne(ctx, t, queue, 4)
	commit(ctx, t, queue, "fast", 3)
	commit(ctx, t, queue, "slow", 1)
	t.Advance(ctx, 59*time.Minute)
	Expect(dataOf(pop(ctx, t, queue, "consumerGroup=slow", "leaseSeconds=1").Messages)).To(Equal([]string{"1", "2", "3"}))
	t.Advance(ctx, 2*time.Minute)
	Expect(left(ctx, t, queue)).To(Equal([]string{"1", "2", "3"}), "behind the slowest group")
})

var _ = suite.Requirement("configure.retention.completed", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "completedRetentionSeconds": 3600})
	pushOneByOne(ctx, t, queue, 2)
	t.Advance(ctx, 2*time.Hour)
	Expect(left(ctx, t, queue)).To(Equal([]string{"0", "1"}), "of a queue without a group")
})

var _ = suite.Requirement("configure.retention.max-wait", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"maxWaitTimeSeconds": 3600})
	pushOneByOne(ctx, t, queue, 3)
	Expect(pop(ctx, t, queue, "batch=2", "leaseSeconds=100000").Messages).To(HaveLen(2))
	t.Advance(ctx, 59*time.Minute)
	pushOne(ctx, t, item{queue: queue, payload: "3"})
	t.Advance(ctx, 2*time.Minute)
	Expect(left(ctx, t, queue)).To(Equal([]string{"3"}))
})

var _ = suite.Requirement("configure.retention.resume", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 3600})
	pushOneByOne(ctx, t, queue, 5)
	commit(ctx, t, queue, modeGroup, 1)
	commit(ctx, t, queue, "other", 2)
	t.Advance(ctx, 2*time.Hour)
	pushOne(ctx, t, item{queue: queue, payload: "5"})
	pushOne(ctx, t, item{queue: queue, payload: "6"})
	for _, group := range []string{modeGroup, "other"} {
		first := pop(ctx, t, queue, "batch=1", "consumerGroup="+group)
		Expect(first.data()).To(Equal([]string{"5"}), "the first message for %s", group)
		Expect(ack(ctx, t, of(first.Messages[0], "completed")).Success).To(BeTrue())
		Expect(pop(ctx, t, queue, "autoAck=true", "consumerGroup="+group).data()).To(Equal([]string{"6"}), "the second for %s", group)
	}
})

var _ = suite.Requirement("configure.retention.counts", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 3600})
	pushOneByOne(ctx, t, queue, 3)
	commit(ctx, t, queue, modeGroup, 1)
	t.Advance(ctx, 2*time.Hour)
	pushOne(ctx, t, item{queue: queue, payload: "3"})
	totals := inspect(ctx, t, queue).Totals
	Expect(totals.Total).To(Equal(1), "total")
	Expect(totals.Pending).To(Equal(1), "pending")
	t.Advance(ctx, 2*time.Hour)
	totals = inspect(ctx, t, queue).Totals
	Expect(totals.Total).To(Equal(0), "total of an empty queue")
	Expect(totals.Pending).To(Equal(0), "pending of an empty queue")
})

var _ = suite.Requirement("configure.retention.lease", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"maxWaitTimeSeconds": 600})
	pushOneByOne(ctx, t, queue, 2)
	leased := pop(ctx, t, queue, "leaseSeconds=100000").Messages
	Expect(leased).To(HaveLen(2))
	t.Advance(ctx, 11*time.Minute)
	pushOne(ctx, t, item{queue: queue, payload: "2"})
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty(), "under the lease")
	result := ack(ctx, t, of(leased[1], "completed"))
	Expect(result.Success).To(BeTrue(), "an ack of what was deleted: %s", result.reason())
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"2"}), "after the ack")
})

var _ = suite.Requirement("configure.cleanup.dead-letter", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": seconds(day)})
	pushOneByOne(ctx, t, queue, 1)
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(1))
	Expect(ack(ctx, t, of(messages[0], "dlq")).DLQ).To(BeTrue())
	before := partitionOf(ctx, t, queue)
	t.Advance(ctx, 40*day)
	Expect(partitionOf(ctx, t, queue)).To(Equal(before))
})

var _ = suite.Requirement("push.creates.partition-kept", func(ctx context.Context, t *suite.Target) {
	empty, full := t.Queue(), t.Queue()
	configure(ctx, t, empty, map[string]any{"retentionEnabled": true, "retentionSeconds": seconds(day)})
	for _, queue := range []string{empty, full} {
		pushOneByOne(ctx, t, queue, 1)
	}
	emptyID, fullID := partitionOf(ctx, t, empty), partitionOf(ctx, t, full)
	t.Advance(ctx, 29*day)
	Expect(partitionOf(ctx, t, empty)).To(Equal(emptyID), "an empty partition before 30 days")
	t.Advance(ctx, 20*day)
	Expect(partitionOf(ctx, t, full)).To(Equal(fullID), "a partition with a message")
	Expect(left(ctx, t, full)).To(Equal([]string{"0"}))
})

var _ = suite.Requirement("push.creates.partition-again", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": seconds(day)})
	pushOneByOne(ctx, t, queue, 2)
	before := partitionOf(ctx, t, queue)
	commit(ctx, t, queue, "reader", 2)
	t.Advance(ctx, 31*day)
	Expect(pushOne(ctx, t, item{queue: queue, transactionID: "t0", payload: "8"}).Status).To(Equal("queued"))
	answer := pop(ctx, t, queue, "consumerGroup=reader")
	Expect(answer.data()).To(Equal([]string{"8"}), "for a group that had read what was there before")
	Expect(answer.PartitionID).NotTo(Equal(before))
})

var _ = suite.Requirement("push.dedup.unknown-original", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 60, "dedupWindowSeconds": 7200})
	pushOneByOne(ctx, t, queue, 2)
	t.Advance(ctx, time.Hour)
	for range 2 {
		again := pushOne(ctx, t, item{queue: queue, transactionID: "t0", payload: "0"})
		Expect(again.Status).To(Equal("duplicate"))
		Expect(again.MessageID).To(Equal(zeroID))
	}
	Expect(left(ctx, t, queue)).To(BeEmpty())
})

var _ = suite.Requirement("ack.dlq.rejected", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"maxWaitTimeSeconds": 600})
	pushOneByOne(ctx, t, queue, 1)
	messages := pop(ctx, t, queue, "leaseSeconds=100000").Messages
	Expect(messages).To(HaveLen(1))
	t.Advance(ctx, 11*time.Minute)
	result := ack(ctx, t, of(messages[0], "dlq"))
	Expect(result.Success).To(BeFalse())
	Expect(result.reason()).To(HavePrefix("dlq rejected"))
	Expect(result.DLQ).To(BeFalse())
})
