package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// registration is the answer to a registration of a stream query.
type registration struct {
	Success    bool   `json:"success"`
	QueryID    string `json:"query_id"`
	Name       string `json:"name"`
	ConfigHash string `json:"config_hash"`
	Fresh      bool   `json:"fresh"`
	Reset      bool   `json:"reset"`
}

// register registers a query that reads queue.
func register(ctx context.Context, t *suite.Target, name, queue, hash string, more ...string) registration {
	outcome := tryRegister(ctx, t, name, queue, hash, more...)
	if outcome.Status != 200 {
		suite.Failf(1, "the registration was answered %d %s", outcome.Status, outcome.Body)
	}
	var r registration
	decode(outcome.Body, &r)
	return r
}

func tryRegister(ctx context.Context, t *suite.Target, name, queue, hash string, more ...string) suite.Outcome {
	members := append([]string{`"name":` + quote(name), `"source_queue":` + quote(queue), `"config_hash":` + quote(hash)}, more...)
	return t.Call(ctx, "registerStream", suite.Args{Body: json.RawMessage("{" + strings.Join(members, ",") + "}")})
}

// stream is a registered query with a batch that was popped for it.
type stream struct {
	queue, queryID, partitionID string
	messages                    []message
}

// streamed pushes n numbers, registers a query and pops them for the group g.
func streamed(ctx context.Context, t *suite.Target, n int, more ...string) stream {
	s := stream{queue: t.Queue()}
	pushNumbers(ctx, t, s.queue, n)
	s.queryID = register(ctx, t, t.Unique("stream"), s.queue, "1", more...).QueryID
	s.messages = pop(ctx, t, s.queue, "consumerGroup=g").Messages
	if len(s.messages) != n {
		suite.Failf(1, "%d of %d messages were popped", len(s.messages), n)
	}
	s.partitionID = s.messages[0].PartitionID
	return s
}

// cycled is the answer to a cycle.
type cycled struct {
	Success     bool     `json:"success"`
	Error       string   `json:"error"`
	QueueName   string   `json:"queueName"`
	Applied     int      `json:"state_ops_applied"`
	PushResults []pushed `json:"push_results"`
	AckResult   *struct {
		Success       bool `json:"success"`
		Count         int  `json:"count"`
		LeaseReleased bool `json:"lease_released"`
		DLQ           bool `json:"dlq"`
	} `json:"ack_result"`
}

// cycle sends a cycle; members are further members of its body.
func (s stream) cycle(ctx context.Context, t *suite.Target, members ...string) cycled {
	outcome := t.Call(ctx, "cycleStream", suite.Args{Body: json.RawMessage(s.body(members...))})
	if outcome.Status != 200 {
		suite.Failf(1, "the cycle was answered %d %s", outcome.Status, outcome.Body)
	}
	var c cycled
	decode(outcome.Body, &c)
	return c
}

func (s stream) body(members ...string) string {
	members = append([]string{`"query_id":` + quote(s.queryID), `"partition_id":` + quote(s.partitionID), `"consumer_group":"g"`}, members...)
	return "{" + strings.Join(members, ",") + "}"
}

// commit is a cycle that must be committed.
func (s stream) commit(ctx context.Context, t *suite.Target, members ...string) cycled {
	c := s.cycle(ctx, t, members...)
	if !c.Success {
		suite.Failf(1, "the cycle was not committed: %s", c.Error)
	}
	return c
}

// put are state operations that write key=value.
func put(pairs ...string) string {
	ops := make([]string, len(pairs))
	for i, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		ops[i] = `{"type":"upsert","key":` + quote(key) + `,"value":` + value + `}`
	}
	return `"state_ops":[` + strings.Join(ops, ",") + `]`
}

func (s stream) ack(m message, more string) string {
	return `"ack":{"transactionId":` + quote(m.TransactionID) + `,"leaseId":` + quote(m.LeaseID) + more + `}`
}

