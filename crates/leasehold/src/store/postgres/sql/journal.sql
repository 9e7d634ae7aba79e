SELECT sequence, at_ms, epoch, holder, write_id, kind, mac, payload
FROM journal
WHERE run_id = :id AND sequence >= :from
ORDER BY sequence
LIMIT :limit
