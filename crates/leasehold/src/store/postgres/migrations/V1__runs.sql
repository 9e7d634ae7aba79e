-- The row of a run: one column per field of `Snapshot`. The checks mirror the table of the protocol, so that a row which no
-- transition makes cannot be stored by any program. Times are milliseconds since 1970; lease ends are nanoseconds on the clock
-- named beside them.
--
-- Text is kept as it is but for U+0000, which PostgreSQL cannot store: see `text.rs`. Pages are filled in part, so that the next
-- version of a row finds room on its page and an update which changes no indexed column touches no index.
CREATE TABLE runs (
    id                       uuid    NOT NULL PRIMARY KEY,
    agent                    text    NOT NULL,
    owner                    text    NOT NULL,
    initiator                text    NOT NULL,
    mode                     text    NOT NULL,
    state                    text    NOT NULL CHECK (state IN ('queued', 'running', 'cancelling', 'waiting_for_approval',
                                                            'waiting_for_input', 'completed', 'failed', 'cancelled', 'dead')),
    reason                   text,
    epoch                    bigint  NOT NULL CHECK (epoch >= 0),
    sequence                 bigint  NOT NULL CHECK (sequence > 0),
    lease_id                 uuid,
    holder                   text,
    lease_clock              text,
    lease_expires_ns         bigint,
    next_segment             text    NOT NULL,
    cancel_requested         boolean NOT NULL,
    recovery                 text    NOT NULL,
    recovery_explicit        boolean NOT NULL,
    requeues                 bigint  NOT NULL CHECK (requeues >= 0),
    priority                 integer NOT NULL,
    due_at_ms                bigint  NOT NULL,
    fence_call               text,
    fence_tool               text,
    fence_effect             text,
    fence_key                text,
    fence_epoch              bigint  CHECK (fence_epoch > 0 AND fence_epoch <= epoch),
    fence_lease_id           uuid,
    fence_attempt            bigint  CHECK (fence_attempt > 0),
    fence_repeat             boolean,
    fence_verifiable         boolean,
    fence_stamped_at_ms      bigint,
    fence_in_flight_until_ms bigint,
    turn                     text,
    wait_deadline_ms         bigint,
    has_request              boolean NOT NULL,
    second_approver          boolean NOT NULL,
    rounds                   bigint  NOT NULL CHECK (rounds >= 0),
    input_tokens             bigint  NOT NULL CHECK (input_tokens >= 0),
    output_tokens            bigint  NOT NULL CHECK (output_tokens >= 0),
    cached_tokens            bigint  NOT NULL CHECK (cached_tokens >= 0),
    cost_nano_usd            bigint  NOT NULL CHECK (cost_nano_usd >= 0),
    duplicates               bigint  NOT NULL CHECK (duplicates >= 0),
    created_at_ms            bigint  NOT NULL,
    started_at_ms            bigint,
    finished_at_ms           bigint,
    since_ms                 bigint  NOT NULL,
    request_scope            text,
    request_key              text,
    request_hash             text,

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
    CONSTRAINT a_doubt_has_its_fence CHECK (reason IS DISTINCT FROM 'write_in_doubt' OR fence_call IS NOT NULL),
    CONSTRAINT a_reason_of_its_state CHECK (CASE state
        WHEN 'failed' THEN reason IS NOT NULL AND reason IN ('refused', 'policy', 'budget', 'model_auth', 'model_client',
            'model_unavailable', 'context_overflow', 'abandoned')
        WHEN 'dead' THEN reason IS NOT NULL AND reason IN ('write_in_doubt', 'retries_exhausted', 'abandoned', 'unreadable',
            'decision_expired', 'restored')
        ELSE reason IS NULL END),
    CONSTRAINT a_request_key_is_whole CHECK ((request_key IS NULL) = (request_scope IS NULL)
        AND (request_key IS NULL) = (request_hash IS NULL))
) WITH (fillfactor = 70);

-- No index names a column of the lease or the sequence: those change at every step. Each index is partial, so that its size is
-- that of what is open, not of what was ever settled.
CREATE INDEX runs_due ON runs (priority DESC, due_at_ms, id, agent) WHERE state = 'queued';
CREATE INDEX runs_held ON runs (id) WHERE state IN ('running', 'cancelling');
CREATE INDEX runs_overdue ON runs (wait_deadline_ms)
    WHERE state IN ('waiting_for_approval', 'waiting_for_input') AND wait_deadline_ms IS NOT NULL;
CREATE INDEX runs_attention ON runs (id) WHERE state IN ('waiting_for_approval', 'waiting_for_input', 'dead');
CREATE UNIQUE INDEX runs_request_key ON runs (request_scope, request_key) WHERE request_key IS NOT NULL;

-- What happened, append-only.
CREATE TABLE journal (
    run_id                   uuid    NOT NULL REFERENCES runs (id),
    sequence                 bigint  NOT NULL CHECK (sequence >= 0),
    at_ms                    bigint  NOT NULL,
    epoch                    bigint  NOT NULL CHECK (epoch >= 0),
    holder                   text,
    write_id                 uuid    NOT NULL,
    kind                     text    NOT NULL,
    payload                  bytea   NOT NULL,
    PRIMARY KEY (run_id, sequence)
);

-- Workers that said they live, so that a caller hears when nobody executes what it enqueues.
CREATE TABLE workers (
    name                     text    NOT NULL PRIMARY KEY,
    lease_clock              text    NOT NULL,
    expires_ns               bigint  NOT NULL,
    executes                 boolean NOT NULL
);
