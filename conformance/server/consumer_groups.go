package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// groupLine is one element of the list of consumer groups.
type groupLine struct {
	Name                  string    `json:"name"`
	Topics                []string  `json:"topics"`
	QueueName             string    `json:"queueName"`
	Members               int       `json:"members"`
	PartitionCursors      int       `json:"partitionCursors"`
	PartitionsWithLag     int       `json:"partitionsWithLag"`
	TotalLag              int       `json:"totalLag"`
	MaxTimeLag            int       `json:"maxTimeLag"`
	State                 string    `json:"state"`
	SubscriptionMode      string    `json:"subscriptionMode"`
	SubscriptionTimestamp string    `json:"subscriptionTimestamp"`
	SubscriptionCreatedAt time.Time `json:"subscriptionCreatedAt"`
}

// succeeded fails the spec that called the caller unless the call was answered 200, and reads the answer.
func succeeded(outcome suite.Outcome, into any) {
	if outcome.Status != 200 {
		suite.Failf(2, "answered %d %.200s", outcome.Status, outcome.Body)
	}
	decode(outcome.Body, into)
}

// groupsOf lists the groups of one queue.
func groupsOf(ctx context.Context, t *suite.Target, queue string) map[string]groupLine {
	var lines []groupLine
	succeeded(t.Call(ctx, "listConsumerGroups", suite.Args{}), &lines)
	found := map[string]groupLine{}
	for _, line := range lines {
		if line.QueueName == queue {
			found[line.Name] = line
		}
	}
	return found
}

// laggingLine is one element of the list of lagging partitions.
type laggingLine struct {
	ConsumerGroup string  `json:"consumer_group"`
	QueueName     string  `json:"queue_name"`
	PartitionName string  `json:"partition_name"`
	PartitionID   string  `json:"partition_id"`
	WorkerID      string  `json:"worker_id"`
	OffsetLag     int     `json:"offset_lag"`
	TimeLag       int     `json:"time_lag_seconds"`
	LagHours      float64 `json:"lag_hours"`
	Oldest        string  `json:"oldest_unconsumed_at"`
	LastConsumed  string  `json:"last_consumed_at"`
}

// laggingOf lists the lagging partitions of one queue.
func laggingOf(ctx context.Context, t *suite.Target, queue string, params ...string) []laggingLine {
	var lines []laggingLine
	succeeded(t.Call(ctx, "laggingPartitions", suite.Args{Query: query(params)}), &lines)
	return slices.DeleteFunc(lines, func(line laggingLine) bool { return line.QueueName != queue })
}

// groupPlace is where a group stands in one partition.
type groupPlace struct {
	Partition      string `json:"partition"`
	WorkerID       string `json:"workerId"`
	LastConsumedAt string `json:"lastConsumedAt"`
	TotalConsumed  int    `json:"totalConsumed"`
	OffsetLag      int    `json:"offsetLag"`
	TimeLagSeconds int    `json:"timeLagSeconds"`
	LeaseActive    bool   `json:"leaseActive"`
}

// groupPlaces describes a group by queue and partition.
func groupPlaces(ctx context.Context, t *suite.Target, group string) map[string]map[string]groupPlace {
	var queues map[string]struct {
		Partitions []groupPlace `json:"partitions"`
	}
	succeeded(t.Call(ctx, "getConsumerGroup", suite.Args{Path: map[string]string{"group": group}}), &queues)
	found := map[string]map[string]groupPlace{}
	for queue, detail := range queues {
		found[queue] = map[string]groupPlace{}
		for _, place := range detail.Partitions {
			found[queue][place.Partition] = place
		}
	}
	return found
}

// inGroup is the pop parameter of a group.
func inGroup(group string) string { return "consumerGroup=" + group }

var _ = suite.Requirement("listConsumerGroups.all", func(ctx context.Context, t *suite.Target) {
	queue, other, group := t.Queue(), t.Queue(), t.Unique("group")
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue)
	pop(ctx, t, queue, inGroup(group))
	pop(ctx, t, other, inGroup(group))
	groups := groupsOf(ctx, t, queue)
	Expect(groups).To(HaveLen(2))
	Expect(groups).To(HaveKey(modeGroup))
	Expect(groups).To(HaveKey(group))
	Expect(groups[group].Topics).To(Equal([]string{queue}))
	Expect(groupsOf(ctx, t, other)).To(And(HaveLen(1), HaveKey(group)), "the groups of an empty queue")
})

