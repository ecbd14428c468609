package suite

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// RoleAdmin is the role whose token is shown where a spec does not choose one.
const RoleAdmin = "admin"

// Roles lists the roles of tokens.
func Roles() []string { return []string{"read-only", "write-only", "read-write", RoleAdmin} }

// checkTokens compares what the tester supplies with the capabilities that need it.
func (s *Settings) checkTokens() error {
	var problems []error
	for role, token := range s.Tokens {
		if !slices.Contains(Roles(), role) {
			problems = append(problems, fmt.Errorf("tokens: unknown role (known: %s)", strings.Join(Roles(), ", ")))
		}
		if strings.ContainsAny(token, "\r\n") {
			problems = append(problems, fmt.Errorf("token of %s: holds a line break", role))
		}
	}
	if slices.Contains(s.Capabilities, CapabilityAuth) {
		for _, role := range Roles() {
			if s.Tokens[role] == "" {
				problems = append(problems, fmt.Errorf("the capability %s needs a token of the role %s", CapabilityAuth, role))
			}
		}
	}
	if slices.Contains(s.Capabilities, CapabilitySigning) && s.SigningSecret == "" {
		problems = append(problems, fmt.Errorf("the capability %s needs the signing secret", CapabilitySigning))
	}
	return errors.Join(problems...)
}

// Token is the token of a role, "" when the tester supplied none.
func (s *Session) Token(role string) string { return s.settings.Tokens[role] }

// Token is the token of a role, which the capability auth guarantees.
func (t *Target) Token(role string) string { return t.session.Token(role) }

// Sign makes a JSON Web Token with the algorithm HS256 and the tester's secret, which the capability signing
// guarantees.
func (t *Target) Sign(claims map[string]any) string {
	return SignWith(t.session.settings.SigningSecret, map[string]any{"alg": "HS256", "typ": "JWT"}, claims)
}

// SignWith makes a token with any header, signed with HMAC-SHA256 whatever that says.
func SignWith(secret string, header, claims map[string]any) string {
	signed := encodePart(header) + "." + encodePart(claims)
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(signed))
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func encodePart(part map[string]any) string {
	text, err := json.Marshal(part)
	if err != nil {
		Failf(2, "encode a token: %v", err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// Now is the target's time: with the test clock what that says, otherwise this machine's.
func (t *Target) Now(ctx context.Context) time.Time {
	if !t.Has(CapabilityClock) {
		return time.Now()
	}
	outcome := t.Call(ctx, "getClock", Args{})
	var clock struct {
		Now time.Time `json:"now"`
	}
	if err := json.Unmarshal(outcome.Body, &clock); err != nil || outcome.Status != http.StatusOK {
		Failf(1, "the declared capability clock does not work: GET /testing/clock answered %d %s", outcome.Status, excerpt(outcome.Body))
	}
	return clock.Now
}
