// Package sdkgo is the program peer of the Go client library: it performs the suite's calls with package posthorn.
//
// It answers with what the library returned and nothing else, so that a spec that passes through it has seen what a
// user of the library sees. What the library does not surface (the partition of a pop's answer, indexes) is left out of
// the bodies, and the library's own retries are switched off, so that each call is one request. It assumes the calls of
// the suite's specs; a call that the library cannot express is answered with an error.
package sdkgo
