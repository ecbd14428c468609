package delivery

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// job is the next attempt of one task that this broker holds.
type job struct {
	message   uuid.UUID
	target    int
	retried   int
	host      int64
	size      int // bytes in memory, about
	lease     *lease
	from      time.Time // database time when it was taken: no attempt is logged as earlier
	content   *Stored   // nil: it is read when the attempt starts
	handed    int64     // bytes of Engine.handed that it holds
	loaded    int64     // bytes of Engine.loaded that it holds
	cancelled bool
}

// host is what the dispatcher knows of a destination host.
type host struct {
	id      int64
	waiting []*job
	running int
	held    int  // workers: those attempts, and those whose outcome is being committed
	limit   int  // attempts at once; grows with answers, shrinks with failures to get one
	turn    bool // it stands in dispatcher.turns
	parked  bool // some of its tasks wait in its lane in the database
	used    time.Time
}

// Bounds of a host.
const (
	firstLimit = 8               // attempts at once to a host that nothing is known of
	heldFactor = 4               // workers for each attempt that it may have: a host that refuses at once waits for commits only
	hostMemory = 5 * time.Minute // how long what was learned of an idle host is kept
)

// dispatcher decides which attempt is next. Hosts take turns, each within its limit. It holds a bounded number of jobs; the
// rest waits in the database.
type dispatcher struct {
	begin   func(*job) // starts an attempt, which ends with done
	workers int
	most    int // jobs that wait
	perHost int // limit of a host, at most

	mu       sync.Mutex
	quiet    sync.Cond // signalled when nothing waits or runs
	hosts    map[int64]*host
	turns    []*host
	waiting  int
	reserved int // room for publishes that are being committed
	running  int
	paused   bool
	stopped  bool
	wanting  bool          // a claim left something behind for want of room
	room     chan struct{} // signalled when there is room again for what was left behind
	tidied   time.Time
}

func newDispatcher(cfg Config, begin func(*job)) *dispatcher {
	d := &dispatcher{
		begin: begin, workers: cfg.Workers, most: 4 * cfg.Workers, perHost: cfg.HostConcurrency,
		hosts: make(map[int64]*host), room: make(chan struct{}, 1),
	}
	d.quiet.L = &d.mu
	return d
}

func (d *dispatcher) host(id int64) *host {
	h := d.hosts[id]
	if h == nil {
		h = &host{id: id, limit: min(firstLimit, d.perHost)}
		d.hosts[id] = h
	}
	h.used = time.Now()
	return h
}

// share is how many jobs of a host may wait in memory: some for each attempt that it may have, so that a host which answers
// nothing holds few of the places.
func (d *dispatcher) share(h *host) int { return min(16*h.limit, d.most/2) }

// full reports whether a host has its share.
func (d *dispatcher) full(h *host) bool { return h.parked || len(h.waiting) >= d.share(h) }

// reserve keeps room for the tasks of a publish, unless there is none or a host has its share.
func (d *dispatcher) reserve(u *unit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped || d.paused || d.waiting+d.reserved+u.targets > d.most {
		return false
	}
	for _, hosts := range u.hosts {
		for _, id := range hosts {
			if h := d.hosts[id]; h != nil && d.full(h) {
				return false
			}
		}
	}
	d.reserved += u.targets
	return true
}

func (d *dispatcher) unreserve(u *unit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.reserved -= u.targets
}

// chooseLanes sends the tasks of hosts that have their share to their lanes at once.
func (d *dispatcher) chooseLanes(u *unit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, hosts := range u.hosts {
		u.lanes = append(u.lanes, make([]int64, len(hosts)))
		for target, id := range hosts {
			if h := d.hosts[id]; h != nil && d.full(h) {
				h.parked = true
				u.lanes[i][target] = id
			}
		}
	}
}

// mayTake reports whether a look may find room for tasks of a publish that begin in the database. Those in the lane of a host that
// has enough are looked for when it has room.
func (d *dispatcher) mayTake(u *unit) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, hosts := range u.hosts {
		for target, id := range hosts {
			if u.lanes == nil || u.lanes[i][target] == 0 {
				return true
			}
			if h := d.hosts[id]; h == nil || len(h.waiting) <= d.share(h)/2 {
				return true
			}
		}
	}
	return false
}

// add takes jobs over; reserved says whether room was kept for them.
func (d *dispatcher) add(jobs []*job, reserved bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if reserved {
		d.reserved -= len(jobs)
	}
	for _, j := range jobs {
		h := d.host(j.host)
		h.waiting = append(h.waiting, j)
		d.waiting++
		d.queueTurn(h)
	}
	d.pump()
}

// ready reports whether a host may start something.
func (h *host) ready() bool {
	return len(h.waiting) > 0 && h.running < h.limit && h.held < heldFactor*h.limit
}

