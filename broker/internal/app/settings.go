package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// setting ties one field of Config to its flag and its variables.
type setting struct {
	flag   string   // "" means no flag
	env    []string // the first that is set and not empty counts
	usage  string   // unit, default and meaning of zero included
	value  flag.Value
	secret bool   // never shown; NAME_FILE may name a file that holds it
	origin string // where the value came from, as config shows it
}

// settings is the table of all settings of one Config, in the order in which they are shown.
func (c *Config) settings() []*setting {
	return []*setting{
		{flag: "listen", env: []string{"POSTHORN_LISTEN"}, value: text{&c.Listen}, usage: "`address` of the HTTP listener; default 127.0.0.1:6632, port 0 picks a free one"},
		{env: []string{"PORT"}, value: integer[int]{&c.Port, 0, math.MaxUint16}, usage: "port of the default address; 0 = 6632"},
		{flag: "allow-insecure", env: []string{"POSTHORN_ALLOW_INSECURE"}, value: boolean{&c.AllowInsecure}, usage: "allow a listener that other machines can reach without authentication"},
		{flag: "testing", env: []string{"POSTHORN_TESTING"}, value: boolean{&c.Testing}, usage: "serve the test clock, on a loopback listener only"},
		{env: []string{"POSTHORN_FAILPOINTS"}, value: text{&c.Failpoints}, usage: "where the process ends as in a crash, with --testing only; empty = nowhere"},
		{flag: "pprof-listen", env: []string{"POSTHORN_PPROF_LISTEN"}, value: text{&c.PprofListen}, usage: "loopback `address` for profiles; empty = none"},
		{flag: "max-connections", env: []string{"POSTHORN_MAX_CONNECTIONS"}, value: integer[int]{&c.MaxConnections, 0, math.MaxInt32}, usage: "most connections at `once`; 0 = no bound"},
		{flag: "max-body-bytes", env: []string{"QUEEN_MAX_BODY_BYTES"}, value: integer[int64]{&c.MaxBody, 0, math.MaxInt32}, usage: "largest request body in `bytes`; 0 = 64 MiB"},
		{flag: "max-body-bytes-in-flight", env: []string{"POSTHORN_MAX_BODY_BYTES_IN_FLIGHT"}, value: integer[int64]{&c.MaxBodyInFlight, 0, 1 << 50}, usage: "most request body `bytes` held at once; 0 = 512 MiB"},
		{flag: "stop-timeout", env: []string{"POSTHORN_STOP_TIMEOUT"}, value: duration{&c.StopTimeout}, usage: "`duration` for requests in flight to finish; 0 = cut them off"},

		{flag: "tls-cert", env: []string{"POSTHORN_TLS_CERT"}, value: text{&c.TLSCert}, usage: "`file` of the listener's certificates; empty = no TLS"},
		{flag: "tls-key", env: []string{"POSTHORN_TLS_KEY"}, value: text{&c.TLSKey}, usage: "`file` of its private key"},
		{flag: "tls-client-ca", env: []string{"POSTHORN_TLS_CLIENT_CA"}, value: text{&c.TLSClientCA}, usage: "`file` of certificates that sign those of clients; empty = clients need none"},
		{env: []string{"POSTHORN_TOKENS"}, value: text{&c.Tokens}, secret: true, usage: "accepted tokens, each role:token or role:name:token; empty = none"},
		{env: []string{"JWT_ENABLED"}, value: boolean{&c.JWTEnabled}, usage: "accept signed tokens"},
		{env: []string{"JWT_ALGORITHM"}, value: text{&c.JWTAlgorithm}, usage: "accepted algorithms; empty = all that a key fits"},
		{env: []string{"JWT_SECRET"}, value: text{&c.JWTSecret}, secret: true, usage: "secret of HS256, HS384, HS512; empty = none"},
		{env: []string{"JWT_PUBLIC_KEY"}, value: text{&c.JWTPublicKey}, secret: true, usage: "PEM of a public key; empty = none"},
		{env: []string{"JWT_JWKS_URL"}, value: text{&c.JWTJWKSURL}, secret: true, usage: "URL of a set of public keys; empty = none"},
		{env: []string{"JWT_ISSUER"}, value: text{&c.JWTIssuer}, usage: "required issuer; empty = any"},
		{env: []string{"JWT_AUDIENCE"}, value: text{&c.JWTAudience}, usage: "required audience; empty = any"},
		{env: []string{"JWT_CLOCK_SKEW"}, value: seconds{&c.JWTClockSkew}, usage: "tolerance of times in signed tokens in s; 0 = none"},
		{env: []string{"JWT_ROLES_CLAIM"}, value: text{&c.JWTRolesClaim}, usage: "claim that holds a role"},
		{env: []string{"JWT_ROLES_ARRAY_CLAIM"}, value: text{&c.JWTRolesArrayClaim}, usage: "claim that holds several roles"},
		{env: []string{"JWT_ROLE_ADMIN"}, value: text{&c.JWTRoleAdmin}, usage: "what claims call the role admin"},
		{env: []string{"JWT_ROLE_READ_WRITE"}, value: text{&c.JWTRoleReadWrite}, usage: "what claims call the role read-write"},
		{env: []string{"JWT_ROLE_READ_ONLY"}, value: text{&c.JWTRoleReadOnly}, usage: "what claims call the role read-only"},
		{env: []string{"JWT_ROLE_WRITE_ONLY"}, value: text{&c.JWTRoleWriteOnly}, usage: "what claims call the role write-only"},
		{env: []string{"JWT_SKIP_PATHS"}, value: text{&c.JWTSkipPaths}, usage: "paths answered without a token"},

		{env: []string{"DATABASE_URL"}, value: text{&c.DatabaseURL}, secret: true, usage: "PostgreSQL URL or connection string; empty = the PG_ variables"},
		{env: []string{"PG_HOST"}, value: text{&c.PGHost}, usage: "PostgreSQL host or socket directory; empty = none"},
		{env: []string{"PG_PORT"}, value: integer[int]{&c.PGPort, 0, math.MaxUint16}, usage: "PostgreSQL port; 0 = 5432"},
		{env: []string{"PG_USER"}, value: text{&c.PGUser}, usage: "PostgreSQL role"},
		{env: []string{"PG_PASSWORD"}, value: text{&c.PGPassword}, secret: true, usage: "PostgreSQL password; empty = none"},
		{env: []string{"PG_DATABASE", "PG_DB"}, value: text{&c.PGDatabase}, usage: "PostgreSQL database"},
		{env: []string{"PG_USE_SSL"}, value: boolean{&c.PGUseSSL}, usage: "require TLS to PostgreSQL"},
		{env: []string{"POSTHORN_PG_SSLMODE"}, value: choice{&c.PGSSLMode, []string{"", "disable", "allow", "prefer", "require", "verify-ca", "verify-full"}}, usage: "TLS to PostgreSQL: disable, allow, prefer, require, verify-ca, verify-full; empty = by the next and PG_USE_SSL"},
		{env: []string{"POSTHORN_PG_SSLROOTCERT"}, value: text{&c.PGSSLRootCert}, usage: "file of certificates that sign PostgreSQL's; empty = the system's"},
		{flag: "pool-size", env: []string{"DB_POOL_SIZE"}, value: integer[int]{&c.PoolSize, 0, 10_000}, usage: "most `connections` to PostgreSQL; 0 = 20"},
		{flag: "statement-timeout-ms", env: []string{"QUEEN_STMT_TIMEOUT_MS"}, value: millis{&c.StatementTimeout}, usage: "deadline of a statement in `ms`; 0 = 10000"},
		{flag: "data", env: []string{"POSTHORN_DATA_DIR"}, value: text{&c.DataDir}, usage: "`directory` of the managed PostgreSQL; empty = the user's data directory"},
		{flag: "spool", env: []string{"FILE_BUFFER_DIR"}, value: text{&c.SpoolDir}, usage: "`directory` where pushes wait while PostgreSQL is away; empty = DATA/spool in dev, else none"},
		{env: []string{"FILE_BUFFER_FLUSH_MS"}, value: millis{&c.SpoolFlush}, usage: "longest wait in ms of what is in the spool, with PostgreSQL there; 0 = 500"},
		{env: []string{"FILE_BUFFER_MAX_BATCH"}, value: integer[int]{&c.SpoolBatch, 0, 1_000_000}, usage: "records of the spool that are moved at a time; 0 = 2000"},
		{flag: "pg-bin", env: []string{"POSTHORN_PG_BIN"}, value: text{&c.PGBin}, usage: "`directory` of the PostgreSQL programs; empty = find or fetch them"},

		{env: []string{"QUEEN_ENCRYPTION_KEY"}, value: text{&c.EncryptionKey}, secret: true, usage: "key that payloads are encrypted with, 64 hexadecimal digits; empty = none"},
		{env: []string{"QUEEN_ENCRYPTION_KEYS"}, value: text{&c.EncryptionKeys}, secret: true, usage: "several keys, name:key,…; the first encrypts, all decrypt; empty = none"},
		{env: []string{"QUEEN_ENCRYPTION_STRICT"}, value: boolean{&c.StrictEncryption}, usage: "store nothing as it is that is to be encrypted; a bad key stops the start"},

		{flag: "pop-timeout-ms", env: []string{"DEFAULT_TIMEOUT", "POP_DEFAULT_TIMEOUT_MS"}, value: millis{&c.PopTimeout}, usage: "wait in `ms` of a long poll that names none; 0 = 30000"},
		{flag: "subscription-mode", env: []string{"DEFAULT_SUBSCRIPTION_MODE"}, value: choice{&c.SubscriptionMode, []string{"all", "new", "new-only"}}, usage: "where new consumer groups start: all, new or new-only"},
		{flag: "shards", env: []string{"POSTHORN_SHARDS"}, value: integer[int]{&c.Shards, 0, 1024}, usage: "`number` of log shards, fixed at the first start; 0 = 8"},
		{flag: "writers", env: []string{"POSTHORN_WRITERS"}, value: integer[int]{&c.Writers, 0, 1024}, usage: "`number` of concurrent flushes; 0 = 2"},
		{flag: "hold-window", env: []string{"POSTHORN_HOLD_WINDOW"}, value: duration{&c.HoldWindow}, usage: "`duration` a push waits for others to share its commit; 0 = none"},
		{flag: "dedup-cache-mb", env: []string{"POSTHORN_DEDUP_CACHE_MB"}, value: integer[int64]{&c.DedupCacheMB, 0, maxMiB}, usage: "deduplication cache in `MiB`; 0 = 512"},
		{flag: "segment-cache-mb", env: []string{"POSTHORN_SEGMENT_CACHE_MB"}, value: integer[int64]{&c.SegmentCacheMB, 0, maxMiB}, usage: "segment cache in `MiB`; 0 = 64"},
		{env: []string{"RETENTION_INTERVAL"}, value: millis{&c.RetentionInterval}, usage: "pause in `ms` between two passes of retention; 0 = 5000"},
		{env: []string{"RETENTION_BATCH_SIZE"}, value: integer[int]{&c.RetentionBatch, 0, 100_000}, usage: "most `segments` that one transaction of retention removes; 0 = 1000"},
		{env: []string{"POSTHORN_TRACE_RETENTION"}, value: window{&c.TraceRetention}, usage: "how long traces are kept, unless their queue keeps messages for less; 0 = 168h"},
		{env: []string{"PARTITION_CLEANUP_DAYS"}, value: integer[int]{&c.CleanupDays, 0, 36_500}, usage: "`days` that an empty and idle partition stays; 0 = 30"},
		{env: []string{"QUEEN_PARTITION_CLEANUP_ENABLED"}, value: boolean{&c.CleanupEnabled}, usage: "remove partitions that are empty and idle"},

		{env: []string{"POSTHORN_PUBLISH_MAX_TOPICS"}, value: integer[int]{&c.PublishMaxTopics, 0, math.MaxInt32}, usage: "most topics; 0 = no bound"},
		{env: []string{"POSTHORN_PUBLISH_MAX_SCHEDULES"}, value: integer[int]{&c.PublishMaxSchedules, 0, math.MaxInt32}, usage: "most schedules; 0 = no bound"},
		{env: []string{"POSTHORN_PUBLISH_MAX_ENDPOINTS"}, value: integer[int]{&c.PublishMaxEndpoints, 0, 4096}, usage: "most endpoints of one topic; 0 = 100"},
		{env: []string{"POSTHORN_PUBLISH_RETRIES"}, value: integer[int]{&c.PublishRetries, 0, math.MaxInt32}, usage: "retries of a message that does not say; 0 = none"},
		{env: []string{"POSTHORN_PUBLISH_MAX_RETRIES"}, value: integer[int]{&c.PublishMaxRetries, 0, math.MaxInt32}, usage: "most retries of a message; 0 = no bound"},
		{env: []string{"POSTHORN_PUBLISH_MAX_DELAY"}, value: window{&c.PublishMaxDelay}, usage: "longest delay of a message; 0 = no bound"},
		{env: []string{"POSTHORN_PUBLISH_TIMEOUT"}, value: duration{&c.PublishTimeout}, usage: "longest attempt of a delivery, at most 2h; 0 = 30s"},
		{env: []string{"POSTHORN_PUBLISH_BACKOFF_FACTOR"}, value: fraction{&c.PublishBackoff}, usage: "f in e^(f*n) s before the n-th retry; 0 = 2"},
		{env: []string{"POSTHORN_PUBLISH_DEDUP_WINDOW"}, value: window{&c.PublishDedupWindow}, usage: "how long a deduplication id counts; 0 = 2160h"},
		{env: []string{"POSTHORN_PUBLISH_DLQ_RETENTION"}, value: window{&c.PublishDeadRetention}, usage: "how long messages that failed are kept as dead letters; 0 = 2160h"},
		{env: []string{"POSTHORN_PUBLISH_LOG_RETENTION"}, value: window{&c.PublishLogRetention}, usage: "how long the delivery log is kept, at least 1m; 0 = 72h"},
		{env: []string{"POSTHORN_PUBLISH_WORKERS"}, value: integer[int]{&c.PublishWorkers, 0, 100_000}, usage: "most deliveries at once; 0 = 256"},
		{env: []string{"POSTHORN_PUBLISH_HOST_CONCURRENCY"}, value: integer[int]{&c.PublishHostConcurrency, 0, 100_000}, usage: "most deliveries at once to one host; 0 = 64"},
		{env: []string{"QSTASH_CURRENT_SIGNING_KEY"}, value: text{&c.CurrentSigningKey}, secret: true, usage: "first signing key of a new database; empty = minted"},
		{env: []string{"QSTASH_NEXT_SIGNING_KEY"}, value: text{&c.NextSigningKey}, secret: true, usage: "second signing key of a new database; empty = minted"},
		{env: []string{"POSTHORN_EGRESS_ALLOW"}, value: text{&c.EgressAllow}, usage: "prefixes, addresses and hosts that deliveries may go to beside public ones; empty = none"},
		{env: []string{"POSTHORN_EGRESS_METADATA"}, value: boolean{&c.EgressMetadata}, usage: "deliveries may go to metadata addresses of cloud providers"},
		{env: []string{"POSTHORN_EGRESS_RESOLVE"}, value: text{&c.EgressResolve}, usage: "host:port=address, instead of DNS for deliveries; empty = none"},
		{env: []string{"POSTHORN_EGRESS_CA"}, value: text{&c.EgressCA}, usage: "PEM file of authorities that deliveries trust too; empty = none"},
		{env: []string{"POSTHORN_EGRESS_PROXY"}, value: text{&c.EgressProxy}, secret: true, usage: "URL of an HTTP proxy for deliveries; empty = none"},
		{env: []string{"STATS_INTERVAL_MS"}, value: millis{&c.StatsInterval}, usage: "how often counts are brought up to date and brokers report, in `ms`; 0 = 5000"},
		{env: []string{"POSTHORN_TRAFFIC_DAYS"}, value: integer[int]{&c.TrafficDays, 0, 3660}, usage: "`days` that throughput by the hour is kept; 0 = 30"},
		{env: []string{"POSTHORN_METRICS_QUEUES"}, value: integer[int]{&c.MetricsQueues, 0, 100_000}, usage: "`number` of queues whose lag the metrics show; 0 = none"},
		{env: []string{"POSTHORN_OTEL_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"}, value: text{&c.OTelEndpoint}, secret: true, usage: "base URL of an OTLP/HTTP collector for traces; empty = no traces"},
		{env: []string{"POSTHORN_OTEL_PERCENT"}, value: integer[int]{&c.OTelPercent, 0, 100}, usage: "`percent` of the requests without a traceparent that are recorded; 0 = none"},

		{flag: "log-level", env: []string{"LOG_LEVEL"}, value: choice{&c.LogLevel, []string{"debug", "info", "warn", "error"}}, usage: "debug, info, warn or error"},
		{flag: "log-format", env: []string{"POSTHORN_LOG_FORMAT"}, value: choice{&c.LogFormat, []string{"json", "text"}}, usage: "json or text"},
	}
}

