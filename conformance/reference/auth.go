package reference

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/posthorn/posthorn/openapi"
)

// The mutations of who may call what.
const (
	TokenOptional      Mutation = "token-optional"       // who shows no token may do everything
	AnyToken           Mutation = "any-token"            // a token that nobody has is one of admin
	OtherSchemes       Mutation = "other-schemes"        // the credentials of any scheme are a token
	RolesLadder        Mutation = "roles-ladder"         // read-only < write-only < read-write < admin
	ForbiddenIs401     Mutation = "forbidden-is401"      // a role that does not suffice is answered 401
	ReaderRefused      Mutation = "reader-refused"       // a read-only token may do nothing
	WriterRefused      Mutation = "writer-refused"       // a write-only token may do nothing
	PublicNeedsToken   Mutation = "public-needs-token"   // public operations need a token
	PublicChecksToken  Mutation = "public-checks-token"  // public operations refuse a token that nobody has
	BearerCase         Mutation = "bearer-case"          // only Bearer is a scheme
	BareTokenRefused   Mutation = "bare-token-refused"   //nolint:gosec // no credential: a token needs a scheme
	UnknownPathsPublic Mutation = "unknown-paths-public" // unknown paths need no token
	UnknownPathsRead   Mutation = "unknown-paths-read"   // unknown paths are read-only
	LateRefusal        Mutation = "late-refusal"         // the body is read before the token
	RolesArrayIgnored  Mutation = "roles-array-ignored"  // only the claim role counts
	RolesFirstOnly     Mutation = "roles-first-only"     // of several roles the first counts
	RolelessAdmin      Mutation = "roleless-admin"       // a token without a role is one of admin
	ExpiryIgnored      Mutation = "expiry-ignored"       // exp is not checked
	NotBeforeIgnored   Mutation = "not-before-ignored"   // nbf is not checked
	ExpiryRequired     Mutation = "expiry-required"      // a token without exp is refused
	NoSkew             Mutation = "no-skew"              // clocks must agree
	UnsignedAccepted   Mutation = "unsigned-accepted"    // the algorithm none needs no signature
	SignatureIgnored   Mutation = "signature-ignored"    // signatures are not checked
	EmptySignature     Mutation = "empty-signature"      // an empty signature is not checked
	ProducerSubDropped Mutation = "producer-sub-dropped" // the sub of a token is not stored
)

var authMutations = []Mutation{
	TokenOptional, AnyToken, OtherSchemes, RolesLadder, ForbiddenIs401, ReaderRefused, WriterRefused, PublicNeedsToken,
	PublicChecksToken, BearerCase, BareTokenRefused, UnknownPathsPublic, UnknownPathsRead, LateRefusal, RolesArrayIgnored,
	RolesFirstOnly, RolelessAdmin, ExpiryIgnored, NotBeforeIgnored, ExpiryRequired, NoSkew, UnsignedAccepted,
	SignatureIgnored, EmptySignature, ProducerSubDropped,
}

// clockSkew is by how much the times of a token may be off.
const clockSkew = 30 * time.Second

// access is who may call: the tokens by role, and the secret of signed ones. nil means everybody.
type access struct {
	tokens map[string]string
	secret string
}

// RequireTokens makes the broker ask for tokens: one of each role, or a token signed with the secret. It must be called
// before the broker serves.
func (b *Broker) RequireTokens(tokens map[string]string, secret string) {
	b.access = &access{tokens: tokens, secret: secret}
}

// caller is who shows a token.
type caller struct {
	sub   string
	roles []string
}

// levels are the access levels of the operations, by method and path.
var levels = sync.OnceValue(func() map[string]string {
	spec, err := openapi.Load()
	if err != nil {
		panic(err) // the description is embedded
	}
	all := map[string]string{}
	for _, op := range spec.Operations() {
		all[op.Method+" "+op.Path] = op.Access
	}
	return all
})

var admitted = map[string][]string{
	"read-only":  {"read-only", "read-write", "admin"},
	"write-only": {"write-only", "read-write", "admin"},
	"read-write": {"read-write", "admin"},
	"admin":      {"admin"},
}

// ladder is the order of roles in a broker with the defect RolesLadder.
var ladder = []string{"read-only", "write-only", "read-write", "admin"}

