package reference

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// deliveryQueue delivers its messages one after the other, or as many at once as it has places. A message holds a place from its
// first attempt until it and its callbacks have ended.
type deliveryQueue struct {
	name             string
	created, updated time.Time
	parallelism      int
	paused           bool
	enqueued         bool // a message created it; for a defect only
}

// flowKey bounds the attempts of its messages: how many are under way at once, and how many begin in one period.
type flowKey struct {
	flow                                  // of the latest message, but for what is pinned
	paused, pinnedParallelism, pinnedRate bool
	began                                 time.Time // the period
	count                                 int       // attempts that began in it
	attempted                             bool      // an attempt has begun; for a defect only
}

func (b *Broker) gateTable() []route {
	return []route{
		{"POST", "/v2/enqueue/{queueName}/{destination}", b.publish},
		{"GET", "/v2/queues", b.listDeliveryQueues},
		{"POST", "/v2/queues", b.upsertDeliveryQueue},
		{"GET", "/v2/queues/{queueName}", b.getDeliveryQueue},
		{"DELETE", "/v2/queues/{queueName}", b.deleteDeliveryQueue},
		{"POST", "/v2/queues/{queueName}/pause", b.pauseDeliveryQueue},
		{"POST", "/v2/queues/{queueName}/resume", b.resumeDeliveryQueue},
		{"GET", "/v2/flowControl", b.listFlowControl},
		{"GET", "/v2/flowControl/{flowControlKey}", b.getFlowControl},
		{"POST", "/v2/flowControl/{flowControlKey}/pause", b.pauseFlowControl},
		{"POST", "/v2/flowControl/{flowControlKey}/resume", b.resumeFlowControl},
		{"POST", "/v2/flowControl/{flowControlKey}/pin", b.pinFlowControl},
		{"POST", "/v2/flowControl/{flowControlKey}/unpin", b.unpinFlowControl},
		{"POST", "/v2/flowControl/{flowControlKey}/resetRate", b.resetFlowRate},
		{"GET", "/v2/globalParallelism", b.getGlobalParallelism},
	}
}

// flowOf reads the flow control of a message.
func (b *Broker) flowOf(p publishing) (flow, error) {
	key, value := p.get("Upstash-Flow-Control-Key"), p.get("Upstash-Flow-Control-Value")
	if key == "" && value == "" {
		return flow{}, nil
	}
	f := flow{key: key, period: time.Second}
	for _, part := range splitList(value) {
		name, text, _ := strings.Cut(part, "=")
		var err error
		switch strings.ToLower(name) {
		case "parallelism":
			f.parallelism, err = boundOf(name, text)
		case "rate":
			f.rate, err = boundOf(name, text)
		case "period":
			f.period, err = periodOf(text)
		default:
			err = badRequest("%q is not parallelism, rate or period", name)
		}
		if err != nil && !b.has(FlowUnchecked) {
			return flow{}, err
		}
	}
	if (key == "" || f.parallelism+f.rate == 0) && !b.has(FlowUnchecked) {
		return flow{}, badRequest("Upstash-Flow-Control-Key and -Value need each other, and parallelism or rate")
	}
	return f, nil
}

// boundOf reads a parallelism or a rate.
func boundOf(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, badRequest("%s must be an integer from 1", name)
	}
	return n, nil
}

// periodOf reads the period of a key: seconds, or a duration.
func periodOf(text string) (time.Duration, error) {
	if _, err := strconv.Atoi(text); err == nil {
		text += "s"
	}
	period, err := durationOf("period", text)
	if err != nil || period < time.Second || period > 7*24*time.Hour {
		return time.Second, badRequest("period must be from 1s to 7d")
	}
	return period, nil
}

