package queue

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/posthorn/posthorn/broker/internal/batch"
	"github.com/posthorn/posthorn/broker/internal/clock"
	"github.com/posthorn/posthorn/broker/internal/fault"
	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/seal"
	"github.com/posthorn/posthorn/broker/internal/spool"
)

// Config configures an Engine. The zero value of each field means its default.
type Config struct {
	Shards            int                   // heads that appends compete for; fixed at first start; default 8
	Writers           int                   // flushes in the air at the same time; default 2
	HoldWindow        time.Duration         // how long an append waits for company; default 0, at once
	DedupCacheBytes   int64                 // memory for deduplication; default 512 MiB
	SegmentCacheBytes int64                 // memory for recent segments; default 64 MiB
	StatementTimeout  time.Duration         // deadline of one statement; default 10 s
	StatsInterval     time.Duration         // how often appends are added to the counts, and the broker reports; default 5 s
	TrafficKept       time.Duration         // how long figures by the hour are kept; default 30 days
	TraceRetention    time.Duration         // how long traces are kept; default 7 days, negative for ever
	LagQueues         int                   // queues whose lag the metrics show, those furthest behind; default 100, negative none
	Version           string                // of the broker, for its reports; default none
	Testing           bool                  // the test clock may be advanced; default false
	Logger            *slog.Logger          // default slog.Default()
	Metrics           prometheus.Registerer // default none
	DrainInterval     time.Duration         // pause between two looks into the spool; default 500 ms
	DrainRecords      int                   // most records that a drain moves at a time; default 2000
	Spool             *spool.Spool          // takes pushes while PostgreSQL is away; default none, they fail
	Keys              *seal.Keys            // encrypt the queues that ask for it; default none
	StrictEncryption  bool                  // nothing of such a queue is ever stored as it is; default false
	Faults            *fault.Set            // what a test lets fail; default none

	RetentionInterval time.Duration // how often what queues no longer keep is removed; default 5 s
	RetentionBatch    int           // segments that one transaction of retention removes at most; default 1000
	PartitionIdle     time.Duration // how long an empty partition stays; default 30 days
	KeepPartitions    bool          // empty partitions stay for ever; default false

	// HashBits keeps only so many bits of the transaction ids' hashes, to force collisions in
	// tests; default 0, all 64. All brokers of a database must agree.
	HashBits int
}

