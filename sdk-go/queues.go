package posthorn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"
)

// QueueOptions are the settings of a queue. In a request nil, and for the strings empty, means the
// default; in an answer the broker fills all of them in. Durations in seconds must be whole seconds.
type QueueOptions struct {
	Namespace string // for discovery pops and listings; default ""
	Task      string // for discovery pops and listings; default ""

	LeaseTime          *time.Duration // lease of a pop that names none; default 300 s (60 s on a queue made by push or pop)
	RetryLimit         *int           // Failed acknowledgments before the dead letter; default 3
	DeadLetterQueue    *bool          // default true; the queue keeps dead letters if this or the next is true
	DLQAfterMaxRetries *bool          // default true
	DelayedProcessing  *time.Duration // age a message needs before delivery; seconds; default 0
	WindowBuffer       *time.Duration // quiet time a partition needs before delivery; seconds; default 0
	MinPopWait         *time.Duration // how long a pop that waits holds an under-full batch; milliseconds; default 0, at most 60 s

	RetentionEnabled   *bool          // switches the next two; default false
	Retention          *time.Duration // delete messages of this age, consumed or not; seconds; default 0 = keep
	CompletedRetention *time.Duration // delete messages of this age that every group has passed; seconds; default 0 = keep
	MaxWaitTime        *time.Duration // delete messages of this age, leased ones too; seconds; default 0 = keep

	EncryptionEnabled *bool          // encrypt payloads at rest; default false
	DedupWindow       *time.Duration // how long a transaction id is remembered; seconds; default 3600 s, 0 = no deduplication

	Priority   *int // stored and returned, no effect; default 0
	MaxSize    *int // stored and returned, no effect; default 0
	TTL        *int // stored and returned, no effect; default 0
	RetryDelay *int // stored and returned, no effect; default 0
}

// wireOptions are QueueOptions in the units of the wire.
type wireOptions struct {
	Namespace                 string `json:"namespace,omitempty"`
	Task                      string `json:"task,omitempty"`
	LeaseTime                 *int64 `json:"leaseTime,omitempty"`
	RetryLimit                *int   `json:"retryLimit,omitempty"`
	DeadLetterQueue           *bool  `json:"deadLetterQueue,omitempty"`
	DLQAfterMaxRetries        *bool  `json:"dlqAfterMaxRetries,omitempty"`
	DelayedProcessing         *int64 `json:"delayedProcessing,omitempty"`
	WindowBuffer              *int64 `json:"windowBuffer,omitempty"`
	MinPopWaitTime            *int64 `json:"minPopWaitTime,omitempty"` // ms
	RetentionEnabled          *bool  `json:"retentionEnabled,omitempty"`
	RetentionSeconds          *int64 `json:"retentionSeconds,omitempty"`
	CompletedRetentionSeconds *int64 `json:"completedRetentionSeconds,omitempty"`
	MaxWaitTimeSeconds        *int64 `json:"maxWaitTimeSeconds,omitempty"`
	EncryptionEnabled         *bool  `json:"encryptionEnabled,omitempty"`
	DedupWindowSeconds        *int64 `json:"dedupWindowSeconds,omitempty"`
	Priority                  *int   `json:"priority,omitempty"`
	MaxSize                   *int   `json:"maxSize,omitempty"`
	TTL                       *int   `json:"ttl,omitempty"`
	RetryDelay                *int   `json:"retryDelay,omitempty"`
}

