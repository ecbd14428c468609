package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// deadLetter is a dead letter of the publish half.
type deadLetter struct {
	DLQID              string      `json:"dlqId"`
	MessageID          string      `json:"messageId"`
	URL                string      `json:"url"`
	Method             string      `json:"method"`
	Header             http.Header `json:"header"`
	Body               string      `json:"body"`
	ResponseStatus     *int        `json:"responseStatus"`
	ResponseHeader     http.Header `json:"responseHeader"`
	ResponseBody       *string     `json:"responseBody"`
	ResponseBodyBase64 []byte      `json:"responseBodyBase64"`
}

// deadPage is a page of dead letters.
type deadPage struct {
	Cursor   string       `json:"cursor"`
	Messages []deadLetter `json:"messages"`
}

// ids are those of the dead letters of a page.
func (p deadPage) ids() []string {
	ids := []string{}
	for _, d := range p.Messages {
		ids = append(ids, d.DLQID)
	}
	return ids
}

// listDead lists the dead letters that a query selects.
func listDead(ctx context.Context, t *suite.Target, query string) deadPage {
	q, err := url.ParseQuery(query)
	Expect(err).NotTo(HaveOccurred())
	outcome := t.Call(ctx, "listFailed", suite.Args{Query: q})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the list of dead letters was answered %d %s", outcome.Status, outcome.Body)
	}
	var page deadPage
	decode(outcome.Body, &page)
	return page
}

// deadLetterOf publishes to a destination that fails, without retries, and returns the dead letter. headers are in pairs.
func deadLetterOf(ctx context.Context, t *suite.Target, destination, body string, headers ...string) deadLetter {
	header := pairs(headers)
	header.Set("Upstash-Retries", "0")
	outcome := t.Call(ctx, "publish", suite.Args{Path: map[string]string{"destination": destination}, Header: header, Body: []byte(body)})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the publish was answered %d %s", outcome.Status, outcome.Body)
	}
	var published publishedV1
	decode(outcome.Body, &published)
	var page deadPage
	Eventually(func() []deadLetter {
		page = listDead(ctx, t, "messageIds="+published.MessageID)
		return page.Messages
	}).WithTimeout(t.Patience()).Should(HaveLen(1), "dead letters of a message that failed")
	return page.Messages[0]
}

// readDead reads a dead letter.
func readDead(ctx context.Context, t *suite.Target, id string) suite.Outcome {
	return t.Call(ctx, "getFailed", suite.Args{Path: map[string]string{"dlqId": id}})
}

// isDead says that a dead letter is there, or that it is gone.
func isDead(ctx context.Context, t *suite.Target, id string, there bool) {
	want := http.StatusNotFound
	if there {
		want = http.StatusOK
	}
	if outcome := readDead(ctx, t, id); outcome.Status != want {
		suite.Failf(1, "the dead letter %s was answered %d %.200s, want %d", id, outcome.Status, outcome.Body, want)
	}
}

// healing is a destination that fails n times, and then no more.
func healing(t *suite.Target, n int) *suite.Hook {
	return t.HookFunc(func(i int, _ suite.Delivery) suite.HookReply {
		if i < n {
			return suite.HookReply{Status: 500}
		}
		return suite.HookReply{Status: 200}
	})
}

// noDeadLetter is the id of none.
var noDeadLetter = "dlq_" + strings.Repeat("0", 32)

var _ = suite.Requirement("listFailed.listed", func(ctx context.Context, t *suite.Target) {
	hook := t.HookFunc(func(int, suite.Delivery) suite.HookReply {
		return suite.HookReply{Status: 503, Header: http.Header{"X-Why": {"because"}}, Body: "not now"}
	})
	d := deadLetterOf(ctx, t, hook.URL+"/x?y=1", "the body", "Upstash-Method", "PUT", "Upstash-Forward-X-Mine", "a", "Content-Type", "text/plain")
	Expect(d.DLQID).To(HavePrefix("dlq_"))
	Expect(d.URL).To(Equal(hook.URL + "/x?y=1"))
	Expect(d.Method).To(Equal("PUT"))
	Expect(d.Header).To(HaveKeyWithValue("X-Mine", []string{"a"}))
	Expect(d.Header).To(HaveKeyWithValue("Content-Type", []string{"text/plain"}))
	Expect(d.Body).To(Equal("the body"))
	Expect(d.ResponseStatus).To(HaveValue(Equal(503)))
	Expect(d.ResponseHeader).To(HaveKeyWithValue("X-Why", []string{"because"}))
	Expect(d.ResponseBody).To(HaveValue(Equal("not now")))
})

