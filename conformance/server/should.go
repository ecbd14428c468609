package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// This file holds the specs of recommendations that go beyond the contract: bounds, odd input, and requests of browsers.

var _ = suite.Requirement("ack.unresolvable.impossible", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 1)
	for _, id := range []string{"", strings.Repeat("t", 1025), "a\x00b", "\n", strings.Repeat("é", 2000)} {
		a := of(messages[0], "completed")
		a.TransactionID = id
		answer := post(ctx, t, "ack", string(mustJSON(a)))
		Expect(answer.Status).To(Equal(200), "transactionId %.20q", id)
		result := decodeAck(suite.Outcome{Status: answer.Status, Body: answer.Body}, 1)[0]
		Expect(result.Success).To(BeFalse(), "transactionId %.20q", id)
		Expect(result.reason()).To(HavePrefix("unresolvable"), "transactionId %.20q", id)
	}
}, suite.WireOnly)

var _ = suite.Requirement("ack.text.any", func(ctx context.Context, t *suite.Target) {
	_, messages := popNumbers(ctx, t, 2)
	for _, text := range []string{"\x00", "\x1b", "\u0085", messages[0].PartitionID + "\x00"} {
		a := of(messages[0], "completed")
		a.PartitionID = text
		answer := post(ctx, t, "ack", string(mustJSON(a)))
		Expect(answer.Status).To(Equal(200), "partitionId %q", text)
		Expect(decodeAck(suite.Outcome{Status: 200, Body: answer.Body}, 1)[0].Success).To(BeFalse(), "partitionId %q", text)

		a = of(messages[0], "completed")
		a.LeaseID = text
		answer = post(ctx, t, "ack", string(mustJSON(a)))
		Expect(answer.Status).To(Equal(200), "leaseId %q", text)
		Expect(decodeAck(suite.Outcome{Status: 200, Body: answer.Body}, 1)[0].reason()).To(Equal(leaseError), "leaseId %q", text)

		a = of(messages[0], "completed")
		a.ConsumerGroup = text[len(text)-1:] + "\x00"
		Expect(post(ctx, t, "ack", string(mustJSON(a))).Status).To(Equal(400), "consumerGroup %q", a.ConsumerGroup)
	}
	a := of(messages[0], "dlq")
	a.Error = "broken\x00\x1b\u0085"
	Expect(ack(ctx, t, a).Success).To(BeTrue(), "with control characters in error")
}, suite.WireOnly)

const longestLease = 31536000 * time.Second

var _ = suite.Requirement("extendLease.most", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	answer := pop(ctx, t, queue)
	raw := post(ctx, t, "extendLease", `{"seconds":2147483647}`, answer.LeaseID)
	r := decodeRenewal(suite.Outcome{Status: raw.Status, Body: raw.Body})
	Expect(r.Renewed).To(Equal(1))
	Expect(expiresIn(ctx, t, r)).To(BeNumerically("~", longestLease, time.Minute))
}, suite.WireOnly)

var _ = suite.Requirement("health.durability", func(ctx context.Context, t *suite.Target) {
	var got map[string]any
	decode(t.Raw(ctx, suite.Request{Operation: "health"}).Body, &got)
	for _, key := range []string{"fsync", "synchronous_commit", "synchronous_standby_names", "postgresVersion"} {
		Expect(got).To(HaveKeyWithValue(key, BeAssignableToTypeOf("")))
	}
}, suite.WireOnly)

var _ = suite.Requirement("openapi.revalidated", func(ctx context.Context, t *suite.Target) {
	first := t.Raw(ctx, suite.Request{Operation: "openapi"})
	tag := first.Header.Get("ETag")
	Expect(tag).NotTo(BeEmpty())
	again := t.Raw(ctx, suite.Request{Operation: "openapi", Header: http.Header{"If-None-Match": {tag}}})
	Expect(again.Status).To(Equal(304))
	Expect(again.Body).To(BeEmpty())
	other := t.Raw(ctx, suite.Request{Operation: "openapi", Header: http.Header{"If-None-Match": {`"another"`}}})
	Expect(other.Status).To(Equal(200))
}, suite.WireOnly)

var _ = suite.Requirement("advanceClock.most", func(ctx context.Context, t *suite.Target) {
	before := clock(ctx, t)
	Expect(post(ctx, t, "advanceClock", `{"advance":"876001h"}`).Status).To(Equal(400))
	Expect(clock(ctx, t).OffsetSeconds).To(Equal(before.OffsetSeconds))
}, suite.WireOnly)

