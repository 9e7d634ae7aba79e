-- By whom the writes of a run were released, the weakest of them, for lists.
ALTER TABLE runs ADD COLUMN attribution text;
-- When a run last showed a call of a tool that writes to a person, or stamped one: for the card that names similar calls.
CREATE TABLE callers (
    tool   text NOT NULL,
    run_id uuid NOT NULL,
    at_ms  bigint NOT NULL,
    PRIMARY KEY (tool, run_id)
);
CREATE INDEX callers_newest ON callers (tool, at_ms, run_id);
