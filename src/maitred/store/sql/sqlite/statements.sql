-- What many rows answer comes as one JSON text, bodies in hexadecimal digits: each row that is fetched
-- would give Python's lock away and have to win it back (writing.sql). A text has a length that it
-- may have, so sizes are asked for first, and what is large is fetched in portions, or alone.

-- name: identify
-- A file that has an identity keeps it.
INSERT OR IGNORE INTO identity (id, store, file, generation) VALUES (1, ?, ?, 0)

-- name: next_generation
UPDATE identity SET generation = generation + 1 RETURNING generation

-- name: find
-- It takes [[namespace, queue, type, partition], ...]; answers with places in that list, and ids.
SELECT json_group_array(json_array(wanted.key, p.id))
FROM json_each(?) AS wanted
JOIN partitions AS p ON p.namespace = json_extract(wanted.value, '$[0]')
    AND p.queue = json_extract(wanted.value, '$[1]')
    AND p.queue_type = json_extract(wanted.value, '$[2]')
    AND p.partition = json_extract(wanted.value, '$[3]')

-- name: make
-- It takes [[namespace, queue, type, partition], ...] and the range id of their first owner.
INSERT INTO partitions (
    id, namespace, queue, queue_type, partition, range_id, backlog, clean, found_clean
)
SELECT
    1 + new.key + (
        SELECT max(w.partition_id, coalesce((SELECT max(p.id) FROM partitions AS p), 0))
        FROM watermark AS w
    ),
    json_extract(new.value, '$[0]'),
    json_extract(new.value, '$[1]'),
    json_extract(new.value, '$[2]'),
    json_extract(new.value, '$[3]'),
    ?2, 0, 0, 1
FROM json_each(?1) AS new
RETURNING id, namespace, queue, queue_type, partition

-- name: acquire
UPDATE partitions
SET range_id = range_id + 1, found_clean = clean, clean = 0
WHERE id IN (SELECT value FROM json_each(?))
RETURNING id, range_id, backlog, found_clean, counts_read, counts_write, counts_version

-- name: watermark
SELECT range_id FROM watermark

-- name: queue_count
SELECT count(*) FROM partitions WHERE namespace = ? AND partition = 0

-- name: queue_total
SELECT count(*) FROM partitions WHERE partition = 0

-- name: range_ids
SELECT json_group_array(json_array(id, range_id))
FROM partitions
WHERE id IN (SELECT value FROM json_each(?))

-- name: segments_in_order
SELECT json_group_array(json_array(first, last, tasks, size))
FROM (
    SELECT first, last, tasks, length(body) AS size
    FROM segments
    WHERE partition_id = ?1 AND priority = ?2 AND first > ?3
        AND first NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'segment')
    ORDER BY first
    LIMIT ?4
)

-- name: segment_heads
-- The same without sizes, which are read from the rows themselves: a row may be damaged.
SELECT json_group_array(json_array(first, last, tasks))
FROM (
    SELECT first, last, tasks
    FROM segments
    WHERE partition_id = ?1 AND priority = ?2 AND first > ?3
        AND first NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'segment')
    ORDER BY first
    LIMIT ?4
)

-- name: segment_bodies
SELECT json_group_array(json_array(first, hex(body)))
FROM segments
WHERE partition_id = ? AND priority = ? AND first BETWEEN ? AND ?

-- name: segment_body
SELECT body FROM segments WHERE partition_id = ? AND priority = ? AND first = ?

-- name: marks
SELECT json_group_array(json_array(first, last))
FROM marks
WHERE partition_id = ? AND first BETWEEN ? AND ? AND last >= ?

-- name: segments_around
SELECT json_group_array(json_array(s.priority, s.first, s.last, s.tasks))
FROM (SELECT 0 AS priority UNION ALL VALUES (1), (2), (3), (4)) AS each
JOIN segments AS s ON s.id = (
    SELECT near.id
    FROM segments AS near
    WHERE near.partition_id = ?1 AND near.priority = each.priority AND near.first <= ?2
    ORDER BY near.first DESC
    LIMIT 1
)
WHERE s.last >= ?2
    AND s.first NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'segment')

