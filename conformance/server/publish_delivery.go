package server

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

var _ = suite.Requirement("publishV1.destination.collapsed", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	publishAccepted(ctx, t, strings.Replace(hook.URL, "http://", "http:/", 1)+"/a", "x")
	Expect(hook.Await(ctx, 1)[0].Target).To(Equal("/a"))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.destination.refused", func(ctx context.Context, t *suite.Target) {
	for _, destination := range []string{"", "http://", "http://user:secret@example.com/", "a/b", "a%20b", "queue:"} {
		rejected(publishTo(ctx, t, destination, `"x"`))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.destination.queue", func(ctx context.Context, t *suite.Target) {
	queue, id := t.Queue(), t.Unique("id")
	first := publishAccepted(ctx, t, "queue:"+queue, ` {"n": 1}`, "Upstash-Delay", "1h")
	publishAccepted(ctx, t, "queue:"+queue+"/other", `[2]`, "Upstash-Delay", "1h", "Upstash-Deduplication-Id", id)
	t.Advance(ctx, time.Hour-time.Minute)
	Expect(pop(ctx, t, queue, "autoAck=true", "partitions=0").Messages).To(BeEmpty(), "before the delay is over")
	t.Advance(ctx, 2*time.Minute)
	got := map[string]message{}
	for _, m := range drain(ctx, t, queue) {
		got[m.Partition] = m
	}
	Expect(got).To(HaveLen(2), "partitions of what arrived")
	Expect(string(got["Default"].Data)).To(MatchJSON(`{"n": 1}`))
	Expect(got["Default"].TransactionID).To(Equal(first), "without a deduplication id")
	Expect(string(got["other"].Data)).To(Equal("[2]"))
	Expect(got["other"].TransactionID).To(Equal(id))
	rejected(publishTo(ctx, t, "queue:"+queue, "no JSON"))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.forward.refused", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	for _, name := range []string{"Connection", "Host", "Content-Length", "Transfer-Encoding", "TE", "Upgrade", "Proxy-Authorization", "Upstash-Signature"} {
		rejected(publishTo(ctx, t, hook.URL, "x", "Upstash-Forward-"+name, "a"))
	}
	var many []string
	for i := range 64 {
		many = append(many, fmt.Sprintf("Upstash-Forward-X-%d", i), "a")
	}
	publishAccepted(ctx, t, hook.URL, "x", many...)
	rejected(publishTo(ctx, t, hook.URL, "x", append(many, "Upstash-Forward-X-More", "a")...))
	rejected(publishTo(ctx, t, hook.URL, "x", "Upstash-Forward-X-Long", strings.Repeat("a", 16<<10)))
	Expect(hook.Await(ctx, 1)).To(HaveLen(1))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.delivery.headers", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	id := publishAccepted(ctx, t, hook.URL, "x", "Upstash-Telemetry-Sdk", "a", "User-Agent", "mine")
	got := hook.Await(ctx, 1)[0].Header
	Expect(got.Get("User-Agent")).To(Equal("Upstash-QStash"))
	var m struct {
		CallerIP string `json:"callerIP"`
	}
	getV1(ctx, t, "getPublished", "/v2/messages/"+id, &m)
	Expect(m.CallerIP).NotTo(BeEmpty())
	Expect(got.Get("Upstash-Caller-Ip")).To(Equal(m.CallerIP))
	Expect(got.Values("Upstash-Telemetry-Sdk")).To(BeEmpty())
	Expect(got.Values("Authorization")).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.signature.webhooks", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	id := publishAccepted(ctx, t, hook.URL, "a \x00 body")
	got := hook.Await(ctx, 1)[0]
	var keys struct{ Current string }
	decode(t.Call(ctx, "getSigningKeys", suite.Args{}).Body, &keys)
	at := got.Header.Get("Webhook-Timestamp")
	Expect(got.Header.Get("Webhook-Id")).To(Equal(id))
	mac := hmac.New(sha256.New, []byte(keys.Current))
	mac.Write([]byte(id + "." + at + "."))
	mac.Write(got.Body)
	Expect(strings.Fields(got.Header.Get("Webhook-Signature"))).To(ContainElement("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))))
	var seconds int64
	_, err := fmt.Sscan(at, &seconds)
	Expect(err).NotTo(HaveOccurred(), "the time %q", at)
	Expect(seconds).To(BeNumerically("~", time.Now().Unix(), 60))
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.dedup.explicit-wins", func(ctx context.Context, t *suite.Target) {
	hook, id, body := t.Hook(200), t.Unique("id"), t.Unique("body")
	headers := []string{"Upstash-Content-Based-Deduplication", "true", "Upstash-Deduplication-Id", id}
	original := publishAccepted(ctx, t, hook.URL, body, headers...)
	isDuplicate(publishTo(ctx, t, hook.URL, body+" other", headers...), original)
	headers[3] = t.Unique("id")
	publishAccepted(ctx, t, hook.URL, body, headers...)
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.dedup.failed", func(ctx context.Context, t *suite.Target) {
	hook, id := t.Hook(500), t.Unique("id")
	answer := publishTo(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id, "Upstash-Retries", "0")
	Expect(answer.Status).To(Equal(201), "%s", answer.Body)
	Expect(answer.Header.Get("Upstash-Deduplication-Id")).To(Equal(id), "of the first publish")
	var p publishedV1
	decode(answer.Body, &p)
	Eventually(func() []string { return statesOf(ctx, t, p.MessageID) }).WithTimeout(t.Patience()).Should(ContainElement("FAILED"))
	isDuplicate(publishTo(ctx, t, hook.URL, "x", "Upstash-Deduplication-Id", id), p.MessageID)
}, suite.WireOnly)

// deaf is a URL of the host at which the target reaches the suite, with a port at which nobody listens.
func deaf(ctx context.Context, t *suite.Target) string {
	reached, err := url.Parse(t.Hook(200).URL)
	Expect(err).NotTo(HaveOccurred())
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	Expect(err).NotTo(HaveOccurred())
	_, port, err := net.SplitHostPort(listener.Addr().String())
	Expect(err).NotTo(HaveOccurred())
	Expect(listener.Close()).To(Succeed())
	return "http://" + net.JoinHostPort(reached.Hostname(), port)
}

var _ = suite.Requirement("publishV1.no-answer", func(ctx context.Context, t *suite.Target) {
	told := t.Hook(200)
	id := publishAccepted(ctx, t, deaf(ctx, t), "x", retriedAtOnce("Upstash-Retries", "1", "Upstash-Callback", told.URL)...)
	Eventually(func() []string { return statesOf(ctx, t, id) }).WithTimeout(t.Patience()).
		Should(Equal([]string{"CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "FAILED"}))
	for i, n := range noticesOf(told.Await(ctx, 2)) {
		Expect(n.Status).To(BeZero(), "the status of attempt %d", i)
		Expect(n.Body).To(BeEmpty())
	}
	Expect(tasksOf(ctx, t, id)[0].Error).NotTo(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("publish.timeout", func(ctx context.Context, t *suite.Target) {
	hook := held(t, 200)
	r := published(ctx, t, hook.URL, "x", "Upstash-Timeout", "1s", "Upstash-Retries", "0")
	Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).
		Should(Equal([]string{"CREATED", "ACTIVE", "ERROR", "FAILED"}))
})

var _ = suite.Requirement("cancelPublished.in-flight", func(ctx context.Context, t *suite.Target) {
	for status, end := range map[int]string{200: "DELIVERED", 500: "CANCELED"} {
		hook := held(t, status)
		r := published(ctx, t, hook.URL, "x", retriedAtOnce()...)
		hook.Await(ctx, 1)
		Expect(decodeCancelled(cancelOne(ctx, t, r.MessageID))).To(Equal(1))
		Expect(statesSince(ctx, t, r.MessageID)).To(ContainElement("CANCEL_REQUESTED"))
		Expect(statesSince(ctx, t, r.MessageID)).NotTo(ContainElement(end), "while the attempt is under way")
		hook.let(1)
		Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).Should(ContainElement(end))
		t.Elapse(ctx, 200*time.Millisecond)
		Expect(hook.Deliveries()).To(HaveLen(1))
	}
})

var _ = suite.Requirement("publish.retry-after.forms", func(ctx context.Context, t *suite.Target) {
	date := time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for _, form := range []struct {
		name, value string
		pause       time.Duration
	}{
		{"Retry-After", "10m0s", 10 * time.Minute},
		{"Retry-After", date, time.Hour},
		{"X-RateLimit-Reset", "600", 10 * time.Minute},
		{"Retry-After", "86401", 20 * time.Minute},
		{"Retry-After", "soon", 20 * time.Minute},
	} {
		hook := t.HookFunc(func(int, suite.Delivery) suite.HookReply {
			return suite.HookReply{Status: 429, Header: http.Header{form.name: {form.value}}}
		})
		published(ctx, t, hook.URL, form.value, "Upstash-Retry-Delay", "1200000", "Upstash-Retries", "1")
		settled(ctx, t, hook)
		retriedAfter(ctx, t, hook, 1, form.pause)
	}
})

var _ = suite.Requirement("publish.callback.retries", func(ctx context.Context, t *suite.Target) {
	told, fewer := t.Hook(500), t.Hook(500)
	published(ctx, t, t.Hook(200).URL, "x", retriedAtOnce("Upstash-Retries", "2", "Upstash-Callback", told.URL)...)
	published(ctx, t, t.Hook(200).URL, "x", retriedAtOnce("Upstash-Retries", "2", "Upstash-Callback", fewer.URL, "Upstash-Callback-Retries", "1")...)
	for hook, attempts := range map[*suite.Hook]int{told: 3, fewer: 2} {
		got := hook.Await(ctx, attempts)
		id := got[0].Header.Get("Upstash-Message-Id")
		Eventually(func() []string { return statesSince(ctx, t, id) }).WithTimeout(t.Patience()).Should(ContainElement("FAILED"))
		t.Elapse(ctx, 200*time.Millisecond)
		Expect(hook.Deliveries()).To(HaveLen(attempts), "a callback has no callbacks of its own")
	}
})

var _ = suite.Requirement("publish.booleans", func(ctx context.Context, t *suite.Target) {
	hook, body := t.Hook(200), t.Unique("body")
	for i, value := range []string{"True", "TRUE", "true", "False"} {
		outcome := publish(ctx, t, hook.URL, body, "Upstash-Content-Based-Deduplication", value)
		want := http.StatusOK
		if i == 1 || i == 2 {
			want = http.StatusAccepted
		}
		Expect(outcome.Status).To(Equal(want), "with %s: %s", value, outcome.Body)
	}
	outcome := publish(ctx, t, hook.URL, body, "Upstash-Content-Based-Deduplication", "maybe")
	Expect(outcome.Status).To(Equal(400), "%s", outcome.Body)
}, suite.WireOnly)

var _ = suite.Requirement("getPublished.path", func(ctx context.Context, t *suite.Target) {
	id := publishAccepted(ctx, t, t.Hook(200).URL, "x")
	for _, target := range []string{"/v2/messages/" + id, "/V2/Messages/" + id, "/v2/messages/" + id + "/"} {
		var m struct {
			MessageID string `json:"messageId"`
		}
		getV1(ctx, t, "getPublished", target, &m)
		Expect(m.MessageID).To(Equal(id))
	}
}, suite.WireOnly)

var _ = suite.Requirement("publishV1.token", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	send := func(query string) suite.Answer {
		return t.Raw(ctx, suite.Request{
			Operation: "publishV1", Target: "/v1/publish/" + hook.URL + "/x?a=b" + query, Header: http.Header{"Authorization": nil}, Body: strings.NewReader("x"),
		})
	}
	Expect(send("&qstash_token=" + t.Token(suite.RoleAdmin)).Status).To(Equal(201))
	Expect(hook.Await(ctx, 1)[0].Target).To(Equal("/x?a=b"))
	for _, query := range []string{"", "&qstash_token=wrong"} {
		answer := send(query)
		Expect(answer.Status).To(Equal(401))
		var fault struct{ Error string }
		Expect(json.Unmarshal(answer.Body, &fault)).To(Succeed(), "%s", answer.Body)
		Expect(fault.Error).To(Equal("unable to authenticate: invalid token"))
	}
}, suite.WireOnly)
