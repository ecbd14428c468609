package retry

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]float64{1: 7.389, 2: 54.598, 3: 403.428, 4: 2980.958, 5: 22026.466, 6: 86400, 7: 86400, 1 << 30: 86400} {
		if got := Backoff(n, DefaultFactor).Seconds(); math.Abs(got-want) > 0.001 {
			t.Errorf("retry %d waits %v s, want %v", n, got, want)
		}
	}
}

func TestAsked(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		header http.Header
		want   time.Duration
		ok     bool
	}{
		{http.Header{}, 0, false},
		{http.Header{"Retry-After": {"120"}}, 2 * time.Minute, true},
		{http.Header{"Retry-After": {"0.5"}}, 500 * time.Millisecond, true},
		{http.Header{"Retry-After": {"6m0s"}}, 6 * time.Minute, true},
		{http.Header{"Retry-After": {"Sun, 01 Mar 2026 12:00:30 GMT"}}, 30 * time.Second, true},
		{http.Header{"Retry-After": {"Sun, 01 Mar 2026 11:00:30 GMT"}}, 0, true},
		{http.Header{"Retry-After": {"86400"}}, 24 * time.Hour, true},
		{http.Header{"Retry-After": {"86401"}}, 0, false},
		{http.Header{"Retry-After": {"25h"}}, 0, false},
		{http.Header{"Retry-After": {"-5"}}, 0, false},
		{http.Header{"Retry-After": {"soon"}}, 0, false},
		{http.Header{"Retry-After": {"NaN"}}, 0, false},
		{http.Header{"Retry-After": {"1e300"}}, 0, false},
		{http.Header{"X-Ratelimit-Reset": {"10"}}, 10 * time.Second, true},
		{http.Header{"X-Ratelimit-Reset": {"1772366400"}}, 0, false}, // a time, which is no number of seconds to wait
		{http.Header{"X-Ratelimit-Reset-Requests": {"1s"}}, time.Second, true},
		{http.Header{"X-Ratelimit-Reset-Tokens": {"6m0s"}}, 6 * time.Minute, true},
		{http.Header{"Retry-After": {"soon"}, "X-Ratelimit-Reset": {"7"}}, 7 * time.Second, true},
		{http.Header{"Retry-After": {"3"}, "X-Ratelimit-Reset": {"7"}}, 3 * time.Second, true},
	}
	for _, test := range tests {
		if got, ok := Asked(test.header, now); got != test.want || ok != test.ok {
			t.Errorf("%v asks for %v, %v; want %v, %v", test.header, got, ok, test.want, test.ok)
		}
	}
}

func TestExpression(t *testing.T) {
	t.Parallel()
	tests := map[string][]time.Duration{ // before the first retry, the second and the third
		"1000":                             {time.Second, time.Second, time.Second},
		"1000 * (1 + retried)":             {time.Second, 2 * time.Second, 3 * time.Second},
		"pow(2, retried) * 1000":           {time.Second, 2 * time.Second, 4 * time.Second},
		"max(10, min(100, retried * 60))":  {10 * time.Millisecond, 60 * time.Millisecond, 100 * time.Millisecond},
		"  2+3*4 ":                         {14 * time.Millisecond},
		"(2+3)*4":                          {20 * time.Millisecond},
		"10-3-2":                           {5 * time.Millisecond},
		"100/10/2":                         {5 * time.Millisecond},
		"- -5":                             {5 * time.Millisecond},
		"2 - -5":                           {7 * time.Millisecond},
		"floor(1.9)+ceil(0.1)+round(2.5)":  {5 * time.Millisecond},
		"sqrt(abs(-16))":                   {4 * time.Millisecond},
		"exp(0)":                           {time.Millisecond},
		"1e3":                              {time.Second},
		"1.5e-1 * 10":                      {1500 * time.Microsecond},
		"-1":                               {0},
		"0/0":                              {0},
		"sqrt(-1)":                         {0},
		"1/0":                              {MaxDelay},
		"-1/0":                             {0},
		"pow(10, 400)":                     {MaxDelay},
		"pow(pow(9,999),999)":              {MaxDelay},
		"1000 / retried":                   {MaxDelay, time.Second, 500 * time.Millisecond},
		"86400000":                         {MaxDelay},
		"86400001":                         {MaxDelay},
		"1\t+\n1":                          {2 * time.Millisecond},
		"min(retried,1)*exp(1)-exp(1)+0.5": {0, 500 * time.Microsecond},
	}
	for source, want := range tests {
		e, err := Parse(source)
		if err != nil {
			t.Errorf("%q: %v", source, err)
			continue
		}
		for retried, d := range want {
			if got := e.Delay(retried); (got - d).Abs() > time.Nanosecond {
				t.Errorf("%q after %d retries is %v, want %v", source, retried, got, d)
			}
		}
	}
}

func TestRefusedExpressions(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"":                       "at the end",
		"  ":                     "at the end",
		"1 +":                    "at the end",
		"1 2":                    "an operator at byte 3",
		"(1":                     "a closing parenthesis",
		"1)":                     "an operator at byte 2",
		"pow(1)":                 "a comma",
		"pow(1,2,3)":             "a closing parenthesis",
		"sqrt(1,2)":              "a closing parenthesis",
		"sqrt 1":                 "an opening parenthesis",
		"retries":                "not retries",
		"Retried":                "not Retried",
		"exec(1)":                "not exec",
		"1 ** 2":                 "a number",
		"1..2":                   "a number that can be represented",
		".":                      "a number that can be represented",
		"1e999":                  "a number that can be represented",
		"1e":                     "an operator at byte 2",
		"retried()":              "an operator",
		"1;2":                    "an operator",
		"\x00":                   "a number",
		"1\u00a0+1":              "an operator",
		strings.Repeat("(", 500): "deeper than 64",
		strings.Repeat("abs(", 100) + "1" + strings.Repeat(")", 100): "deeper than 64",
		strings.Repeat("1+", 100_000) + "1":                          "longer than 1024",
	} {
		if _, err := Parse(source); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", source, err, want)
		}
	}
}

func FuzzExpression(f *testing.F) {
	for _, s := range []string{"pow(2, retried) * 1000", "1/0", "-(-retried)", "1e3", "max(min(1,2),exp(3))"} {
		f.Add(s, 3)
	}
	f.Fuzz(func(t *testing.T, source string, retried int) {
		e, err := Parse(source)
		if err != nil {
			return
		}
		if d := e.Delay(retried); d < 0 || d > MaxDelay {
			t.Errorf("%q after %d retries is %v", source, retried, d)
		}
		if again, err := Parse(e.String()); err != nil || again.Delay(retried) != e.Delay(retried) {
			t.Errorf("%q does not read back: %v", e, err)
		}
	})
}
