package queue_test

import (
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// BenchmarkStats measures the figures of 1 000 queues with 11 000 partitions and 10 million messages: a queue
// of 5 million messages in 1 000 partitions, and 999 queues of ten partitions each, with segments of 1 000
// messages, and a million of them in segments of four. Two groups consume each queue.
func BenchmarkStats(b *testing.B) {
	url := durable(b)
	db := pgtest.Admin(b, url)
	e := broker(b, url, queue.Config{})
	if _, err := e.Configure(b.Context(), "made", "", "", queue.DefaultOptions()); err != nil {
		b.Fatal(err)
	}
	for _, sql := range []string{
		`insert into queue (uuid, name, namespace, task, options, version, created_at)
		 select gen_random_uuid(), 'q' || i, 'n' || i % 20, 't' || i % 7, (select options from queue where name = 'made'), 0, clock_timestamp()
		 from generate_series(0, 999) i`,
		`insert into partition (uuid, queue_id, name, shard, created_at)
		 select gen_random_uuid(), q.id, p, 0, clock_timestamp() from queue q
		 cross join lateral generate_series(1, case when q.name = 'q0' then 1000 else 10 end) p where q.name <> 'made'`,
		`insert into segment (partition_id, base, count, created_at, bytes, format, hashes, frames)
		 select p.id, 1000 * i, 1000, clock_timestamp() - interval '1 hour', 1000, 1, '', decode(repeat('00', 1000), 'hex')
		 from partition p join queue q on q.id = p.queue_id
		 cross join lateral generate_series(0, case when q.name = 'q0' then 4 else case when p.id % 5 < 2 then 0 else -1 end end) i`,
		`insert into segment (partition_id, base, count, created_at, bytes, format, hashes, frames)
		 select p.id, 1000000 + 4 * i, 4, clock_timestamp() - interval '1 hour' + i * interval '1 s', 100, 1, '', decode(repeat('00', 100), 'hex')
		 from partition p join queue q on q.id = p.queue_id cross join generate_series(0, 24) i where q.name <> 'q0'`,
		`insert into consumer_group (queue_id, name, mode, created_at)
		 select q.id, g, 'all', clock_timestamp() from queue q cross join (values ('a'), ('b')) as g (g)`,
		`insert into cursor (partition_id, group_id, committed, delivered, attempt, retries, lease_id, lease_end, lease_until, updated_at)
		 select p.id, g.id, 500, 600, 1, 0, gen_random_uuid(), 600, clock_timestamp() + interval '1 hour', clock_timestamp()
		 from partition p join consumer_group g on g.queue_id = p.queue_id`,
		`insert into partition_count (partition_id, queue_id, messages, segments, bytes, start, tail, last_at)
		 select g.partition_id, p.queue_id, sum(g.count), count(*), sum(octet_length(g.frames)), min(g.base), max(g.base + g.count), max(g.created_at)
		 from segment g join partition p on p.id = g.partition_id group by 1, 2`,
		`insert into queue_traffic (queue_id, step, at, pushed, popped, acked, failed, dead_lettered)
		 select q, 60, date_trunc('minute', clock_timestamp()) - i * interval '1 minute', 1, 1, 1, 1, 1
		 from generate_series(0, 1000) q cross join generate_series(0, 60) i`,
		`vacuum analyze`,
	} {
		if _, err := db.Exec(b.Context(), sql); err != nil {
			b.Fatal(err)
		}
	}
	list, err := e.Queues(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var messages, partitions int64
	for _, q := range list {
		messages += q.Messages.Total
		partitions += q.Partitions
	}
	b.Logf("%d queues, %d partitions, %d messages", len(list), partitions, messages)
	now := e.Now()
	for name, work := range map[string]func() error{
		"queues":      func() error { _, err := e.Queues(b.Context()); return err },
		"queue-large": func() error { _, err := e.Queue(b.Context(), "q0"); return err },
		"queue-small": func() error { _, err := e.Queue(b.Context(), "q7"); return err },
		"lags":        func() error { _, err := e.Lags(b.Context(), 0); return err },
		"traffic": func() error {
			_, err := e.Traffic(b.Context(), queue.TrafficFilter{From: now.Add(-time.Hour), To: now, Step: time.Minute})
			return err
		},
		"traffic-all": func() error { _, err := e.TrafficByQueue(b.Context(), now.Add(-time.Hour), now); return err },
	} {
		b.Run(name, func(b *testing.B) {
			best := time.Hour
			for b.Loop() {
				began := time.Now()
				if err := work(); err != nil {
					b.Fatal(err)
				}
				best = min(best, time.Since(began))
			}
			b.ReportMetric(float64(best.Microseconds())/1000, "best-ms")
		})
	}
}
