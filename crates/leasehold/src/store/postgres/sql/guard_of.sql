SELECT
    epoch, lease_id, lease_clock, lease_expires_ns,
    EXISTS (SELECT 1 FROM journal WHERE run_id = runs.id AND write_id = :write_id) AS is_there
FROM runs
WHERE id = :id
