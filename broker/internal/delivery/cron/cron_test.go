package cron

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	v, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return v.UTC()
}

func mustParse(t *testing.T, expression string) *Schedule {
	t.Helper()
	s, err := Parse(expression)
	if err != nil {
		t.Fatalf("%q: %v", expression, err)
	}
	return s
}

func TestNext(t *testing.T) {
	t.Parallel()
	tests := []struct {
		expression, after string
		want              []string
	}{
		{"* * * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"}},
		{"*/5 * * * *", "2026-01-01T00:03:59Z", []string{"2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"}},
		{"5/20 * * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:05:00Z", "2026-01-01T00:25:00Z", "2026-01-01T00:45:00Z", "2026-01-01T01:05:00Z"}},
		{"0 0 29 2 *", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"0 0 29 2 *", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"0 12 * * MON-fri", "2026-01-02T12:00:00Z", []string{"2026-01-05T12:00:00Z"}},
		{"0 0 * * 7", "2026-01-01T00:00:00Z", []string{"2026-01-04T00:00:00Z", "2026-01-11T00:00:00Z"}},
		{"0 0 * * 5-7", "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z", "2026-01-04T00:00:00Z", "2026-01-09T00:00:00Z"}},
		{"0 0 13 * FRI", "2026-02-01T00:00:00Z", []string{"2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"}},
		{"0 0 */10 * FRI", "2026-02-01T00:00:00Z", []string{"2026-05-01T00:00:00Z"}}, // a step of * does not restrict
		{"0 0 ? * 1", "2026-01-01T00:00:00Z", []string{"2026-01-05T00:00:00Z"}},
		{"0 0 1 JAN,jul ?", "2026-01-01T00:00:00Z", []string{"2026-07-01T00:00:00Z", "2027-01-01T00:00:00Z"}},
		{"  0   0 1 1 *  ", "2026-01-01T00:00:00Z", []string{"2027-01-01T00:00:00Z"}},
		{"0 0 31 * *", "2026-01-31T00:00:00Z", []string{"2026-03-31T00:00:00Z"}},
		{"0 0 29 2 */7", "2032-03-01T00:00:00Z", []string{"2060-02-29T00:00:00Z", "2088-02-29T00:00:00Z", "2128-02-29T00:00:00Z"}},
		{"CRON_TZ=Asia/Kolkata 30 9 * * *", "2026-01-01T00:00:00Z", []string{"2026-01-01T04:00:00Z"}},

		// Vienna sets its clock from 02:00 to 03:00 on 29 March 2026, and from 03:00 back to 02:00 on 25 October.
		{"CRON_TZ=Europe/Vienna 30 2 * * *", "2026-03-28T00:00:00Z", []string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"CRON_TZ=Europe/Vienna */30 * * * *", "2026-03-29T00:30:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"}},
		{"CRON_TZ=Europe/Vienna 30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"CRON_TZ=Europe/Vienna 30 * * * *", "2026-10-25T00:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T02:30:00Z"}},
		{"CRON_TZ=Europe/Vienna 0 3 25 10 *", "2026-10-25T00:00:00Z", []string{"2026-10-25T02:00:00Z"}},
		// Lord Howe moves by half an hour; Samoa skipped 30 December 2011.
		{"CRON_TZ=Australia/Lord_Howe 15 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"CRON_TZ=Pacific/Apia 0 12 * * *", "2011-12-29T12:00:00Z", []string{"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},
	}
	for _, test := range tests {
		s, now := mustParse(t, test.expression), at(t, test.after)
		for _, want := range test.want {
			now = s.Next(now)
			if got := now.Format(time.RFC3339); got != want {
				t.Errorf("%q after %s ticks at %s, want %s", test.expression, test.after, got, want)
				break
			}
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"":                                      "5 fields",
		"* * * *":                               "5 fields",
		"* * * * * *":                           "5 fields",
		"@every 1ns":                            "5 fields",
		"@daily":                                "5 fields",
		"TZ=":                                   "5 fields",
		"TZ=UTC * * * *":                        "minute",
		"TZ=UTC * * * * *":                      "5 fields",
		"CRON_TZ=":                              "time zone",
		"CRON_TZ= * * * * *":                    "time zone",
		"CRON_TZ=Local * * * * *":               "time zone",
		"CRON_TZ=Moon/Base * * * * *":           "no known time zone",
		"CRON_TZ=../../etc/passwd * * * * *":    "no known time zone",
		"60 * * * *":                            "minute",
		"-1 * * * *":                            "minute",
		"* 24 * * *":                            "hour",
		"* * 0 * *":                             "day of month",
		"* * 32 * *":                            "day of month",
		"* * * 13 *":                            "month",
		"* * * FOO *":                           "month",
		"* * * * 8":                             "day of week",
		"*/0 * * * *":                           "minute",
		"*/-1 * * * *":                          "minute",
		"*/+1 * * * *":                          "minute",
		"*/ * * * *":                            "minute",
		"5-1 * * * *":                           "minute",
		"1,,2 * * * *":                          "minute",
		"1-2-3 * * * *":                         "minute",
		"1/2/3 * * * *":                         "minute",
		"0x1 * * * *":                           "minute",
		"99999999999999999999 * * * *":          "minute",
		"0 0 31 2 *":                            "never comes",
		"0 0 30 2 *":                            "never comes",
		"0 0 31 4,6,9,11 *":                     "never comes",
		strings.Repeat("0,", 200) + "0 * * * *": "longer than 256",
		strings.Repeat("*", 200_000):            "longer than 256",
	} {
		if _, err := Parse(expression); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", expression, err, want)
		}
	}
	mustParse(t, "*/9999999 * * * *") // silly, but it ticks
	mustParse(t, "0 0 31 2 1")        // either day
}

