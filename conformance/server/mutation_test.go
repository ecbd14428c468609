package server_test

import (
	"context"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/posthorn/posthorn/conformance/reference"
	_ "github.com/posthorn/posthorn/conformance/server"
	"github.com/posthorn/posthorn/conformance/suite"
)

// heavy are requirements whose specs move megabytes. They run only for the mutations that they are expected to catch.
var heavy = []string{"http.body.limit", "http.body.depth", "push.items.limit"}

// run runs the specs against a reference broker with the mutations, and returns the results that are no pass.
func run(t *testing.T, specs []*suite.Spec, mutations ...reference.Mutation) []suite.Result {
	t.Helper()
	broker := httptest.NewServer(reference.New(mutations...))
	t.Cleanup(broker.Close)
	session, err := suite.Open(t.Context(), suite.Settings{
		Target: broker.URL, Capabilities: []string{suite.CapabilityClock}, Patience: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	var bad []suite.Result
	for _, spec := range specs {
		result := session.Execute(context.WithoutCancel(t.Context()), spec)
		if os.Getenv("DUR") != "" {
			t.Logf("DUR %.3f %s", result.Duration.Seconds(), spec.ID())
		}
		if result.Status != suite.Pass {
			bad = append(bad, result)
		}
	}
	return bad
}

func ids(results []suite.Result) []string {
	var all []string
	for _, result := range results {
		all = append(all, result.Spec.ID())
	}
	return all
}

func TestReferenceConforms(t *testing.T) {
	for _, result := range run(t, suite.Specs()) {
		t.Errorf("%s: %s: %s (%s)", result.Spec.ID(), result.Status, result.Reason, result.Location)
	}
}

func TestExplore(t *testing.T) {
	if os.Getenv("EXPLORE") == "" {
		t.Skip()
	}
	light := slices.DeleteFunc(suite.Specs(), func(s *suite.Spec) bool { return slices.Contains(heavy, s.ID()) })
	for _, m := range strings.Fields(os.Getenv("EXPLORE")) {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			bad := run(t, light, reference.Mutation(m))
			var failed, violated []string
			for _, r := range bad {
				if r.Location == "" && len(r.Violations) > 0 {
					violated = append(violated, r.Spec.ID())
					continue
				}
				id := r.Spec.ID()
				if r.Status != suite.Fail {
					id += "(" + string(r.Status) + ":" + r.Reason + ")"
				}
				failed = append(failed, id)
			}
			t.Logf("RESULT %s\t%s\tviolations in %d\t%.1fs", m, strings.Join(failed, " "), len(violated), time.Since(start).Seconds())
		})
	}
}

var _ = ids
