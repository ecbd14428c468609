package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// publishResult is what version 2 answers to a publish to a URL.
type publishResult struct {
	MessageID    string `json:"messageId"`
	URL          string `json:"url"`
	Deduplicated bool   `json:"deduplicated"`
	Error        string `json:"error"` // of an item of a batch
}

// publish publishes in version 2; headers are names and values by turns.
func publish(ctx context.Context, t *suite.Target, destination, body string, headers ...string) suite.Outcome {
	return t.Call(ctx, "publish", suite.Args{Path: map[string]string{"destination": destination}, Header: pairs(headers), Body: []byte(body)})
}

// published is publish to a URL that must be accepted, and no duplicate.
func published(ctx context.Context, t *suite.Target, destination, body string, headers ...string) publishResult {
	outcome := publish(ctx, t, destination, body, headers...)
	if outcome.Status/100 != 2 {
		suite.Failf(1, "the publish was answered %d %s", outcome.Status, outcome.Body)
	}
	var r publishResult
	if err := json.Unmarshal(outcome.Body, &r); err != nil {
		suite.Failf(1, "the publish was not answered with an object: %v", err)
	}
	if r.Deduplicated {
		suite.Failf(1, "the publish was answered as a duplicate: %s", outcome.Body)
	}
	return r
}

var _ = suite.Requirement("publish.accepted", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	outcome := publish(ctx, t, hook.URL+"/a//b?c=d&e=%20", "a body", "Upstash-Method", "PUT", "Content-Type", "text/plain")
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	var r publishResult
	decode(outcome.Body, &r)
	Expect(r.MessageID).To(HavePrefix("msg_"))
	Expect(r.URL).To(Equal(hook.URL + "/a//b?c=d&e=%20"))
	Expect(r.Deduplicated).To(BeFalse())
	got := hook.Await(ctx, 1)[0]
	Expect(got.Method).To(Equal("PUT"))
	Expect(got.Target).To(Equal("/a//b?c=d&e=%20"))
	Expect(string(got.Body)).To(Equal("a body"))
	Expect(got.Header.Get("Content-Type")).To(Equal("text/plain"))
	Expect(got.Header.Get("Upstash-Message-Id")).To(Equal(r.MessageID))
})

// isRepeat asserts that a publish of version 2 was answered as a duplicate of an original.
func isRepeat(outcome suite.Outcome, original publishResult) {
	if outcome.Status != http.StatusAccepted {
		suite.Failf(1, "a duplicate was answered %d %s, want 202", outcome.Status, outcome.Body)
	}
	var r publishResult
	decode(outcome.Body, &r)
	Expect(r.MessageID).To(Equal(original.MessageID))
	Expect(r.Deduplicated).To(BeTrue())
}

var _ = suite.Requirement("publish.dedup", func(ctx context.Context, t *suite.Target) {
	hook, id := t.Hook(200), t.Unique("id")
	original := published(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id)
	isRepeat(publish(ctx, t, hook.URL+"/other", "y", "Upstash-Deduplication-Id", id), original)
	hook.Await(ctx, 1)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(hook.Deliveries()).To(HaveLen(1))
})

var _ = suite.Requirement("publish.dedup.content", func(ctx context.Context, t *suite.Target) {
	hook, body := t.Hook(200), t.Unique("body")
	headers := []string{"Upstash-Content-Based-Deduplication", "true", "Content-Type", "text/plain", "Upstash-Forward-X-A", "1"}
	original := published(ctx, t, hook.URL, body, headers...)
	isRepeat(publish(ctx, t, hook.URL, body, append(headers, "Upstash-Retries", "5", "Upstash-Label", "other")...), original)
	published(ctx, t, hook.URL, body+" ", headers...)
	published(ctx, t, hook.URL+"/other", body, headers...)
	published(ctx, t, hook.URL, body, append(headers, "Upstash-Forward-X-B", "1")...)
	published(ctx, t, hook.URL, body, headers[0], headers[1], headers[2], headers[3], "Upstash-Forward-X-A", "2")
	published(ctx, t, hook.URL, body, headers[0], headers[1], "Content-Type", "text/html", headers[4], headers[5])
})

