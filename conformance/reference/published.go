package reference

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// redaction is what is not shown of a message.
type redaction struct {
	body, allHeaders bool
	headers          []string
}

func (r redaction) any() bool { return r.body || r.allHeaders || len(r.headers) > 0 }

func redactionOf(text string) (redaction, error) {
	var r redaction
	for _, part := range splitList(text) {
		name, header, ok := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		switch {
		case part == "body":
			r.body = true
		case part == "header" || part == "headers":
			r.allHeaders = true
		case ok && (name == "header" || name == "headers") && header != "":
			r.headers = append(r.headers, http.CanonicalHeaderKey(header))
		default:
			return r, badRequest("Upstash-Redact-Fields names %q", part)
		}
	}
	return r, nil
}

// digest stands for what is not shown.
func digest(value []byte) string {
	sum := sha256.Sum256(value)
	return "REDACTED:" + hex.EncodeToString(sum[:])
}

// shownHeader is a header as it is shown: hidden where it is forwarded under a hidden name, which is what follows prefix.
func (b *Broker) shownHeader(p *publication, h http.Header, prefix string) http.Header {
	shown := h.Clone()
	for name, values := range shown {
		forwarded, ok := strings.CutPrefix(name, prefix)
		if ok && (p.redact.allHeaders || slices.Contains(p.redact.headers, forwarded)) && !b.has(HeadersNotRedacted) {
			for i, value := range values {
				values[i] = digest([]byte(value))
			}
		}
	}
	return shown
}

func (b *Broker) shownBody(p *publication) []byte {
	if p.redact.body && !b.has(BodyNotRedacted) {
		return []byte(digest(p.body))
	}
	return p.body
}

// addBody shows a body as text, or in base64 when it is none.
func addBody(line map[string]any, name string, body []byte) {
	if utf8.Valid(body) {
		line[name] = string(body)
		return
	}
	line[name+"Base64"] = base64.StdEncoding.EncodeToString(body)
}

// common is what messages, log entries and dead letters show of a message to a target.
func (b *Broker) common(p *publication, to target) map[string]any {
	line := map[string]any{
		"messageId": p.id, "url": to.url, "method": p.method, "header": b.shownHeader(p, p.header, ""), "maxRetries": p.retries,
		"callerIP": p.callerIP,
	}
	for name, value := range map[string]string{
		"topicName": p.topic, "endpointName": to.name, "queueName": p.queue, "scheduleId": p.scheduleID,
		"retryDelayExpression": p.retryDelay, "retryDelayExpr": p.retryDelay, "label": strings.Join(p.labels, ","), "flowControlKey": p.flow.key,
	} {
		if value != "" {
			line[name] = value
		}
	}
	if len(p.labels) > 0 {
		line["labels"] = p.labels
	}
	if p.callback != nil {
		line["callback"] = p.callback.url
	}
	if p.failureCallback != nil {
		line["failureCallback"] = p.failureCallback.url
	}
	if p.flow.key != "" {
		if p.flow.rate > 0 || !b.has(PeriodOfRateOnly) {
			line["period"] = int(p.flow.period.Seconds())
		}
		if p.flow.parallelism > 0 {
			line["parallelism"] = p.flow.parallelism
		}
		if p.flow.rate > 0 {
			line["rate"] = p.flow.rate
		}
	}
	return line
}

// addGiven shows the headers of the callbacks, under names with an ending.
func (b *Broker) addGiven(line map[string]any, p *publication, ending string) {
	for name, c := range map[string]*callback{"callbackHeader": p.callback, "failureCallbackHeader": p.failureCallback} {
		if c != nil && len(c.given) > 0 {
			line[name+ending] = b.shownHeader(p, c.given, "Forward-")
		}
	}
}

// shownMessage is a message to one of its targets as version 2 shows it.
func (b *Broker) shownMessage(p *publication, to target) map[string]any {
	line := b.common(p, to)
	line["notBefore"], line["createdAt"] = p.first.UnixMilli(), p.created.UnixMilli()
	if p.topic != "" {
		line["urlGroup"] = p.topic
	}
	if b.has(MessageMethodWrong) {
		line["method"] = "GET"
	}
	b.addGiven(line, p, "")
	if body := b.shownBody(p); b.has(BinaryBodyAsText) {
		line["body"] = strings.ToValidUTF8(string(body), "\uFFFD")
	} else {
		addBody(line, "body", body)
	}
	return line
}

