// Command posthorn-conformance tests an implementation of the Posthorn API description.
//
//	posthorn-conformance run --target http://127.0.0.1:6632
//	posthorn-conformance run --config conformance.yaml
//	posthorn-conformance run --target URL --through ./my-sdk-peer
//	posthorn-conformance list --profile queue-core
//	posthorn-conformance explain push.dedup.window
//
// It exits with 0 when the target conforms (but for what is listed as known failing), 1 when it does not, and 2
// when the suite or its configuration is at fault.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	sdkgo "github.com/posthorn/posthorn/conformance/adapters/sdk-go"
	_ "github.com/posthorn/posthorn/conformance/server" // registers the specs
	"github.com/posthorn/posthorn/conformance/suite"
)

// The exit codes.
const (
	exitConformant    = 0
	exitNotConformant = 1
	exitBroken        = 2
)

const usage = `posthorn-conformance tests an implementation of the Posthorn API description.

  run      test a target                     (run --help lists the flags)
  list     list the requirements             [--profile NAME]
  explain  say all about one requirement     ID

Exit codes: 0 conformant, 1 not conformant, 2 the suite or its configuration failed.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func command(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return exitBroken
	}
	var (
		code int
		err  error
	)
	switch args[0] {
	case "run":
		code, err = run(ctx, args[1:], env, stdout, stderr)
	case "list":
		err = list(args[1:], stdout, stderr)
	case "explain":
		err = explain(args[1:], stdout)
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
	default:
		err = fmt.Errorf("unknown command %q", args[0])
	}
	if errors.Is(err, flag.ErrHelp) {
		return exitConformant
	}
	if err != nil {
		fmt.Fprintf(stderr, "posthorn-conformance: %v\n", err)
		return exitBroken
	}
	return code
}

func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) (int, error) {
	config, err := loadConfig(args, env, stderr)
	if err != nil {
		return exitBroken, err
	}
	known, err := readKnownFailing(config.KnownFailing)
	if err != nil {
		return exitBroken, err
	}
	plan := suite.Plan{
		Settings: suite.Settings{
			Target: config.Target, Capabilities: config.Capabilities,
			Tokens: config.Tokens, SigningSecret: config.SigningSecret, Listen: config.Listen, Advertise: config.Advertise,
		},
		Profiles:      config.Profiles,
		KnownFailing:  known,
		Out:           config.Out,
		Configuration: config.effective(),
		Version:       version(),
		Progress:      stdout,
	}
	switch config.Through {
	case "":
	case "sdk-go":
		plan.Through = suite.InProcess(sdkgo.Serve)
	default:
		plan.Through = suite.Command(config.Through)
	}
	report, err := suite.Run(ctx, plan)
	if err != nil {
		return exitBroken, err
	}
	if !report.Expected {
		return exitNotConformant, nil
	}
	return exitConformant, nil
}

// readKnownFailing reads one requirement id per line; # starts a comment. "" means none.
func readKnownFailing(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path) //nolint:gosec // the tester's own file
	if err != nil {
		return nil, fmt.Errorf("known failing: %w", err)
	}
	var ids []string
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if id := strings.TrimSpace(line); id != "" {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func list(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("list", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var profiles listFlag
	flags.Var(&profiles, "profile", "only the requirements of this profile; may be given more than once")
	if err := flags.Parse(args); err != nil {
		return err //nolint:wrapcheck // the flag package's message is complete
	}
	for _, profile := range profiles {
		if !slices.Contains(suite.Profiles(), profile) {
			return fmt.Errorf("unknown profile %q (known: %s)", profile, strings.Join(suite.Profiles(), ", "))
		}
	}
	for _, requirement := range suite.Description().Requirements() {
		if len(profiles) > 0 && !slices.Contains(profiles, requirement.Profile) {
			continue
		}
		needs := ""
		if len(requirement.Needs) > 0 {
			needs = " (needs " + strings.Join(requirement.Needs, ", ") + ")"
		}
		if requirement.Untestable != "" {
			needs += " (untestable)"
		}
		fmt.Fprintf(stdout, "%-48s %-15s %-7s %s%s\n",
			requirement.ID, requirement.Profile, requirement.Level, requirement.Text, needs)
	}
	return nil
}

func explain(args []string, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("explain takes the id of one requirement")
	}
	requirement, ok := suite.Description().Requirement(args[0])
	if !ok {
		return fmt.Errorf("the API description has no requirement %q", args[0])
	}
	fmt.Fprintf(stdout, "%s\n\n  %s\n\nlevel      %s\nprofile    %s\noperation  %s\nsource     %s\n",
		requirement.ID, requirement.Text, requirement.Level, requirement.Profile, requirement.Operation, requirement.Source)
	if operation, ok := suite.Description().Operation(requirement.Operation); ok {
		fmt.Fprintf(stdout, "route      %s %s\n", operation.Method, operation.Path)
	}
	if len(requirement.Needs) > 0 {
		fmt.Fprintf(stdout, "needs      %s\n", strings.Join(requirement.Needs, ", "))
	}
	if requirement.Untestable != "" {
		fmt.Fprintf(stdout, "untestable %s\n", requirement.Untestable)
	}
	for _, spec := range suite.Specs() {
		if spec.ID() == requirement.ID {
			fmt.Fprintf(stdout, "spec       %s\n", spec.Source())
		}
	}
	return nil
}

// version of the suite: the module's version in a released binary, else "devel".
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
