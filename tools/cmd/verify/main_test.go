package main

import (
	"slices"
	"strings"
	"testing"
)

func TestRaceDetectorIsOnlyUsedWhereItBuilds(t *testing.T) {
	root, err := workspace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CGO_ENABLED", "0")
	if why := (goCommand{dir: root}).cannotRace(t.Context()); !strings.Contains(why, "cgo") {
		t.Errorf("without cgo the reason is %q", why)
	}
}

func TestEndToEndRunsAlone(t *testing.T) {
	t.Parallel()
	root, err := workspace(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	packages, err := goCommand{dir: root, stderr: t.Output()}.packages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(packages, endToEnd) {
		t.Error("the end-to-end tests run beside the others")
	}
	for _, module := range []string{"openapi", "sdk-go", "conformance", "tools"} {
		if !slices.ContainsFunc(packages, func(p string) bool { return strings.HasPrefix(p, "github.com/posthorn/posthorn/"+module) }) {
			t.Errorf("no package of %s among %v", module, packages)
		}
	}
}
