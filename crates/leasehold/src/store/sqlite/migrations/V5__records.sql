-- Small documents of the server, such as users, tokens and sessions. Keys sort by their bytes.
CREATE TABLE records (
    kind          TEXT    NOT NULL,
    key           TEXT    NOT NULL,
    version       INTEGER NOT NULL CHECK (version > 0),
    expires_at_ms INTEGER,
    body          TEXT    NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT;
