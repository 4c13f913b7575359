-- New weights that the models of a run were given, in order. `report` is JSON: what the update came to at each server.
CREATE TABLE model_versions (
    run_id     TEXT   NOT NULL REFERENCES runs (run_id),
    model      TEXT   NOT NULL,
    version    BIGINT NOT NULL,
    label      TEXT   NOT NULL,
    train_step BIGINT,
    taken_ms   BIGINT NOT NULL,
    report     TEXT   NOT NULL,
    PRIMARY KEY (run_id, model, version)
);
