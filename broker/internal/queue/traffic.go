package queue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/posthorn/posthorn/broker/internal/pg"
)

// Traffic counts what went through one queue, or through all.
type Traffic struct {
	Pushed       int64 // messages appended
	Popped       int64 // messages delivered, repeated deliveries included
	Acked        int64 // messages that a group has passed, an automatic ack included
	Failed       int64 // failed acks
	DeadLettered int64 // messages filed as dead letters
}

func (t *Traffic) add(u Traffic) {
	t.Pushed += u.Pushed
	t.Popped += u.Popped
	t.Acked += u.Acked
	t.Failed += u.Failed
	t.DeadLettered += u.DeadLettered
}

// trafficCounter holds what this broker has counted and not written yet. It is written about once a
// second: what it holds when the process is killed is lost, so the figures by time are approximate.
type trafficCounter struct {
	mu      sync.Mutex
	byQueue map[int64]*Traffic

	writing sync.Mutex // held while it is written, so that a reader sees all of it or none
}

func newTrafficCounter() *trafficCounter { return &trafficCounter{byQueue: map[int64]*Traffic{}} }

func (c *trafficCounter) add(queueID int64, t Traffic) {
	if t == (Traffic{}) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := c.byQueue[queueID]
	if sum == nil {
		sum = &Traffic{}
		c.byQueue[queueID] = sum
	}
	sum.add(t)
}

func (c *trafficCounter) take() map[int64]*Traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.byQueue
	c.byQueue = map[int64]*Traffic{}
	return taken
}

// appended counts a flush that was committed.
func (c *trafficCounter) appended(lanes []*laneFlight) {
	for _, lf := range lanes {
		c.add(lf.part.queue.id, Traffic{Pushed: int64(len(lf.accepted))})
	}
}

// claimed counts the takes of a pop that were claimed.
func (c *trafficCounter) claimed(s *serving) {
	for _, t := range s.takes {
		if !t.claimed {
			continue
		}
		count := Traffic{Popped: int64(t.count)}
		if s.waiter.request.AutoAck {
			count.Acked = int64(t.count)
		}
		c.add(t.cursor.group.queue.id, count)
	}
}

// acked counts a unit of acks that was carried out.
func (c *trafficCounter) acked(u *ackGroup) {
	count := Traffic{Acked: max(0, u.plan.committed-u.seen.committed)}
	if u.plan.dead != nil {
		count.DeadLettered = 1
	}
	for _, en := range u.items {
		if en.result.Err == nil && en.item.Status == Nack && en.offset >= u.seen.committed {
			count.Failed = 1 // the lowest one decides, and is charged once
		}
	}
	if u.plan.past { // it went by without being completed
		count.Acked--
	}
	c.add(u.cursor.part.queue.id, count)
}

// allQueues is the queue id under which the sum of all queues is kept.
const allQueues = 0

// How long the figures are kept. Minutes serve the charts of a day, hours those of longer times.
const (
	minute = 60   // s, the fine step
	hour   = 3600 // s, the coarse one

	minutesKept = "25 hours"
)

const sqlAddTraffic = `
with clock as materialized (
    select floor(extract(epoch from clock_timestamp() + $1::interval))::bigint as now
)
insert into queue_traffic as t (queue_id, step, at, pushed, popped, acked, failed, dead_lettered)
select w.queue_id, s.step, to_timestamp(clock.now - clock.now % s.step), w.pushed, w.popped, w.acked, w.failed, w.dead
from unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
     as w (queue_id, pushed, popped, acked, failed, dead)
cross join clock cross join (values (60), (3600)) as s (step)
where w.queue_id = 0 or exists (select from queue q where q.id = w.queue_id)
order by w.queue_id, s.step
on conflict (queue_id, step, at) do update set
    pushed        = t.pushed + excluded.pushed,
    popped        = t.popped + excluded.popped,
    acked         = t.acked + excluded.acked,
    failed        = t.failed + excluded.failed,
    dead_lettered = t.dead_lettered + excluded.dead_lettered`

// writeTraffic writes what this broker has counted since the last time.
func (e *Engine) writeTraffic(ctx context.Context) error {
	c := e.traffic
	c.writing.Lock()
	defer c.writing.Unlock()
	taken := c.take()
	if len(taken) == 0 {
		return nil
	}
	var all Traffic
	for _, t := range taken {
		all.add(*t)
	}
	rows := maps.Clone(taken)
	rows[allQueues] = &all
	ids := slices.Sorted(maps.Keys(rows))
	columns := make([][]int64, 5)
	for _, id := range ids {
		t := rows[id]
		for i, v := range []int64{t.Pushed, t.Popped, t.Acked, t.Failed, t.DeadLettered} {
			columns[i] = append(columns[i], v)
		}
	}
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	_, err := e.pool.Exec(ctx, sqlAddTraffic, e.clockOffset(), ids, columns[0], columns[1], columns[2], columns[3], columns[4])
	if err == nil {
		return nil
	}
	if !pg.UnknownOutcome(err) { // else it may stand there already
		for id, t := range taken {
			c.add(id, *t)
		}
	}
	return e.unavailable("write the traffic", err)
}

const sqlTrimTraffic = `
delete from queue_traffic where (queue_id, step, at) in (
    select queue_id, step, at from queue_traffic
    where step = 60 and at < clock_timestamp() + $1::interval - interval '` + minutesKept + `'
       or step = 3600 and at < clock_timestamp() + $1::interval - $3::interval
    limit $2
)`

