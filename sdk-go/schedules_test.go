package posthorn_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func TestSchedules(t *testing.T) {
	t.Parallel()
	const schedule = `{"scheduleId":"nightly","cron":"0 3 * * *","destination":"https://a/","createdAt":1767225600000,"method":"POST","header":{"X-A":["1"]},"body":"x","retries":3,
		"delay":5,"timeout":6,"callerIP":"1.2.3.4","isPaused":true,"labels":["l"],"lastScheduleTime":1767225601000,"lastScheduleStates":{"msg_1":"SUCCESS"},"error":"e"}`
	s := newScript(t, text(200, `{"scheduleId":"nightly"}`), text(200, schedule), text(200, "["+schedule+"]"), text(200, `{}`), text(200, `{}`), text(200, `{}`), text(404, `{"error":"schedule x not found"}`))
	c := once(t, s.URL)
	id, err := c.CreateSchedule(t.Context(), posthorn.Schedule{ID: "nightly", Cron: "0 3 * * *", Publication: posthorn.Publication{
		Destination: "https://a/", Body: []byte("x"), ContentType: "text/plain", Delay: 5 * time.Second,
	}})
	if err != nil || id != "nightly" {
		t.Fatalf("%q, %v", id, err)
	}
	e := s.seen[0]
	if e.Method != "POST" || e.Target != "/v2/schedules/https:%2F%2Fa%2F" || e.Body != "x" || e.Header.Get("Upstash-Cron") != "0 3 * * *" || e.Header.Get("Upstash-Schedule-Id") != "nightly" ||
		e.Header.Get("Upstash-Delay") != "5s" || e.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("%+v", e)
	}
	got, err := c.GetSchedule(t.Context(), "nightly")
	if err != nil || got.ID != "nightly" || got.Cron != "0 3 * * *" || string(got.Body) != "x" || got.Delay != 5*time.Second || got.Timeout != 6*time.Second || !got.Paused ||
		!got.NextAt.IsZero() || got.LastAt.Sub(got.CreatedAt) != time.Second || got.LastStates["msg_1"] != "SUCCESS" || got.Error != "e" || got.Header.Get("X-A") != "1" {
		t.Errorf("%+v, %v", got, err)
	}
	list, err := c.ListSchedules(t.Context())
	if err != nil || len(list) != 1 || !reflect.DeepEqual(list[0], got) {
		t.Errorf("%+v, %v", list, err)
	}
	if err := errors.Join(c.PauseSchedule(t.Context(), "a/b"), c.ResumeSchedule(t.Context(), "nightly"), c.DeleteSchedule(t.Context(), "nightly")); err != nil {
		t.Error(err)
	}
	for i, want := range []string{"PATCH /v2/schedules/a%2Fb/pause", "PATCH /v2/schedules/nightly/resume", "DELETE /v2/schedules/nightly"} {
		if e := s.seen[3+i]; e.Method+" "+e.Target != want {
			t.Errorf("%s %s, want %s", e.Method, e.Target, want)
		}
	}
	if err := c.DeleteSchedule(t.Context(), "x"); !errors.Is(err, posthorn.ErrNotFound) {
		t.Errorf("an unknown schedule: %v", err)
	}
	for _, bad := range []posthorn.Publication{{NotBefore: time.Now()}, {Delay: -1}} {
		if _, err := c.CreateSchedule(t.Context(), posthorn.Schedule{Publication: bad}); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}
