package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// rejectsPush asserts that each item, a JSON text in which {queue} stands for a fresh queue, makes a push fail as a bad
// body and stores nothing.
func rejectsPush(ctx context.Context, t *suite.Target, items ...string) {
	queue := t.Queue()
	for _, text := range items {
		answer := post(ctx, t, "push", `{"items":[`+strings.ReplaceAll(text, "{queue}", queue)+`]}`)
		Expect(answer.Status).To(Equal(400), "push of %s", text)
		rejected(answer)
	}
	Expect(drain(ctx, t, queue)).To(BeEmpty(), "what the refused pushes stored")
}

// acceptsPush pushes one item as rejectsPush does, asserts that it is stored, and returns its message.
func acceptsPush(ctx context.Context, t *suite.Target, text string) message {
	queue := t.Queue()
	answer := post(ctx, t, "push", `{"items":[`+strings.ReplaceAll(text, "{queue}", queue)+`]}`)
	Expect(answer.Status/100).To(Equal(2), "push of %.200s: %s", text, answer.Body)
	messages := drain(ctx, t, queue)
	Expect(messages).To(HaveLen(1), "messages after the push of %.200s", text)
	return messages[0]
}

var _ = suite.Requirement("push.items.required", func(ctx context.Context, t *suite.Target) {
	for _, body := range []string{`{}`, `{"item":[]}`, `{"items":null}`} {
		rejected(post(ctx, t, "push", body))
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.items.required", func(ctx context.Context, t *suite.Target) {
	one := item{queue: t.Queue(), payload: "1"}.json()
	for _, items := range []string{one, `"x"`, `1`, `true`, `[1]`, `["x"]`, `[null]`, `[[]]`, `[` + one + `,7]`} {
		rejected(post(ctx, t, "push", `{"items":`+items+`}`))
	}
	rejected(post(ctx, t, "push", `[`+one+`]`))
}, suite.WireOnly)

var _ = suite.Requirement("push.items.empty", func(ctx context.Context, t *suite.Target) {
	outcome := t.Call(ctx, "push", suite.Args{Body: []byte(`{"items":[]}`)})
	Expect(outcome.Status/100).To(Equal(2), "%s", outcome.Body)
	Expect(outcome.Body).To(MatchJSON(`[]`))
}, suite.WireOnly)

var _ = suite.Requirement("push.items.limit", func(ctx context.Context, t *suite.Target) {
	many := func(n int) string {
		one := item{queue: t.Queue(), payload: "1"}.json()
		return `{"items":[` + strings.Repeat(one+",", n-1) + one + `]}`
	}
	// Without an operation, so that the suite does not check a hundred thousand results.
	accepted := t.Raw(ctx, suite.Request{Method: "POST", Target: "/api/v1/push", Body: strings.NewReader(many(100_000))})
	Expect(accepted.Status/100).To(Equal(2), "%.200s", accepted.Body)
	rejected(post(ctx, t, "push", many(100_001)))
}, suite.WireOnly, suite.Timeout(suite.DefaultSpecTimeout*4))

var _ = suite.Requirement("push.request.atomic-check", func(ctx context.Context, t *suite.Target) {
	first, last := t.Queue(), t.Queue()
	rejected(post(ctx, t, "push", `{"items":[`+item{queue: first, payload: "1"}.json()+`,{"queue":"`+first+`"},`+
		item{queue: last, payload: "1"}.json()+`]}`))
	Expect(drain(ctx, t, first)).To(BeEmpty())
	Expect(drain(ctx, t, last)).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("push.queue.required", func(ctx context.Context, t *suite.Target) {
	rejected(post(ctx, t, "push", `{"items":[{"payload":1}]}`))
	rejected(post(ctx, t, "push", `{"items":[{"partition":"p","transactionId":"t","payload":1}]}`))
}, suite.WireOnly)

var _ = suite.Requirement("push.queue.required", func(ctx context.Context, t *suite.Target) {
	for _, queue := range []string{`null`, `1`, `true`, `["a"]`, `{}`} {
		rejected(post(ctx, t, "push", `{"items":[{"queue":`+queue+`,"payload":1}]}`))
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.queue.required", func(ctx context.Context, t *suite.Target) {
	rejected(post(ctx, t, "push", `{"items":[{"queue":"","payload":1}]}`))
}, suite.WireOnly)

// filled is prefix filled up with unit to exactly length bytes, or less by what unit does not divide.
func filled(prefix, unit string, length int) string {
	return prefix + strings.Repeat(unit, (length-len(prefix))/len(unit))
}

var _ = suite.Requirement("push.queue.limits", func(ctx context.Context, t *suite.Target) {
	prefix := t.Queue()
	if len(prefix)%2 == 1 {
		prefix += "-"
	}
	for _, queue := range []string{filled(prefix, "x", 512), filled(prefix, "é", 512)} {
		Expect(queue).To(HaveLen(512))
		answer := post(ctx, t, "push", string(pushBody(item{queue: queue, payload: "1"})))
		Expect(answer.Status/100).To(Equal(2), "a queue of 512 bytes: %s", answer.Body)
		Expect(drain(ctx, t, queue)).To(HaveLen(1))
		rejected(post(ctx, t, "push", string(pushBody(item{queue: queue + "x", payload: "1"}))))
	}
	rejected(post(ctx, t, "push", string(pushBody(item{queue: filled(prefix, "é", 1000), payload: "1"}))))
}, suite.WireOnly)

// controls are control characters as JSON escapes, and those that JSON admits unescaped.
var controls = []string{`\u0000`, `\n`, `\t`, `\u001f`, `\u007f`, "\x7f", `\u0085`, "\u0085", `\u009f`}

var _ = suite.Requirement("push.queue.limits", func(ctx context.Context, t *suite.Target) {
	for _, control := range controls {
		rejectsPush(ctx, t, `{"queue":"{queue}`+control+`","payload":1}`, `{"queue":"`+control+`{queue}","payload":1}`)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.names.verbatim", func(ctx context.Context, t *suite.Target) {
	// Blanks around, both cases, composed and decomposed characters, an ideographic space, a byte order mark.
	for _, odd := range []string{" a ", "A", "e\u0301", "\u00e9", "\u3000x\u3000", "\ufeffx", "ÀÉ", "a/b?c#d%2F", "\u200b", "ﬁ", "😀"} {
		queue, partition, transactionID := t.Queue()+odd, "p"+odd, odd
		result := pushOne(ctx, t, item{queue: queue, partition: partition, transactionID: transactionID, payload: "1"})
		Expect(result.QueueName).To(Equal(queue))
		Expect(result.TransactionID).To(Equal(transactionID))
		messages := drain(ctx, t, queue)
		Expect(messages).To(HaveLen(1), "messages of queue %q", queue)
		Expect(messages[0].Queue).To(Equal(queue))
		Expect(messages[0].Partition).To(Equal(partition))
		Expect(messages[0].TransactionID).To(Equal(transactionID))
	}
})

var _ = suite.Requirement("push.names.escapes", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := post(ctx, t, "push", `{"items":[{"queue":"`+queue+`\u0026\/","partition":"\u0070\u0026\/","transactionId":"\ud83d\ude00\"\\","payload":1}]}`)
	Expect(answer.Status/100).To(Equal(2), "%s", answer.Body)
	messages := drain(ctx, t, queue+"&/")
	Expect(messages).To(HaveLen(1))
	Expect(messages[0].Queue).To(Equal(queue + "&/"))
	Expect(messages[0].Partition).To(Equal("p&/"))
	Expect(messages[0].TransactionID).To(Equal("😀\"\\"))
}, suite.WireOnly)

var _ = suite.Requirement("push.names.surrogates", func(ctx context.Context, t *suite.Target) {
	for _, lone := range []string{`\ud800`, `\udc00`, `\ud83dx`, `\ude00\ud83d`, `\ud83d\u0041`} {
		rejectsPush(ctx, t,
			`{"queue":"{queue}`+lone+`","payload":1}`,
			`{"queue":"{queue}","partition":"`+lone+`","payload":1}`,
			`{"queue":"{queue}","transactionId":"`+lone+`","payload":1}`)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.partition.default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	answer := popPartition(ctx, t, queue, "Default")
	Expect(answer.data()).To(Equal([]string{"1"}))
	Expect(answer.Messages[0].Partition).To(Equal("Default"))
})

var _ = suite.Requirement("push.partition.empty", func(ctx context.Context, t *suite.Target) {
	without := acceptsPush(ctx, t, `{"queue":"{queue}","payload":1}`)
	empty := acceptsPush(ctx, t, `{"queue":"{queue}","partition":"","payload":1}`)
	Expect(empty.Partition).To(Equal(without.Partition))
}, suite.WireOnly)

var _ = suite.Requirement("push.names.null", func(ctx context.Context, t *suite.Target) {
	without := acceptsPush(ctx, t, `{"queue":"{queue}","payload":1}`)
	null := acceptsPush(ctx, t, `{"queue":"{queue}","partition":null,"payload":1}`)
	Expect(null.Partition).To(Equal(without.Partition))
}, suite.WireOnly)

var _ = suite.Requirement("push.partition.limits", func(ctx context.Context, t *suite.Target) {
	for _, partition := range []string{`1`, `true`, `[]`, `{}`} {
		rejectsPush(ctx, t, `{"queue":"{queue}","partition":`+partition+`,"payload":1}`)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.partition.limits", func(ctx context.Context, t *suite.Target) {
	for _, unit := range []string{"p", "é"} {
		partition := strings.Repeat(unit, 512/len(unit))
		m := acceptsPush(ctx, t, `{"queue":"{queue}","partition":"`+partition+`","payload":1}`)
		Expect(m.Partition).To(Equal(partition))
		rejectsPush(ctx, t, `{"queue":"{queue}","partition":"`+partition+`x","payload":1}`)
	}
	for _, control := range controls {
		rejectsPush(ctx, t, `{"queue":"{queue}","partition":"p`+control+`","payload":1}`)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.transaction-id.minted", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	same := item{queue: queue, payload: "1"}
	results := append(push(ctx, t, same, same), push(ctx, t, same)...)
	for _, result := range results {
		Expect(result.Status).NotTo(Equal("duplicate"))
		Expect(result.TransactionID).To(Equal(result.MessageID))
	}
	messages := drain(ctx, t, queue)
	Expect(messages).To(HaveLen(3))
	for i, m := range messages {
		Expect(m.TransactionID).To(Equal(results[i].MessageID))
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.transaction-id.empty", func(ctx context.Context, t *suite.Target) {
	m := acceptsPush(ctx, t, `{"queue":"{queue}","transactionId":"","payload":1}`)
	Expect(m.TransactionID).To(Equal(m.ID))
}, suite.WireOnly)

var _ = suite.Requirement("push.names.null", func(ctx context.Context, t *suite.Target) {
	m := acceptsPush(ctx, t, `{"queue":"{queue}","transactionId":null,"payload":1}`)
	Expect(m.TransactionID).To(Equal(m.ID))
}, suite.WireOnly)

var _ = suite.Requirement("push.transaction-id.limits", func(ctx context.Context, t *suite.Target) {
	for _, transactionID := range []string{`1`, `true`, `[]`, `{}`} {
		rejectsPush(ctx, t, `{"queue":"{queue}","transactionId":`+transactionID+`,"payload":1}`)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.transaction-id.limits", func(ctx context.Context, t *suite.Target) {
	for _, unit := range []string{"t", "é"} {
		transactionID := strings.Repeat(unit, 1024/len(unit))
		m := acceptsPush(ctx, t, `{"queue":"{queue}","transactionId":"`+transactionID+`","payload":1}`)
		Expect(m.TransactionID).To(Equal(transactionID))
		rejectsPush(ctx, t, `{"queue":"{queue}","transactionId":"`+transactionID+`x","payload":1}`)
	}
	for _, control := range controls {
		rejectsPush(ctx, t, `{"queue":"{queue}","transactionId":"t`+control+`","payload":1}`)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.payload.required", func(ctx context.Context, t *suite.Target) {
	rejectsPush(ctx, t, `{"queue":"{queue}"}`, `{"queue":"{queue}","partition":"p","transactionId":"t"}`)
}, suite.WireOnly)

// roundTrip pushes the payloads in one call and asserts that they are popped byte for byte.
func roundTrip(ctx context.Context, t *suite.Target, payloads ...string) {
	queue := t.Queue()
	items := make([]item, len(payloads))
	for i, payload := range payloads {
		items[i] = item{queue: queue, payload: payload}
	}
	push(ctx, t, items...)
	Expect(dataOf(drain(ctx, t, queue))).To(Equal(payloads))
}

var _ = suite.Requirement("push.payload.any", func(ctx context.Context, t *suite.Target) {
	roundTrip(ctx, t, `{"a":1}`, `[1,"x",null]`, `"text"`, `1`, `-0.5`, `true`, `false`, `null`, `{}`, `[]`, `""`, `0`)
})

var _ = suite.Requirement("push.payload.verbatim", func(ctx context.Context, t *suite.Target) {
	roundTrip(ctx, t,
		`{"b":1,"a":2,"c":{"z":1,"y":2}}`, "{ \"a\" : [ 1 ,\t2 ] }", "[\n1,\r\n2\n]", `"\u0041\/\u00e9\u2028<>&"`, "\"<script>&é\u2028\"",
		`1.0`, `1E5`, `1e+05`, `-0`, `0.10`, `100000000000000000001`, `"\ud83d\ude00"`, `{"":{"":""}}`)
})

var _ = suite.Requirement("push.payload.extremes", func(ctx context.Context, t *suite.Target) {
	roundTrip(ctx, t, `1e400`, `-1e-400`, strings.Repeat("9", 40), `0.`+strings.Repeat("1", 60), `"\u0000"`, `{"\u0000":"a\u0000b"}`,
		`"\ud800"`, `{"\udc00":"\ud83d\ud83d"}`, `{"a":1,"a":2,"a":1}`, `"`+strings.Repeat("x", 100_000)+`"`)
})

var _ = suite.Requirement("push.payload.data-alias", func(ctx context.Context, t *suite.Target) {
	rejectsPush(ctx, t, `{"queue":"{queue}","data":{"a":1}}`, `{"queue":"{queue}","data":null}`)
	m := acceptsPush(ctx, t, `{"queue":"{queue}","data":1,"payload":2}`)
	Expect(string(m.Data)).To(Equal("2"))
}, suite.WireOnly)

var _ = suite.Requirement("push.trace-id.ignored", func(ctx context.Context, t *suite.Target) {
	for _, traceID := range []string{`"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83"`, `"no uuid"`, `7`, `null`, `{}`} {
		m := acceptsPush(ctx, t, `{"queue":"{queue}","payload":1,"traceId":`+traceID+`}`)
		Expect(m.TraceID).To(BeNil(), "traceId after a push with traceId %s", traceID)
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.producer-sub.ignored", func(ctx context.Context, t *suite.Target) {
	for _, sub := range []string{`"somebody"`, `7`, `null`} {
		m := acceptsPush(ctx, t, `{"queue":"{queue}","payload":1,"producerSub":`+sub+`}`)
		if m.ProducerSub != nil {
			Expect(*m.ProducerSub).NotTo(Equal("somebody"), "producerSub after a push with producerSub %s", sub)
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.request.many-queues", func(ctx context.Context, t *suite.Target) {
	a, b := t.Queue(), t.Queue()
	push(ctx, t,
		item{queue: a, partition: "x", payload: `"ax"`}, item{queue: b, partition: "x", payload: `"bx"`},
		item{queue: a, partition: "y", payload: `"ay"`}, item{queue: b, partition: "y", payload: `"by"`})
	for queue, name := range map[string]string{a: "a", b: "b"} {
		for _, partition := range []string{"x", "y"} {
			answer := popPartition(ctx, t, queue, partition, "autoAck=true")
			Expect(answer.data()).To(Equal([]string{fmt.Sprintf("%q", name+partition)}))
		}
	}
})

// pushTraced pushes one message with a traceparent and returns that of its message, "" for none.
func pushTraced(ctx context.Context, t *suite.Target, traceparent string) string {
	queue := t.Queue()
	answer := t.Raw(ctx, suite.Request{
		Operation: "push", Body: strings.NewReader(`{"items":[` + item{queue: queue, payload: "1"}.json() + `]}`),
		Header: http.Header{"Traceparent": {traceparent}},
	})
	Expect(answer.Status).To(Equal(201), "push with traceparent %q: %s", traceparent, answer.Body)
	messages := drain(ctx, t, queue)
	Expect(messages).To(HaveLen(1), "messages after the push with traceparent %q", traceparent)
	return messages[0].TraceParent
}

const traceID = "0af7651916cd43dd8448eb211c80319c"

var _ = suite.Requirement("push.traceparent.carried", func(ctx context.Context, t *suite.Target) {
	for _, flags := range []string{"00", "01"} {
		Expect(pushTraced(ctx, t, "00-"+traceID+"-b7ad6b7169203331-"+flags)).
			To(MatchRegexp("^00-"+traceID+"-[0-9a-f]{16}-[0-9a-f]{2}$"), "traceparent of the message")
	}
}, suite.WireOnly)

var _ = suite.Requirement("push.traceparent.malformed", func(ctx context.Context, t *suite.Target) {
	for _, traceparent := range []string{
		"nonsense", traceID, "00-" + traceID + "-b7ad6b7169203331", "ff-" + traceID + "-b7ad6b7169203331-01",
		"00-" + traceID + "-0000000000000000-01", "00-" + strings.ToUpper(traceID) + "-b7ad6b7169203331-01",
	} {
		Expect(strings.ToLower(pushTraced(ctx, t, traceparent))).NotTo(ContainSubstring(traceID), "pushed with %q", traceparent)
	}
	Expect(pushTraced(ctx, t, "00-"+strings.Repeat("0", 32)+"-b7ad6b7169203331-01")).NotTo(ContainSubstring(strings.Repeat("0", 32)))
}, suite.WireOnly)
