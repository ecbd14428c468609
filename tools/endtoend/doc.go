// Package endtoend holds the tests of the programs as they are shipped: it builds the broker, the conformance suite and
// the benchmark, starts `posthorn dev --testing` on a free port with an empty data directory, and talks to it as a user
// would.
//
// It promises to leave nothing behind: no process, no directory. It assumes the Go command, and a PostgreSQL that the
// broker can find or fetch. The tests share one broker, so that a run costs one initialisation of a database; each uses
// queues of its own. A failing test shows the end of the broker's log.
//
// They take minutes and measure times, so they run alone (see tools/cmd/verify) and are skipped with -short.
package endtoend
