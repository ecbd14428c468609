package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/posthorn/posthorn/broker/internal/auth"
	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// Config is what the edge needs. Engine, Delivery, Spec and Registry are required.
type Config struct {
	Engine     *queue.Engine
	Delivery   *delivery.Engine
	Spec       *openapi.Spec
	Registry   *prometheus.Registry // gathered by /metrics/prometheus; the edge registers its own metrics on it
	Logger     *slog.Logger         // nil means slog.Default()
	Version    string               // of the broker, as /health and the page show it
	Encryption string               // state of encryption at rest, as /health shows it: active, off (also when empty) or misconfigured
	Auth       *auth.Authenticator  // nil means that everybody may do everything

	MaxBody         int64         // largest request body in bytes; 0 means DefaultMaxBody
	MaxBodyInFlight int64         // most request body bytes held at once; 0 means DefaultMaxBodyInFlight
	PopTimeout      time.Duration // wait of a long poll that names none; 0 means DefaultPopTimeout
	MaxEndpoints    int           // of one topic; 0 means DefaultMaxEndpoints
	PublishRetries  int           // of messages that name none; 0 means none
	MaxRetries      int           // of a published message; 0 means no bound
	MaxDelay        time.Duration // of a published message, from now; 0 means no bound
	FromNew         bool          // groups that name no subscription mode start with new messages; false means from the beginning
	Tracer          trace.Tracer  // records requests; nil means off
	Testing         bool          // the test clock is served
	LocalOnly       bool          // requests whose Host is a name of the Internet are refused, but for public routes
}

// Defaults of Config, as the queue contract has them; the bound on the sum is ours.
const (
	DefaultMaxBody         = 64 << 20
	DefaultMaxBodyInFlight = 512 << 20
	DefaultPopTimeout      = 30 * time.Second
	DefaultMaxEndpoints    = 100
)

// edge is the handler and what its routes share. It is immutable but for the body budget.
type edge struct {
	cfg     Config
	log     *slog.Logger
	bodies  budget
	stall   time.Duration // stallTimeout but in tests
	metrics metrics
	page    []byte
	rest    map[string]string // by operation: the path parameter that takes the rest of the path
	origins http.CrossOriginProtection
	routed  http.Handler
}

// New builds the handler of the whole HTTP surface. It fails when the routes and the API description
// disagree.
func New(cfg Config) (http.Handler, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MaxBody == 0 {
		cfg.MaxBody = DefaultMaxBody
	}
	if cfg.MaxBodyInFlight == 0 {
		cfg.MaxBodyInFlight = DefaultMaxBodyInFlight
	}
	if cfg.PopTimeout == 0 {
		cfg.PopTimeout = DefaultPopTimeout
	}
	e := &edge{cfg: cfg, log: cfg.Logger, bodies: budget{limit: cfg.MaxBodyInFlight}, stall: stallTimeout}
	var err error
	if e.page, err = renderPage(cfg.Version); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	ops, err := match(routes, cfg.Spec)
	if err != nil {
		return nil, err
	}
	if e.metrics, err = newMetrics(cfg.Registry, &e.bodies); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	e.rest = make(map[string]string)
	for id, op := range ops {
		e.rest[id] = op.Rest
	}
	e.routed = e.router(routes, ops)
	return e, nil
}

// call is one request as a handler sees it: checked against the API description, but for the body of a
// checking route.
type call struct {
	ctx  context.Context
	url  *url.URL
	path map[string]string
	body []byte // nil on routes without a body; valid until the handler returns
	head http.Header
	// remote is the address of the client, with its port.
	remote string
	ex     *exchange
}

// query decodes the query. Only routes that document parameters do: on others any query is ignored.
func (c *call) query() (url.Values, error) {
	q, err := url.ParseQuery(c.url.RawQuery)
	if err != nil {
		return nil, badQuery("string", "cannot be read: "+err.Error())
	}
	return q, checkNUL(q)
}

// No text of PostgreSQL holds a NUL, so that nothing has such a name.
const (
	nul     = "\x00"
	nulRule = "must not contain a NUL character"
)

func checkNUL(q url.Values) error {
	for name, values := range q {
		for _, v := range values {
			if strings.Contains(v, nul) {
				return badQuery(name, nulRule)
			}
		}
	}
	return nil
}

// answer is what a handler answers. The zero contentType means JSON; an answer without a body has
// neither Content-Type nor, at 204 and 304, Content-Length.
type answer struct {
	status      int
	contentType string
	header      map[string]string
	body        []byte
}

// with returns the answer with one more header field.
func (a answer) with(name, value string) answer {
	header := map[string]string{name: value}
	maps.Copy(header, a.header)
	a.header = header
	return a
}

func jsonAnswer(status int, body []byte) answer { return answer{status: status, body: body} }

