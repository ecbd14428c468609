package reference

import (
	"net/http"
	"regexp"
	"strings"
)

var traceParent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// traceParentOf is the traceparent of a push, "" when there is none or it is malformed.
func (b *Broker) traceParentOf(r *http.Request) (string, error) {
	given := r.Header.Get("Traceparent")
	valid := traceParent.MatchString(given) && !strings.HasPrefix(given, "ff") &&
		given[3:35] != strings.Repeat("0", 32) && given[36:52] != strings.Repeat("0", 16)
	switch {
	case given == "" || b.has(TraceParentDropped):
		return "", nil
	case valid || b.has(TraceParentUnchecked) && len(given) >= 55:
		return given, nil
	case b.has(TraceParentRefused):
		return "", badRequest("bad header: traceparent is malformed")
	default:
		return "", nil
	}
}
