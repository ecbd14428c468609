package reference

import (
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// The mutations of status and analytics.
const (
	OverviewEmpty       Mutation = "overview-empty"        // the overview counts nothing
	NamespacesApart     Mutation = "namespaces-apart"      // a namespace is listed once per queue
	TasksWithoutSums    Mutation = "tasks-without-sums"    // a task counts no messages
	ThroughputLost      Mutation = "throughput-lost"       // points of the status count nothing
	StatsTimesUnchecked Mutation = "stats-times-unchecked" // times that cannot be read are ignored
	StatusUnfiltered    Mutation = "status-unfiltered"     // the status lists every queue
	QueueStatusStale    Mutation = "queue-status-stale"    // the status of a queue counts no messages
	QueueStatusCreates  Mutation = "queue-status-creates"  // asking for the status of a queue creates it
	PointsUneven        Mutation = "points-uneven"         // points begin when the time does
	IntervalsUnchecked  Mutation = "intervals-unchecked"   // any interval is an hour
	LagOfFastest        Mutation = "lag-of-fastest"        // what some group has committed counts as committed
	LagTimeless         Mutation = "lag-timeless"          // the lag has no age
	OpsUncounted        Mutation = "ops-uncounted"         // operations are not counted
	ParkedHidden        Mutation = "parked-hidden"         // pops that wait are not shown
	RetentionHidden     Mutation = "retention-hidden"      // retention is shown at its defaults
	BrokersHidden       Mutation = "brokers-hidden"        // no broker is listed
	WorkUncounted       Mutation = "work-uncounted"        // pushes are not counted by workers
	RefreshSilent       Mutation = "refresh-silent"        // a refresh is answered without a time
	MetricsStand        Mutation = "metrics-stand"         // the JSON metrics do not move
)

var statsMutations = []Mutation{
	OverviewEmpty, NamespacesApart, TasksWithoutSums, ThroughputLost, StatsTimesUnchecked, StatusUnfiltered, QueueStatusStale,
	QueueStatusCreates, PointsUneven, IntervalsUnchecked, LagOfFastest, LagTimeless, OpsUncounted, ParkedHidden, RetentionHidden,
	BrokersHidden, WorkUncounted, RefreshSilent, MetricsStand,
}

func (b *Broker) statsTable() []route {
	return []route{
		{"GET", "/api/v1/resources/overview", b.overview},
		{"GET", "/api/v1/resources/namespaces", b.namespaces},
		{"GET", "/api/v1/resources/tasks", b.tasks},
		{"GET", "/api/v1/status", b.statusOverTime},
		{"GET", "/api/v1/status/queues", b.statusOfQueues},
		{"GET", "/api/v1/status/queues/{queue}", b.statusOfQueue},
		{"GET", "/api/v1/status/analytics", b.analytics},
		{"GET", "/api/v1/analytics/queue-lag", b.queueLag},
		{"GET", "/api/v1/analytics/queue-ops", b.queueOps},
		{"GET", "/api/v1/analytics/queue-parked-replicas", b.parkedPops},
		{"GET", "/api/v1/analytics/retention", b.retentionStats},
		{"GET", "/api/v1/analytics/system-metrics", b.systemMetrics},
		{"GET", "/api/v1/analytics/worker-metrics", b.workerMetrics},
		{"GET", "/api/v1/analytics/postgres-stats", b.postgresStats},
		{"POST", "/api/v1/stats/refresh", b.refreshStats},
		{"GET", "/metrics", b.metricsJSON},
	}
}

// figures is a JSON object of an answer.
type figures = map[string]any

// window is the time and the queues that a request asks for.
type window struct {
	from, to time.Time
	query    url.Values
}

func (b *Broker) windowOf(r *http.Request, length time.Duration) (window, error) {
	q := r.URL.Query()
	w := window{to: b.now(), query: q}
	read := func(name string, at *time.Time) error {
		if q.Get(name) == "" || b.has(StatsTimesUnchecked) {
			return nil
		}
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02"} {
			if t, err := time.Parse(layout, q.Get(name)); err == nil {
				*at = t
				return nil
			}
		}
		return badRequest("bad query: %s must be an ISO 8601 time", name)
	}
	if err := read("to", &w.to); err != nil {
		return w, err
	}
	w.from = w.to.Add(-length)
	if err := read("from", &w.from); err != nil {
		return w, err
	}
	if !w.from.Before(w.to) {
		return w, badRequest("bad query: from must be before to")
	}
	return w, nil
}

