//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// superuser owns every object of a managed server.
const superuser = "posthorn"

// socketPort is the number in the socket's name; by default no TCP port is
// opened.
const socketPort = "5432"

// Server is a running PostgreSQL. Its methods may be called from any goroutine.
type Server struct {
	cfg       Config
	bin       binaries
	account   *account
	lock      *os.File
	log       *serverLog
	logger    *slog.Logger
	pgdata    string
	socketDir string
	tempDir   string // the socket's directory when it is not inside DataDir

	ctx    context.Context // ends when Stop begins
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex // serialises starts and stops of the process
	proc    *process   // nil when no process is wanted
	stopped bool

	stopOnce sync.Once
	stopErr  error
}

// Start returns a server that accepts connections, or an error that says why
// not. It may take seconds when a crashed server has to recover. ctx bounds the
// start only; the server runs until Stop.
func Start(ctx context.Context, cfg Config) (_ *Server, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancelStart := context.WithTimeout(ctx, cfg.StartTimeout)
	defer cancelStart()

	s := &Server{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = fmt.Errorf("start PostgreSQL: %w", err)
			s.release()
		}
	}()

	if err := s.claim(); err != nil {
		return nil, err
	}
	s.logger = cfg.Logger.With("data_dir", s.cfg.DataDir)
	if _, err := endOrphan(ctx, s.pgdata); err != nil {
		return nil, err
	}
	major, err := initialisedMajor(s.pgdata)
	if err != nil {
		return nil, err
	}
	if s.bin, err = locate(ctx, s.cfg, s.pgdata, major); err != nil {
		return nil, err
	}
	if err := s.account.checkReach(s.bin.dir); err != nil {
		return nil, err
	}
	if major == 0 {
		if err := s.initialise(ctx); err != nil {
			return nil, err
		}
	}
	if err := s.account.ownTree(s.pgdata); err != nil {
		return nil, fmt.Errorf("give %s to the server's user: %w", s.pgdata, err)
	}
	if err := s.prepareSocketDir(); err != nil {
		return nil, err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.launch(ctx); err != nil {
		return nil, err
	}
	if err := s.createDatabase(ctx); err != nil {
		_ = s.halt(ctx)
		return nil, err
	}
	s.tasks.Go(s.rotateLog)
	s.logger.Info("PostgreSQL is running", "version", s.bin.major, "programs", s.bin.dir)
	return s, nil
}

// URL names the database, for pgx and libpq: a Unix socket, no password.
func (s *Server) URL() string { return s.url(s.cfg.Database) }

func (s *Server) url(database string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.User(superuser),
		Path:   "/" + database,
		RawQuery: url.Values{
			"host":    {s.socketDir},
			"port":    {s.port()},
			"sslmode": {"disable"},
		}.Encode(),
	}
	return u.String()
}

// port is the number in the socket's name, and of TCP when the settings open it.
func (s *Server) port() string {
	if port := s.cfg.Settings["port"]; port != "" {
		return port
	}
	return socketPort
}

// DataDir is the absolute path of the data directory, symlinks resolved.
func (s *Server) DataDir() string { return s.cfg.DataDir }

// LogFile is the path of the server's own log.
func (s *Server) LogFile() string { return s.log.file.Name() }

// Major is the major version of the running PostgreSQL.
func (s *Server) Major() int { return s.bin.major }

// Stop shuts the server down in order and gives the data directory up. Open
// connections are closed, their transactions rolled back. A server that does
// not end in 30 s, or before ctx ends, is ended by force, which costs the next
// start a recovery but no committed data. A second Stop waits for the first and
// returns the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.cancel() // ends a start that watch is in the middle of
		s.mu.Lock()
		s.stopped = true
		s.stopErr = s.halt(ctx)
		s.mu.Unlock()
		s.tasks.Wait()
		s.release()
		s.logger.Info("PostgreSQL has stopped")
	})
	return s.stopErr
}

// release gives up what claim and prepareSocketDir took. The lock goes last:
// whoever gets it next may remove anything.
func (s *Server) release() {
	s.cancel()
	if s.tempDir != "" {
		_ = os.RemoveAll(s.tempDir)
	}
	if s.log != nil {
		_ = s.log.close()
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// claim makes the data directory and becomes its only live user.
func (s *Server) claim() error {
	dir := s.cfg.DataDir
	if err := makeDataDir(dir); err != nil {
		return err
	}
	// The server is recognised later by the path in its arguments.
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	s.cfg.DataDir, s.pgdata = dir, filepath.Join(dir, "postgres")
	if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
		return fmt.Errorf("%s is a PostgreSQL data directory itself: give Posthorn a directory of its own, or the URL of that server", dir)
	}
	if s.account, err = chooseAccount(s.pgdata, dir); err != nil {
		return err
	}
	if s.lock, err = lockOwner(dir, s.account); err != nil {
		return err
	}
	if s.account != nil {
		if err := openToTraverse(dir, s.account); err != nil {
			return err
		}
	}
	if err := s.account.checkReach(dir); err != nil {
		return err
	}
	if s.log, err = openLog(dir, s.account); err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	return nil
}

// makeDataDir creates dir and its parents. As root it is made traversable for
// the server's user, without being listable.
func makeDataDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create data directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("data directory %s: not a directory", dir)
	}
	return nil
}

