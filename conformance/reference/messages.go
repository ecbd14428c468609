package reference

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The mutations of messages and dead letters.
const (
	ListPathBare          Mutation = "list-path-bare"           // a listed message names its queue only as its path
	ListPayloadCompact    Mutation = "list-payload-compact"     // white space in the payloads of a list is dropped
	ListOldestFirst       Mutation = "list-oldest-first"        // messages are listed oldest first
	ListPartitionIgnored  Mutation = "list-partition-ignored"   // a list of messages is not narrowed to a partition
	NsAliasIgnored        Mutation = "ns-alias-ignored"         // ns does not stand for namespace
	ListStatusPending     Mutation = "list-status-pending"      // every message is pending
	StatusFilterIgnored   Mutation = "status-filter-ignored"    // a list of messages is not narrowed to a status
	ListFromEver          Mutation = "list-from-ever"           // a list without from goes back for ever
	ListToIgnored         Mutation = "list-to-ignored"          // to does not bound a list of messages
	ListToExclusive       Mutation = "list-to-exclusive"        // a message created at to is not listed
	ListTotalAll          Mutation = "list-total-all"           // total counts all pages
	ListUnbounded         Mutation = "list-unbounded"           // a page of messages is as long as asked for
	ListTimeLenient       Mutation = "list-time-lenient"        // a from or to of a list of messages that is no time is ignored
	ListModeNone          Mutation = "list-mode-none"           // the mode of a list is always none
	DetailConfigDefault   Mutation = "detail-config-default"    // an inspected message shows default options
	DetailConsumedAlways  Mutation = "detail-consumed-always"   // every group is said to have passed an inspected message
	DetailErrorDropped    Mutation = "detail-error-dropped"     // an inspected message has no error
	DetailUnknownNull     Mutation = "detail-unknown-null"      // an unknown message is null
	DetailUUIDUnchecked   Mutation = "detail-uuid-unchecked"    // a partitionId in a path that is no UUID names nothing
	DeleteLetterOnlySays  Mutation = "delete-letter-only-says"  // deleting a dead letter changes nothing
	DeleteLetterAny       Mutation = "delete-letter-any"        // deleting a message that is no dead letter succeeds
	LetterErrorDropped    Mutation = "letter-error-dropped"     // the error of a dead letter is not kept
	LettersOldestFirst    Mutation = "letters-oldest-first"     // dead letters are listed oldest failure first
	LetterGroupIgnored    Mutation = "letter-group-ignored"     // dead letters are not narrowed to a group
	LetterTimeIgnored     Mutation = "letter-time-ignored"      // dead letters are not narrowed by from and to
	LetterTotalPage       Mutation = "letter-total-page"        // total counts the dead letters of the page
	LettersOncePerMessage Mutation = "letters-once-per-message" // a message that two groups filed is one dead letter
	LetterTimeLenient     Mutation = "letter-time-lenient"      // a from or to of dead letters that is no time is ignored
	BulkAllQueues         Mutation = "bulk-all-queues"          // bulk calls change the dead letters of all queues
	BulkFilterIgnored     Mutation = "bulk-filter-ignored"      // bulk calls change dead letters that the filters leave out
	BulkUnbounded         Mutation = "bulk-unbounded"           // bulk calls ignore limit
	BulkLenient           Mutation = "bulk-lenient"             // bulk calls ignore parameters that are not known
	BulkUnknownEmpty      Mutation = "bulk-unknown-empty"       // bulk calls on an unknown queue change nothing
	ReplaySameID          Mutation = "replay-same-id"           // a replayed message keeps its transaction id
	ReplayPayloadCompact  Mutation = "replay-payload-compact"   // white space in the payload of a replayed message is dropped
	ReplayElsewhere       Mutation = "replay-elsewhere"         // a replayed message goes to the default partition
	ReplayAny             Mutation = "replay-any"               // a message that is no dead letter is replayed
	ReplayRacy            Mutation = "replay-racy"              // looking for a dead letter and removing it is not atomic
	ReplayKeepsLetter     Mutation = "replay-keeps-letter"      // a replayed dead letter stays
	ReplayOneGroup        Mutation = "replay-one-group"         // a replay leaves the dead letters of other groups
	ReplayReversed        Mutation = "replay-reversed"          // a bulk replay turns the order of a partition round
	BulkReplayPerGroup    Mutation = "bulk-replay-per-group"    // a bulk replay pushes a message once for each group that filed it
)

