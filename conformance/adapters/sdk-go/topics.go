package sdkgo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/posthorn/posthorn/conformance/suite"
	posthorn "github.com/posthorn/posthorn/sdk-go"
)

func (p *peer) topicOperations() map[string]operation {
	return map[string]operation{
		"listURLGroups":     p.listURLGroups,
		"getURLGroup":       p.getURLGroup,
		"upsertEndpoints":   p.changeEndpoints(p.client.UpsertEndpoints),
		"removeEndpoints":   p.changeEndpoints(p.client.RemoveEndpoints),
		"configureURLGroup": p.configureURLGroup,
		"deleteURLGroup":    p.deleteURLGroup,
	}
}

// nothing is the answer of an operation that the library reports nothing of but that it was done.
func nothing(err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusOK, fields{}}, nil
}

func groupFields(g posthorn.URLGroup) fields {
	endpoints := g.Endpoints
	if endpoints == nil {
		endpoints = []posthorn.Endpoint{}
	}
	f := fields{"name": g.Name, "endpoints": endpoints}
	f.millis("createdAt", g.CreatedAt)
	f.millis("updatedAt", g.UpdatedAt)
	if len(g.Header) > 0 {
		f["headers"] = g.Header
	}
	return f
}

func (p *peer) listURLGroups(ctx context.Context, _ suite.Args) (answer, error) {
	groups, err := p.client.ListURLGroups(ctx)
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	list := make([]fields, len(groups))
	for i, g := range groups {
		list[i] = groupFields(g)
	}
	return answer{http.StatusOK, list}, nil
}

func (p *peer) getURLGroup(ctx context.Context, args suite.Args) (answer, error) {
	g, err := p.client.GetURLGroup(ctx, args.Path["topic"])
	if err != nil {
		return answer{}, err //nolint:wrapcheck // the library's error is what is to be seen
	}
	return answer{http.StatusOK, groupFields(g)}, nil
}

// changeEndpoints is one of the two operations that change the endpoints of a group.
func (p *peer) changeEndpoints(change func(context.Context, string, []posthorn.Endpoint) error) operation {
	return func(ctx context.Context, args suite.Args) (answer, error) {
		var request struct {
			Endpoints []posthorn.Endpoint `json:"endpoints"`
		}
		if err := json.Unmarshal(args.Body, &request); err != nil {
			return answer{}, fmt.Errorf("decode endpoints: %w", err)
		}
		return nothing(change(ctx, args.Path["topic"], request.Endpoints))
	}
}

func (p *peer) configureURLGroup(ctx context.Context, args suite.Args) (answer, error) {
	var request struct {
		Headers map[string]json.RawMessage `json:"headers"`
	}
	if err := json.Unmarshal(args.Body, &request); err != nil {
		return answer{}, fmt.Errorf("decode headers: %w", err)
	}
	header, err := headerOf(request.Headers)
	if err != nil {
		return answer{}, err
	}
	return nothing(p.client.ConfigureURLGroup(ctx, args.Path["topic"], header))
}

func (p *peer) deleteURLGroup(ctx context.Context, args suite.Args) (answer, error) {
	return nothing(p.client.DeleteURLGroup(ctx, args.Path["topic"]))
}
