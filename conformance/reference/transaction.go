package reference

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/google/uuid"
)

// operation is one push of one item, or one ack.
type operation struct {
	push *pushItem
	ack  *ackItem
	// Of an ack:
	group  string
	number int // of the operation that it came in
}

// transaction answers POST /api/v1/transaction.
func (b *Broker) transaction(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	id := newID().String()
	if b.has(TransactionIDConstant) {
		id = "0198f2c1-6a01-7b11-8c22-2b3c4d5e6f70"
	}
	body, err := b.readBody(r)
	var operations []operation
	var leases []string
	if err == nil {
		operations, leases, err = b.parseTransaction(body)
	}
	if err != nil {
		if b.has(TransactionPartialBad) {
			_, _ = b.transact(operations, leases)
		}
		b.refuseTransaction(w, id, err)
		return
	}
	if len(operations) == 0 && b.has(TransactionEmptyRefused) {
		b.refuseTransaction(w, id, badBody("operations must not be empty"))
		return
	}
	results, err := b.transact(operations, leases)
	if err != nil {
		writeJSON(w, http.StatusOK, map[string]any{"transactionId": id, "success": false, "error": err.Error(), "results": []any{}})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"transactionId": id, "success": true, "results": results})
}

func (b *Broker) refuseTransaction(w http.ResponseWriter, id string, err error) {
	var p *problem
	if !errors.As(err, &p) || p.status != http.StatusBadRequest || b.has(TransactionFlatErrors) {
		b.writeError(w, err)
		return
	}
	writeJSON(w, p.status, map[string]any{"transactionId": id, "success": false, "error": p.text, "results": []any{}})
}

// parseTransaction checks the whole body. With an error it returns the operations before the one that broke a rule.
func (b *Broker) parseTransaction(body []byte) (operations []operation, leases []string, err error) {
	o, err := b.parseObject(body)
	if err != nil {
		return nil, nil, err
	}
	if o["operations"] == nil && b.has(TransactionOperationsOptional) {
		return nil, nil, nil
	}
	var list, required []json.RawMessage
	if err := json.Unmarshal(o["operations"], &list); err != nil || list == nil {
		return nil, nil, badBody("operations must be an array")
	}
	if err := json.Unmarshal(o["requiredLeases"], &required); err != nil && !null(o["requiredLeases"]) {
		return nil, nil, badBody("requiredLeases must be an array")
	}
	for _, raw := range required {
		var lease string
		if json.Unmarshal(raw, &lease) == nil && lease != "" && !slices.Contains(leases, lease) {
			leases = append(leases, lease)
		}
	}
	for i, raw := range list {
		parsed, err := b.parseOperation(i, raw)
		operations = append(operations, parsed...)
		if err != nil {
			return operations, leases, err
		}
	}
	return operations, leases, nil
}

