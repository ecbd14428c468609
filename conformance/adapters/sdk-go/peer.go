package sdkgo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// Serve speaks the program-peer protocol on in and out until in ends. target is the base URL of the broker, token what
// it is shown; "" means none.
func Serve(ctx context.Context, target, token string, in io.Reader, out io.Writer) error {
	client, err := posthorn.New(target, posthorn.Options{Token: token, Retry: posthorn.RetryPolicy{MaxAttempts: 1}})
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	defer client.Close()
	p := &peer{client: client}
	hello := suite.Hello{Name: "sdk-go", Version: "devel"}
	for operation := range p.operations() {
		hello.Operations = append(hello.Operations, operation)
	}
	if err := suite.ServeCalls(ctx, hello, p, in, out); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

type peer struct{ client *posthorn.Client }

// answer is a status and the value that becomes the JSON body; nil means no body.
type answer struct {
	status int
	body   any
}

type operation func(ctx context.Context, args suite.Args) (answer, error)

func (p *peer) operations() map[string]operation {
	table := map[string]operation{
		"push":         p.push,
		"popQueue":     p.pop,
		"popPartition": p.pop,
		"pop":          p.pop,
		"ack":          p.ack,
		"ackBatch":     p.ackBatch,
		"transaction":  p.transaction,

		"registerStream": p.registerStream,
		"getStreamState": p.getStreamState,
		"cycleStream":    p.cycleStream,

		"extendLease": p.extend,
		"configure":   p.configure,
		"listQueues":  p.listQueues,
		"getQueue":    p.getQueue,
		"deleteQueue": p.deleteQueue,
		"health":      p.health,

		"getMaintenance":    p.getMaintenance,
		"setMaintenance":    p.setMaintenance,
		"getPopMaintenance": p.getPopMaintenance,
		"setPopMaintenance": p.setPopMaintenance,
		"getSharedState":    p.getSharedState,
		"getBuffers":        p.getBuffers,
		"notify":            p.notify,

		"listMessages":     p.listMessages,
		"getMessage":       p.getMessage,
		"deleteDeadLetter": p.deleteDeadLetter,
		"listDeadLetters":  p.listDeadLetters,
		"purgeDeadLetters": p.purgeDeadLetters,

		"retryDeadLetter":   p.retryDeadLetter,
		"replayDeadLetters": p.replayDeadLetters,

		"trace":         p.trace,
		"messageTraces": p.messageTraces,
		"tracesByName":  p.tracesByName,
		"traceNames":    p.traceNames,
	}
	for _, more := range []map[string]operation{
		p.statsOperations(), p.groupOperations(), p.publishOperations(), p.publishedOperations(), p.failedOperations(), p.topicOperations(),
		p.scheduleOperations(), p.gateOperations(),
	} {
		maps.Copy(table, more)
	}
	return table
}

// Call implements [suite.Peer].
func (p *peer) Call(ctx context.Context, operationID string, args suite.Args) (suite.Outcome, error) {
	perform, ok := p.operations()[operationID]
	if !ok {
		return suite.Outcome{}, fmt.Errorf("unknown operation %q", operationID)
	}
	result, err := perform(ctx, args)
	if refused, ok := errors.AsType[*posthorn.APIError](err); ok {
		result, err = answer{refused.Status, map[string]string{"error": refused.Message}}, nil
	}
	if err != nil {
		return suite.Outcome{}, err
	}
	if result.body == nil {
		return suite.Outcome{Status: result.status}, nil
	}
	body, err := encode(result.body)
	if err != nil {
		return suite.Outcome{}, err
	}
	return suite.Outcome{Status: result.status, Body: body}, nil
}

// encode is json.Marshal, but for payloads: those keep their bytes.
func encode(value any) ([]byte, error) {
	if raw, ok := value.(rawBody); ok {
		return raw, nil
	}
	batch, ok := value.(interface{ encode() ([]byte, error) })
	if !ok {
		body, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("encode answer: %w", err)
		}
		return body, nil
	}
	return batch.encode()
}