// enlist makes the delivery queue and the flow control key of a message known.
func (b *Broker) enlist(p *publication) {
	if p.queue != "" && b.deliveryQueues[p.queue] == nil {
		q := b.newDeliveryQueue(p.queue)
		q.enqueued = true
		if b.has(EnqueuedQueueWide) {
			q.parallelism = 2
		}
	}
	if p.flow.key == "" {
		return
	}
	k := b.flows[p.flow.key]
	if k == nil {
		b.flows[p.flow.key] = &flowKey{flow: p.flow, began: b.now()}
		return
	}
	if b.has(FlowFirstValues) {
		return
	}
	merged := b.has(FlowValuesMerged)
	if (!k.pinnedParallelism || b.has(PinOverwritten)) && (!merged || p.flow.parallelism > 0) {
		k.parallelism = p.flow.parallelism
	}
	if (!k.pinnedRate || b.has(PinOverwritten)) && (!merged || p.flow.rate > 0) {
		k.rate, k.period = p.flow.rate, p.flow.period
	}
}

func (b *Broker) newDeliveryQueue(name string) *deliveryQueue {
	q := &deliveryQueue{name: name, created: b.now(), updated: b.now(), parallelism: 1}
	b.deliveryQueues[name] = q
	return q
}

// started says whether an attempt of the task has begun.
func (t *task) started() bool { return t.flying || t.retried > 0 || t.finished }

// queueAdmits says whether the delivery queue of a task lets its attempt begin. Tasks of a queue that was deleted go on.
func (b *Broker) queueAdmits(t *task) bool {
	q := b.deliveryQueues[t.queue]
	if q == nil || b.has(DeliveryQueuesIgnored) {
		return true
	}
	if q.paused && !b.has(QueuePauseIgnored) && (!t.started() || b.has(QueuePauseStopsStarted)) {
		return false
	}
	places := q.parallelism
	if places > 1 && b.has(OnePlaceMore) {
		places++
	}
	return t.started() || b.placesTaken(q) < places && !b.overtakes(t)
}

// placesTaken counts the messages of a delivery queue that are under way.
func (b *Broker) placesTaken(q *deliveryQueue) int {
	holders := map[*task]bool{}
	if b.has(CancelKeepsPlace) {
		for _, p := range b.publications {
			for _, t := range p.tasks {
				if t.queue == q.name && t.cancelled && t.retried > 0 {
					holders[t] = true
				}
			}
		}
	}
	for _, t := range b.pending {
		if t.about != nil && !b.has(CallbacksHoldNoPlace) {
			t = t.about
		}
		waits := !t.flying && !t.finished
		if t.queue == q.name && t.started() && (!waits || !b.has(RetryHoldsNoPlace)) {
			holders[t] = true
		}
	}
	return len(holders)
}

// overtakes says whether a defect lets another task of the delivery queue of a task start before it.
func (b *Broker) overtakes(t *task) bool {
	before := true
	for _, other := range b.pending {
		before = before && other != t
		waits := other != t && other.queue == t.queue && !other.started()
		if waits && (b.has(DelayHoldsUp) && before || b.has(LastEnqueuedFirst) && !before && !other.due.After(b.now())) {
			return true
		}
	}
	return false
}

// flowAdmits says whether the flow control key of a task lets its attempt begin.
func (b *Broker) flowAdmits(t *task) bool {
	k := b.flows[t.flow.key]
	switch {
	case k == nil:
		return true
	case k.paused && !b.has(FlowPauseIgnored):
		return false
	case k.parallelism > 0 && b.underWay(k) >= k.parallelism && !b.has(FlowParallelismIgnored):
		return false
	}
	return k.rate == 0 || b.periodOver(k) || k.count < k.rate || b.has(FlowRateIgnored) || t.retried > 0 && b.has(FlowRetriesUncounted)
}

// underWay counts the attempts of a key.
func (b *Broker) underWay(k *flowKey) int {
	n := 0
	for _, t := range b.pending {
		if t.flow.key == k.key && (t.flying || t.retried > 0 && b.has(FlowRetryHoldsPlace)) {
			n++
		}
	}
	return n
}

