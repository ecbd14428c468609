// Package embedpg runs a private PostgreSQL server for `posthorn dev`: it finds
// or fetches the server's programs, initialises a data directory, starts the
// server, watches it and stops it.
//
// # What it promises
//
// The server is a real, fully durable PostgreSQL: fsync, synchronous_commit and
// full_page_writes are on unless Config.Settings says otherwise. It listens on a
// Unix socket only, in a directory of mode 0700, so no other ordinary user of
// the machine can log in. One live process uses a data directory at a time: the
// directory holds a locked file (owner.lock), and a second Start gets an
// *InUseError. A server that dies is started again until Stop, with the same
// URL.
//
// Start recovers what a crash left behind, whichever process was killed and
// whenever: a half-initialised directory (initdb runs beside the final place and
// is renamed into it), a stale postmaster.pid, a server that outlived its
// broker (it is shut down first), and shared memory that is in use for some
// seconds more (the start is retried).
//
// PostgreSQL refuses to run as root. When the calling process is root, the
// server runs as the non-root owner of an existing data directory, else as user
// postgres, else as user nobody.
//
// # What it assumes
//
// Linux or macOS, PostgreSQL 14 or newer, and a data directory on a local file
// system where flock works. On other systems Start returns
// errors.ErrUnsupported.
//
// # The data directory
//
//	owner.lock            locked by the live owner; holds its process id
//	postgres/             PostgreSQL's own data directory
//	postgres.init-*/      an initialisation in progress
//	postgres.log, .log.1  the server's log, at most about 2 x 16 MiB
//	run/                  the socket, unless that path is too long for one
//
// # How it fails
//
// Start's errors name the directory or program concerned and quote the last
// lines of the server's log. *InUseError, *VersionError and ErrNoBinaries can be
// told apart with errors.As and errors.Is.
package embedpg
