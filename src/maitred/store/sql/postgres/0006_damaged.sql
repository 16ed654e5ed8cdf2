-- Rows that cannot be read, set aside until an operator decides. `head` is JSON: what is known of the
-- row besides the columns. A row that the server itself cannot read or delete still stands in its own
-- table (`in_place`), and is left out of everything that is read there. When an operator has dropped
-- such a row, it stays here as `dropped`.

CREATE TABLE maitred.damaged (
    partition_id bigint NOT NULL,
    first bigint NOT NULL,
    kind text NOT NULL,
    last bigint NOT NULL,
    tasks bigint NOT NULL,
    in_place boolean NOT NULL,
    dropped boolean NOT NULL DEFAULT false,
    head text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (partition_id, first, kind)
);

-- Deletes partitions with all that they hold. The caller holds their rows and the watermark.
CREATE OR REPLACE FUNCTION maitred.drop_partitions(gone bigint[]) RETURNS void LANGUAGE plpgsql AS $$
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
    DELETE FROM maitred.damaged WHERE partition_id = ANY (gone);
    DELETE FROM maitred.partitions WHERE id = ANY (gone);
END
$$;

-- Deletes those that hold nothing and have these range ids; returns their places in the arrays.
CREATE OR REPLACE FUNCTION maitred.forget_partitions(
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
            AND NOT EXISTS (SELECT 1 FROM maitred.damaged WHERE partition_id = p.id)
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

-- Deletes a queue: all its partitions, if they hold no tasks, dead letters or damaged rows, or if forced.
DROP FUNCTION maitred.delete_queue(text, text, integer, boolean);

CREATE FUNCTION maitred.delete_queue(
    the_namespace text, the_queue text, the_type integer, forced boolean
) RETURNS TABLE (deleted boolean, partitions bigint, tasks bigint, dead bigint, damaged bigint)
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
    SELECT count(*) INTO damaged
    FROM maitred.damaged AS d
    WHERE d.partition_id = ANY (gone) AND NOT d.dropped;
    deleted := forced OR tasks + dead + damaged = 0;
    IF deleted THEN
        PERFORM maitred.drop_partitions(gone);
    END IF;
    RETURN NEXT;
END
$$;
