package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func environment(pairs ...string) func(string) string {
	m := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return m[name] }
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		args []string
		env  []string
		want string // of Listen
	}{
		{"default", nil, nil, "127.0.0.1:6632"},
		{"PORT moves the default", nil, []string{"PORT", "7000"}, "127.0.0.1:7000"},
		{"variable before PORT", nil, []string{"PORT", "7000", "POSTHORN_LISTEN", "127.0.0.1:8000"}, "127.0.0.1:8000"},
		{"flag before variable", []string{"--listen", "127.0.0.1:9000"}, []string{"POSTHORN_LISTEN", "127.0.0.1:8000"}, "127.0.0.1:9000"},
		{"an empty variable is not set", nil, []string{"POSTHORN_LISTEN", "", "PORT", ""}, "127.0.0.1:6632"},
		{"IPv6", []string{"--listen=[::1]:0"}, nil, "[::1]:0"},
	} {
		c, _, err := load(tc.args, environment(tc.env...))
		if err != nil || c.Listen != tc.want {
			t.Errorf("%s: got %q, %v; want %q", tc.name, c.Listen, err, tc.want)
		}
	}
}

func TestFirstVariableWins(t *testing.T) {
	t.Parallel()
	c, _, err := load(nil, environment("DEFAULT_TIMEOUT", "1000", "POP_DEFAULT_TIMEOUT_MS", "2000", "PG_DB", "second"))
	if err != nil || c.PopTimeout != time.Second || c.PGDatabase != "second" {
		t.Errorf("got %v, %q, %v", c.PopTimeout, c.PGDatabase, err)
	}
}

