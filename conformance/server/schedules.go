package server

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // what the suite expects must not depend on what the machine has installed

	. "github.com/onsi/gomega" //nolint:staticcheck // the assertions of every spec

	"github.com/posthorn/posthorn/conformance/suite"
)

// schedule is a schedule as version 2 shows it.
type schedule struct {
	ScheduleID  string              `json:"scheduleId"`
	Cron        string              `json:"cron"`
	Destination string              `json:"destination"`
	CreatedAt   int64               `json:"createdAt"`
	Method      string              `json:"method"`
	Header      map[string][]string `json:"header"`
	Body        *string             `json:"body"`
	BodyBase64  *string             `json:"bodyBase64"`
	Retries     int                 `json:"retries"`
	Delay       int64               `json:"delay"`
	QueueName   string              `json:"queueName"`
	Labels      []string            `json:"labels"`
	IsPaused    bool                `json:"isPaused"`
	Next        int64               `json:"nextScheduleTime"`
	Last        int64               `json:"lastScheduleTime"`
	States      map[string]string   `json:"lastScheduleStates"`
}

// next is the time of the next tick.
func (s schedule) next() time.Time { return time.UnixMilli(s.Next).UTC() }

// trySchedule creates or replaces a schedule; headers are in pairs.
func trySchedule(ctx context.Context, t *suite.Target, destination, cron, body string, headers ...string) suite.Outcome {
	return t.Call(ctx, "createSchedule", suite.Args{
		Path: map[string]string{"schedule": destination}, Header: pairs(append([]string{"Upstash-Cron", cron}, headers...)), Body: []byte(body),
	})
}

// createSchedule is trySchedule that must be accepted. The schedule is deleted when the spec has ended: it would publish
// whenever another spec moves the clock.
func createSchedule(ctx context.Context, t *suite.Target, destination, cron, body string, headers ...string) (id string) {
	outcome := trySchedule(ctx, t, destination, cron, body, headers...)
	if outcome.Status != 200 {
		suite.Failf(1, "the schedule %q was answered %d %s", cron, outcome.Status, outcome.Body)
	}
	var created struct {
		ScheduleID string `json:"scheduleId"`
	}
	decode(outcome.Body, &created)
	deletedAfter(t, created.ScheduleID)
	return created.ScheduleID
}

func deletedAfter(t *suite.Target, id string) {
	t.Cleanup(func(ctx context.Context) { onSchedule(ctx, t, "deleteSchedule", id) })
}

// onSchedule performs an operation on a schedule.
func onSchedule(ctx context.Context, t *suite.Target, operation, id string) suite.Outcome {
	return t.Call(ctx, operation, suite.Args{Path: map[string]string{"schedule": id}})
}

// changeSchedule is onSchedule that must be answered 200.
func changeSchedule(ctx context.Context, t *suite.Target, operation, id string) {
	if outcome := onSchedule(ctx, t, operation, id); outcome.Status != 200 {
		suite.Failf(1, "%s was answered %d %s", operation, outcome.Status, outcome.Body)
	}
}

func readSchedule(ctx context.Context, t *suite.Target, id string) (s schedule) {
	outcome := onSchedule(ctx, t, "getSchedule", id)
	if outcome.Status != 200 {
		suite.Failf(1, "the schedule %s was answered %d %s", id, outcome.Status, outcome.Body)
	}
	decode(outcome.Body, &s)
	return s
}

// advanceTo moves the target's clock to a time, unless it is past it.
func advanceTo(ctx context.Context, t *suite.Target, at time.Time) {
	if d := at.Sub(targetNow(ctx, t)); d > 0 {
		t.Advance(ctx, d)
	}
}

// dailyAt is the expression of a time of day.
func dailyAt(at time.Time) string { return fmt.Sprintf("%d %d * * *", at.Minute(), at.Hour()) }

// soon is a full minute of the target's time, d ahead, on which schedules of a spec tick.
func soon(ctx context.Context, t *suite.Target, d time.Duration) time.Time {
	return targetNow(ctx, t).Add(d).Truncate(time.Minute)
}

