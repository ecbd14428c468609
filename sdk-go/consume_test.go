package posthorn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// inProcess serves requests without a network, so that timers can be tested in a bubble.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(req *http.Request) (resp *http.Response, err error) {
	defer func() {
		if recover() != nil {
			resp, err = nil, io.ErrUnexpectedEOF
		}
	}()
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	rec := httptest.NewRecorder()
	served := req.Clone(req.Context())
	served.RequestURI = req.URL.RequestURI()
	if served.Body == nil {
		served.Body = http.NoBody
	}
	p.ServeHTTP(rec, served)
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return rec.Result(), nil
}

type sentAck struct {
	TransactionID, PartitionID, Status, LeaseID, Error string
}

// laneServer scripts the broker's side of a consumer: it answers pops with batches and then holds
// them, and it records acknowledgments and extensions.
type laneServer struct {
	t       testing.TB
	pops    []http.HandlerFunc // answers of the first pops; later ones are held until their timeout
	onAck   []http.HandlerFunc // answers of the first acknowledgments; nil entries and later ones succeed
	extends http.HandlerFunc   // nil means that the lease is extended

	mu       sync.Mutex
	queries  []string
	acks     [][]sentAck
	groups   []string
	extended []time.Time
}

func (s *laneServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case strings.HasPrefix(r.URL.Path, "/api/v1/pop"):
		s.mu.Lock()
		n := len(s.queries)
		s.queries = append(s.queries, r.RequestURI)
		s.mu.Unlock()
		if n < len(s.pops) {
			s.pops[n](w, r)
			return
		}
		hold(w, r)
	case r.URL.Path == "/api/v1/ack/batch":
		request := decode[struct {
			ConsumerGroup   string
			Acknowledgments []sentAck
		}](s.t, string(body))
		s.mu.Lock()
		n := len(s.acks)
		s.acks = append(s.acks, request.Acknowledgments)
		s.groups = append(s.groups, request.ConsumerGroup)
		s.mu.Unlock()
		if n < len(s.onAck) && s.onAck[n] != nil {
			s.onAck[n](w, r)
			return
		}
		answers := make([]map[string]any, len(request.Acknowledgments))
		for i, ack := range request.Acknowledgments {
			answers[i] = map[string]any{"index": i, "transactionId": ack.TransactionID, "success": true, "error": nil}
		}
		_ = json.NewEncoder(w).Encode(answers)
	case strings.HasSuffix(r.URL.Path, "/extend"):
		s.mu.Lock()
		s.extended = append(s.extended, time.Now())
		s.mu.Unlock()
		if r.URL.Path != "/api/v1/lease/L1/extend" {
			s.t.Errorf("extension at %s", r.URL.Path)
		}
		if s.extends != nil {
			s.extends(w, r)
			return
		}
		answer(200, `{"leaseId":"L1","success":true,"renewed":1,"newExpiresAt":"2026-01-02T03:04:05.678901Z"}`)(w, r)
	default:
		s.t.Errorf("unexpected %s %s", r.Method, r.RequestURI)
	}
}

// hold answers a long poll with 204 when its time is over.
func hold(w http.ResponseWriter, r *http.Request) {
	timeout, err := time.ParseDuration(r.URL.Query().Get("timeout") + "ms")
	if err != nil {
		panic(err)
	}
	select {
	case <-time.After(timeout):
	case <-r.Context().Done():
	}
	w.WriteHeader(http.StatusNoContent)
}

// batch answers a pop with messages named partition/transactionId under lease L1.
func batch(names ...string) http.HandlerFunc {
	messages := make([]map[string]any, len(names))
	for i, name := range names {
		partition, tx, _ := strings.Cut(name, "/")
		messages[i] = map[string]any{
			"id": "id-" + tx, "transactionId": tx, "traceId": nil, "data": map[string]any{"n": i}, "producerSub": nil,
			"createdAt": "2026-01-02T03:04:05.678901Z", "partitionId": "pid-" + partition, "partition": partition,
			"leaseId": "L1", "consumerGroup": "g", "queue": "q", "deliveryAttempt": 1,
		}
	}
	body, err := json.Marshal(map[string]any{"success": true, "queue": "q", "leaseId": "L1", "consumerGroup": "g", "messages": messages})
	if err != nil {
		panic(err)
	}
	return answer(200, string(body))
}

