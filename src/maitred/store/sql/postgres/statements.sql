-- Each one a single round trip. The commit is maitred.write_down, in 0007_owners.sql.

-- name: migrations_begin
SELECT pg_advisory_xact_lock(1836348004)

-- name: versions_make
CREATE SCHEMA IF NOT EXISTS maitred;
CREATE TABLE IF NOT EXISTS maitred.versions (version integer PRIMARY KEY);

-- name: versions_exist
SELECT to_regclass('maitred.versions') IS NOT NULL

-- name: needs_exist
SELECT EXISTS (
    SELECT 1 FROM pg_attribute
    WHERE attrelid = to_regclass('maitred.versions') AND attname = 'needs' AND NOT attisdropped
)

-- name: needs_make
-- The version that a program must know to use the database from this one on; NULL means this one.
ALTER TABLE maitred.versions ADD COLUMN needs integer

-- name: version
SELECT coalesce(max(version), 0), coalesce(max(coalesce(needs, version)), 0) FROM maitred.versions

-- name: version_reached
INSERT INTO maitred.versions (version, needs) VALUES ($1, $2)

-- name: session
-- Raises a weak synchronous_commit; `local` and `remote_write` are weak only with a synchronous
-- standby, but one may be added later. Then statement_timeout and lock_timeout, in milliseconds.
SELECT set_config(
        'synchronous_commit',
        CASE current_setting('synchronous_commit')
            WHEN 'remote_apply' THEN 'remote_apply'
            ELSE 'on'
        END,
        false
    ),
    set_config('statement_timeout', $1, false),
    set_config('lock_timeout', $2, false)

-- name: risks
SELECT current_setting('fsync'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication)

-- name: acquire
-- Rows are locked in the order of their ids, as commits lock them. A range id of NULL is any. The last
-- columns are what the row had before, and the controls of the queue. On a later timeline than that of the last acquisition, range ids
-- and versions of counts that are not seen here may have been given out: on each timeline in between.
WITH wanted AS (
    SELECT p.id, named.place, p.range_id = coalesce(named.range_id, p.range_id) AS is_expected,
        p.range_id, p.owner, p.commits, here.timeline,
        CASE WHEN p.timeline IN ('', here.timeline) THEN 0
            ELSE greatest(
                maitred.lost_ranges(here.timeline) - maitred.lost_ranges(p.timeline), 1000
            ) - 1
        END AS undone
    FROM (SELECT maitred.timeline() AS timeline OFFSET 0) AS here, maitred.partitions AS p
    JOIN unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $6::bigint[])
        WITH ORDINALITY AS named (namespace, queue, queue_type, partition, range_id, place)
        USING (namespace, queue, queue_type, partition)
    ORDER BY p.id
    FOR UPDATE OF p
), acquired AS (
    UPDATE maitred.partitions AS p
    SET range_id = p.range_id + 1 + wanted.undone,
        counts_version = p.counts_version + wanted.undone, timeline = wanted.timeline, commits = 0,
        found_clean = p.clean, clean = false, owner = nullif($5, '')
    FROM wanted
    WHERE p.id = wanted.id AND wanted.is_expected
    RETURNING wanted.place::integer, NULL::text, p.id, p.range_id, p.backlog, p.found_clean,
        p.counts_read, p.counts_write, p.counts_version,
        wanted.range_id AS was, wanted.owner, wanted.commits,
        (SELECT r.body FROM maitred.results AS r WHERE r.partition_id = p.id AND r.sequence = $7)
)
SELECT * FROM acquired
UNION ALL
SELECT place::integer, 'overtaken', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM wanted
WHERE NOT is_expected

-- name: make_partitions
SELECT made.*, 0::bigint, NULL::text, 0::bigint,
    (SELECT r.body FROM maitred.results AS r WHERE r.partition_id = made.id AND r.sequence = $8)
FROM maitred.make_partitions($1, $2, $3, $4, $6, $7, $5) AS made

-- name: watermark
SELECT range_id FROM maitred.watermark

-- name: timeline
SELECT maitred.timeline()

