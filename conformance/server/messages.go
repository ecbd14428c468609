package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// storedMessage is one entry of a list of messages, or an inspected message.
type storedMessage struct {
	ID             string          `json:"id"`
	TransactionID  string          `json:"transactionId"`
	PartitionID    string          `json:"partitionId"`
	QueuePath      string          `json:"queuePath"`
	Queue          string          `json:"queue"`
	Partition      string          `json:"partition"`
	Namespace      string          `json:"namespace"`
	Task           string          `json:"task"`
	Status         string          `json:"status"`
	CreatedAt      string          `json:"createdAt"`
	LeaseExpiresAt *string         `json:"leaseExpiresAt"`
	Data           json.RawMessage `json:"data"`
	Payload        json.RawMessage `json:"payload"`

	// Of an inspected message.
	IsEncrypted    bool           `json:"isEncrypted"`
	ErrorMessage   *string        `json:"errorMessage"`
	RetryCount     int            `json:"retryCount"`
	ConsumerGroups []groupAt      `json:"consumerGroups"`
	QueueConfig    map[string]any `json:"queueConfig"`
}

type groupAt struct {
	Name           string  `json:"name"`
	Group          string  `json:"group"`
	Consumed       bool    `json:"consumed"`
	LeaseExpiresAt *string `json:"leaseExpiresAt"`
}

type messageList struct {
	Messages []storedMessage `json:"messages"`
	Mode     struct {
		HasQueueMode   bool   `json:"hasQueueMode"`
		BusGroupsCount int    `json:"busGroupsCount"`
		Type           string `json:"type"`
	} `json:"mode"`
	Total int `json:"total"`
}

// texts lists the payloads in order.
func (l messageList) texts() []string {
	texts := []string{}
	for _, m := range l.Messages {
		texts = append(texts, string(m.Data))
	}
	return texts
}

func (l messageList) at(i int) storedMessage {
	if i >= len(l.Messages) {
		suite.Failf(1, "there are only %d messages in the list", len(l.Messages))
	}
	return l.Messages[i]
}

// popOne pops and returns the first message.
func popOne(ctx context.Context, t *suite.Target, queue string, params ...string) message {
	popped := pop(ctx, t, queue, params...).Messages
	if len(popped) == 0 {
		suite.Failf(1, "there is no message to pop")
	}
	return popped[0]
}

// messages lists stored messages.
func messages(ctx context.Context, t *suite.Target, params ...string) messageList {
	var l messageList
	answered(t.Call(ctx, "listMessages", suite.Args{Query: query(params)}), &l)
	return l
}

// answered decodes a 200.
func answered(outcome suite.Outcome, into any) {
	if outcome.Status != 200 {
		suite.Failf(2, "the call was answered %d %s", outcome.Status, outcome.Body)
	}
	decode(outcome.Body, into)
}

func addressOf(m message) suite.Args {
	return suite.Args{Path: map[string]string{"partitionId": m.PartitionID, "transactionId": m.TransactionID}}
}

func inspectMessage(ctx context.Context, t *suite.Target, m message) storedMessage {
	var got storedMessage
	answered(t.Call(ctx, "getMessage", addressOf(m)), &got)
	return got
}