var _ = suite.Requirement("listConsumerGroups.lag", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 2)
	type lag struct{ members, cursors, partitions, total int }
	read := func() lag {
		line := groupsOf(ctx, t, queue)[group]
		return lag{line.Members, line.PartitionCursors, line.PartitionsWithLag, line.TotalLag}
	}
	popPartition(ctx, t, queue, "a", inGroup(group), "batch=1", "autoAck=true")
	Expect(read()).To(Equal(lag{0, 1, 2, 4}), "after the first pop")
	messages := popPartition(ctx, t, queue, "a", inGroup(group)).Messages
	Expect(messages).To(HaveLen(2))
	Expect(read()).To(Equal(lag{1, 1, 2, 4}), "under a lease")
	ack(ctx, t, of(messages[1], "completed"))
	Expect(read()).To(Equal(lag{0, 1, 1, 2}), "after the ack")
	drain(ctx, t, queue, inGroup(group))
	Expect(read()).To(Equal(lag{0, 2, 0, 0}), "at the end")
})

var _ = suite.Requirement("listConsumerGroups.time-lag", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	lag := func() int { return groupsOf(ctx, t, queue)[group].MaxTimeLag }
	pop(ctx, t, queue, inGroup(group))
	Expect(lag()).To(Equal(0), "without messages")
	pushNumbers(ctx, t, queue, 1)
	t.Advance(ctx, 200*time.Second)
	pushOne(ctx, t, item{queue: queue, payload: `"later"`})
	Expect(lag()).To(BeNumerically("~", 200+15, 15), "with an old and a new message")
	pop(ctx, t, queue, inGroup(group), "autoAck=true", "batch=1")
	Expect(lag()).To(BeNumerically("<", 100), "with a new message")
	pop(ctx, t, queue, inGroup(group), "autoAck=true", "batch=1")
	Expect(lag()).To(Equal(0), "without messages again")
})

var _ = suite.Requirement("listConsumerGroups.state", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	state := func() string { return groupsOf(ctx, t, queue)[group].State }
	pushNumbers(ctx, t, queue, 2)
	pop(ctx, t, queue, inGroup(group), "autoAck=true", "batch=1")
	t.Advance(ctx, 240*time.Second)
	Expect(state()).To(Equal("Stable"), "after 240 seconds")
	t.Advance(ctx, 61*time.Second)
	Expect(state()).To(Equal("Lagging"), "after 301 seconds")
	pop(ctx, t, queue, inGroup(group), "autoAck=true")
	Expect(state()).To(Equal("Stable"), "after it caught up")
	t.Advance(ctx, 24*time.Hour)
	Expect(state()).To(Equal("Stable"), "a day later, with nothing to do")
})

var _ = suite.Requirement("listConsumerGroups.dead", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	pop(ctx, t, queue, inGroup("gone"), "autoAck=true", "batch=1")
	pop(ctx, t, queue, inGroup("slow"), "autoAck=true", "batch=1")
	t.Advance(ctx, 50*time.Minute)
	pop(ctx, t, queue, inGroup("slow"), "autoAck=true", "batch=1")
	t.Advance(ctx, 11*time.Minute)
	groups := groupsOf(ctx, t, queue)
	Expect(groups["gone"].State).To(Equal("Dead"))
	Expect(groups["slow"].State).To(Equal("Lagging"))
})

var _ = suite.Requirement("listConsumerGroups.subscription", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, inGroup("all"))
	pop(ctx, t, queue, inGroup("new"), "subscriptionMode=new")
	pop(ctx, t, queue, inGroup("from"), "subscriptionFrom=2020-02-03T04:05:06.789Z")
	groups := groupsOf(ctx, t, queue)
	Expect(groups["all"].SubscriptionMode).To(Equal("all"))
	Expect(groups["all"].SubscriptionTimestamp).To(BeEmpty())
	Expect(groups["new"].SubscriptionMode).To(Equal("new"))
	from, err := time.Parse(time.RFC3339Nano, groups["new"].SubscriptionTimestamp)
	Expect(err).NotTo(HaveOccurred())
	Expect(from).To(BeTemporally("~", groups["new"].SubscriptionCreatedAt, 10*time.Second))
	Expect(groups["from"].SubscriptionMode).To(Equal("new"))
	Expect(groups["from"].SubscriptionTimestamp).To(Equal("2020-02-03T04:05:06.789000Z"))
})

var _ = suite.Requirement("laggingPartitions.shape", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	t.Advance(ctx, 90*time.Minute)
	popPartition(ctx, t, queue, "a", inGroup("g"), "batch=1", "autoAck=true")
	held := popPartition(ctx, t, queue, "a", inGroup("g"), "batch=1")
	Expect(held.Messages).To(HaveLen(1))
	lines := laggingOf(ctx, t, queue)
	Expect(lines).To(HaveLen(1))
	line := lines[0]
	Expect(line.ConsumerGroup).To(Equal("g"))
	Expect(line.PartitionName).To(Equal("a"))
	Expect(line.PartitionID).To(Equal(held.Messages[0].PartitionID))
	Expect(line.WorkerID).To(Equal(held.LeaseID))
	Expect(line.OffsetLag).To(Equal(2))
	Expect(line.TimeLag).To(BeNumerically("~", 5400+15, 15))
	Expect(line.Oldest).To(Equal(held.Messages[0].CreatedAt))
	Expect(line.LastConsumed).NotTo(BeEmpty())
})

