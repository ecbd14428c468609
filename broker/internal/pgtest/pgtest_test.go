package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestURLGivesSeparateMigratedDatabases(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	first, second := pgtest.URL(t), pgtest.URL(t)

	conn := pgtest.Admin(t, first)
	var applied int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM posthorn_migration`).Scan(&applied); err != nil || applied == 0 {
		t.Fatalf("applied migrations: %d, %v", applied, err)
	}
	if _, err := conn.Exec(ctx, `CREATE TABLE mine ()`); err != nil {
		t.Fatal(err)
	}
	var seen bool
	const probe = `SELECT EXISTS (SELECT FROM pg_tables WHERE tablename = 'mine')`
	if err := pgtest.Admin(t, second).QueryRow(ctx, probe).Scan(&seen); err != nil || seen {
		t.Fatalf("the second database sees the first one's table: %v, %v", seen, err)
	}
	var commit, sync string
	if err := conn.QueryRow(ctx, `SELECT current_setting('synchronous_commit'), current_setting('fsync')`).Scan(&commit, &sync); err != nil {
		t.Fatal(err)
	}
	if commit != "on" || sync != "off" {
		t.Errorf("synchronous_commit %s, fsync %s; want on, off", commit, sync)
	}
}

func TestDatabaseIsDroppedThoughConnected(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var url string
	var conn *pgx.Conn
	t.Run("user", func(t *testing.T) {
		url = pgtest.EmptyURL(t)
		var err error
		if conn, err = pgx.Connect(ctx, url); err != nil {
			t.Fatal(err)
		}
	})
	defer conn.Close(ctx)
	if err := conn.Ping(ctx); err == nil {
		t.Error("the connection survived the database")
	}
	if again, err := pgx.Connect(ctx, url); err == nil {
		again.Close(ctx)
		t.Error("the database still exists after the test")
	}
}

func TestKillBackends(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := pgtest.EmptyURL(t)
	victim := pgtest.Admin(t, url)
	if n := pgtest.KillBackends(t, url); n != 1 {
		t.Errorf("killed %d backends, want 1", n)
	}
	if err := victim.Ping(ctx); err == nil {
		t.Error("the victim still answers")
	}
}

func TestPrivateServerCrashesAndRestarts(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := pgtest.StartServer(t, map[string]string{"max_connections": "17"})
	pgtest.Migrate(t, s.URL())
	if err := s.Crash(ctx); err != nil {
		t.Fatal(err)
	}
	if conn, err := pgx.Connect(ctx, s.URL()); err == nil {
		conn.Close(ctx)
		t.Fatal("a crashed server accepts connections")
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	var most string
	if err := pgtest.Admin(t, s.URL()).QueryRow(ctx, `SHOW max_connections`).Scan(&most); err != nil || most != "17" {
		t.Errorf("max_connections = %s, %v; want 17", most, err)
	}
}
