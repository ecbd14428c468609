package reference

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// schedule publishes a message whenever its expression ticks.
type schedule struct {
	id          string
	cron        *cron
	destination string   // the endpoints of a topic are looked up at each tick
	message     outgoing // without targets
	asked       publishing

	created, next, last time.Time
	paused              bool
	deleted, stuck      bool     // for defects only
	published           []string // messages of the last tick
	frozen              []target // for a defect only
	fault               string   // why the last tick published nothing
}

func (b *Broker) scheduleTable() []route {
	return []route{
		{"GET", "/v1/schedules", b.locked(b.listSchedulesV1)},
		{"GET", "/v1/schedules/{scheduleId}", b.locked(b.getScheduleV1)},
		{"DELETE", "/v1/schedules/{scheduleId}", b.locked(b.deleteScheduleV1)},
		{"GET", "/v2/schedules", b.locked(b.listSchedules)},
		{"GET", "/v2/schedules/{schedule}", b.locked(b.getSchedule)},
		{"DELETE", "/v2/schedules/{schedule}", b.locked(b.deleteSchedule)},
		{"PATCH", "/v2/schedules/{schedule}/pause", b.locked(b.pauseSchedule)},
		{"POST", "/v2/schedules/{schedule}/pause", b.locked(b.pauseByPost)},
		{"PATCH", "/v2/schedules/{schedule}/resume", b.locked(b.resumeSchedule)},
		{"POST", "/v2/schedules/{schedule}/resume", b.locked(b.resumeByPost)},
		{"POST", "/v2/schedules/{schedule}", b.createSchedule}, // behind those whose paths it would take for destinations
	}
}

// scheduleNamed finds a schedule by its id; nil when there is none.
func (b *Broker) scheduleNamed(id string) *schedule {
	for _, s := range b.schedules {
		if s.id == id && !s.deleted {
			return s
		}
	}
	return nil
}

// knownSchedule is the schedule that a path names.
func (b *Broker) knownSchedule(params map[string]string) (*schedule, error) {
	id := params["schedule"] + params["scheduleId"] // each route has one of them
	if s := b.scheduleNamed(id); s != nil {
		return s, nil
	}
	return nil, &problem{http.StatusNotFound, "schedule " + id + " not found"}
}

// scheduleOf reads a publish with an expression.
func (b *Broker) scheduleOf(p publishing) (*schedule, error) {
	if p.get("Upstash-Cron") == "" {
		return nil, badRequest("Upstash-Cron is required")
	}
	s := &schedule{id: p.get("Upstash-Schedule-Id"), destination: p.destination, asked: p, created: b.now()}
	if s.id == "" {
		s.id = mint("scd_")
	}
	if !topicName.MatchString(s.id) {
		return nil, badRequest("Upstash-Schedule-Id must be made of letters, digits, dash, underscore and dot")
	}
	var err error
	if s.cron, err = b.cronOf(p.header.Get("Upstash-Cron")); err != nil {
		return nil, err
	}
	s.next = b.next(s.cron, b.now())
	if s.message, err = b.outgoingOf(p); err != nil {
		return nil, err
	}
	s.message.notBefore, s.message.scheduleID = time.Time{}, s.id
	aimed := s.message
	if err := b.aim(&aimed, s.destination); err != nil {
		return nil, err
	}
	s.frozen = aimed.targets
	return s, nil
}

// put keeps a schedule, instead of the one with its id.
func (b *Broker) put(s *schedule) {
	at := slices.IndexFunc(b.schedules, func(other *schedule) bool { return other.id == s.id })
	if at < 0 || b.has(ScheduleAdded) {
		b.schedules = append(b.schedules, s)
		return
	}
	if old := b.schedules[at]; b.has(ScheduleMerged) {
		if len(s.message.body) == 0 {
			s.message.body = old.message.body
		}
		for name, values := range old.message.header {
			if _, given := s.message.header[name]; !given {
				s.message.header[name] = values
			}
		}
	}
	b.schedules[at] = s
}

// schedulePublish makes a schedule of a publish. A duplicate by its deduplication id makes none.
func (b *Broker) schedulePublish(p publishing, id string) (acceptance, error) {
	s, err := b.scheduleOf(p)
	if err != nil {
		return acceptance{}, err
	}
	if original, duplicate := b.firstPublish(id); duplicate {
		return original, nil
	}
	b.put(s)
	a := acceptance{schedule: s.id, at: b.now()}
	b.remember(id, a)
	return a, nil
}

