package openapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"gopkg.in/yaml.v3"
)

// Spec is the loaded description. It is immutable and safe for concurrent use.
type Spec struct {
	doc          *openapi3.T
	json         []byte
	sha256       string
	operations   map[string]*Operation
	requirements *registry
	errors       []ErrorEntry
	uncompiled   []string
	push         *pushPlan
}

// Operation is one route of the description with its compiled checks.
type Operation struct {
	ID      string // operationId
	Method  string // upper case
	Path    string // with {parameters}
	Access  string // public, read-only, write-only, read-write or admin
	Profile string // conformance profile of its requirements, unless they name another
	Summary string
	Tag     string
	Rest    string // the path parameter that takes the rest of the path as it was sent, slashes included; "" when there is none

	spec      *Spec
	op        *openapi3.Operation
	path      []parameter
	query     []parameter
	headers   []parameter
	body      *body
	opaque    bool // the body may be any bytes
	responses map[int]*response
}

// anyMedia is the media type of a body that is any bytes.
const anyMedia = "*/*"

// accessLevels are the values of x-access.
var accessLevels = []string{"public", "read-only", "write-only", "read-write", "admin"}

var load = sync.OnceValues(parse)

// Load returns the embedded description, parsed, validated and compiled once per process.
func Load() (*Spec, error) { return load() }

func parse() (*Spec, error) {
	tree, err := bundle()
	if err != nil {
		return nil, fmt.Errorf("bundle the API description: %w", err)
	}
	spec, err := newSpec(tree)
	if err != nil {
		return nil, fmt.Errorf("load the API description: %w", err)
	}
	return spec, nil
}

func newSpec(tree *yaml.Node) (*Spec, error) {
	var text bytes.Buffer
	if err := appendJSON(&text, tree); err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text.Bytes())
	if err != nil {
		return nil, err
	}
	// kin checks a uuid only when a document registers the format, and its RFC 4122 pattern refuses version 7.
	doc.SetStringFormatValidator("uuid", openapi3.NewRegexpFormatValidator(openapi3.FormatOfStringForUUIDOfRFC9562))
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text.Bytes())
	s := &Spec{
		doc:        doc,
		json:       text.Bytes(),
		sha256:     hex.EncodeToString(sum[:]),
		operations: make(map[string]*Operation),
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if err := s.addOperation(method, path, item, op); err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
		}
	}
	slices.Sort(s.uncompiled)
	push := s.operations["push"]
	if push == nil || push.body == nil {
		return nil, errors.New("no operation push with a body")
	}
	if s.push, err = newPushPlan(push.body.node); err != nil {
		return nil, err
	}
	if s.requirements, err = newRegistry(tree, s.operations); err != nil {
		return nil, err
	}
	if catalogue := lookup(tree, "x-errors"); catalogue != nil {
		if err := catalogue.Decode(&s.errors); err != nil {
			return nil, fmt.Errorf("x-errors: %w", err)
		}
	}
	return s, nil
}

func (s *Spec) addOperation(method, path string, item *openapi3.PathItem, op *openapi3.Operation) error {
	if op.OperationID == "" {
		return errors.New("no operationId")
	}
	if s.operations[op.OperationID] != nil {
		return fmt.Errorf("operationId %s is used twice", op.OperationID)
	}
	access, _ := op.Extensions["x-access"].(string)
	if !slices.Contains(accessLevels, access) {
		return fmt.Errorf("x-access %q", access)
	}
	profile, _ := op.Extensions["x-profile"].(string)
	o := &Operation{
		ID: op.OperationID, Method: method, Path: path, Access: access, Profile: profile, Summary: op.Summary,
		spec: s, op: op, responses: make(map[int]*response),
	}
	if len(op.Tags) > 0 {
		o.Tag = op.Tags[0]
	}
	if err := o.compileParameters(append(slices.Clone(item.Parameters), op.Parameters...)); err != nil {
		return err
	}
	if o.Rest != "" && !strings.HasSuffix(path, "/{"+o.Rest+"}") {
		return fmt.Errorf("parameter %s: x-rest is not at the end of the path", o.Rest)
	}
	if op.RequestBody != nil {
		switch content := op.RequestBody.Value.Content; {
		case content["application/json"] != nil:
			o.body = s.newBody(op.RequestBody.Value, o.ID+" request")
		case content[anyMedia] != nil && len(content) == 1:
			o.opaque = true
		default:
			return errors.New("a request body is either application/json or */*")
		}
	}
	for code, ref := range op.Responses.Map() {
		status, err := strconv.Atoi(code)
		if err != nil {
			return fmt.Errorf("response %s: only statuses are supported", code)
		}
		if o.responses[status], err = s.newResponse(ref.Value, o.ID+" "+code); err != nil {
			return fmt.Errorf("response %s: %w", code, err)
		}
	}
	s.operations[o.ID] = o
	return nil
}

