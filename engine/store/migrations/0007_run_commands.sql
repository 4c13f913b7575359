-- What an engine is asked to do with a run that it works on. Meant for the session with this fence alone; whoever asked deletes
-- what was not taken in time. `answer` is JSON.
CREATE TABLE run_commands (
    command_id BIGINT NOT NULL,
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    fence      BIGINT NOT NULL,
    command    TEXT   NOT NULL,
    asked_ms   BIGINT NOT NULL,
    taken_ms   BIGINT,
    answer     TEXT,
    PRIMARY KEY (run_id, command_id)
);

-- Whether the run admits nothing until it is resumed, also in its next session.
ALTER TABLE runs ADD COLUMN paused BIGINT NOT NULL DEFAULT 0;

-- Hash of the blob with the task as it was read; NULL: the run's task file has it.
ALTER TABLE groups ADD COLUMN task_text TEXT;