// consuming is a Consume that runs against a laneServer.
type consuming struct {
	server *laneServer
	stop   context.CancelFunc
	ended  chan error
}

var quiet = slog.New(slog.DiscardHandler)

func (s *laneServer) consume(opts posthorn.ConsumeOptions, handler posthorn.Handler) *consuming {
	s.t.Helper()
	client := newClient(s.t, "http://broker", posthorn.Options{
		HTTPClient: &http.Client{Transport: inProcess{s}},
		Retry:      posthorn.RetryPolicy{MaxAttempts: 2},
	})
	if opts.Queue == "" {
		opts.Queue = "q"
	}
	opts.ConsumerGroup = "g"
	opts.Logger = quiet
	ctx, cancel := context.WithCancel(s.t.Context())
	c := &consuming{server: s, stop: cancel, ended: make(chan error, 1)}
	go func() { c.ended <- client.Consume(ctx, opts, handler) }()
	return c
}

// end stops the consumer, wants a clean end and returns the acknowledgments.
func (c *consuming) end() [][]sentAck {
	c.server.t.Helper()
	c.stop()
	if err := <-c.ended; err != nil {
		c.server.t.Errorf("Consume returned %v", err)
	}
	return c.server.acks
}

func completed(name string) sentAck { return acked(name, "completed", "") }

func acked(name, status, text string) sentAck {
	partition, tx, _ := strings.Cut(name, "/")
	return sentAck{tx, "pid-" + partition, status, "L1", text}
}

func wantAcks(t *testing.T, got [][]sentAck, want ...[]sentAck) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("acknowledgments %+v\nwant            %+v", got, want)
	}
}

func TestConsumeHandlesInOrderAndAcksThePrefix(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "a/2", "b/3", "b/4"), batch("a/5")}}
		var seen []string
		c := server.consume(posthorn.ConsumeOptions{Partitions: 2, Batch: 10}, func(_ context.Context, m posthorn.Message) error {
			seen = append(seen, m.Partition+"/"+m.TransactionID)
			return nil
		})
		synctest.Wait()
		wantAcks(t, c.end(), []sentAck{completed("a/2"), completed("b/4")}, []sentAck{completed("a/5")})
		if want := []string{"a/1", "a/2", "b/3", "b/4", "a/5"}; !slices.Equal(seen, want) {
			t.Errorf("handled %v, want %v", seen, want)
		}
		if server.groups[0] != "g" {
			t.Errorf("acknowledged for group %q", server.groups[0])
		}
		if want := "/api/v1/pop/queue/q?batch=10&consumerGroup=g&leaseSeconds=60&partitions=2&timeout=30000&wait=true"; server.queries[0] != want {
			t.Errorf("popped %s, want %s", server.queries[0], want)
		}
	})
}

func TestConsumeReportsFailures(t *testing.T) {
	t.Parallel()
	broken := errors.New("no such customer")
	for name, test := range map[string]struct {
		fail func() error
		want sentAck
	}{
		"error":               {func() error { return broken }, acked("a/2", "failed", "no such customer")},
		"retry":               {func() error { return posthorn.Retry(broken) }, acked("a/2", "retry", "no such customer")},
		"retry without cause": {func() error { return posthorn.Retry(nil) }, acked("a/2", "retry", "handler asked for retry")},
		"dead letter":         {func() error { return posthorn.DeadLetter(broken) }, acked("a/2", "dlq", "no such customer")},
		"wrapped verdict":     {func() error { return fmt.Errorf("order 7: %w", posthorn.DeadLetter(broken)) }, acked("a/2", "dlq", "order 7: no such customer")},
		"panic":               {func() error { panic("index out of range") }, acked("a/2", "failed", "handler panicked: index out of range")},
		"bad text":            {func() error { return errors.New("\xff" + strings.Repeat("x", 5000)) }, acked("a/2", "failed", "\uFFFD"+strings.Repeat("x", 4095))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "a/2", "a/3", "b/4")}}
				var seen []string
				c := server.consume(posthorn.ConsumeOptions{}, func(_ context.Context, m posthorn.Message) error {
					seen = append(seen, m.TransactionID)
					if m.TransactionID == "2" {
						return test.fail()
					}
					return nil
				})
				time.Sleep(time.Minute)
				wantAcks(t, c.end(), []sentAck{completed("a/1"), test.want}, []sentAck{completed("b/4")})
				if want := []string{"1", "2", "4"}; !slices.Equal(seen, want) {
					t.Errorf("handled %v, want %v: 3 comes behind a failure, 4 is of another partition", seen, want)
				}
			})
		})
	}
	if !errors.Is(posthorn.Retry(broken), broken) {
		t.Error("Retry hides its cause")
	}
}

func TestConsumePausesAfterFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: slices.Repeat([]http.HandlerFunc{batch("a/1")}, 1000)}
		var times []time.Time
		c := server.consume(posthorn.ConsumeOptions{}, func(context.Context, posthorn.Message) error {
			times = append(times, time.Now())
			return posthorn.Retry(nil)
		})
		time.Sleep(time.Minute)
		c.end()
		// 100 ms doubling to 5 s, of which at least half: 6 pauses to get there, then at most 2.5 s each.
		if n := len(times); n < 12 || n > 35 {
			t.Errorf("%d deliveries of a failing message in a minute", n)
		}
		if first := times[1].Sub(times[0]); first < 50*time.Millisecond || first > 100*time.Millisecond {
			t.Errorf("first pause %v, want 50 to 100 ms", first)
		}
	})
}

func TestConsumeKeepsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1")}}
		start := time.Now()
		c := server.consume(posthorn.ConsumeOptions{Lease: time.Minute}, func(ctx context.Context, _ posthorn.Message) error {
			time.Sleep(130 * time.Second)
			return ctx.Err()
		})
		time.Sleep(200 * time.Second)
		wantAcks(t, c.end(), []sentAck{completed("a/1")})
		if len(server.extended) != 6 {
			t.Fatalf("%d extensions in 130 s, want 6", len(server.extended))
		}
		for i, at := range server.extended {
			if want := time.Duration(i+1) * 20 * time.Second; at.Sub(start) != want {
				t.Errorf("extension %d after %v, want %v", i, at.Sub(start), want)
			}
		}
	})
}

func TestConsumeDropsABatchWithoutLease(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		batch   http.HandlerFunc
		extends http.HandlerFunc
		lostAt  time.Duration
	}{
		"refused":     {batch("a/1", "a/2", "a/3"), answer(200, `{"leaseId":"L1","success":false,"renewed":0,"newExpiresAt":null}`), 20 * time.Second},
		"at the end":  {batch("a/1", "a/2"), answer(200, `{"leaseId":"L1","success":false,"renewed":0,"newExpiresAt":null}`), 20 * time.Second},
		"unavailable": {batch("a/1", "a/2", "a/3"), answer(503, `{"error":"no database"}`), 60 * time.Second},
		"unreachable": {batch("a/1", "a/2", "a/3"), cut, 60 * time.Second},
		"silent":      {batch("a/1", "a/2", "a/3"), silence, 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &laneServer{t: t, pops: []http.HandlerFunc{test.batch}, extends: test.extends}
				start := time.Now()
				var handled int
				var lostAt time.Duration
				c := server.consume(posthorn.ConsumeOptions{AckInterval: time.Hour}, func(ctx context.Context, m posthorn.Message) error {
					handled++
					if m.TransactionID == "1" {
						return nil
					}
					<-ctx.Done()
					lostAt = time.Since(start)
					if cause := context.Cause(ctx); !errors.Is(cause, posthorn.ErrLeaseExpired) {
						t.Errorf("the handler was cancelled by %v", cause)
					}
					return nil // even what was completed too late is not acknowledged
				})
				time.Sleep(5 * time.Minute)
				wantAcks(t, c.end())
				if handled != 2 || lostAt != test.lostAt {
					t.Errorf("%d messages handled, lease lost after %v, want 2 and %v", handled, lostAt, test.lostAt)
				}
			})
		})
	}
}