func (o QueueOptions) wire() (wireOptions, error) {
	problems := []error{checkUTF8("Namespace", o.Namespace), checkUTF8("Task", o.Task)}
	whole := func(field string, d *time.Duration, unit time.Duration) *int64 {
		if d == nil {
			return nil
		}
		if *d%unit != 0 {
			problems = append(problems, fmt.Errorf("%s of %v is not a multiple of %v", field, *d, unit))
		}
		return new(int64(*d / unit))
	}
	w := wireOptions{
		Namespace:                 o.Namespace,
		Task:                      o.Task,
		LeaseTime:                 whole("LeaseTime", o.LeaseTime, time.Second),
		RetryLimit:                o.RetryLimit,
		DeadLetterQueue:           o.DeadLetterQueue,
		DLQAfterMaxRetries:        o.DLQAfterMaxRetries,
		DelayedProcessing:         whole("DelayedProcessing", o.DelayedProcessing, time.Second),
		WindowBuffer:              whole("WindowBuffer", o.WindowBuffer, time.Second),
		MinPopWaitTime:            whole("MinPopWait", o.MinPopWait, time.Millisecond),
		RetentionEnabled:          o.RetentionEnabled,
		RetentionSeconds:          whole("Retention", o.Retention, time.Second),
		CompletedRetentionSeconds: whole("CompletedRetention", o.CompletedRetention, time.Second),
		MaxWaitTimeSeconds:        whole("MaxWaitTime", o.MaxWaitTime, time.Second),
		EncryptionEnabled:         o.EncryptionEnabled,
		DedupWindowSeconds:        whole("DedupWindow", o.DedupWindow, time.Second),
		Priority:                  o.Priority,
		MaxSize:                   o.MaxSize,
		TTL:                       o.TTL,
		RetryDelay:                o.RetryDelay,
	}
	return w, errors.Join(problems...)
}

func (w wireOptions) options() QueueOptions {
	return QueueOptions{
		Namespace:          w.Namespace,
		Task:               w.Task,
		LeaseTime:          duration(w.LeaseTime, time.Second),
		RetryLimit:         w.RetryLimit,
		DeadLetterQueue:    w.DeadLetterQueue,
		DLQAfterMaxRetries: w.DLQAfterMaxRetries,
		DelayedProcessing:  duration(w.DelayedProcessing, time.Second),
		WindowBuffer:       duration(w.WindowBuffer, time.Second),
		MinPopWait:         duration(w.MinPopWaitTime, time.Millisecond),
		RetentionEnabled:   w.RetentionEnabled,
		Retention:          duration(w.RetentionSeconds, time.Second),
		CompletedRetention: duration(w.CompletedRetentionSeconds, time.Second),
		MaxWaitTime:        duration(w.MaxWaitTimeSeconds, time.Second),
		EncryptionEnabled:  w.EncryptionEnabled,
		DedupWindow:        duration(w.DedupWindowSeconds, time.Second),
		Priority:           w.Priority,
		MaxSize:            w.MaxSize,
		TTL:                w.TTL,
		RetryDelay:         w.RetryDelay,
	}
}

// duration holds what does not fit (292 years and more) at the longest duration.
func duration(n *int64, unit time.Duration) *time.Duration {
	if n == nil {
		return nil
	}
	if *n > math.MaxInt64/int64(unit) {
		return new(time.Duration(math.MaxInt64))
	}
	return new(time.Duration(*n) * unit)
}

// QueueConfig is a queue as [Client.Configure] left it.
type QueueConfig struct {
	ID        string // UUID
	Name      string
	Namespace string
	Task      string
	Options   QueueOptions // resolved values
}

