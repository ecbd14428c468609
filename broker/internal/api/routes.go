package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/gorilla/mux"

	"github.com/posthorn/posthorn/openapi"
)

// route is one line of the route table. Its id is the operationId of the API description.
type route struct {
	id     string
	method string
	path   string
	handle func(*edge, *call) (answer, error)
	kind   routeKind
}

// routeKind is a set of properties of a route that the API description does not carry.
type routeKind uint8

const (
	// hot routes are called all the time: they are logged at debug level.
	hot routeKind = 1 << iota
	// consuming routes change state on a GET, so they do not answer a HEAD: the messages of a pop
	// would be leased, or lost with autoAck, to a client that never sees a body.
	consuming
	// checking routes check the body in their handler, where they read it.
	checking
	// testOnly routes exist only for tests: those of the clock and of faults.
	testOnly
	// accepting routes take messages or schedules: what they refuse is counted.
	accepting
)

func (k routeKind) has(p routeKind) bool { return k&p != 0 }

// routes is every route of the broker, in the order in which they are tried.
var routes = []route{
	{"push", http.MethodPost, "/api/v1/push", (*edge).push, hot | checking},
	{"popPartition", http.MethodGet, "/api/v1/pop/queue/{queue}/partition/{partition}", (*edge).popPartition, hot | consuming},
	{"popQueue", http.MethodGet, "/api/v1/pop/queue/{queue}", (*edge).popQueue, hot | consuming},
	{"pop", http.MethodGet, "/api/v1/pop", (*edge).popDiscover, hot | consuming},
	{"ack", http.MethodPost, "/api/v1/ack", (*edge).ack, hot},
	{"ackBatch", http.MethodPost, "/api/v1/ack/batch", (*edge).ackBatch, hot},
	{"transaction", http.MethodPost, "/api/v1/transaction", (*edge).transaction, hot | checking},
	{"registerStream", http.MethodPost, "/streams/v1/queries", (*edge).registerStream, 0},
	{"getStreamState", http.MethodPost, "/streams/v1/state/get", (*edge).getStreamState, hot},
	{"cycleStream", http.MethodPost, "/streams/v1/cycle", (*edge).cycleStream, hot},
	{"extendLease", http.MethodPost, "/api/v1/lease/{leaseId}/extend", (*edge).extendLease, hot},
	{"configure", http.MethodPost, "/api/v1/configure", (*edge).configure, 0},
	{"listConsumerGroups", http.MethodGet, "/api/v1/consumer-groups", (*edge).listConsumerGroups, 0},
	{"laggingPartitions", http.MethodGet, "/api/v1/consumer-groups/lagging", (*edge).laggingPartitions, 0},
	{"getConsumerGroup", http.MethodGet, "/api/v1/consumer-groups/{group}", (*edge).getConsumerGroup, 0},
	{"deleteConsumerGroup", http.MethodDelete, "/api/v1/consumer-groups/{group}", (*edge).deleteConsumerGroup, 0},
	{"subscribe", http.MethodPost, "/api/v1/consumer-groups/{group}/subscription", (*edge).subscribe, 0},
	{"deleteConsumerGroupQueue", http.MethodDelete, "/api/v1/consumer-groups/{group}/queues/{queue}", (*edge).deleteConsumerGroupQueue, 0},
	{"seek", http.MethodPost, "/api/v1/consumer-groups/{group}/queues/{queue}/seek", (*edge).seek, 0},
	{"seekPartition", http.MethodPost, "/api/v1/consumer-groups/{group}/queues/{queue}/partitions/{partition}/seek", (*edge).seekPartition, 0},
	{"listQueues", http.MethodGet, "/api/v1/resources/queues", (*edge).listQueues, 0},
	{"getQueue", http.MethodGet, "/api/v1/resources/queues/{queue}", (*edge).getQueue, 0},
	{"deleteQueue", http.MethodDelete, "/api/v1/resources/queues/{queue}", (*edge).deleteQueue, 0},
	{"getMaintenance", http.MethodGet, "/api/v1/system/maintenance", (*edge).getMaintenance, 0},
	{"setMaintenance", http.MethodPost, "/api/v1/system/maintenance", (*edge).setMaintenance, 0},
	{"getPopMaintenance", http.MethodGet, "/api/v1/system/maintenance/pop", (*edge).getPopMaintenance, 0},
	{"setPopMaintenance", http.MethodPost, "/api/v1/system/maintenance/pop", (*edge).setPopMaintenance, 0},
	{"getSharedState", http.MethodGet, "/api/v1/system/shared-state", (*edge).getSharedState, 0},
	{"notify", http.MethodPost, "/internal/api/notify", (*edge).notify, hot},
	{"getBuffers", http.MethodGet, "/api/v1/status/buffers", (*edge).getBuffers, hot},
	{"getOverview", http.MethodGet, "/api/v1/resources/overview", (*edge).getOverview, 0},
	{"listNamespaces", http.MethodGet, "/api/v1/resources/namespaces", (*edge).listNamespaces, 0},
	{"listTasks", http.MethodGet, "/api/v1/resources/tasks", (*edge).listTasks, 0},
	{"getStatus", http.MethodGet, "/api/v1/status", (*edge).getStatus, 0},
	{"listQueueStatus", http.MethodGet, "/api/v1/status/queues", (*edge).listQueueStatus, 0},
	{"getQueueStatus", http.MethodGet, "/api/v1/status/queues/{queue}", (*edge).getQueueStatus, 0},
	{"getAnalytics", http.MethodGet, "/api/v1/status/analytics", (*edge).getAnalytics, 0},
	{"getQueueLag", http.MethodGet, "/api/v1/analytics/queue-lag", (*edge).getQueueLag, 0},
	{"getQueueOps", http.MethodGet, "/api/v1/analytics/queue-ops", (*edge).getQueueOps, 0},
	{"getParkedPops", http.MethodGet, "/api/v1/analytics/queue-parked-replicas", (*edge).getParkedPops, 0},
	{"getRetentionStats", http.MethodGet, "/api/v1/analytics/retention", (*edge).getRetentionStats, 0},
	{"getSystemMetrics", http.MethodGet, "/api/v1/analytics/system-metrics", (*edge).getSystemMetrics, 0},
	{"getWorkerMetrics", http.MethodGet, "/api/v1/analytics/worker-metrics", (*edge).getWorkerMetrics, 0},
	{"getPostgresStats", http.MethodGet, "/api/v1/analytics/postgres-stats", (*edge).getPostgresStats, 0},
	{"refreshStats", http.MethodPost, "/api/v1/stats/refresh", (*edge).refreshStats, 0},
	{"getMetrics", http.MethodGet, "/metrics", (*edge).getMetrics, hot},
	{"listMessages", http.MethodGet, "/api/v1/messages", (*edge).listMessages, 0},
	{"getMessage", http.MethodGet, "/api/v1/messages/{partitionId}/{transactionId}", (*edge).getMessage, 0},
	{"deleteDeadLetter", http.MethodDelete, "/api/v1/messages/{partitionId}/{transactionId}", (*edge).deleteDeadLetter, 0},
	{"retryDeadLetter", http.MethodPost, "/api/v1/messages/{partitionId}/{transactionId}/retry", (*edge).retryDeadLetter, 0},
	{"listDeadLetters", http.MethodGet, "/api/v1/dlq", (*edge).listDeadLetters, 0},
	{"replayDeadLetters", http.MethodPost, "/api/v1/dlq/replay", (*edge).replayDeadLetters, 0},
	{"trace", http.MethodPost, "/api/v1/traces", (*edge).storeTrace, 0},
	{"traceNames", http.MethodGet, "/api/v1/traces/names", (*edge).traceNames, 0},
	{"tracesByName", http.MethodGet, "/api/v1/traces/by-name/{name}", (*edge).tracesByName, 0},
	{"messageTraces", http.MethodGet, "/api/v1/traces/{partitionId}/{transactionId}", (*edge).messageTraces, 0},
	{"purgeDeadLetters", http.MethodDelete, "/api/v1/dlq", (*edge).purgeDeadLetters, 0},
	{"health", http.MethodGet, "/health", (*edge).health, hot},
	{"status", http.MethodGet, "/status", (*edge).status, hot},
	{"metrics", http.MethodGet, "/metrics/prometheus", (*edge).metricsText, hot},
	{"openapi", http.MethodGet, "/openapi.json", (*edge).openapiDocument, 0},
	{"index", http.MethodGet, "/", (*edge).index, 0},
	{"publish", http.MethodPost, "/v2/publish/{destination}", (*edge).publish, hot | checking | accepting},
	{"enqueue", http.MethodPost, "/v2/enqueue/{queueName}/{destination}", (*edge).enqueue, hot | checking | accepting},
	{"publishV1", http.MethodPost, "/v1/publish/{destination}", (*edge).publishV1, hot | checking | accepting},
	{"listMessagesV1", http.MethodGet, "/v1/messages", (*edge).listMessagesV1, 0},
	{"getMessageV1", http.MethodGet, "/v1/messages/{messageId}", (*edge).getMessageV1, 0},
	{"cancelMessageV1", http.MethodDelete, "/v1/messages/{messageId}", (*edge).cancelMessageV1, 0},
	{"listTasksV1", http.MethodGet, "/v1/messages/{messageId}/tasks", (*edge).listTasksV1, 0},
	{"listMessageLogsV1", http.MethodGet, "/v1/messages/{messageId}/logs", (*edge).listMessageLogsV1, 0},
	{"getTaskV1", http.MethodGet, "/v1/tasks/{taskId}", (*edge).getTaskV1, 0},
	{"listEventsV1", http.MethodGet, "/v1/events", (*edge).listEventsV1, 0},
	{"listLogsV1", http.MethodGet, "/v1/logs", (*edge).listEventsV1, 0},
	{"listTopicsV1", http.MethodGet, "/v1/topics", (*edge).listTopicsV1, 0},
	{"createTopicV1", http.MethodPost, "/v1/topics", (*edge).createTopicV1, 0},
	{"getTopicV1", http.MethodGet, "/v1/topics/{topic}", (*edge).getTopicV1, 0},
	{"renameTopicV1", http.MethodPut, "/v1/topics/{topic}", (*edge).renameTopicV1, 0},
	{"deleteTopicV1", http.MethodDelete, "/v1/topics/{topic}", (*edge).deleteTopicV1, 0},
	{"listEndpointsV1", http.MethodGet, "/v1/endpoints", (*edge).listEndpointsV1, 0},
	{"createEndpointV1", http.MethodPost, "/v1/endpoints", (*edge).createEndpointV1, 0},
	{"getEndpointV1", http.MethodGet, "/v1/endpoints/{endpointId}", (*edge).getEndpointV1, 0},
	{"moveEndpointV1", http.MethodPut, "/v1/endpoints/{endpointId}", (*edge).moveEndpointV1, 0},
	{"deleteEndpointV1", http.MethodDelete, "/v1/endpoints/{endpointId}", (*edge).deleteEndpointV1, 0},
	{"listSchedulesV1", http.MethodGet, "/v1/schedules", (*edge).listSchedulesV1, 0},
	{"getScheduleV1", http.MethodGet, "/v1/schedules/{scheduleId}", (*edge).getScheduleV1, 0},
	{"deleteScheduleV1", http.MethodDelete, "/v1/schedules/{scheduleId}", (*edge).deleteScheduleV1, 0},
	{"getQuotaV1", http.MethodGet, "/v1/quota", (*edge).getQuotaV1, 0},
	{"publishBatch", http.MethodPost, "/v2/batch", (*edge).publishBatch, hot | accepting},
	{"cancelPublishedMany", http.MethodDelete, "/v2/messages", (*edge).cancelPublishedMany, 0},
	{"getPublished", http.MethodGet, "/v2/messages/{messageId}", (*edge).getPublished, 0},
	{"cancelPublished", http.MethodDelete, "/v2/messages/{messageId}", (*edge).cancelPublished, 0},
	{"listEvents", http.MethodGet, "/v2/events", (*edge).listEvents, 0},
	{"listLogs", http.MethodGet, "/v2/logs", (*edge).listLogs, 0},
	{"listDeliveryQueues", http.MethodGet, "/v2/queues", (*edge).listDeliveryQueues, 0},
	{"upsertDeliveryQueue", http.MethodPost, "/v2/queues", (*edge).upsertDeliveryQueue, 0},
	{"getDeliveryQueue", http.MethodGet, "/v2/queues/{queueName}", (*edge).getDeliveryQueue, 0},
	{"deleteDeliveryQueue", http.MethodDelete, "/v2/queues/{queueName}", (*edge).deleteDeliveryQueue, 0},
	{"pauseDeliveryQueue", http.MethodPost, "/v2/queues/{queueName}/pause", (*edge).pauseDeliveryQueue, 0},
	{"resumeDeliveryQueue", http.MethodPost, "/v2/queues/{queueName}/resume", (*edge).resumeDeliveryQueue, 0},
	{"listFlowControl", http.MethodGet, "/v2/flowControl", (*edge).listFlowControl, 0},
	{"getFlowControl", http.MethodGet, "/v2/flowControl/{flowControlKey}", (*edge).getFlowControl, 0},
	{"pauseFlowControl", http.MethodPost, "/v2/flowControl/{flowControlKey}/pause", (*edge).pauseFlowControl, 0},
	{"resumeFlowControl", http.MethodPost, "/v2/flowControl/{flowControlKey}/resume", (*edge).resumeFlowControl, 0},
	{"pinFlowControl", http.MethodPost, "/v2/flowControl/{flowControlKey}/pin", (*edge).pinFlowControl, 0},
	{"unpinFlowControl", http.MethodPost, "/v2/flowControl/{flowControlKey}/unpin", (*edge).unpinFlowControl, 0},
	{"resetFlowRate", http.MethodPost, "/v2/flowControl/{flowControlKey}/resetRate", (*edge).resetFlowRate, 0},
	{"getGlobalParallelism", http.MethodGet, "/v2/globalParallelism", (*edge).getGlobalParallelism, 0},
	{"listURLGroups", http.MethodGet, "/v2/topics", (*edge).listURLGroups, 0},
	{"getURLGroup", http.MethodGet, "/v2/topics/{topic}", (*edge).getURLGroup, 0},
	{"configureURLGroup", http.MethodPatch, "/v2/topics/{topic}", (*edge).configureURLGroup, 0},
	{"deleteURLGroup", http.MethodDelete, "/v2/topics/{topic}", (*edge).deleteURLGroup, 0},
	{"upsertEndpoints", http.MethodPost, "/v2/topics/{topic}/endpoints", (*edge).upsertEndpoints, 0},
	{"removeEndpoints", http.MethodDelete, "/v2/topics/{topic}/endpoints", (*edge).removeEndpoints, 0},
	{"pauseSchedule", http.MethodPatch, "/v2/schedules/{schedule}/pause", (*edge).pauseSchedule, 0},
	{"pauseScheduleByPost", http.MethodPost, "/v2/schedules/{schedule}/pause", (*edge).pauseSchedule, 0},
	{"resumeSchedule", http.MethodPatch, "/v2/schedules/{schedule}/resume", (*edge).resumeSchedule, 0},
	{"resumeScheduleByPost", http.MethodPost, "/v2/schedules/{schedule}/resume", (*edge).resumeSchedule, 0},
	{"listSchedules", http.MethodGet, "/v2/schedules", (*edge).listSchedules, 0},
	{"createSchedule", http.MethodPost, "/v2/schedules/{schedule}", (*edge).createSchedule, checking | accepting},
	{"getSchedule", http.MethodGet, "/v2/schedules/{schedule}", (*edge).getSchedule, 0},
	{"deleteSchedule", http.MethodDelete, "/v2/schedules/{schedule}", (*edge).deleteSchedule, 0},
	{"listFailed", http.MethodGet, "/v2/dlq", (*edge).listFailed, 0},
	{"deleteFailedMany", http.MethodDelete, "/v2/dlq", (*edge).deleteFailedMany, 0},
	{"retryFailedMany", http.MethodPost, "/v2/dlq/retry", (*edge).retryFailedMany, 0},
	{"retryFailed", http.MethodPost, "/v2/dlq/retry/{dlqId}", (*edge).retryFailed, 0},
	{"getFailed", http.MethodGet, "/v2/dlq/{dlqId}", (*edge).getFailed, 0},
	{"deleteFailed", http.MethodDelete, "/v2/dlq/{dlqId}", (*edge).deleteFailed, 0},
	{"getSigningKeys", http.MethodGet, "/v2/keys", (*edge).getSigningKeys, 0},
	{"rotateSigningKeys", http.MethodPost, "/v2/keys/rotate", (*edge).rotateSigningKeys, 0},
	{"rotateSigningKeysAlias", http.MethodPost, "/v2/rotate", (*edge).rotateSigningKeys, 0},
	{"getSigningKeysV1", http.MethodGet, "/v1/keys", (*edge).getSigningKeys, 0},
	{"rotateSigningKeysV1", http.MethodPost, "/v1/keys/rotate", (*edge).rotateSigningKeys, 0},
	{"getClock", http.MethodGet, "/testing/clock", (*edge).getClock, testOnly},
	{"advanceClock", http.MethodPost, "/testing/clock", (*edge).advanceClock, testOnly},
	{"setFaults", http.MethodPut, "/testing/faults", (*edge).setFaults, testOnly},
}

