package api

import (
	"net/http"
	"time"
)

// maxAdvance bounds one step of the test clock: PostgreSQL's timestamps end, and so do durations.
const maxAdvance = 100 * 365 * 24 * time.Hour

// advanceRequest is the body of POST /testing/clock: a Go duration such as "2160h".
type advanceRequest struct {
	Advance string `json:"advance"`
}

type clockAnswer struct {
	Now           string  `json:"now"`
	OffsetSeconds float64 `json:"offsetSeconds"`
}

func (e *edge) getClock(*call) (answer, error) {
	return e.encodeClock(e.cfg.Engine.Now())
}

// advanceClock moves the test clock, forward only.
func (e *edge) advanceClock(c *call) (answer, error) {
	var body advanceRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	d, err := time.ParseDuration(body.Advance)
	switch {
	case err != nil:
		return answer{}, badBody("advance", "must be a duration such as 90s or 2160h")
	case d <= 0:
		return answer{}, badBody("advance", "must be greater than 0")
	case d > maxAdvance:
		return answer{}, badBody("advance", "must be at most "+maxAdvance.String())
	}
	now, err := e.cfg.Engine.AdvanceClock(c.ctx, d)
	if err != nil {
		return answer{}, err
	}
	if err := e.cfg.Delivery.Settle(c.ctx); err != nil {
		return answer{}, err
	}
	return e.encodeClock(now)
}

func (e *edge) encodeClock(now time.Time) (answer, error) {
	return encode(http.StatusOK, clockAnswer{Now: timeText(now), OffsetSeconds: e.cfg.Engine.ClockOffset().Seconds()})
}
