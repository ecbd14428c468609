package posthorn

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

// mac signs as the broker's description says, apart from the code under test.
func mac(key, content string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(content))
	return h.Sum(nil)
}

// token builds an Upstash-Signature; change edits its header and claims first.
func token(t *testing.T, key string, body []byte, at time.Time, change func(header, claims map[string]any)) string {
	t.Helper()
	hash := sha256.Sum256(body)
	header := map[string]any{"alg": "HS256", "typ": "JWT"}
	claims := map[string]any{
		"iss": "Upstash", "sub": "https://example.com/hook", "iat": at.Unix(), "nbf": 0, "exp": at.Unix() + 300,
		"jti": "jwt_1", "body": base64.URLEncoding.EncodeToString(hash[:]),
	}
	if change != nil {
		change(header, claims)
	}
	var parts []string
	for _, part := range []any{header, claims} {
		raw, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, base64.RawURLEncoding.EncodeToString(raw))
	}
	signed := strings.Join(parts, ".")
	return signed + "." + base64.RawURLEncoding.EncodeToString(mac(key, signed))
}

func newReceiver(t *testing.T, opts ReceiverOptions) *Receiver {
	t.Helper()
	if opts.CurrentSigningKey == "" {
		opts.CurrentSigningKey, opts.NextSigningKey = "sig_current", "sig_next"
	}
	r, err := NewReceiver(opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReceiverVerifiesTokens(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, ReceiverOptions{})
	body, now := []byte("hello"), time.Now()
	for _, key := range []string{"sig_current", "sig_next"} {
		url, err := r.VerifySignature(token(t, key, body, now, nil), "https://example.com/hook", body)
		if err != nil || url != "https://example.com/hook" {
			t.Errorf("%s: %q, %v", key, url, err)
		}
	}
	unpadded := token(t, "sig_current", body, now, func(_, claims map[string]any) {
		claims["body"] = strings.TrimRight(claims["body"].(string), "=")
	})
	if _, err := r.VerifySignature(unpadded, "", body); err != nil {
		t.Errorf("without padding: %v", err)
	}
	good := token(t, "sig_current", body, now, nil)
	for name, bad := range map[string]struct{ token, url, body string }{
		"another key":     {token(t, "sig_other", body, now, nil), "", "hello"},
		"another body":    {good, "", "hullo"},
		"another url":     {good, "https://example.com/other", "hello"},
		"expired":         {token(t, "sig_current", body, now.Add(-10*time.Minute), nil), "", "hello"},
		"from the future": {token(t, "sig_current", body, now, func(_, c map[string]any) { c["nbf"] = now.Unix() + 600 }), "", "hello"},
		"another issuer":  {token(t, "sig_current", body, now, func(_, c map[string]any) { c["iss"] = "Mallory" }), "", "hello"},
		"no expiry":       {token(t, "sig_current", body, now, func(_, c map[string]any) { delete(c, "exp") }), "", "hello"},
		"no body hash":    {token(t, "sig_current", body, now, func(_, c map[string]any) { delete(c, "body") }), "", "hello"},
		"algorithm none":  {token(t, "sig_current", body, now, func(h, _ map[string]any) { h["alg"] = "none" }), "", "hello"},
		"no signature":    {good[:strings.LastIndex(good, ".")+1], "", "hello"},
		"two parts":       {good[:strings.LastIndex(good, ".")], "", "hello"},
		"four parts":      {good + ".x", "", "hello"},
		"not base64":      {good + "!", "", "hello"},
		"changed claims":  {strings.Replace(good, ".e", ".f", 1), "", "hello"},
		"nothing":         {"", "", "hello"},
		"claims not JSON": {func() string {
			s := base64.RawURLEncoding.EncodeToString([]byte("{}")) + ".eA"
			return s + "." + base64.RawURLEncoding.EncodeToString(mac("sig_current", s))
		}(), "", "hello"},
		"1 MiB of nothing": {strings.Repeat("a", 1<<20), "", "hello"},
	} {
		if _, err := r.VerifySignature(bad.token, bad.url, []byte(bad.body)); !errors.Is(err, ErrInvalidSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.now = func() time.Time { return now.Add(300*time.Second + 59*time.Second) }
	if _, err := r.VerifySignature(good, "", body); err != nil {
		t.Errorf("within the tolerance: %v", err)
	}
	r.now = func() time.Time { return now.Add(300*time.Second + 62*time.Second) }
	if _, err := r.VerifySignature(good, "", body); err == nil {
		t.Error("beyond the tolerance a token is accepted")
	}
}

func TestReceiverVerifiesWebhooks(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, ReceiverOptions{})
	now := time.Now()
	stamp := func(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }
	sign := func(key, id, timestamp, body string) string {
		return "v1," + base64.StdEncoding.EncodeToString(mac(key, id+"."+timestamp+"."+body))
	}
	good := sign("sig_next", "msg_1", stamp(now), "hello")
	if err := r.VerifyWebhook("msg_1", stamp(now), "v1,bm8= v2,x "+good, []byte("hello")); err != nil {
		t.Error(err)
	}
	old, early := stamp(now.Add(-7*time.Minute)), stamp(now.Add(2*time.Minute))
	for name, bad := range map[string][4]string{
		"another id":      {"msg_2", stamp(now), good, "hello"},
		"another time":    {"msg_1", stamp(now.Add(time.Second)), good, "hello"},
		"another body":    {"msg_1", stamp(now), good, "hullo"},
		"another key":     {"msg_1", stamp(now), sign("x", "msg_1", stamp(now), "hello"), "hello"},
		"old":             {"msg_1", old, sign("sig_current", "msg_1", old, "hello"), "hello"},
		"early":           {"msg_1", early, sign("sig_current", "msg_1", early, "hello"), "hello"},
		"another version": {"msg_1", stamp(now), strings.Replace(good, "v1", "v2", 1), "hello"},
		"no time":         {"msg_1", "", good, "hello"},
		"no id":           {"", stamp(now), sign("sig_current", "", stamp(now), "hello"), "hello"},
		"not base64":      {"msg_1", stamp(now), "v1,!!", "hello"},
	} {
		if err := r.VerifyWebhook(bad[0], bad[1], bad[2], []byte(bad[3])); !errors.Is(err, ErrInvalidSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReceiverMiddleware(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, ReceiverOptions{MaxBodyBytes: 100, URL: func(*http.Request) string { return "https://example.com/hook" }})
	var got Delivery
	var gotBody string
	handler := r.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		got, _ = DeliveryFrom(req.Context())
		body, _ := io.ReadAll(req.Body)
		gotBody = string(body)
	}))
	send := func(body string, header map[string]string) int {
		got, gotBody = Delivery{}, ""
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		for name, value := range header {
			req.Header.Set(name, value)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, req)
		return w.Code
	}
	good := token(t, "sig_current", []byte("hello"), time.Now(), nil)
	status := send("hello", map[string]string{"Upstash-Signature": good, "Upstash-Message-Id": "msg_1", "Upstash-Retried": "2", "Upstash-Schedule-Id": "scd_1"})
	if want := (Delivery{"msg_1", 2, "scd_1", "https://example.com/hook"}); status != http.StatusOK || got != want || gotBody != "hello" {
		t.Errorf("answered %d, delivered %+v with %q", status, got, gotBody)
	}
	for name, test := range map[string]struct {
		body   string
		header map[string]string
		want   int
	}{
		"unsigned":         {"hello", nil, http.StatusUnauthorized},
		"another body":     {"hullo", map[string]string{"Upstash-Signature": good}, http.StatusUnauthorized},
		"one of two wrong": {"hello", map[string]string{"Upstash-Signature": good, "Webhook-Signature": "v1,x", "Webhook-Id": "a", "Webhook-Timestamp": "1"}, http.StatusUnauthorized},
		"too large":        {strings.Repeat("a", 101), map[string]string{"Upstash-Signature": good}, http.StatusRequestEntityTooLarge},
	} {
		if status := send(test.body, test.header); status != test.want || gotBody != "" {
			t.Errorf("%s: answered %d, the handler saw %q", name, status, gotBody)
		}
	}
	if _, ok := DeliveryFrom(t.Context()); ok {
		t.Error("there is a delivery without a request")
	}
}

func TestNewReceiverNeedsAKey(t *testing.T) {
	t.Parallel()
	if _, err := NewReceiver(ReceiverOptions{NextSigningKey: "sig_next"}); err == nil {
		t.Error("a receiver without a key is made")
	}
}

func FuzzVerifySignature(f *testing.F) {
	r, err := NewReceiver(ReceiverOptions{CurrentSigningKey: "sig_current"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("a.b.c", "body")
	f.Add("eyJhbGciOiJub25lIn0.e30.", "")
	f.Fuzz(func(t *testing.T, token, body string) {
		if _, err := r.VerifySignature(token, "", []byte(body)); !errors.Is(err, ErrInvalidSignature) {
			t.Errorf("%q is accepted: %v", token, err)
		}
	})
}
