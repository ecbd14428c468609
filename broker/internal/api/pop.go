package api

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// The numbers of a pop (queue contract, section 2). The upper bounds are ours: they bound what one
// answer holds in memory and how long a client that is gone unnoticed can stay parked.
const (
	defaultBatch      = 200
	maxBatch          = 10_000
	defaultPartitions = 1
	maxPopTimeout     = 10 * time.Minute
	maxLease          = 365 * 24 * time.Hour
)

func (e *edge) popQueue(c *call) (answer, error) {
	req, err := e.popQueueRequest(c)
	if err != nil {
		return answer{}, err
	}
	return e.pop(c, req)
}

func (e *edge) popPartition(c *call) (answer, error) {
	req, err := e.popQueueRequest(c)
	if err != nil {
		return answer{}, err
	}
	req.Partition, req.Partitions = c.path["partition"], 1
	return e.pop(c, req)
}

func (e *edge) popQueueRequest(c *call) (queue.PopRequest, error) {
	q, err := c.query()
	if err != nil {
		return queue.PopRequest{}, err
	}
	req, err := e.popRequest(q)
	req.Queue = c.path["queue"]
	return req, err
}

func (e *edge) popDiscover(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	req, err := e.popRequest(q)
	if err != nil {
		return answer{}, err
	}
	req.Namespace, req.Task = q.Get("namespace"), q.Get("task")
	if req.Namespace == "" && req.Task == "" {
		return answer{}, errNoDiscovery
	}
	return e.pop(c, req)
}

func (e *edge) pop(c *call, req queue.PopRequest) (answer, error) {
	res, err := e.cfg.Engine.Pop(c.ctx, req)
	if err != nil {
		return answer{}, err
	}
	e.notePopped(c, &res)
	if len(res.Partitions) == 0 {
		return answer{status: http.StatusNoContent}, nil
	}
	return jsonAnswer(http.StatusOK, appendPop(req.Queue, res)), nil
}

// popRequest reads the parameters that the three routes share.
func (e *edge) popRequest(q url.Values) (queue.PopRequest, error) {
	p := params{q: q}
	req := queue.PopRequest{
		Batch:      min(p.int("batch", defaultBatch), maxBatch),
		Partitions: max(p.int("partitions", defaultPartitions), 0),
		AutoAck:    p.bool("autoAck"),
		Lease:      p.duration("leaseSeconds", time.Second, 0, maxLease),
		Group:      q.Get("consumerGroup"),
	}
	if p.err == nil && req.Batch < 1 {
		p.fail("batch", "must be at least 1")
	}
	timeout := p.duration("timeout", time.Millisecond, e.cfg.PopTimeout, maxPopTimeout)
	if p.bool("wait") {
		req.Wait = timeout
	}
	e.seed(&req, &p)
	return req, p.err
}

// seed reads where a group starts that does not exist yet. A start that can be read beats the mode;
// one that cannot is ignored.
func (e *edge) seed(req *queue.PopRequest, p *params) {
	switch mode := p.q.Get("subscriptionMode"); mode {
	case "":
		req.FromNew = e.cfg.FromNew
	case "all":
	case "new", "new-only":
		req.FromNew = true
	default:
		p.fail("subscriptionMode", "must be one of all, new, new-only")
	}
	from := p.q.Get("subscriptionFrom")
	if from == "now" {
		req.FromNew = true
		return
	}
	if t, ok := parseISO(from); ok {
		req.FromNew, req.From = false, t
	}
}

// params reads typed query parameters and keeps the first failure.
type params struct {
	q   url.Values
	err error
}

func (p *params) fail(name, rule string) {
	if p.err == nil {
		p.err = badQuery(name, rule)
	}
}

// int reads an integer; one beyond the range of an int is the nearest int.
func (p *params) int(name string, absent int) int {
	if !p.q.Has(name) {
		return absent
	}
	text := p.q.Get(name)
	n, err := strconv.ParseInt(text, 10, strconv.IntSize)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		p.fail(name, "must be an integer")
	}
	return int(n)
}

// duration reads a whole number of units, between 0 and most.
func (p *params) duration(name string, unit, absent, most time.Duration) time.Duration {
	if !p.q.Has(name) {
		return min(absent, most)
	}
	n := max(p.int(name, 0), 0)
	if n > int(most/unit) {
		return most
	}
	return time.Duration(n) * unit
}

