package posthorn

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"
	"unicode/utf8"
)

// maxErrorBody bounds the body of an answer outside 2xx. It is large enough for the item array of a
// push of 100 000 items that failed under maintenance.
const maxErrorBody = 32 << 20

// call is one operation as it goes over the wire.
type call struct {
	op     string // operationId, for error texts
	method string
	path   string // escaped, below the base URL
	query  url.Values
	body   []byte      // nil means none
	header http.Header // beside the client's own, or instead of them; a nil value means that the header is not sent

	wait       time.Duration // how long the broker may hold the answer back, on top of Client.timeout
	repeatable bool          // repeating it after an unknown outcome does no harm
}

// do sends a call, repeats it as the policy allows, and decodes a 2xx body into out. A 204 leaves out
// as it is.
func (c *Client) do(ctx context.Context, call call, out any) error {
	retry := c.newRetrier()
	for {
		err := c.once(ctx, call, out)
		if err == nil {
			return nil
		}
		if !shouldRetry(err, call.repeatable) || !retry.wait(ctx, err) {
			return fmt.Errorf("posthorn: %s: %w", call.op, withContext(ctx, err))
		}
	}
}

// withContext adds the context's error where it ended a series of attempts between two of them.
func withContext(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("%w; the last attempt: %w", ctx.Err(), err)
}

// once is a single attempt of do. Its error does not name the operation.
func (c *Client) once(ctx context.Context, call call, out any) error {
	status, body, err := c.attempt(ctx, call)
	if err != nil || status == http.StatusNoContent {
		return err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return &answerError{fmt.Errorf("answer of status %d: %w", status, err)}
	}
	return nil
}

// answerError is an answer that does not fit the contract: repeating the call would not help.
type answerError struct{ err error }

func (e *answerError) Error() string { return e.err.Error() }
func (e *answerError) Unwrap() error { return e.err }

// attempt sends the call once and reads the whole answer. An answer outside 2xx is an *APIError.
func (c *Client) attempt(ctx context.Context, call call) (int, []byte, error) {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout+call.wait)
		defer cancel()
	}
	req, err := c.newRequest(ctx, call)
	if err != nil {
		return 0, nil, &answerError{err}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()

	if resp.StatusCode/100 != 2 {
		// A body that breaks off still leaves a status worth reporting.
		body, _ := io.ReadAll(io.LimitReader(resp.Body, min(c.maxBody, maxErrorBody)))
		return resp.StatusCode, nil, newAPIError(resp.StatusCode, resp.Header, body)
	}
	body, err := readBounded(resp, c.maxBody)
	return resp.StatusCode, body, err
}

func (c *Client) newRequest(ctx context.Context, call call) (*http.Request, error) {
	target := c.base + call.path
	if len(call.query) > 0 {
		target += "?" + call.query.Encode()
	}
	var body io.Reader
	switch {
	case call.body != nil:
		body = bytes.NewReader(call.body)
	case !call.repeatable:
		// net/http repeats a GET by itself when a kept-alive connection breaks before the answer.
		// It cannot when it does not know how to read the body again, even an empty one, which it
		// then does not send.
		body = struct{ io.Reader }{http.NoBody}
	}
	req, err := http.NewRequestWithContext(ctx, call.method, target, body)
	if err != nil {
		return nil, err
	}
	if call.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.userAgent)
	if parent, _ := ctx.Value(traceParentKey{}).(string); parent != "" {
		req.Header.Set("Traceparent", parent)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for name, values := range call.header {
		if values == nil {
			delete(req.Header, name)
			continue
		}
		req.Header[http.CanonicalHeaderKey(name)] = values
	}
	return req, nil
}

func readBounded(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrResponseTooLarge, resp.ContentLength, limit)
	}
	var buf bytes.Buffer
	if resp.ContentLength > 0 {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(resp.Body, limit+1)); err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	if int64(buf.Len()) > limit {
		return nil, fmt.Errorf("%w: the limit is %d bytes", ErrResponseTooLarge, limit)
	}
	return buf.Bytes(), nil
}

