package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	sdkgo "github.com/posthorn/posthorn/conformance/adapters/sdk-go"
	"github.com/posthorn/posthorn/conformance/reference"
	"github.com/posthorn/posthorn/conformance/suite"
)

// roleVariable makes the test binary act as one of the programs under test: Ginkgo runs once in a process only, so each
// run of the suite needs its own.
const roleVariable = "POSTHORN_CONFORMANCE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "suite":
		os.Exit(command(context.Background(), os.Args[1:], environment, os.Stdout, os.Stderr))
	case "peer":
		if err := sdkgo.Serve(context.Background(), os.Getenv(suite.TargetVariable), os.Getenv(suite.TokenVariable), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "mute":
		os.Exit(0)
	}
}

// environment hides the variables of whoever runs the tests.
func environment(name string) string {
	if strings.HasPrefix(name, "CONFORMANCE_") && name != suite.TargetVariable {
		return os.Getenv(name)
	}
	return ""
}

// target is a reference broker with the mutations.
func target(t *testing.T, mutations ...reference.Mutation) string {
	t.Helper()
	broker := httptest.NewServer(reference.New(mutations...))
	t.Cleanup(broker.Close)
	return broker.URL
}

type outcome struct {
	code   int
	output string
	dir    string
	report suite.Report
}

// conformance runs the program. It reads the report when there is one.
func conformance(t *testing.T, args ...string) outcome {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append(args, "--out", dir)...)
	cmd.Env = append(os.Environ(), roleVariable+"=suite")
	output, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	o := outcome{code: cmd.ProcessState.ExitCode(), output: string(output), dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return o
	}
	validate(t, text)
	if err := json.Unmarshal(text, &o.report); err != nil {
		t.Fatal(err)
	}
	return o
}

// validate holds a report to its schema.
func validate(t *testing.T, report []byte) {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(bytes.NewReader(suite.ReportSchema))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("report.schema.json", schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(instance); err != nil {
		t.Errorf("the report does not satisfy its schema: %v", err)
	}
}

func (o outcome) requirement(t *testing.T, id string) suite.RequirementReport {
	t.Helper()
	for _, line := range o.report.Requirements {
		if line.ID == id {
			return line
		}
	}
	t.Fatalf("the report has no requirement %s", id)
	return suite.RequirementReport{}
}

func (o outcome) expect(t *testing.T, code int) {
	t.Helper()
	if o.code != code {
		t.Fatalf("exit code %d, want %d:\n%s", o.code, code, o.output)
	}
}

func TestConformantTarget(t *testing.T) {
	t.Parallel()
	o := conformance(t, "run", "--target", target(t), "--capability", "clock")
	o.expect(t, exitConformant)
	if !o.report.Conformant || !o.report.Expected {
		t.Errorf("conformant %t, expected %t", o.report.Conformant, o.report.Expected)
	}
	if o.report.Implementation.Engine != "posthorn-reference" || o.report.Peer != "wire" {
		t.Errorf("implementation %+v, peer %s", o.report.Implementation, o.report.Peer)
	}
	if line := o.requirement(t, "push.spool.buffered"); line.Status != suite.Unsupported {
		t.Errorf("a requirement that needs faults is %s, want unsupported", line.Status)
	}
	junit, err := os.ReadFile(filepath.Join(o.dir, "junit.xml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(junit, new(struct{})); err != nil || !bytes.Contains(junit, []byte("push.dedup.window")) {
		t.Errorf("junit.xml does not carry the ids of requirements: %v", err)
	}
	page, err := os.ReadFile(filepath.Join(o.dir, "report.html"))
	if err != nil || !bytes.Contains(page, []byte("push.dedup.window")) {
		t.Errorf("report.html does not list the requirements: %v", err)
	}
}

func TestDefectiveTarget(t *testing.T) {
	t.Parallel()
	o := conformance(t, "run", "--target", target(t, reference.LeakPartition), "--capability", "clock", "--profile", "queue-core")
	o.expect(t, exitNotConformant)
	if o.requirement(t, "push.result.keys").Status != suite.Fail {
		t.Error("push.result.keys does not fail")
	}
	at := slices.IndexFunc(o.report.Failures, func(f suite.FailureReport) bool { return f.ID == "push.result.keys" })
	if at < 0 || len(o.report.Failures[at].Exchanges) == 0 {
		t.Error("the failure does not carry its exchanges")
	}
	if violated := o.requirement(t, "push.dedup.scope"); violated.Status != suite.Fail || !strings.Contains(violated.Reason, "violates the API description") {
		t.Errorf("an answer that violates its schema: %s %s", violated.Status, violated.Reason)
	}
}

func TestKnownFailing(t *testing.T) {
	t.Parallel()
	known := filepath.Join(t.TempDir(), "known")
	if err := os.WriteFile(known, []byte("# to be repaired\nopenapi.served # empty\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "--capability", "clock", "--profile", "queue-admin", "--known-failing", known}
	o := conformance(t, append(args, "--target", target(t, reference.OpenAPIEmpty))...)
	o.expect(t, exitConformant)
	if o.report.Conformant || !o.report.Expected {
		t.Errorf("conformant %t, expected %t", o.report.Conformant, o.report.Expected)
	}
	o = conformance(t, append(args, "--target", target(t))...)
	o.expect(t, exitNotConformant)
	if !strings.Contains(o.output, "unexpected pass: openapi.served") {
		t.Errorf("the unexpected pass is not told:\n%s", o.output)
	}
}

func TestWithoutClock(t *testing.T) {
	t.Parallel()
	o := conformance(t, "run", "--target", target(t), "--profile", "queue-core")
	o.expect(t, exitConformant)
	if line := o.requirement(t, "push.dedup.window-default"); line.Status != suite.Untested || !strings.Contains(o.output, "untested: push.dedup.window-default") {
		t.Errorf("a requirement that takes the clock to test is %s", line.Status)
	}
	if line := o.requirement(t, "push.dedup.window"); line.Status != suite.Pass {
		t.Errorf("a window outlasted in real time: %s %s", line.Status, line.Reason)
	}
}

func TestDeclaredCapabilityIsHeldTo(t *testing.T) {
	t.Parallel()
	broker := reference.New()
	withoutClock := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/testing/") {
			http.NotFound(w, r)
			return
		}
		broker.ServeHTTP(w, r)
	}))
	t.Cleanup(withoutClock.Close)
	o := conformance(t, "run", "--target", withoutClock.URL, "--capability", "clock", "--profile", "queue-core")
	o.expect(t, exitNotConformant)
	if line := o.requirement(t, "push.dedup.window-default"); line.Status != suite.Fail {
		t.Errorf("a spec with a broken clock is %s, want fail", line.Status)
	}
}

