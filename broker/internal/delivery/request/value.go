package request

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxDelay bounds a delay: beyond it a time is a mistake.
const maxDelay = 100 * 365 * 24 * time.Hour

// ParseDuration reads a duration made of whole numbers with the units s, m, h and d, as 10s or 1d10h30m.
// header names where it stands.
func ParseDuration(header, text string) (time.Duration, error) {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	malformed := refuse("%s must be a duration like 10s, 3m, 1h or 1d10h30m", header)
	rest := strings.TrimSpace(text)
	if rest == "" {
		return 0, malformed
	}
	var total time.Duration
	for rest != "" {
		digits := 0
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		if digits == 0 || digits == len(rest) {
			return 0, malformed
		}
		unit, ok := units[rest[digits]]
		if !ok {
			return 0, malformed
		}
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil || n > int64((maxDelay-total)/unit) { // it has digits only, so it is too large
			return 0, refuse("%s must be at most 100 years", header)
		}
		total += time.Duration(n) * unit
		rest = rest[digits+1:]
	}
	return total, nil
}

// ParseNotBefore reads a time in seconds since 1970. One in the past is as good as now.
func ParseNotBefore(header, text string, now time.Time) (time.Time, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, refuse("%s must be a unix timestamp in seconds", header)
	}
	if n > now.Add(maxDelay).Unix() {
		return time.Time{}, refuse("%s must be at most 100 years from now", header)
	}
	return time.Unix(n, 0).UTC(), nil
}

// ParseRetries reads how often a message may be sent again.
func ParseRetries(header, text string) (int, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0, refuse("%s must be an integer from 0 to %d", header, math.MaxInt32)
	}
	return int(n), nil
}

// ParseBool reads a boolean in any case.
func ParseBool(header, text string) (bool, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "true", "1":
		return true, nil
	case "false", "0", "":
		return false, nil
	}
	return false, refuse("%s must be true or false", header)
}

// ParseMethod reads the method of a delivery.
func ParseMethod(header, text string) (string, error) {
	switch method := strings.ToUpper(strings.TrimSpace(text)); method {
	case "GET", "POST", "PUT", "PATCH", "DELETE":
		return method, nil
	}
	return "", refuse("%s must be GET, POST, PUT, PATCH or DELETE", header)
}

// CheckDeduplicationID refuses an id that cannot be one: it has no colon and no white space, and 1 to 1024 bytes.
func CheckDeduplicationID(id string) error {
	switch {
	case strings.Contains(id, ":"):
		return refuse("DeduplicationId cannot contain ':'")
	case strings.ContainsFunc(id, unicode.IsSpace):
		return refuse("DeduplicationId cannot contain white space")
	case !isText(id, 1024):
		return refuse("DeduplicationId must be 1 to 1024 bytes of UTF-8 without control characters")
	}
	return nil
}

func isText(s string, longest int) bool {
	return s != "" && len(s) <= longest && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// FlowControl is the key that deliveries share a limit by, and the limit. Zero numbers are unset.
type FlowControl struct {
	Key         string
	Parallelism int           // deliveries at the same time
	Rate        int           // deliveries started in one period
	Period      time.Duration // one second by default, at most one week
}

const maxPeriod = 7 * 24 * time.Hour

// ParseFlowControl reads the two flow control headers, which stand together or not at all.
func ParseFlowControl(key, value string) (FlowControl, error) {
	const keyHeader, valueHeader = "Upstash-Flow-Control-Key", "Upstash-Flow-Control-Value"
	if (key == "") != (value == "") {
		return FlowControl{}, refuse("%s and %s must be given together", keyHeader, valueHeader)
	}
	if key == "" {
		return FlowControl{}, nil
	}
	if !isText(key, maxName) {
		return FlowControl{}, refuse("%s must be at most %d bytes of UTF-8 without control characters", keyHeader, maxName)
	}
	if strings.Contains(key, ",") { // a filter would take it for two keys, and cancel the messages of others
		return FlowControl{}, refuse("%s must not contain a comma", keyHeader)
	}
	f := FlowControl{Key: key, Period: time.Second}
	for part := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(part, "=")
		name, text = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(text)
		var err error
		switch name {
		case "":
			continue
		case "parallelism":
			f.Parallelism, err = positive(valueHeader+": parallelism", text)
		case "rate":
			f.Rate, err = positive(valueHeader+": rate", text)
		case "period":
			f.Period, err = ParsePeriod(valueHeader+": period", text)
		default:
			err = refuse("%s: %q is not parallelism, rate or period", valueHeader, name)
		}
		if err != nil {
			return FlowControl{}, err
		}
	}
	if f.Parallelism == 0 && f.Rate == 0 {
		return FlowControl{}, refuse("%s must set parallelism or rate", valueHeader)
	}
	return f, nil
}

// ParsePeriod reads the period of a rate: a duration, or a number of seconds.
func ParsePeriod(what, text string) (time.Duration, error) {
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		text += "s"
	}
	d, err := ParseDuration(what, text)
	if err == nil && (d < time.Second || d > maxPeriod) {
		err = refuse("%s must be from 1s to 7d", what)
	}
	return d, err
}

func positive(what, text string) (int, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt32 {
		return 0, refuse("%s must be an integer from 1 to %d", what, math.MaxInt32)
	}
	return int(n), nil
}

// Redaction says what of a message is hidden where people look at it. Deliveries have it all.
type Redaction struct {
	Body       bool
	AllHeaders bool
	Headers    []string // canonical names
}

// ParseRedaction reads a list of body, header (or headers), header[Name] and headers[Name].
func ParseRedaction(text string) (Redaction, error) {
	var r Redaction
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		field, name, indexed := strings.Cut(part, "[")
		field = strings.ToLower(field)
		name, closed := strings.CutSuffix(name, "]")
		header := field == "header" || field == "headers"
		switch {
		case part == "":
		case field == "body" && !indexed:
			r.Body = true
		case header && !indexed:
			r.AllHeaders = true
		case header && closed && isHeaderName(name):
			r.Headers = append(r.Headers, canonical(name))
		default:
			return Redaction{}, refuse("Upstash-Redact-Fields: %q is not body, header or header[Name]", part)
		}
	}
	return r, nil
}

// maxLabels bounds the labels of one message together, in bytes.
const maxLabels = 2048

// ParseLabels reads one label or a list of them.
func ParseLabels(text string) ([]string, error) {
	var labels []string
	size := 0
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		if !isText(part, maxName) {
			return nil, refuse("Upstash-Label must be at most %d bytes of UTF-8 without control characters", maxName)
		}
		labels = append(labels, part)
		if size += len(part) + 1; size > maxLabels {
			return nil, refuse("Upstash-Label must be at most %d bytes in all", maxLabels)
		}
	}
	return labels, nil
}