// periodOver says whether the period of a key has ended.
func (b *Broker) periodOver(k *flowKey) bool {
	return !b.now().Before(k.began.Add(k.period)) && !b.has(FlowPeriodEndless)
}

// begun counts an attempt that begins. When it is the last one that its key lets pass in the period, the next ones are looked
// for when that is over.
func (b *Broker) begun(t *task) {
	k := b.flows[t.flow.key]
	if k == nil {
		return
	}
	k.attempted = true
	if t.retried > 0 && b.has(FlowRetriesUncounted) {
		return
	}
	if b.periodOver(k) {
		k.began, k.count = b.now(), 0
	}
	k.count++
	if left := k.began.Add(k.period).Sub(b.now()); k.count == k.rate && left <= alarmHorizon {
		time.AfterFunc(left+time.Millisecond, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.startDue()
		})
	}
}

func (b *Broker) showDeliveryQueue(q *deliveryQueue) map[string]any {
	lag := 0
	for _, t := range b.pending {
		if t.queue == q.name && (!t.started() || !b.has(LagWithoutStarted)) {
			lag++
		}
	}
	shown := map[string]any{
		"name": q.name, "createdAt": q.created.UnixMilli(), "updatedAt": q.updated.UnixMilli(), "parallelism": q.parallelism,
		"lag": lag, "paused": q.paused,
	}
	if b.has(UnpausedOmitted) && !q.paused {
		delete(shown, "paused")
	}
	return shown
}

// listDeliveryQueues answers GET /v2/queues.
func (b *Broker) listDeliveryQueues(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(b.deliveryQueues)) {
		if q := b.deliveryQueues[name]; !q.enqueued || !b.has(EnqueuedQueuesUnlisted) {
			list = append(list, b.showDeliveryQueue(q))
		}
	}
	writeJSON(w, http.StatusOK, list)
}

// checkQueueName holds the name of a delivery queue to its rule.
func (b *Broker) checkQueueName(name string) error {
	if !topicName.MatchString(name) && !b.has(DeliveryQueueNamesUnchecked) {
		return badRequest("queueName must be made of letters, digits, dash, underscore and dot")
	}
	return nil
}

