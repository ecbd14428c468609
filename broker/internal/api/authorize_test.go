package api

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/auth"
)

// tokens are one of each role, as the tests of the edge configure them.
var tokens = map[string]string{
	"read-only":  "token-of-the-reader",
	"write-only": "token-of-the-writer",
	"read-write": "token-of-the-worker",
	"admin":      "token-of-the-chief",
}

// guarded starts a broker that wants tokens.
func guarded(t *testing.T) *broker {
	t.Helper()
	var list []string
	for role, token := range tokens {
		list = append(list, fmt.Sprintf("%s:%s-name:%s", role, role, token))
	}
	authenticator, err := auth.New(auth.Config{Tokens: strings.Join(list, ","), SkipPaths: "/queues/open"})
	if err != nil {
		t.Fatal(err)
	}
	return start(t, func(c *Config) { c.Auth = authenticator })
}

// as sends a request with an Authorization header; "" leaves it out.
func (b *broker) as(authorization, method, path, body string) reply {
	b.t.Helper()
	req := b.request(method, path, strings.NewReader(body))
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	return b.send(req)
}

// passing are the roles that pass each level, written down once more beside the code (queue contract, section 0).
var passing = map[string][]string{
	"public":     {"none", "invalid", "read-only", "write-only", "read-write", "admin"},
	"read-only":  {"read-only", "read-write", "admin"},
	"write-only": {"write-only", "read-write", "admin"},
	"read-write": {"read-write", "admin"},
	"admin":      {"admin"},
}

// TestEveryRouteAndRole walks all operations of the description with each kind of caller.
func TestEveryRouteAndRole(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	public := 0
	for _, op := range spec(t).Operations() {
		for _, caller := range []string{"none", "invalid", "read-only", "write-only", "read-write", "admin"} {
			authorization := ""
			switch caller {
			case "none":
			case "invalid":
				authorization = "Bearer nobody-has-this-token"
			default:
				authorization = "Bearer " + tokens[caller]
			}
			path := op.Path
			for strings.Contains(path, "{") {
				before, rest, _ := strings.Cut(path, "{")
				_, after, _ := strings.Cut(rest, "}")
				path = before + "x" + after
			}
			body := ""
			if takes, _ := op.HasBody(); takes {
				body = "{" // refused, once it is read
			}
			r := b.as(authorization, op.Method, path, body)
			admitted := false
			for _, name := range passing[op.Access] {
				admitted = admitted || name == caller
			}
			switch {
			case admitted && (r.status == http.StatusUnauthorized || r.status == http.StatusForbidden):
				t.Errorf("%s is %s: refused %s: %d %s", op.ID, op.Access, caller, r.status, r.body)
			case admitted:
			case caller == "none" || caller == "invalid":
				if r.status != http.StatusUnauthorized || r.errorText(t) == "" || r.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s is %s: answered %s: %d %s %v", op.ID, op.Access, caller, r.status, r.body, r.header)
				}
			default:
				if r.status != http.StatusForbidden || string(r.body) != `{"error":"Insufficient permissions"}` {
					t.Errorf("%s is %s: answered %s: %d %s", op.ID, op.Access, caller, r.status, r.body)
				}
			}
		}
		if op.Access == auth.Public {
			public++
		}
	}
	if public < 4 {
		t.Errorf("only %d operations are public", public)
	}
}

// contractLevel is the level that the queue contract, section 0, gives an operation.
func contractLevel(method, path string) string {
	under := func(prefixes ...string) bool {
		for _, prefix := range prefixes {
			if path == strings.TrimSuffix(prefix, "/") || strings.HasPrefix(path, prefix) {
				return true
			}
		}
		return false
	}
	switch get := method == http.MethodGet; {
	case path == "/health", path == "/metrics", path == "/metrics/prometheus", path == "/", path == "/openapi.json", under("/assets/"):
		return auth.Public
	case under("/api/v1/system/", "/internal/"), path == "/api/v1/stats/refresh",
		method == http.MethodDelete && under("/api/v1/consumer-groups/", "/api/v1/resources/queues/"):
		return "admin"
	case get && (path == "/status" || under("/api/v1/status/", "/api/v1/analytics/", "/api/v1/resources/", "/api/v1/messages/",
		"/api/v1/consumer-groups/", "/api/v1/dlq/", "/api/v1/traces/")), path == "/streams/v1/state/get":
		return "read-only"
	case path == "/api/v1/push":
		return "write-only"
	default:
		return "read-write"
	}
}

// TestLevelsOfTheContract compares the description with the contract, but for what is ours and the publish half.
func TestLevelsOfTheContract(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for _, op := range spec(t).Operations() {
		if isPublish(op.Path) || strings.HasPrefix(op.Path, "/testing/") {
			continue
		}
		seen[op.Access]++
		if want := contractLevel(op.Method, op.Path); op.Access != want {
			t.Errorf("%s %s is %s, the contract says %s", op.Method, op.Path, op.Access, want)
		}
	}
	if len(seen) != 5 {
		t.Errorf("levels %v", seen)
	}
}

