package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// transactionRequest is the body of POST /api/v1/transaction. Null means absent, but in payload and data.
type transactionRequest struct {
	Operations     []transactionOperation `json:"operations"`
	RequiredLeases []string               `json:"requiredLeases"`
}

// transactionOperation is a push or an ack.
type transactionOperation struct {
	Type            string             `json:"type"`
	Items           *[]transactionItem `json:"items"` // nil: a push is an item itself
	transactionItem `json:",inline"`
	PartitionID     *string `json:"partitionId"`
	Status          *string `json:"status"`
	ConsumerGroup   string  `json:"consumerGroup"`
	LeaseID         string  `json:"leaseId"`
	Error           string  `json:"error"`
}

// transactionItem is one message to push. Its payload is kept as it was sent.
type transactionItem struct {
	Queue         *string        `json:"queue"`
	Partition     string         `json:"partition"`
	Payload       jsontext.Value `json:"payload"`
	Data          jsontext.Value `json:"data"`
	TransactionID *string        `json:"transactionId"`
	TraceID       string         `json:"traceId"`
}

// maxTransaction is how many results a transaction may have, as many as a push.
const maxTransaction = 100_000

// refusedTransaction is an error of the request, which a transaction answers in its own envelope.
type refusedTransaction struct {
	id  uuid.UUID
	err *openapi.CheckError
}

func (r *refusedTransaction) Error() string { return r.err.Error() }

// transaction answers POST /api/v1/transaction: 200 once it was processed, committed or not (queue
// contract, section 4).
func (e *edge) transaction(c *call) (answer, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return answer{}, err
	}
	bundle, order, err := e.transactionBundle(c)
	if check, ok := errors.AsType[*openapi.CheckError](err); ok {
		return answer{}, &refusedTransaction{id, check}
	}
	if err != nil {
		return answer{}, err
	}
	e.notePushed(c, bundle.Push)
	outcome, err := e.cfg.Engine.Transact(c.ctx, bundle)
	if text := rollbackText(bundle, err); text != "" {
		return jsonAnswer(http.StatusOK, transactionFailure(id, text)), nil
	}
	if err != nil {
		return answer{}, err
	}
	return jsonAnswer(http.StatusOK, appendTransaction(id, bundle, outcome, order)), nil
}

// rollbackText says why a transaction was rolled back, "" when that is not what happened.
func rollbackText(b queue.Bundle, err error) string {
	if duplicate, ok := errors.AsType[*queue.DuplicateError](err); ok {
		it := &b.Push[duplicate.Index]
		partition := it.Partition
		if partition == "" {
			partition = queue.DefaultPartition
		}
		return fmt.Sprintf("QDUP transactionId %q was pushed to queue %q, partition %q, within its deduplication window",
			duplicate.TransactionID, it.Queue, partition)
	}
	if rejected, ok := errors.AsType[*queue.RejectedError](err); ok {
		return fmt.Sprintf("QTXN ack of transactionId %q: %s", rejected.TransactionID, ackErrorText(rejected.Err))
	}
	if errors.Is(err, queue.ErrNoKey) {
		return "QTXN " + queue.ErrNoKey.Error()
	}
	return ""
}

// transactionFailure is the envelope of a transaction of which nothing was done.
func transactionFailure(id uuid.UUID, text string) []byte {
	b := append(make([]byte, 0, len(text)+100), `{"transactionId":`...)
	b = appendUUID(b, id)
	b = append(b, `,"success":false,"error":`...)
	b = appendString(b, bounded(text))
	return append(b, `,"results":[]}`...)
}

// transactionBundle checks the body and makes a bundle of it. order says of each result, in the order of
// the wire, whether it is a push's.
func (e *edge) transactionBundle(c *call) (b queue.Bundle, order []bool, err error) {
	if err := e.cfg.Spec.CheckBody("transaction", c.body); err != nil {
		return b, nil, err
	}
	var body transactionRequest
	// Broken surrogates stand in payloads only: the check has refused them elsewhere.
	if err := json.Unmarshal(c.body, &body, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return b, nil, decodeError(err)
	}
	b.Leases = body.RequiredLeases
	for i := range body.Operations {
		at := fmt.Sprintf("operations[%d]", i)
		if err := body.Operations[i].add(at, &b, &order); err != nil {
			return b, nil, err
		}
		if len(order) > maxTransaction {
			return b, nil, badBody("operations", fmt.Sprintf("must have at most %d items and acks", maxTransaction))
		}
	}
	for i := range b.Push {
		b.Push[i].ProducerSub, b.Push[i].Context = c.producerSub(), e.traceContext(c)
	}
	return b, order, nil
}

