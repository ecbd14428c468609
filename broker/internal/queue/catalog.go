package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dchest/siphash"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// catalog is the broker's memory of queues and partitions. What is in it existed when it was read;
// a deleted queue leaves it when the deletion is folded or the catalog is refreshed.
type catalog struct {
	mu      sync.RWMutex
	queues  map[string]*queueState
	queueID map[int64]*queueState
	byID    map[int64]*partition
	byUUID  map[uuid.UUID]*partition
	version int64              // every change of a queue row up to this version is here
	groups  int64              // every change of a consumer group up to this version is known to the popper
	deleted map[int64]struct{} // queues that must not come back by an answer that is older
}

// queueState is one queue. Everything but the configuration is immutable.
type queueState struct {
	id      int64
	uuid    uuid.UUID
	name    string
	created time.Time
	config  atomic.Pointer[queueConfig]
	removed atomic.Bool

	parts  map[string]*partition // by name; guarded by catalog.mu
	groups map[string]*group     // by name; guarded by popper.mu
}

type queueConfig struct {
	version   int64
	namespace string
	task      string
	options   Options
}

func (q *queueState) public() Queue {
	c := q.config.Load()
	return Queue{ID: q.uuid, Name: q.name, Namespace: c.namespace, Task: c.task, CreatedAt: q.created, Options: c.options}
}

// partition is one ordered lane of a queue.
type partition struct {
	id      int64
	uuid    uuid.UUID
	queue   *queueState
	name    string
	shard   *shard
	created time.Time
	removed atomic.Bool // cleaned up: what is pushed to its name goes to another partition

	// start is the first offset that retention has left, as far as it is known here. It only grows.
	start atomic.Int64

	// tail is the end of the log as far as pops may rely on it: everything before it is committed.
	// It lags behind appends of other brokers. last is when it grew, in µs. Both only grow.
	tail atomic.Int64
	last atomic.Int64

	lane // guarded by shard.mu
}

// gone reports whether the partition, or its queue with it, was removed.
func (p *partition) gone() bool { return p.removed.Load() || p.queue.removed.Load() }

// grow moves the tail forward.
func (p *partition) grow(end int64, at time.Time) {
	growTo(&p.tail, end)
	growTo(&p.last, at.UnixMicro())
}

func growTo(v *atomic.Int64, to int64) {
	for {
		old := v.Load()
		if old >= to || v.CompareAndSwap(old, to) {
			return
		}
	}
}

func newCatalog() *catalog {
	return &catalog{
		queues:  map[string]*queueState{},
		queueID: map[int64]*queueState{},
		byID:    map[int64]*partition{},
		byUUID:  map[uuid.UUID]*partition{},
		deleted: map[int64]struct{}{},
	}
}

func (c *catalog) seen() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.version
}

// catalogState tells whether queues were made, changed or removed.
type catalogState struct {
	version int64
	queues  int
}

func (c *catalog) state() catalogState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return catalogState{c.version, len(c.queues)}
}

func (c *catalog) seenGroups() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.groups
}

func (c *catalog) queue(name string) *queueState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.queues[name]
}

func (c *catalog) queueByID(id int64) *queueState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.queueID[id]
}

func (c *catalog) partition(q *queueState, name string) *partition {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return q.parts[name]
}

func (c *catalog) partitionByID(id int64) *partition {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[id]
}

// matching returns the queues of a namespace and a task, "" matching any.
func (c *catalog) matching(namespace, task string) []*queueState {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var found []*queueState
	for _, q := range c.queues {
		if q.matches(namespace, task) {
			found = append(found, q)
		}
	}
	slices.SortFunc(found, func(a, b *queueState) int { return strings.Compare(a.name, b.name) })
	return found
}

func (q *queueState) matches(namespace, task string) bool {
	c := q.config.Load()
	return (namespace == "" || c.namespace == namespace) && (task == "" || c.task == task)
}

// queueRow is a row of the queue table.
type queueRow struct {
	id        int64
	uuid      uuid.UUID
	name      string
	namespace string
	task      string
	options   []byte
	version   int64
	created   time.Time
}

