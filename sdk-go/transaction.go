package posthorn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Transaction is what one call commits: all of it or nothing. The zero value does nothing.
type Transaction struct {
	Push []TransactionItem // appended in order; at most 100 000 items and acknowledgments together
	Ack  []TransactionAck

	// RequiredLeases are leases that the caller holds. An acknowledgment without a LeaseID, of a
	// partition that nobody has leased, counts as made under the lease named here, if it is exactly
	// one, and is rejected when that is over. Empty means that no lease is asked for.
	RequiredLeases []string
}

// TransactionItem is one message to push in a transaction.
type TransactionItem struct {
	Item
	TraceID string // a UUID, stored with the message and popped with it; empty means none
}

// TransactionAck acknowledges one message in a transaction.
type TransactionAck struct {
	AckItem
	ConsumerGroup string // empty means the queue mode
}

// TransactionResult is the outcome of a transaction that was committed.
type TransactionResult struct {
	ID      string // names the call in the broker's logs
	Pushed  []TransactionPushed
	Acked   []TransactionAcked
	Attempt int // the attempt, from 1, that brought this outcome
}

// TransactionPushed is the outcome of the item at the same index.
type TransactionPushed struct {
	MessageID     string // the stored message's id (UUIDv7); of a duplicate that of the first
	TransactionID string // the deduplication key that was used
	Queue         string
	Duplicate     bool // an earlier item of this transaction has the same key in the same partition
}

// TransactionAcked is the outcome of the acknowledgment at the same index.
type TransactionAcked struct {
	TransactionID string // of the message
	DeadLettered  bool   // the message was dead-lettered
}

// Why a transaction was rolled back, for errors.Is.
var (
	// ErrDuplicate: an item's transaction id is already inside its queue's deduplication window.
	ErrDuplicate = errors.New("QDUP")
	// ErrRejected: an acknowledgment could not be carried out.
	ErrRejected = errors.New("QTXN")
)

// TransactionError says that the broker rolled a transaction back: nothing of it was done. It matches
// ErrDuplicate or ErrRejected by errors.Is.
type TransactionError struct {
	ID      string // names the call in the broker's logs
	Message string // the broker's text
	// Attempt is the attempt, from 1, that brought this outcome. An ErrDuplicate of an attempt above 1
	// may be the echo of this very call: an earlier attempt was committed and its answer was lost. It
	// is when an item's transaction id was chosen for this call alone, as Transaction itself does.
	Attempt int
}

func (e *TransactionError) Error() string { return "posthorn: transaction: " + e.Message }

// Is reports whether the broker's text is of the kind that target stands for.
func (e *TransactionError) Is(target error) bool {
	return (target == ErrDuplicate || target == ErrRejected) && strings.HasPrefix(e.Message, target.Error())
}

// Transaction pushes and acknowledges in one database transaction. A consumer that acknowledges what
// it read and pushes what it made of it, in one call, does so exactly once.
//
// When the broker rolled the transaction back the error is a [*TransactionError]. A transaction is
// never spooled: while the broker cannot reach its database the error is ErrUnavailable, and then it
// may be unknown whether the transaction was committed.
//
// The call is repeated as [RetryPolicy] says when it pushes anything, with the transaction ids of the
// first attempt, minted where an item has none; without pushes when [Client.AckBatch] would be. On a
// queue whose deduplication is switched off (DedupWindow 0) a repeated attempt can be committed twice: set
// RetryPolicy.MaxAttempts to 1 if that is worse than an error.
func (c *Client) Transaction(ctx context.Context, t Transaction) (TransactionResult, error) {
	call, err := t.call()
	if err != nil {
		return TransactionResult{}, fmt.Errorf("posthorn: transaction: %w", err)
	}
	retry := c.newRetrier()
	for {
		var wire wireTransaction
		err := c.once(ctx, call, &wire)
		if err == nil {
			return wire.result(&t, retry.attempts+1)
		}
		if !shouldRetry(err, call.repeatable) || !retry.wait(ctx, err) {
			return TransactionResult{}, fmt.Errorf("posthorn: transaction: %w", withContext(ctx, err))
		}
	}
}

