package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// traceOf is one listed trace.
type traceOf struct {
	ID            string          `json:"id"`
	EventType     string          `json:"event_type"`
	Data          json.RawMessage `json:"data"`
	ConsumerGroup *string         `json:"consumer_group"`
	CreatedAt     string          `json:"created_at"`
	TraceNames    []string        `json:"trace_names"`
	TransactionID string          `json:"transaction_id"`
	PartitionID   string          `json:"partition_id"`
	QueueName     string          `json:"queue_name"`
	PartitionName string          `json:"partition_name"`
}

type traceList struct {
	Traces     []traceOf `json:"traces"`
	Total      int       `json:"total"`
	Pagination struct {
		Limit  int `json:"limit"`
		Offset int `json:"offset"`
	} `json:"pagination"`
}

func (l traceList) data() []string {
	texts := []string{}
	for _, t := range l.Traces {
		texts = append(texts, string(t.Data))
	}
	return texts
}

// traced makes a message of a fresh queue, and returns it popped.
func traced(ctx context.Context, t *suite.Target) message {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "p", payload: "1"})
	return popOne(ctx, t, queue, "consumerGroup=g")
}

// note stores a trace of a message, whose further members are JSON, and returns its id.
func note(ctx context.Context, t *suite.Target, m message, members string) string {
	body := fmt.Sprintf(`{"transactionId":%s,"partitionId":%q,%s}`, quote(m.TransactionID), m.PartitionID, members)
	outcome := t.Call(ctx, "trace", suite.Args{Body: []byte(body)})
	if outcome.Status != 201 {
		suite.Failf(1, "the trace was answered %d %s", outcome.Status, outcome.Body)
	}
	var stored struct {
		TraceID string `json:"traceId"`
	}
	decode(outcome.Body, &stored)
	return stored.TraceID
}

func tracesOf(ctx context.Context, t *suite.Target, m message) traceList {
	var l traceList
	answered(t.Call(ctx, "messageTraces", addressOf(m)), &l)
	return l
}

func tracesNamed(ctx context.Context, t *suite.Target, name string, params ...string) traceList {
	var l traceList
	answered(t.Call(ctx, "tracesByName", suite.Args{Path: map[string]string{"name": name}, Query: query(params)}), &l)
	return l
}

func (l traceList) at(i int) traceOf {
	if i >= len(l.Traces) {
		suite.Failf(1, "there are only %d traces in the list", len(l.Traces))
	}
	return l.Traces[i]
}

var _ = suite.Requirement("trace.stored", func(ctx context.Context, t *suite.Target) {
	m := traced(ctx, t)
	id := note(ctx, t, m, `"data":1`)
	Expect(tracesOf(ctx, t, m).at(0).ID).To(Equal(id))
})

var _ = suite.Requirement("trace.data", func(ctx context.Context, t *suite.Target) {
	m := traced(ctx, t)
	values := []string{"null", `""`, "[1, 2]", odd, `"\ud800"`}
	for _, data := range values {
		note(ctx, t, m, `"data":`+data)
	}
	Expect(tracesOf(ctx, t, m).data()).To(Equal(values))
}, suite.WireOnly)

var _ = suite.Requirement("trace.defaults", func(ctx context.Context, t *suite.Target) {
	m := traced(ctx, t)
	note(ctx, t, m, `"data":1`)
	got := tracesOf(ctx, t, m).at(0)
	Expect(got.EventType).To(Equal("info"))
	Expect(got.ConsumerGroup).To(BeNil())
	Expect(got.TraceNames).To(BeEmpty())
})

var _ = suite.Requirement("trace.names", func(ctx context.Context, t *suite.Target) {
	m, one, two := traced(ctx, t), t.Unique("a"), t.Unique("b")
	note(ctx, t, m, fmt.Sprintf(`"data":1,"traceNames":[%q,%q]`, one, two))
	note(ctx, t, m, fmt.Sprintf(`"data":2,"traceNames":%q`, two))
	Expect(tracesNamed(ctx, t, one).data()).To(Equal([]string{"1"}))
	Expect(tracesNamed(ctx, t, two).data()).To(ConsistOf("1", "2"))
}, suite.WireOnly)

