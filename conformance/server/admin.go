package server

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// defaultOptions are the resolved options of a queue configured without any, as decoded from JSON.
func defaultOptions() map[string]any {
	return map[string]any{
		"leaseTime": 300.0, "retryLimit": 3.0, "deadLetterQueue": true, "dlqAfterMaxRetries": true, "delayedProcessing": 0.0,
		"windowBuffer": 0.0, "minPopWaitTime": 0.0, "retentionEnabled": false, "retentionSeconds": 0.0,
		"completedRetentionSeconds": 0.0, "maxWaitTimeSeconds": 0.0, "encryptionEnabled": false, "dedupWindowSeconds": 3600.0,
		"priority": 0.0, "maxSize": 0.0, "ttl": 0.0, "retryDelay": 0.0,
	}
}

// configured is the answer to a configure.
type configured struct {
	Configured  bool           `json:"configured"`
	QueueID     string         `json:"queueId"`
	PartitionID *string        `json:"partitionId"`
	Queue       string         `json:"queue"`
	Namespace   string         `json:"namespace"`
	Task        string         `json:"task"`
	Storage     string         `json:"storage"`
	Options     map[string]any `json:"options"`
}

func configuredAs(outcome suite.Outcome) configured {
	var c configured
	decode(outcome.Body, &c)
	return c
}

// detail is the answer of getQueue.
type detail struct {
	ID         string         `json:"id"`
	Name       string         `json:"name"`
	Namespace  string         `json:"namespace"`
	Task       string         `json:"task"`
	Options    map[string]any `json:"options"`
	Partitions []struct {
		ID            string `json:"id"`
		Name          string `json:"name"`
		Stats         counts `json:"stats"`
		OldestMessage string `json:"oldestMessage"`
		NewestMessage string `json:"newestMessage"`
	} `json:"partitions"`
	Totals counts `json:"totals"`
}

type counts struct {
	Total      int `json:"total"`
	Pending    int `json:"pending"`
	Processing int `json:"processing"`
	Completed  int `json:"completed"`
	DeadLetter int `json:"deadLetter"`
}

// inspect reads a queue that must exist. Options that the description does not know are left out.
func inspect(ctx context.Context, t *suite.Target, queue string) detail {
	outcome := t.Call(ctx, "getQueue", suite.Args{Path: map[string]string{"queue": queue}})
	if outcome.Status != 200 {
		suite.Failf(1, "getQueue of %s was answered %d %s", queue, outcome.Status, outcome.Body)
	}
	var d detail
	decode(outcome.Body, &d)
	known := defaultOptions()
	maps.DeleteFunc(d.Options, func(name string, _ any) bool { return known[name] == nil })
	return d
}

// listed is one queue of listQueues.
type listed struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Partitions int    `json:"partitions"`
	Messages   counts `json:"messages"`
}

// list returns the entries of the queue in the list of queues.
func list(ctx context.Context, t *suite.Target, queue string) []listed {
	outcome := t.Call(ctx, "listQueues", suite.Args{})
	if outcome.Status != 200 {
		suite.Failf(1, "listQueues was answered %d %s", outcome.Status, outcome.Body)
	}
	var all struct {
		Queues []listed `json:"queues"`
	}
	decode(outcome.Body, &all)
	var found []listed
	for _, q := range all.Queues {
		if q.Name == queue {
			found = append(found, q)
		}
	}
	return found
}

var _ = suite.Requirement("configure.queue.required", func(ctx context.Context, t *suite.Target) {
	for _, body := range []string{`{}`, `{"options":{}}`, `{"queue":""}`, `{"queue":null}`, `{"queue":7}`, `{"queue":{}}`, `[]`, `null`} {
		rejected(post(ctx, t, "configure", body))
	}
}, suite.WireOnly)

var _ = suite.Requirement("configure.response", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	id := configuredAs(configure(ctx, t, queue, nil)).QueueID
	Expect(configuredAs(configure(ctx, t, queue, nil)).QueueID).To(Equal(id), "the queue that the first configure made")
	outcome := t.Call(ctx, "getQueue", suite.Args{Path: map[string]string{"queue": queue}})
	Expect(outcome.Status).To(Equal(200))
})

