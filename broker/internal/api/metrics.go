package api

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// metrics are the edge's own: one observation per exchange.
type metrics struct {
	duration *prometheus.HistogramVec
	bytesIn  *prometheus.CounterVec
	bytesOut *prometheus.CounterVec
	inFlight prometheus.Gauge
	refused  *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, bodies *budget) (metrics, error) {
	m := metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "posthorn_http_request_duration_seconds",
			Help: "Time from the head of a request to its answer, long polls included.",
			// From a cached answer to a long poll of the default timeout.
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"operation", "status"}),
		bytesIn: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "posthorn_http_request_bytes_total",
			Help: "Request body bytes received.",
		}, []string{"operation"}),
		bytesOut: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "posthorn_http_response_bytes_total",
			Help: "Answer body bytes sent.",
		}, []string{"operation"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "posthorn_http_requests_in_flight",
			Help: "Requests that are being answered, parked long polls included.",
		}),
	}
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "posthorn_publish_refusals_total",
		Help: "Publishes, schedules and items of batches that were not accepted, by reason.",
	}, []string{"reason"})
	for _, reason := range refusals { // what is counted from 0 on can be seen to increase the first time
		m.refused.WithLabelValues(reason)
	}
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "posthorn_http_request_bytes_in_flight",
		Help: "Request body bytes held in memory.",
	}, func() float64 { return float64(bodies.used.Load()) })
	for _, c := range []prometheus.Collector{m.duration, m.bytesIn, m.bytesOut, m.inFlight, m.refused, held} {
		if err := registry.Register(c); err != nil {
			return metrics{}, err
		}
	}
	return m, nil
}

func (m *metrics) observe(ex *exchange, took time.Duration) {
	op := ex.operation()
	m.duration.WithLabelValues(op, strconv.Itoa(ex.status)).Observe(took.Seconds())
	m.bytesIn.WithLabelValues(op).Add(float64(ex.bytesIn))
	m.bytesOut.WithLabelValues(op).Add(float64(ex.bytesOut))
}

// refuse counts what was not accepted for an error.
func (m *metrics) refuse(err error) { m.refused.WithLabelValues(refusal(err)).Inc() }

// metricsText answers GET /metrics/prometheus: the text exposition format, never another one, so that
// what is sent is what the API description says.
func (e *edge) metricsText(*call) (answer, error) {
	families, err := e.cfg.Registry.Gather()
	if err != nil {
		return answer{}, err
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain)
	var b bytes.Buffer
	enc := expfmt.NewEncoder(&b, format)
	for _, f := range families {
		if err := enc.Encode(f); err != nil {
			return answer{}, err
		}
	}
	return answer{status: http.StatusOK, contentType: string(format), body: b.Bytes()}, nil
}
