package posthorn

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// StatsFilter chooses queues and a time. Empty strings match every queue. The zero To means now, the zero From the
// default length before To: an hour, for [Client.GetAnalytics] an hour, a day or 30 days. At most 366 days.
type StatsFilter struct {
	Queue     string
	Namespace string
	Task      string
	From, To  time.Time
}

func (f StatsFilter) query() (url.Values, error) {
	q := url.Values{}
	for _, p := range []struct{ name, value string }{{"queue", f.Queue}, {"namespace", f.Namespace}, {"task", f.Task}} {
		if err := checkUTF8(p.name, p.value); err != nil {
			return nil, err
		}
		if p.value != "" {
			q.Set(p.name, p.value)
		}
	}
	for name, at := range map[string]time.Time{"from": f.From, "to": f.To} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format("2006-01-02T15:04:05.000000Z"))
		}
	}
	return q, nil
}

// stats asks for figures.
func (c *Client) stats(ctx context.Context, op, path string, f StatsFilter, more map[string]string, into any) error {
	q, err := f.query()
	if err != nil {
		return fmt.Errorf("posthorn: %s: %w", op, err)
	}
	for name, value := range more {
		q.Set(name, value)
	}
	return c.do(ctx, call{op: op, method: http.MethodGet, path: path, query: q, repeatable: true}, into)
}

