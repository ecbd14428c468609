package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

// Exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // a second signal, as shells report an interrupt
)

// shortRevision is the length of a revision in a version, as git shortens it for a large repository.
const shortRevision = 12

const usageText = `Posthorn is a durable message broker over PostgreSQL with an HTTP API.

Usage:
  posthorn dev [flags]      run with a managed local PostgreSQL, unless a database is named
  posthorn serve [flags]    run with the PostgreSQL in DATABASE_URL or PG_HOST
  posthorn config [flags]   print the effective configuration, secrets masked
  posthorn version          print the version
  posthorn help             print this, and all flags and variables
`

// Program is what a run of the program has to do with.
type Program struct {
	Args    []string // without the program's name
	Getenv  func(string) string
	Stdout  io.Writer // what the user asked for, and the line that says where the broker listens
	Stderr  io.Writer // logs and errors
	Version string    // "" means what the build recorded
}

// Main runs one command and returns the exit status.
func (p Program) Main() int {
	if p.Version == "" {
		p.Version = buildVersion()
	}
	if len(p.Args) == 0 {
		_, _ = io.WriteString(p.Stderr, usageText)
		return exitUsage
	}
	switch command, args := p.Args[0], p.Args[1:]; command {
	case "dev", "serve":
		return p.broker(command, args)
	case "config":
		return p.config(args)
	case "version", "--version":
		_, _ = fmt.Fprintf(p.Stdout, "posthorn %s %s %s/%s\n", p.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return exitOK
	case "help", "-h", "--help":
		p.help(p.Stdout)
		return exitOK
	default:
		_, _ = fmt.Fprintf(p.Stderr, "posthorn: unknown command %q\n\n%s", command, usageText)
		return exitUsage
	}
}

func (p Program) help(w io.Writer) {
	c := DefaultConfig()
	_, _ = io.WriteString(w, usageText+"\nFlags and variables (flag before variable before default):\n")
	printSettings(c.settings(), w)
}

// broker runs until a signal. The first one stops it, the second one ends it.
func (p Program) broker(command string, args []string) int {
	cfg, _, err := load(args, p.Getenv)
	if err != nil {
		return p.refuse(err)
	}
	if command == "serve" && !cfg.hasDatabase() {
		return p.refuse(errors.New("serve needs a database: set DATABASE_URL or PG_HOST (or run posthorn dev)"))
	}
	if loopback, _ := loopbackAddress(cfg.Listen); command == "dev" && !loopback {
		return p.refuse(errors.New("POSTHORN_LISTEN (--listen): posthorn dev listens on a loopback address only; for others there is posthorn serve"))
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitInterrupted)
	}()
	log := newLogger(cfg, p.Stderr)
	if err := Run(ctx, cfg, p.Version, log, p.Stdout); err != nil {
		log.Error("stopped", "error", err)
		return exitFailed
	}
	return exitOK
}

func (p Program) config(args []string) int {
	_, table, err := load(args, p.Getenv)
	if err != nil {
		return p.refuse(err)
	}
	printEffective(table, p.Stdout)
	return exitOK
}

// refuse tells what is wrong with a command line or a configuration.
func (p Program) refuse(err error) int {
	switch {
	case errors.Is(err, flag.ErrHelp):
		p.help(p.Stdout)
		return exitOK
	case errors.Is(err, errUsage):
		_, _ = fmt.Fprintf(p.Stderr, "posthorn: %v\n\n%s", err, usageText)
		return exitUsage
	default:
		_, _ = fmt.Fprintf(p.Stderr, "posthorn: the configuration is not usable:\n%v\n", err)
		return exitFailed
	}
}

// buildVersion is what the Go toolchain recorded: the version of the module, or the revision of the
// checkout that was built.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= shortRevision {
			return "devel-" + s.Value[:shortRevision]
		}
	}
	return "devel"
}