// messageOf is the message that a path names.
func (b *Broker) messageOf(params map[string]string) (*publication, error) {
	id := params["messageId"]
	p := b.publications[id]
	if p == nil && b.has(UnknownMessageEmpty) {
		p = &publication{outgoing: outgoing{targets: []target{{url: "http://unknown"}}, method: http.MethodPost}, id: id, created: b.now()}
	}
	if p == nil || !p.open() && b.has(DeliveredForgotten) {
		return nil, &problem{http.StatusNotFound, "message " + id + " not found"}
	}
	return p, nil
}

// getPublished answers GET /v2/messages/{messageId}.
func (b *Broker) getPublished(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, err := b.messageOf(params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, b.shownMessage(p, p.targets[0]))
}

// shownV1 is a message as version 1 shows it.
func (b *Broker) shownV1(p *publication) map[string]any {
	line := map[string]any{
		"messageId": p.id, "destinationType": "url", "url": p.targets[0].url, "method": p.method, "header": b.shownHeader(p, p.header, ""),
		"createdAt": p.created.UnixMilli(),
		"settings": map[string]any{
			"deadline": int(p.timeout.Seconds()), "delay": int(p.first.Sub(p.created).Seconds()), "notBefore": p.first.UnixMilli(),
			"retries": p.retries,
		},
	}
	if p.topic != "" {
		line["destinationType"], line["topicName"], line["topicId"] = "topic", p.topic, p.topicID
		line["endpointId"] = p.targets[0].endpointID
	}
	if p.scheduleID != "" {
		line["scheduleId"] = p.scheduleID
	}
	if b.has(MessageMethodWrong) {
		line["method"] = "GET"
	}
	addBody(line, "body", b.shownBody(p))
	return line
}

// getMessageV1 answers GET /v1/messages/{messageId}.
func (b *Broker) getMessageV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, err := b.messageOf(params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, b.shownV1(p))
}

// pageV1 is the most entries of a page of version 1.
const pageV1 = 100

// cut is the page of a list that begins behind the entry that the cursor names, and the cursor of the next one. A cursor is the
// number of its page's last entry.
func cut[T any](list []T, cursor string, most int, number func(T) int) (page []T, next string, err error) {
	if cursor != "" {
		n, err := strconv.Atoi(cursor)
		at := slices.IndexFunc(list, func(v T) bool { return number(v) == n })
		if err != nil || at < 0 {
			return nil, "", badRequest("bad query: cursor is none of this list")
		}
		list = list[at+1:]
	}
	if len(list) <= most {
		return list, "", nil
	}
	return list[:most], strconv.Itoa(number(list[most-1])), nil
}

// writePage answers a page of lines under a key.
func writePage(w http.ResponseWriter, cursor string, lines []map[string]any, keys ...string) {
	answer := map[string]any{}
	for _, key := range keys {
		answer[key] = lines
	}
	if cursor != "" {
		answer["cursor"] = cursor
	}
	writeJSON(w, http.StatusOK, answer)
}

// listMessagesV1 answers GET /v1/messages.
func (b *Broker) listMessagesV1(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.inOrder()
	if !b.has(MessagesOldestFirst) {
		slices.Reverse(all)
	}
	page, cursor, err := cut(all, r.URL.Query().Get("cursor"), pageV1, func(p *publication) int { return p.seq })
	if err != nil {
		b.writeError(w, err)
		return
	}
	if b.has(MessagesOnePage) {
		cursor = ""
	}
	lines := []map[string]any{}
	for _, p := range page {
		lines = append(lines, b.shownV1(p))
	}
	writePage(w, cursor, lines, "messages")
}

