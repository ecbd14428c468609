package posthorn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Publication is a message that the broker delivers by HTTP. Only Destination is required.
type Publication struct {
	// Destination is a URL, the name of a topic, whose every endpoint gets the message, or a partition of an ordered queue:
	// "queue:orders" or "queue:orders/customer-42".
	Destination string

	Body        []byte      // delivered byte for byte
	ContentType string      // delivered with it; empty means none
	Method      string      // GET, POST, PUT, PATCH or DELETE; empty means POST
	Header      http.Header // delivered too, at most 64 fields of together 16 KiB

	Delay     time.Duration // before the first attempt, in whole seconds; 0 means at once
	NotBefore time.Time     // of the first attempt, to the second, instead of Delay; zero means that Delay counts

	Retries    *int          // attempts after the first; nil means the broker's default, 3 unless it is configured
	RetryDelay string        // pause before a retry in ms as an expression: "pow(2, retried) * 1000"; empty means e^(2n) seconds before the n-th
	Timeout    time.Duration // of one attempt, in whole seconds; 0 means the broker's limit

	Callback        string // URL that is told of every attempt; empty means nobody
	FailureCallback string // URL that is told when no attempt is left; empty means nobody

	// DeduplicationID makes a publish with the same id within 90 days a duplicate, which is not delivered. No colon, no white
	// space. With an id, or with ContentBased, a publish is repeated after an unknown outcome; without it only when
	// nothing can have been accepted.
	DeduplicationID string
	ContentBased    bool // the id is a hash of destination, body, content type and header

	// Queue is a delivery queue, which is created with parallelism 1 if need be: the message starts only when the one before it
	// has been delivered or has failed, with its retries and callbacks. Empty means none. It is not an ordered queue.
	Queue string

	// Flow bounds how its deliveries follow each other; nil means that nothing does.
	Flow *Flow

	Labels []string // to find it by, without commas
	Redact string   // what is not shown of it: "body", "header", "header[Name]", separated by commas

	// More are further Upstash-* headers, as they are: Upstash-Callback-Method and the like.
	More http.Header
}

// Flow bounds the deliveries of all messages with a key together. The values of the latest message count for all.
type Flow struct {
	Key         string        // at most 512 bytes, no comma
	Parallelism int           // deliveries at once; 0 means no bound
	Rate        int           // deliveries that begin in one period; 0 means no bound. One of the two is needed
	Period      time.Duration // in whole seconds, at most a week; 0 means a second
}

// value is the header that goes with the key.
func (f *Flow) value() string {
	var parts []string
	if f.Parallelism != 0 {
		parts = append(parts, "parallelism="+strconv.Itoa(f.Parallelism))
	}
	if f.Rate != 0 {
		parts = append(parts, "rate="+strconv.Itoa(f.Rate))
	}
	if f.Period != 0 {
		parts = append(parts, "period="+strconv.FormatInt(wholeSeconds(f.Period), 10)+"s")
	}
	return strings.Join(parts, ", ")
}

// Published is one message that a publish made, or the original of a duplicate.
type Published struct {
	MessageID  string `json:"messageId"`  // "" when ScheduleID is not
	ScheduleID string `json:"scheduleId"` // the original, when the deduplication id is that of a schedule
	URL        string `json:"url"`
	Duplicate  bool   `json:"deduplicated"`
}

