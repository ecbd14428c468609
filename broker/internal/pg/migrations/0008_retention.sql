-- What retention has removed, who removes, and what brokers still have on their disks.

-- Offset of the first message that is still there. What is before it is gone for good: it moves forward only, in the
-- transaction that empties the frames before it, and a claim that reaches below it fails.
alter table partition add column log_start bigint not null default 0;

-- Segments are emptied and deleted in the order they were written, a few at a time: vacuum them before a fifth is dead.
alter table segment set (autovacuum_vacuum_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.05);

-- The broker that removes what queues no longer keep. Each of its steps holds the row until it commits.
create table retention_leader (
    id     boolean primary key default true check (id),
    holder uuid, -- of the broker's process
    until  timestamptz not null default '-infinity' -- of the database's clock, which the test clock does not move
) with (fillfactor = 10);
insert into retention_leader default values;

-- The spools of all brokers. Hashes are kept for what may still be replayed from them.
create table broker_spool (
    id        uuid primary key,      -- of the spool's directory
    records   bigint      not null,  -- that wait there
    oldest_at timestamptz not null,  -- nothing there was accepted before, nor will be
    seen_at   timestamptz not null   -- of the database's clock, which the test clock does not move
) with (fillfactor = 50);
