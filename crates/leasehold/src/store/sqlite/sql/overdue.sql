SELECT id FROM runs INDEXED BY runs_overdue
WHERE state IN ('waiting_for_approval', 'waiting_for_input')
  AND wait_deadline_ms <= :now_ms
  AND id > :after
ORDER BY id
LIMIT :limit
