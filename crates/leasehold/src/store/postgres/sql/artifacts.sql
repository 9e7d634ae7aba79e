SELECT handle, sequence, bytes, about FROM artifacts WHERE run_id = :run_id ORDER BY sequence, handle LIMIT :limit
