package request

import (
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestParsePath(t *testing.T) {
	t.Parallel()
	urls := []struct{ rest, query, want string }{
		{"https://example.com", "", "https://example.com"},
		{"https://example.com/a//b", "x=1", "https://example.com/a//b?x=1"},
		{"HTTP://Example.com/%2F..", "a=%20&b", "http://Example.com/%2F..?a=%20&b"},
		{"https:/example.com/a", "", "https://example.com/a"},
		{"https%3A%2F%2Fexample.com%2Fa%20b", "", ""},
		{"https%3A%2F%2Fexample.com%2Fa%3Fx%3D1", "", "https://example.com/a?x=1"},
		{"https%3a%2f%2fexample.com%2Fa%3Fx%3D1", "y=2", "https://example.com/a?x=1&y=2"},
		{"https:%2F%2Fexample.com%252F", "", "https://example.com%2F"},
		{"https://example.com/#top", "", "https://example.com/"},
		{"http://[::1]:80/", "", "http://[::1]:80/"},
		{"http://xn--bcher-kva.example/", "", "http://xn--bcher-kva.example/"},
	}
	for _, test := range urls {
		d, err := ParsePath(test.rest, test.query)
		if test.want == "" || strings.Contains(test.want, "com%2F") { // the last cannot be a host
			if err == nil {
				t.Errorf("%s is accepted as %s", test.rest, d)
			}
			continue
		}
		if err != nil || d.Kind != URL || d.URL != test.want || d.String() != test.want {
			t.Errorf("%s ? %s is %v %q, %v; want %q", test.rest, test.query, d.Kind, d.URL, err, test.want)
		}
	}
	others := map[string]Destination{
		"my-topic_1.x":           {Kind: Topic, Name: "my-topic_1.x"},
		"example.com":            {Kind: Topic, Name: "example.com"},
		"queue:orders":           {Kind: Queue, Name: "orders"},
		"queue:orders/a%2Fb%20c": {Kind: Queue, Name: "orders", Partition: "a/b c"},
		"queue:a%2Fb/c/d":        {Kind: Queue, Name: "a/b", Partition: "c/d"},
	}
	for rest, want := range others {
		if d, err := ParsePath(rest, "x=1"); err != nil || d != want {
			t.Errorf("%s is %+v, %v; want %+v", rest, d, err, want)
		}
	}
}

func TestRefusedDestinations(t *testing.T) {
	t.Parallel()
	const scheme = "invalid destination url: endpoint has invalid scheme, add http:// or https://"
	tests := map[string]string{
		"":                            "a non-empty destination must be provided",
		"%20":                         "a non-empty destination must be provided",
		"ftp://example.com":           scheme,
		"gopher://example.com":        scheme,
		"javascript:alert(1)":         scheme,
		"example.com/path":            scheme,
		"//example.com":               scheme,
		"file:///etc/passwd":          scheme,
		"https://user:pw@example.com": "user info",
		"https://@example.com":        "user info",
		"https://":                    "no host",
		"https:///path":               "no host",
		"https://:80/":                "no host",
		"https://example.com:/":       "invalid port",
		"https://example.com:70000/":  "invalid port",
		"https://example.com:0/":      "invalid port",
		"https://example.com:8x/":     "invalid port",
		"https://[::1/":               "']'",
		"https%3A%2F%2Fa%0D%0Ab/":     "control characters",
		"https%3A%2F%2Fa%00b/":        "control characters",
		"https://exa%zzmple.com/":     "escape",
		"https%3A%2F%2Fa%ff/":         "invalid UTF-8",
		"queue:":                      "must not be empty",
		"queue:/p":                    "must not be empty",
		"queue:a%00b":                 "control characters",
		"queue:a/%ff":                 "UTF-8",
		"queue:%zz":                   "escape",
		"topic name":                  scheme,
		"https://example.com/" + strings.Repeat("a", 9000): "longer than",
		"queue:" + strings.Repeat("a", 513):                "512",
	}
	for rest, want := range tests {
		d, err := ParsePath(rest, "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q is %+v, %v; want %q", rest, d, err, want)
		}
	}
	if _, err := ParsePath("https://u:s3cret@example.com:x", ""); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the error repeats the input: %v", err)
	}
}

