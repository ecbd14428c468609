package server

import (
	"context"
	"encoding/json"
	"time"

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// figures asks for figures and reads them.
func figures(ctx context.Context, t *suite.Target, operation string, into any, params ...string) {
	outcome := t.Call(ctx, operation, suite.Args{Query: query(params)})
	if outcome.Status != 200 {
		suite.Failf(1, "%s was answered %d %.300s", operation, outcome.Status, outcome.Body)
	}
	decode(outcome.Body, into)
}

// refusesFigures asserts a 400. params are a raw query.
func refusesFigures(ctx context.Context, t *suite.Target, operation, params string) {
	described, _ := suite.Description().Operation(operation)
	answer := t.Raw(ctx, suite.Request{Operation: operation, Target: described.Path + "?" + params})
	Expect(answer.Status).To(Equal(400), "%s of %s: %.200s", operation, params, answer.Body)
}

// spread is part of a lag.
type spread struct {
	Min float64 `json:"min"`
	Max float64 `json:"max"`
}

// throughputPoint is one point of a status.
type throughputPoint struct {
	Timestamp time.Time `json:"timestamp"`
	Ingested  int       `json:"ingested"`
}

func ingested(points []throughputPoint) (n int) {
	for _, p := range points {
		n += p.Ingested
	}
	return n
}

var _ = suite.Requirement("getOverview.counts", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbersTo(ctx, t, queue, "a", 3)
	pushNumbersTo(ctx, t, queue, "b", 2)
	var got struct {
		Queues     int    `json:"queues"`
		Partitions int    `json:"partitions"`
		Messages   counts `json:"messages"`
	}
	figures(ctx, t, "getOverview", &got)
	Expect(got.Queues).To(BeNumerically(">=", 1), "queues")
	Expect(got.Partitions).To(BeNumerically(">=", 2), "partitions")
	Expect(got.Messages.Total).To(BeNumerically(">=", 5), "messages")
	Expect(got.Messages.Pending).To(BeNumerically(">=", 5), "pending messages")
})

// sums is one namespace or task.
type sums struct {
	Namespace  string `json:"namespace"`
	Task       string `json:"task"`
	Queues     int    `json:"queues"`
	Partitions int    `json:"partitions"`
	Messages   counts `json:"messages"`
}

// sumsUp pushes to two queues of a namespace and a task, and asserts what a list says of the name.
func sumsUp(ctx context.Context, t *suite.Target, operation, key string) {
	name := t.Unique(key)
	first, second := t.Queue(), t.Queue()
	for _, queue := range []string{first, second} {
		configure(ctx, t, queue, map[string]any{key: name})
	}
	pushNumbersTo(ctx, t, first, "a", 2)
	pushNumbersTo(ctx, t, first, "b", 1)
	pushNumbersTo(ctx, t, second, "a", 4)
	pop(ctx, t, first, "autoAck=true", "batch=10", "partitions=0")
	var lists map[string][]sums
	figures(ctx, t, operation, &lists)
	var found []sums
	for _, s := range lists[key+"s"] {
		if s.Namespace+s.Task == name {
			found = append(found, s)
		}
	}
	Expect(found).To(HaveLen(1), "entries of %s", name)
	Expect(found[0].Queues).To(Equal(2), "queues")
	Expect(found[0].Partitions).To(Equal(3), "partitions")
	Expect(found[0].Messages.Total).To(Equal(7), "messages")
	Expect(found[0].Messages.Pending).To(Equal(4), "pending messages")
}

var _ = suite.Requirement("listNamespaces.sums", func(ctx context.Context, t *suite.Target) {
	sumsUp(ctx, t, "listNamespaces", "namespace")
})

var _ = suite.Requirement("listTasks.sums", func(ctx context.Context, t *suite.Target) {
	sumsUp(ctx, t, "listTasks", "task")
})