var _ = suite.Requirement("listFailed.listed", func(ctx context.Context, t *suite.Target) {
	silent := t.HookFunc(func(int, suite.Delivery) suite.HookReply { panic(http.ErrAbortHandler) })
	d := deadLetterOf(ctx, t, silent.URL, "x")
	Expect(d.ResponseStatus).To(HaveValue(Equal(0)), "of a destination that did not answer")
	binary := t.HookFunc(func(int, suite.Delivery) suite.HookReply { return suite.HookReply{Status: 500, Body: "\xff\x00"} })
	d = deadLetterOf(ctx, t, binary.URL, "x")
	Expect(d.ResponseBody).To(BeNil(), "of an answer that is not UTF-8")
	Expect(string(d.ResponseBodyBase64)).To(Equal("\xff\x00"))
})

// buriedPair are two dead letters under one label, which failed with 500 and with 404, and under one label each.
func buriedPair(ctx context.Context, t *suite.Target) (label string, first, second deadLetter) {
	label = t.Unique("label")
	first = deadLetterOf(ctx, t, t.Hook(500).URL+"/a", "x", "Upstash-Label", label+","+label+"-first")
	second = deadLetterOf(ctx, t, t.Hook(404).URL+"/b", "x", "Upstash-Label", label+","+label+"-second")
	return label, first, second
}

var _ = suite.Requirement("listFailed.filters", func(ctx context.Context, t *suite.Target) {
	label, first, second := buriedPair(ctx, t)
	for query, want := range map[string][]string{
		"label=" + label: {second.DLQID, first.DLQID},
		"label=" + label + "-first," + label + "-second":               {second.DLQID, first.DLQID},
		"label=" + label + "-first":                                    {first.DLQID},
		"label=" + label + "&responseStatus=404":                       {second.DLQID},
		"label=" + label + "&responseStatus=404&responseStatus=500":    {second.DLQID, first.DLQID},
		"label=" + label + "&responseStatus=0":                         {},
		"label=" + label + "&dlqIds=" + first.DLQID:                    {first.DLQID},
		"dlqIds=" + first.DLQID + "," + second.DLQID:                   {second.DLQID, first.DLQID},
		"messageIds=" + first.MessageID:                                {first.DLQID},
		"label=" + label + "&path=/ours":                               {},
		"label=" + label + "&url=" + url.QueryEscape(second.URL):       {second.DLQID},
		"label=" + label + "-first&url=" + url.QueryEscape(second.URL): {},
	} {
		Expect(listDead(ctx, t, query).ids()).To(Equal(want), "%s", query)
	}
})

var _ = suite.Requirement("listFailed.filters", func(ctx context.Context, t *suite.Target) {
	rejected(t.Raw(ctx, suite.Request{Operation: "listFailed", Target: "/v2/dlq?dlqIds=" + noDeadLetter + "&dlqid=x"}))
}, suite.WireOnly)

var _ = suite.Requirement("listFailed.order", func(ctx context.Context, t *suite.Target) {
	label, hook := t.Unique("label"), t.Hook(500)
	var ids []string
	for range 3 {
		ids = append(ids, deadLetterOf(ctx, t, hook.URL, "x", "Upstash-Label", label).DLQID)
	}
	latest := []string{ids[2], ids[1], ids[0]}
	whole := listDead(ctx, t, "count=3&label="+label)
	Expect(whole.ids()).To(Equal(latest))
	Expect(whole.Cursor).To(BeEmpty(), "of the last page")
	Expect(listDead(ctx, t, "earliestFirst=true&label="+label).ids()).To(Equal(ids), "earliest first")

	for order, want := range map[string][]string{"": latest, "&earliestFirst=true": ids} {
		page := listDead(ctx, t, "count=2&label="+label+order)
		Expect(page.ids()).To(Equal(want[:2]), "the first page %s", order)
		Expect(page.Cursor).NotTo(BeEmpty(), "of a page that is not the last")
		rest := listDead(ctx, t, "count=2&label="+label+order+"&cursor="+url.QueryEscape(page.Cursor))
		Expect(rest.ids()).To(Equal(want[2:]), "the second page %s", order)
		Expect(rest.Cursor).To(BeEmpty(), "of the last page")
	}
})

