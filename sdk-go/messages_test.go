package posthorn_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

const storedMessage = `{"id":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83","transactionId":"t/1","partitionId":"0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84",` +
	`"queuePath":"q/p","queue":"q","partition":"p","namespace":"n","task":"k","status":"processing","traceId":null,"producerSub":"me",` +
	`"createdAt":"2026-01-15T10:31:00.123456Z","leaseExpiresAt":"2026-01-15T10:32:00.000001Z","data":{"a":1e400},"payload":{"a":1e400}`

func wantStored() posthorn.StoredMessage {
	return posthorn.StoredMessage{
		ID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b83", TransactionID: "t/1", Queue: "q", Partition: "p",
		PartitionID: "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", Namespace: "n", Task: "k", Status: posthorn.MessageProcessing,
		Payload: []byte(`{"a":1e400}`), CreatedAt: time.Date(2026, 1, 15, 10, 31, 0, 123456000, time.UTC), ProducerSub: "me",
		LeaseExpiresAt: time.Date(2026, 1, 15, 10, 32, 0, 1000, time.UTC),
	}
}

func TestListMessages(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		answer(200, `{"messages":[`+storedMessage+`}],"mode":{"hasQueueMode":true,"busGroupsCount":2,"type":"hybrid"},"total":1}`),
		answer(200, `{"messages":[],"mode":{"hasQueueMode":false,"busGroupsCount":0,"type":"none"},"total":0}`))
	c := newClient(t, s.URL, posthorn.Options{})
	page, err := c.ListMessages(testContext(t), posthorn.MessageFilter{
		Queue: "q", Partition: "p&1", Namespace: "n", Task: "k", Status: posthorn.MessagePending,
		From: time.Date(2026, 1, 15, 12, 0, 0, 1000, time.FixedZone("", 7200)), To: time.Date(2026, 1, 16, 0, 0, 0, 0, time.UTC), Limit: 5, Offset: 7,
	})
	want := posthorn.MessagePage{Messages: []posthorn.StoredMessage{wantStored()}, QueueMode: true, Groups: 2}
	if err != nil || !reflect.DeepEqual(page, want) {
		t.Errorf("%+v, %v", page, err)
	}
	if page, err = c.ListMessages(testContext(t), posthorn.MessageFilter{}); err != nil || len(page.Messages) != 0 {
		t.Errorf("%+v, %v", page, err)
	}
	sent := s.requests(2)
	if got := sent[0].Target; got != "/api/v1/messages?from=2026-01-15T10%3A00%3A00.000001Z&limit=5&namespace=n&offset=7&partition=p%261&queue=q&status=pending&task=k&to=2026-01-16T00%3A00%3A00Z" {
		t.Error(got)
	}
	if got := sent[1].Target; got != "/api/v1/messages" {
		t.Error(got)
	}
	for _, bad := range []posthorn.MessageFilter{{Limit: -1}, {Offset: -1}, {Queue: "\xff"}} {
		if _, err := c.ListMessages(testContext(t), bad); err == nil || !strings.HasPrefix(err.Error(), "posthorn: listMessages: ") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestGetMessage(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		answer(200, storedMessage+`,"isEncrypted":true,"errorMessage":"tired","retryCount":3,`+
			`"consumerGroups":[{"name":"g","group":"g","consumed":true,"leaseExpiresAt":null}],"queueConfig":`+wireOptions+`}`),
		answer(404, `{"error":"Message not found"}`))
	c := newClient(t, s.URL, posthorn.Options{})
	detail, err := c.GetMessage(testContext(t), "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", "t/1")
	want := posthorn.MessageDetail{
		StoredMessage: wantStored(), Encrypted: true, Error: "tired", Retries: 3,
		Groups: []posthorn.ConsumerPosition{{Group: "g", Consumed: true}}, Options: allOptions(),
	}
	want.Options.Namespace, want.Options.Task = "n", "k"
	if err != nil || !reflect.DeepEqual(detail, want) {
		t.Errorf("%+v, %v\nwant %+v", detail, err, want)
	}
	if _, err := c.GetMessage(testContext(t), "p", "t"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Error(err)
	}
	if _, err := c.GetMessage(testContext(t), "p", ""); err == nil || err.Error() != "posthorn: getMessage: transactionID is empty" {
		t.Error(err)
	}
	if got := s.requests(2)[0].Target; got != "/api/v1/messages/0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84/t%2F1" {
		t.Error(got)
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		answer(200, `{"messages":[{"id":"i","transactionId":"t","partitionId":"u","queue":"q","partition":"p","consumerGroup":"g","errorMessage":"tired",`+
			`"retryCount":3,"data":[1e400],"producerSub":null,"createdAt":"2026-01-15T10:31:00.123456Z","failedAt":"2026-01-15T10:32:00.000001Z"}],`+
			`"pagination":{"limit":2,"offset":4},"total":9}`),
		answer(200, `{"success":true,"partitionId":"u","transactionId":"t","message":"gone"}`),
		answer(404, `{"success":false,"partitionId":"u","transactionId":"t","error":"Message not found"}`),
		answer(200, `{"success":true,"queue":"q","deleted":2,"remaining":7}`))
	c := newClient(t, s.URL, posthorn.Options{})
	filter := posthorn.DeadLetterFilter{Queue: "q", ConsumerGroup: "g", Partition: "p", From: time.Unix(0, 0), To: time.Unix(1, 0)}
	page, err := c.ListDeadLetters(testContext(t), filter, 2, 4)
	want := posthorn.DeadLetterPage{Total: 9, Entries: []posthorn.DeadLetterEntry{{
		ID: "i", TransactionID: "t", Queue: "q", Partition: "p", PartitionID: "u", ConsumerGroup: "g", Error: "tired", Retries: 3,
		Payload: []byte(`[1e400]`), CreatedAt: time.Date(2026, 1, 15, 10, 31, 0, 123456000, time.UTC),
		FailedAt: time.Date(2026, 1, 15, 10, 32, 0, 1000, time.UTC),
	}}}
	if err != nil || !reflect.DeepEqual(page, want) {
		t.Errorf("%+v, %v", page, err)
	}
	if err := c.DeleteDeadLetter(testContext(t), "u", "t"); err != nil {
		t.Error(err)
	}
	if err := c.DeleteDeadLetter(testContext(t), "u", "t"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Error(err)
	}
	purged, err := c.PurgeDeadLetters(testContext(t), filter, 2)
	if err != nil || purged != (posthorn.PurgeResult{Deleted: 2, Remaining: 7}) {
		t.Errorf("%+v, %v", purged, err)
	}
	if _, err := c.PurgeDeadLetters(testContext(t), posthorn.DeadLetterFilter{}, 0); err == nil || err.Error() != "posthorn: purgeDeadLetters: queue is empty" {
		t.Error(err)
	}
	sent := s.requests(4)
	const query = "?consumerGroup=g&from=1970-01-01T00%3A00%3A00Z&limit=2&"
	for i, want := range []string{
		"GET /api/v1/dlq" + query + "offset=4&partition=p&queue=q&to=1970-01-01T00%3A00%3A01Z",
		"DELETE /api/v1/messages/u/t", "DELETE /api/v1/messages/u/t",
		"DELETE /api/v1/dlq" + query + "partition=p&queue=q&to=1970-01-01T00%3A00%3A01Z",
	} {
		if got := sent[i].Method + " " + sent[i].Target; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestReplays(t *testing.T) {
	t.Parallel()
	s := newScript(t,
		answer(200, `{"success":true,"queue":"q","partition":"p","replayedAs":{"index":0,"message_id":"m","transaction_id":"x","queueName":"q","status":"queued"},"dlqRowRemoved":true}`),
		answer(404, `{"success":false,"partitionId":"u","transactionId":"t","error":"Message not found"}`),
		answer(200, `{"success":true,"queue":"q","replayed":2,"remaining":7}`))
	c := newClient(t, s.URL, posthorn.Options{})
	replay, err := c.RetryDeadLetter(testContext(t), "u", "t")
	if want := (posthorn.Replay{Queue: "q", Partition: "p", MessageID: "m", TransactionID: "x"}); err != nil || replay != want {
		t.Errorf("%+v, %v", replay, err)
	}
	if _, err := c.RetryDeadLetter(testContext(t), "u", "t"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Error(err)
	}
	bulk, err := c.ReplayDeadLetters(testContext(t), posthorn.DeadLetterFilter{Queue: "q", ConsumerGroup: "g"}, 2)
	if err != nil || bulk != (posthorn.BulkReplay{Replayed: 2, Remaining: 7}) {
		t.Errorf("%+v, %v", bulk, err)
	}
	if _, err := c.ReplayDeadLetters(testContext(t), posthorn.DeadLetterFilter{}, 0); err == nil || err.Error() != "posthorn: replayDeadLetters: queue is empty" {
		t.Error(err)
	}
	sent := s.requests(3)
	for i, want := range []string{
		"POST /api/v1/messages/u/t/retry", "POST /api/v1/messages/u/t/retry", "POST /api/v1/dlq/replay?consumerGroup=g&limit=2&queue=q",
	} {
		if got := sent[i].Method + " " + sent[i].Target; got != want || sent[i].Body != "" {
			t.Errorf("%s %s, want %s", got, sent[i].Body, want)
		}
	}
}

// TestDeadLettersAreNotChangedTwice once the broker may have seen a call.
func TestDeadLettersAreNotChangedTwice(t *testing.T) {
	t.Parallel()
	s := newScript(t, cut, cut, cut, cut)
	c := newClient(t, s.URL, posthorn.Options{})
	if err := c.DeleteDeadLetter(testContext(t), "u", "t"); err == nil {
		t.Error("no error")
	}
	if _, err := c.PurgeDeadLetters(testContext(t), posthorn.DeadLetterFilter{Queue: "q"}, 0); err == nil {
		t.Error("no error")
	}
	if _, err := c.RetryDeadLetter(testContext(t), "u", "t"); err == nil {
		t.Error("no error")
	}
	if _, err := c.ReplayDeadLetters(testContext(t), posthorn.DeadLetterFilter{Queue: "q"}, 0); err == nil {
		t.Error("no error")
	}
	s.requests(4)
}
