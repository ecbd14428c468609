package request

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error is something wrong in a request, in words for its author.
type Error struct {
	Text  string
	Cause error // nil when the text says it all
}

func (e *Error) Error() string { return e.Text }

func (e *Error) Unwrap() error { return e.Cause }

func refuse(format string, args ...any) error { return &Error{Text: fmt.Sprintf(format, args...)} }

// Kind is the sort of a destination.
type Kind uint8

// The kinds of destinations.
const (
	URL   Kind = iota + 1 // an endpoint
	Topic                 // a topic (URL group), by name or id
	Queue                 // a partition of an ordered queue
)

// Destination is where a message goes.
type Destination struct {
	Kind      Kind
	URL       string // of a URL: as it is requested, and as signatures name it
	Name      string // of a topic or queue
	Partition string // of a queue; "" means its default
}

// String is the destination as it stands in a request.
func (d Destination) String() string {
	switch {
	case d.Kind == URL:
		return d.URL
	case d.Kind == Queue && d.Partition != "":
		return queuePrefix + d.Name + "/" + d.Partition
	case d.Kind == Queue:
		return queuePrefix + d.Name
	}
	return d.Name
}

const (
	queuePrefix = "queue:"
	maxURL      = 8 << 10 // bytes
	maxName     = 512     // bytes
)

// ErrNoDestination refuses an empty destination.
var ErrNoDestination = &Error{Text: "a non-empty destination must be provided"}

// ParsePath reads a destination from the rest of a request's path, as it was sent, and from the request's
// query, without the broker's own parameters: a URL's query arrives as the request's.
func ParsePath(rest, query string) (Destination, error) {
	lower := strings.ToLower(rest)
	if strings.HasPrefix(lower, "http%3a") || strings.HasPrefix(lower, "https%3a") ||
		strings.HasPrefix(lower, "http:%2f") || strings.HasPrefix(lower, "https:%2f") {
		decoded, err := url.PathUnescape(rest)
		if err != nil {
			return Destination{}, refuse("invalid destination url: %s", reason(err))
		}
		rest, lower = decoded, strings.ToLower(decoded)
	}
	for _, scheme := range []string{"http:/", "https:/"} {
		if strings.HasPrefix(lower, scheme) {
			if !strings.HasPrefix(lower, scheme+"/") {
				rest = rest[:len(scheme)] + "/" + rest[len(scheme):]
			}
			if query != "" {
				separator := "?"
				if strings.Contains(rest, "?") {
					separator = "&"
				}
				rest += separator + query
			}
			return parseURL(rest)
		}
	}
	text, err := url.PathUnescape(rest)
	if err != nil {
		return Destination{}, refuse("invalid destination url: %s", reason(err))
	}
	if name, partition, ok := queueOf(rest); ok { // an escaped slash is part of a name
		return parseQueue(name, partition, url.PathUnescape)
	}
	return parseName(text)
}

// ParseText reads a destination that stands in a header or a JSON string: nothing in it is encoded.
func ParseText(text string) (Destination, error) {
	text = strings.TrimSpace(text)
	lower := strings.ToLower(text)
	if strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://") {
		return parseURL(text)
	}
	if name, partition, ok := queueOf(text); ok {
		return parseQueue(name, partition, func(s string) (string, error) { return s, nil })
	}
	return parseName(text)
}

// ParseURL reads a URL that a message may be sent to: an endpoint or a callback.
func ParseURL(text string) (string, error) {
	text = strings.TrimSpace(text)
	lower := strings.ToLower(text)
	if !strings.HasPrefix(lower, "http://") && !strings.HasPrefix(lower, "https://") {
		return "", errScheme
	}
	d, err := parseURL(text)
	return d.URL, err
}

var errScheme = &Error{Text: "invalid destination url: endpoint has invalid scheme, add http:// or https://"}

func parseURL(text string) (Destination, error) {
	if len(text) > maxURL {
		return Destination{}, refuse("invalid destination url: longer than %d bytes", maxURL)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f || r == utf8.RuneError }) {
		return Destination{}, refuse("invalid destination url: white space, control characters and invalid UTF-8 must be percent-encoded")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Destination{}, refuse("invalid destination url: %s", reason(err))
	case u.User != nil:
		return Destination{}, refuse("invalid destination url: endpoint must not contain user info")
	case u.Hostname() == "":
		return Destination{}, refuse("invalid destination url: endpoint has no host")
	}
	if port := u.Port(); strings.HasSuffix(u.Host, ":") || port != "" && !isPort(port) {
		return Destination{}, refuse("invalid destination url: endpoint has an invalid port")
	}
	if before, _, found := strings.Cut(text, "#"); found { // a fragment never leaves the client
		text = before
	}
	scheme, rest, _ := strings.Cut(text, ":")
	return Destination{Kind: URL, URL: strings.ToLower(scheme) + ":" + rest}, nil
}

func isPort(s string) bool {
	n := 0
	for _, c := range s {
		if n = n*10 + int(c-'0'); c < '0' || c > '9' || n > 65535 {
			return false
		}
	}
	return n > 0
}

// reason is what went wrong, without the input: it may hold a secret.
func reason(err error) string {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err
	}
	return err.Error()
}

func queueOf(text string) (name, partition string, ok bool) {
	rest, ok := strings.CutPrefix(text, queuePrefix)
	if !ok {
		return "", "", false
	}
	name, partition, _ = strings.Cut(rest, "/")
	return name, partition, true
}

func parseQueue(name, partition string, decode func(string) (string, error)) (Destination, error) {
	d := Destination{Kind: Queue}
	for _, part := range []struct {
		what, text string
		into       *string
	}{{"queue", name, &d.Name}, {"partition", partition, &d.Partition}} {
		text, err := decode(part.text)
		if err != nil {
			return Destination{}, refuse("invalid destination: %s", reason(err))
		}
		if len(text) > maxName || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			return Destination{}, refuse("invalid destination: the %s must be at most %d bytes of UTF-8 without control characters", part.what, maxName)
		}
		*part.into = text
	}
	if d.Name == "" {
		return Destination{}, refuse("invalid destination: the queue must not be empty")
	}
	return d, nil
}

func parseName(text string) (Destination, error) {
	if strings.TrimSpace(text) == "" {
		return Destination{}, ErrNoDestination
	}
	if !IsName(text) {
		return Destination{}, errScheme
	}
	return Destination{Kind: Topic, Name: text}, nil
}

// IsName reports whether s can name a topic, a delivery queue, a schedule or an endpoint: letters, digits,
// dash, underscore and dot, at most 512.
func IsName(s string) bool {
	for _, c := range []byte(s) {
		if c != '-' && c != '_' && c != '.' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// SplitQuery takes the broker's own parameters out of a request's query: those named upstash-…, in any case,
// become headers, and qstash_token is the caller's token. What is left, as it was sent, belongs to the destination.
func SplitQuery(query string) (headers http.Header, token, rest string, err error) {
	if query == "" {
		return nil, "", "", nil
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, nameErr := url.QueryUnescape(rawName)
		own := strings.HasPrefix(strings.ToLower(name), "upstash-")
		if nameErr != nil || !own && name != "qstash_token" {
			kept = append(kept, pair)
			continue
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return nil, "", "", refuse("query parameter %s holds an invalid percent escape", name)
		}
		if !own {
			token = value
			continue
		}
		if headers == nil {
			headers = http.Header{}
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		headers[name] = append(headers[name], value)
	}
	return headers, token, strings.Join(kept, "&"), CheckHeader(headers)
}
