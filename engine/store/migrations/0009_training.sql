-- Why the sample of an attempt was removed; NULL where it was not.
ALTER TABLE attempts ADD COLUMN removed TEXT;
-- Turns that the rollouts of a group have by the experiment's `step_budget`; NULL where it has none.
ALTER TABLE groups ADD COLUMN step_budget BIGINT;