// matching are the queues that a request names.
func (b *Broker) matching(q url.Values) []*queue {
	return slices.DeleteFunc(slices.Clone(b.order), func(one *queue) bool {
		return q.Get("queue") != "" && q.Get("queue") != one.name || q.Get("namespace") != "" && q.Get("namespace") != one.namespace ||
			q.Get("task") != "" && q.Get("task") != one.task
	})
}

func (b *Broker) sumOf(queues ...*queue) (c counts, partitions int) {
	for _, q := range queues {
		partitions += len(q.partitions)
		for _, p := range q.partitions {
			c = c.plus(b.countsOf(p))
		}
	}
	return c, partitions
}

// pushedIn counts messages by when they were pushed. Nothing else is counted by time here.
func pushedIn(queues []*queue, from, to time.Time) (n int) {
	for _, q := range queues {
		for _, p := range q.partitions {
			for _, m := range p.messages {
				if !m.created.Before(from) && m.created.Before(to) {
					n++
				}
			}
		}
	}
	return n
}

// points cuts a time into steps.
func (b *Broker) points(w window, step time.Duration, point func(at time.Time, pushed int) figures) []any {
	queues := b.matching(w.query)
	list := []any{}
	begin := w.from.Truncate(step)
	if b.has(PointsUneven) {
		begin = w.from
	}
	for at := begin; at.Before(w.to.Add(time.Microsecond)); at = at.Add(step) {
		list = append(list, point(at, pushedIn(queues, at, at.Add(step))))
	}
	return list
}

func (b *Broker) throughputPoints(w window) []any {
	return b.points(w, time.Minute, func(at time.Time, pushed int) figures {
		if b.has(ThroughputLost) {
			pushed = 0
		}
		return figures{
			"timestamp": iso(at), "ingested": pushed, "processed": 0, "delivered": 0, "failed": 0, "deadLettered": 0,
			"ingestedPerSecond": float64(pushed) / 60, "processedPerSecond": 0,
		}
	})
}

func (w window) timeRange() figures { return figures{"from": iso(w.from), "to": iso(w.to)} }

func distinct(queues []*queue, of func(*queue) string) int {
	seen := map[string]bool{}
	for _, q := range queues {
		if name := of(q); name != "" {
			seen[name] = true
		}
	}
	return len(seen)
}

func namespaceOf(q *queue) string { return q.namespace }
func taskOf(q *queue) string      { return q.task }

// lagOf is how many messages the slowest group of each partition has not committed, and how old they are.
func (b *Broker) lagOf(queues ...*queue) (lag figures, open, behind, partitions int) {
	var offsets, ages []float64
	for _, q := range queues {
		for _, p := range q.partitions {
			c := b.countsOf(p)
			left := c.pending + c.processing
			if b.has(LagOfFastest) {
				for _, cursor := range p.cursors {
					left = min(left, len(p.messages)-cursor.committed)
				}
			}
			age := 0.0
			if left > 0 {
				behind++
				age = b.now().Sub(p.messages[len(p.messages)-left].created).Seconds()
			}
			if b.has(LagTimeless) {
				age = 0
			}
			open += left
			partitions++
			offsets, ages = append(offsets, float64(left)), append(ages, age)
		}
	}
	return figures{"time": spreadOf(ages), "offset": spreadOf(offsets)}, open, behind, partitions
}