func TestConsumeDropsABatchWhoseLeaseEndsBetweenHandlers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{
			t: t, pops: []http.HandlerFunc{batch("a/1", "b/2")},
			onAck: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(10 * time.Second) // the extension after 20 s falls into it
				answer(200, `[{"index":0,"transactionId":"1","success":true}]`)(w, r)
			}},
			extends: answer(200, `{"success":false,"renewed":0}`),
		}
		var handled int
		c := server.consume(posthorn.ConsumeOptions{}, func(context.Context, posthorn.Message) error {
			handled++
			time.Sleep(15 * time.Second)
			return nil
		})
		time.Sleep(time.Minute)
		wantAcks(t, c.end(), []sentAck{completed("a/1")})
		if handled != 1 {
			t.Errorf("%d messages handled, the second one without a lease", handled)
		}
	})
}

// silence is a step that never answers.
func silence(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestConsumeSurvivesFailedExtensions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first http.HandlerFunc
		want  []time.Duration // when extensions are tried
	}{
		"cut":    {cut, []time.Duration{20 * time.Second, 24 * time.Second, 44 * time.Second}},
		"silent": {silence, []time.Duration{20 * time.Second, 44 * time.Second}}, // given up after 20 s, tried again 4 s later
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1")}}
				var n atomic.Int32
				server.extends = func(w http.ResponseWriter, r *http.Request) {
					if n.Add(1) == 1 {
						test.first(w, r)
						return
					}
					answer(200, `{"success":true,"renewed":1}`)(w, r)
				}
				start := time.Now()
				c := server.consume(posthorn.ConsumeOptions{}, func(ctx context.Context, _ posthorn.Message) error {
					time.Sleep(63 * time.Second)
					return ctx.Err()
				})
				time.Sleep(90 * time.Second)
				wantAcks(t, c.end(), []sentAck{completed("a/1")})
				var got []time.Duration
				for _, at := range server.extended {
					got = append(got, at.Sub(start))
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("extensions tried at %v, want %v", got, test.want)
				}
			})
		})
	}
}

func TestConsumeStopsGracefully(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "a/2", "a/3", "b/4", "b/5")}}
		var seen []string
		c := server.consume(posthorn.ConsumeOptions{AckInterval: time.Hour}, func(ctx context.Context, m posthorn.Message) error {
			seen = append(seen, m.TransactionID)
			if m.TransactionID == "2" {
				time.Sleep(20 * time.Second)
			}
			return ctx.Err()
		})
		time.Sleep(10 * time.Second)
		start := time.Now()
		acks := c.end()
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("the stop took %v, want the 10 s that the handler needed", took)
		}
		wantAcks(t, acks, []sentAck{completed("a/2"), acked("a/3", "retry", ""), acked("b/4", "retry", "")})
		if want := []string{"1", "2"}; !slices.Equal(seen, want) {
			t.Errorf("handled %v, want %v", seen, want)
		}
	})
}

func TestConsumeEndsTheGracePeriod(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		grace, want time.Duration
		result      error
		acks        []sentAck
		returns     error
	}{
		"default":   {0, 30 * time.Second, errors.New("half done"), []sentAck{acked("a/1", "retry", "half done")}, posthorn.ErrGracePeriod},
		"none":      {-1, 0, errors.New("half done"), []sentAck{acked("a/1", "retry", "half done")}, posthorn.ErrGracePeriod},
		"completed": {time.Second, time.Second, nil, []sentAck{completed("a/1"), acked("a/2", "retry", "")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "a/2")}}
				c := server.consume(posthorn.ConsumeOptions{GracePeriod: test.grace, AckInterval: time.Hour}, func(ctx context.Context, _ posthorn.Message) error {
					<-ctx.Done()
					if cause := context.Cause(ctx); !errors.Is(cause, posthorn.ErrGracePeriod) {
						t.Errorf("the handler was cancelled by %v", cause)
					}
					return test.result
				})
				synctest.Wait()
				start := time.Now()
				c.stop()
				if err := <-c.ended; !errors.Is(err, test.returns) {
					t.Errorf("Consume returned %v, want %v", err, test.returns)
				}
				if took := time.Since(start); took != test.want {
					t.Errorf("the stop took %v, want %v", took, test.want)
				}
				wantAcks(t, server.acks, test.acks)
			})
		})
	}
}

func TestConsumeStopsWhileIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t}
		c := server.consume(posthorn.ConsumeOptions{Concurrency: 3, PollTimeout: 10 * time.Second}, ignore)
		time.Sleep(65 * time.Second)
		start := time.Now()
		wantAcks(t, c.end())
		if took := time.Since(start); took != 0 {
			t.Errorf("the stop took %v", took)
		}
		if n := len(server.queries); n != 21 {
			t.Errorf("%d pops, want 7 of each lane", n)
		}
	})
}

func ignore(context.Context, posthorn.Message) error { return nil }

func TestConsumeOutlivesAnUnavailableBroker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{
			cut, answer(500, ``), answer(502, `<html>`), answer(200, `no JSON`), answer(204, ``), answer(429, ``),
			answer(503, `{"error":"no database"}`, "Retry-After", "40"), answer(503, ``, "Retry-After", "100000"), batch("a/1"),
		}}
		start := time.Now()
		var handledAt time.Duration
		c := server.consume(posthorn.ConsumeOptions{}, func(context.Context, posthorn.Message) error {
			handledAt = time.Since(start)
			return nil
		})
		time.Sleep(10 * time.Minute)
		wantAcks(t, c.end(), []sentAck{completed("a/1")})
		// Six pauses of 100 ms doubled, 40 s as asked (and a tenth of jitter), 60 s instead of a day.
		if handledAt < 100*time.Second || handledAt > 120*time.Second {
			t.Errorf("handled after %v", handledAt)
		}
	})
}

func TestConsumeDoesNotSpinOnEmptyAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: slices.Repeat([]http.HandlerFunc{answer(204, ``)}, 100000)}
		c := server.consume(posthorn.ConsumeOptions{}, ignore)
		time.Sleep(time.Minute)
		c.end()
		if n := len(server.queries); n > 40 {
			t.Errorf("%d pops in a minute of empty answers", n)
		}
	})
}

func TestConsumeGivesUpOnRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1"), func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Millisecond) // the other lane is at work by now
			answer(401, `{"error":"token expired"}`)(w, r)
		}}}
		c := server.consume(posthorn.ConsumeOptions{Concurrency: 2}, func(ctx context.Context, _ posthorn.Message) error {
			time.Sleep(time.Second)
			return ctx.Err()
		})
		if api := apiError(t, <-c.ended); api.Status != 401 {
			t.Errorf("error %v", api)
		}
		wantAcks(t, server.acks, []sentAck{completed("a/1")})
	})
}

func TestConsumeAcksWhileItWorks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		interval time.Duration
		want     [][]sentAck
	}{
		"default": {0, [][]sentAck{{completed("a/3")}, {completed("a/5")}}},
		"each":    {-1, [][]sentAck{{completed("a/1")}, {completed("a/2")}, {completed("a/3")}, {completed("a/4")}, {completed("a/5")}}},
		"at end":  {time.Hour, [][]sentAck{{completed("a/5")}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "a/2", "a/3", "a/4", "a/5")}}
				c := server.consume(posthorn.ConsumeOptions{AckInterval: test.interval}, func(context.Context, posthorn.Message) error {
					time.Sleep(400 * time.Millisecond)
					return nil
				})
				time.Sleep(10 * time.Second)
				wantAcks(t, c.end(), test.want...)
			})
		})
	}
}

func TestConsumeRepeatsLostAcks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// Two attempts per call: the first acknowledgment is lost for good, the next includes it.
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "b/2")}, onAck: []http.HandlerFunc{cut, answer(503, ``)}}
		c := server.consume(posthorn.ConsumeOptions{AckInterval: -1}, ignore)
		time.Sleep(10 * time.Second)
		wantAcks(t, c.end(),
			[]sentAck{completed("a/1")}, []sentAck{completed("a/1")},
			[]sentAck{completed("a/1"), completed("b/2")})
	})
}

func TestConsumeLeavesAPartitionWhoseAckWasRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{
			t: t, pops: []http.HandlerFunc{batch("a/1", "a/2", "b/3")},
			onAck: []http.HandlerFunc{answer(200, `[{"index":0,"transactionId":"1","success":false,"error":"invalid or expired lease"}]`)},
		}
		var seen []string
		c := server.consume(posthorn.ConsumeOptions{AckInterval: -1}, func(_ context.Context, m posthorn.Message) error {
			seen = append(seen, m.TransactionID)
			return nil
		})
		time.Sleep(10 * time.Second)
		wantAcks(t, c.end(), []sentAck{completed("a/1")}, []sentAck{completed("b/3")})
		if want := []string{"1", "3"}; !slices.Equal(seen, want) {
			t.Errorf("handled %v, want %v", seen, want)
		}
	})
}

func TestConsumeRunsLanesSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1", "a/2"), batch("b/3", "b/4"), batch("c/5")}}
		var running, most atomic.Int32
		c := server.consume(posthorn.ConsumeOptions{Concurrency: 2, AckInterval: time.Hour}, func(context.Context, posthorn.Message) error {
			n := running.Add(1)
			defer running.Add(-1)
			most.Store(max(most.Load(), n))
			time.Sleep(time.Second)
			return nil
		})
		time.Sleep(10 * time.Second)
		if acks := c.end(); len(acks) != 3 {
			t.Errorf("acknowledgments %v", acks)
		}
		if most.Load() != 2 {
			t.Errorf("%d handlers ran at a time, want 2", most.Load())
		}
	})
}

func TestConsumePopsLessAfterAnAnswerTooLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{answer(200, strings.Repeat(" ", 2000)), answer(200, strings.Repeat(" ", 2000)), batch("a/1")}}
		client := newClient(t, "http://broker", posthorn.Options{HTTPClient: &http.Client{Transport: inProcess{server}}, MaxResponseBytes: 1000})
		ctx, cancel := context.WithCancel(t.Context())
		err := client.Consume(ctx, posthorn.ConsumeOptions{Queue: "q", Batch: 3, Logger: quiet}, func(context.Context, posthorn.Message) error {
			cancel()
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		for i, want := range []string{"batch=3&", "batch=1&", "batch=1&"} {
			if !strings.Contains(server.queries[i], want) {
				t.Errorf("pop %d was %s, want %s", i, server.queries[i], want)
			}
		}
	})
}

func TestConsumeReportsAHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1")}}
		c := server.consume(posthorn.ConsumeOptions{Concurrency: 2}, func(context.Context, posthorn.Message) error {
			runtime.Goexit()
			return nil
		})
		if err := <-c.ended; err == nil {
			t.Error("Consume lost a lane without a word")
		}
	})
}

func TestConsumeChecksItsOptions(t *testing.T) {
	t.Parallel()
	client := newClient(t, "http://127.0.0.1:1", posthorn.Options{})
	for name, test := range map[string]struct {
		opts    posthorn.ConsumeOptions
		handler posthorn.Handler
	}{
		"no handler":  {posthorn.ConsumeOptions{Queue: "q"}, nil},
		"no queue":    {posthorn.ConsumeOptions{}, ignore},
		"partition":   {posthorn.ConsumeOptions{Namespace: "n", Partition: "p"}, ignore},
		"lanes":       {posthorn.ConsumeOptions{Queue: "q", Concurrency: -1}, ignore},
		"lease":       {posthorn.ConsumeOptions{Queue: "q", Lease: -time.Second}, ignore},
		"poll":        {posthorn.ConsumeOptions{Queue: "q", PollTimeout: -1}, ignore},
		"both routes": {posthorn.ConsumeOptions{Queue: "q", Task: "t"}, ignore},
	} {
		if err := client.Consume(testContext(t), test.opts, test.handler); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestConsumeOverHTTPLeavesNothingBehind(t *testing.T) {
	server := &laneServer{t: t, pops: []http.HandlerFunc{batch("a/1"), batch("a/2"), batch("a/3")}}
	before := runtime.NumGoroutine()
	web := httptest.NewServer(server)
	client, err := posthorn.New(web.URL, posthorn.Options{Retry: fast})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	var handled atomic.Int32
	err = client.Consume(ctx, posthorn.ConsumeOptions{Queue: "q", Concurrency: 4, Logger: quiet}, func(context.Context, posthorn.Message) error {
		if handled.Add(1) == 3 {
			cancel()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	client.Close()
	web.Close()
	if handled.Load() != 3 || len(server.acks) != 3 {
		t.Errorf("%d messages handled, %d acknowledgments", handled.Load(), len(server.acks))
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after\n%s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
		}
	}
}
