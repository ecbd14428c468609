package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is a fresh database as a broker finds it.
func database(t testing.TB) string {
	t.Helper()
	url := pgtest.URL(t)
	conn := pgtest.Admin(t, url)
	if _, err := conn.Exec(t.Context(), `insert into setting (hash_key, shards) values ('\x00', 1)`); err != nil {
		t.Fatal(err)
	}
	return url
}

// engine starts an engine on a database; change, if not nil, changes its configuration.
func engine(t testing.TB, url string, change func(*Config)) *Engine {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.Config{URL: url, PoolSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	client := egress.New(egress.Config{Policy: egress.Policy{Loopback: true}})
	t.Cleanup(client.Close)
	cfg := Config{Client: client, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), StopGrace: time.Second}
	if change != nil {
		change(&cfg)
	}
	e, err := Open(t.Context(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	return e
}

// advance moves the test clock and waits until what became due is done.
func advance(t testing.TB, e *Engine, d time.Duration) {
	t.Helper()
	if _, err := e.pool.Exec(t.Context(), `update setting set clock_offset = clock_offset + $1`, d); err != nil {
		t.Fatal(err)
	}
	settle(t, e)
}

func settle(t testing.TB, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.Settle(ctx); err != nil {
		t.Fatalf("settle: %v", err)
	}
}

// received is one request that a sink got.
type received struct {
	method string
	url    string
	header http.Header
	body   string
}

// sink is a destination.
type sink struct {
	*httptest.Server
	mu     sync.Mutex
	got    []received
	answer func(n int, w http.ResponseWriter, r *http.Request) // n counts from 1; nil answers 200
}

func newSink(t testing.TB, answer func(n int, w http.ResponseWriter, r *http.Request)) *sink {
	t.Helper()
	s := &sink{answer: answer}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *sink) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.got = append(s.got, received{r.Method, r.URL.String(), r.Header.Clone(), string(body)})
	n := len(s.got)
	s.mu.Unlock()
	if s.answer != nil {
		s.answer(n, w, r)
	}
}

func (s *sink) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]received(nil), s.got...)
}