var _ = suite.Requirement("trace.invalid", func(ctx context.Context, t *suite.Target) {
	id := traced(ctx, t).PartitionID
	for _, body := range []string{
		`{}`, `{"partitionId":"` + id + `","data":1}`, `{"transactionId":"t","data":1}`, `{"transactionId":"t","partitionId":"` + id + `"}`,
		`{"transactionId":"t","partitionId":"p","data":1}`, `{"transactionId":"t","partitionId":"` + id + `","data":1,"traceNames":7}`,
		`{"transactionId":"t","partitionId":"` + id + `","data":1,"traceNames":[7]}`,
	} {
		rejected(post(ctx, t, "trace", body))
	}
}, suite.WireOnly)

var _ = suite.Requirement("trace.data-limit", func(ctx context.Context, t *suite.Target) {
	m := traced(ctx, t)
	rejected(post(ctx, t, "trace", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"data":"%s"}`, m.PartitionID, strings.Repeat("x", 1<<20))))
}, suite.WireOnly)

var _ = suite.Requirement("trace.partition-unknown", func(ctx context.Context, t *suite.Target) {
	answer := post(ctx, t, "trace", `{"transactionId":"t","partitionId":"01890000-0000-7000-8000-000000000000","data":1}`)
	Expect(answer.Status).To(Equal(404))
	Expect(answer.Body).To(MatchJSON(`{"error":"Partition not found"}`))
	m := traced(ctx, t)
	m.TransactionID = "nobody"
	note(ctx, t, m, `"data":1`)
}, suite.WireOnly)

var _ = suite.Requirement("trace.retention", func(ctx context.Context, t *suite.Target) {
	m := traced(ctx, t)
	configure(ctx, t, m.Queue, map[string]any{"retentionEnabled": true, "retentionSeconds": 3600})
	note(ctx, t, m, `"data":1`)
	t.Advance(ctx, 59*time.Minute)
	Expect(tracesOf(ctx, t, m).Traces).To(HaveLen(1), "after 59 minutes")
	t.Advance(ctx, 2*time.Minute)
	Expect(tracesOf(ctx, t, m).Traces).To(BeEmpty(), "after 61 minutes")
})

var _ = suite.Requirement("messageTraces.row", func(ctx context.Context, t *suite.Target) {
	m, name := traced(ctx, t), t.Unique("name")
	first := note(ctx, t, m, fmt.Sprintf(`"data":{"a":1},"eventType":"step","consumerGroup":"g","traceNames":[%q]`, name))
	t.Elapse(ctx, 2*time.Millisecond)
	note(ctx, t, m, `"data":2`)
	list := tracesOf(ctx, t, m)
	Expect(list.data()).To(Equal([]string{`{"a":1}`, "2"}))
	got := list.at(0)
	Expect([]string{got.ID, got.EventType}).To(Equal([]string{first, "step"}))
	Expect(got.ConsumerGroup).To(HaveValue(Equal("g")))
	Expect(got.TraceNames).To(Equal([]string{name}))
})

var _ = suite.Requirement("messageTraces.apart", func(ctx context.Context, t *suite.Target) {
	m, other := traced(ctx, t), traced(ctx, t)
	note(ctx, t, m, `"data":1`)
	same := other
	same.TransactionID = m.TransactionID
	note(ctx, t, same, `"data":2`)
	different := m
	different.TransactionID = "different"
	note(ctx, t, different, `"data":3`)
	Expect(tracesOf(ctx, t, m).data()).To(Equal([]string{"1"}))
})

var _ = suite.Requirement("messageTraces.deleted", func(ctx context.Context, t *suite.Target) {
	m := traced(ctx, t)
	note(ctx, t, m, `"data":1`)
	t.Call(ctx, "deleteQueue", suite.Args{Path: map[string]string{"queue": m.Queue}})
	Expect(tracesOf(ctx, t, m).Traces).To(BeEmpty())
})

var _ = suite.Requirement("tracesByName.row", func(ctx context.Context, t *suite.Target) {
	m, other, name := traced(ctx, t), traced(ctx, t), t.Unique("a/b c")
	note(ctx, t, m, fmt.Sprintf(`"data":1,"traceNames":[%q]`, name))
	t.Elapse(ctx, 2*time.Millisecond)
	note(ctx, t, other, fmt.Sprintf(`"data":2,"traceNames":[%q]`, name))
	list := tracesNamed(ctx, t, name)
	Expect(list.data()).To(Equal([]string{"2", "1"}))
	got := list.at(1)
	Expect([]string{got.TransactionID, got.PartitionID, got.QueueName, got.PartitionName}).
		To(Equal([]string{m.TransactionID, m.PartitionID, m.Queue, m.Partition}))
})

var _ = suite.Requirement("tracesByName.page", func(ctx context.Context, t *suite.Target) {
	m, name := traced(ctx, t), t.Unique("name")
	for i := range 3 {
		note(ctx, t, m, fmt.Sprintf(`"data":%d,"traceNames":[%q]`, i, name))
		t.Elapse(ctx, 2*time.Millisecond)
	}
	list := tracesNamed(ctx, t, name, "limit=1", "offset=1")
	Expect(list.data()).To(Equal([]string{"1"}))
	Expect(list.Total).To(Equal(3))
})

var _ = suite.Requirement("tracesByName.static", func(ctx context.Context, t *suite.Target) {
	Expect(tracesNamed(ctx, t, t.Unique("nobody")).Traces).To(BeEmpty())
})

type traceNameOf struct {
	TraceName    string `json:"trace_name"`
	TraceCount   int    `json:"trace_count"`
	MessageCount int    `json:"message_count"`
}

var _ = suite.Requirement("traceNames.row", func(ctx context.Context, t *suite.Target) {
	m, other, one, two := traced(ctx, t), traced(ctx, t), t.Unique("a"), t.Unique("b")
	for _, at := range []message{m, m, other} {
		note(ctx, t, at, fmt.Sprintf(`"data":1,"traceNames":[%q]`, one))
	}
	t.Elapse(ctx, 2*time.Millisecond)
	note(ctx, t, m, fmt.Sprintf(`"data":1,"traceNames":[%q]`, two))
	var list struct {
		TraceNames []traceNameOf `json:"trace_names"`
	}
	answered(t.Call(ctx, "traceNames", suite.Args{Query: query([]string{"limit=2"})}), &list)
	Expect(list.TraceNames).To(Equal([]traceNameOf{{two, 1, 1}, {one, 3, 2}}))
})

var _ = suite.Requirement("traceNames.page", func(ctx context.Context, t *suite.Target) {
	m, one, two := traced(ctx, t), t.Unique("a"), t.Unique("b")
	note(ctx, t, m, fmt.Sprintf(`"data":1,"traceNames":[%q]`, one))
	t.Elapse(ctx, 2*time.Millisecond)
	note(ctx, t, m, fmt.Sprintf(`"data":1,"traceNames":[%q]`, two))
	var list struct {
		TraceNames []traceNameOf `json:"trace_names"`
		Total      int           `json:"total"`
	}
	answered(t.Call(ctx, "traceNames", suite.Args{Query: query([]string{"limit=1", "offset=1"})}), &list)
	Expect(list.TraceNames).To(HaveLen(1))
	Expect(list.TraceNames[0].TraceName).To(Equal(one))
	Expect(list.Total).To(BeNumerically(">=", 2))
})
