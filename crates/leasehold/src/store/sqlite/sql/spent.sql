SELECT coalesce(sum(amount), 0) FROM effects
WHERE budget = :budget AND at_ms > :since_ms AND NOT (run_id = :run_id AND call_id = :call_id)
