package auth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Roles is a set of roles. The zero value is the empty set, which passes public levels only.
type Roles uint8

// The roles.
const (
	ReadOnly Roles = 1 << iota
	WriteOnly
	ReadWrite
	Admin
)

// roleNames are the names of roles in the configuration, and in claims unless those are mapped.
var roleNames = map[string]Roles{
	"read-only":  ReadOnly,
	"write-only": WriteOnly,
	"read-write": ReadWrite,
	"admin":      Admin,
}

// admitted are the roles that pass a level, but for public, which needs none.
var admitted = map[string]Roles{
	"read-only":  ReadOnly | ReadWrite | Admin,
	"write-only": WriteOnly | ReadWrite | Admin,
	"read-write": ReadWrite | Admin,
	"admin":      Admin,
}

// Public is the level that needs no token.
const Public = "public"

// Pass says whether one of the roles passes an access level. A level that is not known is that of administrators.
func (r Roles) Pass(level string) bool {
	if level == Public {
		return true
	}
	who, known := admitted[level]
	if !known {
		who = Admin
	}
	return r&who != 0
}

// Caller is who showed a valid token.
type Caller struct {
	// Subject is the sub claim of a signed token, or the name of a configured one; "" means none.
	Subject string
	// Name tells callers apart in the audit log. It is never "" and never the token.
	Name string
	// Roles are what the caller may do.
	Roles Roles
}

// ErrUnauthorized is the error of every token that is not accepted. What wraps it is a *Refusal.
var ErrUnauthorized = errors.New("unauthorized")

// Refusal is why a token was not accepted, in fixed words that repeat nothing of it.
type Refusal struct{ Reason string }

// Error tells the reason.
func (r *Refusal) Error() string { return "unauthorized: " + r.Reason }

// Unwrap makes every refusal ErrUnauthorized.
func (r *Refusal) Unwrap() error { return ErrUnauthorized }

func refuse(reason string) error { return &Refusal{Reason: reason} }

// Config says which tokens are accepted. Its zero value accepts none: New then returns no Authenticator.
type Config struct {
	// Tokens lists the configured tokens, separated by commas or line breaks (POSTHORN_TOKENS). Each is role:token
	// or role:name:token. White space around an entry is ignored, and so are lines that begin with #.
	Tokens string

	JWT             bool          // signed tokens are accepted (JWT_ENABLED)
	Algorithms      string        // comma-separated; "" means every one that a configured key fits (JWT_ALGORITHM)
	Secret          string        // of HS256, HS384 and HS512; "" means none (JWT_SECRET)
	PublicKey       string        // PEM of the other algorithms; "" means none (JWT_PUBLIC_KEY)
	JWKSURL         string        // where a key set is published; "" means nowhere (JWT_JWKS_URL)
	Issuer          string        // required iss; "" means any (JWT_ISSUER)
	Audience        string        // required aud; "" means any (JWT_AUDIENCE)
	Skew            time.Duration // by which exp, nbf and iat may be off; 0 means none (JWT_CLOCK_SKEW)
	RolesClaim      string        // the claim that holds a role (JWT_ROLES_CLAIM)
	RolesArrayClaim string        // the claim that holds several (JWT_ROLES_ARRAY_CLAIM)
	RoleAdmin       string        // what the claims call the role admin; "" means admin (JWT_ROLE_ADMIN)
	RoleReadWrite   string        // the same for read-write (JWT_ROLE_READ_WRITE)
	RoleReadOnly    string        // the same for read-only (JWT_ROLE_READ_ONLY)
	RoleWriteOnly   string        // the same for write-only (JWT_ROLE_WRITE_ONLY)

	// SkipPaths lists paths that are answered without a token, separated by commas and compared exactly
	// (JWT_SKIP_PATHS). What is public is so without being listed.
	SkipPaths string

	Now    func() time.Time // the broker's clock; nil means time.Now
	Logger *slog.Logger     // nil means slog.Default()
}

// maxToken bounds a token in bytes: signed tokens are 1 or 2 KiB, and a check of a longer one would cost its sender
// nothing and the broker a hash over all of it.
const maxToken = 16 << 10

// maxSubject bounds the sub claim in bytes, because it is stored with each message. It holds no control
// character either, of which PostgreSQL cannot store NUL.
const maxSubject = 1024

// Authenticator checks tokens. It is safe for concurrent use; it owns no goroutine.
type Authenticator struct {
	tokens []staticToken
	jwt    *verifier // nil means that signed tokens are not accepted
	skip   []string
}

// New returns an Authenticator, or nil when the configuration asks for none. Its error names the variables of all
// that is wrong and quotes no secret.
func New(cfg Config) (*Authenticator, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	tokens, err := parseTokens(cfg.Tokens)
	problems := []error{err}
	a := &Authenticator{tokens: tokens}
	if cfg.JWT {
		a.jwt, err = newVerifier(cfg)
		problems = append(problems, err)
	}
	for path := range strings.SplitSeq(cfg.SkipPaths, ",") {
		switch path = strings.TrimSpace(path); {
		case path == "":
		case path[0] != '/':
			problems = append(problems, fmt.Errorf("JWT_SKIP_PATHS: %q does not begin with a slash", path))
		default:
			a.skip = append(a.skip, path)
		}
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	if len(a.tokens) == 0 && a.jwt == nil {
		return nil, nil
	}
	return a, nil
}

// Warm fetches the published keys, so that the first caller need not wait for them. That it fails is logged: the keys
// are fetched again when a token asks for them.
func (a *Authenticator) Warm(ctx context.Context) {
	if a != nil && a.jwt != nil && a.jwt.published != nil {
		a.jwt.published.refresh(ctx)
	}
}

// Skips says whether a path, escaped as it was sent, is answered without a token.
func (a *Authenticator) Skips(path string) bool { return slices.Contains(a.skip, path) }

// Authenticate says who showed a token, as Token found it. Its error is a *Refusal.
func (a *Authenticator) Authenticate(ctx context.Context, token string) (*Caller, error) {
	switch {
	case token == "":
		return nil, refuse("no token")
	case len(token) > maxToken:
		return nil, refuse("the token is too long")
	}
	if caller := findToken(a.tokens, token); caller != nil {
		return caller, nil
	}
	if a.jwt == nil {
		return nil, refuse("no such token")
	}
	return a.jwt.verify(ctx, token)
}

// Token is the token of a request's head: the credentials of the scheme Bearer, in any case, or a bare token. It is
// "" when there is none, when the scheme is another one, and when there is more than one Authorization.
func Token(head http.Header) string {
	values := head["Authorization"]
	if len(values) != 1 {
		return ""
	}
	given := strings.TrimSpace(values[0])
	scheme, credentials, two := strings.Cut(given, " ")
	switch {
	case strings.EqualFold(scheme, "bearer"):
		return strings.TrimSpace(credentials)
	case two:
		return ""
	default:
		return given
	}
}
