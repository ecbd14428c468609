-- Delivery queues and flow control. A task that has to wait for one of them waits in its lane, which is a hash of the name:
-- whoever publishes need not look it up.
alter table delivery_queue add column lane bigint not null unique;
alter table flow_control
    add column lane bigint not null unique,
    add column used_at timestamptz not null; -- of the last message that named the key, to the minute

alter table delivery_task
    add column queue_lane bigint,                        -- the delivery queue of the message, or of the one that this is a callback of
    add column slot       uuid,                          -- the message whose place in that queue the task shares; null while it waits for one
    add column flow_lane  bigint,                        -- the flow control key of the message
    add column flowing    boolean not null default false; -- it was let pass by the key, for the next attempt or the one that runs
create index delivery_task_slot on delivery_task (queue_lane, slot) where slot is not null;
create index delivery_task_flow on delivery_task (flow_lane, flowing) where flow_lane is not null;

-- When a lane has to be looked at: whatever may let one of its tasks pass writes a row in the same transaction. Nothing
-- else is looked at, however many lanes there are. Rows are only inserted and deleted, so that writers do not wait for each
-- other.
create table delivery_wake (
    lane bigint      not null,
    at   timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index delivery_wake_at on delivery_wake (at);
create index delivery_wake_lane on delivery_wake (lane);

-- How many attempts at once a broker makes, for the figure of the whole cluster; 0 with a lease that takes nothing more.
alter table delivery_broker add column workers integer not null default 0;

-- The lanes of hosts by themselves: there may be far more lanes of gates.
create index delivery_task_parked on delivery_task (host) where lease is null and lane = host;
