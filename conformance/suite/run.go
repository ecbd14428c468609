package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"

	"github.com/posthorn/posthorn/openapi"
)

// Plan is one run of the suite.
type Plan struct {
	Settings
	// Profiles to test. Empty means every profile of the API description.
	Profiles []string
	// KnownFailing lists the ids of requirements that are known to fail. They run all the same: their failures do
	// not fail the run, their passing does.
	KnownFailing []string
	// Out is the directory of the reports, created when missing. Required.
	Out string
	// Configuration is copied into the report, with secrets already masked.
	Configuration map[string]string
	// Version of the suite, for the report.
	Version string
	// Progress is where a line is written that says where the reports are. nil means nowhere.
	Progress io.Writer
}

// Profiles lists the profiles of the API description, sorted.
func Profiles() []string {
	var names []string
	for _, requirement := range description().Requirements() {
		if !slices.Contains(names, requirement.Profile) {
			names = append(names, requirement.Profile)
		}
	}
	slices.Sort(names)
	return names
}

func (p *Plan) validate() error {
	var problems []error
	for _, profile := range p.Profiles {
		if !slices.Contains(Profiles(), profile) {
			problems = append(problems, fmt.Errorf("unknown profile %q (known: %s)", profile, strings.Join(Profiles(), ", ")))
		}
	}
	for _, id := range p.KnownFailing {
		if _, ok := description().Requirement(id); !ok {
			problems = append(problems, fmt.Errorf("known failing: the API description has no requirement %q", id))
		}
	}
	if p.Out == "" {
		problems = append(problems, errors.New("no directory for the reports is given"))
	}
	return errors.Join(problems...)
}

func (p *Plan) selects(requirement openapi.Requirement) bool {
	return len(p.Profiles) == 0 || slices.Contains(p.Profiles, requirement.Profile)
}

// verdict is what Ginkgo wants of a *testing.T.
type verdict struct{ failed bool }

func (v *verdict) Fail() { v.failed = true }

// Run runs the registered specs of the plan's profiles under Ginkgo and writes report.json, junit.xml and
// report.html. It can be called once in a process, because Ginkgo's tree is global. Its error is a fault of the
// suite or its configuration; whether the target conforms is in the report.
func Run(ctx context.Context, plan Plan) (report Report, err error) {
	if err := plan.validate(); err != nil {
		return Report{}, err
	}
	session, err := Open(ctx, plan.Settings)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	if err := os.MkdirAll(plan.Out, 0o750); err != nil {
		return Report{}, fmt.Errorf("create the directory of the reports: %w", err)
	}
	out, err := filepath.Abs(plan.Out)
	if err != nil {
		return Report{}, fmt.Errorf("directory of the reports: %w", err)
	}

	var (
		mu      sync.Mutex
		results []Result
	)
	ginkgo.Describe("Posthorn conformance", func() { //nolint:contextcheck // each spec has Ginkgo's context, not the run's
		for _, spec := range Specs() {
			if !plan.selects(spec.Requirement) {
				continue
			}
			ginkgo.It(spec.Name(), spec.labels(), types.CodeLocation{FileName: spec.File, LineNumber: spec.Line},
				func(ctx ginkgo.SpecContext) {
					result := session.Execute(ctx, spec)
					mu.Lock()
					results = append(results, result)
					mu.Unlock()
					conclude(result, slices.Contains(plan.KnownFailing, spec.ID()))
				})
		}
	})
	suiteConfig, reporterConfig := types.NewDefaultSuiteConfig(), types.NewDefaultReporterConfig()
	suiteConfig.Timeout = 0 // each spec has its own
	reporterConfig.Succinct = true
	reporterConfig.NoColor = !terminal(os.Stdout)
	reporterConfig.JUnitReport = filepath.Join(out, "junit.xml")
	start := time.Now()
	ginkgo.RunSpecs(&verdict{}, "Posthorn conformance of "+masked(plan.Target), suiteConfig, reporterConfig)

	report = assemble(plan, session, results, start, time.Since(start))
	if err := report.write(out); err != nil {
		return report, err
	}
	if plan.Progress != nil {
		fmt.Fprintf(plan.Progress, "\n%s\nReports: %s\n", report.Summary(), out)
	}
	return report, nil
}

// terminal says whether the file shows to a person.
func terminal(file *os.File) bool {
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// labels of a spec in Ginkgo: its profile, level and needs.
func (s *Spec) labels() ginkgo.Labels {
	labels := ginkgo.Labels{s.Requirement.Profile, s.Requirement.Level}
	return append(labels, s.Requirement.Needs...)
}

// conclude tells Ginkgo how a spec came out.
func conclude(result Result, known bool) {
	switch result.Status {
	case Pass:
		if known {
			ginkgo.Fail("listed as known failing, but passes: take it off the list")
		}
	case Fail, Errored:
		if known {
			ginkgo.Skip("known failing: " + result.Reason)
		}
		ginkgo.AddReportEntry("exchanges", ginkgo.ReportEntryVisibilityFailureOrVerbose, transcript(result.Exchanges))
		ginkgo.Fail(strings.TrimSpace(result.Location + "\n" + result.Reason))
	case Skip, Unsupported, Untested:
		ginkgo.Skip(string(result.Status) + ": " + result.Reason)
	}
}

// transcript renders exchanges for a console.
func transcript(exchanges []Exchange) string {
	var b strings.Builder
	for _, e := range exchanges {
		fmt.Fprintf(&b, "%s %s\n", e.Method, e.URL)
		if e.RequestBody != "" {
			fmt.Fprintf(&b, "  > %s\n", e.RequestBody)
		}
		if e.Error != "" {
			fmt.Fprintf(&b, "  ! %s\n", e.Error)
			continue
		}
		fmt.Fprintf(&b, "  < %d %s\n", e.Status, e.ResponseBody)
	}
	return b.String()
}
