package queue_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// BenchmarkPushBesideRetention measures pushes while a million messages of another queue, in segments of 100, are
// being removed, and while they are kept. Run it with a fixed number of messages, such as -benchtime 500000x.
func BenchmarkPushBesideRetention(b *testing.B) {
	const messages, partitions, batch = 1_000_000, 100, 100
	for _, removing := range []bool{false, true} {
		b.Run(fmt.Sprintf("removing=%t", removing), func(b *testing.B) {
			url := durable(b)
			setup := broker(b, url, queue.Config{})
			configured(b, setup, "old", keeps(time.Hour))
			configured(b, setup, "new", func(*queue.Options) {})
			fillOld(b, setup, messages, partitions, batch)
			setup.Stop()
			db := pgtest.Admin(b, url)
			if _, err := db.Exec(b.Context(), `update setting set clock_offset = '65 minutes'`); err != nil { // hashes stay
				b.Fatal(err)
			}
			if _, err := db.Exec(b.Context(), `checkpoint`); err != nil {
				b.Fatal(err)
			}
			cfg := queue.Config{RetentionInterval: time.Hour}
			if removing {
				cfg.RetentionInterval = 10 * time.Millisecond
			}
			e := broker(b, url, cfg)
			warm(b, e, "new", partitions)
			left := number(b, db, `select coalesce(sum(count), 0) from segment where frames is not null`)
			hammer(b, batch, func(ctx context.Context, caller, _ int) {
				items := make([]queue.PushItem, batch)
				for i := range items {
					items[i] = queue.PushItem{Queue: "new", Partition: strconv.Itoa(caller * 2 % partitions), Payload: payload}
				}
				if _, err := e.Push(ctx, items); err != nil {
					b.Error(err)
				}
			})
			now := number(b, db, `select coalesce(sum(s.count), 0) from segment s join partition p on p.id = s.partition_id
				join queue q on q.id = p.queue_id where q.name = 'old' and frames is not null`)
			b.ReportMetric(float64(left-now-partitions)/b.Elapsed().Seconds(), "removed/s")
		})
	}
}

func fillOld(b *testing.B, e *queue.Engine, messages, partitions, batch int) {
	b.Helper()
	var wait sync.WaitGroup
	work := make(chan int)
	for range callers {
		wait.Go(func() {
			for n := range work {
				items := make([]queue.PushItem, batch)
				for i := range items {
					items[i] = queue.PushItem{Queue: "old", Partition: strconv.Itoa(n % partitions), Payload: payload}
				}
				if _, err := e.Push(b.Context(), items); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for n := range messages / batch {
		work <- n
	}
	close(work)
	wait.Wait()
}
