//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// ownerVariable makes the test binary run a server on the directory it names,
// so that tests can kill the owner of one.
const ownerVariable = "EMBEDPG_TEST_OWNER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(ownerVariable); dir != "" {
		os.Exit(ownServer(dir))
	}
	os.Exit(m.Run())
}

// ownServer runs a server until it is killed, or told to stop by SIGTERM.
func ownServer(dir string) int {
	s, err := Start(context.Background(), fast(dir))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	fmt.Println("pid", s.PID())
	<-terminated
	if err := s.Stop(context.Background()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// fast is a configuration that does not wait for the disk.
func fast(dir string) Config {
	return Config{
		DataDir:  dir,
		Settings: map[string]string{"fsync": "off", "shared_buffers": "16MB"},
		Logger:   slog.New(slog.DiscardHandler),
	}
}

// tempDir is a directory that any user may enter and that has a short path,
// unlike t.TempDir.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "embedpg-") //nolint:usetesting // t.TempDir is closed to others, and too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// dataDir is a data directory yet to be made.
func dataDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(tempDir(t), "data")
	t.Cleanup(func() {
		if err := Destroy(context.Background(), dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

// store commits what checkStored looks for.
func store(t *testing.T, s *Server) {
	t.Helper()
	ctx := deadline(t)
	err := s.query(ctx, database, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `CREATE TABLE kept AS SELECT 42 AS n`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkStored(t *testing.T, s *Server) {
	t.Helper()
	if n := queryText(t, s, `SELECT n::text FROM kept`); n != "42" {
		t.Errorf("kept %s, want 42", n)
	}
}

// checkAnswers fails unless s takes connections and queries.
func checkAnswers(t *testing.T, s *Server) {
	t.Helper()
	if one := queryText(t, s, `SELECT '1'`); one != "1" {
		t.Errorf("SELECT '1' answers %q", one)
	}
}

func queryText(t *testing.T, s *Server, sql string) string {
	t.Helper()
	ctx := deadline(t)
	var text string
	err := s.query(ctx, database, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql).Scan(&text)
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// eventually polls until ok or a minute has passed.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := deadline(t)
	for !ok() {
		if ctx.Err() != nil {
			t.Fatalf("never: %s", what)
		}
		pause(ctx, 10*time.Millisecond)
	}
}

func postmasterPID(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestDataSurvivesAStop(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	cfg := fast(dir)
	cfg.Settings = nil // the durable defaults
	s := start(t, cfg)

	const show = `SELECT string_agg(name || '=' || setting, ' ' ORDER BY name COLLATE "C") FROM pg_settings WHERE name IN
		('fsync', 'full_page_writes', 'synchronous_commit', 'listen_addresses', 'data_checksums', 'jit', 'server_encoding', 'lc_messages', 'TimeZone')`
	settings := queryText(t, s, show)
	const want = "TimeZone=UTC data_checksums=on fsync=on full_page_writes=on jit=off lc_messages=C listen_addresses= server_encoding=UTF8 synchronous_commit=on"
	if settings != want {
		t.Errorf("settings:\n%s\nwant:\n%s", settings, want)
	}
	if collation := queryText(t, s, `SELECT datcollate || ' ' || datctype FROM pg_database WHERE datname = current_database()`); collation != "C C" {
		t.Errorf("locale %s, want C C", collation)
	}
	for path, mode := range map[string]fs.FileMode{s.socketDir: 0o700, s.pgdata: 0o700, s.log.file.Name(): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("%s has mode %04o, want %04o", path, info.Mode().Perm(), mode)
		}
	}

	store(t, s)
	url := s.URL()
	stop(t, s)
	if err := s.Stop(deadline(t)); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres", "postmaster.pid")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the server did not stop cleanly: %v", err)
	}

	s = start(t, cfg)
	if s.URL() != url {
		t.Errorf("the URL changed from %s to %s", url, s.URL())
	}
	checkStored(t, s)
}

func TestSecondOwnerIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	_, err := Start(deadline(t), fast(s.DataDir()))
	var inUse *InUseError
	if !errors.As(err, &inUse) {
		t.Fatalf("second Start: %v, want *InUseError", err)
	}
	if inUse.PID != os.Getpid() || inUse.Dir != s.DataDir() {
		t.Errorf("owner %d of %s, want %d of %s", inUse.PID, inUse.Dir, os.Getpid(), s.DataDir())
	}
	if !strings.Contains(err.Error(), s.DataDir()) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("the message names neither directory nor process: %v", err)
	}
	if err := Destroy(deadline(t), s.DataDir()); !errors.As(err, &inUse) {
		t.Errorf("Destroy of a directory in use: %v", err)
	}
	checkAnswers(t, s)
}

func TestKilledPostmasterIsStartedAgain(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	store(t, s)
	before := s.PID()
	if err := s.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another postmaster", func() bool { pid := s.PID(); return pid != 0 && pid != before })
	checkStored(t, s)
}

func TestCrashStaysDownUntilRestart(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	store(t, s)
	for _, down := range []func(context.Context) error{s.Crash, s.Shutdown} {
		if err := down(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if s.PID() != 0 {
			t.Error("a server that is down has a postmaster")
		}
		if err := s.query(deadline(t), "postgres", func(*pgx.Conn) error { return nil }); err == nil {
			t.Error("a server that is down accepts connections")
		}
		if err := s.Restart(deadline(t)); err != nil {
			t.Fatal(err)
		}
		checkStored(t, s)
	}
	stop(t, s)
	if err := s.Restart(deadline(t)); !errors.Is(err, errStopped) {
		t.Errorf("Restart after Stop: %v", err)
	}
}

func TestPauseFreezesBackends(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	conn, err := pgx.Connect(deadline(t), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() { _, err := conn.Exec(deadline(t), `SELECT 1`); answered <- err }()
	select {
	case err := <-answered:
		t.Errorf("a paused server answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("after Resume: %v", err)
	}
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	stop(t, s)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("stopping a paused server took %v", took)
	}
}

// startOwner runs the test binary as the owner of dir and returns it with its
// postmaster's process id, once the server is up.
func startOwner(t *testing.T, dir string) (*exec.Cmd, int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ownerVariable+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		rest, _ := io.ReadAll(out)
		t.Fatalf("the owner did not start: %v %s", err, rest)
	}
	return cmd, pid
}

func TestKilledOwnerIsSucceeded(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	owner, pid := startOwner(t, dir)
	_, err := Start(deadline(t), fast(dir))
	var inUse *InUseError
	if !errors.As(err, &inUse) || inUse.PID != owner.Process.Pid {
		t.Fatalf("while the owner lives: %v, want *InUseError with pid %d", err, owner.Process.Pid)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // by SIGKILL, as sent

	// At once: the orphaned server may still be there.
	s := start(t, fast(dir))
	if s.PID() == pid {
		t.Error("the orphan's process id is the new server's")
	}
	if isPostmaster(commandLine(pid), s.pgdata) {
		t.Error("the orphan still runs")
	}
	checkAnswers(t, s)
}

func TestServerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a parent-death signal; elsewhere the next Start ends the server")
	}
	dir := dataDir(t)
	owner, pid := startOwner(t, dir)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	eventually(t, "the server ends", func() bool { return commandLine(pid) == nil })
	if _, err := os.Stat(filepath.Join(dir, "postgres", "postmaster.pid")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it did not shut down in order: %v", err)
	}
}

func TestOwnerAndPostmasterKilledTogether(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	owner, pid := startOwner(t, dir)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	_ = owner.Wait()
	s := start(t, fast(dir))
	checkAnswers(t, s)
}

// TestOrphanIsStopped runs a server that nobody owns, as one that outlived its
// owner on a system without parent-death signals.
func TestOrphanIsStopped(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	store(t, s)
	dir := s.DataDir()
	stop(t, s)

	log, err := os.OpenFile(filepath.Join(dir, "orphan.log"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin.dir, "postgres"), s.arguments()...)
	cmd.Dir = s.pgdata
	orphan, err := spawn(cmd, s.account, log, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.waitReady(deadline(t), orphan); err != nil {
		t.Fatal(err)
	}
	if pid := postmasterPID(t, dir); pid != orphan.os.Pid {
		t.Fatalf("postmaster.pid says %d, want %d", pid, orphan.os.Pid)
	}

	s = start(t, fast(dir))
	if !orphan.exited() {
		t.Error("the orphan still runs")
	}
	if orphan.err != nil {
		t.Errorf("the orphan was not stopped in order: %v", orphan.err)
	}
	checkStored(t, s)
}

// TestPidFileOfAStranger has a crashed server's process id belong to another
// program by now, which PostgreSQL alone would take for itself.
func TestPidFileOfAStranger(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	dir := s.DataDir()
	if err := s.Crash(deadline(t)); err != nil {
		t.Fatal(err)
	}
	stop(t, s)

	stranger := exec.Command("sleep", "600")
	stranger.SysProcAttr = childAttributes(s.account.credential(), syscall.SIGKILL)
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	for _, path := range []string{filepath.Join(s.pgdata, "postmaster.pid"), filepath.Join(s.socketDir, ".s.PGSQL.5432.lock")} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\n")
		if err := os.WriteFile(path, []byte(strconv.Itoa(stranger.Process.Pid)+"\n"+rest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = start(t, fast(dir))
	checkAnswers(t, s)
	if err := stranger.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the stranger was harmed: %v", err)
	}
}

func TestInterruptedInitialisationIsRepeated(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerVariable+"="+dir)
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	begun := func() bool {
		found, err := filepath.Glob(filepath.Join(dir, "postgres.init-*", "base"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found) > 0
	}
	eventually(t, "an initialisation", begun)
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	if _, err := os.Stat(filepath.Join(dir, "postgres")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the data directory exists before its initialisation has ended: %v", err)
	}

	s := start(t, fast(dir))
	checkAnswers(t, s)
	if begun() {
		t.Error("the interrupted initialisation was not removed")
	}
}

func TestOtherMajorVersionIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, fast(dataDir(t)))
	dir, bin := s.DataDir(), s.bin.dir
	stop(t, s)
	if err := os.WriteFile(filepath.Join(dir, "postgres", "PG_VERSION"), []byte("13\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, binDir := range map[string]string{"found": "", "given": bin} {
		cfg := fast(dir)
		cfg.BinDir = binDir
		_, err := Start(deadline(t), cfg)
		var version *VersionError
		if !errors.As(err, &version) {
			t.Fatalf("%s: %v, want *VersionError", name, err)
		}
		if version.Major != 13 || version.Dir != s.pgdata {
			t.Errorf("%s: %+v", name, version)
		}
	}
}

func TestForeignDataDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte("15\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(deadline(t), fast(dir)); err == nil || !strings.Contains(err.Error(), dir+" is a PostgreSQL data directory itself") {
		t.Errorf("Start: %v", err)
	}
}

func TestLongPathsGetAShortSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), strings.Repeat("long, and with 'quotes' ", 4), "data")
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	s := start(t, fast(dir))
	checkAnswers(t, s)
	if strings.HasPrefix(s.socketDir, dir) || len(s.socketDir) > maxSocketDir {
		t.Errorf("socket in %s", s.socketDir)
	}
	stop(t, s)
	if _, err := os.Stat(s.socketDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket's directory was left behind: %v", err)
	}
}

