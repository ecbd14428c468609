package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// watched is a server that counts the connections it is offered.
func watched(t *testing.T, h http.HandlerFunc) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	var opened atomic.Int64
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, &opened
}

// scripted answers each lookup with the next of its answers.
type scripted struct {
	answers []netip.Addr
	asked   int
}

func (s *scripted) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	a := s.answers[min(s.asked, len(s.answers)-1)]
	s.asked++
	return []netip.Addr{a}, nil
}

func TestNoSocketToABlockedAddress(t *testing.T) {
	t.Parallel()
	server, opened := watched(t, func(http.ResponseWriter, *http.Request) {})
	port := mustURL(t, server.URL).Port()
	loopback := netip.MustParseAddr("127.0.0.1")
	tests := map[string]struct {
		cfg Config
		url string
	}{
		"literal":     {Config{}, "http://127.0.0.1:" + port},
		"decimal":     {Config{}, "http://2130706433:" + port},
		"octal":       {Config{}, "http://0177.0.0.1:" + port},
		"mapped":      {Config{}, "http://[::ffff:127.0.0.1]:" + port},
		"name":        {Config{}, "http://localhost:" + port},
		"dns":         {Config{Resolver: &scripted{answers: []netip.Addr{loopback}}}, "http://hooks.example:" + port},
		"dns mapped":  {Config{Resolver: &scripted{answers: []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}}}, "http://hooks.example:" + port},
		"resolve map": {Config{Policy: Policy{Resolve: map[string]netip.AddrPort{"hooks.example:80": netip.MustParseAddrPort(net.JoinHostPort("127.0.0.1", port))}}}, "http://hooks.example"},
	}
	for name, test := range tests {
		c := New(test.cfg)
		defer c.Close()
		_, err := c.Do(t.Context(), Request{Method: http.MethodPost, URL: mustURL(t, test.url), MaxBody: 10})
		if _, ok := errors.AsType[*BlockedError](err); !ok {
			t.Errorf("%s: %v, want a BlockedError", name, err)
		}
	}
	if n := opened.Load(); n != 0 {
		t.Errorf("%d connections were opened", n)
	}
}

// A name may resolve to an allowed address when it is first checked and to another when it is dialled.
func TestRebinding(t *testing.T) {
	t.Parallel()
	server, opened := watched(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
	port := mustURL(t, server.URL).Port()
	resolver := &scripted{answers: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}}
	c := New(Config{Resolver: resolver, Policy: Policy{Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}})
	defer c.Close()
	req := Request{Method: http.MethodGet, URL: mustURL(t, "http://hooks.example:"+port), MaxBody: 10}
	if _, err := c.Do(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	_, err := c.Do(t.Context(), req)
	if _, ok := errors.AsType[*BlockedError](err); !ok {
		t.Errorf("second request: %v, want a BlockedError", err)
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d connections, want the first only", n)
	}
}

func TestRedirectsAreAnswers(t *testing.T) {
	t.Parallel()
	target, opened := watched(t, func(http.ResponseWriter, *http.Request) {})
	server, _ := watched(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target.URL, http.StatusTemporaryRedirect)
	})
	c := New(Config{Policy: Policy{Loopback: true}})
	defer c.Close()
	answer, err := c.Do(t.Context(), Request{Method: http.MethodPost, URL: mustURL(t, server.URL), Body: []byte("x"), MaxBody: 10})
	if err != nil || answer.Status != http.StatusTemporaryRedirect || answer.Header.Get("Location") != target.URL {
		t.Errorf("answer %+v, %v", answer, err)
	}
	if opened.Load() != 0 {
		t.Error("the redirect was followed")
	}
}