// state reads key=value in the order of the answer.
func (s stream) state(ctx context.Context, t *suite.Target, members ...string) []string {
	members = append([]string{`"query_id":` + quote(s.queryID), `"partition_id":` + quote(s.partitionID)}, members...)
	outcome := t.Call(ctx, "getStreamState", suite.Args{Body: json.RawMessage("{" + strings.Join(members, ",") + "}")})
	if outcome.Status != 200 {
		suite.Failf(1, "the state was answered %d %s", outcome.Status, outcome.Body)
	}
	var answer struct {
		Rows []struct {
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
		} `json:"rows"`
	}
	decode(outcome.Body, &answer)
	pairs := []string{}
	for _, row := range answer.Rows {
		pairs = append(pairs, row.Key+"="+string(row.Value))
	}
	return pairs
}

var _ = suite.Requirement("registerStream.required", func(ctx context.Context, t *suite.Target) {
	for _, body := range []string{
		`{}`, `{"source_queue":"q","config_hash":"1"}`, `{"name":"s","config_hash":"1"}`, `{"name":"s","source_queue":"q"}`,
		`{"name":"","source_queue":"q","config_hash":"1"}`, `{"name":"s","source_queue":"","config_hash":"1"}`,
		`{"name":"s","source_queue":"q","config_hash":""}`, `[]`, `null`,
	} {
		rejected(post(ctx, t, "registerStream", body))
	}
}, suite.WireOnly)

var _ = suite.Requirement("registerStream.fresh", func(ctx context.Context, t *suite.Target) {
	name, queue := t.Unique("stream"), t.Queue()
	first := register(ctx, t, name, queue, "1")
	Expect(first.QueryID).To(MatchRegexp(`^[0-9a-f-]{36}$`))
	Expect(first).To(Equal(registration{Success: true, QueryID: first.QueryID, Name: name, ConfigHash: "1", Fresh: true}))
	Expect(register(ctx, t, name, queue, "1", `"reset":false`)).To(Equal(registration{Success: true, QueryID: first.QueryID, Name: name, ConfigHash: "1"}))
	Expect(register(ctx, t, t.Unique("stream"), queue, "1").QueryID).NotTo(Equal(first.QueryID), "id of another query")
})

var _ = suite.Requirement("registerStream.changed", func(ctx context.Context, t *suite.Target) {
	name, queue := t.Unique("stream"), t.Queue()
	first := register(ctx, t, name, queue, "1")
	Expect(tryRegister(ctx, t, name, queue, "2").Status).To(Equal(409))
	Expect(tryRegister(ctx, t, name, queue, "2", `"reset":false`).Status).To(Equal(409))
	Expect(register(ctx, t, name, queue, "1").QueryID).To(Equal(first.QueryID))
})

var _ = suite.Requirement("registerStream.reset", func(ctx context.Context, t *suite.Target) {
	s := stream{queue: t.Queue()}
	name := t.Unique("stream")
	pushNumbers(ctx, t, s.queue, 1)
	s.partitionID = pop(ctx, t, s.queue).Messages[0].PartitionID
	s.queryID = register(ctx, t, name, s.queue, "1").QueryID
	for _, hash := range []string{"2", "2"} {
		s.commit(ctx, t, put("k=1"))
		reset := register(ctx, t, name, s.queue, hash, `"reset":true`)
		Expect(reset.Fresh).To(BeFalse())
		Expect(reset.Reset).To(BeTrue())
		s.queryID = reset.QueryID
		Expect(s.state(ctx, t)).To(BeEmpty(), "state after a reset to %s", hash)
	}
	Expect(register(ctx, t, name, s.queue, "2").Fresh).To(BeFalse())
})

var _ = suite.Requirement("registerStream.reset-fences", func(ctx context.Context, t *suite.Target) {
	old := stream{queue: t.Queue()}
	name := t.Unique("stream")
	pushNumbers(ctx, t, old.queue, 1)
	old.partitionID = pop(ctx, t, old.queue).Messages[0].PartitionID
	old.queryID = register(ctx, t, name, old.queue, "1").QueryID
	now := old
	now.queryID = register(ctx, t, name, old.queue, "2", `"reset":true`).QueryID
	Expect(old.cycle(ctx, t, put("k=1")).Success).To(BeFalse(), "success of a cycle with the query_id of before the reset")
	Expect(now.state(ctx, t)).To(BeEmpty())
})

