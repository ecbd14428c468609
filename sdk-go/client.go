package posthorn

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options configure a [Client]. The zero value is ready for use.
type Options struct {
	// HTTPClient sends the requests. Nil means a client of its own, which follows no redirects and
	// keeps up to 64 idle connections to the broker. A client given here must not have a Timeout
	// below the long polls it is used for.
	HTTPClient *http.Client

	// Token is sent as "Authorization: Bearer <token>". Empty means no Authorization header.
	Token string

	// Timeout bounds one attempt, from connecting to the last byte of the answer. A long poll gets
	// its waiting time on top. Zero means 30 s; negative means no bound but the context's.
	Timeout time.Duration

	// Retry says how often and how patiently a failed attempt is repeated. The zero value means
	// the defaults named there.
	Retry RetryPolicy

	// UserAgent is sent as the User-Agent header. Empty means "posthorn-go".
	UserAgent string

	// MaxResponseBytes bounds the body of one answer, after decompression. A longer one fails with
	// ErrResponseTooLarge. Zero means 256 MiB, four times what one push may carry.
	MaxResponseBytes int64
}

// RetryPolicy bounds the repetition of failed attempts. An attempt is repeated after
//
//   - 429, and a connection that could not be opened: always, because nothing was done;
//   - 500, 502, 503, 504, a broken connection, or an attempt that ran into Options.Timeout: when the
//     operation may be repeated without changing its effect. That excludes a pop with AutoAck, a
//     negative acknowledgment without a lease id, and DeleteQueue; each method says so.
//
// No other answer is ever repeated, and nothing is once the context has ended.
type RetryPolicy struct {
	// MaxAttempts counts all attempts of one call, the first included. Zero means 4; 1 means that
	// nothing is repeated.
	MaxAttempts int

	// BaseDelay is the pause after the first failure; it doubles with each further one. Half of
	// each pause is random. Zero means 100 ms.
	BaseDelay time.Duration

	// MaxDelay caps the doubling. Zero means 5 s.
	MaxDelay time.Duration

	// MaxRetryAfter is the longest Retry-After that is waited for. When the broker asks for more,
	// or for more than the context has left, the call fails at once. Zero means 60 s.
	MaxRetryAfter time.Duration
}

// Client talks to one broker, or to several behind one address. Make it with [New].
type Client struct {
	base      string // scheme, host and path prefix, without a trailing slash
	http      *http.Client
	ownHTTP   bool
	token     string
	userAgent string
	timeout   time.Duration // 0 means none
	maxBody   int64
	retry     RetryPolicy // no zero fields
}

// New returns a client of the broker at baseURL, for example "http://127.0.0.1:6632". A path in it
// is kept as a prefix of every route. It opens no connection. All that is wrong with the arguments
// is reported in one error.
func New(baseURL string, opts Options) (*Client, error) {
	base, err := parseBase(baseURL)
	problems := []error{err}
	if strings.ContainsAny(opts.Token, "\r\n") {
		problems = append(problems, errors.New("option Token contains a line break"))
	}
	if strings.ContainsAny(opts.UserAgent, "\r\n") {
		problems = append(problems, errors.New("option UserAgent contains a line break"))
	}
	if opts.MaxResponseBytes < 0 {
		problems = append(problems, errors.New("option MaxResponseBytes is negative"))
	}
	if opts.Retry.MaxAttempts < 0 || opts.Retry.BaseDelay < 0 || opts.Retry.MaxDelay < 0 || opts.Retry.MaxRetryAfter < 0 {
		problems = append(problems, errors.New("option Retry has a negative field"))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("posthorn: new client: %w", err)
	}

	c := &Client{
		base:      base,
		http:      opts.HTTPClient,
		token:     opts.Token,
		userAgent: orDefault(opts.UserAgent, "posthorn-go"),
		timeout:   max(0, orDefault(opts.Timeout, 30*time.Second)),
		maxBody:   orDefault(opts.MaxResponseBytes, 256<<20),
		retry: RetryPolicy{
			MaxAttempts:   orDefault(opts.Retry.MaxAttempts, 4),
			BaseDelay:     orDefault(opts.Retry.BaseDelay, 100*time.Millisecond),
			MaxDelay:      orDefault(opts.Retry.MaxDelay, 5*time.Second),
			MaxRetryAfter: orDefault(opts.Retry.MaxRetryAfter, time.Minute),
		},
	}
	if c.http == nil {
		c.http, c.ownHTTP = newHTTPClient(), true
	}
	return c, nil
}

// Close drops idle connections of the client's own HTTP client; one given in Options is left alone.
// The client stays usable.
func (c *Client) Close() {
	if c.ownHTTP {
		c.http.CloseIdleConnections()
	}
}

func parseBase(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", fmt.Errorf("base URL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("base URL %q does not start with http:// or https://", u.Redacted())
	case u.Host == "":
		return "", fmt.Errorf("base URL %q names no host", u.Redacted())
	case u.User != nil:
		return "", errors.New("base URL holds credentials; use Options.Token")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("base URL %q has a query or a fragment", raw)
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), nil
}

func newHTTPClient() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		transport = standard.Clone()
	}
	// Each lane of a consumer holds one connection; the standard two idle ones per host would make
	// the others reconnect on every call.
	transport.MaxIdleConnsPerHost = 64
	transport.MaxResponseHeaderBytes = 256 << 10 // the standard 10 MiB would dodge MaxResponseBytes
	return &http.Client{
		Transport: transport,
		// A redirect would repeat a request elsewhere, which is not the client's decision to make.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func orDefault[T comparable](v, fallback T) T {
	var zero T
	if v == zero {
		return fallback
	}
	return v
}
