// Package clock estimates the time of the database.
//
// The database's clock is the only one that decides anything: windows, leases and visibility are
// judged by it, so that several brokers agree. Between two answers of the database a broker needs
// an estimate of that time, for timers and for decisions that a statement confirms afterwards.
// The estimate never runs ahead of the database by more than the drift of the two clocks since the
// last answer, and lags behind it by at most one answer's way back.
package clock

import (
	"sync"
	"time"
)

// resync is how far an answer may lie behind the estimate before it is believed: less is the
// jitter of answers overtaking each other, more is a database clock that was set back.
const resync = time.Second

// Database estimates the database's time. The zero value estimates the local time until the first answer.
type Database struct {
	mu     sync.RWMutex
	at     time.Time // database time of the last answer believed
	seenAt time.Time // local time, monotonic, when it arrived
	moved  time.Time // local time, monotonic, when the test clock was last moved
}

// lateAnswer is how late an answer may come that was on its way when the test clock was moved: it tells the
// time before.
const lateAnswer = 30 * time.Second

// Moved takes the time that the database answered just now, after the test clock was moved forward.
func (d *Database) Moved(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.at, d.seenAt, d.moved = at, now, now
}

// Observe takes a time that the database answered just now.
func (d *Database) Observe(at time.Time) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	estimate := d.at.Add(now.Sub(d.seenAt))
	if behind := estimate.Sub(at); !d.seenAt.IsZero() && behind > 0 {
		if behind < resync || !d.moved.IsZero() && now.Sub(d.moved) < lateAnswer {
			return
		}
	}
	d.at, d.seenAt = at, now
}

// Now estimates the database's time.
func (d *Database) Now() time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.seenAt.IsZero() {
		return time.Now()
	}
	return d.at.Add(time.Since(d.seenAt))
}