const queueColumns = `id, uuid, name, namespace, task, options, version, created_at`

func (r *queueRow) fields() []any {
	return []any{&r.id, &r.uuid, &r.name, &r.namespace, &r.task, &r.options, &r.version, &r.created}
}

// learn puts a queue row into memory and returns it with what is known of it. The second result says
// that the row changed what pops by namespace or task may see. A queue that was deleted since is nil.
func (c *catalog) learn(r *queueRow) (*queueState, bool, error) {
	options, err := decodeOptions(r.options)
	if err != nil {
		return nil, false, fmt.Errorf("options of queue %q: %w", r.name, err)
	}
	config := &queueConfig{version: r.version, namespace: r.namespace, task: r.task, options: options}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, deleted := c.deleted[r.id]; deleted {
		return nil, false, nil
	}
	q := c.queueID[r.id]
	if q == nil {
		q = &queueState{
			id: r.id, uuid: r.uuid, name: r.name, created: r.created,
			parts: map[string]*partition{}, groups: map[string]*group{},
		}
		q.config.Store(config)
		c.queueID[r.id] = q
		if old := c.queues[r.name]; old == nil || old.id < r.id {
			c.queues[r.name] = q
		}
		return q, true, nil
	}
	if q.config.Load().version >= r.version {
		return q, false, nil
	}
	q.config.Store(config)
	return q, true, nil
}

// forget removes a deleted queue and its partitions.
func (c *catalog) forget(queueID int64) *queueState {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted[queueID] = struct{}{}
	q := c.queueID[queueID]
	if q == nil {
		return nil
	}
	q.removed.Store(true)
	delete(c.queueID, queueID)
	if c.queues[q.name] == q {
		delete(c.queues, q.name)
	}
	for _, p := range q.parts {
		delete(c.byID, p.id)
		delete(c.byUUID, p.uuid)
	}
	return q
}

// forgetPartition removes a partition that was cleaned up, and returns it if it was known.
func (c *catalog) forgetPartition(id int64) *partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.byID[id]
	if p == nil {
		return nil
	}
	delete(c.byID, id)
	delete(c.byUUID, p.uuid)
	if p.queue.parts[p.name] == p {
		delete(p.queue.parts, p.name)
	}
	return p
}

// storedOptions is how options are kept: whole seconds and milliseconds, as they come over the wire.
type storedOptions struct {
	LeaseTime          int64 `json:"leaseTime"`
	RetryLimit         int   `json:"retryLimit"`
	DeadLetterQueue    bool  `json:"deadLetterQueue"`
	DLQAfterMaxRetries bool  `json:"dlqAfterMaxRetries"`
	DelayedProcessing  int64 `json:"delayedProcessing"`
	WindowBuffer       int64 `json:"windowBuffer"`
	MinPopWaitTime     int64 `json:"minPopWaitTime"` // ms
	RetentionEnabled   bool  `json:"retentionEnabled"`
	RetentionSeconds   int64 `json:"retentionSeconds"`
	CompletedRetention int64 `json:"completedRetentionSeconds"`
	MaxWaitTimeSeconds int64 `json:"maxWaitTimeSeconds"`
	EncryptionEnabled  bool  `json:"encryptionEnabled"`
	DedupWindowSeconds int64 `json:"dedupWindowSeconds"`
	Priority           int   `json:"priority"`
	MaxSize            int   `json:"maxSize"`
	TTL                int   `json:"ttl"`
	RetryDelay         int   `json:"retryDelay"`
}