var _ = suite.Requirement("publish.header-forward", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	published(ctx, t, hook.URL, "x", "Upstash-Header-Forward", "true", "X-Plain", "a", "Upstash-Forward-X-Mine", "b", "Upstash-Label", "c")
	got := hook.Await(ctx, 1)[0].Header
	Expect(got.Get("X-Plain")).To(Equal("a"))
	Expect(got.Get("X-Mine")).To(Equal("b"))
	Expect(got.Values("Authorization")).To(BeEmpty())
	Expect(got.Values("Upstash-Label")).To(BeEmpty())
	hook = t.Hook(200)
	published(ctx, t, hook.URL, "x", "X-Plain", "a")
	Expect(hook.Await(ctx, 1)[0].Header.Values("X-Plain")).To(BeEmpty(), "without Upstash-Header-Forward")
})

// retriedAfter asserts that the n-th retry of a message, n from 1, follows after a pause: not ten seconds before, and no more than
// ten seconds after.
func retriedAfter(ctx context.Context, t *suite.Target, hook *suite.Hook, n int, pause time.Duration) {
	const slack = 10 * time.Second
	t.Advance(ctx, pause-slack)
	if got := len(hook.Deliveries()); got != n {
		suite.Failf(1, "%d deliveries before %s have passed, want %d", got, pause, n)
	}
	t.Advance(ctx, 2*slack)
	if got := len(hook.Deliveries()); got != n+1 {
		suite.Failf(1, "%d deliveries when %s have passed, want %d", got, pause, n+1)
	}
}

var _ = suite.Requirement("publish.retry-delay", func(ctx context.Context, t *suite.Target) {
	for expression, pauses := range map[string][]time.Duration{
		"60000":                   {time.Minute, time.Minute},
		"pow(2, retried) * 60000": {time.Minute, 2 * time.Minute, 4 * time.Minute},
		"max(60, min(600, (1 + retried) * 90)) * 1e3": {90 * time.Second, 180 * time.Second},
	} {
		hook := t.Hook(500)
		published(ctx, t, hook.URL, "x", "Upstash-Retry-Delay", expression)
		settled(ctx, t, hook)
		for i, pause := range pauses {
			retriedAfter(ctx, t, hook, i+1, pause)
		}
	}
})

var _ = suite.Requirement("publish.retry-after", func(ctx context.Context, t *suite.Target) {
	later := func(int, suite.Delivery) suite.HookReply {
		return suite.HookReply{Status: 503, Header: http.Header{"Retry-After": {"600"}}}
	}
	for _, headers := range [][]string{nil, {"Upstash-Retry-Delay", "1000"}} {
		hook := t.HookFunc(later)
		published(ctx, t, hook.URL, "x", headers...)
		settled(ctx, t, hook)
		retriedAfter(ctx, t, hook, 1, 10*time.Minute)
	}
})

var _ = suite.Requirement("publish.non-retryable", func(ctx context.Context, t *suite.Target) {
	final := func(said string) func(int, suite.Delivery) suite.HookReply {
		return func(int, suite.Delivery) suite.HookReply {
			return suite.HookReply{Status: 489, Header: http.Header{"Upstash-NonRetryable-Error": {said}}}
		}
	}
	hook := t.HookFunc(final("true"))
	r := published(ctx, t, hook.URL, "x", retriedAtOnce()...)
	Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).
		Should(Equal([]string{"CREATED", "ACTIVE", "ERROR", "FAILED"}))
	Expect(hook.Deliveries()).To(HaveLen(1))
	other := t.HookFunc(final("false"))
	published(ctx, t, other.URL, "x", retriedAtOnce("Upstash-Retries", "1")...)
	other.Await(ctx, 2)
})

