-- Dead letters are listed newest failure first, by queue, group and partition; as messages they are listed by their
-- age, and found by their transaction id.
drop index dead_letter_queue;
create index dead_letter_queue on dead_letter (queue_id, failed_at, id);
create index dead_letter_group on dead_letter (queue_id, group_name, failed_at, id);
create index dead_letter_lane on dead_letter (partition_id, failed_at, id);
create index dead_letter_created on dead_letter (queue_id, created_at, partition_id, log_offset);
create index dead_letter_transaction on dead_letter (partition_id, transaction_id);
