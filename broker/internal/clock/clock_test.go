package clock

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestDatabaseFollowsTheAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d Database
		if got := d.Now(); !got.Equal(time.Now()) {
			t.Fatalf("before the first answer: %v, want the local time", got)
		}
		ahead := time.Now().Add(90 * 24 * time.Hour)
		d.Observe(ahead)
		time.Sleep(3 * time.Second)
		if got, want := d.Now(), ahead.Add(3*time.Second); !got.Equal(want) {
			t.Fatalf("3 s after the answer: %v, want %v", got, want)
		}
		d.Observe(ahead.Add(2900 * time.Millisecond)) // an answer that was overtaken
		if got, want := d.Now(), ahead.Add(3*time.Second); !got.Equal(want) {
			t.Fatalf("after an overtaken answer: %v, want %v", got, want)
		}
		back := ahead.Add(-time.Hour) // the database's clock was set back
		d.Observe(back)
		if got := d.Now(); !got.Equal(back) {
			t.Fatalf("after a step back: %v, want %v", got, back)
		}
	})
}

func TestAnswersFromBeforeAMoveAreLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d Database
		before := time.Now()
		d.Observe(before)
		after := before.Add(24 * time.Hour)
		d.Moved(after)
		d.Observe(before.Add(time.Second))
		if got := d.Now(); got.Before(after) {
			t.Errorf("a late answer set the clock back to %v", got)
		}
		time.Sleep(time.Minute)
		back := before.Add(2 * time.Hour)
		d.Observe(back)
		if got := d.Now(); !got.Equal(back) {
			t.Errorf("a clock that was set back is not believed: %v, want %v", got, back)
		}
	})
}
