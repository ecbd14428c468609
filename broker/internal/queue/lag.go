package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Spread summarizes a figure over partitions.
type Spread struct{ Avg, Median, Min, Max float64 }

// Lag is how far consumers are behind, measured against the slowest group of each partition. A message under a lease
// still counts until it is committed.
type Lag struct {
	Partitions int64  // all of them
	Behind     int64  // those with something that is not committed
	Open       int64  // messages that are not committed
	Offset     Spread // open messages per partition
	Time       Spread // age of the oldest open message per partition, in seconds; 0 where there is none
}

// NamedLag is the lag of one queue.
type NamedLag struct {
	ID                    uuid.UUID
	Name, Namespace, Task string
	Lag
}

// Lags are the lags of all queues as of one moment.
type Lags struct {
	At     time.Time // of the database's clock
	Total  Lag       // over the partitions of all queues
	Queues []NamedLag
}

// lagCache keeps the last answer, for those who may see one that is up to a StatsInterval old.
type lagCache struct {
	mu   sync.Mutex
	last Lags
}

const sqlLags = `
with part as ({partitions})
select q.uuid, q.name, q.namespace, q.task, r.id is not null, coalesce(r.open, 0),
       greatest(0, extract(epoch from clock_timestamp() + $1::interval - o.created_at))::float8,
       clock_timestamp() + $1::interval
from queue q
left join part r on r.queue_id = q.id
left join lateral (
    select created_at from segment
    where r.open > 0 and partition_id = r.id and base <= r.low order by base desc limit 1
) o on true
order by q.name`

var sqlAllLags = statsOf(sqlLags, true)

// Lags returns how far consumers are behind. The answer may be as old as maxAge, which saves a look at every
// partition; with 0 everything committed before the call is in it.
func (e *Engine) Lags(ctx context.Context, maxAge time.Duration) (Lags, error) {
	if last := e.lags.read(); maxAge > 0 && !last.At.IsZero() {
		if age := e.Now().Sub(last.At); age >= 0 && age <= maxAge {
			return last, nil
		}
	}
	key := "lags"
	if maxAge <= 0 {
		key = uuid.NewString() // an answer that is being made may be older than the call
	}
	return shared(ctx, &e.loads, key, func() (Lags, error) {
		lags, err := e.readLags(e.ctx)
		if err == nil {
			e.lags.keep(lags)
		}
		return lags, err
	})
}

func (c *lagCache) read() Lags {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

func (c *lagCache) keep(lags Lags) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lags.At.After(c.last.At) {
		c.last = lags
	}
}

func (e *Engine) readLags(ctx context.Context) (Lags, error) {
	var lags Lags
	err := e.reading(ctx, "measure the lag", func(ctx context.Context, tx pgx.Tx) error {
		lags = Lags{At: e.Now(), Queues: []NamedLag{}}
		var total, one lagSum
		var row NamedLag
		var exists bool
		var open int64
		var age *float64
		finish := func() {
			if n := len(lags.Queues); n > 0 {
				lags.Queues[n-1].Lag = one.lag()
			}
			one = lagSum{}
		}
		args, err := e.statsArgs(ctx, tx, nil)
		if err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, sqlAllLags, args...) // its error comes with the rows
		_, err = pgx.ForEachRow(rows, []any{&row.ID, &row.Name, &row.Namespace, &row.Task, &exists, &open, &age, &lags.At}, func() error {
			if n := len(lags.Queues); n == 0 || lags.Queues[n-1].ID != row.ID {
				finish()
				lags.Queues = append(lags.Queues, row)
			}
			if exists {
				one.add(open, age)
				total.add(open, age)
			}
			return nil
		})
		finish()
		lags.Total = total.lag()
		return err
	})
	return lags, err
}

// lagSum collects partitions.
type lagSum struct {
	open   []float64
	ages   []float64
	behind int64
}

func (s *lagSum) add(open int64, age *float64) {
	s.open = append(s.open, float64(open))
	if open == 0 || age == nil {
		s.ages = append(s.ages, 0)
	} else {
		s.ages = append(s.ages, *age)
	}
	if open > 0 {
		s.behind++
	}
}

