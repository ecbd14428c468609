package api

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// streamQueryRequest is the body of POST /streams/v1/queries.
type streamQueryRequest struct {
	Name        string `json:"name"`
	SourceQueue string `json:"source_queue"`
	SinkQueue   string `json:"sink_queue"`
	ConfigHash  string `json:"config_hash"`
	Reset       bool   `json:"reset"`
}

type streamRegistrationAnswer struct {
	Success    bool   `json:"success"`
	QueryID    string `json:"query_id"`
	Name       string `json:"name"`
	ConfigHash string `json:"config_hash"`
	Fresh      bool   `json:"fresh"`
	Reset      bool   `json:"reset"`
}

// streamStateRequest is the body of POST /streams/v1/state/get.
type streamStateRequest struct {
	QueryID        string    `json:"query_id"`
	PartitionID    string    `json:"partition_id"`
	Keys           *[]string `json:"keys"`
	KeyPrefix      string    `json:"key_prefix"`
	RipeAtOrBefore *int64    `json:"ripe_at_or_before"`
}

// streamCycleRequest is the body of POST /streams/v1/cycle.
type streamCycleRequest struct {
	QueryID       string            `json:"query_id"`
	PartitionID   string            `json:"partition_id"`
	ConsumerGroup string            `json:"consumer_group"`
	StateOps      []streamStateOp   `json:"state_ops"`
	PushItems     []transactionItem `json:"push_items"`
	Ack           *streamAck        `json:"ack"`
	ReleaseLease  *bool             `json:"release_lease"`
}

type streamStateOp struct {
	Type  string         `json:"type"`
	Key   string         `json:"key"`
	Value jsontext.Value `json:"value"`
}

type streamAck struct {
	TransactionID string  `json:"transactionId"`
	LeaseID       string  `json:"leaseId"`
	Status        *string `json:"status"`
	Error         string  `json:"error"`
	Count         *int64  `json:"count"`
}

// registerStream answers POST /streams/v1/queries (queue contract, section 14).
func (e *edge) registerStream(c *call) (answer, error) {
	var body streamQueryRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	r, err := e.cfg.Engine.RegisterStream(c.ctx, queue.StreamQuery{
		Name: body.Name, Source: body.SourceQueue, Sink: body.SinkQueue, ConfigHash: body.ConfigHash,
	}, body.Reset)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, streamRegistrationAnswer{
		Success: true, QueryID: r.ID.String(), Name: body.Name, ConfigHash: body.ConfigHash, Fresh: r.Fresh, Reset: r.Reset,
	})
}

// getStreamState answers POST /streams/v1/state/get.
func (e *edge) getStreamState(c *call) (answer, error) {
	var body streamStateRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	request := queue.StateRequest{Prefix: body.KeyPrefix}
	request.Query, _ = parseUUID(body.QueryID) // the check of the body has seen both
	request.Partition, _ = parseUUID(body.PartitionID)
	if body.Keys != nil {
		request.Keys = append([]string{}, *body.Keys...)
	}
	rows, err := e.cfg.Engine.StreamState(c.ctx, request)
	b := []byte(`{"success":true,"rows":[`)
	switch {
	case errors.Is(err, queue.ErrUnknownStream):
		return jsonAnswer(http.StatusOK, []byte(`{"success":false,"error":"unknown query","rows":[]}`)), nil
	case err != nil:
		return answer{}, err
	}
	first := true
	for _, row := range rows {
		if body.RipeAtOrBefore != nil && !ripe(row.Value, *body.RipeAtOrBefore) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, `{"key":`...)
		b = appendString(b, row.Key)
		b = append(b, `,"value":`...)
		b = append(b, row.Value...)
		b = append(b, `,"updated_at":`...)
		b = appendTime(b, row.UpdatedAt)
		b = append(b, '}')
	}
	return jsonAnswer(http.StatusOK, append(b, `]}`...)), nil
}

