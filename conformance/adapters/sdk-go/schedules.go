package sdkgo

import (
	"context"
	"net/http"
	"strings"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) scheduleOperations() map[string]operation {
	return map[string]operation{
		"createSchedule": p.createSchedule,
		"listSchedules":  p.listSchedules,
		"getSchedule":    p.getSchedule,
		"deleteSchedule": p.changeSchedule(p.client.DeleteSchedule),
		"pauseSchedule":  p.changeSchedule(p.client.PauseSchedule),
		"resumeSchedule": p.changeSchedule(p.client.ResumeSchedule),
	}
}

func (p *peer) createSchedule(ctx context.Context, args suite.Args) (answer, error) {
	header := args.Header.Clone()
	s := posthorn.Schedule{ID: header.Get("Upstash-Schedule-Id"), Cron: header.Get("Upstash-Cron")}
	header.Del("Upstash-Schedule-Id")
	header.Del("Upstash-Cron")
	s.Publication = publication(args.Path["schedule"], header, args.Body)
	id, err := p.client.CreateSchedule(ctx, s)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]string{"scheduleId": id}}, nil
}

func scheduleFields(s posthorn.ScheduleInfo) fields {
	f := fields{
		"scheduleId": s.ID, "cron": s.Cron, "destination": s.Destination, "method": s.Method, "header": s.Header, "retries": s.Retries, "isPaused": s.Paused,
	}
	for name, value := range map[string]string{
		"retryDelayExpression": s.RetryDelay, "callback": s.Callback, "failureCallback": s.FailureCallback, "queueName": s.Queue, "error": s.Error,
		"label": strings.Join(s.Labels, ","),
	} {
		f.text(name, value)
	}
	if len(s.Labels) > 0 {
		f["labels"] = s.Labels
	}
	if s.Delay != 0 {
		f["delay"] = wholeSeconds(s.Delay)
	}
	if s.Timeout != 0 {
		f["timeout"] = wholeSeconds(s.Timeout)
	}
	if s.LastStates != nil {
		f["lastScheduleStates"] = s.LastStates
	}
	f.bytes("body", s.Body)
	f.flow(s.Flow)
	f.millis("createdAt", s.CreatedAt)
	f.millis("lastScheduleTime", s.LastAt)
	f.millis("nextScheduleTime", s.NextAt)
	return f
}

func (p *peer) listSchedules(ctx context.Context, _ suite.Args) (answer, error) {
	schedules, err := p.client.ListSchedules(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]fields, len(schedules))
	for i, s := range schedules {
		list[i] = scheduleFields(s)
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) getSchedule(ctx context.Context, args suite.Args) (answer, error) {
	s, err := p.client.GetSchedule(ctx, args.Path["schedule"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, scheduleFields(s)}, nil
}

// changeSchedule is an operation on a schedule that answers nothing.
func (p *peer) changeSchedule(change func(context.Context, string) error) operation {
	return func(ctx context.Context, args suite.Args) (answer, error) {
		return nothing(change(ctx, args.Path["schedule"]))
	}
}
