package api

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

type scheduledV1 struct {
	ScheduleID   string `json:"scheduleId"`
	Deduplicated bool   `json:"deduplicated,omitzero"`
}

type scheduleV1 struct {
	ScheduleID  string             `json:"scheduleId"`
	Cron        string             `json:"cron"`
	CreatedAt   int64              `json:"createdAt"`
	Content     scheduleContentV1  `json:"content"`
	Destination destinationV1      `json:"destination"`
	Settings    scheduleSettingsV1 `json:"settings"`
}

type scheduleContentV1 struct {
	Header     map[string][]string `json:"header"`
	Body       *string             `json:"body,omitzero"`
	BodyBase64 *string             `json:"bodyBase64,omitzero"`
}

type destinationV1 struct {
	Type  string   `json:"type"`
	URL   string   `json:"url,omitzero"`
	Topic *topicV1 `json:"topic,omitzero"`
}

type scheduleSettingsV1 struct {
	settingsV1 `json:",inline"`
	Callback   string `json:"callback,omitzero"`
}

type scheduledV2 struct {
	ScheduleID string `json:"scheduleId"`
}

type scheduleV2 struct {
	ScheduleID            string              `json:"scheduleId"`
	Cron                  string              `json:"cron"`
	Destination           string              `json:"destination"`
	CreatedAt             int64               `json:"createdAt"`
	Method                string              `json:"method"`
	Header                map[string][]string `json:"header"`
	Body                  *string             `json:"body,omitzero"`
	BodyBase64            *string             `json:"bodyBase64,omitzero"`
	Retries               int                 `json:"retries"`
	RetryDelayExpression  string              `json:"retryDelayExpression,omitzero"`
	Delay                 int64               `json:"delay,omitzero"`
	Timeout               int64               `json:"timeout,omitzero"`
	Callback              string              `json:"callback,omitzero"`
	FailureCallback       string              `json:"failureCallback,omitzero"`
	CallbackHeader        map[string][]string `json:"callbackHeader,omitempty"`
	FailureCallbackHeader map[string][]string `json:"failureCallbackHeader,omitempty"`
	QueueName             string              `json:"queueName,omitzero"`
	flowV2                `json:",inline"`
	CallerIP              string            `json:"callerIP"`
	IsPaused              bool              `json:"isPaused"`
	Label                 string            `json:"label,omitzero"`
	Labels                []string          `json:"labels,omitempty"`
	LastScheduleTime      int64             `json:"lastScheduleTime,omitzero"`
	NextScheduleTime      int64             `json:"nextScheduleTime,omitzero"`
	LastScheduleStates    map[string]string `json:"lastScheduleStates,omitempty"`
	Error                 string            `json:"error,omitzero"`
}

const (
	cronHeader       = "Upstash-Cron"
	scheduleIDHeader = "Upstash-Schedule-Id"
)

// scheduleOf reads a schedule from a publish with Upstash-Cron. That its destination exists is checked now; its members are
// looked up at each tick.
func (e *edge) scheduleOf(c *call, p publishing) (delivery.Schedule, error) {
	cron := p.get(cronHeader)
	if cron == "" {
		return delivery.Schedule{}, &request.Error{Text: cronHeader + " is required"}
	}
	id := p.get(scheduleIDHeader)
	switch {
	case id == "":
		id = delivery.NewScheduleID()
	case !request.IsName(id):
		return delivery.Schedule{}, &request.Error{Text: scheduleIDHeader + " must be made of letters, digits, dash, underscore and dot"}
	}
	m, err := e.message(p)
	if err != nil {
		return delivery.Schedule{}, err
	}
	m.NotBefore = time.Time{} // each tick has a time of its own
	aimed := m
	if err := e.aim(c, p, &aimed); err != nil {
		return delivery.Schedule{}, err
	}
	return delivery.Schedule{ID: id, Cron: cron, Destination: p.destination, Message: m}, nil
}