func encodeOptions(o Options) ([]byte, error) {
	return json.Marshal(storedOptions{
		LeaseTime:          int64(o.LeaseTime / time.Second),
		RetryLimit:         o.RetryLimit,
		DeadLetterQueue:    o.DeadLetterQueue,
		DLQAfterMaxRetries: o.DLQAfterMaxRetries,
		DelayedProcessing:  int64(o.DelayedProcessing / time.Second),
		WindowBuffer:       int64(o.WindowBuffer / time.Second),
		MinPopWaitTime:     int64(o.MinPopWait / time.Millisecond),
		RetentionEnabled:   o.RetentionEnabled,
		RetentionSeconds:   int64(o.Retention / time.Second),
		CompletedRetention: int64(o.CompletedRetention / time.Second),
		MaxWaitTimeSeconds: int64(o.MaxWaitTime / time.Second),
		EncryptionEnabled:  o.EncryptionEnabled,
		DedupWindowSeconds: int64(o.DedupWindow / time.Second),
		Priority:           o.Priority,
		MaxSize:            o.MaxSize,
		TTL:                o.TTL,
		RetryDelay:         o.RetryDelay,
	})
}

func decodeOptions(b []byte) (Options, error) {
	var s storedOptions
	if err := json.Unmarshal(b, &s); err != nil {
		return Options{}, err
	}
	return Options{
		LeaseTime:          time.Duration(s.LeaseTime) * time.Second,
		RetryLimit:         s.RetryLimit,
		DeadLetterQueue:    s.DeadLetterQueue,
		DLQAfterMaxRetries: s.DLQAfterMaxRetries,
		DelayedProcessing:  time.Duration(s.DelayedProcessing) * time.Second,
		WindowBuffer:       time.Duration(s.WindowBuffer) * time.Second,
		MinPopWait:         time.Duration(s.MinPopWaitTime) * time.Millisecond,
		RetentionEnabled:   s.RetentionEnabled,
		Retention:          time.Duration(s.RetentionSeconds) * time.Second,
		CompletedRetention: time.Duration(s.CompletedRetention) * time.Second,
		MaxWaitTime:        time.Duration(s.MaxWaitTimeSeconds) * time.Second,
		EncryptionEnabled:  s.EncryptionEnabled,
		DedupWindow:        time.Duration(s.DedupWindowSeconds) * time.Second,
		Priority:           s.Priority,
		MaxSize:            s.MaxSize,
		TTL:                s.TTL,
		RetryDelay:         s.RetryDelay,
	}, nil
}

const sqlCatalog = `
select ` + queueColumns + `, null::bigint as deleted from queue where version > $1
union all
select queue_id, null, '', '', '', null, version, deleted_at, queue_id from queue_tombstone where version > $1
order by version`

// refreshCatalog learns every queue that was created, configured or deleted since the last time.
func (e *Engine) refreshCatalog(ctx context.Context) error {
	var row queueRow
	var id *uuid.UUID
	var deleted *int64
	fields := row.fields()
	fields[1] = &id
	rows, err := e.pool.Query(ctx, sqlCatalog, e.catalog.seen())
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, append(fields, &deleted), func() error {
		if deleted != nil {
			e.queueDeleted(*deleted)
		} else {
			row.uuid = *id
			q, changed, err := e.catalog.learn(&row)
			if err != nil {
				return err
			}
			if changed {
				e.pops.queueChanged(q)
			}
		}
		e.catalog.mu.Lock()
		e.catalog.version = max(e.catalog.version, row.version)
		e.catalog.mu.Unlock()
		return nil
	})
	return err
}

// queueDeleted forgets a queue that this or another broker deleted.
func (e *Engine) queueDeleted(queueID int64) {
	if q := e.catalog.forget(queueID); q != nil {
		e.pops.queueRemoved(q)
	}
}

// The version is taken under the lock of the setting row until commit, so that versions become
// visible in their order.
const sqlCreateQueues = `
with want as (
    select * from unnest($1::text[], $2::uuid[], $3::text[], $4::text[]) as w (name, uuid, namespace, task)
), found as (
    select ` + queueColumns + ` from queue where name = any ($1)
), bumped as (
    update setting set catalog_version = catalog_version + 1
    where exists (select from want where name not in (select name from found))
    returning catalog_version
), created as (
    insert into queue (uuid, name, namespace, task, options, version, created_at)
    select w.uuid, w.name, w.namespace, w.task, $5, catalog_version, clock_timestamp() + $6::interval
    from want w cross join bumped
    where w.name not in (select name from found)
    on conflict (name) do nothing
    returning ` + queueColumns + `
)
select * from created union all select * from found`

