// Package suite is the engine of the conformance suite: it ties specs to the requirements of the API
// description, runs them against a target, and reports by requirement.
//
// It promises that
//   - a spec of an unknown requirement panics when the program starts;
//   - every response that a spec receives is checked against the description, and so is every request
//     unless the spec sends bad input on purpose;
//   - a capability that the tester declared is held to: when it does not work, specs fail and are not
//     skipped;
//   - a failed spec carries the HTTP exchanges that led to it.
//
// It assumes that specs run one at a time within one [Session], because the test clock belongs to the whole
// target. Several sessions may run at once in one process, each against its own target.
//
// Specs are values ([Spec]), so that they can also be run without Ginkgo: the tests of the suite run them
// against defective brokers. [Run] wraps each of them in an It.
package suite
