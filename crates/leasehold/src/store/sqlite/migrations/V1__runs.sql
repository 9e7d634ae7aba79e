-- The row of a run: one column per field of `Snapshot`. The checks mirror the table of the protocol, so that a row which no
-- transition makes cannot be stored by any program. Times are milliseconds since 1970; lease ends are nanoseconds on the clock
-- named beside them. A rowid table, because rows carry a turn of some kilobytes and the partial indexes then hold eight bytes a row.
CREATE TABLE runs (
    id                    TEXT    NOT NULL PRIMARY KEY,
    agent                 TEXT    NOT NULL,
    owner                 TEXT    NOT NULL,
    initiator             TEXT    NOT NULL,
    mode                  TEXT    NOT NULL,
    state                 TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'cancelling', 'waiting_for_approval',
                                                            'waiting_for_input', 'completed', 'failed', 'cancelled', 'dead')),
    reason                TEXT,
    epoch                 INTEGER NOT NULL CHECK (epoch >= 0),
    sequence              INTEGER NOT NULL CHECK (sequence > 0),
    lease_id              TEXT,
    holder                TEXT,
    lease_clock           TEXT,
    lease_expires_ns      INTEGER,
    next_segment          TEXT    NOT NULL,
    cancel_requested      INTEGER NOT NULL CHECK (cancel_requested IN (0, 1)),
    recovery              TEXT    NOT NULL,
    recovery_explicit     INTEGER NOT NULL CHECK (recovery_explicit IN (0, 1)),
    requeues              INTEGER NOT NULL CHECK (requeues >= 0),
    priority              INTEGER NOT NULL,
    due_at_ms             INTEGER NOT NULL,
    fence_call            TEXT,
    fence_tool            TEXT,
    fence_effect          TEXT,
    fence_key             TEXT,
    fence_epoch           INTEGER CHECK (fence_epoch > 0 AND fence_epoch <= epoch),
    fence_lease_id        TEXT,
    fence_attempt         INTEGER CHECK (fence_attempt > 0),
    fence_repeat          INTEGER CHECK (fence_repeat IN (0, 1)),
    fence_verifiable      INTEGER CHECK (fence_verifiable IN (0, 1)),
    fence_stamped_at_ms   INTEGER,
    fence_in_flight_until_ms INTEGER,
    turn                  TEXT,
    wait_deadline_ms      INTEGER,
    has_request           INTEGER NOT NULL CHECK (has_request IN (0, 1)),
    second_approver       INTEGER NOT NULL CHECK (second_approver IN (0, 1)),
    rounds                INTEGER NOT NULL CHECK (rounds >= 0),
    input_tokens          INTEGER NOT NULL CHECK (input_tokens >= 0),
    output_tokens         INTEGER NOT NULL CHECK (output_tokens >= 0),
    cached_tokens         INTEGER NOT NULL CHECK (cached_tokens >= 0),
    cost_nano_usd         INTEGER NOT NULL CHECK (cost_nano_usd >= 0),
    duplicates            INTEGER NOT NULL CHECK (duplicates >= 0),
    created_at_ms         INTEGER NOT NULL,
    started_at_ms         INTEGER,
    finished_at_ms        INTEGER,
    since_ms              INTEGER NOT NULL,
    request_scope         TEXT,
    request_key           TEXT,
    request_hash          TEXT,

    CONSTRAINT a_lease_exactly_while_held CHECK ((lease_id IS NOT NULL) = (state IN ('running', 'cancelling'))),
    CONSTRAINT a_lease_is_whole CHECK ((lease_id IS NULL) = (holder IS NULL)
        AND (lease_id IS NULL) = (lease_clock IS NULL)
        AND (lease_id IS NULL) = (lease_expires_ns IS NULL)),
    CONSTRAINT held_only_after_a_grant CHECK (lease_id IS NULL OR epoch > 0),
    CONSTRAINT cancelling_exactly_where_a_held_run_is_cancelled CHECK (state NOT IN ('running', 'cancelling')
        OR (state = 'cancelling') = cancel_requested),
    CONSTRAINT a_fence_is_whole CHECK ((fence_call IS NULL) = (fence_tool IS NULL)
        AND (fence_call IS NULL) = (fence_effect IS NULL)
        AND (fence_call IS NULL) = (fence_key IS NULL)
        AND (fence_call IS NULL) = (fence_epoch IS NULL)
        AND (fence_call IS NULL) = (fence_lease_id IS NULL)
        AND (fence_call IS NULL) = (fence_attempt IS NULL)
        AND (fence_call IS NULL) = (fence_repeat IS NULL)
        AND (fence_call IS NULL) = (fence_verifiable IS NULL)
        AND (fence_call IS NULL) = (fence_stamped_at_ms IS NULL)
        AND (fence_call IS NULL) = (fence_in_flight_until_ms IS NULL)),
    CONSTRAINT a_fence_only_where_it_may_stand CHECK (fence_call IS NULL
        OR state IN ('queued', 'running', 'cancelling', 'dead')),
    CONSTRAINT a_doubt_has_its_fence CHECK (reason IS NOT 'write_in_doubt' OR fence_call IS NOT NULL),
    CONSTRAINT a_reason_of_its_state CHECK (CASE state
        WHEN 'failed' THEN reason IS NOT NULL AND reason IN ('refused', 'policy', 'budget', 'model_auth', 'model_client',
            'model_unavailable', 'context_overflow', 'abandoned')
        WHEN 'dead' THEN reason IS NOT NULL AND reason IN ('write_in_doubt', 'retries_exhausted', 'abandoned', 'unreadable',
            'decision_expired', 'restored')
        ELSE reason IS NULL END),
    CONSTRAINT a_request_key_is_whole CHECK ((request_key IS NULL) = (request_scope IS NULL)
        AND (request_key IS NULL) = (request_hash IS NULL))
) STRICT;

-- No index names a column of the lease or the sequence: those change at every step. Each index is partial, so that its size is
-- that of what is open, not of what was ever settled.
CREATE INDEX runs_due ON runs (priority DESC, due_at_ms, id, agent) WHERE state = 'queued';
CREATE INDEX runs_held ON runs (id) WHERE state IN ('running', 'cancelling');
CREATE INDEX runs_overdue ON runs (wait_deadline_ms)
    WHERE state IN ('waiting_for_approval', 'waiting_for_input') AND wait_deadline_ms IS NOT NULL;
CREATE INDEX runs_attention ON runs (id) WHERE state IN ('waiting_for_approval', 'waiting_for_input', 'dead');
CREATE UNIQUE INDEX runs_request_key ON runs (request_scope, request_key) WHERE request_key IS NOT NULL;

-- What happened, append-only. A rowid table: payloads reach megabytes, which a clustered key would carry through its inner pages.
CREATE TABLE journal (
    run_id    TEXT    NOT NULL REFERENCES runs (id),
    sequence  INTEGER NOT NULL CHECK (sequence >= 0),
    at_ms     INTEGER NOT NULL,
    epoch     INTEGER NOT NULL CHECK (epoch >= 0),
    holder    TEXT,
    write_id  TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    payload   BLOB    NOT NULL,
    PRIMARY KEY (run_id, sequence)
) STRICT;

-- Workers that said they live, so that a caller hears when nobody executes what it enqueues.
CREATE TABLE workers (
    name        TEXT    NOT NULL PRIMARY KEY,
    lease_clock TEXT    NOT NULL,
    expires_ns  INTEGER NOT NULL,
    executes    INTEGER NOT NULL CHECK (executes IN (0, 1))
) STRICT;