var _ = suite.Requirement("laggingPartitions.shape", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, "subscriptionMode=all", inGroup("g"), "leaseSeconds=1")
	t.Advance(ctx, 90*time.Minute)
	answer := t.Raw(ctx, suite.Request{Operation: "laggingPartitions", Target: "/api/v1/consumer-groups/lagging"})
	Expect(answer.Status).To(Equal(200))
	var lines []map[string]any
	decode(answer.Body, &lines)
	lines = slices.DeleteFunc(lines, func(line map[string]any) bool { return line["queue_name"] != queue })
	Expect(lines).To(HaveLen(1))
	Expect(lines[0]["lag_hours"]).To(BeNumerically("~", 1.5, 0.02))
	Expect(lines[0]).To(HaveKeyWithValue("worker_id", BeNil()), "after the lease")
}, suite.WireOnly)

var _ = suite.Requirement("laggingPartitions.threshold", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pop(ctx, t, queue, inGroup("g"))
	pushNumbersTo(ctx, t, queue, "old", 1)
	t.Advance(ctx, 2*time.Hour)
	pushNumbersTo(ctx, t, queue, "new", 1)
	t.Advance(ctx, 100*time.Second)
	names := func(least int) (found []string) {
		for _, line := range laggingOf(ctx, t, queue, fmt.Sprintf("minLagSeconds=%d", least)) {
			found = append(found, line.PartitionName)
		}
		return found
	}
	Expect(names(90)).To(Equal([]string{"old", "new"}))
	Expect(names(200)).To(Equal([]string{"old"}))
	Expect(names(8000)).To(BeEmpty())
	popPartition(ctx, t, queue, "old", inGroup("g"), "autoAck=true")
	Expect(names(90)).To(Equal([]string{"new"}), "after one was consumed")
})

var _ = suite.Requirement("laggingPartitions.default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pop(ctx, t, queue, inGroup("g"))
	pushNumbers(ctx, t, queue, 1)
	t.Advance(ctx, 3500*time.Second)
	Expect(laggingOf(ctx, t, queue)).To(BeEmpty(), "after 3500 seconds")
	t.Advance(ctx, 101*time.Second)
	Expect(laggingOf(ctx, t, queue)).To(HaveLen(1), "after 3601 seconds")
})

var _ = suite.Requirement("laggingPartitions.invalid", func(ctx context.Context, t *suite.Target) {
	for _, least := range []string{"-1", "1.5", "1h", "x"} {
		rejected(t.Raw(ctx, suite.Request{
			Operation: "laggingPartitions", Target: "/api/v1/consumer-groups/lagging?minLagSeconds=" + least,
		}))
	}
}, suite.WireOnly)

var _ = suite.Requirement("getConsumerGroup.partitions", func(ctx context.Context, t *suite.Target) {
	queue, other, group := t.Queue(), t.Queue(), t.Unique("group")
	pushNumbersTo(ctx, t, queue, "a", 1)
	pushNumbersTo(ctx, t, queue, "b/ü", 1)
	pushNumbersTo(ctx, t, other, "c", 1)
	pop(ctx, t, queue, inGroup(group))
	pop(ctx, t, other, inGroup(group))
	places := groupPlaces(ctx, t, group)
	Expect(places).To(HaveLen(2))
	Expect(places[queue]).To(And(HaveLen(2), HaveKey("a"), HaveKey("b/ü")))
	Expect(places[other]).To(And(HaveLen(1), HaveKey("c")))
})

var _ = suite.Requirement("getConsumerGroup.progress", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbersTo(ctx, t, queue, "a", 4)
	pushNumbersTo(ctx, t, queue, "b", 1)
	messages := popPartition(ctx, t, queue, "a", inGroup(group)).Messages
	Expect(messages).To(HaveLen(4))
	for completed := range 4 {
		places := groupPlaces(ctx, t, group)[queue]
		Expect(places["a"].TotalConsumed).To(Equal(completed))
		Expect(places["a"].OffsetLag).To(Equal(4 - completed))
		Expect(places["a"].LastConsumedAt).NotTo(BeEmpty())
		Expect(places["b"].OffsetLag).To(Equal(1))
		Expect(places["b"].LastConsumedAt).To(BeEmpty())
		ack(ctx, t, of(messages[completed], "completed"))
	}
	Expect(groupPlaces(ctx, t, group)[queue]["a"].OffsetLag).To(Equal(0))
})

