package main_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// chaosShort is how long brokers are killed in an ordinary run of the tests.
const chaosShort = 6 * time.Second

var chaosTime = flag.Duration("chaos", chaosShort, "how long TestDeliveriesSurviveKills kills brokers; longer than the default, leases end by themselves")

// attempt names what a broker may do once or, when it dies, more often.
type attempt struct {
	message string
	retried int
}

// unreliable is a destination that fails at random. What goes to /never it refuses always.
type unreliable struct {
	*httptest.Server
	mu       sync.Mutex
	attempts map[attempt][]time.Time // when each arrived
	ok       map[string]int          // messages that were taken, how often
}

func newUnreliable(t *testing.T, seed uint64) *unreliable {
	t.Helper()
	s := &unreliable{attempts: map[attempt][]time.Time{}, ok: map[string]int{}}
	var requests atomic.Uint64
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := time.Now()
		random := rand.New(rand.NewPCG(seed, requests.Add(1)))
		retried, err := strconv.Atoi(r.Header.Get("Upstash-Retried"))
		if err != nil {
			t.Errorf("Upstash-Retried: %v", err)
		}
		id := r.Header.Get("Upstash-Message-Id")
		taken := r.URL.Path != "/never" && random.IntN(10) < 6
		s.mu.Lock()
		s.attempts[attempt{id, retried}] = append(s.attempts[attempt{id, retried}], at)
		if taken {
			s.ok[id]++
		}
		s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		pause(r.Context(), time.Duration(random.IntN(60))*time.Millisecond) // so that kills cut attempts off
		if !taken {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// repeated is how many attempts arrived more than once.
func (s *unreliable) repeated() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, times := range s.attempts {
		if len(times) > 1 {
			n++
		}
	}
	return n
}

// published is a message that a broker accepted.
type published struct {
	id      string
	retries int
}

// publishOnce publishes one message with a deduplication id and says what the answer was.
func publishOnce(ctx context.Context, broker, destination, dedup string, retries int, delay string) (id string, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, broker+"/v2/publish/"+destination, strings.NewReader(dedup))
	if err != nil {
		return "", 0, err
	}
	request.Header.Set("Upstash-Deduplication-Id", dedup)
	request.Header.Set("Upstash-Retries", strconv.Itoa(retries))
	request.Header.Set("Upstash-Retry-Delay", "100")
	if delay != "" {
		request.Header.Set("Upstash-Delay", delay)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	var answer struct {
		MessageID string `json:"messageId"`
		Error     string `json:"error"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return "", 0, err
	}
	if response.StatusCode/100 != 2 {
		return "", response.StatusCode, fmt.Errorf("status %d: %s", response.StatusCode, answer.Error)
	}
	return answer.MessageID, response.StatusCode, nil
}

// TestDeliveriesSurviveKills publishes at two brokers of one database, to a destination that fails at random, while each of
// them is killed in turn and started again. Every message that was accepted is delivered, or dead-lettered after 1 +
// retries attempts, none before its time; every tick of a schedule is one message; and the run did see attempts that were
// made again because their broker was killed.
func TestDeliveriesSurviveKills(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	const publishers, schedules = 4, 3
	binary := filepath.Join(t.TempDir(), "posthorn")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the broker: %v\n%s", err, out)
	}
	database := pgtest.URL(t)
	var brokers []*process
	for range 2 {
		p := &process{binary: binary, database: database, spool: t.TempDir(), environment: []string{"POSTHORN_EGRESS_ALLOW=127.0.0.0/8"}}
		p.start(t)
		t.Cleanup(func() { p.end(syscall.SIGTERM) })
		brokers = append(brokers, p)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	sink := newUnreliable(t, seed)
	for i := range schedules {
		createSchedule(t, *brokers[0].url.Load(), fmt.Sprint("s", i), sink.URL+"/tick")
	}

	ctx, cancel := context.WithTimeout(t.Context(), *chaosTime)
	defer cancel()
	var work, ticking sync.WaitGroup
	kills := 0
	work.Go(func() {
		for pause(ctx, 800*time.Millisecond); ctx.Err() == nil; pause(ctx, 1200*time.Millisecond) {
			victim := brokers[kills%2]
			victim.end(syscall.SIGKILL)
			victim.start(t)
			kills++
		}
	})
	var mu sync.Mutex
	accepted := map[string]published{} // by deduplication id
	var landed atomic.Int64            // accepted though the first answer was lost
	for w := range publishers {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				dedup, retries := fmt.Sprintf("m-%d-%d", w, n), random.IntN(4)
				destination := sink.URL + []string{"/a", "/b", "/never"}[random.IntN(3)]
				delay := []string{"", "", "1s", "2s"}[random.IntN(4)]
				for tries := 0; ; tries++ {
					// Not ctx: what was begun is repeated until it is known to be accepted.
					id, status, err := publishOnce(t.Context(), *brokers[random.IntN(2)].url.Load(), destination, dedup, retries, delay)
					if err != nil {
						if t.Context().Err() != nil || tries > 3000 {
							t.Errorf("publish %s: %v", dedup, err)
							return
						}
						pause(t.Context(), 10*time.Millisecond)
						continue
					}
					if tries > 0 && status == http.StatusAccepted {
						landed.Add(1)
					}
					mu.Lock()
					accepted[dedup] = published{id, retries}
					mu.Unlock()
					break
				}
				pause(ctx, 20*time.Millisecond)
			}
		})
	}

	conn := pgtest.Admin(t, database)
	ticks := 0
	settled, stop := context.WithCancel(t.Context())
	ticking.Go(func() {
		for ; settled.Err() == nil; pause(settled, 200*time.Millisecond) {
			if ctx.Err() == nil {
				ticks += makeTick(t, conn)
			}
			if *chaosTime <= chaosShort {
				bury(t, conn)
			}
		}
	})
	work.Wait()
	audited := pgtest.Admin(t, database)
	deadline := time.Now().Add(90 * time.Second)
	for !over(t, audited) {
		if time.Now().After(deadline) {
			stop()
			ticking.Wait()
			t.Fatal("deliveries are left over")
		}
		pause(t.Context(), 100*time.Millisecond)
	}
	stop()
	ticking.Wait()

	var ids []string
	for _, m := range accepted {
		ids = append(ids, m.id)
	}
	delivered, dead := checkDeliveries(t, audited, sink, accepted)
	checkTimes(t, audited, sink)
	total, scheduled := 0, 0
	err := audited.QueryRow(t.Context(), `select count(*), count(schedule_id) from delivery_message`).Scan(&total, &scheduled)
	if err != nil {
		t.Fatal(err)
	}
	if total-scheduled != len(ids) {
		t.Errorf("%d messages are stored of %d that were accepted", total-scheduled, len(ids))
	}
	if scheduled != ticks {
		t.Errorf("%d ticks became %d messages", ticks, scheduled)
	}
	repeated := sink.repeated()
	t.Logf("%d messages (%d delivered, %d dead), %d ticks, %d kills, %d attempts repeated, %d accepted without an answer",
		len(ids), delivered, dead, ticks, kills, repeated, landed.Load())
	if repeated == 0 || kills < 2 || ticks == 0 || delivered == 0 || dead == 0 {
		t.Error("the run saw no attempt that was repeated after a kill, or not each end of a message: it proves nothing about them")
	}
}

// createSchedule makes a schedule that does not tick by itself for as long as the test runs.
func createSchedule(t *testing.T, broker, id, destination string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, broker+"/v2/schedules/"+destination, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Upstash-Cron", "0 0 29 2 *")
	request.Header.Set("Upstash-Schedule-Id", id)
	request.Header.Set("Upstash-Retries", "3")
	request.Header.Set("Upstash-Retry-Delay", "100")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("create a schedule: status %d: %s", response.StatusCode, body)
	}
}

// makeTick makes every schedule due whose last tick is over, and returns how many.
func makeTick(t *testing.T, conn *pgx.Conn) int {
	t.Helper()
	tag, err := conn.Exec(context.Background(), `update schedule set next_at = clock_timestamp() where next_at > clock_timestamp()`)
	if err != nil {
		t.Errorf("make a tick: %v", err)
	}
	return int(tag.RowsAffected())
}

// bury ends the leases of brokers that were silent for 5 s, so that a short run need not wait for the 20 s that leases last.
// A live broker that is merely slow loses what it holds, which must do no harm either.
func bury(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	_, err := conn.Exec(context.Background(), `
		update delivery_broker set alive_until = clock_timestamp() where alive_until < clock_timestamp() + interval '15 s'`)
	if err != nil {
		t.Errorf("end leases: %v", err)
	}
}

// over reports whether nothing is to be delivered any more.
func over(t *testing.T, conn *pgx.Conn) (done bool) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `
		select not exists (select from delivery_task) and not exists (select from schedule where next_at <= clock_timestamp())`).Scan(&done)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// checkDeliveries compares what was accepted with what the log, the dead letters and the destination say.
func checkDeliveries(t *testing.T, conn *pgx.Conn, sink *unreliable, accepted map[string]published) (delivered, dead int) {
	t.Helper()
	type end struct{ delivered, failed, retried int }
	ends := map[string]*end{}
	rows, err := conn.Query(t.Context(), `select message_id, state, retried from delivery_log where state = $1 or state = $2`, delivery.Delivered, delivery.Failed)
	if err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	var state delivery.State
	var retried int
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &retried}, func() error {
		e := ends[delivery.MessageID(id)]
		if e == nil {
			e = &end{}
			ends[delivery.MessageID(id)] = e
		}
		if e.retried = retried; state == delivery.Delivered {
			e.delivered++
		} else {
			e.failed++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	letters := map[string]int{} // attempts before the last one
	rows, err = conn.Query(t.Context(), `select message_id, retried from delivery_dead_letter`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgx.ForEachRow(rows, []any{&id, &retried}, func() error {
		letters[delivery.MessageID(id)] = retried
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for a := range sink.attempts {
		if ends[a.message] == nil {
			t.Errorf("%s arrived and has no end", a.message)
		}
	}
	for dedup, m := range accepted {
		e := ends[m.id]
		letter, isDead := letters[m.id]
		switch {
		case e == nil || e.delivered+e.failed != 1:
			t.Errorf("%s (%s) has the ends %+v, want one", dedup, m.id, e)
			continue
		case e.delivered == 1:
			delivered++
			if sink.ok[m.id] == 0 || isDead {
				t.Errorf("%s counts as delivered; the destination took it %d times, dead letter: %v", dedup, sink.ok[m.id], isDead)
			}
		default:
			dead++
			if !isDead || letter != m.retries || e.retried != m.retries {
				t.Errorf("%s failed after %d retries of %d, dead letter: %v after %d", dedup, e.retried, m.retries, isDead, letter)
			}
		}
		for n := range m.retries + 2 {
			if came := len(sink.attempts[attempt{m.id, n}]); (came > 0) != (n <= e.retried) {
				t.Errorf("%s: attempt %d arrived %d times, the last is %d", dedup, n, came, e.retried)
			}
		}
	}
	return delivered, dead
}

// checkTimes compares when attempts arrived with when they were due.
func checkTimes(t *testing.T, conn *pgx.Conn, sink *unreliable) {
	t.Helper()
	due := map[attempt]time.Time{}
	rows, err := conn.Query(t.Context(), `
		select id, 0, not_before from delivery_message
		union all
		select message_id, retried + 1, next_at from delivery_log where state = $1`, delivery.Retrying)
	if err != nil {
		t.Fatal(err)
	}
	var id uuid.UUID
	var n int
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &n, &at}, func() error {
		due[attempt{delivery.MessageID(id), n}] = at
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sink.mu.Lock()
	defer sink.mu.Unlock()
	for a, times := range sink.attempts {
		at, known := due[a]
		for _, came := range times {
			if !known || came.Before(at) {
				t.Errorf("%+v arrived at %v and was due at %v", a, came, at)
			}
		}
	}
}
