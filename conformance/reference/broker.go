package reference

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	modeGroup        = "__QUEUE_MODE__"
	defaultPartition = "Default"
	implicitLease    = 60 // s, of a queue created by a push or a pop
	resolveFloor     = 900 * time.Second
)

// Broker is the in-memory broker. It is an [http.Handler]; the zero value is not usable, see [New].
type Broker struct {
	mutations map[Mutation]bool
	routes    []route
	id        uuid.UUID
	started   time.Time
	access    *access // nil means that nobody is asked for a token

	mu         sync.Mutex // guards everything below, and all that hangs from it
	offset     time.Duration
	parked     map[string]int // waiting pops by queue, "" for those by namespace or task
	queues     map[string]*queue
	order      []*queue // in order of creation
	partitions map[uuid.UUID]*partition
	streams    map[string]*stream // by name
	notes      []*note            // traces, in order of storing
	dead       []*filing          // in order of their failures
	topics     []*topic           // in order of creation
	schedules  []*schedule        // in order of creation
	changed    chan struct{}      // closed and replaced whenever a parked pop may find something
	seq        int64              // of the last stored message
	call       int64              // of the push that is being stored
	spoiled    bool               // the push that is being stored has met a duplicate; for a defect only

	faults         faultState
	spool          []spooled // oldest first
	spoolBroken    bool      // its last write failed
	drainAfter     time.Time // it is not drained before; for a defect only
	maintenance    bool
	popMaintenance bool
	seeks          int64 // how many there were; for a defect only

	publications map[string]*publication
	published    int                   // how many there were
	pending      []*task               // that are not over, in order of acceptance
	log          []entry               // of all messages
	accepted     map[string]acceptance // by deduplication id
	failures     []*failure            // dead letters of publications, in order
	keys         [2]string             // that sign deliveries: the current one and the next
	oldKey       string                // the current one before the last rotation
	flying       int                   // attempts that are under way
	quiet        *sync.Cond            // signalled when one of them is over
	alarm        time.Time             // when the next attempt is looked for; zero means that no timer runs
	gates        []func(t *task) bool  // each may hold back the attempt of a due task
	ticks        []func()              // each does what the time brings, when the clock has moved

	deliveryQueues map[string]*deliveryQueue
	flows          map[string]*flowKey // by flow control key
}

type queue struct {
	id         uuid.UUID
	name       string
	namespace  string
	task       string
	created    time.Time
	options    options
	partitions []*partition
	groups     map[string]registration
	configured bool       // by configure, not only created by a push or a pop
	last       *partition // that was cleaned up; for a defect only
}

// registration is a consumer group's first pop on a queue.
type registration struct {
	after int64     // messages up to this seq are not for the group
	from  time.Time // messages created before it are not for the group; zero means all are

	created time.Time
	since   time.Time // what is said of both; zero with mode all
}

type partition struct {
	queue    *queue
	id       uuid.UUID
	name     string
	created  time.Time
	messages []*message     // the index is the offset
	start    int            // offset of the first message that retention has left
	latest   map[string]int // offset of the last message with a transaction id
	cursors  map[string]*cursor
}

type message struct {
	id            uuid.UUID
	transactionID string
	created       time.Time
	payload       []byte
	hidden        time.Time // it is not delivered before; for a defect only
	trace         string    // for a defect only
	kept          string    // the traceId that a transaction stored
	producer      string    // for a defect only
	sub           string    // of the token of the producer; "" means none
	traceParent   string    // "" for none
	seq           int64     // global, in order of storing
	call          int64     // the push that stored it
	repeated      time.Time // of its last duplicate; for a defect only
	followed      int64     // the last push with a duplicate of it; for a defect only
	removed       bool      // retention took its payload
}

// cursor is the state of one (partition, group).
type cursor struct {
	committed int         // offset of the first message that is not committed
	retries   int         // failed acks charged to the budget
	attempts  map[int]int // deliveries by offset
	lease     *lease
	touched   time.Time // of the last pop or ack
}

type lease struct {
	id      string
	end     int // offset after the last leased message
	expires time.Time
}

// New returns an empty broker with the given defects.
func New(mutations ...Mutation) *Broker {
	b := &Broker{
		mutations:  map[Mutation]bool{},
		queues:     map[string]*queue{},
		partitions: map[uuid.UUID]*partition{},
		streams:    map[string]*stream{},
		changed:    make(chan struct{}),

		publications: map[string]*publication{},
		accepted:     map[string]acceptance{},
		flows:        map[string]*flowKey{},
		keys:         [2]string{newKey(), newKey()},
		parked:       map[string]int{},

		deliveryQueues: map[string]*deliveryQueue{},

		id:      newID(),
		started: time.Now().UTC(),
	}
	for _, mutation := range mutations {
		b.mutations[mutation] = true
	}
	b.quiet = sync.NewCond(&b.mu)
	b.routes = slices.Concat(
		b.table(), b.groupTable(), b.statsTable(), b.publishTable(), b.topicTable(), b.scheduleTable(), b.gateTable(), b.dlqTable(),
	)
	b.gates = append(b.gates, b.queueAdmits, b.flowAdmits)
	b.ticks = append(b.ticks, b.tickSchedules)
	return b
}

func (b *Broker) has(mutation Mutation) bool { return b.mutations[mutation] }

// now is the broker's time, in the microseconds that the wire shows.
func (b *Broker) now() time.Time { return time.Now().UTC().Add(b.offset).Truncate(time.Microsecond) }

func (b *Broker) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// queueNamed returns the queue, which is created with default options when it does not exist.
func (b *Broker) queueNamed(name string) *queue {
	if q, ok := b.queues[name]; ok {
		return q
	}
	namespace, task := dotted(name)
	q := &queue{
		id: newID(), name: name, namespace: namespace, task: task, created: b.now(),
		options: defaultOptions(), groups: map[string]registration{},
	}
	q.options.numbers["leaseTime"] = implicitLease
	if b.has(WrongImplicitLease) {
		q.options.numbers["leaseTime"] = 300
	}
	if b.has(NamespaceNotDerived) {
		q.namespace, q.task = "", ""
	}
	b.queues[name] = q
	b.order = append(b.order, q)
	return q
}

func (b *Broker) partitionNamed(q *queue, name string) *partition {
	for _, p := range q.partitions {
		if p.name == name {
			return p
		}
	}
	p := &partition{queue: q, id: newID(), name: name, created: b.now(), latest: map[string]int{}, cursors: map[string]*cursor{}}
	if q.last != nil && q.last.name == name {
		p.id = q.last.id
	}
	q.partitions = append(q.partitions, p)
	b.partitions[p.id] = p
	return p
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// live says whether the lease still excludes others.
func (b *Broker) live(l *lease) bool { return l != nil && b.now().Before(l.expires) }

// ServeHTTP implements [http.Handler].
func (b *Broker) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.serve(w, r) }
