// Package conformance is the root of the Posthorn conformance suite.
package conformance
