package endtoend

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/posthorn/posthorn/tools/internal/bench"
)

// TestConformance runs the suite as an implementer would: over plain HTTP, and over HTTP and through the Go client
// against a broker that asks for tokens.
func TestConformance(t *testing.T) {
	needBroker(t)
	suite := build(t, "conformance/cmd/posthorn-conformance")
	conforms := func(t *testing.T, args ...string) {
		t.Helper()
		if out := run(t, suite, append([]string{"run", "--capability", "clock,encryption,retention,faults,maintenance,webhooks", "--out", t.TempDir()}, args...)...); !t.Failed() {
			t.Log(out)
		}
	}
	t.Run("open", func(t *testing.T) { conforms(t, "--target", shared.url) })
	t.Run("guarded", func(t *testing.T) {
		const secret = "end-to-end-secret-of-32-bytes-ok"
		var accepted, shown []string
		for _, role := range []string{"read-only", "write-only", "read-write", "admin"} {
			token := "end-to-end-token-" + role
			accepted, shown = append(accepted, role+":"+token), append(shown, role+"="+token)
		}
		t.Setenv("POSTHORN_TOKENS", strings.Join(accepted, ","))
		t.Setenv("JWT_ENABLED", "true")
		t.Setenv("JWT_SECRET", secret)
		guarded := start(t, "--testing", "--spool", t.TempDir())
		t.Setenv("CONFORMANCE_TOKENS", strings.Join(shown, ","))
		t.Setenv("CONFORMANCE_SIGNING_SECRET", secret)
		for name, through := range map[string][]string{"wire": nil, "sdk-go": {"--through", "sdk-go"}} {
			t.Run(name, func(t *testing.T) {
				conforms(t, append([]string{"--target", guarded.url, "--capability", "auth,signing"}, through...)...)
			})
		}
	})
}

// TestBench runs each mode of the benchmark for a moment, and the comparison with PostgreSQL.
func TestBench(t *testing.T) {
	needBroker(t)
	program := build(t, "tools/cmd/bench")
	for name, args := range map[string][]string{
		"push":     {"push", "-duration", "1s", "-warmup", "0", "-partitions", "10"},
		"pop":      {"pop", "-duration", "5s", "-max-messages", "5000", "-batch", "50", "-partitions", "20"},
		"auto-ack": {"pop", "-duration", "5s", "-max-messages", "5000", "-batch", "50", "-partitions", "20", "-ack", "auto", "-group", "readers"},
		"e2e":      {"e2e", "-duration", "1s", "-warmup", "0", "-rate", "500", "-partitions", "10", "-claim", "0"},
		"baseline": {"push", "-duration", "500ms", "-warmup", "0", "-rounds", "3", "-baseline", shared.databaseURL},
	} {
		t.Run(name, func(t *testing.T) {
			out := run(t, program, append(args, "-url", shared.url, "-conns", "10", "-json")...)
			var r bench.Report
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				t.Fatalf("%v in %s", err, out)
			}
			if r.Failed() || r.Push != nil && r.Push.Messages == 0 || r.Pop != nil && r.Pop.Messages == 0 {
				t.Errorf("report %s", out)
			}
			switch name {
			case "pop", "auto-ack":
				if r.Pop.Messages != 5000 || name == "pop" && r.Ack.Messages != 5000 {
					t.Errorf("popped %d of 5000: %s", r.Pop.Messages, out)
				}
			case "e2e":
				if r.Pop.Messages != r.Push.Messages || r.Delivery.P50 <= 0 {
					t.Errorf("popped %d of %d: %s", r.Pop.Messages, r.Push.Messages, out)
				}
			case "baseline":
				if r.Baseline == nil || len(r.Baseline.Rounds) != 3 || r.Baseline.Ratio <= 0 {
					t.Errorf("comparison %s", out)
				}
			}
		})
	}
}

// TestTwoBrokers pushes to one broker what a consumer waits for at another.
func TestTwoBrokers(t *testing.T) {
	needBroker(t)
	second := start(t)
	type popped struct {
		answer string
		at     time.Time
	}
	parked := make(chan popped, 1)
	go func() {
		answer := request(t, http.MethodGet, second.url+"/api/v1/pop/queue/two-brokers?wait=true&timeout=20000&autoAck=true", "", http.StatusOK)
		parked <- popped{answer, time.Now()}
	}()
	// The pop creates the queue, so it is there once the pop has been seen.
	waitFor(t, "the parked pop", func() bool {
		return strings.Contains(request(t, http.MethodGet, shared.url+"/api/v1/resources/queues", "", http.StatusOK), `"two-brokers"`)
	})
	item := `{"items":[{"queue":"two-brokers","transactionId":"t-1","payload":{"n":1}}]}`
	first := request(t, http.MethodPost, shared.url+"/api/v1/push", item, http.StatusCreated)
	pushed := time.Now()
	got := <-parked
	if !strings.Contains(got.answer, `"data":{"n":1}`) {
		t.Errorf("popped %s", got.answer)
	}
	if late := got.at.Sub(pushed); late > time.Second {
		t.Errorf("the other broker delivered after %v, want at most 1 s", late)
	}
	again := request(t, http.MethodPost, second.url+"/api/v1/push", item, http.StatusCreated)
	if want := strings.Replace(first, `"queued"`, `"duplicate"`, 1); again != want {
		t.Errorf("pushed again at the other broker: %s, want %s", again, want)
	}
}

