package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

const (
	modeGroup = "__QUEUE_MODE__"
	zeroID    = "00000000-0000-0000-0000-000000000000"
)

// item is one message to push. An empty partition or transaction id is left out; an empty payload is null.
type item struct {
	queue, partition, transactionID string
	payload                         string // JSON text, sent as it is
}

func (i item) json() string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"queue":%s`, quote(i.queue))
	if i.partition != "" {
		fmt.Fprintf(&b, `,"partition":%s`, quote(i.partition))
	}
	if i.transactionID != "" {
		fmt.Fprintf(&b, `,"transactionId":%s`, quote(i.transactionID))
	}
	payload := i.payload
	if payload == "" {
		payload = "null"
	}
	fmt.Fprintf(&b, `,"payload":%s}`, payload)
	return b.String()
}

func quote(text string) string {
	quoted, err := json.Marshal(text)
	Expect(err).NotTo(HaveOccurred())
	return string(quoted)
}

// pushed is one result of a push.
type pushed struct {
	Index         int    `json:"index"`
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	QueueName     string `json:"queueName"`
	Status        string `json:"status"`
}

func pushBody(items ...item) json.RawMessage {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.json()
	}
	return json.RawMessage(`{"items":[` + strings.Join(texts, ",") + `]}`)
}

// push pushes the items in one call and returns one result per item. What is asserted here is only what every spec
// needs: that the push was accepted.
func push(ctx context.Context, t *suite.Target, items ...item) []pushed {
	outcome := t.Call(ctx, "push", suite.Args{Body: pushBody(items...)})
	return decodePush(outcome, len(items))
}

func decodePush(outcome suite.Outcome, items int) []pushed {
	if outcome.Status/100 != 2 {
		suite.Failf(2, "the push was answered %d %s", outcome.Status, outcome.Body)
	}
	var results []pushed
	if err := json.Unmarshal(outcome.Body, &results); err != nil {
		suite.Failf(2, "the push was not answered with an array of results: %v", err)
	}
	if len(results) != items {
		suite.Failf(2, "the push of %d items was answered with %d results", items, len(results))
	}
	return results
}

// pushOne pushes one item.
func pushOne(ctx context.Context, t *suite.Target, i item) pushed {
	return decodePush(t.Call(ctx, "push", suite.Args{Body: pushBody(i)}), 1)[0]
}

// pushNumbers pushes n messages to the queue's default partition in one call, with the payloads 0 to n-1 and the
// transaction ids t0 to t<n-1>.
func pushNumbers(ctx context.Context, t *suite.Target, queue string, n int) []pushed {
	return pushNumbersTo(ctx, t, queue, "", n)
}

func pushNumbersTo(ctx context.Context, t *suite.Target, queue, partition string, n int) []pushed {
	items := make([]item, n)
	for i := range items {
		items[i] = item{queue: queue, partition: partition, transactionID: fmt.Sprintf("t%d", i), payload: fmt.Sprint(i)}
	}
	return push(ctx, t, items...)
}

// message is one popped message.
type message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	TraceID         *string         `json:"traceId"`
	Data            json.RawMessage `json:"data"`
	ProducerSub     *string         `json:"producerSub"`
	TraceParent     string          `json:"traceparent"`
	CreatedAt       string          `json:"createdAt"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	ConsumerGroup   string          `json:"consumerGroup"`
	Queue           string          `json:"queue"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
}

// popped is the answer to a pop. Nothing was popped when it has no messages.
type popped struct {
	Status            int       `json:"-"`
	Queue             string    `json:"queue"`
	Partition         string    `json:"partition"`
	PartitionID       string    `json:"partitionId"`
	LeaseID           string    `json:"leaseId"`
	ConsumerGroup     string    `json:"consumerGroup"`
	Messages          []message `json:"messages"`
	PartitionsClaimed int       `json:"partitionsClaimed"`
}

// data lists the payloads in order.
func (p popped) data() []string { return dataOf(p.Messages) }

func dataOf(messages []message) []string {
	texts := []string{}
	for _, m := range messages {
		texts = append(texts, string(m.Data))
	}
	return texts
}

// pop pops from a queue. params are name=value.
func pop(ctx context.Context, t *suite.Target, queue string, params ...string) popped {
	return decodePop(t.Call(ctx, "popQueue", suite.Args{Path: map[string]string{"queue": queue}, Query: query(params)}))
}

// popPartition pops from one partition.
func popPartition(ctx context.Context, t *suite.Target, queue, partition string, params ...string) popped {
	path := map[string]string{"queue": queue, "partition": partition}
	return decodePop(t.Call(ctx, "popPartition", suite.Args{Path: path, Query: query(params)}))
}

// discover pops by namespace or task.
func discover(ctx context.Context, t *suite.Target, params ...string) popped {
	return decodePop(t.Call(ctx, "pop", suite.Args{Query: query(params)}))
}

func query(params []string) url.Values {
	values := url.Values{}
	for _, param := range params {
		name, value, _ := strings.Cut(param, "=")
		values.Add(name, value)
	}
	return values
}

func decodePop(outcome suite.Outcome) popped {
	if outcome.Status/100 != 2 {
		suite.Failf(2, "the pop was answered %d %s", outcome.Status, outcome.Body)
	}
	answer := popped{Status: outcome.Status}
	if len(outcome.Body) == 0 {
		return answer
	}
	if err := json.Unmarshal(outcome.Body, &answer); err != nil {
		suite.Failf(2, "the pop was not answered with an object: %v", err)
	}
	return answer
}

// drain pops and commits until nothing is left for the group, and returns all messages.
func drain(ctx context.Context, t *suite.Target, queue string, params ...string) []message {
	var all []message
	params = append([]string{"autoAck=true", "batch=1000", "partitions=0"}, params...)
	for range 1000 {
		answer := pop(ctx, t, queue, params...)
		if len(answer.Messages) == 0 {
			return all
		}
		all = append(all, answer.Messages...)
	}
	suite.Failf(1, "the queue %s does not run dry: %d messages so far", queue, len(all))
	return nil
}

// acknowledgment is one item of an ack. Empty members are left out.
type acknowledgment struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	Status        string `json:"status,omitempty"`
	ConsumerGroup string `json:"consumerGroup,omitempty"`
	LeaseID       string `json:"leaseId,omitempty"`
	Error         string `json:"error,omitempty"`
}

// of acknowledges a popped message under its lease.
func of(m message, status string) acknowledgment {
	group := m.ConsumerGroup
	if group == modeGroup {
		group = ""
	}
	return acknowledgment{
		TransactionID: m.TransactionID, PartitionID: m.PartitionID, Status: status, LeaseID: m.LeaseID, ConsumerGroup: group,
	}
}

// acked is one result of an ack.
type acked struct {
	Index         int     `json:"index"`
	TransactionID string  `json:"transactionId"`
	Success       bool    `json:"success"`
	Error         *string `json:"error"`
	LeaseReleased bool    `json:"leaseReleased"`
	DLQ           bool    `json:"dlq"`
	Noop          bool    `json:"noop"`
}

// reason is the error text, "" when there is none.
func (a acked) reason() string {
	if a.Error == nil {
		return ""
	}
	return *a.Error
}

// ack acknowledges one message.
func ack(ctx context.Context, t *suite.Target, a acknowledgment) acked {
	body, err := json.Marshal(a)
	Expect(err).NotTo(HaveOccurred())
	return decodeAck(t.Call(ctx, "ack", suite.Args{Body: body}), 1)[0]
}

// ackBatch acknowledges several messages of one group, that of the last item.
func ackBatch(ctx context.Context, t *suite.Target, items ...acknowledgment) []acked {
	request := map[string]any{"acknowledgments": items}
	for i := range items {
		if group := items[i].ConsumerGroup; group != "" {
			request["consumerGroup"] = group
		}
		items[i].ConsumerGroup = ""
	}
	body, err := json.Marshal(request)
	Expect(err).NotTo(HaveOccurred())
	return decodeAck(t.Call(ctx, "ackBatch", suite.Args{Body: body}), len(items))
}

func decodeAck(outcome suite.Outcome, items int) []acked {
	if outcome.Status/100 != 2 {
		suite.Failf(2, "the ack was answered %d %s", outcome.Status, outcome.Body)
	}
	var results []acked
	if err := json.Unmarshal(outcome.Body, &results); err != nil {
		var single acked
		if json.Unmarshal(outcome.Body, &single) != nil {
			suite.Failf(2, "the ack was not answered with an array of results: %v", err)
		}
		results = []acked{single} // that it is no array is the business of one spec
	}
	if len(results) != items {
		suite.Failf(2, "the ack of %d items was answered with %d results", items, len(results))
	}
	return results
}

// configure creates or configures a queue.
func configure(ctx context.Context, t *suite.Target, queue string, options map[string]any) suite.Outcome {
	outcome := tryConfigure(ctx, t, queue, options)
	if outcome.Status/100 != 2 {
		suite.Failf(1, "the configure was answered %d %s", outcome.Status, outcome.Body)
	}
	return outcome
}

func tryConfigure(ctx context.Context, t *suite.Target, queue string, options map[string]any) suite.Outcome {
	body, err := json.Marshal(map[string]any{"queue": queue, "options": options})
	Expect(err).NotTo(HaveOccurred())
	return t.Call(ctx, "configure", suite.Args{Body: body})
}

// seconds is d as an option or parameter in whole seconds wants it.
func seconds(d time.Duration) int { return int(d / time.Second) }

// later runs f in the background. The returned function waits for it, and ends the spec the way f ended.
func later[T any](f func() T) func() T {
	type end struct {
		value    T
		panicked any
	}
	done := make(chan end, 1)
	go func() {
		var e end
		defer func() {
			e.panicked = recover()
			done <- e
		}()
		e.value = f()
	}()
	return func() T {
		e := <-done
		if e.panicked != nil {
			panic(e.panicked)
		}
		return e.value
	}
}

// awaitQueue waits until the queue exists, which is the sign that a pop of a fresh queue has reached the target.
func awaitQueue(ctx context.Context, t *suite.Target, queue string) {
	deadline := time.Now().Add(t.Patience())
	for time.Now().Before(deadline) {
		outcome := t.Call(ctx, "getQueue", suite.Args{Path: map[string]string{"queue": queue}})
		if outcome.Status == 200 {
			settle(ctx)
			return
		}
	}
	suite.Failf(1, "the parked pop did not create the queue %s", queue)
}

// settle gives a request that was just sent the time to be parked. Nothing on the wire tells when it is; when it is
// not yet, the spec is easier to pass but never fails by it.
func settle(ctx context.Context) {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
}

// rejected asserts a 400. What its body holds is the business of the requirements about errors.
func rejected(answer suite.Answer) {
	if answer.Status != 400 {
		suite.Failf(1, "the bad request was answered %d %.200s", answer.Status, answer.Body)
	}
}

// rejectedAs asserts a 400 whose error starts with prefix.
func rejectedAs(answer suite.Answer, prefix string) {
	Expect(answer.Status).To(Equal(400), "status of %s", answer.Body)
	var problem struct {
		Error string `json:"error"`
	}
	Expect(json.Unmarshal(answer.Body, &problem)).To(Succeed(), "error body %q", answer.Body)
	Expect(problem.Error).To(HavePrefix(prefix))
}

// post sends a body that the spec composed. params fill the operation's path in order.
func post(ctx context.Context, t *suite.Target, operation, body string, params ...string) suite.Answer {
	request := suite.Request{
		Operation: operation, Body: strings.NewReader(body), Header: http.Header{"Content-Type": {"application/json"}},
	}
	if len(params) > 0 {
		described, _ := suite.Description().Operation(operation)
		segments := strings.Split(described.Path, "/")
		for i, segment := range segments {
			if strings.HasPrefix(segment, "{") {
				segments[i], params = url.PathEscape(params[0]), params[1:]
			}
		}
		request.Target = strings.Join(segments, "/")
	}
	return t.Raw(ctx, request)
}

// encoded is the JSON of a body.
func encoded(value any) []byte {
	body, err := json.Marshal(value)
	Expect(err).NotTo(HaveOccurred())
	return body
}

// decode reads JSON that a spec relies on.
func decode(body []byte, into any) {
	if err := json.Unmarshal(body, into); err != nil {
		suite.Failf(2, "the answer cannot be read: %v: %.200s", err, body)
	}
}
