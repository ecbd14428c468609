package auth

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
)

// published is a key server whose keys change.
type published struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []jwkset.JWKMarshal
	raw     string // sent instead, if not ""
	fetches atomic.Int64
	broken  atomic.Bool
}

func publish(t *testing.T) *published {
	t.Helper()
	p := &published{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.fetches.Add(1)
		if p.broken.Load() {
			http.Error(w, "broken", http.StatusBadGateway)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.raw != "" {
			_, _ = io.WriteString(w, p.raw)
			return
		}
		writeSet(w, p.keys)
	}))
	t.Cleanup(p.Close)
	return p
}

func writeSet(w io.Writer, keys []jwkset.JWKMarshal) {
	set := make([]string, len(keys))
	for i, key := range keys {
		set[i] = jsonOf(key)
	}
	_, _ = fmt.Fprintf(w, `{"keys":[%s]}`, strings.Join(set, ","))
}

// jwk is the public key of a signer as it is published.
func jwk(t *testing.T, name, kid, alg, use string) jwkset.JWKMarshal {
	t.Helper()
	key, err := jwkset.NewJWKFromKey(signers()[name].Public(), jwkset.JWKOptions{
		Metadata: jwkset.JWKMetadataOptions{KID: kid, ALG: jwkset.ALG(alg), USE: jwkset.USE(use)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return key.Marshal()
}

func (p *published) set(keys ...jwkset.JWKMarshal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys, p.raw = keys, ""
}

// movable is a clock for the key set.
type movable struct{ offset atomic.Int64 }

func (m *movable) now() time.Time          { return now.Add(time.Duration(m.offset.Load())) }
func (m *movable) advance(d time.Duration) { m.offset.Add(int64(d)) }

func withKeys(t *testing.T, p *published, change func(*Config)) (*Authenticator, *movable) {
	t.Helper()
	a := authenticator(t, func(c *Config) {
		c.JWKSURL = p.URL
		c.Logger = slog.New(slog.DiscardHandler)
		if change != nil {
			change(c)
		}
	})
	m := &movable{}
	a.jwt.published.now = m.now
	return a, m
}

var adminClaims = map[string]any{"sub": "alice", "role": "admin"}

// TestRotation follows a key server: unknown kids are looked up at most every 5 s, and keys that are gone are forgotten.
func TestRotation(t *testing.T) {
	t.Parallel()
	p := publish(t)
	p.set(jwk(t, "rsa", "one", "", ""))
	a, clock := withKeys(t, p, nil)
	ok := func(what, token string) {
		t.Helper()
		if _, err := a.Authenticate(t.Context(), token); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	fetched := func(want int64) {
		t.Helper()
		if got := p.fetches.Load(); got != want {
			t.Errorf("%d fetches, want %d", got, want)
		}
	}
	one := sign(t, "RS256", signers()["rsa"], "one", adminClaims)
	two := sign(t, "ES256", signers()["ec"], "two", adminClaims)
	ok("first use", one)
	ok("second use", one)
	fetched(1)

	p.set(jwk(t, "rsa", "one", "", ""), jwk(t, "ec", "two", "ES256", "sig"))
	refused(t, a, "a new key within 5 s", two, "no key")
	fetched(1)
	clock.advance(4999 * time.Millisecond)
	refused(t, a, "a new key within 5 s", two, "no key")
	fetched(1)
	clock.advance(time.Millisecond)
	ok("a new key after 5 s", two)
	ok("the old key", one)
	fetched(2)

	p.set(jwk(t, "ec", "two", "", ""))
	clock.advance(9 * time.Minute)
	ok("a key that is gone, within 10 min", one)
	fetched(2)
	clock.advance(time.Minute)
	refused(t, a, "a key that is gone, after 10 min", one, "no key")
	fetched(3)

	p.broken.Store(true)
	clock.advance(time.Hour)
	ok("a known key while the server is away", two)
	fetched(4)
	ok("a known key while the server is away", two)
	fetched(4)
}

// TestOneFetchForMany sends tokens with an unknown kid all at once.
func TestOneFetchForMany(t *testing.T) {
	t.Parallel()
	p := publish(t)
	p.set(jwk(t, "ed", "ed", "", ""))
	a, _ := withKeys(t, p, nil)
	token := sign(t, "EdDSA", signers()["ed"], "ed", adminClaims)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := a.Authenticate(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range 50 {
		refused(t, a, "made-up kid", sign(t, "EdDSA", signers()["ed"], fmt.Sprint("kid", i), adminClaims), "no key")
	}
	if got := p.fetches.Load(); got != 1 {
		t.Errorf("%d fetches", got)
	}
}

// TestKeysAreNotMixedUp tries what a kid may not do.
func TestKeysAreNotMixedUp(t *testing.T) {
	t.Parallel()
	p := publish(t)
	hmac := jwkset.JWKMarshal{KTY: jwkset.KtyOct, KID: "oct", K: "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}
	p.set(
		jwk(t, "rsa", "rsa", "", ""), jwk(t, "ec", "ec", "", ""), jwk(t, "ed", "enc", "", "enc"),
		jwk(t, "rsa", "only512", "RS512", "sig"), jwk(t, "short", "short", "", ""), jwk(t, "p384", "p384", "", ""), hmac,
		jwkset.JWKMarshal{KTY: "XYZ", KID: "strange"}, jwkset.JWKMarshal{KTY: jwkset.KtyEC, KID: "off", CRV: "P-256", X: "AQ", Y: "AQ"},
		jwk(t, "ed", "", "", ""),
	)
	a, _ := withKeys(t, p, nil)
	rsaKey, ecKey := signers()["rsa"], signers()["ec"]
	for kid, alg := range map[string]string{"rsa": "RS384", "only512": "RS512"} {
		if _, err := a.Authenticate(t.Context(), sign(t, alg, rsaKey, kid, adminClaims)); err != nil {
			t.Errorf("%s with %s: %v", alg, kid, err)
		}
	}
	for what, token := range map[string]string{
		"no kid":                       sign(t, "RS256", rsaKey, "", adminClaims),
		"the key of another kid":       sign(t, "RS256", rsaKey, "ec", adminClaims),
		"another algorithm than its":   sign(t, "RS256", rsaKey, "only512", adminClaims),
		"a key for encryption":         sign(t, "EdDSA", signers()["ed"], "enc", adminClaims),
		"a short key":                  sign(t, "RS256", signers()["short"], "short", adminClaims),
		"a published secret":           sign(t, "HS256", []byte(secret), "oct", adminClaims),
		"an unknown kid":               sign(t, "ES256", ecKey, "nobody", adminClaims),
		"a kid that is a path":         sign(t, "ES256", ecKey, "../../../etc/passwd", adminClaims),
		"a kid that is a URL":          sign(t, "ES256", ecKey, p.URL+"/evil", adminClaims),
		"a huge kid":                   sign(t, "ES256", ecKey, strings.Repeat("k", 8<<10), adminClaims),
		"a key that is not understood": sign(t, "ES256", ecKey, "strange", adminClaims),
		"a point off the curve":        sign(t, "ES256", ecKey, "off", adminClaims),
	} {
		refused(t, a, what, token, "")
	}
	if got := p.fetches.Load(); got != 1 {
		t.Errorf("%d fetches", got)
	}
}

// TestConfiguredKeyBesidePublished serves tokens without a kid.
func TestConfiguredKeyBesidePublished(t *testing.T) {
	t.Parallel()
	p := publish(t)
	p.set(jwk(t, "rsa", "rsa", "", ""))
	a, _ := withKeys(t, p, func(c *Config) { c.PublicKey, c.Secret = publicPEM(t, "ec"), secret })
	for what, token := range map[string]string{
		"published":  sign(t, "RS256", signers()["rsa"], "rsa", adminClaims),
		"configured": sign(t, "ES256", signers()["ec"], "", adminClaims),
		"secret":     sign(t, "HS256", []byte(secret), "rsa", adminClaims),
	} {
		if _, err := a.Authenticate(t.Context(), token); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestBadKeyServers are survived, and do not get into the log.
func TestBadKeyServers(t *testing.T) {
	t.Parallel()
	token := sign(t, "ES256", signers()["ec"], "ec", adminClaims)
	good := &bytes.Buffer{}
	writeSet(good, []jwkset.JWKMarshal{jwk(t, "ec", "ec", "", "")})
	padding := func(n int) string { return strings.Repeat(" ", n-good.Len()) }
	for what, tc := range map[string]struct {
		body string
		want bool
	}{
		"a good one":         {good.String(), true},
		"exactly a megabyte": {good.String() + padding(1<<20), true},
		"one byte more":      {good.String() + padding(1<<20+1), false},
		"no JSON":            {"<html>canary</html>", false},
		"an array":           {"[]", false},
	} {
		var log bytes.Buffer
		p := publish(t)
		p.raw = tc.body
		a, _ := withKeys(t, p, func(c *Config) { c.JWKSURL += "/?key=canary"; c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		a.Warm(t.Context())
		_, err := a.Authenticate(t.Context(), token)
		if tc.want != (err == nil) {
			t.Errorf("%s: %v\n%s", what, err, &log)
		}
		if strings.Contains(log.String(), "canary") || tc.want != (log.Len() == 0) {
			t.Errorf("%s: logged %s", what, &log)
		}
	}

	elsewhere := publish(t)
	elsewhere.set(jwk(t, "ec", "ec", "", ""))
	redirect := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer redirect.Close()
	a, _ := withKeys(t, &published{Server: redirect}, nil)
	refused(t, a, "a redirect", token, "no key")
	if elsewhere.fetches.Load() != 0 {
		t.Error("the redirect was followed")
	}

	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	var log bytes.Buffer
	a, _ = withKeys(t, &published{Server: gone}, func(c *Config) { c.JWKSURL += "/?key=canary"; c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	refused(t, a, "nobody there", token, "no key")
	if strings.Contains(log.String(), "canary") || log.Len() == 0 {
		t.Errorf("logged %s", &log)
	}
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