var messageMutations = []Mutation{
	ListPathBare,
	ListPayloadCompact,
	ListOldestFirst,
	ListPartitionIgnored,
	NsAliasIgnored,
	ListStatusPending,
	StatusFilterIgnored,
	ListFromEver,
	ListToIgnored,
	ListToExclusive,
	ListTotalAll,
	ListUnbounded,
	ListTimeLenient,
	ListModeNone,
	DetailConfigDefault,
	DetailConsumedAlways,
	DetailErrorDropped,
	DetailUnknownNull,
	DetailUUIDUnchecked,
	DeleteLetterOnlySays,
	DeleteLetterAny,
	LetterErrorDropped,
	LettersOldestFirst,
	LetterGroupIgnored,
	LetterTimeIgnored,
	LetterTotalPage,
	LettersOncePerMessage,
	LetterTimeLenient,
	BulkAllQueues,
	BulkFilterIgnored,
	BulkUnbounded,
	BulkLenient,
	BulkUnknownEmpty,
	ReplaySameID,
	ReplayPayloadCompact,
	ReplayElsewhere,
	ReplayAny,
	ReplayRacy,
	ReplayKeepsLetter,
	ReplayOneGroup,
	ReplayReversed,
	BulkReplayPerGroup,
}

const (
	maxPage   = 1000
	maxOffset = 10_000
)

// filing is a dead letter: a message that a group has filed.
type filing struct {
	p       *partition
	offset  int
	group   string
	reason  string
	retries int
	failed  time.Time
}

func (d *filing) message() *message { return d.p.messages[d.offset] }

// file keeps a dead letter of a group.
func (b *Broker) file(p *partition, c *cursor, offset, retries int, reason string) {
	d := &filing{p: p, offset: offset, retries: retries, reason: reason, failed: b.now()}
	for group, cursor := range p.cursors {
		if cursor == c {
			d.group = group
		}
	}
	if b.has(LetterErrorDropped) {
		d.reason = ""
	}
	b.dead = append(b.dead, d)
}

// deadIn counts the dead letters of a partition.
func (b *Broker) deadIn(p *partition) (n int) {
	for _, d := range b.dead {
		if d.p == p {
			n++
		}
	}
	return n
}

// splice writes an object whose last members are payloads, which keep their bytes.
func splice(head map[string]any, payload []byte, names ...string) []byte {
	text, err := json.Marshal(head)
	if err != nil {
		panic(err) // only values of this package are encoded
	}
	text = text[:len(text)-1]
	for _, name := range names {
		text = append(text, `,"`+name+`":`...)
		text = append(text, payload...)
	}
	return append(text, '}')
}

// writeSpliced writes an object with an array of texts as messages.
func writeSpliced(w http.ResponseWriter, head map[string]any, messages [][]byte) {
	list := []byte{'['}
	for i, m := range messages {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, m...)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(splice(head, append(list, ']'), "messages"))
}

// listFilter is what the lists of messages and dead letters share.
type listFilter struct {
	queue, partition, namespace, task, status, group string
	from, to                                         time.Time
	limit, offset                                    int
}

func (b *Broker) parseList(query url.Values, limit int, lenientTime Mutation) (listFilter, error) {
	f := listFilter{
		queue: query.Get("queue"), partition: query.Get("partition"), namespace: query.Get("namespace"), task: query.Get("task"),
		status: query.Get("status"), group: query.Get("consumerGroup"), limit: limit,
	}
	if f.namespace == "" && !b.has(NsAliasIgnored) {
		f.namespace = query.Get("ns")
	}
	for _, name := range []string{f.queue, f.partition, f.namespace, f.task, f.group} {
		if err := checkName("x", name, maxName); err != nil {
			return f, badRequest("bad query: a name breaks its rules")
		}
	}
	for name, target := range map[string]*time.Time{"from": &f.from, "to": &f.to} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil && !b.has(lenientTime) {
			return f, badRequest("bad query: %s must be an ISO 8601 time", name)
		}
		*target = at
	}
	for name, bounds := range map[string]struct {
		target *int
		least  int64
		most   int64
	}{"limit": {&f.limit, 1, 1<<31 - 1}, "offset": {&f.offset, 0, maxOffset}} {
		if !query.Has(name) {
			continue
		}
		n, err := strconv.ParseInt(query.Get(name), 10, 64)
		if err != nil || n < bounds.least || n > bounds.most {
			return f, badRequest("bad query: %s must be an integer from %d to %d", name, bounds.least, bounds.most)
		}
		*bounds.target = int(n)
	}
	return f, nil
}

