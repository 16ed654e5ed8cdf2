-- Everything of maitred's lies in a schema of its own. Applied in one transaction, under a lock.

CREATE TABLE maitred.partitions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    queue_type integer NOT NULL,
    partition integer NOT NULL,
    range_id bigint NOT NULL,
    backlog bigint NOT NULL,
    clean boolean NOT NULL,
    found_clean boolean NOT NULL, -- what `clean` was when the present owner came
    counts_read integer,
    counts_write integer,
    counts_version bigint,
    UNIQUE (namespace, queue, queue_type, partition)
) WITH (fillfactor = 50); -- every commit updates its row; with room beside it, no index has to follow

CREATE TABLE maitred.segments (
    partition_id bigint NOT NULL,
    priority smallint NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    tasks integer NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, priority, first) INCLUDE (last, tasks)
);

-- Payloads are their producers' business; compressing them on every commit is not worth its time.
ALTER TABLE maitred.segments ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE maitred.marks (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

CREATE TABLE maitred.later (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    due double precision NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

CREATE INDEX later_by_due ON maitred.later (partition_id, due, sequence);

CREATE TABLE maitred.dead (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    died_at double precision NOT NULL,
    reason text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

CREATE TABLE maitred.results (
    partition_id bigint NOT NULL,
    sequence bigint NOT NULL,
    expires_at double precision NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, sequence)
);

CREATE INDEX results_by_expiry ON maitred.results (expires_at);

-- A whole commit in one round trip; returns the ids of those that were overtaken. Columns of what is
-- to be written come as arrays. Rows of partitions are locked in the order of their ids, so that two
-- groups that have some in common wait for each other, and never both.
CREATE FUNCTION maitred.write_down(
    the_ids bigint[], the_ranges bigint[], the_backlogs bigint[], the_cleans boolean[],
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
    SET backlog = new.backlog, clean = new.clean
    FROM unnest(the_ids, the_backlogs, the_cleans) AS new (id, backlog, clean)
    WHERE p.id = new.id AND p.id = ANY (held);

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