// TrafficFilter chooses what Traffic sums up. Empty strings match everything.
type TrafficFilter struct {
	Queue, Namespace, Task string
	From, To               time.Time     // [From, To)
	Step                   time.Duration // width of a point: a minute, or any number of hours
}

// TrafficPoint is one step of time.
type TrafficPoint struct {
	At time.Time // when the step begins, at a multiple of the step since 1970 in UTC
	Traffic
}

// MinutesKept is how far back steps of less than an hour reach.
const MinutesKept = 24 * time.Hour

const sqlTraffic = `
select to_timestamp(floor(extract(epoch from t.at) / $5::bigint) * $5::bigint), sum(t.pushed)::bigint, sum(t.popped)::bigint,
       sum(t.acked)::bigint, sum(t.failed)::bigint, sum(t.dead_lettered)::bigint
from queue_traffic t
where t.step = $4 and t.at >= $2 and t.at < $3
  and t.queue_id = any ($1::bigint[])
group by 1 order by 1`

const sqlMatchingQueues = `
select id from queue where ($1 = '' or name = $1) and ($2 = '' or namespace = $2) and ($3 = '' or task = $3)`

// Traffic returns what went through the matching queues, one point per step without gaps, oldest first. It includes
// what this broker has counted until now; of other brokers up to a second may be missing.
func (e *Engine) Traffic(ctx context.Context, f TrafficFilter) ([]TrafficPoint, error) {
	if err := e.writeTraffic(ctx); err != nil {
		return nil, err
	}
	unit := int64(minute)
	if f.Step >= hour*time.Second {
		unit = hour
	}
	step := int64(f.Step / time.Second)
	from := f.From.Unix() - f.From.Unix()%step
	to := f.To.Add(time.Second - 1).Unix() // what begins within the second of the end is before the end
	points := []TrafficPoint{}
	for at := from; at < to; at += step {
		points = append(points, TrafficPoint{At: time.Unix(at, 0).UTC()})
	}
	err := e.retrying(ctx, "read the traffic", func(ctx context.Context) error {
		ids := []int64{allQueues}
		if f.Queue != "" || f.Namespace != "" || f.Task != "" {
			var err error
			rows, _ := e.pool.Query(ctx, sqlMatchingQueues, f.Queue, f.Namespace, f.Task) // its error comes with the rows
			if ids, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
				return err
			}
		}
		var p TrafficPoint
		rows, _ := e.pool.Query(ctx, sqlTraffic, ids, time.Unix(from, 0), time.Unix(to, 0), unit, step) // its error comes with the rows
		_, err := pgx.ForEachRow(rows, []any{&p.At, &p.Pushed, &p.Popped, &p.Acked, &p.Failed, &p.DeadLettered}, func() error {
			if i := (p.At.Unix() - from) / step; i >= 0 && i < int64(len(points)) {
				points[i].Traffic = p.Traffic
			}
			return nil
		})
		return err
	})
	return points, err
}

const sqlTrafficByQueue = `
select q.uuid, sum(t.pushed)::bigint, sum(t.popped)::bigint, sum(t.acked)::bigint, sum(t.failed)::bigint, sum(t.dead_lettered)::bigint
from queue_traffic t join queue q on q.id = t.queue_id
where t.step = $3 and t.at >= $1 and t.at < $2
group by q.uuid`

// TrafficByQueue sums up each queue that had traffic in [from, to), by queue id. Times up to MinutesKept ago
// are taken by the minute, older ones by the hour.
func (e *Engine) TrafficByQueue(ctx context.Context, from, to time.Time) (map[uuid.UUID]Traffic, error) {
	if err := e.writeTraffic(ctx); err != nil {
		return nil, err
	}
	unit := minute
	if e.Now().Sub(from) > MinutesKept {
		unit = hour
	}
	from = from.Truncate(time.Duration(unit) * time.Second)
	sums := map[uuid.UUID]Traffic{}
	err := e.retrying(ctx, "read the traffic of queues", func(ctx context.Context) error {
		clear(sums)
		var id uuid.UUID
		var t Traffic
		rows, _ := e.pool.Query(ctx, sqlTrafficByQueue, from, to, unit) // its error comes with the rows
		_, err := pgx.ForEachRow(rows, []any{&id, &t.Pushed, &t.Popped, &t.Acked, &t.Failed, &t.DeadLettered}, func() error {
			sums[id] = t
			return nil
		})
		return err
	})
	return sums, err
}

// Rates are what went through all queues lately, per second.
type Rates struct{ Pushed, Acked float64 }

// Rates are taken over the current minute and the one before it.
func (e *Engine) Rates(ctx context.Context) (Rates, error) {
	now := e.Now()
	from := now.Truncate(time.Minute).Add(-time.Minute)
	points, err := e.Traffic(ctx, TrafficFilter{From: from, To: now.Add(time.Second), Step: time.Minute})
	if err != nil {
		return Rates{}, err
	}
	var sum Traffic
	for _, p := range points {
		sum.add(p.Traffic)
	}
	over := now.Sub(from).Seconds()
	return Rates{Pushed: float64(sum.Pushed) / over, Acked: float64(sum.Acked) / over}, nil
}
