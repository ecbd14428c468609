package drift

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/posthorn/posthorn/tools/internal/description"
)

var (
	accessLevels  = []string{"public", "read-only", "write-only", "read-write", "admin"}
	levels        = []string{"MUST", "SHOULD", "MAY"}
	requirementID = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9]*)((\.[a-z0-9]+(-[a-z0-9]+)*)+)$`)
)

// Operations checks each operation of the description by itself: its access level, its surface, that every parameter
// is described, that every JSON body has an example, and that the errors are there that its kind can always have.
func Operations(s Subject) []Problem {
	var p problems
	ops := s.Document.Operations()
	if len(ops) == 0 {
		p.add("description", "no operations")
	}
	tags := map[string]bool{}
	for _, t := range s.Document.Tags {
		tags[t.Name] = true
	}
	seen := map[string]bool{}
	for _, op := range ops {
		where := "operation " + op.ID
		if op.ID == "" {
			where = op.Method + " " + op.Path
			p.add(where, "no operationId")
		}
		if seen[op.ID] {
			p.add(where, "operationId is used twice")
		}
		seen[op.ID] = true
		if !slices.Contains(accessLevels, op.Access) {
			p.add(where, "x-access %q: want one of %s", op.Access, strings.Join(accessLevels, ", "))
		}
		if op.Summary == "" {
			p.add(where, "no summary")
		}
		if len(op.Tags) != 1 || !tags[op.Tags[0]] {
			p.add(where, "tags %q: want exactly one that the description lists", op.Tags)
		}
		for _, param := range op.Parameters {
			if param.Description == "" {
				p.add(where, "parameter %s has no description", param.Name)
			}
		}
		examples(&p, s.Document, where, op)
		answers(&p, s.Document, where, op)
	}
	return p
}

func examples(p *problems, d *description.Document, where string, op *description.Operation) {
	if op.Body != nil {
		for media, body := range op.Body.Content {
			if len(body.Example) == 0 {
				p.add(where, "request body %s has no example", media)
			}
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		for media, body := range op.Responses[status].Content {
			if media == "application/json" && len(body.Example) == 0 && !free(d, body.Schema) {
				p.add(where, "answer %s has no example", status)
			}
		}
	}
}

// free reports whether a schema says nothing of the shape, as that of a served document: an example would be as large
// as the document.
func free(d *description.Document, s *description.Schema) bool {
	_, resolved, err := d.Schema(s)
	return err == nil && resolved != nil && len(resolved.Properties.Keys) == 0 && resolved.Items == nil && resolved.OneOf == nil
}

// answers checks that the errors which the kind of operation implies are described, and that every described error is
// in the catalogue.
func answers(p *problems, d *description.Document, where string, op *description.Operation) {
	var want []string
	if op.Body != nil {
		want = append(want, "413")
		if !op.Body.Lenient {
			want = append(want, "400")
		}
	}
	if len(op.Parameters) > 0 && !slices.Contains(want, "400") {
		want = append(want, "400")
	}
	if op.Access != "public" {
		want = append(want, "401", "403")
	}
	success := false
	known := map[string]bool{}
	for _, e := range d.Errors {
		known[strconv.Itoa(e.Status)] = true
	}
	for status := range op.Responses {
		switch {
		case status < "400":
			success = true
		case !known[status]:
			p.add(where, "answer %s is not in the error catalogue", status)
		}
	}
	if !success {
		p.add(where, "no successful answer")
	}
	for _, status := range want {
		if op.Responses[status] == nil {
			p.add(where, "no answer %s", status)
		}
	}
}

// Requirements checks the ids of requirements and what they refer to.
func Requirements(s Subject) []Problem {
	var p problems
	if len(s.Requirements) == 0 {
		p.add("description", "no requirements")
	}
	prefixes := map[string]bool{}
	for _, prefix := range s.Document.Prefixes {
		prefixes[prefix] = true
	}
	for _, op := range s.Document.Operations() {
		prefixes[op.ID] = true
	}
	seen := map[string]bool{}
	for _, r := range s.Requirements {
		where := "requirement " + r.ID
		parts := requirementID.FindStringSubmatch(r.ID)
		switch {
		case parts == nil:
			p.add(where, "want operation.topic or operation.topic.case, in lower case with hyphens")
		case !prefixes[parts[1]]:
			p.add(where, "%q is neither an operation nor a listed prefix", parts[1])
		}
		if seen[r.ID] {
			p.add(where, "id is used twice")
		}
		seen[r.ID] = true
		if !slices.Contains(levels, r.Level) {
			p.add(where, "level %q: want one of %s", r.Level, strings.Join(levels, ", "))
		}
		if _, ok := s.Document.Profiles[r.Profile]; !ok {
			p.add(where, "profile %q is not listed", r.Profile)
		}
		for _, need := range r.Needs {
			if _, ok := s.Document.Capabilities[need]; !ok {
				p.add(where, "capability %q is not listed", need)
			}
		}
		if r.Source == "" {
			p.add(where, "no source")
		}
		if !strings.HasSuffix(strings.TrimSpace(r.Text), ".") {
			p.add(where, "the text is no sentence")
		}
	}
	return p
}
