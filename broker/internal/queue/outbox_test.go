package queue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// sqlPush is what a program runs in its own transaction.
const sqlPush = `select posthorn.push($1, $2, $3::json, $4)`

// executor is a connection or a transaction.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func execute(t testing.TB, db executor, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func begin(t testing.TB, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// count reads one number.
func count(t testing.TB, conn *pgx.Conn, sql string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func emptied(t testing.TB, conn *pgx.Conn) func() bool {
	t.Helper()
	return func() bool { return count(t, conn, `select count(*) from posthorn.outbox`) == 0 }
}

// TestOutboxMovesWhatIsCommitted pushes in transactions of which some roll back, by a role that may do
// nothing else. What is committed is delivered, byte for byte, and later pushes of its ids are duplicates.
func TestOutboxMovesWhatIsCommitted(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	broker(t, url, queue.Config{}) // which of them moves does not matter
	admin := pgtest.Admin(t, url)
	role := fmt.Sprintf("app_%d", rand.Uint64())
	execute(t, admin, `create role `+role)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, _ = admin.Exec(ctx, `reset role; drop owned by `+role+`; drop role `+role)
	})
	execute(t, admin, `grant usage on schema posthorn to `+role)
	execute(t, admin, `create table public.orders (id int); grant all on public.orders to `+role)
	execute(t, admin, `set role `+role)
	if _, err := admin.Exec(t.Context(), sqlPush, "q", "p", `1`, "a"); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("without a grant: %v", err)
	}
	execute(t, admin, `reset role; grant execute on all functions in schema posthorn to `+role+`; set role `+role)
	if _, err := admin.Exec(t.Context(), `select * from posthorn.outbox`); err == nil {
		t.Error("the outbox can be read")
	}

	tx := begin(t, admin)
	execute(t, tx, `insert into public.orders values (1)`)
	const odd = `{ "a":1e400 , "a":"\u0000"}`
	execute(t, tx, sqlPush, "q", "p", odd, "a")
	execute(t, tx, `select posthorn.push('q', 'p', '[1 ,2]', null)`)
	execute(t, tx, `select posthorn.push('q', '', '{"b": 1}'::jsonb)`)
	execute(t, tx, `savepoint s`)
	execute(t, tx, sqlPush, "q", "p", `"undone"`, "undone")
	execute(t, tx, `rollback to s`)
	execute(t, tx, sqlPush, "q", "p", `3`, "a") // a duplicate
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx = begin(t, admin)
	execute(t, tx, sqlPush, "q", "p", `"never"`, "never")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, admin, `reset role`)
	waitFor(t, "the outbox to be empty", emptied(t, admin))
	got := pop(t, e, queue.PopRequest{Queue: "q", Partition: "p"})
	var payloads []string
	for _, p := range got.Partitions {
		for _, m := range p.Messages {
			payloads = append(payloads, string(m.Payload))
		}
	}
	expect(t, "delivered", strings.Join(payloads, "|"), odd+"|[1 ,2]")
	expect(t, "the default partition", len(ids(pop(t, e, queue.PopRequest{Queue: "q", Partition: "Default"}))), 1)
	expect(t, "a push afterwards", push(t, e, item("q", "p", "a"))[0].Status, queue.Duplicate)
}

