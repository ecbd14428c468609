package server

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// faults are what a spec lets fail.
type faults struct {
	Postgres string   `json:"postgres,omitempty"`
	Spool    string   `json:"spool,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	Times    int      `json:"times,omitempty"`
}

// inject puts faults in force until the spec ends.
func inject(ctx context.Context, t *suite.Target, f faults) faults {
	t.Cleanup(func(ctx context.Context) { _, _ = t.Try(ctx, "setFaults", suite.Args{Body: json.RawMessage(`{}`)}) })
	return replaceFaults(ctx, t, f)
}

// heal ends all faults.
func heal(ctx context.Context, t *suite.Target) { replaceFaults(ctx, t, faults{}) }

func replaceFaults(ctx context.Context, t *suite.Target, f faults) faults {
	body, err := json.Marshal(f)
	Expect(err).NotTo(HaveOccurred())
	outcome := t.Call(ctx, "setFaults", suite.Args{Body: body})
	if outcome.Status != 200 {
		suite.Failf(2, "the declared capability faults does not work: PUT /testing/faults answered %d %s", outcome.Status, outcome.Body)
	}
	var now faults
	decode(outcome.Body, &now)
	return now
}

// three are one item for each of three partitions, with one transaction id.
func three(queue, transactionID string) []item {
	items := make([]item, 3)
	for i := range items {
		items[i] = item{queue: queue, partition: fmt.Sprint("p", i+1), transactionID: transactionID, payload: quote(transactionID)}
	}
	return items
}

// await repeats a look until it says yes.
func await(ctx context.Context, t *suite.Target, what string, look func() bool) {
	for deadline := time.Now().Add(t.Patience()); !look(); {
		if time.Now().After(deadline) {
			suite.Failf(1, "%s: not within %s", what, t.Patience())
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			suite.Failf(1, "%s: interrupted", what)
		}
	}
}

var _ = suite.Requirement("setFaults.replace", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	first := faults{Postgres: "error", Groups: []string{queue + "/p1"}, Times: 3}
	Expect(inject(ctx, t, first)).To(Equal(first))
	second := faults{Postgres: "error", Groups: []string{queue + "/p2"}}
	Expect(inject(ctx, t, second)).To(Equal(second))
	Expect(statuses(push(ctx, t, three(queue, "a")...))).To(Equal([]string{"queued", "buffered", "queued"}))
	Expect(replaceFaults(ctx, t, faults{})).To(Equal(faults{}))
	Expect(statuses(push(ctx, t, three(queue, "b")...))).To(Equal([]string{"queued", "queued", "queued"}))
})

var _ = suite.Requirement("setFaults.invalid", func(ctx context.Context, t *suite.Target) {
	inject(ctx, t, faults{})
	queue := t.Queue()
	for _, body := range []string{
		`{"postgres":"slow"}`, `{"postgres":true}`, `{"spool":"hang"}`, `{"groups":"q/p"}`, `{"postgres":"error","groups":["q"]}`,
		`{"postgres":"error","groups":["q/p/r"]}`, `{"postgres":"error","groups":["/p"]}`, `{"postgres":"error","times":1}`,
		`{"postgres":"error","groups":["q/p"],"times":0}`, `{"postgres":"hang","groups":["q/p"]}`, `[]`,
	} {
		rejected(post(ctx, t, "setFaults", body))
	}
	Expect(pushOne(ctx, t, item{queue: queue, payload: "1"}).Status).To(Equal("queued"))
}, suite.WireOnly)

var _ = suite.Requirement("setFaults.groups", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Groups: []string{queue + "/p2"}})
	push(ctx, t, three(queue, "a")...)
	Expect(popPartition(ctx, t, queue, "p1").Messages).To(HaveLen(1))
	Expect(popPartition(ctx, t, queue, "p2").Messages).To(BeEmpty())
	Expect(popPartition(ctx, t, queue, "p3").Messages).To(HaveLen(1))
	Expect(pushOne(ctx, t, item{queue: t.Queue(), partition: "p2", payload: "1"}).Status).To(Equal("queued"), "in another queue")
})

var _ = suite.Requirement("setFaults.times", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Spool: "error", Groups: []string{queue + "/p1"}, Times: 2})
	var got []string
	for range 3 {
		got = append(got, pushOne(ctx, t, item{queue: queue, partition: "p1", payload: "1"}).Status)
	}
	Expect(got).To(Equal([]string{"failed", "failed", "queued"}))
})

var _ = suite.Requirement("setFaults.settled", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	inject(ctx, t, faults{Postgres: "error"})
	Expect(pushOne(ctx, t, item{queue: queue, payload: "1"}).Status).To(Equal("buffered"))
	heal(ctx, t)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", "1"}))
})

var _ = suite.Requirement("setFaults.hang", func(ctx context.Context, t *suite.Target) {
	inject(ctx, t, faults{Postgres: "hang"})
	Expect(t.Raw(ctx, suite.Request{Operation: "health"}).Status).To(Equal(503))
	heal(ctx, t)
	Expect(t.Raw(ctx, suite.Request{Operation: "health"}).Status).To(Equal(200))
}, suite.WireOnly)

var _ = suite.Requirement("health.unhealthy", func(ctx context.Context, t *suite.Target) {
	inject(ctx, t, faults{Postgres: "error"})
	start := time.Now()
	answer := t.Raw(ctx, suite.Request{Operation: "health"})
	Expect(answer.Status).To(Equal(503))
	Expect(time.Since(start)).To(BeNumerically("<", 10*time.Second))
	var got map[string]any
	decode(answer.Body, &got)
	Expect(got).To(HaveKeyWithValue("status", "unhealthy"))
	Expect(got).To(HaveKeyWithValue("database", "disconnected"))
	heal(ctx, t)
	Expect(t.Raw(ctx, suite.Request{Operation: "health"}).Status).To(Equal(200), "afterwards")
}, suite.WireOnly)

var _ = suite.Requirement("status.no-database", func(ctx context.Context, t *suite.Target) {
	inject(ctx, t, faults{Postgres: "error"})
	Expect(t.Raw(ctx, suite.Request{Operation: "status"}).Status).To(Equal(200))
}, suite.WireOnly)

var _ = suite.Requirement("getBuffers.database", func(ctx context.Context, t *suite.Target) {
	up := func() bool {
		outcome := t.Call(ctx, "getBuffers", suite.Args{})
		Expect(outcome.Status).To(Equal(200))
		var got struct {
			DBHealthy bool `json:"dbHealthy"`
		}
		decode(outcome.Body, &got)
		return got.DBHealthy
	}
	inject(ctx, t, faults{Postgres: "error"})
	await(ctx, t, "dbHealthy to turn false", func() bool { return !up() })
	heal(ctx, t)
	await(ctx, t, "dbHealthy to turn true", up)
})

var _ = suite.Requirement("http.unavailable.retry-after", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	messages := pop(ctx, t, queue).Messages
	Expect(messages).To(HaveLen(1))
	body, err := json.Marshal(of(messages[0], "completed"))
	Expect(err).NotTo(HaveOccurred())
	inject(ctx, t, faults{Postgres: "error"})
	for what, answer := range map[string]suite.Answer{
		"a pop":       t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + queue + "?consumerGroup=other"}),
		"an ack":      post(ctx, t, "ack", string(body)),
		"a configure": post(ctx, t, "configure", `{"queue":`+quote(queue)+`}`),
	} {
		Expect(answer.Status).To(Equal(503), what)
		Expect(answer.Header.Get("Retry-After")).To(MatchRegexp(`^[0-9]+$`), "Retry-After of %s", what)
	}
	heal(ctx, t)
	Expect(ack(ctx, t, of(messages[0], "completed")).Success).To(BeTrue(), "the ack afterwards")
}, suite.WireOnly)

var _ = suite.Requirement("pop.errors.not-empty", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	inject(ctx, t, faults{Postgres: "error"})
	for _, args := range []suite.Args{
		{Path: map[string]string{"queue": queue}},
		{Path: map[string]string{"queue": queue}, Query: query([]string{"consumerGroup=new", "autoAck=true"})},
	} {
		Expect(t.Call(ctx, "popQueue", args).Status).To(BeElementOf(500, 503))
	}
	heal(ctx, t)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0"}), "afterwards")
})

var _ = suite.Requirement("push.atomicity.group", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Spool: "error", Groups: []string{queue + "/p2"}})
	Expect(statuses(push(ctx, t, three(queue, "a")...))).To(Equal([]string{"queued", "failed", "queued"}))
	Expect(popPartition(ctx, t, queue, "p1").Messages).To(HaveLen(1))
	Expect(popPartition(ctx, t, queue, "p3").Messages).To(HaveLen(1))
})

var _ = suite.Requirement("push.atomicity.group-whole", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Spool: "error", Groups: []string{queue + "/Default"}})
	Expect(statuses(pushNumbers(ctx, t, queue, 4))).To(Equal([]string{"failed", "failed", "failed", "failed"}))
	heal(ctx, t)
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty())
})

var _ = suite.Requirement("push.dedup.in-request-inherits", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	one := item{queue: queue, partition: "p1", transactionID: "t", payload: "1"}
	for _, c := range []struct {
		faults faults
		status string
	}{
		{faults{Postgres: "error", Spool: "error", Groups: []string{queue + "/p1"}}, "failed"},
		{faults{Postgres: "error", Groups: []string{queue + "/p1"}}, "buffered"},
	} {
		inject(ctx, t, c.faults)
		results := push(ctx, t, one, one)
		Expect(statuses(results)).To(Equal([]string{c.status, c.status}))
		Expect(results[1].MessageID).To(Equal(results[0].MessageID))
	}
	heal(ctx, t)
	Expect(drain(ctx, t, queue)).To(HaveLen(1))
})

var _ = suite.Requirement("push.spool.buffered", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Groups: []string{queue + "/p2"}})
	Expect(statuses(push(ctx, t, three(queue, "a")...))).To(Equal([]string{"queued", "buffered", "queued"}), "one group of three")
	inject(ctx, t, faults{Postgres: "error"})
	Expect(statuses(push(ctx, t, three(t.Queue(), "a")...))).To(Equal([]string{"buffered", "buffered", "buffered"}), "a new queue in an outage")
})

var _ = suite.Requirement("push.spool.replayed", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	inject(ctx, t, faults{Postgres: "error"})
	payload := `{"n":1e400, "s":"\ud800"}`
	pushOne(ctx, t, item{queue: queue, payload: payload})
	heal(ctx, t)
	Expect(pop(ctx, t, queue).data()).To(Equal([]string{"0", payload}))
})

var _ = suite.Requirement("push.spool.same-id", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Groups: []string{queue + "/Default"}})
	var want []string
	for _, r := range push(ctx, t, item{queue: queue, transactionID: "t", payload: "1"}, item{queue: queue, payload: "2"}) {
		want = append(want, r.MessageID)
	}
	heal(ctx, t)
	var got []string
	for _, m := range drain(ctx, t, queue) {
		got = append(got, m.ID)
	}
	Expect(got).To(Equal(want))
})

var _ = suite.Requirement("push.spool.once", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	item := func(id string) item {
		return item{queue: queue, transactionID: id, payload: quote(id)}
	}
	pushOne(ctx, t, item("before"))
	inject(ctx, t, faults{Postgres: "error", Groups: []string{queue + "/Default"}})
	for _, id := range []string{"before", "meanwhile", "meanwhile", "after"} {
		Expect(pushOne(ctx, t, item(id)).Status).To(Equal("buffered"))
	}
	heal(ctx, t)
	Expect(pushOne(ctx, t, item("after")).Status).To(Equal("duplicate"))
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{`"before"`, `"meanwhile"`, `"after"`}))
})

var _ = suite.Requirement("push.spool.order", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Groups: []string{queue + "/Default"}, Times: 1})
	var want []string
	for i := range 20 {
		Expect(pushOne(ctx, t, item{queue: queue, payload: fmt.Sprint(i)}).Status).To(BeElementOf("queued", "buffered"))
		want = append(want, fmt.Sprint(i))
	}
	heal(ctx, t)
	Expect(dataOf(drain(ctx, t, queue))).To(Equal(want))
})

var _ = suite.Requirement("push.spool.window-zero", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"dedupWindowSeconds": 0})
	one := item{queue: queue, transactionID: "t", payload: "1"}
	inject(ctx, t, faults{Postgres: "error", Groups: []string{queue + "/Default"}})
	pushOne(ctx, t, one)
	pushOne(ctx, t, one)
	heal(ctx, t)
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1", "1"}))
})

var _ = suite.Requirement("push.spool.failed", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	inject(ctx, t, faults{Postgres: "error", Spool: "error"})
	Expect(statuses(push(ctx, t, three(queue, "a")...))).To(Equal([]string{"failed", "failed", "failed"}))
})

var _ = suite.Requirement("push.spool.failed-nowhere", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	one := item{queue: queue, transactionID: "t", payload: "1"}
	inject(ctx, t, faults{Postgres: "error", Spool: "error", Groups: []string{queue + "/Default"}})
	Expect(pushOne(ctx, t, one).Status).To(Equal("failed"))
	heal(ctx, t)
	Expect(pop(ctx, t, queue).Messages).To(BeEmpty())
	Expect(pushOne(ctx, t, one).Status).To(Equal("queued"))
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("transaction.never-spooled", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	inject(ctx, t, faults{Postgres: "error"})
	answer := post(ctx, t, "transaction", string(transactionBody(nil, `{"type":"push","items":[{"queue":`+quote(queue)+`,"payload":1}]}`)))
	Expect(answer.Status).To(Equal(503))
	Expect(answer.Header.Get("Retry-After")).To(MatchRegexp(`^[0-9]+$`))
	heal(ctx, t)
	Expect(drained(ctx, t, queue, 1)).To(Equal([]string{"0"}))
}, suite.WireOnly)