// batchItem is one publish of a batch.
type batchItem struct {
	Destination string         `json:"destination"`
	Headers     map[string]any `json:"headers,omitempty"`
	Body        *string        `json:"body"`
	Queue       string         `json:"queue,omitempty"`
}

// publishBatch publishes items in one call, and returns one result per item.
func publishBatch(ctx context.Context, t *suite.Target, items ...batchItem) []publishResult {
	body, err := json.Marshal(items)
	Expect(err).NotTo(HaveOccurred())
	outcome := t.Call(ctx, "publishBatch", suite.Args{Body: body})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the batch was answered %d %s", outcome.Status, outcome.Body)
	}
	var results []publishResult
	if err := json.Unmarshal(outcome.Body, &results); err != nil {
		suite.Failf(1, "the batch was not answered with an array of results: %v", err)
	}
	if len(results) != len(items) {
		suite.Failf(1, "the batch of %d items was answered with %d results", len(items), len(results))
	}
	return results
}

// numbered are items to a destination each, with the bodies 0 to n-1.
func numbered(base string, n int, headers map[string]any) []batchItem {
	items := make([]batchItem, n)
	for i := range items {
		body := fmt.Sprint(i)
		items[i] = batchItem{Destination: base + "/" + body, Headers: headers, Body: &body}
	}
	return items
}

var _ = suite.Requirement("publishBatch.order", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	items := numbered(hook.URL, 20, map[string]any{"upstash-method": "PUT", "Upstash-Forward-X-Mine": "a"})
	items[7].Body = nil
	results := publishBatch(ctx, t, items...)
	ids := map[string]string{}
	for i, r := range results {
		Expect(r.URL).To(Equal(items[i].Destination), "the result at %d", i)
		Expect(r.MessageID).To(HavePrefix("msg_"))
		ids[r.MessageID] = fmt.Sprintf("/%d", i)
	}
	for _, d := range hook.Await(ctx, len(items)) {
		Expect(ids).To(HaveKeyWithValue(d.Header.Get("Upstash-Message-Id"), d.Target))
		Expect(d.Method).To(Equal("PUT"), "header names are taken in any case")
		Expect(d.Header.Get("X-Mine")).To(Equal("a"))
		if d.Target == "/7" {
			Expect(d.Body).To(BeEmpty(), "of an item without a body")
		} else {
			Expect("/" + string(d.Body)).To(Equal(d.Target))
		}
	}
})

var _ = suite.Requirement("publishBatch.partial", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	items := numbered(hook.URL, 4, nil)
	topic := t.Unique("topic")
	items[0].Destination = topic
	items[2].Headers = map[string]any{"Upstash-Retries": "many"}
	results := publishBatch(ctx, t, items...)
	for i, r := range results {
		if i%2 == 0 {
			Expect(r.Error).NotTo(BeEmpty(), "the result at %d", i)
			Expect(r.MessageID).To(BeEmpty())
		} else {
			Expect(r.Error).To(BeEmpty(), "the result at %d", i)
			Expect(r.MessageID).To(HavePrefix("msg_"))
		}
	}
	Expect(results[0].Error).To(ContainSubstring("topic " + topic + " not found"))
	var targets []string
	for _, d := range hook.Await(ctx, 2) {
		targets = append(targets, d.Target)
	}
	Expect(targets).To(ConsistOf("/1", "/3"))
})

var _ = suite.Requirement("publishBatch.queue", func(ctx context.Context, t *suite.Target) {
	hook, queue := t.HookFunc(failsOnce), t.Unique("queue")
	items := numbered(hook.URL, 5, map[string]any{"Upstash-Retry-Delay": "1"})
	for i := range items {
		items[i].Queue = queue
	}
	publishBatch(ctx, t, items...)
	var targets []string
	for _, d := range hook.Await(ctx, len(items)+1) {
		targets = append(targets, d.Target)
	}
	Expect(strings.Join(targets, " ")).To(Equal("/0 /0 /1 /2 /3 /4"), "the first one is tried twice")
})