var _ = suite.Requirement("listFailed.redacted", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(500)
	d := deadLetterOf(ctx, t, hook.URL, "secret", "Upstash-Redact-Fields", "body,header[X-Secret]", "Upstash-Forward-X-Secret", "s", "Upstash-Forward-X-Open", "o")
	const hidden = "^REDACTED:[0-9a-f]{64}$"
	Expect(d.Body).To(MatchRegexp(hidden))
	Expect(d.Header).To(HaveKeyWithValue("X-Secret", ConsistOf(MatchRegexp(hidden))))
	Expect(d.Header).To(HaveKeyWithValue("X-Open", []string{"o"}))
	Expect(string(hook.Await(ctx, 1)[0].Body)).To(Equal("secret"), "what was delivered")
})

// deleteDead deletes what the selectors of the query and the body name, and returns how many were said to be.
func deleteDead(ctx context.Context, t *suite.Target, query string, body []byte) int {
	q, err := url.ParseQuery(query)
	Expect(err).NotTo(HaveOccurred())
	outcome := t.Call(ctx, "deleteFailedMany", suite.Args{Query: q, Body: body})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the deletion was answered %d %s", outcome.Status, outcome.Body)
	}
	var answer struct{ Deleted int }
	decode(outcome.Body, &answer)
	return answer.Deleted
}

// dlqIDs is a body that names dead letters.
func dlqIDs(ids ...string) []byte {
	body, err := json.Marshal(map[string][]string{"dlqIds": ids})
	Expect(err).NotTo(HaveOccurred())
	return body
}

var _ = suite.Requirement("deleteFailedMany.selected", func(ctx context.Context, t *suite.Target) {
	label, hook := t.Unique("label"), t.Hook(500)
	var ids []string
	for range 5 {
		ids = append(ids, deadLetterOf(ctx, t, hook.URL, "x", "Upstash-Label", label).DLQID)
	}
	left := func() []string { return listDead(ctx, t, "earliestFirst=true&label="+label).ids() }
	Expect(deleteDead(ctx, t, "dlqIds="+ids[0]+","+ids[2], nil)).To(Equal(2))
	Expect(left()).To(Equal([]string{ids[1], ids[3], ids[4]}))
	Expect(deleteDead(ctx, t, "", dlqIDs(ids[3], ids[0]))).To(Equal(1), "of which one was deleted before")
	Expect(left()).To(Equal([]string{ids[1], ids[4]}))
	Expect(deleteDead(ctx, t, "label="+label+"&responseStatus=404", nil)).To(Equal(0))
	Expect(deleteDead(ctx, t, "count=1&label="+label, nil)).To(Equal(1))
	Expect(left()).To(Equal(ids[4:]), "when the oldest one was deleted")
	Expect(deleteDead(ctx, t, "label="+label, nil)).To(Equal(1))
	Expect(left()).To(BeEmpty())
})

// The selectors that are not known stand beside one that is: a broker that takes no notice of them loses no other dead letters.
var _ = suite.Requirement("deleteFailedMany.unknown", func(ctx context.Context, t *suite.Target) {
	id := deadLetterOf(ctx, t, t.Hook(500).URL, "x").DLQID
	rejected(t.Raw(ctx, suite.Request{Operation: "deleteFailedMany", Target: "/v2/dlq?dlqIds=" + id + "&labels=x"}))
	rejected(t.Raw(ctx, suite.Request{
		Operation: "deleteFailedMany", Header: http.Header{"Content-Type": {"application/json"}}, Body: strings.NewReader(`{"dlqIds":["` + id + `"],"labels":"x"}`),
	}))
	isDead(ctx, t, id, true)
	answer := t.Raw(ctx, suite.Request{Operation: "deleteFailedMany", Target: "/v2/dlq?dlqIds=" + id + "&api=x"})
	Expect(answer.Status).To(Equal(http.StatusOK), "with api: %s", answer.Body)
	isDead(ctx, t, id, false)
}, suite.WireOnly)

