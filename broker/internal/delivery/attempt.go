package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/posthorn/posthorn/broker/internal/delivery/retry"
	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/sign"
)

// Bounds on what is read of an answer, in bytes (publish contract, section 10).
const (
	responseLimit = 64 << 10
	callbackLimit = 1 << 20
)

// statusNonRetryable is the status that, with the header nonRetryableHeader, ends a message at once.
const (
	statusNonRetryable = 489
	nonRetryableHeader = "Upstash-Nonretryable-Error"
)

// outcome is what became of one attempt.
type outcome struct {
	job       *job
	message   *Stored
	start     time.Time // database time; zero when nothing was sent
	delivered bool
	final     bool           // no retry can help
	after     *time.Duration // before the next attempt, as the destination asked; nil: it did not
	status    int            // 0: there was no answer
	header    http.Header
	body      []byte
	err       string // "" when delivered

	done chan struct{}
}

// begin starts the attempt of a job. The dispatcher calls it with its lock held.
func (e *Engine) begin(j *job) {
	e.attempts.Go(func() {
		o, r := e.attempt(j)
		e.dispatch.sent(j, r)
		if o != nil {
			e.outcomes.Add(o)
			<-o.done
		}
		e.leases.give(j.lease, 1)
		e.handed.Release(j.handed)
		e.loaded.Release(j.loaded)
		e.dispatch.done(j)
	})
}

// attempt makes one attempt. The outcome is nil when the engine stops: then whoever takes the task next makes the attempt
// again; or when there is no message.
func (e *Engine) attempt(j *job) (*outcome, reach) {
	m := j.content
	if m == nil {
		size := min(int64(j.size), e.cfg.Memory/2)
		if e.loaded.Acquire(e.ctx, size) != nil {
			return nil, unknown
		}
		j.loaded = size
		if m = e.content(j); m == nil {
			return nil, unknown
		}
	}
	o := &outcome{job: j, message: m, done: make(chan struct{})}
	if j.cancelled {
		return o, unknown
	}
	if o.start = e.clock.Now(); o.start.Before(j.from) {
		o.start = j.from
	}
	e.metrics.began(o)
	began := time.Now()
	r := e.send(o)
	o.err = storable(o.err)
	e.metrics.attemptSeconds.Observe(time.Since(began).Seconds())
	if e.ctx.Err() != nil && !o.delivered {
		return nil, unknown // it was cut off by the stop, which says nothing about the destination
	}
	return o, r
}

// content reads the message of a job, however long the database is away.
func (e *Engine) content(j *job) *Stored {
	for {
		l := &load{id: j.message, done: make(chan struct{})}
		e.loads.Add(l)
		<-l.done
		switch {
		case l.err == nil && l.message == nil:
			e.dropOrphan(j)
			return nil
		case l.err == nil:
			return l.message
		}
		e.dispatch.pauseUnless(e.leases.fresh())
		if !e.pause(time.Second) {
			return nil
		}
	}
}

// sqlDropOrphan ends a task without a message, and lets the next one have its place.
const sqlDropOrphan = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting),
gone as (
    delete from delivery_task where message_id = $1 and target = $2 and lease = $3
    returning queue_lane, flow_lane)
