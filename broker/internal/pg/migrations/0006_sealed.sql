-- Whether a dead letter's payload is encrypted, as it was in the log.
alter table dead_letter add column sealed boolean not null default false;
