-- Tasks that a generator made and the run accepted, each at the place of the group that takes it; the text is a blob.
CREATE TABLE generated_tasks (
    run_id    TEXT   NOT NULL REFERENCES runs (run_id),
    place     BIGINT NOT NULL,
    task_id   TEXT   NOT NULL,
    task_text TEXT   NOT NULL,
    call      BIGINT NOT NULL,
    PRIMARY KEY (run_id, place),
    UNIQUE (run_id, task_id)
);

-- Calls of a generator that have ended. `of_group`: the group whose task it was to adapt; NULL: it was asked for new tasks.
-- `record` is the blob with what it logged and what its models were asked.
CREATE TABLE generator_calls (
    run_id   TEXT   NOT NULL REFERENCES runs (run_id),
    call     BIGINT NOT NULL,
    of_group BIGINT,
    plugin   TEXT   NOT NULL,
    accepted BIGINT NOT NULL,
    rejected BIGINT NOT NULL,
    failed   TEXT,
    record   TEXT   NOT NULL,
    ended_ms BIGINT NOT NULL,
    PRIMARY KEY (run_id, call)
);
