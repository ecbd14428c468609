package cron

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // schedules must not depend on what the machine has installed
)

// MaxExpression is the longest expression, in bytes.
const MaxExpression = 256

// Schedule is a parsed expression.
type Schedule struct {
	source   string
	location *time.Location

	minute, hour, month uint64 // a bit for each value
	day, weekday        uint64
	eitherDay           bool // both days are restricted
}

type field struct {
	name     string
	min, max int
	names    []string // of the values from min on
}

var (
	months   = []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}
	weekdays = []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}

	fields = [5]field{
		{"minute", 0, 59, nil},
		{"hour", 0, 23, nil},
		{"day of month", 1, 31, nil},
		{"month", 1, 12, months},
		{"day of week", 0, 7, weekdays}, // 7 is Sunday as well
	}
)

const zonePrefix = "CRON_TZ="

// Parse reads an expression.
func Parse(expression string) (*Schedule, error) {
	if len(expression) > MaxExpression {
		return nil, fmt.Errorf("the cron expression is longer than %d bytes", MaxExpression)
	}
	s := &Schedule{source: strings.TrimSpace(expression), location: time.UTC}
	parts := strings.Fields(s.source)
	if len(parts) > 0 {
		if zone, ok := strings.CutPrefix(parts[0], zonePrefix); ok {
			location, err := loadZone(zone)
			if err != nil {
				return nil, err
			}
			s.location, parts = location, parts[1:]
		}
	}
	if len(parts) != len(fields) {
		return nil, fmt.Errorf("the cron expression must have 5 fields (minute, hour, day of month, month, day of week), it has %d", len(parts))
	}
	sets := [5]*uint64{&s.minute, &s.hour, &s.day, &s.month, &s.weekday}
	var restricted [5]bool
	for i, f := range fields {
		set, err := f.parse(parts[i])
		if err != nil {
			return nil, err
		}
		*sets[i], restricted[i] = set, !strings.HasPrefix(parts[i], "*") && parts[i] != "?"
	}
	if s.weekday&(1<<7) != 0 {
		s.weekday = s.weekday&^(1<<7) | 1
	}
	s.eitherDay = restricted[2] && restricted[4]
	if _, ok := s.next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !ok {
		return nil, fmt.Errorf("the cron expression names a date that never comes")
	}
	return s, nil
}

// loadZone reads a name of the IANA database. Local and the like would mean another zone on another machine.
func loadZone(name string) (*time.Location, error) {
	if name == "" || name == "Local" {
		return nil, fmt.Errorf("%s must be followed by a time zone like Europe/Vienna", zonePrefix)
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%s%s is no known time zone", zonePrefix, name)
	}
	return location, nil
}

func (f field) parse(text string) (uint64, error) {
	var set uint64
	for item := range strings.SplitSeq(text, ",") {
		bits, ok := f.item(item)
		if !ok {
			return 0, fmt.Errorf("%s: %q is no value from %d to %d, range, step or list of these", f.name, item, f.min, f.max)
		}
		set |= bits
	}
	return set, nil
}

// item reads one item of a list: *, ?, a value or a range, with a step or without.
func (f field) item(text string) (uint64, bool) {
	span, stepText, stepped := strings.Cut(text, "/")
	first, last := f.min, f.max
	if span != "*" && span != "?" {
		from, to, ranged := strings.Cut(span, "-")
		var ok bool
		if first, ok = f.value(from); !ok {
			return 0, false
		}
		switch {
		case ranged:
			if last, ok = f.value(to); !ok || last < first {
				return 0, false
			}
		case !stepped: // a value with a step goes on to the end
			last = first
		}
	} else if f.names != nil && f.min == 0 {
		last = f.max - 1 // each day of the week once
	}
	step := 1
	if stepped {
		var err error
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 || stepText[0] == '+' {
			return 0, false
		}
	}
	var set uint64
	for v := first; v <= last; v += min(step, 64) {
		set |= 1 << v
	}
	return set, true
}

func (f field) value(text string) (int, bool) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, true
		}
	}
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false
	}
	v, err := strconv.Atoi(text)
	return v, err == nil && v >= f.min && v <= f.max
}

// String is the expression, without white space around it.
func (s *Schedule) String() string { return s.source }

// Next is the first tick after a time, in UTC.
func (s *Schedule) Next(after time.Time) time.Time {
	next, ok := s.next(after)
	if !ok { // Parse has seen it tick
		panic("cron: no tick of " + s.source + " after " + after.String())
	}
	return next
}

// horizon is more days than ever lie between two ticks: 29 February falls on a certain weekday every 28 years,
// and every 40 around a century that is no leap year.
const horizon = 41 * 366

func (s *Schedule) next(after time.Time) (time.Time, bool) {
	after = after.UTC()
	// Start a day early: in a gap of a whole day the clock shows the next date already.
	year, month, day := after.In(s.location).AddDate(0, 0, -1).Date()
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	for range horizon {
		if s.month&(1<<date.Month()) != 0 && s.onDay(date) {
			if tick, ok := s.onDate(date, after); ok {
				return tick, true
			}
		}
		date = date.AddDate(0, 0, 1)
	}
	return time.Time{}, false
}

func (s *Schedule) onDay(date time.Time) bool {
	day, weekday := s.day&(1<<date.Day()) != 0, s.weekday&(1<<date.Weekday()) != 0
	if s.eitherDay {
		return day || weekday
	}
	return day && weekday
}

// onDate finds the first tick of a date after a time. date is midnight of the wall clock, written as UTC.
func (s *Schedule) onDate(date, after time.Time) (time.Time, bool) {
	for hours := s.hour; hours != 0; hours &= hours - 1 {
		hour := date.Add(time.Duration(bits.TrailingZeros64(hours)) * time.Hour)
		if s.instant(hour.Add(59 * time.Minute)).Before(after) {
			continue
		}
		for minutes := s.minute; minutes != 0; minutes &= minutes - 1 {
			tick := s.instant(hour.Add(time.Duration(bits.TrailingZeros64(minutes)) * time.Minute))
			if tick.After(after) {
				return tick, true
			}
		}
	}
	return time.Time{}, false
}

// instant is when the wall clock shows a time, written as UTC: the first time if it does twice, and the end of
// the gap if it never does.
func (s *Schedule) instant(wall time.Time) time.Time {
	if s.location == time.UTC {
		return wall
	}
	// No zone changes its clock twice within two days.
	before, after := s.offset(wall.Add(-24*time.Hour)), s.offset(wall.Add(24*time.Hour))
	early, late := wall.Add(-before), wall.Add(-after)
	if before == after {
		return early
	}
	early0, late0 := s.offset(early) == before, s.offset(late) == after
	switch {
	case early0 && late0:
		if late.Before(early) {
			return late
		}
		return early
	case early0:
		return early
	case late0:
		return late
	}
	gapEnd, _ := early.In(s.location).ZoneBounds() // early lies behind the gap
	return gapEnd.UTC()
}

func (s *Schedule) offset(at time.Time) time.Duration {
	_, seconds := at.In(s.location).Zone()
	return time.Duration(seconds) * time.Second
}
