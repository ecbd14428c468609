package reference

import (
	"encoding/json"
	"net/http"
	"time"
)

func (b *Broker) maintenanceState() map[string]any {
	waiting, healthy := len(b.spool), !b.spoolBroken || b.has(SpoolAlwaysHealthy)
	if b.has(SpoolNotCounted) {
		waiting = 0
	}
	pop := b.popMaintenance
	if b.has(ModesMixed) {
		pop = b.maintenance
	}
	return map[string]any{
		"maintenanceMode": b.maintenance, "popMaintenanceMode": pop, "bufferedMessages": waiting, "bufferHealthy": healthy,
		"bufferStats": map[string]any{
			"pendingCount": waiting, "failedCount": 0, "dbHealthy": !b.down(), "totalBytes": 0, "oldestSeconds": 0,
			"failedFiles": map[string]int{"count": 0, "totalBytes": 0},
		},
	}
}

func (b *Broker) getMaintenance(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(w, http.StatusOK, b.maintenanceState())
}

// parseSwitch reads the body of a switch.
func (b *Broker) parseSwitch(r *http.Request) (on bool, err error) {
	body, err := b.readBody(r)
	if err != nil {
		return false, err
	}
	o, err := b.parseObject(body)
	if err != nil {
		return false, err
	}
	var enabled *bool
	if err := json.Unmarshal(o["enabled"], &enabled); err == nil && enabled != nil {
		return *enabled, nil
	}
	if b.has(SwitchCoerced) {
		return true, nil
	}
	return false, badRequest("enabled (boolean) is required")
}

func (b *Broker) setMaintenance(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	on, err := b.parseSwitch(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(SwitchLate) {
		time.AfterFunc(50*time.Millisecond, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.maintenance = on
			b.drainSpool()
		})
	} else {
		b.maintenance = on
		b.drainSpool()
	}
	state := b.maintenanceState()
	writeJSON(w, http.StatusOK, map[string]any{
		"maintenanceMode": on, "bufferedMessages": state["bufferedMessages"], "bufferHealthy": state["bufferHealthy"], "message": "switched",
	})
}

func (b *Broker) writePopMaintenance(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, map[string]any{"popMaintenanceMode": b.popMaintenance, "message": "pop maintenance"})
}

func (b *Broker) getPopMaintenance(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(PopModeNotTold) {
		writeJSON(w, http.StatusOK, map[string]any{"popMaintenanceMode": false, "message": "pop maintenance"})
		return
	}
	b.writePopMaintenance(w)
}

func (b *Broker) setPopMaintenance(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	on, err := b.parseSwitch(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.popMaintenance = on
	if b.popMaintenance && b.has(PopMaintenanceSkips) {
		for _, p := range b.partitions {
			for _, c := range p.cursors {
				c.committed = len(p.messages)
			}
			if p.cursors[modeGroup] == nil {
				p.cursors[modeGroup] = &cursor{committed: len(p.messages), attempts: map[int]int{}}
			}
		}
	}
	b.wake()
	b.writePopMaintenance(w)
}

// paused says whether pops find nothing. parked pops are those that waited already.
func (b *Broker) paused(parked bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.maintenance && b.has(MaintenanceStopsPops) {
		return true
	}
	return b.popMaintenance && !b.has(PopMaintenanceIgnored) && (!parked || !b.has(PopMaintenanceKeepsParked))
}

func (b *Broker) getSharedState(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{
		"maintenanceMode": b.maintenance && !b.has(SharedStateStale), "popMaintenanceMode": b.popMaintenance, "catalogVersion": 0,
		"queues": len(b.queues), "partitions": len(b.partitions), "shardHeads": []int64{b.seq}, "parkedPops": 0, "dbHealthy": !b.down(),
	})
}

func (b *Broker) notify(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	o, err := b.parseObject(body)
	if err != nil {
		b.writeError(w, err)
		return
	}
	name, err := o.text("", "queue")
	if err == nil && name == "" {
		err = badBody("queue must not be empty")
	}
	if err != nil && !b.has(NotifyUnchecked) {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(NotifyCreates) {
		b.queueNamed(name)
	}
	b.wake()
	writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (b *Broker) getBuffers(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	waiting := len(b.spool)
	if b.has(BuffersEmpty) {
		waiting = 0
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"pending": waiting, "failed": 0, "dbHealthy": !b.down() || b.has(DatabaseAlwaysUp), "worker": 0,
	})
}
