package bench

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// quick is a run of a few hundred messages.
func quick(mode Mode, url string) Config {
	cfg := DefaultConfig(mode)
	cfg.URL, cfg.Conns, cfg.Batch, cfg.PopBatch, cfg.MaxMessages = url, 4, 5, 7, 300
	cfg.Duration, cfg.Warmup = 5*time.Second, 0
	return cfg
}

func TestHistogramQuantilesMatchSortedSamples(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var h Histogram
	var samples []time.Duration
	for range 20_000 {
		d := time.Duration(math.Exp(random.Float64()*18)) * time.Nanosecond // 1 ns to 65 ms
		samples = append(samples, d)
		h.Record(d)
	}
	slices.Sort(samples)
	for _, q := range []float64{0.001, 0.5, 0.9, 0.99, 0.999, 1} {
		exact := samples[int(math.Ceil(q*float64(len(samples))))-1]
		got := h.Quantile(q)
		if got < exact || float64(got) > float64(exact)*(1+1.0/128)+1 {
			t.Errorf("quantile %v = %v, exact value %v", q, got, exact)
		}
	}
	if h.Max() != samples[len(samples)-1] || h.total != 20_000 {
		t.Errorf("max %v, count %d", h.Max(), h.total)
	}
}

func TestHistogramBucketsCoverEveryValueOnce(t *testing.T) {
	t.Parallel()
	for _, v := range []uint64{0, 1, 127, 128, 129, 255, 256, 257, 1 << 20, 1<<20 + 1<<13, 1<<40 - 1, math.MaxInt64} {
		b := bucketOf(v)
		if upper := uint64(upperBound(b)); upper < v || bucketOf(upper) != b || upper != math.MaxInt64 && bucketOf(upper+1) != b+1 {
			t.Errorf("value %d: bucket %d ends at %d", v, b, upper)
		}
	}
}

