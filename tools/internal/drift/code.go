package drift

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// parseDir parses the Go files of dir and, when deep, of the folders below it. Test files count when tests is set.
func parseDir(dir string, deep, tests bool) ([]*ast.File, error) {
	var files []*ast.File
	fset := token.NewFileSet()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != dir && !deep {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" || !tests && strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err //nolint:wrapcheck // it names the file and the position
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read Go files: %w", err)
	}
	return files, nil
}

// clientMethods names the client's method for an operation where it is not the operation's own name in upper case.
var clientMethods = map[string]string{
	"popQueue":     "Pop",
	"popPartition": "Pop",
	"extendLease":  "Extend",

	"getMaintenance":           "Maintenance",
	"getPopMaintenance":        "PopMaintenance",
	"getSharedState":           "SharedState",
	"getBuffers":               "Buffers",
	"seekPartition":            "Seek",
	"deleteConsumerGroupQueue": "DeleteConsumerGroup",
}

// versionOne ends the ids of operations of the first version of publishing. They have no method: the client speaks version
// 2, which does all that version 1 does.
const versionOne = "V1"

// forDashboards is why figures about machines have no method.
const forDashboards = "for dashboards and people, not for programs that use queues"

// notInClient lists the operations that have no client method, and why.
var notInClient = map[string]string{
	"status":       "a liveness probe of the process, for orchestrators",
	"metrics":      "scraped by Prometheus",
	"openapi":      "a document",
	"index":        "a page for people",
	"getClock":     "exists under --testing only",
	"advanceClock": "exists under --testing only",

	"pauseScheduleByPost":  "PATCH does the same",
	"resumeScheduleByPost": "PATCH does the same",

	"rotateSigningKeysAlias": "/v2/keys/rotate does the same",
	"setFaults":              "exists under --testing only",

	"getMetrics":        forDashboards,
	"getParkedPops":     forDashboards,
	"getRetentionStats": forDashboards,
	"getSystemMetrics":  forDashboards,
	"getWorkerMetrics":  forDashboards,
	"getPostgresStats":  forDashboards,
}

// Client checks that every operation has a method of the client in dir.
func Client(s Subject, dir string) ([]Problem, error) {
	files, err := parseDir(dir, false, false)
	if err != nil {
		return nil, err
	}
	methods := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.IsExported() && receiver(fn) == "Client" {
				methods[fn.Name.Name] = true
			}
		}
	}
	var p problems
	described := map[string]bool{}
	for _, op := range s.Document.Operations() {
		described[op.ID] = true
		method, ok := clientMethods[op.ID]
		if !ok {
			method = upperFirst(op.ID)
		}
		_, left := notInClient[op.ID]
		left = left || strings.HasSuffix(op.ID, versionOne)
		switch {
		case left && methods[method]:
			p.add("operation "+op.ID, "the client has %s although the drift check lists it as left out", method)
		case !left && !methods[method]:
			p.add("operation "+op.ID, "the client has no method %s", method)
		}
	}
	for _, list := range []map[string]string{clientMethods, notInClient} {
		for _, id := range slices.Sorted(maps.Keys(list)) {
			if !described[id] {
				p.add("operation "+id, "the drift check lists an operation that is not described")
			}
		}
	}
	return p, nil
}

// receiver is the name of a method's type, "" for a function.
func receiver(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) != 1 {
		return ""
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}

func upperFirst(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// notTestedYet lists capabilities that no conformance spec uses, and why. The first spec that uses one makes its entry
// stale, and from then on every MUST that needs the capability must be tested.
var notTestedYet = map[string]string{
	"restart": "the suite does not restart its target",
}

// Specs checks that every MUST that can be tested is tested by a conformance spec below dir, a call of Requirement with
// its id, and that no spec tests what is not required or is said to be untestable.
func Specs(s Subject, dir string) ([]Problem, error) {
	files, err := parseDir(dir, true, false)
	if err != nil {
		return nil, err
	}
	tested := map[string]bool{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if ok && called(call) == "Requirement" && len(call.Args) > 0 {
				if id, ok := literal(call.Args[0]); ok {
					tested[id] = true
				}
			}
			return true
		})
	}
	var p problems
	if len(tested) == 0 {
		p.add(dir, "no conformance specs found")
	}
	required := map[string]bool{}
	for _, r := range s.Requirements {
		required[r.ID] = true
		later := slices.ContainsFunc(r.Needs, func(need string) bool { return notTestedYet[need] != "" })
		switch {
		case later && tested[r.ID]:
			p.add("requirement "+r.ID, "is tested although the drift check lists a capability it needs as not tested yet")
		case later:
		case r.Untestable != "" && tested[r.ID]:
			p.add("requirement "+r.ID, "has a conformance spec although it says that it cannot be tested")
		case r.Untestable == "" && r.Level == "MUST" && !tested[r.ID]:
			p.add("requirement "+r.ID, "no conformance spec, and it does not say why it cannot be tested")
		}
	}
	for _, id := range slices.Sorted(maps.Keys(tested)) {
		if !required[id] {
			p.add("requirement "+id, "a conformance spec tests it but it is not described")
		}
	}
	return p, nil
}

// called is the name of the function that a call names, without its package.
func called(call *ast.CallExpr) string {
	switch fn := call.Fun.(type) {
	case *ast.Ident:
		return fn.Name
	case *ast.SelectorExpr:
		return fn.Sel.Name
	}
	return ""
}

// literal is the value of a string literal.
func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}
