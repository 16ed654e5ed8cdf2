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

-- listed: [[first, last], ...], at most 1,024 tasks each.
CREATE TEMP TRIGGER incoming_marks INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'marks'
BEGIN
    INSERT OR IGNORE INTO marks (partition_id, first, last)
    SELECT NEW.id, json_extract(value, '$[0]'), json_extract(value, '$[1]')
    FROM json_each(NEW.listed);
END;

-- a priority, b first, c last of the segment that goes.
CREATE TEMP TRIGGER incoming_segment_gone INSTEAD OF INSERT ON incoming WHEN NEW.kind = 'gone'
BEGIN
    UPDATE partitions SET bytes = bytes - old.size
    FROM (
        SELECT length(body) + 64 AS size
        FROM segments WHERE partition_id = NEW.id AND priority = NEW.a AND first = NEW.b
    ) AS old
    WHERE id = NEW.id;
    DELETE FROM segments WHERE partition_id = NEW.id AND priority = NEW.a AND first = NEW.b;
END;

-- Its marks, if there are any. A mark goes with the last segment that it lies in: segments of two
-- priorities that were written together overlap, and the store cannot tell whose it is. So what lies
-- before or behind the segment stays, and what lies in another one. That is put aside under the
-- negative id, since it overlaps with what is deleted.
CREATE TEMP TRIGGER incoming_marks_gone INSTEAD OF INSERT ON incoming
WHEN NEW.kind = 'gone' AND EXISTS (
    SELECT 1 FROM marks
    WHERE partition_id = NEW.id AND first BETWEEN NEW.b - 1023 AND NEW.c AND last >= NEW.b
)
BEGIN
    INSERT OR IGNORE INTO marks (partition_id, first, last)
    SELECT -NEW.id, first, NEW.b - 1
    FROM marks
    WHERE partition_id = NEW.id AND first BETWEEN NEW.b - 1023 AND NEW.b - 1 AND last >= NEW.b;
    INSERT OR IGNORE INTO marks (partition_id, first, last)
    SELECT -NEW.id, NEW.c + 1, last
    FROM marks
    WHERE partition_id = NEW.id AND first BETWEEN NEW.b - 1023 AND NEW.c AND last > NEW.c;
    INSERT OR IGNORE INTO marks (partition_id, first, last)
    SELECT -NEW.id, max(m.first, s.first, NEW.b), min(m.last, s.last, NEW.c)
    FROM marks AS m
    CROSS JOIN (SELECT 0 AS priority UNION ALL VALUES (1), (2), (3), (4)) AS each
    CROSS JOIN segments AS s ON s.partition_id = NEW.id AND s.priority = each.priority
        -- From the last one on that begins before the marks: those of one priority do not overlap.
        AND s.first BETWEEN coalesce((
            SELECT max(near.first)
            FROM segments AS near
            WHERE near.partition_id = NEW.id
                AND near.priority = each.priority
                AND near.first <= max(m.first, NEW.b)
        ), 0) AND min(m.last, NEW.c)
        AND s.last >= max(m.first, NEW.b)
        AND NOT (s.priority = NEW.a AND s.first = NEW.b)
    WHERE m.partition_id = NEW.id
        AND m.first BETWEEN NEW.b - 1023 AND NEW.c
        AND m.last >= NEW.b;
    DELETE FROM marks
    WHERE partition_id = NEW.id AND first BETWEEN NEW.b - 1023 AND NEW.c AND last >= NEW.b;
    UPDATE OR REPLACE marks SET partition_id = NEW.id WHERE partition_id = -NEW.id;
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
