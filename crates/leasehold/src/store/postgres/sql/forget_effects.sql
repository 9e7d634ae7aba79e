DELETE FROM effects WHERE budget = :budget AND at_ms <= :since_ms
