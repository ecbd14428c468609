package bench

import (
	"errors"
	"fmt"
	"time"
)

// Mode is what a run measures.
type Mode string

// The modes.
const (
	Push     Mode = "push"    // producers only
	Pop      Mode = "pop"     // messages are loaded first, then popped and acknowledged
	EndToEnd Mode = "e2e"     // producers and consumers at the same time
	Publish  Mode = "publish" // messages that the broker delivers to a destination in this program
)

// AckMode is how consumers acknowledge what they popped.
type AckMode string

// The acknowledgement modes.
const (
	AckAll  AckMode = "all"  // one acknowledgement for each message, in one call per pop
	AckLast AckMode = "last" // the last message of each partition, which completes those before it
	AckAuto AckMode = "auto" // autoAck: the pop commits, no second call
)

// stampDigits is the width of the send time (nanoseconds since 1970) that an e2e payload starts with.
const stampDigits = 19

// MinStampedPayload is the smallest payload of modes e2e and publish: two quotes around the send time.
const MinStampedPayload = stampDigits + 2

// Config describes a run. There are no hidden defaults: DefaultConfig fills a Config, zero values are taken as they
// are and checked by Run.
type Config struct {
	Mode       Mode
	URL        string        // http://HOST:PORT of the broker, loopback
	Token      string        // sent with each request; "" means none
	Queue      string        // "" means a fresh name
	Group      string        // consumer group; "" means queue mode
	Conns      int           // connections of producers (push, e2e) or consumers (pop), one request in flight on each
	Consumers  int           // connections of consumers in mode e2e; 0 means Conns
	Batch      int           // messages in one push (push, e2e) or asked for by one pop (pop)
	PopBatch   int           // messages asked for by one pop in mode e2e
	Partitions int           // partitions the messages are spread over
	Claim      int           // partitions one pop may claim; 0 means no cap
	SpreadItem bool          // false: a request's items share one partition; true: each item goes to the next partition
	Payload    int           // bytes of JSON of each payload, quotes included
	Duration   time.Duration // measured time
	Warmup     time.Duration // the same load before it, not measured; 0 means none
	// MaxMessages ends a run early when that many messages were pushed (push, e2e).
	// In mode pop it is the number of messages loaded, and so the most that can be popped.
	MaxMessages int64
	Ack         AckMode
	Rate        int // messages per second over all producers; 0 means as fast as possible

	// Delay makes mode publish measure acceptance alone: no message is due within the run, and none is waited for. In whole
	// seconds; 0 means that messages are delivered.
	Delay time.Duration
	// Silent makes the destination of mode publish answer nothing, which leaves acceptance of what is due at once nearly
	// alone; false means that it answers.
	Silent bool

	BrokerPID   int // 0 means found through the listening port
	PostgresPID int // the postmaster; 0 means found among the broker's descendants or through Baseline

	Baseline      string // URL of the PostgreSQL to compare with; "" means no comparison. Modes push and publish only
	BaselineConns int    // database connections of the comparison; 0 means Conns
	Rounds        int    // alternating rounds of a comparison, Duration each
}

// DefaultConfig is the configuration whose figures the design talks about: single-message pushes of 28 bytes from 50
// callers into one partition.
func DefaultConfig(mode Mode) Config {
	return Config{
		Mode: mode, URL: "http://127.0.0.1:6632", Conns: 50, Batch: 1, PopBatch: 100, Partitions: 1, Claim: 1,
		Payload: 28, Duration: 10 * time.Second, Warmup: time.Second, MaxMessages: defaultMessages(mode), Ack: AckAll, Rounds: 3,
	}
}

func defaultMessages(mode Mode) int64 {
	if mode == Pop {
		return 200_000
	}
	return 50_000_000
}

// validate reports everything that is wrong with c.
func (c Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Mode == Push || c.Mode == Pop || c.Mode == EndToEnd || c.Mode == Publish, "mode %q: want push, pop, e2e or publish", c.Mode)
	check(c.Ack == AckAll || c.Ack == AckLast || c.Ack == AckAuto, "ack %q: want all, last or auto", c.Ack)
	check(c.Conns >= 1 && c.Conns <= 10_000, "conns %d: want 1 to 10000", c.Conns)
	check(c.Consumers >= 0 && c.Consumers <= 10_000, "consumers %d: want 0 to 10000", c.Consumers)
	check(c.Batch >= 1 && c.Batch <= 100_000, "batch %d: want 1 to 100000", c.Batch)
	check(c.PopBatch >= 1, "pop batch %d: want at least 1", c.PopBatch)
	check(c.Partitions >= 1 && c.Partitions <= 1_000_000, "partitions %d: want 1 to 1000000", c.Partitions)
	check(c.Claim >= 0, "claim %d: want at least 0", c.Claim)
	check(c.Duration > 0, "duration %v: want more than 0", c.Duration)
	check(c.Warmup >= 0, "warmup %v: want at least 0", c.Warmup)
	check(c.MaxMessages >= 1, "max messages %d: want at least 1", c.MaxMessages)
	check(c.Rate >= 0, "rate %d: want at least 0", c.Rate)
	check(c.Delay >= 0 && c.Delay%time.Second == 0, "delay %v: want whole seconds, at least 0", c.Delay)
	check(c.Delay == 0 && !c.Silent || c.Mode == Publish, "a delay and a silent destination are for mode publish")
	check(c.Rounds >= 1, "rounds %d: want at least 1", c.Rounds)
	check(c.BaselineConns >= 0, "baseline connections %d: want at least 0", c.BaselineConns)
	check(c.Baseline == "" || c.Mode == Push || c.Mode == Publish, "a baseline compares pushes or publishes: use mode push or publish")
	check(c.Mode != Publish || c.Batch == 1, "batch %d: mode publish sends one message at a time", c.Batch)
	smallest := 2
	if c.Mode == EndToEnd || c.Mode == Publish {
		smallest = MinStampedPayload
	}
	check(c.Payload >= smallest && c.Payload <= 16<<20, "payload %d: want %d bytes to 16 MiB", c.Payload, smallest)
	return errors.Join(errs...)
}

// acceptsOnly says that mode publish waits for no delivery.
func (c Config) acceptsOnly() bool { return c.Delay > 0 || c.Silent }