// headers are the Upstash headers of a publication.
func (p Publication) headers() (http.Header, error) {
	h := http.Header{}
	set := func(name, value string) {
		if value != "" {
			h.Set(name, value)
		}
	}
	for name, values := range p.Header {
		h["Upstash-Forward-"+http.CanonicalHeaderKey(name)] = values
	}
	set("Upstash-Method", p.Method)
	if p.Delay < 0 || p.Timeout < 0 {
		return nil, errors.New("a negative duration")
	}
	if p.Delay > 0 {
		set("Upstash-Delay", strconv.FormatInt(wholeSeconds(p.Delay), 10)+"s")
	}
	if !p.NotBefore.IsZero() {
		set("Upstash-Not-Before", strconv.FormatInt(p.NotBefore.Add(time.Second-1).Unix(), 10)) // never early
	}
	if p.Retries != nil {
		set("Upstash-Retries", strconv.Itoa(*p.Retries))
	}
	set("Upstash-Retry-Delay", p.RetryDelay)
	if p.Timeout > 0 {
		set("Upstash-Timeout", strconv.FormatInt(wholeSeconds(p.Timeout), 10)+"s")
	}
	set("Upstash-Callback", p.Callback)
	set("Upstash-Failure-Callback", p.FailureCallback)
	set("Upstash-Deduplication-Id", p.DeduplicationID)
	if p.ContentBased {
		set("Upstash-Content-Based-Deduplication", "true")
	}
	set("Upstash-Queue-Name", p.Queue)
	if p.Flow != nil {
		set("Upstash-Flow-Control-Key", p.Flow.Key)
		set("Upstash-Flow-Control-Value", p.Flow.value())
	}
	set("Upstash-Label", strings.Join(p.Labels, ","))
	set("Upstash-Redact-Fields", p.Redact)
	maps.Copy(h, p.More)
	return h, nil
}

// destinationPath is a destination as the end of a path. A URL is percent-encoded as a whole, which the broker takes back: no
// proxy on the way can clean it.
func destinationPath(destination string) string {
	if name, ok := strings.CutPrefix(destination, "queue:"); ok {
		queue, partition, several := strings.Cut(name, "/")
		if several {
			return "queue:" + segment(queue) + "/" + segment(partition)
		}
		return "queue:" + segment(queue)
	}
	return url.PathEscape(destination)
}

// Publish has the broker deliver a message. It returns one result for a URL or a queue, and one per endpoint for a topic.
// A duplicate is no error.
//
// The error is an *APIError for what the broker refuses: ErrNotFound for a topic that does not exist, a status of 400 for a
// destination or a field that breaks a rule.
func (c *Client) Publish(ctx context.Context, p Publication) ([]Published, error) {
	return c.publish(ctx, "publish", "/v2/publish/", p)
}

// PublishJSON is Publish of value as JSON, in place of p.Body. The content type is application/json unless p.ContentType names
// another. The error is that of encoding/json for a value that has no JSON.
func (c *Client) PublishJSON(ctx context.Context, p Publication, value any) ([]Published, error) {
	w := newJSONWriter()
	if err := w.value(value); err != nil {
		return nil, fmt.Errorf("posthorn: publishJSON: %w", err)
	}
	p.Body = w.buf.Bytes()
	if p.ContentType == "" {
		p.ContentType = "application/json"
	}
	return c.Publish(ctx, p)
}

// Enqueue is Publish into a delivery queue, whatever p.Queue says. The queue is created with parallelism 1 if need be. Its
// name is made of letters, digits, dash, underscore and dot.
func (c *Client) Enqueue(ctx context.Context, queue string, p Publication) ([]Published, error) {
	p.Queue = ""
	return c.publish(ctx, "enqueue", "/v2/enqueue/"+segment(queue)+"/", p)
}

func (c *Client) publish(ctx context.Context, op, path string, p Publication) ([]Published, error) {
	header, err := p.headers()
	if err != nil {
		return nil, fmt.Errorf("posthorn: %s: %w", op, err)
	}
	header["Content-Type"] = nil
	if p.ContentType != "" {
		header.Set("Content-Type", p.ContentType)
	}
	var answer json.RawMessage
	err = c.do(ctx, call{
		op: op, method: http.MethodPost, path: path + destinationPath(p.Destination), header: header,
		body: append([]byte{}, p.Body...), repeatable: p.DeduplicationID != "" || p.ContentBased,
	}, &answer)
	if err != nil {
		return nil, err
	}
	return publishedOf(answer)
}

// publishedOf reads one result or an array of them.
func publishedOf(answer json.RawMessage) ([]Published, error) {
	var list []Published
	var err error
	if strings.HasPrefix(string(answer), "[") {
		err = json.Unmarshal(answer, &list)
	} else {
		list = make([]Published, 1)
		err = json.Unmarshal(answer, &list[0])
	}
	if err != nil {
		return nil, fmt.Errorf("posthorn: publish: %w", err)
	}
	return list, nil
}

