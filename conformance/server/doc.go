// Package server holds the specs for brokers. Importing it registers them with the suite.
//
// Each spec tests one requirement of the API description, by its id. A spec assumes nothing about the target's
// content: it makes its own queues, under names that nobody has used. Where time must pass, it configures windows of
// [suite.Target.Window] and lets them pass with [suite.Target.Elapse], so that it runs with the test clock at once and
// without it in a few seconds. Boundaries are tested on both sides.
package server
