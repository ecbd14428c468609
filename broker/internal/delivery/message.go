package delivery

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Message is what a publish asks to be delivered.
type Message struct {
	Targets []Target // at least one, at most MaxTargets; each is delivered to and retried by itself
	Method  string   // "" means POST
	Header  http.Header
	Body    []byte // not changed and not kept beyond the attempts that are made from memory

	Delay     time.Duration // of the first attempt; 0 means at once
	NotBefore time.Time     // of the first attempt, instead of Delay; zero means that Delay counts

	Topic      string // the group that the targets belong to; "" means none
	Queue      string // the delivery queue; "" means none
	ScheduleID string // the schedule that made the message; "" means none
	FlowKey    string // flow control key; "" means none. Flow has its values
	Label      string // several are separated by commas; "" means none
	CallerIP   string // of the publisher

	Settings
}

// Settings is how a message is delivered, as it is stored.
type Settings struct {
	Retries    int           `json:"retries"`              // attempts after the first; 0 means none
	RetryDelay string        `json:"retryDelay,omitempty"` // expression in milliseconds; "" means the default backoff
	Timeout    time.Duration `json:"timeout,omitempty"`    // of an attempt, in ns; 0 means the broker's
	Redact     string        `json:"redact,omitempty"`     // what is not shown, as Upstash-Redact-Fields says it; "" means nothing
	Flow       FlowLimits    `json:"flow,omitzero"`        // values for the flow control key

	TopicID       string `json:"topicId,omitempty"`       // of the group that Topic names; "" means none
	TransactionID string `json:"transactionId,omitempty"` // in the ordered queue that is the target; "" means the message's id

	Callback        *Callback `json:"callback,omitempty"`        // told of every attempt; nil means nobody
	FailureCallback *Callback `json:"failureCallback,omitempty"` // told when the message failed; nil means nobody
}

// Callback is a message about a message.
type Callback struct {
	URL        string              `json:"url"`
	Method     string              `json:"method,omitempty"`     // "" means POST
	Header     map[string][]string `json:"header,omitempty"`     // forwarded with it
	Retries    *int                `json:"retries,omitempty"`    // nil means those of the message
	RetryDelay string              `json:"retryDelay,omitempty"` // "" means that of the message
	Delay      time.Duration       `json:"delay,omitempty"`      // in ns; 0 means at once
	Timeout    time.Duration       `json:"timeout,omitempty"`    // in ns; 0 means that of the message
	Given      map[string][]string `json:"given,omitempty"`      // the Upstash-Callback headers as they came, prefix cut
}

// FlowLimits are the values that a message has for its flow control key.
type FlowLimits struct {
	Parallelism int           `json:"parallelism,omitempty"` // attempts at once; 0 means no bound
	Rate        int           `json:"rate,omitempty"`        // attempts that begin in one period; 0 means no bound
	Period      time.Duration `json:"period,omitempty"`      // in ns; 0 means a second
}

func (l FlowLimits) period() time.Duration {
	if l.Period <= 0 {
		return time.Second
	}
	return l.Period
}

// Target is where a message goes.
type Target struct {
	URL        string `json:"url"`            // http or https; or queue:name and queue:name/partition, which enter a queue
	Name       string `json:"name,omitempty"` // of the endpoint; "" means none
	EndpointID string `json:"endpointId,omitempty"`
}

// MaxTargets bounds the targets of one message: their number is a smallint.
const MaxTargets = 1 << 12

// Errors of messages that cannot be accepted.
var (
	errNoTarget       = errors.New("a message needs a target")
	errTooManyTargets = fmt.Errorf("a message has at most %d targets", MaxTargets)
)

// Stored is a message with what accepting it added.
type Stored struct {
	Message
	ID        uuid.UUID
	CreatedAt time.Time
	FirstAt   time.Time // when the first attempt is due: CreatedAt or later
	shares    *place    // of a callback: the place in a queue that it keeps taken; nil for none
}

// size is what a message takes in memory, in bytes, about.
func (m *Message) size() int {
	n := len(m.Body) + 512
	for name, values := range m.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// encodeHeader spells header fields as lines, sorted by name, any bytes of a value kept.
func encodeHeader(h http.Header) []byte {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	b := []byte{} // not nil, which would be null
	for _, name := range names {
		for _, value := range h[name] {
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, value...)
			b = append(b, '\n')
		}
	}
	return b
}

func decodeHeader(b []byte) http.Header {
	h := http.Header{}
	for line := range bytes.SplitSeq(b, []byte{'\n'}) {
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok {
			h[string(name)] = append(h[string(name)], string(value))
		}
	}
	return h
}

// encodeTargets is nil for a single target without a name, which the url column says whole.
func encodeTargets(targets []Target) ([]byte, error) {
	if len(targets) == 1 && targets[0] == (Target{URL: targets[0].URL}) {
		return nil, nil
	}
	return json.Marshal(targets)
}

func decodeTargets(first string, b []byte) ([]Target, error) {
	if b == nil {
		return []Target{{URL: first}}, nil
	}
	var targets []Target
	if err := json.Unmarshal(b, &targets); err != nil {
		return nil, fmt.Errorf("read the targets of a message: %w", err)
	}
	return targets, nil
}

// hostOf is the hash of what a target shares its bound on attempts with: scheme and host, or the queue.
func hostOf(target string) int64 {
	key := target
	if u, err := url.Parse(target); err == nil && u.Host != "" {
		key = strings.ToLower(u.Scheme + "://" + u.Host)
	}
	sum := sha256.Sum256([]byte(key))
	return int64(binary.LittleEndian.Uint64(sum[:8]))
}

// optional is null for the empty string.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
