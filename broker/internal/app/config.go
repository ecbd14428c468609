package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthorn/posthorn/broker/internal/auth"
	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/seal"
	"github.com/posthorn/posthorn/broker/internal/tracing"
)

// Config is everything that can be set. Flags come before environment variables, and those before
// defaults; settings.go names the flag and the variables of each field, and says what zero means.
// Start from DefaultConfig: the zero Config is not usable.
type Config struct {
	// Listen is the address of the HTTP listener. Port 0 picks a free port. Flag --listen, variable
	// POSTHORN_LISTEN; default 127.0.0.1:6632, or that host with the port in PORT.
	Listen string
	// Port is the port of the default address. Variable PORT; default 6632; 0 means the default. It has
	// no effect when Listen is given.
	Port int
	// AllowInsecure allows a listener that other machines can reach, although nothing is authenticated.
	// Flag --allow-insecure, variable POSTHORN_ALLOW_INSECURE; default false.
	AllowInsecure bool

	// TLSCert is the file of the listener's certificate, followed by those between it and the root. Flag
	// --tls-cert, variable POSTHORN_TLS_CERT; default "", which means no TLS. A file that is replaced is read
	// anew.
	TLSCert string
	// TLSKey is the file of its private key. Flag --tls-key, variable POSTHORN_TLS_KEY; default "".
	TLSKey string
	// TLSClientCA is a file of certificates, one of which must have signed that of each client. Flag
	// --tls-client-ca, variable POSTHORN_TLS_CLIENT_CA; default "", which means that clients need none.
	TLSClientCA string

	// Tokens lists the tokens that are accepted, each as role:token or role:name:token, separated by commas
	// or line breaks. Variable POSTHORN_TOKENS, or a file named by POSTHORN_TOKENS_FILE; default "", which
	// means none. Without tokens and without JWTEnabled nothing is authenticated.
	Tokens string
	// JWTEnabled accepts signed tokens. Variable JWT_ENABLED; default false.
	JWTEnabled bool
	// JWTAlgorithm is the set of algorithms that are accepted, separated by commas: HS256, HS384, HS512,
	// RS256, RS384, RS512, ES256, EdDSA. Variable JWT_ALGORITHM; default "", which means every one that a
	// configured key fits.
	JWTAlgorithm string
	// JWTSecret is the secret of the algorithms HS256, HS384 and HS512. Variable JWT_SECRET, or a file named
	// by JWT_SECRET_FILE; default "", which means none.
	JWTSecret string
	// JWTPublicKey is the PEM of an RSA, P-256 or Ed25519 public key. Variable JWT_PUBLIC_KEY, or a file
	// named by JWT_PUBLIC_KEY_FILE; default "", which means none.
	JWTPublicKey string
	// JWTJWKSURL is where a set of public keys is published. Variable JWT_JWKS_URL; default "", which means
	// nowhere.
	JWTJWKSURL string
	// JWTIssuer is the iss that signed tokens must have. Variable JWT_ISSUER; default "", which means any.
	JWTIssuer string
	// JWTAudience is the aud that signed tokens must have. Variable JWT_AUDIENCE; default "", which means any.
	JWTAudience string
	// JWTClockSkew is how far the times in a signed token may be off. Variable JWT_CLOCK_SKEW, in seconds;
	// default 30; 0 means not at all.
	JWTClockSkew time.Duration
	// JWTRolesClaim is the claim that holds a role. Variable JWT_ROLES_CLAIM; default role.
	JWTRolesClaim string
	// JWTRolesArrayClaim is the claim that holds several. Variable JWT_ROLES_ARRAY_CLAIM; default roles.
	JWTRolesArrayClaim string
	// JWTRoleAdmin is what claims call the role admin. Variable JWT_ROLE_ADMIN; default admin.
	JWTRoleAdmin string
	// JWTRoleReadWrite is what claims call the role read-write. Variable JWT_ROLE_READ_WRITE; default
	// read-write.
	JWTRoleReadWrite string
	// JWTRoleReadOnly is what claims call the role read-only. Variable JWT_ROLE_READ_ONLY; default read-only.
	JWTRoleReadOnly string
	// JWTRoleWriteOnly is what claims call the role write-only. Variable JWT_ROLE_WRITE_ONLY; default
	// write-only.
	JWTRoleWriteOnly string
	// JWTSkipPaths lists paths that are answered without a token, separated by commas and compared exactly.
	// Variable JWT_SKIP_PATHS; default /health,/metrics/prometheus,/metrics,/, which are public anyway.
	JWTSkipPaths string

	// Testing serves the test clock, on a loopback listener only. Flag --testing, variable
	// POSTHORN_TESTING; default false.
	Testing bool
	// Failpoints are places at which the process ends as in a crash, as failpoint.Arm takes them. Variable
	// POSTHORN_FAILPOINTS; default "", which means none. Refused without Testing.
	Failpoints string
	// PprofListen is a loopback address for profiles. Flag --pprof-listen, variable
	// POSTHORN_PPROF_LISTEN; default "", which means no profiles.
	PprofListen string
	// MaxConnections is the most connections served at once; more wait to be accepted. Flag
	// --max-connections, variable POSTHORN_MAX_CONNECTIONS; default 16384; 0 means no bound.
	MaxConnections int
	// MaxBody is the largest request body in bytes. Flag --max-body-bytes, variable
	// QUEEN_MAX_BODY_BYTES; default 64 MiB; 0 means the default.
	MaxBody int64
	// MaxBodyInFlight is the most request body bytes held at once. Flag --max-body-bytes-in-flight,
	// variable POSTHORN_MAX_BODY_BYTES_IN_FLIGHT; default 512 MiB; 0 means the default.
	MaxBodyInFlight int64
	// StopTimeout is how long requests in flight may take to finish. Flag --stop-timeout, variable
	// POSTHORN_STOP_TIMEOUT; default 30s; 0 means that they are cut off at once.
	StopTimeout time.Duration

	// DatabaseURL is a PostgreSQL URL or connection string. Variable DATABASE_URL, or a file named by
	// DATABASE_URL_FILE; default "", which means the PG* fields. There is no flag: command lines are
	// visible to others.
	DatabaseURL string
	// PGHost is a host name, address or socket directory. Variable PG_HOST; default "", which means
	// that no database is named.
	PGHost string
	// PGPort is the port at PGHost. Variable PG_PORT; default 5432; 0 means the default.
	PGPort int
	// PGUser is the role at PGHost. Variable PG_USER; default "postgres".
	PGUser string
	// PGPassword is the password of PGUser. Variable PG_PASSWORD, or a file named by PG_PASSWORD_FILE;
	// default "", which means none.
	PGPassword string
	// PGDatabase is the database at PGHost. Variables PG_DATABASE, PG_DB; default "postgres".
	PGDatabase string
	// PGUseSSL requires TLS to PGHost. Variable PG_USE_SSL; default false, which means TLS if
	// the server offers it.
	PGUseSSL bool
	// PGSSLMode is how TLS to PGHost is used and what is verified: disable, allow, prefer, require, verify-ca
	// or verify-full. Variable POSTHORN_PG_SSLMODE; default "", which means verify-full with PGSSLRootCert,
	// else require with PGUseSSL, else prefer.
	PGSSLMode string
	// PGSSLRootCert is a file of the certificates that may sign that of PGHost. Variable
	// POSTHORN_PG_SSLROOTCERT; default "", which means those of the system where a mode verifies.
	PGSSLRootCert string
	// PoolSize is the most connections to PostgreSQL. Flag --pool-size, variable DB_POOL_SIZE; default
	// 20; 0 means the default.
	PoolSize int
	// StatementTimeout bounds each statement. Flag --statement-timeout-ms, variable
	// QUEEN_STMT_TIMEOUT_MS; default 10000 ms; 0 means the default.
	StatementTimeout time.Duration
	// DataDir is where development mode keeps its PostgreSQL. Flag --data, variable POSTHORN_DATA_DIR;
	// default "", which means the user's data directory.
	DataDir string
	// PGBin is the directory of the PostgreSQL programs of development mode. Flag --pg-bin, variable
	// POSTHORN_PG_BIN; default "", which means that they are looked for, else fetched.
	PGBin string

	// SpoolDir is where pushes wait on this machine's disk while PostgreSQL is away. One broker at a time
	// may use it, and it must survive a restart. Flag --spool, variable FILE_BUFFER_DIR; default "",
	// which means a directory beside the managed PostgreSQL in development mode, else no spool: what
	// cannot be committed is answered as failed.
	SpoolDir string
	// SpoolFlush is how long what is in the spool waits at most, with PostgreSQL there, before it is moved to
	// the log. Variable FILE_BUFFER_FLUSH_MS; default 500 ms; 0 means the default.
	SpoolFlush time.Duration
	// SpoolBatch is how many records of the spool are moved at a time. Variable FILE_BUFFER_MAX_BATCH; default
	// 2000; 0 means the default.
	SpoolBatch int

	// EncryptionKey is the key that payloads are encrypted with, 64 hexadecimal digits. Variable
	// QUEEN_ENCRYPTION_KEY, or a file named by QUEEN_ENCRYPTION_KEY_FILE; default "", which means none.
	// Anything else disables encryption, with a warning, unless StrictEncryption.
	EncryptionKey string
	// EncryptionKeys are several, as name:key separated by commas: the first encrypts, all of them and
	// EncryptionKey decrypt. Variable QUEEN_ENCRYPTION_KEYS, or a file named by QUEEN_ENCRYPTION_KEYS_FILE;
	// default "", which means none.
	EncryptionKeys string
	// StrictEncryption never stores what a queue wants encrypted as it is: a bad key stops the start, and
	// without one such a queue takes no messages. Variable QUEEN_ENCRYPTION_STRICT; default false.
	StrictEncryption bool

	// PopTimeout is the wait of a long poll that names none. Flag --pop-timeout-ms, variables
	// DEFAULT_TIMEOUT, POP_DEFAULT_TIMEOUT_MS; default 30000 ms; 0 means the default.
	PopTimeout time.Duration
	// SubscriptionMode is where a new consumer group starts that says nothing of it: all, new or
	// new-only. Flag --subscription-mode, variable DEFAULT_SUBSCRIPTION_MODE; default all.
	SubscriptionMode string
	// Shards is the number of log shards, fixed at the first start of a database. Flag --shards,
	// variable POSTHORN_SHARDS; default 8; 0 means the default.
	Shards int
	// Writers is the number of concurrent flushes. Flag --writers, variable POSTHORN_WRITERS; default
	// 2; 0 means the default.
	Writers int
	// HoldWindow is how long a push waits for others to share its commit. Flag --hold-window, variable
	// POSTHORN_HOLD_WINDOW; default 0, which means not at all.
	HoldWindow time.Duration
	// DedupCacheMB is the memory of the deduplication cache in MiB. Flag --dedup-cache-mb, variable
	// POSTHORN_DEDUP_CACHE_MB; default 512; 0 means the default.
	DedupCacheMB int64
	// SegmentCacheMB is the memory of the segment cache in MiB. Flag --segment-cache-mb, variable
	// POSTHORN_SEGMENT_CACHE_MB; default 64; 0 means the default.
	SegmentCacheMB int64
	// TraceRetention is how long traces are kept, unless their queue keeps its messages for less. Variable
	// POSTHORN_TRACE_RETENTION; default 168h; 0 means the default.
	TraceRetention time.Duration
	// RetentionInterval is how often what queues no longer keep is removed. Variable RETENTION_INTERVAL;
	// default 5000 ms; 0 means the default.
	RetentionInterval time.Duration
	// RetentionBatch is how many segments one transaction of retention removes at most. Variable
	// RETENTION_BATCH_SIZE; default 1000; 0 means the default.
	RetentionBatch int
	// CleanupDays is how many days a partition that is empty and idle stays. Variable
	// PARTITION_CLEANUP_DAYS; default 30; 0 means the default.
	CleanupDays int
	// CleanupEnabled removes such partitions. Variable QUEEN_PARTITION_CLEANUP_ENABLED; default true.
	CleanupEnabled bool

	// PublishMaxTopics and PublishMaxSchedules bound how many of them there may be. Variables POSTHORN_PUBLISH_MAX_TOPICS and
	// POSTHORN_PUBLISH_MAX_SCHEDULES; default 0, no bound.
	PublishMaxTopics    int
	PublishMaxSchedules int
	// PublishMaxEndpoints bounds the endpoints of one topic. Variable POSTHORN_PUBLISH_MAX_ENDPOINTS; default 100;
	// 0 means the default.
	PublishMaxEndpoints int
	// PublishRetries is how often a message is tried again that does not say. Variable POSTHORN_PUBLISH_RETRIES; default
	// 3; 0 means never.
	PublishRetries int
	// PublishMaxRetries bounds the retries of a message. Variable POSTHORN_PUBLISH_MAX_RETRIES; default 0, which means no
	// bound.
	PublishMaxRetries int
	// PublishMaxDelay bounds the delay of a message, in whole seconds. Variable POSTHORN_PUBLISH_MAX_DELAY; default 0, which
	// means no bound.
	PublishMaxDelay time.Duration
	// PublishTimeout bounds one attempt. Variable POSTHORN_PUBLISH_TIMEOUT; default 30s, at most 2h; 0 means the default.
	PublishTimeout time.Duration
	// PublishBackoff is f in the pause of e^(f·n) seconds, at most a day, before the n-th retry. Variable
	// POSTHORN_PUBLISH_BACKOFF_FACTOR; default 2; 0 means the default.
	PublishBackoff float64
	// PublishDedupWindow is how long a deduplication id counts. Variable POSTHORN_PUBLISH_DEDUP_WINDOW; default 2160h;
	// 0 means the default.
	PublishDedupWindow time.Duration
	// PublishDeadRetention is how long messages that failed for good are kept as dead letters. Variable
	// POSTHORN_PUBLISH_DLQ_RETENTION; default 2160h, 90 days; 0 means the default.
	PublishDeadRetention time.Duration
	// PublishLogRetention is how long what happened to messages is kept, and the messages with it. Variable
	// POSTHORN_PUBLISH_LOG_RETENTION; default 72h, at least 1m; 0 means the default.
	PublishLogRetention time.Duration
	// PublishWorkers is the most attempts at once. Variable POSTHORN_PUBLISH_WORKERS; default 256; 0 means the default.
	PublishWorkers int
	// PublishHostConcurrency is the most attempts at once to one host. Variable POSTHORN_PUBLISH_HOST_CONCURRENCY; default
	// 64; 0 means the default.
	PublishHostConcurrency int
	// CurrentSigningKey and NextSigningKey sign deliveries from the first start of a database on. Variables
	// QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY, or files; default "", which means that keys are minted.
	CurrentSigningKey string
	NextSigningKey    string
	// EgressAllow opens addresses that deliveries do not go to otherwise: CIDR prefixes, addresses and host names, separated
	// by commas. Variable POSTHORN_EGRESS_ALLOW; default "", which means public addresses only.
	EgressAllow string
	// EgressMetadata opens the metadata addresses of cloud providers. Variable POSTHORN_EGRESS_METADATA; default false.
	EgressMetadata bool
	// EgressResolve replaces DNS for deliveries: host:port=address, separated by commas. Variable POSTHORN_EGRESS_RESOLVE;
	// default "", which means none.
	EgressResolve string
	// EgressCA is a PEM file of certificate authorities that deliveries trust beside the system's. Variable
	// POSTHORN_EGRESS_CA; default "", which means none.
	EgressCA string
	// EgressProxy is the URL of an HTTP proxy for deliveries. Variable POSTHORN_EGRESS_PROXY, or a file; default "", which
	// means none: the environment's proxies are ignored.
	EgressProxy string
	// StatsInterval is how often appends are added to the counts of queues, and brokers report. Variable
	// STATS_INTERVAL_MS; default 5000 ms; 0 means the default.
	StatsInterval time.Duration
	// TrafficDays is how long the figures of throughput by the hour are kept, in days. Variable
	// POSTHORN_TRAFFIC_DAYS; default 30; 0 means the default.
	TrafficDays int
	// MetricsQueues is of how many queues the metrics show the lag: those furthest behind. Variable
	// POSTHORN_METRICS_QUEUES; default 100; 0 means none.
	MetricsQueues int
	// OTelEndpoint is the base URL of an OTLP/HTTP collector that traces are sent to. Variables
	// POSTHORN_OTEL_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT; default "", which means no traces.
	OTelEndpoint string
	// OTelPercent is how many of 100 requests without a traceparent are recorded. Variable
	// POSTHORN_OTEL_PERCENT; default 100; 0 means only requests whose caller records them.
	OTelPercent int

	// LogLevel is debug, info, warn or error. Flag --log-level, variable LOG_LEVEL; default info.
	LogLevel string
	// LogFormat is json or text. Flag --log-format, variable POSTHORN_LOG_FORMAT; default json.
	LogFormat string
}

