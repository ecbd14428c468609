package drift

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/openapi"
	"github.com/posthorn/posthorn/tools/internal/description"
)

// root is the checkout, seen from this package.
const root = "../../.."

// TestRepositoryHasNotDrifted runs each check on the repository itself.
func TestRepositoryHasNotDrifted(t *testing.T) {
	t.Parallel()
	s, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := Check(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Error(p)
	}
}

const goodBundle = `{
  "openapi": "3.0.3", "info": {"title": "T", "version": "1"},
  "tags": [{"name": "queue"}],
  "x-profiles": {"core": "C"}, "x-capabilities": {"clock": "K"}, "x-requirement-prefixes": ["http"],
  "x-errors": [
    {"id": "bad", "status": 400, "error": "bad body: <field> <rule>", "when": "w"},
    {"id": "unauthorized", "status": 401, "error": "Unauthorized", "when": "w"},
    {"id": "forbidden", "status": 403, "error": "Insufficient permissions", "when": "w"},
    {"id": "large", "status": 413, "error": "body exceeds 9 bytes", "when": "w"}
  ],
  "paths": {"/push": {"post": {
    "operationId": "push", "tags": ["queue"], "summary": "Push", "x-access": "write-only",
    "parameters": [{"name": "p", "in": "query", "description": "D", "schema": {"type": "string"}}],
    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}, "example": {}}}},
    "responses": {
      "201": {"description": "d", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}, "example": {}}}},
      "400": {"$ref": "#/components/responses/E"}, "401": {"$ref": "#/components/responses/E"},
      "403": {"$ref": "#/components/responses/E"}, "413": {"$ref": "#/components/responses/E"}
    }
  }}},
  "components": {
    "schemas": {"S": {"type": "object", "properties": {"a": {"type": "string"}}}},
    "responses": {"E": {"description": "d", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}, "example": {}}}}}
  }
}`

func goodRequirements() []openapi.Requirement {
	return []openapi.Requirement{
		{ID: "push.one", Level: "MUST", Profile: "core", Source: "s", Text: "It does.", Needs: []string{"clock"}},
		{ID: "http.two-words.three", Level: "SHOULD", Profile: "core", Source: "s", Text: "It should."},
		{ID: "push.far", Level: "MUST", Profile: "core", Source: "s", Text: "It does.", Untestable: "because"},
	}
}

func subject(t *testing.T, replace ...string) Subject {
	t.Helper()
	doc, err := description.Parse([]byte(strings.NewReplacer(replace...).Replace(goodBundle)))
	if err != nil {
		t.Fatal(err)
	}
	return Subject{Document: doc, Requirements: goodRequirements()}
}

