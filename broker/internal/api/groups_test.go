package api

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

func TestGroupState(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tc := range []struct {
		group queue.GroupQueue
		want  string
	}{
		{queue.GroupQueue{CreatedAt: now.Add(-24 * time.Hour)}, "Stable"},
		{queue.GroupQueue{MaxTimeLag: 300*time.Second + 999*time.Millisecond, CreatedAt: now.Add(-24 * time.Hour)}, "Stable"},
		{queue.GroupQueue{MaxTimeLag: 301 * time.Second, LastActive: now.Add(-time.Hour + time.Second)}, "Lagging"},
		{queue.GroupQueue{MaxTimeLag: 301 * time.Second, LastActive: now.Add(-time.Hour)}, "Dead"},
		{queue.GroupQueue{MaxTimeLag: 301 * time.Second, LastActive: now.Add(-time.Hour), Members: 1}, "Lagging"},
		{queue.GroupQueue{MaxTimeLag: 301 * time.Second, CreatedAt: now.Add(-time.Minute)}, "Lagging"},
		{queue.GroupQueue{MaxTimeLag: 301 * time.Second, CreatedAt: now.Add(-time.Hour)}, "Dead"},
	} {
		if got := groupState(tc.group, now); got != tc.want {
			t.Errorf("%+v is %s, want %s", tc.group, got, tc.want)
		}
	}
}

