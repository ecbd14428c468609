package posthorn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// QueueMode is the name of the consumer group of pops and acknowledgments that name none.
const QueueMode = "__QUEUE_MODE__"

// groupsPath is the path of all consumer groups.
const groupsPath = "/api/v1/consumer-groups"

func groupPath(group string) string { return groupsPath + "/" + segment(orDefault(group, QueueMode)) }

// What ConsumerGroup.State says.
const (
	GroupStable  = "Stable"  // at most 300 s behind
	GroupLagging = "Lagging" // more than that
	GroupDead    = "Dead"    // and for an hour it has neither popped nor acknowledged anything
)

// ConsumerGroup is a consumer group of one queue.
type ConsumerGroup struct {
	Name  string
	Queue string

	Members    int           // pops whose lease is live
	Partitions int           // partitions in which the group has a cursor
	Lagging    int           // partitions with messages that the group has not completed
	Lag        int64         // these messages, leased ones included
	MaxTimeLag time.Duration // age of the oldest of them, in whole seconds
	State      string        // GroupStable, GroupLagging or GroupDead

	SubscriptionMode string    // SubscribeAll or SubscribeNew
	SubscriptionFrom time.Time // from when on messages are for the group; zero means from the beginning
	CreatedAt        time.Time // when the group first popped
}

// ListConsumerGroups lists every consumer group with every queue that it has popped from. Repeated as
// [RetryPolicy] says.
func (c *Client) ListConsumerGroups(ctx context.Context) ([]ConsumerGroup, error) {
	var wire []struct {
		Name                  string `json:"name"`
		QueueName             string `json:"queueName"`
		Members               int    `json:"members"`
		PartitionCursors      int    `json:"partitionCursors"`
		PartitionsWithLag     int    `json:"partitionsWithLag"`
		TotalLag              int64  `json:"totalLag"`
		MaxTimeLag            int64  `json:"maxTimeLag"` // s
		State                 string `json:"state"`
		SubscriptionMode      string `json:"subscriptionMode"`
		SubscriptionTimestamp string `json:"subscriptionTimestamp"` // null leaves it empty
		SubscriptionCreatedAt string `json:"subscriptionCreatedAt"`
	}
	if err := c.do(ctx, call{op: "listConsumerGroups", method: http.MethodGet, path: groupsPath, repeatable: true}, &wire); err != nil {
		return nil, err
	}
	groups := make([]ConsumerGroup, len(wire))
	for i, g := range wire {
		groups[i] = ConsumerGroup{
			Name: g.Name, Queue: g.QueueName, Members: g.Members, Partitions: g.PartitionCursors, Lagging: g.PartitionsWithLag,
			Lag: g.TotalLag, MaxTimeLag: *duration(&g.MaxTimeLag, time.Second), State: g.State,
			SubscriptionMode: g.SubscriptionMode, SubscriptionFrom: parseTime(g.SubscriptionTimestamp), CreatedAt: parseTime(g.SubscriptionCreatedAt),
		}
	}
	return groups, nil
}

// GroupPartition is where a consumer group stands in one partition.
type GroupPartition struct {
	ConsumerGroup string
	Queue         string
	Partition     string
	PartitionID   string // UUID; empty from GetConsumerGroup

	LeaseID      string        // of the batch that is out; empty when there is none
	LastConsumed time.Time     // when the group last popped or acknowledged something here; zero means never
	Consumed     int64         // messages behind the cursor, skipped ones included; 0 from LaggingPartitions
	Lag          int64         // messages that the group has not completed, leased ones included
	TimeLag      time.Duration // age of the oldest of them, in whole seconds
	Oldest       time.Time     // when the oldest of them was stored; zero from GetConsumerGroup
}

