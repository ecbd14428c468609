package queue

import (
	"encoding/hex"
)

// TraceContext is where a message comes from in a distributed trace: a W3C Trace Context of version 00, as its
// traceparent says it. The zero value means none.
type TraceContext struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   byte // bit 0: sampled
}

const (
	traceContextSize  = 16 + 8 + 1
	traceParentLength = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
)

// ParseTraceParent reads a traceparent. One that is malformed counts as absent, as the recommendation asks;
// of a later version what version 00 knows is taken.
func ParseTraceParent(s string) TraceContext {
	var c TraceContext
	if len(s) < traceParentLength || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return TraceContext{}
	}
	var version, flags [1]byte
	for _, part := range []struct {
		dst []byte
		src string
	}{{version[:], s[:2]}, {c.TraceID[:], s[3:35]}, {c.SpanID[:], s[36:52]}, {flags[:], s[53:55]}} {
		if !lowerHex(part.src) {
			return TraceContext{}
		}
		_, _ = hex.Decode(part.dst, []byte(part.src)) // cannot fail: it is hex
	}
	switch {
	case version[0] == 0xff,
		version[0] == 0 && len(s) != traceParentLength,
		len(s) > traceParentLength && s[traceParentLength] != '-',
		c.TraceID == [16]byte{}, c.SpanID == [8]byte{}:
		return TraceContext{}
	}
	c.Flags = flags[0]
	return c
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// IsZero reports whether there is no context.
func (c TraceContext) IsZero() bool { return c.TraceID == [16]byte{} }

// AppendTraceParent appends the context as a traceparent of version 00.
func (c TraceContext) AppendTraceParent(b []byte) []byte {
	b = append(b, "00-"...)
	b = hex.AppendEncode(b, c.TraceID[:])
	b = append(b, '-')
	b = hex.AppendEncode(b, c.SpanID[:])
	b = append(b, '-')
	return hex.AppendEncode(b, []byte{c.Flags})
}

func (c TraceContext) append(b []byte) []byte {
	b = append(b, c.TraceID[:]...)
	b = append(b, c.SpanID[:]...)
	return append(b, c.Flags)
}

// decodeTraceContext decodes traceContextSize bytes.
func decodeTraceContext(b []byte) TraceContext {
	return TraceContext{TraceID: [16]byte(b), SpanID: [8]byte(b[16:]), Flags: b[24]}
}