func (s *lagSum) lag() Lag {
	l := Lag{Partitions: int64(len(s.open)), Behind: s.behind, Offset: spread(s.open), Time: spread(s.ages)}
	for _, n := range s.open {
		l.Open += int64(n)
	}
	return l
}

// spread sorts values.
func spread(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	slices.Sort(values)
	var sum float64
	for _, v := range values {
		sum += v
	}
	return Spread{Avg: sum / float64(n), Median: (values[(n-1)/2] + values[n/2]) / 2, Min: values[0], Max: values[n-1]}
}

// StatsInterval is how often counts are added up and brokers report.
func (e *Engine) StatsInterval() time.Duration { return e.cfg.StatsInterval }

// RefreshStats brings every figure up to date that may otherwise lag behind: counts, the traffic of this broker and
// the lag that metrics show.
func (e *Engine) RefreshStats(ctx context.Context) (time.Time, error) {
	e.queueList.forget()
	if err := e.writeTraffic(ctx); err != nil {
		return time.Time{}, err
	}
	lags, err := e.Lags(ctx, 0)
	return lags.At, err
}

// Leases counts what consumers hold.
type Leases struct {
	Active   int64 // (partition, group) pairs under a live lease
	Messages int64 // that those leases cover and nobody has committed
}

const sqlLeases = `
select count(*), coalesce(sum(c.lease_end - c.committed), 0)::bigint
from (select clock_timestamp() + $1::interval as now offset 0) t
cross join queue q
join consumer_group g on g.queue_id = q.id
join cursor c on c.group_id = g.id
where c.lease_until > t.now
  and ($2 = '' or q.name = $2) and ($3 = '' or q.namespace = $3) and ($4 = '' or q.task = $4)`

// Leases counts the live leases of the matching queues; the times of the filter and its step do not matter.
func (e *Engine) Leases(ctx context.Context, f TrafficFilter) (Leases, error) {
	var l Leases
	err := e.retrying(ctx, "count leases", func(ctx context.Context) error {
		return e.pool.QueryRow(ctx, sqlLeases, e.clockOffset(), f.Queue, f.Namespace, f.Task).Scan(&l.Active, &l.Messages)
	})
	return l, err
}

// LetterSummary describes the dead letters of some queues.
type LetterSummary struct {
	Total      int64
	Partitions int64 // that have some
	TopErrors  []ErrorCount
}

// ErrorCount is how often an error occurs among the newest dead letters.
type ErrorCount struct {
	Error string
	Count int64
}

// Bounds of a summary of dead letters.
const (
	topErrors       = 5
	topErrorsAmong  = 1000 // newest dead letters
	topErrorsLength = 200  // characters
)

const sqlLetterCounts = `
select count(*), count(distinct d.partition_id)
from dead_letter d join queue q on q.id = d.queue_id
where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)`

const sqlTopErrors = `
select left(error, $4), count(*) from (
    select d.error from dead_letter d join queue q on q.id = d.queue_id
    where ($1 = '' or q.name = $1) and ($2 = '' or q.namespace = $2) and ($3 = '' or q.task = $3)
    order by d.id desc limit $5
) newest
group by 1 order by 2 desc, 1 limit $6`

// LetterSummary summarizes the dead letters of the matching queues; the times of the filter do not matter.
func (e *Engine) LetterSummary(ctx context.Context, f TrafficFilter) (LetterSummary, error) {
	var s LetterSummary
	err := e.retrying(ctx, "summarize dead letters", func(ctx context.Context) error {
		s = LetterSummary{TopErrors: []ErrorCount{}}
		err := e.pool.QueryRow(ctx, sqlLetterCounts, f.Queue, f.Namespace, f.Task).Scan(&s.Total, &s.Partitions)
		if err != nil || s.Total == 0 {
			return err
		}
		var c ErrorCount
		rows, _ := e.pool.Query(ctx, sqlTopErrors, f.Queue, f.Namespace, f.Task, topErrorsLength, topErrorsAmong, topErrors) // its error comes with the rows
		_, err = pgx.ForEachRow(rows, []any{&c.Error, &c.Count}, func() error {
			s.TopErrors = append(s.TopErrors, c)
			return nil
		})
		return err
	})
	return s, err
}
