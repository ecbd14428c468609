package drift

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	tableRow     = regexp.MustCompile(`(?m)^\|(.*?)\|(.*?)\|`)
	settingName  = regexp.MustCompile("`(--[a-z-]+|[A-Z][A-Z0-9_]+)`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	codeBlock    = regexp.MustCompile("(?ms)^```.*?^```")
)

// Configuration compares the table of settings in the code with the first two columns of the documented one: each flag
// and each variable stands in both.
func Configuration(code, document string) ([]Problem, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), code, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("read the broker's settings: %w", err)
	}
	text, err := os.ReadFile(document)
	if err != nil {
		return nil, fmt.Errorf("read the configuration reference: %w", err)
	}
	have := settings(parsed)
	described := map[string]bool{}
	for _, row := range tableRow.FindAllStringSubmatch(string(text), -1) {
		for _, name := range settingName.FindAllStringSubmatch(row[1]+" "+row[2], -1) {
			described[name[1]] = true
		}
	}
	var p problems
	if len(have) == 0 {
		p.add(code, "no settings found")
	}
	for _, name := range have {
		if !described[name] {
			p.add(document, "%s is not described", name)
		}
		delete(described, name)
	}
	for name := range described {
		p.add(document, "%s does not exist", name)
	}
	slices.SortFunc(p, func(a, b Problem) int { return strings.Compare(a.String(), b.String()) })
	return p, nil
}

// settings are the flags and variables in composite literals with the fields flag and env.
func settings(f *ast.File) []string {
	var names []string
	ast.Inspect(f, func(n ast.Node) bool {
		kv, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		key, ok := kv.Key.(*ast.Ident)
		if !ok {
			return true
		}
		switch value := kv.Value.(type) {
		case *ast.BasicLit:
			if s, ok := literal(value); ok && key.Name == "flag" {
				names = append(names, "--"+s)
			}
		case *ast.CompositeLit:
			for _, element := range value.Elts {
				if s, ok := literal(element); ok && key.Name == "env" {
					names = append(names, s)
				}
			}
		}
		return true
	})
	return names
}

// Links checks that every link of the Markdown documents below root that is not to the web leads to a file of the
// checkout and, where it names one, to a heading in it.
func Links(root string) ([]Problem, error) {
	var p problems
	documents := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin" || entry.Name() == "results" || entry.Name() == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		documents++
		text, err := os.ReadFile(path)
		if err != nil {
			return err //nolint:wrapcheck // it names the file
		}
		for _, link := range markdownLink.FindAllStringSubmatch(string(codeBlock.ReplaceAll(text, nil)), -1) {
			if strings.Contains(link[1], "://") || strings.HasPrefix(link[1], "mailto:") {
				continue
			}
			if why := follow(path, link[1]); why != "" {
				p.add(path, "link to %s: %s", link[1], why)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read documents: %w", err)
	}
	if documents == 0 {
		p.add(root, "no documents found")
	}
	return p, nil
}

// follow says why a link leads nowhere, "" when it leads somewhere.
func follow(from, link string) string {
	file, fragment, _ := strings.Cut(link, "#")
	target := from
	if file != "" {
		target = filepath.Join(filepath.Dir(from), filepath.FromSlash(file))
	}
	info, err := os.Stat(target)
	if err != nil {
		return "no such file"
	}
	if fragment == "" || info.IsDir() {
		return ""
	}
	text, err := os.ReadFile(target)
	if err != nil {
		return err.Error()
	}
	for _, h := range heading.FindAllStringSubmatch(string(codeBlock.ReplaceAll(text, nil)), -1) {
		if anchor(h[1]) == fragment {
			return ""
		}
	}
	return "no such heading"
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchor is the fragment of a heading, as the usual Markdown renderers make it.
func anchor(heading string) string {
	return strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
