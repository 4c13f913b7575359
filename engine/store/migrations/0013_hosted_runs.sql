-- The key that a run belongs to; NULL: it was made from the command line and belongs to none.
ALTER TABLE runs ADD COLUMN owner TEXT;
CREATE INDEX runs_by_owner ON runs (owner, created_ms);

-- Runs that the service carries. `submission` is JSON: all that is needed to carry the run again. `wanted`: whether the next service
-- goes on with it. `problem` is JSON: why it stopped, where that was an error; `summary` is JSON: what its last session came to.
CREATE TABLE hosted_runs (
    run_id     TEXT   NOT NULL PRIMARY KEY REFERENCES runs (run_id),
    submission TEXT   NOT NULL,
    wanted     BIGINT NOT NULL,
    problem    TEXT,
    summary    TEXT
);

-- What happened in a run, in order: written with what it tells of, in one transaction. `body` is JSON.
CREATE TABLE run_events (
    run_id TEXT   NOT NULL,
    seq    BIGINT NOT NULL,
    at_ms  BIGINT NOT NULL,
    kind   TEXT   NOT NULL,
    body   TEXT   NOT NULL,
    PRIMARY KEY (run_id, seq)
);

-- Files that keys have sent, to be named by their runs; the bytes lie in the folder of blobs.
CREATE TABLE uploads (
    owner      TEXT   NOT NULL,
    hash       TEXT   NOT NULL,
    length     BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    PRIMARY KEY (owner, hash)
);

-- Runs of a key at the same time.
ALTER TABLE api_keys ADD COLUMN runs_max BIGINT;
