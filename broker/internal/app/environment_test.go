package app

import (
	"slices"
	"strings"
	"testing"
)

// originalNames are variables that existing deployments set (queue contract, section 15).
var originalNames = []string{
	"PORT", "QUEEN_MAX_BODY_BYTES", "PG_HOST", "PG_PORT", "PG_USER", "PG_PASSWORD", "PG_DATABASE", "PG_DB", "PG_USE_SSL",
	"DB_POOL_SIZE", "QUEEN_STMT_TIMEOUT_MS", "JWT_ENABLED", "JWT_ALGORITHM", "JWT_SECRET", "JWT_PUBLIC_KEY", "JWT_JWKS_URL",
	"JWT_ISSUER", "JWT_AUDIENCE", "JWT_CLOCK_SKEW", "JWT_ROLES_CLAIM", "JWT_ROLES_ARRAY_CLAIM", "JWT_ROLE_ADMIN",
	"JWT_ROLE_READ_WRITE", "JWT_ROLE_READ_ONLY", "JWT_ROLE_WRITE_ONLY", "JWT_SKIP_PATHS", "DEFAULT_TIMEOUT",
	"POP_DEFAULT_TIMEOUT_MS", "DEFAULT_SUBSCRIPTION_MODE", "FILE_BUFFER_DIR", "FILE_BUFFER_FLUSH_MS", "FILE_BUFFER_MAX_BATCH",
	"STATS_INTERVAL_MS", "RETENTION_INTERVAL", "RETENTION_BATCH_SIZE", "PARTITION_CLEANUP_DAYS",
	"QUEEN_PARTITION_CLEANUP_ENABLED", "QUEEN_ENCRYPTION_KEY", "LOG_LEVEL", "DATABASE_URL",
}

// TestOriginalNamesAreHonoured finds each in the table.
func TestOriginalNamesAreHonoured(t *testing.T) {
	t.Parallel()
	var known []string
	c := DefaultConfig()
	for _, s := range c.settings() {
		known = append(known, s.env...)
	}
	for _, name := range originalNames {
		if !slices.Contains(known, name) {
			t.Errorf("%s is not honoured", name)
		}
	}
}

// valid is a value of a setting that is neither a text nor a choice, and whether there is one.
func valid(s *setting) (string, bool) {
	switch s.value.(type) {
	case boolean:
		return "true", true
	case text, choice:
		return "", false
	default:
		return s.value.String(), true // the default
	}
}

// TestValuesThatDoNotParse stops the start for every variable that is not a text, and names it.
func TestValuesThatDoNotParse(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	checked := 0
	for _, s := range c.settings() {
		good, typed := valid(s)
		for _, name := range s.env {
			for _, bad := range []string{"nonsense", "1e3x", "-1", "tru", "2x"} {
				if _, isText := s.value.(text); isText {
					break
				}
				checked++
				_, _, err := load(nil, environment(name, bad))
				if err == nil || !strings.Contains(err.Error(), name) || !s.secret && !strings.Contains(err.Error(), bad) {
					t.Errorf("%s=%s: %v", name, bad, err)
				}
			}
			if !typed {
				continue
			}
			if err := s.value.Set(good); err != nil {
				t.Errorf("%s=%s: %v", name, good, err)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d values were tried", checked)
	}
}

// TestSpellingsOfBooleans tries all of them, for every variable that is one.
func TestSpellingsOfBooleans(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	for _, s := range c.settings() {
		b, ok := s.value.(boolean)
		if !ok {
			continue
		}
		for want, spellings := range map[bool][]string{
			true: {"true", "1", "yes", "on", "TRUE", "Yes", "oN"}, false: {"false", "0", "no", "off", "False", "NO", "OFF"},
		} {
			for _, spelling := range spellings {
				*b.p = !want
				if err := b.Set(spelling); err != nil || *b.p != want {
					t.Errorf("%s=%s: %v, %v", s.env[0], spelling, *b.p, err)
				}
			}
		}
	}
}

// TestLevelsInAnyCase accepts what other programs' documentation says.
func TestLevelsInAnyCase(t *testing.T) {
	t.Parallel()
	c, _, err := load(nil, environment("LOG_LEVEL", "INFO", "DEFAULT_SUBSCRIPTION_MODE", "New"))
	if err != nil || c.LogLevel != "info" || c.SubscriptionMode != "new" {
		t.Errorf("%q, %q, %v", c.LogLevel, c.SubscriptionMode, err)
	}
}
