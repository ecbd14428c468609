package posthorn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// ErrGracePeriod is the cause of the cancellation of a handler's context when the grace period of a
// stopping [Client.Consume] ends, and what Consume then returns.
var ErrGracePeriod = errors.New("grace period ended")

// ackTimeout bounds an acknowledgment of Consume, retries included. It ends work that is done, so it
// does not depend on the context that may just have been cancelled.
const ackTimeout = 15 * time.Second

// brokerBatch is the broker's batch size where a pop names none (contract, pop).
const brokerBatch = 200

// Handler processes one message. Nil completes it. An error makes the broker deliver it again, at
// most as often as the queue's RetryLimit allows, and dead-letter it then; wrap the error with
// [Retry] or [DeadLetter] to choose otherwise. A panic counts as an error.
//
// The context ends when the message's lease is lost (its cause is [ErrLeaseExpired]) or when the
// grace period of a stopping consumer is over ([ErrGracePeriod]); return soon then.
type Handler func(ctx context.Context, m Message) error

// ConsumeOptions configure [Client.Consume]. Queue, or Namespace or Task, is required.
type ConsumeOptions struct {
	Queue     string // empty means discovery by Namespace and Task
	Partition string // only this partition of Queue; empty means all
	Namespace string // discovery: queues of this namespace; empty means any
	Task      string // discovery: queues of this task; empty means any

	ConsumerGroup    string // empty means the queue mode
	SubscriptionMode string // where a new group starts, see PopOptions; empty means the broker's default
	SubscriptionFrom string // where a new group starts, see PopOptions; empty means that the mode decides

	// Concurrency is the number of lanes: how many partitions are worked on at a time. Within a
	// partition messages are handled one by one, in order. Zero means 1.
	Concurrency int

	// Batch is how many messages a lane leases at once. Zero means 200.
	Batch int

	// Partitions is how many partitions a lane leases at once and handles one after the other; it
	// helps when there are many with few messages each. Zero means 1.
	Partitions int

	// Lease is how long a batch stays reserved without a sign of life; the consumer renews it at
	// every third of that. It bounds how long the messages of a crashed consumer wait for another.
	// Whole seconds, rounded up. Zero means 60 s. The queue's own lease time is not used.
	Lease time.Duration

	// PollTimeout is how long one request waits for messages. Zero means 30 s.
	PollTimeout time.Duration

	// AckInterval is how long completed messages may wait for their common acknowledgment, looked at
	// between two messages; after a crash as much is delivered again. What is left of a batch is
	// acknowledged at its end. Zero means 1 s; negative means that each message is acknowledged
	// before the next one starts.
	AckInterval time.Duration

	// GracePeriod is how long handlers may go on after the consumer was told to stop, before their
	// context ends too. Zero means 30 s; negative means not at all.
	GracePeriod time.Duration

	// Logger receives what goes wrong and is dealt with here: failed handlers at Warn, panics at
	// Error, an unavailable broker and lost leases at Warn. Nil means slog.Default().
	Logger *slog.Logger
}

// Retry wraps the error of a handler to have the message delivered again without charging the
// queue's retry budget, for a failure that is not the message's fault. There is no bound: a lane
// only pauses before it pops again. A nil err is allowed.
func Retry(err error) error { return &verdict{AckRetry, err} }

// DeadLetter wraps the error of a handler to have the message dead-lettered at once, for a message
// that can never succeed. A nil err is allowed.
func DeadLetter(err error) error { return &verdict{AckDeadLetter, err} }

// verdict is an error that carries what to say of the message.
type verdict struct {
	status AckStatus
	err    error
}

func (v *verdict) Error() string {
	if v.err == nil {
		return "handler asked for " + string(v.status)
	}
	return v.err.Error()
}

func (v *verdict) Unwrap() error { return v.err }

