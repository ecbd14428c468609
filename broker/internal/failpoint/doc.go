// Package failpoint ends the process at a named place, as a crash would, so that tests can kill a real
// broker where it hurts.
//
// A place is a package variable, and passing it costs one atomic read while it is not armed:
//
//	var synced = failpoint.New("spool.append.synced")
//
//	synced.Hit()
//
// Arm arms places by name; the broker does so from POSTHORN_FAILPOINTS, which it takes under --testing
// only. An armed place kills the process with SIGKILL: no deferred call runs, no buffer is flushed, no
// connection is closed in order.
//
// It assumes that New is called from package variables, so that every place is known before Arm runs, and
// fails by panicking when two places have one name.
package failpoint
