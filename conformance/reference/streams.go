package reference

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// stream is a registered query.
type stream struct {
	id               string
	name, sink, hash string
	state            map[string]map[string]stateValue // by partition and key
}

type stateValue struct {
	text    json.RawMessage
	updated time.Time
}

func (b *Broker) registerStream(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	var o object
	if err == nil {
		o, err = b.parseObject(body)
	}
	if err != nil {
		b.writeError(w, err)
		return
	}
	texts := map[string]string{}
	for _, key := range []string{"name", "source_queue", "config_hash"} {
		if o[key] == nil && b.has(StreamFieldsOptional) {
			continue
		}
		if texts[key], err = o.text("", key); err == nil && texts[key] == "" {
			err = badBody("%s is missing", key)
		}
		if err != nil {
			b.writeError(w, err)
			return
		}
	}
	sink, _ := o.optionalText("", "sink_queue")
	reset := string(o["reset"]) == "true"

	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[texts["name"]]
	fresh := s == nil
	switch {
	case fresh:
		s = &stream{id: newID().String(), name: texts["name"], state: map[string]map[string]stateValue{}}
		b.streams[s.name] = s
	case reset:
		if !b.has(StreamResetKeepsID) {
			s.id = newID().String()
		}
		if !b.has(StreamResetKeepsState) {
			s.state = map[string]map[string]stateValue{}
		}
	case s.hash != texts["config_hash"] && !b.has(StreamChangeAccepted):
		if b.has(StreamChangeApplied) {
			s.hash = texts["config_hash"]
		}
		writeJSON(w, http.StatusConflict, map[string]string{"error": "the query is registered with another config_hash"})
		return
	}
	s.sink, s.hash = sink, texts["config_hash"]
	writeJSON(w, http.StatusOK, map[string]any{
		"success": true, "query_id": s.id, "name": s.name, "config_hash": s.hash,
		"fresh": fresh || b.has(StreamAlwaysFresh), "reset": reset && !fresh,
	})
}

// streamBody reads a body with query_id and partition_id.
func (b *Broker) streamBody(r *http.Request) (o object, query, partition string, err error) {
	body, err := b.readBody(r)
	if err != nil {
		return nil, "", "", err
	}
	if o, err = b.parseObject(body); err != nil {
		return nil, "", "", err
	}
	for key, into := range map[string]*string{"query_id": &query, "partition_id": &partition} {
		if *into, err = o.text("", key); err != nil {
			return nil, "", "", err
		}
		if _, err := uuid.Parse(*into); err != nil && !b.has(StreamFieldsOptional) {
			return nil, "", "", badBody("%s must be a UUID", key)
		}
	}
	return o, query, partition, nil
}

