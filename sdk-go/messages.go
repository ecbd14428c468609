package posthorn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// MessageStatus is what consumers have done with a stored message.
type MessageStatus string

// The statuses of a stored message. The first that holds counts: dead letter, processing, completed, pending.
const (
	MessagePending    MessageStatus = "pending"     // some consumer group has still to pass it, or there is none
	MessageProcessing MessageStatus = "processing"  // under a live lease of some group
	MessageCompleted  MessageStatus = "completed"   // every group has passed it
	MessageDeadLetter MessageStatus = "dead_letter" // some group has filed it as a dead letter
)

// MessageFilter chooses what [Client.ListMessages] lists. All that is given must hold; the zero value of a
// field means any, but for From.
type MessageFilter struct {
	Queue     string
	Partition string
	Namespace string
	Task      string
	Status    MessageStatus
	From      time.Time // created then or later; zero means one hour ago
	To        time.Time // created then or earlier

	Limit  int // most messages of the page; 0 means 200, above 1000 counts as 1000
	Offset int // messages skipped; at most 10 000
}

// StoredMessage is a message as it lies in its queue, whatever consumers have done with it.
type StoredMessage struct {
	ID             string // UUID
	TransactionID  string
	Queue          string
	Partition      string
	PartitionID    string // UUID
	Namespace      string // of the queue
	Task           string // of the queue
	Status         MessageStatus
	Payload        json.RawMessage // the bytes that were pushed
	CreatedAt      time.Time
	TraceID        string    // UUID; empty unless a transaction set it
	ProducerSub    string    // the sub of the producer's token; empty without
	LeaseExpiresAt time.Time // end of the last live lease on it; zero means none
}

// MessagePage is one page of stored messages, newest first.
type MessagePage struct {
	Messages []StoredMessage

	// How the queues that the filter covers are consumed.
	QueueMode bool // without consumer groups, by some
	Groups    int  // how many consumer groups there are, by name
}

// ConsumerPosition is where a consumer group stands to one message.
type ConsumerPosition struct {
	Group          string
	Consumed       bool      // its cursor has passed the message
	LeaseExpiresAt time.Time // of its live lease on the message; zero means none
}

// MessageDetail is one stored message with all that is known of it.
type MessageDetail struct {
	StoredMessage
	Encrypted bool   // stored encrypted; Payload is decrypted
	Error     string // of the acknowledgment that filed it as a dead letter; empty when it is none
	Retries   int    // Failed acknowledgments charged
	Groups    []ConsumerPosition
	Options   QueueOptions // of its queue, every field set
}

// wireStored is a stored message on the wire. It repeats the payload under another name.
type wireStored struct {
	ID             string          `json:"id"`
	TransactionID  string          `json:"transactionId"`
	PartitionID    string          `json:"partitionId"`
	Queue          string          `json:"queue"`
	Partition      string          `json:"partition"`
	Namespace      string          `json:"namespace"`
	Task           string          `json:"task"`
	Status         string          `json:"status"`
	TraceID        string          `json:"traceId"`     // null leaves it empty
	ProducerSub    string          `json:"producerSub"` // null leaves it empty
	CreatedAt      string          `json:"createdAt"`
	LeaseExpiresAt string          `json:"leaseExpiresAt"` // null leaves it empty
	Data           json.RawMessage `json:"data"`
}

func (w wireStored) message() StoredMessage {
	return StoredMessage{
		ID: w.ID, TransactionID: w.TransactionID, Queue: w.Queue, Partition: w.Partition, PartitionID: w.PartitionID,
		Namespace: w.Namespace, Task: w.Task, Status: MessageStatus(w.Status), Payload: w.Data, CreatedAt: parseTime(w.CreatedAt),
		TraceID: w.TraceID, ProducerSub: w.ProducerSub, LeaseExpiresAt: parseTime(w.LeaseExpiresAt),
	}
}

// filterQuery collects query parameters; what is zero is left out.
type filterQuery struct {
	values   url.Values
	problems []error
}

func newFilterQuery() *filterQuery { return &filterQuery{values: url.Values{}} }

func (f *filterQuery) text(name, value string) {
	f.problems = append(f.problems, checkUTF8(name, value))
	if value != "" {
		f.values.Set(name, value)
	}
}

