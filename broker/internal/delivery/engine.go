package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/posthorn/posthorn/broker/internal/batch"
	"github.com/posthorn/posthorn/broker/internal/clock"
	"github.com/posthorn/posthorn/broker/internal/egress"
	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Config configures an Engine. Client is required; the zero value of each other field means its default.
type Config struct {
	Client *egress.Client // sends to destinations
	Queues Queues         // takes messages to queue: destinations; default none, they fail

	Workers         int           // attempts at the same time; default 256
	HostConcurrency int           // attempts at the same time to one host, at most; default 64
	Timeout         time.Duration // of an attempt; default 30 s; at most 2 h
	BackoffFactor   float64       // before the n-th retry e^(factor·n) seconds pass, at most a day; default 2
	DedupWindow     time.Duration // how long an id counts as a duplicate; default 90 days
	LogRetention    time.Duration // how long log entries and what they refer to are kept; default 3 days, at least 60 s
	DeadRetention   time.Duration // how long dead letters and their messages are kept; default 90 days
	MaxTopics       int           // how many topics there may be; default no bound
	MaxSchedules    int           // how many schedules there may be; default no bound
	Memory          int64         // bytes of messages that wait or are being sent; default 256 MiB
	StopGrace       time.Duration // how long attempts may finish when the engine stops; default 5 s

	// CurrentKey and NextKey are the signing keys that a database without keys begins with; default minted ones. They go
	// together.
	CurrentKey, NextKey string

	StatementTimeout time.Duration // deadline of one statement; default 10 s
	Logger           *slog.Logger  // default slog.Default()

	Metrics prometheus.Registerer // default none
}

// Queues is the ordered half, as queue: destinations need it.
type Queues interface {
	// Deliver puts a payload into a partition, once however often it is called with the same transaction id inside the
	// queue's deduplication window. An empty partition means the default one. The error is ErrUnavailable when the database did
	// not do its part.
	Deliver(ctx context.Context, queue, partition, transactionID string, payload json.RawMessage) error
}

// Bounds of a Config.
const (
	MaxTimeout      = 2 * time.Hour
	MinLogRetention = time.Minute
)