// pageOf cuts a page out of a list.
func pageOf[T any](list []T, f listFilter, most int) []T {
	start := min(f.offset, len(list))
	return list[start:min(start+min(f.limit, most), len(list))]
}

// logged is one message of the log.
type logged struct {
	p      *partition
	offset int
}

func (s logged) message() *message { return s.p.messages[s.offset] }

// position is where a group stands to a message.
type position struct {
	group    string
	consumed bool
	until    time.Time // of a live lease on the message
	retries  int       // charged, if the message is the next one
}

func (b *Broker) positionsOf(s logged) []position {
	var list []position
	for group := range s.p.queue.groups {
		c := s.p.cursors[b.groupKey(group)]
		if c == nil {
			c = b.cursorOf(s.p, group)
		}
		at := position{group: group, consumed: s.offset < c.committed || b.has(DetailConsumedAlways)}
		if b.live(c.lease) && s.offset >= c.committed && s.offset < c.lease.end {
			at.until = c.lease.expires
		}
		if s.offset == c.committed {
			at.retries = c.retries
		}
		list = append(list, at)
	}
	slices.SortFunc(list, func(a, b position) int { return cmp.Compare(a.group, b.group) })
	return list
}

// letterOf is the newest dead letter of a message, nil when there is none.
func (b *Broker) letterOf(s logged) (newest *filing) {
	for _, d := range b.dead {
		if d.p == s.p && d.offset == s.offset {
			newest = d
		}
	}
	return newest
}

// statusOf says what consumers have done with a message, and until when it is leased.
func (b *Broker) statusOf(s logged) (string, time.Time) {
	var until time.Time
	positions := b.positionsOf(s)
	consumed := len(positions) > 0
	for _, at := range positions {
		consumed = consumed && at.consumed
		if at.until.After(until) {
			until = at.until
		}
	}
	switch {
	case b.has(ListStatusPending):
		return "pending", until
	case b.letterOf(s) != nil:
		return "dead_letter", until
	case !until.IsZero():
		return "processing", until
	case consumed:
		return "completed", until
	}
	return "pending", until
}

func (b *Broker) renderStored(s logged) map[string]any {
	m := s.message()
	status, until := b.statusOf(s)
	head := map[string]any{
		"id": m.id.String(), "transactionId": m.transactionID, "partitionId": s.p.id.String(), "queuePath": s.p.queue.name + "/" + s.p.name,
		"queue": s.p.queue.name, "partition": s.p.name, "namespace": s.p.queue.namespace, "task": s.p.queue.task, "status": status,
		"traceId": nil, "producerSub": nil, "createdAt": iso(m.created), "leaseExpiresAt": nil,
	}
	if !until.IsZero() {
		head["leaseExpiresAt"] = iso(until)
	}
	if b.has(ListPathBare) {
		head["queuePath"] = s.p.queue.name
	}
	return head
}

