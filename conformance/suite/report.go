package suite

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

// ReportSchema is the JSON schema of report.json.
//
//go:embed report.schema.json
var ReportSchema []byte

//go:embed report.html.tmpl
var reportPage string

// Report is the content of report.json. report.schema.json describes it.
type Report struct {
	SchemaVersion   int                 `json:"schemaVersion"`
	Suite           Tester              `json:"suite"`
	Spec            SpecReport          `json:"spec"`
	Implementation  Implementation      `json:"implementation"`
	Peer            string              `json:"peer"` // wire, or the client library the specs ran through
	StartedAt       time.Time           `json:"startedAt"`
	DurationSeconds float64             `json:"durationSeconds"`
	Configuration   map[string]string   `json:"configuration"`
	Conformant      bool                `json:"conformant"` // every profile is a success
	Expected        bool                `json:"expected"`   // conformant but for what is listed as known failing
	Profiles        []ProfileReport     `json:"profiles"`
	Requirements    []RequirementReport `json:"requirements"`
	Failures        []FailureReport     `json:"failures"`
}

// Tester identifies the suite that made the report.
type Tester struct {
	Version string `json:"version"`
}

// SpecReport identifies the API description.
type SpecReport struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

// Implementation identifies what was tested, in its own words.
type Implementation struct {
	Target  string `json:"target"`
	Engine  string `json:"engine"`
	Version string `json:"version"`
}

// The results of a profile.
const (
	Success = "success" // every MUST that could be tested passes, and every core one was tested
	Partial = "partial" // nothing failed, but a core requirement was not tested
	Failure = "failure" // a MUST failed
)

// ProfileReport sums up one profile. Core are its MUSTs without needs, extended those with, advisory the rest.
type ProfileReport struct {
	Name         string           `json:"name"`
	Result       string           `json:"result"`
	Core         map[Status]int   `json:"core"`
	Extended     map[Status]int   `json:"extended"`
	Advisory     map[Status]int   `json:"advisory"`
	Capabilities CapabilityReport `json:"capabilities"`
}

// CapabilityReport lists the capabilities that the profile's requirements need.
type CapabilityReport struct {
	Supported   []string `json:"supported"`
	Unsupported []string `json:"unsupported"`
}

// RequirementReport is how one requirement came out.
type RequirementReport struct {
	ID              string   `json:"id"`
	Operation       string   `json:"operation"`
	Profile         string   `json:"profile"`
	Level           string   `json:"level"`
	Needs           []string `json:"needs"`
	Text            string   `json:"text"`
	Status          Status   `json:"status"`
	Reason          string   `json:"reason,omitempty"`
	Untestable      bool     `json:"untestable"`
	KnownFailing    bool     `json:"knownFailing"`
	Peer            string   `json:"peer,omitempty"` // absent when no spec ran
	DurationSeconds float64  `json:"durationSeconds"`
	Sources         []string `json:"sources"` // file:line of its specs
}

// FailureReport is one failed spec with what led to it.
type FailureReport struct {
	ID        string     `json:"id"`
	Source    string     `json:"source"`
	Location  string     `json:"location,omitempty"`
	Message   string     `json:"message"`
	Exchanges []Exchange `json:"exchanges"`
}

// severity orders statuses, so that a requirement with several specs takes the worst of them.
var severity = []Status{Pass, Skip, Unsupported, Untested, Fail, Errored}

func worse(a, b Status) bool { return slices.Index(severity, a) > slices.Index(severity, b) }

func assemble(plan Plan, session *Session, results []Result, start time.Time, took time.Duration) Report {
	report := Report{
		SchemaVersion: 1,
		Suite:         Tester{Version: plan.Version},
		Spec:          SpecReport{Version: description().Version(), SHA256: description().SHA256()},
		Implementation: Implementation{
			Target: masked(plan.Target), Engine: session.identity.Engine, Version: session.identity.Version,
		},
		Peer:            session.Peer(),
		StartedAt:       start.UTC(),
		DurationSeconds: took.Seconds(),
		Configuration:   plan.Configuration,
		Requirements:    []RequirementReport{},
		Failures:        []FailureReport{},
	}
	if report.Configuration == nil {
		report.Configuration = map[string]string{}
	}
	byID := map[string][]Result{}
	for _, result := range results {
		byID[result.Spec.ID()] = append(byID[result.Spec.ID()], result)
	}
	for _, requirement := range description().Requirements() {
		if !plan.selects(requirement) {
			continue
		}
		line := requirementReport(session, requirement, byID[requirement.ID])
		line.KnownFailing = slices.Contains(plan.KnownFailing, requirement.ID)
		report.Requirements = append(report.Requirements, line)
		for _, result := range byID[requirement.ID] {
			if result.Status == Fail || result.Status == Errored {
				report.Failures = append(report.Failures, FailureReport{
					ID: requirement.ID, Source: result.Spec.Source(), Location: result.Location,
					Message: result.Reason, Exchanges: append([]Exchange{}, result.Exchanges...),
				})
			}
		}
	}
	report.judge(session)
	return report
}

// masked hides a password in the target's URL, which Open has parsed already.
func masked(target string) string {
	parsed, err := url.Parse(target)
	if err != nil {
		return ""
	}
	return parsed.Redacted()
}

