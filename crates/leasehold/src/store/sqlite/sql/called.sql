INSERT INTO callers (tool, run_id, at_ms) VALUES (:tool, :run_id, :at_ms)
ON CONFLICT (tool, run_id) DO UPDATE SET at_ms = excluded.at_ms
