-- Registered models. Only what SQLite and PostgreSQL both know: text, bigint, $n.
CREATE TABLE models (
    id text NOT NULL PRIMARY KEY,
    fingerprint text NOT NULL,
    -- JSON of model_manifest::Manifest
    manifest text NOT NULL,
    -- JSON of node_api::ModelSettings
    settings text NOT NULL,
    -- JSON list: spellings of the tokenizer's control tokens
    control_tokens text NOT NULL,
    -- seconds since 1970
    created_at bigint NOT NULL
);

-- The small text files the router itself needs (chat template, tokenizer_config.json), so that a start needs no hub.
CREATE TABLE model_files (
    model_id text NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    name text NOT NULL,
    content text NOT NULL,
    PRIMARY KEY (model_id, name)
);