// Consume pops messages and hands them to handler until ctx ends. Delivery is at least once.
//
// Each lane leases a batch, handles it in order, keeps the lease alive meanwhile and acknowledges
// what was completed. When a handler fails, the messages before it are acknowledged, the failure is
// reported with the error's text, the rest of that partition's batch is left to be delivered again,
// and the lane pauses, longer with each failure in a row. When the lease is lost the handler's
// context ends and the rest of the batch is dropped without an acknowledgment: it belongs to somebody
// else.
//
// While the broker is unavailable, Consume goes on trying with backoff, as long as it takes. An answer
// that will not change (400, 401, 403, 404 and the like) ends it with that error.
//
// When ctx ends, no further message is started. Running handlers may finish within the grace period;
// what they complete is acknowledged and the messages that were not started are given back at once.
// Consume then returns nil. When the grace period was too short for a handler, its message is given
// back too and Consume returns [ErrGracePeriod]. It always waits for handlers to return: one that
// ignores its context holds Consume up. Messages that the broker sent at the moment of the stop
// come back when their lease ends.
func (c *Client) Consume(ctx context.Context, opts ConsumeOptions, handler Handler) error {
	consumer, err := newConsumer(c, opts, handler)
	if err != nil {
		return fmt.Errorf("posthorn: consume: %w", err)
	}
	if err := consumer.run(ctx); err != nil {
		return fmt.Errorf("posthorn: consume: %w", err)
	}
	return nil
}

// consumer is a running Consume.
type consumer struct {
	client  *Client
	opts    ConsumeOptions // no zero fields where zero stands for a default, but Batch
	handler Handler
	log     *slog.Logger

	interrupted atomic.Bool // a handler gave up because the grace period ended
}

func newConsumer(client *Client, opts ConsumeOptions, handler Handler) (*consumer, error) {
	var problems []error
	if handler == nil {
		problems = append(problems, errors.New("the handler is nil"))
	}
	if opts.Queue == "" && opts.Namespace == "" && opts.Task == "" {
		problems = append(problems, errors.New("none of Queue, Namespace and Task is set"))
	}
	if opts.Concurrency < 0 {
		problems = append(problems, errors.New("option Concurrency is negative"))
	}
	opts.Concurrency = orDefault(opts.Concurrency, 1)
	opts.Lease = time.Duration(wholeSeconds(orDefault(opts.Lease, time.Minute))) * time.Second
	opts.AckInterval = orDefault(opts.AckInterval, time.Second)
	opts.GracePeriod = orDefault(opts.GracePeriod, 30*time.Second)
	consumer := &consumer{client: client, opts: opts, handler: handler, log: orDefault(opts.Logger, slog.Default())}
	consumer.log = consumer.log.With("queue", opts.Queue, "consumerGroup", opts.ConsumerGroup)
	if _, err := consumer.popOptions(opts.Batch).call(); err != nil {
		problems = append(problems, err)
	}
	return consumer, errors.Join(problems...)
}

func (c *consumer) popOptions(batch int) PopOptions {
	return PopOptions{
		Queue: c.opts.Queue, Partition: c.opts.Partition, Namespace: c.opts.Namespace, Task: c.opts.Task,
		Batch: batch, Partitions: c.opts.Partitions, Wait: true, Timeout: c.opts.PollTimeout, Lease: c.opts.Lease,
		ConsumerGroup: c.opts.ConsumerGroup, SubscriptionMode: c.opts.SubscriptionMode, SubscriptionFrom: c.opts.SubscriptionFrom,
	}
}

// run owns the lanes and the goroutine that ends the grace period, and outlives all of them.
func (c *consumer) run(ctx context.Context) error {
	// stop ends with ctx, or with the first lane that cannot go on. work is what handlers see: it
	// goes on for the grace period.
	stop, fail := context.WithCancel(ctx)
	defer fail()
	work, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)

	var lanes, grace sync.WaitGroup
	ends := make(chan error, c.opts.Concurrency)
	for range c.opts.Concurrency {
		lanes.Go(func() {
			err := errors.New("a handler ended its goroutine") // unless the lane returns
			defer func() {
				if err != nil {
					fail()
				}
				ends <- err
			}()
			err = c.lane(stop, work)
		})
	}
	lanesDone := make(chan struct{})
	grace.Go(func() {
		select {
		case <-stop.Done():
		case <-lanesDone:
			return
		}
		timer := time.NewTimer(max(0, c.opts.GracePeriod))
		defer timer.Stop()
		select {
		case <-timer.C:
			interrupt(ErrGracePeriod)
		case <-lanesDone:
		}
	})
	lanes.Wait()
	close(lanesDone)
	grace.Wait()

	for range c.opts.Concurrency {
		if err := <-ends; err != nil {
			return err
		}
	}
	if c.interrupted.Load() {
		return ErrGracePeriod
	}
	return nil
}

