package suite

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"unicode/utf8"
)

// This file is the program-peer protocol, version 1: how the suite drives a client library in any language.
//
// The suite starts the program with the environment variable CONFORMANCE_TARGET set to the base URL that the
// library is to talk to and CONFORMANCE_TOKEN set to the token it is to show (empty: none), and ends it by closing its
// standard input. Both sides write one JSON object per line.
// Standard error is free for logs; it is shown when the program fails.
//
// First the program writes one Hello:
//
//	{"protocol":1,"name":"my-sdk","version":"1.2.3","operations":["push","pop","ack"]}
//
// "operations" are the operationIds the library can perform. A spec that needs another one is reported as
// unsupported. Then the suite writes calls, each of which the program answers with one reply carrying the same id,
// in any order; several calls may be in progress at once, and a long poll must not hold up the others:
//
//	{"id":7,"operation":"push","args":{"body":"{\"items\":[{\"queue\":\"q\",\"payload\":1}]}"}}
//	{"id":7,"status":201,"body":"[{\"index\":0,…}]"}
//
// "args" has up to five members: "path", "query" and "headers" (objects of strings; a query value and a header are lists
// of strings) and "body" or "bodyBase64". A body, in either direction, is JSON text inside a JSON string, so that payload
// bytes survive as they are. Operations that publish take headers, under the names of the API description, and any bytes
// for a body:
//
//	{"id":8,"operation":"publish","args":{"path":{"destination":"https://example.com/hook?x=1"},"headers":{"Upstash-Retries":["1"]},"body":"hello"}}
//
// The destination is as it was given, its query included. Such a body is in "bodyBase64" when it is not UTF-8. A call of
// an operation that takes neither has neither, so that a program which does not offer those operations need not know
// of them.
//
// The program translates args to whatever its library offers, calls it, and translates what the library returned
// back to the body of the response in the API description. It must not answer from anything but the library's
// results: the point is to see what a user of the library sees. What the library does not surface is left out of
// the body. An empty pop is {"status":204}.
//
// An error that the library reports for an HTTP response is that status with the body {"error":"<message>"}. An
// error without a response (refused locally, connection lost) is:
//
//	{"id":7,"error":"<message>"}

// ProtocolVersion is the version of the program-peer protocol that this suite speaks.
const ProtocolVersion = 1

// TargetVariable is the environment variable that tells a program peer the base URL of the target.
const TargetVariable = "CONFORMANCE_TARGET"

// TokenVariable is the environment variable that tells a program peer the token to show; empty means none.
const TokenVariable = "CONFORMANCE_TOKEN" //nolint:gosec // the name of a variable

// Hello is the first line a program peer writes.
type Hello struct {
	Protocol   int      `json:"protocol"`
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Operations []string `json:"operations"`
}

// Call is one line from the suite to the program.
type Call struct {
	ID        int64    `json:"id"`
	Operation string   `json:"operation"`
	Args      CallArgs `json:"args"`
}

// CallArgs are the inputs of a [Call].
type CallArgs struct {
	Path       map[string]string `json:"path,omitempty"`
	Query      url.Values        `json:"query,omitempty"`
	Headers    http.Header       `json:"headers,omitempty"`
	Body       *string           `json:"body,omitempty"`       // text, JSON but where the operation takes any bytes; absent means no body
	BodyBase64 string            `json:"bodyBase64,omitempty"` // instead of body when that is not UTF-8
}

// Reply is one line from the program to the suite. Either Status or Error is set.
type Reply struct {
	ID     int64   `json:"id"`
	Status int     `json:"status,omitempty"`
	Body   *string `json:"body,omitempty"` // JSON text; absent means no body
	Error  string  `json:"error,omitempty"`
}

func newCall(id int64, operationID string, args Args) Call {
	call := Call{ID: id, Operation: operationID, Args: CallArgs{Path: args.Path, Query: args.Query, Headers: args.Header}}
	switch {
	case args.Body == nil:
	case utf8.Valid(args.Body):
		text := string(args.Body)
		call.Args.Body = &text
	default:
		call.Args.BodyBase64 = base64.StdEncoding.EncodeToString(args.Body)
	}
	return call
}

// arguments returns the call's inputs as the wire peer would get them.
func (c Call) arguments() (Args, error) {
	args := Args{Path: c.Args.Path, Query: c.Args.Query, Header: c.Args.Headers}
	if c.Args.Body != nil {
		args.Body = []byte(*c.Args.Body)
	}
	if c.Args.BodyBase64 != "" {
		var err error
		if args.Body, err = base64.StdEncoding.DecodeString(c.Args.BodyBase64); err != nil {
			return Args{}, fmt.Errorf("bodyBase64: %w", err)
		}
	}
	return args, nil
}
