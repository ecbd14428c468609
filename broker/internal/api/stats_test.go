package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestFiguresFollowWhatHappens calls every operation of status and analytics after some pushes, pops and acks. That
// each answer is as described is checked by the edge itself.
func TestFiguresFollowWhatHappens(t *testing.T) {
	t.Parallel()
	br := start(t, nil)
	call := func(method, path, body string, status int) map[string]any {
		t.Helper()
		w := br.exchangeOnce(method, path, []byte(body))
		if w.Code != status {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		var got map[string]any
		if w.Body.Len() > 0 && w.Body.Bytes()[0] == '{' {
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
		}
		return got
	}
	call(http.MethodPost, "/api/v1/push", `{"items":[{"queue":"n.t","partition":"a","payload":1},{"queue":"n.t","partition":"b","payload":2},{"queue":"n.u","payload":3}]}`, 201)
	call(http.MethodGet, "/api/v1/pop/queue/n.t?autoAck=true&batch=1", "", 200)
	lease := call(http.MethodGet, "/api/v1/pop/queue/n.u", "", 200)
	m := lease["messages"].([]any)[0].(map[string]any)
	call(http.MethodPost, "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"dlq","error":"broken"}`,
		m["transactionId"], m["partitionId"], lease["leaseId"]), 200)
	call(http.MethodPost, "/api/v1/stats/refresh", "", 200)

	// at walks into an answer: keys of objects, indexes of arrays, "#" is the length and "+key" sums over an array.
	at := func(v any, path string) any {
		for step := range strings.SplitSeq(path, "/") {
			switch x := v.(type) {
			case map[string]any:
				v = x[step]
			case []any:
				switch {
				case step == "#":
					v = float64(len(x))
				case step[0] == '+':
					sum := 0.0
					for _, el := range x {
						sum += el.(map[string]any)[step[1:]].(float64)
					}
					v = sum
				default:
					var i int
					if _, err := fmt.Sscan(step, &i); err != nil || i >= len(x) {
						return nil
					}
					v = x[i]
				}
			}
		}
		return v
	}
	for path, want := range map[string]map[string]any{
		"/api/v1/resources/overview": {
			"queues": 2.0, "partitions": 3.0, "namespaces": 1.0, "tasks": 2.0, "messages/total": 3.0, "messages/pending": 1.0,
			"messages/completed": 2.0, "messages/deadLetter": 1.0, "lag/offset/max": 1.0, "lag/offset/median": 0.0,
		},
		"/api/v1/resources/namespaces": {"namespaces/#": 1.0, "namespaces/0/namespace": "n", "namespaces/0/queues": 2.0, "namespaces/0/messages/total": 3.0},
		"/api/v1/resources/tasks":      {"tasks/#": 2.0, "tasks/1/task": "u", "tasks/1/messages/pending": 0.0, "tasks/0/partitions": 2.0},
		"/api/v1/status": {
			"throughput/+ingested": 3.0, "throughput/+delivered": 2.0, "throughput/+processed": 1.0, "throughput/+deadLettered": 1.0,
			"queues/total": 2.0, "deadLetterQueue/totalMessages": 1.0, "deadLetterQueue/topErrors/0/error": "broken", "workers/#": 1.0,
			"errors/deadLettered": 1.0, "bucketMinutes": 1.0, "leases/active": 0.0,
		},
		"/api/v1/status?queue=n.t":                             {"throughput/+ingested": 2.0, "queues/total": 1.0, "messages/total": 2.0, "deadLetterQueue/totalMessages": 0.0},
		"/api/v1/status?from=2020-01-01&to=2020-02-01":         {"throughput/+ingested": 0.0, "bucketMinutes": 1440.0, "pointCount": 31.0},
		"/api/v1/status/queues?task=u":                         {"total": 1.0, "queues/0/name": "n.u", "queues/0/throughput/ingested": 1.0, "queues/0/messages/deadLetter": 1.0},
		"/api/v1/status/queues?limit=1&offset=1":               {"total": 2.0, "queues/#": 1.0, "queues/0/name": "n.u"},
		"/api/v1/status/queues/n.t":                            {"queue/name": "n.t", "messages/total": 2.0, "throughput/+ingested": 2.0, "lag/offset/max": 1.0},
		"/api/v1/status/analytics?interval=minute&namespace=n": {"dataPoints/+messages": 3.0, "interval": "minute"},
		"/api/v1/status/analytics":                             {"dataPoints/+messages": 3.0, "interval": "hour"},
		"/api/v1/status/analytics?interval=day&task=none":      {"dataPoints/+messages": 0.0},
		"/api/v1/analytics/queue-lag?queue=n.t":                {"queues/#": 1.0, "queues/0/open": 1.0, "queues/0/partitionsBehind": 1.0, "total/partitions": 3.0},
		"/api/v1/analytics/queue-ops?namespace=n":              {"queues/#": 2.0, "queues/+pushed": 3.0, "series/+acked": 1.0, "series/+popped": 2.0},
		"/api/v1/analytics/queue-parked-replicas":              {"parked": 0.0, "queues/#": 0.0},
		"/api/v1/analytics/retention?task=t":                   {"queues/#": 1.0, "queues/0/retainedMessages": 2.0, "totals/segments": 2.0},
		"/api/v1/analytics/system-metrics":                     {"brokers/#": 1.0},
		"/api/v1/analytics/worker-metrics":                     {"workers/0/requests/pushes": 1.0, "workers/0/requests/pushedMessages": 3.0, "workers/0/requests/deadLetters": 1.0},
		"/api/v1/analytics/postgres-stats":                     {},
		"/metrics":                                             {"requests/pushes": 1.0, "messages/pushed": 3.0, "messages/popped": 2.0},
	} {
		got := call(http.MethodGet, path, "", 200)
		for step, value := range want {
			if found := at(got, step); found != value {
				t.Errorf("%s: %s is %v, want %v", path, step, found, value)
			}
		}
	}
	for _, path := range []string{
		"/api/v1/status?from=yesterday", "/api/v1/status?to=x", "/api/v1/status?from=2026-01-02&to=2026-01-02", "/api/v1/status?from=2020-01-01",
		"/api/v1/status/analytics?interval=week", "/api/v1/status/analytics?interval=minute&from=2026-01-01&to=2026-01-03",
		"/api/v1/status/queues?limit=0", "/api/v1/status/queues?limit=many", "/api/v1/analytics/queue-ops?from=x",
	} {
		call(http.MethodGet, path, "", 400)
	}
	call(http.MethodGet, "/api/v1/status/queues/none", "", 404)
}
