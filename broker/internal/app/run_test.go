package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// childVariable makes the test binary run the program instead of the tests.
const childVariable = "POSTHORN_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if server := os.Getenv(dnsVariable); server != "" {
			net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "udp", server)
			}}
		}
		os.Exit(Program{Args: os.Args[1:], Getenv: os.Getenv, Stdout: os.Stdout, Stderr: os.Stderr, Version: "1.2.3"}.Main())
	}
	pgtest.Main(m)
}

// child is the program as a process of its own.
type child struct {
	t      *testing.T
	cmd    *exec.Cmd
	stderr *lockedBuffer
	exited chan struct{}
	url    string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// spawn starts the program with args and the environment given as NAME=value.
func spawn(t *testing.T, env []string, args ...string) (*child, io.Reader) {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], args...), stderr: &lockedBuffer{}, exited: make(chan struct{})}
	c.cmd.Env = append([]string{childVariable + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	if bin := os.Getenv("POSTHORN_PG_BIN"); bin != "" {
		c.cmd.Env = append(c.cmd.Env, "POSTHORN_PG_BIN="+bin)
	}
	c.cmd.Stderr = c.stderr
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	c.cmd.Stdout = write
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	go func() {
		_ = c.cmd.Wait()
		close(c.exited)
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.exited
	})
	return c, read
}

// serve starts the program and waits until it says where it listens.
func serve(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	c, stdout := spawn(t, env, args...)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if address, ok := strings.CutPrefix(lines.Text(), "posthorn listening on "); ok {
			c.url = address
			go func() { _, _ = io.Copy(io.Discard, stdout) }()
			return c
		}
	}
	t.Fatalf("it never listened:\n%s", c.stderr)
	return nil
}

func (c *child) signal() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
}

// status waits for the exit.
func (c *child) status() int {
	c.t.Helper()
	select {
	case <-c.exited:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		c.t.Fatalf("still running:\n%s", c.stderr)
		return -1
	}
}

func (c *child) do(method, path, body string) (int, string) {
	c.t.Helper()
	return c.doAs("", method, path, body)
}

// doAs sends a request with a Host of its own.
func (c *child) doAs(host, method, path, body string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Host = host
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Errorf("%s %s: %v\n%s", method, path, err, c.stderr)
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Errorf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, string(text)
}

func (c *child) waitFor(what string, holds func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not in time: %s\n%s", what, c.stderr)
		}
	}
}

// inFlight waits until n requests are being answered.
func (c *child) inFlight(n int) {
	c.t.Helper()
	want := fmt.Sprintf("posthorn_http_requests_in_flight %d\n", n+1) // and the one that asks
	c.waitFor(want, func() bool {
		_, text := c.do("GET", "/metrics/prometheus", "")
		return strings.Contains(text, want)
	})
}

// withPassword is a database URL that carries a password nobody may see.
func withPassword(t *testing.T, database, password string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

// TestServe runs a broker from start to stop: parked pops are answered, what is in flight finishes, the
// exit status is 0, and the password of the database is never shown.
func TestServe(t *testing.T) {
	t.Parallel()
	const secret = "canary-password"
	c := serve(t, []string{"DATABASE_URL=" + withPassword(t, pgtest.URL(t), secret)}, "serve", "--listen", "127.0.0.1:0")
	shown := &strings.Builder{}
	for _, path := range []string{"/health", "/metrics/prometheus", "/", "/status"} {
		status, text := c.do("GET", path, "")
		if status != 200 {
			t.Errorf("%s: %d %s", path, status, text)
		}
		shown.WriteString(text)
	}
	if status, text := c.do("GET", "/testing/clock", ""); status != 404 {
		t.Errorf("test clock: %d %s", status, text)
	}

	answers := make(chan int)
	for range 3 {
		go func() {
			status, _ := c.do("GET", "/api/v1/pop/queue/q?wait=true&timeout=60000", "")
			answers <- status
		}()
	}
	slow, write := io.Pipe()
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), "POST", c.url+"/api/v1/push", slow)
		if err != nil {
			t.Error(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			answers <- 0
			return
		}
		_ = res.Body.Close()
		answers <- res.StatusCode
	}()
	c.inFlight(4)
	c.signal()
	for range 3 {
		if status := <-answers; status != 204 {
			t.Errorf("a parked pop was answered %d", status)
		}
	}
	if _, err := io.WriteString(write, `{"items":[{"queue":"late","payload":1}]}`); err != nil {
		t.Error(err)
	}
	_ = write.Close()
	if status := <-answers; status != 201 {
		t.Errorf("the push in flight was answered %d", status)
	}
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
	shown.WriteString(c.stderr.String())
	if strings.Contains(shown.String(), secret) {
		t.Errorf("the password was shown:\n%s", shown)
	}
}

// TestSecondSignal ends a stop that waits.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t)}, "serve", "--listen=127.0.0.1:0")
	body, write := io.Pipe()
	defer func() { _ = write.Close() }()
	go func() {
		req, err := http.NewRequestWithContext(t.Context(), "POST", c.url+"/api/v1/push", body)
		if err != nil {
			t.Error(err)
			return
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	c.inFlight(1)
	c.signal()
	c.waitFor("the stop begins", func() bool { return strings.Contains(c.stderr.String(), `"stopping"`) })
	c.signal()
	if status := c.status(); status != exitInterrupted {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
}

// TestStopTimeout cuts off what does not finish.
func TestStopTimeout(t *testing.T) {
	t.Parallel()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t)}, "serve", "--listen=127.0.0.1:0", "--stop-timeout=100ms")
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /api/v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
	c.inFlight(1)
	c.signal()
	if status := c.status(); status != 0 || !strings.Contains(c.stderr.String(), "cut off") {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
}

