-- What deleted partitions leave behind, so that nothing of an earlier life passes for a later one:
-- the highest range id (or version of counts) that any of them had. A new partition starts above it.
-- Whoever makes or deletes partitions locks this row first, so they take turns: quotas are counted
-- exactly, and no partition is made between the look at a queue and its deletion.

CREATE TABLE maitred.watermark (
    id smallint PRIMARY KEY CHECK (id = 1),
    range_id bigint NOT NULL
);

INSERT INTO maitred.watermark (id, range_id) VALUES (1, 0);

-- Makes partitions that do not exist and acquires those that do by now, as their next owner. Each is
-- named by its place in the arrays; `refusal` says why there is no other column.
CREATE FUNCTION maitred.make_partitions(
    the_namespaces text[], the_queues text[], the_types integer[], the_partitions integer[],
    the_quotas bigint[], the_totals bigint[]
) RETURNS TABLE (
    place integer, refusal text, id bigint, range_id bigint, backlog bigint, found_clean boolean,
    counts_read integer, counts_write integer, counts_version bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    mark bigint;
    here boolean;
BEGIN
    SELECT w.range_id INTO mark FROM maitred.watermark AS w FOR UPDATE;
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
                namespace, queue, queue_type, partition, range_id, backlog, clean, found_clean
            )
            VALUES (
                the_namespaces[at], the_queues[at], the_types[at], the_partitions[at],
                mark + 1, 0, false, true
            )
            ON CONFLICT (namespace, queue, queue_type, partition) DO UPDATE
            SET range_id = p.range_id + 1, found_clean = p.clean, clean = false
            RETURNING at, NULL::text, p.id, p.range_id, p.backlog, p.found_clean,
                p.counts_read, p.counts_write, p.counts_version;
    END LOOP;
END
$$;

-- Deletes partitions with all that they hold. The caller holds their rows and the watermark.
CREATE FUNCTION maitred.drop_partitions(gone bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE maitred.watermark AS w
    SET range_id = greatest(w.range_id, (
        SELECT max(greatest(p.range_id, p.counts_version + 1))
        FROM maitred.partitions AS p
        WHERE p.id = ANY (gone)
    ));
    DELETE FROM maitred.segments WHERE partition_id = ANY (gone);
    DELETE FROM maitred.marks WHERE partition_id = ANY (gone);
    DELETE FROM maitred.later WHERE partition_id = ANY (gone);
    DELETE FROM maitred.dead WHERE partition_id = ANY (gone);
    DELETE FROM maitred.results WHERE partition_id = ANY (gone);
    DELETE FROM maitred.partitions WHERE id = ANY (gone);
END
$$;

-- Deletes those that hold nothing and have these range ids; returns their places in the arrays.
CREATE FUNCTION maitred.forget_partitions(
    the_namespaces text[], the_queues text[], the_types integer[], the_partitions integer[],
    the_ranges bigint[]
) RETURNS SETOF integer LANGUAGE plpgsql AS $$
DECLARE
    held bigint[];
    gone bigint[];
BEGIN
    PERFORM 1 FROM maitred.watermark FOR UPDATE;
    held := ARRAY(
        SELECT p.id
        FROM maitred.partitions AS p
        JOIN unnest(the_namespaces, the_queues, the_types, the_partitions, the_ranges)
            AS wanted (namespace, queue, queue_type, partition, range_id)
            USING (namespace, queue, queue_type, partition, range_id)
        ORDER BY p.id
        FOR UPDATE OF p
    );
    -- Only now nobody can write to them any more.
    gone := ARRAY(
        SELECT p.id
        FROM maitred.partitions AS p
        WHERE p.id = ANY (held) AND p.backlog = 0
            AND NOT EXISTS (SELECT 1 FROM maitred.segments WHERE partition_id = p.id)
            AND NOT EXISTS (SELECT 1 FROM maitred.later WHERE partition_id = p.id)
            AND NOT EXISTS (SELECT 1 FROM maitred.dead WHERE partition_id = p.id)
            AND NOT EXISTS (SELECT 1 FROM maitred.results WHERE partition_id = p.id)
    );
    gone := ARRAY(
        SELECT p.id
        FROM maitred.partitions AS p
        WHERE p.id = ANY (gone) AND (p.partition > 0 OR NOT EXISTS (
            SELECT 1
            FROM maitred.partitions AS other
            WHERE other.namespace = p.namespace AND other.queue = p.queue
                AND other.queue_type = p.queue_type
                AND other.partition > 0 AND NOT other.id = ANY (gone)
        ))
    );
    RETURN QUERY
        SELECT wanted.place::integer
        FROM maitred.partitions AS p
        JOIN unnest(the_namespaces, the_queues, the_types, the_partitions)
            WITH ORDINALITY AS wanted (namespace, queue, queue_type, partition, place)
            USING (namespace, queue, queue_type, partition)
        WHERE p.id = ANY (gone);
    PERFORM maitred.drop_partitions(gone);
END
$$;

-- Deletes a queue: all its partitions, if they hold neither tasks nor dead letters, or if forced.
CREATE FUNCTION maitred.delete_queue(
    the_namespace text, the_queue text, the_type integer, forced boolean
) RETURNS TABLE (deleted boolean, partitions bigint, tasks bigint, dead bigint)
LANGUAGE plpgsql AS $$
DECLARE
    gone bigint[];
BEGIN
    PERFORM 1 FROM maitred.watermark FOR UPDATE;
    gone := ARRAY(
        SELECT p.id
        FROM maitred.partitions AS p
        WHERE p.namespace = the_namespace AND p.queue = the_queue AND p.queue_type = the_type
        ORDER BY p.id
        FOR UPDATE
    );
    SELECT count(*), coalesce(sum(p.backlog), 0) INTO partitions, tasks
    FROM maitred.partitions AS p
    WHERE p.id = ANY (gone);
    SELECT count(*) INTO dead FROM maitred.dead AS d WHERE d.partition_id = ANY (gone);
    deleted := forced OR tasks + dead = 0;
    IF deleted THEN
        PERFORM maitred.drop_partitions(gone);
    END IF;
    RETURN NEXT;
END
$$;
