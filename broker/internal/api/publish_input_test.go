package api

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// nothingAccepted checks that whatever came before changed nothing.
func (b *broker) nothingAccepted(t *testing.T) {
	t.Helper()
	var messages, schedules, ids int
	err := b.admin(t).QueryRow(t.Context(), `select (select count(*) from delivery_message), (select count(*) from schedule), (select count(*) from delivery_dedup)`).Scan(&messages, &schedules, &ids)
	if err != nil || messages+schedules+ids != 0 {
		t.Errorf("%d messages, %d schedules and %d deduplication ids are there: %v", messages, schedules, ids, err)
	}
}

// batch publishes one item, with headers in pairs that need not be what HTTP allows, and returns its error.
func (b *broker) batch(t *testing.T, destination string, headers ...string) string {
	t.Helper()
	item := struct {
		Destination string              `json:"destination"`
		Headers     map[string][]string `json:"headers"`
	}{destination, map[string][]string{}}
	for i := 0; i < len(headers); i += 2 {
		item.Headers[headers[i]] = append(item.Headers[headers[i]], headers[i+1])
	}
	body, err := json.Marshal([]any{item})
	if err != nil {
		t.Fatal(err)
	}
	r := b.publish("/v2/batch", string(body))
	var out []struct{ Error string }
	if err := json.Unmarshal(r.body, &out); err != nil || r.status != 200 || len(out) != 1 {
		t.Fatalf("%q: %d %s", headers, r.status, r.body)
	}
	return out[0].Error
}

