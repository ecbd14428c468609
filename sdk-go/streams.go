package posthorn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// StreamQuery registers a stream processor: it reads a queue, keeps state per partition of it, and may push
// what it makes of the messages.
type StreamQuery struct {
	Name        string // names the query; required
	SourceQueue string // the queue that it reads; required
	SinkQueue   string // where pushed items go that name no queue; empty means nowhere
	ConfigHash  string // names the configuration that the state is made under; required
	Reset       bool   // drop the state of a known query
}

// StreamRegistration is a registered query.
type StreamRegistration struct {
	ID    string // a UUID, for state and cycles; a reset makes a new one
	Fresh bool   // the query did not exist before
	Reset bool   // its state was dropped
}

// ErrStreamChanged is matched by an answer of 409: the query is registered with another ConfigHash.
var ErrStreamChanged = errors.New("stream query changed")

// StreamError says that the broker did not carry out a stream operation: nothing of it was done. It
// matches the sentinel errors of acknowledgments by errors.Is.
type StreamError struct {
	Op      string // the operation, as in the API description
	Message string // the broker's text
}

func (e *StreamError) Error() string { return "posthorn: " + e.Op + ": " + e.Message }

// Is reports whether the broker's text says what target stands for.
func (e *StreamError) Is(target error) bool {
	switch target {
	case ErrLeaseExpired, ErrAlreadyCommitted, ErrUnresolvable, ErrConsumerNotFound, ErrNotCommitted, ErrDLQRejected:
		return strings.Contains(e.Message, ": "+target.Error())
	}
	return false
}

// RegisterStream makes a stream query known, or finds it known already. It is [ErrStreamChanged] when the
// query has state that was made under another ConfigHash and Reset is false. Repeated as [RetryPolicy] says.
func (c *Client) RegisterStream(ctx context.Context, q StreamQuery) (StreamRegistration, error) {
	w := newJSONWriter()
	err := errors.Join(checkUTF8("name", q.Name), checkUTF8("source queue", q.SourceQueue), checkUTF8("sink queue", q.SinkQueue),
		checkUTF8("config hash", q.ConfigHash), w.value(struct {
			Name        string `json:"name"`
			SourceQueue string `json:"source_queue"`
			SinkQueue   string `json:"sink_queue,omitempty"`
			ConfigHash  string `json:"config_hash"`
			Reset       bool   `json:"reset,omitempty"`
		}{q.Name, q.SourceQueue, q.SinkQueue, q.ConfigHash, q.Reset}))
	if err != nil {
		return StreamRegistration{}, fmt.Errorf("posthorn: registerStream: %w", err)
	}
	var wire struct {
		QueryID string `json:"query_id"`
		Fresh   bool   `json:"fresh"`
		Reset   bool   `json:"reset"`
	}
	err = c.do(ctx, call{
		op: "registerStream", method: http.MethodPost, path: "/streams/v1/queries", body: w.buf.Bytes(), repeatable: true,
	}, &wire)
	if err != nil {
		return StreamRegistration{}, err
	}
	return StreamRegistration{wire.QueryID, wire.Fresh, wire.Reset}, nil
}

// StreamStateOptions select state of one query and partition. Conditions that are not given select all.
type StreamStateOptions struct {
	QueryID     string   // of the registration; required
	PartitionID string   // a UUID; required
	Keys        []string // nil means any
	KeyPrefix   string   // empty means any
	// RipeAtOrBefore selects values that are objects whose windowEnd, in ms since 1970, is not after it.
	// The zero time means any value.
	RipeAtOrBefore time.Time
}

// StreamValue is one value of a query's state.
type StreamValue struct {
	Key       string
	Value     json.RawMessage // the bytes that were stored
	UpdatedAt time.Time
}

