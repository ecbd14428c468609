package app

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
	"github.com/posthorn/posthorn/openapi"
)

// canary is a text that must be seen nowhere.
func canary(name string) string {
	return "canary" + strings.ReplaceAll(strings.ToLower(name), "_", "") + "0123456789abcdef0123456789"
}

// hexCanary is one that passes for a key.
func hexCanary(digit string) string { return strings.Repeat("c0ffee"+digit+"1", 8) }

// secrets gives every secret of the settings a value, and says which parts of it must be seen nowhere. A secret that
// it does not know gets a plain canary: one that needs another form belongs into the switch.
func secrets(t *testing.T, database string) (env map[string]string, canaries map[string]string) {
	t.Helper()
	env, canaries = map[string]string{}, map[string]string{}
	c := DefaultConfig()
	for _, s := range c.settings() {
		if !s.secret {
			continue
		}
		name := s.env[0]
		plain := canary(name)
		env[name], canaries[name] = plain, plain
		switch name {
		case "POSTHORN_TOKENS":
			env[name] = "admin:chief:" + plain + "a,read-only:reader:" + plain + "r"
		case "JWT_PUBLIC_KEY":
			public, _, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			der, err := x509.MarshalPKIXPublicKey(public)
			if err != nil {
				t.Fatal(err)
			}
			env[name] = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
			canaries[name] = strings.Split(env[name], "\n")[1]
		case "JWT_JWKS_URL":
			env[name] = "http://somebody:" + plain + "@127.0.0.1:1/keys?key=" + plain
		case "DATABASE_URL":
			env[name] = withPassword(t, database, plain)
		case "QUEEN_ENCRYPTION_KEY":
			env[name], canaries[name] = hexCanary("5"), hexCanary("5")
		case "QUEEN_ENCRYPTION_KEYS":
			canaries[name] = hexCanary("6")
			env[name] = "k2:" + canaries[name]
		case "POSTHORN_OTEL_ENDPOINT":
			env[name] = "http://somebody:" + plain + "@127.0.0.1:1/" + plain + "/v1/traces"
		case "POSTHORN_EGRESS_PROXY":
			env[name] = "http://somebody:" + plain + "@127.0.0.1:1"
		}
	}
	return env, canaries
}

// mayTell says whether an answer may hold a secret: the signing keys are there to be asked for by administrators.
func mayTell(op *openapi.Operation, name string) bool {
	return strings.Contains(op.Path, "/keys") && strings.HasSuffix(name, "_SIGNING_KEY")
}

