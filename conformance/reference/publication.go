package reference

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// outgoing is what somebody asks to be delivered by HTTP: a publish, a schedule, a callback or the retry of a dead letter.
type outgoing struct {
	targets []target // at least one; each is delivered to and retried by itself
	method  string
	header  http.Header // as it is delivered
	body    []byte

	delay     time.Duration
	notBefore time.Time // of the first attempt, instead of delay; zero means that delay counts

	topicID, topic string // the group of the targets; "" means none
	queue          string // the delivery queue; "" means none
	transactionID  string // of what goes to an ordered queue; "" means that of the message
	scheduleID     string // the schedule that made it; "" means none
	flow           flow
	labels         []string
	callerIP       string

	retries    int
	retryDelay string        // an expression in milliseconds; "" means the default backoff
	timeout    time.Duration // of an attempt; 0 means the broker's
	redact     redaction

	callback, failureCallback *callback // nil means nobody
	about                     *task     // what a callback tells of; nil means that it is none
}

// target is one destination of a message.
type target struct{ url, name, endpointID string }

// flow is what a message says of its flow control key; no key means that it has none, 0 that there is no bound.
type flow struct {
	key               string
	parallelism, rate int
	period            time.Duration
}

// callback is whom to tell of a message, and how.
type callback struct {
	url, method string
	header      http.Header
	given       http.Header    // its headers as they came, prefix cut
	retries     *int           // nil means those of the message
	retryDelay  string         // "" means that of the message
	delay       time.Duration  //
	timeout     *time.Duration // nil means that of the message
}

// publication is a message that was accepted.
type publication struct {
	outgoing
	id      string
	seq     int // order of acceptance
	created time.Time
	first   time.Time // when the first attempt is due
	tasks   []*task   // one per target
}

// task is the delivery of a message to one of its targets.
type task struct {
	*publication
	target
	index int

	due       time.Time // of the next attempt
	retried   int       // attempts that are over
	flying    bool      // an attempt is under way
	cancelled bool      // no other attempt begins
	finished  bool

	state     string // of the last entry
	fault     string // of the last attempt that failed
	erred     time.Time
	completed time.Time
}

// id names the task of a message's first target after the message.
func (t *task) id() string {
	id := "tsk_" + strings.TrimPrefix(t.publication.id, "msg_")
	if t.index > 0 {
		id += "_" + strconv.Itoa(t.index)
	}
	return id
}

// entry is one line of the log of all messages.
type entry struct {
	seq   int
	at    time.Time
	task  *task
	state string
	next  time.Time // of the next attempt; zero means that none follows
	fault string
	reply *reply // nil means that the entry tells of none
}

// note writes a line of the log.
func (b *Broker) note(t *task, e entry) {
	e.seq, e.at, e.task = len(b.log)+1, b.now(), t
	b.log = append(b.log, e)
	t.state = e.state
	switch e.state {
	case "ERROR":
		t.fault, t.erred = e.fault, e.at
	case "DELIVERED", "FAILED", "CANCELED":
		t.completed = e.at
	}
}

// acceptance is what became of a publish.
type acceptance struct {
	ids       []string // of the messages; of the original's when it is a duplicate
	schedule  string   // the original when that was a schedule
	at        time.Time
	duplicate bool
}

// publishWindow is how long a deduplication id counts.
const publishWindow = 90 * 24 * time.Hour

// firstPublish is what a deduplication id stands for.
func (b *Broker) firstPublish(id string) (acceptance, bool) {
	window := publishWindow
	if b.has(PublishWindowDoubled) {
		window *= 2
	}
	if b.has(PublishWindowHalved) {
		window /= 2
	}
	original, ok := b.accepted[id]
	if !ok || id == "" || b.now().Sub(original.at) >= window || b.has(PublishDedupIgnored) {
		return acceptance{}, false
	}
	original.duplicate = true
	return original, true
}

// remember lets a deduplication id, unless it is "", stand for what was accepted.
func (b *Broker) remember(id string, a acceptance) {
	if id != "" {
		b.accepted[id] = a
	}
}

// accept accepts messages together, unless they are a duplicate, and begins to deliver them. No id means that they are none.
func (b *Broker) accept(id string, messages ...outgoing) acceptance {
	original, duplicate := b.firstPublish(id)
	if duplicate && !b.has(PublishDuplicateDelivered) && !b.has(PublishDuplicateNewID) {
		return original
	}
	fresh := acceptance{at: b.now()}
	for _, m := range messages {
		m.transactionID = id
		p := &publication{outgoing: m, id: newMessageID(), created: b.now()}
		fresh.ids = append(fresh.ids, p.id)
		if !duplicate || b.has(PublishDuplicateDelivered) {
			b.takeIn(p)
		}
	}
	switch {
	case duplicate && b.has(PublishDuplicateNewID):
		original.ids = fresh.ids
	case !duplicate:
		b.remember(id, fresh)
		original = fresh
	}
	b.startDue()
	return original
}

// takeIn gives a message its tasks.
func (b *Broker) takeIn(p *publication) {
	b.published++
	p.seq = b.published
	p.first = p.created.Add(p.delay)
	if !p.notBefore.IsZero() {
		p.first = p.notBefore
	}
	if p.first.Before(p.created) {
		p.first = p.created
		if b.has(PastTimesWait) {
			p.first = p.created.Add(2 * alarmHorizon)
		}
	}
	for i, at := range p.targets {
		t := &task{publication: p, target: at, index: i, due: p.first}
		p.tasks = append(p.tasks, t)
		b.pending = append(b.pending, t)
		b.note(t, entry{state: "CREATED", next: p.first})
	}
	b.publications[p.id] = p
	b.enlist(p)
}

func newMessageID() string {
	return "msg_" + strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", "")
}

// inOrder are all messages, the oldest first.
func (b *Broker) inOrder() []*publication {
	all := make([]*publication, 0, len(b.publications))
	for _, p := range b.publications {
		all = append(all, p)
	}
	slices.SortFunc(all, func(x, y *publication) int { return x.seq - y.seq })
	return all
}

// open says whether some delivery of the message is not over and was not cancelled.
func (p *publication) open() bool {
	return slices.ContainsFunc(p.tasks, func(t *task) bool { return !t.finished && !t.cancelled })
}

// cancel ends a message: what waits at once, an attempt under way when it is over.
func (b *Broker) cancel(p *publication) {
	for _, t := range p.tasks {
		if t.finished || t.cancelled {
			continue
		}
		t.cancelled = !b.has(CancelDoesNothing)
		if !b.has(CancelNotLogged) {
			b.note(t, entry{state: "CANCEL_REQUESTED"})
		}
		if !t.flying || b.has(CancelAborts) {
			b.note(t, entry{state: "CANCELED"})
			if t.cancelled {
				b.finish(t)
			}
		}
	}
	b.startDue()
}

// finish takes a task off what is to be done.
func (b *Broker) finish(t *task) {
	t.finished = true
	b.pending = slices.DeleteFunc(b.pending, func(other *task) bool { return other == t })
}
