-- What moves a consumer group by hand, so that every broker hears of it.

-- How often the cursor was moved by a seek. What a broker learns of a cursor from before a seek never
-- replaces what it knows from after it.
alter table cursor add column seeks bigint not null default 0;

-- Grows with every change of the subscription. A claim names the version that it believes in.
alter table consumer_group add column version bigint not null default 0;

-- One row: the version of the last change below. It is locked last of all rows, until commit, so that
-- versions become visible in their order.
create table group_log (
    id      boolean primary key default true check (id),
    version bigint not null default 0
);
insert into group_log default values;

-- Groups whose cursors or subscription other brokers have to read anew. A deleted group stays here until
-- its last cursors are swept away.
create table group_change (
    version      bigint      not null,
    group_id     bigint      not null,
    queue_id     bigint      not null,
    partition_id bigint,               -- null: all of the group's cursors
    removed      boolean     not null,
    changed_at   timestamptz not null,
    primary key (version, group_id)
);
