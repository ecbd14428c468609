package api

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"
)

const (
	// engineName is the value of "engine" in health and status.
	engineName = "posthorn"
	// healthDeadline bounds the round trip of a health check.
	healthDeadline = 2 * time.Second
)

type healthAnswer struct {
	Status   string `json:"status"`
	Database string `json:"database"`
	Engine   string `json:"engine"`
	Version  string `json:"version"`
	// Encryption is the state of encryption at rest.
	Encryption string `json:"encryption"`
	// Egress says where deliveries may go.
	Egress string `json:"egress"`
	*durability
	MaintenanceMode    bool         `json:"maintenanceMode"`
	PopMaintenanceMode bool         `json:"popMaintenanceMode"`
	Spool              *spoolHealth `json:"spool,omitzero"` // absent when there is none
}

// durability are the settings of PostgreSQL on which it rests that what is committed stays.
type durability struct {
	PostgresVersion         string `json:"postgresVersion"`
	Fsync                   string `json:"fsync"`
	SynchronousCommit       string `json:"synchronous_commit"`
	SynchronousStandbyNames string `json:"synchronous_standby_names"`
}

type statusAnswer struct {
	Status string `json:"status"`
	Engine string `json:"engine"`
}

// health asks PostgreSQL, and gives up after healthDeadline. Why it failed stands in the log only.
func (e *edge) health(c *call) (answer, error) {
	ctx, cancel := context.WithTimeout(c.ctx, healthDeadline)
	defer cancel()
	db, err := e.cfg.Engine.Ping(ctx)
	modes, b := e.cfg.Engine.Modes(), e.cfg.Engine.Buffer()
	out := healthAnswer{
		Status: "healthy", Database: "connected", Engine: engineName, Version: e.cfg.Version, Encryption: cmp.Or(e.cfg.Encryption, "off"), Egress: e.cfg.Delivery.Egress(),
		MaintenanceMode: modes.Maintenance, PopMaintenanceMode: modes.PopMaintenance,
	}
	if b.Configured {
		out.Spool = &spoolHealth{Messages: b.Pending, OldestSeconds: b.Age.Seconds(), Failed: b.Failed, Healthy: bufferHealthy(b)}
	}
	if err != nil {
		if c.ctx.Err() != nil {
			return answer{}, context.Cause(c.ctx)
		}
		c.ex.note(err)
		out.Status, out.Database = "unhealthy", "disconnected"
		return encode(http.StatusServiceUnavailable, out)
	}
	out.durability = &durability{
		PostgresVersion:         db.Version,
		Fsync:                   db.Fsync,
		SynchronousCommit:       db.SynchronousCommit,
		SynchronousStandbyNames: db.SynchronousStandbyNames,
	}
	return encode(http.StatusOK, out)
}

// status is liveness: it touches nothing but this process.
func (e *edge) status(*call) (answer, error) {
	return encode(http.StatusOK, statusAnswer{Status: "ok", Engine: engineName})
}

// openapiDocument serves the API description, which changes with the version of the broker only.
func (e *edge) openapiDocument(c *call) (answer, error) {
	tag := `"` + e.cfg.Spec.SHA256() + `"`
	header := map[string]string{"ETag": tag, "Cache-Control": "no-cache"}
	if matchesTag(c.head.Get("If-None-Match"), tag) {
		return answer{status: http.StatusNotModified, header: header}, nil
	}
	return answer{status: http.StatusOK, header: header, body: e.cfg.Spec.JSON()}, nil
}

// matchesTag says whether an If-None-Match header names a tag. Comparison is weak (RFC 9110, 13.1.2).
func matchesTag(header, tag string) bool {
	for given := range strings.SplitSeq(header, ",") {
		given = strings.TrimPrefix(strings.TrimSpace(given), "W/")
		if given == "*" || given == tag {
			return true
		}
	}
	return false
}