// failing answers every request with a status.
func failing(status int) func(int, http.ResponseWriter, *http.Request) {
	return func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

func to(url string) Message { return Message{Targets: []Target{{URL: url}}} }

// publish publishes one message that must be accepted.
func publish(t testing.TB, e *Engine, m Message) uuid.UUID {
	t.Helper()
	return publishAs(t, e, "", m).IDs[0]
}

func publishAs(t testing.TB, e *Engine, dedupID string, m Message) Accepted {
	t.Helper()
	a, err := e.Publish(t.Context(), Publish{DedupID: dedupID, Messages: []Message{m}})
	if err != nil {
		t.Fatalf("publish: %v", err)
	}
	return a
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// states are the log entries of a message, oldest first.
func states(t testing.TB, e *Engine, id uuid.UUID) string {
	t.Helper()
	rows, err := e.pool.Query(t.Context(), `select state from delivery_log where message_id = $1 order by id`, id)
	if err != nil {
		t.Fatal(err)
	}
	list, err := collect[State](rows)
	if err != nil {
		t.Fatal(err)
	}
	words := make([]string, len(list))
	for i, s := range list {
		words[i] = s.String()
	}
	return strings.Join(words, " ")
}

func count(t testing.TB, e *Engine, sql string, args ...any) (n int) {
	t.Helper()
	for {
		err := e.pool.QueryRow(t.Context(), sql, args...).Scan(&n)
		switch {
		case err == nil:
			return n
		case !pg.Unavailable(err): // as over a connection that the test has killed
			t.Fatal(err)
		}
	}
}

// TestDelivery sends a message as it was published, once, and logs it.
func TestDelivery(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	body := "{\"a\":1}\x00\xff"
	m := Message{
		Targets: []Target{{URL: s.URL + "/a//b/../c?x=1&y=%20"}}, Method: http.MethodPut, Body: []byte(body), CallerIP: "192.0.2.7",
		Header: http.Header{"Content-Type": {"text/plain; charset=latin1"}, "X-Two": {"a", "b\xe9"}},
	}
	id := publish(t, e, m)
	settle(t, e)
	got := s.requests()
	if len(got) != 1 {
		t.Fatalf("%d requests", len(got))
	}
	r := got[0]
	if r.method != "PUT" || r.url != "/a//b/../c?x=1&y=%20" || r.body != body {
		t.Errorf("%+v", r)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/plain; charset=latin1", "User-Agent": "Upstash-QStash", "Upstash-Message-Id": MessageID(id),
		"Upstash-Retried": "0", "Upstash-Caller-Ip": "192.0.2.7",
	} {
		if r.header.Get(name) != want {
			t.Errorf("%s: %q", name, r.header[name])
		}
	}
	if two := r.header["X-Two"]; len(two) != 2 || two[1] != "b\xe9" {
		t.Errorf("X-Two: %q", two)
	}
	if got := states(t, e, id); got != "CREATED ACTIVE DELIVERED" {
		t.Errorf("log: %s", got)
	}
	if n := count(t, e, `select count(*) from delivery_task`); n != 0 {
		t.Errorf("%d tasks are left", n)
	}
}

// TestDefaultMethod is POST, whether the message comes from memory or from the database.
func TestDefaultMethod(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	told := newSink(t, nil)
	s := newSink(t, failing(500))
	m := to(s.URL)
	m.Retries, m.RetryDelay, m.Callback = 1, "0", &Callback{URL: told.URL}
	publish(t, e, m)
	settle(t, e)
	all := append(s.requests(), told.requests()...)
	if len(all) != 4 {
		t.Fatalf("%d requests", len(all))
	}
	for _, r := range all {
		if r.method != http.MethodPost {
			t.Errorf("%s %s", r.method, r.url)
		}
	}
}

// TestRetries makes 1 + retries attempts, each exactly when the backoff is over, and no more.
func TestRetries(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, failing(500))
	m := to(s.URL)
	m.Retries = 6
	id := publish(t, e, m)
	settle(t, e)
	for n := 1; n <= 6; n++ {
		if got := len(s.requests()); got != n {
			t.Fatalf("%d attempts before retry %d", got, n)
		}
		seconds := min(86400, math.Exp(2*float64(n)))
		pause := time.Duration(seconds * float64(time.Second)).Round(time.Microsecond)
		var at, next time.Time
		if err := e.pool.QueryRow(t.Context(), `select time, next_at from delivery_log where message_id = $1 and state = $2 order by id desc limit 1`, id, Retrying).Scan(&at, &next); err != nil {
			t.Fatal(err)
		}
		if got := next.Sub(at).Round(time.Microsecond); (got - pause).Abs() > time.Microsecond {
			t.Errorf("the pause before retry %d is %v, want %v", n, got, pause)
		}
		advance(t, e, pause-5*time.Second)
		if got := len(s.requests()); got != n {
			t.Fatalf("retry %d was early", n)
		}
		advance(t, e, 5*time.Second)
	}
	advance(t, e, 1000*time.Hour)
	got := s.requests()
	if len(got) != 7 {
		t.Fatalf("%d attempts", len(got))
	}
	for i, r := range got {
		if r.header.Get("Upstash-Retried") != fmt.Sprint(i) || r.header.Get("Upstash-Message-Id") != MessageID(id) {
			t.Errorf("attempt %d: %v", i, r.header)
		}
	}
	if n := count(t, e, `select count(*) from delivery_dead_letter where message_id = $1 and response_status = 500 and retried = 6`, id); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}

// TestNoRetry logs exactly what the contract lists.
func TestNoRetry(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, failing(418))
	id := publish(t, e, to(s.URL))
	settle(t, e)
	if got := states(t, e, id); got != "CREATED ACTIVE ERROR FAILED" {
		t.Errorf("log: %s", got)
	}
}

// TestRetryPauses takes the pause from the destination, else from the message.
func TestRetryPauses(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	for name, c := range map[string]struct {
		header, value string
		expression    string
		want          time.Duration
	}{
		"Retry-After":       {"Retry-After", "100", "1000", 100 * time.Second},
		"RateLimit":         {"X-RateLimit-Reset-Tokens", "6m0s", "1000", 6 * time.Minute},
		"over a day":        {"Retry-After", "86401", "12000 * (1 + retried)", 12 * time.Second},
		"expression":        {"X-Other", "1", "pow(2, retried) * 5000", 5 * time.Second},
		"unreadable header": {"Retry-After", "soon", "7000", 7 * time.Second},
	} {
		s := newSink(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(c.header, c.value)
			w.WriteHeader(503)
		})
		m := to(s.URL)
		m.Retries, m.RetryDelay = 1, c.expression
		id := publish(t, e, m)
		settle(t, e)
		var pause time.Duration
		if err := e.pool.QueryRow(t.Context(), `select next_at - time from delivery_log where message_id = $1 and state = $2`, id, Retrying).Scan(&pause); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if pause != c.want {
			t.Errorf("%s: %v", name, pause)
		}
	}
}

