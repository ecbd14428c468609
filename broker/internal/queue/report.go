package queue

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"sort"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Report is what one broker said of itself last.
type Report struct {
	ID         uuid.UUID `json:"-"` // of the process: another one after a restart
	StartedAt  time.Time `json:"-"`
	ReportedAt time.Time `json:"-"`

	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Version string `json:"version"`

	CPUs       int     `json:"cpus"`       // that the process may use
	CPUSeconds float64 `json:"cpuSeconds"` // of the Go program's own work, since the start
	HeapBytes  uint64  `json:"heapBytes"`
	TotalBytes uint64  `json:"totalBytes"` // of memory mapped by the Go runtime
	Goroutines int     `json:"goroutines"`

	PoolSize        int `json:"poolSize"` // most connections to PostgreSQL
	PoolConnections int `json:"poolConnections"`
	PoolBusy        int `json:"poolBusy"`

	Requests Requests `json:"requests"`

	Parked        int            `json:"parked"`        // pops that wait
	ParkedByQueue map[string]int `json:"parkedByQueue"` // of the queues with most of them, at most parkedQueues

	SpoolPending int64     `json:"spoolPending"`
	SpoolFailed  int64     `json:"spoolFailed"`
	SpoolBytes   int64     `json:"spoolBytes"`
	SpoolOldest  time.Time `json:"spoolOldest"` // zero when nothing waits there
}

// Requests counts what the broker has done since its start.
type Requests struct {
	Pushes         int64 `json:"pushes"`
	Pops           int64 `json:"pops"`
	Acks           int64 `json:"acks"`
	PushedMessages int64 `json:"pushedMessages"` // as queued
	PoppedMessages int64 `json:"poppedMessages"`
	AckedItems     int64 `json:"ackedItems"` // carried out
	FailedPushes   int64 `json:"failedPushes"`
	DeadLetters    int64 `json:"deadLetters"`
	DatabaseErrors int64 `json:"databaseErrors"` // times the connections were given up
}

// parkedQueues bounds how many queues a report names.
const parkedQueues = 1000

const (
	// reportAlive is how many reports a broker may miss before it counts as gone.
	reportAlive = 3
	reportKept  = "1 hour"
)

// reporter makes the reports of this broker.
type reporter struct {
	id   uuid.UUID
	host string
}

func newReporter() (*reporter, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown" // a label for people
	}
	return &reporter{id: id, host: host}, nil
}