// errRace says that a concurrent change got in between; the statement is run again.
var errRace = errors.New("lost a race too often")

// maxRaces bounds how often a statement that lost a race is run again.
const maxRaces = 10

// queueWant is a caller that needs a queue to exist.
type queueWant struct {
	name  string
	found *queueState
	err   error
	done  chan struct{}
}

// ensureQueue returns the queue, creating it with the defaults of a push or a pop.
func (e *Engine) ensureQueue(ctx context.Context, name string) (*queueState, error) {
	want := e.ensureQueues([]string{name})[name]
	select {
	case <-want.done:
		return want.found, want.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// known is the closed channel of wants that need not wait.
var known = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// ensureQueues begins to create or read the queues that memory does not know. Each want says when it is done.
func (e *Engine) ensureQueues(names []string) map[string]*queueWant {
	wants := make(map[string]*queueWant, len(names))
	var missing []*queueWant
	for _, name := range names {
		if wants[name] != nil {
			continue
		}
		w := &queueWant{name: name, found: e.catalog.queue(name), done: known}
		if w.found == nil {
			w.done = make(chan struct{})
			missing = append(missing, w)
		}
		wants[name] = w
	}
	if len(missing) > 0 {
		e.queueCreator.Add(missing...)
	}
	return wants
}

// createQueues is the work of the queue creator: one statement for all queues that callers wait for.
func (e *Engine) createQueues(wants []*queueWant) {
	open := map[string][]*queueWant{}
	for _, w := range wants {
		open[w.name] = append(open[w.name], w)
	}
	finish := func(name string, q *queueState, err error) {
		for _, w := range open[name] {
			w.found, w.err = q, err
			close(w.done)
		}
		delete(open, name)
	}
	for try := 0; len(open) > 0; try++ {
		err := errRace
		if try < maxRaces {
			err = e.createOpen(open, finish)
		}
		if err != nil {
			for name := range open {
				finish(name, nil, err)
			}
		}
	}
}

// createOpen creates or reads the open queues and finishes those that the statement answered: one that
// another broker created at the same moment is only seen by the next.
func (e *Engine) createOpen(open map[string][]*queueWant, finish func(string, *queueState, error)) error {
	options := DefaultOptions()
	options.LeaseTime = ImplicitLeaseTime
	encoded, err := encodeOptions(options)
	if err != nil {
		return err
	}
	var names, uuids, namespaces, tasks []string
	for name := range open {
		namespace, task := splitName(name)
		names, uuids = append(names, name), append(uuids, uuid.NewString())
		namespaces, tasks = append(namespaces, namespace), append(tasks, task)
	}
	var rows []queueRow
	err = e.retrying(e.ctx, "create queues", func(ctx context.Context) error {
		rows = nil
		answer, _ := e.pool.Query(ctx, sqlCreateQueues, names, uuids, namespaces, tasks, encoded, e.clockOffset()) // its error comes with the rows
		var row queueRow
		_, err := pgx.ForEachRow(answer, row.fields(), func() error {
			rows = append(rows, row)
			return nil
		})
		return err
	})
	if err != nil {
		return err
	}
	for i := range rows {
		q, changed, err := e.catalog.learn(&rows[i])
		if changed {
			e.pops.queueChanged(q)
		}
		if q != nil || err != nil {
			finish(rows[i].name, q, err)
		}
	}
	return nil
}

// splitName derives namespace and task of a queue that was never configured: the text before the
// first dot, and the text between the first and the second.
func splitName(name string) (namespace, task string) {
	parts := strings.SplitN(name, ".", 3)
	if len(parts) < 2 {
		return "", ""
	}
	return parts[0], parts[1]
}

const sqlConfigure = `
with bumped as (
    update setting set catalog_version = catalog_version + 1 returning catalog_version
)
insert into queue (uuid, name, namespace, task, options, version, created_at)
select $2, $1, $3, $4, $5, catalog_version, clock_timestamp() + $6::interval from bumped
on conflict (name) do update
    set namespace = excluded.namespace, task = excluded.task, options = excluded.options, version = excluded.version
returning ` + queueColumns

// Configure replaces the whole configuration of a queue, creating it if need be. The error is ErrNoKey when
// strict encryption asks for a key that is not there.
func (e *Engine) Configure(ctx context.Context, name, namespace, task string, options Options) (Queue, error) {
	if options.EncryptionEnabled && e.sealing.keys == nil {
		if e.sealing.strict {
			return Queue{}, ErrNoKey
		}
		e.log.Warn("a queue is to be encrypted, but there is no encryption key: its messages are stored as they are", "queue", name)
	}
	encoded, err := encodeOptions(options)
	if err != nil {
		return Queue{}, err
	}
	var row queueRow
	err = e.retrying(ctx, "configure", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlConfigure, name, uuid.New(), namespace, task, encoded, e.clockOffset()).
			Scan(row.fields()...)
	})
	if err != nil {
		return Queue{}, err
	}
	q, _, err := e.catalog.learn(&row)
	if err != nil {
		return Queue{}, err
	}
	if q == nil {
		return Queue{}, fmt.Errorf("configure: %w: the queue was deleted at the same time", errRace)
	}
	e.pops.queueChanged(q)
	return q.public(), nil
}