// GetStreamState reads state, in ascending order of the bytes of the keys. An unknown query is a
// [*StreamError]. Repeated as [RetryPolicy] says.
func (c *Client) GetStreamState(ctx context.Context, opts StreamStateOptions) ([]StreamValue, error) {
	request := struct {
		QueryID     string   `json:"query_id"`
		PartitionID string   `json:"partition_id"`
		Keys        []string `json:"keys"`
		KeyPrefix   string   `json:"key_prefix,omitempty"`
		Ripe        *int64   `json:"ripe_at_or_before,omitempty"`
	}{QueryID: opts.QueryID, PartitionID: opts.PartitionID, Keys: opts.Keys, KeyPrefix: opts.KeyPrefix}
	if !opts.RipeAtOrBefore.IsZero() {
		ms := opts.RipeAtOrBefore.UnixMilli()
		request.Ripe = &ms
	}
	w := newJSONWriter()
	problems := []error{checkUTF8("key prefix", opts.KeyPrefix), w.value(request)}
	for _, key := range opts.Keys {
		problems = append(problems, checkUTF8("key", key))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("posthorn: getStreamState: %w", err)
	}
	var wire struct {
		Success bool   `json:"success"`
		Error   string `json:"error"`
		Rows    []struct {
			Key       string          `json:"key"`
			Value     json.RawMessage `json:"value"`
			UpdatedAt string          `json:"updated_at"`
		} `json:"rows"`
	}
	err := c.do(ctx, call{
		op: "getStreamState", method: http.MethodPost, path: "/streams/v1/state/get", body: w.buf.Bytes(), repeatable: true,
	}, &wire)
	if err != nil {
		return nil, err
	}
	if !wire.Success {
		return nil, &StreamError{"getStreamState", orDefault(wire.Error, "refused without a reason")}
	}
	values := make([]StreamValue, len(wire.Rows))
	for i, row := range wire.Rows {
		values[i] = StreamValue{row.Key, row.Value, parseTime(row.UpdatedAt)}
	}
	return values, nil
}

// StreamCycle is what a stream processor made of a batch: all of it is committed, or nothing.
type StreamCycle struct {
	QueryID       string // of the registration; required
	PartitionID   string // of the batch, a UUID; required
	ConsumerGroup string // that popped the batch; empty means the queue mode

	State []StreamStateOp   // of several on one key the last counts
	Push  []TransactionItem // an item without Queue goes to the query's SinkQueue

	// Ack completes the batch up to its message, or refuses it; nil acknowledges nothing. Its PartitionID
	// is not read.
	Ack       *AckItem
	Count     int  // how many messages the batch had, echoed in the result; 0 means 1
	KeepLease bool // an acknowledgment that does not reach the end of the batch keeps the lease
}

// StreamStateOp writes or deletes one value.
type StreamStateOp struct {
	Key    string // up to 1024 bytes
	Value  any    // as Item.Payload; not read when Delete is true
	Delete bool
}

// StreamCycleResult is the outcome of a cycle that was committed.
type StreamCycleResult struct {
	Queue         string       // of the partition
	Applied       int          // operations on the state
	Pushed        []PushResult // in the order of Push: StatusQueued or StatusDuplicate
	Count         int          // 0 without an acknowledgment
	LeaseReleased bool
	DeadLettered  bool
}

