package app

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// dnsVariable names a DNS server that the program asks when the test binary runs it.
const dnsVariable = "POSTHORN_TEST_DNS"

// TestNoSocketToABlockedAddress runs the program with its default policy over a database in which blocked addresses stand
// wherever an address can stand, because they were open when they were written, and publishes to them in every form. All of
// it fails, and the listener at the blocked address never sees a connection.
func TestNoSocketToABlockedAddress(t *testing.T) {
	t.Parallel()
	blocked, opened := countingListener(t)
	port := blocked.Port()
	allowed := newOpenServer(t, blocked.String())
	dns := fakeDNS(t)
	forms := []string{ // of 127.0.0.1
		"http://127.0.0.1:" + port, "http://127.1:" + port, "http://2130706433:" + port, "http://0177.0.0.1:" + port, "http://0x7f000001:" + port, "http://127.0.0.1.:" + port,
		"http://[::ffff:127.0.0.1]:" + port, "http://[::ffff:7f00:1]:" + port, "http://[::127.0.0.1]:" + port, "http://[64:ff9b::127.0.0.1]:" + port, "http://[2002:7f00:1::]:" + port,
		"http://localhost:" + port, "http://some.localhost:" + port, "http://LOCALHOST.:" + port, "http://0.0.0.0:" + port, "http://[::]:" + port, "http://[::1]:" + port,
		"https://127.0.0.1:" + port, "http://named.example:" + port, "http://mapped.example:" + port, "http://also.example:" + port,
	}
	onlyByName := func(form string) bool { return strings.Contains(form, ".example") }
	database := pgtest.URL(t)
	start := func(allow string) *child {
		t.Helper()
		return serve(t, []string{"DATABASE_URL=" + database, dnsVariable + "=" + dns, "POSTHORN_EGRESS_ALLOW=" + allow}, "serve", "--listen", "127.0.0.1:0")
	}
	must := func(c *child, method, path, body string) string {
		t.Helper()
		status, text := c.do(method, path, body)
		if status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, status, text)
		}
		return text
	}

	// While everything is open.
	before := start("127.0.0.0/8,::/0,0.0.0.0/32,open.example")
	must(before, "POST", "/v2/publish/"+forms[0]+"/dead?upstash-retries=0", "x")
	must(before, "POST", "/v1/topics", `{"name":"one"}`)
	const cron = "&upstash-cron=*%20*%20*%20*%20*"
	for i, form := range forms {
		must(before, "POST", "/v1/publish/"+form+"/delayed?upstash-delay=1h&upstash-retries=0", "x")
		must(before, "POST", "/v2/enqueue/q/"+form+"/queued?upstash-delay=1h&upstash-retries=0", "x")
		must(before, "POST", "/v2/publish/http://open.example:"+allowed.port+"/?upstash-delay=1h&upstash-retries=0&upstash-callback="+url.QueryEscape(form)+"/callback", "x")
		must(before, "POST", "/v2/publish/http://open.example:"+allowed.port+"/fail?upstash-delay=1h&upstash-retries=0&upstash-failure-callback="+url.QueryEscape(form)+"/failed", "x")
		must(before, "POST", "/v2/schedules/"+form+"/tick?upstash-retries=0"+cron, "x")
		must(before, "POST", "/v1/endpoints", fmt.Sprintf(`{"topicName":"one","url":%q}`, form+"/topic"))
		must(before, "POST", "/v2/topics/two/endpoints", fmt.Sprintf(`{"endpoints":[{"url":%q,"name":"e%d"}]}`, form+"/group", i))
	}
	must(before, "POST", "/v1/publish/one?upstash-retries=0"+cron, "x")
	must(before, "POST", "/v2/schedules/two?upstash-retries=0"+cron, "x")
	before.waitFor("a dead letter", func() bool { return len(deadLetters(t, before)) == 1 })
	dead := deadLetters(t, before)[0]
	before.signal()
	if status := before.status(); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	if opened.Load() == 0 {
		t.Fatal("the listener counts nothing")
	}
	opened.Store(0)

	// With the default policy, but for one host.
	c := start("open.example")
	expected := 0 // dead letters of blocked deliveries
	for _, form := range forms {
		for _, path := range []string{"/v1/publish/", "/v2/publish/", "/v2/enqueue/r/"} {
			status, text := c.do("POST", path+form+"/now?upstash-retries=3", "x")
			if onlyByName(form) { // only DNS tells
				expected++
				if status >= 300 {
					t.Errorf("%s%s: %d %s", path, form, status, text)
				}
				continue
			}
			if status != 400 || !strings.Contains(text, "endpoint resolves to ") {
				t.Errorf("%s%s: %d %s", path, form, status, text)
			}
		}
		for _, refused := range []struct{ path, body string }{
			{"/v2/schedules/" + form + "?" + cron[1:], "x"},
			{"/v2/publish/http://open.example:" + allowed.port + "/?upstash-callback=" + url.QueryEscape(form), "x"},
			{"/v2/publish/http://open.example:" + allowed.port + "/?upstash-failure-callback=" + url.QueryEscape(form), "x"},
			{"/v1/endpoints", fmt.Sprintf(`{"topicName":"one","url":%q}`, form)},
			{"/v2/topics/two/endpoints", fmt.Sprintf(`{"endpoints":[{"url":%q}]}`, form)},
			{"/v2/batch", fmt.Sprintf(`[{"destination":%q}]`, form)},
		} {
			if onlyByName(form) {
				continue
			}
			status, text := c.do("POST", refused.path, refused.body)
			if !strings.Contains(text, "endpoint resolves to ") || status != 400 && refused.path != "/v2/batch" {
				t.Errorf("%s %s: %d %s", refused.path, refused.body, status, text)
			}
		}
	}
	must(c, "POST", "/v1/publish/one?upstash-retries=3", "x")
	must(c, "POST", "/v2/publish/two?upstash-retries=3", "x")
	must(c, "POST", "/v2/dlq/retry/"+dead.DLQID, "")
	for _, status := range []string{"301", "302", "303", "307", "308"} {
		must(c, "POST", "/v2/publish/http://open.example:"+allowed.port+"/redirect/"+status+"?upstash-retries=0", "x")
	}
	// The delayed ones and the schedules.
	if _, err := pgtest.Admin(t, database).Exec(t.Context(), `update setting set clock_offset = interval '2 hours'`); err != nil {
		t.Fatal(err)
	}
	n := len(forms)
	expected += 2*n + 1          // to topics, and the one that is retried
	expected += 2 * n            // delayed and queued
	expected += 2 * n            // callbacks
	expected += n + 2*n          // schedules
	const others = 5             // redirects
	all := expected + others + n // and what failed, so that its failure callback was sent
	c.waitFor("every delivery has ended", func() bool { return len(deadLetters(t, c)) >= all })
	for _, d := range deadLetters(t, c) {
		var page struct{ Events []struct{ Error string } }
		if err := json.Unmarshal([]byte(must(c, "GET", "/v2/events?state=FAILED&messageId="+d.MessageID, "")), &page); err != nil || len(page.Events) == 0 {
			t.Fatalf("%v: %+v", err, page)
		}
		reached := strings.HasPrefix(d.URL, "http://open.example:")
		text := page.Events[0].Error
		if reached != strings.HasPrefix(text, "the destination answered ") || reached == strings.Contains(text, "endpoint resolves to ") {
			t.Errorf("%s: %s", d.URL, text)
		}
	}
	if got := len(deadLetters(t, c)); got != all {
		t.Errorf("%d dead letters, want %d", got, all)
	}
	if got := allowed.got.Load(); got < int64(2*n+others) {
		t.Errorf("the open host got %d requests, want %d at least", got, 2*n+others)
	}
	if got := opened.Load(); got != 0 {
		t.Errorf("%d sockets were opened to a blocked address", got)
	}
}