var _ = suite.Requirement("configure.response", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := post(ctx, t, "configure", `{"queue":"`+queue+`","options":{"namespace":"n","task":"k","retryLimit":7}}`)
	Expect(answer.Status).To(Equal(200))
	var got map[string]any
	decode(answer.Body, &got)
	Expect(got["queueId"]).To(MatchRegexp(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`))
	want := defaultOptions()
	want["retryLimit"] = 7.0
	for key, value := range map[string]any{
		"configured": true, "queue": queue, "namespace": "n", "task": "k", "storage": "segments",
	} {
		Expect(got).To(HaveKeyWithValue(key, value))
	}
	Expect(got).To(HaveKeyWithValue("partitionId", BeNil()))
	for name, value := range want {
		Expect(got["options"]).To(HaveKeyWithValue(name, value))
	}
}, suite.WireOnly)

// hasOptions asserts that a queue has default options but for the given ones, in the answer to its configure and in the
// queue itself.
func hasOptions(ctx context.Context, t *suite.Target, answer configured, given map[string]any) {
	want := defaultOptions()
	maps.Copy(want, given)
	maps.DeleteFunc(answer.Options, func(name string, _ any) bool { return want[name] == nil })
	Expect(answer.Options).To(Equal(want), "options in the answer")
	Expect(inspect(ctx, t, answer.Queue).Options).To(Equal(want), "options of the queue")
}

var _ = suite.Requirement("configure.defaults", func(ctx context.Context, t *suite.Target) {
	hasOptions(ctx, t, configuredAs(configure(ctx, t, t.Queue(), map[string]any{})), nil)
	for _, body := range []string{`{"queue":"%s"}`, `{"queue":"%s","options":null}`} {
		answer := post(ctx, t, "configure", fmt.Sprintf(body, t.Queue()))
		Expect(answer.Status).To(Equal(200), "%s", answer.Body)
		hasOptions(ctx, t, configuredAs(suite.Outcome{Body: answer.Body}), nil)
	}
}, suite.WireOnly)

var _ = suite.Requirement("configure.full-replace", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{
		"leaseTime": 11, "retryLimit": 12, "deadLetterQueue": false, "dlqAfterMaxRetries": false, "delayedProcessing": 13,
		"windowBuffer": 14, "minPopWaitTime": 15, "retentionEnabled": true, "retentionSeconds": 1600,
		"completedRetentionSeconds": 1700, "maxWaitTimeSeconds": 1800, "dedupWindowSeconds": 19, "priority": 20, "maxSize": 21,
		"ttl": 22, "retryDelay": 23,
	})
	hasOptions(ctx, t, configuredAs(configure(ctx, t, queue, map[string]any{"retryLimit": 5})), map[string]any{"retryLimit": 5.0})
})

var _ = suite.Requirement("configure.replaces-implicit", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(inspect(ctx, t, queue).Options["leaseTime"]).To(Equal(60.0), "after a push")
	configure(ctx, t, queue, map[string]any{"retryLimit": 4})
	Expect(inspect(ctx, t, queue).Options["leaseTime"]).To(Equal(300.0), "after a configure")
})

var _ = suite.Requirement("configure.top-level", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := post(ctx, t, "configure", `{"queue":"`+queue+`","leaseTime":77,"deadLetterQueue":false,"dedupWindowSeconds":5}`)
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	hasOptions(ctx, t, configuredAs(suite.Outcome{Body: answer.Body}),
		map[string]any{"leaseTime": 77.0, "deadLetterQueue": false, "dedupWindowSeconds": 5.0})
}, suite.WireOnly)

var _ = suite.Requirement("configure.namespace-task", func(ctx context.Context, t *suite.Target) {
	queue, namespace, task := t.Queue(), t.Unique("ns"), t.Unique("task")
	answer := post(ctx, t, "configure", fmt.Sprintf(`{"queue":%q,"namespace":%q,"task":%q,"options":{"namespace":"x","leaseTime":9}}`,
		queue, namespace, task))
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	got := configuredAs(suite.Outcome{Body: answer.Body})
	Expect(got.Namespace).To(Equal(namespace))
	Expect(got.Task).To(Equal(task))
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	Expect(discover(ctx, t, "namespace="+namespace, "consumerGroup=a").data()).To(Equal([]string{"1"}))
	Expect(discover(ctx, t, "task="+task, "consumerGroup=b").data()).To(Equal([]string{"1"}))
}, suite.WireOnly)

var _ = suite.Requirement("configure.same-queue", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	before := inspect(ctx, t, queue).ID
	Expect(configuredAs(configure(ctx, t, queue, map[string]any{"retryLimit": 9})).QueueID).To(Equal(before))
	Expect(inspect(ctx, t, queue).ID).To(Equal(before))
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", "1"}))
})

// refusesOption asserts that configure refuses each value of the options and leaves the queue as it was.
func refusesOption(ctx context.Context, t *suite.Target, options []string, values ...string) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 77, "leaseTime": 88})
	before := inspect(ctx, t, queue).Options
	for _, option := range options {
		for _, value := range values {
			for _, body := range []string{`{"queue":%q,"options":{"retryDelay":1,%q:%s}}`, `{"queue":%q,"ttl":1,%q:%s}`} {
				answer := post(ctx, t, "configure", fmt.Sprintf(body, queue, option, value))
				Expect(answer.Status).To(Equal(400), "%s of %s", option, value)
				rejected(answer)
			}
		}
	}
	Expect(inspect(ctx, t, queue).Options).To(Equal(before), "options after the refused configures")
}

var (
	numericOptions = []string{
		"leaseTime", "retryLimit", "delayedProcessing", "windowBuffer", "minPopWaitTime", "retentionSeconds",
		"completedRetentionSeconds", "maxWaitTimeSeconds", "dedupWindowSeconds", "priority", "maxSize",
	}
	booleanOptions = []string{"deadLetterQueue", "dlqAfterMaxRetries", "retentionEnabled", "encryptionEnabled"}
)

var _ = suite.Requirement("configure.invalid", func(ctx context.Context, t *suite.Target) {
	refusesOption(ctx, t, numericOptions, "-1")
}, suite.WireOnly)

var _ = suite.Requirement("configure.invalid", func(ctx context.Context, t *suite.Target) {
	refusesOption(ctx, t, numericOptions, "1.5", `"7"`, "true")
}, suite.WireOnly)

var _ = suite.Requirement("configure.invalid", func(ctx context.Context, t *suite.Target) {
	refusesOption(ctx, t, booleanOptions, "1", `"true"`, "{}")
}, suite.WireOnly)

var _ = suite.Requirement("configure.no-effect-echoed", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	given := map[string]any{"priority": 9.0, "maxSize": 1.0, "ttl": 1.0, "retryDelay": 3600.0}
	hasOptions(ctx, t, configuredAs(configure(ctx, t, queue, given)), given)
	pushNumbers(ctx, t, queue, 3) // more than maxSize
	t.Elapse(ctx, 1500*time.Millisecond)
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(3), "after ttl")
	ack(ctx, t, of(messages[0], "failed"))
	Expect(pop(ctx, t, queue).Messages).To(HaveLen(3), "before retryDelay")
})

var _ = suite.Requirement("configure.takes-effect", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	one := item{queue: queue, transactionID: "t", payload: "1"}
	pushOne(ctx, t, one)
	Expect(pushOne(ctx, t, one).Status).To(Equal("duplicate"))
	configure(ctx, t, queue, map[string]any{"dedupWindowSeconds": 0, "retryLimit": 0})
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"), "after dedupWindowSeconds was set to 0")
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(2))
	Expect(ack(ctx, t, of(messages[0], "failed")).DLQ).To(BeTrue(), "after retryLimit was set to 0")
})

var _ = suite.Requirement("listQueues.all", func(ctx context.Context, t *suite.Target) {
	byPush, byPop, byConfigure := t.Queue(), t.Queue(), t.Queue()
	pushNumbers(ctx, t, byPush, 1)
	pop(ctx, t, byPop)
	configure(ctx, t, byConfigure, nil)
	pushNumbers(ctx, t, byConfigure, 1)
	for how, queue := range map[string]string{"push": byPush, "pop": byPop, "configure": byConfigure} {
		Expect(list(ctx, t, queue)).To(HaveLen(1), "a queue created by %s", how)
	}
})

var _ = suite.Requirement("listQueues.counts", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 2)
	pushNumbersTo(ctx, t, queue, "b", 2) // duplicates
	entries := list(ctx, t, queue)
	Expect(entries).To(HaveLen(1))
	Expect(entries[0].Partitions).To(Equal(2))
	Expect(entries[0].Messages.Total).To(Equal(5))
})

var _ = suite.Requirement("listQueues.pending", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 5)
	pop(ctx, t, queue, "consumerGroup=slow", "autoAck=true", "batch=1")
	pop(ctx, t, queue, "consumerGroup=fast", "autoAck=true", "batch=4")
	entries := list(ctx, t, queue)
	Expect(entries).To(HaveLen(1))
	Expect(entries[0].Messages.Pending).To(Equal(4))
})

var _ = suite.Requirement("listQueues.pending", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 5)
	processing := func() int {
		entries := list(ctx, t, queue)
		Expect(entries).To(HaveLen(1))
		return entries[0].Messages.Processing
	}
	Expect(processing()).To(BeZero(), "before the pop")
	lease := t.Window()
	Expect(pop(ctx, t, queue, "batch=3", leaseFor(lease)).Messages).To(HaveLen(3))
	Expect(processing()).To(Equal(3), "under a lease")
	t.Elapse(ctx, lease+time.Second)
	Expect(processing()).To(BeZero(), "after the lease")
})

var _ = suite.Requirement("getQueue.detail", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	given := map[string]any{"retryLimit": 9.0, "deadLetterQueue": false}
	id := configuredAs(configure(ctx, t, queue, given)).QueueID
	want := defaultOptions()
	maps.Copy(want, given)
	pushNumbersTo(ctx, t, queue, "a", 1)
	t.Elapse(ctx, 10*time.Millisecond)
	pushOne(ctx, t, item{queue: queue, partition: "a", payload: "1"})
	pushNumbersTo(ctx, t, queue, "b", 3)
	got := inspect(ctx, t, queue)
	Expect(got.ID).To(Equal(id))
	Expect(got.Name).To(Equal(queue))
	Expect(got.Options).To(Equal(want))
	Expect(got.Partitions).To(HaveLen(2))
	for _, p := range got.Partitions {
		messages := popPartition(ctx, t, queue, p.Name, "autoAck=true", "consumerGroup=reader").Messages
		Expect(messages).NotTo(BeEmpty(), "messages of partition %s", p.Name)
		Expect(p.Stats.Total).To(Equal(len(messages)), "total of partition %s", p.Name)
		Expect(p.ID).To(Equal(messages[0].PartitionID))
		Expect(p.OldestMessage).To(Equal(messages[0].CreatedAt), "oldestMessage of partition %s", p.Name)
		Expect(p.NewestMessage).To(Equal(messages[len(messages)-1].CreatedAt), "newestMessage of partition %s", p.Name)
	}
})

var _ = suite.Requirement("getQueue.detail", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 4)
	popPartition(ctx, t, queue, "a", "batch=2")
	popPartition(ctx, t, queue, "b", "batch=1", "autoAck=true")
	got := inspect(ctx, t, queue)
	var sum counts
	for _, p := range got.Partitions {
		sum.Total += p.Stats.Total
		sum.Pending += p.Stats.Pending
		sum.Processing += p.Stats.Processing
		sum.Completed += p.Stats.Completed
		sum.DeadLetter += p.Stats.DeadLetter
	}
	Expect(got.Partitions).To(HaveLen(2))
	Expect(got.Totals).To(Equal(sum))
})

var _ = suite.Requirement("listQueues.pending", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 4)
	stats := func() counts {
		got := inspect(ctx, t, queue)
		Expect(got.Partitions).To(HaveLen(1))
		return got.Partitions[0].Stats
	}
	Expect(stats()).To(Equal(counts{Total: 4, Pending: 4}), "after the push")
	messages := pop(ctx, t, queue, "batch=3").Messages
	Expect(messages).To(HaveLen(3))
	Expect(stats()).To(Equal(counts{Total: 4, Pending: 1, Processing: 3}), "after the pop")
	ack(ctx, t, of(messages[0], "completed"))
	Expect(stats()).To(Equal(counts{Total: 4, Pending: 1, Processing: 2, Completed: 1}), "after a partial ack")
	ack(ctx, t, of(messages[2], "completed"))
	Expect(stats()).To(Equal(counts{Total: 4, Pending: 1, Completed: 3}), "after the full ack")
})

var _ = suite.Requirement("getQueue.dead-letter", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 1)
	for range 2 {
		messages := popPartition(ctx, t, queue, "a").Messages
		Expect(messages).NotTo(BeEmpty())
		ack(ctx, t, of(messages[0], "dlq"))
	}
	deadLetters := map[string]int{}
	for _, p := range inspect(ctx, t, queue).Partitions {
		deadLetters[p.Name] = p.Stats.DeadLetter
	}
	Expect(deadLetters).To(Equal(map[string]int{"a": 2, "b": 0}))
})

var _ = suite.Requirement("getQueue.not-found", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for range 2 {
		answer := t.Raw(ctx, suite.Request{Operation: "getQueue", Target: "/api/v1/resources/queues/" + queue})
		Expect(answer.Status).To(Equal(404))
		Expect(answer.Body).To(MatchJSON(`{"error":"Queue not found"}`))
	}
	Expect(list(ctx, t, queue)).To(BeEmpty())
}, suite.WireOnly)

// deleted is the answer to a deletion.
type deleted struct {
	Deleted bool   `json:"deleted"`
	Queue   string `json:"queue"`
	Existed bool   `json:"existed"`
	Message string `json:"message"`
}

func remove(ctx context.Context, t *suite.Target, queue string) deleted {
	outcome := t.Call(ctx, "deleteQueue", suite.Args{Path: map[string]string{"queue": queue}})
	if outcome.Status != 200 {
		suite.Failf(1, "deleteQueue was answered %d %s", outcome.Status, outcome.Body)
	}
	var d deleted
	decode(outcome.Body, &d)
	return d
}

var _ = suite.Requirement("deleteQueue.existing", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	got := remove(ctx, t, queue)
	Expect(got.Deleted).To(BeTrue())
	Expect(got.Existed).To(BeTrue())
	Expect(got.Queue).To(Equal(queue))
	Expect(list(ctx, t, queue)).To(BeEmpty())
})

var _ = suite.Requirement("deleteQueue.unknown", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := t.Raw(ctx, suite.Request{Operation: "deleteQueue", Target: "/api/v1/resources/queues/" + queue})
	Expect(answer.Status).To(Equal(200))
	var got deleted
	decode(answer.Body, &got)
	Expect(got.Deleted).To(BeFalse())
	Expect(got.Existed).To(BeFalse())
	Expect(got.Queue).To(Equal(queue))
	Expect(got.Message).NotTo(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("deleteQueue.messages", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	pop(ctx, t, queue, "autoAck=true", "batch=1")
	before := configuredAs(configure(ctx, t, queue, nil)).QueueID
	remove(ctx, t, queue)
	Expect(pop(ctx, t, queue, "consumerGroup=other").Messages).To(BeEmpty())
	pushOne(ctx, t, item{queue: queue, payload: `"new"`})
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{`"new"`}))
	Expect(configuredAs(configure(ctx, t, queue, nil)).QueueID).NotTo(Equal(before))
})

var _ = suite.Requirement("deleteQueue.dedup", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	one := item{queue: queue, transactionID: "t", payload: "1"}
	pushOne(ctx, t, one)
	remove(ctx, t, queue)
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"))
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("deleteQueue.leases", func(ctx context.Context, t *suite.Target) {
	queue, messages := popNumbers(ctx, t, 2)
	remove(ctx, t, queue)
	extended := extend(ctx, t, messages[0].LeaseID, time.Minute)
	Expect(extended.Success).To(BeFalse())
	Expect(extended.Renewed).To(BeZero())
	Expect(ack(ctx, t, of(messages[0], "completed")).Success).To(BeFalse())
})

var _ = suite.Requirement("health.healthy", func(ctx context.Context, t *suite.Target) {
	outcome := t.Call(ctx, "health", suite.Args{})
	Expect(outcome.Status).To(Equal(200))
	var got map[string]any
	decode(outcome.Body, &got)
	Expect(got).To(HaveKeyWithValue("status", "healthy"))
	Expect(got).To(HaveKeyWithValue("database", "connected"))
	Expect(got["engine"]).NotTo(BeEmpty())
	Expect(got["version"]).NotTo(BeEmpty())
})

var _ = suite.Requirement("status.ok", func(ctx context.Context, t *suite.Target) {
	answer := t.Raw(ctx, suite.Request{Operation: "status"})
	Expect(answer.Status).To(Equal(200))
	var got map[string]any
	decode(answer.Body, &got)
	Expect(got).To(HaveKeyWithValue("status", "ok"))
	Expect(got["engine"]).NotTo(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("metrics.exposition", func(ctx context.Context, t *suite.Target) {
	answer := t.Raw(ctx, suite.Request{Operation: "metrics"})
	Expect(answer.Status).To(Equal(200))
	Expect(answer.Header.Get("Content-Type")).To(HavePrefix("text/plain"))
	samples := 0
	for line := range strings.Lines(string(answer.Body)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		Expect(line).To(MatchRegexp(`^[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+0-9.eE]+(NaN|Inf)?( [0-9]+)?$|^[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? [-+]?(NaN|Inf)$`))
		samples++
	}
	Expect(samples).To(BeNumerically(">", 0), "samples")
}, suite.WireOnly)

var _ = suite.Requirement("openapi.served", func(ctx context.Context, t *suite.Target) {
	answer := t.Raw(ctx, suite.Request{Operation: "openapi"})
	Expect(answer.Status).To(Equal(200))
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		} `json:"paths"`
	}
	decode(answer.Body, &document)
	Expect(document.Paths["/api/v1/push"]["post"].OperationID).To(Equal("push"))
}, suite.WireOnly)

// page asserts that a GET of the path is answered with an HTML page.
func page(ctx context.Context, t *suite.Target, path string) {
	answer := t.Raw(ctx, suite.Request{Target: path})
	Expect(answer.Status).To(Equal(200), "GET %s", path)
	Expect(answer.Header.Get("Content-Type")).To(HavePrefix("text/html"), "GET %s", path)
	Expect(strings.ToLower(string(answer.Body))).To(ContainSubstring("<"), "GET %s", path)
}

var _ = suite.Requirement("index.page", func(ctx context.Context, t *suite.Target) {
	page(ctx, t, "/")
}, suite.WireOnly)

var _ = suite.Requirement("index.unmatched-get", func(ctx context.Context, t *suite.Target) {
	page(ctx, t, "/queues")
	page(ctx, t, "/some/deep/page")
}, suite.WireOnly)

// clockReading is the answer of the test clock.
type clockReading struct {
	Now           time.Time `json:"now"`
	OffsetSeconds float64   `json:"offsetSeconds"`
}

func clock(ctx context.Context, t *suite.Target) clockReading {
	outcome := t.Call(ctx, "getClock", suite.Args{})
	if outcome.Status != 200 {
		suite.Failf(1, "the declared capability clock does not work: GET /testing/clock answered %d %s", outcome.Status, outcome.Body)
	}
	var reading clockReading
	decode(outcome.Body, &reading)
	return reading
}

var _ = suite.Requirement("getClock.now", func(ctx context.Context, t *suite.Target) {
	before := clock(ctx, t)
	t.Advance(ctx, 90*time.Minute)
	after := clock(ctx, t)
	Expect(after.OffsetSeconds-before.OffsetSeconds).To(BeNumerically("~", 5400, 0.001), "offsetSeconds")
	Expect(after.Now.Sub(before.Now)).To(BeNumerically("~", 90*time.Minute, 30*time.Second), "now")
})

var _ = suite.Requirement("advanceClock.forward", func(ctx context.Context, t *suite.Target) {
	before := clock(ctx, t)
	answer := post(ctx, t, "advanceClock", `{"advance":"1h30m"}`)
	Expect(answer.Status).To(Equal(200))
	var after clockReading
	decode(answer.Body, &after)
	Expect(after.OffsetSeconds-before.OffsetSeconds).To(BeNumerically("~", 5400, 0.001), "offsetSeconds")
	Expect(after.Now.Sub(before.Now)).To(BeNumerically("~", 90*time.Minute, 30*time.Second), "now")
}, suite.WireOnly)

var _ = suite.Requirement("advanceClock.only-forward", func(ctx context.Context, t *suite.Target) {
	before := clock(ctx, t)
	for _, advance := range []string{`"0s"`, `"-1h"`, `""`, `"soon"`, `"1"`, `60`, `null`} {
		answer := post(ctx, t, "advanceClock", `{"advance":`+advance+`}`)
		Expect(answer.Status).To(Equal(400), "advance by %s", advance)
	}
	Expect(post(ctx, t, "advanceClock", `{}`).Status).To(Equal(400))
	Expect(clock(ctx, t).OffsetSeconds).To(Equal(before.OffsetSeconds))
}, suite.WireOnly)

var _ = suite.Requirement("advanceClock.quiescent", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for i := range 3 {
		Expect(pop(ctx, t, queue, "leaseSeconds=600").Messages).To(HaveLen(1), "after %d advances", i)
		t.Advance(ctx, 601*time.Second)
	}
})