func (b *Broker) listMessages(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := b.parseList(r.URL.Query(), 200, ListTimeLenient)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if f.status != "" && !slices.Contains([]string{"pending", "processing", "completed", "dead_letter"}, f.status) {
		b.writeError(w, badRequest("bad query: status must be one of pending, processing, completed, dead_letter"))
		return
	}
	if f.from.IsZero() && !b.has(ListFromEver) {
		f.from = b.now().Add(-time.Hour)
	}
	var found []logged
	mode := struct {
		HasQueueMode   bool   `json:"hasQueueMode"`
		BusGroupsCount int    `json:"busGroupsCount"`
		Type           string `json:"type"`
	}{}
	groups := map[string]bool{}
	for _, q := range b.order {
		if f.queue != "" && q.name != f.queue || f.namespace != "" && q.namespace != f.namespace || f.task != "" && q.task != f.task {
			continue
		}
		for group := range q.groups {
			groups[group] = true
		}
		for _, p := range q.partitions {
			if f.partition != "" && p.name != f.partition && !b.has(ListPartitionIgnored) {
				continue
			}
			for offset := range p.messages {
				if s := (logged{p, offset}); b.there(s, f) && b.listed(s, f) {
					found = append(found, s)
				}
			}
		}
	}
	mode.HasQueueMode = groups[modeGroup]
	delete(groups, modeGroup)
	mode.BusGroupsCount = len(groups)
	switch {
	case mode.HasQueueMode && len(groups) > 0:
		mode.Type = "hybrid"
	case mode.HasQueueMode:
		mode.Type = "queue"
	case len(groups) > 0:
		mode.Type = "bus"
	default:
		mode.Type = "none"
	}
	if b.has(ListModeNone) {
		mode.Type = "none"
	}
	slices.SortFunc(found, func(x, y logged) int {
		if b.has(ListOldestFirst) {
			x, y = y, x
		}
		return cmp.Or(y.message().created.Compare(x.message().created), cmp.Compare(y.p.id.String(), x.p.id.String()), cmp.Compare(y.offset, x.offset))
	})
	most := maxPage
	if b.has(ListUnbounded) {
		most = len(found)
	}
	page := pageOf(found, f, most)
	total := len(page)
	if b.has(ListTotalAll) {
		total = len(found)
	}
	var texts [][]byte
	for _, s := range page {
		payload := s.message().payload
		if b.has(ListPayloadCompact) {
			payload = compacted(payload)
		}
		texts = append(texts, splice(b.renderStored(s), payload, "data", "payload"))
	}
	writeSpliced(w, map[string]any{"mode": mode, "total": total}, texts)
}

// there says whether a message is there to be listed: what retention removed is, only as a dead letter.
func (b *Broker) there(s logged, f listFilter) bool {
	return s.offset >= s.p.start || f.status == "dead_letter" && b.letterOf(s) != nil
}

// listed says whether a message passes a filter by status and time.
func (b *Broker) listed(s logged, f listFilter) bool {
	created := s.message().created
	if created.Before(f.from) || !f.to.IsZero() && created.After(f.to) && !b.has(ListToIgnored) {
		return false
	}
	if b.has(ListToExclusive) && created.Equal(f.to) {
		return false
	}
	status, _ := b.statusOf(s)
	return f.status == "" || status == f.status || b.has(StatusFilterIgnored)
}

// addressed finds the partition that a path names, nil when there is none.
func (b *Broker) addressed(w http.ResponseWriter, params map[string]string) (p *partition, ok bool) {
	id, err := uuid.Parse(params["partitionId"])
	if err != nil && !b.has(DetailUUIDUnchecked) {
		b.writeError(w, badRequest("bad path: partitionId must be a UUID"))
		return nil, false
	}
	return b.partitions[id], true
}

