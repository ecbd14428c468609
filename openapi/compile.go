package openapi

import (
	"fmt"
	"maps"
	"math"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// kind is a set of JSON kinds.
type kind uint8

const (
	kindNull kind = 1 << iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
	anyKind = kindNull | kindBool | kindNumber | kindString | kindArray | kindObject
)

// node is one compiled schema.
type node struct {
	kinds   kind
	raw     bool   // any JSON value, not looked into
	wrong   string // the rule broken by a value of another kind
	integer bool

	minimum, maximum float64 // ±Inf when unbounded

	minLength int // in characters; 0 or 1
	maxBytes  int
	pattern   *pattern
	uuid      bool
	enum      []string
	anyText   bool    // none of the rules above
	bools     [2]bool // whether false and true are allowed

	items              *node // nil: any
	minItems, maxItems int

	props    []property
	required uint64 // bits of props
	longest  int    // bytes of the longest name
	closed   bool   // no other keys
}

type property struct {
	name string
	node *node
}

// maxProperties is how many properties fit the bit sets of an object.
const maxProperties = 64

// supported are the keywords that a compiled schema enforces, or that say nothing about a value.
var supported = map[string]bool{
	"x-raw": true, "x-maxBytes": true, "x-patternRule": true, "x-requirements": true,
}

// compile makes a node of a schema; the error names the keyword that it cannot express.
func compile(ref *openapi3.SchemaRef, above ...*openapi3.Schema) (*node, error) {
	schema := ref.Value
	if slices.Contains(above, schema) {
		return nil, fmt.Errorf("recursive schema %s", ref.Ref)
	}
	if word := unsupported(schema); word != "" {
		return nil, fmt.Errorf("keyword %s", word)
	}
	n := &node{
		minimum:  math.Inf(-1),
		maximum:  math.Inf(1),
		maxBytes: math.MaxInt,
		maxItems: math.MaxInt,
		bools:    [2]bool{true, true},
	}
	if isRaw(schema) {
		n.raw, n.kinds = true, anyKind
		return n, nil
	}
	switch {
	case schema.Type.Is(openapi3.TypeBoolean):
		n.kinds, n.wrong = kindBool, "must be a boolean"
	case schema.Type.Is(openapi3.TypeInteger):
		n.kinds, n.wrong, n.integer = kindNumber, "must be an integer", true
	case schema.Type.Is(openapi3.TypeNumber):
		n.kinds, n.wrong = kindNumber, "must be a number"
	case schema.Type.Is(openapi3.TypeString):
		n.kinds, n.wrong = kindString, "must be a string"
	case schema.Type.Is(openapi3.TypeArray):
		n.kinds, n.wrong = kindArray, "must be an array"
	case schema.Type.Is(openapi3.TypeObject):
		n.kinds, n.wrong = kindObject, "must be an object"
	default:
		return nil, fmt.Errorf("type %v", schema.Type)
	}
	if schema.Nullable {
		n.kinds |= kindNull
		n.wrong += " or null"
	}
	if schema.Min != nil {
		n.minimum = *schema.Min
	}
	if schema.Max != nil {
		n.maximum = *schema.Max
	}
	if err := n.compileString(schema); err != nil {
		return nil, err
	}
	if err := n.compileEnum(schema); err != nil {
		return nil, err
	}
	n.minItems = int(min(schema.MinItems, math.MaxInt))
	if schema.MaxItems != nil {
		n.maxItems = int(min(*schema.MaxItems, math.MaxInt))
	}
	n.anyText = n.minLength == 0 && n.maxBytes == math.MaxInt && n.pattern == nil && !n.uuid && n.enum == nil
	above = append(above, schema)
	if schema.Items != nil {
		var err error
		if n.items, err = compile(schema.Items, above...); err != nil {
			return nil, fmt.Errorf("items: %w", err)
		}
	}
	return n, n.compileObject(schema, above)
}

func (n *node) compileString(schema *openapi3.Schema) error {
	if schema.MinLength > 1 {
		return fmt.Errorf("minLength above 1")
	}
	n.minLength = int(schema.MinLength)
	if limit, ok := extensionInt(schema.Extensions, "x-maxBytes"); ok {
		n.maxBytes = limit
	}
	switch schema.Format {
	case "":
	case "uuid":
		n.uuid = true
	default:
		return fmt.Errorf("format %s", schema.Format)
	}
	if schema.Pattern == "" {
		return nil
	}
	var err error
	rule, _ := schema.Extensions["x-patternRule"].(string)
	n.pattern, err = compilePattern(schema.Pattern, rule)
	return err
}

func (n *node) compileEnum(schema *openapi3.Schema) error {
	if len(schema.Enum) == 0 {
		return nil
	}
	n.bools = [2]bool{}
	for _, value := range schema.Enum {
		switch value := value.(type) {
		case string:
			if n.kinds&kindString == 0 {
				return fmt.Errorf("enum of another type")
			}
			n.enum = append(n.enum, value)
		case bool:
			if n.kinds&kindBool == 0 {
				return fmt.Errorf("enum of another type")
			}
			if value {
				n.bools[1] = true
			} else {
				n.bools[0] = true
			}
		default:
			return fmt.Errorf("enum of %T", value)
		}
	}
	return nil
}

func (n *node) compileObject(schema *openapi3.Schema, above []*openapi3.Schema) error {
	if len(schema.Properties) > maxProperties {
		return fmt.Errorf("more than %d properties", maxProperties)
	}
	n.closed = schema.AdditionalProperties.Has != nil && !*schema.AdditionalProperties.Has
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		child, err := compile(schema.Properties[name], above...)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if slices.Contains(schema.Required, name) {
			n.required |= 1 << len(n.props)
		}
		n.props = append(n.props, property{name, child})
		n.longest = max(n.longest, len(name))
	}
	for _, name := range schema.Required {
		if schema.Properties[name] == nil {
			return fmt.Errorf("required %s without a property", name)
		}
	}
	return nil
}

