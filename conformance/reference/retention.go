package reference

import (
	"math"
	"slices"
	"time"
)

// idleFor is how long an empty partition stays that nothing is pushed to.
const idleFor = 30 * 24 * time.Hour

// The defects of retention and cleanup.
const (
	RetentionNever        Mutation = "retention-never"         // retentionSeconds deletes nothing
	RetentionSparesUnread Mutation = "retention-spares-unread" // retentionSeconds deletes only what every group has passed
	RetentionAlwaysOn     Mutation = "retention-always-on"     // retentionEnabled is not needed
	CompletedByFastest    Mutation = "completed-by-fastest"    // completedRetentionSeconds deletes what one group has passed
	CompletedWithoutGroup Mutation = "completed-without-group" // completedRetentionSeconds deletes what no group is there to pass
	MaxWaitSparesLeased   Mutation = "max-wait-spares-leased"  // maxWaitTimeSeconds keeps what is leased
	MaxWaitNeedsSwitch    Mutation = "max-wait-needs-switch"   // maxWaitTimeSeconds needs retentionEnabled
	HolesAreEmpty         Mutation = "holes-are-empty"         // the first pop of a group whose next messages were deleted is empty
	RemovedStillCounted   Mutation = "removed-still-counted"   // deleted messages are counted
	RemovalEndsLeases     Mutation = "removal-ends-leases"     // a lease ends with the messages it covers
	RemovalForgetsIDs     Mutation = "removal-forgets-ids"     // a deleted message is no original any more
	RemovedIDShown        Mutation = "removed-id-shown"        // a duplicate names an original that was deleted
	RemovedDeadLettered   Mutation = "removed-dead-lettered"   // a deleted message is filed as a dead letter
	DeadLettersNotPinned  Mutation = "dead-letters-not-pinned" // a partition with a dead letter is removed
	CleanupNever          Mutation = "cleanup-never"           // no partition is removed
	CleanupAfterWeek      Mutation = "cleanup-after-week"      // a partition is removed after a week
	CleanupTakesMessages  Mutation = "cleanup-takes-messages"  // an idle partition is removed with its messages
	CleanupKeepsID        Mutation = "cleanup-keeps-id"        // a partition made anew has the id of the one before
)

var retentionMutations = []Mutation{
	RetentionNever,
	RetentionSparesUnread,
	RetentionAlwaysOn,
	CompletedByFastest,
	CompletedWithoutGroup,
	MaxWaitSparesLeased,
	MaxWaitNeedsSwitch,
	HolesAreEmpty,
	RemovedStillCounted,
	RemovalEndsLeases,
	RemovalForgetsIDs,
	RemovedIDShown,
	RemovedDeadLettered,
	DeadLettersNotPinned,
	CleanupNever,
	CleanupAfterWeek,
	CleanupTakesMessages,
	CleanupKeepsID,
}

// retain removes what is past its time, after the clock has moved.
func (b *Broker) retain() {
	for _, q := range b.order {
		for _, p := range slices.Clone(q.partitions) {
			for p.start < len(p.messages) && b.due(p, p.messages[p.start]) {
				b.remove(p)
			}
			if b.unused(p) {
				q.partitions = slices.DeleteFunc(q.partitions, func(other *partition) bool { return other == p })
				delete(b.partitions, p.id)
				if b.has(CleanupKeepsID) {
					q.last = p
				}
			}
		}
	}
}

// due says whether the first message that is still there is past its time.
func (b *Broker) due(p *partition, m *message) bool {
	numbers := p.queue.options.numbers
	older := func(option string) bool {
		limit := time.Duration(numbers[option]) * time.Second
		return limit > 0 && b.now().Sub(m.created) > limit
	}
	enabled := p.queue.options.booleans["retentionEnabled"]
	spared := b.has(MaxWaitSparesLeased) && b.leased(p, p.start)
	if older("maxWaitTimeSeconds") && !spared && (enabled || !b.has(MaxWaitNeedsSwitch)) {
		return true
	}
	if !enabled && !b.has(RetentionAlwaysOn) {
		return false
	}
	passed := b.passed(p)
	if older("retentionSeconds") && !b.has(RetentionNever) && (passed > p.start || !b.has(RetentionSparesUnread)) {
		return true
	}
	return older("completedRetentionSeconds") && passed > p.start
}

// leased says whether a live lease covers an offset.
func (b *Broker) leased(p *partition, offset int) bool {
	for _, c := range p.cursors {
		if b.live(c.lease) && offset >= c.committed && offset < c.lease.end {
			return true
		}
	}
	return false
}

// passed is the offset that every group of the queue has passed; without a group none has.
func (b *Broker) passed(p *partition) int {
	lowest, highest := math.MaxInt, 0
	for name := range p.queue.groups {
		at := b.cursorOf(p, name).committed
		lowest, highest = min(lowest, at), max(highest, at)
	}
	switch {
	case len(p.queue.groups) == 0 && b.has(CompletedWithoutGroup):
		return len(p.messages)
	case len(p.queue.groups) == 0:
		return 0
	case b.has(CompletedByFastest):
		return highest
	}
	return lowest
}

// remove takes the payload of the first message that is still there. Its id goes with it.
func (b *Broker) remove(p *partition) {
	m := p.messages[p.start]
	m.removed = true
	p.start++
	if b.has(RemovalForgetsIDs) {
		delete(p.latest, m.transactionID)
	}
	if b.has(RemovalEndsLeases) {
		for _, c := range p.cursors {
			c.lease = nil
		}
	}
}

// unused says whether a partition is empty and idle, and nothing names it.
func (b *Broker) unused(p *partition) bool {
	if p.start < len(p.messages) && !b.has(CleanupTakesMessages) {
		return false
	}
	last, idle := p.created, idleFor
	if n := len(p.messages); n > 0 {
		last = p.messages[n-1].created
	}
	if b.has(CleanupAfterWeek) {
		idle = 7 * 24 * time.Hour
	}
	if b.deadIn(p) > 0 && !b.has(DeadLettersNotPinned) {
		return false
	}
	for _, c := range p.cursors {
		if b.live(c.lease) {
			return false
		}
	}
	return b.now().Sub(last) > idle && !b.has(CleanupNever)
}

// shownID is the id of a message as a duplicate names it.
func (b *Broker) shownID(m *message) string {
	if m.removed && !b.has(RemovedIDShown) {
		return "00000000-0000-0000-0000-000000000000"
	}
	return m.id.String()
}
