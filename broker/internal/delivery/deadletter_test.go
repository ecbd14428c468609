package delivery

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// kill publishes messages that fail at once and returns them with their dead letters, the newest first.
func kill(t *testing.T, e *Engine, messages ...Message) (ids []uuid.UUID, dead []*DeadLetter) {
	t.Helper()
	for _, m := range messages {
		accepted, err := e.Publish(t.Context(), Publish{Messages: []Message{m}})
		if err != nil {
			t.Fatal(err)
		}
		settle(t, e)
		ids = append(ids, accepted.IDs...)
	}
	dead, err := e.DeadLetters(t.Context(), DeadFilter{Filter: Filter{Messages: ids}}, DeadPage{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	return ids, dead
}

// sickSink answers 500 with a body, until it is told to be well.
type sickSink struct {
	*sink
	mu   sync.Mutex
	well bool
}

func newSickSink(t *testing.T) *sickSink {
	t.Helper()
	f := &sickSink{}
	f.sink = newSink(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.well {
			w.Header().Set("X-Why", "because")
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("no"))
		}
	})
	return f
}

func (f *sickSink) recover() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.well = true
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	e, f := engine(t, database(t), nil), newSickSink(t)
	ids, dead := kill(t, e,
		Message{Targets: []Target{{URL: f.URL + "/one?q=1"}}, Body: []byte("1"), Label: "a,b", CallerIP: "192.0.2.1"},
		Message{Targets: []Target{{URL: f.URL + "/two"}, {URL: f.URL + "/three", Name: "third"}}, Topic: "news", CallerIP: "192.0.2.2"},
	)
	if len(dead) != 3 {
		t.Fatalf("%d dead letters", len(dead))
	}
	d := dead[2]
	if d.Message.ID != ids[0] || d.URL() != f.URL+"/one?q=1" || string(d.Message.Body) != "1" || d.Status != 500 || string(d.Body) != "no" ||
		d.Header["X-Why"][0] != "because" || d.Error == "" || d.FailedAt.IsZero() || d.Retried != 0 {
		t.Errorf("%+v", d)
	}
	third := dead[slices.IndexFunc(dead, func(d *DeadLetter) bool { return strings.HasSuffix(d.URL(), "/three") })]
	for name, c := range map[string]struct {
		filter DeadFilter
		want   int
	}{
		"none":        {DeadFilter{}, 3},
		"id":          {DeadFilter{IDs: []uuid.UUID{d.ID, uuid.New()}}, 1},
		"status":      {DeadFilter{Statuses: []int{500}}, 3},
		"no status":   {DeadFilter{Statuses: []int{0, 404}}, 0},
		"its url":     {DeadFilter{Filter: Filter{URLs: []string{f.URL + "/three"}}}, 1},
		"path":        {DeadFilter{Filter: Filter{Paths: []string{"/one", "/three"}}}, 2},
		"host":        {DeadFilter{Filter: Filter{Hosts: []string{"127.0.0.1"}}}, 3},
		"label":       {DeadFilter{Filter: Filter{Labels: []string{"b"}}}, 1},
		"topic":       {DeadFilter{Filter: Filter{Topics: []string{"news"}}}, 2},
		"both":        {DeadFilter{Filter: Filter{Topics: []string{"news"}, Labels: []string{"b"}}}, 0},
		"caller":      {DeadFilter{Filter: Filter{CallerIPs: []string{"192.0.2.2"}}}, 2},
		"message":     {DeadFilter{Filter: Filter{Messages: ids[:1]}, IDs: []uuid.UUID{d.ID}}, 1},
		"other":       {DeadFilter{Filter: Filter{Messages: ids[1:]}, IDs: []uuid.UUID{d.ID}}, 0},
		"from":        {DeadFilter{Filter: Filter{From: dead[0].FailedAt.Add(time.Hour)}}, 0},
		"until":       {DeadFilter{Filter: Filter{To: d.FailedAt}}, 1},
		"not a state": {DeadFilter{Filter: Filter{States: []State{Created}}}, 3},
	} {
		list, err := e.DeadLetters(t.Context(), c.filter, DeadPage{Limit: 10})
		if err != nil || len(list) != c.want {
			t.Errorf("%s: %d, %v; want %d", name, len(list), err, c.want)
		}
	}
	oldest, err := e.DeadLetterIDs(t.Context(), DeadFilter{}, DeadPage{Limit: 2, OldestFirst: true})
	if err != nil || len(oldest) != 2 || oldest[0] != d.ID {
		t.Errorf("%v, %v", oldest, err)
	}
	rest, err := e.DeadLetterIDs(t.Context(), DeadFilter{}, DeadPage{Limit: 2, OldestFirst: true, After: &oldest[1]})
	if err != nil || len(rest) != 1 || rest[0] != dead[0].ID {
		t.Errorf("%v, %v", rest, err)
	}
	one, err := e.DeadLetter(t.Context(), third.ID)
	if err != nil || one.URL() != third.URL() {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := e.DeadLetter(t.Context(), uuid.New()); !errors.Is(err, ErrNotFound) {
		t.Errorf("an unknown dead letter: %v", err)
	}
	if n, err := e.DeleteDeadLetters(t.Context(), []uuid.UUID{third.ID, uuid.New()}); err != nil || n != 1 {
		t.Errorf("deleted %d, %v", n, err)
	}
	if n := count(t, e, `select count(*) from delivery_dead_letter`); n != 2 {
		t.Errorf("%d are left", n)
	}
}

