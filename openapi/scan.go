package openapi

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is how deep the arrays and objects of a body may be nested.
const MaxDepth = 10_000

// scanner reads JSON (RFC 8259) from a byte slice that is known to be valid UTF-8. Its methods consume whole values;
// on broken JSON they set broken and return false, and the scanner is of no further use.
type scanner struct {
	data    []byte
	pos     int
	depth   int
	broken  *CheckError
	scratch []byte // the last unescaped string
	cutter  cutter // what CheckPush and PushItems collect
}

// begin checks that data is UTF-8 and skips to its first value.
func (s *scanner) begin(data []byte) bool {
	s.data, s.pos, s.depth, s.broken = data, 0, 0, nil
	if !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, n := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		s.broken = &CheckError{Rule: fmt.Sprintf("not valid UTF-8 at byte %d", at)}
		return false
	}
	s.space()
	return true
}

// end checks that nothing follows the value.
func (s *scanner) end() bool {
	s.space()
	if s.pos < len(s.data) {
		return s.fail("unexpected %s after the value")
	}
	return true
}

// fail notes a syntax error at the present position; format may show what stands there.
func (s *scanner) fail(format string) bool {
	found := "end"
	if s.pos < len(s.data) {
		r, _ := utf8.DecodeRune(s.data[s.pos:])
		found = fmt.Sprintf("%q", r)
	}
	s.broken = &CheckError{Rule: fmt.Sprintf("not valid JSON: "+format+" at byte %d", found, s.pos)}
	return false
}

func (s *scanner) space() {
	for s.pos < len(s.data) && s.data[s.pos] <= ' ' {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek is the first byte of the next value, 0 at the end of the data.
func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// enter consumes the opening byte of an array or object. more is false when it is empty, and then it is consumed whole.
func (s *scanner) enter(closing byte) (more, ok bool) {
	s.depth++
	if s.depth > MaxDepth {
		s.broken = &CheckError{Rule: fmt.Sprintf("nested deeper than %d levels at byte %d", MaxDepth, s.pos)}
		return false, false
	}
	s.pos++
	s.space()
	if s.peek() == closing {
		s.pos++
		s.depth--
		return false, true
	}
	return true, true
}

// next consumes what follows an element: a comma, or the closing byte.
func (s *scanner) next(closing byte) (more, ok bool) {
	s.space()
	switch s.peek() {
	case ',':
		s.pos++
		s.space()
		return true, true
	case closing:
		s.pos++
		s.depth--
		return false, true
	}
	if closing == ']' {
		return false, s.fail("unexpected %s in an array")
	}
	return false, s.fail("unexpected %s in an object")
}

// key consumes a key and its colon. The name is raw when escaped is true.
func (s *scanner) key() (name []byte, escaped, ok bool) {
	if s.peek() != '"' {
		return nil, false, s.fail("unexpected %s in place of a key")
	}
	name, escaped, ok = s.str()
	if !ok {
		return nil, false, false
	}
	s.space()
	if s.peek() != ':' {
		return nil, false, s.fail("unexpected %s in place of a colon")
	}
	s.pos++
	s.space()
	return name, escaped, true
}

// skip consumes one value of any kind.
func (s *scanner) skip() bool {
	switch c := s.peek(); {
	case c == '"':
		_, _, ok := s.str()
		return ok
	case c == '{':
		more, ok := s.enter('}')
		for more && ok {
			if _, _, ok = s.key(); !ok {
				return false
			}
			if !s.skip() {
				return false
			}
			more, ok = s.next('}')
		}
		return ok
	case c == '[':
		more, ok := s.enter(']')
		for more && ok {
			if !s.skip() {
				return false
			}
			more, ok = s.next(']')
		}
		return ok
	case c == '-' || '0' <= c && c <= '9':
		_, _, ok := s.number()
		return ok
	default:
		_, ok := s.literal()
		return ok
	}
}

// literal consumes null, true or false and returns its first byte.
func (s *scanner) literal() (byte, bool) {
	rest := s.data[s.pos:]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "null", len(rest) >= 4 && string(rest[:4]) == "true":
		s.pos += 4
		return rest[0], true
	case len(rest) >= 5 && string(rest[:5]) == "false":
		s.pos += 5
		return 'f', true
	}
	return 0, s.fail("unexpected %s in place of a value")
}

// number consumes a number. integer says that it has neither fraction nor exponent.
func (s *scanner) number() (text []byte, integer, ok bool) {
	start := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	if s.peek() == '0' {
		s.pos++
	} else if !s.digits() {
		return nil, false, false
	}
	integer = true
	if s.peek() == '.' {
		integer = false
		s.pos++
		if !s.digits() {
			return nil, false, false
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		integer = false
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return nil, false, false
		}
	}
	return s.data[start:s.pos], integer, true
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		return s.fail("unexpected %s in a number")
	}
	return true
}