// ticksAt asserts that a schedule publishes to a hook at a time: not a minute before, and once by a minute after.
func ticksAt(ctx context.Context, t *suite.Target, hook *suite.Hook, at time.Time) {
	before := len(hook.Deliveries())
	advanceTo(ctx, t, at.Add(-time.Minute))
	Expect(hook.Deliveries()).To(HaveLen(before), "a minute before the tick at %s", at)
	advanceTo(ctx, t, at.Add(time.Minute))
	Expect(hook.Deliveries()).To(HaveLen(before+1), "a minute after the tick at %s", at)
}

var _ = suite.Requirement("createSchedule.ticks", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	id := createSchedule(ctx, t, hook.URL, dailyAt(at), "tick", "Upstash-Method", "PUT", "Upstash-Forward-X-Mine", "a", "Content-Type", "text/plain")
	for day := range 3 {
		ticksAt(ctx, t, hook, at.AddDate(0, 0, day))
	}
	seen := map[string]bool{}
	for _, got := range hook.Deliveries() {
		Expect(got.Header.Get("Upstash-Schedule-Id")).To(Equal(id))
		Expect(got.Method).To(Equal("PUT"))
		Expect(got.Header.Get("X-Mine")).To(Equal("a"))
		Expect(got.Header.Get("Content-Type")).To(Equal("text/plain"))
		Expect(string(got.Body)).To(Equal("tick"))
		seen[got.Header.Get("Upstash-Message-Id")] = true
	}
	Expect(seen).To(HaveLen(3), "messages")
})

// onDays and onMinutes say when an expression ticks: at midnight of some days, and in some minutes.
func onDays(ticks func(time.Time) bool) func(now time.Time) time.Time {
	return func(now time.Time) time.Time { return firstOf(now, 24*time.Hour, ticks) }
}

func onMinutes(ticks func(time.Time) bool) func(now time.Time) time.Time {
	return func(now time.Time) time.Time { return firstOf(now, time.Minute, ticks) }
}

// firstOf is the first time after now, of those that are a step apart, at which an expression is said to tick.
func firstOf(now time.Time, step time.Duration, ticks func(time.Time) bool) time.Time {
	at := now.Truncate(step).Add(step)
	for !ticks(at) {
		at = at.Add(step)
	}
	return at
}

var _ = suite.Requirement("createSchedule.ticks", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	for cron, first := range map[string]func(time.Time) time.Time{
		"* * * * *":    onMinutes(func(time.Time) bool { return true }),
		"*/20 * * * *": onMinutes(func(at time.Time) bool { return at.Minute()%20 == 0 }),
		"5/20 * * * *": onMinutes(func(at time.Time) bool { return at.Minute()%20 == 5 }),
		"7-9,50 5,17 * * *": onMinutes(func(at time.Time) bool {
			return slices.Contains([]int{7, 8, 9, 50}, at.Minute()) && at.Hour()%12 == 5
		}),
		"0 6-18/6 * * *":  onMinutes(func(at time.Time) bool { return at.Minute() == 0 && at.Hour()%6 == 0 && at.Hour() > 0 }),
		"0 0 31 * *":      onDays(func(at time.Time) bool { return at.Day() == 31 }),
		"0 0 29 2 *":      onDays(func(at time.Time) bool { return at.Day() == 29 && at.Month() == time.February }),
		"0 0 1 JAN,jul *": onDays(func(at time.Time) bool { return at.Day() == 1 && at.Month()%6 == 1 }),
		"0 0 * * 7":       onDays(func(at time.Time) bool { return at.Weekday() == time.Sunday }),
		"0 0 * * tue-THU": onDays(func(at time.Time) bool { return at.Weekday() >= time.Tuesday && at.Weekday() <= time.Thursday }),
		"0 0 13 * 5":      onDays(func(at time.Time) bool { return at.Day() == 13 || at.Weekday() == time.Friday }),
	} {
		before := targetNow(ctx, t)
		next := readSchedule(ctx, t, createSchedule(ctx, t, hook.URL, cron, "")).next()
		if !next.Equal(first(before)) { // a minute may have passed meanwhile
			Expect(next).To(Equal(first(targetNow(ctx, t))), "the next tick of %s at %s", cron, before)
		}
	}
})

// clockChange is when the clocks of a zone are set.
type clockChange struct {
	at            time.Time
	before, after time.Duration // east of UTC
}

// between is a time of the wall clock that it skips, or shows twice: written as UTC.
func (c clockChange) between() time.Time {
	return c.at.Add((c.before + c.after) / 2)
}

