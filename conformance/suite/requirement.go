package suite

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

// Body is the code of one spec. It asserts with Gomega; any failed assertion ends it.
type Body func(ctx context.Context, t *Target)

// Spec tests one requirement. A requirement may have several specs; it passes when all of them do.
type Spec struct {
	Requirement openapi.Requirement
	File        string // path of the spec's source within the module, for instance server/push.go
	Line        int

	body     Body
	wireOnly bool
	timeout  time.Duration
}

// Option changes how one spec runs.
type Option func(*Spec)

// WireOnly marks a spec whose requirement cannot be observed or provoked through a client library, such as
// malformed bodies and extra response keys. With a program peer it still runs, over HTTP, and is reported so.
func WireOnly(s *Spec) { s.wireOnly = true }

// Timeout bounds a spec that needs longer than [DefaultSpecTimeout].
func Timeout(d time.Duration) Option { return func(s *Spec) { s.timeout = d } }

// DefaultSpecTimeout bounds each spec, so that a target that hangs fails one spec and not the run.
const DefaultSpecTimeout = 30 * time.Second

// description returns the API description this program was built with. It cannot fail in a program whose
// tests passed, because the description is embedded; hence the panic.
var description = sync.OnceValue(func() *openapi.Spec {
	spec, err := openapi.Load()
	if err != nil {
		panic(fmt.Sprintf("load the API description: %v", err))
	}
	return spec
})

// Description returns the API description that the suite holds targets to.
func Description() *openapi.Spec { return description() }

var registered []*Spec

// Requirement registers the spec of the requirement id. It is called from package variables, and panics when
// the API description has no such requirement. The result only serves to have something to assign.
func Requirement(id string, body Body, options ...Option) bool {
	requirement, ok := description().Requirement(id)
	if !ok {
		panic(fmt.Sprintf("the API description has no requirement %q", id))
	}
	_, file, line, _ := runtime.Caller(1)
	spec := &Spec{
		Requirement: requirement,
		File:        filepath.ToSlash(filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))),
		Line:        line,
		body:        body,
		timeout:     DefaultSpecTimeout,
	}
	for _, option := range options {
		option(spec)
	}
	registered = append(registered, spec)
	return true
}

// Specs returns every registered spec, in the order of the requirements in the API description.
func Specs() []*Spec {
	order := map[string]int{}
	for i, requirement := range description().Requirements() {
		order[requirement.ID] = i
	}
	specs := slices.Clone(registered)
	slices.SortStableFunc(specs, func(a, b *Spec) int {
		return order[a.Requirement.ID] - order[b.Requirement.ID]
	})
	return specs
}

// ID is the id of the requirement that the spec tests.
func (s *Spec) ID() string { return s.Requirement.ID }

// Name is the spec's name in reports: the requirement's id and text.
func (s *Spec) Name() string { return s.Requirement.ID + ": " + s.Requirement.Text }

// Source is the place of the spec in the suite's source, as file:line.
func (s *Spec) Source() string { return fmt.Sprintf("%s:%d", s.File, s.Line) }
