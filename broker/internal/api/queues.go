package api

import (
	"net/http"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

type queueList struct {
	Queues []queueRow `json:"queues"`
}

type queueRow struct {
	ID            string        `json:"id"`
	Name          string        `json:"name"`
	Namespace     string        `json:"namespace"`
	Task          string        `json:"task"`
	CreatedAt     string        `json:"createdAt"`
	Partitions    int64         `json:"partitions"`
	RetainedBytes int64         `json:"retainedBytes"`
	Segments      segmentCounts `json:"segments"`
	Messages      queueCounts   `json:"messages"`
}

type segmentCounts struct {
	Segments int64 `json:"segments"`
	Messages int64 `json:"messages"`
}

type queueCounts struct {
	Total      int64 `json:"total"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`
}

type queueDetail struct {
	ID            string          `json:"id"`
	Name          string          `json:"name"`
	Namespace     string          `json:"namespace"`
	Task          string          `json:"task"`
	CreatedAt     string          `json:"createdAt"`
	Options       optionsAnswer   `json:"options"`
	Partitions    []partitionRow  `json:"partitions"`
	Totals        partitionCounts `json:"totals"`
	RetainedBytes int64           `json:"retainedBytes"`
	Segments      segmentCounts   `json:"segments"`
}

type partitionRow struct {
	ID            string          `json:"id"`
	Name          string          `json:"name"`
	CreatedAt     string          `json:"createdAt"`
	Stats         partitionCounts `json:"stats"`
	OldestMessage *string         `json:"oldestMessage"`
	NewestMessage *string         `json:"newestMessage"`
}

// partitionCounts are message counts. Failed is always null: a failed message is pending again or a
// dead letter.
type partitionCounts struct {
	Total      int64  `json:"total"`
	Pending    int64  `json:"pending"`
	Processing int64  `json:"processing"`
	Completed  int64  `json:"completed"`
	Failed     *int64 `json:"failed"`
	DeadLetter int64  `json:"deadLetter"`
}

type deletedQueue struct {
	Deleted bool   `json:"deleted"`
	Queue   string `json:"queue"`
	Existed bool   `json:"existed"`
	Message string `json:"message,omitzero"`
}

func (e *edge) listQueues(c *call) (answer, error) {
	stats, err := e.cfg.Engine.Queues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	list := queueList{Queues: make([]queueRow, len(stats))}
	for i, s := range stats {
		list.Queues[i] = queueRow{
			ID:            s.ID.String(),
			Name:          s.Name,
			Namespace:     s.Namespace,
			Task:          s.Task,
			CreatedAt:     timeText(s.CreatedAt),
			Partitions:    s.Partitions,
			RetainedBytes: s.RetainedBytes,
			Segments:      segmentCounts{Segments: s.Segments, Messages: s.Messages.Total},
			Messages:      queueCounts{Total: s.Messages.Total, Pending: s.Messages.Pending, Processing: s.Messages.Processing},
		}
	}
	return encode(http.StatusOK, list)
}

func (e *edge) getQueue(c *call) (answer, error) {
	q, err := e.cfg.Engine.Queue(c.ctx, c.path["queue"])
	if err != nil {
		return answer{}, err
	}
	detail := queueDetail{
		ID:            q.ID.String(),
		Name:          q.Name,
		Namespace:     q.Namespace,
		Task:          q.Task,
		CreatedAt:     timeText(q.CreatedAt),
		Options:       resolved(q.Options),
		Partitions:    make([]partitionRow, len(q.PartitionStats)),
		Totals:        counts(q.Messages),
		RetainedBytes: q.RetainedBytes,
		Segments:      segmentCounts{Segments: q.Segments, Messages: q.Messages.Total},
	}
	for i, p := range q.PartitionStats {
		detail.Partitions[i] = partitionRow{
			ID:            p.ID.String(),
			Name:          p.Name,
			CreatedAt:     timeText(p.CreatedAt),
			Stats:         counts(p.Counts),
			OldestMessage: optionalTime(p.Oldest),
			NewestMessage: optionalTime(p.Newest),
		}
	}
	return encode(http.StatusOK, detail)
}

func counts(c queue.Counts) partitionCounts {
	return partitionCounts{
		Total:      c.Total,
		Pending:    c.Pending,
		Processing: c.Processing,
		Completed:  c.Completed,
		DeadLetter: c.DeadLetter,
	}
}

// deleteQueue answers 200 also when there was nothing to delete (queue contract, section 7).
func (e *edge) deleteQueue(c *call) (answer, error) {
	name := c.path["queue"]
	existed, err := e.cfg.Engine.DeleteQueue(c.ctx, name)
	if err != nil {
		return answer{}, err
	}
	out := deletedQueue{Deleted: existed, Queue: name, Existed: existed}
	if !existed {
		out.Message = "Queue not found"
	}
	return encode(http.StatusOK, out)
}