const (
	defaultHost = "127.0.0.1"
	// maxMiB bounds cache sizes so that their bytes fit an int64 with room: 1 PiB.
	maxMiB = 1 << 30
	// maxDuration bounds durations given as numbers: 24 h is longer than any of them makes sense.
	maxDuration = 24 * time.Hour
	// maxWindow bounds durations that are windows of time.
	maxWindow = 100 * 365 * 24 * time.Hour
)

// DefaultConfig is the configuration of a broker that is told nothing.
func DefaultConfig() Config {
	return Config{
		Port:               6632,
		MaxConnections:     16384,
		MaxBody:            64 << 20,
		MaxBodyInFlight:    512 << 20,
		StopTimeout:        30 * time.Second,
		PGPort:             5432,
		PGUser:             "postgres",
		PGDatabase:         "postgres",
		PoolSize:           20,
		StatementTimeout:   10 * time.Second,
		SpoolFlush:         500 * time.Millisecond,
		SpoolBatch:         2000,
		PopTimeout:         30 * time.Second,
		SubscriptionMode:   "all",
		Shards:             8,
		Writers:            2,
		DedupCacheMB:       512,
		SegmentCacheMB:     64,
		StatsInterval:      5 * time.Second,
		TrafficDays:        30,
		MetricsQueues:      100,
		OTelPercent:        100,
		TraceRetention:     7 * 24 * time.Hour,
		RetentionInterval:  5 * time.Second,
		RetentionBatch:     1000,
		CleanupDays:        30,
		CleanupEnabled:     true,
		JWTClockSkew:       30 * time.Second,
		JWTRolesClaim:      "role",
		JWTRolesArrayClaim: "roles",
		JWTRoleAdmin:       "admin",
		JWTRoleReadWrite:   "read-write",
		JWTRoleReadOnly:    "read-only",
		JWTRoleWriteOnly:   "write-only",
		JWTSkipPaths:       "/health,/metrics/prometheus,/metrics,/",
		PublishRetries:     3,
		LogLevel:           "info",
		LogFormat:          "json",
	}
}

