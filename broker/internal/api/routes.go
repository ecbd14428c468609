package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/mux"

	"github.com/posthorn/posthorn/openapi"
)

// route is one line of the route table. Its id is the operationId of the API description.
type route struct {
	id     string
	method string
	path   string
	handle func(*edge, *call) (answer, error)
	kind   routeKind
}

// routeKind is a set of properties of a route that the API description does not carry.
type routeKind uint8

const (
	// hot routes are called all the time: they are logged at debug level.
	hot routeKind = 1 << iota
	// consuming routes change state on a GET, so they do not answer a HEAD: the messages of a pop
	// would be leased, or lost with autoAck, to a client that never sees a body.
	consuming
	// checking routes check the body in their handler, where they read it.
	checking
	// testOnly routes exist only where the test clock may be moved.
	testOnly
)

func (k routeKind) has(p routeKind) bool { return k&p != 0 }

// routes is every route of the broker, in the order in which they are tried.
var routes = []route{
	{"push", http.MethodPost, "/api/v1/push", (*edge).push, hot | checking},
	{"popPartition", http.MethodGet, "/api/v1/pop/queue/{queue}/partition/{partition}", (*edge).popPartition, hot | consuming},
	{"popQueue", http.MethodGet, "/api/v1/pop/queue/{queue}", (*edge).popQueue, hot | consuming},
	{"pop", http.MethodGet, "/api/v1/pop", (*edge).popDiscover, hot | consuming},
	{"ack", http.MethodPost, "/api/v1/ack", (*edge).ack, hot},
	{"ackBatch", http.MethodPost, "/api/v1/ack/batch", (*edge).ackBatch, hot},
	{"extendLease", http.MethodPost, "/api/v1/lease/{leaseId}/extend", (*edge).extendLease, hot},
	{"configure", http.MethodPost, "/api/v1/configure", (*edge).configure, 0},
	{"listQueues", http.MethodGet, "/api/v1/resources/queues", (*edge).listQueues, 0},
	{"getQueue", http.MethodGet, "/api/v1/resources/queues/{queue}", (*edge).getQueue, 0},
	{"deleteQueue", http.MethodDelete, "/api/v1/resources/queues/{queue}", (*edge).deleteQueue, 0},
	{"health", http.MethodGet, "/health", (*edge).health, hot},
	{"status", http.MethodGet, "/status", (*edge).status, hot},
	{"metrics", http.MethodGet, "/metrics/prometheus", (*edge).metricsText, hot},
	{"openapi", http.MethodGet, "/openapi.json", (*edge).openapiDocument, 0},
	{"index", http.MethodGet, "/", (*edge).index, 0},
	{"getClock", http.MethodGet, "/testing/clock", (*edge).getClock, testOnly},
	{"advanceClock", http.MethodPost, "/testing/clock", (*edge).advanceClock, testOnly},
}

// methods are the request methods that a route answers.
func (rt route) methods() []string {
	if rt.method == http.MethodGet && !rt.kind.has(consuming) {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{rt.method}
}

// match pairs each route with its operation. The error names every route without an operation,
// every operation without a route and every pair that disagrees on method or path.
func match(table []route, spec *openapi.Spec) (map[string]*openapi.Operation, error) {
	ops := make(map[string]*openapi.Operation)
	for _, op := range spec.Operations() {
		ops[op.ID] = op
	}
	var errs []error
	seen := make(map[string]bool)
	for _, rt := range table {
		seen[rt.id] = true
		switch op := ops[rt.id]; {
		case op == nil:
			errs = append(errs, fmt.Errorf("route %s has no operation", rt.id))
		case op.Method != rt.method || op.Path != rt.path:
			errs = append(errs, fmt.Errorf("route %s is %s %s, but its operation is %s %s", rt.id, rt.method, rt.path, op.Method, op.Path))
		}
	}
	for id := range ops {
		if !seen[id] {
			errs = append(errs, fmt.Errorf("operation %s has no route", id))
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("routes and API description disagree: %w", errors.Join(errs...))
	}
	return ops, nil
}

// router builds the mux. Paths are matched as they were sent, so that an escaped slash stays part of
// a name, and they are never cleaned or redirected.
func (e *edge) router(table []route, ops map[string]*openapi.Operation) *mux.Router {
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	var page http.Handler
	for _, rt := range table {
		if rt.kind.has(testOnly) && !e.cfg.Testing {
			continue
		}
		h := e.serve(rt, ops[rt.id])
		if rt.id == "index" {
			page = h
		}
		r.Handle(rt.path, h).Methods(rt.methods()...).Name(rt.id)
	}
	r.NotFoundHandler = e.unmatched(page)
	r.MethodNotAllowedHandler = r.NotFoundHandler
	return r
}

// unmatched answers what no route matches: the page for a browser that asks for anything outside the
// API, else a JSON 404 (queue contract, section 0). A known path with another method is no route.
func (e *edge) unmatched(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ex := exchangeOf(r)
		if err := e.authorize(r, ex, unmatchedAccess(r)); err != nil {
			e.reply(w, r, nil, e.answerError(ex, err))
			return
		}
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		if get && !strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasPrefix(r.URL.Path, "/testing/") {
			page.ServeHTTP(w, r)
			return
		}
		e.reply(w, r, nil, e.answerError(ex, errNoRoute))
	})
}

// pathParams decodes the path parameters of a matched request, once.
func pathParams(r *http.Request) (map[string]string, error) {
	vars := mux.Vars(r)
	if len(vars) == 0 {
		return nil, nil
	}
	params := make(map[string]string, len(vars))
	for name, raw := range vars {
		v, err := url.PathUnescape(raw)
		if err != nil {
			return nil, badPath(name, "holds an invalid percent escape")
		}
		params[name] = v
	}
	return params, nil
}