// TestUnknownPathsAreReadWrite holds paths without a route to the contract's level, but for the page's files.
func TestUnknownPathsAreReadWrite(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	for _, tc := range []struct {
		role, method, path string
		want               int
	}{
		{"", "GET", "/api/v1/nothing", 401},
		{"read-only", "GET", "/api/v1/nothing", 403},
		{"write-only", "POST", "/api/v1/nothing", 403},
		{"read-write", "POST", "/api/v1/nothing", 404},
		{"admin", "DELETE", "/api/v1/push", 404},
		{"", "DELETE", "/health", 401},
		{"", "GET", "/queues/orders", 401},
		{"read-only", "GET", "/queues/orders", 403},
		{"read-write", "GET", "/queues/orders", 200},
		{"", "GET", "/assets/page.js", 200},
		{"", "GET", "/favicon.ico", 200},
		{"", "POST", "/assets/page.js", 401},
		{"", "HEAD", "/health", 200},
		{"", "HEAD", "/api/v1/resources/queues", 401},
		{"", "GET", "/", 200},
		{"", "GET", "//", 401},
		{"", "GET", "/health/", 401},
		{"", "GET", "/queues/open", 200}, // skipped
		{"", "GET", "/queues%2Fopen", 401},
		{"", "GET", "/api/v1/pop/queue/..%2f..%2f..%2f..%2fhealth", 401},
	} {
		authorization := ""
		if tc.role != "" {
			authorization = tokens[tc.role]
		}
		if r := b.as(authorization, tc.method, tc.path, ""); r.status != tc.want {
			t.Errorf("%s %s as %q: %d %s, want %d", tc.method, tc.path, tc.role, r.status, r.body, tc.want)
		}
	}
}

func TestWaysToShowAToken(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	const path = "/api/v1/resources/queues"
	for authorization, want := range map[string]int{
		"Bearer " + tokens["read-only"]:         200,
		"bearer " + tokens["read-only"]:         200,
		"BEARER " + tokens["read-only"]:         200,
		tokens["read-only"]:                     200,
		"Basic " + tokens["read-only"]:          401,
		"Bearer":                                401,
		"Bearer a.b.c":                          401,
		"Bearer " + strings.Repeat("a", 32<<10): 401,
	} {
		if r := b.as(authorization, "GET", path, ""); r.status != want {
			t.Errorf("%.50s: %d, want %d", authorization, r.status, want)
		}
	}
	req := b.request("GET", path, nil)
	req.Header["Authorization"] = []string{"Bearer " + tokens["admin"], "Bearer " + tokens["admin"]}
	if r := b.send(req); r.status != 401 {
		t.Errorf("two headers: %d", r.status)
	}
}

// TestTokenInQuery is for routes of the publish half only.
func TestTokenInQuery(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	token := tokens["admin"]
	for target, want := range map[string]struct {
		status int
		text   string
	}{
		"/api/v1/resources/queues?qstash_token=" + token: {401, "Unauthorized"},
		"/v2/nothing": {401, "unable to authenticate: invalid token"},
		"/v1/nothing?qstash_token=nobody-has-this-one":      {401, "unable to authenticate: invalid token"},
		"/V2/nothing?a=b&qstash_token=+" + token + "%20&c=": {404, "Not Found"},
		"/v1/nothing?qstash_token=" + token:                 {404, "Not Found"},
	} {
		r := b.do("POST", target, "")
		if r.status != want.status || r.errorText(t) != want.text {
			t.Errorf("%s: %d %s", target, r.status, r.body)
		}
	}
	// A header beats the query, also a bad one.
	if r := b.as("Bearer nobody-has-this-token", "POST", "/v1/nothing?qstash_token="+token, ""); r.status != 401 {
		t.Errorf("a bad header and a good query: %d", r.status)
	}
	if strings.Contains(b.log.String(), token) || strings.Contains(b.log.String(), "nobody-has") {
		t.Errorf("a token was logged:\n%s", b.log)
	}
}

