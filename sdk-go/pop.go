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

// defaultPoll is the waiting time of a long poll. The client always sends one, because its own
// deadline has to lie beyond it.
const defaultPoll = 30 * time.Second

// Where a consumer group starts reading, see PopOptions.SubscriptionMode.
const (
	SubscribeAll = "all" // from the beginning
	SubscribeNew = "new" // only what is pushed from now on
)

// PopOptions say what to pop. Set either Queue (and Partition), or Namespace and Task.
type PopOptions struct {
	Queue     string // empty means discovery by Namespace and Task
	Partition string // only this partition of Queue; empty means any
	Namespace string // discovery: queues of this namespace; empty means any
	Task      string // discovery: queues of this task; empty means any

	Batch      int           // most messages over all partitions; 0 means the broker's 200
	Partitions int           // most partitions claimed; 0 means the broker's 1, negative means no cap
	AutoAck    bool          // commit at once, without a lease: delivery is at most once
	Wait       bool          // wait for a message when there is none
	Timeout    time.Duration // how long to wait, in whole ms; 0 means 30 s; only with Wait
	Lease      time.Duration // rounded up to whole seconds; 0 means the queue's lease time

	ConsumerGroup string // empty means the queue mode: one shared, unnamed group

	// SubscriptionMode and SubscriptionFrom only say where a group starts that has never read this
	// partition. Mode: SubscribeAll, SubscribeNew; empty means the broker's default (all).
	// From: "now" or an ISO 8601 time; empty means that the mode decides.
	SubscriptionMode string
	SubscriptionFrom string
}

// Message is one delivered message.
type Message struct {
	ID              string // message id, a UUIDv7
	TransactionID   string // the deduplication key; acknowledgments name the message by it
	Queue           string
	Partition       string
	PartitionID     string          // UUID; acknowledgments need it
	Payload         json.RawMessage // the bytes that were pushed
	CreatedAt       time.Time       // when the broker stored it; zero when it did not say
	TraceID         string          // empty means none
	ProducerSub     string          // subject of the producer's token; empty means none
	TraceParent     string          // W3C Trace Context of the push, see WithTraceParent; empty means none
	ConsumerGroup   string
	LeaseID         string // empty with AutoAck
	DeliveryAttempt int    // 1 at the first delivery to the group; 0 when the broker does not count
}

// Decode unmarshals the payload into v.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Payload, v); err != nil {
		return fmt.Errorf("posthorn: payload of message %s: %w", m.ID, err)
	}
	return nil
}

// Batch is what one pop delivered: messages grouped by partition, in order within each. It holds no
// messages when there was nothing to deliver.
type Batch struct {
	Messages          []Message
	LeaseID           string // one lease for all partitions of the batch; empty with AutoAck
	ConsumerGroup     string
	PartitionsClaimed int
}

// Pop delivers the next messages to a consumer group. A batch without messages and a nil error mean
// that nothing was available, or that the long poll ran out. Popping a queue that does not exist
// creates it.
//
// A pop with a lease is repeated as [RetryPolicy] says: should the lost answer have carried
// messages, they are delivered again when their lease ends. A pop with AutoAck is repeated only when
// the broker cannot have seen it, because what its lost answer carried is gone; on an error, assume
// that up to Batch messages were lost.
func (c *Client) Pop(ctx context.Context, opts PopOptions) (Batch, error) {
	call, err := opts.call()
	if err != nil {
		return Batch{}, fmt.Errorf("posthorn: pop: %w", err)
	}
	var wire wireBatch
	if err := c.do(ctx, call, &wire); err != nil {
		return Batch{}, err
	}
	return wire.batch(), nil
}

