package sdkgo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

type transactionItem struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	TransactionID string          `json:"transactionId"`
	TraceID       string          `json:"traceId"`
	Payload       json.RawMessage `json:"payload"`
}

func (i transactionItem) item() posthorn.TransactionItem {
	return posthorn.TransactionItem{
		Item: posthorn.Item{
			Queue: i.Queue, Partition: i.Partition, TransactionID: i.TransactionID, Payload: i.Payload,
		},
		TraceID: i.TraceID,
	}
}

type transactionOperation struct {
	Type          string             `json:"type"`
	Items         *[]transactionItem `json:"items"`
	Queue         string             `json:"queue"`
	Partition     string             `json:"partition"`
	TraceID       string             `json:"traceId"`
	Payload       json.RawMessage    `json:"payload"`
	TransactionID string             `json:"transactionId"`
	PartitionID   string             `json:"partitionId"`
	Status        string             `json:"status"`
	ConsumerGroup string             `json:"consumerGroup"`
	LeaseID       string             `json:"leaseId"`
	Error         string             `json:"error"`
}

func (p *peer) transaction(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Operations     []transactionOperation `json:"operations"`
		RequiredLeases []string               `json:"requiredLeases"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode transaction: %w", err)
	}
	t := posthorn.Transaction{RequiredLeases: request.RequiredLeases}
	var kinds []string
	for _, op := range request.Operations {
		switch {
		case op.Type == "ack":
			item := ackItem{TransactionID: op.TransactionID, PartitionID: op.PartitionID, Status: op.Status, LeaseID: op.LeaseID, Error: op.Error}
			t.Ack = append(t.Ack, posthorn.TransactionAck{AckItem: item.item(), ConsumerGroup: op.ConsumerGroup})
			kinds = append(kinds, op.Type)
		case op.Items == nil:
			flat := transactionItem{op.Queue, op.Partition, op.TransactionID, op.TraceID, op.Payload}
			t.Push = append(t.Push, flat.item())
			kinds = append(kinds, op.Type)
		default:
			for _, item := range *op.Items {
				t.Push = append(t.Push, item.item())
				kinds = append(kinds, op.Type)
			}
		}
	}
	done, err := p.client.Transaction(ctx, t)
	if rolled, ok := errors.AsType[*posthorn.TransactionError](err); ok {
		return answer{http.StatusOK, map[string]any{
			"transactionId": rolled.ID, "success": false, "error": rolled.Message, "results": []any{},
		}}, nil
	}
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	results := make([]map[string]any, len(kinds))
	for i, kind := range kinds {
		result := map[string]any{"index": i, "type": kind, "success": true}
		if kind == "ack" {
			result["transactionId"], result["error"], result["dlq"] = done.Acked[0].TransactionID, nil, done.Acked[0].DeadLettered
			done.Acked = done.Acked[1:]
		} else {
			pushed := done.Pushed[0]
			done.Pushed = done.Pushed[1:]
			result["transactionId"], result["messageId"], result["queueName"] = pushed.TransactionID, pushed.MessageID, pushed.Queue
			if pushed.Duplicate {
				result["duplicate"] = true
			}
		}
		results[i] = result
	}
	return answer{http.StatusOK, map[string]any{"transactionId": done.ID, "success": true, "results": results}}, nil
}
