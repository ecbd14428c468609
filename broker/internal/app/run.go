package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/net/netutil"

	"github.com/posthorn/posthorn/broker/internal/api"
	"github.com/posthorn/posthorn/broker/internal/delivery"
	"github.com/posthorn/posthorn/broker/internal/embedpg"
	"github.com/posthorn/posthorn/broker/internal/failpoint"
	"github.com/posthorn/posthorn/broker/internal/fault"
	"github.com/posthorn/posthorn/broker/internal/pg"
	"github.com/posthorn/posthorn/broker/internal/queue"
	"github.com/posthorn/posthorn/broker/internal/spool"
	"github.com/posthorn/posthorn/broker/internal/tracing"
	"github.com/posthorn/posthorn/openapi"
)

const (
	// startTimeout is how long a database that does not answer is waited for.
	startTimeout = 30 * time.Second
	// retryPause is the pause between two attempts to reach it.
	retryPause = time.Second
	// databaseStopTimeout bounds the clean stop of the managed PostgreSQL: a checkpoint of its buffers.
	databaseStopTimeout = 60 * time.Second

	readHeaderTimeout = 5 * time.Second
	idleTimeout       = 120 * time.Second
	maxHeaderBytes    = 64 << 10

	// heapFloor is memory that is reserved and never touched, in bytes. It counts as heap, so that a broker with little in
	// memory collects garbage every 64 MiB and not every few: that took an eighth of its processor time under load.
	heapFloor = 64 << 20
)

