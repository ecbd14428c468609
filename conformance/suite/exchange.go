package suite

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Exchange is one HTTP request and its response, as attached to a failure.
type Exchange struct {
	Operation       string            `json:"operation,omitempty"`
	Method          string            `json:"method"`
	URL             string            `json:"url"` // path and query
	RequestBody     string            `json:"requestBody,omitempty"`
	Status          int               `json:"status,omitempty"`
	ResponseHeaders map[string]string `json:"responseHeaders,omitempty"`
	ResponseBody    string            `json:"responseBody,omitempty"`
	Error           string            `json:"error,omitempty"`
	DurationSeconds float64           `json:"durationSeconds"`
}

// Violation is a request or response that does not satisfy the API description.
type Violation struct {
	Operation string `json:"operation"`
	Direction string `json:"direction"` // request or response
	Message   string `json:"message"`
}

func (v Violation) String() string {
	return fmt.Sprintf("the %s of %s violates the API description: %s", v.Direction, v.Operation, v.Message)
}

// maxExcerpt bounds a body in a report. Bodies of the size specs are a hundred bytes to a few kilobytes; the few
// that are larger are all padding.
const maxExcerpt = 4096

// maxExchanges bounds the exchanges kept for one spec: the last ones, which led to the failure.
const maxExchanges = 40

func excerpt(body []byte) string {
	cut := ""
	if len(body) > maxExcerpt {
		cut = fmt.Sprintf("… (%d bytes)", len(body))
		body = body[:maxExcerpt]
	}
	text := string(body)
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text + cut
}

// recorder keeps the exchanges and violations of the spec that is running.
type recorder struct {
	mu         sync.Mutex
	exchanges  []Exchange
	violations []Violation
}

func (r *recorder) exchange(operation string, request *http.Request, requestBody []byte, response *http.Response,
	responseBody []byte, err error, took time.Duration,
) {
	exchange := Exchange{
		Operation:       operation,
		Method:          request.Method,
		URL:             request.URL.RequestURI(),
		RequestBody:     excerpt(requestBody),
		ResponseBody:    excerpt(responseBody),
		DurationSeconds: took.Seconds(),
	}
	if response != nil {
		exchange.Status = response.StatusCode
		exchange.ResponseHeaders = map[string]string{}
		for name := range response.Header {
			exchange.ResponseHeaders[name] = response.Header.Get(name)
		}
	}
	if err != nil {
		exchange.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exchanges = append(r.exchanges, exchange)
	if excess := len(r.exchanges) - maxExchanges; excess > 0 {
		r.exchanges = append(r.exchanges[:0], r.exchanges[excess:]...)
	}
}

func (r *recorder) violation(operation, direction string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, Violation{Operation: operation, Direction: direction, Message: err.Error()})
}

func (r *recorder) snapshot() ([]Exchange, []Violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Exchange(nil), r.exchanges...), append([]Violation(nil), r.violations...)
}