// letter is one dead letter.
type letter struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transactionId"`
	PartitionID   string          `json:"partitionId"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	ConsumerGroup string          `json:"consumerGroup"`
	ErrorMessage  string          `json:"errorMessage"`
	RetryCount    int             `json:"retryCount"`
	Data          json.RawMessage `json:"data"`
	CreatedAt     string          `json:"createdAt"`
	FailedAt      string          `json:"failedAt"`
}

type letterList struct {
	Messages   []letter `json:"messages"`
	Pagination struct {
		Limit  int `json:"limit"`
		Offset int `json:"offset"`
	} `json:"pagination"`
	Total int `json:"total"`
}

func (l letterList) at(i int) letter {
	if i >= len(l.Messages) {
		suite.Failf(1, "there are only %d dead letters in the list", len(l.Messages))
	}
	return l.Messages[i]
}

func (l letterList) texts() []string {
	texts := []string{}
	for _, m := range l.Messages {
		texts = append(texts, string(m.Data))
	}
	return texts
}

func letters(ctx context.Context, t *suite.Target, params ...string) letterList {
	var l letterList
	answered(t.Call(ctx, "listDeadLetters", suite.Args{Query: query(params)}), &l)
	return l
}

// bury pops n messages of a partition one by one and files them as dead letters.
func bury(ctx context.Context, t *suite.Target, queue, partition, group string, n int) (buried []message) {
	for range n {
		popped := popPartition(ctx, t, queue, partition, "batch=1", "consumerGroup="+group).Messages
		if len(popped) != 1 {
			suite.Failf(1, "there is no message to file as a dead letter")
		}
		a := of(popped[0], "dlq")
		a.Error = "filed by " + group
		if !ack(ctx, t, a).DLQ {
			suite.Failf(1, "the message was not filed as a dead letter")
		}
		buried = append(buried, popped[0])
		t.Elapse(ctx, 2*time.Millisecond) // so that no two fail at the same time
	}
	return buried
}

// odd is a payload that does not survive decoding and encoding.
const odd = `{"b": 1, "a":1e400, "a":"\u0000\/<&>" }`

var _ = suite.Requirement("listMessages.row", func(ctx context.Context, t *suite.Target) {
	queue := "n." + t.Unique("task") + "." + t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "p/1", transactionID: "t&1", payload: "1"})
	got := messages(ctx, t, "queue="+queue).Messages
	Expect(got).To(HaveLen(1))
	m, want := got[0], popOne(ctx, t, queue, "autoAck=true")
	Expect([]string{m.ID, m.TransactionID, m.PartitionID, m.CreatedAt, m.Queue, m.Partition}).
		To(Equal([]string{want.ID, "t&1", want.PartitionID, want.CreatedAt, queue, "p/1"}))
	Expect(m.Namespace).To(Equal("n"))
	Expect(m.Task).To(Equal(strings.Split(queue, ".")[1]))
})

var _ = suite.Requirement("listMessages.row", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "p/1", payload: "1"})
	Expect(messages(ctx, t, "queue="+queue).at(0).QueuePath).To(Equal(queue + "/p/1"))
}, suite.WireOnly)

var _ = suite.Requirement("listMessages.payload", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: odd})
	Expect(string(messages(ctx, t, "queue="+queue).at(0).Data)).To(Equal(odd))
})

var _ = suite.Requirement("listMessages.payload", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, payload: odd})
	Expect(string(messages(ctx, t, "queue="+queue).at(0).Payload)).To(Equal(odd))
}, suite.WireOnly)

var _ = suite.Requirement("listMessages.order", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for i := range 6 {
		pushOne(ctx, t, item{queue: queue, partition: fmt.Sprint("p", i%2), payload: fmt.Sprint(i)})
		t.Elapse(ctx, 2*time.Millisecond)
	}
	push(ctx, t, item{queue: queue, partition: "p0", payload: "6"}, item{queue: queue, partition: "p0", payload: "7"})
	Expect(messages(ctx, t, "queue="+queue).texts()).To(Equal([]string{"7", "6", "5", "4", "3", "2", "1", "0"}))
})

var _ = suite.Requirement("listMessages.filter", func(ctx context.Context, t *suite.Target) {
	namespace, task, other := t.Unique("ns"), t.Unique("task"), t.Unique("task")
	one, two := namespace+"."+task, namespace+"."+other
	push(ctx, t,
		item{queue: one, partition: "a", payload: "1"}, item{queue: one, partition: "b", payload: "2"},
		item{queue: two, partition: "a", payload: "3"})
	listed := func(params ...string) []string {
		texts := messages(ctx, t, params...).texts()
		slices.Sort(texts)
		return texts
	}
	Expect(listed("namespace=" + namespace)).To(Equal([]string{"1", "2", "3"}))
	Expect(listed("namespace="+namespace, "task="+task)).To(Equal([]string{"1", "2"}))
	Expect(listed("task=" + other)).To(Equal([]string{"3"}))
	Expect(listed("queue="+one, "partition=b")).To(Equal([]string{"2"}))
	Expect(listed("namespace="+namespace, "partition=a")).To(Equal([]string{"1", "3"}))
	Expect(listed("queue="+one, "namespace=x")).To(BeEmpty())
	Expect(listed("queue=" + t.Queue())).To(BeEmpty())
})

var _ = suite.Requirement("listMessages.filter", func(ctx context.Context, t *suite.Target) {
	namespace := t.Unique("ns")
	push(ctx, t, item{queue: namespace + ".a", payload: "1"})
	Expect(messages(ctx, t, "ns="+namespace).texts()).To(Equal([]string{"1"}))
	Expect(messages(ctx, t, "ns="+t.Unique("ns")).texts()).To(BeEmpty())
}, suite.WireOnly)

// mixture makes a queue whose payloads 0 to 4 are completed, dead, leased, leased and pending.
func mixture(ctx context.Context, t *suite.Target) string {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 5)
	popPartition(ctx, t, queue, "a", "batch=1", "autoAck=true", "consumerGroup=g")
	bury(ctx, t, queue, "a", "g", 1)
	popPartition(ctx, t, queue, "a", "batch=2", "consumerGroup=g", "leaseSeconds=600")
	return queue
}

var _ = suite.Requirement("listMessages.status", func(ctx context.Context, t *suite.Target) {
	queue := mixture(ctx, t)
	var statuses []string
	leased := 0
	for _, m := range messages(ctx, t, "queue="+queue).Messages {
		statuses = append(statuses, m.Status)
		if m.LeaseExpiresAt != nil {
			leased++
			Expect(m.Status).To(Equal("processing"), "the status of a message with leaseExpiresAt")
		}
	}
	Expect(statuses).To(Equal([]string{"pending", "processing", "processing", "dead_letter", "completed"}))
	Expect(leased).To(Equal(2), "messages with leaseExpiresAt")
	pop(ctx, t, queue, "consumerGroup=slow", "batch=1", "leaseSeconds=1")
	t.Elapse(ctx, 1100*time.Millisecond)
	Expect(messages(ctx, t, "queue="+queue).at(4).Status).To(Equal("pending"), "what one of two groups has still to pass")
})

var _ = suite.Requirement("listMessages.status-filter", func(ctx context.Context, t *suite.Target) {
	queue := mixture(ctx, t)
	for status, want := range map[string][]string{
		"pending": {"4"}, "processing": {"3", "2"}, "dead_letter": {"1"}, "completed": {"0"},
	} {
		Expect(messages(ctx, t, "queue="+queue, "status="+status).texts()).To(Equal(want), "status %s", status)
	}
})

var _ = suite.Requirement("listMessages.from-default", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	t.Advance(ctx, 59*time.Minute)
	Expect(messages(ctx, t, "queue="+queue).texts()).To(HaveLen(1), "after 59 minutes")
	t.Advance(ctx, 2*time.Minute)
	Expect(messages(ctx, t, "queue="+queue).texts()).To(BeEmpty(), "after 61 minutes")
})

var _ = suite.Requirement("listMessages.time", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	var at []string
	for i := range 5 {
		pushOne(ctx, t, item{queue: queue, payload: fmt.Sprint(i)})
		at = append(at, messages(ctx, t, "queue="+queue).at(0).CreatedAt)
		t.Elapse(ctx, 2*time.Millisecond)
	}
	Expect(messages(ctx, t, "queue="+queue, "from="+at[3]).texts()).To(Equal([]string{"4", "3"}))
	Expect(messages(ctx, t, "queue="+queue, "to="+at[1]).texts()).To(Equal([]string{"1", "0"}))
	Expect(messages(ctx, t, "queue="+queue, "from="+at[1], "to="+at[3]).texts()).To(Equal([]string{"3", "2", "1"}))
})

var _ = suite.Requirement("listMessages.page", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 201)
	Expect(messages(ctx, t, "queue="+queue).Messages).To(HaveLen(200), "the default limit")
	Expect(messages(ctx, t, "queue="+queue, "limit=3", "offset=199").texts()).To(Equal([]string{"1", "0"}))
	Expect(messages(ctx, t, "queue="+queue, "limit=2", "offset=4").texts()).To(Equal([]string{"196", "195"}))
})

var _ = suite.Requirement("listMessages.page", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 4)
	Expect(messages(ctx, t, "queue="+queue, "limit=3").Total).To(Equal(3))
	Expect(messages(ctx, t, "queue="+queue, "limit=3", "offset=3").Total).To(Equal(1))
}, suite.WireOnly)

var _ = suite.Requirement("listMessages.limit-most", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1001)
	Expect(messages(ctx, t, "queue="+queue, "limit=5000").Messages).To(HaveLen(1000))
})

// refusesQueries asserts that an operation answers 400 to each query.
func refusesQueries(ctx context.Context, t *suite.Target, operation, path string, queries ...string) {
	for _, q := range queries {
		answer := t.Raw(ctx, suite.Request{Operation: operation, Target: path + "?" + q})
		Expect(answer.Status).To(Equal(400), "%s?%s", path, q)
	}
}

var _ = suite.Requirement("listMessages.invalid", func(ctx context.Context, t *suite.Target) {
	refusesQueries(ctx, t, "listMessages", "/api/v1/messages",
		"status=done", "status=Pending", "from=yesterday", "to=2026-02-30T00:00:00Z", "limit=0", "limit=-1", "limit=ten", "limit=1.5", "offset=-1", "offset=x")
}, suite.WireOnly)

var _ = suite.Requirement("listMessages.mode", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	mode := func() string {
		m := messages(ctx, t, "queue="+queue).Mode
		return fmt.Sprint(m.HasQueueMode, " ", m.BusGroupsCount, " ", m.Type)
	}
	Expect(mode()).To(Equal("false 0 none"))
	pop(ctx, t, queue, "consumerGroup=a")
	Expect(mode()).To(Equal("false 1 bus"))
	pop(ctx, t, queue)
	Expect(mode()).To(Equal("true 1 hybrid"))
	queue = t.Queue()
	pop(ctx, t, queue)
	Expect(mode()).To(Equal("true 0 queue"))
}, suite.WireOnly)

var _ = suite.Requirement("getMessage.row", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 7, "leaseTime": 33})
	pushOne(ctx, t, item{queue: queue, partition: "p", payload: odd})
	m := popOne(ctx, t, queue)
	got := inspectMessage(ctx, t, m)
	Expect([]string{got.ID, got.TransactionID, got.PartitionID, got.CreatedAt, got.Queue, got.Partition, got.Status, string(got.Data)}).
		To(Equal([]string{m.ID, m.TransactionID, m.PartitionID, m.CreatedAt, queue, "p", "processing", odd}))
	Expect(got.IsEncrypted).To(BeFalse())
	for name, want := range inspect(ctx, t, queue).Options {
		Expect(got.QueueConfig).To(HaveKeyWithValue(name, want))
	}
})

var _ = suite.Requirement("getMessage.groups", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 2)
	pop(ctx, t, queue, "consumerGroup=a", "batch=1", "autoAck=true")
	m := popOne(ctx, t, queue, "consumerGroup=b", "batch=1", "leaseSeconds=600")
	groups := inspectMessage(ctx, t, m).ConsumerGroups
	slices.SortFunc(groups, func(x, y groupAt) int { return strings.Compare(x.Name, y.Name) })
	Expect(groups).To(HaveLen(2))
	Expect(groups[0]).To(Equal(groupAt{Name: "a", Group: "a", Consumed: true}))
	Expect(groups[1].Name).To(Equal("b"))
	Expect(groups[1].Consumed).To(BeFalse(), "consumed by the group that leases it")
	Expect(groups[1].LeaseExpiresAt).NotTo(BeNil(), "the lease of the group that leases it")
})

var _ = suite.Requirement("getMessage.dead-letter", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushNumbers(ctx, t, queue, 2)
	var m message
	for range 2 {
		m = popOne(ctx, t, queue, "batch=1")
		a := of(m, "failed")
		a.Error = "card declined"
		ack(ctx, t, a)
	}
	got := inspectMessage(ctx, t, m)
	Expect(got.Status).To(Equal("dead_letter"))
	Expect(got.ErrorMessage).To(HaveValue(Equal("card declined")))
	Expect(got.RetryCount).To(Equal(1))
	got = inspectMessage(ctx, t, popOne(ctx, t, queue, "batch=1"))
	Expect(got.ErrorMessage).To(BeNil(), "errorMessage of a message that is no dead letter")
})

var _ = suite.Requirement("getMessage.escaped", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for _, id := range []string{"a/b", "a%2Fb", "..", "a b+c", "ü😀", `q"\`} {
		pushOne(ctx, t, item{queue: queue, transactionID: id, payload: quote(id)})
		m := popOne(ctx, t, queue, "autoAck=true")
		Expect(string(inspectMessage(ctx, t, m).Data)).To(Equal(quote(id)))
	}
})

