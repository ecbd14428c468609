package reference

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const groupsPath = "/api/v1/consumer-groups"

func (b *Broker) groupTable() []route {
	return []route{
		{"GET", groupsPath, b.listConsumerGroups},
		{"GET", groupsPath + "/lagging", b.laggingPartitions},
		{"GET", groupsPath + "/{group}", b.getConsumerGroup},
		{"DELETE", groupsPath + "/{group}", b.deleteConsumerGroup},
		{"POST", groupsPath + "/{group}/subscription", b.subscribe},
		{"DELETE", groupsPath + "/{group}/queues/{queue}", b.deleteConsumerGroup},
		{"POST", groupsPath + "/{group}/queues/{queue}/seek", b.seek},
		{"POST", groupsPath + "/{group}/queues/{queue}/partitions/{partition}/seek", b.seek},
	}
}

// standing is where a group stands in a partition.
type standing struct {
	cursor   *cursor
	stored   bool
	lag      int
	timeLag  time.Duration
	oldest   time.Time
	workerID string
}

func (b *Broker) standingOf(p *partition, group string) standing {
	s := standing{cursor: b.cursorOf(p, group)}
	_, s.stored = p.cursors[b.groupKey(group)]
	start := s.cursor.committed
	if b.live(s.cursor.lease) {
		s.workerID = s.cursor.lease.id
		if b.has(LagSkipsLeased) {
			start = s.cursor.lease.end
		}
	}
	if s.lag = len(p.messages) - start; s.lag > 0 {
		s.oldest = p.messages[start].created
		if b.has(TimeLagOfNewest) {
			s.oldest = p.messages[len(p.messages)-1].created
		}
		s.timeLag = max(0, b.now().Sub(s.oldest))
	}
	return s
}

func optional(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return iso(t)
}

