package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// Point is a place at which the process can be made to end.
type Point struct {
	name string
	left atomic.Int64 // hits until the process ends; 0 = not armed
}

var points = map[string]*Point{}

// New makes a place known under its name: the package, what it does, and what was done last, as in
// "spool.append.synced". Call it from package variables only.
func New(name string) *Point {
	if points[name] != nil {
		panic("failpoint: two places are named " + name)
	}
	p := &Point{name: name}
	points[name] = p
	return p
}

// Hit ends the process if the place is armed and it is its turn. It does not return then.
func (p *Point) Hit() {
	if p.left.Load() == 0 || p.left.Add(-1) != 0 {
		return
	}
	fmt.Fprintln(os.Stderr, "failpoint", p.name)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill() // nothing is left to do with an error
	}
	select {} // the signal is on its way
}

// Names lists the places, sorted.
func Names() []string {
	names := make([]string, 0, len(points))
	for name := range points {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Arm arms places: a list of NAME or NAME:N, separated by commas, where the N-th hit ends the process (1
// when it is not given). It arms nothing when a name is unknown or an N is no number above 0. Empty text
// is no place.
func Arm(text string) error {
	turns := map[*Point]int64{}
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, count, counted := strings.Cut(entry, ":")
		p := points[name]
		if p == nil {
			return fmt.Errorf("failpoint: no place is named %q; there are %s", name, strings.Join(Names(), ", "))
		}
		turns[p] = 1
		if counted {
			n, err := strconv.ParseInt(count, 10, 64)
			if err != nil || n < 1 {
				return fmt.Errorf("failpoint: %s: %q is no number above 0", name, count)
			}
			turns[p] = n
		}
	}
	for p, turn := range turns {
		p.left.Store(turn)
	}
	return nil
}
