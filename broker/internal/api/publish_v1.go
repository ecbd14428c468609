package api

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

// pageV1 is the most entries of a page of version 1.
const pageV1 = 100

type publishedV1 struct {
	MessageID    string `json:"messageId,omitzero"`
	ScheduleID   string `json:"scheduleId,omitzero"` // instead, when that is the original
	Deduplicated bool   `json:"deduplicated,omitzero"`
}

type messageV1 struct {
	MessageID       string              `json:"messageId"`
	TopicID         string              `json:"topicId,omitzero"`
	TopicName       string              `json:"topicName,omitzero"`
	EndpointID      string              `json:"endpointId,omitzero"`
	DestinationType string              `json:"destinationType"`
	URL             string              `json:"url"`
	Method          string              `json:"method"`
	Header          map[string][]string `json:"header"`
	Body            *string             `json:"body,omitzero"`
	BodyBase64      *string             `json:"bodyBase64,omitzero"`
	CreatedAt       int64               `json:"createdAt"`
	ScheduleID      string              `json:"scheduleId,omitzero"`
	Settings        settingsV1          `json:"settings"`
}

type settingsV1 struct {
	Deadline  int64 `json:"deadline"`
	Delay     int64 `json:"delay"`
	NotBefore int64 `json:"notBefore"`
	Retries   int   `json:"retries"`
}

type messagesV1 struct {
	Cursor   string      `json:"cursor,omitzero"`
	Messages []messageV1 `json:"messages"`
}

type acceptedV1 struct {
	Status string `json:"status"`
}

type taskV1 struct {
	TaskID        string `json:"taskId"`
	MessageID     string `json:"messageId"`
	URL           string `json:"url"`
	State         string `json:"state"`
	Retried       int    `json:"retried"`
	MaxRetry      int    `json:"maxRetry"`
	NextProcessAt int64  `json:"nextProcessAt"`
	CompletedAt   int64  `json:"completedAt"`
	LastErrorAt   int64  `json:"lastErrorAt"`
	Error         string `json:"error"`
}

type tasksV1 struct {
	Cursor string   `json:"cursor,omitzero"`
	Tasks  []taskV1 `json:"tasks"`
}

type eventV1 struct {
	ID               string `json:"id"`
	Time             int64  `json:"time"`
	MessageID        string `json:"messageId"`
	TaskID           string `json:"taskId"`
	State            string `json:"state"`
	NextDeliveryTime int64  `json:"nextDeliveryTime"`
	Error            string `json:"error,omitzero"`
	URL              string `json:"url"`
}

type eventsV1 struct {
	Cursor string    `json:"cursor,omitzero"`
	Events []eventV1 `json:"events"`
}

// millisOf is a time on the wire of the publish half: unix milliseconds, 0 for none.
func millisOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// publishV1 answers 201 with one object, also for a topic: there it is one message with a task per endpoint. A duplicate is
// answered 202 (publish contract, section 2).
func (e *edge) publishV1(c *call) (answer, error) {
	p, err := publishCall(c)
	if err != nil {
		return answer{}, err
	}
	if p.get(cronHeader) != "" {
		return e.scheduleByPublish(c, p)
	}
	m, err := e.message(p)
	if err != nil {
		return answer{}, err
	}
	id, err := dedupID(p, request.ContentHashV1)
	if err != nil {
		return answer{}, err
	}
	if err := e.aim(c, p, &m); err != nil {
		return answer{}, err
	}
	accepted, err := e.cfg.Delivery.Publish(c.ctx, delivery.Publish{DedupID: id, Messages: []delivery.Message{m}})
	if err != nil {
		return answer{}, err
	}
	status := http.StatusCreated
	if accepted.Duplicate {
		status = http.StatusAccepted
	}
	out := publishedV1{ScheduleID: accepted.Schedule, Deduplicated: accepted.Duplicate}
	if len(accepted.IDs) > 0 {
		out.MessageID = delivery.MessageID(accepted.IDs[0])
	}
	ans, err := encode(status, out)
	if err == nil && id != "" {
		ans = ans.with(dedupHeader, id)
	}
	return ans, err
}

