package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Report is the outcome of a run; it marshals to the program's JSON output. Durations are in milliseconds, rates per
// second.
type Report struct {
	Mode        Mode             `json:"mode"`
	Target      string           `json:"target"`
	Queue       string           `json:"queue"`
	Group       string           `json:"group,omitempty"`
	Conns       int              `json:"conns"`
	Consumers   int              `json:"consumers,omitempty"`
	Batch       int              `json:"batch"`
	PopBatch    int              `json:"popBatch,omitempty"`
	Partitions  int              `json:"partitions"`
	Payload     int              `json:"payloadBytes"`
	Cores       int              `json:"cores"`
	Seconds     float64          `json:"seconds"` // measured time
	Push        *SeriesReport    `json:"push,omitempty"`
	Pop         *SeriesReport    `json:"pop,omitempty"`
	Ack         *SeriesReport    `json:"ack,omitempty"`
	Delivery    *LatencyReport   `json:"delivery,omitempty"`            // from push to pop, from publish to arrival
	Deliveries  float64          `json:"deliveriesPerSecond,omitempty"` // mode publish, until the last arrival
	Undelivered *int64           `json:"undelivered,omitempty"`         // queued in mode e2e but not popped in time, or published but not delivered
	EmptyPops   int64            `json:"emptyPops"`
	Statuses    Statuses         `json:"statuses"`
	HTTP        map[string]int64 `json:"http"`
	Errors      map[string]int64 `json:"errors"`
	CPU         CPU              `json:"cpuSeconds"`
	Baseline    *BaselineReport  `json:"baseline,omitempty"`
}

// SeriesReport describes one kind of request.
type SeriesReport struct {
	Requests    int64         `json:"requests"`
	Messages    int64         `json:"messages"`
	RequestRate float64       `json:"requestsPerSecond"`
	MessageRate float64       `json:"messagesPerSecond"`
	Latency     LatencyReport `json:"latency"`
}

// LatencyReport holds percentiles in milliseconds.
type LatencyReport struct {
	P50  float64 `json:"p50ms"`
	P99  float64 `json:"p99ms"`
	P999 float64 `json:"p999ms"`
	Max  float64 `json:"maxms"`
}

// BaselineReport compares pushes with rows inserted into the same PostgreSQL, in alternating rounds.
type BaselineReport struct {
	Rounds     []RoundReport `json:"rounds"`
	PushMedian float64       `json:"pushMessagesPerSecond"`
	RowMedian  float64       `json:"rowsPerSecond"`
	Ratio      float64       `json:"ratio"` // PushMedian divided by RowMedian
}

// RoundReport is one round of a comparison.
type RoundReport struct {
	Push SeriesReport `json:"push"`
	Rows SeriesReport `json:"rows"`
}

// Run measures as cfg says. It returns an error when nothing could be measured; failures of single requests are in
// the report. When ctx ends, what was measured until then is reported.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	l, err := newLoad(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Mode == Publish {
		if l.sink, err = openSink(ctx, l.cfg.Silent); err != nil {
			return nil, err
		}
		defer l.sink.close()
	}
	if err := l.first(ctx); err != nil {
		return nil, err
	}
	procs := findProcesses(processes{broker: cfg.BrokerPID, postmaster: cfg.PostgresPID}, int(l.target.Address.Port()), cfg.Baseline)
	if cfg.Baseline != "" {
		return l.compare(ctx, procs)
	}
	switch cfg.Mode {
	case Push, Publish:
		return l.report(l.produce(ctx, procs, "0")), nil
	case Pop:
		m, err := l.pops(ctx, procs)
		if err != nil {
			return nil, err
		}
		return l.report(m), nil
	default:
		return l.report(l.endToEnd(ctx, procs)), nil
	}
}

// produce measures mode push or publish.
func (l *load) produce(ctx context.Context, procs processes, round string) measured {
	if l.cfg.Mode == Publish {
		return l.publishes(ctx, procs, round)
	}
	return l.pushes(ctx, procs, round)
}