// lane pops and processes one batch after the other until stop ends. An error is why it cannot go on.
func (c *consumer) lane(stop, work context.Context) error {
	batchSize := c.opts.Batch
	failures := 0 // in a row; they set the pace
	for stop.Err() == nil {
		started := time.Now()
		batch, err := c.pop(stop, batchSize)
		switch {
		case stop.Err() != nil && err != nil:
		case err != nil && permanent(err):
			return err
		case err != nil:
			failures++
			if errors.Is(err, ErrResponseTooLarge) {
				batchSize = max(1, orDefault(batchSize, brokerBatch)/2)
			}
			c.log.WarnContext(stop, "pop failed", "error", err, "failures", failures, "batch", batchSize)
		case len(batch.Messages) == 0 && time.Since(started) < orDefault(c.opts.PollTimeout, defaultPoll)/2:
			// The broker does not hold polls at the moment, for example because it is stopping.
			failures++
		case len(batch.Messages) == 0:
			failures = 0
		case c.process(stop, work, batch):
			failures = 0
		default:
			failures++
		}
		if failures > 0 {
			delay, ok := c.client.retry.delay(failures, err)
			if !ok {
				delay = c.client.retry.MaxRetryAfter
			}
			sleep(stop, delay)
		}
	}
	return nil
}

func (c *consumer) pop(ctx context.Context, batchSize int) (Batch, error) {
	call, err := c.popOptions(batchSize).call()
	if err != nil {
		return Batch{}, err
	}
	var wire wireBatch
	if err := c.client.once(ctx, call, &wire); err != nil {
		return Batch{}, fmt.Errorf("%s: %w", call.op, err)
	}
	return wire.batch(), nil
}

// permanent reports whether a failed pop would fail again however long one waits.
func permanent(err error) bool {
	api, ok := errors.AsType[*APIError](err)
	return ok && api.Status/100 == 4 && api.Status != http.StatusRequestTimeout && api.Status != http.StatusTooManyRequests
}

// process handles one batch. It reports false when the lane should pause before the next one.
func (c *consumer) process(stop, work context.Context, batch Batch) bool {
	ctx, cancel := context.WithCancelCause(work)
	var renewal sync.WaitGroup
	defer renewal.Wait()
	defer cancel(nil)
	if batch.LeaseID != "" {
		deadline := time.Now().Add(c.opts.Lease)
		renewal.Go(func() { c.keepLease(ctx, batch.LeaseID, deadline, cancel) })
	}

	acks := &acknowledger{consumer: c, closed: map[string]bool{}, flushed: time.Now()}
	healthy := true
	for _, m := range batch.Messages {
		if acks.closed[m.PartitionID] {
			continue
		}
		if leaseLost(ctx) {
			return c.drop(ctx, m)
		}
		// work ends after stop, but may do so right after this line looked at stop.
		if stop.Err() != nil || ctx.Err() != nil {
			acks.end(m, AckRetry, nil)
			continue
		}
		err := c.handle(ctx, m)
		if leaseLost(ctx) {
			return c.drop(ctx, m)
		}
		switch status := statusOf(err); {
		case err == nil:
			acks.complete(m)
			if time.Since(acks.flushed) >= c.opts.AckInterval {
				acks.flush(ctx)
			}
		case ctx.Err() != nil:
			// The message is not to blame for our impatience.
			c.interrupted.Store(true)
			acks.end(m, AckRetry, err)
		default:
			c.log.WarnContext(ctx, "handler failed", "error", err, "status", string(status),
				"partition", m.Partition, "transactionId", m.TransactionID, "deliveryAttempt", m.DeliveryAttempt)
			acks.end(m, status, err)
			acks.flush(ctx)
			healthy = healthy && status == AckDeadLetter
		}
	}
	acks.flush(ctx)
	return healthy && !acks.refused && len(acks.pending) == 0
}

