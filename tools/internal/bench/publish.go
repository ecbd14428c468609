package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// sink is the destination of mode publish: it takes everything at once and notes when it came.
type sink struct {
	server *http.Server
	url    string

	mu    sync.Mutex
	inbox *inbox // of the phase that is measured; nil between phases
}

// inbox is what came of one phase.
type inbox struct {
	path    string
	seen    map[string]bool // ids of messages; a broker may deliver one twice
	latency Histogram       // from just before a publish is sent, or from when it was due, to the arrival
	last    time.Time
}

func openSink(ctx context.Context) (*sink, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a destination: %w", err)
	}
	s := &sink{url: "http://" + listener.Addr().String()}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: requestTimeout}
	go s.server.Serve(listener) //nolint:errcheck // until close
	return s, nil
}

func (s *sink) close() { _ = s.server.Close() } // it is given up whatever Close says

// ServeHTTP takes a delivery.
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.Header.Get("Upstash-Message-Id")
	if in := s.inbox; in != nil && r.URL.Path == in.path && !in.seen[id] {
		if sent, ok := sentAt(body); ok {
			in.seen[id] = true
			in.latency.Record(at.Sub(sent))
			in.last = at
		}
	}
}

// begin counts what comes at a path from now on.
func (s *sink) begin(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inbox = &inbox{path: path, seen: map[string]bool{}}
}

// count is how many messages have come.
func (s *sink) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(len(s.inbox.seen))
}

// end returns what came.
func (s *sink) end() *inbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.inbox
	s.inbox = nil
	return in
}

const publishPath = "/v2/publish/"

// firstPublish proves that the broker takes a publish and may deliver it here.
func (l *load) firstPublish(ctx context.Context) error {
	c := newConn(ctx, l.target)
	defer c.close()
	status, answer, err := c.post(publishPath+l.sink.url+"/first", []byte("first"))
	if err != nil {
		return fmt.Errorf("first request to %s: %w", l.target.URL, err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("first request to %s: publish answered %d: %.200s (POSTHORN_EGRESS_ALLOW=127.0.0.0/8 lets a broker deliver to this machine)",
			l.target.URL, status, answer)
	}
	return nil
}

// publishes warms up and measures mode publish.
func (l *load) publishes(ctx context.Context, procs processes, round string) measured {
	if l.cfg.Warmup > 0 {
		l.publish(ctx, l.newPhase(round+"w", l.cfg.Warmup, l.cfg.MaxMessages))
	}
	return l.measure(procs, func() *tally {
		return l.publish(ctx, l.newPhase(round+"m", l.cfg.Duration, l.cfg.MaxMessages))
	})
}

// publish publishes for one phase, and waits until what was accepted has been delivered.
func (l *load) publish(ctx context.Context, p phase) *tally {
	path := "/" + p.name
	l.sink.begin(path)
	start := time.Now()
	sum := l.crowd(ctx, l.cfg.Conns, func(worker int, c *conn, t *tally) {
		filler := strings.Repeat("x", l.cfg.Payload-stampDigits)
		pace := newPace(start, l.cfg.Rate, 1, worker, l.cfg.Conns)
		var body []byte
		for ctx.Err() == nil {
			at, ok := pace.next(ctx, p.until)
			if !ok || p.most.take(1) == 0 {
				return
			}
			body = append(strconv.AppendInt(body[:0], at.UnixNano(), 10), filler...)
			if !l.publishOnce(c, t, publishPath+l.sink.url+path, body, at) && !pauseAfterError(ctx) {
				return
			}
		}
	})
	for giveUp := time.Now().Add(drainLimit); ctx.Err() == nil && l.sink.count() < sum.push.messages && time.Now().Before(giveUp); {
		pauseAfterError(ctx)
	}
	in := l.sink.end()
	sum.delivery.Merge(&in.latency)
	sum.delivered = int64(len(in.seen))
	if sum.delivered > 0 {
		sum.deliveredIn = in.last.Sub(start)
	}
	return sum
}

// publishOnce sends one publish and counts its answer; false when it failed.
func (l *load) publishOnce(c *conn, t *tally, path string, body []byte, since time.Time) bool {
	status, answer, err := c.post(path, body)
	done := time.Now()
	if err != nil {
		t.failed("publish", err)
		return false
	}
	if !t.answered("publish", status, http.StatusOK) {
		return false
	}
	if !strings.Contains(string(answer), `"messageId":"msg_`) {
		t.errors["publish answer not understood"]++
		return false
	}
	t.push.record(1, done.Sub(since))
	t.last = done
	return true
}
