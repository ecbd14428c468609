package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// optionsRequest are the queue options of a configure body. A nil pointer is an omitted option, which
// goes to its default: configure replaces everything.
type optionsRequest struct {
	Namespace                 *string `json:"namespace"`
	Task                      *string `json:"task"`
	LeaseTime                 *int64  `json:"leaseTime"`
	RetryLimit                *int64  `json:"retryLimit"`
	DeadLetterQueue           *bool   `json:"deadLetterQueue"`
	DLQAfterMaxRetries        *bool   `json:"dlqAfterMaxRetries"`
	DelayedProcessing         *int64  `json:"delayedProcessing"`
	WindowBuffer              *int64  `json:"windowBuffer"`
	MinPopWaitTime            *int64  `json:"minPopWaitTime"`
	RetentionEnabled          *bool   `json:"retentionEnabled"`
	RetentionSeconds          *int64  `json:"retentionSeconds"`
	CompletedRetentionSeconds *int64  `json:"completedRetentionSeconds"`
	MaxWaitTimeSeconds        *int64  `json:"maxWaitTimeSeconds"`
	EncryptionEnabled         *bool   `json:"encryptionEnabled"`
	DedupWindowSeconds        *int64  `json:"dedupWindowSeconds"`
	Priority                  *int64  `json:"priority"`
	MaxSize                   *int64  `json:"maxSize"`
	TTL                       *int64  `json:"ttl"`
	RetryDelay                *int64  `json:"retryDelay"`
}

// configureRequest is the body of POST /api/v1/configure. Options stand in "options" or, without it,
// beside "queue".
type configureRequest struct {
	Queue          string         `json:"queue"`
	Options        jsontext.Value `json:"options"` // decoded by itself: of duplicate keys the last counts, whole
	optionsRequest `json:",inline"`
}

// optionsAnswer are a queue's resolved options, in the units of the wire.
type optionsAnswer struct {
	LeaseTime                 int64 `json:"leaseTime"`
	RetryLimit                int   `json:"retryLimit"`
	DeadLetterQueue           bool  `json:"deadLetterQueue"`
	DLQAfterMaxRetries        bool  `json:"dlqAfterMaxRetries"`
	DelayedProcessing         int64 `json:"delayedProcessing"`
	WindowBuffer              int64 `json:"windowBuffer"`
	MinPopWaitTime            int64 `json:"minPopWaitTime"`
	RetentionEnabled          bool  `json:"retentionEnabled"`
	RetentionSeconds          int64 `json:"retentionSeconds"`
	CompletedRetentionSeconds int64 `json:"completedRetentionSeconds"`
	MaxWaitTimeSeconds        int64 `json:"maxWaitTimeSeconds"`
	EncryptionEnabled         bool  `json:"encryptionEnabled"`
	DedupWindowSeconds        int64 `json:"dedupWindowSeconds"`
	Priority                  int   `json:"priority"`
	MaxSize                   int   `json:"maxSize"`
	TTL                       int   `json:"ttl"`
	RetryDelay                int   `json:"retryDelay"`
}

type configureAnswer struct {
	Configured  bool           `json:"configured"`
	QueueID     string         `json:"queueId"`
	PartitionID jsontext.Value `json:"partitionId"` // always null
	Queue       string         `json:"queue"`
	Namespace   string         `json:"namespace"`
	Task        string         `json:"task"`
	Storage     string         `json:"storage"`
	Options     optionsAnswer  `json:"options"`
}

// maxMinPopWait is the longest hold of a batch that is not full; more is clamped (queue contract, section 2).
const maxMinPopWait = time.Minute

