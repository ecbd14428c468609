package posthorn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

// realBroker is a client of the broker that POSTHORN_URL names, and a queue name that is used once.
func realBroker(t *testing.T) (*posthorn.Client, string) {
	t.Helper()
	url := os.Getenv("POSTHORN_URL")
	if url == "" {
		t.Skip("POSTHORN_URL names no broker to test against")
	}
	return newClient(t, url, posthorn.Options{Token: os.Getenv("POSTHORN_TOKEN")}), "sdk." + posthorn.NewTransactionID()
}

func TestBrokerKeepsNamesAndBytes(t *testing.T) {
	t.Parallel()
	client, queue := realBroker(t)
	ctx := testContext(t)
	for _, name := range []string{"a/b", "100%", "x y&z=<ü>", `"\`, "..", "%2F"} {
		for n, raw := range []string{`1e400`, `"\ud800\u0000<&>"`, "{ \"a\":1 ,\t\"a\":2}", `12345678901234567890123456789012345678901`, `null`} {
			item := posthorn.Item{Queue: queue + name, Partition: name, TransactionID: fmt.Sprint(name, n), Payload: json.RawMessage(raw)}
			first, err := client.Push(ctx, []posthorn.Item{item})
			if err != nil {
				t.Fatal(err)
			}
			again, err := client.Push(ctx, []posthorn.Item{item})
			if err != nil || first[0].Status != posthorn.StatusQueued || again[0].Status != posthorn.StatusDuplicate || again[0].MessageID != first[0].MessageID {
				t.Fatalf("pushed %+v, then %+v, %v", first, again, err)
			}
			batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: item.Queue, Partition: name, ConsumerGroup: name})
			if err != nil || len(batch.Messages) != 1 {
				t.Fatalf("popped %+v, %v", batch, err)
			}
			m := batch.Messages[0]
			if m.ID != first[0].MessageID || m.TransactionID != item.TransactionID || m.Queue != item.Queue || m.Partition != name || m.ConsumerGroup != name || string(m.Payload) != raw {
				t.Errorf("popped %+v, pushed %+v", m, item)
			}
			if age := time.Since(m.CreatedAt); age < -time.Minute || age > time.Hour || m.DeliveryAttempt != 1 {
				t.Errorf("created %v ago, attempt %d", age, m.DeliveryAttempt)
			}
			if _, err := client.Ack(ctx, name, m.Ack(posthorn.AckCompleted, nil)); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Ack(ctx, name, m.Ack(posthorn.AckFailed, nil)); !errors.Is(err, posthorn.ErrLeaseExpired) && !errors.Is(err, posthorn.ErrAlreadyCommitted) {
				t.Errorf("a second acknowledgment: %v", err)
			}
		}
		if existed, err := client.DeleteQueue(ctx, queue+name); err != nil || !existed {
			t.Errorf("delete: %t, %v", existed, err)
		}
	}
}

func TestBrokerConfigures(t *testing.T) {
	t.Parallel()
	client, queue := realBroker(t)
	ctx := testContext(t)
	if _, err := client.GetQueue(ctx, queue); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("error %v", err)
	}
	opts := allOptions()
	got, err := client.Configure(ctx, queue, opts)
	if err != nil || !sameOptions(got.Options, opts) || got.Name != queue {
		t.Fatalf("configured %+v, %v", got, err)
	}
	detail, err := client.GetQueue(ctx, queue)
	if err != nil || !sameOptions(detail.Options, opts) || detail.ID != got.ID {
		t.Errorf("queue %+v, %v", detail, err)
	}
	detail.Options.RetryLimit = new(10)
	if got, err = client.Configure(ctx, queue, detail.Options); err != nil || *got.Options.RetryLimit != 10 || *got.Options.LeaseTime != *opts.LeaseTime {
		t.Errorf("changed %+v, %v", got, err)
	}
	if got, err = client.Configure(ctx, queue, posthorn.QueueOptions{}); err != nil || *got.Options.LeaseTime != 5*time.Minute || *got.Options.DedupWindow != time.Hour {
		t.Errorf("reset %+v, %v", got, err)
	}
	queues, err := client.ListQueues(ctx)
	if err != nil || !slices.ContainsFunc(queues, func(q posthorn.QueueSummary) bool { return q.Name == queue && q.ID == got.ID }) {
		t.Errorf("%d queues, %v", len(queues), err)
	}
	if existed, err := client.DeleteQueue(ctx, queue); err != nil || !existed {
		t.Errorf("delete: %t, %v", existed, err)
	}
	if health, err := client.Health(ctx); err != nil || health.Status != "healthy" || health.Version == "" {
		t.Errorf("health %+v, %v", health, err)
	}
}

func sameOptions(a, b posthorn.QueueOptions) bool {
	left, _ := json.Marshal(a)
	right, _ := json.Marshal(b)
	return string(left) == string(right)
}

func TestBrokerRefusesAnExpiredLease(t *testing.T) {
	t.Parallel()
	client, queue := realBroker(t)
	ctx := testContext(t)
	if _, err := client.Push(ctx, []posthorn.Item{{Queue: queue, Payload: 1}}); err != nil {
		t.Fatal(err)
	}
	first, err := client.Pop(ctx, posthorn.PopOptions{Queue: queue, Lease: time.Second})
	if err != nil || len(first.Messages) != 1 {
		t.Fatalf("popped %+v, %v", first, err)
	}
	if lease, err := client.Extend(ctx, first.LeaseID, 2*time.Second); err != nil || lease.Renewed != 1 || lease.ExpiresAt.IsZero() {
		t.Errorf("extended %+v, %v", lease, err)
	}
	second, err := client.Pop(ctx, posthorn.PopOptions{Queue: queue, Wait: true, Timeout: 10 * time.Second})
	if err != nil || len(second.Messages) != 1 || second.Messages[0].DeliveryAttempt != 2 {
		t.Fatalf("popped %+v, %v", second, err)
	}
	if _, err := client.Extend(ctx, first.LeaseID, time.Second); !errors.Is(err, posthorn.ErrLeaseExpired) {
		t.Errorf("extending the lost lease: %v", err)
	}
	if _, err := client.Ack(ctx, "", first.Messages[0].Ack(posthorn.AckCompleted, nil)); !errors.Is(err, posthorn.ErrLeaseExpired) {
		t.Errorf("acknowledging under the lost lease: %v", err)
	}
	if _, err := client.Ack(ctx, "", posthorn.AckItem{TransactionID: "nobody", PartitionID: first.Messages[0].PartitionID}); !errors.Is(err, posthorn.ErrUnresolvable) {
		t.Errorf("acknowledging an unknown message: %v", err)
	}
}

// TestBrokerConsume lets two generations of consumers, of which the first is stopped half way, work
// through partitions whose messages fail now and then, under leases that must be renewed.
func TestBrokerConsume(t *testing.T) {
	t.Parallel()
	client, queue := realBroker(t)
	ctx := testContext(t)
	const partitions, each = 8, 25
	var items []posthorn.Item
	for n := range each {
		for p := range partitions {
			items = append(items, posthorn.Item{Queue: queue, Partition: fmt.Sprint(p), Payload: n})
		}
	}
	if _, err := client.Push(ctx, items); err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	done := map[string][]int{}
	failed := map[string]bool{}
	total, dead := 0, 0
	var stop context.CancelFunc
	handler := func(_ context.Context, m posthorn.Message) error {
		var n int
		if err := m.Decode(&n); err != nil {
			return err
		}
		if n == 7 && m.Partition == "0" {
			time.Sleep(1500 * time.Millisecond) // beyond the lease of 1 s
		}
		mu.Lock()
		defer mu.Unlock()
		key := fmt.Sprint(m.Partition, "/", n)
		switch {
		case n%10 == 3 && !failed[key]:
			failed[key] = true
			if m.Partition > "3" {
				panic("transient")
			}
			return posthorn.Retry(errors.New("transient"))
		case n == 11:
			dead++
			if dead == partitions && total == partitions*(each-1) {
				stop()
			}
			return posthorn.DeadLetter(errors.New("poison"))
		}
		done[m.Partition] = append(done[m.Partition], n)
		total++
		if total == partitions*each/2 || total == partitions*(each-1) && dead == partitions {
			stop()
		}
		return nil
	}
	for generation := range 2 {
		var running context.Context
		running, stop = context.WithCancel(ctx)
		err := client.Consume(running, posthorn.ConsumeOptions{
			Queue: queue, ConsumerGroup: "g", Concurrency: 4, Batch: 10, Lease: time.Second, Logger: quiet,
		}, handler)
		stop()
		if err != nil {
			t.Fatalf("generation %d: %v", generation, err)
		}
		if ctx.Err() != nil {
			t.Fatalf("generation %d: %d messages done, %d dead: %v", generation, total, dead, done)
		}
	}
	var want []int
	for n := range each {
		if n != 11 {
			want = append(want, n)
		}
	}
	for p := range partitions {
		if got := done[fmt.Sprint(p)]; !slices.Equal(got, want) {
			t.Errorf("partition %d was completed as %v", p, got)
		}
	}
	batch, err := client.Pop(ctx, posthorn.PopOptions{Queue: queue, ConsumerGroup: "g", Partitions: -1})
	if err != nil || len(batch.Messages) != 0 {
		t.Errorf("left behind: %+v, %v", batch, err)
	}
}

func TestBrokerRefusesBadNames(t *testing.T) {
	t.Parallel()
	client, queue := realBroker(t)
	_, err := client.Push(testContext(t), []posthorn.Item{{Queue: queue}, {Queue: strings.Repeat("x", 513)}})
	if api := apiError(t, err); api.Status != 400 || !strings.HasPrefix(api.Message, "bad body: items[1].queue") {
		t.Errorf("error %v", err)
	}
}