// upsertDeliveryQueue answers POST /v2/queues.
func (b *Broker) upsertDeliveryQueue(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	body, err := b.readBody(r)
	if err != nil {
		b.writeError(w, err)
		return
	}
	var change struct {
		QueueName   string `json:"queueName"`
		Parallelism *int   `json:"parallelism"`
		Paused      *bool  `json:"paused"`
	}
	if err := json.Unmarshal(body, &change); err != nil || change.QueueName == "" {
		b.writeError(w, badBody("queueName, parallelism or paused is not what it must be"))
		return
	}
	if err := b.checkQueueName(change.QueueName); err != nil {
		b.writeError(w, err)
		return
	}
	if change.Parallelism != nil && *change.Parallelism < 1 && !b.has(NoPlacesAccepted) {
		b.writeError(w, badBody("parallelism must be at least 1"))
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	q, existed := b.deliveryQueues[change.QueueName], true
	if q == nil {
		q, existed = b.newDeliveryQueue(change.QueueName), false
	}
	q.updated = b.now()
	if b.has(UpsertResetsQueue) {
		q.parallelism, q.paused = 1, false
	}
	if change.Parallelism != nil && (!existed || !b.has(ParallelismFixed)) {
		q.parallelism = *change.Parallelism
	}
	if change.Paused != nil {
		q.paused = *change.Paused
	}
	b.startDue()
	writeJSON(w, http.StatusOK, struct{}{})
}

// theDeliveryQueue finds the delivery queue of a path, or answers that there is none.
func (b *Broker) theDeliveryQueue(w http.ResponseWriter, params map[string]string) *deliveryQueue {
	name := params["queueName"]
	q := b.deliveryQueues[name]
	switch {
	case q != nil:
		return q
	case b.has(UnknownQueueMade):
		return b.newDeliveryQueue(name)
	}
	b.writeError(w, &problem{http.StatusNotFound, "queue " + name + " not found"})
	return nil
}

// getDeliveryQueue answers GET /v2/queues/{queueName}.
func (b *Broker) getDeliveryQueue(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.theDeliveryQueue(w, params); q != nil {
		writeJSON(w, http.StatusOK, b.showDeliveryQueue(q))
	}
}

// deleteDeliveryQueue answers DELETE /v2/queues/{queueName}.
func (b *Broker) deleteDeliveryQueue(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := params["queueName"]
	for _, p := range b.inOrder() {
		waits := p.queue == name && !slices.ContainsFunc(p.tasks, (*task).started)
		if waits && !b.has(DeletedQueueDelivers) {
			b.cancel(p)
		}
	}
	if !b.has(DeletedQueueStays) {
		delete(b.deliveryQueues, name)
	}
	b.startDue()
	writeJSON(w, http.StatusOK, struct{}{})
}

// pauseDeliveryQueue answers POST /v2/queues/{queueName}/pause.
func (b *Broker) pauseDeliveryQueue(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.theDeliveryQueue(w, params); q != nil {
		q.paused, q.updated = true, b.now()
		writeJSON(w, http.StatusOK, struct{}{})
	}
}

// resumeDeliveryQueue answers POST /v2/queues/{queueName}/resume.
func (b *Broker) resumeDeliveryQueue(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.theDeliveryQueue(w, params); q != nil {
		q.paused, q.updated = b.has(QueueResumeIgnored), b.now()
		b.startDue()
		writeJSON(w, http.StatusOK, struct{}{})
	}
}

func (b *Broker) showFlow(k *flowKey) map[string]any {
	waiting, count := 0, k.count
	for _, t := range b.pending {
		if t.flow.key == k.key && !t.flying && !t.due.After(b.now()) {
			waiting++
		}
	}
	if b.periodOver(k) {
		count = 0
	}
	return map[string]any{
		"flowControlKey": k.key, "waitListSize": waiting, "parallelismMax": k.parallelism, "parallelismCount": b.underWay(k),
		"rateMax": k.rate, "rateCount": count, "ratePeriod": int(k.period.Seconds()), "ratePeriodStart": k.began.Unix(),
		"isPaused": k.paused && !b.has(FlowPauseHidden), "isPinnedParallelism": k.pinnedParallelism, "isPinnedRate": k.pinnedRate,
	}
}

// listFlowControl answers GET /v2/flowControl.
func (b *Broker) listFlowControl(w http.ResponseWriter, r *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	search := r.URL.Query().Get("search")
	list := []map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(b.flows)) {
		found := strings.Contains(strings.ToLower(key), strings.ToLower(search))
		switch {
		case b.has(FlowSearchCase):
			found = strings.Contains(key, search)
		case b.has(FlowSearchPrefix):
			found = strings.HasPrefix(strings.ToLower(key), strings.ToLower(search))
		}
		if found {
			list = append(list, b.showFlow(b.flows[key]))
		}
	}
	writeJSON(w, http.StatusOK, list)
}

// theFlow finds the flow control key of a path, or answers that there is none.
func (b *Broker) theFlow(w http.ResponseWriter, params map[string]string) *flowKey {
	key := params["flowControlKey"]
	k := b.flows[key]
	switch {
	case k != nil && (k.attempted || !b.has(FlowKnownLate)):
		return k
	case k == nil && b.has(UnknownFlowEmpty):
		return &flowKey{flow: flow{key: key, period: time.Second}}
	}
	b.writeError(w, &problem{http.StatusNotFound, "flow control key " + key + " not found"})
	return nil
}

// getFlowControl answers GET /v2/flowControl/{flowControlKey}.
func (b *Broker) getFlowControl(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.theFlow(w, params); k != nil {
		writeJSON(w, http.StatusOK, b.showFlow(k))
	}
}

