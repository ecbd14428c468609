package reference

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

const (
	engine  = "posthorn-reference"
	version = "1"
)

type counts struct{ total, pending, processing, completed, deadLetter int }

func (c counts) wire() map[string]any {
	return map[string]any{
		"total": c.total, "pending": c.pending, "processing": c.processing, "completed": c.completed,
		"failed": nil, "deadLetter": c.deadLetter,
	}
}

func (c counts) plus(other counts) counts {
	return counts{
		c.total + other.total, c.pending + other.pending, c.processing + other.processing,
		c.completed + other.completed, c.deadLetter + other.deadLetter,
	}
}

// countsOf counts a partition from the point of view of its slowest group.
func (b *Broker) countsOf(p *partition) counts {
	start := p.start
	if b.has(RemovedStillCounted) {
		start = 0
	}
	c := counts{total: len(p.messages) - start, deadLetter: b.deadIn(p)}
	if b.has(TotalsMiscounted) {
		c.total++
	}
	slowest, leased := start, 0
	first := true
	for _, cursor := range p.cursors {
		held := 0
		if b.live(cursor.lease) {
			held = max(0, cursor.lease.end-max(cursor.committed, start))
		}
		at := max(cursor.committed, start)
		faster := at > slowest
		if first || !faster && !b.has(PendingOfFastest) || faster && b.has(PendingOfFastest) {
			slowest, leased, first = at, held, false
		}
	}
	if b.has(ProcessingNotCounted) {
		leased = 0
	}
	if b.has(DeadLettersNotCounted) {
		c.deadLetter = 0
	}
	c.completed, c.processing, c.pending = slowest-start, leased, len(p.messages)-slowest-leased
	return c
}

func (q *queue) segments() (segments, messages, size int) {
	for _, p := range q.partitions {
		there := p.messages[p.start:]
		if len(there) > 0 {
			segments++
		}
		messages += len(there)
		for _, m := range there {
			size += len(m.payload)
		}
	}
	return segments, messages, size
}

