-- Of the tokens received, those the model thought with.
ALTER TABLE runs ADD COLUMN reasoning_tokens bigint NOT NULL DEFAULT 0 CHECK (reasoning_tokens >= 0);
