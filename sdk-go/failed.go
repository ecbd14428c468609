package posthorn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
)

// FailedMessage is a dead letter: a message that failed for good, with the last answer of its destination.
type FailedMessage struct {
	PublishedMessage

	DLQID          string
	ResponseStatus int         // 0 when there was no answer
	ResponseHeader http.Header // nil when there was no answer
	ResponseBody   []byte      // at most 64 KiB
}

// FailedFilter says which dead letters are meant: those that fit every field that is not empty, by any of its values. From and To
// are bounds on when they failed.
type FailedFilter struct {
	PublishedFilter

	DLQIDs   []string
	Statuses []int // of the last answer; 0 is no answer
}

func (f FailedFilter) query() url.Values {
	q := f.PublishedFilter.query()
	if len(f.DLQIDs) > 0 {
		q["dlqIds"] = f.DLQIDs
	}
	for _, status := range f.Statuses {
		q.Add("responseStatus", strconv.Itoa(status))
	}
	return q
}

// FailedOptions say which part of the dead letters is read.
type FailedOptions struct {
	FailedFilter
	Limit       int    // most dead letters, at most 100; 0 means 100
	OldestFirst bool   // default the one that failed last first
	Cursor      string // FailedPage.Cursor of the page before; empty means the beginning
}

// FailedPage is a page of the dead letters.
type FailedPage struct {
	Messages []FailedMessage
	Cursor   string // of the next page; empty at the end
}

type wireFailed struct {
	wirePublished

	DLQID              string      `json:"dlqId"`
	ResponseStatus     int         `json:"responseStatus"`
	ResponseHeader     http.Header `json:"responseHeader"`
	ResponseBody       *string     `json:"responseBody"`
	ResponseBodyBase64 []byte      `json:"responseBodyBase64"`
}

func (w wireFailed) message() FailedMessage {
	m := FailedMessage{
		PublishedMessage: w.wirePublished.message(), DLQID: w.DLQID, ResponseStatus: w.ResponseStatus, ResponseHeader: w.ResponseHeader,
		ResponseBody: w.ResponseBodyBase64,
	}
	if w.ResponseBody != nil {
		m.ResponseBody = []byte(*w.ResponseBody)
	}
	return m
}

const failedPath = "/v2/dlq"

// ListFailed reads a page of the dead letters.
func (c *Client) ListFailed(ctx context.Context, opts FailedOptions) (FailedPage, error) {
	q := opts.query()
	if opts.Limit > 0 {
		q.Set("count", strconv.Itoa(opts.Limit))
	}
	if opts.OldestFirst {
		q.Set("order", "earliestFirst")
	}
	if opts.Cursor != "" {
		q.Set("cursor", opts.Cursor)
	}
	var w struct {
		Cursor   string       `json:"cursor"`
		Messages []wireFailed `json:"messages"`
	}
	if err := c.do(ctx, call{op: "listFailed", method: http.MethodGet, path: failedPath, query: q, repeatable: true}, &w); err != nil {
		return FailedPage{}, err
	}
	page := FailedPage{Cursor: w.Cursor, Messages: make([]FailedMessage, len(w.Messages))}
	for i, m := range w.Messages {
		page.Messages[i] = m.message()
	}
	return page, nil
}

// GetFailed reads a dead letter. The error matches ErrNotFound when there is none of that id.
func (c *Client) GetFailed(ctx context.Context, dlqID string) (FailedMessage, error) {
	var w wireFailed
	err := c.do(ctx, call{op: "getFailed", method: http.MethodGet, path: failedPath + "/" + segment(dlqID), repeatable: true}, &w)
	if err != nil {
		return FailedMessage{}, err
	}
	return w.message(), nil
}

// DeleteFailed deletes a dead letter. The error matches ErrNotFound when there is none of that id. It is not repeated after an
// unknown outcome.
func (c *Client) DeleteFailed(ctx context.Context, dlqID string) error {
	return c.do(ctx, call{op: "deleteFailed", method: http.MethodDelete, path: failedPath + "/" + segment(dlqID)}, &struct{}{})
}

// FailedSelection says which dead letters are deleted or retried, the oldest first.
type FailedSelection struct {
	FailedFilter
	Limit int  // most dead letters, at most 100; 0 means all that fit to delete, and 100, or all of DLQIDs, to retry
	All   bool // an empty filter means all dead letters; without All it is refused
}

func (s FailedSelection) query() (url.Values, error) {
	q := s.FailedFilter.query()
	if len(q) == 0 && !s.All {
		return nil, errors.New("the filter is empty; set All to mean all dead letters")
	}
	if s.Limit > 0 {
		q.Set("count", strconv.Itoa(s.Limit))
	}
	return q, nil
}

// DeleteFailedMany deletes dead letters and returns how many there were. It is not repeated after an unknown outcome.
func (c *Client) DeleteFailedMany(ctx context.Context, s FailedSelection) (int, error) {
	q, err := s.query()
	if err != nil {
		return 0, fmt.Errorf("posthorn: deleteFailedMany: %w", err)
	}
	var w struct{ Deleted int }
	err = c.do(ctx, call{op: "deleteFailedMany", method: http.MethodDelete, path: failedPath, query: q}, &w)
	return w.Deleted, err
}

// RetryFailed publishes a dead letter as a new message and removes it. Of changes, which may be nil, the fields that are set
// override those of the message, header fields one by one; Destination, Body, ContentType and the deduplication id have no
// meaning. The error matches ErrNotFound when there is no dead letter of that id. It is not repeated after an unknown
// outcome; then GetFailed tells whether it was retried.
func (c *Client) RetryFailed(ctx context.Context, dlqID string, changes *Publication) (Published, error) {
	header, err := retryHeader(changes)
	if err != nil {
		return Published{}, fmt.Errorf("posthorn: retryFailed: %w", err)
	}
	var w Published
	err = c.do(ctx, call{op: "retryFailed", method: http.MethodPost, path: failedPath + "/retry/" + segment(dlqID), header: header}, &w)
	return w, err
}

// RetryFailedMany publishes dead letters as RetryFailed does and returns the new messages: in the order of DLQIDs when those were
// given, without what is not there. It is not repeated after an unknown outcome; what was retried then is no longer
// listed.
func (c *Client) RetryFailedMany(ctx context.Context, s FailedSelection, changes *Publication) ([]Published, error) {
	q, err := s.query()
	if err != nil {
		return nil, fmt.Errorf("posthorn: retryFailedMany: %w", err)
	}
	header, err := retryHeader(changes)
	if err != nil {
		return nil, fmt.Errorf("posthorn: retryFailedMany: %w", err)
	}
	var w struct {
		Responses []Published `json:"responses"`
	}
	err = c.do(ctx, call{op: "retryFailedMany", method: http.MethodPost, path: failedPath + "/retry", query: q, header: header}, &w)
	return w.Responses, err
}

func retryHeader(changes *Publication) (http.Header, error) {
	if changes == nil {
		return nil, nil
	}
	return changes.headers()
}
