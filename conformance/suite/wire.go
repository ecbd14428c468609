package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

// wirePeer speaks HTTP to the target and checks both directions against the API description.
type wirePeer struct {
	base     string // the target's URL without a trailing slash
	token    string // shown with every request that has no Authorization of its own; "" means none
	client   *http.Client
	recorder *recorder
}

// Request is an HTTP request that a spec composes itself, usually to send bad input. Only its response is checked
// against the API description.
type Request struct {
	Operation string      // operation whose responses are expected; "" means that no operation is addressed
	Method    string      // "" means the operation's method, or GET
	Target    string      // path and query as sent, escapes included; "" means the operation's path
	Header    http.Header // extra headers; nil means none. An Authorization without values sends no token
	Body      io.Reader   // nil means no body
	Length    int64       // Content-Length to declare; 0 means what Body tells, -1 chunked
}

// Answer is the full HTTP response to a [Request].
type Answer struct {
	Status        int
	Header        http.Header
	ContentLength int64 // as declared; -1 when not declared
	Body          []byte
}

// maxResponse bounds what the suite reads of one response: twice the largest body a push may have.
const maxResponse = 128 << 20

// Call implements [Peer].
func (p *wirePeer) Call(ctx context.Context, operationID string, args Args) (Outcome, error) {
	operation, ok := description().Operation(operationID)
	if !ok {
		return Outcome{}, fmt.Errorf("the API description has no operation %q", operationID)
	}
	target, err := expand(operation, args.Path)
	if err != nil {
		return Outcome{}, fmt.Errorf("operation %s: %w", operationID, err)
	}
	if len(args.Query) > 0 {
		mark := "?"
		if strings.Contains(target, "?") {
			mark = "&"
		}
		target += mark + args.Query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, operation.Method, p.base+target, bodyReader(args.Body))
	if err != nil {
		return Outcome{}, fmt.Errorf("operation %s: %w", operationID, err)
	}
	if args.Body != nil && operation.RequestSchema() != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(request.Header, args.Header)
	if err := operation.CheckRequest(request, args.Path, args.Body); err != nil {
		p.recorder.violation(operationID, "request", err)
	}
	answer, err := p.do(request, operation, args.Body)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Status: answer.Status, Body: answer.Body}, nil
}

// raw sends a request that a spec composed.
func (p *wirePeer) raw(ctx context.Context, r Request) (Answer, error) {
	var operation *openapi.Operation
	method, target := r.Method, r.Target
	if r.Operation != "" {
		var ok bool
		if operation, ok = description().Operation(r.Operation); !ok {
			return Answer{}, fmt.Errorf("the API description has no operation %q", r.Operation)
		}
		if method == "" {
			method = operation.Method
		}
		if target == "" {
			target = operation.Path
		}
	}
	if method == "" {
		method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(ctx, method, p.base+target, r.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("compose request: %w", err)
	}
	if r.Length != 0 {
		request.ContentLength = r.Length
	}
	maps.Copy(request.Header, r.Header)
	var sent []byte
	if seeker, ok := r.Body.(io.ReadSeeker); ok {
		sent, _ = io.ReadAll(io.LimitReader(seeker, maxExcerpt+1))
		if _, err := seeker.Seek(0, io.SeekStart); err != nil {
			return Answer{}, fmt.Errorf("rewind body: %w", err)
		}
	}
	return p.do(request, operation, sent)
}

func (p *wirePeer) do(request *http.Request, operation *openapi.Operation, sent []byte) (Answer, error) {
	id := ""
	if operation != nil {
		id = operation.ID
	}
	if _, given := request.Header["Authorization"]; !given && p.token != "" {
		request.Header.Set("Authorization", "Bearer "+p.token)
	}
	start := time.Now()
	response, err := p.client.Do(request)
	if err != nil {
		p.recorder.exchange(id, request, sent, nil, nil, err, time.Since(start))
		return Answer{}, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, unwrapURL(err))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	p.recorder.exchange(id, request, sent, response, body, err, time.Since(start))
	if err != nil {
		return Answer{}, fmt.Errorf("%s %s: read response: %w", request.Method, request.URL.Path, err)
	}
	if operation != nil {
		if err := operation.CheckResponse(response.StatusCode, response.Header, body); err != nil {
			p.recorder.violation(id, "response", err)
		}
	}
	if len(body) == 0 {
		body = nil
	}
	return Answer{
		Status: response.StatusCode, Header: response.Header, ContentLength: response.ContentLength, Body: body,
	}, nil
}

// expand fills the {name} segments of an operation's path.
func expand(operation *openapi.Operation, params map[string]string) (string, error) {
	var b strings.Builder
	path := operation.Path
	for {
		before, rest, found := strings.Cut(path, "{")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, _ := strings.Cut(rest, "}")
		value, ok := params[name]
		switch {
		case !ok:
			return "", fmt.Errorf("path parameter %q is missing", name)
		case name == operation.Rest:
			b.WriteString(value)
		default:
			b.WriteString(url.PathEscape(value))
		}
		path = after
	}
}

func bodyReader(body []byte) io.Reader {
	if body == nil {
		return nil
	}
	return bytes.NewReader(body)
}

// unwrapURL drops the method and URL that net/http repeats in its errors.
func unwrapURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