var _ = suite.Requirement("getStreamState.keys", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	s.commit(ctx, t, put("b:1=1", "a=2", "b:2=3", "B=4", "c=5"))
	for members, want := range map[string][]string{
		``:                                    {"B=4", "a=2", "b:1=1", "b:2=3", "c=5"},
		`"key_prefix":"b:"`:                   {"b:1=1", "b:2=3"},
		`"keys":["c","a"]`:                    {"a=2", "c=5"},
		`"keys":[]`:                           {},
		`"keys":["c","b:2"],"key_prefix":"b"`: {"b:2=3"},
	} {
		var conditions []string
		if members != "" {
			conditions = []string{members}
		}
		Expect(s.state(ctx, t, conditions...)).To(Equal(want), "state with %s", members)
	}
})

var _ = suite.Requirement("getStreamState.ripe", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	s.commit(ctx, t, put(`a={"windowEnd":10}`, `b={"windowEnd":11}`, `c=1`, `d={"windowEnd":"9"}`, `e={"x":1}`))
	Expect(s.state(ctx, t, `"ripe_at_or_before":10`)).To(Equal([]string{`a={"windowEnd":10}`}))
	Expect(s.state(ctx, t, `"ripe_at_or_before":11`)).To(HaveLen(2))
})

var _ = suite.Requirement("getStreamState.scope", func(ctx context.Context, t *suite.Target) {
	first, second := streamed(ctx, t, 1), streamed(ctx, t, 1)
	first.commit(ctx, t, put("k=1"))
	elsewhere := first
	elsewhere.partitionID = second.partitionID
	other := first
	other.queryID = second.queryID
	Expect(elsewhere.state(ctx, t)).To(BeEmpty(), "state of another partition")
	Expect(other.state(ctx, t)).To(BeEmpty(), "state of another query")
	Expect(first.state(ctx, t)).To(Equal([]string{"k=1"}))
})

var _ = suite.Requirement("cycleStream.required", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	never := t.Queue()
	push := `"push_items":[{"queue":` + quote(never) + `,"payload":1}]`
	for _, body := range []string{
		`{"partition_id":` + quote(s.partitionID) + `}`, `{"query_id":` + quote(s.queryID) + `}`,
		`{"query_id":"x","partition_id":` + quote(s.partitionID) + `}`,
		s.body(push, `"state_ops":[{"type":"put","key":"k","value":1}]`), s.body(push, `"state_ops":[{"type":"upsert","key":"k"}]`),
		s.body(push, `"state_ops":[{"type":"upsert","value":1}]`), `[]`,
	} {
		rejected(post(ctx, t, "cycleStream", body))
	}
	Expect(drain(ctx, t, never)).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("cycleStream.state", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	const odd = `{ "b":1e400 ,"a":"\ud800\u0000","b":2}`
	Expect(s.commit(ctx, t, put("a=1", "b="+odd, "c=null", "a=2")).Applied).To(Equal(4))
	Expect(s.state(ctx, t)).To(Equal([]string{"a=2", "b=" + odd, "c=null"}))
	Expect(s.commit(ctx, t, `"state_ops":[{"type":"delete","key":"b"},{"type":"upsert","key":"c","value":[]},{"type":"delete","key":"nobody"}]`).Applied).To(Equal(3))
	Expect(s.state(ctx, t)).To(Equal([]string{"a=2", "c=[]"}))
	Expect(s.commit(ctx, t).Applied).To(Equal(0))
})

var _ = suite.Requirement("cycleStream.push", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	out := t.Queue()
	old := pushOne(ctx, t, item{queue: out, transactionID: "old", payload: "0"})
	items := make([]string, 0, 3)
	for i, id := range []string{"a", "old", "b"} {
		items = append(items, item{queue: out, transactionID: id, payload: fmt.Sprint(i + 1)}.json())
	}
	c := s.commit(ctx, t, `"push_items":[`+strings.Join(items, ",")+`]`)
	stored := drain(ctx, t, out)
	Expect(dataOf(stored)).To(Equal([]string{"0", "1", "3"}))
	Expect(c.PushResults).To(Equal([]pushed{
		{Index: 0, MessageID: stored[1].ID, TransactionID: "a", QueueName: out, Status: "queued"},
		{Index: 1, MessageID: old.MessageID, TransactionID: "old", QueueName: out, Status: "duplicate"},
		{Index: 2, MessageID: stored[2].ID, TransactionID: "b", QueueName: out, Status: "queued"},
	}))
})

