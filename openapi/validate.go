package openapi

import (
	"fmt"
	"math/bits"
	"strconv"
)

// check consumes one value and judges it by the node. Unless the scanner breaks, the whole value is consumed also when
// it is refused, because a later value of the same key may replace it. A violation's Field is relative to the value.
func (s *scanner) check(n *node) *CheckError {
	if n.raw {
		if !s.skip() {
			return s.broken
		}
		return nil
	}
	if n.branches != nil {
		return s.checkBranches(n)
	}
	switch c := s.peek(); {
	case c == '"':
		return s.checkString(n)
	case c == '{':
		return s.checkObject(n)
	case c == '[':
		return s.checkArray(n)
	case c == '-' || '0' <= c && c <= '9':
		text, integer, ok := s.number()
		if !ok {
			return s.broken
		}
		if n.kinds&kindNumber == 0 {
			return violation(n.wrong)
		}
		return violation(n.checkNumber(text, integer))
	default:
		first, ok := s.literal()
		switch {
		case !ok:
			return s.broken
		case first == 'n' && n.kinds&kindNull == 0, first != 'n' && n.kinds&kindBool == 0:
			return violation(n.wrong)
		case first == 't' && !n.bools[1]:
			return violation("must be false")
		case first == 'f' && !n.bools[0]:
			return violation("must be true")
		}
		return nil
	}
}

// kindOf is the kind of the value that a byte begins, none when no value begins so.
func kindOf(first byte) kind {
	switch {
	case first == '"':
		return kindString
	case first == '{':
		return kindObject
	case first == '[':
		return kindArray
	case first == '-' || '0' <= first && first <= '9':
		return kindNumber
	case first == 't' || first == 'f':
		return kindBool
	case first == 'n':
		return kindNull
	}
	return 0
}

func (s *scanner) checkBranches(n *node) *CheckError {
	k := kindOf(s.peek())
	for _, branch := range n.branches {
		if branch.kinds&k != 0 {
			return s.check(branch)
		}
	}
	if !s.skip() {
		return s.broken
	}
	return violation(n.wrong)
}

// violation is a broken rule of the value at hand, nil for none.
func violation(rule string) *CheckError {
	if rule == "" {
		return nil
	}
	return &CheckError{Rule: rule}
}

// within puts the violation of a part below the key or index of that part.
func (e *CheckError) within(step string) *CheckError {
	switch {
	case e.Field == "":
		e.Field = step
	case e.Field[0] == '[':
		e.Field = step + e.Field
	default:
		e.Field = step + "." + e.Field
	}
	return e
}

func (s *scanner) checkString(n *node) *CheckError {
	content, escaped, ok := s.str()
	if !ok {
		return s.broken
	}
	if n.kinds&kindString == 0 {
		return violation(n.wrong)
	}
	if escaped {
		// An escape is at most six times as long as its text, so what is much too long need not be decoded.
		if n.maxBytes < len(content)/6 {
			return violation(n.tooLong())
		}
		if !wellFormed(content) {
			return violation("must not contain a lone surrogate")
		}
		if n.anyText {
			return nil
		}
	}
	text, _ := s.text(content, escaped)
	return violation(n.checkText(text))
}

func (s *scanner) checkArray(n *node) *CheckError {
	if n.kinds&kindArray == 0 {
		if !s.skip() {
			return s.broken
		}
		return violation(n.wrong)
	}
	if s.cutter.plan != nil && n == s.cutter.plan.array {
		s.cutter.restart(len(s.data) - s.pos)
	}
	more, ok := s.enter(']')
	var found *CheckError
	count := 0
	for ; more && ok; count++ {
		if found == nil && count == n.maxItems {
			found = violation(fmt.Sprintf("must have at most %d items", n.maxItems))
		}
		if found == nil && n.items != nil {
			if found = s.check(n.items); found != nil && s.broken == nil {
				found = found.within("[" + strconv.Itoa(count) + "]")
			}
		} else {
			s.skip()
		}
		if s.broken != nil {
			return s.broken
		}
		more, ok = s.next(']')
	}
	if !ok {
		return s.broken
	}
	if count < n.minItems {
		return violation(fmt.Sprintf("must have at least %d items", n.minItems))
	}
	return found
}

func (s *scanner) checkObject(n *node) *CheckError {
	if n.kinds&kindObject == 0 {
		if !s.skip() {
			return s.broken
		}
		return violation(n.wrong)
	}
	var (
		seen  uint64
		bad   uint64              // properties whose last value breaks a rule
		found map[int]*CheckError // their violations
		extra *CheckError
	)
	cutting := s.cutter.plan != nil && n == s.cutter.plan.item
	if cutting {
		s.cutter.now = fields{}
	}
	more, ok := s.enter('}')
	for more && ok {
		name, escaped, keyOK := s.key()
		if !keyOK {
			return s.broken
		}
		i := s.find(n, name, escaped)
		if i < 0 {
			if n.closed && extra == nil {
				extra = (&CheckError{Rule: "is not allowed"}).within(string(name[:min(len(name), 100)]))
			}
			if !s.skip() {
				return s.broken
			}
		} else {
			bit := uint64(1) << i
			seen |= bit
			start := s.pos
			err := s.check(n.props[i].node)
			switch {
			case s.broken != nil:
				return s.broken
			case err != nil:
				if found == nil {
					found = make(map[int]*CheckError)
				}
				found[i] = err.within(n.props[i].name)
				bad |= bit
			case bad != 0:
				bad &^= bit
			}
			if cutting {
				s.cutter.note(i, start, s.pos)
			}
		}
		more, ok = s.next('}')
	}
	if !ok {
		return s.broken
	}
	if bad != 0 {
		return found[bits.TrailingZeros64(bad)]
	}
	if missing := n.required &^ seen; missing != 0 {
		return (&CheckError{Rule: "is missing"}).within(n.props[bits.TrailingZeros64(missing)].name)
	}
	if cutting && extra == nil {
		s.cut()
	}
	return extra
}

// find returns the index of the property that a key names, or -1.
func (s *scanner) find(n *node, name []byte, escaped bool) int {
	if escaped {
		var ok bool
		if len(name)/6 > n.longest {
			return -1
		}
		if name, ok = s.text(name, true); !ok {
			return -1
		}
	}
	for i := range n.props {
		if n.props[i].name == string(name) {
			return i
		}
	}
	return -1
}
