-- A row that somebody else is forgetting or renewing is left to them.
DELETE FROM workers WHERE name IN (
    SELECT name FROM workers
    WHERE lease_clock <> :clock OR expires_ns <= coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
    ORDER BY name
    FOR UPDATE SKIP LOCKED
)
