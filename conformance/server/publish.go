package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// publishedV1 is the answer to a publish of version 1.
type publishedV1 struct {
	MessageID    string `json:"messageId"`
	Deduplicated bool   `json:"deduplicated"`
}

// publishTo sends a publish of version 1; destination is the rest of the path as it is sent, headers are in pairs.
func publishTo(ctx context.Context, t *suite.Target, destination, body string, headers ...string) suite.Answer {
	header := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		header.Add(headers[i], headers[i+1])
	}
	return t.Raw(ctx, suite.Request{
		Operation: "publishV1", Target: "/v1/publish/" + destination, Header: header, Body: strings.NewReader(body),
	})
}

// publishAccepted is publishTo that must be accepted, and returns the id.
func publishAccepted(ctx context.Context, t *suite.Target, destination, body string, headers ...string) string {
	answer := publishTo(ctx, t, destination, body, headers...)
	if answer.Status/100 != 2 {
		suite.Failf(1, "the publish was answered %d %s", answer.Status, answer.Body)
	}
	var p publishedV1
	if err := json.Unmarshal(answer.Body, &p); err != nil {
		suite.Failf(1, "the publish was not answered with an object: %v", err)
	}
	if p.Deduplicated {
		suite.Failf(1, "the publish was answered as a duplicate: %s", answer.Body)
	}
	return p.MessageID
}

