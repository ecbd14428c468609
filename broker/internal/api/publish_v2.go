package api

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"math"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

type publishResult struct {
	MessageID    string `json:"messageId,omitzero"`
	ScheduleID   string `json:"scheduleId,omitzero"` // instead, when that is the original
	URL          string `json:"url"`
	Deduplicated bool   `json:"deduplicated,omitzero"`
}

type batchError struct {
	Error string `json:"error"`
}

type batchItem struct {
	Destination string                    `json:"destination"`
	Headers     map[string]jsontext.Value `json:"headers"`
	Body        *string                   `json:"body"`
	Queue       *string                   `json:"queue"`
}

type cancelled struct {
	Cancelled int `json:"cancelled"`
}

// commonV2 is what messages and log entries both show of a message.
type commonV2 struct {
	Header               map[string][]string `json:"header"`
	TopicName            string              `json:"topicName,omitzero"`
	EndpointName         string              `json:"endpointName,omitzero"`
	QueueName            string              `json:"queueName,omitzero"`
	ScheduleID           string              `json:"scheduleId,omitzero"`
	Callback             string              `json:"callback,omitzero"`
	FailureCallback      string              `json:"failureCallback,omitzero"`
	MaxRetries           int                 `json:"maxRetries"`
	RetryDelayExpression string              `json:"retryDelayExpression,omitzero"`
	RetryDelayExpr       string              `json:"retryDelayExpr,omitzero"`
	Label                string              `json:"label,omitzero"`
	Labels               []string            `json:"labels,omitempty"`
	flowV2               `json:",inline"`
	CallerIP             string `json:"callerIP"`
}

// flowV2 is what messages, log entries and schedules show of flow control. What is not bounded is absent.
type flowV2 struct {
	FlowControlKey string `json:"flowControlKey,omitzero"`
	Parallelism    int    `json:"parallelism,omitzero"`
	Rate           int    `json:"rate,omitzero"`
	Period         int64  `json:"period,omitzero"`
}

func shownFlow(m *delivery.Message) flowV2 {
	if m.FlowKey == "" {
		return flowV2{}
	}
	return flowV2{m.FlowKey, m.Flow.Parallelism, m.Flow.Rate, int64(max(m.Flow.Period, time.Second) / time.Second)}
}

type messageV2 struct {
	MessageID             string              `json:"messageId"`
	URL                   string              `json:"url"`
	URLGroup              string              `json:"urlGroup,omitzero"`
	Method                string              `json:"method"`
	Body                  *string             `json:"body,omitzero"`
	BodyBase64            *string             `json:"bodyBase64,omitzero"`
	NotBefore             int64               `json:"notBefore"`
	CreatedAt             int64               `json:"createdAt"`
	CallbackHeader        map[string][]string `json:"callbackHeader,omitempty"`
	FailureCallbackHeader map[string][]string `json:"failureCallbackHeader,omitempty"`
	commonV2              `json:",inline"`
}

type eventV2 struct {
	Time                   int64               `json:"time"`
	MessageID              string              `json:"messageId"`
	State                  string              `json:"state"`
	URL                    string              `json:"url"`
	Method                 string              `json:"method"`
	Body                   string              `json:"body"`
	Error                  string              `json:"error,omitzero"`
	NextDeliveryTime       int64               `json:"nextDeliveryTime,omitzero"`
	ResponseStatus         int                 `json:"responseStatus,omitzero"`
	ResponseBody           string              `json:"responseBody,omitzero"`
	ResponseHeaders        map[string][]string `json:"responseHeaders,omitempty"`
	ResponseHeader         map[string][]string `json:"responseHeader,omitempty"`
	Timeout                int64               `json:"timeout,omitzero"`
	CallbackHeaders        map[string][]string `json:"callbackHeaders,omitempty"`
	FailureCallbackHeaders map[string][]string `json:"failureCallbackHeaders,omitempty"`
	commonV2               `json:",inline"`
}

type eventsV2 struct {
	Cursor string    `json:"cursor,omitzero"`
	Events []eventV2 `json:"events"`
}

type logsV2 struct {
	Cursor string    `json:"cursor,omitzero"`
	Events []eventV2 `json:"events"`
	Logs   []eventV2 `json:"logs"`
}

// published is what version 2 answers to one publish.
type published struct {
	results   []publishResult
	topic     bool // the answer is an array
	duplicate bool
}

func (p published) body() any {
	if p.topic {
		return p.results
	}
	return p.results[0]
}

