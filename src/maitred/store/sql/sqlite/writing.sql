-- A whole commit as one statement: rows put into this view are taken apart by its triggers.
--
-- Between two statements the thread of the store gives Python's lock away, and must win it back from
-- a loop that is busy: up to five milliseconds each time. So there is one statement, which is a
-- transaction of its own. The objects are temporary: they belong to the program, not to the file.

CREATE TEMP VIEW incoming AS
    SELECT NULL AS kind, NULL AS id, NULL AS a, NULL AS b, NULL AS c, NULL AS d,
           NULL AS listed, NULL AS body;

-- `bytes` of a partition is what all its rows count: here what the commit adds, below what goes.
--
-- First of its partition's rows: a range id, b backlog, c clean, d bytes of all that the commit adds.
-- Ends the statement if overtaken.
CREATE TEMP TRIGGER incoming_partition INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'partition'
BEGIN
    SELECT RAISE(ABORT, 'overtaken')
    WHERE NOT EXISTS (SELECT 1 FROM main.partitions WHERE id = NEW.id AND range_id = NEW.a);
    UPDATE partitions SET backlog = NEW.b, clean = NEW.c, bytes = bytes + NEW.d WHERE id = NEW.id;
END;

CREATE TEMP TRIGGER incoming_counts INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'counts'
BEGIN
    UPDATE partitions
    SET counts_read = NEW.a, counts_write = NEW.b, counts_version = NEW.c
    WHERE id = NEW.id;
END;

-- Nothing but a retry would write a segment again; then it is the same one.
CREATE TEMP TRIGGER incoming_segment INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'segment'
BEGIN
    UPDATE partitions SET bytes = bytes - old.size
    FROM (
        SELECT length(body) + 64 AS size
        FROM segments WHERE partition_id = NEW.id AND priority = NEW.a AND first = NEW.b
    ) AS old
    WHERE id = NEW.id;
    DELETE FROM segments WHERE partition_id = NEW.id AND priority = NEW.a AND first = NEW.b;
    INSERT INTO segments (partition_id, priority, first, last, tasks, body)
    VALUES (NEW.id, NEW.a, NEW.b, NEW.c, NEW.d, NEW.body);
END;

CREATE TEMP TRIGGER incoming_marks INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'marks'
BEGIN
    INSERT OR IGNORE INTO marks (partition_id, sequence)
    SELECT NEW.id, value FROM json_each(NEW.listed);
END;

-- listed: [[priority, first, last], ...]. A mark goes with the last segment that it lies in: segments
-- of two priorities that were written together overlap, and the store cannot tell whose it is.
CREATE TEMP TRIGGER incoming_segments_gone INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'gone'
BEGIN
    UPDATE partitions SET bytes = bytes - (
        SELECT coalesce(sum(length(s.body) + 64), 0)
        FROM json_each(NEW.listed) AS gone
        JOIN segments AS s ON s.partition_id = NEW.id
            AND s.priority = json_extract(gone.value, '$[0]')
            AND s.first = json_extract(gone.value, '$[1]')
    )
    WHERE id = NEW.id;
    DELETE FROM segments WHERE id IN (
        SELECT s.id
        FROM json_each(NEW.listed) AS gone
        JOIN segments AS s ON s.partition_id = NEW.id
            AND s.priority = json_extract(gone.value, '$[0]')
            AND s.first = json_extract(gone.value, '$[1]')
    );
    DELETE FROM marks WHERE partition_id = NEW.id AND sequence IN (
        SELECT m.sequence
        FROM json_each(NEW.listed) AS gone
        CROSS JOIN marks AS m ON m.partition_id = NEW.id
            AND m.sequence BETWEEN json_extract(gone.value, '$[1]')
                               AND json_extract(gone.value, '$[2]')
        WHERE NOT EXISTS (
            SELECT 1
            FROM (SELECT 0 AS priority UNION ALL VALUES (1), (2), (3), (4)) AS each
            WHERE m.sequence <= (
                SELECT s.last
                FROM segments AS s
                WHERE s.partition_id = NEW.id
                    AND s.priority = each.priority
                    AND s.first <= m.sequence
                ORDER BY s.first DESC
                LIMIT 1
            )
        )
    );
END;

CREATE TEMP TRIGGER incoming_later_gone INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'later gone'
BEGIN
    UPDATE partitions SET bytes = bytes - (
        SELECT coalesce(sum(length(body) + 56), 0) FROM later
        WHERE partition_id = NEW.id AND sequence IN (SELECT value FROM json_each(NEW.listed))
    )
    WHERE id = NEW.id;
    DELETE FROM later
    WHERE partition_id = NEW.id AND sequence IN (SELECT value FROM json_each(NEW.listed));
END;

CREATE TEMP TRIGGER incoming_later INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'later'
BEGIN
    UPDATE partitions SET bytes = bytes - old.size
    FROM (
        SELECT length(body) + 56 AS size
        FROM later WHERE partition_id = NEW.id AND sequence = NEW.a
    ) AS old
    WHERE id = NEW.id;
    INSERT OR REPLACE INTO later (partition_id, sequence, due, body)
    VALUES (NEW.id, NEW.a, NEW.b, NEW.body);
END;

CREATE TEMP TRIGGER incoming_dead_gone INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'dead gone'
BEGIN
    UPDATE partitions SET bytes = bytes - old.size, dead = partitions.dead - old.letters
    FROM (
        SELECT coalesce(sum(length(body) + 56), 0) AS size, count(*) AS letters FROM dead
        WHERE partition_id = NEW.id AND sequence IN (SELECT value FROM json_each(NEW.listed))
    ) AS old
    WHERE id = NEW.id;
    DELETE FROM dead
    WHERE partition_id = NEW.id AND sequence IN (SELECT value FROM json_each(NEW.listed));
END;

CREATE TEMP TRIGGER incoming_dead INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'dead'
BEGIN
    UPDATE partitions SET bytes = bytes - old.size, dead = partitions.dead + 1 - old.letters
    FROM (
        SELECT coalesce(sum(length(body) + 56), 0) AS size, count(*) AS letters
        FROM dead WHERE partition_id = NEW.id AND sequence = NEW.a
    ) AS old
    WHERE id = NEW.id;
    INSERT OR REPLACE INTO dead (partition_id, sequence, reason, body)
    VALUES (NEW.id, NEW.a, NEW.listed, NEW.body);
END;

CREATE TEMP TRIGGER incoming_result INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'result'
BEGIN
    UPDATE partitions SET bytes = bytes - old.size
    FROM (
        SELECT length(body) + 64 AS size
        FROM results WHERE partition_id = NEW.id AND sequence = NEW.a
    ) AS old
    WHERE id = NEW.id;
    INSERT OR REPLACE INTO results (partition_id, sequence, expires_at, body)
    VALUES (NEW.id, NEW.a, NEW.b, NEW.body);
END;

-- Results that have expired. A row that is replaced does not come here, only one that is deleted.
CREATE TEMP TRIGGER result_deleted AFTER DELETE ON main.results
BEGIN
    UPDATE partitions SET bytes = bytes - length(OLD.body) - 64 WHERE id = OLD.partition_id;
END;