// Configure creates a queue or replaces its settings. It is a full replace: an option that is not
// given goes back to its default, whatever it was. To change one option, start from the Options of
// [Client.GetQueue]:
//
//	queue, err := client.GetQueue(ctx, "orders.created")
//	queue.Options.RetryLimit = new(10)
//	_, err = client.Configure(ctx, "orders.created", queue.Options)
//
// Repeated as [RetryPolicy] says.
func (c *Client) Configure(ctx context.Context, queue string, opts QueueOptions) (QueueConfig, error) {
	options, err := opts.wire()
	request := struct {
		Queue   string      `json:"queue"`
		Options wireOptions `json:"options"`
	}{queue, options}
	body := newJSONWriter()
	if err := errors.Join(checkUTF8("queue", queue), err, body.value(request)); err != nil {
		return QueueConfig{}, fmt.Errorf("posthorn: configure: %w", err)
	}
	var wire struct {
		QueueID   string      `json:"queueId"`
		Queue     string      `json:"queue"`
		Namespace string      `json:"namespace"`
		Task      string      `json:"task"`
		Options   wireOptions `json:"options"`
	}
	err = c.do(ctx, call{
		op: "configure", method: http.MethodPost, path: "/api/v1/configure", body: body.buf.Bytes(), repeatable: true,
	}, &wire)
	if err != nil {
		return QueueConfig{}, err
	}
	config := QueueConfig{
		ID: wire.QueueID, Name: wire.Queue, Namespace: wire.Namespace, Task: wire.Task, Options: wire.Options.options(),
	}
	config.Options.Namespace = orDefault(config.Options.Namespace, wire.Namespace)
	config.Options.Task = orDefault(config.Options.Task, wire.Task)
	return config, nil
}

// Counts are numbers of messages. Those that an answer does not carry are 0.
type Counts struct {
	Total      int64 `json:"total"`
	Pending    int64 `json:"pending"` // for the slowest consumer group
	Processing int64 `json:"processing"`
	Completed  int64 `json:"completed"`
	DeadLetter int64 `json:"deadLetter"`
}

// QueueSummary is one queue of [Client.ListQueues].
type QueueSummary struct {
	ID            string // UUID
	Name          string
	Namespace     string
	Task          string
	CreatedAt     time.Time
	Partitions    int
	RetainedBytes int64
	Messages      Counts // total, pending and processing
}

// ListQueues lists all queues. Repeated as [RetryPolicy] says.
func (c *Client) ListQueues(ctx context.Context) ([]QueueSummary, error) {
	var wire struct {
		Queues []struct {
			ID            string `json:"id"`
			Name          string `json:"name"`
			Namespace     string `json:"namespace"`
			Task          string `json:"task"`
			CreatedAt     string `json:"createdAt"`
			Partitions    int    `json:"partitions"`
			RetainedBytes int64  `json:"retainedBytes"`
			Messages      Counts `json:"messages"`
		} `json:"queues"`
	}
	err := c.do(ctx, call{op: "listQueues", method: http.MethodGet, path: "/api/v1/resources/queues", repeatable: true}, &wire)
	if err != nil {
		return nil, err
	}
	queues := make([]QueueSummary, len(wire.Queues))
	for i, q := range wire.Queues {
		queues[i] = QueueSummary{
			ID: q.ID, Name: q.Name, Namespace: q.Namespace, Task: q.Task, CreatedAt: parseTime(q.CreatedAt),
			Partitions: q.Partitions, RetainedBytes: q.RetainedBytes, Messages: q.Messages,
		}
	}
	return queues, nil
}

// Queue is one queue in detail.
type Queue struct {
	ID            string // UUID
	Name          string
	Namespace     string
	Task          string
	CreatedAt     time.Time
	Options       QueueOptions // every field set
	Partitions    []Partition
	Totals        Counts
	RetainedBytes int64
}

// Partition is one partition of a queue.
type Partition struct {
	ID            string // UUID
	Name          string
	CreatedAt     time.Time
	Stats         Counts
	OldestMessage time.Time // when the oldest stored message was pushed; zero when there is none
	NewestMessage time.Time // likewise of the newest
}

