package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

const maxItems = 100_000

type pushItem struct {
	as                              uuid.UUID // the id that was answered for it before it was buffered; Nil means a new one
	queue, partition, transactionID string
	payload                         []byte
	trace, producer                 string // ignored but by defects
	sub                             string // of the caller's token
	traceParent                     string
	kept                            string // the traceId of a transaction's item
}

// pushResult has its keys in the order and casing of the wire.
type pushResult struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	QueueName     string `json:"queueName"`
	Status        string `json:"status"`
	Partition     string `json:"partition,omitempty"` // only a defect fills it
}

func (b *Broker) push(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	items, err := b.parsePush(body)
	if err != nil && (!b.has(PartialBadPush) || len(items) == 0) {
		b.writeError(w, err)
		return
	}
	parent, problem := b.traceParentOf(r)
	if problem != nil {
		b.writeError(w, problem)
		return
	}
	for i := range items {
		items[i].traceParent = parent
		items[i].sub = callerOf(r).sub
	}
	results := b.store(items)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if b.has(ReverseResults) {
		for i, j := 0, len(results)-1; i < j; i, j = i+1, j-1 {
			results[i], results[j] = results[j], results[i]
		}
	}
	b.mu.Lock()
	failed := b.maintenance && !b.has(MaintenanceFailsQuietly) && slices.ContainsFunc(results, func(r pushResult) bool { return r.Status == "failed" })
	b.mu.Unlock()
	switch {
	case failed:
		writeJSON(w, http.StatusInternalServerError, results)
	case b.has(PushAnswers200):
		writeJSON(w, http.StatusOK, results)
	case b.has(WrapResults):
		writeJSON(w, http.StatusCreated, map[string]any{"results": results})
	default:
		writeJSON(w, http.StatusCreated, results)
	}
}