// TestSchedulingByPublish asks of a publish that makes a schedule what making one asks: it could replace any.
func TestSchedulingByPublish(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	const path = "/v1/publish/https:%2F%2Fexample.com?upstash-cron=0%203%20*%20*%20*&upstash-schedule-id=nightly"
	if r := b.as("Bearer "+tokens["read-write"], "POST", path, "theirs"); r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := b.as("Bearer "+tokens["write-only"], "POST", path, "mine"); r.status != 403 {
		t.Errorf("a writer replaces a schedule: %d %s", r.status, r.body)
	}
	if r := b.as("Bearer "+tokens["read-only"], "GET", "/v2/schedules/nightly", ""); r.status != 200 || !strings.Contains(string(r.body), `"body":"theirs"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

func TestCutParameter(t *testing.T) {
	t.Parallel()
	for query, want := range map[string][2]string{
		"":                             {"", ""},
		"a=1&b=%2f+":                   {"", "a=1&b=%2f+"},
		"qstash_token=t":               {"t", ""},
		"a=%2f&qstash_token=t%20u&b":   {"t u", "a=%2f&b"},
		"qstash_token=1&qstash_token=": {"1", ""},
		"x_qstash_token=1&a":           {"", "x_qstash_token=1&a"},
		"qstash_token=%zz&&a=b;c":      {"", "&a=b;c"},
		"qstash_token":                 {"", ""},
	} {
		if value, rest := cutParameter(query, "qstash_token"); value != want[0] || rest != want[1] {
			t.Errorf("%q: %q, %q; want %q", query, value, rest, want)
		}
	}
}

// TestRefusalDoesNotReadTheBody answers before a byte of it has come, and lets a client that sends all of it first read
// why.
func TestRefusalDoesNotReadTheBody(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	for token, want := range map[string]string{"nobody-has-this-token": "401 Unauthorized", tokens["read-only"]: "403 Forbidden"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = fmt.Fprintf(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n", token)
		if err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 512)
		n, err := io.ReadAtLeast(conn, answer, 12)
		if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 "+want) {
			t.Errorf("%q, %v; want %s", answer[:n], err, want)
		}
	}
	large := b.request("POST", "/api/v1/push", strings.NewReader(strings.Repeat("x", 32<<20)))
	if r := b.send(large); r.status != 401 || r.errorText(t) != "Unauthorized" {
		t.Errorf("a large body: %d %s", r.status, r.body)
	}
	if used := b.edge.bodies.used.Load(); used != 0 {
		t.Errorf("%d bytes of refused bodies are held", used)
	}
}

// TestProducerSub is the token's name, never what the body says.
func TestProducerSub(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	item := `{"items":[{"queue":"subs","payload":1,"producerSub":"mallory"}]}`
	if r := b.as(tokens["write-only"], "POST", "/api/v1/push", item); r.status != 201 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	r := b.as(tokens["read-write"], "GET", "/api/v1/pop/queue/subs?autoAck=true", "")
	var got struct {
		Messages []struct{ ProducerSub *string }
	}
	if err := json.Unmarshal(r.body, &got); err != nil || len(got.Messages) != 1 {
		t.Fatalf("%s, %v", r.body, err)
	}
	if sub := got.Messages[0].ProducerSub; sub == nil || *sub != "write-only-name" {
		t.Errorf("%s", r.body)
	}
}

// TestProducerSubOfTransaction is stored by every way into a queue.
func TestProducerSubOfTransaction(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	body := `{"operations":[{"type":"push","queue":"subs","payload":1,"producerSub":"mallory"}]}`
	if r := b.as(tokens["read-write"], "POST", "/api/v1/transaction", body); r.status != 200 || !strings.Contains(string(r.body), `"success":true`) {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if r := b.as(tokens["read-write"], "GET", "/api/v1/pop/queue/subs?autoAck=true", ""); !strings.Contains(string(r.body), `"producerSub":"read-write-name"`) {
		t.Errorf("%s", r.body)
	}
}

// auditLines are the lines of administrative actions in a log.
func auditLines(t *testing.T, log string) []map[string]any {
	t.Helper()
	var lines []map[string]any
	for text := range strings.Lines(log) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line["msg"] == "audit" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestAudit names who did what, whether it was allowed or not, and says nothing else.
func TestAudit(t *testing.T) {
	t.Parallel()
	b := guarded(t)
	b.as(tokens["admin"], "DELETE", "/api/v1/resources/queues/a%2Fb", "")
	b.as(tokens["read-write"], "DELETE", "/api/v1/resources/queues/q", "")
	b.do("DELETE", "/api/v1/resources/queues/q", "")
	b.as(tokens["admin"], "POST", "/api/v1/push", `{"items":[]}`)
	b.as(tokens["admin"], "GET", "/testing/clock", "")
	eventually(t, "three lines", func() bool { return len(auditLines(t, b.log.String())) >= 3 })
	lines := auditLines(t, b.log.String())
	for i, want := range []string{"admin-name a%2Fb 200", "read-write-name q 403", "unknown q 401"} {
		target, _ := lines[i]["target"].(map[string]any)
		got := fmt.Sprintf("%v %v %v", lines[i]["who"], target["queue"], lines[i]["status"])
		if got != want || lines[i]["operation"] != "deleteQueue" {
			t.Errorf("%v, want %s", lines[i], want)
		}
	}
	if len(lines) != 3 {
		t.Errorf("%d lines", len(lines))
	}
	for _, token := range tokens {
		if strings.Contains(b.log.String(), token) {
			t.Errorf("a token was logged:\n%s", b.log)
		}
	}

	open := start(t, nil)
	open.do("DELETE", "/api/v1/resources/queues/q", "")
	eventually(t, "a line", func() bool { return len(auditLines(t, open.log.String())) == 1 })
	if line := auditLines(t, open.log.String())[0]; line["who"] != "anybody" {
		t.Errorf("without authentication: %v", line)
	}
}
