package openapi

import (
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"gopkg.in/yaml.v3"
)

// small is the least description that loads.
const small = `
openapi: 3.0.3
info: {title: T, version: '1'}
x-profiles: {core: c}
x-capabilities: {clock: c}
x-requirement-prefixes: [http]
x-requirements:
  - {id: http.a.b, level: MUST, profile: core, text: T., source: S}
paths:
  /push:
    post:
      operationId: push
      x-access: write-only
      x-profile: core
      parameters:
        - {name: limit, in: query, schema: {type: integer}}
      requestBody:
        content:
          application/json:
            schema:
              type: object
              properties:
                items:
                  type: array
                  items:
                    type: object
                    properties:
                      queue: {type: string}
                      partition: {type: string}
                      transactionId: {type: string}
                      payload: {nullable: true, x-raw: true}
      responses:
        '200': {description: d}
      x-requirements:
        - {id: push.a.b, level: SHOULD, needs: [clock], text: T., source: S}
`

func loadText(t *testing.T, text string) (*Spec, error) {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return newSpec(doc.Content[0])
}

// TestBrokenDescriptions changes one thing in a description that loads and expects to be told.
func TestBrokenDescriptions(t *testing.T) {
	t.Parallel()
	if _, err := loadText(t, small); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"no access", "x-access: write-only", "summary: s", "x-access"},
		{"unknown access", "x-access: write-only", "x-access: root", `x-access "root"`},
		{"no operationId", "operationId: push\n", "summary: s\n", "no operationId"},
		{"no push", "operationId: push\n", "operationId: pull\n", "no operation push"},
		{"unknown profile", "x-profile: core", "x-profile: hard", `unknown x-profile "hard"`},
		{"default response", "'200':", "default:", "only statuses are supported"},
		{"array parameter", "in: query, schema: {type: integer}", "in: query, schema: {type: array, items: {type: string}}", "only scalars are supported"},
		{"boolean without words", "in: query, schema: {type: integer}", "in: query, schema: {type: boolean}", "x-boolean"},
		{"cookie", "in: query, schema: {type: integer}", "in: cookie, schema: {type: integer}", "in cookie is not supported"},
		{"broken reference", "queue: {type: string}", "queue: {$ref: '#/components/schemas/Missing'}", "Missing"},
		{"item without queue", "queue: {type: string}", "line: {type: string}", "lacks a property"},
		{"uncompiled push", "queue: {type: string}", "queue: {type: string, maxLength: 3}", "not compiled"},
		{"bad id", "id: push.a.b", "id: push", "not of the form"},
		{"unknown prefix", "id: push.a.b", "id: pull.a.b", "neither an operation nor a shared prefix"},
		{"repeated id", "id: push.a.b", "id: http.a.b", "defined twice"},
		{"bad level", "level: SHOULD", "level: OUGHT", `level "OUGHT"`},
		{"unknown need", "needs: [clock]", "needs: [luck]", `unknown capability "luck"`},
		{"no text", "needs: [clock], text: T.,", "needs: [clock],", "text and source are required"},
		{"unknown key", "needs: [clock],", "need: [clock],", "unknown key need"},
		{"shared without profile", "level: MUST, profile: core,", "level: MUST,", `unknown profile ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			broken := strings.Replace(small, c.old, c.new, 1)
			if broken == small {
				t.Fatalf("%q is not in the description", c.old)
			}
			if _, err := loadText(t, broken); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	parse := func(text string) *yaml.Node {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
			t.Fatal(err)
		}
		return doc.Content[0]
	}
	into := parse("paths: {/a: {get: {}}}\ncomponents: {schemas: {A: {}}}")
	if err := merge(into, parse("paths: {/b: {get: {}}}\ncomponents: {schemas: {B: {}}, responses: {R: {}}}"), 2); err != nil {
		t.Fatal(err)
	}
	if schemas := lookup(lookup(into, "components"), "schemas"); lookup(schemas, "A") == nil || lookup(schemas, "B") == nil || lookup(lookup(into, "paths"), "/b") == nil {
		t.Error("entries were lost")
	}
	for _, twice := range []string{"paths: {/a: {get: {}}}", "components: {schemas: {A: {}}}"} {
		if err := merge(into, parse(twice), 2); err == nil || !strings.Contains(err.Error(), "defined twice") {
			t.Errorf("%s: %v", twice, err)
		}
	}
}

// TestUnsupportedKeywords goes through what a node cannot express: each must be refused, or its rule would be lost.
func TestUnsupportedKeywords(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`, `{type: string, format: date-time}`, `{type: string, maxLength: 3}`, `{type: string, minLength: 2}`, `{type: string, pattern: 'a|b'}`, `{type: string, pattern: '^a+$'}`,
		`{type: string, pattern: '(?i)^abc$'}`, `{type: string, pattern: 'abc'}`, `{type: string, pattern: '^a*b$'}`, `{type: integer, enum: [1]}`, `{type: string, nullable: true, enum: [null]}`, `{type: string, enum: [true]}`,
		`{type: integer, multipleOf: 2}`, `{type: integer, minimum: 1, exclusiveMinimum: true}`, `{type: integer, maximum: 1, exclusiveMaximum: true}`,
		`{type: array, items: {type: string}, uniqueItems: true}`, `{type: array, items: {type: string, maxLength: 1}}`,
		`{type: object, minProperties: 1}`, `{type: object, maxProperties: 1}`, `{type: object, additionalProperties: {type: string}}`, `{type: object, required: [a]}`,
		`{type: object, properties: {a: {type: string, readOnly: true}}}`, `{type: object, properties: {a: {type: string, writeOnly: true}}}`,
		`{oneOf: [{type: string}, {type: string, minLength: 1}]}`, `{nullable: true, oneOf: [{type: string}]}`, `{oneOf: [{anyOf: [{type: string}]}]}`, `{anyOf: [{type: string}]}`, `{allOf: [{type: string}]}`, `{not: {type: string}}`, `{type: string, x-new: 1}`,
	} {
		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(strings.Replace(small, "queue: {type: string}", "queue: "+text, 1)), &doc); err != nil {
			t.Fatal(err)
		}
		if _, err := newSpec(doc.Content[0]); err == nil || !strings.Contains(err.Error(), "not compiled") {
			t.Errorf("%s: %v", text, err)
		}
	}
	loop := &openapi3.Schema{Type: &openapi3.Types{openapi3.TypeArray}}
	loop.Items = &openapi3.SchemaRef{Value: loop}
	if _, err := compile(loop.Items); err == nil {
		t.Error("a recursive schema was compiled")
	}
}

// TestPatterns compares compiled patterns with the regular expressions that they stand for.
func TestPatterns(t *testing.T) {
	t.Parallel()
	texts := []string{"", "a", "ab", "abc", "abcdefgh", "abcdefghi", "a\x00", "abcdefg\x7f", "abcdefg\x1f", "abcdefg\u0085", "\u0085", "é", "ééé", "12-3", "12-34", "１２-3", "a-b", "~~~~~~~~ ~", "abcdefgh\x80"[:8]}
	for _, expression := range []string{`^[^\x00-\x1f\x7f-\x9f]*$`, `^[a-z]*$`, `^[0-9]{2}-[0-9]$`, `^\d\d-\d{2}$`, `^[a-cé]{3}$`, `^abc$`, `^.*$`} {
		schema := openapi3.NewStringSchema().WithPattern(expression)
		n, err := compile(schema.NewRef())
		if err != nil {
			t.Logf("%s is left to kin: %v", expression, err)
			continue
		}
		for _, text := range texts {
			want := schema.VisitJSON(text) == nil
			if got := n.checkText([]byte(text)) == ""; got != want {
				t.Errorf("%s on %q: got %v, want %v", expression, text, got, want)
			}
		}
	}
}