func TestEveryVariable(t *testing.T) {
	t.Parallel()
	c, _, err := load(nil, environment(
		"PORT", "1", "QUEEN_MAX_BODY_BYTES", "2", "PG_HOST", "h", "PG_PORT", "3", "PG_USER", "u", "PG_PASSWORD", "p",
		"PG_DATABASE", "d", "PG_USE_SSL", "yes", "DB_POOL_SIZE", "40", "QUEEN_STMT_TIMEOUT_MS", "5", "DEFAULT_TIMEOUT", "6",
		"DEFAULT_SUBSCRIPTION_MODE", "new", "LOG_LEVEL", "warn", "DATABASE_URL", "postgres://x/y",
		"POSTHORN_LISTEN", "127.0.0.1:1", "POSTHORN_DATA_DIR", "dd", "POSTHORN_PG_BIN", "pb", "FILE_BUFFER_DIR", "fb", "POSTHORN_SHARDS", "7",
		"POSTHORN_WRITERS", "8", "POSTHORN_HOLD_WINDOW", "9ms", "POSTHORN_DEDUP_CACHE_MB", "10", "POSTHORN_SEGMENT_CACHE_MB", "11",
		"POSTHORN_LOG_FORMAT", "text", "POSTHORN_TESTING", "on", "POSTHORN_ALLOW_INSECURE", "1", "POSTHORN_MAX_CONNECTIONS", "12",
		"POSTHORN_MAX_BODY_BYTES_IN_FLIGHT", "13", "POSTHORN_STOP_TIMEOUT", "14s", "POSTHORN_PPROF_LISTEN", "127.0.0.1:2",
		"POSTHORN_FAILPOINTS", "a.b",
		"POSTHORN_TOKENS", "admin:0123456789abcdef", "JWT_ENABLED", "true", "JWT_ALGORITHM", "HS256,RS256", "JWT_SECRET", "js", "JWT_PUBLIC_KEY", publicKey,
		"JWT_JWKS_URL", "https://ju/", "JWT_ISSUER", "ji", "JWT_AUDIENCE", "ja", "JWT_CLOCK_SKEW", "15", "JWT_ROLES_CLAIM", "rc",
		"JWT_ROLES_ARRAY_CLAIM", "rac", "JWT_ROLE_ADMIN", "ra", "JWT_ROLE_READ_WRITE", "rrw", "JWT_ROLE_READ_ONLY", "rro",
		"JWT_ROLE_WRITE_ONLY", "rwo", "JWT_SKIP_PATHS", "/skip",
		"POSTHORN_PUBLISH_RETRIES", "20", "POSTHORN_PUBLISH_MAX_TOPICS", "33", "POSTHORN_PUBLISH_MAX_SCHEDULES", "34", "POSTHORN_PUBLISH_MAX_ENDPOINTS", "23", "POSTHORN_PUBLISH_MAX_RETRIES", "31", "POSTHORN_PUBLISH_MAX_DELAY", "32h", "POSTHORN_PUBLISH_TIMEOUT", "21s", "POSTHORN_PUBLISH_BACKOFF_FACTOR", "2.5", "POSTHORN_PUBLISH_DEDUP_WINDOW", "220h",
		"POSTHORN_PUBLISH_DLQ_RETENTION", "231h", "POSTHORN_PUBLISH_LOG_RETENTION", "230h", "POSTHORN_PUBLISH_WORKERS", "24", "POSTHORN_PUBLISH_HOST_CONCURRENCY", "25",
		"QSTASH_CURRENT_SIGNING_KEY", "ck", "QSTASH_NEXT_SIGNING_KEY", "nk", "POSTHORN_EGRESS_ALLOW", "ea", "POSTHORN_EGRESS_METADATA", "true",
		"POSTHORN_EGRESS_RESOLVE", "er", "POSTHORN_EGRESS_CA", "ec", "POSTHORN_EGRESS_PROXY", "ep",
		"POSTHORN_TLS_CERT", "tc", "POSTHORN_TLS_KEY", "tk", "POSTHORN_TLS_CLIENT_CA", "tca",
		"POSTHORN_PG_SSLMODE", "verify-ca", "POSTHORN_PG_SSLROOTCERT", "prc",
		"STATS_INTERVAL_MS", "26", "POSTHORN_TRAFFIC_DAYS", "27", "POSTHORN_METRICS_QUEUES", "28", "POSTHORN_OTEL_ENDPOINT", "http://oe",
		"POSTHORN_OTEL_PERCENT", "29", "RETENTION_INTERVAL", "16", "POSTHORN_TRACE_RETENTION", "19h", "RETENTION_BATCH_SIZE", "17", "PARTITION_CLEANUP_DAYS", "18", "QUEEN_PARTITION_CLEANUP_ENABLED", "no",
		"FILE_BUFFER_FLUSH_MS", "26", "FILE_BUFFER_MAX_BATCH", "27", "QUEEN_ENCRYPTION_KEY", strings.Repeat("5e", 32), "QUEEN_ENCRYPTION_STRICT", "true",
	))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Listen: "127.0.0.1:1", Port: 1, AllowInsecure: true, Testing: true, Failpoints: "a.b", PprofListen: "127.0.0.1:2", MaxConnections: 12,
		MaxBody: 2, MaxBodyInFlight: 13, StopTimeout: 14 * time.Second, DatabaseURL: "postgres://x/y", PGHost: "h", PGPort: 3,
		PGUser: "u", PGPassword: "p", PGDatabase: "d", PGUseSSL: true, PoolSize: 40, StatementTimeout: 5 * time.Millisecond,
		DataDir: "dd", PGBin: "pb", SpoolDir: "fb", PopTimeout: 6 * time.Millisecond, SubscriptionMode: "new", Shards: 7, Writers: 8,
		HoldWindow: 9 * time.Millisecond, DedupCacheMB: 10, SegmentCacheMB: 11, LogLevel: "warn", LogFormat: "text",
		Tokens: "admin:0123456789abcdef", JWTEnabled: true, JWTAlgorithm: "HS256,RS256", JWTSecret: "js", JWTPublicKey: publicKey,
		JWTJWKSURL: "https://ju/", JWTIssuer: "ji", JWTAudience: "ja", JWTClockSkew: 15 * time.Second, JWTRolesClaim: "rc",
		JWTRolesArrayClaim: "rac", JWTRoleAdmin: "ra", JWTRoleReadWrite: "rrw", JWTRoleReadOnly: "rro", JWTRoleWriteOnly: "rwo",
		JWTSkipPaths: "/skip", PublishRetries: 20, PublishMaxTopics: 33, PublishMaxSchedules: 34, PublishMaxEndpoints: 23, PublishMaxRetries: 31, PublishMaxDelay: 32 * time.Hour, PublishTimeout: 21 * time.Second, PublishBackoff: 2.5, PublishDedupWindow: 220 * time.Hour,
		PublishDeadRetention: 231 * time.Hour, PublishLogRetention: 230 * time.Hour, PublishWorkers: 24, PublishHostConcurrency: 25, CurrentSigningKey: "ck", NextSigningKey: "nk",
		EgressAllow: "ea", EgressMetadata: true, EgressResolve: "er", EgressCA: "ec", EgressProxy: "ep",
		TLSCert: "tc", TLSKey: "tk", TLSClientCA: "tca", PGSSLMode: "verify-ca", PGSSLRootCert: "prc",
		StatsInterval: 26 * time.Millisecond, TrafficDays: 27, MetricsQueues: 28, OTelEndpoint: "http://oe", OTelPercent: 29,
		RetentionInterval: 16 * time.Millisecond, TraceRetention: 19 * time.Hour, RetentionBatch: 17, CleanupDays: 18,
		SpoolFlush: 26 * time.Millisecond, SpoolBatch: 27,
		EncryptionKey: strings.Repeat("5e", 32), StrictEncryption: true,
	}
	if c != want {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

// TestEverySettingIsDocumented holds the table, the fields, their comments and the page together.
func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("config.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/operations/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	var c Config
	table := c.settings()
	if fields := reflect.TypeFor[Config]().NumField(); fields != len(table) {
		t.Errorf("%d fields, %d settings", fields, len(table))
	}
	for _, s := range table {
		names := slices.Clone(s.env)
		if s.flag != "" {
			names = append(names, "--"+s.flag)
		}
		for _, name := range names {
			if !strings.Contains(string(source), name) {
				t.Errorf("%s stands in no comment of Config", name)
			}
			if !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("%s is missing in docs/operations/configuration.md", name)
			}
		}
		if s.secret && s.flag != "" {
			t.Errorf("%s is a secret with a flag", s.env[0])
		}
	}
}

