// Package reference is a small in-memory broker that implements the queue contract, on which the conformance suite is
// tested.
//
// It promises the behaviour of the API description and nothing else: no durability, no speed, one lock around
// everything. It can be made defective on purpose: each [Mutation] breaks one rule, and the suite's tests assert that
// exactly the requirements of that rule then fail. It assumes few queues and short-lived processes: messages are never
// deleted. It is not a broker to run.
package reference