var _ = suite.Requirement("getFailed.read", func(ctx context.Context, t *suite.Target) {
	other := deadLetterOf(ctx, t, t.Hook(500).URL, "y")
	listed := deadLetterOf(ctx, t, t.Hook(500).URL, "x", "Upstash-Forward-X-Mine", "a")
	outcome := readDead(ctx, t, listed.DLQID)
	Expect(outcome.Status).To(Equal(http.StatusOK), "%s", outcome.Body)
	var read deadLetter
	decode(outcome.Body, &read)
	Expect(read).To(Equal(listed))
	isDead(ctx, t, other.DLQID, true)
	isDead(ctx, t, noDeadLetter, false)
})

var _ = suite.Requirement("deleteFailed.deleted", func(ctx context.Context, t *suite.Target) {
	id, other := deadLetterOf(ctx, t, t.Hook(500).URL, "x").DLQID, deadLetterOf(ctx, t, t.Hook(500).URL, "x").DLQID
	deleted := func(id string) suite.Outcome {
		return t.Call(ctx, "deleteFailed", suite.Args{Path: map[string]string{"dlqId": id}})
	}
	outcome := deleted(id)
	Expect(outcome.Status).To(Equal(http.StatusOK), "%s", outcome.Body)
	isDead(ctx, t, id, false)
	isDead(ctx, t, other, true)
	Expect(deleted(id).Status).To(Equal(http.StatusNotFound), "the second time")
	Expect(deleted(noDeadLetter).Status).To(Equal(http.StatusNotFound), "without a dead letter")
})

// retryDead retries a dead letter. headers are in pairs.
func retryDead(ctx context.Context, t *suite.Target, id string, headers ...string) suite.Outcome {
	return t.Call(ctx, "retryFailed", suite.Args{Path: map[string]string{"dlqId": id}, Header: pairs(headers)})
}

var _ = suite.Requirement("retryFailed.new", func(ctx context.Context, t *suite.Target) {
	hook := healing(t, 1)
	dead := deadLetterOf(ctx, t, hook.URL+"/x", "the body", "Upstash-Deduplication-Id", t.Unique("id"))
	outcome := retryDead(ctx, t, dead.DLQID)
	Expect(outcome.Status).To(Equal(http.StatusCreated), "%s", outcome.Body)
	var fresh struct{ MessageID, URL string }
	decode(outcome.Body, &fresh)
	Expect(fresh.MessageID).To(HavePrefix("msg_"))
	Expect(fresh.MessageID).NotTo(Equal(dead.MessageID))
	Expect(fresh.URL).To(Equal(hook.URL + "/x"))
	again := hook.Await(ctx, 2)[1]
	Expect(again.Header.Get("Upstash-Message-Id")).To(Equal(fresh.MessageID))
	Expect(string(again.Body)).To(Equal("the body"))
	isDead(ctx, t, dead.DLQID, false)
	Expect(retryDead(ctx, t, dead.DLQID).Status).To(Equal(http.StatusNotFound), "the second time")
	Expect(retryDead(ctx, t, noDeadLetter).Status).To(Equal(http.StatusNotFound), "without a dead letter")
})

var _ = suite.Requirement("retryFailed.overrides", func(ctx context.Context, t *suite.Target) {
	for _, headers := range [][]string{nil, {"Upstash-Method", "PATCH", "Upstash-Forward-X-A", "other", "Upstash-Retries", "7"}} {
		hook := healing(t, 1)
		dead := deadLetterOf(ctx, t, hook.URL, "body", "Upstash-Method", "PUT", "Upstash-Forward-X-A", "a", "Upstash-Forward-X-B", "b", "Content-Type", "text/plain")
		outcome := retryDead(ctx, t, dead.DLQID, headers...)
		Expect(outcome.Status).To(Equal(http.StatusCreated), "%s", outcome.Body)
		method, value, retries := "PUT", "a", 0
		if headers != nil {
			method, value, retries = "PATCH", "other", 7
		}
		again := hook.Await(ctx, 2)[1]
		Expect(again.Method).To(Equal(method), "with %v", headers)
		Expect(again.Header.Values("X-A")).To(Equal([]string{value}), "with %v", headers)
		Expect(again.Header.Values("X-B")).To(Equal([]string{"b"}), "with %v", headers)
		Expect(again.Header.Values("Content-Type")).To(Equal([]string{"text/plain"}), "with %v", headers)
		Expect(string(again.Body)).To(Equal("body"), "with %v", headers)
		read := t.Call(ctx, "getPublished", suite.Args{Path: map[string]string{"messageId": again.Header.Get("Upstash-Message-Id")}})
		var message struct{ MaxRetries int }
		decode(read.Body, &message)
		Expect(message.MaxRetries).To(Equal(retries), "with %v", headers)
	}
})

