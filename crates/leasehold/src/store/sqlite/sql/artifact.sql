SELECT handle, sequence, bytes, about, content FROM artifacts WHERE run_id = :run_id AND handle = :handle
