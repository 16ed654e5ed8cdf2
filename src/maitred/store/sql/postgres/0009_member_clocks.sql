-- compatible: 6
--
-- How far the clock of each node is ahead of the database's, as of its last heartbeat. NULL for members
-- whose program does not tell it.

ALTER TABLE maitred.members ADD COLUMN clock_ahead_seconds double precision;
