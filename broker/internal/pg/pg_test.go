package pg_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// deadline bounds what a test waits for.
func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, cfg pg.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(deadline(t), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func scan[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var value T
	if err := pool.QueryRow(deadline(t), sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// eventually polls until ok or a minute has passed.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := deadline(t)
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// proxy stands between a client on TCP and the server's socket.
type proxy struct {
	listener net.Listener
	socket   string // of the server
	database string

	// pooler makes the proxy behave like a connection pooler at login: it
	// refuses start-up parameters it does not know, and answers with a
	// cancellation key of its own.
	pooler bool
	// loseCommit makes the proxy pass the first COMMIT on and then cut the
	// client off, without the answer.
	loseCommit bool

	mu      sync.Mutex
	refused []string // start-up parameters
}

// newProxy serves the database at raw, a URL of package pgtest.
func newProxy(t *testing.T, raw string, p *proxy) *proxy {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	p.socket = u.Query().Get("host") + "/.s.PGSQL." + u.Query().Get("port")
	p.database = strings.TrimPrefix(u.Path, "/")
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer client.Close()
				if err := p.serve(client); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, net.ErrClosed) {
					t.Logf("proxy: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		p.listener.Close()
		connections.Wait()
	})
	return p
}

func (p *proxy) url() string {
	return "postgres://posthorn@" + p.listener.Addr().String() + "/" + p.database + "?sslmode=disable"
}

func (p *proxy) serve(client net.Conn) error {
	server, err := net.Dial("unix", p.socket)
	if err != nil {
		return err
	}
	defer server.Close()
	back, front := pgproto3.NewBackend(client, client), pgproto3.NewFrontend(server, server)
	first, err := back.ReceiveStartupMessage()
	if err != nil {
		return err
	}
	startup, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return nil // a cancellation, which a test can do without
	}
	if p.pooler {
		for name := range startup.Parameters {
			switch name {
			case "user", "database", "application_name", "client_encoding":
				continue
			}
			p.mu.Lock()
			p.refused = append(p.refused, name)
			p.mu.Unlock()
			back.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
			return back.Flush()
		}
	}
	front.Send(startup)
	if err := front.Flush(); err != nil {
		return err
	}
	for ready := false; !ready; {
		message, err := front.Receive()
		if err != nil {
			return err
		}
		switch message := message.(type) {
		case *pgproto3.BackendKeyData:
			if p.pooler {
				message.ProcessID = 1 << 30 // beyond any process
			}
		case *pgproto3.ReadyForQuery:
			ready = true
		}
		back.Send(message)
		if err := back.Flush(); err != nil {
			return err
		}
	}

	go func() {
		_, _ = io.Copy(client, server)
		client.Close()
	}()
	return p.forward(server, client)
}

func (p *proxy) forward(server, client net.Conn) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return err
		}
		p.mu.Lock()
		lose := p.loseCommit && bytes.Contains(bytes.ToLower(buffer[:n]), []byte("commit"))
		if lose {
			p.loseCommit = false
		}
		p.mu.Unlock()
		if lose {
			client.Close() // first, so that the answer cannot get through
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return err
		}
		if lose {
			return nil // the server reads what was sent, and carries it out
		}
	}
}
