package reference

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// The mutations of outages, maintenance and faults.
const (
	UnavailableBare           Mutation = "unavailable-bare"             // an outage is answered without Retry-After
	OutagePopsEmpty           Mutation = "outage-pops-empty"            // a pop in an outage is answered 204
	TransactionSpooled        Mutation = "transaction-spooled"          // a transaction in an outage is carried out later
	StatusNeedsDatabase       Mutation = "status-needs-database"        // status fails with the database
	HealthIgnoresDatabase     Mutation = "health-ignores-database"      // health is healthy without a database
	DatabaseAlwaysUp          Mutation = "database-always-up"           // dbHealthy is always true
	RequestFailsWhole         Mutation = "request-fails-whole"          // one failing group fails all groups of the call
	GroupHalfStored           Mutation = "group-half-stored"            // the first item of a failing call is stored
	FollowerNotInherits       Mutation = "follower-not-inherits"        // a follower of a buffered or failed item is a duplicate
	SpooledSaysQueued         Mutation = "spooled-says-queued"          // buffered items are said to be queued
	FailedSaysBuffered        Mutation = "failed-says-buffered"         // failed items are said to be buffered
	FailedKept                Mutation = "failed-kept"                  // failed items are popped later
	DrainForgets              Mutation = "drain-forgets"                // what was buffered is dropped
	DrainNewIDs               Mutation = "drain-new-ids"                // what was buffered is stored under another id
	DrainIgnoresDedup         Mutation = "drain-ignores-dedup"          // what was buffered is never a duplicate
	DrainTwice                Mutation = "drain-twice"                  // what was buffered is drained twice
	DrainReversed             Mutation = "drain-reversed"               // what was buffered is drained from the newest on
	OvertakesSpool            Mutation = "overtakes-spool"              // a push overtakes what is buffered
	MaintenanceIgnored        Mutation = "maintenance-ignored"          // pushes in maintenance are queued
	MaintenanceFailsQuietly   Mutation = "maintenance-fails-quietly"    // a push that maintenance could not spool is answered 201
	MaintenanceDrains         Mutation = "maintenance-drains"           // what was buffered is drained in maintenance
	MaintenanceStopsPops      Mutation = "maintenance-stops-pops"       // pops find nothing in maintenance
	ModesMixed                Mutation = "modes-mixed"                  // popMaintenanceMode is the other mode
	SwitchLate                Mutation = "switch-late"                  // maintenance begins after the answer
	SwitchCoerced             Mutation = "switch-coerced"               // a missing enabled is true
	SpoolNotCounted           Mutation = "spool-not-counted"            // bufferedMessages is always 0
	SpoolAlwaysHealthy        Mutation = "spool-always-healthy"         // bufferHealthy is always true
	SpoolHidden               Mutation = "spool-hidden"                 // health does not show the spool
	BuffersEmpty              Mutation = "buffers-empty"                // pending is always 0
	DeletedComesBack          Mutation = "deleted-comes-back"           // a deleted queue comes back with what was buffered
	PopMaintenanceIgnored     Mutation = "pop-maintenance-ignored"      // pops deliver in pop maintenance
	PopMaintenanceKeepsParked Mutation = "pop-maintenance-keeps-parked" // parked pops stay parked in pop maintenance
	PopMaintenanceSkips       Mutation = "pop-maintenance-skips"        // pop maintenance commits what there is
	PopModeNotTold            Mutation = "pop-mode-not-told"            // the pop maintenance mode is always off
	SharedStateStale          Mutation = "shared-state-stale"           // the shared state does not tell of maintenance
	NotifyCreates             Mutation = "notify-creates"               // a notification creates its queue
	NotifyUnchecked           Mutation = "notify-unchecked"             // a notification needs no queue
	FaultsAddUp               Mutation = "faults-add-up"                // faults are added to those before
	FaultsUnchecked           Mutation = "faults-unchecked"             // faults that make no sense are accepted
	FaultsEverywhere          Mutation = "faults-everywhere"            // groups are ignored
	FaultTimesIgnored         Mutation = "fault-times-ignored"          // times is ignored
	FaultsDrainLate           Mutation = "faults-drain-late"            // the drain comes after the answer that ends the faults
	HangIgnored               Mutation = "hang-ignored"                 // hang is ignored
)