var _ = suite.Requirement("getStatus.throughput", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	pushNumbers(ctx, t, t.Queue(), 2)
	pushNumbers(ctx, t, queue, 4) // three duplicates
	var got struct {
		BucketMinutes int               `json:"bucketMinutes"`
		PointCount    int               `json:"pointCount"`
		Throughput    []throughputPoint `json:"throughput"`
	}
	figures(ctx, t, "getStatus", &got, "queue="+queue)
	Expect(ingested(got.Throughput)).To(Equal(4), "messages in all points")
	Expect(got.PointCount).To(Equal(len(got.Throughput)), "pointCount")
	for i := range got.Throughput[1:] {
		step := got.Throughput[i+1].Timestamp.Sub(got.Throughput[i].Timestamp)
		Expect(step).To(Equal(time.Duration(got.BucketMinutes)*time.Minute), "between points %d and %d", i, i+1)
	}
}, suite.WireOnly)

var _ = suite.Requirement("getStatus.invalid", func(ctx context.Context, t *suite.Target) {
	for _, params := range []string{
		"from=yesterday", "to=0", "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z",
	} {
		refusesFigures(ctx, t, "getStatus", params)
	}
}, suite.WireOnly)

var _ = suite.Requirement("listQueueStatus.filter", func(ctx context.Context, t *suite.Target) {
	namespace, task := t.Unique("namespace"), t.Unique("task")
	first, second := t.Queue(), t.Queue()
	configure(ctx, t, first, map[string]any{"namespace": namespace, "task": task})
	configure(ctx, t, second, map[string]any{"namespace": namespace})
	pushNumbers(ctx, t, first, 3)
	pushNumbers(ctx, t, second, 1)
	for params, want := range map[string]map[string]int{
		"namespace=" + namespace: {first: 3, second: 1},
		"task=" + task:           {first: 3},
	} {
		var got struct {
			Queues []struct {
				Name       string          `json:"name"`
				Messages   counts          `json:"messages"`
				Throughput throughputPoint `json:"throughput"`
			} `json:"queues"`
			Total int `json:"total"`
		}
		figures(ctx, t, "listQueueStatus", &got, params)
		messages, pushed := map[string]int{}, map[string]int{}
		for _, q := range got.Queues {
			messages[q.Name], pushed[q.Name] = q.Messages.Total, q.Throughput.Ingested
		}
		Expect(messages).To(Equal(want), "messages with %s", params)
		Expect(pushed).To(Equal(want), "throughput with %s", params)
		Expect(got.Total).To(Equal(len(want)), "total with %s", params)
	}
})

var _ = suite.Requirement("getQueueStatus.detail", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 3)
	pop(ctx, t, queue, "autoAck=true", "batch=1")
	outcome := t.Call(ctx, "getQueueStatus", suite.Args{Path: map[string]string{"queue": queue}})
	Expect(outcome.Status).To(Equal(200), "%s", outcome.Body)
	var got struct {
		Queue struct {
			Name string `json:"name"`
		} `json:"queue"`
		Messages   counts            `json:"messages"`
		Throughput []throughputPoint `json:"throughput"`
	}
	decode(outcome.Body, &got)
	Expect(got.Queue.Name).To(Equal(queue))
	Expect(got.Messages.Total).To(Equal(3), "messages")
	Expect(got.Messages.Pending).To(Equal(2), "pending messages")
	Expect(ingested(got.Throughput)).To(Equal(3), "messages in all points")
})

var _ = suite.Requirement("getQueueStatus.not-found", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	for range 2 {
		outcome := t.Call(ctx, "getQueueStatus", suite.Args{Path: map[string]string{"queue": queue}})
		Expect(outcome.Status).To(Equal(404), "status of an unknown queue")
	}
	Expect(list(ctx, t, queue)).To(BeEmpty())
})

