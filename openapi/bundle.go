package openapi

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed spec/*.yaml
var files embed.FS

// parts are the files of the description in document order. Each holds top-level keys of the one document.
var parts = []string{"root", "queue", "groups", "transaction", "streams", "admin", "messages", "traces", "maintenance", "status", "publish", "deliveryqueues", "flowcontrol", "topics", "schedules", "publishdlq", "testing", "auth", "errors"}

// bundle merges the parts: mappings merge key by key, and anything that two parts define is an error.
func bundle() (*yaml.Node, error) {
	whole := &yaml.Node{Kind: yaml.MappingNode}
	for _, part := range parts {
		name := "spec/" + part + ".yaml"
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var doc yaml.Node
		if err := yaml.Unmarshal(text, &doc); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := merge(whole, doc.Content[0], 2); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return whole, nil
}

// merge adds the entries of from to into. Mappings below, down to depth, are merged in turn: paths, and the kinds of components.
func merge(into, from *yaml.Node, depth int) error {
	if from.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: not a mapping", from.Line)
	}
	for i := 0; i < len(from.Content); i += 2 {
		key, value := from.Content[i], from.Content[i+1]
		have := lookup(into, key.Value)
		switch {
		case have == nil:
			into.Content = append(into.Content, key, value)
		case depth > 0 && have.Kind == yaml.MappingNode:
			if err := merge(have, value, depth-1); err != nil {
				return err
			}
		default:
			return fmt.Errorf("line %d: %s is defined twice", key.Line, key.Value)
		}
	}
	return nil
}

func lookup(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

// appendJSON writes a YAML node as JSON, keys in document order.
func appendJSON(dst *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.AliasNode:
		return appendJSON(dst, n.Alias)
	case yaml.MappingNode:
		dst.WriteByte('{')
		for i := 0; i < len(n.Content); i += 2 {
			if i > 0 {
				dst.WriteByte(',')
			}
			if err := appendValue(dst, n.Content[i].Value); err != nil {
				return err
			}
			dst.WriteByte(':')
			if err := appendJSON(dst, n.Content[i+1]); err != nil {
				return err
			}
		}
		dst.WriteByte('}')
		return nil
	case yaml.SequenceNode:
		dst.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				dst.WriteByte(',')
			}
			if err := appendJSON(dst, item); err != nil {
				return err
			}
		}
		dst.WriteByte(']')
		return nil
	default:
		var value any
		if err := n.Decode(&value); err != nil {
			return err
		}
		return appendValue(dst, value)
	}
}

func appendValue(dst *bytes.Buffer, value any) error {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return err
	}
	dst.WriteString(strings.TrimSuffix(text.String(), "\n"))
	return nil
}
