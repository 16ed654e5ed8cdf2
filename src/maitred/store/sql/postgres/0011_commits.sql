-- compatible: 6
--
-- The fence is the range id, the owner, and how many commits the owner has made since it acquired the
-- partition. A failover to a standby without the latest commits undoes some of them, perhaps only the
-- last ones: the range id and the owner are right then, and rows are missing that the owner believes
-- to be there. Its next commit is refused, since it has made fewer commits here than it counts, and it
-- loads the partition again.
--
-- A range id that such a failover undid must not be given out again, since a task's number begins with
-- it. So an acquisition on another timeline than that of the last one raises it by 1000, and the version
-- of the partition counts by nearly as much: clients ignore counts whose version they have seen.
--
-- Functions that an older release calls stay: `write_down` without `the_commits` counts no commits, and
-- the owner that calls it is fenced by its range id and its name, as before.

ALTER TABLE maitred.partitions
    ADD COLUMN commits bigint NOT NULL DEFAULT 0, -- of the present owner
    ADD COLUMN timeline text NOT NULL DEFAULT ''; -- at the last acquisition; '' for those before this migration
ALTER TABLE maitred.partitions ALTER COLUMN timeline SET DEFAULT maitred.timeline();

-- How far range ids of partitions that are made on this timeline are above the watermark: a partition
-- may have been made before, and the failovers since may have undone that.
CREATE FUNCTION maitred.lost_ranges(the_timeline text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN the_timeline = '' THEN 0
        ELSE 1000 * (('x' || the_timeline)::bit(32)::bigint - 1) END
$$;

-- As before, with range ids that no failover can have undone. A partition that was made meanwhile by
-- another owner is on this timeline.
CREATE OR REPLACE FUNCTION maitred.make_partitions(
    the_namespaces text[], the_queues text[], the_types integer[], the_partitions integer[],
    the_quotas bigint[], the_totals bigint[], the_owner text
) RETURNS TABLE (
    place integer, refusal text, id bigint, range_id bigint, backlog bigint, found_clean boolean,
    counts_read integer, counts_write integer, counts_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mark bigint;
    here boolean;
BEGIN
    SELECT w.range_id + maitred.lost_ranges(maitred.timeline()) INTO mark
    FROM maitred.watermark AS w
    FOR UPDATE;
    FOR at IN 1 .. cardinality(the_queues) LOOP
        here := EXISTS (
            SELECT 1 FROM maitred.partitions AS p
            WHERE p.namespace = the_namespaces[at] AND p.queue = the_queues[at]
                AND p.queue_type = the_types[at] AND p.partition = the_partitions[at]
        );
        IF the_partitions[at] = 0 AND NOT here THEN
            IF (SELECT count(*) FROM maitred.partitions AS p
                WHERE p.namespace = the_namespaces[at] AND p.partition = 0) >= the_quotas[at] THEN
                place := at; refusal := 'namespace'; RETURN NEXT;
                CONTINUE;
            END IF;
            IF (SELECT count(*) FROM maitred.partitions AS p
                WHERE p.partition = 0) >= the_totals[at] THEN
                place := at; refusal := 'store'; RETURN NEXT;
                CONTINUE;
            END IF;
        END IF;
        RETURN QUERY
            INSERT INTO maitred.partitions AS p (
                namespace, queue, queue_type, partition, range_id, backlog, clean, found_clean, owner
            )
            VALUES (
                the_namespaces[at], the_queues[at], the_types[at], the_partitions[at],
                mark + 1, 0, false, true, nullif(the_owner, '')
            )
            ON CONFLICT (namespace, queue, queue_type, partition) DO UPDATE
            SET range_id = p.range_id + 1, found_clean = p.clean, clean = false,
                owner = EXCLUDED.owner, commits = 0
            WHERE the_owner = '' OR p.clean
            RETURNING at, NULL::text, p.id, p.range_id, p.backlog, p.found_clean,
                p.counts_read, p.counts_write, p.counts_version;
    END LOOP;
END
$$;

-- A whole commit in one round trip, as before; `the_commits` says how many the owner has made since it
-- acquired each partition, or NULL if it does not count them.
CREATE FUNCTION maitred.write_down(
    the_owner text,
    the_ids bigint[], the_ranges bigint[], the_commits bigint[], the_backlogs bigint[],
    the_cleans boolean[], the_bytes bigint[],
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
        JOIN unnest(the_ids, the_ranges, the_commits) AS new (id, range_id, commits)
            ON p.id = new.id AND p.range_id = new.range_id
            AND (p.commits = new.commits OR new.commits IS NULL)
        WHERE the_owner = '' OR p.owner = the_owner
        ORDER BY p.id
        FOR UPDATE OF p
    );
    UPDATE maitred.partitions AS p
    SET backlog = new.backlog, clean = new.clean, bytes = p.bytes + new.bytes,
        commits = p.commits + 1,
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
