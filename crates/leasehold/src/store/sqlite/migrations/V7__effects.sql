-- What stamped writes count against the budgets of their agents. What is older than its window is removed with the next charge.
CREATE TABLE effects (
    budget  TEXT    NOT NULL,
    run_id  TEXT    NOT NULL,
    call_id TEXT    NOT NULL,
    at_ms   INTEGER NOT NULL,
    amount  INTEGER NOT NULL,
    PRIMARY KEY (budget, run_id, call_id)
) STRICT, WITHOUT ROWID;
