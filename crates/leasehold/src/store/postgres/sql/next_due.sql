SELECT min(due_at_ms) AS due_at_ms FROM runs WHERE state = 'queued' AND agent = ANY (:agents)
