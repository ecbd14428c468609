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

// AckStatus is what a consumer says of a message.
type AckStatus string

const (
	// AckCompleted says that the message, and every earlier one of its partition, is done for the group.
	AckCompleted AckStatus = "completed"
	// AckFailed asks to deliver it again and to charge the retry budget. When that is used up
	// the message is dead-lettered (or dropped, if the queue keeps no dead letters).
	AckFailed AckStatus = "failed"
	// AckRetry asks to deliver it again without charging the budget.
	AckRetry AckStatus = "retry"
	// AckDeadLetter asks to dead-letter it at once.
	AckDeadLetter AckStatus = "dlq"
)

// maxErrorText bounds AckItem.Error on the wire: it is a note for people, not a dump.
const maxErrorText = 4096

// AckItem acknowledges one message. [Message.Ack] fills it in.
type AckItem struct {
	TransactionID string    // of the message
	PartitionID   string    // of the message, a UUID
	Status        AckStatus // empty means AckCompleted
	LeaseID       string    // must be the live lease; empty means that no lease is checked
	Error         string    // kept with a dead letter; cut at 4096 bytes; empty means none
}

// Ack returns the acknowledgment of the message under the lease it came with. cause is the text of a
// failure and may be nil.
func (m Message) Ack(status AckStatus, cause error) AckItem {
	item := AckItem{TransactionID: m.TransactionID, PartitionID: m.PartitionID, LeaseID: m.LeaseID, Status: status}
	if cause != nil {
		item.Error = cause.Error()
	}
	return item
}

// AckResult is the outcome of the acknowledgment at the same index.
type AckResult struct {
	TransactionID string
	Err           error // an *AckItemError; nil when the instruction was carried out
	LeaseReleased bool  // this item ended the lease of its partition
	DeadLettered  bool  // the message was dead-lettered
	Noop          bool  // AckCompleted for a message that the group had already passed
}

// Ack acknowledges one message for a consumer group; an empty group means the queue mode. Its error
// is the [*AckItemError] of the result, or the failure of the call.
//
// The call is repeated as [RetryPolicy] says when the item is AckCompleted or names a lease. Should the
// lost answer have reported success, the repeated one may answer ErrLeaseExpired, because a full
// acknowledgment ends the lease.
func (c *Client) Ack(ctx context.Context, group string, item AckItem) (AckResult, error) {
	request := struct {
		wireAck
		ConsumerGroup string `json:"consumerGroup,omitempty"`
	}{item.wire(), group}
	results, err := c.ack(ctx, "ack", "/api/v1/ack", group, []AckItem{item}, request)
	if err != nil {
		return AckResult{}, err
	}
	if results[0].Err != nil {
		return results[0], fmt.Errorf("posthorn: ack: %w", results[0].Err)
	}
	return results[0], nil
}

// AckBatch acknowledges messages for a consumer group; an empty group means the queue mode. Results
// are in the order of items. When some were refused the error is an [*AckError] that lists them and
// the results are returned beside it; on any other error they are nil. Items are committed per
// (partition, lease), each on its own.
//
// Within one call the lowest AckFailed, AckRetry or AckDeadLetter of a partition wins over later
// AckCompleted ones, which are refused with ErrNotCommitted. It is repeated as [Client.Ack] is, if that holds for
// every item.
func (c *Client) AckBatch(ctx context.Context, group string, items []AckItem) ([]AckResult, error) {
	request := struct {
		ConsumerGroup   string    `json:"consumerGroup,omitempty"`
		Acknowledgments []wireAck `json:"acknowledgments"`
	}{group, make([]wireAck, len(items))}
	for i, item := range items {
		request.Acknowledgments[i] = item.wire()
	}
	results, err := c.ack(ctx, "ackBatch", "/api/v1/ack/batch", group, items, request)
	if err != nil {
		return nil, err
	}
	var refused []*AckItemError
	for _, result := range results {
		if item, ok := errors.AsType[*AckItemError](result.Err); ok {
			refused = append(refused, item)
		}
	}
	if refused != nil {
		return results, &AckError{Items: refused}
	}
	return results, nil
}

type wireAck struct {
	TransactionID string    `json:"transactionId"`
	PartitionID   string    `json:"partitionId"`
	Status        AckStatus `json:"status,omitempty"`
	LeaseID       string    `json:"leaseId,omitempty"`
	Error         string    `json:"error,omitempty"`
}

