package posthorn

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The reasons why a [Receiver] turns a delivery away. Test for them with [errors.Is].
var (
	// ErrNoSignature says that the request carries no signature at all.
	ErrNoSignature = errors.New("posthorn: the request is not signed")
	// ErrInvalidSignature says that a signature is malformed, was made with another key, or is of something
	// else: another body, another URL, another time.
	ErrInvalidSignature = errors.New("posthorn: the signature is not valid")
	// ErrBodyTooLarge says that the body is longer than ReceiverOptions.MaxBodyBytes.
	ErrBodyTooLarge = errors.New("posthorn: the body is too large")
)

// ReceiverOptions configure a [Receiver]. The zero value of each field but the keys means its default.
type ReceiverOptions struct {
	// CurrentSigningKey and NextSigningKey are the broker's keys, as its keys operation shows them. A delivery
	// that either has signed is accepted, so that a rotation breaks nothing. At least the first is required.
	CurrentSigningKey string
	NextSigningKey    string

	// URL returns the address that the request was sent to, as the publisher wrote it, which the signature
	// must name. Default: it is not compared, since behind a proxy a server does not know its own address.
	// Without it, a delivery to one of your endpoints can be replayed to another one with the same keys.
	URL func(*http.Request) string

	// Tolerance is how far the clocks of the broker and of this machine may be apart. Default: one minute.
	Tolerance time.Duration

	// MaxBodyBytes bounds the body that [Receiver.VerifyRequest] reads. Default: 16 MiB.
	MaxBodyBytes int64
}

// Receiver verifies that deliveries come from the broker. It understands the Upstash-Signature header and the
// three headers of Standard Webhooks. It is safe for concurrent use.
type Receiver struct {
	keys      [][]byte
	url       func(*http.Request) string
	tolerance time.Duration
	maxBody   int64
	now       func() time.Time
}

// NewReceiver returns a receiver.
func NewReceiver(opts ReceiverOptions) (*Receiver, error) {
	if opts.CurrentSigningKey == "" {
		return nil, errors.New("posthorn: ReceiverOptions.CurrentSigningKey is empty")
	}
	if opts.Tolerance <= 0 {
		opts.Tolerance = time.Minute
	}
	if opts.MaxBodyBytes <= 0 {
		opts.MaxBodyBytes = 16 << 20
	}
	r := &Receiver{
		keys: [][]byte{[]byte(opts.CurrentSigningKey)}, url: opts.URL,
		tolerance: opts.Tolerance, maxBody: opts.MaxBodyBytes, now: time.Now,
	}
	if opts.NextSigningKey != "" {
		r.keys = append(r.keys, []byte(opts.NextSigningKey))
	}
	return r, nil
}

// Delivery is what the headers of a verified delivery say about it. The signatures cover URL (of the
// Upstash-Signature) and MessageID (of Standard Webhooks); the others are as trustworthy as the connection.
type Delivery struct {
	MessageID  string // the same on every retry: handle each once
	Retried    int    // how often it was tried before
	ScheduleID string // "" unless a schedule sent it
	URL        string // "" unless an Upstash-Signature names it
}

// Middleware verifies each request before next sees it. A request that does not verify is answered 401, one
// with too large a body 413. next reads the body as usual, and finds the [Delivery] with [DeliveryFrom].
func (r *Receiver) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		delivery, body, err := r.VerifyRequest(req)
		switch {
		case errors.Is(err, ErrBodyTooLarge):
			http.Error(w, http.StatusText(http.StatusRequestEntityTooLarge), http.StatusRequestEntityTooLarge)
			return
		case errors.Is(err, ErrNoSignature), errors.Is(err, ErrInvalidSignature):
			http.Error(w, http.StatusText(http.StatusUnauthorized), http.StatusUnauthorized)
			return
		case err != nil: // the body could not be read
			http.Error(w, http.StatusText(http.StatusBadRequest), http.StatusBadRequest)
			return
		}
		req = req.WithContext(context.WithValue(req.Context(), deliveryKey{}, delivery))
		req.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, req)
	})
}

type deliveryKey struct{}

// DeliveryFrom returns the delivery of a request that went through [Receiver.Middleware].
func DeliveryFrom(ctx context.Context) (Delivery, bool) {
	d, ok := ctx.Value(deliveryKey{}).(Delivery)
	return d, ok
}