// compare alternates rounds of pushes or publishes and of row inserts.
func (l *load) compare(ctx context.Context, procs processes) (_ *Report, err error) {
	table, err := openRows(ctx, l.cfg, l.run)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, table.close(ctx)) }()
	var report *Report
	var b BaselineReport
	for i := range l.cfg.Rounds {
		round := fmt.Sprintf("%d", i)
		pushed := l.report(l.produce(ctx, procs, round))
		if l.cfg.Warmup > 0 {
			if _, err := table.insert(ctx, round+"w", l.cfg.Warmup); err != nil {
				return nil, err
			}
		}
		start := time.Now()
		inserted, err := table.insert(ctx, round+"m", l.cfg.Duration)
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			break // the round is not complete
		}
		b.Rounds = append(b.Rounds, RoundReport{
			Push: *pushed.Push,
			Rows: *reportSeries(&inserted.push, inserted.last.Sub(start)),
		})
		// The details (latency, statuses, processor time) are the last round's.
		report = pushed
	}
	if report == nil {
		return nil, fmt.Errorf("no round was completed: %w", cmp.Or(ctx.Err(), errors.New("no rounds")))
	}
	b.summarize()
	report.Baseline = &b
	return report, nil
}

// summarize fills in the medians and the ratio.
func (b *BaselineReport) summarize() {
	var push, row []float64
	for _, r := range b.Rounds {
		push, row = append(push, r.Push.MessageRate), append(row, r.Rows.MessageRate)
	}
	b.PushMedian, b.RowMedian = median(push), median(row)
	if b.RowMedian > 0 {
		b.Ratio = b.PushMedian / b.RowMedian
	}
}

// median of values, 0 when there are none. It sorts them.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

func (l *load) report(m measured) *Report {
	r := &Report{
		Mode: l.cfg.Mode, Target: l.target.URL, Queue: l.cfg.Queue, Group: l.cfg.Group,
		Conns: l.cfg.Conns, Batch: l.cfg.Batch, Partitions: l.cfg.Partitions, Payload: l.cfg.Payload,
		Cores: runtime.NumCPU(), Seconds: m.elapsed.Seconds(), EmptyPops: m.emptyPops,
		Statuses: m.statuses, HTTP: m.httpByText(), Errors: m.errors, CPU: m.cpu,
	}
	if l.cfg.Mode != Pop {
		r.Push = reportSeries(&m.push, m.elapsed)
	}
	if l.cfg.Mode == Publish && !l.cfg.acceptsOnly() {
		r.Delivery = new(reportLatency(&m.delivery))
		r.Undelivered = new(max(0, m.push.messages-m.delivered))
		if m.deliveredIn > 0 {
			r.Deliveries = float64(m.delivered) / m.deliveredIn.Seconds()
		}
	}
	if l.cfg.Mode != Push && l.cfg.Mode != Publish {
		r.Pop = reportSeries(&m.pop, m.elapsed)
		if l.cfg.Ack != AckAuto {
			r.Ack = reportSeries(&m.ack, m.elapsed)
		}
	}
	if l.cfg.Mode == EndToEnd {
		r.Consumers, r.PopBatch = l.cfg.Consumers, l.cfg.PopBatch
		r.Delivery = new(reportLatency(&m.delivery))
		r.Undelivered = new(max(0, m.statuses.Queued-m.pop.messages))
	}
	return r
}

func reportSeries(s *series, elapsed time.Duration) *SeriesReport {
	r := &SeriesReport{Requests: s.requests, Messages: s.messages, Latency: reportLatency(&s.latency)}
	if elapsed > 0 {
		r.RequestRate = float64(s.requests) / elapsed.Seconds()
		r.MessageRate = float64(s.messages) / elapsed.Seconds()
	}
	return r
}

