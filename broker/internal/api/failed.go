package api

import (
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/delivery/request"
)

const (
	// failedPage is the most dead letters of one answer.
	failedPage = 100
	// failedStep is how many dead letters are looked for at once when all of a selection are deleted.
	failedStep = 500
)

type failedMessage struct {
	DLQID              string              `json:"dlqId"`
	ResponseStatus     int                 `json:"responseStatus"`
	ResponseHeader     map[string][]string `json:"responseHeader,omitempty"`
	ResponseBody       *string             `json:"responseBody,omitzero"`
	ResponseBodyBase64 *string             `json:"responseBodyBase64,omitzero"`
	messageV2          `json:",inline"`
}

type failedMessages struct {
	Cursor   string          `json:"cursor,omitzero"`
	Messages []failedMessage `json:"messages"`
}

type deletedFailed struct {
	Cursor  string `json:"cursor,omitzero"`
	Deleted int    `json:"deleted"`
}

type retriedFailed struct {
	Cursor    string          `json:"cursor,omitzero"`
	Responses []publishResult `json:"responses"`
}

// failedSelector is the body of the bulk routes.
type failedSelector struct {
	DLQIDs         []string `json:"dlqIds"`
	ResponseStatus *int64   `json:"responseStatus"`
	Cursor         *string  `json:"cursor"`
	cancelSelector `json:",inline"`
}

func shownFailed(d *delivery.DeadLetter) failedMessage {
	out := failedMessage{
		DLQID:          delivery.DeadLetterID(d.ID),
		ResponseStatus: d.Status,
		messageV2:      shownMessage(d.Message, d.Target),
	}
	if d.Status != 0 {
		out.ResponseHeader = validHeader(d.Header)
		out.ResponseBody, out.ResponseBodyBase64 = shownBody(d.Body)
	}
	return out
}

// failedFilter reads which dead letters are meant.
func failedFilter(q url.Values) (f delivery.DeadFilter, err error) {
	f.Filter, err = filter(q, "dlqIds", "dlqIds[]", "responseStatus", "messageId", "count", "cursor", "order", "earliestFirst")
	if err != nil {
		return f, err
	}
	for _, name := range []string{"dlqIds", "dlqIds[]"} {
		names := commas(q[name])
		if q.Has(name) && len(names) == 0 {
			return f, badQuery(name, "must not be empty")
		}
		for _, text := range names {
			id, _ := delivery.ParseDeadLetterID(text) // what is none stands for one that does not exist
			f.IDs = append(f.IDs, id)
		}
	}
	if q.Has("messageId") {
		f.Messages = append(f.Messages, messageIDs(q["messageId"])...)
	}
	for _, text := range commas(q["responseStatus"]) {
		status, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return f, badQuery("responseStatus", "must be an integer")
		}
		f.Statuses = append(f.Statuses, int(status))
	}
	if q.Has("responseStatus") && len(f.Statuses) == 0 {
		return f, badQuery("responseStatus", "must not be empty")
	}
	return f, nil
}

// failedAfter reads where the page before ended; nil for the beginning.
func failedAfter(q url.Values) (*uuid.UUID, error) {
	text := q.Get("cursor")
	if text == "" {
		return nil, nil
	}
	id, ok := delivery.ParseDeadLetterID(text)
	if !ok {
		return nil, badQuery("cursor", "is none of this list")
	}
	return &id, nil
}

// failedCount is the parameter count; otherwise when it is absent.
func failedCount(q url.Values, otherwise int) (int, error) {
	text := q.Get("count")
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > failedPage {
		return 0, badQuery("count", "must be an integer from 1 to "+strconv.Itoa(failedPage))
	}
	return n, nil
}

