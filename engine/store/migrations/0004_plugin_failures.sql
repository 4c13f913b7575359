-- How plugins failed in an attempt: a JSON list of plugin, digest, export, class, place and message; NULL where none did.
ALTER TABLE attempts ADD COLUMN failures TEXT;