// CycleStream commits state, pushes and an acknowledgment in one database transaction. When the broker did
// not commit it the error is a [*StreamError]. A pushed item whose transaction id is inside the
// deduplication window is left out, and that is no error.
//
// Repeated as [RetryPolicy] says unless an acknowledgment without a lease would be charged twice. Should
// the lost answer have reported success, the repeated one may be an ErrLeaseExpired.
func (c *Client) CycleStream(ctx context.Context, cycle StreamCycle) (StreamCycleResult, error) {
	body, err := cycle.encode()
	if err != nil {
		return StreamCycleResult{}, fmt.Errorf("posthorn: cycleStream: %w", err)
	}
	var wire struct {
		Success bool         `json:"success"`
		Error   string       `json:"error"`
		Queue   string       `json:"queueName"`
		Applied int          `json:"state_ops_applied"`
		Pushed  []wireResult `json:"push_results"`
		Ack     struct {
			Count         int  `json:"count"`
			LeaseReleased bool `json:"lease_released"`
			DLQ           bool `json:"dlq"`
		} `json:"ack_result"`
	}
	err = c.do(ctx, call{
		op: "cycleStream", method: http.MethodPost, path: "/streams/v1/cycle", body: body,
		repeatable: cycle.Ack == nil || cycle.Ack.repeatable(),
	}, &wire)
	if err != nil {
		return StreamCycleResult{}, err
	}
	if !wire.Success {
		return StreamCycleResult{}, &StreamError{"cycleStream", orDefault(wire.Error, "refused without a reason")}
	}
	if len(wire.Pushed) != len(cycle.Push) {
		return StreamCycleResult{}, fmt.Errorf("posthorn: cycleStream: answer of %d results for %d items", len(wire.Pushed), len(cycle.Push))
	}
	out := StreamCycleResult{
		Queue: wire.Queue, Applied: wire.Applied, Pushed: make([]PushResult, len(wire.Pushed)),
		Count: wire.Ack.Count, LeaseReleased: wire.Ack.LeaseReleased, DeadLettered: wire.Ack.DLQ,
	}
	for i, r := range wire.Pushed {
		out.Pushed[i] = PushResult{MessageID: r.MessageID, TransactionID: r.TransactionID, Queue: r.QueueName, Status: r.Status}
	}
	return out, nil
}

func (s *StreamCycle) encode() ([]byte, error) {
	w := newJSONWriter()
	w.buf.WriteString(`{"query_id":`)
	if err := errors.Join(w.name("query id", s.QueryID), w.member("partition_id", s.PartitionID), w.member("consumer_group", s.ConsumerGroup)); err != nil {
		return nil, err
	}
	w.buf.WriteString(`,"state_ops":[`)
	for i, op := range s.State {
		w.buf.WriteString(separator(i))
		if err := op.append(w); err != nil {
			return nil, fmt.Errorf("state[%d].%w", i, err)
		}
	}
	w.buf.WriteString(`],"push_items":[`)
	for i, item := range s.Push {
		if item.TransactionID == "" {
			item.TransactionID = NewTransactionID()
		}
		w.buf.WriteString(separator(i))
		if err := item.append(w); err != nil {
			return nil, fmt.Errorf("push[%d].%w", i, err)
		}
	}
	w.buf.WriteString(`]`)
	if s.Ack != nil {
		w.buf.WriteString(`,"ack":`)
		wire := s.Ack.wire()
		err := errors.Join(checkUTF8("transaction id", s.Ack.TransactionID), w.value(struct {
			TransactionID string    `json:"transactionId"`
			Status        AckStatus `json:"status,omitempty"`
			LeaseID       string    `json:"leaseId,omitempty"`
			Error         string    `json:"error,omitempty"`
			Count         int       `json:"count,omitempty"`
		}{wire.TransactionID, wire.Status, wire.LeaseID, wire.Error, s.Count}))
		if err != nil {
			return nil, err
		}
	}
	if s.KeepLease {
		w.buf.WriteString(`,"release_lease":false`)
	}
	w.buf.WriteString(`}`)
	return w.buf.Bytes(), nil
}

func (o StreamStateOp) append(w *jsonWriter) error {
	kind := `upsert`
	if o.Delete {
		kind = `delete`
	}
	w.buf.WriteString(`{"type":"` + kind + `","key":`)
	if err := w.name("key", o.Key); err != nil {
		return err
	}
	if !o.Delete {
		w.buf.WriteString(`,"value":`)
		if err := appendPayload(w, o.Value); err != nil {
			return fmt.Errorf("value: %w", err)
		}
	}
	w.buf.WriteByte('}')
	return nil
}

// member writes a further member of an object, unless it is empty.
func (w *jsonWriter) member(key, value string) error {
	if value == "" {
		return nil
	}
	w.buf.WriteString(`,"` + key + `":`)
	return w.name(key, value)
}
