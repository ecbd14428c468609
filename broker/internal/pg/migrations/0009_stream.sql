-- Stream processors: who is registered, and the state that each keeps per partition of its source queue.
create table stream_query (
    id           bigint generated always as identity primary key,
    uuid         uuid        not null unique, -- a new one with each reset
    name         text        not null unique,
    source_queue text        not null,
    sink_queue   text        not null, -- '' for none
    config_hash  text        not null,
    created_at   timestamptz not null,
    updated_at   timestamptz not null
);

create table stream_state (
    query_id       bigint      not null,
    partition_uuid uuid        not null,
    key            bytea       not null, -- UTF-8, any character
    value          bytea       not null, -- JSON as it was sent
    updated_at     timestamptz not null,
    primary key (query_id, partition_uuid, key)
);
