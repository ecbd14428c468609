package spool

import "github.com/posthorn/posthorn/broker/internal/failpoint"

// Where tests kill the process.
var (
	segmentCreated = failpoint.New("spool.segment.created") // its name is not durable yet
	appendBegun    = failpoint.New("spool.append.begun")
	appendWritten  = failpoint.New("spool.append.written")
	appendSynced   = failpoint.New("spool.append.synced") // durable, nobody has been told
	doneCleared    = failpoint.New("spool.done.cleared")  // drained in memory only
	tempWritten    = failpoint.New("spool.temp.written")  // marks or a failed record, before the rename
	marksWritten   = failpoint.New("spool.marks.written")
	fileRemoved    = failpoint.New("spool.file.removed")    // the directory is not synced yet
	segmentRemoved = failpoint.New("spool.segment.removed") // its marks are still there
)