// queueTurn puts a host at the end of the line if it can start something.
func (d *dispatcher) queueTurn(h *host) {
	if !h.turn && h.ready() {
		h.turn = true
		d.turns = append(d.turns, h)
	}
}

// pump starts what can start.
func (d *dispatcher) pump() {
	for !d.paused && !d.stopped && d.running < d.workers && len(d.turns) > 0 {
		h := d.turns[0]
		d.turns = d.turns[1:]
		h.turn = false
		if !h.ready() {
			continue
		}
		j := h.waiting[0]
		h.waiting[0] = nil
		h.waiting = h.waiting[1:]
		d.waiting--
		h.running++
		h.held++
		d.running++
		d.begin(j)
		d.queueTurn(h)
		if h.parked && len(h.waiting) <= d.share(h)/2 {
			signal(d.room)
		}
	}
	if d.wanting && d.waiting+d.reserved <= d.most/2 {
		d.wanting = false
		signal(d.room)
	}
	if d.waiting == 0 && d.running == 0 {
		d.quiet.Broadcast()
	}
}

// reach is what an attempt tells about its host.
type reach uint8

const (
	unknown  reach = iota
	answered       // it answered in time
	silent         // it did not, or asked for less
)

// sent gives the place of an attempt at its host to the next one. The attempt keeps its worker until its outcome is
// committed: that bounds what is sent and not written while the database is away.
func (d *dispatcher) sent(j *job, r reach) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.host(j.host)
	h.running--
	switch r {
	case answered:
		h.limit = min(h.limit+1, d.perHost)
	case silent:
		h.limit = max(h.limit/2, 1)
	case unknown:
	}
	d.queueTurn(h)
	d.pump()
}

// done ends an attempt that was sent.
func (d *dispatcher) done(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.host(j.host)
	h.held--
	d.running--
	d.queueTurn(h)
	d.tidy()
	d.pump()
}

// tidy forgets hosts that nothing was heard of for a while.
func (d *dispatcher) tidy() {
	now := time.Now()
	if now.Sub(d.tidied) < hostMemory {
		return
	}
	d.tidied = now
	for id, h := range d.hosts {
		if h.held == 0 && len(h.waiting) == 0 && !h.parked && now.Sub(h.used) > hostMemory {
			delete(d.hosts, id)
		}
	}
}

// claimable is how many jobs a claim may bring, and which hosts it must leave out. Without any room, the room that comes later
// is signalled.
func (d *dispatcher) claimable() (n int, except []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paused || d.stopped {
		d.wanting = true
		return 0, nil
	}
	except = []int64{}
	for id, h := range d.hosts {
		if d.full(h) {
			except = append(except, id)
		}
	}
	n = max(0, d.most-d.waiting-d.reserved)
	d.wanting = n == 0
	return min(n, claimLimit), except
}

// lanesWithRoom are the lanes of hosts whose tasks wait in the database though their hosts have room, with the room.
func (d *dispatcher) lanesWithRoom() (lanes []int64, room []int32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.paused || d.stopped {
		return nil, nil
	}
	free := d.most - d.waiting - d.reserved
	for id, h := range d.hosts {
		share := d.share(h)
		if n := min(share-len(h.waiting), free); h.parked && n > 0 && len(h.waiting) <= share/2 {
			lanes = append(lanes, id)
			room = append(room, int32(n))
			free -= n
		}
	}
	return lanes, room
}

// setParked notes of which hosts tasks wait in their lanes.
func (d *dispatcher) setParked(ids []int64, parked bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		d.host(id).parked = parked
	}
}

// pauseUnless holds back new attempts while ok is false.
func (d *dispatcher) pauseUnless(ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paused = !ok
	d.pump()
}

// forget drops the jobs of a lost lease that have not started.
func (d *dispatcher) forget(lost *lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.hosts {
		before := len(h.waiting)
		h.waiting = slices.DeleteFunc(h.waiting, func(j *job) bool { return j.lease == lost })
		d.waiting -= before - len(h.waiting)
	}
	d.pump()
}

// cancel marks a task that waits here, so that it is not sent.
func (d *dispatcher) cancel(ids map[uuid.UUID]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.hosts {
		for _, j := range h.waiting {
			if ids[j.message] {
				j.cancelled = true
			}
		}
	}
}

// stop starts nothing more and drops what waits.
func (d *dispatcher) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for _, h := range d.hosts {
		h.waiting = nil
	}
	d.waiting = 0
	d.quiet.Broadcast()
}

// idle reports whether nothing waits or runs.
func (d *dispatcher) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waiting == 0 && d.running == 0
}

// waitQuiet returns when nothing waits or runs.
func (d *dispatcher) waitQuiet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.quiet.Broadcast()
	})
	defer stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.waiting > 0 || d.running > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		d.quiet.Wait()
	}
	return nil
}
