// Package reference renders the API reference from the API description: Markdown pages, one for each surface and an
// index, and the same as one self-contained HTML page.
//
// It promises the same bytes for the same description, so that generated pages can be committed and compared. It
// assumes a description that the drift checks accept, and fails on a reference to a schema that does not exist.
package reference

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/posthorn/posthorn/openapi"
	"github.com/posthorn/posthorn/tools/internal/description"
)

// IndexName is the file name of the index page.
const IndexName = "README.md"

const generated = "<!-- Generated from the API description by `make docs`. Do not edit. -->\n\n"

// Page is one generated file.
type Page struct {
	Name  string // file name
	Title string
	Text  []byte // Markdown
}

// Pages renders the index, which comes first, and a page for each surface.
func Pages(doc *description.Document, requirements []openapi.Requirement) ([]Page, error) {
	w := writer{doc: doc, byID: map[string]openapi.Requirement{}}
	for _, r := range requirements {
		w.byID[r.ID] = r
		w.order = append(w.order, r.ID)
	}
	pages := []Page{{Name: IndexName, Title: doc.Info.Title + " API", Text: w.index()}}
	for _, tag := range doc.Tags {
		text, err := w.surface(tag)
		if err != nil {
			return nil, fmt.Errorf("surface %s: %w", tag.Name, err)
		}
		pages = append(pages, Page{Name: pageName(tag.Name), Title: surfaceTitle(tag), Text: text})
	}
	return pages, nil
}

func pageName(tag string) string { return tag + ".md" }

func surfaceTitle(tag description.Tag) string { return upperFirst(tag.Name) + " API" }

// writer renders pages.
type writer struct {
	doc   *description.Document
	byID  map[string]openapi.Requirement
	order []string // requirement ids in document order
	out   bytes.Buffer
	// used are the schemas that the current page refers to, in order of appearance.
	used []string
}

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(&w.out, format, args...) }

func (w *writer) start() {
	w.out.Reset()
	w.used = nil
	w.out.WriteString(generated)
}

func (w *writer) index() []byte {
	w.start()
	w.printf("# %s API\n\n%s\n", w.doc.Info.Title, strings.TrimSpace(w.doc.Info.Description))
	w.printf("\nThis is version %s of the description, which a running broker serves at `/openapi.json`.\n", w.doc.Info.Version)
	w.printf("\n## Operations\n\n| operation | route | access | |\n|---|---|---|---|\n")
	for _, tag := range w.doc.Tags {
		for _, op := range w.operations(tag) {
			w.printf("| [%s](%s#%s) | `%s %s` | %s | %s |\n", op.ID, pageName(tag.Name), anchor(op.ID), op.Method, op.Path, op.Access, cell(op.Summary))
		}
	}
	w.printf("\n## Errors\n\n")
	w.printf("The body of an error is `{\"error\": \"<text>\"}`, with a `code` where the table names one.\n\n")
	w.printf("| status | error | code | when |\n|---|---|---|---|\n")
	for _, e := range w.doc.Errors {
		w.printf("| %d | %s | %s | %s |\n", e.Status, code(e.Error), code(e.Code), cell(e.When))
	}
	w.printf("\n## Profiles\n\nA conformance profile is a set of requirements that an implementation claims as a whole.\n\n")
	w.printf("| profile | requirements | |\n|---|---|---|\n")
	count := map[string]int{}
	for _, r := range w.byID {
		count[r.Profile]++
	}
	for _, name := range slices.Sorted(maps.Keys(w.doc.Profiles)) {
		w.printf("| %s | %d | %s |\n", name, count[name], cell(w.doc.Profiles[name]))
	}
	w.printf("\nA requirement that needs a capability is tested where the target declares it.\n\n| capability | |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(w.doc.Capabilities)) {
		w.printf("| %s | %s |\n", name, cell(w.doc.Capabilities[name]))
	}
	for _, prefix := range w.doc.Prefixes {
		w.printf("\n## Requirements: %s\n\nThese hold for every operation.\n\n", prefix)
		w.requirements(w.withPrefix(prefix))
	}
	return bytes.Clone(w.out.Bytes())
}

func (w *writer) surface(tag description.Tag) ([]byte, error) {
	w.start()
	w.printf("# %s\n\n%s\n", surfaceTitle(tag), tag.Description)
	ops := w.operations(tag)
	w.printf("\n| operation | route | |\n|---|---|---|\n")
	for _, op := range ops {
		w.printf("| [%s](#%s) | `%s %s` | %s |\n", op.ID, anchor(op.ID), op.Method, op.Path, cell(op.Summary))
	}
	for _, op := range ops {
		if err := w.operation(op); err != nil {
			return nil, fmt.Errorf("operation %s: %w", op.ID, err)
		}
	}
	if len(w.used) > 0 {
		w.printf("\n## Schemas\n")
	}
	for i := 0; i < len(w.used); i++ { // rendering a schema may add further ones
		if err := w.schema(w.used[i]); err != nil {
			return nil, err
		}
	}
	return bytes.Clone(w.out.Bytes()), nil
}

