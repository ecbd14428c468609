package api

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// traceHeader carries a W3C trace context. Its state is not kept: it would have to be stored with each message.
const traceHeader = "Traceparent"

// maxLinks bounds how many messages of a pop its span is linked to.
const maxLinks = 128

// trace begins the span of a request that may be carried out, if traces are recorded, and returns the context that
// holds it. It ends with the exchange. Public routes have none: probes and scrapes would drown the rest.
func (e *edge) trace(rt route, op *openapi.Operation, r *http.Request, ex *exchange) context.Context {
	ctx := r.Context()
	if e.cfg.Tracer == nil || op.Access == "public" {
		return ctx
	}
	if parent := queue.ParseTraceParent(r.Header.Get(traceHeader)); !parent.IsZero() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: parent.TraceID, SpanID: parent.SpanID, TraceFlags: trace.TraceFlags(parent.Flags), Remote: true,
		}))
	}
	ctx, ex.span = e.cfg.Tracer.Start(ctx, rt.id, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("http.request.method", r.Method),
		attribute.String("http.route", rt.path),
		attribute.String("messaging.system", "posthorn"),
	))
	return ctx
}

// endSpan ends the span with the status that was answered.
func (ex *exchange) endSpan() {
	if ex.span == nil {
		return
	}
	ex.span.SetAttributes(attribute.Int("http.response.status_code", ex.status))
	if ex.status >= http.StatusInternalServerError {
		ex.span.SetStatus(codes.Error, "")
	}
	ex.span.End()
}

// traceContext is what messages that a call pushes carry: its own span if that is recorded, else what the
// caller sent.
func (e *edge) traceContext(c *call) queue.TraceContext {
	if e.cfg.Tracer == nil {
		return queue.ParseTraceParent(c.head.Get(traceHeader))
	}
	if span := trace.SpanContextFromContext(c.ctx); span.IsValid() && span.IsSampled() && !span.IsRemote() {
		return queue.TraceContext{TraceID: span.TraceID(), SpanID: span.SpanID(), Flags: byte(span.TraceFlags())}
	}
	return queue.ParseTraceParent(c.head.Get(traceHeader))
}

// notePushed says on the span of a call where its messages went.
func (e *edge) notePushed(c *call, items []queue.PushItem) {
	if e.cfg.Tracer == nil || len(items) == 0 {
		return
	}
	if span := trace.SpanFromContext(c.ctx); span.IsRecording() {
		span.SetAttributes(
			attribute.String("messaging.operation.type", "send"),
			attribute.String("messaging.destination.name", items[0].Queue),
			attribute.Int("messaging.batch.message_count", len(items)),
		)
	}
}

// notePopped links the span of a call to where its messages came from.
func (e *edge) notePopped(c *call, res *queue.PopResult) {
	if e.cfg.Tracer == nil {
		return
	}
	span := trace.SpanFromContext(c.ctx)
	if !span.IsRecording() {
		return
	}
	messages, links := 0, 0
	for i := range res.Partitions {
		for j := range res.Partitions[i].Messages {
			m := &res.Partitions[i].Messages[j]
			messages++
			if m.Context.IsZero() || links == maxLinks {
				continue
			}
			links++
			span.AddLink(trace.Link{
				SpanContext: trace.NewSpanContext(trace.SpanContextConfig{
					TraceID: m.Context.TraceID, SpanID: m.Context.SpanID, TraceFlags: trace.TraceFlags(m.Context.Flags), Remote: true,
				}),
				Attributes: []attribute.KeyValue{attribute.String("messaging.message.id", m.ID.String())},
			})
		}
	}
	span.SetAttributes(
		attribute.String("messaging.operation.type", "receive"),
		attribute.String("messaging.consumer.group.name", res.Group),
		attribute.Int("messaging.batch.message_count", messages),
	)
	if len(res.Partitions) > 0 {
		span.SetAttributes(attribute.String("messaging.destination.name", res.Partitions[0].Queue))
	}
}