var _ = suite.Requirement("retryFailed.delay", func(ctx context.Context, t *suite.Target) {
	hook := healing(t, 1)
	label := t.Unique("label")
	outcome := t.Call(ctx, "publish", suite.Args{
		Path: map[string]string{"destination": hook.URL}, Header: pairs([]string{"Upstash-Delay", "2h", "Upstash-Retries", "0", "Upstash-Label", label}), Body: []byte("x"),
	})
	Expect(outcome.Status).To(Equal(http.StatusOK), "%s", outcome.Body)
	t.Advance(ctx, 2*time.Hour+time.Minute)
	failed := listDead(ctx, t, "label="+label)
	Expect(failed.Messages).To(HaveLen(1), "when the delay was over")
	Expect(retryDead(ctx, t, failed.Messages[0].DLQID).Status).To(Equal(http.StatusCreated))
	hook.Await(ctx, 2)

	hook = healing(t, 1)
	dead := deadLetterOf(ctx, t, hook.URL, "x")
	Expect(retryDead(ctx, t, dead.DLQID, "Upstash-Delay", "3h").Status).To(Equal(http.StatusCreated))
	t.Advance(ctx, 3*time.Hour-time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(1), "a minute before the delay of the retry is over")
	t.Advance(ctx, 2*time.Minute)
	Expect(hook.Deliveries()).To(HaveLen(2), "when it is over")
})

var _ = suite.Requirement("retryFailedMany.new", func(ctx context.Context, t *suite.Target) {
	hook := healing(t, 3)
	var ids []string
	for _, path := range []string{"/a", "/b", "/c"} {
		ids = append(ids, deadLetterOf(ctx, t, hook.URL+path, "x").DLQID)
	}
	outcome := t.Call(ctx, "retryFailedMany", suite.Args{Query: url.Values{"dlqIds": {ids[1] + "," + noDeadLetter + "," + ids[0]}}})
	Expect(outcome.Status).To(Equal(http.StatusCreated), "%s", outcome.Body)
	type fresh struct{ MessageID, URL string }
	var answer struct{ Responses []fresh }
	decode(outcome.Body, &answer)
	Expect(answer.Responses).To(HaveLen(2))
	Expect(answer.Responses[0].URL).To(Equal(hook.URL + "/b"))
	Expect(answer.Responses[1].URL).To(Equal(hook.URL + "/a"))
	var delivered []fresh
	for _, d := range hook.Await(ctx, 5)[3:] {
		delivered = append(delivered, fresh{d.Header.Get("Upstash-Message-Id"), hook.URL + d.Target})
	}
	Expect(delivered).To(ConsistOf(answer.Responses[0], answer.Responses[1]))
	isDead(ctx, t, ids[0], false)
	isDead(ctx, t, ids[1], false)
	isDead(ctx, t, ids[2], true)

	outcome = t.Call(ctx, "retryFailedMany", suite.Args{Body: dlqIDs(ids[2])})
	Expect(outcome.Status).To(Equal(http.StatusCreated), "%s", outcome.Body)
	Expect(hook.Await(ctx, 6)[5].Target).To(Equal("/c"))
	isDead(ctx, t, ids[2], false)
})

var _ = suite.Requirement("retryFailedMany.unknown", func(ctx context.Context, t *suite.Target) {
	hook := healing(t, 1)
	id := deadLetterOf(ctx, t, hook.URL, "x").DLQID
	rejected(t.Raw(ctx, suite.Request{Operation: "retryFailedMany", Target: "/v2/dlq/retry?dlqIds=" + id + "&labels=x"}))
	rejected(t.Raw(ctx, suite.Request{
		Operation: "retryFailedMany", Header: http.Header{"Content-Type": {"application/json"}}, Body: strings.NewReader(`{"dlqIds":["` + id + `"],"labels":"x"}`),
	}))
	isDead(ctx, t, id, true)
	Expect(hook.Deliveries()).To(HaveLen(1))
}, suite.WireOnly)