// scheduleByPublish answers a publish of version 1 with Upstash-Cron. A duplicate is answered 202 with the id of the original.
// It needs the access of createSchedule, since it may replace any schedule.
func (e *edge) scheduleByPublish(c *call, p publishing) (answer, error) {
	if err := c.requires("read-write"); err != nil {
		return answer{}, err
	}
	s, err := e.scheduleOf(c, p)
	if err != nil {
		return answer{}, err
	}
	id, err := dedupID(p, request.ContentHashV1)
	if err != nil {
		return answer{}, err
	}
	original, err := e.cfg.Delivery.PutSchedule(c.ctx, s, id)
	if err != nil {
		return answer{}, err
	}
	var ans answer
	switch {
	case original.Duplicate && original.Schedule == "": // a message had the id
		ans, err = encode(http.StatusAccepted, publishedV1{MessageID: delivery.MessageID(original.IDs[0]), Deduplicated: true})
	case original.Duplicate:
		ans, err = encode(http.StatusAccepted, scheduledV1{ScheduleID: original.Schedule, Deduplicated: true})
	default:
		ans, err = encode(http.StatusCreated, scheduledV1{ScheduleID: s.ID})
	}
	if err == nil && id != "" {
		ans = ans.with(dedupHeader, id)
	}
	return ans, err
}

func (e *edge) shownScheduleV1(c *call, s *delivery.Schedule) (scheduleV1, error) {
	m := &s.Message
	header, body := redacted(&delivery.Stored{Message: *m})
	out := scheduleV1{
		ScheduleID: s.ID,
		Cron:       s.Cron,
		CreatedAt:  millisOf(s.CreatedAt),
		Content:    scheduleContentV1{Header: validHeader(header)},
		Settings: scheduleSettingsV1{settingsV1: settingsV1{
			Deadline: int64(m.Timeout / time.Second),
			Delay:    int64(m.Delay / time.Second),
			Retries:  m.Retries,
		}},
	}
	out.Content.Body, out.Content.BodyBase64 = shownBody(body)
	if m.Callback != nil {
		out.Settings.Callback = m.Callback.URL
	}
	out.Destination = destinationV1{Type: "url", URL: s.Destination.String()}
	if s.Destination.Kind == request.Topic {
		out.Destination = destinationV1{Type: "topic"}
		t, err := e.cfg.Delivery.Topic(c.ctx, s.Destination.Name)
		if errors.Is(err, delivery.ErrNotFound) {
			return out, nil // it was deleted; each tick says so
		}
		if err != nil {
			return out, err
		}
		topic := shownTopicV1(t)
		out.Destination.Topic = &topic
	}
	return out, nil
}

func (e *edge) listSchedulesV1(c *call) (answer, error) {
	list, err := e.cfg.Delivery.Schedules(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := make([]scheduleV1, len(list))
	for i, s := range list {
		if out[i], err = e.shownScheduleV1(c, s); err != nil {
			return answer{}, err
		}
	}
	return encode(http.StatusOK, out)
}

func (e *edge) getScheduleV1(c *call) (answer, error) {
	s, err := e.cfg.Delivery.Schedule(c.ctx, c.path["scheduleId"])
	if err != nil {
		return answer{}, missing(err, "schedule", c.path["scheduleId"])
	}
	out, err := e.shownScheduleV1(c, s)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, out)
}

func (e *edge) deleteScheduleV1(c *call) (answer, error) {
	if err := e.cfg.Delivery.DeleteSchedule(c.ctx, c.path["scheduleId"]); err != nil {
		return answer{}, missing(err, "schedule", c.path["scheduleId"])
	}
	return encode(http.StatusAccepted, acceptedV1{Status: "accepted"})
}