// operations are those of a surface, in document order.
func (w *writer) operations(tag description.Tag) []*description.Operation {
	return slices.DeleteFunc(w.doc.Operations(), func(op *description.Operation) bool { return !slices.Contains(op.Tags, tag.Name) })
}

func (w *writer) operation(op *description.Operation) error {
	w.printf("\n## %s\n\n%s: `%s %s`, access %s.\n", op.ID, strings.TrimSuffix(op.Summary, "."), op.Method, op.Path, op.Access)
	if text := strings.TrimSpace(op.Description); text != "" {
		w.printf("\n%s\n", text)
	}
	if len(op.Parameters) > 0 {
		w.printf("\n### Parameters of %s\n\n| name | in | type | default | |\n|---|---|---|---|---|\n", op.ID)
		for _, p := range op.Parameters {
			t, rules, s, err := w.typeOf(p.Schema)
			if err != nil {
				return err
			}
			if p.Boolean {
				rules = append(rules, "also 1, 0, yes, no")
			}
			def := "required"
			if !p.Required {
				def = code(string(s.Default))
			}
			w.printf("| `%s` | %s | %s | %s | %s |\n", p.Name, p.In, t, def, describe(p.Description, rules))
		}
	}
	if err := w.request(op); err != nil {
		return err
	}
	if err := w.answers(op); err != nil {
		return err
	}
	own := w.withPrefix(op.ID)
	if len(own) > 0 {
		w.printf("\n### Requirements of %s\n\n", op.ID)
		w.requirements(own)
	}
	if shared := w.shared(op); len(shared) > 0 {
		w.printf("\nRequirements shared with other operations:")
		for i, group := range shared {
			if i > 0 {
				w.printf(",")
			}
			w.printf(" %d of [%s](#%s)", group.n, group.prefix, anchor("requirements of "+group.prefix))
		}
		w.printf(".\n")
	}
	return nil
}

type group struct {
	prefix string
	n      int
}

// shared counts the requirements that hold for op but are named after another operation.
func (w *writer) shared(op *description.Operation) []group {
	count := map[string]int{}
	for _, id := range w.doc.RequirementIDs(op) {
		if prefix, _, _ := strings.Cut(id, "."); prefix != op.ID && !slices.Contains(w.doc.Prefixes, prefix) {
			count[prefix]++
		}
	}
	var groups []group
	for _, prefix := range slices.Sorted(maps.Keys(count)) {
		groups = append(groups, group{prefix, count[prefix]})
	}
	return groups
}

func (w *writer) withPrefix(prefix string) []openapi.Requirement {
	var list []openapi.Requirement
	for _, id := range w.order {
		if strings.HasPrefix(id, prefix+".") {
			list = append(list, w.byID[id])
		}
	}
	return list
}

func (w *writer) requirements(list []openapi.Requirement) {
	w.printf("| id | level | profile | |\n|---|---|---|---|\n")
	for _, r := range list {
		text := cell(r.Text)
		if len(r.Needs) > 0 {
			text += " Needs " + strings.Join(r.Needs, ", ") + "."
		}
		if r.Untestable != "" {
			text += " Not tested: " + cell(r.Untestable) + "."
		}
		w.printf("| `%s` | %s | %s | %s |\n", r.ID, r.Level, r.Profile, text)
	}
}

const jsonMedia = "application/json"

func (w *writer) request(op *description.Operation) error {
	curl := w.curl(op)
	if op.Body == nil {
		w.printf("\n### Example of %s\n\n```bash\n%s\n```\n", op.ID, curl)
		return nil
	}
	w.printf("\n### Request of %s\n", op.ID)
	media := op.Body.Content[jsonMedia]
	t, rules, _, err := w.typeOf(media.Schema)
	if err != nil {
		return err
	}
	w.printf("\nBody: %s.", t)
	if len(rules) > 0 {
		w.printf(" %s.", upperFirst(strings.Join(rules, "; ")))
	}
	if op.Body.Lenient {
		w.printf(" The body never fails the request: what is not valid counts as omitted.")
	}
	w.printf("\n\n```bash\n%s\n```\n", curl)
	return nil
}

