-- compatible: 6
--
-- Of two owners that make a partition at the same moment, the later one does not take it away from the
-- other without notice: the partition is left out of the answer, unless it was left in order. Programs
-- before this migration tell their callers to try again then.

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
                namespace, queue, queue_type, partition, range_id, backlog, clean, found_clean, owner
            )
            VALUES (
                the_namespaces[at], the_queues[at], the_types[at], the_partitions[at],
                mark + 1, 0, false, true, nullif(the_owner, '')
            )
            ON CONFLICT (namespace, queue, queue_type, partition) DO UPDATE
            SET range_id = p.range_id + 1, found_clean = p.clean, clean = false,
                owner = EXCLUDED.owner
            WHERE the_owner = '' OR p.clean
            RETURNING at, NULL::text, p.id, p.range_id, p.backlog, p.found_clean,
                p.counts_read, p.counts_write, p.counts_version;
    END LOOP;
END
$$;
