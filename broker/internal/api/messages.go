package api

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// The pages of lists. What is above the most counts as the most.
const (
	defaultMessages    = 200
	defaultDeadLetters = 100
	maxPage            = 1000
	defaultPurge       = 1000
	maxPurge           = 10_000
	defaultReplay      = 100
	maxReplay          = 1000
	defaultAge         = time.Hour // of the oldest message listed when from is omitted
)

// page reads limit and offset; the check before has refused what is out of range.
func (p *params) page(absent, most int) (limit, offset int) {
	return min(p.int("limit", absent), most), p.int("offset", 0)
}

// time reads an ISO 8601 time; empty counts as absent.
func (p *params) time(name string) time.Time {
	text := p.q.Get(name)
	if text == "" {
		return time.Time{}
	}
	t, ok := parseISO(text)
	if !ok {
		p.fail(name, "must be an ISO 8601 time")
	}
	return t
}

// only refuses parameters that are not named, and those given twice, of which one would be ignored.
func (p *params) only(names ...string) {
	for name, values := range p.q {
		if len(values) > 1 {
			p.fail(strconv.Quote(name), "is given more than once")
		}
		known := false
		for _, n := range names {
			known = known || n == name
		}
		if !known {
			p.fail(strconv.Quote(name), "is not a parameter here")
		}
	}
}

// listMessages answers a page of stored messages (queue contract, section 7).
func (e *edge) listMessages(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	f, err := e.messageFilter(q)
	if err != nil {
		return answer{}, err
	}
	page, err := e.cfg.Engine.Messages(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	return jsonAnswer(http.StatusOK, appendMessagePage(page)), nil
}

func (e *edge) messageFilter(q url.Values) (queue.MessageFilter, error) {
	p := params{q: q}
	f := queue.MessageFilter{
		Queue:     q.Get("queue"),
		Partition: q.Get("partition"),
		Namespace: q.Get("namespace"),
		Task:      q.Get("task"),
		Status:    queue.MessageStatus(q.Get("status")),
		From:      p.time("from"),
		To:        p.time("to"),
	}
	if f.Namespace == "" {
		f.Namespace = q.Get("ns")
	}
	if f.From.IsZero() {
		f.From = e.cfg.Engine.Now().Add(-defaultAge)
	}
	f.Limit, f.Offset = p.page(defaultMessages, maxPage)
	return f, p.err
}

func appendMessagePage(page queue.MessagePage) []byte {
	size := 256
	for i := range page.Messages {
		m := &page.Messages[i]
		size += 640 + 2*len(m.Payload) + len(m.TransactionID) + 2*(len(m.Queue)+len(m.Partition))
	}
	b := append(make([]byte, 0, size), `{"messages":[`...)
	for i := range page.Messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendStored(b, &page.Messages[i])
		b = append(b, '}')
	}
	b = append(b, `],"mode":{"hasQueueMode":`...)
	b = appendBool(b, page.QueueMode)
	b = append(b, `,"busGroupsCount":`...)
	b = appendInt(b, page.Groups)
	b = append(b, `,"type":"`...)
	b = append(b, modeType(page)...)
	b = append(b, `"},"total":`...)
	b = appendInt(b, len(page.Messages))
	return append(b, '}')
}

// modeType is how queues are consumed in one word.
func modeType(page queue.MessagePage) string {
	switch {
	case page.QueueMode && page.Groups > 0:
		return "hybrid"
	case page.QueueMode:
		return "queue"
	case page.Groups > 0:
		return "bus"
	}
	return "none"
}

// appendStored writes a stored message without the closing brace.
func appendStored(b []byte, m *queue.StoredMessage) []byte {
	b = append(b, `{"id":`...)
	b = appendUUID(b, m.ID)
	for _, field := range [...]struct{ name, value string }{
		{"transactionId", m.TransactionID},
		{"queuePath", m.Queue + "/" + m.Partition},
		{"queue", m.Queue},
		{"partition", m.Partition},
		{"namespace", m.Namespace},
		{"task", m.Task},
		{"status", string(m.Status)},
	} {
		b = appendField(b, field.name, field.value)
	}
	b = append(b, `,"partitionId":`...)
	b = appendUUID(b, m.PartitionID)
	b = append(b, `,"traceId":`...)
	b = appendOptionalUUID(b, m.TraceID)
	b = append(b, `,"producerSub":`...)
	b = appendOptionalString(b, m.ProducerSub)
	b = append(b, `,"createdAt":`...)
	b = appendTime(b, m.CreatedAt)
	b = append(b, `,"leaseExpiresAt":`...)
	b = appendOptionalTime(b, m.LeaseUntil)
	b = append(b, `,"data":`...)
	b = append(b, m.Payload...)
	b = append(b, `,"payload":`...)
	return append(b, m.Payload...)
}