func (p *peer) push(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Items []struct {
			Queue         string          `json:"queue"`
			Partition     string          `json:"partition"`
			TransactionID string          `json:"transactionId"`
			Payload       json.RawMessage `json:"payload"`
		} `json:"items"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode push: %w", err)
	}
	items := make([]posthorn.Item, len(request.Items))
	for i, item := range request.Items {
		items[i] = posthorn.Item{
			Queue: item.Queue, Partition: item.Partition, TransactionID: item.TransactionID, Payload: item.Payload,
		}
	}
	results, err := p.client.Push(ctx, items)
	if partly, ok := errors.AsType[*posthorn.PushError](err); err != nil && (!ok || partly.Err != nil) {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	body := make([]map[string]any, len(results))
	for i, result := range results {
		body[i] = map[string]any{
			"index": i, "message_id": result.MessageID, "transaction_id": result.TransactionID, "queueName": result.Queue,
			"status": result.Status,
		}
	}
	return answer{http.StatusCreated, body}, nil
}

// popOptions translates path and query parameters. The zero values of the library mean "omitted".
func popOptions(args suite.Args) (posthorn.PopOptions, error) {
	query := args.Query
	opts := posthorn.PopOptions{
		Queue: args.Path["queue"], Partition: args.Path["partition"], Namespace: query.Get("namespace"), Task: query.Get("task"),
		AutoAck: query.Get("autoAck") == "true", Wait: query.Get("wait") == "true", ConsumerGroup: query.Get("consumerGroup"),
		SubscriptionMode: query.Get("subscriptionMode"), SubscriptionFrom: query.Get("subscriptionFrom"),
	}
	var timeout, lease int
	for name, target := range map[string]*int{
		"batch": &opts.Batch, "partitions": &opts.Partitions, "timeout": &timeout, "leaseSeconds": &lease,
	} {
		if err := number(query, name, target); err != nil {
			return opts, err
		}
	}
	if query.Has("partitions") && opts.Partitions <= 0 {
		opts.Partitions = -1
	}
	opts.Timeout = time.Duration(timeout) * time.Millisecond
	opts.Lease = time.Duration(lease) * time.Second
	return opts, nil
}

func number(query url.Values, name string, target *int) error {
	if !query.Has(name) {
		return nil
	}
	value, err := strconv.Atoi(query.Get(name))
	if err != nil {
		return fmt.Errorf("the library takes a number for %s: %w", name, err)
	}
	*target = value
	return nil
}

func (p *peer) pop(ctx context.Context, args suite.Args) (answer, error) {
	opts, err := popOptions(args)
	if err != nil {
		return answer{}, err
	}
	popped, err := p.client.Pop(ctx, opts)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	if len(popped.Messages) == 0 {
		return answer{status: http.StatusNoContent}, nil
	}
	return answer{http.StatusOK, batch{popped}}, nil
}

// batch is the answer to a pop.
type batch struct{ posthorn.Batch }

func (b batch) encode() ([]byte, error) {
	head, err := json.Marshal(map[string]any{
		"success": true, "leaseId": b.LeaseID, "consumerGroup": b.ConsumerGroup, "partitionsClaimed": b.PartitionsClaimed,
	})
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	body := append(head[:len(head)-1], `,"messages":[`...)
	for i, m := range b.Messages {
		text, err := json.Marshal(map[string]any{
			"id": m.ID, "transactionId": m.TransactionID, "traceId": optional(m.TraceID), "producerSub": optional(m.ProducerSub),
			"createdAt": iso(m.CreatedAt), "partitionId": m.PartitionID, "partition": m.Partition, "leaseId": m.LeaseID,
			"consumerGroup": m.ConsumerGroup, "queue": m.Queue, "deliveryAttempt": m.DeliveryAttempt,
		})
		if err != nil {
			return nil, fmt.Errorf("encode message: %w", err)
		}
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, text[:len(text)-1]...)
		body = append(body, `,"data":`...)
		body = append(body, m.Payload...)
		body = append(body, '}')
	}
	return append(body, "]}"...), nil
}

// optional is null for what the library says is not there.
func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func iso(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z")
}

type ackItem struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Status        string `json:"status"`
	ConsumerGroup string `json:"consumerGroup"`
	LeaseID       string `json:"leaseId"`
	Error         string `json:"error"`
}

func (i ackItem) item() posthorn.AckItem {
	return posthorn.AckItem{
		TransactionID: i.TransactionID, PartitionID: i.PartitionID, Status: posthorn.AckStatus(i.Status), LeaseID: i.LeaseID,
		Error: i.Error,
	}
}

func (p *peer) ack(ctx context.Context, args suite.Args) (answer, error) {
	var request ackItem
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode ack: %w", err)
	}
	result, err := p.client.Ack(ctx, request.ConsumerGroup, request.item())
	var refused *posthorn.AckItemError
	if err != nil && !errors.As(err, &refused) {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, ackBody([]posthorn.AckResult{result})}, nil
}

func (p *peer) ackBatch(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		ConsumerGroup   string    `json:"consumerGroup"`
		Acknowledgments []ackItem `json:"acknowledgments"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode ack: %w", err)
	}
	items := make([]posthorn.AckItem, len(request.Acknowledgments))
	for i, item := range request.Acknowledgments {
		items[i] = item.item()
	}
	results, err := p.client.AckBatch(ctx, request.ConsumerGroup, items)
	var refused *posthorn.AckError
	if err != nil && !errors.As(err, &refused) {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, ackBody(results)}, nil
}