func (w *writer) answers(op *description.Operation) error {
	w.printf("\n### Answers of %s\n\n| status | body | |\n|---|---|---|\n", op.ID)
	statuses := slices.Sorted(maps.Keys(op.Responses))
	for _, status := range statuses {
		r := op.Responses[status]
		body := "none"
		for _, media := range slices.Sorted(maps.Keys(r.Content)) {
			body = media
			if media == jsonMedia {
				t, _, _, err := w.typeOf(r.Content[media].Schema)
				if err != nil {
					return err
				}
				body = t
			}
		}
		w.printf("| %s | %s | %s", status, body, cell(r.Description))
		for _, header := range slices.Sorted(maps.Keys(r.Headers)) {
			w.printf(" Header `%s`: %s", header, cell(r.Headers[header].Description))
		}
		w.printf(" |\n")
	}
	for _, status := range statuses {
		if s := op.Responses[status].Content[jsonMedia].Schema; s != nil && s.Ref == "" && len(s.Properties.Keys) > 0 {
			w.printf("\nBody of `%s`:\n", status)
			if err := w.fields(s); err != nil {
				return err
			}
		}
	}
	for _, status := range statuses {
		example := op.Responses[status].Content[jsonMedia].Example
		if len(example) > 0 && status < "300" {
			w.printf("\n`%s`:\n\n```json\n%s\n```\n", status, indent(example))
		}
	}
	return nil
}

// curl renders a request that sends the operation's examples.
func (w *writer) curl(op *description.Operation) string {
	path, query := op.Path, url.Values{}
	for _, p := range op.Parameters {
		if len(p.Example) == 0 {
			continue
		}
		value := strings.Trim(string(p.Example), `"`)
		switch p.In {
		case "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case "query":
			query.Set(p.Name, value)
		}
	}
	target := "http://localhost:6632"
	if len(w.doc.Servers) > 0 {
		target = w.doc.Servers[0].URL
	}
	target += path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	b := strings.Builder{}
	b.WriteString("curl -sS ")
	if op.Method != "GET" {
		b.WriteString("-X " + op.Method + " ")
	}
	b.WriteString(quote(target))
	if op.Body != nil {
		if example := op.Body.Content[jsonMedia].Example; len(example) > 0 {
			b.WriteString(" \\\n  -H 'content-type: application/json' \\\n  -d " + quote(compact(example)))
		}
	}
	return b.String()
}

// quote quotes an argument for a shell.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (w *writer) schema(name string) error {
	s := w.doc.Components.Schemas[name]
	w.printf("\n### %s\n", name)
	if s.Description != "" {
		w.printf("\n%s\n", strings.TrimSpace(s.Description))
	}
	switch {
	case len(s.OneOf)+len(s.AnyOf) > 0:
		var alternatives []string
		for _, alternative := range slices.Concat(s.OneOf, s.AnyOf) {
			t, _, _, err := w.typeOf(alternative)
			if err != nil {
				return err
			}
			alternatives = append(alternatives, t)
		}
		w.printf("\nOne of: %s.\n", strings.Join(alternatives, ", "))
	case len(s.AllOf) > 0:
		for _, part := range s.AllOf {
			t, _, _, err := w.typeOf(part)
			if err != nil {
				return err
			}
			w.printf("\nAll of %s.\n", t)
		}
	case s.Items != nil:
		t, rules, _, err := w.typeOf(s)
		if err != nil {
			return err
		}
		w.printf("\n%s.%s\n", upperFirst(t), sentence(rules))
	default:
		return w.fields(s)
	}
	return nil
}

func sentence(rules []string) string {
	if len(rules) == 0 {
		return ""
	}
	return " " + upperFirst(strings.Join(rules, "; ")) + "."
}

// fields renders the properties of an object as a table.
func (w *writer) fields(s *description.Schema) error {
	if len(s.Properties.Keys) == 0 {
		return nil
	}
	w.printf("\n| field | type | default | |\n|---|---|---|---|\n")
	return w.rows("", s)
}

// rows renders a row for each property, and those of objects that are written in place below theirs.
func (w *writer) rows(prefix string, s *description.Schema) error {
	for name, field := range s.Properties.All() {
		t, rules, resolved, err := w.typeOf(field)
		if err != nil {
			return err
		}
		def := code(string(resolved.Default))
		if slices.Contains(s.Required, name) {
			def = "required"
		}
		path := prefix + name
		w.printf("| `%s` | %s | %s | %s |\n", path, t, def, describe(cmp.Or(field.Description, resolved.Description), rules))
		inner := field
		if field.Ref == "" && field.Items != nil {
			path, inner = path+"[]", field.Items
		}
		if inner.Ref == "" {
			if err := w.rows(path+".", inner); err != nil {
				return err
			}
		}
	}
	return nil
}