// expect checks that each of want is said by exactly one problem, and that nothing else is said.
func expect(t *testing.T, got []Problem, want ...string) {
	t.Helper()
	left := slices.Clone(got)
	for _, w := range want {
		i := slices.IndexFunc(left, func(p Problem) bool { return strings.Contains(p.String(), w) })
		if i < 0 {
			t.Errorf("no problem says %q in %v", w, got)
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, p := range left {
		t.Errorf("unexpected: %v", p)
	}
}

func TestOperationsFindsEachDefect(t *testing.T) {
	t.Parallel()
	expect(t, Operations(subject(t)))
	for _, c := range []struct{ old, replacement, want string }{
		{`"x-access": "write-only"`, `"x-access": "writers"`, `x-access "writers"`},
		{`"tags": ["queue"]`, `"tags": ["other"]`, "tags"},
		{`"summary": "Push"`, `"summary": ""`, "no summary"},
		{`"description": "D", `, ``, "parameter p has no description"},
		{`"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}, "example": {}}}}`, `"requestBody": {"content": {"application/json": {}}}`, "request body application/json has no example"},
		{`"201": {"description": "d", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}, "example": {}}}}`, `"201": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S"}}}}`, "answer 201 has no example"},
		{`"400": {"$ref": "#/components/responses/E"}, `, ``, "no answer 400"},
		{`"401": {"$ref": "#/components/responses/E"},`, ``, "no answer 401"},
		{`"413": {"$ref": "#/components/responses/E"}`, `"413": {"$ref": "#/components/responses/E"}, "418": {"$ref": "#/components/responses/E"}`, "answer 418 is not in the error catalogue"},
		{`"201": {`, `"409": {`, "no successful answer"},
	} {
		if !strings.Contains(goodBundle, c.old) {
			t.Fatalf("the fixture has no %s", c.old)
		}
		got := Operations(subject(t, c.old, c.replacement))
		if c.replacement == `"409": {` {
			expect(t, got, c.want, "answer 409")
			continue
		}
		expect(t, got, c.want)
	}
	expect(t, Operations(subject(t, `"operationId": "push", `, ``)), "no operationId")
}

func TestRequirementsFindsEachDefect(t *testing.T) {
	t.Parallel()
	s := subject(t)
	expect(t, Requirements(s))
	for _, c := range []struct {
		change func(*openapi.Requirement)
		want   string
	}{
		{func(r *openapi.Requirement) { r.ID = "push.Upper" }, "in lower case"},
		{func(r *openapi.Requirement) { r.ID = "pull.one" }, `"pull" is neither`},
		{func(r *openapi.Requirement) { r.ID = "push.far" }, "used twice"},
		{func(r *openapi.Requirement) { r.Level = "must" }, `level "must"`},
		{func(r *openapi.Requirement) { r.Profile = "extra" }, `profile "extra"`},
		{func(r *openapi.Requirement) { r.Needs = []string{"luck"} }, `capability "luck"`},
		{func(r *openapi.Requirement) { r.Source = "" }, "no source"},
		{func(r *openapi.Requirement) { r.Text = "It does" }, "no sentence"},
	} {
		s.Requirements = goodRequirements()
		c.change(&s.Requirements[0])
		expect(t, Requirements(s), c.want)
	}
	s.Requirements = nil
	expect(t, Requirements(s), "no requirements")
}

func goFile(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const goodErrors = `package api
import ("errors"; "fmt")
const oops = "internal error"
var errBusy = errors.New("busy")
func checkText(e error) string { return "bad " + place + ": " + e.Error() }
func answer(e error) {
	errorAnswer(400, checkText(e))
	errorAnswer(401, "Unauthorized")
	errorAnswer(403, "Insufficient permissions")
	errorAnswer(413, fmt.Sprintf("body exceeds %d bytes", limit))
}
`

func TestErrorsFindsDriftInBothDirections(t *testing.T) {
	t.Parallel()
	s := subject(t)
	check := func(text string, want ...string) {
		t.Helper()
		got, err := Errors(s, goFile(t, "errors.go", text))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, got, want...)
	}
	check(goodErrors)
	check(goodErrors+"func f() { errorAnswer(500, oops) }", `"internal error", which is not in the catalogue`)
	check(goodErrors+"func f() { errorAnswer(429, errBusy.Error()) }", `"busy", which is not in the catalogue`)
	check(goodErrors+"func f() { jsonAnswer(400, []byte(`{\"error\":\"odd\"}`)) }", `"odd", which is not in the catalogue`)
	check(strings.Replace(goodErrors, "exceeds", "is over", 1), "error large: the broker answers no such text", `"body is over … bytes", which is not`)
	check("package api", "no error texts found", "error bad: ", "error unauthorized: ", "error forbidden: ", "error large: ")
	if _, err := Errors(s, filepath.Join(t.TempDir(), "gone.go")); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestClientFindsMissingMethods(t *testing.T) {
	t.Parallel()
	s := subject(t)
	check := func(text string) string {
		t.Helper()
		got, err := Client(s, filepath.Dir(goFile(t, "client.go", text)))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, p := range got {
			if !strings.Contains(p.What, "that is not described") { // of the fixture's one operation
				lines = append(lines, p.String())
			}
		}
		return strings.Join(lines, "\n")
	}
	if got := check("package p\nfunc (c *Client) Push() {}"); got != "" {
		t.Error(got)
	}
	for _, text := range []string{"package p\nfunc Push() {}", "package p\nfunc (c *Other) Push() {}", "package p\nfunc (c Client) push() {}"} {
		if got := check(text); got != "operation push: the client has no method Push" {
			t.Errorf("%q: %q", text, got)
		}
	}
	stale, err := Client(s, filepath.Dir(goFile(t, "client.go", "package p")))
	if err != nil || !strings.Contains(stale[len(stale)-1].What, "not described") {
		t.Errorf("stale entries: %v, %v", stale, err)
	}
}

func TestSpecsFindsUntestedRequirements(t *testing.T) {
	t.Parallel()
	s := subject(t)
	check := func(text string, want ...string) {
		t.Helper()
		got, err := Specs(s, filepath.Dir(goFile(t, "push.go", text)))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, got, want...)
	}
	check("package p\nvar _ = suite.Requirement(\"push.one\", nil)")
	check("package p\nvar _ = Requirement(`push.one`, nil)\nvar _ = Requirement(\"push.two\", nil)", "requirement push.two: a conformance spec tests it but")
	check("package p\nvar _ = Requirement(\"push.one\", nil)\nvar _ = Requirement(\"push.far\", nil)", "requirement push.far: has a conformance spec although")
	check("package p\nvar _ = Requirement(\"http.two-words.three\", nil) // Requirement(\"push.one\")", "requirement push.one: no conformance spec")
	check("package p", "no conformance specs found", "requirement push.one: no conformance spec")

	s.Requirements[0].Needs = []string{"clock", "restart"}
	check("package p\nvar _ = Requirement(\"http.two-words.three\", nil)")
	check("package p\nvar _ = Requirement(\"push.one\", nil)", "requirement push.one: is tested although")
}

func TestConfigurationComparesBothWays(t *testing.T) {
	t.Parallel()
	code := goFile(t, "settings.go", "package app\nvar s = []setting{{flag: \"listen\", env: []string{\"LISTEN\", \"ADDRESS_2\"}}, {env: []string{\"PORT\"}}}")
	check := func(document string, want ...string) {
		t.Helper()
		got, err := Configuration(code, goFile(t, "configuration.md", document))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, got, want...)
	}
	check("| `--listen` | `LISTEN`, `ADDRESS_2` | `OTHER` |\n| | `PORT` | |")
	check("| `--listen` | `LISTEN` | |\n| `--old` | `PORT` | |", "ADDRESS_2 is not described", "--old does not exist")
	code = goFile(t, "settings.go", "package app")
	check("", "no settings found")
}

func TestMetricsAreComparedWithWhatNamesThem(t *testing.T) {
	t.Parallel()
	const code = "package p\nvar a = counter(\"a_total\", \"Counts a.\")\nvar b = Opts{Name: \"posthorn_b\", Help: \"B.\"}"
	const document = "| `posthorn_a_total` | counter | – | Counts a. |\n| `posthorn_b` | histogram | – | B. |\n"
	const dashboard = `{"panels": [{"type": "row"}, {"type": "x", "title": "T", "targets": [{"expr": "rate(posthorn_b_bucket[1m])"}]}]}`
	const alerts = "groups: [{rules: [{alert: A, expr: posthorn_a_total > 0, labels: {severity: s}, annotations: {summary: s}}]}]"
	check := func(code, document, dashboard, alerts string, want ...string) {
		t.Helper()
		dir := t.TempDir()
		for name, text := range map[string]string{"m.go": code, "metrics.md": document, "grafana-dashboard.json": dashboard, "alerts.yaml": alerts} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Metrics(dir, dir)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, got, want...)
	}
	change := func(text, old, replacement string) string {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Fatalf("the fixture has no %s", old)
		}
		return strings.Replace(text, old, replacement, 1)
	}
	check(code, document, dashboard, alerts)
	check(change(code, "Counts a.", "Counts."), document, dashboard, alerts, "is described as")
	check(code+"\nvar c = gauge(\"c\", \"C.\", f)", document, dashboard, alerts, "posthorn_c is not described")
	check(code, document+"| `posthorn_d` | gauge | – | D. |\n", dashboard, alerts, "posthorn_d does not exist")
	check(code, document, change(dashboard, "b_bucket", "e"), alerts, "dashboard.json: posthorn_e does not exist")
	check(code, document, change(dashboard, `{"expr": "rate(posthorn_b_bucket[1m])"}`, ""), alerts, `panel "T" has no query`)
	check(code, document, "{", alerts, "cannot be read")
	check(code, document, dashboard, change(alerts, "a_total", "f"), "alerts.yaml: posthorn_f does not exist")
	check(code, document, dashboard, change(alerts, "severity", "level"), "lacks a name")
	check("package p", "", dashboard, alerts, "no metrics found", "posthorn_b_bucket does not exist", "posthorn_a_total does not exist")
}

func TestLinksAreFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.md": "# One\n[b](b.md#two-words) [here](#one) [web](https://example.org/x) [gone](c.md) [head](b.md#three)\n```\n[in code](d.md)\n```\n",
		"b.md": "## Two `words`!\n```\n# Three\n```\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Links(dir)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, got, "link to c.md: no such file", "link to b.md#three: no such heading")
	got, err = Links(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, got, "no documents found")
}