// shouldRetry decides by what an attempt proves: nothing was done, something may have been done
// (repeat only what is repeatable), or repeating cannot help.
func shouldRetry(err error, repeatable bool) bool {
	if api, ok := errors.AsType[*APIError](err); ok {
		switch api.Status {
		case http.StatusTooManyRequests:
			return true
		case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return repeatable
		}
		return false
	}
	if _, ok := errors.AsType[*answerError](err); ok || errors.Is(err, ErrResponseTooLarge) {
		return false
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return false
	}
	if network, ok := errors.AsType[*net.OpError](err); ok && network.Op == "dial" {
		return true
	}
	return repeatable
}

// retrier counts the attempts of one call and paces them.
type retrier struct {
	policy   RetryPolicy
	attempts int // failed so far
}

func (c *Client) newRetrier() *retrier { return &retrier{policy: c.retry} }

// wait takes the failure of an attempt and sleeps before the next one. It reports false when there
// must be no next one: the attempts are used up, the context has ended or would end first.
func (r *retrier) wait(ctx context.Context, cause error) bool {
	r.attempts++
	if r.attempts >= r.policy.MaxAttempts || ctx.Err() != nil {
		return false
	}
	delay, ok := r.policy.delay(r.attempts, cause)
	if !ok {
		return false
	}
	if deadline, has := ctx.Deadline(); has && time.Until(deadline) <= delay {
		return false
	}
	return sleep(ctx, delay)
}

// delay is the pause after the given number of failures in a row. It reports false when the broker
// asks for more patience than the policy has.
func (p RetryPolicy) delay(failures int, cause error) (time.Duration, bool) {
	d := p.MaxDelay
	if shift := failures - 1; shift < 30 && p.BaseDelay < p.MaxDelay>>shift {
		d = p.BaseDelay << shift
	}
	d = d/2 + jitter(d/2)
	if api, ok := errors.AsType[*APIError](cause); ok && api.RetryAfter > 0 {
		if api.RetryAfter > p.MaxRetryAfter {
			return 0, false
		}
		// Everybody was told the same time; the jitter keeps them from coming back together.
		d = max(d, api.RetryAfter+jitter(api.RetryAfter/10))
	}
	return d, true
}

// jitter is a random duration up to d.
func jitter(d time.Duration) time.Duration {
	return rand.N(d + 1) //nolint:gosec // it spreads load, nobody gains by guessing it
}

// sleep reports whether d passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// segment escapes a name as one path segment. "." and ".." are escaped too, because some proxies
// resolve them before they decode anything.
func segment(name string) string {
	switch name {
	case ".":
		return "%2E"
	case "..":
		return "%2E%2E"
	}
	return url.PathEscape(name)
}

// jsonWriter collects a body of JSON values, in which <, > and & are not escaped.
type jsonWriter struct {
	buf bytes.Buffer
	enc *json.Encoder
}

func newJSONWriter() *jsonWriter {
	w := &jsonWriter{}
	w.enc = json.NewEncoder(&w.buf)
	w.enc.SetEscapeHTML(false)
	return w
}

func (w *jsonWriter) value(v any) error {
	if err := w.enc.Encode(v); err != nil {
		return err
	}
	w.buf.Truncate(w.buf.Len() - 1) // the encoder's newline
	return nil
}

func (w *jsonWriter) name(field, value string) error {
	if err := checkUTF8(field, value); err != nil {
		return err
	}
	return w.value(value)
}

// checkUTF8 refuses what encoding/json would replace with U+FFFD, which would merge distinct names.
func checkUTF8(field, value string) error {
	if !utf8.ValidString(value) {
		return fmt.Errorf("%s %q is not valid UTF-8", field, value)
	}
	return nil
}

// wholeSeconds rounds away from zero, so that nothing ends earlier than asked and only 0 becomes 0.
func wholeSeconds(d time.Duration) int64 {
	seconds := int64(d / time.Second)
	switch rest := d % time.Second; {
	case rest > 0:
		return seconds + 1
	case rest < 0:
		return seconds - 1
	}
	return seconds
}
