package openapi_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

// refusal is the error of a check as "in: text", or "" for none.
func refusal(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var e *openapi.CheckError
	if !errors.As(err, &e) {
		t.Fatalf("%T is no CheckError: %v", err, err)
	}
	return e.In + ": " + e.Error()
}

func post(t testing.TB, body string) *http.Request {
	t.Helper()
	return httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
}

func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

func item(fields string) string { return `{"items":[{` + fields + `}]}` }

func TestPushBody(t *testing.T) {
	t.Parallel()
	const q = `"queue":"q",`
	for _, c := range []struct{ name, body, want string }{
		{"seed example", `{"items":[{"queue":"orders.created","partition":"customer-42","transactionId":"order-8891-created","payload":{"orderId":8891,"total":4200}}]}`, ""},
		{"no items", `{"items":[]}`, ""},
		{"null payload", item(q + `"payload":null`), ""},
		{"scalar payloads", `{"items":[{"queue":"q","payload":0},{"queue":"q","payload":""},{"queue":"q","payload":false},{"queue":"q","payload":[]},{"queue":"q","payload":{}}]}`, ""},
		{"number beyond float64", item(q + `"payload":[1e400,-1E400,1234567890123456789012345678901234567890]`), ""},
		{"NUL and lone surrogate in payload", item(q + `"payload":"\u0000\ud800"`), ""},
		{"lone surrogate key in payload", item(q + `"payload":{"\udfff":1}`), ""},
		{"duplicate keys in payload", item(q + `"payload":{"a":1,"a":2}`), ""},
		{"unknown keys", `{"x":{"\ud800":1e400},"items":[{"queue":"q","payload":1,"traceId":[{}],"producerSub":5}]}`, ""},
		{"white space", " \t\r\n{ \"items\" : [ { \"queue\" : \"q\" , \"payload\" : 1 } ] } \n", ""},
		{"escaped keys", `{"\u0069tems":[{"queu\u0065":"q","payload":1}]}`, ""},
		{"null optional names", item(q + `"partition":null,"transactionId":null,"payload":1`), ""},
		{"empty optional names", item(q + `"partition":"","transactionId":"","payload":1`), ""},
		{"512 bytes", item(`"queue":"` + strings.Repeat("é", 256) + `","payload":1`), ""},
		{"512 escaped bytes", item(`"queue":"` + strings.Repeat(`\u00e9`, 256) + `","payload":1`), ""},
		{"surrogate pair", item(`"queue":"\ud83d\ude00","payload":1`), ""},
		{"last value of a key counts", item(`"queue":1,"queue":"q","payload":1`), ""},
		{"last items count", `{"items":[{}],"items":[]}`, ""},
		{"depth 10000", item(q + `"payload":` + nested(9997)), ""},

		{"empty body", ``, "body: body is missing"},
		{"white space only", ` `, "body: body is missing"},
		{"not JSON", `hello`, `body: not valid JSON: unexpected 'h' in place of a value at byte 0`},
		{"cut off", `{"items":[`, `body: not valid JSON: unexpected end in place of a value at byte 10`},
		{"cut off in a string", `{"items":[{"queue":"q`, `body: not valid JSON: unexpected end of the body in a string at byte 21`},
		{"trailing bytes", `{"items":[]}x`, `body: not valid JSON: unexpected 'x' after the value at byte 12`},
		{"raw control character", "{\"items\":[{\"queue\":\"a\nb\",\"payload\":1}]}", `body: not valid JSON: unescaped control character '\n' in a string at byte 21`},
		{"byte order mark", "\ufeff{}", `body: not valid JSON: unexpected '\ufeff' in place of a value at byte 0`},
		{"broken payload", item(q + `"payload":01`), `body: not valid JSON: unexpected '1' in an object at byte 34`},
		{"invalid UTF-8", "{\"items\":[{\"queue\":\"\xff\",\"payload\":1}]}", "body: not valid UTF-8 at byte 20"},
		{"invalid UTF-8 in the payload", item(q + "\"payload\":\"\xc3\x28\""), "body: not valid UTF-8 at byte 34"},
		{"depth 10001", item(q + `"payload":` + nested(9998)), "body: nested deeper than 10000 levels at byte 10030"},
		{"array", `[]`, "body: body must be an object"},
		{"null", `null`, "body: body must be an object"},
		{"items missing", `{}`, "body: items is missing"},
		{"items of another type", `{"items":{}}`, "body: items must be an array"},
		{"items null", `{"items":null}`, "body: items must be an array"},
		{"items in another case", `{"Items":[]}`, "body: items is missing"},
		{"item of another type", `{"items":[{"queue":"q","payload":1},7]}`, "body: items[1] must be an object"},
		{"payload missing", item(`"queue":"q"`), "body: items[0].payload is missing"},
		{"data is no payload", item(q + `"data":1`), "body: items[0].payload is missing"},
		{"payload in another case", item(q + `"Payload":1`), "body: items[0].payload is missing"},
		{"queue missing", item(`"payload":1`), "body: items[0].queue is missing"},
		{"queue of another type", `{"items":[{"queue":"q","payload":1},{"queue":"q","payload":1},{"queue":"q","payload":1},{"queue":3,"payload":1}]}`, "body: items[3].queue must be a string"},
		{"queue null", item(`"queue":null,"payload":1`), "body: items[0].queue must be a string"},
		{"queue empty", item(`"queue":"","payload":1`), "body: items[0].queue must not be empty"},
		{"queue of 513 bytes", item(`"queue":"` + strings.Repeat("a", 513) + `","payload":1`), "body: items[0].queue must be at most 512 bytes"},
		{"257 two-byte characters", item(`"queue":"` + strings.Repeat("é", 257) + `","payload":1`), "body: items[0].queue must be at most 512 bytes"},
		{"much too long and escaped", item(`"queue":"` + strings.Repeat(`\u0041`, 5000) + `","payload":1`), "body: items[0].queue must be at most 512 bytes"},
		{"control character", item(`"queue":"a\u0007b","payload":1`), "body: items[0].queue must not contain control characters"},
		{"C1 control character", item(`"queue":"` + "\u0085" + `","payload":1`), "body: items[0].queue must not contain control characters"},
		{"DEL", item(`"queue":"` + "\x7f" + `","payload":1`), "body: items[0].queue must not contain control characters"},
		{"lone surrogate", item(`"queue":"\ud800","payload":1`), "body: items[0].queue must not contain a lone surrogate"},
		{"lone low surrogate in partition", item(q + `"partition":"\udc00x","payload":1`), "body: items[0].partition must not contain a lone surrogate"},
		{"partition of another type", item(q + `"partition":1,"payload":1`), "body: items[0].partition must be a string or null"},
		{"partition of 513 bytes", item(q + `"partition":"` + strings.Repeat("a", 513) + `","payload":1`), "body: items[0].partition must be at most 512 bytes"},
		{"transactionId of 1025 bytes", item(q + `"transactionId":"` + strings.Repeat("a", 1025) + `","payload":1`), "body: items[0].transactionId must be at most 1024 bytes"},
		{"transactionId of another type", item(q + `"transactionId":true,"payload":1`), "body: items[0].transactionId must be a string or null"},
		{"last value of a key breaks a rule", item(`"queue":"q","queue":1,"payload":1`), "body: items[0].queue must be a string"},
		{"syntax error after a violation", `{"items":[{"queue":1,"payload":1}`, "body: not valid JSON: unexpected end in an array at byte 33"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := refusal(t, operation(t, "push").CheckRequest(post(t, c.body), nil, []byte(c.body))); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestOtherBodies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ op, body, want string }{
		{"ack", `{"transactionId":"t","partitionId":"no-uuid"}`, ""},
		{"ack", `{"transactionId":"t","partitionId":"p","status":null,"consumerGroup":null,"leaseId":null,"error":null}`, ""},
		{"ack", `{"transactionId":"t","partitionId":"p","status":"","consumerGroup":"","leaseId":"","error":"line\nline"}`, ""},
		{"ack", `{"transactionId":"t","partitionId":"p","status":7}`, "body: status must be a string or null"},
		{"ack", `{"partitionId":"p"}`, "body: transactionId is missing"},
		{"ack", `{"transactionId":null,"partitionId":"p"}`, "body: transactionId must be a string"},
		{"ack", `{"transactionId":"t","partitionId":"p","error":"\ud800"}`, "body: error must not contain a lone surrogate"},
		{"ackBatch", `{"acknowledgments":[]}`, ""},
		{"ackBatch", `{"acknowledgments":[{"transactionId":"t","partitionId":"p","consumerGroup":5}]}`, ""},
		{"ackBatch", `{"acknowledgments":[{"transactionId":"t","partitionId":"p"},{"transactionId":"t"}]}`, "body: acknowledgments[1].partitionId is missing"},
		{"ackBatch", `{"acknowledgments":{}}`, "body: acknowledgments must be an array"},
		{"configure", `{"queue":"q"}`, ""},
		{"configure", `{"queue":"q","options":{"leaseTime":30,"priority":null},"leaseTime":10,"unknown":-1}`, ""},
		{"configure", `{"queue":"q","options":{"leaseTime":-1}}`, "body: options.leaseTime must be at least 0"},
		{"configure", `{"queue":"q","retryLimit":1.5}`, "body: retryLimit must be an integer or null"},
		{"configure", `{"queue":"q","retryLimit":60.0}`, "body: retryLimit must be an integer or null"},
		{"configure", `{"queue":"q","retryLimit":6e1}`, "body: retryLimit must be an integer or null"},
		{"configure", `{"queue":"q","ttl":2147483648}`, "body: ttl must be at most 2147483647"},
		{"configure", `{"queue":"q","ttl":123456789012345678901234567890}`, "body: ttl must be at most 2147483647"},
		{"configure", `{"queue":"q","encryptionEnabled":"yes"}`, "body: encryptionEnabled must be a boolean or null"},
		{"configure", `{"queue":"q","namespace":"a\u0000"}`, "body: namespace must not contain control characters"},
		{"extendLease", ``, ""},
		{"extendLease", `not JSON`, ""},
		{"extendLease", `{"seconds":"x"}`, ""},
		{"advanceClock", `{"advance":"1h30m"}`, ""},
		{"advanceClock", `{"advance":"-1h"}`, `body: advance must be a duration such as 2160h or 1h30m`},
		{"advanceClock", `{"advance":5}`, "body: advance must be a string"},
		{"advanceClock", `{}`, "body: advance is missing"},
		{"advanceClock", `[]`, "body: body must be an object"},
		{"advanceClock", `{"advance":"` + strings.Repeat("1h", 40) + `"}`, "body: advance must be at most 64 bytes"},
		{"listQueues", `not looked at`, ""},
	} {
		params := map[string]string{"leaseId": "l"}
		if got := refusal(t, operation(t, c.op).CheckRequest(post(t, c.body), params, []byte(c.body))); got != c.want {
			t.Errorf("%s %s:\ngot  %s\nwant %s", c.op, c.body, got, c.want)
		}
	}
}

// TestContentTypeIsIgnored sends a body without a Content-Type and with foreign ones.
func TestContentTypeIsIgnored(t *testing.T) {
	t.Parallel()
	body := []byte(`{"items":[]}`)
	for _, contentType := range []string{"", "text/plain", "application/x-www-form-urlencoded", "a;b=c;;", "multipart/form-data"} {
		r := post(t, "")
		r.Header.Set("Content-Type", contentType)
		if contentType == "" {
			r.Header.Del("Content-Type")
		}
		if err := operation(t, "push").CheckRequest(r, nil, body); err != nil {
			t.Errorf("%q: %v", contentType, err)
		}
	}
}

func TestParameters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ query, want string }{
		{"", ""},
		{"batch=10&partitions=-1&autoAck=yes&wait=1&timeout=0&leaseSeconds=-5&consumerGroup=g&subscriptionMode=new-only&subscriptionFrom=rubbish", ""},
		{"wait=true&wait=false&autoAck=no&autoAck=0", ""},
		{"unknown=%zz&also;odd=1&&=", ""},
		{"consumerGroup=&subscriptionMode=", ""},
		{"consumerGroup=a+b%26%2F", ""},
		{"b%61tch=5", ""},
		{"batch=abc", "query: batch must be an integer"},
		{"b%61tch=abc", "query: batch must be an integer"},
		{"batch=", "query: batch must be an integer"},
		{"batch", "query: batch must be an integer"},
		{"batch=1.0", "query: batch must be an integer"},
		{"batch=1e2", "query: batch must be an integer"},
		{"batch=%201", "query: batch must be an integer"},
		{"batch=%2B1", "query: batch must be an integer"},
		{"batch=5&batch=x", "query: batch must be an integer"},
		{"batch=0", "query: batch must be at least 1"},
		{"batch=99999999999999999999", "query: batch must be at most 2147483647"},
		{"timeout=-1", "query: timeout must be at least 0"},
		{"wait=TRUE", "query: wait must be true, false, 1, 0, yes or no"},
		{"wait=", "query: wait must be true, false, 1, 0, yes or no"},
		{"autoAck=2", "query: autoAck must be true, false, 1, 0, yes or no"},
		{"subscriptionMode=old", "query: subscriptionMode must be one of all, new, new-only or empty"},
		{"consumerGroup=%zz", "query: consumerGroup must be percent-encoded"},
		{"consumerGroup=a;b", "query: consumerGroup must have its semicolons percent-encoded"},
		{"consumerGroup=%ff", "query: consumerGroup must be valid UTF-8"},
		{"consumerGroup=%00", "query: consumerGroup must not contain control characters"},
		{"consumerGroup=" + strings.Repeat("g", 513), "query: consumerGroup must be at most 512 bytes"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.URL.RawQuery = c.query
		if got := refusal(t, operation(t, "popQueue").CheckRequest(r, map[string]string{"queue": "q"}, nil)); got != c.want {
			t.Errorf("%.80s:\ngot  %s\nwant %s", c.query, got, c.want)
		}
	}
	for _, c := range []struct{ queue, want string }{
		{"a/b c.d/../é", ""},
		{strings.Repeat("é", 256), ""},
		{"", "path: queue must not be empty"},
		{strings.Repeat("q", 513), "path: queue must be at most 512 bytes"},
		{"a\x00", "path: queue must not contain control characters"},
		{"\xff", "path: queue must be valid UTF-8"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if got := refusal(t, operation(t, "getQueue").CheckRequest(r, map[string]string{"queue": c.queue}, nil)); got != c.want {
			t.Errorf("%q: got %s, want %s", c.queue, got, c.want)
		}
	}
	if got := refusal(t, operation(t, "getQueue").CheckRequest(post(t, ""), nil, nil)); got != "path: queue is missing" {
		t.Errorf("without path parameters: %s", got)
	}
}

func TestResponses(t *testing.T) {
	t.Parallel()
	const result = `"index":0,"message_id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transaction_id":"t","queueName":"q"`
	_, popped := operation(t, "popQueue").ResponseExample(200)
	pop := string(popped)
	for _, c := range []struct {
		name, op string
		status   int
		header   string
		body     string
		want     string
	}{
		{"queued", "push", 201, "application/json", `[{` + result + `,"status":"queued"}]`, ""},
		{"charset", "push", 201, "Application/JSON; charset=utf-8", `[]`, ""},
		{"unknown original", "push", 201, "application/json", `[{` + strings.Replace(result, "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83", "00000000-0000-0000-0000-000000000000", 1) + `,"status":"duplicate"}]`, ""},
		{"maintenance", "push", 500, "application/json", `[{` + result + `,"status":"failed"}]`, ""},
		{"neither results nor an error", "push", 500, "application/json", `"no"`, "response: body must be an array or an object"},
		{"wrong result at 500", "push", 500, "application/json", `[{` + result + `,"status":1}]`, "response: [0].status must be a string"},
		{"own failure", "push", 500, "application/json", `{"error":"internal error"}`, ""},
		{"undocumented status", "push", 202, "application/json", `[]`, "response: status 202 is not documented for push"},
		{"no content type", "push", 201, "", `[]`, "response: Content-Type must be application/json"},
		{"other content type", "push", 201, "text/plain", `[]`, "response: Content-Type must be application/json"},
		{"object", "push", 201, "application/json", `{"items":[]}`, "response: body must be an array"},
		{"sixth key", "push", 201, "application/json", `[{` + result + `,"status":"queued","partition":"p"}]`, "response: [0].partition is not allowed"},
		{"unknown word", "push", 201, "application/json", `[{` + result + `,"status":"ok"}]`, "response: [0].status must be one of queued, duplicate, buffered, failed"},
		{"no UUID", "push", 201, "application/json", `[{` + strings.Replace(result, "0198f2c1-4d3a-7c10", "0198f2c1-4d3a-0c10", 1) + `,"status":"queued"}]`, "response: [0].message_id must be a UUID"},
		{"flat error", "push", 400, "application/json", `{"error":"bad body: items is missing"}`, ""},
		{"nested error", "push", 400, "application/json", `{"error":{"message":"x"}}`, "response: error must be a string"},
		{"empty body", "push", 201, "application/json", ``, "response: body is missing"},
		{"popped", "popQueue", 200, "application/json", pop, ""},
		{"any data", "popQueue", 200, "application/json", strings.Replace(pop, `{"orderId":8891,"total":4200}`, `[1e400,"\ud800",null]`, 1), ""},
		{"additive keys", "popQueue", 200, "application/json", strings.Replace(pop, `"success"`, `"more":1,"success"`, 1), ""},
		{"no data", "popQueue", 200, "application/json", strings.Replace(pop, `"data"`, `"payload"`, 1), "response: messages[0].data is missing"},
		{"milliseconds", "popQueue", 200, "application/json", strings.Replace(pop, `.123456Z`, `.123Z`, 1), "response: messages[0].createdAt must be an ISO 8601 time in UTC with microseconds"},
		{"no messages", "popQueue", 200, "application/json", `{"success":true,"queue":"q","partition":"p","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","leaseId":"","consumerGroup":"g","partitionsClaimed":1,"messages":[]}`, "response: messages must have at least 1 items"},
		{"nothing", "popQueue", 204, "", ``, ""},
		{"204 with a body", "popQueue", 204, "", `{}`, "response: body must be absent"},
		{"503 without Retry-After", "popQueue", 503, "application/json", `{"error":"database unavailable"}`, "response: Retry-After is missing"},
		{"discovery without scope", "pop", 400, "application/json", `{"success":false,"error":"namespace or task is required","messages":[]}`, ""},
		{"page", "index", 200, "text/html; charset=utf-8", `<p>`, ""},
		{"metrics", "metrics", 200, "text/plain; version=0.0.4; charset=utf-8", `a 1`, ""},
		{"metrics as JSON", "metrics", 200, "application/json", `{}`, "response: Content-Type must be text/plain"},
		{"dead database", "health", 503, "application/json", `{"status":"unhealthy","database":"disconnected"}`, ""},
		{"healthy without a database", "health", 200, "application/json", `{"status":"healthy","database":"disconnected","engine":"e","version":"1"}`, "response: database must be connected"},
		{"not extended", "extendLease", 200, "application/json", `{"leaseId":"l","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			if c.header != "" {
				header.Set("Content-Type", c.header)
			}
			if got := refusal(t, operation(t, c.op).CheckResponse(c.status, header, []byte(c.body))); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
	header := http.Header{"Content-Length": {"0"}}
	if got := refusal(t, operation(t, "popQueue").CheckResponse(204, header, nil)); got != "response: Content-Length must be absent" {
		t.Errorf("204 with a Content-Length: %s", got)
	}
	header = http.Header{"Content-Type": {"application/json"}, "Retry-After": {"soon"}}
	if got := refusal(t, operation(t, "popQueue").CheckResponse(503, header, []byte(`{"error":"e"}`))); got != "response: Retry-After must be an integer" {
		t.Errorf("503 with a broken Retry-After: %s", got)
	}
}

func TestItemLimit(t *testing.T) {
	t.Parallel()
	push := operation(t, "push")
	body := func(n int) []byte {
		one := `{"queue":"q","payload":1}`
		return []byte(`{"items":[` + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + `]}`)
	}
	at, over := body(100_000), body(100_001)
	if err := push.CheckRequest(post(t, ""), nil, at); err != nil {
		t.Errorf("100 000 items: %v", err)
	}
	if got := refusal(t, push.CheckRequest(post(t, ""), nil, over)); got != "body: items must have at most 100000 items" {
		t.Errorf("100 001 items: %s", got)
	}
	if items, err := openapi.PushItems(at); err != nil || len(items) != 100_000 {
		t.Errorf("%d items, %v", len(items), err)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestHostileBodiesAreCheap refuses the largest bodies promptly and without memory of their size. It does not run in
// parallel: it counts the process's allocations.
func TestHostileBodiesAreCheap(t *testing.T) {
	const size = 64 << 20
	push := operation(t, "push")
	fill := func(head, unit, tail string) []byte {
		return []byte(head + strings.Repeat(unit, (size-len(head)-len(tail))/len(unit)) + tail)
	}
	for _, c := range []struct {
		name string
		body []byte
	}{
		{"tiny items", fill(`{"items":[{}`, `,{}`, `]}`)},
		{"tiny valid items", fill(`{"items":[{"queue":"q","payload":1}`, `,{"queue":"q","payload":1}`, `]}`)},
		{"deep", fill(`{"items":[{"queue":"q","payload":`, `[`, ``)},
		{"long escaped name", fill(`{"items":[{"payload":1,"queue":"`, `\u0041`, `"}]}`)},
		{"long escaped key", fill(`{"`, `\u0041`, `":1}`)},
		{"many keys", fill(`{"a":1`, `,"a":1`, `}`)},
		{"long broken string", fill(`{"items":"`, `a`, ``)},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			var err error
			bytes := allocated(func() { err = push.CheckRequest(post(t, ""), nil, c.body) })
			if err == nil {
				t.Fatal("accepted")
			}
			if len(err.Error()) > 200 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			if bytes > 2<<20 {
				t.Errorf("allocated %d bytes", bytes)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if bytes := allocated(func() { _, _ = openapi.PushItems(c.body) }); bytes > 2*size {
				t.Errorf("PushItems allocated %d bytes of a body that was refused", bytes)
			}
		})
	}
}

// TestLargeAcceptedBody has one item beside 64 MiB that mean nothing.
func TestLargeAcceptedBody(t *testing.T) {
	body := []byte(`{"` + strings.Repeat(`\u0041`, 64<<20/6-20) + `":1,"items":[{"queue":"q","payload":1}]}`)
	if err := operation(t, "push").CheckRequest(post(t, ""), nil, body); err != nil {
		t.Fatal(err)
	}
	var items []openapi.PushItem
	if bytes := allocated(func() { items, _ = openapi.PushItems(body) }); bytes > 1<<20 || len(items) != 1 {
		t.Errorf("%d items for %d bytes", len(items), bytes)
	}
}

// TestNoAllocationPerItem holds the hot checks to what the benchmarks show.
func TestNoAllocationPerItem(t *testing.T) {
	push := operation(t, "push")
	r := post(t, "")
	body := pushBody(100)
	if n := testing.AllocsPerRun(50, func() {
		if err := push.CheckRequest(r, nil, body); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a request of 100 items takes %v allocations", n)
	}
}

func pushBody(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":"orders.created","partition":"customer-42","transactionId":"order-%d-created","payload":{"orderId":%d,"total":4200}}`, i, i)
	}
	b.WriteString(`]}`)
	return []byte(b.String())
}

func TestPushItems(t *testing.T) {
	t.Parallel()
	body := []byte(`{"items":[{"queue":"a\u0026b","partition":"p\/q","transactionId":"\u00e9","payload": {"x": 1e400} },{"payload":null,"queue":"a&b","partition":null}]}`)
	items, err := openapi.PushItems(body)
	if err != nil || len(items) != 2 {
		t.Fatalf("%v, %v", items, err)
	}
	if i := items[0]; i.Queue != "a&b" || i.Partition != "p/q" || i.TransactionID != "é" || string(i.Payload) != `{"x": 1e400}` {
		t.Errorf("first item %+v", i)
	}
	if i := items[1]; i.Queue != "a&b" || i.Partition != "" || i.TransactionID != "" || string(i.Payload) != `null` {
		t.Errorf("second item %+v", i)
	}
	if cap(items[0].Payload) != len(items[0].Payload) {
		t.Error("appending to a payload would overwrite the body")
	}
	for _, broken := range []string{``, `[]`, `{"items":[`, `{"items":[{"queue":"q"`, "{\"items\":[\"\xff\"]}"} {
		if items, err := openapi.PushItems([]byte(broken)); err == nil {
			t.Errorf("%q: %v", broken, items)
		}
	}
}
