package reference

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

type popRequest struct {
	queue, partition, namespace, task string
	discovery                         bool
	group                             string
	batch, partitions, leaseSeconds   int
	autoAck, wait                     bool
	timeout                           time.Duration
	mode, from                        string
}

// taking is what one pop takes from one partition: the messages from the cursor up to end.
type taking struct {
	p     *partition
	start int
	end   int
}

func (b *Broker) popQueue(w http.ResponseWriter, r *http.Request, params map[string]string) {
	b.pop(w, r, popRequest{queue: params["queue"]})
}

func (b *Broker) popPartition(w http.ResponseWriter, r *http.Request, params map[string]string) {
	request := popRequest{queue: params["queue"], partition: params["partition"]}
	if b.has(UnknownPartition404) && !b.partitionExists(request) {
		b.writeError(w, &problem{http.StatusNotFound, "partition not found"})
		return
	}
	if b.has(PartitionRouteIgnored) {
		request.partition = ""
	}
	b.pop(w, r, request)
}

func (b *Broker) partitionExists(request popRequest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[request.queue]
	return q != nil && slices.ContainsFunc(q.partitions, func(p *partition) bool { return p.name == request.partition })
}

func (b *Broker) popDiscovery(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	query := r.URL.Query()
	request := popRequest{discovery: true, namespace: query.Get("namespace"), task: query.Get("task")}
	if request.namespace == "" && request.task == "" && !b.has(ScopeOptional) {
		body := map[string]any{"success": false, "error": "namespace or task is required", "messages": []any{}}
		if b.has(ScopeErrorFlat) {
			body = map[string]any{"error": "namespace or task is required"}
		}
		writeJSON(w, http.StatusBadRequest, body)
		return
	}
	b.pop(w, r, request)
}

