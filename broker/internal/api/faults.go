package api

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/posthorn/posthorn/broker/internal/fault"
)

// faultsBody is the body of PUT /testing/faults, and its answer.
type faultsBody struct {
	Postgres fault.Kind `json:"postgres,omitzero"`
	Spool    fault.Kind `json:"spool,omitzero"`
	Groups   []string   `json:"groups,omitzero"`
	Times    int        `json:"times,omitzero"`
}

// setFaults replaces the faults in force, and answers those.
func (e *edge) setFaults(c *call) (answer, error) {
	var body faultsBody
	if err := decode(c.body, &body); err != nil {
		return answer{}, err
	}
	f := fault.Faults{Postgres: body.Postgres, Spool: body.Spool, Times: body.Times}
	for i, text := range body.Groups {
		group, ok := parseGroup(text)
		if !ok {
			return answer{}, badBody(fmt.Sprintf("groups[%d]", i), "must be queue/partition, each percent-encoded")
		}
		f.Groups = append(f.Groups, group)
	}
	switch {
	case f.Times > 0 && len(f.Groups) == 0:
		return answer{}, badBody("times", "needs groups")
	case f.Postgres == fault.Hang && len(f.Groups) > 0:
		return answer{}, badBody("postgres", "must be error where there are groups")
	}
	if err := e.cfg.Engine.ReplaceFaults(c.ctx, f); err != nil {
		return answer{}, err
	}
	f = e.cfg.Engine.Faults()
	body = faultsBody{Postgres: f.Postgres, Spool: f.Spool, Times: f.Times}
	for _, g := range f.Groups {
		body.Groups = append(body.Groups, url.PathEscape(g.Queue)+"/"+url.PathEscape(g.Partition))
	}
	return encode(http.StatusOK, body)
}

// parseGroup reads queue/partition.
func parseGroup(text string) (g fault.Group, ok bool) {
	name, partition, found := strings.Cut(text, "/")
	q, err := url.PathUnescape(name)
	if err != nil || !found {
		return g, false
	}
	p, err := url.PathUnescape(partition)
	return fault.Group{Queue: q, Partition: p}, err == nil && q != "" && p != "" && !strings.Contains(partition, "/")
}
