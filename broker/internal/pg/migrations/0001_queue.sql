-- The ordered log. Only segment grows with messages; every index over it is derived and lives in the brokers' memory.

-- One row: what all brokers of this database share.
create table setting (
    id              boolean primary key default true check (id),
    hash_key        bytea    not null,           -- 16 bytes, keys the 64-bit hashes of transaction ids
    shards          integer  not null,           -- fixed at first start
    catalog_version bigint   not null default 0, -- grows with every change of a queue row
    clock_offset    interval not null default '0' -- moved by the test clock only
);

create table queue (
    id         bigint generated always as identity primary key,
    uuid       uuid        not null unique,
    name       text        not null unique,
    namespace  text        not null,
    task       text        not null,
    options    jsonb       not null,
    version    bigint      not null,
    created_at timestamptz not null
);
create index queue_version on queue (version);

-- A deleted queue, until every broker has heard of it and its rows are swept away.
create table queue_tombstone (
    queue_id   bigint primary key,
    version    bigint      not null,
    deleted_at timestamptz not null
);

create table partition (
    id         bigint generated always as identity primary key,
    uuid       uuid        not null unique,
    queue_id   bigint      not null,
    name       text        not null,
    shard      integer     not null,
    created_at timestamptz not null,
    unique (queue_id, name)
);

-- A partition belongs to one shard. Appending to any partition of a shard moves its head by one,
-- and only from the head that the appending broker has seen: the head proves that its memory is complete.
create table shard (
    id   integer primary key,
    head bigint not null
) with (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- What each move of a head appended, so that other brokers can catch up. Trimmed after minutes.
create table flush (
    shard      integer     not null,
    seq        bigint      not null,
    token      bigint      not null, -- names the attempt: a broker that lost the answer finds its own
    entries    bytea       not null,
    created_at timestamptz not null,
    primary key (shard, seq)
);

create table segment (
    partition_id bigint      not null,
    base         bigint      not null, -- offset of the first message
    count        integer     not null,
    created_at   timestamptz not null, -- never goes back within a partition
    bytes        integer     not null, -- of the frames, not compressed
    format       smallint    not null, -- of the frames column
    hashes       bytea       not null, -- 8 bytes per message, in offset order
    frames       bytea,                -- packed messages; null once retention emptied it
    primary key (partition_id, base)
);
alter table segment alter column hashes set storage external;
alter table segment alter column frames set storage external;

create table consumer_group (
    id         bigint generated always as identity primary key,
    queue_id   bigint      not null,
    name       text        not null,
    mode       text        not null, -- all or new
    from_at    timestamptz,          -- messages created then or later; null means from the beginning
    created_at timestamptz not null,
    unique (queue_id, name)
);

-- Where a group stands in a partition. A live lease covers [committed, lease_end).
create table cursor (
    partition_id bigint  not null,
    group_id     bigint  not null,
    committed    bigint  not null, -- next offset to deliver
    delivered    bigint  not null, -- end of what was ever delivered
    attempt      integer not null, -- deliveries of the span [committed, delivered)
    retries      integer not null, -- charged by failed acks, reset by progress
    lease_id     uuid,
    lease_end    bigint,
    lease_until  timestamptz,
    updated_at   timestamptz not null,
    primary key (partition_id, group_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The partitions of a lease that covers more than one; a lease of one partition carries it in its id.
create table lease (
    id            uuid primary key,
    partition_ids bigint[]    not null,
    expires_at    timestamptz not null
);
create index lease_expiry on lease (expires_at);

create table dead_letter (
    id             bigint generated always as identity primary key,
    queue_id       bigint      not null,
    partition_id   bigint      not null,
    group_name     text        not null,
    log_offset     bigint      not null,
    message_id     uuid        not null,
    transaction_id text        not null,
    trace_id       uuid,
    producer_sub   text,
    error          text        not null,
    retries        integer     not null,
    payload        bytea       not null,
    created_at     timestamptz not null,
    failed_at      timestamptz not null
);
create index dead_letter_queue on dead_letter (queue_id, failed_at);
create index dead_letter_partition on dead_letter (partition_id, log_offset);