// TestFinal ends at once what no retry can help.
func TestFinal(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n > 1 {
			w.Header().Set("Upstash-NonRetryable-Error", "true")
		}
		w.WriteHeader(489)
	})
	retried, final, blocked := to(s.URL), to(s.URL), to("http://169.254.169.254/latest")
	retried.Retries, final.Retries, blocked.Retries = 3, 3, 3
	first := publish(t, e, retried)
	settle(t, e)
	second, third := publish(t, e, final), publish(t, e, blocked)
	settle(t, e)
	for id, want := range map[uuid.UUID]string{
		first: "CREATED ACTIVE ERROR RETRY", second: "CREATED ACTIVE ERROR FAILED", third: "CREATED ACTIVE ERROR FAILED",
	} {
		if got := states(t, e, id); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestDelays holds a message back until its time, on both sides of it.
func TestDelays(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, nil)
	delayed, notBefore, past := to(s.URL+"/delayed"), to(s.URL+"/not-before"), to(s.URL+"/past")
	delayed.Delay = 34*time.Hour + 30*time.Minute
	notBefore.NotBefore, notBefore.Delay = e.Now().Add(48*time.Hour), time.Hour
	past.NotBefore = e.Now().Add(-time.Hour)
	publish(t, e, delayed)
	publish(t, e, notBefore)
	publish(t, e, past)
	for _, step := range []struct {
		by   time.Duration
		want int
	}{{0, 1}, {delayed.Delay - time.Minute, 1}, {time.Minute, 2}, {48*time.Hour - delayed.Delay - time.Minute, 2}, {2 * time.Minute, 3}} {
		advance(t, e, step.by)
		if got := len(s.requests()); got != step.want {
			t.Fatalf("%d deliveries after %v more, want %d", got, step.by, step.want)
		}
	}
}

// TestDedup accepts an id once in 90 days, whoever publishes it, also when the message failed.
func TestDedup(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := engine(t, url, nil), engine(t, url, nil)
	s := newSink(t, failing(400))
	first := publishAs(t, a, "id", to(s.URL))
	settle(t, a)
	for _, e := range []*Engine{a, b} {
		if again := publishAs(t, e, "id", to(s.URL+"/other")); !again.Duplicate || len(again.IDs) != 1 || again.IDs[0] != first.IDs[0] {
			t.Errorf("%+v", again)
		}
	}
	if other := publishAs(t, b, "ID", to(s.URL)); other.Duplicate {
		t.Error("ids are told apart by case")
	}
	advance(t, a, 90*24*time.Hour-time.Minute)
	if again := publishAs(t, b, "id", to(s.URL)); !again.Duplicate || again.IDs[0] != first.IDs[0] {
		t.Errorf("before the window ends: %+v", again)
	}
	advance(t, a, time.Minute)
	again := publishAs(t, b, "id", to(s.URL))
	if again.Duplicate {
		t.Fatalf("after the window: %+v", again)
	}
	if third := publishAs(t, a, "id", to(s.URL)); !third.Duplicate || third.IDs[0] != again.IDs[0] {
		t.Errorf("in the new window: %+v", third)
	}
}

// TestDedupRace accepts one of many publishes of one id.
func TestDedupRace(t *testing.T) {
	t.Parallel()
	url := database(t)
	engines := []*Engine{engine(t, url, nil), engine(t, url, nil)}
	s := newSink(t, nil)
	for round := range 10 {
		results := make([]Accepted, 32)
		var wg sync.WaitGroup
		for i := range results {
			wg.Go(func() {
				a, err := engines[i%2].Publish(t.Context(), Publish{DedupID: fmt.Sprint(round), Messages: []Message{to(s.URL)}})
				if err != nil {
					t.Error(err)
				}
				results[i] = a
			})
		}
		wg.Wait()
		fresh := 0
		for _, a := range results {
			if !a.Duplicate {
				fresh++
			}
			if len(a.IDs) != 1 || a.IDs[0] != results[0].IDs[0] {
				t.Fatalf("%v and %v", a, results[0])
			}
		}
		if fresh != 1 {
			t.Fatalf("%d of one id were accepted", fresh)
		}
	}
	for _, e := range engines {
		settle(t, e)
	}
	if got := len(s.requests()); got != 10 {
		t.Errorf("%d deliveries", got)
	}
}

