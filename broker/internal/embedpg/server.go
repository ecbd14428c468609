//go:build linux || darwin

package embedpg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// superuser owns every object of a managed server.
	superuser = "posthorn"
	// database is the one that URL names.
	database = "posthorn"
	// startTimeout bounds one start, crash recovery included.
	startTimeout = 5 * time.Minute
)

// Server is a running PostgreSQL. Its methods may be called from any goroutine.
type Server struct {
	cfg       Config
	bin       binaries
	account   *account
	lock      *os.File
	log       *serverLog
	pgdata    string
	socketDir string
	tempDir   string // the socket's directory when it is not inside DataDir

	ctx    context.Context // ends when Stop begins
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu   sync.Mutex // serialises starts and stops of the process
	proc *process   // nil when no process is wanted

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
	ctx, cancelStart := context.WithTimeout(ctx, startTimeout)
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
	s.cfg.Logger = cfg.Logger.With("data_dir", s.cfg.DataDir)
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
	s.cfg.Logger.Info("PostgreSQL is running", "version", s.bin.major, "programs", s.bin.dir)
	return s, nil
}

// URL names the database, for pgx and libpq: a Unix socket, no password.
func (s *Server) URL() string { return s.url(database) }

func (s *Server) url(name string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.User(superuser),
		Path:   "/" + name,
		RawQuery: url.Values{
			"host":    {s.socketDir},
			"port":    {s.port()},
			"sslmode": {"disable"},
		}.Encode(),
	}
	return u.String()
}

// DataDir is the absolute path of the data directory, symlinks resolved.
func (s *Server) DataDir() string { return s.cfg.DataDir }

// Stop shuts the server down in order and gives the data directory up. Open
// connections are closed, their transactions rolled back. A server that does
// not end in 30 s, or before ctx ends, is ended by force, which costs the next
// start a recovery but no committed data. A second Stop waits for the first and
// returns the same.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.cancel() // ends a start that watch is in the middle of
		s.mu.Lock()
		s.stopErr = s.halt(ctx)
		s.mu.Unlock()
		s.tasks.Wait()
		s.release()
		s.cfg.Logger.Info("PostgreSQL has stopped")
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
		if err := endOrphan(ctx, s.pgdata); err != nil {
			return err
		}
		if err := s.removeSocket(); err != nil {
			return err
		}
		from := s.log.size()
		// The server outlives ctx, which bounds its start only.
		cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(s.bin.dir, "postgres"), s.arguments()...)
		cmd.Dir = s.pgdata
		p, err := spawn(cmd, s.account, s.log.file, syscall.SIGINT)
		if err != nil {
			return err
		}
		err = s.waitReady(ctx, p)
		if err == nil {
			s.proc = p
			s.tasks.Go(func() { s.watch(p) }) //nolint:contextcheck // it ends with s.ctx, not with the start
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
	select {
	case <-time.After(d):
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
	maps.Copy(settings, s.cfg.Settings)
	settings["unix_socket_directories"] = s.socketDir

	args := []string{"-D", s.pgdata}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
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

// query runs do on a connection of its own to the database of that name.
func (s *Server) query(ctx context.Context, name string, do func(*pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig(s.url(name))
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
	err := s.query(ctx, "postgres", func(conn *pgx.Conn) error {
		var exists bool
		const probe = `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`
		if err := conn.QueryRow(ctx, probe, database).Scan(&exists); err != nil || exists {
			return err
		}
		_, err := conn.Exec(ctx, "CREATE DATABASE "+database)
		return err
	})
	if err != nil {
		return fmt.Errorf("create database %s: %w", database, err)
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
		s.cfg.Logger.Warn("PostgreSQL did not stop cleanly", "error", p.err)
	}
	return err
}

// watch starts the server again when p ends without having been asked to. It
// tries until it succeeds or Stop is called, every 5 s at most.
func (s *Server) watch(p *process) {
	<-p.done
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != p || s.ctx.Err() != nil {
		return
	}
	s.proc = nil
	s.cfg.Logger.Error("PostgreSQL ended unexpectedly, starting it again", "error", exitError(p))
	for wait := 100 * time.Millisecond; s.ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
		err := s.launch(ctx)
		cancel()
		if err == nil {
			s.cfg.Logger.Info("PostgreSQL is running again")
			return
		}
		if s.ctx.Err() == nil {
			s.cfg.Logger.Error("PostgreSQL does not start", "error", err, "retry_in", wait)
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
			s.cfg.Logger.Warn("cannot rotate PostgreSQL's log", "error", err)
		}
		select {
		case <-ticker.C:
		case <-s.ctx.Done():
			return
		}
	}
}