var _ = suite.Requirement("getMessage.not-found", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	id := popOne(ctx, t, queue).PartitionID
	for _, path := range []string{id + "/nobody", "01890000-0000-7000-8000-000000000000/t0"} {
		answer := t.Raw(ctx, suite.Request{Operation: "getMessage", Target: "/api/v1/messages/" + path})
		Expect(answer.Status).To(Equal(404))
		Expect(answer.Body).To(MatchJSON(`{"error":"Message not found"}`))
	}
}, suite.WireOnly)

var _ = suite.Requirement("getMessage.invalid", func(ctx context.Context, t *suite.Target) {
	for _, id := range []string{"1", "p", "01890000-0000-7000-8000-00000000000x"} {
		rejected(t.Raw(ctx, suite.Request{Operation: "getMessage", Target: "/api/v1/messages/" + id + "/t"}))
	}
}, suite.WireOnly)

// missing asserts that an operation on a dead letter is answered that there is none.
func missing(outcome suite.Outcome) {
	if outcome.Status != 404 {
		suite.Failf(1, "the call on what is no dead letter was answered %d %s", outcome.Status, outcome.Body)
	}
}

var _ = suite.Requirement("deleteDeadLetter.removes", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	buried := bury(ctx, t, queue, "a", "g", 2)
	answered(t.Call(ctx, "deleteDeadLetter", addressOf(buried[0])), &struct{}{})
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"1"}))
	Expect(inspect(ctx, t, queue).Totals.DeadLetter).To(Equal(1))
})

