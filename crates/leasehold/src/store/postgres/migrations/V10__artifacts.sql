-- Binary content of tools' results, each content once in a run. It comes with the entry of that number, and is never changed.
CREATE TABLE artifacts (
    run_id   uuid   NOT NULL,
    handle   text   NOT NULL,
    sequence bigint NOT NULL CHECK (sequence >= 0),
    bytes    bigint NOT NULL CHECK (bytes >= 0),
    about    bytea  NOT NULL,
    content  bytea  NOT NULL,
    PRIMARY KEY (run_id, handle)
);
-- Images do not get smaller, and what is sealed neither.
ALTER TABLE artifacts ALTER COLUMN content SET STORAGE EXTERNAL;