func (f *filterQuery) number(name string, value int) {
	if value < 0 {
		f.problems = append(f.problems, fmt.Errorf("%s must not be negative", name))
	}
	if value != 0 {
		f.values.Set(name, strconv.Itoa(value))
	}
}

func (f *filterQuery) time(name string, value time.Time) {
	if !value.IsZero() {
		f.values.Set(name, value.UTC().Format(time.RFC3339Nano))
	}
}

// ListMessages lists stored messages, newest first. Looking at messages changes nothing. A page holds up to
// Limit messages, fewer when they are large: the next one begins at Offset plus the messages of this one, and
// the last is empty. Repeated as [RetryPolicy] says.
func (c *Client) ListMessages(ctx context.Context, filter MessageFilter) (MessagePage, error) {
	q := newFilterQuery()
	q.text("queue", filter.Queue)
	q.text("partition", filter.Partition)
	q.text("namespace", filter.Namespace)
	q.text("task", filter.Task)
	q.text("status", string(filter.Status))
	q.time("from", filter.From)
	q.time("to", filter.To)
	q.number("limit", filter.Limit)
	q.number("offset", filter.Offset)
	if err := errors.Join(q.problems...); err != nil {
		return MessagePage{}, fmt.Errorf("posthorn: listMessages: %w", err)
	}
	var wire struct {
		Messages []wireStored `json:"messages"`
		Mode     struct {
			HasQueueMode   bool `json:"hasQueueMode"`
			BusGroupsCount int  `json:"busGroupsCount"`
		} `json:"mode"`
	}
	err := c.do(ctx, call{op: "listMessages", method: http.MethodGet, path: "/api/v1/messages", query: q.values, repeatable: true}, &wire)
	if err != nil {
		return MessagePage{}, err
	}
	page := MessagePage{
		Messages: make([]StoredMessage, len(wire.Messages)), QueueMode: wire.Mode.HasQueueMode, Groups: wire.Mode.BusGroupsCount,
	}
	for i, m := range wire.Messages {
		page.Messages[i] = m.message()
	}
	return page, nil
}

// messagePath is the path of one message.
func messagePath(partitionID, transactionID string) (string, error) {
	return "/api/v1/messages/" + segment(partitionID) + "/" + segment(transactionID),
		errors.Join(checkPresent("partitionID", partitionID), checkPresent("transactionID", transactionID))
}

// checkPresent refuses what would leave a segment out of a path, and what checkUTF8 refuses.
func checkPresent(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s is empty", field)
	}
	return checkUTF8(field, value)
}

// GetMessage describes one message; of several with the transaction id in the partition, the newest. One that
// does not exist, or that every group has passed too long ago to be found by its transaction id, is
// [ErrNotFound]. Repeated as [RetryPolicy] says.
func (c *Client) GetMessage(ctx context.Context, partitionID, transactionID string) (MessageDetail, error) {
	path, err := messagePath(partitionID, transactionID)
	if err != nil {
		return MessageDetail{}, fmt.Errorf("posthorn: getMessage: %w", err)
	}
	var wire struct {
		wireStored
		IsEncrypted    bool   `json:"isEncrypted"`
		ErrorMessage   string `json:"errorMessage"` // null leaves it empty
		RetryCount     int    `json:"retryCount"`
		ConsumerGroups []struct {
			Name           string `json:"name"`
			Consumed       bool   `json:"consumed"`
			LeaseExpiresAt string `json:"leaseExpiresAt"` // null leaves it empty
		} `json:"consumerGroups"`
		QueueConfig wireOptions `json:"queueConfig"`
	}
	if err := c.do(ctx, call{op: "getMessage", method: http.MethodGet, path: path, repeatable: true}, &wire); err != nil {
		return MessageDetail{}, err
	}
	detail := MessageDetail{
		StoredMessage: wire.message(), Encrypted: wire.IsEncrypted, Error: wire.ErrorMessage, Retries: wire.RetryCount,
		Groups: make([]ConsumerPosition, len(wire.ConsumerGroups)), Options: wire.QueueConfig.options(),
	}
	detail.Options.Namespace, detail.Options.Task = wire.Namespace, wire.Task
	for i, g := range wire.ConsumerGroups {
		detail.Groups[i] = ConsumerPosition{Group: g.Name, Consumed: g.Consumed, LeaseExpiresAt: parseTime(g.LeaseExpiresAt)}
	}
	return detail, nil
}

