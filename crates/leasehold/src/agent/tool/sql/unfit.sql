-- What this session's role could do beyond a read-only transaction, in words; and whether it may read a store of leasehold's here.
WITH mine AS (
    -- It can take on each of them in the middle of a query.
    SELECT oid, rolname, rolsuper, rolreplication FROM pg_roles WHERE pg_has_role(session_user, oid, 'MEMBER')
)
SELECT
    COALESCE(
        (SELECT 'is a superuser' FROM pg_roles WHERE rolname = session_user AND rolsuper),
        (SELECT 'can become the superuser ' || min(rolname) FROM mine WHERE rolsuper HAVING count(*) > 0),
        (SELECT 'may replicate' FROM mine WHERE rolreplication HAVING count(*) > 0),
        (
            SELECT 'is a member of ' || string_agg(rolname, ', ' ORDER BY rolname) FROM mine
            WHERE rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program', 'pg_signal_backend')
        ),
        (
            SELECT 'may call functions of the extension ' || min(extname) || ', which act outside of the transaction'
            FROM pg_extension
            JOIN pg_depend ON refclassid = 'pg_extension'::regclass AND refobjid = pg_extension.oid
                AND classid = 'pg_proc'::regclass AND deptype = 'e'
            JOIN mine ON has_function_privilege(mine.oid, objid, 'EXECUTE')
            WHERE extname IN ('dblink', 'http', 'pg_net', 'pg_background', 'pg_cron')
            HAVING count(*) > 0
        )
    ) AS power,
    EXISTS (
        SELECT FROM pg_class journal
        JOIN pg_class migrations ON migrations.relnamespace = journal.relnamespace AND migrations.relname = 'refinery_schema_history'
        JOIN pg_class runs ON runs.relnamespace = journal.relnamespace AND runs.relname = 'runs'
        JOIN pg_attribute ON attrelid = journal.oid AND attname = 'run_id'
        -- Every table that a store makes; a test compares them with its migrations.
        JOIN pg_class own ON own.relnamespace = journal.relnamespace AND own.relkind IN ('r', 'p') AND own.relname IN (
            'runs', 'journal', 'workers', 'records', 'effects', 'callers', 'artifacts', 'refinery_schema_history'
        )
        JOIN mine ON has_any_column_privilege(mine.oid, own.oid, 'SELECT')
        WHERE journal.relname = 'journal'
    ) AS is_store
