SELECT id FROM runs
WHERE state IN ('waiting_for_approval', 'waiting_for_input')
  AND wait_deadline_ms <= :now_ms
  AND id > :after
ORDER BY id
LIMIT :limit