// DeadLetterFilter chooses dead letters. All that is given must hold; the zero value of a field means any.
type DeadLetterFilter struct {
	Queue         string // needed where dead letters are replayed or purged
	ConsumerGroup string // that filed them
	Partition     string
	From          time.Time // failed then or later
	To            time.Time // failed then or earlier
}

func (f DeadLetterFilter) query() *filterQuery {
	q := newFilterQuery()
	q.text("queue", f.Queue)
	q.text("consumerGroup", f.ConsumerGroup)
	q.text("partition", f.Partition)
	q.time("from", f.From)
	q.time("to", f.To)
	return q
}

// DeadLetterEntry is a message that one consumer group has filed as a dead letter.
type DeadLetterEntry struct {
	ID            string // UUID of the message
	TransactionID string
	Queue         string
	Partition     string
	PartitionID   string // UUID
	ConsumerGroup string
	Error         string          // of the acknowledgment that filed it; empty when it gave none
	Retries       int             // Failed acknowledgments charged before
	Payload       json.RawMessage // the bytes that were pushed
	ProducerSub   string          // the sub of the producer's token; empty without
	CreatedAt     time.Time       // of the message
	FailedAt      time.Time
}

// DeadLetterPage is one page of dead letters, newest failure first.
type DeadLetterPage struct {
	Entries []DeadLetterEntry
	Total   int // how many match, counted up to 100 000
}

// ListDeadLetters lists dead letters, newest failure first; a message that several groups have filed once for
// each. limit is the most of the page, 0 means 100, above 1000 counts as 1000; offset is how many are skipped,
// at most 10 000. A page holds fewer when they are large. Repeated as [RetryPolicy] says.
func (c *Client) ListDeadLetters(ctx context.Context, filter DeadLetterFilter, limit, offset int) (DeadLetterPage, error) {
	q := filter.query()
	q.number("limit", limit)
	q.number("offset", offset)
	if err := errors.Join(q.problems...); err != nil {
		return DeadLetterPage{}, fmt.Errorf("posthorn: listDeadLetters: %w", err)
	}
	var wire struct {
		Messages []struct {
			ID            string          `json:"id"`
			TransactionID string          `json:"transactionId"`
			PartitionID   string          `json:"partitionId"`
			Queue         string          `json:"queue"`
			Partition     string          `json:"partition"`
			ConsumerGroup string          `json:"consumerGroup"`
			ErrorMessage  string          `json:"errorMessage"`
			RetryCount    int             `json:"retryCount"`
			Data          json.RawMessage `json:"data"`
			ProducerSub   string          `json:"producerSub"` // null leaves it empty
			CreatedAt     string          `json:"createdAt"`
			FailedAt      string          `json:"failedAt"`
		} `json:"messages"`
		Total int `json:"total"`
	}
	err := c.do(ctx, call{op: "listDeadLetters", method: http.MethodGet, path: "/api/v1/dlq", query: q.values, repeatable: true}, &wire)
	if err != nil {
		return DeadLetterPage{}, err
	}
	page := DeadLetterPage{Entries: make([]DeadLetterEntry, len(wire.Messages)), Total: wire.Total}
	for i, m := range wire.Messages {
		page.Entries[i] = DeadLetterEntry{
			ID: m.ID, TransactionID: m.TransactionID, Queue: m.Queue, Partition: m.Partition, PartitionID: m.PartitionID,
			ConsumerGroup: m.ConsumerGroup, Error: m.ErrorMessage, Retries: m.RetryCount, Payload: m.Data, ProducerSub: m.ProducerSub,
			CreatedAt: parseTime(m.CreatedAt), FailedAt: parseTime(m.FailedAt),
		}
	}
	return page, nil
}

// DeleteDeadLetter removes the dead letters of a transaction id in a partition, of all groups that filed it. A
// message that is no dead letter is left alone and is [ErrNotFound]. It is repeated only when the broker cannot
// have seen it: a second attempt could not tell what the first had deleted from what never was.
func (c *Client) DeleteDeadLetter(ctx context.Context, partitionID, transactionID string) error {
	path, err := messagePath(partitionID, transactionID)
	if err != nil {
		return fmt.Errorf("posthorn: deleteDeadLetter: %w", err)
	}
	var wire struct{}
	return c.do(ctx, call{op: "deleteDeadLetter", method: http.MethodDelete, path: path}, &wire)
}