// shownTask is a task as version 1 shows it.
func (b *Broker) shownTask(t *task) map[string]any {
	line := map[string]any{
		"taskId": t.id(), "messageId": t.publication.id, "url": t.url, "state": t.state, "retried": t.retried, "maxRetry": t.retries,
		"nextProcessAt": 0, "completedAt": millis(t.completed), "lastErrorAt": millis(t.erred), "error": t.fault,
	}
	if !t.finished && !t.flying {
		line["nextProcessAt"] = millis(t.due)
	}
	if b.has(TaskNextMissing) {
		line["nextProcessAt"] = 0
	}
	if b.has(TaskErrorMissing) {
		line["error"] = ""
	}
	return line
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// listTasksV1 answers GET /v1/messages/{messageId}/tasks.
func (b *Broker) listTasksV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, err := b.messageOf(params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	lines := []map[string]any{}
	for _, t := range p.tasks {
		lines = append(lines, b.shownTask(t))
	}
	writePage(w, "", lines, "tasks")
}

// getTaskV1 answers GET /v1/tasks/{taskId}.
func (b *Broker) getTaskV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.publications {
		for _, t := range p.tasks {
			if t.id() == params["taskId"] {
				line := b.shownTask(t)
				if b.has(TaskReadDiffers) {
					line["state"] = "CREATED"
				}
				writeJSON(w, http.StatusOK, line)
				return
			}
		}
	}
	b.writeError(w, &problem{http.StatusNotFound, "task " + params["taskId"] + " not found"})
}

// cancelNamed cancels the message that a path names.
func (b *Broker) cancelNamed(params map[string]string) error {
	p := b.publications[params["messageId"]]
	if p == nil || !p.open() && !b.has(CompletedCancelled) {
		return &problem{http.StatusNotFound, "message " + params["messageId"] + " not found"}
	}
	b.cancel(p)
	return nil
}

// cancelMessageV1 answers DELETE /v1/messages/{messageId}.
func (b *Broker) cancelMessageV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.cancelNamed(params); err != nil {
		b.writeError(w, err)
		return
	}
	writeJSON(w, http.StatusAccepted, map[string]string{"status": "accepted"})
}

// cancelPublished answers DELETE /v2/messages/{messageId}.
func (b *Broker) cancelPublished(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.cancelNamed(params); err != nil {
		b.writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"cancelled": 1})
}

// selectors are what narrows messages, log entries and dead letters: by name, the values of a message to a target that are compared.
var selectors = map[string]func(t *task) []string{
	"messageIds":     func(t *task) []string { return []string{t.publication.id} },
	"messageIds[]":   func(t *task) []string { return []string{t.publication.id} },
	"url":            func(t *task) []string { return []string{t.url} },
	"host":           func(t *task) []string { return hostsOf(t.url) },
	"path":           func(t *task) []string { return []string{pathOf(t.url)} },
	"topicName":      func(t *task) []string { return []string{t.topic} },
	"queueName":      func(t *task) []string { return []string{t.queue} },
	"scheduleId":     func(t *task) []string { return []string{t.scheduleID} },
	"flowControlKey": func(t *task) []string { return []string{t.flow.key} },
	"label":          func(t *task) []string { return t.labels },
	"callerIp":       func(t *task) []string { return []string{t.callerIP} },
}

// hostsOf is the host of a URL with its port and without.
func hostsOf(text string) []string {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	return []string{strings.ToLower(u.Host), strings.ToLower(u.Hostname())}
}

func pathOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return u.EscapedPath()
}

// selection is what a request selects.
type selection struct {
	values   map[string][]string // by the name of the selector
	from, to time.Time           // zero means no bound
}

// selectionOf reads selectors. others are parameters that mean something else.
func (b *Broker) selectionOf(q url.Values, others ...string) (selection, error) {
	s := selection{values: map[string][]string{}}
	for name, given := range q {
		_, known := selectors[name]
		switch {
		case known:
			for _, text := range given {
				if name == "url" || name == "path" {
					s.values[name] = append(s.values[name], text)
				} else {
					s.values[name] = append(s.values[name], splitList(text)...)
				}
			}
			if len(s.values[name]) == 0 {
				return s, badRequest("bad query: %s must not be empty", name)
			}
			if b.has(SelectorFirstValue) {
				s.values[name] = s.values[name][:1]
			}
		case name == "fromDate" || name == "toDate":
			ms, err := strconv.ParseInt(given[0], 10, 64)
			if err != nil {
				return s, badRequest("bad query: %s must be an integer", name)
			}
			if name == "fromDate" {
				s.from = time.UnixMilli(ms)
			} else {
				s.to = time.UnixMilli(ms + 1).Add(-time.Microsecond)
			}
		case name == "api" || slices.Contains(others, name) || b.has(UnknownSelectorIgnored):
		default:
			return s, badRequest("bad query: %s is not known", name)
		}
	}
	return s, nil
}