func spreadOf(values []float64) figures {
	n := len(values)
	if n == 0 {
		return figures{"avg": 0, "median": 0, "min": 0, "max": 0}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return figures{"avg": sum / float64(n), "median": (values[(n-1)/2] + values[n/2]) / 2, "min": values[0], "max": values[n-1]}
}

func (b *Broker) overview(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	queues := b.order
	if b.has(OverviewEmpty) {
		queues = nil
	}
	c, partitions := b.sumOf(queues...)
	lag, _, _, _ := b.lagOf(queues...)
	writeJSON(w, http.StatusOK, figures{
		"queues": len(queues), "partitions": partitions, "namespaces": distinct(queues, namespaceOf), "tasks": distinct(queues, taskOf),
		"messages": c.wire(), "lag": lag, "timestamp": iso(b.now()), "statsAge": 0,
		"throughput": figures{"ingestedPerSecond": float64(pushedIn(queues, b.now().Add(-time.Minute), b.now())) / 60, "processedPerSecond": 0},
	})
}

func (b *Broker) sums(key string, of func(*queue) string) []any {
	groups := map[string][]*queue{}
	list := []any{}
	for _, q := range b.order {
		groups[of(q)] = append(groups[of(q)], q)
	}
	for name, queues := range groups {
		cuts := [][]*queue{queues}
		if b.has(NamespacesApart) && key == "namespace" {
			cuts = slices.Collect(slices.Chunk(queues, 1))
		}
		for _, cut := range cuts {
			c, partitions := b.sumOf(cut...)
			if b.has(TasksWithoutSums) && key == "task" {
				c = counts{}
			}
			list = append(list, figures{
				key: name, "queues": len(cut), "partitions": partitions, "messages": figures{"total": c.total, "pending": c.pending},
			})
		}
	}
	return list
}

func (b *Broker) namespaces(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(w, http.StatusOK, figures{"namespaces": b.sums("namespace", namespaceOf)})
}

func (b *Broker) tasks(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(w, http.StatusOK, figures{"tasks": b.sums("task", taskOf)})
}

// over answers a request about a time.
func (b *Broker) over(rw http.ResponseWriter, r *http.Request, length time.Duration, answer func(w window) figures) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w, err := b.windowOf(r, length)
	if err != nil {
		b.writeError(rw, err)
		return
	}
	writeJSON(rw, http.StatusOK, answer(w))
}

func (b *Broker) statusOverTime(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.over(rw, r, time.Hour, func(w window) figures {
		queues := b.matching(w.query)
		c, partitions := b.sumOf(queues...)
		points := b.throughputPoints(w)
		return figures{
			"timeRange": w.timeRange(), "bucketMinutes": 1, "pointCount": len(points), "throughput": points,
			"queues": figures{
				"total": len(queues), "partitions": partitions, "namespaces": distinct(queues, namespaceOf), "tasks": distinct(queues, taskOf),
			},
			"messages": c.wire(), "leases": figures{"active": 0, "messages": c.processing},
			"deadLetterQueue": figures{"totalMessages": c.deadLetter, "affectedPartitions": min(c.deadLetter, partitions), "topErrors": []any{}},
			"workers":         b.brokers(figures{"parked": b.waiting()}),
			"errors":          figures{"failedAcks": 0, "deadLettered": 0, "failedPushes": 0, "databaseErrors": 0},
			"statsAge":        0,
		}
	})
}

func (b *Broker) statusOfQueues(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.over(rw, r, time.Hour, func(w window) figures {
		queues := b.matching(w.query)
		if b.has(StatusUnfiltered) {
			queues = b.order
		}
		list := []any{}
		for _, q := range queues {
			c, partitions := b.sumOf(q)
			_, _, size := q.segments()
			list = append(list, figures{
				"id": q.id.String(), "name": q.name, "namespace": q.namespace, "task": q.task, "partitions": partitions, "retainedBytes": size,
				"messages": c.wire(),
				"throughput": figures{
					"ingested": pushedIn([]*queue{q}, w.from, w.to.Add(time.Second)), "processed": 0, "delivered": 0, "failed": 0, "deadLettered": 0,
				},
			})
		}
		total := len(list)
		return figures{"timeRange": w.timeRange(), "bucketMinutes": 1, "queues": list[:min(total, 100)], "total": total}
	})
}

