package posthorn

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Maintenance is the state of the maintenance modes, and of the spool of the broker that answered: what
// was pushed while its database was away, or in maintenance, waits there.
type Maintenance struct {
	Enabled    bool // pushes go to the spool, which is not drained
	PopEnabled bool // pops find nothing

	Buffered      int           // messages that wait in the spool
	BufferedBytes int64         // of the spool's files
	Oldest        time.Duration // how long the oldest message has waited; 0 without any
	Healthy       bool          // there is a spool, and its last write succeeded
	DatabaseUp    bool          // the database answered when it was last asked
	Failed        int           // what the spool has put aside for an operator
	FailedBytes   int64
}

// Maintenance reads the maintenance modes. It needs the role admin where tokens are required. Repeated as
// [RetryPolicy] says.
func (c *Client) Maintenance(ctx context.Context) (Maintenance, error) {
	var wire struct {
		MaintenanceMode    bool `json:"maintenanceMode"`
		PopMaintenanceMode bool `json:"popMaintenanceMode"`
		BufferedMessages   int  `json:"bufferedMessages"`
		BufferHealthy      bool `json:"bufferHealthy"`
		BufferStats        struct {
			FailedCount   int     `json:"failedCount"`
			DBHealthy     bool    `json:"dbHealthy"`
			TotalBytes    int64   `json:"totalBytes"`
			OldestSeconds float64 `json:"oldestSeconds"`
			FailedFiles   struct {
				TotalBytes int64 `json:"totalBytes"`
			} `json:"failedFiles"`
		} `json:"bufferStats"`
	}
	err := c.do(ctx, call{op: "getMaintenance", method: http.MethodGet, path: "/api/v1/system/maintenance", repeatable: true}, &wire)
	if err != nil {
		return Maintenance{}, err
	}
	stats := wire.BufferStats
	return Maintenance{
		Enabled: wire.MaintenanceMode, PopEnabled: wire.PopMaintenanceMode, Buffered: wire.BufferedMessages,
		BufferedBytes: stats.TotalBytes, Oldest: time.Duration(stats.OldestSeconds * float64(time.Second)),
		Healthy: wire.BufferHealthy, DatabaseUp: stats.DBHealthy, Failed: stats.FailedCount, FailedBytes: stats.FailedFiles.TotalBytes,
	}, nil
}

// MaintenanceSwitch is what [Client.SetMaintenance] brought about.
type MaintenanceSwitch struct {
	Enabled  bool   // the mode now
	Buffered int    // messages that wait in the spool of the broker that answered
	Healthy  bool   // there is a spool, and its last write succeeded
	Message  string // in words
}

// SetMaintenance switches maintenance for all brokers: for the one that answers at once, for the others
// within a second. While it is on, every push is answered buffered and waits on the disk of its broker;
// pops and acknowledgments go on. Switching it off lets the brokers move what waits to the log, in order
// and once. A broker without a spool refuses with status 409. It needs the role admin where tokens are
// required. Repeated as [RetryPolicy] says.
func (c *Client) SetMaintenance(ctx context.Context, on bool) (MaintenanceSwitch, error) {
	var wire struct {
		MaintenanceMode  bool   `json:"maintenanceMode"`
		BufferedMessages int    `json:"bufferedMessages"`
		BufferHealthy    bool   `json:"bufferHealthy"`
		Message          string `json:"message"`
	}
	err := c.do(ctx, call{
		op: "setMaintenance", method: http.MethodPost, path: "/api/v1/system/maintenance", body: enabledBody(on), repeatable: true,
	}, &wire)
	return MaintenanceSwitch{wire.MaintenanceMode, wire.BufferedMessages, wire.BufferHealthy, wire.Message}, err
}

func enabledBody(on bool) []byte { return fmt.Appendf(nil, `{"enabled":%t}`, on) }

// popMaintenance is the answer of both pop maintenance routes.
type popMaintenance struct {
	PopMaintenanceMode bool `json:"popMaintenanceMode"`
}

// PopMaintenance reports whether pops find nothing. It needs the role admin where tokens are required.
// Repeated as [RetryPolicy] says.
func (c *Client) PopMaintenance(ctx context.Context) (on bool, err error) {
	var wire popMaintenance
	err = c.do(ctx, call{op: "getPopMaintenance", method: http.MethodGet, path: "/api/v1/system/maintenance/pop", repeatable: true}, &wire)
	return wire.PopMaintenanceMode, err
}