func TestThroughClient(t *testing.T) {
	t.Parallel()
	o := conformance(t, "run", "--target", target(t), "--capability", "clock,webhooks", "--through", "sdk-go")
	o.expect(t, exitConformant)
	if line := o.requirement(t, "push.order.array"); !strings.HasPrefix(line.Peer, "sdk-go") {
		t.Errorf("push.order.array ran through %s", line.Peer)
	}
	if line := o.requirement(t, "http.body.json"); line.Peer != "wire" {
		t.Errorf("http.body.json ran through %s", line.Peer)
	}
}

func TestThroughProgram(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "peer")
	write := func(role string) {
		text := fmt.Sprintf("#!/bin/sh\n%s=%s exec %q\n", roleVariable, role, self)
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"run", "--capability", "clock", "--profile", "queue-core", "--through", script}
	write("peer")
	o := conformance(t, append(args, "--target", target(t))...)
	o.expect(t, exitConformant)
	if !strings.HasPrefix(o.report.Peer, "sdk-go") {
		t.Errorf("the report names the peer %s", o.report.Peer)
	}
	o = conformance(t, append(args, "--target", target(t, reference.ReverseGroups))...)
	o.expect(t, exitNotConformant)
	at := slices.IndexFunc(o.report.Failures, func(f suite.FailureReport) bool { return f.ID == "push.order.array" })
	if at < 0 || len(o.report.Failures[at].Exchanges) == 0 {
		t.Error("push.order.array does not fail with the exchanges of the library")
	}
	write("mute")
	conformance(t, append(args, "--target", target(t))...).expect(t, exitBroken)
}

