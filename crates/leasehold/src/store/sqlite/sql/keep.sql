-- Content that is there already is the same: its handle is made of it.
INSERT INTO artifacts (run_id, handle, sequence, bytes, about, content)
VALUES (:run_id, :handle, :sequence, :bytes, :about, :content)
ON CONFLICT (run_id, handle) DO NOTHING