// appendField writes a comma, a name that needs no escapes, and a string.
func appendField(b []byte, name, value string) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return appendString(b, value)
}

func appendOptionalUUID(b []byte, id uuid.UUID) []byte {
	if id == uuid.Nil {
		return append(b, "null"...)
	}
	return appendUUID(b, id)
}

func appendOptionalString(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

func appendOptionalTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	return appendTime(b, t)
}

// messageGroup is where one consumer group stands to a message; its name stands twice, for clients of two generations.
type messageGroup struct {
	Name           string  `json:"name"`
	Group          string  `json:"group"`
	Consumed       bool    `json:"consumed"`
	LeaseExpiresAt *string `json:"leaseExpiresAt"`
}

// messageTail is what an inspected message has beyond a listed one.
type messageTail struct {
	IsEncrypted    bool           `json:"isEncrypted"`
	ErrorMessage   *string        `json:"errorMessage"`
	RetryCount     int            `json:"retryCount"`
	ConsumerGroups []messageGroup `json:"consumerGroups"`
	QueueConfig    optionsAnswer  `json:"queueConfig"`
}

// messageAddress reads the path of the routes of one message.
func (c *call) messageAddress() (partition uuid.UUID, transactionID string, err error) {
	partition, ok := parseUUID(c.path["partitionId"])
	if !ok {
		return partition, "", badPath("partitionId", "must be a UUID")
	}
	return partition, c.path["transactionId"], nil
}

func (e *edge) getMessage(c *call) (answer, error) {
	partition, transactionID, err := c.messageAddress()
	if err != nil {
		return answer{}, err
	}
	m, err := e.cfg.Engine.Message(c.ctx, partition, transactionID)
	if err != nil {
		return answer{}, err
	}
	tail := messageTail{
		IsEncrypted: m.Sealed, RetryCount: m.Retries, ConsumerGroups: make([]messageGroup, len(m.Groups)), QueueConfig: resolved(m.Options),
	}
	if m.Dead {
		tail.ErrorMessage = &m.Error
	}
	for i, g := range m.Groups {
		tail.ConsumerGroups[i] = messageGroup{Name: g.Group, Group: g.Group, Consumed: g.Consumed, LeaseExpiresAt: optionalTime(g.LeaseUntil)}
	}
	rest, err := encode(http.StatusOK, tail)
	if err != nil {
		return answer{}, err
	}
	b := appendStored(make([]byte, 0, 1024+2*len(m.Payload)+len(rest.body)), &m.StoredMessage)
	b = append(b, ',')
	return jsonAnswer(http.StatusOK, append(b, rest.body[1:]...)), nil
}

type deletedDeadLetter struct {
	Success       bool   `json:"success"`
	PartitionID   string `json:"partitionId"`
	TransactionID string `json:"transactionId"`
	Message       string `json:"message"`
}

// deleteDeadLetter answers 404 for everything that is no dead letter (queue contract, sections 7 and 16).
func (e *edge) deleteDeadLetter(c *call) (answer, error) {
	partition, transactionID, err := c.messageAddress()
	if err != nil {
		return answer{}, err
	}
	if err := e.cfg.Engine.DeleteDeadLetter(c.ctx, partition, transactionID); err != nil {
		return answer{}, noDeadLetter(err, partition, transactionID)
	}
	return encode(http.StatusOK, deletedDeadLetter{
		Success: true, PartitionID: partition.String(), TransactionID: transactionID, Message: "Dead letter deleted",
	})
}

func (e *edge) listDeadLetters(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	p := params{q: q}
	f := p.deadLetters()
	limit, offset := p.page(defaultDeadLetters, maxPage)
	if p.err != nil {
		return answer{}, p.err
	}
	page, err := e.cfg.Engine.DeadLetters(c.ctx, f, limit, offset)
	if err != nil {
		return answer{}, err
	}
	return jsonAnswer(http.StatusOK, appendDeadLetterPage(page, limit, offset)), nil
}

// deadLetters reads the filters that the routes of dead letters share.
func (p *params) deadLetters() queue.DeadLetterFilter {
	return queue.DeadLetterFilter{
		Queue:     p.q.Get("queue"),
		Partition: p.q.Get("partition"),
		Group:     p.q.Get("consumerGroup"),
		From:      p.time("from"),
		To:        p.time("to"),
	}
}

