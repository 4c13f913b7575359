-- The code of an attempt's first error, which `error` tells with its text. Those written before it are read off the text once.
ALTER TABLE attempts ADD COLUMN error_code TEXT;
UPDATE attempts SET error_code = 'reward-failure' WHERE error LIKE 'reward-failure: %';
UPDATE attempts SET error_code = 'scoring-wall' WHERE error LIKE 'scoring-wall: %';
UPDATE attempts SET error_code = 'scoring-infrastructure' WHERE error LIKE 'scoring-infrastructure: %';
UPDATE attempts SET error_code = stop_reason WHERE error_code IS NULL AND error LIKE stop_reason || ': %';
