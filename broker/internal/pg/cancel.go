package pg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// cancelGrace is how long a cancelled statement has to answer before its connection is given up.
const cancelGrace = time.Second

// cancelSettles is how long after a cancel request has been taken it may still reach the server process:
// used at once, the connection could see its next statement cancelled instead.
const cancelSettles = 100 * time.Millisecond

// canceller cancels a statement at the server when its context ends.
//
// It lets each cancel request end by itself, like libpq does and unlike the handler of pgconn, which
// hangs up as soon as the statement has failed. That is usually before the other end is done with the
// request, and PgBouncer 1.18 dies of it.
type canceller struct {
	conn *pgconn.PgConn
	done chan struct{}
}

// HandleCancel implements ctxwatch.Handler.
func (c *canceller) HandleCancel(context.Context) {
	deadline := time.Now().Add(cancelGrace)
	_ = c.conn.Conn().SetDeadline(deadline) // if it is broken, the statement fails anyway
	done := make(chan struct{})
	c.done = done
	go func() { //nolint:gosec,contextcheck // the request outlives the context, whose end it announces
		defer close(done)
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		_ = c.conn.CancelRequest(ctx) // what is not cancelled runs into the deadline
		<-time.After(cancelSettles)
	}()
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler.
func (c *canceller) HandleUnwatchAfterCancel() {
	<-c.done
	_ = c.conn.Conn().SetDeadline(time.Time{})
}
