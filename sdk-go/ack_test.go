package posthorn_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestAckSendsOneItem(t *testing.T) {
	t.Parallel()
	server := newScript(t,
		answer(200, `[{"index":0,"transactionId":"a&b","success":true,"error":null,"leaseReleased":true,"dlq":false,"noop":false}]`),
		answer(200, `[{"index":0,"transactionId":"t","success":true,"error":null,"leaseReleased":true,"dlq":true,"noop":true,"novel":1}]`))
	client := newClient(t, server.URL, posthorn.Options{})
	m := posthorn.Message{TransactionID: "a&b", PartitionID: "pid", LeaseID: "L", ConsumerGroup: "g"}

	got, err := client.Ack(testContext(t), m.ConsumerGroup, m.Ack(posthorn.AckCompleted, nil))
	if want := (posthorn.AckResult{TransactionID: "a&b", LeaseReleased: true}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = client.Ack(testContext(t), "", posthorn.AckItem{TransactionID: "t", PartitionID: "pid", Status: posthorn.AckDeadLetter, Error: "<no>"})
	if want := (posthorn.AckResult{TransactionID: "t", LeaseReleased: true, DeadLettered: true, Noop: true}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}

	seen := server.requests(2)
	for i, want := range []string{
		`{"transactionId":"a&b","partitionId":"pid","status":"completed","leaseId":"L","consumerGroup":"g"}`,
		`{"transactionId":"t","partitionId":"pid","status":"dlq","error":"<no>"}`,
	} {
		if seen[i].Target != "/api/v1/ack" || seen[i].Body != want {
			t.Errorf("sent %s to %s\nwant %s", seen[i].Body, seen[i].Target, want)
		}
	}
}

func TestAckItemErrors(t *testing.T) {
	t.Parallel()
	sentinels := []error{
		posthorn.ErrLeaseExpired, posthorn.ErrAlreadyCommitted, posthorn.ErrUnresolvable,
		posthorn.ErrConsumerNotFound, posthorn.ErrNotCommitted, posthorn.ErrDLQRejected,
	}
	for text, want := range map[string]error{
		"invalid or expired lease":            posthorn.ErrLeaseExpired,
		"already committed at offset 7":       posthorn.ErrAlreadyCommitted,
		"unresolvable transactionId":          posthorn.ErrUnresolvable,
		"consumer not found":                  posthorn.ErrConsumerNotFound,
		"not committed: an earlier message":   posthorn.ErrNotCommitted,
		"dlq rejected":                        posthorn.ErrDLQRejected,
		"partitionId is not a UUID":           nil,
		"the lease: invalid or expired lease": nil, // only the contract's beginning counts
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			server := newScript(t, answer(200, fmt.Sprintf(`[{"index":0,"transactionId":"t","success":false,"error":%q}]`, text)))
			got, err := newClient(t, server.URL, posthorn.Options{}).Ack(testContext(t), "g", posthorn.AckItem{TransactionID: "t"})
			var item *posthorn.AckItemError
			if !errors.As(err, &item) || item.Message != text || !errors.Is(got.Err, item) {
				t.Fatalf("got %+v, %v", got, err)
			}
			for _, sentinel := range sentinels {
				if is := errors.Is(err, sentinel); is != errors.Is(want, sentinel) {
					t.Errorf("errors.Is(%v, %v) is %t", err, sentinel, is)
				}
			}
		})
	}
}

