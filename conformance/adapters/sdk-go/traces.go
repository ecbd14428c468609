package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) trace(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		TransactionID string          `json:"transactionId"`
		PartitionID   string          `json:"partitionId"`
		ConsumerGroup string          `json:"consumerGroup"`
		EventType     string          `json:"eventType"`
		TraceNames    []string        `json:"traceNames"`
		Data          json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode trace: %w", err)
	}
	id, err := p.client.Trace(ctx, posthorn.TraceEvent{
		PartitionID: request.PartitionID, TransactionID: request.TransactionID, ConsumerGroup: request.ConsumerGroup,
		EventType: request.EventType, Names: request.TraceNames, Data: request.Data,
	})
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusCreated, map[string]any{"success": true, "traceId": id}}, nil
}

// traceList is a list of traces as the wire has it. Compact data is all that the specs send through a library.
func traceList(traces []posthorn.Trace) []map[string]any {
	list := make([]map[string]any, len(traces))
	for i, t := range traces {
		list[i] = map[string]any{
			"id": t.ID, "event_type": t.EventType, "data": t.Data, "consumer_group": optional(t.ConsumerGroup), "worker_id": optional(t.WorkerID),
			"created_at": iso(t.CreatedAt), "trace_names": t.Names, "transaction_id": t.TransactionID, "partition_id": t.PartitionID,
			"queue_name": t.Queue, "partition_name": t.Partition,
		}
	}
	return list
}

func (p *peer) messageTraces(ctx context.Context, args suite.Args) (answer, error) {
	traces, err := p.client.MessageTraces(ctx, args.Path["partitionId"], args.Path["transactionId"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"traces": traceList(traces)}}, nil
}

func page(args suite.Args) (limit, offset int, err error) {
	for name, target := range map[string]*int{"limit": &limit, "offset": &offset} {
		if err := number(args.Query, name, target); err != nil {
			return 0, 0, err
		}
	}
	return limit, offset, nil
}

func (p *peer) tracesByName(ctx context.Context, args suite.Args) (answer, error) {
	limit, offset, err := page(args)
	if err != nil {
		return answer{}, err
	}
	found, err := p.client.TracesByName(ctx, args.Path["name"], limit, offset)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"traces": traceList(found.Traces), "total": found.Total}}, nil
}

func (p *peer) traceNames(ctx context.Context, args suite.Args) (answer, error) {
	limit, offset, err := page(args)
	if err != nil {
		return answer{}, err
	}
	names, total, err := p.client.TraceNames(ctx, limit, offset)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]map[string]any, len(names))
	for i, n := range names {
		list[i] = map[string]any{"trace_name": n.Name, "trace_count": n.Traces, "message_count": n.Messages, "last_seen": iso(n.LastSeen)}
	}
	return answer{http.StatusOK, map[string]any{"trace_names": list, "total": total}}, nil
}