var outageMutations = []Mutation{
	UnavailableBare,
	OutagePopsEmpty,
	TransactionSpooled,
	StatusNeedsDatabase,
	HealthIgnoresDatabase,
	DatabaseAlwaysUp,
	RequestFailsWhole,
	GroupHalfStored,
	FollowerNotInherits,
	SpooledSaysQueued,
	FailedSaysBuffered,
	FailedKept,
	DrainForgets,
	DrainNewIDs,
	DrainIgnoresDedup,
	DrainTwice,
	DrainReversed,
	OvertakesSpool,
	MaintenanceIgnored,
	MaintenanceFailsQuietly,
	MaintenanceDrains,
	MaintenanceStopsPops,
	ModesMixed,
	SwitchLate,
	SwitchCoerced,
	SpoolNotCounted,
	SpoolAlwaysHealthy,
	SpoolHidden,
	BuffersEmpty,
	DeletedComesBack,
	PopMaintenanceIgnored,
	PopMaintenanceKeepsParked,
	PopMaintenanceSkips,
	PopModeNotTold,
	SharedStateStale,
	NotifyCreates,
	NotifyUnchecked,
	FaultsAddUp,
	FaultsUnchecked,
	FaultsEverywhere,
	FaultTimesIgnored,
	FaultsDrainLate,
	HangIgnored,
}

