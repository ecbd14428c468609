package reference

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"
)

// The mutations of traces.
const (
	TraceOtherID        Mutation = "trace-other-id"         // the answered id of a trace is not the one it is shown with
	TraceDataRewritten  Mutation = "trace-data-rewritten"   // the data of a trace is decoded and encoded again
	TraceTypeMissing    Mutation = "trace-type-missing"     // a trace without eventType is of the type event
	TraceOneName        Mutation = "trace-one-name"         // names of a trace after the first are dropped
	TraceUnchecked      Mutation = "trace-unchecked"        // a trace without data is one of null
	TracePartitionAny   Mutation = "trace-partition-any"    // a trace of an unknown partition is stored
	TraceKept           Mutation = "trace-kept"             // traces outlive the messages of their queue
	TraceUnbounded      Mutation = "trace-unbounded"        // the data of a trace is not bounded
	TraceNamesUncounted Mutation = "trace-names-uncounted"  // trace_count is the number of messages
	TraceNamesTotalPage Mutation = "trace-names-total-page" // total counts the names of the page
	TracesNewestFirst   Mutation = "traces-newest-first"    // the traces of a message are listed newest first
	TracesOfAll         Mutation = "traces-of-all"          // the traces of a message are those of its partition
	TracesOutliveQueue  Mutation = "traces-outlive-queue"   // the traces of a deleted queue stay
	NamedOldestFirst    Mutation = "named-oldest-first"     // the traces of a name are listed oldest first
	NamedTotalPage      Mutation = "named-total-page"       // total counts the traces of the page
	ByNameIsPartition   Mutation = "by-name-is-partition"   // by-name in a path is a partition
)

var traceMutations = []Mutation{
	TraceOtherID,
	TraceDataRewritten,
	TraceTypeMissing,
	TraceOneName,
	TraceUnchecked,
	TracePartitionAny,
	TraceKept,
	TraceUnbounded,
	TraceNamesUncounted,
	TraceNamesTotalPage,
	TracesNewestFirst,
	TracesOfAll,
	TracesOutliveQueue,
	NamedOldestFirst,
	NamedTotalPage,
	ByNameIsPartition,
}

const maxTraceData = 1 << 20

// note is a stored trace.
type note struct {
	id                         uuid.UUID
	p                          *partition
	transactionID, group, kind string
	names                      []string
	data                       []byte
	created                    time.Time
}

func (b *Broker) trace(w http.ResponseWriter, r *http.Request, _ map[string]string) {
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
	n, id, err := b.parseTrace(o)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.p = b.partitions[id]; n.p == nil && !b.has(TracePartitionAny) {
		b.writeError(w, &problem{http.StatusNotFound, "Partition not found"})
		return
	}
	n.id, n.created = newID(), b.now()
	if n.p != nil {
		b.notes = append(b.notes, n)
	}
	shown := n.id
	if b.has(TraceOtherID) {
		shown = newID()
	}
	writeJSON(w, http.StatusCreated, map[string]any{"success": true, "traceId": shown.String()})
}

func (b *Broker) parseTrace(o object) (n *note, id uuid.UUID, err error) {
	n = &note{data: o["data"], kind: "info"}
	if n.data == nil && b.has(TraceUnchecked) {
		n.data = []byte("null")
	}
	if n.transactionID, err = o.text("", "transactionId"); err != nil {
		return n, id, err
	}
	text, err := o.text("", "partitionId")
	if err != nil {
		return n, id, err
	}
	switch {
	case n.data == nil:
		return n, id, badBody("data is missing")
	case n.transactionID == "":
		return n, id, badBody("transactionId is missing")
	case len(n.data) > maxTraceData && !b.has(TraceUnbounded):
		return n, id, badBody("data must be at most %d bytes", maxTraceData)
	}
	if id, err = uuid.Parse(text); err != nil {
		return n, id, badBody("partitionId must be a UUID")
	}
	if n.group, err = o.optionalText("", "consumerGroup"); err != nil {
		return n, id, err
	}
	kind, err := o.optionalText("", "eventType")
	if err != nil {
		return n, id, err
	}
	n.kind = cmp.Or(kind, n.kind)
	if b.has(TraceTypeMissing) {
		n.kind = cmp.Or(kind, "event")
	}
	if b.has(TraceDataRewritten) {
		n.data = rewritten(n.data)
	}
	n.names, err = b.parseTraceNames(o)
	return n, id, err
}

