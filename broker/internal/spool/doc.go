// Package spool keeps records on disk while the database that they are meant for cannot take them.
//
// A record is opaque bytes, the key of the lane whose order it belongs to, and the time it was
// accepted at. The package knows nothing of messages, of a database or of HTTP.
//
// # What it promises
//
// Durability: when Append returns nil, the records and the directory entries that lead to them have
// been fsynced. Calls that arrive while an fsync is under way share the next one (group commit), so
// that the cost of an fsync is divided by the number of concurrent callers.
//
// All or none: when Append fails, none of its records is ever read, by this process or after a
// restart. The one exception says so: an error that wraps ErrUncertain. A process that dies inside
// Append leaves an unacknowledged call of which some first records may be read after the restart.
//
// Order: Read returns records in the order in which they were accepted. Of two calls that did not
// overlap, the earlier one comes first.
//
// At least once: a record is read again and again, over restarts too, until Done or Quarantine has
// returned nil for it; a crash in between delivers it again. The reader must be idempotent.
//
// Honest damage: a frame that fails its checksums is never handed out. The frames before and behind
// it are. The bytes between are copied into the failed area and counted there, with a log line.
//
// # What it assumes
//
// A local file system whose fsync means it, whose rename is atomic, and which a restart finds in a
// state that its fsyncs allow. One process per directory: a second one is refused with ErrLocked. The
// files belong to the package; moving a record out of the failed area by hand is fine while the broker
// is stopped.
//
// # How it fails
//
// A failed write or fsync fails the calls that shared it, and nothing else: what was acknowledged
// before stays. The descriptor is never used again, because the kernel reports a lost page once and
// then calls it clean; the file is cut back to what was acknowledged through a new descriptor and
// sealed, and the next Append begins a new file. What was acknowledged is read back when it is drained,
// checksums and all. So the spool works again as soon as the disk does. No space left, and
// Config.MaxBytes reached, are ErrFull.
//
// An unreadable sector is an error of Read or Open that names the file: the package does not decide to
// go on without records that may still be readable.
//
// # Files
//
//	DIR/id                          the spool's name, a UUID, chosen when it is first asked for
//	DIR/lock                        held with flock by the broker that uses the directory
//	DIR/NUMBER-SALT.spool           a segment: frames one after the other (see frame.go)
//	DIR/NUMBER-SALT.marks           which of its records are drained; replaced as a whole
//	DIR/failed/NUMBER-SALT-RECORD.record       a quarantined record, with the reason
//	DIR/failed/NUMBER-SALT-START-END.damaged   bytes of a segment that are no frame
//
// NUMBER is the order of the segments, SALT is random; both are 16 hexadecimal digits. They are in the
// name and not in the file, so that no damage inside a file can make the rest of it unreadable. A
// segment is deleted when all of its records are drained. Files that exist when the spool is opened are
// never appended to.
//
// # Memory
//
// Besides one entry for each lane with records, 24 bytes for every 64 records. Opening reads all
// segments once, a window of 256 KiB at a time.
package spool
