-- Modes that an operator switches for all brokers. They read them with the shards' heads.
alter table setting
    add column maintenance     boolean not null default false, -- pushes go to the spools, which are not drained
    add column pop_maintenance boolean not null default false, -- pops find nothing
    add column mode_version    bigint  not null default 0;     -- grows with every switch

-- When a queue of this name was last deleted: what brokers accepted for it before, and still have in their
-- spools, goes with it. Trimmed after a month.
create table queue_deletion (
    name       text primary key,
    deleted_at timestamptz not null
);
create index queue_deletion_age on queue_deletion (deleted_at);
