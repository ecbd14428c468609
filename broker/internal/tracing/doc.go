// Package tracing exports the broker's traces over OTLP/HTTP.
//
// It is off unless an endpoint is given; then New returns a Tracer that makes spans, and exports them in
// the background in batches. What cannot be exported is dropped, and that is logged at most once a minute: traces
// never hold up a request, and a collector that is away costs memory for one bounded queue of spans.
//
// Which requests are recorded follows the caller: a request whose traceparent says sampled is recorded, one that says
// not sampled is not, and of those without a traceparent the configured share.
package tracing
