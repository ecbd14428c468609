package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) gateOperations() map[string]operation {
	return map[string]operation{
		"listDeliveryQueues":  p.listDeliveryQueues,
		"upsertDeliveryQueue": p.upsertDeliveryQueue,
		"getDeliveryQueue":    p.getDeliveryQueue,
		"deleteDeliveryQueue": p.changeQueue(p.client.DeleteDeliveryQueue),
		"pauseDeliveryQueue":  p.changeQueue(p.client.PauseDeliveryQueue),
		"resumeDeliveryQueue": p.changeQueue(p.client.ResumeDeliveryQueue),

		"listFlowControl":   p.listFlowControl,
		"getFlowControl":    p.getFlowControl,
		"pauseFlowControl":  p.changeFlow(p.client.PauseFlowControl),
		"resumeFlowControl": p.changeFlow(p.client.ResumeFlowControl),
		"resetFlowRate":     p.changeFlow(p.client.ResetFlowRate),
		"pinFlowControl":    p.pinFlowControl,
		"unpinFlowControl":  p.unpinFlowControl,

		"getGlobalParallelism": p.getGlobalParallelism,
	}
}

func queueFields(q posthorn.DeliveryQueue) fields {
	f := fields{"name": q.Name, "parallelism": q.Parallelism, "lag": q.Lag, "paused": q.Paused}
	f.millis("createdAt", q.CreatedAt)
	f.millis("updatedAt", q.UpdatedAt)
	return f
}

func (p *peer) listDeliveryQueues(ctx context.Context, _ suite.Args) (answer, error) {
	queues, err := p.client.ListDeliveryQueues(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]fields, len(queues))
	for i, q := range queues {
		list[i] = queueFields(q)
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) upsertDeliveryQueue(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		QueueName   string `json:"queueName"`
		Parallelism int    `json:"parallelism"`
		Paused      *bool  `json:"paused"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode delivery queue: %w", err)
	}
	return nothing(p.client.UpsertDeliveryQueue(ctx, request.QueueName, posthorn.DeliveryQueueOptions{
		Parallelism: request.Parallelism, Paused: request.Paused,
	}))
}

func (p *peer) getDeliveryQueue(ctx context.Context, args suite.Args) (answer, error) {
	q, err := p.client.GetDeliveryQueue(ctx, args.Path["queueName"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, queueFields(q)}, nil
}

// changeQueue is an operation on a delivery queue that answers nothing.
func (p *peer) changeQueue(change func(context.Context, string) error) operation {
	return func(ctx context.Context, args suite.Args) (answer, error) {
		return nothing(change(ctx, args.Path["queueName"]))
	}
}

func flowFields(f posthorn.FlowControl) fields {
	return fields{
		"flowControlKey": f.Key, "waitListSize": f.Waiting, "parallelismMax": f.Parallelism, "parallelismCount": f.Running, "rateMax": f.Rate,
		"rateCount": f.RateCount, "ratePeriod": wholeSeconds(f.Period), "ratePeriodStart": f.PeriodStart.Unix(), "isPaused": f.Paused,
		"isPinnedParallelism": f.PinnedParallelism, "isPinnedRate": f.PinnedRate,
	}
}

func (p *peer) listFlowControl(ctx context.Context, args suite.Args) (answer, error) {
	keys, err := p.client.ListFlowControl(ctx, args.Query.Get("search"))
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]fields, len(keys))
	for i, f := range keys {
		list[i] = flowFields(f)
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) getFlowControl(ctx context.Context, args suite.Args) (answer, error) {
	f, err := p.client.GetFlowControl(ctx, args.Path["flowControlKey"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, flowFields(f)}, nil
}

// changeFlow is an operation on a flow control key that answers nothing.
func (p *peer) changeFlow(change func(context.Context, string) error) operation {
	return func(ctx context.Context, args suite.Args) (answer, error) {
		return nothing(change(ctx, args.Path["flowControlKey"]))
	}
}

func (p *peer) pinFlowControl(ctx context.Context, args suite.Args) (answer, error) {
	var pin posthorn.FlowPin
	for name, target := range map[string]*int{"parallelism": &pin.Parallelism, "rate": &pin.Rate} {
		if err := number(args.Query, name, target); err != nil {
			return answer{}, err
		}
	}
	if text := args.Query.Get("period"); text != "" {
		if seconds, err := strconv.Atoi(text); err == nil {
			pin.Period = time.Duration(seconds) * time.Second
		} else if d, ok := period(text); ok {
			pin.Period = d
		} else {
			return answer{}, fmt.Errorf("the library takes a duration for period, not %q", text)
		}
	}
	return nothing(p.client.PinFlowControl(ctx, args.Path["flowControlKey"], pin))
}

func (p *peer) unpinFlowControl(ctx context.Context, args suite.Args) (answer, error) {
	return nothing(p.client.UnpinFlowControl(ctx, args.Path["flowControlKey"], posthorn.FlowUnpin{
		Parallelism: args.Query.Get("parallelism") == "true", Rate: args.Query.Get("rate") == "true",
	}))
}

func (p *peer) getGlobalParallelism(ctx context.Context, _ suite.Args) (answer, error) {
	parallelism, err := p.client.GetGlobalParallelism(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]int{"parallelismMax": parallelism.Max, "parallelismCount": parallelism.Count}}, nil
}