// TestRefusedHeaders sends what is wrong in one header over every route that takes it, as a header, as a query parameter and
// in a batch. The answer names the header and the rule, and nothing is accepted.
func TestRefusedHeaders(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	long := strings.Repeat("1+", 100_000) + "1"
	const cronOnly = "cron"
	tests := []struct{ name, value, want, only string }{
		{"Upstash-Deduplication-Id", "a:b", "DeduplicationId cannot contain ':'", ""},
		{"Upstash-Deduplication-Id", "a b", "DeduplicationId cannot contain white space", ""},
		{"Upstash-Deduplication-Id", "a\tb", "DeduplicationId cannot contain white space", ""},
		{"Upstash-Deduplication-Id", "a\u00a0b", "DeduplicationId cannot contain white space", ""},
		{"Upstash-Deduplication-Id", strings.Repeat("a", 1025), "DeduplicationId must be 1 to 1024 bytes", ""},
		{"Upstash-Delay", "-1s", "Upstash-Delay must be a duration", ""},
		{"Upstash-Delay", "1000000000000000000s", "Upstash-Delay must be at most 100 years", ""},
		{"Upstash-Delay", "1e18s", "Upstash-Delay must be a duration", ""},
		{"Upstash-Delay", "1d10", "Upstash-Delay must be a duration", ""},
		{"Upstash-Not-Before", "-1", "Upstash-Not-Before must be a unix timestamp", ""},
		{"Upstash-Not-Before", "1e18", "Upstash-Not-Before must be a unix timestamp", ""},
		{"Upstash-Not-Before", "1000000000000000000", "Upstash-Not-Before must be at most 100 years", ""},
		{"Upstash-Retries", "-1", "Upstash-Retries must be an integer", ""},
		{"Upstash-Retries", "1000000000000000000", "Upstash-Retries must be an integer", ""},
		{"Upstash-Timeout", "-5s", "Upstash-Timeout must be a duration", ""},
		{"Upstash-Retry-Delay", long, "Upstash-Retry-Delay: the expression is longer than 1024 bytes", ""},
		{"Upstash-Retry-Delay", strings.Repeat("(", 500) + "1", "Upstash-Retry-Delay: the expression is nested deeper", ""},
		{"Upstash-Retry-Delay", "1 ** 2", "Upstash-Retry-Delay: expected", ""},
		{"Upstash-Retry-Delay", "1e999", "Upstash-Retry-Delay: expected a number that can be represented", ""},
		{"Upstash-Callback-Retry-Delay", long, "Upstash-Callback-Retry-Delay: the expression is longer", ""},
		{"Upstash-Callback-Delay", "-1s", "Upstash-Callback-Delay must be a duration", ""},
		{"Upstash-Cron", "TZ=", "5 fields", cronOnly},
		{"Upstash-Cron", "TZ=UTC * * * * *", "5 fields", cronOnly},
		{"Upstash-Cron", "CRON_TZ= * * * * *", "time zone", cronOnly},
		{"Upstash-Cron", "CRON_TZ=../../etc/passwd * * * * *", "time zone", cronOnly},
		{"Upstash-Cron", "@every 1ns", "5 fields", cronOnly},
		{"Upstash-Cron", "* * * * * *", "5 fields", cronOnly},
		{"Upstash-Cron", "0 0 31 2 *", "never comes", cronOnly},
		{"Upstash-Cron", strings.Repeat("*", 200_000), "longer than 256", cronOnly},
		{"Upstash-Forward-Connection", "close", "cannot be forwarded", ""},
		{"Upstash-Forward-Keep-Alive", "1", "cannot be forwarded", ""},
		{"Upstash-Forward-Transfer-Encoding", "chunked", "cannot be forwarded", ""},
		{"Upstash-Forward-TE", "trailers", "cannot be forwarded", ""},
		{"Upstash-Forward-Trailer", "X", "cannot be forwarded", ""},
		{"Upstash-Forward-Upgrade", "h2c", "cannot be forwarded", ""},
		{"Upstash-Forward-Proxy-Authorization", "x", "cannot be forwarded", ""},
		{"Upstash-Forward-Host", "x", "cannot be forwarded", ""},
		{"Upstash-Forward-Content-Length", "1", "cannot be forwarded", ""},
		{"Upstash-Callback-Forward-Host", "x", "cannot be forwarded", ""},
		{"Upstash-Failure-Callback-Forward-Connection", "x", "cannot be forwarded", ""},
	}
	for _, test := range tests {
		with := []string{"Upstash-Callback", h.URL, "Upstash-Failure-Callback", h.URL}
		header := append([]string{test.name, test.value}, with...)
		cron := append([]string{"Upstash-Cron", "* * * * *"}, header...)
		label := fmt.Sprintf("%s: %.30q", test.name, test.value)
		check := func(how string, status int, text string) {
			t.Helper()
			if status != 400 || !strings.Contains(text, test.want) {
				t.Errorf("%s %s: %d %s, want %q", label, how, status, text, test.want)
			}
		}
		query := strings.ToLower(test.name) + "=" + url.QueryEscape(test.value)
		if test.only == cronOnly {
			for _, path := range []string{"/v1/publish/", "/v2/schedules/"} {
				r := b.publish(path+h.URL, "x", header...)
				check(path, r.status, r.errorText(t))
				r = b.publish(path+h.URL+"?"+query, "x")
				check(path+" in the query", r.status, r.errorText(t))
			}
			continue
		}
		for _, path := range []string{"/v1/publish/", "/v2/publish/", "/v2/enqueue/orders/"} {
			r := b.publish(path+h.URL, "x", header...)
			check(path, r.status, r.errorText(t))
		}
		r := b.publish("/v2/publish/"+h.URL+"?"+query, "x", with...)
		check("in the query", r.status, r.errorText(t))
		for _, path := range []string{"/v1/publish/", "/v2/schedules/"} {
			r := b.publish(path+h.URL, "x", cron...)
			check(path+" of a schedule", r.status, r.errorText(t))
		}
		check("in a batch", 400, b.batch(t, h.URL, header...))
	}
	b.nothingAccepted(t)
}

