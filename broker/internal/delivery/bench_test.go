package delivery

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// callers is how many publish at the same time.
const callers = 50

// durableURL is a database on a server that really waits for its disk.
func durableURL(b *testing.B) string {
	b.Helper()
	server := pgtest.StartServer(b, map[string]string{"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"})
	pgtest.Migrate(b, server.URL())
	if _, err := pgtest.Admin(b, server.URL()).Exec(b.Context(), `insert into setting (hash_key, shards) values ('\x00', 1)`); err != nil {
		b.Fatal(err)
	}
	return server.URL()
}

// BenchmarkPublish accepts delayed messages, one per call.
func BenchmarkPublish(b *testing.B) {
	e := engine(b, durableURL(b), nil)
	m := to("http://127.0.0.1:9/")
	m.Delay, m.Body = time.Hour, make([]byte, 100)
	b.SetParallelism(callers)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := e.Publish(context.Background(), Publish{Messages: []Message{m}}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkRowInsert is what Publish is compared with: as many callers that insert one row of the same content each.
func BenchmarkRowInsert(b *testing.B) {
	pool, err := pg.Open(b.Context(), pg.Config{URL: durableURL(b), PoolSize: callers})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(b.Context(), `create table plain (id uuid primary key, url text, body bytea, due_at timestamptz)`); err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 100)
	b.SetParallelism(callers)
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			_, err := pool.Exec(context.Background(), `insert into plain values ($1, $2, $3, clock_timestamp())`, uuid.Must(uuid.NewV7()), "http://127.0.0.1:9/", body)
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkDeliver accepts messages and delivers them to a destination on this machine.
func BenchmarkDeliver(b *testing.B) {
	e := engine(b, durableURL(b), nil)
	s := newSink(b, nil)
	m := to(s.URL)
	m.Body = make([]byte, 100)
	var accepted atomic.Int64
	b.SetParallelism(callers)
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := e.Publish(context.Background(), Publish{Messages: []Message{m}}); err != nil {
				b.Error(err)
				return
			}
			accepted.Add(1)
		}
	})
	settle(b, e)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	if got := int64(len(s.requests())); got != accepted.Load() {
		b.Errorf("%d deliveries of %d messages", got, accepted.Load())
	}
}
