package bench

import (
	"context"
	"time"
)

// pace says when a producer's next push is due. Without a rate that is at once. With one, pushes are due at fixed
// times whether or not earlier ones have been answered: a producer that is late sends at once and its latency counts
// from the due time, so that a stall of the broker is seen by every message that it delays.
type pace struct {
	due  time.Time
	step time.Duration // 0 means no rate
}

func newPace(start time.Time, rate, batch, worker, workers int) *pace {
	if rate == 0 {
		return &pace{}
	}
	step := time.Duration(float64(time.Second) * float64(batch) * float64(workers) / float64(rate))
	return &pace{due: start.Add(step * time.Duration(worker) / time.Duration(workers)), step: step}
}

// next waits until the next push is due and returns that time; false when it would be after until or ctx ended.
func (p *pace) next(ctx context.Context, until time.Time) (time.Time, bool) {
	now := time.Now()
	if p.step == 0 {
		return now, now.Before(until)
	}
	due := p.due
	p.due = p.due.Add(p.step)
	if !due.Before(until) {
		return due, false
	}
	if wait := due.Sub(now); wait > 0 {
		select {
		case <-ctx.Done():
			return due, false
		case <-time.After(wait):
		}
	}
	return due, true
}
