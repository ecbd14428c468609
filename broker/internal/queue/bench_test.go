package queue_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// callers is how many pushes or pops are in the air at the same time.
const callers = 50

// payload is 28 bytes, the size of the push page's example and of the figures in the design.
var payload = []byte(`{"orderId":8891,"total":42}` + "\n")

// durable gives a database on a server of its own with full durability, unlike the tests' server.
func durable(b *testing.B) string {
	b.Helper()
	server := pgtest.StartServer(b, map[string]string{"fsync": "on", "full_page_writes": "on"})
	pgtest.Migrate(b, server.URL())
	return server.URL()
}

// hammer runs work from `callers` goroutines until b.N messages are done, n at a time.
func hammer(b *testing.B, n int, work func(ctx context.Context, caller, round int)) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wait sync.WaitGroup
	ctx := b.Context()
	b.ResetTimer()
	for caller := range callers {
		wait.Go(func() {
			for round := 0; left.Add(-int64(n)) > -int64(n); round++ {
				work(ctx, caller, round)
			}
		})
	}
	wait.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkPush measures the push pipeline without HTTP, every message with a transaction id of its own.
func BenchmarkPush(b *testing.B) {
	url := durable(b)
	for _, batch := range []int{1, 10, 100} {
		for _, partitions := range []int{1, 100, 10_000} {
			name := fmt.Sprintf("batch=%d/partitions=%d", batch, partitions)
			b.Run(name, func(b *testing.B) {
				e := broker(b, url, queue.Config{})
				warm(b, e, name, partitions)
				run := strconv.Itoa(os.Getpid()) + strconv.Itoa(b.N)
				hammer(b, batch, func(ctx context.Context, caller, round int) {
					items := make([]queue.PushItem, batch)
					for i := range items {
						n := (round*callers+caller)*batch + i
						items[i] = queue.PushItem{
							Queue: name, Partition: strconv.Itoa(n % partitions), Payload: payload,
							TransactionID: run + "-" + strconv.Itoa(n),
						}
						if partitions == 100 { // one partition per request: a lane per entity
							items[i].Partition = strconv.Itoa(caller * 2 % partitions)
						}
					}
					results, err := e.Push(ctx, items)
					if err != nil || results[0].Status != queue.Queued {
						b.Errorf("%v %v", results, err)
					}
				})
			})
		}
	}
}

// warm creates the partitions, so that the figures are those of a running system.
func warm(b *testing.B, e *queue.Engine, name string, partitions int) {
	b.Helper()
	items := make([]queue.PushItem, partitions)
	for i := range items {
		items[i] = queue.PushItem{Queue: name, Partition: strconv.Itoa(i), Payload: payload}
	}
	if _, err := e.Push(b.Context(), items); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPopAck measures pop and ack of 100 partitions with segments of 100, each batch acked as a whole.
func BenchmarkPopAck(b *testing.B) {
	url := durable(b)
	for _, batch := range []int{1, 10, 100} {
		name := fmt.Sprintf("batch=%d", batch)
		b.Run(name, func(b *testing.B) {
			e := broker(b, url, queue.Config{})
			fill(b, e, name, b.N)
			hammer(b, batch, func(ctx context.Context, _, _ int) {
				r, err := e.Pop(ctx, queue.PopRequest{Queue: name, Batch: batch, Partitions: 1})
				if err != nil || len(r.Partitions) == 0 {
					return
				}
				p := r.Partitions[0]
				acks := make([]queue.AckItem, len(p.Messages))
				for i, m := range p.Messages {
					acks[i] = queue.AckItem{TransactionID: m.TransactionID, PartitionID: p.ID, LeaseID: r.LeaseID}
				}
				if results, err := e.Ack(ctx, r.Group, acks); err != nil || results[len(results)-1].Err != nil {
					b.Errorf("%v %v", results, err)
				}
			})
		})
	}
}

func fill(b *testing.B, e *queue.Engine, name string, n int) {
	b.Helper()
	var wait sync.WaitGroup
	var partition atomic.Int64
	for range callers {
		wait.Go(func() {
			for p := partition.Add(1); p <= 100; p = partition.Add(1) {
				for left := n/100 + 100; left > 0; left -= 100 {
					items := make([]queue.PushItem, 100)
					for i := range items {
						items[i] = queue.PushItem{Queue: name, Partition: strconv.FormatInt(p, 10), Payload: payload}
					}
					if _, err := e.Push(b.Context(), items); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wait.Wait()
}

// BenchmarkPopWide pops from a queue of 100 000 partitions of which ten have a message.
func BenchmarkPopWide(b *testing.B) {
	const partitions, filled = 100_000, 10
	e := broker(b, durable(b), queue.Config{})
	for from := 0; from < partitions; from += 10_000 {
		items := make([]queue.PushItem, 10_000)
		for i := range items {
			items[i] = queue.PushItem{Queue: "wide", Partition: strconv.Itoa(from + i), Payload: payload}
		}
		if _, err := e.Push(b.Context(), items); err != nil {
			b.Fatal(err)
		}
	}
	all := queue.PopRequest{Queue: "wide", Batch: 10_000, AutoAck: true}
	for n := 0; n < partitions; {
		r, err := e.Pop(b.Context(), all)
		if err != nil {
			b.Fatal(err)
		}
		n += len(r.Partitions)
	}
	b.ResetTimer()
	for i := range b.N {
		b.StopTimer()
		items := make([]queue.PushItem, filled)
		for j := range items {
			items[j] = queue.PushItem{Queue: "wide", Partition: strconv.Itoa((i*filled + j) * 997 % partitions), Payload: payload}
		}
		if _, err := e.Push(b.Context(), items); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		r, err := e.Pop(b.Context(), all)
		if err != nil || len(r.Partitions) != filled {
			b.Fatalf("%d partitions, %v", len(r.Partitions), err)
		}
	}
}
