package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

type flowControl struct {
	FlowControlKey      string `json:"flowControlKey"`
	WaitListSize        int    `json:"waitListSize"`
	ParallelismMax      int    `json:"parallelismMax"`
	ParallelismCount    int    `json:"parallelismCount"`
	RateMax             int    `json:"rateMax"`
	RateCount           int    `json:"rateCount"`
	RatePeriod          int64  `json:"ratePeriod"`      // s
	RatePeriodStart     int64  `json:"ratePeriodStart"` // unix s
	IsPaused            bool   `json:"isPaused"`
	IsPinnedParallelism bool   `json:"isPinnedParallelism"`
	IsPinnedRate        bool   `json:"isPinnedRate"`
}

type globalParallelism struct {
	ParallelismMax   int `json:"parallelismMax"`
	ParallelismCount int `json:"parallelismCount"`
}

func shownFlowControl(f delivery.FlowControl) flowControl {
	return flowControl{
		FlowControlKey:      f.Key,
		WaitListSize:        f.Waiting,
		ParallelismMax:      f.Parallelism,
		ParallelismCount:    f.Running,
		RateMax:             f.Rate,
		RateCount:           f.RateCount,
		RatePeriod:          int64(f.Period / time.Second),
		RatePeriodStart:     f.PeriodStart.Unix(),
		IsPaused:            f.Paused,
		IsPinnedParallelism: f.PinnedParallelism,
		IsPinnedRate:        f.PinnedRate,
	}
}

func (e *edge) listFlowControl(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	list, err := e.cfg.Delivery.FlowControls(c.ctx, q.Get("search"))
	if err != nil {
		return answer{}, err
	}
	out := make([]flowControl, len(list))
	for i, f := range list {
		out[i] = shownFlowControl(f)
	}
	return encode(http.StatusOK, out)
}

const flowKind = "flow control key"

func (e *edge) getFlowControl(c *call) (answer, error) {
	f, err := e.cfg.Delivery.FlowControl(c.ctx, c.path["flowControlKey"])
	if err != nil {
		return answer{}, missing(err, flowKind, c.path["flowControlKey"])
	}
	return encode(http.StatusOK, shownFlowControl(f))
}

// changedFlow answers a change of a key.
func changedFlow(c *call, err error) (answer, error) {
	if err != nil {
		return answer{}, missing(err, flowKind, c.path["flowControlKey"])
	}
	return encode(http.StatusOK, empty{})
}

func (e *edge) pauseFlowControl(c *call) (answer, error) {
	return changedFlow(c, e.cfg.Delivery.PauseFlow(c.ctx, c.path["flowControlKey"], true))
}

func (e *edge) resumeFlowControl(c *call) (answer, error) {
	return changedFlow(c, e.cfg.Delivery.PauseFlow(c.ctx, c.path["flowControlKey"], false))
}

func (e *edge) resetFlowRate(c *call) (answer, error) {
	return changedFlow(c, e.cfg.Delivery.ResetFlowRate(c.ctx, c.path["flowControlKey"]))
}

func (e *edge) pinFlowControl(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	var pin delivery.FlowPin
	for name, to := range map[string]**int{"parallelism": &pin.Parallelism, "rate": &pin.Rate} {
		if text := q.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				return answer{}, badQuery(name, "must be an integer")
			}
			*to = &n
		}
	}
	if text := q.Get("period"); text != "" {
		period, err := request.ParsePeriod("period", text)
		if err != nil {
			return answer{}, err
		}
		pin.Period = &period
	}
	if pin == (delivery.FlowPin{}) {
		return answer{}, &request.Error{Text: "parallelism, rate or period is required"}
	}
	return changedFlow(c, e.cfg.Delivery.PinFlow(c.ctx, c.path["flowControlKey"], pin))
}

// unpinFlowControl lets go of both unless the query names some.
func (e *edge) unpinFlowControl(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	named := map[string]bool{}
	for _, name := range []string{"parallelism", "rate"} {
		if named[name], err = request.ParseBool(name, q.Get(name)); err != nil {
			return answer{}, err
		}
	}
	all := q.Get("parallelism") == "" && q.Get("rate") == ""
	return changedFlow(c, e.cfg.Delivery.UnpinFlow(c.ctx, c.path["flowControlKey"], all || named["parallelism"], all || named["rate"]))
}

func (e *edge) getGlobalParallelism(c *call) (answer, error) {
	p, err := e.cfg.Delivery.GlobalParallelism(c.ctx)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, globalParallelism{p.Max, p.Count})
}
