package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// staticToken is a configured token, of which only the hash is kept.
type staticToken struct {
	hash   [sha256.Size]byte
	caller *Caller
}

// minToken is the shortest configured token in bytes: 16 random characters cannot be guessed over a network.
const minToken = 16

// tokenName is the form of a token's name, which logs and consumers see.
var tokenName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,128}$`)

// parseTokens reads Config.Tokens. Errors count entries instead of quoting them: a part that is not understood may be
// the secret.
func parseTokens(text string) ([]staticToken, error) {
	var (
		tokens []staticToken
		errs   []error
		number int
	)
	bad := func(rule string) {
		errs = append(errs, fmt.Errorf("POSTHORN_TOKENS: entry %d %s", number, rule))
	}
	seen := make(map[[sha256.Size]byte]bool)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for entry := range strings.SplitSeq(line, ",") {
			if entry = strings.TrimSpace(entry); entry == "" {
				continue
			}
			number++
			parts := strings.Split(entry, ":")
			if len(parts) != 2 && len(parts) != 3 {
				bad("must be role:token or role:name:token; a token has neither colon nor comma")
				continue
			}
			roles, known := roleNames[parts[0]]
			token := parts[len(parts)-1]
			caller := &Caller{Name: fmt.Sprintf("token %d", number), Roles: roles}
			switch {
			case !known:
				bad("must begin with a role: read-only, write-only, read-write or admin")
				continue
			case len(parts) == 3 && !tokenName.MatchString(parts[1]):
				bad("has a name that is not 1 to 128 letters, digits, dots, hyphens, underscores or at signs")
				continue
			case len(token) < minToken || len(token) > maxToken:
				bad(fmt.Sprintf("has a token that is not %d to %d bytes long", minToken, maxToken))
				continue
			case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
				bad("has a token with a character that is not visible ASCII")
				continue
			}
			if len(parts) == 3 {
				caller.Name, caller.Subject = parts[1], parts[1]
			}
			hash := sha256.Sum256([]byte(token))
			if seen[hash] {
				bad("has the token of an earlier one")
				continue
			}
			seen[hash] = true
			tokens = append(tokens, staticToken{hash: hash, caller: caller})
		}
	}
	if text != "" && number == 0 {
		errs = append(errs, errors.New("POSTHORN_TOKENS: there is no token in it"))
	}
	return tokens, errors.Join(errs...)
}

// findToken compares a token with all configured ones, whichever it is.
func findToken(tokens []staticToken, token string) *Caller {
	hash := sha256.Sum256([]byte(token))
	var found *Caller
	for i := range tokens {
		if subtle.ConstantTimeCompare(hash[:], tokens[i].hash[:]) == 1 {
			found = tokens[i].caller
		}
	}
	return found
}
