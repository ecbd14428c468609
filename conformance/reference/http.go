package reference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const maxBody = 64 << 20

type route struct {
	method, path string
	handle       func(w http.ResponseWriter, r *http.Request, params map[string]string)
}

// changes says whether the route changes anything.
func (r route) changes() bool {
	return r.method != http.MethodGet || strings.HasPrefix(r.path, "/api/v1/pop")
}

// foreign says whether a browser sent the request on behalf of another origin.
func (b *Broker) foreign(r *http.Request) bool {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	switch {
	case b.has(ForeignAllowed):
		return false
	case b.has(OriginsRefused):
		return site != "" || origin != ""
	case site != "":
		return site != "same-origin" && site != "none"
	default:
		return origin != "" && origin != "http://"+r.Host
	}
}

// problem is a status and a text that end a request.
type problem struct {
	status int
	text   string
}

func (p *problem) Error() string { return p.text }

func badBody(format string, args ...any) error {
	return &problem{http.StatusBadRequest, "bad body: " + fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) error {
	return &problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func (b *Broker) table() []route {
	return []route{
		{"POST", "/api/v1/push", b.push},
		{"GET", "/api/v1/pop", b.popDiscovery},
		{"GET", "/api/v1/pop/queue/{queue}", b.popQueue},
		{"GET", "/api/v1/pop/queue/{queue}/partition/{partition}", b.popPartition},
		{"POST", "/api/v1/ack", b.ackOne},
		{"POST", "/api/v1/ack/batch", b.ackBatch},
		{"POST", "/api/v1/transaction", b.transaction},
		{"POST", "/streams/v1/queries", b.registerStream},
		{"POST", "/streams/v1/state/get", b.getStreamState},
		{"POST", "/streams/v1/cycle", b.cycleStream},
		{"POST", "/api/v1/lease/{leaseId}/extend", b.extend},
		{"POST", "/api/v1/configure", b.configure},
		{"GET", "/api/v1/resources/queues", b.listQueues},
		{"GET", "/api/v1/resources/queues/{queue}", b.getQueue},
		{"DELETE", "/api/v1/resources/queues/{queue}", b.deleteQueue},
		{"GET", "/api/v1/system/maintenance", b.getMaintenance},
		{"POST", "/api/v1/system/maintenance", b.setMaintenance},
		{"GET", "/api/v1/system/maintenance/pop", b.getPopMaintenance},
		{"POST", "/api/v1/system/maintenance/pop", b.setPopMaintenance},
		{"GET", "/api/v1/system/shared-state", b.getSharedState},
		{"POST", "/internal/api/notify", b.notify},
		{"GET", "/api/v1/status/buffers", b.getBuffers},
		{"GET", "/api/v1/messages", b.listMessages},
		{"GET", "/api/v1/messages/{partitionId}/{transactionId}", b.getMessage},
		{"DELETE", "/api/v1/messages/{partitionId}/{transactionId}", b.deleteDeadLetter},
		{"POST", "/api/v1/messages/{partitionId}/{transactionId}/retry", b.retryDeadLetter},
		{"POST", "/api/v1/traces", b.trace},
		{"GET", "/api/v1/traces/names", b.traceNames},
		{"GET", "/api/v1/traces/by-name/{name}", b.tracesByName},
		{"GET", "/api/v1/traces/{partitionId}/{transactionId}", b.messageTraces},
		{"POST", "/api/v1/dlq/replay", b.replayDeadLetters},
		{"GET", "/api/v1/dlq", b.listDeadLetters},
		{"DELETE", "/api/v1/dlq", b.purgeDeadLetters},
		{"GET", "/health", b.health},
		{"GET", "/status", b.status},
		{"GET", "/metrics/prometheus", b.metrics},
		{"GET", "/openapi.json", b.openapi},
		{"GET", "/", b.index},
		{"GET", "/testing/clock", b.getClock},
		{"POST", "/testing/clock", b.advanceClock},
		{"PUT", "/testing/faults", b.setFaults},
	}
}

func (b *Broker) serve(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	segments := strings.Split(r.URL.EscapedPath(), "/")
	for _, route := range b.routes {
		if route.method != method {
			continue
		}
		if params, ok := b.matchesRoute(r, route, segments); ok {
			if route.changes() && b.foreign(r) {
				writeJSON(w, http.StatusForbidden, map[string]string{"error": "cross-origin request refused"})
				return
			}
			who, ok := b.authorize(w, r, levels()[route.method+" "+route.path])
			if !ok {
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), callerKey{}, who))
			b.settleSpool(route)
			if !b.interrupted(w, route) {
				route.handle(w, r, params)
			}
			return
		}
	}
	if _, ok := b.authorize(w, r, ""); !ok {
		return
	}
	if b.spoilUnmatched(w, method, segments) {
		return
	}
	if method == http.MethodGet && !strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasPrefix(r.URL.Path, "/testing/") {
		b.index(w, r, nil)
		return
	}
	if b.has(PlainNotFound) {
		http.NotFound(w, r)
		return
	}
	writeJSON(w, http.StatusNotFound, map[string]any{"error": "Not Found", "code": "no_such_route"})
}