func TestHistogramMergeAndEmpty(t *testing.T) {
	t.Parallel()
	var a, b Histogram
	if a.Quantile(0.5) != 0 {
		t.Error("an empty histogram has a quantile")
	}
	a.Record(time.Millisecond)
	b.Record(time.Second)
	b.Record(-time.Second)
	a.Merge(&b)
	if a.total != 3 || a.Max() != time.Second || a.Quantile(0) != 0 {
		t.Errorf("count %d, max %v, minimum %v", a.total, a.Max(), a.Quantile(0))
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.in); got != c.want {
			t.Errorf("median of %v = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestComparisonSummary(t *testing.T) {
	t.Parallel()
	var b BaselineReport
	for _, r := range [][2]float64{{100, 50}, {300, 40}, {200, 1000}} {
		b.Rounds = append(b.Rounds, RoundReport{Push: SeriesReport{MessageRate: r[0]}, Rows: SeriesReport{MessageRate: r[1]}})
	}
	b.summarize()
	if b.PushMedian != 200 || b.RowMedian != 50 || b.Ratio != 4 {
		t.Errorf("summary %+v", b)
	}
}

func TestTargetsThatAreNotLoopbackAreRefused(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://192.0.2.1:6632", "http://0.0.0.0:6632", "http://[2001:db8::1]:80", "http://[::]:80", "http://10.0.0.1"} {
		if _, err := ParseTarget(t.Context(), url); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v", url, err)
		}
		if _, err := Run(t.Context(), quick(Push, url)); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("run against %s: %v", url, err)
		}
	}
	for _, url := range []string{"", "https://127.0.0.1:1", "127.0.0.1:6632", "http://127.0.0.1:1/api", "http://127.0.0.1:99999"} {
		if _, err := ParseTarget(t.Context(), url); err == nil {
			t.Errorf("%q was accepted", url)
		}
	}
	for _, url := range []string{"http://127.0.0.1:6632", "http://127.8.9.1:1", "http://[::1]:6632/", "http://localhost:6632", "http://[::ffff:127.0.0.1]:1"} {
		if _, err := ParseTarget(t.Context(), url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestBaselinesThatAreNotLoopbackAreRefused(t *testing.T) {
	t.Parallel()
	cfg := quick(Push, startScript(t, &script{}))
	for _, url := range []string{"postgres://u@192.0.2.1:5432/db", "postgres://u@127.0.0.1:5432,192.0.2.1:5432/db"} {
		cfg.Baseline = url
		if _, err := Run(t.Context(), cfg); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestConfigurationProblemsAreReportedTogether(t *testing.T) {
	t.Parallel()
	cfg := quick(EndToEnd, "http://127.0.0.1:1")
	cfg.Conns, cfg.Payload, cfg.Ack, cfg.Baseline = 0, MinStampedPayload-1, "some", "postgres://"
	_, err := Run(t.Context(), cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"conns 0", "payload 20", `ack "some"`, "mode push"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not mention %q", err, want)
		}
	}
}

func TestPushCountsMessagesAndRequests(t *testing.T) {
	t.Parallel()
	s := &script{}
	cfg := quick(Push, startScript(t, s))
	cfg.Partitions, cfg.SpreadItem = 3, true
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Messages != 300 || r.Push.Requests != 60 || r.Statuses != (Statuses{Queued: 300}) || r.HTTP["201"] != 60 || r.Failed() {
		t.Errorf("report %+v, push %+v", r, r.Push)
	}
	if r.Push.Latency.P50 <= 0 || r.Push.Latency.P50 > r.Push.Latency.P99 || r.Push.Latency.P999 > r.Push.Latency.Max {
		t.Errorf("latency %v", r.Push.Latency)
	}
	if got := float64(r.Push.Messages) / r.Seconds; math.Abs(got-r.Push.MessageRate) > 1e-6 {
		t.Errorf("rate %v, want %v", r.Push.MessageRate, got)
	}
	if len(s.seen) != 300 {
		t.Errorf("%d different transactionIds for 300 messages", len(s.seen))
	}
	partitions := map[string]int{}
	for _, m := range s.queued {
		partitions[m.PartitionID]++
		if len(m.Data) != cfg.Payload {
			t.Fatalf("payload %s has %d bytes, want %d", m.Data, len(m.Data), cfg.Payload)
		}
	}
	if len(partitions) != 3 || partitions["id-of-p-0"] < 90 || partitions["id-of-p-0"] > 110 {
		t.Errorf("spread over partitions: %v", partitions)
	}
}

func TestWarmupIsNotCounted(t *testing.T) {
	t.Parallel()
	s := &script{}
	cfg := quick(Push, startScript(t, s))
	cfg.Warmup = time.Second
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Messages != 300 || len(s.seen) != 600 {
		t.Errorf("%d messages reported, %d sent", r.Push.Messages, len(s.seen))
	}
}

func TestPushReportsWhatWentWrong(t *testing.T) {
	t.Parallel()
	s := &script{
		status: func(n int) string { return []string{"queued", "buffered", "failed", "duplicate", "queued"}[n%5] },
		http: func(n int) int {
			if n%10 == 0 {
				return 503
			}
			return 201
		},
	}
	r, err := Run(t.Context(), quick(Push, startScript(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	want := Statuses{Queued: 108, Buffered: 54, Failed: 54, Duplicate: 54}
	if r.Statuses != want || r.Push.Messages != 108 || r.HTTP["503"] != 6 || r.Errors["push answered 503"] != 6 || !r.Failed() {
		t.Errorf("statuses %+v, http %v, errors %v, messages %d", r.Statuses, r.HTTP, r.Errors, r.Push.Messages)
	}
}

func TestUnreachableTargetIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := Run(t.Context(), quick(Push, "http://127.0.0.1:1")); err == nil || !strings.Contains(err.Error(), "first request") {
		t.Errorf("error %v", err)
	}
}

func TestPopAcknowledgesEverything(t *testing.T) {
	t.Parallel()
	for mode, acked := range map[AckMode]int{AckAll: 300, AckAuto: 0} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s := &script{}
			cfg := quick(Pop, startScript(t, s))
			cfg.Ack = mode
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if r.Pop.Messages != 300 || len(s.acked) != acked || r.Failed() || (r.Ack == nil) != (mode == AckAuto) {
				t.Errorf("popped %d, acknowledged %d, errors %v", r.Pop.Messages, len(s.acked), r.Errors)
			}
			if r.Ack != nil && (r.Ack.Messages != 300 || r.Ack.Requests != r.Pop.Requests) {
				t.Errorf("acks %+v for pops %+v", r.Ack, r.Pop)
			}
		})
	}
}

func TestAckLastNamesTheLastMessageOfEachPartition(t *testing.T) {
	t.Parallel()
	var p popped
	err := p.parse([]byte(`{"leaseId":"L","partitionId":"a","messages":[{"transactionId":"1","data":"x","partitionId":"a","leaseId":"L"},` +
		`{"transactionId":"2","data":"x","partitionId":"a"},{"transactionId":"3","data":"x","partitionId":"b"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	body, n := p.ack(nil, `g"1`, AckLast)
	want := `{"consumerGroup":"g\"1","acknowledgments":[{"transactionId":"2","partitionId":"a","leaseId":"L","status":"completed"},` +
		`{"transactionId":"3","partitionId":"b","leaseId":"L","status":"completed"}]}`
	if n != 2 || string(body) != want {
		t.Errorf("%d items: %s", n, body)
	}
}

func TestEndToEndMeasuresDelivery(t *testing.T) {
	t.Parallel()
	s := &script{delay: 2 * time.Millisecond}
	cfg := quick(EndToEnd, startScript(t, s))
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Messages != 300 || r.Pop.Messages != 300 || *r.Undelivered != 0 || r.Failed() {
		t.Errorf("pushed %d, popped %d, undelivered %d, errors %v", r.Push.Messages, r.Pop.Messages, *r.Undelivered, r.Errors)
	}
	// The script holds each push for 2 ms after the message was stamped.
	if r.Delivery.P50 < 2 || r.Delivery.P50 > r.Delivery.Max {
		t.Errorf("delivery %v", r.Delivery)
	}
}

func TestRateLimitsProducers(t *testing.T) {
	t.Parallel()
	cfg := quick(Push, startScript(t, &script{}))
	cfg.Rate, cfg.MaxMessages, cfg.Duration = 1000, 1_000_000, 500*time.Millisecond
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Messages < 400 || r.Push.Messages > 500 {
		t.Errorf("%d messages in half a second at 1000/s", r.Push.Messages)
	}
}

func TestCancelledRunReportsWhatItHas(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := &script{http: func(n int) int {
		if n == 20 {
			cancel()
		}
		return 201
	}}
	cfg := quick(Push, startScript(t, s))
	cfg.MaxMessages, cfg.Duration = 1_000_000, time.Minute
	r, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r.Push.Requests < 20 || r.Push.Requests > 30 {
		t.Errorf("%d requests", r.Push.Requests)
	}
}

func TestReportText(t *testing.T) {
	t.Parallel()
	used := 1.5
	r := Report{
		Mode: EndToEnd, Target: "http://127.0.0.1:6632", Queue: "q", Push: &SeriesReport{MessageRate: 10, RequestRate: 5, Latency: LatencyReport{1, 2, 3, 4}},
		Delivery: &LatencyReport{5, 6, 7, 8}, Undelivered: new(int64), HTTP: map[string]int64{"201": 3, "200": 1}, CPU: CPU{Broker: &used},
		Baseline: &BaselineReport{Rounds: make([]RoundReport, 1), PushMedian: 6, RowMedian: 4, Ratio: 1.5},
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"10 messages/s, 5 requests/s, p50 1.00, p99 2.00, p99.9 3.00, max 4.00 ms", "p50 5.00", "200: 1, 201: 3", "errors    none",
		"broker 1.50 s, postgresql n/a", "ratio 1.50",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestProcessorTimeOfThisProgram(t *testing.T) {
	t.Parallel()
	url := startScript(t, &script{})
	target, err := ParseTarget(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	procs := findProcesses(processes{}, int(target.Address.Port()), "")
	c := procs.read()
	if c.Bench == nil {
		if procs != (processes{}) {
			t.Errorf("processes %+v without processor time", procs)
		}
		return // no /proc on this system
	}
	if procs.broker != os.Getpid() || c.Broker == nil {
		t.Errorf("listener %+v, want %d", procs, os.Getpid())
	}
	if d := procs.read().since(c); d.Postgres != nil || *d.Bench < 0 {
		t.Errorf("difference %+v", d)
	}
}
