package api

import (
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/posthorn/posthorn/broker/internal/auth"
	"github.com/posthorn/posthorn/openapi"
)

// tokenParameter is the query parameter that may hold the token of a publish route, for senders that cannot set a
// header (publish contract, section 0).
const tokenParameter = "qstash_token"

// unknownAccess is the level of a path that no route matches (queue contract, section 0).
const unknownAccess = "read-write"

// authorize says whether a request may be carried out, before anything of its body is read. It keeps who asks in the
// exchange. Without an Authenticator everybody may do everything, and nobody is known.
func (e *edge) authorize(r *http.Request, ex *exchange, access string) error {
	token, publish := "", isPublish(r.URL.Path)
	if publish {
		token, r.URL.RawQuery = cutParameter(r.URL.RawQuery, tokenParameter)
	}
	if e.cfg.Auth == nil || access == auth.Public || e.cfg.Auth.Skips(r.URL.EscapedPath()) {
		return nil
	}
	if _, given := r.Header["Authorization"]; given || token == "" {
		token = auth.Token(r.Header)
	}
	caller, err := e.cfg.Auth.Authenticate(r.Context(), strings.TrimSpace(token))
	if err != nil {
		ex.refused = err
		if publish {
			return errPublishToken
		}
		return err
	}
	ex.caller = caller
	if !caller.Roles.Pass(access) {
		return errForbidden
	}
	return nil
}

// requires refuses a caller who may use the route but not do what this request asks of it.
func (c *call) requires(access string) error {
	if c.ex.caller != nil && !c.ex.caller.Roles.Pass(access) {
		return errForbidden
	}
	return nil
}

// unmatchedAccess is the level of a request that no route matches: the files of the page are as public as the page.
func unmatchedAccess(r *http.Request) string {
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	if get && (strings.HasPrefix(r.URL.Path, "/assets/") || strings.HasPrefix(r.URL.Path, "/favicon")) {
		return auth.Public
	}
	return unknownAccess
}

// isPublish says whether a path belongs to the publish half.
func isPublish(path string) bool {
	return len(path) >= 4 && (strings.EqualFold(path[:4], "/v1/") || strings.EqualFold(path[:4], "/v2/"))
}

// cutParameter takes all parameters of a name out of a raw query and returns the first value. The rest keeps its
// bytes: it may be the query of a destination.
func cutParameter(query, name string) (value, rest string) {
	if !strings.Contains(query, name) {
		return "", query
	}
	var kept []string
	found := false
	for part := range strings.SplitSeq(query, "&") {
		key, raw, _ := strings.Cut(part, "=")
		if decoded, err := url.QueryUnescape(key); err != nil || decoded != name {
			kept = append(kept, part)
			continue
		}
		if !found {
			found = true
			value, _ = url.QueryUnescape(raw) // what cannot be decoded is no token
		}
	}
	return value, strings.Join(kept, "&")
}

// producerSub is the subject that is stored with what the call pushes; "" when nobody is known.
func (c *call) producerSub() string {
	if c.ex.caller == nil {
		return ""
	}
	return c.ex.caller.Subject
}

// audited says whether an operation is an administrative action.
func audited(op *openapi.Operation) bool {
	return op.Access == "admin" && op.Method != http.MethodGet
}

// audit writes the line of an administrative action: who asked for what, and what became of it. Names in the path are
// part of what; bodies and tokens are not.
func (e *edge) audit(r *http.Request, ex *exchange) {
	who := "anybody"
	switch {
	case ex.caller != nil:
		who = ex.caller.Name
	case e.cfg.Auth != nil:
		who = "unknown"
	case r.TLS != nil && len(r.TLS.PeerCertificates) > 0:
		who = "certificate " + r.TLS.PeerCertificates[0].Subject.String()
	}
	target := make([]any, 0, len(ex.target))
	for name, value := range ex.target {
		target = append(target, slog.String(name, value))
	}
	e.log.LogAttrs(r.Context(), slog.LevelInfo, "audit",
		slog.String("request_id", ex.id),
		slog.String("who", who),
		slog.String("operation", ex.operation()),
		slog.Group("target", target...),
		slog.Int("status", ex.status),
		slog.String("remote", r.RemoteAddr),
	)
}
