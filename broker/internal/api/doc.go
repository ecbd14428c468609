// Package api is the HTTP edge of the broker: it turns requests into calls of the queue engine and
// results into answers.
//
// It promises that every exchange obeys the API description: the route table and the description
// are compared when the handler is built, each request is checked before its handler runs, and each
// answer is checked before its first byte is sent. An answer that the description does not allow is
// logged and replaced by a 500. An error is always a JSON object with the key "error".
//
// Bodies are bounded one by one and in sum, and an exchange that makes no progress is cut off, so a
// client cannot hold memory for long. A refused body is dropped for a while after the answer, so that a
// client which sends first and reads afterwards gets to read it. Answers are built in memory before they
// are sent; a pop is bounded by its batch.
//
// What a web page makes a browser send is refused where it would change something; what net/http refuses
// before it calls the handler, such as a malformed percent escape in a path, is answered by net/http in
// plain text. A failed request is one line of the log, with its reason and its request id; an administrative
// action is one more, which says who asked for it.
//
// With an Authenticator, a token is asked for before anything of a body is read, and the access levels of the
// API description decide what its roles may do.
//
// It assumes that the engine is open and started, and that somebody else listens and stops. It never sees SQL or pgx. Wire types, wire names and status codes live here and nowhere
// else; errors.go is the one place that makes a status of an error.
package api
