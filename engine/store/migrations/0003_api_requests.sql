-- What requests of the HTTP service with an Idempotency-Key have made: kept for their time, whatever becomes of what was made.
-- `part` counts what one request makes several of; `asked` is the BLAKE3 hash (hex) of what the request means; `made` is JSON.
CREATE TABLE api_requests (
    key_id   TEXT   NOT NULL,
    name     TEXT   NOT NULL,
    part     BIGINT NOT NULL,
    asked    TEXT   NOT NULL,
    made     TEXT   NOT NULL,
    bytes    BIGINT NOT NULL,
    made_ms  BIGINT NOT NULL,
    PRIMARY KEY (key_id, name, part)
);

CREATE INDEX api_requests_made ON api_requests (made_ms);
