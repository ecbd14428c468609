package openapi

import (
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
)

// CheckError says which rule of the description a request or response breaks.
type CheckError struct {
	In    string // body, query, path, header or response
	Field string // JSON path or parameter; "" when the bytes as a whole are no JSON
	Rule  string // what the field should be, to be read after it: "is missing", "must be a string"
}

// Error is the field followed by the rule.
func (e *CheckError) Error() string {
	if e.Field == "" {
		return e.Rule
	}
	return e.Field + " " + e.Rule
}

// body checks one JSON body.
type body struct {
	required bool
	lenient  bool // never refused
	schema   *openapi3.Schema
	node     *node // nil: not compiled, left to kin
	spec     *Spec
}

func (s *Spec) newBody(in *openapi3.RequestBody, label string) *body {
	b := s.bodyOf(in.Content["application/json"].Schema, label)
	b.required = in.Required
	b.lenient, _ = in.Extensions["x-lenient"].(bool)
	return b
}

func (s *Spec) bodyOf(ref *openapi3.SchemaRef, label string) *body {
	b := &body{schema: ref.Value, spec: s}
	n, err := compile(ref)
	if err != nil {
		s.uncompiled = append(s.uncompiled, label+": "+err.Error())
		return b
	}
	b.node = n
	return b
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// release gives a scanner back to the pool, without the body and without an unusually large scratch.
func (s *scanner) release() {
	s.data, s.broken, s.cutter = nil, nil, cutter{}
	if cap(s.scratch) > 1<<16 {
		s.scratch = nil
	}
	scanners.Put(s)
}

// check judges a whole body. The result has no In yet.
func (b *body) check(data []byte) *CheckError {
	if b.node == nil {
		return b.spec.checkByKin(b.schema, data)
	}
	s := scanners.Get().(*scanner)
	err := s.whole(b.node, data)
	s.release()
	return err
}

// whole checks that data is one JSON value that n accepts.
func (s *scanner) whole(n *node, data []byte) *CheckError {
	if !s.begin(data) {
		return s.broken
	}
	if s.pos == len(data) {
		return &CheckError{Field: "body", Rule: "is missing"}
	}
	err := s.check(n)
	if s.broken != nil {
		return s.broken
	}
	if !s.end() {
		return s.broken
	}
	if err != nil && err.Field == "" {
		err.Field = "body"
	}
	return err
}

// CheckRequest checks the parameters and the body of a request. pathParams are percent-decoded. The Content-Type is
// not looked at, nor is r.Body: the caller has read it into body. Undocumented query parameters are ignored, and so is
// the body of an operation that takes none. The error is nil or a *CheckError in path, query, header or body.
func (o *Operation) CheckRequest(r *http.Request, pathParams map[string]string, body []byte) error {
	if err := o.CheckParameters(r, pathParams); err != nil {
		return err
	}
	if o.body == nil || o.body.lenient || len(body) == 0 && !o.body.required {
		return nil
	}
	if err := o.body.check(body); err != nil {
		err.In = "body"
		return err
	}
	return nil
}

// CheckBody checks the body of an operation alone, for who answers what it refuses in another way than the rest of a
// request. The error is nil or a *CheckError in body.
func (s *Spec) CheckBody(operationID string, body []byte) error {
	o := s.operations[operationID]
	if o == nil || o.body == nil {
		return nil
	}
	if err := o.body.check(body); err != nil {
		err.In = "body"
		return err
	}
	return nil
}

// CheckParameters checks what CheckRequest checks but for the body, for who checks that otherwise, as [Spec.CheckPush]
// does. The error is nil or a *CheckError in path, query or header.
func (o *Operation) CheckParameters(r *http.Request, pathParams map[string]string) error {
	for i := range o.path {
		p := &o.path[i]
		value, ok := pathParams[p.name]
		if !ok {
			return &CheckError{In: "path", Field: p.name, Rule: "is missing"}
		}
		if rule := p.check(value); rule != "" {
			return &CheckError{In: "path", Field: p.name, Rule: rule}
		}
	}
	if len(o.query) > 0 {
		if err := o.checkQuery(r.URL.RawQuery); err != nil {
			err.In = "query"
			return err
		}
	}
	if err := checkHeaders(o.headers, r.Header); err != nil {
		err.In = "header"
		return err
	}
	return nil
}

// CheckResponse checks a response: its status is documented, its media type and required headers are there, and its
// body fits. A status without content, such as 204, has neither body nor Content-Length. The error is nil or a
// *CheckError in response.
func (o *Operation) CheckResponse(status int, header http.Header, body []byte) error {
	if err := o.checkResponse(status, header, body); err != nil {
		err.In = "response"
		return err
	}
	return nil
}

func (o *Operation) checkResponse(status int, header http.Header, body []byte) *CheckError {
	r := o.responses[status]
	if r == nil {
		return &CheckError{Field: "status", Rule: strconv.Itoa(status) + " is not documented for " + o.ID}
	}
	if err := checkHeaders(r.headers, header); err != nil {
		return err
	}
	if r.mediaType == "" {
		if len(body) > 0 {
			return &CheckError{Field: "body", Rule: "must be absent"}
		}
		if status == http.StatusNoContent && header.Get("Content-Length") != "" {
			return &CheckError{Field: "Content-Length", Rule: "must be absent"}
		}
		return nil
	}
	if !isMediaType(header.Get("Content-Type"), r.mediaType) {
		return &CheckError{Field: "Content-Type", Rule: "must be " + r.mediaType}
	}
	if r.body == nil {
		return nil
	}
	return r.body.check(body)
}

// isMediaType compares a Content-Type, parameters aside, with a media type.
func isMediaType(contentType, want string) bool {
	if contentType == want {
		return true
	}
	name, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(name), want)
}

func checkHeaders(params []parameter, header http.Header) *CheckError {
	for i := range params {
		p := &params[i]
		values := header[p.name]
		if len(values) == 0 {
			if p.required {
				return &CheckError{Field: p.name, Rule: "is missing"}
			}
			continue
		}
		if rule := p.check(values[0]); rule != "" {
			return &CheckError{Field: p.name, Rule: rule}
		}
	}
	return nil
}
