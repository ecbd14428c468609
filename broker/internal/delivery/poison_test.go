package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// refuseRows makes a table refuse rows that fit a condition, as PostgreSQL refuses data that it cannot store.
func refuseRows(t testing.TB, e *Engine, table, condition string) {
	t.Helper()
	refuseRowsAs(t, e, table, condition, "22021")
}

func refuseRowsAs(t testing.TB, e *Engine, table, condition, code string) {
	t.Helper()
	for _, sql := range []string{
		`create function refuse_` + table + `() returns trigger language plpgsql as $$
		 begin raise exception 'poison' using errcode = '` + code + `'; end $$`,
		`create trigger refuse before insert on ` + table + ` for each row when (` + condition + `) execute function refuse_` + table + `()`,
	} {
		if _, err := e.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

func deadError(t testing.TB, e *Engine, id uuid.UUID) (text string) {
	t.Helper()
	err := e.pool.QueryRow(t.Context(), `select coalesce(string_agg(error, '|'), '') from delivery_dead_letter where message_id = $1`, id).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPoisonAnswer: an answer that PostgreSQL refuses to store is left out, and what became of the attempt is stored. It
// is not repeated for ever, and nothing else that is settled with it suffers.
func TestPoisonAnswer(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	e := engine(t, database(t), func(c *Config) { c.Metrics = registry })
	refuseRows(t, e, "delivery_log", `new.response_body = 'poison'`)
	answer := func(status int) func(int, http.ResponseWriter, *http.Request) {
		return func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "poison")
		}
	}
	good, bad, fine := newSink(t, answer(200)), newSink(t, answer(500)), newSink(t, nil)
	m := to(bad.URL)
	m.Retries, m.RetryDelay = 1, "0"
	failed, delivered, other := publish(t, e, m), publish(t, e, to(good.URL)), publish(t, e, to(fine.URL))
	settle(t, e)
	eventually(t, "everything is over", func() bool { return count(t, e, `select count(*) from delivery_task`) == 0 })
	if got := states(t, e, failed); got != "CREATED ACTIVE ERROR RETRY ACTIVE ERROR FAILED" || len(bad.requests()) != 2 {
		t.Errorf("%d attempts, log: %s", len(bad.requests()), got)
	}
	if got := deadError(t, e, failed); !strings.Contains(got, "answered 500") || !strings.Contains(got, "could not be stored") {
		t.Errorf("the dead letter says %q", got)
	}
	for id, s := range map[uuid.UUID]*sink{delivered: good, other: fine} {
		if got := states(t, e, id); got != "CREATED ACTIVE DELIVERED" || len(s.requests()) != 1 {
			t.Errorf("%d attempts, log: %s", len(s.requests()), got)
		}
	}
	expectMetrics(t, registry, map[string]float64{"delivery_outcomes_stripped_total": 3})
}

// TestPoisonCallback: a callback that cannot be stored does not keep its message from ending.
func TestPoisonCallback(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	refuseRows(t, e, "delivery_message", `new.url like '%/poison'`)
	good, bad := newSink(t, nil), newSink(t, failing(500))
	toldBy := func(s *sink) uuid.UUID {
		m := to(s.URL)
		m.Retries, m.Callback = 3, &Callback{URL: "http://127.0.0.1:9/poison"}
		return publish(t, e, m)
	}
	delivered, failed := toldBy(good), toldBy(bad)
	settle(t, e)
	eventually(t, "everything is over", func() bool { return count(t, e, `select count(*) from delivery_task`) == 0 })
	if got := states(t, e, delivered); got != "CREATED ACTIVE DELIVERED" || len(good.requests()) != 1 {
		t.Errorf("%d attempts, log: %s", len(good.requests()), got)
	}
	if got := states(t, e, failed); got != "CREATED ACTIVE ERROR FAILED" || len(bad.requests()) != 1 {
		t.Errorf("%d attempts, log: %s", len(bad.requests()), got)
	}
	if got := deadError(t, e, failed); !strings.Contains(got, "callback") {
		t.Errorf("the dead letter says %q", got)
	}
}

// oddQueues refuses everything with a text that PostgreSQL cannot store.
type oddQueues struct{}

func (oddQueues) Deliver(context.Context, string, string, string, json.RawMessage) error {
	return errors.New("no \x00 queue \xff")
}

// TestUnstorableError: what an error says is stored as far as PostgreSQL can.
func TestUnstorableError(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	e := engine(t, database(t), func(c *Config) { c.Queues, c.Metrics = oddQueues{}, registry })
	m := Message{Targets: []Target{QueueTarget("q", "")}}
	id := publish(t, e, m)
	settle(t, e)
	eventually(t, "everything is over", func() bool { return count(t, e, `select count(*) from delivery_task`) == 0 })
	if got := deadError(t, e, id); got != "the queue did not take the message: no \uFFFD queue \uFFFD" {
		t.Errorf("the dead letter says %q", got)
	}
	expectMetrics(t, registry, map[string]float64{"delivery_outcomes_stripped_total": 0})
}

// TestRefusedOutcome: an outcome that PostgreSQL refuses for no fault of its data is not repeated at once and for ever: the
// pauses grow. When PostgreSQL takes it the message is over.
func TestRefusedOutcome(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]Message{"plain": {}, "flow": {FlowKey: "k", Settings: Settings{Flow: FlowLimits{Parallelism: 1}}}, "queue": {Queue: "q"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			e := engine(t, database(t), func(c *Config) { c.Metrics = registry })
			refuseRowsAs(t, e, "delivery_log", fmt.Sprintf(`new.state = %d and new.response_body = 'poison'`, Delivered), "55000")
			s := newSink(t, func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "poison") })
			fine := newSink(t, nil)
			m.Targets = []Target{{URL: s.URL}}
			id := publish(t, e, m)
			settle(t, e)
			const steps = 9
			for n := range steps {
				publish(t, e, to(fine.URL))
				advance(t, e, postponeFirst<<n)
			}
			// A pause may be over by the real clock too.
			got := len(s.requests())
			if got <= steps || got > steps+4 {
				t.Errorf("%d attempts while the pauses of %d passed", got, steps)
			}
			if n := gathered(t, registry)["delivery_outcomes_refused_total"]; int(n) != got {
				t.Errorf("%v refusals are counted, want %d", n, got)
			}
			if got := len(fine.requests()); got != steps {
				t.Errorf("%d of %d other messages were delivered", got, steps)
			}
			if _, err := e.pool.Exec(t.Context(), `drop trigger refuse on delivery_log`); err != nil {
				t.Fatal(err)
			}
			advance(t, e, postponeMost)
			if got := states(t, e, id); got != "CREATED ACTIVE DELIVERED" {
				t.Errorf("log: %s", got)
			}
			if n := count(t, e, `select count(*) from delivery_task`); n != 0 {
				t.Errorf("%d tasks are left", n)
			}
			if e.refused.known.Load() {
				t.Error("it is still counted as refused")
			}
		})
	}
}

// TestPostponement grows to a bound and starts anew for each task.
func TestPostponement(t *testing.T) {
	t.Parallel()
	var r refused
	k := taskKey{uuid.New(), 0}
	for n := range 100 {
		want := postponeMost
		if n < 10 {
			want = min(postponeFirst<<n, postponeMost)
		}
		if got := r.again(k); got != want {
			t.Fatalf("pause %d is %v, want %v", n, got, want)
		}
	}
	if got := r.again(taskKey{k.message, 1}); got != postponeFirst {
		t.Errorf("another task waits %v", got)
	}
	r.forget([]*outcome{{job: &job{message: k.message}}})
	if got := r.again(k); got != postponeFirst {
		t.Errorf("after a success it waits %v", got)
	}
	for range 3 * refusedMost {
		r.again(taskKey{uuid.New(), 0})
	}
	if len(r.counts) > refusedMost {
		t.Errorf("%d tasks are remembered", len(r.counts))
	}
}
