package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"
)

// Config configures a Client. The zero value of each field means its default.
type Config struct {
	Policy       Policy
	RootCAs      *x509.CertPool // default the system's; see TrustAlso
	Proxy        *url.URL       // all requests go through it; default none, and the environment's proxies are ignored
	MaxIdleConns int            // kept open, over all hosts; default 256
	PerHost      int            // connections to one host; default 64
	DialTimeout  time.Duration  // for DNS, connect and, apart, the TLS handshake; default 10 s

	// Resolver replaces the system's, in tests. Its answers are checked like any others.
	Resolver Resolver
}

// Resolver looks names up, as net.Resolver does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// TrustAlso returns the system's certificate authorities and those of a PEM file.
func TrustAlso(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's certificate authorities: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", file)
	}
	return pool, nil
}

// maxHeader bounds the header of an answer, in bytes.
const maxHeader = 64 << 10

// Client sends requests where its policy allows. It is safe for concurrent use.
type Client struct {
	policy    Policy
	resolver  Resolver
	dialer    net.Dialer
	proxy     *url.URL
	transport *http.Transport // used as it is: redirects are answers, and there are no cookies
}

// New returns a client. Close its idle connections with Close.
func New(cfg Config) *Client {
	if cfg.MaxIdleConns <= 0 {
		cfg.MaxIdleConns = 256
	}
	if cfg.PerHost <= 0 {
		cfg.PerHost = 64
	}
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = 10 * time.Second
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	c := &Client{policy: cfg.Policy, resolver: cfg.Resolver, proxy: cfg.Proxy, dialer: net.Dialer{Timeout: cfg.DialTimeout}}
	c.transport = &http.Transport{
		DialContext:            c.dial,
		DisableCompression:     true, // a small answer must not inflate to a large one
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           cfg.MaxIdleConns,
		MaxIdleConnsPerHost:    cfg.PerHost,
		MaxConnsPerHost:        cfg.PerHost,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    cfg.DialTimeout,
		MaxResponseHeaderBytes: maxHeader,
		TLSClientConfig:        &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
	}
	if cfg.Proxy != nil {
		c.transport.Proxy = http.ProxyURL(cfg.Proxy)
	}
	return c
}

// Close closes idle connections.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// CheckURL is the policy's: it refuses what can be refused without DNS.
func (c *Client) CheckURL(u *url.URL) error { return c.policy.CheckURL(u) }

// Policy says what the client's policy opens.
func (c *Client) Policy() string { return c.policy.String() }

// Request is one request to a destination.
type Request struct {
	Method string
	URL    *url.URL
	Header http.Header // sent as it is
	Body   []byte
	// MaxBody is how much of the answer's body is read, in bytes; the rest is never asked for.
	MaxBody int64
}

// Response is what the destination answered.
type Response struct {
	Status int
	Header http.Header
	Body   []byte // at most MaxBody bytes
	Cut    bool   // there was more
}

// Do sends one request; ctx bounds it as a whole, the reading of the body included. An answer of any
// status is no error. The error is a *BlockedError when the policy forbids the destination.
func (c *Client) Do(ctx context.Context, req Request) (Response, error) {
	if err := c.policy.CheckURL(req.URL); err != nil {
		return Response{}, err
	}
	r := (&http.Request{
		Method:        req.Method,
		URL:           req.URL,
		Header:        req.Header,
		Host:          req.URL.Host,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		ContentLength: int64(len(req.Body)),
	}).WithContext(ctx)
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if len(req.Body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(req.Body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(req.Body)), nil }
	}
	answer, err := c.transport.RoundTrip(r)
	if err != nil {
		if blocked, ok := errors.AsType[*BlockedError](err); ok {
			return Response{}, blocked
		}
		return Response{}, err
	}
	defer answer.Body.Close()
	out := Response{Status: answer.StatusCode, Header: answer.Header}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return out, nil // what follows is no body, and ctx bounds no read of it
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, req.MaxBody+1))
	if int64(len(body)) > req.MaxBody {
		body, out.Cut = body[:req.MaxBody], true
	}
	out.Body = body
	if err != nil {
		return out, fmt.Errorf("read the answer's body: %w", err)
	}
	return out, nil
}

// dial resolves a host, and tries its addresses that the policy allows, in order. When it allows none of
// them, none was dialled.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	host = normalHost(host)
	if c.proxy != nil && host == normalHost(c.proxy.Hostname()) {
		return c.dialer.DialContext(ctx, network, address) // the operator named it
	}
	targets, err := c.resolve(ctx, host, port)
	if err != nil {
		return nil, err
	}
	dialer := c.dialer
	// The last word is spoken on the address of the socket itself.
	dialer.ControlContext = func(_ context.Context, _, sockaddr string, _ syscall.RawConn) error {
		target, err := netip.ParseAddrPort(sockaddr)
		if err != nil {
			return fmt.Errorf("dial %s: %w", sockaddr, err)
		}
		return c.policy.check(host, target)
	}
	var failure, blocked error
	for _, target := range targets {
		if err := c.policy.check(host, target); err != nil {
			blocked = err
			continue
		}
		conn, err := dialer.DialContext(ctx, network, target.String())
		if err == nil {
			return conn, nil
		}
		failure = err
	}
	if failure == nil {
		failure = blocked
	}
	return nil, failure
}

func (c *Client) resolve(ctx context.Context, host, port string) ([]netip.AddrPort, error) {
	if target, ok := c.policy.Resolve[net.JoinHostPort(host, port)]; ok {
		return []netip.AddrPort{target}, nil
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.Addr, 1)
	var ok bool
	if addrs[0], ok = literal(host); !ok {
		ctx, cancel := context.WithTimeout(ctx, c.dialer.Timeout)
		defer cancel()
		if addrs, err = c.resolver.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	targets := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		targets[i] = netip.AddrPortFrom(a.Unmap(), uint16(number))
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return targets, nil
}
