-- What stamped writes count against the budgets of their agents. What is older than its window is removed with the next charge.
CREATE TABLE effects (
    budget  text   NOT NULL,
    run_id  uuid   NOT NULL,
    call_id text   NOT NULL,
    at_ms   bigint NOT NULL,
    amount  bigint NOT NULL,
    PRIMARY KEY (budget, run_id, call_id)
);