func reportLatency(h *Histogram) LatencyReport {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return LatencyReport{P50: ms(h.Quantile(0.5)), P99: ms(h.Quantile(0.99)), P999: ms(h.Quantile(0.999)), Max: ms(h.Max())}
}

// Failed reports whether any request failed or was answered with something else than what was asked for.
func (r *Report) Failed() bool {
	return len(r.Errors) > 0 || r.Statuses.Failed > 0 || r.Undelivered != nil && *r.Undelivered > 0
}

// WriteText prints the report for a person.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	if r.Mode == Publish {
		fmt.Fprintf(&b, "%s against %s\n", r.Mode, r.Target)
		fmt.Fprintf(&b, "  %d connections, bodies of %d bytes, %d cores, %.1f s\n", r.Conns, r.Payload, r.Cores, r.Seconds)
	} else {
		fmt.Fprintf(&b, "%s against %s, queue %s\n", r.Mode, r.Target, r.Queue)
		fmt.Fprintf(&b, "  %d connections, batch %d, %d partitions, payloads of %d bytes, %d cores, %.1f s\n",
			r.Conns, r.Batch, r.Partitions, r.Payload, r.Cores, r.Seconds)
	}
	produced := "push"
	if r.Mode == Publish {
		produced = "publish"
	}
	for _, s := range []struct {
		name   string
		series *SeriesReport
	}{{produced, r.Push}, {"pop", r.Pop}, {"ack", r.Ack}} {
		if s.series != nil {
			fmt.Fprintf(&b, "  %-9s %s\n", s.name, s.series)
		}
	}
	if r.Delivery != nil {
		fmt.Fprintf(&b, "  %-9s %s; undelivered %d\n", "delivery", r.Delivery, *r.Undelivered)
		if r.Mode == Publish {
			fmt.Fprintf(&b, "  %-9s %.0f messages/s\n", "delivered", r.Deliveries)
		}
	}
	if r.Push != nil && r.Mode != Publish {
		fmt.Fprintf(&b, "  %-9s queued %d, duplicate %d, buffered %d, failed %d\n", "statuses",
			r.Statuses.Queued, r.Statuses.Duplicate, r.Statuses.Buffered, r.Statuses.Failed)
	}
	fmt.Fprintf(&b, "  %-9s %s\n", "http", counts(r.HTTP))
	fmt.Fprintf(&b, "  %-9s %s\n", "errors", counts(r.Errors))
	fmt.Fprintf(&b, "  %-9s broker %s, postgresql %s, bench %s\n", "cpu", cpuText(r.CPU.Broker), cpuText(r.CPU.Postgres), cpuText(r.CPU.Bench))
	if c := r.Baseline; c != nil {
		for i, round := range c.Rounds {
			fmt.Fprintf(&b, "  round %-3d %s %.0f messages/s (p99 %.1f ms), rows %.0f/s (p99 %.1f ms)\n", i+1, produced,
				round.Push.MessageRate, round.Push.Latency.P99, round.Rows.MessageRate, round.Rows.Latency.P99)
		}
		fmt.Fprintf(&b, "  %-9s %s %.0f messages/s, rows %.0f/s, ratio %.2f\n", "median", produced, c.PushMedian, c.RowMedian, c.Ratio)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is one line.
func (s *SeriesReport) String() string {
	return fmt.Sprintf("%.0f messages/s, %.0f requests/s, %s", s.MessageRate, s.RequestRate, s.Latency)
}

// String is one line.
func (l LatencyReport) String() string {
	return fmt.Sprintf("p50 %.2f, p99 %.2f, p99.9 %.2f, max %.2f ms", l.P50, l.P99, l.P999, l.Max)
}

func counts(m map[string]int64) string {
	if len(m) == 0 {
		return "none"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s: %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

func cpuText(s *float64) string {
	if s == nil {
		return "n/a"
	}
	return fmt.Sprintf("%.2f s", *s)
}