// openToTraverse lets the account pass through dir when dir holds nothing but
// Posthorn's own data: a directory of somebody else's keeps its mode.
func openToTraverse(dir string, as *account) error {
	info, err := os.Stat(dir)
	if err != nil || as.traverses(info) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	ours := func(name string) bool {
		return name == "owner.lock" || name == "run" || strings.HasPrefix(name, "postgres")
	}
	for _, entry := range entries {
		if !ours(entry.Name()) {
			return nil
		}
	}
	return os.Chmod(dir, info.Mode().Perm()|0o011)
}

// initialisedMajor reads which version made pgdata; 0 when it does not exist.
func initialisedMajor(pgdata string) (int, error) {
	if _, err := os.Stat(pgdata); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	text, err := os.ReadFile(filepath.Join(pgdata, "PG_VERSION"))
	if err != nil {
		return 0, fmt.Errorf("%s exists but is not a PostgreSQL data directory: %w", pgdata, err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION: %w", pgdata, err)
	}
	return major, nil
}

// initialise makes pgdata. It works beside the final place, so that pgdata
// either exists whole and synced or not at all, whenever we are killed.
func (s *Server) initialise(ctx context.Context) error {
	leftovers, err := filepath.Glob(filepath.Join(s.cfg.DataDir, "postgres.init-*"))
	if err != nil {
		return err
	}
	for _, dir := range leftovers {
		if err := removeTree(ctx, dir); err != nil {
			return fmt.Errorf("remove an interrupted initialisation: %w", err)
		}
	}
	dir, err := os.MkdirTemp(s.cfg.DataDir, "postgres.init-")
	if err != nil {
		return err
	}
	if err := s.account.own(dir); err != nil {
		return err
	}

	args := []string{
		"--pgdata", dir, "--username", superuser,
		"--encoding", "UTF8", "--locale", "C", "--data-checksums",
		"--auth-local", "trust", "--auth-host", "reject",
	}
	if s.cfg.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	from := s.log.size()
	cmd := exec.Command(filepath.Join(s.bin.dir, "initdb"), args...)
	cmd.Dir = dir
	p, err := spawn(cmd, s.account, s.log.file, syscall.SIGKILL)
	if err != nil {
		return fmt.Errorf("initialise the data directory: %w", err)
	}
	select {
	case <-p.done:
		err = p.err
	case <-ctx.Done():
		_ = p.signal(syscall.SIGKILL)
		<-p.done
		err = ctx.Err()
	}
	if err != nil {
		_ = removeTree(context.WithoutCancel(ctx), dir) // else the next start does
		return fmt.Errorf("initialise the data directory: initdb: %w%s", err, quote(s.log.since(from, 10)))
	}
	if err := os.Rename(dir, s.pgdata); err != nil {
		return fmt.Errorf("initialise the data directory: %w", err)
	}
	return syncDir(s.cfg.DataDir)
}

// removeTree removes dir. A child of an initdb that was killed may still be
// writing there, until it finds its input closed.
func removeTree(ctx context.Context, dir string) error {
	begin := time.Now()
	for {
		err := os.RemoveAll(dir)
		if err == nil || time.Since(begin) > 5*time.Second || ctx.Err() != nil {
			return err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// plainPath matches paths that need no quoting in a list of directories, here
// and in a connection string.
var plainPath = regexp.MustCompile(`^/[A-Za-z0-9/._-]*$`)

// maxSocketDir leaves room for the socket's name in the 104 bytes of the
// shortest address structure.
const maxSocketDir = 104 - len("/.s.PGSQL.65535.lock") - 1

func (s *Server) prepareSocketDir() error {
	dir := filepath.Join(s.cfg.DataDir, "run")
	if len(dir) > maxSocketDir || !plainPath.MatchString(dir) {
		temp, err := os.MkdirTemp("/tmp", "posthorn-")
		if err != nil {
			return fmt.Errorf("create a socket directory: %w", err)
		}
		dir, s.tempDir = temp, temp
	} else if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create the socket directory: %w", err)
	}
	// Access to the socket is access to the data: the mode is the login.
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("protect the socket directory: %w", err)
	}
	if err := s.account.own(dir); err != nil {
		return fmt.Errorf("give the socket directory to the server's user: %w", err)
	}
	if err := s.account.checkReach(dir); err != nil {
		return err
	}
	s.socketDir = dir
	return nil
}

// removeSocket removes a dead server's socket and its lock file, which names a
// process id just as postmaster.pid does. The directory is ours alone.
func (s *Server) removeSocket() error {
	socket := filepath.Join(s.socketDir, ".s.PGSQL."+s.port())
	for _, path := range []string{socket, socket + ".lock"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a dead server's socket: %w", err)
		}
	}
	return nil
}

// busyFor is how long a start is retried while remains of a killed server are
// in use: its last backends hold the shared memory until they notice.
const busyFor = 15 * time.Second

// busyPattern matches PostgreSQL's words for that.
var busyPattern = regexp.MustCompile(`pre-existing shared memory block|lock file ".*" already exists|could not create lock file|is still in use`)

// launch starts the process and waits until it accepts connections. The caller
// holds mu.
func (s *Server) launch(ctx context.Context) error {
	begin := time.Now()
	for {
		if _, err := endOrphan(ctx, s.pgdata); err != nil {
			return err
		}
		if err := s.removeSocket(); err != nil {
			return err
		}
		from := s.log.size()
		cmd := exec.Command(filepath.Join(s.bin.dir, "postgres"), s.arguments()...)
		cmd.Dir = s.pgdata
		p, err := spawn(cmd, s.account, s.log.file, syscall.SIGINT)
		if err != nil {
			return err
		}
		err = s.waitReady(ctx, p)
		if err == nil {
			s.proc = p
			s.tasks.Go(func() { s.watch(p) })
			return nil
		}
		text := s.log.since(from, 20)
		if p.exited() && busyPattern.MatchString(text) && time.Since(begin) < busyFor && ctx.Err() == nil {
			pause(ctx, 200*time.Millisecond)
			continue
		}
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		_ = shutdown(stop, p.signal, p.done)
		cancel()
		return fmt.Errorf("%w%s", err, quote(text))
	}
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func quote(log string) string {
	if log == "" {
		return ""
	}
	return "; the server's log says:\n" + log
}

// arguments are the server's parameters. They stand on the command line, so
// that they hold whatever an earlier version wrote into the directory.
func (s *Server) arguments() []string {
	settings := defaultSettings()
	for name, value := range s.cfg.Settings {
		settings[name] = value
	}
	settings["unix_socket_directories"] = s.socketDir

	args := []string{"-D", s.pgdata}
	names := make([]string, 0, len(settings))
	for name := range settings {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// waitReady polls until p answers a query. A server that recovers from a crash
// refuses connections meanwhile and is waited for until ctx ends.
func (s *Server) waitReady(ctx context.Context, p *process) error {
	for {
		err := s.query(ctx, "postgres", func(*pgx.Conn) error { return nil })
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("the server ended while starting: %w", exitError(p))
		case <-ctx.Done():
			return fmt.Errorf("the server does not accept connections: %w (last answer: %w)", ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func exitError(p *process) error {
	if p.err != nil {
		return p.err
	}
	return errors.New("exit status 0")
}

// query runs do on a connection of its own.
func (s *Server) query(ctx context.Context, database string, do func(*pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig(s.url(database))
	if err != nil {
		return err
	}
	cfg.ConnectTimeout = 5 * time.Second
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}

func (s *Server) createDatabase(ctx context.Context) error {
	name := s.cfg.Database
	err := s.query(ctx, "postgres", func(conn *pgx.Conn) error {
		var exists bool
		const probe = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
		if err := conn.QueryRow(ctx, probe, name).Scan(&exists); err != nil || exists {
			return err
		}
		_, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
		return err
	})
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// halt ends the process, if one is wanted. The caller holds mu.
func (s *Server) halt(ctx context.Context) error {
	p := s.proc
	s.proc = nil // watch now takes the exit for a wanted one
	if p == nil {
		return nil
	}
	for _, pid := range children(p.os.Pid) {
		_ = syscall.Kill(pid, syscall.SIGCONT) // a frozen backend would hold the shutdown up
	}
	err := shutdown(ctx, p.signal, p.done)
	if err == nil && p.err != nil {
		s.logger.Warn("PostgreSQL did not stop cleanly", "error", p.err)
	}
	return err
}

// watch starts the server again when p ends without having been asked to. It
// tries until it succeeds or Stop is called, every 5 s at most.
func (s *Server) watch(p *process) {
	<-p.done
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != p || s.stopped {
		return
	}
	s.proc = nil
	s.logger.Error("PostgreSQL ended unexpectedly, starting it again", "error", exitError(p))
	for wait := 100 * time.Millisecond; s.ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.StartTimeout)
		err := s.launch(ctx)
		cancel()
		if err == nil {
			s.logger.Info("PostgreSQL is running again")
			return
		}
		if s.ctx.Err() == nil {
			s.logger.Error("PostgreSQL does not start", "error", err, "retry_in", wait)
			pause(s.ctx, wait)
		}
	}
}

// rotateLog keeps the log bounded.
func (s *Server) rotateLog() {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		if err := s.log.rotate(logLimit); err != nil {
			s.logger.Warn("cannot rotate PostgreSQL's log", "error", err)
		}
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// Destroy removes the data directory dir with all it holds, after stopping a
// server that a dead process left running on it. It refuses with *InUseError
// while a live process owns it, and does nothing when dir does not exist.
func Destroy(ctx context.Context, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	lock, err := lockOwner(dir, nil)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := endOrphan(ctx, filepath.Join(dir, "postgres")); err != nil {
		return err
	}
	return removeTree(ctx, dir)
}
