// Package request reads what a publish asks for: the destination in the path, and the Upstash-* headers.
//
// Promises: each value is read the same way wherever it stands (path, header, query parameter, batch item,
// schedule), and what is refused names the header and the rule. Nothing is truncated or repaired in silence,
// but for the two spellings of a URL that proxies make of it: percent-encoded as a whole, and with the two
// slashes behind the scheme collapsed into one.
//
// Fails: with *Error for whatever the caller wrote wrong. Its text is what the wire answers.
package request
