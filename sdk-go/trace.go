package posthorn

import "context"

type traceParentKey struct{}

// WithTraceParent returns a context whose calls carry a W3C Trace Context to the broker: the value of a traceparent
// header, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01. What is pushed with it is popped with it, or
// with that of a span which the broker recorded as its child, as [Message.TraceParent]. A value that is malformed
// counts as none; an empty one takes an outer one away.
//
// The library depends on no tracing library. With OpenTelemetry:
//
//	carrier := propagation.MapCarrier{}
//	propagation.TraceContext{}.Inject(ctx, carrier)
//	results, err := client.Push(posthorn.WithTraceParent(ctx, carrier["traceparent"]), items)
func WithTraceParent(ctx context.Context, traceParent string) context.Context {
	if !plainHeader(traceParent) {
		traceParent = ""
	}
	return context.WithValue(ctx, traceParentKey{}, traceParent)
}

// plainHeader reports whether a value can stand in a header: net/http fails a call otherwise.
func plainHeader(value string) bool {
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			return false
		}
	}
	return true
}
