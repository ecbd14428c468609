package reference

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func (b *Broker) publishTable() []route {
	return []route{
		{"POST", "/v1/publish/{destination}", b.publishV1},
		{"GET", "/v1/messages", b.listMessagesV1},
		{"GET", "/v1/messages/{messageId}", b.getMessageV1},
		{"DELETE", "/v1/messages/{messageId}", b.cancelMessageV1},
		{"GET", "/v1/messages/{messageId}/tasks", b.listTasksV1},
		{"GET", "/v1/messages/{messageId}/logs", b.messageLogsV1},
		{"GET", "/v1/tasks/{taskId}", b.getTaskV1},
		{"GET", "/v1/events", b.listEventsV1},
		{"GET", "/v1/logs", b.listLogsV1},
		{"POST", "/v2/publish/{destination}", b.publish},
		{"POST", "/v2/batch", b.publishBatch},
		{"DELETE", "/v2/messages", b.cancelPublishedMany},
		{"GET", "/v2/messages/{messageId}", b.getPublished},
		{"DELETE", "/v2/messages/{messageId}", b.cancelPublished},
		{"GET", "/v2/events", b.listEvents},
		{"GET", "/v2/logs", b.listLogs},
	}
}

// publishing is a publish as it was asked for.
type publishing struct {
	destination string      // a URL with its query, or the name of a topic
	header      http.Header // with those that came in the query
	body        []byte
	queue       string // the delivery queue of the path or of an item; "" means what the header says
	callerIP    string
}

// publishingOf reads a publish route.
func (b *Broker) publishingOf(r *http.Request, params map[string]string) (publishing, error) {
	body, err := b.readAny(r)
	if err != nil {
		return publishing{}, err
	}
	h, query := b.upstashHeaders(r)
	destination, err := b.destination(params["destination"], query)
	if err != nil {
		return publishing{}, err
	}
	return publishing{destination: destination, header: h, body: body, queue: params["queueName"], callerIP: callerIP(r)}, nil
}

func callerIP(r *http.Request) string {
	ip, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return ip
}

// get is a header without white space around it; "" when it was not given.
func (p *publishing) get(name string) string { return strings.TrimSpace(p.header.Get(name)) }

var (
	topicName   = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
	delayParts  = regexp.MustCompile(`^(\d+[smhd])+$`)
	delayPart   = regexp.MustCompile(`(\d+)([smhd])`)
	delayLength = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
)

// upstashHeaders are the headers of a publish with those that came in the query, and the query that is left.
func (b *Broker) upstashHeaders(r *http.Request) (http.Header, string) {
	h := r.Header.Clone()
	var kept []string
	for pair := range strings.SplitSeq(r.URL.RawQuery, "&") {
		name, value, _ := strings.Cut(pair, "=")
		own := strings.HasPrefix(strings.ToLower(name), "upstash-")
		if name == tokenParameter {
			continue
		}
		if own && !b.has(QueryHeadersIgnored) {
			if decoded, err := url.QueryUnescape(value); err == nil {
				h.Set(name, decoded)
			}
		}
		if !own || b.has(QueryHeadersKept) {
			kept = append(kept, pair)
		}
	}
	return h, strings.Join(kept, "&")
}

// destination reads the rest of a path and the query that is left: a URL, or a name.
func (b *Broker) destination(rest, query string) (string, error) {
	if !strings.Contains(rest, "://") && strings.Contains(rest, "%") && !b.has(EncodedDestinationRefused) {
		if decoded, err := url.PathUnescape(rest); err == nil {
			rest = decoded
		}
	}
	if scheme, path, _ := strings.Cut(rest, ":/"); isURL(rest) && path != "" && path[0] != '/' && !b.has(CollapsedSlashRefused) {
		rest = scheme + "://" + path
	}
	if scheme, path, found := strings.Cut(rest, "://"); found && b.has(DestinationCleaned) {
		rest = scheme + "://" + strings.ReplaceAll(path, "//", "/")
	}
	if isURL(rest) && query != "" {
		rest += "?" + query
	}
	return rest, b.checkDestination(rest)
}

func isURL(text string) bool {
	scheme, _, found := strings.Cut(text, ":")
	return found && (scheme == "http" || scheme == "https")
}

