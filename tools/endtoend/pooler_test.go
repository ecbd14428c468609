package endtoend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// poolerServers is how many connections to PostgreSQL the pooler holds at most: fewer than the broker's pool, so
// that transactions of one connection of the broker meet different ones of the server.
const poolerServers = 4

// TestPooler runs the suite against a broker that reaches PostgreSQL through PgBouncer in transaction mode.
func TestPooler(t *testing.T) {
	needBroker(t)
	databaseURL, admin := startPooler(t)
	t.Setenv("DATABASE_URL", databaseURL)
	t.Setenv("QUEEN_STMT_TIMEOUT_MS", "3000")
	pooled := startOn(t, "--testing")
	t.Run("conformance", func(t *testing.T) {
		suite := build(t, "conformance/cmd/posthorn-conformance")
		if out := run(t, suite, "run", "--target", pooled.url, "--capability", "clock", "--out", t.TempDir()); t.Failed() {
			t.Log(pooled.logTail())
		} else {
			t.Log(out)
		}
	})
	t.Run("statements are cancelled", func(t *testing.T) {
		// What gave up at the broker must not take effect later, when the lock is given back.
		tx, err := admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // the lock is all it holds
		if _, err := tx.Exec(t.Context(), `lock table queue in access exclusive mode`); err != nil {
			t.Fatal(err)
		}
		request(t, http.MethodPost, pooled.url+"/api/v1/configure", `{"queue":"pooled"}`, http.StatusServiceUnavailable)
		waitFor(t, "the end of the statement at the server", func() bool {
			var waiting int
			err := tx.QueryRow(t.Context(), `
select count(*) from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into queue%'`).Scan(&waiting)
			return err == nil && waiting == 0
		})
	})
	t.Run("after an outage", func(t *testing.T) {
		if _, err := admin.Exec(t.Context(), `
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "an answer", func() bool {
			resp, err := http.Get(pooled.url + "/health")
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
	})
	var parked int
	err := admin.QueryRow(t.Context(), `
select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`).Scan(&parked)
	if err != nil || parked == 0 || parked > poolerServers {
		t.Errorf("the pooler has %d connections to the server, want 1 to %d (%v)", parked, poolerServers, err)
	}
}

// startPooler starts a PgBouncer before a fresh database of the shared server. It returns the URL through it, and a
// connection around it.
func startPooler(t *testing.T) (through string, around *pgx.Conn) {
	t.Helper()
	program := findPooler(t)
	direct, err := url.Parse(shared.databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	maintenance, err := pgx.Connect(t.Context(), direct.String())
	if err != nil {
		t.Fatal(err)
	}
	defer maintenance.Close(context.WithoutCancel(t.Context()))
	const database = "pooled"
	if _, err := maintenance.Exec(t.Context(), "create database "+database); err != nil {
		t.Fatal(err)
	}
	direct.Path = "/" + database
	if around, err = pgx.Connect(t.Context(), direct.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = around.Close(context.Background()) })

	socket := direct.Query().Get("host")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()                             // the pooler takes the port over
	dir, err := os.MkdirTemp("", "posthorn-pooler-") //nolint:usetesting // another user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
%s = host=%s port=%s user=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
`, database, socket, direct.Query().Get("port"), direct.User.Username(), address.Port, poolerServers)
	if err := errors.Join(os.WriteFile(config, []byte(text), 0o644), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	logFile, err := os.Create(filepath.Join(dir, "pgbouncer.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	cmd := program.command(context.Background(), config)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// It refuses to run as root, and only the user of the server may enter the directory of its socket.
	if info, err := os.Stat(socket); err == nil && os.Getuid() == 0 {
		owner := info.Sys().(*syscall.Stat_t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			log, _ := os.ReadFile(logFile.Name())
			t.Logf("the pooler said\n%s", log)
		}
	})
	through = fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", direct.User.Username(), address, database)
	waitFor(t, "the pooler's answer", func() bool {
		conn, err := pgx.Connect(t.Context(), through)
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return err == nil
	})
	return through, around
}

// poolerProgram is a PgBouncer, with where its libraries are when they are not the system's.
type poolerProgram struct{ path, libraries string }

func (p poolerProgram) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env = os.Environ()
	if p.libraries != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+p.libraries)
	}
	return cmd
}

// findPooler finds an installed PgBouncer, or unpacks one from Debian's packages into a directory of its own. The test
// is skipped when there is neither.
func findPooler(t *testing.T) poolerProgram {
	t.Helper()
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return poolerProgram{path: path}
		}
	}
	dir, err := os.MkdirTemp("", "posthorn-pgbouncer-") //nolint:usetesting // another user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	in := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	}
	if err := in("apt-get", "download", "pgbouncer", "libevent-2.1-7", "libc-ares2"); err != nil {
		t.Skipf("there is no PgBouncer here, and none can be fetched: %v", err)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range packages {
		if err := in("dpkg", "-x", archive, dir); err != nil {
			t.Skipf("PgBouncer cannot be unpacked: %v", err)
		}
	}
	libraries, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*-linux-gnu*"))
	program := poolerProgram{filepath.Join(dir, "usr/sbin/pgbouncer"), strings.Join(libraries, ":")}
	if out, err := program.command(ctx, "--version").CombinedOutput(); err != nil {
		t.Skipf("the fetched PgBouncer does not run here: %v: %s", err, out)
	}
	return program
}