func optionalText(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// groupNames lists the groups of a queue.
func (q *queue) groupNames() []string {
	var names []string
	for name := range q.groups {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (b *Broker) listConsumerGroups(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []any{}
	seen := map[string]bool{}
	for _, q := range b.order {
		for _, name := range q.groupNames() {
			if b.has(GroupsOfFirstQueue) && seen[name] {
				continue
			}
			seen[name] = true
			list = append(list, b.groupRow(q, name))
		}
	}
	writeJSON(w, http.StatusOK, list)
}

func (b *Broker) groupRow(q *queue, name string) map[string]any {
	group := q.groups[name]
	members := map[string]bool{}
	cursors, lagging, lag := 0, 0, 0
	var timeLag time.Duration
	active := group.created
	for _, p := range q.partitions {
		s := b.standingOf(p, name)
		if s.stored {
			cursors++
		}
		if s.workerID != "" {
			members[s.workerID] = true
		}
		if s.lag > 0 {
			lagging++
		}
		lag += s.lag
		timeLag = max(timeLag, s.timeLag)
		if s.cursor.touched.After(active) {
			active = s.cursor.touched
		}
	}
	state := "Stable"
	if seconds := int(timeLag.Seconds()); seconds > 300 && !b.has(NeverLagging) {
		state = "Lagging"
		if len(members) == 0 && b.now().Sub(active) >= time.Hour && !b.has(NeverDead) {
			state = "Dead"
		}
	}
	mode, since := "all", group.since
	if !since.IsZero() {
		mode = "new"
	}
	if b.has(SubscriptionNotShown) {
		since = time.Time{}
	}
	return map[string]any{
		"name": name, "topics": []string{q.name}, "queueName": q.name, "members": len(members),
		"partitionCursors": cursors, "partitionsWithLag": lagging, "totalLag": lag, "maxTimeLag": int(timeLag.Seconds()),
		"state": state, "subscriptionMode": mode, "subscriptionTimestamp": optional(since), "subscriptionCreatedAt": iso(group.created),
	}
}

func (b *Broker) laggingPartitions(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	least := 3600
	if b.has(MinLagDefaultZero) {
		least = 0
	}
	if text := r.URL.Query().Get("minLagSeconds"); text != "" && !b.has(MinLagIgnored) {
		value, err := strconv.ParseInt(text, 10, 32)
		if (err != nil || value < 0) && !b.has(MinLagCoerced) {
			b.writeError(w, badRequest("bad query: minLagSeconds must be an integer of at least 0"))
			return
		}
		least = int(value)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []any{}
	for _, q := range b.order {
		for _, name := range q.groupNames() {
			for _, p := range q.partitions {
				s := b.standingOf(p, name)
				if s.lag == 0 || int(s.timeLag.Seconds()) < least {
					continue
				}
				hours := math.Round(s.timeLag.Hours()*100) / 100
				if b.has(LagHoursInMinutes) {
					hours = s.timeLag.Minutes()
				}
				list = append(list, map[string]any{
					"consumer_group": name, "queue_name": q.name, "partition_name": p.name, "partition_id": p.id.String(),
					"worker_id": optionalText(s.workerID), "offset_lag": s.lag, "time_lag_seconds": int(s.timeLag.Seconds()),
					"lag_hours": hours, "oldest_unconsumed_at": iso(s.oldest), "last_consumed_at": optional(s.cursor.touched),
				})
			}
		}
	}
	writeJSON(w, http.StatusOK, list)
}

func (b *Broker) getConsumerGroup(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := params["group"]
	detail := map[string]any{}
	for _, q := range b.order {
		if _, ok := q.groups[name]; !ok || b.has(GroupOfFirstQueue) && len(detail) > 0 {
			continue
		}
		partitions := []any{}
		for _, p := range q.partitions {
			s := b.standingOf(p, name)
			consumed := s.cursor.committed
			if b.has(ConsumedConstant) {
				consumed = 0
			}
			if b.has(GroupLeaseHidden) {
				s.workerID = ""
			}
			partitions = append(partitions, map[string]any{
				"partition": p.name, "workerId": optionalText(s.workerID), "lastConsumedAt": optional(s.cursor.touched),
				"totalConsumed": consumed, "offsetLag": s.lag, "timeLagSeconds": int(s.timeLag.Seconds()), "leaseActive": s.workerID != "",
			})
		}
		detail[q.name] = map[string]any{"partitions": partitions}
	}
	if len(detail) == 0 && !b.has(UnknownGroupEmpty) {
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "Consumer group not found"})
		return
	}
	writeJSON(w, http.StatusOK, detail)
}

func (b *Broker) deleteConsumerGroup(w http.ResponseWriter, r *http.Request, params map[string]string) {
	metadata := !slices.Contains([]string{"false", "0", "no"}, r.URL.Query().Get("deleteMetadata"))
	b.mu.Lock()
	defer b.mu.Unlock()
	name, only := params["group"], params["queue"]
	existed, cursors := false, 0
	for _, q := range b.order {
		group, ok := q.groups[name]
		if !ok || only != "" && q.name != only && !b.has(GroupDeletedEverywhere) {
			continue
		}
		existed = true
		if metadata || b.has(DeletesMetadataAlways) {
			delete(q.groups, name)
		} else {
			q.groups[name] = group
		}
		for _, p := range q.partitions {
			c, ok := p.cursors[b.groupKey(name)]
			if !ok {
				continue
			}
			cursors++
			if b.has(GroupDeletionForgetsNothing) {
				continue
			}
			delete(p.cursors, b.groupKey(name))
			if b.has(DeletedLeasesLive) && b.live(c.lease) {
				p.cursors[name] = &cursor{attempts: map[int]int{}, lease: c.lease}
			}
		}
	}
	b.wake()
	if !existed && b.has(DeleteUnknownGroup404) {
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "Consumer group not found"})
		return
	}
	if b.has(GroupDeletionMiscounts) {
		cursors = 0
	}
	answer := map[string]any{
		"success": existed, "consumerGroup": name, "deletedPartitions": cursors, "metadataDeleted": existed && metadata,
	}
	if only != "" && !b.has(GroupQueueNotNamed) {
		answer["queueName"] = only
	}
	writeJSON(w, http.StatusOK, answer)
}

// parseTime reads an ISO 8601 time, with or without a time of day.
func parseTime(text string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC().Truncate(time.Microsecond), true
		}
	}
	return time.Time{}, false
}

func (b *Broker) groupBody(r *http.Request) (object, error) {
	body, err := b.readBody(r)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	return b.parseObject(body)
}

