SELECT min(due_at_ms) FROM runs WHERE state = 'queued' AND agent IN (SELECT value FROM json_each(:agents))
