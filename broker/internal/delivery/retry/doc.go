// Package retry says when a delivery that failed is tried again: by what the destination asked for, by the
// publisher's expression, or by the default backoff.
//
// Promises: an expression that parses can be evaluated for every number of retries; the result is a delay
// from nothing to MaxDelay, whatever the arithmetic came to. Parsing and evaluating take time and memory
// linear in a source of at most MaxExpression bytes.
//
// Fails: with an error that names the place in the expression.
package retry