// Run starts a broker of a valid configuration, writes to out where it listens, and serves until ctx
// ends; then it stops in good order. A nil error means a clean stop, also of a start that ctx
// interrupted. Without a database in cfg it runs a managed one.
func Run(ctx context.Context, cfg Config, version string, log *slog.Logger, out io.Writer) (err error) {
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	// What was started is stopped in the opposite order, however far the start came.
	var closers []func() error
	defer func() {
		for _, closer := range slices.Backward(closers) {
			err = errors.Join(err, closer())
		}
	}()
	fail := func(doing string, err error) error {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		return fmt.Errorf("%s: %w", doing, err)
	}

	database := cfg.database()
	var faults *fault.Set // in force only where the routes for them are served, too
	if cfg.Testing {
		faults = fault.NewSet()
		database.WrapDial = faults.Dial
	}
	if !cfg.hasDatabase() {
		server, err := embedpg.Start(ctx, embedpg.Config{DataDir: cfg.DataDir, BinDir: cfg.PGBin, Logger: log})
		if err != nil {
			return fail("start the managed PostgreSQL", err)
		}
		closers = append(closers, func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), databaseStopTimeout)
			defer cancel()
			return server.Stop(ctx)
		})
		database.URL = server.URL()
		if cfg.SpoolDir == "" {
			cfg.SpoolDir = filepath.Join(server.DataDir(), "spool")
		}
	}

	var buffer *spool.Spool
	if cfg.SpoolDir == "" {
		log.Warn("there is no spool: pushes fail while PostgreSQL is away", "setting", "FILE_BUFFER_DIR")
	} else {
		buffer, err = spool.Open(spool.Config{Dir: cfg.SpoolDir, Fault: faults.SpoolWrite, Logger: log})
		if err != nil {
			return fail("open the spool", err)
		}
		closers = append(closers, buffer.Close)
	}

	var pool *pgxpool.Pool
	patience := newPatience(startTimeout, log)
	err = patience.with(ctx, func() (err error) { pool, err = pg.Open(ctx, database); return err })
	if err != nil {
		return fail("open the database", err)
	}
	closers = append(closers, func() error { pool.Close(); return nil })
	if err := patience.with(ctx, func() error { return pg.Migrate(ctx, pool) }); err != nil {
		return fail("migrate the database", err)
	}

	listener, err := listen(ctx, cfg)
	if err != nil {
		return fail("listen on "+cfg.Listen, err)
	}
	closers = append(closers, func() error { return ignoreClosed(listener.Close()) })
	testing := cfg.Testing && isLoopback(listener.Addr())
	if cfg.Testing && !testing {
		log.Warn("the test routes are off: the listener is not a loopback address", "listen", listener.Addr().String())
	}

	if cfg.Failpoints != "" {
		if !testing {
			return fail("arm POSTHORN_FAILPOINTS", errors.New("the listener is not a loopback address"))
		}
		if err := failpoint.Arm(cfg.Failpoints); err != nil {
			return fail("arm POSTHORN_FAILPOINTS", err)
		}
	}

	registry := newRegistry(version)
	keys, encryption := cfg.encryption(log)
	registry.MustRegister(encryptionGauge(encryption))
	engineConfig := queue.Config{
		Shards:            cfg.Shards,
		Writers:           cfg.Writers,
		HoldWindow:        cfg.HoldWindow,
		DedupCacheBytes:   cfg.DedupCacheMB << 20,
		SegmentCacheBytes: cfg.SegmentCacheMB << 20,
		TraceRetention:    cfg.TraceRetention,
		RetentionInterval: cfg.RetentionInterval,
		RetentionBatch:    cfg.RetentionBatch,
		PartitionIdle:     time.Duration(cfg.CleanupDays) * 24 * time.Hour,
		KeepPartitions:    !cfg.CleanupEnabled,
		StatementTimeout:  cfg.StatementTimeout,
		DrainInterval:     cfg.SpoolFlush,
		DrainRecords:      cfg.SpoolBatch,
		StatsInterval:     cfg.StatsInterval,
		TrafficKept:       time.Duration(cfg.TrafficDays) * 24 * time.Hour,
		LagQueues:         cfg.MetricsQueues,
		Version:           version,
		Testing:           testing,
		Logger:            log,
		Metrics:           registry,
		Spool:             buffer,
		Faults:            faults,
		Keys:              keys,
		StrictEncryption:  cfg.StrictEncryption,
	}
	if cfg.MetricsQueues == 0 {
		engineConfig.LagQueues = -1 // zero means the default there
	}
	var engine *queue.Engine
	err = patience.with(ctx, func() (err error) { engine, err = queue.Open(ctx, pool, engineConfig); return err })
	if err != nil {
		return fail("open the queue engine", err)
	}
	closers = append(closers, func() error { engine.Stop(); return nil }) //nolint:contextcheck // it has a time of its own for its last words
	// A signal stops the engine by Stop, after the requests in flight, not by this context.
	if err := patience.with(ctx, func() error { return engine.Start(context.WithoutCancel(ctx)) }); err != nil {
		return fail("start the queue engine", err)
	}

	client, err := cfg.egress(testing || !cfg.hasDatabase() && isLoopback(listener.Addr()), listener.Addr())
	if err != nil {
		return fail("prepare deliveries", err)
	}
	closers = append(closers, func() error { client.Close(); return nil })
	deliveryConfig := delivery.Config{
		Client:           client,
		Queues:           queueTarget{engine},
		Workers:          cfg.PublishWorkers,
		HostConcurrency:  cfg.PublishHostConcurrency,
		Timeout:          cfg.PublishTimeout,
		BackoffFactor:    cfg.PublishBackoff,
		DedupWindow:      cfg.PublishDedupWindow,
		LogRetention:     cfg.PublishLogRetention,
		MaxTopics:        cfg.PublishMaxTopics,
		MaxSchedules:     cfg.PublishMaxSchedules,
		DeadRetention:    cfg.PublishDeadRetention,
		CurrentKey:       cfg.CurrentSigningKey,
		NextKey:          cfg.NextSigningKey,
		Metrics:          registry,
		StatementTimeout: cfg.StatementTimeout,
		Logger:           log,
	}
	var deliveries *delivery.Engine
	err = patience.with(ctx, func() (err error) { deliveries, err = delivery.Open(ctx, pool, deliveryConfig); return err })
	if err != nil {
		return fail("open the delivery engine", err)
	}
	closers = append(closers, func() error { deliveries.Stop(); return nil }) //nolint:contextcheck // it stops what outlives every request
	if err := patience.with(ctx, func() error { return deliveries.Start(context.WithoutCancel(ctx)) }); err != nil {
		return fail("start the delivery engine", err)
	}
	log.Info("deliveries go to", "addresses", client.Policy())

	spec, err := openapi.Load()
	if err != nil {
		return fail("load the API description", err)
	}
	authenticator, err := cfg.authenticator(engine.Now, log)
	if err != nil {
		return fail("prepare authentication", err)
	}
	authenticator.Warm(ctx)
	if !cfg.JWTEnabled && (cfg.JWTSecret != "" || cfg.JWTPublicKey != "" || cfg.JWTJWKSURL != "") {
		log.Warn("a key for signed tokens is configured, but they are not accepted", "setting", "JWT_ENABLED")
	}
	tracer, err := startTracing(ctx, cfg, version, engine.Report().ID.String(), log)
	if err != nil {
		return fail("start tracing", err)
	}
	closers = append(closers, tracer.stop)
	handler, err := api.New(api.Config{
		Auth:            authenticator,
		Engine:          engine,
		Delivery:        deliveries,
		PublishRetries:  cfg.PublishRetries,
		MaxEndpoints:    cfg.PublishMaxEndpoints,
		MaxRetries:      cfg.PublishMaxRetries,
		MaxDelay:        cfg.PublishMaxDelay,
		Spec:            spec,
		Registry:        registry,
		Logger:          log,
		Version:         version,
		Encryption:      encryption,
		MaxBody:         cfg.MaxBody,
		MaxBodyInFlight: cfg.MaxBodyInFlight,
		PopTimeout:      cfg.PopTimeout,
		FromNew:         cfg.SubscriptionMode != "all",
		Tracer:          tracer.tracer,
		Testing:         testing,
		LocalOnly:       !cfg.hasDatabase() && isLoopback(listener.Addr()),
	})
	if err != nil {
		return fail("build the HTTP surface", err)
	}

	failed := make(chan error, 2)
	if cfg.PprofListen != "" {
		profiles, err := serveProfiles(ctx, cfg.PprofListen, failed)
		if err != nil {
			return fail("listen on "+cfg.PprofListen, err)
		}
		closers = append(closers, profiles.Close)
	}
	server := newServer(handler, log)
	serve := server.Serve
	if cfg.TLSCert != "" {
		files, err := newTLSFiles(cfg, log)
		if err != nil {
			return fail("read the TLS files", err)
		}
		server.TLSConfig = files.config() //nolint:contextcheck // each connection brings its own
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	go func() { failed <- serve(listener) }()
	log.Info("listening", "address", listener.Addr().String(), "version", version, "test_clock", testing)
	if !isLoopback(listener.Addr()) && authenticator == nil && cfg.TLSClientCA == "" {
		log.Warn("other machines can reach this broker, and nothing is authenticated")
	}
	managed := ""
	if !cfg.hasDatabase() {
		managed = database.URL
	}
	scheme := "http"
	if cfg.TLSCert != "" {
		scheme = "https"
	}
	announce(out, version, scheme+"://"+listener.Addr().String(), managed)

	select {
	case err := <-failed:
		_ = server.Close()
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping")
	return stopServing(context.WithoutCancel(ctx), server, engine, cfg.StopTimeout, log)
}

// stopServing refuses new connections, answers parked pops and waits for what is in flight. What does
// not finish in time is cut off: its client knows no outcome, as after a crash.
func stopServing(ctx context.Context, server *http.Server, engine *queue.Engine, timeout time.Duration, log *slog.Logger) error {
	engine.Drain()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("requests in flight were cut off", "after", timeout.String())
		return ignoreClosed(server.Close())
	}
	return ignoreClosed(err)
}

