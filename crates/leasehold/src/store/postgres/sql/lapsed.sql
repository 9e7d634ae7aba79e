WITH clock AS MATERIALIZED (
    SELECT coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) AS now_ns
)
SELECT
    id, epoch, lease_id, lease_clock, lease_expires_ns,
    lease_clock <> :clock AS is_foreign,
    lease_expires_ns <= clock.now_ns AS is_over
FROM runs, clock
WHERE state IN ('running', 'cancelling')
  AND (lease_clock <> :clock OR lease_expires_ns <= clock.now_ns OR lease_expires_ns > clock.now_ns + :ttl_ns)
  AND id > :after
ORDER BY id
LIMIT :limit