// ripe says whether a value is an object whose windowEnd is a number that is not above at.
func ripe(value []byte, at int64) bool {
	var window struct {
		End jsontext.Value `json:"windowEnd"`
	}
	if json.Unmarshal(value, &window, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil || window.End.Kind() != '0' {
		return false
	}
	var end float64
	return json.Unmarshal(window.End, &end) == nil && end <= float64(at)
}

// cycleStream answers POST /streams/v1/cycle: 200 once it was processed, committed or not.
func (e *edge) cycleStream(c *call) (answer, error) {
	var body streamCycleRequest
	// Broken surrogates stand in payloads and values only: the check has refused them elsewhere.
	if err := json.Unmarshal(c.body, &body, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return answer{}, decodeError(err)
	}
	cycle, err := body.cycle(c.producerSub())
	if err != nil {
		return answer{}, err
	}
	out, err := e.cfg.Engine.CycleStream(c.ctx, cycle)
	b := []byte(`{"success":`)
	b = appendBool(b, err == nil)
	b = append(b, `,"query_id":`...)
	b = appendUUID(b, cycle.Query)
	b = append(b, `,"partition_id":`...)
	b = appendUUID(b, cycle.Partition)
	if text := streamFailureText(err); text != "" {
		b = append(b, `,"error":`...)
		b = appendString(b, bounded(text))
		return jsonAnswer(http.StatusOK, append(b, '}')), nil
	}
	if err != nil {
		return answer{}, err
	}
	b = append(b, `,"queueName":`...)
	b = appendString(b, out.Source)
	b = append(b, `,"state_ops_applied":`...)
	b = appendInt(b, len(body.StateOps))
	b = append(b, `,"push_results":`...)
	b = append(b, appendPushResults(out.Items, out.Pushed)...)
	b = append(b, `,"ack_result":`...)
	if body.Ack == nil {
		return jsonAnswer(http.StatusOK, append(b, `null}`...)), nil
	}
	count := int64(1)
	if body.Ack.Count != nil {
		count = *body.Ack.Count
	}
	b = append(b, fmt.Sprintf(`{"success":true,"count":%d,"lease_released":%t,"dlq":%t}}`,
		count, out.Acked[0].LeaseReleased, out.Acked[0].DeadLettered)...)
	return jsonAnswer(http.StatusOK, b), nil
}

// streamFailureText says why a cycle was not committed, "" when that is not known.
func streamFailureText(err error) string {
	if rejected, ok := errors.AsType[*queue.RejectedError](err); ok {
		return fmt.Sprintf("ack of transactionId %q: %s", rejected.TransactionID, ackErrorText(rejected.Err))
	}
	for _, known := range []error{queue.ErrUnknownStream, queue.ErrUnknownPartition, queue.ErrNoSink, queue.ErrNoKey} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return ""
}

func (r *streamCycleRequest) cycle(producerSub string) (queue.StreamCycle, error) {
	var cycle queue.StreamCycle
	cycle.Query, _ = parseUUID(r.QueryID) // the check of the body has seen both
	cycle.Partition, _ = parseUUID(r.PartitionID)
	for i, op := range r.StateOps {
		switch {
		case op.Type == "delete":
			cycle.State = append(cycle.State, queue.StateOp{Key: op.Key})
		case op.Value == nil:
			return cycle, badBody(fmt.Sprintf("state_ops[%d].value", i), "is missing")
		default:
			cycle.State = append(cycle.State, queue.StateOp{Key: op.Key, Value: bytes.Clone(op.Value)})
		}
	}
	sink := "" // of the query
	for i := range r.PushItems {
		it := &r.PushItems[i]
		if it.Queue == nil {
			it.Queue = &sink
		}
		item, err := it.item(fmt.Sprintf("push_items[%d]", i))
		if err != nil {
			return cycle, err
		}
		item.ProducerSub = producerSub
		cycle.Push = append(cycle.Push, item)
	}
	if r.Ack == nil {
		return cycle, nil
	}
	cycle.Acks = []queue.BundleAck{{
		AckItem: queue.AckItem{
			TransactionID: r.Ack.TransactionID, PartitionID: cycle.Partition, Status: ackStatus(r.Ack.Status),
			LeaseID: r.Ack.LeaseID, Error: storable(r.Ack.Error),
		},
		Group:   r.ConsumerGroup,
		Release: r.ReleaseLease == nil || *r.ReleaseLease,
	}}
	return cycle, nil
}
