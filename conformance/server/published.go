package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// fillers publishes n messages that wait for an hour, and returns their label and ids. They are cancelled when the spec has ended.
func fillers(ctx context.Context, t *suite.Target, n int) (label string, ids []string) {
	label = t.Unique("label")
	results := publishBatch(ctx, t, numbered(t.Hook(200).URL, n, map[string]any{"Upstash-Delay": "1h", "Upstash-Label": label})...)
	t.Cleanup(func(ctx context.Context) { cancelMany(ctx, t, "label="+label) })
	for _, r := range results {
		ids = append(ids, r.MessageID)
	}
	return label, ids
}

// cancelMany cancels what the selectors name, and returns how many messages that were. params are name=value.
func cancelMany(ctx context.Context, t *suite.Target, params ...string) int {
	return decodeCancelled(t.Call(ctx, "cancelPublishedMany", suite.Args{Query: query(params)}))
}

func decodeCancelled(outcome suite.Outcome) int {
	if outcome.Status != http.StatusOK {
		suite.Failf(2, "the cancellation was answered %d %s", outcome.Status, outcome.Body)
	}
	var answer struct {
		Cancelled *int `json:"cancelled"`
	}
	if err := json.Unmarshal(outcome.Body, &answer); err != nil || answer.Cancelled == nil {
		suite.Failf(2, "the cancellation was not answered with how many were cancelled: %s", outcome.Body)
	}
	return *answer.Cancelled
}

// getV1 reads from version 1.
func getV1(ctx context.Context, t *suite.Target, operation, target string, into any) {
	answer := t.Raw(ctx, suite.Request{Operation: operation, Target: target})
	if answer.Status != http.StatusOK {
		suite.Failf(1, "GET %s was answered %d %s", target, answer.Status, answer.Body)
	}
	decode(answer.Body, into)
}

// mostPages bounds how far specs page through what others have left behind.
const mostPages = 500

var _ = suite.Requirement("listMessagesV1.newest", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	first := publishAccepted(ctx, t, hook.URL, "x", "Upstash-Delay", "1h")
	fillers(ctx, t, 100)
	last := publishAccepted(ctx, t, hook.URL, "x", "Upstash-Delay", "1h")
	t.Cleanup(func(ctx context.Context) { cancelMany(ctx, t, "messageIds="+first+","+last) })
	seen := map[string]int{}
	cursor := ""
	for range mostPages {
		var page struct {
			Cursor   string
			Messages []messageV1
		}
		getV1(ctx, t, "listMessagesV1", "/v1/messages?cursor="+url.QueryEscape(cursor), &page)
		for _, m := range page.Messages {
			seen[m.MessageID]++
			Expect(seen[m.MessageID]).To(Equal(1), "how often %s is listed", m.MessageID)
		}
		if seen[first] > 0 || page.Cursor == "" {
			break
		}
		Expect(seen).To(HaveKey(last), "the newest message is on the first page")
		cursor = page.Cursor
	}
	Expect(seen).To(HaveKey(first))
	Expect(len(seen)).To(BeNumerically(">=", 102))
}, suite.WireOnly)

// taskV1 is a delivery as version 1 shows it.
type taskV1 struct {
	TaskID, MessageID, URL, State, Error    string
	Retried, MaxRetry                       int
	NextProcessAt, CompletedAt, LastErrorAt int64
}

func tasksOf(ctx context.Context, t *suite.Target, id string) []taskV1 {
	var page struct{ Tasks []taskV1 }
	getV1(ctx, t, "listTasksV1", "/v1/messages/"+id+"/tasks", &page)
	return page.Tasks
}