// TestAcceptedExtremes takes what is odd and still has a meaning, and does what it means.
func TestAcceptedExtremes(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	for _, c := range []struct {
		expression string
		want       time.Duration
	}{
		{"1/0", 24 * time.Hour}, {"0/0", 0}, {"-1", 0}, {"pow(pow(9,999),999)", 24 * time.Hour}, {"sqrt(-1)", 0}, {"exp(1000)", 24 * time.Hour},
	} {
		var out publishResult
		r := b.publish("/v2/publish/"+h.URL, "x", "Upstash-Retry-Delay", c.expression, "Upstash-Retries", "1")
		if err := json.Unmarshal(r.body, &out); err != nil || r.status != 200 {
			t.Fatalf("%s: %d %s", c.expression, r.status, r.body)
		}
		b.settle()
		var page eventsV2
		b.ask(200, "GET", "/v2/events?state=RETRY&messageId="+out.MessageID, "", &page)
		if len(page.Events) != 1 || page.Events[0].NextDeliveryTime-page.Events[0].Time != c.want.Milliseconds() {
			t.Errorf("%s: %+v, want a retry after %v", c.expression, page.Events, c.want)
		}
	}
	before := len(h.requests())
	for i, headers := range [][]string{
		{"Upstash-Delay", "0s"}, {"Upstash-Not-Before", "0"}, {"Upstash-Not-Before", "1691245856", "Upstash-Delay", "36500d"},
	} {
		if r := b.publish("/v1/publish/"+h.URL, "x", append(headers, "Upstash-Retries", "0")...); r.status != 201 {
			t.Fatalf("%v: %d %s", headers, r.status, r.body)
		}
		b.settle()
		if got := len(h.requests()); got != before+i+1 {
			t.Errorf("%v: %d deliveries, want %d", headers, got, before+i+1)
		}
	}
	if r := b.publish("/v1/publish/"+h.URL, "x", "Upstash-Delay", "36500d", "Upstash-Retries", "0"); r.status != 201 {
		t.Errorf("100 years: %d %s", r.status, r.body)
	}
}

