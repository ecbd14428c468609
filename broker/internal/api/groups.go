package api

import (
	"bytes"
	"math"
	"net/http"
	"time"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

type groupRow struct {
	Name                  string   `json:"name"`
	Topics                []string `json:"topics"`
	QueueName             string   `json:"queueName"`
	Members               int      `json:"members"`
	PartitionCursors      int      `json:"partitionCursors"`
	PartitionsWithLag     int      `json:"partitionsWithLag"`
	TotalLag              int64    `json:"totalLag"`
	MaxTimeLag            int64    `json:"maxTimeLag"`
	State                 string   `json:"state"`
	SubscriptionMode      string   `json:"subscriptionMode"`
	SubscriptionTimestamp *string  `json:"subscriptionTimestamp"`
	SubscriptionCreatedAt string   `json:"subscriptionCreatedAt"`
}

// laggingRow has its keys in snake case, as the queue contract has them (section 8).
type laggingRow struct {
	ConsumerGroup      string  `json:"consumer_group"`
	QueueName          string  `json:"queue_name"`
	PartitionName      string  `json:"partition_name"`
	PartitionID        string  `json:"partition_id"`
	WorkerID           *string `json:"worker_id"`
	OffsetLag          int64   `json:"offset_lag"`
	TimeLagSeconds     int64   `json:"time_lag_seconds"`
	LagHours           float64 `json:"lag_hours"`
	OldestUnconsumedAt string  `json:"oldest_unconsumed_at"`
	LastConsumedAt     *string `json:"last_consumed_at"`
}

type groupPartitions struct {
	Partitions []groupPartition `json:"partitions"`
}

type groupPartition struct {
	Partition      string  `json:"partition"`
	WorkerID       *string `json:"workerId"`
	LastConsumedAt *string `json:"lastConsumedAt"`
	TotalConsumed  int64   `json:"totalConsumed"`
	OffsetLag      int64   `json:"offsetLag"`
	TimeLagSeconds int64   `json:"timeLagSeconds"`
	LeaseActive    bool    `json:"leaseActive"`
}

type groupDeletion struct {
	Success           bool   `json:"success"`
	ConsumerGroup     string `json:"consumerGroup"`
	QueueName         string `json:"queueName,omitzero"`
	DeletedPartitions int    `json:"deletedPartitions"`
	MetadataDeleted   bool   `json:"metadataDeleted"`
}

type subscriptionRequest struct {
	SubscriptionTimestamp string `json:"subscriptionTimestamp"`
}

type subscriptionAnswer struct {
	Success       bool   `json:"success"`
	ConsumerGroup string `json:"consumerGroup"`
	NewTimestamp  string `json:"newTimestamp"`
	RowsUpdated   int    `json:"rowsUpdated"`
}

// seekRequest is the body of both seeks. Null is absent.
type seekRequest struct {
	ToEnd     *bool   `json:"toEnd"`
	Timestamp *string `json:"timestamp"`
}

type seekAnswer struct {
	Success           bool    `json:"success"`
	ConsumerGroup     string  `json:"consumerGroup"`
	QueueName         string  `json:"queueName"`
	Partition         string  `json:"partition,omitzero"`
	SeekToEnd         bool    `json:"seekToEnd"`
	TargetTimestamp   *string `json:"targetTimestamp"`
	PartitionsUpdated int     `json:"partitionsUpdated"`
}

func (e *edge) listConsumerGroups(c *call) (answer, error) {
	groups, err := e.cfg.Engine.Groups(c.ctx)
	if err != nil {
		return answer{}, err
	}
	now := e.cfg.Engine.Now()
	list := make([]groupRow, len(groups))
	for i, g := range groups {
		list[i] = groupRow{
			Name:                  g.Group,
			Topics:                []string{g.Queue},
			QueueName:             g.Queue,
			Members:               g.Members,
			PartitionCursors:      g.Cursors,
			PartitionsWithLag:     g.Lagging,
			TotalLag:              g.Lag,
			MaxTimeLag:            seconds(g.MaxTimeLag),
			State:                 groupState(g, now),
			SubscriptionMode:      g.Mode,
			SubscriptionTimestamp: optionalTime(g.From),
			SubscriptionCreatedAt: timeText(g.CreatedAt),
		}
	}
	return encode(http.StatusOK, list)
}

const (
	// lagTolerated is how far behind a group counts as stable (queue contract, section 8).
	lagTolerated = 300 * time.Second
	// deadAfter is how long a group that lags may do nothing before it counts as dead.
	deadAfter = time.Hour
)

// groupState is the state of a group at a time.
func groupState(g queue.GroupQueue, now time.Time) string {
	active := g.LastActive
	if active.IsZero() {
		active = g.CreatedAt
	}
	switch {
	case seconds(g.MaxTimeLag) <= seconds(lagTolerated):
		return "Stable"
	case g.Members == 0 && now.Sub(active) >= deadAfter:
		return "Dead"
	default:
		return "Lagging"
	}
}

// defaultMinLag is the least lag that is listed when the query does not name one.
const defaultMinLag = time.Hour

func (e *edge) laggingPartitions(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	p := params{q: q}
	least := p.duration("minLagSeconds", time.Second, defaultMinLag, math.MaxInt64)
	if p.err != nil {
		return answer{}, p.err
	}
	partitions, err := e.cfg.Engine.LaggingPartitions(c.ctx, least)
	if err != nil {
		return answer{}, err
	}
	list := make([]laggingRow, len(partitions))
	for i, p := range partitions {
		list[i] = laggingRow{
			ConsumerGroup:      p.Group,
			QueueName:          p.Queue,
			PartitionName:      p.Partition,
			PartitionID:        p.PartitionID.String(),
			WorkerID:           optionalText(p.LeaseID),
			OffsetLag:          p.Lag,
			TimeLagSeconds:     seconds(p.TimeLag),
			LagHours:           math.Round(p.TimeLag.Hours()*100) / 100,
			OldestUnconsumedAt: timeText(p.Oldest),
			LastConsumedAt:     optionalTime(p.LastConsumed),
		}
	}
	return encode(http.StatusOK, list)
}

// optionalText is nil for the empty text, which the wire shows as null.
func optionalText(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (e *edge) getConsumerGroup(c *call) (answer, error) {
	queues, err := e.cfg.Engine.Group(c.ctx, c.path["group"])
	if err != nil {
		return answer{}, err
	}
	detail := make(map[string]groupPartitions, len(queues))
	for name, partitions := range queues {
		list := make([]groupPartition, len(partitions))
		for i, p := range partitions {
			list[i] = groupPartition{
				Partition:      p.Partition,
				WorkerID:       optionalText(p.LeaseID),
				LastConsumedAt: optionalTime(p.LastConsumed),
				TotalConsumed:  p.Consumed,
				OffsetLag:      p.Lag,
				TimeLagSeconds: seconds(p.TimeLag),
				LeaseActive:    p.LeaseID != "",
			}
		}
		detail[name] = groupPartitions{list}
	}
	return encode(http.StatusOK, detail)
}

func (e *edge) deleteConsumerGroup(c *call) (answer, error) { return e.deleteGroup(c, "") }

func (e *edge) deleteConsumerGroupQueue(c *call) (answer, error) {
	return e.deleteGroup(c, c.path["queue"])
}

// deleteGroup answers 200 also when there was nothing to delete, like the deletion of a queue.
func (e *edge) deleteGroup(c *call, queueName string) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	p := params{q: q}
	metadata := !q.Has("deleteMetadata") || p.bool("deleteMetadata")
	if p.err != nil {
		return answer{}, p.err
	}
	group := c.path["group"]
	d, err := e.cfg.Engine.DeleteGroup(c.ctx, group, queueName, metadata)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, groupDeletion{
		Success:           d.Existed,
		ConsumerGroup:     group,
		QueueName:         queueName,
		DeletedPartitions: d.Cursors,
		MetadataDeleted:   d.Existed && metadata,
	})
}

