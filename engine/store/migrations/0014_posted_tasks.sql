-- Runs whose tasks are posted by a trainer. `settings` is JSON: what tasks have to keep to. `closed_ms`: when it was said that no
-- more come.
CREATE TABLE task_queues (
    run_id    TEXT   NOT NULL PRIMARY KEY REFERENCES runs (run_id),
    settings  TEXT   NOT NULL,
    closed_ms BIGINT
);

-- Tasks that were posted, each at the place of the group that takes it; the text is a blob. `client_id` is the client's name for the
-- task, `asked` the hash of what it asked for. `group_size`: NULL is the size that the experiment says. `rejected`: why no group takes it.
CREATE TABLE posted_tasks (
    run_id      TEXT   NOT NULL REFERENCES runs (run_id),
    place       BIGINT NOT NULL,
    client_id   TEXT   NOT NULL,
    asked       TEXT   NOT NULL,
    task_id     TEXT   NOT NULL,
    task_text   TEXT   NOT NULL,
    task_repeat BIGINT NOT NULL,
    group_size  BIGINT,
    purpose     TEXT   NOT NULL,
    endpoint    TEXT,
    rejected    TEXT,
    posted_ms   BIGINT NOT NULL,
    PRIMARY KEY (run_id, place),
    UNIQUE (run_id, client_id)
);

CREATE INDEX posted_tasks_by_task ON posted_tasks (run_id, task_id);

-- What a group is for: NULL is `train`. The server that its model is called at; NULL: any.
ALTER TABLE groups ADD COLUMN purpose TEXT;
ALTER TABLE groups ADD COLUMN endpoint TEXT;