// TestRefusedDestinations sends destinations that nothing may be sent to, wherever a destination stands.
func TestRefusedDestinations(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	const (
		scheme  = "invalid destination url: endpoint has invalid scheme, add http:// or https://"
		resolve = "endpoint resolves to "
	)
	tests := []struct{ url, want string }{
		{"gopher://example.com/", scheme},
		{"ftp://example.com/", scheme},
		{"file:///etc/passwd", scheme},
		{"javascript:alert(1)", scheme},
		{"//example.com/", scheme},
		{"http://user@example.com/", "user info"},
		{"http://user:pw@example.com/", "user info"},
		{"http://10.0.0.1/", resolve + "a private address: 10.0.0.1"},
		{"http://167772161/", resolve + "a private address: 10.0.0.1"},  // decimal
		{"http://012.0.0.1/", resolve + "a private address: 10.0.0.1"},  // octal
		{"http://012.1/", resolve + "a private address: 10.0.0.1"},      // in short
		{"http://0x0a000001/", resolve + "a private address: 10.0.0.1"}, // hexadecimal
		{"http://0xA.0.0.1/", resolve + "a private address: 10.0.0.1"},  // of a part, in capitals
		{"http://10.0.0.1./", resolve + "a private address: 10.0.0.1"},  // rooted
		{"http://%31%30.0.0.1/", "escape"},
		{"http://[::ffff:10.0.0.1]/", resolve + "a private address: 10.0.0.1"},
		{"http://[::ffff:a00:1]/", resolve + "a private address: 10.0.0.1"},
		{"http://[::10.0.0.1]/", resolve + "an IPv4-compatible address"},
		{"http://[64:ff9b::10.0.0.1]/", resolve + "a NAT64 address"},
		{"http://[64:ff9b::7f00:1]/", resolve + "a NAT64 address"},
		{"http://[2002:a00:1::]/", resolve + "a 6to4 address"},
		{"http://[2001:0:a00:1::]/", resolve + "a Teredo address"},
		{"http://[fe80::1%25eth0]/", resolve},
		{"http://[fd00::1]/", resolve + "a private address"},
		{"http://[ff02::1]/", resolve + "a multicast address"},
		{"http://0.0.0.0/", resolve + "an unspecified address"},
		{"http://0/", resolve + "an unspecified address"},
		{"http://[::]/", resolve + "an unspecified address"},
		{"http://169.254.169.254/latest/meta-data/", resolve},
		{"http://2852039166/", resolve}, // the same in decimal
		{"http://[fd00:ec2::254]/", resolve},
		{"http://100.64.0.1/", resolve + "a carrier-grade NAT address"},
		{"http://255.255.255.255/", resolve + "a broadcast address"},
		{"http://example.com:0/", "invalid port"},
		{"http://example.com:65536/", "invalid port"},
		{"http:///path", "no host"},
		{"http://a b/", ""},
		{"http://exa\x00mple.com/", ""},
		{"http://example.com/\r\nX: y", ""},
	}
	const group = "group"
	if r := b.do("POST", "/v2/topics/"+group+"/endpoints", `{"endpoints":[{"url":"`+h.URL+`"}]}`); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	for _, test := range tests {
		check := func(how string, status int, text string) {
			t.Helper()
			if status != 400 || !strings.Contains(text, test.want) || text == "" {
				t.Errorf("%q %s: %d %s, want %q", test.url, how, status, text, test.want)
			}
		}
		ask := func(method, path, body string) {
			t.Helper()
			r := b.do(method, path, body)
			check(method+" "+path, r.status, r.errorText(t))
		}
		escaped := strings.ReplaceAll(url.QueryEscape(test.url), "+", "%20")
		for _, path := range []string{"/v1/publish/", "/v2/publish/", "/v2/enqueue/orders/", "/v2/schedules/"} {
			forms := []string{test.url, escaped}
			if strings.ContainsAny(test.url, " \x00\r") {
				forms = forms[1:] // no path holds them as they are
			}
			for _, form := range forms {
				r := b.publish(path+form, "x", "Upstash-Cron", "* * * * *")
				if path == "/v2/publish/" || path == "/v2/enqueue/orders/" {
					r = b.publish(path+form, "x")
				}
				check(path+form, r.status, r.errorText(t))
			}
		}
		check("in a batch", 400, b.batch(t, test.url))
		check("as a callback in a batch", 400, b.batch(t, h.URL, "Upstash-Callback", test.url))
		check("as a failure callback in a batch", 400, b.batch(t, h.URL, "Upstash-Failure-Callback", test.url))
		for _, header := range []string{"upstash-callback", "upstash-failure-callback"} {
			for _, path := range []string{"/v1/publish/", "/v2/publish/", "/v2/schedules/"} {
				query := "?" + header + "=" + escaped
				if path == "/v2/schedules/" {
					query += "&upstash-cron=" + url.QueryEscape("* * * * *")
				}
				r := b.publish(path+h.URL+query, "x")
				check("as "+header+" of "+path, r.status, r.errorText(t))
			}
		}
		ask("POST", "/v2/topics/"+group+"/endpoints", `{"endpoints":[{"url":`+quote(test.url)+`}]}`)
		ask("POST", "/v1/endpoints", `{"topicName":"`+group+`","url":`+quote(test.url)+`}`)
	}
	b.nothingAccepted(t)
	var list []urlGroup
	b.ask(200, "GET", "/v2/topics", "", &list)
	if len(list) != 1 || len(list[0].Endpoints) != 1 {
		t.Errorf("%+v", list)
	}
}