var _ = suite.Requirement("publishV1.accepted", func(ctx context.Context, t *suite.Target) {
	answer := publishTo(ctx, t, t.Hook(200).URL, "x")
	Expect(answer.Status).To(Equal(201), "%s", answer.Body)
	var p publishedV1
	decode(answer.Body, &p)
	Expect(p.MessageID).To(HavePrefix("msg_"))
	Expect(p.Deduplicated).To(BeFalse())
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.body", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	body := " {\"a\": 1}\x00\xff\n"
	publishAccepted(ctx, t, hook.URL, body, "Content-Type", "text/plain; charset=latin1")
	got := hook.Await(ctx, 1)
	Expect(string(got[0].Body)).To(Equal(body))
	Expect(got[0].Header.Get("Content-Type")).To(Equal("text/plain; charset=latin1"))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.body", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, hook.URL, "x")
	Expect(hook.Await(ctx, 1)[0].Header.Values("Content-Type")).To(BeEmpty(), "without one in the publish")
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.method", func(ctx context.Context, t *suite.Target) {
	for given, want := range map[string]string{"": "POST", "PUT": "PUT", "DELETE": "DELETE", "PATCH": "PATCH", "GET": "GET"} {
		hook := t.Hook(200)
		var headers []string
		if given != "" {
			headers = []string{"Upstash-Method", given}
		}
		publishAccepted(ctx, t, hook.URL, "x", headers...)
		Expect(hook.Await(ctx, 1)[0].Method).To(Equal(want))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.forward", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, hook.URL, "x", "Upstash-Forward-X-Mine", "a", "upstash-forward-x-mine", "b", "X-Other", "c")
	got := hook.Await(ctx, 1)[0].Header
	Expect(got.Values("X-Mine")).To(Equal([]string{"a", "b"}))
	Expect(got.Values("X-Other")).To(BeEmpty())
	Expect(got.Values("Upstash-Forward-X-Mine")).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.destination.raw", func(ctx context.Context, t *suite.Target) {
	for _, rest := range []string{"/a//b", "/a/../b/./c", "/a%2Fb%20c", "/x?y=1&z=%20&&w", "//", "/http://other/"} {
		hook := t.Hook(200)
		answer := publishTo(ctx, t, hook.URL+rest, "x")
		Expect(answer.Status).To(Equal(201), "%s: %s", rest, answer.Body)
		Expect(hook.Await(ctx, 1)[0].Target).To(Equal(rest))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.destination.encoded", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, url.QueryEscape(hook.URL+"/a/b?c=d&e=f"), "x")
	Expect(hook.Await(ctx, 1)[0].Target).To(Equal("/a/b?c=d&e=f"))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.destination.scheme", func(ctx context.Context, t *suite.Target) {
	for _, destination := range []string{"ftp://example.com/", "file:///etc/passwd", "ws://example.com"} {
		rejected(publishTo(ctx, t, destination, "x"))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.destination.topic-unknown", func(ctx context.Context, t *suite.Target) {
	name := t.Unique("topic")
	answer := publishTo(ctx, t, name, "x")
	Expect(answer.Status).To(Equal(404), "%s", answer.Body)
	var fault struct{ Error string }
	decode(answer.Body, &fault)
	Expect(fault.Error).To(Equal("topic " + name + " not found"))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.query-headers", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, hook.URL+"/x?a=1&upstash-forward-x-mine=b%20c&b=2&Upstash-Method=PUT", "x")
	got := hook.Await(ctx, 1)[0]
	Expect(got.Method).To(Equal("PUT"))
	Expect(got.Header.Get("X-Mine")).To(Equal("b c"))
	Expect(got.Target).To(Equal("/x?a=1&b=2"))
}, suite.WireOnly)

// heldBack publishes with headers and asserts that the first attempt is made at its time: not a minute before, and no more
// than a minute after.
func heldBack(ctx context.Context, t *suite.Target, by time.Duration, headers ...string) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, hook.URL, "x", headers...)
	t.Advance(ctx, by-time.Minute)
	Expect(hook.Deliveries()).To(BeEmpty(), "a minute before %s have passed", by)
	t.Advance(ctx, 2*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(1), "when %s have passed", by)
}

var _ = suite.Requirement("publishV1.delay", func(ctx context.Context, t *suite.Target) {
	heldBack(ctx, t, 3*time.Hour, "Upstash-Delay", "3h")
	heldBack(ctx, t, 10*time.Minute, "Upstash-Delay", "600s")
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.delay.compound", func(ctx context.Context, t *suite.Target) {
	heldBack(ctx, t, 34*time.Hour+30*time.Minute, "Upstash-Delay", "1d10h30m")
}, suite.WireOnly)

// targetNow is the target's time.
func targetNow(ctx context.Context, t *suite.Target) time.Time {
	outcome := t.Call(ctx, "getClock", suite.Args{})
	var clock struct {
		Now time.Time `json:"now"`
	}
	decode(outcome.Body, &clock)
	return clock.Now
}

var _ = suite.Requirement("publishV1.not-before", func(ctx context.Context, t *suite.Target) {
	at := targetNow(ctx, t).Add(2 * time.Hour)
	heldBack(ctx, t, 2*time.Hour, "Upstash-Not-Before", fmt.Sprint(at.Unix()), "Upstash-Delay", "1s")
	hook := t.Hook(200)
	publishAccepted(ctx, t, hook.URL, "x", "Upstash-Not-Before", "1691245856")
	hook.Await(ctx, 1)
}, suite.WireOnly)

// isDuplicate asserts that a publish was answered as a duplicate of an original.
func isDuplicate(answer suite.Answer, original string) {
	if answer.Status != http.StatusAccepted {
		suite.Failf(1, "a duplicate was answered %d %s, want 202", answer.Status, answer.Body)
	}
	var p publishedV1
	decode(answer.Body, &p)
	Expect(p).To(Equal(publishedV1{original, true}))
}

var _ = suite.Requirement("publishV1.dedup.explicit", func(ctx context.Context, t *suite.Target) {
	hook, id := t.Hook(200), t.Unique("id")
	original := publishAccepted(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id)
	again := publishTo(ctx, t, hook.URL+"/other", "y", "Upstash-Deduplication-Id", id)
	isDuplicate(again, original)
	Expect(again.Header.Get("Upstash-Deduplication-Id")).To(Equal(id))
	hook.Await(ctx, 1)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(hook.Deliveries()).To(HaveLen(1))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.dedup.id-rule", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	for _, id := range []string{"a:b", "a b", "a\tb"} {
		rejected(publishTo(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.dedup.content", func(ctx context.Context, t *suite.Target) {
	hook, body := t.Hook(200), t.Unique("body")
	headers := []string{"Upstash-Content-Based-Deduplication", "true", "Upstash-Forward-X-A", "1"}
	original := publishAccepted(ctx, t, hook.URL, body, headers...)
	isDuplicate(publishTo(ctx, t, hook.URL, body, append(headers, "X-Not-Ours", "1")...), original)
	publishAccepted(ctx, t, hook.URL, body+" ", headers...)
	publishAccepted(ctx, t, hook.URL+"/other", body, headers...)
	publishAccepted(ctx, t, hook.URL, body, append(headers, "Upstash-Forward-X-B", "1")...)
	publishAccepted(ctx, t, hook.URL, body, headers[0], headers[1], "Upstash-Forward-X-A", "2")
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.dedup.window", func(ctx context.Context, t *suite.Target) {
	hook, id := t.Hook(200), t.Unique("id")
	original := publishAccepted(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id)
	t.Advance(ctx, 90*24*time.Hour-time.Hour)
	isDuplicate(publishTo(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id), original)
	t.Advance(ctx, 2*time.Hour)
	Expect(publishAccepted(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id)).NotTo(Equal(original))
}, suite.WireOnly)

// pauseBefore is the pause before the n-th retry.
func pauseBefore(n int) time.Duration {
	return time.Duration(min(86400, math.Exp(2*float64(n))) * float64(time.Second))
}

// settled waits for a first attempt and until the target knows what came of it: from then on its pauses count.
func settled(ctx context.Context, t *suite.Target, hook *suite.Hook) {
	hook.Await(ctx, 1)
	t.Advance(ctx, time.Millisecond)
}

var _ = suite.Requirement("publishV1.retries.backoff", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(500)
	publishAccepted(ctx, t, hook.URL, "x", "Upstash-Retries", "6")
	settled(ctx, t, hook)
	for n := 1; n <= 6; n++ {
		pause := pauseBefore(n)
		early := pause * 9 / 10
		if n >= 3 { // before, a slow machine may use up what is left
			t.Advance(ctx, early)
			Expect(hook.Deliveries()).To(HaveLen(n), "before %s have passed", pause)
		} else {
			t.Advance(ctx, early)
		}
		t.Advance(ctx, pause*3/20)
		Expect(hook.Deliveries()).To(HaveLen(n+1), "when %s have passed", pause)
	}
}, suite.WireOnly)

// attempts publishes to a destination that fails and counts the attempts until there are no more.
func attempts(ctx context.Context, t *suite.Target, status int, headers ...string) []suite.Delivery {
	hook := t.Hook(status)
	publishAccepted(ctx, t, hook.URL, "x", headers...)
	settled(ctx, t, hook)
	before := 0
	for len(hook.Deliveries()) > before {
		before = len(hook.Deliveries())
		t.Advance(ctx, 25*time.Hour)
	}
	return hook.Deliveries()
}

var _ = suite.Requirement("publishV1.retries.count", func(ctx context.Context, t *suite.Target) {
	Expect(attempts(ctx, t, 500)).To(HaveLen(4), "by default")
	for _, retries := range []string{"0", "1", "5"} {
		Expect(attempts(ctx, t, 500, "Upstash-Retries", retries)).To(HaveLen(int(retries[0]-'0')+1), "with %s retries", retries)
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.success", func(ctx context.Context, t *suite.Target) {
	for status, want := range map[int]int{200: 1, 204: 1, 299: 1, 301: 2, 307: 2, 400: 2, 404: 2, 503: 2} {
		got := attempts(ctx, t, status, "Upstash-Retries", "1")
		Expect(got).To(HaveLen(want), "attempts of a destination that answers %d", status)
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.signature", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(500)
	const rest, body = "/a//b?c=%20d", "a \x00 body"
	id := publishAccepted(ctx, t, hook.URL+rest, body, retriedAtOnce("Upstash-Retries", "1")...)
	got := hook.Await(ctx, 2)
	outcome := t.Call(ctx, "getSigningKeys", suite.Args{})
	var keys struct{ Current string }
	decode(outcome.Body, &keys)
	for _, d := range got {
		Expect(verified(d, hook.URL+rest, keys.Current)).To(BeEmpty(), "what is wrong with the signature")
		Expect(d.Header.Get("Upstash-Message-Id")).To(Equal(id))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.retried", func(ctx context.Context, t *suite.Target) {
	got := attempts(ctx, t, 500, "Upstash-Retries", "2")
	Expect(got).To(HaveLen(3))
	for i, delivery := range got {
		Expect(delivery.Header.Get("Upstash-Retried")).To(Equal(fmt.Sprint(i)))
	}
}, suite.WireOnly)

// messageV1 is a message as version 1 reads it.
type messageV1 struct {
	MessageID string              `json:"messageId"`
	URL       string              `json:"url"`
	Method    string              `json:"method"`
	Header    map[string][]string `json:"header"`
	Body      string              `json:"body"`
	CreatedAt int64               `json:"createdAt"`
	Settings  struct {
		Retries   int   `json:"retries"`
		NotBefore int64 `json:"notBefore"`
	} `json:"settings"`
}

func readMessage(ctx context.Context, t *suite.Target, id string) suite.Answer {
	return t.Raw(ctx, suite.Request{Operation: "getMessageV1", Target: "/v1/messages/" + id})
}

var _ = suite.Requirement("getMessageV1.content", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	id := publishAccepted(ctx, t, hook.URL+"/x?y=1", "body", "Upstash-Method", "PUT", "Upstash-Retries", "7", "Upstash-Forward-X-Mine", "a", "Content-Type", "text/plain")
	hook.Await(ctx, 1)
	t.Elapse(ctx, 200*time.Millisecond)
	answer := readMessage(ctx, t, id)
	Expect(answer.Status).To(Equal(200), "after its delivery: %s", answer.Body)
	var m messageV1
	decode(answer.Body, &m)
	Expect(m.MessageID).To(Equal(id))
	Expect(m.URL).To(Equal(hook.URL + "/x?y=1"))
	Expect(m.Method).To(Equal("PUT"))
	Expect(m.Body).To(Equal("body"))
	Expect(m.Header).To(HaveKeyWithValue("X-Mine", []string{"a"}))
	Expect(m.Header).To(HaveKeyWithValue("Content-Type", []string{"text/plain"}))
	Expect(m.Settings.Retries).To(Equal(7))
	Expect(m.Settings.NotBefore).To(BeNumerically(">=", m.CreatedAt))
}, suite.WireOnly)

var _ = suite.Requirement("getMessageV1.not-found", func(ctx context.Context, t *suite.Target) {
	answer := readMessage(ctx, t, "msg_"+strings.Repeat("0", 32))
	Expect(answer.Status).To(Equal(404), "%s", answer.Body)
}, suite.WireOnly)

func cancelMessage(ctx context.Context, t *suite.Target, id string) {
	answer := t.Raw(ctx, suite.Request{Operation: "cancelMessageV1", Target: "/v1/messages/" + id})
	Expect(answer.Status).To(Equal(202), "the cancellation: %s", answer.Body)
}

var _ = suite.Requirement("cancelMessageV1.never-delivered", func(ctx context.Context, t *suite.Target) {
	hook, failing := t.Hook(200), t.Hook(500)
	delayed := publishAccepted(ctx, t, hook.URL, "x", "Upstash-Delay", "1h")
	retried := publishAccepted(ctx, t, failing.URL, "x")
	settled(ctx, t, failing)
	cancelMessage(ctx, t, delayed)
	cancelMessage(ctx, t, retried)
	t.Advance(ctx, 48*time.Hour)
	Expect(hook.Deliveries()).To(BeEmpty())
	Expect(failing.Deliveries()).To(HaveLen(1))
}, suite.WireOnly)

// statesOf are the entries of the log of a message, oldest first.
func statesOf(ctx context.Context, t *suite.Target, id string) []string {
	answer := t.Raw(ctx, suite.Request{Operation: "listMessageLogsV1", Target: "/v1/messages/" + id + "/logs"})
	if answer.Status != http.StatusOK {
		suite.Failf(1, "the log was answered %d %s", answer.Status, answer.Body)
	}
	var page struct {
		Events []struct{ State, MessageID string }
	}
	decode(answer.Body, &page)
	states := make([]string, len(page.Events))
	for i, e := range page.Events {
		states[len(states)-1-i] = e.State
		Expect(e.MessageID).To(Equal(id), "the message of an entry")
	}
	return states
}

var _ = suite.Requirement("cancelMessageV1.logged", func(ctx context.Context, t *suite.Target) {
	id := publishAccepted(ctx, t, t.Hook(200).URL, "x", "Upstash-Delay", "1h")
	cancelMessage(ctx, t, id)
	Eventually(func() []string { return statesOf(ctx, t, id) }).WithTimeout(t.Patience()).
		Should(Equal([]string{"CREATED", "CANCEL_REQUESTED", "CANCELED"}))
}, suite.WireOnly)

var _ = suite.Requirement("listMessageLogsV1.only", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, hook.URL, "x")
	id := publishAccepted(ctx, t, hook.URL, "y")
	publishAccepted(ctx, t, hook.URL, "z")
	hook.Await(ctx, 3)
	Eventually(func() []string { return statesOf(ctx, t, id) }).WithTimeout(t.Patience()).
		Should(Equal([]string{"CREATED", "ACTIVE", "DELIVERED"}))
}, suite.WireOnly)

var _ = suite.Requirement("listEventsV1.states", func(ctx context.Context, t *suite.Target) {
	for status, want := range map[int][]string{
		200: {"CREATED", "ACTIVE", "DELIVERED"}, 500: {"CREATED", "ACTIVE", "ERROR", "FAILED"},
	} {
		id := publishAccepted(ctx, t, t.Hook(status).URL, "x", "Upstash-Retries", "0")
		Eventually(func() []string { return statesOf(ctx, t, id) }).WithTimeout(t.Patience()).Should(Equal(want))
	}
}, suite.WireOnly)
