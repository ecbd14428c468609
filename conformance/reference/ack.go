package reference

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

type ackItem struct {
	transactionID, partitionID, leaseID string
	reason                              string
	verb                                verb
}

// verb is what an ack asks for. At one offset the larger one wins.
type verb int

const (
	complete verb = iota
	retry
	nack
	deadLetter
)

// ackResult has its keys in the order of the wire.
type ackResult struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
}

func (r *ackResult) refuse(text string) { r.Success, r.Error = false, &text }

func (b *Broker) ackOne(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	o, err := b.ackBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	item, err := b.parseAck("", o)
	if err != nil {
		b.writeError(w, err)
		return
	}
	group, err := b.ackGroup(o)
	if err != nil {
		b.writeError(w, err)
		return
	}
	results := b.ack(group, []ackItem{item})
	if b.has(SingleAckObject) {
		writeJSON(w, http.StatusOK, results[0])
		return
	}
	b.writeAcks(w, results)
}

func (b *Broker) writeAcks(w http.ResponseWriter, results []ackResult) {
	if !b.has(AckErrorOmitted) {
		writeJSON(w, http.StatusOK, results)
		return
	}
	bare := make([]map[string]any, len(results))
	for i, r := range results {
		bare[i] = map[string]any{
			"index": r.Index, "transactionId": r.TransactionID, "success": r.Success,
			"leaseReleased": r.LeaseReleased, "dlq": r.DLQ, "noop": r.Noop,
		}
		if r.Error != nil {
			bare[i]["error"] = *r.Error
		}
	}
	writeJSON(w, http.StatusOK, bare)
}

func (b *Broker) ackBody(r *http.Request) (object, error) {
	body, err := b.readBody(r)
	if err != nil {
		return nil, err
	}
	return b.parseObject(body)
}

func (b *Broker) ackBatch(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	o, err := b.ackBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	var list []json.RawMessage
	if o["acknowledgments"] == nil && !b.has(AcknowledgmentsOptional) {
		b.writeError(w, badBody("acknowledgments is missing"))
		return
	}
	if err := json.Unmarshal(o["acknowledgments"], &list); (err != nil || list == nil) && !b.has(AcknowledgmentsOptional) {
		b.writeError(w, badBody("acknowledgments must be an array"))
		return
	}
	if len(list) == 0 && b.has(EmptyBatchRefused) {
		b.writeError(w, badBody("acknowledgments must not be empty"))
		return
	}
	group, err := b.ackGroup(o)
	if err != nil {
		b.writeError(w, err)
		return
	}
	items := make([]ackItem, 0, len(list))
	for i, raw := range list {
		at := path("acknowledgments", i)
		var member object
		if err := json.Unmarshal(raw, &member); err != nil || member == nil {
			b.writeError(w, badBody("%s must be an object", at))
			return
		}
		item, err := b.parseAck(at+".", member)
		if err != nil {
			if b.has(PartialBadAck) {
				b.ack(group, items)
			}
			b.writeError(w, err)
			return
		}
		if b.has(ItemGroupRead) && !null(member["consumerGroup"]) {
			group, _ = member.optionalText(at, "consumerGroup")
		}
		items = append(items, item)
	}
	b.writeAcks(w, b.ack(group, items))
}

func (b *Broker) ackGroup(o object) (string, error) {
	group, err := o.optionalText("", "consumerGroup")
	if err != nil {
		return "", err
	}
	if err := checkName("consumerGroup", group, maxName); err != nil {
		return "", err
	}
	switch {
	case group != "" && !b.has(AckGroupIgnored):
		return group, nil
	case b.has(AckGroupDefaultOther):
		return "default", nil
	default:
		return modeGroup, nil
	}
}