// TestTestClock is there with --testing on a loopback listener only.
func TestTestClock(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + pgtest.URL(t)}
	if status, text := serve(t, env, "serve", "--listen=127.0.0.1:0", "--testing").do("GET", "/testing/clock", ""); status != 200 {
		t.Errorf("on loopback: %d %s", status, text)
	}
	c := serve(t, env, "serve", "--listen=0.0.0.0:0", "--testing", "--allow-insecure")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	c.url = "http://127.0.0.1:" + port
	if status, text := c.do("GET", "/testing/clock", ""); status != 404 || text != `{"error":"Not Found","code":"no_such_route"}` {
		t.Errorf("elsewhere: %d %s", status, text)
	}
}

// TestProfiles are served on their own listener.
func TestProfiles(t *testing.T) {
	t.Parallel()
	spare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := spare.Addr().String()
	_ = spare.Close()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t)}, "serve", "--listen=127.0.0.1:0", "--pprof-listen="+address)
	if status, text := c.do("GET", "/debug/pprof/", ""); status != 200 || strings.Contains(text, "goroutine") {
		t.Errorf("on the broker's listener: %d", status)
	}
	// Behind a proxy on this machine a broker has any name.
	if status, text := c.doAs("queue.example", "GET", "/api/v1/resources/queues", ""); status != 200 {
		t.Errorf("by a name of the Internet: %d %s", status, text)
	}
	c.url = "http://" + address
	if status, text := c.do("GET", "/debug/pprof/", ""); status != 200 || !strings.Contains(text, "goroutine") {
		t.Errorf("on its own: %d", status)
	}
}

// TestDev keeps its messages from one run to the next, and leaves no PostgreSQL behind.
func TestDev(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	var acked string
	for run := range 2 {
		c := serve(t, nil, "dev", "--listen=127.0.0.1:0", "--data="+dir)
		if run == 0 {
			if status, text := c.do("POST", "/api/v1/push", `{"items":[{"queue":"kept","payload":"here"}]}`); status != 201 {
				t.Fatalf("%d %s", status, text)
			}
			if status, text := c.doAs("rebound.example", "GET", "/api/v1/pop/queue/kept?autoAck=true", ""); status != 403 {
				t.Errorf("a page that names itself after this machine: %d %s", status, text)
			}
		} else {
			_, acked = c.do("GET", "/api/v1/pop/queue/kept?autoAck=true", "")
		}
		c.signal()
		if status := c.status(); status != 0 {
			t.Fatalf("exit status %d:\n%s", status, c.stderr)
		}
		if _, err := os.Stat(filepath.Join(dir, "postgres", "postmaster.pid")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("PostgreSQL is still there: %v", err)
		}
	}
	if !strings.Contains(acked, `"data":"here"`) {
		t.Errorf("popped %s", acked)
	}
}

// openDir is a temporary directory that the user who runs PostgreSQL for root can enter, which
// t.TempDir is not.
func openDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "posthorn-app-test-") //nolint:usetesting // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "data")
}

// TestAddressInUse says so.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	c, _ := spawn(t, []string{"DATABASE_URL=" + pgtest.URL(t)}, "serve", "--listen", taken.Addr().String())
	if status := c.status(); status != exitFailed || !strings.Contains(c.stderr.String(), "listen on "+taken.Addr().String()) {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
}

// TestStartWithoutDatabase tries again with a line in the log, and can be stopped meanwhile.
func TestStartWithoutDatabase(t *testing.T) {
	t.Parallel()
	c, _ := spawn(t, []string{"PG_HOST=127.0.0.1", "PG_PORT=1", "PG_PASSWORD=canary-password"}, "serve", "--listen=127.0.0.1:0")
	c.waitFor("a second attempt", func() bool { return strings.Count(c.stderr.String(), "trying again") >= 2 })
	c.signal()
	if status := c.status(); status != 0 || strings.Contains(c.stderr.String(), "canary") {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
}

func TestPatience(t *testing.T) {
	t.Parallel()
	open := func(ctx context.Context, cfg pg.Config, limit time.Duration) error {
		return newPatience(limit, slog.New(slog.DiscardHandler)).with(ctx, func() error {
			_, err := pg.Open(ctx, cfg)
			return err
		})
	}
	err := open(t.Context(), pg.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d"}, 0)
	if err == nil || !strings.Contains(err.Error(), "PostgreSQL did not answer") {
		t.Errorf("unreachable: %v", err)
	}
	// A configuration that is wrong will not become right by waiting.
	began := time.Now()
	err = open(t.Context(), pg.Config{URL: "postgres://h/d?sslmode=bogus"}, time.Minute)
	if err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("wrong: %v after %v", err, time.Since(began))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open(ctx, pg.Config{Host: "127.0.0.1", Port: 1, User: "u", Database: "d"}, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