// publishOne publishes one message per endpoint of a topic; one deduplication id covers them all.
func (e *edge) publishOne(c *call, p publishing) (published, error) {
	b, err := e.begin(c, p)
	if err != nil {
		return published{}, err
	}
	return b.wait(c.ctx)
}

// begun is a publish whose commit is under way.
type begun struct {
	pending *delivery.Pending
	targets []delivery.Target
	topic   bool
}

func (e *edge) begin(c *call, p publishing) (begun, error) {
	if p.get(cronHeader) != "" {
		return begun{}, &request.Error{Text: cronHeader + " belongs to /v2/schedules"}
	}
	m, err := e.message(p)
	if err != nil {
		return begun{}, err
	}
	id, err := dedupID(p, request.ContentHashV2)
	if err != nil {
		return begun{}, err
	}
	if err := e.aim(c, p, &m); err != nil {
		return begun{}, err
	}
	b := begun{targets: m.Targets, topic: p.destination.Kind == request.Topic}
	all := delivery.Publish{DedupID: id}
	for _, target := range b.targets {
		m.Targets = []delivery.Target{target}
		all.Messages = append(all.Messages, m)
	}
	b.pending = e.cfg.Delivery.Begin(all)
	return b, nil
}

func (b begun) wait(ctx context.Context) (published, error) {
	accepted, err := b.pending.Wait(ctx)
	if err != nil {
		return published{}, err
	}
	out := published{topic: b.topic, duplicate: accepted.Duplicate}
	if accepted.Schedule != "" {
		out.results = []publishResult{{ScheduleID: accepted.Schedule, URL: b.targets[0].URL, Deduplicated: true}}
		return out, nil
	}
	for i, id := range accepted.IDs {
		target := b.targets[min(i, len(b.targets)-1)]
		out.results = append(out.results, publishResult{MessageID: delivery.MessageID(id), URL: target.URL, Deduplicated: accepted.Duplicate})
	}
	return out, nil
}

// enqueue is a publish into a delivery queue.
func (e *edge) enqueue(c *call) (answer, error) {
	p, err := publishCall(c)
	if err != nil {
		return answer{}, err
	}
	p.queue = c.path["queueName"]
	return e.publishHere(c, p)
}

func (e *edge) publish(c *call) (answer, error) {
	p, err := publishCall(c)
	if err != nil {
		return answer{}, err
	}
	return e.publishHere(c, p)
}

func (e *edge) publishHere(c *call, p publishing) (answer, error) {
	out, err := e.publishOne(c, p)
	if err != nil {
		return answer{}, err
	}
	status := http.StatusOK
	if out.duplicate {
		status = http.StatusAccepted
	}
	return encode(status, out.body())
}

// batchWorkers bounds the items of one batch that wait for their commit together: of all delivery queues, and of one.
const batchWorkers = 64

// publishBatch publishes each item by itself. Only an item's own fault stands in its place: when the database is away the whole
// answer is 503, unless something was accepted.
func (e *edge) publishBatch(c *call) (answer, error) {
	var items []batchItem
	if err := decode(c.body, &items); err != nil {
		return answer{}, err
	}
	results := make([]any, len(items))
	errs := make([]error, len(items))
	next := make(chan []int)
	var wg sync.WaitGroup
	for range min(batchWorkers, len(items)) {
		wg.Go(func() {
			for together := range next {
				e.publishTogether(c, items, together, results, errs)
			}
		})
	}
	for _, together := range inOrder(items) {
		next <- together
	}
	close(next)
	wg.Wait()
	var failure error
	accepted, unavailable := false, 0
	for i, err := range errs {
		if err == nil {
			accepted = true
			continue
		}
		if own := e.itemError(err); own != "" {
			results[i] = batchError{own}
			e.metrics.refuse(err)
			continue
		}
		c.ex.note(err)
		unavailable++
		failure, results[i] = err, batchError{unavailableText}
	}
	if failure != nil && !accepted {
		return answer{}, failure
	}
	for range unavailable {
		e.metrics.refuse(failure)
	}
	return encode(http.StatusOK, results)
}

// publishTogether publishes some items of a batch in their order, as many at a time as may wait for their commit together.
func (e *edge) publishTogether(c *call, items []batchItem, together []int, results []any, errs []error) {
	for some := range slices.Chunk(together, batchWorkers) {
		pending := make([]begun, len(some))
		for k, i := range some {
			pending[k], errs[i] = e.beginItem(c, items[i])
		}
		for k, i := range some {
			if errs[i] != nil {
				continue
			}
			var out published
			if out, errs[i] = pending[k].wait(c.ctx); errs[i] == nil {
				results[i] = out.body()
			}
		}
	}
}