func (b *Broker) checkDestination(destination string) error {
	queue, isQueue := strings.CutPrefix(destination, queueScheme)
	switch {
	case destination == "":
		return badRequest("a non-empty destination must be provided")
	case isURL(destination):
		u, err := url.Parse(destination)
		if err != nil || u.Host == "" || u.User != nil && !b.has(UserInfoAccepted) {
			return badRequest("invalid destination url: it has no host, or user info")
		}
		return nil
	case isQueue && queue == "":
		return badRequest("invalid destination: the queue must not be empty")
	case isQueue, topicName.MatchString(destination), b.has(AnyScheme) && strings.Contains(destination, ":"):
		return nil
	}
	return badRequest("invalid destination url: endpoint has invalid scheme, add http:// or https://")
}

// aim sets where a message goes.
func (b *Broker) aim(m *outgoing, destination string) error {
	t := b.topicNamed(destination)
	switch {
	case strings.HasPrefix(destination, queueScheme) && !json.Valid(m.body):
		return badRequest("a message to a queue must be JSON")
	case strings.Contains(destination, ":"):
		m.targets = []target{{url: destination}}
	case t != nil:
		return b.aimAt(m, t)
	case b.has(UnknownTopicAccepted):
		m.targets = []target{{url: "http://" + destination}}
	default:
		return noTopic(destination)
	}
	return nil
}

// delayOf reads a duration of a message; "" is none.
func (b *Broker) delayOf(name, text string) (time.Duration, error) {
	if text == "" || b.has(PublishDelayIgnored) {
		return 0, nil
	}
	if b.has(CompoundDelayCut) && delayParts.MatchString(text) {
		text = delayPart.FindString(text)
	}
	return durationOf(name, text)
}

func durationOf(name, text string) (time.Duration, error) {
	if !delayParts.MatchString(text) {
		return 0, badRequest("%s must be a duration like 10s or 1d10h30m", name)
	}
	var total time.Duration
	for _, part := range delayPart.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(part[1]) // it has digits only
		total += time.Duration(n) * delayLength[part[2]]
	}
	return total, nil
}

func retriesOf(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, badRequest("%s must be an integer from 0", name)
	}
	return n, nil
}

func isTrue(text string) bool { return strings.EqualFold(text, "true") }

// boolOf reads a boolean; "" is false.
func (b *Broker) boolOf(name, text string) (bool, error) {
	switch {
	case b.has(BooleansExact):
		return text == "true", nil
	case isTrue(text), text == "1":
		return true, nil
	case text == "", strings.EqualFold(text, "false"), text == "0":
		return false, nil
	}
	return false, badRequest("%s must be true or false", name)
}

// outgoingOf reads everything but where the message goes.
func (b *Broker) outgoingOf(p publishing) (outgoing, error) {
	m := outgoing{method: http.MethodPost, body: p.body, header: b.forwarded(p.header), queue: p.queue, callerIP: p.callerIP, retries: 3}
	if err := b.checkForwarded(p.header); err != nil {
		return m, err
	}
	if m.queue == "" && !b.has(QueueHeaderIgnored) {
		m.queue = p.get("Upstash-Queue-Name")
	}
	if m.queue != "" {
		if err := b.checkQueueName(m.queue); err != nil {
			return m, err
		}
	}
	if method := p.get("Upstash-Method"); method != "" && !b.has(MethodIgnored) {
		m.method = strings.ToUpper(method)
	}
	m.labels = splitList(p.get("Upstash-Label"))
	var err error
	if m.delay, err = b.delayOf("Upstash-Delay", p.get("Upstash-Delay")); err != nil {
		return m, err
	}
	if text := p.get("Upstash-Not-Before"); text != "" && !b.has(PublishNotBeforeIgnored) {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds < 0 {
			return m, badRequest("Upstash-Not-Before must be a unix timestamp in seconds")
		}
		m.notBefore = time.Unix(seconds, 0)
	}
	if text := p.get("Upstash-Retries"); text != "" && !b.has(RetriesIgnored) {
		if m.retries, err = retriesOf("Upstash-Retries", text); err != nil {
			return m, err
		}
	}
	m.retryDelay = p.get("Upstash-Retry-Delay")
	if err := checkExpression("Upstash-Retry-Delay", m.retryDelay); err != nil {
		return m, err
	}
	if m.timeout, err = b.delayOf("Upstash-Timeout", p.get("Upstash-Timeout")); err != nil {
		return m, err
	}
	if m.redact, err = redactionOf(p.get("Upstash-Redact-Fields")); err != nil {
		return m, err
	}
	if m.flow, err = b.flowOf(p); err != nil {
		return m, err
	}
	if m.callback, err = b.callbackOf(p, "Upstash-Callback"); err != nil {
		return m, err
	}
	m.failureCallback, err = b.callbackOf(p, "Upstash-Failure-Callback")
	return m, err
}

