-- Each agent's queue is read by itself, so that a long one of another agent is not walked through.
DROP INDEX runs_due;
CREATE INDEX runs_due ON runs (agent, priority DESC, due_at_ms, id) WHERE state = 'queued';

-- What a worker can execute, as JSON, so that a run which nobody serves is said to be one.
ALTER TABLE workers ADD COLUMN serves TEXT NOT NULL DEFAULT '{}';