// Operation returns the operation with an operationId.
func (s *Spec) Operation(id string) (*Operation, bool) {
	op, ok := s.operations[id]
	return op, ok
}

// Operations returns all operations, sorted by id.
func (s *Spec) Operations() []*Operation {
	list := make([]*Operation, 0, len(s.operations))
	for _, op := range s.operations {
		list = append(list, op)
	}
	slices.SortFunc(list, func(a, b *Operation) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// JSON is the whole document as served at /openapi.json. It must not be changed.
func (s *Spec) JSON() []byte { return s.json }

// Version is info.version of the document.
func (s *Spec) Version() string { return s.doc.Info.Version }

// SHA256 is the digest of JSON in lower-case hexadecimal.
func (s *Spec) SHA256() string { return s.sha256 }

// Document is the parsed document, for generators and drift checks. It must not be changed.
func (s *Spec) Document() *openapi3.T { return s.doc }

// Requirements returns all requirements in document order.
func (s *Spec) Requirements() []Requirement { return slices.Clone(s.requirements.list) }

// Requirement returns the requirement with an id.
func (s *Spec) Requirement(id string) (Requirement, bool) {
	i, ok := s.requirements.index[id]
	if !ok {
		return Requirement{}, false
	}
	return s.requirements.list[i], true
}

// Errors returns the catalogue of error answers in document order.
func (s *Spec) Errors() []ErrorEntry { return slices.Clone(s.errors) }

// Uncompiled lists the bodies whose schemas kin-openapi checks, with the keyword that the compiler does not know:
// "advanceClock request: advance: pattern …".
func (s *Spec) Uncompiled() []string { return slices.Clone(s.uncompiled) }

// Profiles returns the conformance profiles of the operation's requirements, sorted.
func (o *Operation) Profiles() []string {
	var list []string
	for _, r := range o.spec.requirements.list {
		if r.Operation == o.ID && !slices.Contains(list, r.Profile) {
			list = append(list, r.Profile)
		}
	}
	slices.Sort(list)
	return list
}

// HasBody says whether the operation takes a body, and whether a request must have one.
func (o *Operation) HasBody() (takes, required bool) {
	if o.body == nil {
		return o.opaque, false
	}
	return true, o.body.required
}

// RequestSchema is the schema of the JSON body, nil when there is none or the body is any bytes.
func (o *Operation) RequestSchema() *openapi3.Schema {
	if o.body == nil {
		return nil
	}
	return o.body.schema
}

// RequestExample is the example body, nil when the operation takes none.
func (o *Operation) RequestExample() []byte {
	switch {
	case o.opaque:
		return example(o.op.RequestBody.Value.Content[anyMedia], false)
	case o.body == nil:
		return nil
	}
	return example(o.op.RequestBody.Value.Content["application/json"], true)
}

// Statuses are the documented response statuses, ascending.
func (o *Operation) Statuses() []int {
	list := make([]int, 0, len(o.responses))
	for status := range o.responses {
		list = append(list, status)
	}
	slices.Sort(list)
	return list
}

// ResponseSchema is the schema of a status's JSON body, nil when it has none.
func (o *Operation) ResponseSchema(status int) *openapi3.Schema {
	r := o.responses[status]
	if r == nil || r.body == nil {
		return nil
	}
	return r.body.schema
}

// ResponseExample is the example of a status: its media type and body, "" and nil when it has no body.
func (o *Operation) ResponseExample(status int) (mediaType string, body []byte) {
	ref := o.op.Responses.Status(status)
	if ref == nil {
		return "", nil
	}
	for name, media := range ref.Value.Content {
		return name, example(media, name == "application/json")
	}
	return "", nil
}

func example(media *openapi3.MediaType, isJSON bool) []byte {
	if text, ok := media.Example.(string); ok && !isJSON {
		return []byte(text)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(media.Example); err != nil {
		return nil
	}
	return bytes.TrimSpace(out.Bytes())
}

// response is what one status looks like.
type response struct {
	mediaType string // "" when there is no body
	body      *body  // nil unless the media type is JSON
	headers   []parameter
}

func (s *Spec) newResponse(in *openapi3.Response, label string) (*response, error) {
	r := &response{}
	for name, media := range in.Content {
		if r.mediaType != "" {
			return nil, errors.New("more than one media type")
		}
		r.mediaType = name
		if name == "application/json" {
			r.body = s.bodyOf(media.Schema, label)
		}
	}
	for name, ref := range in.Headers {
		n, err := compile(ref.Value.Schema)
		if err != nil {
			return nil, fmt.Errorf("header %s: %w", name, err)
		}
		r.headers = append(r.headers, parameter{name: http.CanonicalHeaderKey(name), required: ref.Value.Required, node: n})
	}
	return r, nil
}
