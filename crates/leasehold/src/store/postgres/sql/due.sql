SELECT id FROM runs
WHERE state = 'queued'
  AND due_at_ms <= :now_ms
  AND agent = ANY (:agents)
ORDER BY priority DESC, due_at_ms, id
LIMIT :limit
