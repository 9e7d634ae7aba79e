INSERT INTO journal (run_id, sequence, at_ms, epoch, holder, write_id, kind, payload)
VALUES (:run_id, :sequence, :at_ms, :epoch, :holder, :write_id, :kind, :payload)