// inOrder groups the items of a batch: those of one delivery queue have an order, and of those with one deduplication id the
// first is the original. The others have none.
func inOrder(items []batchItem) [][]int {
	var groups [][]int
	of := map[string]int{}
	for i, item := range items {
		key := orderOf(item)
		if key == "" {
			groups = append(groups, []int{i})
			continue
		}
		g, known := of[key]
		if !known {
			g = len(groups)
			of[key] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

// orderOf is what an item shares with those that it has an order with; "" for none. Headers as they are written are enough to
// tell queues and ids apart.
func orderOf(item batchItem) string {
	if queue := firstNonEmpty(item.Queue); queue != "" {
		return queue
	}
	id := ""
	for name, value := range item.Headers {
		switch {
		case strings.EqualFold(name, "Upstash-Queue-Name"):
			return string(value)
		case strings.EqualFold(name, dedupHeader):
			id = dedupHeader + string(value)
		}
	}
	return id
}

// itemError is the text of what is wrong with an item, "" when the fault is the broker's.
func (e *edge) itemError(err error) string {
	if refused, ok := errors.AsType[*request.Error](err); ok {
		return refused.Text
	}
	if unknown, ok := errors.AsType[*missingError](err); ok {
		return unknown.Error()
	}
	if quota, ok := errors.AsType[*quotaError](err); ok {
		return quota.Error()
	}
	return ""
}

func (e *edge) beginItem(c *call, item batchItem) (begun, error) {
	destination, err := request.ParseText(item.Destination)
	if err != nil {
		return begun{}, err
	}
	p := publishing{destination: destination, header: http.Header{}, queue: firstNonEmpty(item.Queue), callerIP: callerIP(c)}
	for _, name := range slices.Sorted(maps.Keys(item.Headers)) {
		values, err := headerValues(item.Headers[name])
		if err != nil {
			return begun{}, &request.Error{Text: "headers." + name + " must be a string or an array of strings"}
		}
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		p.header[canonical] = append(p.header[canonical], values...)
	}
	if err := request.CheckHeader(p.header); err != nil {
		return begun{}, err
	}
	if item.Body != nil {
		p.body = []byte(*item.Body)
	}
	return e.begin(c, p)
}

func headerValues(v jsontext.Value) ([]string, error) {
	var list []string
	if v.Kind() == jsontext.KindBeginArray || v.Kind() == jsontext.KindNull {
		err := decode(v, &list)
		return list, err
	}
	var one string
	err := decode(v, &one)
	return []string{one}, err
}

func common(m *delivery.Stored, target int, header http.Header) commonV2 {
	out := commonV2{
		Header:               validHeader(header),
		TopicName:            m.Topic,
		QueueName:            m.Queue,
		ScheduleID:           m.ScheduleID,
		MaxRetries:           m.Retries,
		RetryDelayExpression: m.RetryDelay,
		RetryDelayExpr:       m.RetryDelay,
		Label:                m.Label,
		flowV2:               shownFlow(&m.Message),
		CallerIP:             m.CallerIP,
	}
	if target < len(m.Targets) {
		out.EndpointName = m.Targets[target].Name
	}
	if m.Label != "" {
		out.Labels = strings.Split(m.Label, ",")
	}
	if m.Callback != nil {
		out.Callback = m.Callback.URL
	}
	if m.FailureCallback != nil {
		out.FailureCallback = m.FailureCallback.URL
	}
	return out
}

// givenHeader are the headers that a callback of m was given. What is hidden of the message under a name is hidden here too.
func givenHeader(m *delivery.Message, c *delivery.Callback) map[string][]string {
	if c == nil || len(c.Given) == 0 {
		return nil
	}
	if m.Redact != "" {
		return validHeader(hideHeader(c.Given, "Forward-", hiddenOf(m.Redact)))
	}
	return validHeader(c.Given)
}

func (e *edge) getPublished(c *call) (answer, error) {
	m, err := e.stored(c)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, shownMessage(m, 0))
}

// shownMessage is a message to one of its targets as version 2 shows it.
func shownMessage(m *delivery.Stored, target int) messageV2 {
	header, body := redacted(m)
	out := messageV2{
		MessageID:             delivery.MessageID(m.ID),
		URL:                   m.Targets[target].URL,
		URLGroup:              m.Topic,
		Method:                m.Method,
		NotBefore:             millisOf(m.FirstAt),
		CreatedAt:             millisOf(m.CreatedAt),
		CallbackHeader:        givenHeader(&m.Message, m.Callback),
		FailureCallbackHeader: givenHeader(&m.Message, m.FailureCallback),
		commonV2:              common(m, target, header),
	}
	out.Body, out.BodyBase64 = shownBody(body)
	return out
}

func (e *edge) cancelPublished(c *call) (answer, error) {
	if err := e.cancelNamed(c); err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, cancelled{1})
}

// selectors are the query parameters that narrow which messages or log entries are meant, with the field of the filter each sets.
var selectors = map[string]func(*delivery.Filter, []string){
	"url":            func(f *delivery.Filter, v []string) { f.URLs = append(f.URLs, v...) },
	"host":           func(f *delivery.Filter, v []string) { f.Hosts = append(f.Hosts, lower(commas(v))...) },
	"path":           func(f *delivery.Filter, v []string) { f.Paths = append(f.Paths, v...) },
	"topicName":      func(f *delivery.Filter, v []string) { f.Topics = append(f.Topics, commas(v)...) },
	"queueName":      func(f *delivery.Filter, v []string) { f.Queues = append(f.Queues, commas(v)...) },
	"scheduleId":     func(f *delivery.Filter, v []string) { f.Schedules = append(f.Schedules, commas(v)...) },
	"flowControlKey": func(f *delivery.Filter, v []string) { f.FlowKeys = append(f.FlowKeys, commas(v)...) },
	"label":          func(f *delivery.Filter, v []string) { f.Labels = append(f.Labels, commas(v)...) },
	"callerIp":       func(f *delivery.Filter, v []string) { f.CallerIPs = append(f.CallerIPs, commas(v)...) },
	"messageIds":     func(f *delivery.Filter, v []string) { f.Messages = append(f.Messages, messageIDs(commas(v))...) },
	"messageIds[]":   func(f *delivery.Filter, v []string) { f.Messages = append(f.Messages, messageIDs(commas(v))...) },
}

// commas splits lists that are separated by commas.
func commas(values []string) []string {
	var all []string
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}
	return all
}

