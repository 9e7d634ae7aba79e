-- What this server and database are, before anything is asked of them.
SELECT
    current_setting('server_encoding') AS encoding,
    current_setting('synchronous_commit') AS synchronous_commit,
    pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' AS is_read_only,
    to_regclass('refinery_schema_history') IS NOT NULL AS has_schema
