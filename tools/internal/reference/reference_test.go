package reference

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/posthorn/posthorn/openapi"
	"github.com/posthorn/posthorn/tools/internal/description"
)

func repositoryPages(t *testing.T) []Page {
	t.Helper()
	spec, err := openapi.Load()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := description.Parse(spec.JSON())
	if err != nil {
		t.Fatal(err)
	}
	pages, err := Pages(doc, spec.Requirements())
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

func TestCommittedReferenceIsWhatTheDescriptionSays(t *testing.T) {
	t.Parallel()
	stale, err := Compare("../../../docs/reference", repositoryPages(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(stale) > 0 {
		t.Errorf("docs/reference differs in %v: run make docs", stale)
	}
}

func TestReferenceNamesEverything(t *testing.T) {
	t.Parallel()
	spec, err := openapi.Load()
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for _, p := range repositoryPages(t) {
		all.Write(p.Text)
	}
	for _, op := range spec.Operations() {
		if !strings.Contains(all.String(), "\n## "+op.ID+"\n") || !strings.Contains(all.String(), op.Method+" "+op.Path) {
			t.Errorf("operation %s is missing", op.ID)
		}
	}
	for _, r := range spec.Requirements() {
		if n := strings.Count(all.String(), "| `"+r.ID+"` |"); n != 1 {
			t.Errorf("requirement %s stands there %d times", r.ID, n)
		}
	}
}

func TestPagesAreTheSameEachTime(t *testing.T) {
	t.Parallel()
	first := repositoryPages(t)
	for range 3 {
		for i, p := range repositoryPages(t) {
			if !bytes.Equal(p.Text, first[i].Text) {
				t.Fatalf("%s differs from the time before", p.Name)
			}
		}
	}
}

var (
	id   = regexp.MustCompile(` id="([^"]+)"`)
	link = regexp.MustCompile(`href="([^"]+)"`)
)

// TestEveryLinkLeadsSomewhere follows the links of the HTML page, which has those of all pages.
func TestEveryLinkLeadsSomewhere(t *testing.T) {
	t.Parallel()
	html, err := HTML(repositoryPages(t))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, m := range id.FindAllSubmatch(html, -1) {
		if ids[string(m[1])] {
			t.Errorf("id %s is used twice", m[1])
		}
		ids[string(m[1])] = true
	}
	links := link.FindAllSubmatch(html, -1)
	if len(links) < 50 {
		t.Errorf("only %d links", len(links))
	}
	for _, m := range links {
		target, local := strings.CutPrefix(string(m[1]), "#")
		if !local || !ids[target] {
			t.Errorf("link to %s leads nowhere in the page", m[1])
		}
	}
	for _, external := range []string{"<script", "src=", "@import", "url("} {
		if bytes.Contains(html, []byte(external)) {
			t.Errorf("the page is not self-contained: %s", external)
		}
	}
}

const fixture = `{"info": {"title": "T", "version": "1"}, "tags": [{"name": "queue", "description": "D"}],
"servers": [{"url": "http://h:1"}],
"paths": {"/q/{queue}": {"post": {"operationId": "op", "tags": ["queue"], "summary": "Do it", "x-access": "public",
  "parameters": [
    {"name": "queue", "in": "path", "required": true, "description": "Q", "example": "a b", "schema": {"type": "string", "minLength": 1}},
    {"name": "n", "in": "query", "description": "a | b", "example": 3, "schema": {"type": "integer", "default": 7, "minimum": 1, "maximum": 2147483647}}],
  "requestBody": {"content": {"application/json": {"example": {"z": "it's", "a": 1}, "schema": {"$ref": "#/components/schemas/In"}}}},
  "responses": {"200": {"description": "Fine <b>.", "content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/In"}}, "example": []}}}}}}},
"components": {"schemas": {"In": {"type": "object", "required": ["z"], "properties": {
  "z": {"type": "string", "x-maxBytes": 9, "enum": ["x", "y"]},
  "a": {"nullable": true, "x-raw": true},
  "o": {"type": "array", "maxItems": 4, "items": {"type": "object", "properties": {"deep": {"type": "boolean", "nullable": true}}}}}}}}}`

func TestRenderingOfEachPart(t *testing.T) {
	t.Parallel()
	doc, err := description.Parse([]byte(fixture))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := Pages(doc, []openapi.Requirement{{ID: "op.a", Level: "MUST", Text: "It does.", Needs: []string{"clock"}, Untestable: "far away"}})
	if err != nil {
		t.Fatal(err)
	}
	text := string(pages[1].Text)
	for _, want := range []string{
		"Do it: `POST /q/{queue}`, access public.",
		"| `queue` | path | string | required | Q Not empty. |",
		"| `n` | query | integer | `7` | a \\| b At least 1. |",
		`curl -sS -X POST 'http://h:1/q/a%20b?n=3'`,
		`-d '{"z":"it'\''s","a":1}'`,
		"| 200 | array of [In](#in) | Fine \\<b>. |",
		"| `z` | string | required | One of `\"x\"`, `\"y\"`; at most 9 bytes of UTF-8. |",
		"| `a` | any JSON value |  |  |",
		"| `o` | array of object |  | At most 4 items. |\n| `o[].deep` | boolean or null |  |  |",
		"| `op.a` | MUST |  | It does. Needs clock. Not tested: far away. |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if strings.Index(text, "| `z` |") > strings.Index(text, "| `a` |") {
		t.Error("fields are not in document order")
	}
}

func TestCompareAndWrite(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "reference")
	pages := []Page{{Name: "a.md", Text: []byte("A")}, {Name: "b.md", Text: []byte("B")}}
	stale := func(want ...string) {
		t.Helper()
		got, err := Compare(dir, pages)
		if err != nil || strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("stale %v, want %v (%v)", got, want, err)
		}
	}
	stale("a.md", "b.md")
	if err := Write(dir, pages); err != nil {
		t.Fatal(err)
	}
	stale()
	for name, text := range map[string]string{"b.md": "changed", "old.md": "left over"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stale("b.md", "old.md")
	if err := Write(dir, pages); err != nil {
		t.Fatal(err)
	}
	stale()
}

func TestReferencesThatLeadNowhereAreErrors(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"#/components/schemas/In", "#/components/schemas/Out"}, {`"requestBody": {`, `"requestBody": {"$ref": "#/components/requestBodies/B", `}} {
		doc, err := description.Parse([]byte(strings.ReplaceAll(fixture, c[0], c[1])))
		if err == nil {
			_, err = Pages(doc, nil)
		}
		if err == nil {
			t.Errorf("%s was accepted", c[1])
		}
	}
}