var _ = suite.Requirement("deleteDeadLetter.only", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	m := popOne(ctx, t, queue, "consumerGroup=looker")
	missing(t.Call(ctx, "deleteDeadLetter", addressOf(m)))
	Expect(drain(ctx, t, queue)).To(HaveLen(1), "messages after the refused delete")
})

var _ = suite.Requirement("deleteDeadLetter.only", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	m := popOne(ctx, t, queue)
	answer := t.Raw(ctx, suite.Request{Operation: "deleteDeadLetter", Target: "/api/v1/messages/" + m.PartitionID + "/" + m.TransactionID})
	Expect(answer.Status).To(Equal(404))
	Expect(answer.Body).To(MatchJSON(fmt.Sprintf(`{"success":false,"partitionId":%q,"transactionId":%q,"error":"Message not found"}`, m.PartitionID, m.TransactionID)))
}, suite.WireOnly)

var _ = suite.Requirement("deleteDeadLetter.again", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	buried := bury(ctx, t, queue, "a", "g", 1)
	answered(t.Call(ctx, "deleteDeadLetter", addressOf(buried[0])), &struct{}{})
	missing(t.Call(ctx, "deleteDeadLetter", addressOf(buried[0])))
})

var _ = suite.Requirement("listDeadLetters.row", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{"retryLimit": 1})
	pushOne(ctx, t, item{queue: queue, partition: "p", transactionID: "t", payload: odd})
	var m message
	for range 2 {
		m = popOne(ctx, t, queue, "consumerGroup=g")
		a := of(m, "failed")
		a.Error = "card \"declined\" ü"
		ack(ctx, t, a)
	}
	list := letters(ctx, t, "queue="+queue).Messages
	Expect(list).To(HaveLen(1))
	Expect(list[0].FailedAt >= m.CreatedAt).To(BeTrue(), "failedAt %s after createdAt %s", list[0].FailedAt, m.CreatedAt)
	list[0].FailedAt = ""
	Expect(list[0]).To(Equal(letter{
		ID: m.ID, TransactionID: "t", PartitionID: m.PartitionID, Queue: queue, Partition: "p", ConsumerGroup: "g",
		ErrorMessage: "card \"declined\" ü", RetryCount: 1, Data: json.RawMessage(odd), CreatedAt: m.CreatedAt,
	}))
})

