// Package batch turns single requests into shared work.
//
// Promises: each item is worked on exactly once. An idle batcher works at once, a busy one in large batches: what
// arrives while earlier batches are being worked on waits and is taken together.
package batch

import "sync"

// Batcher hands items over to a function, in batches.
type Batcher[T any] struct {
	work    func([]T)
	workers int // most batches worked on at the same time
	limit   int // most items of a batch; 0 means no limit

	mu      sync.Mutex
	waiting []T
	running int
	idle    sync.WaitGroup // counts running workers
}

// New returns a batcher that works on at most so many batches at the same time, each of at most limit items; 0 means
// any number.
func New[T any](workers, limit int, work func([]T)) *Batcher[T] {
	return &Batcher[T]{work: work, workers: workers, limit: limit}
}

// Add hands over items and does not wait for the work.
func (b *Batcher[T]) Add(items ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, items...)
	if b.running < b.workers {
		b.running++
		b.idle.Add(1)
		go b.loop()
	}
}

func (b *Batcher[T]) loop() {
	defer b.idle.Done()
	for {
		b.mu.Lock()
		batch := b.take()
		if len(batch) == 0 {
			b.running--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.work(batch)
	}
}

// take takes the next batch. The caller holds mu.
func (b *Batcher[T]) take() []T {
	batch := b.waiting
	b.waiting = nil
	if b.limit > 0 && len(batch) > b.limit {
		b.waiting = append([]T(nil), batch[b.limit:]...)
		batch = batch[:b.limit:b.limit]
	}
	return batch
}

// Wait returns when nothing is being worked on. The caller makes sure that nothing is added any more.
func (b *Batcher[T]) Wait() { b.idle.Wait() }