func shownV1(m *delivery.Stored) messageV1 {
	header, body := redacted(m)
	out := messageV1{
		MessageID:       delivery.MessageID(m.ID),
		TopicID:         m.TopicID,
		TopicName:       m.Topic,
		EndpointID:      m.Targets[0].EndpointID,
		DestinationType: "url",
		URL:             m.Targets[0].URL,
		Method:          m.Method,
		Header:          validHeader(header),
		CreatedAt:       millisOf(m.CreatedAt),
		ScheduleID:      m.ScheduleID,
		Settings: settingsV1{
			Deadline:  int64(m.Timeout / time.Second),
			Delay:     int64(m.FirstAt.Sub(m.CreatedAt) / time.Second),
			NotBefore: millisOf(m.FirstAt),
			Retries:   m.Retries,
		},
	}
	out.Body, out.BodyBase64 = shownBody(body)
	if m.Topic != "" {
		out.DestinationType = "topic"
	}
	return out
}

// shownBody is a body as text, or in base64 when it is none.
func shownBody(body []byte) (text, base64Text *string) {
	if utf8.Valid(body) {
		s := string(body)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(body)
	return nil, &s
}

// validHeader makes header values text, which they need not be when they are delivered.
func validHeader(h map[string][]string) map[string][]string {
	shown := make(map[string][]string, len(h))
	for name, values := range h {
		list := make([]string, len(values))
		for i, v := range values {
			list[i] = strings.ToValidUTF8(v, "\uFFFD")
		}
		shown[name] = list
	}
	return shown
}

// listMessagesV1 pages by message id: ids are in the order of acceptance.
func (e *edge) listMessagesV1(c *call) (answer, error) {
	cursor, err := c.cursor()
	if err != nil {
		return answer{}, err
	}
	var before *uuid.UUID
	if cursor != "" {
		id, ok := delivery.ParseMessageID(cursor)
		if !ok {
			return answer{}, badQuery("cursor", "is none of this list")
		}
		before = &id
	}
	list, err := e.cfg.Delivery.Messages(c.ctx, before, pageV1+1)
	if err != nil {
		return answer{}, err
	}
	out := messagesV1{}
	if len(list) > pageV1 {
		list = list[:pageV1]
		out.Cursor = delivery.MessageID(list[pageV1-1].ID)
	}
	for _, m := range list {
		out.Messages = append(out.Messages, shownV1(m))
	}
	return encode(http.StatusOK, out)
}

// cursor is the parameter of that name.
func (c *call) cursor() (string, error) {
	q, err := c.query()
	if err != nil {
		return "", err
	}
	return q.Get("cursor"), nil
}

func (e *edge) getMessageV1(c *call) (answer, error) {
	m, err := e.stored(c)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, shownV1(m))
}

// stored reads the message that the path names.
func (e *edge) stored(c *call) (*delivery.Stored, error) {
	name := c.path["messageId"]
	id, ok := delivery.ParseMessageID(name)
	if !ok {
		return nil, &missingError{"message", name}
	}
	m, err := e.cfg.Delivery.Message(c.ctx, id)
	return m, missing(err, "message", name)
}

// cancelMessageV1 answers 202: an attempt in flight may go on for a while.
func (e *edge) cancelMessageV1(c *call) (answer, error) {
	if err := e.cancelNamed(c); err != nil {
		return answer{}, err
	}
	return encode(http.StatusAccepted, acceptedV1{Status: "accepted"})
}

// cancelNamed cancels the message that the path names.
func (e *edge) cancelNamed(c *call) error {
	name := c.path["messageId"]
	id, ok := delivery.ParseMessageID(name)
	if !ok {
		return &missingError{"message", name}
	}
	n, err := e.cfg.Delivery.CancelMatching(c.ctx, delivery.Filter{Messages: []uuid.UUID{id}}, 1)
	if err == nil && n == 0 {
		return &missingError{"message", name}
	}
	return err
}

