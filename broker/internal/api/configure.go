package api

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/posthorn/posthorn/broker/internal/queue"
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

// The bounds of option values, in the units of the wire.
const (
	maxMinPopWait = 60_000 // ms; more is clamped (queue contract, section 2)
	maxOption     = math.MaxInt32
	maxName       = 512 // bytes
)

// configure answers POST /api/v1/configure, a full replace (queue contract, section 6).
func (e *edge) configure(c *call) (answer, error) {
	var body configureRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	given, where := &body.optionsRequest, ""
	if body.Options.Kind() == '{' {
		given, where = new(optionsRequest), "options."
		if err := decode(body.Options, given); err != nil {
			return answer{}, err
		}
	}
	options, err := given.resolve(where)
	if err != nil {
		return answer{}, err
	}
	namespace := firstNonEmpty(body.Namespace, given.Namespace)
	task := firstNonEmpty(body.Task, given.Task)
	if err := errors.Join(checkLabel("namespace", namespace), checkLabel("task", task)); err != nil {
		return answer{}, err
	}
	q, err := e.cfg.Engine.Configure(c.ctx, body.Queue, namespace, task, options)
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

// resolve makes engine options of wire options. The check of the body has refused what is below its
// minimum; what is above the range of the wire is refused here too.
func (o *optionsRequest) resolve(where string) (queue.Options, error) {
	out := queue.DefaultOptions()
	n := numbers{where: where}
	n.duration(&out.LeaseTime, "leaseTime", o.LeaseTime, time.Second)
	n.int(&out.RetryLimit, "retryLimit", o.RetryLimit)
	n.duration(&out.DelayedProcessing, "delayedProcessing", o.DelayedProcessing, time.Second)
	n.duration(&out.WindowBuffer, "windowBuffer", o.WindowBuffer, time.Second)
	n.duration(&out.MinPopWait, "minPopWaitTime", o.MinPopWaitTime, time.Millisecond)
	n.duration(&out.Retention, "retentionSeconds", o.RetentionSeconds, time.Second)
	n.duration(&out.CompletedRetention, "completedRetentionSeconds", o.CompletedRetentionSeconds, time.Second)
	n.duration(&out.MaxWaitTime, "maxWaitTimeSeconds", o.MaxWaitTimeSeconds, time.Second)
	n.duration(&out.DedupWindow, "dedupWindowSeconds", o.DedupWindowSeconds, time.Second)
	n.int(&out.Priority, "priority", o.Priority)
	n.int(&out.MaxSize, "maxSize", o.MaxSize)
	n.int(&out.TTL, "ttl", o.TTL)
	n.int(&out.RetryDelay, "retryDelay", o.RetryDelay)
	if n.err != nil {
		return queue.Options{}, n.err
	}
	out.MinPopWait = min(out.MinPopWait, maxMinPopWait*time.Millisecond)
	setBool(&out.DeadLetterQueue, o.DeadLetterQueue)
	setBool(&out.DLQAfterMaxRetries, o.DLQAfterMaxRetries)
	setBool(&out.RetentionEnabled, o.RetentionEnabled)
	setBool(&out.EncryptionEnabled, o.EncryptionEnabled)
	return out, nil
}

// numbers reads option values and keeps the first failure.
type numbers struct {
	where string
	err   error
}

func (n *numbers) int(to *int, name string, v *int64) {
	switch {
	case v == nil:
	case *v < 0:
		n.fail(name, "must be at least 0")
	case *v > maxOption:
		n.fail(name, "must be at most 2147483647")
	default:
		*to = int(*v)
	}
}

func (n *numbers) duration(to *time.Duration, name string, v *int64, unit time.Duration) {
	count := int(*to / unit)
	n.int(&count, name, v)
	*to = time.Duration(count) * unit
}

func (n *numbers) fail(name, rule string) {
	if n.err == nil {
		n.err = badBody(n.where+name, rule)
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

// checkLabel refuses a namespace or task that cannot be a name (queue contract, section 0).
func checkLabel(field, s string) error {
	switch {
	case len(s) > maxName:
		return badBody(field, fmt.Sprintf("must be at most %d bytes long", maxName))
	case strings.ContainsFunc(s, unicode.IsControl):
		return badBody(field, "must not contain control characters")
	}
	return nil
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
