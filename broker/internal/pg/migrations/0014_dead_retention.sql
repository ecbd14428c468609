-- Dead letters of the publish half are removed by their age.
create index delivery_dead_letter_failed on delivery_dead_letter (failed_at);
