-- Bytes of disk of a key's sandboxes and checkpoints together; NULL does not bound.
ALTER TABLE api_keys ADD COLUMN disk_max BIGINT;
