package delivery

import "sync"

// batcher collects what arrives while earlier batches are being worked on, and hands over what waits in batches of at most
// limit: an idle batcher works at once, a busy one in large batches.
type batcher[T any] struct {
	work    func([]T)
	workers int // most batches worked on at the same time
	limit   int // most items of a batch

	mu      sync.Mutex
	waiting []T
	running int
	idle    sync.WaitGroup // counts running workers
}

func newBatcher[T any](workers, limit int, work func([]T)) *batcher[T] {
	return &batcher[T]{work: work, workers: workers, limit: limit}
}

// add hands over items; each is worked on exactly once.
func (b *batcher[T]) add(items ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, items...)
	if b.running < b.workers {
		b.running++
		b.idle.Add(1)
		go b.loop()
	}
}

func (b *batcher[T]) loop() {
	defer b.idle.Done()
	for {
		b.mu.Lock()
		batch := b.waiting
		if len(batch) > b.limit {
			b.waiting = append([]T(nil), batch[b.limit:]...)
			batch = batch[:b.limit:b.limit]
		} else {
			b.waiting = nil
		}
		if len(batch) == 0 {
			b.running--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.work(batch)
	}
}

// wait returns when nothing is being worked on. The caller makes sure that nothing is added any more.
func (b *batcher[T]) wait() { b.idle.Wait() }
