package posthorn_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

const wireOptions = `{"namespace":"orders","task":"created","leaseTime":90,"retryLimit":0,"deadLetterQueue":false,"dlqAfterMaxRetries":true,` +
	`"delayedProcessing":1,"windowBuffer":2,"minPopWaitTime":1500,"retentionEnabled":true,"retentionSeconds":3,"completedRetentionSeconds":4,` +
	`"maxWaitTimeSeconds":5,"encryptionEnabled":false,"dedupWindowSeconds":0,"priority":6,"maxSize":7,"ttl":8,"retryDelay":9}`

func allOptions() posthorn.QueueOptions {
	return posthorn.QueueOptions{
		Namespace: "orders", Task: "created",
		LeaseTime: new(90 * time.Second), RetryLimit: new(0), DeadLetterQueue: new(false), DLQAfterMaxRetries: new(true),
		DelayedProcessing: new(time.Second), WindowBuffer: new(2 * time.Second), MinPopWait: new(1500 * time.Millisecond),
		RetentionEnabled: new(true), Retention: new(3 * time.Second), CompletedRetention: new(4 * time.Second), MaxWaitTime: new(5 * time.Second),
		EncryptionEnabled: new(false), DedupWindow: new(time.Duration(0)),
		Priority: new(6), MaxSize: new(7), TTL: new(8), RetryDelay: new(9),
	}
}

func TestAllOptionsHasEveryOption(t *testing.T) {
	t.Parallel()
	v := reflect.ValueOf(allOptions())
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the tests leave %s out", v.Type().Field(i).Name)
		}
	}
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	reply := answer(200, `{"configured":true,"queueId":"id","partitionId":null,"queue":"orders.created","namespace":"orders","task":"created","storage":"segments","options":`+wireOptions+`}`)
	server := newScript(t, reply, reply)
	client := newClient(t, server.URL, posthorn.Options{})

	got, err := client.Configure(testContext(t), "orders.created", allOptions())
	want := posthorn.QueueConfig{ID: "id", Name: "orders.created", Namespace: "orders", Task: "created", Options: allOptions()}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := client.Configure(testContext(t), "<q>", posthorn.QueueOptions{}); err != nil {
		t.Error(err)
	}
	for i, want := range []string{`{"queue":"orders.created","options":` + wireOptions + `}`, `{"queue":"<q>","options":{}}`} {
		if seen := server.requests(2)[i]; seen.Method != "POST" || seen.Target != "/api/v1/configure" || seen.Body != want {
			t.Errorf("sent %s %s %s\nwant %s", seen.Method, seen.Target, seen.Body, want)
		}
	}
}

func TestConfigureRefusesWhatTheWireCannotSay(t *testing.T) {
	t.Parallel()
	server := newScript(t)
	_, err := newClient(t, server.URL, posthorn.Options{}).Configure(testContext(t), "\xff", posthorn.QueueOptions{
		Namespace: "\xff", LeaseTime: new(1500 * time.Millisecond), MinPopWait: new(time.Microsecond),
	})
	for _, want := range []string{"queue", "Namespace", "LeaseTime of 1.5s is not a multiple of 1s", "MinPopWait of 1µs is not a multiple of 1ms"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %s", err, want)
		}
	}
	server.requests(0)
}

func TestGetQueue(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `{"id":"id","name":"a/b","namespace":"n","task":"t","createdAt":"2026-01-02T03:04:05.5Z","options":{"retentionSeconds":9223372036854775807,"leaseTime":60},
		"partitions":[{"id":"pid","name":"Default","createdAt":"2026-01-02T03:04:05Z","stats":{"total":9,"pending":4,"processing":3,"completed":2,"failed":null,"deadLetter":1},
		"oldestMessage":"2026-01-02T03:04:06Z","newestMessage":null}],"totals":{"total":9,"pending":4},"retainedBytes":1234,"segments":{"segments":1,"messages":9}}`))
	got, err := newClient(t, server.URL, posthorn.Options{}).GetQueue(testContext(t), "a/b")
	want := posthorn.Queue{
		ID: "id", Name: "a/b", Namespace: "n", Task: "t", CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC),
		Options: posthorn.QueueOptions{Namespace: "n", Task: "t", LeaseTime: new(time.Minute), Retention: new(time.Duration(math.MaxInt64))},
		Partitions: []posthorn.Partition{{
			ID: "pid", Name: "Default", CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Stats:         posthorn.Counts{Total: 9, Pending: 4, Processing: 3, Completed: 2, DeadLetter: 1},
			OldestMessage: time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
		}},
		Totals: posthorn.Counts{Total: 9, Pending: 4}, RetainedBytes: 1234,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if seen := server.requests(1)[0]; seen.Method != "GET" || seen.Target != "/api/v1/resources/queues/a%2Fb" {
		t.Errorf("sent %s %s", seen.Method, seen.Target)
	}
}

func TestListQueues(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `{"queues":[{"id":"id","name":"q","namespace":"n","task":"t","createdAt":"2026-01-02T03:04:05Z","partitions":3,"retainedBytes":99,
		"segments":{"segments":2,"messages":10},"messages":{"total":10,"pending":7,"processing":2}}]}`))
	got, err := newClient(t, server.URL, posthorn.Options{}).ListQueues(testContext(t))
	want := []posthorn.QueueSummary{{
		ID: "id", Name: "q", Namespace: "n", Task: "t", CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Partitions: 3, RetainedBytes: 99,
		Messages: posthorn.Counts{Total: 10, Pending: 7, Processing: 2},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if seen := server.requests(1)[0]; seen.Method != "GET" || seen.Target != "/api/v1/resources/queues" {
		t.Errorf("sent %s %s", seen.Method, seen.Target)
	}
}

func TestDeleteQueue(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `{"deleted":true,"queue":"a b","existed":true}`),
		answer(200, `{"deleted":false,"queue":"a b","existed":false,"message":"Queue not found"}`))
	client := newClient(t, server.URL, posthorn.Options{})
	for _, want := range []bool{true, false} {
		if existed, err := client.DeleteQueue(testContext(t), "a b"); err != nil || existed != want {
			t.Errorf("got %t, %v, want %t", existed, err, want)
		}
	}
	if seen := server.requests(2)[0]; seen.Method != "DELETE" || seen.Target != "/api/v1/resources/queues/a%20b" || seen.Body != "" {
		t.Errorf("sent %+v", seen)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	const healthy = `{"status":"healthy","database":"connected","engine":"segments","version":"1.2.3","fsync":"on"}`
	server := newScript(t, answer(200, healthy), answer(503, `{"status":"unhealthy","database":"disconnected","engine":"segments","version":"1.2.3"}`), answer(502, `<html>`), answer(200, `<html>`))
	client := newClient(t, server.URL, posthorn.Options{})

	got, err := client.Health(testContext(t))
	if want := (posthorn.Health{Status: "healthy", Database: "connected", Engine: "segments", Version: "1.2.3", Raw: []byte(healthy)}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = client.Health(testContext(t))
	if !errors.Is(err, posthorn.ErrUnavailable) || got.Status != "unhealthy" || got.Database != "disconnected" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err = client.Health(testContext(t)); apiError(t, err).Status != 502 || got.Raw != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err = client.Health(testContext(t)); err == nil {
		t.Error("a page passed for health")
	}
	server.requests(4)
}
