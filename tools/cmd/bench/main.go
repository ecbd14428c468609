// Command bench measures a broker on this machine.
//
//	bench push|pop|e2e|publish [flags]
//
// It exits with 0 when every request was answered as expected, 1 when some were not, 2 when nothing could be measured.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/posthorn/posthorn/tools/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, asJSON, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	report, err := bench.Run(ctx, cfg)
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	} else {
		err = report.WriteText(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench: write report:", err)
		return 2
	}
	if report.Failed() {
		return 1
	}
	return 0
}

const usage = `usage: bench push|pop|e2e|publish [flags]

  push     producers push as fast as they can
  pop      loads -max-messages messages, then pops and acknowledges them
  e2e      producers and consumers together; delivery is the time from push to pop
  publish  messages that the broker delivers to a destination in this program; delivery is the time from publish to arrival

The target must be on this machine. POSTHORN_TOKEN is the token of a broker that asks for one. push and publish take -baseline to compare with rows inserted into the same PostgreSQL.

`

func parse(args []string, stderr io.Writer) (bench.Config, bool, error) {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return bench.Config{}, false, errors.New("name a mode")
	}
	mode := bench.Mode(args[0])
	cfg := bench.DefaultConfig(mode)
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&cfg.URL, "url", cfg.URL, "broker, loopback only")
	cfg.Token = os.Getenv("POSTHORN_TOKEN") // command lines are visible to others
	fs.StringVar(&cfg.Queue, "queue", "", "queue (default a fresh name)")
	fs.StringVar(&cfg.Group, "group", "", "consumer group (default queue mode)")
	fs.IntVar(&cfg.Conns, "conns", cfg.Conns, "connections of producers (push, e2e, publish) or consumers (pop)")
	fs.IntVar(&cfg.Consumers, "consumers", 0, "connections of consumers, e2e (default -conns)")
	fs.IntVar(&cfg.Batch, "batch", cfg.Batch, "messages in one push, or asked for by one pop in mode pop")
	fs.IntVar(&cfg.PopBatch, "pop-batch", cfg.PopBatch, "messages asked for by one pop, e2e")
	fs.IntVar(&cfg.Partitions, "partitions", cfg.Partitions, "partitions to spread messages over")
	fs.IntVar(&cfg.Claim, "claim", cfg.Claim, "partitions that one pop may claim, 0 = no cap")
	fs.BoolVar(&cfg.SpreadItem, "spread-items", false, "each item of a push goes to the next partition, not each push")
	fs.IntVar(&cfg.Payload, "payload", cfg.Payload, "bytes of each payload")
	fs.DurationVar(&cfg.Duration, "duration", cfg.Duration, "measured time")
	fs.DurationVar(&cfg.Warmup, "warmup", cfg.Warmup, "load before the measured time")
	fs.Int64Var(&cfg.MaxMessages, "max-messages", cfg.MaxMessages, "end after pushing this many; in mode pop the number that is loaded")
	fs.Func("ack", "all | last | auto: acknowledge each message, the last of each partition, or inside the pop (default all)", func(s string) error {
		cfg.Ack = bench.AckMode(s)
		return nil
	})
	fs.IntVar(&cfg.Rate, "rate", 0, "messages per second over all producers, 0 = as fast as possible")
	fs.DurationVar(&cfg.Delay, "delay", 0, "mode publish: messages are due so much later, in seconds, to measure acceptance alone (default 0, they are delivered)")
	fs.BoolVar(&cfg.Silent, "silent", false, "mode publish: the destination answers nothing, to measure acceptance of what is due at once")
	fs.IntVar(&cfg.BrokerPID, "broker-pid", 0, "broker process for the cpu figures (default: who listens on the target's port)")
	fs.IntVar(&cfg.PostgresPID, "postgres-pid", 0, "postmaster for the cpu figures (default: below the broker, or who listens where -baseline says)")
	fs.Func("baseline", "`URL` of the broker's PostgreSQL, loopback or Unix socket, or env for that in DATABASE_URL: alternate with row inserts", func(s string) error {
		cfg.Baseline = s
		if s != "env" {
			return nil
		}
		if cfg.Baseline = os.Getenv("DATABASE_URL"); cfg.Baseline == "" {
			return errors.New("DATABASE_URL is not set")
		}
		return nil
	})
	fs.IntVar(&cfg.BaselineConns, "baseline-conns", 0, "database connections of the baseline (default -conns)")
	fs.IntVar(&cfg.Rounds, "rounds", cfg.Rounds, "rounds of a comparison")
	asJSON := fs.Bool("json", false, "print the report as JSON")
	if mode == "-h" || mode == "-help" || mode == "--help" {
		fs.Usage()
		return cfg, false, flag.ErrHelp
	}
	if err := fs.Parse(args[1:]); err != nil {
		return cfg, false, err
	}
	if fs.NArg() > 0 {
		return cfg, false, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return cfg, *asJSON, nil
}