// errUsage wraps what is wrong with a command line, as opposed to a configuration.
var errUsage = errors.New("usage")

// load makes the Config of a command line and an environment, resolved but not validated. Problems of
// variables are reported together; getenv is os.Getenv but in tests.
func load(args []string, getenv func(string) string) (Config, []*setting, error) {
	c := DefaultConfig()
	table := c.settings()
	var errs []error
	for _, s := range table {
		s.origin = "default"
		if err := s.fromEnvironment(getenv); err != nil {
			errs = append(errs, err)
		}
	}
	if err := parseFlags(table, args); err != nil {
		return Config{}, nil, err
	}
	if len(errs) > 0 {
		return Config{}, nil, errors.Join(errs...)
	}
	c.resolve()
	if err := c.Validate(); err != nil {
		return Config{}, nil, err
	}
	// The table points into c, which escapes with it; the copy returned is the same configuration.
	return c, table, nil
}

// fromEnvironment takes the first variable that is set and not empty.
func (s *setting) fromEnvironment(getenv func(string) string) error {
	for _, name := range s.env {
		given, origin := getenv(name), name
		if given == "" && s.secret {
			file := getenv(name + "_FILE")
			if file == "" {
				continue
			}
			content, err := os.ReadFile(file) //nolint:gosec // the operator names the file
			if err != nil {
				return fmt.Errorf("%s_FILE: %w", name, err)
			}
			given, origin = strings.TrimRight(string(content), "\r\n"), name+"_FILE"
			if given == "" {
				return fmt.Errorf("%s_FILE: the file is empty", name)
			}
		}
		if given == "" {
			continue
		}
		if err := s.value.Set(given); err != nil {
			if s.secret {
				return fmt.Errorf("%s: %w", name, err)
			}
			return fmt.Errorf("%s: %q: %w", name, given, err)
		}
		s.origin = origin
		return nil
	}
	return nil
}

