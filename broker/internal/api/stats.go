package api

import (
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

// Times and pages of status and analytics (queue contract, section 10, which gives names only).
const (
	maxStatsRange   = 366 * 24 * time.Hour
	maxStatsPoints  = 1500
	wantedPoints    = 120
	defaultRange    = time.Hour
	defaultQueues   = 100
	maxStatusQueues = 1000
)

// buckets are the widths of points that a chart may have.
var buckets = []time.Duration{
	time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
}

// statsQuery reads the parameters that status and analytics share.
func (e *edge) statsQuery(c *call, length time.Duration) (queue.TrafficFilter, url.Values, error) {
	q, err := c.query()
	if err != nil {
		return queue.TrafficFilter{}, nil, err
	}
	f := queue.TrafficFilter{Queue: q.Get("queue"), Namespace: q.Get("namespace"), Task: q.Get("task"), To: e.cfg.Engine.Now()}
	if text := q.Get("to"); text != "" {
		to, ok := parseISO(text)
		if !ok {
			return f, nil, badQuery("to", "must be an ISO 8601 time")
		}
		f.To = to
	}
	f.From = f.To.Add(-length)
	if text := q.Get("from"); text != "" {
		from, ok := parseISO(text)
		if !ok {
			return f, nil, badQuery("from", "must be an ISO 8601 time")
		}
		f.From = from
	}
	switch {
	case !f.From.Before(f.To):
		return f, nil, badQuery("from", "must be before to")
	case f.To.Sub(f.From) > maxStatsRange:
		return f, nil, badQuery("from", "must be at most 366 days before to")
	}
	f.Step = e.bucket(f.From, f.To)
	return f, q, nil
}

// bucket is the width of points that gives a readable number of them. What is older than a day is known by the hour only.
func (e *edge) bucket(from, to time.Time) time.Duration {
	least := time.Minute
	if e.cfg.Engine.Now().Sub(from) > queue.MinutesKept {
		least = time.Hour
	}
	for _, b := range buckets {
		if b >= least && to.Sub(from) <= wantedPoints*b {
			return b
		}
	}
	return buckets[len(buckets)-1]
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

func rangeOf(f queue.TrafficFilter) timeRange {
	return timeRange{From: timeText(f.From), To: timeText(f.To)}
}

// round keeps three digits of a figure for people.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

type spread struct {
	Avg    float64 `json:"avg"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

type lagSpreads struct {
	Time   spread `json:"time"`
	Offset spread `json:"offset"`
}

func spreadsOf(l queue.Lag) lagSpreads {
	of := func(s queue.Spread) spread { return spread{round(s.Avg), round(s.Median), round(s.Min), round(s.Max)} }
	return lagSpreads{Time: of(l.Time), Offset: of(l.Offset)}
}

// age is how old figures are, in seconds.
func (e *edge) age(at time.Time) float64 { return round(max(0, e.cfg.Engine.Now().Sub(at).Seconds())) }

// matching keeps the queues that a filter names.
func matching(list []queue.Stats, f queue.TrafficFilter) []queue.Stats {
	return slices.DeleteFunc(list, func(s queue.Stats) bool {
		return f.Queue != "" && s.Name != f.Queue || f.Namespace != "" && s.Namespace != f.Namespace || f.Task != "" && s.Task != f.Task
	})
}

// queueTotals sums up queues.
type queueTotals struct {
	queues, partitions int64
	bytes, segments    int64
	namespaces, tasks  map[string]struct{}
	messages           queue.Counts
}

func sumUp(list []queue.Stats) queueTotals {
	t := queueTotals{namespaces: map[string]struct{}{}, tasks: map[string]struct{}{}}
	for i := range list {
		s := &list[i]
		t.queues++
		t.partitions += s.Partitions
		t.bytes += s.RetainedBytes
		t.segments += s.Segments
		if s.Namespace != "" {
			t.namespaces[s.Namespace] = struct{}{}
		}
		if s.Task != "" {
			t.tasks[s.Task] = struct{}{}
		}
		m := &t.messages
		m.Total += s.Messages.Total
		m.Pending += s.Messages.Pending
		m.Processing += s.Messages.Processing
		m.Completed += s.Messages.Completed
		m.DeadLetter += s.Messages.DeadLetter
	}
	return t
}

type overviewAnswer struct {
	Queues     int64           `json:"queues"`
	Partitions int64           `json:"partitions"`
	Namespaces int             `json:"namespaces"`
	Tasks      int             `json:"tasks"`
	Messages   partitionCounts `json:"messages"`
	Lag        lagSpreads      `json:"lag"`
	Throughput rates           `json:"throughput"`
	Timestamp  string          `json:"timestamp"`
	StatsAge   float64         `json:"statsAge"`
}

type rates struct {
	Ingested  float64 `json:"ingestedPerSecond"`
	Processed float64 `json:"processedPerSecond"`
}

func (e *edge) getOverview(c *call) (answer, error) {
	list, err := e.cfg.Engine.Queues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	lags, err := e.cfg.Engine.Lags(c.ctx, e.cfg.Engine.StatsInterval())
	if err != nil {
		return answer{}, err
	}
	r, err := e.cfg.Engine.Rates(c.ctx)
	if err != nil {
		return answer{}, err
	}
	t := sumUp(list)
	return encode(http.StatusOK, overviewAnswer{
		Queues: t.queues, Partitions: t.partitions, Namespaces: len(t.namespaces), Tasks: len(t.tasks), Messages: counts(t.messages),
		Lag: spreadsOf(lags.Total), Throughput: rates{round(r.Pushed), round(r.Acked)},
		Timestamp: timeText(e.cfg.Engine.Now()), StatsAge: e.age(lags.At),
	})
}

type sumCounts struct {
	Total   int64 `json:"total"`
	Pending int64 `json:"pending"`
}

type namespaceSums struct {
	Namespace  string    `json:"namespace"`
	Queues     int64     `json:"queues"`
	Partitions int64     `json:"partitions"`
	Messages   sumCounts `json:"messages"`
}

type taskSums struct {
	Task       string    `json:"task"`
	Queues     int64     `json:"queues"`
	Partitions int64     `json:"partitions"`
	Messages   sumCounts `json:"messages"`
}

func (e *edge) listNamespaces(c *call) (answer, error) {
	sums, err := e.sums(c, func(s *queue.Stats) string { return s.Namespace })
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, struct {
		Namespaces []namespaceSums `json:"namespaces"`
	}{sums})
}

func (e *edge) listTasks(c *call) (answer, error) {
	sums, err := e.sums(c, func(s *queue.Stats) string { return s.Task })
	if err != nil {
		return answer{}, err
	}
	rows := make([]taskSums, len(sums))
	for i, s := range sums {
		rows[i] = taskSums{s.Namespace, s.Queues, s.Partitions, s.Messages}
	}
	return encode(http.StatusOK, struct {
		Tasks []taskSums `json:"tasks"`
	}{rows})
}

// sums adds up queues by a name that they have in common, which stands in Namespace, sorted by it.
func (e *edge) sums(c *call, nameOf func(*queue.Stats) string) ([]namespaceSums, error) {
	list, err := e.cfg.Engine.Queues(c.ctx)
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	sums := []namespaceSums{}
	for i := range list {
		name := nameOf(&list[i])
		j, ok := at[name]
		if !ok {
			j = len(sums)
			at[name] = j
			sums = append(sums, namespaceSums{Namespace: name})
		}
		s := &sums[j]
		s.Queues++
		s.Partitions += list[i].Partitions
		s.Messages.Total += list[i].Messages.Total
		s.Messages.Pending += list[i].Messages.Pending
	}
	slices.SortFunc(sums, func(a, b namespaceSums) int { return compareText(a.Namespace, b.Namespace) })
	return sums, nil
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

type throughput struct {
	Ingested     int64 `json:"ingested"`
	Processed    int64 `json:"processed"`
	Delivered    int64 `json:"delivered"`
	Failed       int64 `json:"failed"`
	DeadLettered int64 `json:"deadLettered"`
}

func throughputOf(t queue.Traffic) throughput {
	return throughput{Ingested: t.Pushed, Processed: t.Acked, Delivered: t.Popped, Failed: t.Failed, DeadLettered: t.DeadLettered}
}

type throughputPoint struct {
	Timestamp string `json:"timestamp"`
	throughput
	rates
}

// throughputPoints are points per second of their step; the last one has not ended yet.
func throughputPoints(points []queue.TrafficPoint, f queue.TrafficFilter) (list []throughputPoint, sum queue.Traffic) {
	list = make([]throughputPoint, len(points))
	for i, p := range points {
		over := min(f.Step, f.To.Sub(p.At)).Seconds()
		list[i] = throughputPoint{
			Timestamp: timeText(p.At), throughput: throughputOf(p.Traffic),
			rates: rates{round(float64(p.Pushed) / max(1, over)), round(float64(p.Acked) / max(1, over))},
		}
		sum.Failed += p.Failed
		sum.DeadLettered += p.DeadLettered
	}
	return list, sum
}

type worker struct {
	brokerIdentity
	Parked int `json:"parked"`
}

type brokerIdentity struct {
	ID         string  `json:"id"`
	Host       string  `json:"host"`
	PID        int     `json:"pid"`
	Version    string  `json:"version"`
	StartedAt  string  `json:"startedAt"`
	ReportedAt string  `json:"reportedAt"`
	Uptime     float64 `json:"uptimeSeconds"`
}

func (e *edge) identity(r *queue.Report) brokerIdentity {
	return brokerIdentity{
		ID: r.ID.String(), Host: r.Host, PID: r.PID, Version: r.Version, StartedAt: timeText(r.StartedAt),
		ReportedAt: timeText(r.ReportedAt), Uptime: e.age(r.StartedAt),
	}
}

type statusOverTime struct {
	TimeRange     timeRange         `json:"timeRange"`
	BucketMinutes int               `json:"bucketMinutes"`
	PointCount    int               `json:"pointCount"`
	Throughput    []throughputPoint `json:"throughput"`
	Queues        struct {
		Total      int64 `json:"total"`
		Partitions int64 `json:"partitions"`
		Namespaces int   `json:"namespaces"`
		Tasks      int   `json:"tasks"`
	} `json:"queues"`
	Messages partitionCounts `json:"messages"`
	Leases   struct {
		Active   int64 `json:"active"`
		Messages int64 `json:"messages"`
	} `json:"leases"`
	DeadLetterQueue deadLetterSummary `json:"deadLetterQueue"`
	Workers         []worker          `json:"workers"`
	Errors          struct {
		FailedAcks     int64 `json:"failedAcks"`
		DeadLettered   int64 `json:"deadLettered"`
		FailedPushes   int64 `json:"failedPushes"`
		DatabaseErrors int64 `json:"databaseErrors"`
	} `json:"errors"`
	StatsAge float64 `json:"statsAge"`
}

type deadLetterSummary struct {
	Total      int64        `json:"totalMessages"`
	Partitions int64        `json:"affectedPartitions"`
	TopErrors  []errorCount `json:"topErrors"`
}

type errorCount struct {
	Error string `json:"error"`
	Count int64  `json:"count"`
}

func (e *edge) getStatus(c *call) (answer, error) {
	f, _, err := e.statsQuery(c, defaultRange)
	if err != nil {
		return answer{}, err
	}
	engine := e.cfg.Engine
	points, err := engine.Traffic(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	list, err := engine.Queues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	leases, err := engine.Leases(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	letters, err := engine.LetterSummary(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	reports, err := engine.Reports(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := statusOverTime{TimeRange: rangeOf(f), BucketMinutes: int(f.Step / time.Minute), PointCount: len(points), Workers: []worker{}}
	var sum queue.Traffic
	out.Throughput, sum = throughputPoints(points, f)
	t := sumUp(matching(list, f))
	out.Queues.Total, out.Queues.Partitions = t.queues, t.partitions
	out.Queues.Namespaces, out.Queues.Tasks = len(t.namespaces), len(t.tasks)
	out.Messages = counts(t.messages)
	out.Leases.Active, out.Leases.Messages = leases.Active, leases.Messages
	out.DeadLetterQueue = deadLetterSummary{Total: letters.Total, Partitions: letters.Partitions, TopErrors: make([]errorCount, len(letters.TopErrors))}
	for i, l := range letters.TopErrors {
		out.DeadLetterQueue.TopErrors[i] = errorCount(l)
	}
	out.Errors.FailedAcks, out.Errors.DeadLettered = sum.Failed, sum.DeadLettered
	for i := range reports {
		r := &reports[i]
		out.Workers = append(out.Workers, worker{e.identity(r), r.Parked})
		out.Errors.FailedPushes += r.Requests.FailedPushes
		out.Errors.DatabaseErrors += r.Requests.DatabaseErrors
	}
	return encode(http.StatusOK, out)
}

type queueStatusRow struct {
	ID            string          `json:"id"`
	Name          string          `json:"name"`
	Namespace     string          `json:"namespace"`
	Task          string          `json:"task"`
	Partitions    int64           `json:"partitions"`
	RetainedBytes int64           `json:"retainedBytes"`
	Messages      partitionCounts `json:"messages"`
	Throughput    throughput      `json:"throughput"`
}

type queueStatusList struct {
	TimeRange     timeRange        `json:"timeRange"`
	BucketMinutes int              `json:"bucketMinutes"`
	Queues        []queueStatusRow `json:"queues"`
	Total         int              `json:"total"`
}

func (e *edge) listQueueStatus(c *call) (answer, error) {
	f, q, err := e.statsQuery(c, defaultRange)
	if err != nil {
		return answer{}, err
	}
	list, err := e.cfg.Engine.Queues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	traffic, err := e.cfg.Engine.TrafficByQueue(c.ctx, f.From, f.To)
	if err != nil {
		return answer{}, err
	}
	list = matching(list, f)
	out := queueStatusList{TimeRange: rangeOf(f), BucketMinutes: int(f.Step / time.Minute), Queues: []queueStatusRow{}, Total: len(list)}
	offset := min(number(q, "offset", 0), len(list))
	for _, s := range list[offset:min(len(list), offset+number(q, "limit", defaultQueues))] {
		out.Queues = append(out.Queues, queueStatusRow{
			ID: s.ID.String(), Name: s.Name, Namespace: s.Namespace, Task: s.Task, Partitions: s.Partitions,
			RetainedBytes: s.RetainedBytes, Messages: counts(s.Messages), Throughput: throughputOf(traffic[s.ID]),
		})
	}
	return encode(http.StatusOK, out)
}

// number reads a parameter that the API description has checked.
func number(q url.Values, name string, absent int) int {
	n, err := strconv.Atoi(q.Get(name))
	if err != nil {
		return absent
	}
	return min(n, math.MaxInt32)
}

type queueStatus struct {
	Queue struct {
		ID            string `json:"id"`
		Name          string `json:"name"`
		Namespace     string `json:"namespace"`
		Task          string `json:"task"`
		CreatedAt     string `json:"createdAt"`
		Partitions    int64  `json:"partitions"`
		RetainedBytes int64  `json:"retainedBytes"`
	} `json:"queue"`
	Messages      partitionCounts   `json:"messages"`
	Lag           lagSpreads        `json:"lag"`
	TimeRange     timeRange         `json:"timeRange"`
	BucketMinutes int               `json:"bucketMinutes"`
	PointCount    int               `json:"pointCount"`
	Throughput    []throughputPoint `json:"throughput"`
	StatsAge      float64           `json:"statsAge"`
}

func (e *edge) getQueueStatus(c *call) (answer, error) {
	f, _, err := e.statsQuery(c, defaultRange)
	if err != nil {
		return answer{}, err
	}
	f.Queue, f.Namespace, f.Task = c.path["queue"], "", ""
	s, err := e.cfg.Engine.QueueStats(c.ctx, f.Queue)
	if err != nil {
		return answer{}, err
	}
	lags, err := e.cfg.Engine.Lags(c.ctx, e.cfg.Engine.StatsInterval())
	if err != nil {
		return answer{}, err
	}
	points, err := e.cfg.Engine.Traffic(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	out := queueStatus{
		Messages: counts(s.Messages), TimeRange: rangeOf(f), BucketMinutes: int(f.Step / time.Minute), PointCount: len(points),
		StatsAge: e.age(lags.At),
	}
	out.Queue.ID, out.Queue.Name, out.Queue.Namespace, out.Queue.Task = s.ID.String(), s.Name, s.Namespace, s.Task
	out.Queue.CreatedAt, out.Queue.Partitions, out.Queue.RetainedBytes = timeText(s.CreatedAt), s.Partitions, s.RetainedBytes
	out.Throughput, _ = throughputPoints(points, f)
	if i := slices.IndexFunc(lags.Queues, func(l queue.NamedLag) bool { return l.ID == s.ID }); i >= 0 {
		out.Lag = spreadsOf(lags.Queues[i].Lag)
	}
	return encode(http.StatusOK, out)
}

type analyticsPoint struct {
	Timestamp    string `json:"timestamp"`
	Messages     int64  `json:"messages"`
	Processed    int64  `json:"processed"`
	Delivered    int64  `json:"delivered"`
	Failed       int64  `json:"failed"`
	DeadLettered int64  `json:"deadLettered"`
}

type analyticsAnswer struct {
	DataPoints []analyticsPoint `json:"dataPoints"`
	Interval   string           `json:"interval"`
	From       string           `json:"from"`
	To         string           `json:"to"`
}

// intervals are the steps of analytics, with the time that is shown by default.
var intervals = map[string]struct{ step, length time.Duration }{
	"minute": {time.Minute, time.Hour},
	"hour":   {time.Hour, 24 * time.Hour},
	"day":    {24 * time.Hour, 30 * 24 * time.Hour},
}

func (e *edge) getAnalytics(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	name := q.Get("interval")
	if name == "" {
		name = "hour"
	}
	interval, ok := intervals[name]
	if !ok {
		return answer{}, badQuery("interval", "must be one of minute, hour, day")
	}
	f, _, err := e.statsQuery(c, interval.length)
	if err != nil {
		return answer{}, err
	}
	if f.To.Sub(f.From) > maxStatsPoints*interval.step {
		return answer{}, badQuery("from", "gives more than "+strconv.Itoa(maxStatsPoints)+" points")
	}
	f.Step = interval.step
	points, err := e.cfg.Engine.Traffic(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	out := analyticsAnswer{DataPoints: make([]analyticsPoint, len(points)), Interval: name, From: timeText(f.From), To: timeText(f.To)}
	for i, p := range points {
		out.DataPoints[i] = analyticsPoint{timeText(p.At), p.Pushed, p.Acked, p.Popped, p.Failed, p.DeadLettered}
	}
	return encode(http.StatusOK, out)
}

type lagRow struct {
	Queue     string `json:"queue"`
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	lagTotal
}

type lagTotal struct {
	Partitions int64      `json:"partitions"`
	Behind     int64      `json:"partitionsBehind"`
	Open       int64      `json:"open"`
	Lag        lagSpreads `json:"lag"`
}

func lagOf(l queue.Lag) lagTotal { return lagTotal{l.Partitions, l.Behind, l.Open, spreadsOf(l)} }

type queueLags struct {
	Queues    []lagRow `json:"queues"`
	Total     lagTotal `json:"total"`
	Timestamp string   `json:"timestamp"`
	StatsAge  float64  `json:"statsAge"`
}

func (e *edge) getQueueLag(c *call) (answer, error) {
	f, _, err := e.statsQuery(c, defaultRange)
	if err != nil {
		return answer{}, err
	}
	lags, err := e.cfg.Engine.Lags(c.ctx, e.cfg.Engine.StatsInterval())
	if err != nil {
		return answer{}, err
	}
	out := queueLags{Queues: []lagRow{}, Total: lagOf(lags.Total), Timestamp: timeText(lags.At), StatsAge: e.age(lags.At)}
	for _, l := range lags.Queues {
		if f.Queue != "" && l.Name != f.Queue || f.Namespace != "" && l.Namespace != f.Namespace || f.Task != "" && l.Task != f.Task {
			continue
		}
		out.Queues = append(out.Queues, lagRow{l.Name, l.Namespace, l.Task, lagOf(l.Lag)})
	}
	return encode(http.StatusOK, out)
}

type operations struct {
	Pushed       int64 `json:"pushed"`
	Popped       int64 `json:"popped"`
	Acked        int64 `json:"acked"`
	Failed       int64 `json:"failed"`
	DeadLettered int64 `json:"deadLettered"`
}

type queueOpsRow struct {
	Queue     string `json:"queue"`
	Namespace string `json:"namespace"`
	Task      string `json:"task"`
	operations
}

type queueOpsPoint struct {
	Timestamp string `json:"timestamp"`
	operations
}

type queueOps struct {
	TimeRange     timeRange       `json:"timeRange"`
	BucketMinutes int             `json:"bucketMinutes"`
	Queues        []queueOpsRow   `json:"queues"`
	Series        []queueOpsPoint `json:"series"`
}

func (e *edge) getQueueOps(c *call) (answer, error) {
	f, _, err := e.statsQuery(c, defaultRange)
	if err != nil {
		return answer{}, err
	}
	list, err := e.cfg.Engine.Queues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	traffic, err := e.cfg.Engine.TrafficByQueue(c.ctx, f.From, f.To)
	if err != nil {
		return answer{}, err
	}
	points, err := e.cfg.Engine.Traffic(c.ctx, f)
	if err != nil {
		return answer{}, err
	}
	out := queueOps{TimeRange: rangeOf(f), BucketMinutes: int(f.Step / time.Minute), Queues: []queueOpsRow{}, Series: make([]queueOpsPoint, len(points))}
	for _, s := range matching(list, f) {
		out.Queues = append(out.Queues, queueOpsRow{s.Name, s.Namespace, s.Task, operations(traffic[s.ID])})
	}
	for i, p := range points {
		out.Series[i] = queueOpsPoint{timeText(p.At), operations(p.Traffic)}
	}
	return encode(http.StatusOK, out)
}

type retentionRow struct {
	Queue            string `json:"queue"`
	Namespace        string `json:"namespace"`
	Task             string `json:"task"`
	Enabled          bool   `json:"retentionEnabled"`
	Retention        int64  `json:"retentionSeconds"`
	Completed        int64  `json:"completedRetentionSeconds"`
	MaxWait          int64  `json:"maxWaitTimeSeconds"`
	DedupWindow      int64  `json:"dedupWindowSeconds"`
	RetainedMessages int64  `json:"retainedMessages"`
	RetainedBytes    int64  `json:"retainedBytes"`
	Segments         int64  `json:"segments"`
}

type retentionStats struct {
	Queues []retentionRow `json:"queues"`
	Totals struct {
		RetainedMessages int64 `json:"retainedMessages"`
		RetainedBytes    int64 `json:"retainedBytes"`
		Segments         int64 `json:"segments"`
	} `json:"totals"`
	Timestamp string `json:"timestamp"`
}

func (e *edge) getRetentionStats(c *call) (answer, error) {
	f, _, err := e.statsQuery(c, defaultRange)
	if err != nil {
		return answer{}, err
	}
	list, err := e.cfg.Engine.Queues(c.ctx)
	if err != nil {
		return answer{}, err
	}
	list = matching(list, f)
	out := retentionStats{Queues: make([]retentionRow, len(list)), Timestamp: timeText(e.cfg.Engine.Now())}
	for i, s := range list {
		o := s.Options
		out.Queues[i] = retentionRow{
			Queue: s.Name, Namespace: s.Namespace, Task: s.Task, Enabled: o.RetentionEnabled,
			Retention: int64(o.Retention / time.Second), Completed: int64(o.CompletedRetention / time.Second),
			MaxWait: int64(o.MaxWaitTime / time.Second), DedupWindow: int64(o.DedupWindow / time.Second),
			RetainedMessages: s.Messages.Total, RetainedBytes: s.RetainedBytes, Segments: s.Segments,
		}
	}
	t := sumUp(list)
	out.Totals.RetainedMessages, out.Totals.RetainedBytes, out.Totals.Segments = t.messages.Total, t.bytes, t.segments
	return encode(http.StatusOK, out)
}

type statsRefreshed struct {
	Success   bool    `json:"success"`
	Timestamp string  `json:"timestamp"`
	Duration  float64 `json:"durationMs"`
}

func (e *edge) refreshStats(c *call) (answer, error) {
	began := time.Now()
	at, err := e.cfg.Engine.RefreshStats(c.ctx)
	if err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, statsRefreshed{true, timeText(at), round(float64(time.Since(began).Microseconds()) / 1000)})
}
