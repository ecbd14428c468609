package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	pushPath = "/api/v1/push"
	ackPath  = "/api/v1/ack/batch"

	// popWait is how long an empty pop parks. Short, so that consumers notice the end of a run; the wait of a pop that
	// finds nothing is not part of any latency.
	popWait = 500 * time.Millisecond

	// loadBatch is the size of the pushes that fill a queue before mode pop measures.
	loadBatch = 100

	// drainLimit bounds how long mode e2e waits for what was pushed but not yet popped when its producers stop.
	drainLimit = 10 * time.Second
)

// load is one run against one broker.
type load struct {
	cfg    Config
	target Target
	sink   *sink  // mode publish
	run    string // makes transactionIds unique between runs and phases
}

// newLoad checks the configuration and the target.
func newLoad(ctx context.Context, cfg Config) (*load, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	target, err := ParseTarget(ctx, cfg.URL)
	target.Token = cfg.Token
	if err != nil {
		return nil, err
	}
	run := strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // a name that is new on this machine, not a secret
	if cfg.Queue == "" {
		cfg.Queue = "bench-" + run
	}
	if cfg.Consumers == 0 {
		cfg.Consumers = cfg.Conns
	}
	return &load{cfg: cfg, target: target, run: run}, nil
}

// first proves that the broker answers a push as expected, and creates the queue.
func (l *load) first(ctx context.Context) error {
	if l.cfg.Mode == Publish {
		return l.firstPublish(ctx)
	}
	c := newConn(ctx, l.target)
	defer c.close()
	status, answer, err := c.post(pushPath, []byte(`{"items":[]}`))
	if err != nil {
		return fmt.Errorf("first request to %s: %w", l.target.URL, err)
	}
	if status != http.StatusCreated {
		return fmt.Errorf("first request to %s: push of no items answered %d: %.200s", l.target.URL, status, answer)
	}
	return nil
}

// crowd runs work on n goroutines, each with its own connection and tally, until all return, and merges what they
// counted.
func (l *load) crowd(ctx context.Context, n int, work func(worker int, c *conn, t *tally)) *tally {
	tallies := make([]*tally, n)
	var wg sync.WaitGroup
	for i := range n {
		tallies[i] = newTally()
		wg.Go(func() {
			c := newConn(ctx, l.target)
			defer c.close()
			work(i, c, tallies[i])
		})
	}
	wg.Wait()
	sum := newTally()
	for _, t := range tallies {
		sum.merge(t)
	}
	return sum
}

// budget is a number of messages shared by all producers of a phase.
type budget struct{ left atomic.Int64 }

// take returns how many of n messages may still be sent.
func (b *budget) take(n int) int {
	left := b.left.Add(int64(-n))
	return int(max(0, min(int64(n), left+int64(n))))
}

// phase is one stretch of load: for d, or until most messages were pushed.
type phase struct {
	name  string
	until time.Time
	most  *budget
}

func (l *load) newPhase(name string, d time.Duration, most int64) phase {
	p := phase{name: l.run + name, until: time.Now().Add(d), most: &budget{}}
	p.most.left.Store(most)
	return p
}

// producers pushes for one phase.
func (l *load) producers(ctx context.Context, p phase, batch int, rate int) *tally {
	start := time.Now()
	return l.crowd(ctx, l.cfg.Conns, func(worker int, c *conn, t *tally) {
		prod := newProducer(l.cfg, p.name, worker, l.cfg.Conns, l.cfg.Mode == EndToEnd)
		pace := newPace(start, rate, batch, worker, l.cfg.Conns)
		for ctx.Err() == nil {
			at, ok := pace.next(ctx, p.until)
			if !ok {
				return
			}
			n := p.most.take(batch)
			if n == 0 {
				return
			}
			if !l.pushOnce(c, t, prod.push(n), n, at) && !pauseAfterError(ctx) {
				return
			}
		}
	})
}

// pushOnce sends one push and counts its answer; false when the request as a whole failed. The latency starts at
// since: when the push was due, so that a paced producer that falls behind shows it.
func (l *load) pushOnce(c *conn, t *tally, body []byte, n int, since time.Time) bool {
	status, answer, err := c.post(pushPath, body)
	done := time.Now()
	if err != nil {
		t.failed("push", err)
		return false
	}
	if !t.answered("push", status, http.StatusCreated) {
		return false
	}
	s := countStatuses(answer)
	if s.total() != int64(n) {
		t.errors["push answer not understood"]++
		return false
	}
	t.statuses.add(s)
	t.push.record(s.Queued, done.Sub(since))
	t.last = done
	return true
}

// pauseAfterError keeps a refused or broken target from being hammered; false when ctx ended.
func pauseAfterError(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(10 * time.Millisecond):
		return true
	}
}

// consumers pops and acknowledges until stop says so. It is asked after each pop with the number of messages popped
// since the start.
func (l *load) consumers(ctx context.Context, n, batch int, stop func(popped int64) bool) *tally {
	params := url.Values{}
	params.Set("batch", strconv.Itoa(batch))
	params.Set("partitions", strconv.Itoa(l.cfg.Claim))
	params.Set("wait", "true")
	params.Set("timeout", strconv.FormatInt(popWait.Milliseconds(), 10))
	params.Set("autoAck", strconv.FormatBool(l.cfg.Ack == AckAuto))
	if l.cfg.Group != "" {
		params.Set("consumerGroup", l.cfg.Group)
	}
	path := "/api/v1/pop/queue/" + url.PathEscape(l.cfg.Queue) + "?" + params.Encode()
	var total atomic.Int64
	return l.crowd(ctx, n, func(_ int, c *conn, t *tally) {
		var got popped
		var body []byte
		for ctx.Err() == nil && !stop(total.Load()) {
			ok := l.popOnce(c, t, path, &got)
			if ok && len(got.transactionIDs) > 0 {
				total.Add(int64(len(got.transactionIDs)))
				if l.cfg.Ack != AckAuto {
					body, ok = l.ackOnce(c, t, &got, body)
				}
			}
			if !ok && !pauseAfterError(ctx) {
				return
			}
		}
	})
}

