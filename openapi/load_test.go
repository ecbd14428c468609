package openapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/openapi"
)

func mustLoad(t testing.TB) *openapi.Spec {
	t.Helper()
	spec, err := openapi.Load()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func operation(t testing.TB, id string) *openapi.Operation {
	t.Helper()
	op, ok := mustLoad(t).Operation(id)
	if !ok {
		t.Fatalf("no operation %s", id)
	}
	return op
}

// TestOperations pins the operations of this version: their names, routes and access levels are the wire contract.
func TestOperations(t *testing.T) {
	t.Parallel()
	want := []string{
		"ack POST /api/v1/ack read-write",
		"ackBatch POST /api/v1/ack/batch read-write",
		"advanceClock POST /testing/clock admin",
		"cancelMessageV1 DELETE /v1/messages/{messageId} read-write",
		"cancelPublished DELETE /v2/messages/{messageId} read-write",
		"cancelPublishedMany DELETE /v2/messages read-write",
		"configure POST /api/v1/configure read-write",
		"configureURLGroup PATCH /v2/topics/{topic} read-write",
		"createEndpointV1 POST /v1/endpoints read-write",
		"createSchedule POST /v2/schedules/{schedule} read-write",
		"createTopicV1 POST /v1/topics read-write",
		"cycleStream POST /streams/v1/cycle read-write",
		"deleteConsumerGroup DELETE /api/v1/consumer-groups/{group} admin",
		"deleteConsumerGroupQueue DELETE /api/v1/consumer-groups/{group}/queues/{queue} admin",
		"deleteDeadLetter DELETE /api/v1/messages/{partitionId}/{transactionId} read-write",
		"deleteDeliveryQueue DELETE /v2/queues/{queueName} read-write",
		"deleteEndpointV1 DELETE /v1/endpoints/{endpointId} read-write",
		"deleteFailed DELETE /v2/dlq/{dlqId} read-write",
		"deleteFailedMany DELETE /v2/dlq read-write",
		"deleteQueue DELETE /api/v1/resources/queues/{queue} admin",
		"deleteSchedule DELETE /v2/schedules/{schedule} read-write",
		"deleteScheduleV1 DELETE /v1/schedules/{scheduleId} read-write",
		"deleteTopicV1 DELETE /v1/topics/{topic} read-write",
		"deleteURLGroup DELETE /v2/topics/{topic} read-write",
		"enqueue POST /v2/enqueue/{queueName}/{destination} write-only",
		"extendLease POST /api/v1/lease/{leaseId}/extend read-write",
		"getAnalytics GET /api/v1/status/analytics read-only",
		"getBuffers GET /api/v1/status/buffers read-only",
		"getClock GET /testing/clock admin",
		"getConsumerGroup GET /api/v1/consumer-groups/{group} read-only",
		"getDeliveryQueue GET /v2/queues/{queueName} read-only",
		"getEndpointV1 GET /v1/endpoints/{endpointId} read-only",
		"getFailed GET /v2/dlq/{dlqId} read-only",
		"getFlowControl GET /v2/flowControl/{flowControlKey} read-only",
		"getGlobalParallelism GET /v2/globalParallelism read-only",
		"getMaintenance GET /api/v1/system/maintenance admin",
		"getMessage GET /api/v1/messages/{partitionId}/{transactionId} read-only",
		"getMessageV1 GET /v1/messages/{messageId} read-only",
		"getMetrics GET /metrics public",
		"getOverview GET /api/v1/resources/overview read-only",
		"getParkedPops GET /api/v1/analytics/queue-parked-replicas read-only",
		"getPopMaintenance GET /api/v1/system/maintenance/pop admin",
		"getPostgresStats GET /api/v1/analytics/postgres-stats read-only",
		"getPublished GET /v2/messages/{messageId} read-only",
		"getQueue GET /api/v1/resources/queues/{queue} read-only",
		"getQueueLag GET /api/v1/analytics/queue-lag read-only",
		"getQueueOps GET /api/v1/analytics/queue-ops read-only",
		"getQueueStatus GET /api/v1/status/queues/{queue} read-only",
		"getQuotaV1 GET /v1/quota read-only",
		"getRetentionStats GET /api/v1/analytics/retention read-only",
		"getSchedule GET /v2/schedules/{schedule} read-only",
		"getScheduleV1 GET /v1/schedules/{scheduleId} read-only",
		"getSharedState GET /api/v1/system/shared-state admin",
		"getSigningKeys GET /v2/keys read-only",
		"getSigningKeysV1 GET /v1/keys read-only",
		"getStatus GET /api/v1/status read-only",
		"getStreamState POST /streams/v1/state/get read-only",
		"getSystemMetrics GET /api/v1/analytics/system-metrics read-only",
		"getTaskV1 GET /v1/tasks/{taskId} read-only",
		"getTopicV1 GET /v1/topics/{topic} read-only",
		"getURLGroup GET /v2/topics/{topic} read-only",
		"getWorkerMetrics GET /api/v1/analytics/worker-metrics read-only",
		"health GET /health public",
		"index GET / public",
		"laggingPartitions GET /api/v1/consumer-groups/lagging read-only",
		"listConsumerGroups GET /api/v1/consumer-groups read-only",
		"listDeadLetters GET /api/v1/dlq read-only",
		"listDeliveryQueues GET /v2/queues read-only",
		"listEndpointsV1 GET /v1/endpoints read-only",
		"listEvents GET /v2/events read-only",
		"listEventsV1 GET /v1/events read-only",
		"listFailed GET /v2/dlq read-only",
		"listFlowControl GET /v2/flowControl read-only",
		"listLogs GET /v2/logs read-only",
		"listLogsV1 GET /v1/logs read-only",
		"listMessageLogsV1 GET /v1/messages/{messageId}/logs read-only",
		"listMessages GET /api/v1/messages read-only",
		"listMessagesV1 GET /v1/messages read-only",
		"listNamespaces GET /api/v1/resources/namespaces read-only",
		"listQueueStatus GET /api/v1/status/queues read-only",
		"listQueues GET /api/v1/resources/queues read-only",
		"listSchedules GET /v2/schedules read-only",
		"listSchedulesV1 GET /v1/schedules read-only",
		"listTasks GET /api/v1/resources/tasks read-only",
		"listTasksV1 GET /v1/messages/{messageId}/tasks read-only",
		"listTopicsV1 GET /v1/topics read-only",
		"listURLGroups GET /v2/topics read-only",
		"messageTraces GET /api/v1/traces/{partitionId}/{transactionId} read-only",
		"metrics GET /metrics/prometheus public",
		"moveEndpointV1 PUT /v1/endpoints/{endpointId} read-write",
		"notify POST /internal/api/notify admin",
		"openapi GET /openapi.json public",
		"pauseDeliveryQueue POST /v2/queues/{queueName}/pause read-write",
		"pauseFlowControl POST /v2/flowControl/{flowControlKey}/pause read-write",
		"pauseSchedule PATCH /v2/schedules/{schedule}/pause read-write",
		"pauseScheduleByPost POST /v2/schedules/{schedule}/pause read-write",
		"pinFlowControl POST /v2/flowControl/{flowControlKey}/pin read-write",
		"pop GET /api/v1/pop read-write",
		"popPartition GET /api/v1/pop/queue/{queue}/partition/{partition} read-write",
		"popQueue GET /api/v1/pop/queue/{queue} read-write",
		"publish POST /v2/publish/{destination} write-only",
		"publishBatch POST /v2/batch write-only",
		"publishV1 POST /v1/publish/{destination} write-only",
		"purgeDeadLetters DELETE /api/v1/dlq read-write",
		"push POST /api/v1/push write-only",
		"refreshStats POST /api/v1/stats/refresh admin",
		"registerStream POST /streams/v1/queries read-write",
		"removeEndpoints DELETE /v2/topics/{topic}/endpoints read-write",
		"renameTopicV1 PUT /v1/topics/{topic} read-write",
		"replayDeadLetters POST /api/v1/dlq/replay read-write",
		"resetFlowRate POST /v2/flowControl/{flowControlKey}/resetRate read-write",
		"resumeDeliveryQueue POST /v2/queues/{queueName}/resume read-write",
		"resumeFlowControl POST /v2/flowControl/{flowControlKey}/resume read-write",
		"resumeSchedule PATCH /v2/schedules/{schedule}/resume read-write",
		"resumeScheduleByPost POST /v2/schedules/{schedule}/resume read-write",
		"retryDeadLetter POST /api/v1/messages/{partitionId}/{transactionId}/retry read-write",
		"retryFailed POST /v2/dlq/retry/{dlqId} read-write",
		"retryFailedMany POST /v2/dlq/retry read-write",
		"rotateSigningKeys POST /v2/keys/rotate admin",
		"rotateSigningKeysAlias POST /v2/rotate admin",
		"rotateSigningKeysV1 POST /v1/keys/rotate admin",
		"seek POST /api/v1/consumer-groups/{group}/queues/{queue}/seek read-write",
		"seekPartition POST /api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek read-write",
		"setFaults PUT /testing/faults admin",
		"setMaintenance POST /api/v1/system/maintenance admin",
		"setPopMaintenance POST /api/v1/system/maintenance/pop admin",
		"status GET /status read-only",
		"subscribe POST /api/v1/consumer-groups/{group}/subscription read-write",
		"trace POST /api/v1/traces read-write",
		"traceNames GET /api/v1/traces/names read-only",
		"tracesByName GET /api/v1/traces/by-name/{name} read-only",
		"transaction POST /api/v1/transaction read-write",
		"unpinFlowControl POST /v2/flowControl/{flowControlKey}/unpin read-write",
		"upsertDeliveryQueue POST /v2/queues read-write",
		"upsertEndpoints POST /v2/topics/{topic}/endpoints read-write",
	}
	var got []string
	for _, op := range mustLoad(t).Operations() {
		got = append(got, strings.Join([]string{op.ID, op.Method, op.Path, op.Access}, " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("operations:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestExamplesPass checks every example against the operation that it stands in.
func TestExamplesPass(t *testing.T) {
	t.Parallel()
	for _, op := range mustLoad(t).Operations() {
		body := op.RequestExample()
		if takes, _ := op.HasBody(); takes && body == nil {
			t.Errorf("%s: no request example", op.ID)
		}
		params := map[string]string{
			"partitionId": "0198f2c1-4d3a-7c10-9f2b-6a1e5d0c7b84", "transactionId": "t", "name": "n",
			"queue": "q", "partition": "p", "leaseId": "l", "group": "g", "destination": "http://d/", "messageId": "m", "taskId": "k", "topic": "t", "endpointId": "e",
			"schedule": "http://d/", "scheduleId": "s", "dlqId": "d", "queueName": "q", "flowControlKey": "k",
		}
		if err := op.CheckRequest(httptest.NewRequestWithContext(t.Context(), op.Method, "/?queue=q", nil), params, body); err != nil {
			t.Errorf("%s: request example: %v", op.ID, err)
		}
		for _, status := range op.Statuses() {
			mediaType, body := op.ResponseExample(status)
			if mediaType != "" && len(body) == 0 {
				t.Errorf("%s: no example of %d", op.ID, status)
			}
			header := http.Header{}
			if mediaType != "" {
				header.Set("Content-Type", mediaType+"; charset=utf-8")
			}
			if status == 429 || status == 503 {
				header.Set("Retry-After", "1")
			}
			if op.ID == "publishV1" {
				header.Set("Upstash-Deduplication-Id", "unique123")
			}
			if err := op.CheckResponse(status, header, body); err != nil {
				t.Errorf("%s: example of %d: %v", op.ID, status, err)
			}
		}
	}
}

func TestRequirements(t *testing.T) {
	t.Parallel()
	spec := mustLoad(t)
	all := spec.Requirements()
	if len(all) < 120 {
		t.Fatalf("only %d requirements", len(all))
	}
	seen := make(map[string]bool)
	for _, r := range all {
		if seen[r.ID] {
			t.Errorf("%s: twice", r.ID)
		}
		seen[r.ID] = true
		if got, ok := spec.Requirement(r.ID); !ok || got.Text != r.Text {
			t.Errorf("%s: not found by its id", r.ID)
		}
		prefix, _, _ := strings.Cut(r.ID, ".")
		if _, ok := spec.Operation(prefix); ok != (r.Operation == prefix) {
			t.Errorf("%s: operation %q", r.ID, r.Operation)
		}
		if !strings.HasSuffix(r.Text, ".") {
			t.Errorf("%s: the text is no sentence", r.ID)
		}
	}
	for _, op := range spec.Operations() {
		if !slices.ContainsFunc(all, func(r openapi.Requirement) bool { return r.Operation == op.ID }) {
			t.Errorf("%s has no requirement", op.ID)
		}
	}
	if first, last := all[0].ID, all[len(all)-1].ID; !strings.HasPrefix(first, "push.") || !strings.HasPrefix(last, "pop") && !strings.HasPrefix(last, "ack") && !strings.HasPrefix(last, "http") {
		t.Errorf("not in document order: %s … %s", first, last)
	}
}

func TestBundle(t *testing.T) {
	t.Parallel()
	spec := mustLoad(t)
	if !json.Valid(spec.JSON()) {
		t.Fatal("the bundle is not JSON")
	}
	var doc struct {
		OpenAPI string
		Paths   map[string]json.RawMessage
	}
	if err := json.Unmarshal(spec.JSON(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.0.3" || doc.Paths["/api/v1/push"] == nil || doc.Paths["/health"] == nil || doc.Paths["/testing/clock"] == nil {
		t.Errorf("the bundle lacks parts: openapi %s, %d paths", doc.OpenAPI, len(doc.Paths))
	}
	if !bytes.HasPrefix(spec.JSON(), []byte(`{"openapi":"3.0.3","info":{"title":"Posthorn"`)) {
		t.Errorf("keys are not in document order: %.80s", spec.JSON())
	}
	if spec.Version() == "" || len(spec.SHA256()) != 64 {
		t.Errorf("version %q, sha256 %q", spec.Version(), spec.SHA256())
	}
	if op := operation(t, "openapi"); op.CheckResponse(200, http.Header{"Content-Type": {"application/json"}}, spec.JSON()) != nil {
		t.Error("the document does not pass as the answer of its own operation")
	}
}

func TestErrorCatalogue(t *testing.T) {
	t.Parallel()
	spec := mustLoad(t)
	documented := make(map[int]bool)
	for _, op := range spec.Operations() {
		for _, status := range op.Statuses() {
			documented[status] = true
		}
	}
	seen := make(map[string]bool)
	for _, e := range spec.Errors() {
		if e.ID == "" || seen[e.ID] || e.Error == "" || e.When == "" || !documented[e.Status] && e.Status != http.StatusMethodNotAllowed { // which no operation answers
			t.Errorf("catalogue entry %+v is incomplete, repeated or of an undocumented status", e)
		}
		seen[e.ID] = true
	}
	if len(seen) == 0 {
		t.Error("no catalogue")
	}
}

// TestUncompiled keeps the hot operations off the slow path.
func TestUncompiled(t *testing.T) {
	t.Parallel()
	for _, line := range mustLoad(t).Uncompiled() {
		label, _, _ := strings.Cut(line, ":")
		if label != "advanceClock request" && label != "getConsumerGroup 200" {
			t.Errorf("not compiled: %s", line)
		}
	}
}
