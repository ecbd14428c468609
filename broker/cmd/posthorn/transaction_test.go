package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// failpoints are where a transaction can end with its process, and whether it has happened by then.
var failpoints = map[string]bool{
	"queue.transact.locked":    false,
	"queue.transact.appended":  false,
	"queue.transact.cursors":   false,
	"queue.transact.acked":     false,
	"queue.transact.marked":    false,
	"queue.transact.committed": true,
}

type poppedMessages struct {
	LeaseID  string `json:"leaseId"`
	Messages []struct {
		TransactionID string          `json:"transactionId"`
		PartitionID   string          `json:"partitionId"`
		Data          json.RawMessage `json:"data"`
	} `json:"messages"`
}

type transacted struct {
	Success bool   `json:"success"`
	Error   string `json:"error"`
}

// move transfers the next message of "in" to "left" and "right", and says what became of that; done says
// that there was none.
func move(ctx context.Context, url string) (out transacted, done bool, err error) {
	var job poppedMessages
	if err := call(ctx, http.MethodGet, url+"/api/v1/pop/queue/in?batch=1&leaseSeconds=1&wait=true&timeout=2000", nil, &job); err != nil {
		return out, false, err
	}
	if len(job.Messages) == 0 {
		return out, true, nil
	}
	m := job.Messages[0]
	item := func(queue string) map[string]any {
		return map[string]any{"queue": queue, "partition": m.TransactionID[:1], "transactionId": m.TransactionID, "payload": m.Data}
	}
	body := map[string]any{"operations": []any{
		map[string]any{"type": "push", "items": []any{item("left"), item("right")}},
		map[string]any{"type": "ack", "transactionId": m.TransactionID, "partitionId": m.PartitionID, "leaseId": job.LeaseID},
	}}
	err = call(ctx, http.MethodPost, url+"/api/v1/transaction", body, &out)
	return out, false, err
}

// contents pops everything of a queue, in order.
func contents(t *testing.T, url, queue string) []string {
	t.Helper()
	var all []string
	for {
		var got poppedMessages
		if err := call(t.Context(), http.MethodGet, url+"/api/v1/pop/queue/"+queue+"?batch=1000&autoAck=true&consumerGroup=audit", nil, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Messages) == 0 {
			return all
		}
		for _, m := range got.Messages {
			all = append(all, m.TransactionID)
		}
	}
}

// TestTransactionsAreWholeThroughKills ends a broker with SIGKILL at each step of a transaction, while a
// worker moves messages. What it leaves is nothing, or all; the worker goes on at a second broker, and
// in the end each message was moved once, in order.
func TestTransactionsAreWholeThroughKills(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and kills brokers")
	}
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "posthorn")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the broker: %v\n%s", err, out)
	}
	for name, happens := range failpoints {
		t.Run(strings.TrimPrefix(name, "queue.transact."), func(t *testing.T) {
			t.Parallel()
			const messages, dies = 12, 5
			database := pgtest.URL(t)
			survivor := &process{binary: binary, database: database, spool: t.TempDir()}
			survivor.start(t)
			t.Cleanup(func() { survivor.end(syscall.SIGTERM) })
			victim := &process{
				binary: binary, database: database, spool: t.TempDir(),
				flags: []string{"--testing"}, environment: []string{fmt.Sprintf("POSTHORN_FAILPOINTS=%s:%d", name, dies)},
			}
			victim.start(t)
			t.Cleanup(func() { victim.end(syscall.SIGKILL) })

			var items []pushed
			var want []string
			for i := range messages {
				id := fmt.Sprintf("m%02d", i)
				want = append(want, id)
				items = append(items, pushed{Queue: "in", Partition: "p", TransactionID: id, Payload: json.RawMessage(fmt.Sprint(i))})
			}
			var answers []answer
			if err := call(t.Context(), http.MethodPost, *survivor.url.Load()+"/api/v1/push", map[string]any{"items": items}, &answers); err != nil {
				t.Fatal(err)
			}
			moved := 0
			for {
				out, done, err := move(t.Context(), *victim.url.Load())
				if err != nil {
					break
				}
				if done || !out.Success {
					t.Fatalf("move %d: %+v, done %t", moved, out, done)
				}
				moved++
			}
			if moved != dies-1 {
				t.Fatalf("%d moves before the broker ended, want %d", moved, dies-1)
			}
			left, right := contents(t, *survivor.url.Load(), "left"), contents(t, *survivor.url.Load(), "right")
			whole := moved
			if happens {
				whole++
			}
			if len(left) != whole || len(right) != whole {
				t.Errorf("the broker ended and left %v and %v, want %d messages in each", left, right, whole)
			}
			for deadline := time.Now().Add(30 * time.Second); ; {
				out, done, err := move(t.Context(), *survivor.url.Load())
				if err != nil || !done && !out.Success || time.Now().After(deadline) {
					t.Fatalf("the rest: %+v, %v", out, err)
				}
				if done {
					break
				}
				moved++
			}
			if happens {
				moved++
			}
			if moved != messages {
				t.Errorf("%d moves of %d messages", moved, messages)
			}
			left, right = append(left, contents(t, *survivor.url.Load(), "left")...), append(right, contents(t, *survivor.url.Load(), "right")...)
			if fmt.Sprint(left) != fmt.Sprint(want) || fmt.Sprint(right) != fmt.Sprint(want) {
				t.Errorf("left %v, right %v, want %v", left, right, want)
			}
		})
	}
}

// TestOutboxThroughKills ends the broker that moves the outbox with SIGKILL at each step of a move. The
// one that takes over delivers each message once, in order.
func TestOutboxThroughKills(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and kills brokers")
	}
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "posthorn")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("build the broker: %v\n%s", err, out)
	}
	for _, name := range []string{"also", "locked", "appended", "marked", "committed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const messages = 20
			database := pgtest.URL(t)
			victim := &process{
				binary: binary, database: database, spool: t.TempDir(),
				flags: []string{"--testing"}, environment: []string{"POSTHORN_FAILPOINTS=queue.transact." + name + ":3"},
			}
			victim.start(t)
			ended := make(chan struct{})
			go func() {
				_ = victim.cmd.Wait()
				close(ended)
			}()
			admin := pgtest.Admin(t, database)
			var want []string
			pushed := func(n int) {
				t.Helper()
				id := fmt.Sprintf("m%03d", n)
				if _, err := admin.Exec(t.Context(), `select posthorn.push('q', 'p', '1', $1)`, id); err != nil {
					t.Fatal(err)
				}
				want = append(want, id)
			}
			n := 0
			for alive := true; alive; n++ {
				pushed(n)
				select {
				case <-ended:
					alive = false
				case <-time.After(30 * time.Millisecond):
				}
				if n > 1000 {
					t.Fatal("the broker does not end")
				}
			}
			for range messages {
				pushed(n)
				n++
			}
			survivor := &process{binary: binary, database: database, spool: t.TempDir()}
			survivor.start(t)
			t.Cleanup(func() { survivor.end(syscall.SIGTERM) })
			var got []string
			for deadline := time.Now().Add(60 * time.Second); len(got) < len(want) && time.Now().Before(deadline); pause(t.Context(), 50*time.Millisecond) {
				got = append(got, contents(t, *survivor.url.Load(), "q")...)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("delivered %v, want %v", got, want)
			}
		})
	}
}