// popOnce sends one pop and counts its answer; false when it failed. An empty answer leaves got empty.
func (l *load) popOnce(c *conn, t *tally, path string, got *popped) bool {
	got.transactionIDs = got.transactionIDs[:0]
	start := time.Now()
	status, answer, err := c.get(path)
	done := time.Now()
	if err != nil {
		t.failed("pop", err)
		return false
	}
	if status == http.StatusNoContent {
		t.http[status]++
		t.emptyPops++
		return true
	}
	if !t.answered("pop", status, http.StatusOK) {
		return false
	}
	if err := got.parse(answer); err != nil {
		t.errors[err.Error()]++
		return false
	}
	t.pop.record(int64(len(got.transactionIDs)), done.Sub(start))
	t.last = done
	if l.cfg.Mode == EndToEnd {
		for _, data := range got.data {
			if at, ok := sentAt(data); ok {
				t.delivery.Record(done.Sub(at))
			}
		}
	}
	return true
}

// ackOnce acknowledges what was popped; false when any of it was not accepted. What got points to is in the
// connection's buffer, so the body is rendered before the request reuses it.
func (l *load) ackOnce(c *conn, t *tally, got *popped, body []byte) ([]byte, bool) {
	body, items := got.ack(body, l.cfg.Group, l.cfg.Ack)
	start := time.Now()
	status, answer, err := c.post(ackPath, body)
	done := time.Now()
	if err != nil {
		t.failed("ack", err)
		return body, false
	}
	if !t.answered("ack", status, http.StatusOK) {
		return body, false
	}
	if refused := items - bytes.Count(answer, []byte(`"success":true`)); refused > 0 {
		t.errors["ack item refused"] += int64(refused)
		return body, false
	}
	t.ack.record(int64(len(got.transactionIDs)), done.Sub(start))
	t.last = done
	return body, true
}

// measured is a tally with the time it took and the processor time that was used meanwhile.
type measured struct {
	*tally
	elapsed time.Duration
	cpu     CPU
}

// measure runs work between two readings of the processor time.
func (l *load) measure(procs processes, work func() *tally) measured {
	before, start := procs.read(), time.Now()
	t := work()
	after := procs.read()
	end := t.last
	if end.IsZero() {
		end = time.Now()
	}
	return measured{tally: t, elapsed: end.Sub(start), cpu: after.since(before)}
}

// pushes warms up and measures mode push.
func (l *load) pushes(ctx context.Context, procs processes, round string) measured {
	if l.cfg.Warmup > 0 {
		l.producers(ctx, l.newPhase(round+"w", l.cfg.Warmup, l.cfg.MaxMessages), l.cfg.Batch, l.cfg.Rate)
	}
	return l.measure(procs, func() *tally {
		return l.producers(ctx, l.newPhase(round+"m", l.cfg.Duration, l.cfg.MaxMessages), l.cfg.Batch, l.cfg.Rate)
	})
}

// errLoad says that mode pop could not fill its queue.
var errLoad = errors.New("could not load the queue")

// pops loads the queue, then measures mode pop. There is no warm-up: every message can be popped only once, and the
// loading has opened the broker's connections.
func (l *load) pops(ctx context.Context, procs processes) (measured, error) {
	loaded := l.producers(ctx, l.newPhase("l", time.Hour, l.cfg.MaxMessages), loadBatch, 0)
	if loaded.statuses.Queued == 0 {
		return measured{}, fmt.Errorf("%w: %v", errLoad, loaded.errors)
	}
	until := time.Now().Add(l.cfg.Duration)
	return l.measure(procs, func() *tally {
		return l.consumers(ctx, l.cfg.Conns, l.cfg.Batch, func(popped int64) bool {
			return popped >= loaded.statuses.Queued || !time.Now().Before(until)
		})
	}), nil
}

// endToEnd measures mode e2e: producers for the duration, consumers until they have everything.
func (l *load) endToEnd(ctx context.Context, procs processes) measured {
	if l.cfg.Warmup > 0 {
		l.together(ctx, l.newPhase("w", l.cfg.Warmup, l.cfg.MaxMessages))
	}
	return l.measure(procs, func() *tally { return l.together(ctx, l.newPhase("m", l.cfg.Duration, l.cfg.MaxMessages)) })
}

func (l *load) together(ctx context.Context, p phase) *tally {
	var produced atomic.Int64
	produced.Store(-1) // unknown until the producers have ended
	var giveUp atomic.Int64
	var consumed *tally
	var wg sync.WaitGroup
	wg.Go(func() {
		consumed = l.consumers(ctx, l.cfg.Consumers, l.cfg.PopBatch, func(popped int64) bool {
			n := produced.Load()
			return n >= 0 && (popped >= n || time.Now().UnixNano() > giveUp.Load())
		})
	})
	sum := l.producers(ctx, p, l.cfg.Batch, l.cfg.Rate)
	giveUp.Store(time.Now().Add(drainLimit).UnixNano())
	produced.Store(sum.statuses.Queued)
	wg.Wait()
	sum.merge(consumed)
	return sum
}
