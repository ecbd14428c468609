package endtoend

import (
	"bytes"
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// installLimit bounds the installation of a package from the registry.
const installLimit = 2 * time.Minute

// TestJavaScriptClient runs scripts through the methods of the official client library, of both versions of the wire. It is
// skipped where node or the registry is not to be had.
func TestJavaScriptClient(t *testing.T) {
	needBroker(t)
	for _, c := range []struct{ name, pkg, script, database string }{
		{"version 2", "@upstash/qstash@2", "qstash.mjs", "javascript_v2"},
		{"version 1", "@upstash/qstash@0.3.6", "qstash_v1.mjs", "javascript_v1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := installPackage(t, c.pkg)
			script, err := os.ReadFile(filepath.Join("testdata", c.script))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, c.script), script, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			const token = "javascript-0123456789abcdef"
			t.Setenv("DATABASE_URL", createDatabase(t, c.database))
			t.Setenv("POSTHORN_TOKENS", "admin:"+token)
			t.Setenv("POSTHORN_EGRESS_ALLOW", "127.0.0.1/32")
			b := startOn(t, "--testing")
			cmd := exec.CommandContext(t.Context(), "node", c.script)
			cmd.Dir = dir
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "POSTHORN_URL=" + b.url, "POSTHORN_TOKEN=" + token}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, b.logTail())
			}
			t.Logf("%s", out)
		})
	}
}

// installPackage installs a package into a directory of its own; its scripts are not run.
func installPackage(t *testing.T, pkg string) (dir string) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "package.json"), []byte(`{"private":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), installLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", pkg)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("cannot install %s: %v\n%s", pkg, err, bytes.TrimSpace(out))
	}
	return dir
}

// createDatabase makes a database beside the shared one, so that a test may move its clock.
func createDatabase(t *testing.T, name string) string {
	t.Helper()
	at, err := url.Parse(shared.databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), shared.databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	at.Path = "/" + strings.TrimPrefix(name, "/")
	return at.String()
}
