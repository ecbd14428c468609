// Command verify runs everything that a change must pass, as `make test` does:
//
//  1. the broker's tests, under the race detector where this machine can build with it;
//  2. the tests of the other modules;
//  3. tools/endtoend: the built broker, over the wire and through the client library.
//
// All steps run, also after one failed, so that one run tells everything. It exits with 1 when any failed. The last
// lines are those of go test.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// endToEnd is the package that runs last and alone: it measures times, which other tests would disturb.
const endToEnd = "github.com/posthorn/posthorn/tools/endtoend"

// testTimeout bounds one package's tests.
const testTimeout = "20m"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := verify(ctx, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		os.Exit(1)
	}
}

func verify(ctx context.Context, stdout, stderr io.Writer) error {
	root, err := workspace(ctx)
	if err != nil {
		return err
	}
	g := goCommand{dir: root, stdout: stdout, stderr: stderr}

	broker := []string{"test", "-timeout", testTimeout}
	if why := g.cannotRace(ctx); why == "" {
		broker = append(broker, "-race")
	} else {
		fmt.Fprintf(stderr, "verify: the broker is tested without the race detector: %s\n", why)
	}
	rest, err := g.packages(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, step := range []struct {
		name string
		args []string
	}{
		{"broker", append(broker, "./broker/...")},
		{"other modules", append([]string{"test", "-timeout", testTimeout}, rest...)},
		{"end to end", []string{"test", "-count=1", "-v", "-timeout", "30m", endToEnd}},
	} {
		start := time.Now()
		if err := g.run(ctx, step.args...); err != nil {
			failed = append(failed, fmt.Errorf("%s failed after %v: %w", step.name, time.Since(start).Round(time.Second), err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// workspace is the directory of the go.work file.
func workspace(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	file := strings.TrimSpace(string(out))
	if file == "" || file == "off" {
		return "", errors.New("no go.work: run inside the checkout, without GOWORK=off")
	}
	return filepath.Dir(file), nil
}

// goCommand runs the go command in the checkout.
type goCommand struct {
	dir            string
	stdout, stderr io.Writer
}

func (g goCommand) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are this file's
	cmd.Dir = g.dir
	// Interrupted, go test ends its tests in order; kill it only when it does not.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd
}

func (g goCommand) run(ctx context.Context, args ...string) error {
	cmd := g.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = g.stdout, g.stderr
	return cmd.Run()
}

// packages lists the packages of all modules but the broker, without those of endToEnd.
func (g goCommand) packages(ctx context.Context) ([]string, error) {
	cmd := g.command(ctx, "list", "./openapi/...", "./sdk-go/...", "./conformance/...", "./tools/...")
	cmd.Stderr = g.stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	all := strings.Fields(string(out))
	return slices.DeleteFunc(all, func(p string) bool { return p == endToEnd }), nil
}

// cannotRace says why this machine cannot build with the race detector; "" when it can. A trial build is the only
// test that knows all reasons: no C compiler, cgo switched off, no support for the platform.
func (g goCommand) cannotRace(ctx context.Context) string {
	cmd := g.command(ctx, "build", "-race", "-o", os.DevNull, "./tools/cmd/verify")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return cmp.Or(strings.TrimSpace(lines[len(lines)-1]), err.Error())
}
