package pg_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// class is what the three functions say of an error.
type class struct{ unavailable, retryable, unknown bool }

var (
	plain      = class{}
	down       = class{unavailable: true}                // nothing was sent, or it was refused
	lost       = class{unavailable: true, unknown: true} // it may have been done
	unknown    = class{unknown: true}                    // it may have been done, and the caller gave up on it
	rolledBack = class{retryable: true}
)

func expect(t *testing.T, what string, err error, want class) {
	t.Helper()
	got := class{pg.Unavailable(err), pg.Retryable(err), pg.UnknownOutcome(err)}
	if got != want {
		t.Errorf("%s: %T %v\nclassed %+v, want %+v", what, err, err, got, want)
	}
}

func TestErrorsThatAreNone(t *testing.T) {
	t.Parallel()
	expect(t, "nil", nil, plain)
	expect(t, "another error", errors.New("another"), plain)
	expect(t, "a missing file", &os.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, plain)
	expect(t, "no rows", pgx.ErrNoRows, plain)
}

// TestServerCodes has the server itself raise each code.
func TestServerCodes(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	for code, want := range map[string]class{
		"23505": plain, "23514": plain, "42601": plain, "22P02": plain, "P0001": plain, "0A000": plain,
		"40001": rolledBack, "40P01": rolledBack, "55P03": rolledBack,
		"57P01": down, "57P02": down, "57P03": down, "25006": down, "53100": down, "53200": down, "53300": down,
		"08006": down, "57014": down, "58030": down,
	} {
		_, err := pool.Exec(deadline(t), `DO $$ BEGIN RAISE SQLSTATE '`+code+`'; END $$`)
		expect(t, code, err, want)
		expect(t, "wrapped "+code, fmt.Errorf("doing: %w", err), want)
	}
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := pool.Exec(ctx, `SELECT pg_sleep(60)`)
	want := lost // the deadline came before the server's word
	if _, answered := errors.AsType[*pgconn.PgError](err); answered {
		want = down
	}
	expect(t, "deadline while running", err, want)

	conn, err := pool.Acquire(deadline(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	_, err = conn.Exec(ctx, `SELECT 1`)
	expect(t, "deadline before", err, down)

	cancelled, cancelNow := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancelNow)
	_, err = conn.Exec(cancelled, `SELECT pg_sleep(60)`)
	expect(t, "cancelled while running", err, down) // the server said that it stopped
	if _, err = conn.Exec(deadline(t), `SELECT 1`); err != nil {
		t.Fatalf("after a cancelled statement: %v", err)
	}

	_, err = pool.Exec(deadline(t), `SET statement_timeout = 20; SELECT pg_sleep(60)`, pgx.QueryExecModeSimpleProtocol)
	expect(t, "the server's deadline", err, down)
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := closed.Addr().String()
	closed.Close()
	_, err = pg.Open(deadline(t), pg.Config{URL: "postgres://posthorn@" + address + "/posthorn?sslmode=disable"})
	expect(t, "nobody listens", err, down)
	_, err = pg.Open(deadline(t), pg.Config{Host: t.TempDir(), User: "posthorn", SSLMode: "disable"})
	expect(t, "no socket", err, down)
	_, err = pg.Open(deadline(t), pg.Config{URL: pgtest.EmptyURL(t) + "&dbname=absent"})
	expect(t, "no database", err, down)

	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	pool.Close()
	_, err = pool.Exec(deadline(t), `SELECT 1`)
	if !pg.Unavailable(err) {
		t.Errorf("closed pool: %v", err)
	}
}

func TestConflicts(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	exec(t, pool, `CREATE TABLE pair (id int PRIMARY KEY, n int)`)
	exec(t, pool, `INSERT INTO pair VALUES (1, 0), (2, 0)`)
	ctx := deadline(t)
	begin := func(level pgx.TxIsoLevel) pgx.Tx {
		tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		return tx
	}
	update := func(tx pgx.Tx, id int) error {
		_, err := tx.Exec(ctx, `UPDATE pair SET n = n + 1 WHERE id = $1`, id)
		return err
	}

	first, second := begin(pgx.ReadCommitted), begin(pgx.ReadCommitted)
	if err := errors.Join(update(first, 1), update(second, 2)); err != nil {
		t.Fatal(err)
	}
	_, err := second.Exec(ctx, `SELECT FROM pair WHERE id = 1 FOR UPDATE NOWAIT`)
	expect(t, "lock not available", err, rolledBack)
	_ = second.Rollback(ctx)

	second = begin(pgx.ReadCommitted)
	if err := update(second, 2); err != nil {
		t.Fatal(err)
	}
	other := make(chan error, 1)
	go func() { other <- update(second, 1) }()
	firstErr, secondErr := update(first, 2), <-other
	if (firstErr == nil) == (secondErr == nil) {
		t.Fatalf("no deadlock: %v, %v", firstErr, secondErr)
	}
	expect(t, "deadlock", errors.Join(firstErr, secondErr), rolledBack)
	_, _ = first.Rollback(ctx), second.Rollback(ctx)

	snapshot := begin(pgx.RepeatableRead)
	if _, err := snapshot.Exec(ctx, `SELECT * FROM pair`); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `UPDATE pair SET n = n + 1`)
	expect(t, "serialization failure", update(snapshot, 1), rolledBack)

	_, err = pool.Exec(ctx, `INSERT INTO pair VALUES (1, 0)`)
	expect(t, "a constraint", err, plain)
}

