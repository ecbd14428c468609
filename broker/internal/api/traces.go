package api

import (
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

const (
	defaultEventType = "info"
	defaultTraces    = 100
	defaultNames     = 50
	// maxTraceData bounds the data of one trace, in bytes: it is noted beside a message, not instead of one.
	maxTraceData = 1 << 20
)

// traceRequest is the body of POST /api/v1/traces. Null means absent, but for data.
type traceRequest struct {
	TransactionID string         `json:"transactionId"`
	PartitionID   string         `json:"partitionId"`
	Data          jsontext.Value `json:"data"`
	ConsumerGroup string         `json:"consumerGroup"`
	EventType     string         `json:"eventType"`
	TraceNames    jsontext.Value `json:"traceNames"`
}

type traceAnswer struct {
	Success bool   `json:"success"`
	TraceID string `json:"traceId"`
}

// storeTrace stores what a program notes about a message (queue contract, section 9).
func (e *edge) storeTrace(c *call) (answer, error) {
	event, err := readTrace(c.body)
	if err != nil {
		return answer{}, err
	}
	id, err := e.cfg.Engine.Trace(c.ctx, event)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusCreated, traceAnswer{Success: true, TraceID: id.String()})
}

func readTrace(body []byte) (queue.TraceEvent, error) {
	var req traceRequest
	// The check before has refused invalid strings everywhere but in data, where they are kept.
	if err := json.Unmarshal(body, &req, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return queue.TraceEvent{}, decodeError(err)
	}
	if len(req.Data) > maxTraceData {
		return queue.TraceEvent{}, badBody("data", "must be at most 1048576 bytes")
	}
	id, ok := parseUUID(req.PartitionID)
	if !ok {
		return queue.TraceEvent{}, badBody("partitionId", "must be a UUID")
	}
	names, err := traceNames(req.TraceNames)
	if err != nil {
		return queue.TraceEvent{}, err
	}
	event := queue.TraceEvent{
		PartitionID: id, TransactionID: req.TransactionID, Group: req.ConsumerGroup, EventType: req.EventType, Data: req.Data, Names: names,
	}
	if event.EventType == "" {
		event.EventType = defaultEventType
	}
	return event, nil
}

// traceNames reads an array of names or one name; each counts once.
func traceNames(raw jsontext.Value) (names []string, err error) {
	if kind := raw.Kind(); kind == '[' {
		err = json.Unmarshal(raw, &names)
	} else if kind == '"' {
		names = make([]string, 1)
		err = json.Unmarshal(raw, &names[0])
	}
	if err != nil {
		return nil, badBody("traceNames", "must be a string or an array of strings")
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > 0 && names[0] == "" { // one name that is empty
		names = names[1:]
	}
	return names, nil
}

func (e *edge) messageTraces(c *call) (answer, error) {
	partition, transactionID, err := c.messageAddress()
	if err != nil {
		return answer{}, err
	}
	traces, err := e.cfg.Engine.MessageTraces(c.ctx, partition, transactionID)
	if err != nil {
		return answer{}, err
	}
	return jsonAnswer(http.StatusOK, append(appendTraces(traces, false), '}')), nil
}

func (e *edge) tracesByName(c *call) (answer, error) {
	limit, offset, err := c.pageQuery(defaultTraces)
	if err != nil {
		return answer{}, err
	}
	page, err := e.cfg.Engine.TracesByName(c.ctx, c.path["name"], limit, offset)
	if err != nil {
		return answer{}, err
	}
	b := append(appendTraces(page.Traces, true), `,"total":`...)
	b = appendInt(b, page.Total)
	return jsonAnswer(http.StatusOK, append(appendPagination(b, limit, offset), '}')), nil
}

// pageQuery reads limit and offset of a route that has no other parameters.
func (c *call) pageQuery(absent int) (limit, offset int, err error) {
	q, err := c.query()
	if err != nil {
		return 0, 0, err
	}
	p := params{q: q}
	limit, offset = p.page(absent, maxPage)
	return limit, offset, p.err
}

func appendPagination(b []byte, limit, offset int) []byte {
	b = append(b, `,"pagination":{"limit":`...)
	b = appendInt(b, limit)
	b = append(b, `,"offset":`...)
	b = appendInt(b, offset)
	return append(b, '}')
}

// appendTraces writes an object that is not closed with the traces; where says to name their messages.
func appendTraces(traces []queue.Trace, where bool) []byte {
	size := 64
	for i := range traces {
		size += 640 + len(traces[i].Data) + len(traces[i].TransactionID)
	}
	b := append(make([]byte, 0, size), `{"traces":[`...)
	for i := range traces {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTrace(b, &traces[i])
		if where {
			b = appendWhere(b, &traces[i])
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

func appendTrace(b []byte, t *queue.Trace) []byte {
	b = append(b, `{"id":`...)
	b = appendUUID(b, t.ID)
	b = appendField(b, "event_type", t.EventType)
	b = append(b, `,"data":`...)
	b = append(b, t.Data...)
	b = append(b, `,"consumer_group":`...)
	b = appendOptionalString(b, t.Group)
	b = append(b, `,"worker_id":`...)
	b = appendOptionalUUID(b, t.LeaseID)
	b = append(b, `,"created_at":`...)
	b = appendTime(b, t.CreatedAt)
	b = append(b, `,"trace_names":[`...)
	for i, name := range t.Names {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, name)
	}
	return append(b, ']')
}

func appendWhere(b []byte, t *queue.Trace) []byte {
	b = appendField(b, "transaction_id", t.TransactionID)
	b = append(b, `,"partition_id":`...)
	b = appendUUID(b, t.PartitionID)
	b = appendField(b, "queue_name", t.Queue)
	return appendField(b, "partition_name", t.Partition)
}

type traceNameRow struct {
	TraceName    string `json:"trace_name"`
	TraceCount   int    `json:"trace_count"`
	MessageCount int    `json:"message_count"`
	LastSeen     string `json:"last_seen"`
}

type pagination struct {
	Limit  int `json:"limit"`
	Offset int `json:"offset"`
}

type traceNameList struct {
	TraceNames []traceNameRow `json:"trace_names"`
	Total      int            `json:"total"`
	Pagination pagination     `json:"pagination"`
}

func (e *edge) traceNames(c *call) (answer, error) {
	limit, offset, err := c.pageQuery(defaultNames)
	if err != nil {
		return answer{}, err
	}
	names, total, err := e.cfg.Engine.TraceNames(c.ctx, limit, offset)
	if err != nil {
		return answer{}, err
	}
	list := traceNameList{TraceNames: make([]traceNameRow, len(names)), Total: total, Pagination: pagination{limit, offset}}
	for i, n := range names {
		list.TraceNames[i] = traceNameRow{TraceName: n.Name, TraceCount: n.Traces, MessageCount: n.Messages, LastSeen: timeText(n.LastSeen)}
	}
	return encode(http.StatusOK, list)
}