// methods are the request methods that a route answers.
func (rt route) methods() []string {
	if rt.method == http.MethodGet && !rt.kind.has(consuming) {
		return []string{http.MethodGet, http.MethodHead}
	}
	return []string{rt.method}
}

// match pairs each route with its operation. The error names every route without an operation,
// every operation without a route and every pair that disagrees on method or path.
func match(table []route, spec *openapi.Spec) (map[string]*openapi.Operation, error) {
	ops := make(map[string]*openapi.Operation)
	for _, op := range spec.Operations() {
		ops[op.ID] = op
	}
	var errs []error
	seen := make(map[string]bool)
	for _, rt := range table {
		seen[rt.id] = true
		switch op := ops[rt.id]; {
		case op == nil:
			errs = append(errs, fmt.Errorf("route %s has no operation", rt.id))
		case op.Method != rt.method || op.Path != rt.path:
			errs = append(errs, fmt.Errorf("route %s is %s %s, but its operation is %s %s", rt.id, rt.method, rt.path, op.Method, op.Path))
		}
	}
	for id := range ops {
		if !seen[id] {
			errs = append(errs, fmt.Errorf("operation %s has no route", id))
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("routes and API description disagree: %w", errors.Join(errs...))
	}
	return ops, nil
}

// router builds the mux. Paths are matched as they were sent, so that an escaped slash stays part of
// a name, and they are never cleaned or redirected.
func (e *edge) router(table []route, ops map[string]*openapi.Operation) *mux.Router {
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	publishes := r.MatcherFunc(func(r *http.Request, _ *mux.RouteMatch) bool { return isPublish(r.URL.Path) }).Subrouter()
	var page http.Handler
	for _, rt := range table {
		if rt.kind.has(testOnly) && !e.cfg.Testing {
			continue
		}
		h := e.serve(rt, ops[rt.id])
		if rt.id == "index" {
			page = h
		}
		if isPublish(rt.path) {
			publishes.NewRoute().MatcherFunc(loosely(rt.path, ops[rt.id].Rest)).Methods(rt.methods()...).Handler(h).Name(rt.id)
			continue
		}
		r.Handle(rt.path, h).Methods(rt.methods()...).Name(rt.id)
	}
	r.NotFoundHandler = e.unmatched(page)
	r.MethodNotAllowedHandler = r.NotFoundHandler
	return r
}

// unmatched answers what no route matches: the page for a browser that asks for anything outside the
// API, else a JSON 404 (queue contract, section 0). A known path with another method is no route, but on the publish half a 405.
func (e *edge) unmatched(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ex := exchangeOf(r)
		if err := e.authorize(r, ex, unmatchedAccess(r)); err != nil {
			e.reply(w, r, nil, e.answerError(ex, err))
			return
		}
		if allowed := e.allowed(r); len(allowed) > 0 {
			e.reply(w, r, nil, e.answerError(ex, errMethod).with("Allow", strings.Join(allowed, ", ")))
			return
		}
		get := r.Method == http.MethodGet || r.Method == http.MethodHead
		if get && !strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasPrefix(r.URL.Path, "/testing/") && !isPublish(r.URL.Path) {
			page.ServeHTTP(w, r)
			return
		}
		e.reply(w, r, nil, e.answerError(ex, errNoRoute))
	})
}