var _ = suite.Requirement("listTasksV1.state", func(ctx context.Context, t *suite.Target) {
	failing, fine := t.Hook(500), t.Hook(200)
	id := publishAccepted(ctx, t, failing.URL, "x", "Upstash-Retry-Delay", "3600000", "Upstash-Retries", "7")
	t.Cleanup(func(ctx context.Context) { cancelMany(ctx, t, "messageIds="+id) })
	settled(ctx, t, failing)
	tasks := tasksOf(ctx, t, id)
	Expect(tasks).To(HaveLen(1))
	got := tasks[0]
	Expect(got.TaskID).To(HavePrefix("tsk_"))
	Expect(got.MessageID).To(Equal(id))
	Expect(got.URL).To(Equal(failing.URL))
	Expect(got.State).To(Equal("RETRY"))
	Expect(got.Retried).To(Equal(1))
	Expect(got.MaxRetry).To(Equal(7))
	Expect(got.Error).NotTo(BeEmpty())
	Expect(got.CompletedAt).To(BeZero())
	Expect(got.LastErrorAt).To(BeNumerically("~", t.Now(ctx).UnixMilli(), time.Minute.Milliseconds()))
	Expect(got.NextProcessAt - got.LastErrorAt).To(BeNumerically("~", time.Hour.Milliseconds(), 1000))

	delivered := publishAccepted(ctx, t, fine.URL, "x")
	settled(ctx, t, fine)
	got = tasksOf(ctx, t, delivered)[0]
	Expect(got.State).To(Equal("DELIVERED"))
	Expect(got.Retried).To(BeZero())
	Expect(got.CompletedAt).NotTo(BeZero())
	Expect(got.NextProcessAt).To(BeZero())
	Expect(got.Error).To(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("getTaskV1.same", func(ctx context.Context, t *suite.Target) {
	id := publishAccepted(ctx, t, t.Hook(200).URL, "x")
	Eventually(func() string { return tasksOf(ctx, t, id)[0].State }).WithTimeout(t.Patience()).Should(Equal("DELIVERED"))
	listed := tasksOf(ctx, t, id)[0]
	var read taskV1
	getV1(ctx, t, "getTaskV1", "/v1/tasks/"+listed.TaskID, &read)
	Expect(read).To(Equal(listed))
	answer := t.Raw(ctx, suite.Request{Operation: "getTaskV1", Target: "/v1/tasks/tsk_" + strings.Repeat("0", 32)})
	Expect(answer.Status).To(Equal(404), "an unknown task: %s", answer.Body)
}, suite.WireOnly)

// pageOfEventsV1 is a page of the log of version 1.
type pageOfEventsV1 struct {
	Cursor string
	Events []struct{ ID, MessageID, TaskID, State, URL string }
}

var _ = suite.Requirement("listEventsV1.pages", func(ctx context.Context, t *suite.Target) {
	label, ids := fillers(ctx, t, 40)
	Expect(cancelMany(ctx, t, "label="+label)).To(Equal(len(ids)))
	last := publishAccepted(ctx, t, t.Hook(200).URL, "x", "Upstash-Delay", "1h")
	cancelMessage(ctx, t, last)
	entries, states, cursor := map[string]int{}, map[string]int{}, ""
	for page := range mostPages {
		var got pageOfEventsV1
		getV1(ctx, t, "listEventsV1", "/v1/events?cursor="+url.QueryEscape(cursor), &got)
		for _, e := range got.Events {
			entries[e.ID]++
			Expect(entries[e.ID]).To(Equal(1), "how often the entry %s is listed", e.ID)
			states[e.MessageID]++
		}
		if page == 0 {
			Expect(states).To(HaveKey(last), "the newest entries are on the first page")
			Expect(got.Cursor).NotTo(BeEmpty(), "of more entries than a page has")
		}
		cursor = got.Cursor
		if cursor == "" || !slices.ContainsFunc(ids, func(id string) bool { return states[id] < 3 }) {
			break
		}
	}
	for _, id := range append(ids, last) {
		Expect(states[id]).To(Equal(3), "how many entries of %s are listed", id)
	}
	var end map[string]any
	getV1(ctx, t, "listMessageLogsV1", "/v1/messages/"+last+"/logs", &end)
	Expect(end["events"]).To(HaveLen(3))
	Expect(end).NotTo(HaveKey("cursor"), "at the end of a log")
}, suite.WireOnly)

var _ = suite.Requirement("listLogsV1.alias", func(ctx context.Context, t *suite.Target) {
	id := publishAccepted(ctx, t, t.Hook(200).URL, "x", "Upstash-Delay", "1h")
	cancelMessage(ctx, t, id)
	Eventually(func(g Gomega) {
		var events, logs pageOfEventsV1
		getV1(ctx, t, "listEventsV1", "/v1/events", &events)
		getV1(ctx, t, "listLogsV1", "/v1/logs", &logs)
		g.Expect(logs).To(Equal(events))
		g.Expect(logs.Events).To(ContainElement(HaveField("MessageID", id)))
	}).WithTimeout(t.Patience()).Should(Succeed())
}, suite.WireOnly)

// publishedMessage is a message as version 2 reads it.
type publishedMessage struct {
	MessageID           string              `json:"messageId"`
	URL                 string              `json:"url"`
	Method              string              `json:"method"`
	Header              map[string][]string `json:"header"`
	Body                string              `json:"body"`
	MaxRetries          int                 `json:"maxRetries"`
	NotBefore           int64               `json:"notBefore"`
	CreatedAt           int64               `json:"createdAt"`
	Callback            string              `json:"callback"`
	FailureCallback     string              `json:"failureCallback"`
	RetryDelayExpresion string              `json:"retryDelayExpression"`
	CallerIP            string              `json:"callerIP"`
	Label               string              `json:"label"`
	FlowControlKey      string              `json:"flowControlKey"`
	QueueName           string              `json:"queueName"`
}

func readPublished(ctx context.Context, t *suite.Target, id string) publishedMessage {
	outcome := t.Call(ctx, "getPublished", suite.Args{Path: map[string]string{"messageId": id}})
	if outcome.Status != http.StatusOK {
		suite.Failf(1, "the message was answered %d %s", outcome.Status, outcome.Body)
	}
	var m publishedMessage
	decode(outcome.Body, &m)
	return m
}

var _ = suite.Requirement("getPublished.content", func(ctx context.Context, t *suite.Target) {
	hook, told := t.Hook(200), t.Hook(200)
	r := published(ctx, t, hook.URL+"/x?y=1", "a body", "Upstash-Method", "PUT", "Upstash-Retries", "7", "Upstash-Forward-X-Mine", "a",
		"Content-Type", "text/plain", "Upstash-Callback", told.URL, "Upstash-Failure-Callback", told.URL+"/failed", "Upstash-Retry-Delay", "1000 * 2",
		"Upstash-Label", "one")
	told.Await(ctx, 1)
	t.Elapse(ctx, 200*time.Millisecond)
	m := readPublished(ctx, t, r.MessageID)
	Expect(m.CreatedAt).To(BeNumerically("~", t.Now(ctx).UnixMilli(), time.Minute.Milliseconds()))
	Expect(m.NotBefore).To(BeNumerically(">=", m.CreatedAt))
	m.CreatedAt, m.NotBefore = 0, 0
	Expect(m.CallerIP).NotTo(BeEmpty())
	m.CallerIP = ""
	Expect(m).To(Equal(publishedMessage{
		MessageID: r.MessageID, URL: hook.URL + "/x?y=1", Method: "PUT", Header: map[string][]string{"Content-Type": {"text/plain"}, "X-Mine": {"a"}},
		Body: "a body", MaxRetries: 7, Callback: told.URL, FailureCallback: told.URL + "/failed", RetryDelayExpresion: "1000 * 2", Label: "one",
	}))
})

var _ = suite.Requirement("getPublished.binary", func(ctx context.Context, t *suite.Target) {
	id := publishAccepted(ctx, t, t.Hook(200).URL, "\xff\x00a")
	answer := t.Raw(ctx, suite.Request{Operation: "getPublished", Target: "/v2/messages/" + id})
	var m map[string]any
	decode(answer.Body, &m)
	Expect(m).To(HaveKeyWithValue("bodyBase64", "/wBh"))
	Expect(m).NotTo(HaveKey("body"))
}, suite.WireOnly)

const digestPattern = "^REDACTED:[0-9a-f]{64}$"

var _ = suite.Requirement("getPublished.redacted", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	r := published(ctx, t, hook.URL, "a secret", "Upstash-Redact-Fields", "body, header[X-Secret]", "Upstash-Forward-X-Secret", "hidden",
		"Upstash-Forward-X-Plain", "shown")
	got := hook.Await(ctx, 1)[0]
	Expect(string(got.Body)).To(Equal("a secret"))
	Expect(got.Header.Get("X-Secret")).To(Equal("hidden"))
	m := readPublished(ctx, t, r.MessageID)
	Expect(m.Body).To(MatchRegexp(digestPattern))
	Expect(m.Header["X-Secret"]).To(ConsistOf(MatchRegexp(digestPattern)))
	Expect(m.Header["X-Plain"]).To(Equal([]string{"shown"}))

	r = published(ctx, t, hook.URL, "not secret", "Upstash-Redact-Fields", "headers", "Upstash-Forward-X-Secret", "hidden", "Upstash-Forward-X-Plain", "too")
	m = readPublished(ctx, t, r.MessageID)
	Expect(m.Body).To(Equal("not secret"))
	Expect(m.Header["X-Secret"]).To(ConsistOf(MatchRegexp(digestPattern)))
	Expect(m.Header["X-Plain"]).To(ConsistOf(MatchRegexp(digestPattern)))
})

// noMessage asserts a 404 with a text.
func noMessage(outcome suite.Outcome, text string) {
	if outcome.Status != http.StatusNotFound {
		suite.Failf(1, "what does not exist was answered %d %s", outcome.Status, outcome.Body)
	}
	var fault struct{ Error string }
	decode(outcome.Body, &fault)
	Expect(fault.Error).To(Equal(text))
}

var _ = suite.Requirement("getPublished.not-found", func(ctx context.Context, t *suite.Target) {
	id := "msg_" + strings.Repeat("0", 32)
	noMessage(t.Call(ctx, "getPublished", suite.Args{Path: map[string]string{"messageId": id}}), "message "+id+" not found")
})

func cancelOne(ctx context.Context, t *suite.Target, id string) suite.Outcome {
	return t.Call(ctx, "cancelPublished", suite.Args{Path: map[string]string{"messageId": id}})
}

var _ = suite.Requirement("cancelPublished.never-delivered", func(ctx context.Context, t *suite.Target) {
	hook, failing := t.Hook(200), t.Hook(500)
	delayed := published(ctx, t, hook.URL, "x", "Upstash-Delay", "1h")
	retried := published(ctx, t, failing.URL, "x")
	settled(ctx, t, failing)
	Expect(decodeCancelled(cancelOne(ctx, t, delayed.MessageID))).To(Equal(1))
	Expect(decodeCancelled(cancelOne(ctx, t, retried.MessageID))).To(Equal(1))
	t.Advance(ctx, 48*time.Hour)
	Expect(hook.Deliveries()).To(BeEmpty())
	Expect(failing.Deliveries()).To(HaveLen(1))
})

var _ = suite.Requirement("cancelPublished.completed", func(ctx context.Context, t *suite.Target) {
	r := published(ctx, t, t.Hook(200).URL, "x")
	Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).Should(ContainElement("DELIVERED"))
	Expect(cancelOne(ctx, t, r.MessageID).Status).To(Equal(404))
})

// waitsAt publishes a message that waits for an hour.
func waitsAt(ctx context.Context, t *suite.Target, destination string, headers ...string) publishResult {
	return published(ctx, t, destination, "x", append(headers, "Upstash-Delay", "1h")...)
}

var _ = suite.Requirement("cancelPublishedMany.selected", func(ctx context.Context, t *suite.Target) {
	hook, other := t.Hook(200), t.Hook(200)
	one, two := t.Unique("label"), t.Unique("label")
	a := waitsAt(ctx, t, hook.URL, "Upstash-Label", one)
	b := waitsAt(ctx, t, hook.URL, "Upstash-Label", two+","+t.Unique("label"))
	c := waitsAt(ctx, t, other.URL, "Upstash-Label", one)
	d := waitsAt(ctx, t, hook.URL)
	t.Cleanup(func(ctx context.Context) {
		cancelMany(ctx, t, "messageIds="+strings.Join([]string{a.MessageID, b.MessageID, c.MessageID, d.MessageID}, ","))
	})
	Expect(cancelMany(ctx, t, "label="+one, "label="+two, "url="+hook.URL)).To(Equal(2))
	for r, cancelled := range map[publishResult]bool{a: true, b: true, c: false, d: false} {
		if got := slices.Contains(statesSince(ctx, t, r.MessageID), "CANCELED"); got != cancelled {
			suite.Failf(0, "the message %s is cancelled: %t, want %t", r.MessageID, got, cancelled)
		}
	}
	Expect(cancelMany(ctx, t, "label="+one+","+two)).To(Equal(1), "those that were cancelled before do not count")
	Expect(cancelMany(ctx, t, "messageIds="+a.MessageID+","+d.MessageID)).To(Equal(1))
	fine := published(ctx, t, t.Hook(200).URL, "x", "Upstash-Label", one)
	Eventually(func() []string { return statesSince(ctx, t, fine.MessageID) }).WithTimeout(t.Patience()).Should(ContainElement("DELIVERED"))
	Expect(cancelMany(ctx, t, "label="+one)).To(Equal(0), "what is delivered is not cancelled")
})

var _ = suite.Requirement("cancelPublishedMany.selected", func(ctx context.Context, t *suite.Target) {
	queue, key, label := t.Unique("queue"), t.Unique("key"), t.Unique("label")
	hook := t.Hook(200)
	host := strings.TrimPrefix(hook.URL, "http://")
	host, path, _ := strings.Cut(host, "/")
	everything := []string{"label=" + label, "queueName=" + queue, "flowControlKey=" + key, "url=" + hook.URL, "host=" + host, "path=/" + path}
	r := waitsAt(ctx, t, hook.URL, "Upstash-Label", label, "Upstash-Queue-Name", queue, "Upstash-Flow-Control-Key", key,
		"Upstash-Flow-Control-Value", "parallelism=1")
	t.Cleanup(func(ctx context.Context) { cancelMany(ctx, t, "label="+label) })
	m := readPublished(ctx, t, r.MessageID)
	everything = append(everything, "callerIp="+m.CallerIP, fmt.Sprintf("fromDate=%d", m.CreatedAt), fmt.Sprintf("toDate=%d", m.CreatedAt))
	for i, selector := range everything {
		name, value, _ := strings.Cut(selector, "=")
		narrowed := slices.Clone(everything)
		switch name {
		case "fromDate":
			narrowed[i] = fmt.Sprintf("fromDate=%d", m.CreatedAt+1)
		case "toDate":
			narrowed[i] = fmt.Sprintf("toDate=%d", m.CreatedAt-1)
		default:
			narrowed[i] = name + "=" + value + "x"
		}
		if got := cancelMany(ctx, t, narrowed...); got != 0 {
			suite.Failf(0, "%d messages were cancelled by %s, want none", got, narrowed[i])
		}
	}
	Expect(cancelMany(ctx, t, everything...)).To(Equal(1))
})

var _ = suite.Requirement("cancelPublishedMany.selected", func(ctx context.Context, t *suite.Target) {
	hook, label := t.Hook(200), t.Unique("label")
	var ids []string
	for range 3 {
		ids = append(ids, waitsAt(ctx, t, hook.URL, "Upstash-Label", label).MessageID)
	}
	body, err := json.Marshal(map[string]any{"messageIds": ids[1:], "label": label, "count": 1})
	Expect(err).NotTo(HaveOccurred())
	answer := t.Raw(ctx, suite.Request{
		Operation: "cancelPublishedMany", Header: http.Header{"Content-Type": {"application/json"}}, Body: strings.NewReader(string(body)),
	})
	Expect(decodeCancelled(suite.Outcome{Status: answer.Status, Body: answer.Body})).To(Equal(1), "selectors in the body")
	Expect(cancelMany(ctx, t, "label="+label)).To(Equal(2), "those that were left")
}, suite.WireOnly)

var _ = suite.Requirement("cancelPublishedMany.unknown", func(ctx context.Context, t *suite.Target) {
	hook, label := t.Hook(200), t.Unique("label")
	waitsAt(ctx, t, hook.URL, "Upstash-Label", label)
	for _, request := range []suite.Request{
		{Target: "/v2/messages?labels=" + label},
		{Target: "/v2/messages?label=" + label + "&unknown=1"},
		{Body: strings.NewReader(`{"labels":"` + label + `"}`), Header: http.Header{"Content-Type": {"application/json"}}},
	} {
		request.Operation = "cancelPublishedMany"
		rejected(t.Raw(ctx, request))
	}
	Expect(cancelMany(ctx, t, "label="+label)).To(Equal(1), "what the refused requests did not cancel")
}, suite.WireOnly)

// deliveryEvent is an entry of the log of version 2.
type deliveryEvent struct {
	Time            int64               `json:"time"`
	MessageID       string              `json:"messageId"`
	State           string              `json:"state"`
	URL             string              `json:"url"`
	Method          string              `json:"method"`
	Header          map[string][]string `json:"header"`
	Body            []byte              `json:"body"` // in base64
	Error           string              `json:"error"`
	ResponseStatus  int                 `json:"responseStatus"`
	ResponseHeaders map[string][]string `json:"responseHeaders"`
	ResponseBody    []byte              `json:"responseBody"` // in base64
}

// eventsPage reads a page of the log. params are name=value.
func eventsPage(ctx context.Context, t *suite.Target, params ...string) (events []deliveryEvent, cursor string) {
	outcome := t.Call(ctx, "listEvents", suite.Args{Query: query(params)})
	if outcome.Status != http.StatusOK {
		suite.Failf(2, "the log was answered %d %s", outcome.Status, outcome.Body)
	}
	var page struct {
		Cursor string
		Events []deliveryEvent
	}
	decode(outcome.Body, &page)
	return page.Events, page.Cursor
}

// statesSince are the entries of the log of a message, oldest first.
func statesSince(ctx context.Context, t *suite.Target, id string) []string {
	events, _ := eventsPage(ctx, t, "messageIds="+id)
	states := []string{}
	for _, e := range slices.Backward(events) {
		states = append(states, e.State)
	}
	return states
}

var _ = suite.Requirement("listEvents.states", func(ctx context.Context, t *suite.Target) {
	for status, want := range map[int][]string{
		200: {"CREATED", "ACTIVE", "DELIVERED"}, 500: {"CREATED", "ACTIVE", "ERROR", "FAILED"},
	} {
		r := published(ctx, t, t.Hook(status).URL, "x", "Upstash-Retries", "0")
		Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).Should(Equal(want))
	}
})