func (c Config) withDefaults() Config {
	if c.Shards <= 0 {
		c.Shards = 8
	}
	if c.Writers <= 0 {
		c.Writers = 2
	}
	if c.DedupCacheBytes <= 0 {
		c.DedupCacheBytes = 512 << 20
	}
	if c.SegmentCacheBytes <= 0 {
		c.SegmentCacheBytes = 64 << 20
	}
	if c.DrainInterval <= 0 {
		c.DrainInterval = pollIdle
	}
	if c.DrainRecords <= 0 {
		c.DrainRecords = drainRecords
	}
	if c.StatementTimeout <= 0 {
		c.StatementTimeout = 10 * time.Second
	}
	if c.StatsInterval <= 0 {
		c.StatsInterval = 5 * time.Second
	}
	if c.LagQueues == 0 {
		c.LagQueues = 100
	}
	if c.TraceRetention == 0 {
		c.TraceRetention = 7 * 24 * time.Hour
	}
	if c.TrafficKept <= 0 {
		c.TrafficKept = 30 * 24 * time.Hour
	}
	if c.RetentionInterval <= 0 {
		c.RetentionInterval = 5 * time.Second
	}
	if c.RetentionBatch <= 0 {
		c.RetentionBatch = 1000
	}
	if c.PartitionIdle <= 0 {
		c.PartitionIdle = 30 * 24 * time.Hour
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// How often the broker looks whether another broker has appended.
const (
	pollWaiting = 50 * time.Millisecond // while pops are parked
	pollIdle    = 500 * time.Millisecond
	pollDown    = 250 * time.Millisecond // while PostgreSQL is away
)

// Engine is the partitioned log of one broker. Any number of engines may share a database.
type Engine struct {
	cfg     Config
	pool    *pgxpool.Pool
	log     *slog.Logger
	clock   *clock.Database
	started time.Time // by the database's clock
	metrics *metrics

	hashKey  [2]uint64
	hashMask uint64 // all ones; tests force collisions with fewer
	shards   []*shard
	offset   atomic.Int64 // the test clock's offset, in ns; 0 in production

	catalog      *catalog
	outage       *outage
	sealing      sealing
	modes        modes
	loads        singleflight.Group // of consumer groups
	segments     *segmentCache
	traffic      *trafficCounter
	reports      *reporter
	lags         lagCache
	queueList    queueList
	pops         *popper
	acks         *batch.Batcher[*ackGroup]
	queueCreator *batch.Batcher[*queueWant]
	creator      *batch.Batcher[*partitionWant]
	loader       *batch.Batcher[*shard]
	confirm      *batch.Batcher[*pushGroup]
	prover       *batch.Batcher[*pushGroup]
	heads        *batch.Batcher[*headCheck]
	counts       *batch.Batcher[*countRequest]
	retention    *retention

	work      chan struct{}   // wakes writers
	tidyNow   chan struct{}   // wakes the sweep
	inflight  gate            // pushes and acks being answered
	ctx       context.Context // ends with Stop
	endless   context.Context // for writes to the disk, which are not taken back
	cancel    context.CancelFunc
	loops     sync.WaitGroup
	stopDrain context.CancelFunc
	drains    sync.WaitGroup
	stopOnce  sync.Once
}

const sqlSetting = `
insert into setting (hash_key, shards) values ($1, $2) on conflict do nothing`

const sqlReadSetting = `
select hash_key, shards, clock_offset, clock_timestamp() + clock_offset from setting`

const sqlSeedShards = `
insert into shard (id, head) select i, 0 from generate_series(0, $1::int - 1) as i on conflict do nothing`

const sqlSeedCounts = `
insert into count_progress (shard, seq) select i, 0 from generate_series(0, $1::int - 1) as i on conflict do nothing`

const sqlHeads = `
select s.id, s.head, g.catalog_version, l.version, g.maintenance, g.pop_maintenance, g.mode_version,
       g.clock_offset, clock_timestamp() + g.clock_offset
from shard s cross join setting g cross join group_log l
order by s.id`

// Open prepares an engine on a migrated database. Start starts it.
func Open(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	e := &Engine{
		cfg:      cfg,
		pool:     pool,
		log:      cfg.Logger,
		clock:    &clock.Database{},
		catalog:  newCatalog(),
		work:     make(chan struct{}, cfg.Writers),
		tidyNow:  make(chan struct{}, 1),
		hashMask: ^uint64(0),
	}
	if cfg.HashBits > 0 {
		e.hashMask = 1<<cfg.HashBits - 1
	}
	key := make([]byte, 16)
	_, err := rand.Read(key)
	if err != nil {
		return nil, fmt.Errorf("mint the hash key: %w", err)
	}
	if _, err := pool.Exec(ctx, sqlSetting, key, cfg.Shards); err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	var shards int
	var offset time.Duration
	var now time.Time
	if err := pool.QueryRow(ctx, sqlReadSetting).Scan(&key, &shards, &offset, &now); err != nil {
		return nil, fmt.Errorf("read the log's settings: %w", err)
	}
	if len(key) != 16 {
		return nil, fmt.Errorf("read the log's settings: hash key of %d bytes, want 16", len(key))
	}
	if shards != cfg.Shards {
		e.log.Info("the number of shards was fixed when the database was first used", "shards", shards, "configured", cfg.Shards)
	}
	e.hashKey = [2]uint64{binary.LittleEndian.Uint64(key), binary.LittleEndian.Uint64(key[8:])}
	e.offset.Store(int64(offset))
	e.clock.Observe(now)
	e.started = now
	if e.reports, err = newReporter(); err != nil {
		return nil, fmt.Errorf("name the broker: %w", err)
	}
	if _, err := pool.Exec(ctx, sqlSeedShards, shards); err != nil {
		return nil, fmt.Errorf("create the shards: %w", err)
	}
	if _, err := pool.Exec(ctx, sqlSeedCounts, shards); err != nil {
		return nil, fmt.Errorf("prepare the counts: %w", err)
	}
	for id := range shards {
		e.shards = append(e.shards, newShard(id, cfg.DedupCacheBytes/int64(shards)))
	}
	e.outage = newOutage(cfg.Spool)
	e.traffic = newTrafficCounter()
	e.sealing.keys, e.sealing.strict = cfg.Keys, cfg.StrictEncryption
	e.segments = newSegmentCache(cfg.SegmentCacheBytes)
	e.pops = newPopper(e)
	e.acks = batch.New(1, 0, e.ackBatch) // more in the air only makes smaller batches
	e.queueCreator = batch.New(1, 0, e.createQueues)
	e.creator = batch.New(1, 0, e.createPartitions)
	e.loader = batch.New(2, 0, e.loadShards)
	e.confirm = batch.New(2, 0, e.confirmGroups)
	e.prover = batch.New(1, 0, e.proveGroups)
	e.heads = batch.New(1, 0, e.checkHeads)
	e.counts = batch.New(1, 0, e.countFor)
	e.retention = newRetention()
	e.metrics = newMetrics(cfg.Metrics, e)
	return e, nil
}

// Start reads where the log stands and starts the engine's goroutines. They end with Stop, not with ctx.
func (e *Engine) Start(ctx context.Context) error {
	heads, err := e.readHeads(ctx)
	if err != nil {
		return fmt.Errorf("read the shards: %w", err)
	}
	for _, s := range e.shards {
		s.folded = heads.head[s.id]
	}
	if err := e.refreshCatalog(ctx); err != nil {
		return fmt.Errorf("read the queues: %w", err)
	}
	e.catalog.groups = heads.groups // no group is in memory yet
	e.endless = context.WithoutCancel(ctx)
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for range e.cfg.Writers {
		e.goLoop(e.writeLoop)
	}
	e.goLoop(e.pollLoop)
	e.goLoop(e.timerLoop)
	e.goLoop(e.sweepLoop)
	e.goLoop(e.lateLoop)
	e.goLoop(e.statsLoop)
	e.goLoop(e.trafficLoop)
	e.goLoop(e.retentionLoop)
	e.goLoop(e.outboxLoop)
	drain, stopDrain := context.WithCancel(context.WithoutCancel(ctx))
	e.stopDrain = stopDrain
	e.drains.Go(func() { e.drainLoop(drain) })
	return nil
}

func (e *Engine) goLoop(loop func(context.Context)) {
	e.loops.Go(func() { loop(e.ctx) })
}

// Drain answers parked pops and parks no more. What is in flight goes on.
func (e *Engine) Drain() { e.pops.drain() }

// Stop finishes what is in flight and ends the engine's goroutines. Calling it again does nothing.
func (e *Engine) Stop() {
	e.stopOnce.Do(func() {
		e.Drain()
		e.inflight.close()
		if e.stopDrain != nil {
			e.stopDrain() // first: what it has handed to the writers is finished
			e.drains.Wait()
		}
		if e.cancel != nil {
			e.cancel()
		}
		e.loops.Wait()
		e.pops.wait()
		e.acks.Wait()
		e.queueCreator.Wait()
		e.creator.Wait()
		e.loader.Wait()
		e.confirm.Wait()
		e.prover.Wait()
		e.heads.Wait()
		e.counts.Wait()
		if e.endless != nil {
			e.lastWords(e.endless)
		}
		if e.cancel != nil {
			e.resign(context.Background())
			e.leaveSpool(context.Background())
		}
	})
}

// Now estimates the database's time, the test clock's offset included.
func (e *Engine) Now() time.Time { return e.clock.Now() }

// clockOffset is what every statement adds to the database's clock.
func (e *Engine) clockOffset() time.Duration { return time.Duration(e.offset.Load()) }

// What brokers say of spools without a record is relative to now, and moves along.
const sqlAdvanceClock = `
with moved as (
    update broker_spool set oldest_at = oldest_at + $1 where records = 0
)
update setting set clock_offset = clock_offset + $1 returning clock_offset, clock_timestamp() + clock_offset`

// settleTimeout bounds what an advance of the test clock makes due.
const settleTimeout = time.Minute

// AdvanceClock moves the test clock of all brokers of this database forward. It returns the new
// time once what became due has been worked on by this broker.
func (e *Engine) AdvanceClock(ctx context.Context, d time.Duration) (time.Time, error) {
	if !e.cfg.Testing || d <= 0 {
		return time.Time{}, fmt.Errorf("advance the clock by %v: the test clock only runs forward, and only in testing", d)
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	bounded, cancel := e.deadline(ctx)
	defer cancel()
	if err := e.writeTraffic(ctx); err != nil { // it belongs to the time before
		return time.Time{}, err
	}
	var offset time.Duration
	var now time.Time
	if err := e.pool.QueryRow(bounded, sqlAdvanceClock, d).Scan(&offset, &now); err != nil {
		return time.Time{}, e.unavailable("advance the clock", err)
	}
	e.setOffset(offset, now)
	if err := e.settleRetention(ctx); err != nil {
		return time.Time{}, err
	}
	if err := e.trimTraces(ctx); err != nil {
		return time.Time{}, e.unavailable("remove old traces", err)
	}
	return now, e.pops.settleDue(ctx)
}

// ClockOffset is how far the test clock has been advanced.
func (e *Engine) ClockOffset() time.Duration { return e.clockOffset() }

// setOffset takes the test clock's offset, and the time with it, from an answer. The offset only grows: a
// smaller one was read before.
func (e *Engine) setOffset(offset time.Duration, now time.Time) {
	for {
		old := e.offset.Load()
		switch {
		case int64(offset) < old:
			return
		case int64(offset) == old:
			e.clock.Observe(now)
			return
		case e.offset.CompareAndSwap(old, int64(offset)):
			e.clock.Moved(now)
			e.pops.wakeTimers()
			return
		}
	}
}

const sqlPing = `
select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
       current_setting('synchronous_standby_names'), clock_timestamp() + $1::interval`

// Ping asks the database for a sign of life and for how durable it is set.
func (e *Engine) Ping(ctx context.Context) (Database, error) {
	var db Database
	var now time.Time
	err := e.pool.QueryRow(ctx, sqlPing, e.clockOffset()).
		Scan(&db.Version, &db.Fsync, &db.SynchronousCommit, &db.SynchronousStandbyNames, &now)
	if err != nil {
		return Database{}, e.unavailable("ping", err)
	}
	e.clock.Observe(now)
	return db, nil
}

// deadline bounds one statement.
func (e *Engine) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.cfg.StatementTimeout)
}

// latest is the database time after which a statement must not take effect any more: when the
// caller gives up on it. A statement may reach a server that was frozen much later.
func (e *Engine) latest(ctx context.Context) time.Time {
	left := e.cfg.StatementTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	return e.clock.Now().Add(left)
}

// unavailable wraps a failure to reach the database as ErrUnavailable, and drops the pool's
// connections when one of them was lost: the others have most likely died with it.
func (e *Engine) unavailable(doing string, err error) error {
	if pg.Unavailable(err) {
		e.dropConnections(err)
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func (e *Engine) dropConnections(err error) {
	if pg.UnknownOutcome(err) || pg.Unavailable(err) {
		e.metrics.connectionsDropped.Inc()
		e.metrics.counted.dropped.Add(1)
		e.pool.Reset()
	}
}

// retrying runs a statement that may be repeated, once more after a lost connection or a lost race for
// a lock. Both attempts together have the time of one statement.
func (e *Engine) retrying(ctx context.Context, doing string, statement func(context.Context) error) error {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	for attempt := 1; ; attempt++ {
		err := statement(ctx)
		if err == nil {
			return nil
		}
		again := pg.Retryable(err) || pg.Unavailable(err)
		if attempt == 2 || !again || ctx.Err() != nil {
			return e.unavailable(doing, err)
		}
		e.dropConnections(err)
	}
}

// querier is a pool or a transaction.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// headState is what one look at the shards saw.
type headState struct {
	head    []int64
	version int64 // of the catalog
	groups  int64 // of the log of consumer groups
	modes   Modes
}

func (e *Engine) readHeads(ctx context.Context) (headState, error) {
	heads := headState{head: make([]int64, len(e.shards))}
	var offset time.Duration
	var now time.Time
	var id int
	var head int64
	rows, err := e.pool.Query(ctx, sqlHeads)
	if err != nil {
		return heads, err
	}
	_, err = pgx.ForEachRow(rows, []any{
		&id, &head, &heads.version, &heads.groups,
		&heads.modes.Maintenance, &heads.modes.PopMaintenance, &heads.modes.version, &offset, &now,
	}, func() error {
		if id < 0 || id >= len(heads.head) {
			return fmt.Errorf("shard %d of %d", id, len(heads.head))
		}
		heads.head[id] = head
		return nil
	})
	if err != nil {
		return heads, err
	}
	e.setOffset(offset, now)
	e.setModes(heads.modes)
	return heads, nil
}

// headCheck is a caller that wants everything committed before now to be in the broker's memory.
type headCheck struct {
	done chan error
}

// catchUp makes everything that any broker committed before the call visible to this broker's pops.
func (e *Engine) catchUp(ctx context.Context) error {
	check := &headCheck{done: make(chan error, 1)}
	e.heads.Add(check)
	select {
	case err := <-check.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Engine) checkHeads(checks []*headCheck) {
	err := e.checkAppends(e.ctx)
	for _, c := range checks {
		c.done <- err
	}
}

// checkAppends takes everything into memory that was committed before the call.
func (e *Engine) checkAppends(ctx context.Context) error {
	return e.retrying(ctx, "look for appends", func(ctx context.Context) error {
		heads, err := e.readHeads(ctx)
		if err != nil {
			return err
		}
		if heads.version > e.catalog.seen() {
			if err := e.refreshCatalog(ctx); err != nil {
				return err
			}
		}
		if heads.groups > e.catalog.seenGroups() {
			if err := e.refreshGroups(ctx); err != nil {
				return err
			}
		}
		for i, s := range e.shards {
			if err := e.foldTo(ctx, s, heads.head[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// aliveWithin is how soon PostgreSQL answers the simplest of questions if it is there at all.
const aliveWithin = time.Second

func (e *Engine) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, aliveWithin)
	defer cancel()
	_, err := e.Ping(ctx)
	return err == nil
}

// pollLoop looks for what other brokers appended, often while pops are parked. It is also what finds
// out that PostgreSQL has gone, and that it is back.
func (e *Engine) pollLoop(ctx context.Context) {
	for {
		interval := pollIdle
		switch {
		case e.outage.isDown():
			interval = pollDown
		case e.pops.parked() > 0:
			interval = pollWaiting
		}
		select {
		case <-ctx.Done():
			return
		case <-e.pops.firstParked:
			continue // a pop was parked: take the short interval from now on
		case <-e.outage.probe:
			if e.alive(ctx) {
				continue
			}
			e.setOutage(true)
		case <-time.After(interval):
		}
		err := e.look(ctx)
		if ctx.Err() != nil {
			return
		}
		e.setOutage(err != nil)
	}
}

// look catches up. A database that has stopped answering is found out long before the deadline of a
// statement: when catching up takes long, a simple question decides.
func (e *Engine) look(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, aliveWithin)
	defer cancel()
	err := e.catchUp(bounded)
	if err != nil && bounded.Err() != nil && e.alive(ctx) {
		return nil
	}
	return err
}
