package reference

import (
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

func (b *Broker) dlqTable() []route {
	return []route{
		{"GET", "/v2/dlq", b.listFailed},
		{"DELETE", "/v2/dlq", b.deleteFailedMany},
		{"GET", "/v2/dlq/{dlqId}", b.getFailed},
		{"DELETE", "/v2/dlq/{dlqId}", b.deleteFailed},
		{"POST", "/v2/dlq/retry", b.retryFailedMany},
		{"POST", "/v2/dlq/retry/{dlqId}", b.retryFailed},
		{"GET", "/v2/keys", b.getKeys},
		{"POST", "/v2/keys/rotate", b.rotateKeys},
		{"POST", "/v2/rotate", b.rotateKeysAlias},
		{"GET", "/v1/keys", b.getKeysV1},
		{"POST", "/v1/keys/rotate", b.rotateKeysV1},
		{"GET", "/v1/quota", b.getQuota},
	}
}

// shownFailure is a dead letter as it is shown.
func (b *Broker) shownFailure(f *failure) map[string]any {
	line := b.shownMessage(f.task.publication, f.task.target)
	if b.has(DeadNotRedacted) {
		line["header"] = f.task.header
		addBody(line, "body", f.task.body)
	}
	line["dlqId"], line["responseStatus"] = f.id, f.reply.status
	switch {
	case b.has(DeadStatusOmitted):
		delete(line, "responseStatus")
	case f.reply.status != 0 && !b.has(DeadAnswerOmitted):
		line["responseHeader"] = f.reply.header
		addBody(line, "responseBody", f.reply.body[:min(len(f.reply.body), 64<<10)])
	case f.reply.status == 0 && b.has(SilenceIs502):
		line["responseStatus"] = http.StatusBadGateway
	}
	return line
}

// failuresOf are the dead letters that a query selects, the oldest first. named are those of dlqIds, in that order.
func (b *Broker) failuresOf(q url.Values) (found []*failure, named []string, err error) {
	q = maps.Clone(q)
	if q.Has("messageId") {
		q["messageIds"] = slices.Concat(q["messageIds"], q["messageId"])
	}
	own := []string{"dlqIds", "dlqIds[]", "responseStatus"}
	others := append(own, "messageId", "count", "cursor", "order", "earliestFirst")
	if b.has(DeadUnknownIgnored) {
		others = slices.Collect(maps.Keys(q))
	}
	s, err := b.selectionOf(q, others...)
	if err != nil {
		return nil, nil, err
	}
	given := map[string][]string{}
	for _, name := range own {
		for _, text := range q[name] {
			given[name] = append(given[name], splitList(text)...)
		}
		if q.Has(name) && len(given[name]) == 0 {
			return nil, nil, badRequest("bad query: %s must not be empty", name)
		}
	}
	for _, text := range given["responseStatus"] {
		if _, err := strconv.Atoi(text); err != nil {
			return nil, nil, badRequest("bad query: responseStatus must be an integer")
		}
	}
	named = slices.Concat(given["dlqIds"], given["dlqIds[]"])
	for _, f := range b.failures {
		byID := len(named) == 0 || slices.Contains(named, f.id)
		statuses := given["responseStatus"]
		byStatus := len(statuses) == 0 || slices.Contains(statuses, strconv.Itoa(f.reply.status)) || b.has(DeadStatusFilterIgnored)
		if byID && byStatus && b.picks(s, f.task, f.at) {
			found = append(found, f)
		}
	}
	return found, named, nil
}

const pageOfFailures = 100

// cutFailures is the page of a list that a query asks for, at most so many by itself, and the cursor of the next one.
func cutFailures(list []*failure, q url.Values, otherwise int) (page []*failure, cursor string, err error) {
	wanted := otherwise
	if q.Has("count") {
		if wanted, err = countOf(q, otherwise, pageOfFailures); err != nil {
			return nil, "", err
		}
	}
	if after := q.Get("cursor"); after != "" {
		at := slices.IndexFunc(list, func(f *failure) bool { return f.id == after })
		if at < 0 {
			return nil, "", badRequest("bad query: cursor is none of this list")
		}
		list = list[at+1:]
	}
	if len(list) > wanted {
		return list[:wanted], list[wanted-1].id, nil
	}
	return list, "", nil
}

// listFailed answers GET /v2/dlq.
func (b *Broker) listFailed(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := r.URL.Query()
	found, _, err := b.failuresOf(q)
	if err != nil {
		b.writeError(w, err)
		return
	}
	oldest := q.Get("order") == "earliestFirst" || isTrue(q.Get("earliestFirst"))
	if !oldest || b.has(DeadOrderIgnored) {
		slices.Reverse(found)
	}
	page, cursor, err := cutFailures(found, q, pageOfFailures)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if cursor == "" && len(page) > 0 && b.has(DeadCursorAtEnd) {
		cursor = page[len(page)-1].id
	}
	lines := []map[string]any{}
	for _, f := range page {
		lines = append(lines, b.shownFailure(f))
	}
	writePage(w, cursor, lines, "messages")
}

// failureOf is the dead letter that a path names.
func (b *Broker) failureOf(params map[string]string) (*failure, error) {
	for _, f := range b.failures {
		if f.id == params["dlqId"] {
			return f, nil
		}
	}
	return nil, &problem{http.StatusNotFound, "dead letter " + params["dlqId"] + " not found"}
}

// getFailed answers GET /v2/dlq/{dlqId}.
func (b *Broker) getFailed(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := b.failureOf(params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if b.has(DeadReadFirst) {
		f = b.failures[0]
	}
	writeJSON(w, http.StatusOK, b.shownFailure(f))
}

// exhume takes dead letters off the list.
func (b *Broker) exhume(gone ...*failure) {
	b.failures = slices.DeleteFunc(b.failures, func(f *failure) bool { return slices.Contains(gone, f) })
}

// deleteFailed answers DELETE /v2/dlq/{dlqId}.
func (b *Broker) deleteFailed(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := b.failureOf(params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if !b.has(DeadDeletionIgnored) {
		b.exhume(f)
	}
	writeJSON(w, http.StatusOK, map[string]int{"deleted": 1})
}

// selectedFailures are the dead letters that a bulk route is about.
func (b *Broker) selectedFailures(q url.Values, otherwise int) (page []*failure, named []string, cursor string, err error) {
	found, named, err := b.failuresOf(q)
	if err != nil {
		return nil, nil, "", err
	}
	if len(named) > 0 {
		otherwise = len(named)
	}
	page, cursor, err = cutFailures(found, q, otherwise)
	return page, named, cursor, err
}

// deleteFailedMany answers DELETE /v2/dlq.
func (b *Broker) deleteFailedMany(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	q, err := b.selectorBody(r, "messageIds", "dlqIds")
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	page, _, cursor, err := b.selectedFailures(q, math.MaxInt)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if b.has(DeadDeletionShort) && len(page) > 1 {
		page = page[:1]
	}
	b.exhume(page...)
	answer := map[string]any{"deleted": len(page)}
	if cursor != "" {
		answer["cursor"] = cursor
	}
	writeJSON(w, http.StatusOK, answer)
}

// overriding is what the headers of a retry change of a message.
func (b *Broker) overriding(header http.Header) (func(*outgoing), error) {
	header = header.Clone()
	header.Del("Content-Type") // it is that of this request
	p := publishing{header: header}
	changed, err := b.outgoingOf(p)
	if err != nil {
		return nil, err
	}
	return func(m *outgoing) {
		m.header = m.header.Clone()
		if !b.has(RetryWaitsAgain) {
			m.delay, m.notBefore = changed.delay, changed.notBefore
		}
		if b.has(RetryOverridesIgnored) {
			return
		}
		if b.has(RetryForgetsHeader) {
			m.header = http.Header{}
		}
		maps.Copy(m.header, changed.header)
		for name, change := range map[string]func(){
			"Upstash-Method":           func() { m.method = changed.method },
			"Upstash-Label":            func() { m.labels = changed.labels },
			"Upstash-Retries":          func() { m.retries = changed.retries },
			"Upstash-Retry-Delay":      func() { m.retryDelay = changed.retryDelay },
			"Upstash-Timeout":          func() { m.timeout = changed.timeout },
			"Upstash-Callback":         func() { m.callback = changed.callback },
			"Upstash-Failure-Callback": func() { m.failureCallback = changed.failureCallback },
			"Upstash-Queue-Name":       func() { m.queue = changed.queue },
			"Upstash-Flow-Control-Key": func() { m.flow = changed.flow },
			"Upstash-Redact-Fields": func() { // what is hidden stays hidden
				m.redact.body = m.redact.body || changed.redact.body
				m.redact.allHeaders = m.redact.allHeaders || changed.redact.allHeaders
				m.redact.headers = slices.Concat(m.redact.headers, changed.redact.headers)
			},
		} {
			if p.get(name) != "" || b.has(RetryForgetsSettings) {
				change()
			}
		}
	}, nil
}

// resend publishes dead letters anew, and returns the answer for each.
func (b *Broker) resend(override func(*outgoing), list ...*failure) map[string]map[string]any {
	if !b.has(RetryKeepsDead) {
		b.exhume(list...)
	}
	answers := map[string]map[string]any{}
	for _, f := range list {
		m := f.task.outgoing
		m.targets = []target{f.task.target}
		override(&m)
		var id string
		if b.has(RetryOfOldMessage) { // what failed is tried once more, instead of a new message
			f.task.finished, f.task.due = false, b.now()
			b.pending = append(b.pending, f.task)
			b.startDue()
			id = f.task.publication.id
		} else {
			id = b.accept("", m).ids[0]
		}
		answers[f.id] = map[string]any{"messageId": id, "url": f.task.url}
	}
	return answers
}

// retryFailed answers POST /v2/dlq/retry/{dlqId}.
func (b *Broker) retryFailed(w http.ResponseWriter, r *http.Request, params map[string]string) {
	header, _ := b.upstashHeaders(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	f, err := b.failureOf(params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	override, err := b.overriding(header)
	if err != nil {
		b.writeError(w, err)
		return
	}
	writeJSON(w, http.StatusCreated, b.resend(override, f)[f.id])
}

// retryFailedMany answers POST /v2/dlq/retry.
func (b *Broker) retryFailedMany(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	header, rest := b.upstashHeaders(r)
	r.URL.RawQuery = rest
	q, err := b.selectorBody(r, "messageIds", "dlqIds")
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	override, err := b.overriding(header)
	if err != nil {
		b.writeError(w, err)
		return
	}
	page, named, cursor, err := b.selectedFailures(q, pageOfFailures)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if len(named) > 0 {
		slices.SortFunc(page, func(x, y *failure) int { return slices.Index(named, x.id) - slices.Index(named, y.id) })
	}
	if b.has(RetriesFirstOnly) && len(page) > 1 {
		page = page[:1]
	}
	fresh := b.resend(override, page...)
	lines := []map[string]any{}
	for _, f := range page {
		lines = append(lines, fresh[f.id])
	}
	if b.has(RetriesUnanswered) {
		lines = lines[:0]
	}
	answer := map[string]any{"responses": lines}
	if cursor != "" {
		answer["cursor"] = cursor
	}
	writeJSON(w, http.StatusCreated, answer)
}

// newKey mints a signing key.
func newKey() string { return "sig_" + strings.ReplaceAll(uuid.NewString(), "-", "") }

// signingKey is the key that a delivery is signed with.
func (b *Broker) signingKey() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.has(SignedWithNext):
		return b.keys[1]
	case b.has(RotationSignsWithOld) && b.oldKey != "":
		return b.oldKey
	}
	return b.keys[0]
}

func (b *Broker) writeKeys(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, map[string]string{"current": b.keys[0], "next": b.keys[1]})
}

// getKeys answers GET /v2/keys.
func (b *Broker) getKeys(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writeKeys(w)
}

// getKeysV1 answers GET /v1/keys.
func (b *Broker) getKeysV1(w http.ResponseWriter, r *http.Request, params map[string]string) {
	if b.has(KeysV1Differ) {
		writeJSON(w, http.StatusOK, map[string]string{"current": newKey(), "next": newKey()})
		return
	}
	b.getKeys(w, r, params)
}

// rotateKeys answers POST /v2/keys/rotate.
func (b *Broker) rotateKeys(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.oldKey = b.keys[0]
	switch {
	case b.has(RotationOfBoth):
		b.keys = [2]string{newKey(), newKey()}
	case b.has(RotationKeepsNext):
		b.keys[0] = b.keys[1]
	default:
		b.keys = [2]string{b.keys[1], newKey()}
	}
	b.writeKeys(w)
}

// rotateKeysAlias answers POST /v2/rotate.
func (b *Broker) rotateKeysAlias(w http.ResponseWriter, r *http.Request, params map[string]string) {
	if b.has(RotationAliasIdle) {
		b.getKeys(w, r, params)
		return
	}
	b.rotateKeys(w, r, params)
}

// rotateKeysV1 answers POST /v1/keys/rotate.
func (b *Broker) rotateKeysV1(w http.ResponseWriter, r *http.Request, params map[string]string) {
	if b.has(RotationV1Idle) {
		b.getKeys(w, r, params)
		return
	}
	b.rotateKeys(w, r, params)
}

// getQuota answers GET /v1/quota. This broker has few bounds.
func (b *Broker) getQuota(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	quota := map[string]any{
		"maxTopics": -1, "maxEndpointsPerTopic": 100, "maxMessageSize": maxBody, "maxRetries": -1, "maxSchedules": -1,
		"maxRequestsPerDay": -1, "retention": -1, "timeout": int(deliverer.Timeout.Seconds()), "maxDelay": -1,
	}
	if b.has(QuotaUnlimitedText) {
		quota["maxTopics"] = "unlimited"
	}
	writeJSON(w, http.StatusOK, quota)
}
