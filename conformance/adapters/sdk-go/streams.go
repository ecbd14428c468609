package sdkgo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) registerStream(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Name        string `json:"name"`
		SourceQueue string `json:"source_queue"`
		SinkQueue   string `json:"sink_queue"`
		ConfigHash  string `json:"config_hash"`
		Reset       bool   `json:"reset"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode registration: %w", err)
	}
	r, err := p.client.RegisterStream(ctx, posthorn.StreamQuery(request))
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"success": true, "query_id": r.ID, "name": request.Name, "config_hash": request.ConfigHash, "fresh": r.Fresh, "reset": r.Reset,
	}}, nil
}

// rawBody is an answer that is encoded already: values of state keep their bytes.
type rawBody []byte

func (p *peer) getStreamState(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		QueryID     string   `json:"query_id"`
		PartitionID string   `json:"partition_id"`
		Keys        []string `json:"keys"`
		KeyPrefix   string   `json:"key_prefix"`
		Ripe        *int64   `json:"ripe_at_or_before"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode request of state: %w", err)
	}
	opts := posthorn.StreamStateOptions{
		QueryID: request.QueryID, PartitionID: request.PartitionID, Keys: request.Keys, KeyPrefix: request.KeyPrefix,
	}
	if request.Ripe != nil {
		opts.RipeAtOrBefore = time.UnixMilli(*request.Ripe)
	}
	values, err := p.client.GetStreamState(ctx, opts)
	if refused, ok := errors.AsType[*posthorn.StreamError](err); ok {
		return answer{http.StatusOK, map[string]any{"success": false, "error": refused.Message, "rows": []any{}}}, nil
	}
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	body := []byte(`{"success":true,"rows":[`)
	for i, value := range values {
		head, err := json.Marshal(map[string]any{"key": value.Key, "updated_at": iso(value.UpdatedAt)})
		if err != nil {
			return answer{}, fmt.Errorf("encode state: %w", err)
		}
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, head[:len(head)-1]...)
		body = append(body, `,"value":`...)
		body = append(body, value.Value...)
		body = append(body, '}')
	}
	return answer{http.StatusOK, rawBody(append(body, `]}`...))}, nil
}

func (p *peer) cycleStream(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		QueryID       string `json:"query_id"`
		PartitionID   string `json:"partition_id"`
		ConsumerGroup string `json:"consumer_group"`
		StateOps      []struct {
			Type  string          `json:"type"`
			Key   string          `json:"key"`
			Value json.RawMessage `json:"value"`
		} `json:"state_ops"`
		PushItems []transactionItem `json:"push_items"`
		Ack       *struct {
			ackItem
			Count int `json:"count"`
		} `json:"ack"`
		ReleaseLease *bool `json:"release_lease"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode cycle: %w", err)
	}
	cycle := posthorn.StreamCycle{
		QueryID: request.QueryID, PartitionID: request.PartitionID, ConsumerGroup: request.ConsumerGroup,
		KeepLease: request.ReleaseLease != nil && !*request.ReleaseLease,
	}
	for _, op := range request.StateOps {
		cycle.State = append(cycle.State, posthorn.StreamStateOp{Key: op.Key, Value: op.Value, Delete: op.Type == "delete"})
	}
	for _, item := range request.PushItems {
		cycle.Push = append(cycle.Push, item.item())
	}
	if request.Ack != nil {
		item := request.Ack.item()
		cycle.Ack, cycle.Count = &item, request.Ack.Count
	}
	body := map[string]any{"query_id": request.QueryID, "partition_id": request.PartitionID}
	done, err := p.client.CycleStream(ctx, cycle)
	if refused, ok := errors.AsType[*posthorn.StreamError](err); ok {
		body["success"], body["error"] = false, refused.Message
		return answer{http.StatusOK, body}, nil
	}
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	results := make([]map[string]any, len(done.Pushed))
	for i, r := range done.Pushed {
		results[i] = map[string]any{
			"index": i, "message_id": r.MessageID, "transaction_id": r.TransactionID, "queueName": r.Queue, "status": r.Status,
		}
	}
	body["success"], body["queueName"], body["state_ops_applied"], body["push_results"] = true, done.Queue, done.Applied, results
	if cycle.Ack != nil {
		body["ack_result"] = map[string]any{
			"success": true, "count": done.Count, "lease_released": done.LeaseReleased, "dlq": done.DeadLettered,
		}
	}
	return answer{http.StatusOK, body}, nil
}