func checkExpression(name, expression string) error {
	if expression == "" {
		return nil
	}
	if _, err := evaluate(expression, 0); err != nil {
		return badRequest("%s: %v", name, err)
	}
	return nil
}

// splitList splits what is separated by commas.
func splitList(text string) []string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// notForwarded are headers of a request that are the broker's or the connection's own.
var notForwarded = []string{"Authorization", "Content-Type", "User-Agent", "Accept-Encoding", "Connection", "Content-Length", "Host"}

// unforwardable are headers that belong to a connection, and to one message.
var unforwardable = []string{
	"Connection", "Content-Length", "Host", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Upstash-Signature",
}

const (
	maxForwarded      = 64
	maxForwardedBytes = 16 << 10
)

// checkForwarded refuses headers that cannot be forwarded.
func (b *Broker) checkForwarded(h http.Header) error {
	count, size := 0, 0
	for name, values := range h {
		rest, ok := strings.CutPrefix(name, "Upstash-Forward-")
		if !ok {
			continue
		}
		if (slices.Contains(unforwardable, rest) || strings.HasPrefix(rest, "Proxy-")) && !b.has(ForwardUnchecked) {
			return badRequest("Upstash-Forward-%s cannot be forwarded", rest)
		}
		for _, value := range values {
			count, size = count+1, size+len(rest)+len(value)
		}
	}
	if (count > maxForwarded || size > maxForwardedBytes) && !b.has(ForwardUnbounded) {
		return badRequest("at most %d headers of together %d bytes can be forwarded", maxForwarded, maxForwardedBytes)
	}
	return nil
}

// forwarded are the headers of the delivery.
func (b *Broker) forwarded(h http.Header) http.Header {
	forwarded := http.Header{}
	if content := h.Get("Content-Type"); content != "" {
		forwarded.Set("Content-Type", content)
	} else if b.has(ContentTypeInvented) {
		forwarded.Set("Content-Type", "application/json")
	}
	all := isTrue(h.Get("Upstash-Header-Forward")) && !b.has(HeaderForwardIgnored)
	for name, values := range h {
		rest, given := strings.CutPrefix(name, "Upstash-Forward-")
		switch {
		case given && !b.has(ForwardIgnored):
			forwarded[http.CanonicalHeaderKey(rest)] = values
		case all && name == "Authorization" && b.has(TokenForwarded), b.has(AllForwarded) && strings.HasPrefix(name, "X-"),
			all && !strings.HasPrefix(name, "Upstash-") && !slices.Contains(notForwarded, name):
			if h.Get("Upstash-Forward-"+name) == "" {
				forwarded[name] = values
			}
		}
	}
	return forwarded
}

