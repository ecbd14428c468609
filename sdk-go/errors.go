package posthorn

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// What an [*APIError] means, for errors.Is.
var (
	// ErrUnauthorized is matched by an answer of 401: Options.Token is missing, unknown or expired.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden is matched by an answer of 403: the token is valid, but its role does not suffice.
	ErrForbidden = errors.New("forbidden")
	// ErrNotFound is matched by an answer of 404: GetQueue of a queue that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrRequestTooLarge is matched by an answer of 413: the body exceeds 64 MiB. Push less at once.
	ErrRequestTooLarge = errors.New("request too large")
	// ErrUnavailable is matched by an answer of 503: the broker cannot reach its database.
	ErrUnavailable = errors.New("broker unavailable")
)

// ErrResponseTooLarge is the failure of an answer longer than Options.MaxResponseBytes.
var ErrResponseTooLarge = errors.New("response too large")

// Why the broker refused one acknowledgment, for errors.Is on the errors of Ack, AckBatch and Extend.
var (
	// ErrLeaseExpired: the lease ended or was never there. The messages are, or will be, delivered
	// to somebody else; what this consumer did with them may be done again.
	ErrLeaseExpired = errors.New("invalid or expired lease")
	// ErrAlreadyCommitted: a failed, retry or dlq for a message that the group has already passed.
	ErrAlreadyCommitted = errors.New("already committed")
	// ErrUnresolvable: the partition holds no message with this transaction id, or it is too old to
	// be resolved.
	ErrUnresolvable = errors.New("unresolvable")
	// ErrConsumerNotFound: the group has no cursor on this partition.
	ErrConsumerNotFound = errors.New("consumer not found")
	// ErrNotCommitted: the same call said failed, retry or dlq of an earlier message of the
	// partition, so this one will be delivered again.
	ErrNotCommitted = errors.New("not committed")
	// ErrDLQRejected: the message cannot be dead-lettered because its payload is gone.
	ErrDLQRejected = errors.New("dlq rejected")
)

// APIError is an answer outside 2xx.
type APIError struct {
	Status     int           // the HTTP status
	Message    string        // the "error" text of the body, else the start of the body or the status text
	Code       string        // the "code" of the body, for example "no_such_route"; usually empty
	RequestID  string        // the X-Request-Id header; empty when there is none
	RetryAfter time.Duration // what the Retry-After header asks for; 0 when there is none

	body []byte // some operations answer a full body beside an error status
}

func (e *APIError) Error() string {
	text := fmt.Sprintf("%d %s", e.Status, e.Message)
	if e.RequestID != "" {
		text += " (request id " + e.RequestID + ")"
	}
	return text
}

// Is reports whether the status is the one that target stands for.
func (e *APIError) Is(target error) bool {
	switch target {
	case ErrUnauthorized:
		return e.Status == http.StatusUnauthorized
	case ErrForbidden:
		return e.Status == http.StatusForbidden
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrRequestTooLarge:
		return e.Status == http.StatusRequestEntityTooLarge
	case ErrUnavailable:
		return e.Status == http.StatusServiceUnavailable
	case ErrStreamChanged:
		return e.Status == http.StatusConflict
	}
	return false
}

func newAPIError(status int, header http.Header, body []byte) *APIError {
	e := &APIError{
		Status:     status,
		RequestID:  header.Get("X-Request-Id"),
		RetryAfter: parseRetryAfter(header.Get("Retry-After")),
		body:       body,
	}
	var wire struct {
		Error string `json:"error"`
		Code  string `json:"code"`
	}
	if json.Unmarshal(body, &wire) == nil && wire.Error != "" {
		e.Message, e.Code = wire.Error, wire.Code
		return e
	}
	// Proxies answer in HTML or plain text; its first line is more help than nothing.
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	if line = strings.ToValidUTF8(line, "\uFFFD"); len(line) > 200 {
		line = strings.ToValidUTF8(line[:200], "") + "..."
	}
	e.Message = orDefault(line, orDefault(http.StatusText(status), "unknown status"))
	return e
}

// parseRetryAfter reads both forms of RFC 9110, section 10.2.3. What it cannot read asks for nothing.
func parseRetryAfter(value string) time.Duration {
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// AckItemError is why the broker refused one acknowledgment. It matches the sentinel errors by errors.Is.
type AckItemError struct {
	Index         int    // the position in the call
	TransactionID string // of the message
	Message       string // the broker's text
}

func (e *AckItemError) Error() string {
	return fmt.Sprintf("acknowledgment %d (%s): %s", e.Index, e.TransactionID, e.Message)
}

// Is reports whether the broker's text is the one that target stands for. The broker starts its
// text with the contract's words and may add details behind them.
func (e *AckItemError) Is(target error) bool {
	switch target {
	case ErrLeaseExpired, ErrAlreadyCommitted, ErrUnresolvable, ErrConsumerNotFound, ErrNotCommitted, ErrDLQRejected:
		return strings.HasPrefix(e.Message, target.Error())
	}
	return false
}

// AckError lists the acknowledgments of one call that were refused; the others were carried out.
type AckError struct {
	Items []*AckItemError // in request order, at least one
}

func (e *AckError) Error() string {
	return fmt.Sprintf("posthorn: ackBatch: %d refused, first: %v", len(e.Items), e.Items[0])
}

// Unwrap lets errors.Is and errors.As reach each refusal.
func (e *AckError) Unwrap() []error {
	errs := make([]error, len(e.Items))
	for i, item := range e.Items {
		errs[i] = item
	}
	return errs
}

// PushError says that some items of a push are not known to be stored. The items that are missing
// in it were accepted (queued, duplicate or buffered).
type PushError struct {
	// Indices are the positions of the items in the call, ascending.
	Indices []int

	// Items are the same items, with the transaction ids that were sent. To push them again is
	// safe: whatever was stored after all is answered as a duplicate.
	Items []Item

	// Err is what ended the last attempt: an *APIError, a failure of the connection, the context's
	// error. Nil means that the broker answered every item and that these are "failed".
	Err error
}

func (e *PushError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("posthorn: push: failed for %d items, first: items[%d]", len(e.Indices), e.Indices[0])
	}
	return fmt.Sprintf("posthorn: push: %d items not known to be stored: %v", len(e.Indices), e.Err)
}

func (e *PushError) Unwrap() error { return e.Err }