// resolve fills what one field takes from another and turns documented zeros into their defaults.
func (c *Config) resolve() {
	d := DefaultConfig()
	orDefault(&c.Port, d.Port)
	if c.Listen == "" {
		c.Listen = net.JoinHostPort(defaultHost, strconv.Itoa(c.Port))
	}
	orDefault(&c.MaxBody, d.MaxBody)
	orDefault(&c.MaxBodyInFlight, d.MaxBodyInFlight)
	orDefault(&c.PGPort, d.PGPort)
	orDefault(&c.PoolSize, d.PoolSize)
	orDefault(&c.StatementTimeout, d.StatementTimeout)
	orDefault(&c.SpoolFlush, d.SpoolFlush)
	orDefault(&c.SpoolBatch, d.SpoolBatch)
	orDefault(&c.PopTimeout, d.PopTimeout)
	orDefault(&c.Shards, d.Shards)
	orDefault(&c.Writers, d.Writers)
	orDefault(&c.DedupCacheMB, d.DedupCacheMB)
	orDefault(&c.SegmentCacheMB, d.SegmentCacheMB)
	orDefault(&c.StatsInterval, d.StatsInterval)
	orDefault(&c.TrafficDays, d.TrafficDays)
	orDefault(&c.TraceRetention, d.TraceRetention)
	orDefault(&c.RetentionInterval, d.RetentionInterval)
	orDefault(&c.RetentionBatch, d.RetentionBatch)
	orDefault(&c.CleanupDays, d.CleanupDays)
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every problem of the configuration at once, one line each.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	authenticator, authErr := c.authenticator(nil, slog.New(slog.DiscardHandler))
	errs = append(errs, authErr)
	switch loopback, err := loopbackAddress(c.Listen); {
	case err != nil:
		bad("POSTHORN_LISTEN (--listen): %w", err)
	case !loopback && !c.AllowInsecure && authenticator == nil && authErr == nil && c.TLSClientCA == "":
		bad("POSTHORN_LISTEN (--listen): %s can be reached from other machines and nothing is authenticated; "+
			"set POSTHORN_TOKENS, JWT_ENABLED or POSTHORN_TLS_CLIENT_CA, or POSTHORN_ALLOW_INSECURE=true (--allow-insecure) if that is meant", c.Listen)
	}
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		bad("POSTHORN_TLS_CERT (--tls-cert), POSTHORN_TLS_KEY (--tls-key): one needs the other")
	case c.TLSClientCA != "" && c.TLSCert == "":
		bad("POSTHORN_TLS_CLIENT_CA (--tls-client-ca): needs POSTHORN_TLS_CERT and POSTHORN_TLS_KEY")
	}
	if c.PGUseSSL && slices.Contains([]string{"disable", "allow", "prefer"}, c.PGSSLMode) {
		bad("POSTHORN_PG_SSLMODE: %s contradicts PG_USE_SSL", c.PGSSLMode)
	}
	if c.PGSSLRootCert != "" && c.PGSSLMode != "" && !strings.HasPrefix(c.PGSSLMode, "verify-") {
		bad("POSTHORN_PG_SSLROOTCERT: POSTHORN_PG_SSLMODE %s verifies nothing", c.PGSSLMode)
	}
	if c.PprofListen != "" {
		switch loopback, err := loopbackAddress(c.PprofListen); {
		case err != nil:
			bad("POSTHORN_PPROF_LISTEN (--pprof-listen): %w", err)
		case !loopback:
			bad("POSTHORN_PPROF_LISTEN (--pprof-listen): %s is not a loopback address", c.PprofListen)
		}
	}
	if _, err := seal.Parse(c.EncryptionKey, c.EncryptionKeys); err != nil && c.StrictEncryption {
		bad("QUEEN_ENCRYPTION_KEY, QUEEN_ENCRYPTION_KEYS: %w", err)
	}
	if c.OTelEndpoint != "" {
		if _, err := tracing.Endpoint(c.OTelEndpoint); err != nil {
			bad("POSTHORN_OTEL_ENDPOINT: %w", err)
		}
	}
	if c.MaxBodyInFlight < c.MaxBody {
		bad("POSTHORN_MAX_BODY_BYTES_IN_FLIGHT (--max-body-bytes-in-flight): %d is less than one body of %d bytes", c.MaxBodyInFlight, c.MaxBody)
	}
	if c.PoolSize < c.Writers+2 {
		bad("DB_POOL_SIZE (--pool-size): %d leaves no connection beside %d writers; at least %d are needed", c.PoolSize, c.Writers, c.Writers+2)
	}
	if c.PublishTimeout > delivery.MaxTimeout {
		bad("POSTHORN_PUBLISH_TIMEOUT: %s is more than %s", c.PublishTimeout, delivery.MaxTimeout)
	}
	if c.PublishLogRetention > 0 && c.PublishLogRetention < delivery.MinLogRetention {
		bad("POSTHORN_PUBLISH_LOG_RETENTION: %s is less than %s", c.PublishLogRetention, delivery.MinLogRetention)
	}
	if c.Failpoints != "" && !c.Testing {
		bad("POSTHORN_FAILPOINTS: needs --testing")
	}
	if c.DatabaseURL != "" {
		// The parser's own message may quote a password.
		if _, err := pgxpool.ParseConfig(c.DatabaseURL); err != nil {
			bad("DATABASE_URL: not a PostgreSQL URL or connection string")
		}
	}
	return errors.Join(errs...)
}

