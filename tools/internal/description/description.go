// Package description reads the bundled API description as the tools need it: as a document, with the descriptions,
// examples and rules that a request check has no use for.
//
// It promises to keep examples byte for byte and to resolve every reference within the document. It assumes the
// OpenAPI 3.0.3 subset that the description uses: JSON bodies with one media type each, references to components only.
// Parse fails on anything that is not JSON of that shape, and Resolve on a reference that leads nowhere.
package description

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Document is the description.
type Document struct {
	Info struct {
		Title       string `json:"title"`
		Version     string `json:"version"`
		Description string `json:"description"`
	} `json:"info"`
	Servers []struct {
		URL string `json:"url"`
	} `json:"servers"`
	Tags         []Tag                        `json:"tags"`
	Paths        Ordered[Ordered[*Operation]] `json:"paths"` // path, then lower-case method
	Components   Components                   `json:"components"`
	Errors       []Error                      `json:"x-errors"`
	Profiles     map[string]string            `json:"x-profiles"`
	Capabilities map[string]string            `json:"x-capabilities"`
	Prefixes     []string                     `json:"x-requirement-prefixes"` // of requirement ids, beside operation ids

	raw any // the whole document, to walk references in
}

// Tag is a surface of the API: one page of the reference.
type Tag struct {
	Name        string `json:"name"`
	Description string `json:"description"`
}

// Components are what references lead to.
type Components struct {
	Parameters    map[string]*Parameter   `json:"parameters"`
	Responses     map[string]*Response    `json:"responses"`
	Schemas       map[string]*Schema      `json:"schemas"`
	Headers       map[string]*Parameter   `json:"headers"`
	RequestBodies map[string]*RequestBody `json:"requestBodies"`
}

// Error is an entry of the error catalogue.
type Error struct {
	ID     string `json:"id"`
	Status int    `json:"status"`
	Error  string `json:"error"` // the text; <…> stands for what differs
	Code   string `json:"code"`
	When   string `json:"when"`
}

// Operation is one method of one path.
type Operation struct {
	Method      string               `json:"-"`
	Path        string               `json:"-"`
	ID          string               `json:"operationId"`
	Tags        []string             `json:"tags"`
	Summary     string               `json:"summary"`
	Description string               `json:"description"`
	Access      string               `json:"x-access"`
	Profile     string               `json:"x-profile"`
	Parameters  []*Parameter         `json:"parameters"`
	Body        *RequestBody         `json:"requestBody"`
	Responses   map[string]*Response `json:"responses"` // by status
}

// Parameter is a query or path parameter, or a header of a response.
type Parameter struct {
	Ref         string          `json:"$ref"`
	Name        string          `json:"name"`
	In          string          `json:"in"`
	Required    bool            `json:"required"`
	Description string          `json:"description"`
	Schema      *Schema         `json:"schema"`
	Example     json.RawMessage `json:"example"`
	Boolean     bool            `json:"x-boolean"`
}

// RequestBody is what a request carries.
type RequestBody struct {
	Ref      string           `json:"$ref"`
	Required bool             `json:"required"`
	Lenient  bool             `json:"x-lenient"`
	Content  map[string]Media `json:"content"`
}

// Response is one answer.
type Response struct {
	Ref         string                `json:"$ref"`
	Description string                `json:"description"`
	Headers     map[string]*Parameter `json:"headers"`
	Content     map[string]Media      `json:"content"`
}

// Media is a body of one media type.
type Media struct {
	Schema  *Schema         `json:"schema"`
	Example json.RawMessage `json:"example"`
}

// Schema is a JSON schema.
type Schema struct {
	Ref         string            `json:"$ref"`
	Type        string            `json:"type"`
	Format      string            `json:"format"`
	Description string            `json:"description"`
	Nullable    bool              `json:"nullable"`
	Raw         bool              `json:"x-raw"`
	Required    []string          `json:"required"`
	Properties  Ordered[*Schema]  `json:"properties"`
	Additional  json.RawMessage   `json:"additionalProperties"`
	Items       *Schema           `json:"items"`
	OneOf       []*Schema         `json:"oneOf"`
	AnyOf       []*Schema         `json:"anyOf"`
	AllOf       []*Schema         `json:"allOf"`
	Enum        []json.RawMessage `json:"enum"`
	Default     json.RawMessage   `json:"default"`
	Minimum     *json.Number      `json:"minimum"`
	Maximum     *json.Number      `json:"maximum"`
	MinLength   *int              `json:"minLength"`
	MaxLength   *int              `json:"maxLength"`
	MaxBytes    *int              `json:"x-maxBytes"`
	MinItems    *int              `json:"minItems"`
	MaxItems    *int              `json:"maxItems"`
	Pattern     string            `json:"pattern"`
	Boolean     bool              `json:"x-boolean"`
}