func TestAckBatchReportsRefusedItems(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `[{"index":0,"transactionId":"a","success":true,"error":null},
		{"index":1,"transactionId":"b","success":false,"error":"invalid or expired lease"},
		{"index":2,"transactionId":"c","success":false,"error":null}]`))
	got, err := newClient(t, server.URL, posthorn.Options{}).AckBatch(testContext(t), "g", []posthorn.AckItem{
		{TransactionID: "a", PartitionID: "p"}, {TransactionID: "b", PartitionID: "p", Status: posthorn.AckFailed, LeaseID: "L", Error: "e"}, {TransactionID: "c", PartitionID: "p"},
	})
	var refused *posthorn.AckError
	if !errors.As(err, &refused) || !errors.Is(err, posthorn.ErrLeaseExpired) || errors.Is(err, posthorn.ErrUnresolvable) {
		t.Fatalf("error %v", err)
	}
	if want := "posthorn: ackBatch: 2 refused, first: acknowledgment 1 (b): invalid or expired lease"; err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if len(refused.Items) != 2 || refused.Items[0].Index != 1 || refused.Items[0].TransactionID != "b" || refused.Items[1].Index != 2 {
		t.Errorf("refused %+v", refused.Items)
	}
	if len(got) != 3 || got[0].Err != nil || got[1].Err == nil || got[2].Err == nil {
		t.Errorf("results %+v", got)
	}
	const want = `{"consumerGroup":"g","acknowledgments":[{"transactionId":"a","partitionId":"p"},` +
		`{"transactionId":"b","partitionId":"p","status":"failed","leaseId":"L","error":"e"},{"transactionId":"c","partitionId":"p"}]}`
	if seen := server.requests(1)[0]; seen.Target != "/api/v1/ack/batch" || seen.Body != want {
		t.Errorf("sent %s to %s\nwant %s", seen.Body, seen.Target, want)
	}
}

func TestAckBatchOfNothing(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `[]`))
	if got, err := newClient(t, server.URL, posthorn.Options{}).AckBatch(testContext(t), "", nil); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if body := server.requests(1)[0].Body; body != `{"acknowledgments":[]}` {
		t.Errorf("sent %s", body)
	}
}

func TestAckRefusesAnswersItCannotMatch(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`[]`, `[{"index":1,"success":true}]`, `[{"index":0,"success":true},{"index":1,"success":true}]`, `{}`} {
		server := newScript(t, answer(200, body))
		if got, err := newClient(t, server.URL, posthorn.Options{}).Ack(testContext(t), "", posthorn.AckItem{TransactionID: "t"}); err == nil {
			t.Errorf("%s was read as %+v", body, got)
		}
	}
}

func TestExtend(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		d    time.Duration
		body string
	}{
		"default":    {0, `{}`},
		"seconds":    {90 * time.Second, `{"seconds":90}`},
		"rounded up": {1500 * time.Millisecond, `{"seconds":2}`},
		"negative":   {-time.Millisecond, `{"seconds":-1}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newScript(t, answer(200, `{"leaseId":"a/b","success":true,"renewed":2,"newExpiresAt":"2026-01-02T03:04:05Z","expiresAt":"2026-01-02T03:04:05Z","lease_expires_at":"2026-01-02T03:04:05Z"}`))
			got, err := newClient(t, server.URL, posthorn.Options{}).Extend(testContext(t), "a/b", test.d)
			if want := (posthorn.Lease{ID: "a/b", Renewed: 2, ExpiresAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v", got, err)
			}
			if seen := server.requests(1)[0]; seen.Target != "/api/v1/lease/a%2Fb/extend" || seen.Body != test.body {
				t.Errorf("sent %s to %s", seen.Body, seen.Target)
			}
		})
	}
}

func TestExtendOfALostLease(t *testing.T) {
	t.Parallel()
	server := newScript(t, answer(200, `{"leaseId":"L","success":false,"renewed":0,"newExpiresAt":null,"expiresAt":null,"lease_expires_at":null}`))
	client := newClient(t, server.URL, posthorn.Options{})
	if got, err := client.Extend(testContext(t), "L", time.Second); !errors.Is(err, posthorn.ErrLeaseExpired) || !got.ExpiresAt.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := client.Extend(testContext(t), "", time.Second); err == nil || !strings.Contains(err.Error(), "lease id is empty") {
		t.Errorf("error %v", err)
	}
	server.requests(1)
}