// SetPopMaintenance switches for all brokers whether pops find nothing, those that wait included, and
// returns the mode now. It needs the role admin where tokens are required. Repeated as [RetryPolicy] says.
func (c *Client) SetPopMaintenance(ctx context.Context, on bool) (now bool, err error) {
	var wire popMaintenance
	err = c.do(ctx, call{
		op: "setPopMaintenance", method: http.MethodPost, path: "/api/v1/system/maintenance/pop", body: enabledBody(on), repeatable: true,
	}, &wire)
	return wire.PopMaintenanceMode, err
}

// Buffers is the spool of a broker in short.
type Buffers struct {
	Pending    int  // messages that wait
	Failed     int  // what was put aside for an operator
	DatabaseUp bool // the database answered when it was last asked
}

// Buffers reads the state of the spool of the broker that answers. Repeated as [RetryPolicy] says.
func (c *Client) Buffers(ctx context.Context) (Buffers, error) {
	var wire struct {
		Pending   int  `json:"pending"`
		Failed    int  `json:"failed"`
		DBHealthy bool `json:"dbHealthy"`
	}
	err := c.do(ctx, call{op: "getBuffers", method: http.MethodGet, path: "/api/v1/status/buffers", repeatable: true}, &wire)
	return Buffers{wire.Pending, wire.Failed, wire.DBHealthy}, err
}

// SharedState is how far a broker has followed what all brokers of its database share.
type SharedState struct {
	Maintenance    bool
	PopMaintenance bool
	CatalogVersion int64           // every change of a queue up to this one is known
	ShardHeads     []int64         // by shard of the log, the appends that are known
	ParkedPops     int             // that wait at this broker
	DatabaseUp     bool            // the database answered when it was last asked
	Raw            json.RawMessage // the whole answer, for what else it says
}

// SharedState reads how far the broker that answers has followed the others. It needs the role admin where
// tokens are required. Repeated as [RetryPolicy] says.
func (c *Client) SharedState(ctx context.Context) (SharedState, error) {
	var raw json.RawMessage
	err := c.do(ctx, call{op: "getSharedState", method: http.MethodGet, path: "/api/v1/system/shared-state", repeatable: true}, &raw)
	if err != nil {
		return SharedState{}, err
	}
	var wire struct {
		MaintenanceMode    bool    `json:"maintenanceMode"`
		PopMaintenanceMode bool    `json:"popMaintenanceMode"`
		CatalogVersion     int64   `json:"catalogVersion"`
		ShardHeads         []int64 `json:"shardHeads"`
		ParkedPops         int     `json:"parkedPops"`
		DBHealthy          bool    `json:"dbHealthy"`
	}
	if err := json.Unmarshal(raw, &wire); err != nil {
		return SharedState{}, fmt.Errorf("posthorn: getSharedState: answer: %w", err)
	}
	return SharedState{
		Maintenance: wire.MaintenanceMode, PopMaintenance: wire.PopMaintenanceMode, CatalogVersion: wire.CatalogVersion,
		ShardHeads: wire.ShardHeads, ParkedPops: wire.ParkedPops, DatabaseUp: wire.DBHealthy, Raw: raw,
	}, nil
}

// Notify makes the broker look at once for messages of a queue that arrived at other brokers, and serve
// the pops that wait for them. partition may be empty. Brokers find out by themselves within a second, so
// that nobody needs it for more than speed. It needs the role admin where tokens are required. Repeated as
// [RetryPolicy] says.
func (c *Client) Notify(ctx context.Context, queue, partition string) error {
	body := newJSONWriter()
	request := struct {
		Queue     string `json:"queue"`
		Partition string `json:"partition,omitempty"`
	}{queue, partition}
	for field, name := range map[string]string{"queue": queue, "partition": partition} {
		if err := checkUTF8(field, name); err != nil {
			return fmt.Errorf("posthorn: notify: %w", err)
		}
	}
	if err := body.value(request); err != nil {
		return fmt.Errorf("posthorn: notify: %w", err)
	}
	var wire struct{}
	return c.do(ctx, call{op: "notify", method: http.MethodPost, path: "/internal/api/notify", body: body.buf.Bytes(), repeatable: true}, &wire)
}