// Spread summarizes a figure over partitions.
type Spread struct {
	Avg    float64 `json:"avg"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Lag is how far the slowest consumer group of each partition is behind.
type Lag struct {
	Time   Spread `json:"time"`   // age of the oldest message that is not committed, in seconds
	Offset Spread `json:"offset"` // messages that are not committed
}

// Overview is the whole broker at a glance.
type Overview struct {
	Queues     int    `json:"queues"`
	Partitions int    `json:"partitions"`
	Namespaces int    `json:"namespaces"` // the empty one does not count
	Tasks      int    `json:"tasks"`      // the empty one does not count
	Messages   Counts `json:"messages"`
	Lag        Lag    `json:"lag"`
	Throughput struct {
		IngestedPerSecond  float64 `json:"ingestedPerSecond"`
		ProcessedPerSecond float64 `json:"processedPerSecond"`
	} `json:"throughput"` // over the last minute or two
	Timestamp time.Time `json:"timestamp"`
	StatsAge  float64   `json:"statsAge"` // of the lag, in seconds
}

// GetOverview counts everything. Repeated as [RetryPolicy] says.
func (c *Client) GetOverview(ctx context.Context) (Overview, error) {
	var o Overview
	err := c.stats(ctx, "getOverview", "/api/v1/resources/overview", StatsFilter{}, nil, &o)
	return o, err
}

// QueueSums are sums over the queues of a namespace or a task.
type QueueSums struct {
	Name       string // of the namespace or task; empty for the queues without one
	Queues     int
	Partitions int
	Messages   Counts // total and pending
}

type wireSums struct {
	Namespace  string `json:"namespace"`
	Task       string `json:"task"`
	Queues     int    `json:"queues"`
	Partitions int    `json:"partitions"`
	Messages   Counts `json:"messages"`
}

func sumsOf(wire []wireSums) []QueueSums {
	sums := make([]QueueSums, len(wire))
	for i, w := range wire {
		sums[i] = QueueSums{Name: w.Namespace + w.Task, Queues: w.Queues, Partitions: w.Partitions, Messages: w.Messages} // one of the two
	}
	return sums
}

// ListNamespaces lists the namespaces by name. Repeated as [RetryPolicy] says.
func (c *Client) ListNamespaces(ctx context.Context) ([]QueueSums, error) {
	var wire struct {
		Namespaces []wireSums `json:"namespaces"`
	}
	err := c.stats(ctx, "listNamespaces", "/api/v1/resources/namespaces", StatsFilter{}, nil, &wire)
	return sumsOf(wire.Namespaces), err
}

// ListTasks lists the tasks by name. Repeated as [RetryPolicy] says.
func (c *Client) ListTasks(ctx context.Context) ([]QueueSums, error) {
	var wire struct {
		Tasks []wireSums `json:"tasks"`
	}
	err := c.stats(ctx, "listTasks", "/api/v1/resources/tasks", StatsFilter{}, nil, &wire)
	return sumsOf(wire.Tasks), err
}

// Throughput is what went through. Each broker writes it about once a second: after a crash up to a second of it may be
// missing.
type Throughput struct {
	Ingested     int64 `json:"ingested"`  // messages pushed
	Processed    int64 `json:"processed"` // messages acknowledged
	Delivered    int64 `json:"delivered"` // messages popped, repeated deliveries included
	Failed       int64 `json:"failed"`    // failed acknowledgments
	DeadLettered int64 `json:"deadLettered"`
}

// ThroughputPoint is one step of time.
type ThroughputPoint struct {
	Timestamp time.Time `json:"timestamp"` // when the step begins
	Throughput
	IngestedPerSecond  float64 `json:"ingestedPerSecond"`
	ProcessedPerSecond float64 `json:"processedPerSecond"`
}

// TimeRange is [From, To).
type TimeRange struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Status is the throughput over a time and the state of the matching queues now.
type Status struct {
	TimeRange     TimeRange         `json:"timeRange"`
	BucketMinutes int               `json:"bucketMinutes"` // between two points
	Throughput    []ThroughputPoint `json:"throughput"`    // oldest first, without gaps
	Queues        struct {
		Total      int `json:"total"`
		Partitions int `json:"partitions"`
		Namespaces int `json:"namespaces"`
		Tasks      int `json:"tasks"`
	} `json:"queues"`
	Messages Counts `json:"messages"`
	Leases   struct {
		Active   int   `json:"active"`   // live leases, by partition and group
		Messages int64 `json:"messages"` // under them
	} `json:"leases"`
	DeadLetterQueue struct {
		TotalMessages      int64 `json:"totalMessages"`
		AffectedPartitions int   `json:"affectedPartitions"`
		TopErrors          []struct {
			Error string `json:"error"`
			Count int64  `json:"count"`
		} `json:"topErrors"` // among the newest
	} `json:"deadLetterQueue"`
	Workers []Worker `json:"workers"`
	Errors  struct {
		FailedAcks     int64 `json:"failedAcks"`   // in the time asked for
		DeadLettered   int64 `json:"deadLettered"` // in the time asked for
		FailedPushes   int64 `json:"failedPushes"` // of all brokers since their start
		DatabaseErrors int64 `json:"databaseErrors"`
	} `json:"errors"`
	StatsAge float64 `json:"statsAge"`
}

// Worker is a broker that is alive.
type Worker struct {
	ID            string    `json:"id"` // UUID of the process
	Host          string    `json:"host"`
	PID           int       `json:"pid"`
	Version       string    `json:"version"`
	StartedAt     time.Time `json:"startedAt"`
	ReportedAt    time.Time `json:"reportedAt"`
	UptimeSeconds float64   `json:"uptimeSeconds"`
	Parked        int       `json:"parked"` // pops that wait at it
}

// GetStatus describes the matching queues over a time. Repeated as [RetryPolicy] says.
func (c *Client) GetStatus(ctx context.Context, f StatsFilter) (Status, error) {
	var s Status
	err := c.stats(ctx, "getStatus", "/api/v1/status", f, nil, &s)
	return s, err
}

// QueueThroughput is one queue of [Client.ListQueueStatus].
type QueueThroughput struct {
	ID            string     `json:"id"` // UUID
	Name          string     `json:"name"`
	Namespace     string     `json:"namespace"`
	Task          string     `json:"task"`
	Partitions    int        `json:"partitions"`
	RetainedBytes int64      `json:"retainedBytes"`
	Messages      Counts     `json:"messages"`
	Throughput    Throughput `json:"throughput"`
}

// Page is a part of a list.
type Page struct {
	Limit  int // most entries; 0 means the broker's default, 100; at most 1000
	Offset int // entries left out before the first
}

// ListQueueStatus lists the matching queues by name with their throughput over a time, and how many match in all.
// Repeated as [RetryPolicy] says.
func (c *Client) ListQueueStatus(ctx context.Context, f StatsFilter, page Page) (queues []QueueThroughput, total int, err error) {
	more := map[string]string{}
	if page.Limit != 0 {
		more["limit"] = strconv.Itoa(page.Limit)
	}
	if page.Offset != 0 {
		more["offset"] = strconv.Itoa(page.Offset)
	}
	var wire struct {
		Queues []QueueThroughput `json:"queues"`
		Total  int               `json:"total"`
	}
	err = c.stats(ctx, "listQueueStatus", "/api/v1/status/queues", f, more, &wire)
	return wire.Queues, wire.Total, err
}

// QueueStatus is one queue over a time.
type QueueStatus struct {
	Queue struct {
		ID            string    `json:"id"` // UUID
		Name          string    `json:"name"`
		Namespace     string    `json:"namespace"`
		Task          string    `json:"task"`
		CreatedAt     time.Time `json:"createdAt"`
		Partitions    int       `json:"partitions"`
		RetainedBytes int64     `json:"retainedBytes"`
	} `json:"queue"`
	Messages      Counts            `json:"messages"`
	Lag           Lag               `json:"lag"`
	TimeRange     TimeRange         `json:"timeRange"`
	BucketMinutes int               `json:"bucketMinutes"`
	Throughput    []ThroughputPoint `json:"throughput"`
	StatsAge      float64           `json:"statsAge"` // of the lag, in seconds
}

// GetQueueStatus describes one queue over a time: that of f, whose names do not matter. A queue that does not exist is
// [ErrNotFound]. Repeated as [RetryPolicy] says.
func (c *Client) GetQueueStatus(ctx context.Context, name string, f StatsFilter) (QueueStatus, error) {
	var s QueueStatus
	if err := checkUTF8("queue", name); err != nil {
		return s, fmt.Errorf("posthorn: getQueueStatus: %w", err)
	}
	err := c.stats(ctx, "getQueueStatus", "/api/v1/status/queues/"+segment(name), StatsFilter{From: f.From, To: f.To}, nil, &s)
	return s, err
}

// AnalyticsPoint is one interval of [Client.GetAnalytics].
type AnalyticsPoint struct {
	Timestamp    time.Time `json:"timestamp"` // when the interval begins
	Messages     int64     `json:"messages"`  // pushed
	Processed    int64     `json:"processed"`
	Delivered    int64     `json:"delivered"`
	Failed       int64     `json:"failed"`
	DeadLettered int64     `json:"deadLettered"`
}

// GetAnalytics returns what went through the matching queues per interval, "minute", "hour" or "day", oldest first
// without gaps; empty means "hour". Repeated as [RetryPolicy] says.
func (c *Client) GetAnalytics(ctx context.Context, interval string, f StatsFilter) ([]AnalyticsPoint, error) {
	more := map[string]string{}
	if interval != "" {
		more["interval"] = interval
	}
	var wire struct {
		DataPoints []AnalyticsPoint `json:"dataPoints"`
	}
	err := c.stats(ctx, "getAnalytics", "/api/v1/status/analytics", f, more, &wire)
	return wire.DataPoints, err
}

// QueueLag is how far the consumers of one queue are behind.
type QueueLag struct {
	Queue            string `json:"queue"`
	Namespace        string `json:"namespace"`
	Task             string `json:"task"`
	Partitions       int    `json:"partitions"`
	PartitionsBehind int    `json:"partitionsBehind"`
	Open             int64  `json:"open"` // messages that are not committed
	Lag              Lag    `json:"lag"`
}

// GetQueueLag returns the lag of the matching queues by name; the times of the filter do not matter. The figures may be a few
// seconds old, see [Client.RefreshStats]. Repeated as [RetryPolicy] says.
func (c *Client) GetQueueLag(ctx context.Context, f StatsFilter) ([]QueueLag, error) {
	var wire struct {
		Queues []QueueLag `json:"queues"`
	}
	err := c.stats(ctx, "getQueueLag", "/api/v1/analytics/queue-lag", f, nil, &wire)
	return wire.Queues, err
}

// QueueOps is what went through one queue.
type QueueOps struct {
	Queue        string `json:"queue"`
	Namespace    string `json:"namespace"`
	Task         string `json:"task"`
	Pushed       int64  `json:"pushed"`
	Popped       int64  `json:"popped"`
	Acked        int64  `json:"acked"`
	Failed       int64  `json:"failed"`
	DeadLettered int64  `json:"deadLettered"`
}

// GetQueueOps returns what went through each of the matching queues. Repeated as [RetryPolicy] says.
func (c *Client) GetQueueOps(ctx context.Context, f StatsFilter) ([]QueueOps, error) {
	var wire struct {
		Queues []QueueOps `json:"queues"`
	}
	err := c.stats(ctx, "getQueueOps", "/api/v1/analytics/queue-ops", f, nil, &wire)
	return wire.Queues, err
}

// RefreshStats brings the figures up to date that may be a few seconds old, and returns as of when they are. Needs an
// administrator's token where tokens are asked for. Repeated as [RetryPolicy] says.
func (c *Client) RefreshStats(ctx context.Context) (time.Time, error) {
	var wire struct {
		Timestamp time.Time `json:"timestamp"`
	}
	err := c.do(ctx, call{op: "refreshStats", method: http.MethodPost, path: "/api/v1/stats/refresh", repeatable: true}, &wire)
	return wire.Timestamp, err
}