type deadLetter struct{ DLQID, MessageID, URL string }

// deadLetters are all of them, page by page.
func deadLetters(t *testing.T, c *child) (all []deadLetter) {
	t.Helper()
	for cursor := ""; ; {
		var page struct {
			Messages []deadLetter
			Cursor   string
		}
		status, text := c.do("GET", "/v2/dlq?count=100&cursor="+cursor, "")
		if err := json.Unmarshal([]byte(text), &page); err != nil || status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		all = append(all, page.Messages...)
		if cursor = page.Cursor; cursor == "" {
			return all
		}
	}
}

// countingListener counts the connections that are opened to 127.0.0.1 at a port, and to the same port of ::1 where that
// exists, and answers 500. It returns its URL.
func countingListener(t *testing.T) (*url.URL, *atomic.Int64) {
	t.Helper()
	var opened atomic.Int64
	var lc net.ListenConfig
	first, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listeners := []net.Listener{first}
	if second, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf("[::1]:%d", first.Addr().(*net.TCPAddr).Port)); err == nil {
		listeners = append(listeners, second)
	}
	for _, l := range listeners {
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				opened.Add(1)
				go func() {
					defer conn.Close()
					_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, "HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				}()
			}
		}()
	}
	return &url.URL{Scheme: "http", Host: first.Addr().String()}, &opened
}

// openServer is a destination that deliveries may go to. It redirects to the blocked one.
type openServer struct {
	port string
	got  atomic.Int64
}

func newOpenServer(t *testing.T, blocked string) *openServer {
	t.Helper()
	o := &openServer{}
	mux := http.NewServeMux()
	mux.HandleFunc("/fail", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	mux.HandleFunc("/redirect/{status}", func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscan(r.PathValue("status"), &status)
		http.Redirect(w, r, blocked+"/redirected", status)
	})
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.got.Add(1)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	o.port = u.Port()
	return o
}

// fakeDNS is a DNS server by whose answers every name is 127.0.0.1, in one of the forms that an answer can have. It returns
// its address.
func fakeDNS(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	socket, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply, err := dnsReply(buffer[:n]); err == nil {
				_, _ = socket.WriteTo(reply, from)
			}
		}
	}()
	return socket.LocalAddr().String()
}

func dnsReply(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionAvailable: true}, Questions: m.Questions[:1]}
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, Type: q.Type}
	loopback := [4]byte{127, 0, 0, 1}
	mapped := [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}
	switch onlySix := strings.HasPrefix(q.Name.String(), "mapped."); {
	case q.Type == dnsmessage.TypeA && !onlySix:
		reply.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: loopback}}}
	case q.Type == dnsmessage.TypeAAAA && onlySix:
		reply.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: mapped}}}
	}
	return reply.Pack()
}
