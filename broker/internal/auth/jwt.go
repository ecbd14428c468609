package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/golang-jwt/jwt/v5"
)

// The algorithms, by the kind of their keys.
var (
	hmacAlgorithms = []string{"HS256", "HS384", "HS512"}
	rsaAlgorithms  = []string{"RS256", "RS384", "RS512"}
	ecAlgorithms   = []string{"ES256"}
	edAlgorithms   = []string{"EdDSA"}
)

const (
	// minRSABits is the shortest RSA key that is believed (NIST SP 800-131A).
	minRSABits = 2048
	// maxKeyID bounds the kid of a token in bytes; those in use are hashes, dates and UUIDs.
	maxKeyID = 256
	// strongSecret is the length in bytes that RFC 7518, section 3.2 demands of the secret of HS256.
	strongSecret = 32
)

// verifier checks signed tokens.
type verifier struct {
	parser     *jwt.Parser
	secret     []byte // nil means none
	key        any    // the configured public key; nil means none
	published  *keySet
	roleClaims []string
	roles      map[string]Roles
}

func newVerifier(cfg Config) (*verifier, error) {
	v := &verifier{
		roles: map[string]Roles{
			orDefault(cfg.RoleAdmin, "admin"):          Admin,
			orDefault(cfg.RoleReadWrite, "read-write"): ReadWrite,
			orDefault(cfg.RoleReadOnly, "read-only"):   ReadOnly,
			orDefault(cfg.RoleWriteOnly, "write-only"): WriteOnly,
		},
	}
	var errs []error
	if len(v.roles) != len(roleNames) {
		errs = append(errs, errors.New("JWT_ROLE_ADMIN, JWT_ROLE_READ_WRITE, JWT_ROLE_READ_ONLY, JWT_ROLE_WRITE_ONLY: two roles have one name"))
	}
	for _, claim := range []string{cfg.RolesClaim, cfg.RolesArrayClaim} {
		if claim != "" {
			v.roleClaims = append(v.roleClaims, claim)
		}
	}
	if len(v.roleClaims) == 0 {
		errs = append(errs, errors.New("JWT_ROLES_CLAIM, JWT_ROLES_ARRAY_CLAIM: no claim that holds roles is named"))
	}
	errs = append(errs, v.loadKeys(cfg))
	methods, err := algorithms(cfg.Algorithms)
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	methods = slices.DeleteFunc(methods, func(alg string) bool { return !v.mayHaveKey(alg) })
	if len(methods) == 0 {
		return nil, errors.New("JWT_ENABLED: there is no usable key: set JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL, of a kind that JWT_ALGORITHM allows")
	}
	if n := len(v.secret); n > 0 && n < strongSecret {
		cfg.Logger.Warn("JWT_SECRET is short, so that who sees a token can search for it", "bytes", n, "wanted", strongSecret)
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(methods), jwt.WithLeeway(cfg.Skew), jwt.WithIssuedAt(), jwt.WithTimeFunc(cfg.Now), jwt.WithStrictDecoding(),
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	v.parser = jwt.NewParser(options...)
	return v, nil
}

func (v *verifier) loadKeys(cfg Config) error {
	var errs []error
	if cfg.Secret != "" {
		v.secret = []byte(cfg.Secret)
	}
	if cfg.PublicKey != "" {
		var err error
		if v.key, err = parsePublicKey(cfg.PublicKey); err != nil {
			errs = append(errs, fmt.Errorf("JWT_PUBLIC_KEY: %w", err))
		}
	}
	if cfg.JWKSURL != "" {
		var err error
		if v.published, err = newKeySet(cfg.JWKSURL, cfg.Logger); err != nil {
			errs = append(errs, fmt.Errorf("JWT_JWKS_URL: %w", err))
		}
	}
	return errors.Join(errs...)
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

// algorithms reads the allowed set; "" means all.
func algorithms(list string) ([]string, error) {
	known := slices.Concat(hmacAlgorithms, rsaAlgorithms, ecAlgorithms, edAlgorithms)
	var chosen []string
	for name := range strings.SplitSeq(list, ",") {
		switch name = strings.TrimSpace(name); {
		case name == "":
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("JWT_ALGORITHM: %q is not one of %s", name, strings.Join(known, ", "))
		default:
			chosen = append(chosen, name)
		}
	}
	if chosen == nil {
		chosen = known
	}
	return chosen, nil
}

// mayHaveKey says whether a key of the kind that an algorithm needs is configured, or may be published.
func (v *verifier) mayHaveKey(alg string) bool {
	if slices.Contains(hmacAlgorithms, alg) {
		return v.secret != nil
	}
	return v.published != nil || v.key != nil && fits(alg, v.key)
}

// fits says whether a public key is of the kind that an algorithm needs. Nothing fits the symmetric ones: a public
// key must never serve as a secret.
func fits(alg string, key any) bool {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return slices.Contains(rsaAlgorithms, alg) && key.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey:
		return slices.Contains(ecAlgorithms, alg) && key.Curve == elliptic.P256()
	case ed25519.PublicKey:
		return slices.Contains(edAlgorithms, alg)
	}
	return false
}

// parsePublicKey reads a PEM block: a public key, or a certificate that holds one. A variable may hold its line
// breaks as \n.
func parsePublicKey(text string) (any, error) {
	pem := []byte(strings.ReplaceAll(text, `\n`, "\n"))
	if key, err := jwt.ParseRSAPublicKeyFromPEM(pem); err == nil {
		if key.N.BitLen() < minRSABits {
			return nil, fmt.Errorf("an RSA key has at least %d bits", minRSABits)
		}
		return key, nil
	}
	if key, err := jwt.ParseECPublicKeyFromPEM(pem); err == nil {
		if key.Curve != elliptic.P256() {
			return nil, errors.New("an elliptic key is of the curve P-256")
		}
		return key, nil
	}
	if key, err := jwt.ParseEdPublicKeyFromPEM(pem); err == nil {
		return key, nil
	}
	return nil, errors.New("not the PEM of an RSA, P-256 or Ed25519 public key")
}

var errNoKey = errors.New("no key")

// verify says who a signed token names.
func (v *verifier) verify(ctx context.Context, text string) (*Caller, error) {
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) { return v.keyOf(ctx, t) })
	if err != nil {
		return nil, refuse(reason(err))
	}
	subject, err := claims.GetSubject()
	if err != nil || len(subject) > maxSubject || strings.ContainsFunc(subject, unicode.IsControl) {
		return nil, refuse("a claim of the token is invalid")
	}
	caller := &Caller{Subject: subject, Name: subject}
	if caller.Name == "" {
		caller.Name = "a signed token without subject"
	}
	for _, claim := range v.roleClaims {
		switch value := claims[claim].(type) {
		case string:
			caller.Roles |= v.roles[value]
		case []any:
			for _, element := range value {
				if name, ok := element.(string); ok {
					caller.Roles |= v.roles[name]
				}
			}
		}
	}
	return caller, nil
}

