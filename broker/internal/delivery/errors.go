package delivery

import "errors"

// Errors that callers tell apart with errors.Is.
var (
	// ErrUnavailable means that the database did not do its part in time. Nothing is known to have been changed.
	ErrUnavailable = errors.New("database unavailable")
	// ErrStopped means that the engine was stopped.
	ErrStopped = errors.New("stopped")
	// ErrNotFound means that there is no such message, task, topic or the like.
	ErrNotFound = errors.New("not found")
)
