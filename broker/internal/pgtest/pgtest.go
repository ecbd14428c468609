package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/embedpg"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// dirPrefix begins the names of the temporary data directories.
const dirPrefix = "posthorn-pgtest-"

// startTimeout bounds a start; generous, because test machines are busy.
const startTimeout = 2 * time.Minute

var (
	server   *embedpg.Server
	template = sync.OnceValues(makeTemplate)
)

// Main is the body of TestMain: it starts the server, runs the tests, stops the
// server and exits. Between, URL and EmptyURL work.
func Main(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	sweep()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var err error
	if server, err = start(ctx, nil); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 2
	}
	// Deferred, so that it also happens when m.Run panics.
	defer func() {
		if err := destroy(server); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}()
	return m.Run()
}

// StartServer starts a server for this test alone, which may crash, pause and
// restart it; it is gone when the test ends. Its database is empty: see Migrate.
// settings override server parameters; nil = none.
func StartServer(t testing.TB, settings map[string]string) *embedpg.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s, err := start(ctx, settings)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := destroy(s); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return s
}

// URL returns the URL of a fresh, migrated database, which is dropped when the
// test ends, whoever is still connected.
func URL(t testing.TB) string {
	t.Helper()
	from, err := template()
	if err != nil {
		t.Fatalf("pgtest: migrate the template: %v", err)
	}
	return create(t, "TEMPLATE "+from)
}

// EmptyURL is URL without the migrations.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return create(t, "")
}

// Migrate migrates the database at url, which URL has done already.
func Migrate(t testing.TB, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := migrate(ctx, url); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Admin returns a connection of the superuser to the database at url, closed
// when the test ends, on which a test looks and interferes from outside.
func Admin(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// KillBackends ends every other connection to the database at url and returns
// how many there were.
func KillBackends(t testing.TB, url string) int {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(ctx)
	const kill = `
SELECT count(pg_terminate_backend(pid))
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()`
	var n int
	if err := conn.QueryRow(ctx, kill).Scan(&n); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return n
}

func start(ctx context.Context, settings map[string]string) (*embedpg.Server, error) {
	// Not t.TempDir: the user that runs the server for root cannot enter it.
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	all := map[string]string{
		"fsync":            "off",
		"full_page_writes": "off",
		"max_connections":  "300",
		"shared_buffers":   "64MB",
	}
	maps.Copy(all, settings)
	s, err := embedpg.Start(ctx, embedpg.Config{
		DataDir:  dir,
		Settings: all,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func destroy(s *embedpg.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(s.Stop(ctx), embedpg.Destroy(ctx, s.DataDir()))
}

// sweep removes what killed test processes left. A directory younger than a
// minute may belong to one that has not locked it yet.
func sweep() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		err = embedpg.Destroy(ctx, dir)
		cancel()
		if _, inUse := errors.AsType[*embedpg.InUseError](err); err != nil && !inUse && !errors.Is(err, fs.ErrPermission) {
			fmt.Fprintf(os.Stderr, "pgtest: remove %s: %v\n", dir, err)
		}
	}
}

// makeTemplate migrates the database that the others are copied from.
func makeTemplate() (string, error) {
	const name = "posthorn_template"
	if server == nil {
		return "", errors.New("TestMain does not call pgtest.Main")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := maintain(ctx, "CREATE DATABASE "+name); err != nil {
		return "", err
	}
	return name, migrate(ctx, withDatabase(server.URL(), name))
}

func migrate(ctx context.Context, url string) error {
	pool, err := pg.Open(ctx, pg.Config{URL: url, PoolSize: 1})
	if err != nil {
		return err
	}
	// Closed before anyone copies the database: a template must be unused.
	defer pool.Close()
	return pg.Migrate(ctx, pool)
}

func create(t testing.TB, options string) string {
	t.Helper()
	if server == nil {
		t.Fatal("pgtest: TestMain does not call pgtest.Main")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	name := "test_" + strings.ToLower(rand.Text())
	if err := maintain(ctx, "CREATE DATABASE "+name+" "+options); err != nil {
		t.Fatalf("pgtest: create a database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := maintain(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("pgtest: drop the database: %v", err)
		}
	})
	return withDatabase(server.URL(), name)
}

// creating serialises the statements that copy and drop databases: copies of
// one template by several sessions at once refuse each other.
var creating sync.Mutex

// maintain runs one statement on the maintenance database.
func maintain(ctx context.Context, sql string) error {
	creating.Lock()
	defer creating.Unlock()
	conn, err := pgx.Connect(ctx, withDatabase(server.URL(), "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, sql)
	return err
}

func withDatabase(raw, name string) string {
	u, err := url.Parse(raw)
	if err != nil {
		panic(err) // embedpg built it
	}
	u.Path = "/" + name
	return u.String()
}
