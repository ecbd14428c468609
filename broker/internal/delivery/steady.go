package delivery

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// These make the planner plan the statements that follow in the transaction once for a connection, and by their indexes.
// Left alone it plans the statements of the hot path anew each time, for the sizes of their arrays, which takes as long as
// they do; or it plans them for a table of tasks that is nearly empty, and keeps to reading all of it, or all that is
// leased, when it has grown. What cannot be had by an index, as the one row of settings, counts as so expensive then that
// the statement would be compiled, each time.
const (
	// sqlSteady looks rows of tables up one by one.
	sqlSteady = `
select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

	// sqlSteadyHash is for statements whose joins are between their own arrays.
	sqlSteadyHash = `
select set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'on', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`
)

// steadily runs a statement after one of those above, and calls each for every row, scanned into dest.
func steadily(ctx context.Context, q querier, steady string, dest []any, each func() error, sql string, args ...any) error {
	batch := &pgx.Batch{}
	batch.Queue(steady)
	batch.Queue(sql, args...)
	results := q.SendBatch(ctx, batch)
	_, err := results.Exec()
	if err == nil {
		var rows pgx.Rows
		if rows, err = results.Query(); err == nil {
			_, err = pgx.ForEachRow(rows, dest, each)
		}
	}
	if closing := results.Close(); err == nil {
		err = closing
	}
	return err
}
