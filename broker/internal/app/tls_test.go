package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pgtest"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	last int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, cert: cert, key: key, last: 1}
}

// issue makes a certificate for this machine, in PEM with its key. Each has another serial number.
func (a *authority) issue(name string) (cert, key []byte) {
	a.t.Helper()
	return a.issueFor(name, net.IPv4(127, 0, 0, 1))
}

// issueFor is issue for other addresses.
func (a *authority) issueFor(name string, addresses ...net.IP) (cert, key []byte) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.last++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.last), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: addresses, DNSNames: []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// pair are the files of a certificate and its key.
type pair struct {
	t         *testing.T
	cert, key string
}

func (p pair) write(cert, key []byte) {
	p.t.Helper()
	for path, text := range map[string][]byte{p.cert: cert, p.key: key} {
		if text == nil {
			continue
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
}

func (a *authority) files() pair {
	a.t.Helper()
	dir := a.t.TempDir()
	p := pair{t: a.t, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	p.write(a.issue("localhost"))
	return p
}

// TestTLSFilesAreReadAnew replaces them in every order, with a clock of its own.
func TestTLSFilesAreReadAnew(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	files := a.files()
	var log bytes.Buffer
	f, err := newTLSFiles(Config{TLSCert: files.cert, TLSKey: files.key}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	var offset atomic.Int64
	began := time.Now()
	f.now = func() time.Time { return began.Add(time.Duration(offset.Load())) }
	f.checked = began
	serial := func() int64 {
		t.Helper()
		cert, err := x509.ParseCertificate(f.currentFor(t.Context()).Certificates[0].Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return cert.SerialNumber.Int64()
	}
	if got := serial(); got != 2 {
		t.Fatalf("serial %d", got)
	}
	cert, key := a.issue("localhost")
	files.write(cert, nil)
	if got := serial(); got != 2 || log.Len() != 0 {
		t.Errorf("looked at again within a second: serial %d, log %s", got, &log)
	}
	offset.Add(int64(time.Second))
	if got := serial(); got != 2 || !strings.Contains(log.String(), "cannot be used") {
		t.Errorf("a certificate without its key: serial %d, log %s", got, &log)
	}
	log.Reset()
	offset.Add(int64(time.Second))
	if serial(); log.Len() != 0 {
		t.Errorf("the same failure is logged again: %s", &log)
	}
	files.write(nil, key)
	offset.Add(int64(time.Second))
	if got := serial(); got != 3 {
		t.Errorf("both replaced: serial %d, log %s", got, &log)
	}
	if err := os.Remove(files.key); err != nil {
		t.Fatal(err)
	}
	offset.Add(int64(time.Second))
	if got := serial(); got != 3 {
		t.Errorf("a key that is gone: serial %d", got)
	}
	if strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("the log shows the key: %s", &log)
	}
}

func TestTLSFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	files := a.files()
	_, otherKey := a.issue("localhost")
	other := filepath.Join(t.TempDir(), "other.pem")
	if err := os.WriteFile(other, otherKey, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		cfg  Config
		want string
	}{
		{Config{TLSCert: files.cert, TLSKey: other}, "POSTHORN_TLS_CERT"},
		{Config{TLSCert: files.cert, TLSKey: files.cert + "x"}, "POSTHORN_TLS_CERT"},
		{Config{TLSCert: files.cert, TLSKey: files.key, TLSClientCA: files.cert + "x"}, "POSTHORN_TLS_CLIENT_CA"},
		{Config{TLSCert: files.cert, TLSKey: files.key, TLSClientCA: files.key}, "POSTHORN_TLS_CLIENT_CA"},
	} {
		if _, err := newTLSFiles(tc.cfg, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.cfg, err)
		}
	}
	for _, args := range [][]string{
		{"--tls-cert=c"}, {"--tls-key=k"}, {"--tls-client-ca=a"}, {"--listen=0.0.0.0:1", "--tls-cert=c", "--tls-key=k"},
	} {
		if _, _, err := load(args, environment()); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
	if _, _, err := load([]string{"--listen=0.0.0.0:1", "--tls-cert=c", "--tls-key=k", "--tls-client-ca=a"}, environment()); err != nil {
		t.Errorf("certificates of clients authenticate: %v", err)
	}
}

// answered is a whole answer.
type answered struct {
	status, major int // major is the version of HTTP
	header        http.Header
	body          string
}

// send sends one request with a client of the test.
func send(t *testing.T, client *http.Client, method, target, body string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	return answered{res.StatusCode, res.ProtoMajor, res.Header, string(text)}
}

func client(t *testing.T, cfg *tls.Config, protocols func(*http.Protocols)) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: cfg, Protocols: new(http.Protocols)}
	protocols(transport.Protocols)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func http1(p *http.Protocols) { p.SetHTTP1(true) }
func http2(p *http.Protocols) { p.SetHTTP2(true) }
func h2c(p *http.Protocols)   { p.SetUnencryptedHTTP2(true) }

// TestServeTLS pushes and pops over TLS with either version of HTTP, refuses old TLS, and takes a new certificate while
// it runs.
func TestServeTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	files := a.files()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t), "POSTHORN_TLS_CERT=" + files.cert, "POSTHORN_TLS_KEY=" + files.key}, "serve", "--listen=127.0.0.1:0")
	if !strings.HasPrefix(c.url, "https://") {
		t.Fatalf("listens on %s", c.url)
	}
	for version, protocols := range map[int]func(*http.Protocols){1: http1, 2: http2} {
		cl := client(t, &tls.Config{RootCAs: a.pool()}, protocols)
		res := send(t, cl, "POST", c.url+"/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`)
		if res.status != 201 || res.major != version {
			t.Errorf("HTTP/%d: %+v", version, res)
		}
	}
	old := &tls.Config{RootCAs: a.pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	if conn, err := tls.Dial("tcp", strings.TrimPrefix(c.url, "https://"), old); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	if res, err := http.Get("http://" + strings.TrimPrefix(c.url, "https://") + "/status"); err == nil {
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("without TLS: %d", res.StatusCode)
		}
	}
	files.write(a.issue("localhost"))
	c.waitFor("the new certificate", func() bool {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(c.url, "https://"), &tls.Config{RootCAs: a.pool()})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64() == 3
	})
	c.signal()
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
}