func lower(values []string) []string {
	for i, v := range values {
		values[i] = strings.ToLower(v)
	}
	return values
}

// messageIDs reads ids of messages. What is none stands for a message that does not exist, so that it narrows to nothing.
func messageIDs(names []string) []uuid.UUID {
	ids := make([]uuid.UUID, len(names))
	for i, name := range names {
		ids[i], _ = delivery.ParseMessageID(name)
	}
	return ids
}

// filter reads selectors and bounds of time. others are parameters that mean something else.
func filter(q url.Values, others ...string) (delivery.Filter, error) {
	var f delivery.Filter
	if err := checkNUL(q); err != nil { // some came in a body
		return f, err
	}
	for name, values := range q {
		set, known := selectors[name]
		switch {
		case known:
			if len(commas(values)) == 0 {
				return f, badQuery(name, "must not be empty")
			}
			set(&f, values)
		case name == "fromDate" || name == "toDate":
			ms, err := strconv.ParseInt(values[0], 10, 64)
			if err != nil {
				return f, badQuery(name, "must be an integer")
			}
			if name == "fromDate" {
				f.From = time.UnixMilli(ms)
			} else {
				f.To = time.UnixMilli(ms + 1).Add(-time.Microsecond) // the whole millisecond
			}
		case name == "api" || slices.Contains(others, name):
		default:
			return f, badQuery(name, "is not known")
		}
	}
	return f, nil
}

type cancelSelector struct {
	MessageIDs     []string `json:"messageIds"`
	URL            *string  `json:"url"`
	Host           *string  `json:"host"`
	Path           *string  `json:"path"`
	TopicName      *string  `json:"topicName"`
	QueueName      *string  `json:"queueName"`
	ScheduleID     *string  `json:"scheduleId"`
	FlowControlKey *string  `json:"flowControlKey"`
	Label          *string  `json:"label"`
	CallerIP       *string  `json:"callerIp"`
	FromDate       *int64   `json:"fromDate"`
	ToDate         *int64   `json:"toDate"`
	Count          *int64   `json:"count"`
}

// addTo adds selectors of a body to those of the query.
func (s cancelSelector) addTo(q url.Values) {
	for name, value := range map[string]*string{
		"url": s.URL, "host": s.Host, "path": s.Path, "topicName": s.TopicName, "queueName": s.QueueName, "scheduleId": s.ScheduleID,
		"flowControlKey": s.FlowControlKey, "label": s.Label, "callerIp": s.CallerIP,
	} {
		if value != nil {
			q.Add(name, *value)
		}
	}
	for name, value := range map[string]*int64{"fromDate": s.FromDate, "toDate": s.ToDate, "count": s.Count} {
		if value != nil {
			q.Set(name, strconv.FormatInt(*value, 10))
		}
	}
	if s.MessageIDs != nil {
		q["messageIds"] = append(q["messageIds"], s.MessageIDs...)
	}
}

