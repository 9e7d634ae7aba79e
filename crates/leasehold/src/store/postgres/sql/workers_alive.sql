SELECT count(*) AS alive FROM workers
WHERE executes AND lease_clock = :clock
  AND expires_ns > coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