func (b *Broker) pop(w http.ResponseWriter, r *http.Request, request popRequest) {
	for _, name := range []string{request.queue, request.partition} {
		if err := checkName("x", name, maxName); (err != nil || !utf8.ValidString(name)) && !b.has(PathNamesUnchecked) {
			b.writeError(w, badRequest("bad path: a name breaks its rules"))
			return
		}
	}
	if err := b.parsePop(r.URL.Query(), &request); err != nil {
		b.writeError(w, err)
		return
	}
	if b.paused(false) {
		b.nothing(w)
		return
	}
	body := b.await(r, request)
	if body == nil {
		b.nothing(w)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

func (b *Broker) nothing(w http.ResponseWriter) {
	switch {
	case b.has(EmptyPop200):
		writeJSON(w, http.StatusOK, map[string]any{"success": true, "messages": []any{}})
	case b.has(LengthOn204):
		w.Header().Set("Content-Length", "0")
		if conn, buffer, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = buffer.WriteString("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			_ = buffer.Flush()
			_ = conn.Close()
		}
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// parsePop reads the query parameters. An empty one counts as omitted.
func (b *Broker) parsePop(query url.Values, request *popRequest) error {
	request.batch, request.partitions, request.group, request.mode = 200, 1, modeGroup, "all"
	if b.has(BatchDefault100) {
		request.batch = 100
	}
	if b.has(PartitionsDefaultUncapped) {
		request.partitions = 0
	}
	timeout := 30000
	for name, target := range map[string]*int{
		"batch": &request.batch, "partitions": &request.partitions,
		"leaseSeconds": &request.leaseSeconds, "timeout": &timeout,
	} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		value, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			if b.has(QueryUntyped) {
				continue
			}
			return badRequest("bad query: %s must be an integer", name)
		}
		*target = int(value)
	}
	if request.batch < 1 {
		return badRequest("bad query: batch must be at least 1")
	}
	if !b.has(BatchUnbounded) {
		request.batch = min(request.batch, 10_000)
	}
	if timeout < 0 {
		return badRequest("bad query: timeout must be at least 0")
	}
	request.timeout = time.Duration(timeout) * time.Millisecond
	for name, target := range map[string]*bool{"autoAck": &request.autoAck, "wait": &request.wait} {
		switch text := query.Get(name); text {
		case "", "false", "0", "no":
		case "true", "1", "yes":
			*target = text == "true" || !b.has(BooleansStrict)
		default:
			return badRequest("bad query: %s must be a boolean", name)
		}
	}
	if group := query.Get("consumerGroup"); group != "" {
		if err := checkName("consumerGroup", group, maxName); err != nil && !b.has(GroupUnchecked) {
			return badRequest("bad query: consumerGroup breaks the rules of names")
		}
		request.group = group
		if b.has(ModeGroupApart) && group == modeGroup {
			request.group += " "
		}
	}
	switch mode := query.Get("subscriptionMode"); mode {
	case "":
	case "all", "new", "new-only":
		request.mode = mode
	default:
		return badRequest("bad query: subscriptionMode must be all, new or new-only")
	}
	request.from = query.Get("subscriptionFrom")
	if b.has(FromInvalidRefused) && request.from != "" && request.from != "now" {
		if _, err := time.Parse(time.RFC3339Nano, request.from); err != nil {
			return badRequest("bad query: subscriptionFrom must be a time")
		}
	}
	return nil
}

// await takes at once or, with wait, when there is something to take. It returns nil for nothing.
func (b *Broker) await(r *http.Request, request popRequest) []byte {
	deadline := time.Now().Add(request.timeout)
	if b.has(TimeoutIgnored) {
		deadline = time.Now()
	}

	if request.wait {
		defer b.park(request.queue)()
	}
	b.mu.Lock()
	seeks := b.seeks
	b.mu.Unlock()
	waits := request.wait || b.has(WaitAlways) && request.timeout != 30*time.Second
	var held time.Time // since when a batch that is not full is held
	for {
		if b.paused(true) {
			return nil
		}
		b.mu.Lock()
		b.drainSpool()
		takings := b.find(request)
		if b.has(SeekWakesNobody) && b.seeks != seeks {
			takings = nil
		}
		now := time.Now()
		var hold time.Duration
		if len(takings) > 0 {
			hold = b.hold(request, takings)
			if held.IsZero() {
				held = now
			}
			if now.Sub(held) >= hold || !now.Before(deadline) {
				body := b.take(request, takings)
				b.mu.Unlock()
				return body
			}
		}
		changed := b.changed
		b.mu.Unlock()
		if !waits || !now.Before(deadline) {
			return nil
		}
		// Leases expire without a signal, hence the short nap.
		nap := min(time.Until(deadline), 20*time.Millisecond)
		if b.has(NoWakeOnPush) || b.has(NoWakeOnRelease) || b.has(TransactionWakesNobody) {
			nap = time.Until(deadline)
			if hold > 0 {
				nap = min(nap, time.Until(held.Add(hold)))
			}
		}
		if request.discovery && b.has(ScopeDeaf) {
			nap, changed = time.Until(deadline), nil
		}
		select {
		case <-changed:
		case <-time.After(nap):
		case <-r.Context().Done():
			return nil
		}
		if b.has(WakeAll) {
			select {
			case <-changed:
				return b.popAnyway(request)
			default:
			}
		}
	}
}

// popAnyway is the defect that a push ends every parked pop.
func (b *Broker) popAnyway(request popRequest) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	if takings := b.find(request); len(takings) > 0 {
		return b.take(request, takings)
	}
	return nil
}

// hold is how long a batch that is not full waits for more.
func (b *Broker) hold(request popRequest, takings []taking) time.Duration {
	count, longest := 0, 0
	for _, t := range takings {
		count += t.end - t.start
		longest = max(longest, t.p.queue.options.numbers["minPopWaitTime"])
	}
	if b.has(MinWaitIgnored) {
		return 0
	}
	if b.has(MinWaitAlways) {
		if longest > 0 {
			<-time.After(time.Duration(longest) * time.Millisecond)
		}
		return 0
	}
	if !request.wait || request.batch <= 1 || count >= request.batch {
		return 0
	}
	return time.Duration(longest) * time.Millisecond
}

// scope lists the partitions a pop may take from, and registers the group with their queues.
func (b *Broker) scope(request popRequest) []*partition {
	var queues []*queue
	switch {
	case request.discovery:
		for _, q := range b.order {
			if b.inScope(q, request) {
				queues = append(queues, q)
			}
		}
	case b.has(PopCreatesNothing) && b.queues[request.queue] == nil:
	default:
		queues = append(queues, b.queueNamed(request.queue))
	}
	var partitions []*partition
	for _, q := range queues {
		b.register(q, request)
		for _, p := range q.partitions {
			if request.partition == "" || p.name == request.partition {
				partitions = append(partitions, p)
			}
		}
	}
	return partitions
}

func (b *Broker) inScope(q *queue, request popRequest) bool {
	namespace := request.namespace == "" || q.namespace == request.namespace
	task := request.task == "" || q.task == request.task
	if b.has(ScopePrefix) {
		namespace = request.namespace == "" || len(q.namespace) >= len(request.namespace) &&
			q.namespace[:len(request.namespace)] == request.namespace
	}
	if b.has(ScopeEither) && request.namespace != "" && request.task != "" {
		return namespace || task
	}
	return namespace && task
}

func (b *Broker) register(q *queue, request popRequest) {
	if _, ok := q.groups[request.group]; ok && !b.has(SeedsAgain) {
		return
	}
	var seed registration
	mode, from := request.mode, request.from
	if b.has(SubscriptionIgnored) || request.group == modeGroup && !b.has(QueueModeSeeded) {
		mode, from = "all", ""
	}
	if b.has(StartsNew) && request.group != modeGroup {
		mode = "new"
	}
	if from == "now" && !b.has(FromNowIgnored) || mode != "all" && from == "" {
		seed.after, seed.since = b.seq, b.now()
	} else if t, err := time.Parse(time.RFC3339Nano, from); err == nil && !b.has(FromTimeIgnored) {
		seed.from, seed.since = t, t
	} else if mode != "all" {
		seed.after, seed.since = b.seq, b.now()
	}
	seed.created = b.now()
	if old, ok := q.groups[request.group]; ok {
		seed.created = old.created
	}
	q.groups[request.group] = seed
}

// cursorOf returns the group's cursor of a partition, seeded from its registration when it does not exist yet.
func (b *Broker) cursorOf(p *partition, group string) *cursor {
	if b.has(SharedGroups) {
		group = modeGroup
	}
	if c, ok := p.cursors[group]; ok && !b.has(SeedsAgain) {
		return c
	} else if ok && c.committed > 0 {
		return c
	}
	seed := p.queue.groups[group]
	c := &cursor{attempts: map[int]int{}}
	for c.committed < len(p.messages) {
		m := p.messages[c.committed]
		if m.seq > seed.after && !m.created.Before(seed.from) {
			break
		}
		c.committed++
	}
	if b.has(NewSkipsLaterPartitions) && seed.after > 0 && len(p.messages) > 0 && p.messages[0].seq > seed.after &&
		p.created.After(p.queue.created) && len(p.queue.partitions) > 1 {
		c.committed = len(p.messages)
	}
	return c
}

// find lists what a pop would take now.
func (b *Broker) find(request popRequest) []taking {
	budget := request.batch
	most := request.partitions
	if request.partition != "" || most <= 0 && !b.has(UncappedIsOne) {
		most = 1 << 30
	}
	if b.has(PartitionsIgnored) {
		most = 1
	}
	if b.has(BatchIgnored) {
		budget = 1 << 30
	}
	var takings []taking
	for _, p := range b.scope(request) {
		if budget <= 0 || len(takings) >= max(most, 1) {
			break
		}
		c := b.cursorOf(p, request.group)
		start := max(c.start(b), p.start)
		if start > c.start(b) && b.has(HolesAreEmpty) && p.cursors[b.groupKey(request.group)] == c {
			c.committed = start
			continue
		}
		if start < len(p.messages) && b.live(c.lease) && !b.has(LeaseNotExclusive) {
			if b.has(BlocksOnLease) {
				break
			}
			continue
		}
		end := min(b.visible(p, start), start+budget)
		if end <= start {
			continue
		}
		takings = append(takings, taking{p: p, start: start, end: end})
		if !b.has(BatchPerPartition) {
			budget -= end - start
		}
	}
	return takings
}

func (c *cursor) start(b *Broker) int {
	if b.has(ExpirySkips) && c.lease != nil && !b.live(c.lease) {
		return c.lease.end
	}
	return c.committed
}

// visible is the offset after the last message that may be delivered.
func (b *Broker) visible(p *partition, start int) int {
	end := len(p.messages)
	if start >= end {
		return end
	}
	for end > start && p.messages[end-1].hidden.After(time.Now()) {
		end--
	}
	numbers := p.queue.options.numbers
	if delay := time.Duration(numbers["delayedProcessing"]) * time.Second; delay > 0 && !b.has(DelayIgnored) {
		for end > start && b.now().Sub(p.messages[end-1].created) < delay {
			end--
		}
	}
	quiet := time.Duration(numbers["windowBuffer"]) * time.Second
	full := end-start >= 100 && !b.has(WindowBufferNeverFull)
	if quiet > 0 && !full && !b.has(WindowBufferIgnored) && b.now().Sub(p.messages[len(p.messages)-1].created) < quiet {
		return start
	}
	return end
}

// poppedMessage has everything of a message but its payload, which is spliced in.
type poppedMessage struct {
	ID              string  `json:"id"`
	TransactionID   string  `json:"transactionId"`
	TraceID         *string `json:"traceId"`
	ProducerSub     *string `json:"producerSub"`
	TraceParent     string  `json:"traceparent,omitempty"`
	CreatedAt       string  `json:"createdAt"`
	PartitionID     string  `json:"partitionId"`
	Partition       string  `json:"partition"`
	LeaseID         string  `json:"leaseId"`
	ConsumerGroup   string  `json:"consumerGroup"`
	Queue           string  `json:"queue"`
	DeliveryAttempt int     `json:"deliveryAttempt"`
}

// take leases or commits what find found, and returns the body of the answer.
func (b *Broker) take(request popRequest, takings []taking) []byte {
	leaseID := uuid.NewString()
	if request.autoAck && !b.has(AutoAckNamesLease) {
		leaseID = ""
	}
	var messages []json.RawMessage
	for _, t := range takings {
		if b.has(LeasePerPartition) && !request.autoAck {
			leaseID = uuid.NewString()
		}
		c := b.cursorOf(t.p, request.group)
		t.p.cursors[b.groupKey(request.group)] = c
		c.touched = b.now()
		expired := c.lease != nil
		b.lease(c, t, request, leaseID)
		if expired && b.has(ExpiryCharges) {
			c.retries++
		}
		for offset := t.start; offset < t.end; offset++ {
			if !b.has(AttemptConstant) || c.attempts[offset] == 0 {
				c.attempts[offset]++
			}
			messages = append(messages, b.render(t.p, offset, c.attempts[offset], leaseID, request))
		}
	}
	if b.has(ReverseMessages) {
		slices.Reverse(messages)
	}
	if b.has(InterleavePartitions) && len(takings) > 1 && len(messages) > 2 {
		last := len(messages) - 1
		messages[1], messages[last] = messages[last], messages[1]
	}
	first := takings[0].p
	if b.has(AnswerNamesLast) {
		first = takings[len(takings)-1].p
	}
	answer := map[string]any{
		"success": true, "queue": request.queue, "partition": first.name, "partitionId": first.id.String(),
		"leaseId": leaseID, "consumerGroup": request.group, "partitionsClaimed": len(takings),
	}
	if request.discovery && b.has(DiscoveryNamesQueue) {
		answer["queue"] = first.queue.name
	}
	if b.has(ClaimsMiscounted) {
		answer["partitionsClaimed"] = len(messages)
	}
	head, err := json.Marshal(answer)
	if err != nil {
		panic(err) // only strings and numbers
	}
	var body bytes.Buffer
	body.Write(head[:len(head)-1])
	body.WriteString(`,"messages":[`)
	for i, message := range messages {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(message)
	}
	body.WriteString("]}\n")
	return body.Bytes()
}

func (b *Broker) groupKey(group string) string {
	if b.has(SharedGroups) {
		return modeGroup
	}
	return group
}

func (b *Broker) lease(c *cursor, t taking, request popRequest, leaseID string) {
	if request.autoAck {
		if !b.has(AutoAckForgets) {
			c.committed = t.end
			c.lease = nil
		}
		return
	}
	seconds := request.leaseSeconds
	if seconds == 0 || seconds < 0 && !b.has(LeaseNegativeIsOne) {
		seconds = t.p.queue.options.numbers["leaseTime"]
	}
	if b.has(LeaseSecondsIgnored) {
		seconds = t.p.queue.options.numbers["leaseTime"]
	}
	if seconds == 0 && !b.has(LeaseTimeZeroHolds) {
		seconds = implicitLease
	}
	if b.has(QueueLeaseIgnored) && request.leaseSeconds <= 0 {
		seconds = 60
	}
	c.lease = &lease{id: leaseID, end: t.end, expires: b.now().Add(time.Duration(max(seconds, 1)) * time.Second)}
	if b.has(LeaseForever) {
		c.lease.expires = b.now().Add(1000000 * time.Hour)
	}
}

func (b *Broker) render(p *partition, offset, attempt int, leaseID string, request popRequest) json.RawMessage {
	m := p.messages[offset]
	popped := poppedMessage{
		ID: m.id.String(), TransactionID: m.transactionID, CreatedAt: iso(m.created), PartitionID: p.id.String(),
		Partition: p.name, LeaseID: leaseID, ConsumerGroup: request.group, Queue: p.queue.name, DeliveryAttempt: attempt,
		TraceParent: m.traceParent,
	}
	if m.sub != "" && !b.has(ProducerSubDropped) {
		popped.ProducerSub = &m.sub
	}
	b.spoilMessage(&popped, m)
	head, err := json.Marshal(popped)
	if err != nil {
		panic(err) // only strings and numbers
	}
	text := make([]byte, 0, len(head)+len(m.payload)+8)
	text = append(text, head[:len(head)-1]...)
	text = append(text, `,"data":`...)
	text = append(text, m.payload...)
	return append(text, '}')
}

// spoilMessage applies the defects of popped messages.
func (b *Broker) spoilMessage(popped *poppedMessage, m *message) {
	if m.kept != "" {
		popped.TraceID = &m.kept
	}
	if b.has(TraceIDKept) && m.trace != "" {
		popped.TraceID = &m.trace
	}
	if b.has(ProducerSubKept) && m.producer != "" {
		popped.ProducerSub = &m.producer
	}
	if b.has(CreatedAtMilliseconds) {
		popped.CreatedAt = m.created.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if b.has(CreatedAtWrong) {
		popped.CreatedAt = iso(m.created.Add(-time.Hour))
	}
	if b.has(PartitionIDPerPop) {
		popped.PartitionID = uuid.NewString()
	}
	if b.has(LeaseMissingOnMessage) {
		popped.LeaseID = ""
	}
	if b.has(MessageNamesOtherQueue) {
		popped.Queue = "other"
	}
	if b.has(MessageNamesModeGroup) {
		popped.ConsumerGroup = modeGroup
	}
}