// BatchResult is what became of one publication of a batch.
type BatchResult struct {
	Messages []Published // as Publish returns them; nil when it was refused
	Err      error       // why it was refused; nil when it was not
}

type wireBatchItem struct {
	Destination string              `json:"destination"`
	Headers     map[string][]string `json:"headers,omitempty"`
	Body        string              `json:"body,omitempty"`
}

// PublishBatch publishes up to 1000 messages in one request, each by itself: results come in order, and one that is refused does
// not hold up the others. Bodies must be UTF-8. The batch is repeated after an unknown outcome when every publication has
// a deduplication id or is ContentBased.
func (c *Client) PublishBatch(ctx context.Context, publications []Publication) ([]BatchResult, error) {
	items := make([]wireBatchItem, len(publications))
	repeatable := true
	for i, p := range publications {
		header, err := p.headers()
		if err == nil && !utf8.Valid(p.Body) {
			err = errors.New("the body is not valid UTF-8")
		}
		if err != nil {
			return nil, fmt.Errorf("posthorn: publishBatch: [%d]: %w", i, err)
		}
		if p.ContentType != "" {
			header.Set("Content-Type", p.ContentType)
		}
		items[i] = wireBatchItem{p.Destination, header, string(p.Body)}
		repeatable = repeatable && (p.DeduplicationID != "" || p.ContentBased)
	}
	w := newJSONWriter()
	if err := w.value(items); err != nil {
		return nil, fmt.Errorf("posthorn: publishBatch: %w", err)
	}
	var answers []json.RawMessage
	err := c.do(ctx, call{op: "publishBatch", method: http.MethodPost, path: "/v2/batch", body: w.buf.Bytes(), repeatable: repeatable}, &answers)
	if err != nil {
		return nil, err
	}
	if len(answers) != len(items) {
		return nil, fmt.Errorf("posthorn: publishBatch: %d results for %d publications", len(answers), len(items))
	}
	results := make([]BatchResult, len(answers))
	for i, answer := range answers {
		var refused struct{ Error string }
		if strings.HasPrefix(string(answer), "{") && json.Unmarshal(answer, &refused) == nil && refused.Error != "" {
			results[i].Err = errors.New(refused.Error)
			continue
		}
		results[i].Messages, results[i].Err = publishedOf(answer)
	}
	return results, nil
}

// PublishedMessage is a message as the broker keeps it. What Publication.Redact named begins with "REDACTED:".
type PublishedMessage struct {
	MessageID       string
	URL             string
	Topic           string // empty when it was published to a URL
	Endpoint        string // name of the topic's endpoint; empty when it has none
	Method          string
	Header          http.Header // what is delivered
	Body            []byte
	Retries         int
	RetryDelay      string // empty means the default backoff
	Callback        string // empty means none
	FailureCallback string // empty means none
	Labels          []string
	Queue           string    // the delivery queue; empty means none
	ScheduleID      string    // of the schedule that published it; empty means none
	Flow            *Flow     // the values of this message; nil means no flow control
	CallerIP        string    // of the publisher
	CreatedAt       time.Time // to the millisecond
	NotBefore       time.Time // of the first attempt, to the millisecond
}

type wirePublished struct {
	MessageID       string      `json:"messageId"`
	URL             string      `json:"url"`
	TopicName       string      `json:"topicName"`
	EndpointName    string      `json:"endpointName"`
	Method          string      `json:"method"`
	Header          http.Header `json:"header"`
	Body            *string     `json:"body"`
	BodyBase64      []byte      `json:"bodyBase64"`
	MaxRetries      int         `json:"maxRetries"`
	RetryDelay      string      `json:"retryDelayExpression"`
	Callback        string      `json:"callback"`
	FailureCallback string      `json:"failureCallback"`
	Labels          []string    `json:"labels"`
	CallerIP        string      `json:"callerIP"`
	CreatedAt       int64       `json:"createdAt"`
	NotBefore       int64       `json:"notBefore"`
	QueueName       string      `json:"queueName"`
	ScheduleID      string      `json:"scheduleId"`
	wireFlow
}

