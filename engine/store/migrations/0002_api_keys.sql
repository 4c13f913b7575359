-- Keys of the HTTP service. Of a key's secret only the BLAKE3 hash is here (hex); the secret has 256 random bits.
-- `scopes` are words with spaces between; a quota that is NULL does not bound.
CREATE TABLE api_keys (
    key_id           TEXT   NOT NULL PRIMARY KEY,
    name             TEXT   NOT NULL,
    hash             TEXT   NOT NULL,
    scopes           TEXT   NOT NULL,
    sandboxes_max    BIGINT,
    cpu_max          DOUBLE PRECISION,
    memory_max       BIGINT,
    requests_per_s   DOUBLE PRECISION,
    created_ms       BIGINT NOT NULL,
    revoked_ms       BIGINT
);