// TestAgainstTheWallClock compares with a clock that is watched minute by minute through the years: each minute
// it shows counts once, and a minute that it skips counts when the clock goes on.
func TestAgainstTheWallClock(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	zones := []string{"Europe/Vienna", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca", "Asia/Tehran", "Pacific/Apia"}
	pick := func(n int) string { return []string{"*", "*/7", "0", "30", "2", "1-3", "15,45"}[random.IntN(n)] }
	for _, zone := range zones {
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			expression := "CRON_TZ=" + zone + " " + pick(7) + " " + []string{"*", "*/2", "2", "1-3", "0,23"}[random.IntN(5)] + " * * " + []string{"*", "0", "6,0"}[random.IntN(3)]
			s := mustParse(t, expression)
			year := 2011 + random.IntN(16)
			start := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
			got := s.Next(start.Add(-time.Nanosecond))
			latest := wallOf(start.Add(-time.Minute), location)
			for minute := start; minute.Year() == year; minute = minute.Add(time.Minute) {
				wall := wallOf(minute, location)
				due := false
				for ; latest.Before(wall); latest = latest.Add(time.Minute) {
					due = due || s.matches(latest.Add(time.Minute))
				}
				if due != got.Equal(minute) {
					t.Fatalf("%q at %s (%s): due %v, but the next tick is %s", expression, minute, wall, due, got)
				}
				if due {
					got = s.Next(got)
				}
			}
		}
	}
}

func wallOf(instant time.Time, location *time.Location) time.Time {
	_, offset := instant.In(location).Zone()
	return instant.Add(time.Duration(offset) * time.Second)
}

func (s *Schedule) matches(wall time.Time) bool {
	return s.minute&(1<<wall.Minute()) != 0 && s.hour&(1<<wall.Hour()) != 0 && s.month&(1<<wall.Month()) != 0 && s.onDay(wall)
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"*/5 * * * *", "CRON_TZ=Europe/Vienna 0 0 1 JAN MON-FRI", "TZ=", "0 0 29 2 ?"} {
		f.Add(s, int64(1_700_000_000))
	}
	f.Fuzz(func(t *testing.T, expression string, seconds int64) {
		s, err := Parse(expression)
		if err != nil {
			return
		}
		now := time.Unix(seconds%(1<<35), 0)
		if next := s.Next(now); !next.After(now) || next.Second() != 0 && s.location == time.UTC {
			t.Errorf("%q after %s ticks at %s", expression, now, next)
		}
	})
}
