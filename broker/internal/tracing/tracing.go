package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// Config says where traces go.
type Config struct {
	// Endpoint is the base URL of an OTLP/HTTP collector, such as http://localhost:4318; without a path, spans go to
	// /v1/traces there. Required. Headers, certificates and timeouts come from the standard OTEL_EXPORTER_OTLP_ variables.
	Endpoint string
	Ratio    float64 // of the requests without a traceparent, how many are recorded: 0 to 1
	Version  string  // of the broker
	Instance string  // names this broker among others; "" means none
	Logger   *slog.Logger
}

// Tracing makes and exports spans. Shutdown ends it.
type Tracing struct {
	provider *sdktrace.TracerProvider
	Tracer   trace.Tracer
}

// New starts exporting. It does not wait for the collector: one that is away is tried again and again.
func New(ctx context.Context, cfg Config) (*Tracing, error) {
	target, err := Endpoint(cfg.Endpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(target))
	if err != nil {
		return nil, fmt.Errorf("make an exporter: %w", err)
	}
	attributes := []attribute.KeyValue{
		attribute.String("service.name", "posthorn"), attribute.String("service.version", cfg.Version),
	}
	if cfg.Instance != "" {
		attributes = append(attributes, attribute.String("service.instance.id", cfg.Instance))
	}
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before ours.
	described, err := resource.New(ctx, resource.WithAttributes(attributes...), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe the broker: %w", err)
	}
	otel.SetErrorHandler(&quietLog{log: cfg.Logger})
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(described),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Ratio))),
	)
	return &Tracing{provider: provider, Tracer: provider.Tracer("github.com/posthorn/posthorn/broker")}, nil
}

// Endpoint is the URL that spans are sent to, or what is wrong with the one configured.
func Endpoint(base string) (string, error) {
	u, err := url.Parse(base)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", errors.New("not an http or https URL") // not quoted: a key of the collector may be in it
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u.String(), nil
}

// Shutdown exports what is left, until ctx ends.
func (t *Tracing) Shutdown(ctx context.Context) error {
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("export the last spans: %w", err)
	}
	return nil
}

// quiet is how long a failed export is not mentioned again.
const quiet = time.Minute

// quietLog logs what goes wrong in the background, but not all of it.
type quietLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
}

// Handle implements [otel.ErrorHandler].
func (q *quietLog) Handle(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := time.Now(); now.Sub(q.last) >= quiet {
		q.last = now
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // its URL may hold a key
		}
		q.log.Warn("spans are not exported", "err", err)
	}
}
