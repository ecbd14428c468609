// Package pg is how the broker reaches PostgreSQL: it opens the connection pool,
// brings the schema up to date and says what a database error means.
//
// # What it promises
//
// Every dial has a timeout, and a silent network is noticed. Connections keep no
// session state, so that a pooler in transaction mode may stand in between; when
// one does, named prepared statements are not used. A connection that failed, or
// that reports a server which cannot write any more, is destroyed and never goes
// back to the pool.
//
// Migrations run whole or not at all, once, however many brokers start at the
// same moment. They are only ever added to; a schema newer than this program, or
// one made by an altered file, is refused.
//
// # What it assumes
//
// PostgreSQL 14 or newer, and a role that may create tables in the first schema
// of its search path. Statement deadlines come from the caller's context.
//
// # How it fails
//
// An error is classed by Unavailable, Retryable and UnknownOutcome. The classes
// overlap: a connection lost during COMMIT is both unavailable and of unknown
// outcome. A statement error that is in none of them (a constraint, a syntax
// error) will fail again. *NewerSchemaError and *ChecksumError tell why Migrate
// refused.
package pg
