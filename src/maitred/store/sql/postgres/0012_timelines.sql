-- compatible: 6
--
-- As before, but the version rises for each timeline since the one on which the table was last seen. A
-- failover may undo the raise after the failover before it, and the same versions would be given out
-- again, to other members.

CREATE OR REPLACE FUNCTION maitred.see_timeline(the_cluster text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    present text := maitred.timeline();
    seen text;
BEGIN
    IF EXISTS (
        SELECT 1 FROM maitred.clusters WHERE name = the_cluster AND timeline <> present
    ) THEN
        SELECT timeline INTO seen FROM maitred.clusters WHERE name = the_cluster FOR UPDATE;
        IF seen <> present THEN
            UPDATE maitred.clusters SET timeline = present WHERE name = the_cluster;
            PERFORM maitred.raise_version(
                the_cluster,
                greatest(maitred.lost_ranges(present) - maitred.lost_ranges(seen), 1000)
            );
        END IF;
    END IF;
END
$$;