func (b *Broker) parseAck(at string, o object) (ackItem, error) {
	var item ackItem
	for key, target := range map[string]*string{"transactionId": &item.transactionID, "partitionId": &item.partitionID} {
		if o[key] == nil && b.has(AckFieldsOptional) {
			continue
		}
		if o[key] == nil {
			return item, badBody("%s%s is missing", at, key)
		}
		var err error
		if *target, err = o.text(at, key); err != nil {
			return item, err
		}
	}
	if id, err := uuid.Parse(item.partitionID); err == nil && b.has(UnknownPartitionFails) {
		b.mu.Lock()
		known := b.partitions[id] != nil
		b.mu.Unlock()
		if !known {
			return item, badBody("%spartitionId names no partition", at)
		}
	}
	if b.has(PartitionIDChecked) {
		if _, err := uuid.Parse(item.partitionID); err != nil {
			return item, badBody("%spartitionId must be a UUID", at)
		}
	}
	read := o.optionalText
	if b.has(NullRefused) {
		read = o.text
	}
	status, err := read(at, "status")
	if err != nil {
		return item, err
	}
	if item.leaseID, err = read(at, "leaseId"); err != nil {
		return item, err
	}
	if item.reason, err = read(at, "error"); err != nil {
		return item, err
	}
	item.verb = b.verbOf(status, !null(o["status"]))
	return item, nil
}

func (b *Broker) verbOf(status string, given bool) verb {
	if b.has(StatusFolded) {
		status = strings.ToLower(status)
	}
	if !given {
		return complete
	}
	switch status {
	case "completed", "success", "acked":
		return complete
	case "ok":
		if b.has(OKMeansFailed) {
			return nack
		}
		return complete
	case "retry":
		if b.has(RetryCharges) {
			return nack
		}
		return retry
	case "dlq":
		if b.has(DLQMeansFailed) {
			return nack
		}
		return deadLetter
	case "":
		if b.has(EmptyStatusCompletes) {
			return complete
		}
		return nack
	default:
		return nack
	}
}

// resolved is an ack item whose message was found.
type resolved struct {
	index  int
	offset int
	verb   verb
	reason string
}

func (b *Broker) ack(group string, items []ackItem) []ackResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	results := make([]ackResult, len(items))
	type key struct{ partition, lease string }
	groups := map[key][]int{}
	var order []key
	for i, item := range items {
		results[i] = ackResult{Index: i, TransactionID: item.transactionID}
		k := key{item.partitionID, item.leaseID}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], i)
	}
	refused := false
	for _, k := range order {
		if refused && b.has(BatchStopsAtRefusal) {
			for _, i := range groups[k] {
				results[i].refuse("an earlier group was refused")
			}
			continue
		}
		b.ackGroupOf(group, k.partition, k.lease, groups[k], items, results)
		refused = refused || !results[groups[k][0]].Success
	}
	if !b.has(NoWakeOnRelease) {
		b.wake()
	}
	if b.has(ReverseAckResults) {
		for i, j := 0, len(results)-1; i < j; i, j = i+1, j-1 {
			results[i], results[j] = results[j], results[i]
		}
	}
	return results
}

// ackGroupOf carries out the items of one (partition, lease).
func (b *Broker) ackGroupOf(group, partitionID, leaseID string, indexes []int, items []ackItem, results []ackResult) {
	refuse := func(text string) {
		for _, i := range indexes {
			results[i].refuse(text)
		}
	}
	id, err := uuid.Parse(partitionID)
	if err != nil {
		refuse("unresolvable partitionId: not a UUID")
		return
	}
	p := b.partitions[id]
	if p == nil {
		refuse("consumer not found")
		return
	}
	c := p.cursors[b.groupKey(group)]
	if c == nil {
		if b.has(ConsumerInvented) {
			c = &cursor{attempts: map[int]int{}}
			p.cursors[group] = c
		} else {
			refuse("consumer not found")
			return
		}
	}
	if leaseID == "" && b.has(LeaseRequired) || leaseID != "" && !b.holds(c, leaseID) {
		refuse("invalid or expired lease")
		if b.has(LeaseErrorMoves) {
			for _, i := range indexes {
				if offset, ok := b.resolve(p, c, items[i].transactionID); ok {
					c.committed = max(c.committed, offset+1)
				}
			}
		}
		return
	}
	var found []resolved
	for _, i := range indexes {
		if offset, ok := b.resolve(p, c, items[i].transactionID); ok {
			found = append(found, resolved{index: i, offset: offset, verb: items[i].verb, reason: items[i].reason})
			continue
		}
		if b.has(UnresolvableSucceeds) {
			results[i].Success = true
			continue
		}
		results[i].refuse("unresolvable transactionId")
		if b.has(UnresolvableReleases) {
			c.lease = nil
		}
	}
	b.settle(p, c, found, results)
}