// parsePush checks the whole body. With an error it returns the items before the one that broke a rule.
func (b *Broker) parsePush(body []byte) ([]pushItem, error) {
	o, err := b.parseObject(body)
	if err != nil {
		return nil, err
	}
	raw, ok := o["items"]
	if !ok {
		if b.has(ItemsOptional) {
			return nil, nil
		}
		return nil, badBody("items is missing")
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		if b.has(SingleItem) {
			list = []json.RawMessage{raw}
		} else {
			return nil, badBody("items must be an array")
		}
	}
	if len(list) == 0 && b.has(RejectEmptyItems) {
		return nil, badBody("items must not be empty")
	}
	if limit := b.itemLimit(); len(list) > limit {
		return nil, badBody("items must have at most %d elements", limit)
	}
	items := make([]pushItem, 0, len(list))
	for i, raw := range list {
		item, err := b.parseItem(path("items", i), raw)
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (b *Broker) itemLimit() int {
	switch {
	case b.has(SmallerItemLimit):
		return maxItems - 1
	case b.has(LargerItemLimit):
		return maxItems + 1
	default:
		return maxItems
	}
}

func (b *Broker) parseItem(at string, raw []byte) (pushItem, error) {
	o, err := b.members(raw)
	if err != nil || o == nil {
		return pushItem{}, badBody("%s must be an object", at)
	}
	if b.has(RejectUnknownKeys) {
		for key := range o {
			switch key {
			case "queue", "partition", "transactionId", "payload", "traceId", "producerSub":
			default:
				return pushItem{}, badBody("%s.%s is unknown", at, key)
			}
		}
	}
	if b.has(FoldKeys) {
		for key, value := range o {
			if lower := strings.ToLower(key[:min(1, len(key))]) + key[min(1, len(key)):]; o[lower] == nil {
				o[lower] = value
			}
		}
	}
	item := pushItem{payload: o["payload"]}
	item.trace, _ = o.text("", "traceId")
	item.producer, _ = o.text("", "producerSub")
	if b.has(TraceIDChecked) && o["traceId"] != nil {
		if _, err := o.text(at+".", "traceId"); err != nil {
			return item, err
		}
	}
	if item.queue, err = b.parseQueueName(at, o); err != nil {
		return item, err
	}
	if item.partition, err = b.parsePartition(at, o); err != nil {
		return item, err
	}
	if item.transactionID, err = b.parseTransactionID(at, o); err != nil {
		return item, err
	}
	if item.payload == nil && b.has(AcceptDataAlias) {
		item.payload = o["data"]
	}
	if item.payload == nil && b.has(PayloadOptional) && o["data"] == nil {
		item.payload = []byte("null")
	}
	if item.payload == nil || b.has(RejectNullPayload) && null(item.payload) {
		return item, badBody("%s.payload is missing", at)
	}
	return item, nil
}

func (b *Broker) parseQueueName(at string, o object) (string, error) {
	if o["queue"] == nil {
		if b.has(QueueOptional) {
			return "default", nil
		}
		return "", badBody("%s.queue is missing", at)
	}
	name, err := b.name(at, "queue", o, maxName, QueueCoerced, QueueControlAllowed)
	if err != nil {
		return "", err
	}
	if name == "" {
		if b.has(QueueEmptyAllowed) {
			return "default", nil
		}
		return "", badBody("%s.queue must not be empty", at)
	}
	return name, nil
}

func (b *Broker) parsePartition(at string, o object) (string, error) {
	raw, given := o["partition"]
	if !given || null(raw) && !b.has(NullPartitionRefused) {
		if b.has(OtherDefaultPartition) {
			return "default", nil
		}
		return defaultPartition, nil
	}
	name, err := b.name(at, "partition", o, maxName, PartitionCoerced, PartitionControlAllowed)
	if err != nil {
		return "", err
	}
	if name == "" {
		if b.has(PartitionEmptyRefused) {
			return "", badBody("%s.partition must not be empty", at)
		}
		return defaultPartition, nil
	}
	return name, nil
}

func (b *Broker) parseTransactionID(at string, o object) (string, error) {
	raw, given := o["transactionId"]
	if !given || null(raw) && !b.has(NullTransactionIDRefused) {
		return "", nil
	}
	name, err := b.name(at, "transactionId", o, maxTransactionID, TransactionIDCoerced, TransactionIDControlAllowed)
	if err == nil && name == "" && b.has(TransactionIDEmptyKept) {
		return "empty", nil
	}
	return name, err
}

// name reads a string member and holds it to the rules of names. coerced and controls are the defects that soften it.
func (b *Broker) name(at, key string, o object, limit int, coerced, controls Mutation) (string, error) {
	name, err := b.member(at, key, o)
	if err != nil {
		if b.has(coerced) {
			return string(o[key]), nil
		}
		return "", err
	}
	if b.has(CountCharacters) {
		if len([]rune(name)) <= limit {
			limit = len(name)
		}
	}
	if b.has(ShortNames) {
		limit--
	}
	if b.has(TruncateNames) && len(name) > limit {
		return name[:limit], nil
	}
	if err := checkName(at+"."+key, name, limit); err != nil && (!b.has(controls) || len(name) > limit) {
		return "", err
	}
	if b.has(TrimNames) {
		name = strings.TrimSpace(name)
	}
	if b.has(FoldTransactionIDs) && key == "transactionId" {
		name = strings.ToLower(name)
	}
	return name, nil
}

func (b *Broker) member(at, key string, o object) (string, error) {
	if b.has(EscapesKept) {
		if _, err := o.text(at+".", key); err != nil {
			return "", err
		}
		return strings.Trim(string(o[key]), `"`), nil
	}
	if b.has(ReplaceSurrogates) {
		var name *string
		if err := json.Unmarshal(o[key], &name); err == nil && name != nil {
			return *name, nil
		}
	}
	return o.text(at+".", key)
}

func (b *Broker) store(items []pushItem) []pushResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.call++
	b.spoiled = false
	results := make([]pushResult, len(items))
	fates, winners := b.fates(items), map[string]pushResult{}
	for i := range items {
		n := i
		if b.has(ReverseGroups) {
			n = len(items) - 1 - i
		}
		if f := fates[items[n].lane()]; f != stored {
			results[n] = b.divert(n, items[n], f, winners)
			continue
		}
		results[n] = b.storeItem(n, items[n])
	}
	if !b.has(NoWakeOnPush) {
		b.wake()
	}
	return results
}

func (b *Broker) storeItem(index int, item pushItem) pushResult {
	q := b.queueNamed(item.queue)
	if b.has(FirstQueueOnly) && index > 0 && len(b.order) > 1 {
		q = b.order[len(b.order)-2]
	}
	p := b.partitionNamed(q, item.partition)
	if b.has(SinglePartition) {
		p = b.partitionNamed(q, defaultPartition)
	}
	m := &message{id: newID(), transactionID: item.transactionID, created: b.now(), payload: item.payload, trace: item.trace, producer: item.producer, sub: item.sub, traceParent: item.traceParent, kept: item.kept}
	if item.as != uuid.Nil {
		m.id = item.as
	}
	if b.has(LateCommit) {
		m.hidden = time.Now().Add(100 * time.Millisecond)
	}
	if b.has(NotVersion7) {
		m.id[6] = m.id[6]&0x0f | 0x40
	}
	if m.transactionID == "" {
		m.transactionID = m.id.String()
	}
	result := pushResult{Index: index, TransactionID: m.transactionID, QueueName: q.name}
	if b.has(QueueNameOfFirst) && index > 0 {
		result.QueueName = b.order[0].name
	}
	if b.has(IndexFromOne) {
		result.Index++
	}
	if b.has(LeakPartition) {
		result.Partition = p.name
	}
	original := b.original(p, item.transactionID)
	if b.has(WholeCallDuplicate) && b.spoiled {
		original = m
	}
	if original != nil {
		result.MessageID, result.Status = b.shownID(original), "duplicate"
		b.spoilDuplicate(p, m, original, &result)
		return result
	}
	if b.has(RacyDedup) {
		b.mu.Unlock()
		<-time.After(5 * time.Millisecond) // the gap between probe and insert
		b.mu.Lock()
	}
	if n := len(p.messages); n > 0 && m.created.Before(p.messages[n-1].created) {
		m.created = p.messages[n-1].created
	}
	b.seq++
	m.seq, m.call = b.seq, b.call
	if b.has(EncryptionRewrites) && q.options.booleans["encryptionEnabled"] {
		m.payload = rewritten(m.payload)
	}
	if b.has(RewritePayloads) {
		m.payload = rewritten(m.payload)
	}
	if b.has(CompactPayloads) {
		m.payload = compacted(m.payload)
	}
	p.latest[m.transactionID] = len(p.messages)
	p.messages = append(p.messages, m)
	if b.has(NewestFirst) && len(p.messages) > 1 {
		n := len(p.messages)
		p.messages[n-1], p.messages[n-2] = p.messages[n-2], p.messages[n-1]
	}
	result.MessageID, result.Status = m.id.String(), "queued"
	if b.has(OtherMessageID) {
		result.MessageID = newID().String()
	}
	if b.has(TransactionIDNotEchoed) {
		result.TransactionID = result.MessageID
	}
	if b.has(BufferedStatus) {
		result.Status = "buffered"
	}
	return result
}

// original is the message that makes a push of the transaction id a duplicate; nil when there is none.
func (b *Broker) original(p *partition, transactionID string) *message {
	if transactionID == "" || b.has(NoDedup) {
		return nil
	}
	window := time.Duration(p.queue.options.numbers["dedupWindowSeconds"]) * time.Second
	if b.has(DedupOffByDefault) && !p.queue.configured {
		window = 0
	}
	switch {
	case b.has(WindowIgnored):
		window = 1 << 60
	case b.has(WindowTenfold):
		window *= 10
	case b.has(WindowHalved):
		window /= 2
	case b.has(WindowZeroIsDefault) && window == 0:
		window = time.Hour
	}
	if window == 0 {
		return nil
	}
	scope := []*partition{p}
	if b.has(DedupAcrossPartitions) {
		scope = p.queue.partitions
	}
	if b.has(DedupAcrossQueues) {
		for _, q := range b.order {
			for _, other := range q.partitions {
				if other.name == p.name && other != p {
					scope = append(scope, other)
				}
			}
		}
	}
	for _, p := range scope {
		offset, ok := p.latest[transactionID]
		if !ok {
			continue
		}
		m := p.messages[offset]
		if b.has(DedupForgetsConsumed) && p.consumed(offset) {
			continue
		}
		if b.has(NoDedupInRequest) && m.call == b.call {
			continue
		}
		anchor := m.created
		if b.has(WindowSlides) && m.repeated.After(anchor) {
			anchor = m.repeated
		}
		m.repeated = b.now()
		if b.now().Sub(anchor) < window {
			return m
		}
	}
	return nil
}

// spoilDuplicate applies the defects of duplicates.
func (b *Broker) spoilDuplicate(p *partition, m, original *message, result *pushResult) {
	b.spoiled = true
	switch {
	case b.has(FollowerNewID) && original.call != b.call && original.followed == b.call:
		result.MessageID = m.id.String()
	case b.has(DuplicateNewID):
		result.MessageID = m.id.String()
	case b.has(DuplicateZeroID):
		result.MessageID = "00000000-0000-0000-0000-000000000000"
	case b.has(DuplicateWritten):
		b.seq++
		m.seq = b.seq
		p.messages = append(p.messages, m)
	case b.has(DuplicateOverwrites):
		original.payload = m.payload
	case b.has(DuplicateSaysQueued):
		result.Status = "queued"
	}
	original.followed = b.call
}

func path(array string, index int) string { return fmt.Sprintf("%s[%d]", array, index) }

// rewritten is a payload as an ordinary decoder and encoder leave it; null when they cannot take it.
func rewritten(payload []byte) []byte {
	var value any
	_ = json.Unmarshal(payload, &value)
	text, err := json.Marshal(value)
	if err != nil {
		return []byte("null")
	}
	return text
}

func compacted(payload []byte) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, payload); err != nil {
		return payload
	}
	return b.Bytes()
}

func (p *partition) consumed(offset int) bool {
	for _, c := range p.cursors {
		if c.committed > offset {
			return true
		}
	}
	return false
}
