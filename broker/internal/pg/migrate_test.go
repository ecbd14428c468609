package pg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// files makes migrations of name, content pairs.
func files(pairs ...string) fstest.MapFS {
	dir := fstest.MapFS{}
	for i := 0; i < len(pairs); i += 2 {
		dir[pairs[i]] = &fstest.MapFile{Data: []byte(pairs[i+1])}
	}
	return dir
}

const (
	createLog = "CREATE TABLE log (step int);\nINSERT INTO log VALUES (1); -- several statements\n"
	second    = "INSERT INTO log VALUES (2)"
)

func steps(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	return scan[string](t, pool, `SELECT string_agg(step::text, ' ' ORDER BY step) FROM log`)
}

func TestMigrateStepByStep(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	ctx := deadline(t)
	one := files("0001_log.sql", createLog)
	for range 2 { // the second has nothing to do
		if err := pg.MigrateFiles(ctx, pool, one); err != nil {
			t.Fatal(err)
		}
	}
	two := files("0001_log.sql", createLog, "0002_more.sql", second)
	if err := pg.MigrateFiles(ctx, pool, two); err != nil {
		t.Fatal(err)
	}
	if got := steps(t, pool); got != "1 2" {
		t.Errorf("steps %s, want 1 2", got)
	}
	const recorded = `SELECT string_agg(version || ' ' || name || ' ' || length(checksum), ', ' ORDER BY version) FROM posthorn_migration WHERE applied_at <= clock_timestamp()`
	if got := scan[string](t, pool, recorded); got != "1 log 64, 2 more 64" {
		t.Errorf("recorded %s", got)
	}

	var newer *pg.NewerSchemaError
	if err := pg.MigrateFiles(ctx, pool, one); !errors.As(err, &newer) {
		t.Fatalf("an older program: %v, want *NewerSchemaError", err)
	}
	if *newer != (pg.NewerSchemaError{Version: 2, Name: "more", Known: 1}) {
		t.Errorf("%+v", newer)
	}
	var sum *pg.ChecksumError
	altered := files("0001_log.sql", createLog+" ", "0002_more.sql", second)
	if err := pg.MigrateFiles(ctx, pool, altered); !errors.As(err, &sum) || *sum != (pg.ChecksumError{Version: 1, Name: "log"}) {
		t.Errorf("an altered file: %v, want *ChecksumError", err)
	}
}

func TestMigrateFromManyBrokersAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	dir := files("0001_log.sql", createLog)
	for i := 2; i <= 6; i++ {
		dir[fmt.Sprintf("%04d_step.sql", i)] = &fstest.MapFile{Data: fmt.Appendf(nil, "INSERT INTO log VALUES (%d)", i)}
	}
	var group sync.WaitGroup
	begin := make(chan struct{})
	for range 8 {
		pool := open(t, pg.Config{URL: url, PoolSize: 2})
		group.Go(func() {
			<-begin
			if err := pg.MigrateFiles(deadline(t), pool, dir); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	group.Wait()
	if got := steps(t, open(t, pg.Config{URL: url})); got != "1 2 3 4 5 6" {
		t.Errorf("steps %s, each was to run once", got)
	}
}

func TestFailedMigrationLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	bad := files("0001_log.sql", createLog, "0002_bad.sql", second+"; SELECT no_such_function()")
	err := pg.MigrateFiles(deadline(t), pool, bad)
	if err == nil || !strings.Contains(err.Error(), "migration 0002 (bad)") {
		t.Fatalf("migrate: %v", err)
	}
	if got := steps(t, pool); got != "1" {
		t.Errorf("steps %s: the failed migration left something, or took its predecessor along", got)
	}
	if err := pg.MigrateFiles(deadline(t), pool, files("0001_log.sql", createLog, "0002_good.sql", second)); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

// TestOnlyAMissingTableIsAnEmptyDatabase has a table of migrations that cannot
// be read.
func TestOnlyAMissingTableIsAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	exec(t, pool, `CREATE TABLE posthorn_migration (something_else int)`)
	if err := pg.MigrateFiles(deadline(t), pool, files("0001_log.sql", createLog)); err == nil || !strings.Contains(err.Error(), "read the applied migrations") {
		t.Errorf("migrate: %v", err)
	}
	if scan[bool](t, pool, `SELECT to_regclass('log') IS NOT NULL`) {
		t.Error("migrated all the same")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := pg.MigrateFiles(ctx, pool, files("0001_log.sql", createLog)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestMigrateWaitsForALock has an outsider hold the table for longer than the
// lock timeout.
func TestMigrateWaitsForALock(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyURL(t)
	pool := open(t, pg.Config{URL: url})
	if err := pg.MigrateFiles(deadline(t), pool, files("0001_log.sql", createLog)); err != nil {
		t.Fatal(err)
	}
	outsider := pgtest.Admin(t, url)
	if _, err := outsider.Exec(deadline(t), `BEGIN; LOCK TABLE posthorn_migration IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- pg.MigrateFiles(deadline(t), pool, files("0001_log.sql", createLog, "0002_more.sql", second))
	}()
	admin := pgtest.Admin(t, url)
	waiting := func() bool {
		var waits bool
		const probe = `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND mode = 'ExclusiveLock' AND relation = 'posthorn_migration'::regclass)`
		if err := admin.QueryRow(deadline(t), probe).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		return waits
	}
	eventually(t, "it waits", waiting)
	eventually(t, "it gives way", func() bool { return !waiting() })
	select {
	case err := <-done:
		t.Fatalf("gave up after one lock timeout: %v", err)
	default:
	}
	if _, err := outsider.Exec(deadline(t), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := steps(t, pool); got != "1 2" {
		t.Errorf("steps %s, want 1 2", got)
	}
}

func TestMigrationFiles(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]fstest.MapFS{
		"a gap":         files("0001_a.sql", "", "0003_c.sql", ""),
		"a double":      files("0001_a.sql", "", "0001_b.sql", ""),
		"no number":     files("first.sql", ""),
		"from zero":     files("0000_a.sql", ""),
		"a short digit": files("001_a.sql", ""),
	} {
		if _, err := pg.LoadMigrations(dir); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestMigrateTheRealSchema(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.URL(t)})
	if err := pg.Migrate(deadline(t), pool); err != nil {
		t.Fatal(err)
	}
	if n := scan[int](t, pool, `SELECT count(*) FROM posthorn_migration`); n == 0 {
		t.Error("no migration was applied")
	}
}

// TestMigrationsStayInOneSchema makes a schema that comes first in the search path on the way.
func TestMigrationsStayInOneSchema(t *testing.T) {
	t.Parallel()
	pool := open(t, pg.Config{URL: pgtest.EmptyURL(t)})
	schema := files("0001_schema.sql", `DO $$ BEGIN EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', current_user); END $$`, "0002_table.sql", `CREATE TABLE later (n int)`)
	if err := pg.MigrateFiles(deadline(t), pool, schema); err != nil {
		t.Fatal(err)
	}
	const together = `SELECT count(DISTINCT schemaname) FROM pg_tables WHERE tablename IN ('posthorn_migration', 'later')`
	if got := scan[int](t, pool, together); got != 1 {
		t.Errorf("the tables are in %d schemas", got)
	}
}
