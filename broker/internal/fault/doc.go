// Package fault makes what the broker rests on fail on demand, so that a test sees how it behaves then: the
// connections to PostgreSQL, the writes of the spool, or the appends of single partitions.
//
// PostgreSQL fails where a network fails: connections break, are refused, or carry nothing any more. What
// is above, the driver, the pool and the engine, meets the same errors as in an outage. A partition fails
// where its append would begin.
//
// It promises to cost nothing where there is no Set: methods of a nil *Set find no fault, and connections
// are wrapped only where a Set does it. A broker has a Set under --testing only.
package fault