// Report describes this broker now.
func (e *Engine) Report() Report {
	pool := e.pool.Stat()
	r := Report{
		ID: e.reports.id, StartedAt: e.started, ReportedAt: e.Now(),
		Host: e.reports.host, PID: os.Getpid(), Version: e.cfg.Version,
		CPUs: runtime.GOMAXPROCS(0), Goroutines: runtime.NumGoroutine(),
		PoolSize: int(pool.MaxConns()), PoolConnections: int(pool.TotalConns()), PoolBusy: int(pool.AcquiredConns()),
		Requests: e.metrics.requests(),
	}
	samples := []runtimemetrics.Sample{
		{Name: "/cpu/classes/user:cpu-seconds"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"},
	}
	runtimemetrics.Read(samples)
	r.CPUSeconds, r.HeapBytes, r.TotalBytes = samples[0].Value.Float64(), samples[1].Value.Uint64(), samples[2].Value.Uint64()
	r.Parked, r.ParkedByQueue = e.pops.parkedByQueue()
	if s := e.cfg.Spool; s != nil {
		stats := s.Stats()
		r.SpoolPending, r.SpoolFailed, r.SpoolBytes = int64(stats.Pending), int64(stats.Failed), stats.Bytes
		if stats.Pending > 0 {
			r.SpoolOldest = stats.Oldest
		}
	}
	return r
}

// parkedByQueue counts parked pops in all and by queue. A pop by namespace or task counts once in all, and
// for every queue in its scope.
func (p *popper) parkedByQueue() (all int, byQueue map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byQueue = map[string]int{}
	p.engine.catalog.mu.RLock()
	for _, q := range p.engine.catalog.queueID {
		n := 0
		for _, g := range q.groups {
			n += g.waiters.Len() + g.lost.Len() + g.singles
		}
		if n > 0 {
			byQueue[q.name] = n
		}
	}
	p.engine.catalog.mu.RUnlock()
	if len(byQueue) > parkedQueues {
		names := make([]string, 0, len(byQueue))
		for name := range byQueue {
			names = append(names, name)
		}
		sort.Slice(names, func(i, j int) bool { return byQueue[names[i]] > byQueue[names[j]] })
		for _, name := range names[parkedQueues:] {
			delete(byQueue, name)
		}
	}
	return p.waiting, byQueue
}

const sqlReport = `
insert into broker_report (id, started_at, reported_at, report)
values ($1, $2, clock_timestamp() + $4::interval, $3)
on conflict (id) do update set reported_at = excluded.reported_at, report = excluded.report`

// report writes what this broker says of itself.
func (e *Engine) report(ctx context.Context) error {
	r := e.Report()
	encoded, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return e.retrying(ctx, "report", func(ctx context.Context) error {
		_, err := e.pool.Exec(ctx, sqlReport, r.ID, r.StartedAt, encoded, e.clockOffset())
		return err
	})
}

const sqlReports = `
select id, started_at, reported_at, report from broker_report
where reported_at > clock_timestamp() + $1::interval - $2::interval
order by started_at, id`

// Reports returns what the brokers that are alive said last, this one's as of now, the oldest process first.
func (e *Engine) Reports(ctx context.Context) ([]Report, error) {
	if err := e.report(ctx); err != nil {
		return nil, err
	}
	var list []Report
	err := e.retrying(ctx, "read the reports", func(ctx context.Context) error {
		list = []Report{}
		var id uuid.UUID
		var started, reported time.Time
		var encoded []byte
		rows, _ := e.pool.Query(ctx, sqlReports, e.clockOffset(), reportAlive*e.cfg.StatsInterval) // its error comes with the rows
		_, err := pgx.ForEachRow(rows, []any{&id, &started, &reported, &encoded}, func() error {
			r := Report{}
			if err := json.Unmarshal(encoded, &r); err != nil {
				return err
			}
			r.ID, r.StartedAt, r.ReportedAt = id, started, reported
			list = append(list, r)
			return nil
		})
		return err
	})
	return list, err
}

const sqlTrimReports = `
delete from broker_report where id in (
    select id from broker_report where reported_at < clock_timestamp() + $1::interval - interval '` + reportKept + `' limit $2
)`

const sqlForgetReport = `delete from broker_report where id = $1`

// trafficEvery is how often the traffic is written: what is counted in between is lost when the process is killed.
const trafficEvery = time.Second

func (e *Engine) trafficLoop(ctx context.Context) {
	e.every(ctx, trafficEvery, "traffic", func(ctx context.Context) error { return e.writeTraffic(ctx) })
}

// statsLoop keeps the counts close behind the log, so that a question finds little left to add, and reports.
func (e *Engine) statsLoop(ctx context.Context) {
	e.every(ctx, e.cfg.StatsInterval, "counts and reports", func(ctx context.Context) error {
		return errors.Join(e.count(ctx), e.report(ctx))
	})
}

// every does something at an interval until ctx ends. That PostgreSQL is away is logged by others.
func (e *Engine) every(ctx context.Context, interval time.Duration, job string, do func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := do(ctx); err != nil && ctx.Err() == nil && !pg.Unavailable(err) && !errors.Is(err, ErrUnavailable) {
			e.log.Error("a periodic job failed", "job", job, "err", err)
		}
	}
}

// farewell bounds what a stopping broker still writes about itself.
const farewell = 2 * time.Second

// lastWords writes the traffic that is left, and takes the broker's report away.
func (e *Engine) lastWords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	if err := e.writeTraffic(ctx); err != nil {
		e.log.Warn("the last figures of traffic are lost", "err", err)
		return
	}
	_, _ = e.pool.Exec(ctx, sqlForgetReport, e.reports.id) // it expires by itself
}
