-- When a run settled, as somebody outside was told; another time: of this end nobody was told yet. The index has only those, and no
-- column that a step changes.
ALTER TABLE runs ADD COLUMN told_ms bigint;
CREATE INDEX runs_untold ON runs (finished_at_ms, id) WHERE finished_at_ms IS NOT NULL AND told_ms IS DISTINCT FROM finished_at_ms;
