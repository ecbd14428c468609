package delivery

import (
	"encoding/json"
	"net/http"
	"net/textproto"
	"time"

	"github.com/google/uuid"
)

// notice is the body of a callback (publish contract, section 10).
type notice struct {
	Status          int                 `json:"status"` // 0: there was no answer
	Header          map[string][]string `json:"header"`
	Body            []byte              `json:"body"` // of the answer, in base64
	Retried         int                 `json:"retried"`
	MaxRetries      int                 `json:"maxRetries"`
	SourceMessageID string              `json:"sourceMessageId"`
	URL             string              `json:"url"`
	Method          string              `json:"method"`
	SourceHeader    map[string][]string `json:"sourceHeader"`
	SourceBody      []byte              `json:"sourceBody"`
	NotBefore       int64               `json:"notBefore"` // ms
	CreatedAt       int64               `json:"createdAt"` // ms
	TopicName       string              `json:"topicName,omitempty"`
	EndpointName    string              `json:"endpointName,omitempty"`
	ScheduleID      string              `json:"scheduleId,omitempty"`
	CallerIP        string              `json:"callerIP"`
	DLQID           string              `json:"dlqId,omitempty"`
}

// DeadLetterID spells the id of a dead letter.
func DeadLetterID(id uuid.UUID) string { return deadLetterPrefix + MessageID(id)[len(messagePrefix):] }

// ParseDeadLetterID reads what DeadLetterID spells.
func ParseDeadLetterID(s string) (uuid.UUID, bool) { return parseID(s, deadLetterPrefix) }

const deadLetterPrefix = "dlq_"

// callBack adds a message that tells of an outcome of a task, if somebody wants to know. dead is the dead letter, nil for
// none.
func (e *Engine) callBack(v *verdict, o *outcome, f fenced, to *Callback, dead *uuid.UUID) {
	if to == nil {
		return
	}
	m := o.message
	target := m.Targets[o.job.target]
	n := notice{
		Status: o.status, Header: notNil(o.header), Body: append([]byte{}, o.body...), Retried: o.job.retried, MaxRetries: m.Retries,
		SourceMessageID: MessageID(m.ID), URL: target.URL, Method: m.Method, SourceHeader: notNil(m.Header),
		SourceBody: append([]byte{}, m.Body...), NotBefore: m.FirstAt.UnixMilli(), CreatedAt: m.CreatedAt.UnixMilli(),
		TopicName: m.Topic, EndpointName: target.Name, ScheduleID: m.ScheduleID, CallerIP: m.CallerIP,
	}
	if dead != nil {
		n.DLQID = DeadLetterID(*dead)
	}
	body, err := json.Marshal(n)
	if err != nil {
		e.log.Error("cannot word a callback", "message", MessageID(m.ID), "error", err)
		return
	}
	u := &unit{done: make(chan struct{})}
	told := &Stored{ID: newID(), Message: to.message(m, body)}
	if f.queue != nil && f.slot != nil {
		told.shares = &place{*f.queue, *f.slot}
	}
	u.add(told)
	e.place(u)
	v.callbacks = append(v.callbacks, u)
}

// message is the message of a callback to m.
func (c *Callback) message(m *Stored, body []byte) Message {
	header := http.Header{"Content-Type": {"application/json"}}
	for name, values := range c.Header {
		header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	settings := Settings{Retries: m.Retries, RetryDelay: m.RetryDelay, Timeout: m.Timeout}
	if m.Redact != "" { // its body holds the headers and the body of the message
		settings.Redact = "body," + m.Redact
	}
	if c.Retries != nil {
		settings.Retries = *c.Retries
	}
	if c.RetryDelay != "" {
		settings.RetryDelay = c.RetryDelay
	}
	if c.Timeout > 0 {
		settings.Timeout = c.Timeout
	}
	return Message{
		Targets: []Target{{URL: c.URL}}, Method: c.Method, Header: header, Body: body, Delay: max(c.Delay, time.Duration(0)),
		CallerIP: m.CallerIP, Settings: settings,
	}
}

func notNil(h http.Header) map[string][]string {
	if h == nil {
		return map[string][]string{}
	}
	return h
}