// TestSeekTargets sends every form of target.
func TestSeekTargets(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q/ö", "p", "t", "1")
	b.do("GET", "/api/v1/pop/queue/q%2F%C3%B6?consumerGroup=g%2F1", "")
	whole, one := "/api/v1/consumer-groups/g%2F1/queues/q%2F%C3%B6/seek", "/api/v1/consumer-groups/g%2F1/queues/q%2F%C3%B6/partitions/p/seek"
	for _, tc := range []struct {
		path, body string
		status     int
		text       string // the error, or the target
	}{
		{whole, `{"toEnd":true}`, 200, "<nil>"},
		{whole, `{"toEnd":true,"timestamp":null}`, 200, "<nil>"},
		{whole, `{"timestamp":"2026-01-15"}`, 200, "2026-01-15T00:00:00.000000Z"},
		{whole, `{"toEnd":false,"timestamp":"2026-01-15T10:30:00+02:00"}`, 200, "2026-01-15T08:30:00.000000Z"},
		{whole, `{"timestamp":"0001-01-01T00:00:00Z"}`, 200, "0001-01-01T00:00:00.000000Z"},
		{whole, `{}`, 400, "bad body: toEnd must be true, or a timestamp be given"},
		{whole, `{"toEnd":false}`, 400, "bad body: toEnd must be true, or a timestamp be given"},
		{whole, `{"toEnd":null,"timestamp":null}`, 400, "bad body: toEnd must be true, or a timestamp be given"},
		{whole, ``, 400, "bad body: body is missing"},
		{whole, `{"toEnd":true,"timestamp":"2026-01-15"}`, 400, "bad body: timestamp must not be given together with toEnd"},
		{whole, `{"timestamp":"2026-13-15"}`, 400, "bad body: timestamp must be an ISO 8601 time"},
		{whole, `{"timestamp":"now"}`, 400, "bad body: timestamp must be an ISO 8601 time"},
		{whole, `{"timestamp":1768473000}`, 400, "bad body: timestamp must be a string or null"},
		{whole, `{"toEnd":"true"}`, 400, "bad body: toEnd must be a boolean or null"},
		{one, ``, 200, "<nil>"},
		{one, ` { } `, 200, "<nil>"},
		{one, `{"toEnd":true}`, 200, "<nil>"},
		{one, `{"timestamp":"2026-01-15"}`, 200, "2026-01-15T00:00:00.000000Z"},
		{one, `{"toEnd":false}`, 400, "bad body: toEnd must be true, or a timestamp be given"},
		{one, `{"timestmp":"2026-01-15"}`, 400, "bad body: toEnd must be true, or a timestamp be given"},
		{one, `[]`, 400, "bad body: body must be an object"},
	} {
		r := b.do("POST", tc.path, tc.body)
		var ans struct {
			Error           *string
			TargetTimestamp *string
		}
		if err := json.Unmarshal(r.body, &ans); err != nil {
			t.Fatal(err)
		}
		got := "<nil>"
		for _, text := range []*string{ans.Error, ans.TargetTimestamp} {
			if text != nil {
				got = *text
			}
		}
		if r.status != tc.status || got != tc.text {
			t.Errorf("%s %s: %d %s, want %d %s", tc.path, tc.body, r.status, got, tc.status, tc.text)
		}
	}
	r := b.do("POST", one, "")
	want := `{"success":true,"consumerGroup":"g/1","queueName":"q/ö","partition":"p","seekToEnd":true,"targetTimestamp":null,"partitionsUpdated":1}`
	if string(r.body) != want {
		t.Errorf("%s, want %s", r.body, want)
	}
	for _, path := range []string{
		"/api/v1/consumer-groups/other/queues/q%2F%C3%B6/seek", "/api/v1/consumer-groups/g%2F1/queues/other/seek",
		"/api/v1/consumer-groups/g%2F1/queues/q%2F%C3%B6/partitions/other/seek",
	} {
		r := b.do("POST", path, `{"toEnd":true}`)
		if r.status != 404 || r.errorText(t) != "No partition found for this consumer group and queue" {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// TestGroupAnswers compares whole answers, whose key names and order are the wire's.
func TestGroupAnswers(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "t", "1")
	b.do("GET", "/api/v1/pop/queue/q?consumerGroup=g&autoAck=true", "")
	b.push("q", "p", "t2", "2")
	for path, want := range map[string]string{
		"GET /api/v1/consumer-groups/lagging":                           `[]`,
		"GET /api/v1/consumer-groups/nobody":                            `{"error":"Consumer group not found"}`,
		"GET /api/v1/consumer-groups/lagging?minLagSeconds=-1":          `{"error":"bad query: minLagSeconds must be at least 0"}`,
		"GET /api/v1/consumer-groups/lagging?minLagSeconds=1h":          `{"error":"bad query: minLagSeconds must be an integer"}`,
		"DELETE /api/v1/consumer-groups/g?deleteMetadata=maybe":         `{"error":"bad query: deleteMetadata must be true, false, 1, 0, yes or no"}`,
		"DELETE /api/v1/consumer-groups/nobody":                         `{"success":false,"consumerGroup":"nobody","deletedPartitions":0,"metadataDeleted":false}`,
		"DELETE /api/v1/consumer-groups/nobody/queues/q":                `{"success":false,"consumerGroup":"nobody","queueName":"q","deletedPartitions":0,"metadataDeleted":false}`,
		"DELETE /api/v1/consumer-groups/g/queues/other":                 `{"success":false,"consumerGroup":"g","queueName":"other","deletedPartitions":0,"metadataDeleted":false}`,
		"POST /api/v1/consumer-groups/nobody/subscription 2026-01-15":   `{"success":false,"consumerGroup":"nobody","newTimestamp":"2026-01-15T00:00:00.000000Z","rowsUpdated":0}`,
		"POST /api/v1/consumer-groups/g/subscription 2026-01-15T1":      `{"error":"bad body: subscriptionTimestamp must be an ISO 8601 time"}`,
		"POST /api/v1/consumer-groups/g/subscription 2026-01-15T10:00Z": `{"success":true,"consumerGroup":"g","newTimestamp":"2026-01-15T10:00:00.000000Z","rowsUpdated":1}`,
	} {
		var method, target, from string
		_, _ = fmt.Sscan(path, &method, &target, &from)
		body := ""
		if from != "" {
			body = `{"subscriptionTimestamp":"` + from + `"}`
		}
		if r := b.do(method, target, body); string(r.body) != want {
			t.Errorf("%s: %d %s, want %s", path, r.status, r.body, want)
		}
	}
	var list []map[string]any
	if err := json.Unmarshal(b.do("GET", "/api/v1/consumer-groups", "").body, &list); err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	for key, want := range map[string]any{
		"name": "g", "topics": []any{"q"}, "queueName": "q", "members": 0.0, "partitionCursors": 1.0, "partitionsWithLag": 1.0, "totalLag": 1.0,
		"state": "Stable", "subscriptionMode": "new", "subscriptionTimestamp": "2026-01-15T10:00:00.000000Z",
	} {
		if fmt.Sprint(list[0][key]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", key, list[0][key], want)
		}
	}
	var lagging []map[string]any
	if err := json.Unmarshal(b.do("GET", "/api/v1/consumer-groups/lagging?minLagSeconds=0", "").body, &lagging); err != nil || len(lagging) != 1 {
		t.Fatalf("%v, %v", lagging, err)
	}
	for key, want := range map[string]any{"consumer_group": "g", "queue_name": "q", "partition_name": "p", "worker_id": nil, "offset_lag": 1.0} {
		if lagging[0][key] != want {
			t.Errorf("%s is %v, want %v", key, lagging[0][key], want)
		}
	}
	want := `{"success":true,"consumerGroup":"g","queueName":"q","deletedPartitions":1,"metadataDeleted":false}`
	if r := b.do("DELETE", "/api/v1/consumer-groups/g/queues/q?deleteMetadata=no", ""); string(r.body) != want {
		t.Errorf("%s, want %s", r.body, want)
	}
	want = `{"q":{"partitions":[{"partition":"p","workerId":null,"lastConsumedAt":null,"totalConsumed":0,"offsetLag":2,"timeLagSeconds":0,"leaseActive":false}]}}`
	if r := b.do("GET", "/api/v1/consumer-groups/g", ""); string(r.body) != want {
		t.Errorf("%s, want %s", r.body, want)
	}
}