// str consumes a string and returns what stands between its quotes.
func (s *scanner) str() (content []byte, escaped, ok bool) {
	data := s.data
	start := s.pos + 1
	i := start
	for {
		// Eight bytes at a time, up to the first that is a quote, a backslash or a control character.
		for i+8 <= len(data) {
			found := special(binary.LittleEndian.Uint64(data[i:]))
			if found != 0 {
				i += bits.TrailingZeros64(found) / 8
				break
			}
			i += 8
		}
		if i >= len(data) {
			s.pos = len(data)
			return nil, false, s.fail("unexpected %s of the body in a string")
		}
		switch c := data[i]; {
		case c == '"':
			s.pos = i + 1
			return data[start:i], escaped, true
		case c == '\\':
			escaped = true
			n := escapeLength(data[i:])
			if n == 0 {
				s.pos = i
				return nil, false, s.fail("broken escape (%s)")
			}
			i += n
		case c < ' ':
			s.pos = i
			return nil, false, s.fail("unescaped control character %s in a string")
		default:
			i++
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special has the high bit of each lane of w that holds a quote, a backslash or a control character. A borrow may set
// the bit of a lane above a true one, never below, so the lowest set bit is exact.
func special(w uint64) uint64 {
	quote := w ^ ('"' * ones)
	slash := w ^ ('\\' * ones)
	return (((quote - ones) &^ quote) | ((slash - ones) &^ slash) | ((w - ' '*ones) &^ w)) & highs
}

// escapeLength is the length of the escape that rest starts with, 0 if it is none.
func escapeLength(rest []byte) int {
	if len(rest) < 2 {
		return 0
	}
	switch rest[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(rest); ok {
			return 6
		}
	}
	return 0
}

// hex4 reads the code unit of a \uXXXX escape.
func hex4(escape []byte) (rune, bool) {
	if len(escape) < 6 || escape[0] != '\\' || escape[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range escape[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape appends the text of a string whose escapes are valid. ok is false when it holds a lone surrogate.
func unescape(dst, content []byte) (text []byte, ok bool) {
	for i := 0; i < len(content); {
		c := content[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		switch c := content[i+1]; c {
		case 'u':
			r, _ := hex4(content[i:])
			i += 6
			if utf16.IsSurrogate(r) {
				low, _ := hex4(content[i:])
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return dst, false
				}
				i += 6
			}
			dst = utf8.AppendRune(dst, r)
			continue
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst, true
}

// wellFormed says whether a string whose escapes are valid holds no lone surrogate.
func wellFormed(content []byte) bool {
	for i := 0; i < len(content); {
		if content[i] != '\\' {
			i++
			continue
		}
		r, isUnit := hex4(content[i:])
		switch {
		case !isUnit:
			i += 2
		case !utf16.IsSurrogate(r):
			i += 6
		default:
			low, _ := hex4(content[i+6:])
			if utf16.DecodeRune(r, low) == utf8.RuneError {
				return false
			}
			i += 12
		}
	}
	return true
}

// text is the decoded form of a string's content, valid until the next call. ok is false for a lone surrogate.
func (s *scanner) text(content []byte, escaped bool) (text []byte, ok bool) {
	if !escaped {
		return content, true
	}
	s.scratch, ok = unescape(s.scratch[:0], content)
	return s.scratch, ok
}