// unsupported names a keyword of the schema that a node does not express.
func unsupported(schema *openapi3.Schema) string {
	for name := range schema.Extensions {
		if !supported[name] {
			return name
		}
	}
	for _, k := range []struct {
		name string
		used bool
	}{
		{"oneOf", len(schema.OneOf) > 0},
		{"anyOf", len(schema.AnyOf) > 0},
		{"allOf", len(schema.AllOf) > 0},
		{"not", schema.Not != nil},
		{"uniqueItems", schema.UniqueItems},
		{"exclusiveMinimum", schema.ExclusiveMin.IsSet()},
		{"exclusiveMaximum", schema.ExclusiveMax.IsSet()},
		{"multipleOf", schema.MultipleOf != nil},
		{"maxLength", schema.MaxLength != nil},
		{"minProperties", schema.MinProps > 0},
		{"maxProperties", schema.MaxProps != nil},
		{"additionalProperties", schema.AdditionalProperties.Schema != nil},
		{"discriminator", schema.Discriminator != nil},
		{"readOnly", schema.ReadOnly},
		{"writeOnly", schema.WriteOnly},
	} {
		if k.used {
			return k.name
		}
	}
	return ""
}

func isRaw(schema *openapi3.Schema) bool {
	raw, _ := schema.Extensions["x-raw"].(bool)
	return raw
}

func extensionInt(extensions map[string]any, name string) (int, bool) {
	switch v := extensions[name].(type) {
	case float64:
		return int(v), true
	case int:
		return v, true
	}
	return 0, false
}

// pattern is a regular expression that is a run of character classes. Such a run is matched without backtracking; other
// expressions are left to kin.
type pattern struct {
	rule    string
	classes []class
}

// class is one character class with how often it stands: exactly count times, or any number of times (count -1).
type class struct {
	ascii  [128]bool
	ranges []rune // lo, hi pairs
	count  int
}

// compilePattern understands ^…$ around classes and literals, each fixed in number; or one class repeated any number of times.
func compilePattern(expression, rule string) (*pattern, error) {
	if rule == "" {
		rule = "must match " + expression
	}
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	if tree.Op != syntax.OpConcat || len(tree.Sub) < 3 ||
		tree.Sub[0].Op != syntax.OpBeginText || tree.Sub[len(tree.Sub)-1].Op != syntax.OpEndText {
		return nil, fmt.Errorf("pattern %s", expression)
	}
	p := &pattern{rule: rule}
	parts := tree.Sub[1 : len(tree.Sub)-1]
	for _, part := range parts {
		count := 1
		switch {
		case part.Op == syntax.OpRepeat && part.Min == part.Max:
			count, part = part.Min, part.Sub[0]
		case part.Op == syntax.OpStar && len(parts) == 1:
			count, part = -1, part.Sub[0]
		}
		switch {
		case part.Flags&syntax.FoldCase != 0:
			return nil, fmt.Errorf("pattern %s", expression)
		case part.Op == syntax.OpCharClass:
			p.classes = append(p.classes, newClass(part.Rune, count))
		case part.Op == syntax.OpLiteral && count == 1:
			for _, r := range part.Rune {
				p.classes = append(p.classes, newClass([]rune{r, r}, 1))
			}
		default:
			return nil, fmt.Errorf("pattern %s", expression)
		}
	}
	return p, nil
}

