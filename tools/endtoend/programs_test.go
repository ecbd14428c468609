package endtoend

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// startLimit bounds a start of the broker, the fetching of a PostgreSQL included.
	startLimit = 5 * time.Minute
	// stopLimit bounds an orderly stop.
	stopLimit = time.Minute
)

// module is the prefix of our packages.
const module = "github.com/posthorn/posthorn/"

// brokerProgram is the built broker.
var brokerProgram string

// shared is the broker that all tests use.
var shared *broker

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		os.Exit(m.Run())
	}
	code, err := around(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "endtoend:", err)
		code = 1
	}
	os.Exit(code)
}

// around builds, starts, runs the tests and stops.
func around(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "posthorn-endtoend-")
	if err != nil {
		return 1, fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// As root, PostgreSQL runs as another user, who must be able to reach its data.
	if err := os.Chmod(dir, 0o711); err != nil {
		return 1, fmt.Errorf("open the directory: %w", err)
	}
	ctx := context.Background()
	brokerProgram = filepath.Join(dir, "posthorn")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", brokerProgram, module+"broker/cmd/posthorn").CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the broker: %w\n%s", err, out)
	}
	shared, err = startBroker(ctx, dir, "dev", "--testing", "--data", filepath.Join(dir, "data"))
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.stop()) }()
	return m.Run(), nil
}

// broker is a running broker process.
type broker struct {
	url         string
	databaseURL string // of its managed PostgreSQL, as it printed it; "" without one
	cmd         *exec.Cmd
	exited      chan error
	logFile     string
}

// startBroker starts the built broker on a free port and waits until it says where it listens.
func startBroker(ctx context.Context, dir, mode string, args ...string) (*broker, error) {
	logFile, err := os.CreateTemp(dir, "broker-*.log")
	if err != nil {
		return nil, fmt.Errorf("create the broker's log: %w", err)
	}
	defer func() { _ = logFile.Close() }() // the broker has its own descriptor
	b := &broker{logFile: logFile.Name(), exited: make(chan error, 1)}
	b.cmd = exec.CommandContext(ctx, brokerProgram, append([]string{mode, "--listen", "127.0.0.1:0"}, args...)...)
	b.cmd.Stderr = logFile
	b.cmd.Env = append(os.Environ(), "LOG_LEVEL=info", "QUEEN_ENCRYPTION_KEY="+strings.Repeat("5e", 32))
	stdout, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("broker output: %w", err)
	}
	if err := b.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the broker: %w", err)
	}
	// What it prints is printed at once, and ends with what to try.
	listening := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			switch said := strings.Fields(lines.Text()); {
			case strings.HasPrefix(lines.Text(), "posthorn listening on "):
				b.url = said[3]
			case len(said) == 3 && said[0] == "database":
				b.databaseURL = strings.Trim(strings.TrimPrefix(said[2], "DATABASE_URL="), "'")
			case len(said) > 0 && said[0] == "try":
				close(listening)
			}
		}
		b.exited <- b.cmd.Wait() // after the output has been read, as StdoutPipe demands
	}()
	select {
	case <-listening:
		return b, nil
	case err := <-b.exited:
		return nil, fmt.Errorf("the broker ended before it listened: %w\n%s", err, b.logTail())
	case <-time.After(startLimit):
		_ = b.cmd.Process.Kill() // the error below says that the start has failed
		return nil, fmt.Errorf("the broker does not listen after %v\n%s", startLimit, b.logTail())
	}
}

// stop ends the broker as an orchestrator does; anything but a clean exit is an error.
func (b *broker) stop() error {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("signal the broker: %w", err)
	}
	select {
	case err := <-b.exited:
		if err != nil {
			return fmt.Errorf("the broker ended with %w\n%s", err, b.logTail())
		}
		return nil
	case <-time.After(stopLimit):
		_ = b.cmd.Process.Kill() // the error below says that the stop has failed
		return fmt.Errorf("the broker does not stop after %v\n%s", stopLimit, b.logTail())
	}
}

// logTail is the end of the broker's log.
func (b *broker) logTail() string {
	text, err := os.ReadFile(b.logFile)
	if err != nil {
		return err.Error()
	}
	const most = 8 << 10
	if len(text) > most {
		text = append([]byte("… "), text[len(text)-most:]...)
	}
	return string(bytes.TrimSpace(text))
}

// start starts another broker on the same database, stopped at the end of the test.
func start(t *testing.T, args ...string) *broker {
	t.Helper()
	t.Setenv("DATABASE_URL", shared.databaseURL)
	return startOn(t, args...)
}

// startOn starts a broker on the database of the environment, stopped at the end of the test.
func startOn(t *testing.T, args ...string) *broker {
	t.Helper()
	b, err := startBroker(context.WithoutCancel(t.Context()), t.TempDir(), "serve", args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// build builds another program of ours.
func build(t *testing.T, path string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), filepath.Base(path))
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, module+path).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", path, err, out)
	}
	return program
}

// needBroker skips a test that has no broker to talk to.
func needBroker(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a broker")
	}
}

// run runs a program and returns its standard output; its log is shown with the broker's when it fails.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Errorf("%s %s: %v\n%s%s", filepath.Base(program), strings.Join(args, " "), err, stdout.String(), stderr.String())
		t.Logf("the broker's log ends with\n%s", shared.logTail())
	}
	return stdout.String()
}
