package queue_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// BenchmarkTransact runs transactions of one push each, from 16 callers to 64 partitions, and of a push and
// an ack.
func BenchmarkTransact(b *testing.B) {
	for _, shards := range []int{1, 8} {
		b.Run(fmt.Sprintf("push/shards=%d", shards), func(b *testing.B) {
			e := broker(b, pgtest.URL(b), queue.Config{Shards: shards})
			var n atomic.Int64
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					transact(b, e, queue.Bundle{Push: []queue.PushItem{item("out", fmt.Sprint(n.Add(1)%64), "")}})
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "transactions/s")
		})
	}
	b.Run("push+ack", func(b *testing.B) {
		e := broker(b, pgtest.URL(b), queue.Config{})
		const partitions = 64
		jobs := make(chan queue.BundleAck, b.N+partitions)
		var items []queue.PushItem
		for i := range b.N {
			items = append(items, item("in", fmt.Sprint(i%partitions), fmt.Sprint(i)))
		}
		push(b, e, items...)
		for leased := pop(b, e, queue.PopRequest{Queue: "in", Batch: b.N + 1}); len(leased.Partitions) > 0; leased = pop(b, e, queue.PopRequest{Queue: "in", Batch: b.N + 1}) {
			for i := range leased.Partitions[0].Messages { // partitions take turns
				for _, p := range leased.Partitions {
					if i < len(p.Messages) {
						jobs <- queue.BundleAck{AckItem: queue.AckItem{TransactionID: p.Messages[i].TransactionID, PartitionID: p.ID, LeaseID: leased.LeaseID}}
					}
				}
			}
		}
		close(jobs)
		var rejected atomic.Int64
		b.SetParallelism(8)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				job, ok := <-jobs
				if !ok {
					return
				}
				_, err := e.Transact(b.Context(), queue.Bundle{
					Push: []queue.PushItem{item("out", job.PartitionID.String()[:2], job.TransactionID)}, Acks: []queue.BundleAck{job},
				})
				if err != nil { // a later one may have completed its batch, and ended the lease
					rejected.Add(1)
				}
			}
		})
		b.ReportMetric(float64(int64(b.N)-rejected.Load())/b.Elapsed().Seconds(), "transactions/s")
		b.ReportMetric(float64(rejected.Load()), "rejected")
	})
}
