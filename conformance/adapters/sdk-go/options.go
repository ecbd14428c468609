package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// Each table pairs the wire's names with the fields of the library's options.

func durations(o *posthorn.QueueOptions) map[string]**time.Duration {
	return map[string]**time.Duration{
		"leaseTime": &o.LeaseTime, "delayedProcessing": &o.DelayedProcessing, "windowBuffer": &o.WindowBuffer,
		"minPopWaitTime": &o.MinPopWait, "retentionSeconds": &o.Retention, "completedRetentionSeconds": &o.CompletedRetention,
		"maxWaitTimeSeconds": &o.MaxWaitTime, "dedupWindowSeconds": &o.DedupWindow,
	}
}

func numbers(o *posthorn.QueueOptions) map[string]**int {
	return map[string]**int{
		"retryLimit": &o.RetryLimit, "priority": &o.Priority, "maxSize": &o.MaxSize, "ttl": &o.TTL, "retryDelay": &o.RetryDelay,
	}
}

func booleans(o *posthorn.QueueOptions) map[string]**bool {
	return map[string]**bool{
		"deadLetterQueue": &o.DeadLetterQueue, "dlqAfterMaxRetries": &o.DLQAfterMaxRetries,
		"retentionEnabled": &o.RetentionEnabled, "encryptionEnabled": &o.EncryptionEnabled,
	}
}

// unit of an option that the library has as a duration.
func unit(option string) time.Duration {
	if option == "minPopWaitTime" {
		return time.Millisecond
	}
	return time.Second
}

func (p *peer) configure(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Queue   string                     `json:"queue"`
		Options map[string]json.RawMessage `json:"options"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode configure: %w", err)
	}
	opts, err := libraryOptions(request.Options)
	if err != nil {
		return answer{}, err
	}
	q, err := p.client.Configure(ctx, request.Queue, opts)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"configured": true, "queueId": q.ID, "queue": q.Name, "namespace": q.Namespace, "task": q.Task,
		"options": wireOptions(q.Options),
	}}, nil
}

func libraryOptions(given map[string]json.RawMessage) (posthorn.QueueOptions, error) {
	var opts posthorn.QueueOptions
	targets := map[string]any{"namespace": &opts.Namespace, "task": &opts.Task}
	for name, field := range numbers(&opts) {
		targets[name] = field
	}
	for name, field := range booleans(&opts) {
		targets[name] = field
	}
	for name, raw := range given {
		if field, ok := durations(&opts)[name]; ok {
			var units int64
			if err := json.Unmarshal(raw, &units); err != nil {
				return opts, fmt.Errorf("option %s: %w", name, err)
			}
			*field = new(time.Duration(units) * unit(name))
			continue
		}
		if target, ok := targets[name]; ok {
			if err := json.Unmarshal(raw, target); err != nil {
				return opts, fmt.Errorf("option %s: %w", name, err)
			}
		}
	}
	return opts, nil
}

func wireOptions(opts posthorn.QueueOptions) map[string]any {
	wire := map[string]any{}
	for name, field := range durations(&opts) {
		if *field != nil {
			wire[name] = int64(**field / unit(name))
		}
	}
	for name, field := range numbers(&opts) {
		if *field != nil {
			wire[name] = **field
		}
	}
	for name, field := range booleans(&opts) {
		if *field != nil {
			wire[name] = **field
		}
	}
	return wire
}