// matchesRoute reads the parameters of a path. The last one of a route that publishes is the rest of the path as it was sent.
func (b *Broker) matchesRoute(r *http.Request, route route, segments []string) (map[string]string, bool) {
	template := strings.Split(route.path, "/")
	last := len(template) - 1
	if !route.takesRest() {
		if template[1] == "v1" || template[1] == "v2" {
			segments = b.plainSegments(template, segments)
		}
		return b.matches(template, segments)
	}
	path, _, _ := strings.Cut(r.RequestURI, "?")
	parts := strings.SplitN(path, "/", len(template))
	if len(parts) < len(template) {
		return nil, false
	}
	params, ok := b.matches(template[:last], b.plainSegments(template, parts)[:last])
	if ok {
		params["destination"] = parts[last]
	}
	return params, ok
}

// plainSegments are the segments of a path of the publish half: as in the template where they differ by case, and without the
// empty one behind a slash at the end.
func (b *Broker) plainSegments(template, segments []string) []string {
	if b.has(PublishPathsExact) {
		return segments
	}
	if n := len(segments); n == len(template)+1 && segments[n-1] == "" {
		segments = segments[:n-1]
	}
	plain := slices.Clone(segments)
	for i, part := range template {
		if i < len(plain) && !strings.HasPrefix(part, "{") && strings.EqualFold(part, plain[i]) {
			plain[i] = part
		}
	}
	return plain
}

// takesRest says whether the path of the route ends in a destination.
func (r route) takesRest() bool {
	return strings.HasSuffix(r.path, "/{destination}") || r.method == http.MethodPost && r.path == "/v2/schedules/{schedule}"
}

// spoilUnmatched applies the defects of requests that no route matches.
func (b *Broker) spoilUnmatched(w http.ResponseWriter, method string, segments []string) bool {
	if b.has(MethodNotAllowed) && method != http.MethodGet {
		for _, route := range b.routes {
			if _, ok := b.matches(strings.Split(route.path, "/"), segments); ok {
				writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"error": "Method Not Allowed"})
				return true
			}
		}
	}
	switch segments[len(segments)-1] {
	case "clear", "partitions":
		if b.has(NeverRoutesExist) {
			writeJSON(w, http.StatusOK, map[string]bool{"success": true})
			return true
		}
	}
	return false
}