func shownTaskV1(t delivery.Task) taskV1 {
	return taskV1{
		TaskID:        delivery.TaskID(t.Message.ID, t.Target),
		MessageID:     delivery.MessageID(t.Message.ID),
		URL:           t.URL(),
		State:         t.State.String(),
		Retried:       t.Retried,
		MaxRetry:      t.Message.Retries,
		NextProcessAt: millisOf(t.NextAt),
		CompletedAt:   millisOf(t.CompletedAt),
		LastErrorAt:   millisOf(t.LastErrorAt),
		Error:         t.Error,
	}
}

func (e *edge) listTasksV1(c *call) (answer, error) {
	name := c.path["messageId"]
	id, ok := delivery.ParseMessageID(name)
	if !ok {
		return answer{}, &missingError{"message", name}
	}
	tasks, err := e.cfg.Delivery.Tasks(c.ctx, id)
	if err != nil {
		return answer{}, missing(err, "message", name)
	}
	out := tasksV1{}
	for _, t := range tasks {
		out.Tasks = append(out.Tasks, shownTaskV1(t))
	}
	return encode(http.StatusOK, out)
}

func (e *edge) getTaskV1(c *call) (answer, error) {
	name := c.path["taskId"]
	id, target, ok := delivery.ParseTaskID(name)
	if !ok {
		return answer{}, &missingError{"task", name}
	}
	tasks, err := e.cfg.Delivery.Tasks(c.ctx, id)
	switch {
	case err != nil:
		return answer{}, missing(err, "task", name)
	case target >= len(tasks):
		return answer{}, &missingError{"task", name}
	}
	return encode(http.StatusOK, shownTaskV1(tasks[target]))
}

func (e *edge) listEventsV1(c *call) (answer, error) { return e.eventsV1(c, delivery.Filter{}) }

func (e *edge) listMessageLogsV1(c *call) (answer, error) {
	id, ok := delivery.ParseMessageID(c.path["messageId"])
	if !ok {
		return encode(http.StatusOK, eventsV1{})
	}
	return e.eventsV1(c, delivery.Filter{Messages: []uuid.UUID{id}})
}

func (e *edge) eventsV1(c *call, f delivery.Filter) (answer, error) {
	cursor, err := c.cursor()
	if err != nil {
		return answer{}, err
	}
	after, err := parsePosition(cursor)
	if err != nil {
		return answer{}, err
	}
	list, err := e.cfg.Delivery.Log(c.ctx, f, delivery.Page{Limit: pageV1 + 1, After: after})
	if err != nil {
		return answer{}, err
	}
	out := eventsV1{}
	if len(list) > pageV1 {
		list = list[:pageV1]
		out.Cursor = positionText(list[pageV1-1].Position)
	}
	for _, n := range list {
		out.Events = append(out.Events, eventV1{
			ID:               strconv.FormatInt(n.Position.ID, 10),
			Time:             millisOf(n.Time),
			MessageID:        delivery.MessageID(n.Message.ID),
			TaskID:           delivery.TaskID(n.Message.ID, n.Target),
			State:            n.State.String(),
			NextDeliveryTime: millisOf(n.NextAt),
			Error:            n.Error,
			URL:              n.URL(),
		})
	}
	return encode(http.StatusOK, out)
}

// positionText spells a place in the log as a cursor: microseconds and number.
func positionText(p delivery.Position) string {
	return strconv.FormatInt(p.Time.UnixMicro(), 10) + "-" + strconv.FormatInt(p.ID, 10)
}

// parsePosition reads a cursor; nil for none.
func parsePosition(cursor string) (*delivery.Position, error) {
	if cursor == "" {
		return nil, nil
	}
	at, id, _ := strings.Cut(cursor, "-")
	micros, err1 := strconv.ParseInt(at, 10, 64)
	number, err2 := strconv.ParseInt(id, 10, 64)
	if err1 != nil || err2 != nil {
		return nil, badQuery("cursor", "is none of this list")
	}
	return &delivery.Position{Time: time.UnixMicro(micros), ID: number}, nil
}