// patience is how long the start waits in all for a database that does not answer, or that loses
// connections, while the broker opens it.
type patience struct {
	limit    time.Duration
	deadline time.Time
	log      *slog.Logger
}

func newPatience(limit time.Duration, log *slog.Logger) *patience {
	return &patience{limit: limit, deadline: time.Now().Add(limit), log: log}
}

// with repeats a step of the start until it succeeds or patience is over. An error of another kind, a
// wrong URL for one, is final.
func (p *patience) with(ctx context.Context, step func() error) error {
	for {
		err := step()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !pg.Unavailable(err):
			return err
		case time.Now().After(p.deadline):
			return fmt.Errorf("PostgreSQL did not answer for %s: %w", p.limit, err)
		}
		p.log.Warn("PostgreSQL does not answer; trying again", "error", err)
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tracer is what the edge records with, nil when traces are off.
type tracer struct {
	tracer trace.Tracer
	stop   func() error
}

// lastSpansTimeout bounds the export of what is left when the broker stops.
const lastSpansTimeout = 5 * time.Second

func startTracing(ctx context.Context, cfg Config, version, instance string, log *slog.Logger) (tracer, error) {
	if cfg.OTelEndpoint == "" {
		return tracer{stop: func() error { return nil }}, nil
	}
	ctx = context.WithoutCancel(ctx)
	t, err := tracing.New(ctx, tracing.Config{
		Endpoint: cfg.OTelEndpoint, Ratio: float64(cfg.OTelPercent) / 100, Version: version, Instance: instance, Logger: log,
	})
	if err != nil {
		return tracer{}, err
	}
	return tracer{tracer: t.Tracer, stop: func() error {
		ctx, cancel := context.WithTimeout(ctx, lastSpansTimeout)
		defer cancel()
		if err := t.Shutdown(ctx); err != nil {
			log.Warn("the last spans are lost", "err", err) // no reason to fail a clean stop
		}
		return nil
	}}, nil
}

func listen(ctx context.Context, cfg Config) (net.Listener, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, err
	}
	if cfg.MaxConnections > 0 {
		listener = netutil.LimitListener(listener, cfg.MaxConnections)
	}
	return listener, nil
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// newServer bounds heads and idle connections; the edge bounds bodies and answers, whose times depend
// on their sizes.
// Without TLS it speaks HTTP/2 to clients that begin with it (h2c), with TLS to those that choose it.
func newServer(handler http.Handler, log *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// serveProfiles serves net/http/pprof on a listener of its own.
func serveProfiles(ctx context.Context, address string, failed chan<- error) (*http.Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	return server, nil
}

func newRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "posthorn_build_info",
		Help:        "The running version.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	registry.MustRegister(
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// encryptionGauge shows whether payloads can be encrypted: 1 for the state that holds.
func encryptionGauge(state string) prometheus.Collector {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "posthorn_encryption_state",
		Help: "Encryption at rest: 1 for the state that holds.",
	}, []string{"state"})
	for _, s := range []string{"active", "off", "misconfigured"} {
		gauge.WithLabelValues(s).Set(0)
	}
	gauge.WithLabelValues(state).Set(1)
	return gauge
}

// announce tells the user where the broker listens and what to try, and how others reach the managed
// PostgreSQL if there is one: another broker, psql. That URL holds no password, since access to the socket
// is the login. It is one write: whoever waits for the first line may close the pipe after it.
func announce(out io.Writer, version, url, managed string) {
	database := ""
	if managed != "" {
		database = fmt.Sprintf("  database         export DATABASE_URL='%s'\n", managed)
	}
	_, _ = fmt.Fprintf(out, `posthorn listening on %[2]s
  version          %[1]s
  API description  %[2]s/openapi.json
%[3]s  try              curl -sS -X POST %[2]s/api/v1/push -d '{"items":[{"queue":"orders","payload":{"n":1}}]}'
                   curl -sS '%[2]s/api/v1/pop/queue/orders?autoAck=true'
`, version, url, database)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
