package pg

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// SQLSTATE codes that the classes below name; see appendix A of the PostgreSQL
// manual.
const (
	codeUniqueViolation     = "23505"
	codeReadOnlyTransaction = "25006"
	codeIdleInTransaction   = "25P03"
	codeSerialization       = "40001"
	codeDeadlock            = "40P01"
	codeDuplicateObject     = "42710"
	codeUndefinedTable      = "42P01"
	codeDuplicateTable      = "42P07"
	codeLockNotAvailable    = "55P03"
	codeQueryCanceled       = "57014"
	codeIOError             = "58030"

	classConnection   = "08"
	classData         = "22"
	classIntegrity    = "23"
	classLimit        = "54"   // an index entry too long, an expression too deep
	classResources    = "53"   // disk full, out of memory, too many connections
	prefixIntervening = "57P0" // shutdown, crash, starting up, database dropped, idle
)

// Unavailable reports that the database could not be reached or could not do
// any work now, whatever the statement: a failed dial, a lost connection, a
// server that shuts down, starts, is read-only or lacks connections or disk, a
// deadline that passed. The same call may succeed later. It is false for a
// context that the caller cancelled.
func Unavailable(err error) bool {
	if pgErr, ok := serverError(err); ok && unavailableCode(pgErr.Code) {
		return true
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return !errors.Is(err, context.Canceled)
	}
	return errors.Is(err, context.DeadlineExceeded) ||
		!errors.Is(err, context.Canceled) && connectionLost(err)
}

func unavailableCode(code string) bool {
	return strings.HasPrefix(code, classConnection) ||
		strings.HasPrefix(code, classResources) ||
		strings.HasPrefix(code, prefixIntervening) ||
		code == codeReadOnlyTransaction ||
		code == codeIdleInTransaction ||
		code == codeQueryCanceled ||
		code == codeIOError
}

// Retryable reports that the server rolled the transaction back because of
// another one: a serialization failure, a deadlock, a lock timeout. Running the
// same transaction again may succeed at once.
func Retryable(err error) bool {
	pgErr, ok := serverError(err)
	if !ok {
		return false
	}
	switch pgErr.Code {
	case codeSerialization, codeDeadlock, codeLockNotAvailable:
		return true
	default:
		return false
	}
}

// BadData reports that the server refused a statement for its data: a value out of range, a constraint, more than fits.
// The same data will be refused again.
func BadData(err error) bool {
	pgErr, ok := serverError(err)
	if !ok {
		return false
	}
	switch pgErr.Code[:min(2, len(pgErr.Code))] {
	case classData, classIntegrity, classLimit:
		return true
	default:
		return false
	}
}

// UnknownOutcome reports that the connection was lost, or a deadline or
// cancellation cut the call short, after the statement may have reached the
// server. When the statement was a COMMIT, or ran outside a transaction, it may
// have taken effect. It is false when nothing can have been sent and when the
// server answered that the statement failed.
//
// What cannot be told apart counts as unknown: a context error of the pool, as
// when no connection became free in time, and the use of a closed connection.
func UnknownOutcome(err error) bool {
	if errors.Is(err, pgconn.ErrConnClosed) {
		// pgx calls this error safe to retry, and gives it for a connection that
		// was closed before as well as for one that broke during the call.
		return true
	}
	if err == nil || pgconn.SafeToRetry(err) {
		return false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	if pgErr, ok := serverError(err); ok {
		// FATAL and PANIC end the connection, and can follow a commit that was
		// made durable but not yet answered.
		return severe(pgErr)
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || connectionLost(err)
}

func serverError(err error) (*pgconn.PgError, bool) {
	return errors.AsType[*pgconn.PgError](err)
}

func severe(err *pgconn.PgError) bool {
	severity := err.SeverityUnlocalized
	if severity == "" { // a pooler need not send it
		severity = err.Severity
	}
	return severity == "FATAL" || severity == "PANIC"
}

// connectionLost reports an error of the transport, or of a connection or pool
// that is closed already. Not any net.Error will do: a plain errno, of a file
// for example, is one.
func connectionLost(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	for _, target := range []error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded, syscall.ECONNRESET, syscall.EPIPE,
		pgconn.ErrConnClosed, puddle.ErrClosedPool,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// discards reports whether the connection that err came over must not be used
// again: it is closing, or it leads to a server that was demoted and keeps
// answering.
func discards(err *pgconn.PgError) bool {
	return severe(err) || err.Code == codeReadOnlyTransaction || strings.HasPrefix(err.Code, prefixIntervening)
}