func newClass(ranges []rune, count int) class {
	c := class{ranges: ranges, count: count}
	for r := range rune(len(c.ascii)) {
		c.ascii[r] = c.inRanges(r)
	}
	return c
}

func (c *class) inRanges(r rune) bool {
	for i := 0; i < len(c.ranges); i += 2 {
		if c.ranges[i] <= r && r <= c.ranges[i+1] {
			return true
		}
	}
	return false
}

func (c *class) has(r rune) bool {
	if r < rune(len(c.ascii)) {
		return c.ascii[r]
	}
	return c.inRanges(r)
}

// match consumes text, valid UTF-8, by the classes.
func (p *pattern) match(text []byte) bool {
	for i := range p.classes {
		c := &p.classes[i]
		for n := c.count; n != 0; n-- {
			if len(text) == 0 {
				if n < 0 {
					break
				}
				return false
			}
			r, size := decodeRune(text)
			if !c.has(r) {
				return false
			}
			text = text[size:]
		}
	}
	return len(text) == 0
}

// isUUID follows RFC 9562 as kin spells it: versions 1 to 8, the all-zeros id and the all-ones id.
func isUUID(text []byte) bool {
	if len(text) != 36 {
		return false
	}
	zeros, effs := true, true
	for i, c := range text {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
			continue
		}
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f', 'A' <= c && c <= 'F':
		default:
			return false
		}
		zeros = zeros && c == '0'
		effs = effs && c|0x20 == 'f'
	}
	if zeros || effs {
		return true
	}
	if text[14] < '1' || text[14] > '8' {
		return false
	}
	switch text[19] {
	case '8', '9', 'a', 'b', 'A', 'B':
		return true
	}
	return false
}

// checkText judges the decoded text of a string and returns the rule that it breaks, "" for none.
func (n *node) checkText(text []byte) string {
	switch {
	case n.enum != nil && !containsText(n.enum, text):
		return "must be one of " + strings.Join(n.enum, ", ")
	case len(text) < n.minLength:
		return "must not be empty"
	case len(text) > n.maxBytes:
		return n.tooLong()
	case n.pattern != nil && !n.pattern.match(text):
		return n.pattern.rule
	case n.uuid && !isUUID(text):
		return "must be a UUID"
	}
	return ""
}

func (n *node) tooLong() string {
	return fmt.Sprintf("must be at most %d bytes", n.maxBytes)
}

func containsText(list []string, text []byte) bool {
	for _, s := range list {
		if s == string(text) {
			return true
		}
	}
	return false
}

// checkNumber judges a number that is spelled as JSON does.
func (n *node) checkNumber(text []byte, integer bool) string {
	if n.integer && !integer {
		return n.wrong
	}
	value, ok := smallInteger(text, integer)
	if !ok {
		var err error
		if value, err = strconv.ParseFloat(string(text), 64); err != nil {
			return "is out of range"
		}
	}
	switch {
	case value < n.minimum:
		return "must be at least " + strconv.FormatFloat(n.minimum, 'f', -1, 64)
	case value > n.maximum:
		return "must be at most " + strconv.FormatFloat(n.maximum, 'f', -1, 64)
	}
	return ""
}

// smallInteger parses an integer of at most 15 digits, which a float64 holds exactly.
func smallInteger(text []byte, integer bool) (float64, bool) {
	if !integer || len(text) > 15 {
		return 0, false
	}
	negative := text[0] == '-'
	if negative {
		text = text[1:]
	}
	var v int64
	for _, c := range text {
		v = v*10 + int64(c-'0')
	}
	if negative {
		v = -v
	}
	return float64(v), true
}
