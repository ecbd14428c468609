package sign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func TestNewKey(t *testing.T) {
	t.Parallel()
	a, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewKey()
	if err != nil || a == b || !strings.HasPrefix(a, "sig_") || len(a) != len("sig_")+43 {
		t.Errorf("keys %s and %s, %v", a, b, err)
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	body := []byte(`{"n":1}`)
	h := http.Header{}
	if err := Headers(h, "sig_key", Delivery{"msg_1", "https://example.com/a//b?x=1", body, now}); err != nil {
		t.Fatal(err)
	}
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(h.Get("Upstash-Signature"), claims, func(*jwt.Token) (any, error) { return []byte("sig_key"), nil },
		jwt.WithValidMethods([]string{"HS256"}), jwt.WithIssuer("Upstash"), jwt.WithSubject("https://example.com/a//b?x=1"),
		jwt.WithIssuedAt(), jwt.WithExpirationRequired())
	if err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(body)
	for name, want := range map[string]any{
		"iat": float64(now.Unix()), "exp": float64(now.Unix() + 300), "nbf": 0.0, "body": base64.URLEncoding.EncodeToString(hash[:]),
	} {
		if claims[name] != want {
			t.Errorf("claim %s is %v, want %v", name, claims[name], want)
		}
	}
	if id, _ := claims["jti"].(string); !strings.HasPrefix(id, "jwt_") {
		t.Errorf("claim jti is %v", claims["jti"])
	}
	mac := hmac.New(sha256.New, []byte("sig_key"))
	mac.Write([]byte("msg_1." + h.Get("webhook-timestamp") + "." + string(body)))
	if got, want := h.Get("webhook-signature"), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)); got != want || h.Get("webhook-id") != "msg_1" {
		t.Errorf("signature %s, want %s", got, want)
	}
}

func BenchmarkHeaders(b *testing.B) {
	d := Delivery{"msg_1", "https://example.com/", make([]byte, 1000), time.Now()}
	for b.Loop() {
		if err := Headers(http.Header{}, "sig_key", d); err != nil {
			b.Fatal(err)
		}
	}
}