// Parse reads a bundled description.
func Parse(bundle []byte) (*Document, error) {
	d := &Document{}
	if err := json.Unmarshal(bundle, d); err != nil {
		return nil, fmt.Errorf("API description: %w", err)
	}
	if err := json.Unmarshal(bundle, &d.raw); err != nil {
		return nil, fmt.Errorf("API description: %w", err)
	}
	for path, methods := range d.Paths.All() {
		for method, op := range methods.All() {
			op.Method, op.Path = strings.ToUpper(method), path
		}
	}
	return d, d.resolveAll()
}

// Ordered is a JSON object that keeps the order of its keys, which is the order in which a reader should meet them.
type Ordered[V any] struct {
	Keys   []string
	Values map[string]V
}

// UnmarshalJSON reads an object.
func (o *Ordered[V]) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &o.Values); err != nil {
		return err //nolint:wrapcheck // the outer decoder says where
	}
	o.Keys = o.Keys[:0]
	decoder := json.NewDecoder(bytes.NewReader(data))
	if _, err := decoder.Token(); err != nil {
		return err //nolint:wrapcheck // as above
	}
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return err //nolint:wrapcheck // as above
		}
		var skipped json.RawMessage
		if err := decoder.Decode(&skipped); err != nil {
			return err //nolint:wrapcheck // as above
		}
		o.Keys = append(o.Keys, fmt.Sprint(key))
	}
	return nil
}

// All iterates in order.
func (o Ordered[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, key := range o.Keys {
			if !yield(key, o.Values[key]) {
				return
			}
		}
	}
}

// Operations returns all operations in document order.
func (d *Document) Operations() []*Operation {
	var all []*Operation
	for _, methods := range d.Paths.All() {
		for _, op := range methods.All() {
			all = append(all, op)
		}
	}
	return all
}

// resolveAll replaces references of operations to parameters, bodies and responses. References to schemas stay: the
// reference names the schema, which matters to a reader.
func (d *Document) resolveAll() error {
	for _, op := range d.Operations() {
		for i, p := range op.Parameters {
			if p.Ref != "" {
				found, ok := d.Components.Parameters[name(p.Ref)]
				if !ok {
					return fmt.Errorf("operation %s: no component %s", op.ID, p.Ref)
				}
				op.Parameters[i] = found
			}
		}
		if op.Body != nil && op.Body.Ref != "" {
			found, ok := d.Components.RequestBodies[name(op.Body.Ref)]
			if !ok {
				return fmt.Errorf("operation %s: no component %s", op.ID, op.Body.Ref)
			}
			op.Body = found
		}
		for status, r := range op.Responses {
			if r.Ref != "" {
				found, ok := d.Components.Responses[name(r.Ref)]
				if !ok {
					return fmt.Errorf("operation %s: no component %s", op.ID, r.Ref)
				}
				op.Responses[status], r = found, found
			}
			for header, h := range r.Headers {
				if h.Ref != "" {
					found, ok := d.Components.Headers[name(h.Ref)]
					if !ok {
						return fmt.Errorf("operation %s: no component %s", op.ID, h.Ref)
					}
					r.Headers[header] = found
				}
			}
		}
	}
	return nil
}

// Schema follows a reference to a schema. The name is "" when s is written in place.
func (d *Document) Schema(s *Schema) (name string, resolved *Schema, err error) {
	for hops := 0; s != nil && s.Ref != ""; hops++ {
		name = s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		found, ok := d.Components.Schemas[name]
		if !ok || hops > 16 {
			return name, nil, fmt.Errorf("no schema %s", s.Ref)
		}
		s = found
	}
	return name, s, nil
}

// RequirementIDs returns the ids of all requirements that hold for an operation: those written inside it and inside
// everything that it refers to, sorted.
func (d *Document) RequirementIDs(op *Operation) []string {
	root, _ := d.raw.(map[string]any)
	paths, _ := root["paths"].(map[string]any)
	methods, _ := paths[op.Path].(map[string]any)
	ids, seen := map[string]bool{}, map[string]bool{}
	d.walk(methods[strings.ToLower(op.Method)], ids, seen)
	return slices.Sorted(maps.Keys(ids))
}

func (d *Document) walk(node any, ids, seen map[string]bool) {
	switch n := node.(type) {
	case []any:
		for _, child := range n {
			d.walk(child, ids, seen)
		}
	case map[string]any:
		if ref, ok := n["$ref"].(string); ok && !seen[ref] {
			seen[ref] = true
			d.walk(d.at(ref), ids, seen)
		}
		for key, child := range n {
			if key == "x-requirements" {
				list, _ := child.([]any)
				for _, item := range list {
					if r, ok := item.(map[string]any); ok {
						if id, ok := r["id"].(string); ok {
							ids[id] = true
						}
					}
				}
				continue
			}
			d.walk(child, ids, seen)
		}
	}
}

// at finds what a reference "#/a/b" names; nil when it names nothing.
func (d *Document) at(ref string) any {
	node := d.raw
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		m, ok := node.(map[string]any)
		if !ok {
			return nil
		}
		node = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(part)]
	}
	return node
}

func name(ref string) string { return ref[strings.LastIndexByte(ref, '/')+1:] }