// TestDeadLetterContent keeps the content of a message for as long as its dead letter, and not longer.
func TestDeadLetterContent(t *testing.T) {
	t.Parallel()
	e, f := engine(t, database(t), func(c *Config) { c.LogRetention = time.Minute }), newSickSink(t)
	_, dead := kill(t, e, Message{Targets: []Target{{URL: f.URL}}}, Message{Targets: []Target{{URL: f.URL}}})
	advance(t, e, time.Hour)
	if err := e.sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if logs, messages := count(t, e, `select count(*) from delivery_log`), count(t, e, `select count(*) from delivery_message`); logs != 0 || messages != 2 {
		t.Fatalf("%d entries, %d messages", logs, messages)
	}
	if n, err := e.DeleteDeadLetters(t.Context(), []uuid.UUID{dead[0].ID}); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	if resent, err := e.RetryDeadLetters(t.Context(), []uuid.UUID{dead[1].ID}, nil); err != nil || len(resent) != 1 {
		t.Fatalf("%v, %v", resent, err)
	}
	if n := count(t, e, `select count(*) from delivery_message where id = any($1)`, []uuid.UUID{dead[0].Message.ID, dead[1].Message.ID}); n != 0 {
		t.Errorf("%d messages are left that nothing refers to", n)
	}
}