// TestClientCertificates are demanded, verified, and named in the audit log.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	a, stranger := newAuthority(t), newAuthority(t)
	files := a.files()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, a.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t)}, "serve", "--listen=127.0.0.1:0", "--tls-cert="+files.cert, "--tls-key="+files.key, "--tls-client-ca="+ca)
	with := func(from *authority) *tls.Config {
		cert, key := from.issue("carol")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{RootCAs: a.pool(), Certificates: []tls.Certificate{pair}}
	}
	for what, cfg := range map[string]*tls.Config{"none": {RootCAs: a.pool()}, "a stranger's": with(stranger)} {
		res, err := client(t, cfg, http1).Get(c.url + "/health")
		if err == nil {
			_ = res.Body.Close()
			t.Errorf("certificate: %s: %d", what, res.StatusCode)
		}
	}
	if res := send(t, client(t, with(a), http2), "DELETE", c.url+"/api/v1/resources/queues/q", ""); res.status != 200 {
		t.Errorf("%+v", res)
	}
	c.waitFor("the audit line", func() bool { return strings.Contains(c.stderr.String(), `"who":"certificate CN=carol"`) })
}

// TestH2C uses HTTP/2 without TLS for what depends on streams: large bodies, refusals, long polls and clients that leave.
func TestH2C(t *testing.T) {
	t.Parallel()
	c := serve(t, []string{"DATABASE_URL=" + pgtest.URL(t), "QUEEN_MAX_BODY_BYTES=4000000"}, "serve", "--listen=127.0.0.1:0")
	cl := client(t, nil, h2c)
	payload := strings.Repeat("x", 3_000_000)
	if res := send(t, cl, "POST", c.url+"/api/v1/push", `{"items":[{"queue":"q","payload":"`+payload+`"}]}`); res.status != 201 || res.major != 2 {
		t.Fatalf("%+v", res)
	}
	if res := send(t, cl, "GET", c.url+"/api/v1/pop/queue/q?autoAck=true", ""); !strings.Contains(res.body, payload) {
		t.Errorf("popped %d bytes", len(res.body))
	}
	if res := send(t, cl, "POST", c.url+"/api/v1/push", strings.Repeat(" ", 5_000_000)); res.status != 413 {
		t.Errorf("too large: %+v", res)
	}
	if res := send(t, cl, "GET", c.url+"/api/v1/pop/queue/q", ""); res.status != 204 || res.body != "" || res.header.Get("Content-Length") != "" {
		t.Errorf("nothing: %+v", res)
	}

	reused := make(chan bool, 1)
	traced := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused <- info.Reused }})
	for range 3 {
		req, err := http.NewRequestWithContext(traced, "POST", c.url+"/api/v1/push", strings.NewReader(strings.Repeat(" ", 5_000_000)))
		if err != nil {
			t.Fatal(err)
		}
		res, err := cl.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != 413 || !<-reused {
			t.Errorf("a refusal ends the connection of others: %d", res.StatusCode)
		}
	}

	parked := make(chan string)
	for i := range 100 {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s/api/v1/pop/queue/many?wait=true&timeout=50000&autoAck=true&consumerGroup=g%d", c.url, i), nil)
			if err != nil {
				parked <- err.Error()
				return
			}
			res, err := cl.Do(req)
			if err != nil {
				parked <- err.Error()
				return
			}
			_ = res.Body.Close()
			parked <- res.Status
		}()
	}
	c.inFlight(100)
	send(t, cl, "POST", c.url+"/api/v1/push", `{"items":[{"queue":"many","payload":1}]}`)
	for range 100 {
		if status := <-parked; status != "200 OK" {
			t.Errorf("a parked pop: %s", status)
		}
	}

	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		req, err := http.NewRequestWithContext(ctx, "GET", c.url+"/api/v1/pop/queue/gone?wait=true&timeout=600000", nil)
		if err != nil {
			t.Error(err)
			return
		}
		if res, err := cl.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	c.inFlight(1)
	leave()
	<-left
	c.inFlight(0)
	c.signal()
	if status := c.status(); status != 0 {
		t.Errorf("exit status %d:\n%s", status, c.stderr)
	}
}