// loopbackAddress says whether an address of a listener can be reached from this machine only. A host
// name other than localhost may resolve to anything.
func loopbackAddress(address string) (bool, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return false, fmt.Errorf("%q is not host:port", address)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false, fmt.Errorf("%q is not a port between 0 and 65535", port)
	}
	if host == "localhost" {
		return true, nil
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback(), nil
}

// encryption is the keys that payloads are encrypted with, nil for none, and the state that health shows.
func (c *Config) encryption(log *slog.Logger) (keys *seal.Keys, state string) {
	keys, err := seal.Parse(c.EncryptionKey, c.EncryptionKeys)
	switch {
	case err != nil:
		log.Warn("encryption is disabled: payloads are stored as they are", "setting", "QUEEN_ENCRYPTION_KEY", "err", err)
		return nil, "misconfigured"
	case keys == nil:
		return nil, "off"
	}
	return keys, "active"
}

// authenticator checks the tokens of callers; it is nil when nothing is authenticated. now is the broker's clock.
func (c *Config) authenticator(now func() time.Time, log *slog.Logger) (*auth.Authenticator, error) {
	return auth.New(auth.Config{
		Tokens:          c.Tokens,
		JWT:             c.JWTEnabled,
		Algorithms:      c.JWTAlgorithm,
		Secret:          c.JWTSecret,
		PublicKey:       c.JWTPublicKey,
		JWKSURL:         c.JWTJWKSURL,
		Issuer:          c.JWTIssuer,
		Audience:        c.JWTAudience,
		Skew:            c.JWTClockSkew,
		RolesClaim:      c.JWTRolesClaim,
		RolesArrayClaim: c.JWTRolesArrayClaim,
		RoleAdmin:       c.JWTRoleAdmin,
		RoleReadWrite:   c.JWTRoleReadWrite,
		RoleReadOnly:    c.JWTRoleReadOnly,
		RoleWriteOnly:   c.JWTRoleWriteOnly,
		SkipPaths:       c.JWTSkipPaths,
		Now:             now,
		Logger:          log,
	})
}

// hasDatabase says whether the configuration names a database.
func (c *Config) hasDatabase() bool { return c.DatabaseURL != "" || c.PGHost != "" }

// database is how to reach the database that the configuration names.
func (c *Config) database() pg.Config {
	if c.DatabaseURL != "" {
		return pg.Config{URL: c.DatabaseURL, PoolSize: c.PoolSize}
	}
	sslMode := c.PGSSLMode // "": as the pg package prefers
	switch {
	case sslMode != "":
	case c.PGSSLRootCert != "":
		sslMode = "verify-full"
	case c.PGUseSSL:
		sslMode = "require"
	}
	return pg.Config{
		Host:        c.PGHost,
		Port:        c.PGPort,
		User:        c.PGUser,
		Password:    c.PGPassword,
		Database:    c.PGDatabase,
		SSLMode:     sslMode,
		SSLRootCert: c.PGSSLRootCert,
		PoolSize:    c.PoolSize,
	}
}
