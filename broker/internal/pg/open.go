package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says how to reach the database. Either URL or Host is needed.
type Config struct {
	// URL is a postgres:// URL or a key=value string as libpq takes it
	// (DATABASE_URL). It may name several hosts, a Unix socket directory
	// (?host=/run/postgresql), TLS (?sslmode=verify-full) and
	// ?default_query_exec_mode=. Set, it makes Open ignore the fields from Host
	// to SSLRootCert.
	URL string

	Host     string // name, address or absolute socket directory (PG_HOST)
	Port     int    // 0 = 5432 (PG_PORT)
	User     string // "" = the operating system's user name (PG_USER)
	Password string // "" = none, or from a password file (PG_PASSWORD)
	Database string // "" = the same as the user (PG_DATABASE, PG_DB)
	SSLMode  string // "" = "prefer" (PG_USE_SSL makes it "require")

	// SSLRootCert is a file of certificates, one of which must have signed the
	// server's where SSLMode verifies; "" = those of the system.
	SSLRootCert string

	// PoolSize is the most connections open at once; 0 = 10 (DB_POOL_SIZE).
	PoolSize int

	// ApplicationName is shown in pg_stat_activity; "" = "posthorn", unless the
	// URL has one.
	ApplicationName string

	// DialTimeout bounds one connection attempt, TLS and login included;
	// 0 = 5 s. A connect_timeout in the URL is ignored.
	DialTimeout time.Duration

	// IdleInTransaction is how long the server lets a transaction of ours sit
	// idle, locks held, before it ends the connection; 0 = 60 s.
	IdleInTransaction time.Duration

	// UserTimeout is how long sent data may stay unacknowledged by the peer
	// before the connection counts as dead, on both ends where the system can;
	// 0 = 15 s.
	UserTimeout time.Duration

	// WrapDial, in tests of an outage, gives the connections to the database another way to fail;
	// nil = none.
	WrapDial func(next Dialer) Dialer
}

// Dialer connects as net.Dialer.DialContext does.
type Dialer = func(ctx context.Context, network, address string) (net.Conn, error)

func (c Config) withDefaults() Config {
	if c.PoolSize == 0 {
		c.PoolSize = 10
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = 5 * time.Second
	}
	if c.IdleInTransaction == 0 {
		c.IdleInTransaction = time.Minute
	}
	if c.UserTimeout == 0 {
		c.UserTimeout = 15 * time.Second
	}
	return c
}

// connString is what pgx parses.
func (c Config) connString() (string, error) {
	if c.URL != "" {
		return c.URL, nil
	}
	if c.Host == "" {
		return "", errors.New("neither a database URL nor a host is given")
	}
	query := url.Values{"host": {c.Host}}
	if c.Port != 0 {
		query.Set("port", strconv.Itoa(c.Port))
	}
	if c.SSLMode != "" {
		query.Set("sslmode", c.SSLMode)
	}
	if c.SSLRootCert != "" {
		query.Set("sslrootcert", c.SSLRootCert)
	}
	u := url.URL{Scheme: "postgres", Path: "/" + c.Database, RawQuery: query.Encode()}
	if c.User != "" {
		u.User = url.UserPassword(c.User, c.Password)
	}
	return u.String(), nil
}

// Open returns a pool after it has proved, with one connection, that the
// database can be reached. An error that is Unavailable may pass; a refused
// login is among them, because a running broker has to treat it like any other
// outage. An error that is not comes from the configuration.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	cfg = cfg.withDefaults()
	poolCfg, err := cfg.pool()
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := adaptToPooler(ctx, poolCfg.ConnConfig, cfg); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolCfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return pool, nil
}

// serverTimeouts are the parameters that a direct connection asks the server
// for when it starts.
var serverTimeouts = []string{"idle_in_transaction_session_timeout", "tcp_user_timeout"}

func (c Config) pool() (*pgxpool.Config, error) {
	text, err := c.connString()
	if err != nil {
		return nil, err
	}
	poolCfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, err // pgx masks the password
	}
	poolCfg.MaxConns = int32(c.PoolSize)
	poolCfg.PingTimeout = c.DialTimeout

	conn := poolCfg.ConnConfig
	conn.ConnectTimeout = c.DialTimeout
	dialer := &net.Dialer{
		Timeout:         c.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: c.UserTimeout, Interval: 5 * time.Second, Count: 3},
		Control:         userTimeoutControl(c.UserTimeout),
	}
	conn.DialFunc = dialer.DialContext
	if c.WrapDial != nil {
		conn.DialFunc = c.WrapDial(dialer.DialContext)
	}
	// A statement whose deadline passes is cancelled at the server too: it must not wait for a lock
	// and take effect long after its caller was told that it failed.
	conn.BuildContextWatcherHandler = func(pgConn *pgconn.PgConn) ctxwatch.Handler {
		return &canceller{conn: pgConn}
	}
	conn.OnPgError = func(_ *pgconn.PgConn, err *pgconn.PgError) bool { return !discards(err) }

	if c.ApplicationName != "" {
		conn.RuntimeParams["application_name"] = c.ApplicationName
	} else if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "posthorn"
	}
	conn.RuntimeParams["idle_in_transaction_session_timeout"] = milliseconds(c.IdleInTransaction)
	conn.RuntimeParams["tcp_user_timeout"] = milliseconds(c.UserTimeout)
	return poolCfg, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// adaptToPooler makes one connection and changes cfg to what stands at the other
// end. Poolers such as PgBouncer refuse start-up parameters they do not know:
// those are left out then, and have to be set for the role or the database. In
// transaction mode a pooler hands each transaction another server connection,
// where a named prepared statement does not exist: statements are then parsed
// each time, unless the URL chose a mode.
func adaptToPooler(ctx context.Context, cfg *pgx.ConnConfig, c Config) error {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if pgErr, ok := serverError(err); ok && strings.Contains(pgErr.Message, "unsupported startup parameter") {
		for _, name := range serverTimeouts {
			delete(cfg.RuntimeParams, name)
		}
		conn, err = pgx.ConnectConfig(ctx, cfg)
	}
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	// A pooler answers the login with a cancellation key of its own, whose
	// process id is not that of the server process.
	var backend uint32
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&backend); err != nil {
		return err
	}
	chosen := strings.Contains(c.URL, "default_query_exec_mode")
	if backend != conn.PgConn().PID() && !chosen {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	return nil
}
