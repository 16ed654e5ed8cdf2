-- What a partition has in the store, kept up with every row that comes or goes, so that nobody has to
-- count: `dead` letters, and the `bytes` of all bodies, with 64 more for each row.

ALTER TABLE partitions ADD COLUMN dead INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partitions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;

-- A body in `later` and `dead` begins with its moment, eight bytes that count as part of the row.
UPDATE partitions SET
    dead = (SELECT count(*) FROM dead WHERE partition_id = partitions.id),
    bytes = (SELECT coalesce(sum(length(body) + 64), 0) FROM segments WHERE partition_id = partitions.id)
        + (SELECT coalesce(sum(length(body) + 56), 0) FROM later WHERE partition_id = partitions.id)
        + (SELECT coalesce(sum(length(body) + 56), 0) FROM dead WHERE partition_id = partitions.id)
        + (SELECT coalesce(sum(length(body) + 64), 0) FROM results WHERE partition_id = partitions.id);