func (b *Broker) parseOperation(number int, raw json.RawMessage) ([]operation, error) {
	at := path("operations", number)
	o, err := b.members(raw)
	if err != nil || o == nil {
		return nil, badBody("%s must be an object", at)
	}
	kind, err := o.text(at+".", "type")
	if err != nil {
		return nil, err
	}
	switch {
	case kind == "ack":
		ack, err := b.parseAck(at+".", o)
		if err != nil && b.has(TransactionAckUnchecked) {
			err = nil
		}
		if err != nil {
			return nil, err
		}
		group, err := b.ackGroup(o)
		if b.has(TransactionGroupIgnored) {
			group = modeGroup
		}
		return []operation{{ack: &ack, group: group, number: number}}, err
	case kind != "push":
		return nil, badBody("%s.type must be one of push, ack", at)
	case null(o["items"]):
		if b.has(TransactionFlatIgnored) {
			return nil, nil
		}
		item, err := b.parseTransactionItem(at, raw)
		if err != nil {
			return nil, err
		}
		return []operation{{push: &item, number: number}}, nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(o["items"], &list); err != nil {
		return nil, badBody("%s.items must be an array", at)
	}
	var operations []operation
	for i, raw := range list {
		item, err := b.parseTransactionItem(at+"."+path("items", i), raw)
		if err != nil {
			return operations, err
		}
		operations = append(operations, operation{push: &item, number: number})
	}
	return operations, nil
}

// parseTransactionItem is a pushed item with two differences: data stands in for payload, and traceId is read.
func (b *Broker) parseTransactionItem(at string, raw json.RawMessage) (pushItem, error) {
	o, err := b.members(raw)
	if err != nil || o == nil {
		return pushItem{}, badBody("%s must be an object", at)
	}
	item := pushItem{payload: o["payload"]}
	if item.payload == nil && !b.has(TransactionDataRefused) {
		item.payload = o["data"]
	}
	if item.payload == nil && b.has(TransactionItemUnchecked) {
		item.payload = []byte("null")
	}
	if item.payload == nil {
		return item, badBody("%s.payload is missing", at)
	}
	if b.has(TransactionRewrites) {
		item.payload = rewritten(item.payload)
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
	if item.kept, err = o.optionalText(at+".", "traceId"); err != nil {
		return item, err
	}
	if _, err := uuid.Parse(item.kept); item.kept != "" && err != nil {
		return item, badBody("%s.traceId must be a UUID", at)
	}
	if b.has(TransactionTraceDropped) {
		item.kept = ""
	}
	return item, nil
}

// transact carries out all operations or none.
func (b *Broker) transact(operations []operation, leases []string) ([]map[string]any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	restore := b.snapshot()
	results, err := b.carryOut(operations, leases)
	if err != nil {
		restore()
		return nil, err
	}
	if !b.has(TransactionWakesNobody) {
		b.wake()
	}
	return results, nil
}

func (b *Broker) carryOut(operations []operation, leases []string) ([]map[string]any, error) {
	b.call++
	bundle := map[string]string{} // the first message id of each partition and transaction id
	results := []map[string]any{}
	last, within := -1, 0
	for i, op := range operations {
		index := i
		if b.has(TransactionIndexPerOperation) {
			if op.number != last {
				last, within = op.number, 0
			}
			index = within
			within++
		}
		if op.push != nil {
			result, err := b.transactPush(*op.push, bundle)
			if err != nil {
				return nil, err
			}
			result["index"] = index
			results = append(results, result)
			continue
		}
		results = append(results, map[string]any{"index": index, "type": "ack", "success": true, "transactionId": op.ack.transactionID})
	}
	if err := b.transactAcks(operations, leases, results); err != nil {
		return nil, err
	}
	return results, nil
}

func (b *Broker) transactPush(item pushItem, bundle map[string]string) (map[string]any, error) {
	q := b.queueNamed(item.queue)
	p := b.partitionNamed(q, item.partition)
	key := p.id.String() + " " + item.transactionID
	original := b.original(p, item.transactionID)
	first, repeated := bundle[key]
	repeated = repeated && original != nil
	if original != nil && (!repeated || b.has(TransactionBundleDuplicateFails)) && !b.has(TransactionDuplicateDropped) {
		return nil, fmt.Errorf("QDUP transactionId %q was pushed before", item.transactionID)
	}
	result := map[string]any{"type": "push", "success": true, "queueName": q.name}
	id := "messageId"
	if b.has(TransactionSnakeCase) {
		id = "message_id"
	}
	if repeated {
		result[id], result["transactionId"], result["duplicate"] = first, item.transactionID, true
		if b.has(TransactionFollowerNewID) {
			result[id] = newID().String()
		}
		return result, nil
	}
	stored := b.storeItem(0, item)
	if item.transactionID != "" {
		bundle[key] = stored.MessageID
	}
	if b.has(TransactionForgotten) {
		delete(p.latest, stored.TransactionID)
	}
	result[id], result["transactionId"] = stored.MessageID, stored.TransactionID
	return result, nil
}

// transactAcks carries out the acks: those of one partition, group and lease together.
func (b *Broker) transactAcks(operations []operation, leases []string, results []map[string]any) error {
	type unit struct{ partition, group, lease string }
	indexes := map[unit][]int{}
	items := make([]ackItem, len(operations))
	var order []unit
	for i, op := range operations {
		if op.ack == nil || b.has(TransactionAckIgnored) || b.has(TransactionFirstAckOnly) && len(order) == 1 {
			continue
		}
		items[i] = *op.ack
		u := unit{op.ack.partitionID, op.group, b.leaseOf(op, leases)}
		if indexes[u] == nil {
			order = append(order, u)
		}
		indexes[u] = append(indexes[u], i)
	}
	answers := make([]ackResult, len(operations))
	for _, u := range order {
		b.ackGroupOf(u.group, u.partition, u.lease, indexes[u], items, answers)
		for _, i := range indexes[u] {
			if answers[i].Error != nil && !b.has(TransactionRejectedSucceeds) {
				return fmt.Errorf("QTXN ack of transactionId %q: %s", items[i].transactionID, *answers[i].Error)
			}
			if b.has(TransactionNackRefused) && items[i].verb != complete {
				return fmt.Errorf("QTXN ack of transactionId %q: negative acknowledgment", items[i].transactionID)
			}
		}
	}
	for i, op := range operations {
		if op.ack == nil || b.has(TransactionAckBare) {
			continue
		}
		results[i]["error"] = nil
		results[i]["dlq"] = answers[i].DLQ && !b.has(TransactionDLQNotTold)
	}
	return nil
}

// leaseOf is the lease that an ack is made under, "" when none is asked for.
func (b *Broker) leaseOf(op operation, leases []string) string {
	if op.ack.leaseID != "" {
		return op.ack.leaseID
	}
	required := ""
	if len(leases) == 1 || len(leases) > 1 && b.has(TransactionFirstRequired) {
		required = leases[0]
	}
	if b.has(TransactionRequiredIgnored) {
		required = ""
	}
	id, _ := uuid.Parse(op.ack.partitionID)
	if p := b.partitions[id]; p != nil && !b.has(TransactionHolderIgnored) {
		if c := p.cursors[b.groupKey(op.group)]; c != nil && b.live(c.lease) {
			return ""
		}
	}
	return required
}

// snapshot returns what puts all partitions back to where they are now.
func (b *Broker) snapshot() func() {
	type state struct {
		messages []*message
		latest   map[string]int
		cursors  map[string]*cursor
	}
	states := map[*partition]state{}
	for _, p := range b.partitions {
		s := state{slices.Clone(p.messages), maps.Clone(p.latest), map[string]*cursor{}}
		for group, c := range p.cursors {
			kept := *c
			kept.attempts = maps.Clone(c.attempts)
			if c.lease != nil {
				lease := *c.lease
				kept.lease = &lease
			}
			s.cursors[group] = &kept
		}
		states[p] = s
	}
	return func() {
		for _, p := range b.partitions {
			s, existed := states[p]
			if !existed {
				s = state{latest: map[string]int{}, cursors: map[string]*cursor{}}
			}
			if !b.has(TransactionKeepsPushes) {
				p.messages, p.latest = s.messages, s.latest
			}
			if !b.has(TransactionKeepsAcks) {
				p.cursors = s.cursors
			}
		}
	}
}
