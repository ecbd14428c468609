-- Counts of what each partition retains, so that nobody scans the log for them. They are kept by adding up
-- flush rows: count_progress says up to which flush of a shard that has been done, in the same transaction.
create table partition_count (
    partition_id bigint      primary key,
    queue_id     bigint      not null,
    messages     bigint      not null, -- retained: their frames are there
    segments     bigint      not null,
    bytes        bigint      not null, -- of the frames column
    start        bigint      not null, -- nothing is retained before this offset
    tail         bigint      not null, -- end of the log
    last_at      timestamptz not null  -- of the last message that was ever appended
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index partition_count_queue on partition_count (queue_id);

create table count_progress (
    shard integer primary key,
    seq   bigint  not null
) with (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Segments and bytes of each run in entries; null in the rows of a broker that does not know the column.
alter table flush add column sizes bytea;

-- What is there already is counted in the snapshot in which the heads are read.
with counted as (
    insert into partition_count (partition_id, queue_id, messages, segments, bytes, start, tail, last_at)
    select p.id, p.queue_id,
           coalesce(sum(g.count) filter (where g.frames is not null), 0), count(g.frames),
           coalesce(sum(octet_length(g.frames)), 0),
           coalesce(min(g.base) filter (where g.frames is not null), max(g.base + g.count)),
           max(g.base + g.count), max(g.created_at)
    from segment g join partition p on p.id = g.partition_id
    group by p.id
)
insert into count_progress (shard, seq) select id, head from shard;

-- What went through each queue, by minute and by hour: written by each broker about once a second, so what
-- it had counted since is lost when it is killed. Queue 0 is the sum of all.
create table queue_traffic (
    queue_id      bigint      not null,
    step          integer     not null, -- 60 or 3600 s
    at            timestamptz not null, -- when the step begins
    pushed        bigint      not null,
    popped        bigint      not null, -- deliveries, repeated ones too
    acked         bigint      not null,
    failed        bigint      not null,
    dead_lettered bigint      not null,
    primary key (queue_id, step, at)
) with (fillfactor = 70);
create index queue_traffic_time on queue_traffic (step, at);

-- What each broker says of itself, every few seconds.
create table broker_report (
    id          uuid        primary key,
    started_at  timestamptz not null,
    reported_at timestamptz not null,
    report      jsonb       not null
) with (fillfactor = 50);
