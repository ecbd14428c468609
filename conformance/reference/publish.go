package reference

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// publishWindow is how long a deduplication id counts.
const publishWindow = 90 * 24 * time.Hour

// publication is a message that is delivered by HTTP.
type publication struct {
	id       string
	url      string
	method   string
	header   http.Header
	body     []byte
	created  time.Time
	first    time.Time // when the first attempt is due
	due      time.Time // of the next attempt
	retries  int
	retried  int // attempts that are over
	flying   bool
	finished bool
	log      []event
}

// event is one entry of a publication's log.
type event struct {
	at    time.Time
	state string
	next  time.Time
	fault string
}

func (p *publication) note(at time.Time, state string) {
	p.log = append(p.log, event{at: at, state: state})
}

// accepted is a publish that a deduplication id stands for.
type accepted struct {
	id string
	at time.Time
}

// restOf is the end of a path as it was sent.
func restOf(r *http.Request, prefix string) (string, bool) {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if len(path) < len(prefix) || !strings.EqualFold(path[:len(prefix)], prefix) {
		return "", false
	}
	return path[len(prefix):], true
}

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

func (b *Broker) destination(rest, query string) (string, error) {
	if strings.Contains(rest, "%3A") && !strings.Contains(rest, ":") && !b.has(EncodedDestinationRefused) {
		if decoded, err := url.PathUnescape(rest); err == nil {
			rest = decoded
		}
	}
	if scheme, path, found := strings.Cut(rest, "://"); found && b.has(DestinationCleaned) {
		rest = scheme + "://" + strings.ReplaceAll(path, "//", "/")
	}
	scheme, _, found := strings.Cut(rest, ":")
	switch {
	case found && (scheme == "http" || scheme == "https"):
	case found && b.has(AnyScheme):
		return rest, nil
	case !topicName.MatchString(rest):
		return "", badRequest("invalid destination url: endpoint has invalid scheme, add http:// or https://")
	case b.has(UnknownTopicAccepted):
		return "http://" + rest, nil
	default:
		return "", &problem{http.StatusNotFound, "topic " + rest + " not found"}
	}
	if query != "" {
		rest += "?" + query
	}
	return rest, nil
}

// delayOf reads Upstash-Delay.
func (b *Broker) delayOf(text string) (time.Duration, error) {
	if text == "" || b.has(PublishDelayIgnored) {
		return 0, nil
	}
	parts := delayPart.FindAllStringSubmatch(text, -1)
	if !delayParts.MatchString(text) {
		return 0, badRequest("Upstash-Delay must be a duration like 10s or 1d10h30m")
	}
	var total time.Duration
	for _, part := range parts {
		n, _ := strconv.Atoi(part[1]) // it has digits only
		total += time.Duration(n) * delayLength[part[2]]
		if b.has(CompoundDelayCut) {
			break
		}
	}
	return total, nil
}

// publicationOf reads a publish.
func (b *Broker) publicationOf(h http.Header, destination string, body []byte, now time.Time) (*publication, error) {
	p := &publication{
		id: "msg_" + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", ""), url: destination, method: http.MethodPost, body: body,
		header: http.Header{}, created: now, first: now, retries: 3,
	}
	if content := h.Get("Content-Type"); content != "" {
		p.header.Set("Content-Type", content)
	} else if b.has(ContentTypeInvented) {
		p.header.Set("Content-Type", "application/json")
	}
	if method := h.Get("Upstash-Method"); method != "" && !b.has(MethodIgnored) {
		p.method = method
	}
	for name, values := range h {
		if rest, ok := strings.CutPrefix(name, "Upstash-Forward-"); ok && !b.has(ForwardIgnored) {
			p.header[http.CanonicalHeaderKey(rest)] = values
		} else if b.has(AllForwarded) && strings.HasPrefix(name, "X-") {
			p.header[name] = values
		}
	}
	delay, err := b.delayOf(h.Get("Upstash-Delay"))
	if err != nil {
		return nil, err
	}
	p.first = now.Add(delay)
	if text := h.Get("Upstash-Not-Before"); text != "" && !b.has(PublishNotBeforeIgnored) {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds < 0 {
			return nil, badRequest("Upstash-Not-Before must be a unix timestamp in seconds")
		}
		p.first = time.Unix(seconds, 0)
	}
	if p.first.Before(now) {
		p.first = now
	}
	if text := h.Get("Upstash-Retries"); text != "" && !b.has(RetriesIgnored) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil, badRequest("Upstash-Retries must be an integer from 0")
		}
		p.retries = n
	}
	p.due = p.first
	return p, nil
}

