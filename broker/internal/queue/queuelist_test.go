package queue_test

import (
	"testing"
	"time"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

// TestListOfManyPartitionsIsShared lists queues of very many partitions: what is pushed shows a little later, a new
// queue at once.
func TestListOfManyPartitionsIsShared(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{StatsInterval: time.Hour})
	push(t, e, item("large", "p", "1"))
	total := func() (messages int64, queues int) {
		list, err := e.Queues(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range list {
			messages += q.Messages.Total
		}
		return messages, len(list)
	}
	if n, _ := total(); n != 1 {
		t.Fatalf("%d messages", n)
	}
	push(t, e, item("large", "p", "2"))
	if n, _ := total(); n != 2 {
		t.Errorf("%d messages with one partition, want what was pushed to show at once", n)
	}
	if _, err := connect(t, url).Exec(t.Context(), `
insert into partition (uuid, queue_id, name, shard, created_at)
select gen_random_uuid(), id, 'x' || i, 0, clock_timestamp() from queue cross join generate_series(1, 10000) i`); err != nil {
		t.Fatal(err)
	}
	if n, _ := total(); n != 2 {
		t.Fatalf("%d messages", n)
	}
	push(t, e, item("large", "p", "3"))
	if n, _ := total(); n != 2 {
		t.Errorf("%d messages, want the list that was made before", n)
	}
	own, err := e.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clear(own) // a caller's list is its own
	if n, _ := total(); n != 2 {
		t.Errorf("%d messages after a caller changed its list", n)
	}
	push(t, e, item("new", "p", "1"))
	if n, queues := total(); n != 4 || queues != 2 {
		t.Errorf("%d messages in %d queues, want the new queue in the list", n, queues)
	}
	push(t, e, item("large", "p", "4"))
	if _, err := e.RefreshStats(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, _ := total(); n != 5 {
		t.Errorf("%d messages after a refresh", n)
	}
}