// TestOutboxRefuses what no push would take, when it is called.
func TestOutboxRefuses(t *testing.T) {
	t.Parallel()
	admin := pgtest.Admin(t, pgtest.URL(t))
	for want, args := range map[string][]any{
		"queue is missing":                                   {"", "p", `1`, nil},
		"queue must be at most 512 bytes":                    {strings.Repeat("ü", 257), "p", `1`, nil},
		"queue must not contain control characters":          {"a\u0085b", "p", `1`, nil},
		"partition must be at most 512 bytes":                {"q", strings.Repeat("x", 513), `1`, nil},
		"partition must not contain control characters":      {"q", "a\n", `1`, nil},
		"transaction_id must be at most 1024 bytes":          {"q", "p", `1`, strings.Repeat("x", 1025)},
		"transaction_id must not contain control characters": {"q", "p", `1`, "\x7f"},
		"payload is missing":                                 {"q", "p", nil, nil},
		"payload is not valid JSON":                          {"q", "p", `{`, nil},
	} {
		_, err := admin.Exec(t.Context(), `select posthorn.push($1, $2, $3::text, $4)`, args...)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Message != "posthorn.push: "+want || refused.Code != "22023" {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for _, args := range [][]any{
		{strings.Repeat("ü", 256), strings.Repeat("x", 512), `null`, strings.Repeat("x", 1024)}, {"q", nil, ` 1 `, ""},
	} {
		execute(t, admin, `select posthorn.push($1, $2, $3::text, $4)`, args...)
	}
}

// TestOutboxKeepsOrder lets ids be given out in another order than commits happen.
func TestOutboxKeepsOrder(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	first, second, admin := pgtest.Admin(t, url), pgtest.Admin(t, url), pgtest.Admin(t, url)
	execute(t, admin, `create table public.counter (n int); insert into public.counter values (0)`)

	early := begin(t, first)
	execute(t, early, `select pg_current_xact_id()`) // an older transaction, which pushes late
	late := begin(t, second)
	execute(t, late, `update public.counter set n = n + 1`)
	execute(t, late, sqlPush, "q", "p", `1`, "1")
	e := broker(t, url, queue.Config{})
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	execute(t, early, `update public.counter set n = n + 1`) // it has waited for the other one
	execute(t, early, sqlPush, "q", "p", `2`, "2")
	if err := early.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	hole := begin(t, first)
	execute(t, hole, sqlPush, "q", "p", `4`, "4") // a smaller id, committed later
	execute(t, second, sqlPush, "q", "p", `3`, "3")
	waitFor(t, "the mover to look", func() bool {
		return count(t, admin, `select count(*) from outbox_mover where until > clock_timestamp()`) == 1
	})
	if err := hole.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		execute(t, second, sqlPush, "q", "p", `0`, fmt.Sprint(i+5))
	}
	waitFor(t, "the outbox to be empty", emptied(t, admin))
	got := ids(pop(t, e, queue.PopRequest{Queue: "q"}))
	expect(t, "how many", len(got), 24)
	expect(t, "the ones that knew of each other", got[:2], []string{"1", "2"})
	for i, id := range got[4:] {
		expect(t, "one session's", id, fmt.Sprint(i+5))
	}
}

// TestOutboxThroughFaults has sessions push while backends are killed and movers come and go. Each
// committed message is delivered once, and each session's in its order.
func TestOutboxThroughFaults(t *testing.T) {
	t.Parallel()
	const sessions, messages = 4, 60
	url := pgtest.URL(t)
	reader := broker(t, url, queue.Config{})
	var wait sync.WaitGroup
	stop := make(chan struct{})
	var faults sync.WaitGroup
	faults.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(80 * time.Millisecond):
				pgtest.KillBackends(t, url)
			}
		}
	})
	faults.Go(func() {
		for ctx := t.Context(); ; {
			end := passingBroker(t, url)
			select {
			case <-stop:
				end()
				return
			case <-ctx.Done():
				end()
				return
			case <-time.After(150 * time.Millisecond):
				end()
			}
		}
	})
	for s := range sessions {
		wait.Go(func() {
			var conn *pgx.Conn
			for n := 0; n < messages; {
				var err error
				if conn == nil || conn.IsClosed() {
					if conn, err = pgx.Connect(t.Context(), url); err != nil {
						continue
					}
				}
				// The transaction id makes a commit without an answer safe to repeat.
				if _, err = conn.Exec(t.Context(), sqlPush, "q", fmt.Sprint(s), fmt.Sprint(n), fmt.Sprint(n)); err == nil {
					n++
				} else if t.Context().Err() != nil {
					return
				}
			}
			_ = conn.Close(context.WithoutCancel(t.Context()))
		})
	}
	wait.Wait()
	close(stop)
	faults.Wait()
	admin := pgtest.Admin(t, url)
	waitFor(t, "the outbox to be empty", emptied(t, admin))
	found := map[string][]string{}
	for {
		r := pop(t, reader, queue.PopRequest{Queue: "q", Batch: 1000, AutoAck: true})
		if len(r.Partitions) == 0 {
			break
		}
		for _, p := range r.Partitions {
			for _, m := range p.Messages {
				found[p.Name] = append(found[p.Name], m.TransactionID)
			}
		}
	}
	for s := range sessions {
		got := found[fmt.Sprint(s)]
		expect(t, fmt.Sprint("messages of session ", s), len(got), messages)
		for i, id := range got {
			expect(t, fmt.Sprint("message of session ", s), id, fmt.Sprint(i))
		}
	}
}

