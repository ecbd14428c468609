package api

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	"github.com/posthorn/posthorn/broker/internal/auth"
)

const (
	requestIDHeader = "X-Request-Id"
	// statusClientClosed stands in logs and metrics for a client that left before its answer. It is
	// never sent.
	statusClientClosed = 499
	// maxRequestID bounds a request id taken from a client, in bytes.
	maxRequestID = 128
)

// exchange is what is known of one request and its answer; it belongs to the request's goroutine.
type exchange struct {
	id       string
	route    *route // nil when no route matched
	status   int
	bytesIn  int64
	bytesOut int64
	held     int64 // bytes taken from the body budget
	replied  bool
	unread   bool       // a body is on its way and nobody has read it
	span     trace.Span // nil when the request is not traced
	cause    error      // why it failed, for the log; nil when the answer says it all

	caller  *auth.Caller      // who asks; nil when nobody was asked for a token, or none was accepted
	refused error             // why a token was not accepted, for the log
	audited bool              // it is an administrative action
	target  map[string]string // of that: the parameters of its path, as they were sent
}

// note keeps the first reason of a failure for the line of the request in the log.
func (ex *exchange) note(err error) {
	if ex.cause == nil {
		ex.cause = err
	}
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange {
	return r.Context().Value(exchangeKey{}).(*exchange)
}

// ServeHTTP wraps every request: request id, recovery, access log, metrics.
func (e *edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	ex := &exchange{id: requestID(r.Header.Get(requestIDHeader)), unread: r.ContentLength != 0}
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, ex))
	w.Header().Set(requestIDHeader, ex.id)
	// The deadline of an earlier answer on this connection must not cut off a 100 Continue.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})

	e.armBody(w, r)
	e.metrics.inFlight.Inc()
	defer e.linger(w, r, ex) // no part of the exchange: what that held is given back before
	defer e.end(w, r, ex, start)
	e.routed.ServeHTTP(w, r)
}

// end is deferred around every exchange. A handler that panicked before its answer is answered for; one
// that panicked later, or wants the connection closed, panics on.
func (e *edge) end(w http.ResponseWriter, r *http.Request, ex *exchange, start time.Time) {
	p := recover()
	if p != nil && p != http.ErrAbortHandler { //nolint:errorlint // a panic value, compared as net/http does
		e.log.ErrorContext(r.Context(), "panic", "request_id", ex.id, "operation", ex.operation(),
			"panic", p, "stack", string(debug.Stack()))
		p = http.ErrAbortHandler
		if !ex.replied {
			e.reply(w, r, nil, errorAnswer(http.StatusInternalServerError, internalText))
			p = nil
		}
	}
	e.bodies.give(ex.held)
	e.metrics.inFlight.Dec()
	e.finish(r, ex, time.Since(start))
	if p != nil {
		panic(p)
	}
}

// finish records one exchange in the metrics and, in one line whatever became of it, in the log. The log
// names the path template, never the path, and no header or body: names and ids of messages stay out.
func (e *edge) finish(r *http.Request, ex *exchange, took time.Duration) {
	e.metrics.observe(ex, took)
	ex.endSpan()
	if ex.audited {
		e.audit(r, ex)
	}
	level := slog.LevelInfo
	switch {
	case ex.status == http.StatusInternalServerError:
		level = slog.LevelError
	case ex.status > http.StatusInternalServerError, ex.cause != nil:
		level = slog.LevelWarn
	case ex.route != nil && ex.route.kind.has(hot):
		level = slog.LevelDebug
	}
	if !e.log.Enabled(r.Context(), level) {
		return
	}
	path := ""
	if ex.route != nil {
		path = ex.route.path
	}
	attrs := []slog.Attr{
		slog.String("request_id", ex.id),
		slog.String("operation", ex.operation()),
		slog.String("method", r.Method),
		slog.String("route", path),
		slog.Int("status", ex.status),
		slog.Float64("ms", float64(took.Microseconds())/1000),
		slog.Int64("bytes_in", ex.bytesIn),
		slog.Int64("bytes_out", ex.bytesOut),
	}
	if ex.cause != nil {
		attrs = append(attrs, slog.Any("error", ex.cause))
	}
	if ex.refused != nil {
		attrs = append(attrs, slog.Any("refused", ex.refused))
	}
	e.log.LogAttrs(r.Context(), level, "request", attrs...)
}

// operation is the operationId, or "none" when no route matched.
func (ex *exchange) operation() string {
	if ex.route == nil {
		return "none"
	}
	return ex.route.id
}

// setWriteDeadline gives a client that reads at least minBodyRate time to take an answer.
func (e *edge) setWriteDeadline(w http.ResponseWriter, n int) {
	d := e.stall + time.Duration(n/minBodyRate)*time.Second
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d))
}

// requestID keeps a client's request id when it is short and harmless in a log, and mints one
// otherwise.
func requestID(given string) string {
	if given == "" || len(given) > maxRequestID {
		return uuid.NewString()
	}
	for i := range len(given) {
		switch c := given[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '/', c == '=', c == '+', c == '@':
		default:
			return uuid.NewString()
		}
	}
	return given
}
