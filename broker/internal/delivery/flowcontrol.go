package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// FlowControl is a key that attempts are bounded by, with what it bounds at the moment.
type FlowControl struct {
	Key               string
	Waiting           int // tasks that are due and wait for the key
	Parallelism       int // attempts at once; 0 means no bound
	Running           int // attempts that the key let pass and that have not ended
	Rate              int // attempts that begin in one period; 0 means no bound
	RateCount         int // attempts that the key let pass in this period
	Period            time.Duration
	PeriodStart       time.Time // of the period of the last attempt
	Paused            bool
	PinnedParallelism bool // messages do not change it
	PinnedRate        bool // messages do not change rate and period
}

const sqlFlows = `
with t as materialized (select clock_timestamp() + clock_offset as now from setting)
select f.key, waiting.n, coalesce(f.parallelism, 0), busy.n, coalesce(f.rate, 0),
    case when f.period_start + f.period <= t.now then 0 else f.period_count end, f.period, f.period_start, f.paused,
    f.pinned_parallelism, f.pinned_rate
from flow_control f cross join t
cross join lateral (
    select count(*) as n from delivery_task where lane = f.lane and lease is null and due_at <= t.now) waiting
cross join lateral (select count(*) as n from delivery_task where flow_lane = f.lane and flowing) busy
where ($1::text is null or f.key = $1) and strpos(lower(f.key), lower($2)) > 0
order by f.key`

// FlowControls lists the keys whose names contain a text, in any case, by their names.
func (e *Engine) FlowControls(ctx context.Context, search string) ([]FlowControl, error) {
	return e.readFlows(ctx, nil, search)
}

// FlowControl finds a key; ErrNotFound when no message has named it, or none for long.
func (e *Engine) FlowControl(ctx context.Context, key string) (FlowControl, error) {
	list, err := e.readFlows(ctx, &key, "")
	switch {
	case err != nil:
		return FlowControl{}, err
	case len(list) == 0:
		return FlowControl{}, noFlow(key)
	}
	return list[0], nil
}

func noFlow(key string) error { return fmt.Errorf("flow control key %s: %w", key, ErrNotFound) }

func (e *Engine) readFlows(ctx context.Context, key *string, search string) ([]FlowControl, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	rows, err := e.pool.Query(ctx, sqlFlows, key, search)
	if err != nil {
		return nil, e.unavailable("read flow control", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f FlowControl, err error) {
		err = row.Scan(&f.Key, &f.Waiting, &f.Parallelism, &f.Running, &f.Rate, &f.RateCount, &f.Period, &f.PeriodStart, &f.Paused,
			&f.PinnedParallelism, &f.PinnedRate)
		return f, err
	})
	if err != nil {
		return nil, e.unavailable("read flow control", err)
	}
	return list, nil
}

const (
	sqlPauseFlow = `update flow_control set paused = $2 where key = $1`
	sqlPinFlow   = `
update flow_control set
    parallelism = coalesce($2, parallelism), pinned_parallelism = pinned_parallelism or $2::integer is not null,
    rate = coalesce($3, rate), period = coalesce($4, period),
    pinned_rate = pinned_rate or $3::integer is not null or $4::interval is not null
where key = $1`
	sqlUnpinFlow = `
update flow_control set
    pinned_parallelism = pinned_parallelism and not $2, pinned_rate = pinned_rate and not $3
where key = $1`
	sqlResetFlow = `update flow_control set period_count = 0, period_start = ` + sqlNow + ` where key = $1`
)

// changeFlow changes a key; ErrNotFound when there is none.
func (e *Engine) changeFlow(ctx context.Context, sql, key string, args ...any) error {
	n, err := e.changeGate(ctx, "change flow control", flowLane(key), sql, append([]any{key}, args...)...)
	if err == nil && n == 0 {
		return noFlow(key)
	}
	return err
}

// PauseFlow stops attempts of a key from beginning, or lets them begin again; ErrNotFound when there is no such key.
func (e *Engine) PauseFlow(ctx context.Context, key string, paused bool) error {
	return e.changeFlow(ctx, sqlPauseFlow, key, paused)
}

// FlowPin are values that messages do not change any more; nil leaves one as it is.
type FlowPin struct {
	Parallelism *int
	Rate        *int           // pins the period too
	Period      *time.Duration // pins the rate too
}

// PinFlow sets values of a key for good; ErrNotFound when there is no such key.
func (e *Engine) PinFlow(ctx context.Context, key string, pin FlowPin) error {
	return e.changeFlow(ctx, sqlPinFlow, key, pin.Parallelism, pin.Rate, pin.Period)
}

// UnpinFlow lets messages change values of a key again: the next one does. ErrNotFound when there is no such key.
func (e *Engine) UnpinFlow(ctx context.Context, key string, parallelism, rate bool) error {
	return e.changeFlow(ctx, sqlUnpinFlow, key, parallelism, rate)
}

// ResetFlowRate begins a new period of a key, in which nothing was let pass yet; ErrNotFound when there is no such key.
func (e *Engine) ResetFlowRate(ctx context.Context, key string) error {
	return e.changeFlow(ctx, sqlResetFlow, key)
}

// Parallelism says how many attempts all brokers together make at once.
type Parallelism struct {
	Max   int // that they could
	Count int // that they have in hand now, those that wait for their turn in a broker's memory included
}

const sqlParallelism = `
select coalesce((select sum(workers) from delivery_broker where alive_until > clock_timestamp()), 0)::bigint,
    (select count(*) from delivery_task where lease is not null)`

// GlobalParallelism is the figure for all messages.
func (e *Engine) GlobalParallelism(ctx context.Context) (p Parallelism, err error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	if err := e.pool.QueryRow(ctx, sqlParallelism).Scan(&p.Max, &p.Count); err != nil {
		return p, e.unavailable("read the parallelism", err)
	}
	return p, nil
}

// sqlTrimFlows removes keys that no message has named for a while, unless somebody set something about them by hand. What
// holds a key of which the row is gone passes freely (sqlAdmitGone), so that nothing can be left waiting for it.
const sqlTrimFlows = `
delete from flow_control where id in (
    select f.id from flow_control f
    where f.used_at < ` + sqlNow + ` - $1::interval and not f.paused and not f.pinned_parallelism and not f.pinned_rate
      and f.period_start + f.period < ` + sqlNow + `
      and not exists (select from delivery_task d where d.flow_lane = f.lane)
    order by f.id limit $2 for update skip locked)`

func (e *Engine) trimFlows(ctx context.Context) (int64, error) {
	ctx, cancel := e.deadline(ctx)
	defer cancel()
	tag, err := e.pool.Exec(ctx, sqlTrimFlows, e.cfg.LogRetention, sweepLimit)
	if err != nil {
		return 0, e.unavailable("remove old flow control keys", err)
	}
	return tag.RowsAffected(), nil
}