var _ = suite.Requirement("listEvents.entry", func(ctx context.Context, t *suite.Target) {
	hook := t.HookFunc(func(int, suite.Delivery) suite.HookReply {
		return suite.HookReply{Status: 500, Body: "an\xffanswer", Header: http.Header{"X-Answer": {"yes"}}}
	})
	r := published(ctx, t, hook.URL+"/a?b=c", "a\x00body", "Upstash-Retries", "0", "Upstash-Method", "PUT", "Upstash-Forward-X-Mine", "a")
	Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).Should(HaveLen(4))
	events, _ := eventsPage(ctx, t, "messageIds="+r.MessageID)
	now := t.Now(ctx).UnixMilli()
	for _, e := range events {
		Expect(e.Time).To(BeNumerically("~", now, time.Minute.Milliseconds()))
		Expect(e.URL).To(Equal(hook.URL + "/a?b=c"))
		Expect(e.Method).To(Equal("PUT"))
		Expect(e.Header).To(HaveKeyWithValue("X-Mine", []string{"a"}))
		Expect(string(e.Body)).To(Equal("a\x00body"))
		failed := e.State == "ERROR" || e.State == "FAILED"
		Expect(e.Error != "").To(Equal(failed), "whether %s has an error, which is %q", e.State, e.Error)
		if failed {
			Expect(e.ResponseStatus).To(Equal(500))
			Expect(string(e.ResponseBody)).To(Equal("an\xffanswer"))
			Expect(e.ResponseHeaders).To(HaveKeyWithValue("X-Answer", []string{"yes"}))
		}
	}
}, suite.WireOnly)