func (e *edge) createSchedule(c *call) (answer, error) {
	p, err := publishCall(c)
	if err != nil {
		return answer{}, err
	}
	s, err := e.scheduleOf(c, p)
	if err != nil {
		return answer{}, err
	}
	id, err := dedupID(p, request.ContentHashV2)
	if err != nil {
		return answer{}, err
	}
	original, err := e.cfg.Delivery.PutSchedule(c.ctx, s, id)
	if err != nil {
		return answer{}, err
	}
	if original.Duplicate && original.Schedule != "" {
		return encode(http.StatusAccepted, scheduledV2{original.Schedule})
	}
	if original.Duplicate {
		return answer{}, &request.Error{Text: "a message has that " + dedupHeader}
	}
	return encode(http.StatusOK, scheduledV2{s.ID})
}

func (e *edge) shownSchedule(c *call, s *delivery.Schedule) (scheduleV2, error) {
	m := &s.Message
	header, body := redacted(&delivery.Stored{Message: *m})
	out := scheduleV2{
		ScheduleID:           s.ID,
		Cron:                 s.Cron,
		Destination:          s.Destination.String(),
		CreatedAt:            millisOf(s.CreatedAt),
		Method:               m.Method,
		Header:               validHeader(header),
		Retries:              m.Retries,
		RetryDelayExpression: m.RetryDelay,
		Delay:                int64(m.Delay / time.Second),
		Timeout:              int64(m.Timeout / time.Second),
		QueueName:            m.Queue,
		flowV2:               shownFlow(m),
		CallerIP:             m.CallerIP,
		IsPaused:             s.Paused,
		Label:                m.Label,
		LastScheduleTime:     millisOf(s.LastAt),
		NextScheduleTime:     millisOf(s.NextAt),
		Error:                s.Error,
	}
	out.Body, out.BodyBase64 = shownBody(body)
	if len(body) == 0 {
		out.Body = nil
	}
	if m.Label != "" {
		out.Labels = strings.Split(m.Label, ",")
	}
	if m.Callback != nil {
		out.Callback, out.CallbackHeader = m.Callback.URL, givenHeader(m, m.Callback)
	}
	if m.FailureCallback != nil {
		out.FailureCallback, out.FailureCallbackHeader = m.FailureCallback.URL, givenHeader(m, m.FailureCallback)
	}
	states, err := e.cfg.Delivery.Scheduled(c.ctx, s)
	if err != nil {
		return out, err
	}
	for id, state := range states {
		if out.LastScheduleStates == nil {
			out.LastScheduleStates = map[string]string{}
		}
		shown := "IN_PROGRESS"
		if state == delivery.Delivered {
			shown = "SUCCESS"
		}
		if slices.Contains([]delivery.State{delivery.Failed, delivery.Cancelled}, state) {
			shown = "FAIL"
		}
		out.LastScheduleStates[delivery.MessageID(id)] = shown
	}
	return out, nil
}

func (e *edge) listSchedules(c *call) (answer, error) {
	list, err := e.cfg.Delivery.Schedules(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := make([]scheduleV2, len(list))
	for i, s := range list {
		if out[i], err = e.shownSchedule(c, s); err != nil {
			return answer{}, err
		}
	}
	return encode(http.StatusOK, out)
}

func (e *edge) getSchedule(c *call) (answer, error) {
	s, err := e.cfg.Delivery.Schedule(c.ctx, c.path["schedule"])
	if err != nil {
		return answer{}, missing(err, "schedule", c.path["schedule"])
	}
	out, err := e.shownSchedule(c, s)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, out)
}

func (e *edge) deleteSchedule(c *call) (answer, error) {
	if err := e.cfg.Delivery.DeleteSchedule(c.ctx, c.path["schedule"]); err != nil {
		return answer{}, missing(err, "schedule", c.path["schedule"])
	}
	return encode(http.StatusOK, empty{})
}

func (e *edge) pauseSchedule(c *call) (answer, error)  { return e.setPaused(c, true) }
func (e *edge) resumeSchedule(c *call) (answer, error) { return e.setPaused(c, false) }

func (e *edge) setPaused(c *call, paused bool) (answer, error) {
	if err := e.cfg.Delivery.PauseSchedule(c.ctx, c.path["schedule"], paused); err != nil {
		return answer{}, missing(err, "schedule", c.path["schedule"])
	}
	return encode(http.StatusOK, empty{})
}
