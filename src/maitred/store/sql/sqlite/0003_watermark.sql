-- What deleted partitions leave behind, so that nothing of an earlier life passes for a later one:
-- the highest range id (or version of counts) and the highest id that any of them had. A new
-- partition starts above both. Without rows of deleted partitions, SQLite would give their ids again.

CREATE TABLE watermark (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    range_id INTEGER NOT NULL,
    partition_id INTEGER NOT NULL
) STRICT;

INSERT INTO watermark (id, range_id, partition_id) VALUES (1, 0, 0);
