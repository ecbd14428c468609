package drift

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// metricMakers are the functions of the broker that make a metric of a name without prefix and a help text.
var metricMakers = []string{"counter", "vector", "histogram", "gauge", "function", "desc"}

const metricPrefix = "posthorn_"

var (
	metricRow  = regexp.MustCompile("(?m)^\\| `(posthorn_[a-z_]+)` \\|[^|]*\\|[^|]*\\| (.*?) \\|$")
	metricName = regexp.MustCompile(`\bposthorn_[a-z_]+`)
)

// Metrics compares the metrics that the broker's code below code defines, name and help, with those that the document
// describes, and checks that the dashboard and the alert rules beside it name no other.
func Metrics(code, documents string) ([]Problem, error) {
	files, err := parseDir(code, true, false)
	if err != nil {
		return nil, err
	}
	have := map[string]string{}
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if name, help, ok := metricOf(n); ok {
				have[name] = help
			}
			return true
		})
	}
	document := filepath.Join(documents, "metrics.md")
	text, err := os.ReadFile(document)
	if err != nil {
		return nil, fmt.Errorf("read the reference of metrics: %w", err)
	}
	described := map[string]string{}
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		described[row[1]] = row[2]
	}
	var p problems
	if len(have) == 0 {
		p.add(code, "no metrics found")
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		switch help, ok := described[name]; {
		case !ok:
			p.add(document, "%s is not described", name)
		case help != have[name]:
			p.add(document, "%s is described as %q, its help says %q", name, help, have[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(described)) {
		if _, ok := have[name]; !ok {
			p.add(document, "%s does not exist", name)
		}
	}
	for _, use := range []struct {
		file  string
		exprs func([]byte) ([]string, error)
	}{{"grafana-dashboard.json", dashboardQueries}, {"alerts.yaml", alertQueries}} {
		path := filepath.Join(documents, use.file)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read what uses metrics: %w", err)
		}
		exprs, err := use.exprs(text)
		if err != nil {
			p.add(path, "cannot be read: %v", err)
			continue
		}
		p = append(p, unknownMetrics(path, exprs, have)...)
	}
	return p, nil
}

// metricOf is the metric that a node defines, if it does.
func metricOf(n ast.Node) (name, help string, ok bool) {
	switch n := n.(type) {
	case *ast.CallExpr:
		if !slices.Contains(metricMakers, called(n)) || len(n.Args) < 2 {
			return "", "", false
		}
		name, named := literal(n.Args[0])
		help, helped := literal(n.Args[1])
		return metricPrefix + name, help, named && helped
	case *ast.CompositeLit:
		for _, el := range n.Elts {
			kv, isField := el.(*ast.KeyValueExpr)
			if !isField {
				continue
			}
			key, _ := kv.Key.(*ast.Ident)
			value, _ := literal(kv.Value)
			switch {
			case key == nil:
			case key.Name == "Name" && strings.HasPrefix(value, metricPrefix):
				name = value
			case key.Name == "Help":
				help = value
			}
		}
		return name, help, name != "" && help != ""
	}
	return "", "", false
}

// unknownMetrics finds what queries name and the broker does not have. A histogram is queried by its series.
func unknownMetrics(path string, exprs []string, have map[string]string) (p problems) {
	if len(exprs) == 0 {
		p.add(path, "no queries found")
	}
	for _, expr := range exprs {
		names := metricName.FindAllString(expr, -1)
		for _, name := range names {
			base := name
			for _, series := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, series)
			}
			if have[name] == "" && have[base] == "" {
				p.add(path, "%s does not exist", name)
			}
		}
	}
	return p
}

func dashboardQueries(text []byte) ([]string, error) {
	var dashboard struct {
		Title  string `json:"title"`
		Panels []struct {
			Type    string `json:"type"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		return nil, err //nolint:wrapcheck // the caller names the file
	}
	var exprs []string
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			return nil, fmt.Errorf("panel %q has no query", panel.Title)
		}
		for _, target := range panel.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	return exprs, nil
}

func alertQueries(text []byte) ([]string, error) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		return nil, err //nolint:wrapcheck // the caller names the file
	}
	var exprs []string
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || rule.Expr == "" || rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
				return nil, fmt.Errorf("rule %q lacks a name, an expression, a severity or a summary", rule.Alert)
			}
			exprs = append(exprs, rule.Expr)
		}
	}
	return exprs, nil
}
