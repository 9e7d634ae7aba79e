-- The team whose members see a run, besides its owner.
ALTER TABLE runs ADD COLUMN team text;
