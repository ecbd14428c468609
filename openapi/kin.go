package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/getkin/kin-openapi/openapi3"
)

// checkByKin judges a body with kin-openapi. It is the way of schemas that the compiler does not know, and in tests the
// oracle of those that it does.
//
// kin decodes a body, so what must not be decoded, or what decoding would hide, is replaced first: raw and unknown
// values by null, an integer spelled with a fraction or exponent by 0.5, a string with a lone surrogate by an object,
// and an array over its limit by as many nulls as break the limit. Each stand-in has the verdict of what it stands for.
func (s *Spec) checkByKin(schema *openapi3.Schema, data []byte) *CheckError {
	var scan scanner
	if !scan.begin(data) {
		return scan.broken
	}
	if scan.pos == len(data) {
		return &CheckError{Field: "body", Rule: "is missing"}
	}
	var stand bytes.Buffer
	if !scan.elide(schema, &stand) || !scan.end() {
		return scan.broken
	}
	dec := json.NewDecoder(&stand)
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return &CheckError{Rule: "not valid JSON: " + err.Error()}
	}
	if err := schema.VisitJSON(value, s.doc.GetSchemaValidationOptions()...); err != nil {
		return explain(err)
	}
	if err := checkBytes(schema, value); err != nil {
		if err.Field == "" {
			err.Field = "body"
		}
		return err
	}
	return nil
}

// elide copies one value with stand-ins for what kin must not see.
func (s *scanner) elide(schema *openapi3.Schema, dst *bytes.Buffer) bool {
	start := s.pos
	if branch := branchOf(schema, kindOf(s.peek())); branch != nil {
		schema = branch
	}
	composed := len(schema.OneOf)+len(schema.AnyOf)+len(schema.AllOf) > 0 || schema.Not != nil
	switch c := s.peek(); {
	case isRaw(schema):
		dst.WriteString("null")
		return s.skip()
	case composed:
		if !s.skip() {
			return false
		}
		dst.Write(s.data[start:s.pos])
		return true
	case c == '"':
		content, escaped, ok := s.str()
		if !ok {
			return false
		}
		if escaped && !wellFormed(content) && schema.Type.Is(openapi3.TypeString) {
			dst.WriteString("{}")
		} else {
			dst.Write(s.data[start:s.pos])
		}
		return true
	case c == '{' && schema.Type.Is(openapi3.TypeObject):
		return s.elideObject(schema, dst)
	case c == '[' && schema.Type.Is(openapi3.TypeArray) && schema.Items != nil:
		return s.elideArray(schema, dst)
	case c == '{' || c == '[':
		dst.WriteByte(c)
		dst.WriteByte(c + 2) // its closing byte, in ASCII two further on
		return s.skip()
	case c == '-' || '0' <= c && c <= '9':
		text, integer, ok := s.number()
		if !ok {
			return false
		}
		if schema.Type.Is(openapi3.TypeInteger) && !integer {
			text = []byte("0.5")
		}
		dst.Write(text)
		return true
	default:
		if _, ok := s.literal(); !ok {
			return false
		}
		dst.Write(s.data[start:s.pos])
		return true
	}
}

// branchOf is the only branch of a oneOf that a value of kind k can match by its type, nil when that is not clear.
func branchOf(schema *openapi3.Schema, k kind) (only *openapi3.Schema) {
	for _, ref := range schema.OneOf {
		types := ref.Value.Type.Slice()
		if len(types) != 1 {
			return nil
		}
		if kinds[types[0]] != k {
			continue
		}
		if only != nil {
			return nil
		}
		only = ref.Value
	}
	return only
}

func (s *scanner) elideObject(schema *openapi3.Schema, dst *bytes.Buffer) bool {
	more, ok := s.enter('}')
	dst.WriteByte('{')
	for first := true; more && ok; first = false {
		keyStart := s.pos
		raw, escaped, keyOK := s.key()
		if !keyOK {
			return false
		}
		if !first {
			dst.WriteByte(',')
		}
		dst.Write(s.data[keyStart : keyStart+len(raw)+2])
		dst.WriteByte(':')
		name, whole := s.text(raw, escaped)
		ref := schema.Properties[string(name)]
		switch {
		case ref != nil && whole:
			ok = s.elide(ref.Value, dst)
		case schema.AdditionalProperties.Schema != nil:
			ok = s.elide(schema.AdditionalProperties.Schema.Value, dst)
		default:
			dst.WriteString("null")
			ok = s.skip()
		}
		if !ok {
			return false
		}
		more, ok = s.next('}')
	}
	dst.WriteByte('}')
	return ok
}