func (b *Broker) matches(template, segments []string) (map[string]string, bool) {
	if len(template) != len(segments) {
		return nil, false
	}
	params := map[string]string{}
	for i, part := range template {
		if !strings.HasPrefix(part, "{") {
			if part != segments[i] {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(segments[i])
		if err != nil || value == "" {
			return nil, false
		}
		if b.has(PathEscapesKept) {
			value = segments[i]
		}
		params[strings.Trim(part, "{}")] = value
	}
	return params, true
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // only values of this package are encoded
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

func (b *Broker) writeError(w http.ResponseWriter, err error) {
	var p *problem
	if !errors.As(err, &p) {
		p = &problem{http.StatusInternalServerError, err.Error()}
	}
	if b.has(NestedErrors) {
		writeJSON(w, p.status, map[string]any{"error": map[string]string{"message": p.text}})
		return
	}
	if b.has(UnquotedErrors) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(p.status)
		fmt.Fprintf(w, `{"error":"%s"}`, p.text)
		return
	}
	if b.has(VagueErrors) {
		p = &problem{p.status, "invalid request"}
	}
	writeJSON(w, p.status, map[string]string{"error": p.text})
}

// readBody reads the whole body, at most maxBody bytes.
func (b *Broker) readBody(r *http.Request) ([]byte, error) {
	limit := int64(maxBody)
	if b.has(SmallerBodyLimit) {
		limit--
	}
	if b.has(NoBodyLimit) {
		limit *= 2
	}
	tooLarge := &problem{http.StatusRequestEntityTooLarge, "body exceeds 67108864 bytes"}
	if r.ContentLength > limit && !b.has(LateBodyLimit) {
		return nil, tooLarge
	}
	if b.has(RequireContentType) && r.Header.Get("Content-Type") != "application/json" {
		return nil, &problem{http.StatusUnsupportedMediaType, "content type must be application/json"}
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, badBody("cannot be read: %v", err)
	}
	if int64(len(body)) > limit {
		return nil, tooLarge
	}
	return body, nil
}

// object is a JSON object with its values as they were sent. Of duplicate keys the last counts.
type object map[string]json.RawMessage

func (b *Broker) parseObject(body []byte) (object, error) {
	if !utf8.Valid(body) {
		if !b.has(ReplaceInvalidUTF8) {
			return nil, badBody("is not valid UTF-8")
		}
		body = bytes.ToValidUTF8(body, []byte("\uFFFD"))
	}
	if b.has(ShallowBodies) && depth(body) > 1000 {
		return nil, badBody("is nested too deep")
	}
	o, err := b.members(body)
	if err != nil {
		if b.has(DeepBodies) && strings.Contains(err.Error(), "max depth") {
			return object{"items": json.RawMessage("[]")}, nil
		}
		if _, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, badBody("is not JSON: %v", err)
		}
		return nil, badBody("must be an object")
	}
	if o == nil {
		return nil, badBody("must be an object")
	}
	if b.has(FoldKeys) {
		folded := object{}
		for key, value := range o {
			folded[key] = value
			if lower := strings.ToLower(key[:min(1, len(key))]) + key[min(1, len(key)):]; o[lower] == nil {
				folded[lower] = value
			}
		}
		o = folded
	}
	return o, nil
}

// members splits an object into its members.
func (b *Broker) members(body []byte) (object, error) {
	var o object
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, err //nolint:wrapcheck // the caller words it
	}
	if !b.has(FirstKeyWins) || o == nil {
		return o, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	o = object{}
	_, _ = decoder.Token() // the text is known to be an object
	for decoder.More() {
		key, _ := decoder.Token()
		var value json.RawMessage
		_ = decoder.Decode(&value)
		if name := key.(string); o[name] == nil {
			o[name] = value
		}
	}
	return o, nil
}

// depth is the nesting of a JSON text.
func depth(text []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			deepest = max(deepest, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return deepest
}

func null(raw json.RawMessage) bool { return raw == nil || string(raw) == "null" }

// text reads a string; absent means "".
func (o object) text(path, key string) (string, error) {
	raw, ok := o[key]
	if !ok {
		return "", nil
	}
	var value *string
	if err := json.Unmarshal(raw, &value); err != nil || value == nil {
		return "", badBody("%s%s must be a string", path, key)
	}
	if strings.ContainsRune(*value, utf8.RuneError) && loneSurrogate(raw) {
		return "", badBody("%s%s must be valid UTF-8", path, key)
	}
	return *value, nil
}

// optionalText reads a string where null counts as absent.
func (o object) optionalText(path, key string) (string, error) {
	if null(o[key]) {
		return "", nil
	}
	return o.text(path, key)
}

// loneSurrogate says whether a JSON string that decodes to U+FFFD holds it as the escape of half a surrogate pair.
func loneSurrogate(raw []byte) bool {
	for i := 0; i+5 < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] != 'u' {
			i++
			continue
		}
		code, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		if err != nil {
			return false
		}
		i += 5
		switch {
		case code >= 0xDC00 && code <= 0xDFFF:
			return true
		case code >= 0xD800 && code <= 0xDBFF:
			if i+6 >= len(raw) || raw[i+1] != '\\' || raw[i+2] != 'u' {
				return true
			}
			low, err := strconv.ParseUint(string(raw[i+3:i+7]), 16, 16)
			if err != nil || low < 0xDC00 || low > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

// checkName holds queue, partition, group and transaction id to their rules.
func checkName(path, name string, limit int) error {
	if len(name) > limit {
		return badBody("%s must be at most %d bytes", path, limit)
	}
	for _, r := range name {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return badBody("%s must not contain control characters", path)
		}
	}
	return nil
}

const (
	maxName          = 512
	maxTransactionID = 1024
)

// iso is a time as the wire shows it.
func iso(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

func dotted(name string) (namespace, task string) {
	namespace, rest, found := strings.Cut(name, ".")
	if !found {
		return "", ""
	}
	task, _, _ = strings.Cut(rest, ".")
	return namespace, task
}