func ackBody(results []posthorn.AckResult) []map[string]any {
	body := make([]map[string]any, len(results))
	for i, result := range results {
		line := map[string]any{
			"index": i, "transactionId": result.TransactionID, "success": result.Err == nil, "error": nil,
			"leaseReleased": result.LeaseReleased, "dlq": result.DeadLettered, "noop": result.Noop,
		}
		if refused, ok := errors.AsType[*posthorn.AckItemError](result.Err); ok {
			line["error"] = refused.Message
		}
		body[i] = line
	}
	return body
}

func (p *peer) extend(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Seconds int `json:"seconds"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode extension: %w", err)
	}
	id := args.Path["leaseId"]
	lease, err := p.client.Extend(ctx, id, time.Duration(request.Seconds)*time.Second)
	if errors.Is(err, posthorn.ErrLeaseExpired) {
		return answer{http.StatusOK, map[string]any{"leaseId": id, "success": false, "renewed": 0}}, nil
	}
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"leaseId": lease.ID, "success": true, "renewed": lease.Renewed, "newExpiresAt": iso(lease.ExpiresAt),
	}}, nil
}

func (p *peer) listQueues(ctx context.Context, _ suite.Args) (answer, error) {
	queues, err := p.client.ListQueues(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]map[string]any, len(queues))
	for i, q := range queues {
		list[i] = map[string]any{
			"id": q.ID, "name": q.Name, "namespace": q.Namespace, "task": q.Task, "createdAt": iso(q.CreatedAt),
			"partitions": q.Partitions, "retainedBytes": q.RetainedBytes, "messages": q.Messages,
		}
	}
	return answer{http.StatusOK, map[string]any{"queues": list}}, nil
}

func (p *peer) getQueue(ctx context.Context, args suite.Args) (answer, error) {
	q, err := p.client.GetQueue(ctx, args.Path["queue"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	partitions := make([]map[string]any, len(q.Partitions))
	for i, partition := range q.Partitions {
		partitions[i] = map[string]any{
			"id": partition.ID, "name": partition.Name, "createdAt": iso(partition.CreatedAt), "stats": partition.Stats,
			"oldestMessage": iso(partition.OldestMessage), "newestMessage": iso(partition.NewestMessage),
		}
	}
	return answer{http.StatusOK, map[string]any{
		"id": q.ID, "name": q.Name, "namespace": q.Namespace, "task": q.Task, "createdAt": iso(q.CreatedAt),
		"options": wireOptions(q.Options), "partitions": partitions, "totals": q.Totals, "retainedBytes": q.RetainedBytes,
	}}, nil
}

func (p *peer) deleteQueue(ctx context.Context, args suite.Args) (answer, error) {
	name := args.Path["queue"]
	existed, err := p.client.DeleteQueue(ctx, name)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"deleted": existed, "queue": name, "existed": existed}}, nil
}

func (p *peer) health(ctx context.Context, _ suite.Args) (answer, error) {
	health, err := p.client.Health(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"status": health.Status, "database": health.Database, "engine": health.Engine, "version": health.Version,
	}}, nil
}
