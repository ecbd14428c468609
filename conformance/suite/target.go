package suite

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/onsi/gomega"
)

// Target is a spec's view of the implementation under test. Its methods end the spec when something fails that
// the spec did not ask about.
type Target struct {
	session  *Session
	spec     *Spec
	recorder *recorder
	wire     *wirePeer
	peer     Peer
	cleanups []func(context.Context)
}

func (s *Session) newTarget(spec *Spec) *Target {
	t := &Target{session: s, spec: spec, recorder: &recorder{}}
	t.wire = &wirePeer{base: s.base, token: s.Token(RoleAdmin), client: s.client, recorder: t.recorder}
	t.peer = t.wire
	if s.through != nil && !spec.wireOnly {
		t.peer = s.through
		s.through.proxy.recorder.Store(t.recorder)
	}
	return t
}

// Call performs one operation and returns what the target answered, whatever the status. A call without an answer
// fails the spec.
func (t *Target) Call(ctx context.Context, operationID string, args Args) Outcome {
	outcome, err := t.Try(ctx, operationID, args)
	if err != nil {
		Failf(1, "%s brought no answer: %v", operationID, err)
	}
	return outcome
}

// Try is Call for specs that expect no answer, or that call from another goroutine: it never ends the spec, but
// for an operation that the client library does not offer.
func (t *Target) Try(ctx context.Context, operationID string, args Args) (Outcome, error) {
	peer := t.peer
	switch operationID {
	case "getClock", "advanceClock", "setFaults": // the suite's own business, not a library's
		peer = t.wire
	}
	outcome, err := peer.Call(ctx, operationID, args)
	if unsupported, ok := errors.AsType[*unsupportedError](err); ok {
		panic(skipped{status: Unsupported, reason: unsupported.Error()})
	}
	return outcome, err
}

// Raw sends a request that the spec composed, over HTTP whatever the peer. Only specs marked [WireOnly] use it to
// test the target.
func (t *Target) Raw(ctx context.Context, request Request) Answer {
	answer, err := t.wire.raw(ctx, request)
	if err != nil {
		Failf(1, "no answer: %v", err)
	}
	return answer
}

// Bytes writes bytes to a fresh connection and reads one HTTP response, for requests that no HTTP client would
// send. The caller writes the request line and headers; {host} in them stands for the target's host, and the token is
// added when there is one.
func (t *Target) Bytes(ctx context.Context, method, text string) Answer {
	return t.BytesAs(ctx, t.wire.token, method, text)
}

// BytesAs is Bytes with a token of the caller's choice; "" means none.
func (t *Target) BytesAs(ctx context.Context, token, method, text string) Answer {
	answer, err := t.bytes(ctx, token, method, text)
	if err != nil {
		Failf(1, "no answer: %v", err)
	}
	return answer
}

