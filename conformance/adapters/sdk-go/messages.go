package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// spliced is an object with a payload as data, or with such objects as messages.
type spliced struct {
	fields   map[string]any
	data     json.RawMessage
	messages []spliced // nil means that data is the member
}

func (s spliced) encode() ([]byte, error) {
	text, err := json.Marshal(s.fields)
	if err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	text = text[:len(text)-1]
	if s.messages == nil {
		text = append(text, `,"data":`...)
		text = append(text, s.data...)
		return append(text, '}'), nil
	}
	text = append(text, `,"messages":[`...)
	for i, m := range s.messages {
		if i > 0 {
			text = append(text, ',')
		}
		one, err := m.encode()
		if err != nil {
			return nil, err
		}
		text = append(text, one...)
	}
	return append(text, "]}"...), nil
}

// moments reads times of a query. What the library cannot be given is an error.
func moments(query url.Values, targets map[string]*time.Time) error {
	for name, target := range targets {
		if !query.Has(name) {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, query.Get(name))
		if err != nil {
			return fmt.Errorf("the library takes a time for %s: %w", name, err)
		}
		*target = at
	}
	return nil
}

func storedFields(m posthorn.StoredMessage) map[string]any {
	return map[string]any{
		"id": m.ID, "transactionId": m.TransactionID, "partitionId": m.PartitionID, "queue": m.Queue, "partition": m.Partition,
		"namespace": m.Namespace, "task": m.Task, "status": m.Status, "traceId": optional(m.TraceID), "producerSub": optional(m.ProducerSub),
		"createdAt": iso(m.CreatedAt), "leaseExpiresAt": iso(m.LeaseExpiresAt),
	}
}

func (p *peer) listMessages(ctx context.Context, args suite.Args) (answer, error) {
	q := args.Query
	filter := posthorn.MessageFilter{
		Queue: q.Get("queue"), Partition: q.Get("partition"), Namespace: q.Get("namespace"), Task: q.Get("task"),
		Status: posthorn.MessageStatus(q.Get("status")),
	}
	if err := moments(q, map[string]*time.Time{"from": &filter.From, "to": &filter.To}); err != nil {
		return answer{}, err
	}
	for name, target := range map[string]*int{"limit": &filter.Limit, "offset": &filter.Offset} {
		if err := number(q, name, target); err != nil {
			return answer{}, err
		}
	}
	page, err := p.client.ListMessages(ctx, filter)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := spliced{messages: []spliced{}, fields: map[string]any{
		"mode": map[string]any{"hasQueueMode": page.QueueMode, "busGroupsCount": page.Groups},
	}}
	for _, m := range page.Messages {
		list.messages = append(list.messages, spliced{fields: storedFields(m), data: m.Payload})
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) getMessage(ctx context.Context, args suite.Args) (answer, error) {
	m, err := p.client.GetMessage(ctx, args.Path["partitionId"], args.Path["transactionId"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	fields := storedFields(m.StoredMessage)
	groups := make([]map[string]any, len(m.Groups))
	for i, g := range m.Groups {
		groups[i] = map[string]any{"name": g.Group, "group": g.Group, "consumed": g.Consumed, "leaseExpiresAt": iso(g.LeaseExpiresAt)}
	}
	fields["isEncrypted"], fields["errorMessage"], fields["retryCount"] = m.Encrypted, optional(m.Error), m.Retries
	fields["consumerGroups"], fields["queueConfig"] = groups, wireOptions(m.Options)
	return answer{http.StatusOK, spliced{fields: fields, data: m.Payload}}, nil
}

func (p *peer) deleteDeadLetter(ctx context.Context, args suite.Args) (answer, error) {
	if err := p.client.DeleteDeadLetter(ctx, args.Path["partitionId"], args.Path["transactionId"]); err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"success": true}}, nil
}

func deadLetterFilter(q url.Values) (posthorn.DeadLetterFilter, error) {
	f := posthorn.DeadLetterFilter{Queue: q.Get("queue"), ConsumerGroup: q.Get("consumerGroup"), Partition: q.Get("partition")}
	return f, moments(q, map[string]*time.Time{"from": &f.From, "to": &f.To})
}

func (p *peer) listDeadLetters(ctx context.Context, args suite.Args) (answer, error) {
	filter, err := deadLetterFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	var limit, offset int
	for name, target := range map[string]*int{"limit": &limit, "offset": &offset} {
		if err := number(args.Query, name, target); err != nil {
			return answer{}, err
		}
	}
	page, err := p.client.ListDeadLetters(ctx, filter, limit, offset)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := spliced{messages: []spliced{}, fields: map[string]any{"total": page.Total}}
	for _, d := range page.Entries {
		list.messages = append(list.messages, spliced{data: d.Payload, fields: map[string]any{
			"id": d.ID, "transactionId": d.TransactionID, "partitionId": d.PartitionID, "queue": d.Queue, "partition": d.Partition,
			"consumerGroup": d.ConsumerGroup, "errorMessage": d.Error, "retryCount": d.Retries, "producerSub": optional(d.ProducerSub),
			"createdAt": iso(d.CreatedAt), "failedAt": iso(d.FailedAt),
		}})
	}
	return answer{http.StatusOK, list}, nil
}

// bulkArguments are what the library takes of a call on many dead letters.
func bulkArguments(args suite.Args) (filter posthorn.DeadLetterFilter, limit int, err error) {
	if filter, err = deadLetterFilter(args.Query); err == nil {
		err = number(args.Query, "limit", &limit)
	}
	return filter, limit, err
}

func (p *peer) purgeDeadLetters(ctx context.Context, args suite.Args) (answer, error) {
	filter, limit, err := bulkArguments(args)
	if err != nil {
		return answer{}, err
	}
	purged, err := p.client.PurgeDeadLetters(ctx, filter, limit)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"deleted": purged.Deleted, "remaining": purged.Remaining}}, nil
}

func (p *peer) retryDeadLetter(ctx context.Context, args suite.Args) (answer, error) {
	replay, err := p.client.RetryDeadLetter(ctx, args.Path["partitionId"], args.Path["transactionId"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"success": true, "queue": replay.Queue, "partition": replay.Partition, "dlqRowRemoved": true, "replayedAs": map[string]any{
			"index": 0, "message_id": replay.MessageID, "transaction_id": replay.TransactionID, "queueName": replay.Queue, "status": "queued",
		},
	}}, nil
}

func (p *peer) replayDeadLetters(ctx context.Context, args suite.Args) (answer, error) {
	filter, limit, err := bulkArguments(args)
	if err != nil {
		return answer{}, err
	}
	done, err := p.client.ReplayDeadLetters(ctx, filter, limit)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"replayed": done.Replayed, "remaining": done.Remaining}}, nil
}
