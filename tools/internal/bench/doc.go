// Package bench measures a broker through its HTTP API, and a plain table of the same PostgreSQL for comparison.
//
// It promises figures that mean what they say: only answers that carry the expected content count as messages, every
// other answer is counted by kind, latency is taken from just before a request is written until its answer has been
// read whole, and rates use the time until the last answer, not the time that was asked for. Warm-up is never part
// of a figure.
//
// It assumes that the broker runs on this machine. Targets that are not loopback are refused, both for the broker and
// for PostgreSQL: the package is a load generator, and a load generator is never pointed at somebody else's machine.
// The load generator shares the processors with what it measures, so each connection has one goroutine that writes a
// prepared request and reads the answer in place; it still reports its own CPU time, so that a reader can tell how
// much of the machine the measured broker had.
//
// It fails with an error when the target is refused, when the first request cannot be answered, or when the
// configuration makes no sense. Errors during a run do not end it: they are part of the report.
package bench
