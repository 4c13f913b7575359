-- Groups on their way to trainers. No row: nobody has asked for the group. `state`: available, leased, acknowledged, dropped.
-- `lease` is the number of the last lease; `holder` and `expires_ms` are those of a lease, `train_step` of an acknowledgement,
-- `reason` of a drop.
CREATE TABLE deliveries (
    run_id      TEXT   NOT NULL,
    group_index BIGINT NOT NULL,
    model       TEXT   NOT NULL,
    state       TEXT   NOT NULL,
    lease       BIGINT NOT NULL,
    holder      TEXT,
    expires_ms  BIGINT,
    train_step  BIGINT,
    reason      TEXT,
    expiries    BIGINT NOT NULL,
    redraws     BIGINT NOT NULL,
    changed_ms  BIGINT NOT NULL,
    PRIMARY KEY (run_id, group_index, model),
    FOREIGN KEY (run_id, group_index) REFERENCES groups (run_id, group_index)
);

CREATE INDEX deliveries_by_state ON deliveries (run_id, model, state);
