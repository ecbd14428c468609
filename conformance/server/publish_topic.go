package server

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

var _ = suite.Requirement("publishV1.topic", func(ctx context.Context, t *suite.Target) {
	fine, failing := t.Hook(200), t.HookFunc(failsOnce)
	topic := createTopic(ctx, t, fine.URL, failing.URL)
	for i, destination := range []string{topic.Name, topic.TopicID} {
		answer := publishTo(ctx, t, destination, "x", retriedAtOnce()...)
		Expect(answer.Status).To(Equal(201), "%s", answer.Body)
		var p publishedV1
		decode(answer.Body, &p)
		Expect(p.MessageID).To(HavePrefix("msg_"))
		for _, d := range []suite.Delivery{fine.Await(ctx, i+1)[i], failing.Await(ctx, i+2)[i+1]} {
			Expect(d.Header.Get("Upstash-Topic-Name")).To(Equal(topic.Name))
			Expect(d.Header.Get("Upstash-Message-Id")).To(Equal(p.MessageID))
		}
		Eventually(func(g Gomega) {
			got := map[string]string{}
			for _, task := range tasksOf(ctx, t, p.MessageID) {
				got[task.URL] = task.State
			}
			g.Expect(got).To(Equal(map[string]string{fine.URL: "DELIVERED", failing.URL: "DELIVERED"}))
		}).WithTimeout(t.Patience()).Should(Succeed())
		var m struct{ DestinationType, TopicID, TopicName string }
		getV1(ctx, t, "getMessageV1", "/v1/messages/"+p.MessageID, &m)
		Expect(m.DestinationType).To(Equal("topic"))
		Expect(m.TopicName).To(Equal(topic.Name))
		Expect(m.TopicID).To(Equal(topic.TopicID))
	}
	t.Elapse(ctx, 200*time.Millisecond)
	Expect(fine.Deliveries()).To(HaveLen(2), "an endpoint is not retried because another one failed")
}, suite.WireOnly)

// sentTo reads what a publish to a group was answered, and asserts that it is one message per endpoint.
func sentTo(body []byte, urls ...string) []publishResult {
	var results []publishResult
	if err := json.Unmarshal(body, &results); err != nil {
		suite.Failf(1, "the publish to a group was not answered with an array of results: %.300s", body)
	}
	var ids, got []string
	for _, r := range results {
		ids, got = append(ids, r.MessageID), append(got, r.URL)
	}
	Expect(got).To(ConsistOf(urls))
	slices.Sort(ids)
	Expect(slices.Compact(ids)).To(HaveLen(len(urls)), "each endpoint has a message of its own")
	return results
}

var _ = suite.Requirement("publish.group", func(ctx context.Context, t *suite.Target) {
	a, b := t.Hook(200), t.Hook(200)
	group := createGroup(ctx, t, groupEndpoint{"first", a.URL}, groupEndpoint{"", b.URL})
	id := t.Unique("id")
	outcome := publish(ctx, t, group, "x", "Upstash-Deduplication-Id", id)
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	results := sentTo(outcome.Body, a.URL, b.URL)
	hooks := map[string]*suite.Hook{a.URL: a, b.URL: b}
	for _, r := range results {
		Expect(r.Deduplicated).To(BeFalse())
		d := hooks[r.URL].Await(ctx, 1)[0]
		Expect(d.Header.Get("Upstash-Message-Id")).To(Equal(r.MessageID))
		Expect(d.Header.Get("Upstash-Topic-Name")).To(Equal(group))
	}
	outcome = publish(ctx, t, group, "x", "Upstash-Deduplication-Id", id)
	Expect(outcome.Status).To(Equal(202), "%s", outcome.Body)
	again := sentTo(outcome.Body, a.URL, b.URL)
	for i, r := range again {
		Expect(r).To(Equal(publishResult{MessageID: results[i].MessageID, URL: results[i].URL, Deduplicated: true}))
	}
})

var _ = suite.Requirement("publishBatch.group", func(ctx context.Context, t *suite.Target) {
	a, b := t.Hook(200), t.Hook(200)
	group := createGroup(ctx, t, groupEndpoint{"", a.URL}, groupEndpoint{"", b.URL})
	items := numbered(a.URL, 2, nil)
	items[0].Destination = group
	outcome := t.Call(ctx, "publishBatch", suite.Args{Body: encoded(items)})
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	var results []json.RawMessage
	decode(outcome.Body, &results)
	Expect(results).To(HaveLen(len(items)))
	sentTo(results[0], a.URL, b.URL)
	var single publishResult
	decode(results[1], &single)
	Expect(single.URL).To(Equal(items[1].Destination))
	a.Await(ctx, 2)
	b.Await(ctx, 1)
})