// LaggingPartitions lists the partitions in which the oldest message that a group has not completed is
// at least minLag old, the oldest first. minLag is rounded up to whole seconds; 0 means the broker's
// hour, and less than 0 lists everything that lags. Repeated as [RetryPolicy] says.
func (c *Client) LaggingPartitions(ctx context.Context, minLag time.Duration) ([]GroupPartition, error) {
	call := call{op: "laggingPartitions", method: http.MethodGet, path: groupsPath + "/lagging", repeatable: true}
	if minLag != 0 {
		call.query = url.Values{"minLagSeconds": {strconv.FormatInt(max(0, wholeSeconds(minLag)), 10)}}
	}
	var wire []struct {
		ConsumerGroup  string `json:"consumer_group"`
		QueueName      string `json:"queue_name"`
		PartitionName  string `json:"partition_name"`
		PartitionID    string `json:"partition_id"`
		WorkerID       string `json:"worker_id"` // null leaves it empty
		OffsetLag      int64  `json:"offset_lag"`
		TimeLagSeconds int64  `json:"time_lag_seconds"`
		Oldest         string `json:"oldest_unconsumed_at"`
		LastConsumedAt string `json:"last_consumed_at"` // null leaves it empty
	}
	if err := c.do(ctx, call, &wire); err != nil {
		return nil, err
	}
	partitions := make([]GroupPartition, len(wire))
	for i, p := range wire {
		partitions[i] = GroupPartition{
			ConsumerGroup: p.ConsumerGroup, Queue: p.QueueName, Partition: p.PartitionName, PartitionID: p.PartitionID,
			LeaseID: p.WorkerID, LastConsumed: parseTime(p.LastConsumedAt), Lag: p.OffsetLag,
			TimeLag: *duration(&p.TimeLagSeconds, time.Second), Oldest: parseTime(p.Oldest),
		}
	}
	return partitions, nil
}

// GetConsumerGroup tells where a group stands in every partition of every queue that it has popped
// from, by queue. Empty means [QueueMode]. A group that has never popped is [ErrNotFound]. Repeated as
// [RetryPolicy] says.
func (c *Client) GetConsumerGroup(ctx context.Context, group string) (map[string][]GroupPartition, error) {
	if err := checkUTF8("consumer group", group); err != nil {
		return nil, fmt.Errorf("posthorn: getConsumerGroup: %w", err)
	}
	var wire map[string]struct {
		Partitions []struct {
			Partition      string `json:"partition"`
			WorkerID       string `json:"workerId"`       // null leaves it empty
			LastConsumedAt string `json:"lastConsumedAt"` // null leaves it empty
			TotalConsumed  int64  `json:"totalConsumed"`
			OffsetLag      int64  `json:"offsetLag"`
			TimeLagSeconds int64  `json:"timeLagSeconds"`
		} `json:"partitions"`
	}
	err := c.do(ctx, call{op: "getConsumerGroup", method: http.MethodGet, path: groupPath(group), repeatable: true}, &wire)
	if err != nil {
		return nil, err
	}
	queues := make(map[string][]GroupPartition, len(wire))
	for queue, detail := range wire {
		queues[queue] = make([]GroupPartition, len(detail.Partitions))
		for i, p := range detail.Partitions {
			queues[queue][i] = GroupPartition{
				ConsumerGroup: orDefault(group, QueueMode), Queue: queue, Partition: p.Partition, LeaseID: p.WorkerID,
				LastConsumed: parseTime(p.LastConsumedAt), Consumed: p.TotalConsumed, Lag: p.OffsetLag,
				TimeLag: *duration(&p.TimeLagSeconds, time.Second),
			}
		}
	}
	return queues, nil
}

// Subscribe changes from when on messages are for a group, in every queue that knows it, and returns in
// how many. Empty means [QueueMode]. Cursors that exist are not moved, [Client.Seek] does that: it takes
// effect in partitions from which the group has not popped yet. Repeated as [RetryPolicy] says.
func (c *Client) Subscribe(ctx context.Context, group string, from time.Time) (queues int, err error) {
	request := struct {
		SubscriptionTimestamp time.Time `json:"subscriptionTimestamp"`
	}{from.UTC()}
	body := newJSONWriter()
	if err := errors.Join(checkUTF8("consumer group", group), body.value(request)); err != nil {
		return 0, fmt.Errorf("posthorn: subscribe: %w", err)
	}
	var wire struct {
		RowsUpdated int `json:"rowsUpdated"`
	}
	err = c.do(ctx, call{
		op: "subscribe", method: http.MethodPost, path: groupPath(group) + "/subscription", body: body.buf.Bytes(), repeatable: true,
	}, &wire)
	return wire.RowsUpdated, err
}

