-- compatible: 6
--
-- The members of clusters. Every change of a member's state raises the cluster's version and notifies
-- the listeners, in the same transaction; heartbeats and votes change no version. All functions that
-- change a cluster lock its row first, so they take turns. Each is one statement: no node holds a lock
-- while the server waits for it.
--
-- Listeners of `maitred_members` get the name of the cluster. NOTIFY takes a lock of the whole server
-- until the end of the commit, so it is for changes of membership alone.

CREATE TABLE maitred.clusters (
    name text COLLATE "C" PRIMARY KEY,
    version bigint NOT NULL,
    timeline text NOT NULL, -- that of the server when the version was last found to be right
    secret bytea NOT NULL,
    spread_batch text, -- JSON; this and `placement` are NULL until the first member joins
    placement text
);

CREATE TABLE maitred.members (
    cluster text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    node text NOT NULL,
    host text NOT NULL,
    port integer NOT NULL,
    member_port integer NOT NULL,
    shards integer NOT NULL,
    shard_ports integer[] NOT NULL,
    state text NOT NULL,
    release text NOT NULL,
    versions integer[] NOT NULL,
    since timestamptz NOT NULL, -- when it entered its state
    beats bigint NOT NULL DEFAULT 0,
    beat_at timestamptz NOT NULL,
    load double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, id)
) WITH (fillfactor = 50); -- a heartbeat updates its row; with room beside it, no index has to follow

CREATE TABLE maitred.votes (
    cluster text COLLATE "C" NOT NULL,
    accuser text COLLATE "C" NOT NULL,
    accused text COLLATE "C" NOT NULL,
    beat bigint NOT NULL, -- the heartbeat counter that the accuser saw; a heartbeat voids the vote
    at timestamptz NOT NULL,
    PRIMARY KEY (cluster, accused, accuser)
);

-- The server's timeline, which each promotion of a standby and each restoration raises; '' if the
-- server does not tell it. The control file would tell it too, but late.
CREATE FUNCTION maitred.timeline() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN others THEN
    RETURN '';
END
$$;

-- The whole table of a cluster, dead members excepted; NULL if there is no such cluster. Members are
-- arrays, in the order of the fields of `ClusterMember`.
CREATE FUNCTION maitred.table_of(the_cluster text, vote_seconds double precision)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'version', c.version,
        'spread_batch', c.spread_batch,
        'placement', c.placement,
        'members', (
            SELECT coalesce(json_agg(json_build_array(
                m.id, m.node, m.host, m.port, m.member_port, m.shards, m.shard_ports, m.state,
                m.release, m.versions, extract(epoch FROM m.since)::double precision
            ) ORDER BY m.id), '[]')
            FROM maitred.members AS m
            WHERE m.cluster = c.name AND m.state <> 'dead'
        ),
        'beats', (
            SELECT coalesce(json_object_agg(m.id, m.beats), '{}')
            FROM maitred.members AS m
            WHERE m.cluster = c.name AND m.state <> 'dead'
        ),
        'votes', (
            SELECT coalesce(json_agg(json_build_array(
                v.accuser, v.accused, extract(epoch FROM clock_timestamp() - v.at)::double precision
            ) ORDER BY v.accused, v.accuser), '[]')
            FROM maitred.votes AS v
            WHERE v.cluster = c.name AND v.at > clock_timestamp() - make_interval(secs => vote_seconds)
        )
    )
    FROM maitred.clusters AS c
    WHERE c.name = the_cluster
$$;

