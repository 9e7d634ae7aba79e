-- Small documents of the server, such as users, tokens and sessions. Keys sort by their bytes.
CREATE TABLE records (
    kind                     text    NOT NULL COLLATE "C",
    key                      text    NOT NULL COLLATE "C",
    version                  bigint  NOT NULL CHECK (version > 0),
    expires_at_ms            bigint,
    body                     text    NOT NULL,
    PRIMARY KEY (kind, key)
);
