package pgtest

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy stands between a client and a database, and loses answers when it is told to.
type Proxy struct {
	listener net.Listener
	socket   string
	database string
	lose     atomic.Int32
}

// What a Proxy does to the next COMMIT.
const (
	pass int32 = iota
	loseRequest
	loseAnswer
)

// NewProxy serves the database at raw, a URL of this package, until the test ends.
func NewProxy(t testing.TB, raw string) *Proxy {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		socket:   u.Query().Get("host") + "/.s.PGSQL." + u.Query().Get("port"),
		database: strings.TrimPrefix(u.Path, "/"),
	}
	if p.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = p.listener.Close()
		connections.Wait()
	})
	return p
}

// URL is where the proxy listens.
func (p *Proxy) URL() string {
	return "postgres://posthorn@" + p.listener.Addr().String() + "/" + p.database + "?sslmode=disable"
}

// LoseCommit makes the proxy cut off the client of the next COMMIT before it reaches the database, so
// that it does not happen.
func (p *Proxy) LoseCommit() { p.lose.Store(loseRequest) }

// LoseAnswer makes the proxy cut off the client of the next COMMIT after it has happened.
func (p *Proxy) LoseAnswer() { p.lose.Store(loseAnswer) }

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := new(net.Dialer).DialContext(context.Background(), "unix", p.socket)
	if err != nil {
		return
	}
	defer server.Close()
	var cut atomic.Bool
	var back sync.WaitGroup
	back.Go(func() {
		defer client.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if n == 0 || err != nil || cut.Load() {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	})
	_, _ = io.Copy(&watcher{p, server, &cut}, client)
	_ = server.Close()
	back.Wait()
}

// watcher passes a client's bytes on.
type watcher struct {
	proxy  *Proxy
	server net.Conn
	cut    *atomic.Bool
}

func (w *watcher) Write(b []byte) (int, error) {
	if bytes.Contains(bytes.ToLower(b), []byte("commit\x00")) {
		switch w.proxy.lose.Swap(pass) {
		case loseRequest:
			return 0, io.ErrClosedPipe
		case loseAnswer:
			w.cut.Store(true) // before the answer can come
		}
	}
	return w.server.Write(b)
}