func (b *Broker) getMessage(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.addressed(w, params)
	if !ok {
		return
	}
	s, ok := b.newestOf(p, params["transactionId"])
	if !ok {
		if b.has(DetailUnknownNull) {
			writeJSON(w, http.StatusOK, nil)
			return
		}
		b.writeError(w, &problem{http.StatusNotFound, "Message not found"})
		return
	}
	head := b.renderStored(s)
	groups := []any{}
	retries := 0
	for _, at := range b.positionsOf(s) {
		group := map[string]any{"name": at.group, "group": at.group, "consumed": at.consumed, "leaseExpiresAt": nil}
		if !at.until.IsZero() {
			group["leaseExpiresAt"] = iso(at.until)
		}
		groups = append(groups, group)
		retries = max(retries, at.retries)
	}
	head["isEncrypted"], head["errorMessage"] = false, nil
	if d := b.letterOf(s); d != nil {
		head["errorMessage"], retries = d.reason, d.retries
	}
	if b.has(DetailErrorDropped) {
		head["errorMessage"] = nil
	}
	head["retryCount"], head["consumerGroups"], head["queueConfig"] = retries, groups, s.p.queue.options.wire()
	if b.has(DetailConfigDefault) {
		head["queueConfig"] = defaultOptions().wire()
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(splice(head, s.message().payload, "data", "payload"))
}

// newestOf finds the newest message with a transaction id.
func (b *Broker) newestOf(p *partition, transactionID string) (logged, bool) {
	if p == nil {
		return logged{}, false
	}
	for offset, m := range slices.Backward(p.messages) {
		s := logged{p, offset}
		if m.transactionID == transactionID && (offset >= p.start || b.letterOf(s) != nil) {
			return s, true
		}
	}
	return logged{}, false
}

// lettersOf are the dead letters of a transaction id.
func (b *Broker) lettersOf(p *partition, transactionID string) []*filing {
	var list []*filing
	for _, d := range b.dead {
		if d.p == p && d.message().transactionID == transactionID {
			list = append(list, d)
		}
	}
	return list
}

// unfile removes dead letters.
func (b *Broker) unfile(list []*filing) {
	b.dead = slices.DeleteFunc(b.dead, func(d *filing) bool { return slices.Contains(list, d) })
}

func (b *Broker) deleteDeadLetter(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.addressed(w, params)
	if !ok {
		return
	}
	list := b.lettersOf(p, params["transactionId"])
	_, exists := b.newestOf(p, params["transactionId"])
	if len(list) == 0 && (!exists || !b.has(DeleteLetterAny)) {
		b.noDeadLetter(w, params)
		return
	}
	if !b.has(DeleteLetterOnlySays) {
		b.unfile(list)
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"success": true, "partitionId": params["partitionId"], "transactionId": params["transactionId"], "message": "Dead letter deleted",
	})
}

func (b *Broker) noDeadLetter(w http.ResponseWriter, params map[string]string) {
	writeJSON(w, http.StatusNotFound, map[string]any{
		"success": false, "partitionId": params["partitionId"], "transactionId": params["transactionId"], "error": "Message not found",
	})
}

// letters are the dead letters that pass a filter, oldest failure first.
func (b *Broker) letters(f listFilter) []*filing {
	var list []*filing
	for _, d := range b.dead {
		switch {
		case f.queue != "" && d.p.queue.name != f.queue,
			f.partition != "" && d.p.name != f.partition,
			f.group != "" && d.group != f.group && !b.has(LetterGroupIgnored),
			d.failed.Before(f.from) && !b.has(LetterTimeIgnored),
			!f.to.IsZero() && d.failed.After(f.to) && !b.has(LetterTimeIgnored):
			continue
		}
		list = append(list, d)
	}
	return list
}

func (b *Broker) listDeadLetters(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := b.parseList(r.URL.Query(), 100, LetterTimeLenient)
	if err != nil {
		b.writeError(w, err)
		return
	}
	list := b.letters(f)
	if b.has(LettersOncePerMessage) {
		list = slices.CompactFunc(list, func(x, y *filing) bool { return x.p == y.p && x.offset == y.offset })
	}
	if !b.has(LettersOldestFirst) {
		slices.Reverse(list)
	}
	page := pageOf(list, f, maxPage)
	var texts [][]byte
	for _, d := range page {
		m := d.message()
		texts = append(texts, splice(map[string]any{
			"id": m.id.String(), "transactionId": m.transactionID, "partitionId": d.p.id.String(), "queue": d.p.queue.name,
			"partition": d.p.name, "consumerGroup": d.group, "errorMessage": d.reason, "retryCount": d.retries, "producerSub": nil,
			"createdAt": iso(m.created), "failedAt": iso(d.failed),
		}, m.payload, "data"))
	}
	total := len(list)
	if b.has(LetterTotalPage) {
		total = len(page)
	}
	writeSpliced(w, map[string]any{"total": total, "pagination": map[string]int{"limit": min(f.limit, maxPage), "offset": f.offset}}, texts)
}

