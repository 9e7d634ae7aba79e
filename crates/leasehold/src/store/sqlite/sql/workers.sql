SELECT serves FROM workers
WHERE executes AND lease_clock = :clock AND expires_ns > :now_ns
ORDER BY name
LIMIT :limit