func TestRequestIsSentAsGiven(t *testing.T) {
	t.Parallel()
	type seen struct {
		uri, body, accept string
		header            http.Header
	}
	got := make(chan seen, 1)
	server, _ := watched(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.RequestURI, string(body), r.Header.Get("Accept-Encoding"), r.Header}
	})
	c := New(Config{Policy: Policy{Loopback: true}})
	defer c.Close()
	_, err := c.Do(t.Context(), Request{
		Method: http.MethodPut, URL: mustURL(t, server.URL+"/a//b/%2F/../c?x=1&y=%20"), Body: []byte("\x00\xffbytes"), MaxBody: 10,
		Header: http.Header{"User-Agent": {"test"}, "X-Two": {"1", "2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := <-got
	if r.uri != "/a//b/%2F/../c?x=1&y=%20" || r.body != "\x00\xffbytes" || r.accept != "" || r.header.Get("User-Agent") != "test" || len(r.header["X-Two"]) != 2 {
		t.Errorf("seen %+v", r)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	c := New(Config{Policy: Policy{Loopback: true}})
	t.Cleanup(c.Close)
	do := func(t *testing.T, timeout time.Duration, h http.HandlerFunc) (Response, error) {
		t.Helper()
		server, _ := watched(t, h)
		t.Cleanup(server.CloseClientConnections)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		return c.Do(ctx, Request{Method: http.MethodGet, URL: mustURL(t, server.URL), MaxBody: 1000})
	}
	t.Run("endless body", func(t *testing.T) {
		answer, err := do(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1000)); err != nil {
					return
				}
			}
		})
		if err != nil || !answer.Cut || len(answer.Body) != 1000 {
			t.Errorf("answer of %d bytes, cut %v, %v", len(answer.Body), answer.Cut, err)
		}
	})
	t.Run("exact body", func(t *testing.T) {
		answer, err := do(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1000)) })
		if err != nil || answer.Cut || len(answer.Body) != 1000 {
			t.Errorf("answer of %d bytes, cut %v, %v", len(answer.Body), answer.Cut, err)
		}
	})
	t.Run("endless header", func(t *testing.T) {
		_, err := do(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 100 {
				w.Header().Add("X-Long", strings.Repeat("a", 1000+i))
			}
		})
		if err == nil || !strings.Contains(err.Error(), "header") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("gzip bomb", func(t *testing.T) {
		var bomb bytes.Buffer
		z := gzip.NewWriter(&bomb)
		_, _ = z.Write(make([]byte, 1<<20))
		_ = z.Close()
		answer, err := do(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes()[:500])
		})
		if err != nil || !bytes.Equal(answer.Body, bomb.Bytes()[:500]) {
			t.Errorf("%d bytes, want the compressed ones; %v", len(answer.Body), err)
		}
	})
	t.Run("never answers", func(t *testing.T) {
		_, err := do(t, 50*time.Millisecond, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("body never ends", func(t *testing.T) {
		answer, err := do(t, 50*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("x"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		if !errors.Is(err, context.DeadlineExceeded) || answer.Status != http.StatusOK {
			t.Errorf("answer %+v, %v", answer, err)
		}
	})
}

func TestEnvironmentProxyIsIgnored(t *testing.T) {
	proxy, proxied := watched(t, func(http.ResponseWriter, *http.Request) {})
	t.Setenv("HTTP_PROXY", proxy.URL)
	server, direct := watched(t, func(http.ResponseWriter, *http.Request) {})
	c := New(Config{Policy: Policy{Loopback: true, Resolve: map[string]netip.AddrPort{
		"hooks.example:80": netip.MustParseAddrPort(mustURL(t, server.URL).Host),
	}}})
	defer c.Close()
	if _, err := c.Do(t.Context(), Request{Method: http.MethodGet, URL: mustURL(t, "http://hooks.example/")}); err != nil {
		t.Fatal(err)
	}
	if proxied.Load() != 0 || direct.Load() != 1 {
		t.Errorf("%d connections to the proxy, %d to the server", proxied.Load(), direct.Load())
	}
}

func TestNamedProxyIsUsed(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1)
	proxy, _ := watched(t, func(_ http.ResponseWriter, r *http.Request) { seen <- r.RequestURI })
	c := New(Config{Proxy: mustURL(t, proxy.URL)})
	defer c.Close()
	if _, err := c.Do(t.Context(), Request{Method: http.MethodGet, URL: mustURL(t, "http://hooks.example/x")}); err != nil {
		t.Fatal(err)
	}
	if uri := <-seen; uri != "http://hooks.example/x" {
		t.Errorf("the proxy saw %s", uri)
	}
	_, err := c.Do(t.Context(), Request{Method: http.MethodGet, URL: mustURL(t, "http://10.0.0.1/x")})
	if _, ok := errors.AsType[*BlockedError](err); !ok {
		t.Errorf("a literal through the proxy: %v", err)
	}
}

func TestTrustAlso(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(file, cert, 0o600); err != nil {
		t.Fatal(err)
	}
	pool, err := TrustAlso(file)
	if err != nil {
		t.Fatal(err)
	}
	for trusted, cfg := range map[bool]Config{
		false: {Policy: Policy{Loopback: true}},
		true:  {Policy: Policy{Loopback: true}, RootCAs: pool},
	} {
		c := New(cfg)
		defer c.Close()
		if _, err := c.Do(t.Context(), Request{Method: http.MethodGet, URL: mustURL(t, server.URL)}); (err == nil) != trusted {
			t.Errorf("trusted %v: %v", trusted, err)
		}
	}
	if _, err := TrustAlso("client_test.go"); err == nil {
		t.Error("a file without certificates is accepted")
	}
}

// TestSwitchedProtocols: whoever switches protocols and says nothing more has answered. Nothing bounds reads of such a connection.
func TestSwitchedProtocols(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	server, _ := watched(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1)) // until the client closes the connection
		close(held)
	})
	c := New(Config{Policy: Policy{Loopback: true}})
	defer c.Close()
	answered := make(chan Response, 1)
	go func() {
		answer, err := c.Do(t.Context(), Request{Method: http.MethodPost, URL: mustURL(t, server.URL), Body: []byte("x"), MaxBody: 10})
		if err != nil {
			t.Error(err)
		}
		answered <- answer
	}()
	select {
	case answer := <-answered:
		if answer.Status != http.StatusSwitchingProtocols || len(answer.Body) != 0 {
			t.Errorf("%+v", answer)
		}
		<-held
	case <-time.After(10 * time.Second):
		server.CloseClientConnections()
		t.Error("the client still reads")
	}
}