// callbackOf reads the headers of a callback.
func (b *Broker) callbackOf(p publishing, name string) (*callback, error) {
	to := p.get(name)
	if to == "" {
		return nil, nil //nolint:nilnil // most messages have none
	}
	if !isURL(to) {
		return nil, badRequest("%s: invalid destination url: endpoint has invalid scheme, add http:// or https://", name)
	}
	c := &callback{url: to, method: strings.ToUpper(p.get(name + "-Method")), header: http.Header{}, given: http.Header{}}
	for key, values := range p.header {
		if rest, own := strings.CutPrefix(key, name+"-"); own {
			c.given[rest] = values
			if forward, ok := strings.CutPrefix(rest, "Forward-"); ok {
				c.header[http.CanonicalHeaderKey(forward)] = values
			}
		}
	}
	if text := p.get(name + "-Retries"); text != "" {
		n, err := retriesOf(name+"-Retries", text)
		if err != nil {
			return nil, err
		}
		c.retries = &n
	}
	c.retryDelay = p.get(name + "-Retry-Delay")
	if err := checkExpression(name+"-Retry-Delay", c.retryDelay); err != nil {
		return nil, err
	}
	var err error
	if c.delay, err = b.delayOf(name+"-Delay", p.get(name+"-Delay")); err != nil {
		return nil, err
	}
	if text := p.get(name + "-Timeout"); text != "" {
		timeout, err := b.delayOf(name+"-Timeout", text)
		if err != nil {
			return nil, err
		}
		c.timeout = &timeout
	}
	return c, nil
}

// dedupOf is the deduplication id of a publish; "" when it has none. taken says which headers are content.
func (b *Broker) dedupOf(p publishing, taken func(name string) bool) (string, error) {
	byContent, err := b.boolOf("Upstash-Content-Based-Deduplication", p.get("Upstash-Content-Based-Deduplication"))
	if err != nil {
		return "", err
	}
	if id := p.header.Get("Upstash-Deduplication-Id"); id != "" && (!byContent || !b.has(ContentWins)) {
		if strings.ContainsAny(id, ": \t") && !b.has(DedupIDUnchecked) {
			return "", badRequest("DeduplicationId cannot contain ':' or white space")
		}
		return id, nil
	}
	if !byContent || b.has(ContentDedupIgnored) {
		return "", nil
	}
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(p.header)) {
		if taken(name) && !b.has(ContentDedupIgnoresHeaders) {
			fmt.Fprintf(hash, "%q%q", name, p.header[name])
		}
	}
	body, destination := p.body, p.destination
	if b.has(ContentDedupIgnoresBody) {
		body = nil
	}
	if b.has(ContentDedupIgnoresURL) {
		destination = ""
	}
	fmt.Fprintf(hash, "%q%q", body, destination)
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// contentV1 and contentV2 say which headers belong to the content of a message.
func contentV1(name string) bool { return strings.HasPrefix(name, "Upstash-") }

func (b *Broker) contentV2(name string) bool {
	if b.has(ContentDedupLikeV1) {
		return contentV1(name)
	}
	return name == "Content-Type" && !b.has(ContentDedupIgnoresType) || strings.HasPrefix(name, "Upstash-Forward-")
}