// authorize says who calls an operation, or answers that they may not. level "" is that of an unknown path.
func (b *Broker) authorize(w http.ResponseWriter, r *http.Request, level string) (caller, bool) {
	if b.access == nil {
		return caller{}, true
	}
	if level == "" {
		level = "read-write"
		switch {
		case b.has(UnknownPathsPublic):
			level = "public"
		case b.has(UnknownPathsRead):
			level = "read-only"
		}
	}
	refuse := func(status int, text string) (caller, bool) {
		if b.has(LateRefusal) {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		if status == http.StatusUnauthorized && publishPath(r) {
			text = "unable to authenticate: invalid token"
		}
		w.Header().Set("Connection", "close")
		writeJSON(w, status, map[string]string{"error": text})
		return caller{}, false
	}
	who, known := b.caller(r)
	_, shown := r.Header["Authorization"]
	switch {
	case level == "public" && b.has(PublicNeedsToken) && !shown, level == "public" && b.has(PublicChecksToken) && shown && !known:
		return refuse(http.StatusUnauthorized, "Unauthorized")
	case level == "public":
		return who, true
	case !known:
		return refuse(http.StatusUnauthorized, "Unauthorized")
	case !b.passes(who, level) && b.has(ForbiddenIs401):
		return refuse(http.StatusUnauthorized, "Unauthorized")
	case !b.passes(who, level):
		return refuse(http.StatusForbidden, "Insufficient permissions")
	}
	return who, true
}

func (b *Broker) passes(who caller, level string) bool {
	return slices.ContainsFunc(who.roles, func(role string) bool {
		switch {
		case b.has(ReaderRefused) && role == "read-only", b.has(WriterRefused) && role == "write-only":
			return false
		case b.has(RolesLadder):
			return slices.Index(ladder, role) >= slices.Index(ladder, level)
		}
		return slices.Contains(admitted[level], role)
	})
}

// tokenParameter is the query parameter that may hold the token of a request of the publish half.
const tokenParameter = "qstash_token"

// publishPath says whether a request is one of the publish half.
func publishPath(r *http.Request) bool {
	path := strings.ToLower(r.URL.Path)
	return strings.HasPrefix(path, "/v1/") || strings.HasPrefix(path, "/v2/")
}

// caller reads the token of a request.
func (b *Broker) caller(r *http.Request) (caller, bool) {
	token := r.Header.Get("Authorization")
	if token == "" && publishPath(r) && !b.has(QueryTokenIgnored) {
		token = r.URL.Query().Get(tokenParameter)
	}
	if token == "" {
		return caller{roles: []string{"admin"}}, b.has(TokenOptional)
	}
	scheme, credentials, found := strings.Cut(token, " ")
	switch {
	case found && (scheme == "Bearer" || strings.EqualFold(scheme, "bearer") && !b.has(BearerCase) || b.has(OtherSchemes)):
		token = credentials
	case found || strings.EqualFold(token, "bearer") || b.has(BareTokenRefused):
		return caller{}, false
	}
	for role, its := range b.access.tokens {
		if token == its {
			return caller{roles: []string{role}}, true
		}
	}
	if who, ok := b.signed(token); ok {
		return who, true
	}
	return caller{roles: []string{"admin"}}, b.has(AnyToken) && token != "" && strings.Count(token, ".") != 2
}

// signed reads a JSON Web Token.
func (b *Broker) signed(token string) (caller, bool) {
	parts := strings.Split(token, ".")
	var header struct {
		Alg string `json:"alg"`
	}
	var claims struct {
		Sub   string   `json:"sub"`
		Role  string   `json:"role"`
		Roles []string `json:"roles"`
		Exp   *int64   `json:"exp"`
		Nbf   *int64   `json:"nbf"`
	}
	if b.access.secret == "" || len(parts) != 3 || !readPart(parts[0], &header) || !readPart(parts[1], &claims) {
		return caller{}, false
	}
	mac := hmac.New(sha256.New, []byte(b.access.secret))
	mac.Write([]byte(parts[0] + "." + parts[1]))
	genuine := header.Alg == "HS256" && parts[2] == base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	switch {
	case genuine, b.has(SignatureIgnored) && header.Alg == "HS256", b.has(UnsignedAccepted) && header.Alg == "none":
	case b.has(EmptySignature) && header.Alg == "HS256" && parts[2] == "":
	default:
		return caller{}, false
	}
	b.mu.Lock()
	now := b.now()
	b.mu.Unlock()
	skew := clockSkew
	if b.has(NoSkew) {
		skew = 0
	}
	switch {
	case claims.Exp == nil && b.has(ExpiryRequired):
		return caller{}, false
	case claims.Exp != nil && !now.Before(time.Unix(*claims.Exp, 0).Add(skew)) && !b.has(ExpiryIgnored):
		return caller{}, false
	case claims.Nbf != nil && now.Before(time.Unix(*claims.Nbf, 0).Add(-skew)) && !b.has(NotBeforeIgnored):
		return caller{}, false
	}
	who := caller{sub: claims.Sub}
	if claims.Role != "" {
		who.roles = append(who.roles, claims.Role)
	}
	if !b.has(RolesArrayIgnored) {
		who.roles = append(who.roles, claims.Roles...)
	}
	if b.has(RolesFirstOnly) && len(who.roles) > 1 {
		who.roles = who.roles[:1]
	}
	if b.has(RolelessAdmin) && len(who.roles) == 0 {
		who.roles = []string{"admin"}
	}
	return who, true
}

func readPart(part string, into any) bool {
	text, err := base64.RawURLEncoding.DecodeString(part)
	return err == nil && json.Unmarshal(text, into) == nil
}

type callerKey struct{}

// callerOf is who sent a request that was let in.
func callerOf(r *http.Request) caller {
	who, _ := r.Context().Value(callerKey{}).(caller)
	return who
}
