// Package delivery is the publish half: messages that the broker delivers by HTTP, with delays, retries, callbacks,
// deduplication and a log of what happened to each, over PostgreSQL.
//
// # What it promises
//
// A message that was accepted is delivered or dead-lettered, after at most 1 + retries attempts, whatever brokers crash and
// whatever commits get lost; a destination may see a message more than once, and recognises it by its id. No attempt
// starts before its time. Inside the deduplication window an id is accepted once. What an attempt brought, the next one,
// the callback and the log entries are committed together, or not at all.
//
// # How
//
// What is published at the same moment is committed together. A message that is due at once is written as leased already,
// and handed over in memory, so that it costs one commit before its first attempt and one after it. Everything else waits
// in an index by its time, from which brokers take it in batches without waiting for each other's locks.
//
// Leases belong to the broker, not to the message: a broker shows every few seconds that it is alive, and what a
// broker held that no longer is becomes free. Outcomes are fenced by the lease and by the number of the attempt, so that
// whoever lost a lease changes nothing.
//
// Each host has a bound on its attempts at once, which grows while it answers and shrinks while it does not, and hosts take
// turns. So has what it holds of workers whose outcomes are being committed, or a host that refuses at once would have them
// all. Due messages of a host that has its share wait in the database, out of the way of others.
//
// Messages of a delivery queue or with a flow control key wait in lanes too, until one of the brokers lets them pass: see
// gate.go. The bounds hold for all brokers together. An attempt counts in the period in which its key lets it pass, which
// is a moment before it begins, or longer when its host has its share already.
//
// # What it assumes
//
// A migrated schema (package pg) and READ COMMITTED. Due times are the database's, the test clock's offset included; leases
// are judged by the database's real clock. No session state is used.
//
// # How it fails
//
// Without PostgreSQL everything answers ErrUnavailable. Attempts whose outcome cannot be written hold their workers and
// are written when PostgreSQL is back; no new ones start meanwhile.
package delivery