func (b *Broker) createSchedule(w http.ResponseWriter, r *http.Request, params map[string]string) {
	p, err := b.publishingOf(r, params)
	if err != nil {
		b.writeError(w, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	id, err := b.dedupOf(p, b.contentV2)
	if err != nil {
		b.writeError(w, err)
		return
	}
	a, err := b.schedulePublish(p, id)
	if err == nil && a.schedule == "" {
		err = badRequest("a message has that Upstash-Deduplication-Id")
	}
	if err != nil {
		b.writeError(w, err)
		return
	}
	status := http.StatusOK
	if a.duplicate {
		status = http.StatusAccepted
	}
	writeJSON(w, status, map[string]string{"scheduleId": a.schedule})
}

// tickSchedules publishes for the schedules that have ticked.
func (b *Broker) tickSchedules() {
	lead := time.Duration(0)
	if b.has(TicksEarly) {
		lead = 10 * time.Minute
	}
	for _, s := range b.schedules {
		if s.paused && !b.has(PauseOnlyTold) || s.stuck {
			continue
		}
		at := s.next
		if at.Add(-lead).After(b.now()) {
			continue
		}
		for range 100 { // enough to show the defect
			if at = b.next(s.cron, at); !b.has(MissedTicksAll) || at.After(b.now()) {
				break
			}
			b.publishFor(s)
		}
		missed := !at.After(b.now())
		s.last, s.next = s.next, b.next(s.cron, later(b.now(), s.next))
		if !missed || !b.has(MissedTicksNone) {
			b.publishFor(s)
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// publishFor publishes a message to each endpoint of a schedule.
func (b *Broker) publishFor(s *schedule) {
	m := s.message
	s.published, s.fault = nil, ""
	if err := b.aim(&m, s.destination); err != nil {
		s.fault = err.Error()
		return
	}
	if b.has(ScheduleQueueIgnored) {
		m.queue = ""
	}
	if b.has(ScheduleFlowIgnored) {
		m.flow = flow{}
	}
	if b.has(ScheduleTopicFrozen) {
		m.targets = s.frozen
	}
	if b.has(ScheduleNotNamed) {
		m.scheduleID = ""
	}
	var messages []outgoing
	for _, to := range m.targets {
		each := m
		each.targets = []target{to}
		messages = append(messages, each)
	}
	s.published = b.accept("", messages...).ids
}

// states tells what became of the messages of the last tick.
func (b *Broker) states(s *schedule) map[string]string {
	states := map[string]string{}
	for _, id := range s.published {
		states[id] = "IN_PROGRESS"
		if b.has(ScheduleStatesStand) {
			continue
		}
		switch b.publications[id].tasks[0].state {
		case "DELIVERED":
			states[id] = "SUCCESS"
		case "FAILED", "CANCELED":
			states[id] = "FAIL"
		}
	}
	return states
}

// shownSchedule is a schedule as version 2 shows it.
func (b *Broker) shownSchedule(s *schedule) map[string]any {
	m := &s.message
	sample := &publication{outgoing: *m}
	line := map[string]any{
		"scheduleId": s.id, "cron": s.cron.text, "destination": s.destination, "createdAt": s.created.UnixMilli(), "method": m.method,
		"header": b.shownHeader(sample, m.header, ""), "retries": m.retries, "callerIP": m.callerIP, "isPaused": s.paused,
	}
	if b.has(ScheduleForeignHeaders) {
		line["header"] = s.asked.header
	}
	if b.has(PauseHidden) {
		line["isPaused"] = false
	}
	if body := b.shownBody(sample); len(body) > 0 {
		addBody(line, "body", body)
	}
	for name, value := range map[string]string{
		"queueName": m.queue, "flowControlKey": m.flow.key, "retryDelayExpression": m.retryDelay, "label": strings.Join(m.labels, ","), "error": s.fault,
	} {
		if value != "" {
			line[name] = value
		}
	}
	if len(m.labels) > 0 {
		line["labels"] = m.labels
	}
	for name, n := range map[string]int64{
		"parallelism": int64(m.flow.parallelism), "rate": int64(m.flow.rate), "period": int64(m.flow.period / time.Second),
		"delay": int64(m.delay / time.Second), "timeout": int64(m.timeout / time.Second), "lastScheduleTime": millis(s.last),
	} {
		if n > 0 {
			line[name] = n
		}
	}
	if m.callback != nil {
		line["callback"] = m.callback.url
	}
	if m.failureCallback != nil {
		line["failureCallback"] = m.failureCallback.url
	}
	b.addGiven(line, sample, "")
	if !s.paused && !b.has(NextTickHidden) {
		line["nextScheduleTime"] = s.next.UnixMilli()
	}
	if b.has(LastTickHidden) {
		delete(line, "lastScheduleTime")
	}
	if states := b.states(s); len(states) > 0 {
		line["lastScheduleStates"] = states
	}
	return line
}

// shownScheduleV1 is a schedule as version 1 shows it.
func (b *Broker) shownScheduleV1(s *schedule) map[string]any {
	m := &s.message
	sample := &publication{outgoing: *m}
	content := map[string]any{"header": b.shownHeader(sample, m.header, "")}
	addBody(content, "body", b.shownBody(sample))
	if b.has(ScheduleV1Bare) {
		content = map[string]any{"header": map[string]any{}}
	}
	destination := map[string]any{"type": "url", "url": s.destination}
	if !strings.Contains(s.destination, ":") {
		destination = map[string]any{"type": "topic"}
		if t := b.topicNamed(s.destination); t != nil && !b.has(ScheduleV1TopicBare) {
			destination["topic"] = t.show()
		}
	}
	settings := map[string]any{
		"deadline": int(m.timeout.Seconds()), "delay": int(m.delay.Seconds()), "notBefore": 0, "retries": m.retries,
	}
	if m.callback != nil {
		settings["callback"] = m.callback.url
	}
	return map[string]any{
		"scheduleId": s.id, "cron": s.cron.text, "createdAt": s.created.UnixMilli(), "content": content, "destination": destination,
		"settings": settings,
	}
}

func (b *Broker) listedSchedules(show func(*schedule) map[string]any, firstOnly bool) []map[string]any {
	all := []map[string]any{}
	for _, s := range b.schedules {
		if !s.deleted && (len(all) == 0 || !firstOnly) {
			all = append(all, show(s))
		}
	}
	return all
}

func (b *Broker) listSchedules([]byte, map[string]string) (int, any, error) {
	return http.StatusOK, b.listedSchedules(b.shownSchedule, b.has(OldestScheduleListed)), nil
}

func (b *Broker) listSchedulesV1([]byte, map[string]string) (int, any, error) {
	return http.StatusOK, b.listedSchedules(b.shownScheduleV1, b.has(OldestScheduleListedV1)), nil
}

func (b *Broker) getSchedule(_ []byte, params map[string]string) (int, any, error) {
	s, err := b.knownSchedule(params)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, b.shownSchedule(s), nil
}

func (b *Broker) getScheduleV1(_ []byte, params map[string]string) (int, any, error) {
	s, err := b.knownSchedule(params)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, b.shownScheduleV1(s), nil
}

// dropSchedule deletes a schedule; with a defect it goes on where nobody sees it.
func (b *Broker) dropSchedule(params map[string]string, goesOn Mutation) error {
	s, err := b.knownSchedule(params)
	if err != nil {
		return err
	}
	if b.has(ScheduleDeletionTakes) {
		for _, p := range b.publications {
			if p.scheduleID == s.id {
				b.cancel(p)
			}
		}
	}
	if b.has(goesOn) {
		s.deleted = true
		return nil
	}
	b.schedules = slices.DeleteFunc(b.schedules, func(other *schedule) bool { return other == s })
	return nil
}

func (b *Broker) deleteSchedule(_ []byte, params map[string]string) (int, any, error) {
	return http.StatusOK, map[string]any{}, b.dropSchedule(params, DeletedScheduleTicks)
}

func (b *Broker) deleteScheduleV1(_ []byte, params map[string]string) (int, any, error) {
	return http.StatusAccepted, map[string]string{"status": "accepted"}, b.dropSchedule(params, DeletedScheduleTicksV1)
}

func (b *Broker) pauseSchedule(_ []byte, params map[string]string) (int, any, error) {
	s, err := b.knownSchedule(params)
	if err != nil {
		return 0, nil, err
	}
	s.paused = !s.paused || !b.has(PauseToggles)
	return http.StatusOK, map[string]any{}, nil
}

func (b *Broker) resumeSchedule(_ []byte, params map[string]string) (int, any, error) {
	s, err := b.knownSchedule(params)
	if err != nil {
		return 0, nil, err
	}
	if s.paused && !b.has(ResumeMakesUp) {
		s.next = b.next(s.cron, b.now())
	}
	s.paused, s.stuck = false, b.has(ResumeOnlyTold)
	return http.StatusOK, map[string]any{}, nil
}

func (b *Broker) pauseByPost(body []byte, params map[string]string) (int, any, error) {
	if b.has(PauseByPostIgnored) {
		return http.StatusOK, map[string]any{}, nil
	}
	return b.pauseSchedule(body, params)
}

func (b *Broker) resumeByPost(body []byte, params map[string]string) (int, any, error) {
	if b.has(ResumeByPostIgnored) {
		return http.StatusOK, map[string]any{}, nil
	}
	return b.resumeSchedule(body, params)
}
