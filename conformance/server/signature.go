package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/posthorn/posthorn/conformance/suite"
)

// verified says what a receiver would find wrong with the Upstash-Signature of a delivery to a URL; "" means nothing. The times of
// a signature are those of the real clock.
func verified(d suite.Delivery, url, key string) string {
	parts := strings.Split(d.Header.Get("Upstash-Signature"), ".")
	if len(parts) != 3 {
		return fmt.Sprintf("it is no token: %q", d.Header.Get("Upstash-Signature"))
	}
	var header struct{ Alg string }
	var claims struct {
		Iss, Sub, Body string
		Nbf, Exp       int64
	}
	for part, into := range map[string]any{parts[0]: &header, parts[1]: &claims} {
		text, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || json.Unmarshal(text, into) != nil {
			return "a part of it cannot be read: " + part
		}
	}
	sum := sha256.Sum256(d.Body)
	now := time.Now().Unix()
	const skew = 60
	switch {
	case header.Alg != "HS256":
		return "its algorithm is " + header.Alg
	case !madeWith(d, key):
		return "it was not made with the key"
	case claims.Iss != "Upstash":
		return "its issuer is " + claims.Iss
	case claims.Sub != url:
		return "it is for " + claims.Sub
	case claims.Exp < now-skew || claims.Nbf > now+skew:
		return fmt.Sprintf("it holds from %d to %d, and now is %d", claims.Nbf, claims.Exp, now)
	case strings.TrimRight(claims.Body, "=") != base64.RawURLEncoding.EncodeToString(sum[:]):
		return "it is about another body"
	}
	return ""
}

// madeWith says whether the Upstash-Signature of a delivery was made with a key, whatever it says.
func madeWith(d suite.Delivery, key string) bool {
	signature := d.Header.Get("Upstash-Signature")
	end := max(0, strings.LastIndexByte(signature, '.'))
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(signature[:end]))
	return signature[end:] == "."+base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