// serve runs one route: path, query and body, the check, the handler, the answer.
func (e *edge) serve(rt route, op *openapi.Operation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ex := exchangeOf(r)
		ex.route = &rt
		if audited(op) {
			ex.audited, ex.target = true, mux.Vars(r)
		}
		ans, err := e.run(rt, op, w, r, ex)
		if err != nil {
			// Nobody is there to read an answer, and an empty 200 must not be sent in its place.
			if errors.Is(err, errIncomplete) || r.Context().Err() != nil && errors.Is(err, context.Canceled) {
				ex.status = statusClientClosed
				panic(http.ErrAbortHandler)
			}
			if rt.kind.has(accepting) {
				e.metrics.refuse(err)
			}
			ans = e.answerError(ex, err)
		}
		e.reply(w, r, op, ans)
	})
}

func (e *edge) run(rt route, op *openapi.Operation, w http.ResponseWriter, r *http.Request, ex *exchange) (answer, error) {
	switch {
	case e.cfg.LocalOnly && op.Access != "public" && !isLocalHost(r.Host):
		return answer{}, errForeignHost
	case !e.allowsOrigin(rt, r):
		return answer{}, errCrossOrigin
	}
	if err := e.authorize(r, ex, op.Access); err != nil {
		return answer{}, err
	}
	c := &call{ctx: e.trace(rt, op, r, ex), url: r.URL, head: r.Header, remote: r.RemoteAddr, ex: ex}
	var err error
	if c.path, err = pathParams(r, op.Rest); err != nil {
		return answer{}, err
	}
	if takes, _ := op.HasBody(); takes {
		c.body, err = e.readBody(w, r, ex)
	} else {
		err = e.discardBody(w, r, ex)
	}
	if err != nil {
		return answer{}, err
	}
	if rt.kind.has(checking) {
		err = op.CheckParameters(r, c.path)
	} else {
		err = op.CheckRequest(r, c.path, c.body)
	}
	if err != nil {
		return answer{}, worded(rt, err)
	}
	return rt.handle(e, c)
}

// allowsOrigin refuses what another origin than the broker's makes a browser send, where it would change
// something: any page that somebody visits could otherwise use a broker on that machine. Programs send
// none of the headers that this reads.
func (e *edge) allowsOrigin(rt route, r *http.Request) bool {
	if rt.kind.has(consuming) {
		r = &http.Request{Method: http.MethodPost, Header: r.Header, Host: r.Host, URL: r.URL} // a GET that is not safe
	}
	return e.origins.Check(r) == nil
}

// isLocalHost says whether a Host is an address or a name that nobody can own on the Internet: one without
// a dot, or below a top level that is reserved for private use. A page whose name its owner points at
// 127.0.0.1 is of the same origin to a browser, but has that name in its Host.
func isLocalHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.Trim(name, "[]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case name, "localhost", "internal", "test":
		return true
	}
	return false
}

// reply checks an answer and sends it. It is the only place that writes to the client. A nil
// operation belongs to a request that no route matches: nothing describes its answer.
func (e *edge) reply(w http.ResponseWriter, r *http.Request, op *openapi.Operation, ans answer) {
	ex := exchangeOf(r)
	h := w.Header()
	ans.setHeader(h)
	if op != nil {
		if err := op.CheckResponse(ans.status, h, ans.body); err != nil {
			e.log.ErrorContext(r.Context(), "the answer violates the API description",
				"request_id", ex.id, "operation", op.ID, "status", ans.status, "error", err)
			ans = e.answerError(ex, errNonconform)
			for name := range h {
				if name != requestIDHeader {
					h.Del(name)
				}
			}
			ans.setHeader(h)
		}
	}
	if r.ProtoMajor > 1 {
		// Of many streams on a connection, one ends; closing the connection would turn away the others.
		h.Del("Connection")
	}
	ex.status = ans.status
	ex.replied = true
	e.setWriteDeadline(w, len(ans.body))
	if bodiless(ans.status) {
		w.WriteHeader(ans.status)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(ans.body)))
	w.WriteHeader(ans.status)
	if r.Method != http.MethodHead {
		n, _ := w.Write(ans.body) // on an error the client is gone, and net/http closes the connection
		ex.bytesOut = int64(n)
	}
}

// Header values of nearly all answers, shared by them: nothing changes a value in place.
var (
	nosniff         = []string{"nosniff"}
	noStore         = []string{"no-store"}
	applicationJSON = []string{"application/json"}
)

func (a answer) setHeader(h http.Header) {
	h["X-Content-Type-Options"] = nosniff
	h["Cache-Control"] = noStore
	switch {
	case bodiless(a.status):
	case a.contentType == "":
		h["Content-Type"] = applicationJSON
	default:
		h.Set("Content-Type", a.contentType)
	}
	for k, v := range a.header {
		h.Set(k, v)
	}
}

// bodiless says whether an answer of a status has no body and no Content-Length.
func bodiless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified
}