func (t *Target) bytes(ctx context.Context, token, method, text string) (Answer, error) {
	base, err := url.Parse(t.session.base)
	if err != nil {
		return Answer{}, fmt.Errorf("target: %w", err)
	}
	address := base.Host
	if base.Port() == "" {
		address = net.JoinHostPort(base.Hostname(), base.Scheme)
	}
	var dial interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	} = &net.Dialer{}
	if base.Scheme == "https" {
		dial = &tls.Dialer{}
	}
	conn, err := dial.DialContext(ctx, "tcp", address)
	if err != nil {
		return Answer{}, fmt.Errorf("dial: %w", err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	line, rest, _ := strings.Cut(strings.ReplaceAll(text, "{host}", base.Host), "\r\n")
	head := line + "\r\n"
	if token != "" {
		head += "Authorization: Bearer " + token + "\r\n"
	}
	if _, err := io.WriteString(conn, head+rest); err != nil {
		return Answer{}, fmt.Errorf("write request: %w", err)
	}
	request := &http.Request{Method: method, URL: base}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return Answer{}, fmt.Errorf("read response: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return Answer{}, fmt.Errorf("read response: %w", err)
	}
	t.recorder.exchange("", request, []byte(text), response, body, nil, 0)
	return Answer{
		Status: response.StatusCode, Header: response.Header, ContentLength: response.ContentLength, Body: body,
	}, nil
}

// Queue returns the name of a queue that nobody has used. The target may keep it after the run.
func (t *Target) Queue() string {
	return fmt.Sprintf("%s-%d", t.session.prefix, t.session.names.Add(1))
}

// Origin is the target's own origin, as a browser names it.
func (t *Target) Origin() string {
	base, err := url.Parse(t.session.base)
	if err != nil {
		Failf(1, "target: %v", err)
	}
	return base.Scheme + "://" + base.Host
}

// Unique returns a word that no other spec uses, for namespaces, tasks and groups. It has no dots.
func (t *Target) Unique(word string) string {
	return fmt.Sprintf("%s-%s-%d", word, t.session.prefix, t.session.names.Add(1))
}

// Has says whether the tester declared the capability.
func (t *Target) Has(capability string) bool { return t.session.Has(capability) }

// Patience bounds waits for what the target does by itself.
func (t *Target) Patience() time.Duration { return t.session.settings.Patience }

// Advance moves the target's test clock forward by d, which must be positive.
func (t *Target) Advance(ctx context.Context, d time.Duration) {
	body, err := json.Marshal(map[string]string{"advance": d.String()})
	if err != nil {
		Failf(1, "encode the clock's advance: %v", err)
	}
	outcome, err := t.Try(ctx, "advanceClock", Args{Body: body})
	if err != nil {
		Failf(1, "advance the test clock: %v", err)
	}
	if outcome.Status != http.StatusOK {
		Failf(1, "the declared capability clock does not work: POST /testing/clock answered %d %s",
			outcome.Status, excerpt(outcome.Body))
	}
}

// Window is a length for windows and leases that a spec configures and then outlasts with [Target.Elapse]: long
// with the test clock, so that a slow machine does not outlast it by accident, short without.
func (t *Target) Window() time.Duration {
	if t.Has(CapabilityClock) {
		return 120 * time.Second
	}
	return 3 * time.Second
}

// Elapse lets d pass at the target: with the test clock at once, otherwise by waiting.
func (t *Target) Elapse(ctx context.Context, d time.Duration) {
	if t.Has(CapabilityClock) {
		t.Advance(ctx, d)
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		Failf(1, "interrupted while %s passed: %v", d, context.Cause(ctx))
	}
}

// Cleanup runs f when the spec has ended, however it did, last registered first.
func (t *Target) Cleanup(f func(ctx context.Context)) { t.cleanups = append(t.cleanups, f) }

func (t *Target) runCleanups(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, DefaultPatience)
	defer cancel()
	for len(t.cleanups) > 0 {
		last := t.cleanups[len(t.cleanups)-1]
		t.cleanups = t.cleanups[:len(t.cleanups)-1]
		_ = capture(func() { last(ctx) }) // what a clean-up leaves behind does not change the verdict
	}
}

// Skipf ends the spec as untested, with a reason.
func (t *Target) Skipf(format string, args ...any) {
	panic(skipped{status: Untested, reason: fmt.Sprintf(format, args...)})
}

// failure and skipped are what ends a spec's body early: they are thrown as panics, and caught by capture.
type failure struct{ message, location string }

type skipped struct {
	status Status
	reason string
}

// Failf ends the running spec as failed. skip counts stack frames above the caller, so that helpers can blame the
// spec that called them.
func Failf(skip int, format string, args ...any) {
	fail(fmt.Sprintf(format, args...), skip+1)
}

func fail(message string, callerSkip ...int) {
	skip := 1
	if len(callerSkip) > 0 {
		skip += callerSkip[0]
	}
	panic(failure{message: message, location: location(skip + 1)})
}

// location finds the innermost frame that belongs to a spec's source, starting skip frames up.
func location(skip int) string {
	_, file, line, ok := runtime.Caller(skip)
	if !ok {
		return ""
	}
	parts := strings.Split(file, "/")
	return fmt.Sprintf("%s:%d", strings.Join(parts[max(0, len(parts)-2):], "/"), line)
}

func init() {
	// Gomega's assertions are package functions with one global handler. Every spec runs under capture, in Ginkgo
	// or not, so that this one serves all sessions of the process.
	gomega.RegisterFailHandler(fail)
}

// capture runs body and returns what ended it early: nil, a failure, a skipped, or any other panic with its stack.
func capture(body func()) (ended any) {
	defer func() {
		ended = recover()
		switch ended.(type) {
		case nil, failure, skipped:
		default:
			ended = fmt.Sprintf("%v\n%s", ended, debug.Stack())
		}
	}()
	body()
	return nil
}