// bulk reads the request of a route that changes many dead letters of one queue.
func (b *Broker) bulk(w http.ResponseWriter, r *http.Request, limit int) (f listFilter, ok bool) {
	query := r.URL.Query()
	f, err := b.parseList(query, limit, LetterTimeLenient)
	if err == nil && !b.has(BulkLenient) {
		for name := range query {
			if !strings.Contains(" queue consumerGroup partition from to limit ", " "+name+" ") {
				err = badRequest("bad query: %q is not a parameter here", name)
			}
		}
		if f.queue == "" {
			err = badRequest("bad query: queue is missing")
		}
	}
	if err != nil {
		b.writeError(w, err)
		return f, false
	}
	if b.queues[f.queue] == nil && !b.has(BulkUnknownEmpty) {
		b.writeError(w, &problem{http.StatusNotFound, "Queue not found"})
		return f, false
	}
	if b.has(BulkAllQueues) {
		f.queue = ""
	}
	if b.has(BulkFilterIgnored) {
		f.group, f.partition, f.from, f.to = "", "", time.Time{}, time.Time{}
	}
	return f, true
}

// bounded cuts what one bulk call changes.
func (b *Broker) bounded(list []*filing, f listFilter, most int) []*filing {
	if b.has(BulkUnbounded) {
		return list
	}
	return list[:min(len(list), f.limit, most)]
}

func (b *Broker) purgeDeadLetters(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.bulk(w, r, 1000)
	if !ok {
		return
	}
	list := b.letters(f)
	gone := b.bounded(list, f, 10_000)
	b.unfile(gone)
	writeJSON(w, http.StatusOK, map[string]any{"success": true, "queue": r.URL.Query().Get("queue"), "deleted": len(gone), "remaining": len(list) - len(gone)})
}

// again pushes the message of a dead letter as a new one.
func (b *Broker) again(d *filing) pushResult {
	old := d.message()
	item := pushItem{queue: d.p.queue.name, partition: d.p.name, payload: old.payload}
	if b.has(ReplaySameID) {
		item.transactionID = old.transactionID
	}
	if b.has(ReplayPayloadCompact) {
		item.payload = compacted(old.payload)
	}
	if b.has(ReplayElsewhere) {
		item.partition = defaultPartition
	}
	return b.storeItem(0, item)
}

// siblingsOf are the dead letters among a list that are of the same message.
func siblingsOf(list []*filing, d *filing) []*filing {
	var same []*filing
	for _, other := range list {
		if other.p == d.p && other.offset == d.offset {
			same = append(same, other)
		}
	}
	return same
}

func (b *Broker) retryDeadLetter(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.addressed(w, params)
	if !ok {
		return
	}
	list := b.lettersOf(p, params["transactionId"])
	if s, exists := b.newestOf(p, params["transactionId"]); len(list) == 0 && exists && b.has(ReplayAny) {
		list = []*filing{{p: p, offset: s.offset}}
	}
	if len(list) == 0 {
		b.noDeadLetter(w, params)
		return
	}
	if b.has(ReplayRacy) {
		b.mu.Unlock()
		<-time.After(5 * time.Millisecond) // the gap between looking and removing
		b.mu.Lock()
	}
	last := list[len(list)-1]
	result := b.again(last)
	switch {
	case b.has(ReplayKeepsLetter):
	case b.has(ReplayOneGroup):
		b.unfile([]*filing{last})
	default:
		b.unfile(siblingsOf(b.dead, last))
	}
	b.wake()
	writeJSON(w, http.StatusOK, map[string]any{
		"success": true, "queue": p.queue.name, "partition": p.name, "replayedAs": result, "dlqRowRemoved": true,
	})
}

func (b *Broker) replayDeadLetters(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.bulk(w, r, 100)
	if !ok {
		return
	}
	matching := b.letters(f)
	chosen := slices.Clone(b.bounded(matching, f, maxPage))
	slices.SortStableFunc(chosen, func(x, y *filing) int { return cmp.Compare(x.offset, y.offset) })
	if b.has(ReplayReversed) {
		slices.Reverse(chosen)
	}
	replayed := 0
	for _, d := range chosen {
		if !slices.Contains(b.dead, d) {
			continue // gone with another group's
		}
		b.again(d)
		replayed++
		if b.has(BulkReplayPerGroup) {
			b.unfile([]*filing{d})
			continue
		}
		b.unfile(siblingsOf(matching, d))
	}
	b.wake()
	writeJSON(w, http.StatusOK, map[string]any{
		"success": true, "queue": r.URL.Query().Get("queue"), "replayed": replayed, "remaining": len(b.letters(f)),
	})
}