// cancelPublishedMany cancels what the selectors name; without any, all messages.
func (e *edge) cancelPublishedMany(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	if len(c.body) > 0 {
		var s cancelSelector
		if err := decode(c.body, &s); err != nil {
			return answer{}, err
		}
		s.addTo(q)
	}
	f, err := filter(q, "count")
	if err != nil {
		return answer{}, err
	}
	limit := math.MaxInt32
	if text := q.Get("count"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil {
			return answer{}, badQuery("count", "must be an integer")
		}
	}
	n, err := e.cfg.Delivery.CancelMatching(c.ctx, f, limit)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, cancelled{n})
}

// stateFilters are the states that a filter may name.
var stateFilters = map[string][]delivery.State{
	"CREATED": {delivery.Created}, "ACTIVE": {delivery.Active}, "RETRY": {delivery.Retrying}, "ERROR": {delivery.Failing},
	"DELIVERED": {delivery.Delivered}, "FAILED": {delivery.Failed}, "CANCEL_REQUESTED": {delivery.CancelRequested},
	"CANCELED": {delivery.Cancelled}, "CANCELLED": {delivery.Cancelled},
	"IN_PROGRESS": {delivery.Active, delivery.Retrying, delivery.Failing},
}

func (e *edge) listEvents(c *call) (answer, error) {
	list, cursor, err := e.eventsV2(c, 1000)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, eventsV2{Cursor: cursor, Events: list})
}

func (e *edge) listLogs(c *call) (answer, error) {
	list, cursor, err := e.eventsV2(c, 100)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, logsV2{Cursor: cursor, Events: list, Logs: list})
}

// eventsV2 reads a page of the log, of most entries unless the query says less.
func (e *edge) eventsV2(c *call, most int) (list []eventV2, cursor string, err error) {
	q, err := c.query()
	if err != nil {
		return nil, "", err
	}
	f, err := filter(q, "count", "cursor", "order", "state", "messageId")
	if err != nil {
		return nil, "", err
	}
	f.Bodies = true
	for _, name := range commas(q["state"]) {
		states, ok := stateFilters[strings.ToUpper(name)]
		if !ok {
			return nil, "", badQuery("state", "is not known")
		}
		f.States = append(f.States, states...)
	}
	if q.Has("messageId") {
		f.Messages = append(f.Messages, messageIDs(q["messageId"])...)
	}
	page := delivery.Page{Limit: most, OldestFirst: q.Get("order") == "earliestFirst"}
	if text := q.Get("count"); text != "" {
		if page.Limit, err = strconv.Atoi(text); err != nil {
			return nil, "", badQuery("count", "must be an integer")
		}
	}
	if page.After, err = parsePosition(q.Get("cursor")); err != nil {
		return nil, "", err
	}
	wanted := page.Limit
	page.Limit++
	entries, err := e.cfg.Delivery.Log(c.ctx, f, page)
	if err != nil {
		return nil, "", err
	}
	if len(entries) > wanted {
		entries = entries[:wanted]
		cursor = positionText(entries[wanted-1].Position)
	}
	for _, n := range entries {
		list = append(list, shownEvent(n))
	}
	return list, cursor, nil
}

func shownEvent(n delivery.Entry) eventV2 {
	m := n.Message
	header, body := redacted(m)
	out := eventV2{
		Time:                   millisOf(n.Time),
		MessageID:              delivery.MessageID(m.ID),
		State:                  n.State.String(),
		URL:                    n.URL(),
		Method:                 m.Method,
		Body:                   base64.StdEncoding.EncodeToString(body),
		Error:                  n.Error,
		NextDeliveryTime:       millisOf(n.NextAt),
		ResponseStatus:         n.Status,
		ResponseBody:           base64.StdEncoding.EncodeToString(n.Body),
		Timeout:                m.Timeout.Milliseconds(),
		CallbackHeaders:        givenHeader(&m.Message, m.Callback),
		FailureCallbackHeaders: givenHeader(&m.Message, m.FailureCallback),
		commonV2:               common(m, n.Target, header),
	}
	if len(n.Header) > 0 {
		out.ResponseHeaders = validHeader(n.Header)
		out.ResponseHeader = out.ResponseHeaders
	}
	return out
}
