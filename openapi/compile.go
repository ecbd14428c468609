package openapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

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
	notInEnum string  // the rule of enum
	anyText   bool    // none of the rules above
	bools     [2]bool // whether false and true are allowed

	items              *node // nil: any
	minItems, maxItems int

	branches []*node // of a oneOf, no two of one kind

	props    []property
	required uint64 // bits of props
	longest  int    // bytes of the longest name
	closed   bool   // no other keys
}

// kinds are the JSON kinds of the schema types.
var kinds = map[string]kind{
	openapi3.TypeBoolean: kindBool,
	openapi3.TypeInteger: kindNumber,
	openapi3.TypeNumber:  kindNumber,
	openapi3.TypeString:  kindString,
	openapi3.TypeArray:   kindArray,
	openapi3.TypeObject:  kindObject,
}

// typeRule says what a value of another type should be.
func typeRule(name string, nullable bool) string {
	rule := "must be a " + name
	switch name {
	case openapi3.TypeInteger, openapi3.TypeArray, openapi3.TypeObject:
		rule = "must be an " + name
	}
	if nullable {
		rule += " or null"
	}
	return rule
}

// enumRule says which values are allowed.
func enumRule(values []any) string {
	var words []string
	empty := ""
	for _, v := range values {
		if v == "" {
			empty = " or empty"
			continue
		}
		words = append(words, fmt.Sprint(v))
	}
	if len(words) == 1 {
		return "must be " + words[0] + empty
	}
	return "must be one of " + strings.Join(words, ", ") + empty
}

// lengthRule says how long a string is at least.
func lengthRule(minLength int) string {
	if minLength == 1 {
		return "must not be empty"
	}
	return fmt.Sprintf("must have at least %d characters", minLength)
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
	if len(schema.OneOf) > 0 {
		return n, n.compileBranches(schema, append(above, schema))
	}
	if types := schema.Type.Slice(); len(types) == 1 {
		n.kinds, n.wrong = kinds[types[0]], typeRule(types[0], schema.Nullable)
	}
	if n.kinds == 0 {
		return nil, fmt.Errorf("type %v", schema.Type.Slice())
	}
	n.integer = schema.Type.Is(openapi3.TypeInteger)
	if schema.Nullable {
		n.kinds |= kindNull
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

// compileBranches compiles a oneOf whose branches are of different kinds, so that a value's first byte chooses.
func (n *node) compileBranches(schema *openapi3.Schema, above []*openapi3.Schema) error {
	if schema.Type != nil || schema.Nullable || len(schema.Properties) > 0 || len(schema.Required) > 0 || len(schema.Enum) > 0 {
		return errors.New("oneOf beside other keywords")
	}
	var names []string
	for i, ref := range schema.OneOf {
		branch, err := compile(ref, above...)
		if err != nil {
			return fmt.Errorf("oneOf %d: %w", i, err)
		}
		if n.kinds&branch.kinds != 0 {
			return errors.New("oneOf of branches of one kind")
		}
		n.kinds |= branch.kinds
		n.branches = append(n.branches, branch)
		names = append(names, strings.TrimPrefix(branch.wrong, "must be "))
	}
	n.wrong = "must be " + strings.Join(names, " or ")
	return nil
}

func (n *node) compileString(schema *openapi3.Schema) error {
	if schema.MinLength > 1 {
		return errors.New("minLength above 1")
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
	n.notInEnum = enumRule(schema.Enum)
	for _, value := range schema.Enum {
		switch value := value.(type) {
		case string:
			if n.kinds&kindString == 0 {
				return errors.New("enum of another type")
			}
			n.enum = append(n.enum, value)
		case bool:
			if n.kinds&kindBool == 0 {
				return errors.New("enum of another type")
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
	ascii     [utf8.RuneSelf]bool
	printable bool   // every character from space to tilde is in it
	ranges    []rune // lo, hi pairs
	count     int
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
	c.printable = true
	for r := range rune(len(c.ascii)) {
		c.ascii[r] = c.inRanges(r)
		c.printable = c.printable && (c.ascii[r] || r < ' ' || r > '~')
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

// match consumes text, valid UTF-8, by the classes.
func (p *pattern) match(text []byte) bool {
	i := 0
	for k := range p.classes {
		c := &p.classes[k]
		if c.count < 0 {
			return c.all(text) // it stands alone
		}
		for range c.count {
			size := c.first(text[i:])
			if size == 0 {
				return false
			}
			i += size
		}
	}
	return i == len(text)
}

// all says whether every character of text is in the class.
func (c *class) all(text []byte) bool {
	for i := 0; i < len(text); {
		if c.printable && i+8 <= len(text) {
			// Eight bytes from space to tilde: no high bit as they are, none once 0x20 is taken off, none once 1 is added.
			w := binary.LittleEndian.Uint64(text[i:])
			if (w|(w-' '*ones)|(w+ones))&highs == 0 {
				i += 8
				continue
			}
		}
		size := c.first(text[i:])
		if size == 0 {
			return false
		}
		i += size
	}
	return true
}

// first is the size of the first character of text, 0 when there is none or it is not in the class.
func (c *class) first(text []byte) int {
	if len(text) == 0 {
		return 0
	}
	if b := text[0]; b < utf8.RuneSelf {
		if c.ascii[b] {
			return 1
		}
		return 0
	}
	r, size := utf8.DecodeRune(text)
	if c.inRanges(r) {
		return size
	}
	return 0
}

// isUUID follows RFC 9562 as kin spells it: versions 1 to 8, the all-zeros id and the all-ones id.
func isUUID(text []byte) bool {
	if len(text) != 36 {
		return false
	}
	for _, span := range [...][2]int{{0, 8}, {9, 13}, {14, 18}, {19, 23}, {24, 36}} {
		for _, c := range text[span[0]:span[1]] {
			if !hexDigit[c] {
				return false
			}
		}
	}
	if text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return false
	}
	version, variant := text[14], text[19]
	if '1' <= version && version <= '8' && (variant == '8' || variant == '9' || variant|0x20 == 'a' || variant|0x20 == 'b') {
		return true
	}
	return string(text) == "00000000-0000-0000-0000-000000000000" ||
		strings.EqualFold(string(text), "ffffffff-ffff-ffff-ffff-ffffffffffff")
}

var hexDigit = func() (table [256]bool) {
	for _, c := range []byte("0123456789abcdefABCDEF") {
		table[c] = true
	}
	return table
}()

// checkText judges the decoded text of a string and returns the rule that it breaks, "" for none.
func (n *node) checkText(text []byte) string {
	switch {
	case n.enum != nil && !containsText(n.enum, text):
		return n.notInEnum
	case len(text) < n.minLength:
		return lengthRule(n.minLength)
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

// containsText compares without making a string of text, which may be as long as a body.
func containsText(list []string, text []byte) bool {
	return slices.ContainsFunc(list, func(s string) bool { return s == string(text) })
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
