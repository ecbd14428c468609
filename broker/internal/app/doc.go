// Package app is the broker as a program: its one configuration, the order in which its parts start,
// and how it stops.
//
// It promises that a broker which says it listens is ready to take any request; that SIGTERM and
// SIGINT stop it without losing what it has accepted: no new connection, parked pops answered,
// requests in flight finished within Config.StopTimeout, exit status 0; that a second signal ends it at
// once; that a broken configuration is refused with all of its problems in one message; and that no
// secret reaches the log or the output of the config command.
//
// It assumes a PostgreSQL that can be reached within startTimeout, or may start one itself in
// development mode.
//
// Exit statuses: 0 after a stop, 1 when the broker cannot start or run, 2 for a command line that
// cannot be understood.
package app