var _ = suite.Requirement("getAnalytics.points", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 5)
	for interval, step := range map[string]time.Duration{"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour} {
		var got struct {
			DataPoints []struct {
				Timestamp time.Time `json:"timestamp"`
				Messages  int       `json:"messages"`
			} `json:"dataPoints"`
		}
		figures(ctx, t, "getAnalytics", &got, "interval="+interval, "queue="+queue)
		sum := 0
		for i, p := range got.DataPoints {
			sum += p.Messages
			Expect(p.Timestamp).To(BeTemporally("==", p.Timestamp.Truncate(step)), "%s: begin of point %d", interval, i)
			if i > 0 {
				Expect(p.Timestamp.Sub(got.DataPoints[i-1].Timestamp)).To(Equal(step), "%s: before point %d", interval, i)
			}
		}
		Expect(sum).To(Equal(5), "%s: messages in all points", interval)
	}
})

var _ = suite.Requirement("getAnalytics.invalid", func(ctx context.Context, t *suite.Target) {
	for _, interval := range []string{"week", "Minute", "60"} {
		refusesFigures(ctx, t, "getAnalytics", "interval="+interval)
	}
}, suite.WireOnly)

var _ = suite.Requirement("getQueueLag.offset", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 4)
	t.Advance(ctx, time.Hour)
	pushOne(ctx, t, item{queue: queue, payload: "1"})
	pop(ctx, t, queue, "consumerGroup=fast", "autoAck=true", "batch=5")
	pop(ctx, t, queue, "consumerGroup=slow", "autoAck=true", "batch=1")
	lag := func() (open int, oldest float64) {
		Expect(t.Call(ctx, "refreshStats", suite.Args{}).Status).To(Equal(200))
		var got struct {
			Queues []struct {
				Open int `json:"open"`
				Lag  struct {
					Time   spread `json:"time"`
					Offset spread `json:"offset"`
				} `json:"lag"`
			} `json:"queues"`
		}
		figures(ctx, t, "getQueueLag", &got, "queue="+queue)
		Expect(got.Queues).To(HaveLen(1))
		Expect(got.Queues[0].Lag.Offset.Max).To(BeNumerically("==", got.Queues[0].Open), "offset of the only partition")
		return got.Queues[0].Open, got.Queues[0].Lag.Time.Max
	}
	open, oldest := lag()
	Expect(open).To(Equal(4), "messages that the slowest group has not committed")
	Expect(oldest).To(BeNumerically("~", 3600, 60), "age of the oldest of them")
	pop(ctx, t, queue, "consumerGroup=slow", "autoAck=true", "batch=5")
	open, oldest = lag()
	Expect(open).To(BeZero(), "when all is committed")
	Expect(oldest).To(BeZero(), "when all is committed")
})

var _ = suite.Requirement("getQueueOps.counts", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	pushNumbers(ctx, t, queue, 6)
	var got struct {
		Queues []struct {
			Queue  string `json:"queue"`
			Pushed int    `json:"pushed"`
		} `json:"queues"`
		Series []struct {
			Pushed int `json:"pushed"`
		} `json:"series"`
	}
	figures(ctx, t, "getQueueOps", &got, "queue="+queue)
	Expect(got.Queues).To(HaveLen(1))
	Expect(got.Queues[0].Queue).To(Equal(queue))
	Expect(got.Queues[0].Pushed).To(Equal(6), "pushed to the queue")
	sum := 0
	for _, point := range got.Series {
		sum += point.Pushed
	}
	Expect(sum).To(Equal(6), "pushed in the series")
}, suite.WireOnly)

var _ = suite.Requirement("getParkedPops.counts", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	wait := later(func() popped { return pop(ctx, t, queue, waiting(2*t.Patience())...) })
	var got struct {
		Queues []struct {
			Queue  string `json:"queue"`
			Parked int    `json:"parked"`
		} `json:"queues"`
	}
	for deadline := time.Now().Add(t.Patience()); time.Now().Before(deadline) && len(got.Queues) == 0; {
		figures(ctx, t, "getParkedPops", &got, "queue="+queue)
		settle(ctx)
	}
	pushNumbers(ctx, t, queue, 1)
	Expect(wait().Messages).To(HaveLen(1))
	Expect(got.Queues).To(HaveLen(1), "while a pop waited")
	Expect(got.Queues[0].Queue).To(Equal(queue))
	Expect(got.Queues[0].Parked).To(Equal(1))
}, suite.WireOnly)