// allowed are the methods of a path of the publish half.
func (e *edge) allowed(r *http.Request) []string {
	if !isPublish(r.URL.Path) {
		return nil
	}
	var methods []string
	for _, rt := range routes {
		if isPublish(rt.path) && loosely(rt.path, e.rest[rt.id])(r, &mux.RouteMatch{}) {
			methods = append(methods, rt.methods()...)
		}
	}
	return methods
}

// loosely matches paths of the publish half as its clients send them (publish contract, sections 0 and 1): fixed parts in any
// case, a slash at the end, and in rest, if it is not empty, all that follows, as it was sent.
func loosely(template, rest string) mux.MatcherFunc {
	parts := strings.Split(strings.TrimPrefix(template, "/"), "/")
	if rest != "" {
		parts = parts[:len(parts)-1]
	}
	return func(r *http.Request, m *mux.RouteMatch) bool {
		var vars map[string]string
		remaining := strings.TrimPrefix(sentPath(r), "/")
		for i, part := range parts {
			segment, after, more := strings.Cut(remaining, "/")
			last := i == len(parts)-1
			switch name, isParam := strings.CutPrefix(part, "{"); {
			case !last && !more, last && rest == "" && after != "":
				return false
			case isParam && segment == "":
				return false
			case isParam:
				if vars == nil {
					vars = make(map[string]string)
				}
				vars[strings.TrimSuffix(name, "}")] = segment
			case !strings.EqualFold(part, segment):
				return false
			}
			remaining = after
		}
		if rest != "" {
			if vars == nil {
				vars = make(map[string]string)
			}
			vars[rest] = remaining
		}
		m.Vars = vars
		return true
	}
}

// sentPath is the path as the client sent it. What net/url makes of it may have other escapes.
func sentPath(r *http.Request) string {
	if path, _, _ := strings.Cut(r.RequestURI, "?"); strings.HasPrefix(path, "/") {
		return path
	}
	return r.URL.EscapedPath()
}

// pathParams decodes the path parameters of a matched request, once, but for rest, which is as it was sent.
func pathParams(r *http.Request, rest string) (map[string]string, error) {
	vars := mux.Vars(r)
	if len(vars) == 0 {
		return nil, nil
	}
	params := make(map[string]string, len(vars))
	for name, raw := range vars {
		if name == rest {
			params[name] = raw
			continue
		}
		v, err := url.PathUnescape(raw)
		if err != nil {
			return nil, badPath(name, "holds an invalid percent escape")
		}
		if strings.Contains(v, nul) && isPublish(r.URL.Path) { // the queue half looks for what has any name
			return nil, badPath(name, nulRule)
		}
		params[name] = v
	}
	return params, nil
}
