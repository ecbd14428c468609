package drift

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Errors compares the error catalogue with the file that turns errors into answers, in both directions. A text that is
// built from parts matches by its constant parts: "bad " + in + ": " + rule answers "bad body: <field> <rule>".
func Errors(s Subject, file string) ([]Problem, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("read the broker's errors: %w", err)
	}
	answered := errorTexts(parsed)
	var p problems
	if len(answered) == 0 {
		p.add(file, "no error texts found")
	}
	described := map[string]bool{}
	for _, e := range s.Document.Errors {
		where := "error " + e.ID
		if e.ID == "" || e.Error == "" || e.When == "" || e.Status < 400 || e.Status > 599 {
			p.add(where, "want id, status 400 to 599, error and when")
		}
		found := false
		for text, pattern := range answered {
			if pattern.MatchString(e.Error) {
				found, described[text] = true, true
			}
		}
		if !found {
			p.add(where, "the broker answers no such text: %s", e.Error)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(answered)) {
		if !described[text] {
			p.add(file, "the broker answers %q, which is not in the catalogue", text)
		}
	}
	return p, nil
}

// errorTexts returns what can become the text of an error answer: the second argument of errorAnswer, also through a
// function of the file that only returns one, and the error of a literal JSON body given to jsonAnswer. Parts that are
// not constant are shown as "…" and match anything.
func errorTexts(f *ast.File) map[string]*regexp.Regexp {
	r := resolver{constants: map[string]ast.Expr{}, functions: map[string]*ast.FuncDecl{}}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			r.functions[d.Name.Name] = d
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					for i, name := range v.Names {
						if i < len(v.Values) {
							r.constants[name.Name] = v.Values[i]
						}
					}
				}
			}
		}
	}
	texts := map[string]*regexp.Regexp{}
	add := func(parts []string) {
		text := strings.Join(parts, "…")
		if len(strings.Trim(text, "… ")) < 3 {
			return // nothing constant in it: the text was made elsewhere
		}
		for i, part := range parts {
			parts[i] = regexp.QuoteMeta(part)
		}
		texts[text] = regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		switch called(call) {
		case "errorAnswer":
			add(r.parts(call.Args[1], 0))
		case "jsonAnswer":
			if text, ok := bodyError(call.Args[1]); ok {
				add([]string{text})
			}
		}
		return true
	})
	return texts
}

// bodyError is the error inside a literal JSON body, []byte(`{"error":"…"}`).
func bodyError(e ast.Expr) (string, bool) {
	conversion, ok := e.(*ast.CallExpr)
	if !ok || len(conversion.Args) != 1 {
		return "", false
	}
	text, ok := literal(conversion.Args[0])
	if !ok {
		return "", false
	}
	var body struct {
		Error string `json:"error"`
	}
	return body.Error, json.Unmarshal([]byte(text), &body) == nil && body.Error != ""
}

// resolver evaluates string expressions as far as they are constant within one file.
type resolver struct {
	constants map[string]ast.Expr
	functions map[string]*ast.FuncDecl
}

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// parts returns the constant parts of a string expression; between two of them is something that is not constant.
func (r resolver) parts(e ast.Expr, depth int) []string {
	unknown := []string{"", ""}
	if depth > 8 {
		return unknown
	}
	if s, ok := literal(e); ok {
		return []string{s}
	}
	switch x := e.(type) {
	case *ast.Ident:
		if value, ok := r.constants[x.Name]; ok {
			return r.parts(value, depth+1)
		}
	case *ast.ParenExpr:
		return r.parts(x.X, depth+1)
	case *ast.BinaryExpr:
		if x.Op == token.ADD {
			left, right := r.parts(x.X, depth+1), r.parts(x.Y, depth+1)
			joined := slices.Clone(left)
			joined[len(joined)-1] += right[0]
			return append(joined, right[1:]...)
		}
	case *ast.CallExpr:
		return r.callParts(x, depth)
	}
	return unknown
}

// callParts knows the calls that make error texts: errors.New, a formatted text, err.Error() of an error in the same
// file, and functions of the file that return one expression.
func (r resolver) callParts(call *ast.CallExpr, depth int) []string {
	switch name := called(call); name {
	case "New":
		if len(call.Args) == 1 {
			return r.parts(call.Args[0], depth+1)
		}
	case "Sprintf", "Errorf":
		format := r.parts(call.Args[0], depth+1)
		if len(format) == 1 {
			return verb.Split(format[0], -1)
		}
	case "Error":
		if fn, ok := call.Fun.(*ast.SelectorExpr); ok {
			return r.parts(fn.X, depth+1)
		}
	default:
		if fn := r.functions[name]; fn != nil && len(fn.Body.List) == 1 {
			if ret, ok := fn.Body.List[0].(*ast.ReturnStmt); ok && len(ret.Results) == 1 {
				return r.parts(ret.Results[0], depth+1)
			}
		}
	}
	return []string{"", ""}
}
