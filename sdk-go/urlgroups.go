package posthorn

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// URLGroup is a topic: a name for a set of endpoints, each of which gets every message that is published to the name.
type URLGroup struct {
	Name      string
	CreatedAt time.Time
	UpdatedAt time.Time
	Header    http.Header // what its messages are delivered with unless they say otherwise
	Endpoints []Endpoint
}

// Endpoint is a member of a URL group.
type Endpoint struct {
	Name string `json:"name,omitempty"` // empty means none; unique in its group
	URL  string `json:"url,omitempty"`
}

type wireURLGroup struct {
	Name      string      `json:"name"`
	CreatedAt int64       `json:"createdAt"`
	UpdatedAt int64       `json:"updatedAt"`
	Headers   http.Header `json:"headers"`
	Endpoints []Endpoint  `json:"endpoints"`
}

func (w wireURLGroup) group() URLGroup {
	return URLGroup{w.Name, unixMilli(w.CreatedAt), unixMilli(w.UpdatedAt), w.Headers, w.Endpoints}
}

const urlGroupsPath = "/v2/topics"

// ListURLGroups lists all URL groups by name.
func (c *Client) ListURLGroups(ctx context.Context) ([]URLGroup, error) {
	var wire []wireURLGroup
	if err := c.do(ctx, call{op: "listURLGroups", method: http.MethodGet, path: urlGroupsPath, repeatable: true}, &wire); err != nil {
		return nil, err
	}
	groups := make([]URLGroup, len(wire))
	for i, w := range wire {
		groups[i] = w.group()
	}
	return groups, nil
}

// GetURLGroup reads a URL group. The error matches ErrNotFound when there is none of that name.
func (c *Client) GetURLGroup(ctx context.Context, name string) (URLGroup, error) {
	var wire wireURLGroup
	err := c.do(ctx, call{op: "getURLGroup", method: http.MethodGet, path: urlGroupsPath + "/" + segment(name), repeatable: true}, &wire)
	return wire.group(), err
}

// UpsertEndpoints adds endpoints to a URL group, which is created if need be. An endpoint whose URL is there already takes
// the name that is given; one whose name is there already takes the URL. All of them are added or none: beyond the broker's
// bound, 100 unless it is configured, the error is an *APIError with status 412.
func (c *Client) UpsertEndpoints(ctx context.Context, group string, endpoints []Endpoint) error {
	return c.changeEndpoints(ctx, "upsertEndpoints", http.MethodPost, group, endpoints)
}

// RemoveEndpoints takes endpoints out of a URL group, each by its name or, without one, by its URL. The group goes with its
// last endpoint. The error matches ErrNotFound when there is no such group.
func (c *Client) RemoveEndpoints(ctx context.Context, group string, endpoints []Endpoint) error {
	return c.changeEndpoints(ctx, "removeEndpoints", http.MethodDelete, group, endpoints)
}

func (c *Client) changeEndpoints(ctx context.Context, op, method, group string, endpoints []Endpoint) error {
	if endpoints == nil {
		endpoints = []Endpoint{}
	}
	body, err := json.Marshal(map[string][]Endpoint{"endpoints": endpoints})
	if err != nil {
		return err
	}
	// The second time it changes nothing more, but removing may find that the group has gone with its last endpoint.
	repeatable := method == http.MethodPost
	return c.do(ctx, call{op: op, method: method, path: urlGroupsPath + "/" + segment(group) + "/endpoints", body: body, repeatable: repeatable}, &struct{}{})
}

// ConfigureURLGroup replaces the header that messages to a URL group are delivered with unless they bring their own. The
// error matches ErrNotFound when there is no such group.
func (c *Client) ConfigureURLGroup(ctx context.Context, name string, header http.Header) error {
	if header == nil {
		header = http.Header{}
	}
	body, err := json.Marshal(map[string]http.Header{"headers": header})
	if err != nil {
		return err
	}
	return c.do(ctx, call{op: "configureURLGroup", method: http.MethodPatch, path: urlGroupsPath + "/" + segment(name), body: body, repeatable: true}, &struct{}{})
}

// DeleteURLGroup deletes a URL group with its endpoints. One that does not exist is no error.
func (c *Client) DeleteURLGroup(ctx context.Context, name string) error {
	return c.do(ctx, call{op: "deleteURLGroup", method: http.MethodDelete, path: urlGroupsPath + "/" + segment(name), repeatable: true}, &struct{}{})
}
