SELECT id, finished_at_ms FROM runs
WHERE finished_at_ms IS NOT NULL AND told_ms IS NOT finished_at_ms
  AND finished_at_ms >= :since_ms
ORDER BY finished_at_ms, id
LIMIT :limit