func (p *params) bool(name string) bool {
	if !p.q.Has(name) {
		return false
	}
	switch p.q.Get(name) {
	case "true", "1", "yes":
		return true
	case "false", "0", "no":
		return false
	}
	p.fail(name, "must be true or false")
	return false
}

// isoLayouts are the forms of ISO 8601 that subscriptionFrom takes; without a zone they mean UTC. A
// fraction of a second is read by all of them.
var isoLayouts = []string{
	time.RFC3339,
	"2006-01-02T15:04:05",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05",
	"2006-01-02T15:04Z07:00",
	"2006-01-02T15:04",
	"2006-01-02",
}

func parseISO(s string) (time.Time, bool) {
	if s == "" {
		return time.Time{}, false
	}
	// A "+" of a zone that a client did not escape arrives as a space.
	if n := len(s) - 6; n > len("2006-01-02T") && s[n] == ' ' && s[n+3] == ':' {
		s = s[:n] + "+" + s[n+1:]
	}
	for _, layout := range isoLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), true
		}
	}
	return time.Time{}, false
}

// appendPop writes a pop that has messages. Payloads are copied byte for byte. The top-level
// partition is the first claimed one; queue is what the path named, "" on discovery.
func appendPop(named string, res queue.PopResult) []byte {
	first := res.Partitions[0]
	b := append(make([]byte, 0, popSize(named, res)), `{"success":true,"queue":`...)
	b = appendString(b, named)
	b = append(b, `,"partition":`...)
	b = appendString(b, first.Name)
	b = append(b, `,"partitionId":`...)
	b = appendUUID(b, first.ID)
	b = append(b, `,"leaseId":`...)
	b = appendString(b, res.LeaseID)
	b = append(b, `,"consumerGroup":`...)
	b = appendString(b, res.Group)
	b = append(b, `,"messages":[`...)
	written := 0
	var tail []byte
	for _, part := range res.Partitions {
		tail = appendMessageTail(tail[:0], part, res)
		for _, m := range part.Messages {
			if written > 0 {
				b = append(b, ',')
			}
			b = appendMessage(b, m)
			b = append(b, tail...)
			written++
		}
	}
	b = append(b, `],"partitionsClaimed":`...)
	b = appendInt(b, len(res.Partitions))
	return append(b, '}')
}

// popSize estimates the answer from above, so that large payloads are copied once.
func popSize(named string, res queue.PopResult) int {
	size := 512 + len(named)
	for _, part := range res.Partitions {
		per := 600 + len(part.Queue) + len(part.Name) + len(res.Group)
		for _, m := range part.Messages {
			size += per + len(m.TransactionID) + len(m.ProducerSub) + len(m.Payload)
		}
	}
	return size
}

func appendMessage(b []byte, m queue.Message) []byte {
	b = append(b, `{"id":`...)
	b = appendUUID(b, m.ID)
	b = append(b, `,"transactionId":`...)
	b = appendString(b, m.TransactionID)
	b = append(b, `,"traceId":`...)
	if m.TraceID == uuid.Nil {
		b = append(b, "null"...)
	} else {
		b = appendUUID(b, m.TraceID)
	}
	b = append(b, `,"data":`...)
	b = append(b, m.Payload...)
	b = append(b, `,"producerSub":`...)
	if m.ProducerSub == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, m.ProducerSub)
	}
	if !m.Context.IsZero() {
		b = append(b, `,"traceparent":"`...)
		b = append(m.Context.AppendTraceParent(b), '"')
	}
	b = append(b, `,"createdAt":`...)
	b = appendTime(b, m.CreatedAt)
	b = append(b, `,"deliveryAttempt":`...)
	return appendInt(b, m.DeliveryAttempt)
}

// appendMessageTail writes what all messages of a partition share, and closes the message.
func appendMessageTail(b []byte, part queue.PoppedPartition, res queue.PopResult) []byte {
	b = append(b, `,"partitionId":`...)
	b = appendUUID(b, part.ID)
	b = append(b, `,"partition":`...)
	b = appendString(b, part.Name)
	b = append(b, `,"queue":`...)
	b = appendString(b, part.Queue)
	b = append(b, `,"leaseId":`...)
	b = appendString(b, res.LeaseID)
	b = append(b, `,"consumerGroup":`...)
	b = appendString(b, res.Group)
	return append(b, '}')
}
