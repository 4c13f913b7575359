-- Until when a lease may be extended at most, and by which request a group was leased: a request that is repeated is given the same
-- leases. `holder` stays with an acknowledgement from here on. One column a statement: SQLite adds no more.
ALTER TABLE deliveries ADD COLUMN hold_until_ms BIGINT;
ALTER TABLE deliveries ADD COLUMN request TEXT;
