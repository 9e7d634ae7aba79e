SELECT id, epoch, lease_id, lease_clock, lease_expires_ns FROM runs
WHERE state IN ('running', 'cancelling')
  AND (lease_clock <> :clock OR lease_expires_ns <= :now_ns OR lease_expires_ns > :granted_now_ns)
  AND id > :after
ORDER BY id
LIMIT :limit