var _ = suite.Requirement("listEvents.filters", func(ctx context.Context, t *suite.Target) {
	fine, failing := t.Hook(200), t.Hook(500)
	one, two := t.Unique("label"), t.Unique("label")
	a := published(ctx, t, fine.URL, "x", "Upstash-Label", one)
	b := published(ctx, t, failing.URL, "x", "Upstash-Label", one, "Upstash-Retries", "0")
	c := published(ctx, t, fine.URL, "x", "Upstash-Label", two)
	for _, r := range []publishResult{a, b, c} {
		Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).
			Should(ContainElement(BeElementOf("DELIVERED", "FAILED")))
	}
	for filters, want := range map[string][]string{
		"label=" + one + "&state=DELIVERED":                                           {a.MessageID},
		"label=" + one + "&state=DELIVERED,FAILED":                                    {a.MessageID, b.MessageID},
		"label=" + one + "&label=" + two + "&state=DELIVERED":                         {a.MessageID, c.MessageID},
		"label=" + one + "," + two + "&state=delivered&url=" + fine.URL:               {a.MessageID, c.MessageID},
		"messageIds=" + a.MessageID + "," + b.MessageID + "&state=FAILED":             {b.MessageID},
		"messageId=" + c.MessageID + "&state=CREATED":                                 {c.MessageID},
		"label=" + one + "&url=" + failing.URL + "&state=IN_PROGRESS":                 {b.MessageID, b.MessageID},
		"label=" + one + "&url=" + failing.URL + "&state=CANCELLED":                   {},
		"label=" + one + "&messageIds=" + c.MessageID:                                 {},
		"label=" + two + "&state=CREATED&host=" + strings.Split(fine.URL, "/")[2]:     {c.MessageID},
		"label=" + two + "&state=CREATED&path=/" + strings.Split(fine.URL, "/")[3]:    {c.MessageID},
		"label=" + two + "&state=CREATED&path=/" + strings.Split(failing.URL, "/")[3]: {},
	} {
		events, _ := eventsPage(ctx, t, strings.Split(filters, "&")...)
		ids := []string{}
		for _, e := range events {
			ids = append(ids, e.MessageID)
		}
		slices.Sort(ids)
		slices.Sort(want)
		if !slices.Equal(ids, want) {
			suite.Failf(0, "the filters %s find entries of %v, want of %v", filters, ids, want)
		}
	}
})