func (e *edge) listFailed(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	f, err := failedFilter(q)
	if err != nil {
		return answer{}, err
	}
	page := delivery.DeadPage{OldestFirst: q.Get("order") == "earliestFirst"}
	if text := q.Get("earliestFirst"); text != "" {
		if page.OldestFirst, err = request.ParseBool("earliestFirst", text); err != nil {
			return answer{}, err
		}
	}
	wanted, err := failedCount(q, failedPage)
	if err != nil {
		return answer{}, err
	}
	if page.After, err = failedAfter(q); err != nil {
		return answer{}, err
	}
	page.Limit = wanted + 1
	list, err := e.cfg.Delivery.DeadLetters(c.ctx, f, page)
	if err != nil {
		return answer{}, err
	}
	out := failedMessages{}
	if len(list) > wanted {
		list = list[:wanted]
		out.Cursor = delivery.DeadLetterID(list[wanted-1].ID)
	}
	for _, d := range list {
		out.Messages = append(out.Messages, shownFailed(d))
	}
	return encode(http.StatusOK, out)
}

// failedID reads the dead letter that the path names.
func failedID(c *call) (uuid.UUID, error) {
	name := c.path["dlqId"]
	id, ok := delivery.ParseDeadLetterID(name)
	if !ok {
		return id, &missingError{"dead letter", name}
	}
	return id, nil
}

func (e *edge) getFailed(c *call) (answer, error) {
	id, err := failedID(c)
	if err != nil {
		return answer{}, err
	}
	d, err := e.cfg.Delivery.DeadLetter(c.ctx, id)
	if err != nil {
		return answer{}, missing(err, "dead letter", c.path["dlqId"])
	}
	return encode(http.StatusOK, shownFailed(d))
}

func (e *edge) deleteFailed(c *call) (answer, error) {
	id, err := failedID(c)
	if err != nil {
		return answer{}, err
	}
	n, err := e.cfg.Delivery.DeleteDeadLetters(c.ctx, []uuid.UUID{id})
	if err == nil && n == 0 {
		err = &missingError{"dead letter", c.path["dlqId"]}
	}
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, deletedFailed{Deleted: n})
}

// selected finds the dead letters that a bulk route is about, the oldest first, and the cursor behind them when there are more.
func (e *edge) selected(c *call, q url.Values, otherwise int) (f delivery.DeadFilter, ids []uuid.UUID, cursor string, err error) {
	if len(c.body) > 0 {
		var s failedSelector
		if err := decode(c.body, &s); err != nil {
			return f, nil, "", err
		}
		s.addTo(q)
		if s.DLQIDs != nil {
			q["dlqIds"] = append(q["dlqIds"], s.DLQIDs...)
		}
		if s.ResponseStatus != nil {
			q.Add("responseStatus", strconv.FormatInt(*s.ResponseStatus, 10))
		}
		if s.Cursor != nil {
			q.Set("cursor", *s.Cursor)
		}
	}
	f, err = failedFilter(q)
	if err != nil {
		return f, nil, "", err
	}
	if len(f.IDs) > 0 {
		otherwise = len(f.IDs)
	}
	wanted, err := failedCount(q, otherwise)
	if err != nil {
		return f, nil, "", err
	}
	after, err := failedAfter(q)
	if err != nil {
		return f, nil, "", err
	}
	for len(ids) <= wanted {
		page, err := e.cfg.Delivery.DeadLetterIDs(c.ctx, f, delivery.DeadPage{Limit: min(failedStep, wanted-len(ids)+1), OldestFirst: true, After: after})
		if err != nil {
			return f, nil, "", err
		}
		if ids = append(ids, page...); len(page) == 0 {
			break
		}
		after = &page[len(page)-1]
	}
	if len(ids) > wanted {
		ids = ids[:wanted]
		cursor = delivery.DeadLetterID(ids[wanted-1])
	}
	return f, ids, cursor, nil
}

func (e *edge) deleteFailedMany(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	_, ids, cursor, err := e.selected(c, q, math.MaxInt32)
	if err != nil {
		return answer{}, err
	}
	n, err := e.cfg.Delivery.DeleteDeadLetters(c.ctx, ids)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, deletedFailed{Cursor: cursor, Deleted: n})
}

