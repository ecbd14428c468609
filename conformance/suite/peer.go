package suite

import (
	"context"
	"net/http"
	"net/url"
)

// Peer carries calls to the target: over HTTP, or through a client library in another process.
type Peer interface {
	// Call performs one operation of the API description. The outcome is whatever the target answered; the
	// error is only for a call that brought no answer.
	Call(ctx context.Context, operationID string, args Args) (Outcome, error)
}

// Args are the inputs of one operation.
type Args struct {
	// Path are the path parameters, unescaped. One that takes the rest of the path is as it stands there: the query of a
	// destination is part of it.
	Path   map[string]string
	Query  url.Values
	Header http.Header // beside those that every call has; nil means none
	Body   []byte      // JSON text, or any bytes where the operation takes those, kept byte for byte; nil means no body
}

// Outcome is what the target answered.
type Outcome struct {
	Status int
	Body   []byte // nil when there is none
}
