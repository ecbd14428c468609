package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const secret = "0123456789abcdef0123456789abcdef"

// signers are the private keys of this test, made once: RSA takes a while.
var signers = sync.OnceValue(func() map[string]crypto.Signer {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	shortKey, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		panic(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	otherCurve, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		panic(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return map[string]crypto.Signer{"rsa": rsaKey, "short": shortKey, "ec": ecKey, "p384": otherCurve, "ed": edKey}
})

func publicPEM(t *testing.T, name string) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(signers()[name].Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// sign makes a token. kid "" leaves it out.
func sign(t *testing.T, alg string, key any, kid string, claims map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(alg), jwt.MapClaims(claims))
	if kid != "" {
		token.Header["kid"] = kid
	}
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// now is the broker's clock in these tests: an odd year, so that nothing passes by the machine's clock.
var now = time.Date(2041, 5, 6, 7, 8, 9, 0, time.UTC)

func config(change func(*Config)) Config {
	cfg := Config{JWT: true, RolesClaim: "role", RolesArrayClaim: "roles", Skew: 30 * time.Second, Now: func() time.Time { return now }}
	change(&cfg)
	return cfg
}

func authenticator(t *testing.T, change func(*Config)) *Authenticator {
	t.Helper()
	a, err := New(config(change))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// refused wants a token to be refused, for a reason if want names one.
func refused(t *testing.T, a *Authenticator, what, token, want string) {
	t.Helper()
	caller, err := a.Authenticate(t.Context(), token)
	if caller != nil || !errors.Is(err, ErrUnauthorized) {
		t.Errorf("%s: %+v, %v", what, caller, err)
		return
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// keyFor is what signs and what checks an algorithm.
var keyFor = map[string]string{
	"RS256": "rsa", "RS384": "rsa", "RS512": "rsa", "ES256": "ec", "EdDSA": "ed",
}

// TestAlgorithms tries every algorithm against every kind of key, and against every allowed set.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	claims := map[string]any{"sub": "alice", "role": "admin"}
	all := []string{"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "ES256", "EdDSA"}
	tokens := make(map[string]string)
	for _, alg := range all {
		if name, ok := keyFor[alg]; ok {
			tokens[alg] = sign(t, alg, signers()[name], "", claims)
		} else {
			tokens[alg] = sign(t, alg, []byte(secret), "", claims)
		}
	}
	for _, key := range []string{"secret", "rsa", "ec", "ed"} {
		for _, allowed := range append([]string{""}, all...) {
			a, err := New(config(func(c *Config) {
				c.Algorithms = allowed
				if key == "secret" {
					c.Secret = secret
				} else {
					c.PublicKey = publicPEM(t, key)
				}
			}))
			fit := func(alg string) bool {
				kind, asymmetric := keyFor[alg]
				return (allowed == "" || allowed == alg) && (kind == key || !asymmetric && key == "secret")
			}
			usable := false
			for _, alg := range all {
				usable = usable || fit(alg)
			}
			if usable != (err == nil) {
				t.Errorf("key %s, allowed %q: %v", key, allowed, err)
			}
			if err != nil {
				continue
			}
			for _, alg := range all {
				caller, err := a.Authenticate(t.Context(), tokens[alg])
				if fit(alg) != (err == nil) {
					t.Errorf("key %s, allowed %q, token %s: %+v, %v", key, allowed, alg, caller, err)
				}
				if err == nil && (caller.Subject != "alice" || caller.Roles != Admin) {
					t.Errorf("%s: %+v", alg, caller)
				}
			}
		}
	}
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// TestForgeries are tokens that nobody with a key has made.
func TestForgeries(t *testing.T) {
	t.Parallel()
	claims := map[string]any{"sub": "mallory", "role": "admin"}
	public := publicPEM(t, "rsa")
	a := authenticator(t, func(c *Config) { c.Secret, c.PublicKey = secret, public })
	good := sign(t, "HS256", []byte(secret), "", claims)
	if _, err := a.Authenticate(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(good, ".")
	body, signature, _ := strings.Cut(rest, ".")
	none := encode(map[string]any{"alg": "none", "typ": "JWT"})
	for what, token := range map[string]string{
		"unsigned":                       none + "." + body + ".",
		"unsigned, with a signature":     none + "." + body + "." + signature,
		"None":                           encode(map[string]any{"alg": "None"}) + "." + body + ".",
		"no algorithm":                   encode(map[string]any{"typ": "JWT"}) + "." + body + "." + signature,
		"an unknown algorithm":           encode(map[string]any{"alg": "HS1"}) + "." + body + "." + signature,
		"an algorithm that is no string": encode(map[string]any{"alg": 256}) + "." + body + "." + signature,
		"the public key as a secret":     sign(t, "HS256", []byte(public), "", claims),
		"the key's DER as a secret":      sign(t, "HS512", []byte(strings.TrimSpace(public)), "", claims),
		"another secret":                 sign(t, "HS256", []byte("another"), "", claims),
		"no signature":                   head + "." + body + ".",
		"no signature at all":            head + "." + body,
		"other claims":                   head + "." + encode(map[string]any{"role": "admin", "sub": "root"}) + "." + signature,
		"a longer signature":             good + "AA",
		"a changed last bit":             good[:len(good)-1] + string(flip(good[len(good)-1])),
		"RSA of another key":             sign(t, "PS256", signers()["rsa"], "", claims),
		"a critical header":              critical(t, claims),
		"four parts":                     good + "." + signature,
		"padded":                         good + "=",
		"white space":                    head + " ." + body + "." + signature,
		"no JSON":                        head + "." + base64.RawURLEncoding.EncodeToString([]byte("{")) + "." + signature,
		"nothing":                        "..",
		"a megabyte":                     head + "." + strings.Repeat("A", 1<<20) + "." + signature,
	} {
		refused(t, a, what, token, "")
	}
}

// flip changes the significant high bit of a base64url character.
func flip(c byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return alphabet[strings.IndexByte(alphabet, c)^32]
}

func critical(t *testing.T, claims map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims(claims))
	token.Header["crit"] = []string{"exp"}
	text, err := token.SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestClaims(t *testing.T) {
	t.Parallel()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	for _, tc := range []struct {
		what   string
		claims map[string]any
		change func(*Config)
		want   string // "" means accepted
	}{
		{"no times", map[string]any{}, nil, ""},
		{"not expired", map[string]any{"exp": at(time.Second)}, nil, ""},
		{"expired within the skew", map[string]any{"exp": at(-29 * time.Second)}, nil, ""},
		{"expired beyond it", map[string]any{"exp": at(-31 * time.Second)}, nil, "has expired"},
		{"expired without skew", map[string]any{"exp": at(-time.Second)}, func(c *Config) { c.Skew = 0 }, "has expired"},
		{"not yet, within the skew", map[string]any{"nbf": at(29 * time.Second)}, nil, ""},
		{"not yet", map[string]any{"nbf": at(31 * time.Second)}, nil, "not valid yet"},
		{"issued in the future", map[string]any{"iat": at(31 * time.Second)}, nil, "issued in the future"},
		{"issued within the skew", map[string]any{"iat": at(29 * time.Second)}, nil, ""},
		{"exp is no number", map[string]any{"exp": "tomorrow"}, nil, "claim"},
		{"sub is no string", map[string]any{"sub": 7}, nil, "claim"},
		{"the longest sub", map[string]any{"sub": strings.Repeat("s", 1024)}, nil, ""},
		{"a longer sub", map[string]any{"sub": strings.Repeat("s", 1025)}, nil, "claim"},
		{"NUL in the sub", map[string]any{"sub": "a\x00b"}, nil, "claim"},
		{"a control character in the sub", map[string]any{"sub": "a\u0085b"}, nil, "claim"},
		{"any issuer", map[string]any{"iss": "x"}, nil, ""},
		{"the issuer", map[string]any{"iss": "me"}, func(c *Config) { c.Issuer = "me" }, ""},
		{"another issuer", map[string]any{"iss": "you"}, func(c *Config) { c.Issuer = "me" }, "issuer"},
		{"no issuer", map[string]any{}, func(c *Config) { c.Issuer = "me" }, "missing"},
		{"the audience", map[string]any{"aud": "me"}, func(c *Config) { c.Audience = "me" }, ""},
		{"among audiences", map[string]any{"aud": []string{"you", "me"}}, func(c *Config) { c.Audience = "me" }, ""},
		{"another audience", map[string]any{"aud": "you"}, func(c *Config) { c.Audience = "me" }, "audience"},
		{"no audience", map[string]any{}, func(c *Config) { c.Audience = "me" }, "missing"},
	} {
		a := authenticator(t, func(c *Config) {
			c.Secret = secret
			if tc.change != nil {
				tc.change(c)
			}
		})
		token := sign(t, "HS256", []byte(secret), "", tc.claims)
		if tc.want != "" {
			refused(t, a, tc.what, token, tc.want)
		} else if _, err := a.Authenticate(t.Context(), token); err != nil {
			t.Errorf("%s: %v", tc.what, err)
		}
	}
}

func TestRoles(t *testing.T) {
	t.Parallel()
	mapped := func(c *Config) {
		c.Secret, c.RoleAdmin, c.RoleWriteOnly, c.RolesClaim, c.RolesArrayClaim = secret, "boss", "producer", "job", "jobs"
	}
	plain := func(c *Config) { c.Secret = secret }
	for _, tc := range []struct {
		change func(*Config)
		claims map[string]any
		want   Roles
	}{
		{plain, map[string]any{}, 0},
		{plain, map[string]any{"role": "read-only"}, ReadOnly},
		{plain, map[string]any{"role": "write-only"}, WriteOnly},
		{plain, map[string]any{"role": "read-write"}, ReadWrite},
		{plain, map[string]any{"role": "admin"}, Admin},
		{plain, map[string]any{"role": "Admin"}, 0},
		{plain, map[string]any{"role": "root"}, 0},
		{plain, map[string]any{"role": ""}, 0},
		{plain, map[string]any{"role": true}, 0},
		{plain, map[string]any{"roles": []string{"read-only", "write-only", "root"}}, ReadOnly | WriteOnly},
		{plain, map[string]any{"roles": []any{1, "admin", nil}}, Admin},
		{plain, map[string]any{"roles": "admin"}, Admin},
		{plain, map[string]any{"role": "read-only", "roles": []string{"write-only"}}, ReadOnly | WriteOnly},
		{plain, map[string]any{"Role": "admin"}, 0},
		{mapped, map[string]any{"job": "boss"}, Admin},
		{mapped, map[string]any{"job": "admin"}, 0},
		{mapped, map[string]any{"role": "boss"}, 0},
		{mapped, map[string]any{"jobs": []string{"producer", "read-only"}}, WriteOnly | ReadOnly},
	} {
		a := authenticator(t, tc.change)
		claims := maps.Clone(tc.claims)
		caller, err := a.Authenticate(t.Context(), sign(t, "HS256", []byte(secret), "", claims))
		if err != nil || caller.Roles != tc.want || caller.Name == "" {
			t.Errorf("%v: %+v, %v", tc.claims, caller, err)
		}
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	private, err := x509.MarshalPKCS8PrivateKey(signers()["rsa"])
	if err != nil {
		t.Fatal(err)
	}
	for what, cfg := range map[string]func(*Config){
		"none":            func(*Config) {},
		"a short RSA key": func(c *Config) { c.PublicKey = publicPEM(t, "short") },
		"another curve":   func(c *Config) { c.PublicKey = publicPEM(t, "p384") },
		"no PEM":          func(c *Config) { c.PublicKey = "key" },
		"a private key": func(c *Config) {
			c.PublicKey = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
		},
		"an unknown algorithm": func(c *Config) { c.Secret, c.Algorithms = secret, "HS256,none" },
		"no URL":               func(c *Config) { c.JWKSURL = "keys.example" },
	} {
		if a, err := New(config(cfg)); a != nil || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	escaped := strings.ReplaceAll(publicPEM(t, "rsa"), "\n", `\n`)
	if _, err := New(config(func(c *Config) { c.PublicKey = escaped })); err != nil {
		t.Errorf("line breaks written as \\n: %v", err)
	}
}

func FuzzAuthenticate(f *testing.F) {
	a, err := New(config(func(c *Config) { c.Secret, c.Tokens = secret, "admin:"+firstToken }))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("..")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add("eyJhbGciOiJIUzI1NiJ9.eyJyb2xlIjoiYWRtaW4ifQ.AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		caller, err := a.Authenticate(t.Context(), token)
		if token != firstToken && (caller != nil || !errors.Is(err, ErrUnauthorized)) {
			t.Errorf("%q: %+v, %v", token, caller, err)
		}
	})
}