var _ = suite.Requirement("getRetentionStats.options", func(ctx context.Context, t *suite.Target) {
	queue := t.Queue()
	configure(ctx, t, queue, map[string]any{
		"retentionEnabled": true, "retentionSeconds": 86400, "completedRetentionSeconds": 7200, "maxWaitTimeSeconds": 90000,
	})
	pushNumbers(ctx, t, queue, 2)
	var got struct {
		Queues []map[string]any `json:"queues"`
	}
	figures(ctx, t, "getRetentionStats", &got, "queue="+queue)
	Expect(got.Queues).To(HaveLen(1))
	for name, value := range map[string]any{
		"queue": queue, "retentionEnabled": true, "retentionSeconds": 86400.0, "completedRetentionSeconds": 7200.0,
		"maxWaitTimeSeconds": 90000.0, "dedupWindowSeconds": 3600.0, "retainedMessages": 2.0,
	} {
		Expect(got.Queues[0]).To(HaveKeyWithValue(name, value))
	}
}, suite.WireOnly)

var _ = suite.Requirement("getSystemMetrics.brokers", func(ctx context.Context, t *suite.Target) {
	var got struct {
		Brokers []json.RawMessage `json:"brokers"`
	}
	figures(ctx, t, "getSystemMetrics", &got)
	Expect(got.Brokers).NotTo(BeEmpty())
}, suite.WireOnly)

var _ = suite.Requirement("getWorkerMetrics.work", func(ctx context.Context, t *suite.Target) {
	pushNumbers(ctx, t, t.Queue(), 3)
	var got struct {
		Workers []struct {
			Requests struct {
				PushedMessages int `json:"pushedMessages"`
			} `json:"requests"`
		} `json:"workers"`
	}
	figures(ctx, t, "getWorkerMetrics", &got)
	most := 0
	for _, w := range got.Workers {
		most = max(most, w.Requests.PushedMessages)
	}
	Expect(most).To(BeNumerically(">=", 3), "messages that some worker has taken")
}, suite.WireOnly)

var _ = suite.Requirement("getPostgresStats.database", func(ctx context.Context, t *suite.Target) {
	var got struct {
		Database struct {
			SizeBytes int64 `json:"sizeBytes"`
		} `json:"database"`
	}
	figures(ctx, t, "getPostgresStats", &got)
	Expect(got.Database.SizeBytes).To(BeNumerically(">", 0))
}, suite.WireOnly)

var _ = suite.Requirement("refreshStats.done", func(ctx context.Context, t *suite.Target) {
	answer := t.Raw(ctx, suite.Request{Operation: "refreshStats"})
	Expect(answer.Status).To(Equal(200), "%s", answer.Body)
	var got struct {
		Success   bool      `json:"success"`
		Timestamp time.Time `json:"timestamp"`
	}
	decode(answer.Body, &got)
	Expect(got.Success).To(BeTrue())
	Expect(got.Timestamp).To(BeTemporally(">", time.Unix(0, 0)))
}, suite.WireOnly)

var _ = suite.Requirement("getMetrics.counts", func(ctx context.Context, t *suite.Target) {
	read := func() (pushes, pushed int) {
		var got struct {
			Requests struct {
				Pushes int `json:"pushes"`
			} `json:"requests"`
			Messages struct {
				Pushed int `json:"pushed"`
			} `json:"messages"`
		}
		figures(ctx, t, "getMetrics", &got)
		return got.Requests.Pushes, got.Messages.Pushed
	}
	pushes, pushed := read()
	pushNumbers(ctx, t, t.Queue(), 3)
	pushesNow, pushedNow := read()
	Expect(pushesNow).To(BeNumerically(">", pushes), "requests.pushes")
	Expect(pushedNow).To(BeNumerically(">=", pushed+3), "messages.pushed")
}, suite.WireOnly)
