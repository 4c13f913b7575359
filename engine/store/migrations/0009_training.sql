-- Why the sample of an attempt was removed; NULL where it was not.
ALTER TABLE attempts ADD COLUMN removed TEXT;
-- The stage of `limits.turns` that a group opened in, from 0; NULL where there are no stages.
ALTER TABLE groups ADD COLUMN turns_stage BIGINT;