// TestReadme runs the commands of the README that talk to the broker, in order, and compares what they answer with what
// it says.
func TestReadme(t *testing.T) {
	needBroker(t)
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := curlStep.FindAllStringSubmatch(string(text), -1)
	if len(steps) < 3 {
		t.Fatalf("the README has %d commands with an answer, want at least push, pop and ack", len(steps))
	}
	known := map[string]string{} // ids and times as the README has them, and as this broker answered them
	for _, step := range steps {
		command, want := step[1], step[2]
		for shown, real := range known {
			command = strings.ReplaceAll(command, shown, real)
		}
		args := curlArgument.FindAllStringSubmatch(command, -1)
		method, target, body := http.MethodGet, "", ""
		for i, a := range args {
			value := strings.Trim(a[0], "'")
			switch {
			case strings.HasPrefix(value, "http://localhost:6632"):
				target = shared.url + strings.TrimPrefix(value, "http://localhost:6632")
			case i > 0 && args[i-1][0] == "-X":
				method = value
			case i > 0 && args[i-1][0] == "-d":
				body = value
			}
		}
		status := http.StatusOK
		if strings.HasSuffix(target, "/api/v1/push") {
			status = http.StatusCreated
		}
		got := pretty(t, request(t, method, target, body, status))
		want = pretty(t, want)
		shown, real := changing.FindAllString(want, -1), changing.FindAllString(got, -1)
		if a, b := changing.ReplaceAllString(want, "…"), changing.ReplaceAllString(got, "…"); a != b || len(shown) != len(real) {
			t.Fatalf("%s\nanswers\n%s\nthe README says\n%s", command, got, want)
		}
		for i := range shown {
			if before, ok := known[shown[i]]; ok && before != real[i] {
				t.Errorf("%s in the README is one value, but was answered as %s and as %s", shown[i], before, real[i])
			}
			known[shown[i]] = real[i]
		}
	}
}

// TestGoGuide runs the programs of the Go guide as they stand there, twice: each run has messages of its own.
func TestGoGuide(t *testing.T) {
	needBroker(t)
	text, err := os.ReadFile("../../docs/guide/go.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile("(?s)```go\n(package main\n.*?)\n```\n.*?```\n(.*?)```").FindAllSubmatch(text, -1)
	if len(programs) != 2 {
		t.Fatalf("the guide has %d programs with what they print, want one of queues and one of publishing", len(programs))
	}
	t.Setenv("POSTHORN_URL", shared.url)
	id := regexp.MustCompile(`\d{13}`)
	for _, program := range programs {
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, program[1], 0o600); err != nil {
			t.Fatal(err)
		}
		want := id.ReplaceAllString(string(program[2]), "…")
		for range 2 {
			if got := run(t, "go", "run", file); id.ReplaceAllString(got, "…") != want {
				t.Errorf("the program prints\n%s\nthe guide says\n%s", got, program[2])
			}
		}
	}
}

// TestDocumentedMetricsExist compares the metrics named in the operations documentation with those that are served.
func TestDocumentedMetricsExist(t *testing.T) {
	needBroker(t)
	text, err := os.ReadFile("../../docs/operations/README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(posthorn_[a-z_]+)`").FindAllStringSubmatch(string(text), -1)
	if len(names) < 5 {
		t.Fatalf("only %d metrics are documented", len(names))
	}
	served := request(t, http.MethodGet, shared.url+"/metrics/prometheus", "", http.StatusOK)
	for _, name := range names {
		if !strings.Contains(served, "# HELP "+name[1]+" ") {
			t.Errorf("%s is not served", name[1])
		}
	}
}

var (
	// curlStep is a shell block with one command, followed by a block with its answer.
	curlStep     = regexp.MustCompile("(?s)```bash\n(curl [^`]*?)\n```\n[^`]*?```json\n(.*?)\n```")
	curlArgument = regexp.MustCompile(`'[^']*'|[^\s\\]+`)
	// changing is what differs from run to run: ids, and times.
	changing = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.]+Z`)
)

// pretty renders JSON with sorted keys.
func pretty(t *testing.T, text string) string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// waitFor polls until what has happened, for at most 10 seconds.
func waitFor(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !happened(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// request sends one request and returns the answer, whose status is checked.
func request(t *testing.T, method, target, body string, status int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return ""
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Errorf("%s %s: %d %s (%v)", method, target, resp.StatusCode, answer, err)
	}
	return strings.TrimSpace(string(answer))
}