func TestZeroMeansTheDefault(t *testing.T) {
	t.Parallel()
	c, _, err := load([]string{
		"--pool-size=0", "--shards=0", "--writers=0", "--dedup-cache-mb=0", "--segment-cache-mb=0",
		"--max-body-bytes=0", "--max-body-bytes-in-flight=0", "--statement-timeout-ms=0", "--pop-timeout-ms=0",
	}, environment("PG_PORT", "0", "PORT", "0", "RETENTION_INTERVAL", "0", "RETENTION_BATCH_SIZE", "0", "PARTITION_CLEANUP_DAYS", "0"))
	want := DefaultConfig()
	want.Listen = "127.0.0.1:6632"
	if err != nil || c != want {
		t.Errorf("got  %+v, %v\nwant %+v", c, err, want)
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	_, _, err := load(nil, environment("PORT", "many", "POSTHORN_TESTING", "maybe", "LOG_LEVEL", "loud", "DB_POOL_SIZE", "1.5",
		"POSTHORN_HOLD_WINDOW", "5", "QUEEN_MAX_BODY_BYTES", "-1"))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`PORT: "many": must be an integer`, `POSTHORN_TESTING: "maybe": must be true, false`, `LOG_LEVEL: "loud": must be one of debug`,
		`DB_POOL_SIZE: "1.5": must be an integer`, `POSTHORN_HOLD_WINDOW: "5": must be a duration`, `QUEEN_MAX_BODY_BYTES: "-1": must be between 0`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in:\n%v", want, err)
		}
	}
}

