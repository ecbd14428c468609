package delivery

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// QuotaError says which bound would be passed. Its name is that of the wire (publish contract, section 2).
type QuotaError struct {
	Name  string
	Limit int
}

func (e *QuotaError) Error() string { return fmt.Sprintf("quota %s is %d", e.Name, e.Limit) }

// Bounds on what is kept, as the wire names them.
const (
	maxTopics    = "maxTopics"
	maxSchedules = "maxSchedules"
	maxEndpoints = "maxEndpointsPerTopic"
)

// checkCount refuses a row that a transaction has added to a table when there are more than limit now; 0 means no bound.
// Whoever adds one waits here for the others, so that the number is known.
func checkCount(ctx context.Context, tx pgx.Tx, table, quota string, limit int) error {
	if limit <= 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `select from setting for update`); err != nil {
		return err
	}
	var n int
	if err := tx.QueryRow(ctx, `select count(*) from `+pgx.Identifier{table}.Sanitize()).Scan(&n); err != nil {
		return err
	}
	if n > limit {
		return &QuotaError{quota, limit}
	}
	return nil
}
