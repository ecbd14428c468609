package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

const (
	bodyLimit  = 67108864
	depthLimit = 10000
)

var _ = suite.Requirement("http.content-type.ignored", func(ctx context.Context, t *suite.Target) {
	for _, contentType := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "nonsense"} {
		header := http.Header{}
		if contentType != "" {
			header.Set("Content-Type", contentType)
		}
		answer := t.Raw(ctx, suite.Request{
			Operation: "push", Header: header, Body: bytes.NewReader(pushBody(item{queue: t.Queue(), payload: "1"})),
		})
		Expect(answer.Status/100).To(Equal(2), "push with Content-Type %q", contentType)
	}
}, suite.WireOnly)

var _ = suite.Requirement("http.body.json", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, body := range []string{
		"", " ", "no json", "{", `{"items":[]`, `{"items":[],}`, `{"items":[]} x`, `{'items':[]}`,
		`{"items":[{"queue":"` + queue + `","payload":01}]}`, `{"items":[{"queue":"` + queue + `","payload":NaN}]}`,
		`{"items":[{"queue":"` + queue + `","payload":"` + "\x01" + `"}]}`, "\ufeff" + `{"items":[]}`,
	} {
		rejectedAs(post(ctx, t, "push", body), "bad body: ")
	}
	for _, operation := range []string{"ack", "ackBatch", "configure"} {
		rejectedAs(post(ctx, t, operation, "{"), "bad body: ")
	}
	Expect(drain(ctx, t, queue)).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("http.body.utf8", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, broken := range []string{"\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf"} {
		rejected(post(ctx, t, "push", `{"items":[{"queue":"`+queue+`","transactionId":"a`+broken+`","payload":1}]}`))
		rejected(post(ctx, t, "push", `{"items":[{"queue":"`+queue+`","payload":"a`+broken+`"}]}`))
	}
	Expect(drain(ctx, t, queue)).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("http.body.depth", func(ctx context.Context, t *suite.Target) {
	nested := func(levels int) string {
		inner := levels - 3 // the body, items and the item
		return `{"items":[{"queue":` + quote(t.Queue()) + `,"payload":` +
			strings.Repeat("[", inner) + strings.Repeat("]", inner) + `}]}`
	}
	Expect(post(ctx, t, "push", nested(depthLimit)).Status/100).To(Equal(2), "at the limit")
	rejected(post(ctx, t, "push", nested(depthLimit+1)))
	start := time.Now()
	rejected(post(ctx, t, "push", nested(1_000_000)))
	Expect(time.Since(start)).To(BeNumerically("<", t.Patience()), "time to refuse a million levels")
}, suite.WireOnly)

// padded is an empty push made as long as wanted by white space.
func padded(length int) io.Reader {
	const start = `{"items":[`
	const end = `]}`
	return io.MultiReader(strings.NewReader(start),
		io.LimitReader(spaces{}, int64(length-len(start)-len(end))), strings.NewReader(end))
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

var _ = suite.Requirement("http.body.limit", func(ctx context.Context, t *suite.Target) {
	Expect(t.Raw(ctx, suite.Request{Operation: "push", Body: padded(bodyLimit), Length: bodyLimit}).Status/100).
		To(Equal(2), "at the limit, with Content-Length")
	Expect(t.Raw(ctx, suite.Request{Operation: "push", Body: padded(bodyLimit), Length: -1}).Status/100).
		To(Equal(2), "at the limit, chunked")
	answer := t.Raw(ctx, suite.Request{Operation: "push", Body: padded(bodyLimit + 1), Length: -1})
	Expect(answer.Status).To(Equal(413), "one byte more, chunked")
	flatError(answer)
}, suite.WireOnly, suite.Timeout(2*time.Minute))

var _ = suite.Requirement("http.body.limit-early", func(ctx context.Context, t *suite.Target) {
	ctx, cancel := context.WithTimeout(ctx, t.Patience())
	defer cancel()
	answer := t.Bytes(ctx, "POST", fmt.Sprintf(
		"POST /api/v1/push HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"items\":[", bodyLimit+1))
	Expect(answer.Status).To(Equal(413))
	flatError(answer)
}, suite.WireOnly)

func flatError(answer suite.Answer) {
	Expect(answer.Header.Get("Content-Type")).To(HavePrefix("application/json"))
	var body struct {
		Error *string `json:"error"`
	}
	Expect(json.Unmarshal(answer.Body, &body)).To(Succeed(), "error body %q", answer.Body)
	Expect(body.Error).NotTo(BeNil(), "error of %s", answer.Body)
	Expect(*body.Error).NotTo(BeEmpty(), "error of %s", answer.Body)
}

var _ = suite.Requirement("http.body.unknown-keys", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := post(ctx, t, "push", `{"x":1,"":null,"items":[{"queue":"`+queue+`","payload":1,"priority":{"a":[1e400]},"Data":[],"delay":null}],"y":{}}`)
	Expect(answer.Status/100).To(Equal(2), "%s", answer.Body)
	Expect(dataOf(drain(ctx, t, queue))).To(Equal([]string{"1"}))
	answer = post(ctx, t, "configure", `{"queue":"`+queue+`","shiny":-1,"options":{"unknown":"x","leaseTime":5}}`)
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
}, suite.WireOnly)

var _ = suite.Requirement("http.body.exact-case", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	rejected(post(ctx, t, "push", `{"Items":[{"queue":"`+queue+`","payload":1}]}`))
	rejected(post(ctx, t, "push", `{"items":[{"Queue":"`+queue+`","payload":1}]}`))
	rejected(post(ctx, t, "push", `{"items":[{"queue":"`+queue+`","Payload":1}]}`))
	answer := post(ctx, t, "push", `{"items":[{"queue":"`+queue+`","payload":1,"Partition":"p","TransactionId":"x","PAYLOAD":2}]}`)
	Expect(answer.Status/100).To(Equal(2), "%s", answer.Body)
	messages := drain(ctx, t, queue)
	Expect(dataOf(messages)).To(Equal([]string{"1"}))
	Expect(messages[0].Partition).NotTo(Equal("p"))
	Expect(messages[0].TransactionID).NotTo(Equal("x"))
}, suite.WireOnly)

var _ = suite.Requirement("http.body.duplicate-keys", func(ctx context.Context, t *suite.Target) {
	first, last := t.Queue(), t.Queue()
	answer := post(ctx, t, "push", `{"items":7,"items":[{"queue":"`+first+`","payload":1,"queue":"`+last+`","payload":2}]}`)
	Expect(answer.Status/100).To(Equal(2), "%s", answer.Body)
	Expect(dataOf(drain(ctx, t, last))).To(Equal([]string{"2"}))
	Expect(drain(ctx, t, first)).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("http.error.flat", func(ctx context.Context, t *suite.Target) {
	flatError(post(ctx, t, "push", `{`))
	flatError(post(ctx, t, "push", `{"items":[{}]}`))
	flatError(post(ctx, t, "configure", `{"queue":7}`))
	flatError(post(ctx, t, "ack", `{}`))
	flatError(t.Raw(ctx, suite.Request{Operation: "popQueue", Target: "/api/v1/pop/queue/" + t.Queue() + "?batch=x"}))
	flatError(t.Raw(ctx, suite.Request{Target: "/api/v1/no/such/route"}))
}, suite.WireOnly)

var _ = suite.Requirement("http.error.valid-json", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, body := range []string{
		`{"items":"\"quoted\" \\ \u0000"`, "{\"items\":[\"\x01\x7f\"]}", "{\"a\xff\xfe\":", `{"items":[{"queue":"a\"b\nc","payload":1}]}`,
		"\"\x00", `{"items":[{"queue":"` + queue + `","payload":'x"'}]}`, `{"items":[{"queue":"` + strings.Repeat(`\"`, 600) + `","payload":1}]}`,
	} {
		answer := post(ctx, t, "push", body)
		Expect(answer.Status).To(Equal(400), "push of %q", body)
		Expect(json.Valid(answer.Body)).To(BeTrue(), "error body %q", answer.Body)
	}
	for _, value := range []string{`"x"`, "\x01", "\xff", `\`, "a\nb"} {
		answer := t.Raw(ctx, suite.Request{Target: "/api/v1/pop/queue/" + queue + "?batch=" + url.QueryEscape(value)})
		Expect(answer.Status).To(Equal(400), "pop with batch=%q", value)
		Expect(json.Valid(answer.Body)).To(BeTrue(), "error body %q", answer.Body)
	}
}, suite.WireOnly)

var _ = suite.Requirement("http.error.where", func(ctx context.Context, t *suite.Target) {
	for body, text := range map[string]string{
		`{"items":[{"queue":"q"}]}`: "bad body: items[0].payload is missing",
		`{}`:                        "bad body: items is missing",
		`{"items":[{"queue":"q","payload":1},{"payload":1}]}`:                         "bad body: items[1].queue is missing",
		`{"items":[{"queue":"q","payload":1},{"payload":1},{"queue":7,"payload":1}]}`: "bad body: items[1].queue is missing",
		`{"items":[{"queue":"q","payload":1},{"queue":"q","payload":1,"queue":7}]}`:   "bad body: items[1].queue must be a string",
		`{"items":{}}`: "bad body: items must be an array",
	} {
		rejectedAs(post(ctx, t, "push", body), text)
	}
}, suite.WireOnly)

// noSuchRoute asserts the answer to a request that no route matches.
func noSuchRoute(answer suite.Answer, what string) {
	Expect(answer.Status).To(Equal(404), what)
	Expect(answer.Body).To(MatchJSON(`{"error":"Not Found","code":"no_such_route"}`), what)
}

var _ = suite.Requirement("http.route.unknown", func(ctx context.Context, t *suite.Target) {
	for _, path := range []string{"/api/", "/api/v1/nothing", "/api/v2/push", "/api/v1/push/x", "/api/v1/pop/queue"} {
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			noSuchRoute(t.Raw(ctx, suite.Request{Method: method, Target: path}), method+" "+path)
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("http.route.unknown", func(ctx context.Context, t *suite.Target) {
	for _, request := range []string{"POST /nothing", "DELETE /", "PUT /api/v1/push", "DELETE /api/v1/pop", "POST /api/v1/resources/queues", "PATCH /health"} {
		method, path, _ := strings.Cut(request, " ")
		noSuchRoute(t.Raw(ctx, suite.Request{Method: method, Target: path}), request)
	}
}, suite.WireOnly)

var _ = suite.Requirement("http.route.never-existed", func(ctx context.Context, t *suite.Target) {
	for _, request := range []string{"DELETE /api/v1/queues/" + t.Queue() + "/clear", "GET /api/v1/resources/partitions"} {
		method, path, _ := strings.Cut(request, " ")
		Expect(t.Raw(ctx, suite.Request{Method: method, Target: path}).Status).To(Equal(404), request)
	}
}, suite.WireOnly)

var _ = suite.Requirement("http.no-content.bare", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	answer := t.Bytes(ctx, "GET", "GET /api/v1/pop/queue/"+queue+" HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
	if answer.Status != 204 {
		t.Skipf("an empty pop was answered %d, so that there is no 204 to look at", answer.Status)
	}
	Expect(answer.Header).NotTo(HaveKey("Content-Length"))
	Expect(answer.Header).NotTo(HaveKey("Transfer-Encoding"))
	Expect(answer.Body).To(BeEmpty())
}, suite.WireOnly)