// picks says whether a task of a moment is selected.
func (b *Broker) picks(s selection, t *task, at time.Time) bool {
	matched := 0
	for name, wanted := range s.values {
		if slices.ContainsFunc(selectors[name](t), func(v string) bool { return v != "" && slices.Contains(wanted, v) }) {
			matched++
		}
	}
	fits := matched == len(s.values) || matched > 0 && b.has(SelectorsWiden)
	return fits && (s.from.IsZero() || !at.Before(s.from)) && (s.to.IsZero() || !at.After(s.to))
}

// selectorBody adds the selectors of a JSON body to those of the query.
func (b *Broker) selectorBody(r *http.Request, lists ...string) (url.Values, error) {
	q := r.URL.Query()
	body, err := b.readBody(r)
	if err != nil || len(body) == 0 {
		return q, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return nil, badBody("must be an object")
	}
	for name, text := range members {
		var list []string
		var one string
		var number int64
		switch {
		case slices.Contains(lists, name) && json.Unmarshal(text, &list) == nil:
			q[name] = append(q[name], list...)
		case json.Unmarshal(text, &one) == nil:
			q.Add(name, one)
		case json.Unmarshal(text, &number) == nil:
			q.Add(name, strconv.FormatInt(number, 10))
		default:
			return nil, badBody("%s has a value of the wrong type", name)
		}
	}
	return q, nil
}

// countOf reads how many are wanted.
func countOf(q url.Values, otherwise, most int) (int, error) {
	if !q.Has("count") {
		return otherwise, nil
	}
	n, err := strconv.Atoi(q.Get("count"))
	if err != nil || n < 1 || n > most {
		return 0, badRequest("bad query: count must be from 1 to %d", most)
	}
	return n, nil
}

// cancelPublishedMany answers DELETE /v2/messages.
func (b *Broker) cancelPublishedMany(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	q, err := b.selectorBody(r, "messageIds")
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.selectionOf(q, "count")
	if err != nil {
		b.writeError(w, err)
		return
	}
	most, err := countOf(q, len(b.publications), 500)
	if err != nil {
		b.writeError(w, err)
		return
	}
	n := 0
	for _, p := range b.inOrder() {
		picked := slices.ContainsFunc(p.tasks, func(t *task) bool { return b.picks(s, t, p.created) })
		if !picked || n == most || !p.open() && !b.has(CompletedCounted) {
			continue
		}
		n++
		b.cancel(p)
	}
	writeJSON(w, http.StatusOK, map[string]int{"cancelled": n})
}

// states are the entries of the log that a filter by state means.
func statesOf(name string) ([]string, error) {
	switch name = strings.ToUpper(name); name {
	case "CANCELLED":
		return []string{"CANCELED"}, nil
	case "IN_PROGRESS":
		return []string{"ACTIVE", "RETRY", "ERROR"}, nil
	case "CREATED", "ACTIVE", "RETRY", "ERROR", "DELIVERED", "FAILED", "CANCEL_REQUESTED", "CANCELED":
		return []string{name}, nil
	}
	return nil, badRequest("bad query: state is not known")
}

// events are the entries of the log that are selected, the latest first.
func (b *Broker) events(s selection, states []string) []entry {
	found := slices.DeleteFunc(slices.Clone(b.log), func(e entry) bool {
		return !b.picks(s, e.task, e.at) || len(states) > 0 && !slices.Contains(states, e.state)
	})
	slices.Reverse(found)
	return found
}

func numberOf(e entry) int { return e.seq }

// writeEventsV1 answers a page of entries as version 1 shows them.
func (b *Broker) writeEventsV1(w http.ResponseWriter, r *http.Request, s selection) {
	page, cursor, err := cut(b.events(s, nil), r.URL.Query().Get("cursor"), pageV1, numberOf)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if b.has(EventsOnePage) {
		cursor = ""
	}
	lines := []map[string]any{}
	for _, e := range page {
		line := map[string]any{
			"id": strconv.Itoa(e.seq), "time": e.at.UnixMilli(), "messageId": e.task.publication.id, "taskId": e.task.id(), "state": e.state,
			"nextDeliveryTime": millis(e.next), "url": e.task.url,
		}
		if e.fault != "" {
			line["error"] = e.fault
		}
		lines = append(lines, line)
	}
	writePage(w, cursor, lines, "events")
}