// TestTLSToPostgreSQL verifies a server that speaks TLS only.
func TestTLSToPostgreSQL(t *testing.T) {
	t.Parallel()
	spare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(spare.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = spare.Close()
	server := pgtest.StartServer(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	a, stranger := newAuthority(t), newAuthority(t)
	cert, key := a.issue("localhost")
	admin := pgtest.Admin(t, server.URL())
	put := func(file, text string) {
		t.Helper()
		// As the server's own user, in its data directory.
		sql := fmt.Sprintf("COPY (SELECT unnest(string_to_array(%s, E'\\n'))) TO PROGRAM 'umask 077 && cat > %s'", literal(text), file)
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	put("server.crt", string(cert))
	put("server.key", string(key))
	put("pg_hba.conf", "local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n")
	for _, sql := range []string{"ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()", "CREATE ROLE app LOGIN PASSWORD 'canary-password'", "CREATE DATABASE app OWNER app"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	root, wrong := filepath.Join(dir, "root.pem"), filepath.Join(dir, "wrong.pem")
	for path, from := range map[string]*authority{root: a, wrong: stranger} {
		if err := os.WriteFile(path, from.pem(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	waitForTLS(t, port, root)

	base := []string{"PG_HOST=127.0.0.1", "PG_PORT=" + port, "PG_USER=app", "PG_DATABASE=app", "PG_PASSWORD=canary-password"}
	for what, env := range map[string][]string{
		"required":              {"PG_USE_SSL=true"},
		"verified":              {"POSTHORN_PG_SSLROOTCERT=" + root},
		"the authority only":    {"POSTHORN_PG_SSLROOTCERT=" + root, "POSTHORN_PG_SSLMODE=verify-ca", "PG_USE_SSL=yes"},
		"if the server has any": nil,
	} {
		c := serve(t, append(append([]string{}, base...), env...), "serve", "--listen=127.0.0.1:0")
		if status, text := c.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); status != 201 || !strings.Contains(text, `"queued"`) {
			t.Errorf("%s: %d %s", what, status, text)
		}
		var plain int
		if err := admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename = 'app' AND NOT s.ssl").Scan(&plain); err != nil || plain != 0 {
			t.Errorf("%s: %d connections without TLS, %v", what, plain, err)
		}
		c.signal()
		if status := c.status(); status != 0 || strings.Contains(c.stderr.String(), "canary-password") {
			t.Errorf("%s: exit status %d:\n%s", what, status, c.stderr)
		}
	}
	for what, tc := range map[string]struct {
		env  []string
		want string
	}{
		"another authority": {[]string{"POSTHORN_PG_SSLROOTCERT=" + wrong}, "certificate"},
		"no such file":      {[]string{"POSTHORN_PG_SSLROOTCERT=" + root + "x"}, "root.pemx"},
		"a contradiction":   {[]string{"PG_USE_SSL=true", "POSTHORN_PG_SSLMODE=disable"}, "contradicts"},
		"an unknown mode":   {[]string{"POSTHORN_PG_SSLMODE=sometimes"}, "must be one of disable"},
		"nothing verified":  {[]string{"POSTHORN_PG_SSLMODE=require", "POSTHORN_PG_SSLROOTCERT=" + root}, "verifies nothing"},
		"no TLS":            {[]string{"POSTHORN_PG_SSLMODE=disable"}, "pg_hba.conf"},
	} {
		c, _ := spawn(t, append(append([]string{}, base...), tc.env...), "serve", "--listen=127.0.0.1:0")
		c.waitFor(what, func() bool { return strings.Contains(c.stderr.String(), tc.want) })
		if strings.Contains(c.stderr.String(), "canary-password") {
			t.Errorf("%s: the log shows the password:\n%s", what, c.stderr)
		}
	}
}

// TestTLSNamesAreVerified refuses a server that shows the certificate of another, where that is asked for.
func TestTLSNamesAreVerified(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "root.pem")
	if err := os.WriteFile(root, a.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := a.issueFor("elsewhere.example")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	// What begins a connection of PostgreSQL with TLS, and nothing after it.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	finished := make(chan bool, 100)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 8)
			if _, err := io.ReadFull(conn, request); err == nil {
				_, _ = conn.Write([]byte("S"))
				finished <- tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{pair}}).Handshake() == nil
			}
			_ = conn.Close()
		}
	}()
	host, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]bool{"": false, "verify-full": false, "verify-ca": true} {
		c, _ := spawn(t, []string{"PG_HOST=" + host, "PG_PORT=" + port, "POSTHORN_PG_SSLROOTCERT=" + root, "POSTHORN_PG_SSLMODE=" + mode}, "serve", "--listen=127.0.0.1:0")
		if got := <-finished; got != want {
			t.Errorf("mode %q: the client takes the certificate: %v\n%s", mode, got, c.stderr)
		}
		c.signal()
		c.status()
		for len(finished) > 0 {
			<-finished
		}
	}
}

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// waitForTLS polls until the server has read its certificate.
func waitForTLS(t *testing.T, port, root string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		conn, err := pgx.Connect(t.Context(), "postgres://app:canary-password@127.0.0.1:"+port+"/app?sslmode=verify-full&sslrootcert="+root)
		if err == nil {
			_ = conn.Close(t.Context())
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
