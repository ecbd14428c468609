package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) groupOperations() map[string]operation {
	return map[string]operation{
		"listConsumerGroups":       p.listConsumerGroups,
		"laggingPartitions":        p.laggingPartitions,
		"getConsumerGroup":         p.getConsumerGroup,
		"deleteConsumerGroup":      p.deleteConsumerGroup,
		"deleteConsumerGroupQueue": p.deleteConsumerGroup,
		"subscribe":                p.subscribe,
		"seek":                     p.seek,
		"seekPartition":            p.seek,
	}
}

func (p *peer) listConsumerGroups(ctx context.Context, _ suite.Args) (answer, error) {
	groups, err := p.client.ListConsumerGroups(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]map[string]any, len(groups))
	for i, g := range groups {
		list[i] = map[string]any{
			"name": g.Name, "topics": []string{g.Queue}, "queueName": g.Queue, "members": g.Members, "partitionCursors": g.Partitions,
			"partitionsWithLag": g.Lagging, "totalLag": g.Lag, "maxTimeLag": int(g.MaxTimeLag.Seconds()), "state": g.State,
			"subscriptionMode": g.SubscriptionMode, "subscriptionTimestamp": iso(g.SubscriptionFrom), "subscriptionCreatedAt": iso(g.CreatedAt),
		}
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) laggingPartitions(ctx context.Context, args suite.Args) (answer, error) {
	var least time.Duration
	if text := args.Query.Get("minLagSeconds"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil {
			return answer{}, fmt.Errorf("minLagSeconds: %w", err)
		}
		if least = time.Duration(seconds) * time.Second; least == 0 {
			least = -1
		}
	}
	partitions, err := p.client.LaggingPartitions(ctx, least)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]map[string]any, len(partitions))
	for i, p := range partitions {
		list[i] = map[string]any{
			"consumer_group": p.ConsumerGroup, "queue_name": p.Queue, "partition_name": p.Partition, "partition_id": p.PartitionID,
			"worker_id": p.LeaseID, "offset_lag": p.Lag, "time_lag_seconds": int(p.TimeLag.Seconds()), "lag_hours": p.TimeLag.Hours(),
			"oldest_unconsumed_at": iso(p.Oldest), "last_consumed_at": iso(p.LastConsumed),
		}
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) getConsumerGroup(ctx context.Context, args suite.Args) (answer, error) {
	queues, err := p.client.GetConsumerGroup(ctx, args.Path["group"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	detail := map[string]any{}
	for queue, partitions := range queues {
		list := make([]map[string]any, len(partitions))
		for i, p := range partitions {
			list[i] = map[string]any{
				"partition": p.Partition, "workerId": p.LeaseID, "lastConsumedAt": iso(p.LastConsumed), "totalConsumed": p.Consumed,
				"offsetLag": p.Lag, "timeLagSeconds": int(p.TimeLag.Seconds()), "leaseActive": p.LeaseID != "",
			}
		}
		detail[queue] = map[string]any{"partitions": list}
	}
	return answer{http.StatusOK, detail}, nil
}

func (p *peer) deleteConsumerGroup(ctx context.Context, args suite.Args) (answer, error) {
	group, queue := args.Path["group"], args.Path["queue"]
	keep := args.Query.Get("deleteMetadata") == "false"
	d, err := p.client.DeleteConsumerGroup(ctx, group, posthorn.DeleteGroupOptions{Queue: queue, KeepSubscription: keep})
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	body := map[string]any{
		"success": d.Existed, "consumerGroup": group, "deletedPartitions": d.Partitions, "metadataDeleted": d.Existed && !keep,
	}
	if queue != "" {
		body["queueName"] = queue
	}
	return answer{http.StatusOK, body}, nil
}

func (p *peer) subscribe(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		SubscriptionTimestamp time.Time `json:"subscriptionTimestamp"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode subscription: %w", err)
	}
	group := args.Path["group"]
	n, err := p.client.Subscribe(ctx, group, request.SubscriptionTimestamp)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"success": n > 0, "consumerGroup": group, "newTimestamp": iso(request.SubscriptionTimestamp), "rowsUpdated": n,
	}}, nil
}

func (p *peer) seek(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		ToEnd     bool      `json:"toEnd"`
		Timestamp time.Time `json:"timestamp"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode seek: %w", err)
	}
	opts := posthorn.SeekOptions{
		ConsumerGroup: args.Path["group"], Queue: args.Path["queue"], Partition: args.Path["partition"],
		ToEnd: request.ToEnd, To: request.Timestamp,
	}
	n, err := p.client.Seek(ctx, opts)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	body := map[string]any{
		"success": true, "consumerGroup": opts.ConsumerGroup, "queueName": opts.Queue, "seekToEnd": opts.ToEnd,
		"targetTimestamp": iso(opts.To), "partitionsUpdated": n,
	}
	if opts.Partition != "" {
		body["partition"] = opts.Partition
	}
	return answer{http.StatusOK, body}, nil
}
