SELECT id, epoch, lease_id, lease_clock, lease_expires_ns, lease_clock <> :clock AS is_foreign
FROM runs
WHERE state IN ('running', 'cancelling')
  AND (lease_clock <> :clock
      OR lease_expires_ns <= coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint))
  AND id > :after
ORDER BY id
LIMIT :limit