// keyOf finds the one key that may have signed a token. A token chooses among the published keys by its kid, and
// never the kind of a key: that follows from the algorithm, which the parser has checked.
func (v *verifier) keyOf(ctx context.Context, t *jwt.Token) (any, error) {
	if _, critical := t.Header["crit"]; critical {
		return nil, errNoKey // it must be understood (RFC 7515, section 4.1.11), and none is
	}
	alg := t.Method.Alg()
	if slices.Contains(hmacAlgorithms, alg) {
		return v.secret, nil
	}
	if v.published != nil {
		if kid, _ := t.Header["kid"].(string); kid != "" && len(kid) <= maxKeyID {
			if key, ok := v.published.find(ctx, kid); ok && key.allows(alg) && fits(alg, key.public) {
				return key.public, nil
			}
		}
	}
	if v.key != nil && fits(alg, v.key) {
		return v.key, nil
	}
	return nil, errNoKey
}

// reason words an error of the parser without what it quotes.
func reason(err error) string {
	for _, known := range []struct {
		is   error
		says string
	}{
		{errNoKey, "no key fits the token"},
		{jwt.ErrTokenExpired, "the token has expired"},
		{jwt.ErrTokenNotValidYet, "the token is not valid yet"},
		{jwt.ErrTokenUsedBeforeIssued, "the token was issued in the future"},
		{jwt.ErrTokenInvalidIssuer, "the token is of another issuer"},
		{jwt.ErrTokenInvalidAudience, "the token is for another audience"},
		{jwt.ErrTokenRequiredClaimMissing, "a required claim is missing"},
		{jwt.ErrTokenInvalidClaims, "a claim of the token is invalid"},
		{jwt.ErrTokenSignatureInvalid, "the signature or the algorithm of the token is not accepted"},
	} {
		if errors.Is(err, known.is) {
			return known.says
		}
	}
	return "the token cannot be read"
}