// add puts an operation into a bundle.
func (op *transactionOperation) add(at string, b *queue.Bundle, order *[]bool) error {
	if op.Type == "ack" {
		*order = append(*order, false)
		ack, err := op.ack(at)
		b.Acks = append(b.Acks, ack)
		return err
	}
	if op.Items == nil {
		*order = append(*order, true)
		item, err := op.item(at)
		b.Push = append(b.Push, item)
		return err
	}
	for j := range *op.Items {
		*order = append(*order, true)
		item, err := (*op.Items)[j].item(fmt.Sprintf("%s.items[%d]", at, j))
		if err != nil {
			return err
		}
		b.Push = append(b.Push, item)
	}
	return nil
}

func (op *transactionOperation) ack(at string) (queue.BundleAck, error) {
	switch {
	case op.TransactionID == nil:
		return queue.BundleAck{}, badBody(at+".transactionId", "is missing")
	case op.PartitionID == nil:
		return queue.BundleAck{}, badBody(at+".partitionId", "is missing")
	}
	id, _ := parseUUID(*op.PartitionID) // no partition has the zero id
	return queue.BundleAck{
		AckItem: queue.AckItem{
			TransactionID: *op.TransactionID, PartitionID: id, Status: ackStatus(op.Status), LeaseID: op.LeaseID, Error: storable(op.Error),
		},
		Group: op.ConsumerGroup,
	}, nil
}

func (it *transactionItem) item(at string) (queue.PushItem, error) {
	payload := it.Payload
	if payload == nil {
		payload = it.Data
	}
	switch {
	case it.Queue == nil:
		return queue.PushItem{}, badBody(at+".queue", "is missing")
	case payload == nil:
		return queue.PushItem{}, badBody(at+".payload", "is missing")
	}
	item := queue.PushItem{Queue: *it.Queue, Partition: it.Partition, Payload: payload}
	if it.TransactionID != nil {
		item.TransactionID = *it.TransactionID
	}
	item.TraceID, _ = parseUUID(it.TraceID) // "" is none
	return item, nil
}

// appendTransaction answers a committed transaction: its results in the order of the request.
func appendTransaction(id uuid.UUID, bundle queue.Bundle, out queue.Outcome, order []bool) []byte {
	b := append(make([]byte, 0, 100+200*len(order)), `{"transactionId":`...)
	b = appendUUID(b, id)
	b = append(b, `,"success":true,"results":[`...)
	pushes, acks := 0, 0
	for i, isPush := range order {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = appendInt(b, i)
		if isPush {
			b = appendPushed(b, bundle.Push[pushes].Queue, out.Pushed[pushes])
			pushes++
		} else {
			b = appendAcked(b, bundle.Acks[acks].TransactionID, out.Acked[acks])
			acks++
		}
	}
	return append(b, `]}`...)
}

func appendPushed(b []byte, queueName string, r queue.PushResult) []byte {
	b = append(b, `,"type":"push","success":true,"transactionId":`...)
	b = appendString(b, r.TransactionID)
	b = append(b, `,"messageId":`...)
	b = appendUUID(b, r.MessageID)
	b = append(b, `,"queueName":`...)
	b = appendString(b, queueName)
	if r.Status == queue.Duplicate {
		b = append(b, `,"duplicate":true`...)
	}
	return append(b, '}')
}

func appendAcked(b []byte, transactionID string, r queue.AckResult) []byte {
	b = append(b, `,"type":"ack","success":true,"transactionId":`...)
	b = appendString(b, transactionID)
	b = append(b, `,"error":null,"dlq":`...)
	b = appendBool(b, r.DeadLettered)
	return append(b, '}')
}