func (b *Broker) holds(c *cursor, leaseID string) bool {
	if b.has(LeaseNotFenced) {
		return true
	}
	if c.lease == nil || c.lease.id != leaseID {
		return false
	}
	return b.live(c.lease) || b.has(ExpiredLeaseAccepted)
}

// resolve finds the offset of a transaction id: in the leased batch if it is there, else its last one.
func (b *Broker) resolve(p *partition, c *cursor, transactionID string) (int, bool) {
	at := -1
	for offset, m := range p.messages {
		if m.transactionID != transactionID {
			continue
		}
		at = offset
		if c.lease != nil && offset >= c.committed && offset < c.lease.end {
			break
		}
	}
	if at < 0 {
		return 0, false
	}
	numbers := p.queue.options.numbers
	window := max(time.Duration(numbers["dedupWindowSeconds"])*time.Second,
		time.Duration(numbers["completedRetentionSeconds"])*time.Second, resolveFloor)
	if b.has(ResolvesForDedupOnly) {
		window = time.Duration(numbers["dedupWindowSeconds"]) * time.Second
	}
	if b.now().Sub(p.messages[at].created) >= window {
		return 0, false
	}
	return at, true
}

// settle judges the items of one (partition, lease) together.
func (b *Broker) settle(p *partition, c *cursor, found []resolved, results []ackResult) {
	before := c.committed
	c.touched = b.now()
	lowest, highest := -1, -1 // indexes into found: the negative item that bounds, the completion that commits
	for i, item := range found {
		result := &results[item.index]
		if item.offset < before {
			b.behind(item, result)
			continue
		}
		if item.verb == complete || b.has(NackIgnored) {
			continue
		}
		if lowest < 0 || item.offset < found[lowest].offset ||
			item.offset == found[lowest].offset && item.verb > found[lowest].verb && !b.has(FirstVerbWins) {
			lowest = i
		}
		if b.has(HighestNackClamps) && item.offset > found[lowest].offset {
			lowest = i
		}
	}
	for i, item := range found {
		if item.offset < before || item.verb != complete && !b.has(NackIgnored) {
			continue
		}
		if lowest >= 0 && item.offset >= found[lowest].offset && !b.has(CompletionBeatsNack) {
			continue
		}
		if highest < 0 || item.offset > found[highest].offset {
			highest = i
		}
	}
	if b.has(OrderMatters) && len(found) > 0 {
		highest = len(found) - 1
		if found[highest].verb != complete {
			highest = -1
		}
	}
	if highest >= 0 {
		c.committed = max(c.committed, found[highest].offset+1)
		b.spoilOthers(p, c)
		if b.has(NotPrefix) {
			b.leaveGap(p, c, before, found[highest].offset)
		}
	}
	for i, item := range found {
		if item.offset >= before {
			b.report(item, i, lowest, found, &results[item.index])
		}
	}
	beaten := b.has(CompletionBeatsNack) && highest >= 0 && lowest >= 0 && found[highest].offset > found[lowest].offset
	if lowest >= 0 && !beaten {
		b.refuseMessage(p, c, found[lowest], lowest, found, results)
		return
	}
	if highest >= 0 && c.lease != nil {
		b.commitLease(c, found[highest], results)
	}
}