var _ = suite.Requirement("getConsumerGroup.lease", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbersTo(ctx, t, queue, "a", 1)
	pushNumbersTo(ctx, t, queue, "b", 1)
	held := popPartition(ctx, t, queue, "a", inGroup(group))
	places := groupPlaces(ctx, t, group)[queue]
	Expect(places["a"].WorkerID).To(Equal(held.LeaseID))
	Expect(places["a"].LeaseActive).To(BeTrue())
	Expect(places["b"].WorkerID).To(BeEmpty())
	Expect(places["b"].LeaseActive).To(BeFalse())
	ack(ctx, t, of(held.Messages[0], "completed"))
	places = groupPlaces(ctx, t, group)[queue]
	Expect(places["a"].WorkerID).To(BeEmpty(), "after the ack")
	Expect(places["a"].LeaseActive).To(BeFalse(), "after the ack")
})

var _ = suite.Requirement("getConsumerGroup.not-found", func(ctx context.Context, t *suite.Target) {
	group := t.Unique("group")
	for range 2 {
		answer := t.Raw(ctx, suite.Request{Operation: "getConsumerGroup", Target: "/api/v1/consumer-groups/" + group})
		Expect(answer.Status).To(Equal(404))
		Expect(answer.Body).To(MatchJSON(`{"error":"Consumer group not found"}`))
	}
}, suite.WireOnly)

// groupDeletion is the answer to the deletion of a group.
type groupDeletion struct {
	Success           bool   `json:"success"`
	ConsumerGroup     string `json:"consumerGroup"`
	QueueName         string `json:"queueName"`
	DeletedPartitions int    `json:"deletedPartitions"`
	MetadataDeleted   bool   `json:"metadataDeleted"`
}

// deleteGroup deletes a group, of one queue when it is not empty.
func deleteGroup(ctx context.Context, t *suite.Target, group, queue string, params ...string) groupDeletion {
	operation, path := "deleteConsumerGroup", map[string]string{"group": group}
	if queue != "" {
		operation, path = "deleteConsumerGroupQueue", map[string]string{"group": group, "queue": queue}
	}
	var d groupDeletion
	succeeded(t.Call(ctx, operation, suite.Args{Path: path, Query: query(params)}), &d)
	return d
}

var _ = suite.Requirement("deleteConsumerGroup.answer", func(ctx context.Context, t *suite.Target) {
	queue, other, group := t.Queue(), t.Queue(), t.Unique("group")
	for _, partition := range []string{"a", "b", "untouched"} {
		pushNumbersTo(ctx, t, queue, partition, 1)
	}
	pushNumbers(ctx, t, other, 1)
	popPartition(ctx, t, queue, "a", inGroup(group))
	popPartition(ctx, t, queue, "b", inGroup(group), "autoAck=true")
	pop(ctx, t, other, inGroup(group))
	Expect(deleteGroup(ctx, t, group, "")).To(Equal(groupDeletion{
		Success: true, ConsumerGroup: group, DeletedPartitions: 3, MetadataDeleted: true,
	}))
	Expect(groupsOf(ctx, t, queue)).To(BeEmpty())
	Expect(groupsOf(ctx, t, other)).To(BeEmpty())
})

var _ = suite.Requirement("deleteConsumerGroup.starts-over", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbersTo(ctx, t, queue, "a", 2)
	pushNumbersTo(ctx, t, queue, "b", 1)
	Expect(drain(ctx, t, queue, inGroup(group))).To(HaveLen(3))
	Expect(drain(ctx, t, queue, inGroup("other"))).To(HaveLen(3))
	deleteGroup(ctx, t, group, "")
	Expect(drain(ctx, t, queue, inGroup(group))).To(HaveLen(3), "with mode all")
	Expect(drain(ctx, t, queue, inGroup("other"))).To(BeEmpty(), "another group")
	deleteGroup(ctx, t, group, "")
	Expect(drain(ctx, t, queue, inGroup(group), "subscriptionMode=new")).To(BeEmpty(), "with mode new")
	pushOne(ctx, t, item{queue: queue, payload: `"new"`})
	Expect(dataOf(drain(ctx, t, queue, inGroup(group)))).To(Equal([]string{`"new"`}), "registered with mode new")
})

var _ = suite.Requirement("deleteConsumerGroup.leases", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbers(ctx, t, queue, 2)
	held := pop(ctx, t, queue, inGroup(group)).Messages
	Expect(held).To(HaveLen(2))
	deleteGroup(ctx, t, group, "")
	Expect(ack(ctx, t, of(held[1], "completed")).Success).To(BeFalse(), "before it pops again")
	again := pop(ctx, t, queue, inGroup(group))
	Expect(again.data()).To(Equal([]string{"0", "1"}))
	Expect(ack(ctx, t, of(held[1], "completed")).Success).To(BeFalse(), "after it popped again")
	Expect(groupPlaces(ctx, t, group)[queue]["Default"].TotalConsumed).To(Equal(0))
})

