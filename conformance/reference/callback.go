package reference

import (
	"encoding/json"
	"maps"
	"net/http"
)

// notice is the body of a callback.
type notice struct {
	Status          int         `json:"status"` // 0 means that there was no answer
	Header          http.Header `json:"header"`
	Body            []byte      `json:"body"` // of the answer, in base64
	Retried         int         `json:"retried"`
	MaxRetries      int         `json:"maxRetries"`
	SourceMessageID string      `json:"sourceMessageId"`
	URL             string      `json:"url"`
	Method          string      `json:"method"`
	SourceHeader    http.Header `json:"sourceHeader"`
	SourceBody      []byte      `json:"sourceBody"`
	NotBefore       int64       `json:"notBefore"` // ms
	CreatedAt       int64       `json:"createdAt"` // ms
	TopicName       string      `json:"topicName,omitempty"`
	EndpointName    string      `json:"endpointName,omitempty"`
	ScheduleID      string      `json:"scheduleId,omitempty"`
	CallerIP        string      `json:"callerIP"`
	DLQID           string      `json:"dlqId,omitempty"`
}

// callBack tells of an attempt, if anybody is to be told. A callback is a message, but has no callbacks. dead is the id of the
// dead letter; "" means none.
func (b *Broker) callBack(t *task, to *callback, r reply, dead string) {
	if to == nil {
		return
	}
	n := notice{
		Status: r.status, Header: filled(r.header), Body: append([]byte{}, r.body...), Retried: t.retried, MaxRetries: t.retries,
		SourceMessageID: t.publication.id, URL: t.url, Method: t.method, SourceHeader: filled(t.header), SourceBody: append([]byte{}, t.body...),
		NotBefore: t.first.UnixMilli(), CreatedAt: t.created.UnixMilli(), TopicName: t.topic, EndpointName: t.name,
		ScheduleID: t.scheduleID, CallerIP: t.callerIP, DLQID: dead,
	}
	if t.state == "RETRY" { // what the attempt was is told, not what the next one will be
		n.Retried--
	}
	if b.has(CallbackStatusMissing) {
		n.Status = 0
	}
	if b.has(CallbackWithoutDLQ) {
		n.DLQID = ""
	}
	body, err := json.Marshal(n)
	if err != nil {
		panic(err) // a notice is always JSON
	}
	if b.has(CallbackBodyPlain) {
		var loose map[string]any
		_ = json.Unmarshal(body, &loose) // it was JSON just now
		loose["body"] = string(r.body)
		body, _ = json.Marshal(loose)
	}
	b.accept("", to.message(t, body, b))
}

func filled(h http.Header) http.Header {
	if h == nil {
		return http.Header{}
	}
	return h
}

// message is the callback about a task as a message.
func (c *callback) message(t *task, body []byte, b *Broker) outgoing {
	m := outgoing{
		targets: []target{{url: c.url}}, method: http.MethodPost, header: http.Header{"Content-Type": {"application/json"}}, body: body,
		delay: c.delay, callerIP: t.callerIP, retries: t.retries, retryDelay: t.retryDelay, timeout: t.timeout, redact: t.redact, about: t,
	}
	if b.has(FlowCallbacksBounded) {
		m.flow = t.flow
	}
	if t.redact.any() { // the body holds the headers and the body of the message
		m.redact.body = true
	}
	if c.retries != nil && !b.has(CallbackRetriesIgnored) {
		m.retries = *c.retries
	}
	if c.retryDelay != "" {
		m.retryDelay = c.retryDelay
	}
	if c.timeout != nil {
		m.timeout = *c.timeout
	}
	if b.has(CallbackHeadersIgnored) {
		return m
	}
	if c.method != "" && !b.has(CallbackMethodIgnored) {
		m.method = c.method
	}
	maps.Copy(m.header, c.header)
	return m
}
