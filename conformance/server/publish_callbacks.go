package server

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// notice is the body of a callback.
type notice struct {
	Status          int                 `json:"status"`
	Header          map[string][]string `json:"header"`
	Body            []byte              `json:"body"` // in base64
	Retried         int                 `json:"retried"`
	MaxRetries      int                 `json:"maxRetries"`
	SourceMessageID string              `json:"sourceMessageId"`
	URL             string              `json:"url"`
	Method          string              `json:"method"`
	SourceHeader    map[string][]string `json:"sourceHeader"`
	SourceBody      []byte              `json:"sourceBody"` // in base64
	DLQID           string              `json:"dlqId"`
}

// noticesOf are the callbacks that came, in the order of the attempts that they tell of.
func noticesOf(deliveries []suite.Delivery) []notice {
	list := make([]notice, len(deliveries))
	for i, d := range deliveries {
		if err := json.Unmarshal(d.Body, &list[i]); err != nil {
			suite.Failf(1, "a callback has another body than it should: %v: %.300s", err, d.Body)
		}
	}
	slices.SortStableFunc(list, func(a, b notice) int { return a.Retried - b.Retried })
	return list
}

// failsOnce answers the first delivery 500 and those after it 200, with bodies that tell them apart.
func failsOnce(n int, _ suite.Delivery) suite.HookReply {
	if n == 0 {
		return suite.HookReply{Status: 500, Body: "not\x00now"}
	}
	return suite.HookReply{Status: 200, Body: "done", Header: http.Header{"X-Answer": {"yes"}}}
}

// retriedAtOnce are headers that let retries follow at once.
func retriedAtOnce(more ...string) []string {
	return append([]string{"Upstash-Retry-Delay", "1"}, more...)
}

var _ = suite.Requirement("publishV1.callback", func(ctx context.Context, t *suite.Target) {
	hook, told := t.HookFunc(failsOnce), t.Hook(200)
	id := publishAccepted(ctx, t, hook.URL, "a body", retriedAtOnce("Upstash-Callback", told.URL, "Upstash-Retries", "2", "Upstash-Method", "PUT",
		"Upstash-Forward-X-Mine", "a")...)
	came := told.Await(ctx, 2)
	for _, d := range came {
		Expect(d.Method).To(Equal("POST"))
		Expect(d.Header.Get("Content-Type")).To(HavePrefix("application/json"))
		Expect(d.Header.Get("Upstash-Message-Id")).To(HavePrefix("msg_"))
		Expect(d.Header.Get("Upstash-Message-Id")).NotTo(Equal(id), "a callback is a message of its own")
	}
	notices := noticesOf(came)
	for i, n := range notices {
		Expect(n.Retried).To(Equal(i))
		Expect(n.MaxRetries).To(Equal(2))
		Expect(n.SourceMessageID).To(Equal(id))
		Expect(n.URL).To(Equal(hook.URL))
		Expect(n.Method).To(Equal("PUT"))
		Expect(n.SourceHeader).To(HaveKeyWithValue("X-Mine", []string{"a"}))
		Expect(string(n.SourceBody)).To(Equal("a body"))
	}
	Expect(notices[0].Status).To(Equal(500))
	Expect(string(notices[0].Body)).To(Equal("not\x00now"))
	Expect(notices[1].Status).To(Equal(200))
	Expect(string(notices[1].Body)).To(Equal("done"))
	Expect(notices[1].Header).To(HaveKeyWithValue("X-Answer", []string{"yes"}))
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(told.Deliveries()).To(HaveLen(2), "one callback per attempt")
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.callback.failure", func(ctx context.Context, t *suite.Target) {
	hook, told := t.Hook(500), t.Hook(200)
	id := publishAccepted(ctx, t, hook.URL, "x", retriedAtOnce("Upstash-Failure-Callback", told.URL, "Upstash-Retries", "2")...)
	n := noticesOf(told.Await(ctx, 1))[0]
	Expect(hook.Deliveries()).To(HaveLen(3), "attempts when the failure is told of")
	Expect(n.SourceMessageID).To(Equal(id))
	Expect(n.Status).To(Equal(500))
	Expect(n.Retried).To(Equal(2))
	Expect(n.DLQID).NotTo(BeEmpty(), "the id of the dead letter")
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(told.Deliveries()).To(HaveLen(1))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.callback.failure", func(ctx context.Context, t *suite.Target) {
	hook, told, failed := t.HookFunc(failsOnce), t.Hook(200), t.Hook(200)
	publishAccepted(ctx, t, hook.URL, "x", retriedAtOnce("Upstash-Callback", told.URL, "Upstash-Failure-Callback", failed.URL)...)
	told.Await(ctx, 2)
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(failed.Deliveries()).To(BeEmpty(), "after a failed attempt that another one made up for")
}, suite.WireOnly)

var _ = suite.Requirement("publish.callback.headers", func(ctx context.Context, t *suite.Target) {
	told, plain := t.Hook(200), t.Hook(200)
	published(ctx, t, t.Hook(200).URL, "x", "Upstash-Callback", told.URL, "Upstash-Callback-Method", "PUT",
		"Upstash-Callback-Forward-X-Mine", "a", "Upstash-Forward-X-Message", "b")
	got := told.Await(ctx, 1)[0]
	Expect(got.Method).To(Equal("PUT"))
	Expect(got.Header.Get("X-Mine")).To(Equal("a"))
	Expect(got.Header.Get("X-Message")).To(BeEmpty(), "of the message, not of the callback")
	published(ctx, t, t.Hook(500).URL, "x", "Upstash-Retries", "0", "Upstash-Failure-Callback", plain.URL,
		"Upstash-Failure-Callback-Method", "PATCH", "Upstash-Failure-Callback-Forward-X-Mine", "c")
	got = plain.Await(ctx, 1)[0]
	Expect(got.Method).To(Equal("PATCH"))
	Expect(got.Header.Get("X-Mine")).To(Equal("c"))
})