func (b *Broker) subscribe(w http.ResponseWriter, r *http.Request, params map[string]string) {
	o, err := b.groupBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	text, err := o.text("", "subscriptionTimestamp")
	from, ok := parseTime(text)
	if err == nil && !ok {
		err = badBody("subscriptionTimestamp must be an ISO 8601 time")
	}
	if err != nil && !b.has(SubscriptionLenient) {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name, rows := params["group"], 0
	for _, q := range b.order {
		group, ok := q.groups[name]
		if !ok {
			continue
		}
		rows++
		group.since = from
		if !b.has(SubscriptionOnlySaid) {
			group.after, group.from = 0, from
		}
		q.groups[name] = group
		for _, p := range q.partitions {
			if b.has(SubscriptionMovesCursors) {
				delete(p.cursors, b.groupKey(name))
			}
		}
	}
	b.wake()
	if b.has(SubscriptionNotCounted) {
		rows = 0
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"success": rows > 0, "consumerGroup": name, "newTimestamp": iso(from), "rowsUpdated": rows,
	})
}

// target is where a seek goes: a time, or with nil the end.
func (b *Broker) target(o object) (*time.Time, error) {
	var body struct {
		ToEnd     *bool   `json:"toEnd"`
		Timestamp *string `json:"timestamp"`
	}
	for key, into := range map[string]any{"toEnd": &body.ToEnd, "timestamp": &body.Timestamp} {
		if raw, ok := o[key]; ok && json.Unmarshal(raw, into) != nil {
			return nil, badBody("%s has the wrong type", key)
		}
	}
	toEnd := body.ToEnd != nil && *body.ToEnd
	switch {
	case body.Timestamp == nil && !toEnd && !b.has(SeekDefaultsToEnd):
		return nil, badBody("toEnd must be true, or a timestamp be given")
	case body.Timestamp == nil:
		return nil, nil
	case toEnd:
		return nil, badBody("timestamp must not be given together with toEnd")
	}
	to, ok := parseTime(*body.Timestamp)
	if !ok {
		return nil, badBody("timestamp must be an ISO 8601 time")
	}
	return &to, nil
}

func (b *Broker) seek(w http.ResponseWriter, r *http.Request, params map[string]string) {
	o, err := b.groupBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	single := params["partition"] != ""
	var to *time.Time
	if !single || len(o) > 0 || b.has(SeekPartitionBodyRequired) {
		if to, err = b.target(o); err != nil && (!single || o == nil || !b.has(SeekPartitionLenient)) {
			b.writeError(w, err)
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	moved := b.moveGroup(params["group"], params["queue"], params["partition"], to)
	if moved == 0 && (single || !b.has(SeekUnmatched200)) && (!single || !b.has(SeekPartitionUnmatched200)) {
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "No partition found for this consumer group and queue"})
		return
	}
	b.seeks++
	b.wake()
	answer := map[string]any{
		"success": true, "consumerGroup": params["group"], "queueName": params["queue"], "seekToEnd": to == nil,
		"targetTimestamp": nil, "partitionsUpdated": moved,
	}
	if to != nil {
		answer["targetTimestamp"] = iso(*to)
	}
	if single {
		answer["partition"] = params["partition"]
	}
	writeJSON(w, http.StatusOK, answer)
}

// moveGroup moves the cursors of a group and returns how many.
func (b *Broker) moveGroup(group, queueName, partitionName string, to *time.Time) int {
	q := b.queues[queueName]
	if q == nil {
		return 0
	}
	if _, ok := q.groups[group]; !ok {
		return 0
	}
	groups := []string{group}
	if b.has(SeekMovesAllGroups) {
		groups = q.groupNames()
	}
	moved := 0
	for _, p := range q.partitions {
		if partitionName != "" && p.name != partitionName && !b.has(SeekPartitionMovesAll) {
			continue
		}
		moved++
		for _, name := range groups {
			c := b.cursorOf(p, name)
			p.cursors[b.groupKey(name)] = c
			b.moveCursor(p, c, to)
		}
	}
	return moved
}

func (b *Broker) moveCursor(p *partition, c *cursor, to *time.Time) {
	at := len(p.messages)
	if to != nil {
		at = slices.IndexFunc(p.messages, func(m *message) bool {
			return m.created.After(*to) || m.created.Equal(*to) && !b.has(SeekAfterTimestamp)
		})
		if at < 0 {
			at = len(p.messages)
		}
	}
	if b.has(SeekNeverForward) && to != nil {
		at = min(at, c.committed)
	}
	if b.has(SeekEndBeforeLast) && to == nil {
		at = max(0, at-1)
	}
	c.committed = at
	if !b.has(SeekKeepsLeases) {
		c.lease = nil
	}
	if !b.has(SeekKeepsRetries) {
		c.retries = 0
	}
	if !b.has(SeekKeepsAttempts) {
		clear(c.attempts)
	}
}