// spoilOthers applies the defects that a commit moves cursors of others.
func (b *Broker) spoilOthers(p *partition, c *cursor) {
	if b.has(AckMovesAllGroups) {
		for _, other := range p.cursors {
			other.committed = max(other.committed, c.committed)
		}
	}
	if b.has(AckMovesAllPartitions) {
		for _, other := range p.queue.partitions {
			for _, cursor := range other.cursors {
				if other != p {
					cursor.committed, cursor.lease = len(other.messages), nil
				}
			}
		}
	}
}

// behind answers an item whose message is committed already.
func (b *Broker) behind(item resolved, result *ackResult) {
	if item.verb == complete {
		result.Success, result.Noop = true, true
		if b.has(NoopNotReported) {
			result.Noop = false
		}
		if b.has(NoopRefused) {
			result.Noop = false
			result.refuse("already committed")
		}
		return
	}
	if b.has(LateNackAccepted) {
		result.Success = true
		return
	}
	result.refuse("already committed")
}

func (b *Broker) report(item resolved, at, lowest int, found []resolved, result *ackResult) {
	result.Success = true
	if lowest < 0 || at == lowest {
		return
	}
	bound := found[lowest].offset
	superseded := item.offset > bound && (item.verb == complete || item.verb == deadLetter) ||
		item.offset == bound && item.verb == complete
	if superseded && !b.has(SupersededNotTold) {
		result.refuse("not committed: an earlier message of this partition was not completed")
	}
	if b.has(LaterNackRefused) && item.offset > bound && item.verb != complete {
		result.refuse("not committed: an earlier message of this partition was not completed")
	}
}

// leaveGap is the defect that an ack commits its message only: the ones before it go to the end of the partition.
func (b *Broker) leaveGap(p *partition, c *cursor, from, to int) {
	c.committed = from
	c.lease = nil
	if from < to {
		p.messages[from], p.messages[to] = p.messages[to], p.messages[from]
		c.committed = from + 1
	} else {
		c.committed = to + 1
	}
}

// refuseMessage carries out the lowest negative item.
func (b *Broker) refuseMessage(p *partition, c *cursor, item resolved, at int, found []resolved, results []ackResult) {
	result := &results[item.index]
	if item.verb == deadLetter && p.messages[item.offset].removed && !b.has(RemovedDeadLettered) {
		for _, other := range found {
			results[other.index].refuse("dlq rejected: the payload is gone")
		}
		return
	}
	c.committed = max(c.committed, item.offset)
	if b.has(NackRedeliversBatch) && c.lease != nil {
		c.committed = min(c.committed, max(0, item.offset-1))
	}
	numbers, booleans := p.queue.options.numbers, p.queue.options.booleans
	hasDLQ := booleans["deadLetterQueue"] || booleans["dlqAfterMaxRetries"]
	if b.has(DLQOptionsAnded) {
		hasDLQ = booleans["deadLetterQueue"] && booleans["dlqAfterMaxRetries"]
	}
	if b.has(DLQAlways) {
		hasDLQ = true
	}
	limit := numbers["retryLimit"]
	if b.has(LimitOffByOne) {
		limit--
	}
	if b.has(LimitZeroIsThree) && limit == 0 {
		limit = 3
	}
	charged := c.retries
	switch item.verb {
	case deadLetter:
		b.discard(p, c, item, true, charged, result)
	case nack:
		c.retries++
		if b.has(ChargePerItem) {
			for i, other := range found {
				if i != at && other.verb == nack {
					c.retries++
				}
			}
		}
		if b.has(BudgetPerMessage) {
			c.retries = c.attempts[item.offset]
		}
		if b.has(BudgetPerPartition) {
			for _, other := range p.cursors {
				other.retries = max(other.retries, c.retries)
			}
		}
		if c.retries > limit && !b.has(BudgetEndless) {
			b.discard(p, c, item, hasDLQ, charged, result)
		}
	case retry, complete:
	}
	if !b.has(NackKeepsLease) {
		c.lease = nil
		result.LeaseReleased = !b.has(NackReleaseNotTold)
	}
	if b.has(NackIsFailure) {
		result.refuse("negative acknowledgement")
	}
	if b.has(ReleasedOnAll) {
		for _, other := range found {
			results[other.index].LeaseReleased = true
			results[other.index].DLQ = result.DLQ
		}
	}
}