func requirementReport(session *Session, requirement openapi.Requirement, results []Result) RequirementReport {
	line := RequirementReport{
		ID: requirement.ID, Operation: requirement.Operation, Profile: requirement.Profile, Level: requirement.Level,
		Needs: append([]string{}, requirement.Needs...), Text: requirement.Text, Sources: []string{},
	}
	if len(results) == 0 {
		line.Status, line.Reason = Untested, "the suite has no spec for it"
		if requirement.Untestable != "" {
			line.Untestable, line.Reason = true, requirement.Untestable
		}
		for _, need := range requirement.Needs {
			if !session.Has(need) {
				line.Status, line.Reason = Unsupported, lacks(need)
			}
		}
		return line
	}
	line.Status = Pass
	for _, result := range results {
		line.DurationSeconds += result.Duration.Seconds()
		line.Sources = append(line.Sources, result.Spec.Source())
		line.Peer = result.Peer
		if worse(result.Status, line.Status) {
			line.Status, line.Reason = result.Status, result.Reason
		}
	}
	return line
}

// judge fills the profiles and the verdicts from the requirements.
func (r *Report) judge(session *Session) {
	r.Profiles = []ProfileReport{}
	r.Conformant, r.Expected = true, true
	for _, name := range Profiles() {
		profile := ProfileReport{
			Name: name, Result: Success,
			Core: map[Status]int{}, Extended: map[Status]int{}, Advisory: map[Status]int{},
			Capabilities: CapabilityReport{Supported: []string{}, Unsupported: []string{}},
		}
		seen, unexpected := false, false
		for _, line := range r.Requirements {
			if line.Profile != name {
				continue
			}
			seen = true
			profile.count(line, session)
			unexpected = unexpected || line.unexpected()
		}
		if !seen {
			continue
		}
		r.Profiles = append(r.Profiles, profile)
		r.Conformant = r.Conformant && profile.Result == Success
		r.Expected = r.Expected && !unexpected
	}
}

func (p *ProfileReport) count(line RequirementReport, session *Session) {
	for _, need := range line.Needs {
		list := &p.Capabilities.Unsupported
		if session.Has(need) {
			list = &p.Capabilities.Supported
		}
		if !slices.Contains(*list, need) {
			*list = append(*list, need)
			slices.Sort(*list)
		}
	}
	switch {
	case line.Untestable:
	case line.Level != "MUST":
		p.Advisory[line.Status]++
	case len(line.Needs) > 0:
		p.Extended[line.Status]++
	default:
		p.Core[line.Status]++
	}
	switch {
	case line.failed():
		p.Result = Failure
	case line.skippedCore() && p.Result == Success:
		p.Result = Partial
	}
}

func (r RequirementReport) failed() bool {
	return r.Level == "MUST" && (r.Status == Fail || r.Status == Errored)
}

func (r RequirementReport) skippedCore() bool {
	return r.Level == "MUST" && len(r.Needs) == 0 && !r.Untestable && r.Status != Pass && !r.failed()
}

// unexpected says whether the requirement alone makes the run fail: it failed or was skipped and is not listed as
// known failing, or is listed and passed.
func (r RequirementReport) unexpected() bool {
	if r.KnownFailing {
		return r.Status == Pass
	}
	return r.failed() || r.skippedCore()
}

// Summary is the report in a few lines.
func (r *Report) Summary() string {
	var b strings.Builder
	for _, profile := range r.Profiles {
		fmt.Fprintf(&b, "%-20s %-8s core %s; extended %s; advisory %s\n", profile.Name, profile.Result,
			counts(profile.Core), counts(profile.Extended), counts(profile.Advisory))
	}
	for _, line := range r.Requirements {
		if line.Status == Untested && !line.Untestable && line.Level != "MAY" {
			fmt.Fprintf(&b, "untested: %s (%s)\n", line.ID, line.Reason)
		}
		if line.KnownFailing && line.Status == Pass {
			fmt.Fprintf(&b, "unexpected pass: %s\n", line.ID)
		}
	}
	for _, failure := range r.Failures {
		first, _, _ := strings.Cut(failure.Message, "\n")
		fmt.Fprintf(&b, "failed: %s at %s: %s\n", failure.ID, failure.Source, first)
	}
	switch {
	case r.Conformant && r.Expected:
		b.WriteString("conformant")
	case r.Expected:
		b.WriteString("not conformant, as known")
	default:
		b.WriteString("not conformant")
	}
	return b.String()
}

func counts(by map[Status]int) string {
	var parts []string
	for _, status := range severity {
		if by[status] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", by[status], status))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// write writes report.json and report.html into dir.
func (r *Report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "report.json"), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	page, err := template.New("report").Funcs(template.FuncMap{
		"counts": counts, "transcript": transcript,
	}).Parse(reportPage)
	if err != nil {
		return fmt.Errorf("parse report page: %w", err)
	}
	file, err := os.Create(filepath.Join(dir, "report.html")) //nolint:gosec // the directory is the tester's choice
	if err != nil {
		return fmt.Errorf("write report page: %w", err)
	}
	if err := page.Execute(file, r); err != nil {
		_ = file.Close()
		return fmt.Errorf("write report page: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("write report page: %w", err)
	}
	return nil
}
