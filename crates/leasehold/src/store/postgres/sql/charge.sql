INSERT INTO effects (budget, run_id, call_id, at_ms, amount) VALUES (:budget, :run_id, :call_id, :at_ms, :amount)
ON CONFLICT DO NOTHING
