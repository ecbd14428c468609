package posthorn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"
)

// Item is one message to push.
type Item struct {
	// Queue names the queue, which the first push creates. Required.
	Queue string

	// Partition is the unit of order and of deduplication. Empty means "Default".
	Partition string

	// TransactionID is the deduplication key: within the queue's window a partition stores it once.
	// Empty means that Push mints one before it sends, so that its own retries are safe.
	TransactionID string

	// Payload is any value that encoding/json can marshal; nil is JSON null. It is marshalled
	// without HTML escaping. A json.RawMessage is sent byte for byte and must be one valid JSON
	// value; inside other values encoding/json compacts it as usual.
	Payload any
}

// PushStatus is the outcome of one pushed item. The values are those of the wire, but for
// StatusUnknown.
type PushStatus string

const (
	// StatusQueued means stored and committed.
	StatusQueued PushStatus = "queued"
	// StatusDuplicate means that the partition already holds this transaction id; nothing was written.
	StatusDuplicate PushStatus = "duplicate"
	// StatusBuffered means accepted into the broker's spool on disk, which replays it into the database.
	StatusBuffered PushStatus = "buffered"
	// StatusFailed means not known to be stored. [Client.Push] has pushed the item again already, as often
	// as [RetryPolicy] says; a [PushError] holds it with its transaction id, to be pushed once more.
	StatusFailed PushStatus = "failed"
	// StatusUnknown is said by the client, never by the broker: an earlier attempt failed for this
	// item and the last one got no answer.
	StatusUnknown PushStatus = "unknown"
)

// Accepted reports whether the broker has taken responsibility for the message.
func (s PushStatus) Accepted() bool {
	return s == StatusQueued || s == StatusDuplicate || s == StatusBuffered
}

// PushResult is the outcome of the item at the same index.
type PushResult struct {
	// MessageID is the stored message's id (UUIDv7). For a duplicate it is the original's, or
	// ZeroID when the original can no longer be read.
	MessageID string
	// TransactionID is the deduplication key that was used.
	TransactionID string
	// Queue is the queue that the item targeted.
	Queue string
	// Status is the outcome.
	Status PushStatus
	// Attempt is the attempt, from 1, that brought this outcome. A duplicate of an attempt above 1
	// may be the echo of this very call: an earlier attempt stored it and its answer was lost.
	Attempt int
}

// Push writes messages, to any mix of queues and partitions. Results are in the order of items.
//
// The error is a [*PushError] unless an item cannot be encoded, in which case nothing was sent. The
// results are returned beside the error whenever an attempt was answered item by item; they are nil
// otherwise.
//
// What is atomic is the group of items for one (queue, partition), not the call: one group can be
// stored while another failed. Attempts that failed as a whole are repeated as [RetryPolicy] says;
// after an attempt that failed for some items, only those are sent again. Both use the transaction
// ids of the first attempt and share one budget of attempts. On a queue whose deduplication is
// switched off (DedupWindow 0) a repeated attempt can store an item twice: set RetryPolicy.MaxAttempts
// to 1 if that is worse than an error.
//
// The limits are the broker's: 64 MiB and 100 000 items per call.
func (c *Client) Push(ctx context.Context, items []Item) ([]PushResult, error) {
	p, err := newPush(items)
	if err != nil {
		return nil, fmt.Errorf("posthorn: push: %w", err)
	}
	retry := c.newRetrier()
	for {
		err := p.send(ctx, c, retry.attempts+1)
		if err == nil && len(p.pending) == 0 {
			return p.results, nil
		}
		// A nil error with pending items means that the broker said "failed" of them.
		if err != nil && !shouldRetry(err, true) || !retry.wait(ctx, err) {
			return p.results, p.failure(withContext(ctx, err))
		}
	}
}

// push is a Push in progress.
type push struct {
	items   []Item       // as sent, with transaction ids
	encoded [][]byte     // the JSON object of each item
	pending []int        // items not accepted yet, ascending
	results []PushResult // nil until an attempt was answered item by item
}

func newPush(items []Item) (*push, error) {
	p := &push{
		items:   make([]Item, len(items)),
		encoded: make([][]byte, len(items)),
		pending: make([]int, len(items)),
	}
	// All items are encoded into one buffer, which may move while it grows: keep offsets until the end.
	w := newJSONWriter()
	ends := make([]int, len(items))
	for i, item := range items {
		if item.TransactionID == "" {
			item.TransactionID = NewTransactionID()
		}
		if err := appendItem(w, item); err != nil {
			return nil, fmt.Errorf("items[%d].%w", i, err)
		}
		p.items[i], p.pending[i], ends[i] = item, i, w.buf.Len()
	}
	start := 0
	for i, end := range ends {
		p.encoded[i] = w.buf.Bytes()[start:end:end]
		start = end
	}
	return p, nil
}

