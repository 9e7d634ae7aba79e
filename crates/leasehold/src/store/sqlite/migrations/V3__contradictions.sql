-- Times that a process said the opposite of a call's recorded outcome.
ALTER TABLE runs ADD COLUMN contradictions INTEGER NOT NULL DEFAULT 0 CHECK (contradictions >= 0);
