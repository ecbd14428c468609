package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// DatabaseStats is what PostgreSQL counts about the broker's database.
type DatabaseStats struct {
	Version        string
	SizeBytes      int64
	Connections    int64 // of everybody to this database
	MaxConnections int64
	Commits        int64
	Rollbacks      int64
	BlocksHit      int64 // found in the buffers
	BlocksRead     int64 // not found there
	Deadlocks      int64
	TempBytes      int64
	Tables         []TableStats
}

// TableStats is what PostgreSQL counts about one table of the broker.
type TableStats struct {
	Name         string
	Rows         int64 // estimated
	DeadRows     int64 // estimated
	TotalBytes   int64 // with indexes and TOAST
	IndexBytes   int64
	LastVacuumed *time.Time // by hand or automatically; nil means never
}

const sqlDatabaseStats = `
select current_setting('server_version'), pg_database_size(d.datid), d.numbackends::bigint,
       current_setting('max_connections')::bigint, d.xact_commit, d.xact_rollback,
       d.blks_hit, d.blks_read, d.deadlocks, d.temp_bytes
from pg_stat_database d where d.datname = current_database()`

// The tables are those beside that of the migrations, wherever the search path leads first, and the outbox.
const sqlTableStats = `
select relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid), pg_indexes_size(relid),
       greatest(last_vacuum, last_autovacuum)
from pg_stat_user_tables
where schemaname = (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where c.oid = 'posthorn_migration'::regclass)
   or schemaname = 'posthorn' and relname = 'outbox'
order by relname`

// DatabaseStats asks PostgreSQL how it is doing.
func (e *Engine) DatabaseStats(ctx context.Context) (DatabaseStats, error) {
	var s DatabaseStats
	err := e.retrying(ctx, "read the statistics of PostgreSQL", func(ctx context.Context) error {
		s = DatabaseStats{Tables: []TableStats{}}
		err := e.pool.QueryRow(ctx, sqlDatabaseStats).Scan(&s.Version, &s.SizeBytes, &s.Connections, &s.MaxConnections,
			&s.Commits, &s.Rollbacks, &s.BlocksHit, &s.BlocksRead, &s.Deadlocks, &s.TempBytes)
		if err != nil {
			return err
		}
		var t TableStats
		rows, _ := e.pool.Query(ctx, sqlTableStats) // its error comes with the rows
		_, err = pgx.ForEachRow(rows, []any{&t.Name, &t.Rows, &t.DeadRows, &t.TotalBytes, &t.IndexBytes, &t.LastVacuumed}, func() error {
			s.Tables = append(s.Tables, t)
			t.LastVacuumed = nil
			return nil
		})
		return err
	})
	return s, err
}
