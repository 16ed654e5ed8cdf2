-- What a partition has in the store, kept up with every row that comes or goes, so that nobody has to
-- count: `dead` letters, and the `bytes` of all bodies, with 64 more for each row.

ALTER TABLE maitred.partitions
    ADD COLUMN dead bigint NOT NULL DEFAULT 0,
    ADD COLUMN bytes bigint NOT NULL DEFAULT 0;

UPDATE maitred.partitions AS p SET
    dead = (SELECT count(*) FROM maitred.dead AS d WHERE d.partition_id = p.id),
    bytes = (
        SELECT coalesce(sum(octet_length(body) + 64), 0)
        FROM (
            SELECT partition_id, body FROM maitred.segments
            UNION ALL SELECT partition_id, body FROM maitred.later
            UNION ALL SELECT partition_id, body FROM maitred.dead
            UNION ALL SELECT partition_id, body FROM maitred.results
        ) AS stored
        WHERE stored.partition_id = p.id
    );

DROP FUNCTION maitred.write_down;

-- `bytes` of a partition is what all its rows count: first what the commit adds, then less what goes.
--
-- A whole commit in one round trip; returns the ids of those that were overtaken. Columns of what is
-- to be written come as arrays. Rows of partitions are locked in the order of their ids, so that two
-- groups that have some in common wait for each other, and never both.
CREATE FUNCTION maitred.write_down(
    the_ids bigint[], the_ranges bigint[], the_backlogs bigint[], the_cleans boolean[],
    the_bytes bigint[],
    counts_of bigint[], the_reads integer[], the_writes integer[], the_versions bigint[],
    segments_of bigint[], the_priorities smallint[], the_firsts bigint[], the_lasts bigint[],
    the_tasks integer[], the_bodies bytea[],
    marks_of bigint[], the_marks bigint[],
    gone_of bigint[], gone_priorities smallint[], gone_firsts bigint[], gone_lasts bigint[],
    later_gone_of bigint[], later_gone bigint[],
    later_of bigint[], later_sequences bigint[], later_dues double precision[], later_bodies bytea[],
    dead_gone_of bigint[], dead_gone bigint[],
    dead_of bigint[], dead_sequences bigint[], dead_moments double precision[],
    dead_reasons text[], dead_bodies bytea[],
    results_of bigint[], result_sequences bigint[], result_expiries double precision[],
    result_bodies bytea[]
) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    held bigint[];
BEGIN
    held := ARRAY(
        SELECT p.id
        FROM maitred.partitions AS p
        JOIN unnest(the_ids, the_ranges) AS new (id, range_id)
            ON p.id = new.id AND p.range_id = new.range_id
        ORDER BY p.id
        FOR UPDATE OF p
    );
    UPDATE maitred.partitions AS p
    SET backlog = new.backlog, clean = new.clean, bytes = p.bytes + new.bytes,
        dead = p.dead + (SELECT count(*) FROM unnest(dead_of) AS letters (id) WHERE letters.id = p.id)
    FROM unnest(the_ids, the_backlogs, the_cleans, the_bytes) AS new (id, backlog, clean, bytes)
    WHERE p.id = new.id AND p.id = ANY (held);

    -- What goes, and what is replaced: each row once, whoever names it twice. Before anything changes.
    IF cardinality(segments_of || gone_of || later_gone_of || later_of || dead_gone_of || dead_of
        || results_of) > 0 THEN
        UPDATE maitred.partitions AS p
        SET bytes = p.bytes - old.bytes, dead = p.dead - old.dead
        FROM (
            SELECT id, sum(size) AS bytes, sum(dead) AS dead
            FROM (
                SELECT id, octet_length(body) + 64 AS size, 0 AS dead
                FROM maitred.segments
                JOIN (
                    SELECT * FROM unnest(segments_of, the_priorities, the_firsts)
                    UNION SELECT * FROM unnest(gone_of, gone_priorities, gone_firsts)
                ) AS named (id, of_priority, of_first)
                    ON partition_id = id AND priority = of_priority AND first = of_first
                UNION ALL
                SELECT id, octet_length(body) + 64, 0
                FROM maitred.later
                JOIN (
                    SELECT * FROM unnest(later_gone_of, later_gone)
                    UNION SELECT * FROM unnest(later_of, later_sequences)
                ) AS named (id, of_sequence) ON partition_id = id AND sequence = of_sequence
                UNION ALL
                SELECT id, octet_length(body) + 64, 1
                FROM maitred.dead
                JOIN (
                    SELECT * FROM unnest(dead_gone_of, dead_gone)
                    UNION SELECT * FROM unnest(dead_of, dead_sequences)
                ) AS named (id, of_sequence) ON partition_id = id AND sequence = of_sequence
                UNION ALL
                SELECT id, octet_length(body) + 64, 0
                FROM maitred.results
                JOIN unnest(results_of, result_sequences) AS named (id, of_sequence)
                    ON partition_id = id AND sequence = of_sequence
            ) AS rows
            GROUP BY id
        ) AS old
        WHERE p.id = old.id AND p.id = ANY (held);
    END IF;

    IF cardinality(counts_of) > 0 THEN
        UPDATE maitred.partitions AS p
        SET counts_read = new.r, counts_write = new.w, counts_version = new.v
        FROM unnest(counts_of, the_reads, the_writes, the_versions) AS new (id, r, w, v)
        WHERE p.id = new.id AND p.id = ANY (held);
    END IF;

    IF cardinality(segments_of) > 0 THEN
        INSERT INTO maitred.segments AS s (partition_id, priority, first, last, tasks, body)
        SELECT *
        FROM unnest(segments_of, the_priorities, the_firsts, the_lasts, the_tasks, the_bodies)
            AS new (id, priority, first, last, tasks, body)
        WHERE new.id = ANY (held)
        ON CONFLICT (partition_id, priority, first) DO UPDATE
        SET last = EXCLUDED.last, tasks = EXCLUDED.tasks, body = EXCLUDED.body;
    END IF;

    IF cardinality(marks_of) > 0 THEN
        INSERT INTO maitred.marks (partition_id, sequence)
        SELECT * FROM unnest(marks_of, the_marks) AS new (id, sequence)
        WHERE new.id = ANY (held)
        ON CONFLICT DO NOTHING;
    END IF;

    -- A mark goes with the last segment that it lies in: segments of two priorities that were
    -- written together overlap, and the store cannot tell whose it is.
    IF cardinality(gone_of) > 0 THEN
        DELETE FROM maitred.segments AS s
        USING unnest(gone_of, gone_priorities, gone_firsts) AS gone (id, priority, first)
        WHERE s.partition_id = gone.id AND s.priority = gone.priority AND s.first = gone.first
            AND gone.id = ANY (held);
        DELETE FROM maitred.marks AS m
        USING unnest(gone_of, gone_firsts, gone_lasts) AS gone (id, first, last)
        WHERE m.partition_id = gone.id AND m.sequence BETWEEN gone.first AND gone.last
            AND gone.id = ANY (held)
            AND NOT EXISTS (
                SELECT 1
                FROM generate_series(0, 4) AS each (priority)
                CROSS JOIN LATERAL (
                    SELECT s.last
                    FROM maitred.segments AS s
                    WHERE s.partition_id = m.partition_id AND s.priority = each.priority
                        AND s.first <= m.sequence
                    ORDER BY s.first DESC
                    LIMIT 1
                ) AS near
                WHERE near.last >= m.sequence
            );
    END IF;

    IF cardinality(later_gone_of) > 0 THEN
        DELETE FROM maitred.later AS l
        USING unnest(later_gone_of, later_gone) AS gone (id, sequence)
        WHERE l.partition_id = gone.id AND l.sequence = gone.sequence AND gone.id = ANY (held);
    END IF;

    IF cardinality(later_of) > 0 THEN
        INSERT INTO maitred.later AS l (partition_id, sequence, due, body)
        SELECT *
        FROM unnest(later_of, later_sequences, later_dues, later_bodies)
            AS new (id, sequence, due, body)
        WHERE new.id = ANY (held)
        ON CONFLICT (partition_id, sequence) DO UPDATE
        SET due = EXCLUDED.due, body = EXCLUDED.body;
    END IF;

    IF cardinality(dead_gone_of) > 0 THEN
        DELETE FROM maitred.dead AS d
        USING unnest(dead_gone_of, dead_gone) AS gone (id, sequence)
        WHERE d.partition_id = gone.id AND d.sequence = gone.sequence AND gone.id = ANY (held);
    END IF;

    IF cardinality(dead_of) > 0 THEN
        INSERT INTO maitred.dead AS d (partition_id, sequence, died_at, reason, body)
        SELECT *
        FROM unnest(dead_of, dead_sequences, dead_moments, dead_reasons, dead_bodies)
            AS new (id, sequence, died_at, reason, body)
        WHERE new.id = ANY (held)
        ON CONFLICT (partition_id, sequence) DO UPDATE
        SET died_at = EXCLUDED.died_at, reason = EXCLUDED.reason, body = EXCLUDED.body;
    END IF;

    IF cardinality(results_of) > 0 THEN
        INSERT INTO maitred.results AS r (partition_id, sequence, expires_at, body)
        SELECT *
        FROM unnest(results_of, result_sequences, result_expiries, result_bodies)
            AS new (id, sequence, expires_at, body)
        WHERE new.id = ANY (held)
        ON CONFLICT (partition_id, sequence) DO UPDATE
        SET expires_at = EXCLUDED.expires_at, body = EXCLUDED.body;
    END IF;

    RETURN QUERY SELECT id FROM unnest(the_ids) AS new (id) WHERE NOT id = ANY (held);
END
$$;

-- Deletes expired results and returns how many. It locks the rows of partitions in the order of their
-- ids, as a commit does, and before the results: so the two never wait for each other.
CREATE FUNCTION maitred.forget_results(before double precision, most bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found tid[];
    forgotten bigint;
BEGIN
    found := ARRAY(
        SELECT ctid FROM maitred.results WHERE expires_at < before ORDER BY expires_at LIMIT most
    );
    PERFORM 1
    FROM maitred.partitions
    WHERE id IN (SELECT partition_id FROM maitred.results WHERE ctid = ANY (found))
    ORDER BY id
    FOR UPDATE;
    WITH gone AS (
        DELETE FROM maitred.results
        WHERE ctid = ANY (found) AND expires_at < before
        RETURNING partition_id, octet_length(body) + 64 AS bytes
    ), less AS (
        UPDATE maitred.partitions AS p SET bytes = p.bytes - g.bytes
        FROM (SELECT partition_id, sum(bytes) AS bytes FROM gone GROUP BY partition_id) AS g
        WHERE p.id = g.partition_id
    )
    SELECT count(*) INTO forgotten FROM gone;
    RETURN forgotten;
END
$$;