var _ = suite.Requirement("ack.dlq.error-kept", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	bury(ctx, t, queue, "a", "g", 1)
	list := letters(ctx, t, "queue="+queue).Messages
	Expect(list).To(HaveLen(1))
	Expect(list[0].ErrorMessage).To(Equal("filed by g"))
})

var _ = suite.Requirement("listDeadLetters.order", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 4)
	bury(ctx, t, queue, "a", "g", 4)
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"3", "2", "1", "0"}))
})

var _ = suite.Requirement("listDeadLetters.filter", func(ctx context.Context, t *suite.Target) {
	queue, other := t.Queue(), t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	push(ctx, t, item{queue: queue, partition: "b", payload: "7"}, item{queue: other, partition: "a", payload: "9"})
	bury(ctx, t, queue, "a", "g", 2)
	bury(ctx, t, queue, "b", "h", 1)
	bury(ctx, t, other, "a", "g", 1)
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"7", "1", "0"}))
	Expect(letters(ctx, t, "queue="+queue, "partition=a").texts()).To(Equal([]string{"1", "0"}))
	Expect(letters(ctx, t, "queue="+queue, "consumerGroup=h").texts()).To(Equal([]string{"7"}))
	Expect(letters(ctx, t, "queue="+queue, "consumerGroup=h", "partition=a").texts()).To(BeEmpty())
})