insert into delivery_wake (lane, at)
select distinct l.lane, t.now from gone cross join t cross join lateral (values (queue_lane), (flow_lane)) l(lane)
where l.lane is not null`

// dropOrphan removes a task that can never be made: somebody has deleted its message. Its lease would hold it for ever.
func (e *Engine) dropOrphan(j *job) {
	ctx, cancel := e.deadline(e.ctx)
	defer cancel()
	_, err := e.pool.Exec(ctx, sqlDropOrphan, j.message, j.target, j.lease.id)
	e.log.Error("a task has no message: it is removed", "message", MessageID(j.message), "target", j.target, "error", err)
	if err != nil {
		e.leases.retire()
	}
	signal(e.due)
}

// send makes the attempt and notes what came of it.
func (e *Engine) send(o *outcome) reach {
	m := o.message
	if o.job.target >= len(m.Targets) {
		o.final, o.err = true, "the message has no such target"
		return unknown
	}
	target := m.Targets[o.job.target]
	timeout := e.cfg.Timeout
	if m.Timeout > 0 {
		timeout = min(timeout, m.Timeout)
	}
	if name, ok := strings.CutPrefix(target.URL, queueScheme); ok {
		return e.enqueue(o, name, timeout)
	}
	ctx, cancel := context.WithTimeout(e.ctx, timeout)
	defer cancel()
	u, err := url.Parse(target.URL)
	if err != nil {
		o.final, o.err = true, "the destination is no URL: "+err.Error()
		return unknown
	}
	header, err := e.requestHeader(o, target)
	if err != nil {
		o.err = err.Error()
		return unknown
	}
	limit := int64(responseLimit)
	if m.Callback != nil || m.FailureCallback != nil {
		limit = callbackLimit
	}
	res, err := e.cfg.Client.Do(ctx, egress.Request{Method: m.Method, URL: u, Header: header, Body: m.Body, MaxBody: limit})
	if err != nil {
		o.err = errorText(ctx, err, timeout)
		if _, blocked := errors.AsType[*egress.BlockedError](err); blocked {
			o.final = true
			e.metrics.blocked.Inc()
			return unknown
		}
		return silent
	}
	o.status, o.header, o.body = res.Status, res.Header, res.Body
	switch {
	case res.Status/100 == 2:
		o.delivered = true
		return answered
	case res.Status == statusNonRetryable && strings.EqualFold(res.Header.Get(nonRetryableHeader), "true"):
		o.final = true
	default:
		if pause, asked := retry.Asked(res.Header, time.Now()); asked {
			o.after = &pause
		}
	}
	o.err = "the destination answered " + strconv.Itoa(res.Status)
	if res.Status == http.StatusTooManyRequests || res.Status == http.StatusServiceUnavailable {
		return silent
	}
	return answered
}

// queueScheme begins a target that is a partition of an ordered queue.
const queueScheme = "queue:"

// QueueTarget is the target that is a partition of an ordered queue; an empty partition is the default one.
func QueueTarget(queue, partition string) Target {
	target := queueScheme + url.PathEscape(queue)
	if partition != "" {
		target += "/" + url.PathEscape(partition)
	}
	return Target{URL: target}
}

func parseQueueTarget(name string) (queue, partition string, err error) {
	queue, partition, _ = strings.Cut(name, "/")
	if queue, err = url.PathUnescape(queue); err != nil {
		return "", "", err
	}
	partition, err = url.PathUnescape(partition)
	return queue, partition, err
}

// enqueue puts a message into an ordered queue. Its deduplication id is the transaction id, and without one the message's id
// is, so that a repeated attempt is a duplicate there.
func (e *Engine) enqueue(o *outcome, name string, timeout time.Duration) reach {
	if e.cfg.Queues == nil {
		o.final, o.err = true, "there are no queues here"
		return unknown
	}
	queue, partition, err := parseQueueTarget(name)
	if err != nil {
		o.final, o.err = true, err.Error()
		return unknown
	}
	transaction := o.message.TransactionID
	if transaction == "" {
		transaction = MessageID(o.message.ID)
	}
	if err := e.deliverPatiently(queue, partition, transaction, o.message.Body, timeout); err != nil {
		o.err = "the queue did not take the message: " + err.Error()
		return unknown
	}
	o.delivered, o.status = true, http.StatusCreated
	return answered
}

// deliverPatiently repeats while the database is away: that says nothing about the queue, and costs no attempt. The error is one
// that came although the database was there.
func (e *Engine) deliverPatiently(queue, partition, transaction string, body []byte, timeout time.Duration) error {
	for there := false; ; {
		ctx, cancel := context.WithTimeout(e.ctx, timeout)
		err := e.cfg.Queues.Deliver(ctx, queue, partition, transaction, json.RawMessage(body))
		cancel()
		if err == nil || !errors.Is(err, ErrUnavailable) || there {
			return err
		}
		if there = e.answers(); !there && !e.pause(250*time.Millisecond) {
			return err
		}
	}
}

// answers reports whether the database does.
func (e *Engine) answers() bool {
	ctx, cancel := e.deadline(e.ctx)
	defer cancel()
	_, err := readNow(ctx, e.pool)
	if err != nil {
		e.pool.Reset()
	}
	return err == nil
}

// requestHeader is the head of a delivery (publish contract, section 10). Signatures are of this moment by the real clock,
// which is the receiver's.
func (e *Engine) requestHeader(o *outcome, target Target) (http.Header, error) {
	m := o.message
	h := make(http.Header, len(m.Header)+12)
	maps.Copy(h, m.Header)
	if h.Get("User-Agent") == "" {
		h.Set("User-Agent", "Upstash-QStash")
	}
	h.Set("Upstash-Message-Id", MessageID(m.ID))
	h.Set("Upstash-Retried", strconv.Itoa(o.job.retried))
	for name, value := range map[string]string{
		"Upstash-Schedule-Id": m.ScheduleID, "Upstash-Topic-Name": m.Topic, "Upstash-Caller-Ip": m.CallerIP,
	} {
		if value != "" {
			h.Set(name, value)
		}
	}
	err := sign.Headers(h, e.keys.Load().Current, sign.Delivery{
		MessageID: MessageID(m.ID), URL: target.URL, Body: m.Body, At: time.Now(),
	})
	return h, err
}

// errorText says why there was no answer, without addresses of this machine.
func errorText(ctx context.Context, err error, timeout time.Duration) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return "no answer within " + timeout.String()
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		bare := *lookup
		bare.Server = ""
		return bare.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Source != nil {
		bare := *op
		bare.Source = nil
		return bare.Error()
	}
	return err.Error()
}

// storable makes a text one that PostgreSQL can store.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
