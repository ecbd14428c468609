package api

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/posthorn/posthorn/broker/internal/queue"
)

type parkedReplica struct {
	ID     string `json:"id"`
	Host   string `json:"host"`
	Parked int    `json:"parked"`
}

type parkedQueue struct {
	Queue    string          `json:"queue"`
	Parked   int             `json:"parked"`
	Replicas []parkedReplica `json:"replicas"`
}

type parkedPops struct {
	Queues    []parkedQueue `json:"queues"`
	Parked    int           `json:"parked"`
	Timestamp string        `json:"timestamp"`
}

func (e *edge) getParkedPops(c *call) (answer, error) {
	q, err := c.query()
	if err != nil {
		return answer{}, err
	}
	reports, err := e.cfg.Engine.Reports(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := parkedPops{Queues: []parkedQueue{}, Timestamp: timeText(e.cfg.Engine.Now())}
	at := map[string]int{}
	for i := range reports {
		r := &reports[i]
		out.Parked += r.Parked
		for name, n := range r.ParkedByQueue {
			if only := q.Get("queue"); only != "" && name != only {
				continue
			}
			j, ok := at[name]
			if !ok {
				j = len(out.Queues)
				at[name] = j
				out.Queues = append(out.Queues, parkedQueue{Queue: name})
			}
			p := &out.Queues[j]
			p.Parked += n
			p.Replicas = append(p.Replicas, parkedReplica{r.ID.String(), r.Host, n})
		}
	}
	slices.SortFunc(out.Queues, func(a, b parkedQueue) int {
		return cmp.Or(cmp.Compare(b.Parked, a.Parked), cmp.Compare(a.Queue, b.Queue))
	})
	return encode(http.StatusOK, out)
}

type poolState struct {
	Size        int `json:"poolSize"`
	Connections int `json:"connections"`
	Busy        int `json:"busy"`
}

type spoolState struct {
	Pending int64   `json:"pending"`
	Failed  int64   `json:"failed"`
	Bytes   int64   `json:"bytes"`
	Oldest  float64 `json:"oldestSeconds"`
}

func (e *edge) poolAndSpool(r *queue.Report) (poolState, spoolState) {
	s := spoolState{Pending: r.SpoolPending, Failed: r.SpoolFailed, Bytes: r.SpoolBytes}
	if !r.SpoolOldest.IsZero() {
		s.Oldest = e.age(r.SpoolOldest)
	}
	return poolState{r.PoolSize, r.PoolConnections, r.PoolBusy}, s
}

type brokerSystem struct {
	brokerIdentity
	CPUs       int        `json:"cpus"`
	CPUSeconds float64    `json:"cpuSeconds"`
	HeapBytes  uint64     `json:"heapBytes"`
	TotalBytes uint64     `json:"totalBytes"`
	Goroutines int        `json:"goroutines"`
	Database   poolState  `json:"database"`
	Spool      spoolState `json:"spool"`
}

func (e *edge) getSystemMetrics(c *call) (answer, error) {
	reports, err := e.cfg.Engine.Reports(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := struct {
		Brokers   []brokerSystem `json:"brokers"`
		Timestamp string         `json:"timestamp"`
	}{make([]brokerSystem, len(reports)), timeText(e.cfg.Engine.Now())}
	for i := range reports {
		r := &reports[i]
		b := brokerSystem{
			brokerIdentity: e.identity(r), CPUs: r.CPUs, CPUSeconds: round(r.CPUSeconds), HeapBytes: r.HeapBytes,
			TotalBytes: r.TotalBytes, Goroutines: r.Goroutines,
		}
		b.Database, b.Spool = e.poolAndSpool(r)
		out.Brokers[i] = b
	}
	return encode(http.StatusOK, out)
}

type brokerWork struct {
	brokerIdentity
	Parked   int        `json:"parked"`
	Requests workCounts `json:"requests"`
}

// workCounts are queue.Requests on the wire.
type workCounts struct {
	Pushes         int64 `json:"pushes"`
	Pops           int64 `json:"pops"`
	Acks           int64 `json:"acks"`
	PushedMessages int64 `json:"pushedMessages"`
	PoppedMessages int64 `json:"poppedMessages"`
	AckedItems     int64 `json:"ackedItems"`
	FailedPushes   int64 `json:"failedPushes"`
	DeadLetters    int64 `json:"deadLetters"`
	DatabaseErrors int64 `json:"databaseErrors"`
}

func (e *edge) getWorkerMetrics(c *call) (answer, error) {
	reports, err := e.cfg.Engine.Reports(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := struct {
		Workers   []brokerWork `json:"workers"`
		Timestamp string       `json:"timestamp"`
	}{make([]brokerWork, len(reports)), timeText(e.cfg.Engine.Now())}
	for i := range reports {
		r := &reports[i]
		out.Workers[i] = brokerWork{e.identity(r), r.Parked, workCounts(r.Requests)}
	}
	return encode(http.StatusOK, out)
}

type databaseState struct {
	Version        string  `json:"version"`
	Size           int64   `json:"sizeBytes"`
	Connections    int64   `json:"connections"`
	MaxConnections int64   `json:"maxConnections"`
	Commits        int64   `json:"commits"`
	Rollbacks      int64   `json:"rollbacks"`
	Hit            int64   `json:"blocksHit"`
	Read           int64   `json:"blocksRead"`
	HitRatio       float64 `json:"cacheHitRatio"`
	Deadlocks      int64   `json:"deadlocks"`
	TempBytes      int64   `json:"tempBytes"`
}

type tableState struct {
	Table        string  `json:"table"`
	Rows         int64   `json:"rows"`
	DeadRows     int64   `json:"deadRows"`
	TotalBytes   int64   `json:"totalBytes"`
	IndexBytes   int64   `json:"indexBytes"`
	LastVacuumed *string `json:"lastVacuumed"`
}

type postgresStats struct {
	Database  databaseState `json:"database"`
	Tables    []tableState  `json:"tables"`
	Timestamp string        `json:"timestamp"`
}

func (e *edge) getPostgresStats(c *call) (answer, error) {
	s, err := e.cfg.Engine.DatabaseStats(c.ctx)
	if err != nil {
		return answer{}, err
	}
	out := postgresStats{
		Database: databaseState{
			Version: s.Version, Size: s.SizeBytes, Connections: s.Connections, MaxConnections: s.MaxConnections, Commits: s.Commits,
			Rollbacks: s.Rollbacks, Hit: s.BlocksHit, Read: s.BlocksRead, Deadlocks: s.Deadlocks, TempBytes: s.TempBytes,
		},
		Tables: make([]tableState, len(s.Tables)), Timestamp: timeText(e.cfg.Engine.Now()),
	}
	if all := s.BlocksHit + s.BlocksRead; all > 0 {
		out.Database.HitRatio = round(float64(s.BlocksHit) / float64(all))
	}
	for i, t := range s.Tables {
		row := tableState{Table: t.Name, Rows: t.Rows, DeadRows: t.DeadRows, TotalBytes: t.TotalBytes, IndexBytes: t.IndexBytes}
		if t.LastVacuumed != nil {
			row.LastVacuumed = optionalTime(*t.LastVacuumed)
		}
		out.Tables[i] = row
	}
	return encode(http.StatusOK, out)
}

type brokerMetrics struct {
	Version  string  `json:"version"`
	Uptime   float64 `json:"uptimeSeconds"`
	Requests struct {
		Pushes int64 `json:"pushes"`
		Pops   int64 `json:"pops"`
		Acks   int64 `json:"acks"`
	} `json:"requests"`
	Messages struct {
		Pushed       int64 `json:"pushed"`
		Popped       int64 `json:"popped"`
		Acked        int64 `json:"acked"`
		DeadLettered int64 `json:"deadLettered"`
	} `json:"messages"`
	Errors struct {
		FailedPushes   int64 `json:"failedPushes"`
		DatabaseErrors int64 `json:"databaseErrors"`
	} `json:"errors"`
	Parked   int       `json:"parked"`
	Database poolState `json:"database"`
	Memory   struct {
		Heap  uint64 `json:"heapBytes"`
		Total uint64 `json:"totalBytes"`
	} `json:"memory"`
	CPU struct {
		CPUs    int     `json:"cpus"`
		Seconds float64 `json:"seconds"`
	} `json:"cpu"`
	Spool     spoolState `json:"spool"`
	Timestamp string     `json:"timestamp"`
}

// getMetrics describes this broker from its memory; the database is not asked.
func (e *edge) getMetrics(*call) (answer, error) {
	r := e.cfg.Engine.Report()
	out := brokerMetrics{Version: r.Version, Uptime: e.age(r.StartedAt), Parked: r.Parked, Timestamp: timeText(r.ReportedAt.Truncate(time.Microsecond))}
	out.Requests.Pushes, out.Requests.Pops, out.Requests.Acks = r.Requests.Pushes, r.Requests.Pops, r.Requests.Acks
	m := &out.Messages
	m.Pushed, m.Popped, m.Acked, m.DeadLettered = r.Requests.PushedMessages, r.Requests.PoppedMessages, r.Requests.AckedItems, r.Requests.DeadLetters
	out.Errors.FailedPushes, out.Errors.DatabaseErrors = r.Requests.FailedPushes, r.Requests.DatabaseErrors
	out.Memory.Heap, out.Memory.Total = r.HeapBytes, r.TotalBytes
	out.CPU.CPUs, out.CPU.Seconds = r.CPUs, round(r.CPUSeconds)
	out.Database, out.Spool = e.poolAndSpool(&r)
	return encode(http.StatusOK, out)
}
