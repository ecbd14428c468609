package reference

import (
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // whatever the machine has installed
)

// cron is a parsed expression: for each field, the values for which it ticks.
type cron struct {
	text                               string
	zone                               *time.Location
	minutes, hours, days, months, week []bool
	either                             bool // a day of the month or of the week is enough
}

// maxCron is the longest expression, in bytes.
const maxCron = 256

var (
	monthNames = []string{"", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
	dayNames   = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}
)

func badCron(why string) error { return badRequest("invalid cron: %s", why) }

func (b *Broker) cronOf(text string) (*cron, error) {
	c := &cron{text: strings.TrimSpace(text), zone: time.UTC}
	if len(text) > maxCron && !b.has(LongCronAccepted) {
		return nil, badCron("it is longer than 256 bytes")
	}
	fields := strings.Fields(c.text)
	if b.has(CronAliasesAccepted) && len(fields) > 0 && (strings.HasPrefix(c.text, "@") || strings.HasPrefix(c.text, "TZ=")) {
		fields = []string{"0", "0", "*", "*", "*"}
	}
	if len(fields) > 0 && strings.HasPrefix(fields[0], "CRON_TZ=") {
		name := strings.TrimPrefix(fields[0], "CRON_TZ=")
		zone, err := time.LoadLocation(name)
		if err != nil || name == "" || name == "Local" {
			return nil, badCron("it names no time zone")
		}
		if !b.has(CronZoneIgnored) {
			c.zone = zone
		}
		fields = fields[1:]
	}
	if b.has(CronSecondsAccepted) && len(fields) == 6 {
		fields = fields[1:]
	}
	if len(fields) != 5 {
		return nil, badCron("it must have five fields")
	}
	for i, field := range []struct {
		values      *[]bool
		first, last int
		names       []string
	}{{&c.minutes, 0, 59, nil}, {&c.hours, 0, 23, nil}, {&c.days, 1, 31, nil}, {&c.months, 1, 12, monthNames}, {&c.week, 0, 7, dayNames}} {
		*field.values = make([]bool, field.last+1)
		for item := range strings.SplitSeq(fields[i], ",") {
			if !mark(*field.values, item, field.first, field.names) {
				return nil, badCron(strconv.Quote(item) + " is not understood")
			}
		}
	}
	if c.week[7] && !b.has(SundayIsZeroOnly) {
		c.week[0] = true
	}
	c.either = !strings.HasPrefix(fields[2], "*") && !strings.HasPrefix(fields[4], "*") && !b.has(CronDaysBoth)
	if b.next(c, time.Unix(0, 0)).IsZero() && !b.has(NeverCronAccepted) {
		return nil, badCron("it names a date that never comes")
	}
	return c, nil
}

// mark sets the values of one item of a field: *, a value or a range, with a step or without.
func mark(values []bool, item string, first int, names []string) bool {
	span, stepText, stepped := strings.Cut(item, "/")
	from, to, step := first, len(values)-1, 1
	if stepped {
		var err error
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 {
			return false
		}
	}
	value := func(text string) int {
		if i := slices.Index(names, strings.ToLower(text)); i >= 0 {
			return i
		}
		n, err := strconv.Atoi(text)
		if err != nil || n >= len(values) {
			return -1
		}
		return n
	}
	if span != "*" {
		low, high, ranged := strings.Cut(span, "-")
		if from = value(low); ranged {
			to = value(high)
		} else if !stepped {
			to = from
		}
	}
	if from < first || to < from {
		return false
	}
	for i := from; i <= to; i += step {
		values[i] = true
	}
	return true
}

// next is the first tick after a time; zero when there is none.
func (b *Broker) next(c *cron, after time.Time) time.Time {
	year, month, day := after.In(c.zone).AddDate(0, 0, -1).Date()
	const days = 41 * 366 // 29 February is a given day of the week at least once in them
	for i := range days {
		date := time.Date(year, month, day+i, 0, 0, 0, 0, time.UTC)
		inMonth, inWeek := c.days[date.Day()], c.week[date.Weekday()]
		onDay := inMonth && inWeek || c.either && (inMonth || inWeek)
		if !onDay || !c.months[date.Month()] {
			continue
		}
		var first time.Time
		for minute := range 24 * 60 {
			if !c.hours[minute/60] || !c.minutes[minute%60] {
				continue
			}
			for _, at := range b.instants(c.zone, date.Add(time.Duration(minute)*time.Minute)) {
				if at.After(after) && (first.IsZero() || at.Before(first)) {
					first = at
				}
			}
		}
		if !first.IsZero() {
			return first
		}
	}
	return time.Time{}
}

// instants are when the clocks of a zone show a time, which is written as UTC. Of two, the first counts; for none, it is
// when the clocks go on.
func (b *Broker) instants(zone *time.Location, wall time.Time) []time.Time {
	if zone == time.UTC {
		return []time.Time{wall}
	}
	var shown []time.Time
	for _, near := range []time.Time{wall.Add(-24 * time.Hour), wall.Add(24 * time.Hour)} {
		_, offset := near.In(zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if _, real := at.In(zone).Zone(); real == offset && !slices.ContainsFunc(shown, at.Equal) {
			shown = append(shown, at)
		}
	}
	slices.SortFunc(shown, time.Time.Compare)
	switch {
	case len(shown) > 1 && !b.has(CronTickTwice):
		return shown[:1]
	case len(shown) == 0 && !b.has(CronGapSkipped):
		_, end := wall.Add(-24 * time.Hour).In(zone).ZoneBounds()
		return []time.Time{end.UTC()}
	}
	return shown
}
