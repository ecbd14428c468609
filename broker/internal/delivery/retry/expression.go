package retry

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// MaxExpression is the longest expression, in bytes.
const MaxExpression = 1024

// maxDepth bounds how deep an expression is nested.
const maxDepth = 64

// Expression is a delay as a function of the number of retries so far, in milliseconds.
type Expression struct {
	source string
	eval   term
}

// term computes one part of an expression.
type term func(retried float64) float64

// functions of an expression, by the number of their arguments.
var (
	unary = map[string]func(float64) float64{
		"sqrt": math.Sqrt, "abs": math.Abs, "exp": math.Exp, "floor": math.Floor, "ceil": math.Ceil, "round": math.Round,
	}
	binary = map[string]func(a, b float64) float64{"pow": math.Pow, "min": math.Min, "max": math.Max}
)

// Parse reads an expression: numbers, the variable retried, + - * / and parentheses, and the functions pow,
// sqrt, abs, exp, floor, ceil, round, min and max.
func Parse(source string) (Expression, error) {
	if len(source) > MaxExpression {
		return Expression{}, fmt.Errorf("the expression is longer than %d bytes", MaxExpression)
	}
	p := parser{source: source}
	eval, err := p.sum()
	if err == nil {
		if p.skip(); p.at < len(source) {
			err = p.expected("an operator")
		}
	}
	if err != nil {
		return Expression{}, err
	}
	return Expression{strings.TrimSpace(source), eval}, nil
}

// String is the source.
func (e Expression) String() string { return e.source }

// Delay is the pause before the next attempt after so many retries: 0 before the first one. What is no
// number or negative is no delay, what is more than MaxDelay is MaxDelay.
func (e Expression) Delay(retried int) time.Duration {
	return clamp(e.eval(float64(retried)) * float64(time.Millisecond))
}

// parser is a recursive descent over the source.
type parser struct {
	source string
	at     int
	depth  int
}

func (p *parser) expected(what string) error {
	if p.at >= len(p.source) {
		return fmt.Errorf("expected %s at the end of the expression", what)
	}
	return fmt.Errorf("expected %s at byte %d of the expression", what, p.at+1)
}

func (p *parser) skip() {
	for p.at < len(p.source) && strings.IndexByte(" \t\r\n", p.source[p.at]) >= 0 {
		p.at++
	}
}

// next takes one of the given bytes, if it is the next one; else it returns 0.
func (p *parser) next(any string) byte {
	p.skip()
	if p.at < len(p.source) && strings.IndexByte(any, p.source[p.at]) >= 0 {
		p.at++
		return p.source[p.at-1]
	}
	return 0
}

func (p *parser) sum() (term, error) {
	if p.depth++; p.depth > maxDepth {
		return nil, fmt.Errorf("the expression is nested deeper than %d levels", maxDepth)
	}
	defer func() { p.depth-- }()
	return p.chain("+-", p.product)
}

func (p *parser) product() (term, error) { return p.chain("*/", p.sign) }

// chain reads operands with operators of one precedence between them. They are collected, not nested, so
// that evaluating a long chain takes no deep stack.
func (p *parser) chain(operators string, operand func() (term, error)) (term, error) {
	first, err := operand()
	if err != nil {
		return nil, err
	}
	type step struct {
		operator byte
		value    term
	}
	var steps []step
	for {
		operator := p.next(operators)
		if operator == 0 {
			break
		}
		value, err := operand()
		if err != nil {
			return nil, err
		}
		steps = append(steps, step{operator, value})
	}
	if len(steps) == 0 {
		return first, nil
	}
	return func(retried float64) float64 {
		total := first(retried)
		for _, s := range steps {
			switch v := s.value(retried); s.operator {
			case '+':
				total += v
			case '-':
				total -= v
			case '*':
				total *= v
			default:
				total /= v
			}
		}
		return total
	}, nil
}

func (p *parser) sign() (term, error) {
	negative := false
	for {
		switch p.next("+-") {
		case '-':
			negative = !negative
			continue
		case '+':
			continue
		}
		break
	}
	value, err := p.atom()
	if err != nil || !negative {
		return value, err
	}
	return func(retried float64) float64 { return -value(retried) }, nil
}

func (p *parser) atom() (term, error) {
	if p.next("(") != 0 {
		inner, err := p.sum()
		if err == nil && p.next(")") == 0 {
			err = p.expected("a closing parenthesis")
		}
		return inner, err
	}
	p.skip()
	if word := p.take(isLetter); word != "" {
		return p.word(word)
	}
	start := p.at
	text := p.take(func(c byte) bool { return isDigit(c) || c == '.' })
	if text == "" {
		return nil, p.expected("a number, retried or a function")
	}
	if p.at < len(p.source) && (p.source[p.at] == 'e' || p.source[p.at] == 'E') {
		text += p.exponent()
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		p.at = start
		return nil, p.expected("a number that can be represented")
	}
	return func(float64) float64 { return value }, nil
}

// exponent takes what follows a number as in 1e3.
func (p *parser) exponent() string {
	start := p.at
	p.at++
	if p.at < len(p.source) && (p.source[p.at] == '+' || p.source[p.at] == '-') {
		p.at++
	}
	if p.take(isDigit) == "" {
		p.at = start
	}
	return p.source[start:p.at]
}

func (p *parser) take(belongs func(byte) bool) string {
	start := p.at
	for p.at < len(p.source) && belongs(p.source[p.at]) {
		p.at++
	}
	return p.source[start:p.at]
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }

func (p *parser) word(word string) (term, error) {
	if word == "retried" {
		return func(retried float64) float64 { return retried }, nil
	}
	one, two := unary[word], binary[word]
	if one == nil && two == nil {
		p.at -= len(word)
		return nil, p.expected("retried or one of the functions, not " + word)
	}
	if p.next("(") == 0 {
		return nil, p.expected("an opening parenthesis")
	}
	a, err := p.sum()
	if err != nil {
		return nil, err
	}
	var b term
	if two != nil {
		if p.next(",") == 0 {
			return nil, p.expected("a comma")
		}
		if b, err = p.sum(); err != nil {
			return nil, err
		}
	}
	if p.next(")") == 0 {
		return nil, p.expected("a closing parenthesis")
	}
	if two != nil {
		return func(retried float64) float64 { return two(a(retried), b(retried)) }, nil
	}
	return func(retried float64) float64 { return one(a(retried)) }, nil
}