var _ = suite.Requirement("deleteConsumerGroup.keep-metadata", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushOne(ctx, t, item{queue: queue, payload: `"old"`})
	Expect(pop(ctx, t, queue, inGroup(group), "subscriptionMode=new").Messages).To(BeEmpty())
	pushOne(ctx, t, item{queue: queue, payload: `"new"`})
	Expect(drain(ctx, t, queue, inGroup(group))).To(HaveLen(1))
	d := deleteGroup(ctx, t, group, "", "deleteMetadata=false")
	Expect(d).To(Equal(groupDeletion{Success: true, ConsumerGroup: group, DeletedPartitions: 1}))
	Expect(dataOf(drain(ctx, t, queue, inGroup(group), "subscriptionMode=all"))).To(Equal([]string{`"new"`}))
})

var _ = suite.Requirement("deleteConsumerGroup.unknown", func(ctx context.Context, t *suite.Target) {
	group := t.Unique("group")
	Expect(deleteGroup(ctx, t, group, "")).To(Equal(groupDeletion{ConsumerGroup: group}))
})

var _ = suite.Requirement("deleteConsumerGroupQueue.answer", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, inGroup(group))
	Expect(deleteGroup(ctx, t, group, queue)).To(Equal(groupDeletion{
		Success: true, ConsumerGroup: group, QueueName: queue, DeletedPartitions: 1, MetadataDeleted: true,
	}))
	Expect(deleteGroup(ctx, t, group, queue)).To(Equal(groupDeletion{ConsumerGroup: group, QueueName: queue}), "once more")
})

var _ = suite.Requirement("deleteConsumerGroupQueue.only", func(ctx context.Context, t *suite.Target) {
	queue, other, group := t.Queue(), t.Queue(), t.Unique("group")
	pushNumbers(ctx, t, queue, 2)
	pushNumbers(ctx, t, other, 2)
	drain(ctx, t, queue, inGroup(group))
	drain(ctx, t, other, inGroup(group))
	deleteGroup(ctx, t, group, queue)
	Expect(drain(ctx, t, queue, inGroup(group))).To(HaveLen(2))
	Expect(drain(ctx, t, other, inGroup(group))).To(BeEmpty(), "the other queue")
})

// subscribed is the answer to a change of a subscription.
type subscribed struct {
	Success       bool   `json:"success"`
	ConsumerGroup string `json:"consumerGroup"`
	NewTimestamp  string `json:"newTimestamp"`
	RowsUpdated   int    `json:"rowsUpdated"`
}

func subscribe(ctx context.Context, t *suite.Target, group, from string) subscribed {
	body := json.RawMessage(`{"subscriptionTimestamp":` + quote(from) + `}`)
	var s subscribed
	succeeded(t.Call(ctx, "subscribe", suite.Args{Path: map[string]string{"group": group}, Body: body}), &s)
	return s
}

// timesOf pushes n messages one by one to a partition and returns when each was created.
func timesOf(ctx context.Context, t *suite.Target, queue, partition string, n int) []string {
	for i := range n {
		pushOne(ctx, t, item{queue: queue, partition: partition, payload: fmt.Sprint(i)})
		t.Elapse(ctx, 20*time.Millisecond)
	}
	var times []string
	for _, m := range popPartition(ctx, t, queue, partition, inGroup("clock"), "autoAck=true").Messages {
		times = append(times, m.CreatedAt)
	}
	Expect(times).To(HaveLen(n))
	return times
}

var _ = suite.Requirement("subscribe.answer", func(ctx context.Context, t *suite.Target) {
	queue, other, group := t.Queue(), t.Queue(), t.Unique("group")
	pop(ctx, t, queue, inGroup(group))
	pop(ctx, t, other, inGroup(group))
	Expect(subscribe(ctx, t, group, "2026-01-15T12:30:00+02:00")).To(Equal(subscribed{
		Success: true, ConsumerGroup: group, NewTimestamp: "2026-01-15T10:30:00.000000Z", RowsUpdated: 2,
	}))
	for _, name := range []string{queue, other} {
		line := groupsOf(ctx, t, name)[group]
		Expect(line.SubscriptionTimestamp).To(Equal("2026-01-15T10:30:00.000000Z"))
		Expect(line.SubscriptionMode).To(Equal("new"))
	}
	unknown := t.Unique("group")
	Expect(subscribe(ctx, t, unknown, "2026-01-15T10:30:00Z")).To(Equal(subscribed{
		ConsumerGroup: unknown, NewTimestamp: "2026-01-15T10:30:00.000000Z",
	}), "an unknown group")
})