// listEventsV1 answers GET /v1/events.
func (b *Broker) listEventsV1(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writeEventsV1(w, r, selection{})
}

// listLogsV1 answers GET /v1/logs.
func (b *Broker) listLogsV1(w http.ResponseWriter, r *http.Request, params map[string]string) {
	if b.has(LogsAliasEmpty) {
		writePage(w, "", []map[string]any{}, "events")
		return
	}
	b.listEventsV1(w, r, params)
}

// messageLogsV1 answers GET /v1/messages/{messageId}/logs.
func (b *Broker) messageLogsV1(w http.ResponseWriter, r *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := selection{values: map[string][]string{"messageIds": {params["messageId"]}}}
	if b.has(LogsOfAll) {
		s = selection{}
	}
	b.writeEventsV1(w, r, s)
}

// shownEvent is an entry of the log as version 2 shows it.
func (b *Broker) shownEvent(e entry) map[string]any {
	p := e.task.publication
	line := b.common(p, e.task.target)
	line["time"], line["state"] = e.at.UnixMilli(), e.state
	line["body"] = base64.StdEncoding.EncodeToString(b.shownBody(p))
	b.addGiven(line, p, "s")
	if !e.next.IsZero() {
		line["nextDeliveryTime"] = e.next.UnixMilli()
	}
	if e.fault != "" {
		line["error"] = e.fault
	}
	if p.timeout > 0 {
		line["timeout"] = p.timeout.Milliseconds()
	}
	if e.reply != nil && e.reply.status != 0 && !b.has(EventsWithoutAnswer) {
		maps.Copy(line, map[string]any{
			"responseStatus": e.reply.status, "responseHeaders": e.reply.header, "responseHeader": e.reply.header,
			"responseBody": base64.StdEncoding.EncodeToString(e.reply.body[:min(len(e.reply.body), 64<<10)]),
		})
	}
	return line
}

// eventsV2 reads a page of the log.
func (b *Broker) eventsV2(q url.Values, most int) (lines []map[string]any, cursor string, err error) {
	if q.Has("messageId") {
		q["messageIds"] = append(q["messageIds"], q["messageId"]...)
	}
	s, err := b.selectionOf(q, "messageId", "state", "order", "cursor", "count")
	if err != nil {
		return nil, "", err
	}
	var states []string
	for _, text := range q["state"] {
		for _, name := range splitList(text) {
			some, err := statesOf(name)
			if err != nil {
				return nil, "", err
			}
			states = append(states, some...)
		}
	}
	if b.has(StateFilterIgnored) {
		states = nil
	}
	found := b.events(s, states)
	if q.Get("order") == "earliestFirst" && !b.has(OrderIgnored) {
		slices.Reverse(found)
	}
	most, err = countOf(q, most, most)
	if err != nil {
		return nil, "", err
	}
	page, cursor, err := cut(found, q.Get("cursor"), most, numberOf)
	if err != nil {
		return nil, "", err
	}
	if cursor == "" && len(page) > 0 && b.has(CursorAtEnd) {
		cursor = fmt.Sprint(page[len(page)-1].seq)
	}
	lines = []map[string]any{}
	for _, e := range page {
		lines = append(lines, b.shownEvent(e))
	}
	return lines, cursor, nil
}

// listEvents answers GET /v2/events.
func (b *Broker) listEvents(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines, cursor, err := b.eventsV2(r.URL.Query(), 1000)
	if err != nil {
		b.writeError(w, err)
		return
	}
	writePage(w, cursor, lines, "events")
}

// listLogs answers GET /v2/logs.
func (b *Broker) listLogs(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	lines, cursor, err := b.eventsV2(r.URL.Query(), 100)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if b.has(LogsKeyEmpty) {
		answer := map[string]any{"events": lines, "logs": []any{}}
		writeJSON(w, http.StatusOK, answer)
		return
	}
	writePage(w, cursor, lines, "events", "logs")
}
