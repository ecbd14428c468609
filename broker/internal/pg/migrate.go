package pg

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations/*.sql
var embedded embed.FS

// NewerSchemaError says that the database holds a migration that this program
// does not know, so a newer Posthorn has been at work.
type NewerSchemaError struct {
	Version int    // of the lowest unknown migration
	Name    string // its name
	Known   int    // the newest version that this program knows; 0 = none
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the database has migration %04d (%s), this program knows migrations up to %04d: run a newer Posthorn",
		e.Version, e.Name, e.Known)
}

// ChecksumError says that a migration was applied from a file that differs from
// the one in this program.
type ChecksumError struct {
	Version int
	Name    string
}

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("migration %04d (%s) was applied with a different content than this program has", e.Version, e.Name)
}

const (
	// migrationLockTimeout is how long a migration waits for any lock; while it
	// waits, everybody who wants the same table waits behind it.
	migrationLockTimeout = 5 * time.Second
	// migrationAttempts bounds the retries of one migration: with the pauses,
	// about five minutes behind a lock that is never given up.
	migrationAttempts = 50
)

const (
	createMigrations = `
CREATE TABLE IF NOT EXISTS posthorn_migration (
    version    integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL, -- SHA-256 of the file, in hex
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)`

	readMigrations = `SELECT version, name, checksum FROM posthorn_migration ORDER BY version`

	// EXCLUSIVE excludes other migrators and itself, and lets readers pass. The
	// table is read again in a later statement, whose snapshot is taken with
	// the lock held.
	lockMigrations = `LOCK TABLE posthorn_migration IN EXCLUSIVE MODE`

	// New tables go where the first ones went, whatever schema the search path begins with by then: a role
	// of the name posthorn has the schema of that name first once it exists.
	pinSchema = `
SELECT set_config('search_path', quote_ident(n.nspname), true)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = 'posthorn_migration'::regclass`

	recordMigration = `INSERT INTO posthorn_migration (version, name, checksum) VALUES ($1, $2, $3)`
)

// migration is one numbered file.
type migration struct {
	version  int
	name     string // the file's name without number and extension
	checksum string
	sql      string
}

// Migrate brings the schema to the newest version this program knows. It is
// safe to call from several brokers at once, and costs one query when there is
// nothing to do. Each migration runs in a transaction of its own, so those before
// a failure stay.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	dir, err := fs.Sub(embedded, "migrations")
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if err := migrate(ctx, pool, dir); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, pool *pgxpool.Pool, dir fs.FS) error {
	known, err := loadMigrations(dir)
	if err != nil {
		return err
	}
	applied, err := appliedMigrations(ctx, pool)
	if err != nil {
		return err
	}
	pending, err := pendingMigrations(known, applied)
	if err != nil {
		return err
	}
	if applied == nil {
		if err := retry(ctx, func() error { return createMigrationTable(ctx, pool) }); err != nil {
			return fmt.Errorf("create the table of migrations: %w", err)
		}
	}
	for _, m := range pending {
		if err := retry(ctx, func() error { return apply(ctx, pool, known, m) }); err != nil {
			return fmt.Errorf("migration %04d (%s): %w", m.version, m.name, err)
		}
	}
	return nil
}

var migrationName = regexp.MustCompile(`^(\d{4})_([a-z0-9_]+)\.sql$`)

// loadMigrations reads the files of dir in order.
func loadMigrations(dir fs.FS) ([]migration, error) {
	names, err := fs.Glob(dir, "*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var list []migration
	for _, name := range names {
		parts := migrationName.FindStringSubmatch(name)
		if parts == nil {
			return nil, fmt.Errorf("migration file %s is not named NNNN_name.sql", name)
		}
		version, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, fmt.Errorf("migration file %s: %w", name, err)
		}
		if want := len(list) + 1; version != want {
			return nil, fmt.Errorf("migration file %s: the next number is %04d", name, want)
		}
		text, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		list = append(list, migration{
			version: version, name: parts[2], checksum: hex.EncodeToString(sum[:]), sql: string(text),
		})
	}
	return list, nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// appliedMigrations reads what the database has; nil when the table does not
// exist, which is the only error taken for an empty database.
func appliedMigrations(ctx context.Context, db querier) (map[int]migration, error) {
	applied := map[int]migration{}
	var m migration
	rows, _ := db.Query(ctx, readMigrations) // ForEachRow returns its error
	_, err := pgx.ForEachRow(rows, []any{&m.version, &m.name, &m.checksum}, func() error {
		applied[m.version] = m
		return nil
	})
	if pgErr, ok := serverError(err); ok && pgErr.Code == codeUndefinedTable {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the applied migrations: %w", err)
	}
	return applied, nil
}

// pendingMigrations compares what the program knows with what the database has.
func pendingMigrations(known []migration, applied map[int]migration) ([]migration, error) {
	var pending []migration
	unknown := maps.Clone(applied)
	for _, m := range known {
		have, ok := applied[m.version]
		if !ok {
			pending = append(pending, m)
			continue
		}
		if have.checksum != m.checksum {
			return nil, &ChecksumError{Version: m.version, Name: m.name}
		}
		delete(unknown, m.version)
	}
	if len(unknown) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(unknown)))
		return nil, &NewerSchemaError{Version: first, Name: unknown[first].name, Known: len(known)}
	}
	return pending, nil
}

// createMigrationTable tolerates a concurrent creator. IF NOT EXISTS does not:
// the loser of the race violates a unique index of the catalog once the winner
// has committed.
func createMigrationTable(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, createMigrations)
	if pgErr, ok := serverError(err); ok {
		switch pgErr.Code {
		case codeUniqueViolation, codeDuplicateObject, codeDuplicateTable:
			return nil
		}
	}
	return err
}

// apply runs m unless another broker has done so meanwhile.
func apply(ctx context.Context, pool *pgxpool.Pool, known []migration, m migration) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = "+milliseconds(migrationLockTimeout)); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, lockMigrations); err != nil {
			return err
		}
		applied, err := appliedMigrations(ctx, tx)
		if err != nil {
			return err
		}
		pending, err := pendingMigrations(known, applied)
		if err != nil {
			return err
		}
		if !slices.Contains(pending, m) {
			return nil
		}
		if _, err := tx.Exec(ctx, pinSchema); err != nil {
			return err
		}
		// The simple protocol takes a file of several statements.
		if _, err := tx.Conn().PgConn().Exec(ctx, m.sql).ReadAll(); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, recordMigration, m.version, m.name, m.checksum)
		return err
	})
}

// retry repeats do while it fails because of a concurrent transaction. An
// attempt whose outcome is unknown is repeated as well: do looks first.
func retry(ctx context.Context, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || attempt == migrationAttempts || ctx.Err() != nil || !Retryable(err) && !UnknownOutcome(err) {
			return err
		}
		wait := min(time.Duration(attempt)*20*time.Millisecond, time.Second)
		spread := rand.N(wait / 2) //nolint:gosec // or brokers that collide do so again; nobody gains by guessing it
		select {
		case <-time.After(wait/2 + spread):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