// yearlyAt is the expression of a time of one day in the year.
func yearlyAt(at time.Time) string {
	return fmt.Sprintf("%d %d %d %d *", at.Minute(), at.Hour(), at.Day(), at.Month())
}

// clockChanges are those of a zone that come next.
func clockChanges(now time.Time, zone *time.Location, n int) []clockChange {
	var changes []clockChange
	for at := now.In(zone); len(changes) < n; {
		_, end := at.ZoneBounds()
		if end.IsZero() {
			suite.Failf(1, "%s sets its clocks no more", zone)
		}
		_, before := end.Add(-time.Second).Zone()
		_, after := end.Zone()
		changes = append(changes, clockChange{end.UTC(), time.Duration(before) * time.Second, time.Duration(after) * time.Second})
		at = end
	}
	return changes
}

var _ = suite.Requirement("createSchedule.zone", func(ctx context.Context, t *suite.Target) {
	const name = "Europe/Vienna"
	zone, err := time.LoadLocation(name)
	Expect(err).NotTo(HaveOccurred())
	for _, change := range clockChanges(targetNow(ctx, t).Add(24*time.Hour), zone, 2) {
		hook := t.Hook(200)
		createSchedule(ctx, t, hook.URL, "CRON_TZ="+name+" "+yearlyAt(change.between()), "x")
		if change.after > change.before { // the clock skips the time
			ticksAt(ctx, t, hook, change.at)
			advanceTo(ctx, t, change.at.Add(2*time.Hour))
			Expect(hook.Deliveries()).To(HaveLen(1), "for a time that the clock skips")
			continue
		}
		half := (change.before - change.after) / 2
		for _, at := range []time.Time{change.at.Add(-half), change.at.Add(half)} { // when the clock shows it
			advanceTo(ctx, t, at.Add(-time.Minute))
			advanceTo(ctx, t, at.Add(time.Minute))
		}
		Expect(hook.Deliveries()).To(HaveLen(1), "for a time that the clock shows twice")
	}
})

var _ = suite.Requirement("createSchedule.zone", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	const east = 5*time.Hour + 30*time.Minute // always, in India
	createSchedule(ctx, t, hook.URL, "CRON_TZ=Asia/Kolkata "+dailyAt(at.Add(east)), "x")
	ticksAt(ctx, t, hook, at)
})

var _ = suite.Requirement("createSchedule.missed", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 30*time.Minute)
	createSchedule(ctx, t, hook.URL, fmt.Sprintf("%d * * * *", at.Minute()), "x")
	t.Advance(ctx, 10*time.Hour)
	Expect(hook.Deliveries()).To(HaveLen(1), "for ten ticks at once")
	ticksAt(ctx, t, hook, at.Add(10*time.Hour))
})

var _ = suite.Requirement("createSchedule.replaced", func(ctx context.Context, t *suite.Target) {
	old, hook, id, at := t.Hook(200), t.Hook(200), t.Unique("schedule"), soon(ctx, t, 2*time.Hour)
	Expect(createSchedule(ctx, t, old.URL, dailyAt(at), "old", "Upstash-Schedule-Id", id, "Upstash-Method", "PUT",
		"Upstash-Forward-X-Old", "o", "Upstash-Retries", "7", "Upstash-Label", "old", "Upstash-Delay", "1m")).To(Equal(id))
	Expect(createSchedule(ctx, t, hook.URL, dailyAt(at.Add(time.Hour)), "", "Upstash-Schedule-Id", id)).To(Equal(id))
	s := readSchedule(ctx, t, id)
	Expect(s.Destination).To(Equal(hook.URL))
	Expect(s.Cron).To(Equal(dailyAt(at.Add(time.Hour))))
	Expect(s.Body).To(BeNil())
	Expect(s.BodyBase64).To(BeNil())
	Expect(s.Method).To(Equal("POST"))
	Expect(s.Header).NotTo(HaveKey("X-Old"))
	Expect(s.Retries).To(Equal(3))
	Expect(s.Labels).To(BeEmpty())
	Expect(s.Delay).To(BeZero())
	ticksAt(ctx, t, hook, at.Add(time.Hour))
	Expect(old.Deliveries()).To(BeEmpty())
	got := hook.Deliveries()[0]
	Expect(got.Method).To(Equal("POST"))
	Expect(got.Body).To(BeEmpty())
	Expect(got.Header.Values("X-Old")).To(BeEmpty())
	Expect(listedSchedules(ctx, t, id)).To(HaveLen(1))
})

