package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// process is a broker as it is shipped, which may be killed and started again.
type process struct {
	binary, database string
	spool            string // directory
	flags            []string
	environment      []string
	cmd              *exec.Cmd
	url              atomic.Pointer[string]
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(p.binary, append([]string{"serve", "--listen", "127.0.0.1:0"}, p.flags...)...)
	p.cmd.Env = append(p.cmd.Environ(), "DATABASE_URL="+p.database, "FILE_BUFFER_DIR="+p.spool, "LOG_LEVEL=error")
	p.cmd.Env = append(p.cmd.Env, p.environment...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			p.url.Store(&url)
			go io.Copy(io.Discard, out) //nolint:errcheck // until the process ends
			return
		}
	}
	t.Fatalf("the broker did not say where it listens: %v", lines.Err())
}

// end stops the process; with SIGKILL it gets no chance to tidy up.
func (p *process) end(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal)
	_ = p.cmd.Wait()
}

// metric reads one of the broker's counters or gauges.
func (p *process) metric(t *testing.T, name string) float64 {
	t.Helper()
	response, err := http.Get(*p.url.Load() + "/metrics/prometheus")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// drained waits until the broker has moved its spool to the log.
func (p *process) drained(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); p.metric(t, "posthorn_spool_records") > 0; pause(t.Context(), 50*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the spool was not drained")
		}
	}
}

type pushed struct {
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	TransactionID string          `json:"transactionId"`
	Payload       json.RawMessage `json:"payload"`
}

type answer struct {
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	Status        string `json:"status"`
}

// call sends a request and decodes the answer; a lost connection is an error.
func call(ctx context.Context, method, url string, body, into any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNoContent {
		return nil
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// TestTwoBrokersRaceThroughKills lets 16 writers push the same 2 000 ids at two brokers of one
// database for 10 s, while the database kills connections and one broker is killed and started again.
// No id is stored twice, nothing answered as queued is lost, every duplicate names what is stored,
// and the run did see commits that had happened although their answers were lost.
func TestTwoBrokersRaceThroughKills(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	const writers, distinct, partitions, duration = 16, 2000, 8, 10 * time.Second
	binary := filepath.Join(t.TempDir(), "posthorn")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the broker: %v\n%s", err, out)
	}
	database := pgtest.URL(t)
	brokers := []*process{
		{binary: binary, database: database, spool: t.TempDir()}, {binary: binary, database: database, spool: t.TempDir()},
	}
	for _, p := range brokers {
		p.start(t)
		t.Cleanup(func() { p.end(syscall.SIGTERM) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var chaos, work sync.WaitGroup
	chaos.Go(func() {
		for ctx.Err() == nil {
			pgtest.KillBackends(t, database)
			pause(ctx, 150*time.Millisecond)
		}
	})
	chaos.Go(func() {
		for pause(ctx, 1500*time.Millisecond); ctx.Err() == nil; pause(ctx, 1500*time.Millisecond) {
			brokers[1].end(syscall.SIGKILL)
			brokers[1].start(t)
		}
	})

	var mu sync.Mutex
	answered := map[string]map[string]string{} // partition/id -> message id -> status
	var lost, landed atomic.Int64              // requests without an answer; own ids that were stored all the same
	for w := range writers {
		r := rand.New(rand.NewPCG(seed, uint64(w)))
		work.Go(func() {
			for round := 0; ctx.Err() == nil; round++ {
				items := []pushed{newItem(fmt.Sprintf("own-%d-%d", w, round), round%partitions)}
				for range 1 + r.IntN(8) {
					n := r.IntN(distinct)
					items = append(items, newItem(fmt.Sprint(n), n%partitions))
				}
				retried := false
				for settled := false; !settled && ctx.Err() == nil; {
					var results []answer
					url := *brokers[r.IntN(2)].url.Load() + "/api/v1/push"
					// Not ctx: a request that the test cuts off itself would prove nothing.
					err := call(context.WithoutCancel(ctx), http.MethodPost, url, map[string]any{"items": items}, &results)
					if err != nil {
						lost.Add(1)
						retried = true
						pause(ctx, 5*time.Millisecond)
						continue
					}
					settled = true
					if retried && results[0].Status == "duplicate" {
						landed.Add(1)
					}
					mu.Lock()
					for i, res := range results {
						key := items[i].Partition + "/" + items[i].TransactionID
						if res.Status == "failed" {
							settled = false
							continue
						}
						if answered[key] == nil {
							answered[key] = map[string]string{}
						}
						answered[key][res.MessageID] = res.Status
					}
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
	chaos.Wait()

	for _, p := range brokers {
		p.drained(t)
	}
	stored := audit(t, *brokers[0].url.Load())
	for key, ids := range stored {
		if len(ids) != 1 {
			t.Errorf("%s is stored %d times", key, len(ids))
		}
	}
	for key, ids := range answered {
		if len(stored[key]) == 0 {
			t.Errorf("%s was answered %v and is not stored", key, ids)
			continue
		}
		for id, status := range ids {
			// What was buffered proves a duplicate, or not, only when it is drained.
			if status != "buffered" && id != stored[key][0] {
				t.Errorf("%s was answered %s with id %s, stored is %s", key, status, id, stored[key][0])
			}
		}
	}
	t.Logf("%d messages stored, %d answers lost, %d of the repeated pushes had been stored", len(stored), lost.Load(), landed.Load())
	if landed.Load() == 0 {
		t.Error("the run saw no commit whose answer was lost: it proves nothing about them")
	}
}

func newItem(id string, partition int) pushed {
	return pushed{Queue: "race", Partition: fmt.Sprint("p", partition), TransactionID: id, Payload: json.RawMessage("1")}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// audit pops everything and returns the message ids of each partition and transaction id.
func audit(t *testing.T, url string) map[string][]string {
	t.Helper()
	stored := map[string][]string{}
	misses := 0
	for {
		var popped struct {
			Messages []struct {
				ID            string `json:"id"`
				TransactionID string `json:"transactionId"`
				Partition     string `json:"partition"`
			} `json:"messages"`
		}
		err := call(t.Context(), http.MethodGet, url+"/api/v1/pop/queue/race?batch=1000&partitions=0&autoAck=true&consumerGroup=audit", nil, &popped)
		if err != nil { // the connections that were killed last
			if misses++; misses > 20 {
				t.Fatal(err)
			}
			continue
		}
		if len(popped.Messages) == 0 {
			return stored
		}
		for _, m := range popped.Messages {
			key := m.Partition + "/" + m.TransactionID
			stored[key] = append(stored[key], m.ID)
		}
	}
}