// publishV1 answers POST /v1/publish/….
func (b *Broker) publishV1(w http.ResponseWriter, r *http.Request, params map[string]string) {
	p, err := b.publishingOf(r, params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	a, id, err := b.acceptV1(p)
	if err != nil {
		b.writeError(w, err)
		return
	}
	if id != "" {
		w.Header().Set("Upstash-Deduplication-Id", id)
	}
	answer, status := map[string]any{}, http.StatusCreated
	if b.has(PublishAnswers200) {
		status = http.StatusOK
	}
	if a.duplicate {
		answer["deduplicated"], status = true, http.StatusAccepted
	}
	if a.schedule != "" {
		answer["scheduleId"] = a.schedule
	} else {
		answer["messageId"] = a.ids[0]
	}
	writeJSON(w, status, answer)
}

// acceptV1 accepts a publish of version 1, or the schedule that it asks for, and returns its deduplication id as well.
func (b *Broker) acceptV1(p publishing) (a acceptance, id string, err error) {
	if id, err = b.dedupOf(p, contentV1); err != nil {
		return a, "", err
	}
	if p.get("Upstash-Cron") != "" {
		a, err = b.schedulePublish(p, id)
		return a, id, err
	}
	m, err := b.outgoingOf(p)
	if err != nil {
		return a, "", err
	}
	if err := b.aim(&m, p.destination); err != nil {
		return a, "", err
	}
	if b.has(TopicFirstOnly) {
		m.targets = m.targets[:1]
	}
	return b.accept(id, m), id, nil
}

// published is what a publish of version 2 is answered: a result, or a list of them for a topic.
type published struct {
	answer    any
	duplicate bool
}

// publishOne publishes one message per target. The caller holds the lock.
func (b *Broker) publishOne(p publishing) (published, error) {
	if p.get("Upstash-Cron") != "" {
		return published{}, badRequest("Upstash-Cron belongs to /v2/schedules")
	}
	m, err := b.outgoingOf(p)
	if err != nil {
		return published{}, err
	}
	id, err := b.dedupOf(p, b.contentV2)
	if err != nil {
		return published{}, err
	}
	if err := b.aim(&m, p.destination); err != nil {
		return published{}, err
	}
	targets := m.targets
	messages := make([]outgoing, len(targets))
	for i, to := range targets {
		messages[i] = m
		messages[i].targets = []target{to}
	}
	a := b.accept(id, messages...)
	results := []map[string]any{}
	for i, id := range a.ids {
		result := map[string]any{"messageId": id, "url": targets[min(i, len(targets)-1)].url}
		if a.duplicate {
			result["deduplicated"] = true
		}
		results = append(results, result)
	}
	if m.topic != "" && !b.has(GroupAnswersFirst) {
		return published{results, a.duplicate}, nil
	}
	return published{results[0], a.duplicate}, nil
}

// publish answers POST /v2/publish/….
func (b *Broker) publish(w http.ResponseWriter, r *http.Request, params map[string]string) {
	p, err := b.publishingOf(r, params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out, err := b.publishOne(p)
	if err != nil {
		b.writeError(w, err)
		return
	}
	status := http.StatusOK
	if out.duplicate {
		status = http.StatusAccepted
	}
	writeJSON(w, status, out.answer)
}

// batchItem is one publish of a batch.
type batchItem struct {
	Destination string                     `json:"destination"`
	Headers     map[string]json.RawMessage `json:"headers"`
	Body        *string                    `json:"body"`
	Queue       *string                    `json:"queue"`
}

// publishBatch answers POST /v2/batch.
func (b *Broker) publishBatch(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	var items []batchItem
	if err := json.Unmarshal(body, &items); err != nil || items == nil {
		b.writeError(w, badBody("must be an array of items"))
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	results := []any{}
	order := slices.Clone(items)
	if b.has(BatchQueuesReversed) {
		slices.Reverse(order)
	}
	for _, item := range order {
		out, err := b.publishItem(item, callerIP(r))
		switch {
		case err == nil:
			list, ok := out.answer.([]map[string]any)
			if ok && b.has(BatchGroupsFlat) {
				out.answer = list[0]
			}
			results = append(results, out.answer)
		case b.has(BatchStopsAtError):
			b.writeError(w, err)
			return
		default:
			results = append(results, map[string]string{"error": err.Error()})
		}
	}
	if b.has(BatchAnswersReversed) != b.has(BatchQueuesReversed) {
		slices.Reverse(results)
	}
	writeJSON(w, http.StatusOK, results)
}

func (b *Broker) publishItem(item batchItem, ip string) (published, error) {
	p := publishing{destination: strings.TrimSpace(item.Destination), header: http.Header{}, callerIP: ip}
	if err := b.checkDestination(p.destination); err != nil {
		return published{}, err
	}
	for name, text := range item.Headers {
		values, err := headerValues(text)
		if err != nil {
			return published{}, badRequest("headers.%s must be a string or an array of strings", name)
		}
		p.header[textproto.CanonicalMIMEHeaderKey(name)] = values
	}
	if item.Body != nil {
		p.body = []byte(*item.Body)
	}
	if item.Queue != nil && !b.has(BatchQueueIgnored) {
		p.queue = *item.Queue
	}
	return b.publishOne(p)
}

func headerValues(text json.RawMessage) ([]string, error) {
	var one *string
	if err := json.Unmarshal(text, &one); err == nil {
		if one == nil {
			return nil, nil
		}
		return []string{*one}, nil
	}
	var list []string
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, errors.New("it is neither a string nor a list of them")
	}
	return list, nil
}

// readAny reads a body that may be any bytes.
func (b *Broker) readAny(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return nil, badBody("cannot be read: %v", err)
	}
	if b.has(PublishBodyTrimmed) {
		body = bytes.TrimSpace(body)
	}
	return body, nil
}