var _ = suite.Requirement("subscribe.no-cursor-moved", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	times := timesOf(ctx, t, queue, "p", 4)
	Expect(pop(ctx, t, queue, inGroup(group), "batch=2", "autoAck=true").data()).To(Equal([]string{"0", "1"}))
	for _, at := range []int{0, 3} {
		subscribe(ctx, t, group, times[at])
		Expect(groupPlaces(ctx, t, group)[queue]["p"].TotalConsumed).To(Equal(2), "subscribed from message %d", at)
	}
	Expect(pop(ctx, t, queue, inGroup(group)).data()).To(Equal([]string{"2", "3"}))
})

var _ = suite.Requirement("subscribe.new-cursors", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pushNumbersTo(ctx, t, queue, "touched", 1)
	Expect(popPartition(ctx, t, queue, "touched", inGroup(group), "autoAck=true").Messages).To(HaveLen(1))
	times := timesOf(ctx, t, queue, "untouched", 3)
	subscribe(ctx, t, group, times[1])
	Expect(popPartition(ctx, t, queue, "untouched", inGroup(group)).data()).To(Equal([]string{"1", "2"}))
})

var _ = suite.Requirement("subscribe.invalid", func(ctx context.Context, t *suite.Target) {
	queue, group := t.Queue(), t.Unique("group")
	pop(ctx, t, queue, inGroup(group))
	for _, body := range []string{``, `{}`, `{"subscriptionTimestamp":null}`, `{"subscriptionTimestamp":""}`, `{"subscriptionTimestamp":"soon"}`, `{"subscriptionTimestamp":5}`, `[]`} {
		rejected(post(ctx, t, "subscribe", body, group))
	}
	Expect(groupsOf(ctx, t, queue)[group].SubscriptionMode).To(Equal("all"))
}, suite.WireOnly)

// sought is the answer to a seek.
type sought struct {
	Success           bool    `json:"success"`
	ConsumerGroup     string  `json:"consumerGroup"`
	QueueName         string  `json:"queueName"`
	Partition         string  `json:"partition"`
	SeekToEnd         bool    `json:"seekToEnd"`
	TargetTimestamp   *string `json:"targetTimestamp"`
	PartitionsUpdated int     `json:"partitionsUpdated"`
}

const toEnd = `{"toEnd":true}`

// to is the body of a seek to a time.
func to(at string) string { return `{"timestamp":` + quote(at) + `}` }

// seek moves the group g of a queue, in one partition when it is not empty.
func seek(ctx context.Context, t *suite.Target, queue, partition, body string) sought {
	operation, path := "seek", map[string]string{"group": "g", "queue": queue}
	if partition != "" {
		operation, path["partition"] = "seekPartition", partition
	}
	var s sought
	succeeded(t.Call(ctx, operation, suite.Args{Path: path, Body: json.RawMessage(body)}), &s)
	return s
}

var _ = suite.Requirement("seek.to-end", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 3)
	Expect(popPartition(ctx, t, queue, "a", inGroup("g"), "batch=1", "autoAck=true").Messages).To(HaveLen(1))
	s := seek(ctx, t, queue, "", toEnd)
	Expect(s.Success).To(BeTrue())
	Expect(s.SeekToEnd).To(BeTrue())
	Expect(s.PartitionsUpdated).To(Equal(2))
	Expect(drain(ctx, t, queue, inGroup("g"))).To(BeEmpty())
	pushOne(ctx, t, item{queue: queue, partition: "a", payload: `"new"`})
	Expect(dataOf(drain(ctx, t, queue, inGroup("g")))).To(Equal([]string{`"new"`}))
})

var _ = suite.Requirement("seek.to-end", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, inGroup("g"))
	answer := post(ctx, t, "seek", toEnd, "g", queue)
	Expect(answer.Status).To(Equal(200))
	Expect(answer.Body).To(MatchJSON(fmt.Sprintf(
		`{"success":true,"consumerGroup":"g","queueName":%s,"seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":1}`, quote(queue))))
}, suite.WireOnly)

var _ = suite.Requirement("seek.back", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	times := timesOf(ctx, t, queue, "p", 4)
	for at := range 4 {
		Expect(drain(ctx, t, queue, inGroup("g"))).NotTo(BeNil())
		s := seek(ctx, t, queue, "", to(times[at]))
		Expect(s.SeekToEnd).To(BeFalse())
		Expect(s.PartitionsUpdated).To(Equal(1))
		got := pop(ctx, t, queue, inGroup("g"), "autoAck=true").data()
		Expect(got).To(Equal([]string{"0", "1", "2", "3"}[at:]), "from message %d on", at)
		seek(ctx, t, queue, "", to("2000-01-01T00:00:00Z"))
	}
	Expect(drain(ctx, t, queue, inGroup("g"))).To(HaveLen(4), "from long before")
})