var _ = suite.Requirement("listDeadLetters.time", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 4)
	bury(ctx, t, queue, "a", "g", 4)
	all := letters(ctx, t, "queue="+queue)
	Expect(letters(ctx, t, "queue="+queue, "from="+all.at(2).FailedAt, "to="+all.at(1).FailedAt).texts()).To(Equal([]string{"2", "1"}))
})

var _ = suite.Requirement("listDeadLetters.page", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 5)
	bury(ctx, t, queue, "a", "g", 5)
	page := letters(ctx, t, "queue="+queue, "limit=2", "offset=1")
	Expect(page.texts()).To(Equal([]string{"3", "2"}))
	Expect(page.Total).To(Equal(5))
	Expect(letters(ctx, t, "queue="+queue, "limit=2", "offset=4").texts()).To(Equal([]string{"0"}))
})

var _ = suite.Requirement("listDeadLetters.page", func(ctx context.Context, t *suite.Target) {
	page := letters(ctx, t, "queue="+t.Queue()).Pagination
	Expect([]int{page.Limit, page.Offset}).To(Equal([]int{100, 0}))
	page = letters(ctx, t, "limit=2", "offset=1").Pagination
	Expect([]int{page.Limit, page.Offset}).To(Equal([]int{2, 1}))
}, suite.WireOnly)

var _ = suite.Requirement("listDeadLetters.groups", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	bury(ctx, t, queue, "a", "g", 1)
	bury(ctx, t, queue, "a", "h", 1)
	list := letters(ctx, t, "queue="+queue).Messages
	Expect(list).To(HaveLen(2))
	Expect([]string{list[0].ConsumerGroup, list[1].ConsumerGroup}).To(Equal([]string{"h", "g"}))
})

var _ = suite.Requirement("listDeadLetters.invalid", func(ctx context.Context, t *suite.Target) {
	refusesQueries(ctx, t, "listDeadLetters", "/api/v1/dlq", "from=yesterday", "to=x", "limit=0", "limit=ten", "offset=-1", "offset=1.5")
}, suite.WireOnly)

// bulk calls an operation on the dead letters of a queue.
func bulk(ctx context.Context, t *suite.Target, operation string, into any, params ...string) {
	answered(t.Call(ctx, operation, suite.Args{Query: query(params)}), into)
}

type purged struct {
	Deleted   int `json:"deleted"`
	Remaining int `json:"remaining"`
}

func purge(ctx context.Context, t *suite.Target, params ...string) purged {
	var p purged
	bulk(ctx, t, "purgeDeadLetters", &p, params...)
	return p
}

var _ = suite.Requirement("purgeDeadLetters.deletes", func(ctx context.Context, t *suite.Target) {
	queue, other := t.Queue(), t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, other, "a", 1)
	bury(ctx, t, queue, "a", "g", 3)
	bury(ctx, t, other, "a", "g", 1)
	Expect(purge(ctx, t, "queue="+queue)).To(Equal(purged{Deleted: 3}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(BeEmpty())
	Expect(letters(ctx, t, "queue="+other).texts()).To(HaveLen(1), "dead letters of another queue")
	Expect(purge(ctx, t, "queue="+queue)).To(Equal(purged{}))
})

// graves makes a queue with two dead letters of the group g in partition a, then one of h in partition b.
func graves(ctx context.Context, t *suite.Target) string {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 2)
	push(ctx, t, item{queue: queue, partition: "b", payload: "7"})
	bury(ctx, t, queue, "a", "g", 2)
	bury(ctx, t, queue, "b", "h", 1)
	return queue
}

var _ = suite.Requirement("purgeDeadLetters.filter", func(ctx context.Context, t *suite.Target) {
	queue := graves(ctx, t)
	Expect(purge(ctx, t, "queue="+queue, "consumerGroup=g", "partition=b")).To(Equal(purged{}))
	at := letters(ctx, t, "queue="+queue).at(1).FailedAt
	Expect(purge(ctx, t, "queue="+queue, "from="+at, "to="+at)).To(Equal(purged{Deleted: 1}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"7", "0"}))
	Expect(purge(ctx, t, "queue="+queue, "consumerGroup=h")).To(Equal(purged{Deleted: 1}))
	Expect(purge(ctx, t, "queue="+queue, "partition=a")).To(Equal(purged{Deleted: 1}))
})