// TestNoHeaderIsSmuggled tries to bring a line break, a NUL or a name with a colon into the head of a delivery, by every way
// that does not pass through a parser of HTTP, and over a bare socket.
func TestNoHeaderIsSmuggled(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 200)
	evil := []string{"a\r\nEvil: 1", "a\nEvil: 1", "a\rEvil: 1", "a\x00b", "a\x7fb"}
	names := []string{"X\r\nEvil", "X\nEvil", "X\x00", "X Y", "X:Y", ""}
	refuse := func(how, text string) {
		t.Helper()
		if text == "" {
			t.Errorf("%s is accepted", how)
		}
	}
	for _, v := range evil {
		for _, name := range []string{"Upstash-Forward-X", "upstash-forward-content-type", "Upstash-Callback-Forward-X", "Upstash-Failure-Callback-Forward-X", "Content-Type", "content-type"} {
			refuse(fmt.Sprintf("%s: %q in a batch", name, v), b.batch(t, h.URL, name, v, "Upstash-Callback", h.URL, "Upstash-Failure-Callback", h.URL))
		}
		refuse(fmt.Sprintf("X-Plain: %q of a batch that forwards all", v), b.batch(t, h.URL, "Upstash-Header-Forward", "true", "X-Plain", v))
		for _, path := range []string{"/v1/publish/", "/v2/publish/", "/v2/enqueue/orders/"} {
			r := b.publish(path+h.URL+"?upstash-forward-x="+url.QueryEscape(v), "x")
			refuse(fmt.Sprintf("%s with %q in the query", path, v), r.refusal(t))
		}
		r := b.publish("/v2/schedules/"+h.URL+"?upstash-cron="+url.QueryEscape("* * * * *")+"&upstash-forward-x="+url.QueryEscape(v), "x")
		refuse(fmt.Sprintf("a schedule with %q", v), r.refusal(t))
		r = b.publish("/v2/dlq/retry/dlq_"+strings.Repeat("0", 32)+"?upstash-forward-x="+url.QueryEscape(v), "x")
		refuse(fmt.Sprintf("a retry with %q", v), r.refusal(t))
	}
	for _, name := range names {
		refuse(fmt.Sprintf("%q in a batch", name), b.batch(t, h.URL, "Upstash-Forward-"+name, "v"))
		if name != "" { // no name is no header either
			refuse(fmt.Sprintf("%q of a batch that forwards all", name), b.batch(t, h.URL, "Upstash-Header-Forward", "true", name, "v"))
		}
		r := b.publish("/v2/publish/"+h.URL+"?upstash-forward-"+url.QueryEscape(name)+"=v", "x")
		refuse(fmt.Sprintf("%q in the query", name), r.refusal(t))
	}
	many := []string{}
	for i := range 65 {
		many = append(many, fmt.Sprint("Upstash-Forward-H", i), "v")
	}
	for _, path := range []string{"/v1/publish/", "/v2/publish/"} {
		r := b.publish(path+h.URL, "x", many...)
		refuse("65 headers", r.refusal(t))
		r = b.publish(path+h.URL, "x", "Upstash-Forward-Big", strings.Repeat("a", 16<<10))
		refuse("16 KiB of headers", r.refusal(t))
	}
	all := []string{"Upstash-Header-Forward", "true"}
	for i := range 65 {
		all = append(all, fmt.Sprint("X-H", i), "v")
	}
	refuse("65 headers by Upstash-Header-Forward", b.batch(t, h.URL, all...))
	r := b.publish("/v2/publish/"+h.URL, "x", all...)
	refuse("65 headers by Upstash-Header-Forward", r.refusal(t))
	refuse("65 headers in a batch", b.batch(t, h.URL, many...))
	for _, head := range []string{
		"Upstash-Forward-X: a\x00b\r\n", "Upstash-Forward-X: a\rb\r\n", "Upstash-Forward-X Y: b\r\n", "Upstash-Forward-X\x00: b\r\n", "Content-Type: a\x00\r\n",
	} {
		if status := b.bare(t, "POST /v2/publish/"+h.URL+" HTTP/1.1\r\nHost: localhost\r\n"+head+"Content-Length: 1\r\n\r\nx"); status != 400 {
			t.Errorf("%q: %d", head, status)
		}
	}
	b.nothingAccepted(t)

	// The defaults of a group are headers too.
	b.ask(200, "POST", "/v2/topics/group/endpoints", `{"endpoints":[{"url":"`+h.URL+`"}]}`, nil)
	for _, v := range evil {
		r := b.do("PATCH", "/v2/topics/group", `{"headers":{"X":`+quote(v)+`}}`)
		refuse(fmt.Sprintf("a group with %q", v), r.refusal(t))
	}
	// What is allowed passes as it is, and the delivery is the proof.
	if refused := b.batch(t, h.URL+"/last", "Upstash-Forward-X", "a\tb\xc3\xa9", "Upstash-Header-Forward", "true", "X-Plain", "p"); refused != "" {
		t.Fatal(refused)
	}
	b.settle()
	got := h.requests()
	if len(got) != 1 || got[0].header.Get("X") != "a\tb\xc3\xa9" || got[0].header.Get("X-Plain") != "p" || got[0].header.Get("Evil") != "" {
		t.Errorf("%+v", got)
	}
}