var _ = suite.Requirement("seek.back", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, inGroup("g"))
	answer := post(ctx, t, "seek", to("2026-01-15T12:30:00.5+02:00"), "g", queue)
	Expect(answer.Status).To(Equal(200))
	Expect(answer.Body).To(MatchJSON(fmt.Sprintf(
		`{"success":true,"consumerGroup":"g","queueName":%s,"seekToEnd":false,"targetTimestamp":"2026-01-15T10:30:00.500000Z","partitionsUpdated":1}`, quote(queue))))
}, suite.WireOnly)

var _ = suite.Requirement("seek.forward", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	times := timesOf(ctx, t, queue, "p", 4)
	Expect(pop(ctx, t, queue, inGroup("g"), "batch=1", "autoAck=true").data()).To(Equal([]string{"0"}))
	seek(ctx, t, queue, "", to(times[2]))
	Expect(pop(ctx, t, queue, inGroup("g"), "batch=1", "autoAck=true").data()).To(Equal([]string{"2"}))
	seek(ctx, t, queue, "", to("2100-01-01T00:00:00Z"))
	Expect(pop(ctx, t, queue, inGroup("g")).Messages).To(BeEmpty(), "after everything")
})

var _ = suite.Requirement("seek.only", func(ctx context.Context, t *suite.Target) {
	queue, other := t.Queue(), t.Queue()
	pushNumbers(ctx, t, queue, 2)
	pushNumbers(ctx, t, other, 2)
	pop(ctx, t, queue, inGroup("g"), "autoAck=true", "batch=1")
	pop(ctx, t, queue, inGroup("h"), "autoAck=true", "batch=1")
	pop(ctx, t, other, inGroup("g"), "autoAck=true", "batch=1")
	seek(ctx, t, queue, "", toEnd)
	Expect(drain(ctx, t, queue, inGroup("h"))).To(HaveLen(1), "another group")
	Expect(drain(ctx, t, other, inGroup("g"))).To(HaveLen(1), "another queue")
})

var _ = suite.Requirement("seek.leases", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	held := pop(ctx, t, queue, inGroup("g")).Messages
	Expect(held).To(HaveLen(3))
	seek(ctx, t, queue, "", to("2000-01-01T00:00:00Z"))
	refused := ack(ctx, t, of(held[2], "completed"))
	Expect(refused.Success).To(BeFalse(), "an ack with the old lease")
	Expect(refused.reason()).To(Equal("invalid or expired lease"))
	Expect(pop(ctx, t, queue, inGroup("g")).data()).To(Equal([]string{"0", "1", "2"}), "a pop at once")
})

var _ = suite.Requirement("seek.retries", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, queue, 1)
	fail := func() acked {
		messages := pop(ctx, t, queue, inGroup("g")).Messages
		Expect(messages).To(HaveLen(1))
		return ack(ctx, t, of(messages[0], "failed"))
	}
	for range 3 {
		Expect(fail().DLQ).To(BeFalse(), "the first failure")
		seek(ctx, t, queue, "", to("2000-01-01T00:00:00Z"))
	}
	Expect(fail().DLQ).To(BeFalse(), "the first failure")
	Expect(fail().DLQ).To(BeTrue(), "the second failure")
})

var _ = suite.Requirement("seek.attempts", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for _, want := range []int{1, 2} {
		messages := pop(ctx, t, queue, inGroup("g")).Messages
		Expect(messages).To(HaveLen(1))
		Expect(messages[0].DeliveryAttempt).To(Equal(want))
		ack(ctx, t, of(messages[0], "retry"))
	}
	seek(ctx, t, queue, "", to("2000-01-01T00:00:00Z"))
	messages := pop(ctx, t, queue, inGroup("g")).Messages
	Expect(messages).To(HaveLen(1))
	Expect(messages[0].DeliveryAttempt).To(Equal(1))
})

var _ = suite.Requirement("seek.wakes", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "p", 2)
	for name, take := range map[string]func(params ...string) popped{
		"of the queue":     func(params ...string) popped { return pop(ctx, t, queue, params...) },
		"of the partition": func(params ...string) popped { return popPartition(ctx, t, queue, "p", params...) },
	} {
		drain(ctx, t, queue, inGroup("g"))
		wait := later(func() popped { return take(waiting(2*t.Patience(), inGroup("g"), "autoAck=true")...) })
		settle(ctx)
		start := time.Now()
		seek(ctx, t, queue, "", to("2000-01-01T00:00:00Z"))
		Expect(wait().data()).To(Equal([]string{"0", "1"}), "a parked pop %s", name)
		Expect(time.Since(start)).To(BeNumerically("<", t.Patience()/2), "time from the seek to the answer of the pop %s", name)
	}
})