// signingKeys are the keys of deliveries.
type signingKeys struct {
	Current string `json:"current"`
	Next    string `json:"next"`
}

// keysBy are the keys that an operation answers.
func keysBy(ctx context.Context, t *suite.Target, operation string) (keys signingKeys) {
	outcome := t.Call(ctx, operation, suite.Args{})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "%s was answered %d %s", operation, outcome.Status, outcome.Body)
	}
	decode(outcome.Body, &keys)
	return keys
}

// deliveredNow publishes and returns the delivery.
func deliveredNow(ctx context.Context, t *suite.Target) suite.Delivery {
	hook := t.Hook(200)
	outcome := t.Call(ctx, "publish", suite.Args{Path: map[string]string{"destination": hook.URL}, Body: []byte("x")})
	Expect(outcome.Status).To(Equal(http.StatusOK), "%s", outcome.Body)
	return hook.Await(ctx, 1)[0]
}

// isRotatedBy rotates by an operation and asserts what that has done to the keys, and that deliveries come to be signed with the
// new current one: a target of several brokers may take a moment to agree.
func isRotatedBy(ctx context.Context, t *suite.Target, operation string) {
	before := keysBy(ctx, t, "getSigningKeys")
	after := keysBy(ctx, t, operation)
	Expect(after.Current).To(Equal(before.Next), "the current key")
	Expect(after.Next).NotTo(BeElementOf(before.Current, before.Next), "the next key")
	Expect(keysBy(ctx, t, "getSigningKeys")).To(Equal(after), "the keys as they are read")
	Eventually(func() bool { return madeWith(deliveredNow(ctx, t), after.Current) }).WithTimeout(t.Patience()).WithPolling(50*time.Millisecond).
		Should(BeTrue(), "deliveries are signed with the new current key")
}

var _ = suite.Requirement("getSigningKeys.verify", func(ctx context.Context, t *suite.Target) {
	keys := keysBy(ctx, t, "getSigningKeys")
	Expect(keys.Current).To(HavePrefix("sig_"))
	Expect(keys.Next).To(HavePrefix("sig_"))
	Expect(keys.Next).NotTo(Equal(keys.Current))
	Expect(madeWith(deliveredNow(ctx, t), keys.Current)).To(BeTrue(), "the delivery is signed with the current key")
})

var _ = suite.Requirement("rotateSigningKeys.rotated", func(ctx context.Context, t *suite.Target) {
	isRotatedBy(ctx, t, "rotateSigningKeys")
})

var _ = suite.Requirement("rotateSigningKeysAlias.rotated", func(ctx context.Context, t *suite.Target) {
	isRotatedBy(ctx, t, "rotateSigningKeysAlias")
}, suite.WireOnly)

var _ = suite.Requirement("rotateSigningKeysV1.rotated", func(ctx context.Context, t *suite.Target) {
	isRotatedBy(ctx, t, "rotateSigningKeysV1")
}, suite.WireOnly)

var _ = suite.Requirement("getSigningKeysV1.same", func(ctx context.Context, t *suite.Target) {
	Expect(keysBy(ctx, t, "getSigningKeysV1")).To(Equal(keysBy(ctx, t, "getSigningKeys")))
}, suite.WireOnly)

var _ = suite.Requirement("getQuotaV1.read", func(ctx context.Context, t *suite.Target) {
	outcome := t.Call(ctx, "getQuotaV1", suite.Args{})
	Expect(outcome.Status).To(Equal(http.StatusOK), "%s", outcome.Body)
	var bounds map[string]any
	decode(outcome.Body, &bounds)
	for _, name := range []string{
		"maxTopics", "maxEndpointsPerTopic", "maxMessageSize", "maxRetries", "maxSchedules", "maxRequestsPerDay", "retention", "timeout", "maxDelay",
	} {
		Expect(bounds).To(HaveKeyWithValue(name, WithTransform(func(v any) bool {
			n, ok := v.(float64)
			return ok && n == float64(int64(n))
		}, BeTrue())), "%s is an integer", name)
	}
}, suite.WireOnly)