// listedSchedules are the entries of a schedule in the list of all.
func listedSchedules(ctx context.Context, t *suite.Target, id string) (found []schedule) {
	outcome := t.Call(ctx, "listSchedules", suite.Args{})
	if outcome.Status != 200 {
		suite.Failf(1, "listSchedules was answered %d %s", outcome.Status, outcome.Body)
	}
	var all []schedule
	decode(outcome.Body, &all)
	for _, s := range all {
		if s.ScheduleID == id {
			found = append(found, s)
		}
	}
	return found
}

var _ = suite.Requirement("createSchedule.topic", func(ctx context.Context, t *suite.Target) {
	old, added, at := t.Hook(200), t.Hook(200), soon(ctx, t, 2*time.Hour)
	name := createGroup(ctx, t, groupEndpoint{"", old.URL})
	createSchedule(ctx, t, name, dailyAt(at), "x")
	ticksAt(ctx, t, old, at)
	upsert(ctx, t, name, groupEndpoint{"", added.URL})
	ticksAt(ctx, t, added, at.AddDate(0, 0, 1))
	Expect(old.Deliveries()).To(HaveLen(2))
	Expect(changeGroup(ctx, t, "removeEndpoints", name, groupEndpoint{URL: old.URL}).Status).To(Equal(200))
	ticksAt(ctx, t, added, at.AddDate(0, 0, 2))
	Expect(old.Deliveries()).To(HaveLen(2), "after it was removed")
})

var _ = suite.Requirement("createSchedule.queue", func(ctx context.Context, t *suite.Target) {
	hook, queue, at := t.Hook(200), t.Unique("deliveries"), soon(ctx, t, 2*time.Hour)
	putDeliveryQueue(ctx, t, queue, `,"parallelism":1,"paused":true`)
	t.Cleanup(func(ctx context.Context) { onDeliveryQueue(ctx, t, "deleteDeliveryQueue", queue) })
	id := createSchedule(ctx, t, hook.URL, dailyAt(at), "x", "Upstash-Queue-Name", queue)
	Expect(readSchedule(ctx, t, id).QueueName).To(Equal(queue))
	advanceTo(ctx, t, at.Add(time.Minute))
	Expect(hook.Deliveries()).To(BeEmpty(), "while the queue is paused")
	onDeliveryQueue(ctx, t, "resumeDeliveryQueue", queue)
	hook.Await(ctx, 1)
})

var _ = suite.Requirement("createSchedule.queue", func(ctx context.Context, t *suite.Target) {
	hook, key, at := t.Hook(200), t.Unique("key"), soon(ctx, t, 2*time.Hour)
	publishFlow(ctx, t, hook.URL, key, "parallelism=1") // the key exists from now on
	hook.Await(ctx, 1)
	createSchedule(ctx, t, hook.URL, dailyAt(at), "x", "Upstash-Flow-Control-Key", key, "Upstash-Flow-Control-Value", "parallelism=1")
	onFlow(ctx, t, "pauseFlowControl", key)
	advanceTo(ctx, t, at.Add(time.Minute))
	Expect(hook.Deliveries()).To(HaveLen(1), "while the key is paused")
	onFlow(ctx, t, "resumeFlowControl", key)
	hook.Await(ctx, 2)
})

var _ = suite.Requirement("createSchedule.refused", func(ctx context.Context, t *suite.Target) {
	url := t.Hook(200).URL
	for _, cron := range []string{
		"", "* * * *", "* * * * * *", "0 0 0 1 1 1 1", "@every 1h", "@daily", "TZ=Europe/Vienna 0 0 * * *", "CRON_TZ=Moon/Base 0 0 * * *",
		"60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "1,,2 * * * *",
		"0 0 31 2 *", "0 0 30 feb *", "0 0 31 4,6,9,11 *", strings.Repeat("0,", 124) + "0 * * * *",
	} {
		id := t.Unique("schedule")
		outcome := trySchedule(ctx, t, url, cron, "x", "Upstash-Schedule-Id", id)
		deletedAfter(t, id)
		Expect(outcome.Status).To(Equal(400), "%q: %s", cron, outcome.Body)
		Expect(onSchedule(ctx, t, "getSchedule", id).Status).To(Equal(404))
	}
	createSchedule(ctx, t, url, strings.Repeat("0,", 123)+"0 * * * *", "x") // 256 bytes
})

