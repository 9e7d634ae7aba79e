-- By whom the writes of a run were released, the weakest of them, for lists.
ALTER TABLE runs ADD COLUMN attribution TEXT;
-- When a run last showed a call of a tool that writes to a person, or stamped one: for the card that names similar calls.
CREATE TABLE callers (
    tool   TEXT NOT NULL,
    run_id TEXT NOT NULL,
    at_ms  INTEGER NOT NULL,
    PRIMARY KEY (tool, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX callers_newest ON callers (tool, at_ms, run_id);