var _ = suite.Requirement("purgeDeadLetters.bounded", func(ctx context.Context, t *suite.Target) {
	queue := graves(ctx, t)
	Expect(purge(ctx, t, "queue="+queue, "limit=2")).To(Equal(purged{Deleted: 2, Remaining: 1}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"7"}))
})

// strict asserts that a bulk call refuses what it does not know, and a call without queue, and changes nothing.
func strict(ctx context.Context, t *suite.Target, operation, path string) {
	queue := graves(ctx, t)
	refusesQueries(ctx, t, operation, path, "", "queue=", "partition=a", "queue="+queue+"&consumergroup=g", "queue="+queue+"&group=g",
		"queue="+queue+"&status=x", "queue="+queue+"&from=yesterday", "queue="+queue+"&limit=0", "queue="+queue+"&offset=1")
	Expect(letters(ctx, t, "queue="+queue).texts()).To(HaveLen(3), "dead letters after the refused calls")
}

// unknownQueue asserts that a bulk call on a queue that does not exist is answered 404.
func unknownQueue(ctx context.Context, t *suite.Target, operation, path string) {
	answer := t.Raw(ctx, suite.Request{Operation: operation, Target: path + "?queue=" + url.QueryEscape(t.Queue())})
	Expect(answer.Status).To(Equal(404))
	Expect(answer.Body).To(MatchJSON(`{"error":"Queue not found"}`))
}

var _ = suite.Requirement("purgeDeadLetters.strict", func(ctx context.Context, t *suite.Target) {
	strict(ctx, t, "purgeDeadLetters", "/api/v1/dlq")
}, suite.WireOnly)

var _ = suite.Requirement("purgeDeadLetters.unknown", func(ctx context.Context, t *suite.Target) {
	unknownQueue(ctx, t, "purgeDeadLetters", "/api/v1/dlq")
}, suite.WireOnly)

// replayed is the answer to the replay of one dead letter.
type replayed struct {
	Success       bool   `json:"success"`
	Queue         string `json:"queue"`
	Partition     string `json:"partition"`
	ReplayedAs    pushed `json:"replayedAs"`
	DLQRowRemoved bool   `json:"dlqRowRemoved"`
}

func retry(ctx context.Context, t *suite.Target, m message) replayed {
	var r replayed
	answered(t.Call(ctx, "retryDeadLetter", addressOf(m)), &r)
	return r
}

var _ = suite.Requirement("retryDeadLetter.replays", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushOne(ctx, t, item{queue: queue, partition: "a", payload: odd})
	r := retry(ctx, t, bury(ctx, t, queue, "a", "g", 1)[0])
	Expect([]string{r.Queue, r.Partition}).To(Equal([]string{queue, "a"}))
	Expect(popPartition(ctx, t, queue, "a", "consumerGroup=g").data()).To(Equal([]string{odd}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(BeEmpty())
})

var _ = suite.Requirement("retryDeadLetter.fresh", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	m := bury(ctx, t, queue, "a", "g", 1)[0]
	r := retry(ctx, t, m)
	Expect(r.ReplayedAs.Status).To(Equal("queued"))
	Expect(r.ReplayedAs.QueueName).To(Equal(queue))
	Expect(r.DLQRowRemoved).To(BeTrue())
	Expect(r.ReplayedAs.TransactionID).NotTo(Equal(m.TransactionID))
	Expect(r.ReplayedAs.MessageID).NotTo(Equal(m.ID))
	got := pop(ctx, t, queue, "consumerGroup=g").Messages
	Expect(got).To(HaveLen(1))
	Expect([]string{got[0].ID, got[0].TransactionID}).To(Equal([]string{r.ReplayedAs.MessageID, r.ReplayedAs.TransactionID}))
})

var _ = suite.Requirement("retryDeadLetter.once", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	m := bury(ctx, t, queue, "a", "g", 1)[0]
	var calls []func() suite.Outcome
	for range 6 {
		calls = append(calls, later(func() suite.Outcome { return t.Call(ctx, "retryDeadLetter", addressOf(m)) }))
	}
	succeeded := 0
	for _, call := range calls {
		if outcome := call(); outcome.Status == 200 {
			succeeded++
		} else {
			missing(outcome)
		}
	}
	Expect(succeeded).To(Equal(1), "replays at the same moment that succeeded")
	missing(t.Call(ctx, "retryDeadLetter", addressOf(m)))
	Expect(drain(ctx, t, queue, "consumerGroup=g")).To(HaveLen(1))
})

