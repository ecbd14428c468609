package api

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
	"github.com/posthorn/posthorn/broker/internal/delivery/retry"
)

const dedupHeader = "Upstash-Deduplication-Id"

// publishing is a publish as it was asked for.
type publishing struct {
	destination request.Destination
	header      http.Header // with those that came in the query
	body        []byte
	queue       string // the delivery queue of the path or of an item; "" means what the header says
	callerIP    string
}

// publishCall reads what a publish route was asked for. The destination and its query are taken as they were sent.
func publishCall(c *call) (publishing, error) {
	given, _, query, err := request.SplitQuery(c.url.RawQuery)
	if err != nil {
		return publishing{}, err
	}
	rest := c.path["destination"]
	if rest == "" {
		rest = c.path["schedule"]
	}
	destination, err := request.ParsePath(rest, query)
	if err != nil {
		return publishing{}, err
	}
	return publishing{destination: destination, header: request.Merge(c.head, given), body: c.body, callerIP: callerIP(c)}, nil
}

// callerIP is the address of the client, without its port.
func callerIP(c *call) string {
	ip, _, err := net.SplitHostPort(c.remote)
	if err != nil {
		return c.remote
	}
	return ip
}

// get is a header without white space around it; "" when it was not given.
func (p *publishing) get(name string) string { return strings.TrimSpace(p.header.Get(name)) }

// list is a header that is a list, which may come in several lines, as one with commas; "" when it was not given.
func (p *publishing) list(name string) string {
	return strings.Trim(strings.Join(p.header.Values(name), ","), ", \t")
}

// message reads everything but where the message goes.
func (e *edge) message(p publishing) (delivery.Message, error) {
	m := delivery.Message{Body: p.body, CallerIP: p.callerIP}
	var err error
	if m.Queue, err = p.deliveryQueue(); err != nil {
		return m, err
	}
	flow, err := request.ParseFlowControl(p.get("Upstash-Flow-Control-Key"), p.list("Upstash-Flow-Control-Value"))
	if err != nil {
		return m, err
	}
	m.FlowKey = flow.Key
	if m.Header, err = request.Forwarded(p.header, "Upstash-Forward-"); err != nil {
		return m, err
	}
	if content := p.header.Get("Content-Type"); content != "" {
		m.Header["Content-Type"] = []string{content}
	}
	if method := p.get("Upstash-Method"); method != "" {
		if m.Method, err = request.ParseMethod("Upstash-Method", method); err != nil {
			return m, err
		}
	}
	if delay := p.get("Upstash-Delay"); delay != "" {
		if m.Delay, err = request.ParseDuration("Upstash-Delay", delay); err != nil {
			return m, err
		}
	}
	if at := p.get("Upstash-Not-Before"); at != "" {
		now := e.cfg.Delivery.Now()
		if m.NotBefore, err = request.ParseNotBefore("Upstash-Not-Before", at, now); err != nil {
			return m, err
		}
		if m.Delay = 0; !m.NotBefore.After(now) {
			m.NotBefore = time.Time{} // at once
		}
	}
	if labels := p.list("Upstash-Label"); labels != "" {
		list, err := request.ParseLabels(labels)
		if err != nil {
			return m, err
		}
		m.Label = strings.Join(list, ",")
	}
	if m.Settings, err = e.settings(p); err != nil {
		return m, err
	}
	m.Flow = delivery.FlowLimits{Parallelism: flow.Parallelism, Rate: flow.Rate, Period: flow.Period}
	return m, e.checkQuota(&m)
}

// deliveryQueue is the name of the delivery queue that a publish is for; "" means none.
func (p *publishing) deliveryQueue() (string, error) {
	name := p.queue
	if name == "" {
		name = p.get("Upstash-Queue-Name")
	}
	if name == "" {
		return "", nil
	}
	return name, checkName("the name of a delivery queue", name)
}

func (e *edge) settings(p publishing) (delivery.Settings, error) {
	s := delivery.Settings{Retries: e.cfg.PublishRetries}
	if e.cfg.MaxRetries > 0 {
		s.Retries = min(s.Retries, e.cfg.MaxRetries)
	}
	var err error
	if retries := p.get("Upstash-Retries"); retries != "" {
		if s.Retries, err = request.ParseRetries("Upstash-Retries", retries); err != nil {
			return s, err
		}
	}
	if s.RetryDelay, err = retryDelay(p, "Upstash-Retry-Delay"); err != nil {
		return s, err
	}
	if timeout := p.get("Upstash-Timeout"); timeout != "" {
		if s.Timeout, err = request.ParseDuration("Upstash-Timeout", timeout); err != nil {
			return s, err
		}
	}
	if s.Redact = p.list("Upstash-Redact-Fields"); s.Redact != "" {
		if _, err := request.ParseRedaction(s.Redact); err != nil {
			return s, err
		}
	}
	if s.Callback, err = e.callback(p, "Upstash-Callback"); err != nil {
		return s, err
	}
	s.FailureCallback, err = e.callback(p, "Upstash-Failure-Callback")
	return s, err
}

func retryDelay(p publishing, header string) (string, error) {
	text := p.get(header)
	if text == "" {
		return "", nil
	}
	if _, err := retry.Parse(text); err != nil {
		return "", &request.Error{Text: header + ": " + err.Error()}
	}
	return text, nil
}