var _ = suite.Requirement("seek.no-target", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, inGroup("g"), "leaseSeconds=600")
	for _, body := range []string{
		``, `{}`, `{"toEnd":false}`, `{"toEnd":null,"timestamp":null}`, `{"toEnd":"true"}`, `{"timestamp":"soon"}`, `{"timestamp":""}`,
		`{"timestamp":5}`, `{"toEnd":true,"timestamp":"2026-01-15T10:30:00Z"}`, `[]`, `true`, `{`,
	} {
		rejected(post(ctx, t, "seek", body, "g", queue))
	}
	place := groupPlaces(ctx, t, "g")[queue]["Default"]
	Expect(place.OffsetLag).To(Equal(1))
	Expect(place.LeaseActive).To(BeTrue())
}, suite.WireOnly)

// notFound asserts a 404 with a flat error.
func notFound(answer suite.Answer) {
	if answer.Status != 404 || !strings.HasPrefix(string(answer.Body), `{"error":"`) {
		suite.Failf(1, "answered %d %.200s", answer.Status, answer.Body)
	}
}

var _ = suite.Requirement("seek.not-found", func(ctx context.Context, t *suite.Target) {
	queue, empty, unknown := t.Queue(), t.Queue(), t.Queue()
	pushNumbers(ctx, t, queue, 1)
	pop(ctx, t, queue, inGroup("g"))
	pop(ctx, t, empty, inGroup("g"))
	for _, body := range []string{toEnd, to("2026-01-15T10:30:00Z")} {
		notFound(post(ctx, t, "seek", body, "g", unknown))
		notFound(post(ctx, t, "seek", body, "g", empty))
		notFound(post(ctx, t, "seek", body, "nobody", queue))
	}
	Expect(list(ctx, t, unknown)).To(BeEmpty())
	Expect(groupsOf(ctx, t, queue)).NotTo(HaveKey("nobody"))
}, suite.WireOnly)

var _ = suite.Requirement("seekPartition.only", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	times := timesOf(ctx, t, queue, "a/ü", 3)
	pushNumbersTo(ctx, t, queue, "b", 3)
	Expect(popPartition(ctx, t, queue, "b", inGroup("g"), "batch=1", "autoAck=true").Messages).To(HaveLen(1))
	s := seek(ctx, t, queue, "a/ü", to(times[1]))
	Expect(s.Success).To(BeTrue())
	Expect(s.PartitionsUpdated).To(Equal(1))
	Expect(popPartition(ctx, t, queue, "a/ü", inGroup("g"), "autoAck=true").data()).To(Equal([]string{"1", "2"}))
	Expect(popPartition(ctx, t, queue, "b", inGroup("g"), "batch=1", "autoAck=true").data()).To(Equal([]string{"1"}))
	seek(ctx, t, queue, "b", toEnd)
	Expect(drain(ctx, t, queue, inGroup("g"))).To(BeEmpty())
})

var _ = suite.Requirement("seekPartition.empty-body", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	pushNumbersTo(ctx, t, queue, "b", 1)
	pop(ctx, t, queue, inGroup("g"))
	answer := post(ctx, t, "seekPartition", "", "g", queue, "a")
	Expect(answer.Status).To(Equal(200))
	Expect(answer.Body).To(MatchJSON(fmt.Sprintf(
		`{"success":true,"consumerGroup":"g","queueName":%s,"partition":"a","seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":1}`, quote(queue))))
	Expect(popPartition(ctx, t, queue, "a", inGroup("g")).Messages).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("seekPartition.no-target", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	pop(ctx, t, queue, inGroup("g"), "leaseSeconds=1")
	for _, body := range []string{`{"toEnd":false}`, `{"timestmp":"2026-01-15T10:30:00Z"}`, `{"timestamp":"soon"}`, `{"toEnd":true,"timestamp":"2026-01-15"}`} {
		rejected(post(ctx, t, "seekPartition", body, "g", queue, "a"))
	}
	Expect(groupPlaces(ctx, t, "g")[queue]["a"].OffsetLag).To(Equal(1))
}, suite.WireOnly)

var _ = suite.Requirement("seekPartition.not-found", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	pop(ctx, t, queue, inGroup("g"))
	notFound(post(ctx, t, "seekPartition", toEnd, "g", queue, "b"))
	notFound(post(ctx, t, "seekPartition", toEnd, "nobody", queue, "a"))
	notFound(post(ctx, t, "seekPartition", toEnd, "g", t.Queue(), "a"))
}, suite.WireOnly)