func (e *edge) subscribe(c *call) (answer, error) {
	var body subscriptionRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	from, ok := parseISO(body.SubscriptionTimestamp)
	if !ok {
		return answer{}, badBody("subscriptionTimestamp", "must be an ISO 8601 time")
	}
	group := c.path["group"]
	n, err := e.cfg.Engine.Subscribe(c.ctx, group, from)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, subscriptionAnswer{
		Success:       n > 0,
		ConsumerGroup: group,
		NewTimestamp:  timeText(from),
		RowsUpdated:   n,
	})
}

func (e *edge) seek(c *call) (answer, error) {
	to, err := seekTarget(c.body)
	if err != nil {
		return answer{}, err
	}
	return e.seekTo(c, "", to)
}

// seekPartition moves to the end when the body is empty (queue contract, section 8).
func (e *edge) seekPartition(c *call) (answer, error) {
	var to *time.Time
	if !emptyObject(c.body) {
		var err error
		if to, err = seekTarget(c.body); err != nil {
			return answer{}, err
		}
	}
	return e.seekTo(c, c.path["partition"], to)
}

// emptyObject reports whether a body that was checked is empty, or an object without members.
func emptyObject(body []byte) bool {
	return len(body) == 0 || bytes.Equal(bytes.Join(bytes.Fields(body), nil), []byte("{}"))
}

// seekTarget is where a seek goes: a time, or nil for the end.
func seekTarget(body []byte) (*time.Time, error) {
	var target seekRequest
	if err := decode(body, &target); err != nil {
		return nil, err
	}
	toEnd := target.ToEnd != nil && *target.ToEnd
	switch {
	case target.Timestamp == nil && !toEnd:
		return nil, badBody("toEnd", "must be true, or a timestamp be given")
	case target.Timestamp == nil:
		return nil, nil //nolint:nilnil // the end
	case toEnd:
		return nil, badBody("timestamp", "must not be given together with toEnd")
	}
	to, ok := parseISO(*target.Timestamp)
	if !ok {
		return nil, badBody("timestamp", "must be an ISO 8601 time")
	}
	return &to, nil
}

func (e *edge) seekTo(c *call, partition string, to *time.Time) (answer, error) {
	r := queue.SeekRequest{Group: c.path["group"], Queue: c.path["queue"], Partition: partition, To: to}
	moved, err := e.cfg.Engine.Seek(c.ctx, r)
	if err != nil {
		return answer{}, err
	}
	ans := seekAnswer{
		Success:           true,
		ConsumerGroup:     r.Group,
		QueueName:         r.Queue,
		Partition:         partition,
		SeekToEnd:         to == nil,
		PartitionsUpdated: moved,
	}
	if to != nil {
		text := timeText(*to)
		ans.TargetTimestamp = &text
	}
	return encode(http.StatusOK, ans)
}
