package batch

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func TestEachItemIsWorkedOnOnce(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{0, 1, 7} {
		var mu sync.Mutex
		var seen []int
		b := New(3, limit, func(items []int) {
			if limit > 0 && len(items) > limit {
				t.Errorf("a batch of %d, want at most %d", len(items), limit)
			}
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, items...)
		})
		var adding sync.WaitGroup
		for i := range 50 {
			adding.Go(func() { b.Add(2*i, 2*i+1) })
		}
		adding.Wait()
		b.Wait()
		slices.Sort(seen)
		for i, v := range seen {
			if v != i {
				t.Fatalf("limit %d: item %d is %d", limit, i, v)
			}
		}
		if len(seen) != 100 {
			t.Errorf("limit %d: %d items, want 100", limit, len(seen))
		}
	}
}

// What arrives while a batch is being worked on makes up the next one.
func TestBusyBatcherCollects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var sizes []int
		b := New(1, 0, func(items []int) {
			sizes = append(sizes, len(items))
			<-release
		})
		b.Add(1)
		synctest.Wait()
		for i := range 9 {
			b.Add(i)
		}
		close(release)
		b.Wait()
		if !slices.Equal(sizes, []int{1, 9}) {
			t.Errorf("batches of %v, want one item and then nine", sizes)
		}
	})
}