func parseFlags(table []*setting, args []string) error {
	fs := flag.NewFlagSet("posthorn", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, s := range table {
		if s.flag != "" {
			fs.Var(s.value, s.flag, s.usage)
		}
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return flag.ErrHelp
	case err != nil:
		return fmt.Errorf("%w: %w", errUsage, err)
	case fs.NArg() > 0:
		return fmt.Errorf("%w: unexpected argument %q", errUsage, fs.Arg(0))
	}
	fs.Visit(func(f *flag.Flag) {
		for _, s := range table {
			if s.flag == f.Name {
				s.origin = "--" + f.Name
			}
		}
	})
	return nil
}

// printSettings lists flags, variables, and what they mean.
func printSettings(table []*setting, w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range table {
		name := ""
		if s.flag != "" {
			name = "--" + s.flag
		}
		_, _ = fmt.Fprintf(t, "  %s\t%s\t%s\n", name, strings.Join(s.env, ", "), strings.ReplaceAll(s.usage, "`", ""))
	}
	_ = t.Flush()
}

// printEffective lists the value of each setting and where it came from, secrets masked.
func printEffective(table []*setting, w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range table {
		shown := s.value.String()
		if s.secret {
			shown = mask(shown)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t(%s)\n", s.env[0], shown, s.origin)
	}
	_ = t.Flush()
}

const hidden = "********"

// mask hides a secret. Of a database URL it shows all but the password; query parameters, which may
// hold one too, are dropped.
func mask(secret string) string {
	if secret == "" {
		return ""
	}
	u, err := url.Parse(secret)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return hidden
	}
	shown := u.Scheme + "://"
	if u.User != nil {
		shown += url.User(u.User.Username()).String()
		if _, has := u.User.Password(); has {
			shown += ":" + hidden
		}
		shown += "@"
	}
	shown += u.Host + u.EscapedPath()
	if u.RawQuery != "" {
		shown += "?" + hidden
	}
	return shown
}

// The kinds of values. Their errors name the rule; the caller names the variable.

type text struct{ p *string }

func (v text) Set(s string) error { *v.p = s; return nil }

func (v text) String() string {
	if v.p == nil {
		return ""
	}
	return *v.p
}

type choice struct {
	p       *string
	allowed []string
}

func (v choice) Set(s string) error {
	i := slices.IndexFunc(v.allowed, func(name string) bool { return strings.EqualFold(name, s) })
	if i < 0 {
		return fmt.Errorf("must be one of %s", strings.TrimPrefix(strings.Join(v.allowed, ", "), ", "))
	}
	*v.p = v.allowed[i]
	return nil
}

func (v choice) String() string { return text{v.p}.String() }

type integer[T int | int64] struct {
	p           *T
	least, most int64
}

func (v integer[T]) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return errors.New("must be an integer")
	}
	if n < v.least || n > v.most {
		return fmt.Errorf("must be between %d and %d", v.least, v.most)
	}
	*v.p = T(n)
	return nil
}