-- Raises the version and notifies. The caller holds the cluster's row.
CREATE FUNCTION maitred.raise_version(the_cluster text, steps bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE maitred.clusters SET version = version + steps WHERE name = the_cluster;
    PERFORM pg_notify('maitred_members', the_cluster);
END
$$;

-- Called once on each new connection. After a promotion that lost commits, versions that nodes have
-- seen would be given out again, to other members. So on a new timeline the version rises by more than
-- a moment can lose, and every node reads the table again.
CREATE FUNCTION maitred.see_timeline(the_cluster text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    present text := maitred.timeline();
BEGIN
    IF EXISTS (
        SELECT 1 FROM maitred.clusters WHERE name = the_cluster AND timeline <> present
    ) THEN
        PERFORM 1 FROM maitred.clusters WHERE name = the_cluster FOR UPDATE;
        UPDATE maitred.clusters SET timeline = present
        WHERE name = the_cluster AND timeline <> present;
        IF FOUND THEN
            PERFORM maitred.raise_version(the_cluster, 1000);
        END IF;
    END IF;
END
$$;

-- Makes the cluster if it does not exist, and returns its secret. Two clusters in one database would
-- take partitions from each other, so it returns no secret but the names of other clusters if one of
-- their members had a heartbeat within `live_seconds`.
CREATE FUNCTION maitred.find_cluster(
    the_cluster text, the_secret bytea, live_seconds double precision
) RETURNS TABLE (secret bytea, others text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock(1836348005);
    others := ARRAY(
        SELECT DISTINCT m.cluster
        FROM maitred.members AS m
        WHERE m.cluster <> the_cluster AND m.state <> 'dead'
            AND m.beat_at > clock_timestamp() - make_interval(secs => live_seconds)
        ORDER BY m.cluster
    );
    IF cardinality(others) = 0 THEN
        INSERT INTO maitred.clusters (name, version, timeline, secret)
        VALUES (the_cluster, 0, maitred.timeline(), the_secret)
        ON CONFLICT (name) DO NOTHING;
        secret := (SELECT c.secret FROM maitred.clusters AS c WHERE c.name = the_cluster);
    END IF;
    RETURN NEXT;
END
$$;

-- Inserts a joining member and declares dead all others with its address; calling it again changes
-- nothing. `refusal` says why it did nothing:
-- 'clusters': another cluster is alive in this database (`named`);
-- 'address': the member `named` of another node has the address, and its heartbeats are younger than
--     `live_seconds`, unless it is the_silent one that still has as many as the caller saw;
-- 'terms': the cluster has other terms of placement (`named`, JSON) than expected. The only member
--     sets them.
CREATE FUNCTION maitred.join_cluster(
    the_cluster text, the_id text, the_node text, the_host text, the_port integer,
    the_member_port integer, the_shards integer, the_shard_ports integer[], the_release text,
    the_versions integer[],
    the_spread_batch text, the_placement text, expected_spread_batch text, expected_placement text,
    the_silent text, silent_beats bigint, the_secret bytea,
    live_seconds double precision, vote_seconds double precision
) RETURNS TABLE (refusal text, named text, beats bigint, now double precision, state json)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    found_others text[];
    cluster_row maitred.clusters%ROWTYPE;
    changed bigint;
    added bigint;
BEGIN
    now := extract(epoch FROM clock_timestamp())::double precision;
    -- Also a lock until the end of the commit: members of two clusters do not join at the same time.
    SELECT f.others INTO found_others
    FROM maitred.find_cluster(the_cluster, the_secret, live_seconds) AS f;
    IF cardinality(found_others) > 0 THEN
        refusal := 'clusters'; named := array_to_string(found_others, ', '); RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO cluster_row FROM maitred.clusters AS c WHERE c.name = the_cluster FOR UPDATE;

    SELECT m.id, m.beats INTO named, beats
    FROM maitred.members AS m
    WHERE m.cluster = the_cluster AND m.host = the_host AND m.port = the_port AND m.state <> 'dead'
        AND m.node <> the_node AND m.id <> the_id
        AND m.beat_at > clock_timestamp() - make_interval(secs => live_seconds)
        AND (the_silent, silent_beats) IS DISTINCT FROM (m.id, m.beats)
    LIMIT 1;
    IF FOUND THEN
        refusal := 'address'; RETURN NEXT;
        RETURN;
    END IF;

    IF (cluster_row.spread_batch, cluster_row.placement)
            IS DISTINCT FROM (expected_spread_batch, expected_placement)
        AND EXISTS (
            SELECT 1 FROM maitred.members AS m
            WHERE m.cluster = the_cluster AND m.state <> 'dead' AND m.id <> the_id
                AND (m.host, m.port) <> (the_host, the_port)
        )
    THEN
        refusal := 'terms';
        named := json_build_array(cluster_row.spread_batch, cluster_row.placement)::text;
        RETURN NEXT;
        RETURN;
    END IF;

    UPDATE maitred.members AS m SET state = 'dead', since = clock_timestamp()
    WHERE m.cluster = the_cluster AND m.host = the_host AND m.port = the_port
        AND m.state <> 'dead' AND m.id <> the_id;
    GET DIAGNOSTICS changed = ROW_COUNT;
    INSERT INTO maitred.members (
        cluster, id, node, host, port, member_port, shards, shard_ports, state, release, versions,
        since, beat_at
    ) VALUES (
        the_cluster, the_id, the_node, the_host, the_port, the_member_port, the_shards,
        the_shard_ports, 'joining', the_release, the_versions, clock_timestamp(), clock_timestamp()
    ) ON CONFLICT (cluster, id) DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    UPDATE maitred.clusters AS c SET spread_batch = the_spread_batch, placement = the_placement
    WHERE c.name = the_cluster
        AND (c.spread_batch, c.placement) IS DISTINCT FROM (the_spread_batch, the_placement);
    IF FOUND OR changed + added > 0 THEN
        PERFORM maitred.raise_version(the_cluster, 1);
    END IF;
    PERFORM maitred.forget_dead(the_cluster);
    named := NULL;
    beats := NULL;
    state := maitred.table_of(the_cluster, vote_seconds);
    RETURN NEXT;
END
$$;

-- Deletes the rows of members that died a day ago, and all votes of and against the dead.
CREATE FUNCTION maitred.forget_dead(the_cluster text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM maitred.members AS m
    WHERE m.cluster = the_cluster AND m.state = 'dead'
        AND m.since < clock_timestamp() - interval '1 day';
    DELETE FROM maitred.votes AS v
    WHERE v.cluster = the_cluster AND (
        SELECT count(*) FROM maitred.members AS m
        WHERE m.cluster = the_cluster AND m.id IN (v.accuser, v.accused) AND m.state <> 'dead'
    ) < 2;
END
$$;

-- Changes a member's state if it is still `before`; returns the table.
CREATE FUNCTION maitred.change_member(
    the_cluster text, the_id text, before text, after text, vote_seconds double precision
) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM maitred.clusters WHERE name = the_cluster FOR UPDATE;
    UPDATE maitred.members SET state = after, since = clock_timestamp()
    WHERE cluster = the_cluster AND id = the_id AND state = before;
    IF FOUND THEN
        PERFORM maitred.raise_version(the_cluster, 1);
        PERFORM maitred.forget_dead(the_cluster);
    END IF;
    RETURN maitred.table_of(the_cluster, vote_seconds);
END
$$;

-- Records a vote if the table has this version, and declares the accused dead if enough active members
-- voted within `vote_seconds`; returns the table.
CREATE FUNCTION maitred.accuse_member(
    the_cluster text, the_accuser text, the_accused text, the_beat bigint, the_version bigint,
    needed integer, vote_seconds double precision
) RETURNS json LANGUAGE plpgsql AS $$
DECLARE
    accused_is_silent boolean;
BEGIN
    PERFORM 1 FROM maitred.clusters WHERE name = the_cluster AND version = the_version FOR UPDATE;
    IF NOT FOUND OR the_accuser = the_accused THEN
        RETURN maitred.table_of(the_cluster, vote_seconds);
    END IF;
    -- The lock keeps a heartbeat out that comes meanwhile.
    SELECT beats = the_beat INTO accused_is_silent FROM maitred.members
    WHERE cluster = the_cluster AND id = the_accused AND state <> 'dead' FOR UPDATE;
    IF accused_is_silent AND EXISTS (
        SELECT 1 FROM maitred.members
        WHERE cluster = the_cluster AND id = the_accuser AND state = 'active'
    ) THEN
        INSERT INTO maitred.votes AS v (cluster, accuser, accused, beat, at)
        VALUES (the_cluster, the_accuser, the_accused, the_beat, clock_timestamp())
        ON CONFLICT (cluster, accused, accuser) DO UPDATE
        SET beat = EXCLUDED.beat, at = EXCLUDED.at;
        DELETE FROM maitred.votes
        WHERE cluster = the_cluster
            AND at <= clock_timestamp() - make_interval(secs => vote_seconds);
        IF greatest(needed, 1) <= (
            SELECT count(*)
            FROM maitred.votes AS v
            JOIN maitred.members AS m ON m.cluster = v.cluster AND m.id = v.accuser
            WHERE v.cluster = the_cluster AND v.accused = the_accused AND v.beat = the_beat
                AND m.state = 'active'
        ) THEN
            UPDATE maitred.members SET state = 'dead', since = clock_timestamp()
            WHERE cluster = the_cluster AND id = the_accused;
            PERFORM maitred.raise_version(the_cluster, 1);
            PERFORM maitred.forget_dead(the_cluster);
        END IF;
    END IF;
    RETURN maitred.table_of(the_cluster, vote_seconds);
END
$$;
