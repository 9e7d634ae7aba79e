-- Binary content of tools' results, each content once in a run. It comes with the entry of that number, and is never changed.
CREATE TABLE artifacts (
    run_id   TEXT    NOT NULL,
    handle   TEXT    NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence >= 0),
    bytes    INTEGER NOT NULL CHECK (bytes >= 0),
    about    BLOB    NOT NULL,
    content  BLOB    NOT NULL,
    PRIMARY KEY (run_id, handle)
) STRICT;