// discard moves the cursor past a message that is not to be delivered again.
func (b *Broker) discard(p *partition, c *cursor, item resolved, filed bool, charged int, result *ackResult) {
	if !b.has(DeadLetterStays) {
		c.committed = item.offset + 1
	}
	if b.has(DeadLetterTakesTail) && c.lease != nil {
		c.committed = c.lease.end
	}
	c.retries = 0
	if filed {
		b.file(p, c, item.offset, charged, item.reason)
	}
	result.DLQ = filed && !b.has(DLQNotReported)
}

// commitLease releases the lease when the cursor has reached its end.
func (b *Broker) commitLease(c *cursor, item resolved, results []ackResult) {
	full := c.committed >= c.lease.end
	if !full && !b.has(PartialReleases) {
		return
	}
	if full && b.has(FullKeepsLease) {
		return
	}
	if !b.has(BudgetNotReset) {
		c.retries = 0
	}
	c.lease = nil
	results[item.index].LeaseReleased = true
}

// extend renews every live lease with the id.
func (b *Broker) extend(w http.ResponseWriter, r *http.Request, params map[string]string) {
	seconds := 60
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	o, err := b.parseObject(body)
	if err != nil && b.has(ExtendBodyChecked) {
		b.writeError(w, err)
		return
	}
	if raw := o["seconds"]; raw != nil {
		if value, err := strconv.ParseInt(string(raw), 10, 32); err == nil {
			seconds = int(value)
		}
	}
	if seconds < 1 && b.has(ExtendZeroIsDefault) {
		seconds = 60
	}
	if b.has(ExtendSecondsIgnored) {
		seconds = 60
	}
	seconds = max(seconds, 1)
	if !b.has(ExtendUnbounded) {
		seconds = min(seconds, 31_536_000)
	}
	if len(o) == 0 && b.has(ExtendDefault30) {
		seconds = 30
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	var (
		renewed  int
		earliest time.Time
	)
	for _, p := range b.partitions {
		for _, c := range p.cursors {
			if c.lease == nil || c.lease.id != params["leaseId"] || !b.live(c.lease) && !b.has(ExtendRevives) {
				continue
			}
			if b.has(ExtendFirstOnly) && renewed == 1 {
				continue
			}
			if expires := b.now().Add(time.Duration(seconds) * time.Second); expires.After(c.lease.expires) || b.has(ExtendShortens) {
				c.lease.expires = expires
			}
			if b.has(ExtendOnlySays) {
				c.lease.expires = c.lease.expires.Add(-time.Duration(seconds) * time.Second)
			}
			renewed++
			if earliest.IsZero() || c.lease.expires.Before(earliest) {
				earliest = c.lease.expires
			}
		}
	}
	var expires any
	if renewed > 0 {
		expires = iso(earliest)
	}
	if renewed == 0 && b.has(ExtendUnknown404) {
		b.writeError(w, &problem{http.StatusNotFound, "lease not found"})
		return
	}
	answer := map[string]any{
		"leaseId": params["leaseId"], "success": renewed > 0, "renewed": renewed,
		"newExpiresAt": expires, "expiresAt": expires, "lease_expires_at": expires,
	}
	if b.has(ExtendNamesDiffer) && renewed > 0 {
		answer["lease_expires_at"] = iso(earliest.Add(time.Second))
	}
	if b.has(ExtendUnknownSucceeds) {
		answer["success"] = true
	}
	writeJSON(w, http.StatusOK, answer)
}
