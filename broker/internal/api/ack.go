package api

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// ackRequest is one acknowledgement on the wire. Null means absent everywhere; only status tells an
// empty string from an absent one.
type ackRequest struct {
	TransactionID string  `json:"transactionId"`
	PartitionID   string  `json:"partitionId"`
	Status        *string `json:"status"`
	LeaseID       string  `json:"leaseId"`
	Error         string  `json:"error"`
}

// ackSingle is the body of POST /api/v1/ack.
type ackSingle struct {
	ackRequest    `json:",inline"`
	ConsumerGroup string `json:"consumerGroup"`
}

// ackBatchRequest is the body of POST /api/v1/ack/batch; its group holds for all items.
type ackBatchRequest struct {
	ConsumerGroup   string       `json:"consumerGroup"`
	Acknowledgments []ackRequest `json:"acknowledgments"`
}

// errPartitionID is the item error of a partitionId that is no UUID: it resolves to nothing.
var errPartitionID = errors.New("unresolvable partitionId: not a UUID")

func (e *edge) ack(c *call) (answer, error) {
	var body ackSingle
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	return e.acknowledge(c, newAckBatch(body.ConsumerGroup, []ackRequest{body.ackRequest}))
}

func (e *edge) ackBatch(c *call) (answer, error) {
	batch, err := readAckBatch(c)
	if err != nil {
		return answer{}, err
	}
	return e.acknowledge(c, batch)
}

func readAckBatch(c *call) (ackBatch, error) {
	var body ackBatchRequest
	if err := decode(c.body, &body); err != nil {
		return ackBatch{}, err
	}
	return newAckBatch(body.ConsumerGroup, body.Acknowledgments), nil
}

// ackBatch is a call as the engine takes it: the items that name a partition. The others are answered
// without it.
type ackBatch struct {
	group string
	acks  []ackRequest
	items []queue.AckItem
	at    []int // index in acks of each item
}

func newAckBatch(group string, acks []ackRequest) ackBatch {
	b := ackBatch{group: group, acks: acks, items: make([]queue.AckItem, 0, len(acks)), at: make([]int, 0, len(acks))}
	if group == "" {
		b.group = queue.ModeGroup
	}
	for i, a := range acks {
		if id, ok := parseUUID(a.PartitionID); ok {
			b.items = append(b.items, queue.AckItem{
				TransactionID: a.TransactionID,
				PartitionID:   id,
				Status:        ackStatus(a.Status),
				LeaseID:       a.LeaseID,
				Error:         storable(a.Error),
			})
			b.at = append(b.at, i)
		}
	}
	return b
}

// parseUUID reads the form of a UUID that the wire has, and no other that the library knows.
func parseUUID(s string) (uuid.UUID, bool) {
	if len(s) != 36 {
		return uuid.UUID{}, false
	}
	id, err := uuid.Parse(s)
	return id, err == nil
}

// acknowledge hands items to the engine and answers all of the call in order.
func (e *edge) acknowledge(c *call, b ackBatch) (answer, error) {
	results := make([]queue.AckResult, len(b.acks))
	for i := range results {
		results[i].Err = errPartitionID
	}
	if len(b.items) > 0 {
		answered, err := e.cfg.Engine.Ack(c.ctx, b.group, b.items)
		if err != nil {
			return answer{}, err
		}
		for j, res := range answered {
			results[b.at[j]] = res
		}
	}
	for i, res := range results {
		if res.Err != nil && contractError(res.Err) == nil {
			c.ex.note(fmt.Errorf("item %d: %w", i, res.Err))
			break
		}
	}
	return jsonAnswer(http.StatusOK, appendAckResults(b.acks, results)), nil
}

// storable makes an error text one that PostgreSQL can store: it has no NUL. The text is for people to
// read, so one character may stand for another.
func storable(text string) string { return strings.ReplaceAll(text, "\x00", "\uFFFD") }

// ackStatus reads a status, case-sensitively (queue contract, section 3). Whatever it does not know,
// the empty string included, is a failure: a consumer that misspells must not lose a message.
func ackStatus(s *string) queue.AckStatus {
	if s == nil {
		return queue.Completed
	}
	switch *s {
	case "completed", "success", "acked", "ok":
		return queue.Completed
	case "retry":
		return queue.Retry
	case "dlq":
		return queue.DeadLetter
	default:
		return queue.Nack
	}
}

func appendAckResults(acks []ackRequest, results []queue.AckResult) []byte {
	b := append(make([]byte, 0, 2+160*len(results)), '[')
	for i, r := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = appendInt(b, i)
		b = append(b, `,"transactionId":`...)
		b = appendString(b, acks[i].TransactionID)
		b = append(b, `,"success":`...)
		b = appendBool(b, r.Err == nil)
		b = append(b, `,"error":`...)
		if r.Err == nil {
			b = append(b, "null"...)
		} else {
			b = appendString(b, ackErrorText(r.Err))
		}
		b = append(b, `,"leaseReleased":`...)
		b = appendBool(b, r.LeaseReleased)
		b = append(b, `,"dlq":`...)
		b = appendBool(b, r.DeadLettered)
		b = append(b, `,"noop":`...)
		b = appendBool(b, r.Noop)
		b = append(b, '}')
	}
	return append(b, ']')
}

// ackItemErrors are the item errors whose texts are part of the wire contract.
var ackItemErrors = []error{
	errPartitionID, queue.ErrLease, queue.ErrAlreadyCommitted, queue.ErrUnresolvable,
	queue.ErrNoConsumer, queue.ErrSuperseded, queue.ErrDLQRejected,
}

// contractError is the item error of the wire contract that an error is, nil for none.
func contractError(err error) error {
	for _, known := range ackItemErrors {
		if errors.Is(err, known) {
			return known
		}
	}
	return nil
}

// ackErrorText words an item error. An error outside the contract is shown by its kind only: its text may
// name what is none of the client's business.
func ackErrorText(err error) string {
	if known := contractError(err); known != nil {
		return known.Error()
	}
	if errors.Is(err, queue.ErrUnavailable) {
		return unavailableText
	}
	return internalText
}