// VerifyRequest reads the body of a request and verifies each signature that the request carries; at least one
// must be there. The error wraps [ErrNoSignature], [ErrInvalidSignature] or [ErrBodyTooLarge], or is that of
// reading the body.
func (r *Receiver) VerifyRequest(req *http.Request) (Delivery, []byte, error) {
	body, err := io.ReadAll(io.LimitReader(req.Body, r.maxBody+1))
	if err != nil {
		return Delivery{}, nil, fmt.Errorf("posthorn: read the body: %w", err)
	}
	if int64(len(body)) > r.maxBody {
		return Delivery{}, nil, ErrBodyTooLarge
	}
	token, webhook := req.Header.Get("Upstash-Signature"), req.Header.Get("Webhook-Signature")
	if token == "" && webhook == "" {
		return Delivery{}, nil, ErrNoSignature
	}
	d := Delivery{MessageID: req.Header.Get("Upstash-Message-Id"), ScheduleID: req.Header.Get("Upstash-Schedule-Id")}
	d.Retried, _ = strconv.Atoi(req.Header.Get("Upstash-Retried"))
	if webhook != "" {
		id := req.Header.Get("Webhook-Id")
		if err := r.VerifyWebhook(id, req.Header.Get("Webhook-Timestamp"), webhook, body); err != nil {
			return Delivery{}, nil, err
		}
		d.MessageID = id
	}
	if token != "" {
		url := ""
		if r.url != nil {
			url = r.url(req)
		}
		if d.URL, err = r.VerifySignature(token, url, body); err != nil {
			return Delivery{}, nil, err
		}
	}
	return d, body, nil
}

// VerifySignature verifies an Upstash-Signature of a body and returns the URL that it names, which must be url
// unless url is "".
func (r *Receiver) VerifySignature(token, url string, body []byte) (string, error) {
	signed, signature, ok := cutLast(token, ".")
	head, payload, two := strings.Cut(signed, ".")
	if !ok || !two || strings.Contains(payload, ".") {
		return "", invalid("it is no JSON Web Token")
	}
	mac, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		return "", invalid("it is no JSON Web Token")
	}
	if !r.signedWith([]byte(signed), mac) {
		return "", invalid("no signing key matches")
	}
	var header struct {
		Alg string `json:"alg"`
	}
	if err := decodePart(head, &header); err != nil || header.Alg != "HS256" {
		return "", invalid("the algorithm is not HS256")
	}
	var claims struct {
		Issuer    string  `json:"iss"`
		Subject   string  `json:"sub"`
		Expires   float64 `json:"exp"`
		NotBefore float64 `json:"nbf"`
		Body      string  `json:"body"`
	}
	if err := decodePart(payload, &claims); err != nil {
		return "", invalid("the claims are malformed")
	}
	now, hash := float64(r.now().Unix()), sha256.Sum256(body)
	switch {
	case claims.Issuer != "Upstash":
		return "", invalid("the issuer is another")
	case now > claims.Expires+r.tolerance.Seconds():
		return "", invalid("it has expired")
	case now < claims.NotBefore-r.tolerance.Seconds():
		return "", invalid("its time has not come")
	case url != "" && claims.Subject != url:
		return "", invalid("it is for another URL")
	case strings.TrimRight(claims.Body, "=") != base64.RawURLEncoding.EncodeToString(hash[:]):
		return "", invalid("it is for another body")
	}
	return claims.Subject, nil
}

// webhookLifetime is how old a Standard Webhooks signature may be.
const webhookLifetime = 300 * time.Second

// VerifyWebhook verifies the values of the headers webhook-id, webhook-timestamp and webhook-signature of a body.
func (r *Receiver) VerifyWebhook(id, timestamp, signatures string, body []byte) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil || id == "" {
		return invalid("webhook-id or webhook-timestamp is malformed")
	}
	if age := r.now().Sub(time.Unix(seconds, 0)); age > webhookLifetime+r.tolerance || age < -r.tolerance {
		return invalid("it was made at another time")
	}
	content := append([]byte(id+"."+timestamp+"."), body...)
	for signature := range strings.FieldsSeq(signatures) {
		version, text, _ := strings.Cut(signature, ",")
		mac, err := base64.StdEncoding.DecodeString(text)
		if version == "v1" && err == nil && r.signedWith(content, mac) {
			return nil
		}
	}
	return invalid("no signing key matches")
}

func (r *Receiver) signedWith(content, mac []byte) bool {
	valid := false
	for _, key := range r.keys {
		h := hmac.New(sha256.New, key)
		h.Write(content)
		if hmac.Equal(h.Sum(nil), mac) {
			valid = true
		}
	}
	return valid
}

func invalid(why string) error { return fmt.Errorf("%w: %s", ErrInvalidSignature, why) }

func decodePart(part string, into any) error {
	raw, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
