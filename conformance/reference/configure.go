package reference

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// options are the resolved options of a queue.
type options struct {
	numbers  map[string]int
	booleans map[string]bool
}

// defaultOptions are those of a queue that configure made.
func defaultOptions() options {
	return options{
		numbers: map[string]int{
			"leaseTime": 300, "retryLimit": 3, "delayedProcessing": 0, "windowBuffer": 0, "minPopWaitTime": 0,
			"retentionSeconds": 0, "completedRetentionSeconds": 0, "maxWaitTimeSeconds": 0, "dedupWindowSeconds": 3600,
			"priority": 0, "maxSize": 0, "ttl": 0, "retryDelay": 0,
		},
		booleans: map[string]bool{
			"deadLetterQueue": true, "dlqAfterMaxRetries": true, "retentionEnabled": false, "encryptionEnabled": false,
		},
	}
}

func (o options) wire() map[string]any {
	all := map[string]any{}
	for name, value := range o.numbers {
		all[name] = value
	}
	for name, value := range o.booleans {
		all[name] = value
	}
	return all
}

func (b *Broker) configure(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	o, err := b.parseObject(body)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	answer, err := b.configureQueue(o)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.wake()
	writeJSON(w, http.StatusOK, answer)
}

func (b *Broker) configureQueue(o object) (map[string]any, error) {
	name := "default"
	var err error
	if o["queue"] != nil || !b.has(ConfigureQueueOptional) {
		if name, err = b.parseQueueName("", o); err != nil {
			return nil, err
		}
	}
	base := defaultOptions()
	if b.has(ConfigureDefaultLease60) {
		base.numbers["leaseTime"] = 60
	}
	existing := b.queues[name]
	if existing != nil && (b.has(ConfigureMerges) || b.has(ConfigureKeepsImplicitLease) && !existing.configured) {
		for key, value := range existing.options.numbers {
			if b.has(ConfigureMerges) || key == "leaseTime" {
				base.numbers[key] = value
			}
		}
	}
	source := o
	if !null(o["options"]) {
		source = object{}
		if err := json.Unmarshal(o["options"], &source); err != nil {
			return nil, badBody("options must be an object")
		}
	} else if b.has(TopLevelIgnored) {
		source = object{}
	}
	if err := b.readOptions(source, base); err != nil {
		if existing != nil && b.has(NegativeHalfApplied) {
			existing.options = base
		}
		return nil, err
	}
	namespace, task, err := names(o, source)
	if err != nil {
		return nil, err
	}
	if b.has(NamespaceIgnored) {
		namespace, task = "", ""
	}
	if b.has(ConfigureCreatesNothing) && existing == nil {
		return b.configured(&queue{id: newID(), name: name, options: base}), nil
	}
	if b.has(ConfigureRecreates) {
		b.drop(name)
	}
	q := b.queueNamed(name)
	q.namespace, q.task, q.configured = namespace, task, true
	if !b.has(ConfigureNoEffect) {
		q.options = base
	}
	answer := b.configured(q)
	answer["options"] = base.wire()
	if b.has(EchoDropsUnused) {
		for _, name := range []string{"priority", "maxSize", "ttl", "retryDelay"} {
			answer["options"].(map[string]any)[name] = 0
		}
	}
	return answer, nil
}

func (b *Broker) configured(q *queue) map[string]any {
	answer := map[string]any{
		"configured": true, "queueId": q.id.String(), "partitionId": nil, "queue": q.name, "namespace": q.namespace,
		"task": q.task, "storage": "segments", "options": q.options.wire(),
	}
	if b.has(ConfigureStorageMissing) {
		delete(answer, "storage")
	}
	return answer
}

// readOptions sets what source gives in o.
func (b *Broker) readOptions(source object, o options) error {
	for name := range o.numbers {
		raw := source[name]
		if null(raw) {
			continue
		}
		value, err := strconv.ParseInt(string(raw), 10, 32)
		if err != nil {
			if b.has(OptionsCoerced) {
				continue
			}
			return badBody("options.%s must be an integer", name)
		}
		if least := b.leastOf(name); value < least {
			if b.has(NegativeIsZero) {
				value = least
			} else {
				return badBody("options.%s must be at least %d", name, least)
			}
		}
		if name == "minPopWaitTime" {
			value = min(value, 60000)
		}
		o.numbers[name] = int(value)
	}
	for name := range o.booleans {
		raw := source[name]
		switch {
		case null(raw):
		case string(raw) == "true", string(raw) == "false":
			o.booleans[name] = string(raw) == "true"
		case b.has(BooleansCoerced):
			o.booleans[name] = true
		default:
			return badBody("options.%s must be a boolean", name)
		}
	}
	return nil
}

func (b *Broker) leastOf(option string) int64 {
	if option == "leaseTime" && b.has(LeaseTimeZeroRefused) {
		return 1
	}
	return 0
}

// names reads namespace and task: a non-empty one at top level beats the one in the options.
func names(top, source object) (namespace, task string, err error) {
	for key, target := range map[string]*string{"namespace": &namespace, "task": &task} {
		if *target, err = top.optionalText("", key); err != nil {
			return "", "", err
		}
		if *target != "" {
			continue
		}
		if *target, err = source.optionalText("options.", key); err != nil {
			return "", "", err
		}
	}
	return namespace, task, nil
}
