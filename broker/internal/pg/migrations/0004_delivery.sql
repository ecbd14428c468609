-- The publish half: messages that are delivered by HTTP. What a message is and what becomes of it stand apart: the content
-- is written once and never updated, the state is a small row that goes away when the message is delivered or has failed.

-- The content of a message, for as long as a task, a log entry or a dead letter refers to it.
create table delivery_message (
    id          uuid primary key,     -- version 7, minted by the broker that accepted it
    created_at  timestamptz not null,
    not_before  timestamptz not null, -- of the first attempt
    method      text        not null,
    url         text        not null, -- of the first target
    targets     jsonb,                -- when there are several: [{"url", "name", "endpointId"}]
    topic       text,                 -- the group that it was published to, by name
    queue       text,                 -- the delivery queue that it waits in
    schedule_id text,
    flow_key    text,
    label       text,                 -- several are separated by commas
    caller_ip   text        not null,
    header      bytea       not null, -- what is forwarded: "Name: value" lines, any bytes
    settings    bytea       not null, -- JSON: retries, time limits, callbacks
    body        bytea       not null
);
create index delivery_message_topic on delivery_message (topic) where topic is not null;
create index delivery_message_queue on delivery_message (queue) where queue is not null;
create index delivery_message_schedule on delivery_message (schedule_id) where schedule_id is not null;
create index delivery_message_flow on delivery_message (flow_key) where flow_key is not null;
create index delivery_message_label on delivery_message (label) where label is not null;

-- What is still to be delivered: one row per message and target.
--
-- A row is leased, or it waits in a lane, or it waits for its time: it is in exactly one of the three indexes. A lease names
-- a row of delivery_broker; when that is gone or past its time, whatever it held is free again, so that a lease costs
-- nothing while it lasts. A lane is where tasks wait that are due but may not start: those of a host that has its share
-- of attempts already (the lane is the host then), of a delivery queue, of a flow control key.
create table delivery_task (
    message_id uuid        not null,
    target     smallint    not null, -- index into the targets of the message
    retried    integer     not null, -- attempts that are over
    cancelled  boolean     not null, -- asked for during an attempt
    due_at     timestamptz not null, -- of the next attempt
    host       bigint      not null, -- hash of the target's scheme, host and port
    size       integer     not null, -- bytes that the message takes in a broker's memory, about
    lane       bigint,
    lease      bigint,
    primary key (message_id, target)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index delivery_task_due on delivery_task (due_at) where lease is null and lane is null;
create index delivery_task_lane on delivery_task (lane, due_at) where lease is null and lane is not null;
create index delivery_task_lease on delivery_task (lease) where lease is not null;

-- Who may hold leases. Judged by the real clock: moving the test clock must not take a lease from a live broker.
create table delivery_broker (
    lease       bigint primary key,
    alive_until timestamptz not null
) with (fillfactor = 10);

-- What happened to messages. Append-only, trimmed by age.
create table delivery_log (
    id              bigint generated always as identity,
    message_id      uuid        not null,
    target          smallint    not null,
    time            timestamptz not null,
    state           smallint    not null, -- see the constants of the delivery package
    retried         integer     not null, -- attempts that were over before this entry
    next_at         timestamptz,          -- of the next attempt
    error           text,
    response_status integer,              -- with the next two: what the destination answered
    response_header bytea,
    response_body   bytea
);
create index delivery_log_time on delivery_log (time, id);
create index delivery_log_message on delivery_log (message_id, id);

-- The ids of accepted publishes, for as long as they count as duplicates.
create table delivery_dedup (
    key        bytea primary key,    -- SHA-256 of the id
    ids        bytea       not null, -- of the messages, 16 bytes each; of a schedule, its id as text
    schedule   boolean     not null,
    created_at timestamptz not null
);
create index delivery_dedup_created on delivery_dedup (created_at);

-- Messages that failed for good. The content is that of delivery_message.
create table delivery_dead_letter (
    id              uuid primary key,
    message_id      uuid        not null,
    target          smallint    not null,
    retried         integer     not null,
    failed_at       timestamptz not null,
    error           text        not null,
    response_status integer     not null, -- 0 when there was none
    response_header bytea       not null,
    response_body   bytea       not null
);
create index delivery_dead_letter_message on delivery_dead_letter (message_id);

-- URL groups. Membership is looked up when a message is published.
create table topic (
    id         uuid primary key,
    name       text        not null unique,
    header     bytea       not null, -- defaults, as delivery_message.header
    created_at timestamptz not null,
    updated_at timestamptz not null
);
create table topic_endpoint (
    id         uuid primary key,
    topic_id   uuid        not null references topic on delete cascade,
    name       text,
    url        text        not null,
    created_at timestamptz not null
);
create index topic_endpoint_topic on topic_endpoint (topic_id, created_at, id);

-- Delivery queues: FIFO with a bound on what is in delivery at once.
create table delivery_queue (
    id          bigint generated always as identity primary key,
    name        text        not null unique,
    parallelism integer     not null,
    paused      boolean     not null,
    created_at  timestamptz not null,
    updated_at  timestamptz not null
);

create table flow_control (
    id                 bigint generated always as identity primary key,
    key                text        not null unique,
    parallelism        integer,              -- null means no bound
    rate               integer,              -- attempts per period; null means no bound
    period             interval    not null,
    paused             boolean     not null,
    pinned_parallelism boolean     not null, -- messages do not change it
    pinned_rate        boolean     not null, -- messages do not change rate and period
    period_start       timestamptz not null,
    period_count       integer     not null
) with (fillfactor = 50);

create table schedule (
    id          text primary key,
    cron        text        not null,
    destination text        not null, -- as it was given
    next_at     timestamptz,          -- null means never again
    last_at     timestamptz,
    paused      boolean     not null,
    created_at  timestamptz not null,
    method      text        not null,
    header      bytea       not null, -- these four as in delivery_message
    settings    bytea       not null,
    label       text,
    body        bytea       not null,
    queue       text,
    flow        text,                 -- the value of Upstash-Flow-Control-Value, with its key
    flow_key    text,
    delay       interval    not null,
    caller_ip   text        not null,
    error       text
);
create index schedule_next on schedule (next_at) where not paused and next_at is not null;

-- The two keys that deliveries are signed with: messages by the current one, receivers accept both.
create table signing_key (
    slot       text primary key check (slot in ('current', 'next')),
    key        text        not null,
    created_at timestamptz not null
);
