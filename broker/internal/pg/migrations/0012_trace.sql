-- What programs noted about a message. Traces are kept by their own age, not with the message.
create table trace (
    id             uuid        primary key,
    queue_id       bigint      not null,
    partition_id   bigint      not null,
    transaction_id text        not null,
    group_name     text,
    event_type     text        not null,
    data           bytea       not null, -- JSON, as it was sent
    names          text[]      not null,
    lease_id       uuid,                 -- of the group on the partition, when it was noted
    created_at     timestamptz not null
);
create index trace_message on trace (partition_id, transaction_id, created_at, id);
create index trace_age on trace (created_at);
create index trace_queue on trace (queue_id, created_at);

-- A row for each name of a trace.
create table trace_name (
    name           text        not null,
    created_at     timestamptz not null, -- of the trace
    trace_id       uuid        not null,
    partition_id   bigint      not null,
    transaction_id text        not null,
    primary key (name, created_at, trace_id)
);
create index trace_name_age on trace_name (created_at);
