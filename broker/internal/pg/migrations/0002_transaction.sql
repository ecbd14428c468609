-- Marks of transactions that committed, so that a broker which lost the answer to a commit learns
-- whether it happened. Whoever asks writes the mark itself: that waits for a commit which is still under
-- way, and keeps one that comes later from happening. Trimmed after minutes.
create table transaction_mark (
    token      uuid primary key,
    fenced     boolean     not null, -- written by the question: the transaction did not commit, and cannot any more
    created_at timestamptz not null
);
create index transaction_mark_age on transaction_mark (created_at);