-- name: later
SELECT json_group_array(json_array(sequence, size))
FROM (
    SELECT sequence, length(body) - 8 AS size -- without its moment
    FROM later
    WHERE partition_id = ?1 AND due < ?2
        AND sequence NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'later')
    ORDER BY due, sequence
    LIMIT ?3
)

-- name: later_heads
-- The same from the index alone: a row may be damaged. Not as text, so that each due time is exact.
SELECT sequence, due
FROM later INDEXED BY later_by_due
WHERE partition_id = ?1 AND due < ?2
    AND sequence NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'later')
ORDER BY due, sequence
LIMIT ?3

-- name: later_after
SELECT json_group_array(json_array(sequence, size))
FROM (
    SELECT sequence, length(body) - 8 AS size -- without its moment
    FROM later
    WHERE partition_id = ?1 AND (due, sequence) > (?2, ?3)
        AND sequence NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'later')
    ORDER BY due, sequence
    LIMIT ?4
)

-- name: later_after_heads
SELECT sequence, due
FROM later INDEXED BY later_by_due
WHERE partition_id = ?1 AND (due, sequence) > (?2, ?3)
    AND sequence NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'later')
ORDER BY due, sequence
LIMIT ?4

-- name: later_bodies
SELECT json_group_array(json_array(sequence, hex(body)))
FROM later
WHERE partition_id = ? AND sequence IN (SELECT value FROM json_each(?))

-- name: later_one
SELECT body FROM later WHERE partition_id = ? AND sequence = ?

-- name: dead
SELECT json_group_array(json_array(sequence, size))
FROM (
    SELECT sequence, length(body) - 8 AS size -- without its moment
    FROM dead
    WHERE partition_id = ?1 AND sequence > ?2
        AND sequence NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'dead')
    ORDER BY sequence
    LIMIT ?3
)

-- name: dead_heads
SELECT json_group_array(sequence)
FROM (
    SELECT sequence
    FROM dead
    WHERE partition_id = ?1 AND sequence > ?2
        AND sequence NOT IN (SELECT d.first FROM damaged AS d WHERE d.partition_id = ?1 AND d.kind = 'dead')
    ORDER BY sequence
    LIMIT ?3
)

-- name: dead_bodies
SELECT json_group_array(json_array(sequence, reason, hex(body)))
FROM dead
WHERE partition_id = ? AND sequence IN (SELECT value FROM json_each(?))

-- name: dead_one
SELECT reason, body FROM dead WHERE partition_id = ? AND sequence = ?

-- name: dead_one_unchecked
-- The reason may be no text any more.
SELECT CAST(reason AS BLOB), body FROM dead WHERE partition_id = ? AND sequence = ?

-- name: later_count
SELECT count(*) FROM (SELECT 1 FROM later WHERE partition_id = ? LIMIT ?)

-- name: dead_count
SELECT dead FROM partitions WHERE id = ?

-- name: result
SELECT expires_at, body FROM results WHERE partition_id = ? AND sequence = ?

-- name: history
SELECT json_group_array(json_array(sequence, size))
FROM (
    SELECT sequence, length(body) AS size
    FROM results
    WHERE partition_id = ? AND sequence > ? AND sequence < 0
    ORDER BY sequence
    LIMIT ?
)

-- name: history_bodies
SELECT json_group_array(json_array(sequence, hex(body)))
FROM results
WHERE partition_id = ? AND sequence IN (SELECT value FROM json_each(?))

