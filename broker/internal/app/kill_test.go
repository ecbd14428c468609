package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// TestKilledAtFailpoints kills a real broker where its spool, or the drain of it, is between two steps, and
// goes on with another on the same directory: what was answered is popped exactly once, in order and under
// the id that was answered, with deduplication and without it. What was not answered is there once at most.
func TestKilledAtFailpoints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		place string
		stuck bool // one partition cannot be drained: files are marked, not deleted
	}{
		{"spool.segment.created", false},
		{"spool.append.begun:5", false},
		{"spool.append.written:5", false},
		{"spool.append.synced:5", false},
		{"queue.spool.appended:5", false},
		{"queue.drain.read", false},
		{"queue.drain.committed", false},
		{"spool.done.cleared", false},
		{"spool.file.removed", false},
		{"spool.segment.removed", false},
		{"spool.temp.written", true},
		{"spool.marks.written", true},
	} {
		t.Run(c.place, func(t *testing.T) {
			t.Parallel()
			k := &killed{env: []string{"DATABASE_URL=" + pgtest.URL(t)}, args: []string{"serve", "--testing", "--listen", "127.0.0.1:0", "--pool-size", "6", "--spool", t.TempDir()}}
			k.run(t, c.place, c.stuck)
		})
	}
}

// killed is a broker that is killed, and the one after it.
type killed struct {
	env, args []string
	want      map[string][]string // message ids answered, by queue and partition
}

var killLanes = []string{"with/p1", "with/p2", "without/p1", "without/p2"}

func (k *killed) run(t *testing.T, place string, stuck bool) {
	t.Helper()
	k.want = map[string][]string{}
	first := serve(t, append(slices.Clone(k.env), "POSTHORN_FAILPOINTS="+place), k.args...)
	must200(t, first, "POST", "/api/v1/configure", `{"queue":"without","dedupWindowSeconds":0}`)
	must200(t, first, "POST", "/api/v1/system/maintenance", `{"enabled":true}`)
	alive := true
	for n := 0; alive && n < 20; n++ {
		alive = k.push(t, first, killLanes[n%len(killLanes)], n)
	}
	if alive {
		if stuck {
			must200(t, first, "PUT", "/testing/faults", `{"postgres":"error","groups":["with/p1"]}`)
		}
		_, _ = tryDo(first, "POST", "/api/v1/system/maintenance", `{"enabled":false}`) // it may die meanwhile
	}
	<-first.exited
	if !strings.Contains(first.stderr.String(), "failpoint "+strings.Split(place, ":")[0]) {
		t.Fatalf("it did not end at the place:\n%s", first.stderr)
	}
	second := serve(t, k.env, k.args...)
	must200(t, second, "POST", "/api/v1/system/maintenance", `{"enabled":false}`)
	second.waitFor("the spool to be drained", func() bool {
		_, text := second.do("GET", "/api/v1/status/buffers", "")
		return strings.Contains(text, `"pending":0,"failed":0`)
	})
	for _, lane := range killLanes {
		queue, partition, _ := strings.Cut(lane, "/")
		_, text := second.do("GET", "/api/v1/pop/queue/"+queue+"/partition/"+partition+"?autoAck=true", "")
		var popped struct {
			Messages []struct {
				ID            string `json:"id"`
				TransactionID string `json:"transactionId"`
			} `json:"messages"`
		}
		if text != "" {
			if err := json.Unmarshal([]byte(text), &popped); err != nil {
				t.Fatal(err, text)
			}
		}
		var got []string
		seen := map[string]bool{}
		for _, m := range popped.Messages {
			if seen[m.TransactionID] {
				t.Errorf("%s: %s is there twice", lane, m.TransactionID)
			}
			seen[m.TransactionID] = true
			got = append(got, m.ID)
		}
		want := k.want[lane]
		// The push that was cut off may be there as well, behind all others.
		if len(got) == len(want)+1 {
			got = got[:len(want)]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s holds %v, answered were %v", lane, got, want)
		}
	}
	second.signal()
	if status := second.status(); status != 0 {
		t.Errorf("exit status %d:\n%s", status, second.stderr)
	}
}

// push pushes one message and notes its id. It reports false when the broker died.
func (k *killed) push(t *testing.T, c *child, lane string, n int) bool {
	t.Helper()
	queue, partition, _ := strings.Cut(lane, "/")
	body := fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":"t%d","payload":%d}]}`, queue, partition, n, n)
	status, text := tryDo(c, "POST", "/api/v1/push", body)
	if status == 0 {
		return false
	}
	var results []struct {
		MessageID string `json:"message_id"`
		Status    string `json:"status"`
	}
	if err := json.Unmarshal([]byte(text), &results); err != nil || status != 201 || results[0].Status != "buffered" {
		t.Fatalf("%d %s", status, text)
	}
	k.want[lane] = append(k.want[lane], results[0].MessageID)
	return true
}

// tryDo is do of a broker that may die; the status is 0 then.
func tryDo(c *child, method, path, body string) (int, string) {
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	var text strings.Builder
	buffer := make([]byte, 4096)
	for {
		n, err := res.Body.Read(buffer)
		text.Write(buffer[:n])
		if err != nil {
			return res.StatusCode, text.String()
		}
	}
}

func must200(t *testing.T, c *child, method, path, body string) {
	t.Helper()
	if status, text := c.do(method, path, body); status != 200 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
}