// TestCanaries runs a broker whose every secret is known, at the level that logs most, drives every operation into
// success and failure, and looks for the secrets in all that comes out of it.
func TestCanaries(t *testing.T) {
	t.Parallel()
	server := pgtest.StartServer(t, nil)
	database := server.URL()
	values, canaries := secrets(t, database)
	if len(canaries) < 8 {
		t.Fatalf("only %d secrets", len(canaries))
	}
	values["JWT_ENABLED"] = "true"
	values["LOG_LEVEL"] = "debug"
	var env []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		env = append(env, name+"="+values[name])
	}
	c := serve(t, env, "serve", "--listen=127.0.0.1:0", "--spool="+openDir(t))

	shown := map[string]string{} // what was shown, by where
	find := func(where, text string, except func(name string) bool) {
		t.Helper()
		shown[where] = text
		for name, secret := range canaries {
			if strings.Contains(strings.ToLower(text), strings.ToLower(secret)) && !except(name) {
				t.Errorf("%s shows %s:\n%.2000s", where, name, text)
			}
		}
	}
	never := func(string) bool { return false }

	for _, command := range [][]string{{"config"}, {"help"}, {"version"}, {"serve", "--no-such-flag"}} {
		var out bytes.Buffer
		Program{Args: command, Getenv: func(name string) string { return values[name] }, Stdout: &out, Stderr: &out}.Main()
		find("posthorn "+command[0], out.String(), never)
	}

	statuses := map[int]int{}
	ask := func(op *openapi.Operation, target, authorization, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), op.Method, c.url+target, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", op.ID, err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatalf("%s: %v", op.ID, err)
		}
		statuses[res.StatusCode]++
		find(fmt.Sprintf("%s (%d)", op.ID, res.StatusCode), fmt.Sprintf("%v %s", res.Header, text), func(name string) bool { return mayTell(op, name) })
	}
	spec, err := openapi.Load()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"role": "admin", "sub": "signer"}).SignedString([]byte(values["JWT_SECRET"]))
	if err != nil {
		t.Fatal(err)
	}
	unknownKey := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{"role": "admin"})
	unknownKey.Header["kid"] = "nobody"
	foreign, err := unknownKey.SignedString([]byte("another"))
	if err != nil {
		t.Fatal(err)
	}
	admin, reader := canary("POSTHORN_TOKENS")+"a", canary("POSTHORN_TOKENS")+"r"
	canaries["a bad token"], canaries["a signed token"], canaries["a forged token"] = canary("bad_token"), signed, foreign
	all := []string{
		"", "Bearer " + admin, reader, "Bearer " + signed, "Bearer " + foreign, "Bearer " + canary("bad_token"), "Basic " + canary("bad_token"),
	}
	drive := func(authorizations ...string) {
		t.Helper()
		for _, op := range spec.Operations() {
			path := op.Path
			for strings.Contains(path, "{") {
				before, rest, _ := strings.Cut(path, "{")
				name, after, _ := strings.Cut(rest, "}")
				value := "x"
				if name == "destination" {
					value = "http://127.0.0.1:1/x" // refused: nothing is sent anywhere
				}
				path = before + value + after
			}
			bodies := []string{"{"}
			if strings.HasPrefix(op.Profile, "queue-") { // the examples of others name hosts of the Internet
				bodies = append(bodies, string(op.RequestExample()))
			}
			for _, body := range bodies {
				for _, authorization := range authorizations {
					ask(op, path, authorization, body)
				}
				ask(op, path+"?qstash_token="+admin+"&batch=many&limit=many", "", body)
				ask(op, path+"?qstash_token="+canary("bad_token"), "", body)
			}
		}
	}
	drive(all...)
	pgtest.KillBackends(t, database)
	drive(all...)
	if err := server.Crash(t.Context()); err != nil {
		t.Fatal(err)
	}
	drive(admin)
	malformed(t, c, "GET /v1/x?qstash_token="+admin+"%zz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+admin+"\r\nno header\r\n\r\n")
	malformed(t, c, "GET /v1/"+admin+" HTTP/9.9\r\n\r\n")
	malformed(t, c, admin+"\r\n\r\n")

	c.signal()
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	log := c.stderr.String()
	find("the log", log, never)
	for _, want := range []string{`"level":"DEBUG"`, `"level":"INFO"`, `"audit"`, `"refused"`, "JWT_JWKS_URL"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %s", want)
		}
	}
	for _, status := range []int{200, 201, 400, 401, 403, 404, 503} {
		if statuses[status] == 0 {
			t.Errorf("nothing was answered %d: %v", status, statuses)
		}
	}
	if len(shown) < 30 {
		t.Errorf("only %d kinds of answers were seen", len(shown))
	}
}

// malformed sends what is no request, and takes whatever is answered.
func malformed(t *testing.T, c *child, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn)
}

// TestRefusedSecretsAreNotQuoted gives each secret a value that cannot be used, or can, and reads what is said.
func TestRefusedSecretsAreNotQuoted(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	for _, s := range c.settings() {
		if !s.secret {
			continue
		}
		for _, value := range []string{
			canary("x"), "admin:" + canary("x") + " ", canary("x") + ":admin", "postgres://u:" + canary("x") + "@h:port/d", "http://u:" + canary("x") + "@h:port/",
			"k1:" + canary("x"), "%zz" + canary("x"), url.QueryEscape("://" + canary("x")),
		} {
			var out bytes.Buffer
			env := environment(s.env[0], value, "JWT_ENABLED", "true", "QUEEN_ENCRYPTION_STRICT", "true")
			Program{Args: []string{"config"}, Getenv: env, Stdout: &out, Stderr: &out}.Main()
			if strings.Contains(out.String(), canary("x")) {
				t.Errorf("%s=%s:\n%s", s.env[0], value, &out)
			}
		}
	}
}