var _ = suite.Requirement("getSchedule.read", func(ctx context.Context, t *suite.Target) {
	hook, id, at := t.Hook(200), t.Unique("schedule"), soon(ctx, t, 2*time.Hour)
	createSchedule(ctx, t, hook.URL+"/x?y=1", "  "+dailyAt(at)+" ", "body", "Upstash-Schedule-Id", id, "Upstash-Method", "PUT",
		"Upstash-Forward-X-Mine", "a", "Content-Type", "text/plain", "Upstash-Retries", "7", "Upstash-Delay", "90s", "Upstash-Label", "one,two")
	s := readSchedule(ctx, t, id)
	Expect(time.UnixMilli(s.CreatedAt)).To(BeTemporally("~", targetNow(ctx, t), time.Minute))
	Expect(s.next()).To(Equal(at))
	Expect(s.Body).To(HaveValue(Equal("body")))
	s.CreatedAt, s.Next, s.Body = 0, 0, nil
	Expect(s).To(Equal(schedule{
		ScheduleID: id, Cron: dailyAt(at), Destination: hook.URL + "/x?y=1", Method: "PUT", Retries: 7, Delay: 90, Labels: []string{"one", "two"},
		Header: map[string][]string{"X-Mine": {"a"}, "Content-Type": {"text/plain"}},
	}))
	unknown := onSchedule(ctx, t, "getSchedule", t.Unique("schedule"))
	Expect(unknown.Status).To(Equal(404), "%s", unknown.Body)
})

var _ = suite.Requirement("getSchedule.read", func(ctx context.Context, t *suite.Target) {
	body := "\x00\xff"
	s := readSchedule(ctx, t, createSchedule(ctx, t, t.Hook(200).URL, "0 0 1 1 *", body))
	Expect(s.ScheduleID).To(HavePrefix("scd_"))
	Expect(s.Body).To(BeNil())
	Expect(s.BodyBase64).To(HaveValue(Equal(base64.StdEncoding.EncodeToString([]byte(body)))))
})

var _ = suite.Requirement("getSchedule.last", func(ctx context.Context, t *suite.Target) {
	works, fails, at := t.Hook(200), t.Hook(500), soon(ctx, t, 2*time.Hour)
	id := createSchedule(ctx, t, createGroup(ctx, t, groupEndpoint{"", works.URL}, groupEndpoint{"", fails.URL}), dailyAt(at), "x", "Upstash-Retries", "1")
	s := readSchedule(ctx, t, id)
	Expect(s.Last).To(BeZero(), "before the first tick")
	Expect(s.States).To(BeEmpty(), "before the first tick")
	for day := range 2 {
		tick := at.AddDate(0, 0, day)
		advanceTo(ctx, t, tick)
		advanceTo(ctx, t, tick.Add(time.Hour)) // past the retry
		s = readSchedule(ctx, t, id)
		Expect(time.UnixMilli(s.Last)).To(BeTemporally("~", tick, time.Minute))
		ofTick := func(hook *suite.Hook) string {
			got := hook.Deliveries()
			return got[len(got)-1].Header.Get("Upstash-Message-Id")
		}
		Expect(s.States).To(Equal(map[string]string{ofTick(works): "SUCCESS", ofTick(fails): "FAIL"}))
	}
})

var _ = suite.Requirement("getSchedule.last", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	id := createSchedule(ctx, t, hook.URL, dailyAt(at), "x", "Upstash-Delay", "1h")
	state := func() string {
		states := readSchedule(ctx, t, id).States
		Expect(states).To(HaveLen(1))
		for _, state := range states {
			return state
		}
		return ""
	}
	advanceTo(ctx, t, at)
	Expect(state()).To(Equal("IN_PROGRESS"))
	advanceTo(ctx, t, at.Add(2*time.Hour))
	Expect(state()).To(Equal("SUCCESS"))
})