func (b *Broker) listQueues(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []any{}
	for _, q := range b.order {
		if b.has(ListsConfiguredOnly) && !q.configured {
			continue
		}
		var total counts
		for _, p := range q.partitions {
			total = total.plus(b.countsOf(p))
		}
		segments, messages, size := q.segments()
		list = append(list, map[string]any{
			"id": q.id.String(), "name": q.name, "namespace": q.namespace, "task": q.task, "createdAt": iso(q.created),
			"partitions": len(q.partitions), "retainedBytes": size,
			"segments": map[string]int{"segments": segments, "messages": messages},
			"messages": map[string]int{"total": total.total, "pending": total.pending, "processing": total.processing},
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{"queues": list})
}

func (b *Broker) getQueue(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[params["queue"]]
	if q == nil && b.has(GetCreates) {
		b.queueNamed(params["queue"])
	}
	if q == nil {
		if b.has(UnknownQueueEmpty) {
			writeJSON(w, http.StatusOK, map[string]any{})
			return
		}
		writeJSON(w, http.StatusNotFound, map[string]string{"error": "Queue not found"})
		return
	}
	var total counts
	partitions := []any{}
	for _, p := range q.partitions {
		stats := b.countsOf(p)
		total = total.plus(stats)
		var oldest, newest any
		if n := len(p.messages); n > p.start {
			oldest, newest = iso(p.messages[p.start].created), iso(p.messages[n-1].created)
		}
		if b.has(NewestIsOldest) {
			newest = oldest
		}
		partitions = append(partitions, map[string]any{
			"id": p.id.String(), "name": p.name, "createdAt": iso(p.created), "stats": stats.wire(),
			"oldestMessage": oldest, "newestMessage": newest,
		})
	}
	if b.has(TotalsOfFirst) && len(q.partitions) > 0 {
		total = b.countsOf(q.partitions[0])
	}
	segments, messages, size := q.segments()
	writeJSON(w, http.StatusOK, map[string]any{
		"id": q.id.String(), "name": q.name, "namespace": q.namespace, "task": q.task, "createdAt": iso(q.created),
		"options": q.options.wire(), "partitions": partitions, "totals": total.wire(), "retainedBytes": size,
		"segments": map[string]int{"segments": segments, "messages": messages},
	})
}

func (b *Broker) deleteQueue(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := params["queue"]
	if b.queues[name] != nil {
		b.forgetSpooled(name)
	}
	if b.queues[name] == nil {
		if b.has(DeleteUnknown404) {
			writeJSON(w, http.StatusNotFound, map[string]string{"error": "Queue not found"})
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"deleted": false, "queue": name, "existed": false, "message": "Queue not found",
		})
		return
	}
	switch {
	case b.has(DeleteKeepsQueue):
	case b.has(DeleteKeepsMessages):
		kept := b.queues[name]
		b.drop(name)
		b.queueNamed(name).partitions = kept.partitions
		for _, p := range kept.partitions {
			p.queue = b.queues[name]
			p.latest = map[string]int{}
		}
		b.order = b.order[:len(b.order)-1] // not listed, but there
	case b.has(DeleteKeepsDedup):
		kept := b.queues[name]
		b.drop(name)
		b.revive(kept)
	case b.has(DeleteKeepsLeases):
		kept := b.queues[name]
		b.drop(name)
		for _, p := range kept.partitions {
			b.partitions[p.id] = p // not in a queue, but found by its id
		}
	default:
		b.drop(name)
	}
	writeJSON(w, http.StatusOK, map[string]any{"deleted": true, "queue": name, "existed": true})
}

// revive is the defect that the transaction ids of a deleted queue are remembered.
func (b *Broker) revive(kept *queue) {
	q := b.queueNamed(kept.name)
	q.options = kept.options
	for _, old := range kept.partitions {
		p := b.partitionNamed(q, old.name)
		p.latest, p.messages = old.latest, old.messages
		p.cursors[modeGroup] = &cursor{committed: len(old.messages), attempts: map[int]int{}}
	}
	b.order = b.order[:len(b.order)-1]
}

func (b *Broker) drop(name string) {
	q := b.queues[name]
	if q == nil {
		return
	}
	for _, p := range q.partitions {
		delete(b.partitions, p.id)
	}
	delete(b.queues, name)
	b.dead = slices.DeleteFunc(b.dead, func(d *filing) bool { return d.p.queue == q })
	b.order = slices.DeleteFunc(b.order, func(other *queue) bool { return other == q })
}

func (b *Broker) health(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	answer := map[string]any{"status": "healthy", "database": "connected", "engine": engine, "version": version, "encryption": "active"}
	if b.has(EncryptionHidden) {
		answer["encryption"] = "off"
	}
	if !b.has(DurabilityHidden) {
		// Nothing is durable here; the names are those of PostgreSQL.
		answer["fsync"], answer["synchronous_commit"], answer["synchronous_standby_names"] = "off", "off", ""
		answer["postgresVersion"] = "none"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	answer["maintenanceMode"], answer["popMaintenanceMode"] = b.maintenance, b.popMaintenance
	answer["spool"] = map[string]any{"messages": len(b.spool), "oldestSeconds": 0, "failed": 0, "healthy": !b.spoolBroken}
	if b.has(SpoolHidden) {
		delete(answer, "spool")
	}
	if b.down() && !b.has(HealthIgnoresDatabase) {
		answer["status"], answer["database"] = "unhealthy", "disconnected"
		writeJSON(w, http.StatusServiceUnavailable, answer)
		return
	}
	if b.has(HealthBare) {
		answer = map[string]any{"status": "ok"}
	}
	writeJSON(w, http.StatusOK, answer)
}

func (b *Broker) status(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	answer := map[string]string{"status": "ok", "engine": engine}
	if b.has(StatusWrong) {
		answer["status"] = "up"
	}
	writeJSON(w, http.StatusOK, answer)
}

func (b *Broker) metrics(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	if b.has(MetricsJSON) {
		writeJSON(w, http.StatusOK, map[string]int{"up": 1})
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprintf(w, "# HELP reference_build_info The running version.\n# TYPE reference_build_info gauge\n"+
		"reference_build_info{version=%q} 1\n", version)
}

func (b *Broker) openapi(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	spec, err := openapi.Load()
	if err != nil {
		b.writeError(w, err)
		return
	}
	tag := `"` + spec.SHA256() + `"`
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag && !b.has(NeverRevalidated) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if b.has(OpenAPIEmpty) {
		_, _ = w.Write([]byte(`{"openapi":"3.0.3","info":{},"paths":{}}`))
		return
	}
	_, _ = w.Write(spec.JSON())
}

func (b *Broker) index(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	if b.has(IndexMissing) && r.URL.Path == "/" || b.has(UnmatchedGet404) && r.URL.Path != "/" {
		writeJSON(w, http.StatusNotFound, map[string]any{"error": "Not Found", "code": "no_such_route"})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, "<!doctype html><title>Posthorn reference</title><p>Version %s. <a href=\"/openapi.json\">API</a></p>\n", version)
}

func (b *Broker) writeClock(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, map[string]any{"now": iso(b.now()), "offsetSeconds": b.offset.Seconds()})
}

func (b *Broker) getClock(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(ClockReadsZero) {
		writeJSON(w, http.StatusOK, map[string]any{"now": iso(time.Now()), "offsetSeconds": 0})
		return
	}
	b.writeClock(w)
}

func (b *Broker) advanceClock(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	var request struct {
		Advance string `json:"advance"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		b.writeError(w, badBody("advance must be a duration"))
		return
	}
	by, err := time.ParseDuration(request.Advance)
	if err != nil || by <= 0 && !b.has(ClockGoesBack) {
		b.writeError(w, badBody("advance must be a duration above 0"))
		return
	}
	if by > 876_000*time.Hour && !b.has(ClockUnbounded) {
		b.writeError(w, badBody("advance must be at most 876000h"))
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(ClockLags) {
		time.AfterFunc(50*time.Millisecond, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.offset += by
		})
		answer := map[string]any{"now": iso(b.now().Add(by)), "offsetSeconds": (b.offset + by).Seconds()}
		writeJSON(w, http.StatusOK, answer)
		return
	}
	if !b.has(ClockStands) {
		b.offset += by
	}
	b.retain()
	b.wake()
	b.catchUp() // the answer comes after what became due is done
	b.writeClock(w)
}
