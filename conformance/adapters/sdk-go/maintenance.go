package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/posthorn/posthorn/conformance/suite"
)

func (p *peer) getMaintenance(ctx context.Context, _ suite.Args) (answer, error) {
	m, err := p.client.Maintenance(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"maintenanceMode": m.Enabled, "popMaintenanceMode": m.PopEnabled, "bufferedMessages": m.Buffered, "bufferHealthy": m.Healthy,
		"bufferStats": map[string]any{
			"pendingCount": m.Buffered, "failedCount": m.Failed, "dbHealthy": m.DatabaseUp, "totalBytes": m.BufferedBytes,
			"oldestSeconds": m.Oldest.Seconds(), "failedFiles": map[string]any{"count": m.Failed, "totalBytes": m.FailedBytes},
		},
	}}, nil
}

// enabled reads the body of a switch.
func enabled(args suite.Args) (bool, error) {
	var request struct {
		Enabled bool `json:"enabled"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return false, fmt.Errorf("decode switch: %w", err)
	}
	return request.Enabled, nil
}

func (p *peer) setMaintenance(ctx context.Context, args suite.Args) (answer, error) {
	on, err := enabled(args)
	if err != nil {
		return answer{}, err
	}
	m, err := p.client.SetMaintenance(ctx, on)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{
		"maintenanceMode": m.Enabled, "bufferedMessages": m.Buffered, "bufferHealthy": m.Healthy, "message": m.Message,
	}}, nil
}

func (p *peer) getPopMaintenance(ctx context.Context, _ suite.Args) (answer, error) {
	on, err := p.client.PopMaintenance(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return popMode(on), nil
}

func (p *peer) setPopMaintenance(ctx context.Context, args suite.Args) (answer, error) {
	on, err := enabled(args)
	if err != nil {
		return answer{}, err
	}
	if on, err = p.client.SetPopMaintenance(ctx, on); err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return popMode(on), nil
}

func popMode(on bool) answer {
	return answer{http.StatusOK, map[string]any{"popMaintenanceMode": on, "message": fmt.Sprintf("pop maintenance: %t", on)}}
}

func (p *peer) getSharedState(ctx context.Context, _ suite.Args) (answer, error) {
	s, err := p.client.SharedState(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	var all map[string]any
	if err := json.Unmarshal(s.Raw, &all); err != nil {
		return answer{}, fmt.Errorf("decode the shared state: %w", err)
	}
	all["maintenanceMode"], all["popMaintenanceMode"] = s.Maintenance, s.PopMaintenance
	return answer{http.StatusOK, all}, nil
}

func (p *peer) getBuffers(ctx context.Context, _ suite.Args) (answer, error) {
	b, err := p.client.Buffers(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"pending": b.Pending, "failed": b.Failed, "dbHealthy": b.DatabaseUp, "worker": 0}}, nil
}

func (p *peer) notify(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Queue     string `json:"queue"`
		Partition string `json:"partition"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode notification: %w", err)
	}
	if err := p.client.Notify(ctx, request.Queue, request.Partition); err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, map[string]any{"status": "ok"}}, nil
}