// TestCallbacks tells of every attempt, and of the end.
func TestCallbacks(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Answer", "yes")
		w.WriteHeader(502)
		_, _ = fmt.Fprintf(w, "answer %d", n)
	})
	told, failed := newSink(t, nil), newSink(t, nil)
	m := to(s.URL + "/x")
	m.Body, m.Header = []byte("hello\xff"), http.Header{"X-Mine": {"1"}}
	m.Retries, m.RetryDelay = 1, "1000"
	m.Callback = &Callback{URL: told.URL, Method: "PUT", Header: map[string][]string{"X-Extra": {"e"}}}
	m.FailureCallback = &Callback{URL: failed.URL}
	id := publish(t, e, m)
	settle(t, e)
	advance(t, e, time.Second)
	calls, failures := told.requests(), failed.requests()
	if len(calls) != 2 || len(failures) != 1 {
		t.Fatalf("%d callbacks, %d failure callbacks", len(calls), len(failures))
	}
	for i, call := range calls {
		var n notice
		if err := json.Unmarshal([]byte(call.body), &n); err != nil {
			t.Fatal(err)
		}
		if n.Status != 502 || n.Retried != i || n.MaxRetries != 1 || n.SourceMessageID != MessageID(id) || n.URL != s.URL+"/x" ||
			n.Method != "POST" || string(n.SourceBody) != "hello\xff" || string(n.Body) != fmt.Sprintf("answer %d", i+1) ||
			n.Header["X-Answer"][0] != "yes" || n.SourceHeader["X-Mine"][0] != "1" || n.DLQID != "" || n.CreatedAt == 0 {
			t.Errorf("callback %d: %+v", i, n)
		}
		if call.method != "PUT" || call.header.Get("X-Extra") != "e" || call.header.Get("Content-Type") != "application/json" {
			t.Errorf("callback %d: %+v", i, call)
		}
		if call.header.Get("Upstash-Message-Id") == MessageID(id) {
			t.Error("a callback has an id of its own")
		}
	}
	var n notice
	if err := json.Unmarshal([]byte(failures[0].body), &n); err != nil {
		t.Fatal(err)
	}
	dead, ok := ParseDeadLetterID(n.DLQID)
	if !ok || count(t, e, `select count(*) from delivery_dead_letter where id = $1 and message_id = $2`, dead, id) != 1 {
		t.Errorf("dlqId %q", n.DLQID)
	}
}

// TestKilledBackends loses no message and accepts none twice while connections die.
func TestKilledBackends(t *testing.T) {
	t.Parallel()
	url := database(t)
	e := engine(t, url, nil)
	s := newSink(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%7 == 0 {
			w.WriteHeader(500)
		}
	})
	done := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	accepted := map[string]bool{}
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				m := to(s.URL)
				m.Retries, m.RetryDelay = 20, "0"
				id := fmt.Sprintf("%d-%d", w, i)
				for {
					a, err := e.Publish(t.Context(), Publish{DedupID: id, Messages: []Message{m}})
					if err == nil {
						mu.Lock()
						accepted[MessageID(a.IDs[0])] = true
						mu.Unlock()
						break
					}
					if !errors.Is(err, ErrUnavailable) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for range 10 {
		eventually(t, "some are accepted", func() bool {
			before := len(s.requests())
			time.Sleep(50 * time.Millisecond)
			return len(s.requests()) > before
		})
		pgtest.KillBackends(t, url)
	}
	close(done)
	wg.Wait()
	eventually(t, "all are delivered", func() bool {
		return count(t, e, `select count(*) from delivery_task`) == 0
	})
	seen := map[string]bool{}
	for _, r := range s.requests() {
		seen[r.header.Get("Upstash-Message-Id")] = true
	}
	for id := range accepted {
		if !seen[id] {
			t.Errorf("%s was not delivered", id)
		}
	}
	if n := count(t, e, `select count(*) from delivery_message`); n != len(accepted) {
		t.Errorf("%d messages for %d that were accepted", n, len(accepted))
	}
	// Every message has one end in its log.
	if n := count(t, e, `select count(*) from (select message_id from delivery_log where state = $1 group by 1 having count(*) = 1) x`, Delivered); n != len(accepted) {
		t.Errorf("%d ends of %d messages", n, len(accepted))
	}
}

