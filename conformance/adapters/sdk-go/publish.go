package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) publishOperations() map[string]operation {
	return map[string]operation{
		"publish":      p.publish,
		"publishBatch": p.publishBatch,
		"enqueue":      p.enqueue,
	}
}

// publication translates headers to the fields of the library's option struct. What no field can say, a value that is no
// number among it, is given as the library takes further headers: as it is.
func publication(destination string, header http.Header, body []byte) posthorn.Publication {
	p := posthorn.Publication{Destination: destination, Body: body, Header: http.Header{}, More: http.Header{}}
	for name, values := range header {
		name = http.CanonicalHeaderKey(name)
		if forwarded, ok := strings.CutPrefix(name, "Upstash-Forward-"); ok {
			p.Header[forwarded] = append(p.Header[forwarded], values...)
			continue
		}
		if len(values) != 1 || !setField(&p, name, values[0]) {
			p.More[name] = append(p.More[name], values...)
		}
	}
	key, value := p.More.Get(flowKeyHeader), p.More.Get(flowValueHeader)
	if flow, ok := flowOf(key, value); ok {
		p.Flow = flow
		p.More.Del(flowKeyHeader)
		p.More.Del(flowValueHeader)
	}
	return p
}

const (
	flowKeyHeader   = "Upstash-Flow-Control-Key"
	flowValueHeader = "Upstash-Flow-Control-Value"
)

// setField sets the field that stands for a header, and says whether there is one that can hold the value.
func setField(p *posthorn.Publication, name, value string) (ok bool) {
	texts := map[string]*string{
		"Content-Type": &p.ContentType, "Upstash-Method": &p.Method, "Upstash-Retry-Delay": &p.RetryDelay, "Upstash-Callback": &p.Callback,
		"Upstash-Failure-Callback": &p.FailureCallback, "Upstash-Deduplication-Id": &p.DeduplicationID, "Upstash-Queue-Name": &p.Queue,
		"Upstash-Redact-Fields": &p.Redact,
	}
	if field, known := texts[name]; known {
		*field = value
		return value != ""
	}
	switch name {
	case "Upstash-Delay":
		p.Delay, ok = period(value)
	case "Upstash-Timeout":
		p.Timeout, ok = period(value)
	case "Upstash-Not-Before":
		seconds, err := strconv.ParseInt(value, 10, 64)
		if ok = err == nil; ok {
			p.NotBefore = time.Unix(seconds, 0)
		}
	case "Upstash-Retries":
		n, err := strconv.Atoi(value)
		if ok = err == nil; ok {
			p.Retries = &n
		}
	case "Upstash-Content-Based-Deduplication":
		ok = value == "true"
		p.ContentBased = ok
	case "Upstash-Label":
		p.Labels, ok = strings.Split(value, ","), value != ""
	}
	return ok
}

var (
	periodText = regexp.MustCompile(`^(\d{1,6}[smhd])+$`)
	periodPart = regexp.MustCompile(`(\d+)([smhd])`)
)

// period reads a duration of whole seconds: numbers with the units s, m, h and d.
func period(text string) (time.Duration, bool) {
	if !periodText.MatchString(text) {
		return 0, false
	}
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	var sum time.Duration
	for _, part := range periodPart.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(part[1])
		if err != nil {
			return 0, false
		}
		sum += time.Duration(n) * units[part[2]]
	}
	return sum, sum > 0
}

// flowOf reads the two headers of flow control.
func flowOf(key, value string) (*posthorn.Flow, bool) {
	if key == "" || value == "" {
		return nil, false
	}
	flow := &posthorn.Flow{Key: key}
	for part := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		if name == "period" {
			if _, err := strconv.Atoi(text); err == nil {
				text += "s"
			}
			var ok bool
			if flow.Period, ok = period(text); !ok {
				return nil, false
			}
			continue
		}
		n, err := strconv.Atoi(text)
		switch {
		case err != nil || n == 0:
			return nil, false
		case name == "parallelism":
			flow.Parallelism = n
		case name == "rate":
			flow.Rate = n
		default:
			return nil, false
		}
	}
	return flow, true
}

// toTopic says whether the answer to a publish has one result per endpoint.
func toTopic(destination string) bool {
	return !strings.Contains(destination, ":")
}

// publishedResult is what became of one message.
func publishedResult(m posthorn.Published) fields {
	f := fields{"messageId": m.MessageID, "url": m.URL}
	if m.Duplicate {
		f["deduplicated"] = true
	}
	return f
}

// published translates what became of one publish. The library answers a topic and a URL alike.
func published(destination string, messages []posthorn.Published) (body any, duplicate bool) {
	list := make([]fields, len(messages))
	for i, m := range messages {
		list[i] = publishedResult(m)
		duplicate = duplicate || m.Duplicate
	}
	if len(list) == 1 && !toTopic(destination) {
		return list[0], duplicate
	}
	return list, duplicate
}

func publishAnswer(destination string, messages []posthorn.Published, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	body, duplicate := published(destination, messages)
	if duplicate {
		return answer{http.StatusAccepted, body}, nil
	}
	return answer{http.StatusOK, body}, nil
}

func (p *peer) publish(ctx context.Context, args suite.Args) (answer, error) {
	destination := args.Path["destination"]
	messages, err := p.client.Publish(ctx, publication(destination, args.Header, args.Body))
	return publishAnswer(destination, messages, err)
}

func (p *peer) enqueue(ctx context.Context, args suite.Args) (answer, error) {
	destination := args.Path["destination"]
	messages, err := p.client.Enqueue(ctx, args.Path["queueName"], publication(destination, args.Header, args.Body))
	return publishAnswer(destination, messages, err)
}

func (p *peer) publishBatch(ctx context.Context, args suite.Args) (answer, error) {
	var items []struct {
		Destination string                     `json:"destination"`
		Headers     map[string]json.RawMessage `json:"headers"`
		Body        string                     `json:"body"`
		Queue       string                     `json:"queue"`
	}
	if err := json.Unmarshal(args.Body, &items); err != nil {
		return answer{}, fmt.Errorf("decode batch: %w", err)
	}
	publications := make([]posthorn.Publication, len(items))
	for i, item := range items {
		header, err := headerOf(item.Headers)
		if err != nil {
			return answer{}, err
		}
		publications[i] = publication(item.Destination, header, []byte(item.Body))
		if item.Queue != "" {
			publications[i].Queue = item.Queue
		}
	}
	results, err := p.client.PublishBatch(ctx, publications)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	body := make([]any, len(results))
	for i, result := range results {
		if result.Err != nil {
			body[i] = map[string]string{"error": result.Err.Error()}
			continue
		}
		body[i], _ = published(items[i].Destination, result.Messages)
	}
	return answer{http.StatusOK, body}, nil
}

// headerOf reads names with a value or an array of values each.
func headerOf(texts map[string]json.RawMessage) (http.Header, error) {
	header := http.Header{}
	for name, text := range texts {
		values, err := oneOrMore(text)
		if err != nil {
			return nil, fmt.Errorf("decode the header %s: %w", name, err)
		}
		header[http.CanonicalHeaderKey(name)] = values
	}
	return header, nil
}

// oneOrMore reads a string, or an array of them.
func oneOrMore(text json.RawMessage) (values []string, err error) {
	var one string
	if json.Unmarshal(text, &one) == nil {
		return []string{one}, nil
	}
	if err = json.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("no string and no array of strings: %w", err)
	}
	return values, nil
}