func TestBadConfigurations(t *testing.T) {
	t.Parallel()
	url := target(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	unknownKey := filepath.Join(t.TempDir(), "conformance.yaml")
	if err := os.WriteFile(unknownKey, []byte("target: "+url+"\nprofile: queue-core\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknownID := filepath.Join(t.TempDir(), "known")
	if err := os.WriteFile(unknownID, []byte("no.such.requirement\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"no target":           {"run"},
		"unreachable target":  {"run", "--target", gone.URL},
		"no URL":              {"run", "--target", "localhost:1"},
		"unknown profile":     {"run", "--target", url, "--profile", "everything"},
		"unknown capability":  {"run", "--target", url, "--capability", "magic"},
		"missing file":        {"run", "--config", filepath.Join(t.TempDir(), "none")},
		"unknown key":         {"run", "--config", unknownKey},
		"unknown requirement": {"run", "--target", url, "--known-failing", unknownID},
		"missing peer":        {"run", "--target", url, "--through", filepath.Join(t.TempDir(), "none")},
		"stray argument":      {"run", "--target", url, "queue-core"},
		"unknown command":     {"walk"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance(t, args...).expect(t, exitBroken)
		})
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "conformance.yaml")
	text := "target: http://file\nprofiles: [queue-core]\ncapabilities: [clock]\nout: from-file\nthrough: sdk-go\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"CONFORMANCE_TARGET": "http://env", "CONFORMANCE_OUT": "from-env", "CONFORMANCE_CONFIG": file}
	config, err := loadConfig([]string{"--target", "http://me:secret@flag", "--profile", "queue-admin,queue-consume"},
		func(name string) string { return env[name] }, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Target: "http://me:secret@flag", Profiles: []string{"queue-admin", "queue-consume"}, Through: "sdk-go", Out: "from-env",
		Capabilities: []string{"clock"},
	}
	if fmt.Sprint(config) != fmt.Sprint(want) {
		t.Errorf("config %+v, want %+v", config, want)
	}
	if got := config.effective()["target"]; got != "http://me:xxxxx@flag" {
		t.Errorf("the password is shown: %s", got)
	}
}

func TestListAndExplain(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	run := func(args ...string) int {
		out.Reset()
		return command(t.Context(), args, environment, &out, &errs)
	}
	if code := run("list", "--profile", "queue-admin"); code != 0 || !strings.Contains(out.String(), "listQueues.all") || strings.Contains(out.String(), "push.dedup") {
		t.Errorf("list: %d %s", code, out.String())
	}
	if code := run("explain", "push.dedup.window"); code != 0 || !strings.Contains(out.String(), "server/push.go:") {
		t.Errorf("explain: %d %s", code, out.String())
	}
	if code := run("explain", "no.such"); code != exitBroken {
		t.Errorf("explain of an unknown requirement: %d", code)
	}
	if code := run("list", "--profile", "none"); code != exitBroken {
		t.Errorf("list of an unknown profile: %d", code)
	}
}

// TestTokens come from flags, variables or the file, and are shown nowhere.
func TestTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "conformance.yaml")
	if err := os.WriteFile(file, []byte("target: http://t\ntokens: {admin: canary-file, read-only: canary-reader}\nsigningSecret: canary-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"CONFORMANCE_TOKENS": "admin=canary=env"}
	for _, tc := range []struct {
		args []string
		env  map[string]string
		want string // of admin
	}{
		{[]string{"--config", file}, nil, "canary-file"},
		{[]string{"--config", file}, env, "canary=env"},
		{[]string{"--config", file, "--token", "admin=canary-flag,read-only=x", "--signing-secret", "canary"}, env, "canary-flag"},
	} {
		config, err := loadConfig(tc.args, func(name string) string { return tc.env[name] }, io.Discard)
		if err != nil || config.Tokens["admin"] != tc.want || config.SigningSecret == "" {
			t.Errorf("%v: %v, %v", tc.args, config, err)
		}
		for name, value := range config.effective() {
			if strings.Contains(value, "canary") && name != "config" {
				t.Errorf("%s shows %s", name, value)
			}
		}
		if shown := config.effective(); shown["signing-secret"] != hidden || !strings.Contains(shown["token"], "admin="+hidden) {
			t.Errorf("effective: %v", shown)
		}
	}
	for _, args := range [][]string{{"--token", "canary"}, {"--token", "admin="}} {
		_, err := loadConfig(append(args, "--target", "http://t"), func(string) string { return "" }, io.Discard)
		if err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%v: %v", args, err)
		}
	}
	// What a capability needs is missed before anything is called.
	for _, capability := range []string{"auth", "signing"} {
		if o := conformance(t, "run", "--target", "http://127.0.0.1:1", "--capability", capability); o.code != exitBroken || !strings.Contains(o.output, "needs") {
			t.Errorf("%s: %d %s", capability, o.code, o.output)
		}
	}
}
