-- What binds a run's journal: its salt and the newest link on the row, the keyed hash of each payload beside it.
ALTER TABLE runs ADD COLUMN chain_salt bytea;
ALTER TABLE runs ADD COLUMN chain_head bytea;
ALTER TABLE journal ADD COLUMN mac bytea;
