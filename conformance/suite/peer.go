package suite

import (
	"context"
	"encoding/json"
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
	Path  map[string]string // path parameters, unescaped
	Query url.Values        // query parameters
	Body  json.RawMessage   // JSON text, kept byte for byte; nil means no body
}

// Outcome is what the target answered.
type Outcome struct {
	Status int
	Body   []byte // nil when there is none
}