// wireFlow is what messages and schedules show of flow control.
type wireFlow struct {
	FlowControlKey string `json:"flowControlKey"`
	Parallelism    int    `json:"parallelism"`
	Rate           int    `json:"rate"`
	Period         int64  `json:"period"`
}

func (w wireFlow) flow() *Flow {
	if w.FlowControlKey == "" {
		return nil
	}
	return &Flow{w.FlowControlKey, w.Parallelism, w.Rate, time.Duration(w.Period) * time.Second}
}

func unixMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func (w wirePublished) message() PublishedMessage {
	m := PublishedMessage{
		MessageID: w.MessageID, URL: w.URL, Topic: w.TopicName, Endpoint: w.EndpointName, Method: w.Method, Header: w.Header, Body: w.BodyBase64,
		Retries: w.MaxRetries, RetryDelay: w.RetryDelay, Callback: w.Callback, FailureCallback: w.FailureCallback, Labels: w.Labels,
		Queue: w.QueueName, ScheduleID: w.ScheduleID, Flow: w.flow(), CallerIP: w.CallerIP, CreatedAt: unixMilli(w.CreatedAt), NotBefore: unixMilli(w.NotBefore),
	}
	if w.Body != nil {
		m.Body = []byte(*w.Body)
	}
	return m
}

// GetPublished reads a message, also for a while after its delivery. The error matches ErrNotFound when there is none, or none
// any more.
func (c *Client) GetPublished(ctx context.Context, messageID string) (PublishedMessage, error) {
	var w wirePublished
	err := c.do(ctx, call{op: "getPublished", method: http.MethodGet, path: "/v2/messages/" + segment(messageID), repeatable: true}, &w)
	if err != nil {
		return PublishedMessage{}, err
	}
	return w.message(), nil
}

// CancelPublished ends a message that is not delivered yet. An attempt in flight may still deliver it. The error matches
// ErrNotFound when there is nothing left to cancel. It is not repeated after an unknown outcome.
func (c *Client) CancelPublished(ctx context.Context, messageID string) error {
	var w struct{ Cancelled int }
	return c.do(ctx, call{op: "cancelPublished", method: http.MethodDelete, path: "/v2/messages/" + segment(messageID)}, &w)
}

// PublishedFilter says which messages or log entries are meant: those that fit every field that is not empty, by any of its
// values.
type PublishedFilter struct {
	MessageIDs []string
	URLs       []string
	Hosts      []string
	Paths      []string
	Topics     []string
	Labels     []string
	CallerIPs  []string
	Queues     []string  // delivery queues
	Schedules  []string  // ids of the schedules that published them
	FlowKeys   []string  // flow control keys
	From, To   time.Time // of the message or the entry, to the millisecond, both included; zero means no bound
}

func (f PublishedFilter) query() url.Values {
	q := url.Values{}
	for name, values := range map[string][]string{
		"messageIds": f.MessageIDs, "url": f.URLs, "host": f.Hosts, "path": f.Paths, "topicName": f.Topics, "label": f.Labels, "callerIp": f.CallerIPs,
		"queueName": f.Queues, "scheduleId": f.Schedules, "flowControlKey": f.FlowKeys,
	} {
		if len(values) > 0 {
			q[name] = values
		}
	}
	for name, at := range map[string]time.Time{"fromDate": f.From, "toDate": f.To} {
		if !at.IsZero() {
			q.Set(name, strconv.FormatInt(at.UnixMilli(), 10))
		}
	}
	return q
}

// CancelOptions say what CancelPublishedMany cancels.
type CancelOptions struct {
	PublishedFilter
	Limit int  // most messages, the oldest first, at most 500; 0 means all that fit
	All   bool // an empty filter means all messages; without All it is refused
}

// CancelPublishedMany ends messages that are not delivered yet and returns how many. It is not repeated after an unknown
// outcome.
func (c *Client) CancelPublishedMany(ctx context.Context, opts CancelOptions) (int, error) {
	q := opts.query()
	if len(q) == 0 && !opts.All {
		return 0, errors.New("posthorn: cancelPublishedMany: the filter is empty; set All to cancel all messages")
	}
	if opts.Limit > 0 {
		q.Set("count", strconv.Itoa(opts.Limit))
	}
	var w struct{ Cancelled int }
	err := c.do(ctx, call{op: "cancelPublishedMany", method: http.MethodDelete, path: "/v2/messages", query: q}, &w)
	return w.Cancelled, err
}