// TestOutboxGoesAround leaves a partition alone that cannot be moved, and moves the others.
func TestOutboxGoesAround(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	admin := pgtest.Admin(t, url)
	e := broker(t, url, queue.Config{StrictEncryption: true})
	push(t, e, item("sealed", "p", "first"), item("open", "p", "first"))
	execute(t, admin, `update queue set options = options || '{"encryptionEnabled":true}', version = (select catalog_version + 1 from setting) where name = 'sealed'`)
	execute(t, admin, `update setting set catalog_version = catalog_version + 1`)
	waitFor(t, "the setting to be known", func() bool { return push(t, e, item("sealed", "p", ""))[0].Status == queue.Failed })
	execute(t, admin, sqlPush, "sealed", "p", `1`, "stuck")
	execute(t, admin, sqlPush, "open", "p", `1`, "free")
	waitFor(t, "the other partition to be moved", func() bool {
		return count(t, admin, `select count(*) from posthorn.outbox where transaction_id = 'free'`) == 0
	})
	expect(t, "left", count(t, admin, `select count(*) from posthorn.outbox`), 1)
	expect(t, "open", ids(pop(t, e, queue.PopRequest{Queue: "open"})), []string{"first", "free"})
}

// TestOutboxStandbyIsQuiet lets a broker wait while another one moves: that is no failure to log.
func TestOutboxStandbyIsQuiet(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	admin := pgtest.Admin(t, url)
	broker(t, url, queue.Config{})
	renewed := func() func() bool {
		const sqlLease = `select until::text from outbox_mover where holder is not null`
		var last string
		_ = admin.QueryRow(t.Context(), sqlLease).Scan(&last)
		return func() bool {
			var until string
			return admin.QueryRow(t.Context(), sqlLease).Scan(&until) == nil && until != last
		}
	}
	waitFor(t, "the first broker to be the mover", renewed())
	var lines bytes.Buffer
	standby := broker(t, url, queue.Config{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	for range 3 {
		waitFor(t, "the mover to renew its lease", renewed())
	}
	standby.Stop()
	if log := lines.String(); strings.Contains(log, "outbox") {
		t.Errorf("the broker that does not move logs %s", log)
	}
}

// passingBroker starts a broker that may fail to, and returns what ends it.
func passingBroker(t *testing.T, url string) (end func()) {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.Config{URL: url})
	if err != nil {
		return func() {}
	}
	e, err := queue.Open(t.Context(), pool, queue.Config{Testing: true})
	if err == nil {
		err = e.Start(t.Context())
	}
	if err != nil {
		return pool.Close
	}
	return func() {
		e.Stop()
		pool.Close()
	}
}

// TestOutboxGuide runs the statements of the guide, as they are printed.
func TestOutboxGuide(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/guide/outbox.md")
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.URL(t)
	admin := pgtest.Admin(t, url)
	role := fmt.Sprintf("shop_%d", rand.Uint64()) // roles are shared by all databases of the server
	t.Cleanup(func() {
		_, _ = admin.Exec(context.WithoutCancel(t.Context()), `drop owned by `+role+`; drop role `+role)
	})
	execute(t, admin, `set search_path = public`)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("the guide has %d blocks of SQL, want 2", len(blocks))
	}
	for _, block := range blocks {
		sql := regexp.MustCompile(`\bshop\b`).ReplaceAllString(string(block[1]), role)
		if _, err := admin.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	e := broker(t, url, queue.Config{})
	r := pop(t, e, queue.PopRequest{Queue: "invoices.created", Wait: 20 * time.Second})
	expect(t, "delivered", ids(r), []string{"invoice-8891"})
	expect(t, "its payload", string(r.Partitions[0].Messages[0].Payload), `{"invoiceId": 8891}`)
	expect(t, "its partition", r.Partitions[0].Name, "customer-42")
}