func TestValidateReportsEverything(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.Listen, c.PprofListen, c.MaxBodyInFlight, c.PoolSize, c.DatabaseURL = "0.0.0.0:1", "10.0.0.1:1", 1, 1, "postgres://u:hunter2@h:notaport/d"
	c.Failpoints, c.PublishTimeout, c.PublishLogRetention = "a.b", 3*time.Hour, time.Second
	err := c.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"POSTHORN_LISTEN", "POSTHORN_ALLOW_INSECURE", "POSTHORN_PPROF_LISTEN", "POSTHORN_MAX_BODY_BYTES_IN_FLIGHT", "DB_POOL_SIZE", "POSTHORN_FAILPOINTS", "DATABASE_URL",
		"POSTHORN_PUBLISH_TIMEOUT", "POSTHORN_PUBLISH_LOG_RETENTION",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("shows the password:\n%v", err)
	}
}

func TestListenAddresses(t *testing.T) {
	t.Parallel()
	for address, refused := range map[string]bool{
		"127.0.0.1:0": false, "127.8.9.10:80": false, "localhost:80": false, "[::1]:80": false, "[::ffff:127.0.0.1]:80": false,
		"0.0.0.0:80": true, ":80": true, "[::]:80": true, "192.168.1.2:80": true, "broker.example:80": true,
		"127.0.0.1": true, "127.0.0.1:http": true, "127.0.0.1:70000": true,
	} {
		_, _, err := load([]string{"--listen", address}, environment())
		if (err != nil) != refused {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, _, err := load([]string{"--listen", "0.0.0.0:80", "--allow-insecure"}, environment()); err != nil {
		t.Error(err)
	}
}

// publicKey is an Ed25519 public key of nobody.
const publicKey = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----"

// TestAuthenticationIsNeeded refuses listeners that others can reach without it, and authentication that cannot work.
func TestAuthenticationIsNeeded(t *testing.T) {
	t.Parallel()
	open := []string{"--listen", "0.0.0.0:80"}
	const token = "admin:0123456789abcdef"
	for _, tc := range []struct {
		args []string
		env  []string
		want string // "" means accepted
	}{
		{open, nil, "nothing is authenticated"},
		{open, []string{"POSTHORN_TOKENS", token}, ""},
		{open, []string{"JWT_ENABLED", "true", "JWT_SECRET", "s"}, ""},
		{open, []string{"JWT_SECRET", "s"}, "nothing is authenticated"},
		{open, []string{"POSTHORN_TOKENS", " # none\n"}, "there is no token in it"},
		{nil, []string{"POSTHORN_TOKENS_FILE", os.DevNull}, "POSTHORN_TOKENS_FILE: the file is empty"},
		{nil, []string{"JWT_ENABLED", "true"}, "JWT_ENABLED: there is no usable key"},
		{nil, []string{"JWT_ENABLED", "true", "JWT_SECRET", "s", "JWT_ALGORITHM", "RS256"}, "JWT_ENABLED: there is no usable key"},
		{nil, []string{"JWT_ENABLED", "true", "JWT_PUBLIC_KEY", publicKey}, ""},
		{nil, []string{"JWT_ENABLED", "true", "JWT_PUBLIC_KEY", publicKey, "JWT_ALGORITHM", "HS256"}, "JWT_ENABLED: there is no usable key"},
		{nil, []string{"JWT_ENABLED", "maybe"}, "JWT_ENABLED"},
		{nil, []string{"JWT_CLOCK_SKEW", "30s"}, "JWT_CLOCK_SKEW"},
		{nil, []string{"POSTHORN_TOKENS", "0123456789abcdef:admin"}, "POSTHORN_TOKENS: entry 1"},
	} {
		_, _, err := load(tc.args, environment(tc.env...))
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%v %v: %v, want %q", tc.args, tc.env, err, tc.want)
		}
		if err != nil && strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("shows the token: %v", err)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--no-such-flag"}, {"--pool-size", "many"}, {"stray"}, {"--listen"}} {
		if _, _, err := load(args, environment()); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args           []string
		env            []string
		status         int
		stdout, stderr string // parts of them
	}{
		{nil, nil, 2, "", "Usage:"},
		{[]string{"frobnicate"}, nil, 2, "", `unknown command "frobnicate"`},
		{[]string{"dev", "--frobnicate"}, nil, 2, "", "-frobnicate"},
		{[]string{"config", "stray"}, nil, 2, "", `unexpected argument "stray"`},
		{[]string{"help"}, nil, 0, "QUEEN_MAX_BODY_BYTES", ""},
		{[]string{"dev", "--help"}, nil, 0, "POSTHORN_SHARDS", ""},
		{[]string{"version"}, nil, 0, "posthorn 1.2.3 go", ""},
		{[]string{"serve"}, nil, 1, "", "DATABASE_URL or PG_HOST"},
		{[]string{"dev", "--listen=0.0.0.0:0", "--allow-insecure"}, nil, 1, "", "loopback address only"},
		{[]string{"serve"}, []string{"PORT", "x", "DATABASE_URL", "postgres://h/d"}, 1, "", "PORT"},
		{[]string{"config", "--shards=3"}, []string{"POSTHORN_WRITERS", "4"}, 0, "(--shards)", ""},
		{[]string{"config"}, []string{"POSTHORN_WRITERS", "4"}, 0, "(POSTHORN_WRITERS)", ""},
	} {
		var out, errOut bytes.Buffer
		status := Program{Args: tc.args, Getenv: environment(tc.env...), Stdout: &out, Stderr: &errOut, Version: "1.2.3"}.Main()
		if status != tc.status || !strings.Contains(out.String(), tc.stdout) || !strings.Contains(errOut.String(), tc.stderr) {
			t.Errorf("%v: status %d\nstdout: %s\nstderr: %s", tc.args, status, &out, &errOut)
		}
	}
}

// TestSecretsAreNeverShown prints configurations that hold secrets and looks for them.
func TestSecretsAreNeverShown(t *testing.T) {
	t.Parallel()
	const secret = "s3cret/canary"
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, env := range [][]string{
		{"PG_HOST", "h", "PG_PASSWORD", secret},
		{"PG_HOST", "h", "PG_PASSWORD_FILE", file},
		{"DATABASE_URL", "postgres://user:s3cret%2Fcanary@db.example:5432/orders?sslmode=disable"},
		{"DATABASE_URL", "postgres://user@db.example/orders?password=s3cret%2Fcanary"},
		{"DATABASE_URL", "host=h user=u password=" + secret},
		{"DATABASE_URL", "postgres://user:" + secret + "@db.example:port/orders"}, // refused
		{"DATABASE_URL", secret},                                                  // refused
	} {
		var out bytes.Buffer
		Program{Args: []string{"config"}, Getenv: environment(env...), Stdout: &out, Stderr: &out}.Main()
		if strings.Contains(out.String(), "canary") || strings.Contains(out.String(), "s3cret") {
			t.Errorf("%v:\n%s", env, &out)
		}
		if out.Len() == 0 {
			t.Errorf("%v: nothing printed", env)
		}
	}
	c, _, err := load(nil, environment("PG_PASSWORD_FILE", file))
	if err != nil || c.PGPassword != secret {
		t.Errorf("password from a file: %q, %v", c.PGPassword, err)
	}
	var out bytes.Buffer
	Program{Args: []string{"config"}, Getenv: environment("DATABASE_URL", "postgres://user:pw@db.example/orders"), Stdout: &out, Stderr: &out}.Main()
	if !strings.Contains(out.String(), "postgres://user:********@db.example/orders") {
		t.Errorf("the rest of the URL is not shown:\n%s", &out)
	}
}

func FuzzMask(f *testing.F) {
	f.Add("user", "password")
	f.Fuzz(func(t *testing.T, user, password string) {
		if len(password) < 4 {
			return
		}
		for _, secret := range []string{"postgres://" + user + ":" + password + "@h/d", "password=" + password, password} {
			shown := mask(secret)
			if strings.Contains(shown, password) && !strings.Contains(user, password) && !strings.Contains(hidden, password) && !strings.Contains("postgres://@h/d", password) {
				t.Errorf("mask(%q) = %q", secret, shown)
			}
		}
	})
}