-- name: set_aside
INSERT OR REPLACE INTO damaged (partition_id, first, kind, last, tasks, in_place, head, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: damaged_gone
DELETE FROM damaged WHERE partition_id = ? AND first = ? AND kind = ? AND NOT in_place

-- name: damaged_dropped
UPDATE damaged SET dropped = 1, tasks = 0 WHERE partition_id = ? AND first = ? AND kind = ?

-- name: damaged
SELECT json_group_array(json_array(kind, first, last, tasks, head, size))
FROM (
    SELECT kind, first, last, tasks, head, length(body) AS size
    FROM damaged
    WHERE partition_id = ?1 AND (first, kind) > (?2, ?3) AND NOT dropped
    ORDER BY first, kind
    LIMIT ?4
)

-- name: damaged_one
SELECT last, tasks, head, body
FROM damaged
WHERE partition_id = ? AND first = ? AND kind = ? AND NOT dropped

-- name: damaged_around
-- Few rows are damaged, so all of the partition's are looked at.
SELECT json_group_array(json_array(kind, first, last, tasks, head, 0))
FROM damaged
WHERE partition_id = ? AND first <= ? AND last >= ? AND NOT dropped

-- name: damaged_count
SELECT count(*), coalesce(sum(tasks), 0) FROM damaged WHERE partition_id = ? AND NOT dropped

-- name: any_expired
SELECT 1 FROM results WHERE expires_at < ? LIMIT 1

-- name: forget_results
DELETE FROM results
WHERE (partition_id, sequence) IN (
    SELECT partition_id, sequence FROM results WHERE expires_at < ? ORDER BY expires_at LIMIT ?
)

-- name: partitions
SELECT json_group_array(json_array(namespace, queue, queue_type, partition)) FROM partitions

-- name: partitions_with_tasks
SELECT json_group_array(json_array(namespace, queue, queue_type, partition)) FROM partitions
WHERE backlog > 0

-- name: use
SELECT json_group_array(json_array(namespace, queue, tasks, size, letters))
FROM (
    SELECT namespace, queue, sum(backlog + dead) AS tasks, sum(bytes) AS size, sum(dead) AS letters
    FROM partitions
    WHERE backlog + bytes > 0
    GROUP BY namespace, queue
)

-- name: queues
SELECT json_group_array(queue)
FROM (SELECT DISTINCT queue FROM partitions WHERE namespace = ? ORDER BY queue LIMIT ?)

-- name: empty_partitions
SELECT json_group_array(json_array(
    namespace, queue, queue_type, partition, range_id, counts_read, counts_write, counts_version
))
FROM (
    SELECT *
    FROM partitions
    WHERE backlog = 0 AND (namespace, queue, queue_type, partition) > (?, ?, ?, ?)
    ORDER BY namespace, queue, queue_type, partition
    LIMIT ?
)

-- name: of_queue
SELECT json_group_array(json_array(
    id, backlog, dead, (SELECT count(*) FROM damaged WHERE partition_id = id AND NOT dropped)
))
FROM partitions
WHERE namespace = ? AND queue = ? AND queue_type = ?

-- name: without_contents
-- It takes [[id, range id], ...]
SELECT json_group_array(p.id)
FROM json_each(?) AS wanted
JOIN partitions AS p ON p.id = json_extract(wanted.value, '$[0]')
    AND p.range_id = json_extract(wanted.value, '$[1]')
WHERE p.backlog = 0
    AND NOT EXISTS (SELECT 1 FROM segments WHERE partition_id = p.id)
    AND NOT EXISTS (SELECT 1 FROM later WHERE partition_id = p.id)
    AND NOT EXISTS (SELECT 1 FROM dead WHERE partition_id = p.id)
    AND NOT EXISTS (SELECT 1 FROM results WHERE partition_id = p.id)
    AND NOT EXISTS (SELECT 1 FROM damaged WHERE partition_id = p.id)

-- name: raise_watermark
UPDATE watermark
SET range_id = max(watermark.range_id, gone.range_id),
    partition_id = max(watermark.partition_id, gone.id)
FROM (
    SELECT max(max(range_id, coalesce(counts_version + 1, 0))) AS range_id, max(id) AS id
    FROM partitions
    WHERE id IN (SELECT value FROM json_each(?))
) AS gone
WHERE gone.id IS NOT NULL

-- name: delete_partitions
DELETE FROM partitions WHERE id IN (SELECT value FROM json_each(?))

-- name: delete_segments
DELETE FROM segments WHERE partition_id IN (SELECT value FROM json_each(?))

-- name: delete_marks
DELETE FROM marks WHERE partition_id IN (SELECT value FROM json_each(?))

-- name: delete_later
DELETE FROM later WHERE partition_id IN (SELECT value FROM json_each(?))

-- name: delete_dead
DELETE FROM dead WHERE partition_id IN (SELECT value FROM json_each(?))

-- name: delete_results
DELETE FROM results WHERE partition_id IN (SELECT value FROM json_each(?))

-- name: delete_damaged
DELETE FROM damaged WHERE partition_id IN (SELECT value FROM json_each(?))
