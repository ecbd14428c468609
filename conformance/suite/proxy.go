package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

// proxy stands between a program peer and the target. It forwards requests untouched, checks both directions
// against the API description and records the exchanges, so that a spec that runs through a client library sees as
// much as one over HTTP.
type proxy struct {
	target   *url.URL
	client   *http.Client
	recorder atomic.Pointer[recorder] // of the spec that is running
	server   *http.Server
	url      string
}

func startProxy(ctx context.Context, target string, client *http.Client) (*proxy, error) {
	base, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the checking proxy: %w", err)
	}
	p := &proxy{target: base, client: client, url: "http://" + listener.Addr().String()}
	p.recorder.Store(&recorder{})
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(listener) }() // ends at Close
	return p, nil
}

func (p *proxy) close() error {
	if err := p.server.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("stop the checking proxy: %w", err)
	}
	return nil
}

// hopHeaders belong to one connection and are not forwarded.
var hopHeaders = []string{"Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Te", "Trailer"}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := p.recorder.Load()
	body, err := io.ReadAll(io.LimitReader(r.Body, maxResponse))
	if err != nil {
		http.Error(w, "the checking proxy cannot read the request: "+err.Error(), http.StatusBadGateway)
		return
	}
	operation, params := match(r.Method, r.URL.EscapedPath())
	id := ""
	if operation != nil {
		id = operation.ID
		if err := operation.CheckRequest(r, params, body); err != nil {
			record.violation(id, "request", err)
		}
	}
	start := time.Now()
	response, answer, err := p.forward(r, body) //nolint:bodyclose // forward has read and closed it
	record.exchange(id, r, body, response, answer, err, time.Since(start))
	if err != nil {
		if r.Context().Err() == nil {
			http.Error(w, "the checking proxy cannot reach the target: "+err.Error(), http.StatusBadGateway)
		}
		return
	}
	if operation != nil {
		if err := operation.CheckResponse(response.StatusCode, response.Header, answer); err != nil {
			record.violation(id, "response", err)
		}
	}
	for name, values := range response.Header {
		if !slices.Contains(hopHeaders, name) {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(answer) //nolint:gosec // the target's answer goes to the client library as it is; it may have gone
}

func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, []byte, error) {
	out := r.Clone(r.Context())
	out.RequestURI = ""
	out.URL.Scheme, out.URL.Host = p.target.Scheme, p.target.Host
	out.URL.Path = strings.TrimSuffix(p.target.Path, "/") + r.URL.Path
	out.URL.RawPath = strings.TrimSuffix(p.target.EscapedPath(), "/") + r.URL.EscapedPath() // keeps escapes as they were sent
	out.Host = ""
	for _, name := range hopHeaders {
		out.Header.Del(name)
	}
	if _, ok := out.Header["Accept-Encoding"]; !ok {
		out.Header["Accept-Encoding"] = []string{"identity"}
	}
	out.Body = nil
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	out.ContentLength = int64(len(body))
	response, err := p.client.Do(out) //nolint:gosec // to the target, which the tester names, and nowhere else
	if err != nil {
		return nil, nil, unwrapURL(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return response, nil, fmt.Errorf("read response: %w", err)
	}
	return response, answer, nil
}

// match finds the operation of a request, static segments before parameters and those before the rest of a path, and its
// unescaped path parameters.
func match(method, escapedPath string) (*openapi.Operation, map[string]string) {
	segments := strings.Split(escapedPath, "/")
	var (
		best       *openapi.Operation
		bestParams map[string]string
	)
	for _, operation := range description().Operations() {
		if operation.Method != method {
			continue
		}
		params, ok := matchPath(operation, segments)
		if ok && (best == nil || len(params) < len(bestParams) || len(params) == len(bestParams) && operation.Rest == "" && best.Rest != "") {
			best, bestParams = operation, params
		}
	}
	return best, bestParams
}

func matchPath(operation *openapi.Operation, segments []string) (map[string]string, bool) {
	template := strings.Split(operation.Path, "/")
	params := map[string]string{}
	if operation.Rest != "" && len(segments) >= len(template) {
		last := len(template) - 1
		params[operation.Rest] = strings.Join(segments[last:], "/") // as it was sent
		template, segments = template[:last], segments[:last]
	}
	if len(template) != len(segments) {
		return nil, false
	}
	for i, part := range template {
		if !strings.HasPrefix(part, "{") {
			if part != segments[i] {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(segments[i])
		if err != nil || value == "" {
			return nil, false
		}
		params[strings.Trim(part, "{}")] = value
	}
	return params, true
}

var _ Peer = (*through)(nil)

// through is a program peer behind the checking proxy.
type through struct {
	*programPeer
	proxy *proxy
}

func startThrough(ctx context.Context, target, token string, client *http.Client, start Starter) (*through, error) {
	checking, err := startProxy(ctx, target, client)
	if err != nil {
		return nil, err
	}
	program, err := start(ctx, checking.url, token)
	if err != nil {
		return nil, errors.Join(err, checking.close())
	}
	peer, err := connect(ctx, program)
	if err != nil {
		return nil, errors.Join(err, checking.close())
	}
	return &through{programPeer: peer, proxy: checking}, nil
}

func (t *through) close() error {
	return errors.Join(t.program.Close(), t.proxy.close())
}