func appendDeadLetterPage(page queue.DeadLetterPage, limit, offset int) []byte {
	size := 256
	for i := range page.Entries {
		d := &page.Entries[i]
		size += 640 + len(d.Payload) + len(d.TransactionID) + len(d.Queue) + len(d.Partition) + len(d.Group) + len(d.Error)
	}
	b := append(make([]byte, 0, size), `{"messages":[`...)
	for i := range page.Entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendDeadLetter(b, &page.Entries[i])
	}
	b = appendPagination(append(b, ']'), limit, offset)
	b = append(b, `,"total":`...)
	b = appendInt(b, page.Total)
	return append(b, '}')
}

func appendDeadLetter(b []byte, d *queue.DeadLetterEntry) []byte {
	b = append(b, `{"id":`...)
	b = appendUUID(b, d.ID)
	b = append(b, `,"partitionId":`...)
	b = appendUUID(b, d.PartitionID)
	for _, field := range [...]struct{ name, value string }{
		{"transactionId", d.TransactionID}, {"queue", d.Queue}, {"partition", d.Partition}, {"consumerGroup", d.Group}, {"errorMessage", d.Error},
	} {
		b = appendField(b, field.name, field.value)
	}
	b = append(b, `,"retryCount":`...)
	b = appendInt(b, d.Retries)
	b = append(b, `,"data":`...)
	b = append(b, d.Payload...)
	b = append(b, `,"producerSub":`...)
	b = appendOptionalString(b, d.ProducerSub)
	b = append(b, `,"createdAt":`...)
	b = appendTime(b, d.CreatedAt)
	b = append(b, `,"failedAt":`...)
	b = appendTime(b, d.FailedAt)
	return append(b, '}')
}

type purgedDeadLetters struct {
	Success   bool   `json:"success"`
	Queue     string `json:"queue"`
	Deleted   int    `json:"deleted"`
	Remaining int    `json:"remaining"`
}

// bulk reads the parameters of what is done to many dead letters of one queue. What is misspelt must not widen it.
func (c *call) bulk(absent, most int) (f queue.DeadLetterFilter, limit int, err error) {
	q, err := c.query()
	if err != nil {
		return f, 0, err
	}
	p := params{q: q}
	p.only("queue", "consumerGroup", "partition", "from", "to", "limit")
	f = p.deadLetters()
	limit = min(p.int("limit", absent), most)
	return f, limit, p.err
}

func (e *edge) purgeDeadLetters(c *call) (answer, error) {
	f, limit, err := c.bulk(defaultPurge, maxPurge)
	if err != nil {
		return answer{}, err
	}
	deleted, remaining, err := e.cfg.Engine.PurgeDeadLetters(c.ctx, f, limit)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, purgedDeadLetters{Success: true, Queue: f.Queue, Deleted: deleted, Remaining: remaining})
}

// retryDeadLetter answers 404 for everything that is no dead letter, a second replay included.
func (e *edge) retryDeadLetter(c *call) (answer, error) {
	partition, transactionID, err := c.messageAddress()
	if err != nil {
		return answer{}, err
	}
	done, err := e.cfg.Engine.RetryDeadLetter(c.ctx, partition, transactionID)
	if err != nil {
		return answer{}, noDeadLetter(err, partition, transactionID)
	}
	return jsonAnswer(http.StatusOK, appendReplayed(done)), nil
}

func appendReplayed(done queue.Replayed) []byte {
	results := appendPushResults([]queue.PushItem{{Queue: done.Queue}}, []queue.PushResult{done.Result})
	b := append(make([]byte, 0, 256+len(results)+len(done.Partition)), `{"success":true`...)
	b = appendField(b, "queue", done.Queue)
	b = appendField(b, "partition", done.Partition)
	b = append(b, `,"replayedAs":`...)
	b = append(b, results[1:len(results)-1]...)
	return append(b, `,"dlqRowRemoved":true}`...)
}

type replayedDeadLetters struct {
	Success   bool   `json:"success"`
	Queue     string `json:"queue"`
	Replayed  int    `json:"replayed"`
	Remaining int    `json:"remaining"`
}

func (e *edge) replayDeadLetters(c *call) (answer, error) {
	f, limit, err := c.bulk(defaultReplay, maxReplay)
	if err != nil {
		return answer{}, err
	}
	done, err := e.cfg.Engine.ReplayDeadLetters(c.ctx, f, limit)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, replayedDeadLetters{Success: true, Queue: f.Queue, Replayed: done.Replayed, Remaining: done.Remaining})
}