func (b *Broker) streamOf(id string) *stream {
	for _, s := range b.streams {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (b *Broker) getStreamState(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	o, query, partition, err := b.streamBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	var named []string
	_ = json.Unmarshal(o["keys"], &named)
	prefix, _ := o.optionalText("", "key_prefix")
	var ripe *float64
	_ = json.Unmarshal(o["ripe_at_or_before"], &ripe)

	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streamOf(query)
	if s == nil {
		writeJSON(w, http.StatusOK, map[string]any{"success": false, "error": "unknown query", "rows": []any{}})
		return
	}
	state := s.state[b.stateScope(partition)]
	if b.has(StreamStateShared) {
		for _, other := range b.streams {
			if other != s {
				all := map[string]stateValue{}
				maps.Copy(all, state)
				maps.Copy(all, other.state[partition])
				state = all
			}
		}
	}
	var text bytes.Buffer
	text.WriteString(`{"success":true,"rows":[`)
	keys := slices.Sorted(maps.Keys(state))
	if b.has(StreamStateUnordered) {
		slices.Reverse(keys)
	}
	first := true
	for _, key := range keys {
		value := state[key]
		var window struct {
			End *float64 `json:"windowEnd"`
		}
		switch {
		case !null(o["keys"]) && !slices.Contains(named, key) && !b.has(StreamKeysIgnored),
			!strings.HasPrefix(key, prefix) && !b.has(StreamPrefixIgnored),
			ripe != nil && (json.Unmarshal(value.text, &window) != nil || window.End == nil || *window.End > *ripe):
			continue
		}
		if !first {
			text.WriteByte(',')
		}
		first = false
		quoted, _ := json.Marshal(key) //nolint:errchkjson // a string
		text.WriteString(`{"key":` + string(quoted) + `,"value":` + string(value.text) + `,"updated_at":"` + iso(value.updated) + `"}`)
	}
	text.WriteString(`]}`)
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text.Bytes())
}

// stateScope is the partition that state belongs to.
func (b *Broker) stateScope(partition string) string {
	if b.has(StreamStateAcrossPartitions) {
		return ""
	}
	return partition
}

// streamCycle is a cycle as it was asked for.
type streamCycle struct {
	query, partition, group string
	state                   []streamOp
	push                    []pushItem
	ack                     *ackItem
	count                   json.RawMessage
	release                 bool
}

type streamOp struct {
	key   string
	value json.RawMessage // nil deletes
}

func (b *Broker) cycleStream(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	o, query, partition, err := b.streamBody(r)
	var c streamCycle
	if err == nil {
		c, err = b.parseCycle(o)
	}
	if err != nil {
		b.writeError(w, err)
		return
	}
	c.query, c.partition = query, partition
	answer := map[string]any{"query_id": query, "partition_id": partition}
	b.mu.Lock()
	defer b.mu.Unlock()
	restore := b.snapshot()
	results, problem := b.cycle(c, answer)
	if problem != "" {
		restore()
		writeJSON(w, http.StatusOK, map[string]any{"success": false, "error": problem, "query_id": query, "partition_id": partition})
		return
	}
	b.wake()
	answer["success"], answer["push_results"] = true, results
	writeJSON(w, http.StatusOK, answer)
}

func (b *Broker) parseCycle(o object) (streamCycle, error) {
	var c streamCycle
	var err error
	if c.group, err = o.optionalText("", "consumer_group"); err != nil {
		return c, err
	}
	if c.group == "" {
		c.group = modeGroup
	}
	c.release = string(o["release_lease"]) != "false"
	if b.has(StreamNeverReleases) {
		c.release = false
	}
	if b.has(StreamAlwaysReleases) {
		c.release = true
	}
	var ops, items []json.RawMessage
	_ = json.Unmarshal(o["state_ops"], &ops)
	_ = json.Unmarshal(o["push_items"], &items)
	for i, raw := range ops {
		op, _ := b.members(raw)
		kind, _ := op.optionalText("", "type")
		key, err := op.text("", "key")
		if op["key"] == nil {
			err = badBody("%s.key is missing", path("state_ops", i))
		}
		if err != nil {
			return c, err
		}
		value := op["value"]
		switch {
		case kind == "delete":
			value = nil
		case kind != "upsert" && !b.has(StreamOpsUnchecked):
			return c, badBody("%s.type must be one of upsert, delete", path("state_ops", i))
		case value == nil && !b.has(StreamOpsUnchecked):
			return c, badBody("%s.value is missing", path("state_ops", i))
		}
		c.state = append(c.state, streamOp{key, value})
	}
	for i, raw := range items {
		item, _ := b.members(raw)
		sinks := null(item["queue"])
		if sinks { // its queue is filled in later
			item["queue"] = json.RawMessage(`"-"`)
			raw, _ = json.Marshal(item) //nolint:errchkjson // what was decoded
		}
		parsed, err := b.parseTransactionItem(path("push_items", i), raw)
		if err != nil {
			return c, err
		}
		if sinks {
			parsed.queue = ""
		}
		c.push = append(c.push, parsed)
	}
	if null(o["ack"]) {
		return c, nil
	}
	ack, err := b.members(o["ack"])
	if err != nil {
		return c, badBody("ack must be an object")
	}
	ack["partitionId"] = o["partition_id"]
	parsed, err := b.parseAck("ack.", ack)
	c.ack, c.count = &parsed, ack["count"]
	return c, err
}

// cycle carries a cycle out. What it leaves behind when it fails is restored by the caller, but for state.
func (b *Broker) cycle(c streamCycle, answer map[string]any) (results []pushResult, problem string) {
	s := b.streamOf(c.query)
	id, _ := uuid.Parse(c.partition)
	p := b.partitions[id]
	switch {
	case s == nil:
		return nil, "unknown query"
	case p == nil:
		return nil, "unknown partition"
	}
	answer["queueName"] = p.queue.name
	b.call++
	results = []pushResult{}
	for i, item := range c.push {
		if item.queue == "" {
			item.queue = s.sink
		}
		if item.queue == "" {
			return nil, "an item names no queue and the query has no sink_queue"
		}
		if b.has(StreamDuplicateFails) && b.original(b.partitionNamed(b.queueNamed(item.queue), item.partition), item.transactionID) != nil {
			return nil, "duplicate"
		}
		results = append(results, b.storeItem(i, item))
	}
	if b.has(StreamStateFirst) {
		b.applyState(s, c)
	}
	answer["ack_result"] = nil
	if c.ack != nil && !b.has(StreamAckIgnored) {
		answers := make([]ackResult, 1)
		b.ackGroupOf(c.group, c.partition, c.ack.leaseID, []int{0}, []ackItem{*c.ack}, answers)
		if answers[0].Error != nil {
			return nil, *answers[0].Error
		}
		released := answers[0].LeaseReleased
		if cursor := p.cursors[b.groupKey(c.group)]; c.release && cursor != nil && cursor.lease != nil {
			cursor.lease, released = nil, true
		}
		count := c.count
		if null(count) || b.has(StreamCountIsOne) {
			count = json.RawMessage("1")
		}
		answer["ack_result"] = map[string]any{"success": true, "count": count, "lease_released": released, "dlq": answers[0].DLQ}
	}
	if !b.has(StreamStateFirst) {
		b.applyState(s, c)
	}
	answer["state_ops_applied"] = len(c.state)
	return results, ""
}

func (b *Broker) applyState(s *stream, c streamCycle) {
	scope := b.stateScope(c.partition)
	if s.state[scope] == nil {
		s.state[scope] = map[string]stateValue{}
	}
	for _, op := range c.state {
		value := op.value
		switch _, known := s.state[scope][op.key]; {
		case value == nil && !b.has(StreamDeleteIgnored):
			delete(s.state[scope], op.key)
			continue
		case value == nil, known && b.has(StreamFirstValueStays):
			continue
		case b.has(StreamRewritesState):
			value = rewritten(value)
		}
		s.state[scope][op.key] = stateValue{value, b.now()}
	}
}