func (a AckItem) wire() wireAck {
	text := a.Error
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return wireAck{a.TransactionID, a.PartitionID, a.Status, a.LeaseID, strings.ToValidUTF8(text, "\uFFFD")}
}

// repeatable: a lease fences the repetition, and completing twice changes nothing; anything else
// would be charged twice.
func (a AckItem) repeatable() bool {
	return a.LeaseID != "" || a.Status == AckCompleted || a.Status == ""
}

func (c *Client) ack(ctx context.Context, op, path, group string, items []AckItem, request any) ([]AckResult, error) {
	problems := []error{checkUTF8("consumer group", group)}
	repeatable := true
	for _, item := range items {
		problems = append(problems, checkUTF8("transaction id", item.TransactionID))
		repeatable = repeatable && item.repeatable()
	}
	body := newJSONWriter()
	problems = append(problems, body.value(request))
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("posthorn: %s: %w", op, err)
	}

	var answers []struct {
		Index         int    `json:"index"`
		TransactionID string `json:"transactionId"`
		Success       bool   `json:"success"`
		Error         string `json:"error"` // null leaves it empty
		LeaseReleased bool   `json:"leaseReleased"`
		DLQ           bool   `json:"dlq"`
		Noop          bool   `json:"noop"`
	}
	err := c.do(ctx, call{op: op, method: http.MethodPost, path: path, body: body.buf.Bytes(), repeatable: repeatable}, &answers)
	if err != nil {
		return nil, err
	}
	if len(answers) != len(items) {
		return nil, fmt.Errorf("posthorn: %s: answer of %d results for %d items", op, len(answers), len(items))
	}
	results := make([]AckResult, len(answers))
	for i, answer := range answers {
		if answer.Index != i {
			return nil, fmt.Errorf("posthorn: %s: result %d has index %d", op, i, answer.Index)
		}
		results[i] = AckResult{
			TransactionID: answer.TransactionID,
			LeaseReleased: answer.LeaseReleased,
			DeadLettered:  answer.DLQ,
			Noop:          answer.Noop,
		}
		if !answer.Success {
			results[i].Err = &AckItemError{i, answer.TransactionID, orDefault(answer.Error, "refused without a reason")}
		}
	}
	return results, nil
}

// Lease is a lease after its extension.
type Lease struct {
	ID        string
	Renewed   int       // how many partitions it still holds
	ExpiresAt time.Time // the earliest expiry of them, by the broker's clock; zero when it did not say
}

// Extend moves the end of a lease to d from now, unless it already ends later. d is rounded up to
// whole seconds; 0 means the broker's 60 s. A lease that is over is [ErrLeaseExpired]: it cannot be
// revived. Repeated as [RetryPolicy] says.
func (c *Client) Extend(ctx context.Context, leaseID string, d time.Duration) (Lease, error) {
	call, err := extendCall(leaseID, d)
	if err != nil {
		return Lease{}, fmt.Errorf("posthorn: extendLease: %w", err)
	}
	var wire wireLease
	if err := c.do(ctx, call, &wire); err != nil {
		return Lease{}, err
	}
	lease, err := wire.lease(leaseID)
	if err != nil {
		return lease, fmt.Errorf("posthorn: extendLease: %w", err)
	}
	return lease, nil
}

func extendCall(leaseID string, d time.Duration) (call, error) {
	if leaseID == "" {
		return call{}, errors.New("the lease id is empty")
	}
	request := struct {
		Seconds int64 `json:"seconds,omitempty"`
	}{wholeSeconds(d)}
	body, err := json.Marshal(request)
	return call{
		op: "extendLease", method: http.MethodPost, path: "/api/v1/lease/" + segment(leaseID) + "/extend",
		body: body, repeatable: true,
	}, err
}

type wireLease struct {
	Success      bool   `json:"success"`
	Renewed      int    `json:"renewed"`
	NewExpiresAt string `json:"newExpiresAt"` // null leaves it empty
}

func (w wireLease) lease(id string) (Lease, error) {
	lease := Lease{ID: id, Renewed: w.Renewed, ExpiresAt: parseTime(w.NewExpiresAt)}
	if !w.Success {
		return lease, ErrLeaseExpired
	}
	return lease, nil
}