func (b *Broker) parseTraceNames(o object) ([]string, error) {
	var names []string
	if null(o["traceNames"]) {
		return names, nil
	}
	if err := json.Unmarshal(o["traceNames"], &names); err != nil {
		one, err := o.text("", "traceNames")
		if err != nil {
			return nil, badBody("traceNames must be a string or an array of strings")
		}
		names = []string{one}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > 0 && names[0] == "" {
		names = names[1:]
	}
	if b.has(TraceOneName) && len(names) > 1 {
		names = names[:1]
	}
	return names, nil
}

// traces are those that are kept, in order of storing.
func (b *Broker) traces() []*note {
	return slices.DeleteFunc(slices.Clone(b.notes), func(n *note) bool {
		options := n.p.queue.options
		seconds := options.numbers["retentionSeconds"]
		old := options.booleans["retentionEnabled"] && seconds > 0 && b.now().Sub(n.created) > time.Duration(seconds)*time.Second
		return old && !b.has(TraceKept) || b.queues[n.p.queue.name] != n.p.queue && !b.has(TracesOutliveQueue)
	})
}

func (n *note) wire() map[string]any {
	head := map[string]any{
		"id": n.id.String(), "event_type": n.kind, "consumer_group": nil, "worker_id": nil, "created_at": iso(n.created), "trace_names": []string{},
	}
	if n.group != "" {
		head["consumer_group"] = n.group
	}
	if len(n.names) > 0 {
		head["trace_names"] = n.names
	}
	return head
}

func writeTraces(w http.ResponseWriter, head map[string]any, texts [][]byte) {
	list := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, text...)
	}
	w.Header().Set("Content-Type", "application/json")
	if len(head) == 0 {
		_, _ = w.Write(append(append([]byte(`{"traces":`), list...), "]}"...)) //nolint:gosec // JSON, and declared so
		return
	}
	_, _ = w.Write(splice(head, append(list, ']'), "traces")) //nolint:gosec // JSON, and declared so
}

func (b *Broker) messageTraces(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, err := uuid.Parse(params["partitionId"])
	if err != nil {
		b.writeError(w, badRequest("bad path: partitionId must be a UUID"))
		return
	}
	var texts [][]byte
	for _, n := range b.traces() {
		if n.p.id == id && (n.transactionID == params["transactionId"] || b.has(TracesOfAll)) {
			texts = append(texts, splice(n.wire(), n.data, "data"))
		}
	}
	if b.has(TracesNewestFirst) {
		slices.Reverse(texts)
	}
	writeTraces(w, nil, texts)
}

func (b *Broker) tracesByName(w http.ResponseWriter, r *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(ByNameIsPartition) {
		b.writeError(w, badRequest("bad path: partitionId must be a UUID"))
		return
	}
	f, err := b.parseList(r.URL.Query(), 100, LetterTimeLenient)
	if err != nil {
		b.writeError(w, err)
		return
	}
	found := slices.DeleteFunc(b.traces(), func(n *note) bool { return !slices.Contains(n.names, params["name"]) })
	if !b.has(NamedOldestFirst) {
		slices.Reverse(found)
	}
	page := pageOf(found, f, maxPage)
	var texts [][]byte
	for _, n := range page {
		head := n.wire()
		head["transaction_id"], head["partition_id"] = n.transactionID, n.p.id.String()
		head["queue_name"], head["partition_name"] = n.p.queue.name, n.p.name
		texts = append(texts, splice(head, n.data, "data"))
	}
	total := len(found)
	if b.has(NamedTotalPage) {
		total = len(page)
	}
	writeTraces(w, map[string]any{"total": total, "pagination": map[string]int{"limit": min(f.limit, maxPage), "offset": f.offset}}, texts)
}

func (b *Broker) traceNames(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := b.parseList(r.URL.Query(), 50, LetterTimeLenient)
	if err != nil {
		b.writeError(w, err)
		return
	}
	type row struct {
		name     string
		count    int
		messages map[string]bool
		seen     time.Time
	}
	rows := map[string]*row{}
	var order []*row
	for _, n := range slices.Backward(b.traces()) {
		for _, name := range n.names {
			at := rows[name]
			if at == nil {
				at = &row{name: name, messages: map[string]bool{}, seen: n.created}
				rows[name] = at
				order = append(order, at)
			}
			at.count++
			at.messages[n.p.id.String()+n.transactionID] = true
		}
	}
	slices.SortStableFunc(order, func(x, y *row) int { return y.seen.Compare(x.seen) })
	page := pageOf(order, f, maxPage)
	list := []any{}
	for _, at := range page {
		count := at.count
		if b.has(TraceNamesUncounted) {
			count = len(at.messages)
		}
		list = append(list, map[string]any{"trace_name": at.name, "trace_count": count, "message_count": len(at.messages), "last_seen": iso(at.seen)})
	}
	total := len(order)
	if b.has(TraceNamesTotalPage) {
		total = len(page)
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"trace_names": list, "total": total, "pagination": map[string]int{"limit": min(f.limit, maxPage), "offset": f.offset},
	})
}