var _ = suite.Requirement("cycleStream.sink", func(ctx context.Context, t *suite.Target) {
	sink := t.Queue()
	s := streamed(ctx, t, 1, `"sink_queue":`+quote(sink))
	const push = `"push_items":[{"transactionId":"a","payload":1}]`
	Expect(s.commit(ctx, t, push).PushResults[0].QueueName).To(Equal(sink))
	Expect(dataOf(drain(ctx, t, sink))).To(Equal([]string{"1"}))
	Expect(streamed(ctx, t, 1).cycle(ctx, t, push).Success).To(BeFalse(), "success of a cycle without a sink")
})

var _ = suite.Requirement("cycleStream.ack", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 3)
	c := s.commit(ctx, t, s.ack(s.messages[2], `,"count":3`))
	Expect(c.QueueName).To(Equal(s.queue))
	Expect(c.AckResult).NotTo(BeNil())
	Expect(*c.AckResult).To(HaveField("Count", 3))
	Expect(*c.AckResult).To(HaveField("LeaseReleased", true))
	Expect(*c.AckResult).To(HaveField("DLQ", false))
	pushOne(ctx, t, item{queue: s.queue, payload: "3"})
	next := pop(ctx, t, s.queue, "consumerGroup=g").Messages
	Expect(dataOf(next)).To(Equal([]string{"3"}), "with the batch acknowledged")
	Expect(s.commit(ctx, t, s.ack(next[0], `,"status":"dlq"`)).AckResult).To(HaveValue(HaveField("DLQ", true)))
	Expect(drain(ctx, t, s.queue)).To(HaveLen(4), "messages of another group")
})

var _ = suite.Requirement("cycleStream.ack", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	answer := post(ctx, t, "cycleStream", s.body(`"ack":null`))
	var body map[string]any
	decode(answer.Body, &body)
	Expect(body).To(HaveKeyWithValue("ack_result", BeNil()))
}, suite.WireOnly)

var _ = suite.Requirement("cycleStream.release", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 4)
	kept := s.commit(ctx, t, s.ack(s.messages[0], ""), `"release_lease":false`)
	Expect(kept.AckResult).To(HaveValue(HaveField("LeaseReleased", false)))
	Expect(pop(ctx, t, s.queue, "consumerGroup=g").Messages).To(BeEmpty(), "while the lease is kept")
	released := s.commit(ctx, t, s.ack(s.messages[1], ""))
	Expect(released.AckResult).To(HaveValue(HaveField("LeaseReleased", true)))
	Expect(pop(ctx, t, s.queue, "consumerGroup=g").data()).To(Equal([]string{"2", "3"}))
})

var _ = suite.Requirement("cycleStream.atomic", func(ctx context.Context, t *suite.Target) {
	s := streamed(ctx, t, 1)
	never := t.Queue()
	push := `"push_items":[` + item{queue: never, transactionID: "a"}.json() + `]`
	lost, stale := s.messages[0], s.messages[0]
	lost.TransactionID = "nobody"
	stale.LeaseID = "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"
	unknownQuery, unknownPartition := s, s
	unknownQuery.queryID, unknownPartition.partitionID = "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60", "0198f2c1-5e21-7a02-8f00-1b2c3d4e5f60"
	for _, c := range []cycled{
		s.cycle(ctx, t, put("k=1"), push, s.ack(lost, "")), s.cycle(ctx, t, put("k=1"), push, s.ack(stale, "")),
		unknownQuery.cycle(ctx, t, put("k=1"), push), unknownPartition.cycle(ctx, t, put("k=1"), push),
	} {
		Expect(c.Success).To(BeFalse(), "success")
		Expect(c.Error).NotTo(BeEmpty(), "error")
	}
	Expect(s.state(ctx, t)).To(BeEmpty())
	Expect(drain(ctx, t, never)).To(BeEmpty())
	Expect(s.commit(ctx, t, push, s.ack(s.messages[0], "")).PushResults[0].Status).To(Equal("queued"))
})
