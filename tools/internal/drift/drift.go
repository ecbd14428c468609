// Package drift finds what has drifted apart: rules that the API description must keep by itself, and promises that
// stand in two places of the repository: the description, the code that follows it, and the documents.
//
// It promises that a check that finds nothing to compare reports that as a problem: a renamed folder or function never
// makes a check pass. It assumes the repository's layout (one row in Check per place). Go sources are parsed, never
// searched as text, so that comments and formatting do not matter. Check fails with an error only when a file cannot
// be read or parsed; drift itself is a list of problems.
package drift

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/posthorn/posthorn/openapi"
	"github.com/posthorn/posthorn/tools/internal/description"
)

// Problem is one thing that has drifted.
type Problem struct {
	Where string // an operation, a requirement, an error of the catalogue, or a file
	What  string
}

// String is one line.
func (p Problem) String() string { return p.Where + ": " + p.What }

// problems collects.
type problems []Problem

func (p *problems) add(where, format string, args ...any) {
	*p = append(*p, Problem{Where: where, What: fmt.Sprintf(format, args...)})
}

// Subject is what the checks look at.
type Subject struct {
	Document     *description.Document
	Requirements []openapi.Requirement
	Root         string // of the checkout
}

// Load reads the description that is built into the program and names the checkout it is compared with.
func Load(root string) (Subject, error) {
	spec, err := openapi.Load()
	if err != nil {
		return Subject{}, fmt.Errorf("load the API description: %w", err)
	}
	doc, err := description.Parse(spec.JSON())
	if err != nil {
		return Subject{}, err
	}
	return Subject{Document: doc, Requirements: spec.Requirements(), Root: root}, nil
}

// Check runs all checks.
func Check(s Subject) ([]Problem, error) {
	all := append(Operations(s), Requirements(s)...)
	for _, check := range []struct {
		run  func(Subject, string) ([]Problem, error)
		path string
	}{
		{Errors, "broker/internal/api/errors.go"},
		{Client, "sdk-go"},
		{Specs, "conformance/server"},
	} {
		found, err := check.run(s, filepath.Join(s.Root, filepath.FromSlash(check.path)))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	settings, err := Configuration(
		filepath.Join(s.Root, "broker", "internal", "app", "settings.go"),
		filepath.Join(s.Root, "docs", "operations", "configuration.md"),
	)
	if err != nil {
		return nil, err
	}
	metrics, err := Metrics(filepath.Join(s.Root, "broker", "internal"), filepath.Join(s.Root, "docs", "operations"))
	if err != nil {
		return nil, err
	}
	links, err := Links(s.Root)
	if err != nil {
		return nil, err
	}
	return slices.Concat(all, settings, metrics, links), nil
}
