package api

import (
	"errors"
	"net/http"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// push answers POST /api/v1/push: 201 whatever the statuses of the items (push page, Response), but
// for maintenance that failed.
func (e *edge) push(c *call) (answer, error) {
	items, err := e.pushItems(c)
	if err != nil {
		return answer{}, err
	}
	e.notePushed(c, items)
	results, err := e.cfg.Engine.Push(c.ctx, items)
	status := http.StatusCreated
	if errors.Is(err, queue.ErrNotSpooled) { // push page, Status codes: the items say which
		c.ex.note(err)
		status, err = http.StatusInternalServerError, nil
	}
	if err != nil {
		return answer{}, err
	}
	return jsonAnswer(status, appendPushResults(items, results)), nil
}

// pushItems checks the body while it cuts it into items. Transaction ids and payloads stay in the body. The
// engine copies the payloads into frames before it waits; ids keep the body alive while a flush or a result
// needs one, also when ctx has ended Push before. So no body is ever used again.
func (e *edge) pushItems(c *call) ([]queue.PushItem, error) {
	parsed, err := e.cfg.Spec.CheckPush(c.body)
	if err != nil {
		return nil, err
	}
	items := make([]queue.PushItem, len(parsed))
	sub, context := c.producerSub(), e.traceContext(c)
	for i, p := range parsed {
		items[i] = queue.PushItem{
			Queue: p.Queue, Partition: p.Partition, TransactionID: p.TransactionID, Payload: p.Payload,
			ProducerSub: sub, Context: context,
		}
	}
	return items, nil
}

func appendPushResults(items []queue.PushItem, results []queue.PushResult) []byte {
	size := 2
	for i := range results {
		size += 160 + len(results[i].TransactionID) + len(items[i].Queue)
	}
	b := append(make([]byte, 0, size), '[')
	for i, r := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = appendInt(b, i)
		b = append(b, `,"message_id":`...)
		b = appendUUID(b, r.MessageID)
		b = append(b, `,"transaction_id":`...)
		b = appendString(b, r.TransactionID)
		b = append(b, `,"queueName":`...)
		b = appendString(b, items[i].Queue)
		b = append(b, `,"status":"`...)
		b = append(b, r.Status...)
		b = append(b, `"}`...)
	}
	return append(b, ']')
}
