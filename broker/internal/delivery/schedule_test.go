package delivery

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

// Schedules of these tests tick once a month, so that none ticks because of the time that a test takes. There is a tick in
// every month that the clock is moved by.
const (
	monthly = "0 0 1 * *"
	month   = 31 * 24 * time.Hour
)

// scheduled is the schedule s.
func scheduled(t testing.TB, e *Engine) *Schedule {
	t.Helper()
	s, err := e.Schedule(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t testing.TB, e *Engine, s Schedule) {
	t.Helper()
	if _, err := e.PutSchedule(t.Context(), s, ""); err != nil {
		t.Fatal(err)
	}
}

func toURL(url string) request.Destination { return request.Destination{Kind: request.URL, URL: url} }

// advanceTo moves the test clock to a time.
func advanceTo(t testing.TB, e *Engine, to time.Time) {
	t.Helper()
	now, err := readNow(t.Context(), e.pool)
	if err != nil {
		t.Fatal(err)
	}
	if d := to.Sub(now); d > 0 {
		advance(t, e, d)
	}
}

func TestScheduleTicks(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	put(t, e, Schedule{ID: "s", Cron: " 0  0 1 * * ", Destination: toURL(s.URL), Message: Message{
		Method: http.MethodPut, Body: []byte("tick"), Header: http.Header{"X-A": {"1"}}, CallerIP: "127.0.0.1",
	}})
	first := scheduled(t, e)
	if first.Cron != "0  0 1 * *" || first.NextAt.Day() != 1 || first.NextAt.Second() != 0 || !first.LastAt.IsZero() || first.Paused {
		t.Errorf("schedule %+v", first)
	}
	settle(t, e)
	if n := len(s.requests()); n != 0 {
		t.Fatalf("%d messages before the first tick", n)
	}
	for i := range 3 {
		due := scheduled(t, e).NextAt
		advanceTo(t, e, due.Add(-time.Hour))
		if n := len(s.requests()); n != i {
			t.Fatalf("%d messages before tick %d", n, i+1)
		}
		advanceTo(t, e, due)
		got := s.requests()
		if len(got) != i+1 {
			t.Fatalf("%d messages after tick %d", len(got), i+1)
		}
		r := got[i]
		if r.method != http.MethodPut || r.body != "tick" || r.header.Get("X-A") != "1" || r.header.Get("Upstash-Schedule-Id") != "s" {
			t.Errorf("delivered %+v", r)
		}
		now := scheduled(t, e)
		if !now.LastAt.Equal(due) || !now.NextAt.Equal(due.AddDate(0, 1, 0)) {
			t.Errorf("last %s, next %s after the tick of %s", now.LastAt, now.NextAt, due)
		}
	}
	states, err := e.Scheduled(t.Context(), scheduled(t, e))
	if err != nil || len(states) != 1 {
		t.Fatalf("states %v, %v", states, err)
	}
	for _, state := range states {
		if state != Delivered {
			t.Errorf("state %v", state)
		}
	}
	advance(t, e, 400*24*time.Hour)
	if n := len(s.requests()); n != 4 {
		t.Errorf("%d messages, want one for all the ticks that were missed", n)
	}
	if err := e.DeleteSchedule(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	advance(t, e, month)
	if n := len(s.requests()); n != 4 {
		t.Errorf("%d messages after the schedule was deleted", n)
	}
	if err := e.DeleteSchedule(t.Context(), "s"); !errors.Is(err, ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestEachTickIsPublishedOnce lets several engines look at the same schedules.
func TestEachTickIsPublishedOnce(t *testing.T) {
	t.Parallel()
	url := database(t)
	engines := []*Engine{engine(t, url, nil), engine(t, url, nil), engine(t, url, nil)}
	s := newSink(t, nil)
	const schedules = 30
	for i := range schedules {
		put(t, engines[0], Schedule{ID: "s" + string(rune('a'+i)), Cron: monthly, Destination: toURL(s.URL), Message: Message{CallerIP: "x"}})
	}
	for tick := 1; tick <= 5; tick++ {
		if _, err := engines[0].pool.Exec(t.Context(), `update setting set clock_offset = clock_offset + $1`, month); err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for _, e := range engines {
			wait.Go(func() { settle(t, e) })
		}
		wait.Wait()
		seen := map[string]int{}
		waitUntil(t, func() bool { return len(s.requests()) >= tick*schedules })
		for _, r := range s.requests() {
			seen[r.header.Get("Upstash-Schedule-Id")]++
		}
		for id, n := range seen {
			if n != tick {
				t.Errorf("schedule %s has published %d messages after %d ticks", id, n, tick)
			}
		}
	}
}

func waitUntil(t testing.TB, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it took too long")
		}
	}
}

func TestPauseAndReplaceSchedule(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	put(t, e, Schedule{ID: "s", Cron: monthly, Destination: toURL(s.URL), Message: Message{Body: []byte("old"), Label: "l", CallerIP: "x"}})
	created := scheduled(t, e).CreatedAt
	for range 2 { // idempotent
		if err := e.PauseSchedule(t.Context(), "s", true); err != nil {
			t.Fatal(err)
		}
	}
	if p := scheduled(t, e); !p.Paused || !p.NextAt.IsZero() {
		t.Errorf("paused: %+v", p)
	}
	advance(t, e, 3*month)
	if n := len(s.requests()); n != 0 {
		t.Errorf("a paused schedule has published %d messages", n)
	}
	if err := e.PauseSchedule(t.Context(), "s", false); err != nil {
		t.Fatal(err)
	}
	settle(t, e)
	resumed := scheduled(t, e)
	if n := len(s.requests()); n != 0 || resumed.Paused || !resumed.NextAt.After(e.Now()) {
		t.Errorf("resumed: %d messages, %+v", n, resumed)
	}
	put(t, e, Schedule{ID: "s", Cron: "30 0 1 * *", Destination: toURL(s.URL + "/new"), Message: Message{CallerIP: "x", Delay: time.Hour}})
	replaced := scheduled(t, e)
	if replaced.Cron != "30 0 1 * *" || len(replaced.Message.Body) != 0 || replaced.Message.Label != "" || !replaced.CreatedAt.Equal(created) {
		t.Errorf("replaced: %+v", replaced)
	}
	advanceTo(t, e, replaced.NextAt.Add(30*time.Minute))
	if n := len(s.requests()); n != 0 {
		t.Errorf("%d messages before the delay is over", n)
	}
	advance(t, e, time.Hour)
	if got := s.requests(); len(got) != 1 || got[0].url != "/new" || got[0].body != "" {
		t.Errorf("delivered %+v", got)
	}
	if err := e.PauseSchedule(t.Context(), "unknown", true); !errors.Is(err, ErrNotFound) {
		t.Errorf("paused an unknown schedule: %v", err)
	}
}

func TestScheduleOfATopic(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	one, two := newSink(t, nil), newSink(t, nil)
	put(t, e, Schedule{ID: "s", Cron: monthly, Destination: request.Destination{Kind: request.Topic, Name: "news"}, Message: Message{
		Header: http.Header{"X-Own": {"1"}}, CallerIP: "x",
	}})
	advance(t, e, month)
	if s := scheduled(t, e); s.Error != "topic news not found" || !s.LastAt.IsZero() {
		t.Errorf("without its topic: %+v", s)
	}
	if err := e.UpsertEndpoints(t.Context(), "news", []Endpoint{{URL: one.URL}, {URL: two.URL}}, 100); err != nil {
		t.Fatal(err)
	}
	if err := e.SetTopicHeader(t.Context(), "news", http.Header{"X-Own": {"0"}, "X-Default": {"2"}}); err != nil {
		t.Fatal(err)
	}
	advance(t, e, month)
	for _, sink := range []*sink{one, two} {
		got := sink.requests()
		if len(got) != 1 || got[0].header.Get("X-Own") != "1" || got[0].header.Get("X-Default") != "2" || got[0].header.Get("Upstash-Topic-Name") != "news" {
			t.Errorf("delivered %+v", got)
		}
	}
	if s := scheduled(t, e); s.Error != "" || s.LastAt.IsZero() {
		t.Errorf("with its topic: %+v", s)
	}
}

func TestScheduleIsDeduplicated(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := Schedule{ID: NewScheduleID(), Cron: "* * * * *", Destination: toURL("http://127.0.0.1:1"), Message: Message{CallerIP: "x"}}
	if !strings.HasPrefix(s.ID, "scd_") {
		t.Errorf("id %s", s.ID)
	}
	original, err := e.PutSchedule(t.Context(), s, "once")
	if err != nil || original.Duplicate {
		t.Fatalf("%+v, %v", original, err)
	}
	again := s
	again.ID = NewScheduleID()
	original, err = e.PutSchedule(t.Context(), again, "once")
	if err != nil || !original.Duplicate || original.Schedule != s.ID {
		t.Errorf("%+v, %v", original, err)
	}
	if list, err := e.Schedules(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%d schedules, %v", len(list), err)
	}
	accepted, err := e.Publish(t.Context(), Publish{DedupID: "once", Messages: []Message{{Targets: []Target{{URL: "http://127.0.0.1:1"}}, CallerIP: "x"}}})
	if err != nil || !accepted.Duplicate || accepted.Schedule != s.ID {
		t.Errorf("a message with the id of a schedule: %+v, %v", accepted, err)
	}
	if _, err := e.PutSchedule(t.Context(), Schedule{ID: "x", Cron: "0 0 31 2 *"}, ""); err == nil || !strings.Contains(err.Error(), "invalid cron") {
		t.Errorf("a date that never comes: %v", err)
	}
}

// TestPoisonTick: a message that PostgreSQL refuses to store is its schedule's failure. The other schedules tick, and so does
// that one when its message can be stored.
func TestPoisonTick(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"bad data": "22021", "more than fits": "54000"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := engine(t, database(t), nil)
			refuseRowsAs(t, e, "delivery_message", `new.schedule_id = 's'`, code)
			good, bad := newSink(t, nil), newSink(t, nil)
			put(t, e, Schedule{ID: "s", Cron: monthly, Destination: toURL(bad.URL)})
			for _, id := range []string{"r", "t"} {
				put(t, e, Schedule{ID: id, Cron: monthly, Destination: toURL(good.URL)})
			}
			advance(t, e, month)
			if got := scheduled(t, e); len(good.requests()) != 2 || len(bad.requests()) != 0 || !strings.Contains(got.Error, "poison") || !got.LastAt.IsZero() {
				t.Errorf("%d and %d deliveries, %+v", len(good.requests()), len(bad.requests()), got)
			}
			if _, err := e.pool.Exec(t.Context(), `drop trigger refuse on delivery_message`); err != nil {
				t.Fatal(err)
			}
			advance(t, e, month)
			if got := scheduled(t, e); len(good.requests()) != 4 || len(bad.requests()) != 1 || got.Error != "" {
				t.Errorf("%d and %d deliveries, %+v", len(good.requests()), len(bad.requests()), got)
			}
		})
	}
}
