package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/uuid"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// TestPayloadsAreKept pops the bytes that were pushed.
func TestPayloadsAreKept(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	payloads := []string{
		"null", "true", "0", "-0.0", "1e400", "1E+2", strings.Repeat("1234567890", 4), `""`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`,
		`"<&>\u2028\/"`, `"é\u00e9"`, "\"\u2028\"", "{}", "[ ]", `{"a":1,"a":2,"":{ }}`, "{ \"b\" :\t[ 1 ,\n2 ] }", `"\\\" \b\f\n\r\t"`,
	}
	var items []string
	for i, p := range payloads {
		items = append(items, fmt.Sprintf(`{"queue":"bytes","transactionId":"t%d","payload":%s}`, i, p))
	}
	b.ask(201, "POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`, nil)
	r := b.ask(200, "GET", "/api/v1/pop/queue/bytes?batch=100", "", nil)
	rest := string(r.body)
	for i, p := range payloads {
		_, after, found := strings.Cut(rest, fmt.Sprintf(`"transactionId":"t%d",`, i))
		if want := `"traceId":null,"data":` + p + `,"producerSub":null`; !found || !strings.HasPrefix(after, want) {
			t.Fatalf("%s came back as %.200s", p, after)
		}
		rest = after
	}
}

// TestNames are decoded once, from JSON and from paths, and are kept as they are.
func TestNames(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for i, name := range []string{"plain", "a/b", "a%2Fb", "a b+c", "dots/../up", ".", "..", "ü€😀", `q"\`, "{queue}", "&=?#", "a//b"} {
		queueName, partition := fmt.Sprintf("%s-%d", name, i), name
		escaped := strings.ReplaceAll(strings.ReplaceAll(quote(queueName), "&", `\u0026`), "/", `\/`)
		body := fmt.Sprintf(`{"items":[{"queue":%s,"partition":%s,"transactionId":%s,"payload":1}]}`, escaped, quote(partition), quote(name))
		var results []struct {
			QueueName     string `json:"queueName"`
			TransactionID string `json:"transaction_id"`
		}
		b.ask(201, "POST", "/api/v1/push", body, &results)
		if results[0].QueueName != queueName || results[0].TransactionID != name {
			t.Errorf("%q: %+v", name, results)
		}
		var got popped
		b.ask(200, "GET", "/api/v1/pop/queue/"+url.PathEscape(queueName)+"/partition/"+url.PathEscape(partition), "", &got)
		if got.Queue != queueName || got.Partition != partition || got.Messages[0].TransactionID != name || got.Messages[0].Queue != queueName {
			t.Errorf("%q: %+v", name, got)
		}
		var detail struct{ Name string }
		b.ask(200, "GET", "/api/v1/resources/queues/"+url.PathEscape(queueName), "", &detail)
		if detail.Name != queueName {
			t.Errorf("%q: %+v", name, detail)
		}
	}
}

// TestRoundTrip pushes, pops, acknowledges and inspects, all through HTTP; every answer is checked
// against the description on its way.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	var pushed []struct {
		Index         int
		MessageID     string `json:"message_id"`
		TransactionID string `json:"transaction_id"`
		QueueName     string `json:"queueName"`
		Status        string
	}
	r := b.ask(201, "POST", "/api/v1/push", `{"items":[
		{"queue":"orders.created","partition":"c1","transactionId":"a","payload":{"n":1}},
		{"queue":"orders.created","partition":"c1","transactionId":"a","payload":{"n":2}},
		{"queue":"orders.created","partition":"c1","payload":{"n":3},"traceId":"ignored","data":"ignored"}]}`, &pushed)
	if len(pushed) != 3 || pushed[0].Status != "queued" || pushed[1].Status != "duplicate" || pushed[2].Status != "queued" {
		t.Fatalf("%s", r.body)
	}
	if pushed[1].MessageID != pushed[0].MessageID || pushed[2].TransactionID != pushed[2].MessageID || pushed[1].Index != 1 {
		t.Errorf("%s", r.body)
	}
	if id, err := uuid.Parse(pushed[0].MessageID); err != nil || id.Version() != 7 {
		t.Errorf("message_id %s", pushed[0].MessageID)
	}

	var got popped
	b.ask(200, "GET", "/api/v1/pop?namespace=orders&task=created&leaseSeconds=30", "", &got)
	if !got.Success || got.Queue != "" || got.Partition != "c1" || got.ConsumerGroup != "__QUEUE_MODE__" || got.LeaseID == "" || len(got.Messages) != 2 {
		t.Fatalf("%+v", got)
	}
	if at, err := time.Parse(timeLayout, got.Messages[0].CreatedAt); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("createdAt %s", got.Messages[0].CreatedAt)
	}

	var lease struct {
		Success bool
		Renewed int
		Expires *string `json:"expiresAt"`
	}
	b.ask(200, "POST", "/api/v1/lease/"+got.LeaseID+"/extend", `{"seconds":120}`, &lease)
	if !lease.Success || lease.Renewed != 1 || lease.Expires == nil {
		t.Errorf("extend: %+v", lease)
	}
	for id, status := range map[string]int{uuid.NewString(): 200, "no-uuid": 200, "%00": 200, "%ff": 400} {
		if r := b.do("POST", "/api/v1/lease/"+id+"/extend", ""); r.status != status || status == 200 && !strings.Contains(string(r.body), `"success":false,"renewed":0,`) {
			t.Errorf("extend %s: %d %s", id, r.status, r.body)
		}
	}

	type result struct {
		Index         int
		TransactionID string `json:"transactionId"`
		Success       bool
		Error         *string
		LeaseReleased bool `json:"leaseReleased"`
		DLQ           bool `json:"dlq"`
		Noop          bool
	}
	var acks []result
	one := fmt.Sprintf(`{"transactionId":"a","partitionId":%q,"leaseId":%q,"error":null,"status":null}`, got.PartitionID, got.LeaseID)
	r = b.ask(200, "POST", "/api/v1/ack", one, &acks)
	if len(acks) != 1 || !acks[0].Success || acks[0].LeaseReleased || acks[0].Error != nil {
		t.Errorf("ack: %s", r.body)
	}
	batch := fmt.Sprintf(`{"acknowledgments":[
		{"transactionId":"x","partitionId":"no-uuid"},
		{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"},
		{"transactionId":"nobody","partitionId":%q}]}`, pushed[2].TransactionID, got.PartitionID, got.LeaseID, got.PartitionID)
	r = b.ask(200, "POST", "/api/v1/ack/batch", batch, &acks)
	switch {
	case len(acks) != 3:
		t.Fatalf("ack/batch: %s", r.body)
	case acks[0].Success || acks[0].Error == nil || acks[0].TransactionID != "x":
		t.Errorf("ack/batch, no UUID: %s", r.body)
	case !acks[1].Success || !acks[1].LeaseReleased:
		t.Errorf("ack/batch, completed: %s", r.body)
	case acks[2].Success || acks[2].Error == nil || !strings.HasPrefix(*acks[2].Error, "unresolvable"):
		t.Errorf("ack/batch, unknown: %s", r.body)
	}
	if r := b.ask(200, "POST", "/api/v1/ack/batch", `{"acknowledgments":[]}`, nil); string(r.body) != "[]" {
		t.Errorf("empty batch: %s", r.body)
	}
	if r := b.do("GET", "/api/v1/pop/queue/orders.created", ""); r.status != 204 || len(r.body) > 0 {
		t.Errorf("pop after ack: %d %s", r.status, r.body)
	}

	var list struct {
		Queues []struct {
			Name     string
			Messages struct{ Total int }
		}
	}
	b.ask(200, "GET", "/api/v1/resources/queues", "", &list)
	if len(list.Queues) != 1 || list.Queues[0].Name != "orders.created" || list.Queues[0].Messages.Total != 2 {
		t.Errorf("list: %+v", list)
	}
	var deleted struct{ Deleted, Existed bool }
	b.ask(200, "DELETE", "/api/v1/resources/queues/orders.created", "", &deleted)
	if !deleted.Deleted || !deleted.Existed {
		t.Errorf("delete: %+v", deleted)
	}
	b.ask(200, "DELETE", "/api/v1/resources/queues/orders.created", "", &deleted)
	if deleted.Deleted || deleted.Existed {
		t.Errorf("delete again: %+v", deleted)
	}
	if r := b.do("GET", "/api/v1/resources/queues/orders.created", ""); r.status != 404 || r.errorText(t) != "Queue not found" {
		t.Errorf("get deleted: %d %s", r.status, r.body)
	}
	if log := b.log.String(); strings.Contains(log, "violates the API description") {
		t.Error(log)
	}
}

// TestSubscriptionFrom starts a group with the message of the very microsecond that it names.
func TestSubscriptionFrom(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "t", "1")
	var got popped
	b.ask(200, "GET", "/api/v1/pop/queue/q?consumerGroup=first", "", &got)
	at, err := time.Parse(timeLayout, got.Messages[0].CreatedAt)
	if err != nil {
		t.Fatal(err)
	}
	for group, tc := range map[string]struct {
		from   time.Time
		status int
	}{"before": {at.Add(-time.Microsecond), 200}, "at": {at, 200}, "after": {at.Add(time.Microsecond), 204}} {
		path := "/api/v1/pop/queue/q?consumerGroup=" + group + "&subscriptionFrom=" + timeText(tc.from)
		if r := b.do("GET", path, ""); r.status != tc.status {
			t.Errorf("%s: %d %s", group, r.status, r.body)
		}
	}
}

// TestNegativeAck keeps any error text of a client with the dead letter, and breaks on none.
func TestNegativeAck(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	for i, text := range []string{`"declined"`, `"a\u0000b"`, `"😀"`, quote(strings.Repeat("long ", 10_000))} {
		queueName := fmt.Sprintf("q%d", i)
		b.push(queueName, "p", "t", "1")
		var got popped
		b.ask(200, "GET", "/api/v1/pop/queue/"+queueName, "", &got)
		r := b.ask(200, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"status":"dlq","error":%s}`, got.PartitionID, text), nil)
		if !strings.Contains(string(r.body), `"success":true`) || !strings.Contains(string(r.body), `"dlq":true`) {
			t.Errorf("%.50s: %s", text, r.body)
		}
	}
}