// PurgeResult is what [Client.PurgeDeadLetters] did.
type PurgeResult struct {
	Deleted   int
	Remaining int // how many more match, counted up to 100 000
}

// PurgeDeadLetters deletes dead letters of one queue, oldest failure first, at most limit of them: 0 means 1000,
// above 10 000 counts as 10 000. Call it again until nothing remains. A queue that does not exist is
// [ErrNotFound]. It is repeated only when the broker cannot have seen it: it might delete more than limit.
func (c *Client) PurgeDeadLetters(ctx context.Context, filter DeadLetterFilter, limit int) (PurgeResult, error) {
	q := filter.query()
	q.number("limit", limit)
	if err := errors.Join(append(q.problems, checkPresent("queue", filter.Queue))...); err != nil {
		return PurgeResult{}, fmt.Errorf("posthorn: purgeDeadLetters: %w", err)
	}
	var wire struct {
		Deleted   int `json:"deleted"`
		Remaining int `json:"remaining"`
	}
	err := c.do(ctx, call{op: "purgeDeadLetters", method: http.MethodDelete, path: "/api/v1/dlq", query: q.values}, &wire)
	return PurgeResult{Deleted: wire.Deleted, Remaining: wire.Remaining}, err
}

// Replay is what [Client.RetryDeadLetter] did.
type Replay struct {
	Queue         string
	Partition     string
	MessageID     string // UUID of the new message
	TransactionID string // of the new message
}

// RetryDeadLetter pushes the message of a dead letter to its queue and partition again, as a new message with a
// transaction id of its own, and removes its dead letters in the same transaction. Every consumer group gets the
// new message. A message that is no dead letter, or none any more, is [ErrNotFound]. It is repeated only when the
// broker cannot have seen it: after an unknown outcome, [ErrNotFound] of a second call says that the first did it.
func (c *Client) RetryDeadLetter(ctx context.Context, partitionID, transactionID string) (Replay, error) {
	path, err := messagePath(partitionID, transactionID)
	if err != nil {
		return Replay{}, fmt.Errorf("posthorn: retryDeadLetter: %w", err)
	}
	var wire struct {
		Queue      string `json:"queue"`
		Partition  string `json:"partition"`
		ReplayedAs struct {
			MessageID     string `json:"message_id"`
			TransactionID string `json:"transaction_id"`
		} `json:"replayedAs"`
	}
	err = c.do(ctx, call{op: "retryDeadLetter", method: http.MethodPost, path: path + "/retry"}, &wire)
	return Replay{
		Queue: wire.Queue, Partition: wire.Partition, MessageID: wire.ReplayedAs.MessageID, TransactionID: wire.ReplayedAs.TransactionID,
	}, err
}

// BulkReplay is what [Client.ReplayDeadLetters] did.
type BulkReplay struct {
	Replayed  int // messages pushed again
	Remaining int // dead letters that match and are left, counted up to 100 000
}

// ReplayDeadLetters replays dead letters of one queue as [Client.RetryDeadLetter] does, all in one transaction:
// oldest failure first, at most limit of them (0 means 100, above 1000 counts as 1000), fewer when they are large.
// Call it again until nothing remains. A queue that does not exist is [ErrNotFound]. It is repeated only when the
// broker cannot have seen it: it might replay more than limit.
func (c *Client) ReplayDeadLetters(ctx context.Context, filter DeadLetterFilter, limit int) (BulkReplay, error) {
	q := filter.query()
	q.number("limit", limit)
	if err := errors.Join(append(q.problems, checkPresent("queue", filter.Queue))...); err != nil {
		return BulkReplay{}, fmt.Errorf("posthorn: replayDeadLetters: %w", err)
	}
	var wire struct {
		Replayed  int `json:"replayed"`
		Remaining int `json:"remaining"`
	}
	err := c.do(ctx, call{op: "replayDeadLetters", method: http.MethodPost, path: "/api/v1/dlq/replay", query: q.values}, &wire)
	return BulkReplay{Replayed: wire.Replayed, Remaining: wire.Remaining}, err
}