// partitionWant is a caller that needs a partition to exist.
type partitionWant struct {
	queue *queueState
	name  string
	found *partition
	err   error
	done  func()
}

// ensurePartitions fills in the partition of each want that memory knows, and creates or reads the others.
func (e *Engine) ensurePartitions(wants []*partitionWant) {
	var missing []*partitionWant
	e.catalog.mu.RLock()
	for _, w := range wants {
		if w.found = w.queue.parts[w.name]; w.found == nil {
			missing = append(missing, w)
		}
	}
	e.catalog.mu.RUnlock()
	if len(missing) == 0 {
		return
	}
	var wait sync.WaitGroup
	wait.Add(len(missing))
	for _, w := range missing {
		w.done = wait.Done
	}
	e.creator.Add(missing...)
	wait.Wait()
}

const sqlCreatePartitions = `
with want as (
    select distinct on (w.queue_id, w.name) w.*
    from unnest($1::bigint[], $2::text[], $3::uuid[], $4::integer[]) as w (queue_id, name, uuid, shard)
    join queue q on q.id = w.queue_id
    order by w.queue_id, w.name
), created as (
    insert into partition (queue_id, name, uuid, shard, created_at)
    select queue_id, name, uuid, shard, clock_timestamp() + $5::interval from want
    on conflict (queue_id, name) do nothing
    returning id, uuid, queue_id, name, shard, created_at
)
select * from created
union all
select p.id, p.uuid, p.queue_id, p.name, p.shard, p.created_at
from want join partition p on p.queue_id = want.queue_id and p.name = want.name`

type partitionKey struct {
	queueID int64
	name    string
}