func (b *Broker) statusOfQueue(rw http.ResponseWriter, r *http.Request, params map[string]string) {
	b.mu.Lock()
	q := b.queues[params["queue"]]
	if q == nil && b.has(QueueStatusCreates) {
		b.queueNamed(params["queue"])
	}
	b.mu.Unlock()
	if q == nil {
		writeJSON(rw, http.StatusNotFound, map[string]string{"error": "Queue not found"})
		return
	}
	b.over(rw, r, time.Hour, func(w window) figures {
		w.query = url.Values{"queue": {q.name}}
		c, partitions := b.sumOf(q)
		if b.has(QueueStatusStale) {
			c = counts{}
		}
		lag, _, _, _ := b.lagOf(q)
		_, _, size := q.segments()
		points := b.throughputPoints(w)
		return figures{
			"queue": figures{
				"id": q.id.String(), "name": q.name, "namespace": q.namespace, "task": q.task, "createdAt": iso(q.created),
				"partitions": partitions, "retainedBytes": size,
			},
			"messages": c.wire(), "lag": lag, "timeRange": w.timeRange(), "bucketMinutes": 1, "pointCount": len(points),
			"throughput": points, "statsAge": 0,
		}
	})
}

func (b *Broker) analytics(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	name := r.URL.Query().Get("interval")
	if name == "" {
		name = "hour"
	}
	steps := map[string]time.Duration{"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour}
	step, ok := steps[name]
	if !ok && b.has(IntervalsUnchecked) {
		name, step, ok = "hour", time.Hour, true
	}
	if !ok {
		b.writeError(rw, badRequest("bad query: interval must be one of minute, hour, day"))
		return
	}
	b.over(rw, r, 30*step, func(w window) figures {
		points := b.points(w, step, func(at time.Time, pushed int) figures {
			return figures{"timestamp": iso(at), "messages": pushed, "processed": 0, "delivered": 0, "failed": 0, "deadLettered": 0}
		})
		return figures{"dataPoints": points, "interval": name, "from": iso(w.from), "to": iso(w.to)}
	})
}

func (b *Broker) queueLag(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.over(rw, r, time.Hour, func(w window) figures {
		list := []any{}
		for _, q := range b.matching(w.query) {
			lag, open, behind, partitions := b.lagOf(q)
			list = append(list, figures{
				"queue": q.name, "namespace": q.namespace, "task": q.task, "partitions": partitions, "partitionsBehind": behind,
				"open": open, "lag": lag,
			})
		}
		lag, open, behind, partitions := b.lagOf(b.order...)
		return figures{
			"queues": list, "timestamp": iso(b.now()), "statsAge": 0,
			"total": figures{"partitions": partitions, "partitionsBehind": behind, "open": open, "lag": lag},
		}
	})
}

func (b *Broker) queueOps(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.over(rw, r, time.Hour, func(w window) figures {
		ops := func(pushed int) figures {
			if b.has(OpsUncounted) {
				pushed = 0
			}
			return figures{"pushed": pushed, "popped": 0, "acked": 0, "failed": 0, "deadLettered": 0}
		}
		list := []any{}
		for _, q := range b.matching(w.query) {
			row := ops(pushedIn([]*queue{q}, w.from, w.to.Add(time.Second)))
			row["queue"], row["namespace"], row["task"] = q.name, q.namespace, q.task
			list = append(list, row)
		}
		series := b.points(w, time.Minute, func(at time.Time, pushed int) figures {
			point := ops(pushed)
			point["timestamp"] = iso(at)
			return point
		})
		return figures{"timeRange": w.timeRange(), "bucketMinutes": 1, "queues": list, "series": series}
	})
}

// waiting counts pops that wait.
func (b *Broker) waiting() (n int) {
	for _, waiting := range b.parked {
		n += waiting
	}
	return n
}

// park notes that a pop of a queue waits, until the returned function is called. Pops by namespace or task are not told apart.
func (b *Broker) park(name string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.parked[name]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.parked[name]--; b.parked[name] == 0 {
			delete(b.parked, name)
		}
	}
}

func (b *Broker) parkedPops(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []any{}
	only := r.URL.Query().Get("queue")
	for name, n := range b.parked {
		if name != "" && (only == "" || only == name) && !b.has(ParkedHidden) {
			list = append(list, figures{"queue": name, "parked": n, "replicas": []any{figures{"id": b.id.String(), "host": "reference", "parked": n}}})
		}
	}
	writeJSON(rw, http.StatusOK, figures{"queues": list, "parked": b.waiting(), "timestamp": iso(b.now())})
}