func (s *scanner) elideArray(schema *openapi3.Schema, dst *bytes.Buffer) bool {
	mark := dst.Len()
	more, ok := s.enter(']')
	dst.WriteByte('[')
	over := false
	for count := uint64(0); more && ok; count++ {
		over = over || schema.MaxItems != nil && count == *schema.MaxItems
		if over {
			ok = s.skip()
		} else {
			if count > 0 {
				dst.WriteByte(',')
			}
			ok = s.elide(schema.Items.Value, dst)
		}
		if !ok {
			return false
		}
		more, ok = s.next(']')
	}
	if over {
		dst.Truncate(mark)
		dst.WriteByte('[')
		dst.Write(bytes.Repeat([]byte("null,"), int(*schema.MaxItems)))
		dst.WriteString("null")
	}
	dst.WriteByte(']')
	return ok
}

// checkBytes enforces x-maxBytes, which kin does not know, on a decoded value that kin has accepted.
func checkBytes(schema *openapi3.Schema, value any) *CheckError {
	if isRaw(schema) {
		return nil
	}
	if branch := branchOf(schema, kindOfValue(value)); branch != nil {
		schema = branch
	}
	switch value := value.(type) {
	case string:
		if limit, ok := extensionInt(schema.Extensions, "x-maxBytes"); ok && len(value) > limit {
			return violation(fmt.Sprintf("must be at most %d bytes", limit))
		}
	case []any:
		for i, item := range value {
			if schema.Items == nil {
				break
			}
			if err := checkBytes(schema.Items.Value, item); err != nil {
				return err.within("[" + strconv.Itoa(i) + "]")
			}
		}
	case map[string]any:
		names := make([]string, 0, len(value))
		for name := range value {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			ref := schema.Properties[name]
			if ref == nil {
				continue
			}
			if err := checkBytes(ref.Value, value[name]); err != nil {
				return err.within(name)
			}
		}
	}
	return nil
}

func kindOfValue(value any) kind {
	switch value.(type) {
	case string:
		return kindString
	case []any:
		return kindArray
	case map[string]any:
		return kindObject
	}
	return 0
}

// explain puts kin's verdict into the words of this package.
func explain(err error) *CheckError {
	var multi openapi3.MultiError
	if errors.As(err, &multi) && len(multi) > 0 {
		err = multi[0]
	}
	var schema *openapi3.SchemaError
	if !errors.As(err, &schema) {
		return &CheckError{Field: "body", Rule: "is not as described: " + err.Error()}
	}
	out := &CheckError{Rule: rule(schema)}
	pointer := schema.JSONPointer()
	for _, step := range slices.Backward(pointer) {
		if _, err := strconv.Atoi(step); err == nil {
			step = "[" + step + "]"
		}
		out = out.within(step)
	}
	if out.Field == "" {
		out.Field = "body"
	}
	return out
}

func rule(e *openapi3.SchemaError) string {
	schema := e.Schema
	switch e.SchemaField {
	case "required":
		return "is missing"
	case "type", "nullable":
		for _, t := range schema.Type.Slice() {
			return typeRule(t, schema.Nullable)
		}
	case "enum":
		return enumRule(schema.Enum)
	case "pattern":
		if words, ok := schema.Extensions["x-patternRule"].(string); ok {
			return words
		}
		return "must match " + schema.Pattern
	case "minItems":
		return fmt.Sprintf("must have at least %d items", schema.MinItems)
	case "maxItems":
		return fmt.Sprintf("must have at most %d items", *schema.MaxItems)
	case "minimum":
		return "must be at least " + strconv.FormatFloat(*schema.Min, 'f', -1, 64)
	case "maximum":
		return "must be at most " + strconv.FormatFloat(*schema.Max, 'f', -1, 64)
	case "minLength":
		return lengthRule(int(schema.MinLength))
	case "format":
		return "must be a valid " + schema.Format
	}
	return "is not as described: " + e.Reason
}
