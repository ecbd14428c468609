package posthorn

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// DeliveryQueue delivers its messages one after the other.
type DeliveryQueue struct {
	Name        string
	Parallelism int // messages that may be under way
	Lag         int // messages that have not ended, those under way included
	Paused      bool
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

type wireDeliveryQueue struct {
	Name        string `json:"name"`
	CreatedAt   int64  `json:"createdAt"`
	UpdatedAt   int64  `json:"updatedAt"`
	Parallelism int    `json:"parallelism"`
	Lag         int    `json:"lag"`
	Paused      bool   `json:"paused"`
}

func (w wireDeliveryQueue) queue() DeliveryQueue {
	return DeliveryQueue{w.Name, w.Parallelism, w.Lag, w.Paused, unixMilli(w.CreatedAt), unixMilli(w.UpdatedAt)}
}

const deliveryQueuesPath = "/v2/queues"

// ListDeliveryQueues lists all delivery queues by name.
func (c *Client) ListDeliveryQueues(ctx context.Context) ([]DeliveryQueue, error) {
	var wire []wireDeliveryQueue
	if err := c.do(ctx, call{op: "listDeliveryQueues", method: http.MethodGet, path: deliveryQueuesPath, repeatable: true}, &wire); err != nil {
		return nil, err
	}
	list := make([]DeliveryQueue, len(wire))
	for i, w := range wire {
		list[i] = w.queue()
	}
	return list, nil
}

// GetDeliveryQueue reads a delivery queue. The error matches ErrNotFound when there is none of that name.
func (c *Client) GetDeliveryQueue(ctx context.Context, name string) (DeliveryQueue, error) {
	var wire wireDeliveryQueue
	err := c.do(ctx, call{op: "getDeliveryQueue", method: http.MethodGet, path: deliveryQueuesPath + "/" + segment(name), repeatable: true}, &wire)
	return wire.queue(), err
}

// DeliveryQueueOptions is what to change of a delivery queue.
type DeliveryQueueOptions struct {
	Parallelism int   // messages that may be under way; 0 means as it is, 1 for a new queue
	Paused      *bool // accept messages and start none; nil means as it is, false for a new queue
}

// UpsertDeliveryQueue creates a delivery queue, or changes the one of that name. The name is made of letters, digits, dash,
// underscore and dot.
func (c *Client) UpsertDeliveryQueue(ctx context.Context, name string, o DeliveryQueueOptions) error {
	body, err := json.Marshal(struct {
		QueueName   string `json:"queueName"`
		Parallelism int    `json:"parallelism,omitempty"`
		Paused      *bool  `json:"paused,omitempty"`
	}{name, o.Parallelism, o.Paused})
	if err != nil {
		return err
	}
	return c.do(ctx, call{op: "upsertDeliveryQueue", method: http.MethodPost, path: deliveryQueuesPath, body: body, repeatable: true}, &struct{}{})
}

// DeleteDeliveryQueue deletes a delivery queue and cancels the messages that wait in it; those under way go on. One that does
// not exist is no error.
func (c *Client) DeleteDeliveryQueue(ctx context.Context, name string) error {
	return c.do(ctx, call{op: "deleteDeliveryQueue", method: http.MethodDelete, path: deliveryQueuesPath + "/" + segment(name), repeatable: true}, &struct{}{})
}

// PauseDeliveryQueue has a delivery queue accept messages and start none; those under way go on. The error matches ErrNotFound
// when there is none of that name.
func (c *Client) PauseDeliveryQueue(ctx context.Context, name string) error {
	return c.changeDelivery(ctx, "pauseDeliveryQueue", deliveryQueuesPath, name, "/pause", nil)
}

// ResumeDeliveryQueue lets a delivery queue start what waits. The error matches ErrNotFound when there is none of that name.
func (c *Client) ResumeDeliveryQueue(ctx context.Context, name string) error {
	return c.changeDelivery(ctx, "resumeDeliveryQueue", deliveryQueuesPath, name, "/resume", nil)
}

// changeDelivery posts what can be repeated: the second time changes nothing more.
func (c *Client) changeDelivery(ctx context.Context, op, path, name, what string, query url.Values) error {
	return c.do(ctx, call{op: op, method: http.MethodPost, path: path + "/" + segment(name) + what, query: query, repeatable: true}, &struct{}{})
}

// FlowControl is a flow control key, with what it bounds at the moment.
type FlowControl struct {
	Key               string
	Waiting           int // deliveries that are due and wait for the key
	Parallelism       int // deliveries at once; 0 means no bound
	Running           int // deliveries that the key has let pass and that have not ended
	Rate              int // deliveries that begin in one period; 0 means no bound
	RateCount         int // deliveries that the key has let pass in the period
	Period            time.Duration
	PeriodStart       time.Time // to the second
	Paused            bool
	PinnedParallelism bool // messages do not change it
	PinnedRate        bool // messages do not change rate and period
}

type wireFlowControl struct {
	FlowControlKey      string `json:"flowControlKey"`
	WaitListSize        int    `json:"waitListSize"`
	ParallelismMax      int    `json:"parallelismMax"`
	ParallelismCount    int    `json:"parallelismCount"`
	RateMax             int    `json:"rateMax"`
	RateCount           int    `json:"rateCount"`
	RatePeriod          int64  `json:"ratePeriod"`
	RatePeriodStart     int64  `json:"ratePeriodStart"`
	IsPaused            bool   `json:"isPaused"`
	IsPinnedParallelism bool   `json:"isPinnedParallelism"`
	IsPinnedRate        bool   `json:"isPinnedRate"`
}

func (w wireFlowControl) flow() FlowControl {
	return FlowControl{
		Key: w.FlowControlKey, Waiting: w.WaitListSize, Parallelism: w.ParallelismMax, Running: w.ParallelismCount, Rate: w.RateMax,
		RateCount: w.RateCount, Period: time.Duration(w.RatePeriod) * time.Second, PeriodStart: unixMilli(w.RatePeriodStart * 1000),
		Paused: w.IsPaused, PinnedParallelism: w.IsPinnedParallelism, PinnedRate: w.IsPinnedRate,
	}
}

const flowControlPath = "/v2/flowControl"

// ListFlowControl lists the flow control keys whose names contain a text, in any case, by name; an empty text means all.
func (c *Client) ListFlowControl(ctx context.Context, search string) ([]FlowControl, error) {
	query := url.Values{}
	if search != "" {
		query.Set("search", search)
	}
	var wire []wireFlowControl
	if err := c.do(ctx, call{op: "listFlowControl", method: http.MethodGet, path: flowControlPath, query: query, repeatable: true}, &wire); err != nil {
		return nil, err
	}
	list := make([]FlowControl, len(wire))
	for i, w := range wire {
		list[i] = w.flow()
	}
	return list, nil
}

// GetFlowControl reads a flow control key. The error matches ErrNotFound when no message has named it, or none for long.
func (c *Client) GetFlowControl(ctx context.Context, key string) (FlowControl, error) {
	var wire wireFlowControl
	err := c.do(ctx, call{op: "getFlowControl", method: http.MethodGet, path: flowControlPath + "/" + segment(key), repeatable: true}, &wire)
	return wire.flow(), err
}

// PauseFlowControl has deliveries of a key wait until it is resumed. The error matches ErrNotFound when there is no such key.
func (c *Client) PauseFlowControl(ctx context.Context, key string) error {
	return c.changeDelivery(ctx, "pauseFlowControl", flowControlPath, key, "/pause", nil)
}

// ResumeFlowControl lets deliveries of a key go on. The error matches ErrNotFound when there is no such key.
func (c *Client) ResumeFlowControl(ctx context.Context, key string) error {
	return c.changeDelivery(ctx, "resumeFlowControl", flowControlPath, key, "/resume", nil)
}

// FlowPin are values of a key that messages do not change any more. One of them is needed.
type FlowPin struct {
	Parallelism int           // deliveries at once; 0 leaves it to the messages
	Rate        int           // deliveries that begin in one period; 0 leaves it as it is, pinned when Period is given
	Period      time.Duration // in whole seconds, at most a week; 0 leaves it as it is, pinned when Rate is given
}

// PinFlowControl sets values of a key for good. The error matches ErrNotFound when there is no such key.
func (c *Client) PinFlowControl(ctx context.Context, key string, pin FlowPin) error {
	query := url.Values{}
	if pin.Parallelism != 0 {
		query.Set("parallelism", strconv.Itoa(pin.Parallelism))
	}
	if pin.Rate != 0 {
		query.Set("rate", strconv.Itoa(pin.Rate))
	}
	if pin.Period != 0 {
		query.Set("period", strconv.FormatInt(wholeSeconds(pin.Period), 10))
	}
	return c.changeDelivery(ctx, "pinFlowControl", flowControlPath, key, "/pin", query)
}

// FlowUnpin says what messages may change again. The zero value means both.
type FlowUnpin struct {
	Parallelism bool
	Rate        bool // and the period
}

// UnpinFlowControl lets messages change values of a key again: the next one does. The error matches ErrNotFound when there is
// no such key.
func (c *Client) UnpinFlowControl(ctx context.Context, key string, what FlowUnpin) error {
	query := url.Values{}
	if what.Parallelism {
		query.Set("parallelism", "true")
	}
	if what.Rate {
		query.Set("rate", "true")
	}
	return c.changeDelivery(ctx, "unpinFlowControl", flowControlPath, key, "/unpin", query)
}

// ResetFlowRate begins a new period of a key. The error matches ErrNotFound when there is no such key. It is not repeated
// after an unknown outcome.
func (c *Client) ResetFlowRate(ctx context.Context, key string) error {
	return c.do(ctx, call{op: "resetFlowRate", method: http.MethodPost, path: flowControlPath + "/" + segment(key) + "/resetRate"}, &struct{}{})
}

// Parallelism says how many deliveries the brokers that share a database make at once.
type Parallelism struct {
	Max   int `json:"parallelismMax"`   // that all of them together can make
	Count int `json:"parallelismCount"` // that they have in hand
}

// GetGlobalParallelism reads the figure of all deliveries.
func (c *Client) GetGlobalParallelism(ctx context.Context) (p Parallelism, err error) {
	err = c.do(ctx, call{op: "getGlobalParallelism", method: http.MethodGet, path: "/v2/globalParallelism", repeatable: true}, &p)
	return p, err
}