// overriding reads what the headers of a retry change of a message, and the query without those that came in it.
func (e *edge) overriding(c *call) (override func(*delivery.Message), q url.Values, err error) {
	given, _, rest, err := request.SplitQuery(c.url.RawQuery)
	if err != nil {
		return nil, nil, err
	}
	if q, err = url.ParseQuery(rest); err != nil {
		return nil, nil, badQuery("string", "cannot be read: "+err.Error())
	}
	p := publishing{header: request.Merge(c.head, given), callerIP: callerIP(c)}
	p.header.Del("Content-Type") // it is that of this request
	o, err := e.message(p)
	if err != nil {
		return nil, nil, err
	}
	has := func(name string) bool { return p.list(name) != "" }
	return func(m *delivery.Message) {
		maps.Copy(m.Header, o.Header)
		m.Delay, m.NotBefore = o.Delay, o.NotBefore
		if has("Upstash-Method") {
			m.Method = o.Method
		}
		if has("Upstash-Label") {
			m.Label = o.Label
		}
		if has("Upstash-Retries") {
			m.Retries = o.Retries
		}
		if has("Upstash-Retry-Delay") {
			m.RetryDelay = o.RetryDelay
		}
		if has("Upstash-Timeout") {
			m.Timeout = o.Timeout
		}
		if has("Upstash-Callback") {
			m.Callback = o.Callback
		}
		if has("Upstash-Failure-Callback") {
			m.FailureCallback = o.FailureCallback
		}
		if has("Upstash-Queue-Name") {
			m.Queue = o.Queue
		}
		if has("Upstash-Flow-Control-Key") {
			m.FlowKey, m.Flow = o.FlowKey, o.Flow
		}
		if has("Upstash-Redact-Fields") { // what is hidden stays hidden
			m.Redact = strings.TrimPrefix(m.Redact+","+o.Redact, ",")
		}
	}, q, nil
}

func (e *edge) retryFailed(c *call) (answer, error) {
	id, err := failedID(c)
	if err != nil {
		return answer{}, err
	}
	override, _, err := e.overriding(c)
	if err != nil {
		return answer{}, err
	}
	done, err := e.cfg.Delivery.RetryDeadLetters(c.ctx, []uuid.UUID{id}, override)
	if err == nil && len(done) == 0 {
		err = &missingError{"dead letter", c.path["dlqId"]}
	}
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusCreated, publishResult{MessageID: delivery.MessageID(done[0].Message), URL: done[0].URL})
}

// retryFailedMany answers with what was retried, in the order of dlqIds if those were given. When the database goes away in the
// middle that is less than what was asked for: the rest is still there, behind the cursor.
func (e *edge) retryFailedMany(c *call) (answer, error) {
	override, q, err := e.overriding(c)
	if err != nil {
		return answer{}, err
	}
	f, ids, cursor, err := e.selected(c, q, failedPage)
	if err != nil {
		return answer{}, err
	}
	done, err := e.cfg.Delivery.RetryDeadLetters(c.ctx, ids, override)
	byID := make(map[uuid.UUID]delivery.Resent, len(done))
	for _, r := range done {
		byID[r.DeadLetter] = r
	}
	if err != nil {
		if len(done) == 0 {
			return answer{}, err
		}
		c.ex.note(err)
		for _, id := range ids { // they are retried in this order
			if _, ok := byID[id]; ok {
				cursor = delivery.DeadLetterID(id)
			}
		}
	}
	out := retriedFailed{Cursor: cursor}
	if len(f.IDs) > 0 {
		ids = f.IDs
	}
	for _, id := range ids {
		if r, ok := byID[id]; ok {
			delete(byID, id) // an id that was given twice is one
			out.Responses = append(out.Responses, publishResult{MessageID: delivery.MessageID(r.Message), URL: r.URL})
		}
	}
	return encode(http.StatusCreated, out)
}

type signingKeys struct {
	Current string `json:"current"`
	Next    string `json:"next"`
}

func (e *edge) getSigningKeys(c *call) (answer, error) {
	keys, err := e.cfg.Delivery.SigningKeys(c.ctx)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, signingKeys(keys))
}

func (e *edge) rotateSigningKeys(c *call) (answer, error) {
	keys, err := e.cfg.Delivery.RotateKeys(c.ctx)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, signingKeys(keys))
}