func (v integer[T]) String() string {
	if v.p == nil {
		return ""
	}
	return strconv.FormatInt(int64(*v.p), 10)
}

type boolean struct{ p *bool }

func (v boolean) Set(s string) error {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		*v.p = true
	case "false", "0", "no", "off":
		*v.p = false
	default:
		return errors.New("must be true, false, 1, 0, yes, no, on or off")
	}
	return nil
}

func (v boolean) String() string {
	if v.p == nil {
		return ""
	}
	return strconv.FormatBool(*v.p)
}

// IsBoolFlag lets the flag stand without a value.
func (v boolean) IsBoolFlag() bool { return true }

type millis struct{ p *time.Duration }

func (v millis) Set(s string) error {
	var ms int64
	if err := (integer[int64]{&ms, 0, maxDuration.Milliseconds()}).Set(s); err != nil {
		return err
	}
	*v.p = time.Duration(ms) * time.Millisecond
	return nil
}

func (v millis) String() string {
	if v.p == nil {
		return ""
	}
	return strconv.FormatInt(v.p.Milliseconds(), 10)
}

type seconds struct{ p *time.Duration }

func (v seconds) Set(s string) error {
	var n int64
	if err := (integer[int64]{&n, 0, int64(maxDuration / time.Second)}).Set(s); err != nil {
		return err
	}
	*v.p = time.Duration(n) * time.Second
	return nil
}

func (v seconds) String() string {
	if v.p == nil {
		return ""
	}
	return strconv.FormatInt(int64(*v.p/time.Second), 10)
}

type duration struct{ p *time.Duration }

func (v duration) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("must be a duration such as 500ms or 30s")
	}
	if d < 0 || d > maxDuration {
		return fmt.Errorf("must be between 0 and %s", maxDuration)
	}
	*v.p = d
	return nil
}

func (v duration) String() string {
	if v.p == nil {
		return ""
	}
	return v.p.String()
}

// window is a duration that may be longer than a day.
type window struct{ p *time.Duration }

func (v window) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("must be a duration such as 30m or 2160h")
	}
	if d < 0 || d > maxWindow {
		return fmt.Errorf("must be between 0 and %s", maxWindow)
	}
	*v.p = d
	return nil
}

func (v window) String() string { return duration(v).String() }

type fraction struct{ p *float64 }

func (v fraction) Set(s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 100) {
		return errors.New("must be a number between 0 and 100")
	}
	*v.p = f
	return nil
}

func (v fraction) String() string {
	if v.p == nil {
		return ""
	}
	return strconv.FormatFloat(*v.p, 'g', -1, 64)
}