// TestTwoEngines share the work, and one takes over what the other leaves.
func TestTwoEngines(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := engine(t, url, nil), engine(t, url, nil)
	s := newSink(t, func(int, http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Millisecond) })
	m := to(s.URL)
	m.Delay = time.Hour
	const total = 2000
	var wg sync.WaitGroup
	for i := range total {
		wg.Go(func() { publish(t, []*Engine{a, b}[i%2], m) })
	}
	wg.Wait()
	if _, err := a.pool.Exec(t.Context(), `update setting set clock_offset = clock_offset + interval '1 hour'`); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { settle(t, a) })
	wg.Go(func() { settle(t, b) })
	wg.Wait()
	eventually(t, "all are delivered", func() bool { return count(t, a, `select count(*) from delivery_task`) == 0 })
	seen := map[string]int{}
	for _, r := range s.requests() {
		seen[r.header.Get("Upstash-Message-Id")]++
	}
	if len(seen) != total || len(s.requests()) != total {
		t.Errorf("%d messages in %d deliveries", len(seen), len(s.requests()))
	}
}

// TestDeadBroker takes over what a broker held that shows no life any more.
func TestDeadBroker(t *testing.T) {
	t.Parallel()
	url := database(t)
	s := newSink(t, nil)
	hung := make(chan struct{})
	slow := newSink(t, func(n int, _ http.ResponseWriter, r *http.Request) {
		if n == 1 {
			select {
			case <-hung:
			case <-r.Context().Done():
			}
		}
	})
	defer close(hung)
	a := engine(t, url, nil)
	id := publish(t, a, to(slow.URL))
	eventually(t, "the attempt has begun", func() bool { return len(slow.requests()) == 1 })
	b := engine(t, url, nil)
	// As if a had been killed: its lease ends, and it does not know.
	if _, err := b.pool.Exec(t.Context(), `update delivery_broker set alive_until = clock_timestamp() - interval '1 s' where lease = $1`, a.leases.current.id); err != nil {
		t.Fatal(err)
	}
	if err := b.reap(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other broker has delivered it", func() bool { return strings.HasSuffix(states(t, b, id), "DELIVERED") })
	if got := states(t, b, id); got != "CREATED ACTIVE DELIVERED" {
		t.Errorf("log: %s", got)
	}
	if err := a.renewLease(t.Context()); err != nil {
		t.Fatal(err)
	}
	second := publish(t, a, to(s.URL))
	eventually(t, "the broker that lost its lease works on", func() bool { return strings.HasSuffix(states(t, b, second), "DELIVERED") })
}

// TestDeadHost does not hold up others: nine of ten hosts answer, the tenth never does, and it has the most messages.
func TestDeadHost(t *testing.T) {
	t.Parallel()
	e := engine(t, database(t), func(c *Config) { c.Workers, c.Timeout = 32, 300*time.Millisecond })
	var listen net.ListenConfig
	dead, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dead.Close() }()
	m := to("http://" + dead.Addr().String())
	m.Delay, m.Retries = time.Hour, 3
	var wg sync.WaitGroup
	for range 3000 {
		wg.Go(func() { publish(t, e, m) })
	}
	wg.Wait()
	var live []*sink
	for range 9 {
		s := newSink(t, nil)
		live = append(live, s)
		for range 20 {
			m := to(s.URL)
			m.Delay = time.Hour + time.Second
			wg.Go(func() { publish(t, e, m) })
		}
	}
	wg.Wait()
	if _, err := e.pool.Exec(t.Context(), `update setting set clock_offset = clock_offset + interval '62 minutes'`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the live hosts have all of theirs", func() bool {
		for _, s := range live {
			if len(s.requests()) < 20 {
				return false
			}
		}
		return true
	})
	for range 9 {
		publish(t, e, to(live[0].URL))
	}
	eventually(t, "a live host has new ones", func() bool { return len(live[0].requests()) == 29 })
	if left := count(t, e, `select count(*) from delivery_task where retried = 0 and host = $1`, hostOf(m.Targets[0].URL)); left < 1000 {
		t.Errorf("only %d of the dead host are left: it had more than its share", left)
	}
}