var _ = suite.Requirement("listEvents.order", func(ctx context.Context, t *suite.Target) {
	r := published(ctx, t, t.Hook(500).URL, "x", "Upstash-Retries", "0")
	want := []string{"FAILED", "ERROR", "ACTIVE", "CREATED"}
	Eventually(func() []string { return statesSince(ctx, t, r.MessageID) }).WithTimeout(t.Patience()).Should(HaveLen(len(want)))
	for _, order := range []string{"", "latestFirst", "earliestFirst"} {
		params := []string{"messageIds=" + r.MessageID, "count=1"}
		if order != "" {
			params = append(params, "order="+order)
		}
		if order == "earliestFirst" {
			slices.Reverse(want)
		}
		var states []string
		cursor := ""
		for range want {
			page := params
			if cursor != "" {
				page = append(slices.Clone(params), "cursor="+cursor)
			}
			var events []deliveryEvent
			events, cursor = eventsPage(ctx, t, page...)
			for _, e := range events {
				states = append(states, e.State)
			}
		}
		Expect(states).To(Equal(want), "the order %q", order)
		Expect(cursor).To(BeEmpty(), "at the end")
	}
})

var _ = suite.Requirement("listLogs.same", func(ctx context.Context, t *suite.Target) {
	id := publishAccepted(ctx, t, t.Hook(200).URL, "x", "Upstash-Delay", "1h")
	cancelMessage(ctx, t, id)
	var events, logs map[string]any
	getV1(ctx, t, "listEvents", "/v2/events?messageIds="+id, &events)
	getV1(ctx, t, "listLogs", "/v2/logs?messageIds="+id, &logs)
	Expect(events["events"]).To(HaveLen(3))
	Expect(logs["events"]).To(Equal(events["events"]))
	Expect(logs["logs"]).To(Equal(events["events"]))
}, suite.WireOnly)
