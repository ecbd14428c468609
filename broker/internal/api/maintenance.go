package api

import (
	"errors"
	"net/http"

	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/openapi"
)

// switchRequest is the body of the routes that switch a mode.
type switchRequest struct {
	Enabled bool `json:"enabled"`
}

type maintenanceAnswer struct {
	MaintenanceMode    bool        `json:"maintenanceMode"`
	PopMaintenanceMode bool        `json:"popMaintenanceMode"`
	BufferedMessages   int         `json:"bufferedMessages"`
	BufferHealthy      bool        `json:"bufferHealthy"`
	BufferStats        bufferStats `json:"bufferStats"`
}

type bufferStats struct {
	PendingCount  int         `json:"pendingCount"`
	FailedCount   int         `json:"failedCount"`
	DBHealthy     bool        `json:"dbHealthy"`
	TotalBytes    int64       `json:"totalBytes"`
	OldestSeconds float64     `json:"oldestSeconds"`
	FailedFiles   failedFiles `json:"failedFiles"`
}

type failedFiles struct {
	Count      int   `json:"count"`
	TotalBytes int64 `json:"totalBytes"`
}

type maintenanceSwitched struct {
	MaintenanceMode  bool   `json:"maintenanceMode"`
	BufferedMessages int    `json:"bufferedMessages"`
	BufferHealthy    bool   `json:"bufferHealthy"`
	Message          string `json:"message"`
}

type popMaintenanceAnswer struct {
	PopMaintenanceMode bool   `json:"popMaintenanceMode"`
	Message            string `json:"message"`
}

type sharedStateAnswer struct {
	MaintenanceMode    bool    `json:"maintenanceMode"`
	PopMaintenanceMode bool    `json:"popMaintenanceMode"`
	CatalogVersion     int64   `json:"catalogVersion"`
	Queues             int     `json:"queues"`
	Partitions         int     `json:"partitions"`
	ShardHeads         []int64 `json:"shardHeads"`
	ParkedPops         int     `json:"parkedPops"`
	DBHealthy          bool    `json:"dbHealthy"`
}

type notifyRequest struct {
	Queue string `json:"queue"`
}

type notifyAnswer struct {
	Status string `json:"status"`
}

type buffersAnswer struct {
	Pending   int  `json:"pending"`
	Failed    int  `json:"failed"`
	DBHealthy bool `json:"dbHealthy"`
	Worker    int  `json:"worker"`
}

// spoolHealth is what /health says of the spool.
type spoolHealth struct {
	Messages      int     `json:"messages"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Failed        int     `json:"failed"`
	Healthy       bool    `json:"healthy"`
}

// worded is a refused request as the queue contract words it, where that differs (section 10).
func worded(rt route, err error) error {
	check, ok := errors.AsType[*openapi.CheckError](err)
	if ok && check.Field == "enabled" && (rt.id == "setMaintenance" || rt.id == "setPopMaintenance") {
		return errNoSwitch
	}
	return err
}

// bufferHealthy says whether the spool takes records, as far as its last write tells.
func bufferHealthy(b queue.Buffer) bool { return b.Configured && b.Err == nil }

// getMaintenance asks nobody, so that it answers in an outage too.
func (e *edge) getMaintenance(*call) (answer, error) {
	modes, b := e.cfg.Engine.Modes(), e.cfg.Engine.Buffer()
	return encode(http.StatusOK, maintenanceAnswer{
		MaintenanceMode:    modes.Maintenance,
		PopMaintenanceMode: modes.PopMaintenance,
		BufferedMessages:   b.Pending,
		BufferHealthy:      bufferHealthy(b),
		BufferStats: bufferStats{
			PendingCount:  b.Pending,
			FailedCount:   b.Failed,
			DBHealthy:     b.DatabaseUp,
			TotalBytes:    b.Bytes,
			OldestSeconds: b.Age.Seconds(),
			FailedFiles:   failedFiles{Count: b.Failed, TotalBytes: b.FailedBytes},
		},
	})
}

func (e *edge) setMaintenance(c *call) (answer, error) {
	var body switchRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	if err := e.cfg.Engine.SetMaintenance(c.ctx, body.Enabled); err != nil {
		return answer{}, err
	}
	b := e.cfg.Engine.Buffer()
	out := maintenanceSwitched{
		MaintenanceMode: e.cfg.Engine.Modes().Maintenance, BufferedMessages: b.Pending, BufferHealthy: bufferHealthy(b),
		Message: "the spool is being drained",
	}
	switch {
	case out.MaintenanceMode:
		out.Message = "pushes go to the spool"
	case b.Pending == 0:
		out.Message = "pushes go to PostgreSQL"
	}
	return encode(http.StatusOK, out)
}

func (e *edge) getPopMaintenance(*call) (answer, error) { return e.encodePopMaintenance() }

func (e *edge) setPopMaintenance(c *call) (answer, error) {
	var body switchRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	if err := e.cfg.Engine.SetPopMaintenance(c.ctx, body.Enabled); err != nil {
		return answer{}, err
	}
	return e.encodePopMaintenance()
}

func (e *edge) encodePopMaintenance() (answer, error) {
	out := popMaintenanceAnswer{PopMaintenanceMode: e.cfg.Engine.Modes().PopMaintenance, Message: "pops deliver"}
	if out.PopMaintenanceMode {
		out.Message = "pops find nothing"
	}
	return encode(http.StatusOK, out)
}

func (e *edge) getSharedState(*call) (answer, error) {
	s := e.cfg.Engine.SharedState()
	return encode(http.StatusOK, sharedStateAnswer{
		MaintenanceMode:    s.Modes.Maintenance,
		PopMaintenanceMode: s.Modes.PopMaintenance,
		CatalogVersion:     s.CatalogVersion,
		Queues:             s.Queues,
		Partitions:         s.Partitions,
		ShardHeads:         s.ShardHeads,
		ParkedPops:         s.ParkedPops,
		DBHealthy:          e.cfg.Engine.Buffer().DatabaseUp,
	})
}

func (e *edge) notify(c *call) (answer, error) {
	var body notifyRequest
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	if err := e.cfg.Engine.Notify(c.ctx, body.Queue); err != nil {
		return answer{}, err
	}
	return encode(http.StatusOK, notifyAnswer{Status: "ok"})
}

func (e *edge) getBuffers(*call) (answer, error) {
	b := e.cfg.Engine.Buffer()
	return encode(http.StatusOK, buffersAnswer{Pending: b.Pending, Failed: b.Failed, DBHealthy: b.DatabaseUp})
}
