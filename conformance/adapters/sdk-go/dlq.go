package sdkgo

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) failedOperations() map[string]operation {
	return map[string]operation{
		"listFailed":        p.listFailed,
		"getFailed":         p.getFailed,
		"deleteFailed":      p.deleteFailed,
		"deleteFailedMany":  p.deleteFailedMany,
		"retryFailed":       p.retryFailed,
		"retryFailedMany":   p.retryFailedMany,
		"getSigningKeys":    p.keys(p.client.GetSigningKeys),
		"rotateSigningKeys": p.keys(p.client.RotateSigningKeys),
	}
}

func failedFields(m posthorn.FailedMessage) fields {
	f := publishedFields(m.PublishedMessage)
	f["dlqId"], f["responseStatus"] = m.DLQID, m.ResponseStatus
	if m.ResponseHeader != nil {
		f["responseHeader"] = m.ResponseHeader
	}
	f.bytes("responseBody", m.ResponseBody)
	return f
}

func failedFilter(q url.Values, others ...string) (f posthorn.FailedFilter, err error) {
	f.PublishedFilter, err = publishedFilter(q, append(others, "dlqIds", "responseStatus")...)
	f.DLQIDs = q["dlqIds"]
	for _, text := range split(q["responseStatus"]) {
		status, err := strconv.Atoi(text)
		if err != nil {
			return f, fmt.Errorf("the library takes a number for responseStatus: %w", err)
		}
		f.Statuses = append(f.Statuses, status)
	}
	return f, err
}

func (p *peer) listFailed(ctx context.Context, args suite.Args) (answer, error) {
	q := args.Query
	opts := posthorn.FailedOptions{Cursor: q.Get("cursor"), OldestFirst: q.Get("order") == "earliestFirst" || q.Get("earliestFirst") == "true"}
	var err error
	if opts.FailedFilter, err = failedFilter(q, "cursor", "order", "earliestFirst", "count"); err != nil {
		return answer{}, err
	}
	if err := number(q, "count", &opts.Limit); err != nil {
		return answer{}, err
	}
	page, err := p.client.ListFailed(ctx, opts)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	messages := make([]fields, len(page.Messages))
	for i, m := range page.Messages {
		messages[i] = failedFields(m)
	}
	body := fields{"messages": messages}
	body.text("cursor", page.Cursor)
	return answer{http.StatusOK, body}, nil
}

func (p *peer) getFailed(ctx context.Context, args suite.Args) (answer, error) {
	m, err := p.client.GetFailed(ctx, args.Path["dlqId"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, failedFields(m)}, nil
}

func (p *peer) deleteFailed(ctx context.Context, args suite.Args) (answer, error) {
	if err := p.client.DeleteFailed(ctx, args.Path["dlqId"]); err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]int{"deleted": 1}}, nil
}

// failedSelection translates the selectors of a bulk call.
func failedSelection(args suite.Args) (posthorn.FailedSelection, error) {
	s := posthorn.FailedSelection{All: true}
	selectors, err := withBody(args)
	if err != nil {
		return s, err
	}
	if s.FailedFilter, err = failedFilter(selectors, "count"); err != nil {
		return s, err
	}
	return s, number(selectors, "count", &s.Limit)
}

func (p *peer) deleteFailedMany(ctx context.Context, args suite.Args) (answer, error) {
	selection, err := failedSelection(args)
	if err != nil {
		return answer{}, err
	}
	n, err := p.client.DeleteFailedMany(ctx, selection)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]int{"deleted": n}}, nil
}

// changes are what the headers of a retry change.
func changes(header http.Header) *posthorn.Publication {
	if len(header) == 0 {
		return nil
	}
	p := publication("", header, nil)
	return &p
}

func (p *peer) retryFailed(ctx context.Context, args suite.Args) (answer, error) {
	m, err := p.client.RetryFailed(ctx, args.Path["dlqId"], changes(args.Header))
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusCreated, publishedResult(m)}, nil
}

func (p *peer) retryFailedMany(ctx context.Context, args suite.Args) (answer, error) {
	selection, err := failedSelection(args)
	if err != nil {
		return answer{}, err
	}
	list, err := p.client.RetryFailedMany(ctx, selection, changes(args.Header))
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	responses := make([]fields, len(list))
	for i, m := range list {
		responses[i] = publishedResult(m)
	}
	return answer{http.StatusCreated, fields{"responses": responses}}, nil
}

// keys is one of the two operations that answer the signing keys.
func (p *peer) keys(call func(context.Context) (posthorn.SigningKeys, error)) operation {
	return func(ctx context.Context, _ suite.Args) (answer, error) {
		keys, err := call(ctx)
		if err != nil {
			return answer{}, err
		}
		return answer{http.StatusOK, map[string]string{"current": keys.Current, "next": keys.Next}}, nil
	}
}