func TestParseText(t *testing.T) {
	t.Parallel()
	tests := map[string]Destination{
		" https://example.com/?a=b#c ": {Kind: URL, URL: "https://example.com/?a=b"},
		"group":                        {Kind: Topic, Name: "group"},
		"queue:orders/a%2Fb":           {Kind: Queue, Name: "orders", Partition: "a%2Fb"},
	}
	for text, want := range tests {
		if d, err := ParseText(text); err != nil || d != want {
			t.Errorf("%q is %+v, %v; want %+v", text, d, err, want)
		}
	}
	for _, text := range []string{"", "https%3A%2F%2Fexample.com", "https:/example.com"} {
		if d, err := ParseText(text); err == nil {
			t.Errorf("%q is accepted as %+v", text, d)
		}
	}
	if u, err := ParseURL("HTTPS://example.com"); err != nil || u != "https://example.com" {
		t.Errorf("%q, %v", u, err)
	}
	if _, err := ParseURL("group"); err == nil {
		t.Error("a name is accepted as a URL")
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add("https://example.com/a//b", "x=1")
	f.Add("https%3A%2F%2Fexample.com%2Fa%3Fx%3D1", "y")
	f.Add("queue:a/b", "")
	f.Add("http:/h", "a=%20")
	f.Fuzz(func(t *testing.T, rest, query string) {
		d, err := ParsePath(rest, query)
		if err != nil {
			return
		}
		switch d.Kind {
		case URL:
			u, err := url.Parse(d.URL)
			if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
				t.Fatalf("%q ? %q is accepted as %q", rest, query, d.URL)
			}
			again, err := ParseText(d.URL)
			if err != nil || again != d {
				t.Fatalf("%q reads back as %+v, %v", d.URL, again, err)
			}
		case Topic:
			if !IsName(d.Name) {
				t.Fatalf("%q is accepted as topic %q", rest, d.Name)
			}
		case Queue:
			if d.Name == "" {
				t.Fatalf("%q is accepted as an unnamed queue", rest)
			}
		}
	})
}

func TestSplitQuery(t *testing.T) {
	t.Parallel()
	h, token, rest, err := SplitQuery("a=1&upstash-retries=3&qstash_token=secret&b=%20x&UPSTASH-Delay=100s&&upstash-forward-x=a%20b&c")
	want := http.Header{"Upstash-Retries": {"3"}, "Upstash-Delay": {"100s"}, "Upstash-Forward-X": {"a b"}}
	if err != nil || token != "secret" || rest != "a=1&b=%20x&&c" || !reflect.DeepEqual(h, want) {
		t.Errorf("%v, %q, %q, %v", h, token, rest, err)
	}
	if _, _, rest, err := SplitQuery("%zz=1&x=%zz"); err != nil || rest != "%zz=1&x=%zz" {
		t.Errorf("%q, %v: what is not the broker's is not its business", rest, err)
	}
	for _, query := range []string{"upstash-delay=%zz", "upstash-forward-x=a%0D%0Ab", "upstash-forward-x%0A=a", "upstash-forward-x+y=a", "upstash-forward-x=%00"} {
		if _, _, _, err := SplitQuery(query); err == nil {
			t.Errorf("%s is accepted", query)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0s": 0, "10s": 10 * time.Second, "3m": 3 * time.Minute, "10h": 10 * time.Hour, "1d": day,
		"1d10h30m": day + 10*time.Hour + 30*time.Minute, " 7d ": 7 * day, "36500d": 36500 * day, "90m": 90 * time.Minute,
	} {
		if d, err := ParseDuration("Upstash-Delay", text); err != nil || d != want {
			t.Errorf("%q is %v, %v; want %v", text, d, err, want)
		}
	}
	for _, text := range []string{
		"", " ", "10", "s", "-1s", "+1s", "1.5h", "1e3s", "10S", "10 s", "1w", "10ms", "10s5", "1000000000000000000s",
		"99999999999999999999s", "36501d", "36500d1s", "9223372036854775807s", "１s",
	} {
		if d, err := ParseDuration("Upstash-Delay", text); err == nil || !strings.Contains(err.Error(), "Upstash-Delay") {
			t.Errorf("%q is %v, %v", text, d, err)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	f.Add("1d10h30m")
	f.Add("1000000000000000000s")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := ParseDuration("x", text); err == nil && (d < 0 || d > maxDelay) {
			t.Errorf("%q is %v", text, d)
		}
	})
}

func TestScalars(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, ok := range map[string]bool{
		"0": true, "1691245856": true, "-1": false, "1.5": false, "": false, "1e18": false, "1000000000000000000": false, "abc": false,
		strconv.FormatInt(now.Unix(), 10): true, strconv.FormatInt(now.Add(maxDelay).Unix(), 10): true, strconv.FormatInt(now.Add(maxDelay).Unix()+1, 10): false,
	} {
		if at, err := ParseNotBefore("Upstash-Not-Before", text, now); (err == nil) != ok || ok && strconv.FormatInt(at.Unix(), 10) != text {
			t.Errorf("not before %q is %v, %v", text, at, err)
		}
	}
	for text, ok := range map[string]bool{"0": true, "3": true, "2147483647": true, "2147483648": false, "-1": false, "x": false, "": false, "1.0": false} {
		if n, err := ParseRetries("Upstash-Retries", text); (err == nil) != ok || ok && strconv.Itoa(n) != text {
			t.Errorf("retries %q is %d, %v", text, n, err)
		}
	}
	for text, want := range map[string]bool{"True": true, "true": true, "1": true, "FALSE": false, "": false, "0": false} {
		if b, err := ParseBool("x", text); err != nil || b != want {
			t.Errorf("%q is %v, %v", text, b, err)
		}
	}
	if _, err := ParseBool("x", "maybe"); err == nil {
		t.Error("maybe is accepted")
	}
	if m, err := ParseMethod("x", "patch"); err != nil || m != "PATCH" {
		t.Errorf("%q, %v", m, err)
	}
	for _, text := range []string{"", "HEAD", "OPTIONS", "CONNECT", "GET /"} {
		if _, err := ParseMethod("x", text); err == nil {
			t.Errorf("method %q is accepted", text)
		}
	}
}

func TestDeduplicationID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"a": "", strings.Repeat("a", 1024): "", "a:b": "DeduplicationId cannot contain ':'", "a b": "DeduplicationId cannot contain white space",
		"a\tb": "DeduplicationId cannot contain white space", "a\u00a0b": "DeduplicationId cannot contain white space",
		"": "DeduplicationId must be 1", strings.Repeat("a", 1025): "DeduplicationId must be 1", "\xff": "DeduplicationId must be 1",
		"a\x00": "DeduplicationId must be 1",
	} {
		err := CheckDeduplicationID(id)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%.20q: %v, want %q", id, err, want)
		}
	}
}

