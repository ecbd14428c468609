package sdkgo

import (
	"context"
	"encoding/base64"
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

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) publishedOperations() map[string]operation {
	return map[string]operation{
		"getPublished":        p.getPublished,
		"cancelPublished":     p.cancelPublished,
		"cancelPublishedMany": p.cancelPublishedMany,
		"listEvents":          p.events("events", p.client.ListEvents),
		"listLogs":            p.events("logs", p.client.ListLogs),
	}
}

// fields are the members of an object. What the library has no value for is not there.
type fields map[string]any

// text adds what is not empty.
func (f fields) text(name, value string) {
	if value != "" {
		f[name] = value
	}
}

// bytes adds a body as text, or in base64 under another name when it is none.
func (f fields) bytes(name string, value []byte) {
	switch {
	case value == nil:
	case utf8.Valid(value):
		f[name] = string(value)
	default:
		f[name+"Base64"] = base64.StdEncoding.EncodeToString(value)
	}
}

// millis adds a time that is set.
func (f fields) millis(name string, at time.Time) {
	if !at.IsZero() {
		f[name] = at.UnixMilli()
	}
}

// flow adds the values of flow control.
func (f fields) flow(flow *posthorn.Flow) {
	if flow == nil {
		return
	}
	f["flowControlKey"], f["period"] = flow.Key, wholeSeconds(flow.Period)
	for name, n := range map[string]int{"parallelism": flow.Parallelism, "rate": flow.Rate} {
		if n != 0 {
			f[name] = n
		}
	}
}

func wholeSeconds(d time.Duration) int64 { return int64(d / time.Second) }

func publishedFields(m posthorn.PublishedMessage) fields {
	f := fields{"messageId": m.MessageID, "url": m.URL, "method": m.Method, "header": m.Header, "maxRetries": m.Retries, "callerIP": m.CallerIP}
	for name, value := range map[string]string{
		"topicName": m.Topic, "urlGroup": m.Topic, "endpointName": m.Endpoint, "queueName": m.Queue, "scheduleId": m.ScheduleID,
		"retryDelayExpression": m.RetryDelay, "callback": m.Callback, "failureCallback": m.FailureCallback, "label": strings.Join(m.Labels, ","),
	} {
		f.text(name, value)
	}
	if len(m.Labels) > 0 {
		f["labels"] = m.Labels
	}
	f.bytes("body", m.Body)
	f.flow(m.Flow)
	f.millis("createdAt", m.CreatedAt)
	f.millis("notBefore", m.NotBefore)
	return f
}

func (p *peer) getPublished(ctx context.Context, args suite.Args) (answer, error) {
	m, err := p.client.GetPublished(ctx, args.Path["messageId"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, publishedFields(m)}, nil
}

func (p *peer) cancelPublished(ctx context.Context, args suite.Args) (answer, error) {
	if err := p.client.CancelPublished(ctx, args.Path["messageId"]); err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]int{"cancelled": 1}}, nil
}

func (p *peer) cancelPublishedMany(ctx context.Context, args suite.Args) (answer, error) {
	selectors, err := withBody(args)
	if err != nil {
		return answer{}, err
	}
	opts := posthorn.CancelOptions{All: true}
	if opts.PublishedFilter, err = publishedFilter(selectors, "count"); err != nil {
		return answer{}, err
	}
	if err := number(selectors, "count", &opts.Limit); err != nil {
		return answer{}, err
	}
	n, err := p.client.CancelPublishedMany(ctx, opts)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]int{"cancelled": n}}, nil
}

// withBody are the selectors of a call, whether they stand in its query or in its body: the library has one way for both.
func withBody(args suite.Args) (url.Values, error) {
	all := url.Values{}
	maps.Copy(all, args.Query)
	if len(args.Body) == 0 {
		return all, nil
	}
	var body map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(args.Body)))
	decoder.UseNumber()
	if err := decoder.Decode(&body); err != nil {
		return nil, fmt.Errorf("decode selectors: %w", err)
	}
	for name, value := range body {
		list, several := value.([]any)
		if !several {
			list = []any{value}
		}
		for _, one := range list {
			all.Add(name, fmt.Sprint(one))
		}
	}
	return all, nil
}

// publishedFilter translates filters. others are parameters that the caller translates; what the library has no field for is
// an error.
func publishedFilter(q url.Values, others ...string) (posthorn.PublishedFilter, error) {
	f := posthorn.PublishedFilter{}
	lists := map[string]*[]string{
		"messageIds": &f.MessageIDs, "messageId": &f.MessageIDs, "url": &f.URLs, "host": &f.Hosts, "path": &f.Paths, "topicName": &f.Topics,
		"queueName": &f.Queues, "scheduleId": &f.Schedules, "flowControlKey": &f.FlowKeys, "label": &f.Labels, "callerIp": &f.CallerIPs,
	}
	moments := map[string]*time.Time{"fromDate": &f.From, "toDate": &f.To}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		values := q[name]
		if list, ok := lists[name]; ok {
			*list = append(*list, values...)
			continue
		}
		if at, ok := moments[name]; ok {
			ms, err := strconv.ParseInt(values[0], 10, 64)
			if err != nil {
				return f, fmt.Errorf("the library takes a time for %s: %w", name, err)
			}
			*at = time.UnixMilli(ms)
			continue
		}
		if !slices.Contains(others, name) {
			return f, fmt.Errorf("the library has no filter %s", name)
		}
	}
	return f, nil
}

// split separates the values of a list parameter.
func split(values []string) (list []string) {
	for _, value := range values {
		list = append(list, strings.Split(value, ",")...)
	}
	return list
}

// events is one of the two operations that read the log; key holds the entries beside events.
func (p *peer) events(key string, read func(context.Context, posthorn.EventOptions) (posthorn.EventPage, error)) operation {
	return func(ctx context.Context, args suite.Args) (answer, error) {
		opts := posthorn.EventOptions{Cursor: args.Query.Get("cursor"), OldestFirst: args.Query.Get("order") == "earliestFirst"}
		var err error
		if opts.PublishedFilter, err = publishedFilter(args.Query, "cursor", "order", "count", "state"); err != nil {
			return answer{}, err
		}
		if err := number(args.Query, "count", &opts.Limit); err != nil {
			return answer{}, err
		}
		for _, state := range split(args.Query["state"]) {
			opts.States = append(opts.States, posthorn.DeliveryState(state))
		}
		page, err := read(ctx, opts)
		if err != nil {
			return answer{}, err
		}
		entries := make([]fields, len(page.Events))
		for i, event := range page.Events {
			entries[i] = eventFields(event)
		}
		body := fields{"events": entries, key: entries}
		body.text("cursor", page.Cursor)
		return answer{http.StatusOK, body}, nil
	}
}

func eventFields(e posthorn.DeliveryEvent) fields {
	f := fields{"messageId": e.MessageID, "state": e.State, "url": e.URL}
	f.millis("time", e.Time)
	f.millis("nextDeliveryTime", e.NextDelivery)
	f.text("error", e.Error)
	if e.ResponseStatus != 0 {
		f["responseStatus"], f["responseBody"] = e.ResponseStatus, base64.StdEncoding.EncodeToString(e.ResponseBody)
		f["responseHeader"], f["responseHeaders"] = e.ResponseHeader, e.ResponseHeader
	}
	return f
}