// GetQueue describes one queue. A queue that does not exist is [ErrNotFound]. Repeated as
// [RetryPolicy] says.
func (c *Client) GetQueue(ctx context.Context, name string) (Queue, error) {
	if err := checkUTF8("queue", name); err != nil {
		return Queue{}, fmt.Errorf("posthorn: getQueue: %w", err)
	}
	var wire struct {
		ID         string      `json:"id"`
		Name       string      `json:"name"`
		Namespace  string      `json:"namespace"`
		Task       string      `json:"task"`
		CreatedAt  string      `json:"createdAt"`
		Options    wireOptions `json:"options"`
		Partitions []struct {
			ID            string `json:"id"`
			Name          string `json:"name"`
			CreatedAt     string `json:"createdAt"`
			Stats         Counts `json:"stats"`
			OldestMessage string `json:"oldestMessage"` // null leaves it empty
			NewestMessage string `json:"newestMessage"` // null leaves it empty
		} `json:"partitions"`
		Totals        Counts `json:"totals"`
		RetainedBytes int64  `json:"retainedBytes"`
	}
	err := c.do(ctx, call{op: "getQueue", method: http.MethodGet, path: "/api/v1/resources/queues/" + segment(name), repeatable: true}, &wire)
	if err != nil {
		return Queue{}, err
	}
	q := Queue{
		ID: wire.ID, Name: wire.Name, Namespace: wire.Namespace, Task: wire.Task, CreatedAt: parseTime(wire.CreatedAt),
		Options: wire.Options.options(), Partitions: make([]Partition, len(wire.Partitions)),
		Totals: wire.Totals, RetainedBytes: wire.RetainedBytes,
	}
	// A configure with these options must not lose them, wherever the broker states them.
	q.Options.Namespace = orDefault(q.Options.Namespace, wire.Namespace)
	q.Options.Task = orDefault(q.Options.Task, wire.Task)
	for i, p := range wire.Partitions {
		q.Partitions[i] = Partition{
			ID: p.ID, Name: p.Name, CreatedAt: parseTime(p.CreatedAt), Stats: p.Stats,
			OldestMessage: parseTime(p.OldestMessage), NewestMessage: parseTime(p.NewestMessage),
		}
	}
	return q, nil
}

// DeleteQueue deletes a queue with everything in it and reports whether it existed. It is repeated
// only when the broker cannot have seen it: a push in between may have created the queue anew.
func (c *Client) DeleteQueue(ctx context.Context, name string) (existed bool, err error) {
	if err := checkUTF8("queue", name); err != nil {
		return false, fmt.Errorf("posthorn: deleteQueue: %w", err)
	}
	var wire struct {
		Deleted bool `json:"deleted"`
	}
	err = c.do(ctx, call{op: "deleteQueue", method: http.MethodDelete, path: "/api/v1/resources/queues/" + segment(name)}, &wire)
	return wire.Deleted, err
}

// Health is what the broker says of itself.
type Health struct {
	Status   string // "healthy" or "unhealthy"
	Database string // "connected" or "disconnected"
	Engine   string // name of the storage engine
	Version  string // of the broker
	// Encryption is the state of encryption at rest: "active", "off" or "misconfigured"; "" when the broker
	// does not say.
	Encryption string
	Raw        json.RawMessage // the whole answer, for what else it says
}

// Health asks the broker for a round trip to its database. It is never repeated. An unhealthy broker
// is an error that matches [ErrUnavailable], with what it said returned beside it.
func (c *Client) Health(ctx context.Context) (Health, error) {
	_, body, err := c.attempt(ctx, call{op: "health", method: http.MethodGet, path: "/health", repeatable: true})
	if api, ok := errors.AsType[*APIError](err); ok {
		body = api.body
	}
	var wire struct {
		Status   string `json:"status"`
		Database string `json:"database"`
		Engine   string `json:"engine"`
		Version  string `json:"version"`

		Encryption string `json:"encryption"`
	}
	bad := json.Unmarshal(body, &wire)
	health := Health{Status: wire.Status, Database: wire.Database, Engine: wire.Engine, Version: wire.Version, Encryption: wire.Encryption}
	if bad == nil {
		health.Raw = body
	} else if err == nil {
		err = fmt.Errorf("answer: %w", bad)
	}
	if err != nil {
		return health, fmt.Errorf("posthorn: health: %w", err)
	}
	return health, nil
}
