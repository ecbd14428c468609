package retry

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxDelay is the longest pause between two attempts.
const MaxDelay = 24 * time.Hour

// DefaultFactor is the factor of n in Backoff's exponent.
const DefaultFactor = 2

// Backoff is the pause before the n-th retry, n from 1: min(86400, e^(factor·n)) seconds.
func Backoff(n int, factor float64) time.Duration {
	return clamp(math.Exp(factor*float64(n)) * float64(time.Second))
}

// clamp makes a delay of a number of nanoseconds. The comparison comes before the conversion, which is
// undefined for numbers that do not fit.
func clamp(ns float64) time.Duration {
	switch {
	case math.IsNaN(ns), ns <= 0:
		return 0
	case ns >= float64(MaxDelay):
		return MaxDelay
	}
	return time.Duration(ns)
}

// resetHeaders are read in this order; the first that says something counts.
var resetHeaders = []string{"Retry-After", "X-Ratelimit-Reset", "X-Ratelimit-Reset-Requests", "X-Ratelimit-Reset-Tokens"}

// Asked is the pause that a destination asked for in its answer: seconds, an HTTP date or a duration like
// 6m0s. More than a day is ignored, and so is what cannot be read.
func Asked(h http.Header, now time.Time) (time.Duration, bool) {
	for _, name := range resetHeaders {
		text := strings.TrimSpace(h.Get(name))
		if text == "" {
			continue
		}
		d, ok := parseAsked(text, now)
		if ok && d <= MaxDelay {
			return max(0, d), true
		}
	}
	return 0, false
}

func parseAsked(text string, now time.Time) (time.Duration, bool) {
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if math.IsNaN(seconds) || seconds < 0 || seconds > MaxDelay.Seconds() {
			return 0, false
		}
		return time.Duration(seconds * float64(time.Second)), true
	}
	if at, err := http.ParseTime(text); err == nil {
		return at.Sub(now), true
	}
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0
}
