SELECT EXISTS (SELECT 1 FROM journal WHERE run_id = :id AND write_id = :write_id)