-- name: overtaken
-- The places of partitions that have fewer commits of this owner than it counts, or another owner.
SELECT new.place::integer
FROM unnest($2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
    AS new (id, range_id, commits, place)
LEFT JOIN maitred.partitions AS p ON p.id = new.id AND p.range_id = new.range_id AND p.owner = $1
WHERE p.id IS NULL OR p.commits < new.commits

-- name: owners
SELECT named.place::integer, p.range_id,
    CASE WHEN p.clean THEN '' ELSE coalesce(split_part(p.owner, '/', 1), '') END
FROM maitred.partitions AS p
JOIN unnest($1::text[], $2::text[], $3::integer[], $4::integer[])
    WITH ORDINALITY AS named (namespace, queue, queue_type, partition, place)
    USING (namespace, queue, queue_type, partition)

-- name: find
SELECT id
FROM maitred.partitions
WHERE namespace = $1 AND queue = $2 AND queue_type = $3 AND partition = $4

-- name: commit
SELECT * FROM maitred.write_down(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38,
    $39, $40
)

-- name: segments
SELECT priority, first, last, tasks, body, ARRAY(
    SELECT m.sequence
    FROM maitred.marks AS m
    WHERE m.partition_id = $1 AND m.sequence BETWEEN s.first AND s.last
)
FROM (
    SELECT *, sum(tasks) OVER line - tasks AS before,
        sum(octet_length(body)) OVER line - octet_length(body) AS bytes_before
    FROM maitred.segments AS row
    WHERE partition_id = $1 AND priority = $2 AND first > $3
        AND NOT EXISTS (
            SELECT 1 FROM maitred.damaged AS d
            WHERE d.partition_id = $1 AND d.kind = 'segment' AND d.first = row.first
        )
    WINDOW line AS (ORDER BY first ROWS UNBOUNDED PRECEDING)
    ORDER BY first
    LIMIT $4
) AS s
WHERE before < $4 AND bytes_before < $5
ORDER BY first

-- name: segments_around
SELECT s.priority, s.first, s.last, s.tasks, s.body, ARRAY(
    SELECT m.sequence
    FROM maitred.marks AS m
    WHERE m.partition_id = $1 AND m.sequence BETWEEN s.first AND s.last
)
FROM generate_series(0, 4) AS each (priority)
CROSS JOIN LATERAL (
    SELECT *
    FROM maitred.segments AS near
    WHERE near.partition_id = $1 AND near.priority = each.priority AND near.first <= $2
    ORDER BY near.first DESC
    LIMIT 1
) AS s
WHERE s.last >= $2
    AND NOT EXISTS (
        SELECT 1 FROM maitred.damaged AS d
        WHERE d.partition_id = $1 AND d.kind = 'segment' AND d.first = s.first
    )
ORDER BY s.priority

-- name: segment_heads
-- What of segments stands in the row itself: a large body is elsewhere, and may be damaged.
SELECT priority, first, last, tasks, ARRAY(
    SELECT m.sequence
    FROM maitred.marks AS m
    WHERE m.partition_id = $1 AND m.sequence BETWEEN s.first AND s.last
)
FROM maitred.segments AS s
WHERE partition_id = $1 AND priority = $2 AND first > $3
    AND NOT EXISTS (
        SELECT 1 FROM maitred.damaged AS d
        WHERE d.partition_id = $1 AND d.kind = 'segment' AND d.first = s.first
    )
ORDER BY first
LIMIT $4

-- name: segment_heads_around
SELECT s.priority, s.first, s.last, s.tasks, ARRAY(
    SELECT m.sequence
    FROM maitred.marks AS m
    WHERE m.partition_id = $1 AND m.sequence BETWEEN s.first AND s.last
)
FROM generate_series(0, 4) AS each (priority)
CROSS JOIN LATERAL (
    SELECT near.priority, near.first, near.last, near.tasks
    FROM maitred.segments AS near
    WHERE near.partition_id = $1 AND near.priority = each.priority AND near.first <= $2
    ORDER BY near.first DESC
    LIMIT 1
) AS s
WHERE s.last >= $2
    AND NOT EXISTS (
        SELECT 1 FROM maitred.damaged AS d
        WHERE d.partition_id = $1 AND d.kind = 'segment' AND d.first = s.first
    )
ORDER BY s.priority

-- name: segment_body
SELECT body FROM maitred.segments WHERE partition_id = $1 AND priority = $2 AND first = $3

-- name: later
SELECT sequence, due, body
FROM (
    SELECT *, sum(octet_length(body)) OVER line - octet_length(body) AS bytes_before
    FROM maitred.later AS row
    WHERE partition_id = $1 AND due < $2
        AND NOT EXISTS (
            SELECT 1 FROM maitred.damaged AS d
            WHERE d.partition_id = $1 AND d.kind = 'later' AND d.first = row.sequence
        )
    WINDOW line AS (ORDER BY due, sequence ROWS UNBOUNDED PRECEDING)
    ORDER BY due, sequence
    LIMIT $3
) AS l
WHERE bytes_before < $4
ORDER BY due, sequence

-- name: later_heads
SELECT sequence, due
FROM maitred.later AS row
WHERE partition_id = $1 AND due < $2
    AND NOT EXISTS (
        SELECT 1 FROM maitred.damaged AS d
        WHERE d.partition_id = $1 AND d.kind = 'later' AND d.first = row.sequence
    )
ORDER BY due, sequence
LIMIT $3

-- name: later_after
-- The comparison of two columns is one condition of the index later_by_due.
SELECT sequence, due, body
FROM (
    SELECT *, sum(octet_length(body)) OVER line - octet_length(body) AS bytes_before
    FROM maitred.later AS row
    WHERE partition_id = $1 AND (due, sequence) > ($2, $3)
        AND NOT EXISTS (
            SELECT 1 FROM maitred.damaged AS d
            WHERE d.partition_id = $1 AND d.kind = 'later' AND d.first = row.sequence
        )
    WINDOW line AS (ORDER BY due, sequence ROWS UNBOUNDED PRECEDING)
    ORDER BY due, sequence
    LIMIT $4
) AS l
WHERE bytes_before < $5
ORDER BY due, sequence

-- name: later_after_heads
SELECT sequence, due
FROM maitred.later AS row
WHERE partition_id = $1 AND (due, sequence) > ($2, $3)
    AND NOT EXISTS (
        SELECT 1 FROM maitred.damaged AS d
        WHERE d.partition_id = $1 AND d.kind = 'later' AND d.first = row.sequence
    )
ORDER BY due, sequence
LIMIT $4

-- name: later_one
SELECT sequence, due, body FROM maitred.later WHERE partition_id = $1 AND sequence = $2

-- name: dead
SELECT sequence, died_at, reason, body
FROM (
    SELECT *, sum(octet_length(body)) OVER line - octet_length(body) AS bytes_before
    FROM maitred.dead AS row
    WHERE partition_id = $1 AND sequence > $2
        AND NOT EXISTS (
            SELECT 1 FROM maitred.damaged AS d
            WHERE d.partition_id = $1 AND d.kind = 'dead' AND d.first = row.sequence
        )
    WINDOW line AS (ORDER BY sequence ROWS UNBOUNDED PRECEDING)
    ORDER BY sequence
    LIMIT $3
) AS l
WHERE bytes_before < $4
ORDER BY sequence

-- name: dead_heads
SELECT sequence, died_at, reason
FROM maitred.dead AS row
WHERE partition_id = $1 AND sequence > $2
    AND NOT EXISTS (
        SELECT 1 FROM maitred.damaged AS d
        WHERE d.partition_id = $1 AND d.kind = 'dead' AND d.first = row.sequence
    )
ORDER BY sequence
LIMIT $3

-- name: dead_one
SELECT sequence, died_at, reason, body FROM maitred.dead WHERE partition_id = $1 AND sequence = $2

-- name: later_count
SELECT count(*) FROM (SELECT 1 FROM maitred.later WHERE partition_id = $1 LIMIT $2) AS found

-- name: dead_count
SELECT dead FROM maitred.partitions WHERE id = $1

-- name: result
SELECT sequence, expires_at, body FROM maitred.results WHERE partition_id = $1 AND sequence = $2

-- name: history
SELECT sequence, body
FROM (
    SELECT sequence, body, sum(octet_length(body)) OVER line - octet_length(body) AS bytes_before
    FROM maitred.results
    WHERE partition_id = $1 AND sequence > $2 AND sequence < 0
    WINDOW line AS (ORDER BY sequence ROWS UNBOUNDED PRECEDING)
    ORDER BY sequence
    LIMIT $3
) AS h
WHERE bytes_before < $4
ORDER BY sequence

-- name: history_heads
SELECT sequence
FROM maitred.results
WHERE partition_id = $1 AND sequence > $2 AND sequence < 0
ORDER BY sequence
LIMIT $3

-- name: set_aside
INSERT INTO maitred.damaged (partition_id, first, kind, last, tasks, in_place, head, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (partition_id, first, kind) DO UPDATE
SET last = EXCLUDED.last, tasks = EXCLUDED.tasks, in_place = EXCLUDED.in_place, dropped = false,
    head = EXCLUDED.head, body = EXCLUDED.body

-- name: damaged_gone
DELETE FROM maitred.damaged
WHERE partition_id = $1 AND first = $2 AND kind = $3 AND NOT in_place

-- name: damaged_dropped
UPDATE maitred.damaged SET dropped = true, tasks = 0
WHERE partition_id = $1 AND first = $2 AND kind = $3

-- name: damaged
SELECT kind, first, last, tasks, head, octet_length(body)
FROM maitred.damaged
WHERE partition_id = $1 AND (first, kind) > ($2, $3) AND NOT dropped
ORDER BY first, kind
LIMIT $4

-- name: damaged_one
SELECT kind, first, last, tasks, head, octet_length(body), body
FROM maitred.damaged
WHERE partition_id = $1 AND first = $2 AND kind = $3 AND NOT dropped

-- name: damaged_around
SELECT kind, first, last, tasks, head, 0
FROM maitred.damaged
WHERE partition_id = $1 AND first <= $2 AND last >= $2 AND NOT dropped
ORDER BY first, kind

-- name: damaged_count
SELECT count(*), coalesce(sum(tasks), 0)::bigint
FROM maitred.damaged
WHERE partition_id = $1 AND NOT dropped

-- name: forget_results
SELECT maitred.forget_results($1, $2)

-- name: partitions
SELECT namespace, queue, queue_type, partition
FROM maitred.partitions
ORDER BY namespace, queue, queue_type, partition

-- name: partitions_with_tasks
-- Reads every row: an index over `backlog` would cost every commit.
SELECT namespace, queue, queue_type, partition
FROM maitred.partitions
WHERE backlog > 0
ORDER BY namespace, queue, queue_type, partition

-- name: signing_key
-- The first who asks brings the key. The update changes nothing: with it, the others get the row too.
INSERT INTO maitred.signing_key (id, key) VALUES (1, $1)
ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id
RETURNING key

-- name: document
SELECT version, body FROM maitred.documents WHERE name = $1 AND version <> $2

-- name: make_document
INSERT INTO maitred.documents (name, version, body) VALUES ($1, $2::bigint + 1, $3)
ON CONFLICT (name) DO NOTHING
RETURNING version

-- name: replace_document
UPDATE maitred.documents SET version = version + 1, body = $3
WHERE name = $1 AND version = $2
RETURNING version

-- name: use
SELECT namespace, queue, sum(backlog + dead)::bigint, sum(bytes)::bigint, sum(dead)::bigint
FROM maitred.partitions
WHERE backlog + bytes > 0
GROUP BY namespace, queue

-- name: queues
SELECT DISTINCT queue FROM maitred.partitions WHERE namespace = $1 ORDER BY queue LIMIT $2

-- name: queue_count
SELECT count(*) FROM maitred.partitions WHERE namespace = $1 AND partition = 0

-- name: empty_partitions
SELECT namespace, queue, queue_type, partition, range_id, counts_read, counts_write, counts_version
FROM maitred.partitions
WHERE backlog = 0 AND (namespace, queue, queue_type, partition) > ($1, $2, $3, $4)
ORDER BY namespace, queue, queue_type, partition
LIMIT $5

-- name: forget_partitions
SELECT maitred.forget_partitions($1, $2, $3, $4, $5)

-- name: delete_queue
SELECT * FROM maitred.delete_queue($1, $2, $3, $4)

-- name: see_timeline
SELECT maitred.see_timeline($1)

-- name: cluster_secret
SELECT * FROM maitred.find_cluster($1, $2, $3)

-- name: cluster_table
SELECT maitred.table_of($1, $2)::text

-- name: join_cluster
SELECT refusal, named, beats, now, state::text FROM maitred.join_cluster(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19
)

-- name: member_beats
SELECT beats FROM maitred.members WHERE cluster = $1 AND id = $2 AND state <> 'dead'

-- name: beat
WITH mine AS (
    UPDATE maitred.members
    SET beats = beats + 1, load = $3, clock_ahead_seconds = $4, beat_at = clock_timestamp()
    WHERE cluster = $1 AND id = $2 AND state <> 'dead'
    RETURNING id, beats
)
SELECT c.version, EXISTS (SELECT 1 FROM mine), (
    SELECT coalesce(json_object_agg(m.id, coalesce(mine.beats, m.beats)), '{}')::text
    FROM maitred.members AS m
    LEFT JOIN mine ON mine.id = m.id
    WHERE m.cluster = c.name AND m.state <> 'dead'
), extract(epoch FROM clock_timestamp())::double precision
FROM maitred.clusters AS c
WHERE c.name = $1

-- name: change_member
SELECT maitred.change_member($1, $2, $3, $4, $5)::text

-- name: accuse_member
SELECT maitred.accuse_member($1, $2, $3, $4, $5, $6, $7)::text

-- name: describe_members
SELECT id, node, host, port, state, release, versions, shards,
    extract(epoch FROM since)::double precision, load,
    extract(epoch FROM clock_timestamp() - beat_at)::double precision, clock_ahead_seconds
FROM maitred.members
WHERE cluster = $1
ORDER BY host, port, since

-- name: connections
-- How many connections clients without special rights can have together.
SELECT current_setting('max_connections')::integer
    - current_setting('superuser_reserved_connections')::integer
    - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::integer
