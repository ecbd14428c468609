package bench

import (
	"bufio"
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

// sink is the destination of mode publish: it takes everything at once and notes when it came. It answers in the goroutine
// that reads, with one system call: http.Server costs twice as much, which on a machine with few cores is the measured
// broker's processor time.
type sink struct {
	listener net.Listener
	url      string
	silent   bool // it answers nothing

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	inbox  *inbox // of the phase that is measured; nil between phases
}

// inbox is what came of one phase.
type inbox struct {
	path    string
	seen    map[string]bool // ids of messages; a broker may deliver one twice
	latency Histogram       // from just before a publish is sent, or from when it was due, to the arrival
	last    time.Time
}

func openSink(ctx context.Context, silent bool) (*sink, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("open a destination: %w", err)
	}
	s := &sink{listener: listener, silent: silent, url: "http://" + listener.Addr().String(), conns: map[net.Conn]struct{}{}}
	go s.serve()
	return s, nil
}

// close gives up the connections, whatever Close says.
func (s *sink) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for nc := range s.conns {
		_ = nc.Close()
	}
}

func (s *sink) serve() {
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			return
		}
		if s.admit(nc) {
			go s.converse(nc)
		}
	}
}

func (s *sink) admit(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = nc.Close()
		return false
	}
	s.conns[nc] = struct{}{}
	return true
}

var taken = []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

// converse takes the deliveries of one connection. What is no HTTP ends it.
func (s *sink) converse(nc net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, nc)
		_ = nc.Close()
	}()
	reader := bufio.NewReaderSize(nc, 16<<10)
	for {
		d, err := readDelivery(reader)
		if err != nil {
			return
		}
		if s.silent {
			continue
		}
		s.take(d)
		if _, err := nc.Write(taken); err != nil || d.last {
			return
		}
	}
}

// delivery is a request that the sink got.
type delivery struct {
	at       time.Time // when its first byte was seen
	path, id string
	body     []byte
	last     bool // of its connection
}

func readDelivery(reader *bufio.Reader) (delivery, error) {
	if _, err := reader.Peek(1); err != nil {
		return delivery{}, err
	}
	d := delivery{at: time.Now()}
	var err error
	if h, ok := plainHead(reader); ok {
		id, _ := h.field("upstash-message-id")
		d.path, d.id = string(h.path()), string(id)
		d.body, err = io.ReadAll(io.LimitReader(reader, h.length))
		return d, err
	}
	r, err := http.ReadRequest(reader)
	if err != nil {
		return delivery{}, err
	}
	d.path, d.id, d.last = r.URL.Path, r.Header.Get("Upstash-Message-Id"), r.Close
	d.body, err = io.ReadAll(r.Body)
	return d, err
}

// take counts a delivery.
func (s *sink) take(d delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.inbox; in != nil && d.path == in.path && !in.seen[d.id] {
		if sent, ok := sentAt(d.body); ok {
			in.seen[d.id] = true
			in.latency.Record(d.at.Sub(sent))
			in.last = d.at
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

// publish publishes for one phase, and waits until what was accepted has been delivered, unless nothing will be.
func (l *load) publish(ctx context.Context, p phase) *tally {
	path := "/" + p.name
	l.sink.begin(path)
	start := time.Now()
	sum := l.crowd(ctx, l.cfg.Conns, func(worker int, c *conn, t *tally) {
		filler := strings.Repeat("x", l.cfg.Payload-stampDigits)
		pace := newPace(start, l.cfg.Rate, 1, worker, l.cfg.Conns)
		to := publishPath + l.sink.url + path
		if l.cfg.Delay > 0 {
			to += "?Upstash-Delay=" + strconv.Itoa(int(l.cfg.Delay.Seconds())) + "s"
		}
		var body []byte
		for ctx.Err() == nil {
			at, ok := pace.next(ctx, p.until)
			if !ok || p.most.take(1) == 0 {
				return
			}
			body = append(strconv.AppendInt(body[:0], at.UnixNano(), 10), filler...)
			if !l.publishOnce(c, t, to, body, at) && !pauseAfterError(ctx) {
				return
			}
		}
	})
	if l.cfg.acceptsOnly() {
		l.sink.end()
		return sum
	}
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