var _ = suite.Requirement("retryDeadLetter.once", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	m := bury(ctx, t, queue, "a", "g", 1)[0]
	retry(ctx, t, m)
	answer := post(ctx, t, "retryDeadLetter", "", m.PartitionID, m.TransactionID)
	Expect(answer.Status).To(Equal(404))
	Expect(answer.Body).To(MatchJSON(fmt.Sprintf(`{"success":false,"partitionId":%q,"transactionId":%q,"error":"Message not found"}`, m.PartitionID, m.TransactionID)))
}, suite.WireOnly)

var _ = suite.Requirement("retryDeadLetter.only", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 1)
	m := popOne(ctx, t, queue, "consumerGroup=looker")
	missing(t.Call(ctx, "retryDeadLetter", addressOf(m)))
	Expect(drain(ctx, t, queue)).To(HaveLen(1), "messages after the refused replay")
})

var _ = suite.Requirement("retryDeadLetter.groups", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	m := bury(ctx, t, queue, "a", "g", 1)[0]
	bury(ctx, t, queue, "a", "h", 1)
	retry(ctx, t, m)
	missing(t.Call(ctx, "retryDeadLetter", addressOf(m)))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(BeEmpty())
	Expect(drain(ctx, t, queue, "consumerGroup=g")).To(HaveLen(1))
})

type bulkReplay struct {
	Replayed  int `json:"replayed"`
	Remaining int `json:"remaining"`
}

func replay(ctx context.Context, t *suite.Target, params ...string) bulkReplay {
	var r bulkReplay
	bulk(ctx, t, "replayDeadLetters", &r, params...)
	return r
}

var _ = suite.Requirement("replayDeadLetters.replays", func(ctx context.Context, t *suite.Target) {
	queue, other := graves(ctx, t), graves(ctx, t)
	Expect(replay(ctx, t, "queue="+queue)).To(Equal(bulkReplay{Replayed: 3}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(BeEmpty())
	Expect(popPartition(ctx, t, queue, "a", "consumerGroup=g").data()).To(Equal([]string{"0", "1"}))
	Expect(popPartition(ctx, t, queue, "b", "consumerGroup=h").data()).To(Equal([]string{"7"}))
	Expect(letters(ctx, t, "queue="+other).texts()).To(HaveLen(3), "dead letters of another queue")
	Expect(replay(ctx, t, "queue="+queue)).To(Equal(bulkReplay{}))
})

var _ = suite.Requirement("replayDeadLetters.filter", func(ctx context.Context, t *suite.Target) {
	queue := graves(ctx, t)
	Expect(replay(ctx, t, "queue="+queue, "consumerGroup=g", "partition=b")).To(Equal(bulkReplay{}))
	at := letters(ctx, t, "queue="+queue).at(1).FailedAt
	Expect(replay(ctx, t, "queue="+queue, "from="+at, "to="+at)).To(Equal(bulkReplay{Replayed: 1}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"7", "0"}))
	Expect(replay(ctx, t, "queue="+queue, "consumerGroup=h")).To(Equal(bulkReplay{Replayed: 1}))
	Expect(replay(ctx, t, "queue="+queue, "partition=a")).To(Equal(bulkReplay{Replayed: 1}))
})

var _ = suite.Requirement("replayDeadLetters.bounded", func(ctx context.Context, t *suite.Target) {
	queue := graves(ctx, t)
	Expect(replay(ctx, t, "queue="+queue, "limit=2")).To(Equal(bulkReplay{Replayed: 2, Remaining: 1}))
	Expect(letters(ctx, t, "queue="+queue).texts()).To(Equal([]string{"7"}))
})

var _ = suite.Requirement("replayDeadLetters.groups", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 1)
	bury(ctx, t, queue, "a", "g", 1)
	bury(ctx, t, queue, "a", "h", 1)
	Expect(replay(ctx, t, "queue="+queue, "limit=1")).To(Equal(bulkReplay{Replayed: 1}))
	Expect(drain(ctx, t, queue, "consumerGroup=g")).To(HaveLen(1))
})

var _ = suite.Requirement("replayDeadLetters.strict", func(ctx context.Context, t *suite.Target) {
	strict(ctx, t, "replayDeadLetters", "/api/v1/dlq/replay")
}, suite.WireOnly)

var _ = suite.Requirement("replayDeadLetters.unknown", func(ctx context.Context, t *suite.Target) {
	unknownQueue(ctx, t, "replayDeadLetters", "/api/v1/dlq/replay")
}, suite.WireOnly)