// typeOf names the type of a schema and says its rules. Objects and other composed schemas that have a name are linked
// and rendered once on the page; scalars are written out where they are used.
func (w *writer) typeOf(s *description.Schema) (text string, rules []string, resolved *description.Schema, err error) {
	if s == nil {
		return "any", nil, &description.Schema{}, nil
	}
	name, resolved, err := w.doc.Schema(s)
	if err != nil {
		return "", nil, nil, err
	}
	composed := len(resolved.Properties.Keys)+len(resolved.OneOf)+len(resolved.AnyOf)+len(resolved.AllOf) > 0 || resolved.Items != nil
	switch {
	case name != "" && composed:
		if !slices.Contains(w.used, name) {
			w.used = append(w.used, name)
		}
		text = fmt.Sprintf("[%s](#%s)", name, anchor(name))
		return orNull(text, resolved), nil, resolved, nil
	case resolved.Raw:
		return "any JSON value", nil, resolved, nil
	case resolved.Items != nil:
		item, itemRules, _, err := w.typeOf(resolved.Items)
		if err != nil {
			return "", nil, nil, err
		}
		text = "array of " + item
		for _, rule := range itemRules {
			rules = append(rules, "each "+rule)
		}
		rules = append(rules, bounds(resolved)...)
	case len(resolved.OneOf)+len(resolved.AnyOf) > 0:
		var alternatives []string
		for _, alternative := range slices.Concat(resolved.OneOf, resolved.AnyOf) {
			t, _, _, err := w.typeOf(alternative)
			if err != nil {
				return "", nil, nil, err
			}
			alternatives = append(alternatives, t)
		}
		text = strings.Join(alternatives, " or ")
	default:
		text, rules = cmp.Or(resolved.Type, "any"), bounds(resolved)
	}
	return orNull(text, resolved), rules, resolved, nil
}

func orNull(text string, s *description.Schema) string {
	if s.Nullable && !s.Raw {
		return text + " or null"
	}
	return text
}

// bounds says the rules of a schema by itself.
func bounds(s *description.Schema) []string {
	var rules []string
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			values = append(values, code(string(v)))
		}
		rule := "one of "
		if len(values) == 1 {
			rule = "always "
		}
		rules = append(rules, rule+strings.Join(values, ", "))
	}
	switch s.Format {
	case "":
	case "uuid":
		rules = append(rules, "UUID")
	default:
		rules = append(rules, s.Format)
	}
	rules = appendRange(rules, "", number(s.Minimum), number(s.Maximum))
	if s.MaxBytes != nil {
		rules = appendRange(rules, " bytes of UTF-8", length(s.MinLength), length(s.MaxBytes))
	} else {
		rules = appendRange(rules, " characters", length(s.MinLength), length(s.MaxLength))
	}
	return appendRange(rules, " items", length(s.MinItems), length(s.MaxItems))
}

func appendRange(rules []string, unit, low, high string) []string {
	switch {
	case low == "1" && high == "" && unit != "":
		return append(rules, "not empty")
	case low != "" && high != "":
		return append(rules, low+" to "+high+unit)
	case low != "":
		return append(rules, "at least "+low+unit)
	case high != "":
		return append(rules, "at most "+high+unit)
	}
	return rules
}

// number is a bound, "" when there is none. The ends of the 32-bit range say how a number is stored, not what it means.
func number(n *json.Number) string {
	if n == nil || n.String() == "2147483647" || n.String() == "-2147483648" {
		return ""
	}
	return n.String()
}

func length(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

// describe joins a description and the rules, for a table cell.
func describe(text string, rules []string) string {
	text = cell(text)
	if len(rules) == 0 {
		return text
	}
	return strings.TrimSpace(text + " " + upperFirst(strings.Join(rules, "; ")) + ".")
}

// cell makes one line of a text, and keeps what is special to a table or to HTML from being taken as such.
func cell(text string) string {
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
	parts := strings.Split(text, "`")
	for i := 0; i < len(parts); i += 2 { // every other part is code, where nothing is special
		parts[i] = strings.ReplaceAll(parts[i], "<", `\<`)
	}
	return strings.Join(parts, "`")
}

// code renders a value as code, "" as nothing.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}

// anchor is the fragment that Markdown renderers give a heading.
func anchor(heading string) string {
	return strings.ReplaceAll(strings.ToLower(heading), " ", "-")
}

func upperFirst(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func indent(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

func compact(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}
