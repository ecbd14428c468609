package api

import (
	"net/http"

	"github.com/posthorn/posthorn/broker/internal/delivery"
)

type deliveryQueue struct {
	Name        string `json:"name"`
	CreatedAt   int64  `json:"createdAt"`
	UpdatedAt   int64  `json:"updatedAt"`
	Parallelism int    `json:"parallelism"`
	Lag         int    `json:"lag"`
	Paused      bool   `json:"paused"`
}

type deliveryQueueRequest struct {
	QueueName   string `json:"queueName"`
	Parallelism *int   `json:"parallelism"`
	Paused      *bool  `json:"paused"`
}

func shownDeliveryQueue(q delivery.Queue) deliveryQueue {
	return deliveryQueue{q.Name, millisOf(q.CreatedAt), millisOf(q.UpdatedAt), q.Parallelism, q.Lag, q.Paused}
}

func (e *edge) listDeliveryQueues(c *call) (answer, error) {
	list, err := e.cfg.Delivery.DeliveryQueues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := make([]deliveryQueue, len(list))
	for i, q := range list {
		out[i] = shownDeliveryQueue(q)
	}
	return encode(http.StatusOK, out)
}

func (e *edge) upsertDeliveryQueue(c *call) (answer, error) {
	var body deliveryQueueRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	if err := checkName("queueName", body.QueueName); err != nil {
		return answer{}, err
	}
	change := delivery.QueueChange{Parallelism: body.Parallelism, Paused: body.Paused}
	if err := e.cfg.Delivery.PutDeliveryQueue(c.ctx, body.QueueName, change); err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, empty{})
}

func (e *edge) getDeliveryQueue(c *call) (answer, error) {
	q, err := e.cfg.Delivery.DeliveryQueue(c.ctx, c.path["queueName"])
	if err != nil {
		return answer{}, missing(err, "queue", c.path["queueName"])
	}
	return encode(http.StatusOK, shownDeliveryQueue(q))
}

func (e *edge) deleteDeliveryQueue(c *call) (answer, error) {
	if err := e.cfg.Delivery.DeleteDeliveryQueue(c.ctx, c.path["queueName"]); err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, empty{})
}

func (e *edge) pauseDeliveryQueue(c *call) (answer, error)  { return e.setQueuePaused(c, true) }
func (e *edge) resumeDeliveryQueue(c *call) (answer, error) { return e.setQueuePaused(c, false) }

func (e *edge) setQueuePaused(c *call, paused bool) (answer, error) {
	if err := e.cfg.Delivery.PauseDeliveryQueue(c.ctx, c.path["queueName"], paused); err != nil {
		return answer{}, missing(err, "queue", c.path["queueName"])
	}
	return encode(http.StatusOK, empty{})
}