// DeliveryState is what happened to a message.
type DeliveryState string

// The states of log entries. A message ends with one of Delivered, Failed and Cancelled.
const (
	DeliveryCreated         DeliveryState = "CREATED"
	DeliveryActive          DeliveryState = "ACTIVE" // an attempt began
	DeliveryRetry           DeliveryState = "RETRY"  // another attempt follows
	DeliveryError           DeliveryState = "ERROR"  // an attempt failed
	DeliveryDelivered       DeliveryState = "DELIVERED"
	DeliveryFailed          DeliveryState = "FAILED"
	DeliveryCancelRequested DeliveryState = "CANCEL_REQUESTED"
	DeliveryCancelled       DeliveryState = "CANCELED"
)

// EventOptions say which part of the log is read.
type EventOptions struct {
	PublishedFilter
	States      []DeliveryState // none means all
	Limit       int             // most entries; 0 means the most there are in a page: 1000 events, 100 logs
	OldestFirst bool            // default the newest first
	Cursor      string          // EventPage.Cursor of the page before; empty means the beginning
}

// DeliveryEvent is one entry of the log.
type DeliveryEvent struct {
	Time           time.Time // to the millisecond
	MessageID      string
	State          DeliveryState
	URL            string
	NextDelivery   time.Time   // of the next attempt; zero when none follows
	Error          string      // why an attempt failed; else empty
	ResponseStatus int         // what the destination answered, with the next two; 0 when it did not
	ResponseHeader http.Header // nil when there was no answer
	ResponseBody   []byte      // at most 64 KiB
}

// EventPage is a page of the log.
type EventPage struct {
	Events []DeliveryEvent
	Cursor string // of the next page; empty at the end
}

type wireEvents struct {
	Cursor string `json:"cursor"`
	Events []struct {
		Time             int64         `json:"time"`
		MessageID        string        `json:"messageId"`
		State            DeliveryState `json:"state"`
		URL              string        `json:"url"`
		NextDeliveryTime int64         `json:"nextDeliveryTime"`
		Error            string        `json:"error"`
		ResponseStatus   int           `json:"responseStatus"`
		ResponseHeader   http.Header   `json:"responseHeader"`
		ResponseBody     []byte        `json:"responseBody"`
	} `json:"events"`
}

// ListEvents reads a page of the log, of at most 1000 entries.
func (c *Client) ListEvents(ctx context.Context, opts EventOptions) (EventPage, error) {
	return c.events(ctx, "listEvents", "/v2/events", opts)
}

// ListLogs reads a page of the log, of at most 100 entries.
func (c *Client) ListLogs(ctx context.Context, opts EventOptions) (EventPage, error) {
	return c.events(ctx, "listLogs", "/v2/logs", opts)
}

func (c *Client) events(ctx context.Context, op, path string, opts EventOptions) (EventPage, error) {
	q := opts.query()
	for _, state := range opts.States {
		q.Add("state", string(state))
	}
	if opts.Limit > 0 {
		q.Set("count", strconv.Itoa(opts.Limit))
	}
	if opts.OldestFirst {
		q.Set("order", "earliestFirst")
	}
	if opts.Cursor != "" {
		q.Set("cursor", opts.Cursor)
	}
	var w wireEvents
	if err := c.do(ctx, call{op: op, method: http.MethodGet, path: path, query: q, repeatable: true}, &w); err != nil {
		return EventPage{}, err
	}
	page := EventPage{Cursor: w.Cursor, Events: make([]DeliveryEvent, len(w.Events))}
	for i, n := range w.Events {
		page.Events[i] = DeliveryEvent{
			Time: unixMilli(n.Time), MessageID: n.MessageID, State: n.State, URL: n.URL, NextDelivery: unixMilli(n.NextDeliveryTime), Error: n.Error,
			ResponseStatus: n.ResponseStatus, ResponseHeader: n.ResponseHeader, ResponseBody: n.ResponseBody,
		}
	}
	return page, nil
}
