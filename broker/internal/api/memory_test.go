package api

import (
	"io"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strings"
	"testing"
	"time"
)

// TestMemoryOfLargeBodies pushes 64 MiB of as many small items as fit, and of as many as are allowed,
// and bounds how far the heap grows, garbage included. A refused body costs itself and nothing else. An
// accepted one is copied on its way to PostgreSQL. The client makes the body as it sends it, so the
// heap is the broker's.
func TestMemoryOfLargeBodies(t *testing.T) {
	if testing.Short() || raceDetector {
		t.Skip("moves 64 MiB several times; the race detector slows that down and has a heap of its own")
	}
	b := start(t, nil)
	const size, mostItems = 64 << 20, 100_000
	for _, tc := range []struct {
		name   string
		item   string
		status int
		most   uint64 // growth, in bodies
	}{
		{"too many items", `{"queue":"q","payload":1}`, 400, 2},
		{"too many bad items", `1`, 400, 2},
		{"too many items at the end of the limit", `{"queue":"q","payload":"` + strings.Repeat("x", size/mostItems-40) + `"}`, 400, 2},
		{"the most items", `{"queue":"q","payload":"` + strings.Repeat("x", size/mostItems-26) + `"}`, 201, 6},
	} {
		count := (size - len(`{"items":[]}`)) / (len(tc.item) + 1)
		body := &repeated{head: `{"items":[`, item: tc.item + ",", count: count, tail: `]}`}
		req := b.request("POST", "/api/v1/push", io.NopCloser(body))
		req.ContentLength = body.size()
		peak := watchHeap()
		r := b.send(req)
		grown := peak()
		t.Logf("%s: %d items, %d MiB, heap grew by %d MiB, answered %d", tc.name, count, req.ContentLength>>20, grown>>20, r.status)
		if r.status != tc.status {
			t.Errorf("%s: %d %.200s", tc.name, r.status, r.body)
		}
		if grown > tc.most*size {
			t.Errorf("%s: the heap grew by %d MiB", tc.name, grown>>20)
		}
	}
}

// watchHeap samples the live and dead objects on the heap until the returned function is called, which
// returns by how much they grew at most.
func watchHeap() (peak func() uint64) {
	runtime.GC()
	sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() uint64 {
		runtimemetrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := read()
	most := before
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, read())
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		<-done
		return most - before
	}
}

// repeated reads as head, count items without the last one's comma, and tail.
type repeated struct {
	head, item, tail string
	count            int
	at               int // 0 before head, i before item i, count+1 before tail
	rest             string
}

func (r *repeated) size() int64 {
	return int64(len(r.head)) + int64(r.count)*int64(len(r.item)) - 1 + int64(len(r.tail))
}

func (r *repeated) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		if r.rest == "" {
			switch {
			case r.at == 0:
				r.rest = r.head
			case r.at < r.count:
				r.rest = r.item
			case r.at == r.count:
				r.rest = r.item[:len(r.item)-1]
			case r.at == r.count+1:
				r.rest = r.tail
			default:
				if n == 0 {
					return 0, io.EOF
				}
				return n, nil
			}
			r.at++
		}
		m := copy(p[n:], r.rest)
		r.rest = r.rest[m:]
		n += m
	}
	return n, nil
}
