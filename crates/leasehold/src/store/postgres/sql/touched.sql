-- Whether this transaction has used a table of leasehold so far, in whatever way: a statement locks what it names until the
-- transaction ends, a trigger's and a foreign key's too.
SELECT EXISTS (
    SELECT FROM pg_locks
    WHERE pid = pg_backend_pid() AND locktype = 'relation' AND relation IN (
        'runs'::regclass, 'journal'::regclass, 'workers'::regclass, 'records'::regclass, 'effects'::regclass,
        'callers'::regclass, 'artifacts'::regclass, 'refinery_schema_history'::regclass
    )
) AS is_touched