func (o PopOptions) call() (call, error) {
	var problems []error
	if o.Partition != "" && o.Queue == "" {
		problems = append(problems, errors.New("option Partition without Queue"))
	}
	if o.Queue != "" && (o.Namespace != "" || o.Task != "") {
		problems = append(problems, errors.New("option Queue together with Namespace or Task"))
	}
	if o.Timeout < 0 || o.Lease < 0 || o.Batch < 0 {
		problems = append(problems, errors.New("options Batch, Timeout and Lease must not be negative"))
	}
	for _, name := range []struct{ field, value string }{
		{"Queue", o.Queue}, {"Partition", o.Partition}, {"Namespace", o.Namespace}, {"Task", o.Task}, {"ConsumerGroup", o.ConsumerGroup},
	} {
		problems = append(problems, checkUTF8(name.field, name.value))
	}
	if err := errors.Join(problems...); err != nil {
		return call{}, err
	}

	c := call{op: "pop", method: http.MethodGet, path: "/api/v1/pop", query: o.query(), repeatable: !o.AutoAck}
	if o.Queue != "" {
		c.op = "popQueue"
		c.path += "/queue/" + segment(o.Queue)
	}
	if o.Partition != "" {
		c.op = "popPartition"
		c.path += "/partition/" + segment(o.Partition)
	}
	if o.Wait {
		c.wait = o.poll()
	}
	return c, nil
}

func (o PopOptions) poll() time.Duration {
	return orDefault(o.Timeout, defaultPoll)
}

func (o PopOptions) query() url.Values {
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	set("namespace", o.Namespace)
	set("task", o.Task)
	set("consumerGroup", o.ConsumerGroup)
	set("subscriptionMode", o.SubscriptionMode)
	set("subscriptionFrom", o.SubscriptionFrom)
	if o.Batch != 0 {
		q.Set("batch", strconv.Itoa(o.Batch))
	}
	if o.Partitions != 0 {
		q.Set("partitions", strconv.Itoa(o.Partitions))
	}
	if o.AutoAck {
		q.Set("autoAck", "true")
	}
	if o.Wait {
		q.Set("wait", "true")
		// Rounded up: 0 would not be a wait at all.
		q.Set("timeout", strconv.FormatInt(int64((o.poll()+time.Millisecond-1)/time.Millisecond), 10))
	}
	if o.Lease != 0 {
		q.Set("leaseSeconds", strconv.FormatInt(wholeSeconds(o.Lease), 10))
	}
	return q
}

type wireBatch struct {
	Queue             string        `json:"queue"`
	LeaseID           string        `json:"leaseId"`
	ConsumerGroup     string        `json:"consumerGroup"`
	Messages          []wireMessage `json:"messages"`
	PartitionsClaimed int           `json:"partitionsClaimed"`
}

type wireMessage struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	TraceID         string          `json:"traceId"` // null leaves it empty
	Data            json.RawMessage `json:"data"`
	ProducerSub     string          `json:"producerSub"` // null leaves it empty
	TraceParent     string          `json:"traceparent"` // absent leaves it empty
	CreatedAt       string          `json:"createdAt"`
	Queue           string          `json:"queue"` // absent in older brokers
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	ConsumerGroup   string          `json:"consumerGroup"`
	DeliveryAttempt int             `json:"deliveryAttempt"` // absent in older brokers
}

func (w wireBatch) batch() Batch {
	b := Batch{LeaseID: w.LeaseID, ConsumerGroup: w.ConsumerGroup, PartitionsClaimed: w.PartitionsClaimed}
	if len(w.Messages) == 0 {
		return b
	}
	b.Messages = make([]Message, len(w.Messages))
	for i, m := range w.Messages {
		b.Messages[i] = Message{
			ID:              m.ID,
			TransactionID:   m.TransactionID,
			Queue:           orDefault(m.Queue, w.Queue),
			Partition:       m.Partition,
			PartitionID:     m.PartitionID,
			Payload:         m.Data,
			CreatedAt:       parseTime(m.CreatedAt),
			TraceID:         m.TraceID,
			ProducerSub:     m.ProducerSub,
			TraceParent:     m.TraceParent,
			ConsumerGroup:   orDefault(m.ConsumerGroup, w.ConsumerGroup),
			LeaseID:         orDefault(m.LeaseID, w.LeaseID),
			DeliveryAttempt: m.DeliveryAttempt,
		}
	}
	return b
}

// parseTime gives the zero time for what it cannot read: a leased batch is worth more than a
// timestamp in it.
func parseTime(value string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, value)
	if err != nil {
		return time.Time{}
	}
	return t
}
