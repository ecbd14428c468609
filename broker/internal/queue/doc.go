// Package queue is the partitioned log: push, pop, ack, transactions, leases, consumer groups and queue settings over PostgreSQL.
//
// # What it promises
//
// A message answered as Queued is committed and visible to pops of every broker of the database.
// Inside a queue's deduplication window no partition holds two messages of one transaction id,
// whatever brokers crash or commits get lost. Messages of a partition are delivered in offset
// order, at most one live lease at a time per consumer group. A lease is fenced: an ack with a
// lease that is no longer the live one changes nothing.
//
// # How
//
// The log (segments of packed messages) is the only thing a push writes. Every index over it lives
// in the broker's memory. A partition belongs to one of a few shards, and each shard has a head: a
// number that every append moves by one, and only from the value that the appending broker knows.
// The head therefore proves that the broker's memory of the shard is complete, which makes the
// deduplication in memory as exact as a unique index. When another broker has moved the head, the
// flush rows tell what it appended; the broker folds that into its memory and decides again.
//
// Pops wait in memory. What has something for a group is a set in memory too, fed by appends,
// acks and expiring leases; the cursor rows in PostgreSQL decide, by conditional updates.
// What another broker did to them is learned when such an update misses, and by a sweep.
//
// A transaction appends to many partitions, acknowledges many messages and does one more step of its
// caller's in one database transaction. It locks what that step locks, then heads in ascending order, then
// cursors in order, so that nobody waits in a circle, and leaves a mark by which a lost commit is found.
//
// # What it removes
//
// Retention empties the segments at the front of a partition and moves the partition's start behind them, by one
// broker at a time and in short transactions (retention.go). A partition's last segment row always stays, so that
// offsets and times never go back. Partitions that are empty and idle go by their shard's head (cleanup.go).
//
// # What it assumes
//
// A migrated schema (package pg), READ COMMITTED, and a database clock. All times that decide are
// the database's. No session state is used, so a transaction-mode pooler may stand in between.
//
// # How it fails
//
// Without PostgreSQL a push answers Buffered for what its spool takes, Failed without one, everything else
// answers ErrUnavailable; no call outlives its deadline, and the engine recovers by itself.
// A commit whose outcome is unknown is looked up by its token and, if it did not happen, retried
// once with the same message ids.
package queue
