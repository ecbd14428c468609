package queue_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/broker/internal/queue"
)

func trace(t testing.TB, e *queue.Engine, ev queue.TraceEvent) uuid.UUID {
	t.Helper()
	if ev.Data == nil {
		ev.Data = []byte(`1`)
	}
	id, err := e.Trace(t.Context(), ev)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func traces(t testing.TB, e *queue.Engine, partition uuid.UUID, txID string) []queue.Trace {
	t.Helper()
	list, err := e.MessageTraces(t.Context(), partition, txID)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func byName(t testing.TB, e *queue.Engine, name string, limit, offset int) queue.TracePage {
	t.Helper()
	page, err := e.TracesByName(t.Context(), name, limit, offset)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func traceNames(t testing.TB, e *queue.Engine) string {
	t.Helper()
	names, total, err := e.TraceNames(t.Context(), 10, 0)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(total)
	for _, n := range names {
		text += fmt.Sprint(" ", n.Name, ":", n.Traces, "/", n.Messages)
	}
	return text
}

// rowsOf counts the rows of a table.
func rowsOf(t testing.TB, url, table string) (n int) {
	t.Helper()
	if err := pgtest.Admin(t, url).QueryRow(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTraces stores them and finds them by message and by name.
func TestTraces(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := broker(t, url, queue.Config{})
	push(t, e, item("q", "a", "1"), item("r", "b", "1"))
	batch := pop(t, e, queue.PopRequest{Queue: "q", Group: "g"})
	a := batch.Partitions[0].ID
	b := pop(t, e, queue.PopRequest{Queue: "r"}).Partitions[0].ID
	first := trace(t, e, queue.TraceEvent{
		PartitionID: a, TransactionID: "1", Group: "g", EventType: "step", Data: []byte(`{"a":1, "a":"\ud800"}`), Names: []string{"n", "order 1"},
	})
	advance(t, e, time.Second)
	second := trace(t, e, queue.TraceEvent{PartitionID: a, TransactionID: "1", EventType: "info", Names: []string{"n"}})
	advance(t, e, time.Second)
	third := trace(t, e, queue.TraceEvent{PartitionID: b, TransactionID: "1", EventType: "info", Names: []string{"n"}})
	trace(t, e, queue.TraceEvent{PartitionID: b, TransactionID: "no such message", EventType: "info"})

	got := traces(t, e, a, "1")
	expect(t, "of a message", fmt.Sprint(got[0].ID, got[1].ID, len(got)), fmt.Sprint(first, second, 2))
	expect(t, "first", fmt.Sprint(string(got[0].Data), got[0].Group, got[0].EventType, got[0].Names, got[0].LeaseID, got[0].Queue, got[0].Partition),
		`{"a":1, "a":"\ud800"}`+"gstep[n order 1] "+batch.LeaseID+"qa")
	expect(t, "second", fmt.Sprint(got[1].Group, got[1].LeaseID), fmt.Sprint("", uuid.Nil))
	expect(t, "of another message", len(traces(t, e, a, "2")), 0)
	expect(t, "of no partition", len(traces(t, e, uuid.New(), "1")), 0)
	if _, err := e.Trace(t.Context(), queue.TraceEvent{PartitionID: uuid.New(), TransactionID: "1", EventType: "info", Data: []byte(`1`)}); !errors.Is(err, queue.ErrPartitionNotFound) {
		t.Errorf("in no partition: %v", err)
	}

	page := byName(t, e, "n", 2, 0)
	expect(t, "by name", fmt.Sprint(page.Traces[0].ID, page.Traces[1].ID, len(page.Traces), page.Total), fmt.Sprint(third, second, 2, 3))
	expect(t, "where", page.Traces[0].Queue+page.Traces[0].Partition+page.Traces[0].TransactionID, "rb1")
	expect(t, "the rest", byName(t, e, "n", 2, 2).Traces[0].ID, first)
	expect(t, "an unknown name", fmt.Sprint(byName(t, e, "m", 2, 0)), "{[] 0}")
	expect(t, "names", traceNames(t, e), "2 n:3/2 order 1:1/1")

	if _, err := e.DeleteQueue(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	expect(t, "of the deleted queue", len(traces(t, e, a, "1")), 0)
	expect(t, "by name after that", len(byName(t, e, "n", 10, 0).Traces), 1)
	waitFor(t, "the sweep", func() bool { return rowsOf(t, url, "trace") == 2 && rowsOf(t, url, "trace_name") == 1 })
	expect(t, "names after that", traceNames(t, e), "1 n:1/1")
}

// TestTracesAge removes them by their age, and where a queue deletes its messages sooner, as soon.
func TestTracesAge(t *testing.T) {
	t.Parallel()
	for _, retention := range []time.Duration{0, 48 * time.Hour, -1} {
		url := pgtest.URL(t)
		e := broker(t, url, queue.Config{TraceRetention: retention})
		ids := map[string]uuid.UUID{}
		for name, options := range map[string]queue.Options{
			"plain":    {},
			"hour":     {RetentionEnabled: true, Retention: time.Hour},
			"off":      {Retention: time.Hour},
			"max wait": {RetentionEnabled: true, Retention: 3 * time.Hour, MaxWaitTime: 2 * time.Hour},
		} {
			options.LeaseTime = time.Minute
			if _, err := e.Configure(t.Context(), name, "", "", options); err != nil {
				t.Fatal(err)
			}
			push(t, e, item(name, "p", "1"))
			ids[name] = pop(t, e, queue.PopRequest{Queue: name, Group: "g"}).Partitions[0].ID
			trace(t, e, queue.TraceEvent{PartitionID: ids[name], TransactionID: "1", EventType: "info", Names: []string{name, "all"}})
		}
		left := func() string {
			text := ""
			for _, name := range []string{"plain", "hour", "off", "max wait"} {
				if len(traces(t, e, ids[name], "1")) > 0 {
					text += name + " "
				}
			}
			expect(t, "named", byName(t, e, "all", 10, 0).Total, rowsOf(t, url, "trace"))
			return text
		}
		expect(t, "fresh", left(), "plain hour off max wait ")
		advance(t, e, time.Hour+time.Minute)
		expect(t, "after an hour", left(), "plain off max wait ")
		advance(t, e, time.Hour)
		expect(t, "after two", left(), "plain off ")
		advance(t, e, 46*time.Hour)
		want := map[time.Duration]string{0: "plain off ", 48 * time.Hour: "", -1: "plain off "}[retention]
		expect(t, "after two days", left(), want)
		advance(t, e, 6*24*time.Hour)
		if retention == 0 {
			want = ""
		}
		expect(t, "after a week", left(), want)
	}
}

// TestTracesWithoutDatabase are errors, never empty answers.
func TestTracesWithoutDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, nil)
	pgtest.Migrate(t, server.URL())
	e := broker(t, server.URL(), queue.Config{StatementTimeout: time.Second})
	if err := server.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the database to be gone", func() bool {
		_, err := e.Ping(t.Context())
		return err != nil
	})
	_, store := e.Trace(t.Context(), queue.TraceEvent{PartitionID: uuid.New(), TransactionID: "1", EventType: "info", Data: []byte(`1`)})
	_, message := e.MessageTraces(t.Context(), uuid.New(), "1")
	_, name := e.TracesByName(t.Context(), "n", 1, 0)
	_, _, names := e.TraceNames(t.Context(), 1, 0)
	for i, err := range []error{store, message, name, names} {
		if !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%d: %v", i, err)
		}
	}
}
