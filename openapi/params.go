package openapi

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
)

// parameter is one path or query parameter, or a header.
type parameter struct {
	name     string
	required bool
	node     *node
}

func (o *Operation) compileParameters(refs openapi3.Parameters) error {
	for _, ref := range refs {
		in := ref.Value
		n, err := compile(in.Schema)
		if err != nil {
			return fmt.Errorf("parameter %s: %w", in.Name, err)
		}
		if n.raw || n.kinds&(kindArray|kindObject) != 0 {
			return fmt.Errorf("parameter %s: only scalars are supported", in.Name)
		}
		words, _ := in.Extensions["x-boolean"].(bool)
		if words != (n.kinds&kindBool != 0) {
			return fmt.Errorf("parameter %s: x-boolean and type boolean go together", in.Name)
		}
		p := parameter{name: in.Name, required: in.Required, node: n}
		switch in.In {
		case openapi3.ParameterInPath:
			if rest, _ := in.Extensions["x-rest"].(bool); rest {
				o.Rest = in.Name
			}
			o.path = append(o.path, p)
		case openapi3.ParameterInQuery:
			o.query = append(o.query, p)
		case openapi3.ParameterInHeader:
			p.name = http.CanonicalHeaderKey(p.name)
			o.headers = append(o.headers, p)
		default:
			return fmt.Errorf("parameter %s: in %s is not supported", in.Name, in.In)
		}
	}
	return nil
}

// ParseBool reads a boolean parameter: true, 1 and yes, or false, 0 and no.
func ParseBool(value string) (b, ok bool) {
	switch value {
	case "true", "1", "yes":
		return true, true
	case "false", "0", "no":
		return false, true
	}
	return false, false
}

// check returns the rule that a decoded value breaks, "" for none.
func (p *parameter) check(value string) string {
	switch {
	case p.node.kinds&kindBool != 0:
		if _, ok := ParseBool(value); !ok {
			return "must be true, false, 1, 0, yes or no"
		}
		return ""
	case p.node.kinds&kindNumber != 0:
		s := scanner{data: []byte(value)}
		text, integer, ok := s.number()
		if !ok || s.pos != len(value) {
			return p.node.wrong
		}
		return p.node.checkNumber(text, integer)
	default:
		if !utf8.ValidString(value) {
			return "must be valid UTF-8"
		}
		return p.node.checkText([]byte(value))
	}
}

// checkQuery walks the raw query once. Every occurrence of a documented parameter is checked.
func (o *Operation) checkQuery(raw string) *CheckError {
	var seen uint64
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if strings.ContainsAny(key, "%+") {
			decoded, err := url.QueryUnescape(key)
			if err != nil {
				continue // it names none of ours
			}
			key = decoded
		}
		i := o.findQuery(key)
		if i < 0 {
			continue
		}
		p := &o.query[i]
		seen |= 1 << i
		if strings.Contains(pair, ";") {
			return &CheckError{Field: p.name, Rule: "must have its semicolons percent-encoded"}
		}
		if strings.ContainsAny(value, "%+") {
			decoded, err := url.QueryUnescape(value)
			if err != nil {
				return &CheckError{Field: p.name, Rule: "must be percent-encoded"}
			}
			value = decoded
		}
		if rule := p.check(value); rule != "" {
			return &CheckError{Field: p.name, Rule: rule}
		}
	}
	for i := range o.query {
		if o.query[i].required && seen&(1<<i) == 0 {
			return &CheckError{Field: o.query[i].name, Rule: "is missing"}
		}
	}
	return nil
}

func (o *Operation) findQuery(name string) int {
	for i := range o.query {
		if o.query[i].name == name {
			return i
		}
	}
	return -1
}
