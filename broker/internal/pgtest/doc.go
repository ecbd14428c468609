// Package pgtest gives tests a real PostgreSQL.
//
// # What it promises
//
// Main starts one server for the test process and stops it at the end. URL gives
// each test a database of its own, migrated, dropped when the test ends; so tests
// run in parallel without seeing each other. A test that breaks its server takes
// a private one from StartServer.
//
// # What it assumes
//
// PostgreSQL is installed, or can be fetched, as package embedpg describes. The
// servers keep synchronous_commit on but fsync off: they survive a kill, not a
// power failure.
//
// # How it fails
//
// Without PostgreSQL Main says why and exits with status 2; there is no skip. A
// test process that is killed cannot clean up: on Linux its server ends with it,
// and the next Main removes what it left on disk.
package pgtest