// changeFlow answers a change of a flow control key.
func (b *Broker) changeFlow(w http.ResponseWriter, params map[string]string, change func(k *flowKey)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.theFlow(w, params)
	if k == nil {
		return
	}
	change(k)
	b.startDue()
	writeJSON(w, http.StatusOK, struct{}{})
}

// pauseFlowControl answers POST /v2/flowControl/{flowControlKey}/pause.
func (b *Broker) pauseFlowControl(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.changeFlow(w, params, func(k *flowKey) { k.paused = true })
}

// resumeFlowControl answers POST /v2/flowControl/{flowControlKey}/resume.
func (b *Broker) resumeFlowControl(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.changeFlow(w, params, func(k *flowKey) { k.paused = b.has(FlowResumeIgnored) })
}

// pinFlowControl answers POST /v2/flowControl/{flowControlKey}/pin.
func (b *Broker) pinFlowControl(w http.ResponseWriter, r *http.Request, params map[string]string) {
	q := r.URL.Query()
	var pins []func(k *flowKey)
	for name, pin := range map[string]func(k *flowKey, n int){
		"parallelism": func(k *flowKey, n int) { k.parallelism, k.pinnedParallelism = n, true },
		"rate":        func(k *flowKey, n int) { k.rate, k.pinnedRate = n, true },
	} {
		if text := q.Get(name); text != "" {
			n, err := boundOf(name, text)
			if err != nil && !b.has(PinUnchecked) {
				b.writeError(w, err)
				return
			}
			pins = append(pins, func(k *flowKey) { pin(k, n) })
		}
	}
	if text := q.Get("period"); text != "" {
		period, err := periodOf(text)
		if err != nil {
			b.writeError(w, err)
			return
		}
		pins = append(pins, func(k *flowKey) { k.period, k.pinnedRate = period, true })
	}
	if len(pins) == 0 && !b.has(PinUnchecked) {
		b.writeError(w, badRequest("parallelism, rate or period is required"))
		return
	}
	b.changeFlow(w, params, func(k *flowKey) {
		for _, pin := range pins {
			pin(k)
		}
		if b.has(PinPinsAll) {
			k.pinnedParallelism, k.pinnedRate = true, true
		}
	})
}

// unpinFlowControl answers POST /v2/flowControl/{flowControlKey}/unpin.
func (b *Broker) unpinFlowControl(w http.ResponseWriter, r *http.Request, params map[string]string) {
	q := r.URL.Query()
	parallelism, rate := isTrue(q.Get("parallelism")), isTrue(q.Get("rate"))
	all := !parallelism && !rate || b.has(UnpinUnpinsAll)
	b.changeFlow(w, params, func(k *flowKey) {
		if b.has(UnpinIgnored) {
			return
		}
		k.pinnedParallelism = k.pinnedParallelism && !parallelism && !all
		k.pinnedRate = k.pinnedRate && !rate && !all
	})
}

// resetFlowRate answers POST /v2/flowControl/{flowControlKey}/resetRate.
func (b *Broker) resetFlowRate(w http.ResponseWriter, _ *http.Request, params map[string]string) {
	b.changeFlow(w, params, func(k *flowKey) {
		if b.has(ResetRateIgnored) {
			return
		}
		k.count = 0
		if !b.has(ResetKeepsPeriod) {
			k.began = b.now()
		}
	})
}

// most is how many attempts the broker says that it can make at once.
const most = 1000

// getGlobalParallelism answers GET /v2/globalParallelism.
func (b *Broker) getGlobalParallelism(w http.ResponseWriter, _ *http.Request, _ map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	count := b.flying
	if b.has(NothingInHand) {
		count = 0
	}
	writeJSON(w, http.StatusOK, map[string]any{"parallelismMax": most, "parallelismCount": count})
}
