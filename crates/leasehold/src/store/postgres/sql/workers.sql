SELECT serves FROM workers
WHERE executes AND lease_clock = :clock
  AND expires_ns > coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
ORDER BY name
LIMIT :limit