// SeekOptions say which cursors [Client.Seek] moves, and where to. Set either ToEnd or To.
type SeekOptions struct {
	ConsumerGroup string // empty means QueueMode
	Queue         string // required
	Partition     string // only this partition of Queue; empty means all

	ToEnd bool      // past everything that has been pushed
	To    time.Time // to the first message stored at this time or later, back or forward
}

// Seek moves cursors of a consumer group and returns how many. Leases of the group end by it:
// acknowledgments under them are [ErrLeaseExpired]. The retry budget begins anew. A group that has never
// popped from the queue, or a partition that does not exist, is [ErrNotFound].
//
// It is repeated only when the broker cannot have seen it: what was consumed since would be consumed
// again, or what was pushed since be skipped.
func (c *Client) Seek(ctx context.Context, opts SeekOptions) (partitions int, err error) {
	call, err := opts.call()
	if err != nil {
		return 0, fmt.Errorf("posthorn: seek: %w", err)
	}
	var wire struct {
		PartitionsUpdated int `json:"partitionsUpdated"`
	}
	err = c.do(ctx, call, &wire)
	return wire.PartitionsUpdated, err
}

func (o SeekOptions) call() (call, error) {
	var request struct {
		ToEnd     bool       `json:"toEnd,omitempty"`
		Timestamp *time.Time `json:"timestamp,omitempty"`
	}
	problems := []error{
		checkUTF8("ConsumerGroup", o.ConsumerGroup), checkUTF8("Queue", o.Queue), checkUTF8("Partition", o.Partition),
	}
	if o.Queue == "" {
		problems = append(problems, errors.New("option Queue is empty"))
	}
	if o.ToEnd == !o.To.IsZero() {
		problems = append(problems, errors.New("one of the options ToEnd and To must be set"))
	}
	if request.ToEnd = o.ToEnd; !o.ToEnd {
		request.Timestamp = new(o.To.UTC())
	}
	body := newJSONWriter()
	problems = append(problems, body.value(request))
	path := groupPath(o.ConsumerGroup) + "/queues/" + segment(o.Queue)
	if o.Partition != "" {
		path += "/partitions/" + segment(o.Partition)
	}
	return call{op: "seek", method: http.MethodPost, path: path + "/seek", body: body.buf.Bytes()}, errors.Join(problems...)
}

// DeleteGroupOptions say what [Client.DeleteConsumerGroup] deletes. The zero value deletes everything.
type DeleteGroupOptions struct {
	Queue            string // only in this queue; empty means in all
	KeepSubscription bool   // the group begins anew by its subscription, instead of by what its next pop says
}

// GroupDeletion is what a deletion of a consumer group found.
type GroupDeletion struct {
	Existed    bool // there was such a group
	Partitions int  // partitions in which it had a cursor
}

// DeleteConsumerGroup deletes a consumer group, which must not be empty, see [QueueMode]: its cursors,
// its leases and its subscription. A consumer that still pops brings the group back at once, and gets
// everything again. It is repeated only when the broker cannot have seen it, for the same reason.
func (c *Client) DeleteConsumerGroup(ctx context.Context, group string, opts DeleteGroupOptions) (GroupDeletion, error) {
	problems := []error{checkUTF8("consumer group", group), checkUTF8("Queue", opts.Queue)}
	if group == "" {
		problems = append(problems, errors.New("the consumer group is empty"))
	}
	if err := errors.Join(problems...); err != nil {
		return GroupDeletion{}, fmt.Errorf("posthorn: deleteConsumerGroup: %w", err)
	}
	call := call{
		op: "deleteConsumerGroup", method: http.MethodDelete, path: groupPath(group),
		query: url.Values{"deleteMetadata": {strconv.FormatBool(!opts.KeepSubscription)}},
	}
	if opts.Queue != "" {
		call.path += "/queues/" + segment(opts.Queue)
	}
	var wire struct {
		Success           bool `json:"success"`
		DeletedPartitions int  `json:"deletedPartitions"`
	}
	err := c.do(ctx, call, &wire)
	return GroupDeletion{Existed: wire.Success, Partitions: wire.DeletedPartitions}, err
}
