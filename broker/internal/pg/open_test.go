package pg_test

import (
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestOpenDirectly(t *testing.T) {
	t.Parallel()
	raw := pgtest.EmptyURL(t)
	pool := open(t, pg.Config{URL: raw})
	for name, want := range map[string]string{
		"idle_in_transaction_session_timeout": "1min",
		"application_name":                    "posthorn",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
	} {
		if got := scan[string](t, pool, `SELECT current_setting($1)`, name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	if n := pool.Config().MaxConns; n != 10 {
		t.Errorf("%d connections, want 10", n)
	}
	if n := preparedStatements(t, pool); n == 0 {
		t.Error("a direct connection prepares no statements")
	}

	tuned := open(t, pg.Config{
		URL: raw, PoolSize: 3, ApplicationName: "other", IdleInTransaction: 7 * time.Second,
	})
	if n := tuned.Config().MaxConns; n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
	if got := scan[string](t, tuned, `SELECT current_setting('application_name') || ' ' || current_setting('idle_in_transaction_session_timeout')`); got != "other 7s" {
		t.Errorf("settings: %s", got)
	}
}

// preparedStatements runs a statement with a parameter twice on one connection
// and counts what the server keeps of it.
func preparedStatements(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	conn, err := pool.Acquire(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for range 2 {
		var n int
		if err := conn.QueryRow(deadline(t), `SELECT $1::int`, 5).Scan(&n); err != nil || n != 5 {
			t.Fatalf("%d, %v", n, err)
		}
	}
	var n int
	if err := conn.QueryRow(deadline(t), `SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT $1%'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestOpenOverTCPSetsUserTimeout(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, map[string]string{"listen_addresses": "127.0.0.1", "port": freePort(t)})
	port := scanPort(t, server.URL())
	// The server rejects logins over TCP by default; a test lets this one in.
	admin := open(t, pg.Config{URL: server.URL()})
	exec(t, admin, `CREATE TEMP TABLE hba (line text)`)
	exec(t, admin, `COPY (SELECT 'host all all 127.0.0.1/32 trust') TO '`+server.DataDir()+`/postgres/pg_hba.conf'`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	var pool *pgxpool.Pool
	eventually(t, "the server lets us in", func() bool {
		var err error
		pool, err = pg.Open(deadline(t), pg.Config{Host: "127.0.0.1", Port: port, User: "posthorn", Database: "posthorn", SSLMode: "disable", UserTimeout: 9 * time.Second})
		return err == nil
	})
	defer pool.Close()
	if got := scan[string](t, pool, `SELECT current_setting('tcp_user_timeout')`); got != "9000" { // the kernel's view, in ms
		t.Errorf("tcp_user_timeout = %s ms, want 9000", got)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestOpenFromFields(t *testing.T) {
	t.Parallel()
	u, err := url.Parse(pgtest.EmptyURL(t))
	if err != nil {
		t.Fatal(err)
	}
	pool := open(t, pg.Config{
		Host: u.Query().Get("host"), User: "posthorn", Password: "p@ss/w:rd?", Database: strings.TrimPrefix(u.Path, "/"), SSLMode: "disable",
	})
	if got := scan[string](t, pool, `SELECT current_database()`); "/"+got != u.Path {
		t.Errorf("connected to %s, want %s", got, u.Path)
	}
	if got := pool.Config().ConnConfig.Password; got != "p@ss/w:rd?" {
		t.Errorf("password %q", got)
	}
}

func TestOpenBehindAPooler(t *testing.T) {
	t.Parallel()
	raw := pgtest.EmptyURL(t)
	p := newProxy(t, raw, &proxy{pooler: true})
	pool := open(t, pg.Config{URL: p.url()})
	if n := preparedStatements(t, pool); n != 0 {
		t.Errorf("%d prepared statements behind a pooler", n)
	}
	if len(p.refused) == 0 {
		t.Error("the pooler had nothing to refuse: this test proves nothing")
	}
	chosen := open(t, pg.Config{URL: p.url() + "&default_query_exec_mode=cache_statement"})
	if n := preparedStatements(t, chosen); n == 0 {
		t.Error("the mode that the URL chose was overruled")
	}
	// Without a pooler the same proxy changes nothing.
	direct := open(t, pg.Config{URL: newProxy(t, raw, &proxy{}).url()})
	if n := preparedStatements(t, direct); n == 0 {
		t.Error("a plain proxy was taken for a pooler")
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]pg.Config{
		"nothing":      {},
		"no URL":       {URL: "postgres://user:secret@host:port/db"},
		"wrong option": {URL: "postgres://user:secret@host/db?sslmode=maybe"},
	} {
		_, err := pg.Open(deadline(t), cfg)
		if err == nil || pg.Unavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the message tells the password: %v", name, err)
		}
	}
}

func TestDialHasATimeout(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begin := time.Now()
	_, err = pg.Open(deadline(t), pg.Config{
		URL:         "postgres://posthorn@" + silent.Addr().String() + "/posthorn?sslmode=disable&connect_timeout=3600",
		DialTimeout: 200 * time.Millisecond,
	})
	if !pg.Unavailable(err) || pg.UnknownOutcome(err) {
		t.Errorf("Open: %v", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

func scanPort(t *testing.T, raw string) int {
	t.Helper()
	return scan[int](t, open(t, pg.Config{URL: raw}), `SELECT current_setting('port')::int`)
}