// TestStrangeAcks are item errors, whatever they hold.
func TestStrangeAcks(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	b.push("q", "p", "t", "1")
	var got popped
	b.ask(200, "GET", "/api/v1/pop/queue/q", "", &got)
	for _, ack := range []string{
		`{"transactionId":"a\u0000b","partitionId":%q}`,
		`{"transactionId":"","partitionId":%q}`,
		`{"transactionId":"` + strings.Repeat("x", 5000) + `","partitionId":%q}`,
		`{"transactionId":"t","partitionId":%q,"leaseId":"a\u0000b"}`,
		`{"transactionId":"t","partitionId":%q,"leaseId":"not the lease"}`,
		`{"transactionId":"t","partitionId":"%.35s"}`,
		`{"transactionId":"t","partitionId":"{%s}"}`,
		`{"transactionId":"t","partitionId":"urn:uuid:%s"}`,
		`{"transactionId":"t","partitionId":"%.35s\u0000"}`,
		`{"transactionId":"a\u0000b","partitionId":%q,"status":"failed","error":"\u0000"}`,
		`{"transactionId":"a\u0000b","partitionId":%q,"status":"dlq","leaseId":"\u0000"}`,
	} {
		r := b.ask(200, "POST", "/api/v1/ack", fmt.Sprintf(ack, got.PartitionID), nil)
		if !strings.Contains(string(r.body), `"success":false,"error":"`) {
			t.Errorf("%.80s: %s", ack, r.body)
		}
	}
	for _, ack := range []string{`{"transactionId":"t","partitionId":%q,"consumerGroup":"a\u0000b"}`, `{"acknowledgments":[{"transactionId":"t","partitionId":%q}],"consumerGroup":"a\u0085b"}`} {
		path := "/api/v1/ack"
		if strings.Contains(ack, "acknowledgments") {
			path += "/batch"
		}
		r := b.ask(400, "POST", path, fmt.Sprintf(ack, got.PartitionID), nil)
		if text := r.errorText(t); text != "bad body: consumerGroup must not contain control characters" {
			t.Errorf("%s: %s", ack, text)
		}
	}
	r := b.ask(200, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"leaseId":%q}`, got.PartitionID, got.LeaseID), nil)
	if !strings.Contains(string(r.body), `"success":true`) {
		t.Errorf("the lease is gone: %s", r.body)
	}
}

// TestConfigure is a full replace, with options inside or beside.
func TestConfigure(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	type configured struct {
		Configured  bool
		Queue       string
		Namespace   string
		Task        string
		Storage     string
		PartitionID *string        `json:"partitionId"`
		Options     map[string]any `json:"options"`
	}
	for _, tc := range []struct {
		body, namespace, task string
		options               map[string]any // those that differ from the defaults
	}{
		{`{"queue":"q"}`, "", "", nil},
		{
			`{"queue":"q","options":{"leaseTime":5,"minPopWaitTime":99999,"deadLetterQueue":false,"namespace":"n","task":"t"}}`, "n", "t",
			map[string]any{"leaseTime": 5.0, "minPopWaitTime": 60000.0, "deadLetterQueue": false},
		},
		{`{"queue":"q","leaseTime":7,"namespace":"top","retryLimit":0}`, "top", "", map[string]any{"leaseTime": 7.0, "retryLimit": 0.0}},
		{`{"queue":"q","leaseTime":7,"namespace":"top","options":{"namespace":"in","task":"in","ttl":9}}`, "top", "in", map[string]any{"ttl": 9.0}},
		{`{"queue":"q","namespace":"","options":{"namespace":"in"}}`, "in", "", nil},
		{`{"queue":"q","options":null,"leaseTime":8}`, "", "", map[string]any{"leaseTime": 8.0}},
		{
			`{"queue":"q","options":{"leaseTime":null,"dedupWindowSeconds":0,"retentionEnabled":true}}`, "", "",
			map[string]any{"dedupWindowSeconds": 0.0, "retentionEnabled": true},
		},
		{`{"queue":"q","options":{"leaseTime":1},"options":{"ttl":2},"LeaseTime":3}`, "", "", map[string]any{"ttl": 2.0}},
		{`{"queue":"q","options":{}}`, "", "", nil},
	} {
		want := map[string]any{
			"leaseTime": 300.0, "retryLimit": 3.0, "deadLetterQueue": true, "dlqAfterMaxRetries": true, "delayedProcessing": 0.0,
			"windowBuffer": 0.0, "minPopWaitTime": 0.0, "retentionEnabled": false, "retentionSeconds": 0.0, "completedRetentionSeconds": 0.0,
			"maxWaitTimeSeconds": 0.0, "encryptionEnabled": false, "dedupWindowSeconds": 3600.0, "priority": 0.0, "maxSize": 0.0, "ttl": 0.0, "retryDelay": 0.0,
		}
		maps.Copy(want, tc.options)
		var got configured
		r := b.ask(200, "POST", "/api/v1/configure", tc.body, &got)
		if !got.Configured || got.Queue != "q" || got.Storage != "segments" || got.PartitionID != nil || got.Namespace != tc.namespace || got.Task != tc.task {
			t.Errorf("%s: %s", tc.body, r.body)
		}
		if fmt.Sprint(got.Options) != fmt.Sprint(want) {
			t.Errorf("%s:\n got %v\nwant %v", tc.body, got.Options, want)
		}
		var detail configured
		b.ask(200, "GET", "/api/v1/resources/queues/q", "", &detail)
		if fmt.Sprint(detail.Options) != fmt.Sprint(want) || detail.Namespace != tc.namespace {
			t.Errorf("%s: detail %v", tc.body, detail)
		}
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	b := start(t, nil)
	type clock struct {
		Now           string
		OffsetSeconds float64 `json:"offsetSeconds"`
	}
	var before, after clock
	b.ask(200, "GET", "/testing/clock", "", &before)
	b.ask(200, "POST", "/testing/clock", `{"advance":"2160h"}`, &after)
	from, err1 := time.Parse(timeLayout, before.Now)
	to, err2 := time.Parse(timeLayout, after.Now)
	if err1 != nil || err2 != nil || before.OffsetSeconds != 0 || after.OffsetSeconds != 7776000 {
		t.Fatalf("%+v, %+v", before, after)
	}
	if moved := to.Sub(from); moved < 2160*time.Hour || moved > 2161*time.Hour {
		t.Errorf("moved by %v", moved)
	}
}

// TestWireTypesMatchTheDescription walks each answer and each decoded request beside its schema: the
// same keys on both sides, and in answers the right kinds.
func TestWireTypesMatchTheDescription(t *testing.T) {
	t.Parallel()
	text := "x"
	id, now := uuid.New(), time.Now()
	message := queue.Message{ID: id, TransactionID: "t", TraceID: id, ProducerSub: "s", CreatedAt: now, Context: queue.ParseTraceParent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), DeliveryAttempt: 1, Payload: []byte("1")}
	pop := queue.PopResult{LeaseID: "l", Group: "g", Partitions: []queue.PoppedPartition{{Queue: "q", Name: "p", ID: id, Messages: []queue.Message{message}}}}
	counts := partitionCounts{}
	stats := partitionRow{ID: id.String(), Name: "p", CreatedAt: timeText(now), Stats: counts, OldestMessage: &text, NewestMessage: &text}
	stored := queue.StoredMessage{Message: message, LeaseUntil: now}
	tail, err := encode(200, messageTail{ErrorMessage: &text, ConsumerGroups: []messageGroup{{LeaseExpiresAt: &text}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		operation string
		status    int
		sample    any // []byte or a wire struct
	}{
		{"push", 201, appendPushResults([]queue.PushItem{{Queue: "q"}}, []queue.PushResult{{MessageID: id, TransactionID: "t", Status: queue.Queued}})},
		{"popQueue", 200, appendPop("q", pop)},
		{"popPartition", 200, appendPop("q", pop)},
		{"pop", 200, appendPop("", pop)},
		{"pop", 400, (&edge{}).answerError(nil, errNoDiscovery).body},
		{"ack", 200, appendAckResults(make([]ackRequest, 1), make([]queue.AckResult, 1))},
		{"ackBatch", 200, appendAckResults(make([]ackRequest, 1), []queue.AckResult{{Err: queue.ErrLease}})},
		{"extendLease", 200, leaseAnswer{NewExpiresAt: &text, ExpiresAt: &text, LeaseExpiresAt: &text}},
		{"configure", 200, configureAnswer{PartitionID: []byte("null")}},
		{"listQueues", 200, queueList{Queues: make([]queueRow, 1)}},
		{"getQueue", 200, queueDetail{Partitions: []partitionRow{stats}}},
		{"getQueue", 404, (&edge{}).answerError(nil, queue.ErrQueueNotFound).body},
		{"deleteQueue", 200, deletedQueue{Message: "m"}},
		{"health", 200, healthAnswer{durability: &durability{}, Spool: &spoolHealth{}}},
		{"health", 503, healthAnswer{Spool: &spoolHealth{}}},
		{"getMaintenance", 200, maintenanceAnswer{}},
		{"setMaintenance", 200, maintenanceSwitched{}},
		{"getPopMaintenance", 200, popMaintenanceAnswer{}},
		{"getSharedState", 200, sharedStateAnswer{ShardHeads: make([]int64, 1)}},
		{"notify", 200, notifyAnswer{}},
		{"getBuffers", 200, buffersAnswer{}},
		{"setFaults", 200, faultsBody{Postgres: "error", Spool: "error", Groups: []string{"q/p"}, Times: 1}},
		{"listMessages", 200, appendMessagePage(queue.MessagePage{Messages: []queue.StoredMessage{stored}})},
		{"getMessage", 200, append(append(appendStored(nil, &stored), ','), tail.body[1:]...)},
		{"getMessage", 404, (&edge{}).answerError(nil, queue.ErrMessageNotFound).body},
		{"deleteDeadLetter", 200, deletedDeadLetter{}},
		{"deleteDeadLetter", 404, (&edge{}).answerError(nil, noDeadLetter(queue.ErrMessageNotFound, id, "t")).body},
		{"listDeadLetters", 200, appendDeadLetterPage(queue.DeadLetterPage{Entries: []queue.DeadLetterEntry{{Message: message}}}, 1, 0)},
		{"purgeDeadLetters", 200, purgedDeadLetters{}},
		{"retryDeadLetter", 200, appendReplayed(queue.Replayed{Queue: "q", Partition: "p", Result: queue.PushResult{Status: queue.Queued}})},
		{"replayDeadLetters", 200, replayedDeadLetters{}},
		{"status", 200, statusAnswer{}},
		{"getClock", 200, clockAnswer{}},
		{"advanceClock", 200, clockAnswer{}},
	} {
		op, ok := spec(t).Operation(tc.operation)
		if !ok {
			t.Fatalf("no operation %s", tc.operation)
		}
		body, ok := tc.sample.([]byte)
		if !ok {
			ans, err := encode(tc.status, tc.sample)
			if err != nil {
				t.Fatal(err)
			}
			body = ans.body
		}
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			t.Fatalf("%s %d: %v", tc.operation, tc.status, err)
		}
		compare(t, fmt.Sprintf("%s %d", tc.operation, tc.status), value, op.ResponseSchema(tc.status))
	}
	for _, tc := range []struct {
		operation string
		sample    any
	}{
		{"ack", ackSingle{ackRequest: ackRequest{Status: &text}}},
		{"ackBatch", ackBatchRequest{Acknowledgments: []ackRequest{{Status: &text}}}},
		{"extendLease", extendRequest{}},
		{"configure", configureRequest{Options: []byte("{}")}},
		{"advanceClock", advanceRequest{}},
	} {
		op, _ := spec(t).Operation(tc.operation)
		ans, err := encode(0, tc.sample)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(ans.body, &value); err != nil {
			t.Fatal(err)
		}
		if options, ok := value.(map[string]any)["options"].(map[string]any); ok {
			ans, err := encode(0, optionsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(ans.body, &options); err != nil {
				t.Fatal(err)
			}
		}
		compare(t, tc.operation+" request", value, op.RequestSchema())
	}
}

// compare wants the keys of value and the properties of its schema to be the same, all the way down.
func compare(t *testing.T, at string, value any, schema *openapi3.Schema) {
	t.Helper()
	if schema == nil {
		t.Errorf("%s: no schema", at)
		return
	}
	switch v := value.(type) {
	case map[string]any:
		if len(schema.Properties) == 0 {
			t.Errorf("%s: an object, but the schema has no properties", at)
			return
		}
		for key, inner := range v {
			property := schema.Properties[key]
			if property == nil {
				t.Errorf("%s.%s is not in the description", at, key)
				continue
			}
			compare(t, at+"."+key, inner, property.Value)
		}
		for key := range schema.Properties {
			if _, ok := v[key]; !ok && key != "code" { // only some errors have one
				t.Errorf("%s.%s is in the description only", at, key)
			}
		}
	case []any:
		if !schema.Type.Is("array") {
			t.Errorf("%s: an array, but the schema says %v", at, schema.Type)
			return
		}
		for i, inner := range v {
			compare(t, fmt.Sprintf("%s[%d]", at, i), inner, schema.Items.Value)
		}
	case nil:
		if !schema.Nullable && strings.HasSuffix(at, "request") {
			t.Errorf("%s may be null, but not in the description", at)
		}
	default:
		kind := map[string][]string{"string": {"string"}, "float64": {"integer", "number"}, "bool": {"boolean"}}[fmt.Sprintf("%T", v)]
		if schema.Type != nil && !slices.ContainsFunc(kind, schema.Type.Is) {
			t.Errorf("%s is a %T, but the schema says %v", at, v, schema.Type)
		}
	}
}
