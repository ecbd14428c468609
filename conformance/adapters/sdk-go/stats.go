package sdkgo

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) statsOperations() map[string]operation {
	return map[string]operation{
		"getOverview": func(ctx context.Context, _ suite.Args) (answer, error) { return found(p.client.GetOverview(ctx)) },
		"listNamespaces": func(ctx context.Context, _ suite.Args) (answer, error) {
			sums, err := p.client.ListNamespaces(ctx)
			return sumsBody("namespace", sums), err //nolint:wrapcheck // the library's error is what is to be seen
		},
		"listTasks": func(ctx context.Context, _ suite.Args) (answer, error) {
			sums, err := p.client.ListTasks(ctx)
			return sumsBody("task", sums), err //nolint:wrapcheck // the library's error is what is to be seen
		},
		"getStatus":       p.statusOverTime,
		"listQueueStatus": p.listQueueStatus,
		"getQueueStatus":  p.queueStatus,
		"getAnalytics":    p.analytics,
		"getQueueLag":     p.queueLag,
		"getQueueOps":     p.queueOps,
		"refreshStats": func(ctx context.Context, _ suite.Args) (answer, error) {
			at, err := p.client.RefreshStats(ctx)
			return answer{http.StatusOK, map[string]any{"success": true, "timestamp": iso(at)}}, err //nolint:wrapcheck // as above
		},
	}
}

// found is the answer that shows what the library returned.
func found[T any](value T, err error) (answer, error) {
	return answer{http.StatusOK, value}, err
}

func sumsBody(key string, sums []posthorn.QueueSums) answer {
	list := make([]map[string]any, len(sums))
	for i, s := range sums {
		list[i] = map[string]any{key: s.Name, "queues": s.Queues, "partitions": s.Partitions, "messages": s.Messages}
	}
	return answer{http.StatusOK, map[string]any{key + "s": list}}
}

func statsFilter(q url.Values) (posthorn.StatsFilter, error) {
	f := posthorn.StatsFilter{Queue: q.Get("queue"), Namespace: q.Get("namespace"), Task: q.Get("task")}
	for name, at := range map[string]*time.Time{"from": &f.From, "to": &f.To} {
		if text := q.Get(name); text != "" {
			var err error
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return f, fmt.Errorf("the library takes a time for %s: %w", name, err)
			}
		}
	}
	return f, nil
}

func (p *peer) statusOverTime(ctx context.Context, args suite.Args) (answer, error) {
	f, err := statsFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	return found(p.client.GetStatus(ctx, f))
}

func (p *peer) listQueueStatus(ctx context.Context, args suite.Args) (answer, error) {
	f, err := statsFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	queues, total, err := p.client.ListQueueStatus(ctx, f, posthorn.Page{})
	return found(map[string]any{"queues": queues, "total": total}, err)
}

func (p *peer) queueStatus(ctx context.Context, args suite.Args) (answer, error) {
	f, err := statsFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	return found(p.client.GetQueueStatus(ctx, args.Path["queue"], f))
}

func (p *peer) analytics(ctx context.Context, args suite.Args) (answer, error) {
	f, err := statsFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	points, err := p.client.GetAnalytics(ctx, args.Query.Get("interval"), f)
	return found(map[string]any{"dataPoints": points}, err)
}

func (p *peer) queueLag(ctx context.Context, args suite.Args) (answer, error) {
	f, err := statsFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	queues, err := p.client.GetQueueLag(ctx, f)
	return found(map[string]any{"queues": queues}, err)
}

func (p *peer) queueOps(ctx context.Context, args suite.Args) (answer, error) {
	f, err := statsFilter(args.Query)
	if err != nil {
		return answer{}, err
	}
	queues, err := p.client.GetQueueOps(ctx, f)
	return found(map[string]any{"queues": queues}, err)
}