// dedupOf is the deduplication id of a publish; "" when it has none.
func (b *Broker) dedupOf(h http.Header, destination string, body []byte) (string, error) {
	if id := h.Get("Upstash-Deduplication-Id"); id != "" {
		if strings.ContainsAny(id, ": \t") && !b.has(DedupIDUnchecked) {
			return "", badRequest("DeduplicationId cannot contain ':' or white space")
		}
		return id, nil
	}
	if !strings.EqualFold(h.Get("Upstash-Content-Based-Deduplication"), "true") || b.has(ContentDedupIgnored) {
		return "", nil
	}
	hash := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if strings.HasPrefix(name, "Upstash-") && !b.has(ContentDedupIgnoresHeaders) {
			fmt.Fprintf(hash, "%q%q", name, h[name])
		}
	}
	if b.has(ContentDedupIgnoresBody) {
		body = nil
	}
	if b.has(ContentDedupIgnoresURL) {
		destination = ""
	}
	fmt.Fprintf(hash, "%q%q", body, destination)
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// publishV1 answers POST /v1/publish/….
func (b *Broker) publishV1(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	rest, _ := restOf(r, "/v1/publish/")
	body, err := b.readAny(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	h, query := b.upstashHeaders(r)
	destination, err := b.destination(rest, query)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p, err := b.publicationOf(h, destination, body, b.now())
	if err != nil {
		b.writeError(w, err)
		return
	}
	id, err := b.dedupOf(h, destination, body)
	if err != nil {
		b.writeError(w, err)
		return
	}
	window := publishWindow
	if b.has(PublishWindowDoubled) {
		window *= 2
	}
	if b.has(PublishWindowHalved) {
		window /= 2
	}
	if original, ok := b.accepted[id]; ok && id != "" && b.now().Sub(original.at) < window && !b.has(PublishDedupIgnored) {
		if b.has(PublishDuplicateDelivered) {
			b.publications[p.id] = p
			b.startDelivering()
		}
		name := original.id
		if b.has(PublishDuplicateNewID) {
			name = p.id
		}
		w.Header().Set("Upstash-Deduplication-Id", id)
		writeJSON(w, http.StatusAccepted, map[string]any{"messageId": name, "deduplicated": true})
		return
	}
	if id != "" {
		b.accepted[id] = accepted{p.id, b.now()}
		w.Header().Set("Upstash-Deduplication-Id", id)
	}
	p.note(p.created, "CREATED")
	b.publications[p.id] = p
	b.startDelivering()
	status := http.StatusCreated
	if b.has(PublishAnswers200) {
		status = http.StatusOK
	}
	writeJSON(w, status, map[string]any{"messageId": p.id})
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

// startDelivering delivers what is due, in the background. The caller holds the lock.
func (b *Broker) startDelivering() {
	if b.has(NothingDelivered) {
		return
	}
	go b.deliverDue()
}

// deliverDue makes all attempts that are due by now, and those that become due by them.
func (b *Broker) deliverDue() {
	b.delivering.Lock()
	defer b.delivering.Unlock()
	for {
		b.mu.Lock()
		var next *publication
		for _, p := range b.publications {
			if !p.finished && !p.flying && !p.due.After(b.now()) && (next == nil || p.due.Before(next.due)) {
				next = p
			}
		}
		if next == nil {
			b.mu.Unlock()
			return
		}
		next.flying = true
		next.note(b.now(), "ACTIVE")
		b.mu.Unlock()
		status, err := b.send(next)
		b.mu.Lock()
		next.flying = false
		b.conclude(next, status, err)
		b.mu.Unlock()
	}
}

var deliverer = &http.Client{
	Timeout:       5 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func (b *Broker) send(p *publication) (int, error) {
	request, err := http.NewRequestWithContext(context.Background(), p.method, p.url, bytes.NewReader(p.body))
	if err != nil {
		return 0, fmt.Errorf("compose: %w", err)
	}
	request.Header = p.header.Clone()
	retried := strconv.Itoa(p.retried)
	if b.has(RetriedFromOne) {
		retried = strconv.Itoa(p.retried + 1)
	}
	request.Header.Set("Upstash-Message-Id", p.id)
	request.Header.Set("Upstash-Retried", retried)
	response, err := deliverer.Do(request)
	if err != nil {
		return 0, fmt.Errorf("send: %w", err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, nil
}

// conclude notes what came of an attempt. The caller holds the lock.
func (b *Broker) conclude(p *publication, status int, err error) {
	now := b.now()
	if p.finished { // it was cancelled meanwhile
		return
	}
	if status/100 == 2 || status/100 == 3 && b.has(RedirectsSucceed) {
		p.note(now, "DELIVERED")
		p.finished = true
		return
	}
	fault := fmt.Sprintf("the destination answered %d", status)
	if err != nil {
		fault = err.Error()
	}
	p.log = append(p.log, event{at: now, state: "ERROR", fault: fault})
	retries := p.retries
	if b.has(OneRetryMore) {
		retries++
	}
	if p.retried >= retries {
		if !b.has(FailureNotLogged) {
			p.log = append(p.log, event{at: now, state: "FAILED", fault: fault})
		}
		p.finished = true
		return
	}
	p.retried++
	factor := 2.0
	if b.has(BackoffSlower) {
		factor = 2.1
	}
	if b.has(BackoffFaster) {
		factor = 1.9
	}
	pause := time.Duration(min(86400, math.Exp(factor*float64(p.retried))) * float64(time.Second))
	p.due = now.Add(pause)
	p.log = append(p.log, event{at: now, state: "RETRY", next: p.due, fault: fault})
}

// getMessageV1 answers GET /v1/messages/{messageId}.
func (b *Broker) getMessageV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.publications[params["messageId"]]
	if p == nil && b.has(UnknownMessageEmpty) {
		p = &publication{id: params["messageId"], method: http.MethodPost}
	}
	if p == nil || p.finished && b.has(DeliveredForgotten) {
		b.writeError(w, &problem{http.StatusNotFound, "message " + params["messageId"] + " not found"})
		return
	}
	method := p.method
	if b.has(MessageMethodWrong) {
		method = "GET"
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"messageId": p.id, "destinationType": "url", "url": p.url, "method": method, "header": p.header, "body": string(p.body),
		"createdAt": p.created.UnixMilli(),
		"settings":  map[string]any{"deadline": 0, "delay": int(p.first.Sub(p.created).Seconds()), "notBefore": p.first.UnixMilli(), "retries": p.retries},
	})
}

// cancelMessageV1 answers DELETE /v1/messages/{messageId}.
func (b *Broker) cancelMessageV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.publications[params["messageId"]]
	if p == nil || p.finished {
		b.writeError(w, &problem{http.StatusNotFound, "message " + params["messageId"] + " not found"})
		return
	}
	if !b.has(CancelNotLogged) {
		p.note(b.now(), "CANCEL_REQUESTED")
	}
	p.note(b.now(), "CANCELED")
	p.finished = !b.has(CancelDoesNothing)
	writeJSON(w, http.StatusAccepted, map[string]string{"status": "accepted"})
}

// messageLogsV1 answers GET /v1/messages/{messageId}/logs.
func (b *Broker) messageLogsV1(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	events := []map[string]any{}
	for id, p := range b.publications {
		if id != params["messageId"] && !b.has(LogsOfAll) {
			continue
		}
		for i, e := range slices.Backward(p.log) {
			line := map[string]any{
				"id": fmt.Sprintf("%s-%d", id, i), "time": e.at.UnixMilli(), "messageId": id, "taskId": "tsk_" + id, "state": e.state,
				"nextDeliveryTime": 0, "url": p.url,
			}
			if !e.next.IsZero() {
				line["nextDeliveryTime"] = e.next.UnixMilli()
			}
			if e.fault != "" {
				line["error"] = e.fault
			}
			events = append(events, line)
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"events": events})
}