func TestStartErrorQuotesTheLog(t *testing.T) {
	t.Parallel()
	cfg := fast(dataDir(t))
	cfg.Settings["max_connections"] = "many"
	_, err := Start(deadline(t), cfg)
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "max_connections": "many"`) {
		t.Fatalf("Start: %v", err)
	}
	// The failed start left nothing locked.
	start(t, fast(cfg.DataDir))
}

func TestCancelledStartLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	ctx, cancel := context.WithCancel(deadline(t))
	go func() {
		for ctx.Err() == nil {
			if found, _ := filepath.Glob(filepath.Join(dir, "postgres.init-*", "base")); len(found) > 0 {
				cancel()
			}
		}
	}()
	if _, err := Start(ctx, fast(dir)); !errors.Is(err, context.Canceled) {
		t.Fatalf("Start: %v", err)
	}
	start(t, fast(dir))
}

func TestDirectoriesRootMayNotUse(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs the server as another user")
	}
	t.Run("private parent", func(t *testing.T) {
		t.Parallel()
		parent := filepath.Join(tempDir(t), "private")
		if err := os.Mkdir(parent, 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Start(deadline(t), fast(filepath.Join(parent, "data")))
		if err == nil || !strings.Contains(err.Error(), "cannot enter "+parent+" ") {
			t.Errorf("Start: %v", err)
		}
	})
	t.Run("somebody's directory", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(tempDir(t), "home")
		if err := os.MkdirAll(filepath.Join(dir, "letters"), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Start(deadline(t), fast(dir))
		if err == nil || !strings.Contains(err.Error(), "cannot enter "+dir+" ") {
			t.Errorf("Start: %v", err)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("its mode became %04o", info.Mode().Perm())
		}
	})
	t.Run("private programs", func(t *testing.T) {
		t.Parallel()
		private := filepath.Join(tempDir(t), "private")
		if err := os.MkdirAll(filepath.Join(private, "bin"), 0o700); err != nil {
			t.Fatal(err)
		}
		writeProgram(t, filepath.Join(private, "bin", "postgres"), `echo "postgres (PostgreSQL) 16.1"`)
		writeProgram(t, filepath.Join(private, "bin", "initdb"), `exit 0`)
		cfg := fast(dataDir(t))
		cfg.BinDir = filepath.Join(private, "bin")
		if _, err := Start(deadline(t), cfg); err == nil || !strings.Contains(err.Error(), "cannot enter "+filepath.Join(private, "bin")+" ") {
			t.Errorf("Start: %v", err)
		}
	})
	t.Run("owner of existing data", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(tempDir(t), "data")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		uid, gid := nobody(t)
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
		s := start(t, fast(dir))
		info, err := os.Stat(s.pgdata)
		if err != nil {
			t.Fatal(err)
		}
		if u, g := owner(info); u != uid || g != gid {
			t.Errorf("the data belongs to %d:%d, want %d:%d", u, g, uid, gid)
		}
		// As after a restore by root.
		stop(t, s)
		err = filepath.WalkDir(s.pgdata, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, 0, 0)
		})
		if err != nil {
			t.Fatal(err)
		}
		s = start(t, fast(dir))
		checkAnswers(t, s)
	})
}

// nobody is an unprivileged user, and not the one that root prefers. It must
// exist, because initdb asks for its name.
func nobody(t *testing.T) (uid, gid uint32) {
	t.Helper()
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	group, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(id), uint32(group)
}

// TestAsOrdinaryUser repeats the main tests as an unprivileged user without a
// home directory.
func TestAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	dir := tempDir(t)
	uid, gid := nobody(t)
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(work, int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "tests")
	if err := os.WriteFile(binary, program, 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []string{
		"TestDataSurvivesAStop", "TestKilledOwnerIsSucceeded", "TestServerEndsWithItsOwner", "TestPidFileOfAStranger",
	}
	cmd := exec.CommandContext(deadline(t), binary, "-test.v", "-test.run=^("+strings.Join(tests, "|")+")$")
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + work, "HOME=/nonexistent"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name+" ") {
			t.Errorf("%s did not pass:\n%s", name, out)
		}
	}
}

func TestDefaultDirectories(t *testing.T) {
	data, err := DefaultDataDir()
	if err != nil {
		t.Fatal(err)
	}
	cache, err := DefaultCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if data != "/var/lib/posthorn" || cache != "/var/cache/posthorn" {
			t.Errorf("root: %s, %s", data, cache)
		}
		return
	}
	t.Setenv("XDG_DATA_HOME", "/elsewhere")
	if dir, err := DefaultDataDir(); err != nil || dir != "/elsewhere/posthorn" {
		t.Errorf("XDG_DATA_HOME: %s, %v", dir, err)
	}
}

func TestSharedBuffers(t *testing.T) {
	t.Parallel()
	for memory, want := range map[uint64]string{
		0: "256MB", 64 << 20: "16MB", 512 << 20: "64MB", 2 << 30: "256MB", 64 << 30: "256MB",
	} {
		if got := sharedBuffers(memory); got != want {
			t.Errorf("sharedBuffers(%d) = %s, want %s", memory, got, want)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	log, err := openLog(tempDir(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	write := func(text string) {
		t.Helper()
		if _, err := log.file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		write(fmt.Sprintf("line %02d\n", i))
	}
	if got := log.since(0, 2); got != "line 98\nline 99" {
		t.Errorf("since: %q", got)
	}
	if err := log.rotate(800); err != nil || log.size() != 800 {
		t.Errorf("a log at its limit was rotated: %v, %d bytes", err, log.size())
	}
	for range 2 { // the second replaces the first
		write("more\n" + strings.Repeat("x", 900) + "\n")
		if err := log.rotate(800); err != nil {
			t.Fatal(err)
		}
		if log.size() != 0 {
			t.Errorf("%d bytes after rotation", log.size())
		}
	}
	old, err := os.ReadFile(log.file.Name() + ".1")
	if err != nil {
		t.Fatal(err)
	}
	if len(old) != 800 || !strings.HasSuffix(string(old), "xx\n") {
		t.Errorf("the old log has %d bytes", len(old))
	}
	write("after\n")
	if got := log.since(0, 5); got != "after" {
		t.Errorf("after rotation: %q", got)
	}
}