func TestFlowControl(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]FlowControl{
		"parallelism=5, rate=10, period=1m": {"k", 5, 10, time.Minute},
		"parallelism=5,rate=10,period=1m":   {"k", 5, 10, time.Minute},
		"rate=10":                           {"k", 0, 10, time.Second},
		"Parallelism=1":                     {"k", 1, 0, time.Second},
		"rate=1,period=60":                  {"k", 0, 1, time.Minute},
		"rate=1,period=7d":                  {"k", 0, 1, 7 * 24 * time.Hour},
	} {
		if f, err := ParseFlowControl("k", value); err != nil || f != want {
			t.Errorf("%q is %+v, %v", value, f, err)
		}
	}
	for _, value := range []string{
		"", "rate=0", "rate=-1", "rate=x", "parallelism=1.5", "period=1m", "rate=1,period=8d", "rate=1,period=0s", "rate=1,burst=2", "rate", "rate=9999999999",
	} {
		if f, err := ParseFlowControl("k", value); err == nil {
			t.Errorf("%q is accepted as %+v", value, f)
		}
	}
	if _, err := ParseFlowControl("", "rate=1"); err == nil {
		t.Error("a value without a key is accepted")
	}
	if f, err := ParseFlowControl("", ""); err != nil || f != (FlowControl{}) {
		t.Errorf("%+v, %v", f, err)
	}
	for _, key := range []string{"a\nb", "a,b", strings.Repeat("k", 513)} {
		if _, err := ParseFlowControl(key, "rate=1"); err == nil {
			t.Errorf("the key %q is accepted", key)
		}
	}
}

func TestRedactionAndLabels(t *testing.T) {
	t.Parallel()
	r, err := ParseRedaction("body, header[authorization],Headers[X-Two] , headers")
	if err != nil || !r.Body || !r.AllHeaders || !reflect.DeepEqual(r.Headers, []string{"Authorization", "X-Two"}) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, text := range []string{"bodies", "header[", "header[]", "header[a b]", "headerx[a]", "body[x]", "header]"} {
		if r, err := ParseRedaction(text); err == nil {
			t.Errorf("%q is accepted as %+v", text, r)
		}
	}
	if l, err := ParseLabels("a, b ,,c"); err != nil || !reflect.DeepEqual(l, []string{"a", "b", "c"}) {
		t.Errorf("%v, %v", l, err)
	}
	if _, err := ParseLabels(strings.Repeat("label,", 400)); err == nil || !strings.Contains(err.Error(), "2048") {
		t.Errorf("400 labels: %v", err)
	}
	if _, err := ParseLabels("a\x01"); err == nil {
		t.Error("a label with a control character is accepted")
	}
}

