// Package cron says when a schedule ticks.
//
// An expression has five fields (minute, hour, day of month, month, day of week) of numbers, names, ranges,
// steps and lists; when both days are restricted, either suffices. CRON_TZ=Area/City before the fields names
// the time zone, which is UTC otherwise.
//
// Promises: every tick of the wall clock happens once. One inside the gap of a clock that is set forward
// happens at the gap's end; one that a clock set back shows twice happens the first time. An expression that
// parses ticks again and again: dates that never come are refused.
//
// Fails: with an error that names the field and what is allowed in it.
package cron