// appendItem writes the object by hand: json.Marshal would compact and re-escape a raw payload.
// An error starts with the name of the field.
func appendItem(w *jsonWriter, item Item) error {
	if err := appendMembers(w, item); err != nil {
		return err
	}
	w.buf.WriteByte('}')
	return nil
}

// appendMembers writes the object without its end.
func appendMembers(w *jsonWriter, item Item) error {
	w.buf.WriteString(`{"queue":`)
	if err := w.name("queue", item.Queue); err != nil {
		return err
	}
	return appendRest(w, item)
}

// appendRest writes the members after the queue.
func appendRest(w *jsonWriter, item Item) error {
	if item.Partition != "" {
		w.buf.WriteString(`,"partition":`)
		if err := w.name("partition", item.Partition); err != nil {
			return err
		}
	}
	w.buf.WriteString(`,"transactionId":`)
	if err := w.name("transactionId", item.TransactionID); err != nil {
		return err
	}
	w.buf.WriteString(`,"payload":`)
	if err := appendPayload(w, item.Payload); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	return nil
}

func appendPayload(w *jsonWriter, payload any) error {
	raw, ok := payload.(json.RawMessage)
	if !ok || raw == nil {
		return w.value(payload)
	}
	// Anything else spliced in could rewrite the request around it.
	if !json.Valid(raw) {
		return errors.New("raw message is not valid JSON")
	}
	if !utf8.Valid(raw) {
		return errors.New("raw message is not valid UTF-8")
	}
	w.buf.Write(raw)
	return nil
}

// send pushes what is pending once and takes in the results.
func (p *push) send(ctx context.Context, c *Client, attempt int) error {
	status, body, err := c.attempt(ctx, call{
		op: "push", method: http.MethodPost, path: "/api/v1/push", body: p.body(), repeatable: true,
	})
	if api, ok := errors.AsType[*APIError](err); ok && api.Status == http.StatusInternalServerError {
		// Under maintenance a spool that fails for some items answers 500 with the full item array.
		if answers, bad := p.parse(api.body); bad == nil {
			p.take(answers, attempt)
			return nil
		}
	}
	if err == nil {
		answers, bad := p.parse(body)
		if bad == nil {
			p.take(answers, attempt)
			return nil
		}
		err = &answerError{fmt.Errorf("answer of status %d: %w", status, bad)}
	}
	if p.results != nil {
		for _, i := range p.pending {
			p.results[i].Status = StatusUnknown
		}
	}
	return err
}

func (p *push) body() []byte {
	size := len(`{"items":[]}`) + len(p.pending)
	for _, i := range p.pending {
		size += len(p.encoded[i])
	}
	body := append(make([]byte, 0, size), `{"items":[`...)
	for n, i := range p.pending {
		if n > 0 {
			body = append(body, ',')
		}
		body = append(body, p.encoded[i]...)
	}
	return append(body, "]}"...)
}

// wireResult mixes the cases because the contract does.
type wireResult struct {
	Index         int        `json:"index"`
	MessageID     string     `json:"message_id"`
	TransactionID string     `json:"transaction_id"`
	QueueName     string     `json:"queueName"`
	Status        PushStatus `json:"status"`
}

// parse reads the answers to the pending items. Results that cannot be matched to their items with
// certainty are an error: to guess could report a lost message as stored.
func (p *push) parse(body []byte) ([]wireResult, error) {
	var answers []wireResult
	if err := json.Unmarshal(body, &answers); err != nil {
		return nil, err
	}
	if len(answers) != len(p.pending) {
		return nil, fmt.Errorf("%d results for %d items", len(answers), len(p.pending))
	}
	for n, answer := range answers {
		if answer.Index != n {
			return nil, fmt.Errorf("result %d has index %d", n, answer.Index)
		}
	}
	return answers, nil
}

func (p *push) take(answers []wireResult, attempt int) {
	if p.results == nil {
		p.results = make([]PushResult, len(p.items))
	}
	var pending []int
	for n, i := range p.pending {
		answer := answers[n]
		p.results[i] = PushResult{
			MessageID:     answer.MessageID,
			TransactionID: answer.TransactionID,
			Queue:         answer.QueueName,
			Status:        answer.Status,
			Attempt:       attempt,
		}
		if !answer.Status.Accepted() {
			pending = append(pending, i)
		}
	}
	p.pending = pending
}

func (p *push) failure(cause error) *PushError {
	e := &PushError{Indices: p.pending, Err: cause, Items: make([]Item, len(p.pending))}
	for n, i := range p.pending {
		e.Items[n] = p.items[i]
	}
	return e
}
