package posthorn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// TraceEvent is what a program notes about a message.
type TraceEvent struct {
	PartitionID   string // of the message
	TransactionID string // of the message; whether there is such a message is not asked
	ConsumerGroup string // that works on it; empty means none
	EventType     string // empty means "info"
	Names         []string
	Data          any // becomes JSON; a json.RawMessage is sent as it is. At most 1 MiB
}

// Trace is a stored [TraceEvent].
type Trace struct {
	ID            string // UUID
	EventType     string
	Data          json.RawMessage // the bytes that were sent
	ConsumerGroup string          // empty means none
	WorkerID      string          // the lease that the group had on the partition; empty means none
	CreatedAt     time.Time
	Names         []string

	// Where the message is; empty in [Client.MessageTraces].
	TransactionID string
	PartitionID   string // UUID
	Queue         string
	Partition     string
}

// TracePage is one page of the traces of a name, newest first.
type TracePage struct {
	Traces []Trace
	Total  int // how many have the name, counted up to 100 000
}

// TraceName is one name that traces have.
type TraceName struct {
	Name     string    `json:"trace_name"`
	Traces   int       `json:"trace_count"`
	Messages int       `json:"message_count"`
	LastSeen time.Time `json:"last_seen"`
}

// Trace notes something about a message and returns the id of the note. A partition that does not exist is
// [ErrNotFound]. It is repeated only when the broker cannot have seen it: otherwise it might be stored twice.
func (c *Client) Trace(ctx context.Context, event TraceEvent) (string, error) {
	names := event.Names
	if names == nil {
		names = []string{}
	}
	body := newJSONWriter()
	fail := func(err error) (string, error) { return "", fmt.Errorf("posthorn: trace: %w", err) }
	for _, f := range []struct{ key, value string }{
		{`{"transactionId":`, event.TransactionID},
		{`,"partitionId":`, event.PartitionID},
		{`,"consumerGroup":`, event.ConsumerGroup},
		{`,"eventType":`, event.EventType},
	} {
		body.buf.WriteString(f.key)
		if err := body.name(f.key[2:len(f.key)-2], f.value); err != nil {
			return fail(err)
		}
	}
	for _, name := range names {
		if err := checkUTF8("name", name); err != nil {
			return fail(err)
		}
	}
	body.buf.WriteString(`,"traceNames":`)
	if err := body.value(names); err != nil {
		return fail(err)
	}
	body.buf.WriteString(`,"data":`)
	if raw, ok := event.Data.(json.RawMessage); ok {
		body.buf.Write(raw)
	} else if err := body.value(event.Data); err != nil {
		return fail(err)
	}
	body.buf.WriteByte('}')
	var wire struct {
		TraceID string `json:"traceId"`
	}
	err := c.do(ctx, call{op: "trace", method: http.MethodPost, path: "/api/v1/traces", body: body.buf.Bytes()}, &wire)
	return wire.TraceID, err
}

type wireTrace struct {
	ID            string          `json:"id"`
	EventType     string          `json:"event_type"`
	Data          json.RawMessage `json:"data"`
	ConsumerGroup string          `json:"consumer_group"` // null leaves it empty
	WorkerID      string          `json:"worker_id"`      // null leaves it empty
	CreatedAt     string          `json:"created_at"`
	TraceNames    []string        `json:"trace_names"`
	TransactionID string          `json:"transaction_id"`
	PartitionID   string          `json:"partition_id"`
	QueueName     string          `json:"queue_name"`
	PartitionName string          `json:"partition_name"`
}

func tracesOf(wire []wireTrace) []Trace {
	list := make([]Trace, len(wire))
	for i, w := range wire {
		list[i] = Trace{
			ID: w.ID, EventType: w.EventType, Data: w.Data, ConsumerGroup: w.ConsumerGroup, WorkerID: w.WorkerID,
			CreatedAt: parseTime(w.CreatedAt), Names: w.TraceNames, TransactionID: w.TransactionID, PartitionID: w.PartitionID,
			Queue: w.QueueName, Partition: w.PartitionName,
		}
	}
	return list
}

// MessageTraces lists the traces of a message, oldest first: the newest 1000 of them. A message without any, or
// that does not exist, has none. Repeated as [RetryPolicy] says.
func (c *Client) MessageTraces(ctx context.Context, partitionID, transactionID string) ([]Trace, error) {
	if err := errors.Join(checkPresent("partitionID", partitionID), checkPresent("transactionID", transactionID)); err != nil {
		return nil, fmt.Errorf("posthorn: messageTraces: %w", err)
	}
	var wire struct {
		Traces []wireTrace `json:"traces"`
	}
	path := "/api/v1/traces/" + segment(partitionID) + "/" + segment(transactionID)
	err := c.do(ctx, call{op: "messageTraces", method: http.MethodGet, path: path, repeatable: true}, &wire)
	return tracesOf(wire.Traces), err
}

// TracesByName lists the traces that have a name, newest first. limit is the most of the page, 0 means 100, above
// 1000 counts as 1000; offset is how many are skipped, at most 10 000. Repeated as [RetryPolicy] says.
func (c *Client) TracesByName(ctx context.Context, name string, limit, offset int) (TracePage, error) {
	q := newFilterQuery()
	q.number("limit", limit)
	q.number("offset", offset)
	if err := errors.Join(append(q.problems, checkPresent("name", name))...); err != nil {
		return TracePage{}, fmt.Errorf("posthorn: tracesByName: %w", err)
	}
	var wire struct {
		Traces []wireTrace `json:"traces"`
		Total  int         `json:"total"`
	}
	path := "/api/v1/traces/by-name/" + segment(name)
	err := c.do(ctx, call{op: "tracesByName", method: http.MethodGet, path: path, query: q.values, repeatable: true}, &wire)
	return TracePage{Traces: tracesOf(wire.Traces), Total: wire.Total}, err
}

// TraceNames lists the names that traces have, the last seen first, and says how many there are. limit is the
// most of the page, 0 means 50, above 1000 counts as 1000; offset is how many are skipped. Repeated as
// [RetryPolicy] says.
func (c *Client) TraceNames(ctx context.Context, limit, offset int) (names []TraceName, total int, err error) {
	q := newFilterQuery()
	q.number("limit", limit)
	q.number("offset", offset)
	if err := errors.Join(q.problems...); err != nil {
		return nil, 0, fmt.Errorf("posthorn: traceNames: %w", err)
	}
	var wire struct {
		TraceNames []TraceName `json:"trace_names"`
		Total      int         `json:"total"`
	}
	err = c.do(ctx, call{op: "traceNames", method: http.MethodGet, path: "/api/v1/traces/names", query: q.values, repeatable: true}, &wire)
	return wire.TraceNames, wire.Total, err
}