// call encodes the transaction, pushes first.
func (t *Transaction) call() (call, error) {
	w := newJSONWriter()
	w.buf.WriteString(`{"operations":[`)
	for i, item := range t.Push {
		if item.TransactionID == "" {
			item.TransactionID = NewTransactionID()
		}
		w.buf.WriteString(separator(i) + `{"type":"push","items":[`)
		if err := item.append(w); err != nil {
			return call{}, fmt.Errorf("push[%d].%w", i, err)
		}
		w.buf.WriteString(`]}`)
	}
	repeatable := true
	for i, ack := range t.Ack {
		repeatable = repeatable && ack.repeatable()
		if err := errors.Join(checkUTF8("transaction id", ack.TransactionID), checkUTF8("consumer group", ack.ConsumerGroup)); err != nil {
			return call{}, fmt.Errorf("ack[%d]: %w", i, err)
		}
		w.buf.WriteString(separator(len(t.Push) + i))
		err := w.value(struct {
			Type string `json:"type"`
			wireAck
			ConsumerGroup string `json:"consumerGroup,omitempty"`
		}{"ack", ack.wire(), ack.ConsumerGroup})
		if err != nil {
			return call{}, fmt.Errorf("ack[%d]: %w", i, err)
		}
	}
	w.buf.WriteString(`]`)
	if len(t.RequiredLeases) > 0 {
		w.buf.WriteString(`,"requiredLeases":`)
		if err := w.value(t.RequiredLeases); err != nil {
			return call{}, fmt.Errorf("required leases: %w", err)
		}
	}
	w.buf.WriteString(`}`)
	return call{
		op: "transaction", method: http.MethodPost, path: "/api/v1/transaction", body: w.buf.Bytes(),
		repeatable: repeatable || len(t.Push) > 0, // a duplicate undoes the acknowledgments of a repetition
	}, nil
}

func separator(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func (i TransactionItem) append(w *jsonWriter) error {
	members := appendMembers
	if i.Queue == "" { // null is an omitted queue, which is the sink of a stream
		w.buf.WriteString(`{"queue":null`)
		members = appendRest
	}
	if err := members(w, i.Item); err != nil {
		return err
	}
	if i.TraceID != "" {
		w.buf.WriteString(`,"traceId":`)
		if err := w.name("traceId", i.TraceID); err != nil {
			return err
		}
	}
	w.buf.WriteByte('}')
	return nil
}

type wireTransaction struct {
	TransactionID string `json:"transactionId"`
	Success       bool   `json:"success"`
	Error         string `json:"error"`
	Results       []struct {
		Index         int    `json:"index"`
		Type          string `json:"type"`
		TransactionID string `json:"transactionId"`
		MessageID     string `json:"messageId"`
		QueueName     string `json:"queueName"`
		Duplicate     bool   `json:"duplicate"`
		DLQ           bool   `json:"dlq"`
	} `json:"results"`
}

// result matches the answer to what was sent. One that cannot be matched is an error, not a guess.
func (w *wireTransaction) result(t *Transaction, attempt int) (TransactionResult, error) {
	if !w.Success {
		return TransactionResult{}, &TransactionError{w.TransactionID, orDefault(w.Error, "rolled back without a reason"), attempt}
	}
	if len(w.Results) != len(t.Push)+len(t.Ack) {
		return TransactionResult{}, fmt.Errorf("posthorn: transaction: answer of %d results for %d operations", len(w.Results), len(t.Push)+len(t.Ack))
	}
	out := TransactionResult{
		ID: w.TransactionID, Attempt: attempt,
		Pushed: make([]TransactionPushed, 0, len(t.Push)), Acked: make([]TransactionAcked, 0, len(t.Ack)),
	}
	for i, r := range w.Results {
		kind := "push"
		if i >= len(t.Push) {
			kind = "ack"
		}
		if r.Index != i || r.Type != kind {
			return TransactionResult{}, fmt.Errorf("posthorn: transaction: result %d is number %d and of type %q", i, r.Index, r.Type)
		}
		if kind == "push" {
			out.Pushed = append(out.Pushed, TransactionPushed{r.MessageID, r.TransactionID, r.QueueName, r.Duplicate})
		} else {
			out.Acked = append(out.Acked, TransactionAcked{r.TransactionID, r.DLQ})
		}
	}
	return out, nil
}
