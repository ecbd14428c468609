-- The outbox: messages that programs push in their own transactions, with select posthorn.push(…). One broker of the
-- cluster moves what is committed to the log.

-- Which broker moves. Its times are of the database's clock, which the test clock does not move.
create table outbox_mover (
    id     boolean primary key default true check (id),
    holder uuid,
    until  timestamptz not null default '-infinity'
) with (fillfactor = 10);
insert into outbox_mover default values;

do $migration$
begin
    -- A role that may not create schemas goes without an outbox, unless somebody has made the schema for it.
    if to_regnamespace('posthorn') is null then
        create schema posthorn;
    end if;

    create table posthorn.outbox (
        id             bigint generated always as identity primary key,
        xid            xid8        not null default pg_current_xact_id(), -- the transaction that pushed it
        queue          text        not null,
        partition      text        not null,
        transaction_id text        not null,
        payload        text        not null, -- JSON, as it was given
        created_at     timestamptz not null default clock_timestamp()
    ) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.2);

    create function posthorn.push(queue text, partition text, payload text, transaction_id text default null)
    returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $push$
    declare
        lane text := coalesce(nullif(push.partition, ''), 'Default');
        tx   text := coalesce(nullif(push.transaction_id, ''), gen_random_uuid()::text);
    begin
        if push.queue is null or push.queue = '' then
            raise exception 'posthorn.push: queue is missing' using errcode = 'invalid_parameter_value';
        end if;
        if octet_length(convert_to(push.queue, 'UTF8')) > 512 then
            raise exception 'posthorn.push: queue must be at most 512 bytes' using errcode = 'invalid_parameter_value';
        end if;
        if octet_length(convert_to(lane, 'UTF8')) > 512 then
            raise exception 'posthorn.push: partition must be at most 512 bytes' using errcode = 'invalid_parameter_value';
        end if;
        if octet_length(convert_to(tx, 'UTF8')) > 1024 then
            raise exception 'posthorn.push: transaction_id must be at most 1024 bytes' using errcode = 'invalid_parameter_value';
        end if;
        if push.queue ~ '[\u0001-\u001f\u007f-\u009f]' then
            raise exception 'posthorn.push: queue must not contain control characters' using errcode = 'invalid_parameter_value';
        end if;
        if lane ~ '[\u0001-\u001f\u007f-\u009f]' then
            raise exception 'posthorn.push: partition must not contain control characters' using errcode = 'invalid_parameter_value';
        end if;
        if tx ~ '[\u0001-\u001f\u007f-\u009f]' then
            raise exception 'posthorn.push: transaction_id must not contain control characters' using errcode = 'invalid_parameter_value';
        end if;
        if push.payload is null then
            raise exception 'posthorn.push: payload is missing' using errcode = 'invalid_parameter_value',
                hint = 'A JSON null is pushed as ''null''.';
        end if;
        if octet_length(convert_to(push.payload, 'UTF8')) > 67108864 then
            raise exception 'posthorn.push: payload must be at most 67108864 bytes' using errcode = 'invalid_parameter_value';
        end if;
        begin
            perform push.payload::json;
        exception when invalid_text_representation then
            raise exception 'posthorn.push: payload is not valid JSON' using errcode = 'invalid_parameter_value', detail = sqlerrm;
        end;
        insert into posthorn.outbox (queue, partition, transaction_id, payload) values (push.queue, lane, tx, push.payload);
        return tx;
    end
    $push$;

    create function posthorn.push(queue text, partition text, payload json, transaction_id text default null)
    returns text language sql security definer set search_path = pg_catalog, pg_temp as
    'select posthorn.push($1, $2, $3::text, $4)';

    create function posthorn.push(queue text, partition text, payload jsonb, transaction_id text default null)
    returns text language sql security definer set search_path = pg_catalog, pg_temp as
    'select posthorn.push($1, $2, $3::text, $4)';

    revoke all on table posthorn.outbox from public;
    revoke all on all functions in schema posthorn from public;
    comment on function posthorn.push(text, text, text, text) is
        'Pushes a message when the calling transaction commits. Returns its transaction id, minted when none is given.';
exception when insufficient_privilege then
    raise warning 'posthorn: no outbox, since this role may not create the schema posthorn';
end
$migration$;