var _ = suite.Requirement("listSchedules.listed", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	for _, id := range []string{createSchedule(ctx, t, hook.URL, "0 0 1 1 *", "x"), createSchedule(ctx, t, hook.URL, "0 0 1 1 *", "x")} {
		found := listedSchedules(ctx, t, id)
		Expect(found).To(HaveLen(1), "entries of the schedule %s", id)
		Expect(found[0]).To(Equal(readSchedule(ctx, t, id)))
	}
})

var _ = suite.Requirement("deleteSchedule.deleted", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	gone := createSchedule(ctx, t, hook.URL+"/gone", dailyAt(at), "x", "Upstash-Delay", "1h")
	stays := createSchedule(ctx, t, hook.URL+"/stays", dailyAt(at), "x")
	advanceTo(ctx, t, at.Add(time.Minute))
	changeSchedule(ctx, t, "deleteSchedule", gone)
	advanceTo(ctx, t, at.Add(25*time.Hour))
	advanceTo(ctx, t, at.Add(27*time.Hour)) // past the delay of a message that was published just now
	targets := map[string]int{}
	for _, got := range hook.Deliveries() {
		targets[got.Target]++
	}
	Expect(targets).To(Equal(map[string]int{"/gone": 1, "/stays": 2}), "what it published before stays, and so do other schedules")
	for _, operation := range []string{"getSchedule", "deleteSchedule", "pauseSchedule"} {
		Expect(onSchedule(ctx, t, operation, gone).Status).To(Equal(404), "%s of it", operation)
	}
	Expect(onSchedule(ctx, t, "getSchedule", stays).Status).To(Equal(200))
})

var _ = suite.Requirement("pauseSchedule.done", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	id := createSchedule(ctx, t, hook.URL, dailyAt(at), "x")
	Expect(readSchedule(ctx, t, id).IsPaused).To(BeFalse())
	for range 2 {
		changeSchedule(ctx, t, "pauseSchedule", id)
		s := readSchedule(ctx, t, id)
		Expect(s.IsPaused).To(BeTrue())
		Expect(s.Next).To(BeZero(), "the next tick")
	}
	advanceTo(ctx, t, at.Add(25*time.Hour))
	Expect(hook.Deliveries()).To(BeEmpty())
})

var _ = suite.Requirement("resumeSchedule.done", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	id := createSchedule(ctx, t, hook.URL, dailyAt(at), "x")
	changeSchedule(ctx, t, "pauseSchedule", id)
	advanceTo(ctx, t, at.Add(25*time.Hour))
	for range 2 {
		changeSchedule(ctx, t, "resumeSchedule", id)
		s := readSchedule(ctx, t, id)
		Expect(s.IsPaused).To(BeFalse())
		Expect(s.next()).To(Equal(at.AddDate(0, 0, 2)))
	}
	ticksAt(ctx, t, hook, at.AddDate(0, 0, 2)) // those in between are not made up for
	changeSchedule(ctx, t, "resumeSchedule", id)
	ticksAt(ctx, t, hook, at.AddDate(0, 0, 3))
})

var _ = suite.Requirement("pauseScheduleByPost.done", func(ctx context.Context, t *suite.Target) {
	id := createSchedule(ctx, t, t.Hook(200).URL, "0 0 1 1 *", "x")
	for range 2 {
		Expect(post(ctx, t, "pauseScheduleByPost", "", id).Status).To(Equal(200))
		Expect(readSchedule(ctx, t, id).IsPaused).To(BeTrue())
	}
}, suite.WireOnly)

var _ = suite.Requirement("resumeScheduleByPost.done", func(ctx context.Context, t *suite.Target) {
	id := createSchedule(ctx, t, t.Hook(200).URL, "0 0 1 1 *", "x")
	next := readSchedule(ctx, t, id).Next
	changeSchedule(ctx, t, "pauseSchedule", id)
	for range 2 {
		Expect(post(ctx, t, "resumeScheduleByPost", "", id).Status).To(Equal(200))
		s := readSchedule(ctx, t, id)
		Expect(s.IsPaused).To(BeFalse())
		Expect(s.Next).To(Equal(next))
	}
}, suite.WireOnly)

// scheduleV1 is a schedule as version 1 shows it.
type scheduleV1 struct {
	ScheduleID string `json:"scheduleId"`
	Cron       string `json:"cron"`
	Content    struct {
		Header map[string][]string `json:"header"`
		Body   string              `json:"body"`
	} `json:"content"`
	Destination struct {
		Type  string   `json:"type"`
		URL   string   `json:"url"`
		Topic *topicV1 `json:"topic"`
	} `json:"destination"`
	Settings struct {
		Delay   int `json:"delay"`
		Retries int `json:"retries"`
	} `json:"settings"`
}

