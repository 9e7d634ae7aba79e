INSERT INTO journal (run_id, sequence, at_ms, epoch, holder, write_id, kind, mac, payload)
VALUES (:run_id, :sequence, :at_ms, :epoch, :holder, :write_id, :kind, :mac, :payload)
