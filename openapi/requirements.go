package openapi

import (
	"fmt"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"
)

// Requirement is one normative sentence that an implementation is held to.
type Requirement struct {
	ID         string   // operation.topic.detail, or a shared prefix such as http
	Operation  string   // the operation of the id's prefix; "" for a shared prefix
	Level      string   // MUST, SHOULD or MAY
	Needs      []string // capabilities without which it cannot be observed; none: core
	Profile    string
	Text       string
	Source     string // the document and section that it comes from
	Untestable string // why it cannot be observed from outside; "" when it can
}

// ErrorEntry is one entry of the catalogue of error answers.
type ErrorEntry struct {
	ID     string `yaml:"id"`
	Status int    `yaml:"status"`
	Error  string `yaml:"error"` // the text; <…> stands for what varies
	Code   string `yaml:"code"`  // "" when the answer has none
	When   string `yaml:"when"`
}

var requirementID = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*(\.[a-z0-9]+(-[a-z0-9]+)*){1,3}$`)

// registry collects the requirements of a document.
type registry struct {
	prefixes     map[string]bool   // shared prefixes
	profiles     map[string]bool   // known profiles
	capabilities map[string]bool   // known needs
	defaults     map[string]string // profile of an operation
	list         []Requirement
	index        map[string]int
}

func newRegistry(doc *yaml.Node, operations map[string]*Operation) (*registry, error) {
	r := &registry{
		prefixes:     make(map[string]bool),
		profiles:     keys(lookup(doc, "x-profiles")),
		capabilities: keys(lookup(doc, "x-capabilities")),
		defaults:     make(map[string]string),
		index:        make(map[string]int),
	}
	if shared := lookup(doc, "x-requirement-prefixes"); shared != nil {
		for _, n := range shared.Content {
			r.prefixes[n.Value] = true
		}
	}
	for id, op := range operations {
		if !r.profiles[op.Profile] {
			return nil, fmt.Errorf("operation %s: unknown x-profile %q", id, op.Profile)
		}
		r.defaults[id] = op.Profile
	}
	return r, r.walk(doc)
}

func keys(mapping *yaml.Node) map[string]bool {
	set := make(map[string]bool)
	if mapping != nil {
		for i := 0; i < len(mapping.Content); i += 2 {
			set[mapping.Content[i].Value] = true
		}
	}
	return set
}

// walk visits the document in order. Aliases are not followed: what they repeat was visited at its anchor.
func (r *registry) walk(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		for _, child := range n.Content {
			if err := r.walk(child); err != nil {
				return err
			}
		}
		return nil
	}
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Value != "x-requirements" {
			if err := r.walk(value); err != nil {
				return err
			}
			continue
		}
		for _, entry := range value.Content {
			if err := r.add(entry); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *registry) add(entry *yaml.Node) error {
	var in struct {
		ID, Level, Profile, Text, Source, Untestable string
		Needs                                        []string
	}
	for i := 0; i+1 < len(entry.Content); i += 2 {
		switch key := entry.Content[i].Value; key {
		case "id", "level", "profile", "text", "source", "untestable", "needs":
		default:
			return fmt.Errorf("line %d: unknown key %s of a requirement", entry.Line, key)
		}
	}
	if err := entry.Decode(&in); err != nil {
		return fmt.Errorf("line %d: requirement: %w", entry.Line, err)
	}
	prefix, _, _ := strings.Cut(in.ID, ".")
	profile, isOperation := r.defaults[prefix]
	if in.Profile != "" {
		profile = in.Profile
	}
	operation := prefix
	if !isOperation {
		operation = ""
	}
	_, twice := r.index[in.ID]
	switch {
	case !requirementID.MatchString(in.ID):
		return fmt.Errorf("line %d: requirement id %q is not of the form operation.topic.detail", entry.Line, in.ID)
	case twice:
		return fmt.Errorf("line %d: requirement %s is defined twice", entry.Line, in.ID)
	case !isOperation && !r.prefixes[prefix]:
		return fmt.Errorf("requirement %s: %s is neither an operation nor a shared prefix", in.ID, prefix)
	case in.Level != "MUST" && in.Level != "SHOULD" && in.Level != "MAY":
		return fmt.Errorf("requirement %s: level %q", in.ID, in.Level)
	case !r.profiles[profile]:
		return fmt.Errorf("requirement %s: unknown profile %q", in.ID, profile)
	case in.Text == "" || in.Source == "":
		return fmt.Errorf("requirement %s: text and source are required", in.ID)
	}
	for _, need := range in.Needs {
		if !r.capabilities[need] {
			return fmt.Errorf("requirement %s: unknown capability %q", in.ID, need)
		}
	}
	r.index[in.ID] = len(r.list)
	r.list = append(r.list, Requirement{
		ID: in.ID, Operation: operation, Level: in.Level, Needs: in.Needs, Profile: profile,
		Text: in.Text, Source: in.Source, Untestable: in.Untestable,
	})
	return nil
}