// scheduleByPublish publishes with an expression, and returns the id of the schedule that it creates.
func scheduleByPublish(ctx context.Context, t *suite.Target, destination, cron, body string, headers ...string) (id string) {
	answer := publishTo(ctx, t, destination, body, append([]string{"Upstash-Cron", cron}, headers...)...)
	id = readAs[scheduleV1](answer, 201).ScheduleID
	deletedAfter(t, id)
	return id
}

func readScheduleV1(ctx context.Context, t *suite.Target, id string) scheduleV1 {
	return readAs[scheduleV1](post(ctx, t, "getScheduleV1", "", id), 200)
}

var _ = suite.Requirement("getScheduleV1.read", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	id := scheduleByPublish(ctx, t, hook.URL+"/x?y=1", "0 0 1 1 *", "body", "Content-Type", "text/plain", "Upstash-Forward-X-Mine", "a",
		"Upstash-Retries", "7", "Upstash-Delay", "90s")
	Expect(id).To(HavePrefix("scd_"))
	s := readScheduleV1(ctx, t, id)
	Expect(s.ScheduleID).To(Equal(id))
	Expect(s.Cron).To(Equal("0 0 1 1 *"))
	Expect(s.Content.Header).To(Equal(map[string][]string{"X-Mine": {"a"}, "Content-Type": {"text/plain"}}))
	Expect(s.Content.Body).To(Equal("body"))
	Expect(s.Destination.Type).To(Equal("url"))
	Expect(s.Destination.URL).To(Equal(hook.URL + "/x?y=1"))
	Expect(s.Settings.Delay).To(Equal(90))
	Expect(s.Settings.Retries).To(Equal(7))
	unknown := post(ctx, t, "getScheduleV1", "", "scd_"+strings.Repeat("0", 32))
	Expect(unknown.Status).To(Equal(404), "%s", unknown.Body)
}, suite.WireOnly)

var _ = suite.Requirement("getScheduleV1.read", func(ctx context.Context, t *suite.Target) {
	topic := createTopic(ctx, t, t.Hook(200).URL)
	s := readScheduleV1(ctx, t, scheduleByPublish(ctx, t, topic.Name, "0 0 1 1 *", "x"))
	Expect(s.Destination.Type).To(Equal("topic"))
	Expect(s.Destination.Topic).To(HaveValue(Equal(topic)))
}, suite.WireOnly)

var _ = suite.Requirement("listSchedulesV1.listed", func(ctx context.Context, t *suite.Target) {
	hook := t.Hook(200)
	ids := []string{scheduleByPublish(ctx, t, hook.URL, "0 0 1 1 *", "x"), scheduleByPublish(ctx, t, hook.URL, "0 0 1 1 *", "y")}
	all := readAs[[]scheduleV1](post(ctx, t, "listSchedulesV1", ""), 200)
	for _, id := range ids {
		var found []scheduleV1
		for _, s := range all {
			if s.ScheduleID == id {
				found = append(found, s)
			}
		}
		Expect(found).To(HaveLen(1), "entries of the schedule %s", id)
		Expect(found[0]).To(Equal(readScheduleV1(ctx, t, id)))
	}
}, suite.WireOnly)

var _ = suite.Requirement("deleteScheduleV1.deleted", func(ctx context.Context, t *suite.Target) {
	hook, at := t.Hook(200), soon(ctx, t, 2*time.Hour)
	id := scheduleByPublish(ctx, t, hook.URL, dailyAt(at), "x")
	ticksAt(ctx, t, hook, at)
	answer := post(ctx, t, "deleteScheduleV1", "", id)
	Expect(answer.Status).To(Equal(202), "%s", answer.Body)
	advanceTo(ctx, t, at.Add(25*time.Hour))
	Expect(hook.Deliveries()).To(HaveLen(1), "after it was deleted")
	for _, operation := range []string{"getScheduleV1", "deleteScheduleV1"} {
		Expect(post(ctx, t, operation, "", id).Status).To(Equal(404))
	}
}, suite.WireOnly)