// refusal is the error of an answer 400; "" of another.
func (r reply) refusal(t *testing.T) string {
	t.Helper()
	if r.status != http.StatusBadRequest {
		return ""
	}
	return r.errorText(t)
}

// bare sends a request as it is written and returns the status of the answer.
func (b *broker) bare(t *testing.T, request string) int {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

// TestBulkDeletesKnowTheirFilters refuses a filter that is not known, has no value or cannot be read, so that nothing is
// deleted that was not meant.
func TestBulkDeletesKnowTheirFilters(t *testing.T) {
	t.Parallel()
	b, h := start(t, nil), newHook(t, 500)
	for range 2 {
		b.publish("/v2/publish/"+h.URL, "x", "Upstash-Retries", "0", "Upstash-Label", "l")
		b.publish("/v2/publish/"+h.URL, "x", "Upstash-Delay", "1h")
	}
	b.settle()
	for _, query := range []string{
		"labels=l", "Label=l", "topic=x", "queue=x", "status=500", "dlqId=x", "messageid=x", "from=1", "foo", "=x", "label=", "label", "url=", "messageIds=", "count=0", "count=-1",
		"count=501", "count=1e3", "count=99999999999999999999", "fromDate=yesterday", "fromDate=", "toDate=1.5", "toDate=99999999999999999999", "%zz=1", "label=%zz", "a;b",
		"label=%00", "label=%ff", "host=%00", "path=%00", "url=%00", "topicName=%00", "queueName=%ff", "scheduleId=%00", "flowControlKey=%00", "callerIp=%00",
	} {
		for _, route := range []string{"DELETE /v2/messages", "DELETE /v2/dlq", "POST /v2/dlq/retry"} {
			method, path, _ := strings.Cut(route, " ")
			if r := b.do(method, path+"?"+query, ""); r.status != 400 || r.errorText(t) == "" {
				t.Errorf("%s?%s: %d %s", route, query, r.status, r.body)
			}
		}
	}
	for _, body := range []string{
		`{"labels":"l"}`, `{"label":""}`, `{"label":5}`, `{"messageIds":"x"}`, `{"messageIds":[]}`, `{"count":0}`, `{"count":"1"}`, `{"fromDate":"x"}`, `[]`, `null`, `{`, `"x"`,
		`{"label":"\u0000"}`,
	} {
		for _, route := range []string{"DELETE /v2/messages", "DELETE /v2/dlq", "POST /v2/dlq/retry"} {
			method, path, _ := strings.Cut(route, " ")
			if r := b.do(method, path, body); r.status != 400 || r.errorText(t) == "" {
				t.Errorf("%s %s: %d %s", route, body, r.status, r.body)
			}
		}
	}
	var failed struct{ Messages []json.RawMessage }
	b.ask(200, "GET", "/v2/dlq", "", &failed)
	var n cancelled
	b.ask(200, "DELETE", "/v2/messages?api=ignored", "", &n)
	if len(failed.Messages) != 2 || n.Cancelled != 2 {
		t.Errorf("%d dead letters, %d messages, want 2 of each", len(failed.Messages), n.Cancelled)
	}
}

// TestNamesThatCannotBe asks for things by names that PostgreSQL would not even take.
func TestNamesThatCannotBe(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.ask(200, "POST", "/v2/topics/known/endpoints", `{"endpoints":[{"url":"http://example.com/"}]}`, nil)
	for _, name := range []string{"%00", "%ff", "a%0d%0ab", "%F0%9F%98%80", strings.Repeat("a", 5000)} {
		for _, route := range []string{
			"GET /v1/messages/", "DELETE /v1/messages/", "GET /v1/tasks/", "GET /v1/topics/", "DELETE /v1/topics/", "GET /v1/endpoints/", "DELETE /v1/endpoints/",
			"GET /v1/schedules/", "DELETE /v1/schedules/", "GET /v2/messages/", "DELETE /v2/messages/", "GET /v2/schedules/", "DELETE /v2/schedules/", "GET /v2/topics/",
			"DELETE /v2/topics/", "GET /v2/queues/", "DELETE /v2/queues/", "GET /v2/dlq/", "DELETE /v2/dlq/", "GET /v2/flowControl/", "POST /v2/dlq/retry/",
		} {
			method, path, _ := strings.Cut(route, " ")
			r := b.do(method, path+name, "")
			if r.status >= 500 {
				t.Errorf("%s%.20s: %d %s", route, name, r.status, r.body)
			}
		}
		var text string
		if text, _ = url.PathUnescape(name); text == "\xff" {
			text = "\u0000\u0000"
		}
		for _, c := range []struct{ route, body string }{
			{"POST /v1/endpoints", `{"url":"http://example.com","topicName":%s}`},
			{"POST /v1/endpoints", `{"url":"http://example.com","topicId":%s}`},
			{"POST /v1/topics", `{"name":%s}`},
			{"PUT /v1/topics/x", `{"name":%s}`},
			{"POST /v2/queues", `{"queueName":%s}`},
			{"DELETE /v2/topics/known/endpoints", `{"endpoints":[{"name":%s}]}`},
			{"DELETE /v2/topics/known/endpoints", `{"endpoints":[{"url":%s}]}`},
			{"POST /v2/topics/known/endpoints", `{"endpoints":[{"name":%s,"url":"http://example.com"}]}`},
			{"POST /v2/topics/known/endpoints", `{"endpoints":[{"url":%s}]}`},
			{"POST /v2/batch", `[{"destination":%s}]`},
			{"POST /v2/batch", `[{"destination":"known","queue":%s}]`},
			{"DELETE /v2/dlq", `{"dlqIds":[%s]}`},
			{"DELETE /v2/messages", `{"messageIds":[%s]}`},
			{"DELETE /v2/dlq", `{"cursor":%s}`},
		} {
			method, path, _ := strings.Cut(c.route, " ")
			if r := b.do(method, path, fmt.Sprintf(c.body, quote(text))); r.status >= 500 {
				t.Errorf("%s "+c.body+": %d %s", c.route, text, r.status, r.body)
			}
		}
		for _, query := range []string{"cursor", "messageId", "label", "url", "topicName", "search", "host", "state", "count", "fromDate"} {
			for _, path := range []string{"/v1/messages", "/v1/events", "/v2/events", "/v2/logs", "/v2/dlq", "/v2/flowControl"} {
				if r := b.do("GET", path+"?"+query+"="+name, ""); r.status >= 500 {
					t.Errorf("%s?%s=%.20s: %d %s", path, query, name, r.status, r.body)
				}
			}
		}
	}
}

// TestHostileDestinations sends to destinations that loop, flood, lie and hang. Each attempt ends in time, as failed and with
// a bounded record of the answer, and a well-behaved host is served meanwhile.
func TestHostileDestinations(t *testing.T) {
	t.Parallel()
	b, good := start(t, nil), newHook(t, 200)
	bomb := gzipped(t, 50<<20)
	released := make(chan struct{})
	hostile := http.NewServeMux()
	hostile.HandleFunc("/redirect/{how}", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
	})
	hostile.HandleFunc("/redirect-to-itself-elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, good.URL+"/redirected", http.StatusMovedPermanently)
	})
	hostile.HandleFunc("/body", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 32<<10)); err != nil {
				return
			}
		}
	})
	hostile.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) { // a success that never ends is none
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-time.After(20 * time.Millisecond):
			case <-released:
				return
			}
		}
	})
	hostile.HandleFunc("/bomb", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(bomb)
	})
	hostile.HandleFunc("/silence", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-released:
		}
	})
	server := httptest.NewServer(hostile)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(released) })
	endless := rawServer(t, func(w io.Writer) error { // a head that never ends
		_, err := io.WriteString(w, "X-More: "+strings.Repeat("a", 1000)+"\r\n")
		return err
	})
	garbage := rawServer(t, func(w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte{0xff, 0}, 500))
		return err
	})

	// Far more than there are workers, to a host that answers nothing.
	for range 40 {
		items := make([]string, 10)
		for i := range items {
			items[i] = `{"destination":"` + strings.Replace(server.URL, "127.0.0.1", "localhost", 1) + `/silence","headers":{"Upstash-Retries":"0"}}`
		}
		if r := b.publish("/v2/batch", "["+strings.Join(items, ",")+"]"); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	tests := map[string]struct {
		url    string
		status int
		err    string
	}{
		"redirect loop":   {server.URL + "/redirect/loop", 307, "the destination answered 307"},
		"redirect":        {server.URL + "/redirect-to-itself-elsewhere", 301, "the destination answered 301"},
		"endless body":    {server.URL + "/body", 500, "the destination answered 500"},
		"success w/o end": {server.URL + "/drip", 0, ""},
		"gzip bomb":       {server.URL + "/bomb", 500, "the destination answered 500"},
		"silence":         {server.URL + "/silence", 0, "no answer within 2s"},
		"endless head":    {endless, 0, ""},
		"garbage":         {garbage, 0, ""},
		"refused":         {refusing(t), 0, "refused"},
		"no such name":    {"http://no-such-host.invalid/", 0, ""},
	}
	ids := map[string]string{}
	for name, test := range tests {
		var out publishResult
		r := b.publish("/v2/publish/"+test.url, "x", "Upstash-Retries", "0", "Upstash-Timeout", "2s", "Upstash-Label", "hostile")
		if err := json.Unmarshal(r.body, &out); err != nil || r.status != 200 {
			t.Fatalf("%s: %d %s", name, r.status, r.body)
		}
		ids[name] = out.MessageID
	}
	for i := range 100 {
		if r := b.publish(fmt.Sprintf("/v1/publish/%s/%d", good.URL, i), "x"); r.status != 201 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	eventually(t, "the host that behaves has got everything", func() bool { return len(good.requests()) == 100 })
	eventually(t, "each hostile delivery has failed", func() bool {
		var dead struct{ Messages []failedMessage }
		b.ask(200, "GET", "/v2/dlq?label=hostile", "", &dead)
		return len(dead.Messages) == len(tests)
	})
	for name, test := range tests {
		var dead struct{ Messages []failedMessage }
		b.ask(200, "GET", "/v2/dlq?messageId="+ids[name], "", &dead)
		var page eventsV2
		b.ask(200, "GET", "/v2/events?state=FAILED&messageId="+ids[name], "", &page)
		if len(dead.Messages) != 1 || len(page.Events) != 1 {
			t.Errorf("%s: %d dead letters, %d events", name, len(dead.Messages), len(page.Events))
			continue
		}
		d, e := dead.Messages[0], page.Events[0]
		if test.status != 0 && d.ResponseStatus != test.status || e.Error == "" || !strings.Contains(e.Error, test.err) {
			t.Errorf("%s: status %d, error %q", name, d.ResponseStatus, e.Error)
		}
		if n := len(e.ResponseBody); n > 64<<10*4/3+4 {
			t.Errorf("%s: %d bytes of base64 are kept of the answer", name, n)
		}
	}
	for _, d := range good.requests() {
		if d.uri == "/redirected" {
			t.Error("a redirect was followed")
		}
	}
}

func gzipped(t *testing.T, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	for range size >> 20 {
		if _, err := z.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// rawServer answers each connection with the start of an answer and then whatever write writes, until that fails. It
// returns its URL.
func rawServer(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
				for err == nil {
					err = write(conn)
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String() + "/"
}

// refusing is the URL of a port that nobody listens on.
func refusing(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "http://" + listener.Addr().String() + "/"
}