// callback reads the headers of a callback: the URL, and behind it what the callback is sent with. What is not known is kept, not
// refused (publish contract, section 3).
func (e *edge) callback(p publishing, header string) (*delivery.Callback, error) {
	given := p.get(header)
	if given == "" {
		return nil, nil
	}
	c := &delivery.Callback{Given: make(map[string][]string)}
	var err error
	if c.URL, err = request.ParseURL(given); err != nil {
		return nil, &request.Error{Text: header + ": " + err.Error()}
	}
	if err := e.cfg.Delivery.CheckURL(c.URL); err != nil {
		return nil, &request.Error{Text: header + ": " + err.Error(), Cause: err}
	}
	prefix := header + "-"
	for name, values := range p.header {
		if rest, ok := strings.CutPrefix(textproto.CanonicalMIMEHeaderKey(name), prefix); ok {
			c.Given[rest] = values
		}
	}
	if c.Header, err = request.Forwarded(p.header, prefix+"Forward-"); err != nil {
		return nil, err
	}
	if method := p.get(prefix + "Method"); method != "" {
		if c.Method, err = request.ParseMethod(prefix+"Method", method); err != nil {
			return nil, err
		}
	}
	if retries := p.get(prefix + "Retries"); retries != "" {
		n, err := request.ParseRetries(prefix+"Retries", retries)
		if err != nil {
			return nil, err
		}
		c.Retries = &n
	}
	if c.RetryDelay, err = retryDelay(p, prefix+"Retry-Delay"); err != nil {
		return nil, err
	}
	if delay := p.get(prefix + "Delay"); delay != "" {
		if c.Delay, err = request.ParseDuration(prefix+"Delay", delay); err != nil {
			return nil, err
		}
	}
	if timeout := p.get(prefix + "Timeout"); timeout != "" {
		if c.Timeout, err = request.ParseDuration(prefix+"Timeout", timeout); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// aim sets where a message goes. The error is a missingError when that is a topic that does not exist.
func (e *edge) aim(c *call, p publishing, m *delivery.Message) error {
	switch p.destination.Kind {
	case request.Topic:
		topic, err := e.cfg.Delivery.Topic(c.ctx, p.destination.Name)
		if err != nil {
			return missing(err, "topic", p.destination.Name)
		}
		if topic.Aim(m); len(m.Targets) == 0 {
			return &request.Error{Text: "topic " + p.destination.Name + " has no endpoints"}
		}
	case request.Queue:
		if !isPayload(p.body) {
			return &request.Error{Text: "a message to a queue must be JSON"}
		}
		m.Targets = []delivery.Target{delivery.QueueTarget(p.destination.Name, p.destination.Partition)}
	case request.URL:
		if err := e.cfg.Delivery.CheckURL(p.destination.URL); err != nil {
			return err
		}
		m.Targets = []delivery.Target{{URL: p.destination.URL}}
	}
	return nil
}

// isPayload reports whether a push would take a body as its payload: JSON in UTF-8, whose names may repeat and whose escapes may be
// half a surrogate pair.
func isPayload(body []byte) bool {
	return utf8.Valid(body) && jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// dedupID is the explicit id, else the hash of the content if that is asked for, else "".
func dedupID(p publishing, hash func(http.Header, []byte, string) string) (string, error) {
	if values := p.header.Values(dedupHeader); len(values) > 0 && values[0] != "" {
		return values[0], request.CheckDeduplicationID(values[0])
	}
	byContent, err := request.ParseBool("Upstash-Content-Based-Deduplication", p.get("Upstash-Content-Based-Deduplication"))
	if err != nil || !byContent {
		return "", err
	}
	return hash(p.header, p.body, p.destination.String()), nil
}

// redacted hides what the publisher wants hidden wherever people look at a message (publish contract, section 10).
func redacted(m *delivery.Stored) (http.Header, []byte) {
	if m.Redact == "" {
		return m.Header, m.Body
	}
	hidden, body := hiddenOf(m.Redact), m.Body
	shown := hideHeader(m.Header, "", hidden)
	if hidden.Body {
		body = []byte(digest(body))
	}
	return shown, body
}

// hiddenOf is what a message hides. What cannot be read, although it was checked when the message was published, is all.
func hiddenOf(redact string) request.Redaction {
	hidden, err := request.ParseRedaction(redact)
	if err != nil {
		return request.Redaction{Body: true, AllHeaders: true}
	}
	return hidden
}

// hideHeader is a header with the values hidden that are forwarded under a hidden name: what follows prefix.
func hideHeader(h http.Header, prefix string, hidden request.Redaction) http.Header {
	shown := maps.Clone(h)
	for name, values := range shown {
		forwarded, ok := strings.CutPrefix(name, prefix)
		if !ok || !hidden.AllHeaders && !slices.Contains(hidden.Headers, forwarded) {
			continue
		}
		shown[name] = make([]string, len(values))
		for i, v := range values {
			shown[name][i] = digest([]byte(v))
		}
	}
	return shown
}

// digest stands for what is hidden: equal values can be told to be equal.
func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "REDACTED:" + hex.EncodeToString(sum[:])
}