func TestForwarded(t *testing.T) {
	t.Parallel()
	h := http.Header{
		"Upstash-Forward-My-Header": {"1", "2"}, "Upstash-Forward-Content-Type": {"text/plain"}, "Upstash-Delay": {"1s"},
		"Content-Type": {"application/json"}, "Authorization": {"Bearer t"}, "X-Plain": {"p"}, "My-Header": {"hidden by the prefixed one"},
		"Connection": {"close", "keep-alive, x-hop"}, "X-Hop": {"of the connection"}, "Proxy-Authorization": {"x"},
	}
	got, err := Forwarded(h, "Upstash-Forward-")
	if want := (http.Header{"My-Header": {"1", "2"}, "Content-Type": {"text/plain"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	all := maps.Clone(h)
	all.Set("Upstash-Header-Forward", "True")
	got, err = Forwarded(all, "Upstash-Forward-")
	if want := (http.Header{"My-Header": {"1", "2"}, "Content-Type": {"text/plain"}, "X-Plain": {"p"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	callback := http.Header{"Upstash-Callback-Forward-Authorization": {"Bearer c"}, "Upstash-Forward-A": {"b"}}
	got, err = Forwarded(callback, "Upstash-Callback-Forward-")
	if want := (http.Header{"Authorization": {"Bearer c"}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestRefusedForwards(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"Connection": "x", "host": "x", "Content-Length": "1", "TE": "x", "Upgrade": "x", "Proxy-Anything": "x", "transfer-encoding": "chunked",
		"Upstash-Signature": "x", "Keep-Alive": "x", "Trailer": "x", "": "x", "a b": "x", "a:b": "x", "ü": "x",
		"X-Cr": "a\rb", "X-Lf": "a\nb", "X-Crlf": "a\r\nEvil: 1", "X-Nul": "a\x00b",
	} {
		if got, err := Forwarded(http.Header{"Upstash-Forward-" + name: {value}}, "Upstash-Forward-"); err == nil {
			t.Errorf("%q: %q is forwarded as %v", name, value, got)
		}
	}
	many := http.Header{}
	for i := range 64 {
		many.Set("Upstash-Forward-H"+strconv.Itoa(i), "v")
	}
	if _, err := Forwarded(many, "Upstash-Forward-"); err != nil {
		t.Errorf("64 headers: %v", err)
	}
	many.Set("Upstash-Forward-One-More", "v")
	if _, err := Forwarded(many, "Upstash-Forward-"); err == nil {
		t.Error("65 headers are accepted")
	}
	if _, err := Forwarded(http.Header{"Upstash-Forward-Big": {strings.Repeat("a", 16<<10)}}, "Upstash-Forward-"); err == nil {
		t.Error("more than 16 KiB are accepted")
	}
}

func TestContentHash(t *testing.T) {
	t.Parallel()
	base := http.Header{"Upstash-Retries": {"3"}, "Upstash-Forward-A": {"bc"}, "Content-Type": {"text/plain"}, "Date": {"today"}}
	v1, v2 := ContentHashV1(base, []byte("body"), "https://a"), ContentHashV2(base, []byte("body"), "https://a")
	if v1 == v2 || CheckDeduplicationID(v1) != nil || CheckDeduplicationID(v2) != nil {
		t.Errorf("%s, %s", v1, v2)
	}
	change := func(name string, values ...string) http.Header {
		h := maps.Clone(base)
		h[name] = values
		return h
	}
	tests := []struct {
		name     string
		h        http.Header
		body     string
		to       string
		one, two bool // the hash of version 1 and of version 2 changes
	}{
		{"same", base, "body", "https://a", false, false},
		{"body", base, "bodY", "https://a", true, true},
		{"destination", base, "body", "https://b", true, true},
		{"border of body and destination", base, "bodyh", "ttps://a", true, true},
		{"setting", change("Upstash-Retries", "4"), "body", "https://a", true, false},
		{"forwarded", change("Upstash-Forward-A", "bd"), "body", "https://a", true, true},
		{"content type", change("Content-Type", "x"), "body", "https://a", false, true},
		{"other header", change("Date", "tomorrow"), "body", "https://a", false, false},
		{"two values", change("Upstash-Forward-A", "b", "c"), "body", "https://a", true, true},
	}
	for _, test := range tests {
		if got := ContentHashV1(test.h, []byte(test.body), test.to) != v1; got != test.one {
			t.Errorf("%s: version 1 changed %v", test.name, got)
		}
		if got := ContentHashV2(test.h, []byte(test.body), test.to) != v2; got != test.two {
			t.Errorf("%s: version 2 changed %v", test.name, got)
		}
	}
	a := ContentHashV1(http.Header{"Upstash-Forward-A": {"bc"}}, nil, "x")
	ab := ContentHashV1(http.Header{"Upstash-Forward-Ab": {"c"}}, nil, "x")
	if a == ab {
		t.Error("a: bc and ab: c hash alike")
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	h := http.Header{"Upstash-Delay": {"1s"}}
	got := Merge(h, http.Header{"Upstash-Delay": {"2s"}, "Upstash-Retries": {"3"}})
	if want := (http.Header{"Upstash-Delay": {"1s"}, "Upstash-Retries": {"3"}}); !reflect.DeepEqual(got, want) || len(h) != 1 {
		t.Errorf("%v", got)
	}
}
