package posthorn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Schedule is a message that is published whenever a cron expression ticks.
type Schedule struct {
	ID          string // empty means a new one
	Cron        string // minute, hour, day of month, month, day of week; with CRON_TZ=Area/City before them in that time zone, else UTC
	Publication        // what is published; NotBefore has no meaning here, Delay counts from each tick
}

// ScheduleInfo is a schedule as the broker has it.
type ScheduleInfo struct {
	ID              string
	Cron            string
	Destination     string
	Method          string
	Header          http.Header
	Body            []byte
	Retries         int
	RetryDelay      string // empty means the default backoff
	Delay, Timeout  time.Duration
	Callback        string
	FailureCallback string
	Labels          []string
	Queue           string // the delivery queue of its messages; empty means none
	Flow            *Flow  // nil means no flow control
	Paused          bool
	CreatedAt       time.Time
	LastAt          time.Time         // of the last tick that was published for; zero before the first
	NextAt          time.Time         // zero while it is paused
	LastStates      map[string]string // of the messages of the last tick by id: IN_PROGRESS, SUCCESS or FAIL
	Error           string            // why the last tick published nothing; empty when it did
}

type wireSchedule struct {
	ScheduleID      string            `json:"scheduleId"`
	Cron            string            `json:"cron"`
	Destination     string            `json:"destination"`
	CreatedAt       int64             `json:"createdAt"`
	Method          string            `json:"method"`
	Header          http.Header       `json:"header"`
	Body            *string           `json:"body"`
	BodyBase64      []byte            `json:"bodyBase64"`
	Retries         int               `json:"retries"`
	RetryDelay      string            `json:"retryDelayExpression"`
	Delay           int64             `json:"delay"`
	Timeout         int64             `json:"timeout"`
	Callback        string            `json:"callback"`
	FailureCallback string            `json:"failureCallback"`
	IsPaused        bool              `json:"isPaused"`
	Labels          []string          `json:"labels"`
	LastTime        int64             `json:"lastScheduleTime"`
	NextTime        int64             `json:"nextScheduleTime"`
	States          map[string]string `json:"lastScheduleStates"`
	Error           string            `json:"error"`
	QueueName       string            `json:"queueName"`
	wireFlow
}

func (w wireSchedule) info() ScheduleInfo {
	s := ScheduleInfo{
		ID: w.ScheduleID, Cron: w.Cron, Destination: w.Destination, Method: w.Method, Header: w.Header, Body: w.BodyBase64, Retries: w.Retries,
		RetryDelay: w.RetryDelay, Delay: time.Duration(w.Delay) * time.Second, Timeout: time.Duration(w.Timeout) * time.Second, Callback: w.Callback,
		FailureCallback: w.FailureCallback, Labels: w.Labels, Queue: w.QueueName, Flow: w.flow(), Paused: w.IsPaused, CreatedAt: unixMilli(w.CreatedAt), LastAt: unixMilli(w.LastTime),
		NextAt: unixMilli(w.NextTime), LastStates: w.States, Error: w.Error,
	}
	if w.Body != nil {
		s.Body = []byte(*w.Body)
	}
	return s
}

const schedulesPath = "/v2/schedules"

// CreateSchedule creates a schedule, or replaces all of the one with its id, and returns the id. The error is an *APIError
// with status 400 for an expression that breaks a rule, and matches ErrNotFound for a topic that does not exist. With an id
// or a deduplication id it is repeated after an unknown outcome.
func (c *Client) CreateSchedule(ctx context.Context, s Schedule) (id string, err error) {
	header, err := s.headers()
	if err == nil && !s.NotBefore.IsZero() {
		err = errors.New("a schedule has no NotBefore")
	}
	if err != nil {
		return "", fmt.Errorf("posthorn: create a schedule: %w", err)
	}
	header.Set("Upstash-Cron", s.Cron)
	if s.ID != "" {
		header.Set("Upstash-Schedule-Id", s.ID)
	}
	header["Content-Type"] = nil
	if s.ContentType != "" {
		header.Set("Content-Type", s.ContentType)
	}
	var answer struct {
		ScheduleID string `json:"scheduleId"`
	}
	err = c.do(ctx, call{
		op: "createSchedule", method: http.MethodPost, path: schedulesPath + "/" + destinationPath(s.Destination), header: header,
		body: append([]byte{}, s.Body...), repeatable: s.ID != "" || s.DeduplicationID != "" || s.ContentBased,
	}, &answer)
	return answer.ScheduleID, err
}

// ListSchedules lists all schedules, the oldest first.
func (c *Client) ListSchedules(ctx context.Context) ([]ScheduleInfo, error) {
	var wire []wireSchedule
	if err := c.do(ctx, call{op: "listSchedules", method: http.MethodGet, path: schedulesPath, repeatable: true}, &wire); err != nil {
		return nil, err
	}
	list := make([]ScheduleInfo, len(wire))
	for i, w := range wire {
		list[i] = w.info()
	}
	return list, nil
}

// GetSchedule reads a schedule. The error matches ErrNotFound when there is none of that id.
func (c *Client) GetSchedule(ctx context.Context, id string) (ScheduleInfo, error) {
	var wire wireSchedule
	err := c.do(ctx, call{op: "getSchedule", method: http.MethodGet, path: schedulesPath + "/" + segment(id), repeatable: true}, &wire)
	return wire.info(), err
}

// DeleteSchedule deletes a schedule. Messages that it published stay. The error matches ErrNotFound when there is none of
// that id. It is not repeated after an unknown outcome.
func (c *Client) DeleteSchedule(ctx context.Context, id string) error {
	return c.do(ctx, call{op: "deleteSchedule", method: http.MethodDelete, path: schedulesPath + "/" + segment(id)}, &struct{}{})
}

// PauseSchedule stops a schedule until it is resumed. Pausing again changes nothing. The error matches ErrNotFound when there
// is none of that id.
func (c *Client) PauseSchedule(ctx context.Context, id string) error {
	return c.do(ctx, call{op: "pauseSchedule", method: http.MethodPatch, path: schedulesPath + "/" + segment(id) + "/pause", repeatable: true}, &struct{}{})
}

// ResumeSchedule lets a schedule go on with the next tick from now. Resuming again changes nothing. The error matches
// ErrNotFound when there is none of that id.
func (c *Client) ResumeSchedule(ctx context.Context, id string) error {
	return c.do(ctx, call{op: "resumeSchedule", method: http.MethodPatch, path: schedulesPath + "/" + segment(id) + "/resume", repeatable: true}, &struct{}{})
}