// TestRetryDeadLetters publishes each once, however many ask for it at the same moment.
func TestRetryDeadLetters(t *testing.T) {
	t.Parallel()
	e, f := engine(t, database(t), nil), newSickSink(t)
	messages := make([]Message, 2*resendLimit+1)
	for i := range messages {
		messages[i] = Message{Targets: []Target{{URL: f.URL, Name: "end"}}, Header: http.Header{"X-A": {"1"}}, Body: []byte("b"), ScheduleID: "s"}
	}
	old, dead := kill(t, e, messages...)
	f.recover()
	ids := []uuid.UUID{uuid.New()}
	for _, d := range dead {
		ids = append(ids, d.ID)
	}
	var wg sync.WaitGroup
	results := make([][]Resent, 4)
	for i := range results {
		wg.Go(func() {
			var err error
			results[i], err = e.RetryDeadLetters(t.Context(), ids, func(m *Message) { m.Method, m.Retries = http.MethodPut, 7 })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	settle(t, e)
	resent := slices.Concat(results...)
	if len(resent) != len(messages) {
		t.Fatalf("%d retried of %d", len(resent), len(messages))
	}
	fresh := map[string]bool{}
	for _, r := range resent {
		if slices.Contains(old, r.Message) || r.URL != f.URL {
			t.Errorf("%+v", r)
		}
		fresh[MessageID(r.Message)] = true
	}
	got := f.requests()[len(messages):]
	if len(got) != len(messages) {
		t.Fatalf("%d deliveries", len(got))
	}
	for _, r := range got {
		id := r.header.Get("Upstash-Message-Id")
		if !fresh[id] || r.method != http.MethodPut || r.header.Get("X-A") != "1" || r.header.Get("Upstash-Retried") != "0" || r.body != "b" {
			t.Errorf("%+v", r)
		}
		delete(fresh, id)
	}
	if n := count(t, e, `select count(*) from delivery_dead_letter`); n != 0 {
		t.Errorf("%d are left", n)
	}
	m, err := e.Message(t.Context(), resent[0].Message)
	if err != nil || m.Retries != 7 || m.Targets[0].Name != "end" || m.ScheduleID != "s" {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestRetryRecognised does not publish again what a commit without an answer has published.
func TestRetryRecognised(t *testing.T) {
	t.Parallel()
	e, f := engine(t, database(t), nil), newSickSink(t)
	_, dead := kill(t, e, Message{Targets: []Target{{URL: f.URL}}})
	f.recover()
	planned := map[uuid.UUID]uuid.UUID{dead[0].ID: newID()}
	u, first, err := e.tryResend(t.Context(), planned, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.handOver(u)
	again, second, err := e.tryResend(t.Context(), planned, nil)
	if err != nil || again != nil || len(second) != 1 || second[0] != first[0] {
		t.Errorf("%v, %v after %v, %v", again, second, first, err)
	}
	settle(t, e)
	if got := f.requests(); len(got) != 2 {
		t.Errorf("%d deliveries", len(got))
	}
}

func TestRotateKeys(t *testing.T) {
	t.Parallel()
	url := database(t)
	one, two := engine(t, url, nil), engine(t, url, nil)
	before, err := one.SigningKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after, err := one.RotateKeys(t.Context())
	if err != nil || after.Current != before.Next || after.Next == before.Next || after.Next == before.Current || !strings.HasPrefix(after.Next, "sig_") {
		t.Fatalf("%v, %v", after == before, err)
	}
	for deadline := time.Now().Add(20 * time.Second); *two.keys.Load() != after; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the other broker does not follow")
		}
	}
	// A commit without an answer is recognised.
	again, err := two.rotateTo(t.Context(), after.Next)
	if err != nil || again != after {
		t.Errorf("rotated again, %v", err)
	}
	// Rotations at the same moment are all done, one after the other.
	var wg sync.WaitGroup
	seen := make([]SigningKeys, 8)
	for i := range seen {
		wg.Go(func() {
			var err error
			if seen[i], err = []*Engine{one, two}[i%2].RotateKeys(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	currents := map[string]bool{}
	for _, k := range seen {
		currents[k.Current] = true
	}
	if len(currents) != len(seen) || !currents[after.Next] {
		t.Errorf("%d rotations of %d", len(currents), len(seen))
	}
}

// TestDeadLetterRetention removes dead letters when their time is over, more than one step of them, and their messages with
// them. The log may be shorter or longer.
func TestDeadLetterRetention(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]time.Duration{"shorter log": time.Hour, "longer log": 60 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, f := engine(t, database(t), func(c *Config) { c.LogRetention, c.DeadRetention = log, 30*24*time.Hour }), newSickSink(t)
			ids, _ := kill(t, e, to(f.URL+"/old"))
			// As many more that a step is not enough.
			if _, err := e.pool.Exec(t.Context(), `
insert into delivery_dead_letter select gen_random_uuid(), message_id, target, retried, failed_at, error, response_status, response_header, response_body
from delivery_dead_letter cross join generate_series(1, $1::integer)`, sweepLimit+1); err != nil {
				t.Fatal(err)
			}
			advance(t, e, 15*24*time.Hour)
			younger, _ := kill(t, e, to(f.URL+"/young"))
			advance(t, e, 15*24*time.Hour-time.Minute)
			if n := count(t, e, `select count(*) from delivery_dead_letter`); n != sweepLimit+3 {
				t.Errorf("%d dead letters before their time, want %d", n, sweepLimit+3)
			}
			if m, err := e.Message(t.Context(), ids[0]); err != nil || m.url(0) != f.URL+"/old" {
				t.Errorf("%v", err)
			}
			advance(t, e, time.Minute+time.Second)
			left, err := e.DeadLetters(t.Context(), DeadFilter{}, DeadPage{Limit: 10})
			if err != nil || len(left) != 1 || left[0].Message.ID != younger[0] {
				t.Errorf("%+v, %v", left, err)
			}
			kept := log > 30*24*time.Hour // by the log
			if n := count(t, e, `select count(*) from delivery_message where id = $1`, ids[0]); (n == 1) != kept {
				t.Errorf("the message is there %d times, want it kept: %v", n, kept)
			}
			advance(t, e, 60*24*time.Hour)
			if n := count(t, e, `select count(*) from delivery_message`); n != 0 {
				t.Errorf("%d messages are left", n)
			}
		})
	}
}
