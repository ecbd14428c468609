package request

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

const (
	forwardPrefix = "Upstash-Forward-"
	maxForwarded  = 64
	maxForwardedB = 16 << 10 // bytes of names and values
)

// notForwarded are headers of one connection or one message, which the client of each delivery writes itself.
var notForwarded = map[string]bool{
	"Connection": true, "Content-Length": true, "Host": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Transfer-Encoding": true, "Upgrade": true, "Upstash-Signature": true, "Http2-Settings": true, "Expect": true,
}

func canForward(name string) bool {
	return !notForwarded[name] && !strings.HasPrefix(name, "Proxy-")
}

// Forwarded returns the headers that a delivery carries on behalf of the publisher: those with the prefix
// Upstash-Forward-, without it. With Upstash-Header-Forward: true it is also every other header of the
// request that is not the broker's or the connection's own. prefix is that of the headers to take:
// "Upstash-Forward-", or a callback's, such as "Upstash-Callback-Forward-".
func Forwarded(h http.Header, prefix string) (http.Header, error) {
	out := http.Header{}
	size, count := 0, 0
	for name, values := range h {
		name = canonical(name)
		rest, found := strings.CutPrefix(name, prefix)
		if !found {
			continue
		}
		if !isHeaderName(rest) {
			return nil, refuse("%q is no name of a header", prefix+rest)
		}
		rest = canonical(rest)
		if !canForward(rest) {
			return nil, refuse("%s%s cannot be forwarded", prefix, rest)
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return nil, refuse("%s%s must not contain control characters", prefix, rest)
			}
			out[rest] = append(out[rest], v)
			size += len(rest) + len(v)
			count++
		}
	}
	if prefix == forwardPrefix {
		all, err := ParseBool("Upstash-Header-Forward", h.Get("Upstash-Header-Forward"))
		if err != nil {
			return nil, err
		}
		if all {
			for name, values := range h {
				name = canonical(name)
				if _, given := out[name]; given || !passes(name) || httpguts.HeaderValuesContainsToken(h["Connection"], name) {
					continue
				}
				for _, v := range values {
					out[name] = append(out[name], v)
					size += len(name) + len(v)
					count++
				}
			}
		}
	}
	if count > maxForwarded || size > maxForwardedB {
		return nil, refuse("at most %d headers of together %d bytes can be forwarded", maxForwarded, maxForwardedB)
	}
	return out, nil
}

// CheckHeader refuses header fields that HTTP could not have carried. Fields that came as JSON or in a query need it: what they
// hold is written into the heads of deliveries.
func CheckHeader(h http.Header) error {
	for name, values := range h {
		if !isHeaderName(name) {
			return refuse("%q is no name of a header", name)
		}
		if !slices.ContainsFunc(values, func(v string) bool { return !httpguts.ValidHeaderFieldValue(v) }) {
			continue
		}
		return refuse("%s must not contain control characters", name)
	}
	return nil
}

// passes reports whether a header that was not meant for forwarding is forwarded with all others.
func passes(name string) bool {
	return canForward(name) && !strings.HasPrefix(name, "Upstash-") &&
		name != "Authorization" && // the broker's own token
		name != "Content-Type" && // travels with the body
		name != "User-Agent" && name != "Accept-Encoding"
}

func isHeaderName(s string) bool { return httpguts.ValidHeaderFieldName(s) }

func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

// ContentHashV1 is the deduplication id of a message by its content, as version 1 defines it: of all
// Upstash-* headers, the body and the destination.
func ContentHashV1(h http.Header, body []byte, destination string) string {
	return contentHash(h, func(name string) bool { return strings.HasPrefix(name, "Upstash-") }, body, destination)
}

// ContentHashV2 is the same as version 2 defines it: of the destination, the body, the content type and what
// is forwarded.
func ContentHashV2(h http.Header, body []byte, destination string) string {
	return contentHash(h, func(name string) bool {
		return name == "Content-Type" || strings.HasPrefix(name, forwardPrefix)
	}, body, destination)
}

// contentHash writes each part behind its length, so that no two contents look alike when they are joined.
func contentHash(h http.Header, taken func(name string) bool, body []byte, destination string) string {
	hash := sha256.New()
	write := func(b []byte) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(b)))
		hash.Write(length[:])
		hash.Write(b)
	}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if !taken(canonical(name)) {
			continue
		}
		for _, v := range h[name] {
			write([]byte(canonical(name)))
			write([]byte(v))
		}
	}
	write(body)
	write([]byte(destination))
	return hex.EncodeToString(hash.Sum(nil))
}

// Merge returns h with what headers adds to it. A header that is in h stays as it is.
func Merge(h, headers http.Header) http.Header {
	if len(headers) == 0 {
		return h
	}
	out := maps.Clone(h)
	for name, values := range headers {
		if _, given := out[name]; !given {
			out[name] = values
		}
	}
	return out
}
