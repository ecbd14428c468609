package suite

import (
	"testing"

	"github.com/posthorn/posthorn/openapi"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	profile := Profiles()[0]
	line := func(status Status, change ...func(*RequirementReport)) RequirementReport {
		r := RequirementReport{ID: "x", Profile: profile, Level: "MUST", Status: status}
		for _, f := range change {
			f(&r)
		}
		return r
	}
	needsClock := func(r *RequirementReport) { r.Needs = []string{CapabilityClock} }
	should := func(r *RequirementReport) { r.Level = "SHOULD" }
	known := func(r *RequirementReport) { r.KnownFailing = true }
	untestable := func(r *RequirementReport) { r.Untestable = true }

	for name, c := range map[string]struct {
		lines      []RequirementReport
		result     string
		conformant bool
		expected   bool
	}{
		"all pass":                     {[]RequirementReport{line(Pass), line(Pass, needsClock)}, Success, true, true},
		"a core requirement fails":     {[]RequirementReport{line(Pass), line(Fail)}, Failure, false, false},
		"an extended one fails":        {[]RequirementReport{line(Pass), line(Fail, needsClock)}, Failure, false, false},
		"the suite fails":              {[]RequirementReport{line(Errored)}, Failure, false, false},
		"a core one is untested":       {[]RequirementReport{line(Pass), line(Untested)}, Partial, false, false},
		"a core one is skipped":        {[]RequirementReport{line(Skip), line(Pass)}, Partial, false, false},
		"an extended one is untested":  {[]RequirementReport{line(Pass), line(Untested, needsClock)}, Success, true, true},
		"an untestable one":            {[]RequirementReport{line(Pass), line(Untested, untestable)}, Success, true, true},
		"a SHOULD fails":               {[]RequirementReport{line(Pass), line(Fail, should)}, Success, true, true},
		"a failure is known":           {[]RequirementReport{line(Pass), line(Fail, known)}, Failure, false, true},
		"a known failure passes":       {[]RequirementReport{line(Pass, known)}, Success, true, false},
		"partial does not hide a fail": {[]RequirementReport{line(Fail), line(Untested)}, Failure, false, false},
	} {
		report := Report{Requirements: c.lines}
		report.judge(&Session{})
		if got := report.Profiles[0].Result; got != c.result {
			t.Errorf("%s: the profile is a %s, want %s", name, got, c.result)
		}
		if report.Conformant != c.conformant || report.Expected != c.expected {
			t.Errorf("%s: conformant %t, expected %t", name, report.Conformant, report.Expected)
		}
	}
}

func TestRequirementTakesTheWorstOfItsSpecs(t *testing.T) {
	t.Parallel()
	spec := &Spec{File: "server/x.go", Line: 1}
	line := requirementReport(&Session{}, openapi.Requirement{ID: "x"}, []Result{
		{Spec: spec, Status: Pass}, {Spec: spec, Status: Fail, Reason: "no"}, {Spec: spec, Status: Untested, Reason: "later"},
	})
	if line.Status != Fail || line.Reason != "no" || len(line.Sources) != 3 {
		t.Errorf("the requirement is %s (%s), from %v", line.Status, line.Reason, line.Sources)
	}
	line = requirementReport(&Session{}, openapi.Requirement{ID: "x", Needs: []string{CapabilityFaults}}, nil)
	if line.Status != Unsupported {
		t.Errorf("a requirement that needs what the target does not have is %s", line.Status)
	}
	line = requirementReport(&Session{settings: Settings{Capabilities: []string{CapabilityFaults}}},
		openapi.Requirement{ID: "x", Needs: []string{CapabilityFaults}}, nil)
	if line.Status != Untested {
		t.Errorf("a requirement that the suite cannot test though the target has what it needs is %s", line.Status)
	}
}