// createPartitions is the work of the creator: one statement for all partitions that pushes wait for.
func (e *Engine) createPartitions(wants []*partitionWant) {
	defer func() {
		for _, w := range wants {
			w.done()
		}
	}()
	pending := wants
	for range maxRaces {
		queueIDs := make([]int64, len(pending))
		names := make([]string, len(pending))
		uuids := make([]string, len(pending))
		shards := make([]int32, len(pending))
		for i, w := range pending {
			queueIDs[i], names[i], uuids[i] = w.queue.id, w.name, uuid.NewString()
			shards[i] = int32(siphash.Hash(uint64(w.queue.id), e.hashKey[0], []byte(w.name)) % uint64(len(e.shards)))
		}
		found := map[partitionKey]*partition{}
		err := e.retrying(e.ctx, "create partitions", func(ctx context.Context) error {
			rows, err := e.pool.Query(ctx, sqlCreatePartitions, queueIDs, names, uuids, shards, e.clockOffset())
			if err != nil {
				return err
			}
			var r partitionRow
			_, err = pgx.ForEachRow(rows, r.fields(), func() error {
				if p := e.learnPartition(&r); p != nil {
					found[partitionKey{r.queueID, r.name}] = p
				}
				return nil
			})
			return err
		})
		var missing []*partitionWant
		for _, w := range pending {
			w.err = err
			if w.found = found[partitionKey{w.queue.id, w.name}]; w.found == nil && err == nil {
				if w.queue.removed.Load() {
					w.err = ErrQueueNotFound
				} else {
					missing = append(missing, w)
				}
			}
		}
		if len(missing) == 0 {
			return
		}
		pending = missing
		if err := e.refresh(); err != nil { // perhaps their queue was deleted by another broker
			for _, w := range pending {
				w.err = err
			}
			return
		}
	}
	for _, w := range pending {
		w.err = fmt.Errorf("create partitions: %w", errRace)
	}
}

func (e *Engine) refresh() error {
	return e.retrying(e.ctx, "read the queues", e.refreshCatalog)
}

type partitionRow struct {
	id      int64
	uuid    uuid.UUID
	queueID int64
	name    string
	shard   int
	created time.Time
}

func (r *partitionRow) fields() []any {
	return []any{&r.id, &r.uuid, &r.queueID, &r.name, &r.shard, &r.created}
}

// learnPartition puts a partition row into memory; nil when its queue is not known (any more). Of two
// rows of one name the later one holds: the earlier partition was cleaned up.
func (e *Engine) learnPartition(r *partitionRow) *partition {
	p, replaced := e.catalog.learnPartition(r, e.shards)
	if replaced != nil {
		e.partitionRemoved(replaced.id)
	}
	return p
}

func (c *catalog) learnPartition(r *partitionRow, shards []*shard) (p, replaced *partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byID[r.id]; p != nil {
		return p, nil
	}
	q := c.queueID[r.queueID]
	if q == nil || r.shard < 0 || r.shard >= len(shards) {
		return nil, nil
	}
	p = &partition{id: r.id, uuid: r.uuid, queue: q, name: r.name, shard: shards[r.shard], created: r.created}
	if old := q.parts[r.name]; old == nil || old.id < p.id {
		q.parts[r.name], replaced = p, old
	}
	c.byID[p.id] = p
	c.byUUID[p.uuid] = p
	return p, replaced
}

const sqlPartitionByUUID = `
select p.id, p.uuid, p.queue_id, p.name, p.shard, p.created_at
from partition p join queue q on q.id = p.queue_id
where p.uuid = $1`

// partitionByUUID returns the partition, or nil when there is none.
func (e *Engine) partitionByUUID(ctx context.Context, id uuid.UUID) (*partition, error) {
	e.catalog.mu.RLock()
	p := e.catalog.byUUID[id]
	e.catalog.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	return e.readPartition(ctx, sqlPartitionByUUID, id)
}

const sqlPartitionByName = `
select p.id, p.uuid, p.queue_id, p.name, p.shard, p.created_at
from partition p where p.queue_id = $1 and p.name = $2`

// partitionByName returns the partition, or nil when there is none.
func (e *Engine) partitionByName(ctx context.Context, q *queueState, name string) (*partition, error) {
	if p := e.catalog.partition(q, name); p != nil {
		return p, nil
	}
	return e.readPartition(ctx, sqlPartitionByName, q.id, name)
}

func (e *Engine) readPartition(ctx context.Context, sql string, args ...any) (*partition, error) {
	var r partitionRow
	err := e.retrying(ctx, "read a partition", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sql, args...).Scan(r.fields()...)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // absence is an ordinary answer here
	}
	if err != nil {
		return nil, err
	}
	if p := e.learnPartition(&r); p != nil {
		return p, nil
	}
	if err := e.refresh(); err != nil {
		return nil, err
	}
	return e.learnPartition(&r), nil
}
