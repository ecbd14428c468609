package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// tlsCheckEvery is how often the files of a listener are looked at, when connections come.
const tlsCheckEvery = time.Second

// tlsFiles serves a certificate from files, and what replaces it there without a restart. The files are looked at
// when a connection comes, so that nothing runs in the background. Files that cannot be used leave the last good ones
// in place.
type tlsFiles struct {
	cert, key, clientCA string // paths; clientCA "" means that clients show no certificate
	log                 *slog.Logger
	now                 func() time.Time // time.Now but in tests

	mu      sync.Mutex // guards what follows
	checked time.Time
	stamp   string // of the files that were tried last
	current *tls.Config
}

// newTLSFiles reads the files, which must be usable.
func newTLSFiles(cfg Config, log *slog.Logger) (*tlsFiles, error) {
	f := &tlsFiles{cert: cfg.TLSCert, key: cfg.TLSKey, clientCA: cfg.TLSClientCA, log: log, now: time.Now}
	f.stamp, f.checked = f.stat(), f.now()
	var err error
	if f.current, err = f.load(); err != nil {
		return nil, err
	}
	return f, nil
}

// config is that of a server whose connections each take the files of the moment.
func (f *tlsFiles) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) { return f.currentFor(hello.Context()), nil },
	}
}

// currentFor is the configuration of one connection, from the files of the moment.
func (f *tlsFiles) currentFor(ctx context.Context) *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.now(); now.Sub(f.checked) >= tlsCheckEvery {
		f.checked = now
		if stamp := f.stat(); stamp != f.stamp {
			f.stamp = stamp
			f.reload(ctx)
		}
	}
	return f.current
}

func (f *tlsFiles) reload(ctx context.Context) {
	loaded, err := f.load()
	if err != nil {
		f.log.ErrorContext(ctx, "the new TLS files cannot be used; those read before stay in use", "error", err)
		return
	}
	f.current = loaded
	f.log.InfoContext(ctx, "the TLS files were read anew", "certificate", f.cert)
}

// stat is what changes when a file is replaced.
func (f *tlsFiles) stat() string {
	var stamp strings.Builder
	for _, path := range []string{f.cert, f.key, f.clientCA} {
		if path == "" {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			stamp.WriteString("missing;")
			continue
		}
		_, _ = fmt.Fprintf(&stamp, "%d %d;", info.ModTime().UnixNano(), info.Size())
	}
	return stamp.String()
}

// load reads the files. A fresh tls.Config has fresh ticket keys, so that no session outlives a change of them.
func (f *tlsFiles) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("POSTHORN_TLS_CERT, POSTHORN_TLS_KEY: %w", err)
	}
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if f.clientCA == "" {
		return cfg, nil
	}
	text, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("POSTHORN_TLS_CLIENT_CA: %w", err)
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(text) {
		return nil, errors.New("POSTHORN_TLS_CLIENT_CA: there is no certificate in it")
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	return cfg, nil
}
