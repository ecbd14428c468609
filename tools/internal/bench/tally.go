package bench

import (
	"maps"
	"strconv"
	"time"
)

// Statuses counts pushed items by the status the broker answered.
type Statuses struct {
	Queued    int64 `json:"queued"`
	Duplicate int64 `json:"duplicate"`
	Buffered  int64 `json:"buffered"`
	Failed    int64 `json:"failed"`
}

func (s *Statuses) add(o Statuses) {
	s.Queued += o.Queued
	s.Duplicate += o.Duplicate
	s.Buffered += o.Buffered
	s.Failed += o.Failed
}

func (s Statuses) total() int64 { return s.Queued + s.Duplicate + s.Buffered + s.Failed }

// series is one kind of request: how many were answered as expected, for how many messages, and how long they took.
type series struct {
	requests int64
	messages int64
	latency  Histogram
}

func (s *series) record(messages int64, took time.Duration) {
	s.requests++
	s.messages += messages
	s.latency.Record(took)
}

func (s *series) merge(o *series) {
	s.requests += o.requests
	s.messages += o.messages
	s.latency.Merge(&o.latency)
}

// tally is everything one worker counts.
type tally struct {
	push, pop, ack series
	delivery       Histogram     // from rendering a message to having its pop answer, mode e2e; to its arrival, mode publish
	delivered      int64         // messages that arrived, mode publish
	deliveredIn    time.Duration // from the first publish to the last arrival
	emptyPops      int64
	statuses       Statuses
	http           map[int]int64 // answers by HTTP status
	errors         map[string]int64
	last           time.Time // when the last message was answered for
}

func newTally() *tally {
	return &tally{http: map[int]int64{}, errors: map[string]int64{}}
}

func (t *tally) merge(o *tally) {
	t.push.merge(&o.push)
	t.pop.merge(&o.pop)
	t.ack.merge(&o.ack)
	t.delivery.Merge(&o.delivery)
	t.emptyPops += o.emptyPops
	t.statuses.add(o.statuses)
	for k, n := range o.http {
		t.http[k] += n
	}
	for k, n := range o.errors {
		t.errors[k] += n
	}
	if o.last.After(t.last) {
		t.last = o.last
	}
}

// answered counts an HTTP answer and reports whether it has the wanted status.
func (t *tally) answered(route string, status, want int) bool {
	t.http[status]++
	if status == want {
		return true
	}
	t.errors[route+" answered "+strconv.Itoa(status)]++
	return false
}

func (t *tally) failed(route string, err error) { t.errors[route+": "+errorKind(err)]++ }

func (t *tally) httpByText() map[string]int64 {
	out := map[string]int64{}
	for status, n := range maps.All(t.http) {
		out[strconv.Itoa(status)] = n
	}
	return out
}