func leaseLost(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrLeaseExpired) }

// drop gives the batch up at m. It reports false, as process does.
func (c *consumer) drop(ctx context.Context, m Message) bool {
	c.log.WarnContext(ctx, "lease lost, dropping the rest of the batch",
		"leaseId", m.LeaseID, "partition", m.Partition, "transactionId", m.TransactionID)
	return false
}

func (c *consumer) handle(ctx context.Context, m Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.log.ErrorContext(ctx, "handler panicked", "panic", p, "transactionId", m.TransactionID, "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	return c.handler(ctx, m)
}

func statusOf(err error) AckStatus {
	if err == nil {
		return AckCompleted
	}
	if v, ok := errors.AsType[*verdict](err); ok {
		return v.status
	}
	return AckFailed
}

// keepLease extends a lease until ctx ends. When the broker says that the lease is over, or when it
// must be because no extension got through in time, it cancels with ErrLeaseExpired and returns.
func (c *consumer) keepLease(ctx context.Context, id string, deadline time.Time, cancel context.CancelCauseFunc) {
	extend, err := extendCall(id, c.opts.Lease)
	if err != nil {
		cancel(err)
		return
	}
	wait := c.opts.Lease / 3
	for sleep(ctx, min(wait, time.Until(deadline))) {
		if time.Until(deadline) <= 0 {
			cancel(ErrLeaseExpired)
			return
		}
		// The broker counts from some moment after this one, so this is the cautious side.
		sent := time.Now()
		attempt, done := context.WithTimeout(ctx, min(c.opts.Lease/3, time.Until(deadline)))
		var wire wireLease
		err := c.client.once(attempt, extend, &wire)
		done()
		if err == nil {
			_, err = wire.lease(id)
		}
		switch {
		case err == nil:
			deadline, wait = sent.Add(c.opts.Lease), c.opts.Lease/3
		case errors.Is(err, ErrLeaseExpired):
			cancel(ErrLeaseExpired)
			return
		case ctx.Err() == nil:
			c.log.WarnContext(ctx, "lease extension failed", "leaseId", id, "error", err)
			wait = c.opts.Lease / 15
		}
	}
}

// acknowledger collects what to say of a batch. Since a completed message commits all before it in
// its partition, one acknowledgment per partition is enough.
type acknowledger struct {
	consumer *consumer
	pending  []AckItem
	closed   map[string]bool // partition ids that are through: nothing more of them may be started
	refused  bool            // the broker refused an acknowledgment
	flushed  time.Time
}

func (a *acknowledger) complete(m Message) {
	item := m.Ack(AckCompleted, nil)
	if n := len(a.pending); n > 0 && a.pending[n-1].PartitionID == m.PartitionID {
		a.pending[n-1] = item
		return
	}
	a.pending = append(a.pending, item)
}

// end says something of m that ends the lease of its partition.
func (a *acknowledger) end(m Message, status AckStatus, cause error) {
	a.pending = append(a.pending, m.Ack(status, cause))
	a.closed[m.PartitionID] = true
}

// flush sends what is pending. What did not get through stays pending for the next flush; after the
// last one the broker delivers the messages again when their lease ends.
func (a *acknowledger) flush(ctx context.Context) {
	if len(a.pending) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ackTimeout)
	defer cancel()
	_, err := a.consumer.client.AckBatch(ctx, a.consumer.opts.ConsumerGroup, a.pending)
	a.flushed = time.Now()
	refused, ok := errors.AsType[*AckError](err)
	if err != nil && !ok {
		a.consumer.log.WarnContext(ctx, "acknowledgment failed", "error", err, "items", len(a.pending))
		return
	}
	if ok {
		a.refused = true
		for _, item := range refused.Items {
			a.closed[a.pending[item.Index].PartitionID] = true
			a.consumer.log.WarnContext(ctx, "acknowledgment refused", "error", item)
		}
	}
	a.pending = nil
}