var _ = suite.Requirement("pop.batch.most", func(ctx context.Context, t *suite.Target) {
	const most = 10_000
	queue := t.Queue()
	one := item{queue: queue, payload: "1"}.json()
	// Without an operation, so that the suite does not check ten thousand results.
	filled := t.Raw(ctx, suite.Request{
		Method: "POST", Target: "/api/v1/push", Body: strings.NewReader(`{"items":[` + strings.Repeat(one+",", most) + one + `]}`),
	})
	Expect(filled.Status/100).To(Equal(2), "%.200s", filled.Body)
	answer := t.Raw(ctx, suite.Request{Target: fmt.Sprintf("/api/v1/pop/queue/%s?batch=%d", queue, 2*most)})
	Expect(answer.Status).To(Equal(200), "%.200s", answer.Body)
	Expect(decodePop(suite.Outcome{Status: 200, Body: answer.Body}).Messages).To(HaveLen(most))
}, suite.WireOnly)

var _ = suite.Requirement("http.body.unexpected", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	for _, body := range []string{`{}`, `{`, "\xff\x00"} {
		for operation, path := range map[string]string{
			"getQueue": "/api/v1/resources/queues/" + queue, "health": "/health",
			"popQueue": "/api/v1/pop/queue/" + queue + "?consumerGroup=" + t.Unique("g"),
		} {
			answer := t.Raw(ctx, suite.Request{Operation: operation, Target: path, Body: strings.NewReader(body)})
			Expect(answer.Status).To(Equal(200), "%s with the body %q", operation, body)
		}
	}
}, suite.WireOnly)

// browser sends a request with the headers of a browser.
func browser(ctx context.Context, t *suite.Target, operation, path, body, name, value string) suite.Answer {
	return t.Raw(ctx, suite.Request{
		Operation: operation, Target: path, Body: strings.NewReader(body),
		Header: http.Header{name: {value}, "Content-Type": {"text/plain"}},
	})
}

// foreign are headers by which a browser marks a request of another origin.
var foreign = [][2]string{
	{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://elsewhere.example"}, {"Origin", "null"},
}

var _ = suite.Requirement("http.cross-site.refused", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	messages := pop(ctx, t, queue, "batch=1").Messages
	Expect(messages).To(HaveLen(1))
	before := inspect(ctx, t, queue)
	completion := string(mustJSON(of(messages[0], "completed")))
	for _, header := range foreign {
		for _, request := range [][3]string{
			{"push", "/api/v1/push", string(pushBody(item{queue: queue, payload: "7"}))},
			{"popQueue", "/api/v1/pop/queue/" + queue + "?consumerGroup=other&autoAck=true", ""},
			{"popPartition", "/api/v1/pop/queue/" + queue + "/partition/Default?consumerGroup=other&autoAck=true", ""},
			{"pop", "/api/v1/pop?namespace=x&consumerGroup=other", ""},
			{"ack", "/api/v1/ack", completion},
			{"ackBatch", "/api/v1/ack/batch", `{"acknowledgments":[` + completion + `]}`},
			{"extendLease", "/api/v1/lease/" + messages[0].LeaseID + "/extend", `{"seconds":1000}`},
			{"configure", "/api/v1/configure", `{"queue":"` + queue + `","options":{"retryLimit":77}}`},
			{"deleteQueue", "/api/v1/resources/queues/" + queue, ""},
		} {
			answer := browser(ctx, t, request[0], request[1], request[2], header[0], header[1])
			Expect(answer.Status).To(Equal(403), "%s with %s: %s", request[0], header[0], header[1])
			Expect(answer.Body).To(MatchJSON(`{"error":"cross-origin request refused"}`))
		}
	}
	Expect(inspect(ctx, t, queue)).To(Equal(before), "the queue after the refused requests")
}, suite.WireOnly)

var _ = suite.Requirement("http.cross-site.others", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	body := string(pushBody(item{queue: queue, payload: "1"}))
	for _, site := range []string{"same-origin", "none"} {
		answer := browser(ctx, t, "push", "/api/v1/push", body, "Sec-Fetch-Site", site)
		Expect(answer.Status/100).To(Equal(2), "push with Sec-Fetch-Site: %s", site)
	}
	answer := browser(ctx, t, "push", "/api/v1/push", body, "Origin", t.Origin())
	Expect(answer.Status/100).To(Equal(2), "push of the same origin")
	Expect(post(ctx, t, "push", body).Status/100).To(Equal(2), "push of a program")
	for _, header := range foreign {
		for operation, path := range map[string]string{
			"getQueue": "/api/v1/resources/queues/" + queue, "listQueues": "/api/v1/resources/queues", "health": "/health", "openapi": "/openapi.json",
		} {
			answer := browser(ctx, t, operation, path, "", header[0], header[1])
			Expect(answer.Status).To(Equal(200), "%s with %s: %s", operation, header[0], header[1])
		}
	}
}, suite.WireOnly)