func (c Config) withDefaults() Config {
	if c.Workers <= 0 {
		c.Workers = 256
	}
	if c.HostConcurrency <= 0 {
		c.HostConcurrency = 64
	}
	if c.Timeout <= 0 {
		c.Timeout = 30 * time.Second
	}
	c.Timeout = min(c.Timeout, MaxTimeout)
	if c.BackoffFactor <= 0 {
		c.BackoffFactor = 2
	}
	if c.DedupWindow <= 0 {
		c.DedupWindow = 90 * 24 * time.Hour
	}
	if c.LogRetention <= 0 {
		c.LogRetention = 3 * 24 * time.Hour
	}
	c.LogRetention = max(c.LogRetention, MinLogRetention)
	if c.DeadRetention <= 0 {
		c.DeadRetention = 90 * 24 * time.Hour
	}
	if c.Memory <= 0 {
		c.Memory = 256 << 20
	}
	if c.StopGrace <= 0 {
		c.StopGrace = 5 * time.Second
	}
	if c.StatementTimeout <= 0 {
		c.StatementTimeout = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Engine delivers messages. Any number of engines may share a database.
type Engine struct {
	cfg   Config
	pool  *pgxpool.Pool
	log   *slog.Logger
	clock *clock.Database

	metrics  *metrics
	refused  refused
	keys     atomic.Pointer[SigningKeys]
	leases   leases
	dispatch *dispatcher
	accepts  *batch.Batcher[*unit]
	loads    *batch.Batcher[*load]
	outcomes *batch.Batcher[*outcome]
	handed   *semaphore.Weighted // bytes of content that was handed over in memory
	loaded   *semaphore.Weighted // bytes of content that was read for attempts

	claiming sync.Mutex    // held while tasks are taken: between the database and the dispatcher they are nowhere
	ticking  sync.Mutex    // held while schedules tick: a tick that is being committed is passed over by others
	due      chan struct{} // wakes the claim loop
	ticks    chan struct{} // wakes the tick loop
	ctx      context.Context
	cancel   context.CancelFunc
	attempts sync.WaitGroup
	loops    sync.WaitGroup
	inflight sync.WaitGroup // calls of Publish
	stopping sync.RWMutex   // guards stopped against inflight
	stopped  bool
	stopOnce sync.Once
}

// Open prepares an engine on a migrated database. Start starts it.
func Open(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Engine, error) {
	cfg = cfg.withDefaults()
	if cfg.Client == nil {
		return nil, fmt.Errorf("open the delivery engine: no client")
	}
	e := &Engine{
		cfg:    cfg,
		pool:   pool,
		log:    cfg.Logger,
		clock:  &clock.Database{},
		handed: semaphore.NewWeighted(cfg.Memory / 2),
		loaded: semaphore.NewWeighted(cfg.Memory / 2),
		due:    make(chan struct{}, 1),
		ticks:  make(chan struct{}, 1),
		leases: leases{want: make(chan struct{}, 1)},
	}
	e.dispatch = newDispatcher(cfg, e.begin)
	e.accepts = batch.New(1, acceptLimit, e.acceptUnits)
	e.loads = batch.New(2, loadLimit, e.loadMessages)
	e.outcomes = batch.New(1, outcomeLimit, e.settleOutcomes)
	if _, _, err := e.nextDue(ctx); err != nil {
		return nil, fmt.Errorf("open the delivery engine: %w", err)
	}
	if err := e.seedKeys(ctx); err != nil {
		return nil, fmt.Errorf("open the delivery engine: %w", err)
	}
	e.metrics = newMetrics(cfg.Metrics, e)
	return e, nil
}

// Start starts the engine's goroutines. They end with Stop, not with ctx.
func (e *Engine) Start(ctx context.Context) error {
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := e.renewLease(ctx); err != nil {
		return fmt.Errorf("start the delivery engine: %w", err)
	}
	if err := e.reap(ctx); err != nil {
		return fmt.Errorf("start the delivery engine: %w", err)
	}
	e.loops.Go(e.leaseLoop)
	e.loops.Go(e.claimLoop)
	e.loops.Go(e.tickLoop)
	e.loops.Go(e.sweepLoop)
	e.loops.Go(e.keyLoop)
	return nil
}

// Stop lets attempts finish for a moment, gives back what was not delivered and ends the engine's goroutines. Calling it again does
// nothing.
func (e *Engine) Stop() {
	e.stopOnce.Do(func() {
		e.stopping.Lock()
		e.stopped = true
		e.stopping.Unlock()
		e.inflight.Wait()
		e.dispatch.stop()
		finished := make(chan struct{})
		go func() { e.attempts.Wait(); close(finished) }()
		select {
		case <-finished:
		case <-time.After(e.cfg.StopGrace):
		}
		if e.cancel != nil {
			e.cancel()
		}
		<-finished
		e.loops.Wait()
		e.accepts.Wait()
		e.loads.Wait()
		e.outcomes.Wait()
		e.giveBack()
	})
}

// enter counts a call in, unless the engine was stopped.
func (e *Engine) enter() bool {
	e.stopping.RLock()
	defer e.stopping.RUnlock()
	if e.stopped {
		return false
	}
	e.inflight.Add(1)
	return true
}

// Limits are bounds that the engine was configured with.
type Limits struct {
	Timeout      time.Duration // of an attempt
	LogRetention time.Duration
	MaxTopics    int // 0 means no bound, here and below
	MaxSchedules int
}

// Limits are the engine's bounds, defaults filled in.
func (e *Engine) Limits() Limits {
	return Limits{e.cfg.Timeout, e.cfg.LogRetention, e.cfg.MaxTopics, e.cfg.MaxSchedules}
}

// Now estimates the database's time, the test clock's offset included.
func (e *Engine) Now() time.Time { return e.clock.Now() }

// deadline bounds one statement.
func (e *Engine) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, e.cfg.StatementTimeout)
}

// unavailable wraps a failure to reach the database as ErrUnavailable, and drops the pool's connections when one of them was
// lost: the others have most likely died with it.
func (e *Engine) unavailable(doing string, err error) error {
	if pg.Unavailable(err) || pg.UnknownOutcome(err) {
		e.pool.Reset()
	}
	if pg.Unavailable(err) || pg.Retryable(err) {
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// pause waits, and reports false when the engine was stopped meanwhile.
func (e *Engine) pause(d time.Duration) bool {
	select {
	case <-e.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
