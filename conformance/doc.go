// Package conformance is the root of the Posthorn conformance suite: a program that tests any
// implementation of the API description in the openapi module, directly over HTTP or through a
// client library.
//
// It promises that every MUST of the description is exercised by at least one spec or is listed as
// untestable with a reason, and that a green run has skipped nothing silently. It assumes a target that
// speaks HTTP/1.1 and may be used by others at the same time: queue names are fresh for each spec. It
// fails with exit code 1 when the target does not conform, and with 2 when the suite itself or its
// configuration is at fault.
//
// The parts:
//
//   - cmd/posthorn-conformance is the program.
//   - suite is the engine: requirements, peers, capabilities, the run and its reports.
//   - server holds the specs for brokers.
//   - reference is an in-memory broker with named defects, on which the suite itself is tested.
//   - adapters/sdk-go drives the Go client library through the program-peer protocol, which
//     suite/protocol.go documents.
package conformance