// faultState is what a test lets fail, as the wire has it.
type faultState struct {
	Postgres string   `json:"postgres,omitempty"`
	Spool    string   `json:"spool,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	Times    int      `json:"times,omitempty"`
}

// lane is a partition of a queue that need not exist.
type lane struct{ queue, partition string }

func (i pushItem) lane() lane { return lane{i.queue, i.partition} }

// spooled is an item that waits in the spool under the id that was answered.
type spooled struct {
	item pushItem
	id   uuid.UUID
}

// fate is what becomes of the items of one lane in one call.
type fate int

const (
	stored fate = iota
	buffered
	lost
)

// down says whether PostgreSQL fails as a whole.
func (b *Broker) down() bool { return b.faults.Postgres != "" && b.wholly() }

// wholly says whether the faults are about everything, and not about some groups.
func (b *Broker) wholly() bool { return len(b.faults.Groups) == 0 || b.has(FaultsEverywhere) }

// names says whether the faults are about the lane.
func (b *Broker) names(l lane) bool {
	return b.wholly() || slices.Contains(b.faults.Groups, l.queue+"/"+l.partition)
}

// fates decides what becomes of each lane of a call.
func (b *Broker) fates(items []pushItem) map[lane]fate {
	fates := map[lane]fate{}
	worst := stored
	for _, item := range items {
		if _, known := fates[item.lane()]; !known {
			fates[item.lane()] = b.fateOf(item.lane())
			worst = max(worst, fates[item.lane()])
		}
	}
	if b.has(RequestFailsWhole) {
		for l := range fates {
			fates[l] = worst
		}
	}
	return fates
}

func (b *Broker) fateOf(l lane) fate {
	refused := b.faults.Postgres != "" && b.names(l)
	if !refused && (!b.maintenance || b.has(MaintenanceIgnored)) {
		return stored
	}
	broken := b.faults.Spool != "" && b.names(l)
	if (broken || refused && b.faults.Spool == "") && b.faults.Times > 0 && !b.has(FaultTimesIgnored) {
		if b.faults.Times--; b.faults.Times == 0 {
			b.faults = faultState{}
		}
	}
	if !broken {
		b.spoolBroken = false
		return buffered
	}
	b.spoolBroken = b.wholly()
	return lost
}

// divert answers the items of a call whose lane is not stored. followers are kept by lane and transaction id.
func (b *Broker) divert(index int, item pushItem, f fate, winners map[string]pushResult) pushResult {
	key := item.queue + "\x00" + item.partition + "\x00" + item.transactionID
	q := b.queues[item.queue]
	if winner, ok := winners[key]; ok && item.transactionID != "" && (q == nil || q.options.numbers["dedupWindowSeconds"] > 0) {
		winner.Index = index
		if b.has(FollowerNotInherits) {
			winner.Status = "duplicate"
		}
		return winner
	}
	if f == lost && b.has(GroupHalfStored) && len(winners) == 0 {
		winners[key] = pushResult{}
		return b.storeItem(index, item)
	}
	id := newID()
	result := pushResult{Index: index, MessageID: id.String(), TransactionID: item.transactionID, QueueName: item.queue, Status: "buffered"}
	if item.transactionID == "" {
		result.TransactionID = result.MessageID
	}
	if f == lost && !b.has(FailedSaysBuffered) {
		result.Status = "failed"
	}
	if b.has(SpooledSaysQueued) && f == buffered {
		result.Status = "queued"
	}
	if f == buffered || b.has(FailedKept) {
		b.spool = append(b.spool, spooled{item, id})
	}
	winners[key] = result
	return result
}

// drainSpool stores what waits in the spool and may leave it. Whoever parks is woken.
func (b *Broker) drainSpool() {
	if b.down() || b.maintenance && !b.has(MaintenanceDrains) || len(b.spool) == 0 || time.Now().Before(b.drainAfter) {
		return
	}
	waiting := b.spool
	b.spool = nil
	if b.has(DrainReversed) {
		slices.Reverse(waiting)
	}
	for _, s := range waiting {
		switch {
		case b.faults.Postgres != "" && b.names(s.item.lane()):
			b.spool = append(b.spool, s)
			continue
		case b.has(DrainForgets):
			continue
		case b.has(DrainNewIDs):
			s.id = newID()
		case b.has(DrainIgnoresDedup):
			s.item.transactionID = ""
		}
		b.call++
		s.item.as = s.id
		b.storeItem(0, s.item)
		if b.has(DrainTwice) {
			b.call++
			b.storeItem(0, s.item)
		}
	}
	b.wake()
}

// forgetSpooled drops what waits for a deleted queue.
func (b *Broker) forgetSpooled(queue string) {
	if !b.has(DeletedComesBack) {
		b.spool = slices.DeleteFunc(b.spool, func(s spooled) bool { return s.item.queue == queue })
	}
}

// settleSpool drains before a request is looked at, as a broker does all the time.
func (b *Broker) settleSpool(route route) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if route.path != "/api/v1/push" || !b.has(OvertakesSpool) {
		b.drainSpool()
	}
}

// interrupted answers a request that needs PostgreSQL while that fails.
func (b *Broker) interrupted(w http.ResponseWriter, route route) bool {
	b.mu.Lock()
	down := b.down()
	b.mu.Unlock()
	if !down {
		return false
	}
	needed := route.path == "/internal/api/notify" || route.path == "/status" && b.has(StatusNeedsDatabase) ||
		route.method == http.MethodPost && strings.HasPrefix(route.path, "/api/v1/system/")
	pops := strings.HasPrefix(route.path, "/api/v1/pop")
	for _, prefix := range []string{"/api/v1/ack", "/api/v1/transaction", "/streams/", "/api/v1/lease/", "/api/v1/configure", "/api/v1/resources/"} {
		needed = needed || strings.HasPrefix(route.path, prefix)
	}
	switch {
	case pops && b.has(OutagePopsEmpty):
		b.nothing(w)
		return true
	case !needed && !pops, route.path == "/api/v1/transaction" && b.has(TransactionSpooled):
		return false
	}
	if !b.has(UnavailableBare) {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, http.StatusServiceUnavailable, map[string]string{"error": "database unavailable"})
	return true
}

func (b *Broker) setFaults(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	f, err := b.parseFaults(body)
	if err != nil && !b.has(FaultsUnchecked) {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.has(FaultsAddUp) {
		f.Groups = append(f.Groups, b.faults.Groups...)
	}
	if f.Postgres == "hang" && b.has(HangIgnored) {
		f.Postgres = ""
	}
	b.faults = f
	b.drainAfter = time.Time{}
	if b.has(FaultsDrainLate) {
		b.drainAfter = time.Now().Add(100 * time.Millisecond)
	}
	b.drainSpool()
	writeJSON(w, http.StatusOK, f)
}

func (b *Broker) parseFaults(body []byte) (f faultState, err error) {
	o, err := b.parseObject(body)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(body, &f); err != nil {
		return f, badBody("has a value of the wrong type")
	}
	switch {
	case f.Postgres != "" && f.Postgres != "error" && f.Postgres != "hang":
		return f, badBody("postgres must be error or hang")
	case f.Spool != "" && f.Spool != "error":
		return f, badBody("spool must be error")
	case o["times"] != nil && f.Times < 1:
		return f, badBody("times must be at least 1")
	case f.Times > 0 && len(f.Groups) == 0:
		return f, badBody("times needs groups")
	case f.Postgres == "hang" && len(f.Groups) > 0:
		return f, badBody("postgres must be error where there are groups")
	}
	for i, group := range f.Groups {
		name, partition, ok := strings.Cut(group, "/")
		if !ok || name == "" || partition == "" || strings.Contains(partition, "/") {
			return f, badBody("%s must be queue/partition", path("groups", i))
		}
	}
	return f, nil
}