func TestLostCommitIsUnknown(t *testing.T) {
	t.Parallel()
	raw := pgtest.EmptyURL(t)
	direct := open(t, pg.Config{URL: raw})
	exec(t, direct, `CREATE TABLE kept (n int)`)
	p := newProxy(t, raw, &proxy{loseCommit: true})
	pool := open(t, pg.Config{URL: p.url()})
	insert := func() error {
		return pgx.BeginFunc(deadline(t), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(deadline(t), `INSERT INTO kept VALUES (1)`)
			return err
		})
	}
	expect(t, "lost COMMIT", insert(), lost)
	eventually(t, "the lost COMMIT takes effect", func() bool {
		return scan[int](t, direct, `SELECT count(*) FROM kept`) == 1
	})
	if err := insert(); err != nil {
		t.Errorf("the pool kept a dead connection: %v", err)
	}
}

// backendPID is the server process that the only connection of pool leads to.
func backendPID(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return scan[int](t, pool, `SELECT pg_backend_pid()`)
}

func TestFailedConnectionsAreDiscarded(t *testing.T) {
	t.Parallel()
	raw := pgtest.EmptyURL(t)
	pool := open(t, pg.Config{URL: raw, PoolSize: 1})
	exec(t, pool, `CREATE TABLE kept (n int)`)

	// The server was demoted: only new connections may lead elsewhere.
	before := backendPID(t, pool)
	exec(t, pool, `SET default_transaction_read_only = on`)
	_, err := pool.Exec(deadline(t), `INSERT INTO kept VALUES (1)`)
	expect(t, "read-only", err, down)
	if after := backendPID(t, pool); after == before {
		t.Error("a connection to a read-only server was pooled")
	}
	exec(t, pool, `INSERT INTO kept VALUES (1)`)

	// Inside a transaction, which BeginFunc then cannot roll back.
	before = backendPID(t, pool)
	err = pgx.BeginFunc(deadline(t), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(deadline(t), `SET TRANSACTION READ ONLY`); err != nil {
			return err
		}
		_, err := tx.Exec(deadline(t), `INSERT INTO kept VALUES (2)`)
		return err
	})
	expect(t, "read-only transaction", err, down)
	if after := backendPID(t, pool); after == before {
		t.Error("the connection was pooled")
	}

	// An error of the statement costs no connection.
	before = backendPID(t, pool)
	_, err = pool.Exec(deadline(t), `INSERT INTO absent VALUES (1)`)
	expect(t, "no table", err, plain)
	if after := backendPID(t, pool); after != before {
		t.Error("a statement error cost the connection")
	}

	// A backend ended by an administrator while it runs a statement.
	admin := pgtest.Admin(t, raw)
	failed := make(chan error, 1)
	go func() { _, err := pool.Exec(deadline(t), `SELECT pg_sleep(60)`); failed <- err }()
	eventually(t, "the statement runs, and is ended", func() bool {
		var n int
		const kill = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'`
		if err := admin.QueryRow(deadline(t), kill, before).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	expect(t, "terminated", <-failed, lost)
	if after := backendPID(t, pool); after == before {
		t.Error("the terminated connection was pooled")
	}
}

func TestServerInTrouble(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, map[string]string{"max_connections": "6", "superuser_reserved_connections": "0", "max_wal_senders": "0"})
	cfg := pg.Config{URL: server.URL(), PoolSize: 1, DialTimeout: 2 * time.Second}

	many := open(t, pg.Config{URL: server.URL()})
	var held []*pgxpool.Conn
	var err error
	for err == nil && len(held) < 10 {
		var conn *pgxpool.Conn
		if conn, err = many.Acquire(deadline(t)); err == nil {
			held = append(held, conn)
		}
	}
	expect(t, "too many connections", err, down)
	if pgErr, ok := pg.ServerError(err); !ok || pgErr.Code != "53300" {
		t.Errorf("want code 53300: %v", err)
	}
	// A smart shutdown waits for the held connections and refuses new ones.
	if err := server.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "shutting down", func() bool {
		_, err = pg.Open(deadline(t), cfg)
		pgErr, ok := pg.ServerError(err)
		return ok && pgErr.Code == "57P03"
	})
	expect(t, "shutting down", err, down)
	for _, conn := range held {
		conn.Release()
	}
	many.Close()
	if err := server.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}

	pool := open(t, cfg)
	failed := make(chan error, 1)
	go func() { _, err := pool.Exec(deadline(t), `SELECT pg_sleep(60)`); failed <- err }()
	admin := pgtest.Admin(t, server.URL())
	eventually(t, "a statement runs", func() bool {
		var n int
		if err := admin.QueryRow(deadline(t), `SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	if err := server.Crash(deadline(t)); err != nil {
		t.Fatal(err)
	}
	expect(t, "crashed", <-failed, lost)
	_, err = pool.Exec(deadline(t), `SELECT 1`)
	expect(t, "while down", err, down)
	if err := server.Restart(deadline(t)); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT 1`)

	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = pool.Exec(ctx, `SELECT 1`)
	expect(t, "frozen", err, lost)
	short := cfg
	short.DialTimeout = 100 * time.Millisecond
	_, err = pg.Open(deadline(t), short)
	expect(t, "dial to a frozen server", err, down)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `SELECT 1`)

	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	cancelled, cancelNow := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancelNow)
	_, err = pool.Exec(cancelled, `SELECT 1`)
	expect(t, "cancelled while frozen", err, unknown)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestBadData(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	for code, want := range map[string]bool{"22021": true, "23514": true, "54000": true, "42601": false, "53100": false, "40001": false, "57P01": false} {
		_, err := pool.Exec(deadline(t), `DO $$ BEGIN RAISE SQLSTATE '`+code+`'; END $$`)
		if got := pg.BadData(err); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
	if pg.BadData(nil) || pg.BadData(pgx.ErrNoRows) {
		t.Error("what the server did not say is no bad data")
	}
}