// configure answers POST /api/v1/configure, a full replace (queue contract, section 6).
func (e *edge) configure(c *call) (answer, error) {
	var body configureRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	given := &body.optionsRequest
	if body.Options.Kind() == '{' {
		given = new(optionsRequest)
		if err := decode(body.Options, given); err != nil {
			return answer{}, err
		}
	}
	namespace := firstNonEmpty(body.Namespace, given.Namespace)
	task := firstNonEmpty(body.Task, given.Task)
	options := given.resolve()
	q, err := e.cfg.Engine.Configure(c.ctx, body.Queue, namespace, task, options)
	if errors.Is(err, queue.ErrNoKey) {
		return answer{}, &openapi.CheckError{In: "body", Field: "options.encryptionEnabled", Rule: "must be false: the broker has no encryption key"}
	}
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, configureAnswer{
		Configured:  true,
		QueueID:     q.ID.String(),
		PartitionID: jsontext.Value("null"),
		Queue:       q.Name,
		Namespace:   q.Namespace,
		Task:        q.Task,
		Storage:     "segments",
		Options:     resolved(q.Options),
	})
}

// resolve makes engine options of wire options, whose values the check of the body has bounded.
func (o *optionsRequest) resolve() queue.Options {
	out := queue.DefaultOptions()
	setDuration(&out.LeaseTime, o.LeaseTime, time.Second)
	setInt(&out.RetryLimit, o.RetryLimit)
	setBool(&out.DeadLetterQueue, o.DeadLetterQueue)
	setBool(&out.DLQAfterMaxRetries, o.DLQAfterMaxRetries)
	setDuration(&out.DelayedProcessing, o.DelayedProcessing, time.Second)
	setDuration(&out.WindowBuffer, o.WindowBuffer, time.Second)
	setDuration(&out.MinPopWait, o.MinPopWaitTime, time.Millisecond)
	out.MinPopWait = min(out.MinPopWait, maxMinPopWait)
	setBool(&out.RetentionEnabled, o.RetentionEnabled)
	setDuration(&out.Retention, o.RetentionSeconds, time.Second)
	setDuration(&out.CompletedRetention, o.CompletedRetentionSeconds, time.Second)
	setDuration(&out.MaxWaitTime, o.MaxWaitTimeSeconds, time.Second)
	setBool(&out.EncryptionEnabled, o.EncryptionEnabled)
	setDuration(&out.DedupWindow, o.DedupWindowSeconds, time.Second)
	setInt(&out.Priority, o.Priority)
	setInt(&out.MaxSize, o.MaxSize)
	setInt(&out.TTL, o.TTL)
	setInt(&out.RetryDelay, o.RetryDelay)
	return out
}

func setInt(to *int, v *int64) {
	if v != nil {
		*to = int(*v)
	}
}

func setDuration(to *time.Duration, v *int64, unit time.Duration) {
	if v != nil {
		*to = time.Duration(*v) * unit
	}
}

func setBool(to, v *bool) {
	if v != nil {
		*to = *v
	}
}

func firstNonEmpty(texts ...*string) string {
	for _, t := range texts {
		if t != nil && *t != "" {
			return *t
		}
	}
	return ""
}

func resolved(o queue.Options) optionsAnswer {
	return optionsAnswer{
		LeaseTime:                 seconds(o.LeaseTime),
		RetryLimit:                o.RetryLimit,
		DeadLetterQueue:           o.DeadLetterQueue,
		DLQAfterMaxRetries:        o.DLQAfterMaxRetries,
		DelayedProcessing:         seconds(o.DelayedProcessing),
		WindowBuffer:              seconds(o.WindowBuffer),
		MinPopWaitTime:            o.MinPopWait.Milliseconds(),
		RetentionEnabled:          o.RetentionEnabled,
		RetentionSeconds:          seconds(o.Retention),
		CompletedRetentionSeconds: seconds(o.CompletedRetention),
		MaxWaitTimeSeconds:        seconds(o.MaxWaitTime),
		EncryptionEnabled:         o.EncryptionEnabled,
		DedupWindowSeconds:        seconds(o.DedupWindow),
		Priority:                  o.Priority,
		MaxSize:                   o.MaxSize,
		TTL:                       o.TTL,
		RetryDelay:                o.RetryDelay,
	}
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