func (b *Broker) retentionStats(rw http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.over(rw, r, time.Hour, func(w window) figures {
		list := []any{}
		messages, bytes, pieces := 0, 0, 0
		for _, q := range b.matching(w.query) {
			segments, count, size := q.segments()
			messages, bytes, pieces = messages+count, bytes+size, pieces+segments
			row := figures{"queue": q.name, "namespace": q.namespace, "task": q.task, "retainedMessages": count, "retainedBytes": size, "segments": segments}
			options := q.options.wire()
			if b.has(RetentionHidden) {
				options = defaultOptions().wire()
			}
			for _, name := range []string{"retentionEnabled", "retentionSeconds", "completedRetentionSeconds", "maxWaitTimeSeconds", "dedupWindowSeconds"} {
				row[name] = options[name]
			}
			list = append(list, row)
		}
		return figures{
			"queues": list, "timestamp": iso(b.now()),
			"totals": figures{"retainedMessages": messages, "retainedBytes": bytes, "segments": pieces},
		}
	})
}

// brokers lists this one, with what more is to be said of it.
func (b *Broker) brokers(more figures) []any {
	if b.has(BrokersHidden) {
		return []any{}
	}
	row := figures{
		"id": b.id.String(), "host": "reference", "pid": 1, "version": version, "startedAt": iso(b.started), "reportedAt": iso(b.now()),
		"uptimeSeconds": max(0, b.now().Sub(b.started).Seconds()),
	}
	maps.Copy(row, more)
	return []any{row}
}

func (b *Broker) pushedEver() int {
	if b.has(WorkUncounted) {
		return 0
	}
	return int(b.seq)
}

func noPool() figures  { return figures{"poolSize": 0, "connections": 0, "busy": 0} }
func noSpool() figures { return figures{"pending": 0, "failed": 0, "bytes": 0, "oldestSeconds": 0} }

func (b *Broker) systemMetrics(rw http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(rw, http.StatusOK, figures{"timestamp": iso(b.now()), "brokers": b.brokers(figures{
		"cpus": 1, "cpuSeconds": 0, "heapBytes": 0, "totalBytes": 0, "goroutines": 1, "database": noPool(), "spool": noSpool(),
	})})
}

func (b *Broker) workerMetrics(rw http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(rw, http.StatusOK, figures{"timestamp": iso(b.now()), "workers": b.brokers(figures{
		"parked": b.waiting(), "requests": figures{
			"pushes": b.call, "pops": 0, "acks": 0, "pushedMessages": b.pushedEver(), "poppedMessages": 0, "ackedItems": 0,
			"failedPushes": 0, "deadLetters": 0, "databaseErrors": 0,
		},
	})})
}

func (b *Broker) postgresStats(rw http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(rw, http.StatusOK, figures{ // there is none; one page stands for the memory that is used
		"database": figures{
			"version": "none", "sizeBytes": 8192, "connections": 0, "maxConnections": 0, "commits": 0, "rollbacks": 0, "blocksHit": 0,
			"blocksRead": 0, "cacheHitRatio": 0, "deadlocks": 0, "tempBytes": 0,
		},
		"tables": []any{}, "timestamp": iso(b.now()),
	})
}

func (b *Broker) refreshStats(rw http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	answer := figures{"success": true, "timestamp": iso(b.now()), "durationMs": 0}
	if b.has(RefreshSilent) {
		answer = figures{"success": true}
	}
	writeJSON(rw, http.StatusOK, answer)
}

func (b *Broker) metricsJSON(rw http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	pushes, pushed := b.call, b.seq
	if b.has(MetricsStand) {
		pushes, pushed = 0, 0
	}
	writeJSON(rw, http.StatusOK, figures{
		"version": version, "uptimeSeconds": 0, "requests": figures{"pushes": pushes, "pops": 0, "acks": 0},
		"messages": figures{"pushed": pushed, "popped": 0, "acked": 0, "deadLettered": 0},
		"errors":   figures{"failedPushes": 0, "databaseErrors": 0}, "parked": b.waiting(), "database": noPool(),
		"memory": figures{"heapBytes": 0, "totalBytes": 0}, "cpu": figures{"cpus": 1, "seconds": 0}, "spool": noSpool(),
		"timestamp": iso(b.now()),
	})
}
